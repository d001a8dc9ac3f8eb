//! What one queue has counted: by its thread, and by the kernel at its socket.

use crate::socket::{Statistics, statistics};
use base::Counter;
use base::counter::{Figure, Report};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The counts of one queue; shared with whoever shows them.
#[derive(Debug)]
#[repr(align(128))]
pub struct Stats {
    interface: String,
    queue: String,
    /// frames handed to the caller
    pub received: Counter,
    /// frames that the device has sent
    pub sent: Counter,
    /// calls to the kernel to transmit
    pub kicks: Counter,
    /// those that failed for a reason that does not pass by itself
    pub kick_errors: Counter,
    /// pieces of packets larger than a frame, which were refused
    pub in_pieces: Counter,
    /// frames shorter than an Ethernet header or longer than a chunk, which were not sent
    pub unsendable: Counter,
    /// frames dropped instead of sent, since there was no socket or the interface had been down or without carrier for long
    pub cut_off: Counter,
    /// super-segments that the device took
    pub large_sends: Counter,
    /// bytes of payload in them
    pub large_bytes: Counter,
    /// those that it refused, which went as frames
    pub large_refused: Counter,
    /// times the socket was made anew
    pub rebuilds: Counter,
    /// sockets that were opened in advance and are left
    pub spares: Counter,
    /// 1 while the interface is up and has carrier, as [`Handle::follow`](crate::Handle::follow) found last: who does not call it has what was
    /// at the opening
    pub carrier: Counter,
    /// frames that went with sockets: those that had come, and those that the device had not taken
    pub lost_received: Counter,
    /// as above
    pub lost_unsent: Counter,
    kernel: Mutex<Kernel>,
    trouble: Mutex<Option<Trouble>>,
}

/// Why a queue's socket could not be made anew, or not be put in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// the old one goes on; otherwise the queue has none that the steering program knows, and what comes there is the kernel's
    pub serves: bool,
    /// what the kernel refused, in words
    pub why: String,
}

/// The kernel's counts die with a socket, so those of sockets gone are kept.
#[derive(Debug, Default)]
struct Kernel {
    /// weak: a reader must not keep a queue from being freed
    socket: Weak<OwnedFd>,
    before: Statistics,
}

impl Kernel {
    fn now(&self) -> Statistics {
        let now = self.socket.upgrade().and_then(|socket| statistics(socket.as_fd()).ok()).unwrap_or_default();
        let old = self.before;
        Statistics {
            rx_dropped: old.rx_dropped + now.rx_dropped,
            rx_invalid: old.rx_invalid + now.rx_invalid,
            tx_invalid: old.tx_invalid + now.tx_invalid,
            rx_ring_full: old.rx_ring_full + now.rx_ring_full,
            fill_empty: old.fill_empty + now.fill_empty,
            tx_empty: old.tx_empty + now.tx_empty,
        }
    }
}

impl Stats {
    pub(crate) fn new(interface: &str, queue: u32) -> Stats {
        Stats {
            interface: interface.to_owned(),
            queue: queue.to_string(),
            received: Counter::new(),
            sent: Counter::new(),
            kicks: Counter::new(),
            kick_errors: Counter::new(),
            in_pieces: Counter::new(),
            unsendable: Counter::new(),
            cut_off: Counter::new(),
            large_sends: Counter::new(),
            large_bytes: Counter::new(),
            large_refused: Counter::new(),
            rebuilds: Counter::new(),
            spares: Counter::new(),
            carrier: Counter::new(),
            lost_received: Counter::new(),
            lost_unsent: Counter::new(),
            kernel: Mutex::default(),
            trouble: Mutex::default(),
        }
    }

    /// The interface's name.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Why the socket could not be made anew, or not be put in its place, when that was tried last; None where it could.
    pub fn trouble(&self) -> Option<Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_trouble(&self, trouble: Option<Trouble>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    pub(crate) fn watch(&self, socket: &Arc<OwnedFd>) {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner).socket = Arc::downgrade(socket);
    }

    pub(crate) fn unwatch(&self) {
        let mut kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        kernel.before = kernel.now();
        kernel.socket = Weak::new();
    }

    /// Frames of ours that the kernel dropped at the socket: no free frame or too large, and receive ring full.
    pub fn dropped_by_kernel(&self) -> (u64, u64) {
        let now = self.kernel.lock().unwrap_or_else(PoisonError::into_inner).now();
        (now.rx_dropped, now.rx_ring_full)
    }
}

impl Report for Stats {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let (interface, queue) = (("interface", self.interface.as_str()), ("queue", self.queue.as_str()));
        let kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner).now();
        let plain = [
            ("xdp_frames_received_total", "frames taken from the receive ring", self.received.get()),
            ("xdp_frames_sent_total", "frames that the device has sent", self.sent.get()),
            ("xdp_kicks_total", "calls to the kernel to transmit", self.kicks.get()),
            ("xdp_kick_errors_total", "calls to the kernel to transmit that failed", self.kick_errors.get()),
            ("large_sends_total", "TCP super-segments that the device took to cut", self.large_sends.get()),
            ("large_send_bytes_total", "bytes of payload in super-segments", self.large_bytes.get()),
            ("large_sends_refused_total", "super-segments refused, which went as frames", self.large_refused.get()),
            ("xdp_socket_rebuilds_total", "sockets made anew after completions stayed away", self.rebuilds.get()),
            ("xdp_fill_ring_empty_total", "times the kernel found the fill ring empty", kernel.fill_empty),
        ];
        for (name, help, value) in plain {
            show(Figure { name, help, gauge: false, labels: &[interface, queue], value });
        }
        let unserved = self.trouble().is_some_and(|trouble| !trouble.serves);
        let gauges = [
            ("xdp_spare_sockets", "sockets opened in advance that are left for resets", self.spares.get()),
            ("xdp_carrier", "1 while the interface is up and has carrier", self.carrier.get()),
            ("xdp_queue_without_socket", "1 while the queue has no socket, which the kernel refuses", unserved.into()),
        ];
        for (name, help, value) in gauges {
            show(Figure { name, help, gauge: true, labels: &[interface, queue], value });
        }
        for (direction, counter) in [("in", &self.lost_received), ("out", &self.lost_unsent)] {
            let labels = &[interface, queue, ("direction", direction)];
            let help = "frames dropped with a socket that was made anew";
            show(Figure { name: "xdp_rebuild_frames_dropped_total", help, gauge: false, labels, value: counter.get() });
        }
        let drops = [
            ("no frame or too large", kernel.rx_dropped),
            ("receive ring full", kernel.rx_ring_full),
            ("invalid fill descriptor", kernel.rx_invalid),
            ("invalid transmit descriptor", kernel.tx_invalid),
            ("packet in pieces", self.in_pieces.get()),
            ("unsendable length", self.unsendable.get()),
            ("nothing leaves", self.cut_off.get()),
        ];
        for (reason, value) in drops {
            let labels = &[interface, queue, ("reason", reason)];
            let help = "frames of ours dropped at the AF_XDP socket";
            show(Figure { name: "xdp_frames_dropped_total", help, gauge: false, labels, value });
        }
    }
}
