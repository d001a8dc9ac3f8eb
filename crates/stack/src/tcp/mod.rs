//! TCP (RFC 9293) as state machines without I/O: time and secrets are passed in, nothing is allocated after
//! construction.
//!
//! These are its leaves, each of them of use alone: round-trip time, congestion control, initial sequence numbers, SYN
//! cookies, pacing, the table of connections, TIME-WAIT, limits.

pub mod congestion;
pub mod cookie;
pub mod isn;
pub mod limits;
pub mod pace;
pub mod prr;
pub mod rtt;
pub mod sip;
pub mod table;
pub mod time_wait;
pub mod tuple;
