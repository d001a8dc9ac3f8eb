//! `simoom-bench soak-web`: a long load on the web server with a reload every second. Every octet of every answer is compared, every
//! body is of one version and of one that may be served, what the server counts is what its clients saw, and memory stays where it is.

use super::site::{Site, Versions};
use super::visits::{QUICK, SLOW, Seen, Visitor};
use super::{Control, Reloads, Renewed, metrics, reload_until_done, since};
use crate::commands::{rate, seconds};
use crate::experiment::web::{ADDRESS, Bed, Server, Up, json};
use crate::experiment::{Common, tell_written};
use crate::http::Outcome;
use crate::procs;
use crate::report::{Cell, Machine, Peers, Report, Table};
use anyhow::{Result, bail, ensure};
use lab::Process;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Addresses of the load.
const OWN: &str = "198.18.0.16-198.18.0.19";
/// Memory for parts of files that do not fit: some of the largest file's.
const CACHE_BYTES: u64 = 2 << 20;
/// How often a slow client comes.
const SLOW_EVERY: Duration = Duration::from_secs(15);
/// How long the server may take to see that all connections have ended.
const END: Duration = Duration::from_secs(10);

/// Options of `simoom-bench soak-web`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A site of files of many sizes, with precompressed variants, is served over AF_XDP on processor 0 with less memory than it takes; a
sixth of its pages change with every version, and a new version is put in place and reloaded every second. Beside the load of
`simoom-bench http` clients of the kernel's sockets ask for parts, with conditions, in codings, go away in the middle or read slowly.
Every octet is compared, and at the end the server's counters must tell what the clients saw. Exit status 1 when anything differs,
when the server reset a connection, when a body is of two versions or of one replaced before, or when resident memory from reload
100 on, by medians of a hundred reloads, leaves 2%. Needs root.")]
pub(crate) struct Options {
    /// How long
    #[arg(long, value_name = "S", default_value = "3600", value_parser = seconds)]
    seconds: f64,
    /// Requests a second of the load
    #[arg(long, value_name = "R", default_value = "4000", value_parser = rate)]
    rate: f64,
    /// Its connections at a time
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,
    /// Requests a second of the kernel's clients
    #[arg(long, value_name = "R", default_value = "40", value_parser = rate)]
    visits: f64,
    /// Pages beside those of given sizes
    #[arg(long, value_name = "N", default_value_t = 240, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pages: u16,
    /// Seconds between reloads
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    every: f64,
    /// common
    #[command(flatten)]
    common: Common,
}

/// The site's versions, one after the other.
struct Pages<'a> {
    /// the server's process
    pid: u32,
    site: &'a Site,
    folder: PathBuf,
    versions: &'a Versions,
}

impl Renewed for Pages<'_> {
    fn server_pid(&mut self) -> Result<u32> {
        Ok(self.pid)
    }

    fn put(&mut self, number: usize) -> Result<()> {
        self.site.write(&self.folder, number as u64)?;
        self.versions.begun.store(number as u64, Ordering::SeqCst);
        Ok(())
    }

    fn on_reloaded(&mut self, number: usize) {
        self.versions.done.store(number as u64, Ordering::SeqCst);
    }
}

/// All that came of it.
struct Soaked {
    outcome: Outcome,
    seen: Seen,
    reloads: Reloads,
    /// what the server counted meanwhile
    counted: Vec<(String, u64)>,
    /// connections that it has at the end, as it tells them
    open: String,
    /// processor time of the server's process, as a share of the span
    server_share: f64,
}

/// Runs it.
pub(in crate::experiment) fn run(options: &Options) -> Result<()> {
    let site = Site::new(options.pages.into());
    let memory = format!("--memory {} --cache {CACHE_BYTES}", site.memory_bytes() + CACHE_BYTES);
    let server = Server::simoom("simoom", &memory);
    let bed = Bed::new(&options.common, std::slice::from_ref(&server), "")?;
    site.write(&bed.folder().join("www"), 0)?;
    let first = site.entries[1].page.to_string()[1..].to_owned();
    let mut up = bed.serve(&server, &lab::Options::default(), &[first])?;
    eprintln!(
        "{:.0} requests/s for {} s, a reload every {} s, {} files",
        options.rate,
        options.seconds,
        options.every,
        site.files()
    );
    let control = Control { simoom: options.common.simoom()?, path: bed.folder().join("run/control") };
    let soaked = soak(options, &mut up, &site, &bed, &control)?;
    let complaints = soaked.complaints();
    let report = soaked.report(options, &site);
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    ensure!(complaints.is_empty(), "{}", complaints.join("; "));
    Ok(())
}

fn soak(options: &Options, up: &mut Up<'_>, site: &Site, bed: &Bed, control: &Control) -> Result<Soaked> {
    let pid = up.pid()?;
    let before = (counters(&control.stats()?), procs::group_s(pid)?, Instant::now());
    let mut load = Process::spawn(load(options, up, site)?)?;
    let (stop, versions) = (AtomicBool::new(false), Versions::default());
    let at = ADDRESS.parse()?;
    let visitor = |seed| Visitor::new(at, site, &versions, seed);
    let (reloads, seen) = std::thread::scope(|scope| {
        let (quick, slow) = (visitor(1), visitor(2));
        let (host, stop) = (up.lab().client(), &stop);
        let every = Duration::from_secs_f64(1.0 / options.visits);
        let quick = scope.spawn(move || host.inside(|| quick.run(&QUICK, every, stop)));
        let slow = scope.spawn(move || host.inside(|| slow.run(&SLOW, SLOW_EVERY, stop)));
        let mut pages = Pages { pid, site, folder: bed.folder().join("www"), versions: &versions };
        let reloads = reload_until_done(&mut pages, &mut load, control, Duration::from_secs_f64(options.every));
        stop.store(true, Ordering::Relaxed);
        let mut seen = quick.join().expect("a visitor does not panic");
        seen.add(slow.join().expect("a visitor does not panic"));
        (reloads, seen)
    });
    // a server that has ended says why
    let reloads = up.pid().and(reloads)?;
    let (status, log) = (load.wait(END)?, load.log());
    // a wrong body is told by its results as well
    let outcome: Outcome = match json(&log) {
        Ok(outcome) => outcome,
        Err(_) => bail!("the generator failed ({status}): {}", log.trim()),
    };
    let server_share = (procs::group_s(up.pid()?)? - before.1) / before.2.elapsed().as_secs_f64();
    let mut stats = control.stats()?;
    let end = Instant::now() + END;
    while open(&stats) > 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(100));
        stats = control.stats()?;
    }
    let counted = since(&counters(&stats), &before.0);
    let open = if open(&stats) > 0 { control.ask(&["connections"])? } else { String::new() };
    Ok(Soaked { outcome, seen, reloads, counted, open, server_share })
}

/// The command of our generator in the client's host.
fn load(options: &Options, up: &Up<'_>, site: &Site) -> Result<Command> {
    let mut command = up.lab().client().command("taskset");
    command.args(["-c", "1"]).arg(std::env::current_exe()?);
    command.args(["http", "--interface", "vc", "--address", OWN, "--json", "--synthetic", "--wait", "poll"]);
    command.args(["--header", "Accept-Encoding: zstd, gzip;q=0.5", "--requests-per-connection", "100"]);
    command.args(["--timeout", "30", "--seconds", &options.seconds.to_string(), "--rate", &options.rate.to_string()]);
    command.args(["--connections", &options.connections.to_string()]);
    command.args(site.urls(ADDRESS.trim_end_matches(":80")));
    Ok(command)
}

fn counters(stats: &Value) -> Vec<(String, u64)> {
    metrics(stats, |name| name.starts_with("web_") || name == "tcp_events_total")
}

fn open(stats: &Value) -> u64 {
    metrics(stats, |name| name == "web_connections").iter().map(|(_, count)| count).sum()
}

/// Ends of connections that nobody asked for.
const UNWANTED: [&str; 5] = ["aborted", "timed out", "no resources", "rejected", "reset sent"];

impl Soaked {
    /// What the server counted under this name, over all threads.
    fn counted(&self, name: &str) -> u64 {
        self.counted.iter().filter(|(other, _)| other == name).map(|(_, count)| count).sum()
    }

    /// What the clients saw and the server must have counted: its name, and the sum.
    fn agreed(&self) -> Vec<(String, u64)> {
        let Soaked { outcome, seen, .. } = self;
        let own: u64 = outcome.statuses.values().sum();
        let own_of =
            |class: u16| outcome.statuses.iter().filter(move |(status, _)| *status / 100 == class).map(|(_, n)| n);
        let mut agreed = vec![
            ("web_requests_total method=GET".into(), outcome.sent + seen.gets),
            ("web_requests_total method=HEAD".into(), seen.heads),
            ("web_partial_total".into(), seen.partial),
            ("web_not_modified_total".into(), seen.not_modified),
            ("web_bytes_total".into(), outcome.bytes + seen.bytes),
            ("web_connections_total".into(), outcome.connections + seen.connections),
        ];
        for class in 1..=5 {
            let own = if class == 2 { outcome.answered - own } else { own_of(class).sum() };
            agreed.push((format!("web_answers_total class={class}xx"), own + seen.classes[usize::from(class) - 1]));
        }
        agreed
    }

    /// What the server counted that should not have happened.
    fn unwanted(&self) -> impl Iterator<Item = &(String, u64)> {
        let is = |name: &str| {
            name.starts_with("web_drops_total")
                || name.starts_with("web_refusals_total")
                || UNWANTED.iter().any(|event| name == format!("tcp_events_total event={event}"))
        };
        self.counted.iter().filter(move |(name, count)| *count > 0 && is(name))
    }

    fn complaints(&self) -> Vec<String> {
        let Soaked { outcome, seen, reloads, .. } = self;
        let mut complaints = Vec::new();
        complaints.extend(outcome.failures.iter().map(|(failure, count)| format!("{count} {failure}")));
        complaints.extend(outcome.statuses.iter().map(|(status, count)| format!("{count} answers of {status}")));
        if outcome.unfinished > 0 {
            complaints.push(format!("{} answers did not come", outcome.unfinished));
        }
        complaints.extend((outcome.answered == 0).then(|| "nothing was answered".into()));
        complaints.extend((reloads.done > 1 && outcome.versions == 0).then(|| "no version was seen to change".into()));
        if seen.faults > 0 {
            complaints.push(format!("{} visits went wrong: {}", seen.faults, seen.told.join(", ")));
        }
        for (name, saw) in self.agreed() {
            let counted = self.counted(&name);
            if counted != saw {
                complaints.push(format!("{name} is {counted}, and the clients saw {saw}"));
            }
        }
        complaints.extend(self.unwanted().map(|(name, count)| format!("{name} is {count}")));
        if !self.open.is_empty() {
            complaints.push(format!("connections are still open: {}", self.open.trim()));
        }
        complaints
            .extend((self.counted("web_cache_misses_total") == 0).then(|| "no file was read while it was sent".into()));
        complaints.extend(reloads.complaint());
        complaints
    }

    fn report(&self, options: &Options, site: &Site) -> Report {
        let Soaked { outcome, seen, reloads, .. } = self;
        let mut table = Table::new(&["what", "figure"]);
        let mut count = |name: &str, count: u64| table.row(vec![Cell::text(name), Cell::Count(count)]);
        count("requests of the load", outcome.sent);
        count("requests of kernel clients", seen.gets + seen.heads);
        count("connections", outcome.connections + seen.connections);
        count("answers to the load, every octet compared", outcome.checked);
        count("octets of answers", outcome.bytes + seen.bytes);
        count("requests due while every connection was busy", outcome.missed);
        for (failure, found) in &outcome.failures {
            count(&format!("wrong: {failure}"), *found);
        }
        count("visits that went wrong", seen.faults);
        count("answers of 206", seen.partial);
        count("answers of 304", seen.not_modified);
        count("answers of 4xx", seen.classes[3]);
        count("clients gone away in the middle", seen.left);
        count("answers taken slowly", seen.slow);
        count("versions seen go by", outcome.versions);
        count("reloads", reloads.done as u64);
        count("counters that differ from what clients saw", self.differing());
        for (name, found) in self.unwanted() {
            count(name, *found);
        }
        for name in ["web_cache_hits_total", "web_cache_misses_total", "tcp_events_total event=segment retransmitted"] {
            count(name, self.counted(name));
        }
        table.row(vec![Cell::text("slowest reload, s"), Cell::Number(reloads.slowest_s, 2)]);
        table.row(vec![Cell::text("latency, p50, us"), Cell::Number(outcome.latency.p50_us, 0)]);
        table.row(vec![Cell::text("latency, p99, us"), Cell::Number(outcome.latency.p99_us, 0)]);
        table.row(vec![Cell::text("processor time of the server, %"), Cell::Number(self.server_share * 100.0, 1)]);
        reloads.tell_memory(&mut table);
        Report {
            name: "soak-web".into(),
            title: "Soak of the web server".into(),
            method: format!(
                "{:.0} requests/s of `simoom-bench http` and {} of kernel clients for {} s to a site of {} files, {} live pages of \
                 which change with every version; a new version put in place and reloaded every {} s; every octet compared.",
                options.rate,
                options.visits,
                options.seconds,
                site.files(),
                site.entries.iter().filter(|entry| entry.page.is_live()).count(),
                options.every
            ),
            table,
            charts: Vec::new(),
            machine: Machine::here(Peers::None),
        }
    }

    fn differing(&self) -> u64 {
        self.agreed().iter().filter(|(name, saw)| self.counted(name) != *saw).count() as u64
    }
}
