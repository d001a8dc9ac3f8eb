use super::item::{BINARY, LARGE, STALE, WON};
use super::memory::{CHUNK_BYTES, LOOKS, Memory, PAGE_BYTES};
use super::shard::{Mode, Order, Outcome, Shard, Source};
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};

/// A hash that has many keys in one bucket.
fn hash(key: &[u8]) -> u64 {
    key.iter().fold(7u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn shard(pages: usize) -> (Shard, Arc<Figures>) {
    let figures = Arc::<Figures>::default();
    (Shard::new((pages * PAGE_BYTES) as u64, 1 << 20, figures.clone()), figures)
}

fn order(mode: Mode, key: &[u8]) -> Order<'_> {
    Order { mode, hash: hash(key), key, flags: 0, expiry: 0, cas: 0, invalidate: false, binary: false }
}

fn set(shard: &mut Shard, key: &[u8], value: &[u8], now: u32) -> Outcome {
    shard.store(&order(Mode::Set, key), Source::Bytes(value), now)
}

fn value(shard: &Shard, place: u32) -> Vec<u8> {
    let view = shard.view(place);
    if !view.is(LARGE) {
        return view.value().to_vec();
    }
    shard.chunks(place).flat_map(|(chunk, bytes)| shard.memory().chunk_bytes(chunk)[..bytes].to_vec()).collect()
}

fn get(shard: &mut Shard, key: &[u8], now: u32) -> Option<Vec<u8>> {
    let place = shard.find(hash(key), key, now)?;
    shard.bump(place, now);
    Some(value(shard, place))
}

/// What a value of so many bytes looks like, told apart by `salt`.
fn pattern(salt: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n as u8).wrapping_mul(31).wrapping_add(salt).wrapping_add((n >> 8) as u8)).collect()
}

#[derive(Clone, Debug)]
enum Act {
    Store { mode: Mode, key: u8, bytes: usize, salt: u8, life: u32, cas: u8, built: bool },
    Get(u8),
    Delete(u8),
    Touch(u8, u32),
    Flush,
    FlushIn(u32),
    Wait(u32),
    Sweep,
}

fn acts(sizes: impl Strategy<Value = usize> + Clone + 'static) -> impl Strategy<Value = Vec<Act>> {
    let mode = prop_oneof![
        6 => Just(Mode::Set), 2 => Just(Mode::Add), 2 => Just(Mode::Replace), 3 => Just(Mode::Append), 3 => Just(Mode::Prepend), 3 => Just(Mode::Cas)
    ];
    let life = prop_oneof![3 => Just(0u32), 1 => 1u32..20];
    let store = (mode, 0u8..24, sizes, any::<u8>(), life.clone(), 0u8..3, any::<bool>());
    let act = prop_oneof![
        12 => store.prop_map(|(mode, key, bytes, salt, life, cas, built)| Act::Store { mode, key, bytes, salt, life, cas, built }),
        8 => (0u8..24).prop_map(Act::Get),
        3 => (0u8..24).prop_map(Act::Delete),
        2 => (0u8..24, life).prop_map(|(key, life)| Act::Touch(key, life)),
        1 => Just(Act::Flush),
        1 => (1u32..20).prop_map(Act::FlushIn),
        3 => (1u32..8).prop_map(Act::Wait),
        2 => Just(Act::Sweep),
    ];
    prop::collection::vec(act, 1..200)
}

/// The obvious store: what every key has, and until when.
#[derive(Default)]
struct Twin {
    items: HashMap<u8, (Vec<u8>, u32, u64)>,
    flush_at: u32,
    now: u32,
}

impl Twin {
    fn live(&mut self, key: u8) -> Option<&mut (Vec<u8>, u32, u64)> {
        if self.flush_at != 0 && self.now >= self.flush_at {
            self.flush_at = 0;
            self.items.clear();
        }
        let now = self.now;
        self.items.retain(|_, (_, expiry, _)| *expiry == 0 || *expiry > now);
        self.items.get_mut(&key)
    }

    /// What a store comes to: the new value and its expiry, or the refusal.
    fn store(&mut self, mode: Mode, key: u8, value: &[u8], expiry: u32, cas: u64) -> Result<(Vec<u8>, u32), Outcome> {
        let old = self.live(key);
        match (mode, old) {
            (Mode::Set | Mode::Add, None) | (Mode::Set | Mode::Replace, Some(_)) => Ok((value.to_vec(), expiry)),
            (Mode::Add, Some(_)) | (Mode::Replace | Mode::Append | Mode::Prepend, None) => Err(Outcome::NotStored),
            (Mode::Cas, None) => Err(Outcome::NotFound),
            (Mode::Cas, Some((.., known))) if *known == cas => Ok((value.to_vec(), expiry)),
            (Mode::Cas, Some(_)) => Err(Outcome::Exists),
            (Mode::Append, Some((old, expiry, _))) => Ok(([old, value].concat(), *expiry)),
            (Mode::Prepend, Some((old, expiry, _))) => Ok(([value, old].concat(), *expiry)),
        }
    }
}

fn run(shard: &mut Shard, twin: &mut Twin, act: &Act, evicts: bool) {
    let now = twin.now;
    let name = |key: u8| format!("key-{key}").into_bytes();
    match *act {
        Act::Store { mode, key, bytes, salt, life, cas, built } => {
            let (name, bytes) = (name(key), pattern(salt, bytes));
            let known = twin.live(key).map_or(1, |(.., known)| *known);
            // right, wrong, none
            let cas = match (mode, cas) {
                (Mode::Cas, 0 | 1) => known,
                (Mode::Cas, _) => known + 1,
                _ => 0,
            };
            let expiry = if life == 0 { 0 } else { now + life };
            let order = Order { expiry, cas, ..order(mode, &name) };
            let source = match built {
                false => Source::Bytes(&bytes),
                true => match shard.build(&order, bytes.len(), now) {
                    Ok(place) => {
                        let (a, b) = bytes.split_at(bytes.len() / 3);
                        let mut cursor = shard.start(place);
                        shard.write(place, &mut cursor, a);
                        shard.write(place, &mut cursor, b);
                        Source::Built(place)
                    }
                    Err(_) => {
                        assert!(evicts, "there is memory");
                        return;
                    }
                },
            };
            let stored = shard.store(&order, source, now);
            match (twin.store(mode, key, &bytes, expiry, cas), stored) {
                (Ok((value, expiry)), Outcome::Stored(cas)) => {
                    twin.items.insert(key, (value, expiry, cas));
                }
                (Err(expected), stored) if expected == stored => {}
                // what was evicted is not there; what had no memory for more is as it was
                (_, Outcome::NotFound | Outcome::NotStored | Outcome::NoMemory) if evicts => {
                    if shard.find(hash(&name), &name, now).is_none() {
                        twin.items.remove(&key);
                    }
                }
                (Err(Outcome::NotStored), Outcome::Stored(cas)) if evicts && mode == Mode::Add => {
                    twin.items.insert(key, (bytes, expiry, cas));
                }
                (expected, stored) => panic!("{act:?}: {expected:?} against {stored:?}"),
            }
        }
        Act::Get(key) => {
            let expected = twin.live(key).map(|(value, ..)| value.clone());
            let found = get(shard, &name(key), now);
            if !(evicts && found.is_none()) {
                assert!(
                    found == expected,
                    "{key}: {:?} against {:?} bytes",
                    found.map(|v| v.len()),
                    expected.map(|v| v.len())
                );
            }
        }
        Act::Delete(key) => {
            let expected = twin.live(key).is_some();
            let name = name(key);
            let found = shard.find(hash(&name), &name, now);
            assert!(found.is_some() == expected || evicts && expected);
            if let Some(place) = found {
                shard.remove(place);
            }
            twin.items.remove(&key);
        }
        Act::Touch(key, life) => {
            let expiry = if life == 0 { 0 } else { now + life };
            let name = name(key);
            if let Some(place) = shard.find(hash(&name), &name, now) {
                item::set_expiry(shard.cell_mut(place), expiry);
            }
            if let Some((_, old, _)) = twin.live(key) {
                *old = expiry;
            }
        }
        Act::Flush => {
            shard.flush();
            twin.items.clear();
            twin.flush_at = 0;
        }
        Act::FlushIn(seconds) => {
            // what is due already is done first
            let _ = (twin.live(0), shard.find(0, b"", now));
            shard.flush_at(now + seconds);
            twin.flush_at = now + seconds;
        }
        Act::Wait(seconds) => twin.now += seconds,
        Act::Sweep => shard.sweep(now, 3),
    }
}

proptest! {
    /// With memory for everything, nothing is ever lost.
    #[test]
    fn it_is_a_map_with_times(acts in acts(prop_oneof![4 => 0usize..300, 1 => 1500usize..2600, 1 => 0usize..20_000])) {
        let (mut shard, figures) = shard(400);
        let mut twin = Twin { now: 2, ..Twin::default() };
        for act in &acts {
            run(&mut shard, &mut twin, act, false);
            shard.check();
        }
        prop_assert_eq!(figures.evictions.get() + figures.no_memory.get(), 0);
    }

    /// With little memory things go, but what is found is what was stored last, and nothing of the memory is lost.
    #[test]
    fn a_full_store_forgets_but_never_lies(acts in acts(prop_oneof![2 => 0usize..2600, 1 => 0usize..90_000])) {
        let (mut shard, _) = shard(6);
        let mut twin = Twin { now: 2, ..Twin::default() };
        for act in &acts {
            run(&mut shard, &mut twin, act, true);
            shard.check();
        }
    }
}

#[test]
fn a_full_store_keeps_what_is_asked_for() {
    let (mut shard, figures) = shard(8);
    let key = |n: u32| format!("key-{n:06}").into_bytes();
    let (mut hits, mut asked) = (0, 0);
    // a hundred that are asked for again and again, among many that are never asked for
    for n in 0..60_000u32 {
        set(&mut shard, &key(1000 + n), &[7; 100], 2);
        let popular = key(n % 100);
        asked += 1;
        match get(&mut shard, &popular, 2) {
            Some(value) => {
                hits += 1;
                assert_eq!(value, [9; 100]);
            }
            None => assert!(matches!(set(&mut shard, &popular, &[9; 100], 2), Outcome::Stored(_))),
        }
    }
    shard.check();
    assert!(hits * 100 > asked * 95, "{hits} of {asked}");
    assert!(figures.evictions.get() > 50_000 && figures.no_memory.get() == 0);
    // of the memory nearly all is used
    let bytes = figures.bytes.get();
    assert!(bytes > 8 * PAGE_BYTES as u64 * 7 / 10, "{bytes} bytes of items");
}

#[test]
fn a_store_full_of_small_items_evicts_what_was_not_asked_for_the_longest() {
    let (mut shard, figures) = shard(8);
    let key = |n: u32| format!("{n:08}").into_bytes();
    let now = |n: u32| 2 + n / 100;
    // as even as the store's own
    let hash = |key: &[u8]| Key::new(1, 2).hash13_of(key);
    // one of them is asked for now and then, and some die on their own
    for n in 0..20_000 {
        let (key, expiry) = (key(n), if n % 4 == 1 { now(n) + 20 } else { 0 });
        let order = Order { hash: hash(&key), expiry, ..order(Mode::Set, &key) };
        let done = shard.store(&order, Source::Bytes(b"four"), now(n));
        assert!(matches!(done, Outcome::Stored(_)), "{n}: {done:?}");
        if n % 100 == 0 {
            let asked = shard.find(hash(b"00000000"), b"00000000", now(n));
            shard.bump(asked.expect("it was asked for a second ago"), now(n));
        }
    }
    shard.check();
    assert_eq!((figures.no_memory.get(), figures.stored.get()), (0, 20_000));
    let (items, evictions, expired) = (figures.items.get(), figures.evictions.get(), figures.expired.get());
    assert_eq!(items + evictions + expired, 20_000);
    assert!(expired > 1000 && evictions > 1000, "{expired} expired, {evictions} evicted");
    // three quarters of the memory, since the index is full then
    assert!(items * 64 > 8 * PAGE_BYTES as u64 * 7 / 10, "{items} items");
}

#[test]
fn memory_goes_from_one_size_to_another_when_the_load_changes() {
    let (mut shard, figures) = shard(32);
    let mut stored = |from: u32, bytes: usize, now: u32| {
        for n in 0..3000 {
            let key = format!("{}", from + n);
            let done = set(&mut shard, key.as_bytes(), &pattern(n as u8, bytes), now + n / 10);
            assert!(matches!(done, Outcome::Stored(_)), "{bytes} bytes, {n}: {done:?}");
            assert_eq!(get(&mut shard, key.as_bytes(), now + n / 10), Some(pattern(n as u8, bytes)));
        }
        shard.check();
        figures.items.get()
    };
    assert_eq!(stored(0, 40, 10), 3000);
    // 32 pages hold some 380 of these, 100 of the next, and all of the first again
    assert!(stored(10_000, 5000, 1000) > 200);
    assert!(stored(20_000, 20_000, 2000) >= 90);
    // a page follows for each page's worth of what had to go
    assert!(stored(30_000, 600, 3000) > 1000);
    assert!(figures.pages_moved.get() >= 10, "{} pages moved", figures.pages_moved.get());
}

#[test]
fn what_is_on_its_way_never_changes() {
    let (mut shard, _) = shard(4);
    let mut now = 2;
    set(&mut shard, b"a", &pattern(1, 50_000), now);
    let place = shard.find(hash(b"a"), b"a", now).unwrap();
    let held: Vec<_> =
        shard.chunks(place).map(|(chunk, bytes)| (shard.memory().content(chunk).unwrap().clone(), bytes)).collect();
    // overwritten, deleted, evicted many times over
    for n in 0..200u32 {
        now += 1;
        let _ = set(&mut shard, b"a", &pattern(n as u8, 50_000), now);
        let _ = set(&mut shard, format!("{n}").as_bytes(), &pattern(n as u8, 30_000 + n as usize), now);
        shard.check();
    }
    let bytes: Vec<u8> =
        held.iter().flat_map(|(content, bytes)| content.bytes(app::ObjectId(0))[..*bytes].to_vec()).collect();
    assert!(bytes == pattern(1, 50_000));
    assert!(held.iter().all(|(content, bytes)| {
        let sum = wire_sum(&content.bytes(app::ObjectId(0))[..*bytes]);
        content.sum(app::ObjectId(0), 0..*bytes) % 0xffff == sum % 0xffff
    }));
}

/// RFC 1071, plainly.
fn wire_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)));
    let mut sum: u32 = words.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn when_everything_is_held_a_store_fails_and_takes_no_more_memory() {
    let (mut shard, figures) = shard(4);
    let mut held = Vec::new();
    let mut failed = 0;
    for n in 0..40u32 {
        let key = format!("{n}");
        match set(&mut shard, key.as_bytes(), &pattern(n as u8, 3 * CHUNK_BYTES), 2 + n) {
            Outcome::Stored(_) => {
                let place = shard.find(hash(key.as_bytes()), key.as_bytes(), 2 + n).unwrap();
                held.extend(shard.chunks(place).map(|(chunk, _)| shard.memory().content(chunk).unwrap().clone()));
            }
            Outcome::NoMemory => failed += 1,
            other => panic!("{other:?}"),
        }
        shard.check();
    }
    assert!(failed > 20 && figures.no_memory.get() > 0, "{failed} failed");
    assert!(held.len() <= 4 * 15);
    held.clear();
    assert!(matches!(set(&mut shard, b"again", &pattern(1, 3 * CHUNK_BYTES), 99), Outcome::Stored(_)));
}

#[test]
fn held_pages_do_not_hide_the_chunks_of_others() {
    let (mut shard, figures) = shard(16);
    // each fills the chunks of a page; 13 of them
    let name = |n: u32| format!("{n}").into_bytes();
    for n in 0..13 {
        assert!(matches!(set(&mut shard, &name(n), &pattern(1, 15 * CHUNK_BYTES), 2), Outcome::Stored(_)));
    }
    let mut held = Vec::new();
    for n in 0..11 {
        let place = shard.find(hash(&name(n)), &name(n), 2).unwrap();
        // nobody holds the first, which is given back before the others
        if n > 0 {
            held.extend(shard.chunks(place).map(|(chunk, _)| shard.memory().content(chunk).unwrap().clone()));
        }
        shard.remove(place);
        shard.check();
    }
    while shard.memory().pages().1 > 0 {
        let (key, before) = (format!("more {}", held.len()).into_bytes(), shard.memory().pages().1);
        let place = shard.build(&order(Mode::Set, &key), 15 * CHUNK_BYTES, 2).unwrap();
        held.extend(shard.chunks(place).map(|(chunk, _)| shard.memory().content(chunk).unwrap().clone()));
        shard.discard(place);
        assert!(shard.memory().pages().1 <= before);
    }
    drop(held.drain(..15));
    assert!(matches!(set(&mut shard, b"z", &pattern(2, 15 * CHUNK_BYTES), 2), Outcome::Stored(_)));
    assert_eq!(figures.evictions.get(), 0);
    shard.check();
}

/// An engine may hold them for as long as a client takes nothing: no other store waits for that.
#[test]
fn what_engines_hold_is_looked_through_once_a_store() {
    const PAGES: usize = 300;
    let (mut shard, figures) = shard(PAGES + 2);
    let name = |word: &str, n: usize| format!("{word}{n}").into_bytes();
    // keeps the only page of cells
    let upload = shard.build(&order(Mode::Set, b"upload"), 15 * CHUNK_BYTES, 2).unwrap();
    // of each page's chunks one part is deleted while it is on its way, and so may be what is to be evicted
    for n in 0..PAGES {
        for (word, chunks) in [("gone", 7), ("kept", 8)] {
            let done = set(&mut shard, &name(word, n), &pattern(1, chunks * CHUNK_BYTES), 2);
            assert!(matches!(done, Outcome::Stored(_)), "{word} {n}: {done:?}");
        }
    }
    let mut held = Vec::new();
    for (word, n) in (0..PAGES).map(|n| ("gone", n)).chain((0..20).map(|n| ("kept", n))) {
        let key = name(word, n);
        let place = shard.find(hash(&key), &key, 2).unwrap();
        held.extend(shard.chunks(place).map(|(chunk, _)| shard.memory().content(chunk).unwrap().clone()));
        if word == "gone" {
            shard.remove(place);
        }
    }
    assert_eq!((shard.memory().pages().1, figures.evictions.get()), (0, 0));
    // far once, and a few pages of chunks and a few idle ones for each that has to go
    let bound = |evictions: u64| LOOKS as u64 + 8 * (1 + evictions);
    let looked = |shard: &Shard| shard.memory().looked.take() as u64;
    looked(&shard);
    for n in 0..40 {
        let before = figures.evictions.get();
        assert!(matches!(set(&mut shard, &name("new", n), &pattern(2, 5000), 3), Outcome::Stored(_)));
        let (evictions, looked) = (figures.evictions.get() - before, looked(&shard));
        assert!(looked <= bound(evictions), "{n}: {looked} pages for {evictions}");
    }
    // two chunks a value, eight a victim, and twenty victims that are held
    assert_eq!(figures.evictions.get(), 30);
    // no page can be taken for another size: something of each is held, or comes
    assert_eq!(set(&mut shard, b"small", &[7; 100], 3), Outcome::NoMemory);
    let (evictions, looked) = (figures.evictions.get() - 30, looked(&shard));
    assert!(evictions > 10 && looked <= bound(evictions), "{looked} pages for {evictions}");
    shard.discard(upload);
    shard.check();
}

#[test]
fn what_nobody_holds_is_found_at_the_first_look_whatever_was_freed_with_it() {
    let mut memory = Memory::new(3);
    let mut chunks = Vec::new();
    while memory.add_chunks() {
        chunks.extend(std::iter::from_fn(|| memory.take_chunk(7, LOOKS)));
    }
    let a_page = chunks.len() / 3;
    let [first, second, third] = [0, 1, 2].map(|n| &chunks[n * a_page..(n + 1) * a_page]);
    // the end of the first page and all of the second
    let of =
        |chunks: &[u32]| -> Vec<_> { chunks.iter().map(|chunk| memory.content(*chunk).unwrap().clone()).collect() };
    let held = [of(&first[a_page - 2..]), of(second)].concat();
    for chunk in [&first[1..], third, second].concat() {
        memory.give_chunk(chunk);
        memory.check();
    }
    assert_eq!(memory.idle_page(1), Some(Memory::page_of_chunk(third[0])));
    for n in 0..chunks.len() - 1 - held.len() {
        assert!(memory.take_chunk(7, 1).is_some(), "{n}");
        memory.check();
    }
    assert_eq!(memory.take_chunk(7, LOOKS), None);
    let count = held.len();
    drop(held);
    assert!((0..count).all(|_| memory.take_chunk(7, LOOKS).is_some()));
}

/// The page of the oldest item cannot be had while something comes into a cell beside it.
#[test]
fn a_size_without_a_page_has_one_of_another_though_the_oldest_items_page_has_to_stay() {
    let (mut shard, figures) = shard(6);
    let upload = shard.build(&order(Mode::Set, b"u"), 5000, 2).unwrap();
    let mut store = |key: String, bytes: usize, now: u32| {
        let done = set(&mut shard, key.as_bytes(), &pattern(1, bytes), now);
        assert!(matches!(done, Outcome::Stored(_)), "{key}: {done:?}");
    };
    // with the upload's
    store("a".into(), 1, 2);
    (0..500).for_each(|n| store(format!("middle{n}"), 600, 1000));
    let evictions = figures.evictions.get();
    assert!(evictions > 0);
    // it takes one page, and then its own items go: of what is older by enough there is none to be had
    (0..3000).for_each(|n| store(format!("small{n}"), 100, 1001 + n / 1000));
    assert_eq!(figures.pages_moved.get(), 1);
    assert_eq!(get(&mut shard, b"a", 1004), Some(pattern(1, 1)));
    shard.discard(upload);
    shard.check();
}

#[test]
fn an_older_number_will_do_when_the_item_is_to_be_made_anew() {
    let (mut shard, _) = shard(4);
    let Outcome::Stored(first) = set(&mut shard, b"k", b"one", 2) else { panic!() };
    let place = shard.find(hash(b"k"), b"k", 2).unwrap();
    item::set_expiry(shard.cell_mut(place), 99);
    item::mark(shard.cell_mut(place), STALE | WON, true);
    shard.renumber(place);
    let refused = Order { cas: first, ..order(Mode::Cas, b"k") };
    assert_eq!(shard.store(&refused, Source::Bytes(b"two"), 3), Outcome::Exists);
    let taken = Order { invalidate: true, ..refused };
    assert!(matches!(shard.store(&taken, Source::Bytes(b"two"), 3), Outcome::Stored(_)));
    let place = shard.find(hash(b"k"), b"k", 3).unwrap();
    let view = shard.view(place);
    assert!(view.is(STALE | WON) && !view.is(BINARY));
    assert_eq!((view.expiry(), view.value()), (99, &b"two"[..]));
}

#[test]
fn shards_are_as_many_as_threads_need_and_memory_allows() {
    let store = |memory_mib: u64, threads: usize| {
        let limits = Limits {
            memory_bytes: memory_mib << 20,
            item_bytes: 1 << 20,
            threads,
            secret: [1, 2],
            shared_nothing: false,
        };
        Store::new(limits).shards()
    };
    assert_eq!([store(1024, 1), store(64, 2), store(1024, 2), store(4096, 3), store(1, 8)], [1, 4, 8, 16, 1]);
}

#[test]
fn threads_that_share_nothing_have_shards_for_all_of_their_memory_and_no_other_thread_has_one() {
    for (gib, threads, expected) in [(1, 1, 1), (1, 3, 3), (64, 1, 4), (100, 3, 6), (256, 4, 16)] {
        let (memory_bytes, item_bytes) = (gib << 30, 1 << 20);
        let limits = Limits { memory_bytes, item_bytes, threads, secret: [1, 2], shared_nothing: true };
        let count = shards(&limits);
        assert_eq!(count, expected);
        assert!(memory_bytes / count as u64 <= MEMORY_MOST_BYTES);
        let of = |thread| {
            let numbers = (0..64u64).map(move |n| Home::new(&limits, thread).number(count, n << 32));
            numbers.collect::<BTreeSet<_>>()
        };
        let all: Vec<usize> = (0..threads).flat_map(of).collect();
        assert_eq!(all, (0..count).collect::<Vec<_>>(), "{gib} GiB, {threads} threads");
    }
}

#[test]
fn what_goes_after_a_flush_is_neither_expired_nor_evicted() {
    let (mut shard, figures) = shard(8);
    let mut fill = |from: u32, count: u32| {
        (from..from + count).for_each(|n| {
            let done = set(&mut shard, format!("{n:08}").as_bytes(), &[7; 100], 2);
            assert!(matches!(done, Outcome::Stored(_)), "{n}: {done:?}");
        });
        shard.flush();
    };
    fill(0, 10_000);
    let (items, evictions) = (figures.items.get(), figures.evictions.get());
    assert!(items > 1000 && evictions > 1000, "{items} items, {evictions} evicted");
    fill(10_000, 1000);
    assert_eq!((figures.flushed.get(), figures.expired.get(), figures.evictions.get()), (1000, 0, evictions));
}

#[test]
fn a_large_value_takes_steps_by_its_length_however_it_comes() {
    const CHUNKS: usize = 512;
    let figures = Arc::<Figures>::default();
    let mut shard = Shard::new((200 * PAGE_BYTES) as u64, 4 << 20, figures);
    let value = pattern(3, CHUNKS * CHUNK_BYTES);
    let large = order(Mode::Set, b"k");
    let place = shard.build(&large, value.len(), 2).unwrap();
    let mut cursor = shard.start(place);
    value.chunks(1448).for_each(|part| shard.write(place, &mut cursor, part));
    let followed = shard.memory().followed.take();
    assert!(followed <= CHUNKS, "{followed} to write {CHUNKS}");
    assert!(matches!(shard.store(&large, Source::Built(place), 2), Outcome::Stored(_)));
    assert!(matches!(shard.store(&order(Mode::Append, b"k"), Source::Bytes(b"x"), 2), Outcome::Stored(_)));
    let followed = shard.memory().followed.take();
    assert!(followed <= 2 * CHUNKS, "{followed} to copy {CHUNKS}");
    assert!(get(&mut shard, b"k", 2).unwrap() == [&value[..], b"x"].concat());
    shard.check();
}

#[test]
fn a_panic_empties_the_shard_and_no_other() {
    let limits =
        Limits { memory_bytes: 64 << 20, item_bytes: 1 << 20, threads: 2, secret: [1, 2], shared_nothing: false };
    let store = Store::new(limits);
    for number in 0..store.shards() {
        set(&mut store.shard(number), b"k", b"v", 2);
        store.shard(number).flush_at(60);
    }
    let numbers: Vec<_> = (0..store.shards()).map(|n| store.shard(n).generation()).collect();
    let panics = || {
        let _shard = store.shard(1);
        panic!("in the middle of something");
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    let found: Vec<_> = (0..store.shards()).map(|n| store.shard(n).find(hash(b"k"), b"k", 2).is_some()).collect();
    assert_eq!(found, [true, false, true, true]);
    assert_eq!((store.shard(0).generation(), store.shard(1).generation()), (numbers[0], numbers[1] + 1));
    assert_eq!(store.figures().map(|figures| figures.reset.get()).sum::<u64>(), 1);
    // the flush that was put off is still to come, there as elsewhere
    set(&mut store.shard(1), b"k", b"v", 59);
    let found = |now| (0..store.shards()).filter(|n| store.shard(*n).find(hash(b"k"), b"k", now).is_some()).count();
    assert_eq!((found(59), found(60)), (4, 0));
}

/// As long as a page holds nothing, whatever size it was for, nobody has to go.
#[test]
fn pages_of_a_size_that_nobody_has_any_more_are_used_before_anything_is_evicted() {
    let (large, small) = (pattern(1, 200_000), pattern(2, 600));
    let remove = |shard: &mut Shard, key: &str| {
        let place = shard.find(hash(key.as_bytes()), key.as_bytes(), 10).unwrap();
        shard.remove(place);
    };
    for (first, count, second, more) in [(&large, 6, &small, 1000), (&small, 2000, &large, 4)] {
        let (mut shard, figures) = shard(32);
        for n in 0..count {
            assert!(matches!(set(&mut shard, format!("first-{n}").as_bytes(), first, 10), Outcome::Stored(_)));
        }
        (0..count).for_each(|n| remove(&mut shard, &format!("first-{n}")));
        for n in 0..more {
            assert!(matches!(set(&mut shard, format!("second-{n}").as_bytes(), second, 10), Outcome::Stored(_)));
        }
        assert_eq!((figures.evictions.get(), figures.items.get()), (0, more));
        (0..more)
            .for_each(|n| assert_eq!(get(&mut shard, format!("second-{n}").as_bytes(), 10).as_ref(), Some(second)));
        shard.memory().check();
    }
}
