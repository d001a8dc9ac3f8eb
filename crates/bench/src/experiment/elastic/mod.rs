//! `simoom-bench experiment elastic`: load up and down, the threads that serve, and how long answers take meanwhile.
//!
//! The dataplane runs on the in-memory NIC with the policy that `--threads elastic` has. Questions come as in an open loop: as the load
//! says, whether earlier ones were answered or not, and the time of an answer counts from when its question was due. They come evenly, so
//! that what waits does not wait for chance: with random arrivals two threads at three quarters of their peak have a 99th percentile
//! several times that of one at a third, however well they are levelled. Nobody sends them: the NIC has them when they are due, so that no
//! generator takes from the processors. A flow's questions have numbers, and so have its answers: none may be missing but what found the
//! NIC's queue full, and none may come before an earlier one.

mod bed;
mod results;
mod source;

use super::tell_written;
use crate::commands::{seconds, stop_flag};
use anyhow::{Result, bail, ensure};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Options of the experiment.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each question costs the service so much work in registers (--work), so that what the NIC needs is little beside it.

One thread's peak is measured first, with one thread on duty and more questions than it can answer. The steps are parts of it.

A machine that takes its processors away for milliseconds now and then has a 99th percentile of its own in many a window. Where that is
so, --rounds does it all again and again: what is told of a window is the median of the same one in every round.

  simoom-bench experiment elastic --rounds 5
  simoom-bench experiment elastic --steps 0.3,1.5,0.3 --hold 3 --out /tmp      a quick look")]
pub(crate) struct Options {
    /// The threads' processors; default: all
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Loads in turn, in parts of one thread's peak
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "0.3,0.6,0.9,1.2,1.5,1.2,0.9,0.6,0.3,1.5,0.3"
    )]
    steps: Vec<f64>,
    /// How long each is held
    #[arg(long, value_name = "S", default_value = "6", value_parser = seconds)]
    hold: f64,
    /// How often all steps are gone through
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Work of the service for each question, in nanoseconds
    #[arg(long, value_name = "NS", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1_000..=1_000_000))]
    work: u32,
    /// Flows
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..=4096))]
    flows: u16,
    /// Write elastic.* and elastic-time.* there
    #[arg(long, value_name = "DIR", default_value = "docs/results")]
    out: PathBuf,
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(options.steps.iter().all(|step| (0.0..=16.0).contains(step)), "--steps: parts of the peak, 0 to 16");
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let cpus = if options.cpus.is_empty() { (0..processors).collect() } else { options.cpus.clone() };
    ensure!(cpus.len() > 1, "with one processor there is no thread to add; see --cpus");
    let stop = stop_flag()?;
    let mut rounds = Vec::new();
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        rounds.push(bed::run(options, &cpus, &|| stop.load(Ordering::Relaxed))?);
        if stop.load(Ordering::Relaxed) {
            bail!("stopped; nothing is written");
        }
    }
    for report in results::reports(options, &cpus, &rounds) {
        if report.name == "elastic" {
            println!("{}", report.table.markdown());
        }
        tell_written(&report.write(&options.out)?);
    }
    Ok(())
}
