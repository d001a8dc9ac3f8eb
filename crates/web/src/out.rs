//! Answers on their way out: pieces made into ranges, and what an engine did not take at once.

use std::sync::Arc;

use app::{CallError, Connection, Content, Range, SENDV_RANGES, Streams};
use arrayvec::ArrayVec;

use crate::answer::{OWNED_MAX_BYTES, PIECES_MAX, Piece, Plan};
use crate::client::{Client, NO_PENDING};

/// Offers the pieces to the engine from octet `skip` of the answer on; how many octets it took.
#[inline]
pub(crate) fn send<C: Streams>(
    calls: &mut C,
    connection: Connection,
    content: &Arc<Content>,
    owned: &[u8],
    pieces: &[Piece],
    mut skip: u64,
) -> Result<u64, CallError> {
    let mut taken = 0;
    let mut offered = 0;
    let mut ranges: ArrayVec<Range<'_>, SENDV_RANGES> = ArrayVec::new();
    for piece in pieces {
        let bytes = piece.bytes();
        let skipped = skip.min(bytes);
        skip -= skipped;
        if skipped == bytes {
            continue;
        }
        ranges.push(match *piece {
            Piece::Owned { start, end } => Range::Owned(&owned[start as usize + skipped as usize..end as usize]),
            Piece::Object { object, start, bytes } => {
                Range::Object { content, object, start: start + skipped, bytes: bytes - skipped }
            }
        });
        offered += bytes - skipped;
        if ranges.is_full() {
            let now = calls.sendv(connection, &ranges)?;
            taken += now;
            if now < offered {
                return Ok(taken);
            }
            ranges.clear();
            offered = 0;
        }
    }
    if !ranges.is_empty() {
        taken += calls.sendv(connection, &ranges)?;
    }
    Ok(taken)
}

/// The rest of an answer.
struct Pending {
    owned: Vec<u8>,
    pieces: ArrayVec<Piece, PIECES_MAX>,
    content: Option<Arc<Content>>,
    done_bytes: u64,
    bytes: u64,
}

/// A thread's answers that engines took in part.
pub(crate) struct Pendings {
    all: Vec<Pending>,
    free: Vec<u32>,
}

impl Pendings {
    pub(crate) fn new(count: usize) -> Pendings {
        let pending = || Pending {
            owned: Vec::with_capacity(OWNED_MAX_BYTES),
            pieces: ArrayVec::new(),
            content: None,
            done_bytes: 0,
            bytes: 0,
        };
        Pendings { all: (0..count).map(|_| pending()).collect(), free: (0..count as u32).rev().collect() }
    }

    /// Whether the rest of one more answer could be kept.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Keeps an answer of which `done_bytes` were taken; None when there is no place.
    pub(crate) fn keep(&mut self, plan: &Plan, content: &Arc<Content>, done_bytes: u64) -> Option<u32> {
        let place = self.free.pop()?;
        let pending = &mut self.all[place as usize];
        pending.owned.clear();
        pending.owned.extend_from_slice(&plan.owned);
        pending.pieces.clone_from(&plan.pieces);
        pending.content = Some(content.clone());
        (pending.done_bytes, pending.bytes) = (done_bytes, plan.bytes());
        Some(place)
    }

    /// Offers the rest; how many octets were taken, and whether that was all.
    pub(crate) fn flush<C: Streams>(
        &mut self,
        place: u32,
        calls: &mut C,
        connection: Connection,
    ) -> Result<(u64, bool), CallError> {
        let Some(pending) = self.all.get_mut(place as usize) else { return Ok((0, true)) };
        let Some(content) = &pending.content else { return Ok((0, true)) };
        let taken = send(calls, connection, content, &pending.owned, &pending.pieces, pending.done_bytes)?;
        pending.done_bytes += taken;
        Ok((taken, pending.done_bytes >= pending.bytes))
    }

    /// Takes a client's place back, if it has one.
    pub(crate) fn give(&mut self, client: &mut Client) {
        if client.pending != NO_PENDING {
            self.all[client.pending as usize].content = None;
            self.free.push(client.pending);
            client.pending = NO_PENDING;
        }
    }
}
