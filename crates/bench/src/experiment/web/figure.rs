//! Figures over one axis of whole web servers: throughput, processor time, and where asked system calls, of several lines measured in
//! turn; the engine of fig4, fig5 and fig6.

use super::{Bed, Generator, LONGER_S, Load, Server, calls, sleep};
use crate::commands::seconds;
use crate::experiment::{Common, apart, tell_written, told_anew};
use crate::procs;
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats::{self, Summary};
use anyhow::Result;
use std::time::Duration;

/// The longest that system calls are counted: it costs the server a little.
const CALLS_SPAN: Duration = Duration::from_secs(1);

/// How it is measured: options that these figures share.
#[derive(Clone, Debug, clap::Args)]
pub(in crate::experiment) struct Manner {
    /// How often every server is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(super) rounds: u16,
    /// How long each load runs
    #[arg(long, value_name = "S", default_value = "3", value_parser = seconds)]
    pub(super) seconds: f64,
    /// Who makes the load
    #[arg(long, value_name = "WORD", default_value = "wrk")]
    pub(super) load: Generator,
    /// Further requests on a connection, instead of one each as in the paper
    #[arg(long)]
    pub(super) keep_alive: bool,
    /// where the processors are
    #[command(flatten)]
    pub(super) apart: apart::Wanted,
    /// common
    #[command(flatten)]
    pub(super) common: Common,
}

/// What one point of the axis is: the load there, and what it is called.
#[derive(Clone, Debug)]
pub(super) struct Point {
    /// in the chart
    pub(super) x: f64,
    /// in the table
    pub(super) word: String,
    /// connections at a time
    pub(super) connections: u16,
    /// files asked for, in turn
    pub(super) files: Vec<String>,
}

/// One server as it is measured at every point.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) name: String,
    /// at each point: most lines have the same at all
    pub(super) servers: Vec<Server>,
    /// TSO and checksums left to the device
    pub(super) offloads: bool,
    /// a server that does not start is left out instead of ending all
    pub(super) optional: bool,
}

impl Line {
    /// The same server everywhere.
    pub(super) fn new(server: &Server, offloads: bool) -> Line {
        let name = server.name.clone();
        Line { name, servers: vec![server.clone()], offloads, optional: false }
    }

    fn server(&self, at: usize) -> &Server {
        self.servers.get(at).unwrap_or(&self.servers[0])
    }
}

/// What is to be measured.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) title: String,
    /// what it shows, before how it was measured
    pub(super) what: String,
    /// what the points are, with the unit
    pub(super) axis: &'static str,
    pub(super) points: Vec<Point>,
    pub(super) lines: Vec<Line>,
    /// count system calls, and look at memory
    pub(super) calls: bool,
}

/// One measurement.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    requests_per_s: f64,
    /// None where too few of the answers were good
    gbit_per_s: Option<f64>,
    /// of processor 0, in percent
    busy: f64,
    calls_per_s: Option<f64>,
    /// by the requests of the load in which they were counted
    calls_each: Option<f64>,
    /// of all its processes
    resident_mib: f64,
    failures: u64,
    /// how often a load was made anew of which nothing good had come back
    anew: usize,
}

/// A line with what was measured: rounds by point.
#[derive(Clone, Debug)]
struct Measured {
    line: Line,
    samples: Vec<Vec<Sample>>,
    /// why it was left out
    left_out: Option<String>,
}

/// Measures and writes the report. The files lie in `bed`.
pub(super) fn run(bed: &Bed, plan: &Plan, options: &Manner) -> Result<()> {
    super::ensure_can_run(options.load.programs(false))?;
    if plan.calls {
        super::ensure_can_run(&["perf"])?;
    }
    let start =
        |line: &Line| Measured { line: line.clone(), samples: vec![Vec::new(); plan.points.len()], left_out: None };
    let mut lines: Vec<Measured> = plan.lines.iter().map(start).collect();
    for round in 1..=options.rounds {
        for (at, point) in plan.points.iter().enumerate() {
            for line in lines.iter_mut().filter(|line| line.left_out.is_none()) {
                measure(bed, plan, options, round, (at, point), line)?;
            }
        }
    }
    let mut report = report(plan, options, &lines);
    report.method += &bed.told_apart();
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

fn measure(
    bed: &Bed,
    plan: &Plan,
    options: &Manner,
    round: u16,
    (at, point): (usize, &Point),
    line: &mut Measured,
) -> Result<()> {
    let lab = lab::Options { offloads: line.line.offloads, ..lab::Options::default() };
    let mut up = match bed.serve(line.line.server(at), &lab, &point.files) {
        Err(error) if line.line.optional && lab::uninterrupted().is_ok() => {
            let text = format!("{error:#}");
            let why = text.trim().lines().next_back().unwrap_or_default().trim().to_owned();
            eprintln!("{} is left out: {why}", line.line.name);
            line.left_out = Some(why);
            return Ok(());
        }
        up => up?,
    };
    let load = Load {
        generator: options.load,
        connections: point.connections,
        close: !options.keep_alive,
        rate: None,
        seconds: options.seconds,
        files: &point.files,
    };
    let (run, busy, ()) = up.run_watched(&load, sleep)?;
    let mut sample = Sample {
        requests_per_s: run.requests_per_s,
        gbit_per_s: run.bytes_per_s.map(|bytes| bytes * 8.0 / 1e9),
        busy: busy.percent()[0],
        failures: run.failures,
        anew: run.anew,
        ..Sample::default()
    };
    if plan.calls {
        // apart, since counting costs a little
        let seconds = options.seconds.min(CALLS_SPAN.as_secs_f64());
        let (run, _, calls) = up.run_watched(&Load { seconds, ..load }, calls::count)?;
        sample.calls_per_s = Some(calls);
        sample.calls_each = Some(calls / run.requests_per_s);
        sample.anew += run.anew;
        sample.resident_mib = procs::group_resident_bytes(up.pid()?)? as f64 / f64::from(1 << 20);
    }
    let gbit_per_s = sample.gbit_per_s.map_or_else(|| "no".into(), |gbit| format!("{gbit:.3}"));
    eprintln!(
        "{round} {:>6} {:<28} {:>9.0} requests/s {gbit_per_s:>7} Gb/s  processor 0 {:>3.0}%{}",
        point.word,
        shown(&line.line),
        sample.requests_per_s,
        sample.busy,
        sample.calls_per_s.map_or(String::new(), |calls| format!("  {calls:.0} calls/s"))
    );
    line.samples[at].push(sample);
    Ok(())
}

fn shown(line: &Line) -> String {
    if line.offloads { line.name.clone() } else { format!("{}, offloads off", line.name) }
}

/// The line that another is compared with: nginx under the same offloads.
fn peer<'a>(lines: &'a [Measured], line: &Measured) -> Option<&'a Measured> {
    lines.iter().find(|other| other.line.name == "nginx" && other.line.offloads == line.line.offloads)
}

fn report(plan: &Plan, options: &Manner, lines: &[Measured]) -> Report {
    let mut columns = vec![
        plan.axis,
        "server",
        "offloads",
        "requests/s",
        "least",
        "greatest",
        "Gb/s",
        "ratio to nginx",
        "least",
        "greatest",
        "processor 0 busy, %",
        "us of it a request",
        "failed",
    ];
    if plan.calls {
        columns.extend(["system calls/s", "system calls a request", "resident MiB"]);
    }
    let mut table = Table::new(&columns);
    for (at, point) in plan.points.iter().enumerate() {
        for line in lines {
            table_row(&mut table, plan, point, line, at, peer(lines, line));
        }
    }
    Report {
        name: plan.name.clone(),
        title: plan.title.clone(),
        method: method(plan, options, lines),
        table,
        charts: charts(plan, lines),
        machine: Machine::here(Peers::Web),
    }
}

fn values(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> Vec<f64> {
    samples.iter().map(of).collect()
}

/// A figure of every sample; None where one has none.
fn whole(samples: &[Sample], of: impl Fn(&Sample) -> Option<f64>) -> Option<Vec<f64>> {
    samples.iter().map(of).collect()
}

fn table_row(table: &mut Table, plan: &Plan, point: &Point, line: &Measured, at: usize, peer: Option<&Measured>) {
    let samples = &line.samples[at];
    let rates = values(samples, |sample| sample.requests_per_s);
    let Some(rate) = Summary::of(&rates) else { return };
    let median = |of: fn(&Sample) -> f64| stats::median(&values(samples, of));
    let ratio = peer
        .filter(|peer| peer.line.name != line.line.name)
        .and_then(|peer| stats::paired_ratio(&rates, &values(&peer.samples[at], |sample| sample.requests_per_s)));
    let mut cells = vec![
        Cell::text(&point.word),
        Cell::text(&line.line.name),
        Cell::text(if line.line.offloads { "on" } else { "off" }),
        Cell::Number(rate.median, 0),
        Cell::Number(rate.least, 0),
        Cell::Number(rate.greatest, 0),
        Cell::number(whole(samples, |sample| sample.gbit_per_s).and_then(|rates| stats::median(&rates)), 3),
        Cell::number(ratio.map(|ratio| ratio.median), 2),
        Cell::number(ratio.map(|ratio| ratio.least), 2),
        Cell::number(ratio.map(|ratio| ratio.greatest), 2),
        Cell::number(median(|sample| sample.busy), 0),
        Cell::number(median(|sample| sample.busy * 1e4 / sample.requests_per_s), 2),
        Cell::Count(samples.iter().map(|sample| sample.failures).sum()),
    ];
    if plan.calls {
        let known = |of: fn(&Sample) -> Option<f64>| stats::median(&samples.iter().filter_map(of).collect::<Vec<_>>());
        cells.push(Cell::number(known(|sample| sample.calls_per_s), 0));
        cells.push(Cell::number(known(|sample| sample.calls_each), 3));
        cells.push(Cell::number(median(|sample| sample.resident_mib), 1));
    }
    table.row(cells);
}

fn method(plan: &Plan, options: &Manner, lines: &[Measured]) -> String {
    let load = match options.load {
        Generator::Wrk => "wrk with one thread, on the kernel's TCP",
        Generator::Own => "`simoom-bench http` over AF_XDP, whose program at the client takes TSO away from the server",
    };
    let manner = if options.keep_alive { "further requests on a connection" } else { "a connection for each request" };
    let mut text = format!(
        "{} The load is {load}, with {manner}; {} s each and {LONGER_S} s more (of wrk whole seconds), {} rounds in turn: medians, and medians of ratios within a round. \
         Requests/s are of all of a load's good answers, *failed* of those that were none, and there are no Gb/s where more than one in a thousand \
         was none; processor time is of the {} s within it. Each file was asked for and compared before. The server has processor 0, the load processor 1, between them one veth pair, a laboratory of its own for each measurement; with \
         *offloads* off neither end segments or sums in the device. Processor 0 is busy when it is not idle by /proc/stat, softirqs included.",
        plan.what, options.seconds, options.rounds, options.seconds
    );
    if plan.calls {
        text += " System calls are counted by perf (raw_syscalls:sys_enter of the server's processes) in a load of their own. Resident \
                 memory is VmRSS of all its processes after the load, frames for the rings and the files included.";
    }
    text += &told_anew(lines.iter().flat_map(|line| line.samples.iter().flatten()).map(|sample| sample.anew).sum());
    for line in lines {
        if let Some(why) = &line.left_out {
            text += &format!(" Left out: {}, since the server says `{}`.", line.line.name, why.replace('`', "'"));
        }
    }
    text
}

/// One value of a sample as a chart over all points.
struct Value {
    title: &'static str,
    axis: &'static str,
    of: fn(&Sample) -> Option<f64>,
}

const VALUES: [Value; 3] = [
    Value { title: "throughput", axis: "Gb/s", of: |sample| sample.gbit_per_s },
    Value { title: "processor 0", axis: "busy, %", of: |sample| Some(sample.busy) },
    Value { title: "system calls", axis: "system calls/s", of: |sample| sample.calls_per_s },
];

fn charts(plan: &Plan, lines: &[Measured]) -> Vec<Chart> {
    let shown_values = if plan.calls { &VALUES[..] } else { &VALUES[..2] };
    let chart = |value: &Value| Chart {
        title: format!("{}: {}", plan.title, value.title),
        x: Axis::logarithmic(plan.axis),
        y: Axis::linear(value.axis),
        series: lines.iter().filter(|line| line.left_out.is_none()).map(|line| series(plan, line, value)).collect(),
    };
    shown_values.iter().map(chart).collect()
}

fn series(plan: &Plan, line: &Measured, value: &Value) -> Series {
    let of = plan.points.iter().zip(&line.samples).filter_map(|(point, samples)| {
        let summary = Summary::of(&whole(samples, value.of)?)?;
        Some(((point.x, summary.median), (summary.least, summary.greatest)))
    });
    Series::ranged(shown(&line.line), of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parsed;

    fn point(kib: u32) -> Point {
        let word = format!("{kib}k");
        Point { x: kib.into(), word: word.clone(), connections: 64, files: vec![word] }
    }

    fn measured(line: Line, rates: &[&[f64]]) -> Measured {
        let sample = |rate: &f64| Sample {
            requests_per_s: *rate,
            gbit_per_s: Some(rate / 1e3),
            busy: 50.0,
            calls_per_s: Some(rate * 2.0),
            calls_each: Some(2.0),
            resident_mib: 7.0,
            failures: 1,
            anew: 0,
        };
        let samples = rates.iter().map(|rounds| rounds.iter().map(sample).collect()).collect();
        Measured { line, samples, left_out: None }
    }

    #[test]
    fn rows_are_by_point_and_ratios_are_to_nginx_with_the_same_offloads() {
        let options = parsed::<Manner>(["figure"]).unwrap();
        let (nginx, ours) = (Server::nginx(), Server::simoom("simoom", ""));
        let mut lines = vec![
            measured(Line::new(&nginx, true), &[&[100.0, 200.0], &[50.0, 50.0]]),
            measured(Line::new(&ours, true), &[&[300.0, 400.0], &[50.0, 60.0]]),
            measured(Line::new(&nginx, false), &[&[10.0, 10.0], &[]]),
            measured(Line::new(&ours, false), &[&[40.0, 50.0], &[]]),
        ];
        lines.push(measured(Line { name: "simoom, gather".into(), ..Line::new(&ours, true) }, &[&[], &[]]));
        lines[4].left_out = Some("no `gather`".into());
        let plan = Plan {
            name: "fig".into(),
            title: "A figure".into(),
            what: "What.".into(),
            axis: "file",
            points: vec![point(1), point(4)],
            lines: Vec::new(),
            calls: true,
        };
        let report = report(&plan, &options, &lines);
        let csv = report.table.csv();
        let rows: Vec<&str> = csv.lines().skip(1).collect();
        assert_eq!(rows.len(), 6, "{csv}");
        assert_eq!(rows[0], "1k,nginx,on,150,100,200,0.150,,,,50,3750.00,2,300,2.000,7.0");
        assert_eq!(rows[1], "1k,simoom,on,350,300,400,0.350,2.50,2.00,3.00,50,1458.33,2,700,2.000,7.0");
        // a server that refuses in one round has no throughput
        let mut refused = lines.clone();
        refused[1].samples[0][1].gbit_per_s = None;
        let refused = super::report(&plan, &options, &refused);
        assert!(refused.table.csv().contains("1k,simoom,on,350,300,400,,2.50,"), "{}", refused.table.csv());
        let points =
            |report: &Report| report.charts.iter().map(|chart| format!("{:?}", chart.series[1])).collect::<Vec<_>>();
        let (whole, refused) = (points(&report), points(&refused));
        assert!(whole[0] != refused[0] && whole[1] == refused[1], "{refused:?}");
        assert!(rows[3].starts_with("1k,simoom,off,45,40,50,0.045,4.50,4.00,5.00,"), "{csv}");
        assert!(report.method.contains("Left out: simoom, gather, since the server says `no 'gather'`."));
        assert_eq!((report.charts.len(), report.charts[0].series.len()), (3, 4));
        assert_eq!(charts(&Plan { calls: false, ..plan }, &lines).len(), 2);
    }
}
