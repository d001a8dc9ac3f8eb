//! Ports without a queue.
//!
//! Where there are more threads than queues, some have a port at which nothing arrives: a [`Guest`]. What it is to send goes over a ring to
//! the port of a thread that has a queue, its [`Host`], which puts it into the transmit ring; handles go over, no bytes. What the
//! guest's thread receives comes to it from other threads, which is not this module's.
//!
//! ```text
//! guest's thread   transmit -> ring -> carry   host's thread -> device -> the pool whose the frame is
//! ```
//!
//! A full ring pushes back: the guest has no room to transmit, so its thread takes in nothing. Nothing is dropped here, and nobody waits
//! for anybody. Whoever gives a flow to another thread must know that nothing of it waits in the ring: [`Port::has_left`](crate::Port::has_left) says so.
//!
//! A guest has free frames of its own, from a pool that is joined with those of the hosts ([`base::Pool::join`]), so every frame finds
//! its way home, whichever port is done with it.
//!
//! Left out: a guest neither has large sends nor gathers, since what went past the ring would overtake what waits in it. A guest whose host does
//! not run waits; it cannot send through another queue, and counts for how many calls it had no room.

use crate::{Facts, Gather, Inlet, Large, Outgoing, Port};
use base::counter::{Figure, Report};
use base::ring::{Consumer, Producer, ring};
use base::{BURST_FRAMES, Burst, Counter, Frame, Pool};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Frames that wait between a guest and its host at most.
pub const RING_FRAMES: usize = 1024;

/// What a guest counts.
#[derive(Debug)]
#[repr(align(128))]
pub struct Stats {
    thread: String,
    /// frames that went to the host
    pub sent: Counter,
    /// looks that found the ring to the host full
    pub full: Counter,
}

impl Report for Stats {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let labels = [("thread", self.thread.as_str())];
        let mut count = |name, help, counter: &Counter| {
            show(Figure { name, help, gauge: false, labels: &labels, value: counter.get() });
        };
        let sent = "frames that a thread without a queue sent through another's";
        count("dataplane_guest_frames_total", sent, &self.sent);
        let full = "looks at which the ring to the thread with the queue was full";
        count("dataplane_guest_stalls_total", full, &self.full);
    }
}

/// The port of a thread without a queue.
#[derive(Debug)]
pub struct Guest {
    facts: Facts,
    pool: Pool,
    /// whose port sends, among the threads of the interface
    host: usize,
    out: Producer<Frame>,
    /// frames that went into the ring, modulo 2^32
    pushed: u32,
    /// how many of those the host has handed to the device
    left: Arc<AtomicU32>,
    stats: Arc<Stats>,
}

impl Guest {
    /// What it has counted.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Frames in its pool.
    pub fn free_frames(&self) -> usize {
        self.pool.len()
    }
}

impl Port for Guest {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn receive(&mut self, _: &mut Burst, _: usize) -> usize {
        0
    }

    #[inline]
    fn transmit_room(&mut self) -> usize {
        let room = self.out.room(BURST_FRAMES);
        if room == 0 {
            self.stats.full.add(1);
        }
        room
    }

    #[inline]
    fn transmit(&mut self, from: &mut Burst) -> usize {
        // what does not fit must stay in `from`
        let n = self.out.room(from.len()).min(from.len());
        let sent = self.out.push_all(&mut from.drain(..n));
        self.pushed = self.pushed.wrapping_add(sent as u32);
        self.stats.sent.add(sent as u64);
        sent
    }

    #[inline]
    fn flush(&mut self) -> Outgoing {
        self.pool.bring_home();
        if self.has_left() {
            Outgoing::Nothing
        } else if self.out.room(1) == 0 {
            Outgoing::Full
        } else if self.pool.is_empty() {
            Outgoing::Waiting
        } else {
            Outgoing::Underway
        }
    }

    #[inline]
    fn take(&mut self) -> Option<Frame> {
        self.pool.take()
    }

    #[inline]
    fn give(&mut self, frame: Frame) {
        self.pool.give(frame);
    }

    fn host(&self) -> Option<usize> {
        Some(self.host)
    }

    #[inline]
    fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire) == self.pushed
    }
}

/// A guest as its host sees it.
#[derive(Debug)]
struct Lodger {
    out: Consumer<Frame>,
    /// frames that were taken from the ring, modulo 2^32
    taken: u32,
    left: Arc<AtomicU32>,
    /// frames that waited when the room was last divided, and wait still
    asks: usize,
}

impl Lodger {
    /// Puts so many of the frames that it asks for into the port's ring, which has room for them.
    fn hand_on<P: Port>(&mut self, frames: usize, port: &mut P) {
        let (mut burst, mut left) = (Burst::new(), frames);
        while left > 0 {
            let some = left.min(burst.remaining_capacity());
            burst.extend(std::iter::from_fn(|| self.out.pop()).take(some));
            port.transmit(&mut burst);
            debug_assert!(burst.is_empty(), "the port has taken less than it had room for");
            // there is no way back into the ring
            burst.drain(..).for_each(|frame| port.give(frame));
            left -= some;
        }
        self.taken = self.taken.wrapping_add(frames as u32);
        self.asks -= frames;
    }
}

/// A port that sends for guests, too.
#[derive(Debug)]
pub struct Host<P: Port> {
    port: P,
    lodgers: Vec<Lodger>,
    /// whose turn it is
    next: usize,
    /// there was no room for all that waited: they are first the next time
    behind: bool,
}

impl<P: Port> Host<P> {
    /// A port without guests yet.
    fn new(port: P) -> Host<P> {
        Host { port, lodgers: Vec::new(), next: 0, behind: false }
    }

    /// Half of the room is theirs when they could not go before what the host's own thread sent.
    #[inline]
    fn let_pass(&mut self) {
        if std::mem::take(&mut self.behind) {
            let room = self.port.transmit_room();
            self.hand_on(room.div_ceil(2));
        }
    }

    /// Puts up to `room` of the guests' frames into the port's ring; how many. Each has an equal part, and what one does not need the others
    /// have; who is first when that does not come out even is behind the last that was given something.
    fn hand_on(&mut self, room: usize) -> usize {
        let Host { port, lodgers, next, .. } = self;
        let (count, mut left) = (lodgers.len(), room);
        // no more than waits now: a guest that goes on sending must not keep the thread here
        lodgers.iter_mut().for_each(|lodger| lodger.asks = lodger.out.waiting(usize::MAX));
        while left > 0 {
            let asking = lodgers.iter().filter(|lodger| lodger.asks > 0).count();
            let Some(part) = left.checked_div(asking) else { break };
            let first = *next;
            for at in (0..count).map(|n| (first + n) % count) {
                let some = lodgers[at].asks.min(part.max(1)).min(left);
                if some > 0 {
                    lodgers[at].hand_on(some, port);
                    left -= some;
                    *next = (at + 1) % count;
                }
            }
        }
        room - left
    }
}

impl<P: Port> Port for Host<P> {
    fn facts(&self) -> &Facts {
        self.port.facts()
    }

    #[inline]
    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        self.port.receive(into, limit)
    }

    #[inline]
    fn waiting(&mut self) -> usize {
        self.port.waiting()
    }

    #[inline]
    fn transmit_room(&mut self) -> usize {
        self.let_pass();
        self.port.transmit_room()
    }

    #[inline]
    fn transmit(&mut self, from: &mut Burst) -> usize {
        self.let_pass();
        self.port.transmit(from)
    }

    #[inline]
    fn flush(&mut self) -> Outgoing {
        let outgoing = self.port.flush();
        for lodger in &self.lodgers {
            if lodger.left.load(Ordering::Relaxed) != lodger.taken {
                lodger.left.store(lodger.taken, Ordering::Release);
            }
        }
        if self.behind { outgoing.max(Outgoing::Waiting) } else { outgoing }
    }

    #[inline]
    fn take(&mut self) -> Option<Frame> {
        self.port.take()
    }

    #[inline]
    fn give(&mut self, frame: Frame) {
        self.port.give(frame);
    }

    fn large(&mut self) -> Option<&mut dyn Large> {
        self.port.large()
    }

    fn gather(&mut self) -> Option<&mut dyn Gather> {
        self.port.gather()
    }

    fn inlet(&self) -> Option<Arc<dyn Inlet>> {
        self.port.inlet()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.port.descriptor()
    }

    #[inline]
    fn carry(&mut self) -> usize {
        if !self.is_asked() {
            return 0;
        }
        let room = self.port.transmit_room();
        let carried = self.hand_on(room);
        self.behind = self.is_asked();
        carried
    }

    #[inline]
    fn is_asked(&mut self) -> bool {
        self.lodgers.iter_mut().any(|lodger| lodger.out.waiting(1) > 0)
    }
}

impl<P: Port> Drop for Host<P> {
    fn drop(&mut self) {
        // what waits is not sent any more; it goes home
        for lodger in &mut self.lodgers {
            while let Some(frame) = lodger.out.pop() {
                self.port.give(frame);
            }
        }
    }
}

/// The port of a thread of an interface that may have fewer queues than threads.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a thread has one")]
pub enum Housed<P: Port> {
    /// with a queue
    Host(Host<P>),
    /// without one
    Guest(Guest),
}

/// The ports of as many threads as there are queues and pools: those with a queue first, then for each of `pools` one without, whose
/// host is the next in turn. `first` is the number of the first thread among all, for what is shown. The pools are joined with the ports' own.
///
/// # Panics
/// When there are guests and nobody to be their host.
pub fn house<P: Port>(ports: Vec<P>, pools: Vec<Pool>, first: usize) -> Vec<Housed<P>> {
    let mut hosts: Vec<Host<P>> = ports.into_iter().map(Host::new).collect();
    let mut guests = Vec::with_capacity(pools.len());
    for (n, pool) in pools.into_iter().enumerate() {
        let (queues, thread) = (hosts.len(), (first + hosts.len() + n).to_string());
        let host = n.checked_rem(queues).expect("a queue for the guests");
        let (out, into) = ring(RING_FRAMES);
        let left = Arc::new(AtomicU32::new(0));
        hosts[host].lodgers.push(Lodger { out: into, taken: 0, left: left.clone(), asks: 0 });
        let facts = hosts[host].port.facts().clone();
        let stats = Arc::new(Stats { thread, sent: Counter::default(), full: Counter::default() });
        guests.push(Guest { facts, pool, host, out, pushed: 0, left, stats });
    }
    hosts.into_iter().map(Housed::Host).chain(guests.into_iter().map(Housed::Guest)).collect()
}

impl<P: Port> Housed<P> {
    /// The port with the queue, where there is one.
    pub fn queue(&self) -> Option<&P> {
        match self {
            Housed::Host(host) => Some(&host.port),
            Housed::Guest(_) => None,
        }
    }

    /// The same, to be changed.
    pub fn queue_mut(&mut self) -> Option<&mut P> {
        match self {
            Housed::Host(host) => Some(&mut host.port),
            Housed::Guest(_) => None,
        }
    }

    /// The guest.
    pub fn guest(&self) -> Option<&Guest> {
        match self {
            Housed::Host(_) => None,
            Housed::Guest(guest) => Some(guest),
        }
    }
}

/// The same of both kinds.
macro_rules! either {
    ($housed:expr, $port:ident => $what:expr) => {
        match $housed {
            Housed::Host($port) => $what,
            Housed::Guest($port) => $what,
        }
    };
}

impl<P: Port> Port for Housed<P> {
    fn facts(&self) -> &Facts {
        either!(self, port => port.facts())
    }

    #[inline]
    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        either!(self, port => port.receive(into, limit))
    }

    #[inline]
    fn waiting(&mut self) -> usize {
        either!(self, port => port.waiting())
    }

    #[inline]
    fn transmit_room(&mut self) -> usize {
        either!(self, port => port.transmit_room())
    }

    #[inline]
    fn transmit(&mut self, from: &mut Burst) -> usize {
        either!(self, port => port.transmit(from))
    }

    #[inline]
    fn flush(&mut self) -> Outgoing {
        either!(self, port => port.flush())
    }

    #[inline]
    fn take(&mut self) -> Option<Frame> {
        either!(self, port => port.take())
    }

    #[inline]
    fn give(&mut self, frame: Frame) {
        either!(self, port => port.give(frame));
    }

    fn large(&mut self) -> Option<&mut dyn Large> {
        either!(self, port => port.large())
    }

    fn gather(&mut self) -> Option<&mut dyn Gather> {
        either!(self, port => port.gather())
    }

    fn inlet(&self) -> Option<Arc<dyn Inlet>> {
        either!(self, port => port.inlet())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        either!(self, port => port.descriptor())
    }

    fn host(&self) -> Option<usize> {
        either!(self, port => port.host())
    }

    #[inline]
    fn has_left(&self) -> bool {
        either!(self, port => port.has_left())
    }

    #[inline]
    fn carry(&mut self) -> usize {
        either!(self, port => port.carry())
    }

    #[inline]
    fn is_asked(&mut self) -> bool {
        either!(self, port => port.is_asked())
    }
}

#[cfg(test)]
mod tests;
