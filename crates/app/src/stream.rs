//! The stream half's calls.

use crate::Connection;
use base::Instant;
use std::fmt;

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
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CallError::NoConnection => "no such connection",
            CallError::WrongState => "the connection is not in a state for this call",
            CallError::TooMuch => "more bytes given back than were delivered",
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

    /// Queues a copy of `bytes` within the connection's quota; returns how many were taken, all or fewer. The rest may be
    /// offered again after `sent`.
    ///
    /// # Errors
    /// No such connection, or it was closed for writing.
    fn send(&mut self, connection: Connection, bytes: &[u8]) -> Result<usize, CallError>;

    /// Bytes that [`Streams::send`] would take now; 0 for a connection that is gone.
    fn room(&self, connection: Connection) -> usize;

    /// Opens the receive window by `bytes` that were delivered before.
    ///
    /// # Errors
    /// No such connection, or more than was delivered.
    fn recv_done(&mut self, connection: Connection, bytes: usize) -> Result<(), CallError>;

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
