//! After start-up an answer costs no allocation, whatever was asked and however little the engine takes at a time.

#[path = "common/engine.rs"]
mod engine;

use std::sync::Arc;

use app::{Addresses, DeadReason, Listener, Service};
use base::publish::Publisher;
use base::{Instant, ring};
use engine::{CONNECTION, Engine};
use web::{Config, File, Host, Identity, Options, Prefix, Redirect, Server, SiteBuilder};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

fn server(log: bool) -> (Server, Option<ring::Consumer<web::log::Record>>) {
    let host = Host {
        names: vec!["www.example.com".to_owned(), "*.example.org".to_owned()],
        redirects: vec![Redirect { from: "/moved/*".to_owned(), to: "/new/*".to_owned(), status: 301 }],
        ..Host::default()
    };
    let mut builder = SiteBuilder::new(Config { hosts: vec![host], ..Config::default() }, 1, 1 << 30, None).unwrap();
    for (path, bytes) in [
        ("/index.html", 100),
        ("/small.txt", 1000),
        ("/large.bin", 1 << 20),
        ("/page.css", 500),
        ("/page.css.gz", 100),
        ("/page.css.br", 90),
        ("/dir/file", 5),
    ] {
        let identity = Identity::default();
        let encoding = web::Encoding::Identity;
        let file = File { path: path.as_bytes(), modified_unix_s: 784_111_777, identity, encoding };
        builder.add(0, &file, &vec![b'x'; bytes]).unwrap();
    }
    let site = Arc::new(builder.finish().unwrap());
    let (producer, consumer) = ring::ring(1 << 12);
    let everybody = vec![Prefix { address: "192.0.2.0".parse().unwrap(), bits: 24 }];
    let [connections, buffers, pendings] = [16, 4, 4].map(app::Bound::new);
    let options = Options { connections, buffers, pendings, forwarded: everybody, ..Options::default() };
    let server = Server::new(Publisher::new(site).reader(), options, log.then_some(producer));
    (server, log.then_some(consumer))
}

fn requests() -> Vec<Vec<u8>> {
    let mut requests = Vec::new();
    let targets = [
        "/",
        "/small.txt",
        "/large.bin",
        "/page.css",
        "/dir",
        "/dir/",
        "/nope",
        "/%73mall.txt",
        "/a/../small.txt",
        "//small.txt",
        "/..",
        "/%zz",
        "/moved/a%20b/c?d=e",
        "/dir?query",
        "http://a.example.org/small.txt",
        "*",
        "bad",
    ];
    let fields = [
        "",
        "Range: bytes=0-9\r\n",
        "Range: bytes=0-9,20-29,-5\r\n",
        "Range: bytes=99999999-\r\n",
        "Range: bytes=0-0,2-2,4-4,6-6,8-8,10-10,12-12,14-14,16-16,18-18,20-20,22-22,24-24,26-26,28-28,30-30\r\n",
        "If-None-Match: \"a\", \"b\"\r\n",
        "If-None-Match: *\r\n",
        "If-Match: \"a\"\r\n",
        "If-Modified-Since: Sunday, 06-Nov-94 08:49:37 GMT\r\n",
        "If-Unmodified-Since: Sun Nov  6 08:49:37 1974\r\n",
        "Accept-Encoding: gzip;q=0.5, br, *;q=0.1\r\nUser-Agent: test\r\nReferer: /\r\nX-Forwarded-For: 1.2.3.4, 5.6.7.8\r\n",
        "Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nTrailer: v\r\n",
        "Content-Length: 3\r\n\r\nab",
        "Content-Length: 99999999\r\n",
        "Content-Length: x\r\n",
        "Expect: 100-continue\r\n",
        "Connection: close\r\n",
        "Host: twice\r\n",
        "broken field\r\n",
    ];
    for method in ["GET", "HEAD", "OPTIONS", "POST", "BREW"] {
        for target in targets {
            for version in ["1.0", "1.1", "2.0"] {
                for field in fields {
                    let text = format!("{method} {target} HTTP/{version}\r\nHost: www.example.com\r\n{field}\r\n");
                    requests.push(text.into_bytes());
                }
            }
        }
    }
    requests.push(vec![b'G'; 20_000]);
    requests.push([b"GET / HTTP/1.1\r\nA: ".to_vec(), vec![b'a'; 20_000]].concat());
    requests.push(b"\x16\x03\x01\x02\x00".to_vec());
    requests
}

/// Allocations, and how many connections got an answer.
fn count(log: bool, pieces_bytes: usize, quota_bytes: usize, quota_ranges: usize) -> (u64, usize) {
    let (mut server, mut records) = server(log);
    let addresses = Addresses { local: "192.0.2.1:80".parse().unwrap(), peer: "192.0.2.2:1".parse().unwrap() };
    let (mut allocated, mut answered) = (0, 0);
    let mut engine = Engine::new(8 << 20);
    let requests = requests();
    // what is used for the first time is made then
    let first = requests.len();
    for (n, request) in requests.iter().chain(&requests).enumerate() {
        let now = Instant::from_nanos(n as u64 * 400_000_000);
        let before = allocations::of_thread();
        // the room of what it keeps stays
        let mut out = std::mem::take(&mut engine.out);
        out.clear();
        engine = Engine::new(0);
        engine.out = out;
        (engine.quota_bytes, engine.quota_ranges) = (quota_bytes, quota_ranges);
        server.cycle(now);
        server.knock(now, &mut engine, Listener(0), CONNECTION, addresses);
        let cookie = engine.cookie.expect("accepted");
        for piece in request.chunks(pieces_bytes) {
            if engine.closed || engine.aborted {
                break;
            }
            engine.delivered += piece.len();
            server.recv(now, &mut engine, CONNECTION, cookie, piece);
        }
        while engine.unsent > 0 && !engine.aborted {
            let bytes = engine.drain();
            server.sent(now, &mut engine, CONNECTION, cookie, bytes, quota_bytes);
        }
        if !engine.closed && !engine.aborted {
            server.timer(now + std::time::Duration::from_secs(100), &mut engine, CONNECTION, cookie);
        }
        server.dead(now, CONNECTION, cookie, DeadReason::Closed);
        while records.as_mut().and_then(ring::Consumer::pop).is_some() {}
        if n < first {
            continue;
        }
        allocated += allocations::of_thread() - before;
        answered += usize::from(engine.out.starts_with(b"HTTP/1.1 "));
    }
    assert_eq!(requests.len(), answered, "every one is answered");
    (allocated, answered)
}

#[test]
fn nothing_is_allocated_for_a_request_in_one_piece() {
    assert_eq!(count(false, usize::MAX, usize::MAX, usize::MAX).0, 0);
}

#[test]
fn nor_for_one_in_pieces_with_a_log() {
    assert_eq!(count(true, 11, usize::MAX, usize::MAX).0, 0);
}

#[test]
fn nor_for_answers_that_the_engine_takes_in_pieces() {
    assert_eq!(count(true, 500, 300, 2).0, 0);
}

/// A file of which every octet is the same.
struct Even;

impl web::chunks::Source for Even {
    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), web::chunks::Unreadable> {
        into.fill(b'e');
        Ok(())
    }
}

#[test]
fn nor_for_files_that_are_sent_in_chunks() {
    const BYTES: u64 = 1_500_000;
    let mut builder = SiteBuilder::new(Config::default(), 5, 1_700_000_000, None).unwrap();
    for path in ["/first", "/long"] {
        let identity = Identity { bytes: BYTES, ..Identity::default() };
        let (path, encoding) = (path.as_bytes(), web::Encoding::Identity);
        builder.add_source(0, &File { path, modified_unix_s: 7, identity, encoding }, Box::new(Even)).unwrap();
    }
    let cache = web::chunks::Cache::new(8 << 20, 16);
    let options = Options { connections: app::Bound::new(16), cache: Some(cache.clone()), ..Options::default() };
    let site = Arc::new(builder.finish().unwrap());
    let mut server = Server::new(Publisher::new(site).reader(), options, None);
    let addresses = Addresses { local: "192.0.2.1:80".parse().unwrap(), peer: "192.0.2.2:1".parse().unwrap() };
    // what is used for the first time is made then; the first round of each finds nothing there, and the others what it left
    for (path, round) in [("/first", 0), ("/long", 0), ("/long", 1), ("/long", 2)] {
        for field in ["", "Range: bytes=100000-1400000\r\n", "Range: bytes=0-70000,1400000-\r\n"] {
            let mut engine = Engine::new(4 << 20);
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{field}\r\n");
            let (now, mut allocated) = (Instant::ZERO, 0);
            let mut counted = |work: &mut dyn FnMut()| {
                let before = allocations::of_thread();
                work();
                allocated += allocations::of_thread() - before;
            };
            counted(&mut || server.knock(now, &mut engine, Listener(0), CONNECTION, addresses));
            let cookie = engine.cookie.expect("accepted");
            engine.delivered += request.len();
            counted(&mut || server.recv(now, &mut engine, CONNECTION, cookie, request.as_bytes()));
            while !engine.closed && !engine.aborted {
                // reading is other threads' business, and they allocate
                while cache.turn() {}
                counted(&mut || server.woken(now, &mut engine));
                let bytes = engine.drain();
                counted(&mut || server.sent(now, &mut engine, CONNECTION, cookie, bytes, usize::MAX));
            }
            assert!(engine.closed && engine.out.len() > 100_000);
            server.dead(now, CONNECTION, cookie, DeadReason::Closed);
            assert!(allocated == 0 || path == "/first", "{path}, round {round} {field}: {allocated}");
        }
    }
}
