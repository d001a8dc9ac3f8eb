//! How many threads serve: what each has to do as moving averages, and by these one thread more or one less, as IX's policy has it.
//!
//! A thread of its own looks every 10 ms (100 ms where nothing is to be decided) at what the serving threads count anyway, so these do
//! nothing for it. It makes of each interval how many frames waited behind a burst, how long they waited therefore, how large bursts were, how long
//! a cycle took and for which part of the time there was nothing to do, and of these exponentially weighted averages. A thread tells at the
//! end of a cycle; of one that is in the midst of a long one nothing is concluded until then.
//!
//! One thread is added when at one of those on duty more frames wait than the upper mark, or at another that has flow groups which cannot leave it. One is removed when fewer wait than the lower mark at each, and what
//! is left to do would leave the others some time, for a while. Between changes there is a pause, the longer one before a removal.
//! What is in between changes nothing, so a steady load does not either.
//!
//! The policy reads no clock and makes no call; it says how many.

use crate::bell::Bell;
use crate::{Counters, Owners};
use base::counter::{Figure, Report};
use base::{Clock, Counter, Instant};
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often it is looked, with a policy and without.
const EVERY: Duration = Duration::from_millis(10);
const EVERY_IDLY: Duration = Duration::from_millis(100);
/// The averages' time constant, in intervals.
const WINDOW: f64 = 5.0;

/// By what threads are added and removed.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// a thread is added when more frames wait at one
    pub add_above: u32,
    /// one is removed when fewer wait at each
    pub remove_under: u32,
    /// and each of the others would have this part of its time left, in percent
    pub spare_percent: u32,
    /// so long after a change nothing is added
    pub settle: Duration,
    /// and so long nothing is removed
    pub keep: Duration,
    /// for so long a removal must have been in order
    pub calm: Duration,
}

impl Default for Policy {
    /// IX's marks.
    fn default() -> Self {
        Policy {
            add_above: 32,
            remove_under: 8,
            spare_percent: 25,
            settle: Duration::from_millis(100),
            keep: Duration::from_secs(1),
            calm: Duration::from_millis(500),
        }
    }
}

/// What one thread has to do, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// frames that waited behind a burst
    queued: f64,
    /// how long they waited for their turn, in microseconds
    delay_us: f64,
    batch: f64,
    /// of a cycle with work, in nanoseconds
    cycle_ns: f64,
    /// part of the time without work
    idle: f64,
}

/// Decides for the threads of one interface.
#[derive(Debug, Default)]
pub(crate) struct Decision {
    changed: Option<Instant>,
    calm_since: Option<Instant>,
}

impl Decision {
    /// How many of `most` threads are to be on duty, by the loads of those that are and of those that serve all the same.
    pub(crate) fn look(
        &mut self,
        policy: &Policy,
        now: Instant,
        on_duty: &[Load],
        besides: &[Load],
        most: usize,
    ) -> usize {
        let count = on_duty.len();
        let since = self.changed.map(|at| now - at);
        if on_duty.iter().chain(besides).any(|load| load.queued > f64::from(policy.add_above)) {
            self.calm_since = None;
            if count < most && since.is_none_or(|since| since >= policy.settle) {
                self.changed = Some(now);
                return count + 1;
            }
            return count;
        }
        let idle: f64 = on_duty.iter().map(|load| load.idle).sum();
        let spare = 1.0 + f64::from(policy.spare_percent) / 100.0 * (count as f64 - 1.0);
        let is_calm = on_duty.iter().all(|load| load.queued < f64::from(policy.remove_under)) && idle >= spare;
        if count < 2 || !is_calm {
            self.calm_since = None;
            return count;
        }
        let calm_since = *self.calm_since.get_or_insert(now);
        if now - calm_since < policy.calm || since.is_some_and(|since| since < policy.keep) {
            return count;
        }
        (self.changed, self.calm_since) = (Some(now), None);
        count - 1
    }
}

/// One thread's moving averages, to be shown.
#[derive(Debug)]
pub struct Averages {
    thread: String,
    queued: Counter,
    delay_us: Counter,
    batch: Counter,
    cycle_ns: Counter,
    idle_permille: Counter,
}

impl Averages {
    fn new(thread: usize) -> Averages {
        Averages {
            thread: thread.to_string(),
            queued: Counter::default(),
            delay_us: Counter::default(),
            batch: Counter::default(),
            cycle_ns: Counter::default(),
            idle_permille: Counter::default(),
        }
    }

    fn set(&self, load: &Load) {
        self.queued.set(load.queued.round() as u64);
        self.delay_us.set(load.delay_us.round() as u64);
        self.batch.set(load.batch.round() as u64);
        self.cycle_ns.set(load.cycle_ns.round() as u64);
        self.idle_permille.set((1000.0 * load.idle).round() as u64);
    }

    /// The part of its time for which it had nothing to do, in thousandths.
    pub fn idle_permille(&self) -> u64 {
        self.idle_permille.get()
    }

    /// For how long frames waited, in microseconds.
    pub fn queue_delay_us(&self) -> u64 {
        self.delay_us.get()
    }
}

impl Report for Averages {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let labels = [("thread", self.thread.as_str())];
        let mut gauge = |name, help, counter: &Counter| {
            show(Figure { name, help, gauge: true, labels: &labels, value: counter.get() });
        };
        let delay = "moving average of how long frames waited for a thread";
        gauge("dataplane_queue_delay_microseconds", delay, &self.delay_us);
        gauge("dataplane_queue_frames", "moving average of the frames left waiting behind a burst", &self.queued);
        gauge("dataplane_burst_frames", "moving average of a burst's frames", &self.batch);
        gauge("dataplane_cycle_nanoseconds", "moving average of the time of a cycle with work", &self.cycle_ns);
        gauge("dataplane_idle_permille", "moving average of the time without work", &self.idle_permille);
    }
}

/// What one thread had counted when it was looked at, and its averages.
#[derive(Debug)]
struct Watched {
    counters: Arc<Counters>,
    averages: Arc<Averages>,
    /// how often it is looked
    every: Duration,
    /// received, cycles, those without work, the time of the others, frames that waited
    before: [u64; 5],
    /// when that was
    since: Instant,
    load: Load,
}

impl Watched {
    fn new(counters: Arc<Counters>, averages: Arc<Averages>, every: Duration, since: Instant) -> Watched {
        let (before, load) = (Self::read(&counters), Load { idle: 1.0, ..Load::default() });
        Watched { counters, averages, every, before, since, load }
    }

    fn read(counters: &Counters) -> [u64; 5] {
        let Counters { received, cycles, empty_cycles, busy_ns, queued, .. } = counters;
        [received, cycles, empty_cycles, busy_ns, queued].map(base::Counter::get)
    }

    /// Takes in what the thread has counted until `now`; `asleep`: it sleeps.
    fn look(&mut self, now: Instant, asleep: bool) {
        let counted = Self::read(&self.counters);
        let [received, cycles, empty, busy_ns, queued] =
            std::array::from_fn(|n| counted[n].wrapping_sub(self.before[n]).min(1 << 50) as f64);
        if cycles == 0.0 && !asleep {
            // in the midst of a cycle, which counts when it ends: neither does nothing wait nor has it nothing to do
            return;
        }
        let passed = now - self.since;
        (self.before, self.since) = (counted, now);
        let worked = (cycles - empty).max(0.0);
        let intervals = (passed.as_secs_f64() / self.every.as_secs_f64()).round().max(1.0);
        // as many steps of a first-order low pass
        let part = 1.0 - (WINDOW / (WINDOW + 1.0)).powf(intervals);
        let towards = |average: &mut f64, value: f64| *average += (value - *average) * part;
        let Load { queued: waiting, delay_us, batch, cycle_ns, idle } = &mut self.load;
        let behind = if worked > 0.0 { queued / worked } else { 0.0 };
        towards(waiting, behind);
        towards(delay_us, if received > 0.0 { behind * busy_ns / received / 1e3 } else { 0.0 });
        if worked > 0.0 {
            // without work nothing is known of these
            towards(batch, received / worked);
            towards(cycle_ns, busy_ns / worked);
        }
        towards(idle, 1.0 - (busy_ns / passed.as_nanos().max(1) as f64).clamp(0.0, 1.0));
        self.averages.set(&self.load);
    }
}

/// Threads of one interface, and how often their number has changed.
#[derive(Debug)]
pub struct Crew {
    first: String,
    owners: Arc<Owners>,
    bells: Vec<Arc<Bell>>,
    /// how many are wanted, whatever happens to them
    wanted: Mutex<usize>,
    added: Counter,
    removed: Counter,
}

impl Crew {
    pub(crate) fn new(first: usize, owners: Arc<Owners>, bells: Vec<Arc<Bell>>) -> Crew {
        let wanted = Mutex::new(owners.on_duty());
        Crew { first: first.to_string(), owners, bells, wanted, added: Counter::default(), removed: Counter::default() }
    }

    /// How many there are.
    pub fn threads(&self) -> usize {
        self.owners.threads()
    }

    /// How many are on duty.
    pub fn on_duty(&self) -> usize {
        self.owners.on_duty()
    }

    /// Of the loads of all, those of threads that are off duty and have flow groups, which cannot leave them.
    fn serving_besides(&self, loads: &[Load]) -> Vec<Load> {
        let off_duty = loads.iter().enumerate().skip(self.on_duty());
        off_duty.filter(|(thread, _)| self.owners.count(*thread as u16) > 0).map(|(_, load)| *load).collect()
    }

    /// Has so many be on duty, from the first on, and wakes all; the others give everything away. While one hangs all are.
    pub(crate) fn set(&self, threads: usize) {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        *wanted = threads;
        self.apply(threads);
    }

    /// A thread hangs, or comes round again. Who hangs may have the queues of those that are off duty, so these take them back.
    pub(crate) fn set_hangs(&self, thread: usize, hangs: bool) {
        let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        self.owners.set_hangs(thread as u16, hangs);
        self.apply(*wanted);
        // also where their number stays: who waits for his queue sleeps until he hears of it
        self.bells.iter().for_each(|bell| bell.ring());
    }

    /// Has as many be on duty as `decide` says of those that are; it is not asked while one hangs.
    fn review(&self, decide: impl FnOnce(usize) -> usize) {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.owners.one_hangs() {
            *wanted = decide(self.on_duty());
            self.apply(*wanted);
        }
    }

    fn apply(&self, wanted: usize) {
        let threads = if self.owners.one_hangs() { self.threads() } else { wanted };
        let before = self.owners.on_duty();
        self.owners.set_on_duty(threads);
        match threads.cmp(&before) {
            std::cmp::Ordering::Greater => self.added.add((threads - before) as u64),
            std::cmp::Ordering::Less => self.removed.add((before - threads) as u64),
            std::cmp::Ordering::Equal => return,
        }
        self.bells.iter().for_each(|bell| bell.ring());
    }
}

impl Report for Crew {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let first = ("first", self.first.as_str());
        let mut one = |name, help, gauge, labels: &[(&str, &str)], value| {
            show(Figure { name, help, gauge, labels, value });
        };
        let threads = "threads of an interface, by the number of the first, that serve";
        one("dataplane_threads_on_duty", threads, true, &[first], self.on_duty() as u64);
        let changes = "threads that were added and removed";
        let by = |direction| [first, ("direction", direction)];
        one("dataplane_thread_changes_total", changes, false, &by("added"), self.added.get());
        one("dataplane_thread_changes_total", changes, false, &by("removed"), self.removed.get());
    }
}

/// The thread that looks. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Overseer {
    join: Option<JoinHandle<()>>,
    end: Option<Sender<()>>,
    averages: Vec<Arc<Averages>>,
}

impl Overseer {
    /// Looks at the threads, by what they count and their bells; with a policy it decides for the crews, each of which begins at one of them.
    pub(crate) fn start(
        threads: Vec<(Arc<Counters>, Arc<Bell>)>,
        crews: Vec<(usize, Arc<Crew>)>,
        policy: Option<Policy>,
    ) -> io::Result<Overseer> {
        let averages: Vec<_> = (0..threads.len()).map(|thread| Arc::new(Averages::new(thread))).collect();
        let every = if policy.is_some() { EVERY } else { EVERY_IDLY };
        let watched = threads.into_iter().zip(averages.iter().cloned());
        let clock = Clock::start();
        let watched =
            watched.map(|((counters, bell), averages)| (Watched::new(counters, averages, every, clock.now()), bell));
        let mut watched: Vec<(Watched, Arc<Bell>)> = watched.collect();
        let (end, ended) = channel();
        let join = std::thread::Builder::new().name("overseer".into()).spawn(move || {
            let mut decisions: Vec<Decision> = crews.iter().map(|_| Decision::default()).collect();
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let now = clock.now();
                watched.iter_mut().for_each(|(thread, bell)| thread.look(now, bell.is_asleep()));
                let Some(policy) = &policy else { continue };
                for ((first, crew), decision) in crews.iter().zip(&mut decisions) {
                    crew.review(|on_duty| {
                        let all = watched[*first..].iter().take(crew.threads());
                        let all: Vec<Load> = all.map(|(thread, _)| thread.load).collect();
                        let (loads, besides) = (&all[..on_duty], crew.serving_besides(&all));
                        decision.look(policy, now, loads, &besides, crew.threads())
                    });
                }
            }
        })?;
        Ok(Overseer { join: Some(join), end: Some(end), averages })
    }

    pub(crate) fn averages(&self) -> &[Arc<Averages>] {
        &self.averages
    }
}

impl Drop for Overseer {
    fn drop(&mut self) {
        self.end = None;
        if let Some(join) = self.join.take() {
            // a panic there was shown by the panic hook
            let _ = join.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn load(queued: f64, idle: f64) -> Load {
        Load { queued, idle, ..Load::default() }
    }

    /// Looks every 10 ms for `ms`, with these loads; the number at each change, with when it was.
    fn changes(
        decision: &mut Decision,
        from: u64,
        ms: u64,
        mut count: usize,
        of: impl Fn(usize) -> Load,
    ) -> Vec<(u64, usize)> {
        let mut all = Vec::new();
        for at in (from..from + ms).step_by(10) {
            let loads = vec![of(count); count];
            let next = decision.look(&Policy::default(), Instant::from_nanos(at * 1_000_000), &loads, &[], 4);
            if next != count {
                all.push((at, next));
                count = next;
            }
        }
        all
    }

    #[test]
    fn threads_are_added_one_by_one_while_frames_wait() {
        let mut decision = Decision::default();
        assert_eq!(changes(&mut decision, 0, 1000, 1, |_| load(33.0, 0.0)), [(0, 2), (100, 3), (200, 4)]);
        assert_eq!(changes(&mut decision, 1000, 1000, 4, |_| load(500.0, 0.0)), []);
        assert_eq!(changes(&mut Decision::default(), 0, 5000, 1, |_| load(32.0, 0.0)), []);
    }

    #[test]
    fn they_are_removed_when_the_others_can_do_it_and_not_at_once() {
        let mut decision = Decision::default();
        let quarter = |count: usize| load(0.0, 1.0 - 0.5 / count as f64);
        assert_eq!(changes(&mut decision, 0, 9000, 4, quarter), [(500, 3), (1500, 2), (2500, 1)]);
        // a moment of work begins the time anew
        let mut decision = Decision::default();
        assert_eq!(changes(&mut decision, 0, 490, 2, quarter), []);
        assert_eq!(changes(&mut decision, 490, 10, 2, |_| load(9.0, 0.9)), []);
        assert_eq!(changes(&mut decision, 500, 490, 2, quarter), []);
        assert_eq!(changes(&mut decision, 990, 100, 2, quarter), [(1000, 1)]);
    }

    #[test]
    fn a_thread_that_cannot_be_rid_of_its_groups_is_heard_too() {
        let owners = Arc::new(Owners::new(wire::flow::Groups::keyed(16, [1, 2]), 4, |group| 2 * (group % 2)));
        let bells = (0..4).map(|_| Arc::new(Bell::new().unwrap())).collect();
        let crew = Crew::new(0, owners.clone(), bells);
        crew.set(1);
        // what one without a group has to do soon ends
        let all = [load(0.0, 1.0), load(900.0, 0.0), load(500.0, 0.0), load(900.0, 0.0)];
        assert_eq!(crew.serving_besides(&all), [all[2]]);
        let (policy, mut decision) = (Policy::default(), Decision::default());
        let mut look = |ms: u64, on_duty: &[Load], besides: &[Load]| {
            decision.look(&policy, Instant::from_nanos(ms * 1_000_000), on_duty, besides, 4)
        };
        assert_eq!(look(0, &all[..1], &all[2..3]), 2);
        // not faster than by the others
        assert_eq!([look(90, &all[..1], &all[2..3]), look(100, &all[..1], &all[2..3])], [1, 2]);
        // nor for a thread that serves little
        assert_eq!(look(1000, &all[..1], &[load(32.0, 0.5)]), 1);
        // and while it is so none is removed
        assert!((1100..5000).step_by(10).all(|ms| look(ms, &[load(0.0, 1.0); 4], &all[2..3]) == 4));
        crew.set(3);
        assert_eq!(crew.serving_besides(&all), []);
    }

    #[test]
    fn a_steady_load_changes_nothing_wherever_it_lies() {
        for tenths in 0..=40 {
            let work = f64::from(tenths) / 10.0;
            // more wait the nearer a thread is to its peak
            let of = |count: usize| {
                let busy = (work / count as f64).min(1.0);
                load(if busy >= 0.97 { 100.0 } else { busy / (1.0 - busy) }, 1.0 - busy)
            };
            for start in 1..=4 {
                let mut decision = Decision::default();
                let found = changes(&mut decision, 0, 10_000, start, of);
                let rises = found.windows(2).all(|two| two[0].1 < two[1].1);
                let falls = found.windows(2).all(|two| two[0].1 > two[1].1);
                assert!(rises || falls, "{work} from {start}: {found:?}");
                let count = found.last().map_or(start, |last| last.1);
                assert_eq!(changes(&mut decision, 10_000, 60_000, count, of), [], "{work} from {start}");
            }
        }
    }

    #[test]
    fn averages_follow_what_is_counted() {
        let counters = Arc::new(Counters::default());
        let averages = Arc::new(Averages::new(3));
        let mut now = Instant::ZERO;
        let mut watched = Watched::new(counters.clone(), averages.clone(), EVERY, now);
        // in each 10 ms 100 cycles with work of 50 us, with 32 frames each and 64 left behind each, and 100 without
        for _ in 0..100 {
            counters.cycles.add(200);
            counters.empty_cycles.add(100);
            counters.received.add(3200);
            counters.busy_ns.add(5_000_000);
            counters.queued.add(6400);
            now += EVERY;
            watched.look(now, false);
        }
        let mut shown = Vec::new();
        averages.report(&mut |figure| {
            assert_eq!(figure.labels, [("thread", "3")]);
            shown.push(figure.value);
        });
        assert_eq!(shown, [100, 64, 32, 50_000, 500]);
        assert_eq!((averages.idle_permille(), averages.queue_delay_us()), (500, 100));
        // a step is half-way through after three to four intervals
        (1..=4).for_each(|n| watched.look(now + n * EVERY, true));
        assert!((25.0..35.0).contains(&watched.load.queued), "{:?}", watched.load);
        // nothing is known of bursts when there are none
        assert_eq!(watched.load.batch.round(), 32.0);
    }

    #[test]
    fn a_long_cycle_counts_for_as_long_as_it_took() {
        let counters = Arc::new(Counters::default());
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let mut watched = Watched::new(counters.clone(), Arc::new(Averages::new(0)), EVERY, at(0));
        // one cycle after another of 64 ms each, which leave 100 frames behind
        for ended in 1..=10 {
            let (before, begun) = (watched.load, 64 * (ended - 1));
            (1..=6).for_each(|n| watched.look(at(begun + 10 * n), false));
            assert_eq!(watched.load, before, "in the midst of cycle {ended}");
            counters.cycles.add(1);
            counters.received.add(64);
            counters.busy_ns.add(64_000_000);
            counters.queued.add(100);
            watched.look(at(64 * ended), false);
            // as if it had been told at each look
            let told = 1.0 - (WINDOW / (WINDOW + 1.0)).powi(6 * ended as i32);
            assert!((watched.load.queued / 100.0 - told).abs() < 1e-9 && (1.0 - watched.load.idle - told).abs() < 1e-9);
        }
        // nor does it stay so when it sleeps
        (1..=100).for_each(|n| watched.look(at(640 + 10 * n), true));
        assert!(watched.load.queued < 1e-3 && watched.load.idle > 0.999, "{:?}", watched.load);
    }

    #[test]
    fn while_one_hangs_all_serve() {
        let owners = Arc::new(Owners::new(wire::flow::Groups::keyed(16, [1, 2]), 3, |_| 0));
        let bells = (0..3).map(|_| Arc::new(Bell::new().unwrap())).collect();
        let crew = Crew::new(0, owners, bells);
        crew.set(1);
        crew.set_hangs(0, true);
        assert_eq!(crew.on_duty(), 3);
        crew.review(|_| panic!("what those have to do says nothing now"));
        // what is asked for meanwhile, and two at a time
        crew.set(2);
        crew.set_hangs(1, true);
        crew.set_hangs(0, false);
        assert_eq!(crew.on_duty(), 3);
        crew.set_hangs(1, false);
        assert_eq!((crew.on_duty(), crew.added.get(), crew.removed.get()), (2, 2, 3));
        crew.review(|on_duty| on_duty + 1);
        assert_eq!(crew.on_duty(), 3);
    }

    #[test]
    fn all_hear_that_one_hangs_though_all_serve_already() {
        let owners = Arc::new(Owners::new(wire::flow::Groups::keyed(16, [1, 2]), 2, |_| 0));
        let bells: Vec<_> = (0..2).map(|_| Arc::new(Bell::new().unwrap())).collect();
        let crew = Crew::new(0, owners, bells.clone());
        for hangs in [true, false] {
            crew.set_hangs(0, hangs);
            for bell in &bells {
                let mut rung = [PollFd::from_borrowed_fd(bell.descriptor(), PollFlags::IN)];
                assert_eq!(poll(&mut rung, Some(&Timespec::default())).unwrap(), 1);
                bell.silence();
            }
        }
    }
}
