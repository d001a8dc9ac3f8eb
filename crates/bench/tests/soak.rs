//! The web's soak, some seconds of it, with the server of this workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

const BENCH: &str = env!("CARGO_BIN_EXE_simoom-bench");

/// The server, built as this test was: cargo names the programs of a test's own package only. Where the whole workspace is
/// tested it is there already.
fn simoom() -> PathBuf {
    let path = Path::new(BENCH).with_file_name("simoom");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--locked", "--quiet", "-p", "simoom", "--bin", "simoom"]);
    build.args(path.parent().filter(|folder| folder.ends_with("release")).map(|_| "--release"));
    let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap();
    assert!(built.success() && path.exists(), "no server at {}", path.display());
    path
}

#[test]
fn a_short_soak_of_the_web_server_finds_nothing() {
    lab::require_programs(&["ip", "ethtool"]);
    let out = tempfile::tempdir().unwrap();
    let mut soak = Command::new(BENCH);
    soak.args(["soak-web", "--seconds", "4", "--rate", "300", "--connections", "8", "--pages", "60", "--every", "0.5"]);
    let done = soak.arg("--simoom").arg(simoom()).arg("--out").arg(out.path()).output().unwrap();
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
