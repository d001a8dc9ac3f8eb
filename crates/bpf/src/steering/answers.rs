//! The answers that the steering program gives by itself: their form in its maps, and generations of them.
//!
//! Entries of one generation are put in while those of another are answered from; one number tells the program which count.
//! So what is replaced is replaced at once, and [`Answers::stop`] waits until no program runs that has still read the old
//! number. A name's entries go in all or none, the one for all other types last: a type whose entry is missing would be
//! taken for one that the name does not have.
//!
//! Memory: an entry is 160 octets, or 1528 for long names and bodies, and lies in the kernel once for each interface.

use super::{Counts, SteeringError, map, other};
use aya::Ebpf;
use aya::maps::{Array, ArrayOfMaps, HashMap, MapData, PerCpuArray};
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Octets of `struct answer_head`, and of `struct cut`.
const HEAD_BYTES: usize = 8;
const CUT_BYTES: usize = 12;
const SHORT: Sizes = Sizes { cuts: 1, name_at: 24, name_bytes: 48, body_bytes: 88 };
const LONG: Sizes = Sizes { cuts: 4, name_at: 56, name_bytes: 256, body_bytes: 1216 };
const SHORT_BYTES: usize = SHORT.bytes();
const LONG_BYTES: usize = LONG.bytes();
const ANSWERING_BYTES: usize = 24;
const TYPES: usize = 260;

const NOT_ANY: u8 = 1;
const NOT_DS: u8 = 2;
const IS_LONG: u8 = 4;

/// Entries of a name on average, at most.
const ENTRIES_A_NAME: u32 = 4;
/// Of so many names one may have a long entry.
const NAMES_A_LONG_ENTRY: u32 = 4;

type Key = [u8; 16];

/// `struct short_answer` or `struct long_answer`.
struct Sizes {
    cuts: usize,
    name_at: usize,
    /// a multiple of 8
    name_bytes: usize,
    body_bytes: usize,
}

impl Sizes {
    const fn bytes(&self) -> usize {
        self.name_at + self.name_bytes + self.body_bytes
    }

    fn takes(&self, name: &[u8], answer: &Answer<'_>) -> bool {
        answer.cuts.len() <= self.cuts && name.len() <= self.name_bytes && answer.body.len() <= self.body_bytes
    }

    fn write(&self, entry: &mut [u8], name: &[u8], flags: u8, answer: &Answer<'_>) {
        entry[..4].copy_from_slice(&[name.len() as u8, answer.cuts.len() as u8, flags, answer.nxdomain.into()]);
        entry[4..HEAD_BYTES].copy_from_slice(&answer.zone.to_ne_bytes());
        for (cut, to) in answer.cuts.iter().zip(entry[HEAD_BYTES..].chunks_exact_mut(CUT_BYTES)) {
            to[..2].copy_from_slice(&cut.bytes.to_ne_bytes());
            to[2..4].copy_from_slice(&sum(&answer.body[..usize::from(cut.bytes)]).to_ne_bytes());
            for (count, to) in [cut.answer, cut.authority, cut.additional].iter().zip(to[4..10].chunks_exact_mut(2)) {
                to.copy_from_slice(&count.to_be_bytes());
            }
            to[10] = 0x80 | if answer.authoritative { 4 } else { 0 } | if cut.truncated { 2 } else { 0 };
            to[11] = if answer.nxdomain { 3 } else { 0 };
        }
        entry[self.name_at..self.name_at + name.len()].copy_from_slice(name);
        let body_at = self.name_at + self.name_bytes;
        entry[body_at..body_at + answer.body.len()].copy_from_slice(answer.body);
    }
}

/// How the program answers; fixed while it is loaded.
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
    /// checksums may come unfinished, since the interface is virtual
    pub partial_checksums: bool,
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

    pub(super) fn is_answered(&self, address: IpAddr, port: u16) -> bool {
        let is_at = |at: IpAddr| at == address || at.is_unspecified() && at.is_ipv4() == address.is_ipv4();
        self.listeners.iter().any(|listener| listener.1 == port && is_at(listener.0))
    }

    fn bytes(&self, generation: u32) -> [u8; ANSWERING_BYTES] {
        let mut bytes = [0; ANSWERING_BYTES];
        let most = |headers: u16| self.mtu.saturating_sub(headers).to_ne_bytes();
        bytes[..8].copy_from_slice(&self.seed.to_ne_bytes());
        bytes[8..12].copy_from_slice(&generation.to_ne_bytes());
        bytes[12..14].copy_from_slice(&self.edns_bytes.to_ne_bytes());
        bytes[14..16].copy_from_slice(&most(20 + 8));
        bytes[16..18].copy_from_slice(&most(40 + 8));
        bytes[18] = self.partial_checksums.into();
        bytes
    }
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
    },
}

/// What the program has answered since it was loaded, over all processors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// over IPv4 and IPv6
    pub families: [u64; 2],
    /// those of them with TC
    pub truncated: u64,
    /// by type, the last place for all the others
    pub types: Vec<u64>,
    /// by the zone's number: NOERROR, NXDOMAIN
    pub zones: Vec<[u64; 2]>,
}

/// The answers of one interface's program, to be shared with who fills them in.
#[derive(Clone)]
pub struct Answers(Arc<Mutex<Maps>>);

struct Maps {
    config: AnswersConfig,
    short: HashMap<MapData, Key, [u8; SHORT_BYTES]>,
    long: HashMap<MapData, Key, [u8; LONG_BYTES]>,
    answering: Array<MapData, [u8; ANSWERING_BYTES]>,
    barrier: ArrayOfMaps<MapData, Array<MapData, u32>>,
    /// what stands in the barrier's slot
    token: Array<MapData, u32>,
    asked: PerCpuArray<MapData, u64>,
    zones: PerCpuArray<MapData, u64>,
    counts: Arc<Counts>,
    /// the generation that was begun last
    generation: u32,
    current: Option<Generation>,
}

/// Entries that are in the maps together.
#[derive(Debug, Default)]
struct Generation {
    number: u32,
    short: Vec<Key>,
    long: Vec<Key>,
    hashes: HashSet<u64>,
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
        counts: Arc<Counts>,
    ) -> Result<Answers, SteeringError> {
        let token = Array::create(1, 0).map_err(|e| other("making a map", &e))?;
        let mut maps = Maps {
            config: config.clone(),
            short: map(program, "short_answers")?,
            long: map(program, "long_answers")?,
            answering: map(program, "answering")?,
            barrier: map(program, "barrier")?,
            token,
            asked: map(program, "asked")?,
            zones: map(program, "zone_answers")?,
            counts,
            generation: 0,
            current: None,
        };
        maps.tell(0)?;
        Ok(Answers(Arc::new(Mutex::new(maps))))
    }

    fn lock(&self) -> MutexGuard<'_, Maps> {
        // an entry of no generation is never answered from
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        maps.tell(0)?;
        maps.wait()?;
        match maps.current.take() {
            Some(old) => maps.remove(&old),
            None => Ok(()),
        }
    }

    /// What was answered since the program was loaded; None when the kernel refuses to say.
    pub fn answered(&self) -> Option<Answered> {
        let maps = self.lock();
        let counted = |label| maps.counts.get("steering_answered_total", label);
        let sum = |map: &PerCpuArray<MapData, u64>, at: u32| {
            let values = map.get(&at, 0).ok()?;
            Some(values.iter().fold(0u64, |sum, n| sum.wrapping_add(*n)))
        };
        let types = (0..TYPES as u32).map(|at| sum(&maps.asked, at)).collect::<Option<_>>()?;
        // what is beyond the greatest number in use is zero
        let zones = (0..maps.config.zones).map(|at| Some([sum(&maps.zones, 2 * at)?, sum(&maps.zones, 2 * at + 1)?]));
        Some(Answered {
            families: [counted("4")?, counted("6")?],
            truncated: maps.counts.get("steering_answered_truncated_total", "")?,
            types,
            zones: zones.collect::<Option<_>>()?,
        })
    }

    /// Entries that are answered from: (short, long).
    pub fn entries(&self) -> (usize, usize) {
        self.lock().current.as_ref().map_or((0, 0), |current| (current.short.len(), current.long.len()))
    }
}

impl Maps {
    fn tell(&mut self, generation: u32) -> Result<(), SteeringError> {
        let bytes = self.config.bytes(generation);
        self.answering.set(0, bytes, 0).map_err(|e| other("changing what is answered", &e))
    }

    /// Waits until every program has ended that runs now, its frames sent: the kernel does so for who changes a map of maps.
    fn wait(&mut self) -> Result<(), SteeringError> {
        let Maps { barrier, token, .. } = self;
        barrier.set(0, token, 0).map_err(|e| other("waiting for the program", &e))
    }

    fn remove(&mut self, old: &Generation) -> Result<(), SteeringError> {
        let gone = |e: aya::maps::MapError| other("removing an answer", &e);
        old.short.iter().try_for_each(|key| self.short.remove(key)).map_err(gone)?;
        old.long.iter().try_for_each(|key| self.long.remove(key)).map_err(gone)
    }
}

impl Fill {
    /// Puts a name in, in lower case and wire form, with all of its answers; false, and nothing is put in, when there is no room
    /// for it or the program could not tell it from another.
    ///
    /// # Errors
    /// The kernel's.
    pub fn put(&mut self, name: &[u8], answers: &[(Which, Answer<'_>)]) -> Result<bool, SteeringError> {
        let Fill { answers: to, generation } = self;
        let mut maps = to.lock();
        let AnswersConfig { names, zones, seed, .. } = maps.config;
        let can = |answer: &Answer<'_>| answer.zone < zones && (answer.cuts.is_empty() || LONG.takes(name, answer));
        let is_others = |which: &Which| matches!(which, Which::Others { .. });
        let (short, long) = maps.config.entries();
        let more_long = answers.iter().filter(|(_, answer)| !SHORT.takes(name, answer)).count();
        let room = generation.short.len() + answers.len() <= short as usize / 2
            && generation.long.len() + more_long <= long as usize / 2
            && generation.hashes.len() < names as usize;
        // the key of type 0 is that of all others
        let told = !answers.iter().any(|(which, answer)| is_others(which) && !can(answer) || *which == Which::Type(0));
        let hash = hash(seed, name);
        if !room || !told || !generation.hashes.insert(hash) {
            return Ok(false);
        }
        let (last, first): (Vec<_>, Vec<_>) = answers.iter().partition(|(which, _)| is_others(which));
        for (which, answer) in first.into_iter().chain(last) {
            let left = Answer { cuts: &[], body: &[], ..answer.clone() };
            let answer = if can(answer) { answer } else { &left };
            maps.put(generation, hash, name, *which, answer)?;
        }
        Ok(true)
    }

    /// Has the program answer from this generation, and removes the one before.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start(mut self) -> Result<(), SteeringError> {
        let answers = self.answers.clone();
        let mut maps = answers.lock();
        maps.tell(self.generation.number)?;
        let old = maps.current.replace(std::mem::take(&mut self.generation));
        let Some(old) = old else { return Ok(()) };
        maps.wait()?;
        maps.remove(&old)
    }
}

/// What was not put in force goes again.
impl Drop for Fill {
    fn drop(&mut self) {
        let generation = std::mem::take(&mut self.generation);
        if generation.number != 0 {
            // an entry that stays takes room and is never answered from
            let _ = self.answers.lock().remove(&generation);
        }
    }
}

impl Maps {
    fn put(
        &mut self,
        generation: &mut Generation,
        hash: u64,
        name: &[u8],
        which: Which,
        answer: &Answer<'_>,
    ) -> Result<(), SteeringError> {
        let (rtype, mut flags) = match which {
            Which::Type(rtype) => (rtype, 0),
            Which::Others { but_any, but_ds } => {
                (0, if but_any { NOT_ANY } else { 0 } | if but_ds { NOT_DS } else { 0 })
            }
        };
        let mut key = [0; 16];
        key[..8].copy_from_slice(&hash.to_ne_bytes());
        key[8..12].copy_from_slice(&generation.number.to_ne_bytes());
        key[12..14].copy_from_slice(&rtype.to_be_bytes());
        let failed = |e: aya::maps::MapError| other("putting an answer in", &e);
        let mut short = [0; SHORT_BYTES];
        if answer.cuts.is_empty() {
            // found, and nothing to send
            short[2] = flags;
        } else if SHORT.takes(name, answer) {
            SHORT.write(&mut short, name, flags, answer);
        } else {
            let mut long = [0; LONG_BYTES];
            LONG.write(&mut long, name, 0, answer);
            generation.long.push(key);
            self.long.insert(key, long, 0).map_err(failed)?;
            flags |= IS_LONG;
            short[2] = flags;
        }
        generation.short.push(key);
        self.short.insert(key, short, 0).map_err(failed)
    }
}

impl std::fmt::Debug for Answers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (short, long) = self.entries();
        write!(f, "Answers({short} short, {long} long)")
    }
}

/// The octets as words of the machine, the last one filled up with zeros.
fn words(octets: &[u8]) -> impl Iterator<Item = u64> {
    octets.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    })
}

/// `fold_name` of the program, of a name in lower case.
fn hash(seed: u64, name: &[u8]) -> u64 {
    const K0: u64 = 0x9e37_79b9_7f4a_7c15;
    const K1: u64 = 0xa076_1d64_78bd_642f;
    let hash = words(name).fold(seed ^ name.len() as u64, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(K0);
        hash ^ hash >> 32
    });
    let hash = hash.wrapping_mul(K1);
    hash ^ hash >> 29
}

/// The folded sum of octets that begin at an even place, in the machine's order (RFC 1071).
fn sum(octets: &[u8]) -> u16 {
    let pairs = words(octets).fold(0u64, |sum, word| sum + (word & 0xffff_ffff) + (word >> 32));
    let mut sum = pairs;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests;
