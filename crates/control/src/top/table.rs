//! Tables of text and numbers: sorted, and laid out in lines of a given width.

use std::cmp::Ordering;

/// A place of a table.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Text(String),
    /// what it is sorted by, and what is shown
    Number(f64, String),
    /// not known, or not of this row
    Nothing,
}

impl Cell {
    fn shown(&self) -> &str {
        match self {
            Cell::Text(text) | Cell::Number(_, text) => text,
            Cell::Nothing => "-",
        }
    }

    /// Numbers before text, what is not known last.
    fn cmp(&self, other: &Cell) -> Ordering {
        let rank = |cell: &Cell| match cell {
            Cell::Number(..) => 0,
            Cell::Text(_) => 1,
            Cell::Nothing => 2,
        };
        match (self, other) {
            (Cell::Number(one, _), Cell::Number(two, _)) => one.total_cmp(two),
            (Cell::Text(one), Cell::Text(two)) => one.cmp(two),
            _ => rank(self).cmp(&rank(other)),
        }
    }

    pub(super) fn text(text: impl Into<String>) -> Cell {
        Cell::Text(text.into())
    }

    /// A number made readable by `show`, or nothing.
    pub(super) fn of(value: Option<f64>, show: fn(f64) -> String) -> Cell {
        value.map_or(Cell::Nothing, |value| Cell::Number(value, show(value)))
    }
}

/// A table: the first column says what a row is about.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Table {
    pub(super) title: &'static str,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<Cell>>,
}

/// By which column, and whether downwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) column: usize,
    pub(super) falling: bool,
}

/// Spaces between columns.
const GAP: usize = 2;

impl Table {
    /// Rows in an order; those of equal places stay as they were.
    pub(super) fn sort(&mut self, order: Order) {
        let Order { column, falling } = order;
        self.rows.sort_by(|one, two| {
            let (one, two) = (one.get(column).unwrap_or(&Cell::Nothing), two.get(column).unwrap_or(&Cell::Nothing));
            // what is not known is last either way
            let known = (*one == Cell::Nothing).cmp(&(*two == Cell::Nothing));
            known.then_with(|| if falling { two.cmp(one) } else { one.cmp(two) })
        });
    }

    /// Leaves out columns of which nothing is known, and those of zeros that `drop_zeros` names by their place.
    pub(super) fn without_empty_columns(mut self, zeros_from: usize) -> Table {
        let is_empty = |column: usize| {
            self.rows.iter().all(|row| match row.get(column) {
                None | Some(Cell::Nothing) => true,
                Some(Cell::Number(value, _)) => column >= zeros_from && *value == 0.0,
                Some(Cell::Text(_)) => false,
            })
        };
        let keep: Vec<bool> = (0..self.columns.len()).map(|column| column == 0 || !is_empty(column)).collect();
        let mut kept = keep.iter();
        self.columns.retain(|_| *kept.next().unwrap_or(&false));
        for row in &mut self.rows {
            let mut kept = keep.iter();
            row.retain(|_| *kept.next().unwrap_or(&false));
        }
        self
    }

    /// The heading and a line for each row, none longer than `width` characters: columns that do not fit are left out from the
    /// right, and the first is cut. The heading marks the column that rows are sorted by.
    pub(super) fn lines(&self, width: usize, order: Option<Order>) -> Vec<String> {
        let heading: Vec<String> = (self.columns.iter().enumerate())
            .map(|(at, name)| match order {
                Some(Order { column, falling }) if column == at => format!("{name}{}", if falling { 'v' } else { '^' }),
                _ => name.clone(),
            })
            .collect();
        let widest = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.shown().chars().count());
            cells.chain([heading[column].chars().count()]).max().unwrap_or_default()
        };
        let mut widths: Vec<usize> = (0..heading.len()).map(widest).collect();
        let total = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
        while widths.len() > 1 && total(&widths) > width {
            widths.pop();
        }
        let is_text =
            |column: usize| column == 0 || self.rows.iter().any(|row| matches!(row.get(column), Some(Cell::Text(_))));
        let left: Vec<bool> = (0..widths.len()).map(is_text).collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut line = String::new();
            for ((cell, width), left) in cells.zip(&widths).zip(&left) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                match left {
                    true => line.push_str(&format!("{cell:<width$}")),
                    false => line.push_str(&format!("{cell:>width$}")),
                }
            }
            cut(line.trim_end(), width)
        };
        let mut lines = vec![line(&mut heading.iter().map(String::as_str))];
        lines.extend(self.rows.iter().map(|row| line(&mut row.iter().map(Cell::shown))));
        lines
    }
}

/// At most so many characters of it.
pub(super) fn cut(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}

/// A number a person can compare at a glance: whole below a hundred thousand, then in thousands and so on.
pub(super) fn count(value: f64) -> String {
    match value {
        value if value != 0.0 && value < 9.95 && value.fract() != 0.0 => format!("{value:.1}"),
        value if value < 99_999.5 => format!("{value:.0}"),
        value => scaled(value, 1000.0, &["", "k", "M", "G", "T", "P"]),
    }
}

/// Bytes in powers of 1024.
pub(super) fn bytes(value: f64) -> String {
    match value {
        value if value < 1023.5 => format!("{value:.0} B"),
        value => scaled(value, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB"]),
    }
}

/// A share of one.
pub(super) fn percent(value: f64) -> String {
    format!("{:.0}%", value * 100.0)
}

/// A time in nanoseconds.
pub(super) fn nanoseconds(value: f64) -> String {
    match value {
        value if value < 999.5 => format!("{value:.0} ns"),
        value if value < 999.5e3 => format!("{:.1} us", value / 1e3),
        value if value < 999.5e6 => format!("{:.1} ms", value / 1e6),
        value => format!("{:.1} s", value / 1e9),
    }
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    for (n, unit) in units.iter().enumerate() {
        // three figures, and never 1000 of a unit that has a larger one
        if value < step - 0.5 || n + 1 == units.len() {
            let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
            return format!("{value:.digits$}{unit}");
        }
        value /= step;
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let number = |value| Cell::of(Some(value), count);
        Table {
            title: "things",
            columns: vec!["what".into(), "how".into(), "many".into(), "never".into()],
            rows: vec![
                vec![Cell::text("one"), Cell::text("b"), number(2.0), Cell::Nothing],
                vec![Cell::text("another"), Cell::text("a"), Cell::Nothing, Cell::Nothing],
                vec![Cell::text("third"), Cell::text("b"), number(10.0), Cell::Nothing],
            ],
        }
    }

    #[test]
    fn lines_fit_whatever_the_width() {
        let all = [
            "what     how  many  never",
            "one      b       2      -",
            "another  a       -      -",
            "third    b      10      -",
        ];
        assert_eq!(table().lines(80, None), all);
        assert_eq!(table().lines(12, None), ["what     how", "one      b", "another  a", "third    b"]);
        assert_eq!(table().lines(3, None), ["wha", "one", "ano", "thi"]);
        assert_eq!(table().lines(0, None), ["", "", "", ""]);
        assert_eq!(Table::default().lines(10, None), [""]);
    }

    #[test]
    fn rows_are_sorted_and_what_is_unknown_is_last() {
        let names = |order| {
            let mut table = table();
            table.sort(order);
            table.rows.iter().map(|row| row[0].shown().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(Order { column: 2, falling: true }), ["third", "one", "another"]);
        assert_eq!(names(Order { column: 2, falling: false }), ["one", "third", "another"]);
        assert_eq!(names(Order { column: 1, falling: false }), ["another", "one", "third"]);
        assert_eq!(names(Order { column: 9, falling: false }), ["one", "another", "third"]);
        let lines = table().lines(80, Some(Order { column: 2, falling: true }));
        assert!(lines[0].contains(" manyv "), "{lines:?}");
    }

    #[test]
    fn empty_columns_go() {
        assert_eq!(table().without_empty_columns(9).columns, ["what", "how", "many"]);
        let mut zeros = table();
        zeros.rows.iter_mut().for_each(|row| row[3] = Cell::of(Some(0.0), count));
        assert_eq!(zeros.clone().without_empty_columns(9).columns.len(), 4);
        assert_eq!(zeros.without_empty_columns(3).columns.len(), 3);
    }

    #[test]
    fn numbers_are_readable() {
        for (value, text) in [
            (0.0, "0"),
            (0.25, "0.2"),
            (3.0, "3"),
            (9.96, "10"),
            (1234.4, "1234"),
            (99_999.0, "99999"),
            (99_999.6, "100k"),
            (123_456.0, "123k"),
            (1_234_567.0, "1.23M"),
            (999_600.0, "1.00M"),
            (1e18, "1000P"),
            (2e18, "2000P"),
        ] {
            assert_eq!(count(value), text, "{value}");
        }
        for (value, text) in [(0.0, "0 B"), (1023.0, "1023 B"), (1024.0, "1.00 KiB"), (15.5 * 1048576.0, "15.5 MiB")] {
            assert_eq!(bytes(value), text, "{value}");
        }
        for (value, text) in
            [(0.0, "0 ns"), (1500.0, "1.5 us"), (2e6, "2.0 ms"), (3.21e9, "3.2 s"), (999_600.0, "1.0 ms")]
        {
            assert_eq!(nanoseconds(value), text, "{value}");
        }
        assert_eq!(percent(0.456), "46%");
    }
}
