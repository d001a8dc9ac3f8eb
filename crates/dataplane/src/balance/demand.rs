//! How much of its time a thread needs for what comes to it.
//!
//! A backlog tells that a thread did not keep up, not that it does not: what has piled up takes its time to be worked off, and a thread that
//! gives away groups until then ends with too few of them. So two threads are levelled by what *comes* to them, the frames served and those
//! by which the backlog has grown, times what one has cost of late, waits for the processor included. A thread whose processor has other
//! work pays more for each and is left with fewer.

use std::time::Duration;

/// A whole interval.
pub(super) const WHOLE: u64 = 1024;
/// An interval says what a frame costs if it had so many.
const FRAMES: u64 = 16;
/// The cost's moving average takes over this part of each.
const COST_PART: u64 = 4;
/// What has piled up is to be worked off within so many intervals.
const DRAIN: u64 = 8;

/// What a thread has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    /// nanoseconds that a frame takes; 0: not known
    pub(super) cost_ns: u64,
    /// of its time, of [`WHOLE`]; more when it is more than it has
    pub(super) part: u64,
}

impl Need {
    /// Frames an interval that are to go to a thread with the need `ours`, for both to come half-way to needing the same part of their time:
    /// what is known of either lags behind by an interval.
    pub(super) fn levelled_with(self, ours: Need, every: Duration) -> u64 {
        let cost_ns = self.cost_ns + ours.known_cost(self);
        let apart = u128::from(self.part.saturating_sub(ours.part)) * every.as_nanos();
        (apart / u128::from(2 * WHOLE * cost_ns.max(1))) as u64
    }

    /// A frame's cost, which is taken to be as for another when that is not known.
    pub(super) fn known_cost(self, other: Need) -> u64 {
        if self.cost_ns > 0 { self.cost_ns } else { other.cost_ns }
    }
}

/// One thread's account.
#[derive(Debug, Default)]
pub(super) struct Demand {
    /// the groups' weights at the end of the last interval, with what has come and gone since
    left: u64,
    waiting: u64,
    /// the length of the last interval, and for how long of it the thread was busy
    spent: Option<(Duration, Duration)>,
    need: Need,
}

impl Demand {
    /// The thread was busy for so long of the interval that ends.
    pub(super) fn spent(&mut self, passed: Duration, busy: Duration) {
        self.spent = Some((passed, busy.min(passed)));
    }

    /// A group has come with a weight.
    pub(super) fn came(&mut self, weight: u32) {
        self.left += u64::from(weight);
    }

    /// A group has gone with a weight.
    pub(super) fn went(&mut self, weight: u32) {
        self.left = self.left.saturating_sub(u64::from(weight));
    }

    /// The interval ends with these weights, which are `halved` for the next one, and so many frames that wait.
    pub(super) fn end(&mut self, weights: u32, halved: u32, waiting: u32) -> Need {
        let served = u64::from(weights).saturating_sub(self.left);
        let waiting = u64::from(waiting);
        let came = (served + waiting).saturating_sub(self.waiting);
        (self.left, self.waiting) = (halved.into(), waiting);
        let Some((passed, busy)) = self.spent.take() else { return self.need };
        let cost = &mut self.need.cost_ns;
        if let Some(now) = (busy.as_nanos() as u64).checked_div(served).filter(|_| served >= FRAMES) {
            *cost = if *cost == 0 { now } else { (*cost * (COST_PART - 1) + now) / COST_PART };
        }
        let takes = u128::from(came + waiting / DRAIN) * u128::from(*cost * WHOLE);
        self.need.part = (takes / passed.as_nanos().max(1)).min(u128::from(u32::MAX)) as u64;
        self.need
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(100);

    /// One interval: frames served, and that wait at its end, with so many milliseconds busy.
    fn interval(demand: &mut Demand, weights: &mut u32, served: u32, waiting: u32, busy_ms: u64) -> Need {
        *weights += served;
        demand.spent(EVERY, Duration::from_millis(busy_ms));
        let need = demand.end(*weights, *weights / 2, waiting);
        *weights /= 2;
        need
    }

    #[test]
    fn what_waits_counts_when_it_comes_and_a_little_until_it_is_gone() {
        let (mut demand, mut weights) = (Demand::default(), 0);
        let need = interval(&mut demand, &mut weights, 1000, 0, 50);
        assert_eq!(need, Need { cost_ns: 50_000, part: 512 });
        // half as much again as it can serve
        let need = interval(&mut demand, &mut weights, 2000, 800, 100);
        assert_eq!(need, Need { cost_ns: 50_000, part: (2800 + 100) * 1024 / 2000 });
        // it comes no longer, and what waits is worked off
        let need = interval(&mut demand, &mut weights, 2000, 0, 100);
        assert_eq!(need.part, 1200 * 1024 / 2000);
    }

    #[test]
    fn groups_that_come_and_go_were_not_served() {
        let (mut demand, mut weights) = (Demand::default(), 0);
        interval(&mut demand, &mut weights, 1000, 0, 50);
        weights -= 200;
        demand.went(200);
        weights += 50;
        demand.came(50);
        let need = interval(&mut demand, &mut weights, 600, 0, 30);
        assert_eq!(need, Need { cost_ns: 50_000, part: 307 });
    }

    #[test]
    fn two_are_levelled_by_their_time() {
        let need = |cost_ns, part| Need { cost_ns, part };
        // 1.5 of its time, the other has nothing: half-way to three quarters for each
        assert_eq!(need(40_000, 1536).levelled_with(need(0, 0), EVERY), 937);
        assert_eq!(need(40_000, 900).levelled_with(need(20_000, 900), EVERY), 0);
        assert_eq!(need(40_000, 800).levelled_with(need(20_000, 900), EVERY), 0);
        // what goes takes half as long there
        let moved = 2 * need(40_000, 1024).levelled_with(need(20_000, 0), EVERY);
        let [theirs, ours] = [100_000_000 - moved * 40_000, moved * 20_000];
        assert!(theirs.abs_diff(ours) < 100_000, "{theirs} and {ours}");
    }

    #[test]
    fn a_handful_of_frames_says_nothing_of_the_cost() {
        let (mut demand, mut weights) = (Demand::default(), 0);
        assert_eq!(interval(&mut demand, &mut weights, 3, 0, 1), Need::default());
        assert_eq!(interval(&mut demand, &mut weights, 1000, 0, 50).cost_ns, 50_000);
        assert_eq!(interval(&mut demand, &mut weights, 3, 0, 90).cost_ns, 50_000);
    }
}
