//! The service: bursts of questions in, answers out, one [`Server`] a thread.
//!
//! A burst is worked on in stages, so that the cache misses of its questions overlap: all are read and hashed; then the answers are written,
//! with the buckets and then the nodes of those that follow asked for some questions before their turn. Memory: the tables are shared and held until the next
//! cycle's start; all else belongs to the server and was allocated when it was made. With retained answers (see `retained`)
//! a question that was answered before skips the tables.

mod request;

use crate::compose::{Composer, NAME_AT};
use crate::cookie::{self, Baker};
use crate::hot::{Exchange, Watch};
use crate::ledger::Row;
use crate::question::{self, Ask, DropReason, Verdict};
use crate::retained::{Held, Origin, Retained};
use crate::rrl::{self, Limiter};
use crate::stats::{Stats, Transport};
use crate::stream::{self, Connections};
use crate::table::{Key, Tables};
use app::{Addresses, Connection, Datagram, DeadReason, Listener, Luggage, Service, Streams};
use base::publish::Reader;
use base::{BURST_FRAMES, Instant};
use request::{Kitchen, Request, limit_of, write_question};
use std::net::IpAddr;
use std::sync::Arc;
use zone::Rtype;

/// The least that a client may say it takes (RFC 6891 section 6.2.5), and what those without EDNS take.
const LEAST_UDP_BYTES: usize = 512;
pub(crate) const CLASS_IN: u16 = 1;
pub(crate) const CLASS_CH: u16 = 3;
pub(crate) const CLASS_ANY: u16 = 255;
const BADVERS: u16 = 16;
/// RFC 7873 section 8
const BADCOOKIE: u16 = 23;
/// RFC 8914 section 4.21
const EDE_NOT_AUTHORITATIVE: u16 = 20;

/// Whether a compressed name in a question is taken: the two keyings of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuestionCompression {
    /// the name as it stands in the message is the key; a compressed one is malformed
    #[default]
    Refuse,
    /// the name is decompressed first
    Accept,
}

/// What an operator can set.
#[derive(Clone, Debug)]
pub struct Options {
    /// the largest UDP answer, and the size announced (512 to 65535)
    pub udp_bytes: u16,
    /// see [`QuestionCompression`]
    pub question_compression: QuestionCompression,
    /// this server's identifier (RFC 5001); none is given when empty, and at most 255 octets are
    pub nsid: Vec<u8>,
    /// what `version.bind` and `version.server` CH TXT tell; None refuses
    pub version: Option<String>,
    /// what `id.server` and `hostname.bind` CH TXT tell; None refuses
    pub id: Option<String>,
    /// DNS cookies; None ignores them
    pub cookies: Option<cookie::Config>,
    /// response rate limiting; None is no limit
    pub rrl: Option<rrl::Config>,
    /// octets of memory in which finished answers over datagrams are retained and copied whole; 0 retains none
    pub retained_bytes: usize,
    /// DNS over TCP
    pub tcp: stream::Limits,
    /// how many servers work side by side; rate limits are divided among them
    pub threads: usize,
    /// from the machine's entropy; keys the rate limiter's table
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            udp_bytes: 1232,
            question_compression: QuestionCompression::Refuse,
            nsid: Vec::new(),
            version: None,
            id: None,
            cookies: None,
            rrl: None,
            retained_bytes: 0,
            tcp: stream::Limits::default(),
            threads: 1,
            seed: 0,
        }
    }
}

/// So many questions before its turn a name's bucket is asked for, and then what it has, for which the bucket is read ([`base::prefetch`]
/// has why not all at once).
const BUCKETS_AHEAD: usize = 12;
const NODES_AHEAD: usize = 6;

/// A question between the stages.
#[derive(Clone, Copy)]
struct Pending {
    verdict: Verdict,
    key: Key,
}

/// Decompressed names of a burst.
type Names = Box<[[u8; 256]]>;

/// The DNS service of one thread.
pub struct Server {
    pending: Box<[Pending; BURST_FRAMES]>,
    names: Names,
    retained: Option<Retained>,
    watch: Option<Watch>,
    pub(crate) core: Core,
    pub(crate) connections: Connections,
}

/// What answers one question needs, without the burst's state.
pub(crate) struct Core {
    pub(crate) shared: Shared,
    limiter: Option<Limiter>,
    kitchen: Kitchen,
}

/// What is only read while a question is answered (counters apart).
pub(crate) struct Shared {
    pub(crate) tables: Reader<Tables>,
    pub(crate) options: Options,
    baker: Option<Baker>,
    pub(crate) stats: Arc<Stats>,
    zones: Arc<Row>,
}

/// Who asked, and how much fits back.
#[derive(Clone, Copy)]
pub(crate) struct From {
    pub(crate) now: Instant,
    pub(crate) peer: IpAddr,
    pub(crate) stream: bool,
}

impl Server {
    /// A server over the tables that `tables` reads.
    pub fn new(tables: Reader<Tables>, options: Options) -> Server {
        Server::with_stats(tables, options, Arc::default())
    }

    /// The same, which goes on counting in `stats`: those of a server that it takes the place of, on the same thread.
    pub fn with_stats(tables: Reader<Tables>, mut options: Options, stats: Arc<Stats>) -> Server {
        options.udp_bytes = options.udp_bytes.max(LEAST_UDP_BYTES as u16);
        options.nsid.truncate(255);
        let zones = stats.zones(tables.counted.ledger());
        let idle = Pending { verdict: Verdict::Drop(DropReason::Short), key: Key::default() };
        let retained = Retained::new(options.retained_bytes);
        stats.retained_bytes.add(retained.as_ref().map_or(0, Retained::bytes) as u64);
        let names = if options.question_compression == QuestionCompression::Accept { BURST_FRAMES } else { 0 };
        Server {
            pending: Box::new([idle; BURST_FRAMES]),
            names: vec![[0; 256]; names].into(),
            retained,
            watch: None,
            connections: Connections::new(&options.tcp),
            core: Core {
                limiter: options.rrl.as_ref().map(|config| Limiter::new(config, options.threads, options.seed)),
                kitchen: Kitchen { composer: Composer::new(), block: Vec::with_capacity(128 << 10) },
                shared: Shared { baker: options.cookies.as_ref().map(Baker::new), tables, options, stats, zones },
            },
        }
    }

    /// The same server, which counts the names that it is asked for in the sketches that it finds there.
    pub fn watched(mut self, exchange: Arc<Exchange>) -> Server {
        let seed = self.core.shared.options.seed;
        self.watch = Some(Watch::new(exchange, seed));
        self
    }

    /// This thread's counters.
    pub fn stats(&self) -> Arc<Stats> {
        self.core.shared.stats.clone()
    }

    /// The tables that the next burst is answered from.
    pub fn tables(&self) -> &Tables {
        &self.core.shared.tables
    }

    /// Reads and hashes.
    #[inline]
    fn read(&mut self, burst: &mut [Datagram<'_>]) {
        let Server { pending, names, core, .. } = self;
        let (seed, cookies) = (core.shared.tables.seed, core.shared.baker.is_some());
        for (n, (slot, datagram)) in pending.iter_mut().zip(burst).enumerate() {
            slot.read(seed, names, n, datagram, cookies);
        }
    }

    /// The three stages with retained answers: what is expected there is asked for instead of the tables' memory.
    #[inline(never)]
    fn retained(&mut self, now: Instant, burst: &mut [Datagram<'_>]) {
        let Server { pending, names, retained, watch, core, .. } = self;
        let Some(retained) = retained else { return };
        let (tables, cookies): (&Tables, _) = (&core.shared.tables, core.shared.baker.is_some());
        let mut absent = 0u64;
        for (n, (slot, datagram)) in pending.iter_mut().zip(&mut *burst).enumerate() {
            slot.read(tables.seed, names, n, datagram, cookies);
            let Verdict::Ask(ask) = &slot.verdict else { continue };
            let (plain, hash) = (ask.plain, Retained::hash(&slot.key, ask));
            retained.hashes[n] = hash;
            if !plain || !retained.prefetch(hash) {
                tables.prefetch_bucket(slot.key.hash);
                absent |= 1 << n;
            }
        }
        for (n, slot) in pending[..burst.len()].iter_mut().enumerate() {
            if absent & 1 << n != 0 {
                tables.prefetch_node(&mut slot.key);
            }
        }
        for (n, (slot, datagram)) in pending.iter().zip(burst).enumerate() {
            let from = From { now, peer: datagram.addresses.peer.ip(), stream: false };
            match core.answer_retained(from, slot, names.get(n), retained, retained.hashes[n], datagram) {
                Ok(bytes) => {
                    if let Some(watch) = watch {
                        watch.answered(&core.shared.tables, &slot.verdict, &slot.key, datagram.buffer());
                    }
                    datagram.reply(bytes);
                }
                Err(reason) => core.shared.stats.dropped(reason),
            }
        }
    }
}

impl Pending {
    /// Asks for the bucket of its name, if it asks for one.
    #[inline(always)]
    fn prefetch_bucket(&self, tables: &Tables) {
        if let Verdict::Ask(_) = self.verdict {
            tables.prefetch_bucket(self.key.hash);
        }
    }

    /// Asks for what its name most likely has, once the bucket has come.
    #[inline(always)]
    fn prefetch_node(&mut self, tables: &Tables) {
        if let Verdict::Ask(_) = self.verdict {
            tables.prefetch_node(&mut self.key);
        }
    }

    /// Reads and hashes the question that is the `n`th of a burst.
    #[inline(always)]
    fn read(&mut self, seed: u64, names: &mut Names, n: usize, datagram: &mut Datagram<'_>, cookies: bool) {
        match names.get_mut(n) {
            None => self.verdict = question::read(datagram.question(), None, cookies),
            Some(name) => self.verdict = question::read(datagram.question(), Some(name), cookies),
        }
        let Verdict::Ask(ask) = &self.verdict else { return };
        let len = usize::from(ask.name_bytes);
        self.key = match names.get(n) {
            None => Key::new(seed, datagram.buffer(), NAME_AT, len),
            Some(name) => Key::new(seed, name, 0, len),
        };
    }
}

/// What is gone takes no memory, though its counts stay.
impl Drop for Server {
    fn drop(&mut self) {
        let (held, gone) = (&self.core.shared.stats.retained_bytes, self.retained.as_ref().map_or(0, Retained::bytes));
        held.set(held.get().wrapping_sub(gone as u64));
    }
}

impl Service for Server {
    fn cycle(&mut self, _now: Instant) {
        if let Some(watch) = &mut self.watch {
            watch.cycle();
        }
        if let Some(baker) = &mut self.core.shared.baker {
            baker.refresh();
        }
        if self.core.shared.tables.refresh() {
            self.core.shared.follow();
            if let Some(limiter) = &mut self.core.limiter {
                limiter.renew();
            }
            if let Some(retained) = &mut self.retained {
                retained.clear();
            }
        }
    }

    fn datagrams(&mut self, now: Instant, _listener: Listener, burst: &mut [Datagram<'_>]) {
        if self.retained.is_some() {
            return burst.chunks_mut(BURST_FRAMES).for_each(|burst| self.retained(now, burst));
        }
        for burst in burst.chunks_mut(BURST_FRAMES) {
            self.read(burst);
            let Server { pending, names, watch, core, .. } = self;
            let pending = &mut pending[..burst.len()];
            let tables: &Tables = &core.shared.tables;
            pending.iter().take(BUCKETS_AHEAD).for_each(|slot| slot.prefetch_bucket(tables));
            pending.iter_mut().take(NODES_AHEAD).for_each(|slot| slot.prefetch_node(tables));
            for (n, datagram) in burst.iter_mut().enumerate() {
                let tables: &Tables = &core.shared.tables;
                pending.get(n + BUCKETS_AHEAD).into_iter().for_each(|slot| slot.prefetch_bucket(tables));
                pending.get_mut(n + NODES_AHEAD).into_iter().for_each(|slot| slot.prefetch_node(tables));
                let slot = &pending[n];
                let peer = datagram.addresses.peer.ip();
                let from = From { now, peer, stream: false };
                let name = names.get(n);
                match core.answer(from, &slot.verdict, &slot.key, name, datagram.buffer(), &mut ()) {
                    Ok(bytes) => {
                        if let Some(watch) = watch {
                            watch.answered(&core.shared.tables, &slot.verdict, &slot.key, datagram.buffer());
                        }
                        datagram.reply(bytes);
                    }
                    Err(reason) => core.shared.stats.dropped(reason),
                }
            }
        }
    }

    fn knock<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        _listener: Listener,
        connection: Connection,
        addresses: Addresses,
    ) {
        stream::knock(self, now, calls, connection, addresses.peer.ip());
    }

    fn recv<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        stream::recv(self, now, calls, connection, cookie, bytes);
    }

    fn eof<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        stream::eof(self, now, calls, connection, cookie);
    }

    fn sent<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        cookie: u64,
        _bytes: usize,
        _room: usize,
    ) {
        stream::sent(self, now, calls, connection, cookie);
    }

    fn dead(&mut self, _now: Instant, _connection: Connection, cookie: u64, _reason: DeadReason) {
        stream::dead(self, cookie);
    }

    fn timer<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        stream::timer(self, now, calls, connection, cookie);
    }

    fn can_move(&self) -> bool {
        true
    }

    fn depart(&mut self, _now: Instant, _connection: Connection, cookie: u64) -> Luggage {
        match stream::pack(self, cookie) {
            Some(packed) => Box::new(packed),
            None => Box::new(()),
        }
    }

    fn arrive<C: Streams>(
        &mut self,
        _now: Instant,
        _calls: &mut C,
        _connection: Connection,
        luggage: Luggage,
    ) -> Option<u64> {
        let packed = luggage.downcast::<stream::Packed>().ok()?;
        stream::unpack(self, *packed)
    }
}

impl Core {
    /// Reads and answers one message that stands alone at the front of `buffer`; gives the answer's octets.
    pub(crate) fn one(&mut self, from: From, buffer: &mut [u8], question_bytes: usize) -> Result<usize, DropReason> {
        let mut name = [0; 256];
        let accept = self.shared.options.question_compression == QuestionCompression::Accept;
        let verdict =
            question::read(&buffer[..question_bytes], accept.then_some(&mut name), self.shared.baker.is_some());
        let name = accept.then_some(&name);
        let seed = self.shared.tables.seed;
        let key = match (&verdict, name) {
            (Verdict::Ask(ask), None) => Key::new(seed, buffer, NAME_AT, usize::from(ask.name_bytes)),
            (Verdict::Ask(ask), Some(name)) => Key::new(seed, name, 0, usize::from(ask.name_bytes)),
            _ => Key::default(),
        };
        self.answer(from, &verdict, &key, name, buffer, &mut ())
    }

    /// Answers from what is retained, or as ever, and then retains the answer where it may be used again.
    #[inline]
    fn answer_retained(
        &mut self,
        from: From,
        slot: &Pending,
        name: Option<&[u8; 256]>,
        retained: &mut Retained,
        hash: u64,
        datagram: &mut Datagram<'_>,
    ) -> Result<usize, DropReason> {
        let plain = match &slot.verdict {
            Verdict::Ask(ask) if ask.plain => ask,
            _ => return self.answer(from, &slot.verdict, &slot.key, name, datagram.buffer(), &mut ()),
        };
        let limit = limit_of(&self.shared.options, plain).min(datagram.capacity());
        if let Some(held) = retained.find(hash, plain, datagram.question(), limit) {
            return self.again(from, plain, &slot.key, held, datagram.buffer());
        }
        let (asked, mut made) = (Retained::asked(plain, datagram.question()), None);
        let bytes = self.answer(from, &slot.verdict, &slot.key, name, datagram.buffer(), &mut made)?;
        if let (Some(asked), Some(made)) = (asked, made) {
            retained.retain(hash, plain, asked, made, &datagram.buffer()[..bytes], limit);
        }
        Ok(bytes)
    }

    /// Sends what was sent before, judged and counted as if it were made anew.
    #[inline]
    fn again(
        &mut self,
        from: From,
        ask: &Ask,
        key: &Key,
        held: Held<'_>,
        buffer: &mut [u8],
    ) -> Result<usize, DropReason> {
        let Core { shared, limiter, .. } = self;
        let made = held.made();
        shared.stats.asked(Transport::of(from.stream, from.peer), ask.qtype);
        if limiter.is_some() {
            let request = Request::new(shared, from, ask, key, buffer);
            if !request.passes(limiter, made.kind, made.source)? {
                return request.slip(buffer);
            }
        }
        shared.count(made.rcode, made.zone, made.truncated);
        shared.stats.retained.add(1);
        Ok(held.copy(buffer))
    }

    /// Writes the answer over the question at the front of `buffer`.
    #[inline(always)]
    fn answer<O: Origin>(
        &mut self,
        from: From,
        verdict: &Verdict,
        key: &Key,
        decompressed: Option<&[u8; 256]>,
        buffer: &mut [u8],
        origin: &mut O,
    ) -> Result<usize, DropReason> {
        let ask = match verdict {
            Verdict::Ask(ask) => ask,
            Verdict::Drop(reason) => return Err(*reason),
            Verdict::Bare(bare) => return self.shared.bare(&mut self.limiter, from, bare, decompressed, buffer),
        };
        let Core { shared, limiter, kitchen } = self;
        shared.stats.asked(Transport::of(from.stream, from.peer), ask.qtype);
        if ask.plain
            && limiter.is_none()
            && let Some(bytes) = shared.direct(key, ask, buffer, origin)
        {
            return Ok(bytes);
        }
        Core::answer_long(shared, limiter, kitchen, from, ask, key, decompressed, buffer, origin)
    }

    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    fn answer_long<O: Origin>(
        shared: &Shared,
        limiter: &mut Option<Limiter>,
        kitchen: &mut Kitchen,
        from: From,
        ask: &Ask,
        key: &Key,
        decompressed: Option<&[u8; 256]>,
        buffer: &mut [u8],
        origin: &mut O,
    ) -> Result<usize, DropReason> {
        let mut request = Request::new(shared, from, ask, key, buffer);
        if ask.sent_bytes != ask.name_bytes
            && let Some(name) = decompressed
        {
            write_question(buffer, name, ask)?;
        }
        let version = ask.edns.as_ref().map_or(0, |edns| edns.version);
        let unusual = ask.qclass != CLASS_IN || version != 0 || matches!(Rtype(ask.qtype), Rtype::AXFR | Rtype::IXFR);
        if unusual && let Some(answered) = request.unusual(limiter, buffer) {
            return answered;
        }
        request.lookup(limiter, kitchen, buffer, origin)
    }
}
