//! NSD and Knot beside each other on drawn zones.

use lab::{Lab, compare};

#[test]
fn the_peers_differ_only_as_the_exceptions_say() {
    lab::require();
    let lab = Lab::new().unwrap();
    let seeds: Vec<u64> = (1..=10).collect();
    let report = compare::run(lab.server(), None, &seeds, 5000).unwrap();
    println!("{report}");
    report.check(500);
}
