//! The commands that every client knows: get and its kin, set and its kin, delete, incr, decr, touch.

use super::number::{self, signed_32, unsigned, unsigned_32, unsigned_of};
use super::{KEY_MOST_BYTES, Keys, State, Step, Storing, Words, World, take_value};
use crate::store::counted_bytes;
use crate::store::item::{self, LARGE};
use crate::store::shard::{Mode, NoMemory, Order, Outcome, Shard, Source};
use std::num::NonZeroU64;
use std::sync::MutexGuard;

const BAD_LINE: &[u8] = b"CLIENT_ERROR bad command line format";
const BAD_TIME: &[u8] = b"CLIENT_ERROR invalid exptime argument";
/// In a larger item, as memcached counts its bytes, memcached sees no number whatever is in it: it keeps such a one in several pieces.
const NUMERIC_MOST_BYTES: u64 = 512 << 10;
const NOT_NUMERIC: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value";

/// Whether the last word says that no reply is wanted.
fn is_quiet(words: &Words<'_>) -> bool {
    words.last().is_some_and(|word| *word == b"noreply")
}

/// A `get` without an end in what can be read: its keys are taken as they come.
pub(super) fn long_get(state: &mut State, input: &[u8]) -> Step {
    let spaces = input.iter().take_while(|byte| **byte == b' ').count();
    let command = &input[spaces..];
    let (cas, bytes) = match command {
        _ if spaces > 100 => return Step::Close,
        _ if command.starts_with(b"get ") => (false, 4),
        _ if command.starts_with(b"gets ") => (true, 5),
        _ => return Step::Close,
    };
    *state = State::Keys(Keys { cas, touch: None });
    Step::Done(spaces + bytes)
}

/// A `get` whose line is there: looks at all keys, then answers one after the other.
pub(super) fn get(world: &mut World<'_>, state: &mut State, line: &[u8], used: usize, input: &[u8]) -> Step {
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let command = words.next().unwrap_or_default();
    let Some(first) = words.clone().next() else {
        world.say(b"ERROR");
        return Step::Done(used);
    };
    let (cas, touches) = (command.ends_with(b"s"), command.starts_with(b"gat"));
    let mut touch = None;
    if touches {
        let Some(given) = signed_32(first) else {
            world.say(BAD_TIME);
            return Step::Done(used);
        };
        touch = Some(world.clock.expiry(given, world.now));
        words.next();
    }
    if words.clone().any(|key| key.len() > KEY_MOST_BYTES) {
        world.say(BAD_LINE);
        return Step::Done(used);
    }
    let keys = Keys { cas, touch };
    match words.clone().count() {
        0 | 1 => {
            if let Some(key) = words.next() {
                answer_key(world, keys, key, None);
            }
            world.out.bytes.extend_from_slice(b"END\r\n");
            Step::Done(used)
        }
        _ => {
            *state = State::Keys(keys);
            let at = words.next().map_or(0, |key| key.as_ptr().addr() - input.as_ptr().addr());
            Step::Done(at)
        }
    }
}

/// The next key of a `get`, or its end.
pub(super) fn next_key(world: &mut World<'_>, state: &mut State, keys: Keys, input: &[u8]) -> Step {
    let spaces = input.iter().take_while(|byte| **byte == b' ').count();
    let rest = &input[spaces..];
    match memchr::memchr3(b' ', b'\n', 0, rest) {
        None if rest.len() > KEY_MOST_BYTES + 1 => too_long(world, state, spaces),
        None if spaces > 0 => Step::Done(spaces),
        None => Step::More,
        Some(end) => {
            let (mut key, ended_by) = (&rest[..end], rest[end]);
            if ended_by == b'\n' {
                key = key.strip_suffix(b"\r").unwrap_or(key);
            }
            if key.len() > KEY_MOST_BYTES {
                return too_long(world, state, spaces);
            }
            if !key.is_empty() {
                answer_key(world, keys, key, None);
            }
            if ended_by != b' ' {
                world.out.bytes.extend_from_slice(b"END\r\n");
                // what the line has behind a NUL is no key
                *state = if ended_by == b'\n' { State::Line } else { State::Skip };
            }
            Step::Done(spaces + end + 1)
        }
    }
}

fn too_long(world: &mut World<'_>, state: &mut State, spaces: usize) -> Step {
    world.say(BAD_LINE);
    *state = State::Skip;
    Step::Done(spaces)
}

/// What a `get` of one key says.
#[inline]
pub(super) fn answer_one(world: &mut World<'_>, key: &[u8]) {
    let foreseen = world.foreseen.take();
    answer_key(world, Keys { cas: false, touch: None }, key, foreseen);
    world.out.bytes.extend_from_slice(b"END\r\n");
}

/// A key's shard and its item there; `foreseen` is most likely its hash. What is found by it has that key; that nothing is found by it says
/// nothing.
#[inline]
fn find<'s>(world: &World<'s>, key: &[u8], foreseen: Option<NonZeroU64>) -> (MutexGuard<'s, Shard>, Option<u32>) {
    let of_hash = |hash| {
        let mut shard = world.store.shard(world.number(hash));
        let found = shard.find(hash, key, world.now);
        (shard, found)
    };
    if let Some(hash) = foreseen.map(NonZeroU64::get) {
        let (shard, found) = of_hash(hash);
        if found.is_some() || hash == world.store.hash(key) {
            return (shard, found);
        }
        drop(shard);
    }
    of_hash(world.store.hash(key))
}

/// What a `get` says of one key.
#[inline]
fn answer_key(world: &mut World<'_>, keys: Keys, key: &[u8], foreseen: Option<NonZeroU64>) {
    let (mut shard, found) = find(world, key, foreseen);
    let (stats, out) = (world.stats, &mut *world.out);
    match (found.is_some(), keys.touch.is_some()) {
        (true, false) => stats.get_hits.add(1),
        (false, false) => stats.get_misses.add(1),
        (true, true) => stats.touch_hits.add(1),
        (false, true) => stats.touch_misses.add(1),
    }
    let Some(place) = found else { return };
    if let Some(expiry) = keys.touch {
        item::set_expiry(shard.cell_mut(place), expiry);
    }
    shard.bump(place, world.now);
    let view = shard.view(place);
    out.bytes.extend_from_slice(b"VALUE ");
    out.bytes.extend_from_slice(key);
    out.bytes.push(b' ');
    number::write(&mut out.bytes, u64::from(view.flags()));
    out.bytes.push(b' ');
    number::write(&mut out.bytes, u64::from(view.bytes()));
    if keys.cas {
        out.bytes.push(b' ');
        number::write(&mut out.bytes, view.cas());
    }
    out.bytes.extend_from_slice(b"\r\n");
    write_value(&shard, place, out);
    out.bytes.extend_from_slice(b"\r\n");
}

/// A value: copied when it is small, else the chunks that it stands in.
#[inline]
pub(super) fn write_value(shard: &Shard, place: u32, out: &mut crate::out::Out) {
    let view = shard.view(place);
    if !view.is(LARGE) {
        return out.bytes.extend_from_slice(view.value());
    }
    for (chunk, bytes) in shard.chunks(place) {
        if let Some(content) = shard.memory().content(chunk) {
            out.chunk(content, bytes);
        }
    }
}

/// `set`, `add`, `replace`, `append`, `prepend`, `cas`.
pub(super) fn set(
    world: &mut World<'_>,
    state: &mut State,
    mode: Mode,
    words: &Words<'_>,
    used: usize,
    rest: &[u8],
) -> Step {
    let least = if mode == Mode::Cas { 6 } else { 5 };
    if words.len() != least && words.len() != least + 1 {
        world.say(b"ERROR");
        return Step::Done(used);
    }
    let quiet = is_quiet(words);
    let key = words[1];
    let numbers = (unsigned_32(words[2]), signed_32(words[3]), signed_32(words[4]));
    let cas = if mode == Mode::Cas { unsigned(words[5]) } else { Some(0) };
    // the largest that memcached counts with
    let bytes = |given: i32| usize::try_from(given).ok().filter(|_| given <= i32::MAX - 2);
    let ((Some(flags), Some(expiry), Some(given)), Some(cas)) = (numbers, cas) else {
        world.say_unless(quiet, BAD_LINE);
        return Step::Done(used);
    };
    let (Some(bytes), true) = (bytes(given), key.len() <= KEY_MOST_BYTES) else {
        world.say_unless(quiet, BAD_LINE);
        return Step::Done(used);
    };
    if world.store.is_too_large(key.len(), flags, bytes) {
        world.stats.too_large.add(1);
        world.say_unless(quiet, b"SERVER_ERROR object too large for cache");
        if mode == Mode::Set {
            super::drop_stale(world, key, world.store.hash(key));
        }
        *state = State::Swallow(bytes as u64 + 2);
        return Step::Done(used);
    }
    let expiry = world.clock.expiry(expiry, world.now);
    let store = Storing { mode, flags, expiry, cas, invalidate: false, binary: false, quiet, echo: None };
    take_value(world, state, key, bytes, store, used, rest)
}

pub(super) fn delete(world: &mut World<'_>, words: &Words<'_>) {
    if !(2..=4).contains(&words.len()) {
        return world.say(b"ERROR");
    }
    let mut quiet = false;
    if words.len() > 2 {
        let zero = words[2] == b"0";
        quiet = is_quiet(words);
        let valid = (words.len() == 3 && (zero || quiet)) || (words.len() == 4 && zero && quiet);
        if !valid {
            return world.say_unless(quiet, b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]");
        }
    }
    let key = words[1];
    if key.len() > KEY_MOST_BYTES {
        return world.say_unless(quiet, BAD_LINE);
    }
    let hash = world.store.hash(key);
    let mut shard = world.store.shard(world.number(hash));
    let found = shard.find(hash, key, world.now);
    if let Some(place) = found {
        shard.remove(place);
    }
    drop(shard);
    let (counter, line) = match found {
        Some(_) => (&world.stats.delete_hits, &b"DELETED"[..]),
        None => (&world.stats.delete_misses, &b"NOT_FOUND"[..]),
    };
    counter.add(1);
    world.say_unless(quiet, line);
}

pub(super) fn touch(world: &mut World<'_>, words: &Words<'_>) {
    if words.len() != 3 && words.len() != 4 {
        return world.say(b"ERROR");
    }
    let (quiet, key) = (is_quiet(words), words[1]);
    if key.len() > KEY_MOST_BYTES {
        return world.say_unless(quiet, BAD_LINE);
    }
    let Some(given) = signed_32(words[2]) else {
        return world.say_unless(quiet, BAD_TIME);
    };
    let expiry = world.clock.expiry(given, world.now);
    let hash = world.store.hash(key);
    let mut shard = world.store.shard(world.number(hash));
    let found = shard.find(hash, key, world.now);
    if let Some(place) = found {
        item::set_expiry(shard.cell_mut(place), expiry);
        shard.bump(place, world.now);
    }
    drop(shard);
    let (counter, line) = match found {
        Some(_) => (&world.stats.touch_hits, &b"TOUCHED"[..]),
        None => (&world.stats.touch_misses, &b"NOT_FOUND"[..]),
    };
    counter.add(1);
    world.say_unless(quiet, line);
}

/// How a number was changed.
pub(super) enum Changed {
    /// it is that now, of the item at this place
    To(u64, u32),
    NotFound,
    NotNumeric,
    OtherCas,
    NoMemory,
}

/// The number that a value is.
fn number_of(shard: &Shard, place: u32) -> Option<u64> {
    let view = shard.view(place);
    if !view.is(LARGE) {
        return unsigned(view.value());
    }
    unsigned_of(shard.chunks(place).map(|(chunk, bytes)| &shard.memory().chunk_bytes(chunk)[..bytes]))
}

/// Stores a number, and spaces behind it, as a value of so many bytes.
fn store_padded(shard: &mut Shard, order: &Order<'_>, text: &[u8], bytes: usize, now: u32) -> Outcome {
    let Ok(place) = shard.build(order, bytes, now) else { return Outcome::NoMemory };
    shard.write_padded(place, text);
    shard.store(order, Source::Built(place), now)
}

/// Adds to, or takes from, the number that is a key's value. A number with fewer digits than before keeps its length, with spaces behind.
pub(super) fn change(
    shard: &mut Shard,
    (hash, key): (u64, &[u8]),
    up: bool,
    delta: u64,
    cas: u64,
    now: u32,
) -> Changed {
    let Some(place) = shard.find(hash, key, now) else { return Changed::NotFound };
    let view = shard.view(place);
    let bytes = view.bytes() as usize;
    if bytes == 0 || counted_bytes(key.len(), view.flags(), bytes) > NUMERIC_MOST_BYTES {
        return Changed::NotNumeric;
    }
    if cas != 0 && view.cas() != cas {
        return Changed::OtherCas;
    }
    let (flags, expiry, binary) = (view.flags(), view.expiry(), view.is(item::BINARY));
    let Some(number) = number_of(shard, place) else { return Changed::NotNumeric };
    let number = if up { number.wrapping_add(delta) } else { number.saturating_sub(delta) };
    let text = number::digits(number);
    if text.len() <= bytes && !shard.is_held(place) {
        shard.write_padded(place, &text);
        shard.note_use(place, now);
        shard.renumber(place);
        return Changed::To(number, place);
    }
    let order = Order { mode: Mode::Set, hash, key, flags, expiry, cas: 0, invalidate: false, binary };
    let stored = match text.len() <= bytes {
        // what is on its way stays as it was
        true => store_padded(shard, &order, &text, bytes, now),
        false => shard.store(&order, Source::Bytes(&text), now),
    };
    match stored {
        Outcome::Stored(_) => match shard.find(hash, key, now) {
            Some(place) => Changed::To(number, place),
            None => Changed::NotFound,
        },
        _ => Changed::NoMemory,
    }
}

pub(super) fn arithmetic(world: &mut World<'_>, words: &Words<'_>, up: bool) {
    if words.len() != 3 && words.len() != 4 {
        return world.say(b"ERROR");
    }
    let (quiet, key) = (is_quiet(words), words[1]);
    if key.len() > KEY_MOST_BYTES {
        return world.say_unless(quiet, BAD_LINE);
    }
    let Some(delta) = unsigned(words[2]) else {
        return world.say_unless(quiet, b"CLIENT_ERROR invalid numeric delta argument");
    };
    let hash = world.store.hash(key);
    let changed = change(&mut world.store.shard(world.number(hash)), (hash, key), up, delta, 0, world.now);
    let stats = world.stats;
    let (hits, misses) =
        if up { (&stats.incr_hits, &stats.incr_misses) } else { (&stats.decr_hits, &stats.decr_misses) };
    match changed {
        Changed::To(number, _) => {
            hits.add(1);
            if !quiet {
                number::write(&mut world.out.bytes, number);
                world.out.bytes.extend_from_slice(b"\r\n");
            }
        }
        Changed::NotFound | Changed::OtherCas => {
            misses.add(1);
            world.say_unless(quiet, b"NOT_FOUND");
        }
        Changed::NotNumeric => world.say_unless(quiet, NOT_NUMERIC),
        Changed::NoMemory => world.say_unless(quiet, b"SERVER_ERROR out of memory"),
    }
}

/// An item of these bytes, which is in the store then.
pub(super) fn add(shard: &mut Shard, order: &Order<'_>, bytes: &[u8], now: u32) -> Result<u32, NoMemory> {
    match shard.store(order, Source::Bytes(bytes), now) {
        Outcome::Stored(_) => shard.find(order.hash, order.key, now).ok_or(NoMemory),
        _ => Err(NoMemory),
    }
}
