//! What TCP is told.

use super::congestion::Algorithm;
use app::{Listener, PerSource};
use std::net::SocketAddr;
use std::time::Duration;

/// Where connections are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpListener {
    /// what the service calls it
    pub listener: Listener,
    /// address and port; 0.0.0.0 and [::] mean any local address of that family
    pub local: SocketAddr,
    /// bytes that a peer may send before the service gives some back
    pub window_bytes: u32,
}

/// How much of everything there is. All of it is allocated when the stack is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpLimits {
    /// connections, 320 bytes each and as many as 64 for table and timer
    pub connections: u32,
    /// of which so many may have something to send at one time; one more is reset
    pub active: u32,
    /// handshakes under way that are remembered; beyond them SYN cookies are sent
    pub half_open: u32,
    /// connections in TIME-WAIT, each for IPv4 and IPv6
    pub time_wait: u32,
    /// runs of segments in flight, 32 bytes each
    pub records: u32,
    /// segments kept that arrived out of order, one packet each, or several small ones
    pub blocks: u32,
    /// of which a connection may have so many while more than half are free
    pub blocks_per_connection: u16,
    /// ranges queued to be sent, 48 bytes each
    pub ranges: u32,
    /// of which a connection may have so many
    pub ranges_per_connection: u16,
    /// blocks of 2 KiB for bytes that services do not keep themselves
    pub owned_blocks: u32,
    /// of which a connection may have so many
    pub owned_blocks_per_connection: u16,
    /// half-open connections of one source (an IPv4 address, an IPv6 /56) with one service
    pub half_open_per_source: u32,
    /// connections of one source with one service, where [`TcpConfig::per_source`] has no bound for that
    pub connections_per_source: u32,
    /// resets and challenging ACKs that strangers can provoke, a second
    pub challenges_per_second: u32,
}

impl Default for TcpLimits {
    fn default() -> Self {
        TcpLimits {
            connections: 65_536,
            active: 16_384,
            half_open: 8192,
            time_wait: 65_536,
            records: 65_536,
            blocks: 4096,
            blocks_per_connection: 256,
            ranges: 65_536,
            ranges_per_connection: 128,
            owned_blocks: 8192,
            owned_blocks_per_connection: 64,
            half_open_per_source: 1024,
            connections_per_source: 16_384,
            challenges_per_second: 1000,
        }
    }
}

/// How long what is waited for. Waits of a connection block (all but TIME-WAIT) last eight hours at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpTimes {
    /// a closed connection may go without the peer acknowledging anything, and then without its FIN
    pub linger: Duration,
    /// TIME-WAIT (RFC 9293 section 3.4.2 has four minutes; what servers use is a minute)
    pub time_wait: Duration,
    /// nothing heard before the peer is asked whether it lives, None for never (RFC 9293 section 3.8.4)
    pub keepalive: Option<Duration>,
    /// between two such questions
    pub keepalive_interval: Duration,
    /// questions unanswered before the connection is given up
    pub keepalive_probes: u8,
    /// the peer may leave its window closed, or used up by what is under way, while more waits to be sent
    pub zero_window: Duration,
    /// retransmissions in a row before the connection is given up
    pub retransmissions: u8,
    /// the same of a SYN-ACK or a SYN
    pub syn_retransmissions: u8,
}

impl Default for TcpTimes {
    fn default() -> Self {
        TcpTimes {
            linger: Duration::from_secs(30),
            time_wait: Duration::from_secs(60),
            keepalive: Some(Duration::from_secs(7200)),
            keepalive_interval: Duration::from_secs(75),
            keepalive_probes: 9,
            zero_window: Duration::from_secs(120),
            retransmissions: 10,
            syn_retransmissions: 4,
        }
    }
}

/// What TCP is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// where connections are taken; among those of one address and port the first counts
    pub listeners: Vec<TcpListener>,
    /// sizes; a change of configuration does not change them
    pub limits: TcpLimits,
    /// services with bounds of their own on a source's connections
    pub per_source: PerSource,
    /// waits
    pub times: TcpTimes,
    /// bytes that the peer of a connection that the service asks for may send before the service gives some back
    pub connect_window_bytes: u32,
    /// how the congestion window moves
    pub congestion: Algorithm,
    /// whether ECN is agreed on with peers that ask for it, and asked for (RFC 3168)
    pub ecn: bool,
    /// of sequence numbers, cookies and tables: drawn once from the system's entropy
    pub secret: [u64; 2],
}

impl Default for TcpConfig {
    fn default() -> Self {
        TcpConfig {
            listeners: Vec::new(),
            limits: TcpLimits::default(),
            per_source: PerSource::default(),
            times: TcpTimes::default(),
            connect_window_bytes: 65_536,
            congestion: Algorithm::default(),
            ecn: true,
            secret: [0, 0],
        }
    }
}
