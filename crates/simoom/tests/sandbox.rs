//! A server that has confined itself: what it still does, and what it cannot do any more.

mod common;

use common::{PATIENCE, Place, Server, ZONE, ask, run, text, thread_status, until};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::process::Command;

/// Whether the kernel has what the tests look for; where it has not, the server says so, and serves.
fn is_confined(server: &Server) -> bool {
    let status = text(&server.ctl(&["status"]).stdout);
    let said = status.lines().find(|line| line.starts_with("sandbox ")).unwrap_or_else(|| panic!("{status}"));
    let confined = said.contains("landlock (ABI ") && said.contains(", seccomp");
    if !confined {
        eprintln!("not tested: {said}");
    }
    confined
}

fn get(server: &Server, path: &str) -> String {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").map_or(answer.clone(), |(_, body)| body.to_owned())
}

/// A place with a site in it, and beside that one that is not served.
fn site() -> Place {
    let place = Place::new();
    std::fs::create_dir_all(place.path("served/site")).unwrap();
    std::fs::create_dir_all(place.path("elsewhere/site")).unwrap();
    std::fs::create_dir(place.path("logs")).unwrap();
    place.write("served/site/index.html", "one");
    place.write("elsewhere/site/index.html", "another");
    place
}

fn serve(place: &Place, more: &[&str]) -> Server {
    Server::start_service(place, &["web", &place.path("served/site")], more, |_| {})
}

#[test]
fn every_thread_is_confined_and_says_so() {
    let place = site();
    let server = serve(&place, &["--access-log", &place.path("logs/access.log"), "--watch"]);
    if !is_confined(&server) {
        return;
    }
    for (field, value) in [("Seccomp", "2"), ("NoNewPrivs", "1"), ("CapEff", "0000000000000000")] {
        let values = thread_status(server.pid(), field);
        assert!(values.len() > 5 && values.iter().all(|is| is == value), "{field}: {values:?}");
    }
    assert_eq!((server.stat("sandboxed  by=landlock"), server.stat("sandboxed  by=seccomp")), (1, 1));
    // on a kernel that lacks a part of it, that is said; and then it cannot be had by insisting
    let status = text(&server.ctl(&["status"]).stdout);
    let lacks =
        ["truncation", "ports", "scopes"].map(|part| server.stat(&format!("sandboxed  by=landlock {part}")) == 0);
    assert_eq!(status.contains("which does not hold "), lacks.contains(&true), "{status}");
    // the word is in the log as well, once
    let said = server.log().into_iter().filter(|line| line.contains("sandbox: ")).count();
    assert_eq!(said, 1);
}

/// It is read in user space, in whatever order privileges go and the clock is looked for.
#[test]
fn the_clock_takes_no_system_calls() {
    lab::require_programs(&["strace"]);
    for user in [&[][..], &["--user", "nobody"]] {
        let place = site();
        let server = serve(&place, user);
        let trace = place.path("trace");
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-e", "trace=clock_gettime,epoll_wait,epoll_pwait,epoll_pwait2", "-o", &trace]);
        let mut strace = command.args(["-p", &server.pid().to_string()]).spawn().unwrap();
        let traced = || std::fs::read_to_string(&trace).unwrap_or_default();
        let calls = |name: &str| traced().lines().filter(|line| line.contains(name)).count();
        until(
            || {
                assert_eq!(get(&server, "/"), "one");
                calls("epoll_") > 100
            },
            || format!("strace sees nothing: {}", traced()),
        );
        let _ = strace.kill();
        let _ = strace.wait();
        assert_eq!(calls("clock_gettime"), 0, "of {} calls, {user:?}", calls(""));
    }
}

#[test]
fn it_reloads_watches_rotates_its_log_and_drains() {
    let place = site();
    let log = place.path("logs/access.log");
    let server = serve(&place, &["--access-log", &log, "--watch", "--settle", "50", "--compress", "--sandbox", "auto"]);
    assert_eq!(get(&server, "/"), "one");
    place.write("served/site/index.html", "two");
    until(|| get(&server, "/") == "two", || "the change is not taken".into());
    // a directory that comes is watched, too
    std::fs::create_dir(place.path("served/site/new")).unwrap();
    place.write("served/site/new/page.html", "three");
    until(|| get(&server, "/new/page.html") == "three", || "the directory is not taken".into());
    std::fs::rename(&log, place.path("logs/access.log.1")).unwrap();
    assert!(server.ctl(&["reload"]).status.success());
    until(
        || {
            get(&server, "/");
            std::fs::read_to_string(&log).is_ok_and(|text| text.contains("GET / "))
        },
        || format!("the log is not opened anew: {:#?}", server.log()),
    );
    // the root replaced by another directory of its name
    std::fs::rename(place.path("served/site"), place.path("served/old")).unwrap();
    std::fs::create_dir(place.path("served/site")).unwrap();
    place.write("served/site/index.html", "four");
    until(|| get(&server, "/") == "four", || format!("the new root is not taken: {:#?}", server.log()));
    let mut server = server;
    server.signal(Signal::TERM);
    assert_eq!(server.end().code(), Some(0));
    assert!(!server.control.exists());
    let refused = server.log().into_iter().filter(|line| line.contains("ermitted") || line.contains("denied"));
    assert_eq!(refused.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn a_root_that_leads_elsewhere_is_refused_and_the_old_content_goes_on() {
    let place = site();
    let server = serve(&place, &[]);
    let confined = is_confined(&server);
    std::fs::rename(place.path("served/site"), place.path("served/old")).unwrap();
    symlink(place.path("elsewhere/site"), place.path("served/site")).unwrap();
    let output = server.ctl(&["reload"]);
    if !confined {
        assert!(output.status.success());
        return;
    }
    assert_eq!(output.status.code(), Some(1));
    let site = place.path("served/site");
    let line = format!(
        "simoom: {site}: cannot be read: Permission denied: it lies outside of what the server allowed itself to read when it \
         started, see --sandbox; check the path"
    );
    let said = text(&output.stderr);
    assert!(said.lines().any(|have| have == line), "{said}");
    assert_eq!(get(&server, "/"), "one");
    // another server is free to begin with it
    drop(server);
    assert_eq!(get(&serve(&place, &[]), "/"), "another");
}

#[test]
fn a_root_that_was_put_anew_below_a_first_level_directory_is_refused_with_the_reason() {
    let (place, site) = (Place::new(), tempfile::tempdir_in("/tmp").unwrap());
    let [root, old] = ["root", "old"].map(|end| site.path().with_extension(end));
    let make = |page: &str| {
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("index.html"), page).unwrap();
    };
    make("one");
    let server = Server::start_service(&place, &["web", root.to_str().unwrap()], &[], |_| {});
    std::fs::rename(&root, &old).unwrap();
    make("another");
    let output = server.ctl(&["reload"]);
    let (confined, said, page) = (is_confined(&server), text(&output.stderr), get(&server, "/"));
    [&root, &old].iter().for_each(|at| std::fs::remove_dir_all(at).unwrap());
    if !confined {
        assert!(output.status.success() && page == "another");
        return;
    }
    let why = "it lies outside of what the server allowed itself to read when it started";
    assert!(output.status.code() == Some(1) && said.contains(why), "{said}");
    assert_eq!(page, "one");
}

#[test]
fn an_include_that_leads_elsewhere_is_refused_and_the_old_zone_goes_on() {
    let place = Place::new();
    for folder in ["zones", "shared", "elsewhere"] {
        std::fs::create_dir(place.path(folder)).unwrap();
    }
    let include = |folder: &str| place.write("zones/z", &format!("{ZONE}$INCLUDE {}\n", place.path(folder)));
    place.write("shared/more", "more A 192.0.2.3\n");
    place.write("elsewhere/more", "more A 192.0.2.4\n");
    include("shared/more");
    let server = Server::start_service(&place, &["dns", &place.path("zones/z")], &[], |_| {});
    let more = || ask(server.address, "more.example.com").1;
    assert_eq!(more(), Some([192, 0, 2, 3]));
    // a file that was included at the start may be replaced
    place.write("shared/more", "more A 192.0.2.5\n");
    let output = server.ctl(&["reload"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(more(), Some([192, 0, 2, 5]));
    if !is_confined(&server) {
        return;
    }
    include("elsewhere/more");
    let output = server.ctl(&["reload"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("cannot be read: Permission denied: it lies outside of what the server allowed itself to read"),
        "{said}"
    );
    assert_eq!(more(), Some([192, 0, 2, 5]));
}

#[test]
fn off_is_off_and_a_wrong_word_is_refused() {
    let place = site();
    let server = serve(&place, &["--sandbox", "off"]);
    assert!(thread_status(server.pid(), "Seccomp").iter().all(|value| value == "0"));
    assert!(text(&server.ctl(&["status"]).stdout).contains("sandbox      off\n"));
    let output = run(&["web", &place.path("served/site"), "--sandbox", "maybe"]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("`maybe` is none of on, off, auto"), "{said}");
}

#[test]
fn another_user_is_confined_as_well() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: becoming another user is not tested");
        return;
    }
    let place = site();
    let open = |path: &str| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    };
    [place.path(""), place.path("served"), place.path("served/site")].iter().for_each(|path| open(path));
    std::fs::set_permissions(place.path("served/site/index.html"), std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .unwrap();
    let server = serve(&place, &["--user", "65534"]);
    assert_eq!(get(&server, "/"), "one");
    place.write("served/site/more.html", "more");
    std::fs::set_permissions(place.path("served/site/more.html"), std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .unwrap();
    assert!(server.ctl(&["reload"]).status.success());
    assert_eq!(get(&server, "/more.html"), "more");
}
