//! NSD and Knot beside each other on drawn zones, and real clients on the wire.

use lab::{
    Lab, Options, SERVER_V4, SERVER_V6,
    capture::Capture,
    compare,
    peers::{Kind, Peer},
    zonegen::World,
};
use std::net::IpAddr;

#[test]
fn the_peers_differ_only_as_the_exceptions_say() {
    lab::require();
    let lab = Lab::new().unwrap();
    let seeds: Vec<u64> = (1..=10).collect();
    let report = compare::run(&lab, None, &seeds, 5000).unwrap();
    println!("{report}");
    report.check(500);
}

#[test]
fn dig_gets_answers_that_tshark_accepts() {
    lab::require();
    // without offloads the kernel's checksums are whole on the wire
    let lab = Lab::with(&Options { offloads: false, ..Options::default() }).unwrap();
    let world = World::draw(1);
    let capture = Capture::start(&lab).unwrap();
    let addresses: [(Kind, IpAddr); 2] = [(Kind::Nsd, SERVER_V4.into()), (Kind::Knot, SERVER_V6.into())];
    for (kind, address) in addresses {
        let _peer = Peer::start(&lab, kind, (address, 53).into(), &world.zones).unwrap();
        for transport in ["+notcp", "+tcp"] {
            let server = format!("@{address}");
            let answer = lab.client().run(&["dig", "+norecurse", transport, &server, "ns1.zone1.", "ANY"]).unwrap();
            assert!(answer.contains("status: NOERROR") && answer.contains("flags: qr aa"), "{kind}: {answer}");
        }
    }
    let findings = capture.finish().unwrap();
    findings.check();
    assert!(findings.from_server["DNS"] >= 4 && findings.from_server.contains_key("TCP"), "{findings}");
}
