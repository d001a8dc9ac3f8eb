//! Of which commit the programs say that they are: what their build script finds in trees with and without a repository.

#[allow(dead_code, reason = "its main is for cargo")]
#[path = "../../../scripts/commit.rs"]
mod commit;

use std::path::Path;
use std::process::Command;

fn git(root: &Path, args: &[&str]) -> String {
    let who = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"];
    let mut command = Command::new("git");
    // of a hook that runs this
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(name);
    }
    let done = command.arg("-C").arg(root).args(who).args(args).output().expect("git; install it");
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

#[test]
fn a_commit_is_told_with_what_differs_of_the_sources_alone() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let put = |name: &str, text: &str| {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    ["Cargo.toml", "crates/a/src/deep/x.rs", "docs/y.md"].iter().for_each(|name| put(name, "1"));
    assert_eq!(commit::commit(root), None, "a tree without a repository");
    git(root, &["init", "-q", "-b", "main"]);
    assert_eq!(commit::commit(root), None, "a repository without a commit");
    git(root, &["add", "-A"]);
    git(root, &["commit", "-qm", "1"]);
    let first = git(root, &["rev-parse", "HEAD"])[..12].to_owned();
    assert_eq!(commit::commit(root), Some(first.clone()));
    // results and new files that nothing is made of
    put("docs/y.md", "2");
    put("crates/a/notes", "2");
    assert_eq!(commit::commit(root), Some(first.clone()));
    put("crates/a/src/deep/x.rs", "2");
    assert_eq!(commit::commit(root), Some(first.clone() + "+"));
    let before = commit::watched(root);
    assert!(before.iter().all(|path| path.exists()), "{before:?}");
    let log = root.join(".git/logs/HEAD");
    assert!(before.contains(&log) && before.contains(&root.join("crates/a/src")), "{before:?}");
    let told = std::fs::read(&log).unwrap();
    git(root, &["commit", "-qam", "2"]);
    let second = git(root, &["rev-parse", "HEAD"])[..12].to_owned();
    assert!(first != second && std::fs::read(&log).unwrap() != told, "HEAD's log says that it moved");
    assert_eq!(commit::commit(root), Some(second.clone()));
    // in a worktree, where .git is a file
    let beside = folder.path().join("beside");
    git(root, &["worktree", "add", "-q", "--detach", beside.to_str().unwrap()]);
    assert_eq!(commit::commit(&beside), Some(second));
    assert!(commit::watched(&beside).iter().any(|path| path.ends_with("worktrees/beside/logs/HEAD")));
    // what lies in somebody else's repository is none of its commits
    assert_eq!(commit::commit(&root.join("crates/a")), None);
}

#[test]
fn the_program_tells_its_commit() {
    let done = Command::new(env!("CARGO_BIN_EXE_simoom-bench")).arg("--version").output().unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    let own = said.trim().strip_prefix(concat!("simoom-bench ", env!("CARGO_PKG_VERSION"), " (commit "));
    let own = own.and_then(|rest| rest.strip_suffix(')')).unwrap_or_else(|| panic!("{said}"));
    assert!(own == "unknown" || own.trim_end_matches('+').len() >= 7, "{said}");
}
