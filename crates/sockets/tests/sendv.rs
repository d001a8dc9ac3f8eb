//! Objects sent from where they lie, over real sockets on loopback.

mod common;

use app::DeadReason;
use common::objects::{HEAD, objects, pattern, version};
use common::{PATIENCE, config, start, total, until};
use sockets::{Config, Streams, Transport};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn tcp(change: impl FnOnce(&mut Streams)) -> Config {
    let mut config = config("127.0.0.1:0", Transport::Tcp);
    change(&mut config.streams);
    config
}

fn small(number: u8) -> Vec<u8> {
    [HEAD, &pattern(number, 1000)].concat()
}

#[track_caller]
fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == bytes, "{} bytes differ", bytes.len());
}

#[test]
fn a_head_and_its_object_leave_in_one_call() {
    for bind in ["127.0.0.1:0", "[::1]:0"] {
        let (make, _, _deaths) = objects(&version(1, 100));
        let (running, address) = start(config(bind, Transport::Tcp), make);
        let mut stream = connect(address);
        for _ in 0..100 {
            stream.write_all(b"s").unwrap();
            expect(&mut stream, &small(1));
        }
        until("the count", || total(&running, |c| c.stream_sent.get()) == 100 * small(1).len() as u64);
        assert_eq!(total(&running, |c| c.stream_writes.get()), 100);
    }
}

#[test]
fn ten_thousand_requests_pipelined_on_one_connection() {
    let (make, _, _deaths) = objects(&version(1, 100));
    let (running, address) = start(tcp(|s| (s.window_bytes, s.queue_ranges, s.queue_bytes) = (64, 7, 30)), make);
    let mut stream = connect(address);
    let mut writer = stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || writer.write_all(&[b's'; 10_000]).unwrap());
    let one = small(1);
    for _ in 0..10_000 {
        expect(&mut stream, &one);
    }
    writing.join().unwrap();
    // answers that wait for each other leave together
    assert!(total(&running, |c| c.stream_writes.get()) < 10_000);
}

#[test]
fn an_object_larger_than_every_buffer_arrives_whole_at_a_slow_reader() {
    let bytes = 24 << 20;
    let content = version(3, bytes);
    let (make, _, _deaths) = objects(&content);
    let (running, address) = start(tcp(|_| {}), make);
    let mut stream = connect(address);
    stream.write_all(b"bsts").unwrap();
    // the kernel's buffers fill, and others are served meanwhile
    until("the first bytes", || total(&running, |c| c.stream_sent.get()) > 0);
    let mut other = connect(address);
    for _ in 0..10 {
        other.write_all(b"s").unwrap();
        expect(&mut other, &small(3));
    }
    assert!(total(&running, |c| c.stream_sent.get()) < bytes as u64);
    let big = pattern(3, bytes);
    expect(&mut stream, &big);
    expect(&mut stream, &small(3));
    for part in big.chunks_exact(bytes / 8) {
        expect(&mut stream, part);
        expect(&mut stream, &pattern(3, 1000)[990..]);
    }
    expect(&mut stream, &small(3));
}

#[test]
fn ranges_outside_their_object_are_refused_and_nothing_is_sent() {
    let (make, _, _deaths) = objects(&version(1, 100));
    let (_running, address) = start(tcp(|_| {}), make);
    let mut stream = connect(address);
    stream.write_all(b"ws").unwrap();
    expect(&mut stream, &small(1));
}

#[test]
fn shutdown_finishes_our_half_and_reading_goes_on() {
    let (make, _, _deaths) = objects(&version(1, 5 << 20));
    let (running, address) = start(tcp(|_| {}), make);
    let mut stream = connect(address);
    stream.write_all(b"bd").unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert!(all == pattern(1, 5 << 20), "what was queued comes before the end");
    // the other half is open
    for received in 3..10 {
        stream.write_all(b"n").unwrap();
        until("the byte", || total(&running, |c| c.stream_received.get()) == received);
    }
}

#[test]
fn both_halves_finished_end_the_connection() {
    let (make, _, deaths) = objects(&version(1, 100));
    let (running, address) = start(tcp(|_| {}), make);
    let mut stream = connect(address);
    stream.write_all(b"sd").unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(all, small(1));
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(deaths.recv_timeout(PATIENCE), Ok(DeadReason::Closed));
    until("an empty table", || total(&running, |c| c.connections.get()) == 0);
}

#[test]
fn a_reset_in_the_middle_releases_what_was_queued() {
    let content = version(1, 64 << 20);
    let (make, current, deaths) = objects(&content);
    let (running, address) = start(tcp(|_| {}), make);
    let mut stream = connect(address);
    stream.write_all(b"bbb").unwrap();
    stream.read_exact(&mut [0; 1000]).unwrap();
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    assert_eq!(deaths.recv_timeout(PATIENCE), Ok(DeadReason::Reset));
    // the engine holds nothing of it once it is retired
    *current.lock().unwrap() = version(2, 1);
    content.retire();
    running.wake();
    until("the release", || Arc::strong_count(&content) == 1);
}

#[test]
fn a_slow_peer_gets_all_that_was_queued_before_the_close() {
    let bytes = 24 << 20;
    let (make, _, deaths) = objects(&version(1, bytes));
    let (linger, pause) = (Duration::from_secs(8), Duration::from_millis(1100));
    let (running, address) = start(tcp(|s| s.linger = linger), make);
    // the kernel is to hold little of it: from when it has all, the peer's end is waited for by time alone
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    socket.connect(&address.into()).unwrap();
    let mut stream: TcpStream = socket.into();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"bc").unwrap();
    // each pause is much shorter than the linger, all of them are longer
    for part in pattern(1, bytes).chunks_exact(bytes / 8) {
        std::thread::sleep(pause);
        expect(&mut stream, part);
    }
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    drop(stream);
    assert_eq!(deaths.recv_timeout(PATIENCE), Ok(DeadReason::Closed));
    assert_eq!(total(&running, |c| c.linger_expired.get()), 0);
}

#[test]
fn what_the_kernel_has_taken_arrives_after_the_linger() {
    let (make, _, deaths) = objects(&version(1, 100));
    let (running, address) = start(tcp(|s| s.linger = Duration::from_millis(50)), make);
    let mut stream = connect(address);
    stream.write_all(b"sc").unwrap();
    assert_eq!(deaths.recv_timeout(PATIENCE), Ok(DeadReason::TimedOut));
    assert_eq!(total(&running, |c| c.linger_expired.get()), 1);
    expect(&mut stream, &small(1));
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_peer_that_takes_nothing_is_reset_after_the_linger() {
    let (make, _, deaths) = objects(&version(1, 64 << 20));
    let (running, address) = start(tcp(|s| s.linger = Duration::from_millis(50)), make);
    let mut stream = connect(address);
    stream.write_all(b"bc").unwrap();
    assert_eq!(deaths.recv_timeout(PATIENCE), Ok(DeadReason::TimedOut));
    assert_eq!(total(&running, |c| c.linger_expired.get()), 1);
    assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_replaced_version_is_sent_to_its_end() {
    let old = version(1, 16 << 20);
    let (make, current, _deaths) = objects(&old);
    let (running, address) = start(tcp(|_| {}), make);
    let mut stream = connect(address);
    stream.write_all(b"b").unwrap();
    until("the first bytes", || total(&running, |c| c.stream_sent.get()) > 0);
    *current.lock().unwrap() = version(2, 10);
    old.retire();
    stream.write_all(b"s").unwrap();
    running.wake();
    expect(&mut stream, &pattern(1, 16 << 20));
    expect(&mut stream, &small(2));
    until("the release", || Arc::strong_count(&old) == 1);
    assert_eq!(total(&running, |c| c.drain_expired.get()), 0);
}

#[test]
fn who_never_reads_is_cut_off_when_the_drain_is_over() {
    let old = version(1, 64 << 20);
    let (make, current, deaths) = objects(&old);
    let (running, address) = start(tcp(|_| {}), make);
    let (mut reader, mut idle) = (connect(address), connect(address));
    reader.write_all(b"b").unwrap();
    idle.write_all(b"s").unwrap();
    expect(&mut idle, &small(1));
    until("the first bytes", || total(&running, |c| c.stream_sent.get()) > 2000);
    *current.lock().unwrap() = version(2, 10);
    old.retire();
    running.wake();
    old.expire();
    running.wake();
    assert_eq!(deaths.recv_timeout(PATIENCE), Ok(DeadReason::Aborted));
    assert_eq!(total(&running, |c| c.drain_expired.get()), 1);
    until("the release", || Arc::strong_count(&old) == 1);
    let mut all = Vec::new();
    assert_eq!(reader.read_to_end(&mut all).map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
    assert!(pattern(1, 64 << 20).starts_with(&all), "what had arrived is right");
    // a connection that holds nothing of it goes on
    idle.write_all(b"s").unwrap();
    expect(&mut idle, &small(2));
}

#[test]
fn a_drain_finishes_answers_and_closes_what_is_idle() {
    let content = version(1, 16 << 20);
    let (make, _, _deaths) = objects(&content);
    let (running, address) = start(tcp(|_| {}), make);
    let (mut busy, mut idle, mut unused) = (connect(address), connect(address), connect(address));
    idle.write_all(b"s").unwrap();
    expect(&mut idle, &small(1));
    busy.write_all(b"b").unwrap();
    until("all three", || total(&running, |c| c.accepted.get()) == 3);
    until("the first bytes", || total(&running, |c| c.stream_sent.get()) > 2000);
    running.drain();
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
    until("the listener to be closed", || TcpStream::connect(address).is_err());
    // a first request under way is answered, and is the last
    unused.write_all(b"s").unwrap();
    expect(&mut unused, &small(1));
    assert_eq!(unused.read(&mut [0; 1]).unwrap(), 0);
    expect(&mut busy, &pattern(1, 16 << 20));
    assert_eq!(busy.read(&mut [0; 1]).unwrap(), 0);
    drop((idle, unused, busy));
    until("an empty table", || total(&running, |c| c.connections.get()) == 0);
    running.stop();
}

#[test]
fn an_endpoint_has_a_window_of_its_own() {
    let (make, _events) = common::echo();
    let mut config = tcp(|s| s.window_bytes = 10_000);
    config.endpoints[0].window_bytes = Some(1000);
    let (running, address) = start(config, make);
    let mut stream = connect(address);
    stream.write_all(&vec![b'H'; 50_000]).unwrap();
    until("the window's bytes", || total(&running, |c| c.stream_received.get()) == 1000);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(total(&running, |c| c.stream_received.get()), 1000);
}
