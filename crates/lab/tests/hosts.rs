//! The two hosts: up and down, frames and captures across the wire.

use lab::{CLIENT_V4, CLIENT_V6, Lab, Options, SERVER_V4, SERVER_V6, capture::Capture, frame, raw::Raw};
use std::{
    net::{IpAddr, UdpSocket},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn exists(name: &str) -> bool {
    std::path::Path::new("/run/netns").join(name).exists()
}

/// A datagram to the server's host and an answer from it.
fn datagram_crosses(lab: &Lab, address: IpAddr) {
    let server = lab.server().inside(|| UdpSocket::bind((address, 7000)).unwrap());
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let client = lab.client().inside(|| UdpSocket::bind((any, 0)).unwrap());
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    client.send_to(b"there", (address, 7000)).unwrap();
    let (_, from) = server.recv_from(&mut [0; 9]).unwrap();
    server.send_to(b"and back", from).unwrap();
    let mut got = [0; 9];
    assert_eq!(client.recv(&mut got).unwrap(), 8);
    assert_eq!(&got[..8], b"and back");
}

#[test]
fn the_hosts_reach_each_other_and_leave_nothing() {
    lab::require();
    let lab = Lab::with(&Options { queues: 2, ..Options::default() }).unwrap();
    datagram_crosses(&lab, SERVER_V4.into());
    datagram_crosses(&lab, SERVER_V6.into());
    assert_eq!(lab.server().run(&["sh", "-c", "ls /sys/class/net/vs/queues | grep -c rx-"]).unwrap().trim(), "2");
    assert_eq!(lab.client().run(&["cat", "/sys/class/net/vc/threaded"]).unwrap().trim(), "1");
    let names = [lab.server(), lab.client()].map(|host| host.name().to_owned());
    assert!(names.iter().all(|name| exists(name)));
    drop(lab);
    assert!(!names.iter().any(|name| exists(name)));
}

#[test]
fn a_panic_leaves_nothing() {
    lab::require();
    let (send, names) = std::sync::mpsc::channel();
    let panicked = std::thread::spawn(move || {
        let lab = Lab::new().unwrap();
        let _sleeper = lab.server().spawn(&["sleep", "1000"]).unwrap();
        send.send(lab.server().name().to_owned()).unwrap();
        panic!("as a failing test does");
    });
    assert!(panicked.join().is_err());
    assert!(!exists(&names.recv().unwrap()));
}

#[test]
fn the_namespaces_of_a_dead_process_go() {
    lab::require();
    // no process has the largest id that this kernel would give plus one
    let limit: u32 = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap().trim().parse().unwrap();
    let name = format!("simoom-lab-{}-0-s", limit + 1);
    // another test's laboratory may take it away at once
    let made = || std::process::Command::new("ip").args(["netns", "add", &name]).status().unwrap().success();
    assert!(lab::wait_until(made, std::time::Duration::from_secs(60)));
    let _lab = Lab::new().unwrap();
    assert!(!exists(&name));
}

#[test]
fn raw_frames_cross_and_answers_come_back() {
    lab::require();
    let lab = Lab::new().unwrap();
    let mut raw = Raw::open(lab.client()).unwrap();
    let (us, them) = (lab.client().mac().unwrap(), lab.server().mac().unwrap());

    let ask = frame::arp_request(us, CLIENT_V4, SERVER_V4);
    raw.send(&frame::ethernet([0xff; 6], us, frame::ethertype::ARP, &ask)).unwrap();
    let reply = raw.receive(PATIENCE, |got| got[12..14] == [8, 6] && got[21] == 2).expect("an ARP reply");
    assert_eq!(reply[22..28], them);

    let ping = frame::Ipv4 { options: vec![1; 4], ..frame::Ipv4::new(CLIENT_V4, SERVER_V4, frame::protocol::ICMP) };
    let ping = ping.packet(&frame::echo(7, 1, b"options"));
    raw.send(&frame::ethernet(them, us, frame::ethertype::IPV4, &ping)).unwrap();
    raw.receive(PATIENCE, |got| got.ends_with(b"options")).expect("an echo reply");

    let solicit = frame::neighbour_solicitation(us, CLIENT_V6, SERVER_V6);
    let (_, group) = frame::solicited_node(SERVER_V6);
    raw.send(&frame::ethernet(group, us, frame::ethertype::IPV6, &solicit)).unwrap();
    // an advertisement is ICMPv6 type 136
    raw.receive(PATIENCE, |got| got[12..14] == [0x86, 0xdd] && got[20] == 58 && got[54] == 136)
        .expect("an advertisement");
}

#[test]
fn fragments_and_extension_headers_arrive_whole() {
    lab::require();
    let lab = Lab::new().unwrap();
    let mut raw = Raw::open(lab.client()).unwrap();
    let (us, them) = (lab.client().mac().unwrap(), lab.server().mac().unwrap());
    let [v4, v6] = ["0.0.0.0:53", "[::]:54"].map(|at| lab.server().inside(|| UdpSocket::bind(at).unwrap()));
    let payload: Vec<u8> = (0..3000_u32).map(|number| number as u8).collect();
    let check = |socket: &UdpSocket, payload: &[u8]| {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut got = [0; 4000];
        let length = socket.recv(&mut got).unwrap();
        assert!(got[..length] == *payload);
    };

    let datagram = frame::udp((CLIENT_V4.into(), 4000), (SERVER_V4.into(), 53), &payload);
    for packet in frame::Ipv4::new(CLIENT_V4, SERVER_V4, frame::protocol::UDP).fragments(&datagram, 1480) {
        raw.send(&frame::ethernet(them, us, frame::ethertype::IPV4, &packet)).unwrap();
    }
    check(&v4, &payload);

    let (from, to): (IpAddr, IpAddr) = (CLIENT_V6.into(), SERVER_V6.into());
    let datagram = frame::udp((from, 4000), (to, 54), &payload);
    for packet in frame::ipv6_fragments(CLIENT_V6, SERVER_V6, frame::protocol::UDP, 9, &datagram, 1400) {
        raw.send(&frame::ethernet(them, us, frame::ethertype::IPV6, &packet)).unwrap();
    }
    check(&v6, &payload);

    let datagram = frame::udp((from, 4000), (to, 54), b"options");
    let options = frame::destination_options(frame::protocol::UDP);
    let packet = frame::ipv6(CLIENT_V6, SERVER_V6, frame::protocol::DESTINATION_OPTIONS, &options, &datagram);
    raw.send(&frame::ethernet(them, us, frame::ethertype::IPV6, &packet)).unwrap();
    check(&v6, b"options");
}

#[test]
fn a_tag_survives_the_way() {
    lab::require();
    let lab = Lab::new().unwrap();
    let (mut raw, mut far) = (Raw::open(lab.client()).unwrap(), Raw::open(lab.server()).unwrap());
    let frame = frame::ethernet_vlan([0xff; 6], [2, 0, 0, 0, 0, 1], 0x6005, 0x88b5, b"tagged frame");
    raw.send(&frame).unwrap();
    let got = far.receive(PATIENCE, |got| got.windows(6).any(|part| part == b"tagged")).expect("the frame");
    assert_eq!(got[..frame.len()], frame);
}

#[test]
fn a_capture_tells_good_from_bad() {
    lab::require();
    let lab = Lab::with(&Options { offloads: false, ..Options::default() }).unwrap();
    let send = |frames: &[Vec<u8>]| {
        let capture = Capture::start(&lab).unwrap();
        let mut raw = Raw::open(lab.server()).unwrap();
        frames.iter().for_each(|frame| raw.send(frame).unwrap());
        datagram_crosses(&lab, SERVER_V4.into());
        datagram_crosses(&lab, SERVER_V6.into());
        capture.finish().unwrap()
    };
    let (us, them) = (lab.server().mac().unwrap(), lab.client().mac().unwrap());
    let packet = |datagram: &[u8]| {
        let packet = frame::Ipv4::new(SERVER_V4, CLIENT_V4, frame::protocol::UDP).packet(datagram);
        frame::ethernet(them, us, frame::ethertype::IPV4, &packet)
    };
    // an answer without a question's bytes is malformed
    let dns = [0, 1, 0x84, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let good = frame::udp((SERVER_V4.into(), 53), (CLIENT_V4.into(), 4000), &dns);
    let findings = send(&[packet(&good)]);
    findings.check();
    assert_eq!(findings.from_server["DNS"], 1, "{findings}");

    let mut bad = good.clone();
    bad[6] ^= 1;
    let mut zero = good;
    zero[6..8].copy_from_slice(&[0, 0]);
    let lie = frame::udp((SERVER_V4.into(), 53), (CLIENT_V4.into(), 4000), &[0, 1, 0x84, 0, 0, 1, 0, 0, 0, 0, 0, 0, 9]);
    let findings = send(&[packet(&bad), packet(&zero), packet(&lie)]);
    assert_eq!(findings.problems.len(), 3, "{findings}");
}
