//! The soaks, some seconds of each, with the server of this workspace.

use std::process::Command;

const BENCH: &str = env!("CARGO_BIN_EXE_simoom-bench");

#[test]
fn a_short_soak_of_both_tiers_finds_nothing() {
    lab::require_programs(&["ip", "ethtool"]);
    let out = tempfile::tempdir().unwrap();
    let mut soak = Command::new(BENCH);
    soak.args(["soak", "--seconds", "4", "--rate", "2000", "--names", "500", "--every", "0.5", "--absent", "20"]);
    soak.args(["--check-every", "1", "--options", "--driver-names 200"]);
    let done =
        soak.arg("--simoom").arg(lab::program_beside(BENCH, "simoom")).arg("--out").arg(out.path()).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{text}");
    let rows = std::fs::read_to_string(out.path().join("soak.csv")).unwrap();
    let figure = |name: &str| {
        let line = rows.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(','));
        line.and_then(|figure| figure.parse::<u64>().ok()).unwrap_or_else(|| panic!("{name} in {rows}"))
    };
    for name in
        ["answers checked", "answered by the driver", "taken by AF_XDP", "reloads", "versions of the zone seen go by"]
    {
        assert!(figure(name) > 0, "{name} in {rows}");
    }
}

#[test]
fn a_short_soak_of_the_web_server_finds_nothing() {
    lab::require_programs(&["ip", "ethtool"]);
    let out = tempfile::tempdir().unwrap();
    let mut soak = Command::new(BENCH);
    soak.args(["soak-web", "--seconds", "4", "--rate", "300", "--connections", "8", "--pages", "60", "--every", "0.5"]);
    let done =
        soak.arg("--simoom").arg(lab::program_beside(BENCH, "simoom")).arg("--out").arg(out.path()).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{text}");
    let rows = std::fs::read_to_string(out.path().join("soak-web.csv")).unwrap();
    let figure = |name: &str| {
        let line = rows.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(','));
        line.and_then(|figure| figure.parse::<u64>().ok()).unwrap_or_else(|| panic!("{name} in {rows}"))
    };
    for name in
        ["answers of 206", "answers of 304", "clients gone away in the middle", "reloads", "versions seen go by"]
    {
        assert!(figure(name) > 0, "{name} in {rows}");
    }
    assert_eq!(figure("requests of the load"), 1200, "{rows}");
    assert!(out.path().join("soak-web.md").exists());
}
