//! The experiment with a compiler beside the server, some seconds of it, with the server of this workspace.

use std::process::Command;

const BENCH: &str = env!("CARGO_BIN_EXE_simoom-bench");

#[test]
fn a_compiler_beside_the_server_is_measured_on_both_engines() {
    lab::require_programs(&["ip", "ethtool", "taskset", "chrt", "gcc"]);
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return; // it says so, and measures nothing
    }
    let out = tempfile::tempdir().unwrap();
    let mut balance = Command::new(BENCH);
    balance.args(["experiment", "balance", "--rounds", "1", "--seconds", "4", "--warm-up", "0.8", "--rate", "500"]);
    balance.args(["--functions", "2", "--connections", "8", "--requests", "0", "--apart", "0"]);
    let done = balance
        .arg("--simoom")
        .arg(lab::program_beside(BENCH, "simoom"))
        .arg("--out")
        .arg(out.path())
        .output()
        .unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{text}");
    let rows = std::fs::read_to_string(out.path().join("balance.csv")).unwrap();
    // a heading, the compiler alone, four cases of each engine
    assert_eq!(rows.lines().count(), 1 + 1 + 2 * 4, "{rows}");
    for row in rows.lines().skip(2) {
        let cells: Vec<&str> = row.split(',').collect();
        assert!(cells[4].parse::<f64>().is_ok_and(|p50_us| p50_us > 0.0), "{row}");
        assert_eq!(cells[12].is_empty(), cells[3] == "no compiler", "{row}");
    }
    for name in ["balance.md", "balance.svg", "balance-2.svg"] {
        assert!(out.path().join(name).exists(), "{name}: {text}");
    }
}
