//! The server's services: as little as each scenario needs, so that the figures are the stack's. What a call refuses shows at the
//! peer, as an answer that is missing.

use crate::pipe;
use app::{Addresses, Connection, Content, ContentBuilder, Listener, ObjectId, Range, Service, Streams};
use base::Instant;
use std::sync::Arc;

/// One object that the peer knows too.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    content: Arc<Content>,
    id: ObjectId,
    bytes: u64,
}

impl Object {
    /// An object of so many bytes.
    pub(super) fn new(bytes: u64) -> Object {
        let mut builder = ContentBuilder::new();
        let filled = builder.add_with(bytes as usize, |memory| {
            pipe::fill(0, memory);
            Ok::<(), std::convert::Infallible>(())
        });
        let Ok(id) = filled;
        Object { content: builder.finish(), id, bytes }
    }

    fn range(&self) -> Range<'_> {
        Range::Object { content: &self.content, object: self.id, start: 0, bytes: self.bytes }
    }
}

/// Answers whatever a segment brings: with the same bytes, or with an object.
#[derive(Debug, Default)]
pub(crate) struct Echo {
    pub(super) object: Option<Object>,
}

impl Service for Echo {
    fn knock<C: Streams>(
        &mut self,
        _now: Instant,
        calls: &mut C,
        _listener: Listener,
        connection: Connection,
        _addresses: Addresses,
    ) {
        let _ = calls.accept(connection, 0);
    }

    fn recv<C: Streams>(&mut self, _now: Instant, calls: &mut C, connection: Connection, _cookie: u64, bytes: &[u8]) {
        let _ = calls.recv_done(connection, bytes.len());
        let _ = match &self.object {
            Some(object) => calls.sendv(connection, &[object.range()]),
            None => calls.sendv(connection, &[Range::Owned(bytes)]),
        };
    }
}

/// Answers one request, which comes in one segment, with an object, and closes.
#[derive(Debug)]
pub(super) struct Once {
    pub(super) request_bytes: usize,
    pub(super) object: Object,
}

impl Service for Once {
    fn knock<C: Streams>(
        &mut self,
        _now: Instant,
        calls: &mut C,
        _listener: Listener,
        connection: Connection,
        _addresses: Addresses,
    ) {
        let _ = calls.accept(connection, 0);
    }

    fn recv<C: Streams>(&mut self, _now: Instant, calls: &mut C, connection: Connection, _cookie: u64, bytes: &[u8]) {
        let _ = calls.recv_done(connection, bytes.len());
        if bytes.len() == self.request_bytes {
            let _ = calls.sendv(connection, &[self.object.range()]);
            let _ = calls.close(connection);
        }
    }
}

/// Sends an object over and over to whoever asks: there is always more queued than a window of the object's size takes.
#[derive(Debug)]
pub(super) struct Stream {
    object: Object,
    /// bytes queued and not acknowledged, by cookie
    outstanding: Vec<u64>,
}

impl Stream {
    pub(super) fn new(object: Object) -> Stream {
        Stream { object, outstanding: Vec::new() }
    }

    fn top_up<C: Streams>(&mut self, calls: &mut C, connection: Connection, cookie: u64) {
        let outstanding = &mut self.outstanding[cookie as usize];
        while *outstanding < LEAST_QUEUED_BYTES.max(self.object.bytes) {
            match calls.sendv(connection, &[self.object.range()]) {
                Ok(taken) if taken > 0 => *outstanding += taken,
                _ => break,
            }
        }
    }
}

/// More than the peer's largest window, whatever the object's size.
const LEAST_QUEUED_BYTES: u64 = 4 << 20;

impl Service for Stream {
    fn knock<C: Streams>(
        &mut self,
        _now: Instant,
        calls: &mut C,
        _listener: Listener,
        connection: Connection,
        _addresses: Addresses,
    ) {
        let _ = calls.accept(connection, self.outstanding.len() as u64);
        self.outstanding.push(0);
    }

    fn recv<C: Streams>(&mut self, _now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        let _ = calls.recv_done(connection, bytes.len());
        self.top_up(calls, connection, cookie);
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
        self.outstanding[cookie as usize] -= bytes as u64;
        self.top_up(calls, connection, cookie);
    }
}
