//! TCP between two stacks of ours on a clean link.

use app::DeadReason;
use base::Instant;
use sim::world::*;
use sim::{Peer, Script, World};
use stack::tcp::{Event, Usage};
use std::time::Duration;

fn seconds(n: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(n)
}

fn pair(server: Script, client: Script) -> World<Peer> {
    let tcp = || sim::world::tcp(256 << 10);
    World::new([Peer::new(Some(server)), Peer::with(1, client)], [tcp(), tcp()], [1500, 1500], 1)
}

/// Runs to the end and checks that everything arrived and nothing is left behind.
fn finish(world: &mut World<Peer>, within: u64) {
    let over = world.run(seconds(within), |world| world.hosts[0].service.ends.len() == 1 && world.is_over());
    let ends: Vec<_> = world.ends().map(|(host, _, end)| (host, end.clone())).collect();
    assert!(over, "not over at {:?}: {ends:#?}", world.now);
    assert_eq!(ends.len(), 2);
    assert_eq!(ends[0].1.send, ends[1].1.received);
    assert_eq!(ends[1].1.send, ends[0].1.received);
    for (_, end) in &ends {
        assert_eq!(end.dead, Some(DeadReason::Closed), "{end:?}");
    }
    for host in &world.hosts {
        let usage = host.stack.tcp_usage();
        assert_eq!(usage, Usage { time_wait: usage.time_wait, ..Usage::default() });
    }
    // one side stood in TIME-WAIT, or both when both finished at once
    let waits: usize = world.hosts.iter().map(|host| host.stack.tcp_usage().time_wait).sum();
    assert!((1..=2).contains(&waits), "{waits} in TIME-WAIT");
}

#[test]
fn bytes_flow_both_ways_over_both_families() {
    for v6 in [false, true] {
        for (down, up, owned) in
            [(0, 0, false), (1, 1, true), (1_000_000, 10, false), (10, 300_000, true), (70_000, 70_000, true)]
        {
            let script = |send| Script { send, piece: 10_000, owned, ..Script::default() };
            let mut world = pair(script(down), script(up));
            world.connect(v6, 1, 100_000);
            finish(&mut world, 100);
            for host in &world.hosts {
                let counters = host.stack.tcp_counters().unwrap();
                assert_eq!(counters.event(Event::Retransmitted), 0);
                assert_eq!(counters.event(Event::Challenge), 0);
            }
        }
    }
}

#[test]
fn a_long_path_is_filled() {
    let mut world = pair(Script { send: 20_000_000, piece: 60_000, ..Script::default() }, Script::default());
    for host in &mut world.hosts {
        host.out.delay = Duration::from_millis(20);
        host.out.byte_ns = 80; // 100 Mb/s
        host.out.queue = 1000;
    }
    world.connect(false, 1, 4 << 20);
    finish(&mut world, 100);
    // 1.6 s at the link's rate, and what slow start costs
    let took = world.now - Instant::ZERO;
    assert!(took < Duration::from_millis(2500), "{took:?}");
}

#[test]
fn a_path_that_swallows_large_packets_without_a_word_is_found() {
    let mut world = pair(Script { send: 200_000, piece: 60_000, ..Script::default() }, Script::default());
    for host in &mut world.hosts {
        host.out.delay = Duration::from_millis(5);
        host.out.mtu = 1300;
    }
    world.connect(false, 1, 200_000);
    finish(&mut world, 100);
    assert!(world.hosts[0].stack.tcp_counters().unwrap().event(Event::PathMtu) >= 1);
}

#[test]
fn a_path_that_has_carried_large_packets_is_not_suspected_for_a_short_silence() {
    let mut world = pair(Script { send: 2_000_000, piece: 60_000, ..Script::default() }, Script::default());
    for host in &mut world.hosts {
        host.out.delay = Duration::from_millis(5);
    }
    world.connect(false, 1, 100_000);
    let received = |world: &World<Peer>| world.hosts[1].service.ends[&1].received;
    assert!(world.run(seconds(10), |world| received(world) > 500_000));
    world.hosts[0].out.queue = 0;
    // timeouts after 0.2 and 0.4 s more
    let resume = world.now + Duration::from_millis(700);
    world.run(resume, |_| false);
    world.hosts[0].out.queue = 1000;
    finish(&mut world, 100);
    let counters = world.hosts[0].stack.tcp_counters().unwrap();
    assert!(counters.event(Event::RetransmissionTimeout) >= 2);
    assert_eq!(counters.event(Event::PathMtu), 0);
}

#[test]
fn both_may_ask_at_once() {
    let script = |send| Script { send, piece: 1000, ..Script::default() };
    let tcp = || sim::world::tcp(100_000);
    let mut world =
        World::new([Peer::with(1, script(3000)), Peer::with(1, script(5000))], [tcp(), tcp()], [1500, 1500], 1);
    let ends = ["192.0.2.1:5000", "192.0.2.2:6000"].map(|text| text.parse().unwrap());
    for n in 0..2 {
        let mac = port::Port::facts(&world.hosts[1 - n].port).mac;
        world.hosts[n].out.delay = Duration::from_millis(10);
        world.hosts[n].stack.connect(Instant::ZERO, ends[n], ends[1 - n], mac, 1, 100_000).unwrap();
    }
    finish(&mut world, 100);
    for host in &world.hosts {
        assert_eq!(host.stack.tcp_counters().unwrap().event(Event::Connected), 1);
    }
}

#[test]
fn a_refused_connection_and_one_that_nobody_answers_are_told() {
    for swallowed in [false, true] {
        let tcp = || sim::world::tcp(100_000);
        let mut world =
            World::new([Peer::new(None), Peer::with(1, Script::default())], [tcp(), tcp()], [1500, 1500], 1);
        if swallowed {
            world.hosts[1].out.queue = 0;
        } else {
            // somewhere nobody listens
            let mac = port::Port::facts(&world.hosts[0].port).mac;
            let (local, peer) = (CLIENT.parse().unwrap(), "192.0.2.1:81".parse().unwrap());
            world.hosts[1].stack.connect(Instant::ZERO, local, peer, mac, 1, 1000).unwrap();
        }
        if swallowed {
            world.connect(false, 1, 1000);
        }
        assert!(world.run(seconds(200), |world| world.is_over()));
        let expect = if swallowed { DeadReason::TimedOut } else { DeadReason::Refused };
        assert_eq!(world.hosts[1].service.refused, [expect]);
        assert_eq!(world.hosts[1].stack.tcp_usage(), Usage::default());
    }
}

/// A connection that has brought bytes both ways and stays open.
fn idle() -> World<Peer> {
    let script = |send| Script { send, piece: 1000, stays: true, ..Script::default() };
    let mut world = pair(script(3000), script(500));
    world.connect(false, 1, 100_000);
    let done = |world: &mut World<Peer>| {
        let mut ends = world.ends();
        ends.next().is_some_and(|(_, _, end)| end.received == 500)
            && ends.next().is_some_and(|(_, _, end)| end.received == 3000)
    };
    assert!(world.run(seconds(10), done));
    // the last acknowledgements
    world.run(seconds(20), |_| false);
    assert_eq!(world.hosts[0].stack.tcp_usage().connections, 1);
    world
}

#[test]
fn a_drained_stack_closes_what_is_idle_and_takes_nobody() {
    let mut world = idle();
    world.hosts[0].stack.drain();
    assert!(world.run(seconds(100), |world| world.is_over()));
    assert_eq!(world.hosts[0].stack.tcp_usage().connections, 0);
    let dead: Vec<_> = world.ends().map(|(_, _, end)| end.dead).collect();
    assert_eq!(dead, [Some(DeadReason::Closed); 2]);
    world.hosts[1].service.ends.insert(2, Script::default());
    world.connect(false, 2, 100_000);
    assert!(world.run(seconds(200), |world| !world.hosts[1].service.refused.is_empty()));
    assert_eq!(world.hosts[1].service.refused, [DeadReason::Refused]);
}

#[test]
fn the_end_resets_what_is_left_and_a_successor_counts_on() {
    let mut world = idle();
    let before = world.hosts[0].stack.tcp_counters().unwrap();
    world.hosts[0].stack.abort_all();
    assert!(world.run(seconds(100), |world| world.is_over()));
    let dead: Vec<_> = world.ends().map(|(_, _, end)| end.dead).collect();
    assert_eq!(dead, [Some(DeadReason::Aborted), Some(DeadReason::Reset)]);
    let mut world = idle();
    let counters = world.hosts[0].stack.tcp_counters().unwrap();
    assert_eq!((counters.connections.get(), counters.event(Event::Accepted)), (1, 1));
    world.hosts[0].stack = world.hosts[0].stack.successor();
    assert_eq!((counters.connections.get(), counters.event(Event::Accepted)), (0, 1));
    world.hosts[1].service.ends.insert(2, Script::default());
    world.connect(false, 2, 100_000);
    assert!(world.run(seconds(100), |_| counters.event(Event::Accepted) == 2));
    assert_eq!(before.event(Event::Aborted), 1);
}

#[test]
fn every_way_to_send_carries_the_same_bytes_in_the_same_segments() {
    for v6 in [false, true] {
        for (send, owned, mtu) in
            [(1_000_000, false, 1500), (300_000, true, 1500), (200_000, false, 576), (5792, false, 1500)]
        {
            let script = |send| Script { send, piece: 50_000, owned, ..Script::default() };
            let mtu = if v6 { mtu.max(1280) } else { mtu };
            let run = |large: bool, gathers: bool| {
                let tcp = || sim::world::tcp(256 << 10);
                let peers = [Peer::new(Some(script(send))), Peer::with(1, script(10))];
                let mut world = World::new(peers, [tcp(), tcp()], [mtu; 2], 1);
                if large {
                    world.segment();
                }
                if gathers {
                    world.gather();
                }
                // what the server sends, in stream order: number and payload bytes of each segment
                let segments = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
                let seen = segments.clone();
                world.tap = Some(Box::new(move |_, host, frame| {
                    let tcp = wire::tcp::Tcp::parse(&frame[if v6 { 54 } else { 34 }..]).unwrap();
                    if host == 0 && !tcp.payload().is_empty() {
                        seen.borrow_mut().push((tcp.seq(), tcp.payload().len(), tcp.flags()));
                    }
                }));
                world.connect(v6, 1, 100_000);
                finish(&mut world, 100);
                let counters = world.hosts[0].stack.tcp_counters().unwrap();
                assert_eq!(counters.event(Event::Retransmitted), 0);
                let sent = world.large();
                assert_eq!(sent[0] > 0, large, "{send} {owned} {mtu}");
                assert_eq!(sent[1], 0, "ten bytes are no large send");
                let gathered = world.gathered();
                // owned bytes are copied
                assert_eq!(gathered[0] > 0, gathers && !owned, "{send} {owned} {mtu}");
                assert_eq!(gathered[1], 0, "ten bytes are copied");
                segments.take()
            };
            let copied = run(false, false);
            assert_eq!(run(true, false), copied, "{send} {owned} {mtu} {v6}");
            assert_eq!(run(false, true), copied, "{send} {owned} {mtu} {v6}");
        }
    }
}

#[test]
fn runs_on_a_paced_path_fill_it() {
    for way in 0..3 {
        let mut world = pair(Script { send: 20_000_000, piece: 60_000, ..Script::default() }, Script::default());
        match way {
            0 => world.segment(),
            1 => world.gather(),
            _ => {}
        }
        fill_a_paced_path(&mut world);
        assert_eq!((world.large()[0] > 100, world.gathered()[0] > 100), (way == 0, way == 1));
    }
}

fn fill_a_paced_path(world: &mut World<Peer>) {
    for host in &mut world.hosts {
        host.out.delay = Duration::from_millis(20);
        host.out.byte_ns = 80; // 100 Mb/s
        host.out.queue = 1000;
    }
    world.connect(false, 1, 4 << 20);
    finish(world, 100);
    let took = world.now - Instant::ZERO;
    assert!(took < Duration::from_millis(2500), "{took:?}");
}

#[test]
fn a_path_that_swallows_large_packets_is_found_with_runs_too() {
    for gathers in [false, true] {
        let mut world = pair(Script { send: 200_000, piece: 60_000, ..Script::default() }, Script::default());
        if gathers {
            world.gather()
        } else {
            world.segment()
        }
        for host in &mut world.hosts {
            host.out.delay = Duration::from_micros(300);
            host.out.mtu = 1300;
        }
        world.connect(false, 1, 200_000);
        finish(&mut world, 100);
        assert!(world.hosts[0].stack.tcp_counters().unwrap().event(Event::PathMtu) >= 1);
        assert_eq!((world.large()[0] > 0, world.gathered()[0] > 0), (!gathers, gathers));
    }
}
