//! A service in a process of its own, without privileges, at nearly the speed of one inside.
//!
//! The half that is trusted is [`Remote`], an [`app::Service`] like any other: whatever engine calls it, its events go into memory
//! that the application's process can only read, and what that process asks for comes back over memory that it may write, is copied
//! once and judged ([`layout`] describes both). The other half is [`client::run`], which gives the events to the very same service
//! code and is its [`app::Streams`]. So a service runs inside or protected without a line changed.
//!
//! The application may do what it likes with its memory, its descriptors and its time: nothing that it writes is used as an index
//! unchecked, nothing waits for it without a bound, and every call that is refused has a reason with a counter
//! ([`stats::Reject`]). When its process ends, at whatever instruction, its connections are reset and its memory is used again.
//!
//! Ownership: each thread of an engine has a [`Channel`] of its own, two anonymous files, so threads share nothing here either. The
//! stack, its state and its frames stay with the engine: bytes are copied on their way in and on their way out, since a frame that
//! an application may write after it was judged could be sent with a checksum that does not hold, and one that it may read could
//! show it what belongs to others.
//!
//! Left out: connections of an application do not move between threads ([`app::Service::can_move`] is false here).

mod channel;
pub mod client;
pub mod hostile;
pub mod jail;
mod lane;
pub mod layout;
mod map;
mod permits;
mod remote;
pub mod stats;
mod status;
#[cfg(test)]
mod testing;

/// Slots that either side takes together, so that the cache misses for what they name overlap; and that it lets the other side see
/// before the burst that they are of is over, so that both work on it.
const GROUP: usize = 16;
/// So far ahead of what it writes a producer asks for the lines, which the other side has since it read them a lap ago.
const SLOTS_AHEAD: u32 = 8;
/// The same of payload.
const PAYLOAD_AHEAD: usize = 512;
/// For so long a connection that was closed goes on while its peer takes nothing of what waits in one of the halves. Of what the engine has
/// it bounds that itself, from when it is told of the end, which is behind all of it.
const LINGER: std::time::Duration = std::time::Duration::from_secs(30);
/// It goes on for so many times as long while its peer was offered nothing, for all that may be under way is others'.
const EXCUSES: u8 = 10;

pub use channel::{Channel, GRANT_VARIABLE, Granted, Place, State};
pub use permits::{Grant, Permit};
pub use remote::{Options, Remote};
pub use status::Status;
