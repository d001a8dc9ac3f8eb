//! What a stack is told: its addresses, its listeners, its limits.

use crate::Agreement;
use crate::tcp::TcpConfig;
use app::Listener;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// An address that only this stack has: it answers ARP or neighbour discovery and ping for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnAddress {
    /// the address
    pub addr: IpAddr,
    /// bits of the link's prefix, from which the broadcast address follows
    pub prefix_len: u8,
}

/// Where datagrams are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpListener {
    /// what the service calls it
    pub listener: Listener,
    /// address and port; 0.0.0.0 and [::] mean any local address of that family
    pub local: SocketAddr,
}

/// Bounds on what strangers can make the stack do (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 (f)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// ICMP errors sent a second
    pub icmp_errors_per_second: u32,
    /// ICMP errors sent at once after a quiet time
    pub icmp_errors_burst: u32,
    /// echo requests answered a second
    pub echoes_per_second: u32,
    /// echo requests answered at once after a quiet time
    pub echoes_burst: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { icmp_errors_per_second: 1000, icmp_errors_burst: 50, echoes_per_second: 10_000, echoes_burst: 1000 }
    }
}

/// What is said about own addresses unasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimMode {
    /// another holder is looked for before an address is used, then it is announced
    Detect,
    /// addresses are used at once, and announced
    Announce,
    /// Nothing is said unasked: for the stacks of all queues but one. With an agreement an address is used when the stack
    /// that claims it uses it, and defended; without one it is used at once.
    Silent,
}

/// How own addresses are claimed. The defaults are the RFCs' own values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// what is said unasked
    pub mode: ClaimMode,
    /// the longest random wait before the first probe (RFC 5227 PROBE_WAIT, RFC 4861 MAX_RTR_SOLICITATION_DELAY)
    pub wait: Duration,
    /// between two probes at least; a random part up to the same is added for IPv4 (RFC 5227 PROBE_MIN, PROBE_MAX; RFC 4861
    /// RETRANS_TIMER)
    pub probe_interval: Duration,
    /// from the last IPv4 probe to the first announcement, and between announcements (RFC 5227 ANNOUNCE_WAIT,
    /// ANNOUNCE_INTERVAL)
    pub announce_interval: Duration,
    /// between two defences of an address at least (RFC 5227 DEFEND_INTERVAL)
    pub defend_interval: Duration,
    /// from a conflict that kept an address from being used to another attempt (RFC 5227 RATE_LIMIT_INTERVAL)
    pub retry_interval: Duration,
}

impl Default for Claim {
    fn default() -> Self {
        Claim {
            mode: ClaimMode::Detect,
            wait: Duration::from_secs(1),
            probe_interval: Duration::from_secs(1),
            announce_interval: Duration::from_secs(2),
            defend_interval: Duration::from_secs(10),
            retry_interval: Duration::from_secs(60),
        }
    }
}

/// What a stack is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// addresses that only this stack has; the first mention of an address counts
    pub own: Vec<OwnAddress>,
    /// where datagrams are taken; among those of one address and port the first counts
    pub listeners: Vec<UdpListener>,
    /// TCP, if it is served
    pub tcp: Option<TcpConfig>,
    /// The port passes only what is for local addresses (the AF_XDP steering program does). Then a listener at any local
    /// address takes every unicast destination; otherwise own addresses alone.
    pub steered: bool,
    /// bounds on answers to strangers
    pub limits: Limits,
    /// how own addresses are claimed
    pub claim: Claim,
    /// routers for peers that are on no link of an own address: the first of each family
    pub gateways: Vec<IpAddr>,
    /// What the stacks of several queues share, one of which claims; one that lacks an own address is as good as none.
    pub agreement: Option<Arc<Agreement>>,
    /// of the random delays and nonces; give each stack another
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            own: Vec::new(),
            listeners: Vec::new(),
            tcp: None,
            steered: true,
            limits: Limits::default(),
            claim: Claim::default(),
            gateways: Vec::new(),
            agreement: None,
            seed: 0,
        }
    }
}
