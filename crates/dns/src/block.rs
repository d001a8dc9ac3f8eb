//! A prepared answer: what follows the question, in wire format, with what serving must know about it.
//!
//! ```text
//! body bytes (2)  answer records (2)  flags (1)  rcode (1)  moves (2)
//! with EXTENDED:  authority records (2)  additional records (2)  needed bytes (2)  sets (2)
//!                 sets x [ end (2)  section (2 bits) and records (14 bits) ]  moves x [ offset (2) ]
//! body ...                                                                            padded to 8
//! ```
//!
//! The short form is one record set in the answer section. All numbers are little-endian, the body is as it is sent. `moves`
//! are pointers into the message that grow by what the question's name is longer than the one the block was made for. The
//! flags' high half is free for the answer form with signatures (DO=1), whose block stands behind this one.

use crate::compose::{Composer, Section};

pub(crate) const UNIT_BYTES: usize = 8;
const AUTHORITATIVE: u8 = 1;
const EXTENDED: u8 = 2;

/// A block in its arena.
#[derive(Clone, Copy)]
pub(crate) struct Block<'t> {
    bytes: &'t [u8],
}

#[inline(always)]
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The counts of a message's last three sections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) answer: u16,
    pub(crate) authority: u16,
    pub(crate) additional: u16,
}

impl<'t> Block<'t> {
    #[inline(always)]
    pub(crate) fn at(arena: &'t [u8], unit: u32) -> Block<'t> {
        Block { bytes: &arena[unit as usize * UNIT_BYTES..] }
    }

    #[inline(always)]
    pub(crate) fn body_bytes(self) -> usize {
        usize::from(u16_at(self.bytes, 0))
    }

    #[inline(always)]
    pub(crate) fn is_authoritative(self) -> bool {
        self.bytes[4] & AUTHORITATIVE != 0
    }

    #[inline(always)]
    pub(crate) fn is_short(self) -> bool {
        self.bytes[4] & EXTENDED == 0
    }

    #[inline(always)]
    pub(crate) fn rcode(self) -> u8 {
        self.bytes[5]
    }

    fn moves_count(self) -> usize {
        usize::from(u16_at(self.bytes, 6))
    }

    fn sets_count(self) -> usize {
        usize::from(u16_at(self.bytes, 14))
    }

    /// The body and whatever follows it in the arena, so that a copy of fixed size may reach past the end.
    #[inline(always)]
    pub(crate) fn body_onwards(self) -> &'t [u8] {
        if self.is_short() {
            return &self.bytes[8..];
        }
        &self.bytes[16 + 4 * self.sets_count() + 2 * self.moves_count()..]
    }

    #[inline(always)]
    pub(crate) fn counts(self) -> Counts {
        let answer = u16_at(self.bytes, 2);
        if self.is_short() {
            return Counts { answer, ..Counts::default() };
        }
        Counts { answer, authority: u16_at(self.bytes, 8), additional: u16_at(self.bytes, 10) }
    }

    /// Body octets without which the answer is truncated.
    pub(crate) fn needed_bytes(self) -> usize {
        if self.is_short() { self.body_bytes() } else { usize::from(u16_at(self.bytes, 12)) }
    }

    /// The octets and counts of the first set, of the first two, and so on; none for the short form.
    pub(crate) fn parts(self) -> impl Iterator<Item = (usize, Counts)> + use<'t> {
        let sets = if self.is_short() { 0 } else { self.sets_count() };
        (0..sets).scan(Counts::default(), move |counts, n| {
            let (end, packed) = (u16_at(self.bytes, 16 + 4 * n), u16_at(self.bytes, 18 + 4 * n));
            let records = packed & 0x3fff;
            match packed >> 14 {
                0 => counts.answer += records,
                1 => counts.authority += records,
                _ => counts.additional += records,
            }
            Some((usize::from(end), *counts))
        })
    }

    /// The most whole sets that fit `room`: their octets and counts.
    pub(crate) fn cut(self, room: usize) -> (usize, Counts) {
        self.parts().take_while(|(end, _)| *end <= room).last().unwrap_or_default()
    }

    /// Where pointers stand in the body that move, in order.
    pub(crate) fn moves(self) -> impl Iterator<Item = u16> + use<'t> {
        let moves = if self.is_short() { 0 } else { self.moves_count() };
        let begin = if moves == 0 { 0 } else { 16 + 4 * self.sets_count() };
        (0..moves).map(move |n| u16_at(self.bytes, begin + 2 * n))
    }

    /// Moves the pointers of a copy of the body's first octets by `delta`.
    #[inline]
    pub(crate) fn relocate(self, body: &mut [u8], delta: u16) {
        if delta == 0 {
            return;
        }
        for at in self.moves().map(usize::from) {
            let Some(pointer) = body.get_mut(at..at + 2) else { break };
            let moved = u16::from_be_bytes([pointer[0], pointer[1]]).wrapping_add(delta);
            pointer.copy_from_slice(&moved.to_be_bytes());
        }
    }
}

/// Appends what was composed as a block at the arena's next unit. The arena's length is a multiple of a unit before and after.
pub(crate) fn write(arena: &mut Vec<u8>, from: &Composer) {
    let short = matches!(&from.sets[..], [only] if only.section == Section::Answer)
        && from.moves.is_empty()
        && from.needed == from.body().len();
    let mut records = [0u16; 3];
    for set in &from.sets {
        records[set.section as usize] += set.records;
    }
    let flags = if from.authoritative { AUTHORITATIVE } else { 0 } | if short { 0 } else { EXTENDED };
    let push = |arena: &mut Vec<u8>, value: usize| arena.extend_from_slice(&(value as u16).to_le_bytes());
    push(arena, from.body().len());
    push(arena, usize::from(records[0]));
    arena.extend_from_slice(&[flags, from.rcode]);
    push(arena, from.moves.len());
    if !short {
        for value in [usize::from(records[1]), usize::from(records[2]), from.needed, from.sets.len()] {
            push(arena, value);
        }
        for set in &from.sets {
            push(arena, usize::from(set.end));
            push(arena, (set.section as usize) << 14 | usize::from(set.records));
        }
        for at in &from.moves {
            push(arena, usize::from(*at));
        }
    }
    arena.extend_from_slice(from.body());
    arena.resize(arena.len().next_multiple_of(UNIT_BYTES), 0);
}
