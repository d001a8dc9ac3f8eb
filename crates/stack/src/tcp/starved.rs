//! Connections that a pool which all share has refused room while nothing of their own would bring them back.
//!
//! Whoever has something queued is told `sent` when that has gone, and offers again. Whoever has nothing would wait for ever, so it
//! stands here, in the order in which they were refused, until the pool has room again; then it is told `sent` with no bytes. Whoever
//! found no record for what it was to send stands here as well, and has another turn then.
//!
//! A place of the table stands at most once for each [`Need`], so nothing grows. It keeps its standing when its connection ends or goes
//! to another thread: taking it out would be a search, and when its turn comes it is passed over.

use super::calls::Calls;
use super::connection::{Connection, Flags};
use super::counters::Event;
use super::engine::Engine;
use super::state::State;
use app::{Range, Service};
use base::Instant;
use std::collections::VecDeque;

/// Connections that one poll goes through at most.
const FED_A_POLL: usize = 64;

/// What is taken of the pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// an entry
    Range,
    /// an entry and a hold of a chunk
    Chunk,
    /// an entry and a block
    Block,
    /// a record of what is in flight
    Record,
}

impl Need {
    pub(super) const ALL: [Need; 4] = [Need::Range, Need::Chunk, Need::Block, Need::Record];

    /// Of a range that is to be queued.
    pub(super) fn of(range: &Range<'_>) -> Need {
        match range {
            Range::Object { content, .. } if content.is_chunk() => Need::Chunk,
            Range::Object { .. } => Need::Range,
            Range::Owned(_) => Need::Block,
        }
    }

    /// That a place stands among those that need this.
    const fn flag(self) -> u32 {
        match self {
            Need::Range => Flags::LACKS_RANGE,
            Need::Chunk => Flags::LACKS_CHUNK,
            Need::Block => Flags::LACKS_BLOCK,
            Need::Record => Flags::LACKS_RECORD,
        }
    }
}

/// They, by what they need.
#[derive(Debug)]
pub(super) struct Starved {
    lines: [VecDeque<u32>; Need::ALL.len()],
    /// in all lines
    count: usize,
}

impl Starved {
    /// Of a table of so many connections.
    pub(super) fn new(connections: usize) -> Starved {
        Starved { lines: Need::ALL.map(|_| VecDeque::with_capacity(connections)), count: 0 }
    }

    /// Their places, for what needs this.
    pub(super) fn of(&self, need: Need) -> &VecDeque<u32> {
        &self.lines[need as usize]
    }

    fn push(&mut self, need: Need, index: u32) {
        self.lines[need as usize].push_back(index);
        self.count += 1;
    }

    fn pop(&mut self, need: Need) -> Option<u32> {
        let index = self.lines[need as usize].pop_front()?;
        self.count -= 1;
        Some(index)
    }
}

impl Flags {
    /// What a place stands in line for that a service is told of.
    const LACKS_ROOM: u32 = Flags::LACKS_RANGE | Flags::LACKS_CHUNK | Flags::LACKS_BLOCK;
    /// What a place stands in line for, which is not its connection's to keep or to take along.
    pub(super) const LACKS: u32 = Flags::LACKS_ROOM | Flags::LACKS_RECORD;

    /// Whether a place stands among those that need this.
    pub(super) const fn lacks(self, need: Need) -> bool {
        self.has(need.flag())
    }
}

impl Connection {
    /// May send, and would be told so.
    fn is_to_be_fed(&self) -> bool {
        self.flags.has(Flags::STARVED)
            && self.state.may_send()
            && self.flags.has(Flags::ACCEPTED)
            && !self.flags.has(Flags::FIN | Flags::ABANDONED)
    }
}

impl Engine {
    /// Less was taken of what a connection was to send than was offered: `range` first.
    #[cold]
    pub(super) fn on_short(&mut self, index: u32, range: &Range<'_>) {
        let need = Need::of(range);
        let c = &mut self.connections[index as usize];
        let Some(a) = self.actives.get(c.active) else { return };
        if self.queue.is_at_quota(&a.list, need) {
            return;
        }
        self.counters.on(Event::QueueShort);
        if a.list.is_empty() && !self.queue.has_some(need) {
            if c.snd.una == c.last() {
                self.actives.lend(c.active);
            }
            self.starve(index, need);
        }
    }

    fn starve(&mut self, index: u32, need: Need) {
        self.connections[index as usize].flags.set(Flags::STARVED);
        self.stand(index, need);
    }

    /// Has a place stand in line, where it does not yet.
    pub(super) fn stand(&mut self, index: u32, need: Need) {
        let flags = &mut self.connections[index as usize].flags;
        if !flags.lacks(need) {
            flags.set(need.flag());
            self.starved.push(need, index);
        }
    }

    /// A connection that came from another thread, where its service waited for room, waits here for the same.
    pub(super) fn starve_again(&mut self, index: u32, lacks: Flags) {
        let room = [Need::Range, Need::Chunk, Need::Block];
        room.into_iter().filter(|need| lacks.lacks(*need)).for_each(|need| self.starve(index, need));
    }

    fn has_some(&self, need: Need) -> bool {
        match need {
            Need::Record => self.records.may_split(),
            Need::Range | Need::Chunk | Need::Block => self.queue.has_some(need),
        }
    }

    /// Whether somebody waits for what there is some of again.
    #[inline]
    pub(super) fn feeds(&self) -> bool {
        self.starved.count > 0 && self.can_feed()
    }

    #[cold]
    fn can_feed(&self) -> bool {
        Need::ALL.into_iter().any(|need| !self.starved.of(need).is_empty() && self.has_some(need))
    }

    /// Tells those who wait for room that there is some, and has those who wait for a record go on, as long as there is.
    #[cold]
    pub(super) fn feed<S: Service>(&mut self, now: Instant, service: &mut S) {
        let mut left = FED_A_POLL;
        for need in Need::ALL {
            while left > 0 && self.has_some(need) {
                let Some(index) = self.starved.pop(need) else { break };
                left -= 1;
                let c = &mut self.connections[index as usize];
                let is_told = need != Need::Record && c.is_to_be_fed();
                c.flags.clear(need.flag());
                if !c.flags.has(Flags::LACKS_ROOM) {
                    c.flags.clear(Flags::STARVED);
                }
                if is_told {
                    let (handle, cookie, active) = (c.handle(index), c.cookie, c.active);
                    let room = self.room(active);
                    service.sent(now, &mut Calls { engine: self, now }, handle, cookie, 0, room);
                }
                // who has nothing to say after all may be idle now; the place may be nobody's
                if self.connections[index as usize].state != State::Closed {
                    self.wake(index);
                }
            }
        }
    }
}
