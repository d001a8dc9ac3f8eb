//! A port that injures its traffic: drops, duplicates, reorders, corrupts and delays frames, each with a probability, in
//! each direction, as a seed decides. With every probability zero it is the port it wraps.
//!
//! Time is passed in ([`Fault::set_time`]). What is held back (delayed, or waiting to be overtaken) is this wrapper's; it
//! comes out by [`Port::receive`] and [`Port::flush`] when it is due.

use crate::{Cuts, Facts, Large, Outgoing, Port, Segmentation};
use base::rng::Rng;
use base::{BURST_FRAMES, Burst, Counter, Frame, Instant};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// What happens to the frames of one direction: probabilities from 0.0 to 1.0, judged one after the other in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// it is lost
    pub drop: f64,
    /// one of its bits is flipped
    pub corrupt: f64,
    /// it comes twice (once, when there is no free frame for the copy)
    pub duplicate: f64,
    /// it comes after the frame behind it (or at the next call, if there is none)
    pub reorder: f64,
    /// it comes later
    pub delay: f64,
    /// by less than this
    pub delay_below: Duration,
}

impl Rates {
    fn harmless(&self) -> bool {
        [self.drop, self.corrupt, self.duplicate, self.reorder, self.delay].iter().all(|rate| *rate <= 0.0)
    }
}

/// What one direction has done.
#[derive(Debug, Default)]
pub struct Injuries {
    /// frames lost
    pub dropped: Counter,
    /// frames with a flipped bit
    pub corrupted: Counter,
    /// copies made
    pub duplicated: Counter,
    /// frames held to be overtaken
    pub reordered: Counter,
    /// frames held for a time
    pub delayed: Counter,
}

/// What both directions have done.
#[derive(Debug, Default)]
pub struct Stats {
    /// of received frames
    pub received: Injuries,
    /// of transmitted frames
    pub transmitted: Injuries,
}

/// One direction.
#[derive(Debug)]
struct Lane {
    rates: Rates,
    /// to be overtaken by the next frame
    overtaken: Option<Frame>,
    /// sorted by time, ties in order of arrival
    delayed: Vec<(Instant, Frame)>,
    ready: VecDeque<Frame>,
}

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

impl Lane {
    fn new(rates: Rates) -> Lane {
        Lane { rates, overtaken: None, delayed: Vec::new(), ready: VecDeque::new() }
    }

    fn is_clear(&self) -> bool {
        self.overtaken.is_none() && self.delayed.is_empty() && self.ready.is_empty()
    }

    /// Judges one frame.
    fn pass(&mut self, port: &mut impl Port, rng: &mut Rng, now: Instant, injuries: &Injuries, mut frame: Frame) {
        let rates = self.rates;
        if rng.chance(rates.drop) {
            injuries.dropped.add(1);
            return port.give(frame);
        }
        if rng.chance(rates.corrupt) && !frame.is_empty() {
            let bit = rng.below(frame.len() as u64 * 8);
            frame.bytes_mut()[(bit / 8) as usize] ^= 1 << (bit % 8);
            injuries.corrupted.add(1);
        }
        if rng.chance(rates.duplicate)
            && let Some(mut copy) = port.take()
        {
            if copy.fill(frame.bytes()) {
                injuries.duplicated.add(1);
                self.ready.push_back(copy);
            } else {
                port.give(copy);
            }
        }
        if rng.chance(rates.reorder) && self.overtaken.is_none() {
            injuries.reordered.add(1);
            self.overtaken = Some(frame);
            return;
        }
        if rng.chance(rates.delay) && rates.delay_below > Duration::ZERO {
            injuries.delayed.add(1);
            let span = u64::try_from(rates.delay_below.as_nanos()).unwrap_or(u64::MAX);
            let due_at = now + Duration::from_nanos(rng.below(span));
            let at = self.delayed.partition_point(|(other, _)| *other <= due_at);
            self.delayed.insert(at, (due_at, frame));
        } else {
            self.ready.push_back(frame);
        }
        self.ready.extend(self.overtaken.take());
    }

    /// Makes ready what is due, and what nothing came to overtake.
    fn release(&mut self, now: Instant, overtaken: Option<Frame>) {
        let due = self.delayed.partition_point(|(at, _)| *at <= now);
        self.ready.extend(self.delayed.drain(..due).map(|(_, frame)| frame));
        self.ready.extend(overtaken);
    }
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
        let first = |lane: &Lane| lane.delayed.first().map(|(at, _)| *at);
        [first(&self.receive), first(&self.transmit)].into_iter().flatten().min()
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
        if self.receive.rates.harmless() && self.receive.is_clear() {
            return self.port.receive(into, limit);
        }
        let overtaken = self.receive.overtaken.take();
        let mut arrived = Burst::new();
        self.port.receive(&mut arrived, limit.min(BURST_FRAMES));
        let mut arrived = arrived.into_iter();
        if let Some(first) = arrived.next() {
            self.receive.overtaken = overtaken;
            for frame in std::iter::once(first).chain(arrived) {
                self.receive.pass(&mut self.port, &mut self.rng, self.now, &self.stats.received, frame);
            }
            self.receive.release(self.now, None);
        } else {
            self.receive.release(self.now, overtaken);
        }
        let n = limit.min(into.remaining_capacity()).min(self.receive.ready.len());
        into.extend(self.receive.ready.drain(..n));
        n
    }

    fn transmit_room(&mut self) -> usize {
        self.port.transmit_room().saturating_sub(self.transmit.ready.len())
    }

    fn transmit(&mut self, from: &mut Burst) -> usize {
        if self.transmit.rates.harmless() && self.transmit.is_clear() {
            return self.port.transmit(from);
        }
        let n = from.len().min(self.transmit_room());
        for frame in from.drain(..n) {
            self.transmit.pass(&mut self.port, &mut self.rng, self.now, &self.stats.transmitted, frame);
        }
        n
    }

    fn flush(&mut self) -> Outgoing {
        let overtaken = self.transmit.overtaken.take();
        self.transmit.release(self.now, overtaken);
        let mut burst = Burst::new();
        while !self.transmit.ready.is_empty() {
            let n = self.transmit.ready.len().min(BURST_FRAMES);
            burst.extend(self.transmit.ready.drain(..n));
            self.port.transmit(&mut burst);
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
        if self.transmit.rates.harmless() && self.transmit.is_clear() {
            return self.port.large().is_some_and(|large| large.send(header, payload, how));
        }
        if self.rng.chance(self.transmit.rates.drop) {
            return false;
        }
        let mut cuts = Cuts::new(header, payload, how);
        while let Some(bytes) = cuts.next_bytes() {
            let Some(mut frame) = self.port.take() else {
                self.stats.transmitted.dropped.add(1);
                break;
            };
            frame.set_len(bytes);
            cuts.write(frame.bytes_mut());
            self.transmit.pass(&mut self.port, &mut self.rng, self.now, &self.stats.transmitted, frame);
        }
        true
    }
}

#[cfg(test)]
mod tests;
