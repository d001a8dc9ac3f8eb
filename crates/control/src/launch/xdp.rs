//! AF_XDP: interfaces opened, their queues served by the dataplane, their addresses followed.

use super::listeners::Listening;
use super::sharing::{Shared, Writer, sharing};
use super::tiers::Wanted;
use super::watchdog::{Nic, Queue, Watchdog};
use crate::config::Settings;
use crate::error::{Error, reason};
use crate::metrics::{OfInterface, Registry};
use crate::nic_table::Keeper;
use crate::service::{Composed, Maker};
use crate::words::{Balance, Idle, Mode, Prefix, Threads, Transmit, WebTransmit};
use bpf::steering::{Answers, Hold};
use dataplane::{Dataplane, Owners, Sharing};
use port::guest::{Housed, house};
use port_xdp::device::{Device, Link};
use port_xdp::{Follower, Handle, LargeSends, OpenConfig, XdpPort};
use rustix::event::Timespec;
use stack::tcp::View;
use stack::{Agreement, Claim, ClaimMode, OwnAddress, OwnStatus, Readiness, Stack, TcpConfig};
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// At the end connections are reset for so long at most.
const RESETS_TAKE: Duration = Duration::from_millis(500);

/// Places of a thread's table that are looked at between two of its cycles, and how long a thread may take to answer.
const PIECE_CONNECTIONS: u32 = 256;
const ANSWER_TAKES: Duration = Duration::from_secs(5);

/// Interfaces with the program attached and nobody serving yet.
#[derive(Debug)]
pub(crate) struct Opened {
    ports: Vec<Housed<XdpPort>>,
    handles: Vec<Interface>,
    described: Vec<String>,
    /// by which applications' connections leave the link
    routers: Vec<IpAddr>,
}

/// An interface with the program attached.
#[derive(Debug)]
struct Interface {
    name: String,
    handle: Handle,
    /// its ports among all, the first of which have queues
    ports: Range<usize>,
    queues: usize,
    link: Link,
    /// of its NIC's table
    keeper: Option<Keeper>,
}

/// Opens every interface.
///
/// # Errors
/// One line that names the mend; nothing stays attached then.
pub(crate) fn open(settings: &Settings, listeners: &[Listening], answers: Option<&Wanted>) -> Result<Opened, Error> {
    let mut opened = Opened { ports: Vec::new(), handles: Vec::new(), described: Vec::new(), routers: Vec::new() };
    for interface in &settings.interfaces {
        let mut wanted = config(settings, interface, listeners);
        if let Some(Wanted { answers, when }) = answers {
            (wanted.answers, wanted.answering) = (Some(answers.clone()), *when);
        }
        let one = port_xdp::open(&wanted).map_err(|error| Error::environment(format!("AF_XDP: {error}")))?;
        for warning in &one.got.warnings {
            tracing::warn!("{warning}");
        }
        tracing::info!("AF_XDP: {}", one.got);
        if let Some(answers) = one.handle.answers() {
            say_who_answers(interface, !answers.is_held(Hold::Untaken));
        }
        opened.described.push(one.got.to_string());
        let (first, queues, guests) = (opened.ports.len(), one.ports.len(), one.pools.len());
        if guests > 0 && settings.balance == Some(Balance::Off) {
            return Err(Error::input(format!(
                "--cpus: {} threads for {queues} queues of {interface}, and --balance off leaves nothing to do for those without one; leave it out",
                queues + guests
            )));
        }
        opened.ports.extend(house(one.ports, one.pools, first));
        let (ports, link) = (first..opened.ports.len(), Link::from(&one.got.device));
        // a thread without a queue can be in no table
        let keeper = if guests == 0 { Keeper::start(settings, interface, queues)? } else { None };
        opened.handles.push(Interface { name: interface.clone(), handle: one.handle, ports, queues, link, keeper });
    }
    if let Some(cpus) = settings.cpus.as_ref().filter(|cpus| cpus.len() != opened.ports.len()) {
        return Err(Error::input(format!(
            "--cpus: {} processors for {} queues; give one for each queue, or set the queues with `ethtool -L`",
            cpus.len(),
            opened.ports.len()
        )));
    }
    // said last: where AF_XDP cannot be had, connections go by all of the kernel's routes
    let said;
    (opened.routers, said) = super::routers::look_up(settings);
    said.iter().for_each(|said| tracing::info!("AF_XDP: {said}"));
    Ok(opened)
}

fn config(settings: &Settings, interface: &str, listeners: &[Listening]) -> OpenConfig {
    let prefix = |prefix: &Prefix| bpf::steering::Prefix { address: prefix.address, bits: prefix.bits };
    // with one interface it is clear whose the threads are; those beyond its queues have none
    let threads = settings.cpus.as_ref().filter(|_| settings.interfaces.len() == 1).map(|cpus| cpus.len() as u32);
    let has = threads.and_then(|_| Device::find(interface).ok().flatten()).map(|device| device.rx_queues.max(1));
    let queues = threads.map(|threads| has.map_or(threads, |has| threads.min(has)));
    let guests = threads.zip(queues).map_or(0, |(threads, queues)| threads - queues);
    OpenConfig {
        queues,
        guests,
        mode: match settings.mode {
            Mode::Auto => port_xdp::Mode::Auto,
            Mode::Zerocopy => port_xdp::Mode::Zerocopy,
            Mode::Copy => port_xdp::Mode::Copy,
            Mode::Generic => port_xdp::Mode::Generic,
        },
        listeners: listeners.iter().flat_map(|at| at.taken(settings)).collect(),
        own: settings.own.iter().map(|own| own.0.address).collect(),
        allow: settings.allow.iter().map(prefix).collect(),
        deny: settings.deny.iter().map(prefix).collect(),
        large_sends: match settings.web.as_ref().map(|web| web.transmit) {
            Some(WebTransmit::Auto) => LargeSends::Auto,
            Some(WebTransmit::Offload) => LargeSends::Always,
            Some(WebTransmit::Copy) | None => LargeSends::Never,
        },
        busy_poll_us: Some(settings.busy_poll_us).filter(|&us| us > 0),
        ..OpenConfig::new(interface)
    }
}

/// What each stack is told; the first claims the own addresses, and the others follow it.
pub(crate) fn stack_config(
    settings: &Settings,
    listeners: &[Listening],
    tcp: Option<TcpConfig>,
    seed: u64,
) -> stack::Config {
    stack::Config {
        own: settings.own.iter().map(|own| OwnAddress { addr: own.0.address, prefix_len: own.0.bits }).collect(),
        listeners: listeners.iter().filter_map(|at| at.datagrams(settings)).collect(),
        tcp,
        agreement: Some(Arc::new(Agreement::new(settings.own.iter().map(|own| own.0.address)))),
        seed,
        ..stack::Config::default()
    }
}

impl Opened {
    /// Threads that will serve.
    pub(crate) fn threads(&self) -> usize {
        self.ports.len()
    }

    /// The programs that answer by themselves.
    pub(crate) fn answers(&self) -> impl Iterator<Item = (String, Answers)> {
        self.handles.iter().filter_map(|interface| Some((interface.name.clone(), interface.handle.answers()?)))
    }

    /// Starts a thread for each queue, and one that follows the machine's addresses.
    ///
    /// # Errors
    /// The kernel's; what was started is stopped, and the program detached.
    pub(crate) fn start(
        mut self,
        settings: &Settings,
        stack: stack::Config,
        services: Maker,
        registry: &Arc<Registry>,
    ) -> io::Result<Running> {
        for port in &self.ports {
            port.queue().iter().for_each(|port| registry.add(port.stats().clone()));
            port.guest().iter().for_each(|guest| registry.add(guest.stats().clone()));
        }
        for interface in &self.handles {
            let counters = interface.handle.counts();
            registry.add(Arc::new(OfInterface { interface: interface.name.clone(), counters }));
        }
        let stack = stack::Config { gateways: std::mem::take(&mut self.routers), ..stack };
        let (mut shared, mut writers) = (Vec::new(), Vec::new());
        for interface in &mut self.handles {
            let keeper = interface.keeper.take();
            let (ports, queues) = (interface.ports.clone(), interface.queues);
            let Shared { sharing, writer, said } =
                sharing(settings, &interface.name, ports, queues, stack.tcp.is_some(), keeper)?;
            said.iter().for_each(|said| tracing::info!("{said}"));
            if let Some(writer) = &writer {
                let counters = writer.steering().clone();
                registry.add(Arc::new(OfInterface { interface: interface.name.clone(), counters }));
            }
            shared.extend(sharing);
            writers.extend(writer);
        }
        let configured = dataplane::Config {
            sharing: shared.clone(),
            elastic: (settings.threads == Threads::Elastic).then(dataplane::elastic::Policy::default),
            cpus: settings.cpus.clone().unwrap_or_default(),
            batch: settings.batch,
            slow_after: settings.slow_after,
            copies: settings.dns.as_ref().is_some_and(|dns| dns.transmit == Transmit::Copy),
            idle: match settings.idle {
                Idle::Spin => dataplane::Idle::Spin,
                Idle::Adaptive => dataplane::Idle::default(),
                Idle::Block => dataplane::Idle::Block,
            },
        };
        let stacks = registry.clone();
        let tcp = Arc::<Mutex<Vec<_>>>::default();
        let connections = tcp.clone();
        let claims = Claims::default();
        let shown = claims.stack.clone();
        let make_stack = move |thread: usize, facts: &port::Facts| {
            let mode = if thread == 0 { ClaimMode::Detect } else { ClaimMode::Silent };
            let claim = Claim { mode, ..stack.claim };
            let seed = stack.seed.wrapping_add(thread as u64);
            let stack = Stack::new(stack::Config { claim, seed, ..stack.clone() }, facts);
            stacks.add(stack.counters());
            if let Some(counters) = stack.tcp_counters() {
                stacks.add(counters.clone());
                connections.lock().unwrap_or_else(PoisonError::into_inner).push(counters);
            }
            if thread == 0 {
                // a successor after a panic counts in the same ones
                *shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(stack.counters());
            }
            stack
        };
        let queue = |port: &XdpPort| Queue::new(port.slot().clone(), port.stats().clone());
        let queues = self.ports.iter().map(|port| port.queue().map(queue)).collect();
        let dataplane = Dataplane::start(self.ports, &configured, make_stack, move |thread| services.make(thread))?;
        let dataplane = Arc::new(dataplane);
        for counters in dataplane.counters() {
            registry.add(counters.clone());
        }
        for counters in dataplane.crossings() {
            registry.add(counters.clone());
        }
        dataplane.averages().for_each(|averages| registry.add(averages.clone()));
        dataplane.crews().for_each(|crew| registry.add(crew.clone()));
        let watched = dataplane.clone();
        let nics = self.handles.iter().filter_map(|interface| Nic::new(interface.name.clone())).collect();
        let told = dataplane.clone();
        let tell = move |thread, hangs| told.set_hangs(thread, hangs);
        let watchdog = Watchdog::start(queues, nics, move || watched.pulses().collect(), tell)?;
        registry.add(watchdog.stalls().clone());
        // several interfaces have no own addresses
        let mut claims = (!settings.own.is_empty()).then_some(claims);
        let followers = self.handles.into_iter().map(|Interface { name, handle, ports: threads, link, .. }| {
            let (claims, dataplane) = (claims.take(), dataplane.clone());
            follow(handle, Followed { name, claims, threads, dataplane, link, failing: None })
        });
        let followers = followers.collect::<io::Result<Vec<_>>>()?;
        Ok(Running { watchdog, followers, dataplane, writers, sharing: shared, tcp, described: self.described })
    }
}

/// What became of the own addresses, as far as it was said.
#[derive(Debug, Default)]
struct Claims {
    /// the counters of a stack: all show the same
    stack: Arc<Mutex<Option<Arc<stack::Counters>>>>,
    said: Vec<OwnStatus>,
}

impl Claims {
    /// How often to look: a probe for another holder takes seconds (RFC 5227 2.1.1).
    const EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

    /// Says what has changed.
    fn look(&mut self) {
        let stack = self.stack.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(stack) = stack else { return };
        for own in stack.own() {
            let at = own.addr;
            let before = self.said.iter().position(|said| said.addr == at);
            let known = before.map(|index| self.said[index]);
            if known == Some(own) {
                continue;
            }
            let rival =
                own.rival.map_or_else(|| "another".to_owned(), |mac| mac.map(|octet| format!("{octet:02x}")).join(":"));
            if known.map(|known| known.readiness) != Some(own.readiness) {
                match own.readiness {
                    Readiness::Probing => {}
                    Readiness::Ready => tracing::info!("own address {at}: nobody else has it, it is in use"),
                    Readiness::Conflict => tracing::error!(
                        "own address {at}: another station ({rival}) has it, so it is not used, and looked for again each minute; take it from that station or give another to --own"
                    ),
                }
            } else if own.readiness == Readiness::Ready {
                tracing::warn!("own address {at}: station {rival} claims it too; take it from that station");
            }
            match before {
                Some(index) => self.said[index] = own,
                None => self.said.push(own),
            }
        }
    }
}

/// An interface and who serves it.
struct Followed {
    name: String,
    claims: Option<Claims>,
    /// its threads among those of the dataplane
    threads: Range<usize>,
    dataplane: Arc<Dataplane<Housed<XdpPort>, Composed>>,
    link: Link,
    /// what cannot be followed now, as it was said
    failing: Option<String>,
}

/// Starts the thread that keeps the steering program's addresses those of the machine, follows what becomes of the interface,
/// and says what became of our own addresses. When it ends, the program is detached.
fn follow(handle: Handle, mut followed: Followed) -> io::Result<Follower> {
    let every = followed.claims.as_ref().map(|_| Claims::EVERY);
    Follower::start(handle, every, move |found| {
        if let Some(claims) = &mut followed.claims {
            claims.look();
        }
        if let Some(found) = found {
            followed.take(found);
        }
    })
}

/// Says whether questions are answered in the driver.
fn say_who_answers(interface: &str, driver: bool) {
    if driver {
        tracing::info!("{interface}: plain questions are answered in the driver");
    } else {
        tracing::info!(
            "{interface}: our stack answers all, since the other end of this veth takes nothing that a driver sends; it would with `ethtool -K PEER gro on`"
        );
    }
}

impl Followed {
    /// Says what was found, and what cannot be followed, once as long as that is the same.
    fn take(&mut self, found: port_xdp::Followed) {
        let name = &self.name;
        if found.addresses {
            tracing::info!("{name}: the machine's addresses changed, and what AF_XDP takes with them");
        }
        if let Some(answered) = found.answered {
            say_who_answers(name, answered);
        }
        let failing = found.failed.as_ref().map(reason);
        if self.failing != failing {
            match &failing {
                Some(why) => {
                    tracing::error!("{name}: not all of it can be followed: {why}; it is tried again every second")
                }
                None => tracing::info!("{name}: all of it is followed again"),
            }
            self.failing = failing;
        }
        if let Some(link) = found.link {
            self.take_link(link);
        }
    }

    /// Says what is new about the interface, and has the stacks go on with its hardware address and MTU.
    fn take_link(&mut self, now: Link) {
        let name = &self.name;
        let before = std::mem::replace(&mut self.link, now);
        let Link::There { up, carrier, mac, mtu, .. } = now else {
            tracing::error!("{name}: the interface is gone, and nothing is served there; start again when it is back");
            return;
        };
        let (was_serving, old, old_mtu) = match before {
            Link::Gone => (false, mac, mtu),
            Link::There { up, carrier, mac, mtu, .. } => (up && carrier, mac, mtu),
        };
        match (was_serving, up && carrier) {
            (true, false) if up => tracing::warn!("{name}: no carrier, and nothing is served there until it is back"),
            (true, false) => {
                tracing::warn!(
                    "{name}: the interface is down, and nothing is served there; run `ip link set {name} up`"
                );
            }
            (false, true) => tracing::info!("{name}: the interface is up again"),
            _ => {}
        }
        if mac != old {
            let shown = mac.map(|octet| format!("{octet:02x}")).join(":");
            tracing::info!("{name}: its hardware address is {shown} now, and what AF_XDP takes and answers with it");
            let threads = self.threads.clone();
            self.dataplane.command(move |thread, _, stack| {
                if threads.contains(&thread) {
                    stack.set_mac(mac);
                }
            });
        }
        if mtu != old_mtu {
            tracing::info!(
                "{name}: its MTU is {mtu} now, and no larger packet is sent; nor is one above what it was at the start, until the server is started again"
            );
            let (threads, clock) = (self.threads.clone(), self.dataplane.clock());
            self.dataplane.command(move |thread, _, stack| {
                if threads.contains(&thread) {
                    stack.set_mtu(clock.now(), mtu);
                }
            });
        }
    }
}

/// The threads by which groups can go from thread `from` to thread `to`, the first `on_duty` of which serve, or why they cannot.
fn sharing_of(all: &[Sharing], from: usize, to: usize, on_duty: impl Fn(&Owners) -> usize) -> Result<&Sharing, String> {
    let among =
        |sharing: &Sharing, thread: usize| (sharing.first..sharing.first + sharing.owners.threads()).contains(&thread);
    let Some(sharing) = all.iter().find(|sharing| among(sharing, from)) else {
        return Err(format!("thread {from} shares no flow groups: see --balance and --rss-key"));
    };
    if !among(sharing, to) || to == from {
        return Err(format!("thread {to} is no other one of the same interface as thread {from}"));
    }
    if to - sharing.first >= on_duty(&sharing.owners) {
        return Err(format!("thread {to} does not serve now: see `simoom ctl threads`"));
    }
    Ok(sharing)
}

/// The dataplane at work.
#[derive(Debug)]
pub(crate) struct Running {
    /// looks after the threads while they run
    watchdog: Watchdog,
    // first to go: the kernel has the traffic again before the threads end
    followers: Vec<Follower>,
    pub(crate) dataplane: Arc<Dataplane<Housed<XdpPort>, Composed>>,
    /// behind the threads: the NICs' tables are put back when nothing is received any more
    writers: Vec<Writer>,
    /// threads that share flows
    sharing: Vec<Sharing>,
    /// the counters of each thread's TCP, if there is TCP
    tcp: Arc<Mutex<Vec<Arc<stack::tcp::Counters>>>>,
    pub(crate) described: Vec<String>,
}

impl Running {
    /// Connections that are open, by thread.
    pub(crate) fn connections(&self) -> Vec<u64> {
        let tcp = self.tcp.lock().unwrap_or_else(PoisonError::into_inner);
        tcp.iter().map(|counters| counters.connections.get()).collect()
    }

    /// Has thread `to` take at most `count` flow groups over from thread `from`.
    pub(crate) fn move_groups(&self, from: usize, to: usize, count: usize) -> Result<usize, String> {
        let sharing = sharing_of(&self.sharing, from, to, Owners::on_duty)?;
        let groups = 0..sharing.owners.groups().count();
        let groups = groups.map(|group| group as u16);
        let theirs = groups.filter(|group| usize::from(sharing.owners.owner(*group)) == from - sharing.first);
        Ok(theirs.take(count).filter(|group| self.dataplane.move_group(*group, to)).count())
    }

    /// Has `count` threads of each interface serve; what was done.
    pub(crate) fn set_threads(&self, count: usize) -> Result<String, String> {
        let Some(most) = self.dataplane.crews().map(|crew| crew.threads()).max() else {
            return Err(
                "the threads share no flow groups, so each serves what its queue receives: see --balance and --rss-key"
                    .into(),
            );
        };
        if !(1..=most).contains(&count) {
            return Err(format!("there are {most} threads: give 1 to {most}"));
        }
        self.dataplane.set_threads(count);
        Ok(format!("{count} of {most} threads serve"))
    }

    /// Connections as they stand, thread after thread, and whether there are more than `most`. The threads are asked for a piece
    /// of their table at a time, between two cycles, so that nobody waits for long.
    pub(crate) fn views(&self, most: usize) -> (Vec<View>, bool) {
        let mut views = Vec::new();
        for thread in 0..self.dataplane.counters().count() {
            let mut from = Some(0);
            while let Some(place) = from {
                if views.len() >= most {
                    return (views, true);
                }
                let Some((piece, next)) = self.piece(thread, place) else { break };
                views.extend(piece);
                from = next;
            }
        }
        let more = views.len() > most;
        views.truncate(most);
        (views, more)
    }

    /// A piece of one thread's connections and where the next begins; None when the thread does not answer.
    fn piece(&self, thread: usize, from: u32) -> Option<(Vec<View>, Option<u32>)> {
        let now = self.dataplane.clock().now();
        let (give, take) = channel();
        self.dataplane.command(move |n, _, stack| {
            if n == thread {
                let mut piece = Vec::with_capacity(PIECE_CONNECTIONS as usize);
                let next = stack.tcp_view(now, from, PIECE_CONNECTIONS, &mut |view| piece.push(view));
                // who asked may have lost patience
                let _ = give.send((piece, next));
            }
        });
        take.recv_timeout(ANSWER_TAKES).ok()
    }

    /// Resets what connections are left, gives the traffic back to the kernel, answers what had come, and ends.
    pub(crate) fn stop(mut self) {
        self.dataplane.command(|_, _, stack| stack.abort_all());
        let begun = Instant::now();
        // in this order: what is on the way is there when the second is asked
        let is_left = || self.dataplane.groups_under_way() > 0 || self.connections().iter().any(|&open| open > 0);
        while is_left() && begun.elapsed() < RESETS_TAKE {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.followers.clear();
        // the followers had the others, and have ended
        drop(self.watchdog);
        drop(Arc::into_inner(self.dataplane).map(Dataplane::stop));
        self.writers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::flow::Groups;

    #[test]
    fn groups_go_to_no_thread_that_does_not_serve() {
        let owners = |threads| Arc::new(Owners::new(Groups::keyed(16, [1, 2]), threads, |_| 0));
        let of = |first, threads| Sharing { first, owners: owners(threads), balance: None, steering: None };
        let all = [of(0, 2), of(2, 4)];
        let said = |from, to| sharing_of(&all, from, to, Owners::on_duty).map(|sharing| sharing.first);
        assert_eq!((said(0, 1), said(5, 2), said(2, 5)), (Ok(0), Ok(2), Ok(2)));
        let with_three = |from, to| sharing_of(&all, from, to, |_| 3).map(|sharing| sharing.first);
        assert_eq!(with_three(2, 4), Ok(2));
        assert_eq!(with_three(2, 5).unwrap_err(), "thread 5 does not serve now: see `simoom ctl threads`");
        // what it has it may give away
        assert_eq!(with_three(5, 4), Ok(2));
        for to in [1, 2, 6] {
            assert_eq!(
                said(2, to).unwrap_err(),
                format!("thread {to} is no other one of the same interface as thread 2")
            );
        }
        assert!(said(6, 2).unwrap_err().starts_with("thread 6 shares no flow groups"));
    }
}
