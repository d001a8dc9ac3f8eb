//! Connections that stand in a line for their turn, while an application does what it can to make the line long.

use super::*;
use crate::layout::EVENT_SLOTS;

/// An engine with so many peers, and an event ring without room.
fn full(connections: usize) -> World {
    let mut world = World::new(connections as u32);
    world.engine = Engine::new(connections);
    for _ in 0..EVENT_SLOTS {
        world.engine.ask(&mut world.pair.remote, b"?");
    }
    world.cycle();
    assert_eq!(world.pair.stats.drops(DropReason::NoRoom), 0);
    world
}

/// The application takes so many events, and does nothing about them.
fn take(world: &World, events: u32) {
    world.pair.channel.transmit.word(control::EVENT_TAIL_AT).fetch_add(events, Ordering::Release);
}

/// All that there are.
fn take_all(world: &World) {
    let told = world.pair.channel.receive.word(header::EVENT_HEAD_AT).load(Ordering::Relaxed);
    world.pair.channel.transmit.word(control::EVENT_TAIL_AT).store(told, Ordering::Release);
}

/// The application writes a call, and has the allowance for it.
fn call(world: &mut World, call: Call) {
    write(world, &[call]);
    world.engine.now += 20_000;
    world.cycle();
}

/// The same for the connection at a place, whose handle it knows or guesses.
fn call_for(world: &mut World, kind: CallKind, index: u32) {
    let handle = world.pair.remote.table.handle(index);
    call(world, Call::plain(kind, 9, handle));
}

/// It asks for a connection at a place and by a generation of its choice, and the connection is there.
fn connect(world: &mut World, handle: Handle) {
    let [local, peer] = ["[::]:0", "192.0.2.9:80"].map(|end| end.parse().unwrap());
    let ends = layout::encode_addresses(&Addresses { local, peer });
    world.pair.channel.transmit.copy_in(layout::PAYLOAD_AT, &ends);
    call(world, Call { length: ADDRESSES_BYTES as u32, ..Call::plain(CallKind::Connect, 9, handle) });
    let asking = world.engine.asking();
    assert_eq!(asking.len(), 1);
    world.engine.answer(&mut world.pair.remote, asking[0], Ok(()));
}

#[test]
fn a_connection_that_was_not_told_is_answered_by_nobody() {
    let mut world = full(10);
    world.engine.knock(&mut world.pair.remote, 0);
    for kind in [CallKind::Accept, CallKind::Reject] {
        let before = world.pair.stats.rejects(Reject::State);
        call_for(&mut world, kind, 0);
        assert_eq!(world.pair.stats.rejects(Reject::State), before + 1, "{kind:?}");
    }
    assert!(world.engine.peers[0].open && world.pair.stats.connections() == 1);
    // it is told when there is room, and answered then
    take(&world, 1);
    call_for(&mut world, CallKind::Reject, 0);
    world.cycle();
    assert!(!world.engine.peers[0].open && world.pair.stats.connections() == 0);
    assert_eq!(world.pair.stats.rejects(Reject::State), 2);
}

#[test]
fn who_refuses_connections_with_something_that_waits_does_not_lengthen_the_line() {
    let mut world = full(10);
    // the first to wait, for whom there never is room
    world.engine.knock(&mut world.pair.remote, 0);
    for round in 0..100 {
        // one that comes is told, what it says waits, and it is refused
        take(&world, 1);
        world.engine.knock(&mut world.pair.remote, 1);
        world.engine.recv(&mut world.pair.remote, 1, b"hello");
        call_for(&mut world, CallKind::Reject, 1);
        world.cycle();
        assert!(!world.engine.peers[1].open && world.pair.stats.kept_bytes() == 0, "{round}");
        assert_eq!((world.pair.stats.connections(), world.pair.remote.waiting.len()), (1, 2), "{round}");
    }
    assert!(REJECTS.iter().all(|(reason, _)| world.pair.stats.rejects(*reason) == 0));
    // its place stands in the line still, and the next one there has its turn like others
    world.engine.knock(&mut world.pair.remote, 1);
    take(&world, 1);
    world.cycle_later();
    assert_eq!(world.pair.remote.waiting.front(), Some(1));
    take(&world, 1);
    world.cycle_later();
    assert!(world.pair.remote.waiting.is_empty() && world.pair.stats.connections() == 2);
}

#[test]
fn a_cycle_has_turns_for_a_bounded_number_and_the_rest_is_not_forgotten() {
    let mut world = full(600);
    (0..600).for_each(|n| world.engine.knock(&mut world.pair.remote, n));
    assert_eq!(world.pair.remote.waiting.len(), 600);
    take_all(&world);
    for left in [600 - 256, 600 - 2 * 256] {
        world.cycle_later();
        assert_eq!(world.pair.remote.waiting.len(), left);
        // there is room, though the application has taken nothing since
        let late = world.engine.now() + LOOK_FOR;
        assert!(world.pair.remote.has_news() && !world.pair.remote.may_rest(late));
    }
    world.cycle_later();
    let late = world.engine.now() + LOOK_FOR;
    assert!(world.pair.remote.waiting.is_empty() && world.pair.remote.may_rest(late));
    assert!(world.engine.peers.iter().all(|peer| peer.open));
}

#[test]
fn who_ends_connections_and_asks_for_others_at_their_place_does_not_lengthen_the_line() {
    // more than one cycle has turns for by far
    const OTHERS: usize = 200;
    let mut world = World::new(OTHERS as u32 + 1);
    world.engine = Engine::new(OTHERS);
    // the engine takes nothing of anybody
    world.engine.budget = Some(0);
    let send = |handle| Call { length: 1, ..Call::plain(CallKind::Send, 9, handle) };
    for n in 0..OTHERS {
        world.engine.knock(&mut world.pair.remote, n);
        call_for(&mut world, CallKind::Accept, n as u32);
        let handle = world.pair.remote.table.handle(n as u32);
        call(&mut world, send(handle));
    }
    let handle = Handle { index: OTHERS as u32 + 1, generation: 5 };
    for round in 0..4 {
        connect(&mut world, handle);
        call(&mut world, send(handle));
        assert_eq!(world.pair.remote.deferred.len(), OTHERS + 1, "{round}");
        if round < 3 {
            call(&mut world, Call::plain(CallKind::Abort, 9, handle));
            assert_eq!(world.pair.stats.connections(), OTHERS as u64);
        }
    }
    // all of them have their turn when there is something to take them
    world.engine.budget = None;
    (0..OTHERS / 16 + 1).for_each(|_| world.cycle());
    assert!(world.pair.remote.deferred.is_empty() && world.pair.stats.kept_bytes() == 0);
    let offered = world.engine.peers.iter().filter(|peer| peer.open && peer.queued_bytes() == 1).count();
    assert_eq!((offered, world.pair.stats.connections()), (OTHERS + 1, OTHERS as u64 + 1));
    assert!(REJECTS.iter().all(|(reason, _)| world.pair.stats.rejects(*reason) == 0));
}
