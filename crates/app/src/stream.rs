//! The stream half's calls.

use crate::{Addresses, Connection, Content, Listener, ObjectId};
use base::Instant;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Ranges that one [`Streams::sendv`] takes at most.
pub const SENDV_RANGES: usize = 16;

/// Bytes to send.
#[derive(Clone, Copy, Debug)]
pub enum Range<'a> {
    /// A part of an immutable object. It is not copied: the engine holds the version until the peer (on kernel sockets: the
    /// kernel) has taken the last byte.
    Object {
        /// the version it stands in
        content: &'a Arc<Content>,
        /// which object
        object: ObjectId,
        /// the first byte's offset in the object
        start: u64,
        /// how many bytes
        bytes: u64,
    },
    /// Bytes of the caller's, copied within the connection's quota.
    Owned(&'a [u8]),
}

impl Range<'_> {
    /// How many bytes it has.
    #[inline]
    pub fn bytes(&self) -> u64 {
        match self {
            Range::Object { bytes, .. } => *bytes,
            Range::Owned(bytes) => bytes.len() as u64,
        }
    }

    /// Whether it lies inside its object.
    #[inline]
    pub fn is_valid(&self) -> bool {
        match self {
            Range::Object { content, object, start, bytes } => content
                .get(*object)
                .is_some_and(|all| start.checked_add(*bytes).is_some_and(|end| end <= all.len() as u64)),
            Range::Owned(_) => true,
        }
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeadReason {
    /// both sides finished
    Closed,
    /// the peer reset it, or the path failed
    Reset,
    /// we aborted it
    Aborted,
    /// it made no progress for too long
    TimedOut,
    /// the engine ran out of what the connection needs
    NoResources,
    /// it was asked for, and nobody listens there
    Refused,
    /// it was asked for, and there is no way to the peer: no neighbour or route, or a router said so
    Unreachable,
    /// it was asked for by an application in a process of its own, whose calls are not answered at once, and the engine refused the
    /// call for this reason
    Denied(CallError),
}

/// A call that cannot be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallError {
    /// the handle is not a live connection of this owner
    NoConnection,
    /// the connection is not in a state for this call (accepted twice, data after close)
    WrongState,
    /// more was given back than was delivered
    TooMuch,
    /// a range that is not inside its object
    NoSuchRange,
    /// the address cannot be connected from or to
    NoSuchAddress,
    /// the port is taken, or all of them are
    InUse,
    /// the flow is of another thread's, which its packets come to; it would have to be asked there
    Elsewhere,
    /// the engine has no room for it
    NoResources,
    /// nobody knows the way to the peer
    Unreachable,
    /// the datagram is longer than can be sent
    TooLong,
    /// the operator does not permit this application to begin anything with that peer
    Forbidden,
    /// the engine does not have this call
    Unsupported,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CallError::NoConnection => "no such connection",
            CallError::WrongState => "the connection is not in a state for this call",
            CallError::TooMuch => "more bytes given back than were delivered",
            CallError::NoSuchRange => "the range is not inside its object",
            CallError::NoSuchAddress => "no such address to connect from or to",
            CallError::InUse => "the port is taken",
            CallError::Elsewhere => "the flow belongs to another thread",
            CallError::NoResources => "the engine has no room for it",
            CallError::Unreachable => "the way to the peer is not known",
            CallError::TooLong => "the datagram is longer than can be sent",
            CallError::Forbidden => "the operator does not permit it",
            CallError::Unsupported => "the engine does not have this call",
        })
    }
}

impl std::error::Error for CallError {}

/// Whether two ends can be those of a flow that the caller begins, as far as the addresses alone tell; engines share it, so that they
/// agree. A local address or port that is zero is one that the engine chooses.
///
/// # Errors
/// [`CallError::NoSuchAddress`]: two families, or a peer that no packet can go to or that is not one host.
pub fn judge_ends(local: Option<SocketAddr>, peer: SocketAddr) -> Result<(), CallError> {
    let no_host = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_multicast() || ip == Ipv4Addr::BROADCAST,
        IpAddr::V6(ip) => ip.is_multicast() || ip.to_ipv4_mapped().is_some(),
    };
    let sound = peer.port() != 0
        && !peer.ip().is_unspecified()
        && !no_host(peer.ip())
        && local.is_none_or(|local| local.is_ipv4() == peer.is_ipv4() && !no_host(local.ip()));
    if sound { Ok(()) } else { Err(CallError::NoSuchAddress) }
}

/// What a service can do. The engine implements it; nothing here waits.
///
/// The last three calls have defaults that say [`CallError::Unsupported`], for engines in tests.
pub trait Streams {
    /// Takes a connection that knocked; later events carry `cookie`.
    ///
    /// # Errors
    /// No such connection, or it was answered before.
    fn accept(&mut self, connection: Connection, cookie: u64) -> Result<(), CallError>;

    /// Refuses a connection that knocked.
    ///
    /// # Errors
    /// No such connection, or it was answered before.
    fn reject(&mut self, connection: Connection) -> Result<(), CallError>;

    /// Queues ranges in their order, whatever the peer's window, and returns how many bytes were taken: all, or fewer when a
    /// bound was reached (the number of ranges queued, the quota of owned bytes, [`SENDV_RANGES`] a call). Nothing behind
    /// the first byte that was not taken is queued; it may be offered again after `sent`.
    ///
    /// # Errors
    /// No such connection, it was closed for writing, or a range is not inside its object; nothing is queued then.
    fn sendv(&mut self, connection: Connection, ranges: &[Range<'_>]) -> Result<u64, CallError>;

    /// Queues a copy of `bytes` within the connection's quota; returns how many were taken, all or fewer. The rest may be
    /// offered again after `sent`.
    ///
    /// # Errors
    /// No such connection, or it was closed for writing.
    fn send(&mut self, connection: Connection, bytes: &[u8]) -> Result<usize, CallError> {
        self.sendv(connection, &[Range::Owned(bytes)]).map(|taken| taken as usize)
    }

    /// Owned bytes that [`Streams::sendv`] would take now; 0 for a connection that is gone.
    fn room(&self, connection: Connection) -> usize;

    /// Opens the receive window by `bytes` that were delivered before.
    ///
    /// # Errors
    /// No such connection, or more than was delivered.
    fn recv_done(&mut self, connection: Connection, bytes: usize) -> Result<(), CallError>;

    /// Finishes writing after what is queued was sent; reading goes on. The connection ends, with `dead`, when the peer has
    /// finished too.
    ///
    /// # Errors
    /// No such connection, or it was closed before.
    fn shutdown(&mut self, connection: Connection) -> Result<(), CallError>;

    /// Ends the connection after what is queued was sent; the engine bounds how long it lingers.
    ///
    /// # Errors
    /// No such connection.
    fn close(&mut self, connection: Connection) -> Result<(), CallError>;

    /// Ends the connection at once, with a reset.
    ///
    /// One that was asked for and is not there yet is given up: [`connected`](crate::Service::connected) says so.
    ///
    /// # Errors
    /// No such connection.
    fn abort(&mut self, connection: Connection) -> Result<(), CallError>;

    /// Sets the connection's one timer, replacing an earlier time; None clears it.
    ///
    /// # Errors
    /// No such connection.
    fn timer_set(&mut self, connection: Connection, at: Option<Instant>) -> Result<(), CallError>;

    /// Asks `remote` for a connection, from `local` if that is given (its port may be zero), else from an address and a port that the
    /// engine chooses. What becomes of it comes as one [`connected`](crate::Service::connected) with this cookie, never during the
    /// call; until then the handle is good for [`Streams::abort`] alone. Later events carry `cookie`, too. The peer may send as much
    /// before some is given back as the engine is configured to allow.
    ///
    /// On our own stack connections leave from own addresses, over the neighbour that ARP or neighbour discovery finds: the remote
    /// host if it is on the link, else the gateway. Of several threads each is given ports whose answers come to it.
    ///
    /// # Errors
    /// [`CallError::NoSuchAddress`]: a remote address or port that nobody can have, two families, or a local address that is not ours
    /// (on our own stack also one that is not in use yet). [`CallError::InUse`]: the local port is taken, or all are.
    /// [`CallError::Elsewhere`]: the answers to this local port would come to another thread. [`CallError::NoResources`]: no room.
    /// [`CallError::Forbidden`]: a protected application, whose operator does not permit this peer. A protected application is told what
    /// only the engine knows (the local end) by `connected`, as [`DeadReason::Denied`].
    fn connect(&mut self, remote: SocketAddr, local: Option<SocketAddr>, cookie: u64) -> Result<Connection, CallError> {
        let _ = (remote, local, cookie);
        Err(CallError::Unsupported)
    }

    /// Sends a datagram from a listener's address and port to a peer, asked for or not; `bytes` are copied. The local end is that of the
    /// listener, with the address that a question came to where it listens on every one. Like every datagram it may be lost, also here,
    /// when the way is not found in time or the device takes no more.
    ///
    /// On our own stack the way to a peer is known if a question of its was left unanswered lately, or is found by ARP and neighbour
    /// discovery if the local address is an own one.
    ///
    /// # Errors
    /// [`CallError::NoSuchAddress`]: the listener takes no datagrams or the local end is not its, two families, or a peer that cannot be
    /// sent to. [`CallError::Unreachable`]: nobody knows the way. [`CallError::TooLong`]. [`CallError::NoResources`]: too many wait.
    /// [`CallError::Forbidden`]: a protected application, to a peer that it has no unanswered question of and that its operator does not
    /// permit. An answer that is refused as too long, or for want of room, leaves its question unanswered. What only the engine knows, a
    /// protected application is not told: its datagram is lost.
    fn send_to(&mut self, listener: Listener, ends: Addresses, bytes: &[u8]) -> Result<(), CallError> {
        let _ = (listener, ends, bytes);
        Err(CallError::Unsupported)
    }

    /// Has [`alarm`](crate::Service::alarm) told at a time: a timer of the service itself, by its cookie. Setting it again replaces the
    /// time, None takes it back. Alarms belong to one thread's service and stay there when connections move.
    ///
    /// # Errors
    /// [`CallError::NoResources`]: there are [`ALARMS`](crate::ALARMS) of other cookies.
    fn alarm_set(&mut self, cookie: u64, at: Option<Instant>) -> Result<(), CallError> {
        let _ = (cookie, at);
        Err(CallError::Unsupported)
    }
}
