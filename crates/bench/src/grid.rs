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
    /// the highest rate sent of which 99.9% were answered without error
    pub(crate) lossless: f64,
    /// the most answers at any rate
    pub(crate) peak: f64,
    /// the most questions that the generator sent; a peak near it is the generator's
    pub(crate) sent: f64,
}

impl Capacity {
    /// Takes in one rate's figures.
    pub(crate) fn add(&mut self, sent: f64, answered: f64, good_share: f64) {
        self.sent = self.sent.max(sent);
        self.peak = self.peak.max(answered);
        if good_share >= LOSSLESS_SHARE {
            self.lossless = self.lossless.max(sent);
        }
    }

    /// Of a grid's outcomes.
    pub(crate) fn of(outcomes: &[Outcome], good: Good) -> Capacity {
        let mut capacity = Capacity::default();
        for outcome in outcomes {
            capacity.add(outcome.sent_rate(), outcome.answered_rate(), outcome.good_share(good));
        }
        capacity
    }
}

/// Whether higher rates can still show something: not when three in a row neither raised the peak by 2% nor came near it from
/// a lossless rate.
pub(crate) fn exhausted(answered: &[f64]) -> bool {
    let [before @ .., a, b, c] = answered else { return false };
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
        capacity.add(100e3, 100e3, 1.0);
        capacity.add(200e3, 199.9e3, 0.9995);
        capacity.add(300e3, 250e3, 0.83);
        capacity.add(400e3, 240e3, 0.6);
        assert_eq!(capacity, Capacity { lossless: 200e3, peak: 250e3, sent: 400e3 });
    }

    #[test]
    fn a_grid_ends_when_the_peak_is_behind() {
        assert!(!exhausted(&[1.0, 2.0, 3.0]));
        assert!(!exhausted(&[1.0, 2.0, 3.0, 4.0]));
        assert!(!exhausted(&[1.0, 5.0, 4.0, 4.0]));
        assert!(exhausted(&[1.0, 5.0, 4.0, 5.05, 4.9]));
    }
}
