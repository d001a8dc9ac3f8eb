//! The rest of an answer: what an engine did not take at once, and what is sent in chunks.

use app::{Connection, Streams};

use super::{Aborted, Core};
use crate::answer::Piece;
use crate::client::{Client, NO_PENDING, NO_STREAM};
use crate::out::Next;
use crate::stats::DropReason;
use crate::streams::Fed;

impl Core {
    /// Keeps the rest of the plan, behind what was taken, and begins to send what of it comes in chunks.
    #[cold]
    pub(super) fn keep<C: Streams>(
        &mut self,
        calls: &mut C,
        connection: Connection,
        client: &mut Client,
        taken: u64,
    ) -> Result<(), Aborted> {
        let origin = self.plan.origin().and_then(|number| self.site.origin(number)).cloned();
        if origin.is_some() && !self.streams.take(client, connection) {
            return Err(self.abort(calls, connection, client, DropReason::NoPending));
        }
        match (self.plan.pieces.last(), &origin) {
            // most often: the head was taken, and a part of a file is all that is left
            (Some(&Piece::File { start, bytes, .. }), Some(origin)) if taken + bytes == self.plan.bytes() => {
                self.streams.begin(client.stream, origin, start..start + bytes);
            }
            (_, origin) => match self.pendings.keep(&self.plan, self.site.content(), origin.as_ref(), taken) {
                Some(place) => client.pending = place,
                None => return Err(self.abort(calls, connection, client, DropReason::NoPending)),
            },
        }
        if client.stream == NO_STREAM { Ok(()) } else { self.flush(calls, connection, client) }
    }

    /// Sends more of the answer that waits: of a part of a file, and of what stands between such parts.
    pub(super) fn flush<C: Streams>(
        &mut self,
        calls: &mut C,
        connection: Connection,
        client: &mut Client,
    ) -> Result<(), Aborted> {
        loop {
            if client.stream != NO_STREAM {
                let (taken, fed) = match self.streams.feed(client, calls, connection, &self.stats) {
                    Ok(done) => done,
                    Err(error) => return Err(self.refused(calls, connection, client, error)),
                };
                client.unsent_bytes += taken;
                client.has_news |= taken > 0;
                if taken > 0 {
                    client.pace.hold();
                }
                self.pendings.on_fed(client.pending, taken);
                if let Fed::Waits = fed {
                    return Ok(());
                }
            }
            if client.pending == NO_PENDING {
                return self.end_stream(calls, connection, client);
            }
            let (taken, next) = match self.pendings.flush(client.pending, calls, connection) {
                Ok(done) => done,
                Err(error) => return Err(self.refused(calls, connection, client, error)),
            };
            client.unsent_bytes += taken;
            client.has_news |= taken > 0;
            match next {
                Next::Offer => return Ok(()),
                Next::Chunks(origin, part) => self.streams.begin(client.stream, &origin, part),
                Next::Nothing => {
                    self.pendings.give(client);
                    return self.end_stream(calls, connection, client);
                }
            }
        }
    }

    /// All chunks of an answer are queued.
    fn end_stream<C: Streams>(
        &mut self,
        calls: &mut C,
        connection: Connection,
        client: &mut Client,
    ) -> Result<(), Aborted> {
        self.streams.give(client);
        let owed = std::mem::take(&mut client.owed);
        self.give_back(calls, connection, client, usize::from(owed))
    }
}
