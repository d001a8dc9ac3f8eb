//! Reading zones and content again while the old ones serve.
//!
//! A thread of its own at low priority parses and builds, then swaps tables and sites. It keeps the old ones until every
//! serving thread has let go of them, and frees them itself: freeing gigabytes would stall a serving thread. Requests that
//! come in the meantime wait for one further reload together.
//!
//! What zones and hosts there are is read anew, too, where a configuration file says so ([`settings`]).
//!
//! Answers under way go on from the old content for the drain time; then the connections that still hold it are aborted. At
//! most two versions of content are held: a reload waits for the end of a drain before it reads anything.
//!
//! Compressed variants (`--compress`) are made when nothing else is to be done: after the start, and after a reload and its drain. A reload that
//! comes meanwhile breaks that off; nothing is published then, since the reload would have to wait for the drain of it. Where changes bring
//! reloads about, a pass waits for a while after the one before ([`passes`]).

mod content;
mod passes;
mod settings;

pub(crate) use content::Content;
pub(crate) use settings::ConfigFile;

use crate::access_log::AccessLog;
use crate::config::ZoneSpec;
use crate::driver::{Driver, Prepared};
use crate::launch::Running;
use crate::notify;
use crate::secrets;
use crate::sites;
use crate::watch;
use crate::zones::{self, Prints};
use base::Counter;
use base::counter::{Figure, Report};
use base::publish::Publisher;
use content::{ContentRead, Draining};
use dns::Tables;
use dns::cookie::Secrets;
use passes::Passes;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError};
use std::time::{Duration, Instant};
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
/// How often it is asked whether a file was touched that is read while it is sent, where there are such files.
const TOUCHED_LOOK: Duration = Duration::from_secs(1);

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

/// What was read aside.
struct Fresh {
    secrets: Option<Secrets>,
    zones: Option<ZonesRead>,
    content: Option<ContentRead>,
    /// what a restart takes, in words
    others: String,
}

/// Zones, and what they were read from.
struct ZonesRead {
    specs: Vec<ZoneSpec>,
    tables: Tables,
    prints: Prints,
}

/// What is reloaded, and who has to know.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: Option<ConfigFile>,
    pub(crate) zones: Option<Zones>,
    pub(crate) content: Option<Content>,
    /// the file of the cookies' secrets, when there is one, and where they go
    pub(crate) secrets: Option<(String, Arc<Publisher<Secrets>>)>,
    pub(crate) access_log: Option<Arc<AccessLog>>,
    /// who watches the directories
    pub(crate) watch: Option<watch::Roots>,
    pub(crate) running: Arc<Running>,
    /// what answers in front of the serving threads
    pub(crate) driver: Option<Arc<Driver>>,
}

/// Who wants a reload; somebody who need not know how it went, too.
type Wish = Option<SyncSender<Outcome>>;

/// The wishes as they come in.
struct Wishes {
    from: Receiver<Wish>,
    /// those that a look has found
    waiting: Vec<Wish>,
}

impl Wishes {
    /// Whether there is one, or never will be another.
    fn are_any(&mut self) -> bool {
        loop {
            match self.from.try_recv() {
                Ok(wish) => self.waiting.push(wish),
                Err(TryRecvError::Empty) => return !self.waiting.is_empty(),
                Err(TryRecvError::Disconnected) => return true,
            }
        }
    }

    /// Waits for one, for so long at most; gives who wants to know of it and of all others that have come.
    fn wait(&mut self, most: Option<Duration>) -> Result<Vec<SyncSender<Outcome>>, RecvTimeoutError> {
        self.are_any();
        if self.waiting.is_empty() {
            let first = match most {
                Some(most) => self.from.recv_timeout(most)?,
                None => self.from.recv().map_err(|_| RecvTimeoutError::Disconnected)?,
            };
            self.waiting.push(first);
            self.are_any();
        }
        Ok(std::mem::take(&mut self.waiting).into_iter().flatten().collect())
    }
}

/// Reads zones and content, and replaces what is served.
#[derive(Debug)]
pub(crate) struct Loader {
    config: Option<ConfigFile>,
    zones: Option<Zones>,
    content: Option<Content>,
    /// whether the content that is served may lack variants
    lacks_variants: bool,
    passes: Passes,
    draining: Option<Draining>,
    secrets: Option<(String, Arc<Publisher<Secrets>>)>,
    access_log: Option<Arc<AccessLog>>,
    watch: Option<watch::Roots>,
    running: Arc<Running>,
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

/// Tells who asked for a reload that the log has more to say.
fn unserved(loaded: &sites::Loaded) -> String {
    match loaded.warnings.len() {
        0 => String::new(),
        1 => "; the log has a line on what is not served".to_owned(),
        lines => format!("; the log has {lines} lines on what is not served"),
    }
}

impl Loader {
    pub(crate) fn new(parts: Parts) -> Loader {
        let Parts { config, zones, content, secrets, access_log, watch, running, driver } = parts;
        let lacks_variants = content.as_ref().is_some_and(|content| content.web.compress);
        let (passes, draining, counters) = (Passes::new(watch.is_some()), None, Arc::default());
        Loader {
            config,
            zones,
            content,
            lacks_variants,
            passes,
            draining,
            secrets,
            access_log,
            watch,
            running,
            driver,
            counters,
        }
    }

    pub(crate) fn counters(&self) -> Arc<dyn Report> {
        self.counters.clone()
    }

    /// Starts the thread. Who sends a channel gets the outcome there.
    ///
    /// # Errors
    /// The kernel's, when the thread cannot be started.
    pub(crate) fn start(mut self) -> io::Result<Sender<Option<SyncSender<Outcome>>>> {
        let (sender, from) = mpsc::channel::<Wish>();
        let mut wishes = Wishes { from, waiting: Vec::new() };
        std::thread::Builder::new().name("reload".into()).spawn(move || {
            // this thread only, on Linux: parsing gives way to serving
            let _ = rustix::process::nice(10);
            loop {
                if self.pass_due_in().is_some_and(|rest| rest.is_zero()) {
                    self.compress(&mut wishes);
                }
                let most = self.draining.as_ref().map_or_else(|| self.look_due_in(), |_| Some(DRAIN_LOOK));
                match wishes.wait(most) {
                    Ok(waiting) => {
                        let outcome = self.reload();
                        for client in waiting {
                            // a client that went does not need to know
                            let _ = client.send(outcome.clone());
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        self.look_at_drain();
                        self.take_touched();
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        })?;
        Ok(sender)
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

    /// Reads everything aside.
    fn read(&self) -> Result<Fresh, Vec<String>> {
        let secrets = self.new_secrets();
        let said = self.config.as_ref().map(ConfigFile::read).transpose();
        let (said, wrong) = said.map_or_else(|wrong| (None, Some(wrong)), |said| (said, None));
        let (specs, web, others) = said.map_or((None, None, Vec::new()), |said| (said.zones, said.web, said.others));
        let zones = self.zones.as_ref().map(|zones| zones.read(specs)).transpose();
        let content = self.content.as_ref().map(|content| content.read(web)).transpose();
        match (secrets, zones, content, wrong) {
            (Ok(secrets), Ok(zones), Ok(content), None) => {
                let (zones, content) = (zones.flatten(), content.flatten());
                Ok(Fresh { secrets, zones, content, others: settings::told(&others) })
            }
            // everything that is wrong with any
            (secrets, zones, content, wrong) => {
                let errors = [wrong, secrets.err(), zones.err(), content.err()];
                Err(errors.into_iter().flatten().flatten().collect())
            }
        }
    }

    /// Reads everything aside, and swaps all or nothing.
    fn attempt(&mut self) -> Result<Taken, Vec<String>> {
        let begun = Instant::now();
        let Fresh { secrets, zones, content, others } = self.read()?;
        let described: Vec<String> = (zones.iter().map(|read| describe(&read.tables)))
            .chain(content.iter().map(|read| sites::describe(&read.loaded.site)))
            .collect();
        let unserved = content.as_ref().map_or_else(String::new, |read| unserved(&read.loaded));
        let what = if self.content.is_none() { "no zone file" } else { "no file" };
        let message = match (described.is_empty(), &secrets) {
            (true, None) => return Ok(self.catch_up(what, &others)),
            (true, Some(_)) => format!("reloaded the cookie secrets; {what} has changed"),
            (false, _) => {
                format!("reloaded {} in {:.1} s{unserved}", described.join("; "), begun.elapsed().as_secs_f64())
            }
        };
        let message = message + &others;
        if secrets.is_some() {
            // before anything is replaced, since it may fail
            let stopped = self.driver.as_ref().map_or(Ok(()), |driver| driver.stop_cookies());
            stopped.inspect_err(|_| self.start_cookies()).map_err(|why| vec![why])?;
        }
        let replaced = match zones {
            Some(read) => self.replace_zones(read),
            None => Ok(self.refill_driver().and_then(Result::err)),
        };
        match secrets {
            Some(secrets) if replaced.is_ok() => self.replace_secrets(secrets),
            Some(_) => self.start_cookies(),
            None => {}
        }
        let driver = replaced.map_err(|why| vec![why])?;
        if let Some(ContentRead { web, loaded }) = content {
            self.replace_content(loaded, web);
            self.lacks_variants = self.content.as_ref().is_some_and(|content| content.web.compress);
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        self.counters.last_unix_s.set(now.map_or(0, |now| now.as_secs()));
        Ok(Taken { message, is_new: true, driver })
    }

    /// Where nothing was read there may be something that failed before.
    fn catch_up(&self, what: &str, others: &str) -> Taken {
        let refilled = self.refill_driver();
        let message = match &refilled {
            Some(Ok(())) => format!("the driver has its answers again; {what} has changed{others}"),
            _ => format!("nothing to reload: {what} has changed{others}"),
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
    fn replace_zones(&mut self, read: ZonesRead) -> Result<Option<String>, String> {
        let Some(zones) = &mut self.zones else { return Ok(None) };
        let ZonesRead { specs, tables, prints } = read;
        let prepared = self.driver.as_ref().map(|driver| driver.prepare(&tables));
        self.driver.as_ref().map_or(Ok(()), |driver| driver.stop())?;
        let old = zones.publisher.current();
        zones.publisher.publish(Arc::new(tables));
        (zones.specs, zones.prints) = (specs, prints);
        self.wait_until_released(&old);
        drop(old);
        let started = prepared.map_or(Ok(()), |prepared| prepared.and_then(Prepared::start));
        // the old zones' memory, and that of what the driver had of them
        base::heap::give_back();
        Ok(started.err())
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
    /// Reads the zones, unless nothing has changed. `specs` are those that the configuration file names by now.
    fn read(&self, specs: Option<Vec<ZoneSpec>>) -> Result<Option<ZonesRead>, Vec<String>> {
        let specs = specs.unwrap_or_else(|| self.specs.clone());
        let same = specs.len() == self.specs.len() && specs.iter().zip(&self.specs).all(|(now, was)| now.is_as(was));
        if same && self.prints.unchanged() {
            return Ok(None);
        }
        let loaded = zones::load(&specs, Some(&self.prints))?;
        for warning in loaded.zones.iter().flat_map(|zone| zone.warnings()) {
            tracing::warn!("{warning}");
        }
        let tables = build(loaded.zones, Some(&self.publisher.current()))?;
        Ok(Some(ZonesRead { specs, tables, prints: loaded.prints }))
    }
}
