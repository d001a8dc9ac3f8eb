//! One run: a dataplane on the in-memory NIC, with the clients in its ports; where its threads are several, dataplanes of one thread, one on
//! each of its processors, take turns with it, which is what it is compared with.

use super::figures::{Figures, Sums, WINDOW, Window};
use super::half::{Arrival, Plan, Played, Tally, played};
use super::slices::{Counts, Turns};
use super::talk::{Dns, Flows, SERVER, Talk, Web};
use super::{Mode, Protocol};
use crate::pipe;
use crate::pipe_dns::tables;
use crate::pipe_http::one_file;
use anyhow::{Context as _, Result, bail, ensure};
use app::{Listener, Service};
use base::balance::Policy;
use base::publish::Publisher;
use dataplane::counters::Crossings;
use dataplane::{Config, Dataplane, Idle, Owners, Sharing};
use dns::Tables;
use port::pipe::{self as nic, Pipe};
use stack::{Stack, TcpConfig, TcpLimits, TcpListener, UdpListener};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use web::Site;
use wire::flow::{Groups, Ports};
use wire::toeplitz::Key;

/// Flow groups, as `simoom` has them.
const GROUPS: usize = 4096;
/// Without the last answers for so long something was lost.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is served.
pub(super) enum Content {
    Dns { names: u64, tables: Arc<Tables> },
    Web { site: Arc<Site>, request: Vec<u8>, content: pipe::Repeated },
}

impl Content {
    pub(super) fn new(protocol: Protocol, names: u64) -> Result<Content> {
        Ok(match protocol {
            Protocol::Dns => Content::Dns { names, tables: tables(names)? },
            Protocol::Web => {
                let (site, request, content) = one_file(Web::FILE_BYTES)?;
                Content::Web { site, request, content }
            }
        })
    }
}

/// How it is run.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) mode: Mode,
    pub(super) threads: usize,
    pub(super) cpus: Vec<usize>,
    /// for each thread
    pub(super) flows: usize,
    pub(super) seconds: f64,
}

impl Setup {
    /// Those of one thread each that are compared with.
    fn ones(&self) -> impl Iterator<Item = Setup> {
        // with one thread there is nothing to cross
        let mode = if self.mode == Mode::Apart { Mode::Apart } else { Mode::Even };
        let cpus = if self.mode.compares(self.threads) { &self.cpus[..] } else { &[] };
        cpus.iter().map(move |cpu| Setup { mode, threads: 1, cpus: vec![*cpu], ..self.clone() })
    }
}

/// Runs it.
pub(super) fn run(setup: &Setup, content: &Content) -> Result<Figures> {
    match content {
        Content::Dns { names, tables } => measure(setup, |setup, turns| dns_side(setup, turns, *names, tables)),
        Content::Web { site, request, content } => {
            measure(setup, |setup, turns| web_side(setup, turns, site, request, *content))
        }
    }
}

/// The NIC, flow groups, and flows of a side.
struct Ground {
    nic: nic::Config,
    groups: Groups,
    flows: Flows,
}

impl Ground {
    fn new(setup: &Setup, protocol: wire::Protocol, port: u16) -> Result<Ground> {
        let groups = Groups::toeplitz(GROUPS, &Key::MICROSOFT, Ports::ALL);
        let all = setup.threads * setup.flows;
        let frames = (4 * all as u32).next_multiple_of(64);
        let ring_frames = (2 * all).next_power_of_two();
        let nic = nic::Config { queues: setup.threads, ring_frames, frames, ..nic::Config::default() };
        let flows = Flows::new(&groups, setup.threads, setup.flows, protocol, port)?;
        Ok(Ground { nic, groups, flows })
    }
}

fn dns_side(setup: &Setup, turns: Option<Turns>, names: u64, tables: &Arc<Tables>) -> Result<Side<Dns, dns::Server>> {
    let ground = Ground::new(setup, wire::Protocol::UDP, Dns::PORT)?;
    let talk = Dns::new(ground.flows.clone(), ground.nic.macs, names)?;
    let local = SocketAddr::from((SERVER, Dns::PORT));
    let listeners = vec![UdpListener { listener: Listener(0), local }];
    let stack_config = stack::Config { listeners, ..stack::Config::default() };
    let tables = tables.clone();
    let make_service = move |_| dns::Server::new(Publisher::new(tables.clone()).reader(), dns::Options::default());
    Side::start(setup, turns, ground, talk, stack_config, make_service)
}

fn web_side(
    setup: &Setup,
    turns: Option<Turns>,
    site: &Arc<Site>,
    request: &[u8],
    content: pipe::Repeated,
) -> Result<Side<Web, web::Server>> {
    let ground = Ground::new(setup, wire::Protocol::TCP, Web::PORT)?;
    let talk = Web::new(ground.flows.clone(), ground.nic.macs, request.to_vec(), content);
    let all = ground.flows.count();
    let local = SocketAddr::from((SERVER, Web::PORT));
    let listener = TcpListener { listener: Listener(0), local, window_bytes: web::WINDOW_BYTES as u32 };
    // one thread may come to have all of them
    let limits = TcpLimits { connections: all as u32, ..TcpLimits::default() };
    let tcp = TcpConfig { listeners: vec![listener], limits, secret: [7, 9], ..TcpConfig::default() };
    let stack_config = stack::Config { tcp: Some(tcp), ..stack::Config::default() };
    let site = site.clone();
    // threads keep some that they do not need, so of a bound without room the last connections may be refused
    let connections = app::Bound::new(2 * all);
    let options = web::Options { connections, ..web::Options::default() }.among(setup.threads);
    let make_service = move |_| web::Server::new(Publisher::new(site.clone()).reader(), options.clone(), None);
    Side::start(setup, turns, ground, talk, stack_config, make_service)
}

/// The side that is measured, with the one beside it, from the first question to the last answer.
fn measure<T: Talk, S: Service + 'static>(
    setup: &Setup,
    start: impl Fn(&Setup, Option<Turns>) -> Result<Side<T, S>>,
) -> Result<Figures> {
    let ones: Vec<Setup> = setup.ones().collect();
    let mut turns = Turns::of(1 + ones.len());
    let side = start(setup, turns.next().filter(|_| !setup.mode.is_paced()))?;
    let ones = ones.iter().zip(turns).map(|(setup, turns)| start(setup, Some(turns)));
    let ones = ones.collect::<Result<Vec<_>>>()?;
    let mut figures = watch(setup, &side, &ones)?;
    for side in ones.iter().chain([&side]) {
        side.stop()?;
    }
    for one in ones {
        one.end()?;
    }
    figures.crossed_share = side.crossed_share();
    figures.checked = side.sum(|tally| tally.checked.get());
    figures.moved = side.end()?;
    Ok(figures)
}

/// Has the clients begin, and counts the answers at the end of each window until the time is over.
fn watch<T: Talk, S: Service + 'static>(setup: &Setup, side: &Side<T, S>, ones: &[Side<T, S>]) -> Result<Figures> {
    let mut figures = Figures { ones: vec![Vec::new(); ones.len()], ..Figures::default() };
    let windows = (setup.seconds / WINDOW.as_secs_f64()).round().max(1.0) as u32;
    let begun = Instant::now();
    for window in 0..=windows {
        std::thread::sleep((WINDOW * window).saturating_sub(begun.elapsed()));
        let at = begun.elapsed().as_secs_f64();
        figures.windows.push(side.window(at));
        figures.ones.iter_mut().zip(ones).for_each(|(windows, one)| windows.push(one.window(at)));
        for side in ones.iter().chain([side]) {
            side.judge()?;
            side.plan.go.store(true, Ordering::Release);
        }
    }
    figures.clients_share = side.clients_share(begun.elapsed().as_secs_f64());
    Ok(figures)
}

/// A dataplane with its clients.
struct Side<T, S> {
    mode: Mode,
    threads: usize,
    /// of the NIC, at both of its ends
    frames: usize,
    plan: Arc<Plan<T>>,
    tallies: Vec<Arc<Tally>>,
    counts: Vec<Arc<Counts>>,
    dataplane: Dataplane<Played<T>, S>,
}

impl<T: Talk, S: Service + 'static> Side<T, S> {
    fn start(
        setup: &Setup,
        turns: Option<Turns>,
        ground: Ground,
        talk: T,
        stack_config: stack::Config,
        make_service: impl Fn(usize) -> S + Send + Sync + 'static,
    ) -> Result<Side<T, S>> {
        let &Setup { mode, threads, .. } = setup;
        let (clients, servers): (Vec<Pipe>, Vec<Pipe>) = nic::pair(&ground.nic)?;
        let dealt = |group: u16| if mode.is_skewed() { 0 } else { group % threads as u16 };
        let owners = Arc::new(Owners::new(ground.groups, threads, dealt));
        let arrival = match mode {
            Mode::Apart | Mode::Even | Mode::Level | Mode::Balanced => Arrival::Owner(0),
            Mode::Crossed => Arrival::Owner(1),
            Mode::Skewed | Mode::BalancedFixed => Arrival::First,
        };
        let balance = matches!(mode, Mode::Balanced | Mode::BalancedFixed).then(Policy::default);
        let sharing = vec![Sharing { first: 0, owners: owners.clone(), balance, steering: None }];
        let config = Config {
            cpus: setup.cpus.clone(),
            idle: Idle::Spin,
            sharing: if mode == Mode::Apart { Vec::new() } else { sharing },
            ..Config::default()
        };
        let plan = Arc::new(Plan::new(talk, owners, arrival, mode.is_paced()));
        let ports = played(clients, servers, &plan, turns);
        let tallies = ports.iter().map(|port| port.tally().clone()).collect();
        let counts = ports.iter().filter_map(|port| port.counts().cloned()).collect();
        let make_stack =
            move |_, facts: &port::Facts| -> Stack { pipe::stack(stack_config.clone(), SERVER.into(), facts) };
        let dataplane =
            Dataplane::start(ports, &config, make_stack, make_service).context("the dataplane's threads")?;
        let frames = 2 * threads * ground.nic.frames as usize;
        Ok(Side { mode, threads, frames, plan, tallies, counts, dataplane })
    }

    fn sum(&self, count: fn(&Tally) -> u64) -> u64 {
        self.tallies.iter().map(|tally| count(tally)).sum()
    }

    fn crossings(&self, count: fn(&Crossings) -> u64) -> u64 {
        self.dataplane.crossings().map(|crossings| count(crossings)).sum()
    }

    fn crossed_share(&self) -> f64 {
        let crossed = self.crossings(|crossings| crossings.frames_out.get());
        crossed as f64 / self.sum(|tally| tally.answered.get()).max(1) as f64
    }

    fn judge(&self) -> Result<()> {
        match self.plan.fault() {
            Some(fault) => bail!("{:?}, {} threads: {fault}", self.mode, self.threads),
            None => Ok(()),
        }
    }

    fn sums(&self) -> Sums {
        let sum = |count: fn(&Counts) -> u64| self.counts.iter().map(|counts| count(counts)).sum::<u64>();
        Sums {
            answers: sum(|counts| counts.answers.get()),
            served_s: sum(|counts| counts.served_ns.get()) as f64 / 1e9,
            steps: sum(|counts| counts.steps.get()),
            counted_s: sum(|counts| counts.counted_ns.get()) as f64 / 1e9,
        }
    }

    fn window(&self, at: f64) -> Window {
        let answered = self.tallies.iter().map(|tally| tally.answered.get()).collect();
        Window { at, answered, sliced: self.sums() }
    }

    /// The clients' share of the time for serving, `at` seconds after the start.
    fn clients_share(&self, at: f64) -> f64 {
        let served_s = if self.counts.is_empty() { at * self.threads as f64 } else { self.sums().served_s };
        self.sum(|tally| tally.clients_ns.get()) as f64 / 1e9 / served_s
    }

    /// Has the clients ask no more, and waits for the last answers.
    fn stop(&self) -> Result<()> {
        self.plan.stop.store(true, Ordering::Relaxed);
        let (stopped, flows) = (Instant::now(), self.plan.talk.flows().count() as u64);
        loop {
            self.judge()?;
            let ended = self.sum(|tally| tally.ended.get());
            if ended == flows {
                return Ok(());
            }
            let (mode, lost) = (self.mode, flows - ended);
            ensure!(stopped.elapsed() < PATIENCE, "{mode:?}: answers were lost in {lost} flows");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Judges that nothing was lost; how many flow groups were moved.
    fn end(self) -> Result<u64> {
        let mode = self.mode;
        let [moved, lost] =
            [|it: &Crossings| it.groups_in.get(), |it: &Crossings| it.lost.get()].map(|it| self.crossings(it));
        let (asked, answered) = (self.sum(|tally| tally.asked.get()), self.sum(|tally| tally.answered.get()));
        let mut ports = self.dataplane.stop();
        let dropped: u64 = ports.iter().map(Played::dropped).sum();
        ensure!(lost + dropped == 0, "{mode:?}: {lost} frames were lost between threads, {dropped} at the NIC");
        ensure!(asked == answered && answered > 0, "{mode:?}: {answered} of {asked} questions were answered");
        let (home, of) = (ports.iter_mut().map(Played::count).sum::<usize>(), self.frames);
        ensure!(home == of, "{mode:?}: {home} of {of} frames came home");
        Ok(moved)
    }
}
