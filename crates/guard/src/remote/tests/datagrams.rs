//! Datagrams, and who is answered.

use super::*;
use crate::layout::EVENT_SLOTS;
use app::Range;

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

#[test]
fn questions_longer_than_an_event_are_counted_as_that() {
    let mut world = World::new(10);
    let question = vec![7; SEND_BYTES + 1];
    for bytes in [SEND_BYTES + 1, SEND_BYTES] {
        world.engine.ask_within(&mut world.pair.remote, &question[..bytes], 65_535);
    }
    world.settle();
    assert!(world.engine.answers == [&question[..SEND_BYTES]]);
    let dropped = [DropReason::TooLong, DropReason::NoRoom].map(|reason| world.pair.stats.drops(reason));
    assert_eq!(dropped, [1, 0]);
}

/// Answers with as much as it may, which begins with the question.
#[derive(Default)]
struct Verbose {
    /// alarms that it sets beside that
    alarms: u64,
}

impl Service for Verbose {
    fn datagrams(&mut self, _: Instant, _: Listener, burst: &mut [Datagram<'_>]) {
        burst.iter_mut().for_each(|datagram| datagram.reply(datagram.capacity()));
    }
    fn recv<C: Streams>(&mut self, now: Instant, calls: &mut C, _: Connection, _: u64, _: &[u8]) {
        (0..std::mem::take(&mut self.alarms)).for_each(|_| calls.alarm_set(1, Some(now)).unwrap());
    }
    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        calls.accept(connection, 1).unwrap();
    }
}

#[test]
fn more_answers_than_there_is_room_for_are_told_as_it_comes() {
    const QUESTIONS: u32 = 64;
    let told = |world: &World| world.pair.channel.receive.word(header::EVENT_HEAD_AT).load(Ordering::Relaxed);
    // longer ones than the payload's lane has room for together, and as many calls before them as there are slots and more
    for (answer_bytes, alarms) in [(5 << 10, 0), (SEND_BYTES, 0), (20, 2 * CALL_SLOTS)] {
        let mut world = World::new(10);
        let mut service = Verbose { alarms: alarms.into() };
        world.engine.knock(&mut world.pair.remote, 0);
        world.engine.recv(&mut world.pair.remote, 0, b"before");
        // as many as find room among the events, which have them beside their addresses
        for n in 0..QUESTIONS {
            world.engine.ask_within(&mut world.pair.remote, &n.to_le_bytes(), answer_bytes);
        }
        world.engine.recv(&mut world.pair.remote, 0, b"behind");
        world.cycle();
        assert!(world.client.batch(&mut service, &world.woken));
        // until the server has taken calls nothing is to be done, however often that is looked at
        assert!(world.client.is_blocked() && !world.client.batch(&mut service, &world.woken));
        assert_eq!(world.client.seen(), told(&world));
        for _ in 0..100 {
            world.engine.now += 100_000;
            world.cycle();
            world.client.batch(&mut service, &world.woken);
        }
        let expected: Vec<Vec<u8>> =
            (0..QUESTIONS).map(|n| [&n.to_le_bytes()[..], &vec![0; answer_bytes - 4]].concat()).collect();
        assert!(world.engine.answers == expected, "{} answers of {answer_bytes} bytes", world.engine.answers.len());
        assert!(!world.client.is_blocked() && world.client.seen() == told(&world));
        let stats = &world.pair.stats;
        assert!(REJECTS.iter().all(|(reason, _)| stats.rejects(*reason) == 0));
        assert!(crate::stats::DROPS.iter().all(|(reason, _)| stats.drops(*reason) == 0));
    }
}

/// Answers with as much as it may, and sends more on its connections than there is room for; then the engine has a cycle.
struct Greedy {
    engine: Engine,
    remote: Remote,
    cycles: usize,
}

impl Service for Greedy {
    fn datagrams(&mut self, _: Instant, _: Listener, burst: &mut [Datagram<'_>]) {
        burst.iter_mut().for_each(|datagram| datagram.reply(datagram.capacity()));
    }
    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        calls.accept(connection, 1).unwrap();
    }
    fn recv<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, _: u64, _: &[u8]) {
        calls.sendv(connection, &[Range::Owned(&[7; 100 << 10])]).unwrap();
    }
    fn woken<C: Streams>(&mut self, _: Instant, _: &mut C) {
        for _ in 0..std::mem::take(&mut self.cycles) {
            self.engine.now += 1_000_000;
            self.engine.cycle(&mut self.remote);
        }
    }
}

/// The calls are taken before somebody else looks who waits for room as well, and has nothing to write: his connection is gone.
#[test]
fn a_datagram_that_waits_for_room_goes_on_whoever_saw_that_there_is_some() {
    let World { pair: Pair { remote, .. }, engine, mut client, woken, .. } = World::new(10);
    let mut service = Greedy { engine, remote, cycles: 0 };
    (0..3).for_each(|n| service.engine.knock(&mut service.remote, n));
    for _ in 0..3 {
        service.engine.cycle(&mut service.remote);
        client.batch(&mut service, &woken);
    }
    (0..3).for_each(|n| service.engine.recv(&mut service.remote, n, b"?"));
    service.engine.end(2, DeadReason::Reset);
    service.engine.cycle(&mut service.remote);
    service.engine.ask_within(&mut service.remote, b"late", SEND_BYTES);
    service.engine.cycle(&mut service.remote);
    service.cycles = 10;
    assert!(client.batch(&mut service, &woken));
    assert!(client.is_blocked() && service.engine.answers.is_empty(), "there was room");
    for _ in 0..10 {
        client.batch(&mut service, &woken);
        service.engine.now += 1_000_000;
        service.engine.cycle(&mut service.remote);
    }
    assert_eq!((service.engine.answers.len(), client.is_blocked()), (1, false));
}
