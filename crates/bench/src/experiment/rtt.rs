//! `simoom-bench experiment rtt`: what one connection gets through a long path without loss, from servers of different TCPs to a client
//! of the kernel's.

use super::loss::{self, File, Measured, Path};
use super::web::{self, Server};
use super::{Common, tell_written};
use crate::commands::seconds;
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats::{self, Summary};
use anyhow::Result;
use std::time::Duration;

/// Options of `simoom-bench experiment rtt`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Goodput of one connection that fetches a file again and again from a server in turn with nginx, on the kernel's TCP, through
`simoom-bench wire`, which only delays; every byte is compared. In a --server's command {simoom} is the server under test, {www} the
folder to serve and {run} a folder for its own files; it serves on 198.18.0.1:80, at interface vs. Writes NAME.csv, NAME.svg and
NAME.md. Needs root, and nginx.")]
pub(crate) struct Options {
    /// A server to measure against nginx, again for more; default: simoom over AF_XDP
    #[arg(long, value_name = "NAME=COMMAND", value_parser = web::server)]
    server: Vec<Server>,
    /// Round-trip times that the path adds, in milliseconds
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0,1,5,20,50,100,200", value_parser = milliseconds)]
    points: Vec<f64>,
    /// The line's rate, as `wire` has it; any unless told
    #[arg(long, value_name = "R")]
    rate: Option<String>,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// KiB of the file
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    kib: u32,
    /// How long each load runs
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    seconds: f64,
    /// How often every server is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// What the result files are called
    #[arg(long, value_name = "NAME", default_value = "rtt")]
    name: String,
    /// common
    #[command(flatten)]
    common: Common,
}

fn milliseconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.0..=10_000.0).contains(value));
    value.ok_or_else(|| "milliseconds from 0 to 10000".into())
}

/// One path's figures by server: goodputs in bits a second, a round each, frames that found no room, and connections made again.
#[derive(Clone, Debug, Default)]
struct Figures {
    goodputs: Vec<f64>,
    overflow: u64,
    reconnects: u64,
}

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    let mut servers = vec![Server::nginx()];
    if options.server.is_empty() {
        servers.push(Server::simoom("simoom", ""));
    }
    servers.extend(options.server.iter().cloned());
    let bed = web::Bed::new(&options.common, &servers, web::NGINX_SENDFILE)?;
    let file = File::add(&bed, "file", options.kib)?;
    let mut figures = vec![vec![Figures::default(); servers.len()]; options.points.len()];
    for round in 1..=options.rounds {
        for (rtt_ms, figures) in options.points.iter().zip(&mut figures) {
            // each way has a half
            let delay = (rtt_ms / 2.0).to_string();
            let mut faults = vec!["--delay", delay.as_str()];
            faults.extend(options.rate.iter().flat_map(|rate| ["--rate", rate]));
            let span = Duration::from_secs_f64(options.seconds);
            let path = Path { faults, file: &file, connections: options.connections.into(), span };
            for (server, figures) in servers.iter().zip(figures) {
                let Measured { goodput, overflow, reconnects } = loss::measure(&bed, server, &path)?;
                eprintln!("{round} rtt {rtt_ms:>5} ms  {:<20} {:>9.2} Mbit/s", server.name, goodput / 1e6);
                figures.goodputs.push(goodput);
                figures.overflow += overflow;
                figures.reconnects += reconnects;
            }
        }
    }
    let report = report(options, &servers, &figures);
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

fn report(options: &Options, servers: &[Server], figures: &[Vec<Figures>]) -> Report {
    let mut table = Table::new(&[
        "added round trip, ms",
        "server",
        "goodput Mbit/s",
        "least",
        "greatest",
        "ratio to nginx",
        "least ratio",
        "greatest ratio",
        "no room, frames",
        "made again",
    ]);
    for (rtt_ms, figures) in options.points.iter().zip(figures) {
        for (server, row) in servers.iter().zip(figures) {
            let Some(Summary { median, least, greatest, .. }) = Summary::of(&row.goodputs) else { continue };
            let ratio = stats::paired_ratio(&row.goodputs, &figures[0].goodputs);
            table.row(vec![
                Cell::Number(*rtt_ms, 1),
                Cell::text(&server.name),
                Cell::Number(median / 1e6, 2),
                Cell::Number(least / 1e6, 2),
                Cell::Number(greatest / 1e6, 2),
                Cell::number(ratio.map(|ratio| ratio.median), 2),
                Cell::number(ratio.map(|ratio| ratio.least), 2),
                Cell::number(ratio.map(|ratio| ratio.greatest), 2),
                Cell::Count(row.overflow),
                Cell::Count(row.reconnects),
            ]);
        }
    }
    let connections = match options.connections {
        1 => "one connection".to_owned(),
        several => format!("{several} connections"),
    };
    let title = format!("Throughput of {connections} by round-trip time");
    let rate = options.rate.as_ref().map_or_else(|| "no rate".into(), |rate| format!("a rate of {rate}"));
    let method = format!(
        "Goodput of {} of the kernel's TCP that fetch a file of {} KiB again and again for {} s, from the first SYN on; the bytes of bodies that came in \
         that time count, every one compared, so slow start is in it. The path is `simoom-bench wire` between two veth pairs, with half of \
         the delay each way, no loss and {rate}. Servers have processor 0, the client and the path processor 1. {} rounds in turn: \
         medians, and medians of the ratios within a round. *No room* are the frames that the path had no room for, *made again* the \
         connections that ended or failed and were made again (all rounds): what came of a body that was cut short counts. (The paper's \
         figure 2 shows round-trip times in traces of a busy server; what is compared here is what a connection gets out of a path of a \
         given length.)",
        connections, options.kib, options.seconds, options.rounds
    );
    let chart = Chart {
        title: title.clone(),
        x: Axis::linear("added round trip, ms"),
        y: Axis::linear("goodput, Mbit/s"),
        series: servers.iter().enumerate().map(|(at, server)| series(options, server, at, figures)).collect(),
    };
    let machine = Machine::here(Peers::Web);
    Report { name: options.name.clone(), title, method, table, charts: vec![chart], machine }
}

fn series(options: &Options, server: &Server, at: usize, figures: &[Vec<Figures>]) -> Series {
    let of = options.points.iter().zip(figures).filter_map(|(rtt_ms, figures)| {
        let Summary { median, least, greatest, .. } = Summary::of(&figures[at].goodputs)?;
        Some(((*rtt_ms, median / 1e6), (least / 1e6, greatest / 1e6)))
    });
    Series::ranged(&server.name, of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parsed;

    #[test]
    fn a_report_has_every_round_trip_time_and_paired_ratios() {
        let options = parsed::<Options>(["rtt", "--points", "0,40"]).unwrap();
        let servers = [Server::nginx(), Server::simoom("simoom", "")];
        let row = |goodputs: [f64; 2]| Figures { goodputs: goodputs.to_vec(), overflow: 3, reconnects: 4 };
        let figures = vec![vec![row([1e6, 4e6]), row([2e6, 2e6])]; 2];
        let report = report(&options, &servers, &figures);
        let csv = report.table.csv();
        assert_eq!(csv.lines().count(), 5, "{csv}");
        assert_eq!(csv.lines().nth(4), Some("40.0,simoom,2.00,2.00,2.00,1.25,0.50,2.00,3,4"));
        assert_eq!(report.charts[0].series.len(), 2);
        assert!(report.title.contains("one connection"), "{}", report.title);
    }

    #[test]
    fn round_trip_times_have_bounds() {
        assert_eq!(milliseconds("0.5"), Ok(0.5));
        for wrong in ["", "-1", "nan", "20000"] {
            assert!(milliseconds(wrong).is_err(), "{wrong}");
        }
    }
}
