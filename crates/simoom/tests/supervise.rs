//! A supervisor (`--supervise on`): who has which privileges, what a crash costs, and how it ends.

mod common;

use common::{PATIENCE, Place, Server, ask, ask_tcp, question, read_answer, run, text, thread_status, until};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{ErrorKind, Read, Write};
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
    // also where AF_XDP is wanted first, each time, and cannot be had
    let fallback = ["--backend", "auto", "--interface", "no-such-if"];
    for (spread, backend) in
        [("affinity", &[][..]), ("per-core", &[]), ("shared", &[]), ("affinity", &fallback), ("shared", &fallback)]
    {
        let place = Place::new();
        let more = [&["--accept", spread, "--receive", spread][..], backend].concat();
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
fn a_signal_to_end_while_the_first_server_starts_ends_both_as_asked() {
    let place = Place::new();
    // it waits for who writes the zone
    let zone = place.path("slow.zone");
    assert!(std::process::Command::new("mkfifo").arg(&zone).status().unwrap().success());
    let at = format!("127.0.0.1:{}", common::free_port());
    let args = ["dns", &zone, "--listen", &at, "--control", &place.path("control")];
    for signalled in [Signal::TERM, Signal::INT] {
        let mut command = common::simoom();
        command.args([&args[..], &SUPERVISE].concat()).stderr(std::process::Stdio::piped());
        let supervisor = command.spawn().unwrap();
        let pid = supervisor.id();
        // there is a reader, which now waits for what is written
        let mut zone_file = None;
        let opened = || {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            zone_file = rustix::fs::open(&zone, flags, Mode::empty()).ok();
            zone_file.is_some()
        };
        until(opened, || "no server reads its zone".into());
        signal(pid, signalled);
        let ended = supervisor.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
        assert!(text(&ended.stderr).contains("stopped"), "{}", text(&ended.stderr));
    }
}

#[test]
fn the_supervisor_has_the_privileges_and_the_server_has_none() {
    let place = Place::new();
    let server = Server::start(&place, &SUPERVISE);
    let none = "0000000000000000";
    for _ in 0..2 {
        let pid = serving(&server);
        // whoever looks for it finds it, though it was started from a descriptor
        assert_eq!(std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap(), "simoom\n");
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
    let address = std::net::SocketAddr::from(([127, 0, 0, 66], common::free_port()));
    let config = |text: &str, accept: &str| {
        let control = place.path("control");
        let text = format!(
            "[dataplane]\nlisten = [\"{address}\"]\naccept = \"{accept}\"\n[[dns.zone]]\nfile = \"example.zone\"\n\
             [control]\npath = \"{control}\"\nsupervise = true\n{text}"
        );
        place.write("s.toml", &text);
    };
    config("", "per-core");
    let mut server = Server::start_config(&place, &place.path("s.toml"));
    server.address = address;
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
fn a_start_that_fails_leaves_the_ports_to_the_next() {
    // what is wrong is seen in the settings, or in what they name
    for (wrong, zone, said) in
        [("colour = 1\n", None, "unknown key `colour`"), ("", Some("no zone\n"), "example.zone:1:1: ")]
    {
        let place = Place::new();
        let address = std::net::SocketAddr::from(([127, 0, 0, 67], common::free_port()));
        let config = |text: &str| {
            let text = format!(
                "[dataplane]\nlisten = [\"{address}\"]\n[[dns.zone]]\nfile = \"example.zone\"\n[control]\npath = \"{}\"\n\
                 supervise = true\n{text}",
                place.path("control")
            );
            place.write("s.toml", &text);
        };
        config("");
        let mut server = Server::start_config(&place, &place.path("s.toml"));
        server.address = address;
        config(wrong);
        if let Some(zone) = zone {
            place.write("example.zone", zone);
        }
        crash(&server);
        let times = || server.log().iter().filter(|line| line.contains(said)).count();
        until(|| times() >= 2, || format!("no two starts: {:#?}", server.log()));
        let (asked, _connected) = (UdpSocket::bind("127.0.0.1:0").unwrap(), TcpStream::connect(address).unwrap());
        asked.connect(address).unwrap();
        asked.set_read_timeout(Some(PATIENCE)).unwrap();
        asked.send(&question(9, "www.example.com")).unwrap();
        config("");
        place.zone("192.0.2.2");
        let mut answer = [0; 512];
        let bytes = lab::patiently(|| asked.recv(&mut answer)).unwrap();
        assert_eq!(read_answer(9, &answer[..bytes]), (0, Some([192, 0, 2, 2])));
    }
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

/// A zone that takes its time to load, with `www` at this address.
fn large_zone(place: &Place, www: &str) {
    place.zone(www);
    let small = std::fs::read_to_string(place.path("example.zone")).unwrap();
    let names: String = (0..300_000).map(|n| format!("name{n} A 192.0.2.1\n")).collect();
    place.write("large", &(small + &names));
    std::fs::rename(place.path("large"), place.path("example.zone")).unwrap();
}

#[test]
fn a_signal_to_reload_while_another_starts_ends_nobody() {
    let place = Place::new();
    let server = Server::start(&place, &SUPERVISE);
    large_zone(&place, "192.0.2.77");
    crash(&server);
    until(
        || {
            server.signal(Signal::HUP);
            server.stat_if_any("restarts_total") == Some(1)
        },
        || format!("{:#?}", server.log()),
    );
    assert_eq!(ask(server.address, "www.example.com").1, Some([192, 0, 2, 77]));
    let log = server.log().join("\n");
    assert!(!log.contains("signal 1;") && log.matches("another is started").count() == 1, "{log}");
    // and what has changed is read
    place.zone("192.0.2.78");
    server.signal(Signal::HUP);
    until(|| ask(server.address, "www.example.com").1 == Some([192, 0, 2, 78]), || format!("{:#?}", server.log()));
}

#[test]
fn a_signal_to_reload_while_a_server_starts_alone_is_the_first_that_it_does() {
    let place = Place::new();
    large_zone(&place, "192.0.2.77");
    let hear = |server: &std::process::Child| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim().to_owned();
        u64::from_str_radix(&caught, 16).unwrap() & 1 != 0
    };
    let (control, at) = (place.path("control"), format!("127.0.0.1:{}", common::free_port()));
    let mut tries = 0;
    let mut server = loop {
        let mut command = common::simoom();
        command.args(["dns", &place.path("example.zone"), "--listen", &at, "--control", &control]);
        let mut server = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
        until(|| hear(&server), || "it does not take the signal".into());
        // held while it is looked at: whoever looks may have been late
        signal(server.id(), Signal::STOP);
        let held = || thread_status(server.id(), "State").iter().all(|state| state.starts_with('T'));
        until(held, || "it goes on".into());
        if !Path::new(&control).exists() {
            break server;
        }
        server.kill().unwrap();
        server.wait().unwrap();
        std::fs::remove_file(&control).unwrap();
        tries += 1;
        assert!(tries < 20, "it has started already, each time");
    };
    signal(server.id(), Signal::HUP);
    signal(server.id(), Signal::CONT);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(server.stderr.take().unwrap())).map(Result::unwrap);
    assert!(lines.any(|line| line.contains("serving on")));
    assert!(lines.any(|line| line.contains("reload")), "no reload");
    signal(server.id(), Signal::TERM);
    assert!(server.wait().unwrap().success());
}

#[test]
fn a_service_manager_that_waits_for_signs_of_life_gets_them() {
    let place = Place::new();
    let path = place.path("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let next = || {
        let mut message = [0; 512];
        let bytes = lab::patiently(|| manager.recv(&mut message)).unwrap();
        text(&message[..bytes])
    };
    let until_ready = || while !next().starts_with("READY=1") {};
    let server = Server::start_with(&place, &SUPERVISE, |command| {
        // the manager names the process that it has started
        let mut by_manager = std::process::Command::new("sh");
        by_manager
            .args(["-c", "WATCHDOG_PID=$$ exec \"$0\" \"$@\""])
            .arg(command.get_program())
            .args(command.get_args());
        by_manager.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000");
        *command = by_manager;
    });
    until_ready();
    (0..5).for_each(|_| assert_eq!(next(), "WATCHDOG=1\n"));
    // while no server can be started somebody is there all the same
    place.write("example.zone", "no zone at all\n");
    crash(&server);
    (0..10).for_each(|_| assert_eq!(next(), "WATCHDOG=1\n"));
    place.zone("192.0.2.9");
    until_ready();
    (0..3).for_each(|_| assert_eq!(next(), "WATCHDOG=1\n"));
}

/// A server of a site, and somebody who takes his time over the first 100 of its 8 MiB and more.
fn with_a_slow_reader(place: &Place) -> (Server, TcpStream) {
    let site = place.path("site");
    std::fs::create_dir(&site).unwrap();
    place.write("site/large", &"x".repeat(8 << 20));
    let server = Server::start_service(place, &["web", &site], &SUPERVISE, |_| {});
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 100]).unwrap();
    (server, stream)
}

#[test]
fn one_that_dies_on_its_way_out_is_not_started_again() {
    let place = Place::new();
    let (mut server, _stream) = with_a_slow_reader(&place);
    let pid = serving(&server);
    std::thread::scope(|scope| {
        // this waits for the end
        scope.spawn(|| server.ctl(&["stop"]));
        // it has said that it ends, and waits for what is under way
        server.wait_for_log(" s to end");
        signal(pid, Signal::KILL);
    });
    assert_eq!(server.end().code(), Some(128 + 9), "{:#?}", server.log());
}

#[test]
fn a_service_manager_that_signals_all_its_processes_has_signalled_once() {
    for server_first in [true, false] {
        let place = Place::new();
        let (mut server, mut stream) = with_a_slow_reader(&place);
        let pid = serving(&server);
        let both = if server_first { [pid, server.pid()] } else { [server.pid(), pid] };
        both.iter().for_each(|pid| signal(*pid, Signal::TERM));
        server.wait_for_log(" s to end");
        // a second signal would end it in this time, and what is under way with it
        std::thread::sleep(Duration::from_millis(300));
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(rest.len() > (8 << 20) - 100, "{} bytes: {:#?}", rest.len(), server.log());
        assert_eq!(server.end().code(), Some(0), "{:#?}", server.log());
        gone(pid);
    }
}

#[test]
fn a_second_signal_to_the_supervisor_ends_what_is_under_way() {
    let place = Place::new();
    let (mut server, mut stream) = with_a_slow_reader(&place);
    server.signal(Signal::TERM);
    server.wait_for_log(" s to end");
    server.signal(Signal::TERM);
    server.end();
    let mut rest = Vec::new();
    // cut short, or reset
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.len() < 8 << 20, "{:#?}", server.log());
}

#[test]
fn a_server_whose_settings_name_no_supervisor_any_more_still_hears_the_one_it_has() {
    let place = Place::new();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], common::free_port()));
    let config = |supervise: bool| {
        let text = format!(
            "[dataplane]\nlisten = [\"{address}\"]\n[[dns.zone]]\nfile = \"example.zone\"\n\
             [control]\npath = \"{}\"\nsupervise = {supervise}\n",
            place.path("control")
        );
        place.write("s.toml", &text);
    };
    config(true);
    let mut server = Server::start_config(&place, &place.path("s.toml"));
    server.address = address;
    let first = serving(&server);
    config(false);
    crash(&server);
    assert_eq!(ask_patiently(&server), (0, Some([192, 0, 2, 2])));
    let second = serving(&server);
    assert_ne!(second, first);
    place.zone("192.0.2.77");
    server.signal(Signal::HUP);
    until(|| ask(address, "www.example.com").1 == Some([192, 0, 2, 77]), || format!("no reload: {:#?}", server.log()));
    server.signal(Signal::TERM);
    assert_eq!(server.end().code(), Some(0), "{:#?}", server.log());
    gone(second);
}
