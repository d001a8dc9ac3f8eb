//! Files that are read while they are sent.

use super::*;

/// Bytes that tell where they are.
pub(super) fn numbered(bytes: usize, file: u64) -> Vec<u8> {
    let word = |n: usize| (n as u64 + (file << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    (0..bytes.div_ceil(8)).flat_map(word).take(bytes).collect()
}

/// Far more than the memory that [`chunked`] gives.
const LARGE_BYTES: usize = 7_000_001;

/// A server whose `large-N.bin` are read while they are sent; `small.bin` and the site's others are held.
fn chunked(place: &Place, more: &[&str]) -> common::Server {
    site(place);
    for file in 0..3 {
        std::fs::write(place.path(&format!("site/large-{file}.bin")), numbered(LARGE_BYTES, file)).unwrap();
    }
    std::fs::write(place.path("site/small.bin"), numbered(30_000, 9)).unwrap();
    let server = serve(place, &[&["--memory", "4M", "--cache", "1M"], more].concat());
    assert!(
        server.log().iter().any(|line| line.contains("held, 3 of 20.0 MiB read while they are sent")),
        "{:?}",
        server.log()
    );
    server
}

fn begin(to: SocketAddr, path: &str) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    // little room, so that the server cannot run ahead
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
    stream
}

/// Everything up to the end of the stream, and whether that was a reset.
fn rest(mut stream: TcpStream) -> (Vec<u8>, bool) {
    let (mut all, mut some) = (Vec::new(), [0; 65_536]);
    loop {
        match stream.read(&mut some) {
            Ok(0) => return (all, false),
            Ok(bytes) => all.extend_from_slice(&some[..bytes]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return (all, true),
            Err(error) => panic!("{error} after {} bytes", all.len()),
        }
    }
}

fn body(answer: &[u8]) -> &[u8] {
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    &answer[head + 4..]
}

#[test]
fn what_does_not_fit_is_read_while_it_is_sent() {
    let place = Place::new();
    let server = chunked(&place, &[]);
    let large = numbered(LARGE_BYTES, 1);
    let url = |path: &str| format!("http://{}{path}", server.address);
    let saved = place.path("saved");
    assert_eq!(curl(&["-o", &saved, &url("/large-1.bin")]).1, "");
    assert!(std::fs::read(&saved).unwrap() == large);
    std::fs::File::options().write(true).open(&saved).unwrap().set_len(777_777).unwrap();
    assert_eq!(curl(&["-C", "-", "-o", &saved, &url("/large-1.bin")]).1, "");
    assert!(std::fs::read(&saved).unwrap() == large);
    let mut stream = connect(server.address);
    let mut ask = |method: &str, fields: &str, has_body: bool| {
        write!(stream, "{method} /large-1.bin HTTP/1.1\r\nHost: a\r\n{fields}\r\n").unwrap();
        answer(&mut stream, has_body).expect("an answer")
    };
    let head = ask("HEAD", "", false);
    assert_eq!((head.status, &*head.fields["content-length"]), (200, &*LARGE_BYTES.to_string()));
    let tag = head.fields["etag"].clone();
    assert_eq!(ask("GET", &format!("If-None-Match: {tag}\r\n"), false).status, 304);
    let part = ask("GET", &format!("Range: bytes=65535-200000\r\nIf-Range: {tag}\r\n"), true);
    assert!(part.status == 206 && part.body == large[65_535..=200_000]);
    let parts = ask("GET", "Range: bytes=0-0,6000000-6100000,-1\r\n", true);
    assert!(parts.status == 206 && parts.fields["content-type"].starts_with("multipart/byteranges"));
    assert!(parts.body.windows(100_001).any(|window| window == &large[6_000_000..=6_100_000]));
    assert_eq!(get(&mut stream, "/small.bin").body, numbered(30_000, 9));
    assert!(server.stat("web_cache_misses_total") > 0 && server.stat("web_cache_hits_total") > 0);
    assert!(server.stat("web_cache_bytes") <= 1 << 20);
    assert_eq!((server.stat("web_cache_files"), server.stat("web_cache_streams")), (3, 0));
}

#[test]
fn many_share_a_cache_that_holds_a_part_of_what_they_want() {
    let place = Place::new();
    let server = chunked(&place, &[]);
    let all: Vec<Vec<u8>> = (0..3).map(|file| numbered(LARGE_BYTES, file)).collect();
    // some that never read hold what they can get
    let idle: Vec<TcpStream> = (0..12).map(|n| begin(server.address, &format!("/large-{}.bin", n % 3))).collect();
    std::thread::scope(|scope| {
        for n in 0..24 {
            let (at, all) = (server.address, &all);
            scope.spawn(move || {
                let mut stream = connect(at);
                let answer = get(&mut stream, &format!("/large-{}.bin", n % 3));
                assert!(answer.body == all[n % 3], "{} bytes, or other ones", answer.body.len());
            });
        }
    });
    assert!(server.stat("web_cache_bytes") <= 1 << 20);
    // and those go on where they stood
    for (n, stream) in idle.into_iter().enumerate().take(3) {
        stream.shutdown(Shutdown::Write).unwrap();
        let (answer, reset) = rest(stream);
        assert!(!reset && body(&answer) == all[n % 3]);
    }
    until(|| server.stat("web_cache_streams") == 0, || "streams that do not end".into());
}

#[test]
fn a_file_that_changes_while_it_is_sent_ends_the_connection_and_one_that_is_held_stays_whole() {
    let place = Place::new();
    let server = chunked(&place, &[]);
    let replace = |name: &str, with: Option<&[u8]>| {
        let path = place.path(&format!("site/{name}"));
        match with {
            Some(bytes) => {
                std::fs::write(format!("{path}.new"), bytes).unwrap();
                std::fs::rename(format!("{path}.new"), path).unwrap();
            }
            None => std::fs::File::options().write(true).open(path).unwrap().set_len(1000).unwrap(),
        }
    };
    for (file, with) in [(0, None), (1, Some(numbered(LARGE_BYTES, 77)))] {
        let stream = begin(server.address, &format!("/large-{file}.bin"));
        until(|| server.stat("web_cache_reads_total") > 0, || "nothing is read".into());
        replace(&format!("large-{file}.bin"), with.as_deref());
        let (answer, reset) = rest(stream);
        let (body, whole) = (body(&answer), numbered(LARGE_BYTES, file));
        assert!(reset && body.len() < LARGE_BYTES && *body == whole[..body.len()], "{} bytes", body.len());
    }
    assert_eq!(server.stat("web_drops_total  reason=changed"), 2);
    server.wait_for_log("large-0.bin: it is not what was loaded any more; connections that are sent it are reset");
    let mut held = begin(server.address, "/big.bin");
    replace("big.bin", None);
    let big = "0123456789abcdef".repeat(1 << 16);
    assert!(answer(&mut held, true).unwrap().body == big.as_bytes());
    // what is there now is served after a reload
    assert!(server.ctl(&["reload"]).status.success());
    let mut stream = connect(server.address);
    assert_eq!(get(&mut stream, "/large-0.bin").body, &numbered(LARGE_BYTES, 0)[..1000]);
    assert!(get(&mut stream, "/large-1.bin").body == numbered(LARGE_BYTES, 77));
}

#[test]
fn a_file_whose_permissions_or_links_change_is_served_on_without_a_reload() {
    let place = Place::new();
    let server = chunked(&place, &[]);
    let path = place.path("site/large-0.bin");
    let tag = |server: &common::Server| get(&mut connect(server.address), "/large-0.bin").fields["etag"].clone();
    let before = tag(&server);
    std::fs::write(place.path("site/small.bin"), "written, and not for anybody before a reload").unwrap();
    std::fs::hard_link(&path, place.path("backup")).unwrap();
    // what is under way cannot be told from what may have been written meanwhile
    let (answer, reset) = rest(begin(server.address, "/large-0.bin"));
    assert!(reset && body(&answer).len() < LARGE_BYTES);
    server.wait_for_log(
        "large-0.bin: its permissions, links or names have changed; connections that are sent it are reset until",
    );
    server.wait_for_log("1 file touched (permissions, links, names), served on under another entity tag");
    until(|| server.stat("web_content_version") == 1, || "not taken".into());
    assert!(get(&mut connect(server.address), "/large-0.bin").body == numbered(LARGE_BYTES, 0));
    assert_ne!(tag(&server), before);
    assert_eq!(get(&mut connect(server.address), "/small.bin").body, numbered(30_000, 9));
}

#[test]
fn reloads_leave_downloads_of_files_that_stay_alone() {
    let place = Place::new();
    let server = chunked(&place, &["--drain", "1"]);
    let streams: Vec<TcpStream> = (0..3).map(|file| begin(server.address, &format!("/large-{file}.bin"))).collect();
    until(|| server.stat("web_cache_reads_total") > 2, || "nothing is read".into());
    for n in 0..2 {
        place.write("site/index.html", &format!("<h1>version {n}</h1>"));
        assert!(server.ctl(&["reload"]).status.success());
    }
    // the time to drain is over
    until(|| server.stat("web_content_version") == 2, || "not reloaded".into());
    std::thread::sleep(Duration::from_millis(1500));
    for (file, stream) in streams.into_iter().enumerate() {
        stream.shutdown(Shutdown::Write).unwrap();
        let (answer, reset) = rest(stream);
        assert!(!reset && body(&answer) == numbered(LARGE_BYTES, file as u64), "{file}: {} bytes", answer.len());
    }
}

#[test]
fn a_file_that_moves_with_its_directory_is_served_where_it_is_now() {
    let place = Place::new();
    let root = |name: &str| place.path(&format!("site/{name}"));
    std::fs::create_dir_all(root("v1")).unwrap();
    std::fs::write(root("v1/large.bin"), numbered(LARGE_BYTES, 0)).unwrap();
    let server = serve(&place, &["--memory", "4M", "--cache", "1M"]);
    let large = |path: &str| get(&mut connect(server.address), path).body == numbered(LARGE_BYTES, 0);
    assert!(large("/v1/large.bin"));
    // which touches nothing of the file itself
    std::fs::rename(root("v1"), root("v2")).unwrap();
    assert!(server.ctl(&["reload"]).status.success());
    assert!(large("/v2/large.bin"));
}

#[test]
fn a_stop_lets_answers_from_disk_finish() {
    let place = Place::new();
    let mut server = chunked(&place, &[]);
    let streams: Vec<TcpStream> = (0..3).map(|file| begin(server.address, &format!("/large-{file}.bin"))).collect();
    until(|| server.stat("web_cache_reads_total") > 2, || "nothing is read".into());
    server.signal(Signal::TERM);
    server.wait_for_log("connections have 60 s to end");
    for (file, stream) in streams.into_iter().enumerate() {
        let (answer, reset) = rest(stream);
        assert!(!reset && body(&answer) == numbered(LARGE_BYTES, file as u64), "{file}: {} bytes", answer.len());
    }
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn files_that_cannot_be_read_without_privileges_are_named_at_the_start() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    site(&place);
    std::fs::write(place.path("site/large.bin"), numbered(LARGE_BYTES, 0)).unwrap();
    std::fs::set_permissions(place.path("."), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(place.path("site/large.bin"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let server = serve(&place, &["--memory", "4M", "--cache", "1M", "--user", "nobody"]);
    server.wait_for_log("large.bin: it cannot be read: Permission denied; connections that are sent it are reset");
    let (answer, reset) = rest(begin(server.address, "/large.bin"));
    assert!(reset && answer.len() < 1000);
    assert_eq!(get(&mut connect(server.address), "/").status, 200);
}
