//! What was wrong with a zone, and where.

use std::fmt;

/// A place in a zone file; line and column count from 1, and a line of 0 means the file as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file as it was given to the source, or `<memory>` for records that no file holds.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column in octets, from 1.
    pub column: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.column) {
            (0, _) => f.write_str(&self.file),
            (line, 0) => write!(f, "{}:{line}", self.file),
            (line, column) => write!(f, "{}:{line}:{column}", self.file),
        }
    }
}

/// One thing wrong with a zone: an error refuses it, a warning does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Where it stands.
    pub place: Place,
    /// What is wrong, with the value and the mend.
    pub what: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

impl std::error::Error for Error {}

/// The most errors, and the most warnings, that one run keeps.
const KEPT: usize = 100;

/// The errors and warnings of a run, bounded.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    errors: Bounded,
    warnings: Bounded,
}

#[derive(Debug, Default)]
struct Bounded {
    kept: Vec<Error>,
    more: usize,
}

impl Bounded {
    fn push(&mut self, place: Place, what: String) {
        if self.kept.len() < KEPT {
            self.kept.push(Error { place, what });
        } else {
            self.more += 1;
        }
    }

    fn into_vec(mut self, kind: &str) -> Vec<Error> {
        if let (1.., Some(last)) = (self.more, self.kept.last()) {
            let place = Place { line: 0, column: 0, ..last.place.clone() };
            self.kept.push(Error {
                place,
                what: format!("and {}{} more {kind}", if self.more < KEPT { "" } else { "at least " }, self.more),
            });
        }
        self.kept
    }
}

impl Problems {
    pub(crate) fn error(&mut self, place: Place, what: String) {
        self.errors.push(place, what);
    }

    pub(crate) fn warn(&mut self, place: Place, what: String) {
        self.warnings.push(place, what);
    }

    /// Whether so many errors were met that reading on tells nobody more.
    pub(crate) fn is_flooded(&self) -> bool {
        self.errors.more >= KEPT
    }

    /// Whether so many warnings were met that another tells nobody more.
    pub(crate) fn has_warned_enough(&self) -> bool {
        self.warnings.more >= KEPT
    }

    /// The warnings, or the errors where there is one.
    pub(crate) fn into_outcome(self) -> Result<Vec<Error>, Vec<Error>> {
        if self.errors.kept.is_empty() {
            Ok(self.warnings.into_vec("warnings"))
        } else {
            Err(self.errors.into_vec("errors"))
        }
    }
}

/// Something wrong in the file that is being read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) line: u32,
    pub(crate) column: u32,
    pub(crate) what: String,
}
