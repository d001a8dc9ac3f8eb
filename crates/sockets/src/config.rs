//! What an engine is told, and what is said when it cannot be done.

use crate::nic::NicSpread;
use app::{Listener, PerSource};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// The most datagrams that one system call moves.
pub const BATCH_DATAGRAMS: usize = 64;

/// Datagrams or streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// datagrams
    Udp,
    /// streams
    Tcp,
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Transport::Udp => "UDP",
            Transport::Tcp => "TCP",
        })
    }
}

/// An address that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// what the service's events call it
    pub listener: Listener,
    /// port 0 lets the kernel choose
    pub address: SocketAddr,
    /// datagrams or streams
    pub transport: Transport,
    /// the receive window of its connections, where it is not [`Streams::window_bytes`]
    pub window_bytes: Option<usize>,
    /// connections that the kernel holds before they are accepted, where that is not [`Streams::backlog`]
    pub backlog: Option<i32>,
}

/// What a thread does when there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// asks again and again: the lowest latency, a whole processor
    Spin,
    /// asks once more while that has lately paid, then sleeps in the kernel
    #[default]
    Adaptive,
    /// sleeps in the kernel at once
    Block,
}

/// How what arrives at an endpoint gets to the threads. With one thread there is nothing to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// one socket for all of them
    Shared,
    /// a socket for each, between which the kernel's hash chooses; for connections, once they arrive on the processors of all threads, that
    /// of the thread where they arrive
    PerCore,
    /// a socket for each, between which a table of flow groups chooses, and threads that help each other out
    #[default]
    Affinity,
}

/// How threads help each other out, where endpoints are spread by [`Spread::Affinity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// a thread with time accepts and receives from the socket of one that has none
    pub steal: bool,
    /// and takes over flow groups from whom it stole most; nothing without `steal`
    pub migrate: bool,
    /// flow groups, 1 to [`MOST_GROUPS`]
    pub groups: usize,
}

/// The most flow groups there can be.
pub const MOST_GROUPS: usize = 65_536;

impl Default for Balance {
    fn default() -> Self {
        Balance { steal: true, migrate: true, groups: 4096 }
    }
}

/// How streams are bounded, per thread.
#[derive(Clone, Debug)]
pub struct Streams {
    /// connections at one time
    pub connections: usize,
    /// connections at one time from one IPv4 address or IPv6 /56 with one service, where `services` has no bound for that
    pub per_source: usize,
    /// services with bounds of their own on a source's connections
    pub services: PerSource,
    /// bytes delivered and not yet given back by `recv_done`, a connection
    pub window_bytes: usize,
    /// owned bytes queued and not yet taken by the kernel, a connection
    pub queue_bytes: usize,
    /// bytes queued and not yet taken by the kernel, over all connections: what peers that do not read can hold
    pub budget_bytes: usize,
    /// ranges queued and not yet taken by the kernel, a connection
    pub queue_ranges: usize,
    /// how long a closed connection may go without a byte of what is queued being taken, then it is reset; and how long it waits for
    /// the peer's end after that, 5 s at most, then it is left to the kernel
    pub linger: Duration,
    /// how long the handshake of a connection that the service asks for may take
    pub connect_timeout: Duration,
    /// how long a peer may leave its window closed, or what it was sent unacknowledged, then the connection ends
    pub stalled: Duration,
    /// nothing heard before a peer is asked whether it lives: whole seconds, 1 to 32,767
    pub keepalive: Duration,
    /// how long it has then to say something, where `stalled` is shorter than `keepalive`: the same
    pub keepalive_answer: Duration,
    /// connections that the kernel holds before they are accepted, a listener; it takes no more than net.core.somaxconn
    pub backlog: i32,
}

impl Default for Streams {
    fn default() -> Self {
        Streams {
            connections: 10_000,
            per_source: 256,
            services: PerSource::default(),
            window_bytes: 64 << 10,
            queue_bytes: 128 << 10,
            budget_bytes: 64 << 20,
            queue_ranges: 256,
            linger: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(31),
            stalled: Duration::from_secs(120),
            keepalive: Duration::from_secs(7200),
            keepalive_answer: Duration::from_secs(9 * 75),
            backlog: 1024,
        }
    }
}

/// An engine's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// what is served
    pub endpoints: Vec<Endpoint>,
    /// threads, at least one
    pub threads: usize,
    /// processors that the threads are pinned to, in turn; empty: not pinned
    pub cpus: Vec<usize>,
    /// datagrams that one receive takes at most, 1 to [`BATCH_DATAGRAMS`]
    pub batch: usize,
    /// bytes of the largest question and of the largest answer; no more than 65,507 leave over IPv4, 65,527 over IPv6
    pub datagram_bytes: usize,
    /// kernel memory for datagrams that wait, a socket
    pub receive_buffer_bytes: usize,
    /// kernel memory for answers on their way, a socket
    pub send_buffer_bytes: usize,
    /// whether datagrams carry their congestion bits; costs a control message each
    pub ecn: bool,
    /// microseconds that a thread which would sleep polls the device's queue itself first (SO_BUSY_POLL); 0 is off
    pub busy_poll_us: u32,
    /// what a thread does when there is nothing to do
    pub idle: Idle,
    /// how connections get to the threads
    pub accept: Spread,
    /// how datagrams get to the threads
    pub receive: Spread,
    /// how threads help each other out
    pub balance: Balance,
    /// the NIC by whose table flow groups are made, where threads are pinned; None: by the kernel's hash
    pub nic: Option<NicSpread>,
    /// a cycle that takes so long counts as slow
    pub slow_after: Duration,
    /// whether there may be no endpoint at all: for a service that only asks for connections
    pub may_lack_endpoints: bool,
    /// bounds of the stream half
    pub streams: Streams,
    /// endpoints of streams, with ports that were given, whose connections are refused between binding and starting, rather than held: for
    /// who will take most of their traffic away meanwhile, and with it what held connections go on to send
    pub refuse_until_started: Vec<SocketAddr>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            endpoints: Vec::new(),
            threads: 1,
            cpus: Vec::new(),
            batch: BATCH_DATAGRAMS,
            datagram_bytes: 4096,
            receive_buffer_bytes: 2 << 20,
            send_buffer_bytes: 2 << 20,
            ecn: false,
            busy_poll_us: 0,
            idle: Idle::default(),
            accept: Spread::default(),
            receive: Spread::default(),
            balance: Balance::default(),
            nic: None,
            slow_after: app::Cycles::SLOW_AFTER,
            may_lack_endpoints: false,
            streams: Streams::default(),
            refuse_until_started: Vec::new(),
        }
    }
}

/// Why an engine could not be made. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// the configuration makes no sense
    #[error("{0}")]
    Config(String),
    /// the address is given twice
    #[error("{transport} {address}: listed twice; remove one of the two")]
    Twice {
        /// the address
        address: SocketAddr,
        /// its transport
        transport: Transport,
    },
    /// somebody else has it
    #[error("{transport} {address}: in use by another program; stop it (ss -lpn 'sport = :{}') or choose another port", address.port())]
    InUse {
        /// the address
        address: SocketAddr,
        /// its transport
        transport: Transport,
    },
    /// a low port without the capability
    #[error(
        "{transport} {address}: not permitted; ports below 1024 need CAP_NET_BIND_SERVICE (run as root, or use a port from 1024 up)"
    )]
    NotPermitted {
        /// the address
        address: SocketAddr,
        /// its transport
        transport: Transport,
    },
    /// the machine does not have the address
    #[error("{transport} {address}: this machine has no such address; see ip addr, or listen on {}", any(address))]
    NoSuchAddress {
        /// the address
        address: SocketAddr,
        /// its transport
        transport: Transport,
    },
    /// whatever else the kernel said
    #[error("{transport} {address}: {doing}: {source}")]
    Other {
        /// the address
        address: SocketAddr,
        /// its transport
        transport: Transport,
        /// what was being done
        doing: &'static str,
        /// the kernel's answer
        source: io::Error,
    },
    /// not about an address
    #[error("{doing}: {source}")]
    System {
        /// what was being done
        doing: &'static str,
        /// the kernel's answer
        source: io::Error,
    },
}

fn any(address: &SocketAddr) -> &'static str {
    if address.is_ipv4() { "0.0.0.0" } else { "[::]" }
}

impl Config {
    /// How an endpoint's work gets to the threads.
    pub(crate) fn spread(&self, transport: Transport) -> Spread {
        match transport {
            Transport::Udp => self.receive,
            Transport::Tcp => self.accept,
        }
    }

    pub(crate) fn check(&self) -> Result<(), BindError> {
        let wrong = |what: String| Err(BindError::Config(what));
        if self.endpoints.is_empty() && !self.may_lack_endpoints {
            return wrong("no address to listen on; give one".into());
        }
        if self.threads == 0 {
            return wrong("no threads; at least one is needed".into());
        }
        if !(1..=MOST_GROUPS).contains(&self.balance.groups) {
            return wrong(format!("{} flow groups; 1 to {MOST_GROUPS} are possible", self.balance.groups));
        }
        if !(1..=BATCH_DATAGRAMS).contains(&self.batch) {
            return wrong(format!("a batch of {} datagrams; 1 to {BATCH_DATAGRAMS} are possible", self.batch));
        }
        if !(512..=65535).contains(&self.datagram_bytes) {
            return wrong(format!("datagrams of {} bytes; 512 to 65535 are possible", self.datagram_bytes));
        }
        let streams = &self.streams;
        let mut limits = vec![
            streams.connections,
            streams.per_source,
            streams.window_bytes,
            streams.queue_bytes,
            streams.queue_ranges,
            streams.budget_bytes,
        ];
        limits.extend(streams.services.bounds());
        limits.extend(self.endpoints.iter().filter_map(|endpoint| endpoint.window_bytes));
        if limits.contains(&0) {
            return wrong("a stream limit of 0 would refuse everything; 1 is the least".into());
        }
        for (n, endpoint) in self.endpoints.iter().enumerate() {
            let same = |other: &Endpoint| other.address == endpoint.address && other.transport == endpoint.transport;
            if endpoint.address.port() != 0 && self.endpoints[..n].iter().any(same) {
                return Err(BindError::Twice { address: endpoint.address, transport: endpoint.transport });
            }
        }
        Ok(())
    }
}
