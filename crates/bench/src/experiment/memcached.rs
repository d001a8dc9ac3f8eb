//! `simoom-bench experiment memcached-usr` and `memcached-etc`: the most requests a second with a bound on the 99th percentile by window, as in Belay and
//! others, IX (OSDI 2014), section 5.4: ours over AF_XDP and on kernel sockets against memcached, by connections; and the frames that a
//! reflector sends back, which no server on the same port exceeds.

use super::bed::{self, Generator};
use super::subject::Subject;
use super::web::{Bed, START, Server, json, server};
use super::{Common, plain_zone, tell_written};
use crate::commands::kv::{Results, STORED_MISSES};
use crate::commands::{rate, seconds};
use crate::found::{self, Found, Rounds};
use crate::grid;
use crate::memcache::{Bound, DOUBTS, Mix, Outcome, TRIES, WINDOWS_HELD, WINDOWS_LEAST};
use crate::pauses::lost_windows;
use crate::report::{Cell, Machine, Peers, Report, Table};
use crate::stats::{self, Summary};
use anyhow::{Context as _, Result, ensure};
use lab::{Lab, Process};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Options of `simoom-bench experiment memcached-usr` and `memcached-etc`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each round starts each server in a laboratory of its own (two network namespaces, one veth pair; server on processor 0, load on
processor 1), stores all records, and searches for each number of connections the highest rate of a Poisson process at which four further
connections, which ask seldom, have a 99th percentile of at most --p99 microseconds in nine of ten windows of 100 ms that the machine leaves alone
(`simoom-bench kv --p99`). How many it takes from everybody, since a virtual machine's processors are taken away now and then, is measured before each
search, while nothing is asked. Then the reflector's peak is measured with datagrams (`simoom-bench reflect`). Writes NAME.csv and NAME.md. Needs root, and memcached.

  simoom-bench experiment memcached-usr
  simoom-bench experiment memcached-etc --rounds 1 --seconds 1 --records 100000 --out /tmp      a quick look")]
pub(crate) struct Options {
    /// Connections, again for more
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64,1476", value_parser = clap::value_parser!(u32).range(1..=50_000))]
    connections: Vec<u32>,
    /// Requests under way on each, at most
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    depth: u32,
    /// Records
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    records: u32,
    /// The bound on the 99th percentile, in microseconds
    #[arg(long, value_name = "US", default_value = "500", value_parser = rate)]
    p99: f64,
    /// Where searches begin
    #[arg(long, value_name = "R", default_value = "100k", value_parser = rate)]
    from: f64,
    /// How long each rate is asked
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    seconds: f64,
    /// How often every server is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Leave ours on kernel sockets out
    #[arg(long)]
    no_sockets: bool,
    /// common
    #[command(flatten)]
    common: Common,
}

pub(super) const ADDRESS: &str = "198.18.0.1:11211";
/// Addresses that the kernel of the client's host does not have.
const OWN_ADDRESSES: &str = "198.18.0.3-198.18.0.34";
pub(super) const MEMCACHED: &str = "memcached";
const REFLECTOR: &str = "reflector";
/// How it is started: one thread, on the address of the server's host.
pub(super) const MEMCACHED_COMMAND: &str = "memcached -u root -l 198.18.0.1 -p 11211 -U 0 -t 1 -m 2048 -c 8192";
/// What the project asks of itself (issue 5, "What it must show", 2): the lesser of these.
const BESIDE_MEMCACHED: f64 = 2.0;
const BESIDE_REFLECTOR: f64 = 0.85;
/// How long it is seen how many windows the machine takes.
const WITNESSED: Duration = Duration::from_secs(5);
/// The grid of the reflector's rates.
const REFLECTED: [f64; 2] = [200_000.0, 1_200_000.0];

fn servers(options: &Options) -> Vec<Server> {
    let ours = "{simoom} kv --listen 198.18.0.1:11211 --cpus 0 --memory 2G --control {run}/control";
    let make = |text: String| server(&text).expect("a name and a command");
    let mut servers = vec![make(format!("simoom={ours} --interface vs"))];
    if !options.no_sockets {
        servers.push(make(format!("simoom, sockets={ours} --backend sockets")));
    }
    servers.push(make(format!("{MEMCACHED}={MEMCACHED_COMMAND}")));
    servers
}

/// One server's rounds with so many connections.
#[derive(Clone, Debug, Default)]
struct Row {
    requests_per_s: Vec<f64>,
    p99_us: Vec<f64>,
    /// the share of windows that kept to the bound
    windows_held: Vec<f64>,
    whole_p99_us: Vec<f64>,
    /// the share of windows that the machine took just before
    lost: Vec<f64>,
    /// of every step of every search, those that did not hold among them
    failed: u64,
    misses: u64,
}

impl Row {
    /// Takes in a search, whose best run comes first.
    fn add(&mut self, runs: &[Outcome], p99_us: f64, lost: f64) -> Result<()> {
        let best = runs.first().context("the load measured nothing")?;
        // a search that held nothing has no figure but nothing
        self.requests_per_s.push(if best.holds(Bound::beside(p99_us, lost)) { best.answered_rate() } else { 0.0 });
        self.p99_us.push(best.p99_us());
        self.windows_held.extend(best.windows_held(p99_us));
        self.whole_p99_us.push(best.whole_p99_us());
        self.lost.push(lost);
        self.failed += runs.iter().map(Outcome::failed).sum::<u64>();
        self.misses += runs.iter().map(|run| run.misses).sum::<u64>();
        Ok(())
    }
}

/// Runs it.
pub(super) fn run(mix: Mix, options: &Options) -> Result<()> {
    let servers = servers(options);
    let bed = Bed::new(&options.common, &servers, "")?;
    super::web::ensure_can_run(&[MEMCACHED])?;
    let reflecting = bed::Bed::new(plain_zone(1000), &options.common.simoom()?, Generator::Own)?;
    let mut rows = vec![vec![Row::default(); options.connections.len()]; servers.len()];
    let mut reflected = Vec::new();
    for round in 1..=options.rounds {
        for (server, rows) in servers.iter().zip(&mut rows) {
            measure(&bed, mix, options, server, round, rows)?;
        }
        let mut served = reflecting.serve(&Subject::Reflector)?;
        let peak = served.capacity(&grid::rates(REFLECTED[0], REFLECTED[1]), options.seconds.min(1.0))?.peak();
        eprintln!("{round} {REFLECTOR:<16} {peak:>9} frames/s");
        reflected.push(peak);
    }
    let report = report(mix, options, &servers, &rows, &reflected);
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

/// One server's round: every number of connections.
fn measure(bed: &Bed, mix: Mix, options: &Options, server: &Server, round: u16, rows: &mut [Row]) -> Result<()> {
    let lab = Lab::new()?;
    let mut process = bed.start(server, &lab)?;
    let name = &server.name;
    if server.words.iter().any(|word| word == "{simoom}") {
        process.wait_for("serving on ", START).with_context(|| format!("{name} does not come up"))?;
    }
    process.wait_until(|| lab.client().inside(answers), START).with_context(|| format!("{name} does not come up"))?;
    // attaching a program may have made the receive threads anew
    lab.pin();
    for (at, (connections, row)) in options.connections.iter().zip(rows).enumerate() {
        let lost = lost_windows(&[0, 1], WITNESSED, Duration::from_secs_f64(options.p99 / 1e6))?;
        let windows = Bound::beside(options.p99, lost).windows;
        let mut load = Process::spawn(command(&lab, mix, options, *connections, windows, at == 0)?)?;
        let status = load.wait(Duration::from_secs(3600))?;
        ensure!(status.success(), "the load on {name} failed ({status}): {}", load.log().trim());
        ensure!(process.ended().is_none(), "{name} ended: {}", process.log().trim());
        row.add(&json::<Results>(&load.log())?.runs, options.p99, lost)?;
        let last = |of: &[f64]| of.last().copied().unwrap_or_default();
        eprintln!(
            "{round} {name:<16} {connections:>5} connections  {:>9.0} requests/s  p99 {:.0} us by window, kept by {:.0}% of them where the machine takes {:.0}%, {:.0} us of all",
            last(&row.requests_per_s),
            last(&row.p99_us),
            last(&row.windows_held) * 100.0,
            lost * 100.0,
            last(&row.whole_p99_us)
        );
    }
    Ok(())
}

fn command(
    lab: &Lab,
    mix: Mix,
    options: &Options,
    connections: u32,
    windows: f64,
    stores: bool,
) -> Result<std::process::Command> {
    let mut command = load(lab, mix, options.records, [connections, options.depth])?;
    command.args(["--seconds", &options.seconds.to_string(), "--rate", &options.from.to_string()]);
    // what the first of the searches stored, the others find
    command.args(["--p99", &options.p99.to_string(), "--windows", &windows.to_string()]);
    command.args(["--misses", &STORED_MISSES.to_string()]);
    command.args(stores.then_some("--store"));
    Ok(command)
}

/// Our load of a mix with so many connections, and requests under way on each, from processor 1 of the client's host.
pub(super) fn load(lab: &Lab, mix: Mix, records: u32, [connections, depth]: [u32; 2]) -> Result<std::process::Command> {
    let mut command = lab.client().command("taskset");
    command.args(["-c", "1"]).arg(std::env::current_exe().context("where this program lies")?);
    command.args(["kv", "--interface", "vc", "--address", OWN_ADDRESSES, "--server", ADDRESS, "--json"]);
    command.args(["--mix", mix.word(), "--records", &records.to_string()]);
    command.args(["--connections", &connections.to_string(), "--depth", &depth.to_string()]);
    Ok(command)
}

/// Whether the server tells its version, from this thread's host.
pub(super) fn answers() -> bool {
    let ask = || -> std::io::Result<bool> {
        let at: SocketAddr = ADDRESS.parse().expect("an address");
        let mut stream = TcpStream::connect_timeout(&at, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"version\r\n")?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer)?;
        Ok(answer == *b"VERSION ")
    };
    ask().unwrap_or(false)
}

fn report(mix: Mix, options: &Options, servers: &[Server], rows: &[Vec<Row>], reflected: &[Found]) -> Report {
    let mut table = Table::new(&[
        "connections",
        "server",
        "requests/s",
        "least",
        "greatest",
        "median p99 by window, us",
        "windows within the bound, %",
        "windows that the machine took, %",
        "p99 of all, us",
        "subject's ratio",
        "least",
        "greatest",
        "asked",
        "failed",
        "misses",
    ]);
    let memcached = servers.iter().position(|server| server.name == MEMCACHED);
    let ratio = |subject: &[f64], peer: &[f64]| stats::paired_ratio(subject, peer);
    let bound = Rounds::of(reflected);
    for (at, connections) in options.connections.iter().enumerate() {
        let subject = &rows[0][at].requests_per_s;
        // what is the lesser is decided by the medians
        let median = |values: &[f64]| stats::median(values).unwrap_or_default();
        let theirs = memcached.map_or(0.0, |peer| BESIDE_MEMCACHED * median(&rows[peer][at].requests_per_s));
        let least_of_bound = BESIDE_REFLECTOR * bound.map_or(0.0, |bound| bound.median.number());
        for (number, (server, row)) in servers.iter().zip(rows).enumerate() {
            let row = &row[at];
            let Some(rate) = Summary::of(&row.requests_per_s) else { continue };
            let ratio = ratio(subject, &row.requests_per_s).filter(|_| number > 0);
            let asked = (Some(number) == memcached && theirs <= least_of_bound).then_some(BESIDE_MEMCACHED);
            table.row(vec![
                Cell::Count((*connections).into()),
                Cell::text(&server.name),
                Cell::Number(rate.median, 0),
                Cell::Number(rate.least, 0),
                Cell::Number(rate.greatest, 0),
                Cell::number(stats::median(&row.p99_us), 0),
                Cell::number(stats::median(&row.windows_held).map(|share| share * 100.0), 0),
                Cell::number(stats::median(&row.lost).map(|share| share * 100.0), 0),
                Cell::number(stats::median(&row.whole_p99_us), 0),
                Cell::number(ratio.map(|ratio| ratio.median), 2),
                Cell::number(ratio.map(|ratio| ratio.least), 2),
                Cell::number(ratio.map(|ratio| ratio.greatest), 2),
                asked.map_or(Cell::Missing, |least| Cell::text(format!("≥ {least}"))),
                Cell::Count(row.failed),
                Cell::Count(row.misses),
            ]);
        }
        if let Some(Rounds { median, least, greatest }) = bound {
            let ratio = found::whole(reflected).and_then(|peer| ratio(subject, &peer));
            let is_asked = median.is().is_some() && theirs > least_of_bound;
            table.row(vec![
                Cell::Count((*connections).into()),
                Cell::text(REFLECTOR),
                median.cell(0),
                least.cell(0),
                greatest.cell(0),
                Cell::Missing,
                Cell::Missing,
                Cell::Missing,
                Cell::Missing,
                Cell::number(ratio.map(|ratio| ratio.median), 2),
                Cell::number(ratio.map(|ratio| ratio.least), 2),
                Cell::number(ratio.map(|ratio| ratio.greatest), 2),
                if is_asked { Cell::text(format!("≥ {BESIDE_REFLECTOR}")) } else { Cell::Missing },
                Cell::Missing,
                Cell::Missing,
            ]);
        }
    }
    let name = format!("memcached-{}", mix.word());
    Report {
        title: format!(
            "Key-value store, {} mix: throughput with a 99th percentile of at most {:.0} us in {:.0}% of the windows of 100 ms that the machine leaves alone, one processor each",
            mix.word(),
            options.p99,
            WINDOWS_HELD * 100.0
        ),
        method: method(mix, options),
        name,
        table,
        charts: Vec::new(),
        machine: Machine::here(Peers::Memcached),
    }
}

fn method(mix: Mix, options: &Options) -> String {
    format!(
        "The highest rate of requests at which, in {:.0}% of the windows of 100 ms that the machine leaves alone, the 99th percentile of four connections that ask \
         seldom (2,000 requests/s together, one at a time) is at most {:.0} us, found by a search of {} s a step. It goes by windows since a virtual machine's \
         processors are taken away now and then. How many windows the machine takes is measured for {} s before each search while nothing is asked, by a \
         thread on each processor that only reads the clock: those in which more than a hundredth of the time is such that who asks then waits longer than the bound, \
         whoever is to answer. So many are left out of the whole; but never may more than {:.0}% of all be above the bound. Beside the figure stand, of the run that it is of, the median over windows of each one's 99th \
         percentile, the share of all windows in which that was within the bound, the share that the machine took before, and the 99th percentile of the whole step, with all pauses. At least 97% of the requests that were due within the span must be \
         answered in it, none may fail, all connections must stand (those that failed are made again before the next try), and at most {} of the GETs may find nothing. A rate holds when one of {TRIES} tries does, what a search \
         ended below is tried again up to {DOUBTS} times, and the highest rate that held is the figure: the most that was seen in a round, for every \
         server alike. *Failed* and *misses* (GETs that found nothing) are of all steps of all searches, those above what holds among them. Requests are due at the moments of a Poisson process, at most {} under way on each connection; latency runs from when a \
         request was due. Mix {}: {} of requests are GETs; lengths as Atikoglu and others published them (SIGMETRICS 2012), with mutilate's \
         parameters; {} records, stored before the first search; every value compared. {} rounds in turn: medians, the least and the greatest round beside \
         them; *subject's ratio* is the median over rounds of the first server's figure divided by the row's. Server on processor 0, load on \
         processor 1 (`simoom-bench kv`, over AF_XDP), one veth pair. The reflector sends datagrams of some 80 octets back as they came: its \
         figure is its peak, without a bound on latency; `≥` where the load or its grid went no further, so that it has no ratio. What is asked is \
         the lesser of {BESIDE_MEMCACHED} x memcached and {BESIDE_REFLECTOR} of the reflector, as far as that is known.",
        WINDOWS_HELD * 100.0,
        options.p99,
        options.seconds,
        WITNESSED.as_secs(),
        (1.0 - WINDOWS_LEAST) * 100.0,
        STORED_MISSES,
        options.depth,
        mix.word(),
        mix.gets(),
        options.records,
        options.rounds
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parsed;

    #[test]
    fn rows_have_ratios_and_the_lesser_of_what_is_asked() {
        let options = parsed::<Options>(["x", "--connections", "64", "--no-sockets"]).unwrap();
        let servers = servers(&options);
        let row = |rates: &[f64]| {
            let requests_per_s = rates.to_vec();
            let (windows_held, lost, whole_p99_us) = (vec![0.95], vec![0.02], vec![200.0]);
            vec![Row { requests_per_s, p99_us: vec![100.0], windows_held, lost, whole_p99_us, failed: 3, misses: 4 }]
        };
        let rows = [row(&[300.0, 500.0]), row(&[100.0, 250.0])];
        let csv = |reflected: Found| report(Mix::Usr, &options, &servers, &rows, &[reflected; 2]).table.csv();
        let low = csv(Found::Is(400.0));
        let lines: Vec<&str> = low.lines().skip(1).collect();
        assert_eq!(lines[0], "64,simoom,400,300,500,100,95,2,200,,,,,3,4");
        assert_eq!(lines[1], "64,memcached,175,100,250,100,95,2,200,2.50,2.00,3.00,,3,4");
        assert_eq!(lines[2], "64,reflector,400,400,400,,,,,1.00,0.75,1.25,≥ 0.85,,");
        let high = csv(Found::Is(1000.0));
        assert!(high.contains("3.00,≥ 2,3,4\n64,reflector,1000,1000,1000,,,,,0.40,0.30,0.50,,,"), "{high}");
        // where the generator is the bound, the lesser is known only if it is memcached's
        assert!(csv(Found::AtLeast(1000.0)).contains("3.00,≥ 2,3,4\n64,reflector,≥1000,≥1000,≥1000,,,,,,,,,,"));
        assert!(csv(Found::AtLeast(400.0)).contains("3.00,,3,4\n64,reflector,≥400,≥400,≥400,,,,,,,,,,"));
    }

    #[test]
    fn what_failed_is_of_every_step_and_a_server_that_lost_all_holds_nothing() {
        let outcome = |hits, misses, wrong| {
            let mut outcome = Outcome::new(Some(1000.0));
            (outcome.answered_in_span, outcome.span_ns, outcome.misses_most) = (1000, 1_000_000_000, STORED_MISSES);
            (outcome.hits, outcome.misses, outcome.wrong) = (hits, misses, wrong);
            outcome
        };
        let mut row = Row::default();
        row.add(&[outcome(999, 1, 0), outcome(997, 3, 0), outcome(999, 0, 1)], 500.0, 0.0).unwrap();
        assert_eq!((&row.requests_per_s[..], row.failed, row.misses), (&[1000.0][..], 1, 4));
        row.add(&[outcome(0, 1000, 0)], 500.0, 0.0).unwrap();
        assert_eq!(row.requests_per_s, [1000.0, 0.0]);
        assert!(row.add(&[], 500.0, 0.0).is_err());
    }

    #[test]
    fn servers_are_the_same_but_for_what_is_compared() {
        let options = parsed::<Options>(["x"]).unwrap();
        let names: Vec<String> = servers(&options).into_iter().map(|server| server.name).collect();
        assert_eq!(names, ["simoom", "simoom, sockets", MEMCACHED]);
        assert_eq!(options.connections, [64, 1476]);
    }
}
