//! The generator against the web service, each on our own stack, at the two ends of a pipe.

use super::*;
use app::Listener;
use base::publish::Publisher;
use port::fault::{Fault, Rates};
use port::pipe::{self, Pipe};
use stack::TcpListener;
use std::sync::Arc;
use web::{Encoding, File, Identity, Method, Server, SiteBuilder};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

const CONFIG_MACS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const SERVER: &str = "198.18.0.1:80";
const PAGES: [(&str, usize); 3] = [("/small", 10), ("/k", 1024), ("/large", 100_000)];

fn page(path: &str) -> Vec<u8> {
    let (number, (_, bytes)) = PAGES.iter().enumerate().find(|(_, page)| page.0 == path).unwrap();
    (0..*bytes).map(|at| (at / 7 + at + number) as u8).collect()
}

fn web(options: web::Options) -> Server {
    let mut builder =
        SiteBuilder::new(web::Config { hosts: vec![web::Host::default()], ..Default::default() }, 1, 1 << 30, None)
            .unwrap();
    for (path, _) in PAGES {
        let file = File {
            path: path.as_bytes(),
            modified_unix_s: 784_111_777,
            identity: Identity::default(),
            encoding: Encoding::Identity,
        };
        builder.add(0, &file, &page(path)).unwrap();
    }
    Server::new(Publisher::new(Arc::new(builder.finish().unwrap())).reader(), options, None)
}

/// How much time passes from one cycle to the next. Nothing here reads a clock.
const TICK: Duration = Duration::from_micros(20);

/// A web server and a generator, joined by a pipe.
struct Bed<P> {
    load: Load<P>,
    server: Loop<Pipe, Server>,
    now: Instant,
}

fn bed_over<P: Port>(over: impl FnOnce(Pipe) -> P, options: web::Options, manner: Manner, mix: Mix) -> Bed<P> {
    let ring_frames = 4096;
    let config = pipe::Config { ring_frames, frames: 16_384, macs: CONFIG_MACS, ..pipe::Config::default() };
    let (mut clients, mut servers) = pipe::pair(&config).unwrap();
    let (client, server) = (clients.remove(0), servers.remove(0));
    let at: SocketAddr = SERVER.parse().unwrap();
    let stack_config = stack::Config {
        own: vec![OwnAddress { addr: at.ip(), prefix_len: 24 }],
        tcp: Some(TcpConfig {
            listeners: vec![TcpListener { listener: Listener(0), local: at, window_bytes: web::WINDOW_BYTES as u32 }],
            secret: [3, 4],
            ..TcpConfig::default()
        }),
        claim: Claim { mode: ClaimMode::Silent, ..Claim::default() },
        ..stack::Config::default()
    };
    let facts = port::Facts { virtual_link: false, ..server.facts().clone() };
    let server = Loop::new(server, Stack::new(stack_config, &facts), web(options), BURST_FRAMES);
    let peer = Peer { server: mix.server(), hop: CONFIG_MACS[1], window_bytes: 65_536 };
    let sources = "198.18.0.3-198.18.0.4".parse().unwrap();
    Bed { load: Load::new(over(client), mix, manner, peer, sources, [1, 2]), server, now: Instant::ZERO }
}

fn bed(manner: Manner, mix: Mix) -> Bed<Pipe> {
    bed_over(|pipe| pipe, web::Options::default(), manner, mix)
}

impl<P: Port> Bed<P> {
    fn run(&mut self, plan: &Plan) -> Result<Outcome> {
        self.run_while(plan, |_| true)
    }

    /// The same with a server that works as long as `works` says.
    fn run_while(&mut self, plan: &Plan, works: impl Fn(&mut Server) -> bool) -> Result<Outcome> {
        let Bed { load, server, now } = self;
        load.run(plan, &AtomicBool::new(false), || {
            *now += TICK;
            if works(server.service()) {
                server.cycle(*now);
            }
            *now
        })
    }

    /// The server's stack has nothing left.
    fn is_clean(&mut self) -> bool {
        let usage = self.server.stack().tcp_counters().unwrap().connections.get();
        usage == 0 && self.load.connections() == 0
    }
}

fn manner(connections: u32, requests_per_connection: u32) -> Manner {
    Manner {
        connections,
        requests_per_connection,
        check_every: 1,
        timeout: Duration::from_secs(20),
        think: Duration::ZERO,
    }
}

fn plan(rate: Option<f64>, ms: u64) -> Plan {
    let span = Duration::from_millis(ms);
    Plan { rate, span, warm_up: None, wait: Wait::Spin, progress: false }
}

fn urls(urls: &[&str]) -> Vec<Url> {
    urls.iter().map(|path| path.replacen('/', &format!("http://{SERVER}/"), 1).parse().unwrap()).collect()
}

fn mix(paths: &[&str]) -> Mix {
    Mix::new(&urls(paths), vec![], &[]).unwrap()
}

/// Nothing went wrong, and all was answered and compared.
fn assert_whole(outcome: &Outcome) {
    assert_eq!(outcome.failures, vec![], "{outcome}");
    assert!(outcome.statuses.is_empty(), "{outcome}");
    assert_eq!((outcome.answered, outcome.unfinished), (outcome.sent, 0), "{outcome}");
    assert_eq!(outcome.checked, outcome.answered, "{outcome}");
    assert!(outcome.answered_in_span > 0 && outcome.bytes > outcome.body_bytes, "{outcome}");
    assert!(outcome.latency.p50_us > 0.0 && outcome.latency.greatest_us >= outcome.latency.p99_us, "{outcome}");
}

#[test]
fn what_is_asked_to_warm_up_does_not_count() {
    let mut bed = bed(manner(4, 0), mix(&["/small"]));
    let whole = bed.run(&plan(Some(1000.0), 200)).unwrap();
    let warm_up = Some(Duration::from_millis(400));
    let warmed = bed.run(&Plan { warm_up, ..plan(Some(1000.0), 200) }).unwrap();
    assert_eq!((whole.answered, warmed.sent, warmed.missed), (200, 200, 0), "{warmed}");
    // those that were asked for in time and answered a little later
    assert!((200..=204).contains(&warmed.answered) && warmed.span_ns < 300_000_000, "{warmed}");
    assert_eq!(warmed.connections, 4, "they stand already");
}

#[test]
fn loads_that_are_to_ask_together_wait_for_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("start");
    let mut bed = bed(manner(4, 0), mix(&["/small"]));
    let plan = Plan { warm_up: Some(Duration::from_millis(50)), ..plan(None, 100) };
    let Bed { load, server, now } = &mut bed;
    let (at, mut connected_before) = (Instant::from_nanos(2_000_000_000), 0);
    let mut tick = || {
        *now += TICK;
        server.cycle(*now);
        if *now < at {
            connected_before = server.stack().tcp_counters().unwrap().connections.get();
        } else if !file.exists() {
            std::fs::write(&file, "").unwrap();
        }
        *now
    };
    let stop = AtomicBool::new(false);
    load.learn(plan.wait, &stop, &mut tick).unwrap();
    load.wait_for(&file, plan.wait, &stop, &mut tick);
    let outcome = load.measure(&plan, &stop, tick);
    assert_whole(&outcome);
    assert_eq!((connected_before, outcome.connections), (1, 4), "the one by which the body was learned, and all");
    assert!(outcome.sent > 20 && bed.now < at + Duration::from_secs(1), "{:?}: {outcome}", bed.now);
}

#[test]
fn every_request_of_kept_connections_is_answered_rightly() {
    let mut bed = bed(manner(8, 0), mix(&["/small", "/k", "/large"]));
    let outcome = bed.run(&plan(None, 300)).unwrap();
    assert_whole(&outcome);
    assert_eq!(outcome.connections, 8);
    assert!(outcome.sent > 20, "{outcome}");
    assert!(bed.is_clean());
}

#[test]
fn a_connection_each_request_leaves_nothing_behind() {
    let mut bed = bed(manner(16, 1), mix(&["/k"]));
    let outcome = bed.run(&plan(None, 300)).unwrap();
    assert_whole(&outcome);
    assert_eq!(outcome.connections, outcome.sent);
    assert_eq!(outcome.body_bytes, 1024 * outcome.answered);
    assert!(bed.is_clean());
    // the server ended every connection, so what outlasts them is not ours
    assert_eq!(bed.load.work.stack().tcp_counters().unwrap().time_wait.get(), 0);
}

#[test]
fn a_server_that_ends_connections_by_its_own_rule_costs_no_request() {
    let options = web::Options { requests: 5, ..web::Options::default() };
    let mut bed = bed_over(|pipe| pipe, options, manner(4, 0), mix(&["/small"]));
    let outcome = bed.run(&plan(None, 200)).unwrap();
    assert_whole(&outcome);
    assert!(outcome.connections >= outcome.sent / 5, "{outcome}");
}

#[test]
fn connections_end_after_as_many_requests_as_told() {
    let mut bed = bed(manner(2, 3), mix(&["/small"]));
    let outcome = bed.run(&plan(None, 100)).unwrap();
    assert_whole(&outcome);
    let fewest = outcome.sent / 3;
    assert!((fewest..=fewest + 2).contains(&outcome.connections), "{outcome}");
}

#[test]
fn a_connection_thinks_before_it_asks_again() {
    let think = Duration::from_millis(10);
    let mut bed = bed(Manner { think, ..manner(100, 6) }, mix(&["/small"]));
    let outcome = bed.run(&plan(None, 300)).unwrap();
    assert_whole(&outcome);
    // six requests take five pauses, so a place has six connections in that time, from 0 to 50 ms on; what is asked for takes no time to speak
    // of
    assert!((100 * 30..=100 * 36).contains(&outcome.sent), "{outcome}");
    assert!((550..=650).contains(&outcome.connections), "{outcome}");
    assert!(outcome.latency.greatest_us < 1000.0, "pauses are no latency: {outcome}");
    assert!(bed.is_clean());
    // who thinks is not where an answer is due, and what a server ends meanwhile is asked for on a new connection
    let (options, think) = (web::Options { idle: think, ..web::Options::default() }, Duration::from_secs(3));
    let mut bed = bed_over(|pipe| pipe, options, Manner { think, ..manner(4, 0) }, mix(&["/small"]));
    let outcome = bed.run(&plan(None, 7000)).unwrap();
    assert_whole(&outcome);
    // one of them had asked what the body is, and thought first
    assert_eq!(outcome.connections, outcome.sent + 1, "{outcome}");
    assert!((4..=20).contains(&outcome.sent), "{outcome}");
}

#[test]
fn connections_that_think_do_not_begin_all_at_once() {
    let think = Duration::from_millis(100);
    let mut bed = bed(Manner { think, ..manner(100, 6) }, mix(&["/small"]));
    // 100 in the 500 ms that each of them thinks
    let outcome = bed.run(&plan(None, 200)).unwrap();
    assert_whole(&outcome);
    assert!((40..=50).contains(&outcome.connections), "{outcome}");
    assert!(bed.is_clean());
    // nor the next time, and none is forgotten that had not begun
    let outcome = bed.run(&plan(None, 600)).unwrap();
    assert!((115..=140).contains(&outcome.connections), "{outcome}");
}

#[test]
fn an_open_loop_asks_when_it_is_due() {
    let mut bed = bed(manner(32, 0), mix(&["/small", "/k"]));
    let outcome = bed.run(&plan(Some(500.0), 400)).unwrap();
    assert_whole(&outcome);
    assert_eq!(outcome.sent + outcome.missed, 200, "{outcome}");
    // free connections have their turn, and each was made when it was needed
    assert_eq!(outcome.connections, 32, "{outcome}");
    let mut few = self::bed(manner(32, 0), mix(&["/small"]));
    // one more learned the body
    assert_eq!(few.run(&plan(Some(50.0), 400)).unwrap().connections, 21);
}

#[test]
fn wrong_bodies_are_found() {
    let mut other = page("/k");
    other[1000] ^= 1;
    let mix = Mix::new(&urls(&["/k", "/small"]), vec![other.clone(), b"longer than it is".to_vec()], &[]).unwrap();
    let mut bed = bed(manner(4, 0), mix);
    let outcome = bed.run(&plan(None, 100)).unwrap();
    let kinds: Vec<Failure> = outcome.failures.iter().map(|(failure, _)| *failure).collect();
    assert_eq!(kinds, [Failure::WrongLength, Failure::WrongBody], "{outcome}");
    assert_eq!(outcome.failed(Failure::is_wrong_body), outcome.answered, "{outcome}");
    // content that is not compared is not found wrong, lengths are
    let mix = Mix::new(&urls(&["/k", "/small"]), vec![other, vec![]], &[]).unwrap();
    let mut bed = self::bed(Manner { check_every: 0, ..manner(4, 0) }, mix);
    let outcome = bed.run(&plan(None, 50)).unwrap();
    assert!(matches!(outcome.failures[..], [(Failure::WrongLength, _)]), "{outcome}");
    assert_eq!(outcome.checked, 0);
}

#[test]
fn statuses_are_told_by_their_numbers() {
    let mut bed = bed(manner(2, 0), mix(&["/none", "/k"]));
    let outcome = bed.run(&plan(None, 100)).unwrap();
    assert_eq!(outcome.failures, vec![], "{outcome}");
    let (status, count) = outcome.statuses.first_key_value().unwrap();
    assert_eq!((*status, outcome.statuses.len()), (404, 1), "{outcome}");
    assert!(outcome.answered.abs_diff(2 * count) <= 1, "{outcome}");
}

#[test]
fn a_refusal_is_told_at_once_or_counted() {
    let elsewhere: Url = "http://198.18.0.1:81/".parse().unwrap();
    let learned = Mix::new(std::slice::from_ref(&elsewhere), vec![], &[]).unwrap();
    let error = bed(manner(1, 0), learned).run(&plan(None, 50)).unwrap_err().to_string();
    assert_eq!(error, "http://198.18.0.1:81/: connections refused");
    let told = Mix::new(&[elsewhere], vec![vec![]], &[]).unwrap();
    let outcome = bed(manner(3, 0), told).run(&plan(None, 100)).unwrap();
    assert!(matches!(outcome.failures[..], [(Failure::Refused, 3..)]), "{outcome}");
    assert_eq!((outcome.answered, outcome.connections), (0, 0));
}

#[test]
fn silence_is_a_timeout_of_the_connection_or_of_the_answer() {
    let told = || Mix::new(&urls(&["/k"]), vec![page("/k")], &[]).unwrap();
    let hasty = Manner { timeout: Duration::from_millis(150), ..manner(2, 0) };
    let outcome = bed(hasty, told()).run_while(&plan(None, 500), |_| false).unwrap();
    assert!(matches!(outcome.failures[..], [(Failure::ConnectTimeout, 2..)]), "{outcome}");
    // a server that falls silent after its first answers
    let mut bed = bed(hasty, told());
    let outcome = bed.run_while(&plan(None, 500), |server| server.stats().requests(Method::Get) < 10).unwrap();
    assert!(outcome.answered > 0 && outcome.failed(|failure| failure == Failure::Timeout) >= 1, "{outcome}");
    // what was still asked for is ended with the load
    assert_eq!(bed.load.work.service().unanswered(), 0);
    assert_eq!(bed.load.connections(), 0);
}

/// A server that works once in so long.
fn once_in(span: Duration) -> impl Fn(&mut Server) -> bool {
    let ticks = std::cell::Cell::new(0_u128);
    move |_| {
        ticks.set(ticks.get() + 1);
        ticks.get().is_multiple_of(span.as_micros() / TICK.as_micros())
    }
}

#[test]
fn what_waited_for_a_connection_is_in_time_by_when_it_was_due() {
    let told = || Mix::new(&urls(&["/k"]), vec![page("/k")], &[]).unwrap();
    let run = |timeout_ms| {
        let manner = Manner { timeout: Duration::from_millis(timeout_ms), ..manner(1, 0) };
        bed(manner, told()).run_while(&plan(Some(500.0), 400), once_in(Duration::from_millis(10))).unwrap()
    };
    // each answer takes some 10 ms from when it is asked for, and the more from when it was due the more were due before it
    let outcome = run(150);
    assert_whole(&outcome);
    assert!(outcome.latency.greatest_us > 250_000.0 && outcome.latency.p50_us > 150_000.0, "{outcome}");
    assert_eq!(outcome.good_in_time + outcome.good_late, outcome.answered, "{outcome}");
    assert!(outcome.good_in_time > 4 && outcome.good_late > outcome.good_in_time, "{outcome}");
    let outcome = run(2000);
    assert_eq!((outcome.good_in_time, outcome.good_late), (outcome.answered, 0), "{outcome}");
    assert_eq!(outcome.answered, run(150).answered);
}

#[test]
fn a_handshake_and_an_answer_that_are_late_together_are_late() {
    let mix = Mix::new(&urls(&["/k"]), vec![page("/k")], &[]).unwrap();
    let mut bed = bed(Manner { timeout: Duration::from_millis(70), ..manner(1, 1) }, mix);
    let outcome = bed.run_while(&plan(None, 2000), once_in(Duration::from_millis(50))).unwrap();
    // neither takes longer than that by itself
    assert_whole(&outcome);
    assert!(outcome.good_late > 5 && outcome.good_in_time <= 1, "{outcome}");
}

#[test]
fn a_lossy_wire_costs_time_and_nothing_else() {
    let rates = Rates { drop: 0.01, duplicate: 0.01, reorder: 0.02, ..Rates::default() };
    let over = |pipe| Fault::new(pipe, 5, rates, rates);
    let mut bed = bed_over(over, web::Options::default(), manner(8, 10), mix(&["/small", "/k", "/large"]));
    let outcome = bed.run(&plan(None, 3000)).unwrap();
    assert_eq!(outcome.failures, vec![], "{outcome}");
    assert_eq!(outcome.checked, outcome.answered, "{outcome}");
    assert!(outcome.answered > 20, "{outcome}");
}

#[test]
fn a_request_allocates_nothing() {
    let mut bed = bed(manner(4, 2), mix(&["/small", "/large"]));
    // what is made once is made
    bed.run(&plan(None, 100)).unwrap();
    let Bed { load, server, now } = &mut bed;
    load.work.service().schedule = Schedule::new(*now, Duration::from_secs(3600), None);
    let mut steps = |answers: u64| {
        let until = load.work.service().outcome.answered + answers;
        while load.work.service().outcome.answered < until {
            load.step(Wait::Spin, &mut || {
                *now += TICK;
                server.cycle(*now);
                *now
            });
        }
    };
    steps(100);
    let before = allocations::of_thread();
    steps(500);
    assert_eq!(allocations::of_thread() - before, 0);
}
