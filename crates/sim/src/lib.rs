//! A deterministic world for tests: hosts with our stack, links that injure and delay what they carry, a clock that jumps. All of a
//! run follows from its seed.
//!
//! [`own`] has our TCP at both ends, [`smoltcp`] an independent reading of the same RFCs at one. Both check that every byte arrives,
//! that every connection ends, and that nothing is left behind; a run panics where that is not so. The program `sim` goes through
//! seeds, and through one of them again.
//!
//! The first of two hosts of ours may have two stacks, as of two threads, between which connections move ([`twin`]).
//!
//! Left out: more than two hosts, and services other than a peer that sends a pattern ([`peer`]).

#![forbid(unsafe_code)]

pub mod own;
pub mod peer;
mod router;
pub mod smoltcp;
pub mod twin;
pub mod wire_end;
pub mod world;

pub use peer::{Abort, Peer, Script, pattern};
pub use world::World;

use base::counter::{Figure, Report};

/// Shows every counter that is not zero, for who looks into one run.
fn show(report: &dyn Report) {
    report.report(&mut |Figure { name, labels, value, .. }| {
        if value > 0 {
            eprintln!("{name} {labels:?} {value}");
        }
    });
}

/// What is shown of a run on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Show {
    /// the counters at its end
    pub counters: bool,
    /// every frame
    pub frames: bool,
}
