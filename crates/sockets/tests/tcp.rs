//! The stream half over real sockets on loopback.

mod common;

use app::{DeadReason, Listener, PerSource};
use common::{PATIENCE, Seen, config, echo, start, total, until};
use sockets::{Config, Endpoint, Engine, Running, Streams, Transport};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::Receiver;
use std::time::Duration;

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn next(events: &Receiver<Seen>) -> Seen {
    events.recv_timeout(PATIENCE).expect("an event")
}

fn exchange(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    let mut got = vec![0; bytes.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, bytes);
}

fn streams(change: impl FnOnce(&mut Streams)) -> Config {
    let mut config = config("127.0.0.1:0", Transport::Tcp);
    change(&mut config.streams);
    config
}

/// The peer's end: end of file or a reset.
fn ended(stream: &mut TcpStream) -> Result<usize, ErrorKind> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).map_err(|error| error.kind())
}

/// How a connection ends that the server does not take, which may be before connect() returns.
fn turned_away(to: SocketAddr) -> ErrorKind {
    let taken = TcpStream::connect(to).map_err(|error| error.kind()).and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        ended(&mut stream)
    });
    taken.expect_err("no end of the connection")
}

/// Waits until the threads make no more cycles; one that is left may end what was begun.
fn until_rest(running: &Running) {
    until("rest", || {
        let cycles = total(running, |c| c.cycles.get());
        std::thread::sleep(Duration::from_millis(50));
        total(running, |c| c.cycles.get()) <= cycles + 4
    });
}

#[test]
fn echoes_pipelined_requests_over_both_families() {
    for bind in ["127.0.0.1:0", "[::1]:0"] {
        let (make, events) = echo();
        let (running, address) = start(config(bind, Transport::Tcp), make);
        let mut stream = connect(address);
        for n in 0..50u8 {
            exchange(&mut stream, &vec![b'a' + n % 26; 1 + usize::from(n) * 37]);
        }
        let Seen::Accepted(at) = next(&events) else { panic!("not accepted first") };
        assert_eq!((at.local, at.peer), (address, stream.local_addr().unwrap()));
        assert_eq!(total(&running, |c| c.accepted.get()), 1);
    }
}

#[test]
fn a_stream_larger_than_every_buffer_comes_back_whole() {
    let (make, _events) = echo();
    let (running, address) = start(streams(|s| (s.window_bytes, s.queue_bytes) = (5_000, 3_001)), make);
    let mut stream = connect(address);
    let sent: Vec<u8> = (0..3_000_000u32).map(|n| b'a' + (n % 23) as u8).collect();
    let mut writer = stream.try_clone().unwrap();
    let copy = sent.clone();
    let writing = std::thread::spawn(move || writer.write_all(&copy).unwrap());
    let mut got = vec![0; sent.len()];
    stream.read_exact(&mut got).unwrap();
    writing.join().unwrap();
    assert!(got == sent);
    assert_eq!(total(&running, |c| c.stream_received.get()), sent.len() as u64);
    // counted once the call has returned, which may be after the peer has the bytes
    until("the count", || total(&running, |c| c.stream_sent.get()) == sent.len() as u64);
}

#[test]
fn connections_can_be_refused_until_the_start_while_the_port_is_held() {
    for threads in [1, 2] {
        // a port that is free, by an address that no other test has
        let free = std::net::TcpListener::bind(("127.0.0.77", 0)).unwrap().local_addr().unwrap().to_string();
        let refuse_until_started = vec![free.parse().unwrap()];
        let config = Config { refuse_until_started, threads, ..config(&free, Transport::Tcp) };
        let engine = Engine::bind(config).unwrap();
        let address = engine.addresses()[0];
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let (make, _events) = echo();
        let running = engine.start(make).unwrap();
        for _ in 0..8 {
            exchange(&mut connect(address), b"now it is");
        }
        running.stop();
    }
}

#[test]
fn those_of_other_endpoints_wait_meanwhile_also_at_sockets_that_were_inherited() {
    let [refused, held] = ["127.0.0.79", "127.0.0.80"].map(|at| std::net::TcpListener::bind((at, 0)).unwrap());
    let [refused, held] = [refused, held].map(|listener| listener.local_addr().unwrap());
    let config = || {
        let mut config = config(&refused.to_string(), Transport::Tcp);
        config.endpoints.push(sockets::Endpoint { address: held, ..config.endpoints[0] });
        Config { refuse_until_started: vec![refused], ..config }
    };
    let first = Engine::bind(config()).unwrap();
    let mut waits = vec![connect(held)];
    let left: Vec<_> = first.sockets().map(|socket| socket.try_clone_to_owned().unwrap()).collect();
    drop(first);
    waits.push(connect(held));
    let second = Engine::bind_with(config(), left).unwrap();
    waits.push(connect(held));
    assert_eq!(TcpStream::connect(refused).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let (make, _events) = echo();
    let running = second.start(make).unwrap();
    waits.push(connect(refused));
    waits.iter_mut().for_each(|stream| exchange(stream, b"at last"));
    running.stop();
}

#[test]
fn half_close_is_an_event_and_writing_goes_on() {
    let (make, events) = echo();
    let (running, address) = start(config("127.0.0.1:0", Transport::Tcp), make);
    let mut stream = connect(address);
    exchange(&mut stream, b"hello");
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(ended(&mut stream), Ok(3));
    assert!(matches!(next(&events), Seen::Accepted(_)));
    assert_eq!((next(&events), next(&events)), (Seen::Eof, Seen::Dead(DeadReason::Closed)));
    until("an empty table", || total(&running, |c| c.connections.get()) == 0);
}

#[test]
fn abort_resets_and_close_lingers_for_the_peer() {
    let (make, events) = echo();
    let (_running, address) = start(config("127.0.0.1:0", Transport::Tcp), make);
    let mut stream = connect(address);
    stream.write_all(b"A").unwrap();
    assert_eq!(ended(&mut stream), Err(ErrorKind::ConnectionReset));
    assert!(matches!(next(&events), Seen::Accepted(_)));
    assert_eq!(next(&events), Seen::Dead(DeadReason::Aborted));
    let mut stream = connect(address);
    stream.write_all(b"C").unwrap();
    assert_eq!(ended(&mut stream), Ok(0));
    drop(stream);
    assert!(matches!(next(&events), Seen::Accepted(_)));
    assert_eq!(next(&events), Seen::Dead(DeadReason::Closed));
}

#[test]
fn a_peer_that_never_finishes_is_cut_off_after_the_linger() {
    let (make, events) = echo();
    let (running, address) = start(streams(|s| s.linger = Duration::from_millis(50)), make);
    let mut stream = connect(address);
    stream.write_all(b"C").unwrap();
    assert_eq!(ended(&mut stream), Ok(0));
    assert!(matches!(next(&events), Seen::Accepted(_)));
    assert_eq!(next(&events), Seen::Dead(DeadReason::TimedOut));
    assert_eq!(total(&running, |c| c.linger_expired.get()), 1);
}

#[test]
fn a_reset_by_the_peer_is_told() {
    let (make, events) = echo();
    let (_running, address) = start(config("127.0.0.1:0", Transport::Tcp), make);
    let mut stream = connect(address);
    exchange(&mut stream, b"hello");
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    assert!(matches!(next(&events), Seen::Accepted(_)));
    assert_eq!(next(&events), Seen::Dead(DeadReason::Reset));
}

#[test]
fn timers_fire_once_and_not_early() {
    let (make, events) = echo();
    let (_running, address) = start(config("127.0.0.1:0", Transport::Tcp), make);
    let mut stream = connect(address);
    assert!(matches!(next(&events), Seen::Accepted(_)));
    // else what follows may be read in the cycle that accepts, whose time was before
    exchange(&mut stream, b"hello");
    let set = std::time::Instant::now();
    stream.write_all(b"T").unwrap();
    let mut got = [0; 4];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"tick");
    assert!(set.elapsed() >= Duration::from_millis(30));
    assert_eq!(next(&events), Seen::Timer);
    assert!(events.recv_timeout(Duration::from_millis(80)).is_err());
}

#[test]
fn a_slow_reader_is_bounded_and_does_not_hold_up_others() {
    let (make, _events) = echo();
    let (running, address) = start(streams(|s| s.queue_bytes = 64 << 10), make);
    let mut slow = connect(address);
    slow.write_all(b"F").unwrap();
    // the flood fills the kernel's buffers and then the connection's own queue, and stands still
    let sent = || total(&running, |c| c.stream_sent.get());
    let mut last = 0;
    until("a standstill", || {
        std::thread::sleep(Duration::from_millis(50));
        std::mem::replace(&mut last, sent()) == sent() && last > 0
    });
    let mut other = connect(address);
    other.write_all(b"x").unwrap();
    assert_eq!(other.read(&mut [0; 16]).unwrap(), 16);
    let mut some = vec![0; 1 << 20];
    slow.read_exact(&mut some).unwrap();
    assert!(some.iter().all(|&b| b == b'f'));
}

#[test]
fn all_connections_together_queue_no_more_than_the_budget() {
    let (make, _events) = echo();
    let (running, address) = start(streams(|s| (s.queue_bytes, s.budget_bytes) = (64 << 10, 64 << 10)), make);
    let mut slow = connect(address);
    slow.write_all(b"F").unwrap();
    // a part is not for who has much queued
    until("the end of the budget", || total(&running, |c| c.budget_spent.get()) > 0);
    // who waits costs nothing
    until_rest(&running);
    // and who reads is answered beside it
    let mut other = connect(address);
    other.write_all(b"x").unwrap();
    let mut some = vec![0; 200 << 10];
    other.read_exact(&mut some).unwrap();
    assert!(some.iter().all(|&b| b == b'f'));
    drop(other);
    // what waited goes on when it is read
    let mut some = vec![0; 4 << 20];
    slow.read_exact(&mut some).unwrap();
    assert!(some.iter().all(|&b| b == b'f'));
}

#[test]
fn an_unopened_window_stops_reading() {
    let (make, _events) = echo();
    let (running, address) = start(streams(|s| s.window_bytes = 1000), make);
    let mut stream = connect(address);
    stream.write_all(&vec![b'H'; 50_000]).unwrap();
    until("the window's bytes", || total(&running, |c| c.stream_received.get()) == 1000);
    // and costs nothing meanwhile
    until_rest(&running);
    assert_eq!(total(&running, |c| c.stream_received.get()), 1000);
}

#[test]
fn limits_turn_away_and_places_are_used_again() {
    let (make, _events) = echo();
    let (running, address) = start(streams(|s| s.connections = 3), make);
    for round in 1..=4 {
        let mut kept: Vec<_> = (0..3).map(|_| connect(address)).collect();
        kept.iter_mut().for_each(|stream| exchange(stream, b"in"));
        assert_eq!(turned_away(address), ErrorKind::ConnectionReset);
        assert_eq!(total(&running, |c| c.refused_full.get()), round);
        drop(kept);
        until("an empty table", || total(&running, |c| c.connections.get()) == 0);
    }
}

#[test]
fn a_source_has_its_own_limit() {
    let (make, _events) = echo();
    let mut config = streams(|s| s.per_source = 2);
    config.endpoints[0].address = "0.0.0.0:0".parse().unwrap();
    let (running, address) = start(config, make);
    let at = SocketAddr::new("127.0.0.1".parse().unwrap(), address.port());
    let mut kept: Vec<_> = (0..2).map(|_| connect(at)).collect();
    kept.iter_mut().for_each(|stream| exchange(stream, b"in"));
    assert_eq!(turned_away(at), ErrorKind::ConnectionReset);
    assert_eq!(total(&running, |c| c.refused_source.get()), 1);
    // another source address is another account
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&"127.0.0.2:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    socket.connect(&at.into()).unwrap();
    let mut other: TcpStream = socket.into();
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    exchange(&mut other, b"in");
}

#[test]
fn each_service_counts_its_own_connections_of_a_source() {
    let (make, _events) = echo();
    let mut config = streams(|s| s.per_source = 1);
    let first = config.endpoints[0].listener;
    let second = Listener(first.0 + 1);
    config.endpoints.push(Endpoint { listener: second, ..config.endpoints[0] });
    config.streams.services = PerSource::new(vec![(first, 2), (second, 3)]);
    let engine = Engine::bind(config).unwrap();
    let addresses = engine.addresses().to_vec();
    let running = engine.start(make).unwrap();
    let mut kept = Vec::new();
    for (address, most) in addresses.into_iter().zip([2, 3]) {
        for _ in 0..most {
            let mut stream = connect(address);
            exchange(&mut stream, b"in");
            kept.push(stream);
        }
        assert_eq!(turned_away(address), ErrorKind::ConnectionReset);
    }
    assert_eq!(total(&running, |c| c.refused_source.get()), 2);
    // one that goes makes room for its own service alone
    drop(kept.remove(0));
    until("an end", || total(&running, |c| c.connections.get()) == 4);
}

#[test]
fn many_connections_on_several_threads() {
    let (make, _events) = echo();
    let mut config = streams(|s| s.per_source = 1000);
    config.threads = 2;
    let (running, address) = start(config, make);
    let mut all: Vec<_> = (0..300).map(|_| connect(address)).collect();
    for round in 0..3u8 {
        for stream in &mut all {
            stream.write_all(&[b'a' + round; 100]).unwrap();
        }
        for stream in &mut all {
            let mut got = [0; 100];
            stream.read_exact(&mut got).unwrap();
            assert_eq!(got, [b'a' + round; 100]);
        }
    }
    assert_eq!(total(&running, |c| c.connections.get()), 300);
    running.stop();
    assert_eq!(ended(&mut all[0]), Err(ErrorKind::ConnectionReset));
}

#[test]
fn a_panic_ends_the_threads_connections_and_new_ones_are_served() {
    let (make, _events) = echo();
    let (running, address) = start(config("127.0.0.1:0", Transport::Tcp), make);
    let mut bystander = connect(address);
    exchange(&mut bystander, b"hello");
    connect(address).write_all(b"P").unwrap();
    until("the panic", || total(&running, |c| c.panics.get()) == 1);
    assert!(ended(&mut bystander).is_err());
    exchange(&mut connect(address), b"again");
}

#[test]
fn a_service_without_streams_rejects() {
    let (running, address) = start(config("127.0.0.1:0", Transport::Tcp), |_| common::Reverse);
    assert_eq!(turned_away(address), ErrorKind::ConnectionReset);
    until("the rejection", || total(&running, |c| c.rejected.get()) == 1);
}
