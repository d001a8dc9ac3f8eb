//! The static web server: HTTP/1.1 and 1.0 over the streams of the application API. [`SiteBuilder`] turns files into a
//! [`Site`], prepared answers that share memory with the version before; a [`Server`] a thread serves it.
//!
//! GET, HEAD and OPTIONS, with conditions, ranges, precompressed variants, virtual hosts, redirects and error pages
//! (RFC 9110); framing by RFC 9112, strict where leniency lets requests be smuggled. Left out: anything that is computed for
//! a request, TLS, HTTP/2, compression itself (the caller makes variants, and [`SiteBuilder::compressible`] says of what). A file that is not held in memory is read in chunks
//! while it is sent ([`chunks`]).
//!
//! Pure: no file, clock or randomness; after start-up answering allocates nothing. Ownership: a site is immutable and shared
//! by [`base::publish`]; what a thread writes belongs to its server.

#![forbid(unsafe_code)]

mod answer;
pub mod chunks;
mod client;
mod conditional;
mod config;
mod date;
mod framing;
mod head;
pub mod log;
mod mime;
mod negotiate;
mod out;
mod pace;
mod proxy;
mod range;
mod serve;
mod site;
mod stats;
mod status;
mod streams;
mod table;
mod target;

pub use config::{Config, ConfigError, Host, Redirect};
pub use date::WallClock;
pub use head::{Method, Refusal};
pub use negotiate::Encoding;
pub use proxy::Prefix;
pub use serve::{Options, Server, WINDOW_BYTES};
pub use site::{BuildError, Compressible, File, FileError, Identity, Site, SiteBuilder};
pub use stats::{DropReason, Stats};

#[cfg(test)]
mod testing;
