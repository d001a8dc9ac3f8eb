//! A thread's loop: what the kernel has, the service's turn at it, what the others have.

use crate::arrivals::Sampler;
use crate::config::{BATCH_DATAGRAMS, Config, Idle};
use crate::counters::Counters;
use crate::engine::{DRAIN, STOP, Stage, Thread, WAKE};
use crate::help::Helper;
use crate::idle::Governor;
use crate::scheduled::Source;
use crate::sys::Batch;
use crate::tcp::{Asks, READ_BYTES, Table, WATCHED, reset_on_close};
use crate::unasked::Unasked;
use app::{Addresses, Listener, Service, Stopwatch};
use base::{Clock, Instant};
use mio::net::TcpListener;
use mio::{Events, Registry, Token};
use socket2::SockRef;
use std::net::Shutdown;
use std::time::Duration;

/// Connections that one cycle accepts from a listener, and turns of connections in one cycle: what bounds how long datagrams
/// wait behind streams.
const ACCEPTS: usize = 16;
const TURNS: usize = 64;
/// Cycles with work in hand between two looks at what else the kernel has.
const BUSY_CYCLES: u32 = 4;
/// How long a listener rests when descriptors or memory ran out.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// What became of an attempt to accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// a connection, or one that is turned away
    One,
    /// the connection failed before it was taken
    Failed,
    /// nothing waits
    Nothing,
    /// descriptors or memory ran out
    Short,
    /// it listens no more
    Closed,
}

/// One life of a thread's loop.
pub(crate) struct Loop<'a> {
    pub(crate) thread: &'a mut Thread,
    pub(crate) config: &'a Config,
    pub(crate) clock: Clock,
    pub(crate) batch: Batch,
    pub(crate) table: Table,
    events: Events,
    scratch: Vec<u8>,
    /// there are connections, or were before the listeners were closed
    has_streams: bool,
    /// tokens of connections begin here
    pub(crate) first_connection: usize,
    /// a wake-up was taken in that no cycle has followed yet, or none has been
    woken: bool,
}

impl<'a> Loop<'a> {
    pub(crate) fn new(thread: &'a mut Thread, config: &'a Config, clock: Clock) -> Self {
        if let Some(helper) = &mut thread.helper {
            helper.come_up(clock.now());
        }
        let slots = if thread.udp.is_empty() { 1 } else { config.batch };
        let scratch_bytes = if thread.tcp.is_empty() { 0 } else { READ_BYTES };
        let first_connection = 2 * (thread.udp.len().max(thread.tcp.len()) + 1);
        // refused only for want of descriptors: then no connections can be asked for either
        let registry = thread.poll.registry().try_clone().ok();
        let asks = registry.map(|registry| Asks { registry, first_token: first_connection });
        let unasked = Unasked::new(&thread.udp, config.datagram_bytes);
        Loop {
            batch: Batch::new(slots, config.datagram_bytes),
            table: Table::new(config.streams.clone(), thread.counters.clone()).with(asks, unasked),
            events: Events::with_capacity(BATCH_DATAGRAMS * 4),
            scratch: vec![0; scratch_bytes],
            has_streams: !thread.tcp.is_empty(),
            first_connection,
            // a service's first cycle waits for nothing, and a wake-up that the life before took in is this one's
            woken: true,
            thread,
            config,
            clock,
        }
    }

    pub(crate) fn run<S: Service>(&mut self, stage: &Stage, service: &mut S) {
        let mut governor = Governor::new(self.config.idle);
        let (mut stopwatch, scheduled) = (Stopwatch::new(self.config.slow_after), Source::of_this_thread());
        let (mut busy_cycles, mut worked) = (0, false);
        while !stage.is(STOP) {
            if worked {
                governor.on_work();
            }
            let idle = !(self.has_work() || (governor.asks_again() && self.ask_again()));
            let busy = !idle || self.sees_a_victim() || !service.may_rest(self.clock.now());
            busy_cycles = if busy { busy_cycles + 1 } else { 0 };
            if !busy || busy_cycles % BUSY_CYCLES == 0 {
                self.wait(busy);
            }
            let now = self.clock.now();
            stopwatch.begin(&self.thread.cycles);
            self.thread.counters.cycles.add(1);
            self.table.set_now(now);
            service.cycle(now);
            self.table.release_old_content();
            self.woken = false;
            worked = self.table.has_work();
            let mut own = 0;
            for udp in self.thread.udp.iter_mut().filter(|udp| udp.readable) {
                let received = udp.turn(now, self.config.batch, &mut self.batch, service, &self.thread.counters);
                self.thread.sharing.received_own.add(received as u64);
                own += u32::from(received > 0);
            }
            worked |= own > 0;
            // also where none are accepted: those that a service asked for move as well
            worked |= self.receive_gifts(service);
            service.woken(now, &mut self.table);
            if self.has_streams {
                for n in 0..self.thread.tcp.len() {
                    own += self.accept(n, now, service);
                }
            }
            if let Some(helper) = self.thread.helper.as_mut().filter(|_| stage.is(DRAIN)) {
                helper.retire();
            }
            worked |= self.help(now, own, idle, service);
            if stage.is(DRAIN) {
                self.table.drain();
                self.close_listeners();
            }
            if self.scratch.is_empty() && self.table.len() > 0 {
                // connections that the service asked for, where none are accepted
                self.scratch.resize(READ_BYTES, 0);
            }
            self.table.turn(TURNS, service, &mut self.scratch);
            self.table.flush(TURNS, service, &mut self.scratch);
            self.table.unasked.send(&self.thread.udp, &mut self.batch, &self.thread.counters);
            // now that answers have gone out
            self.woken |= self.give(now, self.config.streams.connections, service);
            let waited_ns = || scheduled.as_ref().and_then(Source::read).map_or(0, |counts| counts.waited_ns);
            stopwatch.end(&self.thread.cycles, now, self.clock.now(), waited_ns);
        }
        self.table.abort_all(service);
    }

    /// Looks again without waiting; true when there is work, or when only trying can tell.
    fn ask_again(&mut self) -> bool {
        match &mut self.thread.udp[..] {
            // one socket is asked itself, several through epoll
            [udp] if !self.has_streams && self.table.len() == 0 => udp.readable = true,
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
        let helps = self.thread.helper.as_ref().and_then(Helper::deadline);
        let until = rests.chain(self.table.next_deadline()).chain(helps).min();
        let mut timeout = match until {
            _ if busy || self.config.idle == Idle::Spin => Some(Duration::ZERO),
            // rounded up by epoll to its millisecond, so never early
            Some(at) => Some(at - self.clock.now()),
            None => None,
        };
        let sleeps = timeout != Some(Duration::ZERO);
        if sleeps {
            self.thread.counters.sleeps.add(1);
            if let Some(helper) = &mut self.thread.helper {
                let nap = helper.go_to_sleep();
                timeout = [timeout, nap].into_iter().flatten().min();
            }
        }
        let polled = self.thread.poll.poll(&mut self.events, timeout);
        if let Some(helper) = self.thread.helper.as_mut().filter(|_| sleeps) {
            let to_work = self.events.iter().any(|event| event.token() != WAKE);
            helper.wake_up(to_work, !self.events.is_empty());
        }
        if polled.is_err() {
            return; // interrupted: the next cycle asks again
        }
        for event in &self.events {
            match event.token() {
                WAKE => {
                    self.woken = true;
                    if let Some(helper) = &mut self.thread.helper {
                        helper.look_soon();
                    }
                }
                Token(n) if n >= self.first_connection => {
                    self.table.on_event((n - self.first_connection) as u32, event);
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

    /// Accepts from one of the thread's own listeners; how many.
    fn accept<S: Service>(&mut self, n: usize, now: Instant, service: &mut S) -> u32 {
        let Loop { thread, table, first_connection, .. } = self;
        let Thread { tcp, poll, counters, sampler, sharing, .. } = &mut **thread;
        let accepting = &mut tcp[n];
        if accepting.rest_until.is_some_and(|until| now >= until) {
            accepting.rest_until = None;
        }
        if !accepting.readable || accepting.rest_until.is_some() {
            return 0;
        }
        let mut door =
            Door { registry: poll.registry(), counters, sampler, table, first_connection: *first_connection };
        let mut count = 0;
        for _ in 0..ACCEPTS {
            match door.take(&accepting.socket, accepting.listener, accepting.window_bytes, service) {
                Taken::One => count += 1,
                Taken::Failed => {}
                Taken::Nothing => {
                    accepting.readable = false;
                    break;
                }
                Taken::Short => {
                    accepting.rest_until = Some(now + ACCEPT_REST);
                    break;
                }
                Taken::Closed => {
                    accepting.readable = false;
                    break;
                }
            }
        }
        sharing.accepted_own.add(count.into());
        count
    }

    /// Ends listening, once what had come before is accepted.
    fn close_listeners(&mut self) {
        self.thread.tcp.retain_mut(|tcp| {
            if !tcp.last_look {
                // another thread may have been told of what waits here
                (tcp.last_look, tcp.readable) = (true, true);
            }
            if !tcp.readable {
                // others hold it, too: closing alone would leave it listening. Refused when another thread has been faster.
                let _ = SockRef::from(&*tcp.socket).shutdown(Shutdown::Read);
            }
            tcp.readable
        });
    }
}

/// How connections get in, from whoever's listener.
pub(crate) struct Door<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) counters: &'a Counters,
    pub(crate) sampler: &'a mut Option<Sampler>,
    pub(crate) table: &'a mut Table,
    /// tokens of connections begin here
    pub(crate) first_connection: usize,
}

impl Door<'_> {
    /// Accepts one connection from `socket`, this thread's or another one's.
    pub(crate) fn take<S: Service>(
        &mut self,
        socket: &TcpListener,
        listener: Listener,
        window_bytes: usize,
        service: &mut S,
    ) -> Taken {
        let (mut stream, peer) = match socket.accept() {
            Ok(accepted) => accepted,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => return Taken::Nothing,
                Some(libc::EINVAL) => return Taken::Closed,
                Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                    self.counters.accept_errors.add(1);
                    return Taken::Short;
                }
                // the connection failed before it was taken (accept(2)); the next one may be well
                _ => return Taken::Failed,
            },
        };
        let token = Token(self.first_connection + self.table.next_index() as usize);
        let Ok(local) = stream.local_addr() else { return Taken::Failed };
        if !self.table.admits(listener, peer.ip()) {
            reset_on_close(&stream);
            return Taken::One;
        }
        if self.registry.register(&mut stream, token, WATCHED).is_err() {
            // no more can be watched (fs.epoll.max_user_watches), or memory is short
            self.counters.accept_errors.add(1);
            reset_on_close(&stream);
            return Taken::Short;
        }
        if let Some(sampler) = self.sampler {
            sampler.note(&stream);
        }
        self.table.knock(stream, listener, Addresses { local, peer }, window_bytes, service);
        Taken::One
    }
}
