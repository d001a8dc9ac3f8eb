//! The generator against the key-value store, each on our own stack, at the two ends of a pipe.

use super::*;
use app::Listener;
use kv::{Limits, Options, Server, Shared};
use port::Mac;
use port::pipe::{self, Pipe};
use stack::{Claim, ClaimMode, OwnAddress, TcpConfig, TcpListener};
use std::net::SocketAddr;
use std::sync::Arc;

const MACS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const SERVER: &str = "198.18.0.1:11211";
/// How much time passes from one cycle to the next. Nothing here reads a clock.
const TICK: Duration = Duration::from_micros(20);

struct Bed {
    load: Load<Pipe>,
    server: Loop<Pipe, Server>,
    now: Instant,
}

fn bed(mix: Mix, manner: Manner, memory_bytes: u64) -> Bed {
    let config = pipe::Config { ring_frames: 4096, frames: 16_384, macs: MACS, ..pipe::Config::default() };
    let (mut clients, mut servers) = pipe::pair(&config).unwrap();
    let (client, server) = (clients.remove(0), servers.remove(0));
    let at: SocketAddr = SERVER.parse().unwrap();
    let listener = TcpListener { listener: Listener(0), local: at, window_bytes: kv::WINDOW_BYTES as u32 };
    let stack_config = stack::Config {
        own: vec![OwnAddress { addr: at.ip(), prefix_len: 24 }],
        tcp: Some(TcpConfig { listeners: vec![listener], secret: [3, 4], ..TcpConfig::default() }),
        claim: Claim { mode: ClaimMode::Silent, ..Claim::default() },
        ..stack::Config::default()
    };
    let facts = port::Facts { virtual_link: false, ..server.facts().clone() };
    let limits = Limits { memory_bytes, item_bytes: 1 << 20, threads: 1, secret: [1, 2], shared_nothing: false };
    let shared = Arc::new(Shared::new(limits));
    let stats = shared.stats();
    let [connections, buffers] = [100, 100].map(app::Bound::new);
    let service = Server::new(shared, Options { connections, buffers, ..Options::default() }, stats);
    let server = Loop::new(server, Stack::new(stack_config, &facts), service, BURST_FRAMES);
    let peer = Peer { server: at, hop: MACS[1], window_bytes: 65_536 };
    let records = Records::new(mix, 2000, None).unwrap();
    let sources = "198.18.0.3-198.18.0.4".parse().unwrap();
    Bed { load: Load::new(client, records, manner, peer, sources, [1, 2]), server, now: Instant::ZERO }
}

impl Bed {
    /// Works with the load; the server has a cycle each time the clock is read.
    fn with<T>(&mut self, work: impl FnOnce(&mut Load<Pipe>, &mut dyn FnMut() -> Instant) -> T) -> T {
        let Bed { load, server, now } = self;
        work(load, &mut || {
            *now += TICK;
            server.cycle(*now);
            *now
        })
    }

    fn start(&mut self) -> Outcome {
        self.with(|load, mut tick| {
            load.connect(Wait::Spin, &mut tick).unwrap();
            load.store(Wait::Spin, &mut tick).unwrap()
        })
    }

    fn run(&mut self, plan: &Plan) -> Outcome {
        self.with(|load, mut tick| load.run(plan, &AtomicBool::new(false), &mut tick))
    }
}

const MANNER: Manner = Manner { connections: 5, depth: 3, probes: 2 };

fn plan(rate: Option<f64>, ms: u64) -> Plan {
    let span = Duration::from_millis(ms);
    Plan { rate, probe_rate: 500.0, span, warm_up: Duration::ZERO, misses_most: 0.001, wait: Wait::Spin }
}

fn within(p99_us: f64) -> Bound {
    Bound { p99_us, windows: WINDOWS_HELD }
}

#[test]
fn every_answer_is_compared_and_counted() {
    for mix in [Mix::Usr, Mix::Etc] {
        let mut bed = bed(mix, MANNER, 64 << 20);
        let stored = bed.start();
        assert_eq!((stored.stored, stored.failed(), stored.sent), (2000, 0, 2000), "{stored}");
        let outcome = bed.run(&plan(Some(20_000.0), 500));
        assert_eq!((outcome.failed(), outcome.misses, outcome.missed), (0, 0, 0), "{outcome}");
        assert_eq!(outcome.hits + outcome.stored, outcome.answered, "{outcome}");
        // 10,000 of the load and 250 of those that ask seldom
        assert!((9_500..11_000).contains(&outcome.answered) && (200..300).contains(&outcome.probes), "{outcome}");
        let share = outcome.hits as f64 / outcome.answered as f64;
        assert!((share - mix.gets()).abs() < 0.02, "{share}");
        assert!(outcome.unloaded.p50_us > 0.0 && outcome.latency.p99_us >= outcome.latency.p50_us, "{outcome}");
        assert!(outcome.holds(within(10_000.0)) && !outcome.holds(within(1.0)), "{outcome}");
        // a closed loop has more under way
        let closed = bed.run(&plan(None, 200));
        assert!(closed.failed() == 0 && closed.answered_rate() > 2.0 * outcome.answered_rate(), "{closed}");
    }
}

#[test]
fn a_search_ends_at_a_rate_that_is_held() {
    let mut bed = bed(Mix::Usr, MANNER, 64 << 20);
    bed.start();
    let stop = AtomicBool::new(false);
    let runs = bed.with(|load, mut tick| load.search(&plan(None, 50), (20_000.0, within(150.0)), &stop, &mut tick));
    let best = &runs[0];
    assert!(best.holds(within(150.0)) && best.answered_rate() > 25_000.0, "{best}");
    assert!(runs.iter().any(|run| !run.holds(within(150.0))), "it stopped before the end");
    assert!(runs.iter().all(|run| !run.holds(within(150.0)) || run.answered_rate() <= best.answered_rate()));
}

#[test]
fn values_that_are_gone_are_misses_and_other_values_are_wrong() {
    let mut bed = bed(Mix::Etc, MANNER, 64 << 20);
    let mut outcome = bed.with(|load, mut tick| {
        load.connect(Wait::Spin, &mut tick).unwrap();
        load.run(&plan(Some(5_000.0), 100), &AtomicBool::new(false), &mut tick)
    });
    assert!(outcome.misses > 100 && outcome.failed() == 0, "{outcome}");
    // a server that lost all is fast, and holds nothing
    assert!(!outcome.holds(within(1e9)) && outcome.answered_in_span > 0, "{outcome}");
    outcome.misses_most = 1.0;
    assert!(outcome.holds(within(1e9)));
    // the same keys with other values
    let records = bed.load.work.service().records.clone();
    bed.load.work.service().records = records.other();
    let stored = bed.with(|load, mut tick| load.store(Wait::Spin, &mut tick).unwrap());
    assert_eq!(stored.stored, 2000, "{stored}");
    bed.load.work.service().records = records;
    let outcome = bed.run(&plan(Some(5_000.0), 100));
    // whoever is told something wrong is not asked again
    assert!((1..=7).contains(&outcome.wrong) && outcome.failed() > outcome.wrong, "{outcome}");
}

#[test]
fn what_is_wrong_in_the_warm_up_is_told() {
    let mut bed = bed(Mix::Etc, MANNER, 64 << 20);
    bed.start();
    let records = bed.load.work.service().records.other();
    bed.load.work.service().records = records;
    let warm_up = Duration::from_millis(100);
    let outcome = bed.run(&Plan { warm_up, ..plan(Some(5_000.0), 100) });
    // no connection is left for the load itself
    assert_eq!((outcome.sent, outcome.answered), (0, 0), "{outcome}");
    assert!((1..=7).contains(&outcome.wrong) && !outcome.holds(within(1e9)), "{outcome}");
    assert_eq!(outcome.failures.values().sum::<u64>(), 7, "{outcome}");
    assert!(outcome.to_string().contains(&format!("{} wrong", outcome.wrong)), "{outcome}");
}

#[test]
fn a_rate_is_held_by_all_connections_or_by_none() {
    let mut bed = bed(Mix::Usr, MANNER, 64 << 20);
    bed.start();
    // whoever is told something wrong is gone
    let records = bed.load.work.service().records.clone();
    bed.load.work.service().records = records.other();
    let outcome = bed.run(&plan(Some(2_000.0), 1));
    assert!((1..7).contains(&outcome.wrong), "{outcome}");
    bed.load.work.service().records = records;
    let lost = outcome.wrong;
    for _ in 0..2 {
        let outcome = bed.run(&plan(Some(5_000.0), 100));
        assert_eq!((outcome.lacking, outcome.failures.len(), outcome.wrong), (lost, 0, 0), "{outcome}");
        assert!(outcome.answered > 0 && !outcome.holds(within(1e9)), "{outcome}");
    }
    // a search has them made again
    let stop = AtomicBool::new(false);
    let runs = bed.with(|load, mut tick| load.search(&plan(None, 50), (20_000.0, within(150.0)), &stop, &mut tick));
    assert!(runs[0].holds(within(150.0)) && runs.iter().all(|run| run.lacking == 0), "{}", runs[0]);
}
