//! The demo as a newcomer runs it.

use crate::common::PATIENCE;
use lab::{Lab, Process};
use rustix::process::{Pid, Signal, test_kill_process_group};
use std::{fs, os::unix::fs::PermissionsExt, process::Command};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/demo.sh");

fn start(seconds: &str) -> Process {
    lab::require_programs(&["ip", "ethtool", "dig", "curl"]);
    let mut command = Command::new("bash");
    command.args([SCRIPT, env!("CARGO_BIN_EXE_simoom"), seconds]);
    Process::spawn(command).unwrap()
}

/// A copy that any user may read, wherever the checkout lies.
fn readable_copy() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("simoom-demo-").tempdir().unwrap();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let bundled = [
        "scripts/demo.sh",
        "scripts/lab.sh",
        "demo/example.com.zone",
        "demo/site/index.html",
        "demo/site/style.css",
        "demo/site/simoom.svg",
    ];
    let copies = bundled
        .map(|file| (format!("{root}{file}"), file.to_owned()))
        .into_iter()
        .chain([(env!("CARGO_BIN_EXE_simoom").to_owned(), "simoom".to_owned())]);
    for (from, to) in copies {
        let to = dir.path().join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        lab::copy_file(from.as_ref(), &to);
    }
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    dir
}

/// No namespace and no process of the demo that ran as `id` is left.
fn nothing_left(id: u32) {
    let namespaces = fs::read_dir("/run/netns").unwrap();
    let names: Vec<String> =
        namespaces.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert!(!names.iter().any(|name| name.starts_with(&format!("simoom-demo-{id}-"))), "{names:?}");
    let group = Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
    assert!(lab::wait_until(|| test_kill_process_group(group).is_err(), PATIENCE), "a process stayed");
}

#[test]
fn it_shows_answers_and_counters_and_leaves_nothing() {
    let mut demo = start("3");
    let status = demo.wait(PATIENCE).unwrap();
    let log = demo.log();
    assert!(status.success(), "{status}: {log}");
    let counters = "questions: UDP 2, TCP 1; answers: NOERROR 2, NXDOMAIN 1; pages: 2; AF_XDP ";
    for words in [
        "198.18.0.10",
        "a wildcard answers",
        "status: NXDOMAIN",
        "serving on",
        "<h1>simoom</h1>",
        "HTTP/1.1 200 OK",
        counters,
    ] {
        assert!(log.contains(words), "no {words:?}: {log}");
    }
    nothing_left(demo.id());
}

#[test]
fn without_root_it_runs_on_kernel_sockets() {
    // its port is the same every time, so it has a host of its own
    let lab = Lab::new().unwrap();
    let dir = readable_copy();
    let mut command = lab.server().command("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--bounding-set=-all",
        "bash",
        "scripts/demo.sh",
    ]);
    command.args(["./simoom", "2"]).current_dir(dir.path());
    let mut demo = Process::spawn(command).unwrap();
    let status = demo.wait(PATIENCE).unwrap();
    let log = demo.log();
    assert!(status.success(), "{status}: {log}");
    for words in [
        "198.18.0.10",
        "(sockets, ",
        "<h1>simoom</h1>",
        "questions: UDP 2, TCP 1; answers: NOERROR 2, NXDOMAIN 1; pages: 2",
    ] {
        assert!(log.contains(words), "no {words:?}: {log}");
    }
    nothing_left(demo.id());
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    let mut demo = start("0");
    demo.wait_for("counters (Ctrl-C", PATIENCE).unwrap();
    // a terminal sends it to the whole group
    demo.signal(Signal::INT);
    let status = demo.wait(PATIENCE).unwrap();
    assert!(status.success(), "{status}: {}", demo.log());
    nothing_left(demo.id());
}
