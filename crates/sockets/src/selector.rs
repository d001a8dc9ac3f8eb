//! Which thread a flow group belongs to: the table of owners, and the programs in the kernel that go by it, one for each
//! reuseport group.
//!
//! All reuseport groups of an engine follow one table. Where eBPF cannot be had, a classic program deals flows out by the
//! NIC's hash, and the table does not exist: nothing can be moved then.
//!
//! Where a NIC is known whose table can follow, groups are entries of it ([`crate::nic`]), and those that nobody has taken over belong to
//! the thread on whose processor they arrive.
//!
//! The table is locked to be changed: a few times a second, by threads that have time. No packet waits for it.

use crate::arrivals::{Arrivals, pinned};
use crate::config::Config;
use crate::nic::{Following, NicSpread, Verdict};
use crate::sys;
use base::Instant;
use base::balance::{Move, Owners, Relief, WHOLE};
use bpf::{Selector, SelectorConfig, SelectorError};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use wire::Protocol;
use wire::flow::{Flow, Groups};

/// SKF_AD_OFF + SKF_AD_RXHASH: where a classic program finds the hash that the NIC, or the kernel in its place, has made.
const RECEIVE_HASH: u32 = (-0x1000i32 + 32) as u32;

/// Groups that move at once at most: each costs a system call for each program.
const MOVES: usize = 1024;
/// Of those that were taken over so many go back at a time at least.
const LEAST_BACK: usize = 16;
/// How often somebody looks where packets arrive.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Fewer arrivals a thread since the last look tell nothing.
const ARRIVALS_TELL: u64 = 200;
/// Looks at arrivals for each at where every group arrives, which costs as much.
const LEARN_EVERY: u32 = 10;

/// Who owns which group, and the programs that were told.
#[derive(Debug)]
pub(crate) struct Table {
    owners: Owners,
    /// the next group to be looked at when some move
    walked: usize,
    /// by group: it was taken over, so it is its owner's wherever its packets arrive
    taken_over: Vec<bool>,
    selectors: Vec<Selector>,
    /// the processor of each thread, when they are pinned
    processors: Vec<usize>,
    arrivals: Arrivals,
    /// the NIC whose entries the groups are; None where they are not, or it is not as it was said to be
    nic: Option<Nic>,
    /// threads that do not run
    down: Vec<bool>,
    look_at: Option<Instant>,
}

#[derive(Debug)]
struct Nic {
    groups: Groups,
    following: Following,
    looks: u32,
}

/// Whose each group is, for who has connections that have stayed behind.
#[derive(Debug)]
pub(crate) struct Whose {
    groups: Groups,
    owners: Owners,
}

impl Whose {
    /// The thread that owns the group of a connection from `remote` to `local`.
    pub(crate) fn thread_of(&self, remote: SocketAddr, local: SocketAddr) -> Option<usize> {
        let flow = Flow::new(Protocol::TCP, remote, local)?;
        Some(self.owners.of(self.groups.of(&flow).into()))
    }
}

impl Table {
    /// Loads a program for each of `reuseport_groups`.
    ///
    /// # Errors
    /// Why there can be none.
    pub(crate) fn load(config: &Config, reuseport_groups: usize) -> Result<Table, SelectorError> {
        let processors = pinned(config);
        let spread = config.nic.as_ref().filter(|_| !processors.is_empty());
        // better without the NIC than without a table
        Table::load_with(config, processors.clone(), spread, reuseport_groups).or_else(|error| match spread {
            Some(_) => Table::load_with(config, processors, None, reuseport_groups),
            None => Err(error),
        })
    }

    fn load_with(
        config: &Config,
        processors: Vec<usize>,
        spread: Option<&NicSpread>,
        reuseport_groups: usize,
    ) -> Result<Table, SelectorError> {
        let groups = spread.map_or(config.balance.groups, |spread| spread.table.len());
        let sizes = SelectorConfig {
            groups: groups as u32,
            processors: processors.clone(),
            threads: config.threads as u32,
            hash: spread.map(NicSpread::hash),
        };
        let selectors = (0..reuseport_groups).map(|_| Selector::load(&sizes)).collect::<Result<_, _>>()?;
        let nic = |spread: &NicSpread| Nic { groups: spread.groups(), following: Following::new(spread), looks: 0 };
        Ok(Table {
            owners: Owners::new(groups, config.threads),
            walked: 0,
            taken_over: vec![false; groups],
            selectors,
            processors,
            arrivals: Arrivals::default(),
            nic: spread.map(nic),
            down: vec![false; config.threads],
            look_at: None,
        })
    }

    /// The NIC's table, where groups are its entries.
    pub(crate) fn following(&mut self) -> Option<&mut Following> {
        self.nic.as_mut().map(|nic| &mut nic.following)
    }

    /// Whose each group is, where connections can be told by them.
    pub(crate) fn whose(&self) -> Option<Whose> {
        self.nic.as_ref().map(|nic| Whose { groups: nic.groups.clone(), owners: self.owners.clone() })
    }

    /// Puts the programs in force on their sockets, by group and thread.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn attach(&mut self, groups: &[Vec<BorrowedFd<'_>>]) -> Result<(), SelectorError> {
        for (selector, sockets) in self.selectors.iter_mut().zip(groups) {
            for (group, owner) in self.owners.iter().enumerate() {
                selector.set_owner(group, owner, false)?;
            }
            selector.attach(sockets)?;
        }
        Ok(())
    }

    /// How many groups `thread` owns.
    pub(crate) fn count(&self, thread: usize) -> usize {
        self.owners.count(thread)
    }

    /// Makes a part of the groups of another thread those of `thief`, first those that lately brought something; how many.
    pub(crate) fn take_over(&mut self, relief: Relief, thief: usize) -> usize {
        let mut recent: Vec<usize> = Vec::new();
        for selector in &self.selectors {
            recent.extend(selector.recent(relief.from).unwrap_or_default());
        }
        recent.sort_unstable();
        recent.dedup();
        let groups = self.choose(&recent, relief, thief);
        for &group in &groups {
            let owner = self.owners.of(group);
            // taken back, it follows its packets again
            let back = self.arrivals.spread() && self.taken_over[group] && relief.part > 0 && self.nic.is_none();
            self.taken_over[group] = !back;
            self.owners.give(group, owner, thief);
            self.tell(group);
        }
        if let Some(nic) = &mut self.nic {
            nic.following.turn(groups.iter().map(|group| (*group, thief)));
        }
        groups.len()
    }

    /// Lets this part of the groups that `thread` took over follow their packets again, where those follow that were not; how many.
    pub(crate) fn give_back(&mut self, thread: usize, part: usize) -> usize {
        if self.nic.is_some() || !self.arrivals.spread() {
            return 0;
        }
        let theirs = |group: &usize| self.taken_over[*group] && self.owners.of(*group) == thread;
        let groups: Vec<usize> = (0..self.taken_over.len()).filter(theirs).collect();
        let some = groups.len().div_ceil(part).clamp(LEAST_BACK, MOVES).min(groups.len());
        for &group in &groups[..some] {
            self.taken_over[group] = false;
            self.tell(group);
        }
        some
    }

    /// Which groups: the recent ones first, then, if it is a part that is asked for, those from where the last walk ended.
    fn choose(&mut self, recent: &[usize], Relief { from, part }: Relief, thief: usize) -> Vec<usize> {
        let all = self.taken_over.len();
        // where they follow by themselves and nobody knows which
        let follows = self.arrivals.spread() && self.nic.is_none();
        let theirs = |group: &usize| self.owners.of(*group) == from && (self.taken_over[*group] || !follows);
        // the table does not tell whose it is, and it brings something to every thread
        let nobodys = |group: &usize| !self.taken_over[*group] && (part > 0 || self.owners.of(*group) != thief);
        let count = (0..all).filter(theirs).count();
        let walk = (0..all).map(|n| (self.walked + n) % all).filter(|group| part > 0 && !recent.contains(group));
        let order = recent.iter().copied().chain(walk);
        let most = |of: usize| (of as u64 * u64::from(part) / u64::from(WHOLE)).clamp(1, MOVES as u64) as usize;
        let chosen: Vec<usize> = if follows && count == 0 {
            let others = self.processors.len().saturating_sub(1).max(1);
            order.filter(nobodys).take(most(all / others)).collect()
        } else {
            order.filter(theirs).take(most(count)).collect()
        };
        self.walked = chosen.last().map_or(self.walked, |last| (last + 1) % all);
        chosen
    }

    /// Gives all groups of a thread that does not run to `heirs`; what moved.
    pub(crate) fn leave(&mut self, thread: usize, heirs: &[usize]) -> Vec<Move> {
        self.down[thread] = true;
        let moves = self.owners.leave(thread, heirs);
        moves.iter().for_each(|moved| self.tell(moved.group));
        self.set_processor(thread, None);
        moves
    }

    /// Gives back what [`Table::leave`] took away.
    pub(crate) fn come_back(&mut self, thread: usize, left: &[Move]) {
        self.down[thread] = false;
        for moved in self.owners.come_back(left) {
            self.tell(moved.group);
        }
        self.set_processor(thread, Some(thread));
    }

    /// Whether it is time to look where packets arrive. Any thread may; one that sleeps need not.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.look_at.is_none_or(|at| now >= at);
        if is_due {
            self.look_at = Some(now + LOOK_EVERY);
        }
        is_due
    }

    /// Looks where packets arrive: once they do on the processors of all threads, groups follow them there.
    pub(crate) fn follow_arrivals(&mut self) {
        if self.processors.is_empty() {
            return;
        }
        let mut by_thread = vec![0u64; self.processors.len()];
        for selector in &self.selectors {
            let found = selector.arrivals().unwrap_or_default();
            for (count, processor) in by_thread.iter_mut().zip(&self.processors) {
                *count += found.get(*processor).copied().unwrap_or(0);
            }
        }
        let before = self.arrivals.spread();
        let here = self.arrivals.judge(&by_thread, ARRIVALS_TELL);
        if here != before {
            for selector in &mut self.selectors {
                // refused, groups stay with their owners: slower, never wrong
                let _ = selector.set_here(here);
            }
        }
        self.follow_the_nic();
    }

    /// Takes in what of the NIC's table was written and, now and then, where its groups arrive.
    fn follow_the_nic(&mut self) {
        let Some(mut nic) = self.nic.take() else { return };
        let found = nic.following.hear();
        for group in found.turned {
            // it follows its packets again, which from now on arrive where it was taken to
            self.taken_over[group] = nic.following.thread_of(group) != Some(self.owners.of(group));
            self.forget(group);
            self.tell(group);
        }
        nic.looks += 1;
        let mut trusted = !found.over;
        if trusted && nic.looks.is_multiple_of(LEARN_EVERY) {
            let seen: Vec<_> = (0..self.taken_over.len()).map(|group| self.seen_since(group)).collect();
            let verdict = nic.following.learn(&seen, self.processors.len());
            trusted = verdict != Verdict::Untrue;
            if verdict == Verdict::True && self.arrivals.spread() {
                self.align(&nic.following);
            }
            if matches!(verdict, Verdict::True | Verdict::Silent) {
                // of those that moved before it was known where to
                let taken = (0..seen.len()).filter(|group| self.taken_over[*group]);
                nic.following.turn(taken.map(|group| (group, self.owners.of(group))));
            }
        }
        self.nic = trusted.then_some(nic);
    }

    /// On which thread's processor a group has arrived since this was last asked: what was before may not hold any more, where somebody
    /// sends a queue's interrupts elsewhere.
    fn seen_since(&mut self, group: usize) -> Option<usize> {
        let processor = self.selectors.iter().find_map(|selector| selector.place(group).ok().flatten())?;
        self.forget(group);
        self.processors.iter().position(|of| *of == processor)
    }

    fn forget(&mut self, group: usize) {
        for selector in &mut self.selectors {
            // refused, an old place is taken for a late packet's
            let _ = selector.forget_place(group);
        }
    }

    /// Writes down for groups that follow their packets where that is.
    fn align(&mut self, following: &Following) {
        for group in 0..self.taken_over.len() {
            let Some(to) = following.thread_of(group).filter(|to| !self.down[*to]) else { continue };
            let owner = self.owners.of(group);
            if !self.taken_over[group] && owner != to {
                self.owners.give(group, owner, to);
                self.tell(group);
            }
        }
    }

    /// Whether groups follow their packets.
    pub(crate) fn follows(&self) -> bool {
        self.arrivals.spread()
    }

    fn set_processor(&mut self, thread: usize, to: Option<usize>) {
        if let Some(processor) = self.processors.get(thread) {
            for selector in &mut self.selectors {
                // refused, packets there go on to a thread that others help
                let _ = selector.set_processor(*processor, to);
            }
        }
    }

    /// A table that no program goes by.
    #[cfg(test)]
    pub(crate) fn told_to_nobody(groups: usize, threads: usize, spread: bool) -> Table {
        Table {
            owners: Owners::new(groups, threads),
            walked: 0,
            taken_over: vec![false; groups],
            selectors: Vec::new(),
            processors: (0..threads).collect(),
            arrivals: Arrivals::known(spread),
            nic: None,
            down: vec![false; threads],
            look_at: None,
        }
    }

    fn tell(&mut self, group: usize) {
        let (owner, taken_over) = (self.owners.of(group), self.taken_over[group]);
        for selector in &mut self.selectors {
            // refused, the group stays where it was until it moves again: connections are served there as well
            let _ = selector.set_owner(group, owner, taken_over);
        }
    }
}

/// Has a classic program deal flows out to the `threads` sockets of each group, as a NIC's table of as many queues would:
/// bucket of the receive hash, modulo threads. A flow without such a hash goes by the kernel's own.
///
/// # Errors
/// The kernel's.
pub(crate) fn attach_classic(groups: &[Vec<BorrowedFd<'_>>], config: &Config) -> io::Result<()> {
    for sockets in groups {
        let Some(first) = sockets.first() else { continue };
        sys::attach_classic(*first, &mut classic(config.balance.groups as u32, config.threads as u32))?;
    }
    Ok(())
}

/// The classic program; a result past the last socket leaves the choice to the kernel.
fn classic(groups: u32, threads: u32) -> [libc::sock_filter; 6] {
    let op = |code, k, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, RECEIVE_HASH, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, 0),
        op(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, groups, 0, 0),
        op(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, threads, 0, 0),
        op(libc::BPF_RET | libc::BPF_A, 0, 0, 0),
        op(libc::BPF_RET | libc::BPF_K, u32::MAX, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::flow::Ports;
    use wire::toeplitz::Key;

    fn table(groups: usize, threads: usize, spread: bool) -> Table {
        Table::told_to_nobody(groups, threads, spread)
    }

    fn relief(from: usize, part: u32) -> Relief {
        Relief { from, part }
    }

    #[test]
    fn a_part_of_the_groups_moves_and_each_time_another_one() {
        let mut table = table(100, 2, false);
        assert_eq!(table.take_over(relief(0, WHOLE / 2), 1), 25);
        assert_eq!((table.count(0), table.count(1)), (25, 75));
        assert_eq!(table.take_over(relief(0, 1), 1), 1, "one at least");
        assert_eq!(table.take_over(relief(0, WHOLE), 1), 24);
        assert_eq!(table.take_over(relief(0, WHOLE), 1), 0, "nothing is left");
        let first = table.choose(&[], relief(1, WHOLE / 8), 0);
        let second = table.choose(&[], relief(1, WHOLE / 8), 0);
        assert_eq!((first.len(), second.len()), (12, 12));
        assert!(first.iter().all(|group| !second.contains(group)));
        // and no more at once than can be told to the programs soon
        assert_eq!(self::table(8192, 2, false).take_over(relief(0, WHOLE), 1), MOVES);
    }

    #[test]
    fn groups_that_brought_something_go_first_and_alone_where_no_part_is_asked_for() {
        let mut table = table(100, 2, false);
        assert_eq!(table.choose(&[41, 40, 66], relief(0, WHOLE / 16), 1)[..2], [40, 66]);
        assert_eq!(table.choose(&[41, 66, 68], relief(0, 0), 1), [66]);
        assert_eq!(table.choose(&[41], relief(0, 0), 1), [0; 0], "it is not theirs any more");
        assert_eq!(table.choose(&[], relief(0, 0), 1), [0; 0]);
    }

    #[test]
    fn groups_that_follow_their_packets_are_taken_from_all_and_follow_again_when_taken_back() {
        let mut table = table(120, 4, true);
        // each brings something to three others, so a third of them makes up for what is asked of one
        assert_eq!(table.take_over(relief(2, WHOLE / 4), 0), 10);
        assert_eq!(table.taken_over.iter().filter(|taken| **taken).count(), 10);
        assert!((0..120).filter(|group| table.taken_over[*group]).all(|group| table.owners.of(group) == 0));
        assert_eq!(table.take_over(relief(0, WHOLE / 2), 2), 5);
        assert_eq!(table.taken_over.iter().filter(|taken| **taken).count(), 5);
        // one that is stolen from stays where it is needed
        let theirs = (0..120).find(|group| table.taken_over[*group]).unwrap();
        assert_eq!(table.choose(&[theirs], relief(0, 0), 3), [theirs]);
    }

    #[test]
    fn what_was_taken_over_goes_back_in_parts_to_where_its_packets_arrive() {
        let mut table = table(120, 2, true);
        assert_eq!(table.take_over(relief(0, WHOLE), 1), 120);
        assert_eq!((table.give_back(0, 4), table.give_back(1, 4)), (0, 30), "it has none");
        assert_eq!(table.taken_over.iter().filter(|taken| **taken).count(), 90);
        let back: Vec<usize> = std::iter::from_fn(|| Some(table.give_back(1, 4)).filter(|some| *some > 0)).collect();
        assert_eq!(back, [23, 17, 16, 16, 16, 2]);
        // where nothing follows there is nowhere to go
        let mut table = self::table(120, 2, false);
        table.take_over(relief(0, WHOLE), 1);
        assert_eq!(table.give_back(1, 4), 0);
        // nor more at once than can be told to the programs soon
        let mut table = self::table(2048, 2, true);
        assert_eq!((table.take_over(relief(0, WHOLE), 1), table.take_over(relief(0, WHOLE), 1)), (MOVES, MOVES));
        assert_eq!((table.give_back(1, 1), table.give_back(1, 1), table.give_back(1, 1)), (MOVES, MOVES, 0));
    }

    /// The same over a NIC of two queues whose table deals entries out in turn, with the threads' processors the other way round.
    fn table_of_a_nic() -> Table {
        let entries = (0..32).map(|entry| entry % 2).collect();
        let spread = NicSpread { key: Key::MICROSOFT, ports: Ports::ALL, table: entries };
        let mut following = Following::new(&spread);
        let seen: Vec<_> = (0..32).map(|entry| (entry < 20).then_some(1 - entry % 2)).collect();
        assert_eq!(following.learn(&seen, 2), Verdict::True);
        Table { nic: Some(Nic { groups: spread.groups(), following, looks: 0 }), ..table(32, 2, true) }
    }

    fn owners(table: &Table) -> Vec<usize> {
        table.owners.iter().collect()
    }

    #[test]
    fn groups_of_a_nic_belong_where_their_queue_arrives_until_they_are_taken_over() {
        let mut table = table_of_a_nic();
        assert_eq!(owners(&table)[..4], [0, 1, 0, 1]);
        let nic = table.nic.take().unwrap();
        table.align(&nic.following);
        assert!(owners(&table).iter().enumerate().all(|(group, owner)| *owner == 1 - group % 2));
        table.nic = Some(nic);
        // only what is the other one's is taken from it, and it stays taken wherever it arrives
        assert_eq!(table.take_over(relief(1, WHOLE / 2), 0), 8);
        let nic = table.nic.take().unwrap();
        table.align(&nic.following);
        assert_eq!((table.count(0), table.count(1)), (24, 8));
        // nothing comes to a thread that does not run
        let moved = table.leave(0, &[1]);
        table.align(&nic.following);
        assert_eq!((moved.len(), table.count(0)), (24, 0));
        table.come_back(0, &moved);
        assert_eq!((table.count(0), table.count(1)), (24, 8));
    }

    #[test]
    fn connections_are_told_by_the_groups_of_a_nic() {
        let mut table = table_of_a_nic();
        let (remote, local) = ("198.18.0.2:1000".parse().unwrap(), "198.18.0.1:80".parse().unwrap());
        let thread_of = |table: &Table| table.whose().unwrap().thread_of(remote, local).unwrap();
        let whose = thread_of(&table);
        table.leave(whose, &[1 - whose]);
        assert_eq!(thread_of(&table), 1 - whose);
        assert_eq!(table.whose().unwrap().thread_of(remote, "[::1]:80".parse().unwrap()), None, "of two families");
        assert!(self::table(8, 2, true).whose().is_none(), "by the kernel's hash nobody can tell");
    }
}
