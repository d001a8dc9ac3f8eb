//! The server of messages as a service, for both engines. What came whole in one event goes back as it came; a longer message, of which an
//! event lends a part at a time, is answered from an object that has the same octets.

use super::{HEAD_BYTES, Head, MOST_BYTES, Pattern, Progress};
use app::{Addresses, Connection, DeadReason, Listener, Service, Streams};
use base::Instant;

/// The service.
#[derive(Debug)]
pub(crate) struct Answer {
    pattern: Pattern,
    /// a connection's cookie is its place
    places: Vec<Progress>,
    free: Vec<u32>,
}

impl Answer {
    /// A service with room for so many connections before it has to make more.
    pub(crate) fn new(connections: usize) -> Answer {
        Answer {
            pattern: Pattern::new(MOST_BYTES),
            places: Vec::with_capacity(connections),
            free: Vec::with_capacity(connections),
        }
    }

    /// Takes one message or a part of one from the front; how much that was, None when it is no message or its answer found no room, of
    /// which there is enough for everybody who waits for an answer before he asks again.
    #[inline]
    fn step<C: Streams>(&mut self, calls: &mut C, connection: Connection, cookie: u64, octets: &[u8]) -> Option<usize> {
        let progress = &mut self.places[cookie as usize];
        let begins = progress.is_empty();
        let (taken, whole) = progress.feed(octets, &self.pattern).ok()?;
        if let Some(head) = whole {
            let sent = if begins {
                calls.send(connection, &octets[..taken]).ok()? == taken
            } else {
                let octets: [u8; HEAD_BYTES] = Head::octets(&head);
                let ranges = [app::Range::Owned(&octets), self.pattern.behind_head(head.bytes)];
                calls.sendv(connection, &ranges).ok()? == u64::from(head.bytes)
            };
            return sent.then_some(taken);
        }
        Some(taken)
    }
}

impl Service for Answer {
    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Progress::default());
            self.places.len() as u32 - 1
        });
        if calls.accept(connection, place.into()).is_err() {
            self.free.push(place);
        }
    }

    #[inline]
    fn recv<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        let _ = calls.recv_done(connection, bytes.len());
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.step(calls, connection, cookie, rest) {
                Some(taken) => rest = &rest[taken..],
                None => {
                    // the client sees it, and says so
                    let _ = calls.abort(connection);
                    break;
                }
            }
        }
    }

    fn dead(&mut self, _: Instant, _: Connection, cookie: u64, _: DeadReason) {
        self.places[cookie as usize] = Progress::default();
        self.free.push(cookie as u32);
    }

    fn name(&self) -> &'static str {
        "messages"
    }
}
