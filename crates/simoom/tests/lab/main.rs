//! The command in the laboratory: `simoom` itself, as a user starts it, at the end of a wire with real clients at the other.
//!
//! Needs root and the packages that crate `lab` names; it fails where they are missing. Each test has hosts of its own, so
//! they run in parallel.

#![forbid(unsafe_code)]

mod common;
mod demo;
mod dns;
mod echo;
mod errors;
mod flows;
mod hostile;
mod life;
mod likeness;
mod nic_table;
mod own;
mod peers;
mod spread;
mod steering;
mod tune;
mod web;
