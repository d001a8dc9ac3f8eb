//! Peers that take nothing of what they are sent.

use super::*;
use crate::layout::CREDIT_BYTES;
use crate::{EXCUSES, LINGER};
use app::{Content, ContentBuilder, ObjectId, Range};

const ALL: usize = CREDIT_BYTES as usize;

/// Both halves, with an engine whose time passes.
struct Halves<S> {
    pair: Pair,
    engine: Engine,
    client: Client,
    service: S,
}

impl<S: Service> Halves<S> {
    fn new(peers: usize, service: S) -> Halves<S> {
        let pair = pair(peers as u32, Options::default());
        let shared = pair.attached.shared().unwrap();
        shared.attach();
        Halves { engine: Engine::new(peers), client: Client::new(shared), pair, service }
    }

    /// A peer comes and says something.
    fn ask(&mut self, n: usize) {
        self.engine.knock(&mut self.pair.remote, n);
        self.engine.recv(&mut self.pair.remote, n, b"?");
    }

    fn read(&mut self, n: usize) -> usize {
        self.engine.read(&mut self.pair.remote, n, usize::MAX);
        self.engine.peers[n].read.len()
    }

    /// So much time, with a few cycles in it.
    fn pass(&mut self, time: Duration) {
        self.engine.now += time.as_nanos() as u64;
        for _ in 0..4 {
            self.engine.now += 1_000_000;
            let now = Instant::from_nanos(self.engine.now);
            for n in 0..self.engine.peers.len() {
                if self.engine.peers[n].timer.is_some_and(|at| at <= now) {
                    self.engine.fire(&mut self.pair.remote, n);
                }
            }
            self.engine.cycle(&mut self.pair.remote);
            self.client.batch(&mut self.service, &Woken::default());
        }
    }
}

/// Answers whatever comes with so many bytes.
struct Answers(usize);

impl Service for Answers {
    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        calls.accept(connection, 0).unwrap();
    }
    fn recv<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, _: u64, _: &[u8]) {
        assert_eq!(calls.send(connection, &vec![7; self.0]), Ok(self.0));
    }
}

#[test]
fn peers_that_read_nothing_do_not_hold_up_the_others() {
    let deaf = (layout::BUDGET_BYTES / CREDIT_BYTES) as usize;
    let mut halves = Halves::new(deaf + 1, Answers(ALL));
    (0..deaf).for_each(|n| halves.ask(n));
    (0..100).for_each(|_| halves.pass(Duration::ZERO));
    // the last eighth of them have a little
    let little = deaf as u64 / 8 * 4096;
    assert_eq!(halves.pair.remote.unsent_bytes, layout::BUDGET_BYTES / 8 * 7 + little);
    halves.service = Answers(100);
    halves.ask(deaf);
    halves.pass(Duration::ZERO);
    assert_eq!(halves.read(deaf), 100);
    // when they read after all, nothing is missing
    for _ in 0..30 {
        (0..deaf).for_each(|n| _ = halves.read(n));
        halves.pass(Duration::ZERO);
    }
    assert!((0..deaf).all(|n| halves.read(n) == ALL));
    assert!(REJECTS.iter().all(|(reason, _)| halves.pair.stats.rejects(*reason) == 0));
}

/// Sends so much of an object, and is done with the connection.
struct Closes {
    content: Arc<Content>,
    bytes: usize,
    /// it is not done with it
    keeps: bool,
    deaths: Vec<DeadReason>,
}

impl Service for Closes {
    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        calls.accept(connection, 0).unwrap();
    }
    fn recv<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, _: u64, _: &[u8]) {
        let (object, bytes) = (ObjectId(0), self.bytes as u64);
        let range = Range::Object { content: &self.content, object, start: 0, bytes };
        assert_eq!(calls.sendv(connection, &[range]), Ok(bytes));
        if !self.keeps {
            calls.close(connection).unwrap();
        }
    }
    fn timer<C: Streams>(&mut self, _: Instant, _: &mut C, _: Connection, _: u64) {
        panic!("nobody has set one");
    }
    fn dead(&mut self, _: Instant, _: Connection, _: u64, reason: DeadReason) {
        self.deaths.push(reason);
    }
}

impl Closes {
    fn serving(peers: usize) -> Halves<Closes> {
        let mut builder = ContentBuilder::new();
        builder.add(&[7; 4 * ALL]);
        Halves::new(peers, Closes { content: builder.finish(), bytes: 0, keeps: false, deaths: Vec::new() })
    }

    /// One for whose peer, which has asked, so much is sent.
    fn sending(bytes: usize) -> Halves<Closes> {
        let mut halves = Closes::serving(1);
        halves.ask_for(0, bytes, false);
        halves
    }
}

impl Halves<Closes> {
    /// A peer comes, and is sent so much on a connection that is closed behind it, or kept.
    fn ask_for(&mut self, n: usize, bytes: usize, keeps: bool) {
        (self.service.bytes, self.service.keeps) = (bytes, keeps);
        self.ask(n);
        self.pass(Duration::ZERO);
    }

    /// Time in which the others take one octet now and then, and the last peer is offered nothing.
    fn pass_unoffered(&mut self, time: Duration) {
        let last = self.engine.peers.len() - 1;
        for _ in 0..time.as_secs() / 15 {
            self.pass(Duration::from_secs(15));
            self.engine.read(&mut self.pair.remote, 0, 1);
            assert!(self.engine.peers[last].queued_bytes() == 0);
        }
    }
}

const ALMOST: Duration = LINGER.saturating_sub(Duration::from_secs(1));

/// What waits stands in both halves, or in the trusted one alone.
#[test]
fn a_closed_connection_whose_peer_takes_nothing_ends() {
    for bytes in [4 * ALL, ALL] {
        let mut halves = Closes::sending(bytes);
        halves.pass(ALMOST);
        assert!(halves.engine.peers[0].open && !halves.engine.peers[0].closed && halves.service.deaths.is_empty());
        halves.pass(Duration::from_secs(2));
        assert_eq!(halves.service.deaths, [DeadReason::TimedOut], "of {bytes} bytes");
        let stats = &halves.pair.stats;
        assert_eq!((stats.connections(), stats.kept_bytes(), halves.pair.remote.unsent_bytes), (0, 0, 0));
        assert_eq!(Arc::strong_count(&halves.service.content), 1);
        assert_eq!(stats.drops(DropReason::Lingered), u64::from(bytes == ALL));
        assert!(REJECTS.iter().all(|(reason, _)| stats.rejects(*reason) == 0));
    }
}

#[test]
fn a_closed_connection_whose_peer_is_slow_gets_all_of_it() {
    for bytes in [4 * ALL, ALL] {
        let mut halves = Closes::sending(bytes);
        let mut reads = 0;
        while halves.service.deaths.is_empty() {
            halves.pass(ALMOST);
            halves.read(0);
            reads += 1;
            assert!(reads < 20);
        }
        assert_eq!((halves.read(0), &halves.service.deaths[..]), (bytes, &[DeadReason::Closed][..]));
        assert!(REJECTS.iter().all(|(reason, _)| halves.pair.stats.rejects(*reason) == 0));
    }
}

/// The engine knows of no close while what was sent before it waits. A peer that writes before it reads takes all of its answer.
#[test]
fn what_comes_behind_a_close_is_given_back() {
    for bytes in [4 * ALL, ALL] {
        let mut halves = Closes::serving(1);
        halves.service.bytes = bytes;
        halves.ask(0);
        // what was on its way, then what comes later
        for _ in 0..4 {
            halves.engine.recv(&mut halves.pair.remote, 0, &[7; 10_000]);
            halves.pass(Duration::ZERO);
            let peer = &halves.engine.peers[0];
            assert_eq!((peer.delivered, peer.closed, peer.open), (0, false, true), "of {bytes} bytes");
        }
        for _ in 0..20 {
            halves.read(0);
            halves.pass(Duration::ZERO);
        }
        assert_eq!((halves.read(0), &halves.service.deaths[..]), (bytes, &[DeadReason::Closed][..]));
        assert!(REJECTS.iter().all(|(reason, _)| halves.pair.stats.rejects(*reason) == 0));
    }
}

/// What all engines' connections may queue is others' now and then, and theirs again: that is no news of the peer.
#[test]
fn room_alone_does_not_prolong_a_close() {
    for bytes in [4 * ALL, ALL] {
        for more in [0, 1000] {
            let mut halves = Closes::serving(1);
            halves.engine.budget = Some(40_000);
            halves.ask_for(0, bytes, false);
            halves.pass(ALMOST);
            halves.engine.budget = Some(40_000 + more);
            halves.engine.feed(&mut halves.pair.remote, 0);
            assert_eq!(halves.engine.peers[0].queued_bytes(), 40_000 + more);
            halves.pass(Duration::from_secs(2));
            assert_eq!(halves.service.deaths, [DeadReason::TimedOut], "of {bytes} bytes, {more} more");
        }
    }
}

/// The engine's budget is all another's, who takes an octet now and then; what waits stands in both halves, or in the trusted one alone.
#[test]
fn a_closed_connection_waits_for_the_engines_budget() {
    for bytes in [4 * ALL, ALL] {
        let mut halves = Closes::serving(2);
        halves.engine.budget = Some(50_000);
        halves.ask_for(0, 2 * ALL, true);
        halves.ask_for(1, bytes, false);
        halves.pass_unoffered(4 * LINGER);
        assert_eq!(halves.service.deaths, [], "of {bytes} bytes");
        halves.engine.end(0, DeadReason::Reset);
        halves.pass(Duration::ZERO);
        assert_eq!(halves.engine.peers[1].queued_bytes(), 50_000);
        // now it is waited for, all of the time
        halves.pass(ALMOST);
        assert_eq!(halves.service.deaths, [DeadReason::Reset]);
        for _ in 0..20 {
            halves.read(1);
            halves.pass(Duration::from_secs(20));
        }
        assert_eq!((halves.read(1), &halves.service.deaths[1..]), (bytes, &[DeadReason::Closed][..]));
    }
}

#[test]
fn who_is_offered_budget_late_and_takes_nothing_ends() {
    for bytes in [4 * ALL, ALL] {
        let mut halves = Closes::serving(2);
        halves.engine.budget = Some(50_000);
        halves.ask_for(0, 2 * ALL, true);
        halves.ask_for(1, bytes, false);
        halves.pass_unoffered(4 * LINGER);
        halves.engine.end(0, DeadReason::Reset);
        halves.pass(Duration::ZERO);
        halves.pass(ALMOST);
        assert_eq!(halves.service.deaths, [DeadReason::Reset]);
        // the application's half may have set its timer a moment before
        (0..2).for_each(|_| halves.pass(Duration::from_secs(1)));
        assert_eq!(halves.service.deaths, [DeadReason::Reset, DeadReason::TimedOut], "of {bytes} bytes");
    }
}

/// All that a thread's connections may have under way is others', who have nothing to be closed for.
#[test]
fn a_closed_connection_waits_for_the_threads_budget() {
    let large = (layout::BUDGET_BYTES / 8 * 7 / CREDIT_BYTES) as usize;
    let small = (layout::BUDGET_BYTES / 8 / 4096) as usize;
    let last = large + small;
    let mut halves = Closes::serving(last + 1);
    (0..large).for_each(|n| halves.ask_for(n, ALL, true));
    (large..last).for_each(|n| halves.ask_for(n, 4096, true));
    assert_eq!(halves.pair.remote.unsent_bytes, layout::BUDGET_BYTES);
    halves.ask_for(last, 100, false);
    (0..8).for_each(|_| halves.pass(LINGER / 2));
    assert!(halves.service.deaths.is_empty() && halves.engine.peers[last].queued_bytes() == 0);
    halves.engine.end(0, DeadReason::Reset);
    halves.pass(Duration::ZERO);
    assert_eq!((halves.read(last), halves.service.deaths.len()), (100, 1));
    halves.pass(Duration::ZERO);
    assert_eq!(halves.service.deaths, [DeadReason::Reset, DeadReason::Closed]);
}

#[test]
fn nobody_waits_for_a_budget_without_end() {
    let most = LINGER * (u32::from(EXCUSES) + 1);
    for bytes in [4 * ALL, ALL] {
        let mut halves = Closes::serving(2);
        halves.engine.budget = Some(50_000);
        halves.ask_for(0, 2 * ALL, true);
        halves.ask_for(1, bytes, false);
        halves.pass_unoffered(most - LINGER);
        assert_eq!(halves.service.deaths, [], "of {bytes} bytes");
        halves.pass_unoffered(2 * LINGER);
        assert_eq!(halves.service.deaths, [DeadReason::TimedOut], "of {bytes} bytes");
        assert!(REJECTS.iter().all(|(reason, _)| halves.pair.stats.rejects(*reason) == 0));
    }
}
