//! How much one connection gets through paths that lose frames and are long, under a virtual clock: seeds decide what is lost, so every
//! figure is always the same. `SIMOOM_TRACE=1` prints the sender's state every 10 ms.

use base::Instant;
use port::fault::{BurstLoss, Rates};
use sim::world::*;
use sim::{Peer, Script, World};
use stack::tcp::Event;
use std::time::Duration;

/// The payload of a full segment with timestamps.
const SEGMENT_BYTES: f64 = 1448.0;

#[derive(Clone, Copy, Debug)]
struct Path {
    /// frames lost in each direction, one by one
    loss: f64,
    /// of all frames, in bursts of so many
    burst: Option<(f64, f64)>,
    /// each way
    delay: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    /// what the peer received, by all connections
    segments: f64,
    sent_again: u64,
    timeouts: u64,
    recoveries: u64,
    undone: u64,
    probes: u64,
    duplicates: u64,
}

fn single(loss: f64, delay_ms: u64) -> Path {
    Path { loss, burst: None, delay: Duration::from_millis(delay_ms) }
}

fn world_of(path: Path, send: u64, seed: u64) -> World<Peer> {
    let tcp = || {
        let mut config = tcp(256 << 10);
        config.limits.ranges_per_connection = 256;
        // room for every connection's window, so that the path alone is what holds it back
        (config.limits.ranges, config.limits.records) = (16 << 10, 32 << 10);
        (config.limits.blocks, config.limits.blocks_per_connection) = (64 << 10, 8 << 10);
        config
    };
    let server = Script { send, piece: 60_000, ..Script::default() };
    let mut world =
        World::new([Peer::new(Some(server)), Peer::with(1, Script::default())], [tcp(), tcp()], [1500, 1500], seed);
    for host in &mut world.hosts {
        let burst = path.burst.map(|(rate, frames)| BurstLoss::new(rate, frames).unwrap());
        host.port.set_rates(Rates::default(), Rates { drop: path.loss, burst, ..Rates::default() });
        host.out.delay = path.delay;
    }
    world.segment();
    world
}

fn outcome(world: &World<Peer>) -> Outcome {
    let counters = world.hosts[0].stack.tcp_counters().unwrap();
    Outcome {
        segments: world.hosts[1].service.ends.values().map(|end| end.received as f64 / SEGMENT_BYTES).sum(),
        sent_again: counters.event(Event::Retransmitted),
        timeouts: counters.event(Event::RetransmissionTimeout),
        recoveries: counters.event(Event::Recovery),
        undone: counters.event(Event::Undone),
        probes: counters.event(Event::TailLossProbe),
        duplicates: counters.event(Event::DuplicateTold),
    }
}

fn trace(world: &World<Peer>) {
    world.hosts[0].stack.tcp_view(world.now, 0, u32::MAX, &mut |view| {
        let Some(sender) = view.sender else { return };
        let mss = u32::from(view.segment_bytes);
        eprintln!(
            "{:?} cwnd {} ssthresh {} flight {} sacked {} lost {} acked {} rtt {:?} rto {:?} {:?}",
            world.now,
            sender.window_bytes / mss,
            sender.threshold_bytes / mss,
            view.unacknowledged_bytes / u64::from(mss),
            sender.sacked_bytes / mss,
            sender.lost_bytes / mss,
            view.acknowledged_bytes / u64::from(mss),
            view.round_trip.map(|(smoothed, _)| smoothed),
            view.timeout,
            outcome(world),
        );
    });
}

/// What each of some connections that share the path gets through in `seconds`, on average over `seeds`; the counts are of all.
fn average(path: Path, connections: u64, seconds: u64, seeds: u64) -> Outcome {
    let traced = std::env::var("SIMOOM_TRACE").is_ok();
    let mut sum = Outcome::default();
    for seed in 0..seeds {
        let mut world = world_of(path, u64::MAX >> 1, seed);
        for cookie in 1..=connections {
            world.hosts[1].service.ends.insert(cookie, Script::default());
            world.connect(false, cookie, 8 << 20);
        }
        let end = Instant::ZERO + Duration::from_secs(seconds);
        let mut shown = Instant::ZERO;
        world.run(end, |world| {
            if traced && world.now - shown > Duration::from_millis(10) {
                shown = world.now;
                trace(world);
            }
            world.now >= end
        });
        let one = outcome(&world);
        sum.segments += one.segments / (seeds * connections) as f64;
        sum.sent_again += one.sent_again;
        sum.timeouts += one.timeouts;
        sum.recoveries += one.recoveries;
        sum.undone += one.undone;
        sum.probes += one.probes;
        sum.duplicates += one.duplicates;
    }
    sum
}

/// Brings a connection to where the server has sent everything and hears nothing more.
fn run_for(world: &mut World<Peer>, span: Duration) {
    let end = world.now + span;
    world.run(end, |world| world.now >= end);
}

/// The server's end as it stands: threshold and smoothed round trip.
fn server_view(world: &World<Peer>) -> (u32, Option<Duration>) {
    let mut seen = None;
    world.hosts[0].stack.tcp_view(world.now, 0, u32::MAX, &mut |view| {
        seen = Some((
            view.sender.map_or(u32::MAX, |sender| sender.threshold_bytes),
            view.round_trip.map(|(smoothed, _)| smoothed),
        ));
    });
    seen.expect("a connection at the server")
}

/// What gets through is what these seeds make of the stack as it is, less a tenth or more: a change that costs shows.
#[test]
fn lossy_paths_carry_what_they_did() {
    let bursts = |delay_ms| Path { loss: 0.0, burst: Some((0.01, 8.0)), delay: Duration::from_millis(delay_ms) };
    for (path, connections, seconds, seeds, least) in [
        (single(0.05, 1), 1, 10, 32, 1500.0),
        (bursts(1), 1, 10, 32, 2060.0),
        (single(0.01, 20), 1, 40, 32, 304.0),
        (single(0.05, 20), 1, 100, 32, 106.0),
        // side by side their segments mix on the way, and a burst of losses hits as many connections as it meets there
        (single(0.05, 1), 16, 2, 4, 1500.0),
        (bursts(20), 16, 10, 4, 820.0),
        (bursts(100), 16, 10, 4, 400.0),
    ] {
        let outcome = average(path, connections, seconds, seeds);
        let per_s = outcome.segments / seconds as f64;
        println!("{connections} x {path:?}: {per_s:.1} segments/s, {outcome:?}");
        assert!(per_s > least, "{connections} x {path:?}: {per_s:.1} segments/s of {least}, {outcome:?}");
    }
}

#[test]
fn acknowledgements_that_come_together_all_count() {
    // Too short a path to be paced, on a link without a rate: what was sent at once is acknowledged at once, and slow start doubles
    // the window all the same.
    let mut world = world_of(Path { delay: Duration::from_micros(400), ..single(0.0, 0) }, u64::MAX >> 1, 1);
    world.connect(false, 1, 8 << 20);
    run_for(&mut world, Duration::from_micros(800 * 7 + 700));
    let outcome = outcome(&world);
    // a round trip for the handshake, then ten segments, twenty and so on
    let doubled: f64 = (0..6).map(|n| 10.0 * f64::from(1 << n)).sum();
    assert!(outcome.segments > 0.8 * doubled, "{outcome:?}, {doubled} expected");
    assert_eq!((outcome.sent_again, outcome.timeouts, outcome.probes), (0, 0, 0), "{outcome:?}");
}

#[test]
fn a_probe_whose_original_was_only_late_reduces_nothing() {
    let mut world = world_of(single(0.0, 1), 200_000, 1);
    world.hosts[0].service.template.as_mut().unwrap().stays = true;
    world.hosts[1].service.ends.get_mut(&1).unwrap().stays = true;
    world.connect(false, 1, 1 << 20);
    // acknowledgements of the last segments take longer than twice the round trip from now on
    let end = world.now + Duration::from_millis(9);
    world.run(end, |world| world.hosts[1].service.ends[&1].received > 100_000);
    world.hosts[1].out.delay = Duration::from_millis(60);
    run_for(&mut world, Duration::from_millis(300));
    let outcome = outcome(&world);
    assert!(outcome.probes >= 1 && outcome.duplicates >= 1, "{outcome:?}");
    // more data, so that what the probe told is judged
    let end = world.hosts[0].service.ends.values().next().unwrap().clone();
    assert_eq!(end.acknowledged, 200_000);
    assert_eq!((outcome.timeouts, outcome.recoveries), (0, 0), "{outcome:?}");
    assert_eq!(server_view(&world).0, u32::MAX, "no threshold, since nothing was lost");
}

#[test]
fn a_handshake_that_took_two_tries_does_not_pass_for_a_long_path() {
    let mut world = world_of(single(0.0, 20), 100_000, 1);
    // no answer to the first SYN gets through
    world.hosts[0].port.set_rates(Rates::default(), Rates { drop: 1.0, ..Rates::default() });
    world.hosts[0].service.template.as_mut().unwrap().stays = true;
    world.connect(false, 1, 1 << 20);
    run_for(&mut world, Duration::from_millis(500));
    world.hosts[0].port.set_rates(Rates::default(), Rates::default());
    // the connection stands at 1060 ms; then data, of which nothing gets through, are to be sent again soon
    let end = world.now + Duration::from_secs(1);
    world.run(end, |world| world.hosts[0].service.ends.len() == 1);
    let (_, smoothed) = server_view(&world);
    let smoothed = smoothed.expect("a sample, which the timestamp makes possible");
    assert!(smoothed < Duration::from_millis(60), "{smoothed:?}");
}

#[test]
fn a_timeout_behind_a_closed_window_is_repaired_at_once() {
    // the peer's window has room for ten segments and does not move: nothing new may be sent to test whether the timeout was spurious
    let mut world = world_of(single(0.0, 20), 100_000, 1);
    world.hosts[1].service.ends.get_mut(&1).unwrap().slow = Some(Duration::from_secs(5));
    world.connect(false, 1, 14_480);
    // the handshake is through, and from then on nothing the server sends
    run_for(&mut world, Duration::from_millis(30));
    world.hosts[0].port.set_rates(Rates::default(), Rates { drop: 1.0, ..Rates::default() });
    run_for(&mut world, Duration::from_millis(270));
    let before = outcome(&world);
    assert_eq!((before.segments, before.timeouts), (0.0, 0), "{before:?}");
    world.hosts[0].port.set_rates(Rates::default(), Rates::default());
    // the timeout comes 240 ms behind a probe at 150 ms; then a round trip a doubling
    run_for(&mut world, Duration::from_millis(330));
    let after = outcome(&world);
    assert_eq!(after.timeouts, 1, "{after:?}");
    assert!(after.segments > 9.9, "{after:?}");
}

/// A server that sends for as long as it is let, through a path of 20 KB/s of which the peer's window is all that it holds: nothing is lost but
/// what is too large.
fn narrow(tells: bool) -> World<Peer> {
    let mut world = narrow_link(tells);
    world.connect(false, 1, 40_000);
    world
}

/// The same before anybody has connected.
fn narrow_link(tells: bool) -> World<Peer> {
    let server = Script { send: 1 << 30, piece: 60_000, ..Script::default() };
    let tcp = || tcp(256 << 10);
    let mut world =
        World::new([Peer::new(Some(server)), Peer::with(1, Script::default())], [tcp(), tcp()], [1500, 1500], 1);
    for host in &mut world.hosts {
        (host.out.delay, host.out.byte_ns, host.out.queue) = (Duration::from_millis(5), 50_000, 1000);
    }
    (world.hosts[0].out.mtu, world.hosts[0].out.tells) = (1300, tells);
    world
}

fn segment_bytes(world: &World<Peer>) -> u16 {
    let mut bytes = 0;
    world.hosts[0].stack.tcp_view(world.now, 0, u32::MAX, &mut |view| bytes = view.segment_bytes);
    bytes
}

fn congestion_window(world: &World<Peer>) -> u32 {
    let mut bytes = 0;
    let sender = |view: stack::tcp::View| bytes = view.sender.map_or(0, |sender| sender.window_bytes);
    world.hosts[0].stack.tcp_view(world.now, 0, u32::MAX, &mut { sender });
    bytes
}

fn events(world: &World<Peer>, of: &[Event]) -> Vec<u64> {
    let counters = world.hosts[0].stack.tcp_counters().unwrap();
    of.iter().map(|event| counters.event(*event)).collect()
}

#[test]
fn a_path_that_was_narrow_is_tried_again_after_ten_minutes() {
    use Event::{PathMtu, PathMtuRaised, PathMtuTried, Recovery, RetransmissionTimeout, Retransmitted};
    let mut world = narrow(false);
    run_for(&mut world, Duration::from_secs(30));
    assert_eq!((events(&world, &[PathMtu, PathMtuTried]), segment_bytes(&world)), (vec![1, 0], 1180));
    // still narrow: one segment is lost and sent again, and nothing else comes of it
    run_for(&mut world, Duration::from_secs(530));
    let window = congestion_window(&world);
    let before = events(&world, &[Recovery, RetransmissionTimeout, Retransmitted]);
    assert_eq!(events(&world, &[PathMtuTried]), [0]);
    run_for(&mut world, Duration::from_secs(200));
    assert_eq!(events(&world, &[PathMtuTried, PathMtuRaised]), [1, 0]);
    let after = events(&world, &[Recovery, RetransmissionTimeout, Retransmitted]);
    // of 1448 octets one segment of 1180, and the rest
    assert_eq!(after, [before[0], before[1], before[2] + 2]);
    assert!(congestion_window(&world) >= window, "{} of {window}", congestion_window(&world));
    // wide again
    world.hosts[0].out.mtu = usize::MAX;
    run_for(&mut world, Duration::from_secs(600));
    assert_eq!((events(&world, &[PathMtuTried, PathMtuRaised]), segment_bytes(&world)), (vec![2, 1], 1448));
    assert_eq!(events(&world, &[Recovery, RetransmissionTimeout, Retransmitted]), after);
    run_for(&mut world, Duration::from_secs(1300));
    assert_eq!(events(&world, &[PathMtuTried]), [2]);
}

/// Behind losses less than a wider segment may leave at once: it goes all the same, and nothing waits for it.
#[test]
fn a_wider_segment_is_tried_on_a_path_that_loses_too() {
    let server = Script { send: 1 << 30, piece: 60_000, ..Script::default() };
    let tcp = || tcp(256 << 10);
    let mut world =
        World::new([Peer::new(Some(server)), Peer::with(1, Script::default())], [tcp(), tcp()], [1500, 1500], 1);
    for host in &mut world.hosts {
        (host.out.delay, host.out.byte_ns, host.out.queue) = (Duration::from_millis(25), 1000, 1000);
    }
    world.hosts[0].out.mtu = 600;
    world.hosts[0].port.set_rates(Rates::default(), Rates { drop: 0.05, ..Rates::default() });
    world.connect(false, 1, 100_000);
    let mut received_in = |seconds: u64| {
        let before = world.hosts[1].service.ends[&1].received;
        run_for(&mut world, Duration::from_secs(seconds));
        (world.hosts[1].service.ends[&1].received - before, events(&world, &[Event::PathMtuTried])[0])
    };
    received_in(560);
    let spans: Vec<(u64, u64)> = (0..12).map(|_| received_in(5)).collect();
    let tried = spans.iter().position(|(_, tried)| *tried > 0);
    assert!((1..12).contains(&tried.unwrap_or(0)), "{spans:?}");
    let average = spans.iter().map(|(bytes, _)| bytes).sum::<u64>() / 12;
    assert!(spans.iter().all(|(bytes, _)| *bytes > average / 2), "{spans:?}");
}

#[test]
fn what_a_router_says_of_a_wider_segment_is_tried_at_once() {
    use Event::{PathMtu, PathMtuRaised, PathMtuTried, RetransmissionTimeout};
    let mut world = narrow(true);
    run_for(&mut world, Duration::from_secs(30));
    assert_eq!((events(&world, &[PathMtu]), segment_bytes(&world)), (vec![1], 1248));
    world.hosts[0].out.mtu = 1400;
    run_for(&mut world, Duration::from_secs(620));
    assert_eq!((events(&world, &[PathMtuTried, PathMtuRaised]), segment_bytes(&world)), (vec![2, 1], 1348));
    // and ten minutes later the rest
    world.hosts[0].out.mtu = usize::MAX;
    run_for(&mut world, Duration::from_secs(620));
    assert_eq!((events(&world, &[PathMtuTried, PathMtuRaised]), segment_bytes(&world)), (vec![3, 2], 1448));
    assert_eq!(events(&world, &[RetransmissionTimeout]), [0]);
}

/// The server's address is the kernel's, and its listener names none, as by default: what a router says to that address is heard.
#[test]
fn a_listener_at_any_address_hears_what_a_router_says() {
    for v6 in [false, true] {
        let mut world = narrow_link(true);
        let config = stack::Config { own: Vec::new(), steered: true, ..config(0, tcp(256 << 10)) };
        world.hosts[0].stack.reconfigure(config);
        world.connect(v6, 1, 40_000);
        run_for(&mut world, Duration::from_secs(30));
        let least = if v6 { 1300 - 40 - 32 } else { 1300 - 20 - 32 };
        assert_eq!(
            (events(&world, &[Event::PathMtu, Event::RetransmissionTimeout]), segment_bytes(&world)),
            (vec![1, 0], least)
        );
        let counters = world.hosts[0].stack.counters();
        let heard = [stack::Handled::IcmpError4, stack::Handled::IcmpError6].map(|kind| counters.handled(kind) > 0);
        assert_eq!(heard, [!v6, v6]);
    }
}

#[test]
fn a_link_that_becomes_narrower_is_followed_by_connections_old_and_new() {
    use Event::{PathMtu, PathMtuTried, RetransmissionTimeout, Retransmitted};
    let mut world = narrow(false);
    world.hosts[0].out.mtu = usize::MAX;
    run_for(&mut world, Duration::from_secs(5));
    assert_eq!(segment_bytes(&world), 1448);
    let now = world.now;
    world.hosts[0].stack.set_mtu(now, 1300);
    // what is under way is carried
    run_for(&mut world, Duration::from_millis(1));
    world.hosts[0].out.mtu = 1300;
    let before = events(&world, &[Retransmitted, RetransmissionTimeout]);
    run_for(&mut world, Duration::from_secs(30));
    assert_eq!((events(&world, &[PathMtu]), segment_bytes(&world)), (vec![1], 1248));
    let after = events(&world, &[Retransmitted, RetransmissionTimeout]);
    assert_eq!((world.hosts[0].out.oversized, after[1]), (0, before[1]));
    // nothing wider is tried, ten minutes later either
    run_for(&mut world, Duration::from_secs(700));
    assert_eq!((events(&world, &[PathMtuTried]), world.hosts[0].out.oversized), (vec![0], 0));
    world.hosts[1].service.ends.insert(2, Script::default());
    world.connect(false, 2, 40_001);
    run_for(&mut world, Duration::from_secs(10));
    let mut all = Vec::new();
    world.hosts[0].stack.tcp_view(world.now, 0, u32::MAX, &mut |view| all.push(view.segment_bytes));
    assert_eq!((all, world.hosts[0].out.oversized), (vec![1248; 2], 0));
    // wider again, as far as the port goes
    world.hosts[0].out.mtu = 1500;
    let now = world.now;
    world.hosts[0].stack.set_mtu(now, 9000);
    run_for(&mut world, Duration::from_secs(700));
    assert_eq!((segment_bytes(&world), world.hosts[0].out.oversized), (1448, 0));
}
