//! What the stack sends, shown to tshark with its checksum checks on: nothing malformed, no bad checksum.

mod common;

use common::*;
use port::capture::Writer;
use stack::{Claim, Config};
use std::process::Command;
use std::time::Duration;
use wire::arp::{self, Arp, Operation};
use wire::ethernet::{BROADCAST, EtherType};
use wire::{Protocol, Sum};

/// Everything that the stack says: claims, answers of every kind, errors.
fn sent() -> Vec<Vec<u8>> {
    let mut host = Host::new(Config { claim: Claim::default(), ..config() });
    let mut sent: Vec<Vec<u8>> = host.pass(Duration::from_secs(30)).into_iter().map(|(_, frame)| frame).collect();
    let mut frames = Vec::new();
    for n in [0usize, 1, 7, 40, 999, 1400] {
        for (src, dst) in [("192.0.2.2:4000", "192.0.2.1"), ("[2001:db8::2]:4000", "[2001:db8::1]")] {
            frames.push(query(src, &format!("{dst}:7"), &vec![n as u8; n]));
            frames.push(query(src, &format!("{dst}:9999"), &vec![n as u8; n]));
        }
    }
    let mut echo = [8, 0, 0, 0, 1, 2, 3, 4, 5];
    let checksum = Sum::of(&echo).checksum();
    echo[2..4].copy_from_slice(&checksum);
    frames.push(frame_to(OURS, &ip(B4.into(), A4.into(), Protocol::ICMP, &[1, 1, 1, 0], &echo)));
    for message in [&[128, 0, 0, 0, 1, 2, 3, 4, 5][..], &[&[135, 0, 0, 0, 0, 0, 0, 0][..], &A6.octets()].concat()] {
        let mut message = message.to_vec();
        let checksum = pseudo(B6.into(), A6.into(), Protocol::ICMPV6, message.len()).bytes(&message).checksum();
        message[2..4].copy_from_slice(&checksum);
        let mut packet = ip(B6.into(), A6.into(), Protocol::ICMPV6, &[], &message);
        packet[7] = 255;
        frames.push(frame_to(OURS, &packet));
    }
    frames.push(frame_to(OURS, &ip(B6.into(), A6.into(), Protocol(60), &[17, 0, 0x9e, 4, 0, 0, 0, 0], &[0; 8])));
    let mut request = [0; arp::BYTES];
    let (operation, target_mac) = (Operation::Request, [0; 6]);
    Arp { operation, sender_mac: THEIRS, sender: B4, target_mac, target: A4 }.write(&mut request);
    frames.push(link(BROADCAST, THEIRS, Some(5), EtherType::ARP, &request));
    let answers = host.exchange(&frames);
    assert_eq!(answers.len(), frames.len(), "every frame is answered");
    sent.extend(answers);
    sent
}

#[test]
fn tshark_finds_nothing_malformed_and_no_bad_checksum() {
    let mut file = Writer::new(Vec::new()).unwrap();
    let mut frames = sent();
    // one bad frame at the end, which must be found: the checks are on
    let mut bad = frames.iter().find(|frame| frame[12..14] == [8, 0] && frame[23] == 17).unwrap().clone();
    bad[41] ^= 1;
    frames.push(bad);
    for (n, frame) in frames.iter().enumerate() {
        file.write(Duration::from_millis(n as u64), frame).unwrap();
    }
    let path = std::env::temp_dir().join(format!("stack-dissect-{}.pcap", std::process::id()));
    std::fs::write(&path, file.finish().unwrap()).unwrap();
    let read = |filter: &str| {
        let checks = ["ip.check_checksum:TRUE", "udp.check_checksum:TRUE", "tcp.check_checksum:TRUE"];
        let options = checks.iter().flat_map(|check| ["-o", check]);
        let output = Command::new("tshark").args(options).args(["-Y", filter, "-r"]).arg(&path).output();
        output.expect("tshark, of Debian's package tshark")
    };
    // errors quote the peer's packets, which were good; an expert warning would be about ours
    let bad = "_ws.malformed or ip.checksum.status == 0 or udp.checksum.status == 0 or icmp.checksum.status == 0 \
               or icmpv6.checksum.status == 0 or _ws.expert.severity == error";
    let (all, bad) = (read("frame"), read(bad));
    std::fs::remove_file(&path).unwrap();
    assert!(all.status.success() && bad.status.success(), "{}", String::from_utf8_lossy(&bad.stderr));
    assert_eq!(String::from_utf8_lossy(&all.stdout).lines().count(), frames.len());
    let bad = String::from_utf8_lossy(&bad.stdout);
    let numbers: Vec<&str> = bad.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(numbers, [frames.len().to_string()], "{bad}");
}
