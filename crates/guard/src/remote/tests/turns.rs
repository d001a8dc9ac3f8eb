//! When a thread looks, sleeps, and gives the processor to the application.

use super::*;
use crate::GROUP;

#[test]
fn one_that_shares_the_processor_and_does_not_end_its_turn_waits_for_the_next() {
    let channel = Channel::new(9, Place::Same, None, crate::Grant::new(BURST as u32, 0..1)).unwrap();
    assert!(channel.open());
    // whatever it owes, it is never unresponsive: it always takes an event
    let options = Options { unresponsive: Duration::from_secs(1000), ..Options::default() };
    let mut remote = Remote::new(channel.clone(), options, Arc::new(Stats::new("test")));
    let mut engine = Engine::new(BURST);
    channel.transmit.word(control::ATTACHED_AT).store(1, Ordering::Release);
    (0..BURST).for_each(|n| engine.knock(&mut remote, n));
    let tail = channel.transmit.word(control::EVENT_TAIL_AT);
    for turn in 0..5 {
        let handovers = remote.stats.handovers.get();
        let begun = std::time::Instant::now();
        engine.cycle(&mut remote);
        let took = begun.elapsed();
        assert_eq!(remote.stats.handovers.get(), handovers + 1, "turn {turn}");
        let rest = remote.waits_until - remote.now;
        assert!(rest >= 9 * HANDOVER_MOST && rest <= 9 * took, "{rest:?} for {took:?}");
        // one event a turn; the thread may sleep meanwhile, and does not wait for it
        tail.store(turn + 1, Ordering::Release);
        for _ in 0..10 {
            engine.now += rest.as_nanos() as u64 / 20;
            engine.cycle(&mut remote);
        }
        assert!(remote.may_rest(remote.now + LOOK_FOR) && remote.events.owes());
        assert_eq!(remote.stats.handovers.get(), handovers + 1);
        engine.now = remote.waits_until.as_nanos();
    }
    // who takes all that there is waits for nothing
    tail.store(BURST as u32, Ordering::Release);
    remote.woken(engine.now(), &mut engine);
    (0..BURST).for_each(|n| engine.recv(&mut remote, n, b"x"));
    let (before, taken) = (remote.waits_until, 2 * BURST as u32);
    let thread = {
        let channel = channel.clone();
        std::thread::spawn(move || {
            while channel.receive.word(header::EVENT_HEAD_AT).load(Ordering::Acquire) != taken {
                std::thread::yield_now();
            }
            channel.transmit.word(control::EVENT_TAIL_AT).store(taken, Ordering::Release);
        })
    };
    remote.publish();
    thread.join().unwrap();
    remote.flush(engine.now(), &mut engine);
    assert!(!remote.events.owes() && remote.waits_until == before);
    // once a cycle, however often an engine flushes in it
    let handovers = remote.stats.handovers.get();
    engine.recv(&mut remote, 0, b"x");
    remote.flush(engine.now(), &mut engine);
    assert!(remote.events.owes() && remote.stats.handovers.get() == handovers);
    engine.cycle(&mut remote);
    assert_eq!(remote.stats.handovers.get(), handovers + 1);
}

/// It may have been ended while the thread waited for it, and what it wrote before is judged by nobody.
#[test]
fn calls_of_one_that_ends_in_its_turn_are_nobodys() {
    for ends in [false, true] {
        let channel = Channel::new(9, Place::Same, None, crate::Grant::new(1, 0..1)).unwrap();
        assert!(channel.open());
        let mut remote = Remote::new(channel.clone(), Options::default(), Arc::new(Stats::new("test")));
        let mut engine = Engine::new(1);
        channel.transmit.word(control::ATTACHED_AT).store(1, Ordering::Release);
        engine.knock(&mut remote, 0);
        let call = Call { zero: 1, ..Call::plain(CallKind::Done, 9, Handle { index: 0, generation: 0 }) };
        channel.transmit.set_slot(SLOTS_AT, call.encode());
        channel.transmit.word(control::CALL_HEAD_AT).store(1, Ordering::Release);
        if ends {
            channel.lose();
        }
        remote.publish();
        assert!(remote.events.owes());
        remote.flush(engine.now(), &mut engine);
        assert_eq!(remote.stats.handovers.get(), 1);
        assert_eq!(remote.stats.calls.get(), u64::from(!ends));
    }
}

#[test]
fn a_thread_does_not_sleep_while_something_waits_for_room_that_is_there() {
    // some of it, or all
    for left in [1, 0] {
        let mut world = World::new(10);
        world.engine.knock(&mut world.pair.remote, 0);
        while world.pair.remote.waiting.is_empty() {
            world.engine.recv(&mut world.pair.remote, 0, &[1; 8000]);
        }
        world.pair.remote.publish();
        let late = world.engine.now() + LOOK_FOR;
        // who takes nothing has all the time that it wants
        assert!(world.pair.remote.may_rest(late));
        world.cycle();
        let told = world.pair.channel.receive.word(header::EVENT_HEAD_AT).load(Ordering::Relaxed);
        world.pair.channel.transmit.word(control::EVENT_TAIL_AT).store(told - left, Ordering::Release);
        assert!(!world.pair.remote.may_rest(late) && world.pair.remote.events.owes() == (left > 0));
        world.cycle_later();
        assert!(world.pair.remote.waiting.is_empty() && world.pair.remote.events.owes());
        assert!(world.pair.remote.may_rest(late + LOOK_EVERY));
    }
}

#[test]
fn a_burst_after_a_pause_finds_nobody_unresponsive() {
    let mut world = World::new(10);
    for _ in 0..3 {
        world.pass(50);
        world.cycle();
        // on another processor a group is shown before the burst is told
        for _ in 0..GROUP {
            world.engine.ask(&mut world.pair.remote, b"?");
        }
        assert!(world.pair.remote.events.owes());
        world.cycle();
        world.engine.ask(&mut world.pair.remote, b"?");
        world.cycle();
        assert_eq!((world.pair.stats.unresponsive(), world.pair.stats.drops(DropReason::Unresponsive)), (0, 0));
        world.settle();
    }
}

/// Needs a while for each datagram, in which the engine has its cycles.
struct TakesItsTime {
    engine: Engine,
    remote: Remote,
    answered: usize,
}

impl Service for TakesItsTime {
    fn datagrams(&mut self, _: Instant, _: Listener, burst: &mut [Datagram<'_>]) {
        for datagram in burst {
            datagram.reply(datagram.question().len());
            self.answered += 1;
            self.engine.now += 300_000;
            self.engine.cycle(&mut self.remote);
        }
    }
}

#[test]
fn who_needs_long_for_a_burst_and_not_for_its_parts_is_responsive() {
    let World { pair: Pair { remote, stats, .. }, engine, mut client, woken, .. } = World::new(10);
    let mut service = TakesItsTime { engine, remote, answered: 0 };
    for n in 1..=3 {
        for _ in 0..64 {
            service.engine.ask(&mut service.remote, b"?");
        }
        service.engine.cycle(&mut service.remote);
        assert!(client.batch(&mut service, &woken));
        assert_eq!((service.answered, stats.unresponsive(), stats.drops(DropReason::Unresponsive)), (n * 64, 0, 0));
    }
    service.engine.cycle(&mut service.remote);
    assert_eq!(service.engine.answers.len(), 3 * 64);
}

#[test]
fn the_sleeps_of_one_service_are_not_those_of_the_one_before() {
    let mut pair = pair(1, Options::default());
    let asleep = |pair: &Pair| pair.channel.receive.word(header::DP_ASLEEP_AT).load(Ordering::Relaxed);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..3 {
        for _ in 0..100 {
            assert!(pair.remote.may_rest(Instant::from_nanos(1_000_000_000)));
            assert!(asleep(&pair) != 0 && seen.insert(asleep(&pair)));
            pair.remote.cycle(Instant::from_nanos(1_000_000_000));
        }
        pair.remote = Remote::new(pair.channel.clone(), Options::default(), pair.stats.clone());
    }
}

#[test]
fn a_busy_thread_looks_at_what_was_taken_now_and_then_and_at_once_before_it_sleeps() {
    let mut world = World::new(10);
    world.service.refuses = 0;
    world.engine.knock(&mut world.pair.remote, 0);
    world.cycle_later();
    let owes = |world: &World| world.pair.remote.events.owes();
    world.batch();
    world.cycle();
    assert!(owes(&world) && !world.pair.remote.is_to_look());
    world.cycle_later();
    assert!(!owes(&world));
    world.engine.recv(&mut world.pair.remote, 0, b"hello");
    world.cycle_later();
    world.batch();
    world.cycle();
    assert!(owes(&world));
    // its answer is taken first
    world.cycle();
    let now = world.engine.now();
    assert!(world.pair.remote.may_rest(now) && !owes(&world));
    // more than there is room for: whoever needs it looks
    for n in 0..3 * u64::from(layout::EVENT_SLOTS) {
        world.engine.ask(&mut world.pair.remote, b"?");
        world.cycle();
        world.batch();
        assert_eq!(world.pair.stats.drops(DropReason::NoRoom), 0, "{n}");
    }
}
