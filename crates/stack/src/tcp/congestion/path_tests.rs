//! Whole transfers over a simulated path: one bottleneck with a drop-tail queue, senders that have always more to send, all the
//! leaves together (window, proportional rate reduction, round-trip time, pacing). Time is virtual and random loss comes from a seed, so a
//! run is always the same.

use super::*;
use crate::tcp::pace::{Pace, Rate};
use base::rng::Rng;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

const MSS: u32 = 1250;
const S: u64 = 1_000_000_000;

/// The path that all senders share.
struct Path {
    /// nanoseconds that a packet occupies the bottleneck
    packet_ns: u64,
    /// round-trip time without queueing
    rtt_ns: u64,
    queue_packets: u64,
    /// lost at random, of a million
    lost_ppm: u64,
}

#[derive(Clone, Copy)]
struct Transmission {
    id: u64,
    packet: u64,
    first: bool,
}

struct Sender {
    congestion: Congestion,
    rtt: Rtt,
    pace: Pace,
    prr: Option<Prr>,
    /// recovery ends here; `None` outside
    point: Option<u64>,
    timed_out: bool,
    next_packet: u64,
    next_id: u64,
    una: u64,
    /// received beyond `una`
    beyond: BTreeSet<u64>,
    outstanding: VecDeque<Transmission>,
    lost: BTreeSet<u64>,
    timer_at: u64,
    /// of the next [`Event::Wake`]
    wake_at: u64,
    /// when each packet was first acknowledged, and how many were lost so far
    delivered_at: Vec<u64>,
    losses: u64,
    timeouts: u64,
    threshold_found: Option<(u32, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// the acknowledgement of that transmission, made at that time
    Ack { id: u64, packet: u64, sent_at: u64 },
    /// pacing lets something leave
    Wake,
    /// the retransmission timer is looked at
    Timer,
}

impl Sender {
    fn new(algorithm: Algorithm, begins_at: u64) -> Sender {
        Sender {
            congestion: Congestion::new(algorithm, MSS),
            rtt: Rtt::new(),
            pace: Pace::default(),
            prr: None,
            point: None,
            timed_out: false,
            next_packet: 0,
            next_id: 0,
            una: 0,
            beyond: BTreeSet::new(),
            outstanding: VecDeque::new(),
            lost: BTreeSet::new(),
            timer_at: u64::MAX,
            wake_at: begins_at,
            delivered_at: Vec::new(),
            losses: 0,
            timeouts: 0,
            threshold_found: None,
        }
    }

    fn seq(packet: u64) -> Seq {
        Seq::new((packet * u64::from(MSS)) as u32)
    }

    fn pipe(&self) -> u32 {
        self.outstanding.len() as u32 * MSS
    }

    fn flight(&self) -> u32 {
        (self.next_packet - self.una) as u32 * MSS
    }

    fn rate(&self) -> Option<Rate> {
        let slow_start = self.congestion.in_slow_start();
        Rate::of(self.congestion.window(), self.rtt.smoothed_ns()?, self.rtt.min_ns()?, slow_start, MSS)
    }

    fn on_ack(&mut self, now: u64, id: u64, packet: u64, sent_at: u64) {
        let Some(at) = self.outstanding.iter().position(|sent| sent.id == id) else { return };
        // the path keeps order, so what is three transmissions behind is gone
        let first = self.outstanding[at].first;
        let behind = self.outstanding.iter().take_while(|sent| sent.id + 3 <= id).count();
        let gone: Vec<Transmission> = self.outstanding.drain(..behind).collect();
        self.outstanding.remove(at - behind);
        for gone in &gone {
            self.lost.insert(gone.packet);
            self.losses += 1;
        }
        let una_before = self.una;
        let window_before = self.congestion.window();
        let was_limited = self.pipe() + 2 * MSS > window_before || self.rate().is_some();
        let flight = self.flight();
        let new = packet >= self.una && self.beyond.insert(packet);
        while self.beyond.remove(&self.una) {
            self.una += 1;
        }
        if first {
            let samples = self.flight().div_ceil(2 * MSS);
            self.rtt.on_sample(Instant::from_nanos(now), now - sent_at, samples);
        }
        if new {
            self.delivered_at.push(now);
        }
        self.timer_at = now + self.rtt.rto_ns();
        let delivered = if new { MSS } else { 0 };
        let instant = Instant::from_nanos(now);
        if !gone.is_empty() && self.point.is_none() {
            self.point = Some(self.next_packet);
            let target = self.congestion.on_loss(flight, Sender::seq(self.next_packet), MSS);
            self.prr = Some(Prr::begin(target, flight));
        }
        match self.point {
            Some(point) if self.una >= point => {
                if !self.timed_out {
                    self.congestion.on_recovered(instant, MSS);
                }
                (self.point, self.prr, self.timed_out) = (None, None, false);
            }
            Some(_) if !self.timed_out => {
                let safe = self.una > una_before && gone.is_empty();
                let pipe = self.pipe();
                if let Some(window) = self.prr.as_mut().and_then(|prr| prr.on_ack(delivered, pipe, safe, MSS)) {
                    self.congestion.set_window(window);
                }
                return;
            }
            _ => {}
        }
        self.congestion.on_ack(&Ack {
            now: instant,
            acked_bytes: delivered,
            una: Sender::seq(self.una),
            nxt: Sender::seq(self.next_packet),
            rtt_ns: first.then_some(now - sent_at),
            smoothed_ns: self.rtt.smoothed_ns().unwrap_or(0),
            window_limited: was_limited,
            paced: self.rate().is_some(),
            mss_bytes: MSS,
        });
        if self.threshold_found.is_none() && !self.congestion.in_slow_start() {
            self.threshold_found = Some((self.congestion.threshold(), self.losses));
        }
    }

    fn on_timer(&mut self, now: u64) {
        if now < self.timer_at || self.outstanding.is_empty() {
            return;
        }
        self.timeouts += 1;
        self.congestion.on_timeout(self.flight(), Sender::seq(self.next_packet), self.timed_out, MSS);
        self.rtt.on_timeout();
        let all: Vec<u64> = self.outstanding.drain(..).map(|sent| sent.packet).collect();
        self.lost.extend(all);
        (self.point, self.prr, self.timed_out) = (Some(self.next_packet), None, true);
        self.timer_at = now + self.rtt.rto_ns();
    }

    /// The packets that may leave now, and when to come again.
    fn poll(&mut self, now: u64) -> (Vec<Transmission>, Option<u64>) {
        let (mut out, rate) = (Vec::new(), self.rate());
        let instant = Instant::from_nanos(now);
        let mut allowance = rate.map_or(u32::MAX, |rate| self.pace.allowance(instant, rate));
        let mut wake = None;
        while self.pipe() + MSS <= self.congestion.window().max(MSS) {
            if allowance == 0 {
                wake = Some(self.pace.next_at().as_nanos());
                break;
            }
            let again = self.lost.pop_first();
            let packet = again.unwrap_or(self.next_packet);
            if again.is_none() {
                self.next_packet += 1;
            }
            let sent = Transmission { id: self.next_id, packet, first: again.is_none() };
            self.next_id += 1;
            self.outstanding.push_back(sent);
            out.push(sent);
            allowance = allowance.saturating_sub(MSS);
            if let Some(prr) = &mut self.prr {
                prr.on_sent(MSS);
            }
            if let Some(rate) = rate {
                self.pace.on_sent(instant, u64::from(MSS), rate);
            }
        }
        if self.timer_at == u64::MAX && !out.is_empty() {
            self.timer_at = now + self.rtt.rto_ns();
        }
        (out, wake)
    }
}

/// Lets all senders send until `end`.
fn run(path: &Path, senders: &mut [Sender], end: u64) {
    let mut rng = Rng::new(7);
    let mut events: BinaryHeap<Reverse<(u64, usize, Event)>> = BinaryHeap::new();
    for (n, sender) in senders.iter().enumerate() {
        events.push(Reverse((sender.wake_at, n, Event::Wake)));
        events.push(Reverse((sender.wake_at, n, Event::Timer)));
    }
    let mut free_at = 0;
    while let Some(Reverse((now, n, event))) = events.pop() {
        if now >= end {
            return;
        }
        let sender = &mut senders[n];
        match event {
            Event::Ack { id, packet, sent_at } => sender.on_ack(now, id, packet, sent_at),
            Event::Wake => sender.wake_at = u64::MAX,
            Event::Timer => {
                sender.on_timer(now);
                // set anew meanwhile, or not set: looked at later
                let at = if sender.timer_at == u64::MAX { now + S } else { sender.timer_at.max(now + 1) };
                events.push(Reverse((at, n, Event::Timer)));
            }
        }
        let (out, wake) = sender.poll(now);
        if let Some(wake) = wake.filter(|wake| *wake < sender.wake_at) {
            sender.wake_at = wake;
            events.push(Reverse((wake, n, Event::Wake)));
        }
        for sent in out {
            let waiting = free_at.max(now) - now;
            if waiting > path.queue_packets * path.packet_ns || rng.below(1_000_000) < path.lost_ppm {
                continue;
            }
            free_at = now + waiting + path.packet_ns;
            let ack = Event::Ack { id: sent.id, packet: sent.packet, sent_at: now };
            // less than a packet's time of jitter keeps the order, and keeps drops from falling on one sender alone
            let jitter_ns = rng.below(path.packet_ns);
            events.push(Reverse((free_at + path.rtt_ns + jitter_ns, n, ack)));
        }
    }
}

/// The share of the path that one sender had from `begin` to `end`.
fn share(path: &Path, sender: &Sender, begin: u64, end: u64) -> f64 {
    let delivered = sender.delivered_at.iter().filter(|at| (begin..end).contains(*at)).count();
    delivered as f64 * path.packet_ns as f64 / (end - begin) as f64
}

/// 100 Mb/s and 100 ms: 1000 packets in flight.
fn long_path(queue_packets: u64) -> Path {
    Path { packet_ns: 100_000, rtt_ns: 100_000_000, queue_packets, lost_ppm: 0 }
}

#[test]
fn one_sender_fills_a_long_path() {
    for (algorithm, queue_packets, least) in [(Algorithm::Cubic, 500, 0.97), (Algorithm::NewReno, 1000, 0.95)] {
        let path = long_path(queue_packets);
        let mut senders = [Sender::new(algorithm, 0)];
        run(&path, &mut senders, 40 * S);
        let used = share(&path, &senders[0], 5 * S, 40 * S);
        println!("{algorithm:?}: {used:.3}, {} lost, {} timeouts", senders[0].losses, senders[0].timeouts);
        assert!(used > least, "{algorithm:?}: {used}");
        assert_eq!(senders[0].timeouts, 0);
    }
}

#[test]
fn the_first_slow_start_ends_before_a_deep_queue_overflows() {
    // Room for 10,000 packets, where doubling ends in thousands of losses. Delay is seen a round trip late, at some 2500
    // packets, and five rounds of growth by a quarter follow.
    let path = long_path(9000);
    let mut senders = [Sender::new(Algorithm::Cubic, 0)];
    run(&path, &mut senders, 10 * S);
    let (threshold, losses) = senders[0].threshold_found.expect("the end of slow start");
    println!("threshold {} packets, {losses} lost", threshold / MSS);
    assert_eq!(losses, 0);
    assert!((1000..9000).contains(&(threshold / MSS)), "{} packets", threshold / MSS);
}

#[test]
fn one_sender_fills_a_short_path_without_pacing() {
    // 1 Gb/s and 500 us: 50 packets in flight
    let path = Path { packet_ns: 10_000, rtt_ns: 500_000, queue_packets: 100, lost_ppm: 0 };
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
        let mut senders = [Sender::new(algorithm, 0)];
        run(&path, &mut senders, S);
        let used = share(&path, &senders[0], S / 10, S);
        println!("{algorithm:?}: {used:.3}, {} lost, {} timeouts", senders[0].losses, senders[0].timeouts);
        assert!(used > 0.95, "{algorithm:?}: {used}");
    }
}

#[test]
fn random_loss_costs_no_more_than_the_theory_says() {
    // 100 Mb/s, 20 ms, 1%: Reno's 1.22 / sqrt(p) packets a round trip are 610 packets a second (RFC 9438 section 5.2, figure 3 and its
    // Reno-friendly region)
    let path = Path { packet_ns: 100_000, rtt_ns: 20_000_000, queue_packets: 200, lost_ppm: 10_000 };
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
        let mut senders = [Sender::new(algorithm, 0)];
        run(&path, &mut senders, 60 * S);
        let per_s = senders[0].delivered_at.len() as f64 / 60.0;
        println!("{algorithm:?}: {per_s:.0} packets/s, {} lost, {} timeouts", senders[0].losses, senders[0].timeouts);
        assert!((480.0..750.0).contains(&per_s), "{algorithm:?}: {per_s}");
    }
}

#[test]
fn a_second_sender_gets_its_share() {
    // 10 ms: round trips short enough for CUBIC to be in its Reno-friendly region, where it converges fast
    let path = Path { packet_ns: 100_000, rtt_ns: 10_000_000, queue_packets: 100, lost_ppm: 0 };
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
        let mut senders = [Sender::new(algorithm, 0), Sender::new(algorithm, 10 * S)];
        run(&path, &mut senders, 80 * S);
        let shares = [0, 1].map(|n: usize| share(&path, &senders[n], 40 * S, 80 * S));
        println!("{algorithm:?}: {shares:.3?}");
        assert!(shares.iter().sum::<f64>() > 0.95, "{algorithm:?}: {shares:?}");
        assert!(shares.iter().all(|share| *share > 0.25), "{algorithm:?}: {shares:?}");
    }
}
