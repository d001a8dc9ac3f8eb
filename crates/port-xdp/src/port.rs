//! One AF_XDP socket as a [`Port`].
//!
//! Who holds a queue's frames: its pool, the kernel (fill ring, receive ring, transmit ring, completion ring and the
//! device itself), or the caller, which may give a frame to another queue's port: that one sends it home when it is done
//! with it. A [`Ledger`] for each direction knows which chunks the kernel has from this port, so an address that comes
//! out of a ring becomes a frame only when it was given up here and not taken back: the handle is then the only one.
//! The receive side is a part of its own, which other threads may help out at ([`crate::intake`]).
//!
//! A packet of several buffers is received where the socket was bound for it (in generic mode), and is made into frames (see
//! `port::separate`). Left out: transmitting them, and receiving them from a driver.

use crate::intake::Intake;
use crate::ledger::Ledger;
use crate::packet::Packet;
use crate::ring::Descriptor;
use crate::slot::Slot;
use crate::socket::{
    Binding, Memory, NO_ROOM, Ready, Refused, Sender, Sizes, Socket, Step, TAKEN, Unbound, at, is_down, is_transient,
    may_lock,
};
use crate::stats::{Stats, Trouble};
use base::{Arena, BURST_FRAMES, Burst, Frame, Pool};
use port::{Facts, Inlet, Large, Outgoing, Port};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest frame the kernel transmits: an Ethernet header.
const SHORTEST_BYTES: usize = 14;
/// Calls in one flush at most. At 32 frames a call (kernels before 6.17) that drains a ring of 2048.
const KICKS: usize = 64;
/// Frames that the fill ring lacks before it is topped up.
const REFILL_FRAMES: u32 = BURST_FRAMES as u32;
/// Frames that the fill ring leaves in the pool. A driver with zero-copy moves what is there into a ring of its own, however long that is: without
/// them who sends by himself (TCP, ARP) would have none but what has just arrived.
const RESERVE_FRAMES: usize = BURST_FRAMES;
/// Flushes without a completion between two looks at the clock.
const PATIENCE_FLUSHES: u32 = 16;
/// Sockets opened in advance: each device reset takes one, and none can be opened once privileges are dropped.
const SPARES: usize = 8;

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
    intake: Arc<Intake>,
    /// None after a rebuild that failed, until one succeeds
    sender: Option<Sender>,
    /// what the kernel has for transmission
    ledger: Ledger,
    /// frames of it
    outstanding: u32,
    /// what a socket had that was closed. Its driver may still use these, with zero-copy write into them, until another is granted the
    /// queue: the kernel lets go of a closed socket's memory later, by a worker of its own.
    limbo: Vec<Frame>,
    /// flushes since the last completion while frames were outstanding, and when that was first looked at
    quiet_flushes: u32,
    quiet_since: Option<Instant>,
    /// There is no socket, or the interface has been down or without carrier for as long as completions are waited for: what is to be sent is
    /// dropped, as by a cable that is not plugged in. Who sends would wait for room without end otherwise, and with it all of its timers.
    cut_off: bool,
    recipe: Recipe,
    /// opened while that was permitted, for rebuilds after privileges are dropped
    spares: Vec<Unbound>,
    /// the one that could not be bound yet
    ready: Option<Ready>,
    /// for super-segments, where they are wanted
    packet: Option<Packet>,
    stats: Arc<Stats>,
}

impl XdpPort {
    pub(crate) fn new(interface: &str, facts: Facts, pool: Pool, socket: Socket, recipe: Recipe) -> XdpPort {
        let arena = pool.arena().clone();
        let stats = Arc::new(Stats::new(interface, recipe.binding.queue));
        stats.watch(socket.fd());
        let Socket { receiver, sender, .. } = socket;
        let intake = Intake::new(receiver, arena.clone(), recipe.busy_poll.is_some(), stats.clone());
        let mut port = XdpPort {
            facts,
            intake: Arc::new(intake),
            sender: Some(sender),
            ledger: Ledger::new(&arena),
            arena,
            pool,
            outstanding: 0,
            limbo: Vec::new(),
            quiet_flushes: 0,
            quiet_since: None,
            cut_off: false,
            spares: std::iter::repeat_with(|| Unbound::open(recipe.sizes)).map_while(Result::ok).take(SPARES).collect(),
            recipe,
            ready: None,
            packet: None,
            stats,
        };
        port.refill(1);
        port.count_spares();
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
        self.sender.as_ref().is_some_and(|sender| sender.napi() != 0)
    }

    /// Throws the socket away and makes it anew on the same queue, as is needed when a device reset has eaten frames. What
    /// was in its rings is lost, every frame of it comes home to the pool, and the steering program finds the new socket.
    /// [`Port::flush`] does this when completions stay away
    /// for [`OpenConfig::completion_timeout`](crate::OpenConfig::completion_timeout).
    ///
    /// # Errors
    /// The kernel's, which [`Stats::trouble`] then tells. The port goes on with the socket that it has where there is no other. Where that has
    /// gone already it receives nothing, and drops what it is to send; the next `flush` tries again after a while. A new one that the steering program
    /// is not given is offered to it by each `flush`, and the kernel has what comes until then.
    pub fn rebuild(&mut self) -> io::Result<()> {
        self.quiet_flushes = 0;
        self.quiet_since = Some(Instant::now());
        let renewed = self.renew();
        // by one that is kept nothing leaves either while it holds what does not come back: a stack that waited for room would not look
        // at its timers
        self.cut_off = self.sender.is_none() || renewed.is_err() && self.outstanding > 0;
        let serves = renewed.is_err() && self.sender.is_some();
        let outcome = renewed.and_then(|()| self.place());
        self.stats.set_trouble(outcome.as_ref().err().map(|refused| Trouble { serves, why: refused.to_string() }));
        if self.spares.len() < SPARES {
            self.spares.extend(Unbound::open(self.recipe.sizes));
        }
        self.count_spares();
        outcome.map_err(|refused| refused.why)
    }

    /// Has another socket instead of ours, which is kept until there is one.
    fn renew(&mut self) -> Result<(), Refused> {
        let ready = match self.ready() {
            Err(refused) if refused.is(NO_ROOM) && self.makes_room() => None,
            ready => Some(ready?),
        };
        self.stats.unwatch();
        self.close();
        let ready = ready.map_or_else(|| persist(NO_ROOM, || self.ready()), Ok)?;
        let socket = self.bind_again(ready)?;
        self.stats.rebuilds.add(1);
        self.leave_limbo();
        let asked = self.recipe.busy_poll;
        let busy_polling = asked.is_some_and(|(us, budget)| socket.prefer_busy_poll(us, budget).is_ok());
        self.stats.watch(socket.fd());
        let Socket { receiver, sender, .. } = socket;
        self.sender = Some(sender);
        self.intake.lock().open(receiver, busy_polling);
        self.refill(1);
        self.quiet_since = None;
        Ok(())
    }

    /// Whether another socket's memory has room at the limit on locked memory once ours is closed, and not before.
    fn makes_room(&self) -> bool {
        let counts_for = self.sender.as_ref().and_then(|sender| sender.counts_for);
        counts_for == Some(rustix::process::getuid()) && may_lock(&self.arena)
    }

    fn count_spares(&self) {
        self.stats.spares.set((self.spares.len() + usize::from(self.ready.is_some())) as u64);
    }

    /// Rings and descriptor go, and with them, soon, the kernel's use of our memory.
    fn close(&mut self) {
        let mut side = self.intake.lock();
        self.stats.lost_received.add(side.waiting() as u64);
        side.close();
        if let Some(mut sender) = self.sender.take() {
            self.stats.lost_unsent.add(sender.unsent().into());
        }
        let (ledger, limbo) = (&mut self.ledger, &mut self.limbo);
        limbo.extend(ledger.reclaim_all(&self.arena));
        side.empty(|frame| limbo.push(frame));
        self.outstanding = 0;
    }

    /// The queue is another socket's, or nobody's who goes on: every frame of those before is home.
    fn leave_limbo(&mut self) {
        let (limbo, pool) = (&mut self.limbo, &mut self.pool);
        limbo.drain(..).for_each(|frame| pool.give(frame));
    }

    /// The place of its socket in the steering program's map.
    pub fn slot(&self) -> &Arc<Slot> {
        &self.recipe.slot
    }

    /// Puts the socket, if there is one, in its place.
    fn place(&self) -> Result<(), Refused> {
        let Some(sender) = &self.sender else { return Ok(()) };
        self.recipe.slot.fill(sender.fd().as_fd()).map_err(at(Step::Place))
    }

    /// Fills the place again that is empty.
    #[cold]
    fn come_back(&mut self) {
        if self.sender.is_none() {
            return;
        }
        match self.place() {
            // that it could not be made anew is as true as it was
            Ok(()) if self.stats.trouble().is_some_and(|trouble| trouble.serves) => {}
            Ok(()) => self.stats.set_trouble(None),
            Err(refused) => {
                self.stats.kick_errors.add(1);
                self.stats.set_trouble(Some(Trouble { serves: false, why: refused.to_string() }));
            }
        }
    }

    /// A socket with memory and rings. One that was refused them is there for the next time.
    fn ready(&mut self) -> Result<Ready, Refused> {
        if let Some(ready) = self.ready.take() {
            return Ok(ready);
        }
        let spare = self.spares.pop().map_or_else(|| Unbound::open(self.recipe.sizes), Ok);
        let spare = spare.map_err(|why| Refused { step: Step::Open, why })?;
        // its own registration of the same memory: sharing would need the first socket, which may be the broken one
        spare.prepare(Memory::Register(&self.arena)).map_err(|(spare, refused)| {
            self.spares.push(spare);
            refused
        })
    }

    /// A new socket on the old queue, always the same one: another could not be opened without privileges.
    fn bind_again(&mut self, ready: Ready) -> Result<Socket, Refused> {
        let to = self.recipe.binding;
        match persist(TAKEN, || ready.bind(Memory::Register(&self.arena), to)) {
            Ok(()) => Ok(ready.bound(to)),
            Err(refused) => {
                // an interface that is gone, say: the next rebuild goes on here
                self.ready = Some(ready);
                Err(refused)
            }
        }
    }

    /// Tops the fill ring up when it lacks `least` frames, unless another thread is at it.
    #[inline]
    fn refill(&mut self, least: u32) {
        let Some(mut side) = self.intake.try_lock() else { return };
        let most = self.pool.len().saturating_sub(RESERVE_FRAMES) as u32;
        side.refill(least, most, || self.pool.take());
        if side.wake().is_err() {
            self.stats.kick_errors.add(1);
        }
    }

    /// Makes the kernel take everything from the transmit ring, in as few calls as it needs.
    #[inline]
    fn kick(&mut self) {
        let Some(sender) = &mut self.sender else { return };
        if !sender.is_zerocopy() || sender.ring.needs_wakeup() {
            let mut before = sender.ring.waiting();
            for _ in 0..KICKS {
                if before == 0 {
                    break;
                }
                self.stats.kicks.add(1);
                let sent = sender.send();
                let after = sender.ring.waiting();
                if let Err(why) = sent {
                    if !is_transient(&why) {
                        self.stats.kick_errors.add(1);
                        break;
                    }
                    if after == before {
                        break; // the device is busy: the next flush tries again
                    }
                }
                if sender.is_zerocopy() {
                    break; // the driver goes on by itself
                }
                before = after;
            }
        }
    }

    /// Takes back what the device has sent.
    #[inline]
    fn reap(&mut self) {
        let XdpPort { sender: Some(Sender { completion, .. }), arena, ledger, pool, .. } = self else { return };
        let done = completion.waiting(u32::MAX);
        if done == 0 {
            return;
        }
        for _ in 0..done {
            let address = completion.get();
            pool.give(ledger.reclaim(arena, address, 0));
        }
        completion.publish();
        self.outstanding -= done;
        self.stats.sent.add(u64::from(done));
        self.quiet_flushes = 0;
        self.quiet_since = None;
        self.cut_off = false;
    }

    /// Counts flushes that brought nothing back, and rebuilds the socket when that lasts.
    #[cold]
    fn stay_patient(&mut self) {
        self.quiet_flushes = 0;
        let now = Instant::now();
        let since = *self.quiet_since.get_or_insert(now);
        if now.duration_since(since) < self.recipe.completion_timeout {
            return;
        }
        // Nothing leaves an interface that is down: each try would cost a socket for as long as it lasts. Nor one without carrier, though
        // with zero-copy the kernel may not say so: drivers leave frames in the ring then.
        // Where there is no socket, trying costs none.
        let has_carrier = self.stats.carrier.get() == 1;
        let nothing_leaves = |sender: &mut Sender| !has_carrier || sender.send().is_err_and(|why| is_down(&why));
        if self.sender.as_mut().is_some_and(nothing_leaves) {
            self.quiet_since = Some(now);
            self.cut_off = true;
        } else if self.rebuild().is_err() {
            self.stats.kick_errors.add(1);
        }
    }
}

/// Asks for what the kernel refuses so, again for a while.
fn persist<T>(refusal: (Step, i32), mut ask: impl FnMut() -> Result<T, Refused>) -> Result<T, Refused> {
    for _ in 0..50 {
        match ask() {
            Err(refused) if refused.is(refusal) => std::thread::sleep(Duration::from_millis(2)),
            outcome => return outcome,
        }
    }
    ask()
}

impl Port for XdpPort {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    #[inline]
    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        let Some(mut side) = self.intake.try_lock() else { return 0 };
        side.receive(into, limit, |frame| self.pool.give(frame))
    }

    #[inline]
    fn waiting(&mut self) -> usize {
        // who has it takes something just now
        self.intake.try_lock().map_or(1, |mut side| side.waiting())
    }

    #[inline]
    fn transmit_room(&mut self) -> usize {
        if self.cut_off {
            return BURST_FRAMES;
        }
        let takes = self.recipe.device_takes;
        if takes.is_some_and(|takes| self.outstanding + BURST_FRAMES as u32 > takes) {
            self.reap();
        }
        let Some(sender) = &mut self.sender else { return 0 };
        // bounded by the completion ring too: a frame needs a slot to come back in
        let back = takes.unwrap_or(u32::MAX).min(sender.completion.size()) - self.outstanding;
        sender.ring.room(BURST_FRAMES as u32).min(back) as usize
    }

    #[inline]
    fn transmit(&mut self, from: &mut Burst) -> usize {
        let n = from.len().min(self.transmit_room());
        if self.cut_off {
            self.stats.cut_off.add(n as u64);
            from.drain(..n).for_each(|frame| self.pool.give(frame));
            return n;
        }
        let Some(sender) = &mut self.sender else { return 0 };
        let mut queued = 0;
        for frame in from.drain(..n) {
            // the kernel skips such a descriptor without completing it, and the frame would be lost
            if frame.len() < SHORTEST_BYTES || frame.len() > self.facts.frame_bytes {
                self.stats.unsendable.add(1);
                self.pool.give(frame);
                continue;
            }
            let len = frame.len() as u32;
            let address = self.ledger.give_up(&self.arena, frame);
            sender.ring.put(Descriptor { address, len, options: 0 });
            queued += 1;
        }
        sender.ring.publish();
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
        if self.outstanding == 0 && self.sender.is_some() {
            return Outgoing::Nothing;
        }
        self.quiet_flushes += 1;
        if self.quiet_flushes >= PATIENCE_FLUSHES {
            self.stay_patient();
        }
        if Some(self.outstanding) == self.recipe.device_takes {
            return Outgoing::Full;
        }
        let taken = self.sender.as_mut().is_some_and(|sender| sender.ring.waiting() == 0);
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
        let fetched = self.sender.as_mut().is_some_and(|sender| sender.ring.waiting() == 0);
        if fetched && packet.is_ready() { Some(packet) } else { None }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.sender.as_ref().map(|sender| sender.fd().as_fd())
    }

    fn inlet(&self) -> Option<Arc<dyn Inlet>> {
        Some(self.intake.clone())
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
        self.close();
        self.leave_limbo();
        self.intake.lock().clear(|frame| self.pool.give(frame));
    }
}
