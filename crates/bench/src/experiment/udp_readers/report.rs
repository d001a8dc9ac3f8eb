//! What was measured, as tables and charts.

use super::{BYTES, Figures, How, Line, Options};
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats::{self, Summary};
use sockets::Spread;

const COLUMNS: [&str; 15] = [
    "load",
    "queue",
    "batch",
    "readers",
    "datagrams/s",
    "least",
    "greatest",
    "ratio to shared",
    "least ratio",
    "greatest ratio",
    "lost, %",
    "reader ns a datagram",
    "empty receives",
    "sleeps",
    "put off",
];

/// The report of all lines.
pub(super) fn report(options: &Options, lines: &[Line]) -> Report {
    let mut table = Table::new(&COLUMNS);
    let rates = |runs: &[Figures]| runs.iter().map(Figures::rate).collect::<Vec<_>>();
    for (load, of) in [("pre-filled", (|line| &line.filled) as fn(&Line) -> &Vec<Figures>), ("live", |line| &line.live)]
    {
        for line in lines {
            let runs = of(line);
            let Some(Summary { median, least, greatest, .. }) = Summary::of(&rates(runs)) else { continue };
            let is_peer = |it: &&Line| {
                it.how == How::Sockets(Spread::Shared) && it.readers == line.readers && it.batch == line.batch
            };
            let peer = lines.iter().find(is_peer).map(of);
            let ratio = peer.and_then(|peer| stats::paired_ratio(&rates(runs), &rates(peer)));
            let middle = |figure: fn(&Figures) -> f64| stats::median(&runs.iter().map(figure).collect::<Vec<_>>());
            table.row(vec![
                Cell::text(load),
                Cell::text(line.how.name()),
                Cell::Count(line.batch.into()),
                Cell::Count(line.readers.into()),
                Cell::Number(median, 0),
                Cell::Number(least, 0),
                Cell::Number(greatest, 0),
                Cell::number(ratio.map(|ratio| ratio.median), 2),
                Cell::number(ratio.map(|ratio| ratio.least), 2),
                Cell::number(ratio.map(|ratio| ratio.greatest), 2),
                Cell::number(middle(|run| 100.0 * (1.0 - run.received as f64 / run.sent.max(1) as f64)), 1),
                Cell::number(middle(|run| run.busy_s * 1e9 / run.received.max(1) as f64), 0),
                Cell::number(middle(|run| run.empty as f64), 0),
                Cell::number(middle(|run| run.slept as f64), 0),
                Cell::number(middle(|run| run.put_off as f64), 0),
            ]);
        }
    }
    let method = method(options, lines.iter().any(|line| line.how == How::Dataplane));
    let chart = |batch: u16| {
        let measured = |how: &How| lines.iter().any(|line| line.how == *how && line.batch == batch);
        let ways = How::ALL.into_iter().filter(measured).map(|how| series(lines, how, batch));
        Chart {
            title: format!("Pre-filled queues, {batch} a receive"),
            x: Axis::linear("readers"),
            y: Axis::linear("datagrams/s"),
            series: ways.collect(),
        }
    };
    let charts = options.batch.iter().map(|batch| chart(*batch)).collect();
    let title = "Concurrent readers of UDP".to_owned();
    Report { name: "udp-readers".into(), title, method, table, charts, machine: Machine::here(Peers::None) }
}

fn method(options: &Options, dataplane: bool) -> String {
    let mut text = format!(
        "Datagrams of {BYTES} bytes from {} source ports over loopback, read by threads with a processor each (more readers than \
         processors share them). Pre-filled: {} datagrams wait when the readers start, and the time to the last one counts. Live: {} \
         sending for {} s as fast as they can, from the last processor on, into queues that hold a tenth of that; what was read by then counts, and \
         the rest is lost. *FIFO* is a pipe read record by record, with as many in it as it may hold. A batch is what one receive takes at most. {} rounds in turn, \
         medians; ratios are medians of ratios within a round. *Reader ns a datagram* is the readers' processor time: what grows with \
         the number of readers is waiting for each other, since the queue's lock spins. *Empty receives* found nothing; *sleeps* and *put \
         off* are the readers' voluntary and involuntary context switches.",
        options.sources,
        options.datagrams,
        if options.senders == 1 { "one thread".into() } else { format!("{} threads", options.senders) },
        options.seconds,
        options.rounds
    );
    if dataplane {
        text += DATAPLANE;
    }
    text
}

const DATAPLANE: &str = "\n\n*Dataplane* is threads of our own stack with the same service, each on a queue of its own of an in-memory NIC. The \
    same datagrams come in Ethernet frames of 60 bytes, whose IPv4 and UDP checksums the stack verifies, at the queue that a NIC would choose, by the \
    Toeplitz hash of the flow; a batch is the most frames of a cycle. No kernel is in the way of a datagram, neither of the readers nor of the senders, \
    who write the frames into the rings and so offer more than over loopback; with several, one at a time has a queue's end. A live queue holds the \
    next power of two, or as many as fit where all queues' frames would take more than 2 GiB; what finds it full is dropped, which is \
    lost as well. Received is what the stacks' counters say was handed to the service, and all else that a stack counts would have ended the \
    run with an error. The threads share no queue and no lock. Their processor time, sleeps and context switches are the kernel's account \
    of them, as the other readers'; several look up each frame's flow group besides, which one need not. An empty receive is a cycle that found no frame. A \
    thread with work lets others of its processor run every 50 us, and is counted as put off when one does.";

fn series(lines: &[Line], how: How, batch: u16) -> Series {
    let of = lines.iter().filter(|line| line.how == how && line.batch == batch).filter_map(|line| {
        let rates: Vec<f64> = line.filled.iter().map(Figures::rate).collect();
        let Summary { median, least, greatest, .. } = Summary::of(&rates)?;
        Some(((f64::from(line.readers), median), (least, greatest)))
    });
    Series::ranged(how.name(), of)
}

#[cfg(test)]
mod tests {
    use super::super::tests::options;
    use super::*;

    #[test]
    fn a_report_pairs_each_way_with_the_shared_socket() {
        let options = options("udp-readers --batch 1");
        let run =
            |received, seconds| Figures { received, sent: 2 * received, seconds, busy_s: 1.0, ..Figures::default() };
        let line = |how, seconds: [f64; 2]| Line {
            how,
            readers: 2,
            batch: 1,
            filled: seconds.map(|seconds| run(1000, seconds)).to_vec(),
            live: Vec::new(),
        };
        let lines = [line(How::Sockets(Spread::Shared), [1.0, 2.0]), line(How::Sockets(Spread::PerCore), [0.5, 2.0])];
        let report = report(&options, &lines);
        let csv = report.table.csv();
        assert_eq!(csv.lines().count(), 3, "{csv}");
        let row = "pre-filled,socket a core,1,2,1250,500,2000,1.50,1.00,2.00,50.0,1000000,0,0,0";
        assert_eq!(csv.lines().nth(2), Some(row));
        assert_eq!(report.charts.len(), 1);
        assert_eq!(report.charts[0].series.len(), 2);
    }
}
