//! Which names the driver has: the hottest, as far as what was counted tells them apart.
//!
//! A name's heat is how often it was counted, by the driver and by the serving threads, a second's count weighing seven eighths
//! of the next one's; so a steady rate is eight times itself. A name that the driver has keeps its *seat*, the place of its
//! counter, until another one is clearly hotter: by twice the heat of all that must go for it and by [`MARGIN`] more, so that
//! under a steady load chance moves nobody, and a name that was asked for a few times never does.
//!
//! Memory: about 50 octets a seat, and 16 for each name that waits; those are bounded, the coldest go first.

use bpf::steering::Size;
use dns::fixed::NameId;
use std::collections::{HashMap, HashSet};

/// By so much heat a newcomer is hotter, at least: with one answer of sixteen counted, 32 questions a second.
const MARGIN: f32 = 16.0;
/// What the heat of a name that the driver has is taken times.
const LEAD: f32 = 2.0;
/// What is left of a heat after a round.
const KEPT: f32 = 7.0 / 8.0;
/// A name that waits with less than that is forgotten.
const FORGOTTEN: f32 = 0.5;
/// Most names that go in at once; the others do in the next rounds.
const MOST_CHANGES: usize = 1024;
/// So many of the coldest are looked at for each that wants in.
const COLD_A_CHANGE: usize = 4;
const MOST_WAITING: usize = 1 << 18;
const LEAST_WAITING: usize = 1 << 12;

/// A name that the driver has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Seat {
    pub(super) name: NameId,
    pub(super) heat: f32,
    size: Size,
}

/// The names that the driver has and those that wait, all of one version of the tables.
#[derive(Debug)]
pub(super) struct Choice {
    /// by number; None: nobody's
    seats: Vec<Option<Seat>>,
    by_name: HashMap<NameId, u32>,
    /// numbers of seats that are nobody's
    free: Vec<u32>,
    used: Size,
    room: Size,
    waiting: HashMap<NameId, f32>,
    /// names that the driver cannot have
    unfit: HashSet<NameId>,
}

/// Names that go and that come, with the numbers of their seats.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) out: Vec<(u32, NameId)>,
    pub(super) into: Vec<(u32, NameId)>,
}

impl Choice {
    /// Of at most `names` names, whose entries have so much room; none is in yet.
    pub(super) fn new(names: u32, room: Size) -> Choice {
        Choice {
            seats: vec![None; names as usize],
            by_name: HashMap::new(),
            free: (0..names).rev().collect(),
            used: Size::default(),
            room,
            waiting: HashMap::new(),
            unfit: HashSet::new(),
        }
    }

    /// Names that are in.
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// The most there may be.
    pub(super) fn seats(&self) -> usize {
        self.seats.len()
    }

    pub(super) fn has(&self, name: NameId) -> bool {
        self.by_name.contains_key(&name)
    }

    /// The seat for the next name that comes; None when all are taken.
    pub(super) fn next_seat(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// A name is in, at [`Choice::next_seat`].
    pub(super) fn sit(&mut self, name: NameId, heat: f32, size: Size) {
        let Some(at) = self.free.pop() else { return };
        self.seats[at as usize] = Some(Seat { name, heat, size });
        self.by_name.insert(name, at);
        self.used = Size { short: self.used.short + size.short, long: self.used.long + size.long };
    }

    /// A name is not in any more; its heat is kept.
    fn leave(&mut self, at: u32) {
        let Some(Seat { name, heat, size }) = self.seats[at as usize].take() else { return };
        self.by_name.remove(&name);
        self.free.push(at);
        self.used = Size { short: self.used.short - size.short, long: self.used.long - size.long };
        self.waiting.insert(name, heat);
    }

    /// Names that are in, the hottest first.
    pub(super) fn hottest(&self) -> Vec<Seat> {
        let mut all: Vec<Seat> = self.seats.iter().flatten().copied().collect();
        all.sort_by(|one, other| other.heat.total_cmp(&one.heat).then(one.name.cmp(&other.name)));
        all
    }

    /// So often a name was counted by a serving thread.
    pub(super) fn asked(&mut self, name: NameId, times: u32) {
        let heat = match self.by_name.get(&name).and_then(|at| self.seats[*at as usize].as_mut()) {
            Some(seat) => &mut seat.heat,
            None if self.unfit.contains(&name) => return,
            None => self.waiting.entry(name).or_default(),
        };
        *heat += times as f32;
    }

    /// So often the driver answered for the name of this seat.
    pub(super) fn answered(&mut self, at: usize, times: u32) {
        if let Some(Some(seat)) = self.seats.get_mut(at) {
            seat.heat += times as f32;
        }
    }

    /// What was counted before weighs less from now on.
    pub(super) fn age(&mut self) {
        self.seats.iter_mut().flatten().for_each(|seat| seat.heat *= KEPT);
        self.waiting.retain(|_, heat| {
            *heat *= KEPT;
            *heat >= FORGOTTEN
        });
    }

    /// Lets the coldest names go that wait, where there are too many.
    pub(super) fn bound(&mut self) {
        let most = (2 * self.seats.len()).clamp(LEAST_WAITING, MOST_WAITING);
        if self.waiting.len() <= most {
            return;
        }
        let mut all: Vec<(NameId, f32)> = self.waiting.drain().collect();
        all.select_nth_unstable_by(most, |one, other| other.1.total_cmp(&one.1));
        all.truncate(most);
        self.waiting.extend(all);
    }

    /// What is to change now; seats are as if it had been done. `size` says what a name takes.
    pub(super) fn change(&mut self, mut size: impl FnMut(NameId) -> Size) -> Change {
        let mut hot: Vec<(NameId, f32)> =
            self.waiting.iter().map(|(name, heat)| (*name, *heat)).filter(|(_, heat)| *heat >= MARGIN).collect();
        hot.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
        hot.truncate(MOST_CHANGES);
        let mut change = Change::default();
        if hot.is_empty() {
            return change;
        }
        let mut cold = self.coldest(COLD_A_CHANGE * hot.len());
        for (name, heat) in hot {
            let size = size(name);
            if size.short > self.room.short || size.long > self.room.long {
                self.refuse(name);
                continue;
            }
            // a colder one finds no room either, unless it takes less; that one comes in a later round
            let Some(going) = self.to_go(&cold, heat, size) else { break };
            cold.retain(|at| !going.contains(at));
            for at in going {
                change.out.extend(self.seats[at as usize].map(|seat| (at, seat.name)));
                self.leave(at);
            }
            self.waiting.remove(&name);
            change.into.extend(self.next_seat().map(|at| (at, name)));
            self.sit(name, heat, size);
        }
        change
    }

    /// The driver did not take a name that was to come in: it never can, or else it waits on.
    pub(super) fn refused(&mut self, at: u32, name: NameId, unfit: bool) {
        self.leave(at);
        if unfit {
            self.refuse(name);
        }
    }

    fn refuse(&mut self, name: NameId) {
        self.waiting.remove(&name);
        self.unfit.insert(name);
    }

    /// The seats of about so many of the coldest, the coldest first.
    fn coldest(&self, count: usize) -> Vec<u32> {
        let taken = self.seats.iter().enumerate().filter_map(|(at, seat)| Some((seat.as_ref()?.heat, at as u32)));
        let mut all: Vec<(f32, u32)> = taken.collect();
        let by_heat = |one: &(f32, u32), other: &(f32, u32)| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1));
        if count < all.len() {
            all.select_nth_unstable_by(count, by_heat);
            all.truncate(count);
        }
        all.sort_by(by_heat);
        all.into_iter().map(|(_, at)| at).collect()
    }

    /// Who goes so that one of this heat and size has room; None when those are not colder by far.
    fn to_go(&self, cold: &[u32], heat: f32, size: Size) -> Option<Vec<u32>> {
        let (mut going, mut lost) = (Vec::new(), 0.0);
        let mut used = Size { short: self.used.short + size.short, long: self.used.long + size.long };
        let mut seats = self.free.len();
        let mut cold = cold.iter();
        loop {
            let (short, long) = (used.short > self.room.short, used.long > self.room.long);
            if seats > 0 && !short && !long {
                return Some(going);
            }
            let seat = loop {
                let at = *cold.next()?;
                // one that has none of what is missing would go for nothing
                match &self.seats[at as usize] {
                    Some(seat) if seats == 0 || short || long && seat.size.long > 0 => {
                        going.push(at);
                        break seat;
                    }
                    _ => {}
                }
            };
            lost += seat.heat;
            if heat < LEAD * lost + MARGIN {
                return None;
            }
            used = Size { short: used.short - seat.size.short, long: used.long - seat.size.long };
            seats += 1;
        }
    }
}

#[cfg(test)]
mod tests;
