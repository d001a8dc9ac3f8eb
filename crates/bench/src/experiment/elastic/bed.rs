//! The dataplane on the in-memory NIC, under a load that goes up and down.

use super::Options;
use super::source::{CLIENT, FIRST_PORT, PORT, SERVER, Source, Step, Tally, Traffic, sources};
use anyhow::{Context as _, Result, ensure};
use app::{Listener, Service};
use base::balance::Policy;
use base::{Clock, Instant};
use dataplane::{Config, Dataplane, Owners, Sharing, elastic};
use port::{Facts, pipe};
use rustix::time::{ClockId, clock_gettime};
use stack::{Claim, ClaimMode, OwnAddress, Stack, UdpListener};
use std::sync::Arc;
use std::time::Duration;
use wire::Protocol;
use wire::flow::{Flow, Groups};

/// Answers are told by windows of this length.
pub(super) const WINDOW: Duration = Duration::from_millis(100);
/// Frames that the NIC has room for in each queue: what comes before a thread is added waits there.
const RING_FRAMES: usize = 8192;
/// To measure one thread's peak, this many times as much is asked as its work alone leaves time for, how long, and how much of it does not count.
const PEAK_LOAD: f64 = 1.25;
const PEAK: Duration = Duration::from_secs(2);
const WARM_UP: Duration = Duration::from_millis(500);
/// The first question comes so long after the threads have been started.
const LEAD: Duration = Duration::from_millis(20);
/// How long it may take until the last answers are there.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the machine is watched without load.
const IDLE: Duration = Duration::from_secs(3);

/// One window.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    /// its end, in seconds
    pub(super) at: f64,
    /// the load, in parts of the peak
    pub(super) load: f64,
    pub(super) threads: usize,
    /// questions that were due, and the answers to them
    pub(super) asked: u64,
    pub(super) answered: u64,
    /// in microseconds, of those that were due in it
    pub(super) median_us: f64,
    pub(super) p99_us: f64,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// answers a second of one thread
    pub(super) peak: f64,
    pub(super) windows: Vec<Window>,
    pub(super) asked: u64,
    /// questions that found the NIC's queue full
    pub(super) overloaded: u64,
    /// flow groups that changed their thread
    pub(super) moved: u64,
    /// processor time of the whole process without load, in parts of one processor
    pub(super) idle_share: f64,
}

/// Echoes after some work.
struct Work(u64);

impl Service for Work {
    fn datagrams(&mut self, _: Instant, _: Listener, burst: &mut [app::Datagram<'_>]) {
        for datagram in burst {
            std::hint::black_box(work(self.0));
            datagram.reply(datagram.question().len());
        }
    }
}

/// A chain of turns that each need the one before, in registers alone: how fast a processor passes what it has just stored to the next load
/// varies by a fifth from one moment to the next.
fn work(turns: u64) -> u64 {
    let turn = |state: u64, _| state.wrapping_mul(6_364_136_223_846_793_005) ^ (state >> 29);
    (0..std::hint::black_box(turns)).fold(1, turn)
}

/// Turns that take `ns`, by the fastest of some tries.
fn turns_of(ns: u32) -> u64 {
    const TRY: u64 = 1_000_000;
    let took = (0..20).map(|_| {
        let begun = std::time::Instant::now();
        std::hint::black_box(work(TRY));
        begun.elapsed()
    });
    let least = took.min().map_or(1, |took| took.as_nanos().max(1));
    ((u128::from(TRY) * u128::from(ns)) / least).max(1) as u64
}

/// Processor time of the process, in seconds.
fn process_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

struct Bed {
    dataplane: Dataplane<Source, Work>,
    owners: Arc<Owners>,
    tally: Arc<Tally>,
    clock: Clock,
    begun: Instant,
}

/// Starts the dataplane over these processors, with one thread on duty, whose service takes so many turns, and with these loads, each with how long
/// it is held; with a policy the number of threads follows them.
fn start(
    options: &Options,
    cpus: &[usize],
    policy: Option<elastic::Policy>,
    turns: u64,
    loads: &[(f64, Duration)],
) -> Result<Bed> {
    let threads = cpus.len();
    let frames = 2 * RING_FRAMES as u32;
    let config = pipe::Config { queues: threads, ring_frames: RING_FRAMES, frames, ..pipe::Config::default() };
    let (clients, servers) = pipe::pair(&config)?;
    let owners = Arc::new(Owners::new(Groups::keyed(4096, [3, 5]), threads, |group| group % threads as u16));
    let clock = Clock::start();
    let begun = clock.now() + LEAD;
    let mut end = begun;
    let steps = loads.iter().map(|(per_second, hold)| {
        let from = end;
        end += *hold;
        Step { from, per_second: *per_second }
    });
    let steps: Vec<Step> = steps.collect();
    let flows = flows(options.flows, &owners, threads)?;
    let traffic = Traffic { steps: &steps, end, flows, window: WINDOW, clock };
    let (queues, tally) = sources(clients, servers, traffic)?;
    let sharing = vec![Sharing { first: 0, owners: owners.clone(), balance: Some(Policy::default()), steering: None }];
    let configured = Config { cpus: cpus.to_vec(), sharing, elastic: policy, ..Config::default() };
    let make_stack = |_, facts: &Facts| {
        let config = stack::Config {
            own: vec![OwnAddress { addr: SERVER.into(), prefix_len: 24 }],
            listeners: vec![UdpListener { listener: Listener(0), local: (SERVER, PORT).into() }],
            claim: Claim { mode: ClaimMode::Silent, ..Claim::default() },
            ..stack::Config::default()
        };
        Stack::new(config, facts)
    };
    let dataplane =
        Dataplane::start(queues, &configured, make_stack, move |_| Work(turns)).context("the dataplane's threads")?;
    dataplane.set_threads(1);
    Ok(Bed { dataplane, owners, tally, clock, begun })
}

/// The flows of each queue. The NIC's table stays as it is: a flow comes to the same queue for ever, and crosses over when its group has moved.
fn flows(count: u16, owners: &Owners, queues: usize) -> Result<Vec<Vec<u16>>> {
    let mut of_queue = vec![Vec::new(); queues];
    for n in 0..count {
        let flow = Flow::new(Protocol::UDP, (CLIENT, FIRST_PORT + n).into(), (SERVER, PORT).into());
        let group = owners.groups().of(&flow.context("addresses of two families")?);
        of_queue[usize::from(group) % queues].push(n);
    }
    ensure!(of_queue.iter().all(|flows| !flows.is_empty()), "--flows: {count} leave a queue of {queues} without any");
    Ok(of_queue)
}

impl Bed {
    fn sleep_until(&self, at: Instant) {
        let now = self.clock.now();
        if at > now {
            std::thread::sleep(at - now);
        }
    }

    /// Waits for the last answers, to all that did not find the NIC full.
    fn finish(&self) -> Result<()> {
        let begun = std::time::Instant::now();
        while self.tally.missing() != Some(0) {
            if begun.elapsed() >= PATIENCE {
                let each: Vec<_> = self.dataplane.crossings().map(|it| (it.lost.get(), it.hurried.get())).collect();
                anyhow::bail!(
                    "{:?} questions were not answered; lost between threads, and steps of a move that were not waited for, by thread: {each:?}",
                    self.tally.missing()
                );
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Answers a second of one thread.
fn peak(options: &Options, cpus: &[usize], turns: u64) -> Result<f64> {
    let asked = PEAK_LOAD * 1e9 / f64::from(options.work);
    let bed = start(options, cpus, None, turns, &[(asked, PEAK)])?;
    let answered = |at| {
        bed.sleep_until(at);
        let [_, answered, _] = bed.tally.counts();
        (answered, bed.clock.now())
    };
    let (before, since) = answered(bed.begun + WARM_UP);
    let (after, now) = answered(bed.begun + PEAK);
    bed.finish()?;
    bed.dataplane.stop();
    Ok((after - before) as f64 / (now - since).as_secs_f64())
}

/// Runs it all.
pub(super) fn run(options: &Options, cpus: &[usize], stopped: &dyn Fn() -> bool) -> Result<Found> {
    let turns = turns_of(options.work);
    let peak = peak(options, cpus, turns)?;
    eprintln!("one thread: {peak:.0} answers/s");
    let hold = (options.hold / WINDOW.as_secs_f64()).ceil().max(1.0) as u32;
    let loads: Vec<_> = options.steps.iter().map(|load| (load * peak, hold * WINDOW)).collect();
    let bed = start(options, cpus, Some(elastic::Policy::default()), turns, &loads)?;
    let mut found = Found { peak, ..Found::default() };
    let mut end = bed.begun;
    for &load in &options.steps {
        eprintln!("load {load}: {} threads", bed.owners.on_duty());
        for _ in 0..hold {
            end += WINDOW;
            bed.sleep_until(end);
            let (at, threads) = ((end - bed.begun).as_secs_f64(), bed.owners.on_duty());
            found.windows.push(Window { at, load, threads, ..Window::default() });
            if stopped() {
                return Ok(found);
            }
        }
    }
    bed.finish()?;
    for (window, (asked, mut times)) in found.windows.iter_mut().zip(bed.tally.windows()) {
        times.sort_unstable();
        let at = |part: f64| times.get((part * times.len() as f64) as usize).map_or(0.0, |ns| f64::from(*ns) / 1e3);
        (window.median_us, window.p99_us) = (at(0.5), at(0.99));
        (window.asked, window.answered) = (asked, times.len() as u64);
    }
    [found.asked, _, found.overloaded] = bed.tally.counts();
    let before = process_s();
    std::thread::sleep(IDLE);
    found.idle_share = (process_s() - before) / IDLE.as_secs_f64();
    found.moved = bed.dataplane.crossings().map(|crossings| crossings.groups_in.get()).sum();
    let lost: u64 = bed.dataplane.crossings().map(|it| it.lost.get()).sum();
    let overtaken = bed.tally.overtaken();
    // the host may have a thread's processor for longer than others wait: that loses nothing, and an answer that is overtaken for it is seen
    let hurried: u64 = bed.dataplane.crossings().map(|it| it.hurried.get()).sum();
    if hurried > 0 {
        eprintln!("{hurried} steps of moves were not waited for");
    }
    bed.dataplane.stop();
    ensure!(lost + overtaken == 0, "{lost} frames were lost between threads, {overtaken} answers overtaken");
    Ok(found)
}
