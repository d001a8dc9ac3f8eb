//! One run: a dataplane on the in-memory NIC, with the clients in its ports.

use super::half::{Arrival, Plan, Played, Tally, played};
use super::talk::{Dns, Flows, SERVER, Talk, Web};
use super::{Mode, Protocol};
use crate::pipe;
use crate::pipe_dns::tables;
use crate::pipe_http::one_file;
use anyhow::{Context as _, Result, bail, ensure};
use app::{Listener, Service};
use base::balance::Policy;
use base::publish::Publisher;
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

/// What a run found.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// when the answers were counted, and how many each thread's clients had had by then
    pub(super) windows: Vec<(f64, Vec<u64>)>,
    /// of the threads' time, the clients'
    pub(super) clients_share: f64,
    /// of the answered questions, those that went to another thread than the one that received them
    pub(super) crossed_share: f64,
    /// flow groups that changed their thread
    pub(super) moved: u64,
    pub(super) checked: u64,
}

impl Figures {
    /// Answers a second over all threads from `from` on, in seconds.
    pub(super) fn rate_since(&self, from: f64) -> f64 {
        let first = self.windows.iter().find(|(at, _)| *at >= from);
        match (first, self.windows.last()) {
            (Some((begin, before)), Some((end, after))) if end > begin => {
                (after.iter().sum::<u64>() - before.iter().sum::<u64>()) as f64 / (end - begin)
            }
            _ => 0.0,
        }
    }

    /// Answers a second in each window, with its end.
    pub(super) fn rates(&self) -> impl Iterator<Item = (f64, f64)> {
        let rate = |two: &[(f64, Vec<u64>)]| {
            let ((begin, before), (end, after)) = (&two[0], &two[1]);
            (*end, (after.iter().sum::<u64>() - before.iter().sum::<u64>()) as f64 / (end - begin).max(1e-9))
        };
        self.windows.windows(2).map(rate)
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
            let make_service = move |_| {
                let options = web::Options { connections: all, ..web::Options::default() };
                web::Server::new(Publisher::new(site.clone()).reader(), options, None)
            };
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
        Mode::Apart | Mode::Even | Mode::Balanced => Arrival::Owner(0),
        Mode::Crossed => Arrival::Owner(1),
        Mode::Skewed | Mode::BalancedFixed => Arrival::First,
    };
    let balance = matches!(mode, Mode::Balanced | Mode::BalancedFixed).then(Policy::default);
    let sharing = vec![Sharing { first: 0, owners: owners.clone(), balance }];
    let config_of_threads = Config {
        cpus: setup.cpus.clone(),
        idle: Idle::Spin,
        sharing: if mode == Mode::Apart { Vec::new() } else { sharing },
        ..Config::default()
    };
    let flows = talk.flows().count() as u64;
    let plan = Arc::new(Plan::new(talk, owners, arrival, mode.is_skewed()));
    let ports = played(clients, servers, &plan);
    let tallies: Vec<Arc<Tally>> = ports.iter().map(|port| port.tally().clone()).collect();
    let sum = |count: fn(&Tally) -> u64| tallies.iter().map(|tally| count(tally)).sum::<u64>();
    let make_stack = move |_, facts: &port::Facts| -> Stack { pipe::stack(stack_config.clone(), SERVER.into(), facts) };
    let dataplane: Dataplane<Played<T>, S> =
        Dataplane::start(ports, &config_of_threads, make_stack, make_service).context("the dataplane's threads")?;
    let begun = Instant::now();
    let mut figures = watch(setup, &plan, &tallies, begun)?;
    let (spent, crossed) =
        (begun.elapsed(), dataplane.crossings().map(|crossed| crossed.frames_out.get()).sum::<u64>());
    figures.clients_share = sum(|tally| tally.clients_ns.get()) as f64 / (spent.as_nanos() as f64 * threads as f64);
    figures.crossed_share = crossed as f64 / sum(|tally| tally.answered.get()).max(1) as f64;
    plan.stop.store(true, Ordering::Relaxed);
    let stopped = Instant::now();
    while sum(|tally| tally.ended.get()) < flows {
        let fault = plan.fault().or_else(|| (stopped.elapsed() > PATIENCE).then(|| "answers were lost".into()));
        if let Some(fault) = fault {
            bail!("{mode:?}, {threads} threads: {fault}: {} of {flows} flows ended", sum(|tally| tally.ended.get()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    figures.moved = dataplane.crossings().map(|crossed| crossed.groups_in.get()).sum();
    figures.checked = sum(|tally| tally.checked.get());
    let lost: u64 = dataplane.crossings().map(|crossed| crossed.lost.get()).sum();
    let mut ports = dataplane.stop();
    let dropped: u64 = ports.iter().map(Played::dropped).sum();
    ensure!(lost + dropped == 0, "{mode:?}: {lost} frames were lost between threads, {dropped} at the NIC");
    let (asked, answered) = (sum(|tally| tally.asked.get()), sum(|tally| tally.answered.get()));
    ensure!(asked == answered && answered > 0, "{mode:?}: {answered} of {asked} questions were answered");
    let (home, of) = (ports.iter_mut().map(Played::count).sum::<usize>(), 2 * threads * config.frames as usize);
    ensure!(home == of, "{mode:?}: {home} of {of} frames came home");
    match plan.fault() {
        Some(fault) => bail!("{mode:?}, {threads} threads: {fault}"),
        None => Ok(figures),
    }
}

/// Counts the answers at the end of each window until the time is over.
fn watch<T: Talk>(setup: &Setup, plan: &Plan<T>, tallies: &[Arc<Tally>], begun: Instant) -> Result<Figures> {
    let mut figures = Figures::default();
    let windows = (setup.seconds / WINDOW.as_secs_f64()).round().max(1.0) as u32;
    for window in 0..=windows {
        std::thread::sleep((WINDOW * window).saturating_sub(begun.elapsed()));
        let counts = tallies.iter().map(|tally| tally.answered.get()).collect();
        figures.windows.push((begun.elapsed().as_secs_f64(), counts));
        if let Some(fault) = plan.fault() {
            bail!("{:?}, {} threads: {fault}", setup.mode, setup.threads);
        }
    }
    Ok(figures)
}
