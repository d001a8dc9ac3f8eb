//! The meta commands: mg, ms, md, ma, me. Flags are single letters, some with a token behind them; what a client wants to be told comes
//! back in the order in which it asked.

use super::classic::{Changed, add, change, write_value};
use super::number::{self, signed_32, unsigned, unsigned_32};
use super::{ECHO_MOST_BYTES, KEY_MOST_BYTES, State, Step, Storing, Words, World, take_value};
use crate::store::item::{self, BINARY, FETCHED, STALE, WON};
use crate::store::shard::{Mode, Order, Outcome};
use arrayvec::ArrayVec;
use data_encoding::BASE64;

const BAD_LINE: &[u8] = b"CLIENT_ERROR bad command line format";
const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format";
const BAD_FLAGS: &[u8] = b"CLIENT_ERROR invalid or duplicate flag";
const OPAQUE_TOO_LONG: &[u8] = b"CLIENT_ERROR opaque token too long";
/// Words of a meta command, its name and key included.
const WORDS_MOST: usize = 19;
/// Bytes of an opaque token, its letter included.
const OPAQUE_MOST_BYTES: usize = 32;
/// Bytes of a key in base64.
const ENCODED_MOST_BYTES: usize = KEY_MOST_BYTES.div_ceil(3) * 4;

/// A key as it came, decoded.
type Key = ArrayVec<u8, KEY_MOST_BYTES>;

/// What the flags of a command say.
#[derive(Default)]
struct Flags {
    key: Key,
    binary: bool,
    quiet: bool,
    value: bool,
    no_update: bool,
    invalidate: bool,
    vivify: Option<u32>,
    expiry: Option<u32>,
    recache: u32,
    client_flags: u32,
    cas: u64,
    has_cas: bool,
    mode: u8,
    initial: u64,
    delta: Option<u64>,
}

impl Flags {
    /// Reads flags; the words from `from` on are flags.
    fn read(world: &World<'_>, words: &Words<'_>, from: usize) -> Result<Flags, &'static [u8]> {
        let mut flags = Flags { key: words[1].iter().copied().collect(), ..Flags::default() };
        let mut seen = 0u128;
        let mut wrong: Option<&'static [u8]> = None;
        for word in words.iter().skip(from) {
            let (letter, token) = (word[0], &word[1..]);
            if letter >= 127 || seen & 1 << letter != 0 {
                return Err(b"CLIENT_ERROR duplicate flag");
            }
            seen |= 1 << letter;
            let time = || signed_32(token).map(|given| world.clock.expiry(given, world.now)).ok_or(BAD_TOKEN);
            let result = match letter {
                b'b' => flags.decode(words[1]),
                b'N' => time().map(|at| flags.vivify = Some(at)),
                b'T' => time().map(|at| flags.expiry = Some(at)),
                b'R' => time().map(|at| flags.recache = at),
                b'F' => unsigned_32(token).map(|given| flags.client_flags = given).ok_or(wrong.unwrap_or(BAD_LINE)),
                b'C' => unsigned(token).map(|cas| (flags.cas, flags.has_cas) = (cas, true)).ok_or(BAD_TOKEN),
                b'M' if token.len() == 1 => {
                    flags.mode = token[0];
                    Ok(())
                }
                b'M' => Err(&b"CLIENT_ERROR incorrect length for M token"[..]),
                b'J' => {
                    let wrong = &b"CLIENT_ERROR invalid numeric initial value"[..];
                    unsigned(token).map(|initial| flags.initial = initial).ok_or(wrong)
                }
                b'D' => {
                    let wrong = &b"CLIENT_ERROR invalid numeric delta value"[..];
                    unsigned(token).map(|delta| flags.delta = Some(delta)).ok_or(wrong)
                }
                b'I' => flags.set(|flags| flags.invalidate = true),
                b'q' => flags.set(|flags| flags.quiet = true),
                b'v' => flags.set(|flags| flags.value = true),
                b'u' => flags.set(|flags| flags.no_update = true),
                b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'h' | b'l' => Ok(()),
                _ => return Err(b"CLIENT_ERROR invalid flag"),
            };
            wrong = result.err().or(wrong);
        }
        wrong.map_or(Ok(flags), Err)
    }

    fn set(&mut self, change: impl FnOnce(&mut Flags)) -> Result<(), &'static [u8]> {
        change(self);
        Ok(())
    }

    fn decode(&mut self, encoded: &[u8]) -> Result<(), &'static [u8]> {
        self.binary = true;
        self.key = decode_base64(encoded).ok_or(&b"CLIENT_ERROR error decoding key"[..])?;
        Ok(())
    }
}

/// A key in base64, as memcached reads it and no library does: octets that are not of the alphabet are passed over, what follows a
/// block with padding is counted and not looked at, and the bits behind the last octet may be any.
fn decode_base64(encoded: &[u8]) -> Option<Key> {
    let digit = |octet: u8| match octet {
        b'A'..=b'Z' => Some(octet - b'A'),
        b'a'..=b'z' => Some(octet - b'a' + 26),
        b'0'..=b'9' => Some(octet - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        b'=' => Some(0),
        _ => None,
    };
    let digits: ArrayVec<(u8, bool), KEY_MOST_BYTES> =
        encoded.iter().filter_map(|octet| Some((digit(*octet)?, *octet == b'='))).collect();
    let (blocks, []) = digits.as_chunks::<4>() else { return None };
    let mut key = ArrayVec::new();
    for block in blocks {
        let bits = block.iter().fold(0, |bits, (digit, _)| bits << 6 | u32::from(*digit));
        let padding = block.iter().filter(|(_, is_padding)| *is_padding).count();
        let [_, octets @ ..] = bits.to_be_bytes();
        key.extend(octets.into_iter().take(3_usize.saturating_sub(padding)));
        match padding {
            0 => {}
            1 | 2 => break,
            _ => return None,
        }
    }
    (!key.is_empty()).then_some(key)
}

/// What all meta commands refuse before they read a flag.
fn refused(words: &Words<'_>, too_many: &'static [u8]) -> Option<&'static [u8]> {
    if words.len() < 2 {
        Some(b"ERROR")
    } else if words[1].len() > KEY_MOST_BYTES {
        Some(BAD_LINE)
    } else if words.len() > WORDS_MOST {
        Some(too_many)
    } else {
        None
    }
}

fn write_key(out: &mut Vec<u8>, key: &[u8], binary: bool) {
    out.extend_from_slice(b" k");
    write_plain_key(out, key, binary);
    if binary {
        out.extend_from_slice(b" b");
    }
}

fn write_plain_key(out: &mut Vec<u8>, key: &[u8], binary: bool) {
    if !binary {
        return out.extend_from_slice(key);
    }
    let mut encoded = [0; ENCODED_MOST_BYTES];
    let encoded = &mut encoded[..BASE64.encode_len(key.len())];
    BASE64.encode_mut(key, encoded);
    out.extend_from_slice(encoded);
}

fn write_number(out: &mut Vec<u8>, letter: u8, number: u64) {
    out.extend_from_slice(&[b' ', letter]);
    number::write(out, number);
}

/// The seconds that an item has left.
fn write_time_left(out: &mut Vec<u8>, expiry: u32, now: u32) {
    if expiry == 0 {
        return out.extend_from_slice(b" t-1");
    }
    write_number(out, b't', u64::from(expiry.wrapping_sub(now)));
}

/// The opaque token and the key, as they came.
fn write_asked(out: &mut Vec<u8>, words: &Words<'_>, from: usize, flags: &Flags) {
    for word in words.iter().skip(from) {
        match word[0] {
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(word);
            }
            b'k' => write_key(out, &flags.key, flags.binary),
            _ => {}
        }
    }
}

fn has_long_opaque(words: &Words<'_>, from: usize) -> bool {
    words.iter().skip(from).any(|word| word[0] == b'O' && word.len() > OPAQUE_MOST_BYTES)
}

pub(super) fn get(world: &mut World<'_>, words: &Words<'_>) {
    if let Some(refused) = refused(words, b"CLIENT_ERROR options flags are too long") {
        return world.say(refused);
    }
    let flags = match Flags::read(world, words, 2) {
        Ok(flags) => flags,
        Err(wrong) => return world.say(wrong),
    };
    if has_long_opaque(words, 2) {
        return world.say(OPAQUE_TOO_LONG);
    }
    let (now, key) = (world.now, &flags.key[..]);
    let hash = world.store.hash(key);
    let mut shard = world.store.shard(world.number(hash));
    let found = shard.find(hash, key, now);
    let (place, created) = match (found, flags.vivify) {
        (Some(place), _) => (place, false),
        (None, Some(_)) => {
            let order = Order {
                mode: Mode::Add,
                hash,
                key,
                flags: 0,
                // until its flag's turn comes, as in memcached
                expiry: 0,
                cas: 0,
                invalidate: false,
                // unlike memcached, which would send what was decoded as it is: a key with an end of line would be an answer of its own
                binary: flags.binary,
            };
            match add(&mut shard, &order, b"", now) {
                Ok(place) => (place, true),
                Err(_) => {
                    drop(shard);
                    return miss(world, words, &flags);
                }
            }
        }
        (None, None) => {
            drop(shard);
            return miss(world, words, &flags);
        }
    };
    match flags.expiry {
        None => world.stats.get_hits.add(1),
        Some(_) => world.stats.touch_hits.add(1),
    }
    let out = &mut world.out.bytes;
    let bytes = shard.view(place).bytes();
    if flags.value {
        out.extend_from_slice(b"VA ");
        number::write(out, u64::from(bytes));
    } else {
        out.extend_from_slice(b"HD");
    }
    let mut won = created && flags.vivify.is_some();
    for word in words.iter().skip(2) {
        let view = shard.view(place);
        match word[0] {
            b'T' => item::set_expiry(shard.cell_mut(place), flags.expiry.unwrap_or_default()),
            b'N' if created => item::set_expiry(shard.cell_mut(place), flags.vivify.unwrap_or_default()),
            b'R' => won |= !view.is(WON) && !created && view.expiry() != 0 && view.expiry() < flags.recache,
            b's' => write_number(out, b's', u64::from(bytes)),
            b't' => write_time_left(out, view.expiry(), now),
            b'c' => write_number(out, b'c', view.cas()),
            b'f' => write_number(out, b'f', u64::from(view.flags())),
            b'l' => write_number(out, b'l', u64::from(now.saturating_sub(view.read()))),
            b'h' => write_number(out, b'h', u64::from(view.is(FETCHED))),
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(word);
            }
            b'k' => write_key(out, view.key(), view.is(BINARY)),
            _ => {}
        }
    }
    let (was_won, is_stale) = (shard.view(place).is(WON), shard.view(place).is(STALE));
    if was_won {
        out.extend_from_slice(b" Z");
    }
    if is_stale {
        out.extend_from_slice(b" X");
        won |= !was_won;
    }
    if won && world.may_change {
        out.extend_from_slice(b" W");
        item::mark(shard.cell_mut(place), WON, true);
    }
    out.extend_from_slice(b"\r\n");
    if flags.value {
        write_value(&shard, place, world.out);
        world.out.bytes.extend_from_slice(b"\r\n");
    }
    if !flags.no_update {
        shard.bump(place, now);
    }
}

fn miss(world: &mut World<'_>, words: &Words<'_>, flags: &Flags) {
    world.stats.get_misses.add(1);
    if !flags.quiet {
        world.out.bytes.extend_from_slice(b"EN");
        write_asked(&mut world.out.bytes, words, 2, flags);
        world.out.bytes.extend_from_slice(b"\r\n");
    }
}

pub(super) fn set(world: &mut World<'_>, state: &mut State, words: &Words<'_>, used: usize, rest: &[u8]) -> Step {
    let done = |world: &mut World<'_>, line: &[u8]| {
        world.say(line);
        Step::Done(used)
    };
    if words.len() == 2 {
        return done(world, BAD_LINE);
    }
    if let Some(refused) = refused(words, b"CLIENT_ERROR options flags too long") {
        return done(world, refused);
    }
    let Some(bytes) = signed_32(words[2]).filter(|given| (0..=i32::MAX - 2).contains(given)) else {
        return done(world, BAD_LINE);
    };
    let bytes = bytes as usize;
    let (store, flags) = match storing(world, words) {
        Ok(both) => both,
        Err(wrong) => {
            *state = State::Swallow(bytes as u64 + 2);
            return done(world, wrong);
        }
    };
    let key = &flags.key[..];
    if world.store.is_too_large(key.len(), flags.client_flags, bytes) {
        world.stats.too_large.add(1);
        super::drop_stale(world, key, world.store.hash(key));
        *state = State::Swallow(bytes as u64 + 2);
        return done(world, b"SERVER_ERROR object too large for cache");
    }
    take_value(world, state, key, bytes, store, used, rest)
}

/// What an `ms` is to do, and its flags.
fn storing(world: &World<'_>, words: &Words<'_>) -> Result<(Storing, Flags), &'static [u8]> {
    let flags = Flags::read(world, words, 3)?;
    let mut echo = ArrayVec::<u8, ECHO_MOST_BYTES>::new();
    let mut wrong = None;
    for word in words.iter().skip(2) {
        let part: &[u8] = match word[0] {
            b'O' if word.len() > OPAQUE_MOST_BYTES => {
                wrong = Some(OPAQUE_TOO_LONG);
                continue;
            }
            b'O' => word,
            b'k' => b"k",
            b'c' => b"c",
            _ => continue,
        };
        echo.push(b' ');
        echo.extend(part.iter().copied());
    }
    let mode = match flags.mode {
        0 | b'S' => Mode::Set,
        b'E' => Mode::Add,
        b'A' => Mode::Append,
        b'P' => Mode::Prepend,
        b'R' => Mode::Replace,
        _ => return Err(b"CLIENT_ERROR invalid mode for ms M token"),
    };
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    let mode = if flags.has_cas && matches!(mode, Mode::Set | Mode::Replace) { Mode::Cas } else { mode };
    let store = Storing {
        mode,
        flags: flags.client_flags,
        expiry: flags.expiry.unwrap_or_default(),
        cas: flags.cas,
        invalidate: flags.invalidate && mode == Mode::Cas,
        binary: flags.binary,
        quiet: flags.quiet,
        echo: Some(echo),
    };
    Ok((store, flags))
}

/// What an `ms` is answered.
pub(super) fn answer_store(world: &mut World<'_>, store: &Storing, echo: &[u8], key: &[u8], stored: Outcome) {
    let (code, cas) = match stored {
        // the ordinary outcome need not be told
        Outcome::Stored(_) if store.quiet => return,
        Outcome::Stored(cas) => (b"HD", cas),
        Outcome::Exists => (b"EX", 0),
        Outcome::NotFound => (b"NF", 0),
        Outcome::NotStored | Outcome::NoMemory => (b"NS", 0),
    };
    let out = &mut world.out.bytes;
    out.extend_from_slice(code);
    for part in echo.split(|byte| *byte == b' ').filter(|part| !part.is_empty()) {
        match part[0] {
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(part);
            }
            b'k' => write_key(out, key, store.binary),
            _ => write_number(out, b'c', cas),
        }
    }
    out.extend_from_slice(b"\r\n");
}

pub(super) fn delete(world: &mut World<'_>, words: &Words<'_>) {
    if let Some(refused) = refused(words, b"CLIENT_ERROR options flags too long") {
        return world.say(refused);
    }
    let Ok(flags) = Flags::read(world, words, 2) else { return world.say(BAD_FLAGS) };
    if has_long_opaque(words, 2) {
        return world.say(OPAQUE_TOO_LONG);
    }
    let key = &flags.key[..];
    let hash = world.store.hash(key);
    let mut shard = world.store.shard(world.number(hash));
    let found = shard.find(hash, key, world.now);
    let code = match found {
        None => b"NF",
        Some(place) if flags.has_cas && shard.view(place).cas() != flags.cas => b"EX",
        Some(place) if flags.invalidate => {
            let cell = shard.cell_mut(place);
            if let Some(expiry) = flags.expiry {
                item::set_expiry(cell, expiry);
            }
            item::mark(cell, STALE, true);
            item::mark(cell, WON, false);
            shard.renumber(place);
            b"HD"
        }
        Some(place) => {
            shard.remove(place);
            world.stats.delete_hits.add(1);
            b"HD"
        }
    };
    drop(shard);
    if code != b"HD" {
        world.stats.delete_misses.add(1);
    } else if flags.quiet {
        return;
    }
    let out = &mut world.out.bytes;
    out.extend_from_slice(code);
    write_asked(out, words, 2, &flags);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn arithmetic(world: &mut World<'_>, words: &Words<'_>) {
    if let Some(refused) = refused(words, b"CLIENT_ERROR options flags too long") {
        return world.say(refused);
    }
    let Ok(flags) = Flags::read(world, words, 2) else { return world.say(BAD_FLAGS) };
    let up = match flags.mode {
        0 | b'I' | b'+' => true,
        b'D' | b'-' => false,
        _ => return world.say(b"CLIENT_ERROR invalid mode for ma M token"),
    };
    let (now, key) = (world.now, &flags.key[..]);
    let hash = world.store.hash(key);
    let mut shard = world.store.shard(world.number(hash));
    let delta = flags.delta.unwrap_or(1);
    let changed = change(&mut shard, (hash, key), up, delta, if flags.has_cas { flags.cas } else { 0 }, now);
    let (hits, misses) = if up {
        (&world.stats.incr_hits, &world.stats.incr_misses)
    } else {
        (&world.stats.decr_hits, &world.stats.decr_misses)
    };
    let (code, item, quiet) = match changed {
        Changed::To(number, place) => {
            hits.add(1);
            (&b"HD"[..], Some((number, place, false)), flags.quiet)
        }
        Changed::OtherCas => (&b"EX"[..], None, false),
        Changed::NotNumeric => {
            drop(shard);
            return world.say(b"CLIENT_ERROR cannot increment or decrement non-numeric value");
        }
        Changed::NoMemory => {
            drop(shard);
            return world.say(b"SERVER_ERROR out of memory");
        }
        Changed::NotFound if flags.vivify.is_some() => {
            let binary = flags.binary;
            let order = Order { mode: Mode::Add, hash, key, flags: 0, expiry: 0, cas: 0, invalidate: false, binary };
            match add(&mut shard, &order, &number::digits(flags.initial), now) {
                Ok(place) => (&b"HD"[..], Some((flags.initial, place, true)), false),
                Err(_) => {
                    drop(shard);
                    return world.say(b"SERVER_ERROR Out of memory allocating new item");
                }
            }
        }
        Changed::NotFound => {
            misses.add(1);
            (&b"NF"[..], None, false)
        }
    };
    if has_long_opaque(words, 2) {
        drop(shard);
        return world.say(OPAQUE_TOO_LONG);
    }
    let out = &mut world.out.bytes;
    let before = out.len();
    let Some((number, place, created)) = item else {
        drop(shard);
        out.extend_from_slice(code);
        write_asked(out, words, 2, &flags);
        return out.extend_from_slice(b"\r\n");
    };
    let text = number::digits(number);
    if flags.value {
        out.extend_from_slice(b"VA ");
        number::write(out, text.len() as u64);
    } else {
        out.extend_from_slice(code);
    }
    for word in words.iter().skip(2) {
        match word[0] {
            b'c' => write_number(out, b'c', shard.view(place).cas()),
            b't' => write_time_left(out, shard.view(place).expiry(), now),
            b'T' => item::set_expiry(shard.cell_mut(place), flags.expiry.unwrap_or_default()),
            b'N' if created => item::set_expiry(shard.cell_mut(place), flags.vivify.unwrap_or_default()),
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(word);
            }
            b'k' => write_key(out, key, flags.binary),
            _ => {}
        }
    }
    drop(shard);
    if flags.value {
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&text);
    }
    out.extend_from_slice(b"\r\n");
    if quiet {
        out.truncate(before);
    }
}

/// What is known of an item, for people.
pub(super) fn debug(world: &mut World<'_>, words: &Words<'_>) {
    if words.len() < 2 || words[1].len() > KEY_MOST_BYTES {
        return world.say(BAD_LINE);
    }
    world.stats.meta.add(1);
    let mut flags = Flags { key: words[1].iter().copied().collect(), ..Flags::default() };
    if words.get(2) == Some(&&b"b"[..]) && flags.decode(words[1]).is_err() {
        return world.say(BAD_LINE);
    }
    let key = &flags.key[..];
    let hash = world.store.hash(key);
    let mut shard = world.store.shard(world.number(hash));
    let Some(place) = shard.find(hash, key, world.now) else {
        drop(shard);
        return world.say(b"EN");
    };
    let (view, now, out) = (shard.view(place), world.now, &mut world.out.bytes);
    out.extend_from_slice(b"ME ");
    write_plain_key(out, view.key(), view.is(BINARY));
    // memcached's sign: what is left counts down from below
    out.extend_from_slice(if view.expiry() == 0 { b" exp=-1" } else { b" exp=-" });
    if view.expiry() != 0 {
        number::write(out, u64::from(view.expiry() - now));
    }
    for (name, number) in [(&b" la="[..], u64::from(now.saturating_sub(view.read()))), (b" cas=", view.cas())] {
        out.extend_from_slice(name);
        number::write(out, number);
    }
    out.extend_from_slice(if view.is(FETCHED) { b" fetch=yes" } else { b" fetch=no" });
    for (name, number) in [(&b" cls="[..], u64::from(view.queue()) + 1), (b" size=", view.size())] {
        out.extend_from_slice(name);
        number::write(out, number);
    }
    out.extend_from_slice(b"\r\n");
}
