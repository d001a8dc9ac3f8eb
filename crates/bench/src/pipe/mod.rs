//! What the measurements over the in-memory pipe share: a server's stack and service at one end, the generator at the other, both in
//! one thread, and only the server's cycles on the clock.

mod bed;
mod callgrind;
mod options;
mod pattern;
mod peer;
mod segment;
#[cfg(test)]
mod tests;

pub(crate) use bed::{Bed, Meter, RoundFigures, Setup};
pub(crate) use callgrind::instructions;
pub(crate) use options::{Common, Figure, callgrind, measure, write};
pub(crate) use pattern::{Repeated, fill};
pub(crate) use peer::Peer;
pub(crate) use segment::{
    ACK, FIN, Fields, Maker, PSH, RST, SEGMENT_BYTES, SYN, WINDOW_SCALE, checksums_are_good, parse,
};

use app::Service;
use base::Instant;
use dataplane::Loop;
use port::Facts;
use port::pipe::Pipe;
use stack::{OwnAddress, Stack};
use std::net::IpAddr;

/// The server's stack over its end of the pipe: one own address, in use at once.
pub(crate) fn stack(config: stack::Config, address: IpAddr, facts: &Facts) -> Stack {
    let config = stack::Config {
        own: vec![OwnAddress { addr: address, prefix_len: 24 }],
        claim: stack::Claim { mode: stack::ClaimMode::Silent, ..stack::Claim::default() },
        ..config
    };
    // a server that accepts unfinished checksums would skip verifying them
    let facts = Facts { virtual_link: false, ..facts.clone() };
    Stack::new(config, &facts)
}

/// The server's cycles over everything that waits, until one moves nothing and the service expects nothing from outside. One function that is never inlined, so that
/// callgrind can be told to count inside it alone.
#[inline(never)]
pub(crate) fn serve_waiting<S: Service>(server: &mut Loop<Pipe, S>, now: Instant) {
    while server.cycle(now).is_busy() || !server.service().may_rest(now) {}
}
