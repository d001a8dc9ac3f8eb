//! One AF_XDP socket as a [`Port`].
//!
//! Who holds a queue's frames: its pool, the kernel (fill ring, receive ring, transmit ring, completion ring and the
//! device itself), or the caller, which may give a frame to another queue's port: that one sends it home when it is done
//! with it. [`Ledger`] knows which chunks the kernel has from this port, so an address that comes
//! out of a ring becomes a frame only when it was given up here and not taken back: the handle is then the only one.
//!
//! A packet of several buffers is received where the socket was bound for it (in generic mode), and is made into frames (see
//! `port::separate`). Left out: transmitting them, and receiving them from a driver.

#![allow(unsafe_code)]

use crate::packet::Packet;
use crate::pieces::Pieces;
use crate::ring::{Address, Descriptor, Drains, Ring};
use crate::slot::Slot;
use crate::socket::{self, Binding, Memory, Refused, Sizes, Socket, Step, Unbound, is_transient};
use crate::stats::Stats;
use base::{Arena, BURST_FRAMES, Burst, Frame, Pool};
use port::{Facts, Large, Outgoing, Port};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The descriptor is one piece of a packet that goes on in the next.
const XDP_PKT_CONTD: u32 = 1;
/// The shortest frame the kernel transmits: an Ethernet header.
const SHORTEST_BYTES: usize = 14;
/// Calls in one flush at most. At 32 frames a call (kernels before 6.17) that drains a ring of 2048.
const KICKS: usize = 64;
/// Frames that the fill ring lacks before it is topped up.
const REFILL_FRAMES: u32 = BURST_FRAMES as u32;
/// Flushes without a completion between two looks at the clock.
const PATIENCE_FLUSHES: u32 = 16;
/// Sockets opened in advance: each device reset takes one, and none can be opened once privileges are dropped.
const SPARES: usize = 8;

/// Which chunks the kernel holds from one port: a bit a chunk.
#[derive(Debug)]
struct Ledger {
    bits: Box<[u64]>,
    chunk_shift: u32,
}

impl Ledger {
    fn new(arena: &Arena) -> Ledger {
        let words = (arena.chunks() as usize).div_ceil(64);
        Ledger { bits: vec![0; words].into(), chunk_shift: arena.chunk_bytes().trailing_zeros() }
    }

    #[inline(always)]
    fn give_up(&mut self, address: u64) {
        let chunk = (address >> self.chunk_shift) as usize;
        self.bits[chunk / 64] |= 1 << (chunk % 64);
    }

    /// Whether the chunk was held; it no longer is.
    #[inline(always)]
    fn take_back(&mut self, address: u64) -> bool {
        let chunk = (address >> self.chunk_shift) as usize;
        let Some(word) = self.bits.get_mut(chunk / 64) else { return false };
        let bit = 1 << (chunk % 64);
        let held = *word & bit != 0;
        *word &= !bit;
        held
    }

    /// The addresses of all chunks held.
    fn held(&self) -> Vec<u64> {
        let chunks = 0..self.bits.len() * 64;
        let held = chunks.filter(|chunk| self.bits[chunk / 64] & 1 << (chunk % 64) != 0);
        held.map(|chunk| (chunk as u64) << self.chunk_shift).collect()
    }
}

/// How a port was made, and is made again.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) binding: Binding,
    pub(crate) sizes: Sizes,
    /// microseconds, and packets a poll
    pub(crate) busy_poll: Option<(u32, u32)>,
    /// frames that may be on their way to a device that loses what is beyond; None where the driver says when it is full
    pub(crate) device_takes: Option<u32>,
    /// after this long without any completion the device is taken to have lost the frames
    pub(crate) completion_timeout: Duration,
    pub(crate) slot: Arc<Slot>,
}

/// One receive queue and one transmit queue of an interface, on an AF_XDP socket. For one thread.
pub struct XdpPort {
    facts: Facts,
    arena: Arc<Arena>,
    pool: Pool,
    ledger: Ledger,
    /// None after a rebuild that failed, until one succeeds
    socket: Option<Socket>,
    /// frames that the kernel has for transmission
    outstanding: u32,
    pieces: Pieces,
    busy_polling: bool,
    /// flushes since the last completion while frames were outstanding, and when that was first looked at
    quiet_flushes: u32,
    quiet_since: Option<Instant>,
    recipe: Recipe,
    /// opened while that was permitted, for rebuilds after privileges are dropped
    spares: Vec<OwnedFd>,
    /// the one that could not be bound yet
    unbound: Option<Unbound>,
    /// for super-segments, where they are wanted
    packet: Option<Packet>,
    stats: Arc<Stats>,
}

impl XdpPort {
    pub(crate) fn new(interface: &str, facts: Facts, pool: Pool, socket: Socket, recipe: Recipe) -> XdpPort {
        let arena = pool.arena().clone();
        let stats = Arc::new(Stats::new(interface, recipe.binding.queue));
        stats.watch(socket.fd());
        let mut port = XdpPort {
            facts,
            ledger: Ledger::new(&arena),
            arena,
            pool,
            socket: Some(socket),
            outstanding: 0,
            pieces: Pieces::default(),
            busy_polling: recipe.busy_poll.is_some(),
            quiet_flushes: 0,
            quiet_since: None,
            recipe,
            spares: std::iter::repeat_with(socket::open).map_while(Result::ok).take(SPARES).collect(),
            unbound: None,
            packet: None,
            stats,
        };
        port.refill(1);
        port
    }

    /// What this queue has counted.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Has super-segments go through this socket.
    pub(crate) fn set_packet(&mut self, packet: Packet) {
        self.packet = Some(packet);
    }

    /// The interface's queue.
    pub fn queue(&self) -> u32 {
        self.recipe.binding.queue
    }

    /// Frames that the kernel holds for transmission.
    pub fn outstanding(&self) -> usize {
        self.outstanding as usize
    }

    /// Frames in the pool.
    pub fn free_frames(&self) -> usize {
        self.pool.len()
    }

    /// Whether the kernel knows which NAPI instance feeds this queue, without which busy polling does nothing. Some drivers
    /// never tell (veth, i40e, ixgbe), older kernels only with the first packet.
    pub fn knows_napi(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.napi() != 0)
    }

    /// Throws the socket away and makes it anew on the same queue, as is needed when a device reset has eaten frames. What
    /// was in its rings is lost, every frame of it comes home to the pool, and the steering program finds the new socket.
    /// [`Port::flush`] does this when completions stay away
    /// for [`OpenConfig::completion_timeout`](crate::OpenConfig::completion_timeout).
    ///
    /// # Errors
    /// The kernel's. The port then neither receives nor sends; the next `flush` tries again after a while.
    pub fn rebuild(&mut self) -> io::Result<()> {
        self.stats.rebuilds.add(1);
        self.stats.unwatch();
        // rings and descriptor go, and with them the kernel's use of our memory
        self.socket = None;
        for address in self.ledger.held() {
            let frame = reclaim(&self.arena, &mut self.ledger, address, 0);
            self.pool.give(frame);
        }
        self.outstanding = 0;
        self.pieces.forget(&mut self.pool);
        self.quiet_flushes = 0;
        self.quiet_since = Some(Instant::now());
        let mut socket = self.bind_again().map_err(|refused| refused.why)?;
        if let Some((us, budget)) = self.recipe.busy_poll {
            self.busy_polling = socket.prefer_busy_poll(us, budget).is_ok();
        }
        let room = socket.fill.room(u32::MAX);
        fill_up(&mut socket, &self.arena, &mut self.ledger, &mut self.pool, room);
        let registered = self.recipe.slot.fill(socket.fd().as_fd());
        self.stats.watch(socket.fd());
        self.socket = Some(socket);
        self.quiet_since = None;
        if self.spares.len() < SPARES {
            self.spares.extend(socket::open());
        }
        registered
    }

    /// The place of its socket in the steering program's map.
    pub fn slot(&self) -> &Arc<Slot> {
        &self.recipe.slot
    }

    /// Fills the place again that somebody emptied.
    #[cold]
    fn come_back(&mut self) {
        if let Some(socket) = &self.socket
            && self.recipe.slot.fill(socket.fd().as_fd()).is_err()
        {
            self.stats.kick_errors.add(1);
        }
    }

    /// A new socket on the old queue. The kernel frees a queue a moment after its socket is closed, so it is asked again
    /// for a while, always with the same socket: another could not be opened without privileges.
    fn bind_again(&mut self) -> Result<Socket, Refused> {
        // its own registration of the same memory: sharing would need the first socket, which may be the broken one
        let memory = Memory::Register(&self.arena);
        let to = self.recipe.binding;
        let unbound = match self.unbound.take() {
            Some(unbound) => unbound,
            None => {
                let spare = self.spares.pop().map_or_else(socket::open, Ok);
                let fd = spare.map_err(|why| Refused { step: Step::Open, why })?;
                // refused while the old socket's memory still counts against the limit on locked memory
                if let Err(refused) = socket::register(fd.as_fd(), &self.arena) {
                    self.spares.push(fd);
                    return Err(refused);
                }
                Unbound::new(fd, self.recipe.sizes)?
            }
        };
        let mut tries = 0;
        loop {
            match unbound.bind(memory, to) {
                Ok(()) => return unbound.bound(to),
                Err(refused) if tries < 50 && refused.why.raw_os_error() == Some(libc::EBUSY) => {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(refused) => {
                    // a link that is down, say: the next rebuild goes on here
                    self.unbound = Some(unbound);
                    return Err(refused);
                }
            }
        }
    }

    /// Tops the fill ring up when it lacks `least` frames.
    #[inline]
    fn refill(&mut self, least: u32) {
        let Some(socket) = &mut self.socket else { return };
        let room = socket.fill.room(least);
        if room >= least {
            fill_up(socket, &self.arena, &mut self.ledger, &mut self.pool, room);
        }
    }

    /// Makes the kernel take everything from the transmit ring, in as few calls as it needs.
    #[inline]
    fn kick(&mut self) {
        let Some(socket) = &mut self.socket else { return };
        if !socket.is_zerocopy() || socket.tx.needs_wakeup() {
            let mut before = socket.tx.waiting();
            for _ in 0..KICKS {
                if before == 0 {
                    break;
                }
                self.stats.kicks.add(1);
                let sent = socket.send();
                let after = socket.tx.waiting();
                if let Err(why) = sent {
                    if !is_transient(&why) {
                        self.stats.kick_errors.add(1);
                        break;
                    }
                    if after == before {
                        break; // the device is busy: the next flush tries again
                    }
                }
                if socket.is_zerocopy() {
                    break; // the driver goes on by itself
                }
                before = after;
            }
        }
        if (self.busy_polling || socket.fill.needs_wakeup()) && socket.wake_receive().is_err_and(|e| !is_transient(&e))
        {
            self.stats.kick_errors.add(1);
        }
    }

    /// Takes back what the device has sent.
    #[inline]
    fn reap(&mut self) {
        let Some(socket) = &mut self.socket else { return };
        let done = socket.completion.waiting(u32::MAX);
        if done == 0 {
            return;
        }
        home(&mut socket.completion, done, &self.arena, &mut self.ledger, &mut self.pool);
        self.outstanding -= done;
        self.stats.sent.add(u64::from(done));
        self.quiet_flushes = 0;
        self.quiet_since = None;
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

    /// Counts flushes that brought nothing back, and rebuilds the socket when that lasts.
    #[cold]
    fn stay_patient(&mut self) {
        self.quiet_flushes = 0;
        let now = Instant::now();
        let since = *self.quiet_since.get_or_insert(now);
        if now.duration_since(since) >= self.recipe.completion_timeout && self.rebuild().is_err() {
            self.stats.kick_errors.add(1);
        }
    }
}

/// Makes a frame of what the kernel gave back.
///
/// # Panics
/// When this port gave the kernel no such chunk: the rings are corrupt and nothing in them can be believed.
#[inline(always)]
fn reclaim(arena: &Arena, ledger: &mut Ledger, address: u64, len: u32) -> Frame {
    assert!(ledger.take_back(address), "the kernel gave back chunk {address:#x}, which it did not have");
    // SAFETY: the ledger had the chunk as given up by `Arena::give_up` and not taken back since, and no longer has. The kernel
    // is done with it: it put the address into a ring of ours, or (rebuild) the socket that it served is closed.
    unsafe { arena.frame_at(address, len) }
}

#[inline]
fn home(from: &mut Ring<Address, Drains>, n: u32, arena: &Arena, ledger: &mut Ledger, pool: &mut Pool) {
    for _ in 0..n {
        let address = from.get();
        pool.give(reclaim(arena, ledger, address, 0));
    }
    from.publish();
}

#[inline]
fn fill_up(socket: &mut Socket, arena: &Arena, ledger: &mut Ledger, pool: &mut Pool, room: u32) {
    for _ in 0..room {
        let Some(frame) = pool.take() else { break };
        let address = arena.give_up(frame);
        ledger.give_up(address);
        socket.fill.put(address);
    }
    socket.fill.publish();
}

impl Port for XdpPort {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    #[inline]
    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        let limit = limit.min(into.remaining_capacity());
        if self.pieces.has_ready() {
            return self.hand_over(into, limit);
        }
        let Some(socket) = &mut self.socket else { return 0 };
        let waiting = socket.rx.waiting(limit as u32).min(limit as u32);
        if waiting == 0 {
            return 0;
        }
        let before = into.len();
        for _ in 0..waiting {
            if let Some(next) = socket.rx.ahead(4) {
                base::prefetch::read(self.arena.as_ptr().wrapping_add(next.address as usize));
            }
            let got = socket.rx.get();
            let frame = reclaim(&self.arena, &mut self.ledger, got.address, got.len);
            let more = got.options & XDP_PKT_CONTD != 0;
            if more || self.pieces.is_inside() {
                self.stats.in_pieces.add(self.pieces.take(frame, more, &mut self.pool));
            } else {
                into.push(frame);
            }
            if self.pieces.has_ready() {
                break;
            }
        }
        socket.rx.publish();
        let got = into.len() - before;
        self.stats.received.add(got as u64);
        if self.pieces.has_ready() { got + self.hand_over(into, limit - got) } else { got }
    }

    #[inline]
    fn waiting(&mut self) -> usize {
        self.socket.as_mut().map_or(0, |socket| socket.rx.waiting(u32::MAX) as usize)
    }

    #[inline]
    fn transmit_room(&mut self) -> usize {
        let takes = self.recipe.device_takes;
        if takes.is_some_and(|takes| self.outstanding + BURST_FRAMES as u32 > takes) {
            self.reap();
        }
        let Some(socket) = &mut self.socket else { return 0 };
        // bounded by the completion ring too: a frame needs a slot to come back in
        let back = takes.unwrap_or(u32::MAX).min(socket.completion.size()) - self.outstanding;
        socket.tx.room(BURST_FRAMES as u32).min(back) as usize
    }

    #[inline]
    fn transmit(&mut self, from: &mut Burst) -> usize {
        let n = from.len().min(self.transmit_room());
        let Some(socket) = &mut self.socket else { return 0 };
        let mut queued = 0;
        for frame in from.drain(..n) {
            // the kernel skips such a descriptor without completing it, and the frame would be lost
            if frame.len() < SHORTEST_BYTES || frame.len() > self.facts.frame_bytes {
                self.stats.unsendable.add(1);
                self.pool.give(frame);
                continue;
            }
            let len = frame.len() as u32;
            let address = self.arena.give_up(frame);
            self.ledger.give_up(address);
            socket.tx.put(Descriptor { address, len, options: 0 });
            queued += 1;
        }
        socket.tx.publish();
        self.outstanding += queued;
        n
    }

    #[inline]
    fn flush(&mut self) -> Outgoing {
        self.kick();
        self.reap();
        self.pool.bring_home();
        self.refill(REFILL_FRAMES);
        if self.recipe.slot.is_empty() {
            self.come_back();
        }
        if self.outstanding == 0 && self.socket.is_some() {
            return Outgoing::Nothing;
        }
        self.quiet_flushes += 1;
        if self.quiet_flushes >= PATIENCE_FLUSHES {
            self.stay_patient();
        }
        if Some(self.outstanding) == self.recipe.device_takes {
            return Outgoing::Full;
        }
        let taken = self.socket.as_mut().is_some_and(|socket| socket.tx.waiting() == 0);
        if taken && !self.pool.is_empty() { Outgoing::Underway } else { Outgoing::Waiting }
    }

    #[inline]
    fn take(&mut self) -> Option<Frame> {
        if self.pool.is_empty() {
            self.reap();
        }
        self.pool.take()
    }

    #[inline]
    fn give(&mut self, frame: Frame) {
        self.pool.give(frame);
    }

    fn large(&mut self) -> Option<&mut dyn Large> {
        let packet = self.packet.as_mut()?;
        // what the device has not fetched yet would be overtaken
        let fetched = self.socket.as_mut().is_some_and(|socket| socket.tx.waiting() == 0);
        if fetched && packet.is_ready() { Some(packet) } else { None }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(|socket| socket.fd().as_fd())
    }
}

impl std::fmt::Debug for XdpPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let XdpPort { outstanding, pool, .. } = self;
        let (queue, ifindex) = (self.queue(), self.recipe.binding.ifindex);
        write!(f, "XdpPort(queue {queue} of interface {ifindex}, {outstanding} frames going out, {} free)", pool.len())
    }
}

impl Drop for XdpPort {
    fn drop(&mut self) {
        // the kernel lets go first; then every frame is home, and the arena can be unmapped with the last port
        self.stats.unwatch();
        self.socket = None;
        self.pieces.clear(&mut self.pool);
        for address in self.ledger.held() {
            let frame = reclaim(&self.arena, &mut self.ledger, address, 0);
            self.pool.give(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_comes_back_once_and_only_if_it_was_given() {
        let (arena, _frames) = Arena::new(130, 4096).unwrap();
        let mut ledger = Ledger::new(&arena);
        for chunk in [0, 63, 64, 129] {
            ledger.give_up(chunk * 4096 + 256);
        }
        assert_eq!(ledger.held(), [0, 63 * 4096, 64 * 4096, 129 * 4096]);
        // the kernel may name any byte of the chunk
        assert!(ledger.take_back(64 * 4096 + 4095));
        assert!(!ledger.take_back(64 * 4096));
        assert!(!ledger.take_back(65 * 4096));
        assert!(!ledger.take_back(u64::MAX));
        assert_eq!(ledger.held(), [0, 63 * 4096, 129 * 4096]);
    }
}
