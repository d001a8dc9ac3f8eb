//! The yardstick: a loop that counts in registers, in the server's own threads, in every other slice of some milliseconds. What it
//! gains with more threads is what the machine has to give just then: it shows processors that share a core, a clock that falls
//! under load, and what others on the machine take.

use base::counter::Counter;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// All threads serve for so long, then all count for so long. Shorter than what a scheduler gives to others of a processor at a time
/// would be pointless; much longer, and server and loop would not have the same machine.
const SLICE: Duration = Duration::from_millis(5);
/// Steps between two looks at the clock.
const STEPS: u64 = 1 << 12;

/// What a thread has counted.
#[derive(Debug, Default)]
pub(super) struct Count {
    pub(super) steps: Counter,
    pub(super) ns: Counter,
}

/// One thread's loop.
#[derive(Debug)]
pub(super) struct Loop {
    /// the same for all threads
    origin: Instant,
    value: u64,
    count: Arc<Count>,
}

impl Loop {
    /// A loop whose slices are counted from `origin` on.
    pub(super) fn new(origin: Instant) -> Loop {
        Loop { origin, value: 1, count: Arc::default() }
    }

    pub(super) fn count(&self) -> &Arc<Count> {
        &self.count
    }

    /// Counts to the end of the slice, if it is one for counting.
    #[inline]
    pub(super) fn turn(&mut self) {
        let now = Instant::now();
        let slice = (now - self.origin).as_nanos() / SLICE.as_nanos();
        if slice % 2 == 1 {
            self.run(now, self.origin + SLICE * (slice as u32 + 1));
        }
    }

    #[inline(never)]
    fn run(&mut self, begun: Instant, end: Instant) {
        let (mut now, mut steps) = (begun, 0);
        while now < end {
            let mut value = self.value;
            for _ in 0..STEPS {
                // a chain that has no shorter form
                value = value.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            }
            self.value = black_box(value);
            steps += STEPS;
            now = Instant::now();
        }
        self.count.steps.add(steps);
        self.count.ns.add((now - begun).as_nanos() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_other_slice_is_counted_through() {
        let mut counting = Loop::new(Instant::now());
        while counting.origin.elapsed() < SLICE * 6 {
            counting.turn();
        }
        let ns = u128::from(counting.count.ns.get());
        assert!(ns > 0 && ns < counting.origin.elapsed().as_nanos());
        assert!(counting.count.steps.get() >= STEPS);
    }
}
