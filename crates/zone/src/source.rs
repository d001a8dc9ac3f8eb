//! Where zone files come from. The crate opens nothing itself: the caller says what a path means.

use std::collections::HashMap;
use std::io::{self, Read};

/// Opens zone files by path. `$INCLUDE` goes through it too, so a source decides what may be included.
pub trait Source {
    /// Opens the file at `path` for one reading from its start.
    fn open(&self, path: &str) -> io::Result<Box<dyn Read + '_>>;

    /// Opens a file that `$INCLUDE` names, which the author of a zone does, where `open` is for what the operator named.
    fn open_included(&self, path: &str) -> io::Result<Box<dyn Read + '_>> {
        self.open(path)
    }

    /// What names the file at `path` whatever way leads there.
    fn identity(&self, path: &str) -> String {
        path.to_owned()
    }

    /// The path that `included` means inside the file `including`: beside it, unless it is absolute.
    fn resolve(&self, including: &str, included: &str) -> String {
        match including.rsplit_once('/') {
            Some((folder, _)) if !included.starts_with('/') => format!("{folder}/{included}"),
            _ => included.to_owned(),
        }
    }
}

/// Files held in memory, for tests, generators and fuzzing.
#[derive(Clone, Debug, Default)]
pub struct MemorySource {
    files: HashMap<String, Vec<u8>>,
}

impl MemorySource {
    /// A source with no file.
    pub fn new() -> Self {
        Self::default()
    }

    /// The source with one more file.
    pub fn with(mut self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.insert(path.to_owned(), content.into());
        self
    }
}

impl Source for MemorySource {
    fn open(&self, path: &str) -> io::Result<Box<dyn Read + '_>> {
        match self.files.get(path) {
            Some(content) => Ok(Box::new(content.as_slice())),
            None => Err(io::Error::new(io::ErrorKind::NotFound, "no such file in memory")),
        }
    }
}
