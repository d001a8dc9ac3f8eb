//! What a load of messages came to.

use crate::load::{Latency, histogram};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// What a load of messages of one length came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// octets of a message
    pub(crate) bytes: u32,
    /// how long was asked
    pub(crate) span_ns: u64,
    /// messages sent
    pub(crate) sent: u64,
    /// messages that came back
    pub(crate) answered: u64,
    /// of which so many came within the span
    pub(crate) answered_in_span: u64,
    /// connections that had all their round trips, within the span
    pub(crate) finished: u64,
    /// messages that did not come back as they were sent
    pub(crate) wrong: u64,
    /// connections that failed, by reason
    pub(crate) failures: BTreeMap<String, u64>,
    /// messages that had not come back when the load ended, shortly after its span
    pub(crate) unfinished: u64,
    /// of a round trip
    pub(crate) latency: Latency,
    #[serde(skip, default = "histogram")]
    histogram: Histogram<u64>,
}

impl Outcome {
    pub(super) fn new(bytes: u32) -> Outcome {
        Outcome {
            bytes,
            span_ns: 0,
            sent: 0,
            answered: 0,
            answered_in_span: 0,
            finished: 0,
            wrong: 0,
            failures: BTreeMap::new(),
            unfinished: 0,
            latency: Latency::default(),
            histogram: histogram(),
        }
    }

    #[inline]
    pub(super) fn take(&mut self, ns: u64, in_span: bool) {
        self.answered += 1;
        self.answered_in_span += u64::from(in_span);
        self.histogram.saturating_record(ns.max(100));
    }

    #[cold]
    pub(super) fn fail(&mut self, why: &str) {
        *self.failures.entry(why.into()).or_default() += 1;
    }

    /// Takes over what went wrong in the warm-up, which is told nowhere else.
    pub(super) fn inherit(&mut self, before: Outcome) {
        self.wrong += before.wrong;
        for (why, count) in before.failures {
            *self.failures.entry(why).or_default() += count;
        }
    }

    pub(super) fn finish(&mut self, span_ns: u64) {
        (self.span_ns, self.latency) = (span_ns, Latency::of(&self.histogram));
    }

    fn a_second(&self, count: u64) -> f64 {
        count as f64 * 1e9 / self.span_ns.max(1) as f64
    }

    /// Round trips a second.
    pub(crate) fn messages_per_s(&self) -> f64 {
        self.a_second(self.answered_in_span)
    }

    /// Connections a second that were opened, had their round trips and ended.
    pub(crate) fn connections_per_s(&self) -> f64 {
        self.a_second(self.finished)
    }

    /// Octets of messages a second that came back, in Gb/s.
    pub(crate) fn goodput_gbps(&self) -> f64 {
        self.messages_per_s() * f64::from(self.bytes) * 8.0 / 1e9
    }

    /// What went wrong, of whatever kind.
    pub(crate) fn failed(&self) -> u64 {
        self.wrong + self.unfinished + self.failures.values().sum::<u64>()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Latency { p50_us, p90_us, p99_us, p999_us, greatest_us } = &self.latency;
        write!(
            f,
            "{:>8} bytes  {:>9.0} messages/s  {:>8.0} connections/s  {:>7.3} Gb/s  p50 {p50_us:.1}  p90 {p90_us:.1}  p99 {p99_us:.1}  p99.9 \
             {p999_us:.1}  max {greatest_us:.1} us",
            self.bytes,
            self.messages_per_s(),
            self.connections_per_s(),
            self.goodput_gbps()
        )?;
        if self.failed() > 0 {
            write!(f, "  {} wrong, {} unfinished {:?}", self.wrong, self.unfinished, self.failures)?;
        }
        Ok(())
    }
}
