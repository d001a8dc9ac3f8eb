//! Ethernet with one 802.1Q tag, ARP, IPv4, IPv6, neighbour discovery, ICMP and UDP, as state machines without I/O.
//!
//! A [`Stack`] is fed bursts of frames ([`Stack::input`]) and the time ([`Stack::poll`]); it reads no clock, draws no
//! randomness but from its seed, and allocates nothing after [`Stack::new`] and [`Stack::reconfigure`]. It owns no frame:
//! each comes in a burst and leaves in another, most of them as their own answers. Datagrams go to an
//! [`app::Service`] as bursts and are answered in place, or in frames that the caller adds ([`Stack::input_copied`]).
//!
//! Left out: TCP; reassembly of fragments (dropped and counted; on shared addresses the kernel gets them); routing (answers
//! go to the hardware address that asked, so nothing needs a neighbour cache); address configuration; redirects.
//!
//! One stack serves one queue. Where several serve one interface, one of them claims the own addresses and the others are
//! [`ClaimMode::Silent`].

#![forbid(unsafe_code)]

mod bucket;
mod config;
mod counters;
mod icmp;
mod input;
mod locals;
mod own;
mod turn;

pub mod tcp;

pub use config::{Claim, ClaimMode, Config, Limits, OwnAddress, UdpListener};
pub use counters::{Counters, DropReason, Handled, OwnStatus, Readiness};

use base::Instant;
use base::rng::Rng;
use bucket::Bucket;
use locals::{Key, Local, Locals};
use own::Own;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// A host's network stack over one queue of one interface.
#[derive(Debug)]
pub struct Stack {
    locals: Locals,
    facts: port::Facts,
    counters: Arc<Counters>,
    errors: Bucket,
    echoes: Bucket,
    own: Vec<Own>,
    claim: Claim,
    /// when `poll` has something to do
    due_at: Instant,
    rng: Rng,
}

impl Stack {
    /// A stack for the port with these facts. Own addresses are claimed from the first [`Stack::poll`] on.
    pub fn new(config: Config, facts: &port::Facts) -> Stack {
        let mut stack = Stack {
            locals: Locals::new(std::iter::empty(), &[], false),
            facts: facts.clone(),
            counters: Arc::new(Counters::new()),
            errors: Bucket::new(0, 0),
            echoes: Bucket::new(0, 0),
            own: Vec::new(),
            claim: config.claim,
            due_at: Instant::ZERO,
            rng: Rng::new(config.seed),
        };
        stack.reconfigure(config);
        stack
    }

    /// The counters, which anyone may read at any time.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Takes another configuration. Own addresses that stay keep their state; new ones are claimed first. The seed is not
    /// taken again. This allocates, so it belongs between cycles.
    pub fn reconfigure(&mut self, config: Config) {
        let limits = config.limits;
        self.errors = Bucket::new(limits.icmp_errors_per_second, limits.icmp_errors_burst);
        self.echoes = Bucket::new(limits.echoes_per_second, limits.echoes_burst);
        self.claim = config.claim;
        let mut before = std::mem::take(&mut self.own);
        let mut addresses = Vec::new();
        let mut broadcasts = Vec::new();
        for entry in &config.own {
            let addr = entry.addr.to_canonical();
            if self.own.iter().any(|own| own.addr == addr) {
                continue;
            }
            let index = self.own.len() as u16;
            let own = match before.iter().position(|own| own.addr == addr) {
                Some(at) => before.swap_remove(at),
                None => Own::new(addr, config.claim.mode),
            };
            let local = if own.in_use() { Local::Own(index) } else { Local::NotReady(index) };
            addresses.push((Key::of(addr), local));
            broadcasts.extend(broadcast(addr, entry.prefix_len).map(|addr| (Key::v4(addr), Local::Broadcast)));
            self.own.push(own);
        }
        let all = addresses.into_iter().chain(broadcasts);
        self.locals = Locals::new(all, &config.listeners, config.steered);
        self.counters.show_own(self.own.iter().map(|own| own.shown.clone()).collect());
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
