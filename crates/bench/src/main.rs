//! `simoom-bench`: load generators, yardsticks and the papers' experiments.

#![forbid(unsafe_code)]

mod procs;
mod report;
mod stats;

fn main() {}
