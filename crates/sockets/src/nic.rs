//! A NIC's table that follows the flow groups, over kernel sockets.
//!
//! A group is an entry of the table then. When one has moved to another thread, its entry is to name a queue whose packets arrive on that
//! thread's processor, so that the kernel's work for them moves there, too. Which queue that is nobody says: it is learned from where
//! packets of each entry arrive, which the selector notes. Nothing is lost while an entry is written: a connection is served wherever its
//! packets arrive.
//!
//! The threads write nothing themselves: a thread of the engine's does ([`Writer`]), by an [`IndirectionTable`] that may wait as long as a
//! driver likes.
//!
//! The table is trusted no further than it proves true: nothing is written before packets of many entries have arrived on different
//! processors, those of a queue on one. When packets of an entry arrive where those of its queue do not, or a write fails, the table is let
//! go, and groups move by the selector alone.

use base::Counter;
use base::balance::{IndirectionTable, Turn, UNTRUE};
use base::counter::{Figure, Report};
use bpf::NicHash;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use wire::flow::{Groups, Ports};
use wire::toeplitz;

/// How a NIC spreads flows over its queues.
#[derive(Clone, Debug)]
pub struct NicSpread {
    /// the key of its Toeplitz hash
    pub key: toeplitz::Key,
    /// of which packets it hashes the ports
    pub ports: Ports,
    /// the queue of each entry of its table, a power of two of them
    pub table: Vec<u16>,
}

impl NicSpread {
    /// The groups that are entries of the table.
    pub(crate) fn groups(&self) -> Groups {
        Groups::toeplitz(self.table.len(), &self.key, self.ports)
    }

    /// The same for the selector.
    pub(crate) fn hash(&self) -> NicHash {
        let Ports { tcp4, udp4, tcp6, udp6 } = self.ports;
        let shares = toeplitz::Table::new(&self.key).shares().as_flattened().to_vec();
        NicHash { shares, ports: [tcp4, udp4, tcp6, udp6] }
    }
}

/// What has become of a NIC's table.
#[derive(Debug, Default)]
pub struct NicCounters {
    follows: Counter,
    writes: Counter,
    turned: Counter,
    failed: Counter,
}

impl Report for NicCounters {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let mut one = |name, help, counter: &Counter| {
            let gauge = name == "sockets_nic_follows";
            show(Figure { name, help, gauge, labels: &[], value: counter.get() });
        };
        one("sockets_nic_follows", "1 while the NIC's table follows the flow groups", &self.follows);
        one("sockets_nic_writes_total", "writes of the NIC's table", &self.writes);
        one("sockets_nic_turned_entries_total", "entries of the NIC's table that were written", &self.turned);
        one("sockets_nic_failed_writes_total", "writes of the NIC's table that failed", &self.failed);
    }
}

/// What the writer is told.
enum Word {
    Turn(Vec<Turn>),
    Untrue,
}

/// The thread that writes the table. It ends when its [`Orders`] are dropped, and with it the table.
#[derive(Debug)]
pub(crate) struct Writer {
    join: Option<JoinHandle<()>>,
}

/// The threads' end.
#[derive(Debug)]
pub(crate) struct Orders {
    words: Sender<Word>,
    written: Receiver<Result<Vec<Turn>, ()>>,
}

impl Writer {
    /// Starts it.
    ///
    /// # Errors
    /// The kernel's, when it has no thread to give.
    pub(crate) fn start(
        mut table: Box<dyn IndirectionTable + Send>,
        counters: Arc<NicCounters>,
    ) -> io::Result<(Writer, Orders)> {
        let ((words, told), (answers, written)) = (channel(), channel());
        let join = std::thread::Builder::new().name("nic-table".into()).spawn(move || {
            let _follows = Follows::begin(&counters);
            while let Ok(word) = told.recv() {
                let why = match word {
                    Word::Turn(turns) => match table.write(&turns) {
                        Ok(()) => {
                            counters.writes.add(1);
                            counters.turned.add(turns.len() as u64);
                            // nobody is there to hear it when the engine ends
                            let _ = answers.send(Ok(turns));
                            continue;
                        }
                        Err(why) => {
                            counters.failed.add(1);
                            why
                        }
                    },
                    Word::Untrue => UNTRUE.to_owned(),
                };
                table.given_up(&why);
                // as above
                let _ = answers.send(Err(()));
                return;
            }
        })?;
        Ok((Writer { join: Some(join) }, Orders { words, written }))
    }

    /// Waits for its end.
    pub(crate) fn join(&mut self) {
        if let Some(join) = self.join.take() {
            // a panic there was shown by the panic hook
            let _ = join.join();
        }
    }
}

/// Tells that the table follows, until the writer ends, in whatever way.
struct Follows<'a>(&'a NicCounters);

impl Follows<'_> {
    fn begin(counters: &NicCounters) -> Follows<'_> {
        counters.follows.set(1);
        Follows(counters)
    }
}

impl Drop for Follows<'_> {
    fn drop(&mut self) {
        self.0.follows.set(0);
    }
}

/// Groups that have been seen before the table is judged by them, the part of them that may have been seen where they should not, and how
/// many looks in a row must say so.
const JUDGED_GROUPS: usize = 16;
const UNTRUE_PART: usize = 8;
const UNTRUE_LOOKS: u32 = 3;
/// A queue whose place is known is elsewhere from when so many of its groups say so.
const MOVED_GROUPS: usize = 4;

/// The table as the threads know it.
#[derive(Debug)]
pub(crate) struct Following {
    /// the queue of each entry as it was last written
    queues: Vec<u16>,
    /// what an entry is to be written to, from when the writer is told until it is done
    wanted: Vec<Option<u16>>,
    /// by queue, the thread on whose processor its packets arrive
    threads: Vec<Option<usize>>,
    /// a look has found the table true, and looks in a row have found it untrue
    proven: bool,
    untrue: u32,
    /// None: it is as it is, and nobody writes it
    orders: Option<Orders>,
}

/// What where groups arrive says of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// nothing
    Silent,
    /// packets come by it
    True,
    /// they do not, which may be chance
    Doubtful,
    /// they do not
    Untrue,
}

/// What the writer has done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// entries that name their new queue now
    pub(crate) turned: Vec<usize>,
    /// the table is not to be trusted, or not written any more
    pub(crate) over: bool,
}

impl Following {
    pub(crate) fn new(spread: &NicSpread) -> Following {
        let queues = spread.table.clone();
        let count = queues.iter().max().map_or(0, |most| usize::from(*most) + 1);
        let (wanted, threads) = (vec![None; queues.len()], vec![None; count]);
        Following { queues, wanted, threads, proven: false, untrue: 0, orders: None }
    }

    /// From now on it is written, by who takes these orders.
    pub(crate) fn write_by(&mut self, orders: Orders) {
        self.orders = Some(orders);
    }

    /// What the writer has done since the last look.
    pub(crate) fn hear(&mut self) -> Found {
        let mut found = Found::default();
        while let Some(orders) = &self.orders {
            let turns = match orders.written.try_recv() {
                Ok(Ok(turns)) => turns,
                Err(TryRecvError::Empty) => break,
                // it has said why, or has panicked
                Ok(Err(())) | Err(TryRecvError::Disconnected) => {
                    found.over = true;
                    break;
                }
            };
            for Turn { entry, queue } in turns {
                let entry = usize::from(entry);
                (self.queues[entry], self.wanted[entry]) = (queue, None);
                found.turned.push(entry);
            }
        }
        found
    }

    /// Takes in on which thread's processor each group was last seen to arrive, of so many threads; what that says of the table. Only what
    /// is true is learned from, and only while packets arrive on several processors: on one, any table would seem true.
    pub(crate) fn learn(&mut self, seen: &[Option<usize>], threads: usize) -> Verdict {
        // what is being written says nothing
        let known = || (0..seen.len()).filter(|group| self.wanted[*group].is_none());
        let arrived = |group: usize| seen[group].map(|thread| (usize::from(self.queues[group]), thread));
        let mut votes = vec![vec![0usize; threads]; self.threads.len()];
        known().filter_map(arrived).for_each(|(queue, thread)| votes[queue][thread] += 1);
        let homes: Vec<Option<(usize, usize)>> = votes.iter().map(|votes| home(votes)).collect();
        let all: usize = votes.iter().flatten().sum();
        let at_home: usize = homes.iter().flatten().map(|(_, votes)| votes).sum();
        if all < JUDGED_GROUPS {
            self.untrue = 0;
            return Verdict::Silent;
        }
        if (all - at_home) * UNTRUE_PART > all {
            return self.doubt();
        }
        self.untrue = 0;
        let first = homes.iter().flatten().next().map(|(thread, _)| *thread);
        if homes.iter().flatten().all(|(thread, _)| Some(*thread) == first) {
            return Verdict::Silent;
        }
        self.proven = true;
        for (thread, home) in self.threads.iter_mut().zip(homes) {
            if let Some((at, _)) = home.filter(|(_, votes)| thread.is_none() || *votes >= MOVED_GROUPS) {
                *thread = Some(at);
            }
        }
        Verdict::True
    }

    fn doubt(&mut self) -> Verdict {
        self.untrue += 1;
        if self.untrue < UNTRUE_LOOKS {
            return Verdict::Doubtful;
        }
        if let Some(orders) = &self.orders {
            // it ends by that
            let _ = orders.words.send(Word::Untrue);
        }
        Verdict::Untrue
    }

    /// Where a group's packets arrive by the table, as far as is known.
    pub(crate) fn thread_of(&self, group: usize) -> Option<usize> {
        self.threads[usize::from(self.queues[group])]
    }

    /// Has groups' packets arrive where their new owners are: as soon as it is known which queue that is, and it can be written.
    pub(crate) fn turn(&mut self, groups: impl Iterator<Item = (usize, usize)>) {
        let Some(orders) = self.orders.as_ref().filter(|_| self.proven) else { return };
        let mut turns = Vec::new();
        for (group, owner) in groups {
            if self.wanted[group].is_some() || self.threads[usize::from(self.queues[group])] == Some(owner) {
                continue;
            }
            let Some(queue) = self.threads.iter().position(|thread| *thread == Some(owner)) else { continue };
            self.wanted[group] = Some(queue as u16);
            turns.push(Turn { entry: group as u16, queue: queue as u16 });
        }
        if !turns.is_empty() {
            // a writer that has ended has said why, and is heard
            let _ = orders.words.send(Word::Turn(turns));
        }
    }
}

/// The thread at which most of a queue's groups arrived, and how many.
fn home(votes: &[usize]) -> Option<(usize, usize)> {
    votes.iter().copied().enumerate().max_by_key(|(_, votes)| *votes).filter(|(_, votes)| *votes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::Duration;

    #[derive(Clone, Default)]
    struct Fake {
        written: Arc<Mutex<Vec<Vec<Turn>>>>,
        said: Arc<Mutex<Vec<String>>>,
        refuses: bool,
    }

    impl IndirectionTable for Fake {
        fn write(&mut self, turns: &[Turn]) -> Result<(), String> {
            if self.refuses {
                return Err("it is locked".into());
            }
            self.written.lock().unwrap().push(turns.to_vec());
            Ok(())
        }
        fn given_up(&mut self, why: &str) {
            self.said.lock().unwrap().push(why.to_owned());
        }
    }

    fn spread(table: &[u16]) -> NicSpread {
        NicSpread { key: toeplitz::Key::MICROSOFT, ports: Ports::ALL, table: table.to_vec() }
    }

    fn following(fake: &Fake, table: &[u16]) -> (Writer, Arc<NicCounters>, Following) {
        let counters = Arc::<NicCounters>::default();
        let (writer, orders) = Writer::start(Box::new(fake.clone()), counters.clone()).unwrap();
        let mut following = Following::new(&spread(table));
        following.write_by(orders);
        (writer, counters, following)
    }

    /// Looks until something is found.
    fn hear(following: &mut Following) -> Found {
        let begun = std::time::Instant::now();
        loop {
            let found = following.hear();
            if found != Found::default() {
                return found;
            }
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sixteen entries of three queues in turn, the first of which was not seen; queue 1 arrives at thread 0, and queue 2 at thread 1.
    fn in_turn() -> (Vec<u16>, Vec<Option<usize>>) {
        let table: Vec<u16> = (0..24).map(|entry| entry % 3).collect();
        let seen = table.iter().map(|queue| usize::from(*queue).checked_sub(1)).collect();
        (table, seen)
    }

    #[test]
    fn entries_are_turned_to_the_queue_that_arrives_at_the_new_owner() {
        let fake = Fake::default();
        let (table, seen) = in_turn();
        let (mut writer, counters, mut following) = following(&fake, &table);
        following.turn([(0, 1)].into_iter());
        assert_eq!(following.hear(), Found::default(), "no queue is known");
        assert_eq!(following.learn(&seen, 2), Verdict::True);
        assert_eq!([0, 1, 2, 3].map(|group| following.thread_of(group)), [None, Some(0), Some(1), None]);
        following.turn([(0, 1), (1, 1), (2, 1)].into_iter());
        following.turn([(0, 1), (1, 1)].into_iter());
        assert_eq!(hear(&mut following), Found { turned: vec![0, 1], over: false });
        assert_eq!(*fake.written.lock().unwrap(), [[Turn { entry: 0, queue: 2 }, Turn { entry: 1, queue: 2 }]]);
        assert_eq!(following.thread_of(0), Some(1));
        drop(following);
        writer.join();
        assert_eq!((counters.writes.get(), counters.turned.get(), counters.follows.get()), (1, 2, 0));
        assert_eq!(fake.said.lock().unwrap().len(), 0);
    }

    #[test]
    fn nothing_is_written_before_the_table_has_proven_true() {
        let fake = Fake::default();
        let (table, seen) = in_turn();
        let (mut writer, counters, mut following) = following(&fake, &table);
        // fifteen groups; and all of them, on one processor
        let fewer: Vec<_> = seen.iter().take(23).chain([&None]).copied().collect();
        for seen in [fewer, vec![Some(1); 24]] {
            assert_eq!(following.learn(&seen, 2), Verdict::Silent);
            following.turn([(1, 1), (2, 0)].into_iter());
        }
        assert_eq!(following.learn(&seen, 2), Verdict::True);
        following.turn([(1, 1)].into_iter());
        assert_eq!(hear(&mut following).turned, [1]);
        // nor is anything learned of that later: queue 2 stays where it is
        assert_eq!(following.learn(&vec![Some(0); 24], 2), Verdict::Silent);
        assert_eq!(following.thread_of(2), Some(1));
        // three groups are not enough for that, four are
        let moved = |count| {
            let mut seen = seen.clone();
            // it is queue 2's by now
            seen[1] = None;
            let of_two = (0..24).filter(|entry| entry % 3 == 2);
            of_two.enumerate().for_each(|(n, entry)| seen[entry] = (n < count).then_some(0));
            (0..24).filter(|entry| entry % 3 == 0).for_each(|entry| seen[entry] = Some(1));
            seen
        };
        for (count, expected) in [(3, 1), (4, 0)] {
            assert_eq!(following.learn(&moved(count), 2), Verdict::True);
            assert_eq!(following.thread_of(2), Some(expected), "{count}");
        }
        drop(following);
        writer.join();
        assert_eq!(counters.turned.get(), 1);
    }

    #[test]
    fn a_write_that_fails_is_the_last() {
        let fake = Fake { refuses: true, ..Fake::default() };
        let (table, seen) = in_turn();
        let (mut writer, counters, mut following) = following(&fake, &table);
        assert_eq!(following.learn(&seen, 2), Verdict::True);
        following.turn([(1, 1)].into_iter());
        assert!(hear(&mut following).over);
        writer.join();
        assert_eq!((counters.failed.get(), counters.follows.get()), (1, 0));
        assert_eq!(*fake.said.lock().unwrap(), ["it is locked"]);
    }

    #[test]
    fn a_writer_that_panics_is_heard() {
        struct Breaks;
        impl IndirectionTable for Breaks {
            fn write(&mut self, _: &[Turn]) -> Result<(), String> {
                panic!("a bug")
            }
            fn given_up(&mut self, _: &str) {}
        }
        let (table, seen) = in_turn();
        let counters = Arc::<NicCounters>::default();
        let (mut writer, orders) = Writer::start(Box::new(Breaks), counters.clone()).unwrap();
        let mut following = Following::new(&spread(&table));
        following.write_by(orders);
        following.learn(&seen, 2);
        following.turn([(1, 1)].into_iter());
        assert!(hear(&mut following).over);
        writer.join();
        assert_eq!(counters.follows.get(), 0);
    }

    #[test]
    fn a_table_by_which_packets_do_not_come_is_given_up_and_said_once() {
        let fake = Fake::default();
        let table: Vec<u16> = (0..32).map(|entry| entry % 2).collect();
        let (mut writer, counters, mut following) = following(&fake, &table);
        // both queues arrive at both threads
        let seen: Vec<_> = (0..32).map(|entry| Some(entry / 2 % 2)).collect();
        let mut learn = |seen: &[_]| following.learn(seen, 2);
        assert_eq!([learn(&seen), learn(&seen)], [Verdict::Doubtful; 2]);
        assert_eq!(learn(&[None; 32]), Verdict::Silent);
        assert_eq!([learn(&seen), learn(&seen)], [Verdict::Doubtful; 2]);
        assert_eq!(learn(&seen), Verdict::Untrue);
        writer.join();
        assert_eq!(*fake.said.lock().unwrap(), [UNTRUE]);
        assert_eq!(counters.follows.get(), 0);
        // one in sixteen is somebody's late packet
        let (_writer, _, mut following) = self::following(&fake, &table);
        let mut seen: Vec<_> = (0..32).map(|entry| Some(entry % 2)).collect();
        (seen[0], seen[3]) = (Some(1), Some(0));
        assert!((0..10).all(|_| following.learn(&seen, 2) == Verdict::True));
        drop(following);
    }

    #[test]
    fn a_nic_that_nobody_writes_is_learned_all_the_same() {
        let table: Vec<u16> = (0..16).map(|entry| entry % 2).collect();
        let mut following = Following::new(&spread(&table));
        let seen: Vec<_> = (0..16).map(|entry| Some(1 - entry % 2)).collect();
        assert_eq!(following.learn(&seen, 2), Verdict::True);
        following.turn([(0, 0)].into_iter());
        assert_eq!((following.hear(), following.thread_of(0)), (Found::default(), Some(1)));
    }
}
