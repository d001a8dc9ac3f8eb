//! What a load came to.

use super::{Fault, Latency, Times};
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// What a load came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// questions a second that were wanted; None: as many as possible
    pub(crate) rate: Option<f64>,
    /// how long was sent
    pub(crate) span_ns: u64,
    /// questions sent
    pub(crate) sent: u64,
    /// questions that were due and not sent: the generator fell behind
    pub(crate) unsent: u64,
    /// questions answered
    pub(crate) answered: u64,
    /// of which so many while it was sent, and not after
    pub(crate) answered_in_span: u64,
    /// questions not answered in time
    pub(crate) lost: u64,
    /// answers to no outstanding question: late, twice, or never asked
    pub(crate) unmatched: u64,
    /// frames that were no answers of the server's
    pub(crate) foreign: u64,
    /// answers by RCODE
    pub(crate) rcodes: [u64; 16],
    /// those that came while it was sent
    pub(crate) rcodes_in_span: [u64; 16],
    /// answers that were checked to the last byte
    pub(crate) checked: u64,
    /// checked answers whose UDP checksum was left to an offload
    pub(crate) partial_checksums: u64,
    /// checked answers without a UDP checksum, which IPv4 allows
    pub(crate) no_checksums: u64,
    /// what the checks found
    pub(crate) faults: BTreeMap<Fault, u64>,
    /// how often the checked answers went on to a newer version of the zone
    pub(crate) versions: u64,
    /// of all answers
    pub(crate) latency: Latency,
    /// medians over windows of 100 ms of each window's p50 and p99, in microseconds; None where no window had answers enough
    pub(crate) window_us: Option<(f64, f64)>,
    #[serde(skip)]
    times: Times,
}

/// Which answers are good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Good {
    /// NOERROR
    NoError,
    /// NOERROR, and NXDOMAIN when names are asked for that are not there
    OrAbsent,
    /// each: a reflector answers nothing but what it is sent
    Any,
}

impl Good {
    /// How many of these are.
    fn of(self, rcodes: &[u64; 16], answered: u64) -> u64 {
        match self {
            Good::NoError => rcodes[0],
            Good::OrAbsent => rcodes[0] + rcodes[3],
            Good::Any => answered,
        }
    }
}

impl Outcome {
    pub(crate) fn new(rate: Option<f64>) -> Outcome {
        Outcome {
            rate,
            span_ns: 0,
            sent: 0,
            unsent: 0,
            answered: 0,
            answered_in_span: 0,
            lost: 0,
            unmatched: 0,
            foreign: 0,
            rcodes: [0; 16],
            rcodes_in_span: [0; 16],
            checked: 0,
            partial_checksums: 0,
            no_checksums: 0,
            faults: BTreeMap::new(),
            versions: 0,
            latency: Latency::default(),
            window_us: None,
            times: Times::default(),
        }
    }

    #[inline]
    pub(super) fn record_latency(&mut self, due_ns: u64, ns: u64) {
        self.times.record(due_ns, ns);
    }

    /// All is sent: answers that come from now on say how many there are, and not how many a second.
    pub(crate) fn end_of_span(&mut self) {
        (self.answered_in_span, self.rcodes_in_span) = (self.answered, self.rcodes);
    }

    pub(super) fn finish(&mut self) {
        self.lost = self.sent - self.answered;
        (self.window_us, self.latency) = (self.times.by_window_us(), self.times.latency());
    }

    fn a_second(&self, count: u64) -> f64 {
        count as f64 * 1e9 / self.span_ns.max(1) as f64
    }

    /// Questions due a second.
    pub(crate) fn due_rate(&self) -> f64 {
        self.a_second(self.sent + self.unsent)
    }

    /// Questions sent a second.
    pub(crate) fn sent_rate(&self) -> f64 {
        self.a_second(self.sent)
    }

    /// Good answers a second, of those that came while it was sent: what a server's queues held then is no rate of its.
    pub(crate) fn good_rate(&self, good: Good) -> f64 {
        self.a_second(good.of(&self.rcodes_in_span, self.answered_in_span))
    }

    /// The share of the questions sent that had a good answer, if only after all was sent.
    pub(crate) fn good_share(&self, good: Good) -> f64 {
        if self.sent == 0 { 0.0 } else { good.of(&self.rcodes, self.answered) as f64 / self.sent as f64 }
    }

    /// An error when a checked answer was wrong.
    pub(crate) fn ensure_right(&self) -> Result<()> {
        let wrong: u64 = self.faults.values().sum();
        ensure!(wrong == 0, "{wrong} of {} checked answers were wrong: {:?}", self.checked, self.faults);
        Ok(())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
        writeln!(f, "sent       {:>10}  {:>8.0}/s", self.sent, self.sent_rate())?;
        if self.unsent > 0 {
            writeln!(f, "unsent     {:>10}  the generator fell behind the wanted rate", self.unsent)?;
        }
        writeln!(f, "answered   {:>10}  {:>8.0}/s", self.answered, self.a_second(self.answered_in_span))?;
        writeln!(f, "lost       {:>10}  {:.3} %", self.lost, percent(self.lost, self.sent))?;
        if self.unmatched + self.foreign > 0 {
            writeln!(f, "unmatched  {:>10}  and {} frames that were no answers", self.unmatched, self.foreign)?;
        }
        for (rcode, &count) in self.rcodes.iter().enumerate().filter(|(_, count)| **count > 0) {
            writeln!(f, "RCODE {rcode:<2}   {count:>10}  {:.3} %", percent(count, self.answered))?;
        }
        writeln!(f, "checked    {:>10}  {} wrong", self.checked, self.faults.values().sum::<u64>())?;
        for (fault, count) in &self.faults {
            writeln!(f, "  wrong    {count:>10}  {fault:?}")?;
        }
        let Latency { p50_us, p90_us, p99_us, p999_us, greatest_us } = self.latency;
        write!(
            f,
            "latency    p50 {p50_us:.1}  p90 {p90_us:.1}  p99 {p99_us:.1}  p99.9 {p999_us:.1}  max {greatest_us:.1} us"
        )?;
        if let Some((p50_us, p99_us)) = self.window_us {
            write!(f, "\n  by window  p50 {p50_us:.1}  p99 {p99_us:.1} us: medians over windows of 100 ms")?;
        }
        Ok(())
    }
}
