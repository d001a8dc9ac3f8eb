//! Opening the log's file with privileges, for a server that gives them up.
//!
//! The folder belongs to the user that the server becomes, or the log could not be rotated. So whoever else runs as that user may put a
//! link where the file was, and root must not append what clients send to where it leads. Links on the way are followed where they are
//! root's, one by one, and what that comes to is opened without any.

use crate::links::{self, Link};
use crate::privileges::Identity;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Addresses of visitors are nobody else's business.
const MODE: u32 = 0o640;

/// The file, appended to, and whether it was made here; with `identity` by root for that user.
pub(super) fn open(path: &Path, identity: Option<&Identity>) -> io::Result<(File, bool)> {
    // devices are root's, and standard output is a link that is no path
    let Some(identity) = identity.filter(|_| !path.starts_with("/dev")) else {
        return open_as_we_are(path);
    };
    let (path, (uid, _)) = (resolve(&std::path::absolute(path)?)?, identity.ids());
    let opened = |flags: OFlags| -> io::Result<File> {
        let flags = flags | OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOCTTY;
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(MODE) } else { Mode::empty() };
        Ok(openat2(CWD, &path, flags, mode, ResolveFlags::NO_SYMLINKS)?.into())
    };
    match opened(OFlags::CREATE | OFlags::EXCL) {
        Ok(file) => return Ok((file, true)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let file = opened(OFlags::empty())?;
    let is = file.metadata()?;
    if is.is_file() && is.nlink() > 1 && is.uid() != uid {
        let why = "it is another name of a file that belongs to somebody else";
        return Err(io::Error::new(ErrorKind::PermissionDenied, why));
    }
    Ok((file, false))
}

/// The same without privileges that others lack.
pub(super) fn open_as_we_are(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.append(true).mode(MODE);
    match options.clone().create_new(true).open(path) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok((options.open(path)?, false)),
        Err(error) => Err(error),
    }
}

/// Where a path leads by links of root's; those of others are refused.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..links::MOST {
        let Some(Link { at, leads }) = links::first(&path)? else { return Ok(path) };
        if std::fs::symlink_metadata(&at)?.uid() != 0 {
            let why = format!("{} is a link that is not root's; give where it leads to", at.display());
            return Err(io::Error::new(ErrorKind::PermissionDenied, why));
        }
        path = leads;
    }
    Err(rustix::io::Errno::LOOP.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privileges::look_up;
    use std::os::unix::fs::{chown, lchown, symlink};

    const NOBODY: u32 = 65534;

    /// As root: a folder of nobody's with a file that only root may write beside it, and nobody.
    fn place() -> (tempfile::TempDir, PathBuf, PathBuf, Identity) {
        assert!(rustix::process::geteuid().is_root(), "this needs root, as the laboratory does");
        let folder = tempfile::tempdir().unwrap();
        let (theirs, ours) = (folder.path().join("theirs"), folder.path().join("ours"));
        std::fs::create_dir(&theirs).unwrap();
        chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
        std::fs::write(&ours, "secret\n").unwrap();
        let nobody = look_up(Some("65534"), Some("65534")).unwrap().unwrap();
        (folder, theirs, ours, nobody)
    }

    #[test]
    fn root_writes_no_file_for_a_user_by_way_of_the_users_links() {
        let (folder, theirs, ours, nobody) = place();
        let log = theirs.join("log");
        symlink(&ours, &log).unwrap();
        lchown(&log, Some(NOBODY), Some(NOBODY)).unwrap();
        let error = open(&log, Some(&nobody)).unwrap_err().to_string();
        assert_eq!(error, format!("{} is a link that is not root's; give where it leads to", log.display()));
        // a folder on the way
        let way = theirs.join("way");
        symlink(folder.path(), &way).unwrap();
        lchown(&way, Some(NOBODY), Some(NOBODY)).unwrap();
        assert!(open(&way.join("ours"), Some(&nobody)).is_err() && open(&way.join("new"), Some(&nobody)).is_err());
        // another name of it
        std::fs::remove_file(&log).unwrap();
        std::fs::hard_link(&ours, &log).unwrap();
        assert_eq!(open(&log, Some(&nobody)).unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(std::fs::read(&ours).unwrap(), b"secret\n");
        assert!(!folder.path().join("new").exists());
    }

    #[test]
    fn roots_links_lead_where_they_lead() {
        let (folder, theirs, _, nobody) = place();
        let (logs, current) = (folder.path().join("logs"), theirs.join("current"));
        symlink("theirs", &logs).unwrap();
        symlink("now", &current).unwrap();
        let (file, created) = open(&logs.join("current"), Some(&nobody)).unwrap();
        assert!(created && file.metadata().unwrap().mode() & 0o777 & !MODE == 0);
        assert!(theirs.join("now").is_file());
        assert!(!open(&logs.join("current"), Some(&nobody)).unwrap().1);
        // their own file with two names is theirs to give
        chown(theirs.join("now"), Some(NOBODY), Some(NOBODY)).unwrap();
        std::fs::hard_link(theirs.join("now"), theirs.join("also")).unwrap();
        assert!(!open(&theirs.join("also"), Some(&nobody)).unwrap().1);
        // round and round
        symlink("round", folder.path().join("round")).unwrap();
        assert!(open(&folder.path().join("round"), Some(&nobody)).is_err());
        assert!(!open(Path::new("/dev/null"), Some(&nobody)).unwrap().1);
    }
}
