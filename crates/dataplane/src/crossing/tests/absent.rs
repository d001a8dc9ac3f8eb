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
        world.threads[1].crossing.is_stood_for(1)
    });
    assert!(world.threads[1].crossing.has_queue());
    world.threads[1].crossing.set_put_aside(0);
    world.threads[0].crossing.owners().set_on_duty(2);
    world.threads[1].crossing.look(world.now, 0);
    assert!(!world.threads[1].crossing.is_stood_for(1));
    world.settle_by(1000);
    world.check();
}

/// Three threads, of which the first has the queues of the others, which are wanted again; it does not come round.
fn stood_for_by_one_that_hangs() -> World {
    let mut world = World::new(3);
    world.hurries = true;
    world.threads[0].crossing.owners().set_on_duty(1);
    world.run_until(&[0, 1, 2], |world| world.threads[0].crossing.standing().len() == 2);
    // what it has taken for others before
    (0..64).for_each(|flow| world.send(flow));
    world.cycle(0, 64);
    world.threads[0].crossing.owners().set_on_duty(3);
    world
}

#[test]
fn who_hangs_keeps_no_queue_from_the_others() {
    let mut world = stood_for_by_one_that_hangs();
    world.settle_of(&[1, 2]);
    let has_queue = |world: &World| [1, 2].map(|at| world.threads[at].crossing.has_queue());
    assert_eq!(has_queue(&world), [false, false], "it may come round");
    world.threads[0].crossing.owners().set_hangs(0, true);
    world.settle_of(&[1, 2]);
    assert_eq!(has_queue(&world), [true, true]);
    assert!(world.threads[1..].iter_mut().all(|thread| thread.crossing.next_at().is_none()));
    // it is to take nothing there from now on, whatever it has not heard yet
    (0..64).for_each(|flow| world.send(flow));
    let waiting = [1, 2].map(|at| world.threads[at].queue.len());
    assert!(waiting.iter().all(|frames| *frames > 0));
    world.cycle(0, 64);
    assert_eq!([1, 2].map(|at| world.threads[at].queue.len()), waiting);
    world.threads[0].crossing.owners().set_hangs(0, false);
    world.settle();
    world.check();
    assert!(world.threads[1..].iter().all(|thread| !thread.groups.is_empty()), "and they have their shares");
    // the same again, with no answer left over from before
    world.threads[0].crossing.owners().set_on_duty(1);
    world.settle_by(1000);
    world.check();
    world.threads[0].crossing.owners().set_on_duty(3);
    world.settle();
    world.check();
}

#[test]
fn who_stood_in_takes_nothing_any_more_once_the_queue_was_taken_back() {
    let mut world = stood_for_by_one_that_hangs();
    let (mut port, _) = port::pipe::pair(&port::pipe::Config::default()).unwrap();
    // by its own stand-in, as in its cycle
    let mut stand_in = |world: &mut World| {
        let mut frame = world.pool.take().unwrap();
        write(&mut frame, 1, 0);
        world.inlets[1].arrived.lock().unwrap().push(frame);
        let (mut rx, mut received, mut lost) = (Burst::new(), Burst::new(), Burst::new());
        let crossing = &mut world.threads[0].crossing;
        let seen = crossing.stand_in(1, &mut rx, &mut received, 64, &mut lost, &mut port[0]);
        rx.drain(..).for_each(|frame| world.pool.give(frame));
        seen
    };
    assert_eq!(stand_in(&mut world), 1);
    world.threads[0].crossing.owners().set_hangs(0, true);
    world.settle_of(&[1, 2]);
    assert_eq!((stand_in(&mut world), world.threads[0].crossing.standing().len()), (0, 2));
}

#[test]
fn a_queue_that_who_hangs_is_just_at_is_tried_for_again() {
    let mut world = stood_for_by_one_that_hangs();
    world.inlets[1].leased.store(true, Ordering::Relaxed);
    world.threads[0].crossing.owners().set_hangs(0, true);
    world.settle_of(&[1, 2]);
    assert!(!world.threads[1].crossing.has_queue() && world.threads[2].crossing.has_queue());
    assert!(world.threads[1].crossing.next_at().is_some_and(|at| at > world.now));
    world.inlets[1].leased.store(false, Ordering::Relaxed);
    world.settle_of(&[1, 2]);
    assert!(world.threads[1].crossing.has_queue());
}

#[test]
fn nobody_gives_his_queue_to_one_that_hangs() {
    let mut world = World::new(3);
    world.threads[0].crossing.owners().set_hangs(0, true);
    world.threads[0].crossing.owners().set_on_duty(2);
    world.settle_of(&[1, 2]);
    let crossing = &world.threads[2].crossing;
    assert!(crossing.is_off_duty() && crossing.has_queue() && crossing.owners().count(2) == 0);
    assert!(crossing.next_at().is_some_and(|at| at > world.now));
    world.threads[0].crossing.owners().set_hangs(0, false);
    world.settle_by(1000);
    world.check();
}

#[test]
fn a_datagram_of_a_thread_that_hangs_is_taken_where_it_comes() {
    let mut world = World::new(2);
    world.threads[0].crossing.owners().set_hangs(1, true);
    let of_who_hangs = |world: &World, flow: &u16| world.threads[0].crossing.owners().owner(world.group(*flow)) == 1;
    // the even ones come to the first queue
    let orphans = (0..64).step_by(2).filter(|flow| of_who_hangs(&world, flow)).count() as u32;
    assert!(orphans > 0 && orphans < 32);
    (0..64).step_by(2).for_each(|flow| world.send(flow));
    world.settle_of(&[0]);
    let counters = &world.threads[0].crossing.counters;
    assert_eq!((world.orphans, world.taken, counters.orphans.get()), (orphans, 32 - orphans, orphans.into()));
    world.threads[0].crossing.owners().set_hangs(1, false);
    world.settle();
    // to those that go to it again it is as if these had not been there
    let again: Vec<u16> = (0..64).step_by(2).filter(|flow| of_who_hangs(&world, flow)).collect();
    world.hurries = true;
    again.into_iter().for_each(|flow| world.send(flow));
    world.settle();
    assert_eq!((world.orphans, world.taken), (orphans, 32));
}
