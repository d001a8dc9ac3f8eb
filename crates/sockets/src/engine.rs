//! Threads and their loop.

use crate::arrivals::Sampler;
use crate::bind;
use crate::config::{BindError, Config, Endpoint, Spread, Transport};
use crate::counters::{Counters, Sharing};
use crate::help::{Helper, Theirs};
use crate::nic::{NicCounters, Writer};
use crate::run::Loop;
use crate::selector::{self, Table};
use crate::share::{self, Board, Queue};
use crate::sys;
use crate::udp::Udp;
use crate::unqueued::Unqueued;
use app::{Cycles, Listener, Service};
use base::balance::IndirectionTable;
use base::{Clock, Instant};
use bpf::SelectorError;
use mio::net::TcpListener;
use mio::unix::SourceFd;
use mio::{Interest, Poll, Token, Waker};
use socket2::{SockRef, Socket};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Panics that follow each other within this time make the thread rest that long before it starts again.
const PANIC_REST: Duration = Duration::from_millis(100);

pub(crate) const WAKE: Token = Token(usize::MAX);

/// What the threads are to do; it only goes on.
#[derive(Debug, Default)]
pub(crate) struct Stage(AtomicU8);
pub(crate) const DRAIN: u8 = 1;
pub(crate) const STOP: u8 = 2;

impl Stage {
    /// Exactly: a stop resets what a drain would close.
    pub(crate) fn is(&self, stage: u8) -> bool {
        self.0.load(Ordering::Acquire) == stage
    }

    pub(crate) fn go_on_to(&self, stage: u8) {
        self.0.fetch_max(stage, Ordering::AcqRel);
    }
}

/// A listener as one thread uses it. One thread makes all of them, and each is written for each connection: they share no cache lines.
#[repr(align(128))]
pub(crate) struct Accepting {
    pub(crate) socket: Arc<TcpListener>,
    pub(crate) token: Token,
    pub(crate) listener: Listener,
    pub(crate) window_bytes: usize,
    backlog: i32,
    pub(crate) readable: bool,
    /// no accept before this time
    pub(crate) rest_until: Option<Instant>,
    /// it was looked at since the drain began
    pub(crate) last_look: bool,
}

/// What one thread owns, service apart. It is written in each cycle, and goes to its thread as it is made, beside the others'.
#[repr(align(128))]
pub(crate) struct Thread {
    pub(crate) udp: Vec<Udp>,
    pub(crate) tcp: Vec<Accepting>,
    pub(crate) poll: Poll,
    pub(crate) waker: Arc<Waker>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) sharing: Arc<Sharing>,
    /// None where threads do not help each other out
    pub(crate) helper: Option<Helper>,
    /// sees where connections arrive; None where nothing follows from it
    pub(crate) sampler: Option<Sampler>,
    pub(crate) cycles: Arc<Cycles>,
}

/// A socket of an endpoint, with one handle for all who use it.
#[derive(Clone, Debug)]
enum Bound {
    Udp(Arc<Socket>),
    Tcp(Arc<TcpListener>),
}

impl AsFd for Bound {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Bound::Udp(socket) => socket.as_fd(),
            Bound::Tcp(socket) => socket.as_fd(),
        }
    }
}

impl Bound {
    fn new(socket: Socket, transport: Transport) -> Bound {
        match transport {
            Transport::Udp => Bound::Udp(Arc::new(socket)),
            Transport::Tcp => Bound::Tcp(Arc::new(TcpListener::from_std(socket.into()))),
        }
    }

    fn datagrams(&self) -> Option<&Arc<Socket>> {
        match self {
            Bound::Udp(socket) => Some(socket),
            Bound::Tcp(_) => None,
        }
    }
}

/// Sockets bound and nothing started yet.
pub struct Engine {
    config: Config,
    addresses: Vec<SocketAddr>,
    sockets: Vec<Bound>,
    threads: Vec<Thread>,
    /// of each endpoint that is spread by affinity: its number, and its socket of each thread
    balanced: Vec<(usize, Vec<Bound>)>,
    /// the programs that go by flow groups, or why there are none
    table: Option<Result<Table, SelectorError>>,
    /// who writes the NIC's table
    nic: Option<Box<dyn IndirectionTable + Send>>,
    polls_in_epoll: bool,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({} threads on {:?})", self.threads.len(), self.addresses)
    }
}

impl Engine {
    /// Binds every socket of every thread.
    ///
    /// # Errors
    /// The first address that cannot be had, and why; nothing stays bound then.
    pub fn bind(config: Config) -> Result<Engine, BindError> {
        Engine::bind_with(config, Vec::new())
    }

    /// As [`Engine::bind`], with sockets of an earlier engine's ([`Engine::sockets`]) that are used again where they are as the configuration
    /// wants them: what has arrived at them meanwhile waits there. The others are closed.
    ///
    /// # Errors
    /// As for [`Engine::bind`].
    pub fn bind_with(config: Config, inherited: Vec<OwnedFd>) -> Result<Engine, BindError> {
        config.check()?;
        let mut inherited = bind::Inherited::new(inherited, &config);
        let system = |doing: &'static str| move |source| BindError::System { doing, source };
        let mut threads = Vec::with_capacity(config.threads);
        let mut polls_in_epoll = true;
        for n in 0..config.threads {
            let poll = Poll::new().map_err(system("epoll_create"))?;
            let waker = Arc::new(Waker::new(poll.registry(), WAKE).map_err(system("eventfd"))?);
            // Linux 6.9; before, whoever waits for events does not poll
            let us = config.busy_poll_us;
            polls_in_epoll &= us == 0 || sys::set_epoll_busy_poll(poll.registry().as_fd(), us).is_ok();
            threads.push(Thread {
                udp: Vec::new(),
                tcp: Vec::new(),
                poll,
                waker,
                counters: Arc::default(),
                sharing: Arc::new(Sharing::new(n)),
                helper: None,
                sampler: None,
                cycles: Arc::new(Cycles::new("sockets", n)),
            });
        }
        let mut addresses = Vec::with_capacity(config.endpoints.len());
        let (mut balanced, mut all) = (Vec::new(), Vec::new());
        for (n, endpoint) in config.endpoints.iter().enumerate() {
            let sockets = bind::group(&config, endpoint, &mut inherited)?;
            let address = bind::local(&sockets[0], endpoint)?;
            addresses.push(address);
            let sockets: Vec<_> = sockets.into_iter().map(|socket| Bound::new(socket, endpoint.transport)).collect();
            // one for all, or one for each
            for (thread, socket) in threads.iter_mut().zip(sockets.iter().cycle()) {
                thread.add(socket, endpoint, address, &config).map_err(|source| BindError::Other {
                    address,
                    transport: endpoint.transport,
                    doing: "epoll_ctl",
                    source,
                })?;
            }
            all.extend(sockets.iter().cloned());
            if share::is_balanced(&config, endpoint) {
                balanced.push((n, sockets));
            }
        }
        if config.spread(Transport::Tcp) == Spread::PerCore {
            let listeners = |thread: &Thread| thread.tcp.iter().map(|tcp| tcp.socket.clone()).collect();
            let samplers = Sampler::new(
                &config,
                threads.iter().map(|thread| (listeners(thread), thread.sharing.clone())).collect(),
            );
            threads.iter_mut().zip(samplers).for_each(|(thread, sampler)| thread.sampler = Some(sampler));
        }
        // now, while there may be the capability for it
        let table = (!balanced.is_empty()).then(|| Table::load(&config, balanced.len()));
        Ok(Engine { config, addresses, sockets: all, threads, balanced, table, nic: None, polls_in_epoll })
    }

    /// Has the table of [`Config::nic`] follow the flow groups, from the start on. It is dropped with the engine, or before where it
    /// cannot follow.
    #[must_use]
    pub fn keep_table(mut self, table: Box<dyn IndirectionTable + Send>) -> Engine {
        self.nic = Some(table);
        self
    }

    /// Whether threads that wait poll the device's queue as [`Config::busy_poll_us`] says; also true when that is 0. A thread that
    /// does not wait polls all the same.
    pub fn polls_in_epoll(&self) -> bool {
        self.polls_in_epoll
    }

    /// Every socket, in an order in which [`Engine::bind_with`] takes them.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(Bound::as_fd)
    }

    /// The address of each endpoint, in the configuration's order, with the port that the kernel chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Starts the threads; each makes its service with `make(thread)`, again after a panic.
    ///
    /// # Errors
    /// The kernel's, when a thread cannot be started or pinned; those that were are stopped.
    pub fn start<S: Service>(mut self, make: impl Fn(usize) -> S + Send + Sync + 'static) -> io::Result<Running> {
        if !self.config.refuse_until_started.is_empty() {
            for accepting in self.threads.iter().flat_map(|thread| &thread.tcp) {
                SockRef::from(&*accepting.socket).listen(accepting.backlog)?;
            }
        }
        let (notes, nic) = self.balance()?;
        let unqueued = Arc::new(Unqueued::new(self.sockets.iter().filter_map(Bound::datagrams)));
        let make = Arc::new(make);
        let stage = Arc::<Stage>::default();
        let clock = Clock::start();
        let (threads, addresses) = (Vec::new(), self.addresses);
        let mut running = Running { stage: stage.clone(), threads, addresses, notes, nic, unqueued };
        for (n, mut thread) in self.threads.into_iter().enumerate() {
            let (make, stage, config) = (make.clone(), stage.clone(), self.config.clone());
            let (waker, counters, sharing) = (thread.waker.clone(), thread.counters.clone(), thread.sharing.clone());
            let cycles = thread.cycles.clone();
            let (pinned, pinned_result) = std::sync::mpsc::sync_channel(1);
            let cpu = (!config.cpus.is_empty()).then(|| config.cpus[n % config.cpus.len()]);
            let join = std::thread::Builder::new().name(format!("sockets-{n}")).spawn(move || {
                let result = cpu.map_or(Ok(()), pin);
                let go_on = result.is_ok();
                // the receiver waits for this and nothing else
                let _ = pinned.send(result);
                if go_on {
                    thread.supervise(&config, clock, &stage, || make(n));
                }
            })?;
            running.threads.push(Handle { join: Some(join), waker, counters, sharing, cycles });
            match pinned_result.recv() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    let cpu = cpu.unwrap_or_default();
                    return Err(io::Error::new(
                        error.kind(),
                        format!("pinning thread {n} to processor {cpu}: {error}"),
                    ));
                }
                Err(_) => return Err(io::Error::other("a thread ended at its start")),
            }
        }
        Ok(running)
    }
}

impl Engine {
    /// Puts the selector in force and tells the threads of each other; what the operator should know of it, and who writes the NIC's
    /// table.
    fn balance(&mut self) -> io::Result<(Vec<String>, Option<Nic>)> {
        let (mut notes, mut nic) = (Vec::new(), None);
        let groups: Vec<Vec<_>> =
            self.balanced.iter().map(|(_, sockets)| sockets.iter().map(Bound::as_fd).collect()).collect();
        let mut table = self.table.take().and_then(|table| {
            let attached = table.and_then(|mut table| table.attach(&groups).map(|()| table));
            attached.inspect_err(|error| notes.push(without_table(error, &groups, &self.config))).ok()
        });
        drop(groups);
        if self.balanced.is_empty() {
            return Ok((notes, nic));
        }
        if let Some(writes) = self.nic.take() {
            if let Some(following) = table.as_mut().and_then(Table::following) {
                let counters = Arc::<NicCounters>::default();
                let (writer, orders) = Writer::start(writes, counters.clone())?;
                following.write_by(orders);
                nic = Some((writer, counters));
            } else {
                notes.push("the NIC's table stays as it is: the program that makes its hash was refused".to_owned());
            }
        }
        let queue = |endpoint: &Endpoint, bound: &Bound| match bound {
            Bound::Udp(socket) => Queue::Udp(socket.clone()),
            Bound::Tcp(socket) => share::listening(socket, bind::backlog(&self.config, endpoint)),
        };
        let place = |(n, thread): (usize, &Thread)| {
            let queues = self.balanced.iter().map(|(at, sockets)| queue(&self.config.endpoints[*at], &sockets[n]));
            (thread.waker.clone(), thread.counters.clone(), queues.collect())
        };
        let board = Arc::new(Board::new(self.threads.iter().enumerate().map(place).collect(), table));
        for me in 0..self.threads.len() {
            let theirs = (0..self.threads.len()).map(|n| if n == me { Vec::new() } else { self.theirs(n) }).collect();
            let thread = &mut self.threads[me];
            thread.helper = Some(Helper::new(board.clone(), me, &self.config, theirs, thread.sharing.clone()));
        }
        Ok((notes, nic))
    }

    /// The queues of thread `n`, to be used by another one.
    fn theirs(&self, n: usize) -> Vec<Theirs> {
        let one = |(at, sockets): &(usize, Vec<Bound>)| {
            let endpoint = &self.config.endpoints[*at];
            match &sockets[n] {
                Bound::Udp(socket) => {
                    Theirs::Udp(Udp::new(socket.clone(), endpoint.listener, self.addresses[*at], self.config.ecn))
                }
                Bound::Tcp(socket) => Theirs::Tcp {
                    socket: socket.clone(),
                    listener: endpoint.listener,
                    window_bytes: endpoint.window_bytes.unwrap_or(self.config.streams.window_bytes),
                },
            }
        };
        self.balanced.iter().map(one).collect()
    }
}

/// Has flows dealt out without a table; a line that says why, and how.
fn without_table(error: &SelectorError, groups: &[Vec<BorrowedFd<'_>>], config: &Config) -> String {
    let instead = match selector::attach_classic(groups, config) {
        Ok(()) => "flows are dealt out by the receive hash".to_owned(),
        Err(error) => format!("flows are dealt out by the kernel's hash ({error})"),
    };
    format!("affinity without eBPF ({error}): {instead}, and flow groups stay where they are")
}

fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such processor"));
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

struct Handle {
    join: Option<JoinHandle<()>>,
    waker: Arc<Waker>,
    counters: Arc<Counters>,
    sharing: Arc<Sharing>,
    cycles: Arc<Cycles>,
}

/// Who writes a NIC's table, and what of it is counted.
type Nic = (Writer, Arc<NicCounters>);

/// A running engine. Dropping it stops it.
pub struct Running {
    stage: Arc<Stage>,
    threads: Vec<Handle>,
    addresses: Vec<SocketAddr>,
    notes: Vec<String>,
    nic: Option<Nic>,
    unqueued: Arc<Unqueued>,
}

impl Running {
    /// The address of each endpoint, in the configuration's order.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Each thread's counters.
    pub fn counters(&self) -> impl Iterator<Item = &Arc<Counters>> {
        self.threads.iter().map(|thread| &thread.counters)
    }

    /// How long the service of each thread keeps it.
    pub fn cycles(&self) -> impl Iterator<Item = &Arc<Cycles>> {
        self.threads.iter().map(|thread| &thread.cycles)
    }

    /// What each thread does of its own work and of others'; nothing when there is one thread.
    pub fn sharing(&self) -> impl Iterator<Item = &Arc<Sharing>> {
        self.threads.iter().filter(|_| self.threads.len() > 1).map(|thread| &thread.sharing)
    }

    /// What the kernel has dropped in front of all threads.
    pub fn unqueued(&self) -> &Arc<Unqueued> {
        &self.unqueued
    }

    /// What has become of the NIC's table, where it follows.
    pub fn nic(&self) -> Option<&Arc<NicCounters>> {
        self.nic.as_ref().map(|(_, counters)| counters)
    }

    /// What was asked for and could not be had, and what is done instead, a line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Makes every thread begin a cycle now, so that sleeping ones take what was published.
    pub fn wake(&self) {
        for thread in &self.threads {
            // an eventfd refuses only when its count is full, and then the thread is about to wake
            let _ = thread.waker.wake();
        }
    }

    /// Begins to end: no further connection is accepted, idle ones are closed, and the others as soon as nothing is queued on
    /// them. Datagrams are answered as before. The caller watches [`Counters::connections`] and calls [`Running::stop`].
    pub fn drain(&self) {
        self.stage.go_on_to(DRAIN);
        self.wake();
    }

    /// Stops the threads and waits for them. Open connections are reset.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stage.go_on_to(STOP);
        self.wake();
        for thread in &mut self.threads {
            if let Some(join) = thread.join.take() {
                // panics of the service are contained; one of ours was already shown by the panic hook
                let _ = join.join();
            }
        }
        // it ends with the last thread
        if let Some((writer, _)) = &mut self.nic {
            writer.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Running({} threads on {:?})", self.threads.len(), self.addresses)
    }
}

impl Thread {
    fn add(&mut self, bound: &Bound, endpoint: &Endpoint, local: SocketAddr, config: &Config) -> io::Result<()> {
        let &Endpoint { listener, window_bytes, .. } = endpoint;
        let token = match bound {
            Bound::Udp(_) => Token(self.udp.len() * 2),
            Bound::Tcp(_) => Token(self.tcp.len() * 2 + 1),
        };
        if config.threads > 1 && config.spread(endpoint.transport) == Spread::Shared {
            sys::watch_exclusively(sys::descriptor(&self.poll), bound.as_fd(), token.0 as u64)?;
        } else {
            let descriptor = bound.as_fd().as_raw_fd();
            self.poll.registry().register(&mut SourceFd(&descriptor), token, Interest::READABLE)?;
        }
        match bound {
            Bound::Udp(socket) => self.udp.push(Udp::new(socket.clone(), listener, local, config.ecn)),
            Bound::Tcp(socket) => self.tcp.push(Accepting {
                socket: socket.clone(),
                token,
                listener,
                window_bytes: window_bytes.unwrap_or(config.streams.window_bytes),
                backlog: bind::backlog(config, endpoint),
                readable: true,
                rest_until: None,
                last_look: false,
            }),
        }
        Ok(())
    }

    /// Runs the loop until it is told to stop, with a new service after each panic.
    fn supervise<S: Service>(&mut self, config: &Config, clock: Clock, stage: &Stage, make: impl Fn() -> S) {
        let mut last_panic = None;
        loop {
            // everything that outlives a panic is set right below: the table is dropped inside, sockets carry no half state
            let run = catch_unwind(AssertUnwindSafe(|| {
                let mut service = make();
                self.cycles.serves(service.name());
                let waker = self.waker.clone();
                service.begin(&app::Waker::new(move || {
                    // refused only when the eventfd's count is full, and then the thread is about to wake
                    let _ = waker.wake();
                }));
                Loop::new(self, config, clock).run(stage, &mut service);
            }));
            if run.is_ok() || stage.is(STOP) {
                return;
            }
            // what was in hand is counted first: others serve at once what comes after
            for udp in &mut self.udp {
                udp.recover(&self.counters);
            }
            if let Some(helper) = &mut self.helper {
                helper.recover(&self.counters);
            }
            self.counters.panics.add(1);
            if let Some(helper) = &mut self.helper {
                helper.go_down();
            }
            for tcp in &mut self.tcp {
                tcp.readable = true;
            }
            let now = clock.now();
            if last_panic.is_some_and(|last| now - last < PANIC_REST) {
                // a service that cannot run must not burn the processor
                std::thread::sleep(PANIC_REST);
            }
            last_panic = Some(now);
        }
    }
}
