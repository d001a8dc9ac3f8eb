//! Echo over UDP and TCP, against the API as it is.
//!
//!     cargo run --release -p embed --example echo -- --listen 127.0.0.1:7007
//!     echo hello | nc -N 127.0.0.1 7007          # and nc -u
//!
//! and over AF_XDP, as root, at an address that nobody has:
//!
//!     target/release/examples/echo --interface eth0 --own 192.0.2.77/24 --listen 192.0.2.77:7007
//!
//! Look at: how a datagram is answered where it lies; how what cannot be sent now stays, and with it the peer's window closed.

mod common;

use app::{Addresses, Connection, Datagram, DeadReason, Listener, Service, Streams};
use base::Instant;
use clap::Parser;
use embed::{Error, Server};
use sockets::BindError;
use std::net::SocketAddr;

/// How many ports are tried where the kernel is to choose one.
const PORTS: u32 = 20;

/// Echo over UDP and TCP.
#[derive(Parser)]
struct Options {
    /// Where to listen, over both
    #[arg(long, default_value = "127.0.0.1:7007")]
    listen: SocketAddr,
    #[command(flatten)]
    place: common::Place,
}

/// What is kept of a connection.
#[derive(Default)]
struct Client {
    /// what came and could not be sent back yet
    waiting: Vec<u8>,
    /// the peer has finished
    eof: bool,
}

/// One thread's service. A connection's cookie is its place.
#[derive(Default)]
struct Echo {
    clients: Vec<Client>,
    free: Vec<usize>,
}

impl Echo {
    /// Sends back what waits, opens the window by as much, and closes behind the last byte.
    fn send_back<C: Streams>(&mut self, calls: &mut C, connection: Connection, cookie: u64) {
        let client = &mut self.clients[cookie as usize];
        // none of these can fail here but for a connection that died in this cycle, which `dead` tells
        let taken = calls.send(connection, &client.waiting).unwrap_or(0);
        client.waiting.drain(..taken);
        let _ = calls.recv_done(connection, taken);
        if client.eof && client.waiting.is_empty() {
            let _ = calls.close(connection);
        }
    }
}

impl Service for Echo {
    fn datagrams(&mut self, _: Instant, _: Listener, burst: &mut [Datagram<'_>]) {
        for datagram in burst {
            if !common::may_be_a_server(&datagram.addresses) {
                datagram.reply(datagram.question().len());
            }
        }
    }

    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.clients.push(Client::default());
            self.clients.len() - 1
        });
        if calls.accept(connection, place as u64).is_err() {
            self.free.push(place);
        }
    }

    fn recv<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        self.clients[cookie as usize].waiting.extend_from_slice(bytes);
        self.send_back(calls, connection, cookie);
    }

    fn sent<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, cookie: u64, _: usize, _: usize) {
        self.send_back(calls, connection, cookie);
    }

    fn eof<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        self.clients[cookie as usize].eof = true;
        self.send_back(calls, connection, cookie);
    }

    fn dead(&mut self, _: Instant, _: Connection, cookie: u64, _: DeadReason) {
        self.clients[cookie as usize] = Client::default();
        self.free.push(cookie as usize);
    }

    fn name(&self) -> &'static str {
        "echo"
    }
}

/// Serves both at one port that the kernel chooses; at another one where somebody else takes it, or has it for the one of them.
fn start_anywhere(options: &Options) -> Result<Server, Box<dyn std::error::Error>> {
    let mut tries = PORTS;
    loop {
        let free = std::net::UdpSocket::bind(options.listen)?.local_addr()?;
        tries -= 1;
        match options.place.builder().udp(free).tcp(free).start(|_| Echo::default()) {
            Err(Error::Bind(BindError::InUse { .. })) if tries > 0 => {}
            started => return Ok(started?),
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    let listen = options.listen;
    let server = match listen.port() {
        0 => start_anywhere(&options)?,
        _ => options.place.builder().udp(listen).tcp(listen).start(|_| Echo::default())?,
    };
    common::say_ready(&server);
    server.until_signal()?;
    Ok(())
}
