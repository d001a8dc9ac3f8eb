//! `simoom-bench experiment udp-readers`: several threads that read datagrams, from one socket and from a socket each (Performance
//! analysis of the Linux UDP socket under concurrent reads).
//!
//! The readers are simoom's socket engine with a service that answers nothing, in this process, on loopback in a namespace of its
//! own; so what differs between the lines is where the datagrams wait. A pipe read by as many threads stands beside as the plain
//! FIFO. Further ways, such as the dataplane, are further values of [`How`].
//!
//! Contention is not counted by the kernel where it happens, in the queue's spinlock and the socket's memory accounting. It shows as
//! processor time: a datagram that costs more the more readers there are has been waited for. Beside stand the receives that found
//! nothing, and how often a reader slept.

use super::{Common, tell_written};
use crate::commands::seconds;
use crate::procs;
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats::{self, Summary};
use anyhow::{Context as _, Result, bail, ensure};
use app::{Listener, Service};
use lab::Lab;
use rustix::pipe::fcntl_setpipe_size;
use sockets::{Balance, Config, Counters, Endpoint, Engine, Idle, Running, Spread, Transport};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a datagram, as in the paper.
const BYTES: usize = 10;
/// Kernel memory that such a datagram takes in a receive queue: its buffer and its descriptor.
const TRUESIZE_BYTES: usize = 768;
/// Datagrams that a source sends before the next one's turn.
const RUN: usize = 16;
/// Without a datagram for so long a drain that is not complete has failed.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_micros(200);

/// Options of `simoom-bench experiment udp-readers`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Pre-filled: the queues hold all datagrams before the first reader starts, and the time to the last one is measured. Live: senders
send as fast as they can while the readers read, and what is lost is told. Writes udp-readers.csv, .svg and .md. Needs root.")]
pub(crate) struct Options {
    /// Datagrams that wait when the readers start
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

/// Where the datagrams wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// in a pipe that all threads read
    Fifo,
    /// in sockets of the engine
    Sockets(Spread),
}

impl How {
    const ALL: [How; 4] =
        [How::Fifo, How::Sockets(Spread::Shared), How::Sockets(Spread::PerCore), How::Sockets(Spread::Affinity)];

    fn name(self) -> &'static str {
        match self {
            How::Fifo => "FIFO",
            How::Sockets(Spread::Shared) => "shared socket",
            How::Sockets(Spread::PerCore) => "socket a core",
            How::Sockets(Spread::Affinity) => "affinity",
        }
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
    let mut lines = Vec::new();
    for &batch in &options.batch {
        for &readers in &readers {
            // a pipe is read record by record
            let ways = How::ALL.into_iter().filter(|how| *how != How::Fifo || batch == options.batch[0]);
            lines.extend(ways.map(|how| Line { how, readers, batch, filled: Vec::new(), live: Vec::new() }));
        }
    }
    let lab = Lab::new()?;
    lab.server().inside(|| measure(options, processors, &mut lines))?;
    let report = report(options, &lines);
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

fn measure(options: &Options, processors: usize, lines: &mut [Line]) -> Result<()> {
    for round in 1..=options.rounds {
        for line in &mut *lines {
            let filled = match line.how {
                How::Fifo => fifo(options, line.readers)?,
                How::Sockets(spread) => drain(options, processors, spread, line.readers, line.batch)?,
            };
            let mut said = format!("{:>9.0}/s pre-filled", filled.rate());
            line.filled.push(filled);
            if let How::Sockets(spread) = line.how {
                let live = live(options, processors, spread, line.readers, line.batch)?;
                said += &format!(", {:>9.0}/s live of {:>9.0}/s", live.rate(), live.sent as f64 / live.seconds);
                line.live.push(live);
            }
            eprintln!("{round} {:<14} {} readers, batch {:>2}: {said}", line.how.name(), line.readers, line.batch);
        }
    }
    Ok(())
}

/// The engine on a port of loopback, bound and not started: its sockets fill.
fn bind(
    options: &Options,
    processors: usize,
    spread: Spread,
    readers: u16,
    batch: u16,
) -> Result<(Engine, SocketAddr)> {
    let endpoint = Endpoint {
        listener: Listener(0),
        address: "127.0.0.1:0".parse().expect("an address"),
        transport: Transport::Udp,
        window_bytes: None,
        backlog: None,
    };
    // any one socket may get all of it; SO_RCVBUFFORCE takes half of what the kernel then allows
    let receive_buffer_bytes = options.datagrams as usize * TRUESIZE_BYTES;
    let config = Config {
        endpoints: vec![endpoint],
        threads: readers.into(),
        cpus: (0..usize::from(readers)).map(|reader| reader % processors).collect(),
        batch: batch.into(),
        datagram_bytes: 512,
        receive_buffer_bytes,
        idle: Idle::Block,
        receive: spread,
        balance: Balance::default(),
        ..Config::default()
    };
    let engine = Engine::bind(config).context("the readers' sockets")?;
    let to = engine.addresses()[0];
    Ok((engine, to))
}

fn sources(options: &Options, to: SocketAddr) -> Result<Vec<UdpSocket>> {
    let one = |_| {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(to)?;
        Ok(socket)
    };
    (0..options.sources).map(one).collect::<std::io::Result<_>>().context("the senders' sockets; see ulimit -n")
}

fn received(running: &Running) -> u64 {
    total(running, |counters| counters.received.get())
}

fn total(running: &Running, of: impl Fn(&Counters) -> u64) -> u64 {
    running.counters().map(|counters| of(counters)).sum()
}

/// Fills the queues, then has them read; the time to the last datagram.
fn drain(options: &Options, processors: usize, spread: Spread, readers: u16, batch: u16) -> Result<Figures> {
    let (engine, to) = bind(options, processors, spread, readers, batch)?;
    let sources = sources(options, to)?;
    let all = options.datagrams as usize;
    for n in 0..all {
        sources[n / RUN % sources.len()].send(&[b'x'; BYTES]).context("filling the queues")?;
    }
    let begun = Instant::now();
    let running = engine.start(|_| Sink).context("the readers")?;
    let (mut last, mut moved) = (0, Instant::now());
    let seconds = loop {
        let now = received(&running);
        if now >= all as u64 {
            break begun.elapsed().as_secs_f64();
        }
        if now != last {
            (last, moved) = (now, Instant::now());
        }
        if moved.elapsed() > PATIENCE {
            bail!("{now} of {all} datagrams were in the queues: raise net.ipv4.udp_mem, or ask for fewer --datagrams");
        }
        std::thread::sleep(LOOK);
    };
    let figures = figures(&running, seconds, all as u64)?;
    running.stop();
    Ok(figures)
}

/// Sends as fast as it goes while the readers read.
fn live(options: &Options, processors: usize, spread: Spread, readers: u16, batch: u16) -> Result<Figures> {
    // a queue that holds a tenth: what cannot be read is lost soon
    let small = Options { datagrams: (options.datagrams / 10).max(1_000), ..clone(options) };
    let (engine, to) = bind(&small, processors, spread, readers, batch)?;
    let groups: Vec<_> = (0..options.senders).map(|_| sources(options, to)).collect::<Result<_>>()?;
    let running = engine.start(|_| Sink).context("the readers")?;
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let begun = Instant::now();
    let mut seconds = 0.0;
    let mut before_end = 0;
    std::thread::scope(|scope| {
        for (n, group) in groups.iter().enumerate() {
            let (stop, sent) = (&stop, &sent);
            scope.spawn(move || {
                // from the last processor on, so that with fewer readers than processors nobody shares one
                let _ = procs::pin((processors - 1).saturating_sub(n % processors));
                let mut count = 0;
                for source in group.iter().cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    count += (0..RUN).filter(|_| source.send(&[b'x'; BYTES]).is_ok()).count() as u64;
                }
                sent.fetch_add(count, Ordering::Relaxed);
            });
        }
        std::thread::sleep(Duration::from_secs_f64(options.seconds));
        before_end = received(&running);
        seconds = begun.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
    });
    let mut figures = figures(&running, seconds, sent.load(Ordering::Relaxed))?;
    // what is read after the end is no throughput
    figures.received = before_end;
    running.stop();
    Ok(figures)
}

fn clone(options: &Options) -> Options {
    Options {
        readers: options.readers.clone(),
        batch: options.batch.clone(),
        common: options.common.clone(),
        ..*options
    }
}

fn figures(running: &Running, seconds: f64, sent: u64) -> Result<Figures> {
    let spent = Spent::of_threads("sockets-")?;
    Ok(Figures {
        received: received(running),
        sent,
        seconds,
        busy_s: spent.busy_s,
        empty: total(running, |counters| counters.empty_receives.get()),
        slept: spent.slept,
        put_off: spent.put_off,
    })
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
        for task in fs::read_dir("/proc/self/task").context("/proc/self/task")?.flatten() {
            let text = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            if text("comm").starts_with(prefix) {
                sum.add(&text("schedstat"), &text("status"));
            }
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

const PAGE_BYTES: usize = 4096;

/// Makes a pipe hold `bytes` and a part of a page for each, or as much as one may that has not CAP_SYS_RESOURCE.
fn pipe_room(writer: &std::io::PipeWriter, bytes: usize) -> Result<usize> {
    let wanted = (bytes + bytes / 64 + PAGE_BYTES).next_power_of_two();
    if fcntl_setpipe_size(writer, wanted).is_ok() {
        return Ok(wanted);
    }
    let most = fs::read_to_string("/proc/sys/fs/pipe-max-size").ok().and_then(|text| text.trim().parse().ok());
    let most = most.unwrap_or(64 << 10).min(wanted);
    fcntl_setpipe_size(writer, most).with_context(|| format!("a pipe of {most} bytes"))?;
    Ok(most)
}

/// A pipe with all records in it, and threads that read record by record.
fn fifo(options: &Options, readers: u16) -> Result<Figures> {
    let (reader, mut writer) = std::io::pipe().context("a pipe")?;
    let room = pipe_room(&writer, options.datagrams as usize * BYTES)?;
    // a page is filled by whole writes
    let all = (room / PAGE_BYTES * (PAGE_BYTES / BYTES)).min(options.datagrams as usize);
    for _ in 0..all {
        writer.write_all(&[b'x'; BYTES]).context("filling the pipe")?;
    }
    drop(writer);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let begun = Instant::now();
    let spent = std::thread::scope(|scope| {
        let work = |n: u16| {
            let mut reader = &reader;
            move || -> Result<(u64, Spent)> {
                // a reader that runs somewhere else is slower, not wrong
                let _ = procs::pin(usize::from(n) % processors);
                let mut count = 0;
                while reader.read(&mut [0; BYTES]).context("the pipe")? > 0 {
                    count += 1;
                }
                let mut spent = Spent::default();
                let text = |name: &str| fs::read_to_string(format!("/proc/thread-self/{name}")).unwrap_or_default();
                spent.add(&text("schedstat"), &text("status"));
                Ok((count, spent))
            }
        };
        let threads: Vec<_> = (0..readers).map(|n| scope.spawn(work(n))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a reader of the pipe")).collect::<Result<Vec<_>>>()
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let sum = |of: fn(&Spent) -> u64| spent.iter().map(|(_, spent)| of(spent)).sum();
    let received = spent.iter().map(|(count, _)| count).sum();
    ensure!(received == all as u64, "{received} of {all} records came out of the pipe");
    Ok(Figures {
        received,
        sent: all as u64,
        seconds,
        busy_s: spent.iter().map(|(_, spent)| spent.busy_s).sum(),
        empty: 0,
        slept: sum(|spent| spent.slept),
        put_off: sum(|spent| spent.put_off),
    })
}

const COLUMNS: [&str; 15] = [
    "load",
    "queue",
    "batch",
    "readers",
    "datagrams/s",
    "least",
    "greatest",
    "ratio to shared",
    "least ratio",
    "greatest ratio",
    "lost, %",
    "reader ns a datagram",
    "empty receives",
    "sleeps",
    "put off",
];

fn report(options: &Options, lines: &[Line]) -> Report {
    let mut table = Table::new(&COLUMNS);
    let rates = |runs: &[Figures]| runs.iter().map(Figures::rate).collect::<Vec<_>>();
    for (load, of) in [("pre-filled", (|line| &line.filled) as fn(&Line) -> &Vec<Figures>), ("live", |line| &line.live)]
    {
        for line in lines {
            let runs = of(line);
            let Some(Summary { median, least, greatest, .. }) = Summary::of(&rates(runs)) else { continue };
            let is_peer = |it: &&Line| {
                it.how == How::Sockets(Spread::Shared) && it.readers == line.readers && it.batch == line.batch
            };
            let peer = lines.iter().find(is_peer).map(of);
            let ratio = peer.and_then(|peer| stats::paired_ratio(&rates(runs), &rates(peer)));
            let middle = |figure: fn(&Figures) -> f64| stats::median(&runs.iter().map(figure).collect::<Vec<_>>());
            table.row(vec![
                Cell::text(load),
                Cell::text(line.how.name()),
                Cell::Count(line.batch.into()),
                Cell::Count(line.readers.into()),
                Cell::Number(median, 0),
                Cell::Number(least, 0),
                Cell::Number(greatest, 0),
                Cell::number(ratio.map(|ratio| ratio.median), 2),
                Cell::number(ratio.map(|ratio| ratio.least), 2),
                Cell::number(ratio.map(|ratio| ratio.greatest), 2),
                Cell::number(middle(|run| 100.0 * (1.0 - run.received as f64 / run.sent.max(1) as f64)), 1),
                Cell::number(middle(|run| run.busy_s * 1e9 / run.received.max(1) as f64), 0),
                Cell::number(middle(|run| run.empty as f64), 0),
                Cell::number(middle(|run| run.slept as f64), 0),
                Cell::number(middle(|run| run.put_off as f64), 0),
            ]);
        }
    }
    let method = format!(
        "Datagrams of {BYTES} bytes from {} source ports over loopback, read by threads with a processor each (more readers than \
         processors share them). Pre-filled: {} datagrams wait when the readers start, and the time to the last one counts. Live: {} \
         sending for {} s as fast as they can, from the last processor on, into queues that hold a tenth of that; what was read by then counts, and \
         the rest is lost. *FIFO* is a pipe read record by record, with as many in it as it may hold. A batch is what one receive takes at most. {} rounds in turn, \
         medians; ratios are medians of ratios within a round. *Reader ns a datagram* is the readers' processor time: what grows with \
         the number of readers is waiting for each other, since the queue's lock spins. *Empty receives* found nothing; *sleeps* and *put \
         off* are the readers' voluntary and involuntary context switches.",
        options.sources,
        options.datagrams,
        if options.senders == 1 { "one thread".into() } else { format!("{} threads", options.senders) },
        options.seconds,
        options.rounds
    );
    let chart = |batch: u16| {
        let measured = |how: &How| lines.iter().any(|line| line.how == *how && line.batch == batch);
        let ways = How::ALL.into_iter().filter(measured).map(|how| series(lines, how, batch));
        Chart {
            title: format!("Pre-filled queues, {batch} a receive"),
            x: Axis::linear("readers"),
            y: Axis::linear("datagrams/s"),
            series: ways.collect(),
        }
    };
    let charts = options.batch.iter().map(|batch| chart(*batch)).collect();
    let title = "Concurrent readers of UDP".to_owned();
    Report { name: "udp-readers".into(), title, method, table, charts, machine: Machine::here(Peers::None) }
}

fn series(lines: &[Line], how: How, batch: u16) -> Series {
    let of = lines.iter().filter(|line| line.how == how && line.batch == batch).filter_map(|line| {
        let rates: Vec<f64> = line.filled.iter().map(Figures::rate).collect();
        let Summary { median, least, greatest, .. } = Summary::of(&rates)?;
        Some(((f64::from(line.readers), median), (least, greatest)))
    });
    Series::ranged(how.name(), of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn options(line: &str) -> Options {
        <Cli as clap::Parser>::parse_from(line.split(' ')).options
    }

    #[test]
    fn a_report_pairs_each_way_with_the_shared_socket() {
        let options = options("udp-readers --batch 1");
        let run =
            |received, seconds| Figures { received, sent: 2 * received, seconds, busy_s: 1.0, ..Figures::default() };
        let line = |how, seconds: [f64; 2]| Line {
            how,
            readers: 2,
            batch: 1,
            filled: seconds.map(|seconds| run(1000, seconds)).to_vec(),
            live: Vec::new(),
        };
        let lines = [line(How::Sockets(Spread::Shared), [1.0, 2.0]), line(How::Sockets(Spread::PerCore), [0.5, 2.0])];
        let report = report(&options, &lines);
        let csv = report.table.csv();
        assert_eq!(csv.lines().count(), 3, "{csv}");
        let row = "pre-filled,socket a core,1,2,1250,500,2000,1.50,1.00,2.00,50.0,1000000,0,0,0";
        assert_eq!(csv.lines().nth(2), Some(row));
        assert_eq!(report.charts.len(), 1);
        assert_eq!(report.charts[0].series.len(), 2);
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
        let options = options("udp-readers --datagrams 2000 --sources 32 --seconds 0.05");
        for how in How::ALL {
            let figures = match how {
                How::Fifo => fifo(&options, 2).unwrap(),
                How::Sockets(spread) => drain(&options, 1, spread, 2, 1).unwrap(),
            };
            assert_eq!((figures.received, figures.sent), (2000, 2000), "{how:?}");
            assert!(figures.seconds > 0.0 && figures.busy_s > 0.0, "{figures:?}");
        }
        let live = live(&options, 1, Spread::PerCore, 2, 64).unwrap();
        assert!(live.received > 0 && live.received <= live.sent, "{live:?}");
    }
}
