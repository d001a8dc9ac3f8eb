//! Threads that are held up: nobody waits for them for ever, and the others go on.

use super::*;

/// A world of three threads of which the last does not run, with so many frames in the ring from the second to it.
fn crowded(frames: usize) -> World {
    let mut world = World::new(3);
    let flow = flow_of(&world, 1, 2);
    (0..frames).for_each(|_| world.send(flow));
    (0..frames.div_ceil(64)).for_each(|_| world.cycle(1, 64));
    assert_eq!(world.threads[1].crossing.counters().frames_out.get(), frames as u64);
    world
}

/// The first two threads go on without the third, for longer than it is waited for.
fn go_on(world: &mut World) {
    for _ in 0..4 {
        world.pass(60_000, 0);
        (0..8).for_each(|at| world.cycle(at % 2, 64));
    }
}

#[derive(Clone, Debug)]
enum Beside {
    Send(u16, u8),
    Cycle(usize, usize),
    Want(usize, u16),
    Pass(u64),
}

proptest! {
    /// Beside a thread that hangs, with a ring to it more than half full, two others go on giving each other groups: nothing is lost,
    /// nothing overtakes, and the third finds everything in order when it comes round.
    #[test]
    fn two_threads_relieve_each_other_beside_one_that_hangs(
        frames in prop_oneof![Just(1100usize), Just(2040)],
        steps in prop::collection::vec(prop_oneof![
            3 => (0u16..12, 1u8..20).prop_map(|(flow, times)| Beside::Send(flow, times)),
            8 => (0usize..2, 1usize..65).prop_map(|(thread, limit)| Beside::Cycle(thread, limit)),
            3 => (0usize..2, 0u16..8).prop_map(|(thread, group)| Beside::Want(thread, group)),
            2 => (0u64..20_000).prop_map(Beside::Pass),
        ], 1..200),
    ) {
        let mut world = crowded(frames);
        go_on(&mut world);
        for step in steps {
            match step {
                Beside::Send(flow, times) => {
                    let owner = world.threads[0].crossing.owners().owner(world.group(flow));
                    // what is the third's finds its ring full sooner or later
                    let times = if owner == 2 || flow % 3 == 2 { 0 } else { times };
                    (0..times).for_each(|_| world.send(flow));
                }
                Beside::Cycle(thread, limit) => world.cycle(thread, limit),
                Beside::Want(thread, group) => world.threads[thread].crossing.want(group),
                Beside::Pass(us) => world.pass(us, 0),
            }
        }
        go_on(&mut world);
        for to in [0, 1, 0] {
            (0..8).for_each(|group| world.threads[to].crossing.want(group));
            go_on(&mut world);
            let owners = world.threads[0].crossing.owners();
            prop_assert_eq!((owners.count(to as u16), owners.count(1 - to as u16)), (8 - owners.count(2), 0));
        }
        world.settle();
        world.check();
    }
}

#[test]
fn moves_that_are_settled_leave_no_notes_before_a_thread_that_hangs() {
    let mut world = crowded(RING_ITEMS);
    go_on(&mut world);
    let theirs: Vec<u16> = (0..8).filter(|group| world.threads[0].crossing.owners().owner(*group) != 2).collect();
    for times in 0..2 * DEPARTURES / theirs.len() {
        let to = times % 2;
        theirs.iter().for_each(|group| world.threads[to].crossing.want(*group));
        go_on(&mut world);
        assert_eq!(world.threads[0].crossing.owners().count(to as u16), theirs.len(), "after {times} times");
        assert_eq!(world.threads[1].crossing.unsent.len(), 0);
    }
    world.settle();
    world.check();
}

#[test]
fn a_thread_without_room_for_long_is_given_no_group() {
    let mut world = crowded(1100);
    let crossing = &mut world.threads[1].crossing;
    crossing.departures.extend([Departure { group: 1, to: 2 }, Departure { group: 4, to: 0 }]);
    crossing.look(world.now, 0);
    assert_eq!((crossing.departing(), crossing.has_work()), (0, false), "for a while there may be room soon");
    crossing.look(world.now + leaving::PATIENCE, 0);
    assert_eq!((crossing.departing(), crossing.has_work()), (2, true));
    assert_eq!(crossing.departure(), Some(Departure { group: 4, to: 0 }));
    assert_eq!((crossing.departure(), crossing.waits_for_room()), (None, false));
}

#[test]
fn a_ring_that_stands_where_arrivals_are_left_at_the_device_is_short_of_room() {
    let mut world = crowded(RING_ITEMS / 2);
    let crossing = &mut world.threads[1].crossing;
    assert_eq!(crossing.room_for_arrivals(world.now, 64), 0);
    for (later, stuck) in [(Duration::ZERO, false), (leaving::PATIENCE, true)] {
        crossing.look(world.now + later, 0);
        assert_eq!((crossing.is_stuck(2), crossing.has_room()), (stuck, true));
    }
}

#[test]
fn what_a_thread_that_hangs_is_answered_keeps_no_group_from_the_others() {
    let mut world = crowded(RING_ITEMS);
    go_on(&mut world);
    let crossing = &mut world.threads[1].crossing;
    (0..DEPARTURES as u32).for_each(|number| crossing.note(2, Note::Answered { group: 0, number }));
    assert!(crossing.has_room());
    (0..DEPARTURES as u32).for_each(|number| crossing.note(2, Note::Asked { group: 0, number }));
    assert!(!crossing.has_room(), "what moves ask is bounded");
}

#[test]
fn a_thread_that_is_not_needed_waits_a_while_for_one_that_hangs_and_no_longer() {
    let mut world = World::new(3);
    let flow = flow_of(&world, 2, 1);
    (0..RING_ITEMS).for_each(|_| world.send(flow));
    (0..RING_ITEMS / 64).for_each(|_| world.cycle(2, 64));
    world.threads[2].crossing.note(1, Note::Answered { group: 0, number: 0 });
    world.threads[0].crossing.owners().set_on_duty(2);
    for (ms, room) in [(0, 0), (60, 0), (300, 0), (320, 64)] {
        world.pass(ms * 1000 - (world.now - Instant::ZERO).as_micros() as u64, 0);
        let crossing = &mut world.threads[2].crossing;
        crossing.look(world.now, 0);
        assert_eq!(crossing.room_for_arrivals(world.now, 64), room, "after {ms} ms");
    }
    // its groups and its queue go to the first
    for _ in 0..20 {
        world.pass(20_000, 0);
        [2, 0].into_iter().for_each(|at| world.cycle(at, 64));
    }
    assert!(world.threads[0].crossing.stands_in());
    world.settle_by(1000);
    world.check();
}

#[test]
fn who_went_and_came_back_often_beside_one_that_does_not_run_gets_one_share_of_it() {
    for times in [1, 2, 100] {
        let mut world = World::new(2);
        for count in [1, 2].repeat(times) {
            world.threads[0].crossing.owners().set_on_duty(count);
            (0..2).for_each(|_| world.cycle(1, 64));
        }
        let groups_out = |world: &World| world.threads[0].crossing.counters().groups_out.get();
        assert_eq!((groups_out(&world), world.threads[0].crossing.owners().count(0)), (0, 8));
        world.settle();
        // half of the four that it has at once; it gets the others when they have settled
        assert_eq!(groups_out(&world), 2, "after {times} times");
        assert_eq!(world.threads[0].crossing.mine.iter().filter(|mine| **mine).count(), 6);
        world.check();
    }
}

#[test]
fn a_group_that_settles_by_itself_waits_for_nothing_that_its_owner_has_put_aside() {
    let (mut world, group, _) = given_by_one_that_hangs();
    world.hurries = true;
    let flow = (0..1000).step_by(3).find(|flow| world.group(*flow) == group).unwrap();
    world.send(flow);
    world.help(1, 0, 64);
    for us in [0, 100_000] {
        world.pass(us, 0);
        world.cycle(1, 64);
    }
    assert_eq!((world.taken, world.threads[0].crossing.put_aside()), (1, 1));
    world.send(flow);
    world.help(1, 0, 64);
    assert_eq!((world.taken, world.threads[0].crossing.put_aside()), (2, 1));
    world.settle();
    world.check();
}

/// A world of three threads of which the last does not run, and a group of the first that the second has got meanwhile, with a frame
/// that came to the second's queue; a flow of it.
fn moved_beside_one_that_hangs() -> (World, u16, u16) {
    let mut world = World::new(3);
    let group = |flow: &u16| world.group(*flow);
    let flow = (1..1000).step_by(3).find(|flow| group(flow) == 0).unwrap();
    world.threads[1].crossing.want(0);
    for _ in 0..10 {
        (0..2).for_each(|at| world.cycle(at, 64));
    }
    world.send(flow);
    world.cycle(1, 64);
    assert_eq!((world.threads[0].crossing.owners().owner(0), world.taken), (1, 0), "it waits for the third's answer");
    (world, 0, flow)
}

fn hurried(world: &World) -> u64 {
    world.threads.iter().map(|thread| thread.crossing.counters().hurried.get()).sum()
}

#[test]
fn a_group_that_moves_waits_a_while_for_a_thread_that_does_not_run_and_no_longer() {
    let (mut world, group, flow) = moved_beside_one_that_hangs();
    // counted from when who slept was woken, however long the cycle was in which the group left
    assert_eq!(world.threads[0].crossing.next_at(), Some(Instant::ZERO));
    let long = Duration::from_millis(60);
    for (us, ms) in [(60_000, 0), (49_000, 49)] {
        world.pass(us, 0);
        (0..2).for_each(|at| world.cycle(at, 64));
        assert_eq!((world.taken, hurried(&world)), (0, 0), "after {ms} ms");
        assert_eq!(world.threads[0].crossing.next_at(), Some(Instant::ZERO + long + leaving::PATIENCE));
    }
    world.pass(1000, 0);
    (0..2).for_each(|at| world.cycle(at, 64));
    assert_eq!((world.taken, hurried(&world)), (1, 1));
    assert!(world.threads[1].crossing.mine[usize::from(group)] && world.threads[0].crossing.leaving.is_empty());
    // the one that comes round finds nothing amiss, and its answer nobody
    world.send(flow);
    world.settle();
    world.check();
}

#[test]
fn what_a_silent_thread_had_sent_is_forwarded_before_its_group_settles() {
    let mut world = World::new(3);
    let flow = (2..1000).step_by(3).find(|flow| world.group(*flow) == 0).unwrap();
    world.threads[1].crossing.want(0);
    [1, 0].into_iter().for_each(|at| world.cycle(at, 64));
    world.send(flow);
    world.cycle(2, 64);
    // the group goes, and its old thread comes round when the third's answer is overdue
    let thread = &mut world.threads[0];
    let departure = thread.crossing.departure().unwrap();
    let known = thread.groups.remove(&departure.group).unwrap();
    thread.crossing.send(world.now, departure, Box::new((departure.group, known)));
    world.pass(1000, 0);
    world.threads[0].crossing.look(world.now, 0);
    world.pass(50_000, 0);
    (0..2).for_each(|at| world.cycle(at, 64));
    assert_eq!((world.taken, hurried(&world)), (1, 0));
    // with the second's answer
    (0..2).for_each(|_| world.cycle(0, 64));
    assert_eq!(hurried(&world), 1);
    world.settle();
    world.check();
}

#[test]
fn an_answer_that_comes_late_does_not_count_for_the_next_move() {
    let (mut world, group, _) = moved_beside_one_that_hangs();
    let wait = |world: &mut World| {
        [1000, 50_000].into_iter().for_each(|us| {
            world.pass(us, 0);
            (0..2).for_each(|at| world.cycle(at, 64));
        })
    };
    wait(&mut world);
    // back, and to the second again
    for to in [0, 1] {
        world.threads[to].crossing.want(group);
        (0..4).for_each(|_| [1 - to, to].into_iter().for_each(|at| world.cycle(at, 64)));
        assert_eq!(usize::from(world.threads[0].crossing.owners().owner(group)), to);
        if to == 0 {
            wait(&mut world);
        }
    }
    let number = world.threads[0].crossing.moves;
    let crossing = &mut world.threads[0].crossing;
    crossing.take_answer(2, group, number - 1);
    assert_eq!(crossing.leaving.len(), 1, "that was the answer to the move before");
    world.settle();
    world.check();
}

/// A world of three threads of which the first gives a group to the second and does not run from then on, with a frame of a flow that
/// came to the second's queue; group and flow.
fn given_by_one_that_hangs() -> (World, u16, u16) {
    let mut world = World::new(3);
    let flow = flow_of(&world, 1, 0);
    let group = world.group(flow);
    world.threads[1].crossing.want(group);
    [1, 0].into_iter().for_each(|at| world.cycle(at, 64));
    let thread = &mut world.threads[0];
    let departure = thread.crossing.departure().unwrap();
    let known = thread.groups.remove(&departure.group).unwrap();
    thread.crossing.send(world.now, departure, Box::new((departure.group, known)));
    world.send(flow);
    (0..3).for_each(|_| [1, 2].into_iter().for_each(|at| world.cycle(at, 64)));
    assert_eq!((world.taken, world.threads[1].crossing.coming.len()), (0, 1), "it waits for the first");
    (world, group, flow)
}

#[test]
fn a_group_whose_old_owner_does_not_come_round_settles_after_a_while() {
    let (mut world, group, flow) = given_by_one_that_hangs();
    let until = Instant::ZERO + leaving::LONGER;
    assert_eq!(world.threads[1].crossing.next_at(), Some(until));
    for (us, taken) in [(99_000, 0), (1000, 1)] {
        world.pass(us, 0);
        (1..3).for_each(|at| world.cycle(at, 64));
        assert_eq!((world.taken, hurried(&world)), (taken, u64::from(taken)));
    }
    assert!(world.threads[1].crossing.mine[usize::from(group)]);
    // on to the third, and what the first says of its move when it comes round is not said of a later one
    world.threads[2].crossing.want(group);
    (0..2).for_each(|_| [2, 1].into_iter().for_each(|at| world.cycle(at, 64)));
    [1000, 60_000, 0].into_iter().for_each(|us| {
        world.pass(us, 0);
        [1, 2].into_iter().for_each(|at| world.cycle(at, 64));
    });
    assert!(world.threads[2].crossing.mine[usize::from(group)], "nothing waits for the first");
    world.threads[1].crossing.want(group);
    [1, 2, 1, 2, 1].into_iter().for_each(|at| world.cycle(at, 64));
    world.send(flow);
    (0..3).for_each(|_| world.cycle(0, 64));
    world.cycle(1, 64);
    let comes = world.threads[1].crossing.coming.iter().map(|coming| (coming.from, coming.group));
    assert_eq!(comes.collect::<Vec<_>>(), [(Some(2), group)], "that was said of the first's move");
    world.settle();
    world.check();
}

#[test]
fn an_old_owner_that_comes_round_is_waited_for_until_it_has_forwarded_all() {
    let mut world = World::new(3);
    let (old, flow) = (flow_of(&world, 2, 0), flow_of(&world, 1, 0));
    let group = world.group(flow);
    // a frame every 40 ms, of many that the third has sent before it answers
    (0..50).for_each(|_| world.send(old));
    world.cycle(2, 64);
    world.threads[1].crossing.want(group);
    [1, 0].into_iter().for_each(|at| world.cycle(at, 1));
    world.send(flow);
    let before = world.taken;
    for _ in 0..20 {
        world.pass(40_000, 0);
        [0, 2, 1].into_iter().for_each(|at| world.cycle(at, 1));
    }
    assert_eq!((hurried(&world), world.threads[1].crossing.counters().waited.get()), (0, 1));
    assert!(world.taken > before && !world.threads[1].crossing.mine[usize::from(group)]);
    world.settle();
    world.check();
}

#[test]
fn an_answer_that_comes_late_does_not_count_for_the_next_fence() {
    let mut world = World::new(3);
    let fences = |world: &World| world.threads[2].crossing.duty.fences_silent();
    // the second thread does not run
    let serve = |world: &mut World, count: usize, until: &dyn Fn(&World) -> bool| {
        world.threads[0].crossing.owners().set_on_duty(count);
        world.run_until(&[2, 0], until);
    };
    // the third gives its queue away, has it back, and gives it away again
    serve(&mut world, 2, &|world| world.threads[0].crossing.stands_in());
    serve(&mut world, 3, &|world| world.threads[2].crossing.has_queue());
    serve(&mut world, 2, &|world| fences(world) == [vec![1]]);
    let crossing = &mut world.threads[2].crossing;
    crossing.take_fenced(1, 2, 1);
    assert_eq!(fences(&world), [vec![1]], "that was the answer to the fence before");
    world.settle_by(1000);
    world.check();
}
