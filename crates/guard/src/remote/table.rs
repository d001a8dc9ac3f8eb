//! The connections of an application, as the trusted half knows them.

use crate::layout::{ADDRESSES_BYTES, Handle};
use app::{Bound, Connection, Listener, Share};
use std::collections::VecDeque;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Free,
    /// the application was told of it and has not answered
    Told,
    /// the application has asked for it, and the engine has not said what became of it
    Asking,
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
    /// it was waited for long enough
    Late,
}

/// A connection that came: by which listener, and both ends' addresses as they are told.
#[derive(Debug)]
pub(super) struct Knock {
    pub(super) listener: Listener,
    pub(super) addresses: [u8; ADDRESSES_BYTES],
}

/// What happened and found no room among the events.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// that it came
    pub(super) knock: Option<Knock>,
    /// what became of it, as the event's detail
    pub(super) connected: Option<u8>,
    pub(super) bytes: VecDeque<u8>,
    pub(super) eof: bool,
    /// bytes that were taken; none tells that the peer is not to blame
    pub(super) sent: Option<u64>,
    /// the time that it was set to
    pub(super) timer: Option<u64>,
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
    /// what the timer was set to last, in ns
    pub(super) timer_at: u64,
    /// bytes that the engine has not taken
    pub(super) pending: VecDeque<u8>,
    /// how often in a row it was excused for that
    pub(super) excused: u8,
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
            timer_at: 0,
            pending: VecDeque::new(),
            excused: 0,
            waiting: None,
        }
    }

    /// Whether the application has not even been told that it came.
    pub(super) fn is_untold(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.knock.is_some())
    }

    /// Whether something of it waits and the engine has nothing of it, so that its peer has nothing to take.
    pub(super) fn is_all_pending(&self) -> bool {
        !self.pending.is_empty() && self.unsent == self.pending.len() as u64
    }
}

/// Slots and which of them are free: first those of connections that come, then those of connections that the application asks for,
/// which it chooses from itself.
#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// places of connections that come, and the most that there may be of all
    connections: u32,
    /// how many there are, of those that there may be over all threads
    share: Share,
}

/// Whether a place is one that the application may ask for a connection at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// it is not among those
    Never,
    Free,
    Taken,
    /// the engine has not let go of the one that was there in an earlier life of the application
    Leaving,
}

impl Table {
    pub(super) fn new(connections: u32, asked: u32, bound: Bound) -> Table {
        let slots = (0..connections + asked).map(|_| Slot::new()).collect();
        Table { slots, free: (0..connections).rev().collect(), connections, share: Share::new(bound) }
    }

    /// Whether there are as many as there may be.
    pub(super) fn is_full(&mut self) -> bool {
        self.len() >= self.connections as usize || !self.share.has_room()
    }

    /// A place for a connection that has come; None when all are taken.
    pub(super) fn insert(&mut self, connection: Connection) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        let index = self.free.pop()?;
        self.share.take();
        let slot = &mut self.slots[index as usize];
        slot.phase = Phase::Told;
        slot.connection = connection;
        Some(index)
    }

    /// How it stands with a place that the application has chosen.
    pub(super) fn asked(&self, index: u32) -> Asked {
        match self.slots.get(index as usize) {
            Some(slot) if index >= self.connections => match slot.phase {
                Phase::Free => Asked::Free,
                Phase::Dropped => Asked::Leaving,
                _ => Asked::Taken,
            },
            _ => Asked::Never,
        }
    }

    /// Takes a place that is [`Asked::Free`] for a connection that was asked for.
    pub(super) fn claim(&mut self, handle: Handle, connection: Connection) {
        let slot = &mut self.slots[handle.index as usize];
        debug_assert_eq!(slot.phase, Phase::Free);
        (slot.phase, slot.generation, slot.connection) = (Phase::Asking, handle.generation, connection);
        // whoever claims has asked whether there is room
        self.share.take();
    }

    /// Frees a place; its handle is void from now on.
    pub(super) fn remove(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.phase == Phase::Free {
            return;
        }
        let generation = slot.generation.wrapping_add(1);
        *slot = Slot { generation, ..Slot::new() };
        self.share.give();
        if index < self.connections {
            self.free.push(index);
        }
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
        self.share.used()
    }

    pub(super) fn places(&self) -> u32 {
        self.slots.len() as u32
    }
}
