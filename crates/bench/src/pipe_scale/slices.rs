//! The yardstick: a loop that counts in registers, in the server's own threads, in every other slice of some milliseconds. What it
//! gains with more threads is what the machine has to give just then: it shows processors that share a core, a clock that falls
//! under load, and what others on the machine take. Not what caches and memory give.
//!
//! Dataplanes that are compared take turns by slices as well: the host of a virtual machine moves its processors about within
//! seconds, and two measurements a second apart are not of the same machine.

use base::counter::Counter;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// All threads serve for so long, then all count for so long. Shorter than what a scheduler gives to others of a processor at a time
/// would be pointless; much longer, and server and loop would not have the same machine.
const SLICE: Duration = Duration::from_millis(5);
/// Steps between two looks at the clock.
const STEPS: u64 = 1 << 12;
/// Of instructions that wait for each other. One alone leaves most of a core unused, and would not feel that another processor is the other
/// half of its core; so many keep all of a core's units for such instructions busy, of which there are four to six.
const CHAINS: usize = 6;

/// Which slices are a dataplane's: it serves in the first of its two, counts in the second, and sleeps while another one has its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turns {
    /// the same for all threads
    origin: Instant,
    nth: u32,
    of: u32,
}

/// What is done in a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slice {
    Serve,
    Count,
    Wait,
}

impl Turns {
    /// Those of so many that take turns.
    pub(super) fn of(dataplanes: usize) -> impl Iterator<Item = Turns> {
        let (origin, of) = (Instant::now(), dataplanes as u32);
        (0..of).map(move |nth| Turns { origin, nth, of })
    }

    /// What is done at a moment, and when the slice ends.
    fn at(&self, now: Instant) -> (Slice, Instant) {
        let slice = ((now - self.origin).as_nanos() / SLICE.as_nanos()) as u32;
        let what = match slice % (2 * self.of) {
            turn if turn / 2 != self.nth => Slice::Wait,
            turn if turn % 2 == 0 => Slice::Serve,
            _ => Slice::Count,
        };
        (what, self.origin + SLICE * (slice + 1))
    }
}

/// What a thread has done in the slices that are over.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counts {
    pub(super) answers: Counter,
    pub(super) served_ns: Counter,
    pub(super) steps: Counter,
    pub(super) counted_ns: Counter,
}

/// One thread's slices.
#[derive(Debug)]
pub(super) struct Sliced {
    turns: Turns,
    /// since when it serves, once it does
    since: Option<Instant>,
    values: [u64; CHAINS],
    counts: Arc<Counts>,
}

impl Sliced {
    pub(super) fn new(turns: Turns) -> Sliced {
        Sliced { turns, since: None, values: std::array::from_fn(|n| n as u64), counts: Arc::default() }
    }

    pub(super) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Returns while it is to serve; the thread's clients have had so many answers.
    #[inline]
    pub(super) fn turn(&mut self, answered: u64) {
        let now = Instant::now();
        if self.since.is_none() || self.turns.at(now).0 != Slice::Serve {
            self.leave(now, answered);
        }
    }

    /// Everything that comes before it is to serve again.
    #[inline(never)]
    fn leave(&mut self, mut now: Instant, answered: u64) {
        let served = self.since.map_or(Duration::ZERO, |since| now - since);
        self.counts.served_ns.add(served.as_nanos() as u64);
        self.counts.answers.set(answered);
        loop {
            match self.turns.at(now) {
                (Slice::Serve, _) => break,
                (Slice::Count, end) => self.count(now, end),
                (Slice::Wait, end) => std::thread::sleep(end - now),
            }
            now = Instant::now();
        }
        self.since = Some(now);
    }

    fn count(&mut self, begun: Instant, end: Instant) {
        let (mut now, mut steps) = (begun, 0);
        while now < end {
            self.values = black_box(stepped(self.values));
            steps += STEPS;
            now = Instant::now();
        }
        self.counts.steps.add(steps);
        self.counts.counted_ns.add((now - begun).as_nanos() as u64);
    }
}

/// So many steps of each chain, in registers.
fn stepped(mut values: [u64; CHAINS]) -> [u64; CHAINS] {
    for _ in 0..STEPS {
        // no shorter form of several steps is known
        values = values.map(|value| (value ^ value.rotate_left(5)).wrapping_add(0x9e37_79b9_7f4a_7c15));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_dealt_out_in_turn() {
        let slices = |turns: Turns| -> Vec<Slice> {
            (0..8).map(|n| turns.at(turns.origin + SLICE * n + SLICE / 2)).map(|(slice, _)| slice).collect()
        };
        use Slice::{Count, Serve, Wait};
        let alone: Vec<_> = Turns::of(1).map(slices).collect();
        assert_eq!(alone, [[Serve, Count, Serve, Count, Serve, Count, Serve, Count]]);
        let two: Vec<_> = Turns::of(2).map(slices).collect();
        assert_eq!(two[0], [Serve, Count, Wait, Wait, Serve, Count, Wait, Wait]);
        assert_eq!(two[1], [Wait, Wait, Serve, Count, Wait, Wait, Serve, Count]);
        for turns in Turns::of(3) {
            assert_eq!(turns.at(turns.origin + SLICE / 2).1, turns.origin + SLICE);
        }
    }

    #[test]
    fn what_is_not_served_in_is_counted_through_or_slept_through() {
        for turns in [Turns::of(1).last(), Turns::of(3).last()].into_iter().flatten() {
            let (mut sliced, begun) = (Sliced::new(turns), Instant::now());
            let (counts, mut answered) = (sliced.counts().clone(), 0);
            // other tests may keep it from its processor while it is its turn
            while counts.steps.get() == 0 || counts.served_ns.get() == 0 || begun.elapsed() < SLICE * 12 {
                answered += 1;
                sliced.turn(answered);
                assert_eq!(sliced.since.map(|since| turns.at(since).0), Some(Slice::Serve));
                assert!(begun.elapsed() < Duration::from_secs(60), "{counts:?}");
            }
            let (served, counted) = (counts.served_ns.get(), counts.counted_ns.get());
            let all = u128::from(served) + u128::from(counted);
            assert!(served > 0 && counted > 0 && all <= begun.elapsed().as_nanos() + SLICE.as_nanos(), "{counts:?}");
            let answers = counts.answers.get();
            assert!(answers > 0 && answers <= answered, "{answers} {answered}");
        }
    }
}
