//! `simoom-bench compare`: servers back to back, medians of paired ratios.

use super::bed::{Bed, Busy};
use super::subject::Subject;
use super::{Common, Generator, Grid, plain_zone, tell_written, told_anew_where};
use crate::commands::{rate, seconds};
use crate::found::{self, Found, Rounds};
use crate::grid::Capacity;
use crate::load::{Good, Latency, Outcome};
use crate::report::{Cell, Machine, Peers, Report, Table};
use crate::stats;
use anyhow::Result;

/// Options of `simoom-bench compare`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each round measures every server once, one after the other, each in a laboratory of its own (two network namespaces, one veth
pair; server on processor 0, generator on processor 1): the highest lossless rate and the most good answers over a grid of rates;
processor 0's busy time (softirqs included) an answer at --cpu-rate; and, with --latency-rate, latency there. The first
server is the subject; the others are what it is divided by. A wrong answer, or a server that ends, ends it all. Needs root.

  simoom-bench compare --servers simoom,reflector,knot-xdp,nsd --rounds 5
  simoom-bench compare --servers simoom-sockets,knot,nsd --names 10000
  simoom-bench compare --servers simoom,knot-xdp --no-throughput --latency-rate 150k
  simoom-bench compare --servers simoom-driver,simoom-xdp,reflector-driver --no-throughput --cpu-rate 200k
  simoom-bench compare --servers knot-xdp,reflector -- ./server --port vs      the command is the subject")]
pub(crate) struct Options {
    /// Servers: simoom, simoom-driver, simoom-xdp, simoom-sockets, reflector, reflector-driver, knot-xdp, knot, nsd
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

/// One server's figures of a round.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    capacity: Option<Capacity>,
    cost: Option<Cost>,
    latency: Option<AtRate>,
    /// how often a rate was asked anew because the generator had fallen behind
    anew: usize,
}

/// Processor time at a fixed rate.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// nanoseconds of processor 0 an answer
    server_ns: f64,
    /// of the whole machine
    machine_ns: f64,
    lost_percent: f64,
}

/// Latency at a fixed rate, of the questions that were answered.
#[derive(Clone, Copy, Debug)]
struct AtRate {
    latency: Latency,
    /// medians over short windows of p50 and p99, in microseconds
    window_us: Option<(f64, f64)>,
    lost_percent: f64,
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
    let mut figures: Vec<Vec<Round>> = subjects.iter().map(|_| Vec::new()).collect();
    for round in 1..=options.grid.rounds {
        for (subject, figures) in subjects.iter().zip(&mut figures) {
            let (found, line) = measure(&bed, subject, options, &rates)?;
            eprintln!("{round} {:<16} {line}", subject.name());
            figures.push(found);
        }
    }
    let report = Report {
        name: options.name.clone(),
        title: format!("{} against its peers, {} names", subjects[0].name(), options.names),
        method: method(options)
            + &told_anew_where(
                "the generator fell behind by more than a hundredth, a rate was asked",
                figures.iter().flatten().map(|round| round.anew).sum(),
            ),
        table: table(&subjects, &figures),
        charts: Vec::new(),
        machine: Machine::here(Peers::Dns),
    };
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

fn measure(bed: &Bed, subject: &Subject, options: &Options, rates: &[f64]) -> Result<(Round, String)> {
    let mut served = bed.serve(subject)?;
    let (mut round, mut line) = (Round::default(), String::new());
    if !options.no_throughput {
        let capacity = served.capacity(rates, options.grid.seconds)?;
        line += &capacity.text();
        round.capacity = Some(capacity);
    }
    if let Some(rate) = options.cpu_rate {
        let (outcome, Busy { server_s, machine_s, span_s }, anew) = served.at_rate(rate, options.rate_seconds)?;
        round.anew += anew;
        let good_rate = outcome.good_rate(served.good());
        let ns = |busy_s: f64| busy_s * 1e9 / (good_rate * span_s);
        let cost = Cost {
            server_ns: ns(server_s),
            machine_ns: ns(machine_s),
            lost_percent: lost_percent(&outcome, served.good()),
        };
        let Cost { server_ns, machine_ns, lost_percent } = cost;
        line += &format!("  processor 0 {server_ns:.0} ns, machine {machine_ns:.0} ns an answer at {good_rate:.0}/s");
        line += &format!(", lost {lost_percent:.3} %{}", not_sent(&outcome));
        round.cost = Some(cost);
    }
    if let Some(rate) = options.latency_rate {
        let (outcome, _, anew) = served.at_rate(rate, options.rate_seconds)?;
        round.anew += anew;
        let Latency { p50_us, p99_us, .. } = outcome.latency;
        let lost_percent = lost_percent(&outcome, served.good());
        line += &format!("  p50 {p50_us:.1} us, p99 {p99_us:.1} us, lost {lost_percent:.3} %{}", not_sent(&outcome));
        if let Some((p50_us, p99_us)) = outcome.window_us {
            line += &format!(", by window p50 {p50_us:.1} us, p99 {p99_us:.1} us");
        }
        round.latency = Some(AtRate { latency: outcome.latency, window_us: outcome.window_us, lost_percent });
    }
    Ok((round, line))
}

/// Questions without a good answer, of a hundred.
fn lost_percent(outcome: &Outcome, good: Good) -> f64 {
    (1.0 - outcome.good_share(good)) * 100.0
}

/// Said where the generator fell behind, which makes the rate another one.
fn not_sent(outcome: &Outcome) -> String {
    if outcome.unsent > 0 { format!(" ({} due and not sent)", outcome.unsent) } else { String::new() }
}

fn method(options: &Options) -> String {
    let mut text = format!(
        "One processor each for the server and the generator, one veth pair with one queue, {} rounds in turn; medians, the least \
         and the greatest round behind them. *Ratio* is the median over rounds of the first server's figure divided by the row's, of all \
         rounds or none; *rounds* is in how many the figure was found. A server that ends ends the measurement.",
        options.grid.rounds
    );
    let grid_is_own = !options.no_throughput && options.grid.generator == Generator::Own;
    if grid_is_own || options.cpu_rate.is_some() || options.latency_rate.is_some() {
        text += " One answer in 16 to `simoom-bench dns` is checked to the last byte, but for a reflector's, and a wrong one ends the measurement.";
    }
    if !options.no_throughput {
        if !grid_is_own {
            text += " Answers to kxdpgun are not checked: *lossless* and *peak* go by the RCODEs that it counts.";
        }
        text += &format!(
            " Rates from {:.0} to {:.0} questions/s by 15%, {} s each, by {}: *lossless* is the highest of which 99.9% had a good answer \
             (`<`: not even the lowest), *peak* the most good answers at any, of those that came while it was asked. `≥` is what the server did where \
             the generator, or the grid, went no further: no higher rate was asked that lost some, or not three that brought no more.",
            options.grid.from,
            options.grid.to,
            options.grid.seconds,
            if grid_is_own { "simoom-bench dns" } else { "kxdpgun" }
        );
    }
    if let Some(rate) = options.cpu_rate {
        text += &format!(
            " Processor time a good answer at {rate:.0} questions/s, what was not idle by /proc/stat, softirqs included; *lost beside that* had no good answer."
        );
    }
    if let Some(rate) = options.latency_rate {
        text += &format!(
            " Latency at {rate:.0} questions/s, {} s a round, of those that were answered; *lost at that latency* are those without a good \
             answer; *by window* is the median of the percentile over windows of 100 ms.",
            options.rate_seconds
        );
    }
    text
}

/// One figure of a row.
struct Figure {
    name: &'static str,
    decimals: usize,
    /// whether a ratio means something
    compares: bool,
    of: fn(&Round) -> Option<Found>,
}

impl Figure {
    const fn new(name: &'static str, decimals: usize, of: fn(&Round) -> Option<Found>) -> Figure {
        Figure { name, decimals, compares: true, of }
    }

    const fn alone(self) -> Figure {
        Figure { compares: false, ..self }
    }
}

const FIGURES: [Figure; 10] = [
    Figure::new("lossless, answers/s", 0, |round| Some(round.capacity?.lossless())),
    Figure::new("peak, answers/s", 0, |round| Some(round.capacity?.peak())),
    Figure::new("processor 0, ns an answer", 0, |round| Some(Found::Is(round.cost?.server_ns))),
    Figure::new("machine, ns an answer", 0, |round| Some(Found::Is(round.cost?.machine_ns))),
    Figure::new("lost beside that, %", 3, |round| Some(Found::Is(round.cost?.lost_percent))).alone(),
    Figure::new("p50, us", 1, |round| Some(Found::Is(round.latency?.latency.p50_us))),
    Figure::new("p99, us", 1, |round| Some(Found::Is(round.latency?.latency.p99_us))),
    Figure::new("p50 by window, us", 1, |round| Some(Found::Is(round.latency?.window_us?.0))),
    Figure::new("p99 by window, us", 1, |round| Some(Found::Is(round.latency?.window_us?.1))),
    Figure::new("lost at that latency, %", 3, |round| Some(Found::Is(round.latency?.lost_percent))).alone(),
];

fn table(subjects: &[Subject], figures: &[Vec<Round>]) -> Table {
    let mut table = Table::new(&["figure", "server", "median", "least", "greatest", "rounds", "ratio"]);
    for Figure { name, decimals, compares, of } in FIGURES {
        let subject_rounds = whole(&figures[0], of);
        for (subject, rounds) in subjects.iter().zip(figures) {
            let found: Vec<Found> = rounds.iter().filter_map(of).collect();
            let Some(Rounds { median, least, greatest }) = Rounds::of(&found) else { continue };
            let pairs = subject_rounds.as_deref().zip(whole(rounds, of)).filter(|_| compares);
            let ratio = pairs.and_then(|(ours, theirs)| stats::paired_ratio(ours, &theirs));
            table.row(vec![
                Cell::text(name),
                Cell::text(subject.name()),
                median.cell(decimals),
                least.cell(decimals),
                greatest.cell(decimals),
                Cell::Count(found.iter().filter(|found| found.is().is_some()).count() as u64),
                Cell::number(ratio.map(|ratio| ratio.median), 2),
            ]);
        }
    }
    table
}

/// A figure of every round; None when a round has none.
fn whole(rounds: &[Round], of: fn(&Round) -> Option<Found>) -> Option<Vec<f64>> {
    found::whole(&rounds.iter().map(of).collect::<Option<Vec<_>>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parsed;
    use crate::grid::Step;

    /// Of a grid from 40 to 1000 that ends behind the peak.
    fn round(lossless: Option<f64>, peak: f64) -> Round {
        let mut capacity = Capacity::default();
        let lowest = [Some((40.0, lossless.map_or(0.0, |_| 40.0))), lossless.map(|rate| (rate, rate))];
        let others = [700.0, 800.0, 900.0, 1000.0].map(|sent| Some((sent, peak)));
        for (sent, good) in lowest.into_iter().chain(others).flatten() {
            capacity.add(&Step { due: sent, sent, good, good_share: good / sent });
        }
        Round { capacity: Some(capacity), ..Round::default() }
    }

    /// Of a grid that all answers come to, up to its end.
    fn unbounded(rate: f64) -> Round {
        let mut capacity = Capacity::default();
        for sent in [40.0, rate] {
            capacity.add(&Step { due: sent, sent, good: sent, good_share: 1.0 });
        }
        Round { capacity: Some(capacity), ..Round::default() }
    }

    #[test]
    fn ratios_are_paired_by_round_and_missing_figures_have_no_row() {
        let subject = vec![round(Some(300.0), 400.0), round(Some(150.0), 200.0)];
        let peer = vec![round(Some(100.0), 200.0), round(Some(50.0), 100.0)];
        let csv = table(&[Subject::KnotXdp, Subject::Nsd], &[subject, peer]).csv();
        let expected = "figure,server,median,least,greatest,rounds,ratio\n\
                        \"lossless, answers/s\",knot-xdp,225,150,300,2,1.00\n\"lossless, answers/s\",nsd,75,50,100,2,3.00\n\
                        \"peak, answers/s\",knot-xdp,300,200,400,2,1.00\n\"peak, answers/s\",nsd,150,100,200,2,2.00\n";
        assert_eq!(csv, expected);
    }

    #[test]
    fn what_is_below_the_grid_is_told_so_and_has_no_ratio() {
        let subject = vec![round(None, 90.0), round(None, 90.0), round(Some(60.0), 90.0)];
        let peer = vec![round(Some(50.0), 100.0), round(None, 100.0), round(Some(50.0), 100.0)];
        let even = vec![round(Some(50.0), 0.0), round(None, 100.0), round(None, 100.0), round(Some(60.0), 100.0)];
        let csv = table(&[Subject::Reflector, Subject::Nsd, Subject::Knot], &[subject, peer, even]).csv();
        let lines: Vec<&str> = csv.lines().skip(1).collect();
        assert_eq!(lines[0], "\"lossless, answers/s\",reflector,<40,<40,60,1,");
        assert_eq!(lines[1], "\"lossless, answers/s\",nsd,50,<40,50,2,");
        assert_eq!(lines[2], "\"lossless, answers/s\",knot,<45,<40,60,2,");
        assert_eq!(lines[4], "\"peak, answers/s\",nsd,100,100,100,3,0.90");
    }

    #[test]
    fn what_is_above_the_grid_is_told_so_and_has_no_ratio() {
        let subject = vec![unbounded(600.0), unbounded(610.0), round(Some(500.0), 590.0)];
        let peer = vec![round(Some(50.0), 100.0); 3];
        let reports = [(&subject, &peer), (&peer, &subject)]
            .map(|(first, second)| table(&[Subject::Reflector, Subject::Nsd], &[first.clone(), second.clone()]).csv());
        let lines: Vec<Vec<&str>> = reports.iter().map(|csv| csv.lines().skip(1).collect()).collect();
        assert_eq!(lines[0][0], "\"lossless, answers/s\",reflector,≥600,500,≥610,1,");
        assert_eq!(lines[0][1], "\"lossless, answers/s\",nsd,50,50,50,3,");
        assert_eq!(lines[0][2], "\"peak, answers/s\",reflector,≥600,590,≥610,1,");
        assert_eq!(lines[1][1], "\"lossless, answers/s\",nsd,≥600,500,≥610,1,");
        assert_eq!(lines[1][3], "\"peak, answers/s\",nsd,≥600,590,≥610,1,");
    }

    #[test]
    fn what_is_checked_is_told_by_who_asks() {
        let told = |words: &[&str]| {
            let text = method(&parsed::<Options>([&["compare"], words].concat()).unwrap());
            [text.contains("One answer in 16"), text.contains("kxdpgun are not checked")]
        };
        assert_eq!(told(&[]), [true, false]);
        assert_eq!(told(&["--generator", "kxdpgun"]), [false, true]);
        assert_eq!(told(&["--generator", "kxdpgun", "--cpu-rate", "1000"]), [true, true]);
        assert_eq!(told(&["--generator", "kxdpgun", "--no-throughput", "--latency-rate", "1000"]), [true, false]);
    }

    #[test]
    fn what_was_lost_stands_beside_what_was_measured_of_the_rest() {
        let at = |p50_us, lost_percent, window_us| Round {
            latency: Some(AtRate { latency: Latency { p50_us, ..Latency::default() }, window_us, lost_percent }),
            ..Round::default()
        };
        let subject = vec![at(10.0, 20.0, None), at(12.0, 30.0, Some((9.0, 11.0)))];
        let peer = vec![at(20.0, 0.0, Some((18.0, 22.0))), at(24.0, 0.0, Some((18.0, 22.0)))];
        let csv = table(&[Subject::KnotXdp, Subject::Nsd], &[subject, peer]).csv();
        let row = |start: &str| {
            csv.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start} in {csv}"))
        };
        assert_eq!(row("\"p50, us\",nsd"), "\"p50, us\",nsd,22.0,20.0,24.0,2,0.50");
        assert_eq!(
            row("\"lost at that latency, %\",knot-xdp"),
            "\"lost at that latency, %\",knot-xdp,25.000,20.000,30.000,2,"
        );
        // a round without it makes no pairs
        assert_eq!(row("\"p50 by window, us\",knot-xdp"), "\"p50 by window, us\",knot-xdp,9.0,9.0,9.0,1,");
        assert_eq!(row("\"p50 by window, us\",nsd"), "\"p50 by window, us\",nsd,18.0,18.0,18.0,2,");
    }
}
