//! The key-value store's part of the settings.

use super::places::{Places, twice};
use crate::words::{Listen, Placed, Placement, Size, Switch, Within};
use serde::Deserialize;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// The least memory for items: below it not even one of the largest could be stored beside others.
const MEMORY_LEAST_BYTES: u64 = 4 << 20;
/// The bounds of the largest item.
const ITEM_BYTES: std::ops::RangeInclusive<u64> = 1024..=64 << 20;

/// What the key-value store does; `[kv]` in the file.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct KvOptions {
    #[arg(skip)]
    /// where it listens, in the file only: on the command line it is --listen
    pub listen: Vec<Placed<Listen>>,
    /// Memory for items, such as 512M or 4G, at least 4M; the table of keys comes on top, a twentieth to a tenth; default: 64M
    #[arg(long, short = 'm', value_name = "SIZE")]
    pub memory: Option<Placed<Size>>,
    /// The largest item, key and some 60 bytes more included, 1K to 64M and at most half of the memory; default: 1M
    #[arg(long, short = 'I', value_name = "SIZE")]
    pub item_size: Option<Placed<Size>>,
    /// Most connections at once; default: 16384
    #[arg(long, value_name = "N")]
    pub connections: Option<Within<1, 10_000_000>>,
    /// Most connections at once from one IPv4 address or IPv6 /56, a thread; default: 4096
    #[arg(long, value_name = "N")]
    pub per_source: Option<Within<1, 10_000_000>>,
    /// Seconds after which an idle connection is closed; 0 is never; default: 0
    #[arg(long, value_name = "SECONDS")]
    pub idle_timeout: Option<Within<0, 86_400>>,
    /// Seconds that a client may take nothing of its answers, or send nothing of a command that it began; default: 60
    #[arg(long, value_name = "SECONDS")]
    pub send_timeout: Option<Within<1, 3600>>,
    /// Answer gets over UDP too: on or off (whoever forges a source has answers sent there); default: off
    #[arg(long, value_name = "on|off")]
    pub udp: Option<Switch>,
    /// Give each thread a store of its own, of which a connection sees that of the thread that accepted it, on or off; without it all
    /// connections see all items; default: off
    #[arg(long, value_name = "on|off", num_args = 0..=1, default_missing_value = "on")]
    pub shared_nothing: Option<Switch>,
    /// Where the store runs: inline, or in an unprivileged process of its own, same (on the processor of the thread that serves it)
    /// or cpu=N; default: inline
    #[arg(long, value_name = "PLACE")]
    pub place: Option<Placement>,
}

/// The key-value store's settings.
#[derive(Clone, Debug)]
pub struct Kv {
    /// where it listens
    pub listen: Vec<SocketAddr>,
    /// nobody asked for these listeners
    pub listen_by_default: bool,
    /// bytes for items
    pub memory_bytes: u64,
    /// bytes of the largest item
    pub item_bytes: u64,
    /// most connections
    pub connections: usize,
    /// most connections of one source, a thread
    pub per_source: usize,
    /// seconds; None is never
    pub idle_s: Option<u32>,
    /// seconds
    pub send_timeout_s: u32,
    /// whether gets are answered over UDP
    pub udp: bool,
    /// whether each thread has a store of its own
    pub shared_nothing: bool,
    /// where it runs
    pub place: Placement,
}

/// Fills in defaults and refuses contradictions.
pub(super) fn settle(places: &Places<'_>, listen: &[Placed<Listen>], kv: &KvOptions, errors: &mut Vec<String>) -> Kv {
    twice(places, listen, "--listen", errors);
    let mut addresses: Vec<_> = listen.iter().map(|placed| placed.value.0).collect();
    if addresses.is_empty() {
        addresses = vec![(Ipv6Addr::UNSPECIFIED, ::kv::PORT).into(), (Ipv4Addr::UNSPECIFIED, ::kv::PORT).into()];
    }
    let memory_bytes = kv.memory.as_ref().map_or(64 << 20, |memory| memory.value.0);
    if let Some(memory) = kv.memory.as_ref().filter(|memory| memory.value.0 < MEMORY_LEAST_BYTES) {
        errors.push(format!("{}: too little to store anything in; give at least 4M", places.at(memory, "--memory")));
    }
    let item_bytes = kv.item_size.as_ref().map_or(1 << 20, |size| size.value.0);
    if let Some(size) = &kv.item_size
        && !(ITEM_BYTES.contains(&item_bytes) && item_bytes <= memory_bytes / 2)
    {
        let at = places.at(size, "--item-size");
        errors.push(format!("{at}: give 1K to 64M, and no more than half of the memory"));
    }
    Kv {
        listen: addresses,
        listen_by_default: listen.is_empty(),
        memory_bytes,
        item_bytes,
        connections: kv.connections.map_or(16_384, |n| n.0 as usize),
        per_source: kv.per_source.map_or(4096, |n| n.0 as usize),
        idle_s: kv.idle_timeout.map(|seconds| seconds.0).filter(|seconds| *seconds > 0),
        send_timeout_s: kv.send_timeout.map_or(60, |n| n.0),
        udp: kv.udp.is_some_and(|on| on.0),
        shared_nothing: kv.shared_nothing.is_some_and(|on| on.0),
        place: kv.place.unwrap_or_default(),
    }
}
