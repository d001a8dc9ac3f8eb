//! Which directories a server goes on to use, from its settings.
//!
//! Files are replaced by others of their name, and roots by links that are set to another release, so what is allowed is
//! - the directory that a file stands in, by its name and where that leads to, the configuration file's too;
//! - a root, and the directory that it stands in;
//! - for each link on the way to either, the directory of what it leads to, with what else is in there.
//!
//! Directories at the first level (/srv, /var, /home) hold too much to be allowed for such a reason: a root /srv/www is allowed, and not
//! the rest of /srv, and of a file there the file alone. There, a root or a file that is moved away and replaced needs a start.

use super::{reading, writing};
use crate::config::Settings;
use landlock::{AccessFs, BitFlags};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// What is read beside: the thread's own figures, the machine's memory and that of our control group, and randomness.
const SYSTEM: [&str; 6] = [
    "/proc/self",
    "/proc/meminfo",
    "/proc/sys/vm/overcommit_memory",
    "/sys/fs/cgroup",
    "/sys/devices/system/cpu",
    "/dev/urandom",
];

/// Paths as they really are, and what may be done beneath them.
#[derive(Debug, Default)]
pub(super) struct Allowed(BTreeMap<PathBuf, BitFlags<AccessFs>>);

impl Allowed {
    pub(super) fn of<'a>(
        settings: &'a Settings,
        files: impl Iterator<Item = &'a str>,
        control: Option<&Path>,
    ) -> Allowed {
        let mut allowed = Allowed::default();
        for path in SYSTEM {
            allowed.add(PathBuf::from(path), reading());
        }
        if let Some(file) = &settings.file {
            allowed.file(Path::new(file), reading());
        }
        let dns = settings.dns.iter();
        let named = dns.flat_map(|dns| dns.zones.iter().map(|zone| &zone.file).chain(&dns.cookie_secret));
        for file in named.map(String::as_str).chain(files) {
            allowed.file(Path::new(file), reading());
        }
        if let Some(web) = &settings.web {
            for host in &web.hosts {
                allowed.root(&host.root);
            }
            if let Some(log) = web.access_log.as_ref().and_then(|log| log.path.as_ref()) {
                allowed.file(log, writing());
            }
        }
        // its socket goes at the end
        if let Some(folder) = control.and_then(real_folder) {
            allowed.add(folder, AccessFs::RemoveFile.into());
        }
        allowed
    }

    /// The paths with their rights.
    pub(super) fn rights(&self) -> impl Iterator<Item = (&Path, BitFlags<AccessFs>)> {
        self.0.iter().map(|(path, rights)| (path.as_path(), *rights))
    }

    /// What may be read or written beneath.
    pub(super) fn bounds(&self) -> Vec<PathBuf> {
        self.rights()
            .filter(|(_, rights)| rights.intersects(reading() | writing()))
            .map(|(path, _)| path.into())
            .collect()
    }

    pub(super) fn add(&mut self, path: PathBuf, rights: BitFlags<AccessFs>) {
        *self.0.entry(path).or_default() |= rights;
    }

    /// A file that may be replaced.
    fn file(&mut self, path: &Path, rights: BitFlags<AccessFs>) {
        self.links(path, rights);
        let Ok(real) = path.canonicalize() else {
            // it is made anew
            if let Some(folder) = real_folder(path).filter(|folder| is_narrow(folder)) {
                self.add(folder, rights);
            }
            return;
        };
        // a terminal or a pipe has no successor, and /dev is not ours
        if !real.is_file() {
            return self.add(real, rights);
        }
        for folder in [real_folder(path), real_folder(&real)].into_iter().flatten() {
            self.add(if is_narrow(&folder) { folder } else { real.clone() }, rights);
        }
    }

    /// A directory that may be replaced, or be a link to others.
    fn root(&mut self, path: &Path) {
        self.links(path, reading());
        let real = path.canonicalize();
        let within = real_folder(path).filter(|folder| is_narrow(folder));
        for path in real.into_iter().chain(within) {
            self.add(path, reading());
        }
    }

    /// What the links on the way to `path` may be set to later.
    fn links(&mut self, path: &Path, rights: BitFlags<AccessFs>) {
        let Ok(whole) = std::path::absolute(path) else { return };
        let links = whole.ancestors().filter(|at| at.is_symlink());
        let beside = links.filter_map(|link| link.canonicalize().ok()?.parent().map(Path::to_owned));
        for folder in beside.filter(|folder| is_narrow(folder)).collect::<Vec<_>>() {
            self.add(folder, rights);
        }
    }
}

/// The directory that `path` stands in, without links.
fn real_folder(path: &Path) -> Option<PathBuf> {
    std::path::absolute(path).ok()?.parent()?.canonicalize().ok()
}

fn is_narrow(folder: &Path) -> bool {
    folder.components().filter(|part| matches!(part, Component::Normal(_))).count() > 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn allows(allowed: &Allowed, path: &Path, rights: BitFlags<AccessFs>) -> bool {
        let path = path.canonicalize().unwrap();
        path.ancestors().any(|at| allowed.0.get(at).is_some_and(|found| found.contains(rights)))
    }

    /// zones/, releases/1, releases/2, current -> releases/1, logs/, elsewhere/
    fn place() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().canonicalize().unwrap();
        for name in ["a/zones", "b/releases/1/htdocs", "b/releases/2/htdocs", "c/logs", "d/elsewhere"] {
            std::fs::create_dir_all(at.join(name)).unwrap();
        }
        symlink("releases/1", at.join("b/current")).unwrap();
        (folder, at)
    }

    #[test]
    fn files_and_roots_may_be_replaced_and_links_set_anew() {
        let (_folder, at) = place();
        let zone = at.join("a/zones/z");
        std::fs::write(&zone, "").unwrap();
        let text = format!(
            "[[dns.zone]]\nfile = \"{}\"\n[web]\nroot = \"{}\"\naccess-log = \"{}\"\n",
            zone.display(),
            at.join("b/current/htdocs").display(),
            at.join("c/logs/access.log").display()
        );
        let settings = crate::config::from_text("s.toml", &text).unwrap();
        let control = at.join("control");
        let allowed = Allowed::of(&settings, std::iter::empty(), Some(&control));
        for path in ["a/zones", "b/releases/1/htdocs", "b/releases/2/htdocs"] {
            assert!(allows(&allowed, &at.join(path), reading()), "{path}: {allowed:?}");
            assert!(!allows(&allowed, &at.join(path), AccessFs::WriteFile.into()), "{path}: {allowed:?}");
        }
        assert!(allows(&allowed, &at.join("c/logs"), writing()));
        assert!(!allows(&allowed, &at.join("c/logs"), AccessFs::ReadFile.into()));
        assert!(allows(&allowed, &at, AccessFs::RemoveFile.into()));
        for path in ["d/elsewhere", "d", "."] {
            assert!(!allows(&allowed, &at.join(path), AccessFs::ReadFile.into()), "{path}: {allowed:?}");
        }
        // the socket may be removed beneath it, which is no reason to say that a file there could be read
        assert!(!allowed.bounds().contains(&at));
    }

    #[test]
    fn what_is_broad_is_not_allowed_for_the_sake_of_a_neighbour() {
        let mut allowed = Allowed::default();
        allowed.root(Path::new("/usr/share"));
        assert_eq!(allowed.0.into_keys().collect::<Vec<_>>(), [Path::new("/usr/share")]);
        let mut allowed = Allowed::default();
        allowed.file(Path::new("/dev/null"), writing());
        assert_eq!(allowed.0.into_keys().collect::<Vec<_>>(), [Path::new("/dev/null")]);
        // a file at the first level, by its name and by a link to it
        let file = tempfile::NamedTempFile::new_in("/tmp").unwrap();
        let file = file.path().canonicalize().unwrap();
        let (_folder, at) = place();
        symlink(&file, at.join("a/zones/link")).unwrap();
        for (named, all) in
            [(&file, vec![file.clone()]), (&at.join("a/zones/link"), vec![file.clone(), at.join("a/zones")])]
        {
            let mut allowed = Allowed::default();
            allowed.file(named, reading());
            assert!(all.iter().all(|path| allowed.0.contains_key(path)) && allowed.0.len() == all.len(), "{allowed:?}");
        }
        let mut allowed = Allowed::default();
        allowed.file(Path::new("/tmp/nothing of this name"), writing());
        assert!(allowed.0.is_empty(), "{allowed:?}");
    }

    #[test]
    fn a_file_that_was_included_is_one_that_may_be_replaced() {
        let (_folder, at) = place();
        let file = at.join("d/elsewhere/more");
        std::fs::write(&file, "").unwrap();
        let settings = crate::config::from_text("s.toml", "[echo]\n").unwrap();
        let allowed = Allowed::of(&settings, [file.to_str().unwrap()].into_iter(), None);
        assert!(allows(&allowed, &at.join("d/elsewhere"), reading()));
        assert!(!allows(&allowed, &at.join("a/zones"), reading()));
    }
}
