//! Segments by hand against a connection of ours: resets and SYNs that are guessed, old and mad acknowledgements, closed windows,
//! silence, floods, TIME-WAIT, ICMP.

mod world;

use app::{DeadReason, Service};
use base::{Burst, Instant, Seq};
use port::Port;
use port::pipe::{self, Pipe};
use stack::tcp::{Event, Ignored};
use stack::{Stack, TcpConfig};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use wire::ethernet::{EtherType, Link};
use wire::ipv4::{self, Ipv4};
use wire::tcp::{Flags, Header, PayloadSum, SackBlock, Tcp};
use wire::{Protocol, Sum, icmpv4};
use world::{Peer, Script, pattern};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 2];
const A: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const B: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// A segment of ours, as it came out.
#[derive(Clone, Debug)]
struct Out {
    at: Instant,
    seq: Seq,
    ack: Seq,
    flags: Flags,
    payload: Vec<u8>,
    sack: Vec<SackBlock>,
    mss: Option<u16>,
    scale: Option<u8>,
    sack_permitted: bool,
}

struct Hand {
    stack: Stack,
    port: Pipe,
    far: Pipe,
    peer: Peer,
    now: Instant,
    from: u16,
    to: u16,
    /// what we send next, and expect next
    seq: Seq,
    ack: Seq,
}

impl Hand {
    fn new(script: Script, change: impl FnOnce(&mut TcpConfig)) -> Hand {
        let (mut ours, mut theirs) =
            pipe::pair(&pipe::Config { macs: [OURS, THEIRS], ..pipe::Config::default() }).unwrap();
        let (port, far) = (ours.remove(0), theirs.remove(0));
        let mut tcp = world::tcp(10_000);
        change(&mut tcp);
        let stack = Stack::new(world::config(0, tcp), port.facts());
        let (peer, seq) = (Peer::new(Some(script)), Seq::new(0xffff_ff00));
        Hand { stack, port, far, peer, now: Instant::ZERO, from: 4000, to: 80, seq, ack: Seq::new(0) }
    }

    fn head(&self, flags: Flags) -> Header<'static> {
        let (src_port, dst_port, seq, ack) = (self.from, self.to, self.seq, self.ack);
        Header { src_port, dst_port, seq, ack, flags, window: 60_000, ..Header::default() }
    }

    fn frame(protocol: Protocol, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 34];
        Link { dst: OURS, src: THEIRS, tag: None, ether_type: EtherType::IPV4 }.write(&mut frame);
        let head = frame[14..].first_chunk_mut().unwrap();
        ipv4::Header { src: B, dst: A, protocol, ttl: 64, payload_bytes: payload.len() }.write(head);
        frame.extend(payload);
        frame
    }

    /// Sends a segment; what came back at once.
    fn send(&mut self, header: Header<'_>, payload: &[u8]) -> Vec<Out> {
        let mut segment = vec![0; header.bytes()];
        segment.extend(payload);
        let pseudo = Sum::pseudo_v4(B, A, Protocol::TCP, segment.len() as u16);
        header.write(&mut segment, pseudo, PayloadSum::Known(Sum::of(payload)));
        self.inject(&Hand::frame(Protocol::TCP, &segment))
    }

    fn inject(&mut self, bytes: &[u8]) -> Vec<Out> {
        let mut frame = self.far.take().unwrap();
        assert!(frame.fill(bytes));
        let mut burst = Burst::new();
        burst.push(frame);
        self.far.transmit(&mut burst);
        self.turn()
    }

    fn turn(&mut self) -> Vec<Out> {
        let (mut rx, mut tx, mut free) = (Burst::new(), Burst::new(), Burst::new());
        self.port.receive(&mut rx, 64);
        self.peer.cycle(self.now);
        self.stack.input(self.now, &mut rx, &mut tx, &mut free, &mut self.peer);
        self.stack.poll(self.now, &mut self.port, &mut tx, &mut self.peer);
        self.port.transmit(&mut tx);
        for frame in free.drain(..) {
            self.port.give(frame);
        }
        self.port.flush();
        self.heard()
    }

    fn heard(&mut self) -> Vec<Out> {
        let mut burst = Burst::new();
        let mut out = Vec::new();
        while self.far.receive(&mut burst, 64) > 0 {
            for frame in burst.drain(..) {
                let ip = Ipv4::parse(&frame.bytes()[14..]).expect("a sound packet");
                assert_eq!((ip.src(), ip.dst()), (A, B));
                let pseudo = Sum::pseudo_v4(A, B, Protocol::TCP, ip.payload().len() as u16);
                let tcp = Tcp::parse(ip.payload()).unwrap();
                assert_eq!(tcp.verdict(pseudo), wire::tcp::Verdict::Good);
                let options = tcp.options();
                out.push(Out {
                    at: self.now,
                    seq: tcp.seq(),
                    ack: tcp.ack(),
                    flags: tcp.flags(),
                    payload: tcp.payload().to_vec(),
                    sack: options.sack_blocks().collect(),
                    mss: options.mss,
                    scale: options.window_scale,
                    sack_permitted: options.sack_permitted,
                });
                self.far.give(frame);
            }
        }
        self.far.flush();
        out
    }

    /// Lets time pass in steps of 10 ms; what came.
    fn pass(&mut self, span: Duration) -> Vec<Out> {
        let end = self.now + span;
        let mut out = Vec::new();
        while self.now < end {
            self.now += Duration::from_millis(10);
            out.extend(self.turn());
        }
        out
    }

    /// A handshake, with SACK and a window scale of 2 if so asked.
    fn open(&mut self, options: bool) -> Out {
        let syn = Header {
            mss: Some(1000),
            window_scale: options.then_some(2),
            sack_permitted: options,
            ..self.head(Flags::SYN)
        };
        let answers = self.send(syn, b"");
        let [syn_ack] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(syn_ack.flags, Flags::SYN | Flags::ACK);
        assert_eq!(syn_ack.ack, self.seq + 1);
        (self.seq, self.ack) = (self.seq + 1, syn_ack.seq + 1);
        self.send(self.head(Flags::ACK), b"");
        assert_eq!(self.peer.ends.len(), 1);
        syn_ack.clone()
    }

    fn event(&self, event: Event) -> u64 {
        self.stack.tcp_counters().unwrap().event(event)
    }

    fn ignored(&self, reason: Ignored) -> u64 {
        self.stack.tcp_counters().unwrap().ignored(reason)
    }

    fn end(&self) -> &Script {
        self.peer.ends.values().next().unwrap()
    }
}

fn waiting() -> Script {
    Script { send: 1, after_eof: true, ..Script::default() }
}

#[test]
fn only_the_exact_reset_resets() {
    let mut hand = Hand::new(waiting(), |_| {});
    hand.open(true);
    for (offset, answered) in [(1u32, true), (5000, true), (20_000, false), (0u32.wrapping_sub(1), false)] {
        hand.pass(Duration::from_secs(1));
        let answers = hand.send(Header { seq: hand.seq + offset, ..hand.head(Flags::RST) }, b"");
        assert_eq!(answers.len(), usize::from(answered), "{offset}");
        assert_eq!(hand.end().dead, None);
    }
    assert_eq!((hand.ignored(Ignored::ResetInWindow), hand.ignored(Ignored::ResetOutside)), (2, 2));
    // challenges are limited
    let answers: usize =
        (1..100).map(|n| hand.send(Header { seq: hand.seq + n, ..hand.head(Flags::RST) }, b"").len()).sum();
    assert!(answers <= 1, "{answers}");
    assert!(hand.send(hand.head(Flags::RST), b"").is_empty());
    assert_eq!(hand.end().dead, Some(DeadReason::Reset));
}

#[test]
fn a_syn_or_a_mad_acknowledgement_is_challenged_and_changes_nothing() {
    let mut hand = Hand::new(waiting(), |_| {});
    hand.open(true);
    let (seq, ack) = (hand.seq, hand.ack);
    for header in [
        Header { seq: seq + 7, ..hand.head(Flags::SYN) },
        Header { ack: ack + 1, ..hand.head(Flags::ACK) },
        Header { ack: ack - 200_000, ..hand.head(Flags::ACK) },
        Header { seq: seq + 40_000, ..hand.head(Flags::ACK) },
    ] {
        hand.pass(Duration::from_secs(1));
        let answers = hand.send(header, b"");
        assert_eq!(answers.len(), 1, "{header:?}");
        assert_eq!((answers[0].flags, answers[0].seq, answers[0].ack), (Flags::ACK, ack, seq));
    }
    assert_eq!(hand.event(Event::Challenge), 4);
    assert_eq!(hand.end().dead, None);
    // and it goes on
    let bytes: Vec<u8> = (0..10).map(pattern).collect();
    hand.send(hand.head(Flags::ACK), &bytes);
    assert_eq!(hand.end().received, 10);
}

#[test]
fn sack_tells_what_is_kept_and_what_came_twice() {
    let mut hand = Hand::new(waiting(), |_| {});
    hand.open(true);
    let bytes: Vec<u8> = (0..5000).map(pattern).collect();
    let seq = hand.seq;
    let piece = |hand: &mut Hand, from: u32, to: u32| {
        let answers =
            hand.send(Header { seq: seq + from, ..hand.head(Flags::ACK) }, &bytes[from as usize..to as usize]);
        let last = answers.last().expect("an acknowledgement at once").clone();
        let blocks: Vec<(u32, u32)> =
            last.sack.iter().map(|block| (block.left.since(seq), block.right.since(seq))).collect();
        (last.ack.since(seq), blocks)
    };
    assert_eq!(piece(&mut hand, 1000, 2000), (0, vec![(1000, 2000)]));
    assert_eq!(piece(&mut hand, 3000, 4000), (0, vec![(3000, 4000), (1000, 2000)]));
    assert_eq!(piece(&mut hand, 1000, 2000), (0, vec![(1000, 2000), (1000, 2000), (3000, 4000)]));
    assert_eq!(piece(&mut hand, 0, 1000), (2000, vec![(3000, 4000)]));
    assert_eq!(piece(&mut hand, 500, 1500), (2000, vec![(500, 1500), (3000, 4000)]));
    assert_eq!(piece(&mut hand, 2000, 3000), (4000, vec![]));
    assert_eq!(hand.end().received, 4000);
}

#[test]
fn a_closed_window_is_probed_and_given_up_or_opened() {
    for opens in [false, true] {
        let mut hand = Hand::new(Script { send: 100, piece: 100, ..Script::default() }, |_| {});
        let syn_ack = hand.send(Header { window: 0, ..hand.head(Flags::SYN) }, b"");
        (hand.seq, hand.ack) = (hand.seq + 1, syn_ack[0].seq + 1);
        assert!(hand.send(Header { window: 0, ..hand.head(Flags::ACK) }, b"").is_empty());
        let probes = hand.pass(Duration::from_secs(60));
        assert!((4..=8).contains(&probes.len()), "{}", probes.len());
        let gaps: Vec<Duration> = probes.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
        assert!(gaps.windows(2).all(|pair| pair[1] > pair[0]), "{gaps:?}");
        if opens {
            let data = hand.send(hand.head(Flags::ACK), b"");
            assert_eq!(data[0].payload, (0..100).map(pattern).collect::<Vec<u8>>());
        } else {
            // acknowledged probes keep nobody's memory for ever
            for _ in 0..10 {
                hand.send(Header { window: 0, ..hand.head(Flags::ACK) }, b"");
                hand.pass(Duration::from_secs(10));
            }
            assert_eq!(hand.end().dead, Some(DeadReason::TimedOut));
            assert_eq!(hand.stack.tcp_usage(), stack::tcp::Usage::default());
        }
    }
}

#[test]
fn silence_is_asked_about_and_ends() {
    let mut hand = Hand::new(waiting(), |tcp| {
        tcp.times.keepalive = Some(Duration::from_secs(10));
        tcp.times.keepalive_interval = Duration::from_secs(5);
        tcp.times.keepalive_probes = 3;
    });
    hand.open(true);
    let probes = hand.pass(Duration::from_secs(12));
    assert_eq!((probes.len(), probes[0].seq), (1, hand.ack - 1));
    hand.send(hand.head(Flags::ACK), b"");
    assert_eq!(hand.pass(Duration::from_secs(9)).len(), 0);
    let probes = hand.pass(Duration::from_secs(17));
    assert_eq!(probes.iter().filter(|probe| !probe.flags.contains(Flags::RST)).count(), 3);
    assert!(probes.last().unwrap().flags.contains(Flags::RST));
    assert_eq!(hand.end().dead, Some(DeadReason::TimedOut));
}

#[test]
fn strangers_get_resets_and_their_resets_none() {
    let mut hand = Hand::new(waiting(), |tcp| tcp.limits.challenges_per_second = 10);
    hand.to = 81;
    let answers = hand.send(hand.head(Flags::SYN), b"");
    assert_eq!((answers[0].flags, answers[0].ack), (Flags::RST | Flags::ACK, hand.seq + 1));
    let answers = hand.send(Header { ack: Seq::new(77), ..hand.head(Flags::ACK) }, b"abc");
    assert_eq!((answers[0].flags, answers[0].seq), (Flags::RST, Seq::new(77)));
    assert!(hand.send(hand.head(Flags::RST), b"").is_empty());
    let answers: usize = (0..100).map(|_| hand.send(hand.head(Flags::ACK), b"").len()).sum();
    assert!(answers <= 15, "{answers}");
}

#[test]
fn a_peer_that_remembers_an_older_connection_is_reset_and_asked_again_soon() {
    let mut hand = Hand::new(waiting(), |_| {});
    let (local, peer) = (SocketAddr::new(A.into(), 80), SocketAddr::new(B.into(), 4000));
    hand.peer = Peer::with(1, waiting());
    hand.stack.connect(hand.now, local, peer, THEIRS, 1, 10_000).unwrap();
    let syn = hand.turn().remove(0);
    let old = Header { ack: syn.seq - 5000, ..hand.head(Flags::ACK) };
    let answers = hand.send(old, b"");
    assert_eq!((answers.len(), answers[0].flags, answers[0].seq), (1, Flags::RST, syn.seq - 5000));
    let again = hand.pass(Duration::from_millis(50));
    assert_eq!((again.len(), again[0].seq), (1, syn.seq));
    assert!(again[0].flags.contains(Flags::SYN));
    // once: a stranger cannot have SYNs sent
    assert_eq!(hand.send(old, b"")[0].flags, Flags::RST);
    assert!(hand.pass(Duration::from_millis(900)).is_empty());
    hand.ack = syn.seq + 1;
    hand.send(hand.head(Flags::SYN | Flags::ACK), b"");
    assert_eq!(hand.event(Event::Connected), 1);
}

#[test]
fn a_flood_gets_cookies_that_keep_sack_and_scale() {
    let mut hand = Hand::new(Script { send: 50_000, piece: 50_000, ..Script::default() }, |tcp| {
        tcp.limits.half_open = 4;
    });
    for port in 1..=1000 {
        hand.from = port;
        hand.send(Header { mss: Some(1460), ..hand.head(Flags::SYN) }, b"");
    }
    assert_eq!((hand.event(Event::HalfOpen), hand.event(Event::Cookie)), (4, 996));
    assert_eq!(hand.stack.tcp_usage().half_open, 4);
    hand.from = 4000;
    let syn_ack = hand.open(true);
    assert!(syn_ack.sack_permitted && syn_ack.scale.is_some() && syn_ack.mss == Some(1460));
    assert_eq!(hand.event(Event::CookieAccepted), 1);
    // the scale of 2 counts: more than 65,535 bytes are allowed, and the answer begins with ten segments
    let data = hand.send(Header { window: 20_000, ..hand.head(Flags::ACK) }, b"");
    assert_eq!(data.len(), 0, "the first window was sent with the handshake");
    // a guess does not pass
    hand.from = 4001;
    let answers = hand.send(hand.head(Flags::ACK), b"");
    assert!(answers[0].flags.contains(Flags::RST));
    assert_eq!(hand.ignored(Ignored::BadCookie), 1);
}

#[test]
fn half_open_entries_are_retried_and_end_and_sources_are_bounded() {
    let mut hand = Hand::new(waiting(), |tcp| tcp.limits.half_open_per_source = 3);
    for port in 1..=5 {
        hand.from = port;
        hand.send(hand.head(Flags::SYN), b"");
    }
    assert_eq!(hand.ignored(Ignored::SourceLimit), 2);
    let again = hand.pass(Duration::from_secs(40));
    assert_eq!(again.len(), 3 * 4, "each four times more");
    assert_eq!(hand.event(Event::HalfOpenTimeout), 3);
    assert_eq!(hand.stack.tcp_usage(), stack::tcp::Usage::default());
}

#[test]
fn time_wait_answers_the_fin_again_and_lets_a_newer_connection_in() {
    let mut hand = Hand::new(Script::default(), |_| {});
    hand.open(false);
    // the service finished at once; so do we
    hand.ack += 1;
    let answers = hand.send(hand.head(Flags::FIN | Flags::ACK), b"");
    assert_eq!((answers.len(), answers[0].ack), (1, hand.seq + 1));
    assert_eq!(hand.end().dead, Some(DeadReason::Closed));
    assert_eq!(hand.stack.tcp_usage().time_wait, 1);
    let answers = hand.send(hand.head(Flags::FIN | Flags::ACK), b"");
    assert_eq!((answers.len(), answers[0].ack, answers[0].seq), (1, hand.seq + 1, hand.ack));
    // an old SYN is not a new connection
    let old = hand.send(Header { seq: hand.seq - 5, ..hand.head(Flags::SYN) }, b"");
    assert!(!old[0].flags.contains(Flags::SYN));
    let new = hand.send(Header { seq: hand.seq + 100, ..hand.head(Flags::SYN) }, b"");
    assert_eq!(new[0].flags, Flags::SYN | Flags::ACK);
    assert!(new[0].seq.gt(hand.ack), "beyond the old connection's numbers");
    assert_eq!(hand.event(Event::TimeWaitReused), 1);
    assert_eq!(hand.stack.tcp_usage().time_wait, 0);
}

#[test]
fn time_wait_ends() {
    let mut hand = Hand::new(Script::default(), |tcp| tcp.times.time_wait = Duration::from_secs(2));
    hand.open(false);
    hand.ack += 1;
    hand.send(hand.head(Flags::FIN | Flags::ACK), b"");
    assert_eq!(hand.stack.tcp_usage().time_wait, 1);
    hand.pass(Duration::from_secs(3));
    assert_eq!(hand.stack.tcp_usage(), stack::tcp::Usage::default());
}

#[test]
fn a_router_lowers_the_mtu_only_for_what_is_in_flight() {
    let mut hand = Hand::new(Script { send: 5000, piece: 5000, ..Script::default() }, |_| {});
    let syn_ack = hand.send(Header { mss: Some(1460), ..hand.head(Flags::SYN) }, b"");
    (hand.seq, hand.ack) = (hand.seq + 1, syn_ack[0].seq + 1);
    let data = hand.send(hand.head(Flags::ACK), b"");
    assert_eq!(data[0].payload.len(), 1460);
    let error = |seq: Seq, mtu: u16| {
        let mut message = vec![3, 4, 0, 0, 0, 0, (mtu >> 8) as u8, mtu as u8];
        let mut quoted = [0; 20];
        ipv4::Header { src: A, dst: B, protocol: Protocol::TCP, ttl: 60, payload_bytes: 1480 }.write(&mut quoted);
        message.extend(quoted);
        message.extend([0, 80, 0x0f, 0xa0]);
        message.extend(seq.to_be_bytes());
        let sum = Sum::of(&message).checksum();
        message[2..4].copy_from_slice(&sum);
        assert!(icmpv4::Icmp::parse(&message).is_ok());
        Hand::frame(Protocol::ICMP, &message)
    };
    assert!(hand.inject(&error(hand.ack - 1000, 1000)).is_empty());
    assert_eq!((hand.event(Event::IcmpIgnored), hand.event(Event::PathMtu)), (1, 0));
    let again = hand.inject(&error(hand.ack, 1000));
    assert_eq!(hand.event(Event::PathMtu), 1);
    assert!(!again.is_empty() && again.iter().all(|segment| segment.payload.len() <= 960), "{}", again.len());
    assert_eq!(again[0].seq, hand.ack);
    // an absurd MTU is not believed
    hand.inject(&error(hand.ack, 68));
    let again = hand.pass(Duration::from_secs(3));
    assert!(again.iter().all(|segment| segment.payload.len() > 500 || segment.flags.contains(Flags::FIN)), "{again:?}");
}

#[test]
fn addresses_reach_the_service() {
    let mut hand = Hand::new(waiting(), |_| {});
    hand.open(true);
    let expect: (SocketAddr, SocketAddr) = ("192.0.2.1:80".parse().unwrap(), "192.0.2.2:4000".parse().unwrap());
    assert_eq!((hand.peer.addresses[0].local, hand.peer.addresses[0].peer), expect);
}
