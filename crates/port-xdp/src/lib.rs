//! Ports on AF_XDP sockets.
//!
//! [`open`] puts the steering program on an interface, binds a socket to each of its queues over one UMEM, and returns a
//! [`XdpPort`] for each thread, a [`Handle`] that says what is ours, and a [`Got`] that says which mode it became and why.
//! Nothing of it outlives the process: the program hangs on a bpf link, the sockets and the multicast memberships on
//! descriptors. Where the device segments TCP and there is no zero-copy, each port also sends super-segments through an AF_PACKET
//! socket; in generic mode it receives them, too.

#![deny(unsafe_code)]

mod answering;
pub mod device;
mod ethtool;
mod follower;
mod handle;
mod intake;
mod ledger;
pub mod nic;
mod open;
mod packet;
mod pieces;
mod port;
mod ring;
mod slot;
mod socket;
mod stats;

pub use answering::Answering;
pub use follower::Follower;
pub use handle::{Followed, Handle};
pub use open::{BusyPolling, Got, LargeSends, Listener, Mode, OpenConfig, OpenError, Opened, open};
pub use port::XdpPort;
pub use slot::Slot;
pub use stats::{Stats, Trouble};
