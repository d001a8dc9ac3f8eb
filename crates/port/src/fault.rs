//! A port that injures its traffic: drops (singly and in bursts), duplicates, reorders, corrupts and delays frames, each with a
//! probability, in each direction, as a seed decides, and makes a direction as long and as slow as a distant link. With
//! every probability zero and no length it is the port it wraps.
//!
//! Time is passed in ([`Fault::set_time`]). What is held back (delayed, or waiting to be overtaken) is this wrapper's; it
//! comes out by [`Port::receive`] and [`Port::flush`] when it is due. Held frames are the port's: whoever holds many makes the
//! port with that many more, and says how many by [`Rates::room_frames`].

mod burst;
mod lane;

pub use burst::BurstLoss;
pub use lane::{Injuries, Line, Rates, Stats};

use crate::{Cuts, Facts, Gather, Large, Outgoing, Piece, Port, Segmentation};
use base::rng::Rng;
use base::{BURST_FRAMES, Burst, Frame, Instant};
use lane::{Lane, Step};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A wrapped port.
#[derive(Debug)]
pub struct Fault<P> {
    port: P,
    rng: Rng,
    now: Instant,
    receive: Lane,
    transmit: Lane,
    stats: Arc<Stats>,
}

impl<P: Port> Fault<P> {
    /// Wraps `port`; the seed decides everything.
    pub fn new(port: P, seed: u64, receive: Rates, transmit: Rates) -> Fault<P> {
        let (receive, transmit) = (Lane::new(receive), Lane::new(transmit));
        Fault { port, rng: Rng::new(seed), now: Instant::ZERO, receive, transmit, stats: Arc::default() }
    }

    /// The time by which delays are counted from now on.
    pub fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Changes the probabilities; what is held stays held.
    pub fn set_rates(&mut self, receive: Rates, transmit: Rates) {
        (self.receive.rates, self.transmit.rates) = (receive, transmit);
    }

    /// When something held comes due; None when nothing is held for a time.
    pub fn due_at(&self) -> Option<Instant> {
        [self.receive.due_at(), self.transmit.due_at()].into_iter().flatten().min()
    }

    /// Frames to transmit that are due and that the port has not taken yet: flush again soon.
    pub fn stuck_frames(&self) -> usize {
        self.transmit.ready.len()
    }

    /// What was done so far.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// The wrapped port.
    pub fn inner(&mut self) -> &mut P {
        &mut self.port
    }
}

impl<P: Port> Port for Fault<P> {
    fn facts(&self) -> &Facts {
        self.port.facts()
    }

    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        let injuries = &self.stats.received;
        if self.receive.is_idle() {
            let n = self.port.receive(into, limit);
            injuries.passed.add(n as u64);
            return n;
        }
        let mut arrived = Burst::new();
        self.port.receive(&mut arrived, limit.min(BURST_FRAMES));
        let nothing_came = arrived.is_empty();
        let mut step = Step { port: &mut self.port, rng: &mut self.rng, now: self.now, injuries };
        for frame in arrived {
            self.receive.pass(&mut step, frame);
        }
        self.receive.release(&mut step, nothing_came);
        let n = limit.min(into.remaining_capacity()).min(self.receive.ready.len());
        into.extend(self.receive.ready.drain(..n));
        injuries.passed.add(n as u64);
        n
    }

    fn waiting(&mut self) -> usize {
        self.receive.ready.len() + self.port.waiting()
    }

    fn transmit_room(&mut self) -> usize {
        self.port.transmit_room().saturating_sub(self.transmit.ready.len())
    }

    fn transmit(&mut self, from: &mut Burst) -> usize {
        let injuries = &self.stats.transmitted;
        if self.transmit.is_idle() {
            let n = self.port.transmit(from);
            injuries.passed.add(n as u64);
            return n;
        }
        let n = from.len().min(self.transmit_room());
        let mut step =
            Step { port: &mut self.port, rng: &mut self.rng, now: self.now, injuries: &self.stats.transmitted };
        for frame in from.drain(..n) {
            self.transmit.pass(&mut step, frame);
        }
        n
    }

    fn flush(&mut self) -> Outgoing {
        let injuries = &self.stats.transmitted;
        self.transmit.release(&mut Step { port: &mut self.port, rng: &mut self.rng, now: self.now, injuries }, true);
        let mut burst = Burst::new();
        while !self.transmit.ready.is_empty() {
            let n = self.transmit.ready.len().min(BURST_FRAMES);
            burst.extend(self.transmit.ready.drain(..n));
            let taken = self.port.transmit(&mut burst);
            injuries.passed.add(taken as u64);
            if !burst.is_empty() {
                for frame in burst.drain(..).rev() {
                    self.transmit.ready.push_front(frame);
                }
                break;
            }
        }
        // what is delayed here goes out by being flushed
        if self.transmit.is_clear() { self.port.flush() } else { self.port.flush().max(Outgoing::Waiting) }
    }

    fn take(&mut self) -> Option<Frame> {
        self.port.take()
    }

    fn give(&mut self, frame: Frame) {
        self.port.give(frame);
    }

    fn large(&mut self) -> Option<&mut dyn Large> {
        if self.port.large().is_some() { Some(self) } else { None }
    }

    fn gather(&mut self) -> Option<&mut dyn Gather> {
        if self.port.gather().is_some() { Some(self) } else { None }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.port.descriptor()
    }
}

/// Where frames are injured a super-segment is cut here, so that its segments are, too; as often as a frame is lost it is refused.
impl<P: Port> Large for Fault<P> {
    fn most_bytes(&mut self) -> usize {
        self.port.large().map_or(0, |large| large.most_bytes())
    }

    fn send(&mut self, header: &[u8], payload: &[&[u8]], how: &Segmentation) -> bool {
        let injuries = &self.stats.transmitted;
        if self.transmit.is_idle() {
            let sent = self.port.large().is_some_and(|large| large.send(header, payload, how));
            if sent {
                let bytes: usize = payload.iter().map(|piece| piece.len()).sum();
                injuries.passed.add(bytes.div_ceil(usize::from(how.segment_bytes)) as u64);
            }
            return sent;
        }
        if self.rng.chance(self.transmit.rates.drop) {
            return false;
        }
        let mut cuts = Cuts::new(header, payload, how);
        while let Some(bytes) = cuts.next_bytes() {
            let Some(mut frame) = self.port.take() else {
                injuries.dropped.add(1);
                break;
            };
            frame.set_len(bytes);
            cuts.write(frame.bytes_mut());
            let mut step = Step { port: &mut self.port, rng: &mut self.rng, now: self.now, injuries };
            self.transmit.pass(&mut step, frame);
        }
        true
    }
}

/// Where frames are injured a gathered one is put together here, so that it is, too; as often as a frame is lost it is refused.
impl<P: Port> Gather for Fault<P> {
    fn frame(&mut self) -> Option<Frame> {
        self.port.take()
    }

    fn give_back(&mut self, frame: Frame) {
        self.port.give(frame);
    }

    fn send(&mut self, mut head: Frame, piece: Piece) -> Result<(), Frame> {
        let injuries = &self.stats.transmitted;
        if self.transmit.is_idle() {
            let Some(gather) = self.port.gather() else { return Err(head) };
            gather.send(head, piece)?;
            injuries.passed.add(1);
            return Ok(());
        }
        if self.rng.chance(self.transmit.rates.drop) {
            return Err(head);
        }
        piece.append_to(&mut head);
        let mut step = Step { port: &mut self.port, rng: &mut self.rng, now: self.now, injuries };
        self.transmit.pass(&mut step, head);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
