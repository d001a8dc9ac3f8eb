//! The authoritative DNS service. [`Tables::build`] turns checked zones into prepared answers; a [`Server`] a thread serves
//! them over datagrams and streams of the application API.
//!
//! Positive answers carry no authority and no additional section, but for the addresses of an NS set; chains stop at the
//! zone's edge; ANY is answered with one set (RFC 8482). Left out: zone transfers, NOTIFY, UPDATE, TSIG, and DNSSEC answers
//! (a signed zone is refused when it is read).
//!
//! Pure: no file, clock or randomness; after start-up answering allocates nothing. Ownership: tables are immutable and
//! shared by [`base::publish`]; what a thread writes belongs to its server.

#![forbid(unsafe_code)]

mod block;
mod build;
mod chaos;
mod compose;
pub mod cookie;
pub mod fixed;
pub mod hot;
mod key;
mod ledger;
mod question;
mod reference;
mod reply;
mod resolve;
mod retained;
pub mod rrl;
mod serve;
mod stats;
pub mod stream;
mod table;

pub use build::BuildError;
pub use question::DropReason;
pub use serve::{Options, QuestionCompression, Server};
pub use stats::Stats;
pub use table::Tables;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
