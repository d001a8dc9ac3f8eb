//! A connection goes to the server of another thread, or comes from one: in the middle of a request's head, of its content, of an
//! answer. What stands in pools goes along; a chunk that was asked for is asked for anew, by the thread that wants it then.

use app::{Claim, Connection, KeptAway, Streams};
use base::Instant;

use super::Server;
use crate::client::Client;
use crate::out;
use crate::stats::DropReason;
use crate::streams;

/// A connection out of its server.
pub(super) struct Packed {
    /// its places mean nothing
    client: Client,
    claim: Claim,
    /// what is kept of its requests
    held: Option<KeptAway>,
    pending: Option<out::Packed>,
    stream: Option<streams::Packed>,
}

impl Server {
    /// Takes a connection out; None when there is none of that cookie.
    pub(super) fn pack(&mut self, cookie: u64) -> Option<Packed> {
        let client = self.clients.get_mut(cookie as usize).filter(|client| client.used)?;
        let held = self.buffers.take_out(&mut client.kept);
        let (pending, stream) = (self.core.pendings.take_out(client), self.core.streams.take_out(client));
        let client = *client;
        self.clear(cookie as u32);
        let claim = self.places.depart(cookie as u32);
        Some(Packed { client, claim, held, pending, stream })
    }

    /// Puts a connection in; its cookie, or None when there is no room.
    pub(super) fn unpack<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        packed: Packed,
    ) -> Option<u64> {
        let Packed { client, claim, held, pending, stream } = packed;
        let Some(place) = self.places.arrive(claim) else {
            self.core.stats.dropped(DropReason::Full);
            return None;
        };
        let waits = stream.as_ref().is_some_and(|stream| stream.asked) && !client.closed;
        // it has let go of what it had there
        self.settle_in(Client { number: place, ..client });
        let ours = &mut self.clients[place as usize];
        if !held.is_none_or(|held| self.buffers.put_in(&mut ours.kept, held)) {
            self.core.stats.dropped(DropReason::Full);
            self.vacate(place);
            return None;
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
