//! Files over our own TCP: real clients at the other end, and how connections end.

use crate::common::{PATIENCE, Server, Stats, client, ip, nothing_attached, simoom};
use lab::{Host, Lab, Options, Process, capture::Capture};
use rustix::process::Signal;
use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};
use tempfile::TempDir;

/// Where the lab's web server listens.
pub(crate) const LISTEN: [&str; 6] =
    ["--interface", "vs", "--listen", "198.18.0.1:80", "--listen", "[2001:db8:18::1]:80"];
pub(crate) const SERVERS: [&str; 2] = ["198.18.0.1", "[2001:db8:18::1]"];

/// Sizes of files around what a segment, the initial window and a window scale hold.
const SIZES: [usize; 9] = [0, 1, 1447, 1448, 1449, 14_480, 65_536, 1 << 20, 5_000_000];

/// Bytes that tell where they are, so that a wrong offset shows.
pub(crate) fn contents(bytes: usize) -> Vec<u8> {
    (0..bytes.div_ceil(8))
        .flat_map(|n| (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes())
        .take(bytes)
        .collect()
}

/// A running `simoom web` over files of [`SIZES`] and `index.html`.
pub(crate) struct Web {
    pub(crate) server: Server,
    site: TempDir,
}

impl Web {
    pub(crate) fn start(host: &Host, args: &[&str]) -> Web {
        lab::require_programs(&["curl", "ip", "ethtool"]);
        let site = tempfile::Builder::new().prefix("simoom-site-").tempdir().unwrap();
        fs::write(site.path().join("index.html"), "hello").unwrap();
        for bytes in SIZES {
            fs::write(site.path().join(format!("{bytes}.bin")), contents(bytes)).unwrap();
        }
        let mut command = simoom(host);
        command.arg("web").arg(site.path()).args(args);
        Web { server: Server::spawn(command), site }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.site.path().join(name)
    }

    /// What our TCP counts, and that kernel sockets took no connection.
    pub(crate) fn tcp(&self) -> Stats {
        let stats = self.server.stats();
        assert_eq!(stats.sum("sockets_connections_accepted_total", &[]), 0, "{stats:?}");
        stats
    }

    pub(crate) fn wait_for_connections(&self, count: u64) {
        self.server.wait_until("connections", |stats| stats.sum("tcp_connections", &[]) == count);
    }
}

/// A body as curl gets it in the client's host.
pub(crate) fn curl(lab: &Lab, args: &[&str]) -> Vec<u8> {
    let mut command = lab.client().command("curl");
    let output = command.args(["-gsS", "--max-time", "60"]).args(args).output().unwrap();
    assert!(output.status.success(), "curl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

pub(crate) fn connect(lab: &Lab, at: &str) -> std::io::Result<TcpStream> {
    let at: SocketAddr = at.parse().unwrap();
    let stream = lab.client().inside(|| TcpStream::connect_timeout(&at, PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Asks for a path on a connection that stays, and reads the whole answer.
pub(crate) fn get(stream: &mut TcpStream, path: &str) -> std::io::Result<Vec<u8>> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: lab\r\n\r\n")?;
    answer(stream)
}

/// The body of the next answer, after which nothing is to come.
fn answer(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut some = [0; 16_384];
    loop {
        let at = answer.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(at) = at {
            let head = String::from_utf8_lossy(&answer[..at]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
            if answer.len() - at - 4 >= length.parse().unwrap() {
                return Ok(answer.split_off(at + 4));
            }
        }
        match stream.read(&mut some) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => answer.extend_from_slice(&some[..bytes]),
            // a read with a time limit is not begun again by the kernel (signal(7))
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[test]
fn files_of_every_size_come_whole_and_the_wire_stays_clean() {
    let lab = Lab::with(&Options { offloads: false, ..Options::default() }).unwrap();
    let web = Web::start(lab.server(), &LISTEN);
    // the client's kernel merges segments before they can be captured, and leaves the checksum of what it made open
    lab.client().run(&["ethtool", "-K", "vc", "gro", "off"]).unwrap();
    let capture = Capture::start(&lab).unwrap();
    for at in SERVERS {
        for bytes in SIZES {
            let body = curl(&lab, &[&format!("http://{at}/{bytes}.bin")]);
            assert!(body == contents(bytes), "{at}: {} of {bytes} bytes, or other ones", body.len());
        }
        let all: Vec<String> = SIZES.iter().map(|bytes| format!("http://{at}/{bytes}.bin")).collect();
        let together = curl(&lab, &all.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(together == SIZES.map(contents).concat(), "on one connection");
        assert_eq!(curl(&lab, &["-r", "1400-1500", &format!("http://{at}/65536.bin")]), contents(65_536)[1400..=1500]);
        assert_eq!(curl(&lab, &["--http1.0", &format!("http://{at}/")]), b"hello");
        let head = String::from_utf8(curl(&lab, &["-I", &format!("http://{at}/5000000.bin")])).unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("Content-Length: 5000000"), "{head}");
    }
    let findings = capture.finish().unwrap();
    findings.check();
    assert!(findings.from_server["TCP"] > 8000, "{findings}");
    let stats = web.tcp();
    assert_eq!(stats.sum("tcp_events_total", &[("event", "accepted")]), 2 * (SIZES.len() as u64 + 4), "{stats:?}");
    assert_eq!(stats.sum("tcp_events_total", &[("event", "reset by peer")]), 0, "{stats:?}");
    let bytes = 4 * SIZES.iter().sum::<usize>() as u64;
    assert!(stats.sum("tcp_acknowledged_bytes_total", &[]) > bytes, "{stats:?}");
}

#[test]
fn who_knocks_while_the_server_starts_is_refused_or_served() {
    let lab = Lab::new().unwrap();
    let (lab, up) = (&lab, &AtomicBool::new(false));
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    std::thread::scope(|scope| {
        let knocking = scope.spawn(move || {
            let (mut refused, mut served) = (0, 0);
            while served < 5 || !up.load(Ordering::Acquire) {
                match connect(lab, "198.18.0.1:80") {
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                        refused += 1;
                        // once is enough
                        let _ = tell.try_send(());
                    }
                    stream => {
                        assert_eq!(get(&mut stream.unwrap(), "/").expect("an answer"), b"hello");
                        served += 1;
                    }
                }
            }
            (refused, served)
        });
        told.recv_timeout(PATIENCE).expect("nobody comes");
        let web = Web::start(lab.server(), &LISTEN);
        up.store(true, Ordering::Release);
        let (refused, served) = knocking.join().unwrap();
        assert!(refused > 0, "nobody came before the server, {served} after it");
        drop(web);
    });
}

#[test]
fn load_generators_find_no_error_on_one_queue_and_on_two() {
    lab::require_programs(&["wrk", "ab"]);
    for queues in [1, 2] {
        let lab = Lab::with(&Options { queues, ..Options::default() }).unwrap();
        let web = Web::start(lab.server(), &LISTEN);
        for (at, path, connections) in [(SERVERS[0], "1448.bin", 50), (SERVERS[1], "65536.bin", 8)] {
            let said = client(&lab, &format!("wrk --timeout 10s -t 1 -c {connections} -d 1 http://{at}/{path}"));
            assert!(said.contains("Requests/sec"), "{said}");
            assert!(!said.contains("Non-2xx") && !said.contains("Socket errors"), "{said}");
        }
        // a connection for each request
        let said = client(&lab, &format!("ab -q -n 500 -c 10 http://{}/1449.bin", SERVERS[0]));
        assert!(said.contains("Complete requests:      500") && said.contains("Failed requests:        0"), "{said}");
        let stats = web.tcp();
        assert!(stats.sum("tcp_events_total", &[("event", "accepted")]) >= 558, "{stats:?}");
        if queues == 2 {
            for queue in ["0", "1"] {
                assert!(stats.sum("xdp_frames_received_total", &[("queue", queue)]) > 100, "{stats:?}");
            }
        }
    }
}

#[test]
fn usual_clients_and_a_proxy_in_front_get_what_is_there() {
    lab::require_programs(&["h2load", "nginx", "wget"]);
    let lab = Lab::new().unwrap();
    let web = Web::start(lab.server(), &LISTEN);
    let said = client(&lab, "h2load --h1 -n 400 -c 10 -m 4 http://198.18.0.1/14480.bin");
    assert!(said.contains("400 succeeded, 0 failed, 0 errored, 0 timeout"), "{said}");
    let dir = tempfile::Builder::new().prefix("simoom-clients-").tempdir().unwrap();
    let half = dir.path().join("1048576.bin");
    fs::write(&half, &contents(1 << 20)[..500_000]).unwrap();
    for program in [
        vec!["wget", "-q", "-c", "-P", dir.path().to_str().unwrap(), "http://198.18.0.1/1048576.bin"],
        vec!["curl", "-gsS", "-C", "-", "-o", half.to_str().unwrap(), "http://[2001:db8:18::1]/1048576.bin"],
    ] {
        fs::write(&half, &contents(1 << 20)[..500_000]).unwrap();
        lab.client().run(&program).unwrap();
        assert!(fs::read(&half).unwrap() == contents(1 << 20), "{program:?}");
    }
    let at = dir.path().display();
    let conf = format!(
        "daemon off; master_process off; pid {at}/pid; error_log stderr; events {{}}\nhttp {{ access_log off; \
         client_body_temp_path {at}/b; proxy_temp_path {at}/p; fastcgi_temp_path {at}/f; uwsgi_temp_path {at}/u; \
         scgi_temp_path {at}/s; upstream up {{ server 198.18.0.1; keepalive 4; }}\n\
         server {{ listen 127.0.0.1:8080; location / {{ proxy_pass http://up; proxy_http_version 1.1; \
         proxy_set_header Connection \"\"; }} }} }}"
    );
    let file = dir.path().join("nginx.conf");
    fs::write(&file, conf).unwrap();
    let proxy = lab.client().spawn(&["nginx", "-c", file.to_str().unwrap()]).unwrap();
    let up = || lab.client().run(&["curl", "-sS", "--max-time", "5", "http://127.0.0.1:8080/"]).is_ok();
    assert!(lab::wait_until(up, PATIENCE), "{}", proxy.log());
    for bytes in SIZES {
        let body = curl(&lab, &[&format!("http://127.0.0.1:8080/{bytes}.bin")]);
        assert!(body == contents(bytes), "{} of {bytes} bytes through nginx, or other ones", body.len());
    }
    web.tcp();
}

#[test]
fn connections_are_shown_as_they_stand() {
    let lab = Lab::new().unwrap();
    let web = Web::start(lab.server(), &LISTEN);
    let shown = |args: &[&str]| -> String {
        let output = web.server.ctl(&[&["connections"], args].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(shown(&[]), "no connections\n");
    let mut idle = connect(&lab, "198.18.0.1:80").unwrap();
    assert_eq!(get(&mut idle, "/65536.bin").unwrap(), contents(65_536));
    let mut stuck = connect(&lab, "[2001:db8:18::1]:80").unwrap();
    write!(stuck, "GET /5000000.bin HTTP/1.1\r\nHost: lab\r\n\r\n").unwrap();
    // until the peer's window is full
    let find = |at: SocketAddr| -> serde_json::Value {
        let all: serde_json::Value = serde_json::from_str(&shown(&["--json"])).unwrap();
        let found = all["connections"].as_array().unwrap().iter().find(|it| it["peer"] == at.to_string());
        found.cloned().unwrap_or_default()
    };
    let (idle_at, stuck_at) = (idle.local_addr().unwrap(), stuck.local_addr().unwrap());
    let full = || find(stuck_at)["peer_window_bytes"].as_u64().is_some_and(|bytes| bytes < 2000);
    assert!(lab::wait_until(full, PATIENCE), "{}", shown(&[]));
    let (idle, stuck) = (find(idle_at), find(stuck_at));
    assert_eq!((idle["state"].as_str(), idle["local"].as_str()), (Some("ESTABLISHED"), Some("198.18.0.1:80")));
    assert!(idle["acknowledged_bytes"].as_u64().unwrap() > 65_536 && idle["unacknowledged_bytes"] == 0, "{idle}");
    for name in ["sack", "timestamps"] {
        assert_eq!(idle[name], true, "{name}: {idle}");
    }
    assert!(stuck["unsent_bytes"].as_u64().unwrap() > 100_000, "{stuck}");
    assert!(stuck["sender"]["window_bytes"].as_u64().unwrap() >= 14_000, "{stuck}");
    assert!(stuck["rtt_us"].as_u64().is_some(), "{stuck}");
    let text = shown(&["--most", "1"]);
    assert!(
        text.contains("ESTABLISHED") && text.contains("rto:") && text.ends_with("and more: give --most\n"),
        "{text}"
    );
}

#[test]
fn a_download_that_is_under_way_gets_the_old_file_after_a_reload() {
    let lab = Lab::new().unwrap();
    let web = Web::start(lab.server(), &LISTEN);
    let mut slow = connect(&lab, "198.18.0.1:80").unwrap();
    write!(slow, "GET /5000000.bin HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n").unwrap();
    let mut body = vec![0; 100_000];
    slow.read_exact(&mut body).unwrap();
    fs::write(web.file("5000000.bin"), "new").unwrap();
    assert!(web.server.ctl(&["reload"]).status.success());
    assert_eq!(curl(&lab, &["http://198.18.0.1/5000000.bin"]), b"new");
    slow.read_to_end(&mut body).unwrap();
    assert!(body.ends_with(&contents(5_000_000)), "{} bytes", body.len());
    web.tcp();
}

#[test]
fn the_end_lets_downloads_finish_and_closes_what_is_idle() {
    let lab = Lab::new().unwrap();
    let mut web = Web::start(lab.server(), &LISTEN);
    let mut idle = connect(&lab, "198.18.0.1:80").unwrap();
    assert_eq!(get(&mut idle, "/").unwrap(), b"hello");
    let mut slow = connect(&lab, "[2001:db8:18::1]:80").unwrap();
    write!(slow, "GET /5000000.bin HTTP/1.1\r\nHost: lab\r\n\r\n").unwrap();
    let mut body = vec![0; 100_000];
    slow.read_exact(&mut body).unwrap();
    web.wait_for_connections(2);
    web.server.process.signal(Signal::TERM);
    // the idle one is closed, not reset
    assert_eq!(idle.read(&mut [0; 16]).unwrap(), 0);
    let refused = || connect(&lab, "198.18.0.1:80").is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    assert!(lab::wait_until(refused, PATIENCE), "{}", web.server.process.log());
    slow.read_to_end(&mut body).unwrap();
    assert!(body.ends_with(&contents(5_000_000)), "{} bytes", body.len());
    let status = web.server.process.wait(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(0), "{}", web.server.process.log());
    nothing_attached(&lab);
}

#[test]
fn what_does_not_end_in_time_is_reset() {
    let lab = Lab::new().unwrap();
    let mut web = Web::start(lab.server(), &[&LISTEN[..], &["--drain", "1"]].concat());
    let mut stuck = connect(&lab, "198.18.0.1:80").unwrap();
    write!(stuck, "GET /5000000.bin HTTP/1.1\r\nHost: lab\r\n\r\n").unwrap();
    web.wait_for_connections(1);
    web.server.process.signal(Signal::TERM);
    let status = web.server.process.wait(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(0), "{}", web.server.process.log());
    assert!(web.server.process.log().contains("1 connections did not end in 1 s and are reset"));
    let ended = std::io::copy(&mut stuck, &mut std::io::sink()).map_err(|error| error.kind());
    assert_eq!(ended, Err(ErrorKind::ConnectionReset));
}

#[test]
fn clients_that_vanish_leave_nothing_behind() {
    let lab = Lab::new().unwrap();
    let web = Web::start(lab.server(), &LISTEN);
    for round in 0..20 {
        // killed in the middle: what its kernel has not read yet makes it send a reset
        let mut command = lab.client().command("curl");
        command.args(["-gsS", "--limit-rate", "100k"]);
        // one file may be there before the limit is felt, and before anybody looks
        for _ in 0..50 {
            command.args(["-o", "/dev/null", "http://198.18.0.1/5000000.bin"]);
        }
        let mut killed = Process::spawn(command).unwrap();
        web.wait_for_connections(1);
        killed.signal(Signal::KILL);
        killed.wait(PATIENCE).unwrap();
        web.wait_for_connections(0);
        assert_eq!(curl(&lab, &["http://198.18.0.1/1449.bin"]), contents(1449), "round {round}");
        web.wait_for_connections(0);
    }
    assert!(web.tcp().sum("tcp_events_total", &[("event", "reset by peer")]) >= 10);
}

#[test]
fn a_killed_server_gives_the_port_back_to_the_kernel() {
    let lab = Lab::new().unwrap();
    let mut web = Web::start(lab.server(), &LISTEN);
    let mut open = connect(&lab, "198.18.0.1:80").unwrap();
    assert_eq!(get(&mut open, "/1.bin").unwrap(), contents(1));
    web.server.process.signal(Signal::KILL);
    web.server.process.wait(PATIENCE).unwrap();
    nothing_attached(&lab);
    // the kernel knows the connection as little as the port
    let ended = get(&mut open, "/").map_err(|error| error.kind());
    assert_eq!(ended, Err(ErrorKind::ConnectionReset));
    let refused = connect(&lab, "198.18.0.1:80").map_err(|error| error.kind());
    assert_eq!(refused.err(), Some(ErrorKind::ConnectionRefused));
    assert!(client(&lab, "ping -c 2 -i 0.2 -W 5 198.18.0.1").contains(" 2 received"));
}

#[test]
fn other_ports_and_other_interfaces_are_the_kernels() {
    let lab = Lab::new().unwrap();
    let web = Web::start(lab.server(), &["--interface", "vs", "--listen", "0.0.0.0:80"]);
    let ssh = lab.server().inside(|| std::net::TcpListener::bind("198.18.0.1:22")).unwrap();
    let mut near = connect(&lab, "198.18.0.1:22").unwrap();
    let (mut far, _) = ssh.accept().unwrap();
    far.write_all(b"SSH-2.0-").unwrap();
    near.read_exact(&mut [0; 8]).unwrap();
    // from the same host, over the loopback interface: kernel sockets beside
    let local = lab.server().run(&["curl", "-sS", "--max-time", "30", "http://127.0.0.1/"]).unwrap();
    assert_eq!(local, "hello");
    assert_eq!(curl(&lab, &["http://198.18.0.1/"]), b"hello");
    let stats = web.server.stats();
    assert_eq!(stats.sum("sockets_connections_accepted_total", &[]), 1, "{stats:?}");
    assert_eq!(stats.sum("tcp_events_total", &[("event", "accepted")]), 1, "{stats:?}");
    // an address that comes later is served, too
    ip(lab.server(), "addr add 198.18.0.7/24 dev vs");
    let mut last = String::new();
    let served = || {
        last = client(&lab, "curl -sS --max-time 5 http://198.18.0.7/");
        web.server.stats().sum("tcp_events_total", &[("event", "accepted")]) > 1
    };
    assert!(lab::wait_until(served, PATIENCE), "{last}");
}

#[test]
fn an_own_address_is_served_without_the_kernel() {
    let lab = Lab::new().unwrap();
    let own = ["--interface", "vs", "--own", "198.18.0.80/24", "--own", "2001:db8:18::80/64"];
    let listen = ["--listen", "198.18.0.80:80", "--listen", "[2001:db8:18::80]:80"];
    let web = Web::start(lab.server(), &[&own[..], &listen].concat());
    for (at, other) in [("198.18.0.80", "198.18.0.80:81"), ("[2001:db8:18::80]", "[2001:db8:18::80]:81")] {
        let address = at.trim_matches(['[', ']']);
        web.server.wait_until(at, |stats| stats.sum("own_address_state", &[("address", address)]) == 1);
        assert!(curl(&lab, &[&format!("http://{at}/1048576.bin")]) == contents(1 << 20), "{at}");
        // the stack itself refuses what nobody listens for
        let refused = connect(&lab, other).map_err(|error| error.kind());
        assert_eq!(refused.err(), Some(ErrorKind::ConnectionRefused), "{other}");
    }
    assert_eq!(web.server.stats().sum("tcp_events_total", &[("event", "accepted")]), 2);
}

#[test]
fn downloads_go_in_super_segments_as_long_as_the_device_cuts_them() {
    let lab = Lab::new().unwrap();
    let web = Web::start(lab.server(), &LISTEN);
    let said = String::from_utf8(web.server.ctl(&["status"]).stdout).unwrap();
    assert!(said.contains("TCP in super-segments that the device cuts"), "{said}");
    let large = || web.tcp().sum("large_sends_total", &[]);
    let refused = || web.tcp().sum("large_sends_refused_total", &[]);
    for at in SERVERS {
        let before = web.tcp().sum("large_send_bytes_total", &[]);
        assert!(curl(&lab, &[&format!("http://{at}/5000000.bin")]) == contents(5_000_000), "{at}");
        assert!(web.tcp().sum("large_send_bytes_total", &[]) - before > 2_500_000, "{at}: {:?}", web.tcp());
    }
    assert_eq!(refused(), 0);
    for at in SERVERS {
        let mut slow = connect(&lab, &format!("{at}:80")).unwrap();
        // so that most of the file has not left while the device changes
        rustix::net::sockopt::set_socket_recv_buffer_size(&slow, 400_000).unwrap();
        write!(slow, "GET /5000000.bin HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n").unwrap();
        let mut body = Vec::new();
        let mut some = |bytes| {
            let before = body.len();
            body.resize(before + bytes, 0);
            slow.read_exact(&mut body[before..]).unwrap();
        };
        some(100_000);
        let device = |tso| lab.server().run(&["ethtool", "-K", "vs", "tso", tso]).unwrap();
        let was_refused = refused();
        device("off");
        some(1_000_000);
        assert!(refused() > was_refused, "{at}: {:?}", web.tcp());
        // a pause from the refusal on, then the device is asked
        let before = large();
        device("on");
        // so much that the window opens by more than the least super-segment
        let back = || {
            some(100_000);
            std::thread::sleep(std::time::Duration::from_millis(100));
            large() > before
        };
        assert!(lab::wait_until(back, PATIENCE), "{at}: {:?}", web.tcp());
        slow.read_to_end(&mut body).unwrap();
        assert!(body.ends_with(&contents(5_000_000)), "{at}: {} bytes", body.len());
    }
    // a program in the driver of the other end has the device's segmentation switched off, and on again when it goes
    let mut slow = connect(&lab, "198.18.0.1:80").unwrap();
    write!(slow, "GET /5000000.bin HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n").unwrap();
    let mut body = vec![0; 100_000];
    slow.read_exact(&mut body).unwrap();
    let other = Server::start(lab.client(), &["--interface", "vc", "--listen", "198.18.0.2:53"]);
    let mut next = vec![0; 2_000_000];
    slow.read_exact(&mut next).unwrap();
    drop(other);
    body.append(&mut next);
    slow.read_to_end(&mut body).unwrap();
    assert!(body.ends_with(&contents(5_000_000)), "{} bytes", body.len());
    assert_eq!(web.tcp().sum("tcp_events_total", &[("event", "reset by peer")]), 0);
}

/// A figure of the client's kernel.
pub(crate) fn kernel_count(lab: &Lab, table: &str, group: &str, what: &str) -> u64 {
    let path = format!("/proc/thread-self/net/{table}");
    let tables = lab.client().inside(|| fs::read_to_string(path)).unwrap();
    let mut lines = tables.lines().filter_map(|line| line.strip_prefix(group)).map(str::split_whitespace);
    let (mut names, mut values) = (lines.next().expect("names"), lines.next().expect("values"));
    let at = names.position(|name| name == what).expect("the figure");
    values.nth(at).expect("a value").parse().unwrap()
}

/// Segments that the client's kernel has sent again because they were lost: on a busy machine it does so for late acknowledgements, too,
/// and is told that they came twice.
pub(crate) fn lost(lab: &Lab) -> u64 {
    let again = kernel_count(lab, "snmp", "Tcp: ", "RetransSegs");
    again.saturating_sub(kernel_count(lab, "netstat", "TcpExt: ", "TCPDSACKRecvSegs"))
}

#[test]
fn requests_larger_than_a_frame_arrive_whole_and_at_once() {
    let lab = Lab::new().unwrap();
    let web = Web::start(lab.server(), &LISTEN);
    let said = String::from_utf8(web.server.ctl(&["status"]).stdout).unwrap();
    assert!(said.contains("vs in generic mode"), "{said}");
    let cookie = "c".repeat(6000);
    for at in SERVERS {
        let mut stream = connect(&lab, &format!("{at}:80")).unwrap();
        for body in [0, 3000, 60_000] {
            let body = contents(body);
            write!(stream, "GET / HTTP/1.1\r\nHost: lab\r\nCookie: {cookie}\r\nContent-Length: {}\r\n\r\n", body.len())
                .unwrap();
            stream.write_all(&body).unwrap();
            assert_eq!(answer(&mut stream).unwrap(), b"hello", "{at}");
            assert!(get(&mut stream, "/1448.bin").unwrap() == contents(1448), "{at}: what comes behind the body");
        }
    }
    let stats = web.tcp();
    assert_eq!(stats.sum("xdp_frames_dropped_total", &[]), 0, "{stats:?}");
    assert!(stats.sum("tcp_delivered_bytes_total", &[]) > 2 * (3 * 6000 + 63_000), "{stats:?}");
    assert_eq!(lost(&lab), 0);
}

#[test]
fn a_server_told_to_copy_sends_frames_only() {
    let lab = Lab::new().unwrap();
    let web = Web::start(lab.server(), &[&LISTEN[..], &["--transmit", "copy"]].concat());
    assert!(curl(&lab, &["http://198.18.0.1/5000000.bin"]) == contents(5_000_000));
    let said = String::from_utf8(web.server.ctl(&["status"]).stdout).unwrap();
    assert!(!said.contains("super-segments"), "{said}");
    assert_eq!(web.tcp().sum("large_sends_total", &[]), 0);
}

/// Files of [`SIZES`] of which most are read while they are sent: the memory is far less than what they take.
fn start_chunked(lab: &Lab, more: &[&str]) -> Web {
    let web = Web::start(lab.server(), &[&LISTEN[..], &["--memory", "2M", "--cache", "1M"], more].concat());
    let log = web.server.process.log();
    assert!(log.contains("held, 2 of 5.8 MiB read while they are sent"), "{log}");
    web
}

#[test]
fn what_does_not_fit_into_memory_is_read_while_it_is_sent() {
    for transmit in ["copy", "auto"] {
        let lab = Lab::new().unwrap();
        let web = start_chunked(&lab, &["--transmit", transmit]);
        for at in SERVERS {
            for bytes in SIZES {
                let body = curl(&lab, &[&format!("http://{at}/{bytes}.bin")]);
                assert!(body == contents(bytes), "{at}: {} of {bytes} bytes, or other ones", body.len());
            }
            let part = curl(&lab, &["-r", "65530-200000", &format!("http://{at}/5000000.bin")]);
            assert!(part == contents(5_000_000)[65_530..=200_000]);
            let parts = curl(&lab, &["-r", "0-9,3000000-3100000,-5", &format!("http://{at}/5000000.bin")]);
            assert!(parts.windows(100_001).any(|window| window == &contents(5_000_000)[3_000_000..=3_100_000]));
            let head = String::from_utf8(curl(&lab, &["-I", &format!("http://{at}/5000000.bin")])).unwrap();
            assert!(head.contains("Content-Length: 5000000") && head.contains("ETag: \""), "{head}");
        }
        // many at once, beside some that never read: the cache holds a part of what they want
        let mut stuck: Vec<TcpStream> = (0..8).map(|_| connect(&lab, "198.18.0.1:80").unwrap()).collect();
        for stream in &mut stuck {
            write!(stream, "GET /5000000.bin HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n").unwrap();
        }
        std::thread::scope(|scope| {
            for n in 0..16 {
                let (lab, at) = (&lab, SERVERS[n % 2]);
                scope.spawn(move || {
                    assert!(curl(lab, &[&format!("http://{at}/5000000.bin")]) == contents(5_000_000), "{n} from {at}");
                });
            }
        });
        let stats = web.tcp();
        assert!(stats.sum("web_cache_bytes", &[]) <= 1 << 20, "{stats:?}");
        assert!(
            stats.sum("web_cache_hits_total", &[]) > 0 && stats.sum("web_cache_misses_total", &[]) > 0,
            "{stats:?}"
        );
        assert_eq!(stats.sum("web_drops_total", &[]), 0, "{stats:?}");
        for mut stream in stuck {
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            assert!(answer.ends_with(&contents(5_000_000)), "{} bytes", answer.len());
        }
        web.server.wait_until("no streams", |stats| stats.sum("web_cache_streams", &[]) == 0);
    }
}

#[test]
fn a_download_of_a_held_file_that_stays_goes_on_whatever_else_is_reloaded() {
    let lab = Lab::new().unwrap();
    let web = Web::start(lab.server(), &[&LISTEN[..], &["--drain", "1"]].concat());
    // files that were younger when they were read are read again by the next reload, whatever their times say
    std::thread::sleep(std::time::Duration::from_millis(2500));
    fs::write(web.file("index.html"), "hello again").unwrap();
    assert!(web.server.ctl(&["reload"]).status.success());
    let mut slow = connect(&lab, "198.18.0.1:80").unwrap();
    write!(slow, "GET /5000000.bin HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n").unwrap();
    let mut body = vec![0; 100_000];
    slow.read_exact(&mut body).unwrap();
    for n in 0..2 {
        // of the file's place among the objects, too
        fs::write(web.file(&format!("1-{n}.html")), "another").unwrap();
        assert!(web.server.ctl(&["reload"]).status.success());
        // the time to drain is over
        std::thread::sleep(std::time::Duration::from_millis(1500));
    }
    slow.read_to_end(&mut body).unwrap();
    assert!(body.ends_with(&contents(5_000_000)), "{} bytes", body.len());
    assert_eq!(web.tcp().sum("tcp_events_total", &[("event", "drain expired")]), 0);
}

#[test]
fn a_file_that_changes_while_it_is_sent_from_disk_resets_the_connection() {
    let lab = Lab::new().unwrap();
    let web = start_chunked(&lab, &["--drain", "1"]);
    let begin = |path: &str| {
        let mut slow = connect(&lab, "198.18.0.1:80").unwrap();
        write!(slow, "GET {path} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n").unwrap();
        let mut body = vec![0; 100_000];
        slow.read_exact(&mut body).unwrap();
        (slow, body)
    };
    // a reload, and the end of its time to drain, leave it alone as long as it stays
    let (mut slow, mut body) = begin("/5000000.bin");
    fs::write(web.file("index.html"), "hello again").unwrap();
    assert!(web.server.ctl(&["reload"]).status.success());
    std::thread::sleep(std::time::Duration::from_millis(1500));
    slow.read_to_end(&mut body).unwrap();
    assert!(body.ends_with(&contents(5_000_000)), "{} bytes", body.len());
    // it is cut off before a wrong byte
    let (mut slow, mut body) = begin("/5000000.bin");
    fs::write(web.file("5000000.bin.new"), contents(5_000_000).iter().rev().copied().collect::<Vec<u8>>()).unwrap();
    fs::rename(web.file("5000000.bin.new"), web.file("5000000.bin")).unwrap();
    let ended = slow.read_to_end(&mut body).map_err(|error| error.kind());
    assert_eq!(ended, Err(ErrorKind::ConnectionReset));
    let at = body.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    assert!(body.len() < 5_000_000 && body[at..] == contents(5_000_000)[..body.len() - at], "{} bytes", body.len());
    assert_eq!(web.server.stats().sum("web_drops_total", &[("reason", "changed")]), 1);
    // a file that cannot be read any more is the same to who is sent it
    assert!(web.server.ctl(&["reload"]).status.success());
    let (mut slow, mut body) = begin("/5000000.bin");
    fs::remove_file(web.file("5000000.bin")).unwrap();
    let ended = slow.read_to_end(&mut body).map_err(|error| error.kind());
    assert_eq!(ended, Err(ErrorKind::ConnectionReset));
    web.server.wait_until("both", |stats| stats.sum("web_drops_total", &[("reason", "changed")]) == 2);
}
