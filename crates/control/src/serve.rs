//! A server's life: load, bind, drop privileges, start, supervise, stop.
//!
//! The order is the point. Zones are read before anything is opened, everything is opened before privileges go, and
//! privileges go before the first thread starts. So a mistake of the caller leaves nothing behind, and no thread ever runs
//! with a capability. This thread then sleeps until a signal, the control socket or the watchdog wants something.

use crate::config::Settings;
use crate::ctl::server::{Socket, failed};
use crate::ctl::{Request, default_path};
use crate::error::{Error, reason};
use crate::launch::{self, Running};
use crate::metrics::{self, Registry};
use crate::reload::{Loader, Outcome};
use crate::{http, notify, privileges, secrets, signals, zones};
use base::counter::{Figure, Report};
use base::publish::Publisher;
use dns::Tables;
use serde_json::{Value, json};
use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender, SyncSender};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// What the supervising thread is woken for.
#[derive(Debug)]
pub(crate) enum Event {
    /// read the zones again, and say there how it went
    Reload(Option<SyncSender<Outcome>>),
    /// end; who wants it
    Stop(&'static str),
}

/// What the control socket's threads see of the server.
pub(crate) struct World {
    pub(crate) registry: Arc<Registry>,
    pub(crate) tables: Arc<Publisher<Tables>>,
    pub(crate) running: Arc<Running>,
    events: Sender<Event>,
    started: Instant,
    listen: Vec<String>,
}

impl World {
    /// Answers the requests that need no connection of their own.
    pub(crate) fn answer(&self, request: &Request) -> Value {
        match request {
            Request::Status {} => self.status(),
            Request::Stats {} => json!({ "ok": true, "metrics": metrics::as_json(&self.registry.collect()) }),
            Request::Reload {} => self.reload(),
            Request::Capture { .. } | Request::Stop {} => failed("not here"),
        }
    }

    /// Ends the server.
    pub(crate) fn stop(&self) {
        // nobody listens only when it is ending already
        let _ = self.events.send(Event::Stop("the control socket"));
    }

    fn status(&self) -> Value {
        let tables = self.tables.current();
        json!({
            "ok": true,
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_s": self.started.elapsed().as_secs(),
            "backend": self.running.backend(),
            "listen": self.listen,
            "threads": self.running.threads(),
            "zones": tables.zones().len(),
            "names": tables.names(),
            "table_bytes": tables.bytes(),
            "table_version": self.tables.version(),
        })
    }

    fn reload(&self) -> Value {
        let (done, outcome) = mpsc::sync_channel(1);
        let gone = "the server is stopping";
        if self.events.send(Event::Reload(Some(done))).is_err() {
            return failed(gone);
        }
        match outcome.recv() {
            Ok(Ok(message)) => json!({ "ok": true, "message": message }),
            Ok(Err(errors)) => {
                json!({ "ok": false, "error": "not reloaded, the old zones go on serving", "errors": errors })
            }
            Err(_) => failed(gone),
        }
    }
}

/// The server's own figures.
#[derive(Debug)]
struct About {
    start_unix_s: u64,
    fallback: bool,
    tables: Arc<Publisher<Tables>>,
}

impl Report for About {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        let figure =
            Figure { name: "build_info", help: "the version that runs", gauge: true, labels: &version, value: 1 };
        show(figure);
        let mut gauge = |name, help, value| show(Figure { name, help, gauge: true, labels: &[], value });
        gauge("start_time_seconds", "when the server started, in seconds since 1970", self.start_unix_s);
        let fallback = "1 when AF_XDP was asked for with --backend auto and could not be had";
        gauge("backend_fallback", fallback, u64::from(self.fallback));
        let tables = self.tables.current();
        gauge("dns_zones", "zones served", tables.zones().len() as u64);
        gauge("dns_names", "names in the tables", tables.names() as u64);
        gauge("dns_table_bytes", "memory of the tables", tables.bytes() as u64);
        gauge("dns_table_version", "how often the tables were replaced", self.tables.version());
    }
}

/// Serves until told to stop.
///
/// # Errors
/// What keeps the server from starting; nothing is left behind then.
pub(crate) fn run(settings: &Settings) -> Result<(), Error> {
    let identity = privileges::look_up(settings.user.as_deref(), settings.group.as_deref())?;
    launch::check(settings)?;
    let begun = Instant::now();
    let loaded = zones::load(&settings.dns.zones).map_err(Error::Input)?;
    for warning in loaded.zones.iter().flat_map(|zone| zone.warnings()) {
        tracing::warn!("{warning}");
    }
    let tables = crate::reload::build(loaded.zones, None).map_err(Error::Input)?;
    tracing::info!("{} in {:.1} s", crate::reload::describe(&tables), begun.elapsed().as_secs_f64());
    let publisher = Arc::new(Publisher::new(Arc::new(tables)));
    let secrets = secrets::publisher(&settings.dns)?;
    let control = open_control(settings, identity.as_ref())?;
    let metrics = settings.metrics.map(http::bind).transpose()?;
    let opened = launch::open(settings)?;
    privileges::drop_all(identity.as_ref())?;
    warn_unreadable(settings);
    if settings.dns.rrl_rate.is_none() && settings.listen.iter().any(|address| !address.ip().is_loopback()) {
        tracing::warn!("response rate limiting is off; a server on the internet wants --rrl-rate 200");
    }

    let registry = Arc::new(Registry::default());
    let running = Arc::new(opened.start(settings, &publisher, secrets.as_ref(), &registry)?);
    let shared = settings.dns.cookie_secret.clone().zip(secrets);
    let loader = Loader::new(settings.dns.zones.clone(), loaded.prints, publisher.clone(), shared, running.clone());
    registry.add(loader.counters());
    registry.add(Arc::new(About {
        start_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()),
        fallback: running.fell_back(),
        tables: publisher.clone(),
    }));
    let (events, wanted) = mpsc::channel();
    let thread = |error| Error::environment(format!("a thread cannot be started: {}; see ulimit -u", reason(&error)));
    signals::start(events.clone()).map_err(thread)?;
    let reloads = loader.start().map_err(thread)?;
    if let Some(listener) = metrics {
        http::start(listener, registry.clone()).map_err(thread)?;
    }
    if let Some(control) = &control {
        let world = World {
            registry,
            tables: publisher,
            running: running.clone(),
            events,
            started: Instant::now(),
            listen: running.listen(),
        };
        control.start(Arc::new(world)).map_err(thread)?;
    }
    let status = format!("serving on {}", running.listen().join(", "));
    tracing::info!("{status} ({})", running.backend());
    notify::ready(&status);
    supervise(&wanted, &reloads);
    notify::stopping();
    // no new control client; those that wait see the process end
    drop(control);
    running.stop();
    tracing::info!("stopped");
    Ok(())
}

/// Sleeps between events; returns when the server is to stop.
fn supervise(wanted: &mpsc::Receiver<Event>, reloads: &Sender<Option<SyncSender<Outcome>>>) {
    let interval = notify::watchdog_interval();
    loop {
        let event = match interval {
            Some(interval) => wanted.recv_timeout(interval),
            None => wanted.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            // the loader's thread lives as long as this one
            Ok(Event::Reload(done)) => drop(reloads.send(done)),
            Ok(Event::Stop(who)) => {
                tracing::info!("stopping: {who} wants it");
                return;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if interval.is_some() {
            notify::watchdog();
        }
    }
}

fn open_control(settings: &Settings, identity: Option<&privileges::Identity>) -> Result<Option<Socket>, Error> {
    let owner = identity.map(privileges::Identity::ids);
    if let Some(path) = &settings.control {
        return Socket::bind(path, false, owner).map(Some);
    }
    match default_path() {
        Some(path) => Socket::bind(&path, true, owner).map(Some),
        None => {
            tracing::warn!(
                "no control socket: /run is not writable and $XDG_RUNTIME_DIR is not set; give --control PATH"
            );
            Ok(None)
        }
    }
}

/// A reload reads the files as who the process is now.
fn warn_unreadable(settings: &Settings) {
    let zones = settings.dns.zones.iter().map(|zone| &zone.file);
    for file in zones.chain(&settings.dns.cookie_secret) {
        if let Err(error) = File::open(file) {
            tracing::warn!(
                "{}: cannot be read any more now that privileges are dropped ({}): a reload will fail; make it readable for {}",
                file,
                reason(&error),
                settings.user.as_deref().unwrap_or("the user that simoom runs as without capabilities"),
            );
        }
    }
}
