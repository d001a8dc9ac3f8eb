//! UDP echo (RFC 862): what comes goes back. [`Server`] is the service, [`probe`] what a client sends to measure it.
//!
//! An echo server amplifies nothing, but whoever forges a source makes it send there, and two servers that answer each other never
//! stop. So datagrams from ports where servers listen, those below 1024 and the service's own, are dropped unless the
//! operator asks for them; the drops are counted by reason.
//!
//! Left out: echo over TCP.

#![forbid(unsafe_code)]

pub mod probe;
mod serve;
mod stats;

pub use serve::{Options, Server};
pub use stats::{DropReason, Stats};

/// The port of the service (RFC 862).
pub const PORT: u16 = 7;
