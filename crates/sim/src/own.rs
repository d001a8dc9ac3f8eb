//! TCP between two stacks of ours over links that lose, double, reorder, corrupt, delay and cut, under a virtual clock. Everything of a
//! run follows from its seed; `SIMOOM_SEED=n cargo test -p stack --test tcp_seeds` runs one again, and `SIMOOM_SEEDS=n` as many.

mod world;

use app::DeadReason;
use base::Instant;
use base::rng::Rng;
use port::fault::Rates;
use stack::TcpConfig;
use stack::tcp::Usage;
use stack::tcp::congestion::Algorithm;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;
use world::*;

/// Seeds that the ordinary test run goes through.
const SEEDS: u64 = 1500;

fn script(rng: &mut Rng) -> Script {
    let size = [0, 1, 100, 3000, 30_000, 300_000][rng.below(6) as usize];
    Script {
        send: if size == 0 { 0 } else { rng.below(size) + 1 },
        piece: rng.below(20_000) + 1,
        owned: rng.chance(0.5),
        slow: rng.chance(0.3).then(|| random_duration(rng, Duration::from_millis(300))),
        close: false,
        ..Script::default()
    }
}

fn tcp_config(rng: &mut Rng, window_bytes: u32) -> TcpConfig {
    let mut config = tcp(window_bytes);
    config.secret = [rng.next_u64(), rng.next_u64()];
    config.ecn = rng.chance(0.5);
    config.congestion = if rng.chance(0.5) { Algorithm::Cubic } else { Algorithm::NewReno };
    config.times.keepalive = (rng.chance(0.5)).then_some(Duration::from_secs(60));
    config.times.keepalive_interval = Duration::from_secs(10);
    // bad luck in a row is no reason to give up here
    config.times.linger = Duration::from_secs(200);
    // what is scarce must be done without
    if rng.chance(0.2) {
        config.limits.records = 16 + rng.below(60) as u32;
    }
    if rng.chance(0.2) {
        config.limits.blocks = rng.below(10) as u32;
    }
    if rng.chance(0.2) {
        config.limits.ranges = 8 + rng.below(10) as u32;
        config.limits.owned_blocks = 2 + rng.below(10) as u32;
    }
    if rng.chance(0.1) {
        // every handshake by cookie
        config.limits.half_open = 0;
    }
    config
}

fn rates(rng: &mut Rng) -> Rates {
    let mut rate = |most: f64| if rng.chance(0.5) { 0.0 } else { rng.below(1000) as f64 / 1000.0 * most };
    Rates {
        drop: rate(0.12),
        corrupt: rate(0.05),
        duplicate: rate(0.1),
        reorder: rate(0.2),
        delay: rate(0.2),
        delay_below: Duration::from_millis(30),
        ..Rates::default()
    }
}

fn window(rng: &mut Rng) -> u32 {
    match rng.below(4) {
        0 => 1 + rng.below(3000) as u32,
        1 => 3000 + rng.below(30_000) as u32,
        _ => 30_000 + rng.below(1 << 20) as u32,
    }
}

/// One world; how many super-segments were sent in it, and how many frames gathered.
fn run(seed: u64) -> [u64; 2] {
    let mut rng = Rng::new(seed);
    let (server, client) =
        (script(&mut rng), Script { close: rng.chance(0.3), after_eof: rng.chance(0.2), ..script(&mut rng) });
    let client = Script { close: client.close && client.after_eof, ..client };
    let server_window = window(&mut rng);
    let client_window = window(&mut rng);
    let mut configs = [tcp_config(&mut rng, server_window), tcp_config(&mut rng, client_window)];
    // a window of a few bytes that a slow reader opens takes its time
    let server = Script { send: server.send.min(u64::from(client_window) * 2000), ..server };
    let client = Script { send: client.send.min(u64::from(server_window) * 2000), ..client };
    let cookies = configs[0].limits.half_open == 0;
    if cookies {
        // a client that says nothing learns from nobody else that its last acknowledgement was lost (RFC 4987 section 3.6)
        configs[1].times.keepalive = Some(Duration::from_secs(60));
    }
    let mtu = |rng: &mut Rng| [1500, 1500, 1280, 576][rng.below(4) as usize];
    let mtus = [mtu(&mut rng), mtu(&mut rng)];
    let v6 = rng.chance(0.3) && mtus[0].min(mtus[1]) >= 1280;
    let mut world = World::new([Peer::new(Some(server)), Peer::with(1, client)], configs, mtus, seed);
    for host in &mut world.hosts {
        // what arrives has passed the link's own checksum
        let received = Rates { corrupt: 0.0, ..rates(&mut rng) };
        host.port.set_rates(received, rates(&mut rng));
        host.out.delay = random_duration(&mut rng, Duration::from_millis(40));
        host.out.byte_ns = rng.below(1000);
        host.out.queue = 5 + rng.below(200) as usize;
    }
    match rng.below(4) {
        0 | 1 => world.segment(),
        2 => world.gather(),
        _ => {}
    }
    if std::env::var("SIMOOM_TRACE").is_ok() {
        world.tap = Some(Box::new(|now, host, frame| eprintln!("{now:?} {host} {}", describe(frame))));
    }
    let mut budget = 40;
    world.connect(v6, 1, client_window);
    let mut checked = Instant::ZERO;
    let over = world.run(Instant::ZERO + Duration::from_secs(4000), |world| {
        if world.now - checked > Duration::from_millis(50) {
            checked = world.now;
            for host in &world.hosts {
                host.stack.tcp_usage();
            }
        }
        // a path may be bad for a while only: then everything must come to its end
        if budget > 0 && world.now > Instant::ZERO + Duration::from_secs(60) {
            budget = 0;
            for host in &mut world.hosts {
                host.port.set_rates(Rates::default(), Rates::default());
            }
        }
        world.is_over()
    });
    let ends: Vec<Script> = world.ends().map(|(_, _, end)| end.clone()).collect();
    if std::env::var("SIMOOM_SEED").is_ok() {
        for host in &world.hosts {
            base::counter::Report::report(&*host.stack.tcp_counters().unwrap(), &mut |figure| {
                if figure.value > 0 {
                    eprintln!("{} {:?} {}", figure.name, figure.labels, figure.value);
                }
            });
            base::counter::Report::report(&*host.stack.counters(), &mut |figure| {
                if figure.value > 0 {
                    eprintln!("{} {:?} {}", figure.name, figure.labels, figure.value);
                }
            });
            eprintln!("{:?} {:?}", host.stack.tcp_usage(), host.port.stats());
        }
    }
    assert!(over, "not over at {:?}: {ends:#?}", world.now);
    let (mut served, asked) = (world.hosts[0].service.ends.values(), &world.hosts[1].service.ends[&1]);
    let Some(server) = served.next() else {
        // a handshake by cookie whose last acknowledgement was lost is reset later
        assert!(asked.dead == Some(DeadReason::TimedOut) || cookies, "nobody served: {:?}", asked.dead);
        return [0; 2];
    };
    // a handshake by cookie may be forgotten on one side only, and a second one tried
    assert!(served.next().is_none() || cookies, "one connection");
    if server.dead == Some(DeadReason::Closed) && asked.dead == Some(DeadReason::Closed) {
        assert_eq!((server.send, asked.send), (asked.received, server.received));
    } else {
        // only a path that is bad for long ends connections otherwise
        assert!(budget == 0 || cookies, "{server:?} {asked:?}");
    }
    for host in &world.hosts {
        let usage = host.stack.tcp_usage();
        assert_eq!(
            usage,
            Usage {
                time_wait: usage.time_wait,
                half_open: usage.half_open,
                timers: usage.half_open,
                ..Usage::default()
            }
        );
        assert!(host.service.chunks.iter().all(|chunk| chunk.strong_count() == 0), "chunks that nobody needs are held");
    }
    [world.large().iter().sum(), world.gathered().iter().sum()]
}

#[test]
fn every_byte_arrives_and_every_connection_ends() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("SIMOOM_SEED") {
        run(seed);
        return;
    }
    let (mut large, mut gathered) = (0, 0);
    for seed in 0..number("SIMOOM_SEEDS").unwrap_or(SEEDS) {
        match catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(sent) => {
                large += sent[0];
                gathered += sent[1];
            }
            Err(panic) => {
                eprintln!("to replay: SIMOOM_SEED={seed} cargo test -p stack --test tcp_seeds");
                resume_unwind(panic);
            }
        }
    }
    assert!(large > 0, "no super-segment in any run");
    assert!(gathered > 0, "no gathered frame in any run");
}
