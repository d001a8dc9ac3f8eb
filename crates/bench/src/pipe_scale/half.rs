//! The clients, played in the server's own threads: each thread's port plays, whenever it is flushed, the clients whose answers came
//! out of its queue. An answer's frame becomes the flow's next question and goes to the queue that the NIC would put it into,
//! over a ring where that is another thread's. So a processor has all the work of what it serves, clients and server, and one more
//! processor brings all of it once more.

use super::slices::{Counts, Sliced, Turns};
use super::talk::{Came, Talk};
use base::counter::Counter;
use base::ring::{Consumer, Producer, ring};
use base::{BURST_FRAMES, Burst, Frame};
use dataplane::Owners;
use port::pipe::Pipe;
use port::{Facts, Outgoing, Port};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// One answer in so many is checked to the last octet.
const CHECK_EVERY: u64 = 64;

/// At which queue a question arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// at that of the thread that has its group, or so many further
    Owner(usize),
    /// at the first
    First,
}

/// How far flows may get ahead of each other.
///
/// A closed loop asks more where it is answered sooner, and so would hide that threads have unequal loads. Under a pace all flows ask
/// equally often, as in an open loop: a flow that has finished its part of an epoch waits when it is two epochs ahead.
#[derive(Debug)]
pub(super) struct Pace {
    flows: u32,
    epoch: AtomicU32,
    /// flows that have finished an epoch, by its number modulo the slots
    done: [AtomicU32; 4],
}

impl Pace {
    /// Questions of a flow in an epoch.
    const QUESTIONS: u32 = 16;
    const AHEAD: u32 = 2;

    pub(super) fn new(flows: usize) -> Pace {
        Pace { flows: flows as u32, epoch: AtomicU32::new(0), done: Default::default() }
    }

    /// A flow has had so many answers.
    fn on_answer(&self, answered: u32) {
        if !answered.is_multiple_of(Self::QUESTIONS) {
            return;
        }
        let epoch = answered / Self::QUESTIONS - 1;
        let done = &self.done[epoch as usize % self.done.len()];
        if done.fetch_add(1, Ordering::AcqRel) + 1 == self.flows {
            // all have finished it, and so all before it; nobody is far enough ahead to use the slot
            done.store(0, Ordering::Relaxed);
            self.epoch.store(epoch + 1, Ordering::Release);
        }
    }

    /// Whether a flow that has had so many answers may ask.
    fn may_ask(&self, answered: u32) -> bool {
        answered / Self::QUESTIONS <= self.epoch.load(Ordering::Acquire) + Self::AHEAD
    }
}

/// What all halves share.
pub(super) struct Plan<T> {
    pub(super) talk: T,
    pub(super) owners: Arc<Owners>,
    pub(super) arrival: Arrival,
    pub(super) pace: Option<Pace>,
    /// all threads are there: the first questions
    pub(super) go: AtomicBool,
    /// no more questions
    pub(super) stop: AtomicBool,
    fault: Mutex<Option<String>>,
}

impl<T: Talk> Plan<T> {
    pub(super) fn new(talk: T, owners: Arc<Owners>, arrival: Arrival, paced: bool) -> Plan<T> {
        let pace = paced.then(|| Pace::new(talk.flows().count()));
        let (go, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        Plan { talk, owners, arrival, pace, go, stop, fault: Mutex::new(None) }
    }

    /// What was wrong first.
    pub(super) fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    #[cold]
    fn report(&self, fault: String) {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fault);
    }

    fn queue(&self, flow: usize) -> usize {
        match self.arrival {
            Arrival::First => 0,
            Arrival::Owner(further) => {
                let owner = usize::from(self.owners.owner(self.talk.flows().group(flow)));
                if further == 0 { owner } else { (owner + further) % self.owners.threads() }
            }
        }
    }
}

/// What a half counts.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Tally {
    pub(super) asked: Counter,
    pub(super) answered: Counter,
    pub(super) checked: Counter,
    /// flows that ask no more
    pub(super) ended: Counter,
    /// time for all of it
    pub(super) clients_ns: Counter,
}

/// A server's end of a queue with the clients that belong to it.
pub(super) struct Played<T> {
    server: Pipe,
    half: Half<T>,
    /// where it serves in slices only
    sliced: Option<Sliced>,
}

struct Half<T> {
    me: usize,
    plan: Arc<Plan<T>>,
    client: Pipe,
    /// questions for other queues, and from other halves for ours
    out: Vec<Option<Producer<Frame>>>,
    into: Vec<Option<Consumer<Frame>>>,
    /// flows that are ahead
    parked: VecDeque<(usize, Frame)>,
    /// when those were looked at last
    epoch: u32,
    rx: Burst,
    tx: Burst,
    begun: bool,
    tally: Arc<Tally>,
}

/// A port for each queue, whose thread serves all the time or when it is its turn.
pub(super) fn played<T: Talk>(
    clients: Vec<Pipe>,
    servers: Vec<Pipe>,
    plan: &Arc<Plan<T>>,
    turns: Option<Turns>,
) -> Vec<Played<T>> {
    let (queues, flows) = (clients.len(), plan.talk.flows().count());
    let mut ends: Vec<_> = (0..queues).map(|_| (Vec::new(), Vec::new())).collect();
    for from in 0..queues {
        for to in 0..queues {
            let (out, into) = (from != to).then(|| ring(flows.next_power_of_two())).unzip();
            ends[from].0.push(out);
            ends[to].1.push(into);
        }
    }
    let one = |(me, (((out, into), client), server))| {
        let (parked, tally) = (VecDeque::with_capacity(flows), Arc::default());
        let (rx, tx) = (Burst::new(), Burst::new());
        let half = Half { me, plan: plan.clone(), client, out, into, parked, epoch: 0, rx, tx, begun: false, tally };
        Played { server, half, sliced: turns.map(Sliced::new) }
    };
    ends.into_iter().zip(clients).zip(servers).enumerate().map(one).collect()
}

impl<T: Talk> Played<T> {
    pub(super) fn tally(&self) -> &Arc<Tally> {
        &self.half.tally
    }

    pub(super) fn counts(&self) -> Option<&Arc<Counts>> {
        self.sliced.as_ref().map(Sliced::counts)
    }

    /// Frames that found a ring full, at either end.
    pub(super) fn dropped(&self) -> u64 {
        self.server.stats().dropped.get() + self.half.client.stats().dropped.get()
    }

    /// Takes all free frames out, of both ends; how many.
    pub(super) fn count(&mut self) -> usize {
        let mut frames = 0;
        for port in [&mut self.server, &mut self.half.client] {
            port.flush();
            frames += std::iter::from_fn(|| port.take()).count();
        }
        frames
    }
}

impl<T: Talk> Half<T> {
    fn play(&mut self) {
        let pending = |into: &mut Option<Consumer<Frame>>| into.as_mut().is_some_and(|into| into.waiting(1) > 0);
        let begins = !self.begun && self.plan.go.load(Ordering::Acquire);
        let work = begins || self.client.waiting() > 0 || !self.parked.is_empty();
        if !work && !self.into.iter_mut().any(pending) {
            return;
        }
        let start = Instant::now();
        if begins {
            self.begin();
        }
        self.unpark();
        let mut rx = std::mem::take(&mut self.rx);
        while self.client.receive(&mut rx, BURST_FRAMES) > 0 {
            rx.drain(..).for_each(|frame| self.take(frame));
        }
        self.rx = rx;
        for from in 0..self.into.len() {
            while let Some(frame) = self.into[from].as_mut().and_then(Consumer::pop) {
                self.send(frame);
            }
        }
        self.client.transmit(&mut self.tx);
        self.tally.clients_ns.add(start.elapsed().as_nanos() as u64);
    }

    /// The first frames of the flows whose questions arrive here.
    #[cold]
    fn begin(&mut self) {
        self.begun = true;
        let (me, plan) = (self.me, self.plan.clone());
        for flow in (0..plan.talk.flows().count()).filter(|flow| plan.queue(*flow) == me) {
            let Some(mut frame) = self.client.take() else { return plan.report("frames are too few".into()) };
            self.tally.asked.add(u64::from(plan.talk.open(flow, &mut frame)));
            self.send(frame);
        }
    }

    fn unpark(&mut self) {
        let Some(pace) = &self.plan.pace else { return };
        let epoch = pace.epoch.load(Ordering::Acquire);
        if epoch == self.epoch && !self.plan.stop.load(Ordering::Relaxed) {
            return;
        }
        self.epoch = epoch;
        for _ in 0..self.parked.len() {
            let Some((flow, frame)) = self.parked.pop_front() else { break };
            self.go_on(flow, frame);
        }
    }

    fn take(&mut self, frame: Frame) {
        let checked = self.tally.answered.get().is_multiple_of(CHECK_EVERY);
        match self.plan.talk.take(&frame, checked) {
            Ok(Came::Answer(flow)) => {
                self.tally.answered.add(1);
                self.tally.checked.add(u64::from(checked));
                if let Some(pace) = &self.plan.pace {
                    pace.on_answer(self.plan.talk.answered(flow));
                }
                self.go_on(flow, frame);
            }
            Ok(Came::Opened(flow)) => self.go_on(flow, frame),
            Ok(Came::Nothing) => self.client.give(frame),
            Err(fault) => {
                self.plan.report(fault.to_string());
                self.client.give(frame);
            }
        }
    }

    /// The flow's next question, now or later, or its end.
    fn go_on(&mut self, flow: usize, mut frame: Frame) {
        let plan = &self.plan;
        if plan.stop.load(Ordering::Relaxed) {
            self.tally.ended.add(1);
            return self.client.give(frame);
        }
        if plan.pace.as_ref().is_some_and(|pace| !pace.may_ask(plan.talk.answered(flow))) {
            return self.parked.push_back((flow, frame));
        }
        // a NIC writes what arrives at a queue into that queue's memory; chunks of two threads between each other have neither
        // find its own in the cache, whose sets they share
        if !self.client.has(&frame)
            && let Some(own) = self.client.take()
        {
            self.client.give(std::mem::replace(&mut frame, own));
        }
        plan.talk.ask(flow, &mut frame);
        self.tally.asked.add(1);
        match &mut self.out[plan.queue(flow)] {
            None => self.send(frame),
            Some(way) => {
                if let Err(frame) = way.push(frame) {
                    plan.report("more frames than flows".into());
                    self.client.give(frame);
                }
            }
        }
    }

    fn send(&mut self, frame: Frame) {
        self.tx.push(frame);
        if self.tx.is_full() {
            self.client.transmit(&mut self.tx);
        }
    }
}

impl<T: Talk> Port for Played<T> {
    fn facts(&self) -> &Facts {
        self.server.facts()
    }

    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        self.server.receive(into, limit)
    }

    fn waiting(&mut self) -> usize {
        self.server.waiting()
    }

    fn transmit_room(&mut self) -> usize {
        self.server.transmit_room()
    }

    fn transmit(&mut self, from: &mut Burst) -> usize {
        self.server.transmit(from)
    }

    fn flush(&mut self) -> Outgoing {
        self.half.play();
        if let Some(sliced) = &mut self.sliced {
            sliced.turn(self.half.tally.answered.get());
        }
        self.server.flush()
    }

    fn take(&mut self) -> Option<Frame> {
        self.server.take()
    }

    fn give(&mut self, frame: Frame) {
        self.server.give(frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_waits_for_the_others_when_it_is_two_epochs_ahead() {
        let pace = Pace::new(2);
        let (mut first, mut second) = (0, 0);
        for round in 1..100 {
            while pace.may_ask(first) {
                first += 1;
                pace.on_answer(first);
            }
            assert_eq!(first, (round + Pace::AHEAD) * Pace::QUESTIONS, "round {round}");
            for _ in 0..Pace::QUESTIONS {
                assert!(pace.may_ask(second));
                second += 1;
                pace.on_answer(second);
            }
        }
    }
}
