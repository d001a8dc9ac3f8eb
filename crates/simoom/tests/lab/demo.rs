//! The demo as a newcomer runs it.

use crate::common::PATIENCE;
use lab::Process;
use rustix::process::{Pid, Signal, test_kill_process_group};
use std::{fs, process::Command};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/demo.sh");

fn start(seconds: &str) -> Process {
    lab::require_programs(&["ip", "ethtool", "dig"]);
    let mut command = Command::new("bash");
    command.args([SCRIPT, env!("CARGO_BIN_EXE_simoom"), seconds]);
    Process::spawn(command).unwrap()
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
    let counters = "questions: UDP 2, TCP 1; answers: NOERROR 2, NXDOMAIN 1; AF_XDP 2 frames in, 2 out";
    for words in ["198.18.0.10", "a wildcard answers", "status: NXDOMAIN", "serving on", counters] {
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
