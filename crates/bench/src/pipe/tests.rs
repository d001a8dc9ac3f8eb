use super::peer::{self, Peer};
use super::*;
use app::{Addresses, Coming, Connection, Listener, Streams};
use proptest::prelude::*;
use stack::{TcpConfig, TcpLimits};

#[test]
fn a_stream_is_its_object_over_and_over() {
    let mut object = vec![0; 1003];
    fill(64, &mut object);
    let stream = Repeated { start: 64, period: 1003 };
    let twice = [&object[..], &object].concat();
    assert!(
        stream.holds(0, &twice, true) && stream.holds(1003, &object, true) && stream.holds(500, &twice[500..], true)
    );
    assert!(stream.holds(7, &[], true) && stream.holds(7, &[], false));
    for at in [0, 7, 1002] {
        let mut wrong = object.clone();
        wrong[at] ^= 1;
        assert!(!stream.holds(0, &wrong, true) && !stream.holds(0, &wrong, false));
    }
    let mut wrong = object.clone();
    wrong[500] ^= 1;
    assert!(!stream.holds(0, &wrong, true));
    assert!(!stream.holds(1, &object, false));
}

/// A service that answers with what a test says, one byte at least.
struct Says(Vec<u8>);

impl Service for Says {
    fn knock<C: Streams>(
        &mut self,
        _now: Instant,
        calls: &mut C,
        _listener: Listener,
        connection: Connection,
        _addresses: Addresses,
    ) {
        let _ = calls.accept(connection, 0);
    }

    fn recv<C: Streams>(&mut self, _now: Instant, calls: &mut C, connection: Connection, _cookie: u64, bytes: &[u8]) {
        let _ = calls.recv_done(connection, bytes.len());
        let _ = match bytes {
            b"reset" => calls.abort(connection).map(|()| 0),
            _ => calls.send(connection, &self.0),
        };
    }
}

fn bed(connections: usize) -> Bed<Says> {
    bed_of(connections, Says(b"an answer".to_vec()))
}

fn bed_of<S: Service>(connections: usize, service: S) -> Bed<S> {
    let setup = Setup {
        connections,
        batch: 64,
        tcp: TcpConfig { limits: TcpLimits { connections: 600, ..TcpLimits::default() }, ..TcpConfig::default() },
        receive_bytes: 65_536,
        window_bytes: 65_536,
    };
    let mut bed = Bed::new(&setup, service, || {}).unwrap();
    bed.establish().unwrap();
    bed
}

/// A service that remembers what it was told to come, and what came.
#[derive(Default)]
struct Looks {
    foreseen: Vec<(u64, Vec<u8>)>,
    received: Vec<(u64, Vec<u8>)>,
    bursts: usize,
}

impl Service for Looks {
    fn knock<C: Streams>(
        &mut self,
        _now: Instant,
        calls: &mut C,
        _listener: Listener,
        connection: Connection,
        _addresses: Addresses,
    ) {
        let _ = calls.accept(connection, 100 + u64::from(connection.index));
    }

    fn foresees(&self) -> bool {
        true
    }

    fn foresee(&mut self, coming: &[Coming<'_>]) {
        assert_eq!(self.foreseen.len(), self.received.len(), "what was told before has come");
        self.bursts += usize::from(!coming.is_empty());
        self.foreseen.extend(coming.iter().map(|coming| (coming.cookie, coming.bytes.to_vec())));
    }

    fn recv<C: Streams>(&mut self, _now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        let _ = calls.recv_done(connection, bytes.len());
        self.received.push((cookie, bytes.to_vec()));
    }
}

#[test]
fn a_service_is_told_what_a_burst_brings_before_it_comes() {
    let mut bed = bed_of(100, Looks::default());
    for slot in 0..100 {
        bed.peer.send(slot, PSH, &vec![slot as u8; slot + 1]).unwrap();
        if slot % 3 == 0 {
            // one behind the other
            bed.peer.send(slot, PSH, b"more").unwrap();
        }
    }
    bed.exchange().unwrap();
    let Looks { foreseen, received, bursts } = bed.service();
    assert_eq!(received.len(), 134);
    assert_eq!(foreseen, received);
    assert_eq!(*bursts, 3, "of 64 at most");
}

/// What the peer says to the answer, changed on its way by `spoil`.
fn spoiled(spoil: impl Fn(&mut Vec<u8>)) -> String {
    let mut bed = bed(1);
    // the first segment of which the checksums are verified is the 64th
    for _ in 0..62 {
        bed.peer.send(0, PSH, b"?").unwrap();
        bed.exchange().unwrap();
        bed.drain(|peer, frame| peer.accept(frame.bytes()).map(drop)).unwrap();
    }
    bed.peer.send(0, PSH, b"?").unwrap();
    bed.exchange().unwrap();
    let mut said = Vec::new();
    bed.drain(|peer, frame| {
        let mut bytes = frame.bytes().to_vec();
        spoil(&mut bytes);
        said.push(peer.accept(&bytes).map(|arrival| arrival.payload.to_vec()));
        Ok(())
    })
    .unwrap();
    assert_eq!(said.len(), 1);
    match said.remove(0) {
        Ok(payload) => String::from_utf8(payload).unwrap(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_peer_finds_every_fault() {
    assert_eq!(spoiled(|_| {}), "an answer");
    for (at, expected) in [
        (12, "no segment of ours"),
        (26, "no segment of ours"),
        (33, "nobody's"),
        (41, "off the next in order"),
        (45, "not all that was sent is acknowledged"),
        (24, "wrong checksum"),
        (50, "wrong checksum"),
        (70, "wrong checksum"),
    ] {
        let error = spoiled(|frame| frame[at] ^= 1);
        assert!(error.contains(expected), "byte {at}: {error}");
    }
    assert!(spoiled(|frame| frame[47] |= 4).contains("was reset"));
    assert!(spoiled(|frame| frame[47] |= 2).contains("another SYN-ACK"));
    assert!(spoiled(|frame| frame[54..66].fill(1)).contains("without timestamps"));
    assert!(spoiled(|frame| frame[58] ^= 0x80).contains("clock went back"));
    assert!(spoiled(|frame| frame.truncate(70)).contains("no segment of ours"));
}

#[test]
fn a_reset_ends_the_run() {
    let mut bed = bed(2);
    bed.peer.send(1, PSH, b"reset").unwrap();
    bed.exchange().unwrap();
    let error = bed.drain(|peer, frame| peer.accept(frame.bytes()).map(drop)).unwrap_err();
    assert_eq!(error.to_string(), "connection 1 was reset");
}

#[test]
fn what_the_peer_sends_the_stack_takes_whole() {
    let mut bed = bed(300);
    for slot in 0..300 {
        bed.peer.send(slot, PSH, &vec![7; slot + 1]).unwrap();
    }
    bed.exchange().unwrap();
    assert_eq!(bed.drain(|peer, frame| peer.accept(frame.bytes()).map(drop)).unwrap(), 300);
    let usage = bed.usage();
    assert_eq!((usage.connections, usage.half_open), (300, 0));
    // the answers are acknowledged, and then nothing is left to do
    for slot in 0..300 {
        bed.peer.send(slot, 0, &[]).unwrap();
    }
    bed.exchange().unwrap();
    assert_eq!(bed.drain(|_, _| Ok(())).unwrap(), 0);
    let (wakes, first) = bed.rest(std::time::Duration::from_secs(600)).unwrap();
    assert!(wakes < 600 && first.is_some(), "{wakes} wakes, the first after {first:?}");
}

#[test]
fn places_stand_for_new_connections_when_they_are_renewed() {
    let mut bed = bed(300);
    bed.peer.renew();
    bed.establish().unwrap();
    assert_eq!(bed.usage().connections, 600);
    // and no more, as the configuration has it
    bed.peer.renew();
    assert!(bed.establish().is_err());
}

proptest! {
    #[test]
    fn sources_and_places_agree(first in any::<u64>(), slot in 0usize..100_000) {
        let (mut clients, _servers) =
            port::pipe::pair(&port::pipe::Config { frames: 4, ..port::pipe::Config::default() }).unwrap();
        let server = "198.18.0.1:80".parse().unwrap();
        let mut peer = Peer::new(clients.remove(0), [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]], server, 100_000, 65_536);
        peer.begin_at(first % peer::TUPLES);
        let source = peer.source(slot);
        prop_assert_eq!(peer.slot(*source.ip(), source.port()), Some(slot));
        let beyond = peer.source(100_000);
        prop_assert_eq!(peer.slot(*beyond.ip(), beyond.port()), None);
    }
}
