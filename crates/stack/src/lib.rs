//! Ethernet with one 802.1Q tag, ARP, IPv4, IPv6, neighbour discovery, ICMP, UDP and TCP, as state machines without I/O.
//!
//! A [`Stack`] is fed bursts of frames ([`Stack::input`]) and the time ([`Stack::poll`]); it reads no clock, draws no
//! randomness but from its seed, and allocates nothing after [`Stack::new`] and [`Stack::reconfigure`]. It owns no frame:
//! each comes in a burst and leaves in another, most of them as their own answers. Datagrams go to an
//! [`app::Service`] as bursts and are answered in place, or in frames that the caller adds ([`Stack::input_copied`]). TCP
//! ([`tcp`]) is there when it is configured; its data go to the same service.
//!
//! Answers go to the hardware address that asked. What leaves by itself (connections and datagrams that the service asks for) leaves
//! from own addresses, over neighbours that are asked for, or the gateway.
//!
//! Left out: reassembly of fragments (dropped and counted; on shared addresses the kernel gets them); routes but a gateway a family;
//! address configuration; redirects.
//!
//! One stack serves one queue. Where several serve one interface, one of them claims the own addresses, the others are
//! [`ClaimMode::Silent`], and an [`Agreement`] holds them together. Connections go from one to another by flow group
//! ([`Stack::depart`], [`Stack::arrive`]).

#![forbid(unsafe_code)]

mod agreement;
mod bucket;
mod config;
mod counters;
mod icmp;
mod input;
mod locals;
mod outward;
mod own;
mod segments;
mod turn;

pub mod tcp;

pub use agreement::Agreement;
pub use config::{Claim, ClaimMode, Config, Limits, OwnAddress, UdpListener};
pub use counters::{Counters, DropReason, Handled, OwnStatus, Readiness};
pub use tcp::{Arrived, Departure, Ours, TcpConfig, TcpLimits, TcpListener, TcpTimes};

use base::Instant;
use base::rng::Rng;
use bucket::Bucket;
use locals::{Key, Local, Locals};
use outward::Outward;
use own::Own;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use wire::flow::Groups;

/// The counters of a stack and of its TCP.
type AllCounters = (Arc<Counters>, Option<Arc<tcp::Counters>>);

/// A host's network stack over one queue of one interface.
#[derive(Debug)]
pub struct Stack {
    locals: Locals,
    facts: port::Facts,
    /// of the link now, at most as in the facts
    mtu: usize,
    counters: Arc<Counters>,
    errors: Bucket,
    echoes: Bucket,
    own: Vec<Own>,
    agreement: Arc<Agreement>,
    /// whether another stack claims, and the changes of the agreement that were taken in
    follows: bool,
    seen: u64,
    claim: Claim,
    /// what it was told last
    config: Config,
    tcp: Option<Box<tcp::Engine>>,
    /// what TCP has in it, where there is none
    plain: Option<Box<Outward>>,
    /// when `poll` has something to do
    due_at: Instant,
    rng: Rng,
}

impl Stack {
    /// A stack for the port with these facts. Own addresses are claimed from the first [`Stack::poll`] on.
    pub fn new(config: Config, facts: &port::Facts) -> Stack {
        let tcp = config.tcp.as_ref().map(|_| Arc::new(tcp::Counters::new()));
        Stack::with(config, facts, (Arc::new(Counters::new()), tcp), Vec::new())
    }

    fn with(config: Config, facts: &port::Facts, counters: AllCounters, own: Vec<Own>) -> Stack {
        let (counters, of_tcp) = counters;
        let mtu = facts.mtu.min(facts.frame_bytes - wire::ethernet::TAGGED_HEADER_BYTES);
        let outward = || Outward::new(mtu, counters.clone());
        let tcp = config.tcp.as_ref().zip(of_tcp);
        let tcp = tcp.map(|(tcp, counters)| Box::new(tcp::Engine::new(tcp, facts, counters, outward())));
        let plain = if tcp.is_none() { Some(Box::new(outward())) } else { None };
        let mut stack = Stack {
            locals: Locals::new(std::iter::empty(), &[], &[], false),
            facts: facts.clone(),
            mtu: facts.mtu,
            counters,
            errors: Bucket::new(0, 0),
            echoes: Bucket::new(0, 0),
            own,
            agreement: Arc::new(Agreement::new([])),
            follows: false,
            seen: 0,
            claim: config.claim,
            tcp,
            plain,
            config: Config::default(),
            due_at: Instant::ZERO,
            rng: Rng::new(config.seed),
        };
        stack.reconfigure(config);
        stack
    }

    /// A new stack in the place of this one, after a panic may have left this one half-way through a burst: told the same,
    /// counting in the same counters, with the own addresses as far as they had come. They are not claimed anew, since that
    /// would take the service off the network for seconds. Connections are lost, and their peers learn it by a reset when they
    /// next send something.
    #[must_use]
    pub fn successor(&self) -> Stack {
        let counters = (self.counters.clone(), self.tcp_counters());
        let mut stack = Stack::with(self.config.clone(), &self.facts, counters, self.own.clone());
        if self.mtu != self.facts.mtu {
            stack.set_mtu(Instant::ZERO, self.mtu);
        }
        if let Some(groups) = self.tcp.as_ref().and_then(|tcp| tcp.groups()) {
            stack.set_groups(groups.clone());
        }
        if let Some(ours) = self.tcp.as_ref().and_then(|tcp| tcp.ours()) {
            stack.set_ours(ours.clone());
        }
        stack
    }

    /// Has the stack know who belongs to which flow group, so that groups can go to other threads' stacks and come from them. Told
    /// once, before the first packet, where there are several threads; one alone has nothing to keep.
    ///
    /// # Panics
    /// When there are connections already.
    pub fn set_groups(&mut self, groups: Arc<Groups>) {
        if let Some(tcp) = &mut self.tcp {
            tcp.set_groups(groups);
        }
    }

    /// Tells that our own receive queue was full at `now`: acknowledgements may have been lost there, and what is missing is not sent
    /// again as soon as otherwise.
    #[inline]
    pub fn overrun(&mut self, now: Instant) {
        if let Some(tcp) = &mut self.tcp {
            tcp.overrun(now);
        }
    }

    /// Tells which flow groups are this thread's, after [`Stack::set_groups`]: connections are then asked for from ports whose
    /// answers come to this thread.
    pub fn set_ours(&mut self, ours: Arc<dyn Ours>) {
        if let Some(tcp) = &mut self.tcp {
            tcp.set_ours(ours);
        }
    }

    /// Whether the group can go to another thread without harm: the service lets its connections go, or there are none.
    pub fn can_depart<S: app::Service>(&self, group: u16, service: &S) -> bool {
        service.can_move() || self.tcp.as_ref().is_none_or(|tcp| !tcp.has_connections(group))
    }

    /// Takes everything of a flow group out: connections, handshakes and TIME-WAIT. From now on its packets are another stack's,
    /// to which the departure is given ([`Stack::arrive`]) before the first of them. What this stack has sent of them, or has put
    /// into a burst, was sent; what waits to be sent goes along. Connections that have ended stay until the service was told,
    /// in the next poll. A service that cannot let its connections go ([`Stack::can_depart`]) has them reset. It costs what the
    /// group has, whatever else there is, and allocates.
    pub fn depart<S: app::Service>(&mut self, now: Instant, group: u16, service: &mut S) -> Departure {
        match &mut self.tcp {
            Some(tcp) => tcp.depart(now, group, service),
            None => Departure::nothing(group),
        }
    }

    /// Takes a flow group in that left the stack of another thread, which has the same configuration, secret and clock. What waits
    /// to be sent goes out in the next poll, which is due now. What finds no room is refused: a connection is reset, and neither
    /// service hears of it; a handshake is forgotten.
    pub fn arrive<S: app::Service>(&mut self, now: Instant, departure: Departure, service: &mut S) -> Arrived {
        self.due_at = self.due_at.min(now);
        match &mut self.tcp {
            Some(tcp) => tcp.arrive(now, departure, service),
            None => Arrived { refused: departure.connections(), ..Arrived::default() },
        }
    }

    /// What leaves unasked: always there.
    #[inline]
    pub(crate) fn outward(&mut self) -> Option<&mut Outward> {
        match &mut self.tcp {
            Some(tcp) => Some(&mut tcp.outward),
            None => self.plain.as_deref_mut(),
        }
    }

    /// The counters, which anyone may read at any time.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Goes on with another hardware address, after the interface got one. Own addresses in use are announced anew, so that
    /// neighbours learn of it.
    pub fn set_mac(&mut self, mac: wire::Mac) {
        if self.facts.mac != mac {
            self.facts.mac = mac;
            let claims = self.claim.mode != ClaimMode::Silent;
            self.own.iter_mut().filter(|_| claims).for_each(Own::announce_again);
            self.due_at = Instant::ZERO;
        }
    }

    /// Goes on with another MTU, after the interface got one: nothing larger is sent any more, and connections carry what fits. The MTU of
    /// the port's facts stays a bound, since frames have no room for more.
    pub fn set_mtu(&mut self, now: Instant, mtu: usize) {
        // RFC 791: no link carries less
        self.mtu = mtu.max(68).min(self.facts.mtu);
        let mtu = self.mtu(wire::ethernet::TAGGED_HEADER_BYTES);
        if let Some(outward) = self.outward() {
            outward.set_mtu(mtu);
        }
        if let Some(tcp) = &mut self.tcp {
            tcp.set_mtu(now, mtu);
        }
        self.due_at = Instant::ZERO;
    }

    /// What a service may do with connections, for the stack's owner between events; None without TCP.
    pub fn calls(&mut self, now: Instant) -> Option<impl app::Streams + '_> {
        self.due_at = self.due_at.min(now);
        self.tcp.as_mut().map(|engine| tcp::Calls { engine, now })
    }

    /// Begins to end: no further handshake is begun, and connections are closed as soon as neither side owes the other anything;
    /// one that has not brought anything yet may be about to. The caller watches [`tcp::Counters::connections`].
    pub fn drain(&mut self) {
        self.due_at = Instant::ZERO;
        if let Some(tcp) = &mut self.tcp {
            tcp.drain();
        }
    }

    /// Resets every connection, at the end, and every one that another thread gives us from then on; the resets go out in the polls that
    /// follow.
    pub fn abort_all(&mut self) {
        self.due_at = Instant::ZERO;
        if let Some(tcp) = &mut self.tcp {
            tcp.abort_all();
        }
    }

    /// Asks `peer` for a connection from `local`, whose port may be zero for any that is free, over the station `next_hop`. What
    /// becomes of it the service hears by `connected`. The peer may send `window_bytes` before some are given back.
    ///
    /// Where several threads share flows, the port is one by which the answers come to this one. A thread that owns no flow group has
    /// none, and the answer to a port that the caller names may be another's too: that is refused and counted, since the other
    /// thread would reset what it does not know.
    ///
    /// # Errors
    /// Addresses of two families, no free port, none that leads here, or no room.
    pub fn connect(
        &mut self,
        now: Instant,
        local: SocketAddr,
        peer: SocketAddr,
        next_hop: wire::Mac,
        cookie: u64,
        window_bytes: u32,
    ) -> Result<app::Connection, app::CallError> {
        let engine = self.tcp.as_mut().ok_or(app::CallError::NoResources)?;
        engine.connect(now, local, peer, tcp::Hop::new(next_hop, None), cookie, window_bytes)
    }

    /// How much of TCP's pools is in use, for tests and for who asks by hand: it walks through everything.
    ///
    /// # Panics
    /// When sums or lists contradict each other: our own fault.
    pub fn tcp_usage(&self) -> tcp::Usage {
        self.tcp.as_ref().map_or_else(tcp::Usage::default, |tcp| tcp.usage())
    }

    /// Shows TCP connections as they stand: up to `most` places of their table from place `from` on. Returns where to go on, None
    /// at the end or without TCP.
    pub fn tcp_view(&self, now: Instant, from: u32, most: u32, show: &mut dyn FnMut(tcp::View)) -> Option<u32> {
        self.tcp.as_ref().and_then(|tcp| tcp.view(now, from, most, show))
    }

    /// TCP's counters, if there is TCP.
    pub fn tcp_counters(&self) -> Option<Arc<tcp::Counters>> {
        self.tcp.as_ref().map(|tcp| tcp.counters())
    }

    /// Takes another configuration. Own addresses that stay keep their state; new ones are claimed first. Of TCP only
    /// the listeners are taken, and not the seed. This allocates, so it belongs between cycles.
    pub fn reconfigure(&mut self, config: Config) {
        let limits = config.limits;
        self.errors = Bucket::new(limits.icmp_errors_per_second, limits.icmp_errors_burst);
        self.echoes = Bucket::new(limits.echoes_per_second, limits.echoes_burst);
        self.claim = config.claim;
        let own = || config.own.iter().map(|own| own.addr.to_canonical());
        let given = config.agreement.clone().filter(|given| own().all(|addr| given.find(addr).is_some()));
        self.follows = given.is_some() && config.claim.mode == ClaimMode::Silent;
        self.agreement = given.unwrap_or_else(|| Arc::new(Agreement::new(own())));
        self.seen = self.agreement.changes();
        let mut before = std::mem::take(&mut self.own);
        let mut addresses = Vec::new();
        let mut broadcasts = Vec::new();
        for entry in &config.own {
            let addr = entry.addr.to_canonical();
            if self.own.iter().any(|own| own.addr == addr) {
                continue;
            }
            let index = self.own.len() as u16;
            let Some(shared) = self.agreement.find(addr) else { continue };
            let kept = before.iter().position(|own| own.addr == addr && own.follows() == self.follows);
            let own = match kept {
                Some(at) => before.swap_remove(at).shown_as(shared),
                None => Own::new(addr, config.claim.mode, shared, self.follows),
            };
            if !self.follows {
                self.agreement.show(shared, own.readiness());
            }
            let local = if own.in_use() { Local::Own(index) } else { Local::NotReady(index) };
            addresses.push((Key::of(addr), local));
            broadcasts.extend(broadcast(addr, entry.prefix_len).map(|addr| (Key::v4(addr), Local::Broadcast)));
            self.own.push(own);
        }
        let all = addresses.into_iter().chain(broadcasts);
        let segments = config.tcp.as_ref().filter(|_| self.tcp.is_some()).map_or(&[][..], |tcp| &tcp.listeners);
        self.locals = Locals::new(all, &config.listeners, segments, config.steered);
        self.counters.show_own(self.own.iter().map(|own| own.shown.clone()).collect(), !self.follows);
        let agreement = self.agreement.clone();
        if let Some(outward) = self.outward() {
            outward.reconfigure(&config, &agreement);
        }
        self.config = config;
        self.due_at = Instant::ZERO;
    }
}

/// The broadcast address of an address's prefix; prefixes of 31 and 32 bits have none (RFC 3021).
fn broadcast(addr: IpAddr, prefix_len: u8) -> Option<Ipv4Addr> {
    match addr {
        IpAddr::V4(addr) if prefix_len < 31 => Some(Ipv4Addr::from_bits(addr.to_bits() | u32::MAX >> prefix_len)),
        _ => None,
    }
}
