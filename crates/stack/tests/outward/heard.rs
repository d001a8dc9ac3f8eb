//! What neighbours say of themselves, and what of it is believed.

use super::*;

/// The answer comes to another queue than the one whose stack asked.
#[test]
fn stacks_of_one_interface_hear_for_each_other() {
    let agreement = Arc::new(Agreement::new([IpAddr::from(A4)]));
    let one = |mode| Config {
        own: vec![own(A4.into(), 24)],
        agreement: Some(agreement.clone()),
        claim: Claim { mode, ..Claim::default() },
        ..with_tcp()
    };
    let (mut first, mut second) = (Bench::new(one(ClaimMode::Announce)), Bench::new(one(ClaimMode::Silent)));
    first.pass(1);
    let (said, sent) = second.connect("192.0.2.2:80");
    assert_eq!((said, asked4(&sent[0])), (Ok(()), B4));
    first.cycle(Some(&arp_answer(B4, THEIRS)));
    assert_eq!(first.stack.counters().handled(Handled::ArpHeard), 1);
    let sent = second.pass(10);
    assert_eq!(syn(&sent[0]), (THEIRS, B4.into(), 80));

    // two that ask at once: either answer is both's, whichever of them hears it, and takes it in, first
    for (last, both_hear) in [(3, false), (4, true)] {
        let neighbour = Ipv4Addr::new(192, 0, 2, last);
        let (mut first, mut second) = (Bench::new(one(ClaimMode::Announce)), Bench::new(one(ClaimMode::Silent)));
        first.pass(1);
        second.pass(1);
        for bench in [&mut first, &mut second] {
            let (said, sent) = bench.connect(&format!("{neighbour}:80"));
            assert_eq!((said, asked4(&sent[0])), (Ok(()), neighbour));
        }
        let answer = arp_answer(neighbour, THEIRS);
        let sent = first.cycle(Some(&answer));
        assert_eq!(sent.iter().map(|frame| syn(frame).2).collect::<Vec<_>>(), [80]);
        let sent = if both_hear { second.cycle(Some(&answer)) } else { second.pass(10) };
        assert_eq!(sent.iter().map(|frame| syn(frame).2).collect::<Vec<_>>(), [80], "{both_hear}");
    }
}

#[test]
fn a_hardware_address_that_no_other_station_has_is_not_taken() {
    for (ours, neighbour) in [("192.0.2.1:7", IpAddr::from(B4)), ("[2001:db8::1]:7", B6.into())] {
        let peer = SocketAddr::new(neighbour, 9).to_string();
        let mut bench = Bench::new(config());
        assert_eq!(bench.send(ours, &peer, b"one").0, Ok(()));
        for mac in [[0; 6], OURS, BROADCAST, [0x33, 0x33, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1]] {
            let sent = bench.cycle(Some(&answer_with(neighbour, mac, true)));
            assert!(stations(&sent).is_empty(), "{peer} {mac:x?}");
        }
        let counters = bench.stack.counters();
        assert_eq!((counters.handled(Handled::ArpHeard), counters.handled(Handled::NeighbourHeard)), (0, 0));
        assert_eq!(stations(&bench.cycle(Some(&answer_with(neighbour, THEIRS, true)))), [(THEIRS, None)]);
    }
}

#[test]
fn an_answer_in_a_vlan_is_none_to_what_was_asked_without_a_tag() {
    for (ours, neighbour) in [("192.0.2.1:7", IpAddr::from(B4)), ("[2001:db8::1]:7", B6.into())] {
        let peer = SocketAddr::new(neighbour, 9).to_string();
        for (tag, taken) in [(7, false), (0x0fff, false), (0xe007, false), (0, true), (0xe000, true)] {
            let mut bench = Bench::new(config());
            assert_eq!(bench.send(ours, &peer, b"one").0, Ok(()));
            let sent = bench.cycle(Some(&tagged(&answer_with(neighbour, THEIRS, true), tag)));
            assert_eq!(stations(&sent), vec![(THEIRS, None); usize::from(taken)], "{peer} {tag:x}");
        }
    }
    // who asks tells, but not in a VLAN
    for (tag, taken) in [(7, false), (0, true)] {
        let mut bench = Bench::new(config());
        assert_eq!(bench.send("192.0.2.1:7", "192.0.2.2:9", b"one").0, Ok(()));
        let mut packet = [0; 28];
        let arp = Arp { operation: Operation::Request, sender_mac: THEIRS, sender: B4, target_mac: [0; 6], target: A4 };
        arp.write(&mut packet);
        let sent = bench.cycle(Some(&link(BROADCAST, THEIRS, Some(tag), EtherType::ARP, &packet)));
        assert_eq!(sent.len(), 1 + usize::from(taken), "the request is answered");
    }
}

/// RFC 4861 section 7.2.5: who answers in another's place, as a proxy does, does not take the place of who has answered himself.
#[test]
fn an_advertisement_without_the_override_flag_changes_no_neighbour_that_is_known() {
    const PROXY: Mac = [2, 0, 0, 0, 0, 0x99];
    let (ours, peer) = ("[2001:db8::1]:7", "[2001:db8::2]:9");
    let mut bench = Bench::new(config());
    assert_eq!(bench.send(ours, peer, b"one").0, Ok(()));
    // who is known by nothing else is known by this
    assert_eq!(stations(&bench.cycle(Some(&answer_with(B6.into(), PROXY, false)))), [(PROXY, None)]);
    bench.pass(31_000);
    assert_eq!(bench.send(ours, peer, b"two").0, Ok(()));
    bench.cycle(Some(&answer_with(B6.into(), THEIRS, false)));
    assert_eq!(stations(&bench.send(ours, peer, b"three").1), [(PROXY, None)]);
    bench.cycle(Some(&answer_with(B6.into(), THEIRS, true)));
    assert_eq!(stations(&bench.send(ours, peer, b"four").1), [(THEIRS, None)]);
    // and so it is with the next question
    bench.pass(31_000);
    assert_eq!(bench.send(ours, peer, b"five").0, Ok(()));
    bench.cycle(Some(&answer_with(B6.into(), PROXY, false)));
    assert_eq!(stations(&bench.send(ours, peer, b"six").1), [(THEIRS, None)]);
}
