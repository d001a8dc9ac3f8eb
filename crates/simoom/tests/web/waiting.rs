//! Who waits for whom, and for how long: silent clients, slow readers, a log that nobody reads.

use super::*;
use std::time::Instant;

/// Asks for the large page and reads no more than its start.
fn slow_reader(to: SocketAddr) -> TcpStream {
    let mut stream = connect(to);
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 100]).unwrap();
    stream
}

#[test]
fn who_says_nothing_is_closed_after_the_time_that_a_connection_may_wait() {
    let place = Place::new();
    site(&place);
    let server = serve(&place, &["--keep-alive", "1", "--request-timeout", "2"]);
    // from the first, and with empty lines, which are no request
    let said: [&[u8]; 3] = [b"", b"\r\n", b"\r\n\r\n"];
    for said in said {
        let begun = Instant::now();
        let mut stream = connect(server.address);
        stream.write_all(said).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"", "to {said:?}");
        assert!(begun.elapsed() >= Duration::from_millis(900), "{said:?}: after {:?}", begun.elapsed());
    }
    // half of a request is told what it lacked
    let mut stream = connect(server.address);
    stream.write_all(b"GET / HT").unwrap();
    assert_eq!(answer(&mut stream, true).expect("an answer").status, 408);
}

#[test]
fn a_slow_reader_of_what_was_replaced_delays_what_is_watched_by_its_time_to_drain_alone() {
    const DRAIN: u32 = 4;
    let place = Place::new();
    site(&place);
    place.write("site/large", &"x".repeat(8 << 20));
    let server = serve(&place, &["--watch", "--settle", "50", "--drain", &DRAIN.to_string()]);
    let _slow = slow_reader(server.address);
    let begun = Instant::now();
    for change in 1..=3 {
        place.write("site/large", &"y".repeat((8 << 20) + change));
        place.write("site/index.html", &format!("<h1>change {change}</h1>"));
        std::thread::sleep(Duration::from_millis(200));
    }
    let shown = || get(&mut connect(server.address), "/").body == b"<h1>change 3</h1>";
    until(shown, || format!("{:#?}", server.log()));
    // one that rested for that wait as for work of its own would take five times as long
    assert!(begun.elapsed() < Duration::from_secs(u64::from(DRAIN)) * 3, "{:?}: {:#?}", begun.elapsed(), server.log());
    assert_eq!(server.stat("sockets_drain_expired_total"), 1);
}

#[test]
fn an_access_log_that_nobody_reads_holds_up_neither_pages_nor_the_end() {
    let place = Place::new();
    site(&place);
    let path = place.path("log");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    // there is a reader, and it never reads
    let reader = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut server = serve(&place, &["--access-log", &path]);
    let mut stream = connect(server.address);
    // more than a pipe holds (64 KiB)
    for _ in 0..2000 {
        assert_eq!(get(&mut stream, "/").body, b"<h1>hello</h1>");
    }
    drop(stream);
    server.signal(Signal::TERM);
    assert_eq!(server.end().code(), Some(0), "{:#?}", server.log());
    server.wait_for_log("the last records of the access log are lost: nobody has read it for 5 s");
    drop(reader);
}

#[test]
fn a_reload_that_gives_the_numbers_of_hosts_to_others_waits_for_no_reader_of_the_log() {
    let place = Place::new();
    site(&place);
    let log = place.path("log");
    assert!(Command::new("mkfifo").arg(&log).status().unwrap().success());
    let reader = std::fs::File::options().read(true).write(true).open(&log).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], common::free_port()));
    let control = place.path("control");
    let say = |root: &str| {
        let web = format!("[web]\nlisten = [\"{address}\"]\naccess-log = \"{log}\"\nroot = \"{root}\"\n");
        place.write("s.toml", &format!("{web}[control]\npath = \"{control}\"\n"));
    };
    say("site");
    let server = common::Server::start_config(&place, &place.path("s.toml"));
    let mut stream = connect(address);
    for _ in 0..2000 {
        assert_eq!(get(&mut stream, "/").body, b"<h1>hello</h1>");
    }
    say("site/sub");
    let (done, outcome) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(common::run(&["ctl", "--control", &control, "reload"])));
    let output = outcome.recv_timeout(Duration::from_secs(20)).expect("an end of the reload");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(get(&mut connect(address), "/").body, b"<h1>below</h1>");
    drop((server, reader));
}
