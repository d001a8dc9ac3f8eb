//! What all connections of a thread may have under way together, and how much of it one of them may have.

use crate::layout::BUDGET_BYTES;

/// This part of the budget is for those that have next to nothing under way, as it is inline: who reads nothing cannot have all of it.
const KEPT: u64 = 8;
/// Bytes that are next to nothing.
const FIRST_BYTES: u64 = 4096;

/// Bytes that were sent by calls and not reported by events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    posted: u64,
}

impl Budget {
    /// What there is for a connection that has `posted` of it already.
    pub(super) fn left(self, posted: u64) -> u64 {
        let left = |budget: u64| budget.saturating_sub(self.posted);
        left(BUDGET_BYTES - BUDGET_BYTES / KEPT).max(left(BUDGET_BYTES).min(FIRST_BYTES.saturating_sub(posted)))
    }

    pub(super) fn take(&mut self, bytes: u64) {
        self.posted += bytes;
    }

    pub(super) fn give(&mut self, bytes: u64) {
        self.posted -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_is_for_those_that_have_next_to_nothing() {
        let mut budget = Budget::default();
        assert_eq!(budget.left(0), BUDGET_BYTES / 8 * 7);
        budget.take(BUDGET_BYTES / 8 * 7 - 100);
        assert_eq!([0, 4000, 4096, 100_000].map(|posted| budget.left(posted)), [4096, 100, 100, 100]);
        budget.take(100);
        assert_eq!([0, 4000, 4096, 100_000].map(|posted| budget.left(posted)), [4096, 96, 0, 0]);
        budget.take(BUDGET_BYTES / 8 - 10);
        assert_eq!([0, 4096].map(|posted| budget.left(posted)), [10, 0]);
        budget.take(10);
        assert_eq!(budget.left(0), 0);
        budget.give(BUDGET_BYTES);
        assert_eq!(budget.left(0), BUDGET_BYTES / 8 * 7);
    }
}
