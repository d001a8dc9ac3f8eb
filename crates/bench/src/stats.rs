//! Medians of few, noisy measurements. A median is told with the least and the greatest, since a handful of rounds supports no
//! finer statement; a comparison is a ratio of two measurements of the same round, so that what disturbs both cancels.

use serde::{Deserialize, Serialize};

/// The middle of `values`, the mean of the two middle ones when there are two; None without values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// What is told of one measurement's rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// the rounds' median
    pub(crate) median: f64,
    /// the least of them
    pub(crate) least: f64,
    /// the greatest of them
    pub(crate) greatest: f64,
    /// how many there were
    pub(crate) rounds: usize,
}

impl Summary {
    /// Of `values`; None without values.
    pub(crate) fn of(values: &[f64]) -> Option<Summary> {
        let median = median(values)?;
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Summary { median, least, greatest, rounds: values.len() })
    }
}

/// The median over rounds of `subject` divided by `peer` of the same round. None when the peer measured nothing in one of them, or the two
/// have not the same number: a ratio of the other rounds would be one of chosen rounds, and those of a peer that fails now and then are its
/// best.
pub(crate) fn paired_ratio(subject: &[f64], peer: &[f64]) -> Option<Summary> {
    Summary::of(&paired_ratios(subject, peer)?)
}

/// Those ratios themselves.
pub(crate) fn paired_ratios(subject: &[f64], peer: &[f64]) -> Option<Vec<f64>> {
    if subject.len() != peer.len() || !peer.iter().all(|peer| *peer > 0.0) {
        return None;
    }
    Some(subject.iter().zip(peer).map(|(subject, peer)| subject / peer).collect())
}

/// What the true median lies outside of no more often than this.
const OUTSIDE: f64 = 0.05;

/// Between which two of the values the true median lies with 95% at least, whatever they are distributed like, if none says anything of
/// another; None of fewer than six. As many lie below it as heads come up in so many throws of a coin.
pub(crate) fn median_lies_between(values: &[f64]) -> Option<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let throws = sorted.len();
    // of exactly `heads`, beginning with none; its logarithm, since that of a thousand throws is no number
    let (mut heads, mut ln_chance) = (0, -(throws as f64) * std::f64::consts::LN_2);
    let mut fewer = 0.0;
    while heads < throws && 2.0 * (fewer + f64::exp(ln_chance)) <= OUTSIDE {
        fewer += f64::exp(ln_chance);
        ln_chance += ((throws - heads) as f64 / (heads + 1) as f64).ln();
        heads += 1;
    }
    let from = heads.checked_sub(1)?;
    Some((sorted[from], sorted[throws - 1 - from]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn medians_of_odd_even_and_no_counts() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), Some(3.0));
    }

    #[test]
    fn a_ratio_pairs_rounds_and_is_of_all_or_none() {
        // unpaired, the medians' ratio would be 10/10; paired it is what each round says
        let ratio = paired_ratio(&[10.0, 30.0, 5.0], &[5.0, 10.0, 10.0]).unwrap();
        assert_eq!((ratio.median, ratio.least, ratio.greatest, ratio.rounds), (2.0, 0.5, 3.0, 3));
        assert_eq!(paired_ratio(&[0.0, 6.0], &[1.0, 2.0]).unwrap().least, 0.0);
        for (subject, peer) in [(&[1.0, 6.0][..], &[0.0, 2.0][..]), (&[1.0], &[0.0]), (&[1.0, 2.0], &[1.0]), (&[], &[])]
        {
            assert_eq!(paired_ratio(subject, peer), None, "{subject:?} {peer:?}");
        }
    }

    #[test]
    fn the_true_median_lies_between_two_of_the_values() {
        let values = |count: usize| (1..=count).rev().map(|value| value as f64).collect::<Vec<_>>();
        for few in 0..6 {
            assert_eq!(median_lies_between(&values(few)), None);
        }
        // as tables of the sign test's confidence interval have it
        for (count, from) in [(6, 1.0), (8, 1.0), (9, 2.0), (12, 3.0), (20, 6.0), (50, 18.0)] {
            assert_eq!(median_lies_between(&values(count)), Some((from, count as f64 + 1.0 - from)), "{count}");
        }
        let (from, to) = median_lies_between(&values(10_000)).unwrap();
        // 0.98 times the root of their number to either side of the middle
        assert!((4900.0..=4904.0).contains(&from) && from + to == 10_001.0, "{from} {to}");
    }

    proptest! {
        #[test]
        fn half_of_the_values_lie_on_either_side(values in proptest::collection::vec(-1e9f64..1e9, 1..50)) {
            let middle = median(&values).unwrap();
            let below = values.iter().filter(|value| **value < middle).count();
            let above = values.iter().filter(|value| **value > middle).count();
            prop_assert!(below <= values.len() / 2 && above <= values.len() / 2);
            let summary = Summary::of(&values).unwrap();
            prop_assert!(summary.least <= middle && middle <= summary.greatest);
        }
    }
}
