//! Looks after the dataplane's threads: one that hangs loses its queue to the kernel until it comes round again.
//!
//! The kernel's own sockets then answer at shared addresses; the thread's connections are lost, and nobody else's are. One that is
//! only kept from its processor does not hang: what it has is still in good hands, and its load is the balancer's to move.

use crate::error::reason;
use base::Counter;
use base::counter::{Figure, Report};
use dataplane::{Finding, Pulse, Watched};
use port_xdp::Slot;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the threads are looked at, and how long one may go without coming round: the kernel has its queue within the sum.
const EVERY: Duration = Duration::from_millis(40);
const PATIENCE: Duration = Duration::from_millis(120);

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    /// how often a thread began to hang
    began: Counter,
    /// threads that hang now
    hanging: Counter,
}

impl Report for Stalls {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let help = "times a thread hung and its queue was left to the kernel";
        show(Figure { name: "dataplane_stalls_total", help, gauge: false, labels: &[], value: self.began.get() });
        let help = "threads that hang now";
        show(Figure { name: "dataplane_stalled_threads", help, gauge: true, labels: &[], value: self.hanging.get() });
    }
}

/// The thread that looks. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Watchdog {
    join: Option<JoinHandle<()>>,
    end: Option<Sender<()>>,
    stalls: Arc<Stalls>,
}

impl Watchdog {
    /// Watches the threads whose pulses `pulses` tells, and whose queues' places are `slots`, in the same order; some have no queue.
    pub(crate) fn start(
        slots: Vec<Option<Arc<Slot>>>,
        pulses: impl Fn() -> Vec<Pulse> + Send + 'static,
    ) -> io::Result<Watchdog> {
        let stalls = Arc::new(Stalls::default());
        let (end, ended) = channel();
        let counted = stalls.clone();
        let join = std::thread::Builder::new().name("watchdog".into()).spawn(move || {
            let start = Instant::now();
            let mut watched = vec![Watched::default(); slots.len()];
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let now = start.elapsed();
                for (thread, ((watched, slot), pulse)) in watched.iter_mut().zip(&slots).zip(pulses()).enumerate() {
                    match watched.look(now, pulse, PATIENCE) {
                        Finding::Same => {}
                        Finding::Hangs => hangs(thread, slot.as_deref(), &counted),
                        Finding::Recovered => recovered(thread, slot.as_deref(), &counted),
                    }
                }
            }
        })?;
        Ok(Watchdog { join: Some(join), end: Some(end), stalls })
    }

    /// What it counts.
    pub(crate) fn stalls(&self) -> &Arc<Stalls> {
        &self.stalls
    }
}

fn hangs(thread: usize, slot: Option<&Slot>, stalls: &Stalls) {
    stalls.began.add(1);
    stalls.hanging.add(1);
    let Some(slot) = slot else {
        return tracing::error!(
            "dataplane thread {thread} hangs, and what it has waits until it comes round; this is a bug in simoom: please report it"
        );
    };
    let queue = slot.queue();
    match slot.empty() {
        Ok(()) => tracing::error!(
            "dataplane thread {thread} hangs: queue {queue} is the kernel's until it comes round; this is a bug in simoom: please report it"
        ),
        Err(error) => tracing::error!(
            "dataplane thread {thread} hangs, and queue {queue} cannot be left to the kernel: {}",
            reason(&error)
        ),
    }
}

fn recovered(thread: usize, slot: Option<&Slot>, stalls: &Stalls) {
    stalls.hanging.set(stalls.hanging.get().saturating_sub(1));
    match slot {
        Some(slot) => tracing::warn!("dataplane thread {thread} comes round again and has queue {} back", slot.queue()),
        None => tracing::warn!("dataplane thread {thread} comes round again"),
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.end = None;
        if let Some(join) = self.join.take() {
            // a panic there was shown by the panic hook
            let _ = join.join();
        }
    }
}
