//! Tables of requests and answers, with what nginx 1.22.1 answered on loopback beside them.

use super::*;
use crate::testing::{BIG_BYTES, CHANGED, NOW, ask, big, site};

const GET: &str = "GET {} HTTP/1.1|Host: h|";

fn get(path: &str, fields: &str) -> crate::testing::Answer {
    ask(&format!("{}{fields}|", GET.replace("{}", path)))
}

fn etag(path: &str) -> String {
    get(path, "").field("ETag").expect("a tag").to_owned()
}

/// Status and named fields.
fn check(request: &str, status: u16, fields: &[(&str, Option<&str>)]) {
    let answer = ask(request);
    assert_eq!(answer.status, status, "{request}");
    for (name, value) in fields {
        assert_eq!(answer.field(name), *value, "{name} of {request}");
    }
    // RFC 9110 section 6.6.1
    assert_eq!(answer.field("Date"), Some(NOW), "{request}");
}

#[test]
fn a_whole_representation_with_all_its_fields() {
    let (text, closes) = crate::testing::reply("GET /a.txt HTTP/1.1|Host: h||");
    let tag = etag("/a.txt");
    assert_eq!(
        text,
        format!(
            "HTTP/1.1 200 OK\r\nDate: {NOW}\r\nContent-Length: 10\r\nContent-Type: text/plain; charset=utf-8\r\n\
             Last-Modified: {CHANGED}\r\nETag: {tag}\r\nAccept-Ranges: bytes\r\nServer: simoom\r\n\r\n0123456789"
        )
    );
    assert!(!closes && tag.len() == 18 && tag.starts_with('"'));
}

#[test]
fn head_is_get_without_content() {
    for path in ["/a.txt", "/big.bin", "/style.css", "/", "/sub", "/nope", "/bare/", "/empty.txt", "/moved/x"] {
        let get = ask(&format!("GET {path} HTTP/1.1|Host: h||"));
        let head = ask(&format!("HEAD {path} HTTP/1.1|Host: h||"));
        assert_eq!((get.status, &get.fields), (head.status, &head.fields), "{path}");
        assert_eq!(head.body, "", "{path}");
        // RFC 9110 section 8.6
        let bytes = get.field("Content-Length").and_then(|bytes| bytes.parse().ok());
        if path != "/big.bin" {
            assert_eq!(bytes, Some(get.body.len()), "{path}");
        }
    }
}

#[test]
fn methods_and_targets() {
    let allow = ("Allow", Some("GET, HEAD, OPTIONS"));
    for method in ["POST", "PUT", "DELETE", "PATCH", "CONNECT", "TRACE"] {
        check(&format!("{method} /a.txt HTTP/1.1|Host: h||"), 405, &[allow]);
    }
    check("CONNECT h:443 HTTP/1.1|Host: h:443||", 405, &[allow]);
    check("BREW /a.txt HTTP/1.1|Host: h||", 501, &[("Allow", None)]);
    // RFC 9110 section 9.3.7; 204 has no Content-Length (section 8.6)
    check("OPTIONS * HTTP/1.1|Host: h||", 204, &[allow, ("Content-Length", None)]);
    check("OPTIONS /a.txt HTTP/1.1|Host: h||", 204, &[allow]);
    check("OPTIONS /nope HTTP/1.1|Host: h||", 404, &[]);
    check("GET * HTTP/1.1|Host: h||", 400, &[]);
    check("GET a.txt HTTP/1.1|Host: h||", 400, &[]);
    check("GET http://h/a.txt HTTP/1.1|Host: other||", 200, &[("Content-Length", Some("10"))]);
    // RFC 9110 section 4.2.1: an http URI names a host
    for nobody in ["http://", "http://:80", "http://.", "https://.:443"] {
        check(&format!("GET {nobody}/a.txt HTTP/1.1|Host: h||"), 400, &[]);
    }
    check("GET /a.txt?query=1 HTTP/1.1|Host: h||", 200, &[]);
    check("GET /%61.txt HTTP/1.1|Host: h||", 200, &[]);
    check("GET /sub/../a.txt HTTP/1.1|Host: h||", 200, &[]);
    check("GET //a.txt HTTP/1.1|Host: h||", 200, &[]);
    check(
        "GET /name%20with%20space%20&%20more/caf%C3%A9.txt HTTP/1.1|Host: h||",
        200,
        &[("Content-Length", Some("6"))],
    );
    for path in ["/..", "/../a.txt", "/%2e%2e/a.txt", "/a.txt%00", "/%", "/a%2", "/a.txt#x"] {
        check(&format!("GET {path} HTTP/1.1|Host: h||"), 400, &[]);
    }
    for path in
        ["/nope", "/a.txt/", "/sub%2Findex.html", "/sub\\index.html", "/sub%5Cindex.html", "/.git/config", "/A.TXT"]
    {
        check(&format!("GET {path} HTTP/1.1|Host: h||"), 404, &[]);
    }
    for host in ["a b", "a/b", "a@b", "[::1", "a:b"] {
        check(&format!("GET / HTTP/1.1|Host: {host}||"), 400, &[]);
    }
}

#[test]
fn directories_and_redirects() {
    check("GET / HTTP/1.1|Host: h||", 200, &[("Content-Type", Some("text/html; charset=utf-8"))]);
    assert_eq!(get("/", "").body, "<h1>home</h1>\n");
    assert_eq!(get("/sub/", "").body, get("/sub/index.html", "").body);
    let moved = |request: &str, status, location: &str| check(request, status, &[("Location", Some(location))]);
    moved("GET /sub HTTP/1.1|Host: h||", 301, "/sub/");
    moved("GET /sub?a=b HTTP/1.1|Host: h||", 301, "/sub/?a=b");
    // the location is what was looked up, never what was sent: "//evil/.." is no other host
    moved("GET //evil.example/%2e%2e/sub HTTP/1.1|Host: h||", 301, "/sub/");
    let encoded = "/name%20with%20space%20&%20more";
    moved(&format!("GET {encoded} HTTP/1.1|Host: h||"), 301, &format!("{encoded}/"));
    moved("GET /old HTTP/1.1|Host: h||", 301, "/a.txt");
    moved("GET /moved/a/b?c HTTP/1.1|Host: h||", 308, "https://example.org/new/a/b?c");
    moved("GET /moved/%22%3Ca HTTP/1.1|Host: h||", 308, "https://example.org/new/%22%3Ca");
    // a query stands before the fragment (RFC 3986 section 3)
    moved("GET /part HTTP/1.1|Host: h||", 301, "/a.txt#s");
    moved("GET /part?x=1 HTTP/1.1|Host: h||", 301, "/a.txt?x=1#s");
    moved("GET /part/two?x=1 HTTP/1.1|Host: h||", 301, "/a.txt?y#s?");
    // one path of a prefix is somewhere else, in whatever order they were given
    moved("GET /moved/here?c HTTP/1.1|Host: h||", 302, "/a.txt?c");
    moved("GET /moved/there HTTP/1.1|Host: h||", 302, "/b.txt");
    moved("GET /moved/here/ HTTP/1.1|Host: h||", 308, "https://example.org/new/here/");
    // files and directories of a prefix are where it says, also those of which a slash is missing
    moved("GET /dir HTTP/1.1|Host: other.example||", 301, "/dir/");
    for path in ["", "c.txt", "sub", "sub/", "sub/d.txt"] {
        moved(&format!("GET /dir/{path} HTTP/1.1|Host: other.example||"), 307, &format!("/new/{path}"));
    }
    // an encoded slash is none, and an encoded percent sign in front of 2F no encoded slash
    moved("GET /moved/group%2Frepo HTTP/1.1|Host: h||", 308, "https://example.org/new/group%2Frepo");
    moved("GET /moved/%2f%2e%2e%2f/x HTTP/1.1|Host: h||", 308, "https://example.org/new/%2F..%2F/x");
    moved("GET /moved/group%252Frepo%25 HTTP/1.1|Host: h||", 308, "https://example.org/new/group%252Frepo%25");
    check("GET /moved%2Fhere HTTP/1.1|Host: h||", 404, &[]);
    check("GET /bare/ HTTP/1.1|Host: h||", 403, &[]);
    check("GET /moved HTTP/1.1|Host: h||", 404, &[]);
    let long = format!("GET /moved/{} HTTP/1.1|Host: h||", "%20".repeat(2600));
    check(&long, 308, &[]);
}

#[test]
fn error_pages_are_the_hosts() {
    let own = get("/nope", "");
    assert_eq!((own.status, &*own.body), (404, "<h1>nothing here</h1>\n"));
    assert_eq!((own.field("ETag"), own.field("Last-Modified")), (None, None));
    let plain = ask("GET /nope HTTP/1.1|Host: other.example||");
    assert!(plain.status == 404 && plain.body.contains("404 Not Found"), "{plain:?}");
}

#[test]
fn virtual_hosts() {
    for (host, body) in [
        ("www.example.com", "0123456789"),
        ("WWW.Example.com:8080", "0123456789"),
        ("nobody.example", "0123456789"),
        ("", "0123456789"),
    ] {
        assert_eq!(ask(&format!("GET /a.txt HTTP/1.1|Host: {host}||")).body, body, "{host}");
    }
    for host in ["other.example", "Other.Example.", "a.wild.example", "a.b.wild.example:80"] {
        assert_eq!(ask(&format!("GET /b.txt HTTP/1.1|Host: {host}||")).body, "second host", "{host}");
    }
    assert_eq!(ask("GET /b.txt HTTP/1.1|Host: wild.example||").status, 404);
    // the target's host stands above the field (RFC 9112 section 3.2.2)
    assert_eq!(ask("GET http://other.example/b.txt HTTP/1.1|Host: www.example.com||").body, "second host");
    assert_eq!(ask("GET /a.txt HTTP/1.0||").status, 200);
    let listing = ask("GET / HTTP/1.1|Host: other.example||");
    assert!(listing.body.contains("<a href=\"./dir/\">dir/</a>") && listing.body.contains("./b.txt"), "{listing:?}");
    assert!(!listing.body.contains("c.txt"), "{listing:?}");
}

#[test]
fn rules_add_fields_by_path() {
    check("GET /style.css HTTP/1.1|Host: h||", 200, &[("Cache-Control", Some("public, max-age=31536000, immutable"))]);
    check(
        "GET /sub/index.html HTTP/1.1|Host: h||",
        200,
        &[("Cache-Control", Some("no-cache")), ("X-Frame-Options", Some("DENY"))],
    );
    check("GET /a.txt HTTP/1.1|Host: h||", 200, &[("Cache-Control", None), ("X-Frame-Options", None)]);
}

#[test]
fn variants_by_accept_encoding() {
    for (accept, encoding, body) in [
        ("", None, None),
        ("Accept-Encoding: gzip, deflate, br, zstd|", Some("br"), Some("br of the style")),
        ("Accept-Encoding: gzip|", Some("gzip"), Some("gzip of the style")),
        ("Accept-Encoding: gzip;q=1, br;q=0.5|", Some("gzip"), Some("gzip of the style")),
        ("Accept-Encoding: zstd, br;q=0|", Some("zstd"), Some("zstd of the style!")),
        ("Accept-Encoding: br;q=0.1, identity|", None, None),
        ("Accept-Encoding: *|", Some("br"), None),
        ("Accept-Encoding: identity;q=0|", None, None),
    ] {
        let answer = get("/style.css", accept);
        assert_eq!(answer.field("Content-Encoding"), encoding, "{accept}");
        // RFC 9110 section 12.5.5: also without a coding
        assert_eq!(answer.field("Vary"), Some("Accept-Encoding"), "{accept}");
        assert_eq!(answer.field("Content-Type"), Some("text/css; charset=utf-8"));
        if let Some(body) = body {
            assert_eq!(answer.body, body, "{accept}");
        }
    }
    // strong tags differ (section 8.8.3.3)
    let tag = |accept| get("/style.css", accept).field("ETag").unwrap().to_owned();
    assert_ne!(tag(""), tag("Accept-Encoding: br|"));
    assert_ne!(tag("Accept-Encoding: gzip|"), tag("Accept-Encoding: br|"));
    assert_eq!(get("/a.txt", "Accept-Encoding: br|").field("Vary"), None);
}

#[test]
fn conditions() {
    let tag = etag("/a.txt");
    let none = [("Content-Length", None), ("Content-Type", None)];
    let ask = |fields: &str, status: u16| {
        let request = format!("GET /a.txt HTTP/1.1|Host: h|{fields}|");
        check(&request, status, if status == 304 { &none } else { &[] });
    };
    ask(&format!("If-None-Match: {tag}|"), 304);
    ask(&format!("If-None-Match: W/{tag}|"), 304);
    ask("If-None-Match: \"x\"|", 200);
    ask(&format!("If-Modified-Since: {CHANGED}|"), 304);
    ask("If-Modified-Since: Sun, 06 Nov 1994 08:49:36 GMT|", 200);
    ask(&format!("If-None-Match: \"x\"|If-Modified-Since: {CHANGED}|"), 200);
    ask("If-Match: \"x\"|", 412);
    ask("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:36 GMT|", 412);
    // a condition is judged before a range (RFC 9110 section 13.2.2)
    ask(&format!("If-None-Match: {tag}|Range: bytes=0-1|"), 304);
    ask(&format!("If-Match: {tag}|Range: bytes=0-1|"), 206);
    // not for what would not be a 200 (section 13.2.1)
    check("GET /nope HTTP/1.1|Host: h|If-None-Match: *||", 404, &[]);
    check("GET /sub HTTP/1.1|Host: h|If-Match: \"x\"||", 301, &[]);
    // section 15.4.5: what a 200 would have had
    let not_modified = get("/style.css", &format!("Accept-Encoding: br|If-Modified-Since: {CHANGED}|"));
    for field in ["ETag", "Vary", "Cache-Control"] {
        assert_eq!(not_modified.field(field), get("/style.css", "Accept-Encoding: br|").field(field), "{field}");
    }
    assert_eq!((not_modified.status, &*not_modified.body), (304, ""));
    // each variant has its own tag
    let plain = etag("/style.css");
    assert_eq!(get("/style.css", &format!("Accept-Encoding: br|If-None-Match: {plain}|")).status, 200);
}

#[test]
fn one_range() {
    for (range, expected, body) in [
        ("bytes=0-0", "bytes 0-0/10", "0"),
        ("bytes=2-4", "bytes 2-4/10", "234"),
        ("bytes=7-", "bytes 7-9/10", "789"),
        ("bytes=-2", "bytes 8-9/10", "89"),
        ("bytes=0-99", "bytes 0-9/10", "0123456789"),
        // several that leave one part (RFC 9110 section 15.3.7.2 lets it be sent plain)
        ("bytes=1-2,50-60", "bytes 1-2/10", "12"),
        ("bytes=1-2,2-3,4-5", "bytes 1-5/10", "12345"),
    ] {
        let answer = get("/a.txt", &format!("Range: {range}|"));
        assert_eq!(
            (answer.status, answer.field("Content-Range"), &*answer.body),
            (206, Some(expected), body),
            "{range}"
        );
        assert_eq!(answer.field("Content-Length"), Some(&*body.len().to_string()), "{range}");
        assert_eq!(answer.field("Content-Type"), Some("text/plain; charset=utf-8"), "{range}");
        assert_eq!(answer.fields.iter().filter(|(name, _)| name == "Content-Length").count(), 1, "{range}");
        assert!(answer.field("ETag").is_some() && answer.field("Last-Modified").is_some(), "{range}");
    }
    let answer = get("/big.bin", "Range: bytes=70000-70009|");
    assert_eq!((answer.status, answer.body.into_bytes()), (206, big()[70_000..70_010].to_vec()));
    // an encoded variant's octets are the representation
    let answer = get("/style.css", "Accept-Encoding: br|Range: bytes=0-1|");
    assert_eq!((answer.field("Content-Encoding"), &*answer.body), (Some("br"), "br"));
}

#[test]
fn ranges_that_are_not_given() {
    for range in ["bytes=5-4", "bytes=x", "rows=1-2", "bytes=", "bytes=1-2|Range: bytes=3-4"] {
        let answer = get("/a.txt", &format!("Range: {range}|"));
        assert_eq!((answer.status, answer.body.len()), (200, 10), "{range}");
    }
    // RFC 9110 section 15.5.17
    for range in ["bytes=10-", "bytes=10-20,30-40", "bytes=-0"] {
        check(&format!("GET /a.txt HTTP/1.1|Host: h|Range: {range}||"), 416, &[("Content-Range", Some("bytes */10"))]);
    }
    // section 14.2: for GET alone
    check("HEAD /a.txt HTTP/1.1|Host: h|Range: bytes=0-1||", 200, &[("Content-Length", Some("10"))]);
    // of nothing there are no parts, and no way to tell of them
    check("GET /empty.txt HTTP/1.1|Host: h|Range: bytes=0-||", 200, &[("Content-Length", Some("0"))]);
    check("GET /nope HTTP/1.1|Host: h|Range: bytes=0-1||", 404, &[("Content-Range", None)]);
    let tag = etag("/a.txt");
    for (condition, status) in
        [(tag.clone(), 206), (CHANGED.to_owned(), 200), ("\"x\"".to_owned(), 200), (format!("W/{tag}"), 200)]
    {
        check(&format!("GET /a.txt HTTP/1.1|Host: h|Range: bytes=0-1|If-Range: {condition}||"), status, &[]);
    }
}

/// Two versions of a file that were written within a second, or by whatever sets all times to the same.
#[test]
fn parts_of_two_versions_are_not_joined() {
    let version = |bytes: &[u8]| {
        let mut builder = crate::testing::builder(crate::testing::config(), None);
        builder.add(0, &crate::testing::file("/a.txt", 1), bytes).unwrap();
        builder.finish().unwrap()
    };
    let part = |site: &Site, condition: &str| {
        let text = format!("GET /a.txt HTTP/1.1\r\nHost: h\r\nRange: bytes=5-\r\nIf-Range: {condition}\r\n\r\n");
        let mut slots = crate::head::slots();
        let crate::head::Outcome::Whole(head) = crate::head::read(text.as_bytes(), &mut slots) else {
            panic!("{text}")
        };
        let mut plan = Plan::new();
        answer(site, &head, Moment { date: b"Date: x\r\n", boundary: None }, true, &mut plan);
        (plan.status, plan.body_bytes)
    };
    let [one, two] = [b"0123456789", b"ABCDEFGHIJ"].map(|bytes| version(bytes));
    let validators = |site: &Site| match site.entry(0, b"/a.txt") {
        Some(Entry::Page { first, variants }) => {
            let page = site.variant(first, variants, || Weights::NONE);
            [site.etag(page), site.modified(page)].map(|text| String::from_utf8(text.to_vec()).unwrap())
        }
        other => panic!("{other:?}"),
    };
    let [tag, date] = validators(&one);
    assert_eq!(validators(&two)[1], date);
    assert_eq!(part(&one, &tag), (206, 5));
    for condition in [tag, date] {
        assert_eq!(part(&two, &condition), (200, 10), "{condition}");
    }
}

#[test]
fn several_ranges() {
    let answer = get("/big.bin", "Range: bytes=0-9,-5,500-501|");
    let content_type = answer.field("Content-Type").unwrap();
    let boundary = content_type.strip_prefix("multipart/byteranges; boundary=").expect("a boundary");
    let part = |first: usize, last: usize| {
        let body = String::from_utf8_lossy(&big()[first..=last]).into_owned();
        format!(
            "--{boundary}\r\nContent-Type: application/octet-stream\r\nContent-Range: bytes {first}-{last}/{BIG_BYTES}\r\n\r\n{body}"
        )
    };
    let (a, b, c) = (part(0, 9), part(BIG_BYTES - 5, BIG_BYTES - 1), part(500, 501));
    assert_eq!(answer.body, format!("{a}\r\n{b}\r\n{c}\r\n--{boundary}--\r\n"));
    assert_eq!((answer.status, answer.field("Content-Range")), (206, None));
    // an encoded variant is sent whole
    let whole = get("/style.css", "Accept-Encoding: br|Range: bytes=0-0,-1|");
    assert_eq!((whole.status, &*whole.body), (200, "br of the style"));
}

#[test]
fn a_multipart_answer_is_as_long_as_it_says() {
    let ranges: Vec<String> = (0..PARTS_MAX).map(|n| format!("{}-{}", 5000 * n, 5000 * n + 2 * n)).collect();
    let mut talk = crate::testing::Talk::new(crate::testing::options());
    let request = format!("GET /big.bin HTTP/1.1\r\nHost: h\r\nRange: bytes={}\r\n\r\n", ranges.join(", "));
    talk.receive(request.as_bytes());
    let out = &talk.engine.out;
    let end = out.windows(4).position(|four| four == b"\r\n\r\n").expect("an end of the head") + 4;
    let head = String::from_utf8_lossy(&out[..end]).into_owned();
    assert!(head.starts_with("HTTP/1.1 206 Partial Content\r\n"), "{head}");
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", out.len() - end)), "{head}");
    assert_eq!(talk.server.stats().answers(2), 1);
}

/// Statuses that nginx 1.22.1 gave for the same requests and the same files.
#[test]
fn as_nginx_answers() {
    let tag = etag("/a.txt");
    for (request, status) in [
        ("GET /a.txt HTTP/1.1|Host: h||", 200),
        ("GET /a.txt HTTP/1.0||", 200),
        ("GET /a.txt HTTP/1.1||", 400),
        ("GET /a.txt HTTP/1.1|Host: a|Host: b||", 400),
        ("GET /a.txt HTTP/1.1|Host: a b||", 400),
        ("POST /a.txt HTTP/1.1|Host: h||", 405),
        ("TRACE /a.txt HTTP/1.1|Host: h||", 405),
        ("GET /sub HTTP/1.1|Host: h||", 301),
        ("GET /bare/ HTTP/1.1|Host: h||", 403),
        ("GET /nope HTTP/1.1|Host: h||", 404),
        ("GET /a.txt/ HTTP/1.1|Host: h||", 404),
        ("GET /.hidden HTTP/1.1|Host: h||", 404),
        ("GET /a.txt HTTP/1.1|Host: h|Range: bytes=0-0||", 206),
        ("GET /a.txt HTTP/1.1|Host: h|Range: bytes=0-0,-1||", 206),
        ("GET /a.txt HTTP/1.1|Host: h|Range: bytes=0-99||", 206),
        ("GET /a.txt HTTP/1.1|Host: h|Range: bytes=0-1,50-60||", 206),
        ("GET /a.txt HTTP/1.1|Host: h|Range: bytes=10-||", 416),
        ("GET /empty.txt HTTP/1.1|Host: h|Range: bytes=0-||", 200),
        ("GET /a.txt HTTP/1.1|Host: h|If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT||", 304),
        ("GET /a.txt HTTP/1.1|Host: h|If-None-Match: *||", 304),
        (&format!("GET /a.txt HTTP/1.1|Host: h|If-None-Match: {tag}||"), 304),
        ("GET /a.txt HTTP/1.1|Host: h|If-Match: \"x\"||", 412),
        ("GET /a.txt HTTP/1.1|Host: h|If-Unmodified-Since: Sun, 06 Nov 1994 08:49:36 GMT||", 412),
        ("GET /a.txt HTTP/1.1|Host: h|If-Range: \"x\"|Range: bytes=0-1||", 200),
        ("GET /../a.txt HTTP/1.1|Host: h||", 400),
        ("GET /sub/../a.txt HTTP/1.1|Host: h||", 200),
        ("GET //a.txt HTTP/1.1|Host: h||", 200),
        ("GET /%61.txt HTTP/1.1|Host: h||", 200),
        ("GET /a.txt%00 HTTP/1.1|Host: h||", 400),
        ("GET /%zz HTTP/1.1|Host: h||", 400),
        ("GET http://other/a.txt HTTP/1.1|Host: h||", 200),
        ("GET /a.txt HTTP/2.0|Host: h||", 505),
        ("GET /a.txt HTTP/1.1|Host: h|Content-Length: 5|Transfer-Encoding: chunked||0||", 400),
        ("GET /a.txt HTTP/1.1|Host: h|Content-Length: 5|Content-Length: 5||hello", 400),
        ("GET /a.txt HTTP/1.1|Host: h|Content-Length: x||", 400),
        ("GET /a.txt HTTP/1.1|Host: h|Transfer-Encoding: gzip||", 501),
        ("GET /a.txt HTTP/1.1|Host : h||", 400),
        ("GET /a.txt HTTP/1.1|Host: h|A: b| c||", 400),
        ("\u{16}\u{3}\u{1}", 400),
    ] {
        assert_eq!(ask(request).status, status, "{request}");
    }
}

/// Where the same nginx gave another status, and why this server does not.
#[test]
fn unlike_nginx() {
    for (request, status, nginx, _why) in [
        (
            "GET /a.txt HTTP/1.1|Host:||",
            200,
            400,
            "RFC 9112 section 3.2: a target without an authority has an empty Host",
        ),
        ("OPTIONS * HTTP/1.1|Host: h||", 204, 400, "RFC 9110 section 9.3.7"),
        ("BREW /a.txt HTTP/1.1|Host: h||", 501, 405, "RFC 9110 section 15.6.2: a method that is not recognised"),
        ("HEAD /a.txt HTTP/1.1|Host: h|Range: bytes=0-1||", 200, 206, "RFC 9110 section 14.2: for GET alone"),
        (
            "GET /a.txt HTTP/1.1|Host: h|Range: bytes=5-4||",
            200,
            416,
            "RFC 9110 section 14.1.1: invalid, and so ignored",
        ),
        ("GET /a.txt HTTP/1.1|Host: h|Range: bytes=x||", 200, 416, "the same"),
        (
            "GET /a.txt HTTP/1.1|Host: h|If-Modified-Since: Sun, 06 Nov 1994 08:49:38 GMT||",
            304,
            200,
            "RFC 9110 section 13.1.3: earlier or equal",
        ),
        (
            "GET /a.txt HTTP/1.1|Host: h|If-Range: Sun, 06 Nov 1994 08:49:37 GMT|Range: bytes=0-1||",
            200,
            206,
            "RFC 9110 section 8.8.2.2: nobody knows that a file did not change twice within its second",
        ),
        ("GET /a.txt HTTP/1.1\nHost: h\n\n", 400, 200, "RFC 9112 section 2.2 leaves it open; a lone LF hides requests"),
        ("GET /a.txt HTTP/1.2|Host: h||", 505, 200, "there is no such version"),
        ("GET /a.txt#x HTTP/1.1|Host: h||", 400, 200, "RFC 9112 section 3.2.1: no fragment in a target"),
    ] {
        assert_eq!(ask(request).status, status, "{request}");
        assert_ne!(status, nginx, "{request}");
    }
}

#[test]
fn persistence_is_told_where_it_has_to_be() {
    for (request, connection, closes) in [
        ("GET /a.txt HTTP/1.1|Host: h||", None, false),
        ("GET /a.txt HTTP/1.1|Host: h|Connection: close||", Some("close"), true),
        ("GET /a.txt HTTP/1.0||", Some("close"), true),
        ("GET /a.txt HTTP/1.0|Connection: keep-alive||", Some("keep-alive"), false),
        ("GET /nope HTTP/1.1|Host: h||", None, false),
        ("GET / HTTP/1.1||", Some("close"), true),
    ] {
        let answer = ask(request);
        assert_eq!((answer.field("Connection"), answer.closes), (connection, closes), "{request}");
    }
}

#[test]
fn plans_stay_within_their_bounds() {
    let site = site();
    let mut plan = Plan::new();
    let moment = Moment { date: b"Date: x\r\n", boundary: Some(0) };
    let ranges: Vec<String> = (0..64).map(|n| format!("{}-{}", 1000 * n, 1000 * n)).collect();
    let most = format!("bytes={}", ranges[..PARTS_MAX].join(","));
    for (path, range) in [("/big.bin", most), (&*format!("/moved/{}", "%20".repeat(2700)), String::new())] {
        let text = format!("GET {path}?{} HTTP/1.1\r\nHost: h\r\nRange: {range}\r\n\r\n", "q".repeat(20));
        let mut slots = crate::head::slots();
        let crate::head::Outcome::Whole(head) = crate::head::read(text.as_bytes(), &mut slots) else {
            panic!("{text}")
        };
        let before = plan.owned.capacity();
        answer(&site, &head, moment, true, &mut plan);
        assert_eq!(plan.owned.capacity(), before, "{path:.40}");
        assert!(plan.bytes() > 0);
    }
}
