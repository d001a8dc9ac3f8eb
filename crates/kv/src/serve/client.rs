//! What is kept of a connection, and the pools that connections take from when they need more.

use crate::out::Out;
use crate::store::Home;
use crate::text::State;
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
    pub(super) buffer: u32,
    pub(super) pending: u32,
    /// in the buffer, none of them given back to the window yet
    pub(super) held_bytes: u32,
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
            buffer: NONE,
            pending: NONE,
            held_bytes: 0,
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

/// Buffers for commands that came in pieces or wait.
pub(super) struct Buffers {
    each_bytes: usize,
    memory: Vec<u8>,
    free: Vec<u32>,
}

impl Buffers {
    pub(super) fn new(count: usize, each_bytes: usize) -> Buffers {
        // zeroed memory costs nothing until a connection uses it
        Buffers { each_bytes, memory: vec![0; count * each_bytes], free: (0..count as u32).rev().collect() }
    }

    /// Gives a buffer to a client that has none; false when all are in use.
    pub(super) fn take(&mut self, client: &mut Client) -> bool {
        let Some(place) = self.free.pop() else { return false };
        (client.buffer, client.held_bytes) = (place, 0);
        true
    }

    /// Takes a client's buffer back, if it has one.
    pub(super) fn give(&mut self, client: &mut Client) {
        if client.buffer != NONE {
            self.free.push(client.buffer);
            (client.buffer, client.held_bytes) = (NONE, 0);
        }
    }

    pub(super) fn bytes(&mut self, place: u32) -> &mut [u8] {
        let at = place as usize * self.each_bytes;
        &mut self.memory[at..at + self.each_bytes]
    }

    /// Adds bytes behind those that are kept; what did not fit.
    pub(super) fn append<'b>(&mut self, client: &mut Client, bytes: &'b [u8]) -> &'b [u8] {
        let held = client.held_bytes as usize;
        let room = &mut self.bytes(client.buffer)[held..];
        let (fits, rest) = bytes.split_at(bytes.len().min(room.len()));
        room[..fits.len()].copy_from_slice(fits);
        client.held_bytes = (held + fits.len()) as u32;
        rest
    }

    #[cfg(test)]
    pub(super) fn free_count(&self) -> usize {
        self.free.len()
    }
}

/// Answers that engines took in part.
pub(super) struct Pendings {
    all: Vec<Out>,
    free: Vec<u32>,
}

impl Pendings {
    pub(super) fn new(count: usize, bytes: usize, parts: usize) -> Pendings {
        Pendings { all: (0..count).map(|_| Out::new(bytes, parts)).collect(), free: (0..count as u32).rev().collect() }
    }

    /// Keeps what is left of `out`, which is empty then; false when there is no place.
    pub(super) fn keep(&mut self, client: &mut Client, out: &mut Out) -> bool {
        let Some(place) = self.free.pop() else { return false };
        client.pending = place;
        std::mem::swap(&mut self.all[place as usize], out);
        true
    }

    pub(super) fn get(&mut self, client: &Client) -> Option<&mut Out> {
        self.all.get_mut(client.pending as usize)
    }

    /// Takes a client's place back, if it has one.
    pub(super) fn give(&mut self, client: &mut Client) {
        if let Some(out) = self.get(client) {
            // chunks are held no longer than they have to
            out.clear();
            self.free.push(std::mem::replace(&mut client.pending, NONE));
        }
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = &Out> {
        self.all.iter()
    }

    #[cfg(test)]
    pub(super) fn free_count(&self) -> usize {
        self.free.len()
    }
}
