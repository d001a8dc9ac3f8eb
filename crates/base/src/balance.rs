//! Who is busy, who takes whose work, and which thread owns which flow group: the load balancer of Affinity-Accept (Pesterev,
//! Strauss, Zeldovich, Morris, EuroSys 2012, section 3.3) as plain state. No clock and no system call: whoever owns a thread's loop
//! passes in times and the lengths of queues, and does what it is told.
//!
//! Every thread has a [`Balancer`] of its own, with its own view of the others, so nothing here is shared or locked; the one thing
//! that all share, the table of owners ([`Owners`]), is kept by the engine. A *backlog* is what waits at a thread and was not begun:
//! connections of an accept queue, bytes of a socket's buffer, descriptors of a ring. Its unit is the engine's, as long as
//! [`Policy::limit`] has the same.
//!
//! Where this differs from the paper, and why:
//! - The moving average has a time constant instead of a weight for each arrival, since a thread looks at backlogs when it has time,
//!   not at each arrival.
//! - A thread is busy, too, when its processor has other work: when for a quarter of two intervals in a row it could run and was not
//!   let, by the scheduler's own count. Peers that wait for answers before they ask again make no backlog, however late the answers
//!   are.
//! - Such a thread is relieved at once, and one that waits for an eighth, too, from which nothing is stolen for that: looking at what lies there for so
//!   little costs more than it gains. If its work takes half as long at the other one, waiting for the processor counted, of as much as
//!   that one does in half of its time; beyond that, of as much as levels the two: of the time for which each had something to do, run or
//!   not. From a thread that is busy by its backlog one group moves at a time, as in the paper, or what levels the two, if that is more.
//! - One that waits far longer each time than the other gives all for which the other has time: its processor has other work, which has to do
//!   without what is left there, too. It is relieved until it waits no more. Where the other one's processor has other work as well, in
//!   however short pieces, that time is what it has nothing to do for. That it waits longer has to hold for half a second, by
//!   what was last seen of either, though it was a while ago: where both processors are full, one or the other does by chance.
//! - Two threads are levelled by what would have done so in each of two intervals, and how long one was held up is remembered for some
//!   seconds: one whose load ends or begins a little before the other's has no time to spare.
//! - A thread that slept for a second gives back what it took over before: the load that this was for is past.
//! - A thread that was relieved takes over nothing for a while, so that nothing goes to and fro.
//! - A thread that is about to sleep takes from busy threads at once, and from others only what they let lie for
//!   [`Policy::stalled_after`] without coming round: an owner that runs is there sooner than a thief is awake, and a stolen
//!   connection has lost its locality. Which covers, without waiting for a high mark, the thread that the scheduler has taken off
//!   its processor.
//! - Where the thief's processor has as much other work as the owner's, what it takes waits there as well: then what the owner gets
//!   round to is left to it, a backlog, too, unless the thief has time left; and that it does not come round has to last ten times as
//!   long, since that is what this thread does, too.
//!
//! Left out: waking, which is the engine's ([`Balancer::nap`] says how long a thread may sleep without being woken).

use crate::Instant;
use std::time::Duration;

/// What the balancer goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// what a thread's backlog holds at most; the marks are parts of it
    pub limit: u32,
    /// a thread is busy from when its backlog passes this part of the limit, in percent
    pub high_percent: u32,
    /// and until the moving average of its backlog falls under this part of the limit, in percent
    pub low_percent: u32,
    /// time constant of the moving average, at most 4 s
    pub window: Duration,
    /// how many of its own a free thread with work takes for each that it steals
    pub local_per_stolen: u32,
    /// how often a free thread takes over a flow group
    pub migrate_every: Duration,
    /// a thread that has not come round for so long while something waits at it counts as busy, for one that need not wait itself
    pub stalled_after: Duration,
    /// how long a thread that watches over running ones sleeps at most
    pub watch_every: Duration,
    /// whether work is stolen
    pub steal: bool,
    /// whether flow groups are taken over; only from whom was stolen, so it needs `steal`
    pub migrate: bool,
}

impl Default for Policy {
    /// The paper's figures.
    fn default() -> Self {
        Policy {
            limit: 64,
            high_percent: 75,
            low_percent: 10,
            window: Duration::from_millis(50),
            local_per_stolen: 5,
            migrate_every: Duration::from_millis(100),
            stalled_after: Duration::from_millis(1),
            watch_every: Duration::from_millis(20),
            steal: true,
            migrate: true,
        }
    }
}

/// Whether one thread is busy, by its backlog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// moving average of the backlog, times [`SCALE`]
    average: u64,
    sampled: Option<Instant>,
    busy: bool,
}

const SCALE: u64 = 256;

impl Load {
    /// Takes in that `waiting` were found at `now`; whether the thread is busy.
    pub fn sample(&mut self, policy: &Policy, now: Instant, waiting: u32) -> bool {
        let here = u64::from(waiting) * SCALE;
        self.average = match self.sampled {
            None => here,
            Some(before) => {
                // one step of a first-order low pass, whatever the time between two looks is; 22 bits of microseconds, so that
                // 40 bits of average times two of them stay within 64
                let passed = u64::try_from((now - before).as_micros()).unwrap_or(u64::MAX).min(1 << 22);
                let window = u64::try_from(policy.window.as_micros()).unwrap_or(u64::MAX).clamp(1, 1 << 22);
                (self.average * window + here * passed) / (window + passed)
            }
        };
        self.sampled = Some(now);
        let limit = u64::from(policy.limit);
        if u64::from(waiting) * 100 > limit * u64::from(policy.high_percent) {
            self.busy = true;
        } else if self.average * 100 < limit * u64::from(policy.low_percent) * SCALE {
            self.busy = false;
        }
        self.busy
    }

    /// As the last sample left it.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// The moving average of the backlog.
    pub fn average(&self) -> u32 {
        u32::try_from(self.average / SCALE).unwrap_or(u32::MAX)
    }
}

/// What the scheduler has counted of a thread since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scheduled {
    /// nanoseconds for which it ran
    pub ran_ns: u64,
    /// nanoseconds for which it could have run and was not let
    pub waited_ns: u64,
    /// how often it was let; 0 where that is not known
    pub times: u64,
}

/// A thread that waits for its own processor takes others to be stalled after so many times as long.
const PATIENCE: u32 = 10;

/// What [`Relief::part`] is a part of.
pub const WHOLE: u32 = 1024;
/// A thread is late that waited for its processor for this part of an interval,
const LATE_PART: u32 = 4;
/// and held back, so that it is relieved, from this part on,
const HELD_BACK_PART: u32 = 8;
/// in so many intervals in a row, and stays so while it waits for this part: what it has left is held up there as well.
const LATE_INTERVALS: u32 = 2;
const STILL_LATE_PART: u32 = 32;
/// Two threads are level whose times differ by less than this part of an interval.
const LEVEL_PART: u32 = 8;
/// A thread takes over all that is held up elsewhere until it has something to do for this part of an interval: of what goes beyond,
/// the processor with other work does its share as well.
pub const ROOM_PART: u32 = 2;
/// One that is held up about as long elsewhere is relieved only when it has less than this part of an interval left.
const SPARE_PART: u32 = 4;
/// Smaller parts are not worth a move.
const LEAST_PART: u32 = 64;
/// How much a thread's processor holds it up cannot be told when it had something to do for less than this part of an interval,
const SLOW_PART: u32 = 16;
/// and what was told before is forgotten with this time constant, in intervals.
const SLOW_MEMORY: u32 = 64;
/// A thread whose processor has other work takes nothing for its shorter waits when it had nothing to do for less than this part of an interval.
pub const IDLE_PART: u32 = 8;
/// A thread's processor is no better than another one that holds it up longer by less than this part of that.
const SLOWER_PART: u32 = 4;
/// A wait that is more than a wake-up's,
pub const LONG_WAIT: Duration = Duration::from_micros(15);
/// and how many times as long one is that is longer.
const LONGER: u64 = 2;
/// In so many intervals in a row: less is chance, where the processors of both have other work.
const LONGER_INTERVALS: u32 = 5;
/// Intervals after which what was counted before no longer says anything.
const STALE: u32 = 3;
/// Intervals for which a thread takes over nothing after it was relieved itself, and keeps what it took over.
pub const HELD: u32 = 10;

/// What a thread takes over from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relief {
    /// whom it relieves
    pub from: usize,
    /// of what that one has, of [`WHOLE`]; of groups at least one
    pub part: u32,
}

/// How a thread was scheduled over one interval.
#[derive(Clone, Copy, Debug)]
struct Shares {
    /// the counts at its end
    counted: Option<(Instant, Scheduled)>,
    /// for what part of it, of [`WHOLE`], it ran
    ran: u32,
    /// and for what part it waited for its processor
    waited: u32,
    /// intervals in a row for which it was late
    late: u32,
    /// and for which it was held back
    held_back: u32,
    /// how long it waited each time, lately, in nanoseconds; 0 where that is not known
    each_ns: u64,
    /// for how long it has something to do for each time that it runs, lately, times [`WHOLE`]
    slow: u32,
    /// how often its loop had come round at the end, unless it slept then
    cycles: Option<u64>,
    /// it did not come round at all
    held_up: bool,
}

impl Default for Shares {
    fn default() -> Self {
        Shares {
            counted: None,
            ran: 0,
            waited: 0,
            late: 0,
            held_back: 0,
            each_ns: 0,
            slow: WHOLE,
            cycles: None,
            held_up: false,
        }
    }
}

impl Shares {
    /// Takes in what was counted until `now`, the end of an interval of about `every`, and how the thread was last seen.
    fn count(&mut self, now: Instant, every: Duration, counts: Scheduled, look: Look) {
        let cycles = Some(look.cycles).filter(|_| !look.asleep);
        self.held_up = std::mem::replace(&mut self.cycles, cycles) == cycles && cycles.is_some();
        let Some((at, before)) = self.counted.replace((now, counts)) else { return };
        let passed = now - at;
        if passed > every * STALE {
            let Shares { counted, each_ns, slow, .. } = *self;
            *self = Shares { counted, each_ns, slow, cycles, ..Shares::default() };
            return;
        }
        let passed_ns = passed.as_nanos().max(1);
        let part = |now: u64, before: u64| {
            (u128::from(now.saturating_sub(before)) * u128::from(WHOLE) / passed_ns).min(WHOLE.into()) as u32
        };
        self.ran = part(counts.ran_ns, before.ran_ns);
        self.waited = part(counts.waited_ns, before.waited_ns).min(WHOLE - self.ran);
        let times = counts.times.saturating_sub(before.times);
        let each_ns = counts.waited_ns.saturating_sub(before.waited_ns).checked_div(times);
        // that it often waits for the kernel's own threads, a wake-up each time, is no other work
        let no_wake_up = each_ns.is_none_or(|each_ns| Duration::from_nanos(each_ns) >= LONG_WAIT);
        let waited = self.waited;
        let in_a_row = |intervals: u32, part: u32| {
            let least = if intervals >= LATE_INTERVALS { STILL_LATE_PART } else { part };
            if no_wake_up && waited >= WHOLE / least { intervals.saturating_add(1) } else { 0 }
        };
        (self.late, self.held_back) = (in_a_row(self.late, LATE_PART), in_a_row(self.held_back, HELD_BACK_PART));
        if self.ran + self.waited >= WHOLE / SLOW_PART {
            self.slow = WHOLE * (self.ran + self.waited) / self.ran.max(WHOLE / LEAST_PART);
            // of a few waits nothing can be told
            self.each_ns = each_ns.filter(|_| waited >= WHOLE / STILL_LATE_PART).unwrap_or(0);
        } else {
            self.slow -= (self.slow - WHOLE).div_ceil(SLOW_MEMORY);
            self.each_ns -= self.each_ns.div_ceil(SLOW_MEMORY.into());
        }
    }

    fn is_late(&self) -> bool {
        self.late >= LATE_INTERVALS
    }

    fn is_held_back(&self) -> bool {
        self.held_back >= LATE_INTERVALS
    }

    fn waits_longer_than(&self, other: &Shares) -> bool {
        waits_longer(self.each_ns, other.each_ns)
    }
}

/// Whether a thread that waits so many nanoseconds each time that it is to run is held up longer than one that waits for the others. What
/// moves joins the work of the other and waits with it, however often that one waits.
pub fn waits_longer(each_ns: u64, than_ns: u64) -> bool {
    Duration::from_nanos(each_ns) >= LONG_WAIT && each_ns >= LONGER * than_ns
}

/// What one look at a thread found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// its backlog
    pub waiting: u32,
    /// how often its loop has come round
    pub cycles: u64,
    /// it sleeps where its own work wakes it
    pub asleep: bool,
    /// its loop does not run at all: it failed and was not started again yet
    pub down: bool,
}

/// One thread as another one sees it.
#[derive(Clone, Copy, Debug, Default)]
struct View {
    load: Load,
    look: Look,
    /// when it was last seen to come round, or to have nothing to do
    moved: Instant,
    stalled: bool,
    /// taken from it since the last migration
    stolen: u64,
    shares: Shares,
    /// what part of its work would have levelled it and us over the last interval, of [`WHOLE`],
    level: u32,
    /// and over each of the last two, if it came round
    levels: u32,
    /// intervals in a row for which it waited longer each time than we
    longer: u32,
}

impl View {
    /// Whether it cannot keep up, for whatever reason of its own.
    fn is_behind(&self) -> bool {
        self.load.busy || self.stalled || self.look.down
    }

    fn is_busy(&self) -> bool {
        self.is_behind() || self.shares.is_late()
    }

    /// For what part of the last interval it had something to do, and for what part it was busy with that. One that did not come
    /// round has more than it can do, whatever the scheduler says.
    fn time(&self) -> (u32, u32) {
        let Shares { ran, waited, held_up, .. } = self.shares;
        if held_up { (WHOLE, WHOLE - waited) } else { (ran + waited, ran) }
    }

    /// Whether there is something to steal.
    fn is_victim(&self) -> bool {
        self.is_busy() && self.look.waiting > 0
    }
}

/// One thread's part in balancing.
#[derive(Clone, Debug)]
pub struct Balancer {
    policy: Policy,
    me: usize,
    views: Vec<View>,
    /// the last victim: the round robin goes on behind it
    last_victim: usize,
    /// of its own, since it last stole
    local: u32,
    migrate_at: Option<Instant>,
    /// when another one last relieved this one
    relieved: Option<Instant>,
    /// when this one last relieved another
    took: Option<Instant>,
}

impl Balancer {
    /// Thread `me` of `threads`.
    ///
    /// # Panics
    /// When there is no thread `me`.
    pub fn new(me: usize, threads: usize, policy: Policy) -> Self {
        assert!(me < threads, "thread {me} of {threads}");
        Balancer {
            policy,
            me,
            views: vec![View::default(); threads],
            last_victim: me,
            local: 0,
            migrate_at: None,
            relieved: None,
            took: None,
        }
    }

    /// What it goes by.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Takes in what a look at `thread`, this one or another, found.
    pub fn on_look(&mut self, thread: usize, now: Instant, look: Look) {
        let stalled_after = self.stalled_after();
        let view = &mut self.views[thread];
        view.load.sample(&self.policy, now, look.waiting);
        let moved = look.asleep || look.waiting == 0 || view.look.waiting == 0 || look.cycles != view.look.cycles;
        if moved {
            view.moved = now;
        }
        view.stalled = !moved && now - view.moved >= stalled_after;
        view.look = look;
    }

    /// After how long we take another to be stalled: one that waits for its processor as we do for ours is there about as soon as what we
    /// would take from it has its turn here.
    fn stalled_after(&self) -> Duration {
        self.policy.stalled_after * if self.is_late(self.me) { PATIENCE } else { 1 }
    }

    /// How often the loop of `thread` had come round, by the last look at it.
    pub fn cycles(&self, thread: usize) -> u64 {
        self.views[thread].look.cycles
    }

    /// Whether `thread` is busy, by the last look at it.
    pub fn is_busy(&self, thread: usize) -> bool {
        self.views[thread].is_busy()
    }

    /// Whether the scheduler lets `thread` wait for its processor.
    pub fn is_late(&self, thread: usize) -> bool {
        self.views[thread].shares.is_late()
    }

    /// The moving average of the backlog of `thread`.
    pub fn average(&self, thread: usize) -> u32 {
        self.views[thread].load.average()
    }

    /// Takes in that `n` were taken from its own queue.
    pub fn on_local(&mut self, n: u32) {
        // more than one turn's worth is not saved up: a thread that was free for long steals no run
        self.local = self.local.saturating_add(n).min(self.policy.local_per_stolen);
    }

    /// Whom to take from now, or None. `idle`: it would sleep otherwise.
    pub fn victim(&self, idle: bool) -> Option<usize> {
        if !self.policy.steal
            || self.views[self.me].is_behind()
            || !(idle || self.local >= self.policy.local_per_stolen)
        {
            return None;
        }
        self.others().find(|thread| self.views[*thread].is_victim() && self.may_take_from(*thread))
    }

    /// If we wait for our processor, not from who comes round, unless we have time left and it has a backlog or waits longer for its own.
    fn may_take_from(&self, thread: usize) -> bool {
        let (theirs, ours) = (&self.views[thread], &self.views[self.me].shares);
        let is_worse_off = || theirs.load.busy || theirs.shares.waits_longer_than(ours);
        theirs.stalled || theirs.look.down || !ours.is_late() || self.idle() > 0 && is_worse_off()
    }

    /// Takes in that `n` were taken from `victim`; none, when there was nothing left.
    pub fn on_stolen(&mut self, victim: usize, n: u32) {
        self.last_victim = victim;
        let view = &mut self.views[victim];
        view.stolen += u64::from(n);
        view.look.waiting = if n == 0 { 0 } else { view.look.waiting.saturating_sub(n) };
        if n > 0 {
            self.local = 0;
        }
    }

    /// Whether an interval is over at `now`: then [`Balancer::on_scheduled`] is to be told of each thread, and
    /// [`Balancer::poll_migration`] to be asked. To be asked itself at least every [`Policy::migrate_every`] while there is work.
    pub fn interval_is_over(&mut self, now: Instant) -> bool {
        now >= *self.migrate_at.get_or_insert(now + self.policy.migrate_every)
    }

    /// Whether the thread has slept so long, when an interval is over at `now`, that the load is past for which it took something over. To
    /// be asked before [`Balancer::poll_migration`]. Who looks after others meanwhile has intervals, and has not rested.
    pub fn has_rested(&self, now: Instant) -> bool {
        self.migrate_at.is_some_and(|at| now >= at + HELD * self.policy.migrate_every)
    }

    /// Takes in what the scheduler has counted of `thread`, this one or another, until the end of an interval.
    pub fn on_scheduled(&mut self, thread: usize, now: Instant, counts: Scheduled) {
        let view = &mut self.views[thread];
        view.shares.count(now, self.policy.migrate_every, counts, view.look);
    }

    /// Takes in that another one has taken over from this one.
    pub fn on_relieved(&mut self, now: Instant) {
        self.relieved = Some(now);
    }

    /// What to take over at the end of an interval, or None.
    pub fn poll_migration(&mut self, now: Instant) -> Option<Relief> {
        self.migrate_at = Some(now + self.policy.migrate_every);
        self.compare();
        let relief = self.held_back_one().or_else(|| {
            let most = self.others().max_by_key(|thread| self.views[*thread].stolen);
            let from = most.filter(|thread| self.views[*thread].stolen > 0)?;
            Some(Relief { from, part: self.views[from].levels })
        });
        for view in &mut self.views {
            view.stolen = 0;
        }
        let held = self.is_recent(self.relieved, now);
        let relief = relief.filter(|_| self.policy.migrate && !held && !self.views[self.me].is_behind());
        if relief.is_some() {
            self.took = Some(now);
        }
        relief
    }

    /// Whether what was taken over may go back to where it would be without that, bit by bit: nobody was relieved by us for a while, or
    /// relieved us, and nobody is held up longer than we are, who keep it.
    pub fn may_give_back(&self, now: Instant) -> bool {
        let ours = self.views[self.me].shares.slow;
        let is_no_better_here = |view: &View| !view.is_behind() && view.shares.slow <= ours + ours / SLOWER_PART;
        self.policy.migrate
            && !self.is_recent(self.took, now)
            && !self.is_recent(self.relieved, now)
            && self.others().all(|thread| is_no_better_here(&self.views[thread]))
    }

    fn is_recent(&self, at: Option<Instant>, now: Instant) -> bool {
        at.is_some_and(|at| now - at < HELD * self.policy.migrate_every)
    }

    /// Whom the scheduler lets down most, if there is somebody to be relieved.
    fn held_back_one(&self) -> Option<Relief> {
        let held_back = self.others().filter(|thread| self.views[*thread].shares.is_held_back());
        let from = held_back.max_by_key(|thread| self.views[*thread].shares.waited)?;
        let view = &self.views[from];
        let (theirs, ours) = (&view.shares, &self.views[self.me].shares);
        if ours.waits_longer_than(theirs) && !view.is_behind() {
            return None;
        }
        let part = if view.longer >= LONGER_INTERVALS {
            view.levels.max(self.room_to_run(from))
        } else if theirs.slow >= 2 * ours.slow {
            view.levels.max(self.room_for(from))
        } else if view.longer > 0 || view.time().0 >= WHOLE - WHOLE / SPARE_PART {
            view.levels
        } else {
            0
        };
        Some(Relief { from, part }).filter(|relief| relief.part >= WHOLE / LEAST_PART)
    }

    /// Sees how the others are off beside us at the end of an interval.
    fn compare(&mut self) {
        let ours = self.views[self.me].shares;
        for thread in self.others() {
            let level = self.level(thread);
            let view = &mut self.views[thread];
            let before = std::mem::replace(&mut view.level, level);
            view.levels = if view.shares.held_up { level } else { level.min(before) };
            view.longer = if view.shares.waits_longer_than(&ours) { view.longer.saturating_add(1) } else { 0 };
        }
    }

    /// What part of its work `from` would have to give us for both to have something to do for as long, over the last interval.
    fn level(&self, from: usize) -> u32 {
        let (theirs, _) = self.views[from].time();
        let Some(gap) = theirs.checked_sub(self.ours()).filter(|gap| *gap >= WHOLE / LEVEL_PART) else { return 0 };
        (u64::from(gap) * u64::from(WHOLE) / (u64::from(theirs) + self.here(from))) as u32
    }

    /// What part of the work of `from` we have room for.
    fn room_for(&self, from: usize) -> u32 {
        self.part_for((WHOLE / ROOM_PART).saturating_sub(self.ours()), from)
    }

    /// The same, waits apart, unless they are for other work.
    fn room_to_run(&self, from: usize) -> u32 {
        let ours = &self.views[self.me].shares;
        let room = (WHOLE / ROOM_PART).saturating_sub(ours.ran);
        let (_, run) = self.views[from].time();
        let room = (room * WHOLE / run.max(1)).min(WHOLE);
        if ours.is_held_back() { room.min(self.part_for(self.idle(), from)) } else { room }
    }

    /// What part of the work of `from` gives us something to do for `time`.
    fn part_for(&self, time: u32, from: usize) -> u32 {
        (u64::from(time) * u64::from(WHOLE) / self.here(from).max(1)).min(WHOLE.into()) as u32
    }

    /// For what part of the last interval we had nothing to do; next to nothing is none.
    fn idle(&self) -> u32 {
        let left = WHOLE - self.ours();
        if left >= WHOLE / IDLE_PART { left } else { 0 }
    }

    /// For what part of the last interval we had something to do.
    fn ours(&self) -> u32 {
        let Shares { ran, waited, .. } = self.views[self.me].shares;
        ran + waited
    }

    /// For what part of an interval all that `from` has would give us something to do: if it takes us as long to run as it takes that one,
    /// and we are held up meanwhile as we were lately.
    fn here(&self, from: usize) -> u64 {
        let (_, run) = self.views[from].time();
        u64::from(run) * u64::from(self.views[self.me].shares.slow) / u64::from(WHOLE)
    }

    /// How long the thread may sleep when only its own work wakes it, or None for as long as it likes. `watches`: it is one of those
    /// that look after threads that run, since one that is held up cannot wake anybody.
    pub fn nap(&self, watches: bool) -> Option<Duration> {
        if !self.policy.steal {
            return None;
        }
        let lies = |thread: usize| !self.views[thread].look.asleep && self.views[thread].look.waiting > 0;
        if self.others().any(lies) {
            return Some(self.stalled_after());
        }
        watches.then_some(self.policy.watch_every)
    }

    /// The other threads, round robin behind the last victim.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (threads, me, last) = (self.views.len(), self.me, self.last_victim);
        (1..=threads).map(move |n| (last + n) % threads).filter(move |thread| *thread != me)
    }
}

/// Which thread owns which flow group: a bucket of the flow hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners {
    of: Vec<u16>,
}

/// A group that went from one thread to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// the group
    pub group: usize,
    /// who had it
    pub from: usize,
    /// who has it
    pub to: usize,
}

impl Owners {
    /// `groups` dealt out to `threads` in turn, as a NIC's indirection table is to its queues.
    ///
    /// # Panics
    /// Without threads, or with more than 65,536.
    pub fn new(groups: usize, threads: usize) -> Self {
        assert!((1..=1 << 16).contains(&threads), "{threads} threads");
        Owners { of: (0..groups).map(|group| (group % threads) as u16).collect() }
    }

    /// The owner of `group`.
    pub fn of(&self, group: usize) -> usize {
        usize::from(self.of[group])
    }

    /// The owner of each group.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = usize> {
        self.of.iter().map(|owner| usize::from(*owner))
    }

    /// How many groups `thread` owns.
    pub fn count(&self, thread: usize) -> usize {
        self.iter().filter(|owner| *owner == thread).count()
    }

    /// Gives `group` to `to`, if `from` still has it.
    pub fn give(&mut self, group: usize, from: usize, to: usize) -> Option<Move> {
        let owner = self.of.get_mut(group).filter(|owner| usize::from(**owner) == from)?;
        *owner = to as u16;
        Some(Move { group, from, to })
    }

    /// Gives every group of `thread` to those of `heirs`, in turn; without heirs nothing moves.
    pub fn leave(&mut self, thread: usize, heirs: &[usize]) -> Vec<Move> {
        let mut heirs = heirs.iter().copied().filter(|heir| *heir != thread).collect::<Vec<_>>().into_iter().cycle();
        let mut moves = Vec::new();
        for group in 0..self.of.len() {
            if self.of(group) == thread
                && let Some(heir) = heirs.next()
            {
                moves.extend(self.give(group, thread, heir));
            }
        }
        moves
    }

    /// Undoes what [`Owners::leave`] did, where the groups have not gone on since.
    pub fn come_back(&mut self, left: &[Move]) -> Vec<Move> {
        left.iter().filter_map(|moved| self.give(moved.group, moved.to, moved.from)).collect()
    }
}

/// A new queue for an entry of the table by which a NIC spreads flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// the entry
    pub entry: u16,
    /// the queue
    pub queue: u16,
}

/// Who writes such a table.
pub trait IndirectionTable {
    /// Writes these entries, all or none.
    ///
    /// # Errors
    /// In words. The table is not written again then.
    fn write(&mut self, turns: &[Turn]) -> Result<(), String>;

    /// The table is not written any more, and why: told once.
    fn given_up(&mut self, why: &str);
}

/// Why, where packets come to other queues than hash and table say.
pub const UNTRUE: &str = "frames come to other queues than its hash and its table say";

#[cfg(test)]
mod tests;
