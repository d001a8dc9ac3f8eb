//! A NIC's table that follows the flow groups.
//!
//! Where the table can be written a flow group is an entry of it, and when a group has moved to another thread its entry is to name
//! that thread's queue. The threads have no privileges, and a write takes the kernel's configuration lock for as long as the driver
//! likes; so a thread leaves a wish in a cell of its own group's, and a thread of whoever runs the dataplane carries wishes out
//! ([`Steering::serve`]), many in one write. No lock, no allocation and no call that waits on the side of the dataplane.
//!
//! A cell goes from idle to wanted by the group's owner, over being written to done or refused by the writer, and back to idle by the
//! owner.
//! How frames keep their order meanwhile is told in `crossing::turning`.
//!
//! The table is trusted no further than it proves true: a thread counts frames that come to its queue though table and hash say
//! another's. When they are more than a small part, when a write fails, or when somebody else has written the table, it is left as it is
//! from then on, and groups move by software alone.

use crate::bell::Bell;
use base::Counter;
use base::balance::{self, IndirectionTable, Turn};
use base::counter::{Figure, Report};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A write is followed by a pause, so that groups that move together share one.
const PAUSE: Duration = Duration::from_millis(10);
/// What the device may still have on its way to the old queue: packets that it hashed before the write and that the driver had not
/// passed on yet, because of interrupt moderation or because its softirq waits for the processor. The device has no fence, so this
/// is a time: at first this one, twice as long whenever something came later still, up to a bound.
const GRACE_US: u32 = 1_000;
const LONGEST_GRACE_US: u32 = 4_000;

const IDLE: u32 = 0;
const WANTED: u32 = 1 << 16;
const WRITING: u32 = 2 << 16;
const DONE: u32 = 3 << 16;
const REFUSED: u32 = 4 << 16;
const STATE: u32 = !0xffff;

const FOLLOWS: u8 = 0;
const FAILED: u8 = 1;
const UNTRUE: u8 = 2;

/// What has become of a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// nothing yet
    Pending,
    /// the table names the queue
    Done,
    /// it will not
    Refused,
}

/// What one thread counts.
#[derive(Debug, Default)]
pub(crate) struct Strays {
    /// frames that came to its queue though the table said another's
    pub(crate) untrue: Counter,
    /// those soon after a write: they were on their way longer than was waited for
    pub(crate) late: Counter,
    /// entries whose old queue's thread did not answer in time
    pub(crate) unanswered: Counter,
}

/// What the threads of an interface and the writer of its table share.
#[derive(Debug)]
pub struct Steering {
    /// the queue of each entry as it was last written; the writer's
    queues: Box<[AtomicU16]>,
    wishes: Box<[AtomicU32]>,
    /// the writer's
    bell: Bell,
    threads: OnceLock<Box<[Arc<Bell>]>>,
    stop: AtomicBool,
    /// there is no writer any more
    gone: AtomicBool,
    state: AtomicU8,
    /// writes that were done
    writes: AtomicU32,
    grace_us: AtomicU32,
    /// entries that were written, and writes that failed; the writer's
    turned: Counter,
    failed: Counter,
    strays: Box<[Strays]>,
    /// the first thread's number among all
    first: usize,
}

impl Steering {
    /// For a table that now is `table`, over the queues of threads `threads` of all, in their order.
    ///
    /// # Errors
    /// The kernel's, when there is no eventfd to have.
    ///
    /// # Panics
    /// When the table names another queue, or is not one entry for each of some flow groups.
    pub fn new(table: &[u16], threads: Range<usize>) -> io::Result<Steering> {
        assert!(table.len().is_power_of_two() && table.len() <= wire::flow::MOST_GROUPS, "{} entries", table.len());
        assert!(table.iter().all(|queue| usize::from(*queue) < threads.len()), "a queue without a thread");
        Ok(Steering {
            queues: table.iter().map(|queue| AtomicU16::new(*queue)).collect(),
            wishes: table.iter().map(|_| AtomicU32::new(IDLE)).collect(),
            bell: Bell::new()?,
            threads: OnceLock::new(),
            stop: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            state: AtomicU8::new(FOLLOWS),
            writes: AtomicU32::new(0),
            grace_us: AtomicU32::new(GRACE_US),
            turned: Counter::default(),
            failed: Counter::default(),
            strays: threads.clone().map(|_| Strays::default()).collect(),
            first: threads.start,
        })
    }

    /// For a device that collects frames for so long before it interrupts: twice that is waited for, beside the usual.
    #[must_use]
    pub fn with_coalescing(self, coalescing: Duration) -> Steering {
        let us = u32::try_from(2 * coalescing.as_micros()).unwrap_or(u32::MAX);
        self.grace_us.store(GRACE_US.saturating_add(us).min(LONGEST_GRACE_US), Ordering::Relaxed);
        self
    }

    /// Entries of the table.
    pub fn entries(&self) -> usize {
        self.queues.len()
    }

    /// The queue of an entry, as it was last written.
    #[inline]
    pub fn queue(&self, entry: u16) -> u16 {
        self.queues[usize::from(entry)].load(Ordering::Acquire)
    }

    /// Whether the table follows the groups still.
    #[inline]
    pub fn follows(&self) -> bool {
        self.state.load(Ordering::Relaxed) == FOLLOWS
    }

    /// Writes what is wished for, by `table`, until [`Steering::stop`]. One thread does this.
    pub fn serve(&self, table: &mut dyn IndirectionTable) {
        // whatever becomes of this thread, nobody waits for it
        let _leaves = Leaves(self);
        let (mut turns, mut said) = (Vec::new(), false);
        while !self.stop.load(Ordering::Acquire) {
            let wrote = self.step(table, &mut turns, &mut said);
            self.bell.fall_asleep();
            if !self.has_work(said) || wrote {
                self.sleep(wrote.then_some(PAUSE));
            }
            self.bell.wake_up();
        }
    }

    /// One look at all wishes; whether something was written.
    pub(crate) fn step(&self, table: &mut dyn IndirectionTable, turns: &mut Vec<Turn>, said: &mut bool) -> bool {
        self.take_wishes(turns);
        let mut wrote = false;
        if !turns.is_empty() && self.follows() {
            match table.write(turns) {
                Ok(()) => {
                    turns
                        .iter()
                        .for_each(|turn| self.queues[usize::from(turn.entry)].store(turn.queue, Ordering::Release));
                    self.writes.fetch_add(1, Ordering::Release);
                    self.turned.add(turns.len() as u64);
                    wrote = true;
                }
                Err(why) => {
                    self.failed.add(1);
                    self.give_up(FAILED);
                    *said = true;
                    table.given_up(&why);
                }
            }
        }
        self.answer(turns, if wrote { DONE } else { REFUSED });
        if !self.follows() && !std::mem::replace(said, true) {
            table.given_up(balance::UNTRUE);
        }
        wrote
    }

    /// The writer's: what is wished for, to be written now.
    pub(crate) fn take_wishes(&self, turns: &mut Vec<Turn>) {
        turns.clear();
        for (entry, cell) in self.wishes.iter().enumerate() {
            let wish = cell.load(Ordering::Acquire);
            if matches!(wish & STATE, WANTED | WRITING) {
                let turn = Turn { entry: entry as u16, queue: wish as u16 };
                cell.store(WRITING | u32::from(turn.queue), Ordering::Release);
                turns.push(turn);
            }
        }
    }

    fn answer(&self, turns: &[Turn], answer: u32) {
        for turn in turns {
            self.wishes[usize::from(turn.entry)].store(answer, Ordering::Release);
        }
        // the thread of a queue has its number
        let bells = self.threads.get().into_iter().flat_map(|bells| bells.iter().enumerate());
        for (_, bell) in bells.filter(|(thread, _)| turns.iter().any(|turn| usize::from(turn.queue) == *thread)) {
            bell.ring();
        }
    }

    fn has_work(&self, said: bool) -> bool {
        let wanted = |wish: &AtomicU32| wish.load(Ordering::Relaxed) & STATE == WANTED;
        self.stop.load(Ordering::Acquire) || !self.follows() && !said || self.wishes.iter().any(wanted)
    }

    fn sleep(&self, most: Option<Duration>) {
        if let Some(most) = most {
            // wishes that come meanwhile share the next write
            std::thread::sleep(most);
            return;
        }
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        // an interrupted sleep is a short one
        let _ = poll(&mut [PollFd::from_borrowed_fd(self.bell.descriptor(), PollFlags::IN)], Some(&second));
        self.bell.silence();
    }

    /// Ends [`Steering::serve`].
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
    }

    fn give_up(&self, why: u8) {
        // the first reason counts
        let _ = self.state.compare_exchange(FOLLOWS, why, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The threads that are rung for when their wishes are answered. The first call counts.
    pub(crate) fn set_bells(&self, bells: &[Arc<Bell>]) {
        assert_eq!(bells.len(), self.strays.len(), "the threads that it was made for");
        let _ = self.threads.set(bells.into());
    }

    /// The owner's: leaves a wish for its group's entry to name `queue`; the writer is woken by [`Steering::wake`].
    pub(crate) fn wish(&self, Turn { entry, queue }: Turn) {
        self.wishes[usize::from(entry)].store(WANTED | u32::from(queue), Ordering::Release);
    }

    /// The owner's: what has become of its wish; an answer is given once.
    pub(crate) fn answered(&self, entry: u16) -> Answer {
        let wish = &self.wishes[usize::from(entry)];
        let answer = match wish.load(Ordering::Acquire) & STATE {
            DONE => Answer::Done,
            REFUSED => Answer::Refused,
            // it was left when the writer had looked for the last time
            _ if self.gone.load(Ordering::Acquire) => Answer::Refused,
            _ => return Answer::Pending,
        };
        wish.store(IDLE, Ordering::Release);
        answer
    }

    /// Has the writer look.
    pub(crate) fn wake(&self) {
        self.bell.wake_if_asleep();
    }

    /// Writes that were done.
    #[inline]
    pub(crate) fn writes(&self) -> u32 {
        self.writes.load(Ordering::Acquire)
    }

    /// For how long frames may come to the old queue after a write.
    pub(crate) fn grace(&self) -> Duration {
        Duration::from_micros(self.grace_us.load(Ordering::Relaxed).into())
    }

    /// They came later than that.
    pub(crate) fn lengthen_grace(&self) {
        let longer = (self.grace_us.load(Ordering::Relaxed) * 2).min(LONGEST_GRACE_US);
        self.grace_us.store(longer, Ordering::Relaxed);
    }

    /// A thread's: frames come where they should not.
    #[cold]
    pub(crate) fn is_untrue(&self) {
        self.give_up(UNTRUE);
        self.bell.ring();
    }

    /// Whether an entry may be written just now.
    pub(crate) fn is_writing(&self, entry: u16) -> bool {
        self.wishes[usize::from(entry)].load(Ordering::Acquire) & STATE == WRITING
    }

    /// One thread's counters.
    pub(crate) fn strays(&self, thread: u16) -> &Strays {
        &self.strays[usize::from(thread)]
    }
}

/// Refuses what is wished for when there is no writer any more.
struct Leaves<'a>(&'a Steering);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.give_up(FAILED);
        let mut turns = Vec::new();
        self.0.take_wishes(&mut turns);
        self.0.answer(&turns, REFUSED);
        self.0.gone.store(true, Ordering::Release);
        self.0.threads.get().into_iter().flatten().for_each(|bell| bell.ring());
    }
}

impl Report for Steering {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let mut count = |name, help, value| show(Figure { name, help, gauge: false, labels: &[], value });
        count("dataplane_nic_writes_total", "writes of the NIC's table", u64::from(self.writes()));
        count("dataplane_nic_turned_entries_total", "entries of the NIC's table that were written", self.turned.get());
        count("dataplane_nic_failed_writes_total", "writes of the NIC's table that failed", self.failed.get());
        let mut gauge = |name, help, value| show(Figure { name, help, gauge: true, labels: &[], value });
        gauge("dataplane_nic_follows", "1 while the NIC's table follows the flow groups", u64::from(self.follows()));
        let grace = "how long frames may come to an old queue after a write";
        gauge("dataplane_nic_grace_microseconds", grace, self.grace().as_micros() as u64);
        for (thread, strays) in self.strays.iter().enumerate() {
            let thread = (self.first + thread).to_string();
            let labels = [("thread", thread.as_str())];
            let mut count = |name, help, counter: &Counter| {
                show(Figure { name, help, gauge: false, labels: &labels, value: counter.get() })
            };
            let untrue = "frames that came to another queue than the NIC's table says";
            count("dataplane_nic_untrue_frames_total", untrue, &strays.untrue);
            let late = "frames that came to an old queue later than was waited for";
            count("dataplane_nic_late_frames_total", late, &strays.late);
            let unanswered = "entries whose old queue's thread did not answer in time";
            count("dataplane_nic_unanswered_total", unanswered, &strays.unanswered);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that refuses from some write on.
    #[derive(Default)]
    struct Fake {
        written: Vec<Vec<Turn>>,
        most: usize,
        said: Vec<String>,
    }

    impl IndirectionTable for Fake {
        fn write(&mut self, turns: &[Turn]) -> Result<(), String> {
            if self.written.len() == self.most {
                return Err("it is locked".into());
            }
            self.written.push(turns.to_vec());
            Ok(())
        }
        fn given_up(&mut self, why: &str) {
            self.said.push(why.to_owned());
        }
    }

    fn turn(entry: u16, queue: u16) -> Turn {
        Turn { entry, queue }
    }

    #[test]
    fn wishes_share_a_write_and_a_failure_ends_it_and_is_said_once() {
        let steering = Steering::new(&[0, 1, 0, 1], 0..2).unwrap();
        let mut table = Fake { most: 1, ..Fake::default() };
        let (mut turns, mut said) = (Vec::new(), false);
        steering.wish(turn(0, 1));
        steering.wish(turn(3, 0));
        assert_eq!(steering.answered(0), Answer::Pending);
        assert!(steering.step(&mut table, &mut turns, &mut said));
        assert_eq!(table.written, [vec![turn(0, 1), turn(3, 0)]]);
        assert_eq!([0, 1, 2, 3].map(|entry| steering.queue(entry)), [1, 1, 0, 0]);
        assert_eq!((steering.answered(0), steering.answered(0)), (Answer::Done, Answer::Pending));
        assert_eq!(steering.answered(3), Answer::Done);
        assert!(!steering.step(&mut table, &mut turns, &mut said));
        for round in 0..2 {
            steering.wish(turn(2, 1));
            assert!(!steering.step(&mut table, &mut turns, &mut said), "round {round}");
            assert_eq!((steering.answered(2), steering.queue(2)), (Answer::Refused, 0));
        }
        assert!(!steering.follows());
        assert_eq!((table.written.len(), &*table.said), (1, &["it is locked".to_owned()][..]));
        assert_eq!((steering.turned.get(), steering.failed.get()), (2, 1));
    }

    #[test]
    fn a_writer_that_ends_leaves_nobody_waiting() {
        struct Breaks;
        impl IndirectionTable for Breaks {
            fn write(&mut self, _: &[Turn]) -> Result<(), String> {
                panic!("a bug")
            }
            fn given_up(&mut self, _: &str) {}
        }
        let steering = Steering::new(&[0, 1], 0..2).unwrap();
        steering.wish(turn(0, 1));
        let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| steering.serve(&mut Breaks)));
        assert!(broken.is_err());
        assert_eq!((steering.answered(0), steering.follows()), (Answer::Refused, false));
        // who had looked just before
        steering.wish(turn(0, 1));
        assert_eq!(steering.answered(0), Answer::Refused);
    }

    #[test]
    fn what_is_wished_for_while_the_writer_sleeps_wakes_it() {
        let steering = Arc::new(Steering::new(&[0, 1], 0..2).unwrap());
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut table = Fake { most: usize::MAX, ..Fake::default() };
                steering.serve(&mut table);
                table.written
            });
            for queue in [1, 0, 1] {
                steering.wish(turn(0, queue));
                steering.wake();
                while steering.answered(0) == Answer::Pending {
                    std::thread::yield_now();
                }
                assert_eq!(steering.queue(0), queue);
            }
            steering.stop();
            assert_eq!(writer.join().unwrap(), [[turn(0, 1)], [turn(0, 0)], [turn(0, 1)]]);
        });
    }

    #[test]
    fn a_table_that_is_untrue_is_left_alone_and_that_is_said() {
        let steering = Steering::new(&[0, 1], 0..2).unwrap();
        let mut table = Fake { most: usize::MAX, ..Fake::default() };
        let (mut turns, mut said) = (Vec::new(), false);
        steering.is_untrue();
        steering.wish(turn(0, 1));
        for _ in 0..2 {
            assert!(!steering.step(&mut table, &mut turns, &mut said));
        }
        assert_eq!((steering.answered(0), table.said.len()), (Answer::Refused, 1));
        assert!(table.said[0].contains("other queues"));
    }
}
