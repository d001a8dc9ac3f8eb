//! Whether to ask the kernel once more before sleeping.
//!
//! Going to sleep and being woken costs several times what a receive that finds nothing costs. So the adaptive policy asks
//! again as long as at least half of the recent attempts brought something; otherwise it tries one time in [`PROBE`], to
//! notice a change. An idle thread asks at most once more and then sleeps. It does not yield the processor first: on a
//! machine that is shared, whoever gets it keeps it for milliseconds.

use crate::config::Idle;

const PROBE: u32 = 32;
const ALL: u32 = 256;
const PAYS: u32 = ALL / 2;
/// An attempt changes the average by 1/8 of the difference.
const WEIGHT_SHIFT: u32 = 3;

/// A thread's policy with what it has learned.
#[derive(Debug)]
pub(crate) struct Governor {
    idle: Idle,
    /// share of the attempts that brought something, of [`ALL`]
    share: u32,
    pauses: u32,
    /// the last pause was spent asking, and how that ended is not known yet
    asked: bool,
}

impl Governor {
    pub(crate) fn new(idle: Idle) -> Self {
        Governor { idle, share: ALL, pauses: 0, asked: false }
    }

    /// There was work.
    pub(crate) fn on_work(&mut self) {
        if std::mem::take(&mut self.asked) {
            self.learn(ALL);
        }
    }

    /// There is nothing to do: whether to ask again rather than sleep.
    pub(crate) fn asks_again(&mut self) -> bool {
        match self.idle {
            Idle::Spin => return true,
            Idle::Block => return false,
            Idle::Adaptive => {}
        }
        if std::mem::take(&mut self.asked) {
            self.learn(0);
            return false;
        }
        self.pauses = self.pauses.wrapping_add(1);
        self.asked = self.share >= PAYS || self.pauses.is_multiple_of(PROBE);
        self.asked
    }

    fn learn(&mut self, outcome: u32) {
        self.share = self.share - (self.share >> WEIGHT_SHIFT) + (outcome >> WEIGHT_SHIFT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pauses that end at once if asked again, or do not; how many were spent asking.
    fn asked(governor: &mut Governor, pauses: u32, pays: bool) -> u32 {
        let mut asked = 0;
        for _ in 0..pauses {
            if governor.asks_again() {
                asked += 1;
                // nothing came: it sleeps now, whatever it has learned
                assert!(pays || !governor.asks_again());
            }
            governor.on_work();
        }
        asked
    }

    #[test]
    fn asks_while_it_pays_and_probes_when_it_does_not() {
        let mut governor = Governor::new(Idle::Adaptive);
        assert_eq!(asked(&mut governor, 100, true), 100);
        assert!(asked(&mut governor, 100, false) <= 10);
        assert_eq!(asked(&mut governor, 10 * PROBE, false), 10);
        asked(&mut governor, 10 * PROBE, true);
        assert_eq!(asked(&mut governor, 100, true), 100);
    }

    #[test]
    fn the_others_do_as_they_are_called() {
        assert_eq!(asked(&mut Governor::new(Idle::Spin), 10, true), 10);
        assert_eq!(asked(&mut Governor::new(Idle::Block), 10, true), 0);
    }
}
