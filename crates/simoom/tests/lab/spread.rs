//! How connections and datagrams get to several threads on kernel sockets, from a client at the other end of a wire.

use crate::common::{Hogs, PATIENCE, Server, ZONE, dig_until, zone};
use lab::{Lab, SERVER_V4};
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};

const AT: [&str; 2] = ["--listen", "198.18.0.1:53"];
const WWW: &str = "198.18.0.80";

/// The command with two threads of its own processors, started through another program.
fn start_through(lab: &Lab, through: &[&str], args: &[&str]) -> (Server, tempfile::TempDir) {
    lab::require();
    let (dir, zone) = zone(ZONE);
    let words: Vec<&str> = through.iter().copied().chain([env!("CARGO_BIN_EXE_simoom"), "dns"]).collect();
    let mut command = lab.server().command(words[0]);
    command.args(&words[1..]).args(args).args(AT).arg(zone);
    (Server::spawn(command), dir)
}

/// Asks from many ports over both transports; every question is answered.
fn ask_from_many_ports(lab: &Lab, count: u16) {
    let answered = lab.client().inside(|| {
        let mut answered = 0;
        for id in 0..count {
            let question = crate::common::question(id);
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.connect((SERVER_V4, 53)).unwrap();
            socket.send(&question).unwrap();
            let mut answer = [0; 512];
            let bytes = lab::patiently(|| socket.recv(&mut answer)).unwrap();
            answered += usize::from(bytes > question.len() && answer[..2] == id.to_be_bytes());
            let mut stream = TcpStream::connect((SERVER_V4, 53)).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(&[&(question.len() as u16).to_be_bytes()[..], &question].concat()).unwrap();
            stream.read_exact(&mut answer[..4]).unwrap();
            answered += usize::from(answer[2..4] == id.to_be_bytes());
        }
        answered
    });
    assert_eq!(answered, 2 * usize::from(count));
}

fn by_thread(server: &Server, name: &str) -> Vec<u64> {
    let stats = server.stats();
    ["0", "1"].iter().map(|thread| stats.sum(name, &[("thread", thread)])).collect()
}

#[test]
fn every_policy_serves_reloads_and_ends_cleanly() {
    let lab = Lab::new().unwrap();
    for policy in ["shared", "per-core", "affinity"] {
        let args = ["--cpus", "0,1", "--accept", policy, "--receive", policy];
        let (mut server, _dir) = start_through(&lab, &[], &args);
        dig_until(&lab, "@198.18.0.1 www.example.com", WWW);
        ask_from_many_ports(&lab, 100);
        for name in ["sockets_thread_accepted_total", "sockets_thread_received_total"] {
            let found = by_thread(&server, name);
            assert!(found.iter().sum::<u64>() >= 100, "{policy}: {name} {found:?}");
            assert!(policy == "shared" || found.iter().all(|n| *n >= 10), "{policy}: {name} {found:?}");
        }
        let reloaded = server.ctl(&["reload"]);
        assert!(reloaded.status.success(), "{reloaded:?}");
        ask_from_many_ports(&lab, 20);
        assert!(server.ctl(&["stop"]).status.success());
        assert!(server.process.wait(PATIENCE).unwrap().success(), "{}", server.process.log());
        assert!(!server.process.log().contains("affinity without"), "{}", server.process.log());
    }
}

#[test]
fn without_the_capability_flows_are_dealt_out_and_it_is_said_once() {
    let lab = Lab::new().unwrap();
    let args = ["--cpus", "0,1"];
    let (server, _dir) = start_through(&lab, &["setpriv", "--bounding-set=-bpf,-sys_admin"], &args);
    dig_until(&lab, "@198.18.0.1 www.example.com", WWW);
    ask_from_many_ports(&lab, 100);
    let log = server.process.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("affinity")).collect();
    let words = ["affinity without eBPF (not permitted; it needs CAP_BPF)", "receive hash", "stay where they are"];
    assert!(lines.len() == 1 && words.iter().all(|word| lines[0].contains(word)), "{log}");
    let accepted = by_thread(&server, "sockets_thread_accepted_total");
    assert!(accepted.iter().all(|n| *n >= 10), "{accepted:?}");
    assert_eq!(by_thread(&server, "sockets_thread_groups_taken_total"), [0, 0]);
}

#[test]
fn a_thread_that_is_taken_off_its_processor_is_helped() {
    let lab = Lab::new().unwrap();
    // its groups stay, so that it goes on getting what it cannot take
    let (server, _dir) = start_through(&lab, &[], &["--cpus", "0,1", "--balance", "steal"]);
    dig_until(&lab, "@198.18.0.1 www.example.com", WWW);
    // one processor's thread competes with work of a higher priority and gets a small part of it
    let hogs = Hogs::on(0, 4, -10);
    let helped = |name: &str| {
        let stolen = || {
            ask_from_many_ports(&lab, 20);
            server.stats().sum(name, &[("queue", "another's")]) > 0
        };
        lab::wait_until(stolen, PATIENCE)
    };
    assert!(helped("sockets_thread_received_total"), "{}", server.process.log());
    assert!(helped("sockets_thread_accepted_total"), "{}", server.process.log());
    drop(hogs);
    dig_until(&lab, "@198.18.0.1 +tcp www.example.com", WWW);
}
