//! The web service as the command runs it: real files, real connections, reloads.

mod chunks;
#[path = "../common/mod.rs"]
mod common;
mod settings;
mod waiting;
mod watching;

use common::{PATIENCE, Place, run, simoom, text, until};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A site in `site` below the place.
fn site(place: &Place) {
    std::fs::create_dir_all(place.path("site/sub")).unwrap();
    place.write("site/index.html", "<h1>hello</h1>");
    place.write("site/sub/index.html", "<h1>below</h1>");
    place.write("site/big.bin", &"0123456789abcdef".repeat(1 << 16));
    place.write("site/.secret", "nothing to see");
}

fn serve(place: &Place, more: &[&str]) -> common::Server {
    let root = place.path("site");
    common::Server::start_service(place, &["web", &root], more, |_| {})
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[derive(Debug)]
struct Answer {
    status: u16,
    fields: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// Reads one answer and nothing behind it; None at the end of the stream.
fn answer(stream: &mut TcpStream, has_body: bool) -> Option<Answer> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(0) if head.is_empty() => return None,
            Ok(0) => panic!("an end within {:?}", text(&head)),
            Ok(_) => head.push(byte[0]),
            Err(error) => panic!("{error} after {:?}", text(&head)),
        }
    }
    let head = text(&head);
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let fields: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let bytes = fields.get("content-length").map_or(0, |bytes| bytes.parse().unwrap());
    let mut body = vec![0; if has_body { bytes } else { 0 }];
    stream.read_exact(&mut body).unwrap();
    Some(Answer { status, fields, body })
}

fn get(stream: &mut TcpStream, path: &str) -> Answer {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
    answer(stream, true).expect("an answer")
}

fn curl(args: &[&str]) -> (String, String) {
    let output = Command::new("curl").args(["-sS", "--max-time", "30"]).args(args).output().unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn curl_gets_pages_ranges_and_errors() {
    let place = Place::new();
    site(&place);
    let server = serve(&place, &[]);
    let url = |path: &str| format!("http://{}{path}", server.address);
    assert_eq!(curl(&[&url("/")]), ("<h1>hello</h1>".into(), String::new()));
    assert_eq!(curl(&["-L", &url("/sub")]).0, "<h1>below</h1>");
    assert_eq!(curl(&["-r", "10-15", &url("/big.bin")]).0, "abcdef");
    let status = ["-o", "/dev/null", "-w", "%{http_code}"];
    for (path, code) in
        [("/", "200"), ("/none", "404"), ("/.secret", "404"), ("/sub", "301"), ("/../etc/passwd", "400")]
    {
        let url = url(path);
        let args = [&status[..], &["--path-as-is", &url]].concat();
        assert_eq!(curl(&args).0, code, "{path}");
    }
    let saved = place.path("saved");
    assert_eq!(curl(&["-o", &saved, &url("/big.bin")]).1, "");
    assert!(std::fs::read(&saved).unwrap() == std::fs::read(place.path("site/big.bin")).unwrap());
    // resumed where it was broken off
    std::fs::File::options().write(true).open(&saved).unwrap().set_len(777_777).unwrap();
    assert_eq!(curl(&["-C", "-", "-o", &saved, &url("/big.bin")]).1, "");
    assert!(std::fs::read(&saved).unwrap() == std::fs::read(place.path("site/big.bin")).unwrap());
}

#[test]
fn both_families_and_several_listeners() {
    let place = Place::new();
    site(&place);
    let port = common::free_port();
    let server = serve(&place, &["--listen", &format!("[::1]:{port}")]);
    for at in [server.address, format!("[::1]:{port}").parse().unwrap()] {
        assert_eq!(get(&mut connect(at), "/").body, b"<h1>hello</h1>");
    }
}

#[test]
fn ten_thousand_requests_on_one_connection() {
    let place = Place::new();
    site(&place);
    let server = serve(&place, &[]);
    let mut stream = connect(server.address);
    for _ in 0..10_000 {
        let answer = get(&mut stream, "/");
        assert_eq!((answer.status, &answer.body[..]), (200, &b"<h1>hello</h1>"[..]));
    }
    assert_eq!(server.stat("web_connections_total"), 1);
}

#[test]
fn pipelined_requests_are_answered_in_order_before_a_half_closed_end() {
    let place = Place::new();
    site(&place);
    let server = serve(&place, &[]);
    let mut stream = connect(server.address);
    let one =
        "GET /sub/ HTTP/1.1\r\nHost: a\r\n\r\nHEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET /none HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut writer = stream.try_clone().unwrap();
    let all = one.repeat(500);
    let writing = std::thread::spawn(move || {
        // in pieces that cut requests anywhere
        for piece in all.as_bytes().chunks(1013) {
            writer.write_all(piece).unwrap();
        }
        writer.shutdown(Shutdown::Write).unwrap();
    });
    for _ in 0..500 {
        assert_eq!(answer(&mut stream, true).unwrap().body, b"<h1>below</h1>");
        assert_eq!(answer(&mut stream, false).unwrap().fields["content-length"], "14");
        assert_eq!(answer(&mut stream, true).unwrap().status, 404);
    }
    assert!(answer(&mut stream, true).is_none());
    writing.join().unwrap();
}

#[test]
fn slow_and_broken_readers_do_not_hold_up_others() {
    let place = Place::new();
    site(&place);
    let server = serve(&place, &["--cpus", "0"]);
    let request = b"GET /big.bin HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut slow: Vec<TcpStream> = (0..20).map(|_| connect(server.address)).collect();
    for stream in &mut slow {
        stream.write_all(&request.repeat(10)).unwrap();
    }
    // half of them go away in the middle, with a reset
    for mut stream in slow.drain(10..) {
        stream.read_exact(&mut [0; 5000]).unwrap();
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
    let mut other = connect(server.address);
    for _ in 0..100 {
        assert_eq!(get(&mut other, "/").body, b"<h1>hello</h1>");
    }
    let big = std::fs::read(place.path("site/big.bin")).unwrap();
    let stream = &mut slow[0];
    for _ in 0..10 {
        assert!(answer(stream, true).unwrap().body == big);
    }
}

#[test]
fn reloads_under_load_show_whole_versions_only() {
    let place = Place::new();
    site(&place);
    let version = |n: usize| format!("{n:04}").repeat(50_000);
    place.write("site/page", &version(0));
    let server = serve(&place, &["--drain", "5"]);
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (stop, address) = (stop.clone(), server.address);
            std::thread::spawn(move || {
                let (mut stream, mut last, mut count) = (connect(address), 0, 0);
                loop {
                    let body = get(&mut stream, "/page").body;
                    let n: usize = text(&body[..4]).parse().unwrap();
                    assert_eq!(body.len(), 200_000);
                    assert!(body.chunks(4).all(|part| part == &body[..4]), "bytes of two versions");
                    assert!(n >= last, "version {n} after {last}");
                    (last, count) = (n, count + 1);
                    if stop.load(Ordering::Acquire) {
                        return (last, count);
                    }
                }
            })
        })
        .collect();
    for n in 1..=5 {
        place.write("site/page", &version(n));
        let output = server.ctl(&["reload"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).starts_with("reloaded "), "{}", text(&output.stdout));
    }
    place.write("site/page", &version(6));
    server.signal(Signal::HUP);
    until(|| server.stat("web_content_version") == 6, || "no sixth version".into());
    assert!(get(&mut connect(server.address), "/page").body.starts_with(b"0006"));
    stop.store(true, Ordering::Release);
    for client in clients {
        assert!(client.join().unwrap().1 > 0);
    }
    assert_eq!(server.stat("sockets_drain_expired_total"), 0);
}

#[test]
fn a_download_of_what_stays_goes_on_whatever_else_is_reloaded() {
    let place = Place::new();
    site(&place);
    let large = chunks::numbered(32 << 20, 3);
    std::fs::write(place.path("site/page"), &large).unwrap();
    // one that is younger is read again by the next reload, whatever its times say
    std::thread::sleep(Duration::from_millis(2500));
    let server = serve(&place, &["--drain", "1"]);
    let mut stream = connect(server.address);
    stream.write_all(b"GET /page HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    until(|| server.stat("web_bytes_total") > 0, || "no answer".into());
    for n in 0..2 {
        // of the page's place among the objects, too
        place.write(&format!("site/another-{n}.html"), "another");
        place.write("site/index.html", &format!("<h1>version {n}</h1>"));
        assert!(server.ctl(&["reload"]).status.success());
        // the time to drain is over
        std::thread::sleep(Duration::from_millis(1500));
    }
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let body = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    assert!(all[body..] == large, "{} bytes", all.len());
    assert_eq!(server.stat("sockets_drain_expired_total"), 0);
}

#[test]
fn who_never_reads_loses_the_old_version_when_its_drain_is_over() {
    let place = Place::new();
    site(&place);
    place.write("site/page", &"x".repeat(32 << 20));
    let server = serve(&place, &["--drain", "1"]);
    let mut stream = connect(server.address);
    stream.write_all(b"GET /page HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until(|| server.stat("web_bytes_total") > 0, || "no answer".into());
    place.write("site/page", "new");
    assert!(server.ctl(&["reload"]).status.success());
    until(|| server.stat("sockets_drain_expired_total") == 1, || "it holds on".into());
    let mut all = Vec::new();
    let error = stream.read_to_end(&mut all).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let body = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    assert!(all[body..].iter().all(|&byte| byte == b'x') && all.len() < 32 << 20);
    assert_eq!(get(&mut connect(server.address), "/page").body, b"new");
}

#[test]
fn a_reload_that_fails_keeps_what_is_served() {
    let place = Place::new();
    site(&place);
    let server = serve(&place, &[]);
    std::fs::rename(place.path("site"), place.path("gone")).unwrap();
    let output = server.ctl(&["reload"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.starts_with("simoom: not reloaded, the old content goes on serving\n"), "{said}");
    assert!(said.contains("site: cannot be read: No such file or directory; check the path"), "{said}");
    assert_eq!(get(&mut connect(server.address), "/").body, b"<h1>hello</h1>");
    std::fs::rename(place.path("gone"), place.path("site")).unwrap();
    assert!(server.ctl(&["reload"]).status.success());
}

#[test]
fn what_the_server_may_not_read_is_left_out_with_a_word() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: becoming another user is not tested");
        return;
    }
    let place = Place::new();
    site(&place);
    std::fs::create_dir(place.path("site/lost+found")).unwrap();
    place.write("site/lost+found/page.html", "mine");
    place.write("site/closed.html", "mine");
    let mode = |path: &str, mode: u32| {
        std::fs::set_permissions(place.path(path), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(".", 0o755);
    mode("site/lost+found", 0o700);
    mode("site/closed.html", 0o000);
    let server = serve(&place, &["--user", "65534"]);
    // they were read with privileges
    for name in ["lost+found", "closed.html"] {
        server.wait_for_log(&format!(
            "site/{name}: cannot be read any more now that privileges are dropped (Permission denied): a reload that has to read it"
        ));
    }
    let said = server.log().into_iter().filter(|line| line.contains("cannot be read any more"));
    assert_eq!(said.count(), 2);
    place.write("site/index.html", "<h1>other</h1>");
    place.write("site/closed.html", "mine, later");
    mode("site/closed.html", 0o000);
    let output = server.ctl(&["reload"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(said.ends_with(" s; the log has 2 lines on what is not served\n"), "{said}");
    for name in ["lost+found", "closed.html"] {
        server.wait_for_log(&format!("site/{name}: cannot be read: Permission denied, not served"));
    }
    let status = |path: &str| get(&mut connect(server.address), path).status;
    assert_eq!(get(&mut connect(server.address), "/").body, b"<h1>other</h1>");
    assert_eq!((status("/sub/"), status("/closed.html"), status("/lost+found/page.html")), (200, 404, 404));
    mode("site/lost+found", 0o755);
    mode("site/closed.html", 0o644);
    let output = server.ctl(&["reload"]);
    assert!(output.status.success() && text(&output.stdout).ends_with(" s\n"), "{output:?}");
    assert_eq!((status("/closed.html"), status("/lost+found/page.html")), (200, 200));
}

#[test]
fn a_stop_lets_answers_finish() {
    let place = Place::new();
    site(&place);
    place.write("site/page", &"x".repeat(16 << 20));
    let mut server = serve(&place, &[]);
    let (mut busy, mut idle) = (connect(server.address), connect(server.address));
    assert_eq!(get(&mut idle, "/").status, 200);
    busy.write_all(b"GET /page HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until(|| server.stat("web_requests_total  method=GET") >= 2, || "no second request".into());
    server.signal(Signal::TERM);
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0, "idle ones are closed at once");
    let page = answer(&mut busy, true).unwrap().body;
    assert!(page.len() == 16 << 20 && page.iter().all(|&byte| byte == b'x'));
    drop((idle, busy));
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn the_access_log_has_a_line_for_each_request() {
    let place = Place::new();
    site(&place);
    let path = place.path("access.log");
    let mut server = serve(&place, &["--access-log", &path, "--log-format", "json"]);
    let mut stream = connect(server.address);
    for _ in 0..100 {
        get(&mut stream, "/none?q=1");
    }
    let lines = || std::fs::read_to_string(&path).unwrap_or_default();
    until(|| lines().lines().count() == 100, || format!("not 100 lines: {}", lines()));
    for line in lines().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((line["status"].as_u64(), line["target"].as_str()), (Some(404), Some("/none?q=1")), "{line}");
        assert_eq!(line["client"], "127.0.0.1");
    }
    // moved away by logrotate, which then has it reloaded
    std::fs::rename(&path, place.path("access.log.1")).unwrap();
    server.signal(Signal::HUP);
    until(|| std::path::Path::new(&path).exists(), || "not opened anew".into());
    get(&mut stream, "/");
    drop(stream);
    server.signal(Signal::TERM);
    assert_eq!(server.end().code(), Some(0));
    assert_eq!(lines().lines().count(), 1, "what was in the ring at the end is written");
    // and one that cannot be opened anew fails the reload
    std::fs::create_dir(place.path("logs")).unwrap();
    let server = serve(&place, &["--access-log", &place.path("logs/access.log")]);
    std::fs::rename(place.path("logs"), place.path("old")).unwrap();
    let reload = server.ctl(&["reload"]);
    let said = text(&reload.stderr);
    assert_eq!(reload.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot be opened anew: No such file or directory; the old file is written on"), "{said}");
    get(&mut connect(server.address), "/");
    until(|| std::fs::read_to_string(place.path("old/access.log")).unwrap().contains("GET / "), || "no line".into());
    drop(server);
    let combined = place.path("combined.log");
    let server = serve(&place, &["--access-log", &combined]);
    get(&mut connect(server.address), "/");
    until(
        || std::fs::read_to_string(&combined).unwrap().contains("\"GET / HTTP/1.1\" 200 14 \"-\" \"-\""),
        || std::fs::read_to_string(&combined).unwrap(),
    );
}

#[test]
fn a_log_that_cannot_be_opened_anew_keeps_no_page_from_being_served() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    site(&place);
    std::fs::set_permissions(place.path("."), std::fs::Permissions::from_mode(0o755)).unwrap();
    // root's, where root alone gives names
    let path = place.path("access.log");
    std::fs::write(&path, "").unwrap();
    let server = serve(&place, &["--access-log", &path, "--user", "nobody"]);
    let cannot = "access.log: cannot be opened anew: Permission denied; the old file is written on: make the file and";
    server.wait_for_log(cannot);
    place.write("site/index.html", "<h1>another</h1>");
    let reload = server.ctl(&["reload"]);
    let said = text(&reload.stderr);
    assert_eq!(reload.status.code(), Some(1), "{said}");
    assert!(said.contains("; the access log is not opened anew") && said.contains(cannot), "{said}");
    assert_eq!(get(&mut connect(server.address), "/").body, b"<h1>another</h1>");
    assert_eq!(server.stat("reloads_total  outcome=failed"), 1);
    until(|| std::fs::read_to_string(&path).unwrap().contains("GET / "), || "no line".into());
    drop(server);
    // what nobody moves away is not opened anew: a pipe of root's, as a container has
    let more = ["--access-log", "/dev/stdout", "--user", "nobody"];
    let prepare = |command: &mut Command| {
        command.stdout(std::process::Stdio::piped());
    };
    let server = common::Server::start_service(&place, &["web", &place.path("site")], &more, prepare);
    place.write("site/index.html", "<h1>a third</h1>");
    let reload = server.ctl(&["reload"]);
    assert!(reload.status.success(), "{}", text(&reload.stderr));
    assert_eq!(get(&mut connect(server.address), "/").body, b"<h1>a third</h1>");
}

#[test]
fn dns_and_web_in_one_process() {
    let place = Place::new();
    site(&place);
    let (dns, web) = (common::free_port(), common::free_port());
    place.write(
        "s.toml",
        &format!(
            "[dataplane]\nlisten = [\"127.0.0.1:{dns}\"]\n\
             [dns]\ntcp-backlog = 9\ncookie-secret = \"secrets\"\n[[dns.zone]]\nfile = \"example.zone\"\n\
             [web]\nlisten = [\"127.0.0.1:{web}\"]\ndrain = 0\n\
             [[web.host]]\nroot = \"site\"\n\
             [[web.host]]\nnames = [\"b.example\"]\nroot = \"site/sub\"\n\
             [[web.host.redirect]]\nfrom = \"/old/*\"\nto = \"/new/*\"\n"
        ),
    );
    let secrets = |text: &str| {
        place.write("secrets", text);
        std::fs::set_permissions(place.path("secrets"), std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    secrets("e5e973e5a6b2a43f48e7dc849e37bfcf");
    let config = place.path("s.toml");
    let checked = run(&["check", "--config", &config]);
    let said = text(&checked.stdout);
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stderr));
    assert!(said.contains("zone example.com.: ") && said.contains("site/sub (b.example): 1 files"), "{said}");
    let server = common::Server::start_service(&place, &["serve", "--config", &config], &[], |_| {});
    let (dns, web) = (SocketAddr::from(([127, 0, 0, 1], dns)), SocketAddr::from(([127, 0, 0, 1], web)));
    assert_eq!(common::ask(dns, "www.example.com").1, Some([192, 0, 2, 2]));
    assert_eq!(common::ask_tcp(dns, "www.example.com").1, Some([192, 0, 2, 2]));
    assert_eq!(get(&mut connect(web), "/").body, b"<h1>hello</h1>");
    let url = |path: &str| format!("http://b.example:{}{path}", web.port());
    let resolve = format!("b.example:{}:127.0.0.1", web.port());
    assert_eq!(curl(&["--resolve", &resolve, &url("/")]).0, "<h1>below</h1>");
    assert!(curl(&["-i", "--resolve", &resolve, &url("/old/x")]).0.contains("Location: /new/x\r\n"));
    // each listener has its own backlog
    for (at, backlog) in [(dns, "9"), (web, "1024")] {
        let shown = Command::new("ss").args(["-Hltn", &format!("sport = :{}", at.port())]).output().unwrap();
        let shown = text(&shown.stdout);
        assert!(!shown.is_empty(), "nobody listens at {at}");
        assert!(shown.lines().all(|line| line.split_whitespace().nth(2) == Some(backlog)), "{shown}");
    }
    // one command reloads all, or nothing
    place.zone("192.0.2.9");
    place.write("site/index.html", "changed");
    assert!(server.ctl(&["reload"]).status.success());
    assert_eq!(common::ask(dns, "www.example.com").1, Some([192, 0, 2, 9]));
    assert_eq!(get(&mut connect(web), "/").body, b"changed");
    // new secrets alone are a reload too
    secrets("445536bcd2513298075a5d379663c962");
    assert!(server.ctl(&["reload"]).status.success());
    place.write("site/index.html", "again");
    secrets("no secret");
    let refused = server.ctl(&["reload"]);
    assert!(text(&refused.stderr).contains("secrets:1: not a secret"), "{}", text(&refused.stderr));
    assert_eq!(get(&mut connect(web), "/").body, b"changed");
    secrets("445536bcd2513298075a5d379663c962");
    place.write("example.zone", "broken");
    assert_eq!(server.ctl(&["reload"]).status.code(), Some(1));
    assert_eq!(get(&mut connect(web), "/").body, b"changed");
    let status = text(&server.ctl(&["status"]).stdout);
    assert!(status.contains("zones ") && status.contains("pages "), "{status}");
    let stats = text(&server.ctl(&["stats", "--json"]).stdout);
    assert!(stats.contains("\"web_answers_total\"") && stats.contains("\"dns_answers_total\""), "{stats}");
    // DNS questions are no HTTP and the reverse: each listener has its own service
    let mut stream = connect(web);
    stream.write_all(&[0, 29, 0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    assert!(all.is_empty() || all.starts_with(b"HTTP/1.1 400 "), "{}", text(&all));
}

/// Runs a command that must be refused with exactly these lines.
#[track_caller]
fn refused(place: &Place, args: &[&str], status: i32, lines: &[&str]) {
    let folder = place.0.path().to_str().unwrap();
    let args: Vec<String> = args.iter().map(|arg| arg.replace("DIR", folder)).collect();
    let output = simoom().args(&args).output().unwrap();
    let said = text(&output.stderr);
    let said: Vec<String> =
        said.lines().filter_map(|line| line.strip_prefix("simoom: ")).map(|line| line.replace(folder, "DIR")).collect();
    assert_eq!(said, lines, "{args:?}: {}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "{args:?}");
}

#[test]
fn what_is_wrong_is_said_and_nothing_is_started() {
    let place = Place::new();
    site(&place);
    let free = format!("127.0.0.1:{}", common::free_port());
    let check = |root: &str, listen: &str, more: &[&str], status: i32, line: &str| {
        let args = [&["web", root, "--control", "DIR/control", "--listen", listen], more].concat();
        refused(&place, &args, status, &[line]);
    };
    check("DIR/none", &free, &[], 2, "DIR/none: cannot be read: No such file or directory; check the path");
    let file = "DIR/site/index.html: it is not a directory; name the one that is to be served";
    check("DIR/site/index.html", &free, &[], 2, file);
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = held.local_addr().unwrap();
    let in_use = format!(
        "TCP {at}: in use by another program; stop it (ss -lpn 'sport = :{}') or choose another port",
        at.port()
    );
    check("DIR/site", &at.to_string(), &[], 1, &in_use);
    let log = "access log DIR/none/log: its folder is not there; make it with `install -d DIR/none`";
    check("DIR/site", &free, &["--access-log", "DIR/none/log"], 2, log);
    place.write("s.toml", "[web]\nroot = \"site\"\ncolour = 1\n");
    let output = run(&["serve", "--config", &place.path("s.toml")]);
    let said = text(&output.stderr);
    assert!(said.contains("s.toml:3:1: unknown key `colour`; known here: `listen`, `root`"), "{said}");
    refused(
        &place,
        &["check", "DIR/none"],
        2,
        &["DIR/none: cannot be read: No such file or directory; check the path"],
    );
    assert!(!place.0.path().join("control").exists());
}

#[test]
fn check_tells_files_and_memory() {
    let place = Place::new();
    site(&place);
    std::os::unix::fs::symlink("/etc/passwd", place.path("site/link")).unwrap();
    let output = run(&["check", &place.path("site"), &place.path("example.zone")]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for part in [
        "link: a link that leaves the root, not served",
        "site (any name): 3 files, 1.0 MiB",
        "content: ",
        "zone example.com.: ",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// The answer to a GET with further fields.
fn ask(stream: &mut TcpStream, path: &str, fields: &str) -> Answer {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes()).unwrap();
    answer(stream, true).expect("an answer")
}

#[test]
fn variants_are_made_in_the_background_and_negotiated() {
    let place = Place::new();
    site(&place);
    let long = "<p>compressible, again and again</p>\n".repeat(3000);
    place.write("site/long.html", &long);
    place.write("site/beside.html", &long);
    place.write("site/beside.html.br", "made by somebody else");
    place.write("site/picture.png", &long);
    let server = serve(&place, &["--compress"]);
    server.wait_for_log("compressed: ");
    let mut stream = connect(server.address);
    let plain = get(&mut stream, "/long.html");
    assert!(plain.body == long.as_bytes() && plain.fields["vary"] == "Accept-Encoding");
    let mut tags = vec![plain.fields["etag"].clone()];
    for coding in ["gzip", "zstd", "br"] {
        let fields = format!("Accept-Encoding: {coding}\r\n");
        let whole = ask(&mut stream, "/long.html", &fields);
        assert_eq!((&*whole.fields["content-encoding"], &*whole.fields["vary"]), (coding, "Accept-Encoding"));
        assert!(whole.body.len() < 2000 && whole.fields["content-type"] == "text/html; charset=utf-8");
        let tag = whole.fields["etag"].clone();
        assert!(!tags.contains(&tag), "{tags:?}");
        // a part of the variant, under the variant's tag only
        let part = ask(&mut stream, "/long.html", &format!("{fields}Range: bytes=20-39\r\nIf-Range: {tag}\r\n"));
        assert!(part.status == 206 && part.body == whole.body[20..40] && part.fields["content-encoding"] == coding);
        assert_eq!(ask(&mut stream, "/long.html", &format!("{fields}If-None-Match: {tag}\r\n")).status, 304);
        assert_eq!(ask(&mut stream, "/long.html", &format!("If-None-Match: {tag}\r\n")).status, 200);
        tags.push(tag);
    }
    let url = format!("http://{}/long.html", server.address);
    assert_eq!(curl(&["--compressed", &url]).0, long);
    // what stands beside a file comes first, and what does not compress stays as it is
    assert_eq!(ask(&mut stream, "/beside.html", "Accept-Encoding: br\r\n").body, b"made by somebody else");
    assert_eq!(ask(&mut stream, "/beside.html", "Accept-Encoding: gzip\r\n").fields["content-encoding"], "gzip");
    let picture = ask(&mut stream, "/picture.png", "Accept-Encoding: br, gzip, zstd\r\n");
    assert!(!picture.fields.contains_key("content-encoding") && !picture.fields.contains_key("vary"));
    // a reload keeps those of what did not change; those of what did are made behind it
    place.write("site/beside.html.br", "made by somebody else, later");
    place.write("site/other.html", &long.replace("again", "anew"));
    assert!(server.ctl(&["reload"]).status.success());
    let br = ask(&mut stream, "/long.html", "Accept-Encoding: br\r\n");
    assert_eq!(br.fields["etag"], tags[3]);
    assert_eq!(ask(&mut stream, "/beside.html", "Accept-Encoding: br\r\n").body, b"made by somebody else, later");
    let coding = |stream: &mut TcpStream| {
        ask(stream, "/other.html", "Accept-Encoding: zstd\r\n").fields.get("content-encoding").cloned()
    };
    until(|| coding(&mut stream).as_deref() == Some("zstd"), || "no variant after a reload".to_owned());
}
