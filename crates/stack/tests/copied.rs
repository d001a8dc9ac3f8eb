//! Datagrams answered in other frames than they came in: the same octets go out, and no frame is lost.

mod common;

use common::*;
use port::Port;
use proptest::prelude::*;
use stack::{DropReason, Handled};
use wire::Protocol;
use wire::ethernet::EtherType;

/// Frames at rest in the port, counted by taking all of them.
fn at_rest(host: &mut Host) -> usize {
    host.port.flush();
    let frames: Vec<_> = std::iter::from_fn(|| host.port.take()).collect();
    let count = frames.len();
    for frame in frames {
        host.port.give(frame);
    }
    count
}

/// A datagram of either family, with a tag, options, padding or faults now and then, or something that is no datagram.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop::collection::vec(any::<u8>(), 0..200);
    (payload, 0..9u8, 0..4u8, 1024..9999u16, any::<prop::sample::Index>()).prop_map(
        |(payload, kind, extra, port, at)| {
            let from4 = format!("192.0.2.2:{port}");
            let from6 = format!("[2001:db8::2]:{port}");
            match kind {
                0..=2 => query(&from4, ["192.0.2.1:53", "192.0.2.1:7", "192.0.2.1:8"][usize::from(kind)], &payload),
                3 | 4 => query(&from6, "[2001:db8::1]:7", &payload),
                5 => query(&from4, "192.0.2.1:53", b"silence"),
                6 => {
                    let udp = datagram(from4.parse().unwrap(), "192.0.2.1:7".parse().unwrap(), &payload);
                    let options = vec![1; 4 * usize::from(extra)];
                    let mut packet = ip(B4.into(), A4.into(), Protocol::UDP, &options, &udp);
                    packet.extend([0; 13]);
                    link(OURS, THEIRS, Some(9), EtherType::IPV4, &packet)
                }
                7 => {
                    let mut frame = query(&from4, "192.0.2.1:7", &payload);
                    let at = at.index(frame.len());
                    frame[at] ^= 1 << extra;
                    frame
                }
                _ => {
                    let mut echo = [&[8, 0, 0, 0, 1, 2, 3, 4][..], &payload].concat();
                    let checksum = wire::Sum::of(&echo).checksum();
                    echo[2..4].copy_from_slice(&checksum);
                    frame_to(OURS, &ip(B4.into(), A4.into(), Protocol::ICMP, &[], &echo))
                }
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn copied_answers_are_those_in_place(bursts in prop::collection::vec(prop::collection::vec(frame(), 1..=64), 1..6)) {
        let (mut in_place, mut copied) = (Host::new(config()), Host::new(config()));
        copied.copies = Some(64);
        let before = at_rest(&mut copied);
        for frames in &bursts {
            prop_assert_eq!(in_place.exchange(frames), copied.exchange(frames));
        }
        prop_assert_eq!(in_place.counts(), copied.counts());
        prop_assert_eq!(at_rest(&mut copied), before);
    }
}

#[test]
fn without_a_free_frame_a_datagram_is_dropped_and_counted() {
    let mut host = Host::new(config());
    host.copies = Some(3);
    let before = at_rest(&mut host);
    let frames: Vec<_> = (0..8).map(|n| query(&format!("192.0.2.2:{}", 4000 + n), "192.0.2.1:53", b"x")).collect();
    assert_eq!(host.exchange(&frames).len(), 3);
    assert_eq!(host.counts(), (vec![(DropReason::NoFrame, 5)], vec![(Handled::Udp4Answered, 3)]));
    assert_eq!(at_rest(&mut host), before);
}
