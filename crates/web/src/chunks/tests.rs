use super::*;
use proptest::prelude::*;
use std::sync::atomic::AtomicU32;

/// What stands at an offset of file `file`.
fn byte(file: u64, at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 7) as u8 ^ (at / CHUNK_BYTES) as u8 ^ file as u8
}

/// A file that can be counted and broken.
struct Made {
    file: u64,
    reads: AtomicU32,
    broken: AtomicBool,
}

impl Source for Arc<Made> {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self.broken.load(Ordering::Relaxed) {
            return Err(Unreadable);
        }
        into.iter_mut().enumerate().for_each(|(n, to)| *to = byte(self.file, at + n as u64));
        Ok(())
    }
}

fn made(file: u64, bytes: u64) -> (Arc<Origin>, Arc<Made>) {
    let made = Arc::new(Made { file, reads: AtomicU32::new(0), broken: AtomicBool::new(false) });
    (Arc::new(Origin::new(bytes, Box::new(made.clone()))), made)
}

fn work_off(cache: &Cache) {
    while cache.turn() {}
}

fn is_right(file: u64, index: u32, chunk: &Content) -> bool {
    let from = u64::from(index) * CHUNK_BYTES;
    chunk.bytes(FIRST).iter().enumerate().all(|(n, have)| *have == byte(file, from + n as u64))
}

#[test]
fn a_chunk_is_read_once_for_all_who_want_it() {
    let cache = Cache::new(CACHE_LEAST_BYTES, 8);
    let (origin, made) = made(1, 3 * CHUNK_BYTES + 5);
    let (mut one, mut other) = (Desk::new(cache.clone(), 4), Desk::new(cache.clone(), 1));
    assert!(one.get(&origin, 3).is_none());
    assert!(one.ask(&origin, 3, 0) && one.ask(&origin, 3, 2) && other.ask(&origin, 3, 0));
    assert!(one.told().is_none());
    work_off(&cache);
    let (place, told) = one.told().unwrap();
    assert_eq!((place, told.unwrap().bytes(FIRST).len()), (0, 5));
    assert_eq!(one.told().unwrap().0, 2);
    assert!(is_right(1, 3, &other.told().unwrap().1.unwrap()));
    assert_eq!(made.reads.load(Ordering::Relaxed), 1);
    assert!(is_right(1, 3, &one.get(&origin, 3).unwrap()));
}

#[test]
fn a_file_that_changed_is_told_and_not_kept() {
    let cache = Cache::new(CACHE_LEAST_BYTES, 8);
    let (origin, made) = made(1, CHUNK_BYTES);
    let mut desk = Desk::new(cache.clone(), 1);
    made.broken.store(true, Ordering::Relaxed);
    desk.ask(&origin, 0, 0);
    work_off(&cache);
    assert_eq!(desk.told().unwrap().1.unwrap_err(), Unreadable);
    assert!(desk.get(&origin, 0).is_none());
    assert_eq!(lock(&cache.0.table).held_bytes, 0);
}

#[test]
fn a_source_that_panics_leaves_nobody_waiting() {
    struct Panics;
    impl Source for Panics {
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Unreadable> {
            panic!("a bug in a source");
        }
    }
    let cache = Cache::new(CACHE_LEAST_BYTES, 8);
    let origin = Arc::new(Origin::new(9, Box::new(Panics)));
    let mut desk = Desk::new(cache.clone(), 1);
    desk.ask(&origin, 0, 0);
    work_off(&cache);
    assert!(desk.told().unwrap().1.is_err());
}

#[test]
fn what_is_held_is_never_given_up_and_who_finds_no_room_waits() {
    let cache = Cache::new(CACHE_LEAST_BYTES, 64);
    let (origin, _) = made(1, 64 * CHUNK_BYTES);
    let mut desk = Desk::new(cache.clone(), 64);
    let mut held = Vec::new();
    for index in 0..16 {
        desk.ask(&origin, index, index);
        work_off(&cache);
        held.extend(desk.told());
    }
    // sums and lists take memory too, so not all of them fit
    let (fits, most) = (held.len(), lock(&cache.0.table).held_bytes);
    assert!((14..16).contains(&fits) && most <= CACHE_LEAST_BYTES, "{fits}, {most}");
    assert!(!cache.turn());
    // who comes later stands behind, even for something small
    let (small, _) = made(2, 1);
    desk.ask(&small, 0, 40);
    work_off(&cache);
    assert!(desk.told().is_none());
    // but not for what is there
    desk.ask(&origin, 0, 41);
    work_off(&cache);
    assert_eq!(desk.told().unwrap().0, 41);
    drop(held.remove(7));
    work_off(&cache);
    assert_eq!(desk.told().unwrap().0, fits as u32);
    drop(held.split_off(8));
    work_off(&cache);
    let rest: Vec<u32> = std::iter::from_fn(|| desk.told()).map(|(place, _)| place).collect();
    assert_eq!(rest, (fits as u32 + 1..16).chain([40]).collect::<Vec<_>>());
    assert!(held.iter().all(|(index, told)| is_right(1, *index, told.as_ref().unwrap())));
}

#[test]
fn what_was_used_lately_stays_longer() {
    let cache = Cache::new(CACHE_LEAST_BYTES, 64);
    let (origin, made) = made(1, 64 * CHUNK_BYTES);
    let mut desk = Desk::new(cache.clone(), 1);
    let mut ask = |index| {
        desk.ask(&origin, index, 0);
        work_off(&cache);
        drop(desk.told().unwrap().1.unwrap());
    };
    (0..60).for_each(|index| {
        ask(index);
        // asked for every time
        ask(0);
    });
    assert_eq!(made.reads.load(Ordering::Relaxed), 60);
}

#[test]
fn reading_ahead_is_dropped_where_it_would_be_in_the_way() {
    let cache = Cache::new(CACHE_LEAST_BYTES, 64);
    let (origin, made) = made(1, 5 * CHUNK_BYTES);
    let mut desk = Desk::new(cache.clone(), 64);
    desk.hint(&origin, 3, 99);
    work_off(&cache);
    assert_eq!(made.reads.load(Ordering::Relaxed), 2);
    assert!(desk.get(&origin, 4).is_some() && desk.get(&origin, 2).is_none() && desk.told().is_none());
    for _ in 0..2 * HINTS_MOST {
        desk.hint(&origin, 0, 1);
    }
    // those who wait find room in the queue all the same
    assert!((0..64).all(|place| desk.ask(&origin, 0, place)));
    work_off(&cache);
    assert_eq!(std::iter::from_fn(|| desk.told()).count(), 64);
    assert_eq!(cache.0.hint_count.load(Ordering::Relaxed), 0);
}

#[test]
fn who_waits_goes_before_what_is_read_ahead_and_hints_take_turns() {
    let cache = Cache::new(64 << 20, 64);
    let ((one, of_one), (other, of_other)) = (made(1, 64 * CHUNK_BYTES), made(2, 64 * CHUNK_BYTES));
    let reads = || [&of_one, &of_other].map(|made| made.reads.load(Ordering::Relaxed));
    let mut desk = Desk::new(cache.clone(), 1);
    desk.hint(&one, 0, 16);
    desk.hint(&other, 0, 16);
    // they are heard of, and two chunks are read
    (0..4).for_each(|_| assert!(cache.turn()));
    assert_eq!(reads(), [1, 1]);
    assert!(desk.ask(&one, 40, 0) && cache.turn());
    assert!(is_right(1, 40, &desk.told().unwrap().1.unwrap()));
    assert_eq!(reads(), [2, 1]);
    work_off(&cache);
    assert_eq!(reads(), [17, 16]);
    assert!((0..16).all(|index| desk.get(&one, index).is_some() && desk.get(&other, index).is_some()));
}

#[test]
fn shares_shrink_with_the_number_of_those_who_share() {
    let cache = Cache::new(64 << 20, 1000);
    let desk = Desk::new(cache.clone(), 1);
    assert_eq!((desk.share_bytes(), desk.ahead()), (64 * CHUNK_BYTES, 16));
    (0..64).for_each(|_| desk.enter());
    assert_eq!((desk.share_bytes(), desk.ahead()), (8 * CHUNK_BYTES, 8));
    (0..936).for_each(|_| desk.enter());
    assert_eq!((desk.share_bytes(), desk.ahead()), (2 * CHUNK_BYTES, 0));
    (0..1000).for_each(|_| desk.leave());
    assert_eq!(desk.share_bytes(), 64 * CHUNK_BYTES);
}

#[test]
fn threads_work_until_they_are_stopped() {
    let cache = Cache::new(CACHE_LEAST_BYTES, 64);
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let cache = cache.clone();
            std::thread::spawn(move || cache.work())
        })
        .collect();
    let (origin, _) = made(1, 200 * CHUNK_BYTES);
    let mut desk = Desk::new(cache.clone(), 8);
    let (wakes, wake) = std::sync::mpsc::channel();
    desk.set_waker(&Waker::new(move || {
        let _ = wakes.send(());
    }));
    // eight places go through the file side by side, each holding what it had last
    let mut at: [u32; 8] = std::array::from_fn(|place| 25 * place as u32);
    let mut held: [Option<Arc<Content>>; 8] = Default::default();
    (0..8).for_each(|place| assert!(desk.ask(&origin, at[place], place as u32)));
    let mut told = 0;
    while told < 200 {
        wake.recv_timeout(Duration::from_secs(60)).expect("a wake");
        while let Some((place, chunk)) = desk.told() {
            let (chunk, n) = (chunk.unwrap(), place as usize);
            assert!(is_right(1, at[n], &chunk));
            held[n] = Some(chunk);
            (at[n], told) = (at[n] + 1, told + 1);
            if !at[n].is_multiple_of(25) {
                assert!(desk.ask(&origin, at[n], place));
            }
        }
    }
    cache.stop();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}

/// Places that ask, hold what they were told, and let go.
struct World {
    cache: Cache,
    desk: Desk,
    files: Vec<Arc<Origin>>,
    asked: Vec<Option<(usize, u32)>>,
    held: Vec<Option<Arc<Content>>>,
}

impl World {
    fn new(places: usize) -> World {
        let cache = Cache::new(CACHE_LEAST_BYTES, places);
        World {
            desk: Desk::new(cache.clone(), places),
            cache,
            files: (0..3).map(|file| made(file, 20 * CHUNK_BYTES - file * 1000).0).collect(),
            asked: vec![None; places],
            held: vec![None; places],
        }
    }

    fn collect(&mut self) {
        work_off(&self.cache);
        while let Some((place, chunk)) = self.desk.told() {
            let (file, index) = self.asked[place as usize].take().expect("it asked");
            let chunk = chunk.unwrap();
            assert!(is_right(file as u64, index, &chunk));
            self.held[place as usize] = Some(chunk);
        }
        assert!(lock(&self.cache.0.table).held_bytes <= CACHE_LEAST_BYTES);
    }
}

proptest! {
    /// Whatever is asked, held and hinted at: right bytes, the bound kept, and nobody forgotten.
    #[test]
    fn whoever_asks_is_told_the_right_bytes_within_the_bound(
        steps in prop::collection::vec((0usize..3, 0u32..20, 0usize..24, any::<bool>()), 1..150)
    ) {
        let mut world = World::new(24);
        for (file, index, place, hint) in steps {
            world.held[place] = None;
            if hint {
                world.desk.hint(&world.files[file], index, index + 3);
            } else if world.asked[place].is_none() {
                world.asked[place] = Some((file, index));
                prop_assert!(world.desk.ask(&world.files[file], index, place as u32));
            }
            world.collect();
        }
        // when those who hold let go, all who still wait have their turn
        for _ in 0..3 {
            world.held.iter_mut().for_each(|held| *held = None);
            world.collect();
        }
        prop_assert!(world.asked.iter().all(Option::is_none));
    }
}
