//! `simoom-bench experiment accept`: how connections get to the threads of a server on kernel sockets (Affinity-Accept's figures 2 to
//! 5): one listener for all, a listener a thread, and affinity, by processors and by requests a connection.
//!
//! Left out of the paper's sweeps: think times and mixes of files, which the load does not have in a closed loop.

use super::web::{Server, server};
use super::{Common, tell_written};
use crate::commands::seconds;
use crate::http::Outcome;
use crate::procs::Ticks;
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats::{self, Summary};
use anyhow::{Context as _, Result, ensure};
use lab::{Lab, Process};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Options of `simoom-bench experiment accept`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Requests/s of `simoom web` on kernel sockets with --accept shared, per-core and affinity, in turn in every round, by the processors that
the server has and by the requests of a connection. The load is `simoom-bench http` over AF_XDP, from the last processor. Writes
accept.csv, .svg and .md. Needs root.")]
pub(crate) struct Options {
    /// Numbers of threads, with a processor each; default: one to as many as there are processors
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Vec<u16>,
    /// Requests of a connection
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,6,1000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: Vec<u32>,
    /// Bytes of the file
    #[arg(long, value_name = "N", default_value_t = 700, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    bytes: u32,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// How long each load runs
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    seconds: f64,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// common
    #[command(flatten)]
    common: Common,
}

/// The first is what the others are compared with.
const POLICIES: [&str; 3] = ["shared", "per-core", "affinity"];
const ADDRESS: &str = "198.18.0.1:80";
/// So many addresses that ports last.
const OWN: &str = "198.18.0.16-198.18.0.79";
const START: Duration = Duration::from_secs(60);

/// One measurement.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    requests_per_s: f64,
    /// of all processors, in percent of one
    busy: f64,
    /// connections that were accepted by a thread that they had not come to, of a thousand
    stolen: f64,
    /// flow groups taken over
    groups_taken: u64,
    failed: u64,
}

/// A policy, threads and requests of a connection, with its rounds.
struct Line {
    policy: &'static str,
    threads: u16,
    requests: u32,
    runs: Vec<Figures>,
}

struct Bed {
    folder: tempfile::TempDir,
    simoom: PathBuf,
    processors: usize,
}

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let simoom = options.common.simoom()?;
    lab::interrupt_by(crate::commands::stop_flag()?);
    let folder = tempfile::Builder::new().prefix("simoom-bench-").tempdir().context("no temporary folder")?;
    std::fs::create_dir(folder.path().join("www")).context("no folder for the file")?;
    std::fs::write(folder.path().join("www/file"), vec![b'x'; options.bytes as usize]).context("no file to serve")?;
    let bed = Bed { folder, simoom, processors };
    let most = options.threads.iter().copied().max().unwrap_or(0);
    ensure!(usize::from(most) <= processors, "--threads {most}: there are {processors} processors");
    let threads: Vec<u16> =
        if options.threads.is_empty() { (1..=processors as u16).collect() } else { options.threads.clone() };
    let mut lines = Vec::new();
    for &requests in &options.requests {
        for &threads in &threads {
            lines.extend(POLICIES.map(|policy| Line { policy, threads, requests, runs: Vec::new() }));
        }
    }
    for round in 1..=options.rounds {
        for line in &mut lines {
            let run = measure(&bed, options, line)?;
            eprintln!(
                "{round} {:<8} {} threads, {:>4} requests a connection: {:>8.0} requests/s, {:>5.1} of 1000 stolen",
                line.policy, line.threads, line.requests, run.requests_per_s, run.stolen
            );
            line.runs.push(run);
        }
    }
    let report = report(options, &lines);
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

/// `simoom web` as a line has it.
fn command(bed: &Bed, line: &Line) -> Result<Server> {
    let cpus: Vec<String> = (0..line.threads).map(|processor| processor.to_string()).collect();
    let path = |name: &str| bed.folder.path().join(name).display().to_string();
    let text = format!(
        "simoom={} web --listen {ADDRESS} --cpus {} --accept {} --per-source 1000000 --control {} {}",
        bed.simoom.display(),
        cpus.join(","),
        line.policy,
        path("control"),
        path("www")
    );
    server(&text).map_err(anyhow::Error::msg)
}

fn measure(bed: &Bed, options: &Options, line: &Line) -> Result<Figures> {
    let lab = Lab::new()?;
    let words = command(bed, line)?.words;
    let mut serving = lab.server().command(&words[0]);
    serving.args(&words[1..]);
    let mut serving = Process::spawn(serving)?;
    serving.wait_for("serving on ", START).context("the server does not come up")?;
    let own = std::env::current_exe().context("where this program lies")?;
    let last = (bed.processors - 1).to_string();
    let mut load = lab.client().command("taskset");
    load.args(["-c", &last]).arg(own).args(["http", "--interface", "vc", "--address", OWN, "--json"]);
    load.args(["--connections", &options.connections.to_string(), "--seconds", &options.seconds.to_string()]);
    load.args(["--requests-per-connection", &line.requests.to_string(), "http://198.18.0.1/file"]);
    let (ticks, begun) = (Ticks::now(None)?, Instant::now());
    let mut load = Process::spawn(load)?;
    let status = load.wait(Duration::from_secs(3600))?;
    let busy = Ticks::now(None)?.busy_s_since(ticks) / begun.elapsed().as_secs_f64() * 100.0;
    let log = load.log();
    ensure!(status.success(), "the load failed ({status}): {}", log.trim());
    let outcome: Outcome = super::web::json(&log)?;
    if !outcome.failures.is_empty() {
        eprintln!("what failed: {:?}", outcome.failures);
    }
    let (own, stolen, groups_taken) = shares(bed, &lab)?;
    serving.stop();
    Ok(Figures {
        requests_per_s: outcome.answered_rate(),
        busy,
        stolen: stolen as f64 * 1000.0 / (own + stolen).max(1) as f64,
        groups_taken,
        failed: outcome.failed(|_| true) + outcome.statuses.values().sum::<u64>(),
    })
}

/// Connections that threads accepted of their own and of others', and groups taken over; nothing of a single thread.
fn shares(bed: &Bed, lab: &Lab) -> Result<(u64, u64, u64)> {
    let control = bed.folder.path().join("control").display().to_string();
    let simoom = bed.simoom.display().to_string();
    let said = lab.server().run(&[&simoom, "ctl", "--control", &control, "stats", "--json"])?;
    let all: serde_json::Value = serde_json::from_str(&said).context("the server's figures")?;
    Ok(shares_of(&all))
}

fn shares_of(all: &serde_json::Value) -> (u64, u64, u64) {
    let metrics = all["metrics"].as_array().map_or(&[][..], Vec::as_slice);
    let sum = |name: &str, queue: Option<&str>| -> u64 {
        let is = |it: &&serde_json::Value| {
            it["name"] == name && queue.is_none_or(|queue| it["labels"]["queue"].as_str() == Some(queue))
        };
        metrics.iter().filter(is).filter_map(|it| it["value"].as_u64()).sum()
    };
    let accepted = |queue| sum("sockets_thread_accepted_total", Some(queue));
    (accepted("its own"), accepted("another's"), sum("sockets_thread_groups_taken_total", None))
}

fn rates(line: &Line) -> Vec<f64> {
    line.runs.iter().map(|run| run.requests_per_s).collect()
}

/// The line of another policy that is otherwise the same.
fn peer<'a>(lines: &'a [Line], line: &Line, policy: &str) -> Option<&'a Line> {
    lines.iter().find(|it| it.policy == policy && it.threads == line.threads && it.requests == line.requests)
}

fn report(options: &Options, lines: &[Line]) -> Report {
    let mut table = Table::new(&[
        "requests a connection",
        "threads",
        "accept",
        "requests/s",
        "least",
        "greatest",
        "requests/s a thread",
        "ratio to shared",
        "least ratio",
        "greatest ratio",
        "ratio to per-core",
        "machine busy, % of one",
        "stolen, of 1000",
        "groups taken over",
        "failed",
    ]);
    for line in lines {
        let Some(Summary { median, least, greatest, .. }) = Summary::of(&rates(line)) else { continue };
        let to = |policy| peer(lines, line, policy).and_then(|peer| stats::paired_ratio(&rates(line), &rates(peer)));
        let (shared, per_core) = (to("shared"), to("per-core"));
        let middle = |of: fn(&Figures) -> f64| stats::median(&line.runs.iter().map(of).collect::<Vec<_>>());
        table.row(vec![
            Cell::Count(line.requests.into()),
            Cell::Count(line.threads.into()),
            Cell::text(line.policy),
            Cell::Number(median, 0),
            Cell::Number(least, 0),
            Cell::Number(greatest, 0),
            Cell::Number(median / f64::from(line.threads), 0),
            Cell::number(shared.map(|ratio| ratio.median), 2),
            Cell::number(shared.map(|ratio| ratio.least), 2),
            Cell::number(shared.map(|ratio| ratio.greatest), 2),
            Cell::number(per_core.map(|ratio| ratio.median), 2),
            Cell::number(middle(|run| run.busy), 0),
            Cell::number(middle(|run| run.stolen), 1),
            Cell::number(middle(|run| run.groups_taken as f64), 0),
            Cell::Count(line.runs.iter().map(|run| run.failed).sum()),
        ]);
    }
    let method = format!(
        "`simoom web` on kernel sockets with --accept shared, per-core and affinity, a thread on each of the first processors, over one veth \
         pair; a file of {} bytes, {} connections at once in a closed loop by `simoom-bench http` over AF_XDP from the last processor, \
         which it shares with the server when that has all of them; {} s each, {} rounds in turn, a fresh laboratory for each: medians, and \
         medians of ratios within a round. On veth the receive work of the server's side runs where its receive thread is pinned, \
         processor 0, so packets of all connections arrive there, and affinity deals them out by its table.",
        options.bytes, options.connections, options.seconds, options.rounds
    );
    let title = "Connections to the threads".to_owned();
    let chart = |requests: u32| Chart {
        title: format!("{title}: {requests} requests a connection"),
        x: Axis::linear("threads"),
        y: Axis::linear("requests/s"),
        series: POLICIES.iter().map(|policy| series(lines, policy, requests)).collect(),
    };
    let charts = options.requests.iter().map(|requests| chart(*requests)).collect();
    Report { name: "accept".into(), title: title.clone(), method, table, charts, machine: Machine::here(Peers::None) }
}

fn series(lines: &[Line], policy: &str, requests: u32) -> Series {
    let of = lines.iter().filter(|line| line.policy == policy && line.requests == requests).filter_map(|line| {
        let Summary { median, least, greatest, .. } = Summary::of(&rates(line))?;
        Some(((f64::from(line.threads), median), (least, greatest)))
    });
    Series::ranged(policy, of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn a_report_pairs_each_policy_with_the_shared_listener() {
        let options = <Cli as clap::Parser>::parse_from(["accept", "--requests", "6"]).options;
        let line = |policy, rates: [f64; 2]| Line {
            policy,
            threads: 2,
            requests: 6,
            runs: rates.map(|requests_per_s| Figures { requests_per_s, ..Figures::default() }).to_vec(),
        };
        let lines = [line("shared", [100.0, 50.0]), line("per-core", [100.0, 100.0]), line("affinity", [200.0, 100.0])];
        let report = report(&options, &lines);
        let csv = report.table.csv();
        assert_eq!(csv.lines().nth(3), Some("6,2,affinity,150,100,200,75,2.00,2.00,2.00,1.50,0,0.0,0,0"), "{csv}");
        assert_eq!((report.charts.len(), report.charts[0].series.len()), (1, 3));
    }

    #[test]
    fn shares_are_added_over_the_threads() {
        let sample = |name: &str, queue: &str, value: u64| serde_json::json!({ "name": name, "labels": { "queue": queue, "thread": "0" }, "value": value });
        let accepted = "sockets_thread_accepted_total";
        let all = serde_json::json!({ "metrics": [
            sample(accepted, "its own", 3), sample(accepted, "its own", 4), sample(accepted, "another's", 5),
            sample("sockets_thread_groups_taken_total", "", 6), sample("others", "its own", 7),
        ]});
        assert_eq!(shares_of(&all), (7, 5, 6));
    }

    #[test]
    fn the_server_gets_a_processor_for_each_thread() {
        let folder = tempfile::tempdir().unwrap();
        let bed = Bed { folder, simoom: PathBuf::from("/s"), processors: 3 };
        let line = Line { policy: "per-core", threads: 3, requests: 1, runs: Vec::new() };
        let words = command(&bed, &line).unwrap().words.join(" ");
        assert!(words.starts_with("/s web --listen 198.18.0.1:80 --cpus 0,1,2 --accept per-core "), "{words}");
    }
}
