//! Making the sockets, all of them before anything runs.

use crate::arrivals;
use crate::config::{BindError, Config, Endpoint, Spread, Transport};
use crate::{options, sys};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

/// Linux's value 5 for IP_MTU_DISCOVER and IPV6_MTU_DISCOVER: answers ignore the path MTU that (spoofable) ICMP messages
/// taught the kernel and are fragmented at the interface's MTU, as RFC 9715 section 3.1 advises servers.
const PMTUDISC_OMIT: i32 = 5;

/// A socket that is bound already.
struct Held {
    socket: Socket,
    address: SocketAddr,
    transport: Transport,
    /// it is one of a reuseport group
    shared: bool,
}

/// Sockets that another process has bound and left to this one.
pub(crate) struct Inherited(Vec<Held>);

impl Inherited {
    /// Those of these that the configuration has an endpoint for. The others are closed at once: one may hold a port that is to be had in
    /// another way.
    pub(crate) fn new(descriptors: Vec<OwnedFd>, config: &Config) -> Inherited {
        let held = descriptors.into_iter().filter_map(|descriptor| Held::look(descriptor.into()));
        Inherited(held.filter(|held| config.endpoints.iter().any(|endpoint| held.is_for(config, endpoint))).collect())
    }

    /// The first of those that are for `endpoint`, and at `address` where that has a port already.
    fn take(&mut self, config: &Config, endpoint: &Endpoint, address: SocketAddr) -> Option<Socket> {
        let is_there = |held: &Held| address.port() == 0 || held.address == address;
        let at = self.0.iter().position(|held| held.is_for(config, endpoint) && is_there(held))?;
        Some(self.0.remove(at).socket)
    }
}

impl Held {
    /// None where it is no socket of ours.
    fn look(socket: Socket) -> Option<Held> {
        let address = socket.local_addr().ok()?.as_socket()?;
        let transport = match socket.r#type().ok()? {
            Type::DGRAM => Transport::Udp,
            Type::STREAM => Transport::Tcp,
            _ => return None,
        };
        let shared = socket.reuse_port().ok()?;
        Some(Held { socket, address, transport, shared })
    }

    /// Whether the endpoint's sockets are like this one.
    fn is_for(&self, config: &Config, endpoint: &Endpoint) -> bool {
        let is = |it: &Endpoint| it.transport == self.transport && it.address == self.address;
        let chosen = endpoint.address.port() == 0
            && endpoint.transport == self.transport
            && endpoint.address.ip() == self.address.ip()
            && !config.endpoints.iter().any(is);
        (is(endpoint) || chosen) && self.shared == (count(config, endpoint) > 1)
    }
}

/// Sockets of an endpoint: one for every thread, or one for all.
fn count(config: &Config, endpoint: &Endpoint) -> usize {
    if config.spread(endpoint.transport) == Spread::Shared { 1 } else { config.threads }
}

/// Binds the sockets of `endpoint`, as a reuseport group when there are several; those that were inherited are used again.
pub(crate) fn group(config: &Config, endpoint: &Endpoint, inherited: &mut Inherited) -> Result<Vec<Socket>, BindError> {
    let count = count(config, endpoint);
    let mut sockets = Vec::with_capacity(count);
    let mut address = endpoint.address;
    while sockets.len() < count
        && let Some(socket) = inherited.take(config, endpoint, address)
    {
        set_options(config, endpoint, &socket, address)?;
        address = local(&socket, endpoint)?;
        arrivals::anywhere(&socket);
        sockets.push(socket);
    }
    if let Some(socket) = sockets.first() {
        // The program of whoever had them would go on dealing flows out by a table that nobody keeps. That there is none is no error.
        let _ = sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_DETACH_REUSEPORT_BPF, 0);
    }
    if count > 1 && sockets.is_empty() && endpoint.address.port() != 0 {
        // a reuseport group would be joined silently by another program of the same user; a plain socket is refused
        drop(one(config, endpoint, endpoint.address, false)?);
    }
    while sockets.len() < count {
        let socket = one(config, endpoint, address, count > 1)?;
        // with port 0 the first socket chose, and the others follow
        address = local(&socket, endpoint)?;
        sockets.push(socket);
    }
    if endpoint.transport == Transport::Tcp {
        for socket in &sockets {
            // only a listener is sure to have the port for itself
            socket.listen(backlog(config, endpoint)).map_err(|error| explain(endpoint, "listen", error))?;
            if config.refuse_until_started.contains(&endpoint.address) && endpoint.address.port() != 0 {
                // it stays bound, unless the kernel chose the port, and can listen again
                socket.shutdown(Shutdown::Read).map_err(|error| explain(endpoint, "shutdown", error))?;
            }
        }
    }
    Ok(sockets)
}

/// Connections that the kernel holds for an endpoint.
pub(crate) fn backlog(config: &Config, endpoint: &Endpoint) -> i32 {
    endpoint.backlog.unwrap_or(config.streams.backlog)
}

/// The address that a socket of `endpoint` has.
pub(crate) fn local(socket: &Socket, endpoint: &Endpoint) -> Result<SocketAddr, BindError> {
    let name = socket.local_addr().map_err(|error| explain(endpoint, "getsockname", error))?;
    Ok(name.as_socket().unwrap_or(endpoint.address))
}

fn one(config: &Config, endpoint: &Endpoint, address: SocketAddr, shared: bool) -> Result<Socket, BindError> {
    let (kind, protocol) = match endpoint.transport {
        Transport::Udp => (Type::DGRAM, Protocol::UDP),
        Transport::Tcp => (Type::STREAM, Protocol::TCP),
    };
    let make = || -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), kind.nonblocking().cloexec(), Some(protocol))?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_reuse_port(shared)?;
        if endpoint.transport == Transport::Tcp {
            // connections of an earlier run in TIME_WAIT do not hold the port
            socket.set_reuse_address(true)?;
        }
        Ok(socket)
    };
    let socket = make().map_err(|error| explain(endpoint, "making the socket", error))?;
    set_options(config, endpoint, &socket, address)?;
    socket.bind(&SockAddr::from(address)).map_err(|error| explain(endpoint, "bind", error))?;
    Ok(socket)
}

/// What may be set on a socket that is bound, too.
fn set_options(config: &Config, endpoint: &Endpoint, socket: &Socket, address: SocketAddr) -> Result<(), BindError> {
    match endpoint.transport {
        Transport::Udp => udp_options(config, socket, address),
        Transport::Tcp => options::of_streams(socket, &config.streams),
    }
    .map_err(|error| explain(endpoint, "making the socket", error))?;
    if config.busy_poll_us > 0 && endpoint.transport == Transport::Udp {
        sys::set_busy_poll(socket.as_fd(), config.busy_poll_us)
            .map_err(|source| BindError::System { doing: "busy polling, which needs CAP_NET_ADMIN", source })?;
    }
    Ok(())
}

fn udp_options(config: &Config, socket: &Socket, address: SocketAddr) -> io::Result<()> {
    let fd = socket.as_fd();
    let bytes = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    // past the system's limit only with CAP_NET_ADMIN; without it as far as the limit goes
    if sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes(config.receive_buffer_bytes)).is_err() {
        socket.set_recv_buffer_size(config.receive_buffer_bytes)?;
    }
    if sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes(config.send_buffer_bytes)).is_err() {
        socket.set_send_buffer_size(config.send_buffer_bytes)?;
    }
    let (level, discover, info, class) = match address {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PKTINFO, libc::IP_RECVTOS),
        SocketAddr::V6(_) => {
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_RECVPKTINFO, libc::IPV6_RECVTCLASS)
        }
    };
    sys::set_option(fd, level, discover, PMTUDISC_OMIT)?;
    if address.ip().is_unspecified() {
        sys::set_option(fd, level, info, 1)?;
    }
    if config.ecn {
        sys::set_option(fd, level, class, 1)?;
    }
    Ok(())
}

fn explain(endpoint: &Endpoint, doing: &'static str, source: io::Error) -> BindError {
    let (address, transport) = (endpoint.address, endpoint.transport);
    match source.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse { address, transport },
        io::ErrorKind::PermissionDenied => BindError::NotPermitted { address, transport },
        io::ErrorKind::AddrNotAvailable => BindError::NoSuchAddress { address, transport },
        _ => BindError::Other { address, transport, doing, source },
    }
}
