//! Answers on their way out: pieces made into ranges, and what an engine did not take at once.

use std::sync::Arc;

use app::{CallError, Connection, Content, Range, SENDV_RANGES, Streams};
use arrayvec::ArrayVec;

use crate::answer::{OWNED_MAX_BYTES, PIECES_MAX, Piece, Plan};
use crate::chunks::Origin;
use crate::client::{Client, NO_PENDING};

/// Offers the pieces to the engine from octet `skip` of the answer on, up to the first part of a file that is sent in chunks; how
/// many octets it took.
#[inline]
pub(crate) fn send<C: Streams>(
    calls: &mut C,
    connection: Connection,
    content: Option<&Arc<Content>>,
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
                let Some(content) = content else { break };
                Range::Object { content, object, start: start + skipped, bytes: bytes - skipped }
            }
            Piece::File { .. } => break,
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
#[derive(Clone)]
pub(crate) struct Pending {
    owned: Vec<u8>,
    pieces: ArrayVec<Piece, PIECES_MAX>,
    content: Option<Arc<Content>>,
    /// the file that its chunks are of
    origin: Option<Arc<Origin>>,
    done_bytes: u64,
    bytes: u64,
}

/// What is next of an answer's rest.
pub(crate) enum Next {
    /// nothing: it is whole
    Nothing,
    /// the engine took not all of what it was offered
    Offer,
    /// a part of a file
    Chunks(Arc<Origin>, std::ops::Range<u64>),
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
            origin: None,
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
    pub(crate) fn keep(
        &mut self,
        plan: &Plan,
        content: &Arc<Content>,
        origin: Option<&Arc<Origin>>,
        done_bytes: u64,
    ) -> Option<u32> {
        let place = self.free.pop()?;
        let pending = &mut self.all[place as usize];
        pending.owned.clear();
        pending.owned.extend_from_slice(&plan.owned);
        pending.pieces.clone_from(&plan.pieces);
        pending.content = Some(content.clone());
        pending.origin = origin.cloned();
        (pending.done_bytes, pending.bytes) = (done_bytes, plan.bytes());
        Some(place)
    }

    /// Offers the rest up to the next part of a file; how many octets were taken, and what is next.
    pub(crate) fn flush<C: Streams>(
        &mut self,
        place: u32,
        calls: &mut C,
        connection: Connection,
    ) -> Result<(u64, Next), CallError> {
        let Some(pending) = self.all.get_mut(place as usize) else { return Ok((0, Next::Nothing)) };
        let content = pending.content.as_ref();
        let taken = send(calls, connection, content, &pending.owned, &pending.pieces, pending.done_bytes)?;
        pending.done_bytes += taken;
        pending.let_go();
        Ok((taken, pending.next()))
    }

    /// So many octets of a part of a file were queued.
    pub(crate) fn on_fed(&mut self, place: u32, bytes: u64) {
        if let Some(pending) = self.all.get_mut(place as usize) {
            pending.done_bytes += bytes;
        }
    }

    #[cfg(test)]
    pub(crate) fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Takes a client's place back, and what stands in it out, for another thread. The place keeps its memory.
    pub(crate) fn take_out(&mut self, client: &mut Client) -> Option<Pending> {
        let pending = self.all.get(client.pending as usize)?.clone();
        self.give(client);
        Some(pending)
    }

    /// Gives a client a place for what came from another thread; false when there is none.
    pub(crate) fn put_in(&mut self, client: &mut Client, from: Pending) -> bool {
        let Some(place) = self.free.pop() else { return false };
        let pending = &mut self.all[place as usize];
        pending.owned.clear();
        pending.owned.extend_from_slice(&from.owned);
        let Pending { pieces, content, origin, done_bytes, bytes, .. } = from;
        (pending.pieces, pending.content, pending.origin) = (pieces, content, origin);
        (pending.done_bytes, pending.bytes) = (done_bytes, bytes);
        client.pending = place;
        true
    }

    /// Takes a client's place back, if it has one.
    pub(crate) fn give(&mut self, client: &mut Client) {
        if client.pending != NO_PENDING {
            let pending = &mut self.all[client.pending as usize];
            (pending.content, pending.origin) = (None, None);
            self.free.push(client.pending);
            client.pending = NO_PENDING;
        }
    }
}

impl Pending {
    /// Lets go of the content when nothing of it is left: a file in chunks goes on beyond the version that it was asked of.
    fn let_go(&mut self) {
        let mut end = 0;
        let mut left = self.pieces.iter().filter(|piece| {
            end += piece.bytes();
            end > self.done_bytes && matches!(piece, Piece::Object { .. })
        });
        if left.next().is_none() {
            self.content = None;
        }
    }

    /// What stands at the first octet that was not taken.
    fn next(&self) -> Next {
        let mut skip = self.done_bytes;
        for piece in &self.pieces {
            if skip >= piece.bytes() {
                skip -= piece.bytes();
                continue;
            }
            return match (piece, &self.origin) {
                (Piece::File { start, bytes, .. }, Some(origin)) => {
                    Next::Chunks(origin.clone(), start + skip..start + bytes)
                }
                _ => Next::Offer,
            };
        }
        Next::Nothing
    }
}
