//! The application API, call by call and error by error: one body, run on our own stack over an in-memory NIC and on kernel sockets.

mod common;

use app::{Addresses, CallError, Connection, ContentBuilder, DeadReason, Listener, ObjectId, Range, Service, Streams};
use common::protected::protect;
use common::{Hand, Happened, remote};
use dataplane::{Dataplane, Idle};
use port::pipe::{self, Pipe};
use stack::{Claim, ClaimMode, OwnAddress, Stack, TcpConfig, TcpLimits, TcpListener, TcpTimes, UdpListener};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

/// What the body knows of an engine: where the two hosts are.
struct World {
    near: Hand,
    far: Hand,
    places: Places,
    /// the near host's calls are answered by the engine itself, not by a half of it in another process
    at_once: bool,
    _engines: Box<dyn std::any::Any>,
}

impl World {
    /// Asks from the near host for what the engine refuses, and gives the reason.
    fn refused(&self, remote: SocketAddr, local: Option<SocketAddr>, cookie: u64) -> CallError {
        match self.near.call(move |calls| calls.connect(remote, local, cookie)) {
            Err(error) => error,
            Ok(_) if self.at_once => panic!("{remote} from {local:?} is not refused"),
            Ok(_) => match self.near.connected(cookie) {
                Err(DeadReason::Denied(error)) => error,
                outcome => panic!("{remote} from {local:?}: {outcome:?}"),
            },
        }
    }
}

/// Addresses, IPv4 and IPv6.
#[derive(Clone)]
struct Places {
    /// listener 0 and 1 of the far host
    tcp: [SocketAddr; 2],
    /// listener 2 and 3 of the near host, and of the far one
    udp: [[SocketAddr; 2]; 2],
    /// nobody listens
    nobody: [SocketAddr; 2],
    /// no way leads there
    nowhere: Vec<SocketAddr>,
    /// nothing ever comes from there
    silent: Vec<SocketAddr>,
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// What the nine calls about connections say of this one.
fn all_of(calls: &mut dyn Streams, connection: Connection) -> Vec<Result<(), CallError>> {
    assert_eq!(calls.room(connection), 0);
    vec![
        calls.accept(connection, 9),
        calls.reject(connection),
        calls.send(connection, b"late").map(drop),
        calls.sendv(connection, &[Range::Owned(b"late")]).map(drop),
        calls.recv_done(connection, 0),
        calls.shutdown(connection),
        calls.close(connection),
        calls.timer_set(connection, None),
    ]
}

fn all_calls(hand: &Hand, connection: Connection) -> Vec<Result<(), CallError>> {
    hand.call(move |calls| all_of(calls, connection))
}

/// An attempt that nobody answers: what calls say of it before it is given up, and that it is, by itself and when asked to. What is called
/// is called at once: a test that stands still for longer than the attempt lasts would find it gone.
fn an_attempt_is_not_answered(near: &Hand, to: SocketAddr, cookie: u64) {
    let said = near.call(move |calls| {
        let asked = calls.connect(to, None, cookie).unwrap();
        all_of(calls, asked)
    });
    assert_eq!(said, vec![Err(CallError::WrongState); 8], "before it is there");
    assert_eq!(near.connected(cookie), Err(DeadReason::TimedOut), "{to}");
    let given_up = near.call(move |calls| {
        let asked = calls.connect(to, None, cookie).unwrap();
        (calls.abort(asked), calls.abort(asked))
    });
    assert_eq!(given_up, (Ok(()), Err(CallError::NoConnection)));
    assert_eq!(near.connected(cookie), Err(DeadReason::Aborted));
}

/// A connection from the near host to the far one: both handles, and the far one's cookie.
fn a_connection(world: &World, family: usize, cookie: u64, knocks: u64) -> (Connection, Connection, u64) {
    let to = world.places.tcp[family];
    let asked = world.near.call(move |calls| calls.connect(to, None, cookie)).expect("to ask");
    assert_eq!(world.near.connected(cookie), Ok(asked));
    let (listener, far, addresses, before) = world.far.knock();
    assert_eq!((listener, addresses.local), (Listener(family as u16), to));
    assert_eq!(before, vec![Err(CallError::WrongState); 5], "calls before it is accepted");
    (asked, far, 1000 + knocks)
}

/// A connection's life, with every call in its right state and in wrong ones.
fn a_connection_lives(world: &World) {
    let (near, far) = (&world.near, &world.far);
    for family in 0..2 {
        let cookie = 70 + family as u64;
        let (here, there, theirs) = a_connection(world, family, cookie, 1 + family as u64);
        assert_eq!(near.call(move |calls| calls.send(here, b"hello")), Ok(5));
        assert_eq!(far.bytes(theirs, 5), b"hello");
        let done = far.call(move |calls| [6, 5, 1].map(|bytes| calls.recv_done(there, bytes)));
        assert_eq!(done, [Err(CallError::TooMuch), Ok(()), Err(CallError::TooMuch)]);
        near.wait("sent", |happened| (*happened == Happened::Sent(cookie, 5)).then_some(()));
        let twice = near.call(move |calls| (calls.accept(here, 1), calls.reject(here)));
        assert_eq!(twice, (Err(CallError::WrongState), Err(CallError::WrongState)));
        let outside = far.call(move |calls| {
            let mut builder = ContentBuilder::new();
            builder.add(b"an object");
            let content = builder.finish();
            let range = |start, bytes| Range::Object { content: &content, object: ObjectId(0), start, bytes };
            let refused = calls.sendv(there, &[range(3, 7)]);
            (refused, calls.sendv(there, &[Range::Owned(b"take "), range(0, 9)]))
        });
        assert_eq!(outside, (Err(CallError::NoSuchRange), Ok(14)));
        assert_eq!(near.bytes(cookie, 14), b"take an object");
        // half-closed: the other direction goes on
        let shut = near.call(move |calls| (calls.shutdown(here), calls.shutdown(here), calls.send(here, b"no")));
        assert_eq!(shut, (Ok(()), Err(CallError::WrongState), Err(CallError::WrongState)));
        far.expect(&Happened::Eof(theirs));
        assert_eq!(far.call(move |calls| calls.send(there, b"bye")), Ok(3));
        assert_eq!(near.bytes(cookie, 3), b"bye");
        let closed = far.call(move |calls| {
            let closed = calls.close(there);
            let after = [
                calls.close(there),
                calls.shutdown(there),
                calls.send(there, b"no").map(drop),
                calls.recv_done(there, 0),
                calls.timer_set(there, None),
            ];
            assert_eq!(calls.room(there), 0);
            (closed, after)
        });
        assert_eq!(closed, (Ok(()), [Err(CallError::WrongState); 5]));
        near.expect(&Happened::Dead(cookie, DeadReason::Closed));
        near.wait("flush", |happened| matches!(happened, Happened::Flushed(_)).then_some(()));
        far.expect(&Happened::Dead(theirs, DeadReason::Closed));
        for (hand, handle) in [(near, here), (far, there)] {
            assert_eq!(all_calls(hand, handle), vec![Err(CallError::NoConnection); 8]);
            assert_eq!(hand.call(move |calls| calls.abort(handle)), Err(CallError::NoConnection));
        }
    }
}

/// An aborted connection is reset at the other end, also one that was closed and lingers.
fn a_connection_is_aborted(world: &World) {
    let (near, far) = (&world.near, &world.far);
    let (here, _, theirs) = a_connection(world, 0, 80, 3);
    let made_up = Connection { index: here.index, generation: here.generation.wrapping_add(1) };
    assert_eq!(all_calls(near, made_up), vec![Err(CallError::NoConnection); 8]);
    let far_off = Connection { index: u32::MAX, generation: 0 };
    assert_eq!(all_calls(near, far_off), vec![Err(CallError::NoConnection); 8]);
    assert_eq!(near.call(move |calls| calls.abort(here)), Ok(()));
    near.expect(&Happened::Dead(80, DeadReason::Aborted));
    far.expect(&Happened::Dead(theirs, DeadReason::Reset));
    let (here, _, theirs) = a_connection(world, 1, 81, 4);
    assert_eq!(near.call(move |calls| (calls.close(here), calls.abort(here))), (Ok(()), Ok(())));
    near.expect(&Happened::Dead(81, DeadReason::Aborted));
    far.wait("an end", |happened| match happened {
        Happened::Dead(of, DeadReason::Reset) if *of == theirs => Some(()),
        _ => None,
    });
}

/// However small the parts that one event sends, what there is said to be room for is taken.
fn small_parts_are_sent(world: &World) {
    const PARTS: usize = 1500;
    for family in 0..2 {
        let (here, _, theirs) = a_connection(world, family, 140 + family as u64, 7 + family as u64);
        let sent = world.near.call(move |calls| {
            let send = |n: usize| (calls.room(here) >= 10, calls.send(here, format!("{n:010}").as_bytes()));
            (0..PARTS).map(send).collect::<Vec<_>>()
        });
        assert!(sent.iter().all(|part| *part == (true, Ok(10))), "{:?}", sent.iter().find(|part| part.1 != Ok(10)));
        let all: String = (0..PARTS).map(|n| format!("{n:010}")).collect();
        assert_eq!(world.far.bytes(theirs, all.len()), all.as_bytes());
        world.near.call(move |calls| calls.abort(here)).unwrap();
    }
}

/// What cannot be asked for is refused by the call.
fn addresses_are_judged(world: &World) {
    let [v4, v6] = world.places.tcp;
    let port_zero = SocketAddr::new(v4.ip(), 0);
    for (remote, local) in [
        (port_zero, None),
        (addr("0.0.0.0:80"), None),
        (addr("[::]:80"), None),
        (addr("224.0.0.1:80"), None),
        (addr("255.255.255.255:80"), None),
        (addr("[ff02::1]:80"), None),
        (addr("[::ffff:192.0.2.9]:80"), None),
        (v4, Some(addr("[::]:0"))),
        (v6, Some(addr("0.0.0.0:0"))),
        (v4, Some(addr("203.0.113.77:0"))),
        (v6, Some(addr("[2001:db8:ffff::77]:0"))),
    ] {
        assert_eq!(world.refused(remote, local, 1), CallError::NoSuchAddress, "{remote} from {local:?}");
    }
    // a port of our choice, below those that kernels choose, which is then taken
    let local = SocketAddr::new(world.places.udp[0][0].ip(), 20_123);
    let first = world.near.call(move |calls| calls.connect(v4, Some(local), 90)).expect("a port");
    assert_eq!(world.near.connected(90), Ok(first));
    let (_, _, addresses, _) = world.far.knock();
    assert_eq!(addresses.peer, local);
    assert_eq!(world.refused(v4, Some(local), 91), CallError::InUse);
    world.near.call(move |calls| calls.abort(first)).unwrap();
}

/// Attempts that come to nothing: refused, without a way, unanswered, given up.
fn attempts_fail(world: &World) {
    let near = &world.near;
    for (n, to) in world.places.nobody.into_iter().enumerate() {
        let cookie = 100 + n as u64;
        let asked = near.call(move |calls| calls.connect(to, None, cookie)).unwrap();
        assert_eq!(near.connected(cookie), Err(DeadReason::Refused), "{to}");
        assert_eq!(all_calls(near, asked), vec![Err(CallError::NoConnection); 8]);
    }
    for (n, to) in world.places.nowhere.iter().copied().enumerate() {
        let cookie = 110 + n as u64;
        near.call(move |calls| calls.connect(to, None, cookie)).unwrap();
        assert_eq!(near.connected(cookie), Err(DeadReason::Unreachable), "{to}");
    }
    for (n, to) in world.places.silent.iter().copied().enumerate() {
        an_attempt_is_not_answered(near, to, 120 + n as u64);
    }
}

/// Datagrams sent unasked, answered later, and refused.
fn datagrams_go_unasked(world: &World) {
    let (near, far) = (&world.near, &world.far);
    for family in 0..2 {
        let [local, peer] = [world.places.udp[0][family], world.places.udp[1][family]];
        let (ends, back) = (Addresses { local, peer }, Addresses { local: peer, peer: local });
        let listener = Listener(2 + family as u16);
        // in a process of its own there is no room while the many calls before it are on their way
        let begun = std::time::Instant::now();
        let mut sent = near.call(move |calls| calls.send_to(listener, ends, b"news"));
        while sent == Err(CallError::NoResources) && begun.elapsed() < common::PATIENCE {
            sent = near.call(move |calls| calls.send_to(listener, ends, b"news"));
        }
        assert_eq!(sent, Ok(()));
        assert_eq!(far.datagram(listener), (back, b"news".to_vec()));
        // later than the question, from whatever event
        std::thread::sleep(Duration::from_millis(20));
        for n in 0..3u8 {
            assert_eq!(far.call(move |calls| calls.send_to(listener, back, &[n; 200])), Ok(()));
            assert_eq!(near.datagram(listener), (ends, vec![n; 200]));
        }
        let any = SocketAddr::new(if family == 0 { [0; 4].into() } else { [0u16; 8].into() }, local.port());
        assert_eq!(near.call(move |calls| calls.send_to(listener, Addresses { local: any, peer }, b"")), Ok(()));
        assert_eq!(far.datagram(listener), (back, Vec::new()));
        let other_port = SocketAddr::new(local.ip(), local.port() ^ 1);
        let other = if family == 0 { addr("203.0.113.77:1") } else { addr("[2001:db8:ffff::77]:1") };
        let other = SocketAddr::new(other.ip(), local.port());
        for (listener, local, to, only_the_engine_knows) in [
            (Listener(0), local, peer, true),
            (Listener(99), local, peer, false),
            (listener, other_port, peer, true),
            (listener, other, peer, true),
            (listener, local, SocketAddr::new(peer.ip(), 0), false),
            (listener, local, world.places.udp[1][1 - family], false),
        ] {
            let said = near.call(move |calls| calls.send_to(listener, Addresses { local, peer: to }, b"x"));
            // what is not known at once is lost, as the next one that arrives shows
            let lost = only_the_engine_knows && !world.at_once;
            let expected = if lost { Ok(()) } else { Err(CallError::NoSuchAddress) };
            assert_eq!(said, expected, "{listener:?} {local} {to}");
        }
        // a byte more than a packet of the family carries
        let bytes = &[0; 65_535 - 8 + 1][..if family == 0 { 65_508 } else { 65_528 }];
        assert_eq!(near.call(move |calls| calls.send_to(listener, ends, bytes)), Err(CallError::TooLong));
        // a cycle keeps so many and no more
        let refused = near.call(move |calls| (0..2000).find_map(|_| calls.send_to(listener, ends, b"y").err()));
        assert_eq!(refused, Some(CallError::NoResources));
        // they have gone before the next call is made
        assert_eq!(far.datagram(listener), (back, b"y".to_vec()));
    }
}

/// Timers of connections and of the service.
fn timers_and_alarms_go_off(world: &World) {
    let near = &world.near;
    let (here, _, _) = a_connection(world, 0, 130, 6);
    // a thread that wakes up late tells of all of them at once: then again
    let is_in_order = (0..20).any(|_| timers_go_off_in_order(near, here));
    assert!(is_in_order, "alarm 7 is not told of before the others are due");
    let full = near.at(|calls, now| {
        let later = Some(now + Duration::from_secs(3600));
        let set = (0..).take_while(|cookie| calls.alarm_set(*cookie, later).is_ok()).count();
        (0..set as u64).for_each(|cookie| calls.alarm_set(cookie, None).unwrap());
        set
    });
    assert_eq!(full, app::ALARMS);
    near.call(move |calls| calls.abort(here)).unwrap();
}

/// Sets a timer and alarms, which go off when they are due; whether the one that is due at once does before the others are.
fn timers_go_off_in_order(near: &Hand, here: Connection) -> bool {
    let due = near.at(move |calls, now| {
        let at = now + Duration::from_millis(30);
        calls.timer_set(here, Some(now)).unwrap();
        calls.timer_set(here, Some(at)).unwrap();
        calls.alarm_set(5, Some(now)).unwrap();
        calls.alarm_set(5, Some(at)).unwrap();
        calls.alarm_set(6, Some(at)).unwrap();
        calls.alarm_set(6, None).unwrap();
        calls.alarm_set(7, Some(now)).unwrap();
        at
    });
    let first = near.wait("alarm 7", |happened| match happened {
        Happened::Alarm(7, at) => Some(*at),
        _ => None,
    });
    let at = near.wait("the timer", |happened| match happened {
        Happened::Timer(130, at) => Some(*at),
        _ => None,
    });
    let alarm = near.wait("alarm 5", |happened| match happened {
        Happened::Alarm(cookie, at) => Some((*cookie, *at)),
        _ => None,
    });
    assert!(at >= due && alarm.0 == 5 && alarm.1 >= due, "{at:?} {alarm:?}, due {due:?}");
    first < due
}

fn body(world: &World) {
    a_connection_lives(world);
    a_connection_is_aborted(world);
    addresses_are_judged(world);
    timers_and_alarms_go_off(world);
    datagrams_go_unasked(world);
    small_parts_are_sent(world);
    attempts_fail(world);
}

const NEAR: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const FAR: [&str; 2] = ["192.0.2.2", "2001:db8::2"];

/// A thread with a stack of its own over one end of the in-memory NIC.
fn host<S: Service + Send + 'static>(port: Pipe, ips: [&str; 2], remote: S) -> Dataplane<Pipe, S> {
    let own = |ip: &str| OwnAddress { addr: ip.parse().unwrap(), prefix_len: if ip.contains(':') { 64 } else { 24 } };
    let at = |ip: &str, port: u16| SocketAddr::new(ip.parse().unwrap(), port);
    let tcp = |n: u16| TcpListener { listener: Listener(n), local: at(ips[usize::from(n)], 80), window_bytes: 60_000 };
    let udp = |n: u16| UdpListener { listener: Listener(2 + n), local: at(ips[usize::from(n)], 53) };
    let config = stack::Config {
        own: ips.into_iter().map(own).collect(),
        listeners: vec![udp(0), udp(1)],
        tcp: Some(TcpConfig {
            listeners: vec![tcp(0), tcp(1)],
            limits: TcpLimits { connections: 64, ..TcpLimits::default() },
            times: TcpTimes { syn_retransmissions: 0, ..TcpTimes::default() },
            secret: [3, 4],
            ..TcpConfig::default()
        }),
        claim: Claim { mode: ClaimMode::Silent, ..Claim::default() },
        seed: 7,
        ..stack::Config::default()
    };
    let remote = Mutex::new(Some(remote));
    Dataplane::start(
        vec![port],
        &dataplane::Config { idle: Idle::Block, ..dataplane::Config::default() },
        move |_, facts| Stack::new(config.clone(), facts),
        move |_| remote.lock().unwrap().take().expect("a service that does not panic"),
    )
    .unwrap()
}

fn on_our_stack(protected: bool) -> World {
    let (mut ours, mut theirs) = pipe::pair(&pipe::Config::default()).unwrap();
    let ((near_remote, near), (far_remote, far)) = (remote(), remote());
    let far_engine = host(theirs.remove(0), FAR, far_remote);
    let near_engine: Box<dyn std::any::Any> = match protected {
        false => Box::new(host(ours.remove(0), NEAR, near_remote)),
        true => {
            let (service, application) = protect(near_remote);
            Box::new((host(ours.remove(0), NEAR, service), application))
        }
    };
    let engines = (near_engine, far_engine);
    let at = |ips: [&str; 2], port| ips.map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
    let places = Places {
        tcp: at(FAR, 80),
        udp: [at(NEAR, 53), at(FAR, 53)],
        nobody: at(FAR, 81),
        // on the link, and behind a gateway that there is not
        nowhere: vec![addr("192.0.2.99:80"), addr("198.51.100.1:80"), addr("[2001:db8::99]:80")],
        silent: Vec::new(),
    };
    World { near, far, places, at_once: !protected, _engines: Box::new(engines) }
}

#[test]
fn the_api_on_our_own_stack() {
    body(&on_our_stack(false));
}

#[test]
fn the_api_of_a_protected_application_on_our_own_stack() {
    body(&on_our_stack(true));
}

/// A host that neighbours find and that has no TCP: nothing comes back.
#[test]
fn our_own_stack_gives_up_what_is_not_answered() {
    let (mut ours, mut theirs) = pipe::pair(&pipe::Config::default()).unwrap();
    let ((near_remote, near), (far_remote, far)) = (remote(), remote());
    let quiet = stack::Config {
        own: FAR.map(|ip| OwnAddress { addr: ip.parse().unwrap(), prefix_len: 24 }).to_vec(),
        claim: Claim { mode: ClaimMode::Silent, ..Claim::default() },
        ..stack::Config::default()
    };
    let far_remote = Mutex::new(Some(far_remote));
    let engines = (
        host(ours.remove(0), NEAR, near_remote),
        Dataplane::start(
            vec![theirs.remove(0)],
            &dataplane::Config { idle: Idle::Block, ..dataplane::Config::default() },
            move |_, facts| Stack::new(quiet.clone(), facts),
            move |_| far_remote.lock().unwrap().take().expect("a service that does not panic"),
        )
        .unwrap(),
    );
    let nowhere = Vec::new();
    let silent = FAR.map(|ip| SocketAddr::new(ip.parse().unwrap(), 80)).to_vec();
    let [v4, v6] = [addr("192.0.2.2:80"), addr("[2001:db8::2]:80")];
    let places = Places { tcp: [v4, v6], udp: [[v4, v6]; 2], nobody: [v4, v6], nowhere, silent };
    let world = World { near, far, places, at_once: true, _engines: Box::new(engines) };
    // all that the body does with those that are silent
    let only = World { places: Places { nobody: world.places.nobody, ..world.places.clone() }, ..world };
    for (n, to) in only.places.silent.iter().copied().enumerate() {
        an_attempt_is_not_answered(&only.near, to, 120 + n as u64);
    }
    // and a stack without TCP has no connections to ask for, but alarms all the same
    assert_eq!(only.far.call(move |calls| calls.connect(v4, None, 1)), Err(CallError::Unsupported));
    only.far.at(|calls, now| calls.alarm_set(3, Some(now)).unwrap());
    only.far.wait("the alarm", |happened| matches!(happened, Happened::Alarm(3, _)).then_some(()));
}

fn on_kernel_sockets(silent: Vec<SocketAddr>, nowhere: Vec<SocketAddr>, protected: bool) -> World {
    let ((near_remote, near), (far_remote, far)) = (remote(), remote());
    let far_engine = sockets_for(far_remote, true);
    let (near_engine, application) = match protected {
        false => (sockets_for(near_remote, false), None),
        true => {
            let (service, application) = protect(near_remote);
            (sockets_for(service, false), Some(application))
        }
    };
    let (here, there) = (near_engine.addresses(), far_engine.addresses());
    let nobody = ["127.0.0.1:0", "[::1]:0"].map(|at| {
        // free now, and for the moment of the test
        std::net::TcpListener::bind(at).unwrap().local_addr().unwrap()
    });
    let places =
        Places { tcp: [there[0], there[2]], udp: [[here[0], here[1]], [there[1], there[3]]], nobody, nowhere, silent };
    World { near, far, places, at_once: !protected, _engines: Box::new((near_engine, application, far_engine)) }
}

/// A thread over kernel sockets, with listeners for datagrams and perhaps for connections.
fn sockets_for<S: Service + Send + 'static>(remote: S, tcp: bool) -> sockets::Running {
    let mut endpoints = Vec::new();
    for (n, ip) in ["127.0.0.1", "::1"].into_iter().enumerate() {
        let address = SocketAddr::new(ip.parse().unwrap(), 0);
        let endpoint = |listener, transport| sockets::Endpoint {
            listener: Listener(listener),
            address,
            transport,
            window_bytes: None,
            backlog: None,
        };
        endpoints.extend(tcp.then(|| endpoint(n as u16, sockets::Transport::Tcp)));
        endpoints.push(endpoint(2 + n as u16, sockets::Transport::Udp));
    }
    let streams = sockets::Streams { connect_timeout: Duration::from_millis(400), ..sockets::Streams::default() };
    let config = sockets::Config { endpoints, streams, ..sockets::Config::default() };
    let remote = Mutex::new(Some(remote));
    let make = move |_| remote.lock().unwrap().take().expect("a service that does not panic");
    sockets::Engine::bind(config).unwrap().start(make).unwrap()
}

#[test]
fn the_api_on_kernel_sockets() {
    in_a_network(false);
}

#[test]
fn the_api_of_a_protected_application_on_kernel_sockets() {
    in_a_network(true);
}

fn in_a_network(protected: bool) {
    let lab = lab::Lab::new().unwrap();
    let host = lab.client();
    // a neighbour that the kernel believes in, and nobody is
    for (at, ip) in [("198.18.0.99", "ip"), ("2001:db8:18::99", "ip")] {
        host.run(&[ip, "neigh", "add", at, "lladdr", "02:00:00:00:00:99", "dev", "vc", "nud", "permanent"]).unwrap();
    }
    host.inside(|| {
        let silent = vec![addr("198.18.0.99:80"), addr("[2001:db8:18::99]:80")];
        let nowhere = vec![addr("203.0.113.1:80"), addr("[2001:db8:ffff::1]:80")];
        body(&on_kernel_sockets(silent, nowhere, protected));
    });
}
