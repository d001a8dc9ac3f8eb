//! What leaves without having been asked for: from where, over whom, and datagrams on their way out.
//!
//! The local end is an own address in use, or, for datagrams, the address that a listener has. The way to a peer is a neighbour on the
//! link of an own address, else the gateway, found by ARP or neighbour solicitation; or, for datagrams while that one is not known, the
//! station that a question of the peer came from ([`paths`]). At addresses that the kernel has too only the latter is known, since ARP is
//! the kernel's there.
//!
//! The stack has one of these whether it has TCP or not. Datagrams are copied when they are given, since their events have no frame,
//! and framed in the poll that follows. What they have room for is divided between listeners, and so between applications ([`waiting`]),
//! as is who may be asked for ([`neighbours`]).

mod neighbours;
mod paths;
mod waiting;

use crate::agreement::{Agreement, Heard, Shared};
use crate::counters::{Counters, Readiness};
use crate::own::Outlet;
use crate::tcp::Hop;
use crate::turn::HOPS;
use crate::{Config, UdpListener};
use app::{Addresses, Alarms, CallError, Connection, Listener, Range, Service, Streams};
use base::Instant;
use neighbours::{Look, Neighbours};
use paths::Paths;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use waiting::{Fate, Waiting};
use wire::ethernet::{EtherType, Link};
use wire::{Protocol, Sum, ipv4, ipv6, udp};

/// Alarms told in one poll at most.
const ALARMS_A_POLL: usize = 256;
/// While another stack may hear what we asked for, it is looked for so often.
const LISTEN_EVERY: Duration = Duration::from_millis(10);
/// Until a frame is asked for again that was not to be had.
const RETRY: Duration = Duration::from_millis(1);

/// The way to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// this station
    Known(Hop),
    /// the station of this neighbour, which is being asked for
    Asked(IpAddr),
}

/// An own address.
#[derive(Debug)]
struct End {
    shared: Arc<Shared>,
    prefix_len: u8,
}

impl End {
    fn is_in_use(&self) -> bool {
        self.shared.readiness() == Readiness::Ready
    }

    fn has_on_link(&self, peer: IpAddr) -> bool {
        match (self.shared.addr, peer) {
            (IpAddr::V4(own), IpAddr::V4(peer)) => {
                let behind = u32::MAX.checked_shr(self.prefix_len.into()).unwrap_or(0);
                (own.to_bits() ^ peer.to_bits()) & !behind == 0
            }
            (IpAddr::V6(own), IpAddr::V6(peer)) => {
                let behind = u128::MAX.checked_shr(self.prefix_len.into()).unwrap_or(0);
                (own.to_bits() ^ peer.to_bits()) & !behind == 0 || peer.is_unicast_link_local()
            }
            _ => false,
        }
    }
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Outward {
    alarms: Alarms,
    ends: Vec<End>,
    listeners: Vec<UdpListener>,
    gateways: Vec<IpAddr>,
    neighbours: Neighbours,
    paths: Paths,
    waiting: Waiting,
    agreement: Arc<Agreement>,
    /// other stacks may hear what this one asked for
    shares: bool,
    mtu: usize,
    counters: Arc<Counters>,
}

impl Outward {
    pub(crate) fn new(mtu: usize, counters: Arc<Counters>) -> Outward {
        Outward {
            alarms: Alarms::new(),
            ends: Vec::new(),
            listeners: Vec::new(),
            gateways: Vec::new(),
            neighbours: Neighbours::new(),
            paths: Paths::new(),
            waiting: Waiting::new(),
            agreement: Arc::new(Agreement::new([])),
            shares: false,
            mtu,
            counters,
        }
    }

    /// The link carries packets of so many bytes at most.
    pub(crate) fn set_mtu(&mut self, mtu: usize) {
        self.mtu = mtu;
    }

    /// Takes another configuration; `agreement` has its own addresses.
    pub(crate) fn reconfigure(&mut self, config: &Config, agreement: &Arc<Agreement>) {
        let end = |own: &crate::OwnAddress| {
            Some(End { shared: agreement.find(own.addr.to_canonical())?.clone(), prefix_len: own.prefix_len })
        };
        self.ends = config.own.iter().filter_map(end).collect();
        self.listeners.clone_from(&config.listeners);
        let most = self.listeners.iter().map(|at| usize::from(at.listener.0) + 1).max();
        self.waiting.set_listeners(most.unwrap_or(0));
        self.gateways = config.gateways.iter().map(|addr| addr.to_canonical()).collect();
        self.agreement = agreement.clone();
        self.shares = config.agreement.is_some();
    }

    /// Whether the address is one of our own.
    pub(crate) fn has(&self, addr: IpAddr) -> bool {
        self.ends.iter().any(|end| end.shared.addr == addr)
    }

    /// The own address that packets to `peer` leave from: the one that was asked for, else one on the peer's link, else any.
    pub(crate) fn source(&self, wanted: Option<IpAddr>, peer: IpAddr) -> Result<IpAddr, CallError> {
        let mut usable = self.ends.iter().filter(|end| end.is_in_use() && end.shared.addr.is_ipv4() == peer.is_ipv4());
        let found = match wanted.filter(|addr| !addr.is_unspecified()) {
            Some(addr) => usable.find(|end| end.shared.addr == addr),
            None => usable.clone().find(|end| end.has_on_link(peer)).or_else(|| usable.next()),
        };
        found.map(|end| end.shared.addr).ok_or(CallError::NoSuchAddress)
    }

    /// The way from an own address to a peer; an error when there is none, or nobody more can be asked for. Asks for the neighbour if
    /// that is called for, on behalf of `by`: a listener's datagrams, or connections.
    pub(crate) fn way(
        &mut self,
        now: Instant,
        from: IpAddr,
        peer: IpAddr,
        by: Option<Listener>,
    ) -> Result<Way, CallError> {
        let via = self.via(peer).ok_or(CallError::Unreachable)?;
        match self.neighbours.want(now, via, from, by) {
            Look::Known(mac) => Ok(Way::Known(Hop::new(mac, None))),
            Look::Asked => Ok(Way::Asked(via)),
            Look::Unknown => Err(CallError::NoResources),
        }
    }

    /// The way of a datagram of `by` from an own address: over a neighbour that is known; else to the station that the peer's last one came
    /// from, a moment ago; else the neighbour is asked for. What anybody on the link can claim in a datagram never goes before what the
    /// neighbour has told (RFC 1122 section 3.3.1.4, RFC 4861 section 7.3).
    fn way_of_datagram(&mut self, now: Instant, from: IpAddr, peer: IpAddr, by: Listener) -> Result<Way, CallError> {
        let via = self.via(peer);
        if !via.is_some_and(|via| matches!(self.neighbours.look(via), Look::Known(_))) {
            if let Some(hop) = self.paths.find_recent(now, peer) {
                return Ok(Way::Known(hop));
            }
            // nobody is asked for what would find no place to wait in
            if via.is_some_and(|via| !self.waiting.can_wait(by, via)) {
                return Err(CallError::NoResources);
            }
        }
        self.way(now, from, peer, Some(by))
    }

    /// The way of a connection from an own address to a peer that was last heard at `heard_at` and does not answer, as the neighbour has told
    /// it since. One that has not is asked, and until it answers there is none.
    pub(crate) fn way_now(&mut self, now: Instant, from: IpAddr, peer: IpAddr, heard_at: Instant) -> Option<Hop> {
        let via = self.via(peer)?;
        match self.neighbours.doubt(now, via, from, heard_at) {
            Look::Known(mac) if !self.neighbours.asks_for(via) => Some(Hop::new(mac, None)),
            _ => None,
        }
    }

    /// The neighbour that packets to a peer go over.
    fn via(&self, peer: IpAddr) -> Option<IpAddr> {
        let on_link = self.ends.iter().any(|end| end.has_on_link(peer));
        let gateway = || self.gateways.iter().copied().find(|addr| addr.is_ipv4() == peer.is_ipv4());
        if on_link { Some(peer) } else { gateway() }
    }

    /// What has become of a way that was being asked for; None when there is none.
    pub(crate) fn way_via(&self, via: IpAddr) -> Option<Way> {
        match self.neighbours.look(via) {
            Look::Known(mac) => Some(Way::Known(Hop::new(mac, None))),
            Look::Asked => Some(Way::Asked(via)),
            Look::Unknown => None,
        }
    }

    /// A neighbour has told its hardware address; whether one of the stacks wanted to know.
    pub(crate) fn hear(&self, addr: IpAddr, heard: Heard) -> bool {
        self.agreement.hear(addr, heard)
    }

    /// Takes in what neighbours have told, whichever stack heard it.
    pub(crate) fn listen(&mut self, now: Instant) {
        if self.neighbours.asks() {
            let neighbours = &mut self.neighbours;
            self.agreement.show_heard(now, |heard| neighbours.listen(heard));
        }
    }

    /// Notes where a datagram came from that was not answered.
    #[inline]
    pub(crate) fn note_path(&mut self, now: Instant, peer: IpAddr, hop: Hop) {
        self.paths.note(now, peer, hop);
    }

    /// Takes a datagram to be sent.
    pub(crate) fn send_to(
        &mut self,
        now: Instant,
        listener: Listener,
        ends: Addresses,
        bytes: &[u8],
    ) -> Result<(), CallError> {
        app::judge_ends(Some(ends.local), ends.peer)?;
        let its = self.listeners.iter().find(|at| at.listener == listener && is_at(at.local, ends.local));
        let at = its.ok_or(CallError::NoSuchAddress)?.local.ip().to_canonical();
        let wanted = if at.is_unspecified() { ends.local.ip().to_canonical() } else { at };
        let peer = ends.peer.ip().to_canonical();
        if self.has(peer) {
            return Err(CallError::NoSuchAddress);
        }
        let headers = udp::HEADER_BYTES + if peer.is_ipv4() { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES };
        if bytes.len() > self.mtu.saturating_sub(headers) {
            return Err(CallError::TooLong);
        }
        let (local, way) = if wanted.is_unspecified() || self.has(wanted) {
            // an own address only while it is ours to use
            let local = self.source(Some(wanted), peer)?;
            (local, self.way_of_datagram(now, local, peer, listener)?)
        } else {
            // any address of a listener that the kernel has too
            (wanted, Way::Known(self.paths.find(peer).ok_or(CallError::Unreachable)?))
        };
        let ends = Addresses { local: SocketAddr::new(local, ends.local.port()), peer: ends.peer };
        let lost = match way {
            Way::Known(hop) => self.waiting.push(listener, ends, hop, bytes).map(|()| 0),
            Way::Asked(via) => self.waiting.push_asked(listener, ends, via, bytes),
        };
        self.counters.unasked_lost.add(lost.map_err(|_| CallError::NoResources)?);
        Ok(())
    }

    /// The alarm of a cookie.
    pub(crate) fn alarm_set(&mut self, cookie: u64, at: Option<Instant>) -> Result<(), CallError> {
        self.alarms.set(cookie, at)
    }

    /// One alarm that is due.
    pub(crate) fn alarm(&mut self, now: Instant) -> Option<u64> {
        self.alarms.pop(now)
    }

    /// Asks for neighbours and sends datagrams, as far as there are frames; when it wants to be called next.
    pub(crate) fn poll(&mut self, now: Instant, outlet: &mut Outlet<'_>) -> Option<Instant> {
        let mut next = self.alarms.next();
        let mut soon = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
        if !self.waiting.is_empty() && !self.send_waiting(now, outlet) {
            soon(now + RETRY);
        }
        if self.neighbours.asks() {
            // also what nobody waits for
            self.listen(now);
            let (agreement, counters) = (&self.agreement, &self.counters);
            let mut blocked = false;
            let given_up = self.neighbours.poll(now, &mut |target, from| {
                let sent = match (target, from) {
                    (IpAddr::V4(target), IpAddr::V4(from)) => outlet.arp(from, target),
                    (IpAddr::V6(target), IpAddr::V6(from)) => outlet.solicit(from, target),
                    _ => true,
                };
                if sent {
                    agreement.ask(now, target);
                    counters.neighbours_asked.add(1);
                }
                blocked |= !sent;
                sent
            });
            if blocked {
                soon(now + RETRY);
            } else if let Some(at) = self.neighbours.due_at() {
                soon(if self.shares { at.min(now + LISTEN_EVERY) } else { at });
            }
            if given_up {
                soon(now);
            }
        }
        next
    }

    /// Sends datagrams whose way is known, and drops those that nobody knows the way for; false when there is no frame.
    fn send_waiting(&mut self, now: Instant, outlet: &mut Outlet<'_>) -> bool {
        self.listen(now);
        let neighbours = &self.neighbours;
        // what was found and had no place finds one when others have gone
        loop {
            let lost = self.waiting.settle(&mut |via| match neighbours.look(via) {
                Look::Known(mac) => Fate::Found(Hop::new(mac, None)),
                Look::Asked => Fate::Waits,
                Look::Unknown => Fate::Lost,
            });
            self.counters.unasked_lost.add(lost);
            if self.waiting.next().is_none() {
                return true;
            }
            while let Some(one) = self.waiting.next() {
                if !frame(outlet, one.way, one.ends, &one.bytes) {
                    return false;
                }
                self.counters.unasked.add(1);
                self.waiting.sent();
            }
        }
    }
}

/// Whether `local` is an end of a listener at `at`; an unspecified address is one that is to be chosen.
fn is_at(at: SocketAddr, local: SocketAddr) -> bool {
    let (listens, wanted) = (at.ip().to_canonical(), local.ip().to_canonical());
    at.port() == local.port()
        && listens.is_ipv4() == wanted.is_ipv4()
        && (listens == wanted || listens.is_unspecified() || wanted.is_unspecified())
}

/// Puts a datagram into a frame of its own; false when there is none.
fn frame(outlet: &mut Outlet<'_>, hop: Hop, ends: Addresses, payload: &[u8]) -> bool {
    let udp_bytes = udp::HEADER_BYTES + payload.len();
    let (local, peer) = (ends.local.ip().to_canonical(), ends.peer.ip().to_canonical());
    let ether_type = if peer.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
    let link = Link { dst: hop.mac, src: outlet.mac, tag: hop.tag(), ether_type };
    let ip_bytes = if peer.is_ipv4() { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES };
    outlet.send_on(link, ip_bytes + udp_bytes, |packet| {
        let (ip, datagram) = packet.split_at_mut(ip_bytes);
        let pseudo = match (local, peer) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let head = ip.first_chunk_mut().expect("room for an IPv4 header");
                ipv4::Header { src, dst, protocol: Protocol::UDP, ttl: HOPS, payload_bytes: udp_bytes }.write(head);
                Sum::pseudo_v4(src, dst, Protocol::UDP, udp_bytes as u16)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let (head, next_header) = (ip.first_chunk_mut().expect("room for an IPv6 header"), Protocol::UDP);
                ipv6::Header { src, dst, next_header, hop_limit: HOPS, payload_bytes: udp_bytes }.write(head);
                Sum::pseudo_v6(src, dst, Protocol::UDP, udp_bytes as u32)
            }
            (local, peer) => unreachable!("ends of two families, {local} and {peer}, were refused"),
        };
        datagram[udp::HEADER_BYTES..].copy_from_slice(payload);
        udp::write(datagram, ends.local.port(), ends.peer.port(), pseudo);
    })
}

/// What a service may do where there is no TCP.
pub(crate) struct Calls<'a> {
    outward: &'a mut Outward,
    now: Instant,
}

impl Outward {
    /// Tells the service what is to be told once a poll, where there is no TCP to do it.
    pub(crate) fn tell<S: Service>(&mut self, now: Instant, service: &mut S) {
        service.woken(now, &mut Calls { outward: self, now });
        for _ in 0..ALARMS_A_POLL {
            let Some(cookie) = self.alarms.pop(now) else { break };
            service.alarm(now, &mut Calls { outward: self, now }, cookie);
        }
        service.flush(now, &mut Calls { outward: self, now });
    }
}

impl Streams for Calls<'_> {
    fn accept(&mut self, _: Connection, _: u64) -> Result<(), CallError> {
        Err(CallError::NoConnection)
    }

    fn reject(&mut self, _: Connection) -> Result<(), CallError> {
        Err(CallError::NoConnection)
    }

    fn sendv(&mut self, _: Connection, _: &[Range<'_>]) -> Result<u64, CallError> {
        Err(CallError::NoConnection)
    }

    fn room(&self, _: Connection) -> usize {
        0
    }

    fn recv_done(&mut self, _: Connection, _: usize) -> Result<(), CallError> {
        Err(CallError::NoConnection)
    }

    fn shutdown(&mut self, _: Connection) -> Result<(), CallError> {
        Err(CallError::NoConnection)
    }

    fn close(&mut self, _: Connection) -> Result<(), CallError> {
        Err(CallError::NoConnection)
    }

    fn abort(&mut self, _: Connection) -> Result<(), CallError> {
        Err(CallError::NoConnection)
    }

    fn timer_set(&mut self, _: Connection, _: Option<Instant>) -> Result<(), CallError> {
        Err(CallError::NoConnection)
    }

    fn send_to(&mut self, listener: Listener, ends: Addresses, bytes: &[u8]) -> Result<(), CallError> {
        self.outward.send_to(self.now, listener, ends, bytes)
    }

    fn alarm_set(&mut self, cookie: u64, at: Option<Instant>) -> Result<(), CallError> {
        self.outward.alarm_set(cookie, at)
    }
}
