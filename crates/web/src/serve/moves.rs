//! A connection goes to the server of another thread, or comes from one: in the middle of a request's head, of its content, of an
//! answer. What stands in pools goes along; a chunk that was asked for is asked for anew, by the thread that wants it then.

use app::{Connection, Streams};
use base::Instant;

use super::Server;
use crate::client::{Client, NO_BUFFER, NO_PENDING, NO_STREAM};
use crate::out;
use crate::stats::DropReason;
use crate::streams;

/// A connection out of its server.
pub(super) struct Packed {
    /// its places mean nothing
    client: Client,
    /// what is kept of its requests
    held: Box<[u8]>,
    pending: Option<out::Pending>,
    stream: Option<streams::Packed>,
}

impl Server {
    /// Takes a connection out; None when there is none of that cookie.
    pub(super) fn pack(&mut self, cookie: u64) -> Option<Packed> {
        let client = self.clients.get_mut(cookie as usize).filter(|client| client.used)?;
        let held = match client.buffer {
            NO_BUFFER => Box::default(),
            buffer => self.buffers.bytes(buffer)[..usize::from(client.held_bytes)].into(),
        };
        let (pending, stream) = (self.core.pendings.take_out(client), self.core.streams.take_out(client));
        let packed = Packed { client: *client, held, pending, stream };
        self.vacate(cookie as u32);
        Some(packed)
    }

    /// Puts a connection in; its cookie, or None when there is no room.
    pub(super) fn unpack<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        packed: Packed,
    ) -> Option<u64> {
        let Packed { client, held, pending, stream } = packed;
        let stats = &self.core.stats;
        let Some(place) = self.free.pop() else {
            stats.dropped(DropReason::Full);
            return None;
        };
        stats.open.add(1);
        let waits = stream.as_ref().is_some_and(|stream| stream.asked) && !client.closed;
        let ours = &mut self.clients[place as usize];
        let nowhere = Client { buffer: NO_BUFFER, held_bytes: 0, pending: NO_PENDING, stream: NO_STREAM, ..client };
        *ours = Client { number: place, ..nowhere };
        if !held.is_empty() {
            if !self.buffers.take(ours) {
                stats.dropped(DropReason::Full);
                self.vacate(place);
                return None;
            }
            self.buffers.append(ours, &held);
        }
        let core = &mut self.core;
        if !(pending.is_none_or(|pending| core.pendings.put_in(ours, pending))
            && stream.is_none_or(|stream| core.streams.put_in(ours, connection, stream)))
        {
            core.stats.dropped(DropReason::NoPending);
            self.vacate(place);
            return None;
        }
        let cookie = u64::from(place);
        if waits {
            self.go_on(now, calls, connection, cookie);
        }
        Some(cookie)
    }
}

#[cfg(test)]
mod tests;
