//! What is kept of a connection: little for each.

use std::net::{Ipv4Addr, SocketAddr};

use app::Kept;
use base::Instant;

use crate::framing::Framer;
use crate::pace::Pace;

pub(crate) const NO_PENDING: u32 = u32::MAX;
pub(crate) const NO_STREAM: u32 = u32::MAX;

/// What a connection waits for, and so which time it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// for a request
    Idle,
    /// for the rest of a head
    Head,
    /// for the rest of a request's content
    Content,
    /// for the client to take its answers
    Sending,
}

/// One connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) framer: Framer,
    /// the client's, as far as it is known
    pub(crate) address: SocketAddr,
    /// octets queued and not reported as sent
    pub(crate) unsent_bytes: u64,
    pub(crate) deadline: Instant,
    /// how fast it gives back what it holds of the cache
    pub(crate) pace: Pace,
    /// when the engine's timer comes; MAX when it is not set
    pub(crate) armed: Instant,
    /// what has come of its requests, none of it given back to the window yet
    pub(crate) kept: Kept,
    pub(crate) pending: u32,
    /// where what is sent in chunks stands
    pub(crate) stream: u32,
    /// its own place
    pub(crate) number: u32,
    pub(crate) requests: u32,
    /// pieces of answers queued since everything was last sent
    pub(crate) unsent_pieces: u16,
    pub(crate) mode: Mode,
    /// the place is in use
    pub(crate) used: bool,
    /// its X-Forwarded-For is believed
    pub(crate) believed: bool,
    /// no more requests are read
    pub(crate) closing: bool,
    /// the engine was told that nothing more is written
    pub(crate) shut: bool,
    /// the engine was told to close or abort
    pub(crate) closed: bool,
    /// the peer sends no more
    pub(crate) finished: bool,
    /// an octet of the request was not given back: its answer waits for a chunk while nothing is queued, and whoever closes idle
    /// connections must see that this is none
    pub(crate) owed: bool,
    /// it began, or something was queued or sent, since the time was last set
    pub(crate) has_news: bool,
}

// a hundred thousand connections in 13 MB
const _: () = assert!(size_of::<Client>() <= 128);

impl Client {
    /// A connection that was just accepted.
    pub(crate) fn new(number: u32, address: SocketAddr, proxied: bool, believed: bool) -> Client {
        Client {
            framer: Framer::new(proxied),
            address,
            unsent_bytes: 0,
            deadline: Instant::MAX,
            pace: Pace::NONE,
            armed: Instant::MAX,
            kept: Kept::NONE,
            pending: NO_PENDING,
            stream: NO_STREAM,
            number,
            requests: 0,
            unsent_pieces: 0,
            mode: Mode::Idle,
            used: true,
            believed,
            closing: false,
            shut: false,
            closed: false,
            finished: false,
            owed: false,
            // it has the time from its beginning
            has_news: true,
        }
    }

    /// Whether the rest of an answer waits to be queued.
    #[inline]
    pub(crate) fn has_rest(&self) -> bool {
        self.pending != NO_PENDING || self.stream != NO_STREAM
    }
}

impl Default for Client {
    /// A place that is free.
    fn default() -> Client {
        Client { used: false, ..Client::new(0, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), false, false) }
    }
}
