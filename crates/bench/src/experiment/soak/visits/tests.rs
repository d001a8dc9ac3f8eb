use super::*;
use crate::pages::Page;
use std::net::TcpListener;

/// A server on this machine that answers every request with what `answer` makes of its text.
fn serve(answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    // it ends with the process
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                let request = String::from_utf8_lossy(&buffer[..count]).into_owned();
                if stream.write_all(&answer(&request)).is_err() || request.contains("Connection: close") {
                    break;
                }
            }
        }
    });
    at
}

fn page_of(request: &str) -> Page {
    Page::of_path(request.split(' ').nth(1).unwrap()).unwrap()
}

fn whole(body: &[u8], tag: u64) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\nETag: \"{tag}\"\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
}

/// What one visit of this kind, to a live page or a kept one, finds wrong with such a server; versions 4 and 5 may be served.
fn visit(kind: Kind, live: bool, answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> Result<Seen> {
    let site = Site::new(20);
    let versions = Versions::default();
    versions.done.store(4, Ordering::SeqCst);
    versions.begun.store(5, Ordering::SeqCst);
    let mut visitor = Visitor::new(serve(answer), &site, &versions, 1);
    let at = (0..site.entries.len()).find(|at| {
        let entry = &site.entries[*at];
        entry.page.is_live() == live && entry.bytes > 4000 && entry.bytes < 600_000
    });
    visitor.visit(kind, at.unwrap())?;
    Ok(visitor.seen)
}

fn text_of(request: &str, version: u64) -> Vec<u8> {
    page_of(request).text(Encoding::Identity, version).whole()
}

#[test]
fn bodies_must_be_one_of_the_versions_that_may_be() {
    for version in [4, 5] {
        let seen = visit(Kind::Whole, true, move |request| whole(&text_of(request, version), version)).unwrap();
        assert_eq!((seen.gets, seen.connections, seen.classes), (1, 1, [0, 1, 0, 0, 0]));
        assert!(seen.bytes > 4000);
    }
    assert!(visit(Kind::Whole, false, |request| whole(&text_of(request, 9), 9)).is_ok());
    for version in [3, 6] {
        assert!(visit(Kind::Whole, true, move |request| whole(&text_of(request, version), version)).is_err());
    }
    let mixed = |request: &str| whole(&[&text_of(request, 4)[..2000], &text_of(request, 5)[2000..]].concat(), 4);
    assert!(visit(Kind::Whole, true, mixed).is_err());
    assert!(visit(Kind::Slowly, false, |request| whole(&text_of(request, 0), 1)).is_ok());
}

#[test]
fn conditions_and_parts_that_do_not_hold_show() {
    let not_modified = |tag: u64| format!("HTTP/1.1 304 Not Modified\r\nETag: \"{tag}\"\r\n\r\n").into_bytes();
    let same = move |request: &str| match request.contains("If-None-Match: \"4\"") {
        true => not_modified(4),
        false => whole(&text_of(request, 4), 4),
    };
    let seen = visit(Kind::UnlessSame, true, same).unwrap();
    assert_eq!((seen.gets, seen.not_modified, seen.classes[2]), (2, 1, 1));
    // the same version again though it was not wanted
    assert!(visit(Kind::UnlessSame, true, |request| whole(&text_of(request, 4), 4)).is_err());
    // another version under the same ETag
    let worse = |request: &str| whole(&text_of(request, if request.contains("If-") { 5 } else { 4 }), 7);
    assert!(visit(Kind::UnlessSame, true, worse).is_err());
    let part = |version: u64, shown: u64| {
        move |request: &str| {
            let body = text_of(request, version);
            let wanted = request.split("Range: bytes=").nth(1).and_then(|text| text.split("\r\n").next()).unwrap();
            let (start, end) = wanted.split_once('-').unwrap();
            let (start, end): (usize, usize) = (start.parse().unwrap(), end.parse().unwrap());
            let head = format!("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{end}/");
            let rest = format!("{}\r\nContent-Length: {}\r\n\r\n", text_of(request, shown).len(), end - start + 1);
            [head.as_bytes(), rest.as_bytes(), &body[start..=end]].concat()
        }
    };
    assert_eq!(visit(Kind::Part, true, part(5, 5)).unwrap().partial, 1);
    assert!(visit(Kind::Part, true, part(4, 5)).is_err(), "octets of one version, the length of another");
    assert!(visit(Kind::Part, true, part(6, 6)).is_err());
    assert!(visit(Kind::Part, true, |request| whole(&text_of(request, 4), 4)).is_err(), "200");
}

#[test]
fn who_leaves_counts_what_was_to_come() {
    let seen = visit(Kind::Leave, false, |request| whole(&text_of(request, 0), 1)).unwrap();
    assert_eq!((seen.left, seen.gets, seen.faults), (1, 1, 0));
    let mut both = seen.clone();
    both.add(seen.clone());
    assert_eq!((both.left, both.bytes, both.classes[1]), (2, 2 * seen.bytes, 2));
}
