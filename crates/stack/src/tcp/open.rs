//! Handshakes that we begin (RFC 9293 section 3.10.7.3), simultaneous ones among them.

use super::ack::move_window;
use super::calls::Calls;
use super::connection::{Connection, Flags};
use super::cookie::Offer;
use super::counters::{Event, Ignored};
use super::engine::{Engine, Named};
use super::hop::Hop;
use super::listen::{Handshake, default_mss};
use super::segment::Segment;
use super::state::State;
use super::tick::Tick;
use super::tuple::Tuple;
use crate::outward::Way;
use app::{CallError, DeadReason, PerSource, Service};
use base::{Instant, Seq};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use wire::tcp::{self, Header};

/// Before the SYN is sent again for the first time (RFC 6298 section 2.1).
const SYN_TIMEOUT: Duration = Duration::from_secs(1);
/// The same after a reset of ours has cleared what the peer remembered.
const SYN_AGAIN: Duration = Duration::from_millis(10);

/// After so many ports that lead to other threads it is asked whether any can lead here.
const DOUBTS: u32 = 256;

/// So many segments in a row without an answer throw doubt on the way (R1 of RFC 9293 section 3.8.3).
const DOUBTED: u8 = 3;

/// The ephemeral ports (RFC 6335 section 6).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49_152..=65_535;

/// A connection that waits until it is known which station its SYN goes to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    handle: app::Connection,
    /// the neighbour that is being asked for
    via: IpAddr,
}

impl Engine {
    /// Asks `remote` for a connection on the service's behalf: from an own address, over a neighbour.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        cookie: u64,
    ) -> Result<app::Connection, CallError> {
        app::judge_ends(local, remote)?;
        let peer = remote.ip().to_canonical();
        if self.outward.has(peer) {
            return Err(CallError::NoSuchAddress);
        }
        let source = self.outward.source(local.map(|local| local.ip().to_canonical()), peer)?;
        let local = SocketAddr::new(source, local.map_or(0, |local| local.port()));
        let window_bytes = self.config.connect_window_bytes;
        let handle = self.connect(now, local, remote, Hop::default(), cookie, window_bytes)?;
        self.find_way(now, handle.index);
        Ok(handle)
    }

    /// Has the SYN go to the station that is found, or wait until it is, or never go.
    pub(super) fn find_way(&mut self, now: Instant, index: u32) {
        let c = &mut self.connections[index as usize];
        let (local, peer, handle) = (c.tuple.local().ip(), c.tuple.remote().ip(), c.handle(index));
        match self.outward.way(now, local, peer, None) {
            Ok(Way::Known(hop)) => self.set_out(now, index, hop),
            Ok(Way::Asked(via)) => {
                c.flags.clear(Flags::SYN_NOW);
                c.rtx_at = Tick::NONE;
                self.held.push(Held { handle, via });
            }
            Err(_) => self.kill(index, DeadReason::Unreachable),
        }
    }

    /// So many segments in a row were not answered: the neighbour may have another hardware address by now, or another may have taken
    /// its place (RFC 1122 section 3.3.1.4). Where ARP is ours, at own addresses and without a tag, that is found out.
    #[cold]
    pub(super) fn doubt_way(&mut self, now: Instant, index: u32, unanswered: u8) {
        let c = &mut self.connections[index as usize];
        let (local, peer) = (c.tuple.local().ip(), c.tuple.remote().ip());
        let is_ours = c.hop.tag().is_none() && self.outward.source(Some(local), peer).is_ok();
        let heard_at = c.heard_at.near(now).unwrap_or(now);
        if unanswered >= DOUBTED
            && is_ours
            && let Some(hop) = self.outward.way_now(now, local, peer, heard_at)
        {
            c.hop = hop;
        }
    }

    /// The SYN goes to this station, from now on.
    fn set_out(&mut self, now: Instant, index: u32, hop: Hop) {
        let c = &mut self.connections[index as usize];
        c.hop = hop;
        c.flags.set(Flags::SYN_NOW);
        c.heard_at = Tick::after(now);
        c.rtx_at = Tick::ahead(now, SYN_TIMEOUT);
        self.arm(now, index);
        self.wake(index);
    }

    /// Lets those go on whose neighbour was found, and ends those whose neighbour does not answer.
    #[cold]
    pub(super) fn release_held(&mut self, now: Instant) {
        self.outward.listen(now);
        for n in (0..self.held.len()).rev() {
            let Held { handle, via } = self.held[n];
            let index = handle.index;
            let waits = self.live(handle).is_some();
            match self.outward.way_via(via) {
                _ if !waits => {}
                Some(Way::Asked(_)) => continue,
                Some(Way::Known(hop)) => self.set_out(now, index, hop),
                None => self.kill(index, DeadReason::Unreachable),
            }
            self.held.swap_remove(n);
        }
    }

    /// Asks `peer` for a connection from `local`, whose port may be zero for any that is free; frames go to the station `hop`.
    pub(crate) fn connect(
        &mut self,
        now: Instant,
        local: SocketAddr,
        peer: SocketAddr,
        hop: Hop,
        cookie: u64,
        window_bytes: u32,
    ) -> Result<app::Connection, CallError> {
        let tuple = self.free_tuple(now, local, peer)?;
        let (index, generation) = self.place().ok_or(CallError::NoResources)?;
        let source = self.source(PerSource::ASKED, &tuple);
        self.sources.open(source).map_err(|_| CallError::NoResources)?;
        let hash = self.table.hash(&tuple);
        if self.table.insert(hash, Named::Connection(index).value()).is_err() {
            self.sources.close(source);
            return Err(CallError::NoResources);
        }
        let iss = self.numbers.initial(now, &tuple);
        let mut connection = self.asking(now, tuple, hop, iss, window_bytes, generation);
        connection.cookie = cookie;
        self.put(index, connection);
        self.arm(now, index);
        self.wake(index);
        Ok(self.connections[index as usize].handle(index))
    }

    /// The tuple, with a port that no connection to this peer has: by a keyed hash, then one after the other (RFC 6056 section 3.3.3),
    /// without those that lead to other threads. With a part 1/n of the flow groups that is every n-th.
    fn free_tuple(&mut self, now: Instant, local: SocketAddr, peer: SocketAddr) -> Result<Tuple, CallError> {
        let tuple = |port| Tuple::new(SocketAddr::new(local.ip(), port), peer).ok_or(CallError::NoSuchAddress);
        if local.port() != 0 {
            let tuple = tuple(local.port())?;
            if !self.is_ours(&tuple) {
                return Err(self.elsewhere());
            }
            return if self.is_free(now, &tuple) { Ok(tuple) } else { Err(CallError::InUse) };
        }
        let count = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
        let offset = self.numbers.clock_offset(&tuple(0)?);
        let mut others = 0;
        for _ in 0..count {
            self.next_port = self.next_port.wrapping_add(1);
            let port = EPHEMERAL.start() + (offset.wrapping_add(self.next_port) % count) as u16;
            let tuple = tuple(port)?;
            if !self.is_ours(&tuple) {
                others += 1;
                if others == DOUBTS && !self.owns_some() {
                    break;
                }
            } else if self.is_free(now, &tuple) {
                return Ok(tuple);
            }
        }
        // where some lead here, those are taken
        Err(if others == 0 || self.owns_some() { CallError::InUse } else { self.elsewhere() })
    }

    /// Whether what the peer answers comes to this thread.
    fn is_ours(&self, tuple: &Tuple) -> bool {
        self.members.as_ref().is_none_or(|members| members.is_ours(tuple))
    }

    fn owns_some(&self) -> bool {
        self.ours().is_none_or(|ours| ours.owns_some())
    }

    #[cold]
    fn elsewhere(&self) -> CallError {
        self.counters.on(Event::Elsewhere);
        CallError::Elsewhere
    }

    fn is_free(&self, _now: Instant, tuple: &Tuple) -> bool {
        self.find(self.table.hash(tuple), tuple).is_none()
    }

    /// The block of a connection that we ask for.
    fn asking(&self, now: Instant, tuple: Tuple, hop: Hop, iss: Seq, window_bytes: u32, generation: u32) -> Connection {
        let handshake = Handshake {
            tuple,
            hop,
            iss,
            irs: Seq::new(0),
            offer: Offer { mss: 536, window_scale: Some(0), sack_permitted: true, ecn: self.config.ecn },
            ts_recent: Some(0),
            listener: PerSource::ASKED,
            window_bytes,
        };
        let mut connection = self.block(now, handshake, generation);
        connection.state = State::SynSent;
        (connection.snd.una, connection.snd.nxt, connection.snd.edge) = (0, 0, 1);
        connection.flags.set(Flags::CLIENT | Flags::SYN_NOW);
        connection.rtx_at = Tick::ahead(now, SYN_TIMEOUT);
        connection
    }

    /// Tells the service that its connection is there.
    pub(super) fn tell_connected<S: Service>(&mut self, now: Instant, index: u32, service: &mut S) {
        let c = &mut self.connections[index as usize];
        if !c.flags.has(Flags::CLIENT) || c.flags.has(Flags::ACCEPTED) {
            return;
        }
        c.flags.set(Flags::ACCEPTED);
        let (handle, cookie) = (c.handle(index), c.cookie);
        service.connected(now, &mut Calls { engine: self, now }, cookie, Ok(handle));
    }

    /// A segment for a connection that we asked for.
    pub(super) fn on_syn_sent<S: Service>(
        &mut self,
        now: Instant,
        index: u32,
        segment: &Segment<'_>,
        service: &mut S,
    ) -> Option<Header<'static>> {
        let flags = segment.tcp.flags();
        let c = &self.connections[index as usize];
        if c.hop.is_unknown() {
            // to the peer there is no such connection yet; a SYN of its own comes again, and by then ours has left
            self.counters.ignore(Ignored::StraySilent);
            return None;
        }
        let acknowledges = flags.contains(tcp::Flags::ACK);
        let acceptable = segment.tcp.ack() == c.seq(1);
        if acknowledges && !acceptable {
            self.counters.ignore(Ignored::AckBeyond);
            if flags.contains(tcp::Flags::RST) {
                return None;
            }
            self.ask_again_soon(now, index);
            return self.reset_for(now, segment);
        }
        if flags.contains(tcp::Flags::RST) {
            if acknowledges {
                self.kill(index, DeadReason::Refused);
            } else {
                self.counters.ignore(Ignored::ResetOutside);
            }
            return None;
        }
        if !flags.contains(tcp::Flags::SYN) {
            self.counters.ignore(Ignored::NoAck);
            return None;
        }
        self.agree(index, segment, acknowledges);
        if acknowledges {
            self.synchronize(now, index, segment);
            self.connections[index as usize].flags.set(Flags::ACK_NOW);
            self.tell_connected(now, index, service);
        } else {
            let c = &mut self.connections[index as usize];
            // both asked at once (RFC 9293 section 3.5, figure 7)
            c.state = State::SynReceived;
            c.flags.set(Flags::SYN_NOW);
        }
        self.wake(index);
        None
    }

    /// The peer has an older connection of this name, or its TIME-WAIT, which our reset ends; then the SYN is taken (RFC 9293
    /// section 3.5.1, figure 9). Once only: more would let strangers have SYNs sent.
    fn ask_again_soon(&mut self, now: Instant, index: u32) {
        let c = &mut self.connections[index as usize];
        if c.backoff == 0 {
            c.rtx_at = Tick::ahead(now, SYN_AGAIN);
            self.arm(now, index);
        }
    }

    /// What the peer's SYN says.
    fn agree(&mut self, index: u32, segment: &Segment<'_>, answers: bool) {
        let tuple = self.connections[index as usize].tuple;
        let options = segment.options;
        let peer_mss = options.mss.unwrap_or_else(|| default_mss(&tuple)).max(super::engine::MSS_LEAST);
        let stamped = options.timestamps.is_some();
        let mss = self.segment_bytes(&tuple, peer_mss, stamped);
        let c = &mut self.connections[index as usize];
        c.rcv.nxt = segment.tcp.seq() + 1;
        c.rcv.acked = c.rcv.nxt;
        c.rcv.edge = c.rcv.nxt + c.window_bytes.min(0xffff);
        c.wl1 = segment.tcp.seq();
        c.flags.put(Flags::TIMESTAMPS, stamped);
        c.ts_recent = options.timestamps.map_or(0, |clock| clock.value);
        c.flags.put(Flags::SACK, options.sack_permitted);
        c.flags.put(Flags::SCALED, options.window_scale.is_some());
        c.snd_scale = options.window_scale.unwrap_or(0);
        if options.window_scale.is_none() {
            c.rcv_scale = 0;
        }
        // RFC 3168 section 6.1.1: an ECN-setup SYN-ACK has ECE without CWR
        let ecn = answers && segment.has(tcp::Flags::ECE) && !segment.has(tcp::Flags::CWR);
        let wanted = c.flags.has(Flags::ECN);
        c.flags.put(Flags::ECN, wanted && ecn);
        (c.peer_mss, c.mss) = (peer_mss, mss);
    }

    /// Our SYN is acknowledged.
    pub(super) fn synchronize(&mut self, now: Instant, index: u32, segment: &Segment<'_>) {
        let c = &mut self.connections[index as usize];
        let asked_at = c.heard_at;
        c.heard_at = Tick::after(now);
        let syn = segment.has(tcp::Flags::SYN);
        c.state = State::Established;
        (c.snd.una, c.snd.nxt) = (1, 1);
        let scale = c.snd_scale;
        if syn {
            // RFC 7323 section 2.2: not scaled in a SYN
            c.snd_scale = 0;
        }
        move_window(c, segment, 1);
        c.snd_scale = scale;
        c.rtx_at = Tick::NONE;
        c.rtt.on_established(c.backoff > 0);
        if c.backoff == 0 {
            let began_at = asked_at.near(now).unwrap_or(now);
            c.rtt.on_sample(now, ((now - began_at).as_nanos() as u64).max(1), 1);
        }
        // one that was sent again is told by its timestamp (RFC 7323 section 4.1)
        if let Some(echo) = segment.timestamps().filter(|_| c.backoff > 0).map(|clock| clock.echo) {
            let sample_ms = c.clock(now).wrapping_sub(echo);
            if sample_ms < 60_000 {
                c.rtt.on_sample(now, u64::from(sample_ms.max(1)) * 1_000_000, 1);
            }
        }
        c.backoff = 0;
        if let Some(keepalive) = self.times.keepalive {
            c.idle_at = Tick::ahead(now, keepalive);
        }
        self.counters.on(Event::Connected);
        self.wake(index);
    }

    /// The SYN was not answered in time.
    pub(super) fn on_syn_timeout(&mut self, now: Instant, index: u32) {
        let most = self.times.syn_retransmissions;
        let c = &mut self.connections[index as usize];
        if c.backoff >= most {
            return self.abort(index, DeadReason::TimedOut);
        }
        c.backoff += 1;
        c.rtx_at = Tick::ahead(now, SYN_TIMEOUT * (1 << c.backoff.min(6)));
        c.flags.set(Flags::SYN_NOW);
        // in case ECN is what the path minds (RFC 3168 section 6.1.1.1)
        c.flags.clear(Flags::ECN);
        let unanswered = c.backoff;
        self.doubt_way(now, index, unanswered);
        self.counters.on(Event::Retransmitted);
        self.wake(index);
    }
}
