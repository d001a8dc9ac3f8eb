//! The service: bursts of questions in, answers out, one [`Server`] a thread.
//!
//! A burst is worked on in stages, so that the cache misses of its questions overlap: all are read and hashed and their
//! buckets asked for; then their nodes; then the answers are written. Memory: the tables are shared and held until the next
//! cycle's start; all else belongs to the server and was allocated when it was made.

use std::net::IpAddr;
use std::sync::Arc;

use crate::block::{self, Block, UNIT_BYTES};
use crate::chaos;
use crate::compose::{Composer, NAME_AT};
use crate::cookie::{self, Baker};
use crate::key;
use crate::question::{self, Ask, DropReason, Edns, Verdict};
use crate::reference::{self, rcode};
use crate::reply::{self, Frame, Opt, Sent};
use crate::resolve::{Kind, Outcome};
use crate::rrl::{self, Judgement, Limiter};
use crate::stats::{Stats, Transport, ZoneStats};
use crate::stream::{self, Connections};
use crate::table::{Candidate, Tables};
use app::{Addresses, Connection, Datagram, DeadReason, Listener, Service, Streams};
use base::publish::Reader;
use base::{BURST_FRAMES, Instant};
use zone::{NameRef, Rtype};

/// The least that a client may say it takes (RFC 6891 section 6.2.5), and what those without EDNS take.
const LEAST_UDP_BYTES: usize = 512;
pub(crate) const CLASS_IN: u16 = 1;
pub(crate) const CLASS_CH: u16 = 3;
pub(crate) const CLASS_ANY: u16 = 255;
const BADVERS: u16 = 16;

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
    /// DNS over TCP
    pub tcp: stream::Limits,
    /// how many servers work side by side; rate limits and connection limits are divided among them
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
            tcp: stream::Limits::default(),
            threads: 1,
            seed: 0,
        }
    }
}

/// A question between the stages.
#[derive(Clone, Copy)]
struct Pending {
    verdict: Verdict,
    hash: u64,
    candidate: Candidate,
}

/// Decompressed names of a burst.
type Names = Box<[[u8; 256]]>;

/// The DNS service of one thread.
pub struct Server {
    pending: Box<[Pending; BURST_FRAMES]>,
    names: Names,
    pub(crate) core: Core,
    pub(crate) connections: Connections,
}

/// What answers one question needs, without the burst's state.
pub(crate) struct Core {
    pub(crate) tables: Reader<Tables>,
    pub(crate) options: Options,
    baker: Option<Baker>,
    limiter: Option<Limiter>,
    composer: Composer,
    scratch: Vec<u8>,
    pub(crate) stats: Arc<Stats>,
    zones: Vec<Arc<ZoneStats>>,
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
    pub fn new(tables: Reader<Tables>, mut options: Options) -> Server {
        options.udp_bytes = options.udp_bytes.max(LEAST_UDP_BYTES as u16);
        options.nsid.truncate(255);
        let stats = Arc::new(Stats::default());
        let zones = stats.zones(tables.zones());
        let idle = Pending { verdict: Verdict::Drop(DropReason::Short), hash: 0, candidate: Candidate::default() };
        let names = if options.question_compression == QuestionCompression::Accept { BURST_FRAMES } else { 0 };
        Server {
            pending: Box::new([idle; BURST_FRAMES]),
            names: vec![[0; 256]; names].into(),
            connections: Connections::new(&options.tcp, options.threads),
            core: Core {
                baker: options.cookies.as_ref().and_then(Baker::new),
                limiter: options.rrl.as_ref().map(|config| Limiter::new(config, options.threads, options.seed)),
                composer: Composer::new(),
                scratch: Vec::with_capacity(128 << 10),
                tables,
                options,
                stats,
                zones,
            },
        }
    }

    /// This thread's counters.
    pub fn stats(&self) -> Arc<Stats> {
        self.core.stats.clone()
    }

    /// The tables that the next burst is answered from.
    pub fn tables(&self) -> &Tables {
        &self.core.tables
    }

    /// Stage one: reads and hashes, and asks for the buckets.
    #[inline]
    fn read(&mut self, burst: &mut [Datagram<'_>]) {
        let Server { pending, names, core, .. } = self;
        let tables: &Tables = &core.tables;
        for (n, (slot, datagram)) in pending.iter_mut().zip(burst).enumerate() {
            let name = names.get_mut(n);
            match name {
                None => slot.verdict = question::read(datagram.question(), None),
                Some(name) => slot.verdict = question::read(datagram.question(), Some(name)),
            }
            slot.candidate = Candidate::default();
            if let Verdict::Ask(ask) = &slot.verdict {
                let len = usize::from(ask.name_bytes);
                slot.hash = match names.get(n) {
                    None => key::hash(tables.seed, datagram.buffer(), NAME_AT, len),
                    Some(name) => key::hash(tables.seed, name, 0, len),
                };
                tables.prefetch_bucket(slot.hash);
            }
        }
    }
}

impl Service for Server {
    fn cycle(&mut self, _now: Instant) {
        if self.core.tables.refresh() {
            self.core.zones = self.core.stats.zones(self.core.tables.zones());
        }
    }

    fn datagrams(&mut self, now: Instant, _listener: Listener, burst: &mut [Datagram<'_>]) {
        for burst in burst.chunks_mut(BURST_FRAMES) {
            self.read(burst);
            for slot in &mut self.pending[..burst.len()] {
                if let Verdict::Ask(_) = slot.verdict {
                    slot.candidate = self.core.tables.prefetch_node(slot.hash);
                }
            }
            let Server { pending, names, core, .. } = self;
            for (n, (slot, datagram)) in pending.iter().zip(burst).enumerate() {
                let peer = datagram.addresses.peer.ip();
                let from = From { now, peer, stream: false };
                let name = names.get(n);
                match core.answer(from, slot.verdict, slot.hash, slot.candidate, name, datagram.buffer()) {
                    Ok(bytes) => datagram.reply(bytes),
                    Err(reason) => core.stats.dropped(reason),
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

    fn timer<C: Streams>(&mut self, _now: Instant, calls: &mut C, connection: Connection, _cookie: u64) {
        stream::timer(self, calls, connection);
    }
}

impl Core {
    /// Reads and answers one message that stands alone at the front of `buffer`; gives the answer's octets.
    pub(crate) fn one(&mut self, from: From, buffer: &mut [u8], question_bytes: usize) -> Result<usize, DropReason> {
        let mut name = [0; 256];
        let accept = self.options.question_compression == QuestionCompression::Accept;
        let verdict = question::read(&buffer[..question_bytes], accept.then_some(&mut name));
        let name = accept.then_some(&name);
        let hash = match (&verdict, name) {
            (Verdict::Ask(ask), None) => key::hash(self.tables.seed, buffer, NAME_AT, usize::from(ask.name_bytes)),
            (Verdict::Ask(ask), Some(name)) => key::hash(self.tables.seed, name, 0, usize::from(ask.name_bytes)),
            _ => 0,
        };
        self.answer(from, verdict, hash, Candidate::default(), name, buffer)
    }

    /// Writes the answer over the question at the front of `buffer`.
    #[inline(always)]
    fn answer(
        &mut self,
        from: From,
        verdict: Verdict,
        hash: u64,
        candidate: Candidate,
        decompressed: Option<&[u8; 256]>,
        buffer: &mut [u8],
    ) -> Result<usize, DropReason> {
        let ask = match verdict {
            Verdict::Ask(ask) => ask,
            Verdict::Drop(reason) => return Err(reason),
            Verdict::Header(rcode) => return self.header(from, rcode, buffer),
        };
        let transport = match (from.stream, from.peer) {
            (false, IpAddr::V4(_)) => Transport::Udp4,
            (false, IpAddr::V6(_)) => Transport::Udp6,
            (true, IpAddr::V4(_)) => Transport::Tcp4,
            (true, IpAddr::V6(_)) => Transport::Tcp6,
        };
        self.stats.asked(transport, ask.qtype);
        let (opt, exempt) = match &ask.edns {
            Some(edns) => self.opt(from, edns, buffer),
            None => (None, false),
        };
        if ask.sent_bytes != ask.name_bytes
            && let Some(name) = decompressed
        {
            write_question(buffer, name, &ask)?;
        }
        let limit = if from.stream {
            usize::from(u16::MAX)
        } else {
            let asked = ask.edns.as_ref().map_or(0, |edns| usize::from(edns.size));
            asked.max(LEAST_UDP_BYTES).min(usize::from(self.options.udp_bytes))
        };
        let nsid = ask.edns.as_ref().is_some_and(|edns| edns.nsid) && !self.options.nsid.is_empty();
        if ask.qclass == CLASS_IN && ask.edns.as_ref().is_none_or(|edns| edns.version == 0) {
            if !matches!(Rtype(ask.qtype), Rtype::AXFR | Rtype::IXFR) {
                return self.lookup(from, &ask, hash, candidate, buffer, limit, opt, nsid, exempt);
            }
        }
        self.unusual(from, &ask, hash, candidate, buffer, limit, opt, nsid, exempt)
    }

    /// What few ask: other classes, transfers, later versions of EDNS.
    #[cold]
    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    fn unusual(
        &mut self,
        from: From,
        ask: &Ask,
        hash: u64,
        candidate: Candidate,
        buffer: &mut [u8],
        limit: usize,
        opt: Option<Opt<'static>>,
        nsid: bool,
        exempt: bool,
    ) -> Result<usize, DropReason> {
        let version = ask.edns.as_ref().map_or(0, |edns| edns.version);
        let transfer = matches!(Rtype(ask.qtype), Rtype::AXFR | Rtype::IXFR);
        let error = match ask.qclass {
            _ if version > 0 => BADVERS,
            CLASS_IN | CLASS_ANY if transfer => {
                // AXFR is not defined over UDP (RFC 5936 section 4.2); there are no transfers over TCP either
                u16::from(if ask.qtype == Rtype::AXFR.0 && !from.stream { rcode::NOTIMP } else { rcode::REFUSED })
            }
            CLASS_ANY => {
                return self.lookup(from, ask, hash, candidate, buffer, limit, opt, nsid, exempt);
            }
            _ => u16::from(rcode::REFUSED),
        };
        if !self.passes(from, Kind::Error, 0, exempt, buffer, ask, limit, opt)? {
            return self.slip(buffer, ask, limit, opt);
        }
        let frame = self.frame(ask, limit, opt, nsid);
        let text = match ask.qclass {
            CLASS_CH if version == 0 => chaos::text(&self.options, &buffer[NAME_AT..], ask),
            _ => None,
        };
        let (sent, rcode) = match text {
            Some(text) => {
                let len = [text.len() as u8];
                (frame.record(buffer, Rtype::TXT.0, CLASS_CH, &[&len, text]), 0)
            }
            None => (frame.empty(buffer, error, false), error),
        };
        let sent = sent.ok_or(DropReason::NoRoom)?;
        self.stats.answered(rcode);
        Ok(sent.bytes)
    }

    fn frame<'s>(&'s self, ask: &Ask, limit: usize, opt: Option<Opt<'s>>, nsid: bool) -> Frame<'s> {
        let opt = opt.map(|opt| Opt { nsid: nsid.then_some(&self.options.nsid[..]), ..opt });
        Frame { name_bytes: usize::from(ask.name_bytes), limit, opt }
    }

    /// The usual question: a name of the Internet's class.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn lookup(
        &mut self,
        from: From,
        ask: &Ask,
        hash: u64,
        candidate: Candidate,
        buffer: &mut [u8],
        limit: usize,
        opt: Option<Opt<'static>>,
        nsid: bool,
        exempt: bool,
    ) -> Result<usize, DropReason> {
        let outcome = self.tables.resolve(hash, candidate, buffer, NAME_AT, ask);
        // a server of one class out of all is not authoritative for ANY (RFC 1035 section 6.2)
        let authoritative = ask.qclass == CLASS_IN;
        let (unit, delta, instead, zone) = match outcome {
            Outcome::Block { unit, delta, rcode, kind, source, zone } => {
                if self.limiter.is_some() && !self.passes(from, kind, source, exempt, buffer, ask, limit, opt)? {
                    return self.slip(buffer, ask, limit, opt);
                }
                (Some(unit), delta, rcode, zone)
            }
            Outcome::Refused => {
                if !self.passes(from, Kind::Error, 0, exempt, buffer, ask, limit, opt)? {
                    return self.slip(buffer, ask, limit, opt);
                }
                let frame = self.frame(ask, limit, opt, nsid);
                let sent = frame.empty(buffer, u16::from(rcode::REFUSED), false).ok_or(DropReason::NoRoom)?;
                self.stats.answered(u16::from(rcode::REFUSED));
                return Ok(sent.bytes);
            }
            Outcome::Compose { zone, source } => {
                let kind = self.compose(zone, buffer, ask);
                if !self.passes(from, kind, source, exempt, buffer, ask, limit, opt)? {
                    return self.slip(buffer, ask, limit, opt);
                }
                (None, 0, None, zone)
            }
        };
        let frame = self.frame(ask, limit, opt, nsid);
        let block = match unit {
            Some(unit) => Block::at(&self.tables.arena, unit),
            None => Block::at(&self.scratch, 0),
        };
        let sent = frame.block(buffer, block, delta, instead, authoritative).ok_or(DropReason::NoRoom)?;
        self.count(sent, instead.unwrap_or(block.rcode()), zone);
        Ok(sent.bytes)
    }

    #[inline(always)]
    fn count(&self, sent: Sent, rcode: u8, zone: u32) {
        self.stats.answered(u16::from(rcode));
        if sent.truncated {
            self.stats.truncated.add(1);
        }
        if let Some(zone) = self.zones.get(zone as usize) {
            zone.rcodes[usize::from(rcode & 15)].add(1);
        }
    }

    /// Composes an answer that is not prepared, as a block in the scratch memory.
    #[cold]
    #[inline(never)]
    fn compose(&mut self, zone: u32, buffer: &[u8], ask: &Ask) -> Kind {
        let Core { tables, composer, scratch, .. } = self;
        let wire = &buffer[NAME_AT..NAME_AT + usize::from(ask.name_bytes)];
        if let Ok(name) = NameRef::from_wire(wire) {
            reference::answer(&tables.zones[zone as usize].zone, name, Rtype(ask.qtype), composer);
        }
        scratch.clear();
        block::write(scratch, composer);
        scratch.resize(scratch.len() + UNIT_BYTES, 0);
        if composer.rcode == rcode::NXDOMAIN { Kind::NxDomain } else { Kind::Data }
    }

    /// A header alone, under the limit for errors.
    #[cold]
    #[inline(never)]
    fn header(&mut self, from: From, rcode: u8, buffer: &mut [u8]) -> Result<usize, DropReason> {
        if !from.stream
            && let Some(limiter) = &mut self.limiter
            && limiter.judge(from.now, from.peer, Kind::Error, 0) != Judgement::Send
        {
            return Err(DropReason::RateLimited);
        }
        self.stats.answered(u16::from(rcode));
        Ok(reply::header(buffer, rcode))
    }

    /// The OPT record of the answer, and whether a valid cookie exempts from rate limiting.
    #[inline(always)]
    fn opt(&self, from: From, edns: &Edns, buffer: &[u8]) -> (Option<Opt<'static>>, bool) {
        let mut opt = Opt { size: self.options.udp_bytes, dnssec_ok: edns.dnssec_ok, ..Opt::default() };
        let mut exempt = false;
        if edns.cookie_bytes > 0
            && let Some(baker) = &self.baker
        {
            (opt.cookie, exempt) = bake(baker, from, edns, buffer);
            if exempt {
                self.stats.cookies_valid.add(1);
            }
        }
        if from.stream && edns.keepalive {
            opt.keepalive = Some(self.options.tcp.keepalive_units());
        }
        (Some(opt), exempt)
    }

    /// Asks the rate limiter: true to answer, false to answer truncated.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn passes(
        &mut self,
        from: From,
        kind: Kind,
        source: u32,
        exempt: bool,
        _buffer: &[u8],
        _ask: &Ask,
        _limit: usize,
        _opt: Option<Opt<'_>>,
    ) -> Result<bool, DropReason> {
        // TCP proves the address
        match &mut self.limiter {
            Some(limiter) if !from.stream && !exempt => match limiter.judge(from.now, from.peer, kind, source) {
                Judgement::Send => Ok(true),
                Judgement::Slip => Ok(false),
                Judgement::Drop => Err(DropReason::RateLimited),
            },
            _ => Ok(true),
        }
    }

    #[cold]
    fn slip(
        &mut self,
        buffer: &mut [u8],
        ask: &Ask,
        limit: usize,
        opt: Option<Opt<'static>>,
    ) -> Result<usize, DropReason> {
        let sent = self.frame(ask, limit, opt, false).empty(buffer, 0, true).ok_or(DropReason::NoRoom)?;
        self.stats.slipped.add(1);
        self.stats.answered(0);
        Ok(sent.bytes)
    }
}

type Cookies = [u8; cookie::CLIENT_BYTES + cookie::SERVER_BYTES];

/// The cookies of the answer, and whether the question's server cookie was valid.
#[cold]
fn bake(baker: &Baker, from: From, edns: &Edns, buffer: &[u8]) -> (Option<Cookies>, bool) {
    let at = usize::from(edns.cookie_at);
    let came = &buffer[at..at + usize::from(edns.cookie_bytes)];
    let Some((client, server)) = came.split_first_chunk::<{ cookie::CLIENT_BYTES }>() else { return (None, false) };
    let valid = baker.is_valid(from.now, client, server, from.peer);
    let mut cookies = [0; cookie::CLIENT_BYTES + cookie::SERVER_BYTES];
    cookies[..cookie::CLIENT_BYTES].copy_from_slice(client);
    cookies[cookie::CLIENT_BYTES..].copy_from_slice(&baker.make(from.now, client, from.peer));
    (Some(cookies), valid)
}

/// Writes a compressed question's name out in full, since the answer points into it.
#[cold]
fn write_question(buffer: &mut [u8], name: &[u8; 256], ask: &Ask) -> Result<(), DropReason> {
    let len = usize::from(ask.name_bytes);
    let end = NAME_AT + len + 4;
    let question = buffer.get_mut(NAME_AT..end).ok_or(DropReason::NoRoom)?;
    question[..len].copy_from_slice(&name[..len]);
    question[len..len + 2].copy_from_slice(&ask.qtype.to_be_bytes());
    question[len + 2..].copy_from_slice(&ask.qclass.to_be_bytes());
    Ok(())
}
