//! From a segment to whom it belongs, and back in the same frame where nobody's block answers.

use super::active::Active;
use super::connection::NONE;
use super::counters::{Event, Ignored};
use super::engine::{Engine, Named};
use super::hop::{ip_bytes, pseudo};
use super::listen::Origin;
use super::segment::{Segment, Verdict, judge};
use super::state::State;
use super::table::Hash;
use super::time_wait::{Answer, Arrival, Slot};
use super::tuple::Tuple;
use crate::turn::{turn4, turn6};
use app::{Coming, Service};
use base::{CACHE_LINE_BYTES, Frame, Instant};
use wire::tcp::{self, Header, PayloadSum, Tcp, Timestamps};
use wire::{Protocol, Sum};

/// Further ahead of what was received last, a segment does not come next, even as one of several of a burst.
const AHEAD_MOST_BYTES: u32 = 1 << 16;

/// Where a segment is in its frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// of the network header
    pub(crate) ip_at: usize,
    /// of the segment
    pub(crate) at: usize,
    /// bytes of header and payload
    pub(crate) bytes: usize,
    /// a router marked it (RFC 3168 section 5)
    pub(crate) congested: bool,
}

/// Asks for all cache lines of a block.
#[inline(always)]
pub(super) fn foresee_block<T>(block: &T) {
    let at = std::ptr::from_ref(block).cast::<u8>();
    // the number of steps is known at compile time
    for line in (0..size_of::<T>()).step_by(CACHE_LINE_BYTES) {
        base::prefetch::read(at.wrapping_add(line));
    }
    if align_of::<T>() < CACHE_LINE_BYTES {
        base::prefetch::read(at.wrapping_add(size_of::<T>() - 1));
    }
}

/// So many connections before its turn each stage is asked for. For a whole burst it would be some four hundred cache lines ([`base::prefetch`]).
const BLOCK_AHEAD: usize = 6;
const SENDING_AHEAD: usize = 4;
const FLIGHT_AHEAD: usize = 2;
const OWNED_AHEAD: usize = 1;

/// The memory that a segment's connection most likely needs is asked for in stages, each of which needs what the one before it
/// asked for.
impl Engine {
    /// A tuple's hash. Its place in the table is asked for.
    #[inline(always)]
    pub(crate) fn foresee(&self, tuple: &Tuple) -> Hash {
        let hash = self.table.hash(tuple);
        self.table.prefetch(hash);
        hash
    }

    /// The index of the connection that a tuple with this hash most likely has, or none.
    #[inline]
    pub(crate) fn likely_connection(&self, hash: Hash) -> u32 {
        match self.table.candidate(hash).map(Named::of) {
            Some(Named::Connection(index)) => index,
            _ => NONE,
        }
    }

    /// Asks for what the first of these connections need.
    #[inline]
    pub(crate) fn foresee_first(&self, connections: &[u32]) {
        connections.iter().take(BLOCK_AHEAD).for_each(|index| self.foresee_connection(*index));
        connections.iter().take(SENDING_AHEAD).for_each(|index| self.foresee_sending(*index));
        connections.iter().take(FLIGHT_AHEAD).for_each(|index| self.foresee_flight(*index));
        connections.iter().take(OWNED_AHEAD).for_each(|index| self.foresee_owned(*index));
    }

    /// Asks for what those need that stand behind the one at `turn`.
    #[inline]
    pub(crate) fn foresee_behind(&self, connections: &[u32], turn: usize) {
        let behind = |distance| connections.get(turn + distance).copied();
        behind(BLOCK_AHEAD).into_iter().for_each(|index| self.foresee_connection(index));
        behind(SENDING_AHEAD).into_iter().for_each(|index| self.foresee_sending(index));
        behind(FLIGHT_AHEAD).into_iter().for_each(|index| self.foresee_flight(index));
        behind(OWNED_AHEAD).into_iter().for_each(|index| self.foresee_owned(index));
    }

    /// Asks for a connection's block.
    #[inline]
    pub(crate) fn foresee_connection(&self, index: u32) {
        if let Some(connection) = self.connections.get(index as usize) {
            foresee_block(connection);
        }
    }

    /// Asks for what it needs to send.
    #[inline]
    fn foresee_sending(&self, index: u32) {
        if let Some(active) = self.likely(index) {
            foresee_block(active);
        }
    }

    /// Asks for what it has queued and in flight: most likely this segment acknowledges it.
    #[inline]
    fn foresee_flight(&self, index: u32) {
        if let Some(active) = self.likely(index) {
            self.records.foresee(&active.board);
            self.queue.foresee(&active.list);
        }
    }

    /// Asks for the bytes that it has queued: their place is what it most likely writes next.
    #[inline]
    fn foresee_owned(&self, index: u32) {
        if let Some(active) = self.likely(index) {
            self.queue.foresee_owned(&active.list);
        }
    }

    /// What a connection's service most likely gets of a segment.
    #[inline]
    pub(crate) fn coming<'f>(&self, index: u32, segment: &'f [u8]) -> Option<Coming<'f>> {
        let c = self.connections.get(index as usize)?;
        let tcp = Tcp::parse(segment).ok()?;
        let bytes = tcp.payload();
        let ahead = tcp.seq().since(c.rcv.nxt);
        (!bytes.is_empty() && c.state.may_receive() && ahead < AHEAD_MOST_BYTES)
            .then_some(Coming { cookie: c.cookie, bytes })
    }

    /// Asks for the block of a connection whose timer has fired.
    pub(super) fn foresee_timer(&self, value: u32) {
        if let Named::Connection(index) = Named::of(value)
            && let Some(connection) = self.connections.get(index as usize)
        {
            foresee_block(connection);
        }
    }

    #[inline]
    fn likely(&self, index: u32) -> Option<&Active> {
        self.actives.peek(self.connections.get(index as usize)?.active)
    }

    /// Takes a segment whose checksum was verified; whether the frame, turned round, is to be sent. `likely` is the connection that it most
    /// likely belongs to; the place says whether a router marked it.
    pub(crate) fn input<S: Service>(
        &mut self,
        now: Instant,
        frame: &mut Frame,
        place: Place,
        origin: &Origin,
        likely: u32,
        service: &mut S,
    ) -> bool {
        self.counters.received.add(1);
        let bytes = &frame.bytes()[place.at..place.at + place.bytes];
        let Ok(tcp) = Tcp::parse(bytes) else { return false };
        let segment = Segment { options: &tcp.options(), tcp: &tcp, congested: place.congested };
        let found = match self.connections.get(likely as usize) {
            // who is not closed stands in the table
            Some(c) if c.tuple == origin.tuple && c.state != State::Closed => Some(Named::Connection(likely)),
            _ => self.find(origin.hash, &origin.tuple),
        };
        debug_assert_eq!(found, self.find(origin.hash, &origin.tuple), "the likely connection is the one in the table");
        let answer = self.dispatch(now, found, origin, &segment, service);
        let Some(header) = answer else { return false };
        self.turn(frame, place, origin, &header);
        true
    }

    fn dispatch<S: Service>(
        &mut self,
        now: Instant,
        found: Option<Named>,
        origin: &Origin,
        segment: &Segment<'_>,
        service: &mut S,
    ) -> Option<Header<'static>> {
        match found {
            Some(Named::Connection(index)) => {
                let c = &mut self.connections[index as usize];
                if c.state == State::SynSent {
                    return self.on_syn_sent(now, index, segment, service);
                }
                // the way may change, but nobody else's word changes it
                if c.hop != origin.hop && matches!(judge(now, c, segment), Verdict::Accept(_)) {
                    c.hop = origin.hop;
                }
                self.handle(now, index, segment, service);
                self.answer.take()
            }
            Some(Named::HalfOpen(index)) => {
                let answer = self.on_half_open(now, index, origin, segment, service);
                answer.or_else(|| self.answer.take())
            }
            Some(Named::TimeWait(slot)) if self.time_wait.is_over(now, slot) => {
                // the next poll would have let go of it
                self.end_wait(origin.hash, slot);
                self.on_stranger(now, &self.for_newcomers(origin), segment, service)
            }
            Some(Named::TimeWait(slot)) => self.on_time_wait(now, slot, &self.for_newcomers(origin), segment),
            None => self.on_stranger(now, &self.for_newcomers(origin), segment, service),
        }
    }

    /// While the engine drains nobody listens any more.
    #[inline]
    fn for_newcomers(&self, origin: &Origin) -> Origin {
        Origin { listener: origin.listener.filter(|_| !self.draining), ..*origin }
    }

    /// A segment that belongs to nothing (RFC 9293 sections 3.10.7.1 and 3.10.7.2).
    fn on_stranger<S: Service>(
        &mut self,
        now: Instant,
        origin: &Origin,
        segment: &Segment<'_>,
        service: &mut S,
    ) -> Option<Header<'static>> {
        let flags = segment.tcp.flags();
        if flags.contains(tcp::Flags::RST) {
            self.counters.ignore(Ignored::StraySilent);
            return None;
        }
        if origin.listener.is_none() {
            return self.reset_for(now, segment);
        }
        if flags.contains(tcp::Flags::ACK) {
            if flags.contains(tcp::Flags::SYN) {
                return self.reset_for(now, segment);
            }
            let answer = self.on_cookie(now, origin, segment, service);
            return answer.or_else(|| self.answer.take());
        }
        if flags.contains(tcp::Flags::SYN) && !flags.contains(tcp::Flags::FIN) {
            return self.on_syn(now, origin, segment, None);
        }
        self.counters.ignore(Ignored::StraySilent);
        None
    }

    /// A segment for a connection in TIME-WAIT.
    fn on_time_wait(
        &mut self,
        now: Instant,
        slot: Slot,
        origin: &Origin,
        segment: &Segment<'_>,
    ) -> Option<Header<'static>> {
        let arrival = Arrival {
            seq: segment.tcp.seq(),
            flags: segment.tcp.flags(),
            payload_bytes: segment.tcp.payload().len() as u32,
            timestamps: segment.timestamps(),
        };
        let closed = self.time_wait.get(slot)?;
        match self.time_wait.judge(now, slot, &arrival)? {
            Answer::Reuse { beyond } if origin.listener.is_some() => {
                // it goes on where the SYN is not taken
                let answer = self.on_syn(now, origin, segment, Some(beyond))?;
                self.end_wait(closed.hash, slot);
                self.counters.on(Event::TimeWaitReused);
                return Some(answer);
            }
            Answer::Drop | Answer::DropReset | Answer::Reuse { .. } => {
                self.counters.ignore(Ignored::TimeWait);
                return None;
            }
            Answer::Acknowledge => {
                self.counters.ignore(Ignored::TimeWait);
                if !self.challenges.allow(now) {
                    return None;
                }
            }
            Answer::AcknowledgeFin => self.counters.ignore(Ignored::TimeWait),
        }
        let clock = ((now.as_nanos() / 1_000_000) as u32).wrapping_add(self.numbers.clock_offset(&closed.tuple));
        let echo = self.time_wait.get(slot).and_then(|closed| closed.ts_recent);
        Some(Header {
            seq: closed.snd_nxt,
            ack: closed.rcv_nxt,
            flags: tcp::Flags::ACK,
            window: 0,
            timestamps: echo.map(|echo| Timestamps { value: clock, echo }),
            ..Header::default()
        })
    }

    /// The reset that answers a segment, if the limit has room (RFC 9293 section 3.10.7.1).
    pub(super) fn reset_for(&mut self, now: Instant, segment: &Segment<'_>) -> Option<Header<'static>> {
        if !self.challenges.allow(now) {
            self.counters.ignore(Ignored::StraySilent);
            return None;
        }
        self.counters.ignore(Ignored::Stray);
        self.counters.on(Event::ResetSent);
        let tcp = &segment.tcp;
        let header = if tcp.flags().contains(tcp::Flags::ACK) {
            Header { seq: tcp.ack(), flags: tcp::Flags::RST, ..Header::default() }
        } else {
            let ack = tcp.seq() + tcp.sequence_bytes();
            Header { ack, flags: tcp::Flags::RST | tcp::Flags::ACK, ..Header::default() }
        };
        Some(header)
    }

    /// Makes the received frame the answer to it.
    fn turn(&self, frame: &mut Frame, place: Place, origin: &Origin, header: &Header<'static>) {
        let tuple = &origin.tuple;
        let header = Header { src_port: tuple.local().port(), dst_port: tuple.remote().port(), ..*header };
        let bytes = header.bytes();
        // behind the fixed header, where every frame has room for it: what came may have stood behind others, at the frame's end
        let at = place.ip_at + ip_bytes(tuple);
        frame.set_len(at + bytes);
        header.write(&mut frame.bytes_mut()[at..], pseudo(tuple, bytes), PayloadSum::Known(Sum::ZERO));
        match tuple {
            Tuple::V4(_) => turn4(frame, place.ip_at, at, bytes, Protocol::TCP),
            Tuple::V6(_) => turn6(frame, place.ip_at, at, bytes, Protocol::TCP),
        }
        self.counters.sent.add(1);
    }
}
