//! A running server on kernel sockets: answers, reloads, figures, supervision.

mod common;

use common::{
    PATIENCE, Place, Server, ZONE, ask, ask_tcp, free_port, question, read_answer, run, text, thread_status, until,
};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const NXDOMAIN: u8 = 3;
const REFUSED: u8 = 5;

#[test]
fn questions_are_answered_over_udp_and_tcp_and_the_end_is_clean() {
    let place = Place::new();
    let mut server = Server::start(&place, &["--cpus", "0"]);
    for ask in [ask, ask_tcp] {
        assert_eq!(ask(server.address, "www.example.com"), (0, Some([192, 0, 2, 2])));
        assert_eq!(ask(server.address, "none.example.com").0, NXDOMAIN);
        assert_eq!(ask(server.address, "example.net").0, REFUSED);
    }
    let status = text(&server.ctl(&["status"]).stdout);
    assert!(status.contains(&format!("listen       {}\n", server.address)), "{status}");
    assert!(status.contains("zones        1\n") && status.contains("backend      sockets, 1 thread\n"), "{status}");
    let stopped = server.ctl(&["stop"]);
    assert_eq!((stopped.status.code(), text(&stopped.stderr)), (Some(0), String::new()));
    assert_eq!(server.end().code(), Some(0));
    assert!(!server.control.exists());
    let output = server.ctl(&["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("simoom: no server answers: "), "{}", text(&output.stderr));
}

#[test]
fn a_configuration_file_serves_the_same() {
    let place = Place::new();
    let port = free_port();
    let control = place.path("control");
    place.write(
        "simoom.toml",
        &format!(
            "[dataplane]\nlisten = [\"127.0.0.1:{port}\"]\n[dns]\nid-string = \"here\"\n\
             [[dns.zone]]\norigin = \"example.com\"\nfile = \"example.zone\"\n[control]\npath = \"{control}\"\n"
        ),
    );
    let config = place.path("simoom.toml");
    let checked = run(&["check", "--config", &config]);
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stderr));
    let checked = text(&checked.stdout);
    assert!(checked.starts_with("zone example.com.: 3 names, 4 records\n"), "{checked}");
    // which waits until it serves: the control socket is there before
    let mut server = Server::start_config(&place, &config);
    assert_eq!(ask(([127, 0, 0, 1], port).into(), "www.example.com"), (0, Some([192, 0, 2, 2])));
    assert_eq!(server.ctl(&["stop"]).status.code(), Some(0));
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn a_reload_serves_the_new_zone_and_a_broken_one_keeps_the_old() {
    let place = Place::new();
    let server = Server::start(&place, &[]);
    place.zone("192.0.2.3");
    let output = server.ctl(&["reload"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("reloaded 1 zone, "), "{}", text(&output.stdout));
    // from the reply on, every thread has it
    for _ in 0..20 {
        assert_eq!(ask(server.address, "www.example.com"), (0, Some([192, 0, 2, 3])));
    }
    place.zone("192.0.2.999");
    let output = server.ctl(&["reload"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    let said: Vec<_> = said.lines().collect();
    assert_eq!(said[0], "simoom: not reloaded, the old zones go on serving");
    assert!(said[1].starts_with(&format!("simoom: {}:6:7: ", place.path("example.zone"))), "{said:?}");
    // the line comes by another way than the reply
    let logged = || server.log().iter().any(|line| line.contains("ERROR not reloaded, the old zones go on serving"));
    until(logged, || "the failure is not logged".into());
    assert_eq!(ask(server.address, "www.example.com"), (0, Some([192, 0, 2, 3])));
    place.zone("192.0.2.4");
    server.signal(Signal::HUP);
    until(|| ask(server.address, "www.example.com").1 == Some([192, 0, 2, 4]), || "SIGHUP does not reload".into());
    let stats = text(&server.ctl(&["stats"]).stdout);
    let count =
        |outcome: &str| stats.lines().any(|line| line.starts_with(&format!("reloads_total  outcome={outcome} ")));
    assert!(count("done") && count("failed"), "{stats}");
    assert_eq!(server.stat("dns_table_version"), 2);
}

/// Asks with this COOKIE option (RFC 7873) and gives the whole cookie that came back.
fn bake(server: &Server, cookie: &[u8]) -> Vec<u8> {
    let mut message = question(3, "www.example.com");
    message[11] = 1;
    let (rdata, option) = (cookie.len() as u16 + 4, cookie.len() as u16);
    message.extend([0, 0, 41, 4, 208, 0, 0, 0, 0]);
    message.extend([rdata.to_be_bytes(), [0, 10], option.to_be_bytes()].concat());
    message.extend(cookie);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(server.address).unwrap();
    socket.send(&message).unwrap();
    let mut answer = [0; 512];
    let bytes = lab::patiently(|| socket.recv(&mut answer)).unwrap();
    answer[bytes - 24..bytes].to_vec()
}

/// Waits until the zone's file is old enough to count as unchanged.
fn rest(place: &Place) {
    let age = || {
        let file = std::fs::metadata(place.path("example.zone")).unwrap();
        let changed = std::time::UNIX_EPOCH + std::time::Duration::new(file.ctime() as u64, file.ctime_nsec() as u32);
        changed.elapsed().unwrap_or_default()
    };
    until(|| age() > std::time::Duration::from_secs(2), || format!("{:?} old", age()));
}

#[test]
fn servers_with_one_secret_take_each_others_cookies_and_a_reload_rolls_it() {
    const OLD: &str = "e5e973e5a6b2a43f48e7dc849e37bfcf";
    const NEW: &str = "445536bcd2513298075a5d379663c962";
    let places = [Place::new(), Place::new()];
    let write = |text: &str, mode: u32| {
        for place in &places {
            place.write("secrets", text);
            std::fs::set_permissions(place.path("secrets"), std::fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    places.iter().for_each(rest);
    write(OLD, 0o600);
    let [one, two] = places.each_ref().map(|place| Server::start(place, &["--cookie-secret", &place.path("secrets")]));
    let cookie = bake(&one, b"client01");
    bake(&two, &cookie);
    assert_eq!((one.stat("dns_cookies_valid_total"), two.stat("dns_cookies_valid_total")), (0, 1));
    write(&format!("{NEW}\n{OLD}\n"), 0o600);
    assert_eq!(text(&two.ctl(&["reload"]).stdout), "reloaded the cookie secrets; no zone file has changed\n");
    let rolled = bake(&two, &cookie);
    assert_eq!(two.stat("dns_cookies_valid_total"), 2);
    bake(&one, &rolled);
    assert_eq!(one.stat("dns_cookies_valid_total"), 0, "not reloaded yet");
    assert_eq!(one.ctl(&["reload"]).status.code(), Some(0));
    bake(&one, &rolled);
    assert_eq!(one.stat("dns_cookies_valid_total"), 1);
    // what cannot be taken changes nothing
    write(NEW, 0o644);
    let output = two.ctl(&["reload"]);
    assert_eq!(output.status.code(), Some(1));
    let path = places[1].path("secrets");
    let line = format!("simoom: {path}: its mode 644 lets others at the secrets; run `chmod 640 {path}`");
    assert!(text(&output.stderr).lines().any(|said| said == line), "{}", text(&output.stderr));
    bake(&two, &cookie);
    assert_eq!(two.stat("dns_cookies_valid_total"), 3);
}

#[test]
fn an_old_unchanged_file_is_not_read_again() {
    let place = Place::new();
    rest(&place);
    let server = Server::start(&place, &[]);
    let output = server.ctl(&["reload"]);
    assert_eq!(text(&output.stdout), "nothing to reload: no zone file has changed\n");
    assert_eq!(server.stat("dns_table_version"), 0);
}

#[test]
fn reloads_lose_no_question() {
    let place = Place::new();
    let server = Server::start(&place, &[]);
    let (done, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.connect(server.address).unwrap();
            let (mut id, mut answer) = (0u16, [0; 512]);
            while !done.load(Ordering::Relaxed) {
                id = id.wrapping_add(1);
                socket.send(&question(id, "www.example.com")).unwrap();
                let bytes = lab::patiently(|| socket.recv(&mut answer)).expect("a question was lost");
                let (rcode, address) = read_answer(id, &answer[..bytes]);
                assert!(rcode == 0 && address.is_some_and(|address| address[..3] == [192, 0, 2]), "{address:?}");
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
        for n in 10..30 {
            place.zone(&format!("192.0.2.{n}"));
            assert!(server.ctl(&["reload"]).status.success());
            assert_eq!(ask(server.address, "www.example.com").1, Some([192, 0, 2, n]));
        }
        let enough = || answered.load(Ordering::Relaxed) > 20 || asking.is_finished();
        until(enough, || format!("{answered:?} answered"));
        done.store(true, Ordering::Relaxed);
        asking.join().unwrap();
    });
    assert_eq!(server.stat("dns_table_version"), 20);
}

fn http(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("{request} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn figures_are_the_same_everywhere() {
    let place = Place::new();
    let metrics = format!("127.0.0.1:{}", free_port());
    let server = Server::start(&place, &["--metrics", &metrics]);
    for _ in 0..3 {
        ask(server.address, "www.example.com");
    }
    ask(server.address, "none.example.com");
    let page = http(&metrics, "GET /metrics");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    for line in [
        "# TYPE simoom_dns_questions_total counter",
        "simoom_dns_questions_total{transport=\"udp\",family=\"4\"} 4",
        "simoom_dns_answers_total{rcode=\"NXDOMAIN\"} 1",
        "simoom_dns_zone_answers_total{zone=\"example.com.\",rcode=\"NOERROR\"} 3",
        "simoom_backend_fallback 0",
        "simoom_dns_zones 1",
    ] {
        assert!(page.lines().any(|have| have == line), "no `{line}` in {page}");
    }
    // a metric has one HELP and one TYPE, and every sample is of a metric that has them
    let names = |prefix: &str| -> Vec<String> {
        let of = page.lines().filter_map(|line| line.strip_prefix(prefix));
        of.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let (help, kind) = (names("# HELP "), names("# TYPE "));
    assert_eq!(help, kind);
    assert!(help.windows(2).all(|pair| pair[0] < pair[1]), "not each once: {help:?}");
    assert!(http(&metrics, "GET /").starts_with("HTTP/1.1 404 "));
    assert!(http(&metrics, "POST /metrics").starts_with("HTTP/1.1 405 "));
    let json: Value = serde_json::from_slice(&server.ctl(&["stats", "--json"]).stdout).unwrap();
    let samples = json["metrics"].as_array().unwrap();
    let found =
        samples.iter().find(|sample| sample["name"] == "dns_answers_total" && sample["labels"]["rcode"] == "NXDOMAIN");
    assert_eq!(found.unwrap()["value"], 1);
}

#[test]
fn the_control_socket_keeps_to_its_protocol() {
    let place = Place::new();
    let server = Server::start(&place, &[]);
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&server.control).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    let mut stream = UnixStream::connect(&server.control).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    let mut exchange = |request: &str| -> Value {
        stream.write_all(request.as_bytes()).unwrap();
        stream.write_all(b"\n").unwrap();
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    };
    assert_eq!(exchange(r#"{"command":"status"}"#)["zones"], 1);
    for wrong in ["", "{", r#"{"command":"dance"}"#, r#"{"command":"status","more":1}"#, r#"{"command":1}"#] {
        let answer = exchange(wrong);
        assert_eq!(answer["ok"], false, "{wrong}");
        assert!(answer["error"].as_str().unwrap().starts_with("not a request: "), "{answer}");
    }
    assert_eq!(exchange(r#"{"command":"status"}"#)["ok"], true, "the connection goes on");
    let answer = exchange(r#"{"command":"connections"}"#);
    assert_eq!(answer["error"], "the server is on kernel sockets: `ss -ti` shows their connections");
    let answer = exchange(r#"{"command":"capture","filter":"udp and port 53"}"#);
    assert_eq!(answer["error"], "this server has no AF_XDP, so the kernel sees every frame: capture with tcpdump");
    // a line without end is cut off, and others are served
    let mut endless = UnixStream::connect(&server.control).unwrap();
    endless.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = endless.write_all(&vec![b'x'; 80 << 10]);
    let mut answer = String::new();
    let _ = BufReader::new(endless).read_line(&mut answer);
    assert!(answer.is_empty() || answer.contains("one line of at most"), "{answer}");
    assert!(server.ctl(&["status"]).status.success());
}

#[test]
fn signals_stop_and_a_dead_servers_socket_is_replaced() {
    let place = Place::new();
    let mut killed = Server::start(&place, &[]);
    killed.signal(Signal::KILL);
    assert_eq!(killed.end().code(), None);
    assert!(killed.control.exists());
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = Server::start(&place, &[]);
        assert!(server.ctl(&["status"]).status.success());
        server.signal(signal);
        assert_eq!(server.end().code(), Some(0));
        assert!(!server.control.exists());
    }
}

#[test]
fn no_thread_keeps_a_capability() {
    let place = Place::new();
    let server = Server::start(&place, &["--metrics", &format!("127.0.0.1:{}", free_port())]);
    for field in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        let sets = thread_status(server.pid(), field);
        assert!(sets.len() > 3 && sets.iter().all(|set| set == "0000000000000000"), "{field}: {sets:?}");
    }
    assert!(thread_status(server.pid(), "NoNewPrivs").iter().all(|value| value == "1"));
}

#[test]
fn another_user_serves_and_is_told_what_it_cannot_read() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: becoming another user is not tested");
        return;
    }
    let place = Place::new();
    let mode = |path: &str, mode: u32| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    mode(place.0.path().to_str().unwrap(), 0o755);
    mode(&place.path("example.zone"), 0o600);
    let server = Server::start(&place, &["--user", "65534"]);
    let ids = thread_status(server.pid(), "Uid");
    assert!(ids.iter().all(|ids| ids.split_whitespace().all(|id| id == "65534")), "{ids:?}");
    server.wait_for_log("example.zone: cannot be read any more now that privileges are dropped (Permission denied): a reload will fail; make it readable for 65534");
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&server.control).unwrap());
    assert_eq!(owner, 65534);
    assert_eq!(ask(server.address, "www.example.com").0, 0);
    assert_eq!(server.ctl(&["reload"]).status.code(), Some(1));
    mode(&place.path("example.zone"), 0o644);
    place.zone("192.0.2.9");
    mode(&place.path("example.zone"), 0o644);
    assert_eq!(server.ctl(&["reload"]).status.code(), Some(0));
    assert_eq!(ask(server.address, "www.example.com").1, Some([192, 0, 2, 9]));
}

/// A manager's socket may have a name that is no path; a server without privileges that has confined itself still reaches it.
#[test]
fn a_service_manager_without_a_path_is_told() {
    for user in [&[][..], &["--user", "nobody"]] {
        let place = Place::new();
        let name = format!("simoom-test-{}-{}", std::process::id(), user.len());
        let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut server = Server::start_with(&place, user, |command| {
            command.env("NOTIFY_SOCKET", format!("@{name}"));
        });
        let mut message = [0; 512];
        let bytes = lab::patiently(|| manager.recv(&mut message)).unwrap();
        assert_eq!(text(&message[..bytes]), format!("READY=1\nSTATUS=serving on {}\n", server.address));
        server.signal(Signal::TERM);
        let bytes = lab::patiently(|| manager.recv(&mut message)).unwrap();
        assert_eq!(text(&message[..bytes]), "STOPPING=1\n");
        assert_eq!(server.end().code(), Some(0));
    }
}

#[test]
fn a_zone_may_come_by_a_pipe() {
    let place = Place::new();
    let zone = place.path("pipe");
    assert!(Command::new("mkfifo").arg(&zone).status().unwrap().success());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| std::fs::write(&zone, ZONE));
        let server = Server::start_service(&place, &["dns", &zone], &[], |_| {});
        writer.join().unwrap().unwrap();
        assert_eq!(ask(server.address, "www.example.com").0, 0);
    });
}

#[test]
fn the_service_manager_is_told() {
    let place = Place::new();
    let path = place.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let next = || {
        let mut message = [0; 512];
        let bytes = lab::patiently(|| manager.recv(&mut message)).unwrap();
        text(&message[..bytes])
    };
    let mut server = Server::start_with(&place, &[], |command| {
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000");
    });
    assert_eq!(next(), format!("READY=1\nSTATUS=serving on {}\n", server.address));
    assert_eq!(next(), "WATCHDOG=1\n");
    place.zone("192.0.2.9");
    server.signal(Signal::HUP);
    let not_watchdog = || loop {
        let message = next();
        if message != "WATCHDOG=1\n" {
            return message;
        }
    };
    let reloading = not_watchdog();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    let ready = not_watchdog();
    assert!(ready.starts_with("READY=1\nSTATUS=reloaded 1 zone"), "{ready}");
    server.signal(Signal::TERM);
    assert_eq!(not_watchdog(), "STOPPING=1\n");
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn an_idle_server_sleeps() {
    let place = Place::new();
    let server = Server::start(&place, &[]);
    ask(server.address, "www.example.com");
    let ticks = || -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
        // fields 14 and 15, counted behind the name, which may hold spaces
        stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum()
    };
    // of 200 ticks of 10 ms a spinning thread uses all each time; what the start had begun ends, and a slow machine is so for a while
    let mut used = Vec::new();
    let mut sleeps = || {
        let before = ticks();
        std::thread::sleep(std::time::Duration::from_secs(2));
        used.push(ticks() - before);
        used.last().is_some_and(|used| *used <= 4)
    };
    assert!((0..5).any(|_| sleeps()), "{used:?} ticks of 200");
}
