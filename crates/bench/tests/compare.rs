//! `simoom-bench compare`: what it makes of servers that answer wrongly, refuse, or end while they are measured.

use std::path::Path;
use std::process::{Command, Output};

const BENCH: &str = env!("CARGO_BIN_EXE_simoom-bench");

/// A folder with the zone that loads ask for, changed by `change`, and Knot's configuration for it.
fn knot(change: impl Fn(String) -> String) -> tempfile::TempDir {
    lab::require_programs(&["ip", "ethtool", "taskset", "knotd"]);
    let done = Command::new(BENCH).args(["zone", "--names", "100"]).output().unwrap();
    let zone = String::from_utf8(done.stdout).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "server:\n  rundir: \"{0}\"\n  user: root:root\n  listen: 198.18.0.1@53\n  udp-workers: 1\ndatabase:\n  storage: \"{0}\"\n\
         zone:\n  - domain: example.com\n    file: \"{0}/zone\"\n",
        folder.path().display()
    );
    std::fs::write(folder.path().join("knot.conf"), config).unwrap();
    let changed = change(zone.clone());
    assert!(changed.contains("SOA"), "{zone}");
    std::fs::write(folder.path().join("zone"), changed).unwrap();
    folder
}

/// A short comparison of a command with nothing but itself and a reflector.
fn compare(folder: &Path, options: &[&str], server: &str) -> Output {
    let start = "cd \"$0\"; run() { knotd -c knot.conf & pid=$!; }; ";
    let server = format!("{start}{server}");
    let quick = ["--names", "100", "--rounds", "1", "--seconds", "1", "--rate-seconds", "0.3"];
    Command::new(BENCH)
        .args(["compare", "--servers", "reflector"])
        .args(quick)
        .args(options)
        .arg("--out")
        .arg(folder.join("out"))
        .args(["--", "sh", "-c", &server])
        .arg(folder)
        .output()
        .unwrap()
}

fn error(done: &Output) -> String {
    String::from_utf8_lossy(&done.stderr).into_owned()
}

const GRID: [&str; 4] = ["--from", "1000", "--to", "1200"];

#[test]
fn a_server_that_answers_rightly_is_measured() {
    let folder = knot(|zone| zone);
    let done = compare(folder.path(), &[&GRID[..], &["--latency-rate", "1000"]].concat(), "run; wait");
    assert!(done.status.success(), "{}", error(&done));
    let csv = std::fs::read_to_string(folder.path().join("out/compare.csv")).unwrap();
    // the command has a name that is quoted
    for figure in ["lossless, answers/s", "peak, answers/s", "p50, us", "lost at that latency, %"] {
        assert_eq!(
            csv.lines().filter(|line| line.starts_with(&format!("\"{figure}\""))).count(),
            2,
            "{figure} in {csv}"
        );
    }
}

#[test]
fn wrong_answers_make_no_figure() {
    let folder = knot(|zone| zone.replace(" A ", " A 192.0.2.1 ; "));
    for options in [&GRID[..], &["--no-throughput", "--latency-rate", "1000"]] {
        let done = compare(folder.path(), options, "run; wait");
        let error = error(&done);
        assert!(!done.status.success() && error.contains("checked answers were wrong: {Answer: "), "{error}");
        assert!(!folder.path().join("out").exists(), "{error}");
    }
}

#[test]
fn a_server_that_ends_in_its_measurement_makes_no_figure() {
    let folder = knot(|zone| zone);
    // by what came to the interface the load has begun
    let ends = "run; until [ $(cat /sys/class/net/vs/statistics/rx_packets) -gt 150 ]; do sleep 0.02; done; kill -9 $pid; wait";
    for options in [&GRID[..], &["--no-throughput", "--latency-rate", "1000"]] {
        let done = compare(folder.path(), options, ends);
        let error = error(&done);
        assert!(!done.status.success() && error.contains("ended (exit status: "), "{error}");
        assert!(!folder.path().join("out").exists(), "{error}");
    }
}
