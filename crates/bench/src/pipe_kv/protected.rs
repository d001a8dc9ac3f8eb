//! `simoom-bench protection`: the same requests of services inside, in a process of its own on another processor, and on the same.

use super::clients::{Clients, Plan, items};
use crate::pipe::{Common, Figure, RoundFigures, write};
use crate::pipe_tcp::services::Echo;
use crate::stats::Summary;
use anyhow::{Context as _, Result, bail, ensure};
use app::Service;
use guard::hostile::Hostile;
use guard::stats::Stats;
use guard::{Channel, GRANT_VARIABLE, Grant, Granted, Place, Remote, client, jail};
use rustix::io::FdFlags;
use rustix::process::{Pid, Signal, kill_process};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Options of `simoom-bench protection`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Peer and server are one thread, as in `simoom-bench pipe-kv`; the service is in it (inline), or a process beside it serves, on processor
--app-cpu (other) or on the same one (same). Connections have one request each on its way; so many frames are taken a cycle (batch). The server's time
is measured, the wait for the other process included. With one connection it is measured until the answer has left: the unloaded round
trip.

With --hostile, an echo is measured alone and beside an application that writes anything into what it shares with the server, in turn; the
echo is inline, and in a process on --app-cpu too where the hostile one has another processor.

  simoom-bench protection --cpu 0 --app-cpu 1 --out docs/results
  simoom-bench protection --cpu 0 --app-cpu 1 --hostile 60 --rounds 21 --out docs/results")]
pub(crate) struct ProtectionOptions {
    #[command(flatten)]
    common: Common,
    /// The other process runs there
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) app_cpu: u32,
    /// Measure an echo beside a hostile application instead, for so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    hostile: Option<u32>,
    /// The hostile application runs there
    #[arg(long, value_name = "N", default_value_t = 1, requires = "hostile")]
    pub(super) hostile_cpu: u32,
    /// Items in the store
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=50_000_000))]
    items: u32,
    /// Bytes of each value, and of each echo
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1000))]
    bytes: u32,
    /// Write protection.csv and protection.md there, or protection-hostile.csv and .md
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl ProtectionOptions {
    pub(super) fn rounds(&self) -> u16 {
        self.common.rounds
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes as usize
    }

    pub(super) fn out(&self) -> Option<&Path> {
        self.out.as_deref()
    }
}

/// Options of the other process.
#[derive(Debug, clap::Args)]
pub(crate) struct AppOptions {
    #[arg(long)]
    echo: bool,
    /// Keep to nothing, on this processor
    #[arg(long)]
    hostile: Option<usize>,
    #[arg(long)]
    items: u32,
    #[arg(long)]
    bytes: u32,
}

/// Frames a cycle.
const BATCHES: [usize; 4] = [1, 4, 16, 64];
const CONNECTIONS: usize = 64;
/// How long an application looks for events before it sleeps.
pub(super) const SPIN: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(60);

fn plan(options: &ProtectionOptions, echo: bool, connections: usize, batch: usize) -> Plan {
    Plan { items: options.items, bytes: options.bytes as usize, connections, batch, echo }
}

/// Another process with the service, and this end of it.
pub(super) struct Other {
    child: Child,
    channel: Arc<Channel>,
    _life: UnixStream,
}

impl Other {
    /// An honest one.
    pub(super) fn start(place: Place, cpu: Option<u32>, plan: &Plan) -> Result<(Other, Remote)> {
        let (other, remote, _) = Other::with(place, cpu, plan, if plan.echo { &["--echo"] } else { &[] })?;
        Ok((other, remote))
    }

    /// One that keeps to nothing, and what it is refused.
    pub(super) fn hostile(place: Place, cpu: u32, plan: &Plan) -> Result<(Other, Remote, Arc<Stats>)> {
        Other::with(place, Some(cpu), plan, &["--hostile", &cpu.to_string()])
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("cannot signal the other process")
    }

    /// Has the process stand still.
    pub(super) fn stop(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// And go on.
    pub(super) fn go_on(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// An error when it has ended; it is a zombie then, which takes every signal.
    pub(super) fn ensure_runs(&mut self) -> Result<()> {
        match self.child.try_wait().context("cannot look after the other process")? {
            None => Ok(()),
            Some(status) => bail!("the other process ended: {status}"),
        }
    }

    fn with(place: Place, cpu: Option<u32>, plan: &Plan, args: &[&str]) -> Result<(Other, Remote, Arc<Stats>)> {
        let channel = Channel::new(0, place, cpu, Grant::new(plan.connections as u32 + 1, 0..1))?;
        ensure!(channel.open(), "a new channel is in use");
        let (life, theirs) = UnixStream::pair()?;
        let granted = Granted::of(theirs.as_fd(), std::slice::from_ref(&channel));
        let inherited = channel.descriptors().into_iter().chain([theirs.as_fd()]);
        inherited.into_iter().try_for_each(|descriptor| rustix::io::fcntl_setfd(descriptor, FdFlags::empty()))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg("protection-app").env(GRANT_VARIABLE, granted.encode()).stdin(Stdio::null());
        command.args(["--items", &plan.items.to_string(), "--bytes", &plan.bytes.to_string()]);
        command.args(args);
        let child = command.spawn().context("cannot start the other process")?;
        let other = Other { child, channel: channel.clone(), _life: life };
        let until = Instant::now() + PATIENCE;
        while !channel.is_attached() {
            ensure!(Instant::now() < until, "the other process does not come");
            std::thread::sleep(Duration::from_millis(1));
        }
        let stats = Arc::new(Stats::new("bench"));
        Ok((other, Remote::new(channel, guard::Options::default(), stats.clone()), stats))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.channel.end();
        // a child of ours that is not waited for yet
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Nanoseconds a request, the median of a round and the mean.
fn time<S: Service>(options: &ProtectionOptions, plan: Plan, service: S, requests: u64) -> Result<RoundFigures> {
    let mut clients = Clients::new(plan, service)?;
    let mut run = |requests| match plan.connections {
        1 => clients.round_trips(requests),
        _ => clients.run(requests),
    };
    // caches, branch predictors, windows and pools as in a server that runs
    run(requests / 4)?;
    run(options.common.operations.unwrap_or(requests))
}

fn one(options: &ProtectionOptions, plan: Plan, place: &str) -> Result<RoundFigures> {
    let requests = if place == "same" { 20_000 } else { 200_000 };
    let same_cpu = options.common.cpu.map(|cpu| cpu as u32);
    let (place, cpu) = match place {
        "inline" if plan.echo => return time(options, plan, Echo::default(), requests),
        "inline" => {
            let shared = Arc::new(items(&plan)?);
            let stats = shared.stats();
            return time(options, plan, kv::Server::new(shared, plan.options(), stats), requests);
        }
        "other" => (Place::Other { spin: SPIN }, Some(options.app_cpu)),
        "same" => (Place::Same, same_cpu),
        place => bail!("no place is called {place}"),
    };
    let (_other, remote) = Other::start(place, cpu, &plan)?;
    time(options, plan, remote, requests)
}

const PLACES: [&str; 3] = ["inline", "other", "same"];

/// One plan's rounds by place: medians, and means.
#[derive(Default)]
struct Rounds {
    medians: [Vec<f64>; PLACES.len()],
    means: [Vec<f64>; PLACES.len()],
}

impl Rounds {
    /// Each round with processes of their own: where their memory lies, which the kernel chooses, makes more of a difference than the time.
    fn run(options: &ProtectionOptions, plan: Plan) -> Result<Rounds> {
        let mut rounds = Rounds::default();
        for _ in 0..options.rounds() {
            for (at, place) in PLACES.iter().enumerate() {
                let figures = one(options, plan, place)?;
                rounds.medians[at].push(figures.median_ns);
                rounds.means[at].push(figures.mean_ns);
            }
        }
        Ok(rounds)
    }

    /// Times, and what the other places have of inline, round by round.
    fn figures(&self, plan: &Plan) -> Result<Vec<Figure>> {
        let load = match plan.connections {
            1 => "unloaded".to_owned(),
            connections => format!("{connections} connections, batch {}", plan.batch),
        };
        let service = if plan.echo { "echo" } else { "kv GET" };
        let unit = if plan.connections == 1 { "ns a round trip" } else { "ns a request" };
        let figure = |what: &str, unit, decimals, values: &[f64], asked| -> Result<Figure> {
            let what = format!("{service} of {} bytes, {load}: {what}", plan.bytes);
            let summary = Summary::of(values).context("no round was run")?;
            Ok(Figure { what, unit, decimals, summary, mean: None, asked })
        };
        let mut figures = Vec::new();
        for (place, (medians, means)) in PLACES.iter().zip(self.medians.iter().zip(&self.means)) {
            let mean = means.iter().sum::<f64>() / means.len().max(1) as f64;
            figures.push(Figure { mean: Some(mean), ..figure(place, unit, 0, medians, None)? });
        }
        let [inline, others @ ..] = &self.medians;
        for (place, medians) in PLACES[1..].iter().zip(others) {
            let pairs = medians.iter().zip(inline);
            let asked = asked(plan, place);
            figures.push(if plan.connections == 1 {
                let more: Vec<f64> = pairs.map(|(here, inline)| here - inline).collect();
                figure(&format!("{place}, more than inline"), "ns", 0, &more, asked)?
            } else {
                let rates: Vec<f64> = pairs.map(|(here, inline)| inline / here).collect();
                figure(&format!("{place}, of inline's rate"), "times", 2, &rates, asked)?
            });
        }
        Ok(figures)
    }
}

/// Runs it.
pub(crate) fn protection(options: &ProtectionOptions) -> Result<()> {
    if let Some(cpu) = options.common.cpu {
        crate::procs::pin(cpu)?;
    }
    if let Some(seconds) = options.hostile {
        return super::hostile::hostile(options, seconds);
    }
    let line = super::line::there_and_back(options.app_cpu, options.common.rounds, super::line::JOURNEYS)?;
    let what = format!("the yardstick: a cache line to processor {} and back", options.app_cpu);
    let mut figures = vec![Figure { what, unit: "ns", decimals: 0, summary: line, mean: None, asked: None }];
    println!("{}", figures[0].line());
    for echo in [false, true] {
        for (connections, batch) in [(1, 1)].into_iter().chain(BATCHES.map(|batch| (CONNECTIONS, batch))) {
            let plan = plan(options, echo, connections, batch);
            let found = Rounds::run(options, plan)?.figures(&plan)?;
            found.iter().for_each(|figure| println!("{}", figure.line()));
            figures.extend(found);
        }
    }
    if let Some(out) = &options.out {
        let method = format!(
            "Server's time a request over the in-memory pipe: stack and service in one thread (inline), the service in a process on another \
             processor (other) or on the same (same), over shared memory that the server judges. Unloaded: one connection, until the answer \
             has left. Medians of {} rounds in turn, each with processes of their own; what is compared with inline is compared within a round.",
            options.common.rounds
        );
        write(out, "protection", "What a process of its own costs", &method, &figures)?;
    }
    Ok(())
}

/// What the project asks of itself.
fn asked(plan: &Plan, place: &str) -> Option<&'static str> {
    match (place, plan.connections, plan.batch, plan.echo) {
        ("other", 1, ..) => Some("at most 1000"),
        ("other", _, 16.., false) => Some("0.8"),
        ("other", _, 16.., true) => Some("0.6"),
        _ => None,
    }
}

/// The other process.
pub(crate) fn app(options: &AppOptions) -> Result<()> {
    let threads = client::attach()?.context("started by `simoom-bench protection`")?;
    let attached = threads.into_iter().next().context("no thread was granted")?;
    options.hostile.map(crate::procs::pin).transpose()?;
    // as `simoom run` starts a program, and as the program goes on when it has what it needs
    let shut_in = || jail::inner().context("the filter of system calls");
    jail::outer(options.hostile.is_none()).context("the filter of system calls")?;
    if options.hostile.is_some() {
        shut_in()?;
        // until it is killed, or the other end is gone
        Hostile::new(attached, std::process::id().into())?.run(&AtomicBool::new(true));
        return Ok(());
    }
    let plan =
        Plan { items: options.items, bytes: options.bytes as usize, connections: 1024, batch: 64, echo: options.echo };
    if options.echo {
        shut_in()?;
        client::run(&attached, Echo::default())?;
        return Ok(());
    }
    let shared = Arc::new(items(&plan)?);
    let stats = shared.stats();
    shut_in()?;
    client::run(&attached, kv::Server::new(shared, plan.options(), stats))?;
    Ok(())
}
