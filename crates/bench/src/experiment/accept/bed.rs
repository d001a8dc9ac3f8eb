//! A laboratory with a server for each way, all up at once on ports of their own, and loads that ask one of them at a time.

use super::report::Line;
use super::{Options, WAYS};
use crate::commands::http::turn_file;
use crate::experiment::web::{json, server};
use crate::http::Outcome;
use crate::procs::{Ticks, give_way};
use anyhow::{Context as _, Result, ensure};
use lab::{Lab, Process, Side};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const START: Duration = Duration::from_secs(60);
/// How long loads may take to ask for each file once, one after the other.
const LEARNING: Duration = Duration::from_secs(600);
/// How long a load may take to end a turn, its answers waited for.
const ENDING: Duration = Duration::from_secs(60);
/// Loads are told by files of this name whom to ask, and when.
const TURN_FILE: &str = "turn";
/// Descriptors of a server beside those of its connections.
const OTHER_DESCRIPTORS: u64 = 1024;
/// How long a turn is before it is measured; a load whose clients think needs the time of a connection until all have begun.
const WARM_UP: Duration = Duration::from_millis(500);
/// Where the server that comes up first listens, on every wire; the next ones at the next ports.
const FIRST_PORT: u16 = 80;

/// What one server did in one turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    pub(super) requests_per_s: f64,
    /// of all processors, in percent of one
    pub(super) busy: f64,
    /// connections that were accepted by a thread that they had not come to, of a thousand
    pub(super) stolen: f64,
    /// flow groups taken over
    pub(super) groups_taken: u64,
    pub(super) failed: u64,
}

/// What all laboratories have in common.
pub(super) struct Folder {
    folder: tempfile::TempDir,
    simoom: PathBuf,
    /// as many as processors
    pub(super) wires: usize,
    /// the most connections of all loads together: a server has a descriptor for each
    pub(super) most: u32,
}

impl Folder {
    pub(super) fn new(simoom: PathBuf, wires: usize) -> Result<Folder> {
        let folder = tempfile::Builder::new().prefix("simoom-bench-").tempdir().context("no temporary folder")?;
        let most = u32::try_from(descriptors()?.saturating_sub(OTHER_DESCRIPTORS)).unwrap_or(u32::MAX);
        Ok(Folder { folder, simoom, wires, most })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn control(&self, way: usize) -> String {
        self.path(&format!("control-{way}")).display().to_string()
    }

    /// `simoom web` with one way for connections to get to so many threads, at its place.
    fn command(&self, way: usize, place: usize, threads: u16) -> Result<Vec<String>> {
        let cpus: Vec<String> = (0..threads).map(|processor| processor.to_string()).collect();
        let port = port(place);
        let listen: Vec<String> = (0..self.wires).map(|wire| format!("--listen 198.18.{wire}.1:{port}")).collect();
        let text = format!(
            "simoom={} web {} --cpus {} --accept {} --connections {} --per-source 1000000 --control {} {}",
            self.simoom.display(),
            listen.join(" "),
            cpus.join(","),
            WAYS[way],
            // it deals them out to its threads, and more may come to one than to another
            self.most.saturating_mul(2),
            self.control(way),
            self.path("www").display()
        );
        Ok(server(&text).map_err(anyhow::Error::msg)?.words)
    }
}

fn port(place: usize) -> u16 {
    FIRST_PORT + place as u16
}

/// How many descriptors what is begun from here on may have: as many as the kernel allows, where we may say so.
fn descriptors() -> Result<u64> {
    let most: u64 = std::fs::read_to_string("/proc/sys/fs/nr_open")?.trim().parse().context("fs.nr_open")?;
    let has = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: has.current, maximum: Some(most) });
    // even root may not, where CAP_SYS_RESOURCE was taken from it
    Ok(if raised.is_ok() { most } else { has.maximum.unwrap_or(most) })
}

/// Connections that threads accepted of their own and of others', and groups taken over, since the server began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shares {
    own: u64,
    stolen: u64,
    groups_taken: u64,
}

impl Shares {
    /// Nothing of a single thread.
    fn of(all: &serde_json::Value) -> Shares {
        let metrics = all["metrics"].as_array().map_or(&[][..], Vec::as_slice);
        let sum = |name: &str, queue: Option<&str>| -> u64 {
            let is = |it: &&serde_json::Value| {
                it["name"] == name && queue.is_none_or(|queue| it["labels"]["queue"].as_str() == Some(queue))
            };
            metrics.iter().filter(is).filter_map(|it| it["value"].as_u64()).sum()
        };
        let accepted = |queue| sum("sockets_thread_accepted_total", Some(queue));
        Shares {
            own: accepted("its own"),
            stolen: accepted("another's"),
            groups_taken: sum("sockets_thread_groups_taken_total", None),
        }
    }
}

struct Serving {
    way: usize,
    process: Process,
    /// at the end of its last turn
    shares: Shares,
}

/// One laboratory, for as many turns as are wanted.
pub(super) struct Bed<'a> {
    folder: &'a Folder,
    // before the laboratory: they end first
    loads: Vec<Process>,
    /// by place
    serving: Vec<Serving>,
    lab: Lab,
    warm_up: Duration,
    seconds: f64,
    turn: u32,
}

impl<'a> Bed<'a> {
    /// Has a server for each way, that come up in this order, and a load for each wire that knows what it asks for.
    pub(super) fn new(
        folder: &'a Folder,
        options: &Options,
        ways: [usize; WAYS.len()],
        line: &Line,
    ) -> Result<Bed<'a>> {
        let lab = Lab::with(&lab::Options { wires: folder.wires, ..lab::Options::default() })?;
        // what the server sends wakes them on the processor of the thread that sends it, which another host's could not interrupt
        for (_, thread) in lab.pin().into_iter().filter(|(side, _)| *side == Side::Client) {
            give_way(thread)?;
        }
        let warm_up = WARM_UP + Duration::from_millis((line.manner.requests * line.manner.think_ms).into());
        let mut bed =
            Bed { folder, loads: Vec::new(), serving: Vec::new(), lab, warm_up, seconds: options.seconds, turn: 0 };
        for (place, way) in ways.into_iter().enumerate() {
            let words = folder.command(way, place, line.threads)?;
            let mut command = bed.lab.server().command(&words[0]);
            command.args(&words[1..]);
            let mut process = Process::spawn(command)?;
            process.wait_for("serving on ", START).context("the server does not come up")?;
            bed.serving.push(Serving { way, process, shares: Shares::default() });
        }
        for wire in 0..folder.wires {
            let load = bed.load(line, wire)?;
            bed.loads.push(load);
        }
        bed.wait_for_loads(LEARNING).context("a load does not learn what it asks for")?;
        Ok(bed)
    }

    /// The load of a wire, from its processor.
    fn load(&self, line: &Line, wire: usize) -> Result<Process> {
        let own = std::env::current_exe().context("where this program lies")?;
        let (wires, client) = (self.folder.wires, self.lab.client());
        let (manner, connections) = (line.manner, line.connections.to_string());
        let mut load = client.command("chrt");
        load.args(["--batch", "0", "taskset", "-c", &wire.to_string()]).arg(own).arg("http");
        let addresses = format!("198.18.{wire}.16-198.18.{wire}.{}", 15 + addresses(wires));
        load.args(["--interface", client.interfaces()[wire], "--address", &addresses, "--json"]);
        load.args(["--connections", &connections, "--requests-per-connection", &manner.requests.to_string()]);
        load.args(["--think", &(f64::from(manner.think_ms) / 1e3).to_string()]);
        load.arg("--turns").arg(self.folder.path(TURN_FILE));
        // who yields again and again beside a busy server hardly ever runs (Linux 6.18 takes the rest of its slice)
        load.args(["--wait", "poll", "--warm-up", &self.warm_up.as_secs_f64().to_string()]);
        load.args(["--seconds", &self.seconds.to_string()]);
        load.arg("--urls-from").arg(self.folder.path(&format!("urls-{wire}")));
        Process::spawn(load)
    }

    fn next_file(&self) -> PathBuf {
        turn_file(&self.folder.path(TURN_FILE), self.turn + 1)
    }

    /// Until all wait for the next turn.
    fn wait_for_loads(&mut self, timeout: Duration) -> Result<()> {
        let waits = format!("waits for {}\n", self.next_file().display());
        self.loads.iter_mut().try_for_each(|load| load.wait_for(&waits, timeout))
    }

    /// Has the loads ask one way's server.
    pub(super) fn take_turn(&mut self, way: usize) -> Result<Figures> {
        let place = self.serving.iter().position(|serving| serving.way == way).context("no such server")?;
        tell(&self.next_file(), &port(place).to_string())?;
        self.turn += 1;
        std::thread::sleep(self.warm_up);
        let (ticks, begun) = (Ticks::now(None)?, Instant::now());
        std::thread::sleep(Duration::from_secs_f64(self.seconds * 0.9));
        let busy = Ticks::now(None)?.busy_s_since(ticks) / begun.elapsed().as_secs_f64() * 100.0;
        self.wait_for_loads(ENDING).context("a load does not end its turn")?;
        std::fs::remove_file(turn_file(&self.folder.path(TURN_FILE), self.turn)).context("cannot end the turn")?;
        let mut figures = Figures { busy, ..Figures::default() };
        for load in &self.loads {
            let log = load.log();
            let mut outcomes = log.lines().filter(|line| line.starts_with('{'));
            ensure!(outcomes.clone().count() == self.turn as usize, "a load did not take its turn: {}", log.trim());
            let outcome: Outcome = json(outcomes.next_back().unwrap_or_default())?;
            if outcome.bad() > 0 {
                eprintln!("what failed: {:?}; {} unanswered", outcome.failures, outcome.unfinished);
            }
            figures.requests_per_s += outcome.good_rate();
            figures.failed += outcome.bad();
        }
        let now = self.shares(way)?;
        let before = std::mem::replace(&mut self.serving[place].shares, now);
        let (own, stolen) = (now.own - before.own, now.stolen - before.stolen);
        figures.stolen = stolen as f64 * 1000.0 / (own + stolen).max(1) as f64;
        figures.groups_taken = now.groups_taken - before.groups_taken;
        Ok(figures)
    }

    fn shares(&self, way: usize) -> Result<Shares> {
        let (control, simoom) = (self.folder.control(way), self.folder.simoom.display().to_string());
        let said = self.lab.server().run(&[&simoom, "ctl", "--control", &control, "stats", "--json"])?;
        Ok(Shares::of(&serde_json::from_str(&said).context("the server's figures")?))
    }

    /// Ends the loads, then the servers.
    pub(super) fn end(mut self) -> Result<()> {
        let last = self.next_file();
        tell(&last, "")?;
        for load in &mut self.loads {
            let status = load.wait(ENDING)?;
            ensure!(status.success(), "a load failed ({status}): {}", load.log().trim());
        }
        std::fs::remove_file(&last).context("cannot end the last turn")?;
        for serving in &mut self.serving {
            serving.process.stop();
        }
        Ok(())
    }
}

/// Has a file come into being with all that is in it.
fn tell(file: &Path, text: &str) -> Result<()> {
    let made = file.with_extension("made");
    std::fs::write(&made, text).and_then(|()| std::fs::rename(&made, file)).context("cannot tell the loads whom to ask")
}

/// A load's own addresses: so many that ports last, of all together no more than half of the neighbours that Linux keeps
/// (`net.ipv4.neigh.default.gc_thresh3`, 1024); the server answers to no further ones.
fn addresses(wires: usize) -> usize {
    (512 / wires).clamp(1, 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_added_over_the_threads() {
        let sample = |name: &str, queue: &str, value: u64| serde_json::json!({ "name": name, "labels": { "queue": queue, "thread": "0" }, "value": value });
        let accepted = "sockets_thread_accepted_total";
        let all = serde_json::json!({ "metrics": [
            sample(accepted, "its own", 3), sample(accepted, "its own", 4), sample(accepted, "another's", 5),
            sample("sockets_thread_groups_taken_total", "", 6), sample("others", "its own", 7),
        ]});
        assert_eq!(Shares::of(&all), Shares { own: 7, stolen: 5, groups_taken: 6 });
    }

    #[test]
    fn a_server_gets_a_processor_for_each_thread_and_a_port_of_its_own() {
        let folder = Folder { most: 500, ..Folder::new(PathBuf::from("/s"), 3).unwrap() };
        let words = folder.command(1, 2, 2).unwrap().join(" ");
        let listen = "--listen 198.18.0.1:82 --listen 198.18.1.1:82 --listen 198.18.2.1:82";
        let expected = format!("/s web {listen} --cpus 0,1 --accept per-core --connections 1000 ");
        assert!(words.starts_with(&expected), "{words}");
    }
}
