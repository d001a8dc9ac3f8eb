//! stats, flush_all, verbosity, version.

use super::number::{self, signed_32, unsigned_32};
use super::{Words, World};
use crate::stats::{Baseline, Sum};
use std::sync::PoisonError;

/// The version that clients are told: that of the protocol, which some of them decide by, and ours.
macro_rules! version {
    () => {
        concat!("1.6.18-simoom-", env!("CARGO_PKG_VERSION"))
    };
}
const VERSION: &str = version!();
pub(super) const VERSION_LINE: &str = concat!("VERSION ", version!());

pub(super) fn verbosity(world: &mut World<'_>, words: &Words<'_>) {
    if words.len() != 2 && words.len() != 3 {
        return world.say(b"ERROR");
    }
    let quiet = words.last() == Some(&&b"noreply"[..]);
    // there is nothing that could be more verbose: logs are the whole server's
    let line: &[u8] = match unsigned_32(words[1]) {
        Some(_) => b"OK",
        None => b"CLIENT_ERROR bad command line format",
    };
    world.say_unless(quiet, line);
}

pub(super) fn flush_all(world: &mut World<'_>, words: &Words<'_>) {
    if words.len() > 3 {
        return world.say(b"ERROR");
    }
    let quiet = words.last() == Some(&&b"noreply"[..]);
    world.stats.flush.add(1);
    let mut delay = 0;
    if words.len() != if quiet { 2 } else { 1 } {
        let Some(given) = signed_32(words[1]) else {
            return world.say_unless(quiet, b"CLIENT_ERROR invalid exptime argument");
        };
        delay = given;
    }
    // a second early, as memcached has it; at once when that is now
    let at = world.clock.expiry(delay, world.now).saturating_sub(1);
    for number in 0..world.store.shards() {
        let mut shard = world.store.shard(number);
        if delay > 0 && at > world.now { shard.flush_at(at) } else { shard.flush() }
    }
    world.say_unless(quiet, b"OK");
}

pub(super) fn stats(world: &mut World<'_>, words: &Words<'_>) {
    match words.get(1).copied().unwrap_or_default() {
        b"" => general(world),
        b"reset" => {
            // counts only grow: read behind the lock, they are never below those of another thread's reset
            let mut baseline = world.shared.baseline.lock().unwrap_or_else(PoisonError::into_inner);
            *baseline = Baseline::now(world);
            drop(baseline);
            return world.say(b"RESET");
        }
        b"settings" => settings(world),
        b"items" => items(world),
        b"slabs" => slabs(world),
        b"sizes" => world.stat("sizes_status", "disabled"),
        b"conns" => {}
        b"detail" => {
            return match words.get(2).copied() {
                // nothing is kept by prefix
                Some(b"on" | b"off") => world.say(b"OK"),
                Some(b"dump") => world.say(b"END"),
                _ => world.say(b"CLIENT_ERROR usage: stats detail on|off|dump"),
            };
        }
        b"cachedump" => return world.say(b"CLIENT_ERROR stats cachedump not allowed"),
        _ => return world.say(b"ERROR"),
    }
    world.say(b"END");
}

impl Baseline {
    fn now(world: &World<'_>) -> Baseline {
        let of = |figure: fn(&crate::store::Figures) -> u64| world.store.figures().map(figure).sum();
        Baseline {
            sum: Sum::of(world.shared.all().iter().map(|stats| &**stats)),
            stored: of(|figures| figures.stored.get()),
            evictions: of(|figures| figures.evictions.get()),
            expired: of(|figures| figures.expired.get()),
        }
    }
}

impl World<'_> {
    fn stat(&mut self, name: &str, value: &str) {
        let out = &mut self.out.bytes;
        for part in ["STAT ", name, " ", value, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }

    fn stat_number(&mut self, name: &str, value: u64) {
        let out = &mut self.out.bytes;
        for part in ["STAT ", name, " "] {
            out.extend_from_slice(part.as_bytes());
        }
        number::write(out, value);
        out.extend_from_slice(b"\r\n");
    }

    /// A figure of a class.
    fn stat_of(&mut self, prefix: &str, class: usize, name: &str, value: u64) {
        self.out.bytes.extend_from_slice(b"STAT ");
        self.out.bytes.extend_from_slice(prefix.as_bytes());
        number::write(&mut self.out.bytes, class as u64);
        self.out.bytes.push(b':');
        self.out.bytes.extend_from_slice(name.as_bytes());
        self.out.bytes.push(b' ');
        number::write(&mut self.out.bytes, value);
        self.out.bytes.extend_from_slice(b"\r\n");
    }
}

fn general(world: &mut World<'_>) {
    let (now, limits) = (world.now, *world.store.limits());
    // behind the lock, as in a reset
    let before = world.shared.baseline.lock().unwrap_or_else(PoisonError::into_inner);
    let Baseline { sum, stored, evictions, expired } = Baseline::now(world);
    let sum = sum.since(&before.sum);
    let (stored, evictions, expired) = (stored - before.stored, evictions - before.evictions, expired - before.expired);
    drop(before);
    let of = |figure: fn(&crate::store::Figures) -> u64| -> u64 { world.store.figures().map(figure).sum() };
    let (items, bytes) = (of(|figures| figures.items.get()), of(|figures| figures.bytes.get()));
    let unfetched = of(|figures| figures.evicted_unfetched.get());
    let moved = of(|figures| figures.pages_moved.get());
    let index: usize = (0..world.store.shards()).map(|shard| world.store.shard(shard).index_bytes()).sum();
    world.stat_number("uptime", u64::from(now.saturating_sub(2)));
    world.stat_number("time", world.clock.unix(now));
    world.stat("version", VERSION);
    world.stat_number("pointer_size", u64::from(usize::BITS));
    for (name, value) in [
        ("curr_connections", sum.open),
        ("total_connections", sum.connections),
        ("cmd_get", sum.get_hits + sum.get_misses),
        ("cmd_set", sum.set),
        ("cmd_flush", sum.flush),
        ("cmd_touch", sum.touch_hits + sum.touch_misses),
        ("cmd_meta", sum.meta),
        ("get_hits", sum.get_hits),
        ("get_misses", sum.get_misses),
        ("delete_misses", sum.delete_misses),
        ("delete_hits", sum.delete_hits),
        ("incr_misses", sum.incr_misses),
        ("incr_hits", sum.incr_hits),
        ("decr_misses", sum.decr_misses),
        ("decr_hits", sum.decr_hits),
        ("cas_misses", sum.cas_misses),
        ("cas_hits", sum.cas_hits),
        ("cas_badval", sum.cas_badval),
        ("touch_hits", sum.touch_hits),
        ("touch_misses", sum.touch_misses),
        ("store_too_large", sum.too_large),
        ("store_no_memory", sum.no_memory),
        ("bytes_read", sum.bytes_in),
        ("bytes_written", sum.bytes_out),
        ("limit_maxbytes", limits.memory_bytes),
        ("accepting_conns", 1),
        ("threads", limits.threads as u64),
        ("hash_bytes", index as u64),
        ("hash_is_expanding", 0),
        ("slabs_moved", moved),
        ("bytes", bytes),
        ("curr_items", items),
        ("total_items", stored),
        ("evicted_unfetched", unfetched),
        ("evictions", evictions),
        ("reclaimed", expired),
    ] {
        world.stat_number(name, value);
    }
}

fn settings(world: &mut World<'_>) {
    let limits = *world.store.limits();
    world.stat_number("maxbytes", limits.memory_bytes);
    world.stat("evictions", "on");
    world.stat("growth_factor", "1.25");
    world.stat_number("num_threads", limits.threads as u64);
    world.stat("cas_enabled", "yes");
    world.stat("binding_protocol", "ascii");
    world.stat_number("item_size_max", limits.item_bytes);
    world.stat("hash_algorithm", "siphash13");
    world.stat("flush_enabled", "yes");
    world.stat("dump_enabled", "no");
    world.stat("shutdown_command", "no");
}

/// Classes, with one behind them for large values.
fn classes(world: &World<'_>) -> usize {
    world.store.shard(0).memory().classes().len() + 1
}

fn items(world: &mut World<'_>) {
    for class in 0..classes(world) {
        let (mut lengths, mut age) = ([0; 2], 0);
        for number in 0..world.store.shards() {
            let shard = world.store.shard(number);
            let of = shard.queues().lengths(class);
            lengths = [lengths[0] + u64::from(of[0]), lengths[1] + u64::from(of[1])];
            let oldest = shard.queues().oldest(shard.memory(), class);
            age = age.max(oldest.map_or(0, |(read, _)| world.now.saturating_sub(read)));
        }
        if lengths == [0; 2] {
            continue;
        }
        for (name, value) in [
            ("number", lengths[0] + lengths[1]),
            ("number_small", lengths[0]),
            ("number_main", lengths[1]),
            ("age", u64::from(age)),
        ] {
            world.stat_of("items:", class + 1, name, value);
        }
    }
}

fn slabs(world: &mut World<'_>) {
    let (mut active, mut allocated) = (0, 0);
    for class in 0..classes(world) {
        let (mut pages, mut cells, mut bytes) = (0u64, 0, 0);
        for number in 0..world.store.shards() {
            let shard = world.store.shard(number);
            let memory = shard.memory();
            pages += u64::from(memory.pages_of(class));
            cells = memory.cells_a_page(class) as u64;
            bytes = memory.classes().get(class).map_or(crate::store::memory::CHUNK_BYTES as u64, |n| u64::from(*n));
        }
        if pages == 0 {
            continue;
        }
        active += 1;
        allocated += pages * crate::store::memory::PAGE_BYTES as u64;
        for (name, value) in
            [("chunk_size", bytes), ("chunks_per_page", cells), ("total_pages", pages), ("total_chunks", pages * cells)]
        {
            world.stat_of("", class + 1, name, value);
        }
    }
    world.stat_number("active_slabs", active);
    world.stat_number("total_malloced", allocated);
}
