//! What the experiment tells.

use super::{CASES, Figures, Line, Options};
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats::{self, Summary};

/// How connections are used.
pub(super) fn how(requests: u32) -> String {
    match requests {
        0 => "keep-alive".into(),
        1 => "1 request each".into(),
        n => format!("{n} requests each"),
    }
}

fn of(line: &Line, figure: fn(&Figures) -> f64) -> Vec<f64> {
    line.runs.iter().map(figure).collect()
}

fn p90(line: &Line) -> Vec<f64> {
    of(line, |run| run.p90_us)
}

/// The line of another case that is otherwise the same.
fn peer<'a>(lines: &'a [Line], line: &Line, case: usize) -> Option<&'a Line> {
    lines.iter().find(|it| it.case == CASES[case] && it.engine == line.engine && it.requests == line.requests)
}

/// The report; `alone`: a run of the compiler with nothing beside it, by round.
pub(super) fn report(options: &Options, lines: &[Line], alone: &[f64]) -> Report {
    let mut table = Table::new(&[
        "engine",
        "connections",
        "requests/s",
        "case",
        "p50, us",
        "p90, us",
        "least p90",
        "greatest p90",
        "p99, us",
        "p90 to no compiler",
        "p90 of no balancer to this",
        "failed",
        "compiler, s",
        "compiler to alone",
        "least to alone",
        "greatest to alone",
        "stolen",
        "groups moved",
        "connections moved",
        "processor 0 busy, %",
        "processor 1 busy, %",
    ]);
    let mut row = |engine: &str, connections: &str, line: Option<&Line>, name: &str, compiler: &[f64]| {
        let middle = |figure: fn(&Figures) -> f64| line.and_then(|line| stats::median(&of(line, figure)));
        let p90s = line.and_then(|line| Summary::of(&p90(line)));
        let to = |case| line.and_then(|line| Some((line, peer(lines, line, case)?)));
        let to_unloaded = to(0).and_then(|(line, peer)| stats::paired_ratio(&p90(line), &p90(peer)));
        let better = to(1).and_then(|(line, peer)| stats::paired_ratio(&p90(peer), &p90(line)));
        let longer = stats::paired_ratio(compiler, alone);
        table.row(vec![
            Cell::text(engine),
            Cell::text(connections),
            Cell::number(line.map(|line| line.rate), 0),
            Cell::text(name),
            Cell::number(middle(|run| run.p50_us), 0),
            Cell::number(p90s.map(|p90| p90.median), 0),
            Cell::number(p90s.map(|p90| p90.least), 0),
            Cell::number(p90s.map(|p90| p90.greatest), 0),
            Cell::number(middle(|run| run.p99_us), 0),
            Cell::number(to_unloaded.map(|ratio| ratio.median), 2),
            Cell::number(better.map(|ratio| ratio.median), 2),
            line.map_or(Cell::Missing, |line| Cell::Count(line.runs.iter().map(|run| run.failed).sum())),
            Cell::number(stats::median(compiler), 2),
            Cell::number(longer.map(|ratio| ratio.median), 2),
            Cell::number(longer.map(|ratio| ratio.least), 2),
            Cell::number(longer.map(|ratio| ratio.greatest), 2),
            Cell::number(middle(|run| run.shares.stolen as f64), 0),
            Cell::number(middle(|run| run.shares.groups as f64), 0),
            Cell::number(middle(|run| run.shares.connections as f64), 0),
            Cell::number(middle(|run| run.busy[0]), 0),
            Cell::number(middle(|run| run.busy[1]), 0),
        ]);
    };
    row("–", "–", None, "compiler alone", alone);
    for line in lines {
        let compiler: Vec<f64> = line.runs.iter().filter_map(|run| run.compile_s).collect();
        row(line.engine.name(), &how(line.requests), Some(line), line.case.name, &compiler);
    }
    let title = match options.jobs {
        1 => "A compiler on one of two processors".to_owned(),
        jobs => format!("{jobs} compilers on one of two processors"),
    };
    let charts = lines
        .iter()
        .filter(|line| line.case == CASES[0])
        .map(|first| Chart {
            title: format!("{title}: {}, {}", first.engine.name(), how(first.requests)),
            x: Axis::linear("percentile"),
            y: Axis::logarithmic("latency, us"),
            series: (0..CASES.len()).filter_map(|case| peer(lines, first, case)).map(series).collect(),
        })
        .collect();
    Report {
        name: options.name.clone(),
        title: title.clone(),
        method: method(options),
        table,
        charts,
        machine: Machine::here(Peers::None),
    }
}

fn method(options: &Options) -> String {
    let rate = match options.rate {
        Some(rate) => format!("{rate} requests/s"),
        None => format!("a {}th of what the server answers in a closed loop without a compiler", options.part),
    };
    let compilers = match options.jobs {
        1 => String::new(),
        jobs => format!(", {jobs} of them at once"),
    };
    format!(
        "`simoom web` with a thread on each of two processors; `gcc -O2` on {} lines of C, again and again{compilers}, on processor 1. The load, \
         `simoom-bench http` over AF_XDP, is an open loop ({rate}) over up to {} connections, for a file of {} bytes; it runs on processor 0, \
         which it shares with the server's first thread, waits by sched_yield, and sends each flow through the queue that a table of 128 \
         entries names for its Toeplitz hash, as a NIC would deal it out; with migration the server writes that table. The receive thread of each of the server's two queues is on the processor of its number, the client's on \
         processor 0, with real-time priority: they take their processor as interrupts would. Latency runs from when a request was due. *No \
         balancer* is `--balance off`, *stealing* `--balance steal` (of kernel sockets; AF_XDP moves groups or nothing), *migration* and *no compiler* \
         `--balance on`. {} s each after {} s that do \
         not count, {} rounds in turn, a fresh laboratory for each: medians, and medians of ratios within a round. *compiler, s* is the mean of \
         the whole runs within the load, in turn with as long a time of as many compilers alone.",
        super::compiler::source(options.functions).lines().count(),
        options.connections,
        options.bytes,
        options.seconds,
        options.warm_up,
        options.rounds
    )
}

fn series(line: &Line) -> Series {
    let points = [50.0, 90.0, 99.0].into_iter().filter_map(|percentile| {
        let latency = |run: &Figures| match percentile {
            99.0 => run.p99_us,
            90.0 => run.p90_us,
            _ => run.p50_us,
        };
        let Summary { median, least, greatest, .. } = Summary::of(&line.runs.iter().map(latency).collect::<Vec<_>>())?;
        Some(((percentile, median), (least, greatest)))
    });
    Series::ranged(line.case.name, points)
}
