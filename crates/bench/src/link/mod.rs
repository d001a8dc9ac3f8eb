//! Two interfaces joined: what arrives at one leaves by the other, through the faults of that direction.
//!
//! A frame is copied once, into the memory of the interface that it leaves by, and held there for as long as the path is. Each
//! direction has a seed, so what becomes of its n-th frame depends on nothing else. Left out: more than one transmit queue (frames
//! of different queues would overtake each other).

mod complete;

use base::{BURST_FRAMES, Burst, Instant};
use port::fault::{Fault, Injuries, Rates};
use port::{Outgoing, Port};
use serde::Serialize;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// While frames are underway their memory comes back only by flushing.
const UNDERWAY: Duration = Duration::from_millis(5);
/// A device that is asked to hurry is asked again after this long.
const STUCK: Duration = Duration::from_micros(20);

/// One interface.
#[derive(Debug)]
struct End<P> {
    /// its first queue, by which everything leaves
    out: Fault<P>,
    /// the others receive only
    more: Vec<P>,
    outgoing: Outgoing,
    arrived: u64,
    completed: u64,
    /// arrived frames for which the other end had no memory, or too little
    no_frame: u64,
    too_long: u64,
}

impl<P: Port> End<P> {
    fn new(mut ports: Vec<P>, seed: u64, rates: Rates) -> End<P> {
        let first = ports.remove(0);
        End {
            out: Fault::new(first, seed, Rates::default(), rates),
            more: ports,
            outgoing: Outgoing::Nothing,
            arrived: 0,
            completed: 0,
            no_frame: 0,
            too_long: 0,
        }
    }

    fn receive(&mut self, queue: usize, into: &mut Burst, limit: usize) -> usize {
        match queue.checked_sub(1) {
            None => self.out.receive(into, limit),
            Some(at) => self.more[at].receive(into, limit),
        }
    }

    fn give(&mut self, queue: usize, frame: base::Frame) {
        match queue.checked_sub(1) {
            None => self.out.give(frame),
            Some(at) => self.more[at].give(frame),
        }
    }

    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.out.descriptor().into_iter().chain(self.more.iter().filter_map(Port::descriptor))
    }

    fn flush(&mut self) {
        let mut outgoing = self.out.flush();
        if self.out.due_at().is_some() {
            // what is held is seen to when it is due; how the device fares is asked apart from that
            outgoing = self.out.inner().flush();
        }
        self.outgoing = self.more.iter_mut().map(Port::flush).fold(outgoing, Outgoing::max);
    }
}

/// Two interfaces joined.
#[derive(Debug)]
pub(crate) struct Link<P> {
    ends: [End<P>; 2],
    arrived: Burst,
    leaving: Burst,
}

impl<P: Port> Link<P> {
    /// Joins two interfaces, each given by all its queues; `rates` and the seeds are those of the directions from the first to the
    /// second and back.
    pub(crate) fn new([a, b]: [Vec<P>; 2], seed: u64, [there, back]: [Rates; 2]) -> Link<P> {
        // the faults of a direction are those of the end that it leaves by
        let ends = [End::new(a, seed.wrapping_add(1), back), End::new(b, seed, there)];
        Link { ends, arrived: Burst::new(), leaving: Burst::new() }
    }

    /// Passes on what has arrived and what is due. Returns how many frames arrived.
    pub(crate) fn cycle(&mut self, now: Instant) -> usize {
        let Link { ends: [a, b], arrived, leaving } = self;
        a.out.set_time(now);
        b.out.set_time(now);
        let moved = pass(a, b, arrived, leaving) + pass(b, a, arrived, leaving);
        a.flush();
        b.flush();
        moved
    }

    /// How long nothing needs to be done, unless a frame arrives; None for as long as none does.
    pub(crate) fn idle(&self, now: Instant) -> Option<Duration> {
        let of = |end: &End<P>| {
            let stuck = end.out.stuck_frames() > 0 || end.outgoing >= Outgoing::Waiting;
            let underway = end.outgoing == Outgoing::Underway;
            let due = end.out.due_at().map(|at| at - now);
            [due, stuck.then_some(STUCK), underway.then_some(UNDERWAY)].into_iter().flatten().min()
        };
        self.ends.iter().filter_map(of).min()
    }

    /// What to poll for arriving frames.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ends.iter().flat_map(End::descriptors)
    }

    /// The queues of both interfaces.
    pub(crate) fn ports(&mut self) -> impl Iterator<Item = &mut P> {
        self.ends.iter_mut().flat_map(|end| std::iter::once(end.out.inner()).chain(&mut end.more))
    }

    /// What became of the frames of each direction: first to second, and back.
    pub(crate) fn counts(&self) -> [Counts; 2] {
        let [a, b] = &self.ends;
        [Counts::of(a, b), Counts::of(b, a)]
    }
}

/// Passes on what has arrived at `from`, as much as `to` can send at once.
fn pass<P: Port>(from: &mut End<P>, to: &mut End<P>, arrived: &mut Burst, leaving: &mut Burst) -> usize {
    let mut moved = 0;
    for queue in 0..=from.more.len() {
        let room = to.out.transmit_room().min(BURST_FRAMES);
        moved += from.receive(queue, arrived, room);
        let partial = from.out.facts().virtual_link;
        for mut frame in arrived.drain(..) {
            from.arrived += 1;
            from.completed += u64::from(partial && complete::complete(frame.bytes_mut()));
            if let Some(mut copy) = to.out.take() {
                if copy.fill(frame.bytes()) {
                    leaving.push(copy);
                } else {
                    from.too_long += 1;
                    to.out.give(copy);
                }
            } else {
                from.no_frame += 1;
            }
            from.give(queue, frame);
        }
        to.out.transmit(leaving);
        for frame in leaving.drain(..) {
            from.no_frame += 1;
            to.out.give(frame);
        }
    }
    moved
}

/// What became of one direction's frames: arrived + duplicated = passed + lost + burst_lost + overflow + held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// taken from the interface
    pub(crate) arrived: u64,
    /// put out, whole or not
    pub(crate) passed: u64,
    /// lost singly
    pub(crate) lost: u64,
    /// lost in bursts
    pub(crate) burst_lost: u64,
    /// copies made
    pub(crate) duplicated: u64,
    /// overtaken by another, or sent without for want of one
    pub(crate) reordered: u64,
    /// with a flipped bit
    pub(crate) corrupted: u64,
    /// lost for lack of room: too many held, too long a queue, no memory
    pub(crate) overflow: u64,
    /// never arrived, since the receive ring was full or nothing was left to receive into
    pub(crate) missed: u64,
    /// still on their way
    pub(crate) held: u64,
    /// whose checksum the sender's kernel had left to its device
    pub(crate) completed: u64,
}

impl Counts {
    fn of<P: Port>(from: &End<P>, to: &End<P>) -> Counts {
        let stats = to.out.stats();
        let Injuries { passed, dropped, burst_dropped, corrupted, duplicated, reordered, overflowed, .. } =
            &stats.transmitted;
        let mut counts = Counts {
            arrived: from.arrived,
            passed: passed.get(),
            lost: dropped.get(),
            burst_lost: burst_dropped.get(),
            duplicated: duplicated.get(),
            reordered: reordered.get(),
            corrupted: corrupted.get(),
            overflow: overflowed.get() + from.no_frame + from.too_long,
            missed: 0,
            held: 0,
            completed: from.completed,
        };
        let gone = counts.passed + counts.lost + counts.burst_lost + counts.overflow;
        counts.held = (counts.arrived + counts.duplicated).saturating_sub(gone);
        counts
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Counts { arrived, passed, lost, burst_lost, duplicated, reordered, corrupted, overflow, .. } = self;
        let Counts { missed, held, completed, .. } = self;
        write!(
            f,
            "arrived {arrived}, passed {passed}, lost {lost}, lost in bursts {burst_lost}, duplicated {duplicated}, reordered \
             {reordered}, corrupted {corrupted}, overflow {overflow}, missed {missed}, held {held}, checksums completed {completed}"
        )
    }
}

#[cfg(test)]
mod tests;
