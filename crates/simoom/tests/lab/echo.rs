//! `simoom echo` and `simoom ping`: every octet comes back over both engines and both families, and what does not is told.

use crate::common::{PATIENCE, Server, Stats, complaints, dig_until, nothing_attached, simoom};
use lab::{Host, Lab, Process};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::net::UdpSocket;
use std::process::Output;
use std::time::Duration;

const LISTEN: [&str; 4] = ["--listen", "198.18.0.1:7", "--listen", "[2001:db8:18::1]:7"];
const AT: [&str; 2] = ["198.18.0.1", "2001:db8:18::1"];

/// Starts `simoom echo` and waits until it serves.
fn echo(host: &Host, args: &[&str]) -> Server {
    lab::require_programs(&["ip", "ethtool"]);
    let mut command = simoom(host);
    command.arg("echo").args(args);
    Server::spawn(command)
}

/// `simoom ping`, to its end. Nothing here depends on how fast the machine is.
fn ping(host: &Host, args: &[&str]) -> Output {
    simoom(host).arg("ping").args(args).output().unwrap()
}

/// The figures of a ping that must succeed.
fn figures(host: &Host, args: &[&str]) -> Value {
    let output = ping(host, &[&["--json", "--timeout", "20000"], args].concat());
    assert!(output.status.success(), "{args:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn count(figures: &Value, name: &str) -> u64 {
    figures[name].as_u64().unwrap_or_else(|| panic!("no {name} in {figures}"))
}

fn echoed(stats: &Stats) -> u64 {
    stats.sum("echo_answers_total", &[])
}

#[test]
fn every_octet_comes_back_over_both_engines_and_families() {
    let lab = Lab::new().unwrap();
    for engine in [&["--interface", "vs"][..], &["--backend", "sockets"]] {
        let server = echo(lab.server(), &[&LISTEN[..], engine].concat());
        for at in AT {
            for client in
                [&[][..], &["--idle", "spin"], &["--sleep", "epoll", "--idle", "block"], &["--interface", "vc"]]
            {
                let args = [&[at, "--count", "200", "--size", "333", "--warm-up", "0"], client].concat();
                let before = server.stats();
                let figures = figures(lab.client(), &args);
                for (name, expected) in [("sent", 200), ("answered", 200), ("lost", 0), ("wrong", 0), ("duplicates", 0)]
                {
                    assert_eq!(count(&figures, name), expected, "{engine:?} {args:?}: {figures}");
                }
                assert!(figures["minimum_us"].as_f64() <= figures["p50_us"].as_f64(), "{figures}");
                assert!(figures["average_us"].as_f64() <= figures["maximum_us"].as_f64(), "{figures}");
                let after = server.stats();
                assert!(echoed(&after) >= echoed(&before) + 200, "{after:?}");
                if engine[0] == "--interface" {
                    assert!(after.taken() >= before.taken() + 200, "{after:?}");
                }
            }
            // a datagram of several fragments goes through the kernel's sockets, whoever serves
            let large = figures(lab.client(), &[at, "--count", "20", "--size", "9000", "--warm-up", "0"]);
            assert_eq!((count(&large, "answered"), count(&large, "wrong")), (20, 0), "{large}");
        }
        drop(server);
        nothing_attached(&lab);
    }
}

#[test]
fn a_rate_is_kept_and_many_are_on_their_way_at_once() {
    let lab = Lab::new().unwrap();
    let server = echo(lab.server(), &[&LISTEN[..], &["--interface", "vs", "--idle", "spin"]].concat());
    for client in [&[][..], &["--interface", "vc"]] {
        let args = [AT[0], "--rate", "2000", "--count", "500", "--warm-up", "0", "--timeout", "2000", "--json"];
        let output = ping(lab.client(), &[&args[..], client].concat());
        let paced: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        // a machine that was away sends what is due in bursts, for which veth has 256 places: such a loss is told
        assert_eq!((count(&paced, "sent"), count(&paced, "answered") + count(&paced, "lost")), (500, 500), "{paced}");
        assert!(count(&paced, "answered") > 100 && count(&paced, "wrong") == 0, "{paced}");
        // 500 at 2,000 a second take a quarter of a second, never less
        assert!(paced["span_s"].as_f64().unwrap() >= 0.24, "{paced}");
        let many = figures(lab.client(), &[&[AT[1], "--in-flight", "16", "--count", "2000"], client].concat());
        assert_eq!((count(&many, "answered"), count(&many, "wrong")), (2000, 0), "{many}");
    }
    drop(server);
}

#[test]
fn an_own_address_and_a_service_beside_dns() {
    let lab = Lab::new().unwrap();
    let own = ["--interface", "vs", "--own", "198.18.0.53/24", "--listen", "198.18.0.53:7"];
    let server = echo(lab.server(), &own);
    server.wait_until("no address", |stats| stats.sum("own_address_state", &[("address", "198.18.0.53")]) == 1);
    assert_eq!(count(&figures(lab.client(), &["198.18.0.53", "--count", "50"]), "lost"), 0);
    drop(server);

    let (dir, _) = crate::common::zone(crate::common::ZONE);
    let text = format!(
        "[dataplane]\ninterface = [\"vs\"]\nlisten = [\"198.18.0.1:53\"]\n[[dns.zone]]\norigin = \"example.com\"\n\
         file = \"example.com.zone\"\n[echo]\nlisten = [\"198.18.0.1:7007\"]\n[control]\npath = \"{}\"\n",
        dir.path().join("control").display()
    );
    fs::write(dir.path().join("s.toml"), text).unwrap();
    let mut command = simoom(lab.server());
    command.arg("serve").arg("--config").arg(dir.path().join("s.toml"));
    let mut process = Process::spawn(command).unwrap();
    process.wait_for("serving on", PATIENCE).unwrap();
    assert_eq!(count(&figures(lab.client(), &["198.18.0.1:7007", "--count", "50"]), "lost"), 0);
    dig_until(&lab, "@198.18.0.1 www.example.com A", "198.18.0.80");
}

#[test]
fn nobodys_silence_is_loss_and_a_failure() {
    let lab = Lab::new().unwrap();
    // no host has this address, and no program this port
    for (at, words) in [("198.18.0.77", "no answer to 3 probes"), ("198.18.0.1:9", "nobody listens there")] {
        let args = [at, "--count", "3", "--in-flight", "3", "--timeout", "3000", "--warm-up", "0"];
        let output = ping(lab.client(), &args);
        let (shown, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(shown.contains("3 sent, 0 answered, 3 lost (100.000%)"), "{shown}");
        let lines = complaints(&said);
        assert!(lines.len() == 1 && lines[0].contains(words), "{said}");
    }
    let output = ping(lab.client(), &["198.18.0.77", "--interface", "vc", "--count", "3"]);
    let said = String::from_utf8_lossy(&output.stderr);
    let lines = complaints(&said);
    assert!(lines.len() == 1 && lines[0].contains("198.18.0.77:7: no answer came in by vc"), "{said}");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn a_peer_that_changes_octets_is_found_out() {
    let lab = Lab::new().unwrap();
    let peer = lab.server().inside(|| UdpSocket::bind("198.18.0.1:7007").unwrap());
    peer.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    std::thread::scope(|scope| {
        // until the other end goes, be it by a panic, which would wait for this thread
        let (_goes, is_gone) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            let mut buffer = [0; 2048];
            let mut answered = 0;
            while is_gone.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                let Ok((bytes, from)) = peer.recv_from(&mut buffer) else { continue };
                answered += 1;
                // every second one is wrong in one bit of its last octet
                buffer[bytes - 1] ^= u8::from(answered % 2 == 0);
                peer.send_to(&buffer[..bytes], from).unwrap();
            }
        });
        for client in [&[][..], &["--interface", "vc"]] {
            // those that are wrong are lost together
            let common = ["198.18.0.1:7007", "--count", "10", "--in-flight", "10", "--timeout", "10000"];
            let output = ping(lab.client(), &[&common[..], &["--warm-up", "0", "--json"], client].concat());
            let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!((count(&figures, "answered"), count(&figures, "wrong")), (5, 5), "{figures}");
            assert_eq!(count(&figures, "lost"), 5, "{figures}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(complaints(&said).last().unwrap().contains("5 answers had wrong octets"), "{said}");
            assert_eq!(output.status.code(), Some(1));
        }
    });
}

/// Whether a datagram from this port of the client is answered.
fn is_answered(lab: &Lab, from: u16, to: &str) -> bool {
    let socket = lab.client().inside(|| UdpSocket::bind(("198.18.0.2", from)).unwrap());
    socket.connect(to).unwrap();
    socket.send(b"ball").unwrap();
    // those that are answered are waited for; those that are not are told by the server's counters
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut buffer = [0; 64];
    socket.recv(&mut buffer).is_ok_and(|bytes| &buffer[..bytes] == b"ball")
}

#[test]
fn what_could_become_a_loop_is_refused() {
    let lab = Lab::new().unwrap();
    for engine in [&["--interface", "vs"][..], &["--backend", "sockets"]] {
        let listen = ["--listen", "198.18.0.1:7", "--listen", "198.18.0.1:7007"];
        let server = echo(lab.server(), &[&listen[..], engine].concat());
        for (n, from) in (1..).zip([7, 19, 53, 1023]) {
            assert!(!is_answered(&lab, from, "198.18.0.1:7"), "{engine:?} {from}");
            let dropped = |stats: &Stats| stats.sum("echo_drops_total", &[("reason", "low port")]);
            // its own port is told as its own, whatever its number
            server.wait_until("not counted", |stats| dropped(stats) == n - 1);
        }
        assert!(!is_answered(&lab, 7007, "198.18.0.1:7"), "another echo server");
        server.wait_until("not counted", |stats| stats.sum("echo_drops_total", &[("reason", "own port")]) == 2);
        assert!(lab::wait_until(|| is_answered(&lab, 1024, "198.18.0.1:7"), PATIENCE));
        drop(server);
        let server = echo(lab.server(), &[&listen[..], engine, &["--any-source-port", "on"]].concat());
        for from in [7, 53, 7007] {
            assert!(lab::wait_until(|| is_answered(&lab, from, "198.18.0.1:7"), PATIENCE), "{engine:?} {from}");
        }
        assert_eq!(server.stats().sum("echo_drops_total", &[]), 0);
    }
}

#[test]
fn an_interruption_ends_a_ping_with_its_figures_told() {
    let lab = Lab::new().unwrap();
    let server = echo(lab.server(), &[&LISTEN[..], &["--backend", "sockets"]].concat());
    for client in [&[][..], &["--interface", "vc"]] {
        let before = echoed(&server.stats());
        let mut command = simoom(lab.client());
        command.args(["ping", AT[0], "--seconds", "3600", "--warm-up", "0", "--timeout", "20000"]).args(client);
        let mut process = Process::spawn(command).unwrap();
        server.wait_until("nothing echoed", |stats| echoed(stats) > before + 100);
        process.signal(Signal::INT);
        let status = process.wait(PATIENCE).unwrap();
        let log = process.log();
        assert!(status.success(), "{status}: {log}");
        assert!(log.contains(" 0 lost (0.000%)") && log.contains(" packets/s over "), "{log}");
    }
}

#[test]
fn a_ladder_takes_every_step() {
    let lab = Lab::new().unwrap();
    // with a server of its own, over loopback
    let output = ping(lab.client(), &["--ladder", "--seconds", "3", "--warm-up", "10"]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    for step in ["sleeping in the kernel", "SO_BUSY_POLL=50", "spinning"] {
        let line = shown.lines().find(|line| line.starts_with(step));
        assert!(line.is_some_and(|line| line.contains('█')), "{step}: {shown}");
    }
    let _server = echo(lab.server(), &[&LISTEN[..], &["--interface", "vs"]].concat());
    let args = [AT[0], "--ladder", "--interface", "vc", "--seconds", "3", "--warm-up", "10", "--json"];
    let output = ping(lab.client(), &args);
    assert!(output.status.success(), "{output:?}");
    let steps: Value = serde_json::from_slice(&output.stdout).unwrap();
    let steps = steps.as_array().unwrap();
    let of = |what: &str| steps.iter().filter(|step| step["backend"].as_str().unwrap().starts_with(what)).count();
    // without a second processor there is no step beside the one that receives
    let beside = usize::from(std::thread::available_parallelism().unwrap().get() > 1);
    assert_eq!((of("kernel socket"), of("AF_XDP")), (4 + beside, 4 * beside), "{steps:?}");
    assert!(steps.iter().all(|step| count(step, "answered") > 0 && count(step, "wrong") == 0), "{steps:?}");
    let ports: std::collections::BTreeSet<_> = steps.iter().map(|step| step["local"].to_string()).collect();
    assert_eq!(ports.len(), 1, "one flow: {ports:?}");
}
