//! The web service on two stacks, as of two threads, between which a client's connection goes back and forth: on good paths and bad,
//! every frame is the one, and comes at the time, as on one stack.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use app::{Addresses, Bound, Connection, DeadReason, Listener, Luggage, Service, Streams};
use base::Instant;
use base::publish::Publisher;
use port::fault::Rates;
use sim::{World, world};
use web::{Config, File, Host, Identity, Options, Server, SiteBuilder};

const LARGE_BYTES: usize = 400_000;

fn large() -> Vec<u8> {
    (0..LARGE_BYTES).map(|n| b'!' + (n / 7 % 90) as u8).collect()
}

/// What a client sends, and when after its connection is there: heads in pieces, requests behind an answer that is under way.
fn requests() -> Vec<(Duration, String)> {
    let large = "GET /large.bin HTTP/1.1\r\nHost: h\r\n\r\n";
    let small = "GET /small.txt HTTP/1.1\r\nHost: h\r\n\r\n".repeat(20);
    let parts = "GET /large.bin HTTP/1.1\r\nHost: h\r\nRange: bytes=399990-\r\n\r\n";
    let last = "GET /small.txt HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    [(0, &large[..9]), (30, &large[9..]), (35, &small[..30]), (200, &small[30..]), (220, parts), (900, last)]
        .map(|(at_ms, text)| (Duration::from_millis(at_ms), text.to_owned()))
        .into()
}

/// A client of one connection.
struct Client {
    requests: Vec<(Duration, String)>,
    began_at: Instant,
    answers: Vec<u8>,
    dead: Option<DeadReason>,
}

impl Client {
    fn send<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection) {
        while let Some((at, text)) = self.requests.first() {
            if self.began_at + *at > now {
                calls.timer_set(connection, Some(self.began_at + *at)).unwrap();
                return;
            }
            assert_eq!(calls.send(connection, text.as_bytes()), Ok(text.len()));
            self.requests.remove(0);
        }
    }
}

/// The service of either host.
enum Either {
    Web(Box<Server>),
    Client(Client),
}

impl Either {
    fn client(&mut self) -> &mut Client {
        match self {
            Either::Client(client) => client,
            Either::Web(_) => panic!("the server asks for no connection"),
        }
    }
}

impl Service for Either {
    fn cycle(&mut self, now: Instant) {
        if let Either::Web(server) = self {
            server.cycle(now);
        }
    }
    fn knock<C: Streams>(&mut self, now: Instant, calls: &mut C, at: Listener, connection: Connection, who: Addresses) {
        if let Either::Web(server) = self {
            server.knock(now, calls, at, connection, who);
        }
    }
    fn connected<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        _cookie: u64,
        outcome: Result<Connection, DeadReason>,
    ) {
        let client = self.client();
        match outcome {
            Ok(connection) => {
                client.began_at = now;
                client.send(now, calls, connection);
            }
            Err(reason) => client.dead = Some(reason),
        }
    }
    fn recv<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        match self {
            Either::Web(server) => server.recv(now, calls, connection, cookie, bytes),
            Either::Client(client) => {
                client.answers.extend_from_slice(bytes);
                calls.recv_done(connection, bytes.len()).unwrap();
            }
        }
    }
    fn eof<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        match self {
            Either::Web(server) => server.eof(now, calls, connection, cookie),
            Either::Client(_) => calls.close(connection).unwrap(),
        }
    }
    fn sent<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        cookie: u64,
        bytes: usize,
        room: usize,
    ) {
        if let Either::Web(server) = self {
            server.sent(now, calls, connection, cookie, bytes, room);
        }
    }
    fn dead(&mut self, now: Instant, connection: Connection, cookie: u64, reason: DeadReason) {
        match self {
            Either::Web(server) => server.dead(now, connection, cookie, reason),
            Either::Client(client) => client.dead = Some(reason),
        }
    }
    fn timer<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        match self {
            Either::Web(server) => server.timer(now, calls, connection, cookie),
            Either::Client(client) => client.send(now, calls, connection),
        }
    }
    fn can_move(&self) -> bool {
        matches!(self, Either::Web(server) if server.can_move())
    }
    fn depart(&mut self, now: Instant, connection: Connection, cookie: u64) -> Luggage {
        match self {
            Either::Web(server) => server.depart(now, connection, cookie),
            Either::Client(_) => panic!("the client has one stack"),
        }
    }
    fn arrive<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        luggage: Luggage,
    ) -> Option<u64> {
        match self {
            Either::Web(server) => server.arrive(now, calls, connection, luggage),
            Either::Client(_) => panic!("the client has one stack"),
        }
    }
}

/// Frames on the wire, by time and host.
type Frames = Vec<(Instant, usize, Vec<u8>)>;
/// Those; what the client got; how often its connection moved.
type Story = (Frames, Vec<u8>, u64);

fn story(seed: u64, rates: Rates, moves: Option<Duration>) -> Story {
    let config = Config { hosts: vec![Host { names: vec!["h".to_owned()], ..Host::default() }], ..Config::default() };
    let mut builder = SiteBuilder::new(config, 1, 1 << 30, None).unwrap();
    for (path, bytes) in [("/large.bin", large()), ("/small.txt", b"small".to_vec())] {
        let (identity, encoding) = (Identity::default(), web::Encoding::Identity);
        let file = File { path: path.as_bytes(), modified_unix_s: 784_111_777, identity, encoding };
        builder.add(0, &file, &bytes).unwrap();
    }
    let site = Publisher::new(Arc::new(builder.finish().unwrap()));
    let options = Options { connections: Bound::new(4), ..Options::default() };
    let web = || Either::Web(Box::new(Server::new(site.reader(), options.clone(), None)));
    let client = Client { requests: requests(), began_at: Instant::ZERO, answers: Vec::new(), dead: None };
    let tcp = || world::tcp(web::WINDOW_BYTES as u32);
    let mut world = World::new([web(), Either::Client(client)], [tcp(), tcp()], [1500, 1500], seed);
    for host in &mut world.hosts {
        host.out.delay = Duration::from_millis(4);
        host.out.byte_ns = 100;
        host.port.set_rates(rates, rates);
    }
    if let Some(below) = moves {
        world.split(web(), tcp(), 2);
        world.shuffle_groups(seed, below);
    }
    let frames: Rc<RefCell<Frames>> = Rc::default();
    let seen = frames.clone();
    world.tap = Some(Box::new(move |now, host, frame| seen.borrow_mut().push((now, host, frame.to_vec()))));
    world.connect(false, 1, 50_000);
    let end = Instant::ZERO + Duration::from_secs(300);
    assert!(world.run(end, |world| world.hosts[1].service.client().dead.is_some()), "{seed}");
    assert_eq!(world.hosts[1].service.client().dead, Some(DeadReason::Closed), "{seed}");
    world.run(end + Duration::from_secs(300), |_| false);
    for stack in world.stacks() {
        let usage = stack.tcp_usage();
        assert_eq!(usage, stack::tcp::Usage { time_wait: usage.time_wait, ..Default::default() });
    }
    let moved = world.twin.as_ref().map_or(0, |twin| twin.moved);
    for service in [Some(&world.hosts[0].service), world.twin.as_ref().map(|twin| &twin.service)].into_iter().flatten()
    {
        let Either::Web(server) = service else { panic!("a server") };
        let mut open = None;
        base::counter::Report::report(&*server.stats(), &mut |figure| {
            open = if figure.name == "web_connections" { Some(figure.value) } else { open };
        });
        assert_eq!(open, Some(0));
    }
    let answers = std::mem::take(&mut world.hosts[1].service.client().answers);
    (frames.take(), answers, moved)
}

#[test]
fn downloads_go_on_mid_file_and_heads_mid_line() {
    let bad = Rates { drop: 0.03, duplicate: 0.02, reorder: 0.05, ..Rates::default() };
    for seed in 0..12 {
        let rates = if seed % 3 == 0 { Rates::default() } else { bad };
        let (still, answers, _) = story(seed, rates, None);
        let text = String::from_utf8(answers.clone()).unwrap();
        assert_eq!((text.matches("HTTP/1.1 200").count(), text.matches("HTTP/1.1 206").count()), (22, 1));
        assert!(text.split("\r\n\r\n").nth(1).is_some_and(|body| body.as_bytes().starts_with(&large())), "{seed}");
        for below_us in [100, 3000, 40_000] {
            let (moving, moved_answers, moved) = story(seed, rates, Some(Duration::from_micros(below_us)));
            assert!(moved > 3, "{moved} moves");
            assert!(answers == moved_answers, "{seed}");
            let other = still.iter().zip(&moving).position(|(one, other)| one != other);
            assert_eq!((other, still.len()), (None, moving.len()), "seed {seed}, moves within {below_us} us");
        }
    }
}
