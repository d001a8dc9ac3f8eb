//! Control.

#![forbid(unsafe_code)]

pub mod cli;
pub mod config;
pub mod error;
pub mod words;

pub use error::Error;

/// main
pub fn main() -> std::process::ExitCode { 0.into() }
