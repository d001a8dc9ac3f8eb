//! What is done for one connection at a time: its commands in order, its answers, its end.

use super::client::{Client, Mode, NONE};
use super::{Aborted, Core, ROOM_LEAST_BYTES, TOGETHER_BYTES, TOGETHER_PIECES, UNSENT_MOST_BYTES, UNSENT_MOST_PIECES};
use crate::clock::Clock;
use crate::stats::DropReason;
use crate::store::Home;
use crate::text::{self, State, Step, World};
use app::{CallError, Connection, Streams};
use base::Instant;

impl Core {
    pub(super) fn world(&mut self, now: Instant, home: Home) -> World<'_> {
        World {
            home,
            may_change: true,
            shared: &self.shared,
            store: &self.shared.store,
            clock: &self.options.clock,
            stats: &self.stats,
            now: Clock::second(now),
            foreseen: self.foreseen.take(),
            out: &mut self.out,
        }
    }

    /// Does what commands say, as long as answers can go out; how many bytes are done with.
    pub(super) fn work<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        client: &mut Client,
        input: &[u8],
    ) -> Result<usize, Aborted> {
        let mut used = 0;
        while !client.closing {
            if self.out.left() >= TOGETHER_BYTES || self.out.parts() >= TOGETHER_PIECES {
                self.flush(calls, connection, client)?;
            }
            if used == input.len() {
                break;
            }
            if self.is_stalled(calls, connection, client) {
                self.stats.stalled.add(1);
                break;
            }
            match text::step(&mut self.world(now, client.home), &mut client.state, &input[used..]) {
                Step::Done(bytes) => used += bytes,
                Step::More => break,
                Step::Close => {
                    self.flush(calls, connection, client)?;
                    self.finish(calls, connection, client);
                }
            }
        }
        self.flush(calls, connection, client)?;
        Ok(if client.closing { input.len() } else { used })
    }

    /// Whether the next command has to wait for answers before it.
    #[inline]
    pub(super) fn is_stalled<C: Streams>(&self, calls: &C, connection: Connection, client: &Client) -> bool {
        client.pending != NONE
            || (client.unsent_bytes > 0
                && (client.unsent_bytes > UNSENT_MOST_BYTES
                    || client.unsent_pieces >= UNSENT_MOST_PIECES
                    || calls.room(connection) < ROOM_LEAST_BYTES + self.out.left() as usize))
    }

    /// Hands the answers to the engine; what it does not take waits.
    #[inline]
    pub(super) fn flush<C: Streams>(
        &mut self,
        calls: &mut C,
        connection: Connection,
        client: &mut Client,
    ) -> Result<(), Aborted> {
        let left = self.out.left();
        if left == 0 {
            return Ok(());
        }
        self.stats.bytes_out.add(left);
        client.unsent_pieces += 1 + 2 * self.out.parts() as u32;
        let taken = match self.out.send(calls, connection) {
            Ok(taken) => taken,
            Err(error) => {
                self.out.clear();
                return Err(self.refused(calls, connection, client, error));
            }
        };
        client.unsent_bytes += taken;
        if taken < left && !self.pendings.keep(client, &mut self.out) {
            self.out.clear();
            return Err(self.abort(calls, connection, client, DropReason::NoPending));
        }
        self.out.clear();
        Ok(())
    }

    /// Hands more of what waits to the engine.
    pub(super) fn flush_pending<C: Streams>(
        &mut self,
        calls: &mut C,
        connection: Connection,
        client: &mut Client,
    ) -> Result<(), Aborted> {
        let Some(out) = self.pendings.get(client) else { return Ok(()) };
        let sent = out.send(calls, connection);
        let done = out.left() == 0;
        match sent {
            Ok(taken) => client.unsent_bytes += taken,
            Err(error) => return Err(self.refused(calls, connection, client, error)),
        }
        if done {
            self.pendings.give(client);
        }
        Ok(())
    }

    /// There is no buffer for a command that came in part.
    #[cold]
    pub(super) fn refuse<C: Streams>(
        &mut self,
        calls: &mut C,
        connection: Connection,
        client: &mut Client,
        bytes: usize,
    ) -> Result<(), Aborted> {
        self.stats.dropped(DropReason::NoBuffer);
        if client.pending == NONE {
            self.out.bytes.extend_from_slice(b"SERVER_ERROR out of memory reading request\r\n");
            self.flush(calls, connection, client)?;
        }
        self.finish(calls, connection, client);
        self.give_back(calls, connection, client, bytes)
    }

    /// No command is read any more; the connection ends when its last answer has gone out.
    pub(super) fn finish<C: Streams>(&mut self, calls: &mut C, connection: Connection, client: &mut Client) {
        client.closing = true;
        text::forget(&self.shared.store, &mut client.state);
        self.wind_up(calls, connection, client);
    }

    /// Ends the writing side behind the last answer, and the connection when the client has it all: an engine bounds how long a closed
    /// connection lingers, and an answer may take longer.
    pub(super) fn wind_up<C: Streams>(&mut self, calls: &mut C, connection: Connection, client: &mut Client) {
        if client.closed || client.pending != NONE {
            return;
        }
        if client.unsent_bytes == 0 {
            client.closed = true;
            let _ = calls.close(connection);
        } else if !client.shut {
            client.shut = true;
            let _ = calls.shutdown(connection);
        }
    }

    /// Whether what is kept may be worked on.
    pub(super) fn can_go_on<C: Streams>(&self, calls: &mut C, connection: Connection, client: &Client) -> bool {
        client.kept.bytes() > 0 && !client.closing && !self.is_stalled(calls, connection, client)
    }

    /// Finishes a connection whose peer has finished, unless whole commands wait behind answers; a partial one never ends.
    pub(super) fn finish_if_done<C: Streams>(&mut self, calls: &mut C, connection: Connection, client: &mut Client) {
        let waits = client.kept.bytes() > 0 && self.is_stalled(calls, connection, client);
        if client.finished && !client.closing && !waits {
            self.finish(calls, connection, client);
        }
    }

    /// Ends a connection at once.
    #[cold]
    pub(super) fn abort<C: Streams>(
        &mut self,
        calls: &mut C,
        connection: Connection,
        client: &mut Client,
        reason: DropReason,
    ) -> Aborted {
        self.stats.dropped(reason);
        (client.closing, client.closed) = (true, true);
        text::forget(&self.shared.store, &mut client.state);
        let _ = calls.abort(connection);
        Aborted
    }

    /// The engine refused a call. A connection that is gone was ended by its peer, and that will be told; any other is ended here.
    #[cold]
    pub(super) fn refused<C: Streams>(
        &mut self,
        calls: &mut C,
        connection: Connection,
        client: &mut Client,
        error: CallError,
    ) -> Aborted {
        if error == CallError::NoConnection {
            (client.closing, client.closed) = (true, true);
            return Aborted;
        }
        self.abort(calls, connection, client, DropReason::Engine)
    }

    #[inline]
    pub(super) fn give_back<C: Streams>(
        &mut self,
        calls: &mut C,
        connection: Connection,
        client: &mut Client,
        bytes: usize,
    ) -> Result<(), Aborted> {
        // after close the engine throws away what comes
        if bytes == 0 || client.closed {
            return Ok(());
        }
        calls.recv_done(connection, bytes).map_err(|error| self.refused(calls, connection, client, error))
    }

    /// Sets the time at which the connection is looked at again.
    pub(super) fn settle<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        client: &mut Client,
    ) {
        let news = std::mem::take(&mut client.has_news);
        if client.closed {
            return;
        }
        let mode = if client.unsent_bytes > 0 || client.pending != NONE {
            Mode::Sending
        } else if client.kept.bytes() > 0 || !matches!(client.state, State::Line) {
            Mode::Partial
        } else {
            Mode::Idle
        };
        if mode != client.mode || news {
            client.mode = mode;
            client.deadline = match mode {
                Mode::Idle => self.options.idle.map_or(Instant::MAX, |idle| now + idle),
                Mode::Partial | Mode::Sending => now + self.options.stuck,
            };
        }
        // a timer that is due earlier is set again when it comes
        if client.deadline < client.armed && calls.timer_set(connection, Some(client.deadline)).is_ok() {
            client.armed = client.deadline;
        }
    }
}
