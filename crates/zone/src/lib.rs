//! Zone files: read through a [`Source`], checked, and held compactly.
//!
//! [`load`] reads a zone file (RFC 1035 section 5, RFC 2308 section 4, RFC 3597) and everything it
//! includes, and gives either a [`Zone`] or all the errors of the run, each with file, line and column.
//! [`Builder`] makes a zone from records in memory under the same checks.
//!
//! What refuses a zone stands in `checks`; that a signed zone is refused is this server's policy, not the
//! protocol's, and stands there apart. [`load_within`] bounds what input from strangers may use up.
//!
//! What is left out: serving (crate `dns`), opening files (the caller's `Source`), DNSSEC validation, zone
//! transfer. A zone is immutable once made; it owns all its memory.

#![forbid(unsafe_code)]

mod build;
mod checks;
mod error;
mod exotic;
mod generate;
mod layout;
mod loc;
pub mod name;
mod parse;
mod print;
mod reader;
mod rtype;
mod scan;
mod source;
mod store;
mod svcb;
mod svcb_text;
mod time;
mod zone;

pub use build::Builder;
pub use error::{Error, Place};
pub use layout::EmbeddedNames;
pub use name::{Name, NameRef};
pub use print::RdataText;
pub use reader::{Limits, load, load_within};
pub use rtype::{Class, Rtype};
pub use source::{MemorySource, Source};
pub use zone::{Node, Nodes, Rdatas, Rrset, Rrsets, Zone};

#[cfg(test)]
mod tests;
