//! The web service's part of the configuration: `simoom web`, and `[web]` in the file.

use super::places::{Places, twice, word};
use crate::words::{Listen, LogFormat, Placed, Prefix, Size, Switch, WebTransmit, Within};
use ::web::chunks::CACHE_LEAST_BYTES;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// What the web service does; `[web]` in the file.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct WebOptions {
    #[arg(skip)]
    /// where to listen, in the file only: on the command line it is --listen
    pub listen: Vec<Placed<Listen>>,
    #[arg(skip)]
    /// the only host's directory, in the file only: on the command line it is the argument
    pub root: Option<Placed<String>>,
    /// The Server field of every answer; empty sends none; default: simoom
    #[arg(long, value_name = "TEXT")]
    pub server: Option<String>,
    /// Write a line for each request here; - is stderr; default: no log
    #[arg(long, value_name = "FILE")]
    pub access_log: Option<PathBuf>,
    /// Lines of the access log: combined or json; default: combined
    #[arg(long, value_name = "WORD")]
    pub log_format: Option<LogFormat>,
    /// Most memory for content, such as 512M or 4G; what does not fit, the largest files, is read while it is sent; default: half of
    /// the machine's
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Placed<Size>>,
    /// Memory, of that, for parts of files that do not fit, at least 1M; 0 refuses to serve more than fits; default: a quarter
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<Placed<Size>>,
    /// Make gzip, Zstandard and Brotli variants of what compresses, in the background after the start and after reloads: on or off; default: off
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub compress: Option<Switch>,
    /// Reload when something below the directories changes: on or off; default: off
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub watch: Option<Switch>,
    /// Milliseconds without a change before --watch reloads; default: 500
    #[arg(long, value_name = "MILLISECONDS")]
    pub settle: Option<Within<10, 600_000>>,
    /// Most connections at once; default: 16384
    #[arg(long, value_name = "N")]
    pub connections: Option<Within<1, 10_000_000>>,
    /// Most connections at once from one IPv4 address or IPv6 /56, a thread; default: 4096
    #[arg(long, value_name = "N")]
    pub per_source: Option<Within<1, 10_000_000>>,
    /// Seconds that answers under way may take after a request to stop, or a reload that replaced what they are made of; default: 60
    #[arg(long, value_name = "SECONDS")]
    pub drain: Option<Within<0, 86_400>>,
    /// Seconds for a request's head to arrive; default: 10
    #[arg(long, value_name = "SECONDS")]
    pub request_timeout: Option<Within<1, 3600>>,
    /// Seconds that a connection is kept without a request; default: 60
    #[arg(long, value_name = "SECONDS")]
    pub keep_alive: Option<Within<1, 3600>>,
    /// Seconds that a client may take nothing of its answers; one that holds memory of the cache for which others wait has half of
    /// them for 64 KiB, or for an eighth of what it holds; default: 60
    #[arg(long, value_name = "SECONDS")]
    pub send_timeout: Option<Within<1, 3600>>,
    /// How answers are sent over AF_XDP: copy (segment by segment in frames of our own), offload (up to 64 KiB at once, which the
    /// device cuts, while it can) or auto (offload unless AF_XDP is zero-copy); default: auto
    #[arg(long, value_name = "WORD")]
    pub transmit: Option<WebTransmit>,
    /// Connections from this prefix begin with a PROXY header of version 2 (again for more)
    #[arg(long, value_name = "PREFIX")]
    pub proxy_protocol: Vec<Prefix>,
    /// X-Forwarded-For is believed of this prefix (again for more)
    #[arg(long, value_name = "PREFIX")]
    pub forwarded: Vec<Prefix>,
    #[arg(skip)]
    #[serde(rename = "host")]
    /// virtual hosts, in the file only
    pub hosts: Vec<Placed<HostEntry>>,
    #[command(flatten)]
    #[serde(skip)]
    /// the only host of the command line
    pub only: OnlyHost,
}

/// What `simoom web` can say of its one host; the rest needs a configuration file.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct OnlyHost {
    /// A file that stands for its directory (again for more, the first that is there); default: index.html
    #[arg(long, value_name = "NAME")]
    pub index: Vec<String>,
    /// A page for directories without an index file: on or off; default: off
    #[arg(long, value_name = "on|off")]
    pub listing: Option<Switch>,
    /// Serve names that begin with this dot-name (again for more); default: .well-known
    #[arg(long, value_name = "NAME")]
    pub dotfile: Vec<String>,
}

/// `[[web.host]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct HostEntry {
    /// the host's names; `*.example.org` is every name below; the first host answers all other names
    #[serde(default)]
    pub names: Vec<String>,
    /// its directory, relative to the configuration file's folder
    pub root: String,
    /// files that stand for their directory
    pub index: Option<Vec<String>>,
    /// a page for directories without an index file
    #[serde(default)]
    pub listing: bool,
    /// added to text types; empty adds none
    pub charset: Option<String>,
    /// extension, without a dot, and media type
    #[serde(default)]
    pub types: BTreeMap<String, String>,
    /// Cache-Control by path; the first that matches
    #[serde(default)]
    pub cache: Vec<CacheRule>,
    /// further header fields by path
    #[serde(default)]
    pub header: Vec<HeaderRule>,
    /// paths that are elsewhere
    #[serde(default)]
    pub redirect: Vec<RedirectRule>,
    /// contents of error answers
    #[serde(default)]
    pub error_page: Vec<ErrorPage>,
    /// whether `.br`, `.zst` and `.gz` beside a file are its variants
    pub precompressed: Option<bool>,
    /// dot-names that are served
    pub dotfiles: Option<Vec<String>>,
}

/// `[[web.host.cache]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheRule {
    /// a pattern such as `/assets/**` or `**/*.js`: `*` stays within a segment
    pub path: String,
    /// the value of Cache-Control
    pub value: String,
}

/// `[[web.host.header]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeaderRule {
    /// a pattern such as `/**`
    pub path: String,
    /// the field's name
    pub name: String,
    /// its value
    pub value: String,
}

/// `[[web.host.redirect]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedirectRule {
    /// a path as it is looked up (decoded, without query), or a prefix that ends in `/*`; a rule for the path itself stands above prefixes, these stand in their order
    pub from: String,
    /// where it is
    pub to: String,
    /// default: 301
    #[serde(default = "moved")]
    pub status: u16,
}

fn moved() -> u16 {
    301
}

/// `[[web.host.error-page]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorPage {
    /// such as 404
    pub status: u16,
    /// the path of the file that is shown
    pub path: String,
}

/// The web service's settings.
#[derive(Clone, Debug)]
pub struct Web {
    /// where it listens
    pub listen: Vec<SocketAddr>,
    /// nobody asked for these listeners
    pub listen_by_default: bool,
    /// at least one
    pub hosts: Vec<HostSpec>,
    /// the Server field
    pub server: Option<String>,
    /// where requests are logged, if they are
    pub access_log: Option<AccessLog>,
    /// most bytes of content; None leaves it to the machine
    pub memory_bytes: Option<u64>,
    /// bytes of it for files that do not fit; None leaves it to the rest
    pub cache_bytes: Option<u64>,
    /// variants are made
    pub compress: bool,
    /// milliseconds of rest after which a change is taken; None waits to be told
    pub watch_settle_ms: Option<u32>,
    /// most connections
    pub connections: usize,
    /// most connections of one source, a thread
    pub per_source: usize,
    /// seconds
    pub drain_s: u32,
    /// seconds
    pub request_timeout_s: u32,
    /// seconds
    pub keep_alive_s: u32,
    /// seconds
    pub send_timeout_s: u32,
    /// how segments get to the device
    pub transmit: WebTransmit,
    /// whose connections begin with a PROXY header
    pub proxy_protocol: Vec<Prefix>,
    /// whose X-Forwarded-For is believed
    pub forwarded: Vec<Prefix>,
}

/// A host with its directory.
#[derive(Clone, Debug)]
pub struct HostSpec {
    /// what it is
    pub entry: HostEntry,
    /// its directory
    pub root: PathBuf,
    /// where it was asked for
    pub place: String,
}

impl HostSpec {
    /// Whether both ask for the same, wherever that stands.
    pub(crate) fn is_as(&self, other: &HostSpec) -> bool {
        self.entry == other.entry && self.root == other.root
    }
}

/// The access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLog {
    /// None is stderr
    pub path: Option<PathBuf>,
    /// what a line is
    pub format: LogFormat,
}

/// A host of which only the directory was given.
pub(crate) fn plain_host(root: &str, only: &OnlyHost) -> HostEntry {
    HostEntry {
        names: Vec::new(),
        root: root.to_owned(),
        index: (!only.index.is_empty()).then(|| only.index.clone()),
        listing: only.listing.is_some_and(|on| on.0),
        charset: None,
        types: BTreeMap::new(),
        cache: Vec::new(),
        header: Vec::new(),
        redirect: Vec::new(),
        error_page: Vec::new(),
        precompressed: None,
        dotfiles: (!only.dotfile.is_empty()).then(|| only.dotfile.clone()),
    }
}

/// The hosts of a file, with directories relative to `folder`.
pub(super) fn hosts(places: &Places<'_>, web: &WebOptions, folder: &Path, errors: &mut Vec<String>) -> Vec<HostSpec> {
    let mut hosts = Vec::new();
    if let Some(root) = &web.root {
        if !web.hosts.is_empty() {
            let at = places.at(root, "");
            errors.push(format!("{at}: a root beside [[web.host]]; give each host its own and leave this out"));
        }
        let entry = plain_host(&root.value, &OnlyHost::default());
        hosts.push(HostSpec { entry, root: folder.join(&root.value), place: places.at(root, "") });
    }
    hosts.extend(web.hosts.iter().map(|host| HostSpec {
        root: folder.join(&host.value.root),
        entry: host.value.clone(),
        place: places.at(host, ""),
    }));
    hosts
}

/// A cache that cannot work, or that leaves nothing for what is held.
fn check_cache(places: &Places<'_>, web: &WebOptions, errors: &mut Vec<String>) {
    let Some(cache) = &web.cache else { return };
    let (at, bytes) = (places.at(cache, "--cache"), cache.value.0);
    if bytes > 0 && bytes < CACHE_LEAST_BYTES {
        let size = crate::sites::size(bytes);
        errors.push(format!(
            "{at}: {size} are too few to send files from; give at least 1M, or 0 to refuse what does not fit"
        ));
    } else if web.memory.as_ref().is_some_and(|memory| bytes >= memory.value.0) {
        errors
            .push(format!("{at}: it leaves nothing of the memory for files that are held; give less, or more memory"));
    }
}

/// Fills in defaults and refuses contradictions.
pub(super) fn settle(
    places: &Places<'_>,
    hosts: Vec<HostSpec>,
    listen: &[Placed<Listen>],
    web: &WebOptions,
    errors: &mut Vec<String>,
) -> Web {
    if hosts.is_empty() {
        errors.push(word(
            places,
            "no directory; give DIR",
            "no directory; add root = \"DIR\" to [web], or [[web.host]]",
        ));
    }
    twice(places, listen, "--listen", errors);
    if let Some(memory) = web.memory.as_ref().filter(|memory| memory.value.0 == 0) {
        errors.push(format!("{}: 0 bytes hold no content; leave it out", places.at(memory, "--memory")));
    }
    check_cache(places, web, errors);
    if web.settle.is_some() && !web.watch.is_some_and(|on| on.0) {
        let option = word(places, "--settle", "web.settle");
        let mend = if places.file.is_some() { "watch = true" } else { "--watch" };
        errors.push(format!("{option}: the directories are not watched; add {mend}"));
    }
    if web.log_format.is_some() && web.access_log.is_none() {
        let option = word(places, "--log-format", "web.log-format");
        let mend = if places.file.is_some() { "access-log" } else { "--access-log FILE" };
        errors.push(format!("{option}: there is no access log; add {mend}"));
    }
    let access_log = web.access_log.as_ref().map(|path| AccessLog {
        path: (path != Path::new("-")).then(|| path.clone()),
        format: web.log_format.unwrap_or(LogFormat::Combined),
    });
    let mut addresses: Vec<_> = listen.iter().map(|placed| placed.value.0).collect();
    if addresses.is_empty() {
        addresses = vec![(Ipv6Addr::UNSPECIFIED, 80).into(), (Ipv4Addr::UNSPECIFIED, 80).into()];
    }
    Web {
        listen: addresses,
        listen_by_default: listen.is_empty(),
        hosts,
        server: match web.server.as_deref() {
            None => Some("simoom".to_owned()),
            Some("") => None,
            Some(text) => Some(text.to_owned()),
        },
        access_log,
        memory_bytes: web.memory.as_ref().map(|memory| memory.value.0),
        cache_bytes: web.cache.as_ref().map(|cache| cache.value.0),
        compress: web.compress.is_some_and(|on| on.0),
        watch_settle_ms: web.watch.is_some_and(|on| on.0).then(|| web.settle.map_or(500, |ms| ms.0)),
        connections: web.connections.map_or(16_384, |n| n.0 as usize),
        per_source: web.per_source.map_or(4096, |n| n.0 as usize),
        drain_s: web.drain.map_or(60, |n| n.0),
        request_timeout_s: web.request_timeout.map_or(10, |n| n.0),
        keep_alive_s: web.keep_alive.map_or(60, |n| n.0),
        send_timeout_s: web.send_timeout.map_or(60, |n| n.0),
        transmit: web.transmit.unwrap_or(WebTransmit::Auto),
        proxy_protocol: web.proxy_protocol.clone(),
        forwarded: web.forwarded.clone(),
    }
}
