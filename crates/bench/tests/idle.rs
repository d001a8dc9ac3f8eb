//! What idle connections cost, in a process of its own: how much memory is resident says little beside other tests.

use std::process::Command;

#[test]
fn idle_connections_take_memory_each_less_than_1_kib_and_no_time() {
    let done = Command::new(env!("CARGO_BIN_EXE_simoom-bench")).args(["pipe-tcp", "idle"]).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{text}");
    let figure = |unit: &str| -> f64 {
        let told = text.lines().find_map(|line| line.strip_prefix("idle, 1000000 connections: ")?.split_once(unit));
        told.unwrap_or_else(|| panic!("no '{unit}' in {text}")).0.trim().parse().unwrap()
    };
    let resident = figure(" MiB resident");
    // less than a hundred bytes each, and they were not counted
    assert!(resident - figure(" MiB of them before the first connection") > 100.0 && resident < 1024.0, "{text}");
    assert!(figure(" s until the stack asks for a cycle") >= 60.0, "{text}");
    assert!(figure(" cycles asked for in an hour") < 3600.0, "{text}");
}
