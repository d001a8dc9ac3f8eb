//! A confined server over AF_XDP: captures, addresses that come and go, another interface's settings, reloads, the end; and a supervised one.

use crate::common::{PATIENCE, Server, ZONE, client, dig_until, nothing_attached};
use lab::Lab;
use rustix::process::Signal;
use std::fs;

#[test]
fn a_confined_server_does_everything_that_another_does() {
    let lab = Lab::new().unwrap();
    let mut server = Server::start(lab.server(), &["--interface", "vs", "--listen", "0.0.0.0:53", "--sandbox", "on"]);
    dig_until(&lab, "@198.18.0.1 www.example.com A", "198.18.0.80");
    let pid = server.process.id();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        for line in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"] {
            assert!(status.lines().any(|has| has == line), "{line}: {status}");
        }
    }
    // over TCP the kernel's sockets answer
    dig_until(&lab, "@198.18.0.1 +tcp www.example.com A", "198.18.0.80");
    // a capture, whose file is the client's
    let file = server.zone_file().with_file_name("out.pcap");
    let capture = std::thread::scope(|scope| {
        let capturing =
            scope.spawn(|| server.ctl(&["capture", file.to_str().unwrap(), "--count", "2", "--seconds", "20"]));
        while !capturing.is_finished() {
            client(&lab, "dig @198.18.0.1 www.example.com A +short");
        }
        capturing.join().unwrap()
    });
    assert!(capture.status.success(), "{capture:?}");
    // the steering program follows the machine's addresses
    lab.server().run(&["ip", "addr", "add", "198.18.0.9/24", "dev", "vs"]).unwrap();
    server.wait_for("the machine's addresses changed");
    // a reload
    let next = server.zone_file().with_extension("new");
    fs::write(&next, ZONE.replace("198.18.0.80", "198.18.0.81")).unwrap();
    fs::rename(&next, server.zone_file()).unwrap();
    let reload = server.ctl(&["reload"]);
    assert!(reload.status.success(), "{reload:?}");
    dig_until(&lab, "@198.18.0.1 www.example.com A", "198.18.0.81");
    server.process.signal(Signal::TERM);
    let status = server.process.wait(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(0), "{}", server.process.log());
    assert!(!server.control().exists());
    nothing_attached(&lab);
    let log = server.process.log();
    assert!(!log.contains("not permitted") && !log.contains("denied"), "{log}");
}

#[test]
fn a_server_that_crashes_is_started_again_over_af_xdp() {
    let lab = Lab::new().unwrap();
    let mut server = Server::start(lab.server(), &["--interface", "vs", "--listen", "0.0.0.0:53", "--supervise", "on"]);
    for restarts in 1..=3 {
        dig_until(&lab, "@198.18.0.1 www.example.com A", "198.18.0.80");
        let status = String::from_utf8(server.ctl(&["status"]).stdout).unwrap();
        let pid = status.lines().find_map(|line| line.strip_prefix("pid ")).expect("a process").trim();
        let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
        assert_ne!(pid.as_raw_nonzero().get() as u32, server.process.id());
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        dig_until(&lab, "@198.18.0.1 www.example.com A", "198.18.0.80");
        dig_until(&lab, "@198.18.0.1 +tcp www.example.com A", "198.18.0.80");
        let again = || server.ctl(&["stats"]).status.success() && server.stats().sum("restarts_total", &[]) == restarts;
        assert!(lab::wait_until(again, PATIENCE), "{}", server.process.log());
        // what the program takes again is this one's
        let taken = server.stats().ours();
        dig_until(&lab, "@198.18.0.1 www.example.com A", "198.18.0.80");
        server.wait_until("questions over AF_XDP", |stats| stats.ours() > taken);
    }
    server.process.signal(Signal::TERM);
    assert_eq!(server.process.wait(PATIENCE).unwrap().code(), Some(0), "{}", server.process.log());
    nothing_attached(&lab);
}
