//! What the command line and the configuration file say, in one shape.
//!
//! The option groups below are read by `clap` from the command line and by `serde` from the file, so a word means the same
//! in both. [`Settings`] is the outcome: defaults filled in, contradictions refused. Nothing is opened here but the
//! configuration file itself.

mod app;
mod dns;
mod echo;
mod kv;
mod places;
mod web;

pub use app::{App, AppEntry, AppOptions, Bounds, Times};
pub use dns::{Dns, DnsOptions, RrlOptions, ZoneEntry, ZoneSpec, zone_specs};
pub use echo::{Echo, EchoOptions};
pub use kv::{Kv, KvOptions};
pub use web::{
    AccessLog, CacheRule, ErrorPage, HeaderRule, HostEntry, HostSpec, OnlyHost, RedirectRule, Web, WebOptions,
};

use crate::error::{Error, reason};
use crate::words::{
    Backend, Balance, Cpus, Idle, Listen, Mode, Own, Placed, Prefix, RssKey, RssTable, Sandbox, Spread, Switch,
    Threads, Within, ZoneArg,
};
use places::{Places, place, plain, twice, word};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How packets come and go; `[dataplane]` in the file.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct DataplaneOptions {
    /// Serve on this interface through AF_XDP (again for more)
    #[arg(long, value_name = "IF")]
    pub interface: Vec<String>,
    /// Listen here (again for more); default: port 53 (web: 80, kv: 11211, echo: 7) of every address
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Vec<Placed<Listen>>,
    /// An address that simoom answers ARP, NDP and ping for, with the prefix length of the link (again for more)
    #[arg(long, value_name = "ADDR[/LEN]")]
    pub own: Vec<Placed<Own>>,
    /// xdp, sockets, or auto (xdp where it can be had); default: xdp with --interface, else sockets
    #[arg(long, value_name = "WORD")]
    pub backend: Option<Backend>,
    /// How AF_XDP is bound: auto, zerocopy, copy or generic
    #[arg(long, value_name = "WORD")]
    pub mode: Option<Mode>,
    /// Processors that get a pinned thread each, such as 0,2-3; those beyond the interface's queues serve what others receive;
    /// default: one thread for each receive queue
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<Cpus>,
    /// Over AF_XDP, how many of the threads serve: static (all), or elastic (as many as the load needs; the others sleep); default: static
    #[arg(long, value_name = "static|elastic")]
    pub threads: Option<Threads>,
    /// Most frames of one cycle, 1 to 64; default: 32
    #[arg(long, value_name = "N")]
    pub batch: Option<Within<1, 64>>,
    /// What an idle thread does: spin, adaptive or block
    #[arg(long, value_name = "WORD")]
    pub idle: Option<Idle>,
    /// Busy polling of the driver, in microseconds; 0 is off
    #[arg(long, value_name = "US")]
    pub busy_poll: Option<Within<0, 10_000>>,
    /// On kernel sockets, how connections get to the threads: shared (one listener), per-core (one each, by the kernel's hash, or,
    /// with --cpus and a NIC that has a queue for each, where they arrive) or affinity (one each, by flow groups); default: affinity
    #[arg(long, value_name = "WORD")]
    pub accept: Option<Spread>,
    /// On kernel sockets, how datagrams get to the threads: shared, per-core or affinity; default: affinity
    #[arg(long, value_name = "WORD")]
    pub receive: Option<Spread>,
    /// Whether a thread that has time takes from one that has none (steal, on kernel sockets with affinity), and takes over
    /// flow groups as well (on); or off; default: on, over AF_XDP for TCP alone where the NIC does not say how it spreads flows
    #[arg(long, value_name = "WORD")]
    pub balance: Option<Balance>,
    /// Flow groups that are dealt out to the threads: a power of two; default: 4096
    #[arg(long, value_name = "N")]
    pub flow_groups: Option<Within<1, 65_536>>,
    /// Milliseconds that a service may keep its thread before that is counted and said; default: 10
    #[arg(long, value_name = "MS")]
    pub slow_after: Option<Within<1, 60_000>>,
    /// The key by which the NIC spreads flows over its queues (as `ethtool -x` shows it), where its driver does not tell
    #[arg(long, value_name = "KEY")]
    pub rss_key: Option<RssKey>,
    /// Whether the NIC's table by which it spreads flows follows when flow groups move to other threads (follow; then each entry
    /// of it is a group), or stays as it is (keep); or the pinned BPF array that is the table, where a program spreads flows, with
    /// --rss-key; what is written is put back at the end; nothing is written with --balance off, nor, on kernel sockets, without
    /// --cpus; default: follow
    #[arg(long, value_name = "follow|keep|FILE")]
    pub rss_table: Option<RssTable>,
    /// Take frames only from this prefix (again for more)
    #[arg(long, value_name = "PREFIX")]
    pub allow: Vec<Prefix>,
    /// Drop frames from this prefix (again for more); the longest prefix of --allow and --deny decides
    #[arg(long, value_name = "PREFIX")]
    pub deny: Vec<Prefix>,
}

/// Supervision; `[control]` in the file.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ControlOptions {
    /// The control socket; default: /run/simoom/control, else $XDG_RUNTIME_DIR/simoom/control
    #[arg(long = "control", value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// Serve Prometheus metrics over HTTP here
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<Placed<Listen>>,
    /// Become this user after start
    #[arg(long, value_name = "NAME")]
    pub user: Option<Placed<String>>,
    /// Become this group after start; default: the user's
    #[arg(long, value_name = "NAME")]
    pub group: Option<Placed<String>>,
    /// The user that protected applications run as; default: --user, else nobody (where the server is started as root)
    #[arg(long, value_name = "NAME")]
    pub app_user: Option<String>,
    /// Whether the server confines itself after start to the files that it serves and the system calls that it needs: on (or not
    /// at all), off, or auto (by what the kernel has); default: auto
    #[arg(long, value_name = "WORD")]
    pub sandbox: Option<Sandbox>,
    /// Whether a process that keeps the privileges starts the server as another one, and again with the same kernel sockets when that has
    /// crashed: on or off; default: off
    #[arg(long, value_name = "WORD")]
    pub supervise: Option<Switch>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct File {
    dataplane: DataplaneOptions,
    dns: Option<DnsOptions>,
    web: Option<WebOptions>,
    kv: Option<KvOptions>,
    echo: Option<EchoOptions>,
    #[serde(rename = "app")]
    apps: Vec<AppEntry>,
    control: ControlOptions,
}

/// Everything that is settled before anything is opened.
#[derive(Clone, Debug)]
pub struct Settings {
    /// where the settings come from, for messages: the file's name, or None for the command line
    pub file: Option<String>,
    /// interfaces for AF_XDP
    pub interfaces: Vec<String>,
    /// addresses that the kernel does not have
    pub own: Vec<Own>,
    /// as asked for, with the default filled in
    pub backend: Backend,
    /// how AF_XDP is bound
    pub mode: Mode,
    /// pinned threads, or None for one a queue
    pub cpus: Option<Vec<usize>>,
    /// how many of them serve
    pub threads: Threads,
    /// most frames of one cycle
    pub batch: usize,
    /// idle policy
    pub idle: Idle,
    /// microseconds; 0 is off
    pub busy_poll_us: u32,
    /// how connections get to the threads on kernel sockets
    pub accept: Spread,
    /// how datagrams do
    pub receive: Spread,
    /// how threads help each other out, if that was said
    pub balance: Option<Balance>,
    /// flow groups of an interface's threads, or of affinity
    pub flow_groups: usize,
    /// a service that keeps its thread so long is slow
    pub slow_after: Duration,
    /// by which the NIC spreads flows
    pub rss_key: Option<RssKey>,
    /// its table
    pub rss_table: RssTable,
    /// allowed sources; empty means all
    pub allow: Vec<Prefix>,
    /// denied sources
    pub deny: Vec<Prefix>,
    /// the DNS service
    pub dns: Option<Dns>,
    /// the web service
    pub web: Option<Web>,
    /// the key-value store
    pub kv: Option<Kv>,
    /// the echo service
    pub echo: Option<Echo>,
    /// programs in processes of their own
    pub apps: Vec<App>,
    /// the user that they run as, if that was said
    pub app_user: Option<String>,
    /// the control socket as given
    pub control: Option<PathBuf>,
    /// the metrics listener
    pub metrics: Option<SocketAddr>,
    /// user to become
    pub user: Option<String>,
    /// group to become
    pub group: Option<String>,
    /// whether the server confines itself
    pub sandbox: Sandbox,
    /// whether another process starts it, and again
    pub supervise: bool,
}

/// The settings of `simoom dns`.
///
/// # Errors
/// What contradicts itself, all of it.
pub fn from_command_line(
    zones: &[ZoneArg],
    dataplane: &DataplaneOptions,
    dns: &DnsOptions,
    control: &ControlOptions,
) -> Result<Settings, Error> {
    let places = Places { file: None };
    let mut errors = Vec::new();
    let dns = dns::settle(&places, zone_specs(zones), &dataplane.listen, dns, &mut errors);
    let services = Services { dns: Some(dns), ..Services::default() };
    settle(&places, dataplane, services, control, errors)
}

/// The settings of `simoom web`.
///
/// # Errors
/// What contradicts itself, all of it.
pub fn from_web_command_line(
    root: &str,
    dataplane: &DataplaneOptions,
    web: &WebOptions,
    control: &ControlOptions,
) -> Result<Settings, Error> {
    let places = Places { file: None };
    let mut errors = Vec::new();
    let hosts = vec![root_spec(root, &web.only)];
    let web = web::settle(&places, hosts, &dataplane.listen, web, &mut errors);
    let services = Services { web: Some(web), ..Services::default() };
    settle(&places, dataplane, services, control, errors)
}

/// The settings of `simoom kv`.
///
/// # Errors
/// What contradicts itself, all of it.
pub fn from_kv_command_line(
    dataplane: &DataplaneOptions,
    kv: &KvOptions,
    control: &ControlOptions,
) -> Result<Settings, Error> {
    let places = Places { file: None };
    let mut errors = Vec::new();
    let kv = kv::settle(&places, &dataplane.listen, kv, &mut errors);
    let services = Services { kv: Some(kv), ..Services::default() };
    settle(&places, dataplane, services, control, errors)
}

/// The settings of `simoom echo`.
///
/// # Errors
/// What contradicts itself, all of it.
pub fn from_echo_command_line(
    dataplane: &DataplaneOptions,
    echo: &EchoOptions,
    control: &ControlOptions,
) -> Result<Settings, Error> {
    let places = Places { file: None };
    let mut errors = Vec::new();
    let echo = echo::settle(&places, &dataplane.listen, echo, &mut errors);
    let services = Services { echo: Some(echo), ..Services::default() };
    settle(&places, dataplane, services, control, errors)
}

/// The settings of `simoom run`.
///
/// # Errors
/// What contradicts itself, all of it.
pub fn from_run_command_line(
    program: &[String],
    dataplane: &DataplaneOptions,
    options: &AppOptions,
    control: &ControlOptions,
) -> Result<Settings, Error> {
    let places = Places { file: None };
    let mut errors = Vec::new();
    let app = app::of_command_line(&places, program, &dataplane.listen, options, &mut errors);
    let services = Services { apps: vec![app], ..Services::default() };
    settle(&places, dataplane, services, control, errors)
}

/// What `simoom check` is to read as web content; None without directories.
///
/// # Errors
/// As [`from_web_command_line`].
pub fn web_of_directories<'a>(roots: impl Iterator<Item = &'a str>) -> Result<Option<Web>, Error> {
    let mut errors = Vec::new();
    // each by itself the first host would take all names; checked together they need names of their own
    let named = roots.enumerate().map(|(n, root)| {
        let mut spec = root_spec(root, &OnlyHost::default());
        if n > 0 {
            spec.entry.names.push(format!("host-{n}"));
        }
        spec
    });
    let hosts: Vec<_> = named.collect();
    if hosts.is_empty() {
        return Ok(None);
    }
    let web = web::settle(&Places { file: None }, hosts, &[], &WebOptions::default(), &mut errors);
    if errors.is_empty() { Ok(Some(web)) } else { Err(Error::Input(errors)) }
}

/// The host of a directory that stands on the command line.
pub fn root_spec(root: &str, only: &OnlyHost) -> HostSpec {
    HostSpec { entry: web::plain_host(root, only), root: root.into(), place: root.to_owned() }
}

/// The settings of a configuration file.
///
/// # Errors
/// An unreadable file, an unknown key, a bad value, or what contradicts itself.
pub fn from_file(path: &Path) -> Result<Settings, Error> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::input(format!("{name}: cannot be read: {}; check --config", reason(&error))))?;
    from_text(&name, &text)
}

/// The settings of a configuration file's text; `name` is for messages and for what paths are relative to.
///
/// # Errors
/// As [`from_file`].
pub fn from_text(name: &str, text: &str) -> Result<Settings, Error> {
    let file: File = toml::from_str(text).map_err(|error| {
        let at = place(name, text, error.span().map_or(0, |span| span.start));
        Error::input(format!("{at}: {}", plain(error.message())))
    })?;
    let places = Places { file: Some((name, text)) };
    let services =
        [file.dns.is_some(), file.web.is_some(), file.kv.is_some(), file.echo.is_some(), !file.apps.is_empty()];
    if services == [false; 5] {
        return Err(Error::input(format!(
            "{name}: no service; add [[dns.zone]] with origin and file, or [web] with root, or [kv], or [echo]"
        )));
    }
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    let mut errors = Vec::new();
    if let (None, Some(listen)) = (&file.dns, file.dataplane.listen.first()) {
        let at = places.at(listen, "");
        let of = match (&file.web, &file.kv, &file.echo) {
            (Some(_), ..) => "web",
            (None, Some(_), _) => "kv",
            (None, None, Some(_)) => "echo",
            (None, None, None) => "[app]",
        };
        errors.push(format!("{at}: dataplane.listen is for DNS, and there is no [dns]; move it to listen of [{of}]"));
    }
    let dns = file.dns.map(|dns| {
        let spec = |zone: &Placed<ZoneEntry>| ZoneSpec {
            origin: zone.value.origin.clone(),
            file: folder.join(&zone.value.file).display().to_string(),
            place: places.at(zone, ""),
        };
        let zones = dns.zones.iter().map(spec).collect();
        let mut dns = dns::settle(&places, zones, &file.dataplane.listen, &dns, &mut errors);
        dns.cookie_secret = dns.cookie_secret.map(|path| folder.join(path).display().to_string());
        dns
    });
    let web = file.web.map(|mut web| {
        let hosts = web::hosts(&places, &web, folder, &mut errors);
        web.access_log = web.access_log.map(|path| if path == Path::new("-") { path } else { folder.join(path) });
        web::settle(&places, hosts, &web.listen, &web, &mut errors)
    });
    let kv = file.kv.map(|kv| kv::settle(&places, &kv.listen, &kv, &mut errors));
    let echo = file.echo.map(|echo| echo::settle(&places, &echo.listen, &echo, &mut errors));
    let apps = app::of_file(&places, &file.apps, &mut errors);
    let services = Services { dns, web, kv, echo, apps };
    let mut settings = settle(&places, &file.dataplane, services, &file.control, errors)?;
    settings.file = Some(name.to_owned());
    Ok(settings)
}

fn contradictions(places: &Places<'_>, dataplane: &DataplaneOptions, backend: Backend, errors: &mut Vec<String>) {
    twice(places, &dataplane.own, "--own", errors);
    for (n, interface) in dataplane.interface.iter().enumerate() {
        let option = word(places, "--interface", "dataplane.interface");
        if dataplane.interface[..n].contains(interface) {
            errors.push(format!("{option}: {interface} is given twice; remove one"));
        }
        // IFNAMSIZ is 16 with the closing zero
        if interface.is_empty() || interface.len() > 15 || interface.contains(['/', ' ']) {
            errors.push(format!("{option}: `{interface}` cannot be an interface's name; see `ip link`"));
        }
    }
    if dataplane.interface.is_empty() && backend == Backend::Xdp {
        let option = word(places, "--backend xdp", "dataplane.backend = \"xdp\"");
        errors.push(format!("{option}: needs an interface; add --interface IF"));
    }
    if backend == Backend::Sockets
        && let Some(own) = dataplane.own.first()
    {
        let at = places.at(own, "--own");
        errors.push(format!("{at}: {} needs AF_XDP; add --interface IF or give the address to the kernel", own.value));
    }
    if dataplane.interface.len() > 1
        && let Some(own) = dataplane.own.first()
    {
        let at = places.at(own, "--own");
        errors.push(format!(
            "{at}: with several interfaces it is not clear whose {} is; start one server for each",
            own.value
        ));
    }
    for prefix in &dataplane.allow {
        if dataplane.deny.contains(prefix) {
            errors.push(format!("{}: {prefix} is allowed too; remove one", word(places, "--deny", "dataplane.deny")));
        }
    }
    if let Some(groups) = dataplane.flow_groups
        && !groups.0.is_power_of_two()
    {
        let option = word(places, "--flow-groups", "dataplane.flow-groups");
        let next = groups.0.next_power_of_two();
        errors.push(format!("{option}: {} is not a power of two; give {next}", groups.0));
    }
    if dataplane.threads == Some(Threads::Elastic) && dataplane.balance == Some(Balance::Off) {
        let option = word(places, "--threads elastic", "dataplane.threads = \"elastic\"");
        errors.push(format!(
            "{option}: threads that share nothing cannot take over from each other; leave --balance off out"
        ));
    }
    if let Some(RssTable::Map(map)) = &dataplane.rss_table {
        let option = word(places, "--rss-table", "dataplane.rss-table");
        if dataplane.rss_key.is_none() {
            errors.push(format!("{option}: {map} does not tell the key of the hash; give it by --rss-key"));
        }
        if dataplane.interface.len() > 1 {
            errors.push(format!(
                "{option}: with several interfaces it is not clear whose table {map} is; start one server for each"
            ));
        }
    }
    let filtered = !dataplane.allow.is_empty() || !dataplane.deny.is_empty();
    if filtered && backend == Backend::Sockets {
        let option = word(places, "--allow/--deny", "dataplane.allow/deny");
        errors.push(format!("{option}: filter what AF_XDP takes; without --interface use nftables"));
    }
}

/// What is served.
#[derive(Default)]
struct Services {
    dns: Option<Dns>,
    web: Option<Web>,
    kv: Option<Kv>,
    echo: Option<Echo>,
    apps: Vec<App>,
}

fn settle(
    places: &Places<'_>,
    dataplane: &DataplaneOptions,
    Services { dns, web, kv, echo, apps }: Services,
    control: &ControlOptions,
    mut errors: Vec<String>,
) -> Result<Settings, Error> {
    let backend = dataplane.backend.unwrap_or(match dataplane.interface.is_empty() {
        true => Backend::Sockets,
        false => Backend::Xdp,
    });
    contradictions(places, dataplane, backend, &mut errors);
    let placed = [kv.as_ref().map(|kv| kv.place), echo.as_ref().map(|echo| echo.place)];
    app::count(places, apps.len(), placed.into_iter().flatten(), &mut errors);
    if let Some(dns) = &dns {
        dns::tiers(places, dataplane, backend, dns, &mut errors);
    }
    if !errors.is_empty() {
        return Err(Error::Input(errors));
    }
    Ok(Settings {
        file: None,
        interfaces: dataplane.interface.clone(),
        own: dataplane.own.iter().map(|placed| placed.value).collect(),
        backend,
        mode: dataplane.mode.unwrap_or(Mode::Auto),
        cpus: dataplane.cpus.clone().map(|cpus| cpus.0),
        threads: dataplane.threads.unwrap_or(Threads::Static),
        batch: dataplane.batch.map_or(dataplane::BATCH, |n| n.0 as usize),
        idle: dataplane.idle.unwrap_or(Idle::Adaptive),
        busy_poll_us: dataplane.busy_poll.map_or(0, |n| n.0),
        accept: dataplane.accept.unwrap_or(Spread::Affinity),
        receive: dataplane.receive.unwrap_or(Spread::Affinity),
        balance: dataplane.balance,
        flow_groups: dataplane.flow_groups.map_or(4096, |n| n.0 as usize),
        slow_after: dataplane.slow_after.map_or(::app::Cycles::SLOW_AFTER, |ms| Duration::from_millis(ms.0.into())),
        rss_key: dataplane.rss_key,
        rss_table: dataplane.rss_table.clone().unwrap_or(RssTable::Follow),
        allow: dataplane.allow.clone(),
        deny: dataplane.deny.clone(),
        dns,
        web,
        kv,
        echo,
        apps,
        app_user: control.app_user.clone(),
        control: control.path.clone(),
        metrics: control.metrics.as_ref().map(|placed| placed.value.0),
        user: control.user.as_ref().map(|placed| placed.value.clone()),
        group: control.group.as_ref().map(|placed| placed.value.clone()),
        sandbox: control.sandbox.unwrap_or(Sandbox::Auto),
        supervise: control.supervise == Some(Switch(true)),
    })
}

#[cfg(test)]
mod tests;
