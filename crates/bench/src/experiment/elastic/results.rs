//! What was found, as tables and plots.

use super::Options;
use super::bed::{Found, WINDOW, Window};
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats;

/// Windows in a row that are good before a step counts as over.
const GOOD: usize = 3;
/// A change of the number so long after a step still follows from it: what the policy waits before it removes a thread, and twice that.
const FOLLOWS_S: f64 = 3.0;

/// One step, of one round or of all together.
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

/// The middle one of what all rounds have at the same place.
fn middle<T>(rounds: &[T], of: impl Fn(&T) -> f64) -> f64 {
    stats::median(&rounds.iter().map(of).collect::<Vec<_>>()).unwrap_or_default()
}

/// Each window as it was in the middle of the rounds; counts are of all.
fn together(rounds: &[Found]) -> Vec<Window> {
    let Some(first) = rounds.first() else { return Vec::new() };
    let windows = first.windows.iter().enumerate().map(|(n, window)| {
        let all: Vec<&Window> = rounds.iter().filter_map(|round| round.windows.get(n)).collect();
        Window {
            at: window.at,
            load: window.load,
            threads: middle(&all, |window| window.threads as f64).round() as usize,
            asked: all.iter().map(|window| window.asked).sum(),
            answered: all.iter().map(|window| window.answered).sum(),
            median_us: middle(&all, |window| window.median_us),
            p99_us: middle(&all, |window| window.p99_us),
        }
    });
    windows.collect()
}

/// The steps of the windows together; how often the number of threads changed is of all rounds, each by itself.
fn steps_together(rounds: &[Found], count: usize) -> Vec<Step> {
    let mut found = steps(&together(rounds), count);
    found.iter_mut().for_each(|step| (step.changes, step.late_changes) = (0, 0));
    for round in rounds {
        for (sum, step) in found.iter_mut().zip(steps(&round.windows, count)) {
            sum.changes += step.changes;
            sum.late_changes += step.late_changes;
        }
    }
    found
}

/// By step, and by time.
pub(super) fn reports(options: &Options, cpus: &[usize], rounds: &[Found]) -> [Report; 2] {
    let (windows, peak) = (together(rounds), middle(rounds, |round| round.peak));
    let mut table = Table::new(&[
        "load, of one thread's peak",
        "questions/s",
        "threads at the end",
        "changes",
        "changes 3 s and more after the step",
        "99th percentile, us",
        "under twice the old one after, s",
    ]);
    for step in steps_together(rounds, options.steps.len()) {
        table.row(vec![
            Cell::Number(step.load, 2),
            Cell::Number(step.load * peak, 0),
            Cell::Count(step.threads as u64),
            Cell::Count(step.changes as u64),
            Cell::Count(step.late_changes as u64),
            Cell::number(step.p99_us, 0),
            Cell::number(step.recovered_s, 1),
        ]);
    }
    let line = |name: &str, of: fn(&Window) -> f64| {
        Series::new(name, windows.iter().map(|window| (window.at, of(window))).collect())
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
    for window in &windows {
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
    let method = method(options, cpus, rounds);
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

fn method(options: &Options, cpus: &[usize], rounds: &[Found]) -> String {
    let sum = |of: fn(&Found) -> u64| rounds.iter().map(of).sum::<u64>();
    format!(
        "`dataplane::Dataplane` on the in-memory NIC with the policy of `--threads elastic`: {} threads on processors {cpus:?}, of which \
         at first one serves. A service that works {} ns in registers for each datagram and echoes it; {} flows of UDP. One thread's peak is {:.0} answers/s, \
         measured first with more questions than it can answer; the loads are parts of it, each held for {} s. Questions are due evenly as the load says, whatever was answered; the queues take turns, \
         and a flow's arrive at the same queue for ever, so that they cross over to the thread that has their group. The NIC has them when they are due, and a timer in place of its interrupt: no generator takes \
         from the processors. The time of an answer counts from when its question was due to when the answer went \
         into the transmit ring. Rounds: {}; what is told of a window is the median of the same one in every round, but that questions, answers and changes are of all rounds together. \
         Windows of 100 ms; the 99th percentile of a step is the median of its second half's windows; a step counts as over \
         with the first of {GOOD} windows in a row whose 99th percentile is under twice that of the load before. Of {} questions {} found the NIC's queue full; all others were answered, and each flow's in their order (else there is no report); {} times a flow group changed its thread. \
         Without load the process took {:.2} % of a processor.",
        cpus.len(),
        options.work,
        options.flows,
        middle(rounds, |round| round.peak),
        options.hold,
        rounds.len(),
        sum(|round| round.asked),
        sum(|round| round.overloaded),
        sum(|round| round.moved),
        100.0 * middle(rounds, |round| round.idle_share),
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

    #[test]
    fn rounds_have_their_middle_and_each_change_counts() {
        // a moment of another's work in one round, at another time each, and one thread less for a while in one
        let round = |late: usize, early_end: usize| Found {
            windows: (0..40)
                .map(|n| Window {
                    at: n as f64 / 10.0,
                    load: 0.3,
                    threads: if n < early_end { 2 } else { 1 },
                    asked: 10,
                    answered: 10,
                    median_us: 10.0,
                    p99_us: if n == late { 9000.0 } else { 100.0 },
                })
                .collect(),
            ..Found::default()
        };
        let rounds = [round(30, 40), round(31, 40), round(32, 35)];
        assert!(together(&rounds).iter().all(|window| window.p99_us == 100.0 && window.threads == 2));
        assert_eq!(together(&rounds)[0].asked, 30);
        let [step] = steps_together(&rounds, 1).try_into().unwrap();
        assert_eq!((step.threads, step.changes, step.late_changes), (2, 1, 1));
        assert_eq!(together(&rounds[2..])[39].threads, 1);
    }
}
