//! Logs: one line an event, to stderr. `SIMOOM_LOG` sets the level (`debug`, `warn`, `control=debug`, ...).

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging; a second call does nothing.
pub(crate) fn start() {
    let wanted = std::env::var_os("SIMOOM_LOG").map_or("info".into(), |words| words.to_string_lossy().into_owned());
    let (filter, wrong) = match EnvFilter::try_new(&wanted) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new("info"), Some(error)),
    };
    let logs = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .with_env_filter(filter);
    // journald and syslog have their own times
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let _ = if journal { logs.without_time().try_init() } else { logs.try_init() };
    if let Some(error) = wrong {
        tracing::warn!("SIMOOM_LOG={wanted}: {error}; the level is info: give error, warn, info, debug or trace");
    }
}
