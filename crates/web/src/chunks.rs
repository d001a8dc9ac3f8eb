//! Files that are not held in memory as a whole: read chunk by chunk when somebody wants them, and kept within a bound.
//!
//! A serving thread asks its [`Desk`] for a chunk. One that is there it gets at once; another is read by one of the threads that
//! [`Cache::work`], and told over a ring, with a wake. A serving thread never waits for a disk, nor for a lock: when the table is
//! in use it asks as if the chunk were not there. What a thread asks for it asks for once, so the queues have bounds that are
//! known beforehand.
//!
//! A chunk is immutable content of its own, with its checksum sums made when it is read. Whoever sends from it holds its `Arc`
//! ([`app::Versions`]) until the last byte is acknowledged, and what somebody holds is never evicted. So the memory has a bound that
//! is kept, and when everything is held, those who want more wait, first come first served. They wait for nobody who waits for
//! them: a hold ends when a client acknowledges, or its connection times out, or is too slow for those who wait ([`Desk::is_short`]). How much one connection may hold is its share,
//! [`Desk::share_bytes`], which shrinks as more of them are served.
//!
//! Eviction is by the clock algorithm: a chunk that was used since the hand came by is spared once. Only the cache's own threads
//! free memory.
//!
//! Left out: opening files. An [`Origin`] is read through [`Source`], which also judges whether the file is still the same.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

use app::{Content, ContentBuilder, Waker};
use base::counter::{Figure, Report};
use base::ring::{self, Consumer, Producer};

/// Bytes of a chunk; the last one of a file may be shorter.
pub const CHUNK_BYTES: u64 = 64 << 10;
/// The least memory of a cache: room for a few connections to go on.
pub const CACHE_LEAST_BYTES: u64 = 16 * CHUNK_BYTES;
/// What a chunk takes besides its bytes and sums, places in the cache's lists included.
const OVERHEAD_BYTES: u64 = 256;
/// Chunks that one connection may hold, if there is room: 4 MiB in flight.
const SHARE_MOST: u64 = 64;
/// And if there is none: one on its way while another is read.
const SHARE_LEAST: u64 = 2;
/// Chunks read ahead of a connection, if there is room.
const AHEAD_MOST: u64 = 16;
/// Connections that may wait for a chunk at a time; who comes then is reset.
const REQUESTS_MOST: usize = 1 << 17;
/// Requests to read ahead that may wait; more are dropped, as nobody waits for them.
const HINTS_MOST: usize = 256;
/// How often a serving thread tries the table before it asks for what may be there.
const TRIES: usize = 16;
/// Chunks that one search for room looks at; the hand goes on from there the next time.
const SWEEP_MOST: usize = 1024;
/// How often those who found no room are tried again: what is held comes free without a word.
const STARVED_LOOK: Duration = Duration::from_millis(1);

/// Where the bytes of one version of a file come from.
pub trait Source: Send + Sync {
    /// Reads the bytes from `at` on into all of `into`, and only if they are still those of the version that the source is of.
    ///
    /// # Errors
    /// The file was changed, or cannot be read. The source says so to whoever should know.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Unreadable>;
}

/// The file is not, or not any more, what was to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// One version of a file whose bytes are read when they are wanted.
pub struct Origin {
    /// of no other version, so what was read of another one cannot be taken for this one's
    number: u64,
    bytes: u64,
    source: Box<dyn Source>,
}

impl Origin {
    /// A version of a file of `bytes` bytes.
    pub(crate) fn new(bytes: u64, source: Box<dyn Source>) -> Origin {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Origin { number: NUMBERS.fetch_add(1, Ordering::Relaxed), bytes, source }
    }

    /// The same version, read from elsewhere: what was read of it before goes on to be of use.
    pub(crate) fn moved(&self, source: Box<dyn Source>) -> Origin {
        Origin { number: self.number, bytes: self.bytes, source }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it can be read now.
    pub(crate) fn probe(&self) -> bool {
        self.source.read(0, &mut [0]).is_ok()
    }

    fn chunk_bytes(&self, index: u32) -> usize {
        let at = u64::from(index) * CHUNK_BYTES;
        self.bytes.saturating_sub(at).min(CHUNK_BYTES) as usize
    }

    fn chunks(&self) -> u32 {
        u32::try_from(self.bytes.div_ceil(CHUNK_BYTES)).unwrap_or(u32::MAX)
    }

    fn read(&self, index: u32) -> Told {
        let read =
            || ContentBuilder::chunk(self.chunk_bytes(index), |m| self.source.read(u64::from(index) * CHUNK_BYTES, m));
        // a bug that one file brings to light must not leave others waiting for good
        catch_unwind(AssertUnwindSafe(read)).unwrap_or(Err(Unreadable))
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Origin({}, {} bytes)", self.number, self.bytes)
    }
}

type Told = Result<Arc<Content>, Unreadable>;
type Key = (u64, u32);

/// Who waits for a chunk: a place of a desk.
struct Waiter {
    mailbox: Arc<Mailbox>,
    place: u32,
}

impl Waiter {
    fn tell(self, told: Told) {
        // the ring has room for one answer a place; that of a server that is gone is never emptied, and need not be
        let _ = lock(&self.mailbox.answers).push((self.place, told));
        if let Some(waker) = self.mailbox.waker.get() {
            waker.wake();
        }
    }
}

struct Mailbox {
    answers: Mutex<Producer<(u32, Told)>>,
    waker: OnceLock<Waker>,
}

enum Request {
    Need { origin: Arc<Origin>, index: u32, waiter: Waiter },
    Hint(Hint),
    Stop,
}

/// Chunks that will be wanted soon.
struct Hint {
    origin: Arc<Origin>,
    chunks: Range<u32>,
}

struct Entry {
    chunk: Arc<Content>,
    /// used since the hand came by
    recent: bool,
}

#[derive(Default)]
struct Table {
    chunks: HashMap<Key, Entry, BuildHasherDefault<DefaultHasher>>,
    /// those chunks, the next one under the clock's hand first
    clock: VecDeque<Key>,
    /// with those that are being read
    held_bytes: u64,
    /// who waits for what is being read
    reading: HashMap<Key, Vec<Waiter>, BuildHasherDefault<DefaultHasher>>,
    /// those for whom there was no room, the longest first
    starved: VecDeque<(Arc<Origin>, u32, Waiter)>,
}

/// How a look for a chunk ended.
enum Begun {
    Here(Arc<Content>),
    /// somebody reads it already
    Joined,
    /// the caller is to read it; room was taken for it
    Read,
    NoRoom,
}

impl Table {
    /// `most`: the bound of the memory; None takes no room.
    fn begin(&mut self, key: Key, bytes: u64, most: Option<u64>, evicted: &mut Vec<Arc<Content>>) -> Begun {
        if let Some(entry) = self.chunks.get_mut(&key) {
            entry.recent = true;
            return Begun::Here(entry.chunk.clone());
        }
        if self.reading.contains_key(&key) {
            return Begun::Joined;
        }
        if !most.is_some_and(|most| self.make_room(bytes, most, evicted)) {
            return Begun::NoRoom;
        }
        self.held_bytes += bytes;
        self.reading.insert(key, Vec::new());
        Begun::Read
    }

    fn make_room(&mut self, bytes: u64, most: u64, evicted: &mut Vec<Arc<Content>>) -> bool {
        for _ in 0..SWEEP_MOST {
            if self.held_bytes + bytes <= most {
                return true;
            }
            let Some(key) = self.clock.pop_front() else { break };
            let Some(entry) = self.chunks.get_mut(&key) else { continue };
            // whoever wants it takes its Arc under this lock
            if entry.recent || Arc::strong_count(&entry.chunk) > 1 {
                entry.recent = false;
                self.clock.push_back(key);
                continue;
            }
            if let Some(entry) = self.chunks.remove(&key) {
                self.held_bytes -= cost(entry.chunk.bytes(FIRST).len());
                evicted.push(entry.chunk);
            }
        }
        self.held_bytes + bytes <= most
    }
}

/// A chunk's only object.
pub(crate) const FIRST: app::ObjectId = app::ObjectId(0);

/// Memory that a chunk of so many bytes takes.
fn cost(bytes: usize) -> u64 {
    app::memory_bytes(bytes) + OVERHEAD_BYTES
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // nothing that panics is done under these locks
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Shared {
    table: Mutex<Table>,
    requests: SyncSender<Request>,
    waiting: Mutex<Receiver<Request>>,
    most_bytes: u64,
    /// how many wait for room; while one of them is tried, he may be missing
    starved: AtomicUsize,
    /// connections that send from chunks now
    streams: AtomicUsize,
    /// what is to be read ahead when nobody waits for a chunk
    hints: Mutex<VecDeque<Hint>>,
    /// those, and those that are still among the requests
    hint_count: AtomicUsize,
    stopped: AtomicBool,
    reads: AtomicU64,
    failed: AtomicU64,
    waits: AtomicU64,
    evictions: AtomicU64,
}

impl Shared {
    fn note(&self, table: &Table) {
        self.starved.store(table.starved.len(), Ordering::Relaxed);
    }
}

/// The cache: one for all threads.
#[derive(Clone)]
pub struct Cache(Arc<Shared>);

impl Cache {
    /// A cache of up to `most_bytes` bytes, [`CACHE_LEAST_BYTES`] or more, for up to `connections` connections over all threads.
    pub fn new(most_bytes: u64, connections: usize) -> Cache {
        let (requests, waiting) = mpsc::sync_channel(connections.min(REQUESTS_MOST) + HINTS_MOST);
        Cache(Arc::new(Shared {
            table: Mutex::default(),
            requests,
            waiting: Mutex::new(waiting),
            most_bytes: most_bytes.max(CACHE_LEAST_BYTES),
            starved: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            hints: Mutex::default(),
            hint_count: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }))
    }

    /// Connections that are served from it.
    #[cfg(test)]
    pub(crate) fn streams(&self) -> usize {
        self.0.streams.load(Ordering::Relaxed)
    }

    /// Reads what is asked for, until [`Cache::stop`]. For threads made for this, as many as shall wait for disks at a time.
    pub fn work(&self) {
        while !self.0.stopped.load(Ordering::Acquire) {
            if self.turn() {
                continue;
            }
            if !lock(&self.0.table).starved.is_empty() {
                std::thread::sleep(STARVED_LOOK);
                continue;
            }
            // one thread waits here, and the others for it
            let next = lock(&self.0.waiting).recv();
            next.into_iter().for_each(|request| self.serve(request));
        }
        // for the next thread
        let _ = self.0.requests.try_send(Request::Stop);
    }

    /// Ends [`Cache::work`] in every thread, soon.
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::Release);
        // a full queue has something to wake them
        let _ = self.0.requests.try_send(Request::Stop);
    }

    /// Serves one request, or one that found no room before, or reads one chunk ahead; false when there is nothing to do now.
    pub fn turn(&self) -> bool {
        if self.feed() {
            return true;
        }
        let request = match self.0.waiting.try_lock() {
            Ok(waiting) => waiting.try_recv(),
            Err(_) => Err(TryRecvError::Empty),
        };
        match request {
            Ok(request) => {
                self.serve(request);
                true
            }
            Err(_) => self.read_ahead(),
        }
    }

    /// Tries who has waited for room the longest; whether it found some.
    fn feed(&self) -> bool {
        let mut table = lock(&self.0.table);
        let Some((origin, index, waiter)) = table.starved.pop_front() else { return false };
        self.0.note(&table);
        self.need(table, origin, index, waiter, true)
    }

    fn serve(&self, request: Request) {
        match request {
            Request::Need { origin, index, waiter } => {
                let table = lock(&self.0.table);
                self.need(table, origin, index, waiter, false);
            }
            Request::Hint(hint) => lock(&self.0.hints).push_back(hint),
            Request::Stop => {}
        }
    }

    /// Reads one chunk of the next hint, whose others come after those of all other hints; false when there is no hint.
    fn read_ahead(&self) -> bool {
        let Some(mut hint) = lock(&self.0.hints).pop_front() else { return false };
        if self.read_next(&mut hint) && !hint.chunks.is_empty() {
            lock(&self.0.hints).push_back(hint);
        } else {
            self.0.hint_count.fetch_sub(1, Ordering::Relaxed);
        }
        true
    }

    /// False when there is no room for what nobody waits for.
    fn read_next(&self, Hint { origin, chunks }: &mut Hint) -> bool {
        let Some(index) = chunks.next() else { return false };
        let mut table = lock(&self.0.table);
        if !table.starved.is_empty() {
            return false;
        }
        let mut evicted = Vec::new();
        let (key, bytes) = ((origin.number, index), cost(origin.chunk_bytes(index)));
        let begun = table.begin(key, bytes, Some(self.0.most_bytes), &mut evicted);
        drop(table);
        self.drop_evicted(evicted);
        if matches!(begun, Begun::Read) {
            self.read(origin, index);
        }
        !matches!(begun, Begun::NoRoom)
    }

    /// Gets a chunk for somebody; false when there was no room and he waits on. `first`: he stands before all who wait.
    fn need(
        &self,
        mut table: MutexGuard<'_, Table>,
        origin: Arc<Origin>,
        index: u32,
        waiter: Waiter,
        first: bool,
    ) -> bool {
        let key = (origin.number, index);
        let mut evicted = Vec::new();
        // who comes later does not take the room from those who wait for it
        let most = (first || table.starved.is_empty()).then_some(self.0.most_bytes);
        let begun = table.begin(key, cost(origin.chunk_bytes(index)), most, &mut evicted);
        match begun {
            Begun::Here(chunk) => {
                drop(table);
                waiter.tell(Ok(chunk));
            }
            Begun::Joined | Begun::Read => {
                table.reading.entry(key).or_default().push(waiter);
                drop(table);
                if matches!(begun, Begun::Read) {
                    self.read(&origin, index);
                }
            }
            Begun::NoRoom if first => {
                table.starved.push_front((origin, index, waiter));
                self.0.note(&table);
                drop(table);
                self.drop_evicted(evicted);
                return false;
            }
            Begun::NoRoom => {
                self.0.waits.fetch_add(1, Ordering::Relaxed);
                table.starved.push_back((origin, index, waiter));
                self.0.note(&table);
            }
        }
        self.drop_evicted(evicted);
        true
    }

    /// Reads a chunk that [`Table::begin`] took room for, and tells everybody who waits for it.
    fn read(&self, origin: &Origin, index: u32) {
        let key = (origin.number, index);
        let told = origin.read(index);
        self.0.reads.fetch_add(1, Ordering::Relaxed);
        let waiters = {
            let mut table = lock(&self.0.table);
            match &told {
                Ok(chunk) => {
                    table.chunks.insert(key, Entry { chunk: chunk.clone(), recent: false });
                    table.clock.push_back(key);
                }
                Err(Unreadable) => {
                    self.0.failed.fetch_add(1, Ordering::Relaxed);
                    table.held_bytes -= cost(origin.chunk_bytes(index));
                }
            }
            table.reading.remove(&key).unwrap_or_default()
        };
        waiters.into_iter().for_each(|waiter| waiter.tell(told.clone()));
    }

    fn drop_evicted(&self, evicted: Vec<Arc<Content>>) {
        self.0.evictions.fetch_add(evicted.len() as u64, Ordering::Relaxed);
    }
}

impl Report for Cache {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let Shared { reads, failed, waits, evictions, .. } = &*self.0;
        for (name, help, counter) in [
            ("web_cache_reads_total", "chunks read from files", reads),
            ("web_cache_failed_total", "readings that found a file changed or unreadable", failed),
            ("web_cache_waits_total", "chunks that had to wait for memory, all of it being in use", waits),
            ("web_cache_evictions_total", "chunks given up for others", evictions),
        ] {
            show(Figure { name, help, gauge: false, labels: &[], value: counter.load(Ordering::Relaxed) });
        }
        let held = lock(&self.0.table).held_bytes;
        let mut gauge = |name, help, value| show(Figure { name, help, gauge: true, labels: &[], value });
        gauge("web_cache_bytes", "memory of the chunks that are held", held);
        gauge("web_cache_most_bytes", "the most memory that chunks may take", self.0.most_bytes);
        gauge("web_cache_streams", "connections that are sent chunks", self.0.streams.load(Ordering::Relaxed) as u64);
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache({} bytes at most)", self.0.most_bytes)
    }
}

/// A serving thread's end of the cache.
pub(crate) struct Desk {
    cache: Cache,
    mailbox: Arc<Mailbox>,
    answers: Consumer<(u32, Told)>,
}

impl Desk {
    /// A desk at which up to `places` may wait, each for one chunk.
    pub(crate) fn new(cache: Cache, places: usize) -> Desk {
        let (producer, answers) = ring::ring(places.next_power_of_two());
        let mailbox = Arc::new(Mailbox { answers: Mutex::new(producer), waker: OnceLock::new() });
        Desk { cache, mailbox, answers }
    }

    /// Who is woken when an answer has come.
    pub(crate) fn set_waker(&mut self, waker: &Waker) {
        let _ = self.mailbox.waker.set(waker.clone());
    }

    /// A chunk, if it is there.
    pub(crate) fn get(&self, origin: &Origin, index: u32) -> Option<Arc<Content>> {
        for _ in 0..TRIES {
            let mut table = match self.cache.0.table.try_lock() {
                Ok(table) => table,
                Err(TryLockError::Poisoned(table)) => table.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    std::hint::spin_loop();
                    continue;
                }
            };
            let entry = table.chunks.get_mut(&(origin.number, index))?;
            entry.recent = true;
            return Some(entry.chunk.clone());
        }
        None
    }

    /// Asks for a chunk; the answer comes to `place`, which waits for no other one. False when it cannot be asked for.
    pub(crate) fn ask(&self, origin: &Arc<Origin>, index: u32, place: u32) -> bool {
        let waiter = Waiter { mailbox: self.mailbox.clone(), place };
        self.cache.0.requests.try_send(Request::Need { origin: origin.clone(), index, waiter }).is_ok()
    }

    /// Has chunks read that will be wanted soon, when nobody waits for one.
    pub(crate) fn hint(&self, origin: &Arc<Origin>, from: u32, to: u32) {
        let shared = &self.cache.0;
        let hint = Hint { origin: origin.clone(), chunks: from..to.min(origin.chunks()) };
        if shared.hint_count.fetch_add(1, Ordering::Relaxed) < HINTS_MOST
            && shared.requests.try_send(Request::Hint(hint)).is_ok()
        {
            return;
        }
        shared.hint_count.fetch_sub(1, Ordering::Relaxed);
    }

    /// The next answer: for which place, and the chunk.
    #[inline]
    pub(crate) fn told(&mut self) -> Option<(u32, Told)> {
        self.answers.pop()
    }

    fn share(&self) -> u64 {
        let shared = &self.cache.0;
        let streams = shared.streams.load(Ordering::Relaxed).max(1) as u64;
        shared.most_bytes / CHUNK_BYTES / (2 * streams)
    }

    /// Whether somebody waits for room.
    pub(crate) fn is_short(&self) -> bool {
        self.cache.0.starved.load(Ordering::Relaxed) > 0
    }

    /// How many bytes one connection may have on their way.
    pub(crate) fn share_bytes(&self) -> u64 {
        self.share().clamp(SHARE_LEAST, SHARE_MOST) * CHUNK_BYTES
    }

    /// How many chunks are to be read ahead of one connection.
    pub(crate) fn ahead(&self) -> u32 {
        self.share().min(AHEAD_MOST) as u32
    }

    /// One more connection is served from chunks.
    pub(crate) fn enter(&self) {
        self.cache.0.streams.fetch_add(1, Ordering::Relaxed);
    }

    /// One fewer.
    pub(crate) fn leave(&self) {
        self.cache.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
