//! Reloads when something below the served directories changes (`--watch`).
//!
//! A change is taken when nothing more has changed for the settle time, or after a while all the same, so a tree that never rests
//! is reloaded now and then. Whatever comes in between is one change: events are not counted, and none is queued behind another.
//! Directories are watched each by itself, and those that are new from the reload on that their making begins: they are watched before that reads
//! them, so nothing is missed in between.
//!
//! After a reload the thread rests for several times as long as that took, so a storm of changes costs a bounded share of the
//! machine; so does the thread that compresses what has changed (`reload::passes`). A root that is replaced, such as a link that is set to another release, is watched anew; the directories in which it and the
//! links on the way to it stand tell of that, and where they do not, a look once a minute.
//!
//! What is reloaded, and what is said of it, is decided where every other reload is.

mod directories;

use crate::config::{HostSpec, Web};
use crate::error::Error;
use crate::links::{self, Link};
use crate::serve::Event;
use ::notify::event::ModifyKind;
use ::notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use directories::{Identity, identity};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Changes that go on for so long are taken without a rest.
const RESTLESS: Duration = Duration::from_secs(10);
/// A reload's time is at most one in so many, and that of the compressing that changes bring about.
pub(crate) const SHARE: u32 = 5;
/// So often it is looked whether roots are what they were, if nothing tells.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Of more paths that have gone it is not remembered which.
const GONE_MOST: usize = 10_000;

/// The directories that are watched.
pub(crate) struct Watch {
    watcher: RecommendedWatcher,
    /// and which directories they were when they were looked at
    roots: BTreeMap<PathBuf, Option<Identity>>,
    /// what is watched, and which directories these were when that began: those of the roots' trees, and those in which roots and links to
    /// them stand
    watched: BTreeMap<PathBuf, Identity>,
    /// those that cannot be, which is said once
    unwatched: BTreeSet<PathBuf>,
    counted: Arc<Counted>,
    next: Roots,
    changes: Receiver<()>,
    settle: Duration,
}

/// Whoever reloads has other directories watched here.
#[derive(Clone, Debug)]
pub(crate) struct Roots {
    /// until they are watched
    next: Arc<Mutex<Option<Vec<PathBuf>>>>,
    told: SyncSender<()>,
}

impl Roots {
    /// These from now on. Their content was read already; what has changed until they are watched is found by the reload that follows.
    pub(crate) fn set(&self, hosts: &[HostSpec]) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(paths(hosts));
        // one that waits stands for all
        let _ = self.told.try_send(());
    }

    fn take(&self) -> Option<Vec<PathBuf>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The directories of these hosts, as the watcher names them.
fn paths(hosts: &[HostSpec]) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = hosts.iter().map(|host| absolute(&host.root)).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Which events are changes.
#[derive(Default)]
struct Counted {
    roots: Mutex<Vec<PathBuf>>,
    /// roots, and the links that they are reached by
    points: Mutex<Vec<PathBuf>>,
    /// what was removed or renamed: no directory there, or below, is watched any more, whatever stands there by now
    gone: Mutex<BTreeSet<PathBuf>>,
    /// some were missed: what is watched is not all that there is
    missed: AtomicBool,
}

impl Counted {
    fn note_gone(&self, paths: &[PathBuf]) {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.extend(paths.iter().cloned());
        if gone.len() > GONE_MOST {
            gone.clear();
            self.missed.store(true, Ordering::Release);
        }
    }

    fn take_gone(&self) -> BTreeSet<PathBuf> {
        std::mem::take(&mut *self.gone.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn counts(&self, path: &Path) -> bool {
        // neighbours of a root are nothing to us
        self.roots.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|root| path.starts_with(root))
            || self.points.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|point| point == path)
    }
}

/// A root, the directory that it stands in, and the links on the way to it: what stands in their places decides what the root is.
fn points(root: &Path) -> Vec<PathBuf> {
    let (mut points, mut path) = (vec![root.to_owned()], root.to_owned());
    // without the directory that it stands in there is nothing to replace it by
    points.extend(root.parent().filter(|parent| parent.parent().is_some()).map(Path::to_owned));
    for _ in 0..links::MOST {
        let Ok(Some(Link { at, leads })) = links::first(&path) else { break };
        points.push(at);
        path = leads;
    }
    points
}

/// Begins to watch, if the settings want it.
///
/// # Errors
/// What the kernel refuses.
pub(crate) fn begin(web: &Web) -> Result<Option<Watch>, Error> {
    let Some(settle_ms) = web.watch_settle_ms else { return Ok(None) };
    let (told, changes) = mpsc::sync_channel(1);
    let paths = paths(&web.hosts);
    let counted = Arc::new(Counted { roots: Mutex::new(paths.clone()), ..Counted::default() });
    let next = Roots { next: Arc::default(), told: told.clone() };
    let watcher = watcher(told, counted.clone()).map_err(|error| refused("--watch", &error))?;
    let roots = paths.into_iter().map(|path| (path, None)).collect();
    let settle = Duration::from_millis(settle_ms.into());
    let mut watch =
        Watch { watcher, roots, watched: BTreeMap::new(), unwatched: BTreeSet::new(), counted, next, changes, settle };
    watch.renew().map_err(|(path, error)| refused(&path.display().to_string(), &error))?;
    Ok(Some(watch))
}

/// As the watcher names it in what it tells.
fn absolute(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    // "." and a slash at the end are no names
    whole.components().filter(|part| *part != std::path::Component::CurDir).collect()
}

fn refused(place: &str, error: &::notify::Error) -> Error {
    let mend = match error.kind {
        ::notify::ErrorKind::MaxFilesWatch => {
            "raise it with `sysctl fs.inotify.max_user_watches=1048576`, or leave --watch out"
        }
        _ => "leave --watch out and reload by hand",
    };
    Error::environment(format!("{place}: cannot be watched: {error}; {mend}"))
}

/// Whether it is the directory's fault: it is not for us, or gone.
fn is_its_own(error: &::notify::Error) -> bool {
    match &error.kind {
        ::notify::ErrorKind::PathNotFound => true,
        ::notify::ErrorKind::Io(error) => {
            matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound)
        }
        _ => false,
    }
}

fn watcher(told: SyncSender<()>, counted: Arc<Counted>) -> ::notify::Result<RecommendedWatcher> {
    ::notify::recommended_watcher(move |event: ::notify::Result<::notify::Event>| {
        let missed = match &event {
            Ok(event) => event.need_rescan() || event.paths.is_empty(),
            // a directory that is new cannot be watched
            Err(_) => true,
        };
        if missed {
            counted.missed.store(true, Ordering::Release);
        }
        if let Ok(::notify::Event {
            kind: EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)), paths, ..
        }) = &event
        {
            counted.note_gone(paths);
        }
        let counts = match event {
            // reading is no change, least of all our own
            Ok(event) if matches!(event.kind, EventKind::Access(_)) => false,
            Ok(event) => missed || event.paths.iter().any(|path| counted.counts(path)),
            Err(_) => true,
        };
        if counts {
            // one that waits stands for all
            let _ = told.try_send(());
        }
    })
}

impl Watch {
    /// Whether a root is another than the one that is watched.
    fn is_stale(&self) -> bool {
        self.roots.iter().any(|(path, is)| identity(path) != *is)
    }

    /// For whoever reloads.
    pub(crate) fn roots(&self) -> Roots {
        self.next.clone()
    }

    /// Goes over to other roots, if there are.
    fn replace(&mut self) {
        let Some(paths) = self.next.take() else { return };
        self.roots = paths.iter().map(|path| (path.clone(), None)).collect();
        *self.counted.roots.lock().unwrap_or_else(PoisonError::into_inner) = paths;
    }

    /// Watches what there is to watch by now, and nothing else.
    ///
    /// # Errors
    /// What the kernel refuses of the roots' trees; all that can be watched is.
    fn renew(&mut self) -> Result<(), (PathBuf, ::notify::Error)> {
        self.replace();
        if self.counted.missed.swap(false, Ordering::AcqRel) {
            tracing::warn!("changes came faster than they could be told: all directories are watched anew");
            self.give_up(|_, _| true);
        }
        let gone = self.counted.take_gone();
        self.give_up(|path, _| path.ancestors().any(|at| gone.contains(at)));
        let (wanted, trees) = self.wanted();
        self.give_up(|path, is| wanted.get(path) != Some(is));
        self.unwatched.retain(|path| wanted.contains_key(path));
        let mut outcome = Ok(());
        for (path, is) in wanted {
            if self.watched.contains_key(&path) {
                continue;
            }
            match self.watcher.watch(&path, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.unwatched.remove(&path);
                    self.watched.insert(path, is);
                }
                Err(error) if is_its_own(&error) || !trees.contains(&path) => self.leave_out(path, &error),
                Err(error) => outcome = Err((path, error)),
            }
        }
        outcome
    }

    /// Ends the watching of some. A directory of several names is watched once for all of them, so it goes with any, and is to be watched anew by
    /// the others. The kernel and the watcher keep what is not ended here: of what was moved in front of them they know nothing.
    fn give_up(&mut self, is_given_up: impl Fn(&Path, &Identity) -> bool) {
        let named = self.watched.iter().filter(|(path, is)| is_given_up(path, is));
        let directories: BTreeSet<Identity> = named.map(|(_, is)| *is).collect();
        for (path, _) in self.watched.extract_if(.., |path, is| directories.contains(is) || is_given_up(path, is)) {
            // it may not be there any more
            let _ = self.watcher.unwatch(&path);
        }
    }

    /// All that there is to watch, and which of it is of the roots' trees.
    fn wanted(&mut self) -> (BTreeMap<PathBuf, Identity>, BTreeSet<PathBuf>) {
        let mut wanted = BTreeMap::new();
        for (path, is) in &mut self.roots {
            *is = identity(path);
            directories::add(path, &mut wanted);
        }
        let trees = wanted.keys().cloned().collect();
        // of several names of a directory the watcher tells one: whatever changes in a tree counts, by a name that leads there
        let of_trees: BTreeSet<Identity> = wanted.values().copied().collect();
        let points: Vec<_> = self.roots.keys().flat_map(|root| points(root)).collect();
        for way in points.iter().filter_map(|point| point.parent()) {
            if !wanted.contains_key(way) {
                wanted.extend(identity(way).filter(|is| !of_trees.contains(is)).map(|is| (way.to_owned(), is)));
            }
        }
        *self.counted.points.lock().unwrap_or_else(PoisonError::into_inner) = points;
        (wanted, trees)
    }

    /// Without it a root that is replaced is noticed when it is looked for, and what may not be read is not served either.
    fn leave_out(&mut self, path: PathBuf, error: &::notify::Error) {
        let shown = path.display().to_string();
        if self.unwatched.insert(path) {
            tracing::warn!("{shown}: not watched: {error}; what changes there is noticed late");
        }
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn start(self, events: Sender<Event>) -> std::io::Result<()> {
        std::thread::Builder::new().name("watch".into()).spawn(move || self.run(&events))?;
        Ok(())
    }

    fn run(mut self, events: &Sender<Event>) {
        while self.wait() {
            if let Err((path, error)) = self.renew() {
                tracing::warn!("{}: not watched any more: {error}; changes there need a reload", path.display());
            }
            let (done, outcome) = mpsc::sync_channel(1);
            if events.send(Event::Reload(Some(done))).is_err() {
                return;
            }
            // it is logged where it happens; at the server's end nobody answers
            let Ok(outcome) = outcome.recv() else { return };
            // by what it took of a processor: a client that reads what was replaced as slowly as it may takes none
            std::thread::sleep(outcome.took * (SHARE - 1));
        }
    }

    /// Waits for a change, and then for its end.
    fn wait(&self) -> bool {
        loop {
            match self.changes.recv_timeout(LOOK_EVERY) {
                Ok(()) => break,
                Err(RecvTimeoutError::Timeout) if self.is_stale() => break,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        let deadline = Instant::now() + RESTLESS.max(self.settle);
        while Instant::now() < deadline {
            match self.changes.recv_timeout(self.settle) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use std::os::unix::fs::{MetadataExt, symlink};

    fn watch(roots: &[PathBuf]) -> (Watch, Vec<HostSpec>) {
        let host = |(n, root): (usize, &PathBuf)| {
            format!("[[web.host]]\nnames = [\"{n}.example\"]\nroot = \"{}\"\n", root.display())
        };
        let hosts: String = roots.iter().enumerate().map(host).collect();
        let text = format!("[web]\nwatch = true\n{hosts}");
        let web = config::from_text("s", &text).unwrap().web.unwrap();
        (begin(&web).unwrap().unwrap(), web.hosts)
    }

    /// How many watches this process has of a directory.
    fn watches(path: &Path) -> usize {
        let named = format!(" ino:{:x} ", std::fs::metadata(path).unwrap().ino());
        let infos = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
        // one may be closed meanwhile
        let texts = infos.filter_map(|info| std::fs::read_to_string(info.path()).ok());
        texts
            .map(|text| text.lines().filter(|line| line.starts_with("inotify ") && line.contains(&named)).count())
            .sum()
    }

    fn told(watch: &Watch) -> bool {
        watch.changes.recv_timeout(Duration::from_secs(10)).is_ok()
    }

    /// Until nothing more is told.
    fn rest(watch: &Watch) {
        while watch.changes.recv_timeout(Duration::from_millis(100)).is_ok() {}
    }

    #[test]
    fn a_release_that_a_link_has_left_is_watched_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        ["1/a/b", "2/a"].iter().for_each(|name| std::fs::create_dir_all(at(name)).unwrap());
        symlink("1", at("current")).unwrap();
        let (mut watch, _) = watch(&[at("current")]);
        let all = |release: &str| ["", "/a", "/a/b"].map(|name| at(&format!("{release}{name}")));
        assert_eq!(all("1").map(|path| watches(&path)), [1; 3]);
        // more often than a watch that is left each time would show
        for release in ["2", "1", "2", "1", "2"] {
            symlink(release, at("next")).unwrap();
            std::fs::rename(at("next"), at("current")).unwrap();
            assert!(told(&watch));
            rest(&watch);
            watch.renew().unwrap();
        }
        assert_eq!((all("1").map(|path| watches(&path)), watches(&at("2")), watches(&at("2/a"))), ([0; 3], 1, 1));
        watch.counted.missed.store(true, Ordering::Release);
        watch.renew().unwrap();
        assert_eq!((watches(&at("2")), watches(&at("2/a"))), (1, 1));
        std::fs::write(at("2/a/file"), "").unwrap();
        assert!(told(&watch));
    }

    #[test]
    fn a_directory_that_loses_a_name_is_watched_by_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("site/sub")).unwrap();
        symlink("site", at("link")).unwrap();
        let (mut watch, hosts) = watch(&[at("site"), at("link")]);
        assert_eq!(watches(&at("site/sub")), 1, "by both names");
        watch.roots().set(&hosts[..1]);
        assert!(told(&watch));
        watch.renew().unwrap();
        assert_eq!((watches(&at("site")), watches(&at("site/sub"))), (1, 1));
        rest(&watch);
        std::fs::write(at("site/sub/file"), "").unwrap();
        assert!(told(&watch));
    }
    #[test]
    fn a_directory_on_the_way_to_a_root_that_is_in_another_roots_tree_is_watched_as_that() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        ["site/a", "1", "2"].iter().for_each(|name| std::fs::create_dir_all(at(name)).unwrap());
        // the way to the second root leads through a directory of the first one's tree, by a name that sorts behind it
        symlink("site/a", at("way")).unwrap();
        symlink(at("1"), at("site/a/current")).unwrap();
        let (mut watch, _) = watch(&[at("site"), at("way/current")]);
        assert_eq!(watches(&at("site/a")), 1);
        rest(&watch);
        std::fs::write(at("site/a/file"), "").unwrap();
        assert!(told(&watch), "a file of the first");
        watch.renew().unwrap();
        rest(&watch);
        symlink(at("2"), at("site/a/next")).unwrap();
        std::fs::rename(at("site/a/next"), at("site/a/current")).unwrap();
        assert!(told(&watch), "the second is another");
        watch.renew().unwrap();
        assert_eq!((watches(&at("1")), watches(&at("2")), watches(&at("site/a"))), (0, 1, 1));
    }
}
