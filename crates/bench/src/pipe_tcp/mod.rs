//! `simoom-bench pipe-tcp`: what TCP costs in our stack, with no kernel in it.

mod scenarios;
pub(crate) mod services;
#[cfg(test)]
mod tests;

use crate::pipe::{Common, Figure, SEGMENT_BYTES, callgrind, measure, write};
use anyhow::{Result, ensure};
use scenarios::{Bulk, BulkPlan, Churn, ChurnPlan, PingPong, TOGETHER};
use std::path::PathBuf;

/// What a round trip's answer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Answer {
    /// a copy of the request, which the stack keeps until it is acknowledged
    Owned,
    /// an immutable object
    Object,
}

/// How an object's bytes come into the segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Transmit {
    /// copied behind the headers
    Copy,
    /// left where they are, beside a frame with the headers
    Gather,
}

impl Transmit {
    fn word(self) -> &'static str {
        match self {
            Transmit::Copy => "copy",
            Transmit::Gather => "gather",
        }
    }
}

/// Options of `simoom-bench pipe-tcp`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A stack with a small service and a peer are the two ends of an in-memory pipe in one thread; the pipe moves handles of frames, no
bytes. The peer is written by hand, not a second stack: 16 bytes a connection and a few stores a segment, so that it leaves the
caches to the server. It fills the pipe; the server's cycles over what waits (receive, validate with checksums, TCP, service,
segments with checksums, timers, transmit) are timed as one section; then the peer takes out what was sent. The peer's own time is
not in the figure. A round's figure is the median of its sections, so that one in which the kernel took the processor away does
not count; the mean over all sections of all rounds stands beside it. IPv4, MTU 1500, timestamps and SACK; frames cross 64
a cycle.

The server's clock is made: 125 ns for each frame that crosses. Every segment must be the next in order and acknowledge all that was
sent; a retransmission, a reset, an answer that is missing or another, or a wrong byte ends the program with status 1. Of data one
segment in 64 is compared and verified whole, of others the ends.

  simoom-bench pipe-tcp ping-pong --connections 100000 --cpu 1
  simoom-bench pipe-tcp churn --callgrind
  simoom-bench pipe-tcp all --cpu 1 --out docs/results")]
pub(crate) struct Options {
    #[command(subcommand)]
    scenario: Scenario,
    /// Figures as lines of JSON instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Scenario {
    /// Requests and answers of equal size over connections in random order
    PingPong {
        #[command(flatten)]
        common: Common,
        /// Connections
        #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
        connections: u32,
        /// Bytes of request and answer
        #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(12..=1448))]
        bytes: u16,
        /// What the answer is made of
        #[arg(long, value_name = "WORD", default_value = "owned")]
        answer: Answer,
        /// Each answer is acknowledged by itself, as by a client whose next request is far; else by the next request
        #[arg(long)]
        acknowledge: bool,
    },
    /// A connection for each request, from SYN to the last ACK; the server closes and keeps TIME-WAIT
    #[command(after_help = "\
512 connections go through each step together: SYN; ACK and request; FIN. The answer carries the server's FIN; the peer's FIN
acknowledges it, and the server's last ACK answers that. TIME-WAIT is full and recycles its oldest entry for each connection.")]
    Churn {
        #[command(flatten)]
        common: Common,
        /// Bytes of the request
        #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..=1448))]
        request_bytes: u16,
        /// Bytes of the answer, three segments at most
        #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..=4344))]
        answer_bytes: u16,
        /// The handshake's ACK rides on the request instead of coming first
        #[arg(long)]
        merged: bool,
        /// Room for connections in TIME-WAIT
        #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=16_000_000))]
        time_wait: u32,
    },
    /// Downloads of one object over and over
    Bulk {
        #[command(flatten)]
        common: Common,
        /// Connections
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=512))]
        connections: u16,
        /// Bytes of the object: 1 MiB is hot, 4 GiB (4294967296) is not
        #[arg(long, value_name = "N", default_value_t = 1 << 20, value_parser = clap::value_parser!(u64).range(1..=64 << 30))]
        object_bytes: u64,
        /// Segments in flight, of all connections together
        #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u16).range(2..=1024))]
        in_flight: u16,
        /// The peer acknowledges every so many segments
        #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
        ack_every: u32,
        /// How the object's bytes come into the segments
        #[arg(long, value_name = "WORD", default_value = "copy")]
        transmit: Transmit,
    },
    /// Connections that do nothing: resident memory, and how often the stack wants to run
    Idle {
        /// Connections
        #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=16_000_000))]
        connections: u32,
    },
    /// All of them, as the project asks of itself, into pipe-tcp.csv and pipe-tcp.md
    All {
        #[command(flatten)]
        common: Common,
        /// Bytes of the large object
        #[arg(long, value_name = "N", default_value_t = 4 << 30, value_parser = clap::value_parser!(u64).range(1..=64 << 30))]
        cold_bytes: u64,
        /// Idle connections
        #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=16_000_000))]
        idle: u32,
        /// Where it is written
        #[arg(long, value_name = "DIR", default_value = "docs/results")]
        out: PathBuf,
    },
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<()> {
    let show = |figures: &[Figure]| show(figures, options.json);
    match &options.scenario {
        Scenario::PingPong { common, connections, bytes, answer, acknowledge } => {
            begin(common)?;
            show(&[ping_pong(common, (*connections, *bytes), *answer, *acknowledge, None)?])?;
        }
        Scenario::Churn { common, request_bytes, answer_bytes, merged, time_wait } => {
            begin(common)?;
            let plan = ChurnPlan {
                request_bytes: usize::from(*request_bytes),
                answer_bytes: usize::from(*answer_bytes),
                merged: *merged,
                time_wait: *time_wait,
                batch: usize::from(common.batch),
            };
            show(&[churn(common, plan, None)?])?;
        }
        Scenario::Bulk { common, connections, object_bytes, in_flight, ack_every, transmit } => {
            begin(common)?;
            let plan = BulkPlan {
                connections: usize::from(*connections),
                object_bytes: *object_bytes,
                in_flight: usize::from(*in_flight),
                ack_every: *ack_every,
                transmit: *transmit,
                batch: usize::from(common.batch),
            };
            show(&bulk(common, plan, None)?)?;
        }
        Scenario::Idle { connections } => show(&idle(*connections)?)?,
        Scenario::All { common, cold_bytes, idle, out } => {
            ensure!(!common.callgrind, "--callgrind is for one scenario at a time");
            begin(common)?;
            all(common, *cold_bytes, *idle, out, &show)?;
        }
    }
    Ok(())
}

fn begin(common: &Common) -> Result<()> {
    common.cpu.map_or(Ok(()), crate::procs::pin)
}

fn show(figures: &[Figure], json: bool) -> Result<()> {
    for figure in figures {
        let line = if json { serde_json::to_string(figure)? } else { figure.line() };
        println!("{line}");
    }
    Ok(())
}

/// What one measurement needs: operations of the warm-up and of a round, and of the two runs under callgrind.
struct Amounts {
    warm_up: u64,
    round: u64,
    callgrind: [u64; 2],
}

/// Round trips and connections, in nanoseconds or instructions.
fn time(
    common: &Common,
    what: String,
    [unit, instructions]: [&'static str; 2],
    amounts: &Amounts,
    run: impl FnMut(u64) -> Result<crate::pipe::RoundFigures>,
) -> Result<Figure> {
    if common.callgrind {
        return Ok(Figure::once(&what, instructions, 0, callgrind(amounts.callgrind)?));
    }
    let (summary, mean) = measure(common, [amounts.warm_up, amounts.round], run, |ns| ns)?;
    Ok(Figure { what, unit, decimals: 1, summary, mean: Some(mean), asked: None })
}

fn ping_pong(
    common: &Common,
    (connections, bytes): (u32, u16),
    answer: Answer,
    acknowledges: bool,
    asked: Option<&'static str>,
) -> Result<Figure> {
    let echoes = answer == Answer::Owned;
    let what = format!(
        "ping-pong, {connections} connections, {bytes} bytes, {}{}",
        if echoes { "answered by a copy" } else { "answered by an object" },
        if acknowledges { ", each acknowledged by itself" } else { "" }
    );
    let passes = u64::from(connections);
    let amounts = Amounts {
        warm_up: (4 * passes).max(200_000),
        round: (2 * passes).max(1_000_000),
        callgrind: [20 * TOGETHER as u64, 80 * TOGETHER as u64],
    };
    let mut scenario = PingPong::new(connections as usize, usize::from(bytes), echoes, usize::from(common.batch))?;
    scenario.set_acknowledges(acknowledges);
    let units = ["ns a round trip", "instructions a round trip"];
    let figure = time(common, what, units, &amounts, |trips| scenario.run(trips))?;
    Ok(figure.asked(asked))
}

fn churn(common: &Common, plan: ChurnPlan, asked: Option<&'static str>) -> Result<Figure> {
    let what = format!(
        "churn, {} bytes asked, {} answered, ACK {}",
        plan.request_bytes,
        plan.answer_bytes,
        if plan.merged { "with the request" } else { "before the request" }
    );
    let amounts = Amounts {
        warm_up: u64::from(plan.time_wait) + 50_000,
        round: 300_000,
        callgrind: [10 * TOGETHER as u64, 40 * TOGETHER as u64],
    };
    let mut scenario = Churn::new(plan)?;
    let units = ["ns a connection", "instructions a connection"];
    Ok(time(common, what, units, &amounts, |connections| scenario.run(connections))?.asked(asked))
}

/// Gigabits a second, and nanoseconds of the same for a full segment.
fn bulk(common: &Common, plan: BulkPlan, asked: Option<&'static str>) -> Result<Vec<Figure>> {
    let what = format!(
        "bulk by {}, {} {}, object of {}, {} segments in flight",
        plan.transmit.word(),
        plan.connections,
        if plan.connections == 1 { "connection" } else { "connections" },
        size(plan.object_bytes),
        plan.in_flight
    );
    let segment = SEGMENT_BYTES as f64;
    if common.callgrind {
        let a_byte = callgrind([4 << 20, 16 << 20])?;
        return Ok(vec![Figure::once(&what, "instructions a full segment", 0, a_byte * segment)]);
    }
    let mut scenario = Bulk::new(plan)?;
    let amounts = [256 << 20, (4u64 << 30).max(plan.object_bytes)];
    let (summary, mean) = measure(common, amounts, |bytes| scenario.run(bytes), |ns| 8.0 / ns)?;
    let unit = "Gb/s";
    let rate = Figure { what: what.clone(), unit, decimals: 1, summary, mean: Some(mean), asked };
    let ns = Figure::once(&what, "ns a full segment", 1, segment * 8.0 / summary.median);
    Ok(vec![rate, ns])
}

fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 30) => format!("{} GiB", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}

/// The most memory that a million idle connections may take.
const MILLION_BYTES: u64 = 1 << 30;
/// A wake-up sooner than this after a connection's last segment is an early one.
const EARLY_S: f64 = 60.0;

fn idle(connections: u32) -> Result<Vec<Figure>> {
    let found = scenarios::idle(connections as usize, base::BURST_FRAMES)?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let what = format!("idle, {connections} connections");
    let asked = (connections == 1_000_000).then_some("under 1024");
    if asked.is_some() {
        let resident = found.resident_bytes;
        ensure!(resident < MILLION_BYTES, "a million idle connections take {:.0} MiB", mib(resident));
    }
    let first_s = found.first_wake.map_or(f64::INFINITY, |wait| wait.as_secs_f64());
    ensure!(first_s >= EARLY_S, "with nothing to do the stack asks for a cycle after {first_s:.3} s");
    let each = found.resident_bytes as f64 / f64::from(connections);
    Ok(vec![
        Figure::once(&what, "MiB resident", 0, mib(found.resident_bytes)).asked(asked),
        Figure::once(&what, "MiB of them before the first connection", 0, mib(found.empty_bytes)),
        Figure::once(&what, "bytes a connection, everything counted", 0, each),
        Figure::once(&what, "s until the stack asks for a cycle", 0, first_s).asked(Some("no early wake-up")),
        Figure::once(&what, "cycles asked for in an hour", 0, found.wakes as f64),
    ])
}

fn all(
    common: &Common,
    cold_bytes: u64,
    connections: u32,
    out: &std::path::Path,
    show: &dyn Fn(&[Figure]) -> Result<()>,
) -> Result<()> {
    let mut figures = Vec::new();
    let mut add = |more: Vec<Figure>| {
        show(&more)?;
        figures.extend(more);
        anyhow::Ok(())
    };
    // first, while the process has no memory of other scenarios
    add(idle(connections)?)?;
    for (connections, asked) in [(64, "at most 250"), (100_000, "at most 500")] {
        for answer in [Answer::Owned, Answer::Object] {
            add(vec![ping_pong(common, (connections, 64), answer, false, Some(asked))?])?;
        }
    }
    let batch = usize::from(common.batch);
    let plan = ChurnPlan { request_bytes: 1024, answer_bytes: 1024, merged: false, time_wait: 65_536, batch };
    for plan in [plan, ChurnPlan { merged: true, ..plan }, ChurnPlan { request_bytes: 64, merged: true, ..plan }] {
        add(vec![churn(common, plan, Some("at most 1000"))?])?;
    }
    let plan = BulkPlan {
        connections: 1,
        object_bytes: 1 << 20,
        in_flight: 512,
        ack_every: 2,
        transmit: Transmit::Copy,
        batch,
    };
    for (transmit, asked) in [(Transmit::Copy, "at least 100"), (Transmit::Gather, "more than by copy")] {
        let plan = BulkPlan { transmit, ..plan };
        for plan in [plan, BulkPlan { in_flight: 64, ..plan }, BulkPlan { connections: 16, ..plan }] {
            add(bulk(common, plan, Some(asked))?)?;
        }
        add(bulk(common, BulkPlan { object_bytes: cold_bytes, ..plan }, None)?)?;
    }
    let method = format!(
        "Server time in the stack and a small service over the in-memory pipe, one thread, IPv4, MTU 1500, timestamps and SACK, \
         checksums made and verified; the peer's own time excluded. Medians of {} rounds, a round being the median of its \
         sections (see `simoom-bench pipe-tcp --help`); *mean* is over all sections of all rounds.",
        common.rounds
    );
    write(out, "pipe-tcp", "TCP on the in-memory pipe", &method, &figures)
}
