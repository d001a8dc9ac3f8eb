//! What stands on the terminal: the state that keys change, and the lines of one frame of any size.

use super::reading::Change;
use super::table::{Order, Table, cut};
use super::view;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// Bounds of the time between readings.
pub(super) const FASTEST: Duration = Duration::from_millis(100);
pub(super) const SLOWEST: Duration = Duration::from_secs(3600);

const HELP: &str = "q quit  tab next table  arrows scroll  s/S sort by next/previous column  r turn round  z zoom  p pause  +/- interval";

/// How one table is looked at.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    scrolled: usize,
    order: Option<Order>,
}

/// What is looked at, and how.
#[derive(Debug)]
pub(super) struct Screen {
    pub(super) interval: Duration,
    pub(super) paused: bool,
    change: Option<Change>,
    tables: Vec<Table>,
    /// by the tables' titles, which come and go
    looks: BTreeMap<&'static str, Look>,
    focus: &'static str,
    zoomed: bool,
    /// why there is nothing newer
    failure: Option<String>,
    /// rows that the table in focus showed last
    page: usize,
}

/// What a key asks of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Nothing,
    Quit,
}

impl Screen {
    pub(super) fn new(interval: Duration) -> Screen {
        Screen {
            interval,
            paused: false,
            change: None,
            tables: Vec::new(),
            looks: BTreeMap::new(),
            focus: "Threads",
            zoomed: false,
            failure: None,
            page: 1,
        }
    }

    /// Takes what the server says now.
    pub(super) fn show(&mut self, change: Change) {
        self.failure = None;
        self.tables = view::tables(&change);
        self.change = Some(change);
        for table in &mut self.tables {
            if let Some(order) = self.looks.get(table.title).and_then(|look| look.order) {
                table.sort(order);
            }
        }
        if !self.tables.iter().any(|table| table.title == self.focus) {
            self.focus = self.tables.first().map_or("Threads", |table| table.title);
        }
    }

    /// Takes that the server does not answer. What it said last stays.
    pub(super) fn fail(&mut self, why: String) {
        self.failure = Some(why);
    }

    /// Does what a key says.
    pub(super) fn key(&mut self, key: KeyEvent) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::Nothing;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if control => return Wish::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Quit,
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(self.tables.len().saturating_sub(1)),
            KeyCode::Up => self.scroll(|at, _| at.saturating_sub(1)),
            KeyCode::Down => self.scroll(|at, _| at.saturating_add(1)),
            KeyCode::PageUp => self.scroll(|at, page| at.saturating_sub(page)),
            KeyCode::PageDown => self.scroll(|at, page| at.saturating_add(page)),
            KeyCode::Home => self.scroll(|_, _| 0),
            KeyCode::End => self.scroll(|_, _| usize::MAX),
            KeyCode::Char('s') => self.sort_by(|column, columns| (column + 1) % columns),
            KeyCode::Char('S') => self.sort_by(|column, columns| (column + columns - 1) % columns),
            KeyCode::Char('r') => self.turn_order(),
            KeyCode::Char('z') | KeyCode::Enter => self.zoomed = !self.zoomed,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('+') => self.interval = (self.interval * 2).min(SLOWEST),
            KeyCode::Char('-') => self.interval = (self.interval / 2).max(FASTEST),
            _ => {}
        }
        Wish::Nothing
    }

    fn turn(&mut self, by: usize) {
        let at = self.tables.iter().position(|table| table.title == self.focus).unwrap_or_default();
        if let Some(table) = self.tables.get((at + by) % self.tables.len().max(1)) {
            self.focus = table.title;
        }
    }

    fn scroll(&mut self, to: impl Fn(usize, usize) -> usize) {
        let look = self.looks.entry(self.focus).or_default();
        look.scrolled = to(look.scrolled, self.page);
    }

    /// What is largest comes first, and names by the alphabet.
    fn sort_by(&mut self, next: impl Fn(usize, usize) -> usize) {
        let Some(table) = self.tables.iter_mut().find(|table| table.title == self.focus) else { return };
        let look = self.looks.entry(self.focus).or_default();
        let columns = table.columns.len().max(1);
        // the first time it is the first column, or the last
        let column = look.order.map_or(next(columns - 1, columns) % columns, |order| next(order.column, columns));
        let order = Order { column, falling: column > 0 };
        look.order = Some(order);
        table.sort(order);
    }

    fn turn_order(&mut self) {
        let Some(table) = self.tables.iter_mut().find(|table| table.title == self.focus) else { return };
        let look = self.looks.entry(self.focus).or_default();
        let before = look.order.unwrap_or(Order { column: 0, falling: false });
        let order = Order { falling: !before.falling, ..before };
        look.order = Some(order);
        table.sort(order);
    }

    /// Draws a frame.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let lines = self.lines(usize::from(area.width), usize::from(area.height));
        frame.render_widget(Paragraph::new(lines), area);
    }

    /// At most `height` lines of at most `width` characters.
    fn lines(&mut self, width: usize, height: usize) -> Vec<Line<'static>> {
        let (bold, dim) = (Style::new().add_modifier(Modifier::BOLD), Style::new().add_modifier(Modifier::DIM));
        let mut lines = vec![Line::styled(cut(&self.heading(), width), bold)];
        let alarm = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
        lines.extend(self.failure.iter().map(|why| Line::styled(cut(why, width), alarm)));
        let foot = height.saturating_sub(1);
        let shown: Vec<usize> =
            (0..self.tables.len()).filter(|at| !self.zoomed || self.tables[*at].title == self.focus).collect();
        let room = foot.saturating_sub(lines.len());
        let rows = self.divide(&shown, room);
        for (at, rows) in shown.into_iter().zip(rows) {
            let Some(rows) = rows else { continue };
            self.table(at, rows, width, &mut lines);
        }
        lines.truncate(foot);
        lines.resize(foot, Line::default());
        lines.push(Line::styled(cut(HELP, width), dim));
        lines.truncate(height);
        lines
    }

    /// Lines of these tables that fit `room`: a blank line, a title, a heading and rows for each. The table in focus comes first, the
    /// others as far as there is room, from the top. None is for one that is not shown.
    fn divide(&self, shown: &[usize], room: usize) -> Vec<Option<usize>> {
        const AROUND: usize = 3;
        let wants = |at: &usize| self.tables[*at].rows.len();
        let least = |at: &usize| wants(at).min(if self.tables[*at].title == self.focus { 5 } else { 2 });
        let mut rows: Vec<Option<usize>> = vec![None; shown.len()];
        let mut left = room;
        let focus = shown.iter().position(|at| self.tables[*at].title == self.focus);
        let order = focus.into_iter().chain((0..shown.len()).filter(|n| Some(*n) != focus));
        let order: Vec<usize> = order.collect();
        for n in &order {
            let least = least(&shown[*n]);
            // on a small screen the one in focus has what there is
            if left >= AROUND + least || (Some(*n) == focus && left > 0) {
                rows[*n] = Some(least.min(left.saturating_sub(AROUND)));
                left = left.saturating_sub(AROUND + least);
            }
        }
        for n in order {
            let Some(has) = rows[n] else { continue };
            let more = wants(&shown[n]).saturating_sub(has).min(left);
            rows[n] = Some(has + more);
            left -= more;
        }
        rows
    }

    fn table(&mut self, at: usize, rows: usize, width: usize, lines: &mut Vec<Line<'static>>) {
        let table = &self.tables[at];
        let focused = table.title == self.focus;
        let look = self.looks.entry(table.title).or_default();
        look.scrolled = look.scrolled.min(table.rows.len().saturating_sub(rows));
        if focused {
            self.page = rows.max(1);
        }
        let (from, all) = (look.scrolled, table.rows.len());
        let part = if rows < all { format!(" {}-{} of {all}", from + 1, from + rows) } else { String::new() };
        let style = if focused { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        let mut laid = table.lines(width, look.order).into_iter();
        lines.push(Line::default());
        let title = if focused { format!(" {}{part} ", table.title) } else { format!("{}{part}", table.title) };
        lines.push(Line::styled(cut(&title, width), style.fg(Color::Cyan)));
        lines.extend(laid.next().map(|heading| Line::styled(heading, Style::new().add_modifier(Modifier::BOLD))));
        lines.extend(laid.skip(from).take(rows).map(Line::raw));
    }

    fn heading(&self) -> String {
        let Some(change) = &self.change else { return "simoom top: waiting for the server".into() };
        let mut heading = heading(change);
        heading.push_str(&format!("  every {}", seconds(self.interval)));
        if self.paused {
            heading.push_str("  PAUSED");
        }
        heading
    }
}

/// `simoom 0.1.0  pid 77  up 1h02m  ...`, and whether it is another than before.
fn heading(change: &Change) -> String {
    let status = &change.status;
    let text = |name: &str| match &status[name] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let again = if change.restarted { "  STARTED ANEW: rates begin again" } else { "" };
    let up = uptime(status["uptime_s"].as_u64().unwrap_or_default());
    format!("simoom {}  pid {}  up {up}  {}{again}", text("version"), text("pid"), text("backend"))
}

fn uptime(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{:02}s", seconds % 60),
        (0, _, _) => format!("{hours}h{minutes:02}m"),
        _ => format!("{days}d{hours:02}h"),
    }
}

fn seconds(interval: Duration) -> String {
    format!("{} s", (interval.as_secs_f64() * 100.0).round() / 100.0)
}

/// One frame without a terminal: all tables but that of all figures, in full, `width` characters at most.
pub(super) fn plain(change: &Change, width: usize) -> String {
    let span = change.span_s.map_or(String::new(), |span| format!("  over {}", seconds(Duration::from_secs_f64(span))));
    let mut text = format!("{}{span}\n", heading(change));
    for table in view::tables(change).iter().filter(|table| table.title != "All figures") {
        text.push_str(&format!("\n{}\n", table.title));
        for line in table.lines(width, None) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests;
