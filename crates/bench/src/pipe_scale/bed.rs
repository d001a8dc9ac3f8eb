//! One run: a dataplane on the in-memory NIC, with the clients in its ports.

use super::half::{Arrival, Plan, Played, Tally, played};
use super::loops::Count;
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
/// How often it is looked how many answers there are.
pub(super) const WINDOW: Duration = Duration::from_millis(100);

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

/// What had been done by the end of a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Window {
    /// seconds since the start
    pub(super) at: f64,
    /// what each thread's clients had been answered
    pub(super) answered: Vec<u64>,
    /// steps of the loops, and the time that all of them together had taken in seconds
    pub(super) steps: u64,
    pub(super) loops_s: f64,
}

/// What a run found.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) windows: Vec<Window>,
    /// of the threads' time without the loops, the clients'
    pub(super) clients_share: f64,
    /// of the answered questions, those that went to another thread than the one that received them
    pub(super) crossed_share: f64,
    /// flow groups that changed their thread
    pub(super) moved: u64,
    pub(super) checked: u64,
}

/// What was done between two windows' ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rates {
    /// answers in a second of serving, over all threads
    pub(super) answers: f64,
    /// steps in a second of counting, over all threads
    pub(super) steps: f64,
}

impl Rates {
    fn between(before: &Window, after: &Window) -> Rates {
        let (threads, spent) = (after.answered.len() as f64, after.at - before.at);
        // of a thread
        let counting = (after.loops_s - before.loops_s) / threads;
        let answered = after.answered.iter().sum::<u64>() - before.answered.iter().sum::<u64>();
        let rate = |count: u64, seconds: f64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        Rates { answers: rate(answered, spent - counting), steps: rate(after.steps - before.steps, counting) }
    }
}

impl Figures {
    /// From `from` on, in seconds.
    pub(super) fn since(&self, from: f64) -> Rates {
        match (self.windows.iter().find(|window| window.at >= from), self.windows.last()) {
            (Some(begin), Some(end)) if end.at > begin.at => Rates::between(begin, end),
            _ => Rates { answers: 0.0, steps: 0.0 },
        }
    }

    /// Answers a second in each window, with its end.
    pub(super) fn rates(&self) -> impl Iterator<Item = (f64, f64)> {
        self.windows.windows(2).map(|two| (two[1].at, Rates::between(&two[0], &two[1]).answers))
    }
}

/// Runs it.
pub(super) fn run(setup: &Setup, content: &Content) -> Result<Figures> {
    let groups = Groups::toeplitz(GROUPS, &Key::MICROSOFT, Ports::ALL);
    let (threads, all) = (setup.threads, setup.threads * setup.flows);
    let frames = (4 * all as u32).next_multiple_of(64);
    let ring_frames = (2 * all).next_power_of_two();
    let config = nic::Config { queues: threads, ring_frames, frames, ..nic::Config::default() };
    let flows = |protocol, port| Flows::new(&groups, threads, setup.flows, protocol, port);
    match content {
        Content::Dns { names, tables } => {
            let flows = flows(wire::Protocol::UDP, Dns::PORT)?;
            let talk = Dns::new(flows, config.macs, *names)?;
            let local = SocketAddr::from((SERVER, Dns::PORT));
            let listeners = vec![UdpListener { listener: Listener(0), local }];
            let stack_config = stack::Config { listeners, ..stack::Config::default() };
            let tables = tables.clone();
            let make_service =
                move |_| dns::Server::new(Publisher::new(tables.clone()).reader(), dns::Options::default());
            serve(setup, &config, &groups, talk, stack_config, make_service)
        }
        Content::Web { site, request, content } => {
            let flows = flows(wire::Protocol::TCP, Web::PORT)?;
            let talk = Web::new(flows, config.macs, request.clone(), *content);
            let local = SocketAddr::from((SERVER, Web::PORT));
            let listener = TcpListener { listener: Listener(0), local, window_bytes: web::WINDOW_BYTES as u32 };
            // one thread may come to have all of them
            let limits = TcpLimits { connections: all as u32, ..TcpLimits::default() };
            let tcp = TcpConfig { listeners: vec![listener], limits, secret: [7, 9], ..TcpConfig::default() };
            let stack_config = stack::Config { tcp: Some(tcp), ..stack::Config::default() };
            let site = site.clone();
            // threads keep some that they do not need, so of a bound without room the last connections may be refused
            let connections = app::Bound::new(2 * all);
            let options = web::Options { connections, ..web::Options::default() }.among(threads);
            let make_service = move |_| web::Server::new(Publisher::new(site.clone()).reader(), options.clone(), None);
            serve(setup, &config, &groups, talk, stack_config, make_service)
        }
    }
}

fn serve<T: Talk, S: Service + 'static>(
    setup: &Setup,
    config: &nic::Config,
    groups: &Groups,
    talk: T,
    stack_config: stack::Config,
    make_service: impl Fn(usize) -> S + Send + Sync + 'static,
) -> Result<Figures> {
    let &Setup { mode, threads, .. } = setup;
    let (clients, servers): (Vec<Pipe>, Vec<Pipe>) = nic::pair(config)?;
    let dealt = |group: u16| if mode.is_skewed() { 0 } else { group % threads as u16 };
    let owners = Arc::new(Owners::new(groups.clone(), threads, dealt));
    let arrival = match mode {
        Mode::Apart | Mode::Even | Mode::Level | Mode::Balanced => Arrival::Owner(0),
        Mode::Crossed => Arrival::Owner(1),
        Mode::Skewed | Mode::BalancedFixed => Arrival::First,
    };
    let balance = matches!(mode, Mode::Balanced | Mode::BalancedFixed).then(Policy::default);
    let sharing = vec![Sharing { first: 0, owners: owners.clone(), balance, steering: None }];
    let config_of_threads = Config {
        cpus: setup.cpus.clone(),
        idle: Idle::Spin,
        sharing: if mode == Mode::Apart { Vec::new() } else { sharing },
        ..Config::default()
    };
    let plan = Arc::new(Plan::new(talk, owners, arrival, mode.is_paced()));
    let ports = played(clients, servers, &plan, !mode.is_paced());
    let tallies: Vec<Arc<Tally>> = ports.iter().map(|port| port.tally().clone()).collect();
    let loops: Vec<Arc<Count>> = ports.iter().filter_map(|port| port.count_of_loop().cloned()).collect();
    let make_stack = move |_, facts: &port::Facts| -> Stack { pipe::stack(stack_config.clone(), SERVER.into(), facts) };
    let dataplane: Dataplane<Played<T>, S> =
        Dataplane::start(ports, &config_of_threads, make_stack, make_service).context("the dataplane's threads")?;
    let run = Run { setup, plan: &plan, tallies: &tallies, loops: &loops };
    let mut figures = run.watch()?;
    let count = |of: fn(&Crossings) -> u64| dataplane.crossings().map(|crossings| of(crossings)).sum::<u64>();
    let crossed = count(|crossings| crossings.frames_out.get());
    figures.crossed_share = crossed as f64 / run.sum(|tally| tally.answered.get()).max(1) as f64;
    run.stop()?;
    figures.moved = count(|crossings| crossings.groups_in.get());
    figures.checked = run.sum(|tally| tally.checked.get());
    let lost = count(|crossings| crossings.lost.get());
    let mut ports = dataplane.stop();
    let dropped: u64 = ports.iter().map(Played::dropped).sum();
    ensure!(lost + dropped == 0, "{mode:?}: {lost} frames were lost between threads, {dropped} at the NIC");
    let (asked, answered) = (run.sum(|tally| tally.asked.get()), run.sum(|tally| tally.answered.get()));
    ensure!(asked == answered && answered > 0, "{mode:?}: {answered} of {asked} questions were answered");
    let (home, of) = (ports.iter_mut().map(Played::count).sum::<usize>(), 2 * threads * config.frames as usize);
    ensure!(home == of, "{mode:?}: {home} of {of} frames came home");
    Ok(figures)
}

/// The clients of a run that is under way.
struct Run<'a, T> {
    setup: &'a Setup,
    plan: &'a Plan<T>,
    tallies: &'a [Arc<Tally>],
    loops: &'a [Arc<Count>],
}

impl<T: Talk> Run<'_, T> {
    fn sum(&self, count: fn(&Tally) -> u64) -> u64 {
        self.tallies.iter().map(|tally| count(tally)).sum()
    }

    fn judge(&self) -> Result<()> {
        match self.plan.fault() {
            Some(fault) => bail!("{:?}, {} threads: {fault}", self.setup.mode, self.setup.threads),
            None => Ok(()),
        }
    }

    /// Has the clients begin, and counts the answers at the end of each window until the time is over.
    fn watch(&self) -> Result<Figures> {
        let mut figures = Figures::default();
        let windows = (self.setup.seconds / WINDOW.as_secs_f64()).round().max(1.0) as u32;
        let before = self.window(0.0);
        let begun = Instant::now();
        self.plan.go.store(true, Ordering::Release);
        figures.windows.push(before);
        for window in 1..=windows {
            std::thread::sleep((WINDOW * window).saturating_sub(begun.elapsed()));
            figures.windows.push(self.window(begun.elapsed().as_secs_f64()));
            self.judge()?;
        }
        if let [first, .., last] = &figures.windows[..] {
            let served_s = last.at * self.setup.threads as f64 - (last.loops_s - first.loops_s);
            figures.clients_share = self.sum(|tally| tally.clients_ns.get()) as f64 / 1e9 / served_s;
        }
        Ok(figures)
    }

    fn window(&self, at: f64) -> Window {
        let answered = self.tallies.iter().map(|tally| tally.answered.get()).collect();
        let steps = self.loops.iter().map(|count| count.steps.get()).sum();
        let loops_s = self.loops.iter().map(|count| count.ns.get()).sum::<u64>() as f64 / 1e9;
        Window { at, answered, steps, loops_s }
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
            ensure!(
                stopped.elapsed() < PATIENCE,
                "{:?}: answers were lost in {} flows",
                self.setup.mode,
                flows - ended
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
