//! Reloads when something below the served directories changes (`--watch`).
//!
//! A change is taken when nothing more has changed for the settle time, or after a while all the same, so a tree that never rests
//! is reloaded now and then. Whatever comes in between is one change: events are not counted, and none is queued behind another.
//! After a reload the thread rests for several times as long as that took, so a storm of changes costs a bounded share of the
//! machine. A root that is replaced, such as a link that is set to another release, is watched anew; the directories in which it and the
//! links on the way to it stand tell of that, and where they do not, a look once a minute.
//!
//! What is reloaded, and what is said of it, is decided where every other reload is.

use crate::config::Web;
use crate::error::Error;
use crate::links::{self, Link};
use crate::serve::Event;
use ::notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Changes that go on for so long are taken without a rest.
const RESTLESS: Duration = Duration::from_secs(10);
/// A reload's time is at most one in so many.
const SHARE: u32 = 5;
/// So often it is looked whether roots are what they were, if nothing tells.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The directories that are watched.
pub(crate) struct Watch {
    watcher: RecommendedWatcher,
    roots: Vec<Root>,
    /// directories in which roots and links to them stand, and which these were when they were begun to be watched
    ways: BTreeMap<PathBuf, Identity>,
    counted: Arc<Counted>,
    changes: Receiver<()>,
    settle: Duration,
}

struct Root {
    path: PathBuf,
    /// which directory it was when it was begun to be watched
    is: Option<Identity>,
}

/// Device and inode.
type Identity = (u64, u64);

/// Which events are changes.
#[derive(Default)]
struct Counted {
    roots: Vec<PathBuf>,
    /// roots, and the links that they are reached by
    points: Mutex<Vec<PathBuf>>,
    /// some were missed: what is watched is not all that there is
    missed: AtomicBool,
}

impl Counted {
    fn counts(&self, path: &Path) -> bool {
        // neighbours of a root are nothing to us
        self.roots.iter().any(|root| path.starts_with(root))
            || self.points.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|point| point == path)
    }
}

fn identity(path: &Path) -> Option<Identity> {
    std::fs::metadata(path).ok().map(|is| (is.dev(), is.ino()))
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
    let mut paths: Vec<PathBuf> = web.hosts.iter().map(|host| absolute(&host.root)).collect();
    paths.sort();
    paths.dedup();
    let counted = Arc::new(Counted { roots: paths.clone(), ..Counted::default() });
    let watcher = watcher(told, counted.clone()).map_err(|error| refused("--watch", &error))?;
    let roots = paths.into_iter().map(|path| Root { path, is: None }).collect();
    let settle = Duration::from_millis(settle_ms.into());
    let mut watch = Watch { watcher, roots, ways: BTreeMap::new(), counted, changes, settle };
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
        self.roots.iter().any(|root| identity(&root.path) != root.is)
    }

    /// Watches the directories in which roots and links to them stand, where these are others than before.
    fn renew_ways(&mut self) {
        let points: Vec<_> = self.roots.iter().flat_map(|root| points(&root.path)).collect();
        let mut ways: BTreeMap<PathBuf, Identity> = BTreeMap::new();
        for way in points.iter().filter_map(|point| point.parent()) {
            // what lies within a root is watched with it
            let within = self.roots.iter().any(|root| way.starts_with(&root.path));
            ways.extend(identity(way).filter(|_| !within).map(|is| (way.to_owned(), is)));
        }
        *self.counted.points.lock().unwrap_or_else(PoisonError::into_inner) = points;
        let gone: Vec<_> =
            self.ways.iter().filter(|(way, is)| ways.get(*way) != Some(is)).map(|(way, _)| way).collect();
        for way in gone {
            // it may not be there any more
            let _ = self.watcher.unwatch(way);
        }
        for way in ways.iter().filter(|(way, is)| self.ways.get(*way) != Some(is)).map(|(way, _)| way) {
            // without it a root that is replaced is noticed when it is looked for
            if let Err(error) = self.watcher.watch(way, RecursiveMode::NonRecursive) {
                tracing::warn!(
                    "{}: not watched: {error}; a root that is replaced there is noticed late",
                    way.display()
                );
            }
        }
        self.ways = ways;
    }

    /// Watches roots that are others than before.
    fn renew(&mut self) -> Result<(), (PathBuf, ::notify::Error)> {
        self.renew_ways();
        if self.counted.missed.swap(false, Ordering::AcqRel) {
            tracing::warn!(
                "changes came faster than they could be told, or could not be watched: all roots are watched anew"
            );
            self.roots.iter_mut().for_each(|root| root.is = None);
        }
        let mut outcome = Ok(());
        for root in &mut self.roots {
            let is = identity(&root.path);
            if is.is_none() || is == root.is {
                root.is = is;
                continue;
            }
            // the old one may be gone
            let _ = self.watcher.unwatch(&root.path);
            match self.watcher.watch(&root.path, RecursiveMode::Recursive) {
                Ok(()) => root.is = is,
                Err(error) => outcome = Err((root.path.clone(), error)),
            }
        }
        outcome
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
