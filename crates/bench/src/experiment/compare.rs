//! `simoom-bench compare`: servers back to back, medians of paired ratios.

use super::bed::{Bed, Busy};
use super::subject::Subject;
use super::{Common, Grid, plain_zone, tell_written};
use crate::commands::{rate, seconds};
use crate::grid::Capacity;
use crate::load::Latency;
use crate::report::{Cell, Machine, Peers, Report, Table};
use crate::stats::{self, Summary};
use anyhow::Result;

/// Options of `simoom-bench compare`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each round measures every server once, one after the other, each in a laboratory of its own (two network namespaces, one veth
pair; server on processor 0, generator on processor 1): the highest lossless rate and the most answers over a grid of rates;
processor 0's busy time (softirqs included) an answer at --cpu-rate; and, with --latency-rate, latency there. The first
server is the subject; the others are what it is divided by. Needs root.

  simoom-bench compare --servers simoom,reflector,knot-xdp,nsd --rounds 5
  simoom-bench compare --servers simoom-sockets,knot,nsd --names 10000
  simoom-bench compare --servers simoom,knot-xdp --no-throughput --latency-rate 150k
  simoom-bench compare --servers knot-xdp,reflector -- ./server --port vs      the command is the subject")]
pub(crate) struct Options {
    /// Servers: simoom, simoom-sockets, reflector, knot-xdp, knot, nsd
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "simoom,reflector,knot-xdp,knot,nsd")]
    servers: Vec<Subject>,
    /// Names in the zone
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    names: u64,
    /// grid
    #[command(flatten)]
    grid: Grid,
    /// Leave the throughput out
    #[arg(long)]
    no_throughput: bool,
    /// Measure processor time an answer at this rate
    #[arg(long, value_name = "R", value_parser = rate)]
    cpu_rate: Option<f64>,
    /// Measure latency at this rate; half the peer's lossless rate is the usual choice
    #[arg(long, value_name = "R", value_parser = rate)]
    latency_rate: Option<f64>,
    /// How long a fixed rate is measured
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    rate_seconds: f64,
    /// The results' file name
    #[arg(long, value_name = "NAME", default_value = "compare")]
    name: String,
    /// common
    #[command(flatten)]
    common: Common,
    /// A command to measure as the subject; it serves example.com on 198.18.0.1:53 at interface vs
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

/// One server's figures, a round each.
#[derive(Debug, Default)]
struct Figures {
    capacity: Vec<Capacity>,
    /// nanoseconds of processor 0 and of the machine an answer
    cost: Vec<(f64, f64)>,
    latency: Vec<Latency>,
    /// medians over short windows of p50 and p99, in microseconds
    windows: Vec<(f64, f64)>,
}

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    let mut subjects = options.servers.clone();
    if !options.command.is_empty() {
        subjects.insert(0, Subject::Command(options.command.clone()));
    }
    let ours = subjects.iter().any(|subject| matches!(subject, Subject::Simoom(..)));
    let simoom = if ours { options.common.simoom()? } else { "simoom".into() };
    let rates = options.grid.rates()?;
    let bed = Bed::new(plain_zone(options.names), &simoom, options.grid.generator)?;
    let mut figures: Vec<Figures> = subjects.iter().map(|_| Figures::default()).collect();
    for round in 1..=options.grid.rounds {
        for (subject, figures) in subjects.iter().zip(&mut figures) {
            let line = measure(&bed, subject, options, &rates, figures)?;
            eprintln!("{round} {:<16} {line}", subject.name());
        }
    }
    let report = Report {
        name: options.name.clone(),
        title: format!("{} against its peers, {} names", subjects[0].name(), options.names),
        method: method(options),
        table: table(&subjects, &figures),
        charts: Vec::new(),
        machine: Machine::here(Peers::Dns),
    };
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

fn measure(bed: &Bed, subject: &Subject, options: &Options, rates: &[f64], figures: &mut Figures) -> Result<String> {
    let served = bed.serve(subject)?;
    let mut line = String::new();
    if !options.no_throughput {
        let capacity = served.capacity(rates, options.grid.seconds)?;
        line +=
            &format!("lossless {:>7.0}  peak {:>7.0}  sent {:>7.0}", capacity.lossless, capacity.peak, capacity.sent);
        figures.capacity.push(capacity);
    }
    if let Some(rate) = options.cpu_rate {
        let (outcome, busy) = served.at_rate(rate, options.rate_seconds)?;
        let Busy { server_s, machine_s, span_s } = busy;
        let answers = outcome.answered_rate() * span_s;
        let cost = (server_s * 1e9 / answers, machine_s * 1e9 / answers);
        line += &format!(
            "  processor 0 {:.0} ns, machine {:.0} ns an answer at {:.0}/s",
            cost.0,
            cost.1,
            outcome.answered_rate()
        );
        figures.cost.push(cost);
    }
    if let Some(rate) = options.latency_rate {
        let (outcome, _) = served.at_rate(rate, options.rate_seconds)?;
        let Latency { p50_us, p99_us, .. } = outcome.latency;
        line += &format!("  p50 {p50_us:.1} us, p99 {p99_us:.1} us, lost {}", outcome.lost);
        if let Some((p50_us, p99_us)) = outcome.window_us {
            line += &format!(", by window p50 {p50_us:.1} us, p99 {p99_us:.1} us");
        }
        figures.latency.push(outcome.latency);
        figures.windows.extend(outcome.window_us);
    }
    Ok(line)
}

fn method(options: &Options) -> String {
    let mut text = format!(
        "One processor each for the server and the generator, one veth pair with one queue, {} rounds in turn; medians, the least \
         and the greatest round behind them. *Ratio* is the median over rounds of the first server's figure divided by the row's.",
        options.grid.rounds
    );
    if !options.no_throughput {
        text += &format!(
            " Rates from {:.0} to {:.0} questions/s by 15%, {} s each, by {}.",
            options.grid.from,
            options.grid.to,
            options.grid.seconds,
            if options.grid.generator == super::Generator::Own { "simoom-bench dns" } else { "kxdpgun" }
        );
    }
    if let Some(rate) = options.cpu_rate {
        text += &format!(" Processor time an answer at {rate:.0} questions/s, from /proc/stat, softirqs included.");
    }
    if let Some(rate) = options.latency_rate {
        text += &format!(
            " Latency at {rate:.0} questions/s, {} s a round; *by window* is the median of the percentile over windows of 100 ms.",
            options.rate_seconds
        );
    }
    text
}

/// One figure of a row: its name, its decimals, and where it comes from.
type Figure = (&'static str, usize, fn(&Figures) -> Vec<f64>);

const FIGURES: [Figure; 8] = [
    ("lossless, answers/s", 0, |figures| figures.capacity.iter().map(|capacity| capacity.lossless).collect()),
    ("peak, answers/s", 0, |figures| figures.capacity.iter().map(|capacity| capacity.peak).collect()),
    ("processor 0, ns an answer", 0, |figures| figures.cost.iter().map(|cost| cost.0).collect()),
    ("machine, ns an answer", 0, |figures| figures.cost.iter().map(|cost| cost.1).collect()),
    ("p50, us", 1, |figures| figures.latency.iter().map(|latency| latency.p50_us).collect()),
    ("p99, us", 1, |figures| figures.latency.iter().map(|latency| latency.p99_us).collect()),
    ("p50 by window, us", 1, |figures| figures.windows.iter().map(|window| window.0).collect()),
    ("p99 by window, us", 1, |figures| figures.windows.iter().map(|window| window.1).collect()),
];

fn table(subjects: &[Subject], figures: &[Figures]) -> Table {
    let mut table = Table::new(&["figure", "server", "median", "least", "greatest", "ratio"]);
    for (name, decimals, of) in FIGURES {
        let subject_rounds = of(&figures[0]);
        for (subject, figures) in subjects.iter().zip(figures) {
            let rounds = of(figures);
            let Some(Summary { median, least, greatest, .. }) = Summary::of(&rounds) else { continue };
            let ratio = stats::paired_ratio(&subject_rounds, &rounds).map(|ratio| ratio.median);
            table.row(vec![
                Cell::text(name),
                Cell::text(subject.name()),
                Cell::Number(median, decimals),
                Cell::Number(least, decimals),
                Cell::Number(greatest, decimals),
                Cell::number(ratio, 2),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_paired_by_round_and_missing_figures_have_no_row() {
        let capacity = |lossless, peak| Capacity { lossless, peak, sent: 1e6 };
        let subject = Figures { capacity: vec![capacity(300.0, 400.0), capacity(150.0, 200.0)], ..Figures::default() };
        let peer = Figures { capacity: vec![capacity(100.0, 200.0), capacity(50.0, 100.0)], ..Figures::default() };
        let csv = table(&[Subject::KnotXdp, Subject::Nsd], &[subject, peer]).csv();
        let expected = "figure,server,median,least,greatest,ratio\n\
                        \"lossless, answers/s\",knot-xdp,225,150,300,1.00\n\"lossless, answers/s\",nsd,75,50,100,3.00\n\
                        \"peak, answers/s\",knot-xdp,300,200,400,1.00\n\"peak, answers/s\",nsd,150,100,200,2.00\n";
        assert_eq!(csv, expected);
    }
}
