//! Finished answers, retained for those who ask the same again: the paper's pre-copy, as far as it goes here.
//!
//! A slot holds a whole message, header, question and answer, as it was sent once. A question that differs from that one in
//! its ID alone is answered by copying the message into its frame in one piece and leaving its ID there; the table of names is
//! not touched. What a question is compared by is everything but the ID: flags, counts, the name in its letter case, type,
//! class, the OPT record, and how much fits back.
//!
//! The paper retains whole packets in the frames that the card reads, and more than one of each, since a frame cannot stand in
//! the ring twice with two headers. Here a frame belongs to its port from the moment it is transmitted until any free frame
//! is asked for, and nobody learns which one came back; and the answer's UDP checksum is made anew over the message. So a
//! retained message costs one copy of its octets more than the paper's, and needs one slot however many are on their way.
//!
//! Only plain questions are retained (class IN, no transfer, EDNS without options or none): their answers depend on the tables
//! and the server's options, neither on the client nor on time. Rate limits are judged for each, with what the answer was
//! made from, and everything is counted as if it had been made again. New tables empty the table.
//!
//! Memory: fixed when it is made. Four ways a set; a set's oldest goes first. Spellings of one name share a slot.

use crate::compose::NAME_AT;
use crate::question::Ask;
use crate::resolve::Kind;
use crate::table::Key;
use base::BURST_FRAMES;

const WAYS: usize = 4;
const SLOT_BYTES: usize = 512;
const MESSAGE_BYTES: usize = SLOT_BYTES - 40;
const HEAD_BYTES: usize = 10;
const OPT_BYTES: usize = 11;
/// Messages up to this size are copied as a whole piece of it: a few moves instead of a call.
const SMALL_BYTES: usize = 128;
const LINE_BYTES: usize = 64;

/// What an answer was made from: what judging and counting it again takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) source: u32,
    pub(crate) zone: u32,
    pub(crate) kind: Kind,
    pub(crate) rcode: u8,
    pub(crate) truncated: bool,
}

/// Who wants to know what an answer was made from. Nobody does on the way in place, which pays nothing for it.
pub(crate) trait Origin {
    /// An answer was written that depends on the question and the tables alone.
    fn made(&mut self, made: Made);
}

impl Origin for () {
    #[inline(always)]
    fn made(&mut self, _made: Made) {}
}

impl Origin for Option<Made> {
    #[inline(always)]
    fn made(&mut self, made: Made) {
        *self = Some(made);
    }
}

/// What of a question is overwritten by its answer, the ID apart.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    head: [u8; HEAD_BYTES],
    opt: [u8; OPT_BYTES],
    opt_bytes: u8,
}

impl Asked {
    /// None where the message is not of the plain kind.
    #[inline(always)]
    fn of(ask: &Ask, message: &[u8]) -> Option<Asked> {
        let (_, after) = message.split_at_checked(question_end(ask))?;
        let mut asked = Asked { head: *message[2..].first_chunk()?, opt: [0; OPT_BYTES], opt_bytes: after.len() as u8 };
        if !after.is_empty() {
            asked.opt = after.try_into().ok()?;
        }
        Some(asked)
    }
}

#[inline(always)]
fn question_end(ask: &Ask) -> usize {
    NAME_AT + usize::from(ask.name_bytes) + 4
}

#[repr(C, align(64))]
#[derive(Clone)]
struct Slot {
    made: Made,
    asked: Asked,
    name_bytes: u8,
    /// octets of the message
    bytes: u16,
    /// the most octets that it might have had
    limit: u16,
    /// its ID means nothing
    message: [u8; MESSAGE_BYTES],
}

const _: () = assert!(size_of::<Slot>() == SLOT_BYTES);

/// One thread's retained messages.
pub(crate) struct Retained {
    /// a part of the hash for each way, 0 for none
    tags: Vec<[u32; WAYS]>,
    slots: Vec<Slot>,
    /// counts what was retained; says which way of a set is the oldest, roughly
    turn: usize,
    /// hashes of the burst at hand
    pub(crate) hashes: Box<[u64; BURST_FRAMES]>,
}

impl Retained {
    /// A table of about `bytes` octets, rounded down to a power of two of sets; None when that is less than one.
    pub(crate) fn new(bytes: usize) -> Option<Retained> {
        let sets = 1 << (bytes / (WAYS * SLOT_BYTES)).checked_ilog2()?;
        let asked = Asked { head: [0; HEAD_BYTES], opt: [0; OPT_BYTES], opt_bytes: 0 };
        let made = Made { source: 0, zone: 0, kind: Kind::Data, rcode: 0, truncated: false };
        let slot = Slot { made, asked, name_bytes: 0, bytes: 0, limit: 0, message: [0; MESSAGE_BYTES] };
        Some(Retained {
            tags: vec![[0; WAYS]; sets],
            slots: vec![slot; sets * WAYS],
            turn: 0,
            hashes: Box::new([0; BURST_FRAMES]),
        })
    }

    /// Octets of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.tags.len() * size_of::<[u32; WAYS]>() + self.slots.len() * SLOT_BYTES
    }

    /// Forgets everything: the tables have changed.
    pub(crate) fn clear(&mut self) {
        self.tags.fill([0; WAYS]);
    }

    /// Spreads the questions for one name over the table.
    #[inline(always)]
    pub(crate) fn hash(key: &Key, ask: &Ask) -> u64 {
        let edns =
            ask.edns.as_ref().map_or(0, |edns| 1 << 33 | u64::from(edns.dnssec_ok) << 32 | u64::from(edns.size) << 16);
        let mixed = u128::from(key.hash ^ edns ^ u64::from(ask.qtype)) * 0x9e37_79b9_7f4a_7c15;
        (mixed >> 64) as u64 ^ mixed as u64
    }

    #[inline(always)]
    fn set(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.tags.len() - 1)
    }

    #[inline(always)]
    fn place(&self, hash: u64) -> Option<usize> {
        let (set, tag) = (self.set(hash), (hash as u32).max(1));
        let way = self.tags[set].iter().position(|held| *held == tag)?;
        Some(set * WAYS + way)
    }

    /// Asks for the slot that has probably the answer; false when none has.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) -> bool {
        let Some(place) = self.place(hash) else { return false };
        let slot: *const Slot = &self.slots[place];
        for line in 0..3 {
            base::prefetch::read(slot.cast::<u8>().wrapping_add(line * LINE_BYTES));
        }
        true
    }

    /// The answer to the question in the first octets of `message`, when it is here.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64, ask: &Ask, message: &[u8], limit: usize) -> Option<Held<'_>> {
        let slot = &self.slots[self.place(hash)?];
        let end = question_end(ask);
        let (head, question, opt) = (message.get(2..NAME_AT)?, message.get(NAME_AT..end)?, message.get(end..)?);
        let same = slot.name_bytes == ask.name_bytes
            && usize::from(slot.limit) == limit
            && slot.asked.head == *head
            && slot.message[NAME_AT..end] == *question
            && slot.asked.opt.get(..usize::from(slot.asked.opt_bytes)) == Some(opt);
        same.then_some(Held(slot))
    }

    /// What [`Retained::retain`] will want to know of the question once it is overwritten.
    #[inline(always)]
    pub(crate) fn asked(ask: &Ask, message: &[u8]) -> Option<Asked> {
        Asked::of(ask, message)
    }

    /// Retains an answer, unless it is too long for a slot.
    pub(crate) fn retain(&mut self, hash: u64, ask: &Ask, asked: Asked, made: Made, answer: &[u8], limit: usize) {
        if answer.len() > MESSAGE_BYTES {
            return;
        }
        let place = self.place(hash).unwrap_or_else(|| {
            let set = self.set(hash);
            let way = self.tags[set].iter().position(|held| *held == 0).unwrap_or(self.turn % WAYS);
            self.turn = self.turn.wrapping_add(1);
            self.tags[set][way] = (hash as u32).max(1);
            set * WAYS + way
        });
        let slot = &mut self.slots[place];
        (slot.made, slot.asked, slot.name_bytes) = (made, asked, ask.name_bytes);
        (slot.bytes, slot.limit) = (answer.len() as u16, limit as u16);
        slot.message[..answer.len()].copy_from_slice(answer);
    }
}

/// A retained answer.
pub(crate) struct Held<'r>(&'r Slot);

impl Held<'_> {
    /// What it was made from.
    #[inline(always)]
    pub(crate) fn made(&self) -> Made {
        self.0.made
    }

    /// Copies the message to the front of `buffer`, which keeps its ID; gives the message's octets. Behind them the buffer may
    /// be overwritten.
    ///
    /// # Panics
    /// When the buffer is shorter than the message; it is not where the limit was the same.
    #[inline(always)]
    pub(crate) fn copy(&self, buffer: &mut [u8]) -> usize {
        let bytes = usize::from(self.0.bytes);
        match (buffer.first_chunk_mut::<SMALL_BYTES>(), self.0.message.first_chunk::<SMALL_BYTES>()) {
            (Some(to), Some(from)) if bytes <= SMALL_BYTES => {
                let id = [to[0], to[1]];
                *to = *from;
                to[..2].copy_from_slice(&id);
            }
            _ => buffer[2..bytes].copy_from_slice(&self.0.message[2..bytes]),
        }
        bytes
    }
}

#[cfg(test)]
mod tests;
