//! The loop that sends probes and takes answers, whatever carries them.
//!
//! Without a rate a probe goes out when an answer has come, or its time is over: a closed loop. With a rate probes go out when they
//! are due, whatever comes back: an open loop, which shows what waiting costs those that come meanwhile.

use super::tally::Tally;
use crate::error::Error;
use crate::words::Idle;
use base::Clock;
use echo::probe::{self, Fault};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Probes whose fate is remembered; so many may be on their way at once.
const SLOTS: u64 = 1 << 16;
/// Probes that are later than this many are not sent any more: the machine was away.
const LAG_MOST: u64 = 1000;
/// Probes that are sent between two looks at what has come.
const SENDS: u64 = 32;
/// A thread that sleeps looks this often whether it is to stop.
const SLEEP_MOST_NS: u64 = 100_000_000;
/// Under the adaptive policy an idle thread asks for so long before it sleeps: about what falling asleep and being woken cost.
const ASK_NS: u64 = 50_000;

/// What carries probes.
pub(super) trait Link {
    /// Sends probe `number`; false when there is no room now.
    ///
    /// # Errors
    /// It cannot be sent at all.
    fn send(&mut self, number: u64) -> Result<bool, Error>;

    /// Shows what has come, waiting for it at most as long as given.
    fn receive(&mut self, wait: Option<Duration>, show: &mut impl FnMut(&[u8]));

    /// Errors that routers or the server's host have reported so far.
    fn unreachable(&self) -> u64;
}

/// What is to be sent.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// marks this run's probes
    pub(super) run: u32,
    /// octets of a probe
    pub(super) bytes: usize,
    /// probes a second; None sends when an answer came
    pub(super) rate: Option<u32>,
    /// probes on their way at once, without a rate
    pub(super) in_flight: u64,
    /// an answer after this is none
    pub(super) timeout: Duration,
    /// what is sent in this time first is not counted
    pub(super) warm_up: Duration,
    /// how long probes are sent after that
    pub(super) span: Option<Duration>,
    /// how many are sent at most
    pub(super) count: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Out,
    Answered,
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    state: State,
    sent_ns: u64,
}

/// The probes whose fate is remembered, and what is known of them.
struct Window {
    run: u32,
    slots: Box<[Slot]>,
    /// every probe below has been answered or given up
    oldest: u64,
    /// the next to be sent
    next: u64,
    outstanding: u64,
    /// probes below are not counted
    measured_from: u64,
    /// one above the greatest that was answered
    answered_to: u64,
    tally: Tally,
}

impl Window {
    fn new(run: u32) -> Window {
        Window {
            run,
            slots: vec![Slot { state: State::Lost, sent_ns: 0 }; SLOTS as usize].into(),
            oldest: 0,
            next: 0,
            outstanding: 0,
            measured_from: u64::MAX,
            answered_to: 0,
            tally: Tally::default(),
        }
    }

    fn slot(&mut self, number: u64) -> &mut Slot {
        &mut self.slots[(number % SLOTS) as usize]
    }

    fn has_room(&self) -> bool {
        self.next - self.oldest < SLOTS
    }

    fn on_sent(&mut self, sent_ns: u64) {
        *self.slot(self.next) = Slot { state: State::Out, sent_ns };
        self.tally.sent += u64::from(self.next >= self.measured_from);
        self.next += 1;
        self.outstanding += 1;
    }

    fn on_answer(&mut self, now_ns: u64, answer: &[u8]) {
        let number = match probe::read(self.run, answer) {
            // who answers what was never sent has changed it
            Ok(number) if number < self.next => number,
            Ok(_) | Err(Fault::Damaged) => return self.tally.damaged += 1,
            Err(Fault::Foreign) => return self.tally.foreign += 1,
        };
        let counts = number >= self.measured_from;
        if self.next - number > SLOTS {
            // forgotten, so it was lost long ago
            self.tally.late += u64::from(counts);
            return;
        }
        let Slot { state, sent_ns } = *self.slot(number);
        match state {
            State::Answered => self.tally.duplicates += u64::from(counts),
            State::Lost => {
                self.slot(number).state = State::Answered;
                self.tally.late += u64::from(counts);
            }
            State::Out => {
                self.slot(number).state = State::Answered;
                self.outstanding -= 1;
                if counts {
                    self.tally.record(now_ns.saturating_sub(sent_ns));
                    self.tally.reordered += u64::from(number < self.answered_to);
                }
                self.answered_to = self.answered_to.max(number + 1);
            }
        }
    }

    /// Gives up what was sent longer than `timeout_ns` ago; when the next will be, if any is out.
    fn expire(&mut self, now_ns: u64, timeout_ns: u64) -> Option<u64> {
        while self.oldest < self.next {
            let number = self.oldest;
            let counts = number >= self.measured_from;
            let slot = self.slot(number);
            if slot.state == State::Out {
                let over_ns = slot.sent_ns + timeout_ns;
                if now_ns < over_ns {
                    return Some(over_ns);
                }
                slot.state = State::Lost;
                self.outstanding -= 1;
                self.tally.lost += u64::from(counts);
            }
            self.oldest += 1;
        }
        None
    }
}

/// When probes are due.
struct Pace {
    rate: Option<u32>,
    in_flight: u64,
    start_ns: u64,
    /// sent or given up
    done: u64,
}

impl Pace {
    /// How many are due, and how many of them are too late to be sent.
    fn due(&self, now_ns: u64, window: &Window) -> (u64, u64) {
        match self.rate {
            None => (self.in_flight.saturating_sub(window.outstanding), 0),
            Some(rate) => {
                let wanted = (u128::from(now_ns - self.start_ns) * u128::from(rate) / 1_000_000_000) as u64 + 1;
                let due = wanted.saturating_sub(self.done);
                (due, due.saturating_sub(LAG_MOST))
            }
        }
    }

    /// When the next one is due, if that is a matter of time.
    fn next_ns(&self) -> Option<u64> {
        let rate = u128::from(self.rate?);
        Some(self.start_ns + (u128::from(self.done) * 1_000_000_000).div_ceil(rate) as u64)
    }
}

/// Sends what `load` says, until it is done or `stop` is set.
///
/// # Errors
/// The link's.
pub(super) fn drive(link: &mut impl Link, load: &Load, idle: Idle, stop: &AtomicBool) -> Result<Tally, Error> {
    let clock = Clock::start();
    let now = || clock.now().as_nanos();
    let ns = |duration: Duration| duration.as_nanos() as u64;
    let mut window = Window::new(load.run);
    let start_ns = now();
    let mut pace = Pace { rate: load.rate, in_flight: load.in_flight, start_ns, done: 0 };
    let begin_ns = start_ns + ns(load.warm_up);
    let mut measured_ns = None;
    let (mut unreachable, mut active_ns) = (0, start_ns);
    loop {
        let now_ns = now();
        if measured_ns.is_none() && now_ns >= begin_ns {
            measured_ns = Some(now_ns);
            unreachable = link.unreachable();
            window.measured_from = window.next;
        }
        let over_ns = window.expire(now_ns, ns(load.timeout));
        let end_ns = measured_ns.zip(load.span).map(|(from_ns, span)| from_ns + ns(span));
        let all = load.count.is_some_and(|count| window.tally.sent >= count);
        let ended = all || end_ns.is_some_and(|end_ns| now_ns >= end_ns);
        if stop.load(Ordering::Relaxed) || (ended && window.outstanding == 0) {
            break;
        }
        if !ended {
            let left = load.count.map_or(u64::MAX, |count| count - window.tally.sent);
            if send_due(link, &mut window, &mut pace, left, now)? {
                active_ns = now_ns;
            }
        }
        let asks = match idle {
            Idle::Spin => true,
            Idle::Adaptive => now_ns < active_ns + ASK_NS,
            Idle::Block => false,
        };
        let wait = (!asks).then(|| {
            let next_ns = if ended { None } else { pace.next_ns() };
            let begins_ns = measured_ns.is_none().then_some(begin_ns);
            let until_ns = [over_ns, next_ns, end_ns.filter(|_| !ended), begins_ns].into_iter().flatten().min();
            let most_ns = until_ns.map_or(SLEEP_MOST_NS, |at| at.saturating_sub(now_ns).min(SLEEP_MOST_NS));
            Duration::from_nanos(most_ns)
        });
        link.receive(wait.filter(|wait| !wait.is_zero()), &mut |answer| {
            active_ns = now();
            window.on_answer(active_ns, answer);
        });
    }
    let mut tally = window.tally;
    tally.pending = tally.sent.saturating_sub(tally.answered + tally.lost);
    tally.unreachable = link.unreachable() - unreachable;
    tally.span_ns = measured_ns.map_or(0, |from_ns| now() - from_ns);
    Ok(tally)
}

/// Sends what is due, `left` at most; whether anything was.
fn send_due(
    link: &mut impl Link,
    window: &mut Window,
    pace: &mut Pace,
    left: u64,
    now: impl Fn() -> u64,
) -> Result<bool, Error> {
    let (due, too_late) = pace.due(now(), window);
    pace.done += too_late;
    let counts = window.next >= window.measured_from;
    window.tally.unsent += if counts { too_late } else { 0 };
    for sent in 0..(due - too_late).min(SENDS).min(left) {
        // the time before the call: what it costs is part of the round trip
        let sent_ns = now();
        if !window.has_room() || !link.send(window.next)? {
            return Ok(sent > 0);
        }
        window.on_sent(sent_ns);
        pace.done += 1;
    }
    Ok(due > too_late)
}

#[cfg(test)]
mod tests;
