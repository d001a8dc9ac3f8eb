//! Experiments that are told to stop, or whose terminal goes, or that are killed: nothing is written, and nothing of theirs stays.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

const BENCH: &str = env!("CARGO_BIN_EXE_simoom-bench");
const PATIENCE: Duration = Duration::from_secs(60);

fn start(words: &[&str], out: &Path) -> Child {
    // whoever runs the tests may ignore it
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", BENCH, "experiment"]).args(words).arg("--out").arg(out);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

fn send(signal: &str, to: u32) {
    assert!(Command::new("kill").args(["-s", signal, &to.to_string()]).status().unwrap().success());
}

/// Whether a process would take the signal of this number itself.
fn catches(pid: u32, number: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (number - 1) != 0)
}

/// The namespaces of a process's laboratories.
fn namespaces(pid: u32) -> Vec<String> {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.contains(&format!("-{pid}-"))).collect()
}

/// How it ended and what it said.
fn ended(mut child: Child) -> (ExitStatus, String) {
    assert!(lab::wait_until(|| child.try_wait().unwrap().is_some(), PATIENCE), "it goes on");
    let done = child.wait_with_output().unwrap();
    (done.status, String::from_utf8_lossy(&done.stderr).into_owned())
}

#[test]
fn who_is_told_to_stop_writes_nothing_and_leaves_nothing() {
    lab::require_programs(&["ip", "ethtool"]);
    let connections = ["connections", "--rounds", "1", "--counts", "10,20", "--pipe", "10", "--seconds", "20"];
    let readers = ["udp-readers", "--rounds", "100", "--queue", "shared", "--readers", "1", "--datagrams", "20000"];
    for words in [&connections[..], &readers[..]] {
        for (signal, number) in [("TERM", 15), ("HUP", 1)] {
            let out = tempfile::tempdir().unwrap();
            let child = start(words, out.path());
            let pid = child.id();
            // when it catches that, its first laboratory is on the way
            assert!(lab::wait_until(|| catches(pid, number), PATIENCE), "{signal} is caught by nobody");
            send(signal, pid);
            if signal == "HUP" {
                // a shell sends one, and the kernel another
                send(signal, pid);
            }
            let (status, said) = ended(child);
            assert_eq!(status.code(), Some(1), "{words:?} {signal}: {said}");
            assert!(said.contains("interrupted"), "{words:?} {signal}: {said}");
            assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0, "{words:?} {signal}: {said}");
            assert_eq!(namespaces(pid), Vec::<String>::new(), "{words:?} {signal}: {said}");
        }
    }
}

#[test]
fn who_was_started_to_outlive_the_terminal_does() {
    lab::require_programs(&["ip", "ethtool"]);
    let out = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", BENCH, "experiment", "udp-readers", "--rounds", "100"]);
    command.args(["--queue", "shared", "--readers", "1", "--datagrams", "20000", "--out"]).arg(out.path());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    assert!(lab::wait_until(|| catches(child.id(), 15), PATIENCE), "SIGTERM is caught by nobody");
    assert!(!catches(child.id(), 1));
    send("HUP", child.id());
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "it ended with its terminal");
    send("TERM", child.id());
    let (status, said) = ended(child);
    assert!(status.code() == Some(1) && said.contains("interrupted"), "{said}");
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0, "{said}");
}

#[test]
fn who_is_killed_takes_its_server_along() {
    lab::require_programs(&["ip", "ethtool", "setpriv"]);
    let out = tempfile::tempdir().unwrap();
    let words = ["connections", "--rounds", "1", "--counts", "10", "--pipe", "10", "--seconds", "60"];
    let mut child = start(&words, out.path());
    let children = |pid: u32| -> Vec<u32> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    };
    let is = |pid: u32, word: &str| {
        let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split('\0').nth(1) == Some(word)
    };
    let mut both = Vec::new();
    // the server and its load, when they have become what they are
    let are_there = || {
        both = children(child.id());
        both.iter().any(|pid| is(*pid, "answer")) && both.iter().any(|pid| is(*pid, "messages"))
    };
    assert!(lab::wait_until(are_there, PATIENCE), "{both:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    let are_gone = || both.iter().all(|pid| !Path::new(&format!("/proc/{pid}/exe")).exists());
    assert!(lab::wait_until(are_gone, PATIENCE), "{both:?}");
    // whoever makes a laboratory next removes what is left of it
    drop(lab::Lab::new().unwrap());
    assert_eq!(namespaces(child.id()), Vec::<String>::new());
}
