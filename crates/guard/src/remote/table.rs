//! The connections of an application, as the trusted half knows them.

use crate::layout::Handle;
use app::Connection;
use std::collections::VecDeque;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Free,
    /// the application was told of it and has not answered
    Told,
    Open,
    /// the application has closed or aborted it
    Ended,
    /// the engine has ended it, and that waits to be told
    Dead,
    /// the application knows nothing of it any more; the engine will say that it is gone
    Dropped,
}

/// What is to be done when nothing of the application's waits for the engine any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    Nothing,
    Shutdown,
    Close,
}

/// What happened and found no room among the events.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) bytes: VecDeque<u8>,
    pub(super) eof: bool,
    pub(super) sent: u64,
    pub(super) timer: bool,
    /// the reason's number
    pub(super) dead: Option<u8>,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) phase: Phase,
    pub(super) generation: u32,
    pub(super) connection: Connection,
    /// bytes told and not given back
    pub(super) told: u64,
    /// bytes taken from the application and not reported to it
    pub(super) unsent: u64,
    /// the application has ended its writing side
    pub(super) shut: bool,
    pub(super) finish: Finish,
    /// bytes that the engine has not taken
    pub(super) pending: VecDeque<u8>,
    /// stands in the line of those that have some
    pub(super) deferred: bool,
    pub(super) waiting: Option<Box<Waiting>>,
}

const NOBODY: Connection = Connection { index: 0, generation: 0 };

impl Slot {
    fn new() -> Slot {
        Slot {
            phase: Phase::Free,
            generation: 0,
            connection: NOBODY,
            told: 0,
            unsent: 0,
            shut: false,
            finish: Finish::Nothing,
            pending: VecDeque::new(),
            deferred: false,
            waiting: None,
        }
    }
}

/// Slots and which of them are free.
#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Table {
    pub(super) fn new(connections: u32) -> Table {
        Table { slots: (0..connections).map(|_| Slot::new()).collect(), free: (0..connections).rev().collect() }
    }

    /// A place for a connection; None when all are taken.
    pub(super) fn insert(&mut self, connection: Connection) -> Option<u32> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[index as usize];
        slot.phase = Phase::Told;
        slot.connection = connection;
        Some(index)
    }

    /// Frees a place; its handle is void from now on.
    pub(super) fn remove(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.phase == Phase::Free {
            return;
        }
        let generation = slot.generation.wrapping_add(1);
        *slot = Slot { generation, ..Slot::new() };
        self.free.push(index);
    }

    /// The slot at a place that is ours: an engine's cookie, or an index that was judged.
    pub(super) fn at(&mut self, index: u32) -> Option<&mut Slot> {
        self.slots.get_mut(index as usize).filter(|slot| slot.phase != Phase::Free)
    }

    /// Asks for a place, whoever's word it is that there is one.
    #[inline]
    pub(super) fn foresee(&self, index: u32) {
        if let Some(slot) = self.slots.get(index as usize) {
            crate::map::foresee_value(slot);
        }
    }

    pub(super) fn has(&self, index: u32) -> bool {
        (index as usize) < self.slots.len()
    }

    pub(super) fn handle(&self, index: u32) -> Handle {
        Handle { index, generation: self.slots[index as usize].generation }
    }

    /// Places that are taken.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn places(&self) -> u32 {
        self.slots.len() as u32
    }
}
