//! `simoom-bench experiment balance`: a web server of two threads, one of whose processors runs a compiler as well (Affinity-Accept's
//! section 6.5): latency and the compiler's time without a balancer, with stealing, and with migration, on kernel sockets and on AF_XDP.
//!
//! Left out: more than two processors. Half of them compile in the paper; of two that is one.

mod compiler;
mod report;

use super::apart::{self, Apart};
use super::web::{Server, ensure_can_run, json, server};
use super::{Common, tell_written};
use crate::commands::{rate, seconds};
use crate::http::Outcome;
use crate::procs::Ticks;
use anyhow::{Context as _, Result, bail, ensure};
use compiler::Compiler;
use lab::{Lab, Pins, Process};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use wire::toeplitz::Key;

/// Options of `simoom-bench experiment balance`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The server's threads have processors 0 and 1, the compiler 1, the load's generator 0. Each queue's receive thread is on the processor of its
number, and takes it at once, as an interrupt would. Writes NAME.csv, .md and .svg. Needs root, two processors, and gcc.")]
pub(crate) struct Options {
    /// What carries the server: sockets, xdp
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "sockets,xdp")]
    engine: Vec<Engine>,
    /// Requests of a connection; 0 for no limit
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "6,0", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    requests: Vec<u32>,
    /// Requests a second; default: a part of what the server answers at most
    #[arg(long, value_name = "R", value_parser = rate)]
    rate: Option<f64>,
    /// Which part
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    part: u32,
    /// Connections at once, at most
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Bytes of the file
    #[arg(long, value_name = "N", default_value_t = 700, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    bytes: u32,
    /// Functions of the source that is compiled, of about twenty lines each
    #[arg(long, value_name = "N", default_value_t = 80, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    functions: u32,
    /// How many compilers run at once on that processor, as `make -j` has them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// How long each load runs before it is measured
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    warm_up: f64,
    /// How long each load is measured
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    seconds: f64,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// What the result files are called
    #[arg(long, value_name = "NAME", default_value = "balance")]
    name: String,
    /// where the processors are
    #[command(flatten)]
    apart: apart::Wanted,
    /// common
    #[command(flatten)]
    common: Common,
}

/// What carries the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Engine {
    /// the kernel's TCP
    Sockets,
    /// our own stack over AF_XDP
    Xdp,
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Engine::Sockets => "kernel sockets",
            Engine::Xdp => "AF_XDP",
        }
    }

    fn options(self) -> &'static str {
        match self {
            Engine::Sockets => "--backend sockets --accept affinity",
            Engine::Xdp => "--interface vs",
        }
    }
}

/// What is measured of an engine and its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    name: &'static str,
    compiler: bool,
    /// `--balance`
    balance: &'static str,
}

/// The first is what latencies are compared with, and the second what a balancer has to improve.
const CASES: [Case; 4] = [
    Case { name: "no compiler", compiler: false, balance: "on" },
    Case { name: "no balancer", compiler: true, balance: "off" },
    Case { name: "stealing", compiler: true, balance: "steal" },
    Case { name: "migration", compiler: true, balance: "on" },
];

/// The processor of the load and of one thread, and that of the compiler and of the other.
const LOAD: usize = 0;
const COMPILER: usize = 1;
const ADDRESS: &str = "198.18.0.1:80";
/// So many addresses that ports last.
const OWN: &str = "198.18.0.16-198.18.0.79";
const START: Duration = Duration::from_secs(60);
/// How long a load may take to attach its program, after which receive threads are put on their processors.
const ATTACH: Duration = Duration::from_millis(500);
/// How long the load runs that finds out what can be done.
const PEAK_S: f64 = 2.0;

/// One measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Figures {
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    answered_per_s: f64,
    /// answers that did not come, or were wrong, and requests that no connection was free for
    failed: u64,
    /// a run of the compiler
    compile_s: Option<f64>,
    /// of each processor, in percent
    busy: [f64; 2],
    shares: Shares,
}

/// What threads took from each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shares {
    stolen: u64,
    groups: u64,
    connections: u64,
}

/// A case of an engine with connections of so many requests, with its rounds.
#[derive(Debug)]
struct Line {
    engine: Engine,
    requests: u32,
    case: Case,
    rate: f64,
    runs: Vec<Figures>,
}

struct Bed {
    folder: tempfile::TempDir,
    pins: Pins,
    simoom: PathBuf,
}

impl Bed {
    fn new(options: &Options) -> Result<Bed> {
        ensure_can_run(&["ip", "ethtool", "taskset", "chrt", "gcc", "mount", "umount"])?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        ensure!(processors >= 2, "one of two processors compiles; there is {processors}");
        lab::interrupt_by(crate::commands::stop_flag()?);
        let simoom = options.common.simoom()?;
        let folder = tempfile::Builder::new().prefix("simoom-bench-").tempdir().context("no temporary folder")?;
        let bed = Bed { folder, pins: Pins::new()?, simoom };
        std::fs::create_dir(bed.path("www")).context("no folder for the file")?;
        std::fs::write(bed.path("www/file"), vec![b'x'; options.bytes as usize]).context("no file to serve")?;
        std::fs::write(bed.path("made.c"), compiler::source(options.functions)).context("no source to compile")?;
        Ok(bed)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn server(&self, engine: Engine, balance: &str) -> Result<Server> {
        let key: Vec<String> = Key::MICROSOFT.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!(
            "simoom={} web --listen {ADDRESS} {} --cpus 0,1 --balance {balance} --per-source 1000000 --rss-key {} --rss-table {} --control {} {}",
            self.simoom.display(),
            engine.options(),
            key.join(":"),
            self.pins.table().display(),
            self.path("control").display(),
            self.path("www").display()
        );
        server(&text).map_err(anyhow::Error::msg)
    }

    fn compiler(&self, options: &Options) -> Compiler {
        Compiler::start(&self.path("made.c"), COMPILER, options.jobs.into())
    }

    /// A run of the compiler with nothing beside it.
    fn compile_alone(&self, options: &Options) -> Result<f64> {
        let begun = Instant::now();
        let compiler = self.compiler(options);
        super::web::sleep(0, Duration::from_secs_f64(options.seconds))?;
        compiler.finish(begun, Instant::now())
    }

    /// One load on a server in a laboratory of its own; `rate`: None for as much as it can do.
    fn measure(
        &self,
        options: &Options,
        engine: Engine,
        requests: u32,
        case: Case,
        rate: Option<f64>,
    ) -> Result<Figures> {
        let lab =
            Lab::with(&lab::Options { queues: 2, nic: Some(lab::NicOptions::default()), ..lab::Options::default() })?;
        // the last laboratory's
        let _ = std::fs::remove_file(self.pins.table());
        lab.nic().context("the laboratory has a NIC")?.pin(&self.pins.table())?;
        let words = self.server(engine, case.balance)?.words;
        let mut serving = lab.server().command(&words[0]);
        serving.args(&words[1..]);
        let mut serving = Process::spawn(serving)?;
        serving.wait_for("serving on ", START).context("the server does not come up")?;
        let compiler = case.compiler.then(|| self.compiler(options));
        let span_s = if rate.is_some() { options.seconds } else { PEAK_S };
        let mut load = Process::spawn(load(&lab, options, requests, rate, span_s, &self.pins.table())?)?;
        std::thread::sleep(ATTACH);
        place(&lab)?;
        load.wait_for("measures", START).context("the load does not begin")?;
        let (begun, first) = (Instant::now(), ticks()?);
        let status = load.wait(START + Duration::from_secs_f64(span_s))?;
        let (ended, last) = (Instant::now(), ticks()?);
        let log = load.log();
        ensure!(status.success(), "the load failed ({status}): {}", log.trim());
        if let Some(status) = serving.ended() {
            bail!("the server ended ({status}): {}", serving.log().trim());
        }
        let outcome: Outcome = json(&log)?;
        if !outcome.failures.is_empty() {
            eprintln!("what failed: {:?}", outcome.failures);
        }
        let compile_s = compiler.map(|compiler| compiler.finish(begun, ended)).transpose()?;
        let shares = self.shares(&lab)?;
        serving.stop();
        let percent = 100.0 / (ended - begun).as_secs_f64();
        Ok(Figures {
            p50_us: outcome.latency.p50_us,
            p90_us: outcome.latency.p90_us,
            p99_us: outcome.latency.p99_us,
            answered_per_s: outcome.good_rate(),
            failed: outcome.bad() + outcome.missed,
            compile_s,
            busy: [0, 1].map(|n| last[n].busy_s_since(first[n]) * percent),
            shares,
        })
    }

    fn shares(&self, lab: &Lab) -> Result<Shares> {
        let (simoom, control) = (self.simoom.display().to_string(), self.path("control").display().to_string());
        let said = lab.server().run(&[&simoom, "ctl", "--control", &control, "stats", "--json"])?;
        Ok(shares_of(&serde_json::from_str(&said).context("the server's figures")?))
    }
}

fn ticks() -> Result<[Ticks; 2]> {
    Ok([Ticks::now(Some(0))?, Ticks::now(Some(1))?])
}

/// The generator, on its processor.
fn load(lab: &Lab, options: &Options, requests: u32, rate: Option<f64>, span_s: f64, table: &Path) -> Result<Command> {
    let mut load = lab.client().command("taskset");
    load.args(["-c", &LOAD.to_string()]).arg(std::env::current_exe().context("where this program lies")?);
    load.args(["http", "--interface", "vc", "--address", OWN, "--json", "--nic-table"]).arg(table);
    load.args(["--connections", &options.connections.to_string(), "--requests-per-connection", &requests.to_string()]);
    load.args(["--warm-up", &options.warm_up.to_string(), "--seconds", &span_s.to_string()]);
    if let Some(rate) = rate {
        load.args(["--rate", &rate.to_string()]);
    }
    load.arg(format!("http://{}/file", ADDRESS.trim_end_matches(":80")));
    Ok(load)
}

/// Puts the receive thread of each of the server's queues on the processor of its number, the client's where the load is, and has them
/// take it at once, as a NIC's interrupts would.
fn place(lab: &Lab) -> Result<()> {
    for (_, thread) in lab.place(|side, queue| if side == lab::Side::Server { queue % 2 } else { LOAD }) {
        crate::procs::preempt(thread)?;
    }
    Ok(())
}

/// The sums over all threads, by the names that either engine has for them.
fn shares_of(all: &serde_json::Value) -> Shares {
    let metrics = all["metrics"].as_array().map_or(&[][..], Vec::as_slice);
    let sum = |name: &str, label: Option<(&str, &str)>| -> u64 {
        let is = |it: &&serde_json::Value| {
            it["name"] == name && label.is_none_or(|(label, value)| it["labels"][label].as_str() == Some(value))
        };
        metrics.iter().filter(is).filter_map(|it| it["value"].as_u64()).sum()
    };
    Shares {
        stolen: sum("sockets_thread_accepted_total", Some(("queue", "another's"))),
        groups: sum("sockets_thread_groups_taken_total", None)
            + sum("dataplane_moved_groups_total", Some(("direction", "in"))),
        connections: sum("sockets_thread_connections_taken_total", None)
            + sum("tcp_moved_total", Some(("direction", "in"))),
    }
}

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    let bed = Bed::new(options)?;
    let apart = Apart::begin(options.apart)?;
    let mut lines = Vec::new();
    for &engine in &options.engine {
        for &requests in &options.requests {
            let rate = match options.rate {
                Some(rate) => rate,
                None => {
                    let peak = apart.steady(|| bed.measure(options, engine, requests, CASES[0], None))?;
                    peak.answered_per_s / f64::from(options.part)
                }
            };
            eprintln!("{}, {}: {rate:.0} requests/s", engine.name(), report::how(requests));
            lines.extend(CASES.map(|case| Line { engine, requests, case, rate, runs: Vec::new() }));
        }
    }
    let mut alone = Vec::new();
    for round in 1..=options.rounds {
        alone.push(apart.steady(|| bed.compile_alone(options))?);
        for line in &mut lines {
            let measure = || bed.measure(options, line.engine, line.requests, line.case, Some(line.rate));
            let run = apart.steady(measure)?;
            eprintln!(
                "{round} {:<14} {:<17} {:<11} p50 {:>7.0}  p90 {:>7.0}  p99 {:>7.0} us  {:>3} failed  compiler {:>5.2} s  {:>5} groups",
                line.engine.name(),
                report::how(line.requests),
                line.case.name,
                run.p50_us,
                run.p90_us,
                run.p99_us,
                run.failed,
                run.compile_s.unwrap_or(0.0),
                run.shares.groups,
            );
            line.runs.push(run);
        }
    }
    let mut report = report::report(options, &lines, &alone);
    report.method += &apart.told();
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

#[cfg(test)]
mod tests;
