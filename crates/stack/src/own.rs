//! Own addresses: claimed by ARP probes and announcements (RFC 5227) or duplicate address detection (RFC 4862 section 5.4),
//! answered for, and defended.
//!
//! An address is used once nobody else was heard to have it. If somebody is heard before, it is not used, that is reported,
//! and after a minute it is tried again, for anybody can say so once. If somebody is heard later, it is kept and defended with at
//! most one packet an interval: a server's address is the one by which it is known, which is case (c) of RFC 5227 section 2.4.
//! Packets sent unasked carry no VLAN tag, and so are of one link; what comes by another is answered there, and is no claim to an
//! address here, nor an answer to what was asked here.
//! Where another stack claims the addresses, this one follows it (see `agreement`).
//! The groups of IPv6 addresses are reported when they are claimed; where the port's kernel listens to them as well, it answers
//! the queries, which do not come here then. Those that come are answered by whichever stack gets them, of version 1 by reports of
//! version 2, which every router of today reads.

use crate::agreement::{Heard, Shared};
use crate::counters::Readiness;
use crate::icmp::{ALL_NODES, REPORT_ROUTERS};
use crate::locals::{Key, Local};
use crate::turn::pair6;
use crate::{ClaimMode, DropReason, Handled, Stack, tcp};
use app::Service;
use base::{Burst, Frame, Instant};
use port::Supply;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;
use wire::arp::{self, Arp, Operation};
use wire::ethernet::{self, BROADCAST, EtherType, Link, Mac};
use wire::icmpv6::{self, Neighbour, Query};
use wire::{Protocol, ipv6};

/// RFC 5227 PROBE_NUM.
const PROBES4: u8 = 3;
/// RFC 4862 DupAddrDetectTransmits.
const PROBES6: u8 = 1;
/// RFC 5227 ANNOUNCE_NUM; RFC 4861 section 7.2.6 allows up to three.
const ANNOUNCEMENTS: u8 = 2;
/// Until a packet is tried again that found no frame.
const RETRY: Duration = Duration::from_millis(1);

/// How far an address has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// nothing is done yet
    New,
    /// so many probes are out
    Probing(u8),
    /// in use; so many announcements are out
    Announcing(u8),
    /// in use
    Settled,
    /// another station has it
    Conflict,
    /// the same; it is looked for again later
    Resting,
    /// another stack claims it
    Followed,
}

/// An own address.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) addr: IpAddr,
    pub(crate) shown: Arc<Shared>,
    state: State,
    next_at: Instant,
    /// a listener report is due
    report_at: Option<Instant>,
}

impl Own {
    pub(crate) fn new(addr: IpAddr, mode: ClaimMode, shared: &Arc<Shared>, follows: bool) -> Own {
        let state = match mode {
            _ if follows => State::Followed,
            ClaimMode::Detect => State::New,
            ClaimMode::Announce => State::Announcing(0),
            ClaimMode::Silent => State::Settled,
        };
        Own { addr, shown: shared.clone(), state, next_at: Instant::ZERO, report_at: None }
    }

    /// The same address, which others see in `shared` from now on.
    pub(crate) fn shown_as(mut self, shared: &Arc<Shared>) -> Own {
        if !Arc::ptr_eq(&self.shown, shared) {
            if !self.follows() {
                shared.continue_from(&self.shown);
            }
            self.shown = shared.clone();
        }
        self
    }

    pub(crate) fn follows(&self) -> bool {
        self.state == State::Followed
    }

    pub(crate) fn readiness(&self) -> Readiness {
        match self.state {
            State::New | State::Probing(_) => Readiness::Probing,
            State::Announcing(_) | State::Settled => Readiness::Ready,
            State::Conflict | State::Resting => Readiness::Conflict,
            State::Followed => self.shown.readiness(),
        }
    }

    pub(crate) fn in_use(&self) -> bool {
        self.readiness() == Readiness::Ready
    }

    /// Begins to announce an address that is in use.
    pub(crate) fn announce_again(&mut self) {
        if matches!(self.state, State::Announcing(_) | State::Settled) {
            (self.state, self.next_at) = (State::Announcing(0), Instant::ZERO);
        }
    }

    fn due_at(&self) -> Instant {
        let next_at = match self.state {
            State::Settled | State::Followed => Instant::MAX,
            _ => self.next_at,
        };
        next_at.min(self.report_at.unwrap_or(Instant::MAX))
    }

    /// Another stack heard a rival before the address was in use, or while this one was making it so.
    fn is_lost(&self) -> bool {
        matches!(self.state, State::New | State::Probing(_) | State::Announcing(0)) && self.shown.was_heard()
    }
}

/// Where packets of our own are built and put.
pub(crate) struct Outlet<'a> {
    supply: &'a mut dyn Supply,
    tx: &'a mut Burst,
    pub(crate) mac: Mac,
}

impl Outlet<'_> {
    /// Sends a packet of `bytes` that `write` writes; false when there is no frame or no room for it now.
    fn send(&mut self, dst: Mac, ether_type: EtherType, bytes: usize, write: impl FnOnce(&mut [u8])) -> bool {
        self.send_on(Link { dst, src: self.mac, tag: None, ether_type }, bytes, write)
    }

    /// The same with any link header.
    pub(crate) fn send_on(&mut self, link: Link, bytes: usize, write: impl FnOnce(&mut [u8])) -> bool {
        if self.tx.is_full() {
            return false;
        }
        let Some(mut frame) = self.supply.frame() else { return false };
        frame.set_len(link.bytes() + bytes);
        let (head, packet) = frame.bytes_mut().split_at_mut(link.bytes());
        link.write(head);
        write(packet);
        self.tx.push(frame);
        true
    }

    /// Asks who has an IPv6 address (RFC 4861 section 7.2.2).
    pub(crate) fn solicit(&mut self, from: Ipv6Addr, target: Ipv6Addr) -> bool {
        let (dst, mac) = (ipv6::solicited_node(target), self.mac);
        let bytes = ipv6::HEADER_BYTES + icmpv6::SOLICITATION_BYTES;
        self.send(ipv6::group_mac(dst), EtherType::IPV6, bytes, |out| {
            let message = write_link_ipv6(out, from, dst).first_chunk_mut().expect("its bytes were asked for");
            icmpv6::write_solicitation(message, (from, dst), target, mac);
        })
    }

    pub(crate) fn arp(&mut self, sender: Ipv4Addr, target: Ipv4Addr) -> bool {
        let (operation, sender_mac, target_mac) = (Operation::Request, self.mac, [0; 6]);
        self.send(BROADCAST, EtherType::ARP, arp::BYTES, |out| {
            let out = out.first_chunk_mut().expect("an ARP packet's bytes were asked for");
            Arp { operation, sender_mac, sender, target_mac, target }.write(out);
        })
    }

    fn probe6(&mut self, target: Ipv6Addr) -> bool {
        let dst = ipv6::solicited_node(target);
        let bytes = ipv6::HEADER_BYTES + icmpv6::PROBE_BYTES;
        self.send(ipv6::group_mac(dst), EtherType::IPV6, bytes, |out| {
            let message = write_link_ipv6(out, Ipv6Addr::UNSPECIFIED, dst);
            icmpv6::write_probe(message.first_chunk_mut().expect("its bytes were asked for"), dst, target);
        })
    }

    fn announce6(&mut self, addr: Ipv6Addr) -> bool {
        let (mac, bytes) = (self.mac, ipv6::HEADER_BYTES + icmpv6::ADVERTISEMENT_BYTES);
        self.send(ipv6::group_mac(ALL_NODES), EtherType::IPV6, bytes, |out| write_advertisement(out, addr, None, mac))
    }

    /// Reports that the group of `addr` is listened to, from a link-local address if `addr` is one and in use, else from
    /// the unspecified one (RFC 3590 section 4), with a router alert.
    fn report(&mut self, addr: Ipv6Addr, in_use: bool, change: bool) -> bool {
        const ALERT: [u8; 8] = [Protocol::ICMPV6.0, 0, 5, 2, 0, 0, 1, 0];
        let src = if in_use && addr.is_unicast_link_local() { addr } else { Ipv6Addr::UNSPECIFIED };
        let payload_bytes = ALERT.len() + icmpv6::REPORT_BYTES;
        let bytes = ipv6::HEADER_BYTES + payload_bytes;
        self.send(ipv6::group_mac(REPORT_ROUTERS), EtherType::IPV6, bytes, |out| {
            let (head, rest) = out.split_first_chunk_mut().expect("its bytes were asked for");
            let (dst, next_header) = (REPORT_ROUTERS, Protocol::HOP_BY_HOP);
            ipv6::Header { src, dst, next_header, hop_limit: 1, payload_bytes }.write(head);
            let (alert, message) = rest.split_first_chunk_mut().expect("its bytes were asked for");
            *alert = ALERT;
            let message = message.first_chunk_mut().expect("its bytes were asked for");
            icmpv6::write_report(message, (src, dst), ipv6::solicited_node(addr), change);
        })
    }
}

/// Writes the header of a packet of neighbour discovery and gives the message's bytes.
fn write_link_ipv6(out: &mut [u8], src: Ipv6Addr, dst: Ipv6Addr) -> &mut [u8] {
    let (head, message) = out.split_first_chunk_mut().expect("room for an IPv6 header");
    let payload_bytes = message.len();
    ipv6::Header { src, dst, next_header: Protocol::ICMPV6, hop_limit: 255, payload_bytes }.write(head);
    message
}

/// Writes an advertisement of `addr` as a whole packet: to `asker`, who solicited it, or to all nodes.
fn write_advertisement(out: &mut [u8], addr: Ipv6Addr, asker: Option<Ipv6Addr>, mac: Mac) {
    let dst = asker.unwrap_or(ALL_NODES);
    let message = write_link_ipv6(out, addr, dst).first_chunk_mut().expect("an advertisement's bytes were asked for");
    icmpv6::write_advertisement(message, (addr, dst), (addr, mac), asker.is_some());
}

impl Stack {
    /// Sends what is due of our own, in frames of `supply` that go into `tx`, or by its large sends, and says when it wants to
    /// be called next; None when nothing is to come. Cheap while nothing is due.
    pub fn poll<S: Service>(
        &mut self,
        now: Instant,
        supply: &mut dyn Supply,
        tx: &mut Burst,
        service: &mut S,
    ) -> Option<Instant> {
        self.follow();
        if now >= self.due_at {
            let mut outlet = Outlet { supply: &mut *supply, tx: &mut *tx, mac: self.facts.mac };
            let mut due_at = Instant::MAX;
            for index in 0..self.own.len() {
                due_at = due_at.min(self.poll_own(now, index, &mut outlet));
            }
            self.due_at = due_at;
        }
        let mac = self.facts.mac;
        let (outward, tcp_at) = match (&mut self.tcp, &mut self.plain) {
            (Some(tcp), _) => {
                let next = tcp.poll(now, &mut tcp::Outlet { supply: &mut *supply, tx: &mut *tx, mac }, service);
                (&mut tcp.outward, next)
            }
            (None, Some(plain)) => {
                plain.tell(now, service);
                (&mut **plain, None)
            }
            (None, None) => return Some(self.due_at).filter(|at| *at != Instant::MAX),
        };
        let outward_at = outward.poll(now, &mut Outlet { supply, tx, mac });
        let due_at = [tcp_at, outward_at].into_iter().flatten().fold(self.due_at, Instant::min);
        (due_at != Instant::MAX).then_some(due_at)
    }

    /// Takes in what the stack that claims has said since.
    #[inline]
    pub(crate) fn follow(&mut self) {
        if self.follows && self.agreement.changes() != self.seen {
            self.take_changes();
        }
    }

    #[cold]
    fn take_changes(&mut self) {
        self.seen = self.agreement.changes();
        for (index, own) in self.own.iter().enumerate() {
            let index = index as u16;
            self.locals.set(Key::of(own.addr), if own.in_use() { Local::Own(index) } else { Local::NotReady(index) });
        }
    }

    /// Does what is due for one address; when it wants to be looked at again.
    fn poll_own(&mut self, now: Instant, index: usize, outlet: &mut Outlet<'_>) -> Instant {
        while self.own[index].due_at() <= now {
            if self.own[index].is_lost() {
                self.give_up(index);
                continue;
            }
            let own = &self.own[index];
            if own.report_at.is_some_and(|at| at <= now) {
                if let IpAddr::V6(addr) = own.addr
                    && !outlet.report(addr, own.in_use(), false)
                {
                    return now + RETRY;
                }
                self.own[index].report_at = None;
                self.counters.claims_sent.add(1);
            } else if !self.step(now, index, outlet) {
                return now + RETRY;
            }
        }
        self.own[index].due_at()
    }

    /// Takes an address one step further; false when its packet found no frame.
    fn step(&mut self, now: Instant, index: usize, outlet: &mut Outlet<'_>) -> bool {
        let claim = self.claim;
        let own = &self.own[index];
        let (state, wait) = match (own.state, own.addr) {
            (State::New, _) => (State::Probing(0), self.random(claim.wait)),
            (State::Probing(n), IpAddr::V4(addr)) if n < PROBES4 => {
                if !outlet.arp(Ipv4Addr::UNSPECIFIED, addr) {
                    return false;
                }
                self.counters.claims_sent.add(1);
                let last = n + 1 == PROBES4;
                let more = claim.probe_interval + self.random(claim.probe_interval);
                (State::Probing(n + 1), if last { claim.announce_interval } else { more })
            }
            (State::Probing(n), IpAddr::V6(addr)) if n < PROBES6 => {
                // the group is joined before the probe, so that its answer is heard (RFC 4862 section 5.4.2)
                if !outlet.report(addr, false, true) || !outlet.probe6(addr) {
                    return false;
                }
                self.counters.claims_sent.add(2);
                (State::Probing(n + 1), claim.probe_interval)
            }
            (State::Probing(_), _) => {
                self.agreement.show(&own.shown, Readiness::Ready);
                self.locals.set(Key::of(own.addr), Local::Own(index as u16));
                (State::Announcing(0), Duration::ZERO)
            }
            (State::Announcing(n), addr) => {
                // told twice, since one may be lost (RFC 3810 section 6.1); who looked for another holder has told once
                let reports = addr.is_ipv6() && (n == 0 || claim.mode != ClaimMode::Detect);
                let sent = match addr {
                    IpAddr::V4(addr) => outlet.arp(addr, addr),
                    IpAddr::V6(addr) => (!reports || outlet.report(addr, true, true)) && outlet.announce6(addr),
                };
                if !sent {
                    return false;
                }
                self.counters.claims_sent.add(1 + u64::from(reports));
                let state = if n + 1 == ANNOUNCEMENTS { State::Settled } else { State::Announcing(n + 1) };
                (state, claim.announce_interval)
            }
            (State::Conflict, _) => (State::Resting, claim.retry_interval),
            (State::Resting, _) => {
                own.shown.forget_word();
                (State::New, Duration::ZERO)
            }
            (State::Settled | State::Followed, _) => return true,
        };
        self.own[index].state = state;
        self.own[index].next_at = now + wait;
        true
    }

    fn random(&mut self, below: Duration) -> Duration {
        let bound = u64::try_from(below.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(if bound == 0 { 0 } else { self.rng.below(bound) })
    }

    /// Another station has the address: it is not used, and shown as its until another attempt has succeeded.
    fn give_up(&mut self, index: usize) {
        let own = &mut self.own[index];
        (own.state, own.next_at) = (State::Conflict, Instant::ZERO);
        self.due_at = Instant::ZERO;
        self.agreement.show(&own.shown, Readiness::Conflict);
        self.locals.set(Key::of(own.addr), Local::NotReady(index as u16));
    }

    /// Somebody else claims an address. Before it is in use that ends its use; afterwards it is defended. True when a defence
    /// is to be sent now.
    fn on_conflict(&mut self, now: Instant, index: u16, rival: Mac) -> bool {
        let own = &self.own[usize::from(index)];
        own.shown.on_conflict(rival);
        match own.state {
            State::New | State::Probing(_) => {
                self.give_up(usize::from(index));
                false
            }
            State::Conflict | State::Resting => false,
            State::Followed if !own.in_use() && own.shown.leave_word() => false,
            // others may claim and defend it, but nobody told this stack who
            State::Settled if self.claim.mode == ClaimMode::Silent => false,
            State::Announcing(_) | State::Settled | State::Followed => {
                own.shown.defend(now, self.claim.defend_interval)
            }
        }
    }

    /// An ARP packet; whether the frame is to be sent.
    #[inline(never)]
    pub(crate) fn handle_arp(&mut self, now: Instant, frame: &mut Frame, at: usize) -> bool {
        let packet = &frame.bytes()[at..];
        if packet.len() < arp::BYTES {
            return self.drop_frame(DropReason::Runt);
        }
        let Some(arp) = Arp::parse(packet).filter(|arp| !ethernet::is_group(arp.sender_mac)) else {
            return self.drop_frame(DropReason::Arp);
        };
        let mac = self.facts.mac;
        // somebody with our address, or, while we look for such, somebody who looks too (RFC 5227 sections 2.1.1, 2.4)
        let claimed = match (self.locals.find(Key::v4(arp.sender)), self.locals.find(Key::v4(arp.target))) {
            (Some(Local::Own(index) | Local::NotReady(index)), _) => Some((index, arp.sender)),
            (_, Some(Local::NotReady(index))) if arp.sender.is_unspecified() && arp.operation == Operation::Request => {
                Some((index, arp.target))
            }
            _ => None,
        };
        if let Some((index, addr)) = claimed.filter(|_| arp.sender_mac != mac) {
            if is_of_vlan(frame) {
                return self.drop_frame(DropReason::ArpNotOurs);
            }
            self.counters.add_handled(Handled::ArpConflict, 1);
            if !self.on_conflict(now, index, arp.sender_mac) {
                return false;
            }
            let operation = Operation::Request;
            let defence = Arp { operation, sender_mac: mac, sender: addr, target_mac: [0; 6], target: addr };
            return self.send_arp(frame, at, BROADCAST, defence);
        }
        let to_us = self.locals.find(Key::v4(arp.target));
        // RFC 826: whoever asks tells, too
        let told = Heard { mac: arp.sender_mac, at: now, overrides: true };
        let heard = matches!(to_us, Some(Local::Own(_))) && !is_of_vlan(frame) && self.hear(arp.sender.into(), told);
        match to_us {
            Some(Local::Own(_)) if arp.operation == Operation::Request => {
                self.counters.add_handled(Handled::ArpRequest, 1);
                let operation = Operation::Reply;
                let (target_mac, target) = (arp.sender_mac, arp.sender);
                let reply = Arp { operation, sender_mac: mac, sender: arp.target, target_mac, target };
                let [_, asker] = macs(frame);
                self.send_arp(frame, at, asker, reply)
            }
            Some(Local::NotReady(_)) => self.drop_frame(DropReason::NotReady),
            _ if heard => {
                self.counters.add_handled(Handled::ArpHeard, 1);
                false
            }
            _ => self.drop_frame(DropReason::ArpNotOurs),
        }
    }

    /// A neighbour has told its hardware address; whether that was asked for, and the address may be another station's.
    fn hear(&mut self, addr: IpAddr, told: Heard) -> bool {
        let may_be = !ethernet::is_group(told.mac) && told.mac != [0; 6] && told.mac != self.facts.mac;
        let heard = may_be && self.outward().is_some_and(|outward| outward.hear(addr, told));
        if heard {
            self.due_at = self.due_at.min(told.at);
        }
        heard
    }

    fn send_arp(&self, frame: &mut Frame, at: usize, dst: Mac, arp: Arp) -> bool {
        address(frame, dst, self.facts.mac);
        arp.write(frame.bytes_mut()[at..].first_chunk_mut().expect("an ARP packet was parsed here"));
        frame.set_len(at + arp::BYTES);
        true
    }

    /// A neighbour solicitation; whether the frame is to be sent.
    pub(crate) fn handle_solicitation(
        &mut self,
        now: Instant,
        frame: &mut Frame,
        ip_at: usize,
        neighbour: Neighbour,
    ) -> bool {
        let (src, dst) = pair6(frame.bytes(), ip_at);
        let probe = src.is_unspecified();
        // RFC 4861 section 7.1.1
        if probe && (dst != ipv6::solicited_node(neighbour.target) || neighbour.source_mac.is_some()) {
            return self.drop_frame(DropReason::Neighbour);
        }
        let [_, asker_mac] = macs(frame);
        match self.locals.find(Key::v6(neighbour.target)) {
            Some(Local::Own(_)) => {
                self.counters.add_handled(Handled::Solicitation, 1);
                // somebody who looks for duplicates has no address yet: all nodes are told (RFC 4861 section 7.2.4)
                let (asker, to) = match probe {
                    true => (None, ipv6::group_mac(ALL_NODES)),
                    false => (Some(src), asker_mac),
                };
                self.send_advertisement(frame, ip_at, to, neighbour.target, asker)
            }
            Some(Local::NotReady(index)) if probe && !is_of_vlan(frame) => {
                // both look at once: neither may use it (RFC 4862 section 5.4.3); or it came to be used just now, and is defended
                self.dispute6(now, frame, ip_at, (index, neighbour.target), asker_mac)
            }
            Some(Local::NotReady(_)) => self.drop_frame(DropReason::NotReady),
            _ => self.drop_frame(DropReason::NeighbourNotOurs),
        }
    }

    /// A neighbour advertisement; whether the frame is to be sent.
    pub(crate) fn handle_advertisement(
        &mut self,
        now: Instant,
        frame: &mut Frame,
        ip_at: usize,
        neighbour: Neighbour,
    ) -> bool {
        let (_, dst) = pair6(frame.bytes(), ip_at);
        if dst.is_multicast() && neighbour.solicited {
            return self.drop_frame(DropReason::Neighbour); // RFC 4861 section 7.1.2
        }
        if is_of_vlan(frame) {
            return self.drop_frame(DropReason::NeighbourNotOurs);
        }
        let [_, src_mac] = macs(frame);
        let mac = neighbour.target_mac.unwrap_or(src_mac);
        match self.locals.find(Key::v6(neighbour.target)) {
            Some(Local::Own(index) | Local::NotReady(index)) => {
                self.dispute6(now, frame, ip_at, (index, neighbour.target), mac)
            }
            // RFC 4861 section 7.2.5
            None if self.hear(neighbour.target.into(), Heard { mac, at: now, overrides: neighbour.overrides }) => {
                self.counters.add_handled(Handled::NeighbourHeard, 1);
                false
            }
            _ => self.drop_frame(DropReason::NeighbourNotOurs),
        }
    }

    /// The station `mac` claims an own address; whether the frame, which defends it then, is to be sent.
    fn dispute6(
        &mut self,
        now: Instant,
        frame: &mut Frame,
        ip_at: usize,
        (index, addr): (u16, Ipv6Addr),
        mac: Mac,
    ) -> bool {
        self.counters.add_handled(Handled::NeighbourConflict, 1);
        self.on_conflict(now, index, mac)
            && self.send_advertisement(frame, ip_at, ipv6::group_mac(ALL_NODES), addr, None)
    }

    fn send_advertisement(
        &self,
        frame: &mut Frame,
        ip_at: usize,
        to: Mac,
        addr: Ipv6Addr,
        asker: Option<Ipv6Addr>,
    ) -> bool {
        let bytes = ip_at + ipv6::HEADER_BYTES + icmpv6::ADVERTISEMENT_BYTES;
        if frame.room() < bytes {
            return false;
        }
        frame.set_len(bytes);
        address(frame, to, self.facts.mac);
        write_advertisement(&mut frame.bytes_mut()[ip_at..], addr, asker, self.facts.mac);
        true
    }

    /// A router asks who listens to what: the answers are sent by `poll`, after a random part of the time it allows.
    pub(crate) fn handle_query(&mut self, now: Instant, query: Query) -> bool {
        self.counters.add_handled(Handled::ListenerQuery, 1);
        for index in 0..self.own.len() {
            let IpAddr::V6(addr) = self.own[index].addr else { continue };
            if self.own[index].readiness() == Readiness::Conflict {
                continue;
            }
            if query.group.is_unspecified() || query.group == ipv6::solicited_node(addr) {
                let at = now + self.random(Duration::from_millis(u64::from(query.delay_ms)));
                let own = &mut self.own[index];
                own.report_at = Some(own.report_at.map_or(at, |earlier| earlier.min(at)));
                self.due_at = self.due_at.min(at);
            }
        }
        false
    }
}

/// Destination and source of the link header, which was parsed before.
fn macs(frame: &Frame) -> [Mac; 2] {
    let head = frame.bytes().first_chunk::<12>().expect("a link header was parsed");
    let (dst, src) = head.split_at(6);
    [dst, src].map(|mac| *mac.first_chunk().expect("half of 12 bytes"))
}

/// Whether the frame is of a VLAN, and so of another link than what has no tag. VLAN 0 is none: such a tag has a priority alone (IEEE 802.1Q
/// section 9.6).
fn is_of_vlan(frame: &Frame) -> bool {
    const VLAN: u16 = 0xfff;
    Link::parse(frame.bytes()).and_then(|link| link.tag).is_some_and(|tag| tag & VLAN != 0)
}

/// Readdresses the frame, whose link header was parsed before; a tag stays.
fn address(frame: &mut Frame, dst: Mac, src: Mac) {
    let head = frame.bytes_mut();
    head[..6].copy_from_slice(&dst);
    head[6..12].copy_from_slice(&src);
}

#[cfg(test)]
mod tests;
