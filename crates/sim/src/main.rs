//! `sim`: goes through seeds of the simulated world, on all processors, or through one again.

#![forbid(unsafe_code)]

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, ValueEnum};
use sim::{Show, own, smoltcp};
use std::ops::Range;
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// TCP against itself or smoltcp over links that lose, double, reorder, corrupt, delay and change their MTU.
#[derive(Debug, Parser)]
#[command(
    name = "sim",
    after_help = "\
Every byte must arrive, every connection end and nothing be left behind. A seed that fails is told with the command that
runs it again. Exit status 1 when one failed.

  cargo run --release -p sim -- --seeds 0..10000
  cargo run --release -p sim -- --seeds 0..10000 --moves
  cargo run --release -p sim -- --against smoltcp --seed 17 --frames"
)]
struct Options {
    /// Who is at the other end
    #[arg(long, value_name = "WORD", default_value = "self")]
    against: Against,
    /// Which seeds
    #[arg(long, value_name = "FROM..TO", default_value = "0..10000", value_parser = seeds)]
    seeds: Range<u64>,
    /// One seed alone, with its counters
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// With --seed: show every frame
    #[arg(long, requires = "seed")]
    frames: bool,
    /// The server has two stacks, as two threads would, between which its connection goes back and forth; every frame must be the
    /// one, and come at the time, as without
    #[arg(long)]
    moves: bool,
    /// Threads; default: as many as processors
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Against {
    #[value(name = "self")]
    Own,
    Smoltcp,
}

impl Against {
    fn word(self) -> &'static str {
        match self {
            Against::Own => "self",
            Against::Smoltcp => "smoltcp",
        }
    }

    fn run(self, seed: u64, moves: bool, show: Show) {
        match self {
            Against::Own if moves => drop(own::run_moving(seed, show, own::moves_below(seed))),
            Against::Own => drop(own::run(seed, show)),
            Against::Smoltcp => drop(smoltcp::run(seed, show)),
        }
    }
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let parts = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    parts.filter(|range: &Range<u64>| !range.is_empty()).ok_or_else(|| "seeds such as 0..10000".into())
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.moves && options.against != Against::Own {
        Options::command().error(ErrorKind::ArgumentConflict, "--moves is for --against self").exit();
    }
    if let Some(seed) = options.seed {
        options.against.run(seed, options.moves, Show { counters: true, frames: options.frames });
        println!("seed {seed} went well");
        return ExitCode::SUCCESS;
    }
    let next = AtomicU64::new(options.seeds.start);
    let failed = Mutex::new(Vec::new());
    let threads =
        options.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= options.seeds.end {
                        return;
                    }
                    if catch_unwind(|| options.against.run(seed, options.moves, Show::default())).is_err() {
                        let (word, moves) = (options.against.word(), if options.moves { " --moves" } else { "" });
                        eprintln!("to replay: cargo run --release -p sim -- --against {word}{moves} --seed {seed}");
                        failed.lock().expect("nobody panics with it").push(seed);
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().expect("nobody panics with it");
    failed.sort_unstable();
    let count = options.seeds.end - options.seeds.start;
    println!("{count} seeds against {}: {} failed {failed:?}", options.against.word(), failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
        assert_eq!(seeds("3..9"), Ok(3..9));
        for wrong in ["", "3", "9..3", "3..3", "a..b", "-1..2"] {
            assert!(seeds(wrong).is_err(), "{wrong}");
        }
    }
}
