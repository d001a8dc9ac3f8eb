//! The soaks, some seconds of each, with the server of this workspace.

use std::process::Command;

const BENCH: &str = env!("CARGO_BIN_EXE_simoom-bench");

/// What a soak wrote.
struct Report {
    folder: tempfile::TempDir,
    rows: String,
}

impl Report {
    /// Of a soak with these arguments that found nothing; the report has the soak's name.
    fn of(args: &[&str]) -> Report {
        lab::require_programs(&["ip", "ethtool"]);
        let folder = tempfile::tempdir().unwrap();
        let mut soak = Command::new(BENCH);
        soak.args(args).arg("--simoom").arg(lab::program_beside(BENCH, "simoom")).arg("--out").arg(folder.path());
        let done = soak.output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{text}");
        let rows = std::fs::read_to_string(folder.path().join(args[0]).with_extension("csv")).unwrap();
        assert!(folder.path().join(args[0]).with_extension("md").exists());
        Report { folder, rows }
    }

    fn figure(&self, name: &str) -> u64 {
        let line = self.rows.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(','));
        line.and_then(|figure| figure.parse().ok())
            .unwrap_or_else(|| panic!("{name} in {} of {:?}", self.rows, self.folder))
    }
}

#[test]
fn a_short_soak_of_both_tiers_finds_nothing() {
    let report = Report::of(&[
        "soak",
        "--seconds",
        "4",
        "--rate",
        "2000",
        "--names",
        "500",
        "--every",
        "0.5",
        "--absent",
        "20",
        "--check-every",
        "1",
        "--options",
        "--driver-names 200",
    ]);
    for name in
        ["answers checked", "answered by the driver", "taken by AF_XDP", "reloads", "versions of the zone seen go by"]
    {
        assert!(report.figure(name) > 0, "{name} in {}", report.rows);
    }
}

#[test]
fn a_short_soak_of_the_web_server_finds_nothing() {
    let report = Report::of(&[
        "soak-web",
        "--seconds",
        "4",
        "--rate",
        "300",
        "--connections",
        "8",
        "--pages",
        "60",
        "--every",
        "0.5",
    ]);
    for name in
        ["answers of 206", "answers of 304", "clients gone away in the middle", "reloads", "versions seen go by"]
    {
        assert!(report.figure(name) > 0, "{name} in {}", report.rows);
    }
    // one that is due when every connection is busy, as just before the end, or while the load has no processor, is told as such
    let [sent, missed] =
        ["requests of the load", "requests due while every connection was busy"].map(|name| report.figure(name));
    assert!(sent > 0 && sent + missed == 1200, "{}", report.rows);
}
