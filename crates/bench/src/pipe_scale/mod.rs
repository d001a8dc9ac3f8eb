//! `simoom-bench pipe-scale`: what another thread on another processor brings, with no kernel in it, and what becomes of an uneven load.

mod bed;
mod figures;
mod half;
mod results;
mod slices;
mod talk;
#[cfg(test)]
mod tests;

use crate::commands::{seconds, stop_flag};
use crate::experiment::apart::{Apart, Wanted};
use anyhow::{Result, bail, ensure};
use bed::{Content, Setup};
use clap::ValueEnum as _;
use figures::{Figures, Rates, WINDOW};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Protocol {
    /// questions for random names of a synthetic zone
    Dns,
    /// requests for a file of 1 KiB, on connections that stay
    Web,
}

/// Which thread has which flow group, and where frames arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    /// no flow groups: each thread serves what arrives at its queue
    Apart,
    /// groups dealt out, frames arrive at the queue of the thread that has their group
    Even,
    /// groups dealt out, frames arrive at the next thread's queue
    Crossed,
    /// as even, under the conditions of the skewed modes, which are compared with it: flows keep step, and nothing is counted
    Level,
    /// all groups on the first thread, all frames at the first queue, no balancer
    Skewed,
    /// as skewed at the beginning, with the balancer; frames arrive where their group is, as with a NIC whose table is rewritten
    Balanced,
    /// the same; all frames arrive at the first queue for ever
    BalancedFixed,
}

impl Mode {
    /// Whether everything is the first thread's at the beginning.
    fn is_skewed(self) -> bool {
        matches!(self, Mode::Skewed | Mode::Balanced | Mode::BalancedFixed)
    }

    /// Whether flows keep step, and threads serve all the time.
    fn is_paced(self) -> bool {
        self.is_skewed() || self == Mode::Level
    }

    /// Whether so many threads take turns with one, slice by slice.
    fn compares(self, threads: usize) -> bool {
        threads > 1 && !self.is_paced()
    }

    /// What this one is compared with.
    fn reference(self) -> Mode {
        if self.is_skewed() { Mode::Level } else { Mode::Even }
    }

    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// Options of `simoom-bench pipe-scale`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The dataplane runs on the in-memory NIC, a thread and a queue for each processor. The clients run in the same threads: whenever a
thread's port is flushed, the clients whose answers came out of its queue make the next question of the answer's frame, and one answer
in 64 is checked to the last octet. So a processor has clients and server of what it serves, and the share of the clients is told. In
each flow one question is on its way. In the level, skewed and balanced modes flows keep step with each other (else a closed loop asks
more where it is answered sooner, and hides an uneven load).

An uneven load has its processor do both for everything while the other has nothing of either, as if the clients stood outside.

In the modes apart, even and crossed the threads serve for 5 ms and count in registers for 5 ms, and where they are several, a dataplane with one thread, on
each of their processors, serves and counts while all else sleeps, in turn. What the count gains with more threads is what the machine gives; the ratio of the gains
is what the dataplane makes of it.

After each run every question must have been answered and every frame have come home; else the program ends with status 1.

  simoom-bench pipe-scale --threads 1,2 --out docs/results
  simoom-bench pipe-scale --service dns --modes even --rounds 3 --seconds 0.5")]
pub(crate) struct Options {
    /// Numbers of threads; default: 1, 2, 4, ... as far as there are processors
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Vec<u16>,
    /// The threads' processors in turn; default: all from 0 on
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// What is served
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "dns,web")]
    service: Vec<Protocol>,
    /// How groups and frames are dealt out
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "apart,even,crossed,level,skewed,balanced,balanced-fixed"
    )]
    modes: Vec<Mode>,
    /// How long each is measured, half of it counting where it counts
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    seconds: f64,
    /// How long the skewed and balanced modes are watched
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    watch: f64,
    /// How often
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Flows of each thread, with a question on its way in each; default: 256, or what the most threads leave of 1536
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    flows: Option<u16>,
    /// Names in the zone
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    names: u64,
    /// Measure while processors 0 and 1 hand a cache line over and back in about so many nanoseconds, which on a virtual machine
    /// changes when the host moves one (as root); default: wherever they are
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    apart: Option<u32>,
    /// Write pipe-scale.* and pipe-scale-balance.* there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The start of a run that does not count.
const WARM_UP_S: f64 = 0.2;

/// Everything that was measured with one service and one number of threads.
#[derive(Debug)]
struct Line {
    service: Protocol,
    threads: usize,
    /// of each thread
    flows: usize,
    modes: Vec<(Mode, Vec<Figures>)>,
}

impl Line {
    fn of(&self, mode: Mode) -> Option<&[Figures]> {
        self.modes.iter().find(|(it, _)| *it == mode).map(|(_, runs)| runs.as_slice())
    }

    /// Answers a second, by round.
    fn rates(&self, mode: Mode) -> Vec<f64> {
        self.all(mode).iter().map(|rates| rates.answers).collect()
    }

    /// What all threads did in a second, by round.
    fn all(&self, mode: Mode) -> Vec<Rates> {
        let rate = |run: &Figures| match (mode.is_skewed(), run.windows.last()) {
            // what a balancer does takes time: the last second says what it comes to
            (true, Some(last)) => Rates::since(&run.windows, (last.at - 1.0 - WINDOW.as_secs_f64() / 2.0).max(0.0)),
            _ => Rates::since(&run.windows, WARM_UP_S),
        };
        self.of(mode).unwrap_or_default().iter().map(rate).collect()
    }

    /// What one thread did in a second, by round: the mean over the processors; nothing where there was none to compare with.
    fn one(&self, mode: Mode) -> Vec<Rates> {
        let of_each =
            |run: &Figures| run.ones.iter().map(|windows| Rates::since(windows, WARM_UP_S)).collect::<Vec<_>>();
        self.of(mode).unwrap_or_default().iter().map(|run| Rates::mean(&of_each(run))).collect()
    }

    /// What its threads gain over one, the loops' gain in the same runs, and the ratio of the two, each by round; empty where there is no
    /// one thread to compare with.
    fn gains(&self, mode: Mode) -> [Vec<f64>; 3] {
        let (ones, all) = (self.one(mode), self.all(mode));
        let pairs = || ones.iter().zip(&all).filter(|(one, _)| one.answers > 0.0 && one.steps > 0.0);
        let ours: Vec<f64> = pairs().map(|(one, all)| all.answers / one.answers).collect();
        let loops: Vec<f64> = pairs().map(|(one, all)| all.steps / one.steps).collect();
        let ratio = ours.iter().zip(&loops).map(|(ours, loops)| ours / loops).collect();
        [ours, loops, ratio]
    }
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<()> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let cpus = if options.cpus.is_empty() { (0..processors).collect() } else { options.cpus.clone() };
    let (threads, flows) = numbers(options, cpus.len())?;
    let wanted = wanted(options, &cpus)?;
    let stop = stop_flag()?;
    let apart = Apart::begin(wanted)?;
    let mut lines = Vec::new();
    for &service in &options.service {
        let content = Content::new(service, options.names)?;
        let first = lines.len();
        lines.extend(threads.iter().map(|&threads| {
            // between one thread and itself there is nothing to cross or to balance
            let modes = options.modes.iter().filter(|mode| threads > 1 || matches!(mode, Mode::Apart | Mode::Even));
            let modes = modes.map(|mode| (*mode, Vec::new())).collect();
            Line { service, threads, flows, modes }
        }));
        for round in 1..=options.rounds {
            for line in &mut lines[first..] {
                measure(options, &cpus, &content, line, &apart, &|| stop.load(Ordering::Relaxed))?;
                eprintln!("{round} {}", said(line));
            }
        }
    }
    let mut reports = results::reports(options, &lines);
    let told = apart.told();
    reports.iter_mut().for_each(|report| report.method += &told);
    for report in &reports {
        println!("{}", report.table.markdown());
    }
    if let Some(out) = &options.out {
        for path in reports.iter().map(|report| report.write(out)).collect::<Result<Vec<_>>>()?.concat() {
            eprintln!("wrote {}", path.display());
        }
    }
    Ok(())
}

/// What may wait between two threads, with room to spare for what they tell each other.
const MOST_FLOWS: usize = 1536;
const FLOWS: usize = 256;

/// Numbers of threads, and the flows of each.
fn numbers(options: &Options, processors: usize) -> Result<(Vec<usize>, usize)> {
    let mut threads: Vec<usize> = options.threads.iter().map(|threads| usize::from(*threads)).collect();
    if threads.is_empty() {
        threads = (0..7).map(|power| 1 << power).filter(|threads| *threads <= processors).collect();
    }
    threads.sort_unstable();
    threads.dedup();
    let most = threads.last().copied().unwrap_or(1);
    let flows = options.flows.map_or(FLOWS.min(MOST_FLOWS / most), usize::from);
    let all = flows * most;
    ensure!(all <= MOST_FLOWS, "{all} flows of all threads: at most {MOST_FLOWS}; give fewer --flows");
    Ok((threads, flows))
}

/// Where the processors are to be.
fn wanted(options: &Options, cpus: &[usize]) -> Result<Wanted> {
    let elsewhere = options.apart.is_some() && !cpus.starts_with(&[0, 1]);
    ensure!(!elsewhere, "--apart looks at processors 0 and 1, and --cpus begins with others: leave one of both out");
    Ok(Wanted::of(options.apart))
}

fn measure(
    options: &Options,
    cpus: &[usize],
    content: &Content,
    line: &mut Line,
    apart: &Apart,
    stopped: &dyn Fn() -> bool,
) -> Result<()> {
    let cpus: Vec<usize> = cpus.iter().copied().cycle().take(line.threads).collect();
    for (mode, runs) in &mut line.modes {
        if stopped() {
            bail!("stopped; nothing is written");
        }
        let (mode, threads, flows) = (*mode, line.threads, line.flows);
        // each that takes turns has as long
        let turns = if mode.compares(threads) { 1.0 + threads as f64 } else { 1.0 };
        let seconds = if mode.is_skewed() { options.watch } else { options.seconds * turns + WARM_UP_S };
        let setup = Setup { mode, threads, cpus: cpus.clone(), flows, seconds };
        runs.push(apart.steady(|| bed::run(&setup, content))?);
    }
    Ok(())
}

/// The last round in a line.
fn said(line: &Line) -> String {
    let head = format!("{:?}, {} threads", line.service, line.threads);
    line.modes.iter().fold(head, |said, (mode, _)| {
        said + &format!(", {} {:.0}/s", mode.name(), line.rates(*mode).last().unwrap_or(&0.0))
    })
}
