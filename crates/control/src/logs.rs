//! Logs: one line an event, to stderr. `SIMOOM_LOG` sets the level (`debug`, `warn`, `control=debug`, ...).

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging; a second call does nothing.
pub(crate) fn start() {
    let filter = std::env::var("SIMOOM_LOG").unwrap_or_else(|_| "info".into());
    let filter = EnvFilter::try_new(&filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .with_env_filter(filter);
    // journald and syslog have their own times
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let _ = if journal { logs.without_time().try_init() } else { logs.try_init() };
}
