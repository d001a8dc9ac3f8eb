//! SIGTERM and SIGINT stop, a second one at once; SIGHUP reloads.

use crate::serve::Event;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::sync::mpsc::Sender;

/// Turns signals into events from here on.
///
/// # Errors
/// The kernel's, when the handlers or the thread cannot be had.
pub(crate) fn start(events: Sender<Event>) -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut stopping = false;
        for signal in signals.forever() {
            let event = match signal {
                SIGHUP => Event::Reload(None),
                _ if stopping => {
                    tracing::warn!("second signal: ending at once");
                    // as the shell reports a process that the signal ended
                    std::process::exit(128 + signal);
                }
                _ => {
                    stopping = true;
                    Event::Stop(if signal == SIGINT { "SIGINT" } else { "SIGTERM" })
                }
            };
            if events.send(event).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}
