//! A client: connections that each send a message, wait until it has come back, and send it again.
//!
//!     cargo run --release -p embed --example client -- --to 127.0.0.1:7007 --connections 10 --count 1000
//!
//! against the example `echo`; and over AF_XDP, as root:
//!
//!     target/release/examples/client --interface eth0 --own 192.0.2.78/24 --to 192.0.2.77:7007
//!
//! Look at: dialling from the start; a service without a listener; a message that finds no room for all of it, and goes on when there is some;
//! marks, by which it is known when it was taken; a timer that gives up; results handed to another thread.

mod common;

use app::{CallError, DeadReason, Waker};
use base::Instant;
use clap::Parser;
use kit::{Event, Hub, Line, Talk, With};
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// While there is no address to dial from, it is tried so often.
const AGAIN: Duration = Duration::from_millis(100);

/// A client of an echo server.
#[derive(Parser)]
struct Options {
    /// The server
    #[arg(long)]
    to: SocketAddr,
    /// Connections at one time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Messages of each
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Bytes of a message
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    bytes: u32,
    /// Milliseconds without an answer after which a connection is given up
    #[arg(long, default_value_t = 5000)]
    patience_ms: u64,
    #[command(flatten)]
    place: common::Place,
}

/// What is to be done, and what was.
struct Plan {
    to: SocketAddr,
    connections: u32,
    count: u32,
    message: Vec<u8>,
    patience: Duration,
    results: Sender<Result<Vec<Duration>, String>>,
}

/// One connection.
struct Asker {
    begun: Instant,
    /// bytes of the message that were sent, and that have come back
    sent: usize,
    back: usize,
    taken: u64,
    times: Vec<Duration>,
}

impl Asker {
    fn ask(&mut self, me: Line, with: &mut With<'_, Asker>) {
        (self.begun, self.sent, self.back) = (with.now, 0, 0);
        Asker::wait(me, with);
        self.send(me, with);
    }

    /// Sends what was not sent yet of the message, as much as there is room for.
    fn send(&mut self, me: Line, with: &mut With<'_, Asker>) {
        let message = std::mem::take(&mut with.shared.message);
        self.sent += with.send(me, &message[self.sent..]);
        if self.sent == message.len() {
            with.mark(me, self.times.len() as u64);
        }
        with.shared.message = message;
    }

    /// From now on as long as there is patience.
    fn wait(me: Line, with: &mut With<'_, Asker>) {
        let until = with.now + with.shared.patience;
        // gone only if it died in this cycle, which is told
        let _ = with.timer(me, Some(until));
    }

    /// What has come is part of the message: it need not be there as a whole before the peer may send more.
    fn hear(&mut self, me: Line, with: &mut With<'_, Asker>) {
        let (bytes, before) = (with.bytes(me).len(), self.back);
        self.back += bytes;
        if self.back > self.sent || *with.bytes(me) != with.shared.message[before..self.back] {
            self.end(with, Err("other bytes came back".into()));
            return with.abort(me);
        }
        with.consume(me, bytes);
        if self.back < with.shared.message.len() {
            return Asker::wait(me, with);
        }
        self.times.push(with.now - self.begun);
        if self.times.len() < with.shared.count as usize {
            self.ask(me, with);
        } else {
            with.close(me);
        }
    }

    /// Dials what is still to be dialled.
    fn dial_all(with: &mut With<'_, Asker>) {
        while with.shared.connections > 0 {
            let asker = Asker { begun: with.now, sent: 0, back: 0, taken: 0, times: Vec::new() };
            match with.dial(with.shared.to, asker) {
                Ok(_) => with.shared.connections -= 1,
                Err(CallError::NoSuchAddress) => {
                    // the own address is still looked for another holder (seconds, RFC 5227)
                    let _ = with.alarm(0, Some(with.now + AGAIN));
                    return;
                }
                Err(error) => {
                    with.shared.connections -= 1;
                    let _ = with.shared.results.send(Err(error.to_string()));
                }
            }
        }
    }

    fn end(&mut self, with: &mut With<'_, Asker>, result: Result<Vec<Duration>, String>) {
        // main may have seen enough
        let _ = with.shared.results.send(result);
    }
}

impl Talk for Asker {
    type Shared = Plan;

    fn begin(_: &mut Plan, waker: &Waker) {
        waker.wake();
    }

    fn woken(with: &mut With<'_, Asker>) {
        Asker::dial_all(with);
    }

    fn alarm(with: &mut With<'_, Asker>, _: u64) {
        Asker::dial_all(with);
    }

    fn on(&mut self, me: Line, event: Event, with: &mut With<'_, Asker>) {
        match event {
            Event::Connected => self.ask(me, with),
            Event::Sent(_) => self.taken += 1,
            Event::Bytes => self.hear(me, with),
            Event::Room if self.sent < with.shared.message.len() => self.send(me, with),
            Event::Timer => with.abort(me),
            Event::Dead(_) if self.times.len() == with.shared.count as usize => {
                let times = std::mem::take(&mut self.times);
                self.end(with, Ok(times));
            }
            Event::Dead(reason) => self.end(with, Err(format!("{reason:?} after {} answers", self.times.len()))),
            Event::Failed(DeadReason::Refused) => self.end(with, Err("nobody listens there".into())),
            Event::Failed(reason) => self.end(with, Err(format!("not connected: {reason:?}"))),
            Event::Eof | Event::Room => {}
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    let (results, done) = channel();
    let (to, connections, count) = (options.to, options.connections, options.count);
    let (message, patience) = (vec![b'x'; options.bytes as usize], Duration::from_millis(options.patience_ms));
    let server = options.place.builder().start(move |thread| {
        let (results, message) = (results.clone(), message.clone());
        // the first thread does it all
        let connections = if thread == 0 { connections } else { 0 };
        Hub::<Asker>::new(Plan { to, connections, count, message, patience, results })
    })?;
    let mut times = Vec::new();
    for _ in 0..connections {
        times.extend(done.recv()??);
    }
    times.sort_unstable();
    println!("{} round trips, median {:?}, longest {:?}", times.len(), times[times.len() / 2], times[times.len() - 1]);
    server.stop();
    Ok(())
}
