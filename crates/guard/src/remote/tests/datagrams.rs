//! Datagrams, and who is answered.

use super::*;
use crate::layout::EVENT_SLOTS;

#[test]
fn datagrams_are_answered_to_who_asked() {
    let mut world = World::new(10);
    for n in 0..2000u32 {
        world.engine.ask(&mut world.pair.remote, &n.to_le_bytes());
        if n % 50 == 0 {
            world.cycle();
            world.batch();
            world.cycle();
        }
    }
    world.settle();
    let expected: Vec<Vec<u8>> = (0..2000u32).map(|n| n.to_le_bytes().to_vec()).collect();
    assert!(world.engine.answers == expected, "{} answers", world.engine.answers.len());
}

#[test]
fn answers_are_nobody_s_too_late_while_more_are_asked_than_are_taken() {
    let mut world = World::new(10);
    for _ in 0..100 {
        // as many as find room, before what was answered meanwhile is looked at
        (0..EVENT_SLOTS).for_each(|_| world.engine.ask(&mut world.pair.remote, b"?"));
        world.cycle();
        world.batch();
    }
    world.settle();
    assert!(world.pair.stats.drops(DropReason::NoRoom) > 0, "more were asked than found room");
    assert!(REJECTS.iter().all(|(reason, _)| world.pair.stats.rejects(*reason) == 0));
}
