//! `simoom-bench experiment accept`: how connections get to the threads of a server on kernel sockets (Affinity-Accept's figures 2 to
//! 5, 7 and 8): one listener for all, a listener a thread, and affinity, by processors, by requests a connection and by the time that
//! clients think between them.
//!
//! Packets arrive on all of the server's processors, as they do from a NIC with a queue for each: there is a wire for each processor,
//! with a load of its own. So no thread has more of the load beside it than another.

use super::apart::{self, Apart};
use super::web::{Server, ensure_can_run, server};
use super::{Common, tell_written};
use crate::commands::seconds;
use crate::http::Outcome;
use crate::procs::{Ticks, give_way};
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats::{self, Summary};
use anyhow::{Context as _, Result, ensure};
use lab::{Lab, Process, Side};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Options of `simoom-bench experiment accept`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Requests/s of `simoom web` on kernel sockets with --accept shared, per-core and affinity, in turn in every round, by the processors that
the server has, by the requests of a connection, and by the time that a client thinks before the next. A load for each processor, on it:
`simoom-bench http` over AF_XDP, on a wire of its own. Writes accept.csv, .svg and .md. Needs root.
  simoom-bench experiment accept --requests 6 --think 0 --files 100 --rounds 1 --out /tmp      a quick look")]
pub(crate) struct Options {
    /// Numbers of threads, with a processor each; default: one to as many as there are processors
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Vec<u16>,
    /// Requests of a connection
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,6,1000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: Vec<u32>,
    /// Milliseconds that a client thinks before the next request of a connection, with six of them
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,10,100", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    think: Vec<u32>,
    /// Files, of 30 to 5,670 bytes, 700 on average
    #[arg(long, value_name = "N", default_value_t = 30_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,
    /// Connections at once, of all loads together; with time to think, 100 more for each millisecond of it
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// How long each load runs
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    seconds: f64,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// where the processors are
    #[command(flatten)]
    apart: apart::Wanted,
    /// common
    #[command(flatten)]
    common: Common,
}

/// The first is what the others are compared with.
const POLICIES: [&str; 3] = ["shared", "per-core", "affinity"];
const START: Duration = Duration::from_secs(60);
/// How long loads may take to ask for each file once, one after the other.
const LEARNING: Duration = Duration::from_secs(600);
/// All loads begin when it is there.
const START_FILE: &str = "start";
/// Requests of a connection whose client thinks, as in the paper.
const THINKING: u32 = 6;
/// Connections more for a millisecond to think: enough to keep 100,000 requests a second coming.
const PER_MS: u32 = 100;
/// The least and the greatest file, and the power by which sizes fall so that they come to 700 bytes on average.
const FILE_BYTES: (f64, f64) = (30.0, 5670.0);
const FILE_POWER: f64 = 1.238;

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

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Manner {
    /// of a connection
    requests: u32,
    think_ms: u32,
}

impl std::fmt::Display for Manner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} requests a connection", self.requests)?;
        if self.think_ms > 0 { write!(f, ", {} ms apart", self.think_ms) } else { Ok(()) }
    }
}

/// A policy, threads and the clients' manner, with its rounds.
struct Line {
    policy: &'static str,
    threads: u16,
    manner: Manner,
    runs: Vec<Figures>,
}

struct Bed {
    folder: tempfile::TempDir,
    simoom: PathBuf,
    processors: usize,
}

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    ensure_can_run(&["chrt", "taskset", "ip", "ethtool"])?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from).min(16);
    let simoom = options.common.simoom()?;
    lab::interrupt_by(crate::commands::stop_flag()?);
    let folder = tempfile::Builder::new().prefix("simoom-bench-").tempdir().context("no temporary folder")?;
    let bed = Bed { folder, simoom, processors };
    write_files(&bed, options.files).context("no files to serve")?;
    let most = options.threads.iter().copied().max().unwrap_or(0);
    ensure!(usize::from(most) <= processors, "--threads {most}: there are {processors} processors");
    let mut lines = lines(options, processors as u16);
    let apart = Apart::begin(options.apart)?;
    for round in 1..=options.rounds {
        for line in &mut lines {
            let run = apart.steady(|| measure(&bed, options, line))?;
            eprintln!(
                "{round} {:<8} {} threads, {}: {:>8.0} requests/s, {:>5.1} of 1000 stolen, {} failed",
                line.policy, line.threads, line.manner, run.requests_per_s, run.stolen, run.failed
            );
            line.runs.push(run);
        }
    }
    let mut report = report(options, &lines);
    report.method += &apart.told();
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

fn manners(options: &Options) -> Vec<Manner> {
    let at_once = options.requests.iter().map(|&requests| Manner { requests, think_ms: 0 });
    let apart = options.think.iter().map(|&think_ms| Manner { requests: THINKING, think_ms });
    let mut all: Vec<Manner> = Vec::new();
    for manner in at_once.chain(apart) {
        if !all.contains(&manner) {
            all.push(manner);
        }
    }
    all
}

fn lines(options: &Options, processors: u16) -> Vec<Line> {
    let all: Vec<u16> = (1..=processors).collect();
    let threads = if options.threads.is_empty() { &all } else { &options.threads };
    let mut lines = Vec::new();
    for manner in manners(options) {
        for &threads in threads {
            lines.extend(POLICIES.map(|policy| Line { policy, threads, manner, runs: Vec::new() }));
        }
    }
    lines
}

/// The size of a file: densities fall by a power, the files stand at equal steps of the distribution.
fn file_bytes(file: u32, files: u32) -> usize {
    let (least, greatest) = FILE_BYTES;
    let at = (f64::from(file) + 0.5) / f64::from(files);
    let power = 1.0 - FILE_POWER;
    let (from, to) = (least.powf(power), greatest.powf(power));
    (from + at * (to - from)).powf(1.0 / power).round() as usize
}

/// The order in which files are asked for has nothing to do with their sizes.
fn place(file: u32, files: u32) -> u32 {
    // a prime above the most files, so that each has its place
    (u64::from(file) * 1_000_003 % u64::from(files)) as u32
}

/// The files, and what each load asks for: the same in the same order, of the server's address at its wire.
fn write_files(bed: &Bed, files: u32) -> std::io::Result<()> {
    let www = bed.folder.path().join("www");
    for file in 0..files {
        let folder = www.join(format!("{}", file / 1000));
        if file % 1000 == 0 {
            std::fs::create_dir_all(&folder)?;
        }
        let bytes = file_bytes(place(file, files), files);
        std::fs::write(folder.join(file.to_string()), vec![b'a' + (file % 26) as u8; bytes])?;
    }
    for wire in 0..bed.processors {
        let urls: String = (0..files).map(|file| format!("http://198.18.{wire}.1/{}/{file}\n", file / 1000)).collect();
        std::fs::write(bed.folder.path().join(format!("urls-{wire}")), urls)?;
    }
    Ok(())
}

/// `simoom web` as a line has it.
fn command(bed: &Bed, line: &Line) -> Result<Server> {
    let cpus: Vec<String> = (0..line.threads).map(|processor| processor.to_string()).collect();
    let path = |name: &str| bed.folder.path().join(name).display().to_string();
    let listen: Vec<String> = (0..bed.processors).map(|wire| format!("--listen 198.18.{wire}.1:80")).collect();
    let text = format!(
        "simoom={} web {} --cpus {} --accept {} --per-source 1000000 --control {} {}",
        bed.simoom.display(),
        listen.join(" "),
        cpus.join(","),
        line.policy,
        path("control"),
        path("www")
    );
    server(&text).map_err(anyhow::Error::msg)
}

/// A load's own addresses: so many that ports last, of all together no more than half of the neighbours that Linux keeps
/// (`net.ipv4.neigh.default.gc_thresh3`, 1024); the server answers to no further ones.
fn addresses(wires: usize) -> usize {
    (512 / wires).clamp(1, 64)
}

/// The load of a wire, from its processor.
fn load(bed: &Bed, lab: &Lab, options: &Options, manner: Manner, wire: usize) -> Result<Process> {
    let own = std::env::current_exe().context("where this program lies")?;
    let connections = options.connections + manner.think_ms * PER_MS;
    let connections = connections.div_ceil(bed.processors as u32).to_string();
    let mut load = lab.client().command("chrt");
    load.args(["--batch", "0", "taskset", "-c", &wire.to_string()]).arg(own).args([
        "http",
        "--interface",
        lab.client().interfaces()[wire],
    ]);
    let addresses = format!("198.18.{wire}.16-198.18.{wire}.{}", 15 + addresses(bed.processors));
    load.args(["--address", &addresses, "--json", "--connections", &connections]);
    load.args(["--requests-per-connection", &manner.requests.to_string()]);
    load.arg("--start-when").arg(bed.folder.path().join(START_FILE));
    load.args(["--think", &(f64::from(manner.think_ms) / 1e3).to_string()]);
    // who yields again and again beside a busy server hardly ever runs (Linux 6.18 takes the rest of its slice)
    load.args(["--wait", "poll", "--warm-up", "0.5", "--seconds", &options.seconds.to_string(), "--urls-from"]);
    load.arg(bed.folder.path().join(format!("urls-{wire}")));
    Process::spawn(load)
}

fn measure(bed: &Bed, options: &Options, line: &Line) -> Result<Figures> {
    let lab = Lab::with(&lab::Options { wires: bed.processors, ..lab::Options::default() })?;
    // what the server sends wakes them on the processor of the thread that sends it, which another host's could not interrupt
    for (_, thread) in lab.pin().into_iter().filter(|(side, _)| *side == Side::Client) {
        give_way(thread)?;
    }
    let words = command(bed, line)?.words;
    let mut serving = lab.server().command(&words[0]);
    serving.args(&words[1..]);
    let mut serving = Process::spawn(serving)?;
    serving.wait_for("serving on ", START).context("the server does not come up")?;
    let loads: Result<Vec<Process>> =
        (0..bed.processors).map(|wire| load(bed, &lab, options, line.manner, wire)).collect();
    let mut loads = loads?;
    for load in &mut loads {
        load.wait_for("waits for ", LEARNING).context("a load does not learn what it asks for")?;
    }
    let start = bed.folder.path().join(START_FILE);
    std::fs::write(&start, "").context("cannot start the loads")?;
    for load in &mut loads {
        load.wait_for("measures for ", START).context("a load does not begin")?;
    }
    let (ticks, begun) = (Ticks::now(None)?, Instant::now());
    std::thread::sleep(Duration::from_secs_f64(options.seconds * 0.9));
    let busy = Ticks::now(None)?.busy_s_since(ticks) / begun.elapsed().as_secs_f64() * 100.0;
    let mut figures = Figures { busy, ..Figures::default() };
    for load in &mut loads {
        let status = load.wait(Duration::from_secs(3600))?;
        let log = load.log();
        ensure!(status.success(), "a load failed ({status}): {}", log.trim());
        let outcome: Outcome = super::web::json(&log)?;
        if outcome.bad() > 0 {
            eprintln!("what failed: {:?}; {} unanswered", outcome.failures, outcome.unfinished);
        }
        figures.requests_per_s += outcome.good_rate();
        figures.failed += outcome.bad();
    }
    std::fs::remove_file(&start).context("cannot stop the next loads from starting")?;
    let (own, stolen, groups_taken) = shares(bed, &lab)?;
    figures.stolen = stolen as f64 * 1000.0 / (own + stolen).max(1) as f64;
    figures.groups_taken = groups_taken;
    serving.stop();
    Ok(figures)
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
    lines.iter().find(|it| it.policy == policy && it.threads == line.threads && it.manner == line.manner)
}

fn report(options: &Options, lines: &[Line]) -> Report {
    let mut table = Table::new(&[
        "requests a connection",
        "ms apart",
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
            Cell::Count(line.manner.requests.into()),
            Cell::Count(line.manner.think_ms.into()),
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
        "`simoom web` on kernel sockets with --accept shared, per-core and affinity, a thread on each of the first processors. Between the two \
         hosts there is a wire (veth pair) for each processor, received there at both ends as by the queues of a NIC, with a load of its own \
         on the same processor: `simoom-bench http` over AF_XDP, in a closed loop, with its part of {} connections at once, and of {PER_MS} more for \
         each millisecond that a client thinks before the next request of a connection. {} files of 30 to 5,670 bytes, 700 on average, asked \
         for in turn. {} s each after 0.5 s to warm up, {} rounds in turn, a fresh laboratory for each: medians, and medians of ratios within \
         a round. Loads and server share the processors, so these are no figures of a machine that only serves; loads and the clients' receive \
         threads leave theirs to the server until it sleeps or has had its slice (SCHED_BATCH).",
        options.connections, options.files, options.seconds, options.rounds
    );
    let title = "Connections to the threads".to_owned();
    let chart = |manner: Manner| Chart {
        title: format!("{title}: {manner}"),
        x: Axis::linear("threads"),
        y: Axis::linear("requests/s"),
        series: POLICIES.iter().map(|policy| series(lines, policy, manner)).collect(),
    };
    let charts = manners(options).into_iter().map(chart).collect();
    Report { name: "accept".into(), title: title.clone(), method, table, charts, machine: Machine::here(Peers::None) }
}

fn series(lines: &[Line], policy: &str, manner: Manner) -> Series {
    let of = lines.iter().filter(|line| line.policy == policy && line.manner == manner).filter_map(|line| {
        let Summary { median, least, greatest, .. } = Summary::of(&rates(line))?;
        Some(((f64::from(line.threads), median), (least, greatest)))
    });
    Series::ranged(policy, of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parsed;

    #[test]
    fn a_report_pairs_each_policy_with_the_shared_listener() {
        let options = parsed::<Options>(["accept", "--requests", "6", "--think", "0"]).unwrap();
        let manner = Manner { requests: 6, think_ms: 0 };
        let line = |policy, rates: [f64; 2]| Line {
            policy,
            threads: 2,
            manner,
            runs: rates.map(|requests_per_s| Figures { requests_per_s, ..Figures::default() }).to_vec(),
        };
        let lines = [line("shared", [100.0, 50.0]), line("per-core", [100.0, 100.0]), line("affinity", [200.0, 100.0])];
        let report = report(&options, &lines);
        let csv = report.table.csv();
        assert_eq!(csv.lines().nth(3), Some("6,0,2,affinity,150,100,200,75,2.00,2.00,2.00,1.50,0,0.0,0,0"), "{csv}");
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
        let manner = Manner { requests: 1, think_ms: 0 };
        let line = Line { policy: "per-core", threads: 2, manner, runs: Vec::new() };
        let words = command(&bed, &line).unwrap().words.join(" ");
        let listen = "--listen 198.18.0.1:80 --listen 198.18.1.1:80 --listen 198.18.2.1:80";
        assert!(words.starts_with(&format!("/s web {listen} --cpus 0,1 --accept per-core ")), "{words}");
    }

    #[test]
    fn files_are_as_large_as_those_of_the_paper() {
        let files = 30_000;
        let mut sizes: Vec<usize> = (0..files).map(|file| file_bytes(place(file, files), files)).collect();
        let mean = sizes.iter().sum::<usize>() as f64 / f64::from(files);
        sizes.sort_unstable();
        assert!((690.0..710.0).contains(&mean), "{mean}");
        assert!((30..32).contains(&sizes[0]) && (5600..=5670).contains(&sizes[files as usize - 1]), "{sizes:?}");
        assert!((0..100).map(|file| place(file, 100)).collect::<std::collections::BTreeSet<_>>().len() == 100);
    }

    #[test]
    fn clients_that_think_make_six_requests_and_none_is_measured_twice() {
        let options = parsed::<Options>(["accept", "--requests", "1,6", "--think", "0,100"]).unwrap();
        let all: Vec<String> = manners(&options).iter().map(Manner::to_string).collect();
        let expected = ["1 requests a connection", "6 requests a connection", "6 requests a connection, 100 ms apart"];
        assert_eq!(all, expected);
        assert_eq!(lines(&options, 2).len(), 3 * 2 * 3);
    }
}
