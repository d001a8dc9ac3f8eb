//! What a load came to.

use super::answer::Answer;
use crate::load::{Latency, Times, WINDOW_NS};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A bound on the 99th percentile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// in microseconds
    pub(crate) p99_us: f64,
    /// the share of windows that must keep to it
    pub(crate) windows: f64,
}

impl Bound {
    /// To be kept by nine of ten windows that the machine leaves alone, of which it takes a share from whoever runs there.
    pub(crate) fn beside(p99_us: f64, lost: f64) -> Bound {
        Bound { p99_us, windows: (WINDOWS_HELD * (1.0 - lost)).max(WINDOWS_LEAST) }
    }
}

/// What a load came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// requests a second that were wanted; None: as many as connections allow
    pub(crate) rate: Option<f64>,
    /// how long was asked
    pub(crate) span_ns: u64,
    /// requests sent
    pub(crate) sent: u64,
    /// requests that were due and not sent: every connection had as many under way as it may have
    pub(crate) missed: u64,
    /// answers
    pub(crate) answered: u64,
    /// of which so many came within the span
    pub(crate) answered_in_span: u64,
    /// GETs that found a value, each compared
    pub(crate) hits: u64,
    /// GETs that found none
    pub(crate) misses: u64,
    /// a share of the GETs that may find none where a rate holds
    pub(crate) misses_most: f64,
    /// SETs that were done
    pub(crate) stored: u64,
    /// SETs that the server could not do
    pub(crate) refused: u64,
    /// answers that were not what was stored, those of the warm-up among them
    pub(crate) wrong: u64,
    /// connections that did not stand when it began
    #[serde(default)]
    pub(crate) lacking: u64,
    /// connections that failed since the run before, by reason
    pub(crate) failures: BTreeMap<String, u64>,
    /// requests without an answer when the load ended, shortly after its span
    pub(crate) unfinished: u64,
    /// octets of answers
    pub(crate) bytes: u64,
    /// of the connections that make the load, from when a request was due
    pub(crate) latency: Latency,
    /// of those that ask seldom, one request at a time
    pub(crate) unloaded: Latency,
    /// medians over windows of 100 ms of each window's p50 and p99, in microseconds, of those that ask seldom, else of all; None where
    /// no window had answers enough
    pub(crate) window_us: Option<(f64, f64)>,
    /// the 99th percentile of each of these windows, in microseconds
    #[serde(default)]
    pub(crate) windows_p99_us: Vec<f64>,
    /// requests that these were
    pub(crate) probes: u64,
    #[serde(skip)]
    times: Times,
    #[serde(skip)]
    probed: Times,
}

impl Outcome {
    pub(crate) fn new(rate: Option<f64>) -> Outcome {
        Outcome {
            rate,
            span_ns: 0,
            sent: 0,
            missed: 0,
            answered: 0,
            answered_in_span: 0,
            hits: 0,
            misses: 0,
            misses_most: 1.0,
            stored: 0,
            refused: 0,
            wrong: 0,
            lacking: 0,
            failures: BTreeMap::new(),
            unfinished: 0,
            bytes: 0,
            latency: Latency::default(),
            unloaded: Latency::default(),
            window_us: None,
            windows_p99_us: Vec::new(),
            probes: 0,
            times: Times::default(),
            probed: Times::by_windows_of(PROBES_LEAST),
        }
    }

    /// An answer to what was due at `due_ns` came after `ns`. Windows go by when requests were due: by when answers came, a window would
    /// have the fewer the slower they were, and not count for that.
    #[inline]
    pub(super) fn take(&mut self, answer: Answer, [due_ns, ns]: [u64; 2], probes: bool, in_span: bool) {
        self.answered += 1;
        self.answered_in_span += u64::from(in_span);
        match answer {
            Answer::Hit => self.hits += 1,
            Answer::Miss => self.misses += 1,
            Answer::Stored => self.stored += 1,
            Answer::Refused => self.refused += 1,
            Answer::Wrong => self.wrong += 1,
        }
        self.probes += u64::from(probes);
        let times = if probes { &mut self.probed } else { &mut self.times };
        times.record(due_ns, ns);
    }

    #[cold]
    pub(super) fn fail(&mut self, why: &str) {
        *self.failures.entry(why.into()).or_default() += 1;
    }

    /// Takes over what went wrong before this load: in the warm-up, or while nothing was asked. It belongs to no span, and is told with
    /// this one, lest it be told nowhere.
    pub(super) fn inherit(&mut self, before: Outcome) {
        self.wrong += before.wrong;
        self.refused += before.refused;
        for (why, count) in before.failures {
            *self.failures.entry(why).or_default() += count;
        }
    }

    pub(super) fn finish(&mut self) {
        (self.latency, self.unloaded) = (self.times.latency(), self.probed.latency());
        let counted = if self.probes > 0 { &mut self.probed } else { &mut self.times };
        (self.window_us, self.windows_p99_us) = (counted.by_window_us(), counted.windows_p99_us());
    }

    /// Answers a second.
    pub(crate) fn answered_rate(&self) -> f64 {
        self.answered_in_span as f64 * 1e9 / self.span_ns.max(1) as f64
    }

    /// The median over windows of the 99th percentile of the connections that ask seldom, if there are any, else of all; of the whole span
    /// where no window had answers enough.
    pub(crate) fn p99_us(&self) -> f64 {
        self.window_us.map_or_else(|| self.whole_p99_us(), |(_, p99_us)| p99_us)
    }

    /// The share of the span's windows that had their 99th percentile no higher than a bound; one without answers enough had not. None
    /// where more than one in ten had too few: what is to be judged then is the whole span, which is no easier.
    pub(crate) fn windows_held(&self, p99_us: f64) -> Option<f64> {
        let windows = self.windows_p99_us.len().max((self.span_ns / WINDOW_NS) as usize);
        let held = self.windows_p99_us.iter().filter(|window_us| **window_us <= p99_us).count();
        let had_enough = self.windows_p99_us.len() as f64 >= WINDOWS_HELD * windows as f64;
        (windows > 0 && had_enough).then(|| held as f64 / windows as f64)
    }

    /// The same connections' of the whole span, with the pauses of the machine.
    pub(crate) fn whole_p99_us(&self) -> f64 {
        if self.probes > 0 { self.unloaded.p99_us } else { self.latency.p99_us }
    }

    /// Answers that did not come, or were wrong, and connections that were not there to ask on; a value that is gone is none of them.
    pub(crate) fn failed(&self) -> u64 {
        self.wrong + self.refused + self.unfinished + self.lacking + self.failures.values().sum::<u64>()
    }

    /// The share of the GETs that found nothing.
    pub(crate) fn misses_share(&self) -> f64 {
        self.misses as f64 / (self.hits + self.misses).max(1) as f64
    }

    /// Whether the rate that was wanted was held, with the 99th percentile within a bound (of the whole span where it has too few windows),
    /// by a server that still had what was stored.
    pub(crate) fn holds(&self, Bound { p99_us, windows }: Bound) -> bool {
        let wanted = self.rate.unwrap_or_default() * self.span_ns as f64 / 1e9;
        let is_answered = self.answered_in_span as f64 >= HELD_SHARE * wanted && self.failed() == 0;
        let is_in_bound =
            self.windows_held(p99_us).map_or_else(|| self.whole_p99_us() <= p99_us, |share| share >= windows);
        is_answered && is_in_bound && self.misses_share() <= self.misses_most
    }
}

/// A rate is held when so much of it was answered: a Poisson process brings a little more or less.
const HELD_SHARE: f64 = 0.97;
/// A bound on the 99th percentile is kept when so many of the windows keep it that the machine leaves alone.
pub(crate) const WINDOWS_HELD: f64 = 0.9;
/// But of all of them at least so many.
pub(crate) const WINDOWS_LEAST: f64 = 0.5;
/// A window of 100 ms has a 99th percentile with so many answers to those that ask seldom: half of what 2,000 requests/s bring.
const PROBES_LEAST: u64 = 100;

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.span_ns.max(1) as f64 / 1e9;
        writeln!(f, "sent         {:>10}", self.sent)?;
        if self.missed > 0 {
            writeln!(f, "not sent     {:>10}  due while every connection was busy", self.missed)?;
        }
        writeln!(f, "answered     {:>10}  {} in {seconds:.2} s", self.answered, self.answered_in_span)?;
        let Outcome { hits, misses, stored, refused, wrong, .. } = self;
        writeln!(f, "GET          {:>10}  found and compared, {misses} not found, {wrong} wrong", hits)?;
        writeln!(f, "SET          {stored:>10}  stored, {refused} refused")?;
        if self.lacking > 0 {
            writeln!(f, "lacking      {:>10}  connections that did not stand when it began", self.lacking)?;
        }
        for (why, count) in &self.failures {
            writeln!(f, "error        {count:>10}  {why}")?;
        }
        if self.unfinished > 0 {
            writeln!(f, "unfinished   {:>10}  when the load ended", self.unfinished)?;
        }
        for (name, Latency { p50_us, p90_us, p99_us, p999_us, greatest_us }) in
            [("latency ", &self.latency), ("unloaded", &self.unloaded)]
        {
            writeln!(
                f,
                "{name}     p50 {p50_us:.1}  p90 {p90_us:.1}  p99 {p99_us:.1}  p99.9 {p999_us:.1}  max {greatest_us:.1} us"
            )?;
        }
        if let Some((p50_us, p99_us)) = self.window_us {
            writeln!(f, "  by window  p50 {p50_us:.1}  p99 {p99_us:.1} us: medians over windows of 100 ms")?;
        }
        write!(f, "Requests/sec: {:.2}", self.answered_rate())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2 s in which every request was answered, with these windows.
    fn of_windows(windows_p99_us: Vec<f64>) -> Outcome {
        let mut outcome = Outcome::new(Some(1000.0));
        (outcome.span_ns, outcome.answered_in_span, outcome.hits) = (2_000_000_000, 2000, 2000);
        (outcome.probes, outcome.unloaded.p99_us) = (4000, 9_000.0);
        outcome.windows_p99_us = windows_p99_us;
        outcome
    }

    fn within(p99_us: f64) -> Bound {
        Bound::beside(p99_us, 0.0)
    }

    #[test]
    fn a_bound_is_kept_by_nine_windows_of_ten_that_the_machine_leaves_alone() {
        let windows = |slow: usize| [vec![400.0; 20 - slow], vec![5_000.0; slow]].concat();
        for (slow, holds) in [(0, true), (2, true), (3, false), (9, false), (20, false)] {
            let outcome = of_windows(windows(slow));
            assert_eq!(outcome.windows_held(500.0), Some((20 - slow) as f64 / 20.0));
            assert_eq!(outcome.holds(within(500.0)), holds, "{slow} windows above");
            assert!(outcome.holds(within(5_000.0)) && !outcome.holds(within(300.0)));
        }
        // where the machine takes windows from everybody they are less, but never less than half
        for (lost, slow, holds) in [(0.2, 5, true), (0.2, 6, false), (0.9, 10, true), (0.9, 11, false)] {
            assert_eq!(of_windows(windows(slow)).holds(Bound::beside(500.0, lost)), holds, "{slow} above, {lost} lost");
        }
        // a window without answers enough kept nothing
        for (slow, share, holds) in [(0, 0.9, true), (1, 0.85, false)] {
            let outcome = of_windows([vec![400.0; 18 - slow], vec![5_000.0; slow]].concat());
            assert_eq!((outcome.windows_held(500.0), outcome.holds(within(500.0))), (Some(share), holds));
        }
        // with so few requests that more than one in ten is such, or that there is none, the whole span counts
        for windows in [17, 1, 0] {
            let outcome = of_windows(vec![400.0; windows]);
            let whole = (outcome.windows_held(500.0), outcome.holds(within(500.0)), outcome.holds(within(9_000.0)));
            assert_eq!(whole, (None, false, true), "{windows}");
        }
    }

    #[test]
    fn windows_of_a_run_are_told_and_read_again() {
        let mut outcome = Outcome::new(None);
        for ms in 0..400_u64 {
            // half a window's answers are slow in the second of four
            let ns = if (100..150).contains(&ms) { 900_000 } else { 200_000 };
            outcome.take(Answer::Hit, [ms * 1_000_000, ns], true, true);
        }
        outcome.span_ns = 400_000_000;
        outcome.finish();
        assert_eq!(outcome.windows_held(500.0), Some(0.75));
        let told = serde_json::to_string(&outcome).unwrap();
        let read: Outcome = serde_json::from_str(&told).unwrap();
        assert_eq!((read.windows_held(500.0), read.windows_held(100.0)), (Some(0.75), Some(0.0)));
        // what is told by a program of before has none
        let mut before: serde_json::Value = serde_json::from_str(&told).unwrap();
        before.as_object_mut().unwrap().remove("windows_p99_us");
        assert_eq!(serde_json::from_value::<Outcome>(before).unwrap().windows_held(500.0), None);
    }
}
