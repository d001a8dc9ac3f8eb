//! One connection of ours at the other end of segments that a test writes by hand, under a clock that it moves. The connection may
//! go back and forth between two stacks.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of this module")]

use app::Service as _;
use base::{Burst, Instant, Seq};
use port::Port;
use port::pipe::{self, Pipe};
use sim::{Peer, Script, world};
use stack::tcp::{Event, Ignored};
use stack::{Arrived, Stack, TcpConfig};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use wire::ethernet::{EtherType, Link};
use wire::flow::Groups;
use wire::ipv4::{self, Ipv4};
use wire::tcp::{Flags, Header, PayloadSum, SackBlock, Tcp, Timestamps};
use wire::{Protocol, Sum};

pub const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const A: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub const B: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// A segment of ours, as it came out.
#[derive(Clone, Debug)]
pub struct Out {
    pub at: Instant,
    /// the port that it goes to
    pub to: u16,
    pub seq: Seq,
    pub ack: Seq,
    pub flags: Flags,
    /// as the field has it
    pub window: u16,
    pub payload: Vec<u8>,
    pub sack: Vec<SackBlock>,
    pub mss: Option<u16>,
    pub scale: Option<u8>,
    pub sack_permitted: bool,
    pub timestamps: Option<Timestamps>,
}

pub struct Hand {
    pub stack: Stack,
    pub port: Pipe,
    pub far: Pipe,
    pub peer: Peer,
    pub now: Instant,
    pub from: u16,
    pub to: u16,
    /// what we send next, and expect next
    pub seq: Seq,
    pub ack: Seq,
    /// every frame of ours, and when it came
    pub log: Vec<(Instant, Vec<u8>)>,
    /// when the stack wants to be called next
    pub due: Option<Instant>,
    /// another thread's stack and service; those that have the connection are always `stack` and `peer`
    pub twin: Option<(Stack, Peer)>,
    /// flow groups
    pub groups: u16,
    /// it goes to the other stack before every turn
    pub restless: bool,
}

impl Hand {
    /// The same, with a second stack to which the connection can go.
    pub fn split(script: Script, groups: usize, change: impl Fn(&mut TcpConfig)) -> Hand {
        Hand::split_from(Hand::new(script, &change), groups, change)
    }

    /// Gives a hand a second stack, whose configuration may be another.
    pub fn split_from(mut hand: Hand, groups: usize, change: impl Fn(&mut TcpConfig)) -> Hand {
        let mut tcp = world::tcp(10_000);
        change(&mut tcp);
        let mut twin = Stack::new(world::config(0, tcp), hand.port.facts());
        let groups = Arc::new(Groups::keyed(groups, [5, 6]));
        twin.set_groups(groups.clone());
        hand.stack.set_groups(groups.clone());
        let peer = Peer::new(hand.peer.template.clone());
        (hand.twin, hand.groups) = (Some((twin, peer)), groups.count() as u16);
        hand
    }

    /// Everything goes to the other stack.
    pub fn go_over(&mut self) -> Arrived {
        let mut all = Arrived::default();
        let (stack, peer) = self.twin.as_mut().unwrap();
        std::mem::swap(stack, &mut self.stack);
        std::mem::swap(peer, &mut self.peer);
        for group in 0..self.groups {
            let departure = stack.depart(self.now, group, peer);
            let arrived = self.stack.arrive(self.now, departure, &mut self.peer);
            all.connections += arrived.connections;
            all.half_open += arrived.half_open;
            all.refused += arrived.refused;
        }
        all
    }

    pub fn new(script: Script, change: impl FnOnce(&mut TcpConfig)) -> Hand {
        let (mut ours, mut theirs) =
            pipe::pair(&pipe::Config { macs: [OURS, THEIRS], ..pipe::Config::default() }).unwrap();
        let (port, far) = (ours.remove(0), theirs.remove(0));
        let mut tcp = world::tcp(10_000);
        change(&mut tcp);
        let stack = Stack::new(world::config(0, tcp), port.facts());
        let (peer, seq) = (Peer::new(Some(script)), Seq::new(0xffff_ff00));
        Hand {
            stack,
            port,
            far,
            peer,
            now: Instant::ZERO,
            from: 4000,
            to: 80,
            seq,
            ack: Seq::new(0),
            log: Vec::new(),
            due: None,
            twin: None,
            groups: 0,
            restless: false,
        }
    }

    pub fn head(&self, flags: Flags) -> Header<'static> {
        let (src_port, dst_port, seq, ack) = (self.from, self.to, self.seq, self.ack);
        Header { src_port, dst_port, seq, ack, flags, window: 60_000, ..Header::default() }
    }

    pub fn frame(protocol: Protocol, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 34];
        Link { dst: OURS, src: THEIRS, tag: None, ether_type: EtherType::IPV4 }.write(&mut frame);
        let head = frame[14..].first_chunk_mut().unwrap();
        ipv4::Header { src: B, dst: A, protocol, ttl: 64, payload_bytes: payload.len() }.write(head);
        frame.extend(payload);
        frame
    }

    /// Sends a segment; what came back at once.
    pub fn send(&mut self, header: Header<'_>, payload: &[u8]) -> Vec<Out> {
        self.put(header, payload);
        self.turn()
    }

    /// Sends a segment that waits for the next turn.
    pub fn put(&mut self, header: Header<'_>, payload: &[u8]) {
        let mut segment = vec![0; header.bytes()];
        segment.extend(payload);
        let pseudo = Sum::pseudo_v4(B, A, Protocol::TCP, segment.len() as u16);
        header.write(&mut segment, pseudo, PayloadSum::Known(Sum::of(payload)));
        self.put_frame(&Hand::frame(Protocol::TCP, &segment));
    }

    pub fn inject(&mut self, bytes: &[u8]) -> Vec<Out> {
        self.put_frame(bytes);
        self.turn()
    }

    fn put_frame(&mut self, bytes: &[u8]) {
        let mut frame = self.far.take().unwrap();
        assert!(frame.fill(bytes));
        let mut burst = Burst::new();
        burst.push(frame);
        self.far.transmit(&mut burst);
    }

    pub fn turn(&mut self) -> Vec<Out> {
        if self.restless {
            self.go_over();
        }
        let (mut rx, mut tx, mut free) = (Burst::new(), Burst::new(), Burst::new());
        self.port.receive(&mut rx, 64);
        self.peer.cycle(self.now);
        self.stack.input(self.now, &mut rx, &mut tx, &mut free, &mut self.peer);
        self.due = self.stack.poll(self.now, &mut self.port, &mut tx, &mut self.peer);
        self.port.transmit(&mut tx);
        for frame in free.drain(..) {
            self.port.give(frame);
        }
        self.port.flush();
        self.heard()
    }

    pub fn heard(&mut self) -> Vec<Out> {
        let mut burst = Burst::new();
        let mut out = Vec::new();
        while self.far.receive(&mut burst, 64) > 0 {
            for frame in burst.drain(..) {
                self.log.push((self.now, frame.bytes().to_vec()));
                let ip = Ipv4::parse(&frame.bytes()[14..]).expect("a sound packet");
                assert_eq!((ip.src(), ip.dst()), (A, B));
                let pseudo = Sum::pseudo_v4(A, B, Protocol::TCP, ip.payload().len() as u16);
                let tcp = Tcp::parse(ip.payload()).unwrap();
                assert_eq!(tcp.verdict(pseudo), wire::tcp::Verdict::Good);
                let options = tcp.options();
                out.push(Out {
                    at: self.now,
                    to: tcp.dst_port(),
                    seq: tcp.seq(),
                    ack: tcp.ack(),
                    flags: tcp.flags(),
                    window: tcp.window(),
                    payload: tcp.payload().to_vec(),
                    sack: options.sack_blocks().collect(),
                    mss: options.mss,
                    scale: options.window_scale,
                    sack_permitted: options.sack_permitted,
                    timestamps: options.timestamps,
                });
                self.far.give(frame);
            }
        }
        self.far.flush();
        out
    }

    /// Lets time pass in steps of 10 ms; what came.
    pub fn pass(&mut self, span: Duration) -> Vec<Out> {
        let end = self.now + span;
        let mut out = Vec::new();
        while self.now < end {
            self.now += Duration::from_millis(10);
            out.extend(self.turn());
        }
        out
    }

    /// A handshake, with SACK and a window scale of 2 if so asked.
    pub fn open(&mut self, options: bool) -> Out {
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

    /// Acknowledges whatever comes, in order, until nothing has come for longer than a timeout grows here.
    pub fn take_all(&mut self) {
        let mut quiet = Duration::ZERO;
        while quiet < Duration::from_secs(20) {
            let mut came = self.send(self.head(Flags::ACK), b"");
            came.extend(self.pass(Duration::from_millis(10)));
            quiet += Duration::from_millis(10);
            for out in came {
                let next = out.seq + out.payload.len() as u32 + u32::from(out.flags.contains(Flags::FIN));
                if out.seq.leq(self.ack) && next.gt(self.ack) {
                    (self.ack, quiet) = (next, Duration::ZERO);
                }
            }
        }
    }

    pub fn event(&self, event: Event) -> u64 {
        self.stack.tcp_counters().unwrap().event(event)
    }

    pub fn ignored(&self, reason: Ignored) -> u64 {
        self.stack.tcp_counters().unwrap().ignored(reason)
    }

    pub fn end(&self) -> &Script {
        self.peer.ends.values().next().unwrap()
    }
}

/// A service that waits for the peer to finish.
pub fn waiting() -> Script {
    Script { send: 1, after_eof: true, ..Script::default() }
}
