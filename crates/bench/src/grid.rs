//! Rates by factors: where a server is still lossless, and the most it ever answers, as far as a generator can show it.

use crate::found::Found;
use crate::load::{Good, Outcome};
use serde::{Deserialize, Serialize};

/// A server is lossless at a rate of whose questions this share is answered.
const LOSSLESS_SHARE: f64 = 0.999;
/// A rate was asked when so much of what was due was sent. A virtual machine's processors are taken away for up to 0.9% of the time, and
/// what becomes due meanwhile is no sign of a generator that cannot do more.
const ASKED_SHARE: f64 = 0.99;
/// So much more than ever before is more.
const MORE: f64 = 1.02;
/// Rates in a row that bring no more, after which higher ones show nothing.
const ROW: u32 = 3;

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

/// One rate's figures, a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// questions that were due
    pub(crate) due: f64,
    /// questions that were sent
    pub(crate) sent: f64,
    /// good answers
    pub(crate) good: f64,
    /// of the questions sent so many had a good answer, if only after the last was sent
    pub(crate) good_share: f64,
}

impl Step {
    /// Of a load.
    pub(crate) fn of(outcome: &Outcome, good: Good) -> Step {
        Step {
            due: outcome.due_rate(),
            sent: outcome.sent_rate(),
            good: outcome.good_rate(good),
            good_share: outcome.good_share(good),
        }
    }

    /// Whether the rate was asked. Of one that was not, what was answered is known, and not what would have been.
    pub(crate) fn is_asked(&self) -> bool {
        self.sent > 0.0 && self.sent >= ASKED_SHARE * self.due
    }
}

/// What a grid showed, in questions and answers a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Capacity {
    /// the highest rate sent of which 99.9% had a good answer; None: not even the lowest
    lossless: Option<f64>,
    /// the highest rate asked of which fewer had one
    lossy: Option<f64>,
    /// the lowest rate asked: of what is not lossless there, this is all that is known
    from: Option<f64>,
    /// the most good answers at any rate
    peak: f64,
    /// rates asked since then, none of which brought more
    behind: u32,
    /// the most questions that the generator sent; a peak near it is the generator's
    sent: f64,
}

impl Capacity {
    /// Takes in one rate, higher than those before.
    pub(crate) fn add(&mut self, step: &Step) {
        let Step { sent, good, good_share, .. } = *step;
        if good > MORE * self.peak {
            self.behind = 0;
        } else if step.is_asked() {
            self.behind += 1;
        }
        self.peak = self.peak.max(good);
        self.sent = self.sent.max(sent);
        let highest = |known: Option<f64>| Some(known.map_or(sent, |known| known.max(sent)));
        if step.is_asked() {
            self.from = Some(self.from.map_or(sent, |known| known.min(sent)));
        }
        if sent > 0.0 && good_share >= LOSSLESS_SHARE {
            self.lossless = highest(self.lossless);
        } else if step.is_asked() {
            self.lossy = highest(self.lossy);
        }
    }

    /// Whether higher rates can show nothing any more: several in a row were asked and brought no more.
    pub(crate) fn is_over(&self) -> bool {
        self.behind >= ROW
    }

    /// The highest lossless rate: the server's where a higher one was asked and lost some.
    pub(crate) fn lossless(&self) -> Found {
        match (self.lossless, self.lossy, self.from) {
            (Some(rate), Some(lossy), _) if lossy > rate => Found::Is(rate),
            (Some(rate), ..) => Found::AtLeast(rate),
            (None, _, Some(from)) => Found::Below(from),
            (None, _, None) => Found::AtLeast(0.0),
        }
    }

    /// The most good answers at any rate: the server's where higher rates were asked and brought no more.
    pub(crate) fn peak(&self) -> Found {
        if self.is_over() { Found::Is(self.peak) } else { Found::AtLeast(self.peak) }
    }

    /// In words.
    pub(crate) fn text(&self) -> String {
        format!("lossless {:>10}  peak {:>9}  sent {:>7.0}", self.lossless(), self.peak(), self.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Found::{AtLeast, Below, Is};

    /// Rates that were due, sent and answered well.
    fn capacity(steps: &[[f64; 3]]) -> Capacity {
        let mut capacity = Capacity::default();
        for &[due, sent, good] in steps {
            capacity.add(&Step { due, sent, good, good_share: good / sent.max(1.0) });
        }
        capacity
    }

    /// The same where all that was due was sent.
    fn asked(steps: &[[f64; 2]]) -> Capacity {
        capacity(&steps.iter().map(|[sent, good]| [*sent, *sent, *good]).collect::<Vec<_>>())
    }

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
        let steps = [[100e3, 100e3], [200e3, 199.9e3], [300e3, 250e3], [400e3, 240e3], [500e3, 252e3], [600e3, 230e3]];
        let found = asked(&steps);
        assert_eq!((found.lossless(), found.peak(), found.is_over()), (Is(200e3), Is(252e3), true));
        assert_eq!(found.text(), "lossless     200000  peak    252000  sent  600000");
    }

    #[test]
    fn what_is_lossless_at_no_rate_is_below_the_lowest() {
        let found = asked(&[[100e3, 90e3], [200e3, 95e3]]);
        assert_eq!((found.lossless(), found.peak()), (Below(100e3), AtLeast(95e3)));
        // nothing sent is nothing answered
        let found = asked(&[[0.0, 0.0]]);
        assert_eq!((found.lossless(), found.peak()), (AtLeast(0.0), AtLeast(0.0)));
    }

    #[test]
    fn the_end_of_the_grid_is_no_peak() {
        let found = asked(&[[100e3, 100e3], [200e3, 200e3], [300e3, 300e3]]);
        assert_eq!((found.lossless(), found.peak()), (AtLeast(300e3), AtLeast(300e3)));
        // it loses, and two rates behind the peak may be chance
        let found = asked(&[[100e3, 100e3], [200e3, 150e3], [300e3, 140e3], [400e3, 140e3]]);
        assert_eq!((found.lossless(), found.peak(), found.is_over()), (Is(100e3), AtLeast(150e3), false));
    }

    #[test]
    fn a_generator_that_cannot_do_more_is_not_the_server() {
        let all = [[100e3, 100e3, 100e3], [200e3, 200e3, 200e3]];
        let saturated = [[300e3, 250e3, 250e3], [400e3, 251e3, 240e3], [500e3, 249e3, 249e3], [600e3, 250e3, 240e3]];
        let found = capacity(&[&all[..], &saturated].concat());
        assert_eq!((found.lossless(), found.peak(), found.is_over()), (AtLeast(250e3), AtLeast(250e3), false));
        // nor where the lowest rate is more than it can do
        let found = capacity(&[[300e3, 250e3, 200e3]]);
        assert_eq!((found.lossless(), found.peak()), (AtLeast(0.0), AtLeast(200e3)));
        // a pause of the machine among rates that were asked
        let behind = [[300e3, 300e3, 210e3], [400e3, 380e3, 205e3], [500e3, 496e3, 212e3], [600e3, 600e3, 190e3]];
        let found = capacity(&[&all[..], &behind].concat());
        assert_eq!((found.lossless(), found.peak(), found.is_over()), (Is(200e3), AtLeast(212e3), false));
        let found = capacity(&[&all[..], &behind, &[[700e3, 700e3, 180e3]]].concat());
        assert_eq!((found.lossless(), found.peak(), found.is_over()), (Is(200e3), Is(212e3), true));
    }

    #[test]
    fn answers_that_are_not_good_make_no_capacity() {
        let mut outcome = Outcome::new(None);
        (outcome.sent, outcome.answered, outcome.span_ns) = (1000, 1000, 1_000_000_000);
        // SERVFAIL and NXDOMAIN
        (outcome.rcodes[0], outcome.rcodes[2], outcome.rcodes[3]) = (100, 500, 400);
        outcome.end_of_span();
        let of = |good| {
            let mut capacity = Capacity::default();
            capacity.add(&Step::of(&outcome, good));
            (capacity.lossless(), capacity.peak())
        };
        assert_eq!(of(Good::NoError), (Below(1000.0), AtLeast(100.0)));
        assert_eq!(of(Good::OrAbsent), (Below(1000.0), AtLeast(500.0)));
        assert_eq!(of(Good::Any), (AtLeast(1000.0), AtLeast(1000.0)));
    }

    #[test]
    fn a_rate_is_asked_when_nearly_all_of_it_was_sent() {
        let step = |sent| Step { due: 1000.0, sent, good: 0.0, good_share: 0.0 };
        assert!(step(1000.0).is_asked() && step(990.0).is_asked() && !step(989.0).is_asked());
        assert!(!Step { due: 0.0, ..step(0.0) }.is_asked());
    }
}
