//! Build script of `simoom` and `simoom-bench`: of which commit the program is, as the variable SIMOOM_COMMIT of its compilation. Twelve
//! digits, and a `+` where files that it is made of differ from the commit; `unknown` of a tree without a repository, unless the
//! environment has SIMOOM_COMMIT.
//!
//! It runs again when HEAD moves or a source changes, so that a build by another commit says so: these two programs' own crates are
//! compiled then, and nothing else.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What programs are made of, as git names it.
const SOURCES: [&str; 5] =
    [":(glob)crates/*/src/**", ":(glob)crates/*/Cargo.toml", ":(glob)crates/*/build.rs", "Cargo.toml", "Cargo.lock"];

fn main() {
    println!("cargo::rerun-if-env-changed=SIMOOM_COMMIT");
    let given = std::env::var("SIMOOM_COMMIT").ok().filter(|text| !text.trim().is_empty());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // also where there is none yet, or git cannot tell it: that may change
    watched(&root).iter().for_each(|path| println!("cargo::rerun-if-changed={}", path.display()));
    let commit = given.or_else(|| commit(&root));
    println!("cargo::rustc-env=SIMOOM_COMMIT={}", commit.as_deref().unwrap_or("unknown").trim());
}

/// The commit of the repository whose top is `root`, `+` where sources differ from it. None without one: a folder of somebody else's
/// repository is none.
pub(crate) fn commit(root: &Path) -> Option<String> {
    let top = git(root, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    let commit = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    let status = ["status", "--porcelain", "--untracked-files=no", "--"];
    let changed = git(root, &[&status[..], &SOURCES].concat())?;
    Some(if changed.is_empty() { commit } else { commit + "+" })
}

/// Files and folders that say when the commit may be another one. The log of HEAD grows whenever it moves; where none is kept, HEAD names a
/// file that changes.
pub(crate) fn watched(root: &Path) -> Vec<PathBuf> {
    let head = git(root, &["symbolic-ref", "--quiet", "HEAD"]);
    let names = ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(head.as_deref());
    let paths = names.filter_map(|name| git(root, &["rev-parse", "--git-path", name])).map(|path| root.join(path));
    let crates = std::fs::read_dir(root.join("crates")).into_iter().flatten().flatten().map(|entry| entry.path());
    let crates = crates.flat_map(|path| ["src", "Cargo.toml", "build.rs"].map(|name| path.join(name)));
    let paths = paths.chain(crates).chain(["Cargo.toml", "Cargo.lock"].map(|name| root.join(name)));
    // one that is missing would have this run each time
    paths.filter(|path| path.exists()).collect()
}

/// What git says in `root`, whatever repository a hook that builds was run by.
fn git(root: &Path, args: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(name);
    }
    // whoever only looks must not write the index
    let done = command.arg("--no-optional-locks").arg("-C").arg(root).args(args);
    let done = done.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).trim().to_owned())
}
