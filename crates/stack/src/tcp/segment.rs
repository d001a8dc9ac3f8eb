//! What a segment is worth to a connection: RFC 9293 section 3.10.7.4 as RFC 5961 hardens it. Judging changes nothing; the verdict
//! says what is to be done.

use super::connection::{Connection, Flags};
use super::counters::Ignored;
use base::Instant;
use wire::tcp::{self, Options, Tcp, Timestamps};

/// A segment and what its packet said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) tcp: &'a Tcp<'a>,
    pub(crate) options: &'a Options<'a>,
    /// congestion was marked on the way (RFC 3168 section 5)
    pub(crate) congested: bool,
}

impl Segment<'_> {
    #[inline]
    pub(crate) fn has(&self, flag: tcp::Flags) -> bool {
        self.tcp.flags().contains(flag)
    }

    pub(crate) fn timestamps(&self) -> Option<Timestamps> {
        self.options.timestamps
    }
}

/// The part of a segment's payload that is inside the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// bytes before it that came before
    pub(crate) skip: usize,
    pub(crate) bytes: usize,
    /// the FIN is inside too
    pub(crate) fin: bool,
}

/// What is to be done with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// its acknowledgement is processed, then this part of its data
    Accept(Part),
    /// the peer reset the connection
    Reset,
    /// it is answered by an ACK and goes no further
    Acknowledge(Ignored),
    /// the same, but seldom (RFC 5961 section 7, and against loops of ACKs)
    Challenge(Ignored),
    /// it goes no further
    Ignore(Ignored),
}

/// Judges a segment for a synchronized connection, or one of a simultaneous open.
#[inline]
pub(crate) fn judge(now: Instant, connection: &Connection, segment: &Segment<'_>) -> Verdict {
    let flags = segment.tcp.flags();
    let reset = flags.contains(tcp::Flags::RST);
    if flags.contains(tcp::Flags::SYN) && !reset {
        // RFC 5961 section 4: whatever its number, and with a timestamp or without: a peer that began anew may know of none
        return Verdict::Challenge(Ignored::UnexpectedSyn);
    }
    if connection.flags.has(Flags::TIMESTAMPS) && !reset {
        match segment.timestamps() {
            // RFC 7323 section 5.3 R1 (PAWS)
            Some(clock) if connection.is_stale(now, clock.value) => {
                return Verdict::Challenge(Ignored::OldTimestamp);
            }
            Some(_) => {}
            // RFC 7323 section 3.2
            None => return Verdict::Ignore(Ignored::NoTimestamp),
        }
    }
    let offset = i64::from(segment.tcp.seq().offset_from(connection.rcv.nxt));
    let payload = segment.tcp.payload().len() as i64;
    let window = i64::from(connection.offered());
    if reset {
        return judge_reset(offset, window);
    }
    let fin = flags.contains(tcp::Flags::FIN);
    let end = offset + payload + i64::from(fin);
    // RFC 9293 section 3.10.7.4, first; a segment without data may stand at the window's very edge, as the ACKs of a sender
    // that has filled it do
    let acceptable = if end == offset { offset >= 0 && offset <= window } else { offset < window && end > 0 };
    // a probe of a closed window is good for its acknowledgement
    let probes = window == 0 && offset == 0;
    if !acceptable && !probes {
        let ignored = if offset < 0 { Ignored::OldSegment } else { Ignored::BeyondWindow };
        return if payload > 0 || fin { Verdict::Acknowledge(ignored) } else { Verdict::Challenge(ignored) };
    }
    if !flags.contains(tcp::Flags::ACK) {
        return Verdict::Ignore(Ignored::NoAck);
    }
    // RFC 5961 section 5.2: SND.UNA - MAX.SND.WND <= SEG.ACK <= SND.NXT
    match connection.position(segment.tcp.ack()) {
        Some(ack) if ack > connection.snd.nxt => return Verdict::Challenge(Ignored::AckBeyond),
        Some(ack) if ack + u64::from(connection.max_window) < connection.snd.una => {
            return Verdict::Challenge(Ignored::AckOld);
        }
        Some(_) => {}
        None => return Verdict::Challenge(Ignored::AckOld),
    }
    let skip = (-offset).clamp(0, payload);
    let bytes = (payload - skip).min((window - offset - skip).max(0));
    let fin = fin && skip + bytes == payload && offset + payload < window.max(1) && !probes;
    Verdict::Accept(Part { skip: skip as usize, bytes: bytes as usize, fin })
}

/// RFC 5961 section 3.2: only the very number that is expected resets; others in the window are challenged.
fn judge_reset(offset: i64, window: i64) -> Verdict {
    if offset == 0 {
        Verdict::Reset
    } else if offset > 0 && offset < window {
        Verdict::Challenge(Ignored::ResetInWindow)
    } else {
        Verdict::Ignore(Ignored::ResetOutside)
    }
}
