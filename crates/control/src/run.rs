//! Applications in processes of their own: their channels, who keeps their processes, and what they become before they run.
//!
//! To become another user and to have a network namespace of one's own takes privileges, and a server has none left when an
//! application has to be started again. So each is kept by a process (`simoom keep-app`) that the server starts before it drops its
//! privileges. It starts the program, waits for its end, says so over a socket, and starts it again when it is told; when the socket
//! closes, however the server has ended, the program is killed. Between the keeper and the program stands `simoom enter-app`, which
//! becomes the application's user, in a network namespace without a device, without capabilities and a way to gain any, with bounds for its
//! memory and its threads, under a filter of system calls, and then executes the program in its own place. What the program writes
//! to its standard output the keeper passes on.
//!
//! In the server a thread for each application ([`supervise`]) follows what the keeper says: the engine's threads reset the connections
//! of one that has ended, and when all have, it is started again, after a while that grows while it ends soon.

mod enter;
mod keep;
mod keeper;
mod output;
mod services;
mod slow;

pub(crate) use enter::enter;
pub(crate) use keep::{EnterCommand, keep};
pub(crate) use services::{EchoApp, KvApp, echo, kv};

use crate::config::{Bounds, Settings, Times};
use crate::error::{Error, reason};
use crate::launch;
use crate::privileges::Identity;
use crate::service::Division;
use crate::words::{Cpus, Peers, Placement, Threads};
use app::Bound;
use base::counter::Report;
use guard::stats::Stats;
use guard::{Channel, Grant, Granted, Options, Permit, Place, Remote, State, Status};
use keeper::{Keeper, Started};
use slow::Watch;
use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a thread that serves an engine's may map beside what the application may: its stack, what its allocator sets aside for it, and what
/// it shares with the engine's.
const THREAD_BYTES: u64 = 128 << 20;
/// How long an application on a processor of its own looks for events before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// How long an application may take to find its memory.
const STARTS_WITHIN: Duration = Duration::from_secs(10);
/// How soon one that has ended is started again, at first and at most; for one that ran so long it is as at first.
const RESTART_FIRST: Duration = Duration::from_millis(100);
const RESTART_MOST: Duration = Duration::from_secs(10);
const RAN_WELL: Duration = Duration::from_secs(1);
/// How often a thread that waits looks for what nobody tells it.
const LOOK: Duration = Duration::from_millis(20);

/// The engine's end of one application, with the listeners that it was granted.
pub(crate) struct Placed {
    pub(crate) listeners: Range<u16>,
    pub(crate) remote: Remote,
}

#[derive(Debug)]
struct Seat {
    listeners: Range<u16>,
    /// over all threads
    connections: Bound,
    times: Times,
    /// one for each thread of each engine, and its counters
    channels: Vec<(Arc<Channel>, Arc<Stats>)>,
    /// what the application's own counters say, a block a thread, where we know what they are called
    status: Vec<Arc<Status>>,
}

/// The engines' ends of all applications.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seats(Arc<(Vec<Seat>, AtomicUsize)>);

impl Seats {
    /// So many threads' ends, for one engine; the number of the first.
    pub(crate) fn take(&self, threads: usize) -> usize {
        self.0.1.fetch_add(threads, Ordering::Relaxed)
    }

    /// The ends of a thread, numbered over all engines.
    pub(crate) fn remotes(&self, thread: usize) -> Vec<Placed> {
        let placed = |seat: &Seat| {
            let (channel, stats) = seat.channels.get(thread)?;
            let options = Options {
                unresponsive: seat.times.slow_after,
                patience: seat.times.reset_after,
                connections: Some(seat.connections.clone()),
                ..Options::default()
            };
            let remote = Remote::new(channel.clone(), options, stats.clone());
            Some(Placed { listeners: seat.listeners.clone(), remote })
        };
        self.0.0.iter().filter_map(placed).collect()
    }

    /// Every thread's counters.
    pub(crate) fn stats(&self) -> impl Iterator<Item = Arc<Stats>> {
        self.0.0.iter().flat_map(|seat| seat.channels.iter().map(|(_, stats)| stats.clone()))
    }

    /// What our own services count that have processes of their own.
    pub(crate) fn status(&self) -> impl Iterator<Item = Arc<Status>> {
        self.0.0.iter().flat_map(|seat| seat.status.iter().cloned())
    }
}

/// An application that is kept, and not started yet.
#[derive(Debug)]
struct App {
    name: String,
    restart: bool,
    keeper: Keeper,
    channels: Vec<Arc<Channel>>,
    slow: Watch,
    /// the server's end of what tells the application that the server is there
    _life: UnixStream,
    /// what could not be had for it, as was said
    lacks: String,
}

/// What an application is started as.
struct Wanted {
    name: String,
    program: Vec<String>,
    listeners: Range<u16>,
    place: Placement,
    user: Option<String>,
    restart: bool,
    connections: usize,
    /// whom it may begin something with
    permits: Vec<Permit>,
    shows: Shows,
    share: u32,
    bounds: Bounds,
    times: Times,
}

/// Whose counters an application shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shows {
    Nothing,
    Kv,
    Echo,
}

impl Shows {
    /// Counters of the kinds that a thread of the application has.
    fn kinds(self, thread: usize) -> Vec<Arc<dyn Report>> {
        match self {
            Shows::Nothing => Vec::new(),
            Shows::Kv => services::kv_kinds(thread),
            Shows::Echo => services::echo_kinds(),
        }
    }
}

/// A word of the settings as the guard has it.
fn permit(peers: &Peers) -> Permit {
    Permit::new(peers.prefix.address, peers.prefix.bits, peers.port)
}

/// The services and programs that have processes of their own.
fn wanted(settings: &Settings, division: Division) -> Vec<Wanted> {
    let mut all = Vec::new();
    let user = settings.app_user.as_ref().or(settings.user.as_ref());
    let own = |name: &str, shows, program: Vec<String>, listeners, place, connections, bounds| Wanted {
        name: name.to_owned(),
        program: [vec!["/proc/self/exe".to_owned()], program].concat(),
        listeners,
        place,
        user: user.cloned(),
        restart: true,
        connections,
        permits: Vec::new(),
        shows,
        share: 1,
        bounds,
        times: Times::default(),
    };
    if let Some(kv) = settings.kv.as_ref().filter(|kv| kv.place != Placement::Inline) {
        let listeners = division.kv_from..division.echo_from;
        let arguments = services::kv_arguments(kv);
        all.push(own("kv", Shows::Kv, arguments, listeners, kv.place, kv.connections, services::kv_bounds(kv)));
    }
    if let Some(echo) = settings.echo.as_ref().filter(|echo| echo.place != Placement::Inline) {
        let listeners = division.echo_from..division.app_from;
        let arguments = services::echo_arguments(echo);
        all.push(own("echo", Shows::Echo, arguments, listeners, echo.place, 1, Bounds::default()));
    }
    let mut from = division.app_from;
    for app in &settings.apps {
        let listeners = from..from + app.listen.len() as u16;
        from = listeners.end;
        all.push(Wanted {
            name: app.name.clone(),
            program: app.program.clone(),
            listeners,
            place: app.place,
            user: app.user.as_ref().or(user).cloned(),
            restart: app.restart,
            connections: app.connections,
            permits: app.connect.iter().map(permit).collect(),
            shows: Shows::Nothing,
            share: app.share,
            bounds: app.bounds,
            times: app.times,
        });
    }
    all
}

/// Who they are to be.
///
/// # Errors
/// No such user.
pub(crate) fn users(settings: &Settings, division: Division) -> Result<Vec<Identity>, Error> {
    let all = wanted(settings, division);
    let users = all.iter().map(|wanted| enter::identity(wanted.user.as_deref(), &wanted.name));
    users.filter_map(Result::transpose).collect()
}

/// The nicest that a process can be (setpriority(2)).
const NICEST: i32 = 19;

/// How much nicer than the server, which is so nice itself, each application is, so that those with a processor in common divide it by their
/// shares: the scheduler gives a process 1.25 times the time of one that is nicer by 1. The largest share is as nice as the server, since
/// to be less takes a privilege. Where the smallest would be nicer than can be, all on its processor are as much nearer to each other.
fn nices(all: &[Wanted], server: i32) -> Vec<i32> {
    let nice = |wanted: &Wanted| match wanted.place {
        Placement::Cpu(_) => {
            let shares = all.iter().filter(|it| it.place == wanted.place).map(|it| it.share);
            let (least, most) = (shares.clone().min().unwrap_or(1), shares.max().unwrap_or(1));
            let steps = |share: u32| (f64::from(most) / f64::from(share)).ln() / 1.25f64.ln();
            let (has, needs) = (f64::from(NICEST - server), steps(least).round());
            let part = if needs > has { has / needs } else { 1.0 };
            (steps(wanted.share) * part).round() as i32
        }
        _ => 0,
    };
    all.iter().map(nice).collect()
}

/// Applications whose memory is there and whose keepers wait.
#[derive(Debug)]
pub(crate) struct Apps {
    seats: Seats,
    apps: Vec<App>,
}

impl Apps {
    /// Makes the memory for engines whose threads run on these processors, where they have one, and starts the keepers. Needs the
    /// privileges that they keep, and users that were found ([`users`]).
    ///
    /// # Errors
    /// No memory, no process.
    pub(crate) fn open(settings: &Settings, division: Division, threads: &[Option<usize>]) -> Result<Apps, Error> {
        let (mut seats, mut apps) = (Vec::new(), Vec::new());
        let all = wanted(settings, division);
        if all.iter().any(|wanted| wanted.shows == Shows::Kv) {
            // an interface's queues are known only now
            launch::stores_have_room(settings, threads.len())?;
        }
        if settings.threads == Threads::Elastic && !all.is_empty() {
            tracing::info!(
                "--threads elastic: with an application no connection changes its thread, so one that is not needed serves those that it has until they end"
            );
        }
        let server = rustix::process::getpriority_process(None).unwrap_or(0);
        let nices = nices(&all, server);
        if nices != self::nices(&all, 0) {
            tracing::warn!(
                "the server itself is nice by {server}, and nobody by more than {NICEST}: what applications have of a processor differs less than their shares; start it with Nice=0"
            );
        }
        for (wanted, nice) in all.into_iter().zip(nices) {
            let failed =
                |error: std::io::Error| Error::environment(format!("application {}: {}", wanted.name, reason(&error)));
            let connections = Bound::new(wanted.connections).among(threads.len());
            let place = |cpu: &Option<usize>| match wanted.place {
                Placement::Cpu(cpu) => (Place::Other { spin: SPIN }, Some(cpu)),
                _ => (Place::Same, cpu.map(|cpu| cpu as u32)),
            };
            let places: Vec<_> = threads.iter().map(place).collect();
            let channel = |(thread, (place, cpu)): (usize, &(Place, Option<u32>))| {
                let grant =
                    Grant::new(connections.most() as u32, wanted.listeners.clone()).permitting(wanted.permits.clone());
                Channel::new(thread as u16, *place, *cpu, grant)
            };
            let channels = places.iter().enumerate().map(channel).collect::<Result<Vec<_>, _>>().map_err(failed)?;
            // one of its threads whose engine's may run anywhere runs on those that the others have
            let cpus: BTreeSet<_> = places.iter().filter_map(|(_, cpu)| cpu.map(|cpu| cpu as usize)).collect();
            let cpus = Some(Cpus(cpus.into_iter().collect())).filter(|cpus| !cpus.0.is_empty());
            let (life, theirs) = UnixStream::pair().map_err(failed)?;
            let granted = Granted::of(theirs.as_fd(), &channels);
            let descriptors = channels.iter().flat_map(|channel| channel.descriptors()).chain([theirs.as_fd()]);
            let entered = EnterCommand {
                name: wanted.name.clone(),
                user: wanted.user.clone(),
                nice: nice.to_string(),
                cpus,
                memory_bytes: wanted.bounds.memory_bytes.saturating_add(THREAD_BYTES * threads.len() as u64),
                threads: u64::from(wanted.bounds.threads) + threads.len() as u64,
                grant: granted.encode(),
                program: wanted.program.clone(),
            };
            let keeper = Keeper::spawn(&entered, descriptors)
                .map_err(|why| Error::environment(format!("application {}: {why}", wanted.name)))?;
            let with_stats = |channel: &Arc<Channel>| (channel.clone(), Arc::new(Stats::new(&wanted.name)));
            let channels_of_seat: Vec<_> = channels.iter().map(with_stats).collect();
            let all_stats = channels_of_seat.iter().map(|(_, stats)| stats.clone()).collect();
            let status = |(thread, channel): (usize, &Arc<Channel>)| {
                Arc::new(Status::new(channel.clone(), &wanted.shows.kinds(thread)))
            };
            let status = channels.iter().enumerate().map(status).collect();
            let (listeners, times) = (wanted.listeners, wanted.times);
            seats.push(Seat { listeners, connections, times, channels: channels_of_seat, status });
            apps.push(App {
                name: wanted.name,
                restart: wanted.restart,
                keeper,
                channels,
                slow: Watch::new(all_stats, times),
                _life: life,
                lacks: String::new(),
            });
        }
        Ok(Apps { seats: Seats(Arc::new((seats, AtomicUsize::new(0)))), apps })
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.apps.is_empty()
    }

    /// The engines' ends.
    pub(crate) fn seats(&self) -> Seats {
        self.seats.clone()
    }

    /// Starts every application and waits until each has found its memory.
    ///
    /// # Errors
    /// One that does not.
    pub(crate) fn start(self) -> Result<Supervised, Error> {
        let thread =
            |error: std::io::Error| Error::environment(format!("a thread cannot be started: {}", reason(&error)));
        let stop = Arc::<AtomicBool>::default();
        let mut supervised = Supervised { stop: stop.clone(), threads: Vec::new(), channels: Vec::new() };
        for mut app in self.apps {
            for channel in &app.channels {
                supervised.threads.push(channel.attend().map_err(thread)?);
                supervised.channels.push(channel.clone());
            }
            let (ready, is_ready) = mpsc::sync_channel(1);
            let (name, stop) = (app.name.clone(), stop.clone());
            let supervisor = std::thread::Builder::new().name(format!("app-{name}"));
            let join = supervisor.spawn(move || app.supervise(&stop, &ready)).map_err(thread)?;
            supervised.threads.push(join);
            match is_ready.recv() {
                Ok(Ok(())) => {}
                Ok(Err(why)) => return Err(Error::environment(format!("application {name}: {why}"))),
                Err(_) => return Err(Error::environment(format!("application {name}: nobody supervises it"))),
            }
        }
        Ok(supervised)
    }
}

/// Applications at work. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Supervised {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    channels: Vec<Arc<Channel>>,
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.channels.iter().for_each(|channel| channel.end());
        for thread in self.threads.drain(..) {
            // one that panicked was shown by the panic hook
            let _ = thread.join();
        }
    }
}

impl App {
    /// Starts the application, and again when it has ended.
    fn supervise(&mut self, stop: &AtomicBool, ready: &mpsc::SyncSender<Result<(), String>>) {
        let mut rest = RESTART_FIRST;
        // also between two lives: one that begins in a server that ends is for nothing
        while !stop.load(Ordering::Acquire) {
            let began = Instant::now();
            let outcome = self.run_once(stop, ready);
            self.channels.iter().for_each(|channel| channel.lose());
            if stop.load(Ordering::Acquire) {
                return;
            }
            let (why, done) = match outcome {
                Ok(why) => (why, !self.restart),
                Err(why) => (why, true),
            };
            // for who waits for the first start; later nobody does
            let _ = ready.try_send(Err(why.clone()));
            if done {
                tracing::error!("application {}: {why}; it is not started again", self.name);
                return;
            }
            rest = if began.elapsed() > RAN_WELL { RESTART_FIRST } else { rest };
            tracing::warn!("application {}: {why}; it is started again in {} ms", self.name, rest.as_millis());
            let until = Instant::now() + rest;
            rest = (rest * 2).min(RESTART_MOST);
            if let Err(why) = self.rest(until, stop) {
                tracing::error!("application {}: {why}; it is not started again", self.name);
                return;
            }
        }
    }

    /// Waits until then, and longer for an end that takes its time; no longer than until the stop.
    fn rest(&mut self, until: Instant, stop: &AtomicBool) -> Result<(), String> {
        let is_clean = |channel: &Arc<Channel>| channel.state() == State::Down;
        while Instant::now() < until || !self.channels.iter().all(is_clean) || self.keeper.runs()? {
            if stop.load(Ordering::Acquire) {
                break;
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// One life of the application: how it ended, or why it has not begun; an error when its keeper has ended.
    fn run_once(&mut self, stop: &AtomicBool, ready: &mpsc::SyncSender<Result<(), String>>) -> Result<String, String> {
        if !self.channels.iter().all(|channel| channel.open()) {
            return Err("its memory is in use".into());
        }
        let Started { pid, lacks } = match self.keeper.start()? {
            Ok(started) => started,
            Err(why) => return Ok(why),
        };
        if self.lacks != lacks {
            if !lacks.is_empty() {
                tracing::warn!(
                    "application {}: process {pid} has no {lacks}; start the server as root, and where user namespaces are allowed",
                    self.name
                );
            }
            self.lacks = lacks;
        }
        let until = Instant::now() + STARTS_WITHIN;
        let mut attached = false;
        while !stop.load(Ordering::Acquire) {
            if !attached && self.channels.iter().all(|channel| channel.is_attached()) {
                attached = true;
                tracing::info!("application {}: process {pid} is there", self.name);
                // who waits for the first start; later nobody does
                let _ = ready.try_send(Ok(()));
            }
            if !attached && Instant::now() >= until {
                self.keeper.end()?;
                return Ok(format!("process {pid} did not take its memory in {} s", STARTS_WITHIN.as_secs()));
            }
            if self.channels.iter().any(|channel| channel.is_condemned()) {
                self.keeper.end()?;
                return Ok(format!("process {pid} was ended with the service that it belonged to"));
            }
            self.slow.look(&self.name);
            let patience = if attached { LOOK } else { Duration::from_millis(1) };
            if let Some(how) = self.keeper.hear(patience)? {
                return Ok(format!("process {pid} has ended: {how}"));
            }
        }
        Ok("stopping".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_started_once_the_server_is_to_stop() {
        let (keeper, mut told) = Keeper::played();
        let (life, _) = UnixStream::pair().unwrap();
        let (name, channels, lacks) = ("a".to_owned(), Vec::new(), String::new());
        let slow = Watch::new(Vec::new(), Times::default());
        let mut app = App { name, restart: true, keeper, channels, slow, _life: life, lacks };
        let (ready, _is_ready) = mpsc::sync_channel(1);
        // as a stop while one that has ended rests leaves it
        app.supervise(&AtomicBool::new(true), &ready);
        drop(app);
        let mut words = String::new();
        std::io::Read::read_to_string(&mut told, &mut words).unwrap();
        assert_eq!(words, "");
    }

    #[test]
    fn shares_are_told_among_those_that_have_a_processor_in_common() {
        let app = |name: &str, more: &str| {
            format!("[[app]]\nname = \"{name}\"\nprogram = [\"/bin/true\"]\nlisten = [\"192.0.2.1:7\"]\n{more}")
        };
        let text = [
            app("a", "place = \"cpu=1\"\nshare = 64\n"),
            app("b", "place = \"cpu=1\"\nshare = 16\n"),
            app("c", "place = \"cpu=1\"\n"),
            app("d", "place = \"cpu=2\"\nshare = 2\n"),
            app("e", "place = \"cpu=3\"\n"),
            app("f", ""),
        ];
        let settings = crate::config::from_text("s.toml", &text.concat()).unwrap();
        let division = Division { web_from: 0, kv_from: 0, echo_from: 0, app_from: 0 };
        // 1.25^6 is 3.8, 1.25^19 is 69
        let all = wanted(&settings, division);
        for server in [-20, 0] {
            assert_eq!(nices(&all, server), [0, 6, 19, 0, 0, 0]);
        }
        // a server that is nice itself leaves fewer steps, of which each has its part; elsewhere there are enough
        assert_eq!(nices(&all, 10), [0, 3, 9, 0, 0, 0]);
        assert_eq!(nices(&all, 17), [0, 1, 2, 0, 0, 0]);
        assert_eq!(nices(&all, 19), [0; 6]);
    }
}
