//! A confined server over AF_XDP: captures, addresses that come and go, another interface's settings, reloads, the end.

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
