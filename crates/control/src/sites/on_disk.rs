//! Files that are read while they are sent.
//!
//! Each reading opens the path anew, below the root, and looks at the file before and after: device, inode, size and both times
//! have to be those of the load. The time of change (ctime) moves with every write, and nobody can set it back, so the entity tag
//! that is made of these is a strong one. Two writes can only share a time while the file is young; such a file is waited for at
//! the load.

use super::budget::Budget;
use super::{ATTEMPTS, Found, Lines, Root, Tree, why};
use crate::error::reason;
use crate::print::Print;
use ::web::chunks::{Source, Unreadable};
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One version of a file.
pub(super) struct OnDisk {
    root: Arc<Root>,
    path: Vec<u8>,
    print: Print,
    /// the operator was told that it is gone
    told: AtomicBool,
}

impl OnDisk {
    pub(super) fn source(root: &Arc<Root>, found: &Found) -> Box<dyn Source> {
        let (root, path, print) = (root.clone(), found.path.clone(), found.print);
        Box::new(OnDisk { root, path, print, told: AtomicBool::new(false) })
    }

    /// Reads, or says in a few words why not.
    fn attempt(&self, at: u64, into: &mut [u8]) -> Result<(), String> {
        let changed = || "it is not what was loaded any more".to_owned();
        let cannot = |why: &dyn std::fmt::Display| format!("it cannot be read: {why}");
        let file = File::from(open(&self.root, &self.path).map_err(|error| cannot(&why(error)))?);
        let is_same = || Print::of(&file).is_ok_and(|print| print.same(&self.print));
        if !is_same() {
            return Err(changed());
        }
        match file.read_exact_at(into, at) {
            Ok(()) if is_same() => Ok(()),
            Ok(()) => Err(changed()),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(changed()),
            Err(error) => Err(cannot(&reason(&error))),
        }
    }
}

impl Source for OnDisk {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.attempt(at, into).map_err(|why| {
            if !self.told.swap(true, Ordering::Relaxed) {
                let named = self.root.named(&self.path);
                tracing::warn!(
                    "{named}: {why}; connections that are sent it are reset; reload to serve what is there now"
                );
            }
            Unreadable
        })
    }
}

/// Neither a FIFO nor a device that took the file's place may hold up who reads.
fn open(root: &Root, path: &[u8]) -> Result<OwnedFd, rustix::io::Errno> {
    root.open_below(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)
}

/// Sees to it that the files that are not held can be read, and that no later change could carry the times that were seen.
///
/// # Errors
/// Those that cannot be read, or do not hold still.
pub(super) fn settle(roots: &[Arc<Root>], tree: &mut Tree, budget: &Budget) -> Result<(), Vec<String>> {
    let mut unsettled: Vec<usize> = budget.over().collect();
    unsettled.sort_unstable();
    let mut errors = Lines(Vec::new(), 0);
    for attempt in 0.. {
        let wait = unsettled.iter().map(|at| tree.0[*at].print.settles_in()).max().unwrap_or_default();
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        unsettled.retain(|at| {
            let found = &mut tree.0[*at];
            let named = || roots[found.host].named(&found.path);
            let stat = open(&roots[found.host], &found.path).and_then(rustix::fs::fstat);
            let stat = match stat {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => stat,
                Ok(_) => {
                    errors.push(format!("{}: it is no file any more; reload again", named()));
                    return false;
                }
                Err(error) => {
                    errors.push(format!("{}: cannot be read: {}; make it readable", named(), why(error)));
                    return false;
                }
            };
            let print = Print::of_stat(&stat);
            if print.same(&found.print) {
                found.print = print;
                return false;
            }
            if attempt + 1 == ATTEMPTS {
                errors
                    .push(format!("{}: it changes while it is read; move it into place when it is complete", named()));
            }
            // its size may be another now, and memory was divided without knowing; that is little, and chunks do not need any
            found.print = print;
            true
        });
        if unsettled.is_empty() || attempt + 1 == ATTEMPTS {
            break;
        }
    }
    let errors = errors.finish("that cannot be read");
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
