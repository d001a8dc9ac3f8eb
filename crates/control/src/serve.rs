//! A server's life: load, bind, drop privileges, start, supervise, stop.
//!
//! The order is the point. Zones and content are read before anything is opened, everything is opened before privileges go, and
//! privileges go before the first thread starts. So a mistake of the caller leaves nothing behind, and no thread ever runs
//! with a capability. This thread then sleeps until a signal, the control socket or the watchdog wants something.

use crate::config::{Kv, Settings, Web, ZoneSpec};
use crate::ctl::server::{Socket, failed};
use crate::ctl::{Request, default_path};
use crate::driver::{Driver, Prepared};
use crate::error::{Error, reason};
use crate::launch::{self, Running};
use crate::metrics::{self, Registry};
use crate::reload::{self, ConfigFile, Failure, Loader, Outcome};
use crate::run::Apps;
use crate::service::{Plan, Published};
use crate::supervise::{self, Line};
use crate::wall::{WALL_EVERY, Wall};
use crate::words::{Placement, Tier};
use crate::{access_log, ctl, http, notify, privileges, sandbox, secrets, signals, sites, watch, zones};
use base::counter::{Figure, Report};
use base::publish::Publisher;
use dns::cookie::Secrets;
use serde_json::{Value, json};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender, SyncSender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use web::chunks::Cache;

/// Threads that read files while they are sent: so many wait for disks at a time.
const READERS: usize = 4;
/// How often a server that is to stop looks whether its connections have ended.
const STOP_LOOK: Duration = Duration::from_millis(20);

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
    pub(crate) published: Published,
    pub(crate) running: Arc<Running>,
    events: Sender<Event>,
    started: Instant,
    listen: Vec<String>,
    sandbox: String,
}

impl World {
    /// Answers the requests that need no connection of their own.
    pub(crate) fn answer(&self, request: &Request) -> Value {
        match request {
            Request::Status {} => self.status(),
            Request::Stats {} => json!({ "ok": true, "metrics": metrics::as_json(&self.registry.collect()) }),
            Request::Connections { most } => ctl::connections::answer(&self.running, *most),
            Request::MoveGroups { from, to, count } => match self.running.move_groups(*from, *to, *count as usize) {
                Ok(asked) => {
                    json!({ "ok": true, "message": format!("{asked} flow groups go from thread {from} to thread {to}") })
                }
                Err(why) => failed(&why),
            },
            Request::Threads { count } => match self.running.set_threads(*count) {
                Ok(message) => json!({ "ok": true, "message": message }),
                Err(why) => failed(&why),
            },
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
        let mut status = json!({
            "ok": true,
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_s": self.started.elapsed().as_secs(),
            "backend": self.running.backend(),
            "listen": self.listen,
            "threads": self.running.threads(),
            "sandbox": self.sandbox,
        });
        if let Some(tables) = &self.published.tables {
            let (current, version) = (tables.current(), tables.version());
            status["zones"] = current.zones().len().into();
            status["names"] = current.names().into();
            status["table_bytes"] = current.bytes().into();
            status["table_version"] = version.into();
        }
        if let Some(site) = &self.published.site {
            let (current, version) = (site.current(), site.version());
            status["pages"] = current.pages().into();
            status["content_bytes"] = current.memory_bytes().into();
            status["content_version"] = version.into();
        }
        status
    }

    fn reload(&self) -> Value {
        let (done, outcome) = mpsc::sync_channel(1);
        let gone = "the server is stopping";
        if self.events.send(Event::Reload(Some(done))).is_err() {
            return failed(gone);
        }
        match outcome.recv().map(|outcome| outcome.said) {
            Ok(Ok(message)) => json!({ "ok": true, "message": message }),
            Ok(Err(Failure { said, errors })) => json!({ "ok": false, "error": said, "errors": errors }),
            Err(_) => failed(gone),
        }
    }
}

/// The server's own figures.
struct About {
    start_unix_s: u64,
    fallback: bool,
    published: Published,
    /// by the supervisor, if there is one
    restarts: u64,
}

impl Report for About {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        let figure =
            Figure { name: "build_info", help: "the version that runs", gauge: true, labels: &version, value: 1 };
        show(figure);
        let help = "how often the supervisor has started the server anew";
        show(Figure { name: "restarts_total", help, gauge: false, labels: &[], value: self.restarts });
        let mut gauge = |name, help, value| show(Figure { name, help, gauge: true, labels: &[], value });
        gauge("start_time_seconds", "when the server started, in seconds since 1970", self.start_unix_s);
        let fallback = "1 when AF_XDP was asked for with --backend auto and could not be had";
        gauge("backend_fallback", fallback, u64::from(self.fallback));
        if let Some(tables) = &self.published.tables {
            let current = tables.current();
            gauge("dns_zones", "zones served", current.zones().len() as u64);
            gauge("dns_names", "names in the tables", current.names() as u64);
            gauge("dns_table_bytes", "memory of the tables", current.bytes() as u64);
            gauge("dns_table_version", "how often the tables were replaced", tables.version());
        }
        if let Some(site) = &self.published.site {
            let current = site.current();
            gauge("web_pages", "paths that are answered with content", current.pages() as u64);
            gauge("web_content_bytes", "memory of the content", current.memory_bytes());
            let (files, bytes) = current.read_when_sent();
            gauge("web_cache_files", "files that are read while they are sent", files as u64);
            gauge("web_cache_file_bytes", "the bytes of those files", bytes);
            gauge("web_content_version", "how often the content was replaced", site.version());
        }
    }
}

/// What was read before anything was opened.
struct Loads {
    config: Option<ConfigFile>,
    zones: Option<reload::Zones>,
    content: Option<reload::Content>,
}

impl Loads {
    fn read(settings: &Settings) -> Result<Loads, Error> {
        let zones = settings.dns.as_ref().map(|dns| read_zones(&dns.zones)).transpose();
        let content = settings.web.as_ref().map(read_content).transpose();
        match (zones, content) {
            (Ok(zones), Ok(content)) => Ok(Loads { config: ConfigFile::of(settings), zones, content }),
            // everything that is wrong with either
            (zones, content) => {
                Err(Error::Input([zones.err(), content.err()].into_iter().flatten().flatten().collect()))
            }
        }
    }

    fn published(&self, secrets: Option<&Arc<Publisher<Secrets>>>, kv: Option<Arc<kv::Shared>>) -> Published {
        Published {
            kv,
            tables: self.zones.as_ref().map(|zones| zones.publisher.clone()),
            secrets: secrets.cloned(),
            site: self.content.as_ref().map(|content| content.publisher.clone()),
            cache: self.content.as_ref().and_then(|content| cache(&content.web)),
        }
    }
}

fn read_zones(specs: &[ZoneSpec]) -> Result<reload::Zones, Vec<String>> {
    let begun = Instant::now();
    let loaded = zones::load(specs, None)?;
    for warning in loaded.zones.iter().flat_map(|zone| zone.warnings()) {
        tracing::warn!("{warning}");
    }
    let tables = reload::build(loaded.zones, None)?;
    tracing::info!("{} in {:.1} s", reload::describe(&tables), begun.elapsed().as_secs_f64());
    let publisher = Arc::new(Publisher::new(Arc::new(tables)));
    Ok(reload::Zones { specs: specs.to_vec(), prints: loaded.prints, publisher })
}

fn read_content(web: &Web) -> Result<reload::Content, Vec<String>> {
    let begun = Instant::now();
    let loaded = sites::load(web, None, sites::Variants::Later)?
        .ok_or_else(|| vec!["a first load that found no change".to_owned()])?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    tracing::info!("{} in {:.1} s", sites::describe(&loaded.site), begun.elapsed().as_secs_f64());
    let publisher = Arc::new(Publisher::new(Arc::new(loaded.site)));
    let (tree, touched) = (loaded.tree, loaded.touched);
    Ok(reload::Content { web: web.clone(), tree, publisher, memo: sites::Memo::default(), touched })
}

/// The items of the key-value store, none yet.
fn items(kv: &Kv, threads: usize) -> Result<Arc<kv::Shared>, Error> {
    let no_entropy = |error| Error::environment(format!("/dev/urandom: {}; mount /dev", reason(&error)));
    let number = || secrets::random().map(u64::from_ne_bytes);
    let secret = number().and_then(|first| Ok([first, number()?])).map_err(no_entropy)?;
    let Kv { memory_bytes, item_bytes, shared_nothing, .. } = *kv;
    let limits = kv::Limits { memory_bytes, item_bytes, threads, secret, shared_nothing };
    Ok(Arc::new(kv::Shared::new(limits)))
}

/// Where files that are not held are read into, if the settings allow such files.
fn cache(web: &Web) -> Option<Cache> {
    let bytes = sites::cache_bytes(web);
    // both engines may have all connections there may be
    (bytes > 0).then(|| Cache::new(bytes, 2 * web.connections))
}

/// Starts the threads that wait for disks.
fn start_reading(cache: &Cache) -> io::Result<()> {
    for n in 0..READERS {
        let cache = cache.clone();
        std::thread::Builder::new().name(format!("chunks-{n}")).spawn(move || cache.work())?;
    }
    Ok(())
}

/// Serves until told to stop.
///
/// # Errors
/// What keeps the server from starting; nothing is left behind then.
pub(crate) fn run(settings: &Settings) -> Result<(), Error> {
    notify::find();
    // whoever has a supervisor keeps to it, also when the settings that are read now want none from the next start on
    match Line::find()? {
        None if settings.supervise => supervise::run(),
        line => serve(settings, line.as_ref()),
    }
}

fn serve(settings: &Settings, line: Option<&Line>) -> Result<(), Error> {
    let thread = |error| Error::environment(format!("a thread cannot be started: {}; see ulimit -u", reason(&error)));
    let early = signals::Early::note().map_err(thread)?;
    let users = launch::check(settings)?;
    users.can_be_become()?;
    let identity = users.server;
    let loads = Loads::read(settings)?;
    let secrets = settings.dns.as_ref().map(secrets::publisher).transpose()?.flatten();
    // one in a process of its own has its items there
    let kv = settings.kv.as_ref().filter(|kv| kv.place == Placement::Inline);
    let kv = kv.map(|kv| items(kv, launch::threads(settings))).transpose()?;
    let published = loads.published(secrets.as_ref(), kv.clone());
    let control = open_control(settings, identity.as_ref())?;
    let metrics = settings.metrics.map(http::bind).transpose()?;
    let log = settings.web.as_ref().and_then(|web| Some((web.access_log.as_ref()?, &web.hosts)));
    let log = log.map(|(log, hosts)| access_log::open(log, hosts, identity.as_ref())).transpose()?;
    let inherited = line.map(Line::take).transpose()?.unwrap_or_default();
    let opened = launch::open(settings, inherited)?;
    if let Some(line) = line {
        line.leave(opened.kernel_sockets())?;
    }
    let apps = Apps::open(settings, opened.division(), &opened.engine_cpus(settings))?;
    let was_root = rustix::process::geteuid().is_root();
    privileges::drop_all(identity.as_ref())?;
    if !apps.is_empty() {
        privileges::close_to_others();
    }
    let read = loads.zones.iter().flat_map(|zones| zones.prints.paths());
    let confined = Arc::new(sandbox::confine(settings, read, control.as_ref().map(Socket::path))?);
    tracing::info!("sandbox: {}", confined.said());
    warn(settings, loads.config.as_ref());
    if let Some(content) = &loads.content {
        // they were looked at with privileges, and are read without
        content.publisher.current().probe();
        // what is held as well, which a reload reads
        let denied = if was_root { sites::denied_by_now(&content.web, &content.tree) } else { Vec::new() };
        denied.iter().for_each(|line| tracing::warn!("{line}"));
    }
    // by who reloads
    let watch = settings.web.as_ref().map(watch::begin).transpose()?.flatten();

    let no_entropy = |error| Error::environment(format!("/dev/urandom: {}; mount /dev", reason(&error)));
    let registry = Arc::new(Registry::default());
    registry.add(confined.clone());
    let records = log.as_ref().map(access_log::Opened::log);
    if let Some(log) = &records {
        // as a reload will do
        log.reopen().unwrap_or_else(|line| tracing::warn!("{line}"));
        registry.add(log.counters());
    }
    if let Some(cache) = &published.cache {
        start_reading(cache).map_err(thread)?;
        registry.add(Arc::new(cache.clone()));
    }
    if let Some(kv) = &published.kv {
        registry.add(kv.clone());
    }
    let wall = Wall::start();
    let plan = Plan::new(
        settings,
        opened.division(),
        published.clone(),
        &wall,
        records.clone(),
        registry.clone(),
        apps.seats(),
    );
    let cache = published.cache.clone();
    apps.seats().stats().for_each(|stats| registry.add(stats));
    apps.seats().status().for_each(|status| registry.add(status));
    let (programs, plan) = (opened.answers(), plan.map_err(no_entropy)?);
    let plan = if programs.is_empty() { plan } else { plan.behind_driver(opened.xdp_threads()) };
    let running = Arc::new(opened.start(settings, &plan, &registry)?);
    let driver = settings.dns.as_ref().zip(published.tables.as_ref());
    let watched = plan.exchanges().to_vec();
    let cookies = plan.cookies().cloned().zip(running.clock());
    let driver = driver.and_then(|(dns, tables)| {
        // one that is held has its share of a rate all the same
        let weighed = dns.tier == Tier::Auto && dns.rrl_rate.is_none();
        Driver::new(programs, dns.edns_size, tables, cookies, watched, plan.seed(), weighed)
    });
    if let (Some(driver), Some(tables)) = (&driver, &published.tables) {
        driver.prepare(&tables.current()).and_then(Prepared::start).map_err(Error::environment)?;
        driver.start_cookies().map_err(Error::environment)?;
        driver.start_choosing().map_err(thread)?;
        registry.add(driver.clone());
    }
    let apps = apps.start()?;
    // after the engines, so that it outlives them: what they put in last is written
    let writing = log.map(access_log::Opened::start).transpose().map_err(thread)?;
    let secrets = settings.dns.as_ref().and_then(|dns| dns.cookie_secret.clone()).zip(secrets);
    let loader = Loader::new(reload::Parts {
        config: loads.config,
        zones: loads.zones,
        content: loads.content,
        secrets,
        access_log: records,
        watch: watch.as_ref().map(watch::Watch::roots),
        running: running.clone(),
        driver: driver.clone(),
    });
    registry.add(loader.counters());
    registry.add(Arc::new(About {
        start_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()),
        fallback: running.fell_back(),
        published: published.clone(),
        restarts: line.map_or(0, Line::restarts),
    }));
    let (events, wanted) = mpsc::channel();
    if let Some(watch) = watch {
        watch.start(events.clone()).map_err(thread)?;
    }
    signals::start(events.clone(), &early).map_err(thread)?;
    if let Some(line) = line {
        line.watch(events.clone()).map_err(thread)?;
    }
    let reloads = loader.start().map_err(thread)?;
    if let Some(listener) = metrics {
        http::start(listener, registry.clone()).map_err(thread)?;
    }
    if let Some(control) = &control {
        let (started, listen) = (Instant::now(), running.listen());
        let sandbox = confined.said().to_owned();
        let world = World { registry, published, running: running.clone(), events, started, listen, sandbox };
        control.start(Arc::new(world)).map_err(thread)?;
    }
    let status = format!("serving on {}", running.listen().join(", "));
    tracing::info!("{status} ({})", running.backend());
    notify::ready(&status);
    if let Some(line) = line {
        line.is_serving();
    }
    let set_clocks = || {
        if wall.set() && plan.cookies().is_some() {
            follow_clock(driver.as_deref());
        }
    };
    attend(&wanted, &reloads, set_clocks, kv.as_deref());
    notify::stopping();
    if let Some(line) = line {
        line.is_ending();
    }
    if let Some(web) = &settings.web {
        drain(&running, Duration::from_secs(web.drain_s.into()));
    }
    // no new control client; those that wait see the process end
    drop(control);
    running.stop();
    drop(apps);
    if let Some(cache) = &cache {
        cache.stop();
    }
    drop(writing);
    tracing::info!("stopped");
    Ok(())
}

/// Lets answers under way finish. A second signal ends the process meanwhile.
fn drain(running: &Running, most: Duration) {
    let deadline = Instant::now() + most;
    let interval = notify::watchdog_interval();
    let (mut said, mut told) = (false, Instant::now());
    running.drain();
    loop {
        let connections = running.stream_connections();
        if connections == 0 {
            return;
        }
        if Instant::now() >= deadline {
            tracing::warn!("{connections} connections did not end in {} s and are reset", most.as_secs());
            return;
        }
        if !std::mem::replace(&mut said, true) {
            tracing::info!("{connections} connections have {} s to end", most.as_secs());
        }
        if interval.is_some_and(|interval| told.elapsed() >= interval) {
            notify::watchdog();
            told = Instant::now();
        }
        std::thread::sleep(STOP_LOOK);
    }
}

/// Has the driver's cookies tell the time that those of the serving threads tell from now on.
fn follow_clock(driver: Option<&Driver>) {
    tracing::info!("the machine's clock was set: cookies tell its time");
    if let Some(Err(why)) = driver.map(Driver::follow_clock) {
        tracing::error!("{why}; AF_XDP answers questions with a cookie until the secrets are replaced");
    }
}

/// Sleeps between events; returns when the server is to stop.
fn attend(
    wanted: &mpsc::Receiver<Event>,
    reloads: &Sender<Option<SyncSender<Outcome>>>,
    set_clocks: impl Fn(),
    kv: Option<&kv::Shared>,
) {
    let interval = notify::watchdog_interval();
    loop {
        let event = wanted.recv_timeout(interval.map_or(WALL_EVERY, |interval| interval.min(WALL_EVERY)));
        set_clocks();
        if let Some(kv) = kv {
            kv.tend();
        }
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

/// Whether a file can be opened for reading. A pipe is not asked: it is there for who reads it.
fn is_open(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(facts) if !facts.is_file() => Ok(()),
        _ => File::open(path).map(drop),
    }
}

/// What the operator should know, now that privileges are gone.
fn warn(settings: &Settings, config: Option<&ConfigFile>) {
    // a reload reads the files as who the process is now
    let unreadable = |path: &str, error: &std::io::Error| {
        tracing::warn!(
            "{path}: cannot be read any more now that privileges are dropped ({}): a reload will fail; make it readable for {}",
            reason(error),
            settings.user.as_deref().unwrap_or("the user that simoom runs as without capabilities"),
        );
    };
    if let Some(path) = config.map(ConfigFile::path)
        && let Err(error) = is_open(path)
    {
        unreadable(&path.display().to_string(), &error);
    }
    if let Some(dns) = &settings.dns {
        let zones = dns.zones.iter().map(|zone| &zone.file);
        for file in zones.chain(&dns.cookie_secret) {
            if let Err(error) = is_open(file.as_ref()) {
                unreadable(file, &error);
            }
        }
        if dns.rrl_rate.is_none() && dns.listen.iter().any(|address| !address.ip().is_loopback()) {
            tracing::warn!("response rate limiting is off; a server on the internet wants --rrl-rate 200");
        }
    }
    for host in settings.web.iter().flat_map(|web| &web.hosts) {
        if let Err(error) = std::fs::read_dir(&host.root) {
            unreadable(&host.root.display().to_string(), &error);
        }
    }
}
