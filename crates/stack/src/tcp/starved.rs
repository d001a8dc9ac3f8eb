//! Connections that a pool which all share has refused room while nothing of their own was queued.
//!
//! Whoever has something queued is told `sent` when that has gone, and offers again. Whoever has nothing would wait for ever, so it
//! stands here, in the order in which they were refused, until the pool has room again; then it is told `sent` with no bytes.
//!
//! A place of the table stands at most once for each [`Need`], so nothing grows. It keeps its standing when its connection ends or goes
//! to another thread: taking it out would be a search, and when its turn comes it is passed over.

use super::calls::Calls;
use super::connection::{Connection, Flags};
use super::counters::Event;
use super::engine::Engine;
use app::{Range, Service};
use base::Instant;
use std::collections::VecDeque;

/// Connections that one poll goes through at most.
const FED_A_POLL: usize = 64;

/// What a range takes of the pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// an entry
    Range,
    /// an entry and a hold of a chunk
    Chunk,
    /// an entry and a block
    Block,
}

impl Need {
    pub(super) const ALL: [Need; 3] = [Need::Range, Need::Chunk, Need::Block];

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
        }
    }
}

/// They, by what they need.
#[derive(Debug)]
pub(super) struct Starved([VecDeque<u32>; Need::ALL.len()]);

impl Starved {
    /// Of a table of so many connections.
    pub(super) fn new(connections: usize) -> Starved {
        Starved(Need::ALL.map(|_| VecDeque::with_capacity(connections)))
    }

    /// Their places, for what needs this.
    pub(super) fn of(&self, need: Need) -> &VecDeque<u32> {
        &self.0[need as usize]
    }
}

impl Flags {
    /// What a place stands in line for, which is not its connection's to keep or to take along.
    pub(super) const LACKS: u32 = Flags::LACKS_RANGE | Flags::LACKS_CHUNK | Flags::LACKS_BLOCK;

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
        let flags = &mut self.connections[index as usize].flags;
        flags.set(Flags::STARVED);
        if !flags.lacks(need) {
            flags.set(need.flag());
            self.starved.0[need as usize].push_back(index);
        }
    }

    /// A connection that came from another thread, where it lacked this, waits here for the same.
    pub(super) fn starve_again(&mut self, index: u32, lacks: Flags) {
        Need::ALL.into_iter().filter(|need| lacks.lacks(*need)).for_each(|need| self.starve(index, need));
    }

    /// Whether somebody waits for what there is some of again.
    pub(super) fn feeds(&self) -> bool {
        Need::ALL.into_iter().any(|need| !self.starved.of(need).is_empty() && self.queue.has_some(need))
    }

    /// Tells those who wait for room that there is some, as long as there is.
    pub(super) fn feed<S: Service>(&mut self, now: Instant, service: &mut S) {
        let mut left = FED_A_POLL;
        for need in Need::ALL {
            while left > 0 && self.queue.has_some(need) {
                let Some(index) = self.starved.0[need as usize].pop_front() else { break };
                left -= 1;
                let c = &mut self.connections[index as usize];
                let is_fed = c.is_to_be_fed();
                c.flags.clear(need.flag());
                if !c.flags.has(Flags::LACKS) {
                    c.flags.clear(Flags::STARVED);
                }
                if is_fed {
                    let (handle, cookie, active) = (c.handle(index), c.cookie, c.active);
                    let room = self.room(active);
                    service.sent(now, &mut Calls { engine: self, now }, handle, cookie, 0, room);
                    // who has nothing to say after all may be idle now
                    self.wake(index);
                }
            }
        }
    }
}
