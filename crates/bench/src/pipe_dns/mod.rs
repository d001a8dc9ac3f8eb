//! `simoom-bench pipe-dns`: nanoseconds, or instructions, a query in our stack and service, with no kernel in it.

mod harness;
#[cfg(test)]
mod tests;

use crate::commands::stop_flag;
use crate::pipe;
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats::Summary;
use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum as _;
use dns::Tables;
use harness::Harness;
pub(crate) use harness::tables;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a question's name is looked up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Keying {
    /// the name as it stands in the message
    Wire,
    /// the name, decompressed first
    Name,
}

/// How an answer gets into the frame that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Transmit {
    /// the received frame becomes the answer
    Inplace,
    /// the answer is made in a frame of ours
    Copy,
    /// finished answers are retained and copied whole
    Precopy,
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    names: u64,
    batch: usize,
    keying: Keying,
    transmit: Transmit,
}

/// Options of `simoom-bench pipe-dns`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Client and server are the two ends of an in-memory pipe in one thread. 512 questions for uniformly random names of a synthetic
zone are put into the pipe; the server's cycles over them (receive, validate with checksums, look up, answer with checksums,
transmit) are timed as one section; then the answers are taken out, matched, and one in 64 checked to the last byte. Making and checking
packets is not in the figure. A round's figure is the median of its sections, so that one in which the kernel took the processor
away does not count. MTU 1500, IPv4, one thread. --callgrind counts instructions in the same cycles, as the difference
of two runs of different length under valgrind, so that starting up is not counted either.

  simoom-bench pipe-dns --names 1000000 --cpu 1
  simoom-bench pipe-dns --sweep --out docs/results")]
pub(crate) struct Options {
    /// Names in the zone
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    names: u64,
    /// Frames a cycle, at most
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=64))]
    batch: u16,
    /// The table's key
    #[arg(long, value_name = "WORD", default_value = "wire")]
    keying: Keying,
    /// Where the answer is written
    #[arg(long, value_name = "WORD", default_value = "inplace")]
    transmit: Transmit,
    /// How often
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Questions a round
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    questions: u64,
    /// Run on this processor
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Instructions a query, by valgrind's callgrind
    #[arg(long)]
    callgrind: bool,
    /// All zone sizes, batches, keys and ways to write
    #[arg(long, conflicts_with_all = ["callgrind", "names", "batch", "keying", "transmit"])]
    sweep: bool,
    /// The largest zone of the sweep
    #[arg(long, value_name = "N", default_value_t = 1_000_000, requires = "sweep")]
    sweep_names: u64,
    /// Where --sweep writes
    #[arg(long, value_name = "DIR", default_value = "docs/results")]
    out: PathBuf,
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(cpu) = options.cpu {
        crate::procs::pin(cpu)?;
    }
    if options.callgrind {
        return callgrind(options);
    }
    if options.sweep {
        return sweep(options);
    }
    let setup = Setup {
        names: options.names,
        batch: usize::from(options.batch),
        keying: options.keying,
        transmit: options.transmit,
    };
    let summary = measure(&setup, harness::tables(options.names)?, options)?;
    println!(
        "{} names, batch {}, {:?} keys, {:?}: {:.1} ns a query (least {:.1}, greatest {:.1} of {} rounds)",
        setup.names,
        setup.batch,
        setup.keying,
        setup.transmit,
        summary.median,
        summary.least,
        summary.greatest,
        summary.rounds
    );
    Ok(())
}

/// Questions before the first round; whole rings, so that callgrind's two runs have the same.
const WARM_UP: u64 = 64 * harness::RING_FRAMES as u64;

fn measure(setup: &Setup, tables: Arc<Tables>, options: &Options) -> Result<Summary> {
    let mut harness = Harness::new(setup, tables)?;
    // caches, branch predictors and page tables as in a server that runs
    harness.run(WARM_UP)?;
    let mut rounds = Vec::with_capacity(usize::from(options.rounds));
    for _ in 0..options.rounds {
        rounds.push(harness.run(options.questions)?);
    }
    Summary::of(&rounds).context("no round was run")
}

const BATCHES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Zone sizes that the sweep by batch uses: one that stays in the cache and one that does not.
const BATCH_ZONES: [u64; 2] = [10_000, 1_000_000];

fn sweep(options: &Options) -> Result<()> {
    let stop = stop_flag()?;
    let mut table = Table::new(&["names", "batch", "key", "answer", "ns a query", "least", "greatest"]);
    let (mut by_size, mut by_batch) = (Vec::<Series>::new(), Vec::<Series>::new());
    let sizes: Vec<u64> = (0..=6).map(|power| 10u64.pow(power)).filter(|names| *names <= options.sweep_names).collect();
    ensure!(!sizes.is_empty(), "--sweep-names is too small");
    let mut found: Vec<(Setup, Summary)> = Vec::new();
    for &names in &sizes {
        let tables = harness::tables(names)?;
        for setup in setups(names) {
            if stop.load(Ordering::Relaxed) {
                bail!("stopped; nothing is written");
            }
            let summary = measure(&setup, tables.clone(), options)?;
            eprintln!("{setup:?}: {:.1} ns", summary.median);
            table.row(row(&setup, &summary));
            found.push((setup, summary));
        }
    }
    for keying in [Keying::Wire, Keying::Name] {
        for &transmit in Transmit::value_variants() {
            let same = |setup: &Setup| setup.keying == keying && setup.transmit == transmit;
            let name = format!("{} keys, {}", word(keying), word(transmit));
            by_size.push(series(&name, found.iter().filter(|(setup, _)| same(setup) && setup.batch == 64), |setup| {
                setup.names
            }));
            for names in BATCH_ZONES.iter().filter(|names| sizes.contains(names)) {
                let line = found.iter().filter(|(setup, _)| same(setup) && setup.names == *names);
                by_batch.push(series(&format!("{name}, {names} names"), line, |setup| setup.batch as u64));
            }
        }
    }
    let method = format!(
        "Nanoseconds a query in the stack and the service over the in-memory pipe, one thread, MTU 1500, checksums made and \
         verified; the generator's own time excluded. Medians of {} rounds of {} questions for uniformly \
         random names; a round is the median of its sections of 512 questions.",
        options.rounds, options.questions
    );
    let machine = Machine::here(Peers::None);
    let report = |name: &str, title: &str, axis: &str, series| Report {
        name: name.into(),
        title: title.into(),
        method: method.clone(),
        table: table.clone(),
        charts: vec![Chart { title: title.into(), x: Axis::logarithmic(axis), y: Axis::linear("ns a query"), series }],
        machine: machine.clone(),
    };
    let sized =
        report("pipe-dns-names", "The stack and the DNS service by zone size, batch 64", "names in the zone", by_size);
    let batched =
        report("pipe-dns-batch", "The stack and the DNS service by batch", "frames a cycle, at most", by_batch);
    print!("{}", table.markdown());
    for report in [sized, batched] {
        for path in report.write(&options.out)? {
            eprintln!("wrote {}", path.display());
        }
    }
    Ok(())
}

/// Every key and way to write at batch 64, and for two sizes at every batch.
fn setups(names: u64) -> Vec<Setup> {
    let batches: &[usize] = if BATCH_ZONES.contains(&names) { &BATCHES } else { &BATCHES[6..] };
    let mut setups = Vec::new();
    for keying in [Keying::Wire, Keying::Name] {
        for &transmit in Transmit::value_variants() {
            setups.extend(batches.iter().map(|&batch| Setup { names, batch, keying, transmit }));
        }
    }
    setups
}

fn word(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn row(setup: &Setup, summary: &Summary) -> Vec<Cell> {
    vec![
        Cell::Count(setup.names),
        Cell::Count(setup.batch as u64),
        Cell::text(word(setup.keying)),
        Cell::text(word(setup.transmit)),
        Cell::Number(summary.median, 1),
        Cell::Number(summary.least, 1),
        Cell::Number(summary.greatest, 1),
    ]
}

fn series<'a>(name: &str, found: impl Iterator<Item = &'a (Setup, Summary)>, x: impl Fn(&Setup) -> u64) -> Series {
    let (mut points, mut spread) = (Vec::new(), Vec::new());
    for (setup, summary) in found {
        points.push((x(setup) as f64, summary.median));
        spread.push((summary.least, summary.greatest));
    }
    Series::new(name, points).with_spread(spread)
}

/// Lengths of the two runs under callgrind, in questions: whole rings.
const CALLGRIND_QUESTIONS: [u64; 2] = [10 * harness::RING_FRAMES as u64, 30 * harness::RING_FRAMES as u64];

fn callgrind(options: &Options) -> Result<()> {
    let [short, long] = CALLGRIND_QUESTIONS;
    let (few, many) = (instructions(options, short)?, instructions(options, long)?);
    let a_query = many.saturating_sub(few) as f64 / (long - short) as f64;
    println!(
        "{} names, batch {}, {:?} keys, {:?}: {a_query:.0} instructions a query",
        options.names, options.batch, options.keying, options.transmit
    );
    Ok(())
}

/// Instructions in the server's cycles of one round of `questions`.
fn instructions(options: &Options, questions: u64) -> Result<u64> {
    let (questions, names, batch) = (questions.to_string(), options.names.to_string(), options.batch.to_string());
    let (keying, transmit) = (word(options.keying), word(options.transmit));
    pipe::instructions([
        "pipe-dns",
        "--rounds",
        "1",
        "--questions",
        &questions,
        "--names",
        &names,
        "--batch",
        &batch,
        "--keying",
        &keying,
        "--transmit",
        &transmit,
    ])
}
