//! `simoom-bench experiment udp-readers`: several threads that read datagrams, from one socket, from a socket each, and from the dataplane's
//! queues (Performance analysis of the Linux UDP socket under concurrent reads).
//!
//! The readers are simoom's socket engine with a service that answers nothing, in this process, on loopback in a namespace of its
//! own; so what differs between its lines is where the datagrams wait. The dataplane serves the same service, over our own stack and an
//! in-memory NIC. A pipe read by as many threads stands beside as the plain FIFO. Further ways are further values of [`How`].
//!
//! Contention is not counted by the kernel where it happens, in the queue's spinlock and the socket's memory accounting. It shows as
//! processor time: a datagram that costs more the more readers there are has been waited for. Beside stand the receives that found
//! nothing, and how often a reader slept. The dataplane's threads are seen the same way, by the kernel's account of each, and their cycles
//! without a frame stand for receives that found nothing.

mod dataplane;
mod fifo;
mod report;
mod rung;
mod sockets;

use super::{Common, tell_written};
use crate::commands::seconds;
use crate::procs;
use ::sockets::Spread;
use anyhow::{Context as _, Result, bail};
use app::Service;
use clap::builder::PossibleValue;
use lab::Lab;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a datagram, as in the paper.
const BYTES: usize = 10;
/// Datagrams that a source sends before the next one's turn.
const RUN: usize = 16;
/// Without a datagram for so long a drain that is not complete has failed.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_micros(200);

/// Options of `simoom-bench experiment udp-readers`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Pre-filled: the queues hold all datagrams before the first reader starts, and the time to the last one is measured. Live: senders
send as fast as they can while the readers read, and what is lost is told. The dataplane's datagrams wait in frames of 2 KiB on an
in-memory NIC, with no kernel in the way. Writes udp-readers.csv, .svg and .md. Needs root.

  simoom-bench experiment udp-readers --queue shared,dataplane --rounds 1 --out /tmp/look")]
pub(crate) struct Options {
    /// Where the datagrams wait
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "fifo,shared,per-core,affinity,dataplane")]
    queue: Vec<How>,
    /// Datagrams that wait when the readers start; in the dataplane's queues 1,048,576 at most, since their frames may take 2 GiB
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u32).range(1_000..=2_000_000))]
    datagrams: u32,
    /// Source ports
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..=4096))]
    sources: u16,
    /// Numbers of readers; default: one to as many as there are processors
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64))]
    readers: Vec<u16>,
    /// Datagrams that one receive takes at most: 1 as the paper's readers, 64 as a server
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,64", value_parser = clap::value_parser!(u16).range(1..=64))]
    batch: Vec<u16>,
    /// Threads that send while the readers read
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    senders: u16,
    /// How long they send
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    seconds: f64,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// common
    #[command(flatten)]
    common: Common,
}

impl Options {
    /// Datagrams that a queue has room for while they are sent: what cannot be read is lost soon.
    fn live_datagrams(&self) -> usize {
        (self.datagrams as usize / 10).max(1_000)
    }
}

/// Where the datagrams wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// in a pipe that all threads read
    Fifo,
    /// in sockets of the engine
    Sockets(Spread),
    /// in queues of an in-memory NIC, one for each thread of the dataplane
    Dataplane,
}

impl How {
    const ALL: [How; 5] = [
        How::Fifo,
        How::Sockets(Spread::Shared),
        How::Sockets(Spread::PerCore),
        How::Sockets(Spread::Affinity),
        How::Dataplane,
    ];

    fn name(self) -> &'static str {
        match self {
            How::Fifo => "FIFO",
            How::Sockets(Spread::Shared) => "shared socket",
            How::Sockets(Spread::PerCore) => "socket a core",
            How::Sockets(Spread::Affinity) => "affinity",
            How::Dataplane => "dataplane",
        }
    }
}

impl clap::ValueEnum for How {
    fn value_variants<'a>() -> &'a [How] {
        &How::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (word, help) = match self {
            How::Fifo => ("fifo", "in a pipe that all read"),
            How::Sockets(Spread::Shared) => ("shared", "in one socket that all read"),
            How::Sockets(Spread::PerCore) => ("per-core", "in a socket for each, by the kernel's hash"),
            How::Sockets(Spread::Affinity) => ("affinity", "in a socket for each, by a table of flow groups"),
            How::Dataplane => ("dataplane", "in a queue for each of an in-memory NIC, read by our own stack"),
        };
        Some(PossibleValue::new(word).help(help))
    }
}

/// What one measurement found.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    received: u64,
    sent: u64,
    seconds: f64,
    /// processor time of the readers
    busy_s: f64,
    /// receives that found nothing
    empty: u64,
    /// times that a reader slept, and times that it was put off its processor
    slept: u64,
    put_off: u64,
}

impl Figures {
    fn rate(&self) -> f64 {
        self.received as f64 / self.seconds.max(1e-9)
    }
}

/// Takes every datagram and answers none.
struct Sink;

impl Service for Sink {}

/// Who reads.
#[derive(Clone, Copy, Debug)]
struct Readers {
    count: u16,
    /// datagrams that one receive takes at most
    batch: u16,
    /// of the machine, which the readers have in turn
    processors: usize,
}

impl Readers {
    fn cpus(&self) -> Vec<usize> {
        (0..usize::from(self.count)).map(|reader| reader % self.processors).collect()
    }
}

/// A way, a number of readers and a batch, with its rounds.
struct Line {
    how: How,
    readers: u16,
    batch: u16,
    filled: Vec<Figures>,
    live: Vec<Figures>,
}

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let readers: Vec<u16> =
        if options.readers.is_empty() { (1..=processors as u16).collect() } else { options.readers.clone() };
    if options.queue.contains(&How::Dataplane) {
        dataplane::ensure_room(options.datagrams)?;
    }
    let mut lines = Vec::new();
    for &batch in &options.batch {
        for &readers in &readers {
            // a pipe is read record by record
            let ways = How::ALL.into_iter().filter(|how| options.queue.contains(how));
            let ways = ways.filter(|how| *how != How::Fifo || batch == options.batch[0]);
            lines.extend(ways.map(|how| Line { how, readers, batch, filled: Vec::new(), live: Vec::new() }));
        }
    }
    // from here on an interruption ends what runs in order: readers, namespaces
    lab::interrupt_by(crate::commands::stop_flag()?);
    let lab = Lab::new()?;
    lab.server().inside(|| measure(options, processors, &mut lines))?;
    let report = report::report(options, &lines);
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

fn measure(options: &Options, processors: usize, lines: &mut [Line]) -> Result<()> {
    for round in 1..=options.rounds {
        for line in &mut *lines {
            lab::uninterrupted()?;
            let readers = Readers { count: line.readers, batch: line.batch, processors };
            let filled = match line.how {
                How::Fifo => fifo::drain(options, readers),
                How::Sockets(spread) => sockets::drain(options, readers, spread),
                How::Dataplane => dataplane::drain(options, readers),
            };
            let filled = filled.with_context(|| format!("{}, pre-filled", line.how.name()))?;
            let mut said = format!("{:>9.0}/s pre-filled", filled.rate());
            line.filled.push(filled);
            let live = match line.how {
                How::Fifo => None,
                How::Sockets(spread) => Some(sockets::live(options, readers, spread)),
                How::Dataplane => Some(dataplane::live(options, readers)),
            };
            let live = live.transpose().with_context(|| format!("{}, live", line.how.name()))?;
            if let Some(live) = live {
                said += &format!(", {:>9.0}/s live of {:>9.0}/s", live.rate(), live.sent as f64 / live.seconds);
                line.live.push(live);
            }
            eprintln!("{round} {:<14} {} readers, batch {:>2}: {said}", line.how.name(), line.readers, line.batch);
        }
    }
    Ok(())
}

/// Waits until the readers have `all`; how many seconds after `begun` that is.
fn drained(begun: Instant, all: u64, received: impl Fn() -> Result<u64>) -> Result<f64> {
    let (mut last, mut moved) = (0, Instant::now());
    loop {
        let now = received()?;
        if now >= all {
            return Ok(begun.elapsed().as_secs_f64());
        }
        if now != last {
            (last, moved) = (now, Instant::now());
        }
        lab::uninterrupted()?;
        if moved.elapsed() > PATIENCE {
            bail!("{now} of {all} datagrams came out of the queues");
        }
        std::thread::sleep(LOOK);
    }
}

/// What was sent, and what of it the readers had when the time was over.
struct Sent {
    sent: u64,
    received: u64,
    seconds: f64,
}

/// Has the senders send as fast as they can while the readers read: `send(sender, run)` sends a run and says of how many datagrams.
fn send_for(
    options: &Options,
    processors: usize,
    send: impl Fn(usize, usize) -> u64 + Sync,
    received: impl Fn() -> Result<u64>,
) -> Result<Sent> {
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let begun = Instant::now();
    let (received, seconds) = std::thread::scope(|scope| {
        for sender in 0..usize::from(options.senders) {
            let (stop, sent, send) = (&stop, &sent, &send);
            scope.spawn(move || {
                // from the last processor on, so that with fewer readers than processors nobody shares one
                let _ = procs::pin((processors - 1).saturating_sub(sender % processors));
                let runs = (0..).take_while(|_| !stop.load(Ordering::Relaxed));
                sent.fetch_add(runs.map(|run| send(sender, run)).sum(), Ordering::Relaxed);
            });
        }
        std::thread::sleep(Duration::from_secs_f64(options.seconds));
        // a rate of none would say that no thread had a processor so far
        while matches!(received(), Ok(0)) && begun.elapsed() < PATIENCE {
            std::thread::sleep(LOOK);
        }
        let figures = (received(), begun.elapsed().as_secs_f64());
        stop.store(true, Ordering::Relaxed);
        figures
    });
    Ok(Sent { sent: sent.load(Ordering::Relaxed), received: received?, seconds })
}

/// What this process's threads of a name have spent so far.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    busy_s: f64,
    slept: u64,
    put_off: u64,
}

impl Spent {
    fn of_threads(prefix: &str) -> Result<Spent> {
        let mut sum = Spent::default();
        for task in crate::procs::threads(prefix)? {
            let text = |name: &str| fs::read_to_string(task.join(name)).unwrap_or_default();
            sum.add(&text("schedstat"), &text("status"));
        }
        Ok(sum)
    }

    /// Of one thread: time on a processor in nanoseconds (Documentation/scheduler/sched-stats.rst), and proc_pid_status(5).
    fn add(&mut self, schedstat: &str, status: &str) {
        let ns = schedstat.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
        let line = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        self.busy_s += ns as f64 / 1e9;
        self.slept += line("voluntary_ctxt_switches:");
        self.put_off += line("nonvoluntary_ctxt_switches:");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parsed;

    pub(super) fn options(line: &str) -> Options {
        parsed::<Options>(line.split(' ')).unwrap()
    }

    #[test]
    fn what_a_thread_spent_is_read() {
        let mut spent = Spent::default();
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t9\n";
        spent.add("1500000000 20 3\n", status);
        spent.add("", "");
        assert_eq!((spent.busy_s, spent.slept, spent.put_off), (1.5, 7, 9));
    }

    #[test]
    fn the_queues_are_filled_and_drained_whole() {
        let options = options("udp-readers --datagrams 2000 --sources 32 --seconds 0.2");
        let readers = Readers { count: 2, batch: 1, processors: 1 };
        for how in How::ALL {
            let figures = match how {
                How::Fifo => fifo::drain(&options, readers).unwrap(),
                How::Sockets(spread) => sockets::drain(&options, readers, spread).unwrap(),
                How::Dataplane => dataplane::drain(&options, readers).unwrap(),
            };
            assert_eq!((figures.received, figures.sent), (2000, 2000), "{how:?}");
            assert!(figures.seconds > 0.0 && figures.busy_s > 0.0, "{figures:?}");
        }
        let readers = Readers { batch: 64, ..readers };
        for live in [sockets::live(&options, readers, Spread::PerCore), dataplane::live(&options, readers)] {
            let live = live.unwrap();
            assert!(live.received > 0 && live.received <= live.sent, "{live:?}");
        }
    }
}
