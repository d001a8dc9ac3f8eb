//! Opening the log's file with privileges, for a server that gives them up.
//!
//! The folder belongs to the user that the server becomes, or the log could not be rotated. So whoever else runs as that user may put a
//! link where the file was, at any moment, and root must not append what clients send to where it leads. So the way is gone by
//! descriptors (`links`), and what is opened in the end is judged by its own: it is the user's file, or root's where root alone puts names.
//!
//! Nothing is waited for: a pipe that nobody reads is an error. What the operator names at the start may be a pipe or a device; what has
//! taken a file's place since may not.

use crate::links::{self, Entry};
use crate::privileges::Identity;
use rustix::fs::{Mode, OFlags, Stat, fcntl_getfl, fcntl_setfl, fstat, openat};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Addresses of visitors are nobody else's business.
const MODE: u32 = 0o640;

/// Opens a pipe at once or not at all, and no terminal as ours.
const UNAWAITED: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY);

/// Names of devices and of what is open already: folders of root's, with links that are no paths.
const DEVICES: [&str; 3] = ["/dev", "/dev/fd", "/dev/pts"];

/// The file, appended to, and whether it was made here; with `identity` by root for that user.
pub(super) fn open(path: &Path, identity: Option<&Identity>) -> io::Result<(File, bool)> {
    let is_device = path.parent().is_some_and(|folder| DEVICES.iter().any(|devices| folder == Path::new(devices)));
    let (file, created) = match identity.filter(|_| !is_device) {
        Some(identity) => open_for(identity, &links::by_roots(path)?),
        None => open_as_we_are(path),
    }
    .map_err(plainly)?;
    Ok((awaited(file)?, created))
}

/// The same file, whose reader, if it is slow, is waited for in writing: its lines would be lost otherwise.
fn awaited(file: File) -> io::Result<File> {
    fcntl_setfl(&file, fcntl_getfl(&file)? & !OFlags::NONBLOCK)?;
    Ok(file)
}

/// The file of that name, in place of one that was moved away: whoever may put names there must not have lines written to a pipe, nor to
/// a device.
pub(super) fn open_anew(path: &Path) -> io::Result<File> {
    let (file, _) = open_as_we_are(path).map_err(plainly)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    awaited(file)
}

/// The kernel calls a pipe without a reader a device that is not there.
fn plainly(error: io::Error) -> io::Error {
    match error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) {
        true => {
            io::Error::other("nobody reads it: a pipe's reader has to be there first, and a socket cannot be opened")
        }
        false => error,
    }
}

/// The file of this name for that user. What is there already and is somebody else's may have been given the name by the user.
fn open_for(identity: &Identity, Entry { folder, name }: &Entry) -> io::Result<(File, bool)> {
    let opened = |more: OFlags, mode: u32| {
        let flags = more | OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW | UNAWAITED;
        openat(folder, name, flags, Mode::from_raw_mode(mode))
    };
    match opened(OFlags::CREATE | OFlags::EXCL, MODE) {
        Ok(file) => return Ok((file.into(), true)),
        Err(error) if error == Errno::EXIST => {}
        Err(error) => return Err(error.into()),
    }
    let file = opened(OFlags::empty(), 0)?;
    let (uid, _) = identity.ids();
    if fstat(&file)?.st_uid != uid && !is_roots_alone(&fstat(folder)?) {
        let why = "it belongs to somebody else, in a folder where not only root gives names";
        return Err(io::Error::new(ErrorKind::PermissionDenied, why));
    }
    Ok((file.into(), false))
}

/// Whether nobody but root gives names in this folder.
fn is_roots_alone(folder: &Stat) -> bool {
    folder.st_uid == 0 && folder.st_mode & 0o022 == 0
}

/// The same without privileges that others lack.
fn open_as_we_are(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.append(true).mode(MODE).custom_flags(UNAWAITED.bits() as i32);
    match options.clone().create_new(true).open(path) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok((options.open(path)?, false)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privileges::look_up;
    use std::os::unix::fs::{MetadataExt, chown, lchown, symlink};
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, Ordering};

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

    /// A test that hangs instead ends, too.
    fn in_time<T: Send + 'static>(does: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, outcome) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(does()));
        outcome.recv_timeout(std::time::Duration::from_secs(20)).expect("an end")
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_not_waited_for() {
        let (_folder, theirs, _, nobody) = place();
        let log = theirs.join("log");
        rustix::fs::mknodat(rustix::fs::CWD, &log, rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        chown(&log, Some(NOBODY), Some(NOBODY)).unwrap();
        let nobody = std::sync::Arc::new(nobody);
        for identity in [None, Some(nobody.clone())] {
            let at = log.clone();
            let error = in_time(move || open(&at, identity.as_deref()).unwrap_err().to_string());
            assert!(error.starts_with("nobody reads it: "), "{error}");
        }
        let at = log.clone();
        assert!(in_time(move || open_anew(&at).unwrap_err().to_string()).starts_with("nobody reads it: "));
        // with a reader it is what the operator may name, written as one waits for it, and nothing that takes a file's place
        let reader = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&log).unwrap();
        for identity in [None, Some(&*nobody)] {
            let (file, created) = open(&log, identity).unwrap();
            assert!(!created && !fcntl_getfl(&file).unwrap().contains(OFlags::NONBLOCK));
        }
        assert_eq!(open_anew(&log).unwrap_err().to_string(), "it is no regular file");
        drop(reader);
        std::fs::remove_file(&log).unwrap();
        assert!(!fcntl_getfl(open_anew(&log).unwrap()).unwrap().contains(OFlags::NONBLOCK));
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
        // as it is given to them then
        chown(theirs.join("now"), Some(NOBODY), Some(NOBODY)).unwrap();
        assert!(!open(&logs.join("current"), Some(&nobody)).unwrap().1);
        // their own file with two names is theirs to give
        std::fs::hard_link(theirs.join("now"), theirs.join("also")).unwrap();
        assert!(!open(&theirs.join("also"), Some(&nobody)).unwrap().1);
        // round and round
        symlink("round", folder.path().join("round")).unwrap();
        assert!(open(&folder.path().join("round"), Some(&nobody)).is_err());
        assert!(!open(Path::new("/dev/null"), Some(&nobody)).unwrap().1);
    }

    #[test]
    fn roots_file_is_written_where_root_alone_gave_it_its_name() {
        let (folder, theirs, ours, nobody) = place();
        assert!(!open(&ours, Some(&nobody)).unwrap().1);
        // one that has no other name any more: the user has taken that away meanwhile
        std::fs::rename(&ours, theirs.join("log")).unwrap();
        let error = open(&theirs.join("log"), Some(&nobody)).unwrap_err().to_string();
        assert_eq!(error, "it belongs to somebody else, in a folder where not only root gives names");
        // nor one that others share with root
        std::fs::write(&ours, "").unwrap();
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
        assert!(open(&ours, Some(&nobody)).is_err());
    }

    /// The way goes by a name that is root's link and the user's in turn, as fast as one can exchange the two.
    #[test]
    fn links_that_are_exchanged_meanwhile_lead_root_nowhere_else() {
        let (folder, theirs, _, nobody) = place();
        let (log, other, secret) = (theirs.join("log"), theirs.join("other"), folder.path().join("new"));
        symlink("now", &log).unwrap();
        symlink(&secret, &other).unwrap();
        lchown(&other, Some(NOBODY), Some(NOBODY)).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (here, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
                while !done.load(Ordering::Relaxed) {
                    rustix::fs::renameat_with(here, &log, here, &other, flags).unwrap();
                }
            });
            let (mut by_root, mut refused) = (0, 0);
            let begun = std::time::Instant::now();
            // on, while who exchanges them has not been let run
            let goes_on =
                |n, by_root, refused| n < 20_000 || (by_root == 0 || refused == 0) && begun.elapsed().as_secs() < 60;
            while goes_on(by_root + refused, by_root, refused) {
                match open(&log, Some(&nobody)) {
                    Ok(_) => by_root += 1,
                    Err(_) => refused += 1,
                }
                let _ = std::fs::remove_file(theirs.join("now"));
            }
            done.store(true, Ordering::Relaxed);
            assert!(by_root > 0 && refused > 0, "{by_root} by root's link, {refused} refused");
        });
        assert!(!secret.exists(), "root has made the user a file");
    }
}
