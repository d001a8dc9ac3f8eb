//! The path's MTU: lowered by what routers say (RFC 1191, RFC 8201), if it quotes a segment in flight (RFC 5927), and, where routers
//! say nothing, by what becomes of full segments (RFC 4821): when they are sent again in vain, smaller ones are tried.
//!
//! Left out: growing again. A connection keeps what it found; the next one begins with the link's MTU.

use super::ack::Sender;
use super::connection::Flags;
use super::counters::Event;
use super::engine::{Engine, MSS_LEAST, Named};
use super::hop::ip_bytes;
use super::state::State;
use super::tuple::Tuple;
use app::DeadReason;
use base::{Instant, Seq};
use wire::tcp::HEADER_BYTES;

/// No path is believed to be narrower: over IPv4 what RFC 1122 section 3.3.3 has hosts assume at least, over IPv6 the least MTU of all
/// (RFC 8201 section 4).
const LEAST_MTU_V4: u32 = 576;
/// The same over IPv6.
const LEAST_MTU_V6: u32 = 1280;
/// Data bytes of segments that are tried where full ones vanish: first, then last (RFC 4821 section 7.2 and 7.7).
const BASE_BYTES: [u16; 2] = [1180, 512];

impl Engine {
    /// An ICMP error about a segment of ours with this number; whether it is credible. Errors other than those about the MTU are
    /// soft once a connection is there (RFC 5927 section 6).
    pub(crate) fn handle_error(&mut self, now: Instant, tuple: &Tuple, seq: Seq, mtu: Option<u32>) -> bool {
        let Some(Named::Connection(index)) = self.find(self.table.hash(tuple), tuple) else { return false };
        let c = &self.connections[index as usize];
        // RFC 5927 section 4.1: SND.UNA =< SEG.SEQ < SND.NXT
        let in_flight = c.position(seq).is_some_and(|position| position >= c.snd.una && position < c.snd.nxt);
        if !in_flight {
            self.counters.on(Event::IcmpIgnored);
            return false;
        }
        match mtu {
            Some(mtu) => self.lower_mtu(now, index, mtu),
            // RFC 9293 section 3.9.2.2: nobody will answer the SYN
            None if c.state == State::SynSent => self.kill(index, DeadReason::Unreachable),
            None => {}
        }
        true
    }

    fn lower_mtu(&mut self, now: Instant, index: u32, mtu: u32) {
        let c = &self.connections[index as usize];
        let least = if matches!(c.tuple, Tuple::V4(_)) { LEAST_MTU_V4 } else { LEAST_MTU_V6 };
        let options = if c.flags.has(Flags::TIMESTAMPS) { 12 } else { 0 };
        let headers = ip_bytes(&c.tuple) + HEADER_BYTES + options;
        let mss = (mtu.max(least) - headers as u32).min(u32::from(u16::MAX)) as u16;
        if let Some(mut sender) = self.sender(now, index)
            && sender.shrink(mss)
        {
            self.wake(index);
        }
    }
}

impl Sender<'_> {
    /// Segments carry so many bytes from now on, if that is less; larger ones in flight are lost. Whether it is less.
    fn shrink(&mut self, mss: u16) -> bool {
        let mss = mss.max(MSS_LEAST);
        if mss >= self.c.mss {
            return false;
        }
        self.c.mss = mss;
        self.counters.on(Event::PathMtu);
        // the path does not carry them, which says nothing about congestion (RFC 8201 section 5.4 aside): they go out anew
        self.records.lose(&mut self.a.board, |record| record.bytes > u32::from(mss) && record.segment_bytes > mss);
        true
    }

    /// The timer has expired again: full segments may be what the path does not carry. One that has carried them is believed for
    /// longer, since what is found is never unlearned.
    pub(super) fn suspect_path(&mut self) {
        let patience = if self.c.flags.has(Flags::CARRIED) { 2 } else { 0 };
        let first = self
            .records
            .iter(&self.a.board)
            .next()
            .map_or(0, |record| record.bytes.min(u32::from(record.segment_bytes)));
        let tried = match self.c.backoff.saturating_sub(patience) {
            2 => BASE_BYTES[0],
            4 => BASE_BYTES[1],
            _ => return,
        };
        if first > u32::from(tried) {
            self.shrink(tried);
        }
    }
}
