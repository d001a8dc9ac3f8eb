//! SIGTERM and SIGINT stop, a second one at once; SIGHUP reloads.

use crate::serve::Event;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

/// Whether a reload was asked for while the server started.
#[derive(Debug)]
pub(crate) struct Early(Arc<AtomicBool>);

impl Early {
    /// Notes it from here on: without a handler the signal would end the process.
    ///
    /// # Errors
    /// The kernel's, when the handler cannot be had.
    pub(crate) fn note() -> io::Result<Early> {
        let asked = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGHUP, asked.clone())?;
        Ok(Early(asked))
    }
}

/// The stops that one asks for who can send signals.
#[derive(Debug, Default)]
pub(crate) struct Stops {
    asked: bool,
}

impl Stops {
    /// What one more comes to; the second ends the process at once.
    pub(crate) fn next(&mut self, signal: i32) -> Event {
        if std::mem::replace(&mut self.asked, true) {
            tracing::warn!("second signal: ending at once");
            // as the shell reports a process that the signal ended
            std::process::exit(128 + signal);
        }
        Event::Stop(if signal == SIGINT { "SIGINT" } else { "SIGTERM" })
    }
}

/// Turns signals into events from here on, and what was asked for early into the first.
///
/// # Errors
/// The kernel's, when the handlers or the thread cannot be had.
pub(crate) fn start(events: Sender<Event>, early: &Early) -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    if early.0.load(Ordering::SeqCst) {
        // somebody listens: the caller
        let _ = events.send(Event::Reload(None));
    }
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut stops = Stops::default();
        for signal in signals.forever() {
            let event = match signal {
                SIGHUP => Event::Reload(None),
                _ => stops.next(signal),
            };
            if events.send(event).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}
