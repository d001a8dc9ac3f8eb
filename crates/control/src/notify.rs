//! What the service manager is told (sd_notify(3)). Without one ($NOTIFY_SOCKET unset) nothing happens.

use sd_notify::NotifyState;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;
use std::time::Duration;

/// Connected to a manager whose socket has a name that is no path.
static ABSTRACT: OnceLock<UnixDatagram> = OnceLock::new();

/// Connects to a manager whose socket is abstract (`@name`, see unix(7)). To be called before the process confines itself: a sandbox lets
/// nobody begin that afterwards.
pub(crate) fn find() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let Some(name) = path.as_bytes().strip_prefix(b"@") else { return };
    let connect = || {
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        Ok::<_, io::Error>(socket)
    };
    match connect() {
        // a process looks once
        Ok(socket) => drop(ABSTRACT.set(socket)),
        Err(error) => tracing::warn!("$NOTIFY_SOCKET {}: nobody is there: {error}", path.display()),
    }
}

fn send(state: &[NotifyState<'_>]) {
    let sent = match ABSTRACT.get() {
        Some(socket) => {
            let message: String = state.iter().map(|line| format!("{line}\n")).collect();
            socket.send(message.as_bytes()).map(drop)
        }
        None => sd_notify::notify(state),
    };
    if let Err(error) = sent {
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
