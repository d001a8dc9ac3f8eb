//! What is done for one connection at a time: its requests in order, its answers, its end.

use super::{Aborted, Core, PIPELINE_MAX_BYTES, PIPELINE_MAX_PIECES, ROOM_LEAST_BYTES};
use crate::answer::{self, Moment};
use crate::client::{Client, Mode, NO_STREAM};
use crate::framing::Step;
use crate::head::{self, Field, Head, Refusal};
use crate::log::Record;
use crate::stats::DropReason;
use crate::{out, proxy};
use app::{CallError, Connection, Streams};
use base::Instant;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

impl Core {
    /// Cuts bytes into requests and answers them, as long as answers can go out; how many bytes are done with.
    pub(super) fn work<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        client: &mut Client,
        input: &[u8],
    ) -> Result<usize, Aborted> {
        let mut used = 0;
        loop {
            if client.closing {
                return Ok(input.len());
            }
            if client.framer.in_head() && used < input.len() && self.is_stalled(calls, connection, client) {
                self.stats.stalled.add(1);
                return Ok(used);
            }
            let rest = &input[used..];
            let mut slots = head::slots();
            let (taken, step) = client.framer.step(rest, &mut slots, self.options.content_max_bytes);
            used += taken;
            match step {
                Step::More => return Ok(used),
                Step::Skipped => {}
                Step::Proxied(from) => {
                    if let Some(from) = from {
                        client.address = from;
                        client.believed = self.options.forwarded.iter().any(|prefix| prefix.contains(from.ip()));
                    }
                }
                Step::Request(head) => self.respond(now, calls, connection, client, &head)?,
                Step::Refused(refusal) => self.refuse(now, calls, connection, client, refusal, rest)?,
                Step::Broken(DropReason::Content) => {
                    // the answer was given, and goes out whole
                    self.stats.dropped(DropReason::Content);
                    self.finish(calls, connection, client);
                }
                Step::Broken(reason) => return Err(self.abort(calls, connection, client, reason)),
            }
        }
    }

    /// Whether the next request has to wait for answers before it.
    #[inline]
    pub(super) fn is_stalled<C: Streams>(&self, calls: &C, connection: Connection, client: &Client) -> bool {
        client.has_rest()
            || (client.unsent_bytes > 0
                && (client.unsent_bytes > PIPELINE_MAX_BYTES
                    || client.unsent_pieces >= PIPELINE_MAX_PIECES
                    || calls.room(connection) < ROOM_LEAST_BYTES))
    }

    pub(super) fn respond<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        client: &mut Client,
        head: &Head<'_, '_>,
    ) -> Result<(), Aborted> {
        client.mode = Mode::Idle;
        client.requests = client.requests.wrapping_add(1);
        let last = self.options.requests > 0 && client.requests >= self.options.requests;
        let keep_alive = head.keep_alive && !last;
        // a multipart answer is more than engines may take at once: none is begun when its rest would find no place
        let may_be_multipart = head.value(Field::Range).is_some() && self.pendings.has_room();
        let boundary = if may_be_multipart { Some(self.boundary()) } else { None };
        let moment = Moment { date: &self.date.field, boundary };
        answer::answer(&self.site, head, moment, keep_alive, &mut self.plan);
        self.stats.asked(head.method);
        self.send(calls, connection, client)?;
        if self.log.is_some() {
            let mut record = Record::of(head, self.options.wall.unix_ns(now), client.address);
            if client.believed
                && let Some(ip) = proxy::forwarded(head.values(Field::ForwardedFor), &self.options.forwarded)
            {
                record.set_client(ip);
            }
            self.log(record);
        }
        if !keep_alive {
            self.finish(calls, connection, client);
        }
        Ok(())
    }

    /// A number that clients cannot foresee.
    #[cold]
    fn boundary(&mut self) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.options.seed, self.date.unix_s);
        self.boundaries += 1;
        hasher.write_u64(self.boundaries);
        hasher.finish()
    }

    #[cold]
    pub(super) fn refuse<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        client: &mut Client,
        refusal: Refusal,
        bytes: &[u8],
    ) -> Result<(), Aborted> {
        if client.has_rest() {
            // nothing can go out in the middle of an answer
            return Err(self.abort(calls, connection, client, DropReason::NoPending));
        }
        self.stats.refused(refusal);
        let moment = Moment { date: &self.date.field, boundary: None };
        answer::refuse(&self.site, refusal.status(), bytes, moment, &mut self.plan);
        self.send(calls, connection, client)?;
        if self.log.is_some() {
            self.log(Record::of_bytes(bytes, self.options.wall.unix_ns(now), client.address));
        }
        self.finish(calls, connection, client);
        Ok(())
    }

    /// Sends the plan; what the engine does not take waits in a pending.
    #[inline]
    pub(super) fn send<C: Streams>(
        &mut self,
        calls: &mut C,
        connection: Connection,
        client: &mut Client,
    ) -> Result<(), Aborted> {
        let bytes = self.plan.bytes();
        self.stats.answered(self.plan.status, bytes);
        let content = self.site.content();
        let taken = match out::send(calls, connection, Some(content), &self.plan.owned, &self.plan.pieces, 0) {
            Ok(taken) => taken,
            Err(error) => return Err(self.refused(calls, connection, client, error)),
        };
        client.unsent_bytes += taken;
        client.unsent_pieces += self.plan.pieces.len() as u16;
        client.has_news |= taken > 0;
        if taken < bytes { self.keep(calls, connection, client, taken) } else { Ok(()) }
    }

    pub(super) fn log(&mut self, mut record: Record) {
        (record.status, record.host, record.body_bytes) = (self.plan.status, self.plan.host, self.plan.body_bytes);
        let Some(log) = &mut self.log else { return };
        match log.push(record) {
            Ok(()) => self.stats.logged.add(1),
            Err(_) => self.stats.log_drops.add(1),
        }
    }

    /// No request is read any more; the connection ends when its last answer has gone out.
    pub(super) fn finish<C: Streams>(&mut self, calls: &mut C, connection: Connection, client: &mut Client) {
        client.framer.end();
        client.closing = true;
        self.wind_up(calls, connection, client);
    }

    /// Ends the writing side behind the last answer, and the connection when the client has it all: an engine bounds how long
    /// a closed connection lingers, and an answer may take longer.
    pub(super) fn wind_up<C: Streams>(&mut self, calls: &mut C, connection: Connection, client: &mut Client) {
        if client.closed || client.has_rest() {
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

    /// Finishes a connection whose peer has finished, unless whole requests wait behind answers; a partial one never ends.
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
        let hold = bytes > 0 && client.stream != NO_STREAM && !client.owed;
        client.owed |= hold;
        let bytes = bytes - usize::from(hold);
        // after close the engine throws away what comes
        if bytes == 0 || client.closed {
            return Ok(());
        }
        calls.recv_done(connection, bytes).map_err(|error| self.refused(calls, connection, client, error))
    }

    /// Sets the time at which the connection is looked at again. Each mode has its time: a head and content from their
    /// beginning, sending from the last progress, idleness from the last byte.
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
        let mode = if client.unsent_bytes > 0 || client.has_rest() {
            Mode::Sending
        } else if !client.framer.in_head() {
            Mode::Content
        } else if client.kept.bytes() > 0 {
            Mode::Head
        } else {
            Mode::Idle
        };
        if mode != client.mode || (news && matches!(mode, Mode::Idle | Mode::Sending)) {
            client.mode = mode;
            client.deadline = now + self.options.timeout(mode);
        }
        let at = client.deadline.min(client.pace.look(now, self.options.send));
        // a timer that is due earlier is set again when it comes
        if at < client.armed && calls.timer_set(connection, Some(at)).is_ok() {
            client.armed = at;
        }
    }
}
