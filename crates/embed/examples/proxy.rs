//! A TCP proxy: what comes at one address is carried to another, and back.
//!
//!     cargo run --release -p embed --example proxy -- --listen 127.0.0.1:8080 --to 127.0.0.1:80
//!     curl http://127.0.0.1:8080/
//!
//! and over AF_XDP, as root; the connections to the server leave from the own address, too:
//!
//!     target/release/examples/proxy --interface eth0 --own 192.0.2.77/24 --gateway 192.0.2.1 --listen 192.0.2.77:80 --to 198.51.100.5:80
//!
//! and in a process without privileges, where it connects to whom --connect names and nobody else:
//!
//!     simoom run --listen 127.0.0.1:8080 --connect 127.0.0.1:80 -- target/release/examples/proxy --to 127.0.0.1:80
//!
//! Look at: two lines that each know the other (crate `kit`); bytes that find no room on one stay on the other, whose peer's window
//! closes, so the slower side sets the pace both ways; the end of each direction is passed on by itself (half-close); and whoever dies
//! takes the other along: by a reset if it was one.

mod common;

use app::{Addresses, DeadReason, Listener};
use clap::Parser;
use kit::{Event, Hub, Line, Talk, With};
use std::net::SocketAddr;

/// A TCP proxy.
#[derive(Parser)]
struct Options {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Where to carry it
    #[arg(long)]
    to: SocketAddr,
    #[command(flatten)]
    place: common::Place,
}

/// One of the two connections of a proxied one.
struct Leg {
    /// its other half, as soon as there is one
    other: Option<Line>,
}

impl Leg {
    /// Carries what can be carried from one line to another, and its end.
    fn carry(with: &mut With<'_, Leg>, from: Line, to: Line) {
        with.forward(from, to);
        if with.is_drained(from) {
            with.finish(to);
        }
    }
}

impl Talk for Leg {
    /// Where everything is carried.
    type Shared = SocketAddr;

    fn knock(_: &mut SocketAddr, _: Listener, _: Addresses) -> Option<Leg> {
        Some(Leg { other: None })
    }

    fn on(&mut self, me: Line, event: Event, with: &mut With<'_, Leg>) {
        match (event, self.other) {
            (Event::Connected, None) => match with.dial(*with.shared, Leg { other: Some(me) }) {
                Ok(other) => self.other = Some(other),
                Err(_) => with.abort(me),
            },
            // what came meanwhile is carried, what was sent meanwhile goes by itself
            (Event::Connected | Event::Room, Some(other)) => Leg::carry(with, other, me),
            (Event::Bytes | Event::Eof, Some(other)) => Leg::carry(with, me, other),
            (Event::Dead(DeadReason::Closed), Some(other)) => with.close(other),
            (Event::Dead(_) | Event::Failed(_), Some(other)) => with.abort(other),
            _ => {}
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    let to = options.to;
    common::run(options.place.builder().tcp(options.listen), move |_| Hub::<Leg>::new(to))
}
