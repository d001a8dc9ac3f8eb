//! Services on kernel sockets: where AF_XDP cannot be had, and for the traffic that a taken port leaves to the kernel.
//!
//! One thread a processor. By default each has a socket of its own for every endpoint (SO_REUSEPORT), a table of flow groups in the
//! kernel says whose a flow is, and a thread that has time takes from one that has none ([`Spread`], [`Balance`]). Datagrams are received
//! by recvmmsg, answered where they lie and sent by sendmmsg; streams are non-blocking and edge-triggered. Nothing is allocated, locked or
//! logged for a datagram.
//!
//! Left out: unasked datagrams to groups and broadcast addresses.
//!
//! Unsafe code stands in `sys` alone, which owns the memory of a burst.

#![deny(unsafe_code)]

mod arrivals;
mod bind;
mod config;
mod counters;
mod engine;
mod help;
mod idle;
mod nic;
mod options;
mod outbox;
mod run;
mod scheduled;
mod selector;
mod share;
mod sys;
mod tcp;
mod udp;
mod unasked;
mod unqueued;

pub use config::{
    BATCH_DATAGRAMS, Balance, BindError, Config, Endpoint, Idle, MOST_GROUPS, Spread, Streams, Transport,
};
pub use counters::{Counters, Sharing};
pub use engine::{Engine, Running};
pub use nic::{NicCounters, NicSpread};
pub use sys::{set_busy_poll, set_epoll_busy_poll};
pub use unqueued::Unqueued;
