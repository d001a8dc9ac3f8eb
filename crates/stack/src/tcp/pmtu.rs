//! The path's MTU: lowered by what routers say (RFC 1191, RFC 8201), if it quotes a segment in flight (RFC 5927), and, where routers
//! say nothing, by what becomes of full segments (RFC 4821): when they are sent again in vain, smaller ones are tried.
//!
//! A path that was found to be narrow is tried again later with one segment as large as the link carries, among others whose
//! acknowledgements soon tell that it was lost. If it was, that says nothing about congestion, and a router that says what it
//! carries has that tried at once.

use super::ack::Sender;
use super::active::{Phase, Wider};
use super::connection::Flags;
use super::counters::Event;
use super::engine::{Engine, MSS_LEAST, Named};
use super::hop::ip_bytes;
use super::state::State;
use super::tuple::Tuple;
use app::DeadReason;
use base::{Instant, Seq};
use std::time::Duration;
use wire::tcp::HEADER_BYTES;

/// No path is believed to be narrower: over IPv4 what RFC 1122 section 3.3.3 has hosts assume at least, over IPv6 the least MTU of all
/// (RFC 8201 section 4).
const LEAST_MTU_V4: u32 = 576;
/// The same over IPv6.
const LEAST_MTU_V6: u32 = 1280;
/// Data bytes of segments that are tried where full ones vanish: first, then last (RFC 4821 section 7.2 and 7.7).
const BASE_BYTES: [u16; 2] = [1180, 512];
/// A narrow path is tried again so much later (RFC 8201 section 4).
const WIDER_AFTER: Duration = Duration::from_secs(600);
/// Full segments that can follow the one that is tried: three tell that it was lost, and one more if one of them is (RFC 4821
/// section 7.4).
const FOLLOWERS: u32 = 4;

/// What an ICMP error says of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// the next link carries packets of so many bytes at most
    TooBig(u32),
    /// the destination takes none
    Final,
    /// anything else: no way there now, a filter on it, too many hops
    Passing,
}

impl Fault {
    /// As the messages of both families tell it.
    pub(crate) fn of(mtu: Option<u32>, is_final: bool) -> Fault {
        match mtu {
            Some(mtu) => Fault::TooBig(mtu),
            None if is_final => Fault::Final,
            None => Fault::Passing,
        }
    }
}

impl Wider {
    /// To be tried when the time has come; None for a path that carries `most` already.
    pub(super) fn later(now: Instant, mss: u16, most: u16) -> Option<Wider> {
        (mss < most).then(|| Wider { bytes: most, most, at: now + WIDER_AFTER, tried: None })
    }
}

impl Engine {
    /// An ICMP error about a segment of ours with this number; whether it is credible. Errors other than those about the MTU are
    /// soft once a connection is there (RFC 5927 section 6). Before, one that may pass is soft, too (RFC 9293 section 3.9.2.2): the
    /// way may change, and the retransmissions of the SYN end soon. So is a filter's word on the way, which both families have
    /// (administratively prohibited): it is not the destination's.
    pub(crate) fn handle_error(&mut self, now: Instant, tuple: &Tuple, seq: Seq, fault: Fault) -> bool {
        let Some(Named::Connection(index)) = self.find(self.table.hash(tuple), tuple) else { return false };
        let c = &self.connections[index as usize];
        // RFC 5927 section 4.1: SND.UNA =< SEG.SEQ < SND.NXT
        let in_flight = c.position(seq).is_some_and(|position| position >= c.snd.una && position < c.snd.nxt);
        // RFC 8201 section 4: no link of IPv6 carries less
        let absurd = matches!((fault, tuple), (Fault::TooBig(..LEAST_MTU_V6), Tuple::V6(_)));
        if !in_flight || absurd {
            self.counters.on(Event::IcmpIgnored);
            return false;
        }
        match fault {
            Fault::TooBig(mtu) => self.lower_mtu(now, index, mtu),
            // nobody will answer the SYN
            Fault::Final if c.state == State::SynSent => self.kill(index, DeadReason::Unreachable),
            Fault::Final | Fault::Passing => {}
        }
        true
    }

    /// The link carries packets of so many bytes at most from now on, and what it does not carry no path does.
    pub(crate) fn set_mtu(&mut self, now: Instant, mtu: usize) {
        self.mtu = mtu;
        for index in 0..self.connections.len() as u32 {
            self.fit_link(now, index);
        }
    }

    /// Has a connection's segments fit the link, if there is one here that knows the peer's.
    pub(super) fn fit_link(&mut self, now: Instant, index: u32) {
        let c = &self.connections[index as usize];
        if c.state == State::Closed || c.peer_mss == 0 {
            return;
        }
        let most = self.segment_bytes(&c.tuple, c.peer_mss, c.flags.has(Flags::TIMESTAMPS));
        match self.sender(now, index).map(|mut sender| sender.fit(most)) {
            Some(true) => self.wake(index),
            Some(false) => {}
            None => {
                let c = &mut self.connections[index as usize];
                c.mss = c.mss.min(most);
            }
        }
    }

    fn lower_mtu(&mut self, now: Instant, index: u32, mtu: u32) {
        let c = &self.connections[index as usize];
        let least = if matches!(c.tuple, Tuple::V4(_)) { LEAST_MTU_V4 } else { LEAST_MTU_V6 };
        let options = if c.flags.has(Flags::TIMESTAMPS) { 12 } else { 0 };
        let headers = ip_bytes(&c.tuple) + HEADER_BYTES + options;
        let mss = (mtu.max(least) - headers as u32).min(u32::from(u16::MAX)) as u16;
        if let Some(mut sender) = self.sender(now, index)
            && (sender.shrink(mss) || sender.settle(mss))
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
        let most = self.a.wider.map_or(self.c.mss, |wider| wider.most);
        self.a.wider = Wider::later(self.now, mss, most);
        self.c.mss = mss;
        self.counters.on(Event::PathMtu);
        // the path does not carry them, which says nothing about congestion (RFC 8201 section 5.4 aside): they go out anew
        self.records.lose(&mut self.a.board, |record| record.bytes > u32::from(mss) && record.segment_bytes > mss);
        true
    }

    /// Segments carry `most` bytes at most from now on, and no more are tried. Whether that is less.
    fn fit(&mut self, most: u16) -> bool {
        let shrunk = self.shrink(most);
        let mss = self.c.mss;
        self.a.wider = match self.a.wider {
            Some(wider) if mss < most => Some(Wider { bytes: wider.bytes.min(most), most, ..wider }),
            _ => Wider::later(self.now, mss, most),
        };
        shrunk
    }

    /// Data bytes of a wider segment, if one is to be tried now: nothing is being repaired, and enough may follow it.
    pub(super) fn wider_bytes(&self, room: u32, allowance: u32) -> Option<u32> {
        let wider = self.a.wider.filter(|wider| wider.tried.is_none() && wider.at <= self.now)?;
        let (c, mss) = (&*self.c, u32::from(self.c.mss));
        // it has a record of its own; blocks that tell of gaps in what the peer sends take room of their own
        let calm = self.a.phase == Phase::Open && self.a.board.lost == 0 && self.records.may_begin(&self.a.board);
        if !calm || !c.flags.has(Flags::SACK) || room < mss {
            return None;
        }
        let (bytes, all) = (u32::from(wider.bytes), u32::from(wider.bytes) + FOLLOWERS * mss);
        let (queued, window) = (c.snd.end.saturating_sub(c.snd.nxt), c.snd.edge.saturating_sub(c.snd.una));
        (queued.min(window).min(u64::from(allowance)) >= u64::from(all)).then_some(bytes)
    }

    /// Whether so many bytes may go now, by the peer's window, by ours, and by the pace: what is wider than a quantum goes in its place.
    pub(super) fn has_room(&self, bytes: u32, pipe: u32, allowance: u32) -> bool {
        let window = self.c.snd.edge.saturating_sub(self.c.snd.nxt);
        window >= u64::from(bytes) && pipe + bytes <= allowance && self.paced_bytes() > 0
    }

    /// The segment that was planned is on its way.
    pub(super) fn on_tried(&mut self) {
        let end = self.c.snd.nxt;
        if let Some(wider) = &mut self.a.wider {
            wider.tried = Some(end);
            self.counters.on(Event::PathMtuTried);
        }
    }

    /// What an acknowledgement says of the segment that was tried: when it was not taken for lost, the path carries it.
    pub(super) fn judge_wider(&mut self) {
        let Some(wider) = self.a.wider else { return };
        if wider.tried.is_some_and(|end| end <= self.c.snd.una) {
            self.c.mss = wider.bytes;
            self.a.wider = Wider::later(self.now, wider.bytes, wider.most);
            self.counters.on(Event::PathMtuRaised);
        }
    }

    /// The segment that was tried is lost.
    pub(super) fn on_wider_lost(&mut self) {
        self.a.wider = self.a.wider.and_then(|wider| Wider::later(self.now, self.c.mss, wider.most));
    }

    /// A router says what the path carries, less than what is being tried and more than what was known: that is tried next.
    fn settle(&mut self, mss: u16) -> bool {
        let Some(wider) = &mut self.a.wider else { return false };
        let Some(end) = wider.tried.filter(|_| self.c.mss < mss && mss < wider.bytes) else { return false };
        (wider.bytes, wider.at, wider.tried) = (mss, self.now, None);
        self.records.lose(&mut self.a.board, |record| record.end() == end);
        true
    }

    /// The timer has expired again: full segments may be what the path does not carry. One that has carried them is believed for
    /// longer, since what is found is kept for minutes.
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
