//! How much is copied out of an application's memory at a time.

use super::*;
use crate::layout::TRANSMIT_BYTES;

const CONNECTIONS: u32 = 10;

/// With connections that were accepted.
fn accepted() -> World {
    let mut world = World::new(CONNECTIONS);
    for n in 0..CONNECTIONS {
        world.engine.knock(&mut world.pair.remote, n as usize);
        let accept = Call::plain(CallKind::Accept, 9, world.pair.remote.table.handle(n));
        write(&world, &[accept]);
    }
    world.cycle();
    assert!(!world.pair.remote.has_calls());
    world
}

/// Sends as much as a call can.
fn send(world: &World, index: u32, offset: usize) -> Call {
    let call = Call::plain(CallKind::Send, 9, world.pair.remote.table.handle(index));
    Call { length: SEND_BYTES as u32, offset: offset as u32, ..call }
}

#[test]
fn calls_that_name_the_same_payload_are_taken_over_several_cycles() {
    let mut world = accepted();
    // each as much as it has credit for
    let calls: Vec<Call> = (0..4 * CONNECTIONS).map(|n| send(&world, n % CONNECTIONS, 0)).collect();
    write(&world, &calls);
    let mut cycles = 0;
    while world.pair.remote.has_calls() {
        let before = world.pair.stats.sent_bytes();
        world.cycle();
        // as much as the area has, and a group
        let bytes = (world.pair.stats.sent_bytes() - before) as usize;
        assert!(bytes <= TRANSMIT_BYTES + crate::GROUP * SEND_BYTES, "{bytes}");
        cycles += 1;
    }
    assert_eq!(world.pair.stats.sent_bytes(), (calls.len() * SEND_BYTES) as u64);
    assert_eq!((cycles, world.pair.stats.throttled.get()), (3, 2));
    assert!(REJECTS.iter().all(|(reason, _)| world.pair.stats.rejects(*reason) == 0));
}

#[test]
fn what_the_area_has_room_for_is_taken_at_once() {
    let mut world = accepted();
    let pieces = TRANSMIT_BYTES / SEND_BYTES;
    let sends = (0..pieces).map(|n| send(&world, n as u32, n * SEND_BYTES));
    let others = (0..200).map(|_| Call::plain(CallKind::Done, 9, world.pair.remote.table.handle(0)));
    let calls: Vec<Call> = sends.chain(others).collect();
    write(&world, &calls);
    world.cycle();
    assert!(!world.pair.remote.has_calls() && world.pair.stats.throttled.get() == 0);
    assert_eq!(world.pair.stats.sent_bytes(), TRANSMIT_BYTES as u64);
}
