//! Which directories are watched: each by itself, since one that may not be read must not end the watching of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Device and inode.
pub(super) type Identity = (u64, u64);

pub(super) fn identity(path: &Path) -> Option<Identity> {
    std::fs::metadata(path).ok().map(|is| (is.dev(), is.ino()))
}

/// Adds the directories of a tree. Links are followed below the root, as they are when it is served; what cannot be read ends there.
pub(super) fn add(root: &Path, into: &mut BTreeMap<PathBuf, Identity>) {
    // one that is not there is noticed by where it stands
    let (Some(is), Ok(real)) = (identity(root).filter(|_| root.is_dir()), root.canonicalize()) else { return };
    let mut seen = BTreeSet::new();
    let mut waiting = vec![(root.to_owned(), is)];
    while let Some((path, is)) = waiting.pop() {
        // also where links lead round in circles
        if !seen.insert(is) {
            continue;
        }
        let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
        let below = entries.map(|entry| entry.path()).filter(|path| is_directory_within(path, &real));
        waiting.extend(below.filter_map(|path| identity(&path).map(|is| (path, is))));
        into.insert(path, is);
    }
}

fn is_directory_within(path: &Path, root: &Path) -> bool {
    let Ok(is) = path.symlink_metadata() else { return false };
    is.is_dir() || (is.is_symlink() && path.is_dir() && path.canonicalize().is_ok_and(|real| real.starts_with(root)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_followed_below_the_root_and_not_in_circles() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("root/a/b")).unwrap();
        std::fs::create_dir_all(at("elsewhere/c")).unwrap();
        std::fs::write(at("root/a/file"), "").unwrap();
        for (to, name) in
            [("../elsewhere", "root/out"), ("..", "root/a/back"), ("none", "root/none"), ("a/file", "root/f")]
        {
            symlink(to, at(name)).unwrap();
        }
        let mut found = BTreeMap::new();
        add(&at("root"), &mut found);
        assert_eq!(found.into_keys().collect::<Vec<_>>(), ["root", "root/a", "root/a/b"].map(at));
        // a root may be a link, and a link within may be another name of what is there
        std::fs::create_dir(at("root/z")).unwrap();
        symlink("z", at("root/other")).unwrap();
        symlink("root", at("link")).unwrap();
        let mut found = BTreeMap::new();
        add(&at("link"), &mut found);
        assert_eq!(found.len(), 4, "{found:?}");
        add(&at("nowhere"), &mut found);
        add(&at("root/a/file"), &mut found);
        assert_eq!(found.len(), 4, "{found:?}");
    }
}
