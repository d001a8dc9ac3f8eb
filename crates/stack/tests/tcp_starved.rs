//! Connections that a pool which all share has refused room, with nothing of their own queued, are told when there is some.

mod hand;

use app::DeadReason;
use base::Seq;
use hand::{Hand, Out};
use sim::{Script, pattern};
use stack::TcpConfig;
use stack::tcp::Event;
use std::collections::HashMap;
use wire::tcp::{Flags, Header};

/// What each connection sends: all blocks of the small pool.
const BYTES: usize = 2 * stack::tcp::BLOCK_BYTES;

fn script(owned: bool) -> Script {
    Script { send: BYTES as u64, piece: stack::tcp::BLOCK_BYTES as u64, owned, ..Script::default() }
}

/// A pool of two blocks, or of two ranges.
fn small(owned: bool) -> impl Fn(&mut TcpConfig) {
    move |tcp| {
        tcp.limits.connections = 300;
        tcp.limits.active = 300;
        if owned {
            tcp.limits.owned_blocks = 2;
        } else {
            tcp.limits.ranges = 2;
        }
    }
}

/// Peers, each at a port of its own, by what they have got.
struct Peers {
    hand: Hand,
    /// what is sent next, and what came
    by_port: HashMap<u16, (Seq, Seq, Vec<u8>)>,
}

impl Peers {
    fn new(hand: Hand) -> Peers {
        Peers { hand, by_port: HashMap::new() }
    }

    fn note(&mut self, outs: Vec<Out>) {
        for out in outs {
            let (_, ack, got) = self.by_port.get_mut(&out.to).expect("a connection");
            if out.seq == *ack {
                got.extend_from_slice(&out.payload);
                *ack += out.payload.len() as u32 + u32::from(out.flags.contains(Flags::FIN));
            }
        }
    }

    fn send(&mut self, port: u16, flags: Flags) {
        let (seq, ack, _) = self.by_port[&port];
        (self.hand.from, self.hand.seq, self.hand.ack) = (port, seq, ack);
        let outs = self.hand.send(self.hand.head(flags), b"");
        self.note(outs);
    }

    fn open(&mut self, port: u16) {
        self.hand.from = port;
        let syn = Header { mss: Some(1000), ..self.hand.head(Flags::SYN) };
        let seq = syn.seq + 1;
        let answers = self.hand.send(syn, b"");
        self.by_port.insert(port, (seq, answers[0].seq + 1, Vec::new()));
        self.send(port, Flags::ACK);
    }

    fn got(&self, port: u16) -> usize {
        self.by_port[&port].2.len()
    }

    /// Acknowledges what came at a port, until everything has.
    fn take(&mut self, port: u16) {
        for _ in 0..10 {
            if self.got(port) == BYTES {
                return self.send(port, Flags::ACK);
            }
            self.send(port, Flags::ACK);
        }
        panic!("{} bytes at {port}", self.got(port));
    }
}

#[test]
fn who_was_refused_room_is_told_when_others_have_gone() {
    for owned in [true, false] {
        for ends in [Flags::ACK, Flags::RST] {
            let mut peers = Peers::new(Hand::new(script(owned), small(owned)));
            for port in [4000, 4001, 4002] {
                peers.open(port);
                peers.hand.stack.tcp_usage();
            }
            assert_eq!([4000, 4001, 4002].map(|port| peers.got(port)), [BYTES, 0, 0]);
            assert!(peers.hand.event(Event::QueueShort) >= 2);
            // no timer of theirs would help
            peers.hand.pass(std::time::Duration::from_millis(100));
            assert_eq!(peers.got(4001), 0);
            peers.send(4000, ends);
            peers.hand.stack.tcp_usage();
            assert!(peers.got(4001) > 0, "owned {owned}, {ends:?}");
            peers.take(4001);
            peers.take(4002);
            for (_, _, got) in peers.by_port.values() {
                assert!(got.iter().enumerate().all(|(at, byte)| *byte == pattern(at as u64)));
            }
        }
    }
}

#[test]
fn many_are_told_in_their_order_and_a_place_of_another_is_passed_over() {
    let mut peers = Peers::new(Hand::new(script(true), small(true)));
    let ports: Vec<u16> = (4000..4200).collect();
    ports.iter().for_each(|port| peers.open(*port));
    // every second one goes without having had anything, and others come to their places
    for port in ports.iter().skip(1).step_by(2) {
        peers.send(*port, Flags::RST);
    }
    let late: Vec<u16> = (5000..5100).collect();
    late.iter().for_each(|port| peers.open(*port));
    peers.hand.stack.tcp_usage();
    let mut all: Vec<u16> = ports.iter().step_by(2).chain(&late).copied().collect();
    while !all.is_empty() {
        let at = all.iter().position(|port| peers.got(*port) > 0).expect("somebody has the pool");
        peers.take(all.remove(at));
        peers.hand.stack.tcp_usage();
    }
    let ends: Vec<_> = peers.hand.peer.ends.values().map(|end| end.dead).collect();
    assert_eq!(ends.iter().filter(|dead| **dead == Some(DeadReason::Reset)).count(), 100);
    assert_eq!(ends.iter().filter(|dead| dead.is_none()).count(), 200);
    // nothing is left of those who had to wait
    let turns = peers.hand.event(Event::QueueShort);
    peers.hand.turn();
    assert!(peers.hand.due != Some(peers.hand.now), "called again at once for nothing");
    assert_eq!(peers.hand.event(Event::QueueShort), turns);
}

#[test]
fn who_waits_for_room_and_goes_to_another_thread_is_told_there() {
    let mut peers = Peers::new(Hand::split(script(true), 4, small(true)));
    peers.open(4000);
    peers.open(4001);
    assert_eq!((peers.got(4000), peers.got(4001)), (BYTES, 0));
    peers.hand.go_over();
    peers.send(4000, Flags::RST);
    peers.hand.stack.tcp_usage();
    peers.take(4001);
    // and the place that it has left is anybody's
    let (twin, _) = peers.hand.twin.as_ref().unwrap();
    assert_eq!(twin.tcp_usage().connections, 0);
    peers.hand.go_over();
    peers.open(4002);
    peers.hand.stack.tcp_usage();
    peers.take(4002);
}

#[test]
fn who_waits_for_room_is_not_idle_when_the_server_drains() {
    let mut peers = Peers::new(Hand::new(Script { stays: true, ..script(true) }, small(true)));
    peers.open(4000);
    peers.take(4000);
    // it has had something, and asks for the same again while another holds the pool
    peers.open(4001);
    let end = peers.hand.peer.ends.values_mut().find(|end| end.acknowledged == BYTES as u64).unwrap();
    end.send *= 2;
    let (seq, ack, _) = peers.by_port[&4000];
    (peers.hand.from, peers.hand.seq, peers.hand.ack) = (4000, seq, ack);
    peers.hand.send(peers.hand.head(Flags::ACK | Flags::FIN), b"");
    assert!(peers.hand.event(Event::QueueShort) > 0);
    peers.hand.stack.drain();
    peers.hand.turn();
    peers.send(4001, Flags::ACK);
    assert_eq!(peers.got(4000), 2 * BYTES);
}
