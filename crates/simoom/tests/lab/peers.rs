//! Our answers beside those of NSD and Knot, on zones drawn at random: over AF_XDP, with the driver in
//! front of it, and over kernel sockets.

use crate::common::simoom;
use lab::{Host, Lab, Options, Process, compare, peers::ZoneFile};
use std::net::SocketAddr;

/// Draws a world for each seed, asks and compares; each class of answers must be reached `least` times.
fn compared(engine: &[&str], seeds: &[u64], questions: usize, least: usize) {
    lab::require();
    // so that what the driver sends reaches the client
    let lab = Lab::with(&Options { client_program: true, ..Options::default() }).unwrap();
    let start = |host: &Host, zones: &[ZoneFile], address: SocketAddr| {
        let mut command = simoom(host);
        command.args(["dns", "--listen", &address.to_string()]);
        command.args(engine);
        command.arg("--control").arg(zones[0].path.with_file_name("control"));
        command.args(zones.iter().map(|zone| format!("{}={}", zone.origin, zone.path.display())));
        Process::spawn(command)
    };
    let report = compare::run(&lab, Some(&start), seeds, questions).unwrap();
    println!("{report}");
    report.check(least);
}

#[test]
fn over_af_xdp_answers_differ_only_as_the_exceptions_say() {
    compared(&["--interface", "vs"], &[1, 2, 3, 4, 5, 6, 7, 8], 5000, 500);
}

#[test]
fn over_sockets_too() {
    compared(&[], &[101, 102], 5000, 1);
}

#[test]
fn and_from_the_driver() {
    compared(&["--interface", "vs", "--tier", "driver"], &[201, 202, 203], 5000, 1);
}
