//! Queues whose threads are not needed, and who stands in for them.

use super::*;

/// The second of two threads is not needed, as often as it takes until that is so.
fn until(world: &mut World, is: impl Fn(&World) -> bool) {
    for _ in 0..100 {
        if is(world) {
            return;
        }
        world.pass(10_000, 0);
        [1, 0].into_iter().for_each(|at| world.cycle(at, 64));
    }
    panic!("it does not come to that");
}

#[test]
fn who_is_not_told_of_arrivals_at_a_queue_sleeps_lightly_until_it_is() {
    let mut world = World::new(2);
    world.inlets[1].refusals.store(3, Ordering::Relaxed);
    world.threads[0].crossing.owners().set_on_duty(1);
    until(&mut world, |world| world.threads[0].crossing.stands_in());
    // its thread has the port just now, as in its last cycle
    let refused = |world: &World| 3 - world.inlets[1].refusals.load(Ordering::Relaxed);
    for tries in 1..=3 {
        assert_eq!(refused(&world), tries);
        let crossing = &mut world.threads[0].crossing;
        assert!(crossing.is_blocked() && crossing.elsewhere().is_none());
        crossing.look_anew();
        crossing.watch_queues(false);
    }
    let crossing = &mut world.threads[0].crossing;
    assert!(!crossing.is_blocked() && crossing.elsewhere().is_some());
    // one that was made anew is asked again in time
    world.inlets[1].refusals.store(1, Ordering::Relaxed);
    crossing.watch_queues(false);
    assert!(!crossing.is_blocked());
    crossing.watch_queues(true);
    assert!(crossing.is_blocked());
}

#[test]
fn who_is_wanted_again_before_its_queue_has_gone_can_be_helped() {
    let mut world = World::new(2);
    world.threads[0].crossing.owners().set_on_duty(1);
    // what another has put aside keeps the queue
    until(&mut world, |world| {
        world.threads[1].crossing.set_put_aside(1);
        world.threads[1].crossing.is_stood_for()
    });
    assert!(world.threads[1].crossing.has_queue());
    world.threads[1].crossing.set_put_aside(0);
    world.threads[0].crossing.owners().set_on_duty(2);
    world.threads[1].crossing.look(world.now, 0);
    assert!(!world.threads[1].crossing.is_stood_for());
    world.settle_by(1000);
    world.check();
}
