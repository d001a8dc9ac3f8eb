//! Datagrams that nobody asked for, or that answer late.

use super::*;

/// The datagrams' twin of what holds for connections: answers that come keep nobody with a router that is gone.
#[test]
fn datagrams_go_to_the_station_that_the_gateway_is_by_now() {
    const OTHER: Mac = [2, 0, 0, 0, 0, 0xfd];
    for (ours, peer, answer) in beyond() {
        let mut bench = with_routers();
        let (from_peer, to_us) = (peer.parse().unwrap(), ours.parse().unwrap());
        assert_eq!(stations(&bench.send(ours, peer, b"one").1), []);
        assert_eq!(stations(&bench.cycle(Some(&answer(GATEWAY)))), [(GATEWAY, None)]);
        bench.cycle(Some(&told(GATEWAY, None, from_peer, to_us)));
        bench.pass(31_000);
        bench.cycle(Some(&told(GATEWAY, None, from_peer, to_us)));
        let (said, sent) = bench.send(ours, peer, b"two");
        assert_eq!((said, stations(&sent), sent.len()), (Ok(()), vec![(GATEWAY, None)], 2), "and it is asked again");
        bench.cycle(Some(&answer(OTHER)));
        assert_eq!(stations(&bench.send(ours, peer, b"three").1), [(OTHER, None)], "{peer}");
    }
}

#[test]
fn a_datagram_does_not_say_which_station_a_neighbour_is() {
    const FOREIGN: Mac = [2, 0, 0, 0, 0, 0x66];
    for (ours, peer, answer) in beyond() {
        for tag in [None, Some(7)] {
            let mut bench = with_routers();
            let (from_peer, to_us) = (peer.parse().unwrap(), ours.parse().unwrap());
            assert_eq!(bench.send(ours, peer, b"one").0, Ok(()));
            bench.cycle(Some(&answer(GATEWAY)));
            bench.cycle(Some(&told(FOREIGN, tag, from_peer, to_us)));
            assert_eq!(stations(&bench.send(ours, peer, b"two").1), [(GATEWAY, None)], "{peer} {tag:?}");
        }
    }
}

/// At an own address who has not been asked for yet is taken for where his last datagram came from, for as long as an answer to ARP would
/// be believed; at an address of the kernel's nobody can be asked.
#[test]
fn a_late_answer_finds_the_station_of_a_question_that_is_not_too_old() {
    for (ours, peer, neighbour) in [
        ("192.0.2.1:7", "192.0.2.2:9", arp_answer(B4, THEIRS)),
        ("[2001:db8::1]:7", "[2001:db8::2]:9", nd_answer(B6, THEIRS)),
    ] {
        for tag in [None, Some(7)] {
            let mut bench = Bench::new(config());
            let question = told(GATEWAY, tag, peer.parse().unwrap(), ours.parse().unwrap());
            bench.cycle(Some(&question));
            bench.pass(29_000);
            assert_eq!(stations(&bench.send(ours, peer, b"late").1), [(GATEWAY, tag)]);
            bench.pass(1_000);
            let (said, sent) = bench.send(ours, peer, b"too late");
            assert_eq!((said, stations(&sent), sent.len()), (Ok(()), vec![], 1), "asked");
            assert_eq!(stations(&bench.cycle(Some(&neighbour))), [(THEIRS, None)], "{peer} {tag:?}");
        }
    }
    let (ours, peer) = ("198.51.100.1:7", "203.0.113.5:4000");
    let mut bench = Bench::new(Config { own: Vec::new(), steered: true, ..config() });
    bench.cycle(Some(&told(GATEWAY, Some(7), peer.parse().unwrap(), ours.parse().unwrap())));
    bench.pass(3_600_000);
    assert_eq!(stations(&bench.send(ours, peer, b"much later").1), [(GATEWAY, Some(7))]);
}

#[test]
fn a_late_answer_goes_where_the_question_came_from_also_at_an_address_of_the_kernels() {
    let shared = Ipv4Addr::new(198, 51, 100, 1);
    let listen = |local: &str| UdpListener { listener: Listener(1), local: local.parse().unwrap() };
    let mut bench = Bench::new(Config { own: Vec::new(), listeners: vec![listen("198.51.100.1:7")], ..config() });
    assert_eq!(bench.send("198.51.100.1:7", "203.0.113.5:4000", b"x").0, Err(CallError::Unreachable));
    let (peer, local): (SocketAddr, SocketAddr) = ((Ipv4Addr::new(203, 0, 113, 5), 4000).into(), (shared, 7).into());
    let question = ip(peer.ip(), shared.into(), Protocol::UDP, &[], &datagram(peer, local, b"later"));
    assert_eq!(bench.cycle(Some(&link(OURS, GATEWAY, Some(7), EtherType::IPV4, &question))), Vec::<Vec<u8>>::new());
    let (said, sent) = bench.send("198.51.100.1:7", "203.0.113.5:4000", b"now");
    assert_eq!(said, Ok(()));
    assert_eq!(sent_datagram(&sent[0]), (GATEWAY, Some(7), local, peer, b"now".to_vec()));
    assert_eq!(bench.send("198.51.100.2:7", "203.0.113.5:4000", b"x").0, Err(CallError::NoSuchAddress));
    assert_eq!(bench.stack.counters().unasked.get(), 1);
}

#[test]
fn datagrams_wait_for_their_neighbour_and_are_dropped_without_one() {
    let mut bench = Bench::new(config());
    let any = "0.0.0.0:7";
    for (peer, n) in [("192.0.2.2:9", 1), ("192.0.2.2:9", 0), ("192.0.2.99:9", 1)] {
        let (said, sent) = bench.send(any, peer, peer.as_bytes());
        assert_eq!((said, sent.len()), (Ok(()), n), "{peer}");
    }
    let sent = bench.cycle(Some(&arp_answer(B4, THEIRS)));
    assert_eq!(sent.len(), 2);
    let (mac, tag, from, to, bytes) = sent_datagram(&sent[0]);
    assert_eq!((mac, tag, from, to), (THEIRS, None, (A4, 7).into(), (B4, 9).into()));
    assert_eq!(bytes, b"192.0.2.2:9");
    for _ in 0..5 {
        bench.pass(1000);
    }
    let counters = bench.stack.counters();
    assert_eq!((counters.unasked.get(), counters.unasked_lost.get()), (2, 1));
    assert_eq!(bench.send(any, "192.0.2.2:9", &[0; 1473]).0, Err(CallError::TooLong));
    assert_eq!(bench.send(any, "192.0.2.2:9", &[0; 1472]).0, Ok(()));
}

#[test]
fn a_silent_neighbour_keeps_nobody_waiting_but_who_sends_to_it() {
    let mut bench = Bench::new(config());
    // somebody has asked at the other listener, and will be answered later
    let (peer, local): (SocketAddr, SocketAddr) = ((B4, 4000).into(), (A4, 53).into());
    let question = ip(peer.ip(), local.ip(), Protocol::UDP, &[], &datagram(peer, local, b"later"));
    bench.cycle(Some(&link(OURS, THEIRS, None, EtherType::IPV4, &question)));
    let counters = bench.stack.counters();
    let mut said = [0; 2];
    for n in 0..300u64 {
        let to = format!("192.0.2.{}:9", 100 + n % 100);
        said[usize::from(bench.send("0.0.0.0:7", &to, b"anybody?").0.is_err())] += 1;
    }
    assert!(said[0] >= 30 && said[1] >= 30, "{said:?}");
    let answer = Ask::Send(Listener(0), Addresses { local, peer }, b"now".to_vec());
    let (said, sent) = bench.ask(answer);
    assert_eq!(said, Ok(()));
    assert_eq!(sent.iter().map(|frame| sent_datagram(frame).4).collect::<Vec<_>>(), [b"now"]);
    assert_eq!((counters.unasked.get(), counters.unasked_lost.get()), (1, 0));
    // its listener finds room for neighbours of its own, too
    let ends = Addresses { local, peer: (Ipv4Addr::new(192, 0, 2, 3), 9).into() };
    let (said, sent) = bench.ask(Ask::Send(Listener(0), ends, b"unasked".to_vec()));
    assert_eq!((said, sent.iter().map(|frame| asked4(frame)).next_back()), (Ok(()), Some(Ipv4Addr::new(192, 0, 2, 3))));
    let sent = bench.cycle(Some(&arp_answer(Ipv4Addr::new(192, 0, 2, 3), THEIRS)));
    assert_eq!(sent.iter().map(|frame| sent_datagram(frame).4).collect::<Vec<_>>(), [b"unasked"]);
}

/// RFC 1122 section 2.3.2.1: one question a second for each address, and whoever asks for many takes nothing from who asks for one.
#[test]
fn who_sends_to_many_that_are_silent_keeps_nobody_from_his_neighbour() {
    let live = Ipv4Addr::new(192, 0, 2, 3);
    let silent = || (20..220).map(|n| SocketAddr::from((Ipv4Addr::new(192, 0, 2, n), 9)));
    let local = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7));
    for connects in [false, true] {
        let mut bench = Bench::new(Config { gateways: vec![ROUTER4.into()], ..with_tcp() });
        // the router has answered a while ago, and is asked again in the midst of it
        assert_eq!(bench.send("192.0.2.1:7", "198.51.100.7:9", b"early").0, Ok(()));
        bench.cycle(Some(&arp_answer(ROUTER4, GATEWAY)));
        bench.pass(31_000);
        let mut questions: Vec<(Ipv4Addr, Instant)> = Vec::new();
        // when each of the two that are there answers
        let mut answers = Vec::new();
        let mut delivered = Vec::new();
        for n in 0..400 {
            bench.now += Duration::from_millis(10);
            bench.notes.asks.extend(silent().map(|peer| match connects {
                true => Ask::Connect(peer, None),
                false => Ask::Send(Listener(1), Addresses { local, peer }, b"anybody?".to_vec()),
            }));
            if n == 100 {
                let to = |peer: &str| Addresses { local: (A4, 53).into(), peer: peer.parse().unwrap() };
                bench.notes.asks.push(Ask::Send(Listener(0), to("192.0.2.3:9"), b"near".to_vec()));
                bench.notes.asks.push(Ask::Send(Listener(0), to("198.51.100.7:9"), b"far".to_vec()));
            }
            let answer = answers.pop_if(|(at, _)| *at <= n).map(|(_, frame)| frame);
            for frame in bench.cycle(answer.as_deref()) {
                if !stations(std::slice::from_ref(&frame)).is_empty() {
                    delivered.push(sent_datagram(&frame).4);
                } else if segment(&frame).is_none() {
                    let target = asked4(&frame);
                    questions.push((target, bench.now));
                    for (who, mac, late) in [(live, THEIRS, 6), (ROUTER4, GATEWAY, 3)] {
                        if target == who {
                            answers.insert(0, (n + late, arp_answer(who, mac)));
                        }
                    }
                }
            }
        }
        delivered.sort();
        assert_eq!(delivered, [b"far".to_vec(), b"near".to_vec()], "connections: {connects}");
        let counters = bench.stack.counters();
        assert_eq!(counters.handled(Handled::ArpHeard), 3, "connections: {connects}");
        questions.sort();
        let of_one = |pair: &&[(Ipv4Addr, Instant)]| pair[0].0 == pair[1].0;
        let soon = questions.windows(2).filter(of_one).filter(|pair| pair[1].1 - pair[0].1 < Duration::from_secs(1));
        if connects {
            assert!(soon.count() < 2000 && questions.len() < 4000, "{} questions in four seconds", questions.len());
        } else {
            assert_eq!(soon.count(), 0);
        }
    }
}

/// No frame is to be had, and a listener has given all that it may, also to neighbours that answer meanwhile; the frames, and how many
/// datagrams wait.
fn without_frames(bench: &mut Bench) -> (Vec<Frame>, usize) {
    let give = |bench: &mut Bench, n: u8, most: usize| {
        let to = format!("192.0.2.{n}:9");
        (0..most).take_while(|_| bench.send("0.0.0.0:7", &to, b"x").0 == Ok(())).count()
    };
    give(bench, 2, 1);
    bench.cycle(Some(&arp_answer(B4, THEIRS)));
    let mut taken: usize = (20..60).map(|n| give(bench, n, 3)).sum();
    let mut held: Vec<Frame> = std::iter::from_fn(|| bench.port.take()).collect();
    taken += give(bench, 2, 300);
    for (neighbours, most) in [(20..40, 0), (40..60, 3)] {
        taken += neighbours.clone().map(|n| give(bench, n, most)).sum::<usize>();
        for n in neighbours {
            // one for the answer
            bench.port.give(held.pop().unwrap());
            assert_eq!(bench.cycle(Some(&arp_answer(Ipv4Addr::new(192, 0, 2, n), THEIRS))), Vec::<Vec<u8>>::new());
            held.push(bench.port.take().unwrap());
        }
    }
    (held, taken)
}

#[test]
fn neighbours_that_answer_while_no_frame_is_to_be_had_cost_nobody_his_place() {
    let mut bench = Bench::new(config());
    without_frames(&mut bench);
    let ends = Addresses { local: (A4, 53).into(), peer: (B4, 9).into() };
    assert_eq!(bench.ask(Ask::Send(Listener(0), ends, b"another's".to_vec())).0, Ok(()));
}

#[test]
fn what_has_a_neighbour_and_no_place_leaves_as_soon_as_it_has_one() {
    let mut bench = Bench::new(config());
    let (held, taken) = without_frames(&mut bench);
    assert!(taken > 64, "{taken} wait");
    held.into_iter().for_each(|frame| bench.port.give(frame));
    let mut sent = bench.cycle(None).len();
    // nothing comes any more that would have it look
    while let Some(at) = bench.due {
        bench.now = at;
        sent += bench.cycle(None).len();
    }
    assert_eq!(sent, taken);
    assert_eq!(bench.stack.counters().unasked_lost.get(), 0);
}
