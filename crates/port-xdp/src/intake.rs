//! The receive side of a port: what arrives at its socket, and the chunks that the device has for it. Its thread has it in common
//! with those that help it out ([`port::Inlet`]); whoever has the lock receives.

use crate::ledger::Ledger;
use crate::pieces::Pieces;
use crate::socket::{Receiver, is_transient};
use crate::stats::Stats;
use base::{Arena, Burst, Frame};
use port::{Inlet, Waiting};
use rustix::event::epoll;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// The descriptor is one piece of a packet that goes on in the next.
const XDP_PKT_CONTD: u32 = 1;

/// What those who take turns share.
#[derive(Debug)]
pub(crate) struct Intake(Mutex<Side>);

/// The side itself.
#[derive(Debug)]
pub(crate) struct Side {
    /// None once the socket is gone
    receiver: Option<Receiver>,
    arena: Arc<Arena>,
    ledger: Ledger,
    pieces: Pieces,
    /// the device is only asked for frames by calls
    busy_polling: bool,
    stats: Arc<Stats>,
}

impl Intake {
    pub(crate) fn new(receiver: Receiver, arena: Arc<Arena>, busy_polling: bool, stats: Arc<Stats>) -> Intake {
        let (ledger, pieces) = (Ledger::new(&arena), Pieces::default());
        Intake(Mutex::new(Side { receiver: Some(receiver), arena, ledger, pieces, busy_polling, stats }))
    }

    /// The side, as soon as nobody else has it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Side> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The side, unless somebody else has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Side>> {
        match self.0.try_lock() {
            Ok(side) => Some(side),
            Err(TryLockError::Poisoned(side)) => Some(side.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Side {
    /// The socket is closed: what the kernel had of it, and what had come of a packet. Its own descriptor must be closed with the
    /// other side.
    pub(crate) fn close(&mut self) {
        self.receiver = None;
    }

    /// After [`Side::close`] and when the socket is gone: every chunk goes home.
    pub(crate) fn empty(&mut self, mut home: impl FnMut(Frame)) {
        debug_assert!(self.receiver.is_none(), "the kernel still has the chunks");
        self.ledger.reclaim_all(&self.arena).into_iter().for_each(&mut home);
        self.pieces.forget(&mut home);
    }

    /// Frames that wait for room with the caller go home, too.
    pub(crate) fn clear(&mut self, mut home: impl FnMut(Frame)) {
        self.pieces.clear(&mut home);
    }

    /// A new socket.
    pub(crate) fn open(&mut self, receiver: Receiver, busy_polling: bool) {
        (self.receiver, self.busy_polling) = (Some(receiver), busy_polling);
    }

    /// Frames that [`Side::receive`] would give now, pieces apart.
    #[inline]
    pub(crate) fn waiting(&mut self) -> usize {
        self.receiver.as_mut().map_or(0, |receiver| receiver.ring.waiting(u32::MAX) as usize)
    }

    #[inline]
    pub(crate) fn receive(&mut self, into: &mut Burst, limit: usize, mut home: impl FnMut(Frame)) -> usize {
        let limit = limit.min(into.remaining_capacity());
        if self.pieces.has_ready() {
            return self.hand_over(into, limit);
        }
        let Some(receiver) = &mut self.receiver else { return 0 };
        let waiting = receiver.ring.waiting(limit as u32).min(limit as u32);
        if waiting == 0 {
            return 0;
        }
        let before = into.len();
        for _ in 0..waiting {
            if let Some(next) = receiver.ring.ahead(4) {
                base::prefetch::read(self.arena.as_ptr().wrapping_add(next.address as usize));
            }
            let got = receiver.ring.get();
            let frame = self.ledger.reclaim(&self.arena, got.address, got.len);
            let more = got.options & XDP_PKT_CONTD != 0;
            if more || self.pieces.is_inside() {
                self.stats.in_pieces.add(self.pieces.take(frame, more, &mut home));
            } else {
                into.push(frame);
            }
            if self.pieces.has_ready() {
                break;
            }
        }
        receiver.ring.publish();
        let got = into.len() - before;
        self.stats.received.add(got as u64);
        if self.pieces.has_ready() { got + self.hand_over(into, limit - got) } else { got }
    }

    /// Hands over frames that were pieces of a packet.
    #[cold]
    fn hand_over(&mut self, into: &mut Burst, limit: usize) -> usize {
        let before = into.len();
        into.extend(std::iter::from_fn(|| self.pieces.next_ready()).take(limit));
        let got = into.len() - before;
        self.stats.received.add(got as u64);
        got
    }

    /// Tops the fill ring up when it lacks `least` frames, with `most` at most.
    #[inline]
    pub(crate) fn refill(&mut self, least: u32, most: u32, mut supply: impl FnMut() -> Option<Frame>) {
        let Side { receiver: Some(Receiver { fill, .. }), arena, ledger, .. } = self else { return };
        let room = fill.room(least);
        if room < least {
            return;
        }
        for _ in 0..room.min(most) {
            let Some(frame) = supply() else { break };
            fill.put(ledger.give_up(arena, frame));
        }
        fill.publish();
    }

    /// Makes the kernel look at the fill ring, and poll the device, where it waits for that.
    #[inline]
    pub(crate) fn wake(&mut self) -> io::Result<()> {
        let Some(receiver) = &mut self.receiver else { return Ok(()) };
        if !self.busy_polling && !receiver.fill.needs_wakeup() {
            return Ok(());
        }
        receiver.wake().or_else(|why| if is_transient(&why) { Ok(()) } else { Err(why) })
    }
}

impl Waiting for Side {
    fn receive(&mut self, into: &mut Burst, limit: usize, home: &mut dyn FnMut(Frame)) -> usize {
        self.receive(into, limit, home)
    }

    fn waiting(&mut self) -> usize {
        Side::waiting(self)
    }

    fn refill(&mut self, supply: &mut dyn FnMut() -> Option<Frame>) {
        self.refill(1, u32::MAX, supply);
        if self.wake().is_err() {
            self.stats.kick_errors.add(1);
        }
    }
}

impl Inlet for Intake {
    fn lease(&self, work: &mut dyn FnMut(&mut dyn Waiting)) -> bool {
        let Some(mut side) = self.try_lock() else { return false };
        work(&mut *side);
        true
    }

    fn watch(&self, instance: BorrowedFd<'_>, on: bool) -> bool {
        // under the lock, lest the descriptor be closed; a closed one is forgotten by the instance. Who has it may be kept from its
        // processor: to begin can be asked for again, to end cannot
        let side = if on { self.try_lock() } else { Some(self.lock()) };
        let Some(receiver) = side.as_ref().and_then(|side| side.receiver.as_ref()) else { return !on };
        let fd = receiver.fd().as_fd();
        if on {
            let data = epoll::EventData::new_u64(fd.as_raw_fd() as u64);
            matches!(epoll::add(instance, fd, data, epoll::EventFlags::IN), Ok(()) | Err(Errno::EXIST))
        } else {
            // what stands no longer is refused
            let _ = epoll::delete(instance, fd);
            true
        }
    }
}
