//! Reading zones and content again while the old ones serve.
//!
//! A thread of its own at low priority parses and builds, then swaps tables and sites. It keeps the old ones until every
//! serving thread has let go of them, and frees them itself: freeing gigabytes would stall a serving thread. Requests that
//! come in the meantime wait for one further reload together.
//!
//! Answers under way go on from the old content for the drain time; then the connections that still hold it are aborted. At
//! most two versions of content are held: a reload waits for the end of a drain before it reads anything.

use crate::access_log::AccessLog;
use crate::config::{Web, ZoneSpec};
use crate::driver::{Driver, Prepared};
use crate::launch::Running;
use crate::notify;
use crate::secrets;
use crate::sites::{self, Memo, Tree, Variants};
use crate::zones::{self, Prints};
use base::Counter;
use base::counter::{Figure, Report};
use base::publish::Publisher;
use dns::Tables;
use dns::cookie::Secrets;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender, SyncSender};
use std::time::{Duration, Instant};
use web::Site;
use zone::Zone;

/// What a reload came to.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// a line about what was done
    pub(crate) said: Result<String, Failure>,
    /// what reading and replacing took, without the wait for who still had what was replaced before
    pub(crate) took: Duration,
}

/// What did not go well.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// what serves now
    pub(crate) said: String,
    /// everything that was wrong
    pub(crate) errors: Vec<String>,
}

/// What was read, and serves now.
struct Taken {
    message: String,
    /// whether that is something new
    is_new: bool,
    /// what the driver lacks
    driver: Option<String>,
}

/// How long the serving threads may take to let go of the old tables; they do so within a cycle.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a drain is looked at.
const DRAIN_LOOK: Duration = Duration::from_millis(50);

/// What was reloaded.
#[derive(Debug, Default)]
struct Counters {
    done: Counter,
    unchanged: Counter,
    failed: Counter,
    last_unix_s: Counter,
}

impl Report for Counters {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        for (outcome, counter) in [("done", &self.done), ("unchanged", &self.unchanged), ("failed", &self.failed)] {
            let (name, help) = ("reloads_total", "reloads by outcome");
            let labels = [("outcome", outcome)];
            show(Figure { name, help, gauge: false, labels: &labels, value: counter.get() });
        }
        let (name, help) = ("last_reload_time_seconds", "when something was replaced last, in seconds since 1970");
        show(Figure { name, help, gauge: true, labels: &[], value: self.last_unix_s.get() });
    }
}

/// The zones that are served, and from which files.
#[derive(Debug)]
pub(crate) struct Zones {
    pub(crate) specs: Vec<ZoneSpec>,
    pub(crate) prints: Prints,
    pub(crate) publisher: Arc<Publisher<Tables>>,
}

/// The content that is served, and from which files.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) web: Web,
    pub(crate) tree: Tree,
    pub(crate) publisher: Arc<Publisher<Site>>,
    /// what compressing it has shown
    pub(crate) memo: Memo,
}

/// Content that was replaced and that answers under way may still hold.
#[derive(Debug)]
struct Draining {
    site: Arc<Site>,
    until: Instant,
}

/// Reads zones and content, and replaces what is served.
#[derive(Debug)]
pub(crate) struct Loader {
    zones: Option<Zones>,
    content: Option<Content>,
    draining: Option<Draining>,
    /// the file of the cookies' secrets, when there is one, and where they go
    secrets: Option<(String, Arc<Publisher<Secrets>>)>,
    access_log: Option<Arc<AccessLog>>,
    running: Arc<Running>,
    /// what answers in front of the serving threads
    driver: Option<Arc<Driver>>,
    counters: Arc<Counters>,
}

/// What is said when nothing was replaced.
fn kept(zones: bool, content: bool) -> &'static str {
    match (zones, content) {
        (_, false) => "not reloaded, the old zones go on serving",
        (false, true) => "not reloaded, the old content goes on serving",
        (true, true) => "not reloaded, the old zones and the old content go on serving",
    }
}

/// Tables of these zones, which will replace those `before`.
///
/// # Errors
/// Zones that cannot be served together.
pub(crate) fn build(zones: Vec<Zone>, before: Option<&Tables>) -> Result<Tables, Vec<String>> {
    // std's hash keys come from the machine's entropy, and so does what they make of nothing
    let seed = RandomState::new().build_hasher().finish();
    let built = match before {
        Some(before) => before.rebuild(zones, seed),
        None => Tables::build(zones, seed),
    };
    built.map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

/// `3 zones, 1200 names, 5 MiB`.
pub(crate) fn describe(tables: &Tables) -> String {
    let zones = tables.zones().len();
    let s = if zones == 1 { "" } else { "s" };
    format!("{zones} zone{s}, {} names, {:.1} MiB", tables.names(), tables.bytes() as f64 / f64::from(1 << 20))
}

impl Loader {
    pub(crate) fn new(
        zones: Option<Zones>,
        content: Option<Content>,
        secrets: Option<(String, Arc<Publisher<Secrets>>)>,
        access_log: Option<Arc<AccessLog>>,
        running: Arc<Running>,
        driver: Option<Arc<Driver>>,
    ) -> Loader {
        Loader { zones, content, draining: None, secrets, access_log, running, driver, counters: Arc::default() }
    }

    pub(crate) fn counters(&self) -> Arc<dyn Report> {
        self.counters.clone()
    }

    /// Starts the thread. Who sends a channel gets the outcome there.
    ///
    /// # Errors
    /// The kernel's, when the thread cannot be started.
    pub(crate) fn start(mut self) -> io::Result<Sender<Option<SyncSender<Outcome>>>> {
        let (sender, wanted) = mpsc::channel::<Option<SyncSender<Outcome>>>();
        std::thread::Builder::new().name("reload".into()).spawn(move || {
            // this thread only, on Linux: parsing gives way to serving
            let _ = rustix::process::nice(10);
            self.compress();
            loop {
                let next = match self.draining {
                    Some(_) => wanted.recv_timeout(DRAIN_LOOK),
                    None => wanted.recv().map_err(|_| RecvTimeoutError::Disconnected),
                };
                match next {
                    Ok(first) => {
                        let waiting: Vec<_> = std::iter::once(first).chain(wanted.try_iter()).flatten().collect();
                        let outcome = self.reload();
                        for client in waiting {
                            // a client that went does not need to know
                            let _ = client.send(outcome.clone());
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => self.look_at_drain(),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        })?;
        Ok(sender)
    }

    /// Once after the start: what is served from then on has variants.
    fn compress(&mut self) {
        let Some(content) = self.content.as_mut().filter(|content| content.web.compress) else { return };
        // as in a reload
        let outcome = catch_unwind(AssertUnwindSafe(|| content.compress()))
            .unwrap_or_else(|_| Err(vec!["compressing failed by a bug in simoom: please report it".into()]));
        match outcome {
            Ok(Some(loaded)) => {
                tracing::info!("compressed: {}", sites::describe(&loaded.site));
                self.replace_content(loaded);
            }
            Ok(None) => {}
            Err(errors) => {
                errors.iter().for_each(|error| tracing::error!("{error}"));
                tracing::error!("not compressed, the content goes on as it was read");
            }
        }
    }

    fn reload(&mut self) -> Outcome {
        notify::reloading();
        // whatever else is wrong: who has moved the old one away waits for it
        let log = self.access_log.as_ref().map_or(Ok(()), |log| log.reopen());
        self.wait_for_drain();
        let begun = Instant::now();
        // a bug that one file brings to light must not end reloading for good
        let read = catch_unwind(AssertUnwindSafe(|| self.attempt()))
            .unwrap_or_else(|_| Err(vec!["the reload failed by a bug in simoom: please report it".into()]));
        let outcome = match (read, log) {
            (Ok(taken @ Taken { driver: None, .. }), Ok(())) => Ok(taken),
            // the old file can be written on, and our own stack answers what the driver does not, so neither keeps what was read from
            // being served
            (Ok(Taken { message, driver, .. }), log) => {
                let lacks = [
                    log.err().map(|line| ("the access log is not opened anew", line)),
                    driver.map(|why| ("the driver answers less than it could until a reload mends that", why)),
                ];
                let (lacks, errors): (Vec<_>, _) = lacks.into_iter().flatten().unzip();
                Err(Failure { said: format!("{message}; {}", lacks.join("; ")), errors })
            }
            (Err(errors), log) => Err(Failure {
                said: kept(self.zones.is_some(), self.content.is_some()).to_owned(),
                errors: log.err().into_iter().chain(errors).collect(),
            }),
        };
        match &outcome {
            Ok(Taken { message, is_new, .. }) => {
                let counter = if *is_new { &self.counters.done } else { &self.counters.unchanged };
                counter.add(1);
                tracing::info!("{message}");
                notify::ready(message);
            }
            Err(Failure { said, errors }) => {
                self.counters.failed.add(1);
                for error in errors {
                    tracing::error!("{error}");
                }
                tracing::error!("{said}");
                notify::ready(said);
            }
        }
        Outcome { said: outcome.map(|taken| taken.message), took: begun.elapsed() }
    }

    /// Until the content that was replaced last is nobody's: never are there more than two.
    fn wait_for_drain(&mut self) {
        while self.draining.is_some() {
            self.look_at_drain();
            std::thread::sleep(DRAIN_LOOK);
        }
    }

    /// Reads everything aside, and swaps all or nothing.
    fn attempt(&mut self) -> Result<Taken, Vec<String>> {
        let begun = Instant::now();
        let secrets = self.new_secrets();
        let zones = self.zones.as_ref().map(Zones::read).transpose();
        let content = self.content.as_mut().map(Content::read).transpose();
        let (secrets, zones, content) = match (secrets, zones, content) {
            (Ok(secrets), Ok(zones), Ok(content)) => (secrets, zones.flatten(), content.flatten()),
            // everything that is wrong with any
            (secrets, zones, content) => {
                let errors = [secrets.err(), zones.err(), content.err()];
                return Err(errors.into_iter().flatten().flatten().collect());
            }
        };
        let described: Vec<String> = (zones.iter().map(|(tables, _)| describe(tables)))
            .chain(content.iter().map(|loaded| sites::describe(&loaded.site)))
            .collect();
        let what = if self.content.is_none() { "no zone file" } else { "no file" };
        let message = match (described.is_empty(), &secrets) {
            (true, None) => return Ok(self.catch_up(what)),
            (true, Some(_)) => format!("reloaded the cookie secrets; {what} has changed"),
            (false, _) => format!("reloaded {} in {:.1} s", described.join("; "), begun.elapsed().as_secs_f64()),
        };
        if secrets.is_some() {
            // before anything is replaced, since it may fail
            let stopped = self.driver.as_ref().map_or(Ok(()), |driver| driver.stop_cookies());
            stopped.inspect_err(|_| self.start_cookies()).map_err(|why| vec![why])?;
        }
        let replaced = match zones {
            Some((tables, prints)) => self.replace_zones(tables, prints),
            None => Ok(self.refill_driver().and_then(Result::err)),
        };
        match secrets {
            Some(secrets) if replaced.is_ok() => self.replace_secrets(secrets),
            Some(_) => self.start_cookies(),
            None => {}
        }
        let driver = replaced.map_err(|why| vec![why])?;
        if let Some(loaded) = content {
            self.replace_content(loaded);
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        self.counters.last_unix_s.set(now.map_or(0, |now| now.as_secs()));
        Ok(Taken { message, is_new: true, driver })
    }

    /// Where nothing was read there may be something that failed before.
    fn catch_up(&self, what: &str) -> Taken {
        let refilled = self.refill_driver();
        let message = match &refilled {
            Some(Ok(())) => format!("the driver has its answers again; {what} has changed"),
            _ => format!("nothing to reload: {what} has changed"),
        };
        Taken { message, is_new: matches!(refilled, Some(Ok(()))), driver: refilled.and_then(Result::err) }
    }

    /// Gives the driver the answers of what is served, if it has not what it could have.
    fn refill_driver(&self) -> Option<Result<(), String>> {
        let driver = self.driver.as_ref().filter(|driver| driver.is_behind())?;
        let tables = self.zones.as_ref()?.publisher.current();
        let prepared = driver.prepare(&tables);
        Some(driver.stop().and(prepared).and_then(Prepared::start))
    }

    /// The secrets of the cookies, if there is a file of them that says something new.
    fn new_secrets(&self) -> Result<Option<Secrets>, Vec<String>> {
        let Some((file, publisher)) = &self.secrets else { return Ok(None) };
        let secrets = secrets::load(file).map_err(|line| vec![line])?;
        Ok(Some(secrets).filter(|new| *new != *publisher.current()))
    }

    /// The driver makes no cookies by now. It goes on when all serving threads have the new secrets, so that nobody gets a cookie
    /// of the new ones and then one of the old.
    fn replace_secrets(&self, new: Secrets) {
        let Some((_, publisher)) = &self.secrets else { return };
        let old = publisher.current();
        publisher.publish(Arc::new(new));
        self.wait_until_released(&old);
        self.start_cookies();
    }

    /// Has the driver make cookies with the secrets that are published.
    fn start_cookies(&self) {
        if let Some(Err(why)) = self.driver.as_ref().map(|driver| driver.start_cookies()) {
            tracing::error!("{why}; AF_XDP answers questions with a cookie until the secrets are replaced again");
        }
    }

    /// The driver answers from the old zones until it is stopped and from the new ones when nobody answers from the old any more. Gives why
    /// it answers nothing, if so.
    ///
    /// # Errors
    /// The driver cannot be stopped, so everybody goes on with the old zones.
    fn replace_zones(&mut self, tables: Tables, prints: Prints) -> Result<Option<String>, String> {
        let Some(zones) = &mut self.zones else { return Ok(None) };
        let prepared = self.driver.as_ref().map(|driver| driver.prepare(&tables));
        self.driver.as_ref().map_or(Ok(()), |driver| driver.stop())?;
        let old = zones.publisher.current();
        zones.publisher.publish(Arc::new(tables));
        zones.prints = prints;
        self.wait_until_released(&old);
        drop(old);
        let started = prepared.map_or(Ok(()), |prepared| prepared.and_then(Prepared::start));
        // the old zones' memory, and that of what the driver had of them
        base::heap::give_back();
        Ok(started.err())
    }

    fn replace_content(&mut self, loaded: sites::Loaded) {
        let Some(content) = &mut self.content else { return };
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let drain = Duration::from_secs(content.web.drain_s.into());
        let old = content.publisher.current();
        content.publisher.publish(Arc::new(loaded.site));
        content.tree = loaded.tree;
        old.content().retire();
        self.wait_until_released(&old);
        self.draining = Some(Draining { site: old, until: Instant::now() + drain });
        self.look_at_drain();
    }

    /// Lets the old content go when nobody holds it any more; tells the serving threads when its time is over.
    fn look_at_drain(&mut self) {
        let Some(Draining { site, until }) = &self.draining else { return };
        if Arc::strong_count(site.content()) == 1 {
            self.draining = None;
            base::heap::give_back();
            return;
        }
        let now = Instant::now();
        if now >= *until {
            site.content().expire();
        }
        if now >= *until + PATIENCE {
            tracing::warn!("a thread still holds content that was replaced {} s ago", PATIENCE.as_secs());
            self.draining = None;
            return;
        }
        // who sleeps looks at what it holds when it wakes
        self.running.wake();
    }

    /// Waits until only this thread holds `old`: then every serving thread answers with what replaced it.
    fn wait_until_released<T>(&self, old: &Arc<T>) {
        let deadline = Instant::now() + PATIENCE;
        let mut pause = Duration::from_micros(50);
        while Arc::strong_count(old) > 1 {
            if Instant::now() > deadline {
                tracing::warn!("a thread has not taken what was reloaded after {} s", PATIENCE.as_secs());
                return;
            }
            // who sleeps is at a cycle's end and takes it when it wakes
            self.running.wake();
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }
}

impl Zones {
    /// Reads the zones, unless nothing has changed.
    fn read(&self) -> Result<Option<(Tables, Prints)>, Vec<String>> {
        if self.prints.unchanged() {
            return Ok(None);
        }
        let loaded = zones::load(&self.specs)?;
        for warning in loaded.zones.iter().flat_map(|zone| zone.warnings()) {
            tracing::warn!("{warning}");
        }
        let tables = build(loaded.zones, Some(&self.publisher.current()))?;
        Ok(Some((tables, loaded.prints)))
    }
}

impl Content {
    /// Reads the content that has changed, unless nothing has.
    fn read(&mut self) -> Result<Option<sites::Loaded>, Vec<String>> {
        sites::load(&self.web, Some((&self.publisher.current(), &self.tree)), Variants::Now(&mut self.memo))
    }

    /// Makes the variants that the start left out.
    fn compress(&mut self) -> Result<Option<sites::Loaded>, Vec<String>> {
        sites::load(&self.web, Some((&self.publisher.current(), &self.tree)), Variants::Only(&mut self.memo))
    }
}
