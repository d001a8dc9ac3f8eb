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
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What the stacks of one interface tell each other of its own addresses; give it to all of them ([`crate::Config`]).
#[derive(Debug)]
pub struct Agreement {
    /// rises when an address's readiness changes
    changes: AtomicU64,
    addresses: Vec<Arc<Shared>>,
    /// neighbours that stacks ask for
    asked: Mutex<Vec<Asked>>,
    /// how many those are, for who only looks
    asking: AtomicUsize,
}

/// Neighbours that are asked for at one time; beyond them the oldest are asked for again.
const ASKED: usize = 64;
/// So long after a question an answer is one to it.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);

/// A neighbour that stacks ask for: each of them takes what was heard, and leaves it for the others.
#[derive(Debug)]
struct Asked {
    addr: IpAddr,
    at: Instant,
    heard: Option<(wire::Mac, Instant)>,
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
            asked: Mutex::default(),
            asking: AtomicUsize::new(0),
        }
    }

    pub(crate) fn find(&self, addr: IpAddr) -> Option<&Arc<Shared>> {
        self.addresses.iter().find(|shared| shared.addr == addr)
    }

    /// A stack asks for a neighbour.
    pub(crate) fn ask(&self, now: Instant, neighbour: IpAddr) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.retain(|one| !one.is_over(now));
        match asked.iter_mut().find(|one| one.addr == neighbour) {
            // another's threads have read the clock a little later
            Some(one) => one.at = one.at.max(now),
            None => {
                if asked.len() == ASKED {
                    asked.remove(0);
                }
                asked.push(Asked { addr: neighbour, at: now, heard: None });
            }
        }
        self.asking.store(asked.len(), Ordering::Release);
    }

    /// A neighbour was heard; whether a stack has asked for it.
    pub(crate) fn hear(&self, now: Instant, neighbour: IpAddr, mac: wire::Mac) -> bool {
        if self.asking.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let its = asked.iter_mut().find(|one| one.addr == neighbour && !one.is_over(now));
        let Some(one) = its else { return false };
        one.heard = Some((mac, now));
        true
    }

    /// Shows what was heard not long ago, whoever had asked. What is there for nobody any more goes.
    pub(crate) fn show_heard(&self, now: Instant, show: &mut dyn FnMut(IpAddr, wire::Mac)) {
        if self.asking.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.retain(|one| !one.is_over(now));
        self.asking.store(asked.len(), Ordering::Release);
        let heard = asked.iter().filter_map(|one| Some((one.addr, one.heard?)));
        let fresh = heard.filter(|(_, (_, at))| now.saturating_since(*at) <= ANSWERED_WITHIN);
        fresh.for_each(|(addr, (mac, _))| show(addr, mac));
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
