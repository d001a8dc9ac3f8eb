use super::*;
use crate::testing::{self, CHANGED_UNIX_S, config, file, files};
use crate::{Config, Host};

fn small(host: Host, files: &[(&str, &[u8])]) -> Site {
    let mut builder = testing::builder(Config { server: None, hosts: vec![host] }, None);
    for (n, (path, bytes)) in files.iter().enumerate() {
        builder.add(0, &file(path, n as u64), bytes).unwrap();
    }
    builder.finish().unwrap()
}

fn body(site: &Site, host: u16, path: &str, weights: Weights) -> Option<Vec<u8>> {
    let Some(Entry::Page { first, variants }) = site.entry(host, path.as_bytes()) else { return None };
    let page = site.variant(first, variants, || weights);
    let at = page.body_at as usize;
    Some(site.content.bytes(page.body)[at..at + page.body_bytes as usize].to_vec())
}

#[test]
fn every_file_is_found_with_its_bytes_and_its_length() {
    let site = testing::site();
    for (host, files) in files().iter().enumerate() {
        for (path, bytes) in files {
            assert_eq!(body(&site, host as u16, path, Weights::NONE).as_ref(), Some(bytes), "{path}");
            let Some(Entry::Page { first, .. }) = site.entry(host as u16, path.as_bytes()) else { panic!("{path}") };
            let page = &site.representations[first as usize];
            let head = &site.content.bytes(page.head)[..usize::from(page.length_end)];
            assert_eq!(head, format!("Content-Length: {}\r\n", page.body_bytes).as_bytes(), "{path}");
        }
    }
    assert!(site.notes().is_empty() && site.memory_bytes() > 100_000, "{site:?} {:?}", site.notes());
    // every file, and the pages of directories
    assert_eq!(site.pages(), 12 + 3 + 3);
}

#[test]
fn what_the_version_before_has_is_shared_and_not_read() {
    let old = Arc::new(testing::site());
    let mut builder = testing::builder(config(), Some(old.clone()));
    for (n, (path, bytes)) in files()[0].iter().enumerate() {
        assert_eq!(builder.add_held(0, &file(path, n as u64)), Ok(true), "{path} of {} bytes", bytes.len());
    }
    assert_eq!(builder.add_held(0, &file("/new", 77)), Ok(false));
    let site = builder.finish().unwrap();
    for (path, bytes) in &files()[0] {
        assert_eq!(body(&site, 0, path, Weights::NONE).as_ref(), Some(bytes), "{path}");
        let page = |site: &Site| match site.entry(0, path.as_bytes()) {
            Some(Entry::Page { first, .. }) => site.representations[first as usize],
            other => panic!("{other:?}"),
        };
        assert_eq!(site.etag(&page(&site)), old.etag(&page(&old)), "{path}");
        let at = |site: &Site| site.content.bytes(page(site).body).as_ptr();
        // small ones stand behind their fields, which may have changed
        assert_eq!(at(&site) == at(&old), bytes.len() > 16 << 10, "{path}");
    }
    // and the version after that
    let mut builder = testing::builder(config(), Some(Arc::new(site)));
    assert_eq!(builder.add_held(0, &file("/big.bin", 3)), Ok(true));
    assert_eq!(body(&builder.finish().unwrap(), 0, "/big.bin", Weights::NONE), Some(testing::big()));
}

#[test]
fn a_file_that_is_read_while_it_is_sent_has_one_origin_wherever_it_is_served() {
    struct Zeros;
    impl crate::chunks::Source for Zeros {
        fn read(&self, _: u64, into: &mut [u8]) -> Result<(), crate::chunks::Unreadable> {
            into.fill(0);
            Ok(())
        }
    }
    let host = Host { error_pages: vec![(404, "/b.html".into())], index: vec!["c.html".into()], ..Host::default() };
    let mut builder = testing::builder(Config { server: None, hosts: vec![host] }, None);
    for (n, path) in ["/c.html", "/a.html", "/b.html"].into_iter().enumerate() {
        let identity = Identity { inode: n as u64, bytes: 100 + n as u64, ..Identity::default() };
        builder.add_source(0, &File { identity, ..file(path, 0) }, Box::new(Zeros)).unwrap();
    }
    let site = builder.finish().unwrap();
    assert_eq!(site.read_when_sent(), (3, 303));
    let is_whole = |page: &Representation, bytes: u64| {
        let origin = site.origin(page.origin).expect("it is not held");
        assert_eq!((page.body_bytes, origin.bytes()), (bytes, bytes));
    };
    for (path, bytes) in [("/c.html", 100), ("/", 100), ("/a.html", 101), ("/b.html", 102)] {
        let Some(Entry::Page { first, .. }) = site.entry(0, path.as_bytes()) else { panic!("{path}") };
        is_whole(&site.representations[first as usize], bytes);
    }
    is_whole(site.error_page(0, 404).unwrap(), 102);
    // the next version has the very same
    let old = Arc::new(site);
    let mut builder = testing::builder(Config { hosts: vec![Host::default()], ..Config::default() }, Some(old.clone()));
    let identity = Identity { inode: 1, bytes: 101, ..Identity::default() };
    assert_eq!(builder.add_as_before(0, &File { identity, ..file("/a.html", 0) }), Ok(true));
    let identity = Identity { inode: 1, bytes: 100, ..Identity::default() };
    assert_eq!(builder.add_as_before(0, &File { identity, ..file("/c.html", 0) }), Ok(false));
    let next = builder.finish().unwrap();
    let page = |site: &Site| match site.entry(0, b"/a.html") {
        Some(Entry::Page { first, .. }) => site.representations[first as usize],
        other => panic!("{other:?}"),
    };
    assert_eq!(next.etag(&page(&next)), old.etag(&page(&old)));
    let origin = |site: &Site| site.origin(page(site).origin).expect("it is not held").clone();
    assert!(Arc::ptr_eq(&origin(&next), &origin(&old)));
}

#[test]
fn a_file_is_written_in_place_or_not_at_all() {
    let mut builder = testing::builder(config(), None);
    for bytes in [3, 100_000] {
        let path = format!("/f{bytes}");
        assert_eq!(builder.add_with(0, &file(&path, bytes as u64), bytes, |_| Err("gone")), Ok(Err("gone")));
        let fill = |memory: &mut [u8]| {
            memory.fill(7);
            Ok::<_, ()>(())
        };
        assert_eq!(builder.add_with(0, &file(&path, bytes as u64), bytes, fill), Ok(Ok(())));
    }
    let site = builder.finish().unwrap();
    assert_eq!(body(&site, 0, "/f3", Weights::NONE), Some(vec![7; 3]));
    assert_eq!(body(&site, 0, "/f100000", Weights::NONE), Some(vec![7; 100_000]));
    assert!(site.notes().iter().all(|note| note.contains("error page")), "{:?}", site.notes());
}

#[test]
fn names_that_are_not_served() {
    let builder = testing::builder(config(), None);
    let check = |path: &str| builder.check_path(0, path.as_bytes());
    for path in ["/a", "/a b/c.d", "/.well-known/acme-challenge/x", "/caf\u{e9}", "/a..b"] {
        assert_eq!(check(path), Ok(()), "{path}");
    }
    for path in ["/.git/config", "/a/.htaccess", "/..."] {
        assert_eq!(check(path), Err(FileError::Hidden), "{path}");
    }
    for path in ["", "a", "/", "/a/", "/a//b", "/../a", "/a/./b", "/a\\b", "/a\nb", &format!("/{}", "a".repeat(3000))] {
        assert_eq!(check(path), Err(FileError::Unreachable), "{path:.20}");
    }
    assert_eq!(builder.check_path(2, b"/a"), Err(FileError::NoHost(2)));
}

#[test]
fn variants_beside_a_file_are_used_when_they_help() {
    let style = [b'x'; 100];
    let mut builder = testing::builder(Config { hosts: vec![Host::default()], ..Config::default() }, None);
    let old = File { modified_unix_s: CHANGED_UNIX_S - 1, ..file("/old.js.br", 1) };
    builder.add(0, &file("/old.js", 0), &style).unwrap();
    builder.add(0, &old, b"x").unwrap();
    builder.add(0, &file("/larger.js", 2), &style).unwrap();
    builder.add(0, &file("/larger.js.gz", 3), &[b'y'; 101]).unwrap();
    builder.add(0, &File { encoding: Encoding::Zstd, ..file("/made.js", 4) }, b"made").unwrap();
    builder.add(0, &file("/made.js", 4), &style).unwrap();
    builder.add(0, &File { encoding: Encoding::Brotli, ..file("/alone.js", 5) }, b"alone").unwrap();
    let site = builder.finish().unwrap();
    let all = || Weights::of([&b"*"[..]].into_iter());
    assert_eq!(body(&site, 0, "/old.js", all()), Some(style.to_vec()));
    assert_eq!(body(&site, 0, "/larger.js", all()), Some(style.to_vec()));
    assert_eq!(body(&site, 0, "/made.js", all()), Some(b"made".to_vec()));
    assert_eq!(body(&site, 0, "/old.js.br", all()), Some(b"x".to_vec()));
    assert!(body(&site, 0, "/alone.js", all()).is_none());
    let notes = site.notes().join("; ");
    assert!(notes.contains("/old.js.br: older") && notes.contains("/alone.js: a variant of nothing"), "{notes}");
}

#[test]
fn a_variant_is_kept_beside_what_it_was_made_of_only() {
    // small ones stand behind their fields, larger ones in objects of their own
    for bytes in [1000, 20_000] {
        let (first, later) = (vec![b'x'; bytes], vec![b'y'; bytes]);
        let mut builder = testing::builder(config(), None);
        builder.add(0, &file("/young.txt", 1), &first).unwrap();
        for (encoding, variant) in [(Encoding::Gzip, &b"made of the first"[..]), (Encoding::Brotli, &b"made"[..])] {
            builder.add_variant(0, encoding, variant);
        }
        let old = Arc::new(builder.finish().unwrap());
        // written again within a tick of the clock, so that its identity is the same
        for (now, kept) in [(&first, Some(17)), (&later, None)] {
            let mut builder = testing::builder(config(), Some(old.clone()));
            builder.add(0, &file("/young.txt", 1), now).unwrap();
            assert_eq!(builder.held_variant_bytes(0, Encoding::Gzip), kept, "{bytes}");
            assert_eq!(builder.held_variant_bytes(0, Encoding::Zstd), None, "{bytes}");
            assert_eq!(builder.add_held_variant(0, Encoding::Gzip), kept.is_some(), "{bytes}");
            let gzip = Weights::of([&b"gzip"[..]].into_iter());
            let expected = if kept.is_some() { &b"made of the first"[..] } else { &now[..] };
            assert!(body(&builder.finish().unwrap(), 0, "/young.txt", gzip).as_deref() == Some(expected), "{bytes}");
        }
        // a variant that was made while the file was young is kept when it is not any more
        let young = |path: &'static str, modified_ns: i128| {
            let identity = Identity { inode: 1, modified_ns, ..Identity::default() };
            File { identity, ..file(path, 1) }
        };
        let mut builder = testing::builder(config(), None);
        builder.add(0, &young("/young.txt", -5), &first).unwrap();
        builder.add_variant(0, Encoding::Gzip, b"made");
        let site = builder.finish().unwrap();
        let mut builder = testing::builder(config(), Some(Arc::new(site)));
        builder.add(0, &young("/young.txt", 5), &first).unwrap();
        assert!(builder.add_held_variant(0, Encoding::Gzip), "{bytes}");
        // shared with the version before, and not read
        let mut builder = testing::builder(config(), Some(old.clone()));
        assert_eq!(builder.add_held(0, &file("/young.txt", 1)), Ok(true));
        assert!(builder.add_held_variant(0, Encoding::Brotli));
    }
}

#[test]
fn index_files_in_their_order_and_empty_directories() {
    let host = Host { index: vec!["index.html".into(), "index.txt".into()], ..Host::default() };
    let site =
        small(host, &[("/a/index.txt", b"txt"), ("/b/index.txt", b"txt"), ("/b/index.html", b"html"), ("/c/x", b"x")]);
    assert_eq!(body(&site, 0, "/a/", Weights::NONE), Some(b"txt".to_vec()));
    assert_eq!(body(&site, 0, "/b/", Weights::NONE), Some(b"html".to_vec()));
    assert!(matches!(site.entry(0, b"/c/"), Some(Entry::Forbidden)));
    assert!(matches!(site.entry(0, b"/"), Some(Entry::Forbidden)));
    let mut builder =
        testing::builder(Config { hosts: vec![Host { listing: true, ..Host::default() }], ..Config::default() }, None);
    builder.add_directory(0, b"/empty").unwrap();
    let site = builder.finish().unwrap();
    assert!(body(&site, 0, "/empty/", Weights::NONE).is_some());
    let root = String::from_utf8(body(&site, 0, "/", Weights::NONE).unwrap()).unwrap();
    assert!(root.contains("./empty/"), "{root}");
}

#[test]
fn configured_types_and_charsets() {
    let host = Host {
        types: vec![("txt".into(), "text/x-own".into()), ("Md".into(), "text/plain; charset=latin1".into())],
        ..Host::default()
    };
    let site = small(host, &[("/a.TXT", b""), ("/b.md", b""), ("/c.css", b""), ("/d.png", b""), ("/e", b"")]);
    let media_type = |path: &str| match site.entry(0, path.as_bytes()) {
        Some(Entry::Page { first, .. }) => {
            String::from_utf8(site.media_type(&site.representations[first as usize]).to_vec()).unwrap()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(media_type("/a.TXT"), "text/x-own; charset=utf-8");
    assert_eq!(media_type("/b.md"), "text/plain; charset=latin1");
    assert_eq!(media_type("/c.css"), "text/css; charset=utf-8");
    assert_eq!((&*media_type("/d.png"), &*media_type("/e")), ("image/png", "application/octet-stream"));
}

#[test]
fn fields_that_are_too_long_are_an_error() {
    let mut config = config();
    config.hosts[0].cache.push(("/**".into(), "x".repeat(70_000)));
    let mut builder = testing::builder(config, None);
    builder.add(0, &file("/a", 1), b"a").unwrap();
    assert_eq!(builder.finish().err(), Some(BuildError::Fields("/a".to_owned())));
}

#[test]
fn a_change_in_the_future_is_dated_now() {
    let mut builder = testing::builder(config(), None);
    builder.add(0, &File { modified_unix_s: u64::MAX, ..file("/a", 1) }, b"a").unwrap();
    let site = builder.finish().unwrap();
    let Some(Entry::Page { first, .. }) = site.entry(0, b"/a") else { panic!("no page") };
    assert_eq!(site.modified(&site.representations[first as usize]), testing::NOW.as_bytes());
}

#[test]
fn host_names_of_any_length_are_looked_up() {
    let site = testing::site();
    for name in [
        "a".repeat(255),
        "a".repeat(300),
        ".".repeat(255),
        "a.".repeat(127),
        format!("{}.wild.example", "a.".repeat(100)),
    ] {
        assert_eq!(site.host(name.as_bytes()), 0, "{name}");
    }
    assert_eq!(site.host(b"x.wild.example"), 1);
    assert_eq!(site.host(format!("{}wild.example", "a.".repeat(15)).as_bytes()), 1);
}
