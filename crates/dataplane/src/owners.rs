//! Which thread owns which flow group.
//!
//! One table for all threads of an interface. A group's entry is written by the thread that owns it, when it lets go, and read
//! by every thread for every frame. What belongs to a group stands in its owner's stack alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use wire::Protocol;
use wire::flow::{Flow, Groups};

/// The most threads of one interface.
pub const MOST_THREADS: usize = 256;

/// The table.
#[derive(Debug)]
pub struct Owners {
    groups: Arc<Groups>,
    /// datagrams belong to no group
    tcp_only: bool,
    owners: Box<[AtomicU16]>,
    /// whose they were at first
    homes: Box<[u16]>,
    threads: u16,
    /// so many of them, the first, are to own groups
    on_duty: AtomicU16,
    /// threads that hang, as far as somebody watches them
    hanging: Box<[AtomicBool]>,
}

impl Owners {
    /// A table over `groups` for so many threads, the first owner of each group given by `owner`: where the NIC brings its frames, if
    /// that is known.
    ///
    /// # Panics
    /// When there are no threads or more than [`MOST_THREADS`], or an owner is none of them.
    pub fn new(groups: Groups, threads: usize, owner: impl Fn(u16) -> u16) -> Owners {
        assert!((1..=MOST_THREADS).contains(&threads), "{threads} threads");
        let checked = |group| {
            let owner = owner(group);
            assert!(usize::from(owner) < threads, "thread {owner} of {threads}");
            owner
        };
        let homes: Box<[u16]> = (0..groups.count()).map(|group| checked(group as u16)).collect();
        let owners = homes.iter().map(|owner| AtomicU16::new(*owner)).collect();
        let on_duty = AtomicU16::new(threads as u16);
        let hanging = (0..threads).map(|_| AtomicBool::new(false)).collect();
        Owners { groups: Arc::new(groups), tcp_only: false, owners, homes, threads: threads as u16, on_duty, hanging }
    }

    /// The same for TCP alone: datagrams stay with whoever receives them.
    #[must_use]
    pub fn for_tcp(self) -> Owners {
        Owners { tcp_only: true, ..self }
    }

    /// The groups.
    pub fn groups(&self) -> &Arc<Groups> {
        &self.groups
    }

    /// How many threads there are.
    pub fn threads(&self) -> usize {
        usize::from(self.threads)
    }

    /// How many of them, from the first on, are to serve; the others have nothing to do.
    #[inline]
    pub fn on_duty(&self) -> usize {
        usize::from(self.on_duty.load(Ordering::Relaxed))
    }

    /// So many are to serve; at least one does, and at most all. Those whom it concerns must be woken.
    pub(crate) fn set_on_duty(&self, threads: usize) {
        let threads = threads.clamp(1, self.threads());
        self.on_duty.store(threads as u16, Ordering::Relaxed);
    }

    /// Whether a thread hangs, as far as somebody watches it.
    #[inline]
    pub(crate) fn hangs(&self, thread: u16) -> bool {
        self.hanging[usize::from(thread)].load(Ordering::Relaxed)
    }

    /// Whether one does.
    pub(crate) fn one_hangs(&self) -> bool {
        (0..self.threads).any(|thread| self.hangs(thread))
    }

    /// A thread hangs, or comes round again.
    pub(crate) fn set_hangs(&self, thread: u16, hangs: bool) {
        self.hanging[usize::from(thread)].store(hangs, Ordering::Relaxed);
    }

    /// The thread that owns a group.
    ///
    /// # Panics
    /// When there is no such group.
    #[inline]
    pub fn owner(&self, group: u16) -> u16 {
        // with the release of `hand`: who sees a new owner has sent everything to the old one before
        self.owners[usize::from(group)].load(Ordering::Acquire)
    }

    /// The thread that owned a group at first.
    pub(crate) fn home(&self, group: u16) -> u16 {
        self.homes[usize::from(group)]
    }

    /// The group of a frame; None when it has none, and any thread will do.
    #[inline]
    pub fn group(&self, frame: &[u8]) -> Option<u16> {
        let flow = Flow::of_frame(frame).filter(|flow| !self.tcp_only || flow.protocol() == Protocol::TCP)?;
        Some(self.groups.of(&flow))
    }

    /// How many groups a thread owns.
    pub fn count(&self, thread: u16) -> usize {
        self.owners.iter().filter(|owner| owner.load(Ordering::Relaxed) == thread).count()
    }

    /// The owner's: `group` is another thread's from now on.
    pub(crate) fn hand(&self, group: u16, to: u16) {
        self.owners[usize::from(group)].store(to, Ordering::Release);
    }
}

/// One thread's view of the table.
#[derive(Debug)]
pub(crate) struct Ours {
    pub(crate) owners: Arc<Owners>,
    pub(crate) me: u16,
}

impl stack::Ours for Ours {
    fn owns(&self, group: u16) -> bool {
        self.owners.owner(group) == self.me
    }

    fn owns_some(&self) -> bool {
        self.owners.count(self.me) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_has_one_owner() {
        let owners = Owners::new(Groups::keyed(16, [1, 2]), 3, |group| group % 3);
        assert_eq!([0, 1, 2].map(|thread| owners.count(thread)), [6, 5, 5]);
        owners.hand(2, 0);
        assert_eq!((owners.owner(2), owners.count(0), owners.count(7)), (0, 7, 0));
        assert_eq!(owners.home(2), 2);
    }

    #[test]
    fn datagrams_may_belong_to_nobody() {
        let frame = |protocol: Protocol| {
            let mut frame = vec![0; 14 + 20 + 20];
            frame[12..14].copy_from_slice(&[8, 0]);
            frame[14..18].copy_from_slice(&[0x45, 0, 0, 40]);
            frame[23] = protocol.0;
            frame
        };
        let owners = || Owners::new(Groups::keyed(16, [1, 2]), 3, |group| group % 3);
        assert!(owners().group(&frame(Protocol::UDP)).is_some());
        let owners = owners().for_tcp();
        assert_eq!(owners.group(&frame(Protocol::UDP)), None);
        assert!(owners.group(&frame(Protocol::TCP)).is_some());
    }

    #[test]
    #[should_panic(expected = "thread 3 of 3")]
    fn an_owner_is_one_of_the_threads() {
        let _ = Owners::new(Groups::keyed(16, [1, 2]), 3, |_| 3);
    }
}
