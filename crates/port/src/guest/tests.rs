//! Guests and their host, in any order.

use super::*;
use crate::pipe::{self, Pipe};
use proptest::prelude::*;
use std::collections::VecDeque;

/// A pipe that takes so many frames until it is given room again.
struct Narrow {
    pipe: Pipe,
    room: usize,
}

impl Port for Narrow {
    fn facts(&self) -> &Facts {
        self.pipe.facts()
    }
    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        self.pipe.receive(into, limit)
    }
    fn transmit_room(&mut self) -> usize {
        self.room
    }
    fn transmit(&mut self, from: &mut Burst) -> usize {
        let n = from.len().min(self.room);
        self.room -= n;
        let mut some = Burst::new();
        some.extend(from.drain(..n));
        self.pipe.transmit(&mut some)
    }
    fn flush(&mut self) -> Outgoing {
        self.pipe.flush()
    }
    fn take(&mut self) -> Option<Frame> {
        self.pipe.take()
    }
    fn give(&mut self, frame: Frame) {
        self.pipe.give(frame);
    }
}

/// A host with so many guests, and the other end.
fn world(guests: usize, frames: u32) -> (Vec<Housed<Narrow>>, Pipe) {
    let config = pipe::Config { frames, ring_frames: 8192, ..pipe::Config::default() };
    let (mut peer, server, pools) = pipe::pair_with_pools(&config, guests).unwrap();
    let server = server.into_iter().map(|pipe| Narrow { pipe, room: 0 }).collect();
    (house(server, pools, 0), peer.pop().unwrap())
}

fn set_room(ports: &mut [Housed<Narrow>], room: usize) {
    let Housed::Host(host) = &mut ports[0] else { panic!("the first has the queue") };
    host.port.room = room;
}

/// Sends a frame of one octet; false when there is no room or no frame.
fn send(port: &mut Housed<Narrow>, octet: u8) -> bool {
    let Some(mut frame) = port.take() else { return false };
    assert!(frame.fill(&[octet; 60]));
    let mut burst = Burst::new();
    burst.push(frame);
    let sent = port.transmit(&mut burst);
    burst.drain(..).for_each(|frame| port.give(frame));
    sent == 1
}

fn arrived(peer: &mut Pipe) -> Vec<u8> {
    let (mut all, mut burst) = (Vec::new(), Burst::new());
    while peer.receive(&mut burst, 64) > 0 {
        all.extend(burst.iter().map(|frame| frame.bytes()[0]));
        burst.drain(..).for_each(|frame| peer.give(frame));
    }
    all
}

#[test]
fn what_a_guest_sends_leaves_through_its_host_and_its_frames_come_home() {
    let (mut ports, mut peer) = world(1, 64);
    set_room(&mut ports, 1000);
    for round in 0..100 {
        let [host, guest] = &mut ports[..] else { panic!("two ports") };
        assert_eq!((host.host(), guest.host(), guest.descriptor().is_none()), (None, Some(0), true));
        assert!(guest.has_left() && !host.is_asked());
        assert!((0..3).all(|n| send(guest, round + n)));
        assert!(!guest.has_left() && host.is_asked());
        assert_eq!(guest.flush(), Outgoing::Underway);
        assert_eq!((host.carry(), host.is_asked()), (3, false));
        // in the ring of the device, which has not been told yet
        assert!(!guest.has_left());
        host.flush();
        assert!(guest.has_left());
        assert_eq!(guest.flush(), Outgoing::Nothing);
        assert_eq!(arrived(&mut peer), [round, round + 1, round + 2]);
        set_room(&mut ports, 1000);
    }
    let guest = ports[1].guest().unwrap();
    assert_eq!((guest.stats().sent.get(), guest.stats().full.get()), (300, 0));
}

#[test]
fn a_host_that_does_not_come_pushes_back_and_nothing_is_lost() {
    let (mut ports, mut peer) = world(1, 4096);
    let mut sent = 0u32;
    while send(&mut ports[1], sent as u8) {
        sent += 1;
    }
    assert_eq!(sent as usize, RING_FRAMES);
    assert_eq!((ports[1].transmit_room(), ports[1].flush()), (0, Outgoing::Full));
    assert_eq!(ports[1].guest().unwrap().stats().full.get(), 1);
    // a device with little room: the rest waits, and is asked for soon
    set_room(&mut ports, 10);
    assert_eq!(ports[0].carry(), 10);
    assert_eq!(ports[0].flush(), Outgoing::Waiting);
    assert_eq!((arrived(&mut peer), ports[1].transmit_room()), ((0..10).collect(), 10));
    set_room(&mut ports, 5000);
    assert_eq!((ports[0].carry(), ports[0].flush()), (RING_FRAMES - 10, Outgoing::Nothing));
    assert_eq!(arrived(&mut peer).len(), RING_FRAMES - 10);
    ports[1].flush();
    assert_eq!(ports[1].guest().unwrap().free_frames(), 4096);
}

/// What guests with full rings get of a device that has `room` for each of some steps, in which the host's own thread has frames for all
/// of it: of all frames that left, how many each guest's were.
fn parts_of(guests: usize, room: usize, steps: usize) -> Vec<usize> {
    let (mut ports, mut peer) = world(guests, 4096);
    let mut parts = vec![0; guests + 1];
    for _ in 0..steps {
        (1..=guests).for_each(|guest| while send(&mut ports[guest], guest as u8) {});
        set_room(&mut ports, room);
        while send(&mut ports[0], 0) {}
        assert_eq!(ports[0].transmit_room(), 0);
        ports[0].carry();
        for port in &mut ports {
            port.flush();
        }
        arrived(&mut peer).into_iter().for_each(|octet| parts[usize::from(octet)] += 1);
        peer.flush();
    }
    parts.split_off(1)
}

#[test]
fn guests_of_a_busy_host_have_equal_parts_of_their_half() {
    for (guests, room) in [(2, 8), (2, 1), (2, 64), (3, 8), (4, 2), (4, 64), (5, 3)] {
        let parts = parts_of(guests, room, 60);
        let (least, most) = (parts.iter().min().unwrap(), parts.iter().max().unwrap());
        assert!(*least > 0 && most - least <= 1, "{guests} guests, room for {room}: {parts:?}");
    }
}

#[test]
fn what_one_guest_does_not_need_the_others_have() {
    let (mut ports, mut peer) = world(3, 4096);
    for guest in [1, 3] {
        while send(&mut ports[guest], guest as u8) {}
    }
    assert!(send(&mut ports[2], 2) && send(&mut ports[2], 2));
    for _ in 0..3 {
        set_room(&mut ports, 101);
        assert_eq!(ports[0].carry(), 101);
    }
    let left = arrived(&mut peer);
    let of = |guest: u8| left.iter().filter(|octet| **octet == guest).count();
    assert_eq!(of(2), 2);
    assert!(of(1) + of(3) == 301 && of(1).abs_diff(of(3)) == 1, "{} and {}", of(1), of(3));
}

#[test]
fn what_waits_when_all_end_goes_home() {
    let (mut ports, peer) = world(2, 64);
    assert!((0..5).all(|n| send(&mut ports[1], n)) && send(&mut ports[2], 9));
    drop(ports.remove(0));
    for (port, expected) in ports.iter_mut().zip([64, 64]) {
        port.flush();
        assert_eq!(port.guest().unwrap().free_frames(), expected);
    }
    drop(peer);
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize, u8),
    Carry,
    Room(usize),
    Flush,
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..4, 1u8..60).prop_map(|(who, n)| Step::Send(who, n)),
        3 => Just(Step::Carry),
        2 => (0usize..100).prop_map(Step::Room),
        2 => Just(Step::Flush),
    ]
}

proptest! {
    /// However they take turns: what each port accepted arrives, all of it and in its order; whoever has much to send does not
    /// keep the others from it; and a guest is told that its frames have left only when they have.
    #[test]
    fn nothing_is_lost_and_each_keeps_its_order(guests in 1usize..4, steps in prop::collection::vec(a_step(), 1..200)) {
        let (mut ports, mut peer) = world(guests, 2048);
        let mut sent = vec![VecDeque::new(); guests + 1];
        let mut numbers = vec![0u8; guests + 1];
        let got = |sent: &mut Vec<VecDeque<u8>>, peer: &mut Pipe| {
            for octet in arrived(peer) {
                let who = usize::from(octet >> 6);
                assert_eq!(sent[who].pop_front(), Some(octet), "port {who}");
            }
        };
        for step in steps {
            match step {
                Step::Send(who, n) => {
                    let who = who % (guests + 1);
                    for _ in 0..n {
                        let octet = ((who as u8) << 6) | (numbers[who] % 64);
                        if !send(&mut ports[who], octet) {
                            break;
                        }
                        sent[who].push_back(octet);
                        numbers[who] = numbers[who].wrapping_add(1);
                    }
                }
                Step::Carry => { ports[0].carry(); }
                Step::Room(room) => set_room(&mut ports, room),
                Step::Flush => { ports[0].flush(); }
            }
            got(&mut sent, &mut peer);
            for who in 1..=guests {
                prop_assert!(!ports[who].has_left() || sent[who].is_empty());
            }
        }
        set_room(&mut ports, usize::MAX);
        ports[0].carry();
        ports[0].flush();
        got(&mut sent, &mut peer);
        prop_assert!(sent.iter().all(VecDeque::is_empty));
        for port in &mut ports {
            prop_assert!(port.has_left());
            port.flush();
        }
        peer.flush();
        for port in &ports[1..] {
            prop_assert_eq!(port.guest().unwrap().free_frames(), 2048);
        }
    }
}
