mod times;

use super::*;
use crate::testing::{self, CONNECTION, Engine, Talk, options};
use app::{Addresses, Bound};
use base::publish::Publisher;
use base::ring;
use proptest::prelude::*;

const GET: &str = "GET /a.txt HTTP/1.1\r\nHost: h\r\n\r\n";
const BIG: &str = "GET /big.bin HTTP/1.1\r\nHost: h\r\n\r\n";

fn count(text: &str, what: &str) -> usize {
    text.matches(what).count()
}

#[test]
fn requests_in_one_piece_in_many_and_pipelined() {
    let mut talk = Talk::new(options());
    talk.receive(GET.as_bytes());
    assert_eq!(count(&talk.text(), "200 OK"), 1);
    for byte in GET.bytes() {
        talk.receive(&[byte]);
    }
    assert_eq!(count(&talk.text(), "200 OK"), 2);
    talk.receive(GET.repeat(5).as_bytes());
    talk.drain();
    assert_eq!(count(&talk.text(), "200 OK"), 7);
    assert_eq!((talk.engine.delivered, talk.engine.closed), (0, false));
    assert_eq!(talk.server.stats().requests(crate::Method::Get), 7);
}

#[test]
fn a_server_made_anew_goes_on_counting() {
    let mut talk = Talk::new(options());
    talk.receive(GET.as_bytes());
    let stats = talk.server.stats();
    let site = Publisher::new(Arc::new(testing::site()));
    // made before the old one is dropped, as engines do after a panic; its connection goes without a word
    talk.server = Server::with_stats(site.reader(), options(), None, stats.clone());
    assert_eq!((stats.requests(crate::Method::Get), stats.connections.get(), stats.open.get()), (1, 1, 0));
}

#[test]
fn answers_in_flight_hold_the_next_requests_back() {
    let mut talk = Talk::new(options());
    talk.receive(BIG.repeat(4).as_bytes());
    // a hundred thousand octets are over the bound, so the second waits, and the window does not open
    assert_eq!(count(&talk.text(), "200 OK"), 1);
    assert_eq!(talk.engine.delivered, 3 * BIG.len());
    let cookie = talk.engine.cookie.unwrap();
    let bytes = talk.engine.drain();
    talk.server.sent(talk.now, &mut talk.engine, CONNECTION, cookie, bytes - 1000, usize::MAX);
    assert_eq!(count(&talk.text(), "200 OK"), 2);
    talk.engine.unsent += 1000;
    talk.drain();
    assert_eq!((count(&talk.text(), "200 OK"), talk.engine.delivered), (4, 0));
}

#[test]
fn small_answers_in_flight_stay_within_the_ranges_of_an_engine() {
    let mut talk = Talk::new(Options { pendings: Bound::new(0), ..options() });
    talk.engine.quota_ranges = 128;
    let several = "GET /a.txt HTTP/1.1\r\nHost: h\r\nRange: bytes=0-0,2-2,4-4,6-6,8-8\r\n\r\n";
    talk.receive(GET.repeat(400).as_bytes());
    assert!(count(&talk.text(), "200 OK") < 64);
    talk.drain();
    assert_eq!((count(&talk.text(), "200 OK"), talk.engine.aborted), (400, false));
    talk.receive(several.repeat(200).as_bytes());
    talk.drain();
    assert_eq!((count(&talk.text(), "HTTP/1.1 20"), talk.engine.aborted, talk.engine.delivered), (600, false, 0));
}

#[test]
fn a_client_that_sends_on_without_reading_is_bounded() {
    let mut talk = Talk::new(options());
    talk.receive(BIG.as_bytes());
    // what an engine with the right window would still deliver
    talk.receive(&vec![b'G'; WINDOW_BYTES]);
    assert!(!talk.engine.aborted);
    assert_eq!(talk.engine.delivered, WINDOW_BYTES);
    talk.receive(b"x");
    assert!(talk.engine.aborted);
    assert_eq!(talk.server.stats().drops(DropReason::Overflow), 1);
}

#[test]
fn an_engine_that_takes_little_gets_all_of_it_in_order() {
    let request = "GET /big.bin HTTP/1.1\r\nHost: h\r\nRange: bytes=0-9,20-29,40-49,60-69,80-89,100-109,120-129,140-149,160-169\r\n\r\n";
    let text = format!("{request}{GET}{request}");
    let mut free = Talk::new(options());
    free.receive(text.as_bytes());
    free.drain();
    for (quota_bytes, quota_ranges) in [(1, usize::MAX), (100, 3), (usize::MAX, 1), (700, 2)] {
        let mut talk = Talk::new(options());
        (talk.engine.quota_bytes, talk.engine.quota_ranges) = (quota_bytes, quota_ranges);
        talk.receive(text.as_bytes());
        talk.drain();
        assert_eq!(talk.text(), free.text(), "{quota_bytes} {quota_ranges}");
        assert_eq!((talk.engine.delivered, talk.engine.aborted), (0, false));
    }
}

#[test]
fn close_comes_after_the_last_octet_is_queued() {
    let mut talk = Talk::new(options());
    talk.engine.quota_ranges = 1;
    talk.receive(b"GET /big.bin HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\n\r\n");
    assert!(!talk.engine.closed);
    talk.drain();
    assert!(talk.engine.closed);
    assert_eq!(count(&talk.text(), "HTTP/1.1 "), 1);
    assert_eq!(talk.engine.out.len() - talk.text().find("\r\n\r\n").unwrap() - 4, testing::BIG_BYTES);
}

#[test]
fn a_long_answer_is_not_cut_by_the_end_of_its_connection() {
    let mut talk = Talk::new(options());
    talk.receive(b"GET /big.bin HTTP/1.0\r\n\r\n");
    // nothing is written behind it, and an engine bounds how long a closed connection lingers
    assert_eq!((talk.engine.shut, talk.engine.closed), (true, false));
    let cookie = talk.engine.cookie.unwrap();
    for second in 1..9 {
        talk.pass(50 * second);
        talk.server.sent(talk.now, &mut talk.engine, CONNECTION, cookie, 10_000, 0);
        assert_eq!((talk.engine.closed, talk.engine.aborted), (false, false));
    }
    talk.engine.unsent -= 80_000;
    talk.drain();
    assert!(talk.engine.closed);
}

#[test]
fn nothing_goes_out_in_the_middle_of_an_answer() {
    let mut talk = Talk::new(Options { buffers: Bound::new(0), ..options() });
    talk.engine.quota_ranges = 1;
    talk.receive(GET.repeat(2).as_bytes());
    assert!(talk.engine.aborted);
    assert_eq!((count(&talk.text(), "HTTP/1.1"), talk.server.stats().refusals(Refusal::NoBuffer)), (1, 0));
}

#[test]
fn a_peer_that_finished_gets_its_answers() {
    let mut talk = Talk::new(options());
    talk.receive(BIG.repeat(2).as_bytes());
    talk.eof();
    assert!(!talk.engine.closed);
    talk.drain();
    assert_eq!((count(&talk.text(), "200 OK"), talk.engine.closed), (2, true));
    let mut talk = Talk::new(options());
    talk.receive(b"GET /a.txt HT");
    talk.eof();
    assert_eq!((talk.text().len(), talk.engine.closed), (0, true));
}

#[test]
fn content_of_requests_is_thrown_away() {
    let content = "x".repeat(5000);
    let text = format!("GET /a.txt HTTP/1.1\r\nHost: h\r\nContent-Length: 5000\r\n\r\n{content}{GET}");
    let mut talk = Talk::new(options());
    for piece in text.as_bytes().chunks(700) {
        talk.receive(piece);
    }
    assert_eq!((count(&talk.text(), "200 OK"), talk.engine.delivered), (2, 0));
    // nothing of it is kept
    assert!(!talk.server.clients[0].kept.has_buffer());
}

#[test]
fn garbled_content_ends_the_connection_behind_its_answer() {
    let mut talk = Talk::new(options());
    talk.engine.quota_ranges = 1;
    talk.receive(b"GET /big.bin HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n");
    talk.receive(GET.as_bytes());
    talk.drain();
    assert_eq!((count(&talk.text(), "200 OK"), talk.engine.closed, talk.engine.aborted), (1, true, false));
    assert_eq!(talk.engine.out.len() - talk.text().find("\r\n\r\n").unwrap() - 4, testing::BIG_BYTES);
    assert_eq!(talk.server.stats().drops(DropReason::Content), 1);
}

#[test]
fn limits_on_connections_buffers_and_requests() {
    let mut server = testing::server(options());
    let addresses = Addresses { local: "192.0.2.1:80".parse().unwrap(), peer: "192.0.2.7:1".parse().unwrap() };
    let mut engines: Vec<Engine> = (0..5).map(|_| Engine::new(1 << 16)).collect();
    for engine in &mut engines {
        server.knock(Instant::ZERO, engine, Listener(0), CONNECTION, addresses);
    }
    assert_eq!((engines[3].rejected, engines[4].rejected), (false, true));
    // two buffers: the third request in pieces is refused (503)
    for engine in &mut engines[..3] {
        engine.delivered += 5;
        let cookie = engine.cookie.unwrap();
        server.recv(Instant::ZERO, engine, CONNECTION, cookie, b"GET /");
    }
    assert!(engines[0].out.is_empty() && engines[1].out.is_empty());
    assert!(engines[2].out.starts_with(b"HTTP/1.1 503 ") && engines[2].shut);
    assert_eq!(server.stats().drops(DropReason::Full), 1);
    assert_eq!(server.stats().refusals(Refusal::NoBuffer), 1);
    // what has gone leaves its place and its buffer
    server.dead(Instant::ZERO, CONNECTION, engines[0].cookie.unwrap(), DeadReason::Reset);
    let mut engine = Engine::new(1 << 16);
    server.knock(Instant::ZERO, &mut engine, Listener(0), CONNECTION, addresses);
    engine.delivered = 5;
    let cookie = engine.cookie.unwrap();
    server.recv(Instant::ZERO, &mut engine, CONNECTION, cookie, b"GET /");
    assert!(engine.cookie.is_some() && engine.out.is_empty() && !engine.closed);

    let mut talk = Talk::new(Options { requests: 2, ..options() });
    talk.receive(GET.repeat(3).as_bytes());
    assert_eq!((count(&talk.text(), "200 OK"), count(&talk.text(), "Connection: close")), (2, 1));
    assert!(talk.engine.shut);
}

#[test]
fn an_answer_taken_in_part_without_a_place_for_the_rest_ends_its_connection() {
    let mut talk = Talk::new(Options { pendings: Bound::new(0), ..options() });
    talk.engine.quota_ranges = 1;
    talk.receive(GET.as_bytes());
    assert!(talk.engine.aborted);
    assert_eq!(talk.server.stats().drops(DropReason::NoPending), 1);
    // a multipart answer, which is more than an engine may take at once, is not begun then
    let mut talk = Talk::new(Options { pendings: Bound::new(0), ..options() });
    talk.receive(b"GET /a.txt HTTP/1.1\r\nHost: h\r\nRange: bytes=0-0,-1\r\n\r\n");
    assert!(talk.text().starts_with("HTTP/1.1 200 OK\r\n") && talk.text().ends_with("0123456789"));
}

#[test]
fn who_asks_for_a_head_gets_no_content_though_the_request_is_refused() {
    for (fields, status) in [
        ("", "400"),
        ("Host: h\r\nExpect: x\r\n", "417"),
        ("Host: h\r\nContent-Length: 99999999\r\n", "413"),
        ("Host: h\r\nTransfer-Encoding: none\r\n", "501"),
    ] {
        for method in ["HEAD", "GET"] {
            let mut talk = Talk::new(options());
            talk.receive(format!("\r\n{method} / HTTP/1.1\r\n{fields}\r\n").as_bytes());
            talk.drain();
            let text = talk.text();
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")) && talk.engine.shut, "{text}");
            assert_eq!(text.ends_with("\r\n\r\n"), method == "HEAD", "{text}");
        }
    }
}

#[test]
fn the_date_is_the_cycles() {
    let mut talk = Talk::new(options());
    talk.pass(23);
    talk.receive(GET.as_bytes());
    assert!(talk.text().contains("\r\nDate: Mon, 07 Nov 1994 08:50:00 GMT\r\n"), "{}", talk.text());
}

#[test]
fn a_new_site_is_taken_between_cycles_and_an_answer_keeps_its_own() {
    let old = Arc::new(testing::site());
    let publisher = Publisher::new(old.clone());
    let mut talk = Talk::over(Server::new(publisher.reader(), options(), None), "192.0.2.7:1");
    talk.engine.quota_ranges = 1;
    talk.receive(BIG.as_bytes());
    let mut builder = testing::builder(testing::config(), Some(old.clone()));
    builder.add(0, &testing::file("/a.txt", 999), b"new").unwrap();
    publisher.publish(Arc::new(builder.finish().unwrap()));
    talk.server.cycle(talk.now);
    talk.engine.quota_ranges = usize::MAX;
    talk.drain();
    let body = talk.engine.out.len() - talk.text().find("\r\n\r\n").unwrap() - 4;
    assert_eq!(body, testing::BIG_BYTES);
    assert!(talk.engine.out.ends_with(&testing::big()[testing::BIG_BYTES - 100..]));
    talk.receive(GET.as_bytes());
    assert!(talk.text().ends_with("\r\n\r\nnew"));
    drop(talk);
    assert_eq!(Arc::strong_count(old.content()), 1);
}

#[test]
fn the_log_has_a_record_a_request_and_never_waits() {
    let (producer, mut consumer) = ring::ring(2);
    let site = Publisher::new(Arc::new(testing::site())).reader();
    let forwarded = vec![Prefix { address: "192.0.2.0".parse().unwrap(), bits: 24 }];
    let server = Server::new(site, Options { forwarded, ..options() }, Some(producer));
    let mut talk = Talk::over(server, "192.0.2.7:1");
    talk.receive(b"GET /a.txt HTTP/1.1\r\nHost: h\r\nUser-Agent: t\r\nX-Forwarded-For: 203.0.113.5\r\n\r\n");
    talk.receive(b"HEAD /nope HTTP/1.1\r\nHost: other.example\r\nReferer: r\r\n\r\n");
    talk.receive(GET.as_bytes());
    let lines: Vec<String> = std::iter::from_fn(|| consumer.pop()).map(|record| format!("{record:?}")).collect();
    assert_eq!(
        lines,
        [
            "203.0.113.5 - - [07/Nov/1994:08:49:37 +0000] \"GET /a.txt HTTP/1.1\" 200 10 \"-\" \"t\"",
            "192.0.2.7 - - [07/Nov/1994:08:49:37 +0000] \"HEAD /nope HTTP/1.1\" 404 0 \"r\" \"-\"",
        ]
    );
    assert_eq!(talk.server.stats().log_drops(), 1);
    talk.receive(b"\x16\x03\x01\n");
    let record = consumer.pop().expect("a record of what is no request");
    assert_eq!((record.status, record.target.kept()), (400, &b"\x16\x03\x01"[..]));
}

#[test]
fn proxies_name_the_client_and_only_they() {
    let header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x05\xc0\0\x02\x01\x10\0\0\x50";
    let proxies = vec![Prefix { address: "192.0.2.7".parse().unwrap(), bits: 32 }];
    let over = |peer: &str, bytes: &[u8]| {
        let (producer, mut consumer) = ring::ring(2);
        let site = Publisher::new(Arc::new(testing::site())).reader();
        let mut talk =
            Talk::over(Server::new(site, Options { proxies: proxies.clone(), ..options() }, Some(producer)), peer);
        for byte in bytes {
            if !talk.engine.aborted && !talk.engine.closed {
                talk.receive(&[*byte]);
            }
        }
        let client = consumer.pop().map(|record: Record| record.client.to_string());
        (client, talk.engine.aborted, talk.server.stats().drops(DropReason::ProxyHeader))
    };
    let both = [header, GET.as_bytes()].concat();
    assert_eq!(over("192.0.2.7:1", &both), (Some("203.0.113.5:4096".to_owned()), false, 0));
    assert_eq!(over("192.0.2.7:1", GET.as_bytes()), (None, true, 1));
    let (client, aborted, _) = over("192.0.2.8:1", &both);
    assert_eq!((client.as_deref(), aborted), (Some("192.0.2.8:1"), false), "what is no request, not a header");
}

impl Server {
    fn buffers_used(&self) -> usize {
        self.buffers.used()
    }
}

proptest! {
    /// However a stream is cut, however little the engine takes at a time, the same octets go out.
    #[test]
    fn answers_do_not_depend_on_pieces_or_room(
        parts in prop::collection::vec(prop::sample::select(vec![
            "GET /a.txt HTTP/1.1\r\nHost: h\r\n\r\n", "HEAD /big.bin HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET /big.bin HTTP/1.1\r\nHost: h\r\nRange: bytes=0-9,-9\r\n\r\n", "GET /sub HTTP/1.1\r\nHost: h\r\n\r\n",
            "POST /a.txt HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nabcd", "GET /big.bin HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET /nope HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "\r\n",
            "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "G", "GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n",
        ]), 1..8),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        quota_bytes in prop::sample::select(vec![1usize, 40, 600, 100_000]), quota_ranges in 1usize..6, eager in any::<bool>(),
    ) {
        let text = parts.concat();
        let bytes = text.as_bytes();
        let mut whole = Talk::new(options());
        whole.receive(bytes);
        whole.drain();
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        at.extend([0, bytes.len()]);
        at.sort_unstable();
        let mut talk = Talk::new(options());
        (talk.engine.quota_bytes, talk.engine.quota_ranges) = (quota_bytes, quota_ranges);
        for pair in at.windows(2) {
            talk.receive(&bytes[pair[0]..pair[1]]);
            if eager {
                talk.drain();
            }
        }
        talk.drain();
        prop_assert!(talk.engine.out == whole.engine.out, "{}\nagainst\n{}", talk.text(), whole.text());
        prop_assert_eq!(talk.engine.closed, whole.engine.closed);
    }
}

mod chunked {
    //! Files that are read while they are sent.

    use super::*;
    use crate::chunks::{CACHE_LEAST_BYTES, CHUNK_BYTES, Cache, Desk, Origin, Source, Unreadable};
    use crate::testing::{builder, config, file};
    use crate::{Identity, Site};
    use app::Content;
    use std::sync::atomic::{AtomicBool, Ordering};

    const BYTES: usize = 3_000_001;

    fn contents() -> Vec<u8> {
        (0..BYTES).map(|n| (b'!' + (n / 3 % 90) as u8) ^ (n / 70_000) as u8).collect()
    }

    struct File(Arc<AtomicBool>);

    impl Source for File {
        fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Unreadable> {
            if self.0.load(Ordering::Relaxed) {
                return Err(Unreadable);
            }
            into.copy_from_slice(&contents()[at as usize..at as usize + into.len()]);
            Ok(())
        }
    }

    /// `/long.txt` is not held, `/a.txt` is.
    fn site(inode: u64, broken: &Arc<AtomicBool>, before: Option<Arc<Site>>) -> Site {
        let mut builder = builder(config(), before);
        builder.add(0, &file("/a.txt", 1), b"0123456789").unwrap();
        let identity = Identity { inode, bytes: BYTES as u64, ..Identity::default() };
        let long = crate::File { identity, ..file("/long.txt", 0) };
        builder.add_source(0, &long, Box::new(File(broken.clone()))).unwrap();
        builder.finish().unwrap()
    }

    struct World {
        talk: Talk,
        cache: Cache,
        site: Publisher<Site>,
        broken: Arc<AtomicBool>,
    }

    impl World {
        fn new(more: Options) -> World {
            let (cache, broken) = (Cache::new(CACHE_LEAST_BYTES, 8), Arc::default());
            let site = Publisher::new(Arc::new(site(77, &broken, None)));
            let server = Server::new(site.reader(), Options { cache: Some(cache.clone()), ..more }, None);
            World { talk: Talk::over(server, "192.0.2.7:4711"), cache, site, broken }
        }

        fn ask(&mut self, fields: &str) {
            let request = format!("GET /long.txt HTTP/1.1\r\nHost: h\r\n{}\r\n", fields.replace('|', "\r\n"));
            self.talk.receive(request.as_bytes());
        }

        /// Everything is read and taken, as far as it goes.
        fn run(&mut self) {
            for _ in 0..1000 {
                self.talk.read_chunks(&self.cache);
                self.talk.drain();
            }
        }

        fn answer(&self) -> (String, Vec<u8>) {
            let out = &self.talk.engine.out;
            let end = 4 + out.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
            (String::from_utf8_lossy(&out[..end]).into_owned(), out[end..].to_vec())
        }

        fn places(&self) -> usize {
            self.talk.server.core.streams.free_count()
        }
    }

    fn field<'h>(head: &'h str, name: &str) -> &'h str {
        head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).unwrap_or_default()
    }

    #[test]
    fn it_comes_whole_and_the_next_request_behind_it() {
        let mut world = World::new(options());
        world.ask("");
        world.talk.receive(GET.as_bytes());
        assert_eq!(world.places(), 3);
        // nothing is queued between the head and the first chunk, and yet it is not idle
        world.talk.drain();
        assert!(world.talk.engine.unsent == 0 && world.talk.engine.delivered > 0);
        world.run();
        let (head, body) = world.answer();
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        assert_eq!(field(&head, "Content-Length"), BYTES.to_string());
        assert!(body[..BYTES] == contents());
        assert!(String::from_utf8_lossy(&body[BYTES..]).ends_with("0123456789"));
        assert_eq!((world.places(), world.talk.engine.delivered, world.talk.engine.aborted), (4, 0, false));
        let stats = world.talk.server.stats();
        assert!(stats.cache_hits.get() + stats.cache_misses.get() >= 46);
        assert!(stats.cache_misses.get() >= 1);
    }

    #[test]
    fn a_request_alone_is_given_back_when_its_answer_is_queued() {
        let mut world = World::new(options());
        world.ask("");
        world.talk.drain();
        assert_eq!(world.talk.engine.delivered, 1);
        world.run();
        assert_eq!((world.talk.engine.delivered, world.answer().1.len()), (0, BYTES));
    }

    #[test]
    fn parts_of_it_and_what_needs_no_byte_of_it() {
        let mut world = World::new(options());
        world.ask("Range: bytes=65530-65545|");
        world.run();
        let (head, body) = world.answer();
        assert!(head.starts_with("HTTP/1.1 206") && body == contents()[65_530..=65_545], "{head}");
        let tag = field(&head, "ETag").to_owned();
        assert!(tag.starts_with('"') && tag.len() == 18, "{tag}");
        let reads = world.talk.server.stats().cache_misses.get();
        for (method, fields, status) in [
            ("HEAD", String::new(), "200 OK"),
            ("GET", format!("If-None-Match: {tag}\r\n"), "304"),
            ("GET", "If-Match: \"other\"\r\n".to_owned(), "412"),
            ("GET", format!("Range: bytes={BYTES}-\r\n"), "416"),
        ] {
            world.talk.engine.out.clear();
            world.talk.receive(format!("{method} /long.txt HTTP/1.1\r\nHost: h\r\n{fields}\r\n").as_bytes());
            let text = world.talk.text();
            assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{method} {fields}: {text}");
            world.talk.drain();
        }
        assert_eq!((world.talk.server.stats().cache_misses.get(), world.places()), (reads, 4));
    }

    #[test]
    fn several_parts_in_their_order_whatever_the_engine_takes() {
        for (quota_bytes, quota_ranges) in [(usize::MAX, usize::MAX), (100, usize::MAX), (usize::MAX, 1), (70, 2)] {
            let mut world = World::new(options());
            (world.talk.engine.quota_bytes, world.talk.engine.quota_ranges) = (quota_bytes, quota_ranges);
            world.ask("Range: bytes=2999990-,0-9,65000-200000|");
            world.run();
            let (head, body) = world.answer();
            assert!(
                head.starts_with("HTTP/1.1 206") && field(&head, "Content-Type").starts_with("multipart/byteranges")
            );
            assert_eq!(field(&head, "Content-Length"), body.len().to_string());
            let all = contents();
            let mut rest = &body[..];
            for part in [&all[2_999_990..], &all[..10], &all[65_000..=200_000]] {
                let at = rest.windows(4).position(|four| four == b"\r\n\r\n").expect("a part's head");
                rest = &rest[at + 4..];
                assert!(rest.starts_with(part), "quotas {quota_bytes} {quota_ranges}");
                rest = &rest[part.len()..];
            }
            assert_eq!((world.places(), world.talk.engine.aborted), (4, false));
        }
    }

    #[test]
    fn a_client_that_takes_nothing_holds_its_share_and_is_ended_in_time() {
        let mut world = World::new(options());
        world.ask("");
        for _ in 0..100 {
            world.talk.read_chunks(&world.cache);
        }
        // one stream alone: half of the cache
        assert!((1..=9 * CHUNK_BYTES as usize).contains(&world.talk.engine.unsent), "{}", world.talk.engine.unsent);
        world.talk.pass(61);
        assert!(world.talk.engine.aborted);
        assert_eq!(world.talk.server.stats().drops(DropReason::SlowReader), 1);
        world.talk.dead();
        assert_eq!(world.places(), 4);
    }

    /// A world whose client has its share of the cache on its way, and all the rest of the cache, which somebody else holds.
    fn crowded() -> (World, Vec<Arc<Content>>) {
        let mut world = World::new(options());
        world.ask("");
        for _ in 0..100 {
            world.talk.read_chunks(&world.cache);
        }
        let mut desk = Desk::new(world.cache.clone(), 1);
        let other = Arc::new(Origin::new(BYTES as u64, Box::new(File(Arc::default()))));
        let mut rest = Vec::new();
        for index in 0.. {
            desk.ask(&other, index, 0);
            while world.cache.turn() {}
            match desk.told() {
                Some((_, chunk)) => rest.push(chunk.unwrap()),
                None => break,
            }
        }
        assert!(rest.len() >= 5 && desk.is_short(), "{}", rest.len());
        (world, rest)
    }

    #[test]
    fn a_client_that_drips_while_others_wait_for_its_memory_is_ended_before_them() {
        let (mut world, rest) = crowded();
        for second in 1..=29 {
            world.talk.pass(second);
            world.talk.take(1000);
        }
        assert!(!world.talk.engine.aborted);
        world.talk.pass(31);
        assert!(world.talk.engine.aborted);
        assert_eq!(world.talk.server.stats().drops(DropReason::SlowReader), 1);
        world.talk.dead();
        // it waited for a chunk itself
        drop(rest);
        world.talk.read_chunks(&world.cache);
        assert_eq!(world.places(), 4);
    }

    #[test]
    fn it_goes_on_while_nobody_waits_and_is_ended_soon_when_somebody_does() {
        let (mut world, mut rest) = crowded();
        // who waited has it now
        rest.clear();
        while world.cache.turn() {}
        for second in 1..=300 {
            world.talk.pass(second);
            world.talk.take(100);
        }
        assert!(!world.talk.engine.aborted);
        let desk = Desk::new(world.cache.clone(), 64);
        let other = Arc::new(Origin::new(BYTES as u64, Box::new(File(Arc::default()))));
        (0..40).for_each(|index| assert!(desk.ask(&other, index, index)));
        while world.cache.turn() {}
        // told and not taken from the desk, they are held
        assert!(desk.is_short());
        world.talk.pass(304);
        assert!(world.talk.engine.aborted);
        assert_eq!(world.talk.server.stats().drops(DropReason::SlowReader), 1);
    }

    #[test]
    fn a_client_that_takes_an_eighth_in_time_goes_on_whoever_waits() {
        let (mut world, _rest) = crowded();
        let enough = world.talk.engine.unsent / 8 / 29;
        assert!(enough > CHUNK_BYTES as usize / 30);
        for second in 1..=200 {
            world.talk.pass(second);
            world.talk.take(enough);
            world.talk.read_chunks(&world.cache);
        }
        assert!(!world.talk.engine.aborted);
    }

    #[test]
    fn a_file_that_changes_ends_the_connection() {
        let mut world = World::new(options());
        world.ask("");
        world.talk.read_chunks(&world.cache);
        world.broken.store(true, Ordering::Relaxed);
        world.run();
        assert!(world.talk.engine.aborted);
        let (_, body) = world.answer();
        assert!(!body.is_empty() && body.len() < BYTES && body == contents()[..body.len()]);
        assert_eq!(world.talk.server.stats().drops(DropReason::Changed), 1);
        world.talk.dead();
        assert_eq!(world.places(), 4);
    }

    #[test]
    fn a_connection_that_dies_while_it_waits_leaves_its_place_when_the_chunk_comes() {
        let mut world = World::new(options());
        world.ask("");
        world.talk.dead();
        assert_eq!(world.places(), 3);
        world.talk.read_chunks(&world.cache);
        assert_eq!((world.places(), world.talk.engine.unsent > 0), (4, true));
    }

    #[test]
    fn a_connection_that_its_peer_has_ended_is_no_drop_of_ours() {
        let mut world = World::new(options());
        world.ask("");
        // so for the engine, which tells it later than that the chunk is there
        world.talk.engine.aborted = true;
        world.talk.read_chunks(&world.cache);
        assert_eq!(world.talk.server.stats().drops(DropReason::Engine), 0);
        world.talk.dead();
        assert_eq!(world.places(), 4);
    }

    /// A world whose connection goes to a second server before every event.
    fn restless() -> World {
        let mut world = World::new(options());
        let more = Options { cache: Some(world.cache.clone()), ..options() };
        world.talk.spare = Some(Server::new(world.site.reader(), more, None));
        world
    }

    #[test]
    fn a_download_that_moves_between_threads_comes_whole() {
        for (quota_bytes, quota_ranges) in [(usize::MAX, usize::MAX), (100, usize::MAX), (usize::MAX, 1), (70, 2)] {
            for fields in ["", "Range: bytes=2999990-,0-9,65000-200000|"] {
                let (mut still, mut moving) = (World::new(options()), restless());
                for world in [&mut still, &mut moving] {
                    (world.talk.engine.quota_bytes, world.talk.engine.quota_ranges) = (quota_bytes, quota_ranges);
                    world.ask(fields);
                    world.talk.receive(GET.as_bytes());
                    world.run();
                    assert_eq!((world.talk.engine.delivered, world.talk.engine.aborted), (0, false));
                }
                assert!(still.talk.engine.out == moving.talk.engine.out, "{quota_bytes} {quota_ranges} {fields}");
                let spare = moving.talk.spare.as_ref().unwrap();
                assert_eq!((moving.places(), spare.core.streams.free_count()), (4, 4));
                assert!(spare.stats().cache_hits.get() > 0, "both have sent some");
                moving.talk.dead();
                // one stream fewer shares the cache
                assert_eq!(moving.cache.streams(), 0);
            }
        }
    }

    #[test]
    fn a_wait_for_a_chunk_is_dropped_here_and_begun_there() {
        let mut world = restless();
        world.ask("");
        let misses = |server: &Server| server.stats().cache_misses.get();
        assert_eq!(misses(&world.talk.server), 1);
        assert!(world.talk.go_over());
        assert_eq!((misses(&world.talk.server), world.places()), (1, 3));
        // the place there is free when the answer has come that nobody waits for
        assert_eq!(world.talk.spare.as_ref().unwrap().core.streams.free_count(), 3);
        world.talk.read_chunks(&world.cache);
        assert!(world.talk.engine.unsent > 0);
        world.talk.read_chunks(&world.cache);
        let spare = world.talk.spare.as_ref().unwrap();
        assert_eq!(world.places() + spare.core.streams.free_count(), 7);
        world.run();
        assert_eq!(world.answer().1.len(), BYTES);
    }

    #[test]
    fn a_server_that_has_no_cache_takes_no_download() {
        let mut world = World::new(options());
        world.ask("");
        world.talk.spare = Some(Server::new(world.site.reader(), options(), None));
        assert!(!world.talk.go_over());
        assert_eq!(world.talk.server.stats().drops(DropReason::NoPending), 1);
        assert_eq!((world.talk.server.stats().open.get(), world.cache.streams()), (0, 0));
    }

    #[test]
    fn a_reload_leaves_it_going_and_holds_nothing_of_the_old_version() {
        for fields in ["", "Range: bytes=0-9,100000-2500000|"] {
            let mut world = World::new(options());
            world.ask(fields);
            world.talk.read_chunks(&world.cache);
            let old = world.site.current();
            // the same file, so the same chunks
            world.site.publish(Arc::new(site(77, &world.broken, Some(old.clone()))));
            world.talk.server.cycle(world.talk.now);
            let next = world.site.current();
            assert_eq!(format!("{:?}", old.origin(0)), format!("{:?}", next.origin(0)));
            assert_eq!(Arc::strong_count(old.content()), 1, "{fields}");
            drop(old);
            world.run();
            let (head, body) = world.answer();
            assert_eq!(field(&head, "Content-Length"), body.len().to_string());
            assert!(!world.talk.engine.aborted);
        }
    }

    #[test]
    fn a_file_that_moved_is_read_where_it_is_now_and_keeps_its_chunks() {
        let mut world = World::new(options());
        world.ask("Range: bytes=0-99|");
        world.run();
        // where it was there is nothing any more
        world.broken.store(true, Ordering::Relaxed);
        let old = world.site.current();
        world.site.publish(Arc::new(site(77, &Arc::default(), Some(old))));
        world.talk.server.cycle(world.talk.now);
        let hits = |world: &World| world.talk.server.stats().cache_hits.get();
        assert_eq!(hits(&world), 0);
        world.ask("");
        assert_eq!(hits(&world), 1);
        world.run();
        assert!(world.talk.engine.out.ends_with(&contents()) && !world.talk.engine.aborted);
    }

    #[test]
    fn another_version_of_the_file_has_another_tag() {
        let broken = Arc::default();
        let tags: Vec<String> = [77, 78, 77]
            .iter()
            .map(|inode| {
                let server = Server::new(
                    Publisher::new(Arc::new(site(*inode, &broken, None))).reader(),
                    Options { cache: Some(Cache::new(CACHE_LEAST_BYTES, 1)), ..options() },
                    None,
                );
                let mut talk = Talk::over(server, "192.0.2.7:4711");
                talk.receive(b"HEAD /long.txt HTTP/1.1\r\nHost: h\r\n\r\n");
                field(&talk.text(), "ETag").to_owned()
            })
            .collect();
        assert!(tags[0] != tags[1] && tags[0] == tags[2], "{tags:?}");
    }
}
