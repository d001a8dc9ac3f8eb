//! `simoom-bench answer`: a server of messages, on our engines and on plain kernel sockets.

use super::stop_flag;
use crate::messages::answer::Answer;
use crate::messages::kernel::{self, Waits};
use crate::xdp::Mode;
use anyhow::{Context as _, Result, bail, ensure};
use app::Listener;
use dataplane::Dataplane;
use port_xdp::OpenConfig;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stack::{Stack, TcpConfig, TcpLimits, TcpListener};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Options of `simoom-bench answer`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A message says in its first octets how long it is; it is taken whole, then the same octets go back. `simoom-bench messages` asks. With
--interface over our own stack, in one thread; without it on kernel sockets: --engine sockets is our own engine there, epoll a plain loop
over epoll, blocking and spinning serve one connection at a time. Until SIGTERM.

  simoom-bench answer --interface vs --listen 198.18.0.1:7 --cpu 0
  simoom-bench answer --engine epoll --listen 198.18.0.1:7 --cpu 0")]
pub(crate) struct Options {
    /// Where to listen
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// Serve over AF_XDP on this interface
    #[arg(long, value_name = "IF", conflicts_with = "engine")]
    interface: Option<String>,
    /// Who serves on kernel sockets
    #[arg(long, value_name = "WORD", required_unless_present = "interface")]
    engine: Option<Engine>,
    /// How to use AF_XDP
    #[arg(long, value_name = "WORD", default_value = "auto")]
    mode: Mode,
    /// What our own engines do when there is nothing to do
    #[arg(long, value_name = "WORD", default_value = "adaptive")]
    idle: Idle,
    /// Frames a cycle over AF_XDP, at most
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=64))]
    batch: u16,
    /// Connections at one time; of the plain servers' files
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    connections: u32,
    /// Bytes that a client may send on a connection before they are read, on our own engines
    #[arg(long, value_name = "BYTES", default_value_t = 262_144, value_parser = clap::value_parser!(u32).range(1024..=1 << 30))]
    window: u32,
    /// Run on this processor
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
}

/// Who serves on kernel sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Engine {
    /// our own engine
    Sockets,
    /// a plain loop over epoll
    Epoll,
    /// one connection at a time, asleep in read()
    Blocking,
    /// one connection at a time, asking again and again
    Spinning,
}

/// What our own engines do when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Idle {
    /// asks again and again
    Spin,
    /// asks again for a while, then sleeps
    Adaptive,
    /// sleeps at once
    Block,
}

/// Half-open connections of one address: a load has few.
const HALF_OPEN: u32 = 8192;

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(cpu) = options.cpu {
        crate::procs::pin(cpu)?;
    }
    let ready = |address| eprintln!("answering at {address}");
    let engine = match (&options.interface, options.engine) {
        (Some(interface), _) => return over_af_xdp(options, interface),
        (None, Some(engine)) => engine,
        (None, None) => bail!("--interface or --engine says who serves"),
    };
    allow_files(options.connections)?;
    match engine {
        Engine::Sockets => on_sockets(options),
        Engine::Epoll => kernel::serve_many(options.listen, stop_flag()?.as_ref(), ready),
        Engine::Blocking => kernel::serve_one(options.listen, Waits::Blocking, ready),
        Engine::Spinning => kernel::serve_one(options.listen, Waits::Spinning, ready),
    }
}

/// A descriptor for each connection, and some for the rest.
fn allow_files(connections: u32) -> Result<()> {
    let wanted = u64::from(connections) + 256;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let maximum = maximum.map(|maximum| maximum.max(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).with_context(|| {
        format!("{connections} connections need {wanted} open files, which the limits refuse; see ulimit -Hn and sysctl fs.nr_open")
    })
}

/// Until a signal.
fn wait(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn over_af_xdp(options: &Options, interface: &str) -> Result<()> {
    let stop = stop_flag()?;
    let local = options.listen;
    let taken = port_xdp::Listener { address: local.ip(), protocol: bpf::steering::TCP, port: local.port() };
    let config = OpenConfig { mode: options.mode.into(), listeners: vec![taken], ..OpenConfig::new(interface) };
    let opened = port_xdp::open(&config).with_context(|| format!("cannot use {interface}"))?;
    eprintln!("{}", opened.got);
    let queues = opened.ports.len();
    ensure!(queues == 1, "{interface} has {queues} queues; one thread serves one: ethtool -L {interface} combined 1");
    let tcp = tcp(options);
    let make_stack = move |_, facts: &port::Facts| {
        Stack::new(stack::Config { tcp: Some(tcp.clone()), ..stack::Config::default() }, facts)
    };
    let idle = match options.idle {
        Idle::Spin => dataplane::Idle::Spin,
        Idle::Adaptive => dataplane::Idle::default(),
        Idle::Block => dataplane::Idle::Block,
    };
    let config = dataplane::Config {
        cpus: options.cpu.into_iter().collect(),
        batch: options.batch.into(),
        idle,
        ..dataplane::Config::default()
    };
    let connections = options.connections as usize;
    let dataplane = Dataplane::start(opened.ports, &config, make_stack, move |_| Answer::new(connections))
        .context("the dataplane's thread")?;
    eprintln!("answering at {local}");
    wait(&stop);
    // the program goes first, so that the kernel has the port again before nobody serves it
    drop(opened.handle);
    dataplane.stop();
    Ok(())
}

/// As many as are asked for, each with an answer that waits for its acknowledgement.
fn tcp(options: &Options) -> TcpConfig {
    let connections = options.connections;
    let limits = TcpLimits {
        connections,
        active: connections,
        half_open_per_source: HALF_OPEN,
        records: connections.saturating_mul(2).saturating_add(1024),
        ranges: connections.saturating_mul(2).saturating_add(1024),
        owned_blocks: connections.saturating_add(1024),
        connections_per_source: connections,
        ..TcpLimits::default()
    };
    let listener = TcpListener { listener: Listener(0), local: options.listen, window_bytes: options.window };
    TcpConfig { listeners: vec![listener], limits, secret: super::http::SECRET, ..TcpConfig::default() }
}

fn on_sockets(options: &Options) -> Result<()> {
    let stop = stop_flag()?;
    let connections = options.connections as usize;
    let default = sockets::Streams::default();
    let engine = sockets::Engine::bind(sockets::Config {
        endpoints: vec![sockets::Endpoint {
            listener: Listener(0),
            address: options.listen,
            transport: sockets::Transport::Tcp,
            window_bytes: Some(options.window as usize),
            backlog: None,
        }],
        cpus: options.cpu.into_iter().collect(),
        idle: match options.idle {
            Idle::Spin => sockets::Idle::Spin,
            Idle::Adaptive => sockets::Idle::Adaptive,
            Idle::Block => sockets::Idle::Block,
        },
        streams: sockets::Streams {
            connections,
            per_source: connections,
            window_bytes: options.window as usize,
            budget_bytes: usize::MAX,
            backlog: 4096,
            ..default
        },
        ..sockets::Config::default()
    })?;
    let running = engine.start(move |_| Answer::new(connections)).context("the thread on kernel sockets")?;
    eprintln!("answering at {}", running.addresses()[0]);
    wait(&stop);
    running.stop();
    Ok(())
}
