//! The subcommands that are tools by themselves.

pub(crate) mod answer;
pub(crate) mod bursts;
pub(crate) mod dns;
pub(crate) mod http;
pub(crate) mod kv;
pub(crate) mod messages;
pub(crate) mod reflect;
pub(crate) mod results;
pub(crate) mod wire;
pub(crate) mod zone;

use crate::load::Wait;
use crate::xdp::Mode;
use anyhow::{Context as _, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What every load generator is told of its interface and its output.
#[derive(Debug, clap::Args)]
pub(crate) struct Tool {
    /// What to do while nothing is due
    #[arg(long, value_name = "WORD", default_value = "yield")]
    wait: Wait,
    /// How to use AF_XDP
    #[arg(long, value_name = "WORD", default_value = "auto")]
    mode: Mode,
    /// Run on this processor
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Results as one line of JSON instead of text
    #[arg(long)]
    json: bool,
}

impl Tool {
    /// Puts the calling thread on its processor.
    fn pin(&self) -> Result<()> {
        self.cpu.map_or(Ok(()), crate::procs::pin)
    }
}

/// A flag that SIGTERM, SIGINT and SIGHUP set, so that a tool ends with its figures told, and an experiment in order, also where its terminal
/// goes. Whoever was started to outlive that (nohup(1)) does.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let status = std::fs::read_to_string("/proc/self/status").context("cannot read which signals are ignored")?;
    for signal in [SIGTERM, SIGINT] {
        // a second signal ends the process at once
        signal_hook::flag::register_conditional_default(signal, stop.clone()).context("cannot catch signals")?;
        signal_hook::flag::register(signal, stop.clone()).context("cannot catch signals")?;
    }
    if !is_ignored(&status, SIGHUP) {
        // of these there are two where a terminal goes, the shell's and the kernel's
        signal_hook::flag::register(SIGHUP, stop.clone()).context("cannot catch signals")?;
    }
    Ok(stop)
}

/// Whether a signal is among those that a process with this /proc/PID/status ignores.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 << (signal - 1) != 0)
}

/// A number of seconds on the command line: above 0, at most a day.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    number(text)
        .filter(|value| *value > 0.0 && *value <= 86_400.0)
        .ok_or_else(|| "seconds above 0 and up to 86400".into())
}

/// A rate on the command line: above 0; `k` and `M` multiply.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'M']) {
        Some(digits) => (digits, if text.ends_with('k') { 1e3 } else { 1e6 }),
        None => (text, 1.0),
    };
    number(digits)
        .map(|value| value * unit)
        .filter(|value| *value > 0.0 && *value <= 1e9)
        .ok_or_else(|| "a rate a second, such as 200000, 200k or 0.5M".into())
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_finite())
}

/// Options of their own, without the program around them, from a command line with its first word.
#[cfg(test)]
pub(crate) fn parsed<O: clap::Args>(
    words: impl IntoIterator<Item = impl Into<std::ffi::OsString> + Clone>,
) -> Result<O, clap::Error> {
    O::from_arg_matches(&O::augment_args(clap::Command::new("simoom-bench")).try_get_matches_from(words)?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_ignored_is_read_from_the_kernels_file() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000004000\n";
        assert_eq!([1, 2, 13, 15].map(|signal| super::is_ignored(status, signal)), [true, false, true, false]);
        assert!(!super::is_ignored("", 1));
    }

    #[test]
    fn rates_and_seconds_have_bounds() {
        assert_eq!(super::rate("200k"), Ok(200e3));
        assert_eq!(super::rate("0.5M"), Ok(500e3));
        assert_eq!(super::rate("7"), Ok(7.0));
        for wrong in ["", "k", "0", "-1", "nan", "1e12", "1G"] {
            assert!(super::rate(wrong).is_err(), "{wrong}");
        }
        assert_eq!(super::seconds("0.5"), Ok(0.5));
        for wrong in ["0", "inf", "-1", "86401", "x"] {
            assert!(super::seconds(wrong).is_err(), "{wrong}");
        }
    }
}
