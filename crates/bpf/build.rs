//! Compiles the eBPF programs with clang.

use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGES: &str = "apt-get install clang llvm libbpf-dev linux-libc-dev";

/// What programs include; each is src/NAME.bpf.h.
const HEADERS: &[&str] = &["answer", "below", "cookie", "entries", "filter", "question", "toeplitz"];

/// Each is src/NAME.bpf.c.
const PROGRAMS: &[&str] = &["nic", "reflect", "reuseport", "steering"];

fn main() {
    println!("cargo::rerun-if-env-changed=CLANG");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    HEADERS.iter().for_each(|header| println!("cargo::rerun-if-changed=src/{header}.bpf.h"));
    for name in PROGRAMS {
        let source = PathBuf::from(format!("src/{name}.bpf.c"));
        println!("cargo::rerun-if-changed={}", source.display());
        if let Err(why) = compile(&source, &out.join(format!("{name}.bpf.o"))) {
            println!("cargo::error={why}");
            return;
        }
    }
}

fn compile(source: &Path, object: &Path) -> Result<(), String> {
    let clang = std::env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    for header in ["/usr/include/bpf/bpf_helpers.h", "/usr/include/linux/bpf.h"] {
        if !Path::new(header).exists() {
            return Err(format!("the eBPF programs need {header}: {PACKAGES}"));
        }
    }
    let made = Command::new(&clang)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror"])
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|e| format!("the eBPF programs need clang, which did not start ({e}): {PACKAGES}"))?;
    if made.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&made.stderr).replace('\n', " | ");
    Err(format!("clang refused {} ({PACKAGES}, if a header is missing): {said}", source.display()))
}
