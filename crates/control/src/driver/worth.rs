//! Whether it is worth it that a program answers.
//!
//! A question that the program leaves was read and looked for in vain. Over veth, where the kernel's own work is most of either, that costs
//! several times what an answer of the program's spares (docs/results/dns-compare.md); with a NIC's driver, where the crossing of a ring
//! is spared, less. So a program that answers less than two thirds of what comes does harm, as with a zone of which it has few names and
//! all are asked for alike, or where most who ask want DNSSEC. It is then held for a while, and tried for a round: after eight rounds, and
//! if it is no better, after twice as many each time, up to 64. Where little is asked nothing is changed. New tables are judged anew.

use super::{Driver, Interface};
use bpf::steering::{Hold, Shares};

/// A round with fewer questions tells nothing: what they cost is little either way.
const LEAST_ASKED: u64 = 10_000;
/// Answered for each question that is left, at least.
const LEAST_SHARE: u64 = 2;
/// Rounds for which a program is held, at first and at most.
const PAUSE: u32 = 8;
const LONGEST_PAUSE: u32 = 64;

/// What a round has shown, if anything is to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// it answers too little: it is to be held
    Poor,
    /// and so it was when it was tried
    StillPoor,
    /// it is to answer again, to see
    Try,
    /// that was right
    Rich,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Answers,
    /// for so many rounds
    Held(u32),
    Tried,
}

/// One program's worth, from round to round.
#[derive(Debug)]
pub(super) struct Worth {
    phase: Phase,
    /// how long it is held the next time
    pause: u32,
    /// the last round's
    seen: Option<Shares>,
}

impl Default for Worth {
    fn default() -> Worth {
        Worth { phase: Phase::Answers, pause: PAUSE, seen: None }
    }
}

impl Worth {
    /// A round's end, with what was counted by then; None: this round tells nothing.
    pub(super) fn look(&mut self, now: Option<Shares>) -> Option<Found> {
        let before = std::mem::replace(&mut self.seen, now);
        if let Phase::Held(rounds) = &mut self.phase {
            *rounds -= 1;
            if *rounds > 0 {
                return None;
            }
            self.phase = Phase::Tried;
            return Some(Found::Try);
        }
        let (now, before) = now.zip(before)?;
        let (answered, left) = (now.answered.wrapping_sub(before.answered), now.left.wrapping_sub(before.left));
        if answered.saturating_add(left) < LEAST_ASKED {
            return None;
        }
        let tried = self.phase == Phase::Tried;
        if answered < LEAST_SHARE * left {
            self.phase = Phase::Held(self.pause);
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
            return Some(if tried { Found::StillPoor } else { Found::Poor });
        }
        (self.phase, self.pause) = (Phase::Answers, PAUSE);
        tried.then_some(Found::Rich)
    }
}

impl Driver {
    /// Has programs answer or not, by what they answered in the last round.
    pub(super) fn weigh(&self, worth: &mut [Worth]) {
        for (Interface { name, answers, .. }, worth) in self.interfaces.iter().zip(worth) {
            // who answers nothing for another reason is not to be judged by it
            let shares = answers.shares().filter(|_| !answers.is_held(Hold::Untaken));
            let Some(found) = worth.look(shares) else { continue };
            if let Err(error) = answers.hold(Hold::Unrewarding, matches!(found, Found::Poor | Found::StillPoor)) {
                tracing::error!("{name}: the driver cannot be told who answers: {error}");
            }
            match found {
                Found::Poor => tracing::info!(
                    "{name}: our stack answers all for now, since the driver answers less than two thirds of what is asked; it is tried again"
                ),
                Found::Rich => {
                    tracing::info!("{name}: the driver answers again, by now two thirds of what is asked or more")
                }
                Found::StillPoor | Found::Try => {}
            }
        }
    }

    /// Lets all programs answer that are held for what they are worth, since they are to be weighed anew, or not any more.
    pub(super) fn release(&self) {
        for Interface { name, answers, .. } in &self.interfaces {
            if let Err(error) = answers.hold(Hold::Unrewarding, false) {
                tracing::error!("{name}: the driver cannot be told who answers: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program to which in each round so many questions come.
    #[derive(Default)]
    struct Bed {
        worth: Worth,
        total: Shares,
    }

    impl Bed {
        fn round(&mut self, answered: u64, left: u64) -> Option<Found> {
            self.total = Shares {
                answered: self.total.answered.wrapping_add(answered),
                left: self.total.left.wrapping_add(left),
            };
            self.worth.look(Some(self.total))
        }
    }

    #[test]
    fn one_that_answers_two_thirds_goes_on() {
        let mut bed = Bed { total: Shares { answered: u64::MAX - 7_000, left: 3 }, ..Bed::default() };
        for _ in 0..100 {
            assert_eq!(bed.round(8_000, 4_000), None);
        }
    }

    #[test]
    fn the_first_round_tells_nothing_and_neither_does_one_with_few_questions() {
        let mut bed = Bed::default();
        assert_eq!(bed.round(0, 1_000_000), None);
        assert_eq!(bed.round(0, 9_999), None);
        assert_eq!(bed.round(0, 10_000), Some(Found::Poor));
    }

    #[test]
    fn one_that_stays_poor_is_tried_ever_more_seldom() {
        let mut bed = Bed::default();
        bed.round(0, 0);
        assert_eq!(bed.round(7_999, 4_000), Some(Found::Poor));
        for pause in [8, 16, 32, 64, 64] {
            for _ in 1..pause {
                assert_eq!(bed.round(0, 10_000), None);
            }
            assert_eq!(bed.round(0, 10_000), Some(Found::Try));
            // until there is something to judge by
            assert_eq!(bed.round(0, 10), None);
            assert_eq!(bed.round(10, 20_000), Some(Found::StillPoor));
        }
    }

    #[test]
    fn one_that_has_become_rich_answers_again_and_begins_anew() {
        let mut bed = Bed::default();
        bed.round(0, 0);
        assert_eq!(bed.round(0, 10_000), Some(Found::Poor));
        (1..8).for_each(|_| assert_eq!(bed.round(0, 10_000), None));
        assert_eq!(bed.round(0, 10_000), Some(Found::Try));
        assert_eq!(bed.round(9_000, 1_000), Some(Found::Rich));
        assert_eq!(bed.round(9_000, 1_000), None);
        assert_eq!(bed.round(0, 10_000), Some(Found::Poor));
        (1..8).for_each(|_| assert_eq!(bed.round(0, 10_000), None));
        assert_eq!(bed.round(0, 10_000), Some(Found::Try));
    }

    #[test]
    fn a_round_that_tells_nothing_is_left_out() {
        let mut bed = Bed::default();
        bed.round(0, 0);
        assert_eq!(bed.worth.look(None), None);
        assert_eq!(bed.round(0, 10_000), None);
        assert_eq!(bed.round(0, 10_000), Some(Found::Poor));
    }
}
