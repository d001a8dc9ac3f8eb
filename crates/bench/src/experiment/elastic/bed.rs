//! The dataplane on the in-memory NIC, and the generator at its other end.

use super::super::rung::{Mark, Queue, Rung};
use super::Options;
use anyhow::{Context as _, Result, ensure};
use app::{Listener, Service};
use base::balance::Policy;
use base::rng::Rng;
use base::{Burst, Clock, Frame, Instant};
use dataplane::{Config, Dataplane, Owners, Sharing, elastic};
use port::pipe::{self, Pipe};
use port::{Facts, Port};
use stack::{Claim, ClaimMode, OwnAddress, Stack, UdpListener};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use wire::ethernet::{EtherType, Link};
use wire::flow::{Flow, Groups};
use wire::{Protocol, Sum, ipv4, udp};

const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const PORT: u16 = 7;
const FIRST_PORT: u16 = 10_000;
/// Where the payload begins: a number, when it was due, and in answers when they left.
const AT: usize = 14 + 20 + 8;
const PAYLOAD_BYTES: usize = 4 + 8 + 8;
const FRAME_BYTES: usize = AT + PAYLOAD_BYTES;

/// Questions come at ticks: as far apart as one thread takes for a question, so that the generator wakes no more often than it must, and within
/// these bounds.
const TICKS: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(1)];
/// Answers are told by windows of this length.
pub(super) const WINDOW: Duration = Duration::from_millis(100);
/// Frames that the NIC has room for in each queue: what comes before a thread is added waits there.
const RING_FRAMES: usize = 8192;
/// Questions on their way while the peak is measured, how long that takes, and how much of it does not count.
const PEAK_WINDOW: u64 = 512;
const PEAK: Duration = Duration::from_secs(2);
const WARM_UP: Duration = Duration::from_millis(500);
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
    /// of one processor, while it asked
    pub(super) generator_share: f64,
    /// whether it ran at a real-time priority
    pub(super) real_time: bool,
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

/// A chain of steps that each need the one before, in registers alone: how fast a processor passes what it has just stored to the next load
/// varies by a fifth from one moment to the next.
fn work(steps: u64) -> u64 {
    let step = |state: u64, _| state.wrapping_mul(6_364_136_223_846_793_005) ^ (state >> 29);
    (0..std::hint::black_box(steps)).fold(1, step)
}

/// Steps that take `ns`, by the fastest of some tries.
fn steps_of(ns: u32) -> u64 {
    const TRY: u64 = 1_000_000;
    let took = (0..20).map(|_| {
        let begun = std::time::Instant::now();
        std::hint::black_box(work(TRY));
        begun.elapsed()
    });
    let least = took.min().map_or(1, |took| took.as_nanos().max(1));
    ((u128::from(TRY) * u128::from(ns)) / least).max(1) as u64
}

/// Writes into each answer when it was sent.
struct Stamp(Clock);

impl Mark for Stamp {
    fn mark(&mut self, leaving: &mut Burst) {
        let now = self.0.now().as_nanos();
        for frame in leaving.iter_mut().filter(|frame| frame.len() == FRAME_BYTES) {
            frame.bytes_mut()[AT + 12..].copy_from_slice(&now.to_be_bytes());
        }
    }
}

struct Bed {
    dataplane: Dataplane<Queue<Stamp>, Work>,
    clients: Clients,
}

/// Starts the dataplane over these processors; with a policy, or with one thread on duty.
fn start(options: &Options, cpus: &[usize], policy: Option<elastic::Policy>, steps: u64) -> Result<Bed> {
    let threads = cpus.len();
    let frames = 2 * RING_FRAMES as u32;
    let config = pipe::Config { queues: threads, ring_frames: RING_FRAMES, frames, ..pipe::Config::default() };
    let (clients, servers) = pipe::pair(&config)?;
    let clock = Clock::start();
    let rungs = (0..threads).map(|_| Rung::new()).collect::<Result<Vec<_>>>()?;
    let servers = servers.into_iter().zip(&rungs).map(|(pipe, rung)| Queue::new(pipe, rung.clone(), Stamp(clock)));
    let owners = Arc::new(Owners::new(Groups::keyed(4096, [3, 5]), threads, |group| group % threads as u16));
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
    let dataplane = Dataplane::start(servers.collect(), &configured, make_stack, move |_| Work(steps))
        .context("the dataplane's threads")?;
    dataplane.set_threads(1);
    let flows = (0..options.flows).map(|n| {
        let flow = Flow::new(Protocol::UDP, (CLIENT, FIRST_PORT + n).into(), (SERVER, PORT).into());
        flow.map(|flow| owners.groups().of(&flow)).context("addresses of two families")
    });
    let groups = flows.collect::<Result<Vec<u16>>>()?;
    let flows = groups.into_iter().map(|group| OfFlow { group, asked: 0, answered: 0 }).collect();
    let clients = Clients {
        queues: clients,
        rungs,
        owners,
        clock,
        answers: Vec::new(),
        flows,
        order: Vec::new(),
        rng: Rng::new(17),
        next: 0,
        asked: 0,
        answered: 0,
        overtaken: 0,
    };
    Ok(Bed { dataplane, clients })
}

/// Flows, of each of which the queue is told, in an order by chance, but that the queues take turns as far as possible.
fn in_turn(queue_of: impl Iterator<Item = usize>, queues: usize, rng: &mut Rng) -> Vec<usize> {
    let mut of_queue = vec![Vec::new(); queues];
    queue_of.enumerate().for_each(|(flow, queue)| of_queue[queue].push(flow));
    let mut order = Vec::new();
    while of_queue.iter().any(|flows| !flows.is_empty()) {
        for flows in of_queue.iter_mut().filter(|flows| !flows.is_empty()) {
            order.push(flows.swap_remove(rng.below(flows.len() as u64) as usize));
        }
    }
    order
}

/// A flow.
#[derive(Debug)]
struct OfFlow {
    group: u16,
    asked: u32,
    answered: u32,
}

/// An answer that was taken from a queue.
struct Answer {
    left: u64,
    due: u64,
    port: u16,
    number: u32,
}

/// The other end of the NIC, whose table stays as it is: a flow comes to the same queue for ever, and crosses over when its group has moved.
struct Clients {
    queues: Vec<Pipe>,
    rungs: Vec<Arc<Rung>>,
    owners: Arc<Owners>,
    clock: Clock,
    /// answers that left after the queues were looked at last: one that left before may be in a queue that had its look already
    answers: Vec<Answer>,
    flows: Vec<OfFlow>,
    /// in which they ask: evenly at each queue, so that what waits does not wait for chance, and another each time
    order: Vec<usize>,
    rng: Rng,
    next: usize,
    asked: u64,
    answered: u64,
    /// answers that came behind a later one of their flow
    overtaken: u64,
}

impl Clients {
    /// Asks `count` questions, due at `due`, one in each flow in turn.
    fn ask(&mut self, count: u64, due: Instant) -> Result<()> {
        let mut bursts: Vec<Burst> = self.queues.iter().map(|_| Burst::new()).collect();
        let (flows, queues) = (self.flows.len(), self.queues.len());
        for _ in 0..count {
            if self.next == 0 {
                let queue_of = self.flows.iter().map(|flow| usize::from(flow.group) % queues);
                self.order = in_turn(queue_of, queues, &mut self.rng);
            }
            let of = self.order[self.next];
            let port = FIRST_PORT + of as u16;
            let flow = &mut self.flows[of];
            self.next = (self.next + 1) % flows;
            let to = usize::from(flow.group) % queues;
            let mut frame = self.queues[to].take().context("no free frame: the load is far more than is served")?;
            write(&mut frame, port, flow.asked, due);
            flow.asked += 1;
            bursts[to].push(frame);
            if bursts[to].is_full() {
                self.queues[to].transmit(&mut bursts[to]);
                self.rungs[to].ring();
            }
        }
        for (to, burst) in bursts.iter_mut().enumerate().filter(|(_, burst)| !burst.is_empty()) {
            self.queues[to].transmit(burst);
            self.rungs[to].ring();
        }
        self.asked += count;
        Ok(())
    }

    /// Takes the answers that are there, in the order in which they left: when each was due, and how long it took.
    fn take(&mut self, mut taken: impl FnMut(u64, u64)) -> Result<()> {
        let looked = self.clock.now().as_nanos();
        let mut burst = Burst::new();
        for queue in &mut self.queues {
            while queue.receive(&mut burst, 64) > 0 {
                for frame in burst.drain(..) {
                    if frame.len() == FRAME_BYTES {
                        let bytes = frame.bytes();
                        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_be_bytes);
                        let number = u32::from_be_bytes(bytes[AT..AT + 4].try_into()?);
                        let port = u16::from_be_bytes([bytes[36], bytes[37]]);
                        self.answers.push(Answer { left: word(AT + 12)?, due: word(AT + 4)?, port, number });
                    }
                    queue.give(frame);
                }
            }
            queue.flush();
        }
        // those of a burst left together, in the order in which they were taken
        self.answers.sort_by_key(|answer| answer.left);
        let known = self.answers.partition_point(|answer| answer.left <= looked);
        for Answer { left, due, port, number } in self.answers.drain(..known) {
            let flow = usize::from(port.wrapping_sub(FIRST_PORT));
            let flow = self.flows.get_mut(flow).context("an answer for nobody")?;
            let expected = flow.answered;
            // those between are lost, unless they come yet
            self.overtaken += u64::from(number < expected);
            flow.answered = expected.max(number + 1);
            self.answered += 1;
            taken(due, left.saturating_sub(due));
        }
        Ok(())
    }

    /// Waits for the last answers, to all that did not find the NIC full.
    fn finish(&mut self, mut taken: impl FnMut(u64, u64)) -> Result<()> {
        let begun = std::time::Instant::now();
        while self.answered + self.dropped() < self.asked {
            let missing = self.asked - self.answered - self.dropped();
            ensure!(begun.elapsed() < PATIENCE, "{missing} questions were not answered");
            std::thread::sleep(Duration::from_millis(1));
            self.take(&mut taken)?;
        }
        Ok(())
    }

    fn dropped(&self) -> u64 {
        self.queues.iter().map(|queue| queue.stats().dropped.get()).sum()
    }
}

fn write(frame: &mut Frame, port: u16, number: u32, due: Instant) {
    frame.set_len(FRAME_BYTES);
    let bytes = frame.bytes_mut();
    let link = Link { dst: [2, 0, 0, 0, 0, 2], src: [2, 0, 0, 0, 0, 1], tag: None, ether_type: EtherType::IPV4 };
    link.write(bytes);
    let payload_bytes = 8 + PAYLOAD_BYTES;
    let mut head = [0; 20];
    ipv4::Header { src: CLIENT, dst: SERVER, protocol: Protocol::UDP, ttl: 64, payload_bytes }.write(&mut head);
    bytes[14..34].copy_from_slice(&head);
    bytes[AT..AT + 4].copy_from_slice(&number.to_be_bytes());
    bytes[AT + 4..AT + 12].copy_from_slice(&due.as_nanos().to_be_bytes());
    bytes[AT + 12..].fill(0);
    let payload_sum = Sum::pseudo_v4(CLIENT, SERVER, Protocol::UDP, payload_bytes as u16);
    udp::write(&mut bytes[34..], port, PORT, payload_sum);
}

/// From one tick to the next.
pub(super) fn tick(options: &Options) -> Duration {
    Duration::from_nanos(options.work.into()).clamp(TICKS[0], TICKS[1])
}

/// The next multiple of a tick, slept until.
fn sleep_until(clock: Clock, at: Instant) {
    let now = clock.now();
    if at > now {
        std::thread::sleep(at - now);
    }
}

/// Answers a second of one thread.
fn peak(options: &Options, cpus: &[usize], steps: u64) -> Result<f64> {
    let Bed { dataplane, mut clients } = start(options, cpus, None, steps)?;
    let (clock, every) = (clients.clock, tick(options));
    let begun = clock.now();
    let (mut tick, mut first) = (begun, None);
    while tick - begun < PEAK {
        tick += every;
        sleep_until(clock, tick);
        clients.take(|_, _| {})?;
        let under_way = clients.asked - clients.answered;
        clients.ask(PEAK_WINDOW.saturating_sub(under_way), tick)?;
        if first.is_none() && tick - begun >= WARM_UP {
            first = Some((clients.answered, clock.now()));
        }
    }
    let (answered, now) = (clients.answered, clock.now());
    clients.finish(|_, _| {})?;
    dataplane.stop();
    let (before, since) = first.context("no time to measure the peak")?;
    Ok((answered - before) as f64 / (now - since).as_secs_f64())
}

/// How long answers took, by the window in which they were due.
struct Times {
    begun: u64,
    windows: Vec<Vec<u32>>,
}

impl Times {
    fn take(&mut self, due: u64, took: u64) {
        let window = due.saturating_sub(self.begun) / WINDOW.as_nanos() as u64;
        if let Some(window) = self.windows.get_mut(window as usize) {
            window.push(u32::try_from(took).unwrap_or(u32::MAX));
        }
    }
}

/// Gives this thread the processor and a real-time priority, which those that it starts do not inherit; whether it has that.
fn be_prompt(cpu: usize) -> Result<bool> {
    crate::procs::pin(cpu)?;
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let done = std::process::Command::new("chrt").args(["--fifo", "--reset-on-fork", "--pid", "1", &thread]).status();
    Ok(done.is_ok_and(|status| status.success()))
}

/// Nanoseconds that the calling thread has run, by the scheduler.
fn ran_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0)
}

/// Processor time of the process, in seconds (proc(5), in ticks of 10 ms).
fn process_s() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Runs it all.
pub(super) fn run(options: &Options, cpus: &[usize], stopped: &(dyn Fn() -> bool + Sync)) -> Result<Found> {
    let last = *cpus.last().context("processors")?;
    let steps = steps_of(options.work);
    // a thread of its own, since a priority stays with a thread
    std::thread::scope(|scope| {
        let generator = scope.spawn(|| {
            let real_time = be_prompt(last)?;
            let peak = peak(options, cpus, steps)?;
            eprintln!("one thread: {peak:.0} answers/s");
            generate(options, cpus, steps, peak, stopped).map(|found| Found { real_time, ..found })
        });
        generator.join().map_err(|_| anyhow::anyhow!("the generator panicked"))?
    })
}

fn generate(options: &Options, cpus: &[usize], steps: u64, peak: f64, stopped: &dyn Fn() -> bool) -> Result<Found> {
    let Bed { dataplane, mut clients } = start(options, cpus, Some(elastic::Policy::default()), steps)?;
    let (clock, every) = (clients.clock, tick(options));
    let hold = (options.hold / WINDOW.as_secs_f64()).ceil().max(1.0) as usize;
    let ticks = (WINDOW.as_nanos() / every.as_nanos()) as u32;
    let begun = clock.now() + every;
    let windows = hold * options.steps.len();
    let most = (2.0 * peak * WINDOW.as_secs_f64()) as usize;
    let mut times =
        Times { begun: begun.as_nanos(), windows: (0..windows).map(|_| Vec::with_capacity(most)).collect() };
    let mut found = Found { peak, ..Found::default() };
    let (mut tick, mut due, ran) = (begun, 0.0, ran_ns());
    for &load in &options.steps {
        eprintln!("load {load}: {} threads", clients.owners.on_duty());
        for _ in 0..hold {
            let before = clients.asked;
            for _ in 0..ticks {
                sleep_until(clock, tick);
                clients.take(|due, took| times.take(due, took))?;
                due += load * peak * every.as_secs_f64();
                clients.ask(due as u64, tick)?;
                due -= due.floor();
                tick += every;
            }
            let (at, asked) = ((tick - begun).as_secs_f64(), clients.asked - before);
            found.windows.push(Window { at, load, threads: clients.owners.on_duty(), asked, ..Window::default() });
            if stopped() {
                return Ok(found);
            }
        }
    }
    found.overloaded = clients.dropped();
    found.generator_share = (ran_ns() - ran) as f64 / (clock.now() - begun).as_nanos() as f64;
    clients.finish(|due, took| times.take(due, took)).with_context(|| {
        let each: Vec<_> = dataplane.crossings().map(|it| (it.lost.get(), it.hurried.get())).collect();
        format!("lost between threads, and steps of a move that were not waited for, by thread: {each:?}")
    })?;
    for (window, times) in found.windows.iter_mut().zip(&mut times.windows) {
        times.sort_unstable();
        let at = |part: f64| times.get((part * times.len() as f64) as usize).map_or(0.0, |ns| f64::from(*ns) / 1e3);
        (window.answered, window.median_us, window.p99_us) = (times.len() as u64, at(0.5), at(0.99));
    }
    found.asked = clients.asked;
    let before = process_s();
    std::thread::sleep(IDLE);
    found.idle_share = (process_s() - before) / IDLE.as_secs_f64();
    found.moved = dataplane.crossings().map(|crossings| crossings.groups_in.get()).sum();
    let lost: u64 = dataplane.crossings().map(|it| it.lost.get()).sum();
    let overtaken = clients.overtaken;
    // the host may have a thread's processor for longer than others wait: that loses nothing, and an answer that is overtaken for it is seen
    let hurried: u64 = dataplane.crossings().map(|it| it.hurried.get()).sum();
    if hurried > 0 {
        eprintln!("{hurried} steps of moves were not waited for");
    }
    dataplane.stop();
    ensure!(lost + overtaken == 0, "{lost} frames were lost between threads, {overtaken} answers overtaken");
    Ok(found)
}
