//! The four rings that an AF_XDP socket shares with the kernel.
//!
//! A ring is a power of two of slots and two free-running u32 indices, one written by each side. Ours is kept here too
//! and the kernel's is looked at only when the copy of it runs short, so a burst costs one look and one publication.
//!
//! Soundness: the mapping is made by [`Ring::map`] with the offsets and the size that the kernel gave for it, it is
//! unmapped when the ring goes, and slots are reached only through `index & mask`. A slot between the two indices belongs
//! to the side that may take from it, the others to the side that may put in (Documentation/networking/af_xdp.rst); an
//! index is read with Acquire before the slots it opens are touched, and written with Release after.

#![allow(unsafe_code)]

use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a slot of the fill and completion rings holds.
pub(crate) type Address = u64;

/// What a slot of the receive and transmit rings holds: `struct xdp_desc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Descriptor {
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) options: u32,
}

const _: () = assert!(size_of::<Descriptor>() == 16);

/// The side we are on.
#[derive(Debug)]
pub(crate) struct Fills;
/// The side we are on.
#[derive(Debug)]
pub(crate) struct Drains;

/// One ring; `Side` is ours.
#[derive(Debug)]
pub(crate) struct Ring<T, Side> {
    mapped_at: NonNull<u8>,
    mapped_bytes: usize,
    /// written by us
    mine: NonNull<AtomicU32>,
    /// written by the kernel
    theirs: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    slots: NonNull<T>,
    mask: u32,
    /// our index, ahead of the shared one until it is published
    here: u32,
    /// the kernel's index as last seen
    there: u32,
    side: PhantomData<Side>,
}

// SAFETY: the mapping belongs to this value alone on our side; nothing in it is tied to a thread.
unsafe impl<T: Send, Side> Send for Ring<T, Side> {}

/// Where the parts of a ring lie in its mapping: `struct xdp_ring_offset`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Offsets {
    pub(crate) producer: u64,
    pub(crate) consumer: u64,
    pub(crate) slots: u64,
    pub(crate) flags: u64,
}

/// `struct xdp_mmap_offsets`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct AllOffsets {
    pub(crate) rx: Offsets,
    pub(crate) tx: Offsets,
    pub(crate) fill: Offsets,
    pub(crate) completion: Offsets,
}

impl<T: Copy, Side> Ring<T, Side> {
    /// Maps the ring of `size` slots that `socket` has at page offset `at`.
    fn map(socket: BorrowedFd<'_>, at: u64, offsets: Offsets, size: u32, we_produce: bool) -> io::Result<Self> {
        assert!(size.is_power_of_two(), "a ring of {size} slots");
        let mapped_bytes = offsets.slots as usize + size as usize * size_of::<T>();
        // SAFETY: a shared mapping at an address of the kernel's choice touches no memory of ours.
        let mapped = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                access,
                MapFlags::SHARED | MapFlags::POPULATE,
                socket,
                at,
            )?
        };
        let mapped_at = NonNull::new(mapped.cast::<u8>()).expect("mmap never returns address 0 here");
        let part = |offset: u64| {
            assert!(offset as usize + size_of::<u32>() <= mapped_bytes, "a ring's index outside its mapping");
            // SAFETY: the offset was just seen to lie inside the mapping.
            unsafe { mapped_at.add(offset as usize) }
        };
        let (producer, consumer) = (part(offsets.producer).cast(), part(offsets.consumer).cast());
        let (mine, theirs) = if we_produce { (producer, consumer) } else { (consumer, producer) };
        let flags = part(offsets.flags).cast();
        let slots = part(offsets.slots).cast();
        let side = PhantomData;
        let mut ring =
            Ring { mapped_at, mapped_bytes, mine, theirs, flags, slots, mask: size - 1, here: 0, there: 0, side };
        ring.here = ring.index(ring.mine).load(Ordering::Relaxed);
        ring.there = ring.index(ring.theirs).load(Ordering::Acquire);
        Ok(ring)
    }

    #[inline(always)]
    fn index(&self, at: NonNull<AtomicU32>) -> &AtomicU32 {
        // SAFETY: `at` is one of the three words that `map` found inside the mapping, 4-aligned by the kernel, alive as long
        // as `self`; both sides touch it atomically.
        unsafe { at.as_ref() }
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> NonNull<T> {
        // SAFETY: masked, the index is below the number of slots, all of which lie inside the mapping.
        unsafe { self.slots.add((index & self.mask) as usize) }
    }

    #[inline(always)]
    fn look(&mut self) {
        self.there = self.index(self.theirs).load(Ordering::Acquire);
    }

    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        self.index(self.mine).store(self.here, Ordering::Release);
    }

    /// Whether the kernel sleeps on this ring until it is called (XDP_RING_NEED_WAKEUP).
    #[inline(always)]
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.index(self.flags).load(Ordering::Relaxed) & 1 != 0
    }

    pub(crate) fn size(&self) -> u32 {
        self.mask + 1
    }
}

impl<T: Copy> Ring<T, Fills> {
    /// A ring that we put into.
    pub(crate) fn producing(socket: BorrowedFd<'_>, at: u64, offsets: Offsets, size: u32) -> io::Result<Self> {
        Ring::map(socket, at, offsets, size, true)
    }

    /// Slots free now; looks at the kernel's index only when fewer than `want` seem to be.
    #[inline(always)]
    pub(crate) fn room(&mut self, want: u32) -> u32 {
        let room = self.size() - self.here.wrapping_sub(self.there);
        if room >= want {
            return room;
        }
        self.look();
        self.size() - self.here.wrapping_sub(self.there)
    }

    /// Puts `value` into the next slot; [`Ring::publish`] shows it to the kernel.
    ///
    /// # Panics
    /// When the ring is full.
    #[inline(always)]
    pub(crate) fn put(&mut self, value: T) {
        assert!(self.here.wrapping_sub(self.there) <= self.mask, "no room in the ring");
        // SAFETY: there is room, so the slot is ours until `publish`; the kernel gave it T's size and alignment.
        unsafe { self.slot(self.here).write(value) };
        self.here = self.here.wrapping_add(1);
    }

    /// Slots that the kernel has not taken yet.
    #[inline(always)]
    pub(crate) fn waiting(&mut self) -> u32 {
        self.look();
        self.here.wrapping_sub(self.there)
    }
}

impl<T: Copy> Ring<T, Drains> {
    /// A ring that we take from.
    pub(crate) fn consuming(socket: BorrowedFd<'_>, at: u64, offsets: Offsets, size: u32) -> io::Result<Self> {
        Ring::map(socket, at, offsets, size, false)
    }

    /// Values that wait, at most the ring's size; looks at the kernel's index only when fewer than `want` seem to.
    #[inline(always)]
    pub(crate) fn waiting(&mut self, want: u32) -> u32 {
        let waiting = self.there.wrapping_sub(self.here);
        if waiting >= want {
            return waiting;
        }
        self.look();
        self.there.wrapping_sub(self.here)
    }

    /// Takes the next value; [`Ring::publish`] gives the slots back to the kernel.
    ///
    /// # Panics
    /// When none waits.
    #[inline(always)]
    pub(crate) fn get(&mut self) -> T {
        assert!(self.there != self.here, "nothing in the ring");
        // SAFETY: a value waits, so the kernel has written the slot and leaves it alone until `publish`; every bit pattern is
        // a T (integers), and it is copied out before it is judged.
        let value = unsafe { self.slot(self.here).read() };
        self.here = self.here.wrapping_add(1);
        value
    }

    /// The value `n` places on, without taking it, when it is known to wait.
    #[inline(always)]
    pub(crate) fn ahead(&self, n: u32) -> Option<T> {
        if self.there.wrapping_sub(self.here) <= n {
            return None;
        }
        // SAFETY: as in `get`.
        Some(unsafe { self.slot(self.here.wrapping_add(n)).read() })
    }
}

impl<T, Side> Drop for Ring<T, Side> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and all its parts go with it.
        let unmapped = unsafe { rustix::mm::munmap(self.mapped_at.as_ptr().cast(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::collections::VecDeque;
    use std::os::fd::AsFd;

    /// Both sides of one ring, as we and the kernel map it, with its indices at `start`.
    fn pair(size: u32, start: u32) -> (Ring<Address, Fills>, Ring<Address, Drains>) {
        let memory = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, 8192).unwrap();
        let offsets = Offsets { producer: 0, consumer: 64, flags: 128, slots: 192 };
        for at in [offsets.producer, offsets.consumer] {
            rustix::io::pwrite(&memory, &start.to_ne_bytes(), at).unwrap();
        }
        let fills = Ring::producing(memory.as_fd(), 0, offsets, size).unwrap();
        let drains = Ring::consuming(memory.as_fd(), 0, offsets, size).unwrap();
        (fills, drains)
    }

    proptest! {
        #[test]
        fn two_sides_agree_with_a_queue(
            power in 0u32..6,
            start in prop_oneof![Just(0), Just(u32::MAX - 3), any::<u32>()],
            steps in prop::collection::vec((any::<bool>(), 0u32..40), 1..100),
        ) {
            let (mut fills, mut drains) = pair(1 << power, start);
            let mut twin = VecDeque::new();
            let mut next = 0;
            for (put, n) in steps {
                if put {
                    let room = (1 << power) - twin.len() as u32;
                    prop_assert_eq!(fills.room(u32::MAX), room);
                    for _ in 0..n.min(room) {
                        fills.put(next);
                        twin.push_back(next);
                        next += 1;
                    }
                    fills.publish();
                } else {
                    prop_assert_eq!(drains.waiting(u32::MAX), twin.len() as u32);
                    prop_assert_eq!(drains.ahead(0), twin.front().copied());
                    prop_assert_eq!(drains.ahead(twin.len() as u32), None);
                    for _ in 0..n.min(twin.len() as u32) {
                        prop_assert_eq!(Some(drains.get()), twin.pop_front());
                    }
                    drains.publish();
                }
                prop_assert_eq!(fills.waiting(), twin.len() as u32);
            }
        }
    }

    #[test]
    fn what_is_not_published_is_not_seen() {
        let (mut fills, mut drains) = pair(4, 0);
        fills.put(1);
        assert_eq!(drains.waiting(1), 0);
        fills.publish();
        assert_eq!(drains.waiting(1), 1);
    }

    #[test]
    fn neither_side_passes_the_other() {
        let (mut fills, mut drains) = pair(2, 0);
        fills.put(1);
        fills.put(2);
        let caught = |work: &mut dyn FnMut()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err();
        assert!(caught(&mut || fills.put(3)));
        assert!(caught(&mut || assert_eq!(drains.get(), 0)));
    }
}
