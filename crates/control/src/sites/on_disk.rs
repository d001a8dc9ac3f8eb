//! Files that are read while they are sent.
//!
//! Each reading opens the path anew, below the root, and looks at the file before and after: device, inode, size and both times
//! have to be those of the load. The time of change (ctime) moves with every write, and nobody can set it back, so the entity tag
//! that is made of these is a strong one. Two writes can only share a time while the file is young; such a file is waited for at
//! the load. Permissions and links move that time as well: what is else as it was is looked at again soon, and served on as a version of its own
//! ([`super::with_touched`]).
//!
//! What only the moment denies, such as a descriptor while there is none, says nothing of the file: it is tried again for a while
//! before those who wait are turned away.

use super::budget::Budget;
use super::{ATTEMPTS, Found, Lack, Root, Said, Tree, Wrong};
use crate::error::reason;
use crate::print::Print;
use ::web::chunks::{Source, Unreadable};
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a reading is tried that the moment denies, and the rest in between: a second, in which nobody else could read either.
const TRIES: usize = 20;
const REST: Duration = Duration::from_millis(50);

/// One version of a file.
pub(super) struct OnDisk {
    root: Arc<Root>,
    path: Vec<u8>,
    print: Print,
    /// the operator was told that it cannot be read, and it could not since
    told: AtomicBool,
}

impl OnDisk {
    pub(super) fn source(root: &Arc<Root>, found: &Found) -> Box<dyn Source> {
        let (root, path, print) = (root.clone(), found.path.clone(), found.print);
        Box::new(OnDisk { root, path, print, told: AtomicBool::new(false) })
    }

    fn attempt(&self, at: u64, into: &mut [u8]) -> Result<(), Wrong> {
        let file = open(&self.root, &self.path).map_err(|error| Wrong::Io(error.into()))?;
        let file = File::from(file);
        let same = || {
            let now = Print::of(&file).map_err(Wrong::Io)?;
            match self.print.is_touched(&now) {
                true => Err(Wrong::Touched),
                false if self.print.same(&now) => Ok(()),
                false => Err(Wrong::Changed),
            }
        };
        same()?;
        file.read_exact_at(into, at).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Wrong::Changed,
            _ => Wrong::Io(error),
        })?;
        same()
    }

    /// Reads; `rest` is called before each further try.
    fn read_with_rests(&self, at: u64, into: &mut [u8], rest: &dyn Fn()) -> Result<(), Unreadable> {
        let mut outcome = self.attempt(at, into);
        for _ in 1..TRIES {
            match &outcome {
                Err(Wrong::Io(error)) if may_pass(error) => rest(),
                _ => break,
            }
            outcome = self.attempt(at, into);
        }
        let reload = "; reload to serve what is there now";
        let (what, mend) = match outcome {
            Ok(()) => {
                self.told.store(false, Ordering::Relaxed);
                return Ok(());
            }
            Err(Wrong::Changed) => ("it is not what was loaded any more".to_owned(), reload),
            Err(Wrong::Touched) => {
                self.root.touched.set();
                ("its permissions, links or names have changed".to_owned(), " until it is looked at again")
            }
            Err(Wrong::Io(error)) => {
                (format!("it cannot be read: {}", reason(&error)), if may_pass(&error) { "" } else { reload })
            }
        };
        if !self.told.swap(true, Ordering::Relaxed) {
            let named = self.root.named(&self.path);
            tracing::warn!("{named}: {what}; connections that are sent it are reset{mend}");
        }
        Err(Unreadable)
    }
}

impl Source for OnDisk {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.read_with_rests(at, into, &|| std::thread::sleep(REST))
    }
}

/// Whether an error is of the moment and not of the file.
fn may_pass(error: &io::Error) -> bool {
    use Errno as E;
    matches!(Errno::from_io_error(error), Some(E::MFILE | E::NFILE | E::NOMEM | E::INTR | E::AGAIN))
}

/// Neither a FIFO nor a device that took the file's place may hold up who reads.
fn open(root: &Root, path: &[u8]) -> Result<OwnedFd, rustix::io::Errno> {
    root.open_below(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)
}

/// Sees to it that the files that are not held can be read, and that no later change could carry the times that were seen. Those that
/// cannot be had, or do not hold still, are left out.
pub(super) fn settle(roots: &[Arc<Root>], tree: &mut Tree, budget: &Budget, said: &mut Said<'_>) {
    let mut unsettled: Vec<usize> = budget.over().collect();
    unsettled.sort_unstable();
    for attempt in 0..ATTEMPTS {
        let wait = unsettled.iter().map(|at| tree.0[*at].print.settles_in()).max().unwrap_or_default();
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        unsettled.retain(|at| {
            let found = &mut tree.0[*at];
            let root = &roots[found.host];
            let print = match look(root, &found.path) {
                Ok(print) => print,
                Err(lack) => {
                    said.leave_out(root, found, lack);
                    return false;
                }
            };
            // its size may be another now, and memory was divided without knowing; that is little, and chunks do not need any
            let same = print.same(&found.print);
            found.print = print;
            if !same && attempt + 1 == ATTEMPTS {
                said.leave_out(root, found, Lack::Changes);
            }
            !same
        });
        if unsettled.is_empty() {
            break;
        }
    }
}

/// A file as it is now, if it can be read.
pub(super) fn look(root: &Root, path: &[u8]) -> Result<Print, Lack> {
    match open(root, path).and_then(rustix::fs::fstat) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => Ok(Print::of_stat(&stat)),
        // something else stands there now, as with files that are held
        Ok(_) => Err(Lack::Vanished),
        Err(error) => Err(Lack::of(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Touched;
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::cell::Cell;
    use std::os::fd::AsRawFd;
    use std::process::Command;

    /// In a process of its own, since the bound is the whole process's.
    #[test]
    fn a_reading_waits_while_there_is_no_descriptor() {
        const ALONE: &str = "SIMOOM_TEST_ALONE";
        if std::env::var_os(ALONE).is_some() {
            return without_descriptors();
        }
        let test = "sites::on_disk::tests::a_reading_waits_while_there_is_no_descriptor";
        let child = Command::new(std::env::current_exe().unwrap()).args(["--exact", test]).env(ALONE, "1").output();
        let output = child.unwrap();
        let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }

    fn without_descriptors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "what stands in it").unwrap();
        let root = Arc::new(Root {
            fd: File::open(folder.path()).unwrap().into(),
            shown: "root".to_owned(),
            touched: Touched::default(),
        });
        let print = Print::of(&File::open(&path).unwrap()).unwrap();
        let file = OnDisk { root, path: b"/file".to_vec(), print, told: AtomicBool::new(false) };
        let rests = Cell::new(0);
        let read = |rest: &dyn Fn()| {
            let mut bytes = [0; 4];
            rests.set(0);
            let counted = || {
                rests.set(rests.get() + 1);
                rest();
            };
            let outcome = file.read_with_rests(5, &mut bytes, &counted).map(|()| bytes);
            (outcome, rests.get(), file.told.load(Ordering::Relaxed))
        };
        assert_eq!(read(&|| {}), (Ok(*b"stan"), 0, false));
        // the number that the next descriptor would have
        let free = u64::try_from(File::open(&path).unwrap().as_raw_fd()).unwrap();
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(free), maximum: before.maximum }).unwrap();
        assert_eq!(read(&|| {}), (Err(Unreadable), TRIES - 1, true));
        let third = || {
            if rests.get() == 3 {
                setrlimit(Resource::Nofile, before).unwrap();
            }
        };
        // and what passed is not held against the file
        assert_eq!(read(&third), (Ok(*b"stan"), 3, false));
        // what is of the file is not waited for
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read(&|| {}), (Err(Unreadable), 0, true));
    }
}
