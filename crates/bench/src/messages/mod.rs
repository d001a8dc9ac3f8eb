//! Messages that go there and back over TCP: what NetPIPE and an RPC echo are made of. Whoever serves takes a whole message and answers it by
//! the same octets; whoever asks has one under way on a connection and compares what comes back.
//!
//! ```text
//!  0        4            8                16
//!  | octets | connection | number         | octets of a pattern, each known by its place ...
//! ```
//!
//! All in network order. So every server here ([`answer`] on our two engines, [`kernel`] on plain sockets) serves messages of any length on
//! any connection, and each side tells a wrong octet: heads always, of messages whose number divides by [`CHECK_EVERY`] all of it.
//!
//! Left out: several messages under way on a connection, and datagrams.

pub(crate) mod answer;
mod client;
pub(crate) mod kernel;
mod outcome;
#[cfg(test)]
mod tests;

pub(crate) use client::{End, Load, Plan};
pub(crate) use outcome::Outcome;

use app::{Content, ContentBuilder, ObjectId};
use std::sync::Arc;

/// Octets before the pattern.
pub(crate) const HEAD_BYTES: usize = 16;
/// The longest message.
pub(crate) const MOST_BYTES: usize = 4 << 20;
/// Messages with such a number are compared to the last octet.
pub(crate) const CHECK_EVERY: u64 = 16;

/// What a message begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// of all of it
    pub(crate) bytes: u32,
    pub(crate) connection: u32,
    pub(crate) number: u64,
}

impl Head {
    /// As it is sent.
    #[inline]
    pub(crate) fn octets(&self) -> [u8; HEAD_BYTES] {
        let mut octets = [0; HEAD_BYTES];
        octets[..4].copy_from_slice(&self.bytes.to_be_bytes());
        octets[4..8].copy_from_slice(&self.connection.to_be_bytes());
        octets[8..].copy_from_slice(&self.number.to_be_bytes());
        octets
    }

    /// The head of a message that there can be.
    #[inline]
    fn read(octets: &[u8; HEAD_BYTES]) -> Result<Head, Wrong> {
        let word = |at: usize| u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]);
        let number = u64::from(word(8)) << 32 | u64::from(word(12));
        let head = Head { bytes: word(0), connection: word(4), number };
        if (HEAD_BYTES..=MOST_BYTES).contains(&(head.bytes as usize)) { Ok(head) } else { Err(Wrong) }
    }
}

/// Octets that no sender of messages sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wrong;

/// The octets of the longest message, its head left out of account: an object that stacks send from where it lies.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    content: Arc<Content>,
    id: ObjectId,
}

impl Pattern {
    /// For messages of up to so many octets.
    pub(crate) fn new(most_bytes: usize) -> Pattern {
        let mut builder = ContentBuilder::new();
        let filled = builder.add_with(most_bytes, |memory| {
            crate::pipe::fill(0, memory);
            Ok::<(), std::convert::Infallible>(())
        });
        let Ok(id) = filled;
        Pattern { content: builder.finish(), id }
    }

    /// All of it, from the head's place on.
    pub(crate) fn octets(&self) -> &[u8] {
        self.content.bytes(self.id)
    }

    /// What stands behind the head of a message of so many octets.
    fn behind_head(&self, bytes: u32) -> app::Range<'_> {
        let start = HEAD_BYTES as u64;
        app::Range::Object { content: &self.content, object: self.id, start, bytes: u64::from(bytes) - start }
    }
}

/// How far the message has come that is on its way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    head: [u8; HEAD_BYTES],
    have: u32,
}

impl Progress {
    /// Whether nothing of a message has come.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.have == 0
    }

    /// Takes from the front of `octets` what belongs to one message: how many that were, and the message's head when it is whole.
    #[inline]
    pub(crate) fn feed(&mut self, octets: &[u8], pattern: &Pattern) -> Result<(usize, Option<Head>), Wrong> {
        let mut taken = 0;
        if (self.have as usize) < HEAD_BYTES {
            let have = self.have as usize;
            taken = octets.len().min(HEAD_BYTES - have);
            self.head[have..have + taken].copy_from_slice(&octets[..taken]);
            self.have += taken as u32;
            if (self.have as usize) < HEAD_BYTES {
                return Ok((taken, None));
            }
        }
        let head = Head::read(&self.head)?;
        let part = (octets.len() - taken).min((head.bytes - self.have) as usize);
        if head.number.is_multiple_of(CHECK_EVERY) {
            let at = self.have as usize;
            if pattern.octets().get(at..at + part) != Some(&octets[taken..taken + part]) {
                return Err(Wrong);
            }
        }
        self.have += part as u32;
        let whole = self.have == head.bytes;
        if whole {
            self.have = 0;
        }
        Ok((taken + part, whole.then_some(head)))
    }
}
