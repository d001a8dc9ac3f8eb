//! A service of which every byte is known before: what it sends is a pattern, and what it receives must be one.

use crate::world::World;
use app::{
    Addresses, CallError, Connection, Content, ContentBuilder, DeadReason, Listener, Luggage, ObjectId, Range, Service,
    Streams,
};
use base::Instant;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Bytes of the object that everything sent is made of; a prime, so that no segment boundary repeats.
const PATTERN_BYTES: usize = 65_537;

/// The byte that stands at this place of everything sent.
pub fn pattern(at: u64) -> u8 {
    let at = at % PATTERN_BYTES as u64;
    (at.wrapping_mul(2_654_435_761) >> 13) as u8
}

/// Where a service aborts its connection: in the event that tells it of so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// that the peer has
    Sent(u64),
    /// that came
    Received(u64),
}

/// What one end of a connection does, and has seen.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// bytes to send
    pub send: u64,
    /// bytes of each range at most
    pub piece: u64,
    /// ranges are owned bytes, not of an object
    pub owned: bool,
    /// begins to send when the peer has finished
    pub after_eof: bool,
    /// bytes are given back only after this long
    pub slow: Option<Duration>,
    /// closes instead of shutting down, when everything is queued
    pub close: bool,
    /// leaves the end to the peer
    pub stays: bool,
    /// ends without waiting for anybody
    pub aborts: Option<Abort>,
    /// once it stands
    pub connection: Option<Connection>,
    /// bytes that the stack took
    pub queued: u64,
    /// bytes that the peer has
    pub acknowledged: u64,
    /// bytes that came
    pub received: u64,
    /// of which so many are not given back yet
    pub undone: usize,
    /// the peer has finished
    pub eof: bool,
    /// this end has finished
    pub finished: bool,
    /// how it ended
    pub dead: Option<DeadReason>,
}

/// A service whose every byte is known before.
pub struct Peer {
    /// what is sent
    pub content: Arc<Content>,
    object: ObjectId,
    /// what was sent as chunks
    pub chunks: Vec<Weak<Content>>,
    /// by cookie
    pub ends: HashMap<u64, Script>,
    /// for connections that knock
    pub template: Option<Script>,
    knocked: u64,
    /// takes no connection that comes from another thread
    pub full: bool,
    /// lets none go to another thread
    pub fixed: bool,
    /// connections that did not come to be
    pub refused: Vec<DeadReason>,
    /// of connections that knocked
    pub addresses: Vec<Addresses>,
}

impl Peer {
    /// A service that gives what knocks such a script, if there is one.
    pub fn new(template: Option<Script>) -> Peer {
        let mut builder = ContentBuilder::new();
        let bytes: Vec<u8> = (0..PATTERN_BYTES as u64).map(pattern).collect();
        let object = builder.add(&bytes);
        Peer {
            content: builder.finish(),
            object,
            chunks: Vec::new(),
            ends: HashMap::new(),
            template,
            knocked: 1 << 32,
            full: false,
            fixed: false,
            refused: Vec::new(),
            addresses: Vec::new(),
        }
    }

    /// A service that asks for one connection, by this cookie.
    pub fn with(cookie: u64, script: Script) -> Peer {
        let mut peer = Peer::new(None);
        peer.ends.insert(cookie, script);
        peer
    }

    /// Queues as much as is taken.
    fn push<C: Streams>(&mut self, calls: &mut C, cookie: u64) {
        let Some(end) = self.ends.get_mut(&cookie) else { return };
        let Some(connection) = end.connection.filter(|_| !end.finished && end.dead.is_none()) else { return };
        if end.after_eof && !end.eof {
            return;
        }
        while end.queued < end.send {
            let start = end.queued % PATTERN_BYTES as u64;
            let bytes = (end.send - end.queued).min(end.piece.max(1)).min(PATTERN_BYTES as u64 - start);
            let part = start as usize..(start + bytes) as usize;
            // every second service lets go of what it sends at once: only the stack keeps it until it is acknowledged
            let copy = |memory: &mut [u8]| {
                memory.copy_from_slice(&self.content.bytes(self.object)[part.clone()]);
                Ok::<_, ()>(())
            };
            let chunk = (end.send % 2 == 1).then(|| ContentBuilder::chunk(bytes as usize, copy).expect("a copy"));
            self.chunks.extend(chunk.as_ref().map(Arc::downgrade));
            let range = match (end.owned, &chunk) {
                (true, _) => Range::Owned(&self.content.bytes(self.object)[part]),
                (false, Some(content)) => Range::Object { content, object: ObjectId(0), start: 0, bytes },
                (false, None) => Range::Object { content: &self.content, object: self.object, start, bytes },
            };
            let taken = calls.sendv(connection, &[range]).expect("an open connection");
            end.queued += taken;
            if taken < bytes {
                return;
            }
        }
        if end.stays && !end.eof {
            return;
        }
        end.finished = true;
        let finished = if end.close { calls.close(connection) } else { calls.shutdown(connection) };
        finished.expect("an open connection");
    }
}

impl Service for Peer {
    fn knock<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        _listener: Listener,
        connection: Connection,
        addresses: Addresses,
    ) {
        let Some(template) = &self.template else { return };
        self.knocked += 1;
        let script = Script { connection: Some(connection), ..template.clone() };
        self.ends.insert(self.knocked, script);
        self.addresses.push(addresses);
        calls.accept(connection, self.knocked).expect("a connection that knocks");
        let _ = now;
        self.push(calls, self.knocked);
    }

    fn connected<C: Streams>(
        &mut self,
        _now: Instant,
        calls: &mut C,
        cookie: u64,
        outcome: Result<Connection, DeadReason>,
    ) {
        match outcome {
            Ok(connection) => {
                self.ends.get_mut(&cookie).expect("asked for").connection = Some(connection);
                self.push(calls, cookie);
            }
            Err(reason) => {
                self.refused.push(reason);
                self.ends.get_mut(&cookie).expect("asked for").dead = Some(reason);
            }
        }
    }

    fn recv<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        let end = self.ends.get_mut(&cookie).expect("an accepted connection");
        assert!(end.dead.is_none() && !end.eof, "data after the end");
        assert!(!end.finished || !end.close, "data after close");
        for (n, byte) in bytes.iter().enumerate() {
            assert_eq!(*byte, pattern(end.received + n as u64), "byte {} of {cookie}", end.received + n as u64);
        }
        end.received += bytes.len() as u64;
        if end.aborts.is_some_and(|abort| matches!(abort, Abort::Received(most) if end.received >= most)) {
            return calls.abort(connection).expect("an open connection");
        }
        match end.slow {
            None => calls.recv_done(connection, bytes.len()).expect("an open connection"),
            Some(wait) => {
                if end.undone == 0 {
                    calls.timer_set(connection, Some(now + wait)).expect("an open connection");
                }
                end.undone += bytes.len();
            }
        }
    }

    fn eof<C: Streams>(&mut self, _now: Instant, calls: &mut C, _connection: Connection, cookie: u64) {
        self.ends.get_mut(&cookie).expect("an accepted connection").eof = true;
        self.push(calls, cookie);
    }

    fn sent<C: Streams>(
        &mut self,
        _now: Instant,
        calls: &mut C,
        connection: Connection,
        cookie: u64,
        bytes: usize,
        _room: usize,
    ) {
        let end = self.ends.get_mut(&cookie).expect("an accepted connection");
        end.acknowledged += bytes as u64;
        assert!(end.acknowledged <= end.queued, "more acknowledged than queued");
        if end.aborts.is_some_and(|abort| matches!(abort, Abort::Sent(most) if end.acknowledged >= most)) {
            return calls.abort(connection).expect("an open connection");
        }
        self.push(calls, cookie);
    }

    fn dead(&mut self, _now: Instant, _connection: Connection, cookie: u64, reason: DeadReason) {
        let end = self.ends.get_mut(&cookie).expect("an accepted connection");
        assert_eq!(end.dead, None, "dead twice");
        end.dead = Some(reason);
    }

    fn timer<C: Streams>(&mut self, _now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        let end = self.ends.get_mut(&cookie).expect("an accepted connection");
        let undone = std::mem::take(&mut end.undone);
        calls.recv_done(connection, undone).expect("an open connection");
    }

    fn can_move(&self) -> bool {
        !self.fixed
    }

    fn depart(&mut self, _now: Instant, connection: Connection, cookie: u64) -> Luggage {
        let end = self.ends.remove(&cookie).expect("an end that stands here");
        assert!(end.dead.is_none(), "it was told dead");
        assert!(end.connection.is_none_or(|known| known == connection), "another's handle");
        Box::new(end)
    }

    fn arrive<C: Streams>(
        &mut self,
        _now: Instant,
        calls: &mut C,
        connection: Connection,
        luggage: Luggage,
    ) -> Option<u64> {
        let mut end = luggage.downcast::<Script>().expect("what was packed");
        if self.full {
            return None;
        }
        if let Some(known) = &mut end.connection {
            *known = connection;
            // nothing is given back that was not delivered
            let closed = end.finished && end.close;
            let wrong = if closed { CallError::NoConnection } else { CallError::TooMuch };
            assert_eq!(calls.recv_done(connection, end.undone + 1), Err(wrong));
        }
        self.knocked += 1;
        self.ends.insert(self.knocked, *end);
        Some(self.knocked)
    }
}

impl World<Peer> {
    /// Both ends of every connection are dead.
    pub fn is_over(&mut self) -> bool {
        self.ends().all(|(_, _, end)| end.dead.is_some())
    }

    /// The ends, with their hosts.
    pub fn ends(&self) -> impl Iterator<Item = (usize, &u64, &Script)> {
        self.services().flat_map(|(n, service)| service.ends.iter().map(move |(k, v)| (n, k, v)))
    }

    /// The services, with their hosts.
    pub fn services(&self) -> impl Iterator<Item = (usize, &Peer)> {
        let twin = self.twin.iter().map(|twin| (0, &twin.service));
        twin.chain(self.hosts.iter().enumerate().map(|(n, host)| (n, &host.service)))
    }
}
