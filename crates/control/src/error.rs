//! Why a command ended early, and the exit status that says whose fault it was.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// A failure of a command. Each line stands alone, names a place and the mend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// the caller's input: command line, configuration, zone files. Nothing was started, and nothing else than another input mends it: the
    /// unit for systemd does not start again then.
    Input(Vec<String>),
    /// the machine or another program, which may be otherwise later: AF_XDP cannot be had, an address is in use or not there yet, no server
    /// answers
    Environment(Vec<String>),
}

impl Error {
    /// One line about the caller's input.
    pub fn input(line: impl Into<String>) -> Error {
        Error::Input(vec![line.into()])
    }

    /// One line about the environment.
    pub fn environment(line: impl Into<String>) -> Error {
        Error::Environment(vec![line.into()])
    }

    /// The process's exit status.
    pub fn status(&self) -> u8 {
        match self {
            Error::Input(_) => 2,
            Error::Environment(_) => 1,
        }
    }

    /// The lines to show.
    pub fn lines(&self) -> &[String] {
        match self {
            Error::Input(lines) | Error::Environment(lines) => lines,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("\n"))
    }
}

impl std::error::Error for Error {}

/// The reason of an I/O error without Rust's `(os error N)`.
pub(crate) fn reason(error: &std::io::Error) -> String {
    without_number(&error.to_string()).to_owned()
}

/// An I/O error's words that others have written down, the same.
pub(crate) fn without_number(text: &str) -> &str {
    text.split_once(" (os error").map_or(text, |(words, _)| words)
}

/// How a process has ended.
pub(crate) fn how_ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}
