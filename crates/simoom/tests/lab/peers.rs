//! Our answers beside those of NSD and Knot, on zones drawn at random.

use crate::common::{PATIENCE, simoom};
use lab::{
    Lab, Process, SERVER_V4,
    compare::{self, Party, Report, Server},
    peers::{self, Kind, Peer},
    zonegen::World,
};
use std::net::{Ipv4Addr, SocketAddr};

const SEEDS: std::ops::RangeInclusive<u64> = 1..=10;
const QUESTIONS: usize = 4000;

/// simoom for a world's zones, in the server's host.
fn start(lab: &Lab, world: &World, dir: &std::path::Path, place: &[&str]) -> Process {
    peers::write_zones(dir, &world.zones).unwrap();
    let mut command = simoom(lab.server());
    command.arg("dns").args(place).arg("--control").arg(dir.join("control"));
    for (number, zone) in world.zones.iter().enumerate() {
        command.arg(format!("{}={}", zone.origin, dir.join(format!("{number}.zone")).display()));
    }
    let mut process = Process::spawn(command).unwrap();
    process.wait_for("serving on", PATIENCE).unwrap();
    process
}

/// One seed over AF_XDP, the next over kernel sockets. The peers answer at the client's own loopback.
fn compared(seed: u64) -> Report {
    let lab = Lab::new().unwrap();
    let world = World::draw(seed);
    let peer = |kind, port| {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let peer = Peer::start(lab.client(), kind, at, &world.zones).unwrap();
        (Server { party: Party::Peer(kind), udp: at, tcp: at }, peer)
    };
    let ((nsd, _nsd), (knot, _knot)) = (peer(Kind::Nsd, 5301), peer(Kind::Knot, 5302));
    let place: &[&str] = match seed % 2 {
        0 => &["--interface", "vs", "--listen", "198.18.0.1:53"],
        _ => &["--listen", "198.18.0.1:53"],
    };
    let dir = tempfile::tempdir().unwrap();
    let subject = start(&lab, &world, dir.path(), place);
    let at = SocketAddr::from((SERVER_V4, 53));
    let subject_at = Server { party: Party::Subject, udp: at, tcp: at };
    let questions = world.questions(seed, QUESTIONS);
    let report = lab.client().inside(|| compare::compare(&world, &questions, &[subject_at, nsd, knot]));
    report.unwrap_or_else(|error| panic!("seed {seed}: {error:#}\n{}", subject.log()))
}

#[test]
fn simoom_differs_from_the_peers_only_as_the_exceptions_say() {
    lab::require();
    let mut report = Report::default();
    SEEDS.for_each(|seed| report.merge(compared(seed)));
    println!("{report}");
    report.check(500);
}
