//! One cycle: what was kept is sent, a burst is received, answered and sent.

mod standing;

use crate::Counters;
use crate::crossing::Crossing;
use crate::tap::{Direction, Tap};
use app::Service;
use base::{BURST_FRAMES, Burst, Frame, Instant};
use port::{Gather, Inlet, Large, Outgoing, Piece, Port, Segmentation, Supply};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;
use wire::flow::Groups;

/// What belongs to a flow group, on its way to another thread's stack.
pub type Parcel = Box<dyn Any + Send>;

/// What the loop needs of a stack. Crate `stack` has the one that is served with; tests of the loop have simpler ones.
pub trait Floor {
    /// Takes every frame of `rx`; each ends in `tx`, to be sent, or in `free`, to go home. `tx` has room for all of them.
    fn input<S: Service>(&mut self, now: Instant, rx: &mut Burst, tx: &mut Burst, free: &mut Burst, service: &mut S);

    /// The same, but what the service answers is copied into frames of `spare` first; each that was used is exchanged for the
    /// received one, so `spare` keeps its length and goes home afterwards. A floor that only ever answers in place need not
    /// have it.
    fn input_copied<S: Service>(
        &mut self,
        now: Instant,
        rx: &mut Burst,
        tx: &mut Burst,
        free: &mut Burst,
        spare: &mut Burst,
        service: &mut S,
    ) {
        let _ = spare;
        self.input(now, rx, tx, free, service);
    }

    /// Does what is due by `now`, telling the service what it must know of it and putting frames of `supply` into `tx` as far
    /// as there is room, or using its large sends; when it wants to be asked next.
    fn poll<S: Service>(
        &mut self,
        now: Instant,
        supply: &mut dyn Supply,
        tx: &mut Burst,
        service: &mut S,
    ) -> Option<Instant>;

    /// The receive queue was about full at `now`: some of what came may have been lost here.
    fn overrun(&mut self, now: Instant) {
        let _ = now;
    }

    /// Once, before the first burst, where several threads serve one interface: how flows fall into groups.
    fn set_groups(&mut self, groups: &Arc<Groups>) {
        let _ = groups;
    }

    /// The same, behind that: which of them are this thread's.
    fn set_ours(&mut self, ours: Arc<dyn stack::Ours>) {
        let _ = ours;
    }

    /// Whether a flow group can go to another thread without harm.
    fn can_depart<S: Service>(&self, group: u16, service: &S) -> bool {
        let _ = (group, service);
        true
    }

    /// Takes out everything that belongs to a flow group, for [`Floor::arrive`] of another thread's floor. One that keeps nothing
    /// of a flow need not have the two.
    fn depart<S: Service>(&mut self, now: Instant, group: u16, service: &mut S) -> Parcel {
        let _ = (now, group, service);
        Box::new(())
    }

    /// Takes in what another floor gave.
    fn arrive<S: Service>(&mut self, now: Instant, parcel: Parcel, service: &mut S) {
        let _ = (now, parcel, service);
    }

    /// The stack that takes this one's place after a panic, with what must outlast it, flow groups among that; None has one made
    /// as at the start.
    fn successor(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
}

impl Floor for stack::Stack {
    #[inline]
    fn input<S: Service>(&mut self, now: Instant, rx: &mut Burst, tx: &mut Burst, free: &mut Burst, service: &mut S) {
        self.input(now, rx, tx, free, service);
    }

    #[inline]
    fn input_copied<S: Service>(
        &mut self,
        now: Instant,
        rx: &mut Burst,
        tx: &mut Burst,
        free: &mut Burst,
        spare: &mut Burst,
        service: &mut S,
    ) {
        self.input_copied(now, rx, tx, free, spare, service);
    }

    #[inline]
    fn poll<S: Service>(
        &mut self,
        now: Instant,
        supply: &mut dyn Supply,
        tx: &mut Burst,
        service: &mut S,
    ) -> Option<Instant> {
        self.poll(now, supply, tx, service)
    }

    #[inline]
    fn overrun(&mut self, now: Instant) {
        self.overrun(now);
    }

    fn set_groups(&mut self, groups: &Arc<Groups>) {
        self.set_groups(groups.clone());
    }

    fn set_ours(&mut self, ours: Arc<dyn stack::Ours>) {
        self.set_ours(ours);
    }

    fn can_depart<S: Service>(&self, group: u16, service: &S) -> bool {
        self.can_depart(group, service)
    }

    fn depart<S: Service>(&mut self, now: Instant, group: u16, service: &mut S) -> Parcel {
        Box::new(self.depart(now, group, service))
    }

    fn arrive<S: Service>(&mut self, now: Instant, parcel: Parcel, service: &mut S) {
        if let Ok(departure) = parcel.downcast::<stack::Departure>() {
            // what was refused is counted there
            let _ = self.arrive(now, *departure, service);
        }
    }

    fn successor(&self) -> Option<Self> {
        Some(self.successor())
    }
}

/// What a cycle did, and what it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// frames received
    pub received: usize,
    /// frames that the port took, those gathered and those of guests counted
    pub transmitted: usize,
    /// what of the frames sent is still on its way out, in the port or kept here, and so how soon the next cycle should come
    pub outgoing: Outgoing,
    /// when the stack has something to do though nothing arrives
    pub next: Option<Instant>,
}

impl Activity {
    /// Whether the cycle moved a frame.
    pub fn is_busy(&self) -> bool {
        self.received + self.transmitted > 0
    }
}

/// One thread's port, stack and service, and the frames between them.
#[derive(Debug)]
pub struct Loop<P, S, N = stack::Stack> {
    port: P,
    stack: N,
    service: S,
    batch: usize,
    rx: Burst,
    /// answers; what the transmit ring did not take stays for the next cycle
    tx: Burst,
    free: Burst,
    /// frames of ours that answers are copied into
    spare: Burst,
    copies: bool,
    /// when the stack is to be polled
    due: Option<Instant>,
    /// nothing could be sent in the last cycle: until the port has room nothing else helps
    stuck: bool,
    tap: Option<Tap>,
    /// where it is one of several of an interface
    joint: Option<Box<Joint>>,
    counters: Arc<Counters>,
}

/// What a loop that is one of several has.
#[derive(Debug)]
struct Joint {
    /// the way to other threads of the interface
    crossing: Crossing,
    /// what the port received, before it is known whose it is
    received: Burst,
    /// the port's receive side, where others may take from it
    inlet: Option<Arc<dyn Inlet>>,
    /// since when groups wait to be given away because frames of ours have not left
    held_since: Option<Instant>,
    /// which of several queues is looked at first
    turn: usize,
}

/// So long groups wait for that at most: a host that does not run must not keep them.
const HELD: Duration = Duration::from_millis(20);

impl Joint {
    /// Receives from the port what is there for this thread and sends others theirs, before anybody else takes something there.
    fn receive<P: Port>(&mut self, port: &mut P, rx: &mut Burst, limit: usize, lost: &mut Burst) -> usize {
        let Joint { crossing, received, inlet, .. } = self;
        let Some(inlet) = inlet else {
            let seen = port.receive(received, limit);
            crossing.sort(received, rx, lost);
            return seen;
        };
        let mut seen = 0;
        // a helper that has the lease has what there is, too
        inlet.lease(&mut |waiting| {
            seen = crossing.take_aside(received, limit);
            seen += waiting.receive(received, limit - seen, &mut |frame| port.give(frame));
            crossing.sort(received, rx, lost);
        });
        seen
    }
}

impl<P: Port, S: Service, N: Floor> Loop<P, S, N> {
    /// A loop that takes up to `batch` frames a cycle (1 to 64; others are brought into that range).
    pub fn new(port: P, stack: N, service: S, batch: usize) -> Self {
        Loop {
            port,
            stack,
            service,
            batch: batch.clamp(1, BURST_FRAMES),
            rx: Burst::new(),
            tx: Burst::new(),
            free: Burst::new(),
            spare: Burst::new(),
            copies: false,
            due: Some(Instant::ZERO),
            stuck: false,
            tap: None,
            joint: None,
            counters: Arc::default(),
        }
    }

    /// A loop that is one of several of an interface.
    #[must_use]
    pub(crate) fn with_crossing(mut self, crossing: Option<Crossing>) -> Self {
        if let Some(crossing) = &crossing {
            self.stack.set_groups(crossing.owners().groups());
            self.stack.set_ours(crossing.ours());
        }
        self.joint = crossing.map(|crossing| {
            Box::new(Joint { inlet: crossing.inlet(), crossing, received: Burst::new(), held_since: None, turn: 0 })
        });
        self
    }

    /// Whether datagrams are answered in frames of our own, with the received ones going home, instead of in place.
    #[must_use]
    pub fn with_copies(mut self, copies: bool) -> Self {
        self.copies = copies;
        self
    }

    /// Runs one cycle at `now`: never waits, never reads a clock.
    ///
    /// The transmit ring is the only output queue. When it is full the loop receives no more than what could be answered,
    /// so the device's receive ring fills and drops there, before work was put into a packet. While the stack waits for room it
    /// receives a burst more, whose answers wait: acknowledgements that were lost would have the stack send again.
    pub fn cycle(&mut self, mut now: Instant) -> Activity {
        self.service.cycle(now);
        let mut transmitted = if self.tx.is_empty() { 0 } else { self.transmit(now) };
        let kept = !self.tx.is_empty();
        let holds = self.joint.is_some() && !kept && self.let_depart(now);
        let spare = self.tx.remaining_capacity();
        let room = self.port.transmit_room().saturating_sub(self.tx.len()).min(spare);
        if room < self.batch {
            self.counters.transmit_stalls.add(1);
        }
        if self.service.has_news() {
            self.due = Some(now);
        }
        let due = self.due.is_some_and(|due| now >= due);
        // when the stack waits for room, acknowledgements come, which need no answer; what else comes is answered when there is room
        let waits = due && room == 0;
        let limit = if holds { 0 } else { self.batch.min(if waits { spare } else { room }) };
        let received = match limit {
            0 => 0,
            limit if self.joint.is_some() => self.receive_sorted(&mut now, limit),
            limit => {
                let received = self.port.receive(&mut self.rx, limit);
                if received == limit {
                    let left = self.port.waiting();
                    self.counters.queued.add(left as u64);
                    if self.port.facts().overran(received + left) {
                        self.stack.overrun(now);
                    }
                }
                received
            }
        };
        // whatever ways frames come by: no queue inside grows beyond a batch, overload waits at the port
        debug_assert!(self.rx.len() <= limit, "{} frames of {limit}", self.rx.len());
        if !self.rx.is_empty() {
            self.take_in(now, self.rx.len());
        }
        if (received > 0 || due) && !waits && !holds {
            let Loop { port, stack, service, tx, tap, counters, .. } = self;
            let mut supply = Supplies { now, port, kept, gathered: 0, tap: tap.as_mut(), counters };
            self.due = stack.poll(now, &mut supply, tx, service);
            transmitted += supply.gathered;
            counters.transmitted.add(supply.gathered as u64);
        }
        if !self.tx.is_empty() {
            transmitted += self.transmit(now);
        }
        let carried = self.port.carry();
        let outgoing = self.flush(holds, room, limit);
        if let Some(joint) = &mut self.joint {
            if let Some(host) = self.port.host()
                && (transmitted > 0 || outgoing >= Outgoing::Waiting)
            {
                joint.crossing.touch(host);
            }
            joint.crossing.ring_bells();
        }
        self.counters.cycles.add(1);
        let transmitted = transmitted + carried;
        if received + transmitted == 0 {
            self.counters.empty_cycles.add(1);
        }
        // a port that takes nothing more is asked again soon anyway, and what is due already waits for room, or for frames; what
        // passes between threads waits for neither and is looked at wherever something could be received
        let stands = |at: &Instant| outgoing >= Outgoing::Waiting && *at <= now;
        let crossing = self.joint.as_ref().and_then(|joint| joint.crossing.next_at());
        let next = self.due.filter(|at| !stands(at)).into_iter().chain(crossing).min();
        let next = next.filter(|_| outgoing != Outgoing::Full && !holds);
        Activity { received, transmitted, outgoing, next }
    }

    /// Has the port send, and says how that goes after a cycle that had so much `room` and could receive `limit` frames.
    #[inline]
    fn flush(&mut self, holds: bool, room: usize, limit: usize) -> Outgoing {
        let kept = if self.tx.is_empty() && !holds { Outgoing::Nothing } else { Outgoing::Waiting };
        let outgoing = self.port.flush().max(kept);
        self.stuck = room == 0 && !holds && self.port.transmit_room() <= self.tx.len();
        match (self.stuck, limit) {
            (false, _) => outgoing,
            // whoever can take nothing need not be told that something comes
            (true, 0) => Outgoing::Full,
            (true, _) => outgoing.max(Outgoing::Waiting),
        }
    }

    /// Receives what is this thread's, from its port and from other threads, and sends others theirs. How many frames it saw.
    ///
    /// A flow group may come from a thread whose cycle began later than this one, and nothing of a connection may happen before
    /// what has happened: the cycle's time goes on to when the group was sent.
    #[inline(never)]
    fn receive_sorted(&mut self, now: &mut Instant, limit: usize) -> usize {
        let Loop { port, stack, service, rx, free, due, joint, counters, .. } = self;
        let Some(joint) = joint.as_deref_mut() else { return 0 };
        let home = |free: &mut Burst, port: &mut P| free.drain(..).for_each(|frame| port.give(frame));
        let has_queue = joint.crossing.has_queue();
        let queued = if has_queue { port.waiting() } else { 0 };
        if port.facts().overran(queued) {
            stack.overrun(*now);
        }
        let waiting = joint.crossing.look(*now, queued);
        // neither side starves the other
        let mut seen = joint.crossing.receive(rx, limit.div_ceil(2), free);
        home(free, port);
        // of all that is taken some may be others'
        let arrivals = joint.crossing.room_for_arrivals(*now, limit - rx.len());
        if !joint.crossing.is_replaying() {
            // asked again: to give the queue away was among what it has just done, or to have it back
            if joint.crossing.stands_in() {
                seen += joint.receive_by_parts(port, rx, arrivals, free);
            } else if joint.crossing.has_queue() {
                seen += joint.receive(port, rx, arrivals, free);
            }
            home(free, port);
            seen += joint.crossing.receive(rx, limit, free);
            home(free, port);
        }
        let Joint { crossing, received, .. } = joint;
        seen += crossing.help(rx, received, limit, port);
        counters.queued.add(waiting.saturating_sub(seen) as u64);
        while let Some((at, parcel)) = crossing.arrival() {
            *now = at.max(*now);
            stack.arrive(*now, parcel, service);
            *due = Some(*now);
        }
        seen
    }

    /// Gives flow groups away if any are to go, or says that they wait: until what a thread without a queue has sent for them has left,
    /// for which it sends nothing more meanwhile.
    #[inline]
    fn let_depart(&mut self, now: Instant) -> bool {
        let Some(joint) = self.joint.as_deref_mut() else { return false };
        if joint.crossing.departing() == 0 {
            joint.held_since = None;
            return false;
        }
        if !self.port.has_left() {
            let since = *joint.held_since.get_or_insert(now);
            if now - since < HELD {
                return true;
            }
            joint.crossing.counters().hurried.add(1);
        }
        joint.held_since = None;
        self.depart(now);
        // who sleeps answers, and has the groups, while the service keeps us
        self.joint.iter_mut().for_each(|joint| joint.crossing.ring_bells());
        false
    }

    /// Gives flow groups away that other threads asked for. Nothing of theirs is in hand, and what was sent for them is the
    /// device's, as far as that goes: no frame of the new owner shall overtake one of ours.
    #[cold]
    fn depart(&mut self, now: Instant) {
        self.port.flush();
        let Loop { stack, service, joint, .. } = self;
        let Some(Joint { crossing, .. }) = joint.as_deref_mut() else { return };
        for _ in 0..crossing.departing() {
            let Some(departure) = crossing.departure() else { break };
            if stack.can_depart(departure.group, service) {
                let parcel = stack.depart(now, departure.group, service);
                crossing.send(now, departure, parcel);
            } else {
                crossing.on_stay(now);
            }
        }
        self.poll_soon();
    }

    fn take_in(&mut self, now: Instant, received: usize) {
        self.counters.received.add(received as u64);
        self.counters.burst(received);
        if let Some(tap) = &mut self.tap {
            tap.copy(now, Direction::In, &self.rx, &self.counters);
        }
        if self.copies {
            self.input_copied(now, received);
        } else {
            self.stack.input(now, &mut self.rx, &mut self.tx, &mut self.free, &mut self.service);
        }
        debug_assert!(self.rx.is_empty(), "the stack left {} frames", self.rx.len());
        for frame in self.free.drain(..) {
            self.port.give(frame);
        }
    }

    #[inline(never)]
    fn input_copied(&mut self, now: Instant, received: usize) {
        let Loop { port, stack, service, rx, tx, free, spare, .. } = self;
        spare.extend(std::iter::from_fn(|| port.take()).take(received));
        stack.input_copied(now, rx, tx, free, spare, service);
        for frame in spare.drain(..) {
            port.give(frame);
        }
    }

    fn transmit(&mut self, now: Instant) -> usize {
        if let Some(tap) = &mut self.tap {
            // what is not taken now is shown when it is
            let room = self.port.transmit_room().min(self.tx.len());
            tap.copy(now, Direction::Out, &self.tx[..room], &self.counters);
        }
        let taken = self.port.transmit(&mut self.tx);
        self.counters.transmitted.add(taken as u64);
        taken
    }

    /// The port.
    pub fn port(&mut self) -> &mut P {
        &mut self.port
    }

    /// The stack.
    pub fn stack(&mut self) -> &mut N {
        &mut self.stack
    }

    /// The service.
    pub fn service(&mut self) -> &mut S {
        &mut self.service
    }

    /// What the service is called.
    pub(crate) fn service_name(&self) -> &'static str {
        self.service.name()
    }

    /// The counters, which the loop goes on writing.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Lends service and stack at once.
    pub fn with_parts<R>(&mut self, work: impl FnOnce(&mut S, &mut N) -> R) -> R {
        work(&mut self.service, &mut self.stack)
    }

    /// Asks other threads for flow groups.
    pub(crate) fn crossing(&mut self) -> Option<&mut Crossing> {
        self.joint.as_deref_mut().map(|joint| &mut joint.crossing)
    }

    /// Whether the thread may sleep: nothing waits for it, and the service has nothing that another cycle would do; or whatever waits does
    /// so for room to send, for which the sleep is short.
    pub(crate) fn may_rest(&mut self, now: Instant) -> bool {
        let Loop { port, joint, service, .. } = self;
        let rests = joint.as_deref_mut().is_none_or(|joint| joint.crossing.may_rest(joint.held_since.is_some()));
        (rests && !port.is_asked() && service.may_rest(now)) || self.stuck
    }

    /// The port, and the way to other threads.
    pub(crate) fn port_and_crossing(&self) -> (&P, Option<&Crossing>) {
        (&self.port, self.joint.as_deref().map(|joint| &joint.crossing))
    }

    /// Begins or ends copying frames.
    pub fn set_tap(&mut self, tap: Option<Tap>) {
        self.tap = tap;
    }

    /// Has the stack polled in the next cycle, after something about it was changed from outside.
    pub fn poll_soon(&mut self) {
        self.due = Some(Instant::ZERO);
    }

    /// Tells a stack that was made anew what the first one was told.
    pub(crate) fn introduce(&self, stack: &mut N) {
        if let Some(joint) = self.joint.as_deref() {
            stack.set_groups(joint.crossing.owners().groups());
            stack.set_ours(joint.crossing.ours());
        }
    }

    /// After a panic: the frames in hand go home unsent, and a new stack and service take over.
    pub(crate) fn recover(&mut self, stack: N, service: S) {
        for burst in [&mut self.rx, &mut self.tx, &mut self.free] {
            self.counters.dropped_panic.add(burst.len() as u64);
            for frame in burst.drain(..) {
                self.port.give(frame);
            }
        }
        // what was exchanged for a copy is counted as that copy
        for frame in self.spare.drain(..) {
            self.port.give(frame);
        }
        self.stack = stack;
        self.service = service;
        if let Some(Joint { received, .. }) = self.joint.as_deref_mut() {
            self.counters.dropped_panic.add(received.len() as u64);
            received.drain(..).for_each(|frame| self.port.give(frame));
        }
        self.poll_soon();
    }

    /// Takes the loop apart; frames in hand go home.
    pub fn into_port(mut self) -> P {
        for burst in [&mut self.rx, &mut self.tx, &mut self.free, &mut self.spare] {
            for frame in burst.drain(..) {
                self.port.give(frame);
            }
        }
        if let Some(Joint { mut crossing, mut received, .. }) = self.joint.take().map(|joint| *joint) {
            crossing.clear(|frame| self.port.give(frame));
            received.drain(..).for_each(|frame| self.port.give(frame));
        }
        self.port
    }
}

/// What the stack takes of the port.
struct Supplies<'a, P> {
    now: Instant,
    port: &'a mut P,
    /// frames wait for room in the transmit ring: a large send would overtake them
    kept: bool,
    /// frames that were gathered
    gathered: usize,
    tap: Option<&'a mut Tap>,
    counters: &'a Counters,
}

impl<P: Port> Supply for Supplies<'_, P> {
    #[inline]
    fn frame(&mut self) -> Option<Frame> {
        self.port.take()
    }

    fn large(&mut self) -> Option<&mut dyn Large> {
        if self.kept {
            return None;
        }
        if self.tap.is_some() {
            return if self.port.large().is_some() { Some(self) } else { None };
        }
        self.port.large()
    }

    fn gather(&mut self) -> Option<&mut dyn Gather> {
        if !self.kept && self.port.gather().is_some() { Some(self) } else { None }
    }
}

/// Counts what is gathered; a tap gets a copy.
impl<P: Port> Gather for Supplies<'_, P> {
    fn frame(&mut self) -> Option<Frame> {
        self.port.take()
    }

    fn give_back(&mut self, frame: Frame) {
        self.port.give(frame);
    }

    fn send(&mut self, head: Frame, piece: Piece) -> Result<(), Frame> {
        let whole = self.tap.is_some().then(|| [head.bytes(), piece.bytes()].concat());
        match self.port.gather() {
            Some(gather) => gather.send(head, piece)?,
            None => return Err(head),
        }
        self.gathered += 1;
        if let (Some(tap), Some(whole)) = (&mut self.tap, whole) {
            tap.copy_one(self.now, Direction::Out, self.counters, || whole.into());
        }
        Ok(())
    }
}

/// While there is a tap, which gets a copy of each super-segment whole.
impl<P: Port> Large for Supplies<'_, P> {
    fn most_bytes(&mut self) -> usize {
        self.port.large().map_or(0, |large| large.most_bytes())
    }

    fn send(&mut self, header: &[u8], payload: &[&[u8]], how: &Segmentation) -> bool {
        let sent = self.port.large().is_some_and(|large| large.send(header, payload, how));
        if let Some(tap) = self.tap.as_mut().filter(|_| sent) {
            let whole = || [&[header], payload].concat().concat().into();
            tap.copy_one(self.now, Direction::Out, self.counters, whole);
        }
        sent
    }
}

#[cfg(test)]
mod guests;
#[cfg(test)]
mod tests;
