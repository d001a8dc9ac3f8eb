//! `simoom-bench experiment flood` and `overload`: what is left of a web server's goodput under a flood of spoofed SYNs, and when
//! twice as much is asked of it as it can do; nginx, on the kernel's TCP with its SYN cookies, is the yardstick.
//!
//! Two processors: server and its receive thread on 0, generator and its own on 1. So what the flood costs the generator is in
//! the figures of both servers, and a load that finds processor 1 fully busy is the generator's limit; both are told.

use super::taken::{self, Taken};
use super::{Common, tell_written, web};
use crate::commands::{rate, seconds};
use crate::http::Outcome;
use crate::procs::{self, Ticks};
use crate::report::{Cell, Machine, Peers, Report, Table};
use crate::stats;
use anyhow::{Context as _, Result, bail, ensure};
use lab::{Lab, Process};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Options of `simoom-bench experiment flood` and `overload`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each load is made by `simoom-bench http` from own addresses: keep-alive, and with a connection for each request. `flood`: in each
round a load without and one with the flood beside it, in a closed loop or at the rate --load; `overload`: closed loop for the peak,
then open loop at twice that. A connection, or an answer, that takes longer than 3 s, or another status than 2xx, counts as none; *in time* is
what had a good answer within 3 s of when it was due. A flood of which less than 90% got out has no ratio. Writes NAME.csv and NAME.md. Needs root, and nginx.")]
pub(crate) struct Options {
    /// SYNs a second of the flood; beside a server that takes most of the machine the generator gets out no more than some 100,000
    #[arg(long, value_name = "R", default_value = "100k", value_parser = rate)]
    syns: f64,
    /// Requests a second beside the flood, in an open loop, so that the generator has time for the flood; default: a closed loop
    #[arg(long, value_name = "R", value_parser = rate)]
    load: Option<f64>,
    /// Percent of the server's processor that something else takes, so that the server is the bound and not the generator
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=90))]
    taken: u32,
    /// Bytes of the file
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    bytes: u32,
    /// Connections at once in a closed loop; an open one has up to 32 times as many
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,
    /// How long each load runs
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    seconds: f64,
    /// How often every server is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// What the result files are called; default: the experiment's name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// common
    #[command(flatten)]
    common: Common,
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// a flood of SYNs
    Flood,
    /// twice the capacity
    Overload,
}

/// A server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Nginx,
    Simoom,
}

impl Server {
    fn name(self) -> &'static str {
        match self {
            Server::Nginx => "nginx",
            Server::Simoom => "simoom",
        }
    }
}

/// How often a connection is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Keep,
    Once,
}

impl Use {
    fn name(self) -> &'static str {
        match self {
            Use::Keep => "keep-alive",
            Use::Once => "a connection each",
        }
    }
}

const ADDRESS: &str = "198.18.0.1:80";
/// So many addresses that ports last.
const OWN: &str = "198.18.0.16-198.18.0.31";
/// How long a server may take to come up.
const START: Duration = Duration::from_secs(60);
/// An answer that takes longer from its request, or a connection from its SYN, is none; and from when it was due, late.
const PATIENCE_S: &str = "3";
/// A flood of which less was sent than this share is another one: what is left under it is not compared.
const FLOOD_LEAST: f64 = 0.9;
/// Connections of an open loop, a closed one's times this.
const OPEN_FACTOR: u32 = 32;

/// What does not change from load to load.
struct Bed {
    folder: tempfile::TempDir,
    simoom: String,
}

/// A server that serves in a laboratory of its own. Both end with this value.
struct Served {
    server: Server,
    // the server ends before its host goes
    process: Process,
    lab: Lab,
    control: String,
}

/// One load.
struct Run {
    outcome: Outcome,
    /// of processors 0 and 1
    busy: [f64; 2],
    /// the server's, before and after
    resident: [u64; 2],
    /// SYN cookies sent a second, and those that came back, within the load
    cookies_per_s: [f64; 2],
}

impl Run {
    /// The share of what was due of the flood that was sent; the rest its generator did not get out. None without a flood.
    fn flood_share(&self) -> Option<f64> {
        let (sent, missed) = self.outcome.flood?;
        Some(sent as f64 / (sent + missed).max(1) as f64)
    }

    /// Whether the flood, if there was one, was the one that was asked for.
    fn is_as_asked(&self) -> bool {
        self.flood_share().is_none_or(|share| share >= FLOOD_LEAST)
    }
}

impl Bed {
    fn new(options: &Options) -> Result<Bed> {
        ensure!(rustix::process::geteuid().is_root(), "this makes network namespaces: run it as root");
        lab::require_programs(&["chrt", "nginx"]);
        // from here on an interruption ends what runs in order: load, server, namespaces
        lab::interrupt_by(crate::commands::stop_flag()?);
        let simoom = options.common.simoom()?.display().to_string();
        let folder = tempfile::Builder::new().prefix("simoom-bench-").tempdir().context("no temporary folder")?;
        // nginx's worker is another user
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let bed = Bed { folder, simoom };
        for name in ["www", "run"] {
            fs::create_dir(bed.path(name))?;
        }
        fs::write(bed.path("www/file"), vec![b'x'; options.bytes as usize])?;
        fs::write(bed.path("run/nginx.conf"), nginx_conf(&bed.text("run"), &bed.text("www")))?;
        Ok(bed)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Starts a server in a fresh laboratory and waits until it answers.
    fn serve(&self, server: Server) -> Result<Served> {
        let lab = Lab::new()?;
        // where the flood claims to come from: the kernel answers it as ours does
        lab.server().run(&["ip", "route", "add", "10.0.0.0/8", "via", "198.18.0.2"])?;
        let control = self.text("run/control");
        let (conf, www) = (self.text("run/nginx.conf"), self.text("www"));
        let mut command = lab.server().command("taskset");
        command.args(["-c", "0"]);
        match server {
            Server::Nginx => command.args(["nginx", "-c", &conf]),
            Server::Simoom => command
                .args([&self.simoom, "web", &www, "--interface", "vs", "--listen", ADDRESS])
                .args(["--cpus", "0", "--control", &control]),
        };
        let mut process = Process::spawn(command)?;
        let at: SocketAddr = ADDRESS.parse()?;
        let answers = || lab.client().inside(|| TcpStream::connect_timeout(&at, Duration::from_secs(1)).is_ok());
        process.wait_until(answers, START).with_context(|| format!("{} does not come up", server.name()))?;
        // attaching a program may have made the receive threads anew
        lab.pin();
        Ok(Served { server, process, lab, control })
    }
}

/// nginx as it is fastest on this path: segmentation offload is off as soon as the generator attaches its program.
fn nginx_conf(run: &str, www: &str) -> String {
    web::nginx_conf(web::NGINX_BUFFERS).replace("{run}", run).replace("{www}", www)
}

impl Served {
    /// Runs one load.
    fn load(&mut self, bed: &Bed, options: &Options, how: Use, rate: Option<f64>, flood: bool) -> Result<Run> {
        let own = std::env::current_exe().context("where this program lies")?;
        let connections = options.connections * if rate.is_some() { OPEN_FACTOR } else { 1 };
        let mut command = self.lab.client().command(own);
        command.args(["http", "--interface", "vc", "--address", OWN, "--cpu", "1", "--json", "--timeout", PATIENCE_S]);
        command.args(["--seconds", &options.seconds.to_string(), "--connections", &connections.to_string()]);
        command.args(["--body", &bed.text("www/file")]);
        command.args(["--requests-per-connection", if how == Use::Once { "1" } else { "0" }]);
        if let Some(rate) = rate {
            command.args(["--rate", &rate.to_string()]);
        }
        if flood {
            command.args(["--flood", &options.syns.to_string()]);
        }
        command.arg(format!("http://{}/file", ADDRESS.trim_end_matches(":80")));
        let resident = self.resident()?;
        let mut load = Process::spawn(command)?;
        // its first line of progress comes after a second of the load; the last is before its end
        load.wait_for("requests/s", START)?;
        self.lab.pin();
        let ticks = || Ok::<_, anyhow::Error>([Ticks::now(Some(0))?, Ticks::now(Some(1))?]);
        let (cookies_begun, cookies) = (Instant::now(), self.cookies(bed)?);
        let (begun, first) = (Instant::now(), ticks()?);
        let watch = Duration::from_secs_f64((options.seconds - 2.0).max(0.5));
        std::thread::sleep(watch);
        let (span_s, last) = (begun.elapsed().as_secs_f64(), ticks()?);
        // asking takes about as long each time, so the span is that from question to question
        let (cookies_s, cookies_last) = (cookies_begun.elapsed().as_secs_f64(), self.cookies(bed)?);
        let status = load.wait(START)?;
        let log = load.log();
        ensure!(status.success(), "the generator failed ({status}): {}", log.trim());
        let line = log.lines().rfind(|line| line.starts_with('{')).with_context(|| format!("no results in: {log}"))?;
        let outcome: Outcome = serde_json::from_str(line).context("the generator's results")?;
        if let Some(status) = self.process.ended() {
            bail!("{} ended ({status}): {}", self.server.name(), self.process.log().trim());
        }
        Ok(Run {
            outcome,
            busy: [0, 1].map(|n| last[n].busy_s_since(first[n]) / span_s),
            resident: [resident, self.resident()?],
            cookies_per_s: [0, 1].map(|n| cookies_last[n].saturating_sub(cookies[n]) as f64 / cookies_s),
        })
    }

    /// Resident memory of all of its processes, nginx's master and worker; the kernel's is not in it.
    fn resident(&self) -> Result<u64> {
        procs::group_resident_bytes(self.process.id())
    }

    /// SYN cookies sent and taken back so far, as our stack counts them, or the kernel.
    fn cookies(&self, bed: &Bed) -> Result<[u64; 2]> {
        match self.server {
            Server::Simoom => {
                let output = std::process::Command::new(&bed.simoom)
                    .args(["ctl", "--control", &self.control, "stats", "--json"])
                    .output()
                    .context("cannot ask for the counters")?;
                let all: serde_json::Value = serde_json::from_slice(&output.stdout).context("the counters")?;
                Ok(["cookie sent", "cookie accepted"].map(|event| tcp_event(&all, event)))
            }
            Server::Nginx => {
                let text = self.lab.server().run(&["cat", "/proc/net/netstat"])?;
                Ok(["SyncookiesSent", "SyncookiesRecv"].map(|name| netstat(&text, name).unwrap_or(0)))
            }
        }
    }
}

/// One event of `simoom ctl stats --json`.
fn tcp_event(all: &serde_json::Value, event: &str) -> u64 {
    let metrics = all["metrics"].as_array().map_or(&[][..], Vec::as_slice);
    let is = |it: &&serde_json::Value| it["name"] == "tcp_events_total" && it["labels"]["event"] == event;
    metrics.iter().filter(is).filter_map(|it| it["value"].as_u64()).sum()
}

/// A counter of /proc/net/netstat, where lines of names and of values take turns.
fn netstat(text: &str, name: &str) -> Option<u64> {
    let lines: Vec<&str> = text.lines().collect();
    lines.chunks(2).find_map(|pair| {
        let at = pair.first()?.split(' ').position(|word| word == name)?;
        pair.get(1)?.split(' ').nth(at)?.parse().ok()
    })
}

/// What was measured of one server with one use: rounds of a load by itself, and of the one that is judged.
struct Subject {
    server: Server,
    how: Use,
    plain: Vec<Run>,
    hard: Vec<Run>,
}

/// Runs one of the two.
pub(super) fn run(kind: Kind, options: &Options) -> Result<()> {
    ensure!(kind == Kind::Flood || options.load.is_none(), "`overload` finds its load itself: leave --load out");
    let bed = Bed::new(options)?;
    let _taken = Taken::of(options.taken, 0)?;
    let mut subjects = Vec::new();
    for how in [Use::Keep, Use::Once] {
        for server in [Server::Nginx, Server::Simoom] {
            subjects.push(Subject { server, how, plain: Vec::new(), hard: Vec::new() });
        }
    }
    for round in 1..=options.rounds {
        for subject in &mut subjects {
            let mut served = bed.serve(subject.server)?;
            let plain = served.load(&bed, options, subject.how, options.load, false)?;
            let peak = plain.outcome.good_rate();
            ensure!(peak > 0.0, "{} gave no good answer", subject.server.name());
            let hard = match kind {
                Kind::Flood => served.load(&bed, options, subject.how, options.load, true)?,
                Kind::Overload => served.load(&bed, options, subject.how, Some(2.0 * peak), false)?,
            };
            eprintln!(
                "{round} {:<7} {:<17} {peak:>9.0} -> {:>9.0} requests/s, {:.2}% in time, {:.2}% late, {:.2}% not sent{}",
                subject.server.name(),
                subject.how.name(),
                hard.outcome.good_rate(),
                hard.outcome.in_time_share() * 100.0,
                hard.outcome.late_share() * 100.0,
                hard.outcome.missed_share() * 100.0,
                hard.flood_share()
                    .map_or_else(String::new, |share| format!(", {:.0}% of the flood sent", share * 100.0))
            );
            subject.plain.push(plain);
            subject.hard.push(hard);
        }
    }
    let report = report(kind, options, &subjects);
    print!("{}", report.table.markdown());
    tell_written(&report.write(Path::new(&options.common.out))?);
    Ok(())
}

/// The load that a flood comes beside.
fn loop_of(options: &Options) -> String {
    let connections = options.connections;
    match options.load {
        None => format!("{connections} connections in a closed loop"),
        Some(rate) => {
            format!("{rate} requests a second in an open loop of up to {} connections", connections * OPEN_FACTOR)
        }
    }
}

fn report(kind: Kind, options: &Options, subjects: &[Subject]) -> Report {
    let hard = match kind {
        Kind::Flood => "flooded",
        Kind::Overload => "at twice that",
    };
    let mut table = Table::new(&[
        "load",
        "server",
        "requests/s",
        &format!("{hard}, requests/s"),
        "ratio",
        "least",
        "greatest",
        "in time, %",
        "late, %",
        "not sent, %",
        "failed",
        "p50, ms",
        "p99, ms",
        "processor 0 busy, %",
        "processor 1 busy, %",
        "SYNs/s of the flood",
        "cookies sent/s",
        "cookies taken/s",
        "resident before, MiB",
        "resident after, MiB",
    ]);
    for Subject { server, how, plain, hard } in subjects {
        let rates = |runs: &[Run]| runs.iter().map(|run| run.outcome.good_rate()).collect::<Vec<_>>();
        let of = |figure: &dyn Fn(&Run) -> f64| stats::median(&hard.iter().map(figure).collect::<Vec<_>>());
        let is_as_asked = hard.iter().all(Run::is_as_asked);
        let ratio = stats::paired_ratio(&rates(hard), &rates(plain)).filter(|_| is_as_asked);
        let failed = plain.iter().chain(hard).map(|run| run.outcome.bad()).sum();
        table.row(vec![
            Cell::text(how.name()),
            Cell::text(server.name()),
            Cell::number(stats::median(&rates(plain)), 0),
            Cell::number(stats::median(&rates(hard)), 0),
            Cell::number(ratio.map(|ratio| ratio.median), 2),
            Cell::number(ratio.map(|ratio| ratio.least), 2),
            Cell::number(ratio.map(|ratio| ratio.greatest), 2),
            Cell::number(of(&|run| run.outcome.in_time_share() * 100.0), 2),
            Cell::number(of(&|run| run.outcome.late_share() * 100.0), 2),
            Cell::number(of(&|run| run.outcome.missed_share() * 100.0), 2),
            Cell::Count(failed),
            Cell::number(of(&|run| run.outcome.latency.p50_us / 1e3), 2),
            Cell::number(of(&|run| run.outcome.latency.p99_us / 1e3), 2),
            Cell::number(of(&|run| run.busy[0] * 100.0), 0),
            Cell::number(of(&|run| run.busy[1] * 100.0), 0),
            Cell::number(of(&|run| run.flood_share().map_or(0.0, |share| share * options.syns)), 0),
            Cell::number(of(&|run| run.cookies_per_s[0]), 0),
            Cell::number(of(&|run| run.cookies_per_s[1]), 0),
            Cell::number(of(&|run| run.resident[0] as f64 / f64::from(1 << 20)), 1),
            Cell::number(of(&|run| run.resident[1] as f64 / f64::from(1 << 20)), 1),
        ]);
    }
    let (name, title, what) = match kind {
        Kind::Flood => (
            "flood",
            "Goodput under a flood of SYNs",
            format!(
                "{}, without a flood and then beside one of spoofed SYNs from random addresses of 10.0.0.0/8, \
                 sent by the generator through the same AF_XDP socket: {} a second are asked for, and what the generator got out stands in the \
                 table. Floods of less than {:.0}% of that are another load, and have no ratio",
                loop_of(options),
                options.syns,
                FLOOD_LEAST * 100.0
            ),
        ),
        Kind::Overload => (
            "overload",
            "Goodput at twice the capacity",
            format!(
                "{} connections in a closed loop give the peak; then an open loop of up to {} connections asks at twice that rate (what is \
                 due while all of them are busy is not sent, and is not in the share in time; *not sent* is how much of what was due that was: where \
                 it is much, all connections were busy and the load was a closed loop of so many)",
                options.connections,
                options.connections * OPEN_FACTOR
            ),
        ),
    };
    let method = format!(
        "A file of {} bytes, asked for by `simoom-bench http` from own addresses: {what}. {} s each, {} rounds in turn, a fresh \
         laboratory for each server and round; medians, and medians of the ratios within a round. Requests/s, *in time* and *late* are of good \
         answers: status 2xx, the file's length and, of one in 16, its content; requests/s counts those that came within the load, however late they \
         were. *In time*: of all requests, failed and unfinished ones counted, those whose good answer was whole within {PATIENCE_S} s of when they \
         were due, so that the wait for a connection and its handshake are in it; *late*: those whose good answer came after that. A connection, or \
         an answer once it was asked for, that by itself takes longer fails. *Failed*: requests of all loads and rounds without a good answer. p50 and \
         p99 are of all answers that came. The server and its receive thread have processor 0, the generator, the flood and their receive thread \
         processor 1, where answers to the flood are dropped by the kernel as well: what that costs the generator is in the ratio.{} nginx has one \
         worker, the configuration that is fastest for it over a veth pair without segmentation offload (as in `compare-web`: {}) and the kernel's SYN \
         cookies (tcp_syncookies=1). Resident memory is of all of a server's processes, what they share counted for each, and without the kernel's, \
         where nginx's connections are. Cookies are as our \
         stack and the kernel count them within the load.",
        options.bytes,
        options.seconds,
        options.rounds,
        taken::told(options.taken),
        web::NGINX_BUFFERS
    );
    let name = options.name.clone().unwrap_or_else(|| name.into());
    Report { name, title: title.into(), method, table, charts: Vec::new(), machine: Machine::here(Peers::Web) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parsed;

    fn a_run(good: u64, refused: u64, flood: Option<(u64, u64)>) -> Run {
        let mut outcome = Outcome::new(None);
        (outcome.span_ns, outcome.answered, outcome.answered_in_span) = (1_000_000_000, good + refused, good + refused);
        (outcome.good_in_span, outcome.flood) = (good, flood);
        // one in a hundred was late
        (outcome.good_in_time, outcome.good_late) = (good - good / 100, good / 100);
        outcome.statuses.insert(503, refused);
        Run { outcome, busy: [0.5, 1.0], resident: [1 << 20, 1 << 20], cookies_per_s: [9.0, 8.0] }
    }

    #[test]
    fn refusals_are_no_goodput_and_unlike_floods_have_no_ratio() {
        let options = parsed::<Options>(["flood", "--syns", "1000"]).unwrap();
        let subject = |server, hard: [Run; 2]| {
            let plain = vec![a_run(1000, 0, None), a_run(1000, 0, None)];
            Subject { server, how: Use::Keep, plain, hard: hard.into() }
        };
        let subjects = [
            subject(Server::Nginx, [a_run(600, 0, Some((1000, 0))), a_run(800, 0, Some((890, 110)))]),
            subject(Server::Simoom, [a_run(500, 1500, Some((990, 10))), a_run(500, 1500, Some((990, 10)))]),
        ];
        let csv = report(Kind::Flood, &options, &subjects).table.csv();
        let lines: Vec<&str> = csv.lines().skip(1).collect();
        assert_eq!(lines[0], "keep-alive,nginx,1000,700,,,,99.00,1.00,0.00,0,0.00,0.00,50,100,945,9,8,1.0,1.0");
        assert_eq!(
            lines[1],
            "keep-alive,simoom,1000,500,0.50,0.50,0.50,24.75,0.25,0.00,3000,0.00,0.00,50,100,990,9,8,1.0,1.0"
        );
        // without a flood there is none to fall short
        let mut hard = [a_run(900, 0, None), a_run(900, 0, None)];
        // what was not sent is in no other figure
        hard.iter_mut().for_each(|run| (run.outcome.sent, run.outcome.missed) = (900, 1100));
        let csv = report(Kind::Overload, &options, &[subject(Server::Simoom, hard)]).table.csv();
        assert!(csv.contains("simoom,1000,900,0.90,0.90,0.90,99.00,1.00,55.00,0,"), "{csv}");
    }

    #[test]
    fn the_load_beside_a_flood_is_told() {
        let told = |words: &[&str]| loop_of(&parsed::<Options>(words.iter().copied()).unwrap());
        assert_eq!(told(&["flood"]), "64 connections in a closed loop");
        let load = told(&["flood", "--load", "40k", "--connections", "8"]);
        assert_eq!(load, "40000 requests a second in an open loop of up to 256 connections");
        let options = parsed::<Options>(["overload", "--load", "1k"]).unwrap();
        let refused = run(Kind::Overload, &options).unwrap_err().to_string();
        assert!(refused.contains("leave --load out"), "{refused}");
    }

    #[test]
    fn what_is_taken_of_the_processor_is_told() {
        let told = |percent| {
            let options = parsed::<Options>(["overload", "--taken", percent]).unwrap();
            report(Kind::Overload, &options, &[]).method
        };
        assert!(told("70").contains("Of processor 0 something else takes 70% "), "{}", told("70"));
        assert!(!told("0").contains("something else"), "{}", told("0"));
        assert!(parsed::<Options>(["overload", "--taken", "91"]).is_err());
    }

    #[test]
    fn nginx_is_as_it_is_fastest_here() {
        let conf = nginx_conf("/a/run", "/a/www");
        assert!(conf.contains(web::NGINX_BUFFERS) && !conf.contains("sendfile on"), "{conf}");
        assert!(conf.contains("multi_accept on;") && conf.contains("pid /a/run/nginx.pid;"), "{conf}");
        assert!(conf.contains("root /a/www;") && !conf.contains("{how}"), "{conf}");
        let told = report(Kind::Overload, &parsed::<Options>(["overload"]).unwrap(), &[]).method;
        assert!(told.contains(web::NGINX_BUFFERS), "{told}");
    }

    #[test]
    fn resident_memory_is_that_of_every_process_of_a_server() {
        lab::require_programs(&["ip"]);
        let lab = Lab::new().unwrap();
        let mut command = lab.server().command("sh");
        command.args(["-c", "sleep 1000 & echo started; wait"]);
        let mut process = Process::spawn(command).unwrap();
        process.wait_for("started", START).unwrap();
        let served = Served { server: Server::Nginx, process, lab, control: String::new() };
        let pids = procs::group_pids(served.process.id()).unwrap();
        assert_eq!(pids.len(), 2, "{pids:?}");
        // once the second has become what it is neither does anything
        let all = || pids.iter().map(|pid| procs::resident_bytes(*pid).unwrap()).sum::<u64>();
        assert!(lab::wait_until(|| served.resident().unwrap() == all(), Duration::from_secs(10)), "{pids:?}");
    }

    #[test]
    fn counters_are_found_by_name() {
        let text = "TcpExt: SyncookiesSent SyncookiesRecv TW\nTcpExt: 12 7 3\nIpExt: InOctets\nIpExt: 5\n";
        assert_eq!((netstat(text, "SyncookiesRecv"), netstat(text, "InOctets")), (Some(7), Some(5)));
        assert_eq!(netstat(text, "None"), None);
        let stats = serde_json::json!({ "metrics": [
            { "name": "tcp_events_total", "labels": { "event": "cookie sent", "thread": "0" }, "value": 3 },
            { "name": "tcp_events_total", "labels": { "event": "cookie sent", "thread": "1" }, "value": 4 },
            { "name": "tcp_events_total", "labels": { "event": "closed" }, "value": 9 },
        ]});
        assert_eq!(tcp_event(&stats, "cookie sent"), 7);
    }
}
