//! `simoom-bench experiment loss`: how much gets through a path that loses frames and is long, from servers of different TCPs to
//! clients of the kernel's.

use super::downloads::{self, Download};
use super::web::{self, ADDRESS, PROBE, START, Server};
use super::{Common, tell_written};
use crate::commands::seconds;
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats::{self, Summary};
use anyhow::{Context as _, Result};
use clap::builder::NonEmptyStringValueParser;
use lab::{Lab, MIDDLE, Process};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Options of `simoom-bench experiment loss`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Goodput of --connections that fetch one file again and again from a server in turn with nginx, on the kernel's TCP, through
`simoom-bench wire`; every byte is compared. Then one connection fetches one long file over 100 ms each way without loss. In a
--server's command {simoom} is the server under test, {www} the folder to serve (the files are /file and /long) and {run} a folder for
its own files; it serves on 198.18.0.1:80, at interface vs. Writes NAME.csv, NAME.svg and NAME.md. Needs root, and nginx. With what is
preset a round takes six to eight minutes.")]
pub(crate) struct Options {
    /// A server to measure against nginx, again for more; default: simoom over AF_XDP
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
    /// MiB of the file that one connection fetches over 100 ms without loss; 0 to leave that out
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(0..=1 << 10))]
    long_mib: u32,
    /// Frames that the path without loss holds in each direction at most, as `wire` has it
    #[arg(long, value_name = "N", default_value_t = 1 << 18, value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    hold: u32,
    /// Congestion control of the kernel that nginx runs on, in turn with each where there are several; ratios are to the first.
    /// What machines are set to differs, and so does what it means: CUBIC yields to loss, BBR hardly does
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "cubic,bbr", value_parser = NonEmptyStringValueParser::new())]
    kernel: Vec<String>,
    /// How long each load runs
    #[arg(long, value_name = "S", default_value = "6", value_parser = seconds)]
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

/// Delay each way, in milliseconds, of the path without loss that one connection has for itself.
const LONG_DELAY_MS: f64 = 100.0;

/// A file that servers have.
#[derive(Debug)]
pub(super) struct File {
    path: String,
    content: Vec<u8>,
}

impl File {
    /// Adds one of so many KiB to what is served.
    pub(super) fn add(bed: &web::Bed, name: &str, kib: u32) -> Result<File> {
        Ok(File { path: format!("/{name}"), content: bed.add_file(name, u64::from(kib) << 10)? })
    }
}

/// What a path and a load on it are like.
pub(super) struct Path<'a> {
    /// the options of `wire`
    pub(super) faults: Vec<&'a str>,
    /// what every connection fetches
    pub(super) file: &'a File,
    /// connections at once
    pub(super) connections: usize,
    /// how long each load runs
    pub(super) span: Duration,
}

/// What one server did over one path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// octets of bodies, those of connections that were cut short among them, in bits a second
    pub(super) goodput: f64,
    /// frames that the path had no room for
    pub(super) overflow: u64,
    /// connections that ended before the load did, or did not come about, and were asked for again
    pub(super) reconnects: u64,
}

/// Measures one server over one path.
pub(super) fn measure(bed: &web::Bed, server: &Server, path: &Path<'_>) -> Result<Measured> {
    let lab = Lab::with_middle(&lab::Options::default())?;
    let mut process = bed.start(server, &lab)?;
    let at: SocketAddr = ADDRESS.parse()?;
    let mut wire = wire(&lab, &path.faults)?;
    let answers = || lab.client().inside(|| TcpStream::connect_timeout(&at, PROBE).is_ok());
    process.wait_until(answers, START).with_context(|| format!("{} does not come up", server.name))?;
    // the server may have attached a program, too
    lab.pin();
    let download = Download { at, path: &path.file.path, content: &path.file.content };
    let goodput = lab.client().inside(|| {
        crate::procs::pin(1)?;
        downloads::run(&download, path.connections, path.span)
    })?;
    if let Some(status) = process.ended() {
        anyhow::bail!("{} ended ({status}): {}", server.name, process.log().trim());
    }
    wire.stop();
    let overflow = overflow(&wire.log())?;
    Ok(Measured { goodput: goodput.bits_per_s(), overflow, reconnects: goodput.reconnects })
}

/// Joins the hosts of `lab` with these faults.
fn wire(lab: &Lab, faults: &[&str]) -> Result<Process> {
    let [a, b] = MIDDLE;
    let middle = lab.middle().context("a laboratory with a middle")?;
    let mut command = middle.command(std::env::current_exe().context("where this program lies")?);
    command.args(["wire", "--a", a, "--b", b, "--cpu", "1", "--json"]).args(faults);
    let mut wire = Process::spawn(command)?;
    wire.wait_for("joined", START)?;
    // attaching a program may have made the receive threads anew
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
    connections: u16,
    /// the long file, without loss
    long: bool,
    goodputs: Vec<Vec<f64>>,
    /// frames that found no room, by server
    overflows: Vec<u64>,
    /// connections that were made again, by server
    reconnects: Vec<u64>,
}

impl Point {
    /// The options of `wire` for this path. Every round has a seed of its own, the same for all servers.
    fn faults(&self, options: &Options, round: u16) -> Vec<String> {
        let kind = if self.loss.contains(':') { "--burst-loss" } else { "--loss" };
        let mut faults = vec![kind.into(), self.loss.clone(), "--delay".into(), self.delay_ms.to_string()];
        faults.extend(["--seed".into(), round.to_string()]);
        if self.long {
            faults.extend(["--hold".into(), options.hold.to_string()]);
        }
        faults.extend(options.rate.iter().flat_map(|rate| ["--rate".into(), rate.clone()]));
        faults
    }
}

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    let servers = servers(options);
    let bed = web::Bed::new(&options.common, &servers, web::NGINX_SENDFILE)?;
    let files = [File::add(&bed, "file", options.kib)?, File::add(&bed, "long", options.long_mib << 10)?];
    let mut points = points(options, servers.len());
    for round in 1..=options.rounds {
        for point in &mut points {
            let faults = point.faults(options, round);
            let path = Path {
                faults: faults.iter().map(String::as_str).collect(),
                file: &files[usize::from(point.long)],
                connections: point.connections.into(),
                span: Duration::from_secs_f64(options.seconds),
            };
            let of = format!("loss {:>5} delay {:>5} ms  {:>3} x", point.loss, point.delay_ms, point.connections);
            for (at, server) in servers.iter().enumerate() {
                let Measured { goodput, overflow, reconnects } = measure(&bed, server, &path)?;
                eprintln!("{round} {of} {:<20} {:>9.2} Mbit/s  {reconnects} made again", server.name, goodput / 1e6);
                point.goodputs[at].push(goodput);
                point.overflows[at] += overflow;
                point.reconnects[at] += reconnects;
            }
        }
    }
    let report = report(options, &servers, &points);
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

/// nginx on a kernel with each congestion control, then the others.
fn servers(options: &Options) -> Vec<Server> {
    let mut servers: Vec<Server> = options.kernel.iter().map(|kernel| Server::nginx_with(kernel)).collect();
    if options.server.is_empty() {
        servers.push(Server::simoom("simoom", ""));
    }
    servers.extend(options.server.iter().cloned());
    servers
}

/// Every loss with every delay, then the path without loss.
fn points(options: &Options, servers: usize) -> Vec<Point> {
    let point = |loss: &str, delay_ms, connections, long| Point {
        loss: loss.to_owned(),
        delay_ms,
        connections,
        long,
        goodputs: vec![Vec::new(); servers],
        overflows: vec![0; servers],
        reconnects: vec![0; servers],
    };
    let of = |loss: &String| {
        options.delays.iter().map(|delay_ms| point(loss, *delay_ms, options.connections, false)).collect::<Vec<_>>()
    };
    let mut points: Vec<Point> = options.losses.iter().flat_map(of).collect();
    if options.long_mib > 0 {
        points.push(point("0", LONG_DELAY_MS, 1, true));
    }
    points
}

fn report(options: &Options, servers: &[Server], points: &[Point]) -> Report {
    let mut table = Table::new(&[
        "loss %",
        "delay each way ms",
        "connections",
        "server",
        "goodput Mbit/s",
        "least",
        "greatest",
        "ratio to the first",
        "least ratio",
        "greatest ratio",
        "no room, frames",
        "made again",
    ]);
    for point in points {
        for (at, (server, goodputs)) in servers.iter().zip(&point.goodputs).enumerate() {
            let Some(Summary { median, least, greatest, .. }) = Summary::of(goodputs) else { continue };
            let ratio = stats::paired_ratio(goodputs, &point.goodputs[0]);
            table.row(vec![
                Cell::text(&point.loss),
                Cell::Number(point.delay_ms, 1),
                Cell::Count(point.connections.into()),
                Cell::text(&server.name),
                Cell::Number(median / 1e6, 2),
                Cell::Number(least / 1e6, 2),
                Cell::Number(greatest / 1e6, 2),
                Cell::number(ratio.map(|ratio| ratio.median), 2),
                Cell::number(ratio.map(|ratio| ratio.least), 2),
                Cell::number(ratio.map(|ratio| ratio.greatest), 2),
                Cell::Count(point.overflows[at]),
                Cell::Count(point.reconnects[at]),
            ]);
        }
    }
    let title = format!("Goodput over a lossy path, {} connections", options.connections);
    let rate = options.rate.as_ref().map_or_else(|| "no rate".into(), |rate| format!("a rate of {rate}"));
    let long = match options.long_mib {
        0 => String::new(),
        mib => format!(
            " The row of a single connection is one file of {mib} MiB over {LONG_DELAY_MS} ms each way without loss, a path that holds {} \
             frames each way.",
            options.hold
        ),
    };
    let method = format!(
        "{} connections of the kernel's TCP fetch a file of {} KiB again and again for {} s, from the first SYN on; the bytes of bodies \
         that came in that time count, every one compared. The path is `simoom-bench wire` between two veth pairs, with the same loss \
         and delay each way and {rate}; a loss of P:N is P% in bursts of N frames on average. In parentheses stands the congestion \
         control of the kernel that nginx runs on; what another one reaches over a path that loses at random says how it takes loss, \
         not how well it repairs it. Servers have processor 0, clients and the path processor 1; where neither loss nor delay holds the \
         clients back, those two are the limit. {} rounds in turn, each with a seed of its own for the losses: medians, and medians of \
         the ratios within a round.{long} *No room* are the frames that the path had no room for (all rounds), beside those that it \
         lost on purpose; *made again* the connections that ended or failed and were made again (all rounds): what came of a body that was cut \
         short counts.",
        options.connections, options.kib, options.seconds, options.rounds
    );
    let chart = Chart {
        title: title.clone(),
        x: Axis::linear("delay each way, ms"),
        y: Axis::linear(&format!("goodput, ratio to {}", servers[0].name)),
        series: series(options, servers, points),
    };
    Report { name: options.name.clone(), title, method, table, charts: vec![chart], machine: Machine::here(Peers::Web) }
}

/// A line for each server but the first and each loss: the ratio over the delay.
fn series(options: &Options, servers: &[Server], points: &[Point]) -> Vec<Series> {
    let mut all = Vec::new();
    for (at, server) in servers.iter().enumerate().skip(1) {
        for loss in &options.losses {
            let of = points.iter().filter(|point| point.loss == *loss && !point.long);
            let ratios = of.filter_map(|point| {
                let ratio = stats::paired_ratio(&point.goodputs[at], &point.goodputs[0])?;
                Some(((point.delay_ms, ratio.median), (ratio.least, ratio.greatest)))
            });
            all.push(Series::ranged(format!("{}, {loss}%", server.name), ratios));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parsed;

    #[test]
    fn a_report_has_every_path_and_ratios_within_rounds() {
        let options =
            options(&["--losses", "1,1:8", "--delays", "0,20", "--kernel", "reno", "--server", "ours=x {run}/y"]);
        let servers = servers(&options);
        let mut points = points(&options, 2);
        for point in &mut points {
            point.goodputs = vec![vec![1e6, 4e6, 2e6], vec![2e6, 4e6, 6e6]];
            (point.overflows, point.reconnects) = (vec![0, 7], vec![0, 9]);
        }
        let report = report(&options, &servers, &points);
        let csv = report.table.csv();
        assert_eq!(csv.lines().count(), 1 + 10, "{csv}");
        assert!(csv.contains("1:8,20.0,80,ours,4.00,2.00,6.00,2.00,1.00,3.00,7,9"), "{csv}");
        assert!(csv.contains("\n0,100.0,1,ours,4.00"), "{csv}");
        assert_eq!(report.charts[0].series.len(), 2);
        assert!(report.charts[0].svg().unwrap().contains("ratio to nginx (reno)"));
        assert!(report.method.contains(" one file of 256 MiB over 100 ms "), "{}", report.method);
    }

    #[test]
    fn nginx_comes_first_with_each_congestion_control() {
        let names = |words: &[&str]| -> Vec<String> {
            servers(&options(words)).into_iter().map(|server| server.name).collect()
        };
        assert_eq!(names(&[]), ["nginx (cubic)", "nginx (bbr)", "simoom"]);
        assert_eq!(names(&["--kernel", "reno", "--server", "a=x", "--server", "b=y"]), ["nginx (reno)", "a", "b"]);
        for wrong in ["", "cubic,"] {
            assert!(parsed::<Options>(["loss", "--kernel", wrong]).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_round_has_a_seed_and_the_long_path_its_room() {
        let options = options(&["--losses", "1:8", "--delays", "20", "--rate", "1G", "--hold", "5000"]);
        let points = points(&options, 2);
        let words = |at: usize, round| points[at].faults(&options, round).join(" ");
        assert_eq!(words(0, 1), "--burst-loss 1:8 --delay 20 --seed 1 --rate 1G");
        assert_eq!(words(1, 3), "--loss 0 --delay 100 --seed 3 --hold 5000 --rate 1G");
        assert_eq!((points[1].connections, points.len()), (1, 2));
        let without = super::tests::options(&["--losses", "1", "--delays", "20", "--long-mib", "0"]);
        assert_eq!(super::points(&without, 2).len(), 1);
        assert!(!report(&without, &servers(&without), &[]).method.contains("single connection"));
    }

    #[test]
    fn overflow_is_of_both_directions() {
        let log = "joined\n[{\"frames\":{\"overflow\":3,\"missed\":1}},{\"frames\":{\"overflow\":4,\"missed\":2}}]\n";
        assert_eq!(overflow(log).unwrap(), 10);
        assert!(overflow("joined\n").is_err() && overflow("[{}]\n").is_err());
    }

    fn options(words: &[&str]) -> Options {
        parsed::<Options>([&["loss"][..], words].concat()).unwrap()
    }
}
