//! How many frames may be on their way out, and that none is lost for it.

#[allow(dead_code, reason = "the other tests use the rest")]
mod common;

use base::Burst;
use common::*;
use port::{Outgoing, Port};
use port_xdp::{device, open};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::time::{Duration, Instant};

fn read(space: &str, path: &str) -> String {
    let line = ["netns", "exec", space, "cat", path];
    let done = std::process::Command::new("ip").args(line).output().unwrap();
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// Puts the client's receive thread and the calling one on one processor, so that who sends without pause keeps the other
/// from receiving.
fn share_a_processor(lab: &Lab, name: &str) {
    let client = &lab.client;
    // the thread has the interface's name, and other tests have one too
    ip(&format!("-n {client} link set vc down"));
    ip(&format!("-n {client} link set vc name {name}"));
    ip(&format!("-n {client} link set {name} up"));
    sh("ip", &["netns", "exec", client, "ethtool", "-K", name, "gro", "on"]);
    // with segmentation on, what the server sends is received on its own processor, at once
    sh("ip", &["netns", "exec", &lab.server, "ethtool", "-K", "vs", "tso", "off"]);
    sh("ip", &["netns", "exec", client, "sh", "-c", &format!("echo 1 > /sys/class/net/{name}/threaded")]);
    // a run before, whose namespaces are about to go or were left behind, has threads of these names too
    let pin = format!(
        "set -e; threads=$(pgrep '^napi/{name}-'); for one in $threads; do taskset -pc 0 $one || test ! -e /proc/$one; done"
    );
    sh("sh", &["-c", &pin]);
    let mut first = CpuSet::new();
    first.set(0);
    sched_setaffinity(None, &first).unwrap();
}

#[test]
fn a_receiver_that_gets_no_processor_loses_nothing() {
    nothing_is_lost(50);
}

/// The kernel's bound on a socket's bytes does not come before the port's on frames.
#[test]
fn nor_does_it_lose_full_frames_of_which_as_many_are_under_way() {
    nothing_is_lost(1500);
}

fn nothing_is_lost(payload_bytes: usize) {
    const FRAMES: usize = 20_000;
    let name = format!("out{payload_bytes}");
    let lab = Lab::new(&name, 1);
    share_a_processor(&lab, &name);
    let mut opened = open(&config(&[dns()])).unwrap();
    let port = &mut opened.ports[0];
    let frame = ethernet([2, 0, 0, 0, 0, 1], None, 0x88b5, &vec![7; payload_bytes]);
    let received =
        || read(&lab.client, &format!("/sys/class/net/{name}/statistics/rx_packets")).parse::<usize>().unwrap();
    eventually("the link is not up", || device::Device::find("vs").unwrap().unwrap().carrier);
    let dropped = || read(&lab.server, "/sys/class/net/vs/statistics/tx_dropped");
    let before = (received(), dropped());

    let (mut sent, mut full) = (0, 0);
    let mut burst = Burst::new();
    let until = Instant::now() + PATIENCE;
    while sent < FRAMES || port.flush() != Outgoing::Nothing {
        assert!(Instant::now() < until, "{sent} sent, {} still out", port.outstanding());
        let room = port.transmit_room().min(FRAMES - sent).min(burst.remaining_capacity());
        for mut frame_of_port in (0..room).map_while(|_| port.take()).collect::<Vec<_>>() {
            assert!(frame_of_port.fill(&frame));
            burst.push(frame_of_port);
        }
        sent += port.transmit(&mut burst);
        assert!(burst.is_empty(), "the port had said that there is room");
        assert!(port.outstanding() < 256, "{} are more than veth takes", port.outstanding());
        if port.flush() == Outgoing::Full {
            full += 1;
            // none, but for what has come back where the receiver had its turn between the two calls
            let (out, room) = (port.outstanding(), port.transmit_room());
            assert!(room <= out - port.outstanding(), "room for {room}, {} of {out} are still out", port.outstanding());
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    assert!(full > 0, "the receiver never fell behind, so nothing was shown");
    eventually("not all came", || received() >= before.0 + FRAMES);
    assert_eq!(dropped(), before.1, "veth dropped some");
}
