use super::*;
use app::Listener;
use port::pipe::{self, Pipe};
use port::{Facts, Outgoing, Port};
use stack::{Claim, ClaimMode, OwnAddress, UdpListener};
use std::net::Ipv4Addr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use wire::ethernet::{EtherType, Link};
use wire::{Protocol, Sum, ipv4, udp};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// Echoes; the datagram "panic" does what it says, after those before it were answered.
struct Fragile;

impl Service for Fragile {
    fn datagrams(&mut self, _: Instant, _: Listener, burst: &mut [app::Datagram<'_>]) {
        for datagram in burst {
            assert_ne!(datagram.question(), b"panic");
            datagram.reply(datagram.question().len());
        }
    }
}

fn question(port: &Pipe, peer: &Pipe, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 14 + 20 + 8];
    frame.extend(payload);
    let link = Link { dst: port.facts().mac, src: peer.facts().mac, tag: None, ether_type: EtherType::IPV4 };
    link.write(&mut frame);
    let payload_bytes = 8 + payload.len();
    let mut head = [0; 20];
    ipv4::Header { src: CLIENT, dst: SERVER, protocol: Protocol::UDP, ttl: 64, payload_bytes }.write(&mut head);
    frame[14..34].copy_from_slice(&head);
    udp::write(&mut frame[34..], 4000, 53, Sum::pseudo_v4(CLIENT, SERVER, Protocol::UDP, payload_bytes as u16));
    frame
}

/// Sends these payloads, runs a cycle that may panic, and gives how many answers came and whether it did.
fn exchange(cycles: &mut Loop<Pipe, Fragile>, peer: &mut Pipe, payloads: &[&[u8]]) -> (usize, bool) {
    let mut burst = Burst::new();
    for payload in payloads {
        let mut frame = peer.take().expect("a free frame");
        assert!(frame.fill(&question(cycles.port(), peer, payload)));
        burst.push(frame);
    }
    peer.transmit(&mut burst);
    peer.flush();
    let panicked = catch_unwind(AssertUnwindSafe(|| cycles.cycle(Instant::ZERO))).is_err();
    if panicked {
        let stack = cycles.stack().successor();
        cycles.recover(stack, Fragile);
    }
    // what went home in the recovery is fetched from the wire
    cycles.cycle(Instant::ZERO);
    peer.receive(&mut burst, 64);
    let answers = burst.len();
    burst.drain(..).for_each(|frame| peer.give(frame));
    peer.flush();
    (answers, panicked)
}

/// A port that sends so many frames and is full then.
#[derive(Debug)]
struct Full(Pipe, usize);

impl Port for Full {
    fn facts(&self) -> &Facts {
        self.0.facts()
    }
    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        self.0.receive(into, limit)
    }
    fn waiting(&mut self) -> usize {
        self.0.waiting()
    }
    fn transmit_room(&mut self) -> usize {
        self.1
    }
    fn transmit(&mut self, from: &mut Burst) -> usize {
        let mut now: Burst = from.drain(..from.len().min(self.1)).collect();
        let sent = self.0.transmit(&mut now);
        self.1 -= sent;
        sent
    }
    fn flush(&mut self) -> Outgoing {
        self.0.flush()
    }
    fn take(&mut self) -> Option<Frame> {
        self.0.take()
    }
    fn give(&mut self, frame: Frame) {
        self.0.give(frame);
    }
}

/// A loop that echoes in bursts of so many, over this port.
fn echo<P: Port>(port: P, batch: usize) -> Loop<P, Fragile> {
    let config = stack::Config {
        own: vec![OwnAddress { addr: SERVER.into(), prefix_len: 24 }],
        listeners: vec![UdpListener { listener: Listener(0), local: (SERVER, 53).into() }],
        claim: Claim { mode: ClaimMode::Silent, ..Claim::default() },
        ..stack::Config::default()
    };
    let stack = stack::Stack::new(config, port.facts());
    Loop::new(port, stack, Fragile, batch)
}

#[test]
fn overload_waits_at_the_port_and_the_loop_never_holds_more_than_a_batch() {
    const ROOM: usize = 100;
    for copies in [false, true] {
        for batch in [1, 8, 64] {
            let config = pipe::Config { ring_frames: 128, ..pipe::Config::default() };
            let (mut ours, mut theirs) = pipe::pair(&config).unwrap();
            let mut peer = theirs.remove(0);
            let mut cycles = echo(Full(ours.remove(0), ROOM), batch).with_copies(copies);
            let mut burst = Burst::new();
            for _ in 0..16 {
                for _ in 0..64 {
                    let mut frame = peer.take().expect("a free frame");
                    assert!(frame.fill(&question(&cycles.port().0, &peer, b"one")));
                    burst.push(frame);
                }
                peer.transmit(&mut burst);
                peer.flush();
                for _ in 0..64 {
                    cycles.cycle(Instant::ZERO);
                    assert!(cycles.rx.is_empty() && cycles.tx.len() <= batch, "{} of {batch}", cycles.tx.len());
                }
            }
            assert_eq!(
                cycles.counters().received.get(),
                ROOM as u64,
                "no work was put into more than there is room for"
            );
            assert_eq!(cycles.port().waiting(), 128, "the port's queue is full");
            // what found no room there was dropped, and nobody had looked at it
            assert_eq!(peer.stats().dropped.get(), 16 * 64 - 128 - ROOM as u64);
        }
    }
}

#[test]
fn a_panic_loses_no_frame_whether_answers_are_copied_or_not() {
    for copies in [false, true] {
        let (mut ours, mut theirs) = pipe::pair(&pipe::Config { frames: 64, ..pipe::Config::default() }).unwrap();
        let mut peer = theirs.remove(0);
        let mut cycles = echo(ours.remove(0), 64).with_copies(copies);
        // many times more frames than there are
        for round in 1..=50 {
            assert_eq!(exchange(&mut cycles, &mut peer, &[b"one", b"two", b"panic", b"three"]), (0, true));
            assert_eq!(cycles.counters().dropped_panic.get(), 4 * round, "copies: {copies}");
            assert_eq!(exchange(&mut cycles, &mut peer, &[b"one", b"two", b"three"]), (3, false));
        }
        assert_eq!(cycles.stack().counters().dropped(stack::DropReason::NoFrame), 0);
    }
}

/// Answers nothing, and counts how often it is told of an overrun.
#[derive(Default)]
struct Told(usize);

impl Floor for Told {
    fn input<S: Service>(&mut self, _: Instant, rx: &mut Burst, _: &mut Burst, free: &mut Burst, _: &mut S) {
        free.extend(rx.drain(..));
    }

    fn poll<S: Service>(&mut self, _: Instant, _: &mut dyn Supply, _: &mut Burst, _: &mut S) -> Option<Instant> {
        None
    }

    fn overrun(&mut self, _: Instant) {
        self.0 += 1;
    }
}

#[test]
fn a_stack_is_told_when_the_ports_queue_was_full() {
    for (sent, bursts, told) in [(55, 7, 0), (56, 7, 1), (64, 8, 2), (70, 8, 2)] {
        let config = pipe::Config { ring_frames: 64, frames: 128, ..pipe::Config::default() };
        let (mut ours, mut theirs) = pipe::pair(&config).unwrap();
        let mut cycles = Loop::new(ours.remove(0), Told::default(), Fragile, 8);
        for _ in 0..sent {
            let mut frame = theirs[0].take().expect("a free frame");
            assert!(frame.fill(b"something"));
            let mut burst = Burst::new();
            burst.push(frame);
            theirs[0].transmit(&mut burst);
        }
        let received = (0..20).filter(|_| cycles.cycle(Instant::ZERO).received > 0).count();
        assert_eq!((received, cycles.stack().0), (bursts, told), "{sent}");
    }
}

/// Gathers a frame whenever it may.
struct Gatherer(Arc<[u8]>);

impl Floor for Gatherer {
    fn input<S: Service>(&mut self, _: Instant, rx: &mut Burst, _: &mut Burst, free: &mut Burst, _: &mut S) {
        free.extend(rx.drain(..));
    }

    fn poll<S: Service>(&mut self, now: Instant, supply: &mut dyn Supply, _: &mut Burst, _: &mut S) -> Option<Instant> {
        if let Some(gather) = supply.gather() {
            let unused = gather.frame().expect("a free frame");
            gather.give_back(unused);
            let mut head = gather.frame().expect("a free frame");
            assert!(head.fill(b"head"));
            gather.send(head, Piece::new(self.0.clone(), 2, 3)).expect("it is short enough");
        }
        Some(now)
    }
}

#[test]
fn gathered_frames_count_as_sent_and_a_tap_sees_them_whole() {
    let (mut ours, mut theirs) = pipe::pair(&pipe::Config { frames: 4, ..pipe::Config::default() }).unwrap();
    let shared: Arc<[u8]> = (b'a'..=b'z').collect();
    let mut cycles = Loop::new(ours.remove(0), Gatherer(shared.clone()), Fragile, 64);
    assert_eq!(cycles.cycle(Instant::ZERO).transmitted, 0, "the port does not gather");
    cycles.port().set_gathers(true);
    let activity = cycles.cycle(Instant::ZERO);
    assert!(activity.transmitted == 1 && activity.is_busy());
    let (tap, mut copies) = crate::tap::tap(4);
    cycles.set_tap(Some(tap));
    assert_eq!(cycles.cycle(Instant::ZERO).transmitted, 1);
    let copy = copies.pop().unwrap();
    assert_eq!((copy.direction, &*copy.bytes), (Direction::Out, &b"headcde"[..]));
    assert!(copies.pop().is_none());
    assert_eq!(cycles.counters().transmitted.get(), 2);
    let mut burst = Burst::new();
    assert_eq!(theirs[0].receive(&mut burst, 64), 2);
    assert!(burst.iter().all(|frame| frame.bytes() == b"headcde"));
    burst.drain(..).for_each(|frame| theirs[0].give(frame));
}
