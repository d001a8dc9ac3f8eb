//! `simoom-bench experiment accept`: how connections get to the threads of a server on kernel sockets (Affinity-Accept's figures 2 to
//! 5, 7 and 8): one listener for all, a listener a thread, and affinity, by processors, by requests a connection and by the time that
//! clients think between them.
//!
//! Packets arrive on all of the server's processors, as they do from a NIC with a queue for each: there is a wire for each processor,
//! with a load of its own. So no thread has more of the load beside it than another.

mod bed;
mod files;
mod report;

use super::apart::{self, Apart};
use super::web::ensure_can_run;
use super::{Common, tell_written};
use crate::commands::seconds;
use anyhow::{Context as _, Result, ensure};
use bed::{Bed, Figures, Folder};
use report::{Line, report};

/// Options of `simoom-bench experiment accept`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Requests/s of `simoom web` on kernel sockets with --accept shared, per-core and affinity, all three up at once and asked in turn by the
same loads, by the processors that the server has, by the requests of a connection, and by the time that a client thinks before the next.
A load for each processor, on it: `simoom-bench http` over AF_XDP, on a wire of its own. Writes accept.csv, .svg and .md. Needs root.
  simoom-bench experiment accept --requests 6 --think 0 --files 100 --rounds 1 --sets 2 --out /tmp      a quick look")]
pub(crate) struct Options {
    /// Numbers of threads, with a processor each; default: one to as many as there are processors
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Vec<u16>,
    /// Requests of a connection
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,6,1000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: Vec<u32>,
    /// Milliseconds that a client thinks on average before the next request of a connection, with six of them
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,10,100", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    think: Vec<u32>,
    /// Files, of 30 to 5,670 bytes, 700 on average
    #[arg(long, value_name = "N", default_value_t = 30_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,
    /// Connections at once, of all loads together; with time to think, each load has 150 more for each millisecond of it, if a server may have as many descriptors
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// How long a turn is
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    seconds: f64,
    /// Sets of turns, one of each way, in a laboratory
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    sets: u16,
    /// How often everything is measured, in fresh laboratories
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// where the processors are
    #[command(flatten)]
    apart: apart::Wanted,
    /// common
    #[command(flatten)]
    common: Common,
}

/// How connections get to the threads. The first and the second are what the others are compared with.
const WAYS: [&str; 3] = ["shared", "per-core", "affinity"];
/// Requests of a connection whose client thinks, as in the paper.
const THINKING: u32 = 6;

/// Connections more of each load for a millisecond to think. The processor that it shares with the server asks and answers some 60,000 times
/// a second. With 50 that all think as long it had nothing to do for a tenth of the time: then who waits least is told, not who works least.
const PER_MS: u32 = 150;

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

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    ensure_can_run(&["chrt", "taskset", "ip", "ethtool"])?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from).min(16);
    let most = options.threads.iter().copied().max().unwrap_or(0);
    ensure!(usize::from(most) <= processors, "--threads {most}: there are {processors} processors");
    let simoom = options.common.simoom()?;
    lab::interrupt_by(crate::commands::stop_flag()?);
    let folder = Folder::new(simoom, processors)?;
    files::write(&folder, options.files).context("no files to serve")?;
    let mut lines = lines(options, processors as u16, folder.most);
    let apart = Apart::begin(options.apart)?;
    for round in 1..=options.rounds {
        for line in &mut lines {
            // which one came up first, and at which port, is nothing of the ways
            let ways = order(usize::from(round) - 1);
            let mut bed = Bed::new(&folder, options, ways, line)?;
            for set in 0..usize::from(options.sets) {
                let figures = apart.steady(|| take_turns(&mut bed, order(set)))?;
                let rates = figures.map(|figures| format!("{:>8.0}", figures.requests_per_s)).join("");
                eprintln!("{round} {} threads, {}: {rates} requests/s", line.threads, line.manner);
                line.sets.push(figures);
            }
            bed.end()?;
        }
    }
    let mut report = report(options, &lines);
    report.method += &apart.told();
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

/// A set of turns: what each way's server did.
fn take_turns(bed: &mut Bed<'_>, order: [usize; WAYS.len()]) -> Result<[Figures; WAYS.len()]> {
    let mut all = [Figures::default(); WAYS.len()];
    for way in order {
        all[way] = bed.take_turn(way)?;
    }
    Ok(all)
}

/// In what order the ways have their turns in a set, and their servers come up in a round: each comes as often first as last, and as often
/// behind each other one.
fn order(set: usize) -> [usize; WAYS.len()] {
    let begin = set % WAYS.len();
    let mut order = std::array::from_fn(|at| (begin + at) % WAYS.len());
    if set / WAYS.len() % 2 == 1 {
        order.reverse();
    }
    order
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

/// What is measured on so many processors, with at most so many connections of all loads together.
fn lines(options: &Options, processors: u16, most: u32) -> Vec<Line> {
    let all: Vec<u16> = (1..=processors).collect();
    let threads = if options.threads.is_empty() { &all } else { &options.threads };
    let loads = u32::from(processors);
    let of = |manner: Manner| {
        let connections = (options.connections.div_ceil(loads) + manner.think_ms * PER_MS).min(most / loads);
        threads.iter().map(move |&threads| Line { threads, manner, loads, connections, sets: Vec::new() })
    };
    manners(options).into_iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parsed;

    #[test]
    fn clients_that_think_make_six_requests_and_none_is_measured_twice() {
        let options = parsed::<Options>(["accept", "--requests", "1,6", "--think", "0,100"]).unwrap();
        let all: Vec<String> = manners(&options).iter().map(Manner::to_string).collect();
        let expected = ["1 requests a connection", "6 requests a connection", "6 requests a connection, 100 ms apart"];
        assert_eq!(all, expected);
        let lines = lines(&options, 2, 10_000);
        assert_eq!(lines.len(), 2 * 3);
        let connections: Vec<u32> = lines.iter().map(|line| line.connections).collect();
        assert_eq!(connections, [32, 32, 32, 32, 5000, 5000], "as many as a server may have");
    }

    #[test]
    fn no_way_has_a_better_place_in_the_sets_or_rounds() {
        let orders: std::collections::BTreeSet<_> = (0..6).map(order).collect();
        assert_eq!(orders.len(), 6, "all orders there are");
        assert_eq!(order(6), order(0));
        // each way has each place in three rounds already
        let places =
            |way: usize| (0..3).map(|round| order(round).iter().position(|of| *of == way).unwrap()).sum::<usize>();
        assert_eq!([0, 1, 2].map(places), [3; 3]);
    }
}
