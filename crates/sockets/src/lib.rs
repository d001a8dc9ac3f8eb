//! Services on kernel sockets: where AF_XDP cannot be had, and for the traffic that a taken port leaves to the kernel.
//!
//! One thread a processor, each with a socket of its own for every endpoint (SO_REUSEPORT), so threads share nothing but
//! counters that others read. Datagrams are received by recvmmsg, answered where they lie and sent by sendmmsg; streams are
//! non-blocking and edge-triggered. Nothing is allocated, locked or logged for a datagram.
//!
//! Left out: outgoing connections; choosing which thread gets a connection (the kernel's reuseport hash does).
//!
//! Unsafe code stands in `sys` alone, which owns the memory of a burst.

#![deny(unsafe_code)]

mod bind;
mod config;
mod counters;
mod engine;
mod idle;
mod outbox;
mod sys;
mod tcp;
mod udp;

pub use config::{BATCH_DATAGRAMS, BindError, Config, Endpoint, Idle, Streams, Transport};
pub use counters::Counters;
pub use engine::{Engine, Running};
pub use sys::{set_busy_poll, set_epoll_busy_poll};
