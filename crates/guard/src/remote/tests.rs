//! Both ends over the memory between them, one step at a time; and an application that writes what it likes.

use super::*;
use crate::client::{Client, Shared, Woken};
use crate::layout::{Call, CallKind, Handle, SLOT_BYTES, SLOTS_AT};
use crate::stats::REJECTS;
use crate::testing::{Echo, Engine, Pair, pair, pair_of};
use crate::{Grant, Permit};
use proptest::prelude::*;

mod datagrams;
mod deaf;
mod lines;
mod payload;
mod times;
mod turns;

const PEERS: usize = 12;

struct World {
    pair: Pair,
    engine: Engine,
    client: Client,
    service: Echo,
    woken: Woken,
    /// what each peer sent on its present connection
    said: Vec<Vec<u8>>,
}

impl World {
    fn new(connections: u32) -> World {
        let all = [Permit::new([0, 0, 0, 0].into(), 0, None), Permit::new([0u16; 8].into(), 0, None)];
        let pair = pair_of(Grant::new(connections, 3..4).permitting(all.to_vec()), Options::default());
        let shared = pair.attached.shared().unwrap();
        shared.attach();
        World {
            client: Client::new(shared),
            engine: Engine::new(PEERS),
            service: Echo::refusing(7),
            woken: Woken::default(),
            said: vec![Vec::new(); PEERS],
            pair,
        }
    }

    /// One whose engine is about to tell when its time began.
    fn timed() -> World {
        let world = World::new(10);
        world.pair.channel.receive.long(header::ZERO_AT).store(0, Ordering::Relaxed);
        world
    }

    fn shared(&self) -> Arc<Shared> {
        self.pair.attached.shared().unwrap()
    }

    fn batch(&mut self) -> bool {
        self.client.batch(&mut self.service, &self.woken)
    }

    fn cycle(&mut self) {
        self.engine.cycle(&mut self.pair.remote);
    }

    /// A cycle in which an engine that is busy looks at what was taken.
    fn cycle_later(&mut self) {
        self.engine.now += LOOK_EVERY.as_nanos() as u64;
        self.cycle();
    }

    /// So many milliseconds, in steps in which an engine looks.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(10) {
            self.engine.now += 10_000_000;
            self.cycle();
        }
    }

    /// Until nothing changes any more; what is sent is read.
    fn settle(&mut self) {
        for _ in 0..200 {
            self.cycle();
            let worked = self.batch();
            for n in 0..PEERS {
                self.engine.read(&mut self.pair.remote, n, usize::MAX);
            }
            if !worked && self.pair.remote.waiting.is_empty() {
                self.cycle();
            }
        }
    }

    fn step(&mut self, what: u8, n: usize, bytes: usize) {
        let Pair { remote, .. } = &mut self.pair;
        match what {
            0 => {
                if !self.engine.peers[n].open {
                    self.said[n].clear();
                }
                self.engine.knock(remote, n);
            }
            1..=4 => {
                let peer = &self.engine.peers[n];
                if peer.open && !peer.closed && peer.delivered + bytes <= 64 << 10 {
                    let text: Vec<u8> = (0..bytes).map(|at| (at * 7 + n + self.said[n].len()) as u8).collect();
                    self.said[n].extend(&text);
                    self.engine.recv(remote, n, &text);
                }
            }
            5 => self.engine.read(remote, n, bytes),
            6 => self.engine.eof(remote, n),
            7 => self.engine.end(n, DeadReason::Reset),
            8 => self.engine.fire(remote, n),
            9..=11 => self.cycle(),
            _ => drop(self.batch()),
        }
    }
}

proptest! {
    /// Whatever the order in which engine, application and peers come to do something: what is echoed is the beginning of what was
    /// sent, all of it in the end, and when all are gone nothing is left on either side.
    #[test]
    fn bytes_come_back_and_nothing_is_left(
        steps in prop::collection::vec((0u8..15, 0..PEERS, 0usize..40_000), 1..300), budget in prop::option::of(20_000usize..200_000)
    ) {
        let mut world = World::new(10);
        world.engine.budget = budget;
        for (what, n, bytes) in steps {
            world.step(what, n, bytes);
            for (peer, said) in world.engine.peers.iter().zip(&world.said) {
                prop_assert!(said.starts_with(&peer.read));
            }
        }
        world.settle();
        for (peer, said) in world.engine.peers.iter().zip(&world.said) {
            if peer.open {
                prop_assert!(peer.read == *said, "{} of {} bytes", peer.read.len(), said.len());
                prop_assert_eq!(peer.delivered, 0);
            }
        }
        let open = world.engine.peers.iter().filter(|peer| peer.open).count();
        prop_assert_eq!((world.service.connections(), world.pair.stats.connections()), (open, open as u64));
        for n in 0..PEERS {
            world.engine.end(n, DeadReason::Reset);
        }
        world.settle();
        let stats = &world.pair.stats;
        prop_assert_eq!((world.service.connections(), stats.connections(), stats.kept_bytes()), (0, 0, 0));
        prop_assert_eq!(world.pair.remote.unsent_bytes, 0);
        for (reason, name) in REJECTS {
            // it may be late: a peer resets while a call is under way
            prop_assert!(reason == Reject::Stale || stats.rejects(reason) == 0, "{}", name);
        }
    }

    /// An application that is killed between any two steps, and another one in its place.
    #[test]
    fn an_application_that_ends_leaves_nothing(
        steps in prop::collection::vec((0u8..15, 0..PEERS, 0usize..40_000), 1..100), more in prop::collection::vec((0u8..15, 0..PEERS, 0usize..40_000), 1..100)
    ) {
        let mut world = World::new(10);
        for (what, n, bytes) in steps {
            world.step(what, n, bytes);
        }
        world.pair.channel.lose();
        prop_assert_eq!(world.pair.channel.state(), State::Lost);
        world.cycle();
        prop_assert_eq!(world.pair.channel.state(), State::Down);
        world.cycle();
        let stats = world.pair.stats.clone();
        prop_assert_eq!((stats.connections(), stats.kept_bytes(), world.pair.remote.unsent_bytes), (0, 0, 0));
        prop_assert!(world.engine.peers.iter().all(|peer| !peer.open));
        // nobody is there
        world.engine.knock(&mut world.pair.remote, 0);
        prop_assert!(!world.engine.peers[0].open && stats.drops(DropReason::Absent) > 0);
        prop_assert!(world.pair.channel.open());
        let shared = world.shared();
        shared.attach();
        world.client = Client::new(shared);
        world.service = Echo::default();
        world.said = vec![Vec::new(); PEERS];
        for (what, n, bytes) in more {
            world.step(what, n, bytes);
        }
        world.settle();
        for (peer, said) in world.engine.peers.iter().zip(&world.said) {
            if peer.open {
                prop_assert!(peer.read == *said, "{} of {} bytes", peer.read.len(), said.len());
            }
        }
    }
}

#[test]
fn a_full_ring_loses_nothing_and_closes_the_window() {
    let mut world = World::new(10);
    world.service.refuses = 0;
    world.engine.knock(&mut world.pair.remote, 0);
    world.engine.knock(&mut world.pair.remote, 1);
    // more than the receive area has, in two sizes, and nobody takes it
    for n in 0..64 {
        world.said[0].extend([n; 4096]);
        world.engine.recv(&mut world.pair.remote, 0, &[n; 4096]);
        world.said[1].extend([n; 3]);
        world.engine.recv(&mut world.pair.remote, 1, &[n; 3]);
        world.engine.now += 1000;
        world.cycle();
    }
    assert_eq!((world.engine.peers[0].delivered, world.engine.peers[1].delivered), (64 * 4096, 64 * 3));
    assert!(world.pair.stats.kept_bytes() > 0);
    world.engine.eof(&mut world.pair.remote, 1);
    // who knocks now waits like the others, with what it says
    world.engine.knock(&mut world.pair.remote, 2);
    assert!(world.engine.peers[2].open && world.pair.stats.drops(DropReason::NoRoom) == 0);
    world.said[2].extend([7; 3000]);
    world.engine.recv(&mut world.pair.remote, 2, &[7; 3000]);
    // one that is gone before it was told is nobody's
    world.engine.knock(&mut world.pair.remote, 3);
    world.engine.recv(&mut world.pair.remote, 3, &[8; 3000]);
    world.engine.end(3, DeadReason::Reset);
    // there is no room for what is no connection's
    world.engine.ask(&mut world.pair.remote, b"?");
    assert_eq!(world.pair.stats.drops(DropReason::NoRoom), 1);
    world.settle();
    assert_eq!((&world.engine.peers[0].read, &world.engine.peers[2].read), (&world.said[0], &world.said[2]));
    assert_eq!(world.pair.stats.connections(), 2);
    assert_eq!((world.engine.peers[0].delivered, world.pair.stats.kept_bytes()), (0, 0));
    // the other one's end was told behind its bytes, and it was closed
    assert!(!world.engine.peers[1].open && world.engine.peers[1].read == world.said[1]);
}

#[test]
fn connections_are_bounded_over_all_threads_together() {
    let bound = Bound::new(3).among(2);
    let options = || Options { connections: Some(bound.clone()), ..Options::default() };
    let mut pairs = [0, 1].map(|_| pair(3, options()));
    let mut engines = [0, 1].map(|_| Engine::new(4));
    for (pair, engine) in pairs.iter_mut().zip(&mut engines) {
        pair.attached.shared().unwrap().attach();
        engine.cycle(&mut pair.remote);
    }
    let mut knock = |thread: usize, n: usize| {
        engines[thread].knock(&mut pairs[thread].remote, n);
        engines[thread].peers[n].open
    };
    // the first thread has all of them
    assert_eq!([0, 1, 2, 3].map(|n| knock(0, n)), [true, true, true, false]);
    assert!(!knock(1, 0));
    engines[0].end(2, DeadReason::Reset);
    engines[0].cycle(&mut pairs[0].remote);
    engines[1].knock(&mut pairs[1].remote, 0);
    engines[1].knock(&mut pairs[1].remote, 1);
    assert_eq!(engines[1].peers.iter().filter(|peer| peer.open).count(), 1);
    assert_eq!(pairs.each_ref().map(|pair| pair.stats.connections()), [2, 1]);
    assert_eq!(pairs.each_ref().map(|pair| pair.stats.drops(DropReason::Full)), [1, 2]);
}

#[test]
fn who_takes_no_events_has_its_connections_wait_and_then_ended() {
    let mut world = World::new(10);
    world.service.refuses = 0;
    world.engine.knock(&mut world.pair.remote, 0);
    world.cycle();
    world.engine.now += 10_000_000;
    world.cycle();
    assert_eq!(world.pair.stats.unresponsive(), 1);
    world.engine.ask(&mut world.pair.remote, b"?");
    assert_eq!(world.pair.stats.drops(DropReason::Unresponsive), 1);
    world.engine.knock(&mut world.pair.remote, 1);
    assert!(world.engine.peers[0].open && world.engine.peers[1].open);
    // it comes back in time
    world.batch();
    world.cycle_later();
    assert_eq!(world.engine.peers.iter().filter(|peer| peer.open).count(), 2);
    // so long it took, as far as was looked
    let took = Duration::from_nanos(world.pair.stats.unresponsive_ns());
    assert!((10..11).contains(&took.as_millis()), "{took:?}");
    world.engine.recv(&mut world.pair.remote, 0, b"hello");
    world.cycle();
    // the machine is stopped for a while, which is nobody's fault
    world.engine.now += 60_000_000_000;
    world.cycle();
    assert_eq!((world.pair.stats.unresponsive(), world.pair.stats.drops(DropReason::Stuck)), (2, 0));
    // and it hangs
    world.pass(1_000);
    assert_eq!((world.pair.stats.unresponsive(), world.pair.stats.drops(DropReason::Stuck)), (2, 2));
    assert!(world.engine.peers.iter().all(|peer| !peer.open));
    // who comes now has nobody to wait for
    world.engine.knock(&mut world.pair.remote, 1);
    assert!(!world.engine.peers[1].open && world.pair.stats.drops(DropReason::Unresponsive) == 2);
    world.settle();
    assert_eq!((world.service.deaths, world.pair.stats.connections()), (2, 0));
    world.engine.knock(&mut world.pair.remote, 1);
    assert!(world.engine.peers[1].open);
}

#[test]
fn what_waits_for_a_dead_application_has_a_bound() {
    let mut world = World::new(10);
    world.pair = pair(10, Options { held_bytes: 100_000, ..Options::default() });
    world.shared().attach();
    for n in 0..4 {
        world.engine.knock(&mut world.pair.remote, n);
        (0..16).for_each(|_| world.engine.recv(&mut world.pair.remote, n, &[1; 8000]));
    }
    world.cycle();
    assert!(world.pair.stats.drops(DropReason::Overrun) > 0 && world.pair.stats.kept_bytes() <= 100_000);
    assert!(world.engine.peers.iter().any(|peer| peer.open));
}

/// Writes calls as they are.
fn write(world: &World, calls: &[Call]) {
    let transmit = &world.pair.channel.transmit;
    let head = transmit.word(control::CALL_HEAD_AT).load(Ordering::Relaxed);
    for (n, call) in calls.iter().enumerate() {
        let slot = (head.wrapping_add(n as u32) % CALL_SLOTS) as usize;
        transmit.set_slot(SLOTS_AT + slot * SLOT_BYTES, call.encode());
    }
    transmit.word(control::CALL_HEAD_AT).store(head.wrapping_add(calls.len() as u32), Ordering::Release);
}

#[test]
fn every_wrong_call_has_its_reason_and_changes_nothing() {
    let mut world = World::new(10);
    world.engine.knock(&mut world.pair.remote, 0);
    world.engine.recv(&mut world.pair.remote, 0, b"twelve bytes");
    world.cycle();
    let handle = world.pair.remote.table.handle(9 - 9);
    let plain = |kind| Call::plain(kind, 9, handle);
    let send = |offset, length| Call { offset, length, ..plain(CallKind::Send) };
    let wrong = [
        (Call { kind: 0, ..plain(CallKind::Done) }, Reject::Kind),
        (Call { kind: 200, ..plain(CallKind::Done) }, Reject::Kind),
        (Call { zero: 1, ..plain(CallKind::Done) }, Reject::NotZero),
        (Call { owner: 8, ..plain(CallKind::Done) }, Reject::Owner),
        (Call { handle: Handle { index: 20, ..handle }, ..plain(CallKind::Abort) }, Reject::Index),
        (Call { handle: Handle { index: u32::MAX, ..handle }, ..plain(CallKind::Abort) }, Reject::Index),
        (Call { handle: Handle { index: 5, ..handle }, ..plain(CallKind::Abort) }, Reject::Stale),
        (Call { handle: Handle { generation: 77, ..handle }, ..plain(CallKind::Abort) }, Reject::Stale),
        // not answered yet
        (send(0, 5), Reject::State),
        (plain(CallKind::Abort), Reject::State),
    ];
    for (call, reason) in wrong {
        let before = world.pair.stats.rejects(reason);
        write(&world, &[call]);
        world.cycle();
        assert_eq!(world.pair.stats.rejects(reason), before + 1, "{call:?}");
    }
    write(&world, &[plain(CallKind::Accept)]);
    let wrong = [
        (plain(CallKind::Accept), Reject::State),
        (plain(CallKind::Reject), Reject::State),
        (Call { done: 13, ..plain(CallKind::Done) }, Reject::Done),
        (Call { done: u32::MAX, ..plain(CallKind::Done) }, Reject::Done),
        (send(0, 0), Reject::Length),
        (send(0, SEND_BYTES as u32 + 1), Reject::Length),
        (send(0, u32::MAX), Reject::Length),
        (send(layout::TRANSMIT_BYTES as u32 - 4, 5), Reject::Offset),
        (send(u32::MAX, 5), Reject::Offset),
        (plain(CallKind::Reply), Reject::Reply),
    ];
    for (call, reason) in wrong {
        let before = world.pair.stats.rejects(reason);
        write(&world, &[call]);
        world.cycle();
        assert_eq!(world.pair.stats.rejects(reason), before + 1, "{call:?}");
    }
    assert_eq!(world.engine.peers[0].delivered, 12);
    // credit: what the engine has not taken counts, too
    write(&world, &[send(0, SEND_BYTES as u32); 5]);
    world.cycle();
    assert_eq!(world.pair.stats.rejects(Reject::Credit), 1);
    assert!(world.pair.stats.kept_bytes() > 0);
    world.pair.remote.budget_bytes = 1000;
    world.engine.read(&mut world.pair.remote, 0, 50_000);
    write(&world, &[send(0, 10)]);
    world.cycle();
    assert_eq!(world.pair.stats.rejects(Reject::Budget), 1);
    // rings
    for (at, reason) in [(control::CALL_HEAD_AT, Reject::CallHead), (control::EVENT_TAIL_AT, Reject::EventTail)] {
        world.pair.channel.transmit.word(at).fetch_add(5000, Ordering::Relaxed);
        world.cycle_later();
        assert!(world.pair.stats.rejects(reason) > 0);
    }
    let of_others = [Reject::Permit, Reject::Asking, Reject::Listener, Reject::Alarms];
    let met = |reason: &Reject| world.pair.stats.rejects(*reason) > 0 || of_others.contains(reason);
    assert!(REJECTS.iter().all(|(reason, _)| met(reason)));
    assert!(world.engine.peers[0].open);
    write(&world, &[plain(CallKind::Close), plain(CallKind::Close)]);
    world.cycle();
    (0..9).for_each(|_| world.engine.read(&mut world.pair.remote, 0, usize::MAX));
    world.cycle();
    world.cycle();
    assert!(!world.engine.peers[0].open, "closed when all of it was read");
    assert_eq!(world.engine.peers[0].read.len(), 4 * SEND_BYTES);
}

proptest! {
    /// Anything at all in calls and in indices.
    #[test]
    fn nothing_that_is_written_breaks_the_trusted_half(
        words in prop::collection::vec((any::<[u64; 4]>(), 0u8..4, any::<u32>()), 1..200)
    ) {
        let mut world = World::new(10);
        for (n, (words, what, word)) in words.into_iter().enumerate() {
            world.step((n % 9) as u8, n % PEERS, word as usize % 9000);
            let mut call = Call::decode(words);
            if what > 0 {
                // near what is right
                call.kind = 1 + (words[0] % 12) as u8;
                (call.zero, call.owner) = (0, 9);
                call.handle = world.pair.remote.table.handle(word % 20);
                (call.length, call.offset, call.done) = (call.length % 40_000, call.offset % 300_000, call.done % 3000);
                if call.kind == CallKind::Connect as u8 {
                    call.length = layout::ADDRESSES_BYTES as u32;
                }
            }
            write(&world, &[call]);
            // whatever was refused before, this one is looked at
            world.engine.now += 20_000;
            if what == 3 && n % 10 == 0 {
                world.pair.channel.transmit.word(word as usize % 96 * 4).store(words[1] as u32, Ordering::Relaxed);
            }
            world.cycle();
        }
        world.pair.channel.lose();
        world.cycle();
        world.cycle();
        let stats = &world.pair.stats;
        prop_assert_eq!((stats.connections(), stats.kept_bytes(), world.pair.remote.unsent_bytes), (0, 0, 0));
    }
}

#[test]
fn a_service_that_takes_anothers_place_has_the_application_begin_anew() {
    let mut world = World::new(10);
    world.engine.knock(&mut world.pair.remote, 0);
    world.cycle();
    assert!(!world.pair.channel.is_condemned());
    let next = Remote::new(world.pair.channel.clone(), Options::default(), world.pair.stats.clone());
    assert!(world.pair.channel.is_condemned());
    world.pair.remote = next;
    world.engine = Engine::new(PEERS);
    // calls of the one that is about to end are nobody's
    write(&world, &[Call::plain(CallKind::Accept, 9, Handle { index: 0, generation: 0 })]);
    world.cycle();
    world.engine.knock(&mut world.pair.remote, 0);
    assert!(!world.engine.peers[0].open && REJECTS.iter().all(|(reason, _)| world.pair.stats.rejects(*reason) == 0));
    world.pair.channel.lose();
    world.cycle();
    assert!(world.pair.channel.open());
    world.shared().attach();
    world.client = Client::new(world.shared());
    world.service = Echo::default();
    world.step(0, 0, 0);
    world.step(1, 0, 500);
    world.settle();
    assert_eq!((world.engine.peers[0].read.len(), world.said[0].len()), (500, 500));
}

#[test]
fn calls_of_one_that_has_ended_are_nobodys() {
    let mut world = World::new(10);
    let judged = |world: &World| world.pair.stats.calls.get();
    let call = Call { zero: 1, ..Call::plain(CallKind::Done, 9, Handle { index: 0, generation: 0 }) };
    write(&world, &[call]);
    world.cycle();
    assert_eq!((judged(&world), world.pair.stats.rejects(Reject::NotZero)), (1, 1));
    // it is known to have ended, and its memory may be written all the same
    world.pair.channel.lose();
    write(&world, &[call]);
    assert!(!world.pair.remote.has_calls());
    world.cycle();
    write(&world, &[call]);
    world.cycle();
    assert_eq!((world.pair.channel.state(), judged(&world)), (State::Down, 1));
    let late = world.engine.now() + LOOK_FOR;
    assert!(!world.pair.remote.has_news() && world.pair.remote.may_rest(late));
}

/// Who keeps dates has to know when the engine's time began, however long before the first cycle that was.
#[test]
fn the_zero_of_the_engines_time_is_told() {
    let mut world = World::timed();
    assert!(world.pair.attached.zero().unwrap().is_none());
    let clock = base::Clock::at(base::Clock::start().zero_ns() / 2);
    let tell = |world: &mut World| {
        world.engine.now = clock.now().as_nanos();
        world.cycle();
        let told = world.pair.attached.zero().unwrap().unwrap();
        let late = Duration::from_nanos(told.zero_ns().abs_diff(clock.zero_ns()));
        // a test's thread may have been held up between two looks at the clock
        assert!(late < Duration::from_millis(500), "{late:?}");
        told.zero_ns()
    };
    let told = tell(&mut world);
    // nor is it another one for whoever comes later
    world.pair.channel.lose();
    tell(&mut world);
    world.pair.remote = Remote::new(world.pair.channel.clone(), Options::default(), world.pair.stats.clone());
    assert_eq!(tell(&mut world), told);
}

/// Notes what it is told to expect, what comes, and what of it the dataplane could see meanwhile; answers at the end of a cycle.
#[derive(Default)]
struct Gathering {
    /// of the last [`Service::foresee`]
    foreseen: Vec<(u64, Vec<u8>)>,
    announced: usize,
    came: Vec<u64>,
    /// answers that wait for the end of the cycle
    owed: Vec<(Connection, usize)>,
    /// where calls ended for the dataplane when each event came
    shown: Vec<u32>,
    channel: Option<Arc<Channel>>,
}

impl Service for Gathering {
    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        calls.accept(connection, u64::from(connection.index) + 500).unwrap();
    }
    fn foresees(&self) -> bool {
        true
    }
    fn foresee(&mut self, coming: &[app::Coming<'_>]) {
        assert!(self.foreseen.is_empty(), "what was announced has not come: {:?}", self.foreseen);
        self.foreseen = coming.iter().map(|coming| (coming.cookie, coming.bytes.to_vec())).collect();
        self.announced += coming.len();
    }
    fn recv<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        if !self.foreseen.is_empty() {
            assert_eq!(self.foreseen.remove(0), (cookie, bytes.to_vec()));
        }
        self.came.push(cookie);
        let head = self.channel.as_ref().unwrap().transmit.word(control::CALL_HEAD_AT);
        self.shown.push(head.load(Ordering::Relaxed));
        calls.recv_done(connection, bytes.len()).unwrap();
        self.owed.push((connection, bytes.len()));
    }
    fn flush<C: Streams>(&mut self, _: Instant, calls: &mut C) {
        for (connection, bytes) in self.owed.drain(..) {
            assert_eq!(calls.send(connection, &[7; 64][..bytes]), Ok(bytes));
        }
    }
}

const BURST: usize = 40;

fn gathering() -> (Pair, Engine, Client, Gathering) {
    let mut pair = pair(BURST as u32, Options::default());
    let shared = pair.attached.shared().unwrap();
    shared.attach();
    let (mut engine, mut client) = (Engine::new(BURST), Client::new(shared));
    let mut service = Gathering { channel: Some(pair.channel.clone()), ..Gathering::default() };
    (0..BURST).for_each(|n| engine.knock(&mut pair.remote, n));
    engine.cycle(&mut pair.remote);
    while client.batch(&mut service, &Woken::default()) {}
    engine.cycle(&mut pair.remote);
    (pair, engine, client, service)
}

#[test]
fn a_burst_is_announced_shown_in_parts_and_answered_at_its_end() {
    let (mut pair, mut engine, mut client, mut service) = gathering();
    let head = |pair: &Pair| pair.channel.receive.word(header::EVENT_HEAD_AT).load(Ordering::Relaxed);
    let before = head(&pair);
    for n in 0..BURST {
        engine.recv(&mut pair.remote, n, &[n as u8; 20]);
        // what is there in whole groups is seen before the burst is over
        assert_eq!(head(&pair).wrapping_sub(before), ((n + 1) / crate::GROUP * crate::GROUP) as u32);
    }
    engine.cycle(&mut pair.remote);
    assert_eq!(head(&pair).wrapping_sub(before), BURST as u32);
    let calls = pair.channel.transmit.word(control::CALL_HEAD_AT).load(Ordering::Relaxed);
    assert!(client.batch(&mut service, &Woken::default()));
    assert_eq!(service.came, (500..500 + BURST as u64).collect::<Vec<_>>());
    assert_eq!((service.announced, service.foreseen.len()), (BURST, 0));
    // so are calls: what the first group came to, while the second one is told
    let shown: Vec<u32> = service.shown.iter().map(|head| head.wrapping_sub(calls)).collect();
    let group = |n: usize| (n / crate::GROUP * crate::GROUP) as u32;
    assert_eq!(shown, (0..BURST).map(group).collect::<Vec<_>>());
    // what it sends at the end of its cycle goes out with the rest
    engine.cycle(&mut pair.remote);
    for n in 0..BURST {
        engine.read(&mut pair.remote, n, usize::MAX);
        assert_eq!((&engine.peers[n].read[..], engine.peers[n].delivered), (&[7; 20][..], 0));
    }
}

#[test]
fn one_that_shares_the_processor_sees_nothing_before_its_turn() {
    let place = Place::Same;
    let channel = Channel::new(9, place, None, crate::Grant::new(BURST as u32, 0..1)).unwrap();
    assert!(channel.open());
    let mut remote = Remote::new(channel.clone(), Options::default(), Arc::new(Stats::new("test")));
    let mut engine = Engine::new(BURST);
    channel.transmit.word(control::ATTACHED_AT).store(1, Ordering::Release);
    (0..BURST).for_each(|n| engine.knock(&mut remote, n));
    assert_eq!(channel.receive.word(header::EVENT_HEAD_AT).load(Ordering::Relaxed), 0);
    remote.cycle(engine.now());
    assert_eq!(channel.receive.word(header::EVENT_HEAD_AT).load(Ordering::Relaxed), BURST as u32);
}

/// Gives back before it answers.
struct GivesBackFirst;

impl Service for GivesBackFirst {
    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        calls.accept(connection, 0).unwrap();
    }
    fn recv<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, _: u64, bytes: &[u8]) {
        calls.recv_done(connection, bytes.len()).unwrap();
        assert!(calls.send(connection, bytes).unwrap() <= bytes.len());
    }
}

#[test]
fn what_is_given_back_goes_along_with_the_answer_if_there_is_room_for_one() {
    let mut world = World::new(10);
    let shared = world.shared();
    shared.attach();
    world.client = Client::new(shared);
    world.engine.knock(&mut world.pair.remote, 0);
    world.cycle();
    world.client.batch(&mut GivesBackFirst, &world.woken);
    world.cycle();
    for (text, calls) in [(&b"once"[..], 1), (&[5; 30_000], 1)] {
        let before = world.pair.stats.calls.get();
        world.engine.recv(&mut world.pair.remote, 0, text);
        world.cycle();
        world.client.batch(&mut GivesBackFirst, &world.woken);
        world.cycle();
        assert_eq!(world.pair.stats.calls.get(), before + calls);
        world.engine.read(&mut world.pair.remote, 0, usize::MAX);
        assert!(world.engine.peers[0].read.ends_with(text) && world.engine.peers[0].delivered == 0);
        world.cycle();
        world.client.batch(&mut GivesBackFirst, &world.woken);
    }
    // each has credit, and the transmit area is full of what nobody has taken: bytes are given back all the same
    (1..3).for_each(|n| world.engine.knock(&mut world.pair.remote, n));
    for _ in 0..4 {
        for n in 0..3 {
            world.engine.recv(&mut world.pair.remote, n, &[6; 30_000]);
            world.pair.remote.publish();
            world.client.batch(&mut GivesBackFirst, &world.woken);
        }
    }
    world.cycle();
    assert_eq!(world.engine.peers.iter().map(|peer| peer.delivered).sum::<usize>(), 0);
    assert!(REJECTS.iter().all(|(reason, _)| world.pair.stats.rejects(*reason) == 0));
}

/// Says what it hears, in its order.
#[derive(Default)]
struct Hears(Vec<&'static str>);

impl Service for Hears {
    fn cycle(&mut self, _: Instant) {
        self.0.push("cycle");
    }
    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        calls.accept(connection, 1).unwrap();
        self.0.push("knock");
    }
    fn recv<C: Streams>(&mut self, _: Instant, _: &mut C, _: Connection, _: u64, _: &[u8]) {
        self.0.push("recv");
    }
    fn datagrams(&mut self, _: Instant, _: Listener, _: &mut [Datagram<'_>]) {
        self.0.push("datagrams");
    }
    fn woken<C: Streams>(&mut self, _: Instant, _: &mut C) {
        self.0.push("woken");
    }
    fn flush<C: Streams>(&mut self, _: Instant, _: &mut C) {
        self.0.push("flush");
    }
}

#[test]
fn a_batch_is_told_in_the_order_of_an_engines_cycle() {
    let mut world = World::new(10);
    world.engine.knock(&mut world.pair.remote, 0);
    world.engine.recv(&mut world.pair.remote, 0, b"hello");
    world.engine.ask(&mut world.pair.remote, b"?");
    world.cycle();
    let mut service = Hears::default();
    assert!(world.client.batch(&mut service, &world.woken));
    assert_eq!(service.0, ["cycle", "knock", "recv", "datagrams", "woken", "flush"]);
}
