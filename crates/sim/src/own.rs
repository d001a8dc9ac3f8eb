//! TCP between two stacks of ours over links that lose, double, reorder, corrupt, delay and cut, and whose MTU changes, under a
//! virtual clock.

use crate::world::random_duration;
use crate::{Abort, Peer, Script, Show, World, show};
use app::DeadReason;
use base::Instant;
use base::rng::Rng;
use port::fault::Rates;
use stack::TcpConfig;
use stack::tcp::Usage;
use stack::tcp::congestion::Algorithm;
use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;
use std::time::Duration;

/// A path is bad for so long; after it everything must come to its end.
const BAD: Duration = Duration::from_secs(60);
/// A run that takes longer never ends.
const END: Duration = Duration::from_secs(4000);
/// Flow groups of a server with two stacks: few, so that its connection's is often the one that moves.
const GROUPS: usize = 2;
/// The MTU changes within so much of the beginning.
const CHANGES: Duration = Duration::from_secs(2);

/// What was met in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// super-segments sent
    pub large: u64,
    /// frames gathered
    pub gathered: u64,
    /// frames larger than the path's MTU
    pub oversized: u64,
    /// times that a stack lowered its path's MTU
    pub lowered: u64,
    /// times that the server's connection, its handshake or its TIME-WAIT moved
    pub moved: u64,
    /// connections that a service aborted in an event
    pub aborted: u64,
    /// segments as large as the path's first MTU allows that carried a FIN
    pub full_last: u64,
}

impl Met {
    /// Both.
    pub fn and(self, other: Met) -> Met {
        Met {
            large: self.large + other.large,
            gathered: self.gathered + other.gathered,
            oversized: self.oversized + other.oversized,
            lowered: self.lowered + other.lowered,
            moved: self.moved + other.moved,
            aborted: self.aborted + other.aborted,
            full_last: self.full_last + other.full_last,
        }
    }
}

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
    let mut config = crate::world::tcp(window_bytes);
    config.secret = [rng.next_u64(), rng.next_u64()];
    config.ecn = rng.chance(0.5);
    config.congestion = if rng.chance(0.5) { Algorithm::Cubic } else { Algorithm::NewReno };
    config.times.keepalive = (rng.chance(0.5)).then_some(Duration::from_secs(60));
    config.times.keepalive_interval = Duration::from_secs(10);
    // bad luck in a row is no reason to give up here
    config.times.linger = Duration::from_secs(200);
    // what is scarce must be done without
    if rng.chance(0.2) {
        config.limits.records = 2 + rng.below(60) as u32;
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

/// A time at which a host's link, or both, get another MTU.
#[derive(Clone, Copy, Debug)]
struct Change {
    at: Instant,
    host: usize,
    mtu: usize,
    /// a router says so
    tells: bool,
}

/// Paths that become narrower and perhaps wide again; drawn from a generator of their own.
fn changes(seed: u64, v6: bool) -> Vec<Change> {
    let mut rng = Rng::new(seed ^ 0x4D54_5500);
    if rng.chance(0.5) {
        return Vec::new();
    }
    let mtus: &[usize] = if v6 { &[1500, 1400, 1280] } else { &[1500, 1400, 1280, 1006, 576] };
    let mut changes: Vec<Change> = (0..=rng.below(3))
        .map(|_| Change {
            at: Instant::ZERO + random_duration(&mut rng, CHANGES),
            host: rng.below(2) as usize,
            mtu: mtus[rng.below(mtus.len() as u64) as usize],
            tells: rng.chance(0.5),
        })
        .collect();
    changes.sort_unstable_by_key(|change| std::cmp::Reverse(change.at));
    changes
}

/// Has one of two ends abort, and makes what an end sends so many full segments that the last one is full, too, in the world of
/// some seeds; drawn from a generator of its own.
fn vary(seed: u64, ends: [&mut Script; 2], segment_bytes: u64) {
    let mut rng = Rng::new(seed ^ 0x454E_4453);
    let [one, other] = ends;
    for end in [&mut *one, &mut *other] {
        if rng.chance(0.3) {
            // with timestamps or without
            let bytes = segment_bytes - 12 * rng.below(2);
            end.send = end.send.div_ceil(bytes).min(200) * bytes;
        }
    }
    let (end, peer) = if rng.chance(0.5) { (one, other) } else { (other, one) };
    if rng.chance(0.2) {
        end.aborts = match rng.chance(0.5) {
            true if end.send > 0 => Some(Abort::Sent(rng.below(end.send) + 1)),
            _ if peer.send > 0 => Some(Abort::Received(rng.below(peer.send) + 1)),
            _ => None,
        };
    }
}

/// Whether a frame carries a FIN and an IP packet of so many bytes.
fn is_full_last(frame: &[u8], packet_bytes: usize) -> bool {
    use wire::ethernet::{HEADER_BYTES, Link};
    let is_ipv4 = Link::parse(frame).is_some_and(|link| link.ether_type == wire::ethernet::EtherType::IPV4);
    let at = HEADER_BYTES + if is_ipv4 { wire::ipv4::HEADER_BYTES } else { wire::ipv6::HEADER_BYTES };
    frame.len() == HEADER_BYTES + packet_bytes
        && wire::tcp::Tcp::parse(&frame[at..]).is_ok_and(|tcp| tcp.flags().contains(wire::tcp::Flags::FIN))
}

/// A frame that was sent: when, by which host, and its bytes hashed.
type Sent = (Instant, usize, u64);

/// One world.
///
/// # Panics
/// When a byte does not arrive or arrives wrong, a connection does not end, an invariant breaks, or something is left behind.
pub fn run(seed: u64, what: Show) -> Met {
    through(seed, what, None).0
}

/// The same world, with a server of two stacks between which its connections move, up to so long after the move before: each
/// frame is the same, and comes at the same time, as where they do not move.
///
/// # Panics
/// As [`run`] does, and when a frame is another.
pub fn run_moving(seed: u64, what: Show, below: Duration) -> Met {
    let (_, still) = through(seed, Show::default(), None);
    let (met, moving) = through(seed, what, Some(below));
    let differs = still.iter().zip(&moving).position(|(one, other)| one != other);
    if let Some(n) = differs {
        panic!("frame {n} is another: {:?} of {}, {:?} of {}", still[n], still.len(), moving[n], moving.len());
    }
    assert_eq!(still.len(), moving.len(), "frames");
    met
}

/// How long after another a move comes at most, in the world of this seed: from one every other packet to a few in all.
pub fn moves_below(seed: u64) -> Duration {
    [Duration::from_micros(100), Duration::from_millis(5), Duration::from_millis(100), Duration::from_secs(1)]
        [(seed % 4) as usize]
}

fn through(seed: u64, what: Show, moves: Option<Duration>) -> (Met, Vec<Sent>) {
    let mut rng = Rng::new(seed);
    let (server, client) =
        (script(&mut rng), Script { close: rng.chance(0.3), after_eof: rng.chance(0.2), ..script(&mut rng) });
    let client = Script { close: client.close && client.after_eof, ..client };
    let server_window = window(&mut rng);
    let client_window = window(&mut rng);
    let mut configs = [tcp_config(&mut rng, server_window), tcp_config(&mut rng, client_window)];
    // a window of a few bytes that a slow reader opens takes its time
    let mut server = Script { send: server.send.min(u64::from(client_window) * 2000), ..server };
    let mut client = Script { send: client.send.min(u64::from(server_window) * 2000), ..client };
    let cookies = configs[0].limits.half_open == 0;
    if cookies {
        // a client that says nothing learns from nobody else that its last acknowledgement was lost (RFC 4987 section 3.6)
        configs[1].times.keepalive = Some(Duration::from_secs(60));
    }
    let mtu = |rng: &mut Rng| [1500, 1500, 1280, 576][rng.below(4) as usize];
    let mtus = [mtu(&mut rng), mtu(&mut rng)];
    let v6 = rng.chance(0.3) && mtus[0].min(mtus[1]) >= 1280;
    let mut changes = changes(seed, v6);
    let (packet_bytes, heads) = (mtus[0].min(mtus[1]), if v6 { 60 } else { 40 });
    if client_window.min(server_window) > 3000 {
        vary(seed, [&mut server, &mut client], (packet_bytes - heads) as u64);
    }
    if server.aborts.or(client.aborts).is_some() {
        // whom the reset does not reach has to ask
        configs.iter_mut().for_each(|config| config.times.keepalive = Some(Duration::from_secs(60)));
    }
    let (template, server_tcp) = (server.clone(), configs[0].clone());
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
    let sent: Rc<RefCell<Vec<Sent>>> = Rc::default();
    let full_last: Rc<Cell<u64>> = Rc::default();
    let (noted, full) = (sent.clone(), full_last.clone());
    world.tap = Some(Box::new(move |now, host, frame| {
        if what.frames {
            eprintln!("{now:?} {host} {}", crate::world::describe(frame));
        }
        full.set(full.get() + u64::from(is_full_last(frame, packet_bytes)));
        let mut hasher = DefaultHasher::new();
        hasher.write(frame);
        noted.borrow_mut().push((now, host, hasher.finish()));
    }));
    if let Some(below) = moves {
        world.split(Peer::new(Some(template)), server_tcp, GROUPS);
        world.shuffle_groups(seed ^ 0x4752_4F55, below);
    }
    let mut is_bad = true;
    world.connect(v6, 1, client_window);
    let mut checked = Instant::ZERO;
    let over = world.run(Instant::ZERO + END, |world| {
        if world.now - checked > Duration::from_millis(50) {
            checked = world.now;
            for stack in world.stacks() {
                stack.tcp_usage();
            }
        }
        while let Some(change) = changes.pop_if(|change| change.at <= world.now) {
            let link = &mut world.hosts[change.host].out;
            (link.mtu, link.tells) = (change.mtu, change.tells);
        }
        if is_bad && world.now > Instant::ZERO + BAD {
            is_bad = false;
            for host in &mut world.hosts {
                host.port.set_rates(Rates::default(), Rates::default());
            }
        }
        world.is_over()
    });
    let ends: Vec<Script> = world.ends().map(|(_, _, end)| end.clone()).collect();
    if what.counters {
        for stack in world.stacks() {
            show(&*stack.tcp_counters().expect("a stack with TCP"));
        }
        for host in &world.hosts {
            show(&*host.stack.counters());
            eprintln!("{:?} {:?} {:?}", host.stack.tcp_usage(), host.port.stats(), host.out);
        }
    }
    assert!(over, "not over at {:?}: {ends:#?}", world.now);
    let aborted = ends.iter().filter(|end| end.aborts.is_some() && end.dead == Some(DeadReason::Aborted)).count();
    let asked = &world.hosts[1].service.ends[&1];
    let mut served = world.ends().filter(|(host, ..)| *host == 0).map(|(_, _, end)| end);
    let Some(server) = served.next() else {
        // a handshake by cookie whose last acknowledgement was lost is reset later
        assert!(asked.dead == Some(DeadReason::TimedOut) || cookies || aborted > 0, "nobody served: {:?}", asked.dead);
        return (Met::default(), sent.take());
    };
    // a handshake by cookie may be forgotten on one side only, and a second one tried
    assert!(served.next().is_none() || cookies, "one connection");
    if server.dead == Some(DeadReason::Closed) && asked.dead == Some(DeadReason::Closed) {
        assert_eq!((server.send, asked.send), (asked.received, server.received));
    } else {
        // only a path that is bad for long, and who does not wait, ends connections otherwise
        assert!(!is_bad || cookies || aborted > 0, "{server:?} {asked:?}");
    }
    drop(served);
    for stack in world.stacks() {
        let usage = stack.tcp_usage();
        assert_eq!(
            usage,
            Usage {
                time_wait: usage.time_wait,
                half_open: usage.half_open,
                timers: usage.half_open,
                ..Usage::default()
            }
        );
    }
    for (_, service) in world.services() {
        assert!(service.chunks.iter().all(|chunk| chunk.strong_count() == 0), "chunks that nobody needs are held");
    }
    let lowered =
        |stack: &stack::Stack| stack.tcp_counters().map_or(0, |counters| counters.event(stack::tcp::Event::PathMtu));
    let met = Met {
        large: world.large().iter().sum(),
        gathered: world.gathered().iter().sum(),
        oversized: world.hosts.iter().map(|host| host.out.oversized).sum(),
        lowered: world.stacks().map(lowered).sum(),
        moved: world.twin.as_ref().map_or(0, |twin| twin.moved),
        aborted: aborted as u64,
        full_last: full_last.get(),
    };
    (met, sent.take())
}
