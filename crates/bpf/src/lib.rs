//! Every eBPF program and its loader.
//!
//! The programs are C beside this file, compiled by build.rs. [`Steering`] is the XDP program that takes our traffic to the
//! AF_XDP sockets, answers some of it by itself, and passes everything else to the kernel, or takes all there is; [`Selector`] chooses the socket of a
//! reuseport group; [`nic`] is the laboratory's, what makes a NIC with queues of a veth pair; [`reflect`] is a yardstick; [`rss`] is the
//! table of somebody else's; [`netdev`] says what a driver does with programs. A program hangs on a bpf link or on sockets, so it goes when its
//! process does, however that ends. Left out: pinning (but of the laboratory's table), since what outlives the process is what
//! nobody cleans up.

#![forbid(unsafe_code)]

pub mod capability;
mod error;
mod kernel;
pub mod netdev;
pub mod nic;
pub mod reflect;
pub mod reuseport;
pub mod rss;
pub mod steering;

pub use kernel::kernel_before;
pub use reuseport::{NicHash, Selector, SelectorConfig, SelectorError};
pub use steering::{Attach, Config, Steering, SteeringError, Taken};
