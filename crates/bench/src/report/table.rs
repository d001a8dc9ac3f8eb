//! Figures in rows: as CSV (RFC 4180) and as a Markdown table.

/// One figure or word.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    /// a word
    Text(String),
    /// a whole number
    Count(u64),
    /// a number and the decimals it is shown with
    Number(f64, usize),
    /// less than this number, with its decimals: nothing was measured below it
    Below(f64, usize),
    /// this number or more, with its decimals: nothing was measured above it
    AtLeast(f64, usize),
    /// nothing was measured
    Missing,
}

impl Cell {
    /// A word.
    pub(crate) fn text(text: impl Into<String>) -> Cell {
        Cell::Text(text.into())
    }

    /// A number where there is one.
    pub(crate) fn number(value: Option<f64>, decimals: usize) -> Cell {
        value.filter(|value| value.is_finite()).map_or(Cell::Missing, |value| Cell::Number(value, decimals))
    }

    fn plain(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Count(count) => count.to_string(),
            Cell::Number(value, decimals) => format!("{value:.decimals$}"),
            Cell::Below(value, decimals) => format!("<{value:.decimals$}"),
            Cell::AtLeast(value, decimals) => format!("≥{value:.decimals$}"),
            Cell::Missing => String::new(),
        }
    }

    /// Thousands apart, for readers.
    fn readable(&self) -> String {
        match self {
            Cell::Count(count) => grouped(&count.to_string()),
            Cell::Number(value, decimals) => grouped(&format!("{value:.decimals$}")),
            Cell::Below(value, decimals) => format!("< {}", grouped(&format!("{value:.decimals$}"))),
            Cell::AtLeast(value, decimals) => format!("≥ {}", grouped(&format!("{value:.decimals$}"))),
            Cell::Text(text) => text.replace('|', "\\|"),
            Cell::Missing => "–".into(),
        }
    }
}

fn grouped(number: &str) -> String {
    let (sign, number) = number.strip_prefix('-').map_or(("", number), |rest| ("-", rest));
    let (whole, fraction) = number.split_once('.').map_or((number, None), |(whole, part)| (whole, Some(part)));
    let mut text = String::from(sign);
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if let Some(fraction) = fraction {
        text.push('.');
        text += fraction;
    }
    text
}

/// Rows under headings.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table without rows. A heading names the unit of its column.
    pub(crate) fn new(columns: &[&str]) -> Table {
        Table { columns: columns.iter().map(|&column| column.to_owned()).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When it has not one cell a column.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        assert_eq!(cells.len(), self.columns.len(), "a cell a column");
        self.rows.push(cells);
    }

    /// RFC 4180, with lines ended by LF alone, as git and awk like them.
    pub(crate) fn csv(&self) -> String {
        let headings = self.columns.iter().map(|column| quoted(column));
        let mut text = headings.collect::<Vec<_>>().join(",") + "\n";
        for row in &self.rows {
            text += &row.iter().map(|cell| quoted(&cell.plain())).collect::<Vec<_>>().join(",");
            text.push('\n');
        }
        text
    }

    /// A Markdown table, numbers to the right.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("| {} |\n|", self.columns.join(" | "));
        for column in 0..self.columns.len() {
            let words = self.rows.iter().any(|row| matches!(row[column], Cell::Text(_)));
            text += if words { "---|" } else { "---:|" };
        }
        text.push('\n');
        for row in &self.rows {
            text += &format!("| {} |\n", row.iter().map(Cell::readable).collect::<Vec<_>>().join(" | "));
        }
        text
    }
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_quotes_what_would_break_it_and_leaves_numbers_plain() {
        let mut table = Table::new(&["a, b", "n"]);
        table.row(vec![Cell::text("say \"x\""), Cell::Number(1234.56, 1)]);
        table.row(vec![Cell::text("plain"), Cell::Missing]);
        table.row(vec![Cell::text("low"), Cell::Below(1000.0, 0)]);
        table.row(vec![Cell::text("high"), Cell::AtLeast(1000.0, 0)]);
        assert_eq!(table.csv(), "\"a, b\",n\n\"say \"\"x\"\"\",1234.6\nplain,\nlow,<1000\nhigh,≥1000\n");
    }

    #[test]
    fn markdown_groups_thousands_and_aligns_numbers() {
        let mut table = Table::new(&["server", "answers/s", "ratio"]);
        table.row(vec![Cell::text("a|b"), Cell::Count(1_234_567), Cell::number(Some(-1234.5), 2)]);
        table.row(vec![Cell::text("c"), Cell::Count(12), Cell::number(Some(f64::NAN), 2)]);
        table.row(vec![Cell::text("d"), Cell::Below(200_000.0, 0), Cell::Missing]);
        table.row(vec![Cell::text("e"), Cell::AtLeast(600_000.0, 0), Cell::Missing]);
        let expected = "| server | answers/s | ratio |\n|---|---:|---:|\n| a\\|b | 1,234,567 | -1,234.50 |\n| c | 12 | – |\n\
                        | d | < 200,000 | – |\n| e | ≥ 600,000 | – |\n";
        assert_eq!(table.markdown(), expected);
    }

    #[test]
    #[should_panic(expected = "a cell a column")]
    fn a_short_row_is_refused() {
        Table::new(&["a", "b"]).row(vec![Cell::Missing]);
    }
}
