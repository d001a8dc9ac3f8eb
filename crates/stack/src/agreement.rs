//! Own addresses where several queues, with a stack each, serve one interface.
//!
//! One stack claims the addresses. The others follow it: they use an address when it does, and not before. A rival's packet
//! may come to any queue, so whoever hears it counts it here; before the address is in use that ends the claim, afterwards
//! the one that heard it defends the address, at most once an interval for all of them together.
//!
//! A neighbour's answer, too, comes to whichever queue: who asks leaves word of whom, and whoever hears that one leaves its hardware
//! address here.
//!
//! Everything here is written rarely (when a claim moves, when a rival is heard) and is read by following stacks once a
//! burst: one load of a line that stays shared.

use crate::counters::{OwnStatus, Readiness};
use base::Instant;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What the stacks of one interface tell each other of its own addresses; give it to all of them ([`crate::Config`]).
#[derive(Debug)]
pub struct Agreement {
    /// rises when an address's readiness changes
    changes: AtomicU64,
    addresses: Vec<Arc<Shared>>,
    /// neighbours that stacks ask for
    asked: Mutex<Questions>,
    /// how many those are, for who only looks
    asking: AtomicUsize,
}

/// Places for questions at first.
const QUESTIONS: usize = 256;
/// So long after a question an answer is one to it.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);

/// The questions of all stacks. None gives way to another, or who asks for many would have others' answers not believed: how many there are
/// is bounded by what each stack may ask for, and by the time.
#[derive(Debug)]
struct Questions {
    /// sorted by address
    asked: Vec<Asked>,
    /// when those that were over went
    swept_at: Instant,
}

/// A neighbour that stacks ask for: each of them takes what was heard, and leaves it for the others.
#[derive(Debug)]
struct Asked {
    addr: IpAddr,
    at: Instant,
    heard: Option<Heard>,
}

/// What a neighbour has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    /// its hardware address
    pub(crate) mac: wire::Mac,
    /// when it was heard
    pub(crate) at: Instant,
    /// it goes before another that was told earlier (RFC 4861 section 7.2.5); what ARP tells does
    pub(crate) overrides: bool,
}

impl Questions {
    fn find(&self, addr: IpAddr) -> Result<usize, usize> {
        self.asked.binary_search_by_key(&addr, |one| one.addr)
    }
}

impl Asked {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_since(self.at) > ANSWERED_WITHIN
    }
}

/// An own address as all stacks and all onlookers see it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) addr: IpAddr,
    readiness: AtomicU8,
    conflicts: AtomicU64,
    /// the rival's hardware address in the low 48 bits
    rival: AtomicU64,
    /// a following stack heard a rival while the address was looked for another holder
    heard: AtomicBool,
    /// nanoseconds of the last defence; u64::MAX for none
    defended_at: AtomicU64,
}

impl Agreement {
    /// About these addresses.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>) -> Agreement {
        let shared = |addr: IpAddr| {
            Arc::new(Shared {
                addr: addr.to_canonical(),
                readiness: AtomicU8::new(Readiness::Probing as u8),
                conflicts: AtomicU64::new(0),
                rival: AtomicU64::new(0),
                heard: AtomicBool::new(false),
                defended_at: AtomicU64::new(u64::MAX),
            })
        };
        Agreement {
            changes: AtomicU64::new(0),
            addresses: addresses.into_iter().map(shared).collect(),
            asked: Mutex::new(Questions { asked: Vec::with_capacity(QUESTIONS), swept_at: Instant::ZERO }),
            asking: AtomicUsize::new(0),
        }
    }

    pub(crate) fn find(&self, addr: IpAddr) -> Option<&Arc<Shared>> {
        self.addresses.iter().find(|shared| shared.addr == addr)
    }

    /// The questions, without those that are long over.
    fn questions(&self, now: Instant) -> MutexGuard<'_, Questions> {
        let mut questions = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if now - questions.swept_at > ANSWERED_WITHIN {
            questions.asked.retain(|one| !one.is_over(now));
            questions.swept_at = now;
            self.asking.store(questions.asked.len(), Ordering::Release);
        }
        questions
    }

    /// A stack asks for a neighbour.
    pub(crate) fn ask(&self, now: Instant, neighbour: IpAddr) {
        let mut questions = self.questions(now);
        match questions.find(neighbour) {
            // another's threads have read the clock a little later
            Ok(at) => questions.asked[at].at = questions.asked[at].at.max(now),
            Err(at) => questions.asked.insert(at, Asked { addr: neighbour, at: now, heard: None }),
        }
        self.asking.store(questions.asked.len(), Ordering::Release);
    }

    /// A neighbour was heard; whether a stack has asked for it.
    pub(crate) fn hear(&self, neighbour: IpAddr, heard: Heard) -> bool {
        if self.asking.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut questions = self.questions(heard.at);
        let Ok(at) = questions.find(neighbour) else { return false };
        let one = &mut questions.asked[at];
        if one.is_over(heard.at) {
            return false;
        }
        let before = one.heard.filter(|before| heard.at - before.at <= ANSWERED_WITHIN);
        match before {
            Some(before) if before.mac == heard.mac => {
                one.heard = Some(Heard { overrides: before.overrides || heard.overrides, ..heard });
            }
            Some(_) if !heard.overrides => {}
            _ => one.heard = Some(heard),
        }
        true
    }

    /// Has `take` look up, by address, what was heard not long ago, whoever had asked.
    pub(crate) fn show_heard(&self, now: Instant, take: impl FnOnce(&dyn Fn(IpAddr) -> Option<Heard>)) {
        if self.asking.load(Ordering::Acquire) == 0 {
            return;
        }
        let questions = self.questions(now);
        take(&|addr| {
            let heard = questions.asked[questions.find(addr).ok()?].heard?;
            (now - heard.at <= ANSWERED_WITHIN).then_some(heard)
        });
    }

    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The claiming stack says how far an address has come.
    pub(crate) fn show(&self, shared: &Shared, readiness: Readiness) {
        // in one order with `heard`: one of the two threads sees what the other wrote
        shared.readiness.store(readiness as u8, Ordering::SeqCst);
        self.changes.fetch_add(1, Ordering::Release);
    }
}

/// Two are the same when they are one.
impl PartialEq for Agreement {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Agreement {}

impl Shared {
    pub(crate) fn readiness(&self) -> Readiness {
        match self.readiness.load(Ordering::SeqCst) {
            0 => Readiness::Probing,
            1 => Readiness::Ready,
            _ => Readiness::Conflict,
        }
    }

    pub(crate) fn status(&self) -> OwnStatus {
        let conflicts = self.conflicts.load(Ordering::Relaxed);
        let [_, _, rival @ ..] = self.rival.load(Ordering::Relaxed).to_be_bytes();
        OwnStatus { addr: self.addr, readiness: self.readiness(), conflicts, rival: (conflicts > 0).then_some(rival) }
    }

    /// Counts a packet by which `rival` claims the address.
    pub(crate) fn on_conflict(&self, [a, b, c, d, e, f]: wire::Mac) {
        self.rival.store(u64::from_be_bytes([0, 0, a, b, c, d, e, f]), Ordering::Relaxed);
        self.conflicts.fetch_add(1, Ordering::Relaxed);
    }

    /// For a stack that follows: leaves word of a rival for the one that claims. False when the address is in use, so that
    /// it is to be defended instead.
    pub(crate) fn leave_word(&self) -> bool {
        self.heard.store(true, Ordering::SeqCst);
        let in_use = self.readiness() == Readiness::Ready;
        if in_use {
            self.heard.store(false, Ordering::SeqCst);
        }
        !in_use
    }

    /// For the stack that claims: whether another heard a rival before the address was in use.
    pub(crate) fn was_heard(&self) -> bool {
        self.heard.load(Ordering::SeqCst)
    }

    /// For the stack that claims: what was heard before another attempt does not count.
    pub(crate) fn forget_word(&self) {
        self.heard.store(false, Ordering::SeqCst);
    }

    /// Whether a defence may be sent now; then no other is for the time of `interval`.
    pub(crate) fn defend(&self, now: Instant, interval: Duration) -> bool {
        let last = self.defended_at.load(Ordering::Relaxed);
        if last != u64::MAX && now - Instant::from_nanos(last) < interval {
            return false;
        }
        self.defended_at.compare_exchange(last, now.as_nanos(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Takes over what another showed of the same address, for a stack that was told anew.
    pub(crate) fn continue_from(&self, before: &Shared) {
        for (here, there) in [
            (&self.conflicts, &before.conflicts),
            (&self.rival, &before.rival),
            (&self.defended_at, &before.defended_at),
        ] {
            here.store(there.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.readiness.store(before.readiness() as u8, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn heard(ms: u64, n: u8) -> Heard {
        Heard { mac: [2, 0, 0, 0, 0, n], at: at(ms), overrides: true }
    }

    fn shown(agreement: &Agreement, ms: u64, addr: IpAddr) -> Option<Heard> {
        let mut shown = None;
        agreement.show_heard(at(ms), |look| shown = look(addr));
        shown
    }

    #[test]
    fn whoever_is_asked_for_is_heard_however_many_there_are() {
        let agreement = Agreement::new([]);
        let neighbour = |n: u16| IpAddr::from([10, 0, (n >> 8) as u8, n as u8]);
        (0..2000).rev().for_each(|n| agreement.ask(at(5), neighbour(n)));
        for n in 0..2000 {
            assert!(agreement.hear(neighbour(n), heard(6, n as u8)), "{n}");
            assert_eq!(shown(&agreement, 7, neighbour(n)), Some(heard(6, n as u8)));
        }
        assert!(!agreement.hear(neighbour(2000), heard(6, 1)));
    }

    #[test]
    fn an_answer_that_comes_late_is_none_and_what_is_over_goes() {
        let agreement = Agreement::new([]);
        let [one, other] = [1, 2].map(|n| IpAddr::from([192, 0, 2, n]));
        agreement.ask(at(0), one);
        agreement.ask(at(1500), other);
        assert!(!agreement.hear(one, heard(2001, 7)));
        assert!(agreement.hear(other, heard(2001, 8)));
        assert_eq!((shown(&agreement, 2001, one), shown(&agreement, 2001, other)), (None, Some(heard(2001, 8))));
        assert_eq!(shown(&agreement, 4002, other), None, "too old to begin with");
        assert_eq!(agreement.asking.load(Ordering::Relaxed), 0);
        assert!(!agreement.hear(other, heard(4003, 9)));
    }

    /// Whichever stack looks, and when: what one hears first is not lost to the others.
    #[test]
    fn an_answer_that_overrides_none_changes_none() {
        let agreement = Agreement::new([]);
        let one = IpAddr::from([192, 0, 2, 1]);
        let gently = |ms, n| Heard { overrides: false, ..heard(ms, n) };
        agreement.ask(at(0), one);
        for (told, stands) in [
            (gently(1, 7), gently(1, 7)),
            (gently(2, 8), gently(1, 7)),
            (heard(3, 9), heard(3, 9)),
            (gently(4, 8), heard(3, 9)),
            (gently(5, 9), heard(5, 9)),
        ] {
            assert!(agreement.hear(one, told));
            assert_eq!(shown(&agreement, 6, one), Some(stands));
        }
        // what was told long ago counts no more
        agreement.ask(at(1500), one);
        agreement.hear(one, gently(2006, 7));
        assert_eq!(shown(&agreement, 2006, one), Some(gently(2006, 7)));
    }
}
