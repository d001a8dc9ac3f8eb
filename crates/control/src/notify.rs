//! What the service manager is told (sd_notify(3)). Without one ($NOTIFY_SOCKET unset) nothing happens.

use sd_notify::NotifyState;
use std::time::Duration;

fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("the service manager could not be told {state:?}: {error}");
    }
}

/// Serving.
pub(crate) fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// A reload has begun; [`ready`] ends it. `Type=notify-reload` needs the time to tell this reload from an earlier one.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(_) => send(&[NotifyState::Reloading]),
    }
}

/// On the way out.
pub(crate) fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// Alive.
pub(crate) fn watchdog() {
    send(&[NotifyState::Watchdog]);
}

/// How often [`watchdog`] is to be called: twice in the manager's time, as sd_watchdog_enabled(3) advises.
pub(crate) fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|time| time / 2)
}
