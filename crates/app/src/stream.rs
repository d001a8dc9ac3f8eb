//! The stream half's calls.

use crate::{Connection, Content, ObjectId};
use base::Instant;
use std::fmt;
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
}

/// A call that cannot be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        })
    }
}

impl std::error::Error for CallError {}

/// What a service can do with connections. The engine implements it.
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
    /// # Errors
    /// No such connection.
    fn abort(&mut self, connection: Connection) -> Result<(), CallError>;

    /// Sets the connection's one timer, replacing an earlier time; None clears it.
    ///
    /// # Errors
    /// No such connection.
    fn timer_set(&mut self, connection: Connection, at: Option<Instant>) -> Result<(), CallError>;
}
