//! What was measured, as tables and plots.

use super::figures::{Figures, WINDOW};
use super::{Line, Mode, Options, Protocol};
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats::{self, Summary};

/// An even load's throughput counts as reached from this part on.
const REACHED: f64 = 0.9;

const COLUMNS: [&str; 14] = [
    "service",
    "threads",
    "mode",
    "answers/s",
    "least",
    "greatest",
    "gain",
    "loop's gain",
    "ratio",
    "ratio's least",
    "ratio's greatest",
    "of even",
    "clients, %",
    "crossed, %",
];

/// The whole, and how balancing went.
pub(super) fn reports(options: &Options, lines: &[Line]) -> Vec<Report> {
    let mut reports = vec![scale(options, lines)];
    let watched = |line: &Line| line.modes.iter().any(|(mode, _)| mode.is_skewed());
    if lines.iter().any(watched) {
        reports.push(balance(options, lines));
    }
    reports
}

fn word(service: Protocol) -> &'static str {
    match service {
        Protocol::Dns => "dns",
        Protocol::Web => "web",
    }
}

fn scale(options: &Options, lines: &[Line]) -> Report {
    let mut table = Table::new(&COLUMNS);
    for line in lines {
        for (mode, runs) in &line.modes {
            let rates = line.rates(*mode);
            let Some(Summary { median, least, greatest, .. }) = Summary::of(&rates) else { continue };
            let [gain, loops, ratio] = line.gains(*mode);
            let ratio = Summary::of(&ratio);
            let of_even = stats::paired_ratio(&rates, &line.rates(mode.reference())).map(|ratio| ratio.median);
            let share = |of: fn(&Figures) -> f64| {
                stats::median(&runs.iter().map(of).collect::<Vec<_>>()).map(|share| 100.0 * share)
            };
            table.row(vec![
                Cell::text(word(line.service)),
                Cell::Count(line.threads as u64),
                Cell::text(mode.name()),
                Cell::Number(median, 0),
                Cell::Number(least, 0),
                Cell::Number(greatest, 0),
                Cell::number(stats::median(&gain), 2),
                Cell::number(stats::median(&loops), 2),
                Cell::number(ratio.map(|ratio| ratio.median), 3),
                Cell::number(ratio.map(|ratio| ratio.least), 3),
                Cell::number(ratio.map(|ratio| ratio.greatest), 3),
                Cell::number(of_even, 2),
                Cell::number(share(|run| run.clients_share), 0),
                Cell::number(share(|run| run.crossed_share), 0),
            ]);
        }
    }
    let charts = options.service.iter().filter_map(|service| chart(lines, *service)).collect();
    let method = method(options, lines.first().map_or(0, |line| line.flows));
    let title = "The dataplane by threads, on the in-memory NIC".to_owned();
    Report { name: "pipe-scale".into(), title, method, table, charts, machine: Machine::here(Peers::None) }
}

fn method(options: &Options, flows: usize) -> String {
    format!(
        "Answers a second over all threads of `dataplane::Dataplane` on the in-memory NIC, a pinned thread and a queue for each processor, \
         IPv4, MTU 1500, {flows} flows a thread with one question on its way in each; DNS: {} names; web: a file of 1 KiB on connections that stay. \
         The clients run in the same threads, between cycles; *clients* is their share of the threads' time. Threads serve for 5 ms and count in \
         registers for 5 ms in turn, and the figures are for a second of serving. Several threads take turns with dataplanes of one thread, one on each of the \
         processors: all others sleep while one serves and counts. *Gain* is over the mean of those, *loop's gain* that of the count, *ratio* the one divided by the other. *Of even* compares with the even load on as many threads, for the skewed and balanced modes under their own conditions (*level*). *Crossed* is the share of the questions that went \
         to another thread than the one that received them. Level, skewed and balanced modes do not count; of the last two it is the last second of {}. {} rounds in turn, {} s each, medians; ratios are medians of ratios within a round.",
        options.names,
        format_args!("{} s", options.watch),
        options.rounds,
        options.seconds
    )
}

fn chart(lines: &[Line], service: Protocol) -> Option<Chart> {
    let lines: Vec<&Line> = lines.iter().filter(|line| line.service == service).collect();
    let series = |mode: Mode| {
        let of = lines.iter().filter_map(|line| {
            let Summary { median, least, greatest, .. } = Summary::of(&line.rates(mode))?;
            Some(((line.threads as f64, median), (least, greatest)))
        });
        let (points, spread): (Vec<_>, Vec<_>) = of.unzip();
        (!points.is_empty()).then(|| Series::new(mode.name(), points).with_spread(spread))
    };
    let modes =
        [Mode::Apart, Mode::Even, Mode::Crossed, Mode::Level, Mode::Skewed, Mode::Balanced, Mode::BalancedFixed];
    let mut all: Vec<Series> = modes.into_iter().filter_map(series).collect();
    // what the loops' gain makes of one thread's even load
    let scaled = |line: &&Line| {
        let one = if line.threads == 1 { line.all(Mode::Even) } else { line.one(Mode::Even) };
        let rate = stats::median(&one.iter().map(|one| one.answers).collect::<Vec<_>>())?;
        let [_, gain, _] = line.gains(Mode::Even);
        Some((line.threads as f64, rate * stats::median(&gain).unwrap_or(1.0)))
    };
    let points: Vec<(f64, f64)> = lines.iter().filter_map(scaled).collect();
    if !points.is_empty() {
        all.push(Series::new("loop, scaled", points));
    }
    let title = format!("{} by threads", if service == Protocol::Dns { "DNS" } else { "Web" });
    (!all.is_empty()).then(|| Chart { title, x: Axis::linear("threads"), y: Axis::linear("answers/s"), series: all })
}

/// The time in seconds after which a run's throughput had reached so much in a window; None when it never did.
fn reached(run: &Figures, rate: f64) -> Option<f64> {
    run.rates().find(|(_, it)| *it >= rate).map(|(end, _)| end)
}

const BALANCE_COLUMNS: [&str; 10] = [
    "service",
    "threads",
    "mode",
    "s",
    "answers/s",
    "least",
    "greatest",
    "of even",
    "0.9 of even after, s",
    "groups moved",
];

fn balance(options: &Options, lines: &[Line]) -> Report {
    let mut table = Table::new(&BALANCE_COLUMNS);
    let mut charts = Vec::new();
    for line in lines.iter().filter(|line| line.threads > 1) {
        let even = line.rates(Mode::Level);
        let mut series = Vec::new();
        for (mode, runs) in line.modes.iter().filter(|(mode, _)| mode.is_skewed()) {
            let after = |(run, even): (&Figures, &f64)| reached(run, even * REACHED);
            let reached: Vec<f64> = runs.iter().zip(&even).filter_map(after).collect();
            // a round that never came there is later than all
            let reached = stats::median(&reached).filter(|_| reached.len() == runs.len() && !runs.is_empty());
            let moved = stats::median(&runs.iter().map(|run| run.moved as f64).collect::<Vec<_>>());
            let windows = runs.iter().map(|run| run.rates().count()).min().unwrap_or(0);
            let (mut points, mut spread) = (Vec::new(), Vec::new());
            for window in 0..windows {
                let rates: Vec<f64> = runs.iter().filter_map(|run| run.rates().nth(window)).map(|(_, it)| it).collect();
                let Some(Summary { median, least, greatest, .. }) = Summary::of(&rates) else { continue };
                let end = (window + 1) as f64 * WINDOW.as_secs_f64();
                points.push((end, median));
                spread.push((least, greatest));
                let first = window == 0;
                table.row(vec![
                    Cell::text(word(line.service)),
                    Cell::Count(line.threads as u64),
                    Cell::text(mode.name()),
                    Cell::Number(end, 1),
                    Cell::Number(median, 0),
                    Cell::Number(least, 0),
                    Cell::Number(greatest, 0),
                    Cell::number(stats::paired_ratio(&rates, &even).map(|ratio| ratio.median), 2),
                    Cell::number(reached.filter(|_| first), 1),
                    Cell::number(moved.filter(|_| first), 0),
                ]);
            }
            if !points.is_empty() {
                series.push(Series::new(mode.name(), points).with_spread(spread));
            }
        }
        if let Some(even) = stats::median(&even) {
            series.push(Series::new("even", vec![(0.0, even), (options.watch, even)]));
        }
        let title = format!("{}, {} threads, all of it on the first", word(line.service), line.threads);
        charts.push(Chart { title, x: Axis::linear("seconds"), y: Axis::linear("answers/s"), series });
    }
    let method = format!(
        "Throughput by windows of 100 ms from the start on, while all flow groups are the first thread's at the beginning. *balanced*: frames \
         arrive at the queue of the thread that has their group; *balanced-fixed*: all frames arrive at the first queue for ever, and cross \
         over. Flows keep step, so that a thread with more of them is the bound. *Of even* compares with the even load of the same round \
         under the same conditions (*level*); the time after which a window had {REACHED} of it, and the groups that moved, stand in the first row. {} rounds, medians.",
        options.rounds
    );
    let title = "Flow groups move from a busy thread to a free one".to_owned();
    let name = "pipe-scale-balance".to_owned();
    Report { name, title, method, table, charts, machine: Machine::here(Peers::None) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipe_scale::figures::{Sums, Window};

    fn run(counts: &[u64]) -> Figures {
        let window =
            |(n, count): (usize, &u64)| Window { at: n as f64 * 0.1, answered: vec![*count], ..Window::default() };
        Figures { windows: counts.iter().enumerate().map(window).collect(), ..Figures::default() }
    }

    #[test]
    fn the_time_to_a_throughput_is_that_of_the_first_window_that_has_it() {
        let run = run(&[0, 100, 200, 380, 580]);
        let after = |rate| reached(&run, rate).map(|after| (after * 10.0).round());
        assert_eq!([after(900.0), after(1800.0 - 1e-6), after(2100.0)], [Some(1.0), Some(3.0), None]);
    }

    #[test]
    fn gains_are_paired_within_a_round() {
        let windows = |threads: usize, answers: u64, steps: u64| {
            let sums = |n: u64| Sums {
                answers: n * answers,
                served_s: (n * threads as u64) as f64,
                steps: n * steps,
                counted_s: (n * threads as u64) as f64,
            };
            [1, 2].map(|n| Window { at: n as f64, answered: vec![0; threads], sliced: sums(n) }).to_vec()
        };
        let round = |(one, two): ((u64, u64), (u64, u64))| Figures {
            windows: windows(2, two.0, two.1),
            // processors of unequal speed
            ones: vec![windows(1, one.0 / 2, one.1), windows(1, one.0 * 3 / 2, one.1)],
            ..Figures::default()
        };
        let rounds = [((100, 1000), (190, 2000)), ((50, 500), (50, 500))].map(round);
        let watched = Figures { ones: Vec::new(), ..rounds[0].clone() };
        let line = Line {
            service: Protocol::Dns,
            threads: 2,
            flows: 1,
            modes: vec![(Mode::Even, rounds.into()), (Mode::Skewed, vec![watched])],
        };
        assert_eq!(line.rates(Mode::Even), [190.0, 50.0]);
        let [ours, loops, ratio] = line.gains(Mode::Even);
        let near = |values: &[f64], expected: [f64; 2]| {
            values.iter().zip(expected).all(|(value, expected)| (value - expected).abs() < 1e-6)
        };
        assert!(near(&ours, [1.9, 1.0]) && near(&loops, [2.0, 1.0]) && near(&ratio, [0.95, 1.0]), "{ours:?} {ratio:?}");
        assert_eq!(line.gains(Mode::Skewed), [const { Vec::<f64>::new() }; 3]);
    }
}
