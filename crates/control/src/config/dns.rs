//! The DNS service's part of the settings.

use super::DataplaneOptions;
use super::places::{Places, twice, word};
use crate::words::{Backend, Listen, Placed, Prefix, QuestionCompression, Switch, Tier, Transmit, Within, ZoneArg};
use serde::Deserialize;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// What the DNS service does; `[dns]` in the file.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct DnsOptions {
    /// A question whose name is compressed: refuse (FORMERR) or accept
    #[arg(long, value_name = "WORD")]
    pub question_compression: Option<QuestionCompression>,
    /// How answers are sent: inplace (in the received frame), copy (in a frame of our own) or precopy (finished answers are
    /// retained); default: inplace
    #[arg(long, value_name = "WORD")]
    pub transmit: Option<Transmit>,
    /// What answers over UDP: driver (a program in the NIC's driver what is asked plainly, our own stack the rest), xdp (our own
    /// stack), sockets (one thread on kernel sockets, beside AF_XDP), or auto (driver where what it sends arrives, else xdp where
    /// there is AF_XDP, else kernel sockets); default: auto
    #[arg(long, value_name = "WORD")]
    pub tier: Option<Tier>,
    /// Most names whose answers are given to the driver, which are those asked for most; default: 65536
    #[arg(long, value_name = "N")]
    pub driver_names: Option<Within<1, 4_000_000>>,
    /// DNS cookies (RFC 7873): on or off
    #[arg(long, value_name = "on|off")]
    pub cookies: Option<Switch>,
    /// File of the cookies' secrets (RFC 9018), 32 hexadecimal digits a line, the first active: for servers that share an
    /// address; default: a random secret
    #[arg(long, value_name = "FILE")]
    pub cookie_secret: Option<String>,
    /// Name server identifier (RFC 5001), sent to who asks
    #[arg(long, value_name = "TEXT")]
    pub nsid: Option<String>,
    /// Answer to CH TXT version.bind; default: refused
    #[arg(long, value_name = "TEXT")]
    pub version_string: Option<String>,
    /// Answer to CH TXT id.server; default: refused
    #[arg(long, value_name = "TEXT")]
    pub id_string: Option<String>,
    /// Bytes of the largest answer over UDP, whatever the client offers
    #[arg(long, value_name = "BYTES")]
    pub edns_size: Option<Within<512, 4096>>,
    /// Most TCP connections at once; of one IPv4 address or IPv6 /56 a quarter
    #[arg(long, value_name = "N")]
    pub tcp_connections: Option<Within<1, 1_000_000>>,
    /// Seconds after which an idle TCP connection is closed
    #[arg(long, value_name = "SECONDS")]
    pub tcp_idle: Option<Within<1, 3600>>,
    /// MiB of answers that TCP clients have not taken yet, over all connections; beyond it none is queued
    #[arg(long, value_name = "MIB")]
    pub tcp_memory: Option<Within<1, 1_000_000>>,
    /// TCP connections that the kernel holds until they are accepted; no more than net.core.somaxconn
    #[arg(long, value_name = "N")]
    pub tcp_backlog: Option<Within<1, 65_535>>,
    #[command(flatten)]
    #[serde(rename = "rrl")]
    /// response rate limiting
    pub rrl: RrlOptions,
    #[arg(skip)]
    #[serde(rename = "zone")]
    /// the zones, in the file only: on the command line they are arguments
    pub zones: Vec<Placed<ZoneEntry>>,
}

/// Response rate limiting; `[dns.rrl]` in the file.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RrlOptions {
    /// Response rate limiting: answers a second to one prefix with one outcome; 0 is off
    #[arg(long = "rrl-rate", value_name = "N")]
    pub rate: Option<Within<0, 1_000_000>>,
    /// Every Nth limited answer goes out truncated, so that a real client can come back over TCP; 0 is none
    #[arg(long = "rrl-slip", value_name = "N")]
    pub slip: Option<Within<0, 100>>,
    /// A prefix that is never limited (again for more)
    #[arg(long = "rrl-exempt", value_name = "PREFIX")]
    pub exempt: Vec<Prefix>,
}

/// `[[dns.zone]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ZoneEntry {
    /// the zone's name; without it the file's own $ORIGIN
    pub origin: Option<String>,
    /// the zone file, relative to the configuration file's folder
    pub file: String,
}

/// The DNS service's settings.
#[derive(Clone, Debug)]
pub struct Dns {
    /// where it listens
    pub listen: Vec<SocketAddr>,
    /// nobody asked for these listeners, so one that the machine cannot have (IPv6 switched off) is left out
    pub listen_by_default: bool,
    /// the zones in order
    pub zones: Vec<ZoneSpec>,
    /// whether a compressed question is answered
    pub question_compression: QuestionCompression,
    /// how answers get into the frames that are sent
    pub transmit: Transmit,
    /// what answers datagrams, as asked for
    pub tier: Tier,
    /// most names whose answers are in the driver
    pub driver_names: u32,
    /// whether cookies are given and honoured
    pub cookies: bool,
    /// the file of the cookies' secrets
    pub cookie_secret: Option<String>,
    /// NSID
    pub nsid: Option<String>,
    /// version.bind
    pub version_string: Option<String>,
    /// id.server
    pub id_string: Option<String>,
    /// bytes of the largest UDP answer
    pub edns_size: u16,
    /// most TCP connections
    pub tcp_connections: usize,
    /// seconds
    pub tcp_idle_s: u32,
    /// bytes queued over all TCP connections; a web service beside adds its own to one budget for both
    pub tcp_memory_bytes: usize,
    /// connections before they are accepted, a listener
    pub tcp_backlog: u32,
    /// answers a second; None is off
    pub rrl_rate: Option<u32>,
    /// every Nth limited answer is truncated instead of dropped
    pub rrl_slip: u32,
    /// prefixes that are never limited
    pub rrl_exempt: Vec<Prefix>,
}

/// One zone to load.
#[derive(Clone, Debug)]
pub struct ZoneSpec {
    /// the name as given
    pub origin: Option<String>,
    /// the file
    pub file: String,
    /// where it was asked for
    pub place: String,
}

impl ZoneSpec {
    /// Whether both ask for the same, wherever that stands.
    pub(crate) fn is_as(&self, other: &ZoneSpec) -> bool {
        self.origin == other.origin && self.file == other.file
    }
}

/// The zones of a command line.
pub fn zone_specs(zones: &[ZoneArg]) -> Vec<ZoneSpec> {
    let spec =
        |zone: &ZoneArg| ZoneSpec { origin: zone.origin.clone(), file: zone.file.clone(), place: zone.file.clone() };
    zones.iter().map(spec).collect()
}

/// The defaults filled in; what is wrong goes to `errors`.
pub(super) fn settle(
    places: &Places<'_>,
    zones: Vec<ZoneSpec>,
    listen: &[Placed<Listen>],
    dns: &DnsOptions,
    errors: &mut Vec<String>,
) -> Dns {
    twice(places, listen, "--listen", errors);
    for (text, option, key) in [
        (&dns.nsid, "--nsid", "dns.nsid"),
        (&dns.version_string, "--version-string", "dns.version-string"),
        (&dns.id_string, "--id-string", "dns.id-string"),
    ] {
        // a character string of TXT has one length octet (RFC 1035 section 3.3.14)
        if let Some(text) = text.as_ref().filter(|text| text.is_empty() || text.len() > 255) {
            errors.push(format!("{}: {} bytes; give 1 to 255", word(places, option, key), text.len()));
        }
    }
    if dns.cookie_secret.is_some() && dns.cookies.is_some_and(|on| !on.0) {
        let option = word(places, "--cookie-secret", "dns.cookie-secret");
        errors.push(format!("{option}: cookies are off; remove one of the two"));
    }
    if zones.is_empty() {
        errors.push(word(places, "no zone; give ORIGIN=FILE", "no zone; add [[dns.zone]] with origin and file"));
    }
    let mut addresses: Vec<_> = listen.iter().map(|placed| placed.value.0).collect();
    if addresses.is_empty() {
        addresses = vec![(Ipv6Addr::UNSPECIFIED, 53).into(), (Ipv4Addr::UNSPECIFIED, 53).into()];
    }
    Dns {
        listen: addresses,
        listen_by_default: listen.is_empty(),
        zones,
        question_compression: dns.question_compression.unwrap_or(QuestionCompression::Refuse),
        transmit: dns.transmit.unwrap_or(Transmit::Inplace),
        tier: dns.tier.unwrap_or(Tier::Auto),
        driver_names: dns.driver_names.map_or(65_536, |n| n.0),
        cookies: dns.cookies.is_none_or(|on| on.0),
        cookie_secret: dns.cookie_secret.clone(),
        nsid: dns.nsid.clone(),
        version_string: dns.version_string.clone(),
        id_string: dns.id_string.clone(),
        // the flag day's size: no fragments on any usual path (RFC 9715 section 3.2 has 1400 as the upper bound)
        edns_size: dns.edns_size.map_or(1232, |n| n.0 as u16),
        tcp_connections: dns.tcp_connections.map_or(1024, |n| n.0 as usize),
        tcp_idle_s: dns.tcp_idle.map_or(10, |n| n.0),
        tcp_memory_bytes: dns.tcp_memory.map_or(64, |n| n.0 as usize) << 20,
        tcp_backlog: dns.tcp_backlog.map_or(1024, |n| n.0),
        rrl_rate: dns.rrl.rate.map(|n| n.0).filter(|&rate| rate > 0),
        rrl_slip: dns.rrl.slip.map_or(2, |n| n.0),
        rrl_exempt: dns.rrl.exempt.clone(),
    }
}

/// What `--tier` asks for and cannot have.
pub(super) fn tiers(
    places: &Places<'_>,
    dataplane: &DataplaneOptions,
    backend: Backend,
    dns: &Dns,
    errors: &mut Vec<String>,
) {
    let option = word(places, &format!("--tier {}", dns.tier), &format!("dns.tier = \"{}\"", dns.tier));
    let by_sockets = backend == Backend::Sockets || dataplane.interface.is_empty();
    let filtered = !dataplane.allow.is_empty() || !dataplane.deny.is_empty();
    let mut refuse = |why: &str| errors.push(format!("{option}: {why}"));
    match dns.tier {
        Tier::Driver | Tier::Xdp if by_sockets => refuse("needs AF_XDP; add --interface IF"),
        Tier::Driver if !dataplane.own.is_empty() => {
            refuse("the driver has no --own addresses; leave one of the two out");
        }
        Tier::Sockets if by_sockets => {}
        Tier::Sockets if !dataplane.own.is_empty() => {
            refuse("kernel sockets cannot serve --own addresses; leave one of the two out");
        }
        Tier::Sockets if filtered => refuse("kernel sockets cannot apply --allow and --deny; leave it out"),
        Tier::Auto | Tier::Driver | Tier::Xdp | Tier::Sockets => {}
    }
}
