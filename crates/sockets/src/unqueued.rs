//! What the kernel drops before we get it.

use crate::sys;
use base::Counter;
use base::counter::{Figure, Report};
use socket2::Socket;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Datagrams that the kernel has not queued at an engine's sockets. It counts them by itself; they are read when they are to be shown.
#[derive(Debug)]
pub struct Unqueued {
    total: Counter,
    sockets: Mutex<Vec<Watched>>,
}

/// A socket, as long as somebody has it open.
#[derive(Debug)]
struct Watched {
    socket: Weak<Socket>,
    /// what the kernel had counted last, which wraps
    seen: u32,
}

impl Unqueued {
    /// Counts from now on.
    pub(crate) fn new<'s>(sockets: impl Iterator<Item = &'s Arc<Socket>>) -> Unqueued {
        let watch = |socket: &Arc<Socket>| {
            let seen = sys::unqueued(socket.as_fd()).unwrap_or_default();
            Watched { socket: Arc::downgrade(socket), seen }
        };
        Unqueued { total: Counter::default(), sockets: Mutex::new(sockets.map(watch).collect()) }
    }
}

impl Report for Unqueued {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        for Watched { socket, seen } in &mut *sockets {
            // what one that is closed has dropped since it was looked at last is not known
            let Some(socket) = socket.upgrade() else { continue };
            let Ok(now) = sys::unqueued(socket.as_fd()) else { continue };
            self.total.add(u64::from(now.wrapping_sub(std::mem::replace(seen, now))));
        }
        show(Figure {
            name: "sockets_datagrams_unqueued_total",
            help: "datagrams that the kernel dropped for want of room in a socket's receive buffer, or for a wrong checksum",
            gauge: false,
            labels: &[],
            value: self.total.get(),
        });
    }
}
