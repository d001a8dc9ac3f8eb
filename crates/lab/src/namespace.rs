//! Two hosts on one machine: a pair of network namespaces joined by a veth pair or several, or by two with a third namespace between
//! them, where a program (`simoom-bench wire`) plays the path.
//!
//! What makes a veth pair behave like a wire between two hosts: receive processing in NAPI threads (without them veth runs
//! the receiver's softirq on the sender's processor), which [`Lab::pin`] puts on each side's processor; GRO on, without
//! which veth has no NAPI and drops what XDP sends or redirects to it; and several queues really in use, since veth starts
//! with one of them.

use crate::nic::{Nic, NicOptions};
use crate::process::{Process, output};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use bpf::steering::{self, Attach, Steering};
use rustix::{
    process::Pid,
    thread::{CpuSet, LinkNameSpaceType, move_into_link_name_space, sched_setaffinity},
};
use std::{
    collections::HashMap,
    fs::{self, File},
    net::{Ipv4Addr, Ipv6Addr},
    os::fd::AsFd as _,
    path::Path,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

/// The server's address on the wire, /24.
pub const SERVER_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The client's address on the wire, /24.
pub const CLIENT_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// The server's address on the wire, /64.
pub const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x18, 0, 0, 0, 0, 1);
/// The client's address on the wire, /64.
pub const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x18, 0, 0, 0, 0, 2);

const PREFIX: &str = "simoom-lab-";
const NETNS_DIR: &str = "/run/netns";

/// How the wire is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Receive and transmit queues on either side.
    pub queues: u32,
    /// Wires between the two, 1 to 16, each with its own interfaces (`vs`, `vs1`, `vs2`, ... at the server), networks
    /// (198.18.N.0/24, 2001:db8:18:N::/64) and processor: what comes by the wire N is received on processor N at either end.
    pub wires: usize,
    /// Bytes of an IP packet.
    pub mtu: u32,
    /// Checksum and segmentation offloads, as a NIC that segments in hardware has them. A kernel sender then leaves its checksums partial.
    pub offloads: bool,
    /// Where there are offloads, TCP's segmentation at the server too. A program in the driver of the client's interface takes that
    /// away: where one is to come, a server that looks at its interface before that sees here what it will have.
    pub server_tso: bool,
    /// Receive packet steering: a host takes in on its own processor (see [`Lab::pin`]) also what comes past its receive threads.
    /// veth hands what a sender with segmentation offload sends to the peer's protocols on the sender's processor, where two
    /// hosts would each have had their own work.
    pub steer: bool,
    /// Spreads what the client's kernel sends over the server's queues as a NIC does: see [`Lab::nic`].
    pub nic: Option<NicOptions>,
    /// The client's interfaces have an XDP program, which lets everything pass: only then does veth wake for what a program at the
    /// server's end sends (XDP_TX). With receive offload alone it waits in the ring for a frame of another kind (Linux 6.18).
    pub client_program: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queues: 1,
            wires: 1,
            mtu: 1500,
            offloads: true,
            server_tso: true,
            steer: false,
            nic: None,
            client_program: false,
        }
    }
}

/// Which end of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Interface `vs`, and `vs1` and so on where there are several wires.
    Server,
    /// Interface `vc`, and `vc1` and so on.
    Client,
    /// Between the two: interface `wc` towards the client, `ws` towards the server.
    Middle,
}

/// The interfaces in the middle, towards the client and towards the server.
pub const MIDDLE: [&str; 2] = ["wc", "ws"];

/// The server's interfaces, and the client's, one for each wire.
const SERVER: [&str; 16] = [
    "vs", "vs1", "vs2", "vs3", "vs4", "vs5", "vs6", "vs7", "vs8", "vs9", "vs10", "vs11", "vs12", "vs13", "vs14", "vs15",
];
const CLIENT: [&str; 16] = [
    "vc", "vc1", "vc2", "vc3", "vc4", "vc5", "vc6", "vc7", "vc8", "vc9", "vc10", "vc11", "vc12", "vc13", "vc14", "vc15",
];

/// The two hosts. Dropping it removes the namespaces and with them the wire.
#[derive(Debug)]
pub struct Lab {
    server: Host,
    middle: Option<Host>,
    client: Host,
    nic: Option<Nic>,
    client_programs: Vec<Steering>,
}

impl Lab {
    /// Makes the hosts with the default [`Options`]. Panics as [`crate::require`] does where the machine lacks something.
    pub fn new() -> Result<Self> {
        Self::with(&Options::default())
    }

    /// Makes the hosts.
    pub fn with(options: &Options) -> Result<Self> {
        Self::make(options, false)
    }

    /// Makes the hosts apart: between them lies a third, with no addresses and a silent kernel, and nothing gets through until a
    /// program there joins its interfaces, [`MIDDLE`].
    pub fn with_middle(options: &Options) -> Result<Self> {
        Self::make(options, true)
    }

    fn make(options: &Options, apart: bool) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        crate::require_programs(&["ip", "ethtool"]);
        let wires = options.wires;
        ensure!((1..=SERVER.len()).contains(&wires), "{wires} wires: 1 to {} can be made", SERVER.len());
        ensure!(wires == 1 || !apart && options.nic.is_none(), "a host between, and a NIC, are for one wire");
        remove_stale();
        let name = format!("{PREFIX}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // from here on Drop cleans up, also when a step fails
        let middle = if apart { Some(Host::new(&name, Side::Middle, 1)?) } else { None };
        let (server, client) = (Host::new(&name, Side::Server, wires)?, Host::new(&name, Side::Client, wires)?);
        let mut lab = Self { server, middle, client, nic: None, client_programs: Vec::new() };
        lab.join(options).context("cannot join the two hosts")?;
        if let Some(nic) = &options.nic {
            ensure!(!apart, "a program that plays the path sends past the kernel's queueing, where the NIC is");
            lab.nic = Some(lab.put_nic(options.queues, nic).context("cannot make a NIC of the wire")?);
        }
        if options.client_program {
            lab.client_programs = lab.client.let_pass().context("cannot attach a program at the client's")?;
        }
        if options.steer {
            lab.steer().context("cannot steer what is received")?;
        }
        lab.pin();
        Ok(lab)
    }

    /// The host at interface `vs`.
    pub fn server(&self) -> &Host {
        &self.server
    }

    /// The host at interface `vc`.
    pub fn client(&self) -> &Host {
        &self.client
    }

    /// The host between the two, if they were made apart.
    pub fn middle(&self) -> Option<&Host> {
        self.middle.as_ref()
    }

    /// The server's NIC, if it was made with one ([`Options::nic`]).
    pub fn nic(&self) -> Option<&Nic> {
        self.nic.as_ref()
    }

    /// Without segmentation at the sender veth receives in NAPI whatever comes; with it, only what could be merged, and the rest in
    /// the sender's own softirq. As in a NIC, what comes faster than it is taken is lost when a ring is full, here of 256 frames. No
    /// queueing discipline helps: veth stops the transmit queue whose ring is full, but as long as no XDP program is attached to the
    /// other end it wakes queue 0 instead (Linux 6.18), and the flow stands still.
    fn put_nic(&self, queues: u32, options: &NicOptions) -> Result<Nic> {
        let (sender, interface) = (&self.client, self.client.interface());
        sender.run(&["ethtool", "-K", interface, "tso", "off"])?;
        sender.inside(|| Nic::attach(interface, queues, options))
    }

    fn join(&self, options: &Options) -> Result<()> {
        match &self.middle {
            None => {
                for (near, far) in self.server.interfaces().iter().zip(self.client.interfaces()) {
                    connect((&self.server, near), (&self.client, far), options)?;
                }
            }
            Some(middle) => {
                middle.hush().context("cannot turn IPv6 off")?;
                let [to_client, to_server] = MIDDLE.map(|interface| (middle, interface));
                connect((&self.server, self.server.interface()), to_server, options)?;
                connect(to_client, (&self.client, self.client.interface()), options)?;
                middle.set_up(options)?;
            }
        }
        self.server.set_up(options)?;
        self.client.set_up(options)?;
        self.middle.iter().chain([&self.server, &self.client]).try_for_each(|host| self.queue(host))
    }

    /// Where hosts are apart, gives each end a queue: without one veth drops what its other end's receive thread, which shares a
    /// processor with the path, has not taken yet (256 frames), and the path would lose frames that nobody counts. With one it
    /// makes the sender wait (Linux 6.16 and newer).
    fn queue(&self, host: &Host) -> Result<()> {
        if self.middle.is_some() {
            for interface in host.interfaces() {
                host.run(&["tc", "qdisc", "replace", "dev", interface, "root", "pfifo", "limit", "1000"])?;
            }
        }
        Ok(())
    }

    /// Keeps both kernels from sending frames of their own, so that every frame on the wire is a program's: no IPv6 (a kernel
    /// solicits routers for hours, RFC 7559), and neighbours that need no asking.
    pub fn silence(&self) -> Result<()> {
        for (host, peer, addr) in [(&self.server, &self.client, CLIENT_V4), (&self.client, &self.server, SERVER_V4)] {
            host.hush().context("cannot turn IPv6 off")?;
            let mac = peer.run(&["cat", &format!("/sys/class/net/{}/address", peer.interface())])?;
            let (addr, interface) = (addr.to_string(), host.interface());
            let words = ["ip", "neigh", "replace", &addr, "lladdr", mac.trim(), "dev", interface, "nud", "permanent"];
            host.run(&words)?;
        }
        Ok(())
    }

    /// Puts each side's receive threads on its processor: the server's on 0, or with a NIC that of queue `n` on processor `n`, the
    /// client's and the middle's on 1; with several wires, those of each on its own. Call it again after a program was attached:
    /// that makes the threads anew where receive offload (GRO) is off; with it, as here, Linux 6.18 leaves them where they are. The
    /// threads, as [`Lab::place`] tells them.
    pub fn pin(&self) -> Vec<(Side, u32)> {
        self.place(|side, queue| self.processor(side, queue))
    }

    /// Whose the work is that arrives at a queue, or with several wires at a wire.
    fn processor(&self, side: Side, queue: usize) -> usize {
        let several = self.server.interfaces().len() > 1;
        match side {
            Side::Server | Side::Client if several => queue,
            Side::Server if self.nic.is_some() => queue,
            Side::Server => 0,
            Side::Client | Side::Middle => 1,
        }
    }

    /// Has each side take in what comes past its receive threads on the processor that has those.
    fn steer(&self) -> Result<()> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        for host in [&self.server, &self.client] {
            for (wire, interface) in host.interfaces().iter().enumerate() {
                let queues = host.run(&["ls", &format!("/sys/class/net/{interface}/queues")])?;
                for queue in queues.lines().filter_map(|name| name.strip_prefix("rx-")) {
                    let place = if host.wires > 1 { wire } else { queue.parse().unwrap_or_default() };
                    let mask = format!("{:x}", 1_u64 << (self.processor(host.side, place) % processors.min(32)));
                    let path = format!("/sys/class/net/{interface}/queues/rx-{queue}/rps_cpus");
                    host.run(&["sh", "-c", &format!("echo {mask} > {path}")])?;
                }
            }
        }
        Ok(())
    }

    /// Puts the receive thread of each side's queue, or with several wires of each wire, on the processor that is named, modulo
    /// those there are; the threads, each with its side. With one processor there is nothing to choose, and none is told.
    pub fn place(&self, processor: impl Fn(Side, usize) -> usize) -> Vec<(Side, u32)> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        if processors < 2 {
            return Vec::new();
        }
        let hosts = [Some(&self.server), self.middle.as_ref(), Some(&self.client)];
        let placed = hosts.into_iter().flatten().flat_map(|host| host.receive_threads());
        let placed: HashMap<String, (Side, usize)> =
            placed.map(|(side, queue, name)| (name, (side, processor(side, queue) % processors))).collect();
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let mut threads = Vec::new();
        for entry in entries.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw)
            else {
                continue;
            };
            let Ok(name) = fs::read_to_string(entry.path().join("comm")) else { continue };
            let Some((side, processor)) = placed.get(name.trim_end()) else { continue };
            let mut set = CpuSet::new();
            set.set(*processor);
            // the thread may be gone by now
            if sched_setaffinity(Some(pid), &set).is_ok() {
                threads.push((*side, pid.as_raw_nonzero().get().unsigned_abs()));
            }
        }
        threads
    }
}

/// A veth pair between two hosts' interfaces.
fn connect((here, near): (&Host, &str), (there, far): (&Host, &str), options: &Options) -> Result<()> {
    let queues = options.queues.to_string();
    let queues = ["numrxqueues", &queues, "numtxqueues", &queues];
    let mut command = Command::new("ip");
    command.args(["-n", &here.name, "link", "add", near]).args(queues).args(["type", "veth", "peer", "name", far]);
    command.args(queues).args(["netns", &there.name]);
    output(&mut command).map(|_| ())
}

/// One host of the laboratory.
#[derive(Debug)]
pub struct Host {
    name: String,
    side: Side,
    wires: usize,
}

impl Host {
    fn new(lab: &str, side: Side, wires: usize) -> Result<Self> {
        let letter = match side {
            Side::Server => "s",
            Side::Client => "c",
            Side::Middle => "m",
        };
        let host = Self { name: format!("{lab}-{letter}"), side, wires };
        output(Command::new("ip").args(["netns", "add", &host.name]))?;
        Ok(host)
    }

    /// The namespace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The interface at this end of the wire; in the middle, the one towards the client.
    pub fn interface(&self) -> &'static str {
        self.interfaces()[0]
    }

    /// All interfaces of the wire that are here.
    pub fn interfaces(&self) -> &'static [&'static str] {
        match self.side {
            Side::Server => &SERVER[..self.wires],
            Side::Client => &CLIENT[..self.wires],
            Side::Middle => &MIDDLE,
        }
    }

    /// The hardware address of this end of the wire.
    pub fn mac(&self) -> Result<[u8; 6]> {
        let text = self.run(&["cat", &format!("/sys/class/net/{}/address", self.interface())])?;
        let mut mac = [0; 6];
        let mut parts = text.trim().split(':');
        for byte in &mut mac {
            *byte = u8::from_str_radix(parts.next().unwrap_or_default(), 16)
                .map_err(|_| anyhow!("no hardware address: {text}"))?;
        }
        Ok(mac)
    }

    /// A command that will run in this host.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs a program here to its end and returns its standard output; an error holds both outputs.
    pub fn run(&self, args: &[&str]) -> Result<String> {
        let Some((program, rest)) = args.split_first() else { bail!("no program") };
        output(self.command(program).args(rest))
    }

    /// Starts a program here that ends with the returned value.
    pub fn spawn(&self, args: &[&str]) -> Result<Process> {
        let Some((program, rest)) = args.split_first() else { bail!("no program") };
        let mut command = self.command(program);
        command.args(rest);
        Process::spawn(command)
    }

    /// Runs `work` on a thread that has entered this host: sockets opened there belong to it for good, and threads started
    /// there live there.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let enter = self.entrance();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter();
                work()
            });
            match thread.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Moves the thread that calls it into this host.
    pub(crate) fn entrance(&self) -> impl FnOnce() + Send + 'static {
        let file = Path::new(NETNS_DIR).join(&self.name);
        move || {
            let namespace = File::open(&file).expect("the namespace exists as long as the host");
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("root may enter a namespace");
        }
    }

    /// Programs that take nothing, on all interfaces.
    fn let_pass(&self) -> Result<Vec<Steering>> {
        let attach = |interface: &&str| -> Result<Steering> {
            let index = rustix::net::netdevice::name_to_index(any_socket()?, interface)?;
            Ok(Steering::load(index, Attach::Native, &steering::Config::default())?)
        };
        self.inside(|| self.interfaces().iter().map(attach).collect())
    }

    /// The names of the threads that receive here, each with its queue, or with its wire where there are several.
    fn receive_threads(&self) -> Vec<(Side, usize, String)> {
        let of = |(wire, interface): (usize, &&str)| -> std::io::Result<Vec<_>> {
            let index = rustix::net::netdevice::name_to_index(any_socket()?, interface)?;
            let ids = bpf::netdev::napi_ids(index)?.into_iter().enumerate();
            let place = |queue| if self.wires > 1 { wire } else { queue };
            Ok(ids.map(|(queue, id)| (self.side, place(queue), format!("napi/{interface}-{id}"))).collect())
        };
        let found: std::io::Result<Vec<Vec<_>>> =
            self.inside(|| self.interfaces().iter().enumerate().map(of).collect());
        found
            .unwrap_or_else(|error| {
                eprintln!("lab: the receive threads of {} are not on their processors: {error}", self.name);
                Vec::new()
            })
            .into_iter()
            .flatten()
            .collect()
    }

    /// Takes IPv6 from the kernel, without which it sends no frames of its own while nobody asks it to.
    fn hush(&self) -> std::io::Result<()> {
        // /proc/sys/net is that of the thread's own network namespace; `default` is for interfaces to come
        let write = |which| fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
        self.inside(|| write("all").and_then(|()| write("default")))
    }

    fn set_up(&self, options: &Options) -> Result<()> {
        self.run(&["ip", "link", "set", "lo", "up"])?;
        for interface in self.interfaces() {
            self.set_up_interface(interface, options)?;
        }
        let last = match self.side {
            Side::Server => 1,
            Side::Client => 2,
            Side::Middle => return Ok(()),
        };
        for (wire, interface) in self.interfaces().iter().enumerate() {
            self.run(&["ip", "addr", "add", &format!("198.18.{wire}.{last}/24"), "dev", interface])?;
            self.run(&["ip", "addr", "add", &format!("2001:db8:18:{wire:x}::{last}/64"), "dev", interface, "nodad"])?;
        }
        Ok(())
    }

    fn set_up_interface(&self, interface: &str, options: &Options) -> Result<()> {
        self.run(&["ip", "link", "set", interface, "mtu", &options.mtu.to_string(), "up"])?;
        if !options.offloads {
            self.run(&["ethtool", "-K", interface, "tx", "off", "tso", "off", "gso", "off"])?;
        } else if !options.server_tso && self.side == Side::Server {
            self.run(&["ethtool", "-K", interface, "tso", "off"])?;
        }
        if options.queues > 1 {
            let queues = options.queues.to_string();
            self.run(&["ethtool", "-L", interface, "rx", &queues, "tx", &queues])?;
        }
        self.run(&["ethtool", "-K", interface, "gro", "on"])?;
        self.run(&["sh", "-c", &format!("echo 1 > /sys/class/net/{interface}/threaded")])?;
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(error) = output(Command::new("ip").args(["netns", "del", &self.name])) {
            // a panic here would hide the test's own
            eprintln!("lab: {error:#}");
        }
    }
}

/// A socket to ask about interfaces by.
fn any_socket() -> std::io::Result<std::net::UdpSocket> {
    std::net::UdpSocket::bind("0.0.0.0:0")
}

/// Removes the namespaces of test processes that are gone (killed, or the machine's power cut), with what still runs there.
fn remove_stale() {
    let Ok(entries) = fs::read_dir(NETNS_DIR) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()) else { continue };
        if Path::new("/proc").join(pid).exists() {
            continue;
        }
        let left = output(Command::new("ip").args(["netns", "pids", &name])).unwrap_or_default();
        for pid in left.lines().filter_map(|line| line.trim().parse().ok()).filter_map(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        // another test process may have been faster
        let _ = output(Command::new("ip").args(["netns", "del", &name]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_apart_hear_nothing_of_each_other_and_the_middle_is_silent() {
        crate::require_programs(&["ip", "ethtool", "ping"]);
        let lab = Lab::with_middle(&Options::default()).unwrap();
        let middle = lab.middle().unwrap();
        for interface in middle.interfaces() {
            let addresses = middle.run(&["ip", "addr", "show", "dev", interface]).unwrap();
            assert!(!addresses.contains("inet") && addresses.contains("LOWER_UP"), "{addresses}");
        }
        lab.client().run(&["ping", "-c", "1", "-W", "1", "198.18.0.1"]).unwrap_err();
        // a bridge is one way to join them
        middle.run(&["ip", "link", "add", "join", "type", "bridge"]).unwrap();
        for interface in ["join"].iter().chain(middle.interfaces()) {
            if *interface != "join" {
                middle.run(&["ip", "link", "set", interface, "master", "join"]).unwrap();
            }
            middle.run(&["ip", "link", "set", interface, "up"]).unwrap();
        }
        lab.client().run(&["ping", "-c", "1", "-W", "5", "198.18.0.1"]).unwrap();
        assert!(Lab::new().unwrap().middle().is_none());
    }

    #[test]
    fn several_wires_are_networks_of_their_own_each_received_on_its_processor() {
        crate::require_programs(&["ip", "ethtool", "ping"]);
        let lab = Lab::with(&Options { wires: 2, ..Options::default() }).unwrap();
        for address in ["198.18.0.1", "198.18.1.1", "2001:db8:18:1::1"] {
            lab.client().run(&["ping", "-c", "1", "-W", "5", address]).unwrap();
        }
        let threads = lab.server().receive_threads();
        let places: Vec<_> = threads.iter().map(|(_, place, name)| (*place, name.split('-').next().unwrap())).collect();
        assert_eq!(places, [(0, "napi/vs"), (1, "napi/vs1")]);
        Lab::with(&Options { wires: 17, ..Options::default() }).unwrap_err();
        Lab::with_middle(&Options { wires: 2, ..Options::default() }).unwrap_err();
    }

    #[test]
    fn a_server_may_be_without_segmentation() {
        crate::require_programs(&["ip", "ethtool"]);
        let has_tso = |host: &Host| {
            let said = host.run(&["ethtool", "-k", host.interface()]).unwrap();
            said.lines().any(|line| line.starts_with("tcp-segmentation-offload: on"))
        };
        for server_tso in [true, false] {
            let lab = Lab::with(&Options { server_tso, ..Options::default() }).unwrap();
            assert_eq!((has_tso(lab.server()), has_tso(lab.client())), (server_tso, true));
        }
    }

    #[test]
    fn each_host_can_take_in_everything_on_its_own_processor() {
        crate::require();
        let lab = Lab::with(&Options { queues: 2, steer: true, ..Options::default() }).unwrap();
        let own = if std::thread::available_parallelism().map_or(1, usize::from) > 1 { "2" } else { "1" };
        for (host, mask) in [(lab.server(), "1"), (lab.client(), own)] {
            for queue in ["rx-0", "rx-1"] {
                let path = format!("/sys/class/net/{}/queues/{queue}/rps_cpus", host.interface());
                let set = host.run(&["cat", &path]).unwrap();
                assert_eq!(set.trim().trim_start_matches(['0', ',']), mask, "{path}");
            }
        }
    }

    #[test]
    fn a_silent_wire_has_no_ipv6_and_needs_no_arp() {
        crate::require();
        let lab = Lab::new().unwrap();
        lab.silence().unwrap();
        for host in [lab.server(), lab.client()] {
            assert_eq!(host.run(&["ip", "-6", "addr", "show", "dev", host.interface()]).unwrap().trim(), "");
            let neighbours = host.run(&["ip", "-4", "neigh", "show", "dev", host.interface()]).unwrap();
            assert!(neighbours.contains("PERMANENT"), "{neighbours}");
        }
    }
}
