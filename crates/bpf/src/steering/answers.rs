//! The answers that the steering program gives by itself: their form in its maps, and generations of them.
//!
//! Entries of one generation are put in while those of another are answered from; one number tells the program which count.
//! So what is replaced is replaced at once, and [`Answers::stop`] waits until no program runs that has still read the old
//! number. A name's entries go in all or none, the one for all other types last: a type whose entry is missing would be
//! taken for one that the name does not have. Names may also come and go in the generation that is in force ([`Given`]).
//!
//! An entry for all other types may also be for the names below that have none ([`Below`]). Which lengths such entries have is
//! written while nobody answers; and that a name does not exist is said only by a generation that has all names, and to which nothing
//! happens: before its first change it becomes one that does not say so.
//!
//! Memory: an entry is 160 octets, or 1528 for long names and bodies, and lies in the kernel once for each interface; so do
//! four octets for each name that may be in, where the program counts how often it was asked for, and two by which it sees whether it is.

mod cookies;
mod filter;
mod form;
mod given;

pub use cookies::Baking;
pub use given::{Given, Name};

use super::{Counts, SteeringError, map, other};
use crate::error::is;
use aya::Ebpf;
use aya::maps::{Array, ArrayOfMaps, HashMap, MapData, MapError, PerCpuArray};
use cookies::{BAKING_BYTES, Cookies};
use form::{ABSENCE_BYTES, IS_LONG, LONG, LONG_BYTES, Lengths, OTHERS, SEAT_AT, SHORT, SHORT_BYTES};
use form::{hash, key, rtype_and_flags, secret};
use rustix::io::Errno;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const ANSWERING_BYTES: usize = 56;
const SECOND_NS: u64 = 1_000_000_000;
/// Lines of a queue's accounts, 64 octets each.
const ACCOUNT_LINES: u32 = 1 << 14;
const TYPES: usize = 260;

/// Entries of a name on average, at most.
const ENTRIES_A_NAME: u32 = 4;
/// Of so many names one may have a long entry.
const NAMES_A_LONG_ENTRY: u32 = 4;
/// Counters of one value of the map of heats.
const HEATS_A_PAGE: usize = 1024;
/// Of so many answers of the program one is counted for its name, on average.
pub const ANSWERS_A_SAMPLE: u32 = 16;

type Key = [u8; 16];

/// How the program answers; all but the MTU is fixed while it is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswersConfig {
    /// most names of one generation
    pub names: u32,
    /// the numbers of zones are below this
    pub zones: u32,
    /// the largest answer, and what the OPT record announces
    pub edns_bytes: u16,
    /// octets of the largest packet, of either family, that the interface carries
    pub mtu: u16,
    /// checksums may come unfinished and answers go out all the same: on virtual interfaces, with the program in the driver
    pub partial_checksums: bool,
    /// the interface's index, to send answers by a redirect to it; None sends them back (XDP_TX). Over veth a redirect, which
    /// wakes a peer that has receive offload and no program of its own, too.
    pub redirect_to: Option<u32>,
    /// answers a second to one network (/24 or /56) about one name, over all queues, of which each has its share; beyond it they
    /// are left to the sockets; None is no limit
    pub rate: Option<u32>,
    /// DNS cookies are made, as soon as there is a secret ([`Answers::make_cookies`]); otherwise they are ignored
    pub cookies: bool,
    /// keys the hash of names; take it from the machine's entropy
    pub seed: u64,
    /// where the service listens whose questions are answered; a wildcard means every address of its family
    pub listeners: Vec<(IpAddr, u16)>,
}

impl AnswersConfig {
    /// Most entries of two generations: (short, long).
    pub(super) fn entries(&self) -> (u32, u32) {
        let long = (self.names / NAMES_A_LONG_ENTRY).max(256);
        (self.names.max(256).saturating_mul(2 * ENTRIES_A_NAME), 2 * long)
    }

    /// Most entries of one generation.
    pub fn room(&self) -> Size {
        let (short, long) = self.entries();
        Size { short: short as usize / 2, long: long as usize / 2 }
    }

    /// Values of the map of heats.
    pub(super) fn heat_pages(&self) -> u32 {
        self.names.div_ceil(HEATS_A_PAGE as u32).max(1)
    }

    /// Values of the map of the filter.
    pub(super) fn filter_pages(&self) -> u32 {
        filter::pages(self.names)
    }

    /// Lines of accounts, over all queues.
    pub(super) fn accounts(&self, queues: u32) -> u32 {
        if self.rate.is_some() { ACCOUNT_LINES.saturating_mul(queues.max(1)) } else { 1 }
    }

    /// What an answer costs an account, where each of so many queues judges alone.
    fn cost_ns(&self, queues: u32) -> u64 {
        let most = 2 * SECOND_NS;
        let cost =
            |rate: u32| (SECOND_NS * u64::from(queues.max(1))).checked_div(rate.into()).unwrap_or(most).min(most);
        self.rate.map_or(0, cost)
    }

    pub(super) fn is_answered(&self, address: IpAddr, port: u16) -> bool {
        let is_at = |at: IpAddr| at == address || at.is_unspecified() && at.is_ipv4() == address.is_ipv4();
        self.listeners.iter().any(|listener| listener.1 == port && is_at(listener.0))
    }

    fn bytes(&self, queues: u32, told: Told) -> [u8; ANSWERING_BYTES] {
        let mut bytes = [0; ANSWERING_BYTES];
        let most = |headers: u16| self.mtu.saturating_sub(headers).to_ne_bytes();
        bytes[..8].copy_from_slice(&self.seed.to_ne_bytes());
        bytes[8..16].copy_from_slice(&secret(self.seed).to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.cost_ns(queues).to_ne_bytes());
        bytes[24..28].copy_from_slice(&told.generation.to_ne_bytes());
        bytes[28..32].copy_from_slice(&ACCOUNT_LINES.to_ne_bytes());
        bytes[32..34].copy_from_slice(&self.edns_bytes.to_ne_bytes());
        bytes[34..36].copy_from_slice(&most(20 + 8));
        bytes[36..38].copy_from_slice(&most(40 + 8));
        bytes[38] = self.partial_checksums.into();
        bytes[39] = told.sampled.into();
        bytes[40] = told.cookies as u8;
        bytes[44..48].copy_from_slice(&self.redirect_to.unwrap_or(0).to_ne_bytes());
        bytes[48..52].copy_from_slice(&self.filter_pages().to_ne_bytes());
        bytes
    }

    /// Whether an answer can be sent; otherwise such questions are left to the socket.
    pub fn takes(&self, name: &[u8], answer: &Answer<'_>) -> bool {
        answer.zone < self.zones && !answer.cuts.is_empty() && LONG.takes(name, answer)
    }

    /// What a name takes, with all of its answers.
    pub fn size(&self, name: &[u8], answers: &[(Which, Answer<'_>)]) -> Size {
        let is_long = |answer: &Answer<'_>| self.takes(name, answer) && !SHORT.takes(name, answer);
        let long = answers.iter().filter(|(_, answer)| is_long(answer)).count();
        Size { short: answers.len(), long }
    }
}

/// Entries of the program's maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// of 160 octets
    pub short: usize,
    /// of 1528 octets, beside a short one each
    pub long: usize,
}

/// What becomes of a name that is to be put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// it is in, whole
    Done,
    /// there is no room for it
    NoRoom,
    /// the program could not tell it from another, or not say that it lacks a type
    Unfit,
}

/// One answer of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// NXDOMAIN, or else NOERROR
    pub nxdomain: bool,
    /// AA
    pub authoritative: bool,
    /// the zone's number, under which it is counted
    pub zone: u32,
    /// what follows the question, without the OPT record
    pub body: &'a [u8],
    /// what of it is sent, from the least on; empty: such questions go on to the socket
    pub cuts: &'a [Cut],
    /// with [`Below::Answered`], and with nothing else: where pointers stand in the body, in order, which grow by what the question's
    /// name is longer than this one
    pub moves: Option<&'a [u16]>,
}

/// An answer of some size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// octets of the body
    pub bytes: u16,
    /// records of the answer section
    pub answer: u16,
    /// records of the authority section
    pub authority: u16,
    /// records of the additional section, without the OPT record
    pub additional: u16,
    /// TC
    pub truncated: bool,
}

/// Which questions for its name an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// those for one type, not 0
    Type(u16),
    /// those for each type without an answer of its own
    Others {
        /// but not for ANY
        but_any: bool,
        /// but not for DS
        but_ds: bool,
        /// and what it says of names below
        below: Below,
    },
}

/// What an entry for all other types says of the names below its own that have no entry and none nearer above them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// nothing: the next one above says it
    AsAbove,
    /// that they are left to the socket
    Left,
    /// that it answers for them, too, for every type but transfers
    Answered {
        /// with NXDOMAIN
        absent: bool,
        /// but only in a generation that has all names
        whole: bool,
    },
}

/// What the program is told while it runs.
#[derive(Clone, Copy, Debug)]
struct Told {
    /// 0: none
    generation: u32,
    sampled: bool,
    cookies: Cookies,
}

/// What the program has answered since it was loaded, over all processors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// over IPv4 and IPv6
    pub families: [u64; 2],
    /// those of them with TC
    pub truncated: u64,
    /// those of them to a question with a valid server cookie
    pub cookies_valid: u64,
    /// by type, the last place for all the others
    pub types: Vec<u64>,
    /// by the zone's number: NOERROR, NXDOMAIN
    pub zones: Vec<[u64; 2]>,
}

/// Questions since the program was loaded, over all processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// it answered
    pub answered: u64,
    /// it read and left to the socket
    pub left: u64,
}

/// Why a program answers nothing for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// nobody would get what it sends
    Untaken,
    /// it would answer too few of the questions to be worth it
    Unrewarding,
}

/// The answers of one interface's program, to be shared with who fills them in.
#[derive(Clone)]
pub struct Answers {
    maps: Arc<Mutex<Maps>>,
    tallies: Arc<Tallies>,
}

/// What the program counts; who reads it waits for nobody who changes what is answered.
struct Tallies {
    asked: PerCpuArray<MapData, u64>,
    zones: PerCpuArray<MapData, u64>,
    counts: Arc<Counts>,
}

struct Maps {
    config: AnswersConfig,
    queues: u32,
    short: HashMap<MapData, Key, [u8; SHORT_BYTES]>,
    long: HashMap<MapData, Key, [u8; LONG_BYTES]>,
    answering: Array<MapData, [u8; ANSWERING_BYTES]>,
    secret: Array<MapData, [u8; BAKING_BYTES]>,
    barrier: ArrayOfMaps<MapData, Array<MapData, u32>>,
    /// what stands in the barrier's slot
    token: Array<MapData, u32>,
    heats: Array<MapData, [u32; HEATS_A_PAGE]>,
    absence: Array<MapData, [u8; ABSENCE_BYTES]>,
    filters: Array<MapData, filter::Page>,
    /// what the program was told there
    filtered: Vec<filter::Page>,
    /// what the program is to be told
    told: Told,
    /// by [`Hold`]: it is told to answer nothing all the same
    held: [bool; 2],
    clock_ahead_ns: i64,
    /// the generation that was begun last
    generation: u32,
    current: Option<Generation>,
}

/// Entries that are in the maps together.
#[derive(Debug, Default)]
struct Generation {
    number: u32,
    /// by their hashes
    names: std::collections::HashMap<u64, Held>,
    size: Size,
    /// of names whose entries say something of those below
    marked: Lengths,
    /// of those that say so in any generation
    always: Lengths,
    /// what the program was told of them
    told: Lengths,
    /// all names are in
    whole: bool,
}

/// A name that is in.
#[derive(Debug)]
struct Held {
    size: Size,
    /// the entries that are in by now
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// or [`OTHERS`]
    rtype: u16,
    long: bool,
}

/// A generation that is being put in and that nobody is answered from.
#[derive(Debug)]
pub struct Fill {
    answers: Answers,
    generation: Generation,
}

impl Answers {
    pub(super) fn new(
        program: &mut Ebpf,
        config: &AnswersConfig,
        queues: u32,
        counts: Arc<Counts>,
    ) -> Result<Answers, SteeringError> {
        let token = Array::create(1, 0).map_err(|e| other("making a map", &e))?;
        let cookies = if config.cookies { Cookies::Left } else { Cookies::Ignored };
        let mut maps = Maps {
            config: config.clone(),
            queues,
            short: map(program, "short_answers")?,
            long: map(program, "long_answers")?,
            answering: map(program, "answering")?,
            secret: map(program, "cookie_secret")?,
            barrier: map(program, "barrier")?,
            token,
            heats: map(program, "heats")?,
            absence: map(program, "absences")?,
            filters: map(program, "filters")?,
            filtered: vec![[0; filter::WORDS]; config.filter_pages() as usize],
            told: Told { generation: 0, sampled: false, cookies },
            held: [false; 2],
            clock_ahead_ns: cookies::clock_ahead_ns(),
            generation: 0,
            current: None,
        };
        maps.tell()?;
        let tallies = Tallies { asked: map(program, "asked")?, zones: map(program, "zone_answers")?, counts };
        Ok(Answers { maps: Arc::new(Mutex::new(maps)), tallies: Arc::new(tallies) })
    }

    /// How the program answers.
    pub fn config(&self) -> AnswersConfig {
        self.lock().config.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Maps> {
        // an entry of no generation is never answered from
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a generation. Until it is put in force the program goes on as before.
    pub fn fill(&self) -> Fill {
        let mut maps = self.lock();
        maps.generation = maps.generation.checked_add(1).unwrap_or(1);
        let generation = Generation { number: maps.generation, ..Generation::default() };
        Fill { answers: self.clone(), generation }
    }

    /// Has the program answer nothing. When this has returned no answer of before leaves any longer, and everything goes on to
    /// the sockets.
    ///
    /// # Errors
    /// The kernel's.
    pub fn stop(&self) -> Result<(), SteeringError> {
        let mut maps = self.lock();
        maps.tell_of_answers(0, false)?;
        maps.wait()?;
        if let Some(old) = maps.current.take() {
            maps.remove(&old);
        }
        Ok(())
    }

    /// Has the program answer nothing for as long as it is held for any reason; everything goes on to the sockets. What is put in,
    /// and when it is in force, is not changed by it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn hold(&self, why: Hold, held: bool) -> Result<(), SteeringError> {
        let mut maps = self.lock();
        let before = std::mem::replace(&mut maps.held[why as usize], held);
        maps.tell().inspect_err(|_| maps.held[why as usize] = before)
    }

    /// Tells the program that the interface carries packets of so many octets at most.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_mtu(&self, mtu: u16) -> Result<(), SteeringError> {
        let mut maps = self.lock();
        let before = std::mem::replace(&mut maps.config.mtu, mtu);
        if before == mtu {
            return Ok(());
        }
        maps.tell().inspect_err(|_| maps.config.mtu = before)
    }

    /// Whether it answers at all: there is a generation in force, and nothing holds it.
    pub fn is_answering(&self) -> bool {
        self.lock().answers_from() != 0
    }

    /// Whether it is held for this reason.
    pub fn is_held(&self, why: Hold) -> bool {
        self.lock().held[why as usize]
    }

    /// What it answers and what not; None when the kernel refuses to say.
    pub fn shares(&self) -> Option<Shares> {
        let counted = |metric, label| self.tallies.counts.get(metric, label);
        let answered = counted("steering_answered_total", "4")?.wrapping_add(counted("steering_answered_total", "6")?);
        Some(Shares { answered, left: counted("steering_left_total", "")? })
    }

    /// What was answered since the program was loaded, of zones those with numbers below `zones`: each is two system calls. None when
    /// the kernel refuses to say.
    pub fn answered(&self, zones: u32) -> Option<Answered> {
        let Tallies { asked, zones: of_zones, counts } = &*self.tallies;
        let counted = |label| counts.get("steering_answered_total", label);
        let sum = |map: &PerCpuArray<MapData, u64>, at: u32| {
            let values = map.get(&at, 0).ok()?;
            Some(values.iter().fold(0u64, |sum, n| sum.wrapping_add(*n)))
        };
        let types = (0..TYPES as u32).map(|at| sum(asked, at)).collect::<Option<_>>()?;
        let most = zones.min(self.lock().config.zones);
        let zones = (0..most).map(|at| Some([sum(of_zones, 2 * at)?, sum(of_zones, 2 * at + 1)?]));
        Some(Answered {
            families: [counted("4")?, counted("6")?],
            truncated: counts.get("steering_answered_truncated_total", "")?,
            cookies_valid: counts.get("steering_cookies_valid_total", "")?,
            types,
            zones: zones.collect::<Option<_>>()?,
        })
    }

    /// Entries that are answered from.
    pub fn entries(&self) -> Size {
        self.lock().current.as_ref().map_or(Size::default(), |current| current.size)
    }
}

impl Maps {
    fn tell_of_answers(&mut self, generation: u32, sampled: bool) -> Result<(), SteeringError> {
        self.told = Told { generation, sampled, ..self.told };
        self.tell()
    }

    /// The generation that the program is told; 0: none.
    fn answers_from(&self) -> u32 {
        if self.held.contains(&true) { 0 } else { self.told.generation }
    }

    fn tell(&mut self) -> Result<(), SteeringError> {
        let bytes = self.config.bytes(self.queues, Told { generation: self.answers_from(), ..self.told });
        self.answering.set(0, bytes, 0).map_err(|e| other("changing what is answered", &e))
    }

    /// Waits until every program has ended that runs now, its frames sent: the kernel does so for who changes a map of maps.
    fn wait(&mut self) -> Result<(), SteeringError> {
        let Maps { barrier, token, .. } = self;
        barrier.set(0, token, 0).map_err(|e| other("waiting for the program", &e))
    }

    /// Tells the program what a generation says of names that it does not have.
    fn tell_absence(&mut self, generation: &Generation) -> Result<(), SteeringError> {
        let bytes = generation.told.bytes(generation.whole);
        self.absence.set(0, bytes, 0).map_err(|e| other("telling the program what names have entries", &e))
    }

    /// Removes what nobody is answered from any more.
    fn remove(&mut self, old: &Generation) {
        for (hash, held) in &old.names {
            for entry in &held.entries {
                // one that stays takes room, and harms nobody
                let _ = self.remove_entry(old.number, *hash, *entry);
            }
        }
    }

    fn remove_entry(&mut self, generation: u32, hash: u64, entry: Entry) -> Result<(), SteeringError> {
        let key = key(hash, generation, entry.rtype);
        // one that is not there was to go
        let gone = |removed: Result<(), MapError>| match removed {
            Err(error) if !is(&error, Errno::NOENT) => Err(other("removing an answer", &error)),
            _ => Ok(()),
        };
        gone(self.short.remove(&key))?;
        if entry.long { gone(self.long.remove(&key)) } else { Ok(()) }
    }

    /// Makes room for a name in the books of a generation, if it can go in; nothing of it is in the maps then.
    fn admit(&self, generation: &mut Generation, name: &[u8], answers: &[(Which, Answer<'_>)]) -> (Put, u64) {
        let AnswersConfig { names, seed, .. } = self.config;
        let hash = hash(seed, name);
        let is_told = |(which, answer): &(Which, Answer<'_>)| match which {
            Which::Others { below, .. } => {
                let moves = matches!(below, Below::Answered { .. }) == answer.moves.is_some();
                moves && answer.zone < self.config.zones && (answer.cuts.is_empty() || LONG.takes(name, answer))
            }
            Which::Type(rtype) => *rtype != OTHERS,
        };
        if !answers.iter().all(is_told) || generation.names.contains_key(&hash) {
            return (Put::Unfit, hash);
        }
        let (size, room, Size { short, long }) = (self.config.size(name, answers), self.config.room(), generation.size);
        let taken = Size { short: short + size.short, long: long + size.long };
        if taken.short > room.short || taken.long > room.long || generation.names.len() >= names as usize {
            return (Put::NoRoom, hash);
        }
        generation.size = taken;
        answers.iter().for_each(|(which, _)| generation.mark(name, *which));
        generation.names.insert(hash, Held { size, entries: Vec::with_capacity(answers.len()) });
        (Put::Done, hash)
    }

    /// Puts an answer of an admitted name in.
    fn insert(
        &mut self,
        generation: &mut Generation,
        hash: u64,
        Name { seat, name, .. }: &Name<'_>,
        (which, answer): &(Which, Answer<'_>),
    ) -> Result<(), SteeringError> {
        let (rtype, mut flags) = rtype_and_flags(*which);
        let key = key(hash, generation.number, rtype);
        let failed = |e: MapError| other("putting an answer in", &e);
        let is_sent = self.config.takes(name, answer);
        let long = is_sent && !SHORT.takes(name, answer);
        if let Some(held) = generation.names.get_mut(&hash) {
            held.entries.push(Entry { rtype, long });
        }
        let mut short = [0; SHORT_BYTES];
        if long {
            let mut long = [0; LONG_BYTES];
            LONG.write(&mut long, name, 0, answer);
            self.long.insert(key, long, 0).map_err(failed)?;
            flags |= IS_LONG;
            short[2] = flags;
        } else if is_sent {
            SHORT.write(&mut short, name, flags, answer);
        } else {
            // found, and nothing to send
            short[2] = flags;
        }
        short[SEAT_AT..SEAT_AT + 4].copy_from_slice(&seat.to_ne_bytes());
        self.short.insert(key, short, 0).map_err(failed)
    }
}

impl Generation {
    /// Notes what an entry of a name says of those below.
    fn mark(&mut self, name: &[u8], which: Which) {
        if let Which::Others { below: below @ (Below::Left | Below::Answered { .. }), .. } = which {
            self.marked.add(name);
            if matches!(below, Below::Answered { whole: false, .. }) {
                self.always.add(name);
            }
        }
    }
}

fn is_others((which, _): &&(Which, Answer<'_>)) -> bool {
    matches!(which, Which::Others { .. })
}

impl Fill {
    /// Puts a name in, with all of its answers, or nothing of it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn put(&mut self, name: &Name<'_>) -> Result<Put, SteeringError> {
        let Fill { answers: to, generation } = self;
        let mut maps = to.lock();
        let (put, hash) = maps.admit(generation, name.name, name.answers);
        if put == Put::Done {
            // in any order: nobody is answered from this generation yet
            name.answers.iter().try_for_each(|answer| maps.insert(generation, hash, name, answer))?;
        }
        Ok(put)
    }

    /// Has the program answer from this generation, and removes the one before. With `sampled` the program counts how often it
    /// answers for each name ([`Given::heats`]); with `whole` all names that exist are in, and others do not exist.
    ///
    /// # Errors
    /// The kernel's; the program may answer nothing then.
    pub fn start(mut self, sampled: bool, whole: bool) -> Result<Given, SteeringError> {
        let answers = self.answers.clone();
        let mut maps = answers.lock();
        if maps.current.is_some() {
            maps.tell_of_answers(0, false)?;
            maps.wait()?;
        }
        let Generation { number, marked, always, .. } = self.generation;
        (self.generation.whole, self.generation.told) = (whole, if whole { marked } else { always });
        maps.tell_absence(&self.generation)?;
        if sampled {
            // otherwise all are in, and the program does not ask
            maps.tell_names(&self.generation)?;
        }
        // so that who reads the number finds what belongs to it
        maps.wait()?;
        maps.tell_of_answers(number, sampled)?;
        if let Some(old) = maps.current.replace(std::mem::take(&mut self.generation)) {
            maps.remove(&old);
        }
        drop(maps);
        Ok(Given::new(answers, number))
    }
}

/// What was not put in force goes again.
impl Drop for Fill {
    fn drop(&mut self) {
        let generation = std::mem::take(&mut self.generation);
        if generation.number != 0 {
            self.answers.lock().remove(&generation);
        }
    }
}

impl std::fmt::Debug for Answers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Size { short, long } = self.entries();
        write!(f, "Answers({short} short, {long} long)")
    }
}

#[cfg(test)]
mod tests;
