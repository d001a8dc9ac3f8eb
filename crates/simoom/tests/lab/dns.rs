//! Real clients over every transport, and what tshark says about the answers.

use crate::common::{LISTEN, Server, client};
use lab::{Lab, Options, capture::Capture};
use std::fs;

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
    assert_eq!(stats.taken(), udp, "every datagram went through AF_XDP");
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
    assert_eq!((stats.taken(), stats.on_sockets()), (800, 0));
}
