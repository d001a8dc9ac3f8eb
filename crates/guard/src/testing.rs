//! For tests: an engine that does what it is told and checks what it is asked, and an echo over it.

use crate::client::{Attached, attach_to};
use crate::layout::header;
use crate::{Channel, Grant, Granted, Options, Place, Remote, stats::Stats};
use app::{Addresses, CallError, Connection, Datagram, DeadReason, Ecn, Listener, Range, Service, Streams};
use base::Instant;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Owned bytes that the engine takes of a connection before somebody reads them.
const QUEUE_BYTES: usize = 50_000;

#[derive(Debug, Default)]
pub(crate) struct Peer {
    generation: u32,
    pub(crate) open: bool,
    cookie: u64,
    knocked: bool,
    /// what it was sent and has not read
    queued: Vec<u8>,
    /// what it has read
    pub(crate) read: Vec<u8>,
    /// what it sent and was not given back
    pub(crate) delivered: usize,
    pub(crate) shut: bool,
    pub(crate) closed: bool,
    pub(crate) timer: Option<Instant>,
    /// it was asked for, and what becomes of it was not said
    pub(crate) asking: bool,
}

impl Peer {
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued.len()
    }
}

/// Connections without a network.
#[derive(Debug, Default)]
pub(crate) struct Engine {
    pub(crate) peers: Vec<Peer>,
    dead: Vec<(Connection, u64, DeadReason)>,
    /// attempts that came to nothing
    failed: Vec<(u64, DeadReason)>,
    pub(crate) now: u64,
    /// datagrams that were sent
    pub(crate) answers: Vec<Vec<u8>>,
    /// those that answered none, with their ends
    pub(crate) unasked: Vec<(Addresses, Vec<u8>)>,
    pub(crate) alarms: HashMap<u64, Instant>,
    /// how many bytes all may have queued
    pub(crate) budget: Option<usize>,
}

impl Engine {
    pub(crate) fn new(peers: usize) -> Engine {
        Engine { peers: (0..peers).map(|_| Peer::default()).collect(), ..Engine::default() }
    }

    pub(crate) fn now(&mut self) -> Instant {
        self.now += 1000;
        Instant::from_nanos(self.now)
    }

    fn handle(&self, n: usize) -> Connection {
        Connection { index: n as u32, generation: self.peers[n].generation }
    }

    pub(crate) fn knock<S: Service>(&mut self, service: &mut S, n: usize) {
        if self.peers[n].open || self.peers[n].asking {
            return;
        }
        let generation = self.peers[n].generation + 1;
        self.peers[n] = Peer { generation, open: true, knocked: true, ..Peer::default() };
        let at = "192.0.2.1:7".parse().unwrap();
        let (now, handle) = (self.now(), self.handle(n));
        service.knock(now, self, Listener(3), handle, Addresses { local: at, peer: at });
        let peer = &mut self.peers[n];
        if peer.knocked {
            (peer.open, peer.knocked) = (false, false);
        }
    }

    pub(crate) fn recv<S: Service>(&mut self, service: &mut S, n: usize, bytes: &[u8]) {
        let peer = &mut self.peers[n];
        if !peer.open || peer.closed {
            return;
        }
        peer.delivered += bytes.len();
        let cookie = peer.cookie;
        let (now, handle) = (self.now(), self.handle(n));
        service.recv(now, self, handle, cookie, bytes);
    }

    pub(crate) fn eof<S: Service>(&mut self, service: &mut S, n: usize) {
        if self.peers[n].open && !self.peers[n].closed {
            let (now, handle, cookie) = (self.now(), self.handle(n), self.peers[n].cookie);
            service.eof(now, self, handle, cookie);
        }
    }

    /// The peer reads.
    pub(crate) fn read<S: Service>(&mut self, service: &mut S, n: usize, bytes: usize) {
        let peer = &mut self.peers[n];
        if !peer.open {
            return;
        }
        let bytes = bytes.min(peer.queued.len());
        let part: Vec<u8> = peer.queued.drain(..bytes).collect();
        peer.read.extend(part);
        let (cookie, closed) = (peer.cookie, peer.closed);
        if bytes > 0 && !closed {
            let (now, handle) = (self.now(), self.handle(n));
            let room = self.room(handle);
            service.sent(now, self, handle, cookie, bytes, room);
        }
        let peer = &mut self.peers[n];
        if peer.open && peer.closed && peer.queued.is_empty() {
            self.end(n, DeadReason::Closed);
        }
    }

    /// Keeps nothing of what was sent to others and read by them; how many bytes connections have read.
    pub(crate) fn forget(&mut self) -> u64 {
        self.answers.clear();
        self.unasked.clear();
        self.peers.iter_mut().map(|peer| std::mem::take(&mut peer.read).len() as u64).sum()
    }

    /// There is room again of what all share.
    pub(crate) fn feed<S: Service>(&mut self, service: &mut S, n: usize) {
        let (now, handle, cookie) = (self.now(), self.handle(n), self.peers[n].cookie);
        let room = self.room(handle);
        service.sent(now, self, handle, cookie, 0, room);
    }

    pub(crate) fn end(&mut self, n: usize, reason: DeadReason) {
        if self.peers[n].open {
            self.peers[n].open = false;
            self.peers[n].queued.clear();
            self.dead.push((self.handle(n), self.peers[n].cookie, reason));
        }
    }

    pub(crate) fn fire<S: Service>(&mut self, service: &mut S, n: usize) {
        if self.peers[n].open && self.peers[n].timer.take().is_some() {
            let (now, handle, cookie) = (self.now(), self.handle(n), self.peers[n].cookie);
            service.timer(now, self, handle, cookie);
        }
    }

    /// The places of connections that were asked for.
    pub(crate) fn asking(&self) -> Vec<usize> {
        (0..self.peers.len()).filter(|n| self.peers[*n].asking).collect()
    }

    /// Says what became of one of them.
    pub(crate) fn answer<S: Service>(&mut self, service: &mut S, n: usize, outcome: Result<(), DeadReason>) {
        let peer = &mut self.peers[n];
        assert!(std::mem::take(&mut peer.asking));
        peer.open = outcome.is_ok();
        let cookie = peer.cookie;
        let (now, handle) = (self.now(), self.handle(n));
        service.connected(now, self, cookie, outcome.map(|()| handle));
    }

    /// A datagram.
    pub(crate) fn ask<S: Service>(&mut self, service: &mut S, question: &[u8]) {
        self.ask_within(service, question, 1400);
    }

    /// One whose answer may be so many bytes.
    pub(crate) fn ask_within<S: Service>(&mut self, service: &mut S, question: &[u8], most_bytes: usize) {
        let mut buffer = vec![0; most_bytes];
        buffer[..question.len()].copy_from_slice(question);
        let addresses = Addresses { local: "192.0.2.1:7".parse().unwrap(), peer: "192.0.2.2:77".parse().unwrap() };
        let mut burst = [Datagram::new(&mut buffer, question.len(), Ecn::NotEct, addresses)];
        let now = self.now();
        service.datagrams(now, Listener(3), &mut burst);
    }

    /// The end of a cycle, and the beginning of the next.
    pub(crate) fn cycle<S: Service>(&mut self, service: &mut S) {
        for (handle, cookie, reason) in std::mem::take(&mut self.dead) {
            service.dead(Instant::from_nanos(self.now), handle, cookie, reason);
        }
        for (cookie, reason) in std::mem::take(&mut self.failed) {
            let now = self.now();
            service.connected(now, self, cookie, Err(reason));
        }
        let now = self.now();
        service.cycle(now);
        service.woken(now, self);
        let due: Vec<u64> = self.alarms.iter().filter(|(_, at)| **at <= now).map(|(cookie, _)| *cookie).collect();
        for cookie in due {
            self.alarms.remove(&cookie);
            service.alarm(now, self, cookie);
        }
        service.flush(now, self);
        for n in 0..self.peers.len() {
            // closed with nothing queued
            if self.peers[n].open && self.peers[n].closed && self.peers[n].queued.is_empty() {
                self.end(n, DeadReason::Closed);
            }
        }
        for (handle, cookie, reason) in std::mem::take(&mut self.dead) {
            service.dead(Instant::from_nanos(self.now), handle, cookie, reason);
        }
    }

    fn peer(&mut self, connection: Connection) -> Result<&mut Peer, CallError> {
        let peer = self.peers.get_mut(connection.index as usize);
        peer.filter(|peer| peer.open && peer.generation == connection.generation).ok_or(CallError::NoConnection)
    }
}

impl Streams for Engine {
    fn accept(&mut self, connection: Connection, cookie: u64) -> Result<(), CallError> {
        let peer = self.peer(connection)?;
        assert!(peer.knocked);
        (peer.knocked, peer.cookie) = (false, cookie);
        Ok(())
    }
    fn reject(&mut self, connection: Connection) -> Result<(), CallError> {
        let peer = self.peer(connection)?;
        assert!(peer.knocked);
        (peer.open, peer.knocked) = (false, false);
        Ok(())
    }
    fn sendv(&mut self, connection: Connection, ranges: &[Range<'_>]) -> Result<u64, CallError> {
        let queued: usize = self.peers.iter().map(|peer| peer.queued.len()).sum();
        let budget = self.budget.map_or(usize::MAX, |budget| budget.saturating_sub(queued));
        let peer = self.peer(connection)?;
        if peer.shut || peer.closed {
            return Err(CallError::WrongState);
        }
        let (mut taken, mut room) = (0, QUEUE_BYTES.saturating_sub(peer.queued.len()).min(budget));
        for range in ranges {
            let Range::Owned(bytes) = range else { panic!("an application has no content here") };
            let part = bytes.len().min(room);
            peer.queued.extend(&bytes[..part]);
            (taken, room) = (taken + part as u64, room - part);
            if part < bytes.len() {
                break;
            }
        }
        Ok(taken)
    }
    fn room(&self, connection: Connection) -> usize {
        QUEUE_BYTES - self.peers[connection.index as usize].queued.len()
    }
    fn recv_done(&mut self, connection: Connection, bytes: usize) -> Result<(), CallError> {
        let peer = self.peer(connection)?;
        peer.delivered = peer.delivered.checked_sub(bytes).expect("more was given back than was delivered");
        Ok(())
    }
    fn shutdown(&mut self, connection: Connection) -> Result<(), CallError> {
        self.peer(connection)?.shut = true;
        Ok(())
    }
    fn close(&mut self, connection: Connection) -> Result<(), CallError> {
        self.peer(connection)?.closed = true;
        Ok(())
    }
    fn abort(&mut self, connection: Connection) -> Result<(), CallError> {
        if let Some(peer) = self.peers.get_mut(connection.index as usize)
            && peer.asking
            && peer.generation == connection.generation
        {
            peer.asking = false;
            self.failed.push((peer.cookie, DeadReason::Aborted));
            return Ok(());
        }
        self.peer(connection)?;
        self.end(connection.index as usize, DeadReason::Aborted);
        Ok(())
    }
    fn timer_set(&mut self, connection: Connection, at: Option<Instant>) -> Result<(), CallError> {
        self.peer(connection)?.timer = at;
        Ok(())
    }
    fn send_to(&mut self, listener: Listener, ends: Addresses, bytes: &[u8]) -> Result<(), CallError> {
        assert_eq!(listener, Listener(3));
        if ends.local.port() != 7 {
            return Err(CallError::NoSuchAddress);
        }
        match ends.peer.port() {
            77 => self.answers.push(bytes.to_vec()),
            _ => self.unasked.push((ends, bytes.to_vec())),
        }
        Ok(())
    }
    fn connect(&mut self, remote: SocketAddr, local: Option<SocketAddr>, cookie: u64) -> Result<Connection, CallError> {
        app::judge_ends(local, remote)?;
        if local.is_some_and(|local| local.port() != 0) {
            return Err(CallError::InUse);
        }
        let free = self.peers.iter().position(|peer| !peer.open && !peer.asking);
        let n = free.unwrap_or(self.peers.len());
        if n == self.peers.len() {
            self.peers.push(Peer::default());
        }
        let generation = self.peers[n].generation + 1;
        self.peers[n] = Peer { generation, asking: true, cookie, ..Peer::default() };
        Ok(self.handle(n))
    }
    fn alarm_set(&mut self, cookie: u64, at: Option<Instant>) -> Result<(), CallError> {
        match at {
            Some(at) => self.alarms.insert(cookie, at),
            None => self.alarms.remove(&cookie),
        };
        Ok(())
    }
}

/// What comes goes back. It is checked on its way: nobody dies twice, nothing is told of the dead.
#[derive(Debug, Default)]
pub(crate) struct Echo {
    conns: HashMap<u64, (Connection, Vec<u8>, bool)>,
    next: u64,
    pub(crate) deaths: usize,
    pub(crate) timers: usize,
    /// every so manyth connection is refused
    pub(crate) refuses: u64,
}

impl Echo {
    pub(crate) fn refusing(refuses: u64) -> Echo {
        Echo { refuses, ..Echo::default() }
    }

    pub(crate) fn connections(&self) -> usize {
        self.conns.len()
    }

    fn go_on<C: Streams>(&mut self, calls: &mut C, connection: Connection, cookie: u64) {
        let (_, left, ended) = self.conns.get_mut(&cookie).expect("an event of a connection that is gone");
        let taken = calls.send(connection, left).expect("open");
        left.drain(..taken);
        if taken > 0 {
            calls.recv_done(connection, taken).expect("delivered");
        }
        if left.is_empty() && *ended {
            calls.close(connection).expect("open");
        }
    }
}

impl Service for Echo {
    fn knock<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        listener: Listener,
        connection: Connection,
        addresses: Addresses,
    ) {
        assert_eq!((listener, addresses.peer.port()), (Listener(3), 7));
        self.next += 1;
        if self.refuses > 0 && self.next.is_multiple_of(self.refuses) {
            return;
        }
        calls.accept(connection, self.next).expect("knocked");
        calls.timer_set(connection, Some(now)).expect("open");
        self.conns.insert(self.next, (connection, Vec::new(), false));
    }
    fn recv<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        self.conns.get_mut(&cookie).expect("an event of a connection that is gone").1.extend(bytes);
        self.go_on(calls, connection, cookie);
    }
    fn eof<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        self.conns.get_mut(&cookie).expect("an event of a connection that is gone").2 = true;
        self.go_on(calls, connection, cookie);
    }
    fn sent<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, cookie: u64, _: usize, _: usize) {
        self.go_on(calls, connection, cookie);
    }
    fn dead(&mut self, _: Instant, connection: Connection, cookie: u64, _: DeadReason) {
        let (known, ..) = self.conns.remove(&cookie).expect("dead for the second time");
        assert_eq!(known, connection);
        self.deaths += 1;
    }
    fn datagrams(&mut self, _: Instant, _: Listener, burst: &mut [Datagram<'_>]) {
        burst.iter_mut().for_each(|datagram| datagram.reply(datagram.question().len()));
    }
    fn timer<C: Streams>(&mut self, _: Instant, _: &mut C, _: Connection, cookie: u64) {
        assert!(self.conns.contains_key(&cookie));
        self.timers += 1;
    }
}

/// A channel with both ends in this process.
pub(crate) struct Pair {
    pub(crate) channel: Arc<Channel>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) remote: Remote,
    pub(crate) attached: Attached,
    /// the dataplane's end
    _life: OwnedFd,
}

pub(crate) fn pair(connections: u32, options: Options) -> Pair {
    pair_of(Grant::new(connections, 3..4), options)
}

pub(crate) fn pair_of(grant: Grant, options: Options) -> Pair {
    let place = Place::Other { spin: std::time::Duration::from_micros(50) };
    let channel = Channel::new(9, place, None, grant).unwrap();
    assert!(channel.open() && !channel.open());
    // a test's time passes as its engine says, however long the test takes: by the machine's clock none does
    channel.receive.long(header::ZERO_AT).store(u64::MAX, Ordering::Relaxed);
    let stats = Arc::new(Stats::new("test"));
    let remote = Remote::new(channel.clone(), options, stats.clone());
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let granted = Granted::of(theirs.as_fd(), std::slice::from_ref(&channel));
    let attached = attach_to(&granted).unwrap().pop().unwrap();
    Pair { channel, stats, remote, attached, _life: ours.into() }
}
