//! A hierarchical timer wheel (Varghese and Lauck 1987; the three levels are IX's): setting, cancelling and firing each cost
//! the same however many timers there are.
//!
//! Three levels of 256 slots: one tick (2^14 ns, 16 us) a slot, then 4 ms, then 1.07 s. A timer stands in the finest level
//! that reaches its tick; when time comes to a coarser slot, its timers move to finer ones. What lies beyond the last level
//! (275 s) waits in its last slot and is placed again from there. Ticks without timers are skipped by bit maps, so a long sleep
//! costs nothing to make up for.
//!
//! A timer's time is rounded up to a tick and the clock down, so a timer never fires early; it fires less than two ticks
//! late, if asked for.
//!
//! Timers live in one block of memory of the size given at the start; a handle is place and generation, so that one that
//! has fired is no longer found.

use crate::Instant;

const TICK_SHIFT: u32 = 14;
const SLOT_BITS: u32 = 8;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 3;
/// The list of what is due stands behind the slots.
const DUE: usize = LEVELS * SLOTS;
const NONE: u32 = u32::MAX;

/// A timer that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    index: u32,
    generation: u32,
}

#[derive(Clone, Debug)]
struct Node<T> {
    /// None while the place is free
    value: Option<T>,
    tick: u64,
    generation: u32,
    /// the list it stands in
    list: u32,
    next: u32,
    previous: u32,
}

/// Timers that carry a `T` each.
#[derive(Clone, Debug)]
pub struct Wheel<T> {
    nodes: Vec<Node<T>>,
    /// the first free place; they are chained by `next`
    free: u32,
    heads: Vec<u32>,
    /// which slots of each level have timers
    filled: [[u64; SLOTS / 64]; LEVELS],
    /// time as far as it was worked through
    tick: u64,
    len: usize,
}

impl<T> Wheel<T> {
    /// A wheel for at most `timers` at one time, at the origin of time.
    ///
    /// # Panics
    /// When that is 2^32 - 1 or more.
    pub fn new(timers: usize) -> Self {
        assert!(timers < NONE as usize, "a wheel of {timers} timers");
        let node = |n: usize| Node {
            value: None,
            tick: 0,
            generation: 0,
            list: NONE,
            next: if n + 1 < timers { n as u32 + 1 } else { NONE },
            previous: NONE,
        };
        Wheel {
            nodes: crate::huge::table(timers, node),
            free: if timers == 0 { NONE } else { 0 },
            heads: vec![NONE; DUE + 1],
            filled: [[0; SLOTS / 64]; LEVELS],
            tick: 0,
            len: 0,
        }
    }

    /// Timers set and not yet fired.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no timer is set.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets a timer for `at`, or gives the value back when the wheel is full.
    ///
    /// # Errors
    /// The value.
    pub fn set(&mut self, at: Instant, value: T) -> Result<Timer, T> {
        let index = self.free;
        if index == NONE {
            return Err(value);
        }
        let node = &mut self.nodes[index as usize];
        self.free = node.next;
        node.value = Some(value);
        node.tick = at.as_nanos().div_ceil(1 << TICK_SHIFT);
        let generation = node.generation;
        self.len += 1;
        self.place(index);
        Ok(Timer { index, generation })
    }

    /// Takes a timer back; None when it has fired or was cancelled before.
    pub fn cancel(&mut self, timer: Timer) -> Option<T> {
        match self.nodes.get(timer.index as usize) {
            Some(node) if node.generation == timer.generation && node.value.is_some() => {
                self.unlink(timer.index);
                self.release(timer.index)
            }
            _ => None,
        }
    }

    /// When a timer fires, rounded up to a tick: another wheel that is set to it fires in the same tick. None when it has fired or
    /// was cancelled before.
    pub fn due_at(&self, timer: Timer) -> Option<Instant> {
        let node = self.nodes.get(timer.index as usize)?;
        let is_set = node.generation == timer.generation && node.value.is_some();
        is_set.then(|| Instant::from_nanos(node.tick.saturating_mul(1 << TICK_SHIFT)))
    }

    /// The value of one timer that is due at `now`, which is then gone; None when none is. `now` does not go back.
    pub fn pop(&mut self, now: Instant) -> Option<T> {
        let target = now.as_nanos() >> TICK_SHIFT;
        while self.heads[DUE] == NONE {
            match self.next_tick() {
                Some(tick) if tick <= target => self.turn_to(tick),
                _ => {
                    self.tick = self.tick.max(target);
                    return None;
                }
            }
        }
        let index = self.heads[DUE];
        self.unlink(index);
        self.release(index)
    }

    /// When [`Wheel::pop`] is worth calling next: not after the earliest timer fires, perhaps before.
    pub fn next(&self) -> Option<Instant> {
        if self.heads[DUE] != NONE {
            return Some(Instant::from_nanos(self.tick << TICK_SHIFT));
        }
        self.next_tick().map(|tick| Instant::from_nanos(tick.saturating_mul(1 << TICK_SHIFT)))
    }

    /// The next tick at which a slot of any level has its turn.
    fn next_tick(&self) -> Option<u64> {
        let turn = |level: usize| {
            let shift = SLOT_BITS * level as u32;
            let here = self.tick >> shift;
            distance(&self.filled[level], here as usize % SLOTS).map(|slots| (here + slots) << shift)
        };
        (0..LEVELS).filter_map(turn).min()
    }

    /// Makes `tick`, at which some slot has its turn and none between, the present.
    fn turn_to(&mut self, tick: u64) {
        self.tick = tick;
        // from the coarsest on, since its timers may move into a slot whose turn it is too
        for level in (0..LEVELS).rev() {
            let shift = SLOT_BITS * level as u32;
            if tick & ((1 << shift) - 1) != 0 {
                continue;
            }
            let list = level * SLOTS + (tick >> shift) as usize % SLOTS;
            let mut at = std::mem::replace(&mut self.heads[list], NONE);
            self.mark(list, false);
            while at != NONE {
                let next = self.nodes[at as usize].next;
                if let Some(node) = self.nodes.get(next as usize) {
                    crate::prefetch::read(node);
                }
                self.place(at);
                at = next;
            }
        }
    }

    /// Puts a timer that stands in no list where its tick belongs.
    fn place(&mut self, index: u32) {
        let (tick, now) = (self.nodes[index as usize].tick, self.tick);
        let list = if tick <= now {
            DUE
        } else {
            let reaches = |level: usize| (tick >> (SLOT_BITS * level as u32)) - (now >> (SLOT_BITS * level as u32));
            match (0..LEVELS).find(|&level| reaches(level) < SLOTS as u64) {
                Some(level) => level * SLOTS + (tick >> (SLOT_BITS * level as u32)) as usize % SLOTS,
                None => {
                    let last = (now >> (SLOT_BITS * (LEVELS as u32 - 1))) + SLOTS as u64 - 1;
                    (LEVELS - 1) * SLOTS + last as usize % SLOTS
                }
            }
        };
        let head = std::mem::replace(&mut self.heads[list], index);
        if head != NONE {
            self.nodes[head as usize].previous = index;
        }
        let node = &mut self.nodes[index as usize];
        (node.list, node.next, node.previous) = (list as u32, head, NONE);
        self.mark(list, true);
    }

    fn unlink(&mut self, index: u32) {
        let Node { list, next, previous, .. } = self.nodes[index as usize];
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
        if previous != NONE {
            self.nodes[previous as usize].next = next;
        } else {
            self.heads[list as usize] = next;
            if next == NONE {
                self.mark(list as usize, false);
            }
        }
    }

    fn release(&mut self, index: u32) -> Option<T> {
        let node = &mut self.nodes[index as usize];
        node.generation = node.generation.wrapping_add(1);
        node.next = self.free;
        self.free = index;
        self.len -= 1;
        node.value.take()
    }

    fn mark(&mut self, list: usize, filled: bool) {
        if list == DUE {
            return;
        }
        let (word, bit) = (&mut self.filled[list / SLOTS][list % SLOTS / 64], 1u64 << (list % 64));
        if filled { *word |= bit } else { *word &= !bit }
    }
}

/// From slot `here` to the next filled one, going round, `here` itself last.
fn distance(filled: &[u64; SLOTS / 64], here: usize) -> Option<u64> {
    let start = (here + 1) % SLOTS;
    let words = filled.len();
    for n in 0..=words {
        let index = (start / 64 + n) % words;
        let mut word = filled[index];
        if n == 0 {
            word &= u64::MAX << (start % 64);
        } else if n == words {
            word &= !(u64::MAX << (start % 64));
        }
        if word != 0 {
            let slot = index * 64 + word.trailing_zeros() as usize;
            return Some(((slot + SLOTS - start) % SLOTS + 1) as u64);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const TICK_NS: u64 = 1 << TICK_SHIFT;

    #[derive(Clone, Debug)]
    enum Step {
        Set(u64),
        Cancel(usize),
        Advance(u64),
    }

    /// Spans of all sizes: within a slot, across each level, beyond the last.
    fn span() -> impl Strategy<Value = u64> {
        (0u32..41, any::<u64>()).prop_map(|(bits, n)| n & ((1 << bits) - 1))
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => span().prop_map(Step::Set),
            1 => any::<usize>().prop_map(Step::Cancel),
            3 => span().prop_map(Step::Advance),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]
        #[test]
        fn fires_what_a_plain_list_fires(steps in prop::collection::vec(step(), 1..100)) {
            let mut wheel = Wheel::new(40);
            // the slow twin: time and handle of each number
            let mut twin: Vec<(u64, Timer, usize)> = Vec::new();
            let (mut now, mut number) = (0u64, 0);
            for step in steps {
                match step {
                    Step::Set(after) => {
                        let at = now + after;
                        match wheel.set(Instant::from_nanos(at), number) {
                            Ok(timer) => twin.push((at, timer, number)),
                            Err(value) => prop_assert!(value == number && twin.len() == 40),
                        }
                        number += 1;
                    }
                    Step::Cancel(n) if !twin.is_empty() => {
                        let (at, timer, value) = twin.swap_remove(n % twin.len());
                        let tick = at.div_ceil(TICK_NS) * TICK_NS;
                        prop_assert_eq!(wheel.due_at(timer), Some(Instant::from_nanos(tick)));
                        prop_assert_eq!(wheel.cancel(timer), Some(value));
                        prop_assert_eq!(wheel.cancel(timer), None);
                    }
                    Step::Cancel(_) => {}
                    Step::Advance(by) => {
                        now += by;
                        let mut last_tick = 0;
                        while let Some(value) = wheel.pop(Instant::from_nanos(now)) {
                            let place = twin.iter().position(|entry| entry.2 == value);
                            prop_assert!(place.is_some(), "{} fired twice", value);
                            let (at, timer, _) = twin.swap_remove(place.unwrap());
                            prop_assert!(at <= now, "early: {at} at {now}");
                            prop_assert!(wheel.due_at(timer).is_none() && wheel.cancel(timer).is_none());
                            // in the order of ticks, but for those that were due when they were set
                            let tick = at.div_ceil(TICK_NS);
                            prop_assert!(tick >= last_tick || tick <= (now - by).div_ceil(TICK_NS));
                            last_tick = last_tick.max(tick);
                        }
                        let left = twin.iter().find(|entry| entry.0.div_ceil(TICK_NS) <= now / TICK_NS);
                        prop_assert!(left.is_none(), "late: {:?} at {}", left, now);
                    }
                }
                prop_assert_eq!(wheel.len(), twin.len());
                // a sleep until `next` misses none
                let earliest = twin.iter().map(|entry| entry.0.div_ceil(TICK_NS) * TICK_NS).min();
                prop_assert_eq!(wheel.next().is_some(), earliest.is_some());
                if let (Some(next), Some(earliest)) = (wheel.next(), earliest) {
                    prop_assert!(next.as_nanos() <= earliest.max(now), "{next:?} after {earliest}");
                }
            }
        }
    }

    #[test]
    fn sleeping_from_next_to_next_ends_in_time() {
        let mut wheel = Wheel::new(1);
        let at = Instant::ZERO + Duration::from_secs(1000);
        wheel.set(at, ()).unwrap();
        let mut wakes = 0;
        let fired = loop {
            let next = wheel.next().expect("a timer is set");
            if wheel.pop(next).is_some() {
                break next;
            }
            wakes += 1;
        };
        assert!(fired >= at && fired - at < Duration::from_nanos(TICK_NS));
        // beyond the last level: once round it three times, then once a level
        assert!(wakes <= 3 + LEVELS, "{wakes}");
    }

    #[test]
    fn a_full_wheel_gives_the_value_back_and_an_empty_one_has_nothing() {
        let mut wheel = Wheel::new(0);
        assert_eq!(wheel.set(Instant::ZERO, "x"), Err("x"));
        assert!(wheel.is_empty() && wheel.next().is_none() && wheel.pop(Instant::MAX).is_none());
    }
}
