//! NSD and Knot beside each other on drawn zones.

use lab::{Lab, compare};

#[test]
fn the_peers_differ_only_as_the_exceptions_say() {
    lab::require();
    let lab = Lab::new().unwrap();
    let report = compare::run(lab.server(), None, &[1, 2, 3], 8000).unwrap();
    println!("{report}");
    report.check(100);
}
