//! How many of something there may be at a time, over all threads of a service.
//!
//! Flows go to threads by hashes, balancers and elastic threads, so one thread may have nearly all of what there is: a bound that was divided
//! among the threads would refuse on one what the others have room for. Each thread keeps some of what is left for itself where
//! there is much, so that in the common case nobody writes what others read; what they keep together is at most a thirty-second of the whole.

use base::CacheAligned;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A bound; its clones are the same one.
#[derive(Clone)]
pub struct Bound(Arc<Inner>);

struct Inner {
    most: usize,
    /// what a thread asks for at once, beyond what it needs; it keeps up to twice as many
    step: usize,
    /// what no thread has
    left: CacheAligned<AtomicUsize>,
}

impl Bound {
    /// At most so many, in one thread.
    pub fn new(most: usize) -> Bound {
        Bound::with(most, 0)
    }

    /// Another bound that is as high, for so many threads.
    #[must_use]
    pub fn among(&self, threads: usize) -> Bound {
        Bound::with(self.most(), self.most() / (64 * threads.max(1)))
    }

    fn with(most: usize, step: usize) -> Bound {
        Bound(Arc::new(Inner { most, step, left: CacheAligned(AtomicUsize::new(most)) }))
    }

    /// How many there may be.
    pub fn most(&self) -> usize {
        self.0.most
    }

    /// A vector with room for so many, up to a million, whose memory costs nothing until it is used.
    pub fn vec<T>(&self) -> Vec<T> {
        Vec::with_capacity(self.most().min(1 << 20))
    }

    /// Takes up to `wanted`; how many there were.
    fn take(&self, wanted: usize) -> usize {
        let less = |left: usize| (left > 0).then(|| left - left.min(wanted));
        let before = self.0.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or(0);
        before.min(wanted)
    }

    fn give(&self, count: usize) {
        self.0.left.fetch_add(count, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bound({}, {} left)", self.0.most, self.0.left.load(Ordering::Relaxed))
    }
}

impl Default for Bound {
    /// None at all.
    fn default() -> Bound {
        Bound::new(0)
    }
}

/// What one thread has of a bound. What it has goes back with it.
#[derive(Debug)]
pub struct Share {
    bound: Bound,
    used: usize,
    spare: usize,
}

impl Share {
    /// Nothing yet.
    pub fn new(bound: Bound) -> Share {
        Share { bound, used: 0, spare: 0 }
    }

    /// How many it uses.
    pub fn used(&self) -> usize {
        self.used
    }

    /// The most that it could.
    pub fn most(&self) -> usize {
        self.bound.most()
    }

    /// Whether it can use one more; what it finds, it keeps.
    pub fn has_room(&mut self) -> bool {
        if self.spare == 0 {
            self.spare = self.bound.take(1 + self.bound.0.step);
        }
        self.spare > 0
    }

    /// Uses one more, if there is one.
    pub fn take(&mut self) -> bool {
        let has = self.has_room();
        self.spare -= usize::from(has);
        self.used += usize::from(has);
        has
    }

    /// Uses one less.
    pub fn give(&mut self) {
        self.used -= 1;
        self.spare += 1;
        let step = self.bound.0.step;
        if self.spare > 2 * step {
            self.bound.give(self.spare - step);
            self.spare = step;
        }
    }

    /// Lets go of one that it uses, for another thread, or for nobody.
    pub fn depart(&mut self) -> Claim {
        self.used -= 1;
        Claim(Some(self.bound.clone()))
    }

    /// Uses one more that another thread has let go of. False where that was under another bound and there is none left of this one.
    pub fn arrive(&mut self, mut claim: Claim) -> bool {
        let is_ours = claim.0.take_if(|bound| Arc::ptr_eq(&bound.0, &self.bound.0)).is_some();
        if is_ours {
            self.used += 1;
        }
        is_ours || self.take()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.bound.give(self.used + self.spare);
    }
}

/// One that is used by nobody at the moment: it is under way.
#[derive(Debug)]
pub struct Claim(Option<Bound>);

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(bound) = &self.0 {
            bound.give(1);
        }
    }
}

/// The numbers of one thread's places, from 0, within a bound over all threads. A number that nobody has had is one more than the
/// highest that somebody had, so that what stands in the places can grow with them.
#[derive(Debug)]
pub struct Places {
    share: Share,
    free: Vec<u32>,
    /// numbers that were given
    had: u32,
}

impl Places {
    /// None taken yet.
    pub fn new(bound: Bound) -> Places {
        Places { free: bound.vec(), share: Share::new(bound), had: 0 }
    }

    /// How many are taken.
    pub fn used(&self) -> usize {
        self.share.used()
    }

    /// Whether there is one more.
    pub fn has_room(&mut self) -> bool {
        self.share.has_room()
    }

    /// Takes one, if there is one.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        if self.share.take() { Some(self.number()) } else { None }
    }

    /// Frees one.
    #[inline]
    pub fn give(&mut self, place: u32) {
        self.share.give();
        self.free.push(place);
    }

    /// Frees one whose like another thread takes.
    pub fn depart(&mut self, place: u32) -> Claim {
        self.free.push(place);
        self.share.depart()
    }

    /// Takes one for what another thread has let go of; None only where that was under another bound, and none is left of this one.
    pub fn arrive(&mut self, claim: Claim) -> Option<u32> {
        if self.share.arrive(claim) { Some(self.number()) } else { None }
    }

    fn number(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.had += 1;
            self.had - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_thread_may_have_all_and_no_two_have_more() {
        for most in [0, 1, 7, 1000, 100_000] {
            let bound = Bound::new(5).among(3).clone();
            assert_eq!((bound.most(), bound.among(9).most()), (5, 5));
            let bound = Bound::new(most).among(2);
            let mut shares = [0, 1].map(|_| Share::new(bound.clone()));
            assert_eq!((0..2 * most).filter(|_| shares[0].take()).count(), most);
            assert!(!shares[1].take() && !shares[1].has_room());
            // what one gives back the other has, but for what it keeps
            (0..most).for_each(|_| shares[0].give());
            let others = (0..2 * most).filter(|_| shares[1].take()).count();
            assert!(others <= most && others >= most - most / 64, "{others} of {most}");
            drop(shares);
            assert_eq!(bound.take(usize::MAX), most);
        }
    }

    #[test]
    fn what_moves_is_counted_once() {
        let bound = Bound::new(2).among(2);
        let mut shares = [0, 1].map(|_| Share::new(bound.clone()));
        assert!(shares[0].take() && shares[0].take() && !shares[1].take());
        let claim = shares[0].depart();
        assert!(!shares[0].take() && !shares[1].take(), "one that is under way is one");
        assert!(shares[1].arrive(claim));
        assert_eq!(shares.each_ref().map(Share::used), [1, 1]);
        // one that nobody takes is free
        drop(shares[1].depart());
        assert!(shares[0].take() && !shares[0].take());
        // one of another bound counts as a new one
        let (elsewhere, mut full) = (Bound::new(1), Share::new(Bound::new(0)));
        let mut other = Share::new(elsewhere.clone());
        assert!(other.take() && !full.arrive(other.depart()) && full.used() == 0);
        assert_eq!(elsewhere.take(9), 1);
    }

    proptest! {
        /// Whatever threads take, give, send each other and leave behind: never more than the bound, no number twice, nothing lost.
        #[test]
        fn a_bound_holds(
            most in prop::sample::select(vec![0usize, 1, 3, 64, 300]),
            threads in 1usize..4,
            steps in prop::collection::vec((0usize..4, 0u8..8), 0..600),
        ) {
            let bound = Bound::new(most).among(threads);
            let mut all: Vec<(Places, Vec<u32>)> = (0..threads).map(|_| (Places::new(bound.clone()), Vec::new())).collect();
            for (thread, step) in steps {
                let thread = thread % threads;
                let (places, taken) = &mut all[thread];
                match step {
                    0..4 => {
                        let had = places.has_room();
                        let place = places.take();
                        prop_assert_eq!(had, place.is_some());
                        prop_assert!(place.is_none_or(|place| !taken.contains(&place) && (place as usize) < most));
                        taken.extend(place);
                    }
                    4..6 => {
                        if let Some(place) = taken.pop() {
                            places.give(place);
                        }
                    }
                    6 => {
                        let Some(place) = taken.pop() else { continue };
                        let claim = places.depart(place);
                        let (other, others) = &mut all[(thread + 1) % threads];
                        let place = other.arrive(claim).expect("one that moves has its place");
                        prop_assert!(!others.contains(&place));
                        others.push(place);
                    }
                    _ => all[thread] = (Places::new(bound.clone()), Vec::new()),
                }
                let used: usize = all.iter().map(|(places, _)| places.used()).sum();
                prop_assert_eq!(used, all.iter().map(|(_, taken)| taken.len()).sum::<usize>());
                prop_assert!(used <= most);
            }
            drop(all);
            prop_assert_eq!(bound.take(usize::MAX), most);
        }
    }
}
