//! One direction of a faulty port: what may happen, what has happened, and what is held back.

use super::burst::BurstLoss;
use crate::Port;
use base::rng::Rng;
use base::{Counter, Frame, Instant};
use std::collections::VecDeque;
use std::time::Duration;

/// What happens to the frames of one direction: probabilities from 0.0 to 1.0, judged one after the other in this order; then the
/// line and the distance, which meet every frame.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// it is lost
    pub drop: f64,
    /// it is lost, and some behind it too
    pub burst: Option<BurstLoss>,
    /// one of its bits is flipped
    pub corrupt: f64,
    /// it comes twice (once, when there is no free frame for the copy)
    pub duplicate: f64,
    /// it comes after the frame behind it
    pub reorder: f64,
    /// how long it waits for one; at the next call it goes without when this is zero
    pub reorder_wait: Duration,
    /// it comes later
    pub delay: f64,
    /// by less than this
    pub delay_below: Duration,
    /// the line that all frames go over one by one
    pub line: Option<Line>,
    /// every frame comes so much later
    pub latency: Duration,
    /// frames held at most; what comes on top is lost. None: as many as the port has.
    pub room_frames: Option<usize>,
}

/// A line of a certain rate, and the queue before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// bits a second; a frame's bits are those that the port has: neither preamble nor frame check sequence
    pub bits_per_s: f64,
    /// a frame that would wait longer for the line is lost
    pub queue: Duration,
}

impl Line {
    /// How long a frame occupies the line.
    fn time(&self, bytes: usize) -> Duration {
        // the conversion saturates: a line of no rate is one that never gets free
        Duration::from_nanos((bytes as f64 * 8e9 / self.bits_per_s) as u64)
    }
}

impl Rates {
    fn harmless(&self) -> bool {
        self.burst.is_none()
            && self.line.is_none()
            && self.latency == Duration::ZERO
            && [self.drop, self.corrupt, self.duplicate, self.reorder, self.delay].iter().all(|rate| *rate <= 0.0)
    }
}

/// What one direction has done.
#[derive(Debug, Default)]
pub struct Injuries {
    /// frames that came out, whole or not
    pub passed: Counter,
    /// frames lost singly
    pub dropped: Counter,
    /// frames lost in bursts
    pub burst_dropped: Counter,
    /// frames with a flipped bit
    pub corrupted: Counter,
    /// copies made
    pub duplicated: Counter,
    /// frames held to be overtaken
    pub reordered: Counter,
    /// frames held for a random time
    pub delayed: Counter,
    /// frames lost for want of room: as many were held as may be, or the line's queue was too long
    pub overflowed: Counter,
}

/// What both directions have done.
#[derive(Debug, Default)]
pub struct Stats {
    /// of received frames
    pub received: Injuries,
    /// of transmitted frames
    pub transmitted: Injuries,
}

/// What a lane needs of its port for one step.
pub(super) struct Step<'a, P> {
    pub(super) port: &'a mut P,
    pub(super) rng: &'a mut Rng,
    pub(super) now: Instant,
    pub(super) injuries: &'a Injuries,
}

/// One direction.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) rates: Rates,
    /// the state of [`Rates::burst`]
    bad: bool,
    /// when the line has sent what it has
    line_free_at: Instant,
    /// to be overtaken by the next frame, until then
    overtaken: Option<(Instant, Frame)>,
    /// sorted by time, ties in order of arrival
    delayed: VecDeque<(Instant, Frame)>,
    pub(super) ready: VecDeque<Frame>,
}

impl Lane {
    pub(super) fn new(rates: Rates) -> Lane {
        Lane {
            rates,
            bad: false,
            line_free_at: Instant::ZERO,
            overtaken: None,
            delayed: VecDeque::new(),
            ready: VecDeque::new(),
        }
    }

    /// Nothing is held.
    pub(super) fn is_clear(&self) -> bool {
        self.overtaken.is_none() && self.delayed.is_empty() && self.ready.is_empty()
    }

    /// Frames may pass by.
    pub(super) fn is_idle(&self) -> bool {
        self.rates.harmless() && self.is_clear()
    }

    /// When something held comes due.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let waits = self.rates.reorder_wait > Duration::ZERO;
        let overtaken = self.overtaken.as_ref().filter(|_| waits).map(|(until, _)| *until);
        let delayed = self.delayed.front().map(|(at, _)| *at);
        [overtaken, delayed].into_iter().flatten().min()
    }

    /// Judges one frame.
    pub(super) fn pass<P: Port>(&mut self, step: &mut Step<'_, P>, mut frame: Frame) {
        let rates = self.rates;
        if step.rng.chance(rates.drop) {
            step.injuries.dropped.add(1);
            return step.port.give(frame);
        }
        if rates.burst.is_some_and(|burst| burst.judge(&mut self.bad, step.rng)) {
            step.injuries.burst_dropped.add(1);
            return step.port.give(frame);
        }
        if step.rng.chance(rates.corrupt) && !frame.is_empty() {
            let bit = step.rng.below(frame.len() as u64 * 8);
            frame.bytes_mut()[(bit / 8) as usize] ^= 1 << (bit % 8);
            step.injuries.corrupted.add(1);
        }
        if step.rng.chance(rates.duplicate)
            && let Some(mut copy) = step.port.take()
        {
            if copy.fill(frame.bytes()) {
                step.injuries.duplicated.add(1);
                self.send(step, copy, Duration::ZERO);
            } else {
                step.port.give(copy);
            }
        }
        if step.rng.chance(rates.reorder) && self.overtaken.is_none() {
            step.injuries.reordered.add(1);
            self.overtaken = Some((step.now + rates.reorder_wait, frame));
            return;
        }
        let mut later = Duration::ZERO;
        if step.rng.chance(rates.delay) && rates.delay_below > Duration::ZERO {
            step.injuries.delayed.add(1);
            let span = u64::try_from(rates.delay_below.as_nanos()).unwrap_or(u64::MAX);
            later = Duration::from_nanos(step.rng.below(span));
        }
        self.send(step, frame, later);
        if let Some((_, frame)) = self.overtaken.take() {
            self.send(step, frame, Duration::ZERO);
        }
    }

    /// Sends a frame on its way: over the line, then as far as it is, and `later`.
    fn send<P: Port>(&mut self, step: &mut Step<'_, P>, frame: Frame, later: Duration) {
        let held = self.delayed.len() + self.ready.len();
        let mut leaves_at = step.now;
        let mut waits_too_long = false;
        if let Some(line) = self.rates.line {
            let begins_at = self.line_free_at.max(step.now);
            waits_too_long = begins_at - step.now > line.queue;
            leaves_at = begins_at + line.time(frame.len());
        }
        if waits_too_long || self.rates.room_frames.is_some_and(|room| held >= room) {
            step.injuries.overflowed.add(1);
            return step.port.give(frame);
        }
        self.line_free_at = leaves_at;
        let due_at = leaves_at + self.rates.latency + later;
        if due_at <= step.now {
            return self.ready.push_back(frame);
        }
        // of a constant latency the last comes last
        let at = match self.delayed.back() {
            Some((last, _)) if *last > due_at => self.delayed.partition_point(|(other, _)| *other <= due_at),
            _ => self.delayed.len(),
        };
        self.delayed.insert(at, (due_at, frame));
    }

    /// Makes ready what is due, and, when nothing came, what waited long enough to be overtaken.
    pub(super) fn release<P: Port>(&mut self, step: &mut Step<'_, P>, nothing_came: bool) {
        while self.delayed.front().is_some_and(|(at, _)| *at <= step.now) {
            self.ready.extend(self.delayed.pop_front().map(|(_, frame)| frame));
        }
        let waited = |(until, _): &mut (Instant, Frame)| nothing_came && *until <= step.now;
        if let Some((_, frame)) = self.overtaken.take_if(waited) {
            self.send(step, frame, Duration::ZERO);
        }
    }
}
