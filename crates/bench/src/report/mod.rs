//! What a measurement leaves behind: a CSV for programs, a Markdown table and an SVG plot for readers, and the description of
//! the machine without which no figure means anything.

mod chart;
mod machine;
mod table;

pub(crate) use chart::{Axis, Chart, Series};
pub(crate) use machine::{Machine, Peers, note_server};
pub(crate) use table::{Cell, Table};

use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// One experiment's results.
#[derive(Debug)]
pub(crate) struct Report {
    /// file name without extension
    pub(crate) name: String,
    /// the heading
    pub(crate) title: String,
    /// how it was measured, in Markdown; stands between the heading and the table
    pub(crate) method: String,
    /// the figures
    pub(crate) table: Table,
    /// plots, where the figures make them
    pub(crate) charts: Vec<Chart>,
    /// where it was measured
    pub(crate) machine: Machine,
}

impl Report {
    /// Writes `NAME.csv`, `NAME.md` and the charts (`NAME.svg`, `NAME-2.svg`, ...) into `folder`; returns the paths.
    pub(crate) fn write(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut written = Vec::new();
        let mut put = |name: String, text: String| -> Result<()> {
            let path = folder.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            written.push(path);
            Ok(())
        };
        put(format!("{}.csv", self.name), self.table.csv())?;
        for (at, chart) in self.charts.iter().enumerate() {
            put(self.chart_name(at), chart.svg()?)?;
        }
        put(format!("{}.md", self.name), self.markdown())?;
        Ok(written)
    }

    fn chart_name(&self, at: usize) -> String {
        if at == 0 { format!("{}.svg", self.name) } else { format!("{}-{}.svg", self.name, at + 1) }
    }

    fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n{}\n\n", self.title, self.method.trim());
        for (at, chart) in self.charts.iter().enumerate() {
            text += &format!("![{}]({})\n\n", chart.title, self.chart_name(at));
        }
        text += &self.table.markdown();
        text += "\n";
        text += &self.machine.markdown();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_becomes_files_that_refer_to_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let mut table = Table::new(&["server", "answers/s"]);
        table.row(vec![Cell::text("ours"), Cell::Count(9)]);
        let series = vec![Series::new("ours", vec![(1.0, 2.0), (10.0, 3.0)])];
        let chart = Chart { title: "T".into(), x: Axis::logarithmic("names"), y: Axis::linear("answers/s"), series };
        let machine = Machine { facts: vec![("kernel".into(), "6.18".into())] };
        let report = Report {
            name: "figure".into(),
            title: "A figure".into(),
            method: "Counted.".into(),
            table,
            charts: vec![chart.clone(), chart],
            machine,
        };
        let written = report.write(folder.path()).unwrap();
        assert_eq!(written.len(), 4);
        let text = fs::read_to_string(folder.path().join("figure.md")).unwrap();
        for part in
            ["# A figure\n", "Counted.", "](figure.svg)", "](figure-2.svg)", "| ours | 9 |", "| kernel | 6.18 |"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(fs::read_to_string(folder.path().join("figure.csv")).unwrap(), "server,answers/s\nours,9\n");
    }
}
