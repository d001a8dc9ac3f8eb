//! Options and figures that the measurements over TCP share.

use super::bed::RoundFigures;
use super::instructions;
use crate::report::{Cell, Machine, Peers, Report, Table};
use crate::stats::Summary;
use anyhow::{Context as _, Result, ensure};
use std::ffi::OsString;
use std::path::Path;

/// How often, where and how it is measured.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Common {
    /// Frames a cycle, at most
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) batch: u16,
    /// How often
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// Operations a round: round trips, connections, requests, or bytes [default: a second or so of them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    pub(crate) operations: Option<u64>,
    /// Run on this processor
    #[arg(long, value_name = "N")]
    pub(crate) cpu: Option<usize>,
    /// Instructions an operation, by valgrind's callgrind
    #[arg(long, conflicts_with_all = ["rounds", "operations"])]
    pub(crate) callgrind: bool,
}

/// One line of a report.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Figure {
    /// what was done
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) decimals: usize,
    /// of the rounds, each one's figure the median of its sections
    pub(crate) summary: Summary,
    /// of all sections of all rounds, where there are sections
    pub(crate) mean: Option<f64>,
    pub(crate) asked: Option<&'static str>,
}

impl Figure {
    /// Something that was looked at once.
    pub(crate) fn once(what: &str, unit: &'static str, decimals: usize, value: f64) -> Figure {
        let summary = Summary { median: value, least: value, greatest: value, rounds: 1 };
        Figure { what: what.into(), unit, decimals, summary, mean: None, asked: None }
    }

    /// The same, with what the project asks of itself.
    pub(crate) fn asked(self, asked: Option<&'static str>) -> Figure {
        Figure { asked, ..self }
    }

    /// A line for a terminal.
    pub(crate) fn line(&self) -> String {
        let Summary { median, least, greatest, rounds } = self.summary;
        let d = self.decimals;
        let mut text = format!("{}: {median:.d$} {}", self.what, self.unit);
        if rounds > 1 {
            text += &format!(" (least {least:.d$}, greatest {greatest:.d$} of {rounds} rounds");
            text += &self.mean.map_or_else(|| ")".into(), |mean| format!("; mean {mean:.d$})"));
        }
        if let Some(asked) = self.asked {
            text += &format!("; asked: {asked}");
        }
        text
    }

    fn cells(&self) -> Vec<Cell> {
        let number = |value| Cell::Number(value, self.decimals);
        vec![
            Cell::text(&self.what),
            Cell::text(self.unit),
            number(self.summary.median),
            number(self.summary.least),
            number(self.summary.greatest),
            Cell::number(self.mean, self.decimals),
            Cell::text(self.asked.unwrap_or_default()),
        ]
    }
}

/// Runs a warm-up and the rounds. `run` does so many operations; `convert` makes the unit of nanoseconds an operation.
pub(crate) fn measure(
    common: &Common,
    [warm_up, operations]: [u64; 2],
    mut run: impl FnMut(u64) -> Result<RoundFigures>,
    convert: impl Fn(f64) -> f64,
) -> Result<(Summary, f64)> {
    // caches, branch predictors, windows and pools as in a server that runs
    run(warm_up)?;
    let (mut medians, mut means) = (Vec::new(), 0.0);
    for _ in 0..common.rounds {
        let figures = run(common.operations.unwrap_or(operations))?;
        medians.push(convert(figures.median_ns));
        means += figures.mean_ns / f64::from(common.rounds);
    }
    Ok((Summary::of(&medians).context("no round was run")?, convert(means)))
}

/// Instructions an operation: this program's own command line run twice under callgrind, with a few and with many operations,
/// so that starting up and warming up are not counted.
pub(crate) fn callgrind([few, many]: [u64; 2]) -> Result<f64> {
    let own: Vec<OsString> = std::env::args_os().skip(1).filter(|arg| arg != "--callgrind").collect();
    let count = |operations: u64| {
        let more = ["--rounds", "1", "--operations", &operations.to_string()].map(OsString::from);
        instructions(own.iter().chain(&more))
    };
    let (short, long) = (count(few)?, count(many)?);
    ensure!(long > short, "more operations took no more instructions");
    Ok((long - short) as f64 / (many - few) as f64)
}

/// Writes the figures as CSV and Markdown.
pub(crate) fn write(out: &Path, name: &str, title: &str, method: &str, figures: &[Figure]) -> Result<()> {
    let mut table = Table::new(&["what", "unit", "median", "least", "greatest", "mean", "asked"]);
    for figure in figures {
        table.row(figure.cells());
    }
    let report = Report {
        name: name.into(),
        title: title.into(),
        method: method.into(),
        table,
        charts: Vec::new(),
        machine: Machine::here(Peers::None),
    };
    for path in report.write(out)? {
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}
