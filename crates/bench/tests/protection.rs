//! `simoom-bench protection --hostile`: that a hostile application which is gone is not taken for one that takes nothing.

use lab::Process;
use std::process::Command;
use std::time::Duration;

const BENCH: &str = env!("CARGO_BIN_EXE_simoom-bench");
const PATIENCE: Duration = Duration::from_secs(60);

/// The fields of /proc/PID/stat behind the name: the state, the parent.
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn children(parent: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter(|pid| stat(*pid).is_some_and(|(_, of)| of == parent)).collect()
}

#[test]
fn a_round_beside_nobody_is_an_error() {
    let out = tempfile::tempdir().unwrap();
    let mut command = Command::new(BENCH);
    command.args(["protection", "--hostile", "120", "--rounds", "5", "--app-cpu", "1", "--hostile-cpu", "1"]);
    command.arg("--out").arg(out.path());
    let mut bench = Process::spawn(command).unwrap();
    let parent = bench.id();
    bench.wait_until(|| !children(parent).is_empty(), PATIENCE).unwrap();
    let foe = children(parent)[0];
    // it stands still but in its slices: behind the first it has been refused something
    for stands in [true, false, true] {
        bench.wait_until(|| stat(foe).is_none_or(|(state, _)| (state == 'T') == stands), PATIENCE).unwrap();
    }
    assert!(Command::new("kill").args(["-9", &foe.to_string()]).status().unwrap().success());
    let status = bench.wait(PATIENCE).unwrap();
    let log = bench.log();
    assert!(!status.success() && log.contains("the hostile application: the other process ended: "), "{log}");
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0, "{log}");
}
