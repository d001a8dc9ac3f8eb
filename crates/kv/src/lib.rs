//! A key-value store that speaks memcached's text protocol, over the streams and datagrams of the application API.
//!
//! [`Store`] holds the items of all threads, a [`Server`] a thread answers. Small values leave as copies, large ones by reference: what is
//! on its way is never changed, whoever stores, deletes or evicts meanwhile.
//!
//! Pure: no file, clock or randomness. Memory is set aside at start and fills as items come: pages of the store are taken one after
//! the other, and what a connection needs is taken from pools, so no request allocates but where a page of large values is begun.
//!
//! Left out: the binary protocol, authentication, TLS, storage beyond memory, memcached's proxy.

#![forbid(unsafe_code)]

mod clock;
mod out;
mod serve;
mod stats;
mod store;
mod text;

pub use clock::Clock;
pub use serve::{Options, Server, Shared, WINDOW_BYTES};
pub use stats::{DropReason, Stats};
pub use store::{Limits, Store};

/// The port of the service (IANA).
pub const PORT: u16 = 11211;
