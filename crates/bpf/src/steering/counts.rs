//! The program's counters.

use aya::maps::{MapData, PerCpuArray};
use base::counter::{Figure, Report};

/// What the program has counted.
pub struct Counts(pub(super) PerCpuArray<MapData, u64>);

/// `enum counter` of the program: metric, label.
const COUNTERS: [(&str, &str); 18] = [
    ("steering_taken_total", ""),
    ("steering_passed_total", "no socket"),
    ("steering_dropped_total", "denied"),
    ("steering_dropped_total", "not allowed"),
    ("steering_dropped_total", "tcp fragment"),
    ("steering_passed_total", "not ours"),
    ("steering_passed_total", "not ip"),
    ("steering_passed_total", "options or extension headers"),
    ("steering_passed_total", "fragment"),
    ("steering_passed_total", "short"),
    ("steering_answered_total", "4"),
    ("steering_answered_total", "6"),
    ("steering_answered_truncated_total", ""),
    ("steering_rate_reached_total", ""),
    ("steering_dropped_total", "answer"),
    ("steering_cookies_valid_total", ""),
    ("steering_left_total", ""),
    ("steering_dropped_total", "no socket"),
];

impl Counts {
    /// The figure of `reason` in `metric`, over all processors; None when there is no such figure or the kernel refuses.
    pub fn get(&self, metric: &str, reason: &str) -> Option<u64> {
        let index = COUNTERS.iter().position(|named| *named == (metric, reason))?;
        self.sum(index)
    }

    fn sum(&self, index: usize) -> Option<u64> {
        let values = self.0.get(&(index as u32), 0).ok()?;
        Some(values.iter().fold(0, |sum, n| sum.wrapping_add(*n)))
    }
}

impl Report for Counts {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        for (index, (name, reason)) in COUNTERS.iter().enumerate() {
            let help = match *name {
                "steering_taken_total" => "frames that the steering program sent to an AF_XDP socket",
                "steering_passed_total" => "frames that the steering program left to the kernel",
                "steering_answered_total" => "questions that the steering program answered by itself",
                "steering_rate_reached_total" => {
                    "questions left to the socket, since the steering program's rate was reached"
                }
                "steering_left_total" => "questions that the steering program read and left to the socket",
                "steering_answered_truncated_total" => "answers of the steering program with TC set",
                "steering_cookies_valid_total" => {
                    "questions with a valid server cookie that the steering program answered"
                }
                _ => "frames of ours that the steering program dropped",
            };
            let label = [(if *name == "steering_answered_total" { "family" } else { "reason" }, *reason)];
            let labels: &[_] = if reason.is_empty() { &[] } else { &label };
            if let Some(value) = self.sum(index) {
                show(Figure { name, help, gauge: false, labels, value });
            }
        }
    }
}

impl std::fmt::Debug for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Counts")
    }
}
