//! An engine with one connection, which takes what its bounds allow and holds it until the peer reads.

use app::{CallError, Connection, Content, ObjectId, Range, Streams};
use base::Instant;
use std::collections::VecDeque;
use std::sync::Arc;

/// The one connection.
pub(super) const CONNECTION: Connection = Connection { index: 0, generation: 0 };
/// Ranges that it queues.
const RANGES: usize = 128;

#[derive(Debug)]
enum Piece {
    Owned(Vec<u8>),
    Object(Arc<Content>, usize, usize),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Engine {
    pieces: VecDeque<Piece>,
    /// owned bytes that it queues
    pub(super) quota_bytes: usize,
    /// bytes delivered and not given back
    pub(super) delivered: usize,
    /// what the peer has read
    pub(super) out: Vec<u8>,
    /// what the service called the connection
    pub(super) cookie: Option<u64>,
    /// nothing more is written
    pub(super) shut: bool,
    /// the service closed it
    pub(super) closed: bool,
    /// the service aborted it
    pub(super) aborted: bool,
}

impl Engine {
    /// Whether the service takes no more.
    pub(super) fn is_over(&self) -> bool {
        self.shut || self.closed || self.aborted
    }

    /// Bytes that the peer has not read.
    pub(super) fn unsent(&self) -> usize {
        self.pieces
            .iter()
            .map(|piece| match piece {
                Piece::Owned(bytes) => bytes.len(),
                Piece::Object(_, _, bytes) => *bytes,
            })
            .sum()
    }

    /// The peer reads everything; how much that was.
    pub(super) fn drain(&mut self) -> usize {
        let before = self.out.len();
        for piece in self.pieces.drain(..) {
            match piece {
                Piece::Owned(bytes) => self.out.extend_from_slice(&bytes),
                Piece::Object(content, start, bytes) => {
                    self.out.extend_from_slice(&content.bytes(ObjectId(0))[start..start + bytes]);
                }
            }
        }
        self.out.len() - before
    }

    fn owned(&self) -> usize {
        let owned = |piece: &Piece| if let Piece::Owned(bytes) = piece { bytes.len() } else { 0 };
        self.pieces.iter().map(owned).sum()
    }
}

impl Streams for Engine {
    fn accept(&mut self, _: Connection, cookie: u64) -> Result<(), CallError> {
        self.cookie = Some(cookie);
        Ok(())
    }

    fn reject(&mut self, _: Connection) -> Result<(), CallError> {
        self.aborted = true;
        Ok(())
    }

    fn sendv(&mut self, _: Connection, ranges: &[Range<'_>]) -> Result<u64, CallError> {
        assert!(!self.is_over(), "sent after the end");
        let mut taken = 0;
        for range in ranges {
            assert!(range.is_valid());
            if self.pieces.len() >= RANGES {
                break;
            }
            match range {
                Range::Owned(bytes) => {
                    let fits = bytes.len().min(self.quota_bytes.saturating_sub(self.owned()));
                    self.pieces.push_back(Piece::Owned(bytes[..fits].to_vec()));
                    taken += fits as u64;
                    if fits < bytes.len() {
                        break;
                    }
                }
                Range::Object { content, start, bytes, .. } => {
                    self.pieces.push_back(Piece::Object((*content).clone(), *start as usize, *bytes as usize));
                    taken += bytes;
                }
            }
        }
        Ok(taken)
    }

    fn room(&self, _: Connection) -> usize {
        self.quota_bytes.saturating_sub(self.owned())
    }

    fn recv_done(&mut self, _: Connection, bytes: usize) -> Result<(), CallError> {
        self.delivered = self.delivered.checked_sub(bytes).expect("more given back than delivered");
        Ok(())
    }

    fn shutdown(&mut self, _: Connection) -> Result<(), CallError> {
        self.shut = true;
        Ok(())
    }

    fn close(&mut self, _: Connection) -> Result<(), CallError> {
        self.closed = true;
        Ok(())
    }

    fn abort(&mut self, _: Connection) -> Result<(), CallError> {
        self.aborted = true;
        Ok(())
    }

    fn timer_set(&mut self, _: Connection, _: Option<Instant>) -> Result<(), CallError> {
        Ok(())
    }
}
