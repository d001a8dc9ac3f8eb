//! memcached's text protocol: bytes of a connection in, answers out.
//!
//! [`step`] takes one command, or as much of it as can be done, from the front of what has arrived. What it does not take it is given
//! again with more behind. A line is taken whole; a small value with its line; a large one as it comes, into the item that was made
//! for it; the keys of a `get` one after the other, so that the answers to a long one need not all fit at once. Replies and refusals
//! are those of memcached 1.6.18, with which the tests compare them, but for one: an item that `mg` or `ma` makes under a key in base64 keeps
//! that its key came so, as those of `ms` do, and the key is never sent raw.
//!
//! Left out: the binary protocol, authentication, and the commands by which memcached's own threads are set (`slabs`, `lru`, `lru_crawler`,
//! `watch`, `cache_memlimit`), which are unknown commands here.

mod admin;
mod classic;
mod meta;
pub(crate) mod number;

use crate::clock::Clock;
use crate::out::Out;
use crate::serve::Shared;
use crate::stats::Stats;
use crate::store::shard::{Cursor, Mode, Order, Outcome, Source};
use crate::store::{Home, Store};
use arrayvec::ArrayVec;
use std::num::NonZeroU64;

/// Bytes of the longest key.
pub(crate) const KEY_MOST_BYTES: usize = 250;
/// Without an end of line in so many bytes there is no command, unless it is a `get`.
const LINE_MOST_BYTES: usize = 2048;
/// A line that is longer than this must be a `get`, since others wait for their value behind it in a buffer.
const COMMAND_MOST_BYTES: usize = 8192;
/// The longest word that is a command, and a space.
const MANY_LETTERS: usize = 10;
/// Words of a command that are told apart.
const WORDS_MOST: usize = 23;
/// What a meta command gives back: an opaque token, and a letter for each other flag.
const ECHO_MOST_BYTES: usize = 48;
/// Values from this size on are taken as they come. With the longest line they fit a connection's buffer.
pub(crate) const WHOLE_MOST_BYTES: usize = 4096;

/// Words of a line.
type Words<'a> = ArrayVec<&'a [u8], WORDS_MOST>;

/// What stands in the way of the next command.
#[derive(Clone, Debug, Default)]
pub(crate) enum State {
    /// nothing
    #[default]
    Line,
    /// the keys of a `get`
    Keys(Keys),
    /// the rest of a line that is ignored
    Skip,
    /// so many bytes that are ignored
    Swallow(u64),
    /// a value that is taken as it comes
    Filling(Filling),
}

/// A `get` of which some keys are answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    /// with the number of the last store
    cas: bool,
    /// sets the expiry of what is found
    touch: Option<u32>,
}

/// A large value on its way.
#[derive(Clone, Debug)]
pub(crate) struct Filling {
    shard: usize,
    generation: u32,
    place: u32,
    cursor: Cursor,
    bytes: u32,
    done: u32,
    end: [u8; 2],
    store: Storing,
}

/// A store that waits for its value.
#[derive(Clone, Debug)]
pub(crate) struct Storing {
    mode: Mode,
    flags: u32,
    expiry: u32,
    cas: u64,
    invalidate: bool,
    binary: bool,
    quiet: bool,
    /// of a meta command, and what it gives back
    echo: Option<ArrayVec<u8, ECHO_MOST_BYTES>>,
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// so many bytes are done with
    Done(usize),
    /// nothing can be done without more
    More,
    /// the connection is to be closed, with what was answered
    Close,
}

/// What commands work on.
pub(crate) struct World<'a> {
    pub(crate) store: &'a Store,
    pub(crate) clock: &'a Clock,
    /// this thread's
    pub(crate) stats: &'a Stats,
    /// every thread's
    pub(crate) shared: &'a Shared,
    /// in seconds
    pub(crate) now: u32,
    /// the connection's
    pub(crate) home: Home,
    /// what is asked for may change items
    pub(crate) may_change: bool,
    /// most likely the hash of the key of a plain `get`; not to be relied on
    pub(crate) foreseen: Option<NonZeroU64>,
    pub(crate) out: &'a mut Out,
}

/// Takes what can be taken from the front of `input`.
pub(crate) fn step(world: &mut World<'_>, state: &mut State, input: &[u8]) -> Step {
    if input.is_empty() {
        return Step::More;
    }
    match state {
        State::Line => line(world, state, input),
        State::Keys(keys) => {
            let keys = *keys;
            classic::next_key(world, state, keys, input)
        }
        State::Skip => match memchr::memchr(b'\n', input) {
            Some(end) => {
                *state = State::Line;
                Step::Done(end + 1)
            }
            None => Step::Done(input.len()),
        },
        State::Swallow(left) => {
            let now = (*left).min(input.len() as u64);
            *left -= now;
            if *left == 0 {
                *state = State::Line;
            }
            Step::Done(now as usize)
        }
        State::Filling(filling) => {
            let used = fill(world, filling, input);
            if filling.done == filling.bytes + 2 {
                let State::Filling(filling) = std::mem::take(state) else { return Step::Close };
                filled(world, filling);
            }
            Step::Done(used)
        }
    }
}

/// Gives back what a connection has of the store that is not in it yet.
pub(crate) fn forget(store: &Store, state: &mut State) {
    if let State::Filling(filling) = std::mem::take(state) {
        let mut shard = store.shard(filling.shard);
        if shard.generation() == filling.generation {
            shard.discard(filling.place);
        }
    }
}

/// Where the word ends that `rest` begins with, if that is a key's length or less: at the first byte that is a space, or less than one.
#[inline]
fn key_end(rest: &[u8]) -> Option<usize> {
    let rest = &rest[..rest.len().min(KEY_MOST_BYTES + 1)];
    let (eights, few) = rest.as_chunks::<8>();
    let among = |eight: [u8; 8]| {
        const EACH: u64 = u64::from_ne_bytes([1; 8]);
        let eight = u64::from_le_bytes(eight);
        // the highest bit of a byte that borrows when one more than a space is taken from it; those above the first that does may be wrong
        let ends = eight.wrapping_sub(EACH * (b' ' as u64 + 1)) & !eight & (EACH << 7);
        (ends != 0).then(|| ends.trailing_zeros() as usize / 8)
    };
    if let Some((n, at)) = eights.iter().enumerate().find_map(|(n, eight)| Some((n, among(*eight)?))) {
        return Some(8 * n + at);
    }
    match rest.last_chunk::<8>() {
        // nothing before the last few ends it
        Some(last) => among(*last).map(|at| rest.len() - 8 + at),
        None => few.iter().position(|byte| *byte <= b' '),
    }
}

/// How many keys of a command other than `get` are looked for, and what is behind its word.
fn of_others(input: &[u8]) -> (usize, &[u8]) {
    let end = input.iter().take(MANY_LETTERS).position(|byte| *byte == b' ').unwrap_or(0);
    let (word, rest) = input.split_at(end);
    let keys = match word {
        b"gets" => usize::MAX,
        b"mg" | b"set" | b"ms" | b"add" | b"cas" | b"incr" | b"decr" | b"delete" | b"md" | b"ma" => 1,
        _ => 0,
    };
    (keys, rest)
}

/// Keys that the commands of these bytes ask for, as far as they are seen at a glance: those of lines of `get`, and of a first command of
/// another kind.
pub(crate) fn keys_at_a_glance(input: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut left, mut rest) = if input.starts_with(b"get ") { (usize::MAX, &input[3..]) } else { of_others(input) };
    std::iter::from_fn(move || {
        while left > 0 {
            // behind a space, or behind the line's end and the next command
            rest = match rest.split_first()? {
                (b' ', rest) => rest,
                (b'\r', rest) => rest.strip_prefix(b"\nget ")?,
                _ => return None,
            };
            let end = key_end(rest)?;
            let (key, behind) = rest.split_at(end);
            rest = behind;
            if !key.is_empty() {
                left -= 1;
                return Some(key);
            }
        }
        None
    })
}

/// The commonest command, `get` of one key on a line of its own, without a detour. None for everything else, and for what needs
/// a closer look.
#[inline]
fn plain_get(world: &mut World<'_>, input: &[u8]) -> Option<Step> {
    let rest = input.strip_prefix(b"get ")?;
    let end = key_end(rest)?;
    let (key, behind) = rest.split_at(end);
    if key.is_empty() || !behind.starts_with(b"\r\n") {
        return None;
    }
    classic::answer_one(world, key);
    Some(Step::Done(b"get ".len() + end + 2))
}

fn line(world: &mut World<'_>, state: &mut State, input: &[u8]) -> Step {
    if let Some(step) = plain_get(world, input) {
        return step;
    }
    let Some(end) = memchr::memchr(b'\n', input) else {
        return if input.len() > LINE_MOST_BYTES { classic::long_get(state, input) } else { Step::More };
    };
    let mut line = &input[..end];
    if end > 1 && line[end - 1] == b'\r' {
        line = &line[..end - 1];
    }
    if let Some(nul) = memchr::memchr(0, line) {
        line = &line[..nul];
    }
    let used = end + 1;
    let is_get = |command: &[u8]| matches!(command, b"get" | b"gets" | b"gat" | b"gats" | b"bget");
    let command = line.split(|byte| *byte == b' ').find(|word| !word.is_empty()).unwrap_or_default();
    if is_get(command) {
        return classic::get(world, state, line, used, input);
    }
    if used > COMMAND_MOST_BYTES {
        return Step::Close;
    }
    let words = words(line);
    command_of(world, state, command, &words, used, &input[used..])
}

/// The words of a line, as far as they are told apart: a last one stands for all that follow.
fn words(line: &[u8]) -> Words<'_> {
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).take(WORDS_MOST).collect()
}

fn command_of(
    world: &mut World<'_>,
    state: &mut State,
    command: &[u8],
    words: &Words<'_>,
    used: usize,
    rest: &[u8],
) -> Step {
    match command {
        b"mg" => meta::get(world, words),
        b"ms" => return meta::set(world, state, words, used, rest),
        b"md" => meta::delete(world, words),
        b"ma" => meta::arithmetic(world, words),
        b"me" => meta::debug(world, words),
        b"mn" => world.say(b"MN"),
        b"set" => return classic::set(world, state, Mode::Set, words, used, rest),
        b"add" => return classic::set(world, state, Mode::Add, words, used, rest),
        b"replace" => return classic::set(world, state, Mode::Replace, words, used, rest),
        b"append" => return classic::set(world, state, Mode::Append, words, used, rest),
        b"prepend" => return classic::set(world, state, Mode::Prepend, words, used, rest),
        b"cas" => return classic::set(world, state, Mode::Cas, words, used, rest),
        b"delete" => classic::delete(world, words),
        b"incr" => classic::arithmetic(world, words, true),
        b"decr" => classic::arithmetic(world, words, false),
        b"touch" => classic::touch(world, words),
        b"stats" => admin::stats(world, words),
        b"flush_all" => admin::flush_all(world, words),
        b"verbosity" => admin::verbosity(world, words),
        b"version" => world.say(admin::VERSION_LINE.as_bytes()),
        b"shutdown" => world.say(b"ERROR: shutdown not enabled"),
        b"quit" => return Step::Close,
        _ if words.last().is_some_and(|word| word.starts_with(b"HTTP/")) && is_elsewhere(command) => {
            return Step::Close;
        }
        _ => world.say(b"ERROR"),
    }
    Step::Done(used)
}

/// memcached looks for HTTP only behind commands that begin with none of the letters that its own begin with.
fn is_elsewhere(command: &[u8]) -> bool {
    command.len() >= 2
        && !matches!(command[0], b'g' | b's' | b'a' | b'c' | b'i' | b'd' | b't')
        && !(command[0] == b'm' && command.len() == 2)
}

impl World<'_> {
    /// The number of the shard that a hash's key stands in.
    #[inline]
    fn number(&self, hash: u64) -> usize {
        self.store.number(self.home, hash)
    }

    /// A line of answer.
    pub(crate) fn say(&mut self, line: &[u8]) {
        self.out.bytes.extend_from_slice(line);
        self.out.bytes.extend_from_slice(b"\r\n");
    }

    /// The same, unless the client wants none.
    fn say_unless(&mut self, quiet: bool, line: &[u8]) {
        if !quiet {
            self.say(line);
        }
    }
}

/// Takes a value that stands behind its line, or begins to take a large one; `used` is the line's length.
fn take_value(
    world: &mut World<'_>,
    state: &mut State,
    key: &[u8],
    bytes: usize,
    store: Storing,
    used: usize,
    rest: &[u8],
) -> Step {
    let hash = world.store.hash(key);
    if bytes <= WHOLE_MOST_BYTES {
        if rest.len() < bytes + 2 {
            return Step::More;
        }
        world.stats.set.add(1);
        if rest[bytes..bytes + 2] == *b"\r\n" {
            let order = store.order(hash, key);
            let mut shard = world.store.shard(world.number(hash));
            let stored = shard.store(&order, Source::Bytes(&rest[..bytes]), world.now);
            drop(shard);
            answer_store(world, &store, key, hash, stored);
        } else {
            bad_chunk(world, &store);
        }
        return Step::Done(used + bytes + 2);
    }
    let number = world.number(hash);
    let mut shard = world.store.shard(number);
    match shard.build(&store.order(hash, key), bytes, world.now) {
        Ok(place) => {
            let (generation, cursor) = (shard.generation(), shard.start(place));
            drop(shard);
            let (bytes, done, end) = (bytes as u32, 0, [0; 2]);
            *state = State::Filling(Filling { shard: number, generation, place, cursor, bytes, done, end, store });
        }
        Err(_) => {
            drop(shard);
            no_memory(world, &store, key, hash);
            *state = State::Swallow(bytes as u64 + 2);
        }
    }
    Step::Done(used)
}

impl Storing {
    fn order<'a>(&self, hash: u64, key: &'a [u8]) -> Order<'a> {
        let Storing { mode, flags, expiry, cas, invalidate, binary, .. } = *self;
        Order { mode, hash, key, flags, expiry, cas, invalidate, binary }
    }
}

/// Takes more of a large value; how many bytes.
fn fill(world: &mut World<'_>, filling: &mut Filling, input: &[u8]) -> usize {
    let of_value = ((filling.bytes.saturating_sub(filling.done)) as usize).min(input.len());
    if of_value > 0 {
        let mut shard = world.store.shard(filling.shard);
        if shard.generation() == filling.generation {
            shard.write(filling.place, &mut filling.cursor, &input[..of_value]);
        }
        filling.done += of_value as u32;
    }
    let mut used = of_value;
    while filling.done >= filling.bytes && filling.done < filling.bytes + 2 && used < input.len() {
        filling.end[(filling.done - filling.bytes) as usize] = input[used];
        filling.done += 1;
        used += 1;
    }
    used
}

/// Stores a large value that has come.
fn filled(world: &mut World<'_>, filling: Filling) {
    let Filling { shard: number, generation, place, end, store, .. } = filling;
    world.stats.set.add(1);
    let mut shard = world.store.shard(number);
    if shard.generation() != generation {
        drop(shard);
        // a panic of another thread took it, with everything that was there before
        return say_no_memory(world, &store);
    }
    if end != *b"\r\n" {
        shard.discard(place);
        drop(shard);
        return bad_chunk(world, &store);
    }
    let key: ArrayVec<u8, KEY_MOST_BYTES> = shard.view(place).key().iter().copied().collect();
    let hash = shard.view(place).hash();
    let stored = shard.store(&store.order(hash, &key), Source::Built(place), world.now);
    drop(shard);
    answer_store(world, &store, &key, hash, stored);
}

fn bad_chunk(world: &mut World<'_>, store: &Storing) {
    // meta commands always tell
    world.say_unless(store.quiet && store.echo.is_none(), b"CLIENT_ERROR bad data chunk");
}

fn say_no_memory(world: &mut World<'_>, store: &Storing) {
    world.stats.no_memory.add(1);
    world.say_unless(store.quiet && store.echo.is_none(), b"SERVER_ERROR out of memory storing object");
}

/// There is no memory for a value: what was there before must not stay.
fn no_memory(world: &mut World<'_>, store: &Storing, key: &[u8], hash: u64) {
    say_no_memory(world, store);
    if store.mode == Mode::Set || store.echo.is_some() {
        drop_stale(world, key, hash);
    }
}

/// Takes what a failed store leaves behind.
fn drop_stale(world: &mut World<'_>, key: &[u8], hash: u64) {
    let mut shard = world.store.shard(world.number(hash));
    if let Some(place) = shard.find(hash, key, world.now) {
        shard.remove(place);
    }
}

fn answer_store(world: &mut World<'_>, store: &Storing, key: &[u8], hash: u64, stored: Outcome) {
    let stats = world.stats;
    if store.mode == Mode::Cas {
        match stored {
            Outcome::Stored(_) => stats.cas_hits.add(1),
            Outcome::Exists => stats.cas_badval.add(1),
            _ => stats.cas_misses.add(1),
        }
    }
    if stored == Outcome::NoMemory {
        return no_memory(world, store, key, hash);
    }
    if let Some(echo) = &store.echo {
        return meta::answer_store(world, store, echo, key, stored);
    }
    let line: &[u8] = match stored {
        Outcome::Stored(_) => b"STORED",
        Outcome::Exists => b"EXISTS",
        Outcome::NotFound => b"NOT_FOUND",
        Outcome::NotStored | Outcome::NoMemory => b"NOT_STORED",
    };
    world.say_unless(store.quiet, line);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_word_ends_where_a_look_at_each_byte_finds_its_end(
            bytes in proptest::collection::vec(prop_oneof![20 => 0x21u8.., 1 => 0u8..=0x20], 0..300)
        ) {
            let each = bytes.iter().take(KEY_MOST_BYTES + 1).position(|byte| *byte <= b' ');
            prop_assert_eq!(key_end(&bytes), each);
        }
    }
}
