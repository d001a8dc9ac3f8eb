//! One thread per receive queue, run to completion: a burst of frames goes from the port through the stack to the service
//! and back to the port before the next is looked at. Threads share nothing on that path but, where there are several and they are
//! told so, the table of who owns which flow group ([`Owners`]): frames of another's group go to it by their handles, and
//! groups move with their connections (`crossing`), from busy threads to free ones by themselves (`balance`), and the NIC's table
//! follows where it can ([`Steering`]).
//!
//! [`Loop`] is one such thread's work, a cycle at a time with the caller's clock, so that tests and yardsticks can step it.
//! [`Dataplane`] runs a loop on each of its pinned threads, puts them to sleep when there is nothing to do ([`idle`]),
//! carries control's commands to them, and contains their panics.
//!
//! Ownership: every frame of a thread is its port's, or in the loop's two bursts between cycles; a panic gives those back.
//! Nothing is allocated, locked or logged for a packet while no tap is on.
//!
//! A thread may be without a queue of its own: then its port is a guest's (`port::guest`), and what it serves comes from others. Of
//! several threads not all need serve: those that are not needed have nothing, and sleep ([`elastic`]).

#![forbid(unsafe_code)]

mod balance;
mod bell;
pub mod counters;
mod crossing;
mod cycle;
pub mod elastic;
pub mod idle;
mod owners;
mod pulse;
mod steering;
pub mod tap;
mod threads;

pub use counters::Counters;
pub use cycle::{Activity, Floor, Loop, Parcel};
pub use idle::Idle;
pub use owners::{MOST_THREADS, Owners};
pub use pulse::{Finding, Pulse, Watched};
pub use steering::Steering;
pub use threads::{BATCH, Config, Dataplane, Sharing};
