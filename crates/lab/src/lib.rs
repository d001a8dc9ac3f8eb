//! A laboratory for the tests: two hosts made of network namespaces (joined, or apart with a third between them), real DNS
//! servers beside ours, raw frames, captures, and the comparison of our DNS answers with those of NSD and Knot.
//!
//! Nothing here is part of the product. It needs root and Debian's packages (see [`require`]); a test that uses it fails
//! loudly where they are missing, it never skips. Everything a test starts ends with the value that holds it.
//!
//! ```no_run
//! use lab::{Host, Lab, compare, peers::ZoneFile};
//! use std::net::SocketAddr;
//!
//! lab::require();
//! let lab = Lab::new().unwrap();
//! let start = |host: &Host, zones: &[ZoneFile], address: SocketAddr| {
//!     let mut command = host.command("target/debug/simoom");
//!     command.args(["dns", "--interface", host.interface(), "--listen", &address.to_string()]);
//!     command.args(zones.iter().map(|zone| format!("{}={}", zone.origin, zone.path.display())));
//!     lab::Process::spawn(command)
//! };
//! compare::run(&lab, Some(&start), &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 5000).unwrap().check(500);
//! ```

#![forbid(unsafe_code)]

pub mod capture;
pub mod compare;
pub mod frame;
mod namespace;
pub mod nic;
pub mod peers;
mod process;
pub mod raw;
pub mod zonegen;

pub use namespace::{CLIENT_V4, CLIENT_V6, Host, Lab, MIDDLE, Options, SERVER_V4, SERVER_V6, Side};
pub use nic::{Nic, NicOptions, Pins};
pub use process::{Process, interrupt_by, patiently, uninterrupted, wait_until};

use std::path::{Path, PathBuf};
use std::process::Command;

/// The programs that tests may ask for and the Debian package that holds each.
const PACKAGES: [(&str, &str); 26] = [
    ("ab", "apache2-utils"),
    ("bpftool", "bpftool"),
    ("chromium", "chromium"),
    ("chrt", "util-linux"),
    ("curl", "curl"),
    ("dig", "dnsutils"),
    ("dnsperf", "dnsperf"),
    ("drill", "ldnsutils"),
    ("dumpcap", "tshark"),
    ("ethtool", "ethtool"),
    ("h2load", "nghttp2-client"),
    ("ip", "iproute2"),
    ("kdig", "knot-dnsutils"),
    ("knotd", "knot"),
    ("kxdpgun", "knot-dnsutils"),
    ("memcached", "memcached"),
    ("nginx", "nginx"),
    ("nsd", "nsd"),
    ("perf", "linux-perf"),
    ("ping", "iputils-ping"),
    ("setpriv", "util-linux"),
    ("strace", "strace"),
    ("taskset", "util-linux"),
    ("tshark", "tshark"),
    ("wget", "wget"),
    ("wrk", "wrk"),
];

/// Panics, naming the mend, unless this process is root and everything that this crate runs is installed.
pub fn require() {
    require_programs(&["ip", "ethtool", "dig", "dumpcap", "tshark", "nsd", "knotd"]);
}

/// As [`require`], for the named programs only.
pub fn require_programs(programs: &[&str]) {
    assert!(rustix::process::geteuid().is_root(), "the laboratory makes network namespaces: run the tests as root");
    if let Some(line) = missing(programs) {
        panic!("the laboratory misses programs; run: {line}");
    }
}

/// Whether the kernel tells what drivers do with XDP (Linux 6.3).
pub fn tells_of_drivers() -> bool {
    // lo, of index 1 in any namespace
    matches!(bpf::netdev::Features::of(1), Ok(Some(_)))
}

/// The apt line that installs what is missing of `programs`; for who would rather not panic.
pub fn missing(programs: &[&str]) -> Option<String> {
    let mut packages: Vec<&str> = programs
        .iter()
        .filter(|program| find_program(program).is_none())
        .map(|program| PACKAGES.iter().find(|(name, _)| name == program).map_or(*program, |(_, package)| package))
        .collect();
    packages.sort_unstable();
    packages.dedup();
    (!packages.is_empty()).then(|| format!("apt-get install -y {}", packages.join(" ")))
}

/// Where a program lies; daemons stand in directories that a user's PATH may lack.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// The program `name` of this workspace that belongs to the one at `path`: cargo names the programs of a test's own package only. Where the
/// whole workspace is tested it is there already; else it is built.
///
/// # Panics
/// If it cannot be.
pub fn program_beside(path: &str, name: &str) -> PathBuf {
    let program = Path::new(path).with_file_name(name);
    if !program.exists() {
        let mut build = Command::new("cargo");
        build.args(["build", "--locked", "--quiet", "-p", name, "--bin", name]);
        build.args(program.parent().filter(|folder| folder.ends_with("release")).map(|_| "--release"));
        let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        assert!(built.is_ok_and(|status| status.success()) && program.exists(), "no program at {}", program.display());
    }
    program
}

/// Copies a file that may be a program, by a process of its own: what is open for writing here another thread's child may have, too, and then
/// it cannot be run (ETXTBSY, execve(2)).
///
/// # Panics
/// If it cannot be.
pub fn copy_file(from: &Path, to: &Path) {
    let copied = Command::new("cp").args([from, to]).status();
    assert!(copied.is_ok_and(|status| status.success()), "{} is not copied to {}", from.display(), to.display());
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_the_packages_that_are_missing() {
        assert_eq!(super::missing(&["sh"]), None);
        assert_eq!(super::missing(&["sh", "no-such-program"]).unwrap(), "apt-get install -y no-such-program");
    }
}
