//! Connections that the service asks for.
//!
//! The socket is made and connected in the call, without waiting; what became of it is told in the connection's turn, when the kernel
//! has said so or the time for it is over. Until then it has a place and a handle like any other.

use super::{Conn, Limits, Phase, Table, WATCHED};
use crate::{options, sys};
use app::{Addresses, CallError, Connection, DeadReason, Service};
use mio::net::TcpStream;
use mio::{Registry, Token};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

/// What connections are asked for with.
pub(crate) struct Asks {
    /// watches their sockets
    pub(crate) registry: Registry,
    /// tokens of connections begin here
    pub(crate) first_token: usize,
}

/// How a connection begins.
enum Begun {
    /// the handshake is over, or under way
    Connecting,
    Failed(DeadReason),
}

impl Table {
    /// Begins a connection; what becomes of it is told later.
    pub(super) fn ask(
        &mut self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        cookie: u64,
    ) -> Result<Connection, CallError> {
        app::judge_ends(local, remote)?;
        let index = self.next_index();
        let asks = self.asks.as_ref().ok_or(CallError::Unsupported)?;
        if self.is_full() {
            return Err(CallError::NoResources);
        }
        let (socket, begun) = begin(remote, local, &self.limits)?;
        let mut stream = TcpStream::from_std(socket.into());
        let token = Token(asks.first_token + index as usize);
        asks.registry.register(&mut stream, token, WATCHED).map_err(|_| CallError::NoResources)?;
        let unspecified = if remote.is_ipv4() {
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
        } else {
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))
        };
        let addresses = Addresses { local: stream.local_addr().unwrap_or(unspecified), peer: remote };
        let phase = match begun {
            Begun::Connecting => Phase::Asking,
            Begun::Failed(reason) => Phase::Failed(reason),
        };
        // the kernel says when there is something to look at
        let conn = Conn {
            cookie,
            phase,
            readable: false,
            writable: false,
            ..Conn::new(stream, addresses, self.limits.window_bytes)
        };
        let handle = self.insert(conn);
        debug_assert_eq!(handle.index, index);
        self.counters.connects.add(1);
        self.schedule(handle, self.now + self.limits.connect_timeout);
        self.make_ready(handle.index);
        Ok(handle)
    }

    /// Learns what became of a connection that was asked for, and tells the service; whether there is one to go on with.
    pub(super) fn learn<S: Service>(&mut self, handle: Connection, service: &mut S) -> bool {
        let now = self.now;
        let Ok(conn) = self.conn(handle) else { return false };
        let outcome = match conn.phase {
            Phase::Asking => match outcome(&conn.stream) {
                Some(outcome) => outcome,
                None => {
                    (conn.writable, conn.hup) = (false, false);
                    return false;
                }
            },
            Phase::Failed(reason) => Err(reason),
            _ => return true,
        };
        if let Err(reason) = outcome {
            self.end(handle, reason, false);
            return false;
        }
        (conn.phase, conn.readable, conn.writable, conn.deadline) = (Phase::Open, true, true, None);
        if let Ok(local) = conn.stream.local_addr() {
            conn.addresses.local = local;
        }
        let cookie = conn.cookie;
        self.counters.connected.add(1);
        service.connected(now, self, cookie, Ok(handle));
        true
    }
}

/// A socket that connects, or has found that it cannot.
fn begin(remote: SocketAddr, local: Option<SocketAddr>, limits: &Limits) -> Result<(Socket, Begun), CallError> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(remote), kind, Some(Protocol::TCP)).map_err(refusal)?;
    // as those that are accepted have them
    options::of_streams(&socket, limits).map_err(refusal)?;
    if let Some(local) = local {
        if local.port() == 0 {
            // the port is chosen when the peer is known, so one port serves for several peers; without it there are fewer
            let _ = sys::set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
        } else {
            // what is in TIME_WAIT does not hold the port
            socket.set_reuse_address(true).map_err(refusal)?;
        }
        socket.bind(&SockAddr::from(local)).map_err(refusal)?;
    }
    let begun = match socket.connect(&SockAddr::from(remote)) {
        Ok(()) => Begun::Connecting,
        Err(error) => match error.raw_os_error() {
            Some(libc::EINPROGRESS | libc::EINTR) => Begun::Connecting,
            // every port to this peer is taken
            Some(libc::EADDRNOTAVAIL | libc::EADDRINUSE) => return Err(CallError::InUse),
            Some(libc::EINVAL | libc::EAFNOSUPPORT) => return Err(CallError::NoSuchAddress),
            Some(libc::ENOBUFS | libc::ENOMEM) => return Err(CallError::NoResources),
            _ => Begun::Failed(why(&error)),
        },
    };
    Ok((socket, begun))
}

/// Why a socket cannot be had.
fn refusal(error: io::Error) -> CallError {
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => CallError::InUse,
        Some(libc::EADDRNOTAVAIL | libc::EACCES | libc::EINVAL | libc::EAFNOSUPPORT) => CallError::NoSuchAddress,
        _ => CallError::NoResources,
    }
}

/// What became of it; None while nothing did.
fn outcome(stream: &TcpStream) -> Option<Result<(), DeadReason>> {
    match stream.take_error() {
        Ok(None) => match stream.peer_addr() {
            Ok(_) => Some(Ok(())),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => None,
            Err(error) => Some(Err(why(&error))),
        },
        Ok(Some(error)) | Err(error) => Some(Err(why(&error))),
    }
}

fn why(error: &io::Error) -> DeadReason {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED) => DeadReason::Refused,
        Some(libc::ETIMEDOUT) => DeadReason::TimedOut,
        Some(
            libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN | libc::ENETDOWN | libc::EACCES | libc::EPERM,
        ) => DeadReason::Unreachable,
        _ => DeadReason::Reset,
    }
}
