//! Reading the zones again while the old ones serve.
//!
//! A thread of its own at low priority parses and builds, then swaps the tables. It keeps the old ones until every serving
//! thread has let go of them, and frees them itself: freeing gigabytes would stall a serving thread. Requests that come in
//! the meantime wait for one further reload together.

use crate::config::ZoneSpec;
use crate::launch::Running;
use crate::notify;
use crate::secrets;
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
use std::sync::mpsc::{self, Sender, SyncSender};
use std::time::{Duration, Instant};
use zone::Zone;

/// A line about what was done, or everything that was wrong.
pub(crate) type Outcome = Result<String, Vec<String>>;

/// How long the serving threads may take to let go of the old tables; they do so within a cycle.
const PATIENCE: Duration = Duration::from_secs(10);

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
        let (name, help) = ("last_reload_time_seconds", "when the tables were replaced last, in seconds since 1970");
        show(Figure { name, help, gauge: true, labels: &[], value: self.last_unix_s.get() });
    }
}

/// Reads zones and replaces tables.
#[derive(Debug)]
pub(crate) struct Loader {
    specs: Vec<ZoneSpec>,
    prints: Prints,
    publisher: Arc<Publisher<Tables>>,
    /// the file of the cookies' secrets, when there is one, and where they go
    secrets: Option<(String, Arc<Publisher<Secrets>>)>,
    running: Arc<Running>,
    counters: Arc<Counters>,
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
        specs: Vec<ZoneSpec>,
        prints: Prints,
        publisher: Arc<Publisher<Tables>>,
        secrets: Option<(String, Arc<Publisher<Secrets>>)>,
        running: Arc<Running>,
    ) -> Loader {
        Loader { specs, prints, publisher, secrets, running, counters: Arc::default() }
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
            while let Ok(first) = wanted.recv() {
                let waiting: Vec<_> = std::iter::once(first).chain(wanted.try_iter()).flatten().collect();
                let outcome = self.reload();
                for client in waiting {
                    // a client that went does not need to know
                    let _ = client.send(outcome.clone());
                }
            }
        })?;
        Ok(sender)
    }

    fn reload(&mut self) -> Outcome {
        notify::reloading();
        // a bug that one file brings to light must not end reloading for good
        let outcome = catch_unwind(AssertUnwindSafe(|| self.attempt()))
            .unwrap_or_else(|_| Err(vec!["the reload failed by a bug in simoom: please report it".into()]));
        match &outcome {
            Ok(message) => {
                tracing::info!("{message}");
                notify::ready(message);
            }
            Err(errors) => {
                self.counters.failed.add(1);
                for error in errors {
                    tracing::error!("{error}");
                }
                let message = "not reloaded, the old zones go on serving";
                tracing::error!("{message}");
                notify::ready(message);
            }
        }
        outcome
    }

    fn attempt(&mut self) -> Outcome {
        let begun = Instant::now();
        let secrets = self.new_secrets()?;
        if self.prints.unchanged() {
            if secrets.is_some() {
                self.publish(secrets);
                self.counters.done.add(1);
                return Ok("reloaded the cookie secrets; no zone file has changed".into());
            }
            self.counters.unchanged.add(1);
            return Ok("nothing to reload: no zone file has changed".into());
        }
        let loaded = zones::load(&self.specs)?;
        for warning in loaded.zones.iter().flat_map(|zone| zone.warnings()) {
            tracing::warn!("{warning}");
        }
        let old = self.publisher.current();
        let tables = build(loaded.zones, Some(&old))?;
        let message = format!("reloaded {} in {:.1} s", describe(&tables), begun.elapsed().as_secs_f64());
        self.publisher.publish(Arc::new(tables));
        self.publish(secrets);
        self.prints = loaded.prints;
        self.counters.done.add(1);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        self.counters.last_unix_s.set(now.map_or(0, |now| now.as_secs()));
        self.wait_until_released(&old);
        Ok(message)
    }

    /// The secrets of the cookies, if there is a file of them that says something new.
    fn new_secrets(&self) -> Result<Option<Secrets>, Vec<String>> {
        let Some((file, publisher)) = &self.secrets else { return Ok(None) };
        let secrets = secrets::load(file).map_err(|line| vec![line])?;
        Ok(Some(secrets).filter(|new| *new != *publisher.current()))
    }

    fn publish(&self, secrets: Option<Secrets>) {
        if let (Some(new), Some((_, publisher))) = (secrets, &self.secrets) {
            let old = publisher.current();
            publisher.publish(Arc::new(new));
            self.wait_until_released(&old);
        }
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
            // who sleeps is at a cycle's end and takes them when it wakes
            self.running.wake();
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }
}
