//! `simoom-bench experiment mutilate`: whether our load on a memcached (`simoom-bench kv`) and the field's own generator, mutilate
//! (Leverich and Kozyrakis, EuroSys 2014), find the same figure on the same server.
//!
//! Two generators agree where the server is the bound. On two processors it is not: the kernel's TCP at mutilate's end takes more time a
//! request than memcached and the kernel at the other. So memcached is made slower, by a fixed time a message (`slower.c`).

use super::web::{Bed, START, Server, json, server};
use super::{Common, memcached, tell_written};
use crate::commands::kv::Results;
use crate::memcache::Mix;
use crate::procs::Ticks;
use crate::report::{Cell, Machine, Peers, Report, Table};
use crate::stats::{self, Summary};
use anyhow::{Context as _, Result, ensure};
use lab::{Lab, Process};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Options of `simoom-bench experiment mutilate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each round starts memcached for each mix and generator in a laboratory of its own (two network namespaces, one veth pair; server on
processor 0, load on processor 1), made slower by --slower-us of processor time a message so that it is the bound, has the generator
store all records, and measures requests/s of a closed loop with one request under way on each connection. Writes NAME.csv and NAME.md.
Needs root, memcached, a C compiler (cc), and mutilate, which Debian does not have: https://github.com/leverich/mutilate

  simoom-bench experiment mutilate --mutilate ./mutilate
  simoom-bench experiment mutilate --mutilate ./mutilate --rounds 1 --seconds 1 --out /tmp      a quick look")]
pub(crate) struct Options {
    /// The other generator
    #[arg(long, value_name = "FILE")]
    mutilate: PathBuf,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,
    /// Records
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    records: u32,
    /// Processor time that is added to each message of the server, in microseconds
    #[arg(long, value_name = "US", default_value_t = 15, value_parser = clap::value_parser!(u32).range(0..=1000))]
    slower_us: u32,
    /// How long is measured, in the whole seconds that mutilate takes
    #[arg(long, value_name = "S", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    seconds: u16,
    /// How long is asked before that
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    warm_up: u16,
    /// How often each is measured
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// common
    #[command(flatten)]
    common: Common,
}

impl Options {
    fn to_store(&self) -> Duration {
        PATIENCE + Duration::from_secs((self.records / STORED_LEAST).into())
    }

    fn to_ask(&self) -> Duration {
        PATIENCE + Duration::from_secs((self.seconds + self.warm_up).into())
    }
}

const SLOWER: &str = include_str!("slower.c");
/// What the project asks of itself (issue 5, "What it must show", 2).
const AGREES: [f64; 2] = [0.9, 1.1];
/// How long a load may take beside what it is to, and storing by so many records a second.
const PATIENCE: Duration = Duration::from_secs(60);
const STORED_LEAST: u32 = 1000;

/// Who makes the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Generator {
    Ours,
    Mutilate,
}

impl Generator {
    fn name(self) -> &'static str {
        match self {
            Generator::Ours => "simoom-bench kv",
            Generator::Mutilate => "mutilate",
        }
    }
}

/// What one load came to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Load {
    requests_per_s: f64,
    p99_us: f64,
    /// answers that did not come or were wrong, and GETs that found nothing
    failed: u64,
    /// of processor 0, while the load's process ran
    busy_share: f64,
}

/// Loads of one mix and one generator.
#[derive(Clone, Debug)]
struct Row {
    mix: Mix,
    generator: Generator,
    loads: Vec<Load>,
}

impl Row {
    fn rates(&self) -> Vec<f64> {
        self.loads.iter().map(|load| load.requests_per_s).collect()
    }
}

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    let mutilate = options.mutilate.canonicalize();
    let mutilate = mutilate.with_context(|| format!("no mutilate at {}", options.mutilate.display()))?;
    super::web::ensure_can_run(&[memcached::MEMCACHED])?;
    let server = slow_memcached(options.slower_us);
    let bed = Bed::new(&options.common, std::slice::from_ref(&server), "")?;
    compile(&bed)?;
    let rows = [Mix::Usr, Mix::Etc].into_iter().flat_map(|mix| {
        [Generator::Ours, Generator::Mutilate].map(|generator| Row { mix, generator, loads: Vec::new() })
    });
    let mut rows: Vec<Row> = rows.collect();
    for round in 1..=options.rounds {
        for row in &mut rows {
            let load = measure(&bed, &server, options, &mutilate, row)
                .with_context(|| format!("{}, mix {}", row.generator.name(), row.mix.word()))?;
            eprintln!(
                "{round} {} {:<16} {:>9.0} requests/s  processor 0 busy {:.0}%",
                row.mix.word(),
                row.generator.name(),
                load.requests_per_s,
                100.0 * load.busy_share
            );
            row.loads.push(load);
        }
    }
    let report = report(options, &rows);
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

fn slow_memcached(slower_us: u32) -> Server {
    let slower = format!("env LD_PRELOAD={{run}}/slower.so SLOWER_NS={}", u64::from(slower_us) * 1000);
    server(&format!("{}={slower} {}", memcached::MEMCACHED, memcached::MEMCACHED_COMMAND))
        .expect("a name and a command")
}

fn compile(bed: &Bed) -> Result<()> {
    let run = bed.folder().join("run");
    std::fs::write(run.join("slower.c"), SLOWER)?;
    let mut command = Command::new("cc");
    command.current_dir(&run).args(["-O2", "-shared", "-fPIC", "-o", "slower.so", "slower.c", "-ldl"]);
    let output = command.output().context("no C compiler; install gcc")?;
    ensure!(output.status.success(), "slower.c is not compiled: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// One generator's round on a server of its own.
fn measure(bed: &Bed, server: &Server, options: &Options, mutilate: &Path, row: &Row) -> Result<Load> {
    let lab = Lab::new()?;
    let mut process = bed.start(server, &lab)?;
    process.wait_until(|| lab.client().inside(memcached::answers), START).context("memcached does not come up")?;
    let load = match row.generator {
        Generator::Ours => ours(&lab, options, row.mix)?,
        Generator::Mutilate => theirs(&lab, options, row.mix, mutilate)?,
    };
    ensure!(process.ended().is_none(), "memcached ended: {}", process.log().trim());
    // the loader goes on without what it cannot load
    ensure!(!process.log().contains("cannot be preloaded"), "memcached is no slower: {}", process.log().trim());
    Ok(load)
}

/// Runs a load to its end: what it said, and the share of the time that processor 0 was busy.
fn attend(command: Command, patience: Duration) -> Result<(String, f64)> {
    let (begun, before) = (Instant::now(), Ticks::now(Some(0))?);
    let mut load = Process::spawn(command)?;
    let status = load.wait(patience)?;
    ensure!(status.success(), "the load failed ({status}): {}", load.log().trim());
    let busy_share = Ticks::now(Some(0))?.busy_s_since(before) / begun.elapsed().as_secs_f64();
    Ok((load.log(), busy_share))
}

fn ours(lab: &Lab, options: &Options, mix: Mix) -> Result<Load> {
    let make = |seconds: &str, stores: bool| -> Result<Command> {
        let mut command = memcached::load(lab, mix, options.records, [options.connections, 1])?;
        command.args(["--probes", "0", "--seconds", seconds, "--warm-up", &options.warm_up.to_string()]);
        command.args(stores.then_some("--store"));
        Ok(command)
    };
    attend(make("0.1", true)?, options.to_store()).context("storing the records")?;
    let (said, busy_share) = attend(make(&options.seconds.to_string(), false)?, options.to_ask())?;
    let results = json::<Results>(&said)?;
    let outcome = results.runs.first().context("the load measured nothing")?;
    let failed = outcome.failed() + outcome.misses;
    Ok(Load { requests_per_s: outcome.answered_rate(), p99_us: outcome.whole_p99_us(), failed, busy_share })
}

/// Lengths as mutilate's authors give them for the mixes; its keys have one length in `usr`, that of most.
fn lengths(mix: Mix) -> [&'static str; 4] {
    match mix {
        Mix::Usr => ["-K", "19", "-V", "2"],
        Mix::Etc => ["-K", "fb_key", "-V", "fb_value"],
    }
}

fn theirs(lab: &Lab, options: &Options, mix: Mix, mutilate: &Path) -> Result<Load> {
    let updates = format!("{:.3}", 1.0 - mix.gets());
    let make = |rest: &[&str]| {
        let mut command = lab.client().command("taskset");
        command.args(["-c", "1"]).arg(mutilate).args(["-s", memcached::ADDRESS]).args(lengths(mix));
        command.args(["-u", &updates, "-r", &options.records.to_string()]).args(rest);
        command
    };
    attend(make(&["--loadonly"]), options.to_store()).context("storing the records")?;
    let [connections, seconds, warm_up] =
        [options.connections, options.seconds.into(), options.warm_up.into()].map(|number: u32| number.to_string());
    let asks = ["--noload", "-c", &connections, "-d", "1", "-t", &seconds, "-w", &warm_up];
    let (said, busy_share) = attend(make(&asks), options.to_ask())?;
    let (requests_per_s, p99_us, failed) = parse(&said).with_context(|| format!("no results in: {}", said.trim()))?;
    Ok(Load { requests_per_s, p99_us, failed, busy_share })
}

/// Requests a second, the 99th percentile of the GETs in microseconds, and GETs that found nothing, as mutilate tells them.
fn parse(said: &str) -> Option<(f64, f64, u64)> {
    let words = |name: &str| -> Option<Vec<&str>> {
        let line = said.lines().find(|line| line.starts_with(name))?;
        Some(line.split_whitespace().collect())
    };
    // Total QPS = 36933.5 (184668 / 5.0s)
    let requests_per_s = words("Total QPS")?.get(3)?.parse().ok()?;
    // read, then mean, deviation, least, 5th, 10th, 90th, 95th and 99th
    let p99_us = words("read")?.get(8)?.parse().ok()?;
    // Misses = 0 (0.0%)
    let misses = words("Misses")?.get(2)?.parse().ok()?;
    Some((requests_per_s, p99_us, misses))
}

fn report(options: &Options, rows: &[Row]) -> Report {
    let mut table = Table::new(&[
        "mix",
        "generator",
        "requests/s",
        "least",
        "greatest",
        "ours to mutilate's",
        "least",
        "greatest",
        "asked",
        "p99, us",
        "processor 0 busy",
        "failed",
    ]);
    for row in rows {
        let Some(rate) = Summary::of(&row.rates()) else { continue };
        let ours = rows.iter().find(|other| other.mix == row.mix && other.generator == Generator::Ours);
        let is_theirs = row.generator == Generator::Mutilate;
        let ratio = ours.filter(|_| is_theirs).and_then(|ours| stats::paired_ratio(&ours.rates(), &row.rates()));
        let median = |of: fn(&Load) -> f64| stats::median(&row.loads.iter().map(of).collect::<Vec<_>>());
        let [least, most] = AGREES;
        table.row(vec![
            Cell::text(row.mix.word()),
            Cell::text(row.generator.name()),
            Cell::Number(rate.median, 0),
            Cell::Number(rate.least, 0),
            Cell::Number(rate.greatest, 0),
            Cell::number(ratio.map(|ratio| ratio.median), 2),
            Cell::number(ratio.map(|ratio| ratio.least), 2),
            Cell::number(ratio.map(|ratio| ratio.greatest), 2),
            if is_theirs { Cell::text(format!("{least} to {most}")) } else { Cell::Missing },
            Cell::number(median(|load| load.p99_us), 0),
            Cell::number(median(|load| load.busy_share), 2),
            Cell::Count(row.loads.iter().map(|load| load.failed).sum()),
        ]);
    }
    Report {
        title: "simoom-bench kv beside mutilate, on the same memcached".into(),
        method: method(options),
        name: "mutilate".into(),
        table,
        charts: Vec::new(),
        machine: Machine::here(Peers::Memcached),
    }
}

fn method(options: &Options) -> String {
    format!(
        "Requests/s of {} connections in a closed loop, one request under way on each, {} s after {} s that do not count; {} rounds in turn: medians, \
         the least and the greatest round beside them; the ratio is the median over rounds of ours divided by mutilate's. Every load has a memcached \
         of its own with {} records, which the generator stored itself, in a laboratory of its own: server on processor 0, load on processor 1, one \
         veth pair, each side's receive work on its own processor. memcached is slower than it is: {} us of processor time are added to each message that it \
         sends, so that it is the bound for both (*processor 0 busy*, a share of the time of the load's whole process); as it is, mutilate's processor is, \
         with the kernel's TCP on it. One request a connection, since how \
         many requests come in one segment, and how many acknowledgements go back, is otherwise the client's stack's to decide. Mean latency is \
         connections divided by requests/s. Lengths and \
         shares of both as mutilate's authors give them; its keys of mix usr have 19 octets, ours 16 or 21. *p99* is of the whole span, of the GETs with mutilate and of \
         all requests with ours, in a closed loop that queues at the server. *Failed*: answers that were wrong or did not come, and GETs that found nothing.",
        options.connections, options.seconds, options.warm_up, options.rounds, options.records, options.slower_us
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parsed;

    const SAID: &str = "#type       avg     std     min     5th    10th    90th    95th    99th
read     1864.5   517.5   208.0  1526.5  1562.6  2177.9  2234.6  2984.1
update   1900.0   517.5   208.0  1526.5  1562.6  2177.9  2234.6  3000.0
op_q        1.0     0.0     1.0     1.0     1.0     1.1     1.1     1.1

Total QPS = 34307.2 (171536 / 5.0s)

Misses = 12 (0.0%)
Skipped TXs = 0 (0.0%)
";

    #[test]
    fn what_mutilate_says_is_read() {
        assert_eq!(parse(SAID), Some((34307.2, 2984.1, 12)));
        assert_eq!(parse(&SAID.replace("Misses", "misses")), None);
        assert_eq!(parse(&SAID.replace("34307.2", "-")), None);
    }

    #[test]
    fn the_ratio_is_of_rounds_of_one_mix() {
        let options = parsed::<Options>(["x", "--mutilate", "mutilate"]).unwrap();
        let row = |mix, generator, rates: &[f64]| {
            let load = |rate: &f64| Load { requests_per_s: *rate, p99_us: 5.0, failed: 1, busy_share: 0.5 };
            Row { mix, generator, loads: rates.iter().map(load).collect() }
        };
        let rows = [
            row(Mix::Usr, Generator::Ours, &[90.0, 100.0, 110.0]),
            row(Mix::Usr, Generator::Mutilate, &[100.0, 100.0, 200.0]),
            row(Mix::Etc, Generator::Ours, &[50.0]),
            row(Mix::Etc, Generator::Mutilate, &[40.0]),
        ];
        let csv = report(&options, &rows).table.csv();
        let lines: Vec<&str> = csv.lines().skip(1).collect();
        assert_eq!(lines[0], "usr,simoom-bench kv,100,90,110,,,,,5,0.50,3");
        assert_eq!(lines[1], "usr,mutilate,100,100,200,0.90,0.55,1.00,0.9 to 1.1,5,0.50,3");
        assert_eq!(lines[3], "etc,mutilate,40,40,40,1.25,1.25,1.25,0.9 to 1.1,5,0.50,1");
    }

    #[test]
    fn a_server_is_slower_by_so_much() {
        let words = slow_memcached(15).words;
        assert!(words.contains(&"SLOWER_NS=15000".to_owned()) && words[0] == "env", "{words:?}");
    }
}
