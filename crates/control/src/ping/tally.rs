//! What a run of probes has shown.

use hdrhistogram::Histogram;

/// A round trip is recorded to three digits, up to a minute.
const GREATEST_NS: u64 = 60_000_000_000;

/// Counts and round trips of one run.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    /// probes sent
    pub(super) sent: u64,
    /// answered in time with every octet right
    pub(super) answered: u64,
    /// no answer within the time-out
    pub(super) lost: u64,
    /// answered after the time-out; counted as lost before
    pub(super) late: u64,
    /// answered again
    pub(super) duplicates: u64,
    /// answered after one that was sent later
    pub(super) reordered: u64,
    /// answers whose octets were not those that were sent
    pub(super) damaged: u64,
    /// whole probes, but none of this run
    pub(super) foreign: u64,
    /// errors that routers or the server's host reported
    pub(super) unreachable: u64,
    /// probes that were due while the machine was not ready to send them
    pub(super) unsent: u64,
    /// still on their way when the run was interrupted
    pub(super) pending: u64,
    /// from the first probe to the end
    pub(super) span_ns: u64,
    rtt: Histogram<u64>,
    least_ns: u64,
    greatest_ns: u64,
    /// of the round trips, and the sum of squared differences from it (Welford 1962)
    mean_ns: f64,
    squares: f64,
}

impl Default for Tally {
    fn default() -> Self {
        Tally {
            sent: 0,
            answered: 0,
            lost: 0,
            late: 0,
            duplicates: 0,
            reordered: 0,
            damaged: 0,
            foreign: 0,
            unreachable: 0,
            unsent: 0,
            pending: 0,
            span_ns: 0,
            rtt: Histogram::new_with_bounds(1, GREATEST_NS, 3).expect("bounds that the histogram takes"),
            least_ns: u64::MAX,
            greatest_ns: 0,
            mean_ns: 0.0,
            squares: 0.0,
        }
    }
}

impl Tally {
    /// A probe came back after `ns`.
    pub(super) fn record(&mut self, ns: u64) {
        self.answered += 1;
        self.rtt.saturating_record(ns.max(1));
        self.least_ns = self.least_ns.min(ns);
        self.greatest_ns = self.greatest_ns.max(ns);
        let difference = ns as f64 - self.mean_ns;
        self.mean_ns += difference / self.answered as f64;
        self.squares += difference * (ns as f64 - self.mean_ns);
    }

    /// The shortest round trip in microseconds; None without an answer.
    pub(super) fn least_us(&self) -> Option<f64> {
        self.any(self.least_ns as f64)
    }

    /// The longest.
    pub(super) fn greatest_us(&self) -> Option<f64> {
        self.any(self.greatest_ns as f64)
    }

    /// The average.
    pub(super) fn average_us(&self) -> Option<f64> {
        self.any(self.mean_ns)
    }

    /// The standard deviation.
    pub(super) fn deviation_us(&self) -> Option<f64> {
        self.any((self.squares / self.answered.max(1) as f64).sqrt())
    }

    /// What this share of the round trips, 0 to 1, stays within.
    pub(super) fn quantile_us(&self, share: f64) -> Option<f64> {
        self.any(self.rtt.value_at_quantile(share) as f64)
    }

    fn any(&self, ns: f64) -> Option<f64> {
        (self.answered > 0).then_some(ns / 1e3)
    }

    /// Answers a second.
    pub(super) fn packets_per_s(&self) -> f64 {
        if self.span_ns == 0 { 0.0 } else { self.answered as f64 * 1e9 / self.span_ns as f64 }
    }

    /// The share of the probes that were lost, of those whose fate is known.
    pub(super) fn loss(&self) -> f64 {
        self.lost as f64 / self.sent.saturating_sub(self.pending).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(times_ns: &[u64]) -> Tally {
        let mut tally = Tally { sent: times_ns.len() as u64, ..Tally::default() };
        times_ns.iter().for_each(|ns| tally.record(*ns));
        tally
    }

    #[test]
    fn figures_of_known_round_trips() {
        let tally = of(&[2_000, 4_000, 4_000, 4_000, 5_000, 5_000, 7_000, 9_000]);
        assert_eq!((tally.least_us(), tally.greatest_us()), (Some(2.0), Some(9.0)));
        assert_eq!((tally.average_us(), tally.deviation_us()), (Some(5.0), Some(2.0)));
        let median = tally.quantile_us(0.5).unwrap();
        assert!((3.99..=4.01).contains(&median), "{median}");
    }

    #[test]
    fn without_an_answer_there_is_no_figure() {
        let tally = Tally { sent: 3, lost: 2, pending: 1, ..Tally::default() };
        assert_eq!((tally.least_us(), tally.average_us(), tally.deviation_us()), (None, None, None));
        assert_eq!((tally.quantile_us(0.5), tally.packets_per_s(), tally.loss()), (None, 0.0, 1.0));
    }

    proptest! {
        #[test]
        fn figures_are_those_of_the_slow_way(times in prop::collection::vec(1u64..1_000_000_000, 1..200)) {
            let tally = of(&times);
            let n = times.len() as f64;
            let mean = times.iter().map(|ns| *ns as f64).sum::<f64>() / n;
            let deviation = (times.iter().map(|ns| (*ns as f64 - mean).powi(2)).sum::<f64>() / n).sqrt();
            prop_assert!((tally.average_us().unwrap() * 1e3 - mean).abs() <= 1e-6 * mean);
            prop_assert!((tally.deviation_us().unwrap() * 1e3 - deviation).abs() <= 1e-6 * mean);
            let mut sorted = times;
            sorted.sort_unstable();
            prop_assert_eq!(tally.least_us(), Some(sorted[0] as f64 / 1e3));
            // three digits: the rank's value within a thousandth
            let median = sorted[(sorted.len() - 1) / 2] as f64;
            prop_assert!((tally.quantile_us(0.5).unwrap() * 1e3 - median).abs() <= median / 500.0 + 1.0);
        }
    }
}
