//! Peers that take nothing of what they are sent.

use super::*;
use crate::LINGER;
use crate::layout::CREDIT_BYTES;
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
        calls.close(connection).unwrap();
    }
    fn timer<C: Streams>(&mut self, _: Instant, _: &mut C, _: Connection, _: u64) {
        panic!("nobody has set one");
    }
    fn dead(&mut self, _: Instant, _: Connection, _: u64, reason: DeadReason) {
        self.deaths.push(reason);
    }
}

impl Closes {
    /// One for whose peer, which has asked, so much is sent.
    fn sending(bytes: usize) -> Halves<Closes> {
        let mut builder = ContentBuilder::new();
        builder.add(&[7; 4 * ALL]);
        let mut halves = Halves::new(1, Closes { content: builder.finish(), bytes, deaths: Vec::new() });
        halves.ask(0);
        halves.pass(Duration::ZERO);
        halves
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
