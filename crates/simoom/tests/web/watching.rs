//! Directories that are watched (`--watch`).

use super::*;

#[test]
fn changes_are_taken_when_the_directory_is_watched() {
    let place = Place::new();
    site(&place);
    let server = serve(&place, &["--watch", "--settle", "50", "--memory", "2M", "--cache", "0"]);
    let body = |path: &str| get(&mut connect(server.address), path).body;
    let becomes = |path: &str, text: &str| {
        until(|| body(path) == text.as_bytes(), || format!("{path}: {:?}", text_of(&body(path))));
    };
    place.write("site/index.html", "<h1>other</h1>");
    becomes("/", "<h1>other</h1>");
    // also below a directory that is new
    std::fs::create_dir_all(place.path("site/new/deep")).unwrap();
    place.write("site/new/deep/file.txt", "deep");
    becomes("/new/deep/file.txt", "deep");
    place.write("site/new/deep/file.txt", "deeper");
    becomes("/new/deep/file.txt", "deeper");
    // what is refused leaves the old content, and says so
    let huge = std::fs::File::create(place.path("site/huge.bin")).unwrap();
    huge.set_len(1 << 30).unwrap();
    server.wait_for_log("not reloaded, the old content goes on serving");
    assert!(server.log().iter().any(|line| line.contains("more than the 2.0 MiB of --memory")), "{:?}", server.log());
    assert_eq!(body("/"), b"<h1>other</h1>");
    place.write("site/index.html", "<h1>third</h1>");
    std::fs::remove_file(place.path("site/huge.bin")).unwrap();
    becomes("/", "<h1>third</h1>");
}

fn text_of(bytes: &[u8]) -> String {
    text(&bytes[..bytes.len().min(100)])
}

#[test]
fn a_storm_of_changes_is_one_change() {
    let place = Place::new();
    site(&place);
    let server = serve(&place, &["--watch", "--settle", "200"]);
    let begun = std::time::Instant::now();
    let mut changes = 0;
    while begun.elapsed() < Duration::from_secs(2) {
        changes += 1;
        place.write("site/index.html", &format!("<h1>change {changes}</h1>"));
        std::thread::sleep(Duration::from_millis(2));
    }
    let last = format!("<h1>change {changes}</h1>");
    until(|| get(&mut connect(server.address), "/").body == last.as_bytes(), || "the last change is not taken".into());
    // a pause of this machine may look like the end of the storm
    let reloads = server.stat("web_content_version");
    assert!((1..=2 + changes / 20).contains(&reloads), "{reloads} reloads of {changes} changes");
}

#[test]
fn a_link_that_is_set_to_another_release_is_watched_anew() {
    let place = Place::new();
    for release in ["one", "two"] {
        std::fs::create_dir(place.path(release)).unwrap();
        place.write(&format!("{release}/index.html"), release);
    }
    let set = |release: &str| {
        std::os::unix::fs::symlink(release, place.path("next")).unwrap();
        std::fs::rename(place.path("next"), place.path("site")).unwrap();
    };
    set("one");
    let server = serve(&place, &["--watch", "--settle", "50"]);
    let body = || get(&mut connect(server.address), "/").body;
    assert_eq!(body(), b"one");
    set("two");
    until(|| body() == b"two", || text(&body()));
    place.write("two/index.html", "two, changed");
    until(|| body() == b"two, changed", || text(&body()));
}

#[test]
fn what_stands_on_the_way_to_a_root_is_watched_too() {
    let place = Place::new();
    let make = |name: &str, body: &str| {
        std::fs::create_dir_all(place.path(&format!("{name}/htdocs"))).unwrap();
        place.write(&format!("{name}/htdocs/index.html"), body);
    };
    let link = |to: &str, at: &str| {
        std::os::unix::fs::symlink(to, place.path("next")).unwrap();
        std::fs::rename(place.path("next"), place.path(at)).unwrap();
    };
    make("b/releases/1", "one");
    make("b/releases/2", "two");
    // current -> latest -> releases/1, and what is served is below them
    link("releases/1", "b/latest");
    link("latest", "b/current");
    let root = place.path("b/current/htdocs");
    let server = common::Server::start_service(&place, &["web", &root], &["--watch", "--settle", "50"], |_| {});
    let body = || get(&mut connect(server.address), "/").body;
    let becomes = |expected: &str| until(|| body() == expected.as_bytes(), || text(&body()));
    assert_eq!(body(), b"one");
    link("releases/2", "b/latest");
    becomes("two");
    place.write("b/releases/2/htdocs/index.html", "two, changed");
    becomes("two, changed");
    link("releases/1", "b/current");
    becomes("one");
    // the directory that the root stands in is replaced
    make("b/releases/new", "three");
    std::fs::rename(place.path("b/releases/1"), place.path("b/releases/old")).unwrap();
    std::fs::rename(place.path("b/releases/new"), place.path("b/releases/1")).unwrap();
    becomes("three");
    place.write("b/releases/1/htdocs/index.html", "three, changed");
    becomes("three, changed");
}

/// File systems give the number of an inode that has gone to the next one.
#[test]
fn a_directory_in_the_place_of_another_is_watched() {
    let place = Place::new();
    site(&place);
    let server = serve(&place, &["--watch", "--settle", "50"]);
    let becomes = |path: &str, text: &str| {
        let body = || get(&mut connect(server.address), path).body;
        until(|| body() == text.as_bytes(), || format!("{path}: {:?}: {:#?}", text_of(&body()), server.log()));
    };
    let change = |name: &str| {
        for text in ["first", "second"] {
            let text = format!("{name}, {text}");
            place.write("site/sub/page", &text);
            becomes("/sub/page", &text);
        }
    };
    change("begun with");
    for round in 0..3 {
        std::fs::remove_dir_all(place.path("site/sub")).unwrap();
        std::fs::create_dir(place.path("site/sub")).unwrap();
        change(&format!("made anew, {round}"));
    }
    // there and back again
    std::fs::rename(place.path("site/sub"), place.path("site/aside")).unwrap();
    std::fs::rename(place.path("site/aside"), place.path("site/sub")).unwrap();
    change("renamed");
    // one that something is moved in front of
    std::fs::create_dir_all(place.path("next/deep")).unwrap();
    std::fs::rename(place.path("site/sub"), place.path("before")).unwrap();
    std::fs::rename(place.path("next"), place.path("site/sub")).unwrap();
    change("moved there");
    place.write("site/sub/deep/page", "deep");
    becomes("/sub/deep/page", "deep");
}

/// One author's directory is one that nobody else has to do without.
#[test]
fn a_directory_that_may_not_be_read_keeps_no_other_from_being_watched() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: becoming another user is not tested");
        return;
    }
    let place = Place::new();
    site(&place);
    let mode = |path: &str, mode: u32| {
        std::fs::set_permissions(place.path(path), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(".", 0o755);
    for name in ["a", "closed", "z"] {
        std::fs::create_dir(place.path(&format!("site/{name}"))).unwrap();
        place.write(&format!("site/{name}/page"), "first");
    }
    mode("site/closed", 0o700);
    let server = serve(&place, &["--watch", "--settle", "50", "--user", "65534"]);
    let becomes = |path: &str, text: &str| {
        let body = || get(&mut connect(server.address), path).body;
        until(|| body() == text.as_bytes(), || format!("{path}: {:?}: {:#?}", text_of(&body()), server.log()));
    };
    server.wait_for_log("site/closed: not watched: Permission denied");
    for name in ["a", "z"] {
        place.write(&format!("site/{name}/page"), "second");
        becomes(&format!("/{name}/page"), "second");
    }
    // and so with one that is made later, beside one that is not
    std::fs::create_dir(place.path("site/later")).unwrap();
    mode("site/later", 0o700);
    std::fs::create_dir_all(place.path("site/new/deep")).unwrap();
    place.write("site/new/deep/page", "first");
    becomes("/new/deep/page", "first");
    place.write("site/new/deep/page", "second");
    becomes("/new/deep/page", "second");
    mode("site/closed", 0o755);
    becomes("/closed/page", "first");
    place.write("site/closed/page", "third");
    becomes("/closed/page", "third");
}
