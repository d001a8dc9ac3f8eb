//! The highest rate that holds, by trying: up until one does not, then half-way between.
//!
//! A virtual machine's processors are taken away now and then, and a rate that failed for that bounds all that are tried behind it. So
//! the rate that the search ends below is tried once more at the end, minutes later; when it holds, the search goes on from there.

/// The first steps go up by so much, and then half-way so often.
const STEP: f64 = 1.5;
const HALVES: usize = 4;
/// The search is given up below this part of where it began.
const LEAST: f64 = 1.0 / 32.0;
/// So often what did not hold is tried once more.
pub(crate) const DOUBTS: usize = 3;

/// A search.
#[derive(Debug)]
pub(super) struct Search {
    /// what to try next; None: that was all
    pub(super) rate: Option<f64>,
    from: f64,
    good: Option<f64>,
    bad: Option<f64>,
    halves: usize,
    doubts: usize,
    /// what is tried now did not hold before
    doubted: bool,
}

impl Search {
    pub(super) fn from(rate: f64) -> Search {
        Search { rate: Some(rate), from: rate, good: None, bad: None, halves: 0, doubts: 0, doubted: false }
    }

    /// Takes in whether `rate` held.
    pub(super) fn found(&mut self, rate: f64, held: bool) {
        let doubted = std::mem::take(&mut self.doubted);
        if held {
            self.good = Some(rate);
            if doubted {
                (self.bad, self.halves) = (None, 0);
            }
        } else {
            self.bad = Some(rate);
        }
        self.rate = match (self.good, self.bad) {
            (Some(good), None) => Some(good * STEP),
            (Some(good), Some(bad)) if self.halves < HALVES => {
                self.halves += 1;
                Some((good + bad) / 2.0)
            }
            (None, Some(bad)) if bad >= self.from * LEAST && !doubted => Some(bad / 2.0),
            _ if doubted => None,
            (good, bad) => self.doubt(good.and(bad).unwrap_or(self.from)),
        };
    }

    fn doubt(&mut self, rate: f64) -> Option<f64> {
        self.doubted = self.doubts < DOUBTS;
        self.doubts += 1;
        self.doubted.then_some(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found where rates up to `most` hold, but for the tries that `fails` names; and how many tries that took.
    fn search(most: f64, fails: &[usize]) -> (f64, usize) {
        let (mut search, mut best, mut tries) = (Search::from(100.0), 0.0f64, 0);
        while let Some(rate) = search.rate {
            let held = rate <= most && !fails.contains(&tries);
            best = if held { best.max(rate) } else { best };
            search.found(rate, held);
            tries += 1;
            assert!(tries < 100);
        }
        (best, tries)
    }

    #[test]
    fn it_comes_near_to_the_highest_rate() {
        for most in [4.0, 20.0, 99.0, 100.0, 149.0, 151.0, 1000.0, 12_345.0] {
            let (best, _) = search(most, &[]);
            assert!(best <= most && best > 0.95 * most, "{best} of {most}");
        }
        assert_eq!(search(1.0, &[]).0, 0.0);
    }

    #[test]
    fn one_try_that_failed_by_chance_does_not_end_it() {
        let (_, tries) = search(1000.0, &[]);
        for failed in 0..tries - 1 {
            let (best, _) = search(1000.0, &[failed]);
            assert!(best > 0.9 * 1000.0, "{best}, with try {failed} failed");
        }
    }
}
