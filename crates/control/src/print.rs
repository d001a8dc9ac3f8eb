//! What tells that a file is the same as before, without reading it.

use rustix::fs::Stat;
use std::fs::File;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Younger than this when read, a file may change again without a new time (the coarsest clock of usual file systems is
/// ext3's and FAT's, 1 and 2 s).
const FRESH_NS: i128 = 2_000_000_000;

/// A file as it was when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Print {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) bytes: u64,
    pub(crate) modified_ns: i128,
    /// of the inode: every change of the content moves it, whatever sets the other time back
    pub(crate) changed_ns: i128,
    /// written, or given another time, so shortly before that a later write could carry the same times
    pub(crate) fresh: bool,
}

impl Print {
    pub(crate) fn of(file: &File) -> io::Result<Print> {
        Ok(Print::of_stat(&rustix::fs::fstat(file)?))
    }

    pub(crate) fn of_stat(stat: &Stat) -> Print {
        let ns = |s: i64, ns: u64| i128::from(s) * 1_000_000_000 + i128::from(ns);
        let (modified_ns, changed_ns) = (ns(stat.st_mtime, stat.st_mtime_nsec), ns(stat.st_ctime, stat.st_ctime_nsec));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as i128);
        Print {
            device: stat.st_dev,
            inode: stat.st_ino,
            bytes: stat.st_size as u64,
            modified_ns,
            changed_ns,
            fresh: now - modified_ns.max(changed_ns) < FRESH_NS,
        }
    }

    /// How long until every later change of the content must carry another time of change.
    pub(crate) fn settles_in(&self) -> Duration {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as i128);
        // a clock that was set back does not make it longer
        let left = (FRESH_NS - (now - self.changed_ns)).clamp(0, FRESH_NS);
        Duration::from_nanos(left as u64)
    }

    /// Whether two looks showed the same, however young the file was.
    pub(crate) fn same(&self, other: &Print) -> bool {
        Print { fresh: false, ..*self } == Print { fresh: false, ..*other }
    }

    /// Whether a look now shows the same but for the time of change, which permissions, links and names move as writing does.
    pub(crate) fn is_touched(&self, now: &Print) -> bool {
        !self.same(now) && self.same(&Print { changed_ns: self.changed_ns, ..*now })
    }

    /// Whether a look now shows what this one showed, and a change in between would have been seen.
    pub(crate) fn still(&self, now: &Print) -> bool {
        !self.fresh && Print { fresh: false, ..*now } == *self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_whose_time_was_set_back_is_fresh_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let now_ns = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i128;
        // until the test was not held up in between
        let file = loop {
            std::fs::write(&path, "x").unwrap();
            let file = File::open(&path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
            let print = Print::of(&file).unwrap();
            assert!(print.changed_ns - print.modified_ns > 50_000_000_000, "{print:?}");
            if now_ns() - print.changed_ns < FRESH_NS {
                assert!(print.fresh && !print.still(&print), "{print:?}");
                break file;
            }
        };
        loop {
            let print = Print::of(&file).unwrap();
            if !print.fresh {
                assert!(now_ns() - print.changed_ns >= FRESH_NS && print.settles_in().is_zero(), "{print:?}");
                break;
            }
            std::thread::sleep(print.settles_in());
        }
    }
}
