//! Handshakes that peers begin: SYN, SYN-ACK, ACK, with a half-open entry while there is room and a cookie beyond (RFC 4987).
//!
//! Answers go back in the received frame. Left out: data on a SYN (RFC 7413); they are not acknowledged and come again.

use super::calls::Calls;
use super::connection::{Connection, Flags, NONE, Rcv, Snd};
use super::cookie::{self, Offer};
use super::counters::{Event, Ignored};
use super::engine::{Engine, Named, Outlet};
use super::half_open::HalfOpen;
use super::hop::{Hop, pseudo};
use super::limits::{Refused, Source};
use super::output::lay_out;
use super::reassembly;
use super::rtt::Rtt;
use super::segment::Segment;
use super::state::State;
use super::table::Hash;
use super::tick::Tick;
use super::tuple::Tuple;
use app::{DeadReason, Listener, Service};
use base::{Instant, Seq};
use std::time::Duration;
use wire::Sum;
use wire::tcp::{self, Header, PayloadSum, Timestamps};

/// What a peer takes that does not name its MSS (RFC 9293 section 3.7.1, MUST-15).
pub(super) fn default_mss(tuple: &Tuple) -> u16 {
    if matches!(tuple, Tuple::V4(_)) { 536 } else { 1220 }
}

/// Before the SYN-ACK is sent again for the first time (RFC 6298 section 2.1).
const SYN_TIMEOUT: Duration = Duration::from_secs(1);
/// The shift of our window fields: the least with which they can tell the window, so that little of it is rounded away (RFC 7323
/// section 2.2).
fn window_scale(window_bytes: u32) -> u8 {
    (window_bytes >> 16 << 1).checked_ilog2().map_or(0, |bits| bits as u8).min(tcp::MAX_WINDOW_SCALE)
}

/// Who sent a segment to whom, and what listens there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) tuple: Tuple,
    /// of the tuple
    pub(crate) hash: Hash,
    pub(crate) hop: Hop,
    /// who listens at our end
    pub(crate) listener: Option<(Listener, u32)>,
}

/// What a finished handshake was about.
pub(super) struct Handshake {
    pub(super) tuple: Tuple,
    pub(super) hop: Hop,
    pub(super) iss: Seq,
    pub(super) irs: Seq,
    pub(super) offer: Offer,
    pub(super) ts_recent: Option<u32>,
    pub(super) listener: Listener,
    pub(super) window_bytes: u32,
}

impl Engine {
    /// A SYN for a listener; `beyond` is where our number must begin, when it follows a connection in TIME-WAIT (RFC 9293 section 3.6.1,
    /// RFC 6191). None is a SYN that is not taken.
    pub(super) fn on_syn(
        &mut self,
        now: Instant,
        origin: &Origin,
        segment: &Segment<'_>,
        beyond: Option<Seq>,
    ) -> Option<Header<'static>> {
        let (listener, window_bytes) = origin.listener?;
        let options = segment.options;
        let setup = tcp::Flags::ECE | tcp::Flags::CWR; // RFC 3168 section 6.1.1
        let offer = Offer {
            mss: options.mss.unwrap_or_else(|| default_mss(&origin.tuple)).max(super::engine::MSS_LEAST),
            window_scale: options.window_scale,
            sack_permitted: options.sack_permitted,
            ecn: self.config.ecn && segment.has(setup),
        };
        let irs = segment.tcp.seq();
        let ts_recent = options.timestamps.map(|clock| clock.value);
        let mut iss = self.numbers.initial(now, &origin.tuple);
        if let Some(beyond) = beyond {
            iss = iss.max(beyond + 64_000);
        }
        let source = self.source(listener, &origin.tuple);
        let index = match self.half_open_place(source) {
            Ok(index) => index,
            Err(Refused::Established) => {
                self.counters.ignore(Ignored::SourceLimit);
                return None;
            }
            // a cookie is a number anywhere, and without timestamps nothing else tells the old connection's segments from the new one's
            Err(Refused::HalfOpen | Refused::Table) if beyond.is_some() && ts_recent.is_none() => {
                self.counters.ignore(Ignored::NoHalfOpen);
                return None;
            }
            // somebody else may send in its name: a cookie takes no memory, and who comes back with it is the source itself
            Err(Refused::HalfOpen | Refused::Table) => {
                return self.on_syn_flood(now, origin, irs, &offer, ts_recent, window_bytes);
            }
        };
        let hash = origin.hash;
        let named = Named::HalfOpen(index).value();
        let timer = self.wheel.set(now + SYN_TIMEOUT, named).ok();
        if self.table.insert(hash, named).is_err() || timer.is_none() {
            self.sources.close_half(source);
            self.counters.ignore(Ignored::NoHalfOpen);
            return None;
        }
        let (tuple, hop) = (origin.tuple, origin.hop);
        let entry = HalfOpen {
            tuple,
            hop,
            iss,
            irs,
            offer,
            ts_recent,
            listener,
            window_bytes,
            began_at: now,
            tries: 0,
            repeated: false,
            timer,
        };
        self.half_opens.insert(entry);
        self.enter(Named::HalfOpen(index), &tuple);
        self.counters.on(Event::HalfOpen);
        self.counters.half_open.set(self.half_opens.len() as u64);
        Some(self.syn_ack(now, &entry))
    }

    /// Where an entry of this source will stand, which has it counted.
    fn half_open_place(&mut self, source: Source) -> Result<u32, Refused> {
        let index = self.half_opens.next().ok_or(Refused::Table)?;
        let counted = self.sources.open_half(source);
        if matches!(counted, Err(Refused::HalfOpen | Refused::Table)) {
            self.counters.on(Event::SourceHalfOpen);
        }
        counted.map(|()| index)
    }

    /// No entry is free, or none for this source: what must be remembered goes into the answer (RFC 4987 section 3.6).
    fn on_syn_flood(
        &mut self,
        now: Instant,
        origin: &Origin,
        irs: Seq,
        offer: &Offer,
        ts_recent: Option<u32>,
        window_bytes: u32,
    ) -> Option<Header<'static>> {
        let Some(iss) = self.cookies.make(now, &origin.tuple, irs, offer) else {
            self.counters.ignore(Ignored::NoHalfOpen);
            return None;
        };
        self.counters.on(Event::Cookie);
        let entry = HalfOpen {
            tuple: origin.tuple,
            hop: origin.hop,
            iss,
            irs,
            offer: *offer,
            ts_recent,
            listener: Listener(0),
            window_bytes,
            began_at: now,
            tries: 0,
            repeated: false,
            timer: None,
        };
        let mut header = self.syn_ack(now, &entry);
        if let Some(clock) = &mut header.timestamps {
            let offset = self.numbers.clock_offset(&origin.tuple);
            clock.value = cookie::stamp(clock_ms(now), offer).wrapping_add(offset);
        } else if header.flags.contains(tcp::Flags::ECE) {
            // without timestamps there is no room to remember that
            header.flags = tcp::Flags::SYN | tcp::Flags::ACK;
        }
        Some(header)
    }

    fn syn_ack(&self, now: Instant, entry: &HalfOpen) -> Header<'static> {
        let offset = self.numbers.clock_offset(&entry.tuple);
        let mut flags = tcp::Flags::SYN | tcp::Flags::ACK;
        // RFC 3168 section 6.1.1: an ECN-setup SYN-ACK
        if entry.offer.ecn {
            flags |= tcp::Flags::ECE;
        }
        Header {
            src_port: entry.tuple.local().port(),
            dst_port: entry.tuple.remote().port(),
            seq: entry.iss,
            ack: entry.irs + 1,
            flags,
            window: entry.window_bytes.min(0xffff) as u16,
            timestamps: entry.ts_recent.map(|echo| Timestamps { value: clock_ms(now).wrapping_add(offset), echo }),
            mss: Some(self.own_mss(&entry.tuple)),
            window_scale: entry.offer.window_scale.map(|_| window_scale(entry.window_bytes)),
            sack_permitted: entry.offer.sack_permitted,
            ..Header::default()
        }
    }

    /// A segment for a handshake under way (RFC 9293 section 3.10.7.4 for SYN-RECEIVED, RFC 5961).
    pub(super) fn on_half_open<S: Service>(
        &mut self,
        now: Instant,
        index: u32,
        origin: &Origin,
        segment: &Segment<'_>,
        service: &mut S,
    ) -> Option<Header<'static>> {
        let mut entry = *self.half_opens.get(index)?;
        let (flags, seq) = (segment.tcp.flags(), segment.tcp.seq());
        if flags.contains(tcp::Flags::RST) {
            if seq == entry.irs + 1 {
                self.counters.on(Event::Reset);
                self.drop_half_open(index);
            } else {
                self.counters.ignore(Ignored::ResetOutside);
            }
            return None;
        }
        if flags.contains(tcp::Flags::SYN) {
            if seq == entry.irs && !flags.contains(tcp::Flags::ACK) {
                // The SYN again: the answer was lost. Its clock is the one to echo (RFC 7323 section 4.3), else the peer measures from
                // the first.
                if let (Some(recent), Some(clock)) = (&mut entry.ts_recent, segment.options.timestamps)
                    && clock.value.wrapping_sub(*recent).cast_signed() > 0
                {
                    *recent = clock.value;
                }
                entry.repeated = true;
                // RFC 3168 section 6.1.1: asked without it, it is answered without it, and nothing of ours is marked
                entry.offer.ecn &= segment.has(tcp::Flags::ECE | tcp::Flags::CWR);
                if let Some(kept) = self.half_opens.get_mut(index) {
                    *kept = entry;
                }
                return Some(self.syn_ack(now, &entry));
            }
            self.counters.ignore(Ignored::UnexpectedSyn);
            return self.challenge_half_open(now, &entry);
        }
        if !flags.contains(tcp::Flags::ACK) {
            self.counters.ignore(Ignored::NoAck);
            return None;
        }
        if segment.tcp.ack() != entry.iss + 1 {
            if self.is_to_cookie(now, origin, segment) {
                // the SYN came again when there was a place, and what is acknowledged is what went out when there was none
                self.drop_half_open(index);
                return self.on_cookie(now, origin, segment, service);
            }
            self.counters.ignore(Ignored::AckBeyond);
            return self.reset_for(now, segment);
        }
        let old = match (entry.ts_recent, segment.timestamps()) {
            (Some(recent), Some(clock)) => clock.value.wrapping_sub(recent).cast_signed() < 0,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let offset = seq.offset_from(entry.irs + 1);
        if old || offset < 0 || i64::from(offset) > i64::from(entry.window_bytes) {
            self.counters.ignore(if old { Ignored::OldTimestamp } else { Ignored::OldSegment });
            return self.challenge_half_open(now, &entry);
        }
        if origin.listener.is_none() {
            // the listener is gone
            self.drop_half_open(index);
            return self.reset_for(now, segment);
        }
        self.establish(now, index, &entry, origin.hop, segment, service);
        None
    }

    /// The handshake is complete: the entry becomes a connection, if there is a place for it.
    fn establish<S: Service>(
        &mut self,
        now: Instant,
        index: u32,
        entry: &HalfOpen,
        hop: Hop,
        segment: &Segment<'_>,
        service: &mut S,
    ) {
        let Some(place) = self.place() else { return self.counters.ignore(Ignored::NoConnection) };
        let source = self.source(entry.listener, &entry.tuple);
        if self.sources.establish(source).is_err() {
            return self.counters.ignore(Ignored::SourceLimit);
        }
        let hash = self.table.hash(&entry.tuple);
        self.table.replace(hash, Named::HalfOpen(index).value(), Named::Connection(place.0).value());
        if let Some(timer) = entry.timer {
            self.wheel.cancel(timer);
        }
        self.half_opens.remove(index);
        self.leave(Named::HalfOpen(index));
        self.counters.half_open.set(self.half_opens.len() as u64);
        let HalfOpen { tuple, iss, irs, offer, ts_recent, listener, window_bytes, .. } = *entry;
        let mut connection =
            self.block(now, Handshake { tuple, hop, iss, irs, offer, ts_recent, listener, window_bytes }, place.1);
        connection.flags.put(Flags::LOST_HANDSHAKE, entry.tries > 1);
        connection.rtt.on_established(entry.tries > 0);
        if entry.tries == 0 && !entry.repeated {
            connection.rtt.on_sample(now, (now - entry.began_at).as_nanos() as u64, 1);
        } else if let Some(clock) = segment.timestamps().filter(|_| entry.ts_recent.is_some()) {
            // which of the answers was acknowledged is told by its timestamp (RFC 7323 section 4.1)
            let sample_ms = connection.clock(now).wrapping_sub(clock.echo);
            if sample_ms < 60_000 {
                connection.rtt.on_sample(now, u64::from(sample_ms.max(1)) * 1_000_000, 1);
            }
        }
        self.begin(now, place.0, connection, segment, service);
    }

    /// Whether it acknowledges a cookie.
    fn is_to_cookie(&self, now: Instant, origin: &Origin, segment: &Segment<'_>) -> bool {
        let (irs, iss) = (segment.tcp.seq() - 1, segment.tcp.ack() - 1);
        let may_be = origin.listener.is_some() && self.cookies.expected(now);
        may_be && self.cookies.check(now, &origin.tuple, irs, iss).is_some()
    }

    /// An acknowledgement for a listener that belongs to nothing: the end of a handshake that was remembered in a cookie?
    pub(super) fn on_cookie<S: Service>(
        &mut self,
        now: Instant,
        origin: &Origin,
        segment: &Segment<'_>,
        service: &mut S,
    ) -> Option<Header<'static>> {
        let Some((listener, window_bytes)) = origin.listener.filter(|_| self.cookies.expected(now)) else {
            return self.reset_for(now, segment);
        };
        let (irs, iss) = (segment.tcp.seq() - 1, segment.tcp.ack() - 1);
        let Some(mut offer) = self.cookies.check(now, &origin.tuple, irs, iss) else {
            self.counters.ignore(Ignored::BadCookie);
            return self.reset_for(now, segment);
        };
        let ts_recent = segment.timestamps().map(|clock| clock.value);
        if let Some(clock) = segment.timestamps() {
            offer = cookie::read_stamp(offer, clock.echo.wrapping_sub(self.numbers.clock_offset(&origin.tuple)));
        }
        offer.ecn &= self.config.ecn;
        let Some(place) = self.place() else {
            self.counters.ignore(Ignored::NoConnection);
            return None;
        };
        let hash = origin.hash;
        let source = self.source(listener, &origin.tuple);
        let counted = self.sources.open(source).is_ok();
        if !counted || self.table.insert(hash, Named::Connection(place.0).value()).is_err() {
            if counted {
                self.sources.close(source);
            }
            self.counters.ignore(Ignored::SourceLimit);
            return None;
        }
        self.counters.on(Event::CookieAccepted);
        let (tuple, hop) = (origin.tuple, origin.hop);
        let handshake = Handshake { tuple, hop, iss, irs, offer, ts_recent, listener, window_bytes };
        let connection = self.block(now, handshake, place.1);
        self.begin(now, place.0, connection, segment, service);
        None
    }

    /// The block of a connection whose handshake is complete.
    pub(super) fn block(&self, now: Instant, handshake: Handshake, generation: u32) -> Connection {
        let Handshake { tuple, hop, iss, irs, offer, ts_recent, listener, window_bytes } = handshake;
        let mut flags = Flags::default();
        flags.put(Flags::TIMESTAMPS, ts_recent.is_some());
        flags.put(Flags::SACK, offer.sack_permitted);
        flags.put(Flags::ECN, offer.ecn);
        flags.put(Flags::SCALED, offer.window_scale.is_some());
        let nxt = irs + 1;
        let told = window_bytes.min(0xffff);
        Connection {
            snd: Snd { una: 1, nxt: 1, edge: 1, end: 1 },
            hop,
            tuple,
            state: State::Established,
            mss: self.segment_bytes(&tuple, offer.mss, ts_recent.is_some()),
            snd_scale: offer.window_scale.unwrap_or(0),
            rcv_scale: if offer.window_scale.is_some() { window_scale(window_bytes) } else { 0 },
            iss,
            wl1: irs,
            rcv: Rcv { nxt, edge: nxt + told, acked: nxt, delivered: 0 },
            ts_recent: ts_recent.unwrap_or(0),
            flags,
            active: NONE,
            rtx_at: Tick::NONE,
            generation,
            cookie: 0,
            user_at: None,
            timer: None,
            rtt: Rtt::new(),
            timer_at: Tick::NONE,
            ack_at: Tick::NONE,
            idle_at: Tick::NONE,
            heard_at: Tick::after(now),
            stalled_at: Tick::NONE,
            beyond: reassembly::List::default(),
            twice: None,
            ts_offset: self.numbers.clock_offset(&tuple),
            sent_bytes: 0,
            window_bytes: window_bytes.max(1),
            max_window: 0,
            challenged_at: Tick::NONE,
            listener,
            peer_mss: offer.mss,
            backoff: 0,
            probes: 0,
            dead: None,
        }
    }

    /// A connection begins: the service is asked, then the segment that completed the handshake is processed.
    fn begin<S: Service>(
        &mut self,
        now: Instant,
        index: u32,
        connection: Connection,
        segment: &Segment<'_>,
        service: &mut S,
    ) {
        let (listener, tuple) = (connection.listener, connection.tuple);
        self.put(index, connection);
        let handle = self.connections[index as usize].handle(index);
        let addresses = app::Addresses { local: tuple.local(), peer: tuple.remote() };
        service.knock(now, &mut Calls { engine: self, now }, listener, handle, addresses);
        let c = &mut self.connections[index as usize];
        if c.state == State::Closed {
            return;
        }
        if !c.flags.has(Flags::ACCEPTED) {
            self.counters.on(Event::Rejected);
            return self.abort(index, DeadReason::Aborted);
        }
        self.counters.on(Event::Accepted);
        if let Some(keepalive) = self.times.keepalive {
            c.idle_at = Tick::ahead(now, keepalive);
        }
        self.handle(now, index, segment, service);
    }

    /// Ends a connection with a reset, which goes out in the next poll.
    pub(super) fn abort(&mut self, index: u32, reason: DeadReason) {
        if self.connections[index as usize].state == State::Closed {
            return;
        }
        // the peer knows nothing yet that a reset would end (RFC 9293 section 3.10.5)
        let asks = self.connections[index as usize].state == State::SynSent;
        self.kill(index, reason);
        if !asks {
            self.connections[index as usize].flags.set(Flags::RESET_NOW);
        }
    }

    fn challenge_half_open(&mut self, now: Instant, entry: &HalfOpen) -> Option<Header<'static>> {
        if !self.challenges.allow(now) {
            return None;
        }
        self.counters.on(Event::Challenge);
        let syn_ack = self.syn_ack(now, entry);
        Some(Header { seq: entry.iss + 1, flags: tcp::Flags::ACK, mss: None, window_scale: None, ..syn_ack })
    }

    pub(super) fn drop_half_open(&mut self, index: u32) {
        let Some(entry) = self.half_opens.remove(index) else { return };
        self.leave(Named::HalfOpen(index));
        let hash = self.table.hash(&entry.tuple);
        self.table.remove(hash, Named::HalfOpen(index).value());
        let source = self.source(entry.listener, &entry.tuple);
        self.sources.close_half(source);
        if let Some(timer) = entry.timer {
            self.wheel.cancel(timer);
        }
        self.counters.half_open.set(self.half_opens.len() as u64);
    }

    /// The SYN-ACK's time is over: it goes out again, or the entry is given up.
    pub(super) fn on_half_open_timer(&mut self, now: Instant, index: u32, out: &mut Outlet<'_>) {
        let most = self.times.syn_retransmissions;
        let Some(entry) = self.half_opens.get_mut(index) else { return };
        entry.timer = None;
        if entry.tries >= most {
            self.counters.on(Event::HalfOpenTimeout);
            return self.drop_half_open(index);
        }
        entry.tries += 1;
        // in case ECN is what the path minds; who has sent one answer without it may not mark (RFC 3168 section 6.1.1)
        entry.offer.ecn = false;
        let wait = SYN_TIMEOUT * (1 << entry.tries.min(6));
        let entry = *entry;
        let timer = self.wheel.set(now + wait, Named::HalfOpen(index).value()).ok();
        if let Some(entry) = self.half_opens.get_mut(index) {
            entry.timer = timer;
        }
        let header = self.syn_ack(now, &entry);
        // without a frame now it goes out at the next try
        if let Some(mut frame) = out.frame() {
            let head = lay_out(&mut frame, out.mac, &entry.hop, &entry.tuple, header.bytes(), false);
            let bytes = head.len();
            header.write(head, pseudo(&entry.tuple, bytes), PayloadSum::Known(Sum::ZERO));
            out.tx.push(frame);
            self.counters.sent.add(1);
            self.counters.on(Event::Retransmitted);
        }
    }
}

/// Our clock in milliseconds, without a connection's offset.
fn clock_ms(now: Instant) -> u32 {
    (now.as_nanos() / 1_000_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_the_least_that_tells_the_window() {
        for (window_bytes, scale) in
            [(1, 0), (65_535, 0), (65_536, 1), (131_071, 1), (131_072, 2), (8 << 20, 8), (1 << 30, 14), (u32::MAX, 14)]
        {
            assert_eq!(window_scale(window_bytes), scale, "{window_bytes}");
        }
    }
}
