//! Queues whose threads are not needed, and who stands in for them.

use super::*;

#[test]
fn who_is_not_told_of_arrivals_at_a_queue_sleeps_lightly_until_it_is() {
    let mut world = World::new(2);
    world.inlets[1].refusals.store(3, Ordering::Relaxed);
    world.threads[0].crossing.owners().set_on_duty(1);
    world.run_until(&[1, 0], |world| world.threads[0].crossing.stands_in());
    // its thread has the port just now, as in its last cycle
    for left in [2, 1, 0] {
        assert_eq!(world.inlets[1].refusals.load(Ordering::Relaxed), left);
        let crossing = &mut world.threads[0].crossing;
        assert!(crossing.is_blocked() && crossing.elsewhere().is_none());
        crossing.look_anew();
    }
    let crossing = &mut world.threads[0].crossing;
    assert!(!crossing.is_blocked() && crossing.elsewhere().is_some());
    // one that was made anew is asked again in time, and is forgotten with the queue
    for again in [true, false] {
        world.inlets[1].refusals.store(1, Ordering::Relaxed);
        crossing.look_anew();
        assert!(!crossing.is_blocked());
        crossing.review_help(false);
        assert!(crossing.is_blocked());
        if again {
            crossing.look_anew()
        } else {
            crossing.watch(1, false)
        }
        assert!(!crossing.is_blocked());
    }
}

#[test]
fn who_helps_a_thread_whose_port_takes_no_wish_sleeps_lightly_too() {
    let mut world = World::new(2);
    world.inlets[1].refusals.store(1, Ordering::Relaxed);
    let crossing = &mut world.threads[0].crossing;
    crossing.offer(1);
    assert!(crossing.is_blocked() && crossing.elsewhere().is_none());
    crossing.look_anew();
    assert!(!crossing.is_blocked() && crossing.elsewhere().is_some());
}

#[test]
fn who_is_wanted_again_before_its_queue_has_gone_can_be_helped() {
    let mut world = World::new(2);
    world.threads[0].crossing.owners().set_on_duty(1);
    // what another has put aside keeps the queue
    world.run_until(&[1, 0], |world| {
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
