//! A queue of the in-memory NIC to which questions come when they are due, without anybody who sends them: whoever looks into it finds there
//! what has come meanwhile, as at a device, and a thread that sleeps is woken by a timer where a device has an interrupt. A generator would
//! need a processor of its own, or part of the one of a thread that it measures.

use anyhow::{Context as _, Result};
use base::rng::Rng;
use base::{Burst, Clock, Frame, Instant};
use port::pipe::{Pipe, Stats};
use port::{Facts, Outgoing, Port};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use wire::ethernet::{EtherType, Link};
use wire::{Protocol, Sum, ipv4, udp};

pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
pub(super) const PORT: u16 = 7;
/// Flow n has this port and n.
pub(super) const FIRST_PORT: u16 = 10_000;
/// Where the payload begins: the question's number in its flow, and when it was due.
const AT: usize = 14 + 20 + 8;
const PAYLOAD_BYTES: usize = 4 + 8;
const FRAME_BYTES: usize = AT + PAYLOAD_BYTES;
/// Questions that are put into a queue before somebody else has a turn.
const AT_ONCE: usize = 1024;

/// One load, and from when on.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) from: Instant,
    /// questions a second, of all queues together
    pub(super) per_second: f64,
}

/// When the questions of one queue are due: evenly, and those of the queues in turn.
struct Due {
    /// the beginning of each step, and how far apart the questions are, in nanoseconds; infinitely far when none are due
    steps: Vec<(f64, f64)>,
    end: f64,
    /// of the distance, how far behind the step's beginning the first one is
    phase: f64,
    next: Option<f64>,
}

impl Due {
    fn new(steps: &[Step], end: Instant, queue: usize, queues: usize) -> Due {
        let each = |step: &Step| (step.from.as_nanos() as f64, 1e9 * queues as f64 / step.per_second);
        let phase = (queue + 1) as f64 / queues as f64;
        let steps = steps.iter().map(each).rev().collect();
        let mut due = Due { steps, end: end.as_nanos() as f64, phase, next: None };
        due.next = due.first();
        due
    }

    /// The first of the step that is last in the list, or of a later one.
    fn first(&mut self) -> Option<f64> {
        while let Some((from, every)) = self.steps.last() {
            let first = from + self.phase * every;
            if first < self.until() {
                return Some(first);
            }
            self.steps.pop();
        }
        None
    }

    /// The end of the present step.
    fn until(&self) -> f64 {
        self.steps.iter().rev().nth(1).map_or(self.end, |(next, _)| *next)
    }

    /// When the next one is due; none any more after the last.
    fn next(&self) -> Option<Instant> {
        self.next.map(|ns| Instant::from_nanos(ns as u64))
    }

    fn advance(&mut self) {
        let Some((before, (_, every))) = self.next.zip(self.steps.last()) else { return };
        let next = before + every;
        if next < self.until() {
            self.next = Some(next);
        } else {
            self.steps.pop();
            self.next = self.first();
        }
    }
}

/// What all queues together have asked and what was answered.
pub(super) struct Tally {
    begun: Instant,
    window: Duration,
    /// of each flow, the number of the answer that is next
    flows: Vec<AtomicU32>,
    /// what was due in each, and how long each answer took, in nanoseconds
    windows: Vec<(AtomicU64, Mutex<Vec<u32>>)>,
    answered: AtomicU64,
    /// answers that left behind a later one of their flow
    overtaken: AtomicU64,
    /// questions that found no room
    refused: AtomicU64,
    /// queues to which nothing comes any more
    done: AtomicU64,
    queues: Vec<Arc<Stats>>,
}

impl Tally {
    /// What was asked, what was answered, what found the NIC's queue full.
    pub(super) fn counts(&self) -> [u64; 3] {
        let dropped: u64 = self.queues.iter().map(|queue| queue.dropped.get()).sum();
        let [answered, refused] = [&self.answered, &self.refused].map(|count| count.load(Ordering::Acquire));
        let asked = self.windows.iter().map(|(asked, _)| asked.load(Ordering::Acquire)).sum();
        [asked, answered, refused + dropped]
    }

    /// Questions that were not answered yet and may be; None while more are to come.
    pub(super) fn missing(&self) -> Option<u64> {
        let all_came = self.done.load(Ordering::Acquire) == self.queues.len() as u64;
        let [asked, answered, dropped] = self.counts();
        all_came.then(|| asked.saturating_sub(answered + dropped))
    }

    /// Answers that left behind a later one of their flow.
    pub(super) fn overtaken(&self) -> u64 {
        self.overtaken.load(Ordering::Acquire)
    }

    /// How many were due in each window, and for how long the answered ones took from when they were due, in nanoseconds; taken out.
    pub(super) fn windows(&self) -> impl Iterator<Item = (u64, Vec<u32>)> {
        self.windows.iter().map(|(asked, took)| {
            let took = std::mem::take(&mut *took.lock().unwrap_or_else(PoisonError::into_inner));
            (asked.load(Ordering::Acquire), took)
        })
    }

    fn window(&self, due: Instant) -> Option<&(AtomicU64, Mutex<Vec<u32>>)> {
        let window = (due - self.begun).as_nanos() / self.window.as_nanos().max(1);
        self.windows.get(usize::try_from(window).ok()?)
    }

    fn on_answer(&self, now: Instant, frame: &Frame) {
        let Some((flow, number, due)) = read(frame.bytes()) else { return };
        let Some(next) = self.flows.get(usize::from(flow)) else { return };
        let expected = next.fetch_max(number + 1, Ordering::AcqRel);
        // those between are lost, unless they come yet
        self.overtaken.fetch_add(u64::from(number < expected), Ordering::AcqRel);
        if let Some((_, took)) = self.window(due) {
            let ns = u32::try_from((now - due).as_nanos()).unwrap_or(u32::MAX);
            took.lock().unwrap_or_else(PoisonError::into_inner).push(ns);
        }
        self.answered.fetch_add(1, Ordering::AcqRel);
    }
}

/// What comes to the queues of a NIC.
pub(super) struct Traffic<'a> {
    pub(super) steps: &'a [Step],
    pub(super) end: Instant,
    /// the flows of each queue
    pub(super) flows: Vec<Vec<u16>>,
    /// of the tally
    pub(super) window: Duration,
    pub(super) clock: Clock,
}

/// One queue.
pub(super) struct Source {
    server: Pipe,
    /// the NIC's other side
    client: Pipe,
    clock: Clock,
    timer: OwnedFd,
    /// what the timer was set to: a time, or never to tell anything
    armed: Option<Option<Instant>>,
    due: Due,
    is_done: bool,
    /// each with the number of its next question
    flows: Vec<(u16, u32)>,
    next: usize,
    rng: Rng,
    tally: Arc<Tally>,
}

/// The queues of the server's end, whose other end is `clients`.
pub(super) fn sources(
    clients: Vec<Pipe>,
    servers: Vec<Pipe>,
    traffic: Traffic<'_>,
) -> Result<(Vec<Source>, Arc<Tally>)> {
    let Traffic { steps, end, flows, window, clock } = traffic;
    let begun = steps.first().map_or(end, |step| step.from);
    let windows = (end - begun).as_nanos().div_ceil(window.as_nanos().max(1));
    let count = flows.iter().flatten().max().map_or(0, |last| usize::from(*last) + 1);
    let tally = Arc::new(Tally {
        begun,
        window,
        flows: (0..count).map(|_| Default::default()).collect(),
        windows: (0..windows).map(|_| Default::default()).collect(),
        answered: AtomicU64::new(0),
        overtaken: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        done: AtomicU64::new(0),
        queues: clients.iter().map(|queue| queue.stats().clone()).collect(),
    });
    let queues = servers.len();
    let ends = clients.into_iter().zip(servers).zip(flows).enumerate();
    let sources = ends.map(|(queue, ((client, server), flows))| {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK).context("a timer")?;
        let due = Due::new(steps, end, queue, queues);
        let (rng, tally) = (Rng::new(17 + queue as u64), tally.clone());
        let (armed, is_done, next) = (None, false, 0);
        let flows = flows.into_iter().map(|flow| (flow, 0)).collect();
        Ok(Source { server, client, clock, timer, armed, due, is_done, flows, next, rng, tally })
    });
    Ok((sources.collect::<Result<_>>()?, tally))
}

impl Source {
    /// Puts in what has become due.
    fn bring(&mut self) {
        let now = self.clock.now();
        let mut burst = Burst::new();
        for _ in 0..AT_ONCE {
            let Some(due) = self.due.next().filter(|due| *due <= now) else { break };
            self.due.advance();
            let Some(at) = self.turn() else { continue };
            if let Some((asked, _)) = self.tally.window(due) {
                asked.fetch_add(1, Ordering::AcqRel);
            }
            // one that is not asked has no number, so that those of its flow have no gap
            let Some(mut frame) = self.client.take() else {
                self.tally.refused.fetch_add(1, Ordering::AcqRel);
                continue;
            };
            let (flow, number) = &mut self.flows[at];
            write(&mut frame, FIRST_PORT + *flow, *number, due);
            *number += 1;
            burst.push(frame);
            if burst.is_full() {
                self.client.transmit(&mut burst);
            }
        }
        if !burst.is_empty() {
            self.client.transmit(&mut burst);
        }
        if self.due.next().is_none() && !std::mem::replace(&mut self.is_done, true) {
            self.tally.done.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Whose turn it is: all have one, in another order each time.
    fn turn(&mut self) -> Option<usize> {
        if self.next == 0 {
            self.rng.shuffle(&mut self.flows);
        }
        let at = self.next;
        self.next = (at + 1).checked_rem(self.flows.len())?;
        Some(at)
    }

    /// Has the timer wake who sleeps when the next question is due. What it has told until now is forgotten.
    fn arm(&mut self) {
        let next = self.due.next();
        if self.armed.replace(next) == Some(next) {
            return;
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = next.map_or(zero, |next| {
            let ns = self.clock.zero_ns() + next.as_nanos();
            Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
        });
        // refused only for a time that is none
        let _ =
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval: zero, it_value: at });
    }
}

impl Port for Source {
    fn facts(&self) -> &Facts {
        self.server.facts()
    }

    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        self.bring();
        let received = self.server.receive(into, limit);
        // only who finds nothing may come to sleep
        if received == 0 && limit > 0 && self.server.waiting() == 0 {
            self.arm();
        }
        received
    }

    fn waiting(&mut self) -> usize {
        self.bring();
        self.server.waiting()
    }

    fn transmit_room(&mut self) -> usize {
        self.server.transmit_room()
    }

    fn transmit(&mut self, from: &mut Burst) -> usize {
        let sent = self.server.transmit(from);
        let (mut burst, now) = (Burst::new(), self.clock.now());
        while self.client.receive(&mut burst, 64) > 0 {
            for frame in burst.drain(..) {
                self.tally.on_answer(now, &frame);
                self.client.give(frame);
            }
        }
        sent
    }

    fn flush(&mut self) -> Outgoing {
        self.client.flush();
        self.server.flush()
    }

    fn take(&mut self) -> Option<Frame> {
        self.server.take()
    }

    fn give(&mut self, frame: Frame) {
        self.server.give(frame);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.timer.as_fd())
    }
}

fn write(frame: &mut Frame, port: u16, number: u32, due: Instant) {
    frame.set_len(FRAME_BYTES);
    let bytes = frame.bytes_mut();
    let link = Link { dst: [2, 0, 0, 0, 0, 2], src: [2, 0, 0, 0, 0, 1], tag: None, ether_type: EtherType::IPV4 };
    link.write(bytes);
    let payload_bytes = 8 + PAYLOAD_BYTES;
    let mut head = [0; 20];
    ipv4::Header { src: CLIENT, dst: SERVER, protocol: Protocol::UDP, ttl: 64, payload_bytes }.write(&mut head);
    bytes[14..34].copy_from_slice(&head);
    bytes[AT..AT + 4].copy_from_slice(&number.to_be_bytes());
    bytes[AT + 4..AT + 12].copy_from_slice(&due.as_nanos().to_be_bytes());
    let payload_sum = Sum::pseudo_v4(CLIENT, SERVER, Protocol::UDP, payload_bytes as u16);
    udp::write(&mut bytes[34..], port, PORT, payload_sum);
}

/// The flow of an answer, the number of its question, and when that was due.
fn read(answer: &[u8]) -> Option<(u16, u32, Instant)> {
    let answer = answer.get(..FRAME_BYTES)?;
    let flow = u16::from_be_bytes([answer[36], answer[37]]).checked_sub(FIRST_PORT)?;
    let number = answer[AT..].first_chunk().map(|bytes| u32::from_be_bytes(*bytes))?;
    let due = answer[AT + 4..].first_chunk().map(|bytes| u64::from_be_bytes(*bytes))?;
    Some((flow, number, Instant::from_nanos(due)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use port::pipe;
    use rustix::event::{PollFd, PollFlags, poll};

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn questions_are_due_evenly_at_each_queue_in_turn_as_the_load_says() {
        // ten a second, none, a hundred; of two queues
        let loads = [(0, 10.0), (1000, 0.0), (2000, 100.0)];
        let steps = loads.map(|(from, per_second)| Step { from: at(from), per_second });
        let all = |queue| {
            let mut due = Due::new(&steps, at(3000), queue, 2);
            std::iter::from_fn(|| {
                let next = due.next()?;
                due.advance();
                Some(next.as_nanos() / 1_000_000)
            })
            .collect::<Vec<_>>()
        };
        let (first, second) = (all(0), all(1));
        assert_eq!(first[..5], [100, 300, 500, 700, 900]);
        assert_eq!(first[5..], (0..50).map(|n| 2010 + 20 * n).collect::<Vec<_>>());
        // what would be due with the next step's beginning is that one's
        assert_eq!(second[..4], [200, 400, 600, 800]);
        assert_eq!(second[4..], (1..50).map(|n| 2000 + 20 * n).collect::<Vec<_>>());
        assert_eq!(Due::new(&[], at(3000), 0, 1).next(), None);
    }

    /// One queue and its tally: 1000 a second for 50 ms in three flows.
    fn source(ring_frames: usize) -> (Source, Arc<Tally>, Clock) {
        let clock = Clock::start();
        let config = pipe::Config { ring_frames, frames: 128, ..pipe::Config::default() };
        let (clients, servers) = pipe::pair(&config).unwrap();
        let begun = clock.now();
        let traffic = Traffic {
            steps: &[Step { from: begun, per_second: 1000.0 }],
            end: begun + Duration::from_millis(50),
            flows: vec![vec![0, 1, 2]],
            window: Duration::from_millis(10),
            clock,
        };
        let (mut sources, tally) = sources(clients, servers, traffic).unwrap();
        (sources.remove(0), tally, clock)
    }

    /// Answers these questions.
    fn answer(source: &mut Source, questions: &mut Burst) {
        for frame in questions.iter_mut() {
            let ports = &mut frame.bytes_mut()[34..38];
            ports.rotate_left(2);
        }
        source.transmit(questions);
        source.flush();
    }

    fn sleeps(source: &Source, ms: u32) -> bool {
        let most = Timespec { tv_sec: 0, tv_nsec: i64::from(ms) * 1_000_000 };
        poll(&mut [PollFd::from_borrowed_fd(source.timer.as_fd(), PollFlags::IN)], Some(&most)) == Ok(0)
    }

    #[test]
    fn who_sleeps_is_woken_for_each_question_and_every_answer_is_counted_once() {
        let (mut source, tally, _) = source(64);
        let (mut burst, mut received, mut wakes) = (Burst::new(), 0, 0);
        while tally.missing() != Some(0) {
            match source.receive(&mut burst, 64) {
                0 if source.due.next().is_some() => {
                    assert!(!sleeps(&source, 900), "asleep with questions to come");
                    wakes += 1;
                }
                0 => break,
                n => received += n,
            }
            answer(&mut source, &mut burst);
        }
        assert_eq!((tally.counts(), tally.missing(), tally.overtaken()), ([49, 49, 0], Some(0), 0));
        assert!(received == 49 && (1..=50).contains(&wakes), "{received} in {wakes}");
        let windows: Vec<_> = tally.windows().map(|(asked, took)| (asked, took.len())).collect();
        assert_eq!(windows.len(), 5);
        assert!(windows.iter().all(|(asked, answered)| (9..=10).contains(asked) && *answered == *asked as usize));
        // and nobody is woken for nothing when it is over
        assert!(source.receive(&mut burst, 64) == 0 && sleeps(&source, 20));
    }

    #[test]
    fn what_finds_no_room_and_what_is_overtaken_is_counted() {
        let (mut source, tally, clock) = source(8);
        while clock.now() < tally.begun + Duration::from_millis(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut burst = Burst::new();
        assert_eq!((source.waiting(), tally.counts(), tally.missing()), (8, [49, 0, 41], Some(8)));
        assert_eq!(source.receive(&mut burst, 64), 8);
        // of three flows two have their third answers first
        let mut last = Burst::new();
        last.extend(burst.drain(6..));
        answer(&mut source, &mut last);
        answer(&mut source, &mut burst);
        assert_eq!((tally.counts(), tally.missing(), tally.overtaken()), ([49, 8, 41], Some(0), 4));
    }
}
