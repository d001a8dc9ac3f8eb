//! What is told of it.

use super::bed::Figures;
use super::{Manner, Options, PER_MS, WAYS, manners};
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats::{self, Summary};

/// Threads and the clients' manner, with what each way's server did in each set of turns.
pub(super) struct Line {
    pub(super) threads: u16,
    pub(super) manner: Manner,
    pub(super) loads: u32,
    /// at once, of each load
    pub(super) connections: u32,
    pub(super) sets: Vec<[Figures; WAYS.len()]>,
}

impl Line {
    fn rates(&self, way: usize) -> Vec<f64> {
        self.sets.iter().map(|set| set[way].requests_per_s).collect()
    }

    /// The cells of one way's rate by another's of the same set: the median, and between what the true one lies.
    fn ratio(&self, way: usize, to: usize) -> [Cell; 3] {
        let ratios = stats::paired_ratios(&self.rates(way), &self.rates(to)).unwrap_or_default();
        let (from, until) = stats::median_lies_between(&ratios).unzip();
        [stats::median(&ratios), from, until].map(|ratio| Cell::number(ratio, 3))
    }
}

pub(super) fn report(options: &Options, lines: &[Line]) -> Report {
    let mut table = Table::new(&[
        "requests a connection",
        "ms apart",
        "connections",
        "threads",
        "accept",
        "requests/s",
        "least",
        "greatest",
        "requests/s a thread",
        "ratio to shared",
        "from",
        "to",
        "ratio to per-core",
        "from (per-core)",
        "to (per-core)",
        "machine busy, % of one",
        "stolen, of 1000",
        "groups taken over in a turn",
        "failed",
    ]);
    for line in lines {
        for (way, name) in WAYS.iter().enumerate() {
            let Some(Summary { median, least, greatest, .. }) = Summary::of(&line.rates(way)) else { continue };
            let mean = |of: fn(&Figures) -> f64| {
                line.sets.iter().map(|set| of(&set[way])).sum::<f64>() / line.sets.len() as f64
            };
            let mut row = vec![
                Cell::Count(line.manner.requests.into()),
                Cell::Count(line.manner.think_ms.into()),
                Cell::Count((line.loads * line.connections).into()),
                Cell::Count(line.threads.into()),
                Cell::text(*name),
                Cell::Number(median, 0),
                Cell::Number(least, 0),
                Cell::Number(greatest, 0),
                Cell::Number(median / f64::from(line.threads), 0),
            ];
            row.extend(line.ratio(way, 0));
            row.extend(line.ratio(way, 1));
            row.push(Cell::Number(mean(|set| set.busy), 0));
            row.push(Cell::Number(mean(|set| set.stolen), 1));
            row.push(Cell::Number(mean(|set| set.groups_taken as f64), 1));
            row.push(Cell::Count(line.sets.iter().map(|set| set[way].failed).sum()));
            table.row(row);
        }
    }
    let title = "Connections to the threads".to_owned();
    let chart = |manner: Manner| Chart {
        title: format!("{title}: {manner}"),
        x: Axis::linear("threads"),
        y: Axis::linear("requests/s"),
        series: (0..WAYS.len()).map(|way| series(lines, way, manner)).collect(),
    };
    let charts = manners(options).into_iter().map(chart).collect();
    let (title, machine) = (title.clone(), Machine::here(Peers::None));
    Report { name: "accept".into(), title, method: method(options), table, charts, machine }
}

fn method(options: &Options) -> String {
    format!(
        "`simoom web` on kernel sockets with --accept shared, per-core and affinity, a thread on each of the first processors. Between the two \
         hosts there is a wire (veth pair) for each processor, received there at both ends as by the queues of a NIC, with a load of its own \
         on the same processor: `simoom-bench http` over AF_XDP, in a closed loop, with its part of {} connections at once, and {PER_MS} more for \
         each millisecond that a client thinks on average before the next request of a connection (exponentially distributed), no more than the \
         server may have descriptors; they begin one after the other over the time that one \
         thinks in all. {} files of 30 to 5,670 bytes, 700 on average, asked \
         for in turn. {} rounds, a fresh laboratory for each; in it the three servers are up at once, each on a port of its own, in another order in \
         each round, and the same \
         loads ask one after the other, {} s each after half a second to warm up (and the time of a connection where clients think), {} sets of \
         such turns in every order; who is not asked sleeps. Ratios are of turns of one set: their median, and between what the true median lies \
         with 95% if sets say nothing of each other, where there are enough of them. Stolen connections and groups taken over are \
         means. Loads and server share the processors, so these are no figures of a machine that only serves; loads and the clients' receive \
         threads leave theirs to the server until it sleeps or has had its slice (SCHED_BATCH).",
        options.connections, options.files, options.rounds, options.seconds, options.sets
    )
}

fn series(lines: &[Line], way: usize, manner: Manner) -> Series {
    let of = lines.iter().filter(|line| line.manner == manner).filter_map(|line| {
        let Summary { median, least, greatest, .. } = Summary::of(&line.rates(way))?;
        Some(((f64::from(line.threads), median), (least, greatest)))
    });
    Series::ranged(WAYS[way], of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parsed;

    #[test]
    fn a_report_pairs_the_ways_within_a_set() {
        let options = parsed::<Options>(["accept", "--requests", "6", "--think", "0"]).unwrap();
        let manner = Manner { requests: 6, think_ms: 0 };
        let set = |rates: [f64; 3]| rates.map(|requests_per_s| Figures { requests_per_s, ..Figures::default() });
        let sets = vec![set([100.0, 100.0, 200.0]), set([50.0, 100.0, 100.0])];
        let report = report(&options, &[Line { threads: 2, manner, loads: 2, connections: 32, sets }]);
        let csv = report.table.csv();
        assert_eq!(csv.lines().nth(3), Some("6,0,64,2,affinity,150,100,200,75,2.000,,,1.500,,,0,0.0,0.0,0"), "{csv}");
        assert_eq!((report.charts.len(), report.charts[0].series.len()), (1, 3));
    }
}
