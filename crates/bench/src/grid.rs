//! Rates by factors: where a server is still lossless, and the most it ever answers.

use crate::load::{Good, Outcome};
use serde::{Deserialize, Serialize};

/// A server is lossless at a rate of whose questions this share is answered.
const LOSSLESS_SHARE: f64 = 0.999;

/// The rates of a grid, each 15% above the last.
pub(crate) fn rates(from: f64, to: f64) -> Vec<f64> {
    let mut rates = Vec::new();
    let mut rate = from;
    while rate <= to {
        rates.push(rate.round());
        rate *= 1.15;
    }
    rates
}

/// What a grid showed, in questions and answers a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Capacity {
    /// the highest rate sent of which 99.9% had a good answer; None: not even the lowest
    pub(crate) lossless: Option<f64>,
    /// the most good answers at any rate
    pub(crate) peak: f64,
    /// the fewest questions that the generator sent: of what is not lossless there, this is all that is known
    pub(crate) from: f64,
    /// the most questions that the generator sent; a peak near it is the generator's
    pub(crate) sent: f64,
}

impl Capacity {
    /// Takes in one rate's figures: questions sent and good answers.
    pub(crate) fn add(&mut self, sent: f64, good: f64) {
        self.from = if self.sent > 0.0 { self.from.min(sent) } else { sent };
        self.sent = self.sent.max(sent);
        self.peak = self.peak.max(good);
        if sent > 0.0 && good >= LOSSLESS_SHARE * sent {
            self.lossless = Some(self.lossless.map_or(sent, |known| known.max(sent)));
        }
    }

    /// Of a grid's outcomes.
    pub(crate) fn of(outcomes: &[Outcome], good: Good) -> Capacity {
        let mut capacity = Capacity::default();
        for outcome in outcomes {
            capacity.add(outcome.sent_rate(), outcome.good_rate(good));
        }
        capacity
    }

    /// The highest lossless rate in words.
    pub(crate) fn lossless_text(&self) -> String {
        self.lossless.map_or_else(|| format!("< {:.0}", self.from), |rate| format!("{rate:.0}"))
    }
}

/// Whether higher rates can show nothing any more, by the good answers a second of each so far: when three in a row did not raise the peak
/// of those before them by 2%.
pub(crate) fn exhausted(good: &[f64]) -> bool {
    let [before @ .., a, b, c] = good else { return false };
    let peak = before.iter().copied().fold(0.0, f64::max);
    peak > 0.0 && [a, b, c].iter().all(|rate| **rate < peak * 1.02)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_goes_up_by_15_percent_and_ends() {
        let rates = rates(100_000.0, 1_200_000.0);
        assert_eq!(rates.len(), 18);
        assert_eq!((rates[0], rates[1]), (100_000.0, 115_000.0));
        assert!(*rates.last().unwrap() <= 1_200_000.0);
        assert!(super::rates(2.0, 1.0).is_empty());
    }

    #[test]
    fn lossless_and_peak_are_found_apart() {
        let mut capacity = Capacity::default();
        capacity.add(100e3, 100e3);
        capacity.add(200e3, 199.9e3);
        capacity.add(300e3, 250e3);
        capacity.add(400e3, 240e3);
        assert_eq!(capacity, Capacity { lossless: Some(200e3), peak: 250e3, from: 100e3, sent: 400e3 });
        assert_eq!(capacity.lossless_text(), "200000");
    }

    #[test]
    fn what_is_lossless_at_no_rate_is_below_the_lowest() {
        let mut capacity = Capacity::default();
        capacity.add(100e3, 90e3);
        capacity.add(200e3, 95e3);
        assert_eq!(capacity, Capacity { lossless: None, peak: 95e3, from: 100e3, sent: 200e3 });
        assert_eq!(capacity.lossless_text(), "< 100000");
        // nothing sent is nothing answered
        capacity.add(0.0, 0.0);
        assert_eq!(capacity.lossless, None);
    }

    #[test]
    fn answers_that_are_not_good_make_no_capacity() {
        let mut outcome = Outcome::new(None);
        (outcome.sent, outcome.answered, outcome.span_ns) = (1000, 1000, 1_000_000_000);
        // SERVFAIL and NXDOMAIN
        (outcome.rcodes[0], outcome.rcodes[2], outcome.rcodes[3]) = (100, 500, 400);
        let of = |good| Capacity::of(&[outcome.clone()], good);
        assert_eq!((of(Good::NoError).peak, of(Good::NoError).lossless), (100.0, None));
        assert_eq!((of(Good::OrAbsent).peak, of(Good::OrAbsent).lossless), (500.0, None));
        assert_eq!((of(Good::Any).peak, of(Good::Any).lossless), (1000.0, Some(1000.0)));
    }

    #[test]
    fn a_grid_ends_when_the_peak_is_behind() {
        assert!(!exhausted(&[1.0, 2.0, 3.0]));
        assert!(!exhausted(&[1.0, 2.0, 3.0, 4.0]));
        assert!(!exhausted(&[1.0, 5.0, 4.0, 4.0]));
        assert!(exhausted(&[1.0, 5.0, 4.0, 5.05, 4.9]));
    }
}
