//! `simoom-bench experiment echo`: an RPC echo as in IX (OSDI 2014), figure 3: messages of 64 octets by the round trips of a connection, and
//! goodput by the length of a message; ours over AF_XDP and on kernel sockets against a plain loop over epoll.

use super::messages::{self, Engine};
use super::{tell_written, told_anew, until_answered};
use crate::commands::messages::message_bytes;
use crate::commands::seconds;
use crate::messages::{End, Outcome};
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats::{self, Summary};
use anyhow::{Context as _, Result};
use lab::Lab;
use std::path::PathBuf;

/// Options of `simoom-bench experiment echo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each round starts each server in a laboratory of its own (two network namespaces, one veth pair; server on processor 0, load on processor 1)
and asks it for every point: a closed loop of --connections, one message under way on each; a connection is opened, has its round trips and
is ended by the client, and another follows. First messages of 64 octets by --trips, then messages of --sizes with --size-trips round
trips. Writes NAME.csv, NAME.svg (messages), NAME-2.svg (connections), NAME-3.svg (goodput) and NAME.md. Needs root.

  simoom-bench experiment echo
  simoom-bench experiment echo --rounds 1 --trips 1,1024 --sizes 8k --seconds 0.2 --out /tmp      a quick look")]
pub(crate) struct Options {
    /// Round trips of a connection, again for more
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,8,32,128,512,1024", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    trips: Vec<u64>,
    /// Octets of a message, again for more
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64,256,1k,4k,8k", value_parser = message_bytes)]
    sizes: Vec<u32>,
    /// Round trips of a connection while --sizes are measured
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    size_trips: u64,
    /// Connections at one time
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// How the client ends a connection
    #[arg(long, value_name = "WORD", default_value = "rst")]
    end: End,
    /// How long each point is measured
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    seconds: f64,
    /// How often every server is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// What the result files are called
    #[arg(long, value_name = "NAME", default_value = "echo")]
    name: String,
    /// Where results are written
    #[arg(long, value_name = "DIR", default_value = "docs/results")]
    out: PathBuf,
}

/// The first is the subject, the last the yardstick.
const ENGINES: [Engine; 3] = [Engine::AfXdp, Engine::Sockets, Engine::Epoll];
/// Octets of a message while round trips vary.
const BYTES: u32 = 64;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    trips: u64,
    bytes: u32,
    /// of which of the two series
    by_size: bool,
}

fn points(options: &Options) -> Vec<Point> {
    let by_trips = options.trips.iter().map(|&trips| Point { trips, bytes: BYTES, by_size: false });
    let by_size = options.sizes.iter().map(|&bytes| Point { trips: options.size_trips, bytes, by_size: true });
    by_trips.chain(by_size).collect()
}

/// One server's figures at a point, a value a round.
#[derive(Clone, Debug, Default)]
struct Row {
    messages_per_s: Vec<f64>,
    connections_per_s: Vec<f64>,
    gbps: Vec<f64>,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    /// how often a load was made anew of which nothing had come back
    anew: usize,
}

impl Row {
    fn add(&mut self, run: &Outcome, anew: usize) {
        self.anew += anew;
        self.messages_per_s.push(run.messages_per_s());
        self.connections_per_s.push(run.connections_per_s());
        self.gbps.push(run.goodput_gbps());
        self.p50_us.push(run.latency.p50_us);
        self.p99_us.push(run.latency.p99_us);
    }
}

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    super::web::ensure_can_run(&["ip", "ethtool"])?;
    lab::interrupt_by(crate::commands::stop_flag()?);
    let points = points(options);
    let mut rows = ENGINES.map(|_| vec![Row::default(); points.len()]);
    for round in 1..=options.rounds {
        for (engine, rows) in ENGINES.iter().zip(&mut rows) {
            let mut served = messages::serve(Lab::new()?, *engine, &[])?;
            // attaching a program may have made the receive threads anew
            served.lab().pin();
            for (point, row) in points.iter().zip(rows) {
                let ask = || ask(options, &mut served, *point);
                let (run, anew) = until_answered(ask, |run| run.answered_in_span > 0)?;
                eprintln!(
                    "{round} {:<16} {:>5} round trips of {:>5} B  {:>8.0} messages/s  {:>7.0} connections/s  {:.3} Gb/s",
                    engine.name(),
                    point.trips,
                    point.bytes,
                    run.messages_per_s(),
                    run.connections_per_s(),
                    run.goodput_gbps()
                );
                row.add(&run, anew);
            }
        }
    }
    let report = report(options, &points, &rows);
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.out)?);
    Ok(())
}

fn ask(options: &Options, served: &mut messages::Served, point: Point) -> Result<Outcome> {
    let (bytes, trips) = (point.bytes.to_string(), point.trips.to_string());
    let (connections, span) = (options.connections.to_string(), options.seconds.to_string());
    let load = served.start_load(&[
        "--bytes",
        &bytes,
        "--trips",
        &trips,
        "--end",
        options.end.word(),
        "--connections",
        &connections,
        "--seconds",
        &span,
        "--warm-up",
        "0.2",
    ])?;
    served.finish(load)?.into_iter().next().context("the load measured nothing")
}

fn report(options: &Options, points: &[Point], rows: &[Vec<Row>; 3]) -> Report {
    let mut table = Table::new(&[
        "round trips a connection",
        "bytes",
        "server",
        "messages/s",
        "least",
        "greatest",
        "connections/s",
        "Gb/s",
        "p50 us",
        "p99 us",
        "subject's ratio",
        "least",
        "greatest",
    ]);
    for (at, point) in points.iter().enumerate() {
        let subject = &rows[0][at].messages_per_s;
        for (number, (engine, rows)) in ENGINES.iter().zip(rows).enumerate() {
            let row = &rows[at];
            let Some(rate) = Summary::of(&row.messages_per_s) else { continue };
            let ratio = stats::paired_ratio(subject, &row.messages_per_s).filter(|_| number > 0);
            table.row(vec![
                Cell::Count(point.trips),
                Cell::Count(point.bytes.into()),
                Cell::text(engine.name()),
                Cell::Number(rate.median, 0),
                Cell::Number(rate.least, 0),
                Cell::Number(rate.greatest, 0),
                Cell::number(stats::median(&row.connections_per_s), 0),
                Cell::number(stats::median(&row.gbps), 3),
                Cell::number(stats::median(&row.p50_us), 1),
                Cell::number(stats::median(&row.p99_us), 1),
                Cell::number(ratio.map(|ratio| ratio.median), 2),
                Cell::number(ratio.map(|ratio| ratio.least), 2),
                Cell::number(ratio.map(|ratio| ratio.greatest), 2),
            ]);
        }
    }
    let trips = Axis::logarithmic("round trips a connection");
    let bytes = Axis::logarithmic("bytes of a message");
    let charts = vec![
        chart("Messages of 64 bytes", (trips.clone(), Axis::linear("messages/s")), points, rows, false, |row| {
            &row.messages_per_s
        }),
        chart("Connections", (trips, Axis::linear("connections/s")), points, rows, false, |row| &row.connections_per_s),
        chart("Goodput", (bytes, Axis::linear("Gb/s")), points, rows, true, |row| &row.gbps),
    ];
    Report {
        name: options.name.clone(),
        title: "RPC echo: messages by round trips of a connection and by length, one processor each".into(),
        method: method(options) + &told_anew(rows.iter().flatten().map(|row| row.anew).sum()),
        table,
        charts: charts.into_iter().filter(|chart| !chart.series.iter().all(Series::is_empty)).collect(),
        machine: Machine::here(Peers::None),
    }
}

fn chart(
    title: &str,
    (x, y): (Axis, Axis),
    points: &[Point],
    rows: &[Vec<Row>; 3],
    by_size: bool,
    of: fn(&Row) -> &[f64],
) -> Chart {
    let line = |rows: &[Row]| {
        let chosen = points.iter().zip(rows).filter(|(point, _)| point.by_size == by_size);
        let of = chosen.filter_map(|(point, row)| {
            let Summary { median, least, greatest, .. } = Summary::of(of(row))?;
            let at = if by_size { f64::from(point.bytes) } else { point.trips as f64 };
            Some(((at, median), (least, greatest)))
        });
        of.collect::<Vec<_>>()
    };
    let series = ENGINES.iter().zip(rows).map(|(engine, rows)| Series::ranged(engine.name(), line(rows).into_iter()));
    Chart { title: title.into(), x, y, series: series.collect() }
}

fn method(options: &Options) -> String {
    let end = match options.end {
        End::Rst => "a reset (RST), which leaves nothing in TIME-WAIT, as in the paper",
        End::Fin => "FINs in both directions, the client's first, so that TIME-WAIT is the client's",
    };
    format!(
        "{} connections at a time, each with one message under way: a connection is opened, has its round trips and is ended by the client with {end}; \
         another follows. Round trips and connections count that were complete within {} s. {} rounds in turn: medians, the least and the \
         greatest round beside them; *subject's ratio* is the median over rounds of the first server's messages divided by the row's. Goodput is \
         messages' octets in one direction. Each message's head is compared at both ends, and all of one in 16.\n\n\
         `simoom, AF_XDP` is our own stack, `simoom, sockets` the same service in our engine on kernel sockets, `epoll` a plain level-triggered \
         loop over epoll with a read and a write a message. The load is our own stack over AF_XDP for all of them. Server and load are two \
         network namespaces, joined by a veth pair, each with its receive thread on its own processor; the load and its receive thread \
         share processor 1 and do for a message about what our server does, so they bound what is seen: a server that is faster than they are \
         looks as fast as they are. The paper had 8 cores, 10 Gb/s and 24 clients: its absolute figures are not comparable, the shapes are.",
        options.connections, options.seconds, options.rounds
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parsed;

    #[test]
    fn points_are_those_of_the_paper_unless_told() {
        let all = points(&parsed::<Options>(["echo"]).unwrap());
        let trips: Vec<u64> = all.iter().filter(|point| !point.by_size).map(|point| point.trips).collect();
        assert_eq!(trips, [1, 2, 8, 32, 128, 512, 1024]);
        assert!(all.iter().all(|point| point.by_size || point.bytes == 64));
        let sizes: Vec<u32> = all.iter().filter(|point| point.by_size).map(|point| point.bytes).collect();
        assert_eq!((sizes.first(), sizes.last()), (Some(&64), Some(&8192)));
        assert!(all.iter().all(|point| !point.by_size || point.trips == 1));
    }

    #[test]
    fn rows_pair_the_subject_with_each_server() {
        let words = ["echo", "--trips", "1,1024", "--sizes", "8k", "--size-trips", "3", "--end", "fin"];
        let options = parsed::<Options>(words).unwrap();
        let points = points(&options);
        let row = |rates: [f64; 2]| Row {
            messages_per_s: rates.to_vec(),
            connections_per_s: rates.map(|rate| rate / 10.0).to_vec(),
            gbps: vec![0.5, 0.5],
            p50_us: vec![10.0, 20.0],
            p99_us: vec![30.0, 30.0],
            anew: 0,
        };
        let of = |factor: f64| vec![row([100.0 * factor, 300.0 * factor]); 3];
        let report = report(&options, &points, &[of(2.0), of(1.0), of(0.5)]);
        let csv = report.table.csv();
        let lines: Vec<&str> = csv.lines().skip(1).collect();
        assert_eq!(lines.len(), 9);
        assert_eq!(lines[0], "1,64,\"simoom, AF_XDP\",400,200,600,40,0.500,15.0,30.0,,,");
        assert_eq!(lines[2], "1,64,epoll,100,50,150,10,0.500,15.0,30.0,4.00,4.00,4.00");
        assert_eq!(lines[7], "3,8192,\"simoom, sockets\",200,100,300,20,0.500,15.0,30.0,2.00,2.00,2.00");
        assert_eq!(report.charts.len(), 3);
        assert!(report.method.contains("FINs in both directions"));
    }
}
