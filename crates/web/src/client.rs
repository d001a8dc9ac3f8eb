//! What is kept of a connection: little for each, and buffers from a pool for the few that need one.

use std::net::{Ipv4Addr, SocketAddr};

use app::{Bound, Claim, Places};
use base::Instant;

use crate::framing::Framer;

pub(crate) const NO_BUFFER: u32 = u32::MAX;
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
    /// when the engine's timer comes; MAX when it is not set
    pub(crate) armed: Instant,
    pub(crate) buffer: u32,
    pub(crate) pending: u32,
    /// where what is sent in chunks stands
    pub(crate) stream: u32,
    /// its own place
    pub(crate) number: u32,
    pub(crate) requests: u32,
    /// octets in the buffer, none of them given back to the window yet
    pub(crate) held_bytes: u16,
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
    /// something was queued or sent since the time was last set
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
            armed: Instant::MAX,
            buffer: NO_BUFFER,
            pending: NO_PENDING,
            stream: NO_STREAM,
            number,
            requests: 0,
            held_bytes: 0,
            unsent_pieces: 0,
            mode: Mode::Idle,
            used: true,
            believed,
            closing: false,
            shut: false,
            closed: false,
            finished: false,
            owed: false,
            has_news: false,
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

/// Buffers for requests that came in pieces or wait.
pub(crate) struct Buffers {
    each_bytes: usize,
    /// made when they are needed first
    all: Vec<Box<[u8]>>,
    places: Places,
}

/// What is kept of a client's requests, on the way to another thread.
pub(crate) struct Kept {
    bytes: Box<[u8]>,
    claim: Claim,
}

impl Buffers {
    pub(crate) fn new(bound: Bound, each_bytes: usize) -> Buffers {
        Buffers { each_bytes, all: bound.vec(), places: Places::new(bound) }
    }

    /// Gives a buffer to a client that has none; false when all are in use.
    pub(crate) fn take(&mut self, client: &mut Client) -> bool {
        let place = self.places.take();
        self.give_out(client, place)
    }

    fn give_out(&mut self, client: &mut Client, place: Option<u32>) -> bool {
        let Some(place) = place else { return false };
        if place as usize == self.all.len() {
            self.all.push(vec![0; self.each_bytes].into());
        }
        (client.buffer, client.held_bytes) = (place, 0);
        true
    }

    /// Takes a client's buffer back, if it has one, with what is in it.
    pub(crate) fn take_out(&mut self, client: &mut Client) -> Option<Kept> {
        if client.buffer == NO_BUFFER {
            return None;
        }
        let bytes = self.bytes(client.buffer)[..usize::from(client.held_bytes)].into();
        let claim = self.places.depart(client.buffer);
        (client.buffer, client.held_bytes) = (NO_BUFFER, 0);
        Some(Kept { bytes, claim })
    }

    /// Gives a client a buffer with what came from another thread; false when there is none.
    pub(crate) fn put_in(&mut self, client: &mut Client, kept: Kept) -> bool {
        let place = self.places.arrive(kept.claim);
        let has = self.give_out(client, place);
        if has {
            self.append(client, &kept.bytes);
        }
        has
    }

    /// Takes a client's buffer back, if it has one.
    pub(crate) fn give(&mut self, client: &mut Client) {
        if client.buffer != NO_BUFFER {
            self.places.give(client.buffer);
            (client.buffer, client.held_bytes) = (NO_BUFFER, 0);
        }
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.places.used()
    }

    pub(crate) fn bytes(&mut self, place: u32) -> &mut [u8] {
        &mut self.all[place as usize]
    }

    /// Adds bytes behind those that are kept; returns what did not fit.
    pub(crate) fn append<'b>(&mut self, client: &mut Client, bytes: &'b [u8]) -> &'b [u8] {
        let held = usize::from(client.held_bytes);
        let room = &mut self.bytes(client.buffer)[held..];
        let (fits, rest) = bytes.split_at(bytes.len().min(room.len()));
        room[..fits.len()].copy_from_slice(fits);
        client.held_bytes = (held + fits.len()) as u16;
        rest
    }
}
