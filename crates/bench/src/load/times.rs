//! How long answers took, over a whole run and by windows.

use crate::stats::Summary;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Percentiles of the answers' latency in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// half are below
    pub(crate) p50_us: f64,
    /// nine of ten are below
    pub(crate) p90_us: f64,
    /// 99 of a hundred are below
    pub(crate) p99_us: f64,
    /// 999 of a thousand are below
    pub(crate) p999_us: f64,
    /// the slowest
    pub(crate) greatest_us: f64,
}

impl Latency {
    /// Of latencies in nanoseconds; all zero without any.
    pub(crate) fn of(histogram: &Histogram<u64>) -> Latency {
        if histogram.is_empty() {
            return Latency::default();
        }
        let us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Latency {
            p50_us: us(0.5),
            p90_us: us(0.9),
            p99_us: us(0.99),
            p999_us: us(0.999),
            greatest_us: histogram.max() as f64 / 1e3,
        }
    }
}

/// How long a window of latencies is. A virtual machine's processors are taken away for milliseconds at a time; a window is
/// short enough that most see none of that.
pub(crate) const WINDOW_NS: u64 = 100_000_000;
/// A window with fewer answers than this has no 99th percentile worth the name, unless answers come seldom by design.
const WINDOW_LEAST: u64 = 1_000;

/// For the latencies of any load: 100 ns to a minute with three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(100, 60_000_000_000, 3).expect("bounds in order")
}

/// How long answers took.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    all: Histogram<u64>,
    /// the present window's
    window: Option<Histogram<u64>>,
    end_ns: u64,
    least: u64,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
}

impl Default for Times {
    fn default() -> Self {
        Times::by_windows_of(WINDOW_LEAST)
    }
}

impl Times {
    /// Windows with fewer answers than `least` do not count.
    pub(crate) fn by_windows_of(least: u64) -> Times {
        Times { all: histogram(), window: None, end_ns: 0, least, p50_us: Vec::new(), p99_us: Vec::new() }
    }

    /// What was due at `due_ns` was answered `ns` later. Its window is that of when it was due: by when answers come, those of a
    /// pause would fall together into the window behind it, and windows with few of them would not count.
    #[inline]
    pub(crate) fn record(&mut self, due_ns: u64, ns: u64) {
        let ns = ns.max(100);
        self.all.saturating_record(ns);
        if due_ns >= self.end_ns {
            self.close();
            self.end_ns = due_ns + WINDOW_NS;
        }
        self.window.get_or_insert_with(histogram).saturating_record(ns);
    }

    fn close(&mut self) {
        let Some(window) = &mut self.window else { return };
        if window.len() >= self.least {
            self.p50_us.push(window.value_at_quantile(0.5) as f64 / 1e3);
            self.p99_us.push(window.value_at_quantile(0.99) as f64 / 1e3);
        }
        window.reset();
    }

    /// Of all answers.
    pub(crate) fn latency(&self) -> Latency {
        Latency::of(&self.all)
    }

    /// Medians over the windows of each window's p50 and p99, in microseconds; None where no window had answers enough.
    pub(crate) fn by_window_us(&mut self) -> Option<(f64, f64)> {
        self.close();
        Some((Summary::of(&self.p50_us)?.median, Summary::of(&self.p99_us)?.median))
    }

    /// The 99th percentile of each window that had answers enough, in microseconds, in their order.
    pub(crate) fn windows_p99_us(&mut self) -> Vec<f64> {
        self.close();
        self.p99_us.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_in_one_window_and_not_in_the_middle_of_them() {
        let mut times = Times::by_windows_of(100);
        for ms in 0..1000_u64 {
            // in each window of 100 ms one answer of a hundred takes 50 us; those of 30 ms waited for a processor
            let us = if (300..330).contains(&ms) { 9_000 } else { 10 + 40 * u64::from(ms % 50 == 49) };
            times.record(ms * 1_000_000, us * 1_000);
        }
        let (p50_us, p99_us) = times.by_window_us().unwrap();
        assert!((9.9..10.1).contains(&p50_us) && (49.0..51.0).contains(&p99_us), "{p50_us} {p99_us}");
        assert!(times.latency().p99_us > 8_000.0, "{:?}", times.latency());
        let windows = times.windows_p99_us();
        let slow: Vec<usize> = (0..windows.len()).filter(|at| windows[*at] > 51.0).collect();
        assert_eq!((windows.len(), slow), (10, vec![3]), "{windows:?}");
        // too few in each window
        let mut seldom = Times::by_windows_of(101);
        (0..1000).for_each(|ms| seldom.record(ms * 1_000_000, 10_000));
        assert_eq!((seldom.by_window_us(), seldom.windows_p99_us()), (None, Vec::new()));
        assert_eq!(Times::default().by_window_us(), None);
    }
}
