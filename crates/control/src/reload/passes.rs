//! When compressing may go on, so that changes without an end cost a bounded share of the machine: a pass that runs in the rests between the
//! reloads of a watched tree, and is broken off by each, would otherwise take all of them.

use crate::watch::SHARE;
use std::time::{Duration, Instant};

/// The passes so far.
#[derive(Debug)]
pub(super) struct Passes {
    /// whether it is changes that bring reloads about, and not somebody who wants them
    is_watched: bool,
    is_first: bool,
    next: Option<Instant>,
}

impl Passes {
    pub(super) fn new(is_watched: bool) -> Passes {
        Passes { is_watched, is_first: true, next: None }
    }

    /// How long the next one has to wait.
    pub(super) fn due_in(&self, now: Instant) -> Duration {
        self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now))
    }

    /// One has ended, however it did.
    pub(super) fn on_end(&mut self, now: Instant, took: Duration) {
        // what the start left to do was no change's fault
        let is_first = std::mem::replace(&mut self.is_first, false);
        self.next = (self.is_watched && !is_first).then(|| now + took * (SHARE - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_without_an_end_leave_passes_a_fifth_of_the_time() {
        const BETWEEN: Duration = Duration::from_millis(700);
        let begun = Instant::now();
        let (mut passes, mut now, mut took) = (Passes::new(true), begun, Duration::ZERO);
        passes.on_end(now, Duration::from_secs(1000));
        assert_eq!(passes.due_in(now), Duration::ZERO, "the first one is the start's");
        // each goes on until it is broken off by the next reload
        while now < begun + Duration::from_secs(1000) {
            if passes.due_in(now).is_zero() {
                took += BETWEEN;
                passes.on_end(now + BETWEEN, BETWEEN);
            }
            now += BETWEEN;
        }
        assert!((195..=201).contains(&took.as_secs()), "{took:?}");
        // who reloads himself waits for no rest
        let mut passes = Passes::new(false);
        (0..2).for_each(|_| passes.on_end(now, BETWEEN));
        assert_eq!(passes.due_in(now), Duration::ZERO);
    }
}
