//! Answers on their way out: pieces made into ranges, and what an engine did not take at once.

use std::sync::Arc;

use app::{Bound, CallError, Claim, Connection, Content, Places, Range, SENDV_RANGES, Streams};
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

/// An answer that was taken in part, on the way to another thread.
pub(crate) struct Packed {
    pending: Pending,
    claim: Claim,
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
    places: Places,
}

impl Pendings {
    pub(crate) fn new(bound: Bound) -> Pendings {
        Pendings { all: bound.vec(), places: Places::new(bound) }
    }

    /// Whether the rest of one more answer could be kept.
    pub(crate) fn has_room(&mut self) -> bool {
        self.places.has_room()
    }

    /// The pending at a place that was just taken: made when it is needed first.
    fn at(&mut self, place: u32) -> &mut Pending {
        if place as usize == self.all.len() {
            self.all.push(Pending {
                owned: Vec::with_capacity(OWNED_MAX_BYTES),
                pieces: ArrayVec::new(),
                content: None,
                origin: None,
                done_bytes: 0,
                bytes: 0,
            });
        }
        &mut self.all[place as usize]
    }

    /// Keeps an answer of which `done_bytes` were taken; None when there is no place.
    pub(crate) fn keep(
        &mut self,
        plan: &Plan,
        content: &Arc<Content>,
        origin: Option<&Arc<Origin>>,
        done_bytes: u64,
    ) -> Option<u32> {
        let place = self.places.take()?;
        let pending = self.at(place);
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
    pub(crate) fn used(&self) -> usize {
        self.places.used()
    }

    /// Takes a client's place back, and what stands in it out, for another thread. The place keeps its memory.
    pub(crate) fn take_out(&mut self, client: &mut Client) -> Option<Packed> {
        let pending = self.all.get(client.pending as usize)?.clone();
        let place = self.clear(client)?;
        let claim = self.places.depart(place);
        Some(Packed { pending, claim })
    }

    /// Gives a client a place for what came from another thread; false when there is none.
    pub(crate) fn put_in(&mut self, client: &mut Client, packed: Packed) -> bool {
        let Some(place) = self.places.arrive(packed.claim) else { return false };
        let pending = self.at(place);
        pending.owned.clear();
        pending.owned.extend_from_slice(&packed.pending.owned);
        let Pending { pieces, content, origin, done_bytes, bytes, .. } = packed.pending;
        (pending.pieces, pending.content, pending.origin) = (pieces, content, origin);
        (pending.done_bytes, pending.bytes) = (done_bytes, bytes);
        client.pending = place;
        true
    }

    /// Takes a client's place back, if it has one.
    pub(crate) fn give(&mut self, client: &mut Client) {
        if let Some(place) = self.clear(client) {
            self.places.give(place);
        }
    }

    /// Empties a client's place, if it has one.
    fn clear(&mut self, client: &mut Client) -> Option<u32> {
        let pending = self.all.get_mut(client.pending as usize)?;
        (pending.content, pending.origin) = (None, None);
        Some(std::mem::replace(&mut client.pending, NO_PENDING))
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
