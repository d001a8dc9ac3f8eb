//! The experiment with readers of datagrams, with few of them: what it writes, and that the dataplane has read everything.

use std::path::Path;
use std::process::{Command, Output};

const BENCH: &str = env!("CARGO_BIN_EXE_simoom-bench");

fn run(out: &Path, words: &[&str]) -> Output {
    Command::new(BENCH).args(["experiment", "udp-readers"]).args(words).arg("--out").arg(out).output().unwrap()
}

/// The rows of a CSV by their cells; none here has a quoted one.
fn rows(out: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(out.join("udp-readers.csv")).unwrap();
    text.lines().skip(1).map(|line| line.split(',').map(String::from).collect()).collect()
}

#[test]
fn every_way_of_reading_is_measured_and_compared_with_the_shared_socket() {
    lab::require_programs(&["ip"]);
    let out = tempfile::tempdir().unwrap();
    let few = ["--datagrams", "20000", "--sources", "64", "--readers", "1,2", "--seconds", "0.3", "--rounds", "1"];
    let done = run(out.path(), &few);
    let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{said}");
    let rows = rows(out.path());
    for batch in ["1", "64"] {
        for readers in ["1", "2"] {
            for (load, queue) in ["pre-filled", "live"].into_iter().flat_map(|load| {
                ["FIFO", "shared socket", "socket a core", "affinity", "dataplane"].map(|queue| (load, queue))
            }) {
                let is = |row: &&Vec<String>| row[..4] == [load, queue, batch, readers];
                let Some(row) = rows.iter().find(is) else {
                    assert!(queue == "FIFO" && (load == "live" || batch == "64"), "no {load} {queue}: {said}");
                    continue;
                };
                let figure =
                    |column: usize| row[column].parse::<f64>().unwrap_or_else(|_| panic!("{column} of {row:?}"));
                // datagrams a second, the ratio to the shared socket's, and processor time of each
                assert!([4, 7, 11].into_iter().all(|column| figure(column) > 0.0), "{row:?}: {said}");
                let lost = figure(10);
                assert!(if load == "live" { (0.0..=100.0).contains(&lost) } else { lost == 0.0 }, "{row:?}: {said}");
            }
        }
    }
    let page = std::fs::read_to_string(out.path().join("udp-readers.md")).unwrap();
    assert!(page.contains("*Dataplane* is threads of our own stack"), "{page}");
    let chart = std::fs::read_to_string(out.path().join("udp-readers.svg")).unwrap();
    assert!(chart.contains("dataplane"), "{chart}");
}

#[test]
fn ways_can_be_chosen_and_too_many_frames_are_refused() {
    let out = tempfile::tempdir().unwrap();
    let many = ["--datagrams", "2000000", "--queue", "shared,dataplane"];
    let done = run(out.path(), &many);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("--datagrams 2000000: the dataplane's wait in frames"), "{said}");
    let done = run(out.path(), &["--queue", "epoll"]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("fifo, shared, per-core, affinity, dataplane"), "{said}");

    lab::require_programs(&["ip"]);
    let few = ["--datagrams", "5000", "--readers", "2", "--batch", "16", "--seconds", "0.3", "--rounds", "1"];
    let done = run(out.path(), &[&few[..], &["--queue", "dataplane"]].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let rows = rows(out.path());
    let loads: Vec<_> = rows.iter().map(|row| (row[0].as_str(), row[1].as_str(), row[2].as_str())).collect();
    assert_eq!(loads, [("pre-filled", "dataplane", "16"), ("live", "dataplane", "16")]);
    // and with nothing to compare
    assert!(rows.iter().all(|row| row[7].is_empty() && row[8].is_empty()), "{rows:?}");
}
