//! What AF_XDP takes and what it leaves: only the questions to the addresses served, and nothing is lost between the two.

use crate::common::{
    CLIENT_PORT, LISTEN, RawClient, Server, client, datagram, dig, dig_until, ip, question, question_for, udp_v4,
    udp_v6,
};
use lab::{CLIENT_V4, CLIENT_V6, Lab, SERVER_V4, SERVER_V6, frame, frame::protocol};
use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

/// RCODE NOERROR, authoritative, one answer record.
fn answered(message: &[u8]) {
    assert!(message[2] & 0x84 == 0x84 && message[3] & 15 == 0 && message[7] == 1, "{message:02x?}");
}

#[test]
fn everything_else_of_the_address_stays_the_kernels() {
    let lab = Lab::new().unwrap();
    let server = Server::start(lab.server(), &LISTEN);
    dig_until(&lab, "@198.18.0.1 www.example.com A", "198.18.0.80");
    dig_until(&lab, "@2001:db8:18::1 www.example.com A", "198.18.0.80");
    let taken = server.stats().ours();
    for at in [IpAddr::from(SERVER_V4), SERVER_V6.into()] {
        assert!(client(&lab, &format!("ping -c 3 -i 0.2 -W 5 {at}")).contains(" 3 received"), "{at}");
        // as SSH would
        let listener = lab.server().inside(|| TcpListener::bind((at, 2222)).unwrap());
        let mut there = lab.client().inside(|| TcpStream::connect((at, 2222)).unwrap());
        let (mut here, _) = listener.accept().unwrap();
        there.write_all(b"SSH-2.0-test").unwrap();
        let mut got = [0; 12];
        here.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"SSH-2.0-test");

        let socket = lab.server().inside(|| UdpSocket::bind((at, 5353)).unwrap());
        let any: IpAddr = if at.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let asking = lab.client().inside(|| UdpSocket::bind((any, 0)).unwrap());
        asking.send_to(b"another port", (at, 5353)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(socket.recv(&mut [0; 20]).unwrap(), 12);
    }
    assert_eq!(server.stats().ours(), taken, "AF_XDP took what is not ours");
}

#[test]
fn what_passes_to_the_kernel_is_answered_there() {
    let lab = Lab::new().unwrap();
    let server = Server::start(lab.server(), &LISTEN);
    let mut raw = RawClient::new(&lab);
    let mut check = |id: u16, packets: Vec<Vec<u8>>| {
        let before = server.stats();
        packets.iter().for_each(|packet| raw.send(packet));
        let (frame, at) = raw.answer(id);
        answered(&frame[at..]);
        let after = server.stats();
        let grown = (after.ours() - before.taken(), after.on_sockets() - before.on_sockets());
        assert_eq!(grown, (0, 1), "question {id} did not come through the kernel");
    };
    let plain = frame::Ipv4::new(CLIENT_V4, SERVER_V4, protocol::UDP);
    check(1, plain.fragments(&udp_v4(&question(1)), 24));
    check(2, vec![frame::Ipv4 { options: vec![1; 4], ..plain }.packet(&udp_v4(&question(2)))]);
    check(3, frame::ipv6_fragments(CLIENT_V6, SERVER_V6, protocol::UDP, 7, &udp_v6(&question(3)), 24));
    // a fragment header on a whole packet (RFC 6946)
    check(4, frame::ipv6_fragments(CLIENT_V6, SERVER_V6, protocol::UDP, 8, &udp_v6(&question(4)), 1400));
    // hop-by-hop options have the form of destination options (RFC 8200 4.3)
    let options = frame::destination_options(protocol::UDP);
    for (id, header) in [(5, 0), (6, protocol::DESTINATION_OPTIONS)] {
        check(id, vec![frame::ipv6(CLIENT_V6, SERVER_V6, header, &options, &udp_v6(&question(id)))]);
    }
}

#[test]
fn addresses_of_lo_are_answered_through_af_xdp() {
    let lab = Lab::new().unwrap();
    ip(lab.server(), "addr add 203.0.113.53/32 dev lo");
    ip(lab.server(), "addr add 2001:db8:53::53/128 dev lo");
    ip(lab.client(), "route add 203.0.113.53/32 via 198.18.0.1");
    ip(lab.client(), "route add 2001:db8:53::53/128 via 2001:db8:18::1");
    let named = ["--interface", "vs", "--listen", "203.0.113.53:53", "--listen", "[2001:db8:53::53]:53"];
    let any = ["--interface", "vs", "--listen", "0.0.0.0:53", "--listen", "[::]:53"];
    for listen in [named, any] {
        let server = Server::start(lab.server(), &listen);
        for (asked, at) in [(1, "203.0.113.53"), (2, "2001:db8:53::53")] {
            dig_until(&lab, &format!("@{at} www.example.com A"), "198.18.0.80");
            dig_until(&lab, &format!("@{at} +tcp www.example.com AAAA"), "2001:db8:18::80");
            assert!(server.stats().ours() >= asked, "{:?}", server.stats());
        }
        assert_eq!(server.stats().on_sockets(), 0);
    }
}

#[test]
fn a_tagged_question_is_answered_with_its_tag() {
    let lab = Lab::new().unwrap();
    let _server = Server::start(lab.server(), &LISTEN);
    let mut raw = RawClient::new(&lab);
    let v4 = frame::Ipv4::new(CLIENT_V4, SERVER_V4, protocol::UDP).packet(&udp_v4(&question(10)));
    let v6 = frame::ipv6(CLIENT_V6, SERVER_V6, protocol::UDP, &[], &udp_v6(&question(11)));
    for (id, ethertype, packet) in [(10, frame::ethertype::IPV4, v4), (11, frame::ethertype::IPV6, v6)] {
        // priority 3, VLAN 5
        let tagged = frame::ethernet_vlan(raw.them, raw.us, 0x6005, ethertype, &packet);
        raw.raw.send(&tagged).unwrap();
        let (got, at) = raw.answer(id);
        answered(&got[at..]);
        assert_eq!((&got[..6], &got[6..12]), (&raw.us[..], &raw.them[..]));
        assert_eq!((&got[12..14], got[14] & 15, got[15]), (&[0x81, 0][..], 0, 5), "VLAN 5: {got:02x?}");
    }
}

/// An IPv4 packet with a question whose octets `change` may spoil; the header's checksum is made anew where it should be.
fn spoilt_v4(id: u16, fix: bool, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut packet = frame::Ipv4::new(CLIENT_V4, SERVER_V4, protocol::UDP).packet(&udp_v4(&question(id)));
    change(&mut packet);
    if fix {
        packet[10..12].fill(0);
        let sum: u32 = packet[..20].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        packet[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
    packet
}

fn spoilt_v6(id: u16, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut packet = frame::ipv6(CLIENT_V6, SERVER_V6, protocol::UDP, &[], &udp_v6(&question(id)));
    change(&mut packet);
    packet
}

/// Frames that no answer may follow; each has a question number of its own from 100 on.
fn mangled() -> Vec<Vec<u8>> {
    vec![
        // IPv4: wrong checksum, total length beyond the frame and below the header, cut in the UDP header, in the question
        spoilt_v4(100, false, |packet| packet[10] ^= 0x55),
        spoilt_v4(101, true, |packet| packet[2..4].copy_from_slice(&1400_u16.to_be_bytes())),
        spoilt_v4(102, true, |packet| packet[2..4].copy_from_slice(&19_u16.to_be_bytes())),
        spoilt_v4(103, false, |packet| packet.truncate(24)),
        spoilt_v4(104, false, |packet| packet.truncate(50)),
        // a header of three words, version 7
        spoilt_v4(105, true, |packet| packet[0] = 0x43),
        spoilt_v4(106, true, |packet| packet[0] = 0x75),
        // UDP: wrong checksum, length beyond the packet, length below its header
        spoilt_v4(107, false, |packet| packet[26] ^= 0x55),
        spoilt_v4(108, false, |packet| packet[24..26].copy_from_slice(&900_u16.to_be_bytes())),
        spoilt_v4(109, false, |packet| packet[24..26].copy_from_slice(&7_u16.to_be_bytes())),
        // from a multicast address, from the server itself
        spoilt_v4(110, true, |packet| packet[12..16].copy_from_slice(&[224, 0, 0, 9])),
        spoilt_v4(111, true, |packet| packet[12..16].copy_from_slice(&SERVER_V4.octets())),
        // IPv6: payload length beyond the frame, no UDP checksum (RFC 8200 8.1), wrong checksum, cut, from multicast
        spoilt_v6(112, |packet| packet[4..6].copy_from_slice(&1400_u16.to_be_bytes())),
        spoilt_v6(113, |packet| packet[46..48].fill(0)),
        spoilt_v6(114, |packet| packet[46] ^= 0x55),
        spoilt_v6(115, |packet| packet.truncate(45)),
        spoilt_v6(116, |packet| packet[8] = 0xff),
        // DNS: shorter than a header, an answer
        frame::Ipv4::new(CLIENT_V4, SERVER_V4, protocol::UDP).packet(&udp_v4(&question(117)[..11])),
        frame::ipv6(
            CLIENT_V6,
            SERVER_V6,
            protocol::UDP,
            &[],
            &udp_v6(&[&[0, 118, 0x84], &question(118)[3..]].concat()),
        ),
    ]
}

#[test]
fn mangled_frames_are_counted_and_nothing_else() {
    let lab = Lab::new().unwrap();
    // so that who has answered the last has seen those before
    let server = Server::start(lab.server(), &[&LISTEN[..], &["--tier", "xdp"]].concat());
    let mut raw = RawClient::new(&lab);
    let frames = mangled();
    let fate = |stats: &crate::common::Stats| {
        let stack = stats.sum("frames_dropped_total", &[]);
        let dns = stats.sum("dns_drops_total", &[]);
        let passed = stats.sum("steering_passed_total", &[("reason", "short")]);
        let other = stats.sum("steering_passed_total", &[("reason", "not ip")])
            + stats.sum("steering_passed_total", &[("reason", "options or extension headers")])
            + stats.sum("steering_passed_total", &[("reason", "not ours")]);
        [stack, dns, passed + other]
    };
    raw.send(&spoilt_v4(99, true, |_| ()));
    raw.answer(99);
    let before = server.stats();
    for _ in 0..10 {
        frames.iter().for_each(|packet| raw.send(packet));
    }
    // a sound question at the end: what was to be answered before it has been
    raw.send(&spoilt_v4(200, true, |_| ()));
    let mut answers = Vec::new();
    let last = raw.raw.receive(crate::common::PATIENCE, |got| {
        if let Some((53, at)) = datagram(got) {
            answers.push(u16::from_be_bytes([got[at], got[at + 1]]));
        }
        answers.last() == Some(&200)
    });
    assert!(last.is_some() && answers == [200], "answers to {answers:?}");
    let after = server.stats();
    let grown: Vec<u64> = fate(&after).iter().zip(fate(&before)).map(|(after, before)| after - before).collect();
    // the kernel's own traffic (neighbours, routers) may pass as well
    assert!(
        grown.iter().sum::<u64>() >= 10 * frames.len() as u64,
        "{grown:?} of {} frames\n{after:?}",
        10 * frames.len()
    );
    assert!(grown[0] >= 100, "{grown:?}");
    assert_eq!(grown[1], 20, "DNS counts what is no question: {after:?}");
    let taken = after.ours() - before.taken();
    let handled = after.sum("frames_handled_total", &[]) - before.sum("frames_handled_total", &[]);
    assert_eq!(taken, grown[0] + handled, "every frame taken is dropped or handled: {after:?}");
}

#[test]
fn denied_prefixes_get_nothing_and_allowed_ones_everything() {
    let lab = Lab::new().unwrap();
    ip(lab.client(), "addr add 198.18.0.3/24 dev vc");
    ip(lab.client(), "addr add 2001:db8:18::3/64 dev vc nodad");
    let asked = |own: &str, at: &str| dig(&lab, &format!("-b {own} @{at} www.example.com A")) == "198.18.0.80";
    let deny = [&LISTEN[..], &["--deny", "198.18.0.2/32", "--deny", "2001:db8:18::2/128"]].concat();
    let allow = [&LISTEN[..], &["--allow", "198.18.0.3/32", "--allow", "2001:db8:18::3/128"]].concat();
    for (args, reason) in [(deny, "denied"), (allow, "not allowed")] {
        let server = Server::start(lab.server(), &args);
        for (good, bad, at) in
            [("198.18.0.3", "198.18.0.2", "198.18.0.1"), ("2001:db8:18::3", "2001:db8:18::2", "2001:db8:18::1")]
        {
            assert!(lab::wait_until(|| asked(good, at), crate::common::PATIENCE), "{good} of {args:?}");
            let before = server.stats().sum("steering_dropped_total", &[("reason", reason)]);
            assert!(!asked(bad, at), "{bad} of {args:?}");
            assert_eq!(server.stats().sum("steering_dropped_total", &[("reason", reason)]), before + 1);
        }
    }
}

#[test]
fn the_unspecified_address_follows_the_machines() {
    let lab = Lab::new().unwrap();
    let server = Server::start(lab.server(), &["--interface", "vs", "--listen", "0.0.0.0:53", "--listen", "[::]:53"]);
    dig_until(&lab, "@198.18.0.1 www.example.com A", "198.18.0.80");
    for (at, bits, to) in [("198.51.100.7", 32, "198.18.0.1"), ("2001:db8:53::7", 128, "2001:db8:18::1")] {
        ip(lab.client(), &format!("route add {at}/{bits} via {to}"));
        ip(lab.server(), &format!("addr add {at}/{bits} dev lo"));
        let question = format!("@{at} www.example.com A");
        let through = || {
            let before = server.stats().ours();
            dig(&lab, &question) == "198.18.0.80" && server.stats().ours() > before
        };
        assert!(lab::wait_until(through, crate::common::PATIENCE), "{at} is not taken: {:?}", server.stats());
        ip(lab.server(), &format!("addr del {at}/{bits} dev lo"));
        let gone = || {
            let before = server.stats().ours();
            dig(&lab, &question) != "198.18.0.80" && server.stats().ours() == before
        };
        assert!(lab::wait_until(gone, crate::common::PATIENCE), "{at} is still taken: {:?}", server.stats());
    }
    // the address that stayed is served all along
    dig_until(&lab, "@198.18.0.1 www.example.com A", "198.18.0.80");
}

#[test]
fn a_question_to_a_name_beside_is_no_business_of_the_port() {
    let lab = Lab::new().unwrap();
    let server = Server::start(lab.server(), &["--interface", "vs", "--listen", "198.18.0.1:53"]);
    dig_until(&lab, "@198.18.0.1 www.example.com A", "198.18.0.80");
    let mut raw = RawClient::new(&lab);
    let before = server.stats();
    // IPv6 has no listener: the kernel says so itself
    let asking =
        frame::udp((CLIENT_V6.into(), CLIENT_PORT), (SERVER_V6.into(), 53), &question_for("www.example.com", 1, 5));
    raw.send(&frame::ipv6(CLIENT_V6, SERVER_V6, protocol::UDP, &[], &asking));
    let unreachable =
        raw.raw.receive(crate::common::PATIENCE, |got| got[12..14] == [0x86, 0xdd] && got[20] == 58 && got[54] == 1);
    assert!(unreachable.is_some(), "no ICMPv6 port unreachable");
    assert_eq!(server.stats().ours(), before.ours());
}

#[test]
fn a_capture_holds_what_af_xdp_took_and_sent() {
    let lab = Lab::new().unwrap();
    let server = Server::start(lab.server(), &[&LISTEN[..], &["--tier", "xdp"]].concat());
    dig_until(&lab, "@2001:db8:18::1 www.example.com A", "198.18.0.80");
    let file = server.zone_file().with_file_name("capture.pcap");
    let mut capture = std::process::Command::new(env!("CARGO_BIN_EXE_simoom"));
    capture.arg("ctl").arg("--control").arg(server.control()).arg("capture").arg(&file);
    capture.args(["ip and udp and port 53", "--count", "4", "--seconds", "30"]);
    let mut capture = lab::Process::spawn(capture).unwrap();
    // the file is made when the server has begun
    capture.wait_until(|| file.exists(), crate::common::PATIENCE).unwrap();
    // not IPv4, so not wanted
    dig(&lab, "@2001:db8:18::1 www.example.com A");
    for name in ["www.example.com", "absent.example.com"] {
        // once: four frames are counted
        dig(&lab, &format!("+time=30 @198.18.0.1 {name} A"));
    }
    assert!(capture.wait(crate::common::PATIENCE).unwrap().success(), "{}", capture.log());
    assert_eq!(capture.log(), "4 frames captured, 0 missed\n");
    let read = lab.client().run(&["tshark", "-n", "-r", file.to_str().unwrap(), "-Y", "dns && ip"]).unwrap();
    let lines: Vec<&str> = read.lines().collect();
    assert_eq!(lines.len(), 4, "{read}");
    assert!(lines[1].contains("Standard query response") && lines[1].contains("198.18.0.80"), "{read}");
    assert!(lines[3].contains("No such name"), "{read}");
}
