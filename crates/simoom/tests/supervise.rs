//! A supervisor (`--supervise on`): who has which privileges, what a crash costs, and how it ends.

mod common;

use common::{PATIENCE, Place, Server, ask, ask_tcp, question, read_answer, run, text, thread_status, until};
use rustix::process::{Pid, Signal, kill_process};
use std::io::ErrorKind;
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SUPERVISE: [&str; 2] = ["--supervise", "on"];

/// The process that serves.
fn serving(server: &Server) -> u32 {
    let mut pid = 0;
    let found = || {
        let status = text(&server.ctl(&["status"]).stdout);
        let number = |line: &str| line.strip_prefix("pid ")?.trim().parse().ok();
        pid = status.lines().find_map(number).unwrap_or(0);
        pid != 0
    };
    until(found, || format!("no status: {:#?}", server.log()));
    pid
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Ends the process that serves as a crash would, and waits until it is gone.
fn crash(server: &Server) -> u32 {
    let pid = serving(server);
    assert_ne!(pid, server.pid());
    signal(pid, Signal::KILL);
    gone(pid);
    pid
}

fn gone(pid: u32) {
    until(|| !Path::new(&format!("/proc/{pid}")).exists(), || format!("process {pid} is still there"));
}

/// Has somebody end, also where a test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Asks once, and waits for whoever comes to serve.
fn ask_patiently(server: &Server) -> (u8, Option<[u8; 4]>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(server.address).unwrap();
    socket.send(&question(7, "www.example.com")).unwrap();
    let mut answer = [0; 512];
    let bytes = lab::patiently(|| socket.recv(&mut answer)).unwrap();
    read_answer(7, &answer[..bytes])
}

#[test]
fn after_a_crash_another_serves_and_nobody_is_refused_meanwhile() {
    for spread in ["affinity", "per-core", "shared"] {
        let place = Place::new();
        let more = ["--accept", spread, "--receive", spread];
        let mut server = Server::start(&place, &[&SUPERVISE[..], &more].concat());
        let (done, address) = (AtomicBool::new(false), server.address);
        std::thread::scope(|scope| {
            let knocking = scope.spawn(|| {
                let mut connected = 0;
                while !done.load(Ordering::Relaxed) {
                    match TcpStream::connect(address) {
                        Ok(_) => connected += 1,
                        // one that the crashed one had accepted, or was about to
                        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                        Err(error) => panic!("{spread}: {error} after {connected} connections"),
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                connected
            });
            let _ends = Ends(&done);
            let mut served = Vec::new();
            for restarts in 1..=3 {
                served.push(crash(&server));
                // nobody serves now, and still it is answered, though it is asked but once
                assert_eq!(ask_patiently(&server), (0, Some([192, 0, 2, 2])));
                assert_eq!(ask_tcp(server.address, "www.example.com"), (0, Some([192, 0, 2, 2])));
                let now = serving(&server);
                assert!(!served.contains(&now));
                assert_eq!(server.stat("restarts_total"), restarts);
            }
            done.store(true, Ordering::Relaxed);
            assert!(knocking.join().unwrap() > 0);
        });
        let log = server.log().join("\n");
        assert_eq!(log.matches("has ended: signal 9; another is started in ").count(), 3, "{log}");
        let last = serving(&server);
        server.signal(Signal::TERM);
        assert_eq!(server.end().code(), Some(0), "{:#?}", server.log());
        gone(last);
        assert_eq!(TcpStream::connect(server.address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
}

#[test]
fn the_supervisor_has_the_privileges_and_the_server_has_none() {
    let place = Place::new();
    let server = Server::start(&place, &SUPERVISE);
    let none = "0000000000000000";
    for _ in 0..2 {
        let pid = serving(&server);
        for set in ["CapEff", "CapPrm", "CapBnd"] {
            assert!(thread_status(pid, set).iter().all(|found| found == none), "{set}: {:?}", thread_status(pid, set));
        }
        assert!(thread_status(server.pid(), "CapEff").iter().all(|found| found != none));
        crash(&server);
        assert_eq!(ask_patiently(&server).0, 0);
    }
}

#[test]
fn it_ends_with_whoever_ends() {
    let place = Place::new();
    let mut server = Server::start(&place, &SUPERVISE);
    let pid = serving(&server);
    assert_eq!(server.ctl(&["stop"]).status.code(), Some(0));
    assert_eq!(server.end().code(), Some(0));
    gone(pid);
    // nobody starts it again, so it does not stay
    let mut server = Server::start(&place, &SUPERVISE);
    let pid = serving(&server);
    server.signal(Signal::KILL);
    server.end();
    gone(pid);
    // a signal while nothing serves, since the zone is broken
    let mut server = Server::start(&place, &SUPERVISE);
    place.write("example.zone", "no zone at all\n");
    crash(&server);
    let tried = || server.log().iter().filter(|line| line.contains("has ended: exit status 2")).count() >= 2;
    until(tried, || format!("{:#?}", server.log()));
    server.signal(Signal::INT);
    assert_eq!(server.end().code(), Some(0), "{:#?}", server.log());
}

#[test]
fn what_keeps_it_from_starting_is_said_once_and_ends_both() {
    let place = Place::new();
    place.write("example.zone", "no zone at all\n");
    let zone = place.path("example.zone");
    let args = ["dns", &zone, "--listen", "127.0.0.1:0", "--control", &place.path("control")];
    let alone = run(&args);
    let supervised = run(&[&args[..], &SUPERVISE].concat());
    assert_eq!(alone.status.code(), Some(2));
    assert_eq!(supervised.status.code(), Some(2));
    assert_eq!(text(&supervised.stderr), text(&alone.stderr));
}

#[test]
fn a_crash_while_the_settings_are_wrong_is_mended_with_them() {
    let place = Place::new();
    let config = |text: &str, accept: &str| {
        let control = place.path("control");
        let text = format!(
            "[dataplane]\nlisten = [\"127.0.0.66:5353\"]\naccept = \"{accept}\"\n[[dns.zone]]\nfile = \"example.zone\"\n\
             [control]\npath = \"{control}\"\nsupervise = true\n{text}"
        );
        place.write("s.toml", &text);
    };
    config("", "per-core");
    let mut server = Server::start_config(&place, &place.path("s.toml"));
    server.address = ([127, 0, 0, 66], 5353).into();
    assert_eq!(ask(server.address, "www.example.com").0, 0);
    // the sockets cannot be used again: another number of them, and of another kind
    config("", "shared");
    crash(&server);
    until(|| server.stat_if_any("restarts_total") == Some(1), || format!("{:#?}", server.log()));
    assert_eq!(ask_tcp(server.address, "www.example.com").0, 0);
    config("colour = 1\n", "shared");
    crash(&server);
    server.wait_for_log("unknown key `colour`");
    config("", "affinity");
    until(|| server.stat_if_any("restarts_total") > Some(1), || format!("{:#?}", server.log()));
    assert_eq!(ask(server.address, "www.example.com").0, 0);
    assert_eq!(ask_tcp(server.address, "www.example.com").0, 0);
}

#[test]
fn a_signal_to_reload_reaches_the_server() {
    let place = Place::new();
    let server = Server::start(&place, &SUPERVISE);
    place.zone("192.0.2.77");
    server.signal(Signal::HUP);
    until(
        || ask(server.address, "www.example.com").1 == Some([192, 0, 2, 77]),
        || format!("no reload: {:#?}", server.log()),
    );
}
