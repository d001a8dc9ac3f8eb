//! The engines: opened before privileges go, started after, stopped together.
//!
//! Kernel sockets serve every listener that the kernel has an address for. With an interface, AF_XDP takes the UDP of DNS's
//! listeners and the TCP of the web's and the key-value store's; what it leaves to the kernel (fragments, IP options, DNS over TCP, what comes in
//! elsewhere) finds the sockets there.

mod behind;
mod check;
mod kernel;
mod limits;
mod listeners;
mod routers;
mod sharing;
mod slow;
pub(crate) mod tiers;
mod watchdog;
mod xdp;

use crate::config::Settings;
use crate::error::{Error, reason};
use crate::metrics::Registry;
use crate::service::{Division, Plan};
use crate::wall;
use crate::words::{Backend, Threads, Tier, Transmit, WebTransmit};
pub(crate) use check::{check, stores_have_room};

use base::Clock;
use base::ring::Consumer;
use bpf::steering::Answers;
use dataplane::tap::{Copy, tap};
use kernel::open_sockets;
use listeners::{Listening, division, listeners};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sockets::Engine;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Descriptors beside those of connections: listeners, polls, files, the control socket's and the metrics' clients.
const OTHER_DESCRIPTORS: usize = 512;

/// Everything bound, nothing started.
#[derive(Debug)]
pub(crate) struct Opened {
    listeners: Vec<Listening>,
    division: Division,
    sockets: Option<Engine>,
    socket_threads: usize,
    xdp: Option<xdp::Opened>,
    fell_back: bool,
}

/// Threads that serve, as far as that is known before an interface's queues are.
pub(crate) fn threads(settings: &Settings) -> usize {
    match &settings.cpus {
        Some(cpus) => cpus.len(),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    }
}

/// Binds every socket, or takes one that was inherited, then attaches to the interfaces.
///
/// # Errors
/// An address or an interface that cannot be had, and why; nothing stays bound or attached then.
pub(crate) fn open(settings: &Settings, inherited: Vec<OwnedFd>) -> Result<Opened, Error> {
    raise_descriptors(settings);
    let listeners = listeners(settings);
    let division = division(settings);
    let threads = threads(settings);
    let alone = |sockets, fell_back| Opened {
        listeners: listeners.clone(),
        division,
        sockets,
        socket_threads: threads,
        xdp: None,
        fell_back,
    };
    if settings.backend == Backend::Sockets {
        if !settings.interfaces.is_empty() {
            tracing::info!(
                "--backend sockets: the listeners say where; --interface says no more than whose table may follow"
            );
        }
        say_what_has_no_effect(settings);
        return Ok(alone(open_sockets(settings, &listeners, true, threads, inherited)?, false));
    }
    refuse_the_kernels(settings)?;
    let answers = tiers::answers(settings, &listeners)?;
    let beside = |inherited| open_sockets(settings, &listeners, false, 1, inherited);
    let attached = || xdp::open(settings, &listeners, answers.as_ref());
    // First the sockets: a port in use is found before anything is attached. Beside AF_XDP they get what is rare. But those that were left by
    // an earlier server may be of either kind, and what waits there is lost with those that are not used: then it has to be known first
    // which are wanted, and the ports are ours already.
    let (sockets, xdp, inherited) = if inherited.is_empty() {
        (Some(beside(Vec::new())?), attached(), Vec::new())
    } else {
        (None, attached(), inherited)
    };
    let why = match xdp {
        Ok(xdp) => {
            let sockets = sockets.map_or_else(|| beside(inherited), Ok)?;
            return Ok(Opened { listeners, division, sockets, socket_threads: 1, xdp: Some(xdp), fell_back: false });
        }
        Err(Error::Environment(why)) if settings.backend == Backend::Auto => why.join(" "),
        Err(error) => return Err(error),
    };
    refuse_what_sockets_lack(settings, &why)?;
    drop(sockets);
    tracing::warn!("kernel sockets serve instead of AF_XDP: {why}");
    say_what_has_no_effect(settings);
    Ok(alone(open_sockets(settings, &listeners, true, threads, inherited)?, true))
}

/// What was asked for that is for our own stack alone.
fn say_what_has_no_effect(settings: &Settings) {
    if settings.threads == Threads::Elastic {
        tracing::info!("--threads elastic has no effect on kernel sockets, where all threads serve");
    }
    if settings.dns.as_ref().is_some_and(|dns| dns.transmit == Transmit::Copy) {
        tracing::info!("--transmit copy has no effect on kernel sockets, which copy every datagram");
    }
    if settings.web.as_ref().is_some_and(|web| web.transmit == WebTransmit::Offload) {
        tracing::info!("--transmit offload has no effect on kernel sockets, where the kernel does so by itself");
    }
}

/// Every connection is a descriptor, and the usual limit is 1024: takes what the hard limit allows, and says when it is short.
fn raise_descriptors(settings: &Settings) {
    let needed = (limits::connections(settings) + OTHER_DESCRIPTORS) as u64;
    let has = getrlimit(Resource::Nofile);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if enough(has.current) {
        return;
    }
    let most = if enough(has.maximum) { Some(needed) } else { has.maximum };
    let raised = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: has.maximum }).is_ok();
    if !raised || !enough(most) {
        let allowed = if raised { most } else { has.current }.unwrap_or(u64::MAX);
        tracing::warn!(
            "{needed} descriptors are needed for all connections and {allowed} are allowed: raise LimitNOFILE or `ulimit -Hn`, or give fewer --connections"
        );
    }
}

/// What was asked for that kernel sockets cannot do is no reason to serve without it.
fn refuse_what_sockets_lack(settings: &Settings, why: &str) -> Result<(), Error> {
    if !settings.own.is_empty() {
        return Err(Error::environment(format!("{why}; kernel sockets cannot serve --own addresses")));
    }
    if let Some(tier) =
        settings.dns.as_ref().map(|dns| dns.tier).filter(|tier| matches!(tier, Tier::Driver | Tier::Xdp))
    {
        return Err(Error::environment(format!("{why}; --tier {tier} needs AF_XDP: give --tier auto")));
    }
    if !settings.allow.is_empty() || !settings.deny.is_empty() {
        // to serve those whom the operator shut out would be worse than not to serve
        return Err(Error::environment(format!("{why}; kernel sockets cannot apply --allow and --deny: use nftables")));
    }
    Ok(())
}

/// Own addresses must be nobody's, or the kernel's SSH there would end with us: everything to an own address is taken.
fn refuse_the_kernels(settings: &Settings) -> Result<(), Error> {
    if settings.own.is_empty() {
        return Ok(());
    }
    let kernels = port_xdp::device::addresses()
        .map_err(|error| Error::environment(format!("the machine's addresses: {}; see `ip addr`", reason(&error))))?;
    let place = settings.file.as_ref().map_or("--own".to_owned(), |file| format!("{file}: dataplane.own"));
    let both = settings.own.iter().filter_map(|own| kernels.iter().find(|kernel| kernel.address == own.0.address));
    let lines: Vec<String> = both
        .map(|kernel| {
            let (at, bits) = (kernel.address, kernel.prefix_bits);
            format!("{place}: the kernel has {at}; leave it out to share the address, or take it from the kernel with `ip addr del {at}/{bits} dev IF`")
        })
        .collect();
    if lines.is_empty() { Ok(()) } else { Err(Error::Input(lines)) }
}

impl Opened {
    /// The processor of each thread that will serve, in the order in which all engines' threads are numbered; None where it has none.
    pub(crate) fn engine_cpus(&self, settings: &Settings) -> Vec<Option<usize>> {
        let of_sockets = self.sockets.as_ref().map_or(0, |_| self.socket_threads);
        numbered(settings.cpus.as_deref().unwrap_or_default(), of_sockets, self.xdp_threads())
    }

    /// Of those the ones of AF_XDP.
    pub(crate) fn xdp_threads(&self) -> usize {
        self.xdp.as_ref().map_or(0, xdp::Opened::threads)
    }

    /// Every kernel socket.
    pub(crate) fn kernel_sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().flat_map(Engine::sockets)
    }

    /// The programs that answer by themselves, by interface; they are to be filled in.
    pub(crate) fn answers(&self) -> Vec<(String, Answers)> {
        self.xdp.iter().flat_map(xdp::Opened::answers).collect()
    }

    /// Whose listener is whose.
    pub(crate) fn division(&self) -> Division {
        self.division
    }

    /// Starts every thread.
    ///
    /// # Errors
    /// The kernel's; what was started is stopped.
    pub(crate) fn start(self, settings: &Settings, plan: &Plan, registry: &Arc<Registry>) -> Result<Running, Error> {
        let listen = self.listeners.iter().map(|at| at.address.to_string()).collect();
        let mut running = Running {
            engines: Mutex::default(),
            threads: 0,
            listen,
            backend: String::new(),
            fell_back: self.fell_back,
        };
        let cannot = |what: &str, error| Error::environment(format!("{what}: {}; see --cpus", reason(&error)));
        let mut engines = Engines::default();
        if let Some(engine) = self.sockets {
            let services = plan.maker(self.socket_threads, true);
            let sockets =
                engine.start(move |thread| services.make(thread)).map_err(|error| cannot("sockets", error))?;
            sockets.counters().for_each(|counters| registry.add(counters.clone()));
            registry.add(sockets.unqueued().clone());
            sockets.sharing().for_each(|sharing| registry.add(sharing.clone()));
            if let Some(nic) = sockets.nic() {
                registry.add(nic.clone());
            }
            sockets.notes().iter().for_each(|note| tracing::info!("{note}"));
            running.threads += self.socket_threads;
            running.backend = format!("sockets, {}", count(self.socket_threads, "thread"));
            engines.sockets = Some(sockets);
        }
        if let Some(xdp) = self.xdp {
            let threads = xdp.threads();
            // where threads come and go, one may come to have all connections
            let share = if settings.threads == Threads::Elastic { 1 } else { threads };
            let tcp = limits::on_stack(settings, &self.listeners, threads, share, plan.secret());
            let services = plan.maker(threads, tcp.is_some()).watched();
            let stack = xdp::stack_config(settings, &self.listeners, tcp, plan.seed());
            let xdp = xdp.start(settings, stack, services, registry).map_err(|error| cannot("AF_XDP", error))?;
            running.threads += threads;
            running.backend = format!("AF_XDP: {}", xdp.described.join("; "));
            engines.xdp = Some(xdp);
        }
        let of_sockets = engines.sockets.iter().flat_map(|it| it.cycles());
        let cycles: Vec<_> =
            engines.xdp.iter().flat_map(|it| it.dataplane.cycles()).chain(of_sockets).cloned().collect();
        cycles.iter().for_each(|cycles| registry.add(cycles.clone()));
        let slow =
            slow::SlowWatch::start(cycles, settings.slow_after).map_err(|error| cannot("starting a thread", error))?;
        registry.add(slow.unresponsive().clone());
        engines.slow = Some(slow);
        running.engines = Mutex::new(engines);
        Ok(running)
    }
}

/// The processors of kernel sockets' threads and then AF_XDP's; the former have none beside the latter.
fn numbered(cpus: &[usize], of_sockets: usize, of_xdp: usize) -> Vec<Option<usize>> {
    let of = |thread: usize| cpus.get(thread.checked_rem(cpus.len())?).copied();
    let of_sockets = (0..of_sockets).map(|thread| of(thread).filter(|_| of_xdp == 0));
    of_sockets.chain((0..of_xdp).map(of)).collect()
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[derive(Debug, Default)]
struct Engines {
    /// says which service keeps its thread
    slow: Option<slow::SlowWatch>,
    xdp: Option<xdp::Running>,
    tapped: bool,
    sockets: Option<sockets::Running>,
}

/// The engines at work.
#[derive(Debug)]
pub(crate) struct Running {
    engines: Mutex<Engines>,
    threads: usize,
    listen: Vec<String>,
    backend: String,
    fell_back: bool,
}

impl Running {
    /// One whose engines have ended.
    #[cfg(test)]
    pub(crate) fn ended() -> Running {
        let (listen, backend) = (Vec::new(), String::new());
        Running { engines: Mutex::default(), threads: 0, listen, backend, fell_back: false }
    }

    fn engines(&self) -> MutexGuard<'_, Engines> {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The clock of the threads of AF_XDP; None without them.
    pub(crate) fn clock(&self) -> Option<Clock> {
        self.engines().xdp.as_ref().map(|xdp| xdp.dataplane.clock())
    }

    /// Makes sleeping threads begin a cycle.
    pub(crate) fn wake(&self) {
        let engines = self.engines();
        if let Some(xdp) = &engines.xdp {
            xdp.dataplane.wake();
        }
        if let Some(sockets) = &engines.sockets {
            sockets.wake();
        }
    }

    /// Begins to end: idle connections are closed, new ones refused.
    pub(crate) fn drain(&self) {
        let engines = self.engines();
        if let Some(xdp) = &engines.xdp {
            xdp.dataplane.command(|_, _, stack| stack.drain());
        }
        if let Some(sockets) = &engines.sockets {
            sockets.drain();
        }
    }

    /// Connections that are open.
    pub(crate) fn stream_connections(&self) -> u64 {
        let engines = self.engines();
        let sockets = engines.sockets.iter().flat_map(|it| it.counters()).map(|counters| counters.connections.get());
        let stacks = engines.xdp.iter().flat_map(|it| it.connections());
        sockets.chain(stacks).sum()
    }

    /// Has thread `to` take at most `count` flow groups over from thread `from`; how many were asked for, or why none can be.
    pub(crate) fn move_groups(&self, from: usize, to: usize, count: usize) -> Result<usize, String> {
        match &self.engines().xdp {
            Some(xdp) => xdp.move_groups(from, to, count),
            None => Err("the server is on kernel sockets, where threads take groups over by themselves".into()),
        }
    }

    /// Has so many threads of each interface serve; what was done, or why it cannot be.
    pub(crate) fn set_threads(&self, count: usize) -> Result<String, String> {
        match &self.engines().xdp {
            Some(xdp) => xdp.set_threads(count),
            None => Err("the server is on kernel sockets, where all threads serve".into()),
        }
    }

    /// Connections of our own stack as they stand, `most` at most, and whether there are more; None without AF_XDP.
    pub(crate) fn views(&self, most: usize) -> Option<(Vec<stack::tcp::View>, bool)> {
        // held over the walk, so that the engines do not go meanwhile
        self.engines().xdp.as_ref().map(|xdp| xdp.views(most))
    }

    /// Begins to copy the frames of every queue into rings of `frames`; None without AF_XDP, or while that is done already.
    pub(crate) fn tap(&self, frames: usize) -> Option<Vec<Consumer<Copy>>> {
        let mut engines = self.engines();
        if engines.tapped || engines.xdp.is_none() {
            return None;
        }
        engines.tapped = true;
        let dataplane = &engines.xdp.as_ref()?.dataplane;
        let taps = (0..dataplane.counters().count()).map(|thread| {
            let (tap, reader) = tap(frames);
            dataplane.tap(thread, Some(tap));
            reader
        });
        Some(taps.collect())
    }

    /// Ends what [`Running::tap`] began.
    pub(crate) fn untap(&self) {
        let mut engines = self.engines();
        engines.tapped = false;
        if let Some(xdp) = &engines.xdp {
            for thread in 0..xdp.dataplane.counters().count() {
                xdp.dataplane.tap(thread, None);
            }
        }
    }

    /// Nanoseconds since 1970 at the zero of the copies' times, by the machine's clock as it is set now; None without AF_XDP.
    pub(crate) fn tap_clock(&self) -> Option<u64> {
        self.clock().map(|clock| wall::unix_at_zero(&clock).as_nanos() as u64)
    }

    /// Frames that passed while the taps' readers had no room.
    pub(crate) fn tap_missed(&self) -> u64 {
        let engines = self.engines();
        engines.xdp.as_ref().map_or(0, |xdp| xdp.dataplane.counters().map(|counters| counters.tap_missed.get()).sum())
    }

    /// Serving threads.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Where it listens.
    pub(crate) fn listen(&self) -> Vec<String> {
        self.listen.clone()
    }

    /// In words, what carries the packets.
    pub(crate) fn backend(&self) -> String {
        self.backend.clone()
    }

    /// Whether AF_XDP was wanted and could not be had.
    pub(crate) fn fell_back(&self) -> bool {
        self.fell_back
    }

    /// Stops every thread.
    pub(crate) fn stop(&self) {
        let Engines { xdp, sockets, .. } = std::mem::take(&mut *self.engines());
        if let Some(xdp) = xdp {
            xdp.stop();
        }
        if let Some(sockets) = sockets {
            sockets.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const DNS: &str =
        "[dns]\ntcp-connections = 10\ntcp-memory = 8\ntcp-backlog = 9\n[[dns.zone]]\nfile = \"z\"\n";
    pub(super) const WEB: &str = "[web]\nroot = \"/nowhere\"\nconnections = 100\nper-source = 50\n";

    pub(super) fn settings(text: &str) -> Settings {
        crate::config::from_text("s.toml", text).unwrap()
    }
    #[test]
    fn threads_are_numbered_over_both_engines_and_have_the_processors_of_their_own() {
        let [two, three] = [2, 3].map(Some);
        assert_eq!(numbered(&[2, 3], 1, 2), [None, two, three]);
        assert_eq!(numbered(&[2, 3], 0, 2), [two, three]);
        assert_eq!(numbered(&[2, 3], 2, 0), [two, three]);
        assert_eq!(numbered(&[2], 1, 3), [None, two, two, two]);
        assert_eq!(numbered(&[], 1, 2), [None; 3]);
    }
}
