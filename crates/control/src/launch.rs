//! The engines: opened before privileges go, started after, stopped together.
//!
//! Kernel sockets serve every listener that the kernel has an address for. With an interface, AF_XDP takes the UDP of the
//! same listeners, and what it leaves to the kernel (fragments, IP options, TCP) finds the sockets there.

use crate::config::Settings;
use crate::error::{Error, reason};
use crate::metrics::Registry;
use crate::service;
use crate::words::{Backend, Cpus, Idle};
use app::Listener;
use base::publish::Publisher;
use dns::Tables;
use sockets::{BindError, Endpoint, Engine, Streams, Transport};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Refuses what can be seen to be wrong before anything is read or opened.
///
/// # Errors
/// A processor that does not exist.
pub(crate) fn check(settings: &Settings) -> Result<(), Error> {
    let (Some(cpus), Some(online)) = (&settings.cpus, online()) else { return Ok(()) };
    match cpus.iter().find(|cpu| !online.0.contains(cpu)) {
        None => Ok(()),
        Some(cpu) => {
            let place = settings.file.as_ref().map_or("--cpus".to_owned(), |file| format!("{file}: dataplane.cpus"));
            Err(Error::input(format!("{place}: there is no processor {cpu}; see /sys/devices/system/cpu/online")))
        }
    }
}

fn online() -> Option<Cpus> {
    std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?.trim().parse().ok()
}

/// Everything bound, nothing started.
#[derive(Debug)]
pub(crate) struct Opened {
    sockets: Option<Engine>,
    socket_threads: usize,
    fell_back: bool,
}

/// The listeners that can be had: those that nobody asked for may be left out.
fn listeners(settings: &Settings) -> Vec<(Listener, SocketAddr)> {
    let has_ipv6 = Path::new("/proc/net/if_inet6").exists();
    let wanted = |address: &SocketAddr| has_ipv6 || address.is_ipv4() || !settings.listen_by_default;
    let numbered = settings.listen.iter().enumerate().map(|(n, address)| (Listener(n as u16), *address));
    numbered.filter(|(_, address)| wanted(address)).collect()
}

/// Binds every socket.
///
/// # Errors
/// An address that cannot be had, and why.
pub(crate) fn open(settings: &Settings) -> Result<Opened, Error> {
    // beside AF_XDP the sockets get what is rare
    let alone = settings.backend == Backend::Sockets;
    let socket_threads = match &settings.cpus {
        _ if !alone => 1,
        Some(cpus) => cpus.len(),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let sockets = open_sockets(settings, alone, socket_threads)?;
    Ok(Opened { sockets, socket_threads, fell_back: false })
}

fn open_sockets(settings: &Settings, alone: bool, threads: usize) -> Result<Option<Engine>, Error> {
    let is_own = |address: &SocketAddr| settings.own.iter().any(|own| own.0.address == address.ip());
    let endpoints: Vec<_> = listeners(settings)
        .into_iter()
        .filter(|(_, address)| !is_own(address))
        .flat_map(|(listener, address)| {
            [Transport::Udp, Transport::Tcp].map(|transport| Endpoint { listener, address, transport })
        })
        .collect();
    if endpoints.is_empty() {
        return Ok(None);
    }
    let config = sockets::Config {
        endpoints,
        threads,
        cpus: if alone { settings.cpus.clone().unwrap_or_default() } else { Vec::new() },
        batch: settings.batch,
        idle: match settings.idle {
            _ if !alone => sockets::Idle::Block,
            Idle::Spin => sockets::Idle::Spin,
            Idle::Adaptive => sockets::Idle::Adaptive,
            Idle::Block => sockets::Idle::Block,
        },
        streams: Streams { connections: settings.dns.tcp_connections.div_ceil(threads), ..Streams::default() },
        ..sockets::Config::default()
    };
    Engine::bind(config).map(Some).map_err(|error| match error {
        BindError::System { .. } => Error::environment(error.to_string()),
        BindError::NoSuchAddress { .. } if !settings.interfaces.is_empty() => {
            Error::input(format!("{error}; or give --own if simoom is to answer ARP and NDP for it"))
        }
        _ => Error::input(error.to_string()),
    })
}

impl Opened {
    /// Starts every thread.
    ///
    /// # Errors
    /// The kernel's; what was started is stopped.
    pub(crate) fn start(
        self,
        settings: &Settings,
        tables: &Arc<Publisher<Tables>>,
        registry: &Arc<Registry>,
    ) -> Result<Running, Error> {
        let no_entropy = |error| Error::environment(format!("/dev/urandom: {}; mount /dev", reason(&error)));
        let options = service::options(settings).map_err(no_entropy)?;
        let mut threads = 0;
        let mut listen = Vec::new();
        let sockets = match self.sockets {
            None => None,
            Some(engine) => {
                let services = service::Maker::new(&options, self.socket_threads, true, tables, registry);
                let running = engine
                    .start(move |_| services.make())
                    .map_err(|error| Error::environment(format!("sockets: {}; see --cpus", reason(&error))))?;
                for counters in running.counters() {
                    threads += 1;
                    registry.add(counters.clone());
                }
                listen.extend(running.addresses().iter().map(ToString::to_string));
                Some(running)
            }
        };
        listen.dedup();
        Ok(Running { engines: Mutex::new(Engines { sockets }), threads, listen, fell_back: self.fell_back })
    }
}

#[derive(Debug)]
struct Engines {
    sockets: Option<sockets::Running>,
}

/// The engines at work.
#[derive(Debug)]
pub(crate) struct Running {
    engines: Mutex<Engines>,
    threads: usize,
    listen: Vec<String>,
    fell_back: bool,
}

impl Running {
    fn engines(&self) -> MutexGuard<'_, Engines> {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sleeping threads begin a cycle.
    pub(crate) fn wake(&self) {
        if let Some(sockets) = &self.engines().sockets {
            sockets.wake();
        }
    }

    /// Serving threads.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Where it listens.
    pub(crate) fn listen(&self) -> Vec<String> {
        self.listen.clone()
    }

    /// In words, what carries the packets.
    pub(crate) fn backend(&self) -> String {
        format!("sockets, {} threads", self.threads)
    }

    /// Whether AF_XDP was wanted and could not be had.
    pub(crate) fn fell_back(&self) -> bool {
        self.fell_back
    }

    /// Stops every thread.
    pub(crate) fn stop(&self) {
        let sockets = self.engines().sockets.take();
        if let Some(sockets) = sockets {
            sockets.stop();
        }
    }
}
