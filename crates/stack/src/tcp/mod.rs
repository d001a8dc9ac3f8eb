//! TCP (RFC 9293) as state machines without I/O: time and secrets are passed in, nothing is allocated after
//! construction.
//!
//! The engine holds every connection of one stack. What a segment does follows this way: `input` finds whom it belongs
//! to, `segment` judges it, `ack` and `recovery` take its acknowledgement, `receive` its data; `poll` runs timers and
//! sends, `output` builds segments. Handshakes are in `listen` and `open`. A connection is a block of 320 bytes
//! (`connection`); what it needs to send is borrowed (`active`); what it queued and what is in flight stand in pools
//! (`send`, `inflight`), data that came out of order too (`reassembly`). Whom a pool had no room for waits in `starved`.
//!
//! Where several threads have a stack each, `members` knows who is in which flow group, and `moves` hands a group from one stack
//! to another.
//!
//! There is no send buffer: segments are made, and made again, from the objects that the service queued. Data are
//! delivered from the frame that they came in.
//!
//! Public leaves are each of use alone: round-trip time, congestion control, initial sequence numbers, SYN cookies,
//! pacing, the table of connections, TIME-WAIT, limits.
//!
//! Left out so far: urgent data (taken for ordinary data, as RFC 6093 describes what stacks do); data on a SYN; the user timeout
//! option. An MSS that leaves less than 128 bytes of data is taken for one that leaves 128 (RFC 9293 section 3.7.1), so that nobody has
//! what he downloads cut into far more segments than it has to be.

pub mod congestion;
pub mod cookie;
pub mod isn;
pub mod limits;
pub mod pace;
pub mod prr;
pub mod rtt;
pub mod table;
pub mod time_wait;
pub mod tuple;

mod ack;
mod active;
mod calls;
mod config;
mod connection;
mod counters;
mod engine;
mod half_open;
mod hop;
mod inflight;
mod input;
mod large;
mod listen;
mod members;
mod moves;
mod open;
mod output;
mod pmtu;
mod poll;
mod rack;
mod reassembly;
mod receive;
mod recovery;
mod run;
mod segment;
mod send;
mod starved;
mod state;
mod tick;
mod usage;
mod view;

pub(crate) use calls::Calls;
pub use config::{TcpConfig, TcpLimits, TcpListener, TcpTimes};
pub use counters::{Counters, Event, Ignored};
pub(crate) use engine::{Engine, Outlet};
pub(crate) use hop::Hop;
pub(crate) use input::Place;
pub(crate) use listen::Origin;
pub use members::Ours;
pub use moves::{Arrived, Departure};
pub(crate) use pmtu::Fault;
pub use send::BLOCK_BYTES;
pub use usage::Usage;
pub use view::{SenderView, View};
