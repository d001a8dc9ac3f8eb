//! How much of each pool is in use, and whether what must hold does.

use super::connection::Flags;
use super::engine::{Engine, Named};
use super::starved::Need;
use super::state::State;
use super::tuple::Tuple;

/// What connections hold. With no connection left everything but TIME-WAIT is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// connection blocks, those among them whose end was not told yet
    pub connections: usize,
    /// half-open entries
    pub half_open: usize,
    /// connections in TIME-WAIT
    pub time_wait: usize,
    /// blocks for sending
    pub active: usize,
    /// runs of segments in flight
    pub records: usize,
    /// segments out of order
    pub blocks: usize,
    /// ranges queued
    pub ranges: usize,
    /// blocks of owned bytes
    pub owned_blocks: usize,
    /// timers set
    pub timers: usize,
}

impl Engine {
    fn tuple_of(&self, named: Named) -> Option<Tuple> {
        match named {
            Named::Connection(index) => {
                let c = self.connections.get(index as usize).filter(|c| c.state != State::Closed);
                c.map(|c| c.tuple)
            }
            Named::HalfOpen(index) => self.half_opens.get(index).map(|entry| entry.tuple),
            Named::TimeWait(slot) => self.time_wait.get(slot).map(|closed| closed.tuple),
        }
    }

    /// Checks that each place is free once or taken, and stands in the queue of those with something to do once or not at all.
    fn check_places(&self) {
        let mut seen = vec![(false, false); self.connections.len()];
        for index in &self.free {
            assert!(!std::mem::replace(&mut seen[*index as usize].0, true), "place {index} is free twice");
        }
        for index in &self.ready {
            assert!(!std::mem::replace(&mut seen[*index as usize].1, true), "place {index} is in the queue twice");
        }
        for (index, (c, (free, queued))) in self.connections.iter().zip(seen).enumerate() {
            assert_eq!(c.flags.has(Flags::VACANT), free, "place {index} is free and not known to be, or the reverse");
            assert!(!free || c.state == State::Closed, "place {index} is free and in use");
            assert_eq!(
                c.flags.has(Flags::READY),
                queued,
                "place {index} is in the queue and not known to be, or the reverse"
            );
        }
    }

    /// Checks that each place stands among those that lack something once, and is known to, or not at all.
    fn check_starved(&self) {
        for need in Need::ALL {
            let mut listed = vec![false; self.connections.len()];
            for index in self.starved.of(need) {
                assert!(!std::mem::replace(&mut listed[*index as usize], true), "place {index} lacks {need:?} twice");
            }
            for (index, (c, listed)) in self.connections.iter().zip(listed).enumerate() {
                assert_eq!(
                    c.flags.lacks(need),
                    listed,
                    "place {index} lacks {need:?} and is not known to, or the reverse"
                );
            }
        }
    }

    /// What is in use. Walks through everything, so it is for tests and for who asks by hand.
    ///
    /// # Panics
    /// When sums or lists contradict each other: our own fault.
    pub(crate) fn usage(&self) -> Usage {
        self.check_places();
        self.check_starved();
        let (ranges, owned_blocks) = self.queue.used();
        let mut open = 0;
        for (index, c) in self.connections.iter().enumerate() {
            if c.state == State::Closed {
                continue;
            }
            open += 1;
            let found = self.find(self.table.hash(&c.tuple), &c.tuple);
            assert_eq!(found, Some(Named::Connection(index as u32)), "a connection that cannot be found");
            let Some(a) = self.actives.peek(c.active) else { continue };
            if c.state.is_synchronized() {
                self.records.check(&a.board, c.snd.una, c.snd.nxt);
            }
            assert!(c.snd.nxt <= c.last().max(1), "something was sent that is not queued");
        }
        let entries = open + self.half_opens.len() + self.time_wait.len() as usize;
        assert_eq!(self.table.len() as usize, entries, "entries of the table");
        if let Some(members) = &self.members {
            let listed = members.check(|named| self.tuple_of(named).map_or(u16::MAX, |tuple| members.group(&tuple)));
            assert_eq!(listed, entries, "members of flow groups");
        }
        assert_eq!(self.sources.is_empty(), open + self.half_opens.len() == 0, "sources that hold something");
        Usage {
            connections: self.connections.len() - self.free.len(),
            half_open: self.half_opens.len(),
            time_wait: self.time_wait.len() as usize,
            active: self.actives.used(),
            records: self.records.used(),
            blocks: self.blocks.used(),
            ranges,
            owned_blocks,
            timers: self.wheel.len(),
        }
    }
}
