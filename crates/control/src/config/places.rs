//! Where a value stands, for the first words of a message.

use crate::words::Placed;
use std::fmt::Display;

/// Tells where a value stands, for the first words of a message.
pub(super) struct Places<'a> {
    pub(super) file: Option<(&'a str, &'a str)>,
}

impl Places<'_> {
    pub(super) fn at<T>(&self, placed: &Placed<T>, option: &str) -> String {
        match (self.file, &placed.span) {
            (Some((name, text)), Some(span)) => place(name, text, span.start),
            _ => option.to_owned(),
        }
    }
}

pub(super) fn place(name: &str, text: &str, offset: usize) -> String {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let line = before.iter().filter(|&&b| b == b'\n').count() + 1;
    let column = before.len() - before.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1) + 1;
    format!("{name}:{line}:{column}")
}

/// serde's and toml's words in ours, on one line.
pub(super) fn plain(message: &str) -> String {
    let line = message.split('\n').map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
    match line.split_once(", expected ") {
        Some((unknown, known)) if unknown.starts_with("unknown field ") => {
            let known = known.trim_start_matches("one of ");
            format!("unknown key {}; known here: {known}", &unknown["unknown field ".len()..])
        }
        _ => match line.strip_prefix("missing field ") {
            Some(field) => format!("{field} is missing; add it"),
            None => line,
        },
    }
}

/// Values given more than once.
pub(super) fn twice<T: PartialEq + Display>(
    places: &Places<'_>,
    values: &[Placed<T>],
    option: &str,
    errors: &mut Vec<String>,
) {
    for (n, placed) in values.iter().enumerate() {
        if let Some(first) = values[..n].iter().find(|first| first.value == placed.value) {
            let first = match first.span {
                Some(_) => format!("; it stands at {} already", places.at(first, option)),
                None => String::new(),
            };
            errors.push(format!("{}: {} is given twice{first}; remove one", places.at(placed, option), placed.value));
        }
    }
}

/// The word's name as the reader wrote it.
pub(super) fn word(places: &Places<'_>, option: &str, key: &str) -> String {
    match places.file {
        Some((name, _)) => format!("{name}: {key}"),
        None => option.to_owned(),
    }
}
