//! Real clients over every transport, and what tshark says about the answers.

use crate::common::{LISTEN, PATIENCE, Server, client, dig, dig_until, ip, question};
use lab::{Lab, Options, capture::Capture};
use std::{fs, net::UdpSocket};

/// The wire without offloads: a kernel that leaves checksums to a device would look as if it sent wrong ones.
fn lab() -> Lab {
    lab::require_programs(&["kdig", "drill", "dnsperf", "dig", "tshark", "dumpcap"]);
    Lab::with(&Options { offloads: false, ..Options::default() }).unwrap()
}

const SERVERS: [&str; 2] = ["198.18.0.1", "2001:db8:18::1"];

#[test]
fn usual_clients_get_answers_over_every_transport_and_the_wire_stays_clean() {
    let lab = lab();
    let server = Server::start(lab.server(), &LISTEN);
    let capture = Capture::start(&lab).unwrap();
    for at in SERVERS {
        for tcp in ["", "+tcp "] {
            for tool in ["dig", "kdig"] {
                let ask = |rest: &str| client(&lab, &format!("{tool} {tcp}@{at} {rest}"));
                assert_eq!(ask("+short www.example.com A").trim(), "198.18.0.80");
                let whole = ask("+norec WWW.eXample.com AAAA");
                assert!(whole.contains("NOERROR") && whole.contains("2001:db8:18::80"), "{whole}");
                // kdig shows names in small letters
                assert!(tool == "kdig" || whole.contains("WWW.eXample.com."), "the letters come back: {whole}");
                let absent = ask("absent.example.com A");
                assert!(absent.contains("NXDOMAIN") && absent.contains("hostmaster.example.com."), "{absent}");
                assert!(ask("example.org A").contains("REFUSED"));
                assert!(ask("+short +nsid x.wild.example.com TXT").contains("a wildcard answers"));
            }
        }
        let cut = client(&lab, &format!("dig +ignore @{at} big.example.com TXT"));
        assert!(cut.contains("flags: qr aa tc"), "{cut}");
        for flags in ["-u", "-t"] {
            let said = client(&lab, &format!("drill {flags} www.example.com @{at} A"));
            assert!(said.contains("198.18.0.80") && said.contains("flags: qr aa"), "{said}");
        }
    }
    let findings = capture.finish().unwrap();
    findings.check();
    assert!(findings.from_server["DNS"] >= 46, "{findings}");
    // After the capture, since the client's kernel merges the segments of a long answer and leaves their checksum open. dig and
    // kdig come over TCP by themselves when TC is set.
    for at in SERVERS {
        for tool in ["dig", "kdig"] {
            let big = client(&lab, &format!("{tool} @{at} +short big.example.com TXT"));
            assert_eq!(big.lines().filter(|line| line.starts_with("\"answer-")).count(), 99, "{big}");
        }
    }

    let stats = server.stats();
    for family in ["4", "6"] {
        // 5 questions of either tool, the big one three times, drill's
        assert!(stats.questions("udp", family) >= 14, "{stats:?}");
        assert!(stats.questions("tcp", family) >= 13, "{stats:?}");
    }
    let udp = stats.questions("udp", "4") + stats.questions("udp", "6");
    assert_eq!(stats.ours(), udp, "every datagram was the driver's or went through AF_XDP");
    assert_eq!(stats.on_sockets(), 0, "no datagram went through a socket");
    let accepted = stats.sum("sockets_connections_accepted_total", &[]);
    assert!(accepted >= 26, "{accepted} connections");
    assert_eq!(stats.sum("dns_truncated_total", &[]), 6);
}

#[test]
fn dnsperf_loses_nothing() {
    let lab = lab();
    let server = Server::start(lab.server(), &LISTEN);
    let dir = tempfile::tempdir().unwrap();
    let questions = dir.path().join("questions");
    let lines = ["www.example.com A", "alias.example.com AAAA", "absent.example.com A", "y.wild.example.com TXT"];
    fs::write(&questions, lines.join("\n")).unwrap();
    let capture = Capture::start(&lab).unwrap();
    for at in SERVERS {
        for mode in ["udp", "tcp"] {
            // few at a time: with two processors for both hosts, the client's own buffers are what overflows first
            let line = format!("dnsperf -s {at} -m {mode} -d {} -n 100 -c 4 -q 8 -t 20", questions.display());
            let said = client(&lab, &line);
            let lost = said.lines().find(|line| line.contains("Queries lost:")).unwrap_or_else(|| panic!("{said}"));
            assert!(lost.split_whitespace().nth(2) == Some("0"), "{said}");
            assert!(said.contains("NOERROR 300 (75.00%)") && said.contains("NXDOMAIN 100 (25.00%)"), "{said}");
        }
    }
    capture.finish().unwrap().check();
    let stats = server.stats();
    for (transport, family) in [("udp", "4"), ("udp", "6"), ("tcp", "4"), ("tcp", "6")] {
        assert_eq!(stats.questions(transport, family), 400, "{transport}{family}");
    }
    assert_eq!((stats.ours(), stats.on_sockets()), (800, 0));
}

#[test]
fn every_mode_and_idle_policy_answers() {
    let lab = lab();
    for more in [
        ["--mode", "copy", "--idle", "spin"],
        ["--mode", "generic", "--idle", "block"],
        ["--mode", "auto", "--idle", "block"],
        ["--mode", "generic", "--batch", "1"],
    ] {
        let server = Server::start(lab.server(), &[&LISTEN[..], &more].concat());
        let capture = Capture::start(&lab).unwrap();
        for (at, family) in SERVERS.into_iter().zip(["4", "6"]) {
            dig_until(&lab, &format!("@{at} alias.example.com A"), "www.example.com.\n198.18.0.80");
            assert!(server.stats().questions("udp", family) >= 1, "{more:?}");
        }
        assert_eq!(server.stats().on_sockets(), 0, "{more:?}");
        capture.finish().unwrap().check();
    }
}

#[test]
fn every_queue_is_served() {
    let lab = Lab::with(&Options { queues: 2, ..Options::default() }).unwrap();
    let server = Server::start(lab.server(), &[&LISTEN[..], &["--tier", "xdp"]].concat());
    for (any, at) in [("0.0.0.0:0", "198.18.0.1:53"), ("[::]:0", "[2001:db8:18::1]:53")] {
        for id in 0..64 {
            // each socket is a flow of its own
            let socket = lab.client().inside(|| UdpSocket::bind(any).unwrap());
            socket.connect(at).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.send(&question(id)).unwrap();
            let mut answer = [0; 512];
            let length = lab::patiently(|| socket.recv(&mut answer)).unwrap();
            assert!(length > 12 && answer[..2] == id.to_be_bytes() && answer[3] & 15 == 0, "{id}");
        }
    }
    let stats = server.stats();
    for queue in ["0", "1"] {
        assert!(stats.sum("xdp_frames_received_total", &[("queue", queue)]) >= 10, "{queue}: {stats:?}");
    }
    assert_eq!((stats.taken(), stats.on_sockets()), (128, 0));
}

#[test]
fn several_interfaces_are_served_at_once() {
    let lab = Lab::new().unwrap();
    let client = lab.client().name().to_owned();
    ip(lab.server(), &format!("link add second type veth peer name second netns {client}"));
    for (host, last) in [(lab.server(), 1), (lab.client(), 2)] {
        ip(host, &format!("addr add 198.18.1.{last}/24 dev second"));
        ip(host, "link set second up");
        host.run(&["ethtool", "-K", "second", "gro", "on"]).unwrap();
    }
    let args = ["--interface", "vs", "--interface", "second", "--listen", "0.0.0.0:53", "--tier", "xdp"];
    let server = Server::start(lab.server(), &args);
    for at in ["198.18.0.1", "198.18.1.1"] {
        dig_until(&lab, &format!("@{at} www.example.com A"), "198.18.0.80");
    }
    let stats = server.stats();
    for interface in ["vs", "second"] {
        for metric in ["xdp_frames_received_total", "steering_taken_total"] {
            assert!(stats.sum(metric, &[("interface", interface)]) >= 1, "{interface}: {stats:?}");
        }
    }
    assert_eq!(stats.on_sockets(), 0);
}

#[test]
fn dns_and_web_share_the_threads_of_af_xdp() {
    lab::require_programs(&["curl", "dig"]);
    let lab = Lab::new().unwrap();
    let server = Server::start_with_web(lab.server());
    for (at, url) in [("198.18.0.1", "http://198.18.0.1/"), ("2001:db8:18::1", "http://[2001:db8:18::1]/")] {
        dig_until(&lab, &format!("@{at} www.example.com A"), "198.18.0.80");
        // once: connections are counted
        assert_eq!(dig(&lab, &format!("+time=30 @{at} +tcp www.example.com A")), "198.18.0.80");
        assert_eq!(client(&lab, &format!("curl -gsS --max-time 30 {url}")), "hello");
    }
    fs::write(server.zone_file().with_file_name("site/index.html"), "changed").unwrap();
    assert!(server.ctl(&["reload"]).status.success());
    assert_eq!(client(&lab, "curl -sS --max-time 30 http://198.18.0.1/"), "changed");
    let stats = server.stats();
    assert!(stats.ours() >= 2 && stats.on_sockets() == 0, "{stats:?}");
    assert_eq!(stats.sum("web_answers_total", &[("class", "2xx")]), 3);
    // the web's connections are our own stack's, those of DNS at the kernel's address the kernel's
    assert_eq!(stats.sum("tcp_events_total", &[("event", "accepted")]), 3, "{stats:?}");
    assert_eq!(stats.sum("sockets_connections_accepted_total", &[]), 2, "{stats:?}");
}
