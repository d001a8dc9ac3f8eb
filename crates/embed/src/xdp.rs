//! The service on our own stack over AF_XDP: a thread for each queue of one interface.

use crate::{Builder, Error, Transport, system};
use app::{Cycles, Listener, Service};
use base::counter::{Figure, Report};
use dataplane::{Config, Dataplane, Idle, Owners, Sharing};
use port_xdp::device::Link;
use port_xdp::{Follower, Handle, OpenConfig, XdpPort};
use stack::{Agreement, Claim, ClaimMode, OwnAddress, Stack, TcpConfig, TcpLimits, TcpListener, UdpListener};
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use wire::flow::Groups;

/// Flow groups, where there are several threads.
const GROUPS: usize = 4096;
/// At the end connections are reset for so long at most.
const RESETS_TAKE: Duration = Duration::from_millis(500);

/// What all stacks counted, a successor after a panic in the same counters.
type Stacks = Arc<Mutex<Vec<(Arc<stack::Counters>, Option<Arc<stack::tcp::Counters>>)>>>;

/// Threads at work.
#[derive(Debug)]
pub(crate) struct Running {
    follower: Follower,
    erased: Box<dyn Erased>,
    stacks: Stacks,
    cycles: Vec<Arc<Cycles>>,
    described: String,
}

/// A dataplane whatever its service.
trait Erased: Send + Sync + std::fmt::Debug {
    fn wake(&self);
    fn set_mac(&self, mac: wire::Mac);
    fn set_mtu(&self, mtu: usize);
    fn abort_all(&self);
    fn report(&self, show: &mut dyn FnMut(Figure<'_>));
    fn stop(self: Box<Self>);
}

/// Shared with the thread that follows the interface.
struct Threads<S>(Arc<Dataplane<XdpPort, S>>);

impl<S> std::fmt::Debug for Threads<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl<S: Service + 'static> Erased for Threads<S> {
    fn wake(&self) {
        self.0.wake();
    }

    fn set_mac(&self, mac: wire::Mac) {
        self.0.command(move |_, _, stack| stack.set_mac(mac));
    }

    fn set_mtu(&self, mtu: usize) {
        let clock = self.0.clock();
        self.0.command(move |_, _, stack| stack.set_mtu(clock.now(), mtu));
    }

    fn abort_all(&self) {
        self.0.command(|_, _, stack| stack.abort_all());
    }

    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        self.0.counters().for_each(|counters| counters.report(show));
        self.0.crossings().for_each(|counters| counters.report(show));
    }

    fn stop(self: Box<Self>) {
        drop(Arc::into_inner(self.0).map(Dataplane::stop));
    }
}

/// Opens the interface and starts its threads.
pub(crate) fn start<S: Service + 'static>(
    builder: &Builder,
    interface: &str,
    make: Arc<impl Fn(usize) -> S + Send + Sync + 'static>,
) -> Result<Running, Error> {
    let taken = |(transport, address): &(Transport, std::net::SocketAddr)| port_xdp::Listener {
        address: address.ip(),
        protocol: match transport {
            Transport::Udp => bpf::steering::UDP,
            Transport::Tcp => bpf::steering::TCP,
        },
        port: address.port(),
    };
    let opened = port_xdp::open(&OpenConfig {
        listeners: builder.listeners.iter().map(taken).collect(),
        own: builder.own.iter().map(|(address, _)| *address).collect(),
        ..OpenConfig::new(interface)
    })?;
    let seed = random().map_err(system("reading random numbers"))?;
    let stack = stack_config(builder, seed);
    let threads = opened.ports.len();
    let sharing = (threads > 1).then(|| {
        let groups = Groups::keyed(GROUPS, [seed[1], seed[2]]);
        let owners = Arc::new(Owners::new(groups, threads, |group| group % threads as u16));
        Sharing { first: 0, owners, balance: None, steering: None }
    });
    let config = Config {
        cpus: builder.cpus.clone(),
        idle: if builder.spin { Idle::Spin } else { Idle::default() },
        sharing: sharing.into_iter().collect(),
        slow_after: builder.slow_after,
        ..Config::default()
    };
    let stacks = Stacks::default();
    let counted = stacks.clone();
    let make_stack = move |thread: usize, facts: &port::Facts| {
        // the first claims the own addresses, and the others follow it
        let mode = if thread == 0 { ClaimMode::Detect } else { ClaimMode::Silent };
        let config = stack::Config {
            claim: Claim { mode, ..stack.claim },
            seed: stack.seed.wrapping_add(thread as u64),
            ..stack.clone()
        };
        let stack = Stack::new(config, facts);
        let counters = (stack.counters(), stack.tcp_counters());
        counted.lock().unwrap_or_else(PoisonError::into_inner).push(counters);
        stack
    };
    let dataplane = Dataplane::start(opened.ports, &config, make_stack, move |thread| make(thread))
        .map_err(system("starting threads over AF_XDP"))?;
    let dataplane = Arc::new(dataplane);
    let cycles = dataplane.cycles().cloned().collect();
    let link = Link::from(&opened.got.device);
    let told = Threads(dataplane.clone());
    let follower = follow(opened.handle, link, Box::new(told)).map_err(system("following the interface"))?;
    let described = opened.got.to_string();
    Ok(Running { follower, erased: Box::new(Threads(dataplane)), stacks, cycles, described })
}

fn random() -> io::Result<[u64; 3]> {
    let mut bytes = [0; 24];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok([words[0], words[1], words[2]].map(u64::from_ne_bytes))
}

fn stack_config(builder: &Builder, seed: [u64; 3]) -> stack::Config {
    let of = |wanted: Transport| {
        let numbered = builder.listeners.iter().enumerate();
        numbered.filter(move |(_, (transport, _))| *transport == wanted).map(|(n, (_, at))| (Listener(n as u16), *at))
    };
    let window_bytes = u32::try_from(builder.window_bytes).unwrap_or(u32::MAX);
    let default = TcpLimits::default();
    let connections = u32::try_from(builder.connections).unwrap_or(u32::MAX);
    stack::Config {
        own: builder.own.iter().map(|(addr, prefix_len)| OwnAddress { addr: *addr, prefix_len: *prefix_len }).collect(),
        listeners: of(Transport::Udp).map(|(listener, local)| UdpListener { listener, local }).collect(),
        tcp: Some(TcpConfig {
            listeners: of(Transport::Tcp)
                .map(|(listener, local)| TcpListener { listener, local, window_bytes })
                .collect(),
            limits: TcpLimits { connections, active: connections.min(default.active), ..default },
            connect_window_bytes: window_bytes,
            secret: [seed[1], seed[2]],
            ..TcpConfig::default()
        }),
        gateways: builder.gateways.clone(),
        agreement: Some(Arc::new(Agreement::new(builder.own.iter().map(|(address, _)| *address)))),
        seed: seed[0],
        ..stack::Config::default()
    }
}

impl Running {
    pub(crate) fn described(&self) -> &str {
        &self.described
    }

    /// How many threads there are.
    pub(crate) fn threads(&self) -> usize {
        self.cycles.len()
    }

    pub(crate) fn cycles(&self) -> impl Iterator<Item = &Arc<Cycles>> {
        self.cycles.iter()
    }

    pub(crate) fn wake(&self) {
        self.erased.wake();
    }

    pub(crate) fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        self.erased.report(show);
        for (stack, tcp) in self.stacks.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            stack.report(show);
            if let Some(tcp) = tcp {
                tcp.report(show);
            }
        }
    }

    fn connections(&self) -> u64 {
        let stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        stacks.iter().filter_map(|(_, tcp)| tcp.as_ref()).map(|tcp| tcp.connections.get()).sum()
    }

    /// Resets what connections are left, gives the traffic back to the kernel, and ends the threads.
    pub(crate) fn stop(self) {
        self.erased.abort_all();
        let begun = Instant::now();
        while self.connections() > 0 && begun.elapsed() < RESETS_TAKE {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(self.follower);
        self.erased.stop();
    }
}

/// Has the threads go on with what is new about the interface.
fn follow(handle: Handle, mut link: Link, threads: Box<dyn Erased>) -> io::Result<Follower> {
    Follower::start(handle, None, move |found| {
        let Some(now) = found.and_then(|found| found.link) else { return };
        let before = std::mem::replace(&mut link, now);
        if let Link::There { mac, mtu, .. } = now {
            if !matches!(before, Link::There { mac: old, .. } if old == mac) {
                threads.set_mac(mac);
            }
            if !matches!(before, Link::There { mtu: old, .. } if old == mtu) {
                threads.set_mtu(mtu);
            }
        }
    })
}
