//! Runs a service of your own, written against crate `app`, on one of the two engines: kernel sockets, which need no privilege, or our
//! own stack over AF_XDP.
//!
//! ```no_run
//! use app::{Datagram, Listener, Service};
//!
//! struct Echo;
//!
//! impl Service for Echo {
//!     fn datagrams(&mut self, _: base::Instant, _: Listener, burst: &mut [Datagram<'_>]) {
//!         for datagram in burst {
//!             datagram.reply(datagram.question().len());
//!         }
//!     }
//! }
//!
//! let server = embed::Builder::new().udp("127.0.0.1:7007".parse().unwrap()).start(|_thread| Echo).unwrap();
//! println!("answering at {}", server.addresses()[0]);
//! server.until_signal().unwrap();
//! ```
//!
//! [`Builder::interface`] puts the same service on AF_XDP. Listeners are granted here, before any thread runs, and numbered in the order
//! in which they were named; a service cannot open more: to bind takes privileges that a running server should not have, and every thread
//! has to agree. With an interface, what AF_XDP leaves to the kernel at addresses that the kernel has too (fragments, IP options, other
//! interfaces) reaches the same service over kernel sockets, on one more thread. Connections that the service asks for leave from own
//! addresses ([`Builder::own`]) there, over neighbours or the gateway.
//!
//! Left out, and in `simoom` itself: dropping privileges, reload, the control socket, a NIC's table that follows flow groups, a watchdog
//! that takes the queue from a thread that hangs. Flows of several queues are dealt out by a hash of our own, so frames may cross between
//! threads.

#![forbid(unsafe_code)]

mod xdp;

pub use sockets::Transport;

use app::{Cycles, Listener, Service};
use base::counter::{Figure, Report};
use sockets::{BindError, Config, Endpoint};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Why a service could not be started. Nothing runs then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// an address of kernel sockets
    #[error(transparent)]
    Bind(#[from] BindError),
    /// AF_XDP on the interface
    #[error("AF_XDP: {0}")]
    Open(#[from] port_xdp::OpenError),
    /// what was asked for does not go together
    #[error("{0}")]
    Builder(&'static str),
    /// whatever else the kernel said
    #[error("{doing}: {source}")]
    System {
        /// what was being done
        doing: &'static str,
        /// the kernel's answer
        source: io::Error,
    },
}

fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::System { doing, source }
}

/// What a service is to run on.
#[derive(Clone, Debug)]
pub struct Builder {
    listeners: Vec<(Transport, SocketAddr)>,
    threads: usize,
    cpus: Vec<usize>,
    interface: Option<String>,
    own: Vec<(IpAddr, u8)>,
    gateways: Vec<IpAddr>,
    spin: bool,
    connections: usize,
    window_bytes: usize,
    slow_after: Duration,
}

impl Default for Builder {
    fn default() -> Self {
        Builder::new()
    }
}

impl Builder {
    /// Nothing listened on; one thread, asleep while there is nothing to do.
    pub fn new() -> Builder {
        Builder {
            listeners: Vec::new(),
            threads: 1,
            cpus: Vec::new(),
            interface: None,
            own: Vec::new(),
            gateways: Vec::new(),
            spin: false,
            connections: 10_000,
            window_bytes: 64 << 10,
            slow_after: Cycles::SLOW_AFTER,
        }
    }

    fn listen(mut self, transport: Transport, address: SocketAddr) -> Builder {
        self.listeners.push((transport, address));
        self
    }

    /// Takes datagrams at an address. Port 0 lets the kernel choose, without an interface.
    #[must_use]
    pub fn udp(self, address: SocketAddr) -> Builder {
        self.listen(Transport::Udp, address)
    }

    /// Takes connections at an address. Port 0 lets the kernel choose, without an interface.
    #[must_use]
    pub fn tcp(self, address: SocketAddr) -> Builder {
        self.listen(Transport::Tcp, address)
    }

    /// So many threads on kernel sockets; with an interface there is one for each of its queues.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Builder {
        self.threads = threads;
        self
    }

    /// Pins the threads, in turn.
    #[must_use]
    pub fn cpus(mut self, cpus: Vec<usize>) -> Builder {
        self.cpus = cpus;
        self
    }

    /// Serves over AF_XDP on this interface.
    #[must_use]
    pub fn interface(mut self, name: &str) -> Builder {
        self.interface = Some(name.to_owned());
        self
    }

    /// An address that the machine does not have and that is wholly ours, with the bits of its link's prefix: our stack answers ARP,
    /// neighbour discovery and ping for it. Only with an interface.
    #[must_use]
    pub fn own(mut self, address: IpAddr, prefix_bits: u8) -> Builder {
        self.own.push((address, prefix_bits));
        self
    }

    /// The router for peers that are on no link of an own address.
    #[must_use]
    pub fn gateway(mut self, router: IpAddr) -> Builder {
        self.gateways.push(router);
        self
    }

    /// Asks again and again instead of sleeping: the lowest latency, a whole processor a thread.
    #[must_use]
    pub fn spin(mut self, spin: bool) -> Builder {
        self.spin = spin;
        self
    }

    /// Connections of a thread at one time.
    #[must_use]
    pub fn connections(mut self, connections: usize) -> Builder {
        self.connections = connections;
        self
    }

    /// Bytes that a peer may send before the service gives some back.
    #[must_use]
    pub fn window_bytes(mut self, bytes: usize) -> Builder {
        self.window_bytes = bytes;
        self
    }

    /// A cycle that takes so long counts as slow ([`Server::cycles`]).
    #[must_use]
    pub fn slow_after(mut self, limit: Duration) -> Builder {
        self.slow_after = limit;
        self
    }

    /// Starts the threads; each makes its service with `make(thread)`, again after a panic. Their numbers begin with 0: on kernel sockets in
    /// any order, over AF_XDP in that of the queues, and behind them the thread on kernel sockets, if there is one.
    ///
    /// # Errors
    /// An address or an interface that cannot be had, and why; nothing runs then.
    pub fn start<S: Service + 'static>(
        self,
        make: impl Fn(usize) -> S + Send + Sync + 'static,
    ) -> Result<Server, Error> {
        self.check()?;
        let make = Arc::new(make);
        let Some(interface) = self.interface.clone() else {
            let sockets = start(self.bind(true)?, 0, make)?;
            let addresses = sockets.as_ref().map(|sockets| sockets.addresses().to_vec()).unwrap_or_default();
            return Ok(Server { addresses, xdp: None, sockets });
        };
        // first the sockets: a port in use is found before anything is attached
        let bound = self.bind(false)?;
        let xdp = xdp::start(&self, &interface, make.clone())?;
        let sockets = start(bound, xdp.threads(), make)?;
        let addresses = self.listeners.iter().map(|(_, address)| *address).collect();
        Ok(Server { addresses, xdp: Some(xdp), sockets })
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |what| Err(Error::Builder(what));
        if self.interface.is_none() && !(self.own.is_empty() && self.gateways.is_empty()) {
            return wrong("own addresses and gateways are for an interface; on kernel sockets the kernel has both");
        }
        if self.interface.is_some() && self.listeners.iter().any(|(_, address)| address.port() == 0) {
            return wrong("over AF_XDP a port is named, not chosen by the kernel");
        }
        Ok(())
    }

    /// The engine over kernel sockets, to be started; None when it has nothing to do.
    fn bind(&self, alone: bool) -> Result<Option<sockets::Engine>, Error> {
        let endpoint = |(n, (transport, address)): (usize, &(Transport, SocketAddr))| Endpoint {
            listener: Listener(n as u16),
            address: *address,
            transport: *transport,
            window_bytes: Some(self.window_bytes),
            backlog: None,
        };
        let kernels = |(_, (_, address)): &(usize, &(Transport, SocketAddr))| {
            self.own.iter().all(|(own, _)| *own != address.ip())
        };
        let endpoints: Vec<_> = self.listeners.iter().enumerate().filter(kernels).map(endpoint).collect();
        if endpoints.is_empty() && !alone {
            return Ok(None);
        }
        let default = sockets::Streams::default();
        let refuse_until_started = if alone { Vec::new() } else { endpoints.iter().map(|it| it.address).collect() };
        let engine = sockets::Engine::bind(Config {
            endpoints,
            threads: if alone { self.threads } else { 1 },
            cpus: if alone { self.cpus.clone() } else { Vec::new() },
            idle: if self.spin && alone { sockets::Idle::Spin } else { sockets::Idle::default() },
            datagram_bytes: 65_535,
            streams: sockets::Streams {
                connections: self.connections,
                per_source: self.connections,
                window_bytes: self.window_bytes,
                ..default
            },
            slow_after: self.slow_after,
            may_lack_endpoints: true,
            refuse_until_started,
            ..Config::default()
        })?;
        Ok(Some(engine))
    }
}

/// Starts the threads on kernel sockets, numbered behind so many others.
fn start<S: Service + 'static>(
    engine: Option<sockets::Engine>,
    others: usize,
    make: Arc<impl Fn(usize) -> S + Send + Sync + 'static>,
) -> Result<Option<sockets::Running>, Error> {
    let started = engine.map(|engine| engine.start(move |thread| make(others + thread)));
    started.transpose().map_err(system("starting threads on kernel sockets"))
}

/// A service at work. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<SocketAddr>,
    /// first to go: the kernel has the traffic again before its sockets close
    xdp: Option<xdp::Running>,
    sockets: Option<sockets::Running>,
}

impl Server {
    /// The addresses of the listeners, in the order in which they were named, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What AF_XDP became on the interface; None on kernel sockets.
    pub fn described(&self) -> Option<&str> {
        self.xdp.as_ref().map(xdp::Running::described)
    }

    /// Makes every thread begin a cycle, so that sleeping ones take what was published.
    pub fn wake(&self) {
        if let Some(xdp) = &self.xdp {
            xdp.wake();
        }
        if let Some(sockets) = &self.sockets {
            sockets.wake();
        }
    }

    /// How long each thread's service keeps it.
    pub fn cycles(&self) -> Vec<Arc<Cycles>> {
        let xdp = self.xdp.iter().flat_map(xdp::Running::cycles);
        xdp.chain(self.sockets.iter().flat_map(sockets::Running::cycles)).cloned().collect()
    }

    /// Shows every counter of the engines, thread by thread: figures of one name and label are to be added up.
    pub fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        if let Some(xdp) = &self.xdp {
            xdp.report(show);
        }
        if let Some(sockets) = &self.sockets {
            sockets.counters().for_each(|counters| counters.report(show));
        }
        self.cycles().iter().for_each(|cycles| cycles.report(show));
    }

    /// Waits for SIGINT or SIGTERM, then stops.
    ///
    /// # Errors
    /// The kernel's, when the handlers cannot be had.
    pub fn until_signal(self) -> io::Result<()> {
        use signal_hook::consts::{SIGINT, SIGTERM};
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
        signals.forever().next();
        self.stop();
        Ok(())
    }

    /// Stops the threads and waits for them; open connections are reset.
    pub fn stop(self) {
        let Server { xdp, sockets, .. } = self;
        if let Some(xdp) = xdp {
            xdp.stop();
        }
        if let Some(sockets) = sockets {
            sockets.stop();
        }
    }
}
