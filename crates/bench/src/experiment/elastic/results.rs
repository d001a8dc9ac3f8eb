//! What was found, as tables and plots.

use super::Options;
use super::bed::{self, Found, WINDOW, Window};
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats;

/// Windows in a row that are good before a step counts as over.
const GOOD: usize = 3;
/// A change of the number so long after a step still follows from it: what the policy waits before it removes a thread, and twice that.
const FOLLOWS_S: f64 = 3.0;

/// One step.
#[derive(Debug, PartialEq)]
struct Step {
    load: f64,
    /// at its end
    threads: usize,
    changes: usize,
    /// long after the step, at a steady load
    late_changes: usize,
    /// of its second half, the median of the windows' 99th percentiles
    p99_us: Option<f64>,
    /// until the 99th percentile was under twice that of the step before
    recovered_s: Option<f64>,
}

/// The windows of each load, by what was asked.
fn steps(windows: &[Window], count: usize) -> Vec<Step> {
    let hold = (windows.len() / count.max(1)).max(1);
    let (mut found, mut threads) = (Vec::<Step>::new(), windows.first().map_or(0, |window| window.threads));
    for windows in windows.chunks(hold) {
        let (mut changes, mut late_changes) = (0, 0);
        for (n, window) in windows.iter().enumerate() {
            if window.threads != threads {
                threads = window.threads;
                changes += 1;
                late_changes += usize::from(n as f64 * WINDOW.as_secs_f64() > FOLLOWS_S);
            }
        }
        let later: Vec<f64> = windows[windows.len() / 2..].iter().map(|window| window.p99_us).collect();
        let limit = found.last().and_then(|before| before.p99_us).map(|before| 2.0 * before);
        let recovered = limit
            .and_then(|limit| windows.windows(GOOD).position(|some| some.iter().all(|window| window.p99_us < limit)));
        found.push(Step {
            load: windows[0].load,
            threads,
            changes,
            late_changes,
            p99_us: stats::median(&later),
            recovered_s: recovered.map(|windows| windows as f64 * WINDOW.as_secs_f64()),
        });
    }
    found
}

/// By step, and by time.
pub(super) fn reports(options: &Options, cpus: &[usize], found: &Found) -> [Report; 2] {
    let mut table = Table::new(&[
        "load, of one thread's peak",
        "questions/s",
        "threads at the end",
        "changes",
        "changes 3 s and more after the step",
        "99th percentile, us",
        "under twice the old one after, s",
    ]);
    for step in steps(&found.windows, options.steps.len()) {
        table.row(vec![
            Cell::Number(step.load, 2),
            Cell::Number(step.load * found.peak, 0),
            Cell::Count(step.threads as u64),
            Cell::Count(step.changes as u64),
            Cell::Count(step.late_changes as u64),
            Cell::number(step.p99_us, 0),
            Cell::number(step.recovered_s, 1),
        ]);
    }
    let line = |name: &str, of: fn(&Window) -> f64| {
        Series::new(name, found.windows.iter().map(|window| (window.at, of(window))).collect())
    };
    let charts = vec![
        Chart {
            title: "Load and threads".into(),
            x: Axis::linear("seconds"),
            y: Axis::linear("load in parts of one thread's peak; threads"),
            series: vec![line("load", |window| window.load), line("threads", |window| window.threads as f64)],
        },
        Chart {
            title: "How long answers take".into(),
            x: Axis::linear("seconds"),
            y: Axis::logarithmic("microseconds"),
            series: vec![
                line("99th percentile", |window| window.p99_us.max(1.0)),
                line("median", |window| window.median_us.max(1.0)),
            ],
        },
    ];
    let mut by_time = Table::new(&["s", "load", "threads", "asked", "answered", "median, us", "99th percentile, us"]);
    for window in &found.windows {
        by_time.row(vec![
            Cell::Number(window.at, 1),
            Cell::Number(window.load, 2),
            Cell::Count(window.threads as u64),
            Cell::Count(window.asked),
            Cell::Count(window.answered),
            Cell::Number(window.median_us, 1),
            Cell::Number(window.p99_us, 1),
        ]);
    }
    let machine = || Machine::here(Peers::None);
    let method = method(options, cpus, found);
    [
        Report {
            name: "elastic".into(),
            title: "Threads that come and go with the load".into(),
            method: method.clone(),
            table,
            charts,
            machine: machine(),
        },
        Report {
            name: "elastic-time".into(),
            title: "Threads that come and go with the load, by time".into(),
            method,
            table: by_time,
            charts: Vec::new(),
            machine: machine(),
        },
    ]
}

fn method(options: &Options, cpus: &[usize], found: &Found) -> String {
    let priority = if found.real_time { "at a real-time priority" } else { "at the usual priority" };
    format!(
        "`dataplane::Dataplane` on the in-memory NIC with the policy of `--threads elastic`: {} threads on processors {cpus:?}, of which \
         at first one serves. A service that works {} ns in registers for each datagram and echoes it; {} flows of UDP. One thread's peak is {:.0} answers/s, \
         measured first with 512 questions on their way; the loads are parts of it, each held for {} s. Every {} us so many questions are due as the load says, whatever was answered; the queues take turns, \
         and a flow's arrive at the same queue for ever, so that they cross over to the thread that has their group. The time of an answer counts from when its question was due to when the answer went \
         into the transmit ring. The generator shares processor {} with the last thread, {priority}; it took {:.0} % of it, so the last thread has less than the first, and is taken off its \
         processor for some microseconds at each tick. Windows of 100 ms; the 99th percentile of a step is the median of its second half's windows; a step counts as over \
         with the first of {GOOD} windows in a row whose 99th percentile is under twice that of the load before. Of {} questions {} found the NIC's queue full; all others were answered, and each flow's in their order (else there is no report); {} times a flow group changed its thread. \
         Without load the process took {:.2} % of a processor, what the generator's last thread sleeps in included.",
        cpus.len(),
        options.work,
        options.flows,
        found.peak,
        options.hold,
        bed::tick(options).as_micros(),
        cpus.last().copied().unwrap_or(0),
        100.0 * found.generator_share,
        found.asked,
        found.overloaded,
        found.moved,
        100.0 * found.idle_share,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_over_when_it_stays_so_and_late_changes_are_told_apart() {
        let window = |n: usize, load: f64, threads: usize, p99_us: f64| Window {
            at: n as f64 / 10.0,
            load,
            threads,
            p99_us,
            ..Window::default()
        };
        let mut windows: Vec<Window> = (0..40).map(|n| window(n, 0.3, 1, 100.0)).collect();
        for n in 40..80 {
            // over for a moment, then for good; a thread is added soon, and one late
            let p99_us = if n < 44 || n == 45 { 5000.0 } else { 150.0 };
            windows.push(window(n, 1.5, if n < 42 { 1 } else { 2 } + usize::from(n > 75), p99_us));
        }
        let first = Step { load: 0.3, threads: 1, changes: 0, late_changes: 0, p99_us: Some(100.0), recovered_s: None };
        let second = Step {
            load: 1.5,
            threads: 3,
            changes: 2,
            late_changes: 1,
            p99_us: Some(150.0),
            recovered_s: Some(6.0 * WINDOW.as_secs_f64()),
        };
        assert_eq!(steps(&windows, 2), [first, second]);
    }
}
