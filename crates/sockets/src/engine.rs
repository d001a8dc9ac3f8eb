//! Threads and their loop.

use crate::bind;
use crate::config::{BATCH_DATAGRAMS, BindError, Config, Endpoint, Idle, Transport};
use crate::counters::Counters;
use crate::idle::Governor;
use crate::sys::{Batch, set_epoll_busy_poll};
use crate::tcp::{READ_BYTES, Table, reset_on_close};
use crate::udp::Udp;
use app::{Addresses, Listener, Service};
use base::{Clock, Instant};
use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use socket2::{SockRef, Socket};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Connections that one cycle accepts from a listener, and turns of connections in one cycle: what bounds how long datagrams
/// wait behind streams.
const ACCEPTS: usize = 16;
const TURNS: usize = 64;
/// Cycles with work in hand between two looks at what else the kernel has.
const BUSY_CYCLES: u32 = 4;
/// How long a listener rests when descriptors or memory ran out.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Panics that follow each other within this time make the thread rest that long before it starts again.
const PANIC_REST: Duration = Duration::from_millis(100);

const WAKE: Token = Token(usize::MAX);

/// What the threads are to do; it only goes on.
#[derive(Debug, Default)]
struct Stage(AtomicU8);
const DRAIN: u8 = 1;
const STOP: u8 = 2;

impl Stage {
    /// Exactly: a stop resets what a drain would close.
    fn is(&self, stage: u8) -> bool {
        self.0.load(Ordering::Acquire) == stage
    }

    fn go_on_to(&self, stage: u8) {
        self.0.fetch_max(stage, Ordering::AcqRel);
    }
}

struct Accepting {
    socket: TcpListener,
    token: Token,
    listener: Listener,
    window_bytes: usize,
    backlog: i32,
    readable: bool,
    /// no accept before this time
    rest_until: Option<Instant>,
}

/// What one thread owns, service apart.
struct Thread {
    udp: Vec<Udp>,
    tcp: Vec<Accepting>,
    poll: Poll,
    waker: Arc<Waker>,
    counters: Arc<Counters>,
}

/// Sockets bound and nothing started yet.
pub struct Engine {
    config: Config,
    addresses: Vec<SocketAddr>,
    threads: Vec<Thread>,
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
        config.check()?;
        let system = |doing: &'static str| move |source| BindError::System { doing, source };
        let mut threads = Vec::with_capacity(config.threads);
        let mut polls_in_epoll = true;
        for _ in 0..config.threads {
            let poll = Poll::new().map_err(system("epoll_create"))?;
            let waker = Arc::new(Waker::new(poll.registry(), WAKE).map_err(system("eventfd"))?);
            // Linux 6.9; before, whoever waits for events does not poll
            let us = config.busy_poll_us;
            polls_in_epoll &= us == 0 || set_epoll_busy_poll(poll.registry().as_fd(), us).is_ok();
            threads.push(Thread { udp: Vec::new(), tcp: Vec::new(), poll, waker, counters: Arc::default() });
        }
        let mut addresses = Vec::with_capacity(config.endpoints.len());
        for endpoint in &config.endpoints {
            let sockets = bind::group(&config, endpoint)?;
            let address = bind::local(&sockets[0], endpoint)?;
            addresses.push(address);
            for (thread, socket) in threads.iter_mut().zip(sockets) {
                thread.add(socket, endpoint, address, &config).map_err(|source| BindError::Other {
                    address,
                    transport: endpoint.transport,
                    doing: "epoll_ctl",
                    source,
                })?;
            }
        }
        Ok(Engine { config, addresses, threads, polls_in_epoll })
    }

    /// Whether threads that wait poll the device's queue as [`Config::busy_poll_us`] says; also true when that is 0. A thread that
    /// does not wait polls all the same.
    pub fn polls_in_epoll(&self) -> bool {
        self.polls_in_epoll
    }

    /// The address of each endpoint, in the configuration's order, with the port that the kernel chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Starts the threads; each makes its service with `make(thread)`, again after a panic.
    ///
    /// # Errors
    /// The kernel's, when a thread cannot be started or pinned; those that were are stopped.
    pub fn start<S: Service>(self, make: impl Fn(usize) -> S + Send + Sync + 'static) -> io::Result<Running> {
        if self.config.refuse_until_started {
            for accepting in self.threads.iter().flat_map(|thread| &thread.tcp) {
                SockRef::from(&accepting.socket).listen(accepting.backlog)?;
            }
        }
        let make = Arc::new(make);
        let stage = Arc::<Stage>::default();
        let clock = Clock::start();
        let mut running = Running { stage: stage.clone(), threads: Vec::new(), addresses: self.addresses };
        for (n, mut thread) in self.threads.into_iter().enumerate() {
            let (make, stage, config) = (make.clone(), stage.clone(), self.config.clone());
            let (waker, counters) = (thread.waker.clone(), thread.counters.clone());
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
            running.threads.push(Handle { join: Some(join), waker, counters });
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
}

/// A running engine. Dropping it stops it.
pub struct Running {
    stage: Arc<Stage>,
    threads: Vec<Handle>,
    addresses: Vec<SocketAddr>,
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
    fn add(&mut self, socket: Socket, endpoint: &Endpoint, local: SocketAddr, config: &Config) -> io::Result<()> {
        let &Endpoint { listener, transport, window_bytes, .. } = endpoint;
        let registry = self.poll.registry();
        match transport {
            Transport::Udp => {
                let token = Token(self.udp.len() * 2);
                registry.register(&mut SourceFd(&socket.as_raw_fd()), token, Interest::READABLE)?;
                self.udp.push(Udp::new(socket, listener, local, config.ecn));
            }
            Transport::Tcp => {
                let mut socket = TcpListener::from_std(socket.into());
                let token = Token(self.tcp.len() * 2 + 1);
                let window_bytes = window_bytes.unwrap_or(config.streams.window_bytes);
                registry.register(&mut socket, token, Interest::READABLE)?;
                let backlog = bind::backlog(config, endpoint);
                let accepting =
                    Accepting { socket, token, listener, window_bytes, backlog, readable: true, rest_until: None };
                self.tcp.push(accepting);
            }
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
            self.counters.panics.add(1);
            for udp in &mut self.udp {
                udp.recover(&self.counters);
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

/// One life of a thread's loop.
struct Loop<'a> {
    thread: &'a mut Thread,
    config: &'a Config,
    clock: Clock,
    batch: Batch,
    table: Table,
    events: Events,
    scratch: Vec<u8>,
    /// there are connections, or were before the listeners were closed
    has_streams: bool,
    /// tokens of connections begin here
    first_connection: usize,
    /// a wake-up was taken in that no cycle has followed yet
    woken: bool,
}

impl<'a> Loop<'a> {
    fn new(thread: &'a mut Thread, config: &'a Config, clock: Clock) -> Self {
        let slots = if thread.udp.is_empty() { 1 } else { config.batch };
        let scratch_bytes = if thread.tcp.is_empty() { 0 } else { READ_BYTES };
        Loop {
            batch: Batch::new(slots, config.datagram_bytes),
            table: Table::new(config.streams.clone(), thread.counters.clone()),
            events: Events::with_capacity(BATCH_DATAGRAMS * 4),
            scratch: vec![0; scratch_bytes],
            has_streams: !thread.tcp.is_empty(),
            first_connection: 2 * (thread.udp.len().max(thread.tcp.len()) + 1),
            woken: false,
            thread,
            config,
            clock,
        }
    }

    fn run<S: Service>(&mut self, stage: &Stage, service: &mut S) {
        let mut governor = Governor::new(self.config.idle);
        let (mut busy_cycles, mut worked) = (0, false);
        while !stage.is(STOP) {
            if worked {
                governor.on_work();
            }
            let busy = self.has_work() || (governor.asks_again() && self.ask_again());
            busy_cycles = if busy { busy_cycles + 1 } else { 0 };
            if !busy || busy_cycles % BUSY_CYCLES == 0 {
                self.wait(busy);
            }
            let now = self.clock.now();
            self.thread.counters.cycles.add(1);
            self.table.set_now(now);
            service.cycle(now);
            self.table.release_old_content();
            self.woken = false;
            worked = self.table.has_work();
            for udp in self.thread.udp.iter_mut().filter(|udp| udp.readable) {
                worked |= udp.turn(now, self.config.batch, &mut self.batch, service, &self.thread.counters) > 0;
            }
            if self.has_streams {
                service.woken(now, &mut self.table);
                for n in 0..self.thread.tcp.len() {
                    self.accept(n, now, service);
                }
                if stage.is(DRAIN) {
                    self.table.drain();
                    // what had come before was accepted; from here on the kernel refuses
                    self.thread.tcp.retain(|tcp| tcp.readable);
                }
                self.table.turn(TURNS, service, &mut self.scratch);
            }
        }
        self.table.abort_all(service);
    }

    /// Looks again without waiting; true when there is work, or when only trying can tell.
    fn ask_again(&mut self) -> bool {
        match &mut self.thread.udp[..] {
            // one socket is asked itself, several through epoll
            [udp] if !self.has_streams => udp.readable = true,
            _ => self.wait(true),
        }
        self.has_work()
    }

    fn has_work(&self) -> bool {
        self.woken
            || self.thread.udp.iter().any(|udp| udp.readable)
            || self.thread.tcp.iter().any(|tcp| tcp.readable && tcp.rest_until.is_none())
            || self.table.has_work()
    }

    /// Takes in what the kernel has to say, waiting for it unless there is work.
    fn wait(&mut self, busy: bool) {
        let rests = self.thread.tcp.iter().filter(|tcp| tcp.readable).filter_map(|tcp| tcp.rest_until);
        let until = rests.chain(self.table.next_deadline()).min();
        let timeout = match until {
            _ if busy || self.config.idle == Idle::Spin => Some(Duration::ZERO),
            // rounded up by epoll to its millisecond, so never early
            Some(at) => Some(at - self.clock.now()),
            None => None,
        };
        if timeout != Some(Duration::ZERO) {
            self.thread.counters.sleeps.add(1);
        }
        if self.thread.poll.poll(&mut self.events, timeout).is_err() {
            return; // interrupted: the next cycle asks again
        }
        for event in &self.events {
            match event.token() {
                WAKE => self.woken = true,
                Token(n) if n >= self.first_connection => {
                    let hup = event.is_read_closed() || event.is_error();
                    let index = (n - self.first_connection) as u32;
                    self.table.on_event(index, event.is_readable(), event.is_writable(), hup);
                }
                Token(n) if n % 2 == 0 => self.thread.udp[n / 2].readable = true,
                // by number, or gone since the drain began
                Token(n) => {
                    if let Some(tcp) = self.thread.tcp.iter_mut().find(|tcp| tcp.token == event.token()) {
                        tcp.readable = true;
                    }
                    debug_assert_eq!(n % 2, 1);
                }
            }
        }
    }

    fn accept<S: Service>(&mut self, n: usize, now: Instant, service: &mut S) {
        let Loop { thread, table, first_connection, .. } = self;
        let Thread { tcp, poll, counters, .. } = &mut **thread;
        let accepting = &mut tcp[n];
        if accepting.rest_until.is_some_and(|until| now >= until) {
            accepting.rest_until = None;
        }
        if !accepting.readable || accepting.rest_until.is_some() {
            return;
        }
        for _ in 0..ACCEPTS {
            let (mut stream, peer) = match accepting.socket.accept() {
                Ok(accepted) => accepted,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => {
                        accepting.readable = false;
                        return;
                    }
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                        counters.accept_errors.add(1);
                        accepting.rest_until = Some(now + ACCEPT_REST);
                        return;
                    }
                    // the connection failed before it was taken (accept(2)); the next one may be well
                    _ => continue,
                },
            };
            let token = Token(*first_connection + table.next_index() as usize);
            let interest = Interest::READABLE | Interest::WRITABLE;
            let Ok(local) = stream.local_addr() else { continue };
            if !table.admits(peer.ip()) || poll.registry().register(&mut stream, token, interest).is_err() {
                reset_on_close(&stream);
                continue;
            }
            set_up(&stream);
            let addresses = Addresses { local, peer };
            table.knock(stream, accepting.listener, addresses, accepting.window_bytes, service);
        }
    }
}

fn set_up(stream: &TcpStream) {
    // answers are written whole, so waiting for more to join them only delays; a refusal costs that delay, nothing else
    let _ = stream.set_nodelay(true);
}
