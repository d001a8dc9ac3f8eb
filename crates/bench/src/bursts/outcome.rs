//! What a load of bursts came to.

use crate::load::{Latency, histogram};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a load came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// frames of a whole burst
    pub(crate) segments: u32,
    /// how long was asked
    pub(crate) span_ns: u64,
    /// requests sent
    pub(crate) sent: u64,
    /// requests answered by a whole burst
    pub(crate) answered: u64,
    /// requests given up with frames missing
    pub(crate) short: u64,
    /// how often nothing had come for as long as the timeout
    pub(crate) silent: u64,
    /// requests under way when the load ended
    pub(crate) unfinished: u64,
    /// frames of requests that were not given up when they came
    pub(crate) frames: u64,
    /// their bytes
    pub(crate) bytes: u64,
    /// frames of requests that had been given up, or of a run before
    pub(crate) late: u64,
    /// frames that were no answers
    pub(crate) foreign: u64,
    /// of whole bursts, from the request to the last frame
    pub(crate) latency: Latency,
    #[serde(skip, default = "histogram")]
    histogram: Histogram<u64>,
}

impl Outcome {
    pub(super) fn new(segments: u32) -> Outcome {
        Outcome {
            segments,
            span_ns: 0,
            sent: 0,
            answered: 0,
            short: 0,
            silent: 0,
            unfinished: 0,
            frames: 0,
            bytes: 0,
            late: 0,
            foreign: 0,
            latency: Latency::default(),
            histogram: histogram(),
        }
    }

    pub(super) fn record_latency(&mut self, ns: u64) {
        self.histogram.saturating_record(ns.max(100));
    }

    pub(super) fn finish(&mut self) {
        self.latency = Latency::of(&self.histogram);
    }

    fn seconds(&self) -> f64 {
        self.span_ns.max(1) as f64 / 1e9
    }

    /// Whole bursts a second.
    pub(crate) fn answered_rate(&self) -> f64 {
        self.answered as f64 / self.seconds()
    }

    /// As many bursts a second as all frames that came would make.
    pub(crate) fn frames_rate(&self) -> f64 {
        self.frames as f64 / f64::from(self.segments) / self.seconds()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.seconds();
        writeln!(f, "sent         {:>10}", self.sent)?;
        writeln!(f, "answered     {:>10}  by {} frames each, in {seconds:.2} s", self.answered, self.segments)?;
        writeln!(f, "short        {:>10}  frames missing; {} times nothing came", self.short, self.silent)?;
        writeln!(f, "frames       {:>10}  {} late, {} foreign", self.frames, self.late, self.foreign)?;
        let Latency { p50_us, p90_us, p99_us, p999_us, greatest_us } = self.latency;
        writeln!(
            f,
            "latency      p50 {p50_us:.1}  p90 {p90_us:.1}  p99 {p99_us:.1}  p99.9 {p999_us:.1}  max {greatest_us:.1} us"
        )?;
        writeln!(f, "Requests/sec: {:.2}", self.answered_rate())?;
        writeln!(f, "Frames/sec, as requests: {:.2}", self.frames_rate())?;
        write!(f, "Transfer/sec: {:.2} MB", self.bytes as f64 / seconds / 1e6)
    }
}
