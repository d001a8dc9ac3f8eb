//! Instructions by valgrind's callgrind, counted inside [`super::serve_waiting`] alone.

use anyhow::{Context as _, Result, ensure};
use std::ffi::OsStr;
use std::process::Command;

/// Instructions in the server's cycles of one run of this program with these arguments.
pub(crate) fn instructions<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Result<u64> {
    let folder = tempfile::tempdir()?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*serve_waiting*"]);
    command.arg(format!("--callgrind-out-file={}", folder.path().join("out").display()));
    command.arg(std::env::current_exe().context("where this program lies")?);
    command.args(args);
    let done = command.output().context("cannot run valgrind (package valgrind)")?;
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    ensure!(done.status.success(), "valgrind failed: {}", text.lines().last().unwrap_or_default());
    collected(&text).with_context(|| format!("valgrind counted nothing: {}", text.lines().last().unwrap_or_default()))
}

/// `==123== Collected : 456`
fn collected(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(' ').next()?.parse().ok().filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrinds_count_is_read() {
        let text = "==9== Callgrind\n==9== \n==9== Events    : Ir\n==9== Collected : 123456\n==9==\n";
        assert_eq!(collected(text), Some(123_456));
        assert_eq!(collected("==9== Collected : 0\n"), None);
        assert_eq!(collected(""), None);
    }
}
