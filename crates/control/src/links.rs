//! Symbolic links on the way to a file.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, openat, readlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// How many a way may have, as the kernel has it.
pub(crate) const MOST: usize = 40;

/// One link on the way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// where it stands
    pub(crate) at: PathBuf,
    /// the whole way, gone by what the link says
    pub(crate) leads: PathBuf,
}

/// The first link on the way to an absolute path, the path itself included; None where there is none.
///
/// # Errors
/// It cannot be read.
pub(crate) fn first(path: &Path) -> io::Result<Option<Link>> {
    let mut above: Vec<&Path> = path.ancestors().collect();
    above.reverse();
    let Some(at) = above.into_iter().find(|at| at.is_symlink()) else { return Ok(None) };
    // what is absolute takes the place of all that is before it
    let target = at.parent().unwrap_or(Path::new("/")).join(std::fs::read_link(at)?);
    let rest = path.strip_prefix(at).map_err(io::Error::other)?;
    let leads = if rest.as_os_str().is_empty() { target } else { target.join(rest) };
    Ok(Some(Link { at: at.to_owned(), leads }))
}

/// A name in a folder that is open: whatever becomes of the names on the way to it, it is this folder's.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) folder: OwnedFd,
    pub(crate) name: OsString,
}

/// Where an absolute path leads by links of root's; those of others are refused, for who may put one there chooses what root opens. Each
/// name is looked up once, and what is found is judged and followed by its descriptor: links that change meanwhile change nothing.
///
/// # Errors
/// A link that is not root's, too many of them, or a folder that is not there.
pub(crate) fn by_roots(path: &Path) -> io::Result<Entry> {
    let mut way = Way::to(path)?;
    loop {
        let Some(name) = way.left.pop() else { return Err(Errno::ISDIR.into()) };
        let found = match open_as_it_is(way.folder.as_fd(), &name) {
            // it is made there
            Err(Errno::NOENT) if way.left.is_empty() => return Ok(Entry { folder: way.folder, name }),
            found => found?,
        };
        let is = fstat(&found)?;
        way.shown.push(&name);
        if FileType::from_raw_mode(is.st_mode) == FileType::Symlink {
            if is.st_uid != 0 {
                let why = format!("{} is a link that is not root's; give where it leads to", way.shown.display());
                return Err(io::Error::new(ErrorKind::PermissionDenied, why));
            }
            way.follow(found.as_fd())?;
        } else if way.left.is_empty() {
            return Ok(Entry { folder: way.folder, name });
        } else {
            way.folder = found;
        }
    }
}

/// The folder that `path` stands in, by links of root's, and its last name as it is.
///
/// # Errors
/// As for [`by_roots`].
pub(crate) fn folder_by_roots(path: &Path) -> io::Result<Entry> {
    let path = std::path::absolute(path)?;
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::ISDIR.into()) };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = match above.parent() {
        None => openat(CWD, above, flags, Mode::empty())?,
        Some(_) => {
            let Entry { folder, name } = by_roots(above)?;
            openat(folder, &name, flags, Mode::empty())?
        }
    };
    Ok(Entry { folder, name: name.to_owned() })
}

impl Entry {
    /// A way to it by the open folder, for calls that take paths alone; it leads there for as long as this value lives.
    pub(crate) fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.folder.as_raw_fd().to_string()).join(&self.name)
    }

    /// What has the name, whatever it is.
    pub(crate) fn open_as_it_is(&self) -> rustix::io::Result<OwnedFd> {
        open_as_it_is(self.folder.as_fd(), &self.name)
    }

    /// Takes the name away.
    pub(crate) fn remove(&self) -> rustix::io::Result<()> {
        rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty())
    }
}

fn open_as_it_is(folder: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    openat(folder, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// How far one has come.
struct Way {
    folder: OwnedFd,
    /// that folder's name, to be shown
    shown: PathBuf,
    /// names that are left, the next one last
    left: Vec<OsString>,
    links: usize,
}

impl Way {
    fn to(path: &Path) -> io::Result<Way> {
        let (folder, path) = (root()?, std::path::absolute(path)?);
        let mut way = Way { folder, shown: PathBuf::from("/"), left: Vec::new(), links: 0 };
        way.add(&path);
        Ok(way)
    }

    fn add(&mut self, path: &Path) {
        let names = path.components().rev().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
        self.left.extend(names.map(|part| part.as_os_str().to_owned()));
    }

    /// Goes on by what this link says, which is the last one shown.
    fn follow(&mut self, link: BorrowedFd<'_>) -> io::Result<()> {
        self.links += 1;
        if self.links > MOST {
            return Err(Errno::LOOP.into());
        }
        // the link itself, by its descriptor
        let target = readlinkat(link, "", Vec::new())?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        self.shown.pop();
        if target.is_absolute() {
            (self.folder, self.shown) = (root()?, PathBuf::from("/"));
        }
        self.add(target);
        Ok(())
    }
}

fn root() -> io::Result<OwnedFd> {
    Ok(openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_first_of_several_is_found_and_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(at.join("releases/1/htdocs")).unwrap();
        symlink("latest", at.join("current")).unwrap();
        symlink(at.join("releases/1"), at.join("latest")).unwrap();
        let next = |path: &Path| first(path).unwrap();
        let link = |name: &str, leads: &str| Some(Link { at: at.join(name), leads: at.join(leads) });
        assert_eq!(next(&at.join("current/htdocs/a")), link("current", "latest/htdocs/a"));
        assert_eq!(next(&at.join("latest/htdocs/a")), link("latest", "releases/1/htdocs/a"));
        assert_eq!(next(&at.join("latest")), link("latest", "releases/1"));
        assert_eq!(next(&at.join("releases/1/htdocs/none")), None);
    }
}
