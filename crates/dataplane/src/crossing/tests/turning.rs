//! Groups that the NIC's table follows.

use super::*;

/// A world of two threads whose NIC has a table, where a group of the first has gone to the second; the group and a flow of it.
fn moved() -> (World, u16, u16) {
    let mut world = World::with(2, Some(u32::MAX));
    let flow = 7;
    let group = world.group(flow);
    let owner = usize::from(group % 2);
    world.threads[1 - owner].crossing.want(group);
    for _ in 0..10 {
        world.cycle(1 - owner, 64);
        world.cycle(owner, 64);
    }
    assert_eq!(usize::from(world.threads[0].crossing.owners().owner(group)), 1 - owner);
    (world, group, flow)
}

#[test]
fn a_group_comes_by_its_new_queue_alone_once_the_table_has_followed() {
    let (mut world, group, flow) = moved();
    let new = world.threads[0].crossing.owners().owner(group);
    world.send(flow);
    world.pass(1000, 0);
    world.settle();
    let crossed = |world: &World| world.threads.iter().map(|it| it.crossing.counters().frames_out.get()).sum::<u64>();
    assert_eq!((crossed(&world), world.nic.as_ref().unwrap().table[usize::from(group)]), (1, new));
    for _ in 0..50 {
        world.send(flow);
        world.pass(1000, 0);
        world.cycle(usize::from(new), 64);
    }
    assert_eq!(crossed(&world), 1);
    world.check();
}

#[test]
fn a_frame_by_the_own_queue_shows_that_the_table_is_written_before_the_writer_says_so() {
    let (mut world, group, flow) = moved();
    let new = usize::from(world.threads[0].crossing.owners().owner(group));
    world.begin();
    for _ in 0..3 {
        world.send(flow);
        world.pass(1000, 0);
    }
    for _ in 0..20 {
        world.pass(200, 0);
        (0..2).for_each(|at| world.cycle(at, 64));
    }
    // all is taken, but the group cannot go elsewhere as long as somebody may write its entry
    assert_eq!((world.taken, world.threads[new].crossing.counters().waited.get()), (3, 3));
    assert!(!world.threads[new].crossing.mine[usize::from(group)]);
    assert_eq!(world.threads[new].crossing.next_at(), None);
    world.send(flow);
    world.pass(1000, 0);
    world.cycle(new, 64);
    assert_eq!((world.taken, world.threads[new].crossing.counters().waited.get()), (4, 3));
    world.settle();
    world.check();
}

#[test]
fn an_acknowledgement_does_not_wait_for_what_the_old_queue_may_have() {
    let (mut world, group, flow) = moved();
    let new = usize::from(world.threads[0].crossing.owners().owner(group));
    let mut bytes = vec![0; 14 + 20 + 20];
    Link { dst: [2; 6], src: [4; 6], tag: None, ether_type: EtherType::IPV4 }.write(&mut bytes);
    let mut head = [0; 20];
    let (src, dst) = (CLIENT.into(), SERVER.into());
    ipv4::Header { src, dst, protocol: Protocol::TCP, ttl: 64, payload_bytes: 20 }.write(&mut head);
    bytes[14..34].copy_from_slice(&head);
    bytes[34..36].copy_from_slice(&flow.to_be_bytes());
    bytes[36..38].copy_from_slice(&53u16.to_be_bytes());
    let (mut received, mut rx, mut lost) = (Burst::new(), Burst::new(), Burst::new());
    // an acknowledgement, and one that ends the connection
    for flags in [0x10, 0x11] {
        (bytes[46], bytes[47]) = (5 << 4, flags);
        let mut frame = world.pool.take().unwrap();
        assert!(frame.fill(&bytes));
        received.push(frame);
    }
    let crossing = &mut world.threads[new].crossing;
    crossing.sort(&mut received, &mut rx, &mut lost);
    assert_eq!((rx.len(), rx[0].bytes()[47], lost.len(), crossing.counters().waited.get()), (1, 0x10, 0, 1));
    crossing.clear(|frame| world.pool.give(frame));
    rx.drain(..).for_each(|frame| world.pool.give(frame));
    assert_eq!(world.pool.len(), 4096);
}

#[test]
fn a_thread_that_does_not_answer_is_waited_for_a_while_and_counted() {
    let (mut world, group, flow) = moved();
    let new = usize::from(world.threads[0].crossing.owners().owner(group));
    world.write();
    world.cycle(new, 64);
    world.send(flow);
    world.pass(1000, 0);
    world.cycle(new, 64);
    // younger than what the other thread may have: it waits
    assert_eq!((world.taken, world.threads[new].crossing.counters().waited.get()), (0, 1));
    assert!(world.threads[new].crossing.next_at().is_some());
    world.pass(200_000, 0);
    world.cycle(new, 64);
    assert_eq!(world.taken, 1);
    assert_eq!(world.nic.as_ref().unwrap().steering.strays(new as u16).unanswered.get(), 1);
    // and its answer that comes after all finds nobody
    world.settle();
    world.check();
}

#[test]
fn a_drain_does_not_keep_a_thread_awake_that_leaves_arrivals_at_the_device() {
    let mut world = World::with(2, Some(u32::MAX));
    let grace = world.nic.as_ref().unwrap().steering.grace();
    let crossing = &mut world.threads[0].crossing;
    (0..RING_ITEMS as u32).for_each(|number| crossing.note(1, Note::Asked { group: 0, number }));
    crossing.drain(1, 0, 1);
    assert_eq!(crossing.next_at(), Some(Instant::ZERO), "the grace has not begun");
    let now = Instant::ZERO + grace;
    for (at, next) in [(Instant::ZERO, now), (now, Instant::ZERO)] {
        crossing.look(at, 5);
        assert_eq!(crossing.next_at(), Some(next));
    }
    assert_eq!((crossing.room_for_arrivals(now, 64), crossing.next_at()), (0, None));
    assert!(crossing.leaves_arrivals(), "so it comes round before long");
}

#[test]
fn what_comes_later_than_was_waited_for_is_counted_and_waited_for_longer() {
    let (mut world, group, flow) = moved();
    let old = usize::from(1 - world.threads[0].crossing.owners().owner(group));
    world.settle();
    let steering = world.nic.as_ref().unwrap().steering.clone();
    let grace = steering.grace();
    for late in 1..4 {
        world.nic.as_mut().unwrap().table[usize::from(group)] = old as u16;
        world.send(flow);
        world.pass(1000, 0);
        world.cycle(old, 64);
        assert_eq!((steering.strays(old as u16).late.get(), steering.grace()), (late, 2 * grace));
    }
    assert_eq!(steering.strays(old as u16).untrue.get(), 0);
    world.settle();
    world.check();
}

#[test]
fn a_table_by_which_frames_do_not_come_is_given_up() {
    let (mut world, group, flow) = moved();
    let old = usize::from(1 - world.threads[0].crossing.owners().owner(group));
    world.settle();
    world.pass(200_000, 0);
    let Nic { steering, table, .. } = world.nic.as_mut().unwrap();
    table[usize::from(group)] = old as u16;
    let steering = steering.clone();
    for sent in 0..1500 {
        assert_eq!(steering.follows(), sent <= 1024, "after {sent} frames");
        world.send(flow);
        world.pass(1000, 0);
        world.cycle(old, 64);
        world.cycle(1 - old, 64);
    }
    assert!(steering.strays(old as u16).untrue.get() >= 1024);
    world.settle();
    world.check();
}
