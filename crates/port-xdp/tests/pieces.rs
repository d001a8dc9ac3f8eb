//! Packets larger than a frame: what a kernel of the same machine leaves to a device, in generic mode.

#[allow(dead_code, reason = "the other tests use the rest")]
mod common;

use common::*;
use port::Port;
use port_xdp::{LargeSends, Listener, Mode, OpenConfig, Opened, open};
use std::net::UdpSocket;
use wire::ipv4::Ipv4;
use wire::tcp::{Flags, Tcp, Verdict};
use wire::{Protocol, Sum};

fn web() -> Listener {
    Listener { address: "198.18.0.1".parse().unwrap(), protocol: 6, port: 5000 }
}

/// What a port has counted under this name and reason.
fn dropped(opened: &Opened, reason: &str) -> u64 {
    let mut found = None;
    base::counter::Report::report(&**opened.ports[0].stats(), &mut |figure| {
        if figure.name == "xdp_frames_dropped_total" && figure.labels.iter().any(|(_, value)| *value == reason) {
            found = Some(figure.value);
        }
    });
    found.unwrap_or_else(|| panic!("no frames dropped for {reason}"))
}

#[test]
fn datagrams_in_one_packet_are_dropped_and_counted() {
    let lab = Lab::new("super", 1);
    let mut opened = open(&OpenConfig { mode: Mode::Generic, ..config(&[dns()]) }).unwrap();
    // ten datagrams in one packet, as the kernel hands them from veth to veth
    lab.client(|| {
        let socket = UdpSocket::bind("198.18.0.2:0").unwrap();
        segment(&socket, 1000);
        socket.send_to(&[b'x'; 10_000], "198.18.0.1:53").unwrap();
        segment(&socket, 0);
        socket.send_to(b"small", "198.18.0.1:53").unwrap();
    })
    .join()
    .unwrap();
    let free = opened.ports[0].free_frames();
    let got = collect(&mut opened.ports[0], |got| !got.is_empty());
    assert!(got.len() == 1 && got[0].ends_with(b"small"), "{}", got.len());
    // 10,042 bytes in chunks of 1792
    assert_eq!(dropped(&opened, "packet in pieces"), 6);
    assert_eq!(opened.ports[0].stats().received.get(), 1);
    assert!(opened.ports[0].free_frames() + 64 >= free, "the pieces did not go home");
}

#[test]
fn small_datagrams_in_one_packet_come_as_one_until_the_sender_cuts_them_as_is_said() {
    let lab = Lab::new("gso", 1);
    let mut opened = open(&OpenConfig { mode: Mode::Generic, ..config(&[dns()]) }).unwrap();
    let names = |said: &String| said.contains("`ethtool -K PEER tx-udp-segmentation off`");
    assert!(opened.got.warnings.iter().any(names), "{:?}", opened.got.warnings);
    let ask = || {
        lab.client(|| {
            let socket = UdpSocket::bind("198.18.0.2:0").unwrap();
            segment(&socket, 20);
            socket.send_to(&[b'x'; 80], "198.18.0.1:53").unwrap();
            segment(&socket, 0);
            socket.send_to(b"last", "198.18.0.1:53").unwrap();
        })
        .join()
        .unwrap();
    };
    let mut payloads = || {
        let got = collect(&mut opened.ports[0], |got| got.last().is_some_and(|frame| frame.ends_with(b"last")));
        got.iter().map(|frame| frame.len() - 42).collect::<Vec<_>>()
    };
    ask();
    assert_eq!(payloads(), [80, 4]);
    sh("ip", &["netns", "exec", &lab.client, "ethtool", "-K", "vc", "tx-udp-segmentation", "off"]);
    ask();
    assert_eq!(payloads(), [20, 20, 20, 20, 4]);
}

/// The stream that the segments are, each of which is sound by itself and follows the one before.
fn stream_of(segments: &[Vec<u8>]) -> Vec<u8> {
    let mut stream = Vec::new();
    for (index, frame) in segments.iter().enumerate() {
        let ip = Ipv4::parse(&frame[14..]).expect("a sound IPv4 packet");
        let tcp = Tcp::parse(ip.payload()).expect("a sound segment");
        let bytes = ip.payload().len() as u16;
        let verdict = tcp.verdict(Sum::pseudo_v4(ip.src(), ip.dst(), Protocol::TCP, bytes));
        assert_ne!(verdict, Verdict::Bad);
        assert_eq!(tcp.seq(), base::Seq::new(1 + stream.len() as u32));
        assert_eq!(tcp.flags().contains(Flags::PSH), index == segments.len() - 1);
        stream.extend(tcp.payload());
    }
    stream
}

#[test]
fn a_super_segment_is_received_as_segments_however_few_are_asked_for() {
    let lab = Lab::new("pieces", 1);
    let mut opened = open(&OpenConfig { mode: Mode::Generic, ..config(&[web()]) }).unwrap();
    let peers = Peers { hosts: [2, 1], macs: [mac_of(&lab.client, "vc"), opened.got.device.mac] };
    let sent: Vec<u8> = (0..60_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let whole = sent.clone();
    let client = lab.client(move || {
        let config = OpenConfig { mode: Mode::Copy, large_sends: LargeSends::Always, ..OpenConfig::new("vc") };
        let mut opened = open(&config).unwrap();
        for _ in 0..3 {
            assert!(send_large(&mut opened.ports[0], peers, &[&whole]));
        }
    });
    client.join().unwrap();
    let mut burst = base::Burst::new();
    for most in [64, 5, 1] {
        let mut got = Vec::new();
        let until = std::time::Instant::now() + PATIENCE;
        let mut bytes = 0;
        while bytes < sent.len() {
            assert!(std::time::Instant::now() < until, "{bytes} bytes came");
            let port = &mut opened.ports[0];
            assert!(port.receive(&mut burst, most) <= most);
            for frame in burst.drain(..) {
                bytes += frame.len() - 54;
                got.push(frame.bytes().to_vec());
                port.give(frame);
            }
            port.flush();
        }
        assert!(stream_of(&got) == sent, "the stream, {most} at a time");
    }
    assert_eq!((dropped(&opened, "packet in pieces"), dropped(&opened, "no frame or too large")), (0, 0));
}

#[test]
fn a_port_for_large_sends_leaves_the_driver_alone_on_a_veth_whose_peer_is_a_kernel() {
    let lab = Lab::new("choice", 1);
    let large = OpenConfig { large_sends: LargeSends::Auto, ..config(&[web()]) };
    assert_eq!(open(&large).unwrap().got.mode, Mode::Generic);
    eventually("the program stayed", || port_xdp::device::Device::find("vs").unwrap().unwrap().xdp_program.is_none());
    // a program in the peer's driver takes our TSO away
    let peer = lab.raw_client();
    assert_eq!(open(&large).unwrap().got.mode, Mode::Copy);
    drop(peer);
}
