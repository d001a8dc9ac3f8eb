//! A connection block: what is kept of a connection that has finished its handshake or asked for one.
//!
//! The first two cache lines hold what every segment needs. What only a connection with something to send needs (congestion
//! control, recovery, what is queued and in flight) stands in an [`Active`](super::active::Active), which an idle one gives up
//! when others want it. Positions count the bytes of our stream in 64 bits, so that nothing wraps: the SYN is at 0, the
//! first byte of data at 1, the FIN behind the last one; a sequence number is the initial one plus the position, modulo 2^32.

use super::hop::Hop;
use super::reassembly;
use super::rtt::Rtt;
use super::state::State;
use super::tick::Tick;
use super::tuple::Tuple;
use app::{DeadReason, Listener};
use base::wheel::Timer;
use base::{Instant, Seq};
use std::time::Duration;
use wire::tcp::SackBlock;

/// A silence in which the peer's clock may have gone half round, so that nothing tells old timestamps from new ones. RFC 7323 section 5.5
/// has 24 days, after the fastest clock that it allows, of a millisecond; Linux has one of a microsecond, too.
const CLOCK_HALF_ROUND: Duration = Duration::from_micros(1 << 31);

/// No [`Active`](super::active::Active).
pub(crate) const NONE: u32 = u32::MAX;

/// One-bit facts about a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u32);

impl Flags {
    /// timestamps are used (RFC 7323 section 3)
    pub(crate) const TIMESTAMPS: u32 = 1 << 0;
    /// SACK is used (RFC 2018)
    pub(crate) const SACK: u32 = 1 << 1;
    /// ECN is used (RFC 3168 section 6.1.1)
    pub(crate) const ECN: u32 = 1 << 2;
    /// congestion was marked on the way to us, and the peer has not said that it slows down: ECE goes out
    pub(crate) const ECHO: u32 = 1 << 3;
    /// the next new data says that we slowed down
    pub(crate) const REDUCED: u32 = 1 << 4;
    /// an ACK is to go out now
    pub(crate) const ACK_NOW: u32 = 1 << 5;
    /// a SYN, or its answer, is to go out now
    pub(crate) const SYN_NOW: u32 = 1 << 6;
    /// an empty segment that asks for an ACK is to go out now: keepalive or window probe
    pub(crate) const PROBE_NOW: u32 = 1 << 7;
    /// a reset is to go out, then the connection ends
    pub(crate) const RESET_NOW: u32 = 1 << 8;
    /// stands in the queue of connections with something to do
    pub(crate) const READY: u32 = 1 << 9;
    /// the service accepted it
    pub(crate) const ACCEPTED: u32 = 1 << 10;
    /// the service closed it: what arrives is thrown away
    pub(crate) const ABANDONED: u32 = 1 << 11;
    /// our FIN stands behind what is queued
    pub(crate) const FIN: u32 = 1 << 12;
    /// our FIN is acknowledged
    pub(crate) const FIN_ACKNOWLEDGED: u32 = 1 << 13;
    /// it was we who asked for the connection
    pub(crate) const CLIENT: u32 = 1 << 14;
    /// the peer's FIN was received
    pub(crate) const EOF: u32 = 1 << 15;
    /// the path has carried a full segment
    pub(crate) const CARRIED: u32 = 1 << 16;
    /// the peer has answered neither keepalive probe nor anything else since the last one
    pub(crate) const SILENT: u32 = 1 << 17;
    /// new data wait for their time
    pub(crate) const PACED: u32 = 1 << 18;
    /// windows are scaled (RFC 7323 section 2)
    pub(crate) const SCALED: u32 = 1 << 19;
    /// nobody has the place: the next connection may
    pub(crate) const VACANT: u32 = 1 << 20;
    /// it was refused room while nothing of it was queued: it is to be told when there is some
    pub(crate) const STARVED: u32 = 1 << 21;
    /// its place stands among those that need a range
    pub(crate) const LACKS_RANGE: u32 = 1 << 22;
    /// a hold of a chunk
    pub(crate) const LACKS_CHUNK: u32 = 1 << 23;
    /// a block of owned bytes
    pub(crate) const LACKS_BLOCK: u32 = 1 << 24;
    /// a record of what is in flight
    pub(crate) const LACKS_RECORD: u32 = 1 << 25;
    /// its SYN, or the answer to one, was sent again more than once
    pub(crate) const LOST_HANDSHAKE: u32 = 1 << 26;
    /// something without data is to go out
    pub(crate) const NOW: u32 = Flags::ACK_NOW | Flags::SYN_NOW | Flags::PROBE_NOW | Flags::RESET_NOW;

    #[inline]
    pub(crate) const fn has(self, any: u32) -> bool {
        self.0 & any != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, flags: u32) {
        self.0 |= flags;
    }

    #[inline]
    pub(crate) fn clear(&mut self, flags: u32) {
        self.0 &= !flags;
    }

    /// Makes `which` of them what they are in `other`.
    #[inline]
    pub(crate) fn take_over(&mut self, which: u32, other: Flags) {
        self.0 = (self.0 & !which) | (other.0 & which);
    }

    #[inline]
    pub(crate) fn put(&mut self, flags: u32, value: bool) {
        if value { self.set(flags) } else { self.clear(flags) }
    }
}

/// Our stream, in positions.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Snd {
    /// the first not acknowledged
    pub(crate) una: u64,
    /// the next to be sent
    pub(crate) nxt: u64,
    /// as far as the peer's window reaches
    pub(crate) edge: u64,
    /// behind the last byte queued; where the FIN goes
    pub(crate) end: u64,
}

/// The peer's stream.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Rcv {
    /// the next expected
    pub(crate) nxt: Seq,
    /// as far as we told the peer that it may send
    pub(crate) edge: Seq,
    /// what we acknowledged last
    pub(crate) acked: Seq,
    /// bytes delivered and not given back
    pub(crate) delivered: u32,
}

/// The block.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Connection {
    pub(crate) snd: Snd,
    pub(crate) hop: Hop,
    pub(crate) tuple: Tuple,
    pub(crate) state: State,
    /// bytes of data that a segment carries, options left out
    pub(crate) mss: u16,
    /// shift of the peer's window field
    pub(crate) snd_scale: u8,
    /// shift of ours
    pub(crate) rcv_scale: u8,
    pub(crate) iss: Seq,
    /// the sequence number of the last segment that moved the window (RFC 9293 SND.WL1; WL2 is never above SND.UNA)
    pub(crate) wl1: Seq,
    pub(crate) rcv: Rcv,
    /// the timestamp to echo (RFC 7323 TS.Recent)
    pub(crate) ts_recent: u32,
    pub(crate) flags: Flags,
    pub(crate) active: u32,
    /// retransmission, probe or persist timer
    pub(crate) rtx_at: Tick,
    /// how often the place was used
    pub(crate) generation: u32,

    // from here on: what not every segment needs
    pub(crate) cookie: u64,
    /// the service's timer
    pub(crate) user_at: Option<Instant>,
    pub(crate) timer: Option<Timer>,
    pub(crate) rtt: Rtt,
    /// when the timer fires
    pub(crate) timer_at: Tick,
    /// a delayed ACK
    pub(crate) ack_at: Tick,
    /// keepalive, or the end of lingering
    pub(crate) idle_at: Tick,
    /// when something was heard last
    pub(crate) heard_at: Tick,
    /// until when the peer may keep its window closed
    pub(crate) stalled_at: Tick,
    /// what arrived beyond a gap
    pub(crate) beyond: reassembly::List,
    /// bytes that came twice, to be told once (RFC 2883)
    pub(crate) twice: Option<SackBlock>,
    /// added to our clock in timestamps
    pub(crate) ts_offset: u32,
    /// acknowledged, and not told to the service yet
    pub(crate) sent_bytes: u32,
    /// of our receive buffer, were there one
    pub(crate) window_bytes: u32,
    /// the largest window that the peer has offered (RFC 5961 section 5.2, SWS avoidance)
    pub(crate) max_window: u32,
    /// when a challenge may be sent again
    pub(crate) challenged_at: Tick,
    pub(crate) listener: Listener,
    /// what the peer announced
    pub(crate) peer_mss: u16,
    /// timeouts, probes in a row
    pub(crate) backoff: u8,
    /// keepalive probes in a row
    pub(crate) probes: u8,
    pub(crate) dead: Option<DeadReason>,
}

const _: () = assert!(std::mem::offset_of!(Connection, cookie) <= 128, "the hot part is two cache lines");
/// What a connection without anything to send takes: its block, its timer, its place in the queue of those with something to
/// do and in the three of those that wait for room, and its place in the table, which is never fuller than half. The line of those that
/// wait for a record is for who has something to send; its memory is touched as far as it has ever been.
const IDLE_BYTES: usize = size_of::<Connection>() + 32 + 4 + 3 * 4 + 2 * 8;
const _: () = assert!(IDLE_BYTES <= 384, "an idle connection takes at most 384 bytes");

impl Connection {
    /// The sequence number of a position in our stream.
    #[inline]
    pub(crate) fn seq(&self, position: u64) -> Seq {
        self.iss + position as u32
    }

    /// The position of a sequence number that is less than 2^31 away from what is acknowledged; None when it is before the SYN.
    #[inline]
    pub(crate) fn position(&self, seq: Seq) -> Option<u64> {
        self.snd.una.checked_add_signed(i64::from(seq.offset_from(self.seq(self.snd.una))))
    }

    /// Behind everything that is queued, FIN counted.
    #[inline]
    pub(crate) fn last(&self) -> u64 {
        self.snd.end + u64::from(self.flags.has(Flags::FIN))
    }

    /// Whether something was never sent.
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        self.snd.nxt < self.last()
    }

    /// Where a segment without data stands: behind what was sent, or, where the peer has made its window smaller since, at the end of that,
    /// beyond which it takes no acknowledgement either (RFC 9293 section 3.8.6).
    #[inline]
    pub(crate) fn last_acceptable(&self) -> u64 {
        match self.state {
            State::SynSent | State::SynReceived => self.snd.nxt,
            _ => self.snd.nxt.min(self.snd.edge.max(self.snd.una)),
        }
    }

    /// Bytes from the left to the right edge of the window that we offered.
    #[inline]
    pub(crate) fn offered(&self) -> u32 {
        self.rcv.edge.since(self.rcv.nxt)
    }

    /// Our clock in milliseconds, as timestamps carry it (RFC 7323 section 4.1).
    #[inline]
    pub(crate) fn clock(&self, now: Instant) -> u32 {
        clock(now, self.ts_offset)
    }

    /// Whether a timestamp of the peer's is older than what was seen (RFC 7323 section 5.3).
    #[inline]
    pub(crate) fn is_stale(&self, now: Instant, clock: u32) -> bool {
        clock.wrapping_sub(self.ts_recent).cast_signed() < 0 && !self.heard_at.is_past(now, CLOCK_HALF_ROUND)
    }

    /// The handle.
    #[inline]
    pub(crate) fn handle(&self, index: u32) -> app::Connection {
        app::Connection { index, generation: self.generation }
    }
}

/// The clock of a connection with this offset, as it was or is at `at`.
#[inline]
pub(crate) fn clock(at: Instant, offset: u32) -> u32 {
    ((at.as_nanos() / 1_000_000) as u32).wrapping_add(offset)
}
