//! `simoom-bench experiment`: the paper's DNS figures (Marinos, Watson, Handley: Network Stack Specialization for Performance,
//! SIGCOMM 2014) on one processor and one veth pair: 8a, throughput by the zone's size; 8b, by the batch's.

use super::bed::Bed;
use super::subject::Subject;
use super::{Common, Generator, Grid, plain_zone, tell_written};
use crate::found::{self, Found, Rounds};
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats;
use anyhow::Result;
use std::path::Path;

/// Which figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    /// throughput by zone size
    Fig8a,
    /// throughput by batch size, on one queue
    Fig8b,
}

/// Options of `simoom-bench experiment fig8a` and `fig8b`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
fig8a: good answers/s for zones of 1 to 10,000 names: ours with wire-format and decompressed-name keys, answering in place and,
with --copied, copied and pre-copied, against NSD, Knot and Knot XDP. fig8b: good answers/s of ours by --batch 1 to 32 on one queue, against NSD. Servers are
measured in turn in every round. Writes NAME.csv, NAME.svg and NAME.md. Needs root.")]
pub(crate) struct Options {
    /// Values of the x axis instead of the figure's own
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    points: Vec<u64>,
    /// Lines with --transmit copy and precopy as well (the paper's memcpy and pre-copy)
    #[arg(long)]
    copied: bool,
    /// grid
    #[command(flatten)]
    grid: Grid,
    /// common
    #[command(flatten)]
    common: Common,
}

/// A line of the figure.
struct Line {
    name: &'static str,
    /// the server at a point of the x axis
    subject: fn(&'static str, u64) -> Subject,
    /// rounds of each point, answers a second
    peaks: Vec<Vec<Found>>,
}

impl Line {
    fn new(name: &'static str, subject: fn(&'static str, u64) -> Subject) -> Line {
        Line { name, subject, peaks: Vec::new() }
    }
}

struct Plan {
    name: &'static str,
    title: &'static str,
    what: &'static str,
    axis: &'static str,
    points: Vec<u64>,
    lines: Vec<Line>,
}

const IN_PLACE_WIRE: &str = "wire keys, in place";
/// How the names of lines with copied answers end.
const COPIED: [&str; 2] = ["memcpy", "pre-copy"];

fn fig8a() -> Plan {
    let lines = vec![
        Line::new(IN_PLACE_WIRE, |name, _| Subject::simoom(name, "--tier xdp --transmit inplace")),
        Line::new("wire keys, memcpy", |name, _| Subject::simoom(name, "--tier xdp --transmit copy")),
        Line::new("wire keys, pre-copy", |name, _| Subject::simoom(name, "--tier xdp --transmit precopy")),
        Line::new("name keys, in place", |name, _| {
            Subject::simoom(name, "--tier xdp --transmit inplace --question-compression accept")
        }),
        Line::new("name keys, memcpy", |name, _| {
            Subject::simoom(name, "--tier xdp --transmit copy --question-compression accept")
        }),
        Line::new("name keys, pre-copy", |name, _| {
            Subject::simoom(name, "--tier xdp --transmit precopy --question-compression accept")
        }),
        Line::new("Knot XDP", |_, _| Subject::KnotXdp),
        Line::new("Knot", |_, _| Subject::Knot),
        Line::new("NSD", |_, _| Subject::Nsd),
    ];
    Plan {
        name: "fig8a",
        title: "DNS throughput by zone size, one processor",
        what: "The paper's figure 8a: the most good answers a second at any offered rate, by the number of names in the zone, for \
               uniformly random questions.",
        axis: "names in the zone",
        points: vec![1, 10, 100, 1_000, 10_000],
        lines,
    }
}

fn fig8b() -> Plan {
    let lines = vec![
        Line::new(IN_PLACE_WIRE, |name, batch| {
            Subject::simoom(name, &format!("--tier xdp --transmit inplace --batch {batch}"))
        }),
        Line::new("wire keys, memcpy", |name, batch| {
            Subject::simoom(name, &format!("--tier xdp --transmit copy --batch {batch}"))
        }),
        Line::new("NSD", |_, _| Subject::Nsd),
    ];
    Plan {
        name: "fig8b",
        title: "DNS throughput by batch size, one processor, one queue",
        what: "The paper's figure 8b: the most good answers a second at any offered rate, by the most frames a cycle handles, for a zone \
               of 10,000 names. NSD has no such setting; its line is its throughput in the same rounds.",
        axis: "frames a cycle, at most",
        points: vec![1, 2, 4, 8, 16, 32],
        lines,
    }
}

/// Runs it.
pub(super) fn run(figure: Figure, options: &Options) -> Result<()> {
    let simoom = options.common.simoom()?;
    let rates = options.grid.rates()?;
    let mut plan = if figure == Figure::Fig8a { fig8a() } else { fig8b() };
    if !options.copied {
        plan.lines.retain(|line| !COPIED.iter().any(|copied| line.name.ends_with(copied)));
    }
    if !options.points.is_empty() {
        plan.points.clone_from(&options.points);
    }
    for line in &mut plan.lines {
        line.peaks = vec![Vec::new(); plan.points.len()];
    }
    // a bed a zone: writing a zone is no part of a round
    let zones: Vec<u64> = if figure == Figure::Fig8a { plan.points.clone() } else { vec![10_000; plan.points.len()] };
    for round in 1..=options.grid.rounds {
        for (at, (point, names)) in plan.points.iter().zip(&zones).enumerate() {
            measure(&simoom, options, &rates, &mut plan.lines, (round, at), (*point, *names))?;
        }
    }
    let report = report(&plan, options);
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

fn measure(
    simoom: &Path,
    options: &Options,
    rates: &[f64],
    lines: &mut [Line],
    (round, at): (u16, usize),
    (point, names): (u64, u64),
) -> Result<()> {
    let bed = Bed::new(plain_zone(names), simoom, options.grid.generator)?;
    for line in lines {
        let subject = (line.subject)(line.name, point);
        let mut served = bed.serve(&subject)?;
        let capacity = served.capacity(rates, options.grid.seconds)?;
        eprintln!("{round} {point:>6} {:<22} {}", line.name, capacity.text());
        line.peaks[at].push(capacity.peak());
    }
    Ok(())
}

fn report(plan: &Plan, options: &Options) -> Report {
    let mut table = Table::new(&[
        "server",
        plan.axis,
        "peak answers/s",
        "least",
        "greatest",
        "ratio to NSD",
        "ratio to the line's first",
    ]);
    let mut series = Vec::new();
    let nsd = plan.lines.iter().find(|line| line.name == "NSD").map(|line| &line.peaks);
    for line in &plan.lines {
        let (mut points, mut spread) = (Vec::new(), Vec::new());
        for (at, point) in plan.points.iter().enumerate() {
            let Some(Rounds { median, least, greatest }) = Rounds::of(&line.peaks[at]) else { continue };
            points.push((*point as f64, median.number()));
            spread.push((least.number(), greatest.number()));
            let ratio = |peer: &[Found]| {
                stats::paired_ratio(&found::whole(&line.peaks[at])?, &found::whole(peer)?).map(|ratio| ratio.median)
            };
            table.row(vec![
                Cell::text(line.name),
                Cell::Count(*point),
                median.cell(0),
                least.cell(0),
                greatest.cell(0),
                Cell::number(nsd.and_then(|nsd| ratio(&nsd[at])), 2),
                Cell::number(ratio(&line.peaks[0]), 2),
            ]);
        }
        series.push(Series::new(line.name, points).with_spread(spread));
    }
    let method = format!(
        "{} {} rounds in turn, medians with the least and the greatest round; ratios are medians of ratios within a round. Server \
         and generator have a processor each, joined by one veth pair; rates from {:.0} to {:.0}/s by 15%, {} s each, until three brought no \
         more. `≥` is what a server answered where the generator, or the grid, went no further: its peak lies there or above, and has no \
         ratio. {} The bars show the rounds' spread.",
        plan.what,
        options.grid.rounds,
        options.grid.from,
        options.grid.to,
        options.grid.seconds,
        match options.grid.generator {
            Generator::Own => "One answer in 16 is checked to the last byte, and a wrong one ends the measurement.",
            Generator::Kxdpgun => "Answers to kxdpgun are not checked.",
        }
    );
    Report {
        name: plan.name.into(),
        title: plan.title.into(),
        method,
        table,
        charts: vec![Chart {
            title: plan.title.into(),
            x: Axis::logarithmic(plan.axis),
            y: Axis::linear("peak answers/s"),
            series,
        }],
        machine: Machine::here(Peers::Dns),
    }
}
