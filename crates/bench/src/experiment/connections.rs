//! `simoom-bench experiment connections`: round trips of 64 octets as the number of established connections grows, as in IX (OSDI 2014),
//! figure 4, and the memory that a connection takes: in the laboratory, ours over AF_XDP and on kernel sockets against a plain loop over
//! epoll; and our stack alone on the in-memory pipe, up to a million.

use super::messages::{self, Engine};
use super::{tell_written, told_anew, until_answered};
use crate::commands::seconds;
use crate::messages::Outcome;
use crate::procs;
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats::{self, Summary};
use anyhow::{Context as _, Result, ensure};
use lab::Lab;
use serde::Deserialize;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Options of `simoom-bench experiment connections`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each server is started afresh for each number of connections, in a laboratory of its own (two network namespaces, one veth pair; server on
processor 0, load on processor 1). All connections are established from 32 addresses; then --under-way messages of 64 octets are under way
at a time, and the connections have their turns in random order. A number that cannot be established is told with the reason, and larger ones
are left out. On the pipe: `simoom-bench pipe-tcp ping-pong` and `idle`. Writes NAME.csv, NAME.svg and NAME.md. Needs root.

  simoom-bench experiment connections
  simoom-bench experiment connections --rounds 1 --counts 10,1000 --pipe 1000 --seconds 0.2 --out /tmp      a quick look")]
pub(crate) struct Options {
    /// Connections in the laboratory, again for more
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "10,100,1000,10000,100000,250000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    counts: Vec<u32>,
    /// Connections on the in-memory pipe, again for more
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "10,100,1000,10000,100000,250000,1000000", value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pipe: Vec<u32>,
    /// Messages under way at one time
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    under_way: u32,
    /// How long each number is measured
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    seconds: f64,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// What the result files are called
    #[arg(long, value_name = "NAME", default_value = "connections")]
    name: String,
    /// Where results are written
    #[arg(long, value_name = "DIR", default_value = "docs/results")]
    out: PathBuf,
}

/// The last is the yardstick.
const ENGINES: [Engine; 3] = [Engine::AfXdp, Engine::Sockets, Engine::Epoll];
const PIPE: &str = "stack alone, pipe";
/// With fewer connections what a server has for all of them would be told as theirs.
const TELLING: u32 = 10_000;
/// Places at the server beside those of the connections.
const SPARE: u32 = 1024;
/// How long it may take until all connections stand.
const START: Duration = Duration::from_secs(120);

/// Figures of one server with so many connections, a value a round.
#[derive(Clone, Debug, Default)]
struct Row {
    messages_per_s: Vec<f64>,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    bytes: Vec<f64>,
    /// how often it was measured anew, since nothing had come back
    anew: usize,
    /// why there is nothing
    limit: Option<String>,
}

/// A server's rows, by the numbers of connections.
struct Line {
    name: &'static str,
    counts: Vec<u32>,
    rows: Vec<Row>,
}

impl Line {
    fn new(name: &'static str, counts: &[u32]) -> Line {
        let mut counts = counts.to_vec();
        counts.sort_unstable();
        counts.dedup();
        Line { name, rows: vec![Row::default(); counts.len()], counts }
    }

    /// Notes what ended the numbers at the place `at`, which leaves out those above. What the first round had is no limit: an error.
    fn end_at(&mut self, at: usize, round: u16, limit: &str) -> Result<()> {
        ensure!(round == 1, "{}: {} connections, which stood in a round before: {limit}", self.name, self.counts[at]);
        self.rows[at].limit = Some(limit.to_owned());
        self.rows.truncate(at + 1);
        self.counts.truncate(at + 1);
        Ok(())
    }
}

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    super::web::ensure_can_run(&["ip", "ethtool"])?;
    lab::interrupt_by(crate::commands::stop_flag()?);
    let mut lines: Vec<Line> = ENGINES.iter().map(|engine| Line::new(engine.name(), &options.counts)).collect();
    for round in 1..=options.rounds {
        for (engine, line) in ENGINES.iter().zip(&mut lines) {
            in_the_laboratory(options, *engine, round, line)?;
        }
    }
    let mut pipe = Line::new(PIPE, &options.pipe);
    for (count, row) in pipe.counts.iter().zip(&mut pipe.rows) {
        on_the_pipe(options, *count, row).with_context(|| format!("{count} connections on the pipe"))?;
    }
    lines.push(pipe);
    let report = report(options, &lines);
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.out)?);
    Ok(())
}

/// A round of one server: every number of connections that can be established.
fn in_the_laboratory(options: &Options, engine: Engine, round: u16, line: &mut Line) -> Result<()> {
    for at in 0..line.counts.len() {
        let count = line.counts[at];
        if line.rows[at].limit.is_some() {
            break;
        }
        let answered = |measured: &Measured| measured.as_ref().map_or(true, |(run, _)| run.answered_in_span > 0);
        let (measured, anew) = until_answered(|| measure(options, engine, count), answered)?;
        match measured {
            Ok((run, bytes)) => {
                let row = &mut line.rows[at];
                row.anew += anew;
                row.messages_per_s.push(run.messages_per_s());
                row.p50_us.push(run.latency.p50_us);
                row.p99_us.push(run.latency.p99_us);
                row.bytes.extend(bytes);
                eprintln!(
                    "{round} {:<16} {count:>7} connections  {:>9.0} messages/s  p99 {:>8.1} us{}",
                    engine.name(),
                    run.messages_per_s(),
                    run.latency.p99_us,
                    bytes.map_or_else(String::new, |bytes| format!("  {bytes:>6.0} bytes each"))
                );
            }
            Err(limit) => {
                eprintln!("{round} {:<16} {count:>7} connections  {limit}", engine.name());
                line.end_at(at, round, &limit)?;
                break;
            }
        }
    }
    Ok(())
}

/// What came of a load and the bytes of each connection, or why so many cannot be established.
type Measured = Result<(Outcome, Option<f64>), String>;

/// One server with so many connections.
fn measure(options: &Options, engine: Engine, count: u32) -> Result<Measured> {
    let places = (count + SPARE).to_string();
    let mut served = match messages::serve(Lab::new()?, engine, &["--connections", &places]) {
        Ok(served) => served,
        Err(error) => return limit(&error),
    };
    // attaching a program may have made the receive threads anew
    served.lab().pin();
    let before = memory_bytes(served.pid()?)?;
    let (connections, under_way) = (count.to_string(), options.under_way.to_string());
    let span = options.seconds.to_string();
    let words = ["--connections", &connections, "--under-way", &under_way, "--seconds", &span, "--bytes", "64"];
    let mut load = served.start_load(&words)?;
    if let Err(error) = load.wait_for("connections stand", START) {
        return limit(&error);
    }
    let after = memory_bytes(served.pid()?)?;
    let bytes = (count >= TELLING).then(|| after.saturating_sub(before) as f64 / f64::from(count));
    let run = served.finish(load)?.into_iter().next().context("the load measured nothing")?;
    Ok(Ok((run, bytes)))
}

/// So many cannot be established, for this reason; unless the wait for them was interrupted, which says nothing of the server.
fn limit(error: &anyhow::Error) -> Result<Measured> {
    lab::uninterrupted()?;
    Ok(Err(one_line(error)))
}

/// An error's last line: what the program said itself.
fn one_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
}

/// What a server takes: its own memory, and the kernel's slabs, where its sockets are.
fn memory_bytes(pid: u32) -> Result<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    Ok(procs::resident_bytes(pid)? + slab_bytes(&meminfo).context("no Slab in /proc/meminfo")?)
}

fn slab_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("Slab:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// A figure of `simoom-bench pipe-tcp --json`.
#[derive(Debug, Deserialize)]
struct Told {
    unit: String,
    summary: Summary,
}

/// Our stack alone, each time in a process of its own, whose memory is nobody else's.
fn on_the_pipe(options: &Options, count: u32, row: &mut Row) -> Result<()> {
    let (connections, rounds) = (count.to_string(), options.rounds.to_string());
    let cpu = if std::thread::available_parallelism().map_or(1, usize::from) > 1 { "1" } else { "0" };
    let words = ["ping-pong", "--acknowledge", "--connections", &connections, "--rounds", &rounds, "--cpu", cpu];
    let told = pipe_tcp(&words)?;
    let ns = find(&told, "ns a round trip")?;
    row.messages_per_s = [ns.median, ns.least, ns.greatest].map(|ns| 1e9 / ns).to_vec();
    if count >= TELLING {
        let told = pipe_tcp(&["idle", "--connections", &connections])?;
        row.bytes.push(find(&told, "bytes a connection, everything counted")?.median);
    }
    eprintln!("  {PIPE} {count:>7} connections  {:>9.0} messages/s", row.messages_per_s[0]);
    Ok(())
}

fn pipe_tcp(words: &[&str]) -> Result<Vec<Told>> {
    // it waits for no process of the laboratory, where it would hear of it
    lab::uninterrupted()?;
    let own = std::env::current_exe().context("where this program lies")?;
    let done = Command::new(own).args(["pipe-tcp", "--json"]).args(words).output().context("cannot run pipe-tcp")?;
    let error = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "pipe-tcp failed ({}): {}", done.status, error.trim());
    let text = String::from_utf8_lossy(&done.stdout);
    text.lines().map(|line| serde_json::from_str(line).with_context(|| format!("pipe-tcp's figures: {line}"))).collect()
}

fn find(told: &[Told], unit: &str) -> Result<Summary> {
    let figure = told.iter().find(|figure| figure.unit == unit);
    figure.map(|figure| figure.summary).with_context(|| format!("pipe-tcp tells no {unit}"))
}

fn report(options: &Options, lines: &[Line]) -> Report {
    let mut table = Table::new(&[
        "server",
        "connections",
        "messages/s",
        "least",
        "greatest",
        "of its most, %",
        "p50 us",
        "p99 us",
        "bytes a connection",
        "ended by",
    ]);
    for line in lines {
        let rate = |row: &Row| stats::median(&row.messages_per_s);
        let most = line.rows.iter().filter_map(rate).fold(0.0, f64::max);
        for (count, row) in line.counts.iter().zip(&line.rows) {
            let summary = Summary::of(&row.messages_per_s);
            let number = |of: fn(Summary) -> f64| Cell::number(summary.map(of), 0);
            table.row(vec![
                Cell::text(line.name),
                Cell::Count((*count).into()),
                number(|rate| rate.median),
                number(|rate| rate.least),
                number(|rate| rate.greatest),
                Cell::number(rate(row).map(|rate| rate * 100.0 / most), 0),
                Cell::number(stats::median(&row.p50_us), 1),
                Cell::number(stats::median(&row.p99_us), 1),
                Cell::number(stats::median(&row.bytes), 0),
                row.limit.as_ref().map_or(Cell::Missing, Cell::text),
            ]);
        }
    }
    let series = |line: &Line| {
        let points = line.counts.iter().zip(&line.rows).filter_map(|(count, row)| {
            let Summary { median, least, greatest, .. } = Summary::of(&row.messages_per_s)?;
            Some(((f64::from(*count), median), (least, greatest)))
        });
        Series::ranged(line.name, points)
    };
    let chart = Chart {
        title: "Round trips of 64 bytes".into(),
        x: Axis::logarithmic("established connections"),
        y: Axis::linear("messages/s"),
        series: lines.iter().map(series).collect(),
    };
    Report {
        name: options.name.clone(),
        title: "Round trips by established connections, and the memory of each".into(),
        method: method(options) + &told_anew(lines.iter().flat_map(|line| &line.rows).map(|row| row.anew).sum()),
        table,
        charts: vec![chart],
        machine: Machine::here(Peers::None),
    }
}

fn method(options: &Options) -> String {
    format!(
        "All connections are established, then messages of 64 octets go there and back for {} s, {} under way at a time on as many connections, which \
         have their turns in one random order, so each is used as often as any other. {} rounds in turn, a server afresh for each number: \
         medians, the least and the greatest round beside them; *of its most* is the row's figure by the greatest of the same server. Each message's \
         head is compared at both ends, and all of one in 16. Memory is what the server's process and the kernel's slabs (of the whole \
         machine: sockets are there) grew by until all connections stood, told from {TELLING} on.\n\n\
         `simoom, AF_XDP`, `simoom, sockets` and `epoll` (a plain level-triggered loop) run on processor 0 of the laboratory; the load is our own \
         stack over AF_XDP on processor 1, from 32 addresses, which has as many connections as the server, on the same caches and \
         beside its own receive thread: what it loses as they grow is in every server's figure. `{PIPE}` is `simoom-bench pipe-tcp ping-pong`: stack and a small \
         service in one thread, the server's cycles alone timed, 512 requests waiting at a time, each answer acknowledged by itself, nothing of a kernel in it, least and \
         greatest of its rounds; its memory is that of `pipe-tcp idle`, everything counted. A number that could not be established stands with what ended it. (The \
         paper: 250,000 connections have 47% of the peak, by cache misses.)",
        options.seconds, options.under_way, options.rounds
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parsed;

    #[test]
    fn slabs_are_read() {
        let meminfo = "MemTotal:       24689520 kB\nSlab:             123456 kB\nSReclaimable:      1 kB\n";
        assert_eq!(slab_bytes(meminfo), Some(123_456 * 1024));
        assert_eq!(slab_bytes("MemTotal: 1 kB\n"), None);
        let own = memory_bytes(std::process::id()).unwrap();
        assert!(own > procs::resident_bytes(std::process::id()).unwrap() / 2);
    }

    #[test]
    fn a_figure_of_the_pipe_is_found_by_its_unit() {
        let line = r#"{"what":"x","unit":"ns a round trip","decimals":1,"summary":{"median":200.0,"least":190.0,"greatest":250.0,"rounds":3},"mean":null,"asked":null}"#;
        let told = [serde_json::from_str::<Told>(line).unwrap()];
        assert_eq!(find(&told, "ns a round trip").unwrap().median, 200.0);
        assert!(find(&told, "MiB resident").is_err());
    }

    #[test]
    fn a_number_that_cannot_be_had_is_told_and_larger_ones_are_left_out() {
        let options = parsed::<Options>(["x", "--counts", "100000,10,1000"]).unwrap();
        let mut line = Line::new("epoll", &options.counts);
        assert_eq!(line.counts, [10, 1000, 100_000]);
        line.rows[0].messages_per_s = vec![100.0, 300.0];
        line.end_at(1, 1, "no more files").unwrap();
        let error = line.end_at(0, 2, "no more files").unwrap_err().to_string();
        assert_eq!(error, "epoll: 10 connections, which stood in a round before: no more files");
        let mut other = Line::new("simoom, AF_XDP", &[10, 20_000]);
        for (row, rates) in other.rows.iter_mut().zip([[400.0, 400.0], [100.0, 300.0]]) {
            row.messages_per_s = rates.to_vec();
            row.p99_us = vec![50.0];
            row.bytes = vec![512.0];
        }
        let report = report(&options, &[line, other]);
        let csv = report.table.csv();
        let lines: Vec<&str> = csv.lines().skip(1).collect();
        assert_eq!(lines[0], "epoll,10,200,100,300,100,,,,");
        assert_eq!(lines[1], "epoll,1000,,,,,,,,no more files");
        assert_eq!(lines[3], "\"simoom, AF_XDP\",20000,200,100,300,50,,50.0,512,");
        assert_eq!(lines.len(), 4);
        let error = anyhow::anyhow!("first\n  second line \n\n").context("outer");
        assert_eq!(one_line(&error), "second line");
    }
}
