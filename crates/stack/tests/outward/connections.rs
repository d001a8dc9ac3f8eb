//! Connections that leave: their SYNs, and which station their segments go to.

use super::*;

#[test]
fn a_syn_waits_for_its_neighbour() {
    let mut bench = Bench::new(with_tcp());
    let (said, sent) = bench.connect("192.0.2.2:80");
    assert_eq!((said, sent.iter().map(|frame| asked4(frame)).collect::<Vec<_>>()), (Ok(()), vec![B4]));
    let sent = bench.cycle(Some(&arp_answer(B4, THEIRS)));
    assert_eq!(sent.iter().map(|frame| syn(frame)).collect::<Vec<_>>(), [(THEIRS, B4.into(), 80)]);
    // the next one needs not ask
    let (_, sent) = bench.connect("192.0.2.2:81");
    assert_eq!(sent.iter().map(|frame| syn(frame)).collect::<Vec<_>>(), [(THEIRS, B4.into(), 81)]);
    let (_, sent) = bench.connect("[2001:db8::2]:80");
    assert_eq!(sent.iter().map(|frame| asked6(frame)).collect::<Vec<_>>(), [B6]);
    let sent = bench.cycle(Some(&nd_answer(B6, THEIRS)));
    assert_eq!(sent.iter().map(|frame| syn(frame)).collect::<Vec<_>>(), [(THEIRS, B6.into(), 80)]);
    let counters = bench.stack.counters();
    assert_eq!((counters.handled(Handled::ArpHeard), counters.handled(Handled::NeighbourHeard)), (1, 1));
    assert_eq!(counters.neighbours_asked.get(), 2);
}

#[test]
fn a_neighbour_that_does_not_answer_makes_it_unreachable() {
    let mut bench = Bench::new(with_tcp());
    let (said, sent) = bench.connect("192.0.2.99:80");
    assert_eq!((said, sent.len()), (Ok(()), 1));
    let again: Vec<usize> = (0..3).map(|_| bench.pass(1000).len()).collect();
    assert_eq!(again, [1, 1, 0], "three questions");
    bench.cycle(None);
    bench.cycle(None);
    assert_eq!(bench.notes.connected, [Err(DeadReason::Unreachable)]);
    assert_eq!(bench.stack.tcp_usage().connections, 0);
    // and whoever answers unasked, or too late, is not remembered
    bench.pass(2000);
    bench.cycle(Some(&arp_answer(Ipv4Addr::new(192, 0, 2, 99), THEIRS)));
    assert_eq!(bench.stack.counters().handled(Handled::ArpHeard), 0);
    let (_, sent) = bench.connect("192.0.2.99:80");
    assert_eq!(asked4(&sent[0]), Ipv4Addr::new(192, 0, 2, 99));
    bench.cycle(Some(&arp_answer(Ipv4Addr::new(192, 0, 2, 50), THEIRS)));
    let (_, sent) = bench.connect("192.0.2.50:80");
    assert_eq!(asked4(&sent[0]), Ipv4Addr::new(192, 0, 2, 50));
}

/// Each thread knows neighbours of its own.
#[test]
fn a_connection_that_waits_sets_out_where_its_neighbour_is_known() {
    let [mut asks, mut knows] = [Bench::new(with_tcp()), Bench::new(with_tcp())];
    let groups = Arc::new(Groups::keyed(1, [5, 6]));
    for bench in [&mut asks, &mut knows] {
        bench.stack.set_groups(groups.clone());
    }
    assert_eq!(knows.connect("192.0.2.2:81").0, Ok(()));
    knows.cycle(Some(&arp_answer(B4, THEIRS)));
    let (_, sent) = asks.connect("192.0.2.2:80");
    assert_eq!(asked4(&sent[0]), B4);
    let departure = asks.stack.depart(asks.now, 0, &mut asks.notes);
    assert_eq!(knows.stack.arrive(knows.now, departure, &mut knows.notes).connections, 1);
    let sent = knows.cycle(None);
    assert_eq!(sent.iter().map(|frame| syn(frame)).collect::<Vec<_>>(), [(THEIRS, B4.into(), 80)]);
    // and again as any other, and not for ever
    let mut ports: Vec<u16> = knows.pass(2000).iter().map(|frame| syn(frame).2).collect();
    ports.sort_unstable();
    assert_eq!(ports, [80, 81]);
    (0..70).for_each(|_| drop(knows.pass(1000)));
    assert_eq!(knows.notes.connected, [Err(DeadReason::TimedOut); 2]);
    assert_eq!(knows.stack.tcp_usage().connections, 0);
}

#[test]
fn nobody_answers_a_connection_before_its_syn_has_left() {
    let syn = Header { src_port: 80, dst_port: 50_000, flags: Flags::SYN, window: 60_000, ..Header::default() };
    let from_peer = |header| brought(THEIRS, None, B4, header);
    for is_there in [false, true] {
        let mut bench = Bench::new(with_tcp());
        let local = Some((A4, 50_000).into());
        let (said, sent) = bench.ask(Ask::Connect((B4, 80).into(), local));
        assert_eq!((said, asked4(&sent[0])), (Ok(()), B4));
        for flags in [Flags::SYN, Flags::ACK, Flags::SYN | Flags::ACK, Flags::RST] {
            let sent = bench.cycle(Some(&from_peer(Header { flags, ..syn })));
            assert!(sent.is_empty(), "{flags:?}: {sent:?}");
        }
        if is_there {
            let sent = bench.cycle(Some(&arp_answer(B4, THEIRS)));
            assert_eq!(self::syn(&sent[0]), (THEIRS, B4.into(), 80));
            // the SYN that comes again crosses it
            let sent = bench.cycle(Some(&from_peer(syn)));
            let answer = segment(&sent[0]).unwrap();
            assert_eq!((answer.mac, answer.flags), (THEIRS, Flags::SYN | Flags::ACK));
        } else {
            (0..3).for_each(|_| drop(bench.pass(1000)));
            bench.cycle(None);
            assert_eq!(bench.notes.connected, [Err(DeadReason::Unreachable)]);
            assert_eq!(bench.stack.tcp_usage().connections, 0);
        }
    }
}

/// RFC 9293 section 3.7.1, MUST-15.
#[test]
fn a_peer_that_names_no_mss_is_sent_what_its_family_takes() {
    for (remote, neighbour, peer, most) in [
        ("192.0.2.2:80", arp_answer(B4, THEIRS), IpAddr::from(B4), 536),
        ("[2001:db8::2]:80", nd_answer(B6, THEIRS), IpAddr::from(B6), 1220),
    ] {
        let mut bench = Bench::new(with_tcp());
        assert_eq!(bench.connect(remote).0, Ok(()));
        let sent = bench.cycle(Some(&neighbour));
        let ours = segment(&sent[0]).unwrap();
        let (src_port, dst_port, ack) = (80, ours.from_port, ours.seq + 1);
        let flags = Flags::SYN | Flags::ACK;
        let header = Header { src_port, dst_port, ack, flags, window: 60_000, ..Header::default() };
        bench.cycle(Some(&brought(THEIRS, None, peer, header)));
        bench.notes.asks.push(Ask::Stream(bench.notes.connected[0].expect("a connection"), vec![b'x'; 5000]));
        let sent = bench.cycle(None);
        assert_eq!(segment(&sent[0]).map(|sent| sent.payload_bytes), Some(most), "{remote}");
    }
}

/// Another router has taken the gateway's address, with a hardware address of its own (RFC 1122 section 3.3.1.4), long after the first was
/// heard or soon.
#[test]
fn who_gets_no_answer_asks_which_station_the_gateway_is_by_now() {
    const OTHER: Mac = [2, 0, 0, 0, 0, 0xfd];
    let (router, peer) = (Ipv4Addr::new(192, 0, 2, 254), Ipv4Addr::new(198, 51, 100, 7));
    let cases = ["handshake", "data", "keepalive", "tagged"].into_iter().flat_map(|what| [(what, 5), (what, 31)]);
    for (what, age_s) in cases {
        let mut tcp = TcpConfig::default();
        let keepalive = Some(Duration::from_secs(age_s + 4));
        (tcp.times.keepalive, tcp.times.keepalive_interval) = (keepalive, Duration::from_secs(5));
        let mut bench = Bench::new(Config { gateways: vec![router.into()], tcp: Some(tcp), ..config() });
        assert_eq!(bench.connect("198.51.100.7:80").0, Ok(()));
        let sent = bench.cycle(Some(&arp_answer(router, GATEWAY)));
        let ours = segment(&sent[0]).unwrap();
        let (src_port, dst_port, seq, ack) = (80, ours.from_port, Seq::new(7), ours.seq + 1);
        let flags = Flags::SYN | Flags::ACK;
        let header = Header { src_port, dst_port, seq, ack, flags, window: 60_000, ..Header::default() };
        bench.cycle(Some(&brought(GATEWAY, None, peer, header)));
        let connection = bench.notes.connected[0].expect("a connection");
        let tag = (what == "tagged").then_some(7);
        let header = Header { seq: seq + 1, flags: Flags::ACK, ..header };
        bench.cycle(Some(&brought(GATEWAY, tag, peer, header)));
        assert!(bench.pass(1000 * age_s).is_empty());
        let mut port = 80;
        match what {
            "handshake" => {
                port = 81;
                bench.notes.asks.push(Ask::Connect((peer, port).into(), None));
            }
            "keepalive" => {}
            _ => assert_eq!(bench.stack.calls(bench.now).unwrap().send(connection, b"anybody?"), Ok(8)),
        }
        let mut stations = Vec::new();
        for _ in 0..250 {
            for frame in bench.pass(100) {
                match segment(&frame) {
                    Some(sent) if sent.to_port == port => stations.push((sent.mac, sent.tag)),
                    Some(_) => {}
                    None => {
                        assert_eq!(asked4(&frame), router);
                        bench.cycle(Some(&arp_answer(router, OTHER)));
                    }
                }
            }
        }
        let first = stations.iter().filter(|station| **station == (GATEWAY, tag)).count();
        stations.dedup();
        let asked = bench.stack.counters().neighbours_asked.get();
        if tag.is_some() {
            // what has a tag goes over a link where we ask nobody
            assert_eq!((stations, asked), (vec![(GATEWAY, tag)], 1), "{what} {age_s}");
        } else {
            // a connection that is asked for asks for what is old, too, before it has a doubt
            let questions = if (what, age_s) == ("handshake", 31) { 3 } else { 2 };
            assert_eq!((stations, asked), (vec![(GATEWAY, None), (OTHER, None)], questions), "{what} {age_s}");
            assert!(first <= 5, "{what} {age_s}: {first} before the gateway was asked for");
        }
    }
}

#[test]
fn what_is_on_no_link_goes_over_the_gateway_or_nowhere() {
    let router = Ipv4Addr::new(192, 0, 2, 254);
    let mut bench = Bench::new(Config { gateways: vec![router.into()], ..with_tcp() });
    let (_, sent) = bench.connect("198.51.100.7:80");
    assert_eq!(asked4(&sent[0]), router);
    let sent = bench.cycle(Some(&arp_answer(router, GATEWAY)));
    assert_eq!(syn(&sent[0]), (GATEWAY, Ipv4Addr::new(198, 51, 100, 7).into(), 80));
    let (said, sent) = bench.connect("[2001:db8:9::7]:80");
    assert_eq!((said, sent.len()), (Ok(()), 0));
    assert_eq!(bench.notes.connected, [Err(DeadReason::Unreachable)]);
    // to ourselves there is no way over the wire
    assert_eq!(bench.connect(&format!("{A4}:80")).0, Err(CallError::NoSuchAddress));
}

#[test]
fn an_address_that_is_not_in_use_yet_is_none_to_leave_from() {
    let claim = Claim { mode: ClaimMode::Detect, ..Claim::default() };
    let mut bench = Bench::new(Config { claim, ..with_tcp() });
    assert_eq!(bench.connect("192.0.2.2:80").0, Err(CallError::NoSuchAddress));
    for _ in 0..30 {
        bench.pass(1000);
    }
    assert_eq!(bench.connect("192.0.2.2:80").0, Ok(()));
}
