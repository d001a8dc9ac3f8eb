//! What an application begins, with both halves over the memory between them; and calls that no library of ours would write.

use super::*;
use crate::client::{Client, Shared, Woken};
use crate::layout::{CALL_SLOTS, CallKind, EVENT_SLOTS, SLOT_BYTES, SLOTS_AT, control};
use crate::stats::REJECTS;
use crate::testing::{Engine, Pair, pair_of};
use crate::{Grant, Options, Permit};
use app::{ALARMS, Datagram, Service};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const PEER: &str = "192.0.2.9:80";
const LOCAL: &str = "192.0.2.1:7";

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[derive(Debug, PartialEq, Eq)]
enum Happened {
    Knock(Connection),
    Connected(u64, Result<Connection, DeadReason>),
    Recv(u64, Vec<u8>),
    Timer(u64),
    Alarm(u64, Instant),
    Dead(u64, DeadReason),
    Datagram(Addresses),
}

type Order = Box<dyn FnOnce(&mut dyn Streams, Instant)>;

/// Does what it is told and says what happens.
#[derive(Default)]
struct Caller {
    orders: Vec<Order>,
    happened: Vec<Happened>,
    flushes: usize,
}

impl Service for Caller {
    fn has_news(&mut self) -> bool {
        !self.orders.is_empty()
    }
    fn woken<C: Streams>(&mut self, now: Instant, calls: &mut C) {
        self.orders.drain(..).for_each(|order| order(calls, now));
    }
    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        calls.accept(connection, 1000).unwrap();
        self.happened.push(Happened::Knock(connection));
    }
    fn connected<C: Streams>(&mut self, _: Instant, _: &mut C, cookie: u64, outcome: Result<Connection, DeadReason>) {
        self.happened.push(Happened::Connected(cookie, outcome));
    }
    fn recv<C: Streams>(&mut self, _: Instant, _: &mut C, _: Connection, cookie: u64, bytes: &[u8]) {
        self.happened.push(Happened::Recv(cookie, bytes.to_vec()));
    }
    fn timer<C: Streams>(&mut self, _: Instant, _: &mut C, _: Connection, cookie: u64) {
        self.happened.push(Happened::Timer(cookie));
    }
    fn alarm<C: Streams>(&mut self, now: Instant, _: &mut C, cookie: u64) {
        self.happened.push(Happened::Alarm(cookie, now));
    }
    fn dead(&mut self, _: Instant, _: Connection, cookie: u64, reason: DeadReason) {
        self.happened.push(Happened::Dead(cookie, reason));
    }
    fn datagrams(&mut self, _: Instant, _: Listener, burst: &mut [Datagram<'_>]) {
        self.happened.extend(burst.iter().map(|datagram| Happened::Datagram(datagram.addresses)));
    }
    fn flush<C: Streams>(&mut self, _: Instant, _: &mut C) {
        self.flushes += 1;
    }
}

struct World {
    pair: Pair,
    engine: Engine,
    client: Client,
    service: Caller,
    woken: Woken,
}

impl World {
    fn new(connections: u32) -> World {
        World::permitting(connections, vec![Permit::new([192, 0, 2, 0].into(), 24, None)])
    }

    fn permitting(connections: u32, permits: Vec<Permit>) -> World {
        let pair = pair_of(Grant::new(connections, 3..4).permitting(permits), Options::default());
        let shared = pair.attached.shared().unwrap();
        shared.attach();
        let (client, engine) = (Client::new(shared), Engine::new(0));
        World { pair, engine, client, service: Caller::default(), woken: Woken::default() }
    }

    fn shared(&self) -> Arc<Shared> {
        self.pair.attached.shared().unwrap()
    }

    fn cycle(&mut self) {
        self.engine.cycle(&mut self.pair.remote);
    }

    fn batch(&mut self) {
        self.client.batch(&mut self.service, &self.woken);
    }

    /// Has a call made, and seen by the engine.
    fn call<R: 'static>(&mut self, work: impl FnOnce(&mut dyn Streams, Instant) -> R + 'static) -> R {
        let said = std::rc::Rc::new(std::cell::Cell::new(None));
        let says = said.clone();
        self.service.orders.push(Box::new(move |calls, now| says.set(Some(work(calls, now)))));
        self.batch();
        self.cycle();
        said.take().expect("the call's outcome")
    }

    fn connect(&mut self, to: &str, cookie: u64) -> Result<Connection, CallError> {
        let to = at(to);
        self.call(move |calls, _| calls.connect(to, None, cookie))
    }

    /// What has happened since this was asked.
    fn happened(&mut self) -> Vec<Happened> {
        self.cycle();
        self.batch();
        std::mem::take(&mut self.service.happened)
    }

    /// The engine's only connection that is asked for.
    fn asked(&self) -> usize {
        let asking = self.engine.asking();
        assert_eq!(asking.len(), 1, "{asking:?}");
        asking[0]
    }

    fn rejects(&self, reason: Reject) -> u64 {
        self.pair.stats.rejects(reason)
    }

    /// A call as it is, with payload at the beginning of its area.
    fn write(&mut self, call: Call, payload: &[u8]) {
        let transmit = &self.pair.channel.transmit;
        transmit.copy_in(layout::PAYLOAD_AT, payload);
        let head = transmit.word(control::CALL_HEAD_AT).load(Ordering::Relaxed);
        transmit.set_slot(SLOTS_AT + (head % CALL_SLOTS) as usize * SLOT_BYTES, call.encode());
        transmit.word(control::CALL_HEAD_AT).store(head.wrapping_add(1), Ordering::Release);
        self.cycle();
    }

    /// The event that was told last, and how many were.
    fn last_event(&self) -> (Event, u32) {
        let shared = self.shared();
        let head = self.pair.channel.receive.word(layout::header::EVENT_HEAD_AT).load(Ordering::Relaxed);
        (shared.event(head.wrapping_sub(1)).expect("an event"), head)
    }
}

#[test]
fn a_connection_that_is_asked_for_lives_as_one_that_comes() {
    let mut world = World::new(10);
    for round in 0..25u64 {
        let asked = world.connect(PEER, round).unwrap();
        assert!(asked.index >= 10 && world.pair.stats.connections() == 1);
        let early = world.call(move |calls, _| {
            assert_eq!(calls.room(asked), 0);
            [
                calls.accept(asked, 5),
                calls.reject(asked),
                calls.send(asked, b"early").map(drop),
                calls.recv_done(asked, 0),
                calls.shutdown(asked),
                calls.close(asked),
                calls.timer_set(asked, None),
            ]
        });
        assert_eq!(early, [Err(CallError::WrongState); 7]);
        assert_eq!(world.happened(), []);
        let n = world.asked();
        world.engine.answer(&mut world.pair.remote, n, Ok(()));
        assert_eq!(world.happened(), [Happened::Connected(round, Ok(asked))]);
        assert_eq!(world.call(move |calls, _| calls.send(asked, b"question")), Ok(8));
        world.engine.read(&mut world.pair.remote, n, 100);
        assert_eq!(world.engine.peers[n].read, b"question");
        world.engine.recv(&mut world.pair.remote, n, b"answer");
        assert_eq!(world.happened(), [Happened::Recv(round, b"answer".to_vec())]);
        assert_eq!(world.call(move |calls, _| calls.recv_done(asked, 6)), Ok(()));
        assert_eq!(world.engine.peers[n].delivered, 0);
        world.engine.end(n, DeadReason::Closed);
        assert_eq!(world.happened(), [Happened::Dead(round, DeadReason::Closed)]);
        assert_eq!(world.call(move |calls, _| calls.send(asked, b"late")), Err(CallError::NoConnection));
        assert_eq!(world.pair.stats.connections(), 0);
    }
    assert!(world.service.flushes > 25);
    assert!(REJECTS.iter().all(|(reason, _)| world.rejects(*reason) == 0));
}

#[test]
fn attempts_fail_by_an_event_each_and_leave_nothing() {
    let mut world = World::new(2);
    for (n, reason) in [DeadReason::Refused, DeadReason::Unreachable, DeadReason::TimedOut].into_iter().enumerate() {
        let asked = world.connect(PEER, n as u64).unwrap();
        let place = world.asked();
        world.engine.answer(&mut world.pair.remote, place, Err(reason));
        assert_eq!(world.happened(), [Happened::Connected(n as u64, Err(reason))]);
        assert_eq!(world.call(move |calls, _| calls.abort(asked)), Err(CallError::NoConnection));
    }
    // what the engine's call says comes as an event
    let local = at("192.0.2.1:4000");
    assert!(world.call(move |calls, _| calls.connect(at(PEER), Some(local), 9)).is_ok());
    assert_eq!(world.happened(), [Happened::Connected(9, Err(DeadReason::Denied(CallError::InUse)))]);
    // what this side knows by itself, at once
    let said = world.call(|calls, _| {
        [("192.0.2.9:0", None), ("224.0.0.1:80", None), (PEER, Some(at("[::1]:0")))]
            .map(|(to, local)| calls.connect(at(to), local, 1).err())
    });
    assert_eq!(said, [Some(CallError::NoSuchAddress); 3]);
    // given up before it is there
    let asked = world.connect(PEER, 10).unwrap();
    let given_up = world.call(move |calls, _| [calls.abort(asked), calls.abort(asked), calls.close(asked)]);
    assert_eq!(given_up, [Ok(()), Err(CallError::NoConnection), Err(CallError::NoConnection)]);
    assert_eq!(world.happened(), [Happened::Connected(10, Err(DeadReason::Aborted))]);
    // and when it is there already, which is not known yet
    let asked = world.connect(PEER, 11).unwrap();
    let n = world.asked();
    world.engine.answer(&mut world.pair.remote, n, Ok(()));
    world.engine.recv(&mut world.pair.remote, n, b"hello");
    assert_eq!(world.call(move |calls, _| calls.abort(asked)), Ok(()));
    assert_eq!(world.happened(), [Happened::Connected(11, Err(DeadReason::Aborted))]);
    assert!(!world.engine.peers[n].open);
    assert_eq!(world.happened(), []);
    assert_eq!(world.pair.stats.connections(), 0);
    assert!(REJECTS.iter().all(|(reason, _)| *reason == Reject::Stale || world.rejects(*reason) == 0));
}

#[test]
fn a_connection_is_asked_for_though_what_others_send_has_all_the_room() {
    const CROWD: usize = layout::TRANSMIT_BYTES / SEND_BYTES + 2;
    let mut world = World::new(20);
    world.engine = Engine::new(CROWD);
    (0..CROWD).for_each(|n| world.engine.knock(&mut world.pair.remote, n));
    let knocks: Vec<_> = (0..2).flat_map(|_| world.happened()).collect();
    let crowd = knocks.iter().map(|knock| if let Happened::Knock(it) = knock { *it } else { panic!("{knock:?}") });
    let crowd: Vec<Connection> = crowd.collect();
    assert_eq!(crowd.len(), CROWD);
    // all in one turn of the application, in which the dataplane takes nothing
    let (first, second, given_up) = world.call(move |calls, _| {
        crowd.iter().for_each(|on| assert_eq!(calls.send(*on, &[7; SEND_BYTES]), Ok(SEND_BYTES)));
        let [first, second, given_up] = [1, 2, 3].map(|cookie| calls.connect(at(PEER), None, cookie).unwrap());
        calls.abort(given_up).unwrap();
        (first, second, given_up)
    });
    assert!(world.engine.asking().is_empty(), "there was room in the lane");
    let told: Vec<_> = (0..4).flat_map(|_| world.happened()).collect();
    assert!(told.contains(&Happened::Connected(3, Err(DeadReason::Aborted))), "{told:?} of {given_up:?}");
    let places = world.engine.asking();
    assert_eq!(places.len(), 2);
    for n in places {
        world.engine.answer(&mut world.pair.remote, n, Ok(()));
    }
    let told = [Happened::Connected(1, Ok(first)), Happened::Connected(2, Ok(second))];
    assert_eq!(world.happened(), told);
    // what was sent before and behind them is all there
    for _ in 0..20 {
        for n in 0..CROWD {
            world.engine.read(&mut world.pair.remote, n, usize::MAX);
        }
        world.happened();
    }
    assert!(world.engine.peers[..CROWD].iter().all(|peer| peer.read == [7; SEND_BYTES]));
    assert!(REJECTS.iter().all(|(reason, _)| world.rejects(*reason) == 0));
}

#[test]
fn who_blocks_has_what_it_asked_for_held_up_and_then_ended() {
    let mut world = World::new(10);
    let open = world.connect(PEER, 1).unwrap();
    let n = world.asked();
    world.engine.answer(&mut world.pair.remote, n, Ok(()));
    assert_eq!(world.happened(), [Happened::Connected(1, Ok(open))]);
    assert!(world.connect(PEER, 2).is_ok());
    let blocks = |world: &mut World, ms: u64| {
        for _ in 0..ms / 10 {
            world.engine.now += 10_000_000;
            world.cycle();
        }
        (world.pair.stats.unresponsive(), world.pair.stats.drops(DropReason::Stuck))
    };
    world.engine.recv(&mut world.pair.remote, n, b"hello");
    assert_eq!(blocks(&mut world, 500), (1, 0));
    // what is not given back closes the peer's window
    assert!(world.engine.peers[n].open && world.engine.peers[n].delivered == 5 && world.engine.asking().len() == 1);
    assert_eq!(blocks(&mut world, 600), (1, 2));
    assert!(!world.engine.peers[n].open && world.engine.asking().is_empty());
    // so it is told when it goes on
    let told = [
        Happened::Recv(1, b"hello".to_vec()),
        Happened::Dead(1, DeadReason::Aborted),
        Happened::Connected(2, Err(DeadReason::Aborted)),
    ];
    assert_eq!(world.happened(), told);
    assert_eq!((world.happened(), world.pair.stats.connections()), (vec![], 0));
    assert!(world.connect(PEER, 3).is_ok());
}

#[test]
fn whom_it_may_ask_is_judged_on_both_sides() {
    for permits in [vec![], vec![Permit::new([192, 0, 2, 0].into(), 24, Some(80))]] {
        let some = !permits.is_empty();
        let mut world = World::permitting(10, permits);
        for to in ["198.51.100.1:80", "[2001:db8::1]:80", "192.0.2.9:81"] {
            assert_eq!(world.connect(to, 1), Err(CallError::Forbidden), "{to}");
            let ends = Addresses { local: at(LOCAL), peer: at(to) };
            let ends = if to.starts_with('[') { Addresses { local: at("[::]:7"), ..ends } } else { ends };
            assert_eq!(world.call(move |calls, _| calls.send_to(Listener(3), ends, b"x")), Err(CallError::Forbidden));
        }
        assert_eq!(world.connect(PEER, 1).is_ok(), some);
        assert_eq!(world.happened(), []);
        // the same past the library
        let ends = Addresses { local: at("[::]:0"), peer: at("198.51.100.1:80") };
        let place = Handle { index: 15, generation: 77 };
        let length = ADDRESSES_BYTES as u32;
        let call = Call { length, ..Call::plain(CallKind::Connect, 9, place) };
        world.write(call, &layout::encode_addresses(&ends));
        let listener = Handle { index: 3, generation: 0 };
        world.write(Call { length, ..Call::plain(CallKind::SendTo, 9, listener) }, &layout::encode_addresses(&ends));
        if some {
            assert_eq!(world.rejects(Reject::Permit), 2);
            let (event, _) = world.last_event();
            assert_eq!((event.kind, event.handle), (EventKind::Connected, place));
            assert_eq!(layout::reason(event.detail), DeadReason::Denied(CallError::Forbidden));
        } else {
            // without a permit there are no places either
            assert_eq!((world.rejects(Reject::Index), world.rejects(Reject::Permit)), (1, 1));
        }
        assert!(world.engine.unasked.is_empty() && world.engine.asking().len() == usize::from(some));
    }
}

#[test]
fn wrong_calls_have_their_reasons() {
    let mut world = World::new(10);
    let ends = layout::encode_addresses(&Addresses { local: at("[::]:0"), peer: at(PEER) });
    let length = ADDRESSES_BYTES as u32;
    let connect = Call { length, ..Call::plain(CallKind::Connect, 9, Handle { index: 12, generation: 5 }) };
    world.write(connect, &ends);
    assert_eq!(world.pair.stats.connections(), 1);
    let place = |index: u32| Handle { index, generation: 0 };
    let send_to = Call { length, ..Call::plain(CallKind::SendTo, 9, place(3)) };
    for (call, reason) in [
        (connect, Reject::State),
        (Call { handle: place(9), ..connect }, Reject::Index),
        (Call { handle: place(20), ..connect }, Reject::Index),
        (Call { handle: place(u32::MAX), ..connect }, Reject::Index),
        (Call { length: length - 1, ..connect }, Reject::Length),
        (Call { length: u32::MAX, ..connect }, Reject::Length),
        (Call { offset: layout::TRANSMIT_BYTES as u32 - 1, handle: place(13), ..connect }, Reject::Offset),
        (Call { offset: u32::MAX, handle: place(13), ..connect }, Reject::Offset),
        (Call { length: length - 1, ..send_to }, Reject::Length),
        (Call { length: length + SEND_BYTES as u32 + 1, ..send_to }, Reject::Length),
        (Call { offset: u32::MAX, ..send_to }, Reject::Offset),
        (Call { handle: Handle { index: 3, generation: 1 }, ..send_to }, Reject::NotZero),
        (Call { handle: place(2), ..send_to }, Reject::Listener),
        (Call { handle: place(4), ..send_to }, Reject::Listener),
        (Call { handle: place(u32::MAX), ..send_to }, Reject::Listener),
        // it is asked for, and not there
        (Call::plain(CallKind::Done, 9, connect.handle), Reject::State),
        (Call { done: 1, ..Call::plain(CallKind::Abort, 9, connect.handle) }, Reject::Done),
        (Call::plain(CallKind::Abort, 9, place(12)), Reject::Stale),
    ] {
        let before = world.rejects(reason);
        world.write(call, &ends);
        assert_eq!(world.rejects(reason), before + 1, "{call:?}");
    }
    assert_eq!((world.pair.stats.connections(), world.engine.asking().len()), (1, 1));
}

#[test]
fn there_are_as_many_as_may_be_and_no_more() {
    let mut world = World::new(6);
    // those that come and those that are asked for count alike
    world.engine = Engine::new(4);
    for n in 0..4 {
        world.engine.knock(&mut world.pair.remote, n);
    }
    assert!(world.connect(PEER, 1).is_ok() && world.connect(PEER, 2).is_ok() && world.connect(PEER, 3).is_ok());
    let happened = world.happened();
    assert_eq!(happened.last(), Some(&Happened::Connected(3, Err(DeadReason::NoResources))));
    assert_eq!((world.pair.stats.drops(DropReason::Full), world.pair.stats.connections()), (1, 6));
    // one goes, one comes
    world.engine.end(0, DeadReason::Reset);
    world.cycle();
    world.engine.knock(&mut world.pair.remote, 1);
    world.engine.knock(&mut world.pair.remote, 0);
    assert_eq!(world.pair.stats.connections(), 6);
    // this side knows how many places it has
    let refused = world.call(|calls, _| (0..).find_map(|n| calls.connect(at(PEER), None, n).err()));
    assert_eq!(refused, Some(CallError::NoResources));

    let mut world = World::new(2 * ASKING);
    // a connection that is asked for costs some microseconds of the allowance
    let connect = |world: &mut World, n: u32| {
        world.engine.now += 20_000;
        world.connect(PEER, n.into())
    };
    for n in 0..ASKING {
        assert!(connect(&mut world, n).is_ok(), "{n}");
    }
    assert_eq!(world.connect(PEER, 0), Err(CallError::NoResources));
    for n in world.engine.asking() {
        world.engine.answer(&mut world.pair.remote, n, Err(DeadReason::Refused));
    }
    world.cycle();
    (0..2 * ASKING / 64).for_each(|_| world.batch());
    assert_eq!((world.service.happened.len(), world.pair.stats.connections()), (ASKING as usize, 0));
    for n in 0..ASKING {
        assert!(connect(&mut world, n).is_ok(), "{n}");
    }
    // past the library, which knows nothing of this call and is of no use behind it
    let ends = layout::encode_addresses(&Addresses { local: at("[::]:0"), peer: at(PEER) });
    let place = Handle { index: 4 * ASKING - 1, generation: 0 };
    let call = Call { length: ADDRESSES_BYTES as u32, ..Call::plain(CallKind::Connect, 9, place) };
    world.write(call, &ends);
    assert_eq!((world.rejects(Reject::Asking), world.engine.asking().len()), (1, ASKING as usize));
}

#[test]
fn a_full_ring_loses_no_outcome_and_no_alarm() {
    let mut world = World::new(600);
    let now = world.engine.now();
    world.call(move |calls, _| (0..40).for_each(|cookie| calls.alarm_set(cookie, Some(now)).unwrap()));
    let local = Some(at("192.0.2.1:4000"));
    // the ring fills with the engine's refusals and failures, and nobody takes them
    let mut asked = 0u64;
    while asked < 500 {
        world.service.orders.push(Box::new(move |calls, _| {
            let local = if asked.is_multiple_of(2) { local } else { None };
            calls.connect(at(PEER), local, 1000 + asked).unwrap();
        }));
        asked += 1;
    }
    world.batch();
    for _ in 0..EVENT_SLOTS {
        world.engine.ask(&mut world.pair.remote, b"fills the ring");
    }
    for _ in 0..40 {
        world.engine.now += 200_000;
        world.cycle();
    }
    for n in world.engine.asking() {
        world.engine.answer(&mut world.pair.remote, n, Err(DeadReason::Refused));
    }
    world.engine.now += 1_000_000;
    (0..4).for_each(|_| world.cycle());
    assert!(world.pair.remote.outward.waits() && !world.pair.remote.waiting.is_empty());
    assert!(world.pair.remote.has_news());
    // the engine would ring for them in every cycle, and never sleep
    assert_eq!(world.engine.alarms.len(), 0);
    for _ in 0..100 {
        world.cycle();
        world.batch();
    }
    let of = |what: &dyn Fn(&Happened) -> bool| world.service.happened.iter().filter(|happened| what(happened)).count();
    let denied =
        |reason| move |happened: &Happened| matches!(happened, Happened::Connected(_, Err(of)) if *of == reason);
    assert_eq!(of(&denied(DeadReason::Denied(CallError::InUse))), 250);
    assert_eq!(of(&denied(DeadReason::Refused)), 250);
    assert_eq!(of(&|happened| matches!(happened, Happened::Alarm(..))), 40);
    assert!(!world.pair.remote.outward.waits() && world.pair.stats.connections() == 0);
}

#[test]
fn alarms_are_set_replaced_cleared_and_never_early() {
    let mut world = World::new(10);
    let start = world.engine.now();
    let later = start + Duration::from_secs(1);
    world.call(move |calls, _| {
        calls.alarm_set(u64::MAX, Some(later)).unwrap();
        calls.alarm_set(5, Some(start)).unwrap();
        calls.alarm_set(5, Some(later)).unwrap();
        calls.alarm_set(6, Some(start)).unwrap();
        calls.alarm_set(6, None).unwrap();
        calls.alarm_set(7, None).unwrap();
        calls.alarm_set(8, Some(start)).unwrap();
    });
    world.engine.now += 100_000;
    assert!(matches!(world.happened()[..], [Happened::Alarm(8, _)]));
    assert_eq!((world.pair.stats.alarms.get(), world.engine.alarms.len()), (2, 1));
    world.engine.now += 2_000_000_000;
    let happened = world.happened();
    let both =
        |cookie| happened.iter().any(|it| matches!(it, Happened::Alarm(of, now) if *of == cookie && *now >= later));
    assert!(happened.len() == 2 && both(5) && both(u64::MAX), "{happened:?}");
    assert_eq!((world.pair.stats.alarms.get(), world.engine.alarms.len()), (0, 0));
    // one that goes off while it is set to a later time is not told early
    let soon = world.engine.now() + Duration::from_micros(100);
    world.call(move |calls, _| calls.alarm_set(1, Some(soon)).unwrap());
    let later = soon + Duration::from_secs(1);
    world.service.orders.push(Box::new(move |calls, _| calls.alarm_set(1, Some(later)).unwrap()));
    world.batch();
    world.engine.now += 200_000;
    let now = world.engine.now();
    world.pair.remote.alarm(now, &mut world.engine, ALARM);
    assert_eq!(world.happened(), []);
    world.engine.now += 2_000_000_000;
    assert!(matches!(world.happened()[..], [Happened::Alarm(1, now)] if now >= later));
    // as many as anywhere
    let set = world.call(move |calls, _| {
        let set =
            (0..).take_while(|cookie| calls.alarm_set(*cookie, Some(later + Duration::from_secs(60))).is_ok()).count();
        assert_eq!(calls.alarm_set(0, Some(later)), Ok(()), "one that is set is replaced");
        set
    });
    assert_eq!(set, ALARMS);
    // so many calls take more than one cycle
    (0..8).for_each(|_| drop(world.happened()));
    assert_eq!(world.pair.stats.alarms.get() as usize, ALARMS - 1);
    world.write(Call { at: u64::MAX - 1, ..Call::plain(CallKind::Alarm, 9, Handle::of_cookie(1 << 40)) }, &[]);
    world.write(Call { at: u64::MAX - 1, ..Call::plain(CallKind::Alarm, 9, Handle::of_cookie(1 << 41)) }, &[]);
    assert_eq!(world.rejects(Reject::Alarms), 1);
}

#[test]
fn a_timer_that_crosses_a_later_one_is_not_told() {
    let mut world = World::new(10);
    let asked = world.connect(PEER, 4).unwrap();
    let n = world.asked();
    world.engine.answer(&mut world.pair.remote, n, Ok(()));
    world.happened();
    let now = world.engine.now();
    world.call(move |calls, _| calls.timer_set(asked, Some(now)).unwrap());
    let later = now + Duration::from_secs(1);
    world.service.orders.push(Box::new(move |calls, _| calls.timer_set(asked, Some(later)).unwrap()));
    world.batch();
    world.engine.fire(&mut world.pair.remote, n);
    assert_eq!(world.happened(), []);
    world.cycle();
    assert_eq!(world.engine.peers[n].timer, Some(later));
    world.engine.fire(&mut world.pair.remote, n);
    assert_eq!(world.happened(), [Happened::Timer(4)]);
}

#[test]
fn datagrams_go_unasked_and_late() {
    let mut world = World::new(10);
    let ends = Addresses { local: at(LOCAL), peer: at("192.0.2.50:5000") };
    assert_eq!(world.call(move |calls, _| calls.send_to(Listener(3), ends, b"news")), Ok(()));
    assert_eq!(world.engine.unasked, [(ends, b"news".to_vec())]);
    let said = world.call(move |calls, _| {
        [
            calls.send_to(Listener(2), ends, b"x"),
            calls.send_to(Listener(3), Addresses { peer: at("192.0.2.50:0"), ..ends }, b"x"),
            calls.send_to(Listener(3), Addresses { peer: at("[2001:db8::1]:5"), ..ends }, b"x"),
            calls.send_to(Listener(3), ends, &[0; SEND_BYTES + 1]),
            calls.send_to(Listener(3), ends, &[7; SEND_BYTES]),
        ]
    });
    let no = Err(CallError::NoSuchAddress);
    assert_eq!(said, [no, no, no, Err(CallError::TooLong), Ok(())]);
    assert_eq!(world.engine.unasked.pop(), Some((ends, vec![7; SEND_BYTES])));
    // a local end that is not the listener's is the engine's to know
    let wrong = Addresses { local: at("192.0.2.1:8"), ..ends };
    assert_eq!(world.call(move |calls, _| calls.send_to(Listener(3), wrong, b"x")), Ok(()));
    assert_eq!(world.pair.stats.drops(DropReason::Engine), 1);
    // a question that is answered later, once, whoever may be sent to
    let mut world = World::permitting(10, Vec::new());
    world.engine.ask(&mut world.pair.remote, b"question");
    let asked = world.happened();
    let [Happened::Datagram(asker)] = asked[..] else { panic!("{asked:?}") };
    let said = world.call(move |calls, _| {
        let long = calls.send_to(Listener(3), asker, &[1; 1401]);
        [long, calls.send_to(Listener(3), asker, b"answer"), calls.send_to(Listener(3), asker, b"more")]
    });
    assert_eq!(said, [Err(CallError::TooLong), Ok(()), Err(CallError::Forbidden)]);
    assert_eq!(world.engine.answers, [b"answer".to_vec()]);
    assert!(REJECTS.iter().all(|(reason, _)| world.rejects(*reason) == 0));
}

#[test]
fn a_late_answer_without_room_may_be_tried_again() {
    let mut world = World::permitting(10, Vec::new());
    world.engine.ask(&mut world.pair.remote, b"question");
    let asked = world.happened();
    let [Happened::Datagram(asker)] = asked[..] else { panic!("{asked:?}") };
    let said = world.call(move |calls, _| {
        // as many calls as are under way at once
        (0..u64::from(CALL_SLOTS)).for_each(|cookie| calls.alarm_set(cookie % 2, Some(Instant::ZERO)).unwrap());
        [(); 2].map(|()| calls.send_to(Listener(3), asker, b"answer"))
    });
    assert_eq!(said, [Err(CallError::NoResources); 2]);
    // until all of them are taken
    for _ in 0..100 {
        world.engine.now += 100_000;
        world.happened();
    }
    let said = world.call(move |calls, _| [(); 2].map(|()| calls.send_to(Listener(3), asker, b"answer")));
    assert_eq!(said, [Ok(()), Err(CallError::Forbidden)]);
    assert_eq!(world.engine.answers, [b"answer".to_vec()]);
    assert!(REJECTS.iter().all(|(reason, _)| world.rejects(*reason) == 0));
}

#[test]
fn an_application_that_ends_takes_what_it_began_along() {
    let mut world = World::new(10);
    for round in 0..3u64 {
        for n in 0..6 {
            assert!(world.connect(PEER, n).is_ok(), "{round}");
        }
        let asking = world.engine.asking();
        world.engine.answer(&mut world.pair.remote, asking[0], Ok(()));
        world.engine.answer(&mut world.pair.remote, asking[1], Ok(()));
        let now = world.engine.now() + Duration::from_secs(1);
        world.call(move |calls, _| calls.alarm_set(round, Some(now)).unwrap());
        world.pair.channel.lose();
        (0..2).for_each(|_| world.cycle());
        assert!(world.engine.asking().is_empty() && world.engine.alarms.is_empty());
        assert!(world.engine.peers.iter().all(|peer| !peer.open));
        assert_eq!((world.pair.stats.connections(), world.pair.stats.alarms.get()), (0, 0));
        assert!(world.pair.channel.open());
        let shared = world.shared();
        shared.attach();
        (world.client, world.service) = (Client::new(shared), Caller::default());
    }
    assert!(REJECTS.iter().all(|(reason, _)| world.rejects(*reason) == 0));
}

#[test]
fn the_servers_end_is_the_end_of_every_attempt() {
    let mut world = World::new(10);
    let asked = world.connect(PEER, 1).unwrap();
    world.connect(PEER, 2).unwrap();
    world.call(move |calls, _| calls.abort(asked).unwrap());
    world.service.happened.clear();
    world.client.end_all(&mut world.service);
    world.service.happened.sort_by_key(|happened| matches!(happened, Happened::Connected(2, _)));
    let reset = |cookie| Happened::Connected(cookie, Err(DeadReason::Reset));
    assert_eq!(world.service.happened, [reset(1), reset(2)]);
}

/// Calls that an application writes without end, as fast as they are taken, for 10 ms of the engine's time; how many were judged.
fn judged_of(world: &mut World, calls: &[Call], payload: &[u8]) -> u64 {
    let channel = world.pair.channel.clone();
    let transmit = &channel.transmit;
    transmit.copy_in(layout::PAYLOAD_AT, payload);
    let (before, until) = (world.pair.stats.calls.get(), world.engine.now + 10_000_000);
    let mut next = calls.iter().cycle();
    while world.engine.now < until {
        let taken = world.pair.channel.receive.word(layout::header::CALL_TAIL_AT).load(Ordering::Relaxed);
        let mut head = transmit.word(control::CALL_HEAD_AT).load(Ordering::Relaxed);
        while head.wrapping_sub(taken) < CALL_SLOTS {
            transmit.set_slot(SLOTS_AT + (head % CALL_SLOTS) as usize * SLOT_BYTES, next.next().unwrap().encode());
            head = head.wrapping_add(1);
        }
        transmit.word(control::CALL_HEAD_AT).store(head, Ordering::Release);
        // and takes what it is told
        let told = world.pair.channel.receive.word(layout::header::EVENT_HEAD_AT).load(Ordering::Relaxed);
        transmit.word(control::EVENT_TAIL_AT).store(told, Ordering::Release);
        world.cycle();
        // like a socket, which takes what it is given in the same turn
        (0..world.engine.peers.len()).for_each(|n| world.engine.read(&mut world.pair.remote, n, usize::MAX));
    }
    world.pair.stats.calls.get() - before
}

#[test]
fn what_an_application_brings_about_itself_earns_it_no_calls() {
    // 10 ms give 10,000 of the cheapest, a full allowance 1,024 more, and a cycle's last one may be owed
    let mut world = World::new(600);
    let due = |cookie| Call { at: 0, ..Call::plain(CallKind::Alarm, 9, Handle::of_cookie(cookie)) };
    let alarms: Vec<Call> = (0..256).map(due).collect();
    let judged = judged_of(&mut world, &alarms, &[]);
    assert!((10_000..11_200).contains(&judged) && world.pair.stats.events.get() > 5_000, "{judged} alarms");

    let mut world = World::new(600);
    let local = at("192.0.2.1:4000");
    let ends = layout::encode_addresses(&Addresses { local, peer: at(PEER) });
    let place = |index: u32| Handle { index: 600 + index, generation: 0 };
    let connect = |n| Call { length: ADDRESSES_BYTES as u32, ..Call::plain(CallKind::Connect, 9, place(n)) };
    let connects: Vec<Call> = (0..256).map(connect).collect();
    let judged = judged_of(&mut world, &connects, &ends);
    assert!((600..750).contains(&judged) && world.pair.stats.events.get() >= judged - 64, "{judged} connects");

    let mut world = World::new(8);
    world.engine = Engine::new(8);
    (0..8).for_each(|n| world.engine.knock(&mut world.pair.remote, n));
    let handles: Vec<Handle> = (0..8).map(|n| world.pair.remote.table.handle(n)).collect();
    for handle in &handles {
        world.write(Call::plain(CallKind::Accept, 9, *handle), &[]);
    }
    let send = |handle: &Handle| Call { length: 1, ..Call::plain(CallKind::Send, 9, *handle) };
    let sends: Vec<Call> = handles.iter().map(send).collect();
    let (told, judged) = (world.pair.stats.events.get(), judged_of(&mut world, &sends, b"x"));
    assert!((10_000..11_200).contains(&judged) && world.pair.stats.events.get() > told + 1_000, "{judged} sends");

    // what others bring about does: a datagram each, and its answer with something besides
    let mut world = World::new(10);
    let mut answered = 0;
    let until = world.engine.now + 1_000_000;
    while world.engine.now < until {
        (0..64).for_each(|_| world.engine.ask(&mut world.pair.remote, b"?"));
        let told = world.pair.channel.receive.word(layout::header::EVENT_HEAD_AT).load(Ordering::Relaxed);
        world.pair.channel.transmit.word(control::EVENT_TAIL_AT).store(told, Ordering::Release);
        let alarm = Call { at: NEVER, ..Call::plain(CallKind::Alarm, 9, Handle::of_cookie(1)) };
        for _ in 0..64 * 4 {
            let before = world.pair.stats.calls.get();
            world.write(alarm, &[]);
            answered += world.pair.stats.calls.get() - before;
        }
    }
    assert!(answered >= 1_000 && world.pair.stats.throttled.get() == 0, "{answered}");
}
