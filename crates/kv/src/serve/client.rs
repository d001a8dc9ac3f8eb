//! What is kept of a connection, and the pools that connections take from when they need more.

use crate::out::Out;
use crate::store::Home;
use crate::text::State;
use app::{Bound, Claim, Kept, Places};
use base::Instant;

pub(super) const NONE: u32 = u32::MAX;

/// What a connection waits for, and so which time it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// for a command
    Idle,
    /// for the rest of one
    Partial,
    /// for the client to take its answers
    Sending,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) state: State,
    /// where its keys stand, wherever it moves
    pub(super) home: Home,
    /// queued and not reported as sent
    pub(super) unsent_bytes: u64,
    pub(super) deadline: Instant,
    /// when the engine's timer comes; MAX when it is not set
    pub(super) armed: Instant,
    /// what has come of its commands, none of it given back to the window yet
    pub(super) kept: Kept,
    pub(super) pending: u32,
    /// pieces of answers queued since everything was last sent
    pub(super) unsent_pieces: u32,
    pub(super) mode: Mode,
    /// the place is in use
    pub(super) used: bool,
    /// nothing has come yet
    pub(super) fresh: bool,
    /// no more commands are read
    pub(super) closing: bool,
    /// the engine was told that nothing more is written
    pub(super) shut: bool,
    /// the engine was told to close or abort
    pub(super) closed: bool,
    /// the peer sends no more
    pub(super) finished: bool,
    /// something was sent, or came while nothing was to be sent, since the time was last set
    pub(super) has_news: bool,
}

impl Default for Client {
    fn default() -> Client {
        Client {
            state: State::Line,
            home: Home::All,
            unsent_bytes: 0,
            deadline: Instant::MAX,
            armed: Instant::MAX,
            kept: Kept::NONE,
            pending: NONE,
            unsent_pieces: 0,
            mode: Mode::Idle,
            used: false,
            fresh: true,
            closing: false,
            shut: false,
            closed: false,
            finished: false,
            has_news: true,
        }
    }
}

/// Answers that engines took in part.
pub(super) struct Pendings {
    /// made when they are needed first
    all: Vec<Out>,
    places: Places,
    /// what each has room for
    bytes: usize,
    parts: usize,
}

/// An answer that was taken in part, on the way to another thread.
pub(super) struct PackedOut {
    out: Out,
    claim: Claim,
}

impl Pendings {
    pub(super) fn new(bound: Bound, bytes: usize, parts: usize) -> Pendings {
        Pendings { all: bound.vec(), places: Places::new(bound), bytes, parts }
    }

    /// Keeps what is left of `out`, which is empty then; false when there is no place.
    pub(super) fn keep(&mut self, client: &mut Client, out: &mut Out) -> bool {
        let place = self.places.take();
        self.keep_at(client, place, out)
    }

    fn keep_at(&mut self, client: &mut Client, place: Option<u32>, out: &mut Out) -> bool {
        let Some(place) = place else { return false };
        if place as usize == self.all.len() {
            self.all.push(Out::new(self.bytes, self.parts));
        }
        client.pending = place;
        std::mem::swap(&mut self.all[place as usize], out);
        true
    }

    /// Takes a client's place back, if it has one, and what stands in it out, for another thread.
    pub(super) fn take_out(&mut self, client: &mut Client) -> Option<PackedOut> {
        let out = self.get(client)?.take();
        let claim = self.places.depart(std::mem::replace(&mut client.pending, NONE));
        Some(PackedOut { out, claim })
    }

    /// Gives a client a place for what came from another thread; false when there is none.
    pub(super) fn put_in(&mut self, client: &mut Client, mut packed: PackedOut) -> bool {
        let place = self.places.arrive(packed.claim);
        self.keep_at(client, place, &mut packed.out)
    }

    pub(super) fn get(&mut self, client: &Client) -> Option<&mut Out> {
        self.all.get_mut(client.pending as usize)
    }

    /// Takes a client's place back, if it has one.
    pub(super) fn give(&mut self, client: &mut Client) {
        if let Some(out) = self.get(client) {
            // chunks are held no longer than they have to
            out.clear();
            self.places.give(std::mem::replace(&mut client.pending, NONE));
        }
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = &Out> {
        self.all.iter()
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.places.used()
    }
}
