//! Urgent data (RFC 9293 section 3.8.5) is data like any other (RFC 6093 section 6).

mod common;

use app::{Addresses, Connection, Listener, Service, Streams};
use base::Instant;
use common::{PATIENCE, config, start};
use sockets::Transport;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// Echoes what comes. At "hold" it does not come back until it is let go; "dial" has it ask for a connection to an address.
struct Held {
    inside: Sender<()>,
    go: Arc<Mutex<Receiver<()>>>,
    dials: SocketAddr,
}

impl Service for Held {
    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        calls.accept(connection, 0).unwrap();
    }

    fn recv<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, _: u64, bytes: &[u8]) {
        match bytes {
            b"hold" => {
                self.inside.send(()).unwrap();
                self.go.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            }
            b"dial" => drop(calls.connect(self.dials, None, 0).unwrap()),
            _ => assert_eq!(calls.send(connection, bytes), Ok(bytes.len())),
        }
        calls.recv_done(connection, bytes.len()).unwrap();
    }
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn echoed(stream: &mut TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    stream.read_exact(&mut got).unwrap_or_else(|error| panic!("{error}, with {:?}", got.escape_ascii().to_string()));
    assert_eq!(got, bytes);
}

#[test]
fn urgent_data_stands_in_the_stream_and_holds_up_nothing_behind_it() {
    let peer = TcpListener::bind("127.0.0.1:0").unwrap();
    let ((inside, is_inside), (let_go, go)) = (channel(), channel());
    let (go, dials) = (Arc::new(Mutex::new(go)), peer.local_addr().unwrap());
    let make = move |_| Held { inside: inside.clone(), go: go.clone(), dials };
    let (_running, address) = start(config("127.0.0.1:0", Transport::Tcp), make);
    let mut holder = patient(TcpStream::connect(address).unwrap());
    let accepted = patient(TcpStream::connect(address).unwrap());
    holder.write_all(b"dial").unwrap();
    for mut stream in [accepted, patient(peer.accept().unwrap().0)] {
        // what the kernel knew of it from the start was read
        stream.write_all(b"first").unwrap();
        echoed(&mut stream, b"first");
        holder.write_all(b"hold").unwrap();
        is_inside.recv_timeout(PATIENCE).unwrap();
        // told of in one event, if it arrives in time, and divided by the kernel all the same
        stream.write_all(b"abc").unwrap();
        assert_eq!(socket2::SockRef::from(&stream).send_out_of_band(b"d").unwrap(), 1);
        stream.write_all(b"ef").unwrap();
        let_go.send(()).unwrap();
        echoed(&mut stream, b"abcdef");
    }
}
