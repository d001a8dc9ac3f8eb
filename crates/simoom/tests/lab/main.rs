//! The command in the laboratory: `simoom` itself, as a user starts it, at the end of a wire with real clients at the other.
//!
//! Needs root and the packages that crate `lab` names; it fails where they are missing. Each test has hosts of its own, so
//! they run in parallel.

#![forbid(unsafe_code)]

mod apps;
mod common;
mod demo;
mod dns;
mod driver;
mod driver_cookies;
mod driver_refused;
mod echo;
mod errors;
#[path = "../common/exposition.rs"]
mod exposition;
mod flows;
mod guests;
mod hangs;
mod hostile;
mod hot;
mod kv;
mod life;
mod likeness;
mod metrics;
mod missing;
mod nic_sockets;
mod nic_table;
mod own;
mod paths;
mod peers;
#[path = "../common/queries.rs"]
mod queries;
mod sandbox;
mod spread;
mod steering;
mod tune;
mod web;
