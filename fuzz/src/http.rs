//! Arbitrary bytes as what a web client sends.

#[path = "../../crates/web/tests/common/engine.rs"]
mod engine;

use std::sync::{Arc, OnceLock};

use app::{Addresses, Bound, Listener, Service};
use base::publish::Publisher;
use base::{Instant, ring};
use engine::{CONNECTION, Engine};
use web::log::Record;
use web::{Config, File, Host, Identity, Options, Redirect, Server, Site, SiteBuilder};

fn site() -> &'static Publisher<Site> {
    static SITE: OnceLock<Publisher<Site>> = OnceLock::new();
    SITE.get_or_init(|| {
        let host = Host {
            names: vec!["h".into(), "*.w".into()],
            listing: true,
            redirects: vec![Redirect { from: "/m/*".into(), to: "/d/*".into(), status: 301 }],
            ..Host::default()
        };
        let config = Config { hosts: vec![host, Host::default()], ..Config::default() };
        let mut builder = SiteBuilder::new(config, 1, 1 << 30, None).expect("a configuration");
        let files = [("/a", 10), ("/b", 70_000), ("/c.css", 300), ("/c.css.br", 30), ("/d/index.html", 5), ("/e", 0)];
        for (path, bytes) in files {
            let (identity, encoding) = (Identity::default(), web::Encoding::Identity);
            let file = File { path: path.as_bytes(), modified_unix_s: 784_111_777, identity, encoding };
            builder.add(0, &file, &vec![b'x'; bytes]).expect("a file");
        }
        Publisher::new(Arc::new(builder.finish().expect("a site")))
    })
}

/// What goes out for these bytes in pieces, what was logged, and whether the connection is closed or aborted.
fn run(data: &[u8], piece_bytes: usize, quota_bytes: usize, quota_ranges: usize) -> (Vec<u8>, Vec<Record>, bool, bool) {
    let (producer, mut consumer) = ring::ring(1 << 12);
    let [connections, buffers, pendings] = [1; 3].map(Bound::new);
    let options = Options { connections, buffers, pendings, ..Options::default() };
    let mut server = Server::new(site().reader(), options, Some(producer));
    let at = |text: &str| text.parse().expect("an address");
    let addresses = Addresses { local: at("198.18.0.1:80"), peer: at("198.18.0.2:5353") };
    let mut engine = Engine::new(0);
    (engine.quota_bytes, engine.quota_ranges) = (quota_bytes, quota_ranges);
    server.cycle(Instant::ZERO);
    server.knock(Instant::ZERO, &mut engine, Listener(0), CONNECTION, addresses);
    let cookie = engine.cookie.expect("accepted");
    for piece in data.chunks(piece_bytes) {
        if engine.closed || engine.shut || engine.aborted {
            break;
        }
        engine.delivered += piece.len();
        server.recv(Instant::ZERO, &mut engine, CONNECTION, cookie, piece);
        while engine.unsent > 0 && !engine.aborted {
            let bytes = engine.drain();
            server.sent(Instant::ZERO, &mut engine, CONNECTION, cookie, bytes, quota_bytes);
        }
    }
    let records = std::iter::from_fn(|| consumer.pop()).collect();
    (engine.out, records, engine.closed, engine.aborted)
}

/// The same bytes in any pieces and with any room have the same answers, and the answers are well-formed: as many as were
/// logged, each as long as it says.
pub fn http_request(data: &[u8]) {
    let data = &data[..data.len().min(web::WINDOW_BYTES)];
    let (out, records, closed, aborted) = run(data, data.len().max(1), usize::MAX, usize::MAX);
    for (piece_bytes, quota_bytes, quota_ranges) in
        [(1, usize::MAX, usize::MAX), (7, 1, usize::MAX), (data.len() % 61 + 1, 300, 1)]
    {
        let other = run(data, piece_bytes, quota_bytes, quota_ranges);
        assert!(out == other.0, "other answers in pieces of {piece_bytes}");
        assert_eq!((records.len(), closed, aborted), (other.1.len(), other.2, other.3));
    }
    let mut rest = &out[..];
    for record in &records {
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut answer = httparse::Response::new(&mut fields);
        let head = match answer.parse(rest) {
            Ok(httparse::Status::Complete(bytes)) => bytes,
            other => panic!("{other:?} for {record:?}"),
        };
        assert_eq!(answer.code, Some(record.status));
        let field = |name: &str| {
            answer.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
        };
        assert!(field("Date").is_some(), "{record:?}");
        let says: Option<u64> =
            field("Content-Length").map(|text| String::from_utf8_lossy(text).parse().expect("a number"));
        let without = matches!(record.status, 204 | 304);
        assert_eq!(says.is_none(), without, "{record:?}");
        let bytes = if record.method.kept() == b"HEAD" { 0 } else { says.unwrap_or(0) };
        assert_eq!(bytes, record.body_bytes, "{record:?}");
        rest = &rest[head + bytes as usize..];
    }
    assert!(rest.is_empty(), "{} octets behind the last answer", rest.len());
}
