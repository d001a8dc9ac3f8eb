//! How connections end that do not end in order.

mod common;

use app::{Addresses, Connection, DeadReason, Listener, Service, Streams};
use base::Instant;
use common::{PATIENCE, config, is_read_out, kernel_has, until};
use sockets::{Config, Engine, Running, Transport};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const WINDOW_BYTES: usize = 1000;
/// Many times what the kernel keeps of a connection here.
const ANSWER_BYTES: usize = 1 << 20;
const BUFFER_BYTES: usize = 16 << 10;
const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Accepted,
    Received(usize),
    Eof,
    Dead(DeadReason),
}

/// Gives nothing back and leaves what the peer has finished open. A first byte of 'W' waits for a word of the test, 'A' is
/// answered, 'C' is and closes.
struct Holds {
    seen: Sender<Seen>,
    word: Receiver<()>,
}

impl Service for Holds {
    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        calls.accept(connection, 0).unwrap();
        self.seen.send(Seen::Accepted).unwrap();
    }

    fn recv<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, _: u64, bytes: &[u8]) {
        self.seen.send(Seen::Received(bytes.len())).unwrap();
        match bytes[0] {
            b'W' => self.word.recv_timeout(PATIENCE).unwrap(),
            b'A' | b'C' => {
                assert_eq!(calls.send(connection, &[b'a'; ANSWER_BYTES]), Ok(ANSWER_BYTES));
                if bytes[0] == b'C' {
                    calls.close(connection).unwrap();
                }
            }
            _ => {}
        }
    }

    fn eof<C: Streams>(&mut self, _: Instant, _: &mut C, _: Connection, _: u64) {
        self.seen.send(Seen::Eof).unwrap();
    }

    fn dead(&mut self, _: Instant, _: Connection, _: u64, reason: DeadReason) {
        // at the end nobody may listen any more
        let _ = self.seen.send(Seen::Dead(reason));
    }
}

struct Server {
    address: SocketAddr,
    seen: Receiver<Seen>,
    word: Sender<()>,
    _running: Running,
}

impl Server {
    fn start(change: impl FnOnce(&mut Config)) -> Server {
        let mut config = config("127.0.0.1:0", Transport::Tcp);
        (config.streams.window_bytes, config.streams.queue_bytes) = (WINDOW_BYTES, ANSWER_BYTES);
        change(&mut config);
        let ((tell, seen), (word, hear)) = (channel(), channel());
        let holds = std::sync::Mutex::new(Some(Holds { seen: tell, word: hear }));
        let engine = Engine::bind(config).unwrap();
        let address = engine.addresses()[0];
        for listener in engine.sockets() {
            // connections have it from their listener
            let listener = socket2::SockRef::from(&listener);
            listener.set_recv_buffer_size(BUFFER_BYTES).unwrap();
            listener.set_send_buffer_size(BUFFER_BYTES).unwrap();
        }
        let running = engine.start(move |_| holds.lock().unwrap().take().unwrap()).unwrap();
        Server { address, seen, word, _running: running }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(self.next(), Seen::Accepted);
        stream
    }

    fn next(&self) -> Seen {
        self.seen.recv_timeout(PATIENCE).expect("an event")
    }

    /// Waits until so much was delivered.
    fn received(&self, mut bytes: usize) {
        while bytes > 0 {
            let Seen::Received(some) = self.next() else { panic!("something else came") };
            bytes -= some;
        }
    }

    /// Resets the connection, and waits until the server's kernel has taken that in.
    fn reset(&self, stream: TcpStream) {
        let me = stream.local_addr().unwrap();
        assert!(kernel_has(self.address, me));
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        drop(stream);
        until("the reset", || !kernel_has(self.address, me));
    }
}

#[test]
fn a_reset_behind_a_closed_window_is_told() {
    let server = Server::start(|_| {});
    // with and without bytes that the window has kept in the kernel
    for bytes in [WINDOW_BYTES, 2 * WINDOW_BYTES] {
        let mut stream = server.connect();
        stream.write_all(&vec![b'x'; bytes]).unwrap();
        server.received(WINDOW_BYTES);
        server.reset(stream);
        assert_eq!(server.next(), Seen::Dead(DeadReason::Reset));
    }
}

#[test]
fn a_reset_behind_the_peers_end_is_told() {
    let server = Server::start(|_| {});
    let stream = server.connect();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.next(), Seen::Eof);
    server.reset(stream);
    assert_eq!(server.next(), Seen::Dead(DeadReason::Reset));
}

#[test]
fn what_came_before_a_reset_is_told_before_it() {
    let server = Server::start(|_| {});
    let [mut first, mut other] = [(); 2].map(|()| server.connect());
    other.write_all(b"W").unwrap();
    server.received(1);
    // both come while the thread waits
    first.write_all(&[b'x'; WINDOW_BYTES / 2]).unwrap();
    server.reset(first);
    server.word.send(()).unwrap();
    server.received(WINDOW_BYTES / 2);
    assert_eq!(server.next(), Seen::Dead(DeadReason::Reset));
}

#[test]
fn who_sends_all_before_he_reads_has_the_answer_of_a_closed_connection() {
    let server = Server::start(|config| config.streams.linger = PATIENCE);
    let mut stream = server.connect();
    // more than the buffers of both ends hold
    stream.write_all(&[b'C'; 8 << 20]).unwrap();
    // and his end is none of the answer's
    stream.shutdown(Shutdown::Write).unwrap();
    let me = stream.local_addr().unwrap();
    until("the end of reading", || is_read_out(server.address, me));
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer == [b'a'; ANSWER_BYTES]);
    server.received(WINDOW_BYTES);
    assert_eq!(server.next(), Seen::Dead(DeadReason::Closed));
}

#[test]
fn who_leaves_his_window_closed_is_given_up() {
    let server = Server::start(|config| config.streams.stalled = SECOND);
    let mut stream = server.connect();
    stream.write_all(b"A").unwrap();
    server.received(1);
    assert_eq!(server.next(), Seen::Dead(DeadReason::TimedOut));
}

#[test]
fn who_is_gone_is_found_out_and_who_is_silent_stays() {
    let server = Server::start(|config| {
        let streams = &mut config.streams;
        (streams.keepalive, streams.keepalive_answer, streams.stalled) = (SECOND, SECOND, SECOND);
    });
    let (mut silent, gone) = (server.connect(), server.connect());
    // a program that takes nothing at all: who was asked first has answered when this one has not
    socket2::SockRef::from(&gone).attach_filter(&[socket2::SockFilter::new(0x06, 0, 0, 0)]).unwrap();
    assert_eq!(server.next(), Seen::Dead(DeadReason::TimedOut));
    silent.write_all(b"x").unwrap();
    assert_eq!(server.next(), Seen::Received(1));
}
