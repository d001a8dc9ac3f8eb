//! Reloads when something below the served directories changes (`--watch`).
//!
//! A change is taken when nothing more has changed for the settle time, or after a while all the same, so a tree that never rests
//! is reloaded now and then. Whatever comes in between is one change: events are not counted, and none is queued behind another.
//! After a reload the thread rests for several times as long as that took, so a storm of changes costs a bounded share of the
//! machine. A root that is replaced, such as a link that is set to another release, is watched anew; its parent tells.
//!
//! What is reloaded, and what is said of it, is decided where every other reload is.

use crate::config::Web;
use crate::error::Error;
use crate::serve::Event;
use ::notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::time::{Duration, Instant};

/// Changes that go on for so long are taken without a rest.
const RESTLESS: Duration = Duration::from_secs(10);
/// A reload's time is at most one in so many.
const SHARE: u32 = 5;

/// The directories that are watched.
pub(crate) struct Watch {
    watcher: RecommendedWatcher,
    roots: Vec<Root>,
    changes: Receiver<()>,
    settle: Duration,
}

struct Root {
    path: PathBuf,
    /// which directory it was when it was begun to be watched
    is: Option<(u64, u64)>,
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|is| (is.dev(), is.ino()))
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
    let watcher = watcher(told, paths.clone()).map_err(|error| refused("--watch", &error))?;
    let roots = paths.into_iter().map(|path| Root { path, is: None }).collect();
    let mut watch = Watch { watcher, roots, changes, settle: Duration::from_millis(settle_ms.into()) };
    for root in &watch.roots {
        if let Some(parent) = root.path.parent() {
            // without it a root that is replaced is noticed with the next reload only
            if let Err(error) = watch.watcher.watch(parent, RecursiveMode::NonRecursive) {
                tracing::warn!(
                    "{}: not watched: {error}; a root that is replaced there needs a reload",
                    parent.display()
                );
            }
        }
    }
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

fn watcher(told: SyncSender<()>, roots: Vec<PathBuf>) -> ::notify::Result<RecommendedWatcher> {
    ::notify::recommended_watcher(move |event: ::notify::Result<::notify::Event>| {
        let counts = match event {
            // reading is no change, least of all our own
            Ok(event) if matches!(event.kind, EventKind::Access(_)) => false,
            // neighbours of a root are nothing to us; without a path it is something that was missed
            Ok(event) => {
                event.paths.is_empty() || event.paths.iter().any(|path| roots.iter().any(|root| path.starts_with(root)))
            }
            Err(_) => true,
        };
        if counts {
            // one that waits stands for all
            let _ = told.try_send(());
        }
    })
}

impl Watch {
    /// Watches roots that are others than before.
    fn renew(&mut self) -> Result<(), (PathBuf, ::notify::Error)> {
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
            let begun = Instant::now();
            let (done, outcome) = mpsc::sync_channel(1);
            if events.send(Event::Reload(Some(done))).is_err() {
                return;
            }
            // it is logged where it happens; at the server's end nobody answers
            if outcome.recv().is_err() {
                return;
            }
            std::thread::sleep(begun.elapsed() * (SHARE - 1));
        }
    }

    /// Waits for a change, and then for its end.
    fn wait(&self) -> bool {
        if self.changes.recv().is_err() {
            return false;
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
