//! The threads: pinned, asleep when idle, woken by an eventfd, restarted after a panic.

use crate::bell::Bell;
use crate::counters::{Crossings, groups_under_way};
use crate::crossing::{Crossing, Helpers, crossings};
use crate::elastic::{Averages, Crew, Overseer, Policy as Elastic};
use crate::idle::{Governor, Idle, Next};
use crate::pulse::{Pulse, Scheduled};
use crate::tap::Tap;
use crate::{Counters, Floor, Loop, Owners, Steering};
use app::{Cycles, Service, Stopwatch, Waker};
use arrayvec::ArrayVec;
use base::balance::Policy;
use base::{Clock, Instant};
use port::{Facts, Outgoing, Port};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// While frames wait to go out the port wants a flush soon, and a port without a descriptor is to be asked; such a sleep is
/// this long at first and twice as long each time that nothing moved, up to a bound. What is asked may have something at any time; what
/// nothing leaves for so long is an interface that is down, and each look costs some 0.1 ms.
const SHORT_SLEEP: Duration = Duration::from_micros(200);
const LONGEST_ASKING_SLEEP: Duration = Duration::from_millis(5);
const LONGEST_STUCK_SLEEP: Duration = Duration::from_millis(20);
/// While the device has frames of ours the port is looked after so often, lest it have lost them. Longer than the kernel's
/// tick (1 to 10 ms): a sleep that ends before it has the timer hardware set and set back, which in a virtual machine takes
/// 8 us each (docs/results/latency.md).
const UNDERWAY_SLEEP: Duration = Duration::from_millis(20);
/// Panics that follow each other within this time make the thread rest that long before it goes on.
const PANIC_REST: Duration = Duration::from_millis(100);
/// Cycles at the end at most: they empty a receive ring of 2048 frames, also one by one.
const LAST_CYCLES: u32 = 4096;

/// How the threads run.
#[derive(Clone, Debug)]
pub struct Config {
    /// processors that the threads are pinned to, in turn; empty: not pinned
    pub cpus: Vec<usize>,
    /// frames of a cycle at most, 1 to 64
    pub batch: usize,
    /// datagrams are answered in frames of our own instead of in the received ones
    pub copies: bool,
    /// what a thread does when there is nothing to do
    pub idle: Idle,
    /// a cycle that takes so long counts as slow
    pub slow_after: Duration,
    /// Threads that share their work by flow group; the others serve what their ports receive.
    pub sharing: Vec<Sharing>,
    /// by what threads that share are added and removed; None: all serve
    pub elastic: Option<Elastic>,
}

/// Threads that share the work of one interface by flow group.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// the first of them; as many are meant as the table has
    pub first: usize,
    /// who owns which group, threads counted from the first
    pub owners: Arc<Owners>,
    /// by what groups move from busy threads to free ones; None: they stay
    pub balance: Option<Policy>,
    /// the NIC's table that follows the groups, each of which is an entry of it; None: it stays as it is
    pub steering: Option<Arc<Steering>>,
}

/// Each thread's ways to the others of its interface.
fn ways<P: Port>(sharing: &[Sharing], bells: &[Arc<Bell>], ports: &[P]) -> Vec<Option<Crossing>> {
    let mut ways: Vec<Option<Crossing>> = bells.iter().map(|_| None).collect();
    for Sharing { first, owners, balance, steering } in sharing {
        let threads = *first..first + owners.threads();
        assert!(threads.end <= bells.len(), "threads {threads:?} of {}", bells.len());
        // who gets no groups has nothing to help for
        let inlet = |port: &P| if balance.as_ref()?.migrate { port.inlet() } else { None };
        let helpers = Helpers::new(owners.groups().count(), ports[threads.clone()].iter().map(inlet));
        let bells = &bells[threads.clone()];
        let made = crossings(owners, balance.as_ref(), steering.as_ref(), *first, bells, &helpers);
        for (way, made) in ways[threads].iter_mut().zip(made) {
            assert!(way.is_none(), "a thread of two interfaces");
            *way = Some(made);
        }
    }
    ways
}

/// Frames of a cycle, at most, unless told otherwise. NAPI takes 64, and clients that wait for answers would be served in turns of as many: all
/// of them by us, then all by the other end, and neither works while the other does. AF_XDP in copy mode sends 32 a call.
pub const BATCH: usize = 32;

impl Default for Config {
    fn default() -> Self {
        Config {
            cpus: Vec::new(),
            batch: BATCH,
            copies: false,
            idle: Idle::default(),
            slow_after: Cycles::SLOW_AFTER,
            sharing: Vec::new(),
            elastic: None,
        }
    }
}

/// What control has a thread do between two cycles.
type Command<S, N> = Box<dyn FnOnce(&mut S, &mut N) + Send>;

enum Order<S, N> {
    Run(Command<S, N>),
    Tap(Option<Tap>),
    /// take over this flow group
    Want(u16),
}

/// What a thread and its handle share.
struct Shared {
    stop: AtomicBool,
    /// an order waits in the channel
    ordered: AtomicBool,
    bell: Arc<Bell>,
}

impl Shared {
    /// What a service gives to other threads: like an order, so that the stack is polled, which tells the service.
    fn waker(self: &Arc<Self>) -> Waker {
        let shared = self.clone();
        Waker::new(move || {
            shared.ordered.store(true, Ordering::Release);
            shared.bell.ring();
        })
    }
}

struct Handle<P, S, N> {
    join: Option<JoinHandle<P>>,
    shared: Arc<Shared>,
    orders: Mutex<Sender<Order<S, N>>>,
    counters: Arc<Counters>,
    crossings: Option<Arc<Crossings>>,
    scheduled: Arc<Scheduled>,
    service_cycles: Arc<Cycles>,
}

/// Running threads, one a port. Dropping it stops them.
pub struct Dataplane<P, S, N = stack::Stack> {
    /// the first to go: nobody changes the threads' number while they end
    overseer: Option<Overseer>,
    threads: Vec<Handle<P, S, N>>,
    /// threads that share, each crew with the number of its first
    crews: Vec<(usize, Arc<Crew>)>,
    clock: Clock,
}

impl<P, S, N> Dataplane<P, S, N>
where
    P: Port + Send + 'static,
    S: Service + 'static,
    N: Floor + 'static,
{
    /// Starts a thread for each of `ports`. It makes its stack and service there, and again after a panic; a stack that has a
    /// [`Floor::successor`] is not made again.
    ///
    /// # Errors
    /// The kernel's, when a thread cannot be made or pinned; those that were started are stopped.
    ///
    /// # Panics
    /// When threads are to share that are not there, or do so twice.
    pub fn start(
        ports: Vec<P>,
        config: &Config,
        make_stack: impl Fn(usize, &Facts) -> N + Send + Sync + 'static,
        make_service: impl Fn(usize) -> S + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let make = Arc::new((make_stack, make_service));
        let clock = Clock::start();
        let bells = ports.iter().map(|_| Bell::new().map(Arc::new)).collect::<io::Result<Vec<_>>>()?;
        let mut ways = ways(&config.sharing, &bells, &ports).into_iter();
        let crews = config.sharing.iter().map(|Sharing { first, owners, .. }| {
            let bells = bells[*first..*first + owners.threads()].to_vec();
            (*first, Arc::new(Crew::new(*first, owners.clone(), bells)))
        });
        let crews: Vec<_> = crews.collect();
        let mut dataplane = Dataplane { overseer: None, threads: Vec::with_capacity(ports.len()), crews, clock };
        for ((n, port), bell) in ports.into_iter().enumerate().zip(bells) {
            let crossing = ways.next().flatten();
            let crossings = crossing.as_ref().map(|crossing| crossing.counters().clone());
            let (stop, ordered) = (AtomicBool::new(false), AtomicBool::new(false));
            let shared = Arc::new(Shared { stop, ordered, bell });
            let (orders, ordered) = channel();
            let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
            let (make, config, of_thread) = (make.clone(), config.clone(), shared.clone());
            let cpu = (!config.cpus.is_empty()).then(|| config.cpus[n % config.cpus.len()]);
            let join = std::thread::Builder::new().name(format!("dataplane-{n}")).spawn(move || {
                if let Err(error) = cpu.map_or(Ok(()), pin) {
                    // whoever waits at the other end reports it
                    let _ = ready.send(Err(error));
                    return port;
                }
                let (make_stack, make_service) = &*make;
                let waker = of_thread.waker();
                let make_service = || {
                    let mut service = make_service(n);
                    service.begin(&waker);
                    service
                };
                let (stack, service) = (make_stack(n, port.facts()), make_service());
                let cycles = Loop::new(port, stack, service, config.batch).with_copies(config.copies);
                let cycles = cycles.with_crossing(crossing);
                // as above
                let scheduled = Arc::new(Scheduled::of_this_thread());
                let service_cycles = Arc::new(Cycles::new("dataplane", n));
                service_cycles.serves(cycles.service_name());
                let _ = ready.send(Ok((cycles.counters().clone(), scheduled.clone(), service_cycles.clone())));
                let mut thread = Thread {
                    scheduled,
                    service_cycles,
                    stopwatch: Stopwatch::new(config.slow_after),
                    cycles,
                    shared: of_thread,
                    ordered,
                    governor: Governor::new(config.idle),
                    clock,
                    short_sleep: SHORT_SLEEP,
                };
                thread.supervise(|facts| make_stack(n, facts), make_service);
                thread.cycles.into_port()
            })?;
            let started = is_ready.recv().unwrap_or_else(|_| Err(io::Error::other("it panicked at its start")));
            let (counters, scheduled, service_cycles) = started
                .map_err(|error| io::Error::new(error.kind(), format!("starting dataplane thread {n}: {error}")))?;
            let orders = Mutex::new(orders);
            dataplane.threads.push(Handle {
                join: Some(join),
                shared,
                orders,
                counters,
                crossings,
                scheduled,
                service_cycles,
            });
        }
        let threads = dataplane.threads.iter().map(|thread| (thread.counters.clone(), thread.shared.bell.clone()));
        let threads = threads.collect();
        dataplane.overseer = Some(Overseer::start(threads, dataplane.crews.clone(), config.elastic.clone())?);
        Ok(dataplane)
    }

    /// Each thread's counters.
    pub fn counters(&self) -> impl Iterator<Item = &Arc<Counters>> {
        self.threads.iter().map(|thread| &thread.counters)
    }

    /// What each thread counts of its dealings with the others; nothing where each serves what its port receives.
    pub fn crossings(&self) -> impl Iterator<Item = &Arc<Crossings>> {
        self.threads.iter().filter_map(|thread| thread.crossings.as_ref())
    }

    /// Flow groups that have left a thread and are not taken in by another yet.
    pub fn groups_under_way(&self) -> u64 {
        groups_under_way(&self.crossings().cloned().collect::<Vec<_>>())
    }

    /// How long the service of each thread keeps it.
    pub fn cycles(&self) -> impl Iterator<Item = &Arc<Cycles>> {
        self.threads.iter().map(|thread| &thread.service_cycles)
    }

    /// Each thread's moving averages.
    pub fn averages(&self) -> impl Iterator<Item = &Arc<Averages>> {
        self.overseer.iter().flat_map(Overseer::averages)
    }

    /// The threads of each interface that share their work.
    pub fn crews(&self) -> impl Iterator<Item = &Arc<Crew>> {
        self.crews.iter().map(|(_, crew)| crew)
    }

    /// Has `threads` of each interface's threads serve, from the first on, or all that it has if those are fewer. Those that are not
    /// needed give away what they have, and sleep. Under a policy ([`Config::elastic`]) it is the number from which that goes on. While one hangs
    /// ([`Dataplane::set_hangs`]) all serve, and so many from then on.
    pub fn set_threads(&self, threads: usize) {
        self.crews().for_each(|crew| crew.set(threads.clamp(1, crew.threads())));
    }

    /// Thread `n` hangs, as its [`Dataplane::pulses`] show, or comes round again: meanwhile it is given no groups, and the others of its
    /// interface serve, all of them, with their own queues.
    pub fn set_hangs(&self, n: usize, hangs: bool) {
        let crew = self.crews.iter().find(|(first, crew)| (*first..*first + crew.threads()).contains(&n));
        if let Some((first, crew)) = crew {
            crew.set_hangs(n - first, hangs);
        }
    }

    /// Each thread's pulse.
    pub fn pulses(&self) -> impl Iterator<Item = Pulse> {
        self.threads.iter().map(|thread| {
            let (cycles, asleep) = (thread.counters.cycles.get(), thread.shared.bell.is_asleep());
            let ran_ns = if asleep { None } else { thread.scheduled.ran_ns() };
            Pulse { cycles, asleep, waited_ns: thread.scheduled.waits().ns, ran_ns }
        })
    }

    /// Has thread `to` take a flow group over from its owner; false when there is no such thread.
    pub fn move_group(&self, group: u16, to: usize) -> bool {
        to < self.threads.len() && self.order(to, Order::Want(group))
    }

    /// The clock of all threads, by which services are told the time.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Makes every thread begin a cycle now, so that sleeping ones take what was published.
    pub fn wake(&self) {
        self.threads.iter().for_each(|thread| thread.shared.bell.ring());
    }

    /// Has `command` run on every thread, between two cycles, with its service and stack; does not wait for it. The stack
    /// is polled afterwards.
    pub fn command(&self, command: impl Fn(usize, &mut S, &mut N) + Send + Sync + 'static) {
        let command = Arc::new(command);
        for n in 0..self.threads.len() {
            let command = command.clone();
            self.order(n, Order::Run(Box::new(move |service, stack| command(n, service, stack))));
        }
    }

    /// Begins or ends copying the frames of thread `n`; false when there is no such thread.
    pub fn tap(&self, n: usize, tap: Option<Tap>) -> bool {
        n < self.threads.len() && self.order(n, Order::Tap(tap))
    }

    fn order(&self, n: usize, order: Order<S, N>) -> bool {
        let thread = &self.threads[n];
        let sent = thread.orders.lock().unwrap_or_else(PoisonError::into_inner).send(order).is_ok();
        thread.shared.ordered.store(true, Ordering::Release);
        thread.shared.bell.ring();
        sent
    }

    /// Stops the threads at their next cycle boundary, once they have answered what was received by then, and returns their
    /// ports; answers that the transmit ring had taken are the port's to finish.
    pub fn stop(mut self) -> Vec<P> {
        self.end()
    }
}

impl<P, S, N> Dataplane<P, S, N> {
    fn end(&mut self) -> Vec<P> {
        self.overseer = None;
        for thread in &self.threads {
            thread.shared.stop.store(true, Ordering::Release);
            thread.shared.bell.ring();
        }
        // a thread that panicked outside its containment was shown by the panic hook; its port went with it
        self.threads.iter_mut().filter_map(|thread| thread.join.take()?.join().ok()).collect()
    }
}

impl<P, S, N> Drop for Dataplane<P, S, N> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<P, S, N> std::fmt::Debug for Dataplane<P, S, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dataplane({} threads)", self.threads.len())
    }
}

fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no processor {cpu}")));
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|error| io::Error::new(error.kind(), format!("pinning to processor {cpu}: {error}")))
}

struct Thread<P, S, N> {
    scheduled: Arc<Scheduled>,
    service_cycles: Arc<Cycles>,
    stopwatch: Stopwatch,
    cycles: Loop<P, S, N>,
    shared: Arc<Shared>,
    ordered: Receiver<Order<S, N>>,
    governor: Governor,
    clock: Clock,
    short_sleep: Duration,
}

impl<P: Port, S: Service, N: Floor> Thread<P, S, N> {
    /// Runs until told to stop, with a new stack and service after each panic.
    fn supervise(&mut self, make_stack: impl Fn(&Facts) -> N, make_service: impl Fn() -> S) {
        let mut last_panic = None;
        let mut broken = false;
        loop {
            // what a panic may leave half done is replaced before the next cycle: stack, service and the bursts
            let run = catch_unwind(AssertUnwindSafe(|| {
                if broken {
                    let stack = match self.cycles.stack().successor() {
                        Some(stack) => stack,
                        None => {
                            let mut stack = make_stack(self.cycles.port().facts());
                            self.cycles.introduce(&mut stack);
                            stack
                        }
                    };
                    self.cycles.recover(stack, make_service());
                    broken = false;
                }
                self.run();
            }));
            if run.is_ok() || self.shared.stop.load(Ordering::Acquire) {
                return;
            }
            broken = true;
            // a command that panicked may have left others behind it
            self.shared.ordered.store(true, Ordering::Release);
            self.cycles.counters().panics.add(1);
            let now = self.clock.now();
            if last_panic.is_some_and(|last| now - last < PANIC_REST) {
                // a service that cannot run must not burn the processor
                self.shared.bell.fall_asleep();
                std::thread::sleep(PANIC_REST);
                self.shared.bell.wake_up();
            }
            last_panic = Some(now);
        }
    }

    /// Tells the balance how the thread was let run, once an interval.
    #[cold]
    fn tell_delay(&mut self, now: Instant) {
        let busy_ns = self.cycles.counters().busy_ns.get();
        if let Some(crossing) = self.cycles.crossing() {
            crossing.on_delay(now, self.scheduled.waits(), busy_ns);
        }
    }

    fn run(&mut self) {
        let mut now = self.clock.now();
        while !self.shared.stop.load(Ordering::Acquire) {
            if self.shared.ordered.load(Ordering::Acquire) {
                self.carry_out();
            }
            if self.cycles.crossing().is_some_and(|crossing| crossing.wants_delay(now)) {
                self.tell_delay(now);
            }
            self.stopwatch.begin(&self.service_cycles);
            let activity = self.cycles.cycle(now);
            let (began, busy) = (now, activity.is_busy());
            now = self.clock.now();
            let waited_ns = || self.scheduled.waits().ns;
            self.stopwatch.end(&self.service_cycles, began, now, waited_ns);
            if busy {
                self.short_sleep = SHORT_SLEEP;
                self.cycles.counters().busy_ns.add((now - began).as_nanos() as u64);
            }
            // who is not needed does not ask, whatever the policy: its processor is somebody else's
            let needed = busy || self.cycles.crossing().is_none_or(|crossing| !crossing.is_off_duty());
            match if needed { self.governor.after_cycle(now, busy) } else { Next::Sleep } {
                Next::Cycle => {}
                Next::Yield => {
                    rustix::thread::sched_yield();
                    self.cycles.counters().yields.add(1);
                    now = self.clock.now();
                    self.governor.yielded(now);
                }
                Next::Sleep => {
                    let woken = self.sleep(now, activity.next, activity.outgoing);
                    self.cycles.counters().asleep_ns.add((woken - now).as_nanos() as u64);
                    now = woken;
                }
            }
        }
        // what had come is still answered; with a bound, since peers may go on asking
        for _ in 0..LAST_CYCLES {
            let activity = self.cycles.cycle(self.clock.now());
            if !activity.is_busy() && activity.outgoing == Outgoing::Nothing {
                break;
            }
        }
    }

    #[cold]
    fn carry_out(&mut self) {
        self.shared.ordered.store(false, Ordering::Release);
        while let Ok(order) = self.ordered.try_recv() {
            self.cycles.counters().commands.add(1);
            match order {
                Order::Run(command) => self.cycles.with_parts(command),
                Order::Tap(tap) => self.cycles.set_tap(tap),
                Order::Want(group) => self.cycles.crossing().into_iter().for_each(|crossing| crossing.want(group)),
            }
        }
        // for what a command changed, and for a service that another thread woke
        self.cycles.poll_soon();
    }

    /// Sleeps until a frame, a wake-up or `until`; the time then.
    fn sleep(&mut self, now: Instant, until: Option<Instant>, outgoing: Outgoing) -> Instant {
        let bell = self.shared.bell.clone();
        bell.fall_asleep();
        let rests = self.cycles.may_rest(now);
        let woken = if rests { self.wait(now, until, outgoing) } else { now };
        bell.wake_up();
        woken
    }

    fn wait(&mut self, now: Instant, until: Option<Instant>, outgoing: Outgoing) -> Instant {
        let (port, crossing) = self.cycles.port_and_crossing();
        // what has arrived cannot be received while nothing can be sent: to wait for it would be to ask again and again, on a
        // processor that whoever makes room may need
        let full = outgoing == Outgoing::Full || crossing.is_some_and(Crossing::leaves_arrivals);
        // nothing of ours arrives at a port without a queue, or whose queue another thread serves
        let receives = port.host().is_none() && crossing.is_none_or(Crossing::has_queue);
        let pollable = if full || !receives { None } else { port.descriptor() };
        let asks = receives && pollable.is_none();
        let elsewhere = crossing.filter(|_| !full).and_then(Crossing::elsewhere);
        let is_blocked = crossing.is_some_and(Crossing::is_blocked);
        let most = if outgoing >= Outgoing::Waiting || full || asks || is_blocked {
            let short = self.short_sleep;
            let longest = if asks || is_blocked { LONGEST_ASKING_SLEEP } else { LONGEST_STUCK_SLEEP };
            self.short_sleep = (short * 2).min(longest);
            Some(now + short)
        } else {
            (outgoing == Outgoing::Underway).then_some(now + UNDERWAY_SLEEP)
        };
        // past the timer's own time rather than before it: a wake-up that came early would find nothing due
        let limit = until.into_iter().chain(most).min().map(|until| until - now);
        if limit == Some(Duration::ZERO) {
            return now;
        }
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let wake = PollFd::from_borrowed_fd(self.shared.bell.descriptor(), PollFlags::IN);
        let arrives = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut all = ArrayVec::<_, 3>::from_iter([wake]);
        all.extend(pollable.into_iter().chain(elsewhere).map(arrives));
        self.cycles.counters().sleeps.add(1);
        // an interrupted sleep is a short one
        let _ = poll(&mut all, limit.as_ref());
        let signalled = !all[0].revents().is_empty();
        if signalled {
            self.shared.bell.silence();
        }
        self.clock.now()
    }
}
