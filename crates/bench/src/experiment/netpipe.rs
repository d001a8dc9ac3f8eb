//! `simoom-bench experiment netpipe`: what a message takes one way, and what it carries, by its length (NetPIPE, as in IX, OSDI 2014, figure 2):
//! one connection, both ends on the same engine, ours over AF_XDP against the kernel's sockets.

use super::messages::{self, Engine, OWN_ADDRESSES};
use super::{tell_written, told_anew, until_answered};
use crate::commands::messages::message_bytes;
use crate::commands::seconds;
use crate::messages::Outcome;
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats::{self, Summary};
use anyhow::{Context as _, Result, ensure};
use lab::Lab;
use std::path::PathBuf;

/// Options of `simoom-bench experiment netpipe`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A message goes to the server, which takes it whole and sends one of the same length back, on one connection: half of that is one way. Both
ends are on the same engine: our own stack over AF_XDP, in threads that ask again and again; the kernel's sockets with both ends asleep in
read(); the kernel's sockets with both ends asking again and again; those asleep once more, with frames no longer than ours. Engines in
turn, round by round, each in a laboratory of its own, the server on processor 0, the client on processor 1. Writes NAME.csv, NAME.svg,
NAME-2.svg and NAME.md. Needs root.

  simoom-bench experiment netpipe
  simoom-bench experiment netpipe --rounds 1 --sizes 64,64k --seconds 0.2 --out /tmp      a quick look")]
pub(crate) struct Options {
    /// Octets of a message, again for more
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = message_bytes, default_value = "64,256,1k,4k,16k,64k,256k,1M")]
    sizes: Vec<u32>,
    /// How long each length is measured
    #[arg(long, value_name = "S", default_value = "0.5", value_parser = seconds)]
    seconds: f64,
    /// How often every engine is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// What the result files are called
    #[arg(long, value_name = "NAME", default_value = "netpipe")]
    name: String,
    /// Where results are written
    #[arg(long, value_name = "DIR", default_value = "docs/results")]
    out: PathBuf,
}

/// Both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ends {
    engine: Engine,
    /// no segment that is longer than a frame crosses the pair, as none of ours is
    framed: bool,
}

/// The first are ours, the second what they are held against.
const ENDS: [Ends; 4] = [
    Ends { engine: Engine::AfXdp, framed: false },
    Ends { engine: Engine::Blocking, framed: false },
    Ends { engine: Engine::Spinning, framed: false },
    Ends { engine: Engine::Blocking, framed: true },
];

impl Ends {
    /// In reports.
    fn name(self) -> &'static str {
        if self.framed { "kernel, blocking, frames" } else { self.engine.name() }
    }
}

/// What the project asks of itself, at the shortest message: one way in this part of the time of sockets that sleep (the paper: 5.7 of 24 us).
const ASKED: f64 = 0.25;
/// Octets that our ends may have on their way: the longest message and more.
const WINDOW: &str = "2097152";

/// One engine's figures with messages of one length, a value a round.
#[derive(Clone, Debug, Default)]
struct Row {
    one_way_us: Vec<f64>,
    p99_us: Vec<f64>,
    gbps: Vec<f64>,
    messages: u64,
}

impl Row {
    fn add(&mut self, run: &Outcome) {
        let one_way_us = run.latency.p50_us / 2.0;
        self.one_way_us.push(one_way_us);
        self.p99_us.push(run.latency.p99_us / 2.0);
        self.gbps.push(gbps(run.bytes, one_way_us));
        self.messages += 2 * run.answered;
    }
}

/// What messages of so many octets carry of which each takes so long.
fn gbps(bytes: u32, one_way_us: f64) -> f64 {
    f64::from(bytes) * 8.0 / 1e3 / one_way_us
}

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    super::web::ensure_can_run(&["ip", "ethtool"])?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    ensure!(processors >= 2, "each end has a processor of its own: this needs two");
    lab::interrupt_by(crate::commands::stop_flag()?);
    let mut rows = ENDS.map(|_| vec![Row::default(); options.sizes.len()]);
    let mut anew = 0;
    for round in 1..=options.rounds {
        for (ends, rows) in ENDS.iter().zip(&mut rows) {
            let answered = |runs: &Vec<Outcome>| runs.iter().all(|run| run.answered > 0);
            let measured = until_answered(|| measure(options, *ends), answered);
            let (runs, again) = measured.with_context(|| ends.name())?;
            anew += again;
            ensure!(runs.len() == rows.len(), "{} lengths were measured", runs.len());
            for (run, row) in runs.iter().zip(rows) {
                row.add(run);
            }
            let of = |run: &Outcome| format!("{} B {:.1} us", run.bytes, run.latency.p50_us / 2.0);
            eprintln!("{round} {:<24} {}", ends.name(), runs.iter().map(of).collect::<Vec<_>>().join("  "));
        }
    }
    let mut report = report(options, &rows);
    report.method += &told_anew(anew);
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.out)?);
    Ok(())
}

/// All lengths between two such ends, in a laboratory of their own.
fn measure(options: &Options, Ends { engine, framed }: Ends) -> Result<Vec<Outcome>> {
    let lab = Lab::new()?;
    for host in [lab.server(), lab.client()] {
        // whoever spins must not keep the thread from its processor that receives for him; so it is in the sender's system call
        let threaded = format!("echo 0 > /sys/class/net/{}/threaded", host.interface());
        host.run(&["sh", "-c", &threaded])?;
        if framed {
            // TCP makes its long segments anyway: they are cut before they cross, and nobody puts them together again
            host.run(&["ethtool", "-K", host.interface(), "tso", "off", "gro", "off"])?;
        }
    }
    let ours = engine == Engine::AfXdp;
    let own = ["--idle", "spin", "--window", WINDOW];
    let mut served = messages::serve(lab, engine, if ours { &own } else { &[] })?;
    let sizes = options.sizes.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let span = options.seconds.to_string();
    let plan = ["--bytes", &sizes, "--seconds", &span];
    let how: &[&str] = match engine {
        Engine::AfXdp => &["--interface", "vc", "--address", OWN_ADDRESSES, "--wait", "spin", "--window", WINDOW],
        Engine::Blocking => &["--kernel", "blocking"],
        _ => &["--kernel", "spinning"],
    };
    let load = served.start(&[how, &plan].concat())?;
    served.finish(load)
}

fn report(options: &Options, rows: &[Vec<Row>; ENDS.len()]) -> Report {
    let mut table = Table::new(&[
        "bytes",
        "engine",
        "one way us",
        "least",
        "greatest",
        "99% us",
        "Gb/s",
        "to blocking",
        "least",
        "greatest",
        "asked",
    ]);
    let [_, blocking, ..] = rows;
    for (at, bytes) in options.sizes.iter().enumerate() {
        for (ends, rows) in ENDS.iter().zip(rows) {
            let row = &rows[at];
            let Some(one_way) = Summary::of(&row.one_way_us) else { continue };
            let ratio = stats::paired_ratio(&row.one_way_us, &blocking[at].one_way_us);
            let is_asked = ends.engine == Engine::AfXdp && Some(bytes) == options.sizes.iter().min();
            table.row(vec![
                Cell::Count((*bytes).into()),
                Cell::text(ends.name()),
                Cell::Number(one_way.median, 2),
                Cell::Number(one_way.least, 2),
                Cell::Number(one_way.greatest, 2),
                Cell::number(stats::median(&row.p99_us), 2),
                Cell::number(stats::median(&row.gbps), 3),
                Cell::number(ratio.map(|ratio| ratio.median), 3),
                Cell::number(ratio.map(|ratio| ratio.least), 3),
                Cell::number(ratio.map(|ratio| ratio.greatest), 3),
                if is_asked { Cell::text(format!("≤ {ASKED}")) } else { Cell::Missing },
            ]);
        }
    }
    let chart = |title: &str, y: Axis, of: fn(&Row) -> &[f64]| Chart {
        title: title.into(),
        x: Axis::logarithmic("bytes of a message"),
        y,
        series: ENDS.iter().zip(rows).map(|(ends, rows)| series(options, *ends, rows, of)).collect(),
    };
    Report {
        name: options.name.clone(),
        title: "One connection: time of a message one way, and goodput, by its length".into(),
        method: method(options, rows),
        table,
        charts: vec![
            chart("One way", Axis::logarithmic("us"), |row| &row.one_way_us),
            chart("Goodput", Axis::logarithmic("Gb/s"), |row| &row.gbps),
        ],
        machine: Machine::here(Peers::None),
    }
}

fn series(options: &Options, ends: Ends, rows: &[Row], of: fn(&Row) -> &[f64]) -> Series {
    let points = options.sizes.iter().zip(rows).filter_map(|(bytes, row)| {
        let Summary { median, least, greatest, .. } = Summary::of(of(row))?;
        Some(((f64::from(*bytes), median), (least, greatest)))
    });
    Series::ranged(ends.name(), points)
}

/// The shortest message whose goodput is half of the greatest that these ends had.
fn half_at(sizes: &[u32], rows: &[Row]) -> Option<(u32, f64)> {
    let goodput = |row: &Row| stats::median(&row.gbps).unwrap_or_default();
    let greatest = rows.iter().map(goodput).fold(0.0, f64::max);
    let half = sizes.iter().zip(rows).filter(|(_, row)| goodput(row) >= greatest / 2.0).map(|(bytes, _)| *bytes).min();
    half.map(|bytes| (bytes, greatest))
}

fn method(options: &Options, rows: &[Vec<Row>; ENDS.len()]) -> String {
    let messages: u64 = rows.iter().flatten().map(|row| row.messages).sum();
    let halves = ENDS.iter().zip(rows).filter_map(|(ends, rows)| {
        let (bytes, greatest) = half_at(&options.sizes, rows)?;
        Some(format!("{} {bytes} bytes (of {greatest:.2} Gb/s)", ends.name()))
    });
    format!(
        "A message goes to the server, which takes it whole and sends one of the same length back, one at a time on one connection; *one way* is half of \
         a round trip, of which a round's figure is the median. Both ends are on the same engine: `simoom, AF_XDP` is our own stack at either \
         end, the server's in the dataplane's thread, both asking again and again; `kernel, blocking` sleeps in read() at either end; `kernel, \
         spinning` asks again and again by non-blocking calls. TCP_NODELAY everywhere. {} rounds in turn of {} s a length: medians, the least and the \
         greatest round beside them; *to blocking* is the median over rounds of the row's time divided by that of `kernel, blocking`. Goodput is a \
         message's octets by its time one way. {messages} messages in all; each one's head was compared, and all of one in 16, at both ends.\n\n\
         Server and client are two network namespaces, joined by a veth pair; the server has processor 0, the client processor 1. The softirq that \
         receives runs on the sender's processor, in his system call, which is veth's way. The kernel's ends have their offloads: their \
         segments are up to 64 KiB long and cross the pair whole and uncopied. A program in the driver takes that away, so ours are frames \
         of 1,500 octets, each copied by the kernel once on its way; `kernel, blocking, frames` are the kernel's ends with frames of that length \
         (no TSO, no GRO). There is no wire: what is left is what the stacks, and for those who sleep being woken, \
         take. Half of the greatest goodput that each has here is reached with messages of: {}. (The paper, over 10 Gb/s: 5.7 us against 24 us \
         one way, half of the line's rate with 20 KB against 385 KB.) Asked: at most {ASKED} of the blocking sockets' time at {} bytes.",
        options.rounds,
        options.seconds,
        halves.collect::<Vec<_>>().join("; "),
        options.sizes.iter().min().copied().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parsed;

    fn row(one_way_us: &[f64], bytes: u32) -> Row {
        Row {
            one_way_us: one_way_us.to_vec(),
            p99_us: one_way_us.iter().map(|us| us * 2.0).collect(),
            gbps: one_way_us.iter().map(|us| gbps(bytes, *us)).collect(),
            messages: 10,
        }
    }

    #[test]
    fn rows_have_ratios_to_sockets_that_sleep_and_what_is_asked_at_the_shortest() {
        let options = parsed::<Options>(["netpipe", "--sizes", "64,1k"]).unwrap();
        let of = |times: [&[f64]; 2]| vec![row(times[0], 64), row(times[1], 1024)];
        let rows = [
            of([&[5.0, 6.0], &[8.0, 8.0]]),
            of([&[20.0, 30.0], &[32.0, 40.0]]),
            of([&[10.0, 6.0], &[16.0, 16.0]]),
            of([&[24.0, 30.0], &[32.0, 32.0]]),
        ];
        let report = report(&options, &rows);
        let csv = report.table.csv();
        let lines: Vec<&str> = csv.lines().skip(1).collect();
        assert_eq!(lines[0], "64,\"simoom, AF_XDP\",5.50,5.00,6.00,11.00,0.094,0.225,0.200,0.250,≤ 0.25");
        assert_eq!(lines[1], "64,\"kernel, blocking\",25.00,20.00,30.00,50.00,0.021,1.000,1.000,1.000,");
        assert_eq!(lines[4], "1024,\"simoom, AF_XDP\",8.00,8.00,8.00,16.00,1.024,0.225,0.200,0.250,");
        assert_eq!(lines[7], "1024,\"kernel, blocking, frames\",32.00,32.00,32.00,64.00,0.256,0.900,0.800,1.000,");
        assert_eq!(lines.len(), 8);
        assert_eq!(report.charts.len(), 2);
        assert!(report.charts.iter().all(|chart| chart.series.len() == 4));
        assert!(report.method.contains("80 messages in all"), "{}", report.method);
    }

    #[test]
    fn half_of_the_greatest_goodput_is_found_at_the_shortest_length_that_has_it() {
        // 51 and 256, 1024 and 1311 Mb/s
        let sizes = [64, 1024, 65_536, 1 << 20];
        let rows = [row(&[10.0], 64), row(&[32.0], 1024), row(&[512.0], 65_536), row(&[6400.0], 1 << 20)];
        let (bytes, greatest) = half_at(&sizes, &rows).unwrap();
        assert_eq!(bytes, 65_536);
        assert!((greatest - 1.31072).abs() < 1e-9, "{greatest}");
        assert!(half_at(&[], &[]).is_none());
    }

    #[test]
    fn lengths_are_powers_of_four_unless_told() {
        let options = parsed::<Options>(["netpipe"]).unwrap();
        assert_eq!(options.sizes, (3..=10).map(|n| 1 << (2 * n)).collect::<Vec<u32>>());
    }
}
