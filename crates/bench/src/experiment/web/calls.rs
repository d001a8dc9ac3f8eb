//! System calls of a server, counted by perf: the kernel's trace point has no cost but for the processes that are looked at.

use crate::procs;
use anyhow::{Context as _, Result, bail};
use std::process::{Command, Stdio};
use std::time::Duration;

/// System calls a second of all processes of `group`, over `span`.
pub(super) fn count(group: u32, span: Duration) -> Result<f64> {
    let pids: Vec<String> = procs::group_pids(group)?.iter().map(u32::to_string).collect();
    let seconds = span.as_secs_f64();
    let done = Command::new("perf")
        .args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-p", &pids.join(","), "--", "sleep"])
        .arg(seconds.to_string())
        .stdin(Stdio::null())
        .output()
        .context("cannot run perf (package linux-perf)")?;
    let text = String::from_utf8_lossy(&done.stderr);
    match counted(&text) {
        Some(calls) if done.status.success() => Ok(calls / seconds),
        _ => bail!(
            "perf cannot count system calls ({}): {}; is tracefs mounted (mount -t tracefs none /sys/kernel/tracing)?",
            done.status,
            text.trim().lines().next().unwrap_or_default()
        ),
    }
}

/// The count in what `perf stat -x ,` printed.
fn counted(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains("sys_enter"))?;
    line.split(',').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perfs_count_is_read() {
        assert_eq!(counted("# started\n12345,,raw_syscalls:sys_enter,1000,100.00,,\n"), Some(12_345.0));
        assert_eq!(counted("<not supported>,,raw_syscalls:sys_enter,0,100.00,,\n"), None);
        assert_eq!(counted("event syntax error: 'raw_syscalls:sys_enter'\n"), None);
    }
}
