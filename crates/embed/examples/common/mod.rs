//! What the examples share: the options that say where a service runs.

use app::{Addresses, Service};
use clap::Args;
use embed::Builder;
use guard::{client, jail};
use std::error::Error;
use std::net::{IpAddr, SocketAddr};

/// Where to serve.
#[derive(Args, Debug)]
pub(crate) struct Place {
    /// Serves over AF_XDP on this interface; without it on kernel sockets
    #[arg(long)]
    interface: Option<String>,
    /// An address that nobody has, with its prefix (192.0.2.7/24), to be ours; with --interface
    #[arg(long, value_parser = prefixed)]
    own: Vec<(IpAddr, u8)>,
    /// The router for what is not on the link of an own address
    #[arg(long)]
    gateway: Vec<IpAddr>,
    /// Threads on kernel sockets; with --interface one for each queue
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

fn prefixed(text: &str) -> Result<(IpAddr, u8), String> {
    let (addr, bits) = text.split_once('/').ok_or("an address with its prefix, such as 192.0.2.7/24")?;
    let addr: IpAddr = addr.parse().map_err(|error| format!("{error}"))?;
    let most = if addr.is_ipv4() { 32 } else { 128 };
    let bits = bits.parse().ok().filter(|bits| *bits <= most).ok_or(format!("a prefix of 0 to {most} bits"))?;
    Ok((addr, bits))
}

impl Place {
    /// A builder for the place.
    pub(crate) fn builder(&self) -> Builder {
        let mut builder = Builder::new().threads(self.threads);
        if let Some(interface) = &self.interface {
            builder = builder.interface(interface);
        }
        builder = self.own.iter().fold(builder, |builder, (addr, bits)| builder.own(*addr, *bits));
        self.gateway.iter().fold(builder, |builder, addr| builder.gateway(*addr))
    }
}

/// Runs a service until it is told to end: for a builder, or as a protected application where `simoom run` has started this program,
/// whose listeners are then the ones that count.
#[allow(dead_code, reason = "the client ends by itself")]
pub(crate) fn run<S: Service + 'static>(
    builder: Builder,
    make: impl Fn(usize) -> S + Send + Sync + 'static,
) -> Result<(), Box<dyn Error>> {
    let Some(threads) = client::attach()? else {
        let server = builder.start(make)?;
        say_ready(&server);
        return Ok(server.until_signal()?);
    };
    // what the program needs it has
    jail::inner()?;
    let make = &make;
    std::thread::scope(|scope| {
        let serve = |(n, attached)| scope.spawn(move || client::run(attached, make(n)));
        let all: Vec<_> = threads.iter().enumerate().map(serve).collect();
        let ended =
            all.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(std::io::Error::other("a panic"))));
        ended.collect::<Result<Vec<()>, _>>()
    })?;
    Ok(())
}

/// Whether a datagram may come from a server, another one or this one itself: if either answers what the other has answered, they never stop.
/// Ports below 1024 are those of services (RFC 6335 section 6); one that serves at several ports has to refuse each of them, as `simoom
/// echo` does.
#[allow(dead_code, reason = "for those that answer datagrams")]
pub(crate) fn may_be_a_server(ends: &Addresses) -> bool {
    ends.peer.port() < 1024 || ends.peer.port() == ends.local.port()
}

/// Says where a server is to be reached, one line that tests read, too.
#[allow(dead_code, reason = "the client listens nowhere")]
pub(crate) fn say_ready(server: &embed::Server) {
    let at: Vec<String> = server.addresses().iter().map(SocketAddr::to_string).collect();
    println!("ready at {}", at.join(" "));
    if let Some(described) = server.described() {
        eprintln!("{described}");
    }
}
