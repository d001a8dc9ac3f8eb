//! `simoom-bench experiment batch`: the most frames that a cycle takes (`--batch`), as in IX (OSDI 2014), figure 6: throughput at saturation, and
//! how long answers take at loads below it. In the laboratory with `simoom echo` over AF_XDP; on the in-memory pipe with GETs among a
//! million items of the key-value store, where there is no kernel and no clock, and so throughput alone.

use super::{ANEW_MOST, Common, tell_written, until_answered};
use crate::commands::dns::Results;
use crate::commands::{rate, seconds};
use crate::found::{self, Found, Rounds};
use crate::grid;
use crate::pipe_kv::Gets;
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats::{self, Summary};
use anyhow::{Context as _, Result, ensure};
use lab::{Lab, Process};
use std::path::Path;
use std::time::Duration;

/// Options of `simoom-bench experiment batch`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each round takes each batch in turn. In the laboratory (two network namespaces, one veth pair; server on processor 0, load on processor 1)
`simoom echo --batch B` answers datagrams over AF_XDP at rates that grow until answers do not, then at parts of the most. On the in-memory
pipe, in this process on processor 1, the key-value store answers GETs on 512 connections. Writes NAME.csv, NAME.svg (throughput), NAME-2.svg
(99th percentiles by load) and NAME.md. Needs root.

  simoom-bench experiment batch
  simoom-bench experiment batch --rounds 1 --batches 1,64 --seconds 0.3 --loads 0.5 --items 10000 --out /tmp      a quick look")]
pub(crate) struct Options {
    /// Frames of a cycle, again for more
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,8,16,32,64", value_parser = clap::value_parser!(u16).range(1..=64))]
    batches: Vec<u16>,
    /// Loads, as parts of the most answers that the same batch gave in the same round
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0.1,0.25,0.5,0.75,0.9", value_parser = part)]
    loads: Vec<f64>,
    /// The lowest rate of the search for the most answers
    #[arg(long, value_name = "R", default_value = "150k", value_parser = rate)]
    from: f64,
    /// The highest
    #[arg(long, value_name = "R", default_value = "1.5M", value_parser = rate)]
    to: f64,
    /// How long each rate is sent, and each load three times as long
    #[arg(long, value_name = "S", default_value = "0.4", value_parser = seconds)]
    seconds: f64,
    /// Items of the store on the pipe
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=50_000_000))]
    items: u32,
    /// How often every batch is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// What the result files are called
    #[arg(long, value_name = "NAME", default_value = "batch")]
    name: String,
    /// common
    #[command(flatten)]
    common: Common,
}

/// A part of a whole.
fn part(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|part: &f64| *part > 0.0 && *part <= 1.0);
    value.ok_or_else(|| "a part above 0 and up to 1, such as 0.5".into())
}

const ADDRESS: &str = "198.18.0.1:7";
/// How long a server may take to come up, and a load to end.
const START: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(600);
/// GETs of a round on the pipe, and before it.
const GETS: u64 = 1_000_000;
/// A load is sent so many times as long as a rate of the search.
const LONGER: f64 = 3.0;

/// What an echo said at one load.
#[derive(Clone, Debug, Default)]
struct AtLoad {
    rate: Vec<f64>,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    lost_percent: Vec<f64>,
}

/// One batch's figures, a value a round.
#[derive(Clone, Debug, Default)]
struct Row {
    /// datagrams a second
    echo_peak: Vec<Found>,
    at_loads: Vec<AtLoad>,
    /// nanoseconds a GET
    get_ns: Vec<f64>,
    /// how often the grid or the loads were measured anew, since nothing came back at all, or of one load
    anew: usize,
}

impl Row {
    fn gets_per_s(&self) -> Vec<Found> {
        self.get_ns.iter().map(|ns| Found::Is(1e9 / ns)).collect()
    }
}

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    super::web::ensure_can_run(&["ip", "ethtool"])?;
    ensure!(!grid::rates(options.from, options.to).is_empty(), "--from is above --to");
    lab::interrupt_by(crate::commands::stop_flag()?);
    let simoom = options.common.simoom()?;
    let folder = tempfile::Builder::new().prefix("simoom-bench-").tempdir().context("no temporary folder")?;
    let gets = Gets::new(options.items)?;
    let empty = || Row { at_loads: vec![AtLoad::default(); options.loads.len()], ..Row::default() };
    let mut rows: Vec<Row> = options.batches.iter().map(|_| empty()).collect();
    for round in 1..=options.rounds {
        for (batch, row) in options.batches.iter().zip(&mut rows) {
            echo(options, &simoom, folder.path(), *batch, row).with_context(|| format!("echo, batch {batch}"))?;
            let ns = get(&gets, *batch).with_context(|| format!("GETs, batch {batch}"))?;
            row.get_ns.push(ns);
            let peak = row.echo_peak.last().copied().unwrap_or(Found::AtLeast(0.0));
            eprintln!("{round} batch {batch:>2}  echo {peak:>9}/s  GET {ns:>6.1} ns");
        }
    }
    let report = report(options, &rows);
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

/// A round of GETs on the pipe, on a thread of its own, so that no other is put on its processor.
fn get(gets: &Gets, batch: u16) -> Result<f64> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            crate::procs::pin(1 % processors)?;
            gets.round(batch.into(), [GETS / 4, GETS])
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A round of the echo: the most answers, then the loads.
fn echo(options: &Options, simoom: &Path, folder: &Path, batch: u16, row: &mut Row) -> Result<()> {
    let lab = Lab::new()?;
    let mut server = lab.server().command(simoom);
    server.args(["echo", "--listen", ADDRESS, "--interface", "vs", "--cpus", "0", "--batch", &batch.to_string()]);
    server.arg("--control").arg(folder.join("control"));
    let mut server = Process::spawn(server)?;
    server.wait_for("serving on ", START).context("the server does not come up")?;
    // attaching a program may have made the receive threads anew
    lab.pin();
    let rates = grid::rates(options.from, options.to);
    // where nothing came back, the generator's own receive thread had no processor: that says nothing of the server
    let search = || ask(&lab, &rates, &["--stop-past-peak", "--seconds", &options.seconds.to_string()]);
    let (found, anew) = until_answered(search, |found| found.capacity.peak().number() > 0.0)?;
    row.anew += anew;
    row.echo_peak.push(found.capacity.peak());
    let peak = found.capacity.peak().number();
    let loads: Vec<f64> = options.loads.iter().map(|part| (peak * part).max(1.0).round()).collect();
    let span = (options.seconds * LONGER).to_string();
    let ask = || {
        let runs = ask(&lab, &loads, &["--wait", "poll", "--seconds", &span])?.runs;
        ensure!(runs.len() == loads.len(), "{} loads were measured", runs.len());
        Ok(runs)
    };
    let (runs, anew) = until_answered(ask, |runs| runs.iter().all(|run| run.answered > 0))?;
    row.anew += anew;
    for (run, at) in runs.iter().zip(&mut row.at_loads) {
        ensure!(run.foreign == 0, "{} came back, and {} that nobody sent", run.answered, run.foreign);
        let (p50_us, p99_us) = run.window_us.unwrap_or((run.latency.p50_us, run.latency.p99_us));
        at.rate.push(run.sent_rate());
        at.p50_us.push(p50_us);
        at.p99_us.push(p99_us);
        at.lost_percent.push(run.lost as f64 * 100.0 / run.sent.max(1) as f64);
    }
    ensure!(server.ended().is_none(), "the server ended: {}", server.log().trim());
    Ok(())
}

/// Numbered datagrams at these rates, one after the other.
fn ask(lab: &Lab, rates: &[f64], options: &[&str]) -> Result<Results> {
    let rates = rates.iter().map(f64::to_string).collect::<Vec<_>>().join(",");
    let mut load = lab.client().command(std::env::current_exe().context("where this program lies")?);
    load.args(["dns", "--interface", "vc", "--cpu", "1", "--json", "--server", ADDRESS, "--names", "1000"]);
    load.args(["--any-answer", "--rate", &rates]).args(options);
    let mut load = Process::spawn(load)?;
    let status = load.wait(PATIENCE)?;
    ensure!(status.success(), "the load failed ({status}): {}", load.log().trim());
    super::web::json(&load.log())
}

fn report(options: &Options, rows: &[Row]) -> Report {
    let mut table = Table::new(&[
        "batch",
        "what",
        "load",
        "a second",
        "least",
        "greatest",
        "to the first batch",
        "p50 us",
        "p99 us",
        "lost %",
    ]);
    let first = rows.first().cloned().unwrap_or_default();
    for (batch, row) in options.batches.iter().zip(rows) {
        let most = |what: &str, found: &[Found], of_first: &[Found]| -> Option<Vec<Cell>> {
            let Rounds { median, least, greatest } = Rounds::of(found)?;
            let whole = [found, of_first].map(found::whole);
            let ratio =
                whole[0].as_deref().zip(whole[1].as_deref()).and_then(|(of, first)| stats::paired_ratio(of, first));
            Some(vec![
                Cell::Count((*batch).into()),
                Cell::text(what),
                Cell::text("most"),
                median.cell(0),
                least.cell(0),
                greatest.cell(0),
                Cell::number(ratio.map(|ratio| ratio.median), 2),
                Cell::Missing,
                Cell::Missing,
                Cell::Missing,
            ])
        };
        let echo = most("echo, AF_XDP", &row.echo_peak, &first.echo_peak);
        let gets = most("GET, pipe", &row.gets_per_s(), &first.gets_per_s());
        echo.into_iter().chain(gets).for_each(|cells| table.row(cells));
        for (load, at) in options.loads.iter().zip(&row.at_loads) {
            let Some(rate) = Summary::of(&at.rate) else { continue };
            table.row(vec![
                Cell::Count((*batch).into()),
                Cell::text("echo, AF_XDP"),
                Cell::text(load.to_string()),
                Cell::Number(rate.median, 0),
                Cell::Number(rate.least, 0),
                Cell::Number(rate.greatest, 0),
                Cell::Missing,
                Cell::number(stats::median(&at.p50_us), 1),
                Cell::number(stats::median(&at.p99_us), 1),
                Cell::number(stats::median(&at.lost_percent), 3),
            ]);
        }
    }
    Report {
        name: options.name.clone(),
        title: "Frames of a cycle: throughput, and latency below it".into(),
        method: method(options, rows.iter().map(|row| row.anew).sum()),
        table,
        charts: vec![throughput(options, rows), latency(options, rows)],
        machine: Machine::here(Peers::None),
    }
}

fn throughput(options: &Options, rows: &[Row]) -> Chart {
    let line = |name: &str, of: &dyn Fn(&Row) -> Vec<Found>| {
        let points = options.batches.iter().zip(rows).filter_map(|(batch, row)| {
            let Rounds { median, least, greatest } = Rounds::of(&of(row))?;
            Some(((f64::from(*batch), median.number()), (least.number(), greatest.number())))
        });
        Series::ranged(name, points)
    };
    Chart {
        title: "The most answers".into(),
        x: Axis::logarithmic("frames of a cycle, at most"),
        y: Axis::linear("answers/s"),
        series: vec![line("echo, AF_XDP", &|row| row.echo_peak.clone()), line("GET, pipe", &Row::gets_per_s)],
    }
}

fn latency(options: &Options, rows: &[Row]) -> Chart {
    let line = |(batch, row): (&u16, &Row)| {
        let points = row.at_loads.iter().filter_map(|at| {
            let p99 = Summary::of(&at.p99_us)?;
            Some(((stats::median(&at.rate)?, p99.median), (p99.least, p99.greatest)))
        });
        Series::ranged(format!("batch {batch}"), points)
    };
    Chart {
        title: "99th percentile of the echo".into(),
        x: Axis::linear("datagrams/s"),
        y: Axis::logarithmic("us"),
        series: options.batches.iter().zip(rows).map(line).collect(),
    }
}

fn method(options: &Options, anew: usize) -> String {
    format!(
        "*batch* is the most frames that a cycle of the dataplane takes (`--batch`); it never waits for more than are there. `echo, AF_XDP`: \
         `simoom echo` over AF_XDP in a network namespace, on processor 0, and `simoom-bench dns --any-answer` in another, on \
         processor 1, joined by a veth pair, each with its receive thread on its own processor. *most* is the most answers at any rate of a grid that grows \
         by 15%, {} s each, until three brought no more (`≥` where the generator, or the grid, went no further); the other loads are parts of that, {:.1} s each, by a generator that sleeps between datagrams. Where nothing \
         came back at any rate of the grid, or of one of the loads, the grid or all loads of that batch and round are measured anew, {ANEW_MOST} times at most: that was so {anew} times. Every \
         datagram is numbered, so each answer is matched and timed; percentiles are medians over windows of 100 ms. `GET, pipe`: stack \
         and key-value service over the in-memory pipe, {} items, 512 connections with one GET each, every value compared; only the server's \
         cycles are timed. There is no clock and no kernel in it, so it has no latencies. {} rounds in turn: medians, the least and the \
         greatest round beside them; *to the first batch* is the median over rounds of the row's figure divided by the first batch's.\n\n\
         What a larger batch saves in the laboratory are system calls, of which one sends all of a cycle's answers, and the locks and the \
         bookkeeping of rings; on the pipe it lets the cache misses of a burst overlap. (The paper: B = 1 to 16 is worth 29% \
         on the USR mix; above 16 little, and no latency is lost, since no batch is waited for.)",
        options.seconds,
        options.seconds * LONGER,
        options.items,
        options.rounds
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parsed;

    #[test]
    fn loads_are_parts() {
        assert_eq!((part("0.5"), part("1")), (Ok(0.5), Ok(1.0)));
        for wrong in ["", "0", "-0.1", "1.1", "nan", "half"] {
            assert!(part(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rows_are_compared_with_the_first_batch_and_loads_stand_below_their_most() {
        let words = ["batch", "--batches", "1,64", "--loads", "0.5,0.9"];
        let options = parsed::<Options>(words).unwrap();
        let at = |rate: f64| AtLoad {
            rate: vec![rate; 2],
            p50_us: vec![10.0, 20.0],
            p99_us: vec![100.0, 100.0],
            lost_percent: vec![0.0, 1.0],
        };
        let row = |factor: f64| Row {
            echo_peak: vec![Found::Is(100.0 * factor), Found::Is(200.0 * factor)],
            at_loads: vec![at(50.0 * factor), at(90.0 * factor)],
            get_ns: vec![500.0 / factor, 250.0 / factor],
            anew: 2,
        };
        let report = report(&options, &[row(1.0), row(2.0)]);
        let csv = report.table.csv();
        let lines: Vec<&str> = csv.lines().skip(1).collect();
        assert_eq!(lines.len(), 2 * (2 + 2));
        assert_eq!(lines[0], "1,\"echo, AF_XDP\",most,150,100,200,1.00,,,");
        assert_eq!(lines[1], "1,\"GET, pipe\",most,3000000,2000000,4000000,1.00,,,");
        assert_eq!(lines[2], "1,\"echo, AF_XDP\",0.5,50,50,50,,15.0,100.0,0.500");
        assert_eq!(lines[4], "64,\"echo, AF_XDP\",most,300,200,400,2.00,,,");
        assert_eq!(lines[7], "64,\"echo, AF_XDP\",0.9,180,180,180,,15.0,100.0,0.500");
        assert!(report.method.contains(" 4 times at most: that was so 4 times."), "{}", report.method);
        assert_eq!(report.charts[0].series.len(), 2);
        assert_eq!(report.charts[1].series.len(), 2);
    }
}
