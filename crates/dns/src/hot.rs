//! Which names are asked for most: a sketch that a serving thread keeps of a sample of its answers, for who chooses what is
//! answered in front of it.
//!
//! A sketch counts names in sets of eight, each in one cache line. A name that has no counter takes an unused one of its set;
//! else the least of the eight loses one, and at nothing is free: the counters of Misra and Gries (Finding Repeated Elements,
//! 1982), who lower all of them, kept in sets as packet processors do (HashPipe, SOSR 2017). So a count is never more than
//! the samples of that name, names that come once each only wear down the least of a set, and a name costs one line, whether it
//! is counted or not. Names are numbers of the tables ([`NameId`]); one that is not in a zone has none and never gets in. Which set
//! is whose depends on a secret seed.
//!
//! Sampled is one of [`ANSWERS_A_SAMPLE`] answers on average, at random, so that no pattern of questions hides a name; the steps
//! follow from the seed. Counted are answers over datagrams that the driver could have given: to a plain question, or one with a cookie, for a name that
//! exists, or for one below a cut, which counts for the cut, without DO, not for ANY, and not truncated, which answers beyond a rate
//! are.
//!
//! Memory: a thread has one sketch while it is wanted, and there is one more on its way ([`Exchange`]); the thread allocates none.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use crate::compose::NAME_AT;
use crate::fixed::NameId;
use crate::question::{Ask, Verdict};
use crate::table::{Entry, Key, Tables, flag};
use base::publish::Reader;
use zone::Rtype;

/// Of so many answers one is counted, on average.
pub const ANSWERS_A_SAMPLE: u32 = 16;

const WAYS: usize = 8;
const LEAST_NAMES: usize = 1 << 12;
const MOST_NAMES: usize = 1 << 17;

/// A name's counter. At 0 times it is nobody's.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    name: u32,
    times: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Set([Way; WAYS]);

const _: () = assert!(size_of::<Set>() == 64);

/// Counts of the names that were asked for most, of one version of the tables.
#[derive(Debug)]
pub struct Sketch {
    /// as the publisher numbers them
    version: u64,
    seed: u64,
    /// counts samples: among equals it is the turn of another one each time
    turn: usize,
    sets: Vec<Set>,
}

impl Sketch {
    /// An empty one that tells at least `names` names apart, but no more than 131,072 (1 MiB) and no less than 4,096. `seed` is from
    /// the machine's entropy.
    pub fn new(names: usize, seed: u64) -> Sketch {
        let ways = names.clamp(LEAST_NAMES, MOST_NAMES).next_power_of_two();
        Sketch { version: 0, seed, turn: 0, sets: vec![Set::default(); ways / WAYS] }
    }

    /// Counts from now on names of the tables of this version, as their publisher numbers it.
    pub fn begin(&mut self, version: u64) {
        self.version = version;
        self.sets.fill(Set::default());
    }

    /// The version of the tables whose names are counted.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The names that have counters, with how often they were counted, at most.
    pub fn names(&self) -> impl Iterator<Item = (NameId, u32)> + '_ {
        let used = self.sets.iter().flat_map(|set| &set.0).filter(|way| way.times > 0);
        used.map(|way| (NameId(way.name), way.times))
    }

    /// Counts a name once.
    #[inline]
    fn count(&mut self, name: NameId) {
        let mixed = (u64::from(name.0) ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xa076_1d64_78bd_642f);
        let at = ((mixed >> 32) * self.sets.len() as u64) >> 32;
        let Set(ways) = &mut self.sets[at as usize];
        self.turn = self.turn.wrapping_add(1);
        let mut least = self.turn % WAYS;
        for n in (0..WAYS).map(|n| (self.turn + n) % WAYS) {
            if ways[n].name == name.0 && ways[n].times > 0 {
                ways[n].times = ways[n].times.saturating_add(1);
                return;
            }
            if ways[n].times < ways[least].times {
                least = n;
            }
        }
        match &mut ways[least] {
            free @ Way { times: 0, .. } => *free = Way { name: name.0, times: 1 },
            way => way.times -= 1,
        }
    }
}

/// Where a serving thread and who chooses exchange a full sketch for an empty one. The thread looks once a cycle, and waits for
/// nobody.
#[derive(Debug, Default)]
pub struct Exchange {
    /// the thread is to take what lies here
    for_thread: AtomicBool,
    sketch: Mutex<Option<Box<Sketch>>>,
}

impl Exchange {
    /// Exchanges `sketch` for what the thread left here since the last time; it will count in `sketch`, or not at all without one.
    /// False, and nothing happens, when it has not come by since.
    pub fn turn(&self, sketch: &mut Option<Box<Sketch>>) -> bool {
        if self.for_thread.load(Ordering::Acquire) {
            return false;
        }
        std::mem::swap(&mut *self.sketch.lock().unwrap_or_else(PoisonError::into_inner), sketch);
        self.for_thread.store(true, Ordering::Release);
        true
    }

    /// The thread's side.
    #[cold]
    #[inline(never)]
    fn take(&self, sketch: &mut Option<Box<Sketch>>) {
        let mut here = match self.sketch.try_lock() {
            Ok(here) => here,
            Err(TryLockError::Poisoned(here)) => here.into_inner(),
            // in the next cycle
            Err(TryLockError::WouldBlock) => return,
        };
        std::mem::swap(&mut *here, sketch);
        self.for_thread.store(false, Ordering::Release);
    }
}

/// One thread's watch over what it is asked for.
pub(crate) struct Watch {
    exchange: Arc<Exchange>,
    sketch: Option<Box<Sketch>>,
    /// answers before the next that is counted
    skip: u32,
    draw: u64,
    seed: u64,
}

impl Watch {
    pub(crate) fn new(exchange: Arc<Exchange>, seed: u64) -> Watch {
        Watch { exchange, sketch: None, skip: 0, draw: seed, seed: seed | 1 }
    }

    /// At a cycle's start.
    #[inline]
    pub(crate) fn cycle(&mut self) {
        if self.exchange.for_thread.load(Ordering::Acquire) {
            self.exchange.take(&mut self.sketch);
        }
    }

    /// After a question over a datagram was answered: `message` is the answer, which begins with the question.
    #[inline(always)]
    pub(crate) fn answered(&mut self, tables: &Reader<Tables>, verdict: &Verdict, key: &Key, message: &[u8]) {
        match self.skip.checked_sub(1) {
            Some(skip) => self.skip = skip,
            None => self.sample(tables, verdict, key, message),
        }
    }

    #[inline(never)]
    fn sample(&mut self, tables: &Reader<Tables>, verdict: &Verdict, key: &Key, message: &[u8]) {
        // Knuth's generator for 64 bits, whose high bits are the good ones
        self.draw = self.draw.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(self.seed);
        self.skip = ((self.draw >> 33) % u64::from(2 * ANSWERS_A_SAMPLE - 1)) as u32;
        let (Some(sketch), Verdict::Ask(ask)) = (&mut self.sketch, verdict) else { return };
        if sketch.version == tables.version()
            && let Some(name) = tables.answered_plainly(ask, key, message)
        {
            sketch.count(name);
        }
    }
}

impl Tables {
    /// The name whose entry answers for the one that was asked for, if such an answer could be given in front of the service.
    fn answered_plainly(&self, ask: &Ask, key: &Key, message: &[u8]) -> Option<NameId> {
        const TRUNCATED: u8 = 2;
        let dnssec_ok = ask.edns.is_some_and(|edns| edns.dnssec_ok);
        if !(ask.plain || ask.is_plain_but_for_a_cookie())
            || dnssec_ok
            || ask.qtype == Rtype::ANY.0
            || message[2] & TRUNCATED != 0
        {
            return None;
        }
        let found = self.find(key, message, NAME_AT, usize::from(ask.name_bytes));
        let entry = match found.filter(|entry| !entry.has(flag::PHANTOM)) {
            Some(entry) => entry,
            None => self.cut_above(found, &message[NAME_AT..NAME_AT + usize::from(ask.name_bytes)])?,
        };
        (!entry.has(flag::DEPENDS)).then_some(NameId(entry.unit))
    }

    /// The cut with whose referral a name is answered that does not exist, or is a phantom; none where zones are below the cut.
    #[cold]
    fn cut_above<'t>(&'t self, phantom: Option<Entry<'t>>, wire: &[u8]) -> Option<Entry<'t>> {
        let mut above = phantom.or_else(|| self.encloser(wire))?;
        if above.has(flag::PHANTOM) {
            above = self.entry(Some(above.link()).filter(|link| *link != 0)?);
        }
        (above.has(flag::CUT) && !above.has(flag::OUTER)).then_some(above)
    }
}

#[cfg(test)]
mod tests;
