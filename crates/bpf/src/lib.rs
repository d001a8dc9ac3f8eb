//! Every eBPF program and its loader.
//!
//! The programs are C beside this file, compiled by build.rs. [`Steering`] is the XDP program that takes our traffic to the
//! AF_XDP sockets and passes everything else to the kernel, or takes all there is. It hangs on a bpf link, so it goes when its process
//! does, however that ends. [`nic`] is the laboratory's: what makes a NIC with queues of a veth pair. Left out: pinning, since what outlives the process is what nobody cleans up.

#![forbid(unsafe_code)]

pub mod capability;
pub mod nic;
pub mod steering;

pub use steering::{Attach, Config, Steering, SteeringError, Taken};
