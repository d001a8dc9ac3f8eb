//! Looks after the dataplane's threads: one that hangs loses its queue to the kernel until it comes round again.
//!
//! The kernel's own sockets then answer at shared addresses; the thread's connections are lost, and nobody else's are; the dataplane is told, so that
//! others serve what they can of its. One that is
//! only kept from its processor does not hang, nor does one whose processor a hypervisor took away: what it has is still in good hands, and
//! its load is the balancer's to move. A thread that cannot have its socket made anew tells nobody, and nobody is told when somebody changes
//! an interface's queues; both are said here, too.

use crate::error::{reason, without_number};
use base::Counter;
use base::counter::{Figure, Report};
use dataplane::{Finding, Pulse, Watched};
use port_xdp::{Slot, Stats, Trouble, device};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the threads are looked at, and how long one may go without coming round: the kernel has its queue within the sum.
const EVERY: Duration = Duration::from_millis(40);
const PATIENCE: Duration = Duration::from_millis(120);

/// How often the interfaces are looked at, in looks at the threads.
const NICS_EVERY: u32 = 25;

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

/// A thread's queue.
#[derive(Debug)]
pub(crate) struct Queue {
    slot: Arc<Slot>,
    stats: Arc<Stats>,
    /// as far as it was said
    trouble: Option<Trouble>,
}

impl Queue {
    pub(crate) fn new(slot: Arc<Slot>, stats: Arc<Stats>) -> Queue {
        Queue { slot, stats, trouble: None }
    }

    /// Says what has changed about its socket.
    fn look(&mut self) {
        let now = self.stats.trouble();
        if now == self.trouble {
            return;
        }
        let (name, queue) = (self.stats.interface(), self.slot.queue());
        match &now {
            Some(Trouble { serves: true, why }) => tracing::error!(
                "{name}: frames of queue {queue} do not come back, and its AF_XDP socket cannot be made anew: {}; it goes on with the one that it has, and another is tried for: restart simoom if this lasts",
                without_number(why)
            ),
            Some(Trouble { serves: false, why }) => tracing::error!(
                "{name}: queue {queue} has no AF_XDP socket, and what comes there is the kernel's: {}; it is tried again and again: restart simoom if this lasts",
                without_number(why)
            ),
            None => tracing::info!("{name}: queue {queue} has an AF_XDP socket again that was made anew"),
        }
        self.trouble = now;
    }
}

/// An interface whose receive queues were opened, as many as it had.
#[derive(Debug)]
pub(crate) struct Nic {
    name: String,
    had: u32,
    /// as far as it was said
    has: u32,
}

impl Nic {
    /// None where the driver does not tell.
    pub(crate) fn new(name: String) -> Option<Nic> {
        let had = device::receive_queues(&name).ok()?;
        Some(Nic { name, had, has: had })
    }

    /// Says what has changed about its queues.
    fn look(&mut self) {
        // what the link's end makes of it is said elsewhere
        let Ok(now) = device::receive_queues(&self.name) else { return };
        if now == std::mem::replace(&mut self.has, now) {
            return;
        }
        let Nic { name, had, .. } = self;
        if now == *had {
            return tracing::info!("{name}: it has {had} receive queue(s) again, as at the start");
        }
        tracing::error!(
            "{name}: it has {now} receive queue(s) now, and had {had} at the start: frames of a queue without a thread are the kernel's, and what comes for open connections may come there; restart simoom, or set them back (ethtool -L)"
        );
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
    /// Watches the threads whose pulses `pulses` tells, and whose queues are `queues`, in the same order; some have none; and the
    /// interfaces. `tell` is told which thread hangs, and which does no longer.
    pub(crate) fn start(
        mut queues: Vec<Option<Queue>>,
        mut nics: Vec<Nic>,
        pulses: impl Fn() -> Vec<Pulse> + Send + 'static,
        tell: impl Fn(usize, bool) + Send + 'static,
    ) -> io::Result<Watchdog> {
        let stalls = Arc::new(Stalls::default());
        let (end, ended) = channel();
        let counted = stalls.clone();
        let join = std::thread::Builder::new().name("watchdog".into()).spawn(move || {
            let start = Instant::now();
            let mut looks = 0u32;
            let mut watched = vec![Watched::default(); queues.len()];
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let now = start.elapsed();
                queues.iter_mut().flatten().for_each(Queue::look);
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(NICS_EVERY) {
                    nics.iter_mut().for_each(Nic::look);
                }
                for (thread, ((watched, queue), pulse)) in watched.iter_mut().zip(&queues).zip(pulses()).enumerate() {
                    let slot = queue.as_ref().map(|queue| &*queue.slot);
                    match watched.look(now, pulse, PATIENCE) {
                        Finding::Same => {}
                        // told before it is said: who reads our log may be what hangs
                        Finding::Hangs => {
                            tell(thread, true);
                            hangs(thread, slot, &counted);
                        }
                        Finding::Recovered => {
                            tell(thread, false);
                            recovered(thread, slot, &counted);
                        }
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
            "dataplane thread {thread} hangs, and its connections wait until it comes round; this is a bug in simoom: please report it"
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
        Some(slot) => {
            tracing::warn!("dataplane thread {thread} comes round again and takes queue {} back", slot.queue())
        }
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
