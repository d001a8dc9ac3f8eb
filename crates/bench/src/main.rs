//! `simoom-bench`: load generators, yardsticks and the papers' experiments.

#![forbid(unsafe_code)]

mod load;
mod procs;
mod queries;
mod reflect;
mod report;
mod stats;

fn main() {}
