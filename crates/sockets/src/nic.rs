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
use std::sync::mpsc::{Receiver, Sender, channel};
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
            counters.follows.set(1);
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
                counters.follows.set(0);
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

/// Groups that have been seen before the table is judged by them, the part of them that may have been seen where they should not, and how
/// many looks in a row must say so.
const JUDGED_GROUPS: usize = 16;
const UNTRUE_PART: usize = 8;
const UNTRUE_LOOKS: u32 = 3;

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

/// What a look has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// entries that name their new queue now
    pub(crate) turned: Vec<usize>,
    /// the table is not to be trusted, or not written any more
    pub(crate) over: bool,
}

impl Following {
    pub(crate) fn new(spread: &NicSpread, orders: Option<Orders>) -> Following {
        let queues = spread.table.clone();
        let count = queues.iter().max().map_or(0, |most| usize::from(*most) + 1);
        let (wanted, threads) = (vec![None; queues.len()], vec![None; count]);
        Following { queues, wanted, threads, proven: false, untrue: 0, orders }
    }

    pub(crate) fn obeyed_by(&mut self, orders: Orders) {
        self.orders = Some(orders);
    }

    /// What the writer has done since the last look.
    pub(crate) fn hear(&mut self) -> Found {
        let mut found = Found::default();
        while let Some(Ok(written)) = self.orders.as_ref().map(|orders| orders.written.try_recv()) {
            let Ok(turns) = written else {
                found.over = true;
                break;
            };
            for Turn { entry, queue } in turns {
                let entry = usize::from(entry);
                (self.queues[entry], self.wanted[entry]) = (queue, None);
                found.turned.push(entry);
            }
        }
        found
    }

    /// Takes in on which thread's processor each group was last seen to arrive; whether the table is true still. `threads`: how many.
    pub(crate) fn learn(&mut self, seen: &[Option<usize>], threads: usize) -> bool {
        // what is being written says nothing
        let known = || (0..seen.len()).filter(|group| self.wanted[*group].is_none());
        let arrived = |group: usize| seen[group].map(|thread| (usize::from(self.queues[group]), thread));
        let mut votes = vec![vec![0usize; threads]; self.threads.len()];
        known().filter_map(arrived).for_each(|(queue, thread)| votes[queue][thread] += 1);
        let (all, at_home) = votes.iter().fold((0, 0), |(all, at_home), votes| {
            (all + votes.iter().sum::<usize>(), at_home + votes.iter().max().copied().unwrap_or(0))
        });
        for (thread, votes) in self.threads.iter_mut().zip(&votes) {
            let most = votes.iter().enumerate().max_by_key(|(_, votes)| **votes).filter(|(_, votes)| **votes > 0);
            *thread = most.map(|(thread, _)| thread).or(*thread);
        }
        let is_true = (all - at_home) * UNTRUE_PART <= all;
        self.untrue = if all >= JUDGED_GROUPS && !is_true { self.untrue + 1 } else { 0 };
        // where all arrive on one processor, any table would seem true
        let apart = self.threads.iter().flatten().any(|thread| self.threads.iter().flatten().any(|of| of != thread));
        self.proven |= all >= JUDGED_GROUPS && is_true && apart;
        if self.untrue == UNTRUE_LOOKS
            && let Some(orders) = &self.orders
        {
            // it ends by that
            let _ = orders.words.send(Word::Untrue);
        }
        self.untrue < UNTRUE_LOOKS
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
        (writer, counters, Following::new(&spread(table), Some(orders)))
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
        assert!(following.learn(&seen, 2));
        assert_eq!([0, 1, 2, 3].map(|group| following.thread_of(group)), [None, Some(0), Some(1), None]);
        following.turn([(0, 1), (1, 1), (2, 1)].into_iter());
        following.turn([(0, 1), (1, 1)].into_iter());
        assert_eq!(hear(&mut following), Found { turned: vec![0, 1], over: false });
        assert_eq!(*fake.written.lock().unwrap(), [[Turn { entry: 0, queue: 2 }, Turn { entry: 1, queue: 2 }]]);
        assert_eq!(following.thread_of(0), Some(1));
        drop(following);
        writer.join();
        assert_eq!((counters.writes.get(), counters.turned.get(), counters.follows.get()), (1, 2, 1));
        assert_eq!(fake.said.lock().unwrap().len(), 0);
    }

    #[test]
    fn nothing_is_written_before_the_table_has_proven_true() {
        let fake = Fake::default();
        let (table, seen) = in_turn();
        let (mut writer, counters, mut following) = following(&fake, &table);
        // fifteen groups; and all of them, on one processor
        let fewer: Vec<_> = seen.iter().take(23).chain([&None]).copied().collect();
        assert!(following.learn(&fewer, 2) && following.learn(&vec![Some(1); 24], 2));
        following.turn([(1, 1), (2, 0)].into_iter());
        assert!(following.learn(&seen, 2));
        following.turn([(1, 1)].into_iter());
        assert_eq!(hear(&mut following).turned, [1]);
        drop(following);
        writer.join();
        assert_eq!(counters.turned.get(), 1);
    }

    #[test]
    fn a_write_that_fails_is_the_last() {
        let fake = Fake { refuses: true, ..Fake::default() };
        let (table, seen) = in_turn();
        let (mut writer, counters, mut following) = following(&fake, &table);
        assert!(following.learn(&seen, 2));
        following.turn([(1, 1)].into_iter());
        assert!(hear(&mut following).over);
        writer.join();
        assert_eq!((counters.failed.get(), counters.follows.get()), (1, 0));
        assert_eq!(*fake.said.lock().unwrap(), ["it is locked"]);
    }

    #[test]
    fn a_table_by_which_packets_do_not_come_is_given_up_and_said_once() {
        let fake = Fake::default();
        let table: Vec<u16> = (0..32).map(|entry| entry % 2).collect();
        let (mut writer, counters, mut following) = following(&fake, &table);
        // both queues arrive at both threads
        let seen: Vec<_> = (0..32).map(|entry| Some(entry / 2 % 2)).collect();
        assert!(following.learn(&seen, 2) && following.learn(&seen, 2));
        assert!(following.learn(&[None; 32], 2), "nothing says nothing");
        assert!(following.learn(&seen, 2) && following.learn(&seen, 2) && !following.learn(&seen, 2));
        writer.join();
        assert_eq!(*fake.said.lock().unwrap(), [UNTRUE]);
        assert_eq!(counters.follows.get(), 0);
        // one in sixteen is somebody's late packet
        let (_writer, _, mut following) = self::following(&fake, &table);
        let mut seen: Vec<_> = (0..32).map(|entry| Some(entry % 2)).collect();
        (seen[0], seen[3]) = (Some(1), Some(0));
        assert!((0..10).all(|_| following.learn(&seen, 2)));
        drop(following);
    }

    #[test]
    fn a_nic_that_nobody_writes_is_learned_all_the_same() {
        let mut following = Following::new(&spread(&[0, 1]), None);
        assert!(following.learn(&[Some(1), Some(0)], 2));
        following.turn([(0, 0)].into_iter());
        assert_eq!((following.hear(), following.thread_of(0)), (Found::default(), Some(1)));
    }
}
