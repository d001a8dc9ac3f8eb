//! Figures as text, as JSON and as a ladder.

use super::{Outcome, Tally};
use crate::words::{Idle, Sleep};
use serde_json::{Value, json};
use std::fmt::Write;

/// What a bar of the greatest value is made of.
const BAR: usize = 30;

/// How it waited, in words.
pub(super) fn way(outcome: &Outcome) -> String {
    let how = &outcome.how;
    let mut words = format!("idle {}", how.idle);
    if how.interface.is_none() && how.idle != Idle::Spin && how.sleep == Sleep::Epoll {
        words += ", in epoll";
    }
    if how.busy_poll_us > 0 {
        let _ = write!(words, ", busy-poll {} us", how.busy_poll_us);
    }
    if let Some(cpu) = how.cpu {
        let _ = write!(words, ", on processor {cpu}");
    }
    words
}

/// The figures of one run.
pub(super) fn text(outcome: &Outcome) -> String {
    let Outcome { target, local, bytes, backend, tally, incoming_cpu, .. } = outcome;
    let mut text = format!("{local} to {target}, {bytes} octets, {backend}, {}\n", way(outcome));
    if let Some(cpu) = incoming_cpu {
        let _ = writeln!(text, "the kernel received the last answer on processor {cpu}");
    }
    let _ = writeln!(
        text,
        "{} sent, {} answered, {} lost ({:.3}%), {} reordered, {} duplicate, {} late, {} wrong",
        tally.sent,
        tally.answered,
        tally.lost,
        tally.loss() * 100.0,
        tally.reordered,
        tally.duplicates,
        tally.late,
        tally.damaged,
    );
    for (count, what) in [
        (tally.foreign, "answers to others' probes"),
        (tally.unreachable, "errors from the network (nobody listens there, or no way)"),
        (tally.unsent, "probes not sent: the machine was late for them"),
        (tally.pending, "probes still on their way at the end"),
    ] {
        if count > 0 {
            let _ = writeln!(text, "{count} {what}");
        }
    }
    let us = |value: Option<f64>| value.map_or("-".into(), |us| format!("{us:.1}"));
    if tally.answered > 0 {
        let _ = writeln!(
            text,
            "round trip, us: minimum {}, average {}, deviation {}, median {}, 90% {}, 99% {}, 99.9% {}, maximum {}",
            us(tally.least_us()),
            us(tally.average_us()),
            us(tally.deviation_us()),
            us(tally.quantile_us(0.5)),
            us(tally.quantile_us(0.9)),
            us(tally.quantile_us(0.99)),
            us(tally.quantile_us(0.999)),
            us(tally.greatest_us()),
        );
        let (rate, span_s) = (tally.packets_per_s(), tally.span_ns as f64 / 1e9);
        let _ = writeln!(text, "{rate:.0} packets/s over {span_s:.1} s");
    }
    text
}

/// The same for programs.
pub(super) fn json(outcome: &Outcome) -> Value {
    let Outcome { target, local, bytes, backend, tally, incoming_cpu, how } = outcome;
    json!({
        "target": target.to_string(),
        "local": local.to_string(),
        "size": bytes,
        "backend": backend,
        "idle": how.idle.to_string(),
        "sleep": how.sleep.to_string(),
        "busy_poll_us": how.busy_poll_us,
        "cpu": how.cpu,
        "incoming_cpu": incoming_cpu,
        "sent": tally.sent,
        "answered": tally.answered,
        "lost": tally.lost,
        "late": tally.late,
        "duplicates": tally.duplicates,
        "reordered": tally.reordered,
        "wrong": tally.damaged,
        "foreign": tally.foreign,
        "unreachable": tally.unreachable,
        "unsent": tally.unsent,
        "pending": tally.pending,
        "span_s": tally.span_ns as f64 / 1e9,
        "packets_per_s": tally.packets_per_s(),
        "minimum_us": tally.least_us(),
        "average_us": tally.average_us(),
        "deviation_us": tally.deviation_us(),
        "p50_us": tally.quantile_us(0.5),
        "p90_us": tally.quantile_us(0.9),
        "p99_us": tally.quantile_us(0.99),
        "p999_us": tally.quantile_us(0.999),
        "maximum_us": tally.greatest_us(),
    })
}

/// The steps one below the other, a bar as long as the step's median.
pub(super) fn ladder(steps: &[(String, Outcome)]) -> String {
    let width = steps.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let greatest = steps.iter().filter_map(|(_, outcome)| outcome.tally.quantile_us(0.5)).fold(0.0, f64::max);
    let mut text = format!(
        "{:width$}  {:>9} {:>9} {:>9} {:>9} {:>9} {:>10}\n",
        "round trip, us", "minimum", "average", "deviation", "median", "99%", "packets/s"
    );
    for (name, Outcome { tally, .. }) in steps {
        let us = |value: Option<f64>| value.map_or("-".into(), |us| format!("{us:.1}"));
        let median = tally.quantile_us(0.5);
        let bar = median.map_or(0, |us| ((us / greatest * BAR as f64).round() as usize).max(1));
        let _ = writeln!(
            text,
            "{name:width$}  {:>9} {:>9} {:>9} {:>9} {:>9} {:>10.0}  {}",
            us(tally.least_us()),
            us(tally.average_us()),
            us(tally.deviation_us()),
            us(median),
            us(tally.quantile_us(0.99)),
            tally.packets_per_s(),
            "█".repeat(bar),
        );
        let faults = tally.lost + tally.damaged + tally.duplicates + tally.reordered;
        if faults > 0 {
            let Tally { lost, damaged, duplicates, reordered, .. } = tally;
            let _ = writeln!(
                text,
                "{:width$}  {lost} lost, {damaged} wrong, {duplicates} duplicate, {reordered} reordered",
                ""
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::How;
    use super::*;
    use crate::words::Mode;

    fn outcome(times_us: &[u64], lost: u64) -> Outcome {
        let mut tally = Tally::default();
        times_us.iter().for_each(|us| tally.record(us * 1000));
        (tally.sent, tally.lost, tally.span_ns) = (times_us.len() as u64 + lost, lost, 1_000_000_000);
        Outcome {
            target: "192.0.2.1:7".parse().unwrap(),
            local: "192.0.2.2:40000".parse().unwrap(),
            bytes: 32,
            how: How {
                interface: None,
                mode: Mode::Auto,
                idle: Idle::Block,
                sleep: Sleep::Epoll,
                busy_poll_us: 50,
                cpu: Some(1),
                source_port: 0,
            },
            backend: "kernel socket".into(),
            incoming_cpu: None,
            tally,
        }
    }

    #[test]
    fn figures_are_told_with_the_way_they_came_about() {
        let text = text(&outcome(&[10, 20, 30], 1));
        assert!(text.contains("192.0.2.2:40000 to 192.0.2.1:7, 32 octets, kernel socket, idle block, in epoll, busy-poll 50 us, on processor 1"));
        assert!(text.contains("4 sent, 3 answered, 1 lost (25.000%), 0 reordered"), "{text}");
        assert!(text.contains("minimum 10.0, average 20.0, deviation 8.2, median 20.0"), "{text}");
        assert!(text.contains("3 packets/s over 1.0 s"), "{text}");
    }

    #[test]
    fn silence_has_no_round_trips() {
        let silent = outcome(&[], 2);
        assert!(!text(&silent).contains("round trip"));
        assert_eq!(json(&silent)["minimum_us"], Value::Null);
        assert_eq!((json(&silent)["lost"].as_u64(), json(&silent)["answered"].as_u64()), (Some(2), Some(0)));
    }

    #[test]
    fn a_ladders_bars_are_as_long_as_the_medians() {
        let steps = [
            ("slow".to_owned(), outcome(&[60], 0)),
            ("fast".to_owned(), outcome(&[20], 1)),
            ("none".to_owned(), outcome(&[], 1)),
        ];
        let text = ladder(&steps);
        let bars: Vec<usize> =
            text.lines().filter(|line| !line.contains("lost")).map(|line| line.matches('█').count()).collect();
        assert_eq!(bars, [0, BAR, BAR / 3, 0], "{text}");
        assert!(text.contains("1 lost, 0 wrong"), "{text}");
    }
}
