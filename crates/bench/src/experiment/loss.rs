//! `simoom-bench experiment loss`: how much gets through a path that loses frames and is long, from servers of different TCPs to
//! clients of the kernel's.

use super::downloads::{self, Download};
use super::web::{self, ADDRESS, PROBE, START, Server};
use super::{Common, tell_written};
use crate::commands::seconds;
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats::{self, Summary};
use anyhow::{Context as _, Result};
use lab::{Lab, MIDDLE, Process};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Options of `simoom-bench experiment loss`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Goodput of --connections that fetch one file again and again from a server in turn with nginx, on the kernel's TCP, through
`simoom-bench wire`; every byte is compared. In a --server's command {simoom} is the server under test, {www} the folder to serve
(the file is /file) and {run} a folder for its own files; it serves on 198.18.0.1:80, at interface vs. Writes NAME.csv, NAME.svg and
NAME.md. Needs root, and nginx.")]
pub(crate) struct Options {
    /// A server to measure against nginx, again for more; default: simoom on kernel sockets
    #[arg(long, value_name = "NAME=COMMAND", value_parser = web::server)]
    server: Vec<Server>,
    /// Losses in percent, or P:N for bursts of N frames on average
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0.1,1,5,1:8")]
    losses: Vec<String>,
    /// Delays each way, in milliseconds
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0,1,20,100")]
    delays: Vec<f64>,
    /// The line's rate, as `wire` has it; any unless told
    #[arg(long, value_name = "R")]
    rate: Option<String>,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 80, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// KiB of the file
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    kib: u32,
    /// How long each load runs
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    seconds: f64,
    /// How often every server is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// What the result files are called
    #[arg(long, value_name = "NAME", default_value = "loss")]
    name: String,
    /// common
    #[command(flatten)]
    common: Common,
}

/// Where the file is.
const PATH: &str = "/file";

/// What a path and a load on it are like.
pub(super) struct Path<'a> {
    /// the options of `wire`
    pub(super) faults: Vec<&'a str>,
    /// connections at once
    pub(super) connections: usize,
    /// how long each load runs
    pub(super) span: Duration,
}

/// What does not change from load to load.
pub(super) struct Bed {
    web: web::Bed,
    content: Vec<u8>,
}

impl Bed {
    /// With a file of so many KiB.
    pub(super) fn new(common: &Common, servers: &[Server], kib: u32) -> Result<Bed> {
        let web = web::Bed::new(common, servers, web::NGINX_SENDFILE)?;
        let content = web.add_file(PATH.trim_start_matches('/'), u64::from(kib) << 10)?;
        Ok(Bed { web, content })
    }

    /// Goodput of one server over one path, in bits a second, and how many frames the path had no room for.
    pub(super) fn measure(&self, server: &Server, path: &Path<'_>) -> Result<(f64, u64)> {
        let lab = Lab::with_middle(&lab::Options::default())?;
        let mut process = self.web.start(server, &lab)?;
        let at: SocketAddr = ADDRESS.parse()?;
        let mut wire = wire(&lab, &path.faults)?;
        let answers = || lab.client().inside(|| TcpStream::connect_timeout(&at, PROBE).is_ok());
        process.wait_until(answers, START).with_context(|| format!("{} does not come up", server.name))?;
        // the server may have attached a program, too
        lab.pin();
        let download = Download { at, path: PATH, content: &self.content };
        let goodput = lab.client().inside(|| {
            crate::procs::pin(1)?;
            downloads::run(&download, path.connections, path.span)
        })?;
        if let Some(status) = process.ended() {
            anyhow::bail!("{} ended ({status}): {}", server.name, process.log().trim());
        }
        if goodput.reconnects > 0 {
            eprintln!("{}: {} connections ended and were made again", server.name, goodput.reconnects);
        }
        wire.stop();
        Ok((goodput.bits_per_s(), overflow(&wire.log())?))
    }
}

/// Joins the hosts of `lab` with these faults.
fn wire(lab: &Lab, faults: &[&str]) -> Result<Process> {
    let [a, b] = MIDDLE;
    let middle = lab.middle().context("a laboratory with a middle")?;
    let mut command = middle.command(std::env::current_exe().context("where this program lies")?);
    command.args(["wire", "--a", a, "--b", b, "--cpu", "1", "--json"]).args(faults);
    let mut wire = Process::spawn(command)?;
    wire.wait_for("joined", START)?;
    // attaching a program made the receive threads anew
    lab.pin();
    Ok(wire)
}

/// The frames that a wire had no room for or missed, by what it printed.
fn overflow(log: &str) -> Result<u64> {
    let line = log.lines().find(|line| line.starts_with('[')).with_context(|| format!("no counts in: {log}"))?;
    let directions: Vec<serde_json::Value> = serde_json::from_str(line).context("the counts of a wire")?;
    let of = |(direction, name): (&serde_json::Value, &str)| {
        direction["frames"][name].as_u64().with_context(|| format!("no {name} in the counts"))
    };
    directions.iter().flat_map(|direction| ["overflow", "missed"].map(|name| (direction, name))).map(of).sum()
}

/// One path, and what was measured over it: rounds by server.
struct Point {
    loss: String,
    delay_ms: f64,
    goodputs: Vec<Vec<f64>>,
    /// frames that found no room, by server
    overflows: Vec<u64>,
}

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    let mut servers = vec![Server::nginx()];
    if options.server.is_empty() {
        servers.push(Server::simoom_sockets());
    }
    servers.extend(options.server.iter().cloned());
    let bed = Bed::new(&options.common, &servers, options.kib)?;
    let mut points = Vec::new();
    for loss in &options.losses {
        let point = |delay_ms: &f64| Point {
            loss: loss.clone(),
            delay_ms: *delay_ms,
            goodputs: vec![Vec::new(); servers.len()],
            overflows: vec![0; servers.len()],
        };
        points.extend(options.delays.iter().map(point));
    }
    for round in 1..=options.rounds {
        for point in &mut points {
            for (at, server) in servers.iter().enumerate() {
                let (goodput, overflow) = measure(&bed, options, server, point)?;
                let (loss, delay_ms) = (&point.loss, point.delay_ms);
                eprintln!(
                    "{round} loss {loss:>5} delay {delay_ms:>5} ms  {:<20} {:>9.2} Mbit/s",
                    server.name,
                    goodput / 1e6
                );
                point.goodputs[at].push(goodput);
                point.overflows[at] += overflow;
            }
        }
    }
    let report = report(options, &servers, &points);
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

fn measure(bed: &Bed, options: &Options, server: &Server, point: &Point) -> Result<(f64, u64)> {
    let kind = if point.loss.contains(':') { "--burst-loss" } else { "--loss" };
    let delay = point.delay_ms.to_string();
    let mut faults = vec![kind, point.loss.as_str(), "--delay", delay.as_str()];
    faults.extend(options.rate.iter().flat_map(|rate| ["--rate", rate]));
    let span = Duration::from_secs_f64(options.seconds);
    bed.measure(server, &Path { faults, connections: options.connections.into(), span })
}

fn report(options: &Options, servers: &[Server], points: &[Point]) -> Report {
    let mut table = Table::new(&[
        "loss %",
        "delay each way ms",
        "server",
        "goodput Mbit/s",
        "least",
        "greatest",
        "ratio to nginx",
        "least ratio",
        "greatest ratio",
        "no room, frames",
    ]);
    for point in points {
        for ((server, goodputs), overflow) in servers.iter().zip(&point.goodputs).zip(&point.overflows) {
            let Some(Summary { median, least, greatest, .. }) = Summary::of(goodputs) else { continue };
            let ratio = stats::paired_ratio(goodputs, &point.goodputs[0]);
            table.row(vec![
                Cell::text(&point.loss),
                Cell::Number(point.delay_ms, 1),
                Cell::text(&server.name),
                Cell::Number(median / 1e6, 2),
                Cell::Number(least / 1e6, 2),
                Cell::Number(greatest / 1e6, 2),
                Cell::number(ratio.map(|ratio| ratio.median), 2),
                Cell::number(ratio.map(|ratio| ratio.least), 2),
                Cell::number(ratio.map(|ratio| ratio.greatest), 2),
                Cell::Count(*overflow),
            ]);
        }
    }
    let title = format!("Goodput over a lossy path, {} connections", options.connections);
    let rate = options.rate.as_ref().map_or_else(|| "no rate".into(), |rate| format!("a rate of {rate}"));
    let method = format!(
        "{} connections of the kernel's TCP fetch a file of {} KiB again and again for {} s, from the first SYN on; the bytes of bodies \
         that came in that time count, every one compared. The path is `simoom-bench wire` between two veth pairs, with the same loss \
         and delay each way and {rate}; a loss of P:N is P% in bursts of N frames on average. Servers have processor 0, clients and the \
         path processor 1. {} rounds in turn: medians, and medians of the ratios within a round. The last column has the frames that the \
         path had no room for (all rounds), beside those that it lost on purpose.",
        options.connections, options.kib, options.seconds, options.rounds
    );
    let chart = Chart {
        title: title.clone(),
        x: Axis::linear("delay each way, ms"),
        y: Axis::linear("goodput, ratio to nginx"),
        series: series(options, servers, points),
    };
    Report { name: options.name.clone(), title, method, table, charts: vec![chart], machine: Machine::here(Peers::Web) }
}

/// A line for each server beside nginx and each loss: the ratio over the delay.
fn series(options: &Options, servers: &[Server], points: &[Point]) -> Vec<Series> {
    let mut all = Vec::new();
    for (at, server) in servers.iter().enumerate().skip(1) {
        for loss in &options.losses {
            let of = points.iter().filter(|point| point.loss == *loss);
            let ratios = of.filter_map(|point| {
                let ratio = stats::paired_ratio(&point.goodputs[at], &point.goodputs[0])?;
                Some(((point.delay_ms, ratio.median), (ratio.least, ratio.greatest)))
            });
            let (line, spread): (Vec<_>, Vec<_>) = ratios.unzip();
            all.push(Series::new(format!("{}, {loss}%", server.name), line).with_spread(spread));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_every_path_and_ratios_within_rounds() {
        let options = <Cli as clap::Parser>::parse_from(["loss", "--losses", "1,1:8", "--delays", "0,20"]).options;
        let servers = [Server::nginx(), web::server("ours=x {run}/y").unwrap()];
        let point = |loss: &str, delay_ms| Point {
            loss: loss.into(),
            delay_ms,
            goodputs: vec![vec![1e6, 4e6, 2e6], vec![2e6, 4e6, 6e6]],
            overflows: vec![0, 7],
        };
        let points = [point("1", 0.0), point("1", 20.0), point("1:8", 0.0), point("1:8", 20.0)];
        let report = report(&options, &servers, &points);
        let csv = report.table.csv();
        assert_eq!(csv.lines().count(), 1 + 8, "{csv}");
        assert!(csv.contains("1:8,20.0,ours,4.00,2.00,6.00,2.00,1.00,3.00,7"), "{csv}");
        assert_eq!(report.charts[0].series.len(), 2);
    }

    #[test]
    fn overflow_is_of_both_directions() {
        let log = "joined\n[{\"frames\":{\"overflow\":3,\"missed\":1}},{\"frames\":{\"overflow\":4,\"missed\":2}}]\n";
        assert_eq!(overflow(log).unwrap(), 10);
        assert!(overflow("joined\n").is_err() && overflow("[{}]\n").is_err());
    }

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }
}
