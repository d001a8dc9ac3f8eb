//! What only happens between two instructions of two threads.

use super::*;
use crate::{Agreement, Claim, Config, OwnAddress};
use base::Arena;
use wire::ipv6::Ipv6;

const OURS: Mac = [2, 0, 0, 0, 0, 1];
const OTHER: Mac = [2, 0, 0, 0, 0, 0x77];
const ADDR: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

fn stack(mode: ClaimMode, agreement: &Arc<Agreement>) -> Stack {
    let facts = port::Facts { mac: OURS, mtu: 1500, frame_bytes: 1514, virtual_link: false, receive_slots: 64 };
    let own = vec![OwnAddress { addr: ADDR.into(), prefix_len: 64 }];
    let claim = Claim { mode, ..Claim::default() };
    Stack::new(Config { own, claim, agreement: Some(agreement.clone()), ..Config::default() }, &facts)
}

/// Another station's probe for the address comes to a stack that has not taken in yet that the claiming one has just begun to use it.
#[test]
fn a_probe_for_an_address_that_came_to_be_used_just_now_is_told_so() {
    let agreement = Arc::new(Agreement::new([ADDR.into()]));
    let mut follows = stack(ClaimMode::Silent, &agreement);
    let claims = stack(ClaimMode::Announce, &agreement);
    assert!(claims.own[0].in_use() && follows.own[0].in_use());
    assert_eq!(follows.locals.find(Key::v6(ADDR)), Some(Local::NotReady(0)));

    let dst = ipv6::solicited_node(ADDR);
    let mut probe = vec![0; ethernet::HEADER_BYTES];
    Link { dst: ipv6::group_mac(dst), src: OTHER, tag: None, ether_type: EtherType::IPV6 }.write(&mut probe);
    let mut packet = [0; ipv6::HEADER_BYTES + icmpv6::PROBE_BYTES];
    let message = write_link_ipv6(&mut packet, Ipv6Addr::UNSPECIFIED, dst);
    icmpv6::write_probe(message.first_chunk_mut().unwrap(), dst, ADDR);
    let icmp = icmpv6::Icmp::parse(message, Ipv6Addr::UNSPECIFIED, dst).unwrap();
    let neighbour = icmp.neighbour().unwrap();
    probe.extend(packet);

    let (_arena, mut frames) = Arena::new(1, 2048).unwrap();
    let mut frame = frames.pop().unwrap();
    for (now_s, sends) in [(100, true), (105, false), (111, true)] {
        assert!(frame.fill(&probe));
        let now = Instant::ZERO + Duration::from_secs(now_s);
        assert_eq!(follows.handle_solicitation(now, &mut frame, ethernet::HEADER_BYTES, neighbour), sends, "{now_s}");
        if !sends {
            continue;
        }
        let link = Link::parse(frame.bytes()).unwrap();
        assert_eq!((link.src, link.dst), (OURS, ipv6::group_mac(ALL_NODES)), "never in another's name");
        let ip = Ipv6::parse(&frame.bytes()[link.bytes()..]).unwrap();
        let told = icmpv6::Icmp::parse(ip.payload(), ip.src(), ip.dst()).unwrap();
        assert_eq!((ip.src(), ip.dst(), told.kind()), (ADDR, ALL_NODES, icmpv6::Kind::Advertisement));
        assert_eq!(told.neighbour().unwrap().target_mac, Some(OURS));
    }
    assert_eq!(follows.counters.own()[0].conflicts, 3);
}
