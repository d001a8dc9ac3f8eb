//! Two network namespaces joined by a veth pair, and frames made by hand. Needs root; says so.

use base::Burst;
use port::{Mac, Outgoing, Port};
use port_xdp::{Listener, OpenConfig, Opened, XdpPort, device::Device, open};
use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

/// Ends waiting, for what must happen; far above what it takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// IPPROTO_UDP
pub(crate) const UDP: u8 = 17;

/// A server's namespace with interface `vs` (198.18.0.1/24, 2001:db8:18::1/64) and a client's with `vc` (.2, ::2).
pub(crate) struct Lab {
    pub(crate) server: String,
    pub(crate) client: String,
}

impl Lab {
    pub(crate) fn new(name: &str, queues: u32) -> Lab {
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests make network namespaces and attach programs: run them as root"
        );
        let id = std::process::id();
        let lab = Lab { server: format!("xdp-{id}-{name}-s"), client: format!("xdp-{id}-{name}-c") };
        let (s, c) = (&lab.server, &lab.client);
        ip(&format!("netns add {s}"));
        ip(&format!("netns add {c}"));
        ip(&format!(
            "-n {s} link add vs numrxqueues {queues} numtxqueues {queues} type veth peer name vc netns {c} numrxqueues {queues} numtxqueues {queues}"
        ));
        for (space, interface, host) in [(s, "vs", 1), (c, "vc", 2)] {
            ip(&format!("-n {space} link set lo up"));
            ip(&format!("-n {space} addr add 198.18.0.{host}/24 dev {interface}"));
            ip(&format!("-n {space} addr add 2001:db8:18::{host}/64 dev {interface} nodad"));
            ip(&format!("-n {space} link set {interface} up"));
            if queues > 1 {
                let n = queues.to_string();
                sh("ip", &["netns", "exec", space, "ethtool", "-L", interface, "rx", &n, "tx", &n]);
            }
        }
        enter(s);
        lab
    }

    /// Runs `work` on a thread of the client's.
    pub(crate) fn client<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        let space = self.client.clone();
        std::thread::spawn(move || {
            enter(&space);
            work()
        })
    }

    /// The client asks so many questions, and `port` answers them.
    pub(crate) fn is_served(&self, port: &mut XdpPort, questions: usize) {
        let client = self.client(move || ask(questions));
        assert_eq!(echo(port, |answered| answered == questions), questions);
        assert_eq!(client.join().unwrap(), questions);
    }

    /// Opens the client's interface as a host of its own: 198.18.0.9 and 2001:db8:18::9, which its kernel has not.
    pub(crate) fn raw_client(&self) -> Opened {
        self.client(|| {
            let mut config = OpenConfig::new("vc");
            config.own = vec!["198.18.0.9".parse().unwrap(), "2001:db8:18::9".parse().unwrap()];
            open(&config).expect("the client's interface")
        })
        .join()
        .expect("the client's thread")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for space in [&self.server, &self.client] {
            let _ = Command::new("ip").args(["netns", "del", space]).status();
        }
    }
}

/// Moves the calling thread into a namespace.
pub(crate) fn enter(space: &str) {
    let file = std::fs::File::open(format!("/run/netns/{space}")).expect("the namespace");
    let kind = rustix::thread::LinkNameSpaceType::Network;
    rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(kind)).expect("setns");
}

pub(crate) fn ip(line: &str) {
    sh("ip", &line.split(' ').collect::<Vec<_>>());
}

pub(crate) fn sh(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Asks the server `n` times and waits for each answer; how many were what was asked.
pub(crate) fn ask(n: usize) -> usize {
    let socket = UdpSocket::bind("198.18.0.2:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answered = 0;
    for i in 0..n {
        let question = format!("question {i}");
        socket.send_to(question.as_bytes(), "198.18.0.1:53").unwrap();
        let mut buffer = [0; 64];
        let len = socket.recv(&mut buffer).expect("an answer");
        answered += usize::from(&buffer[..len] == question.as_bytes());
    }
    answered
}

/// UDP port 53 of the server's IPv4 address.
pub(crate) fn dns() -> Listener {
    Listener { address: "198.18.0.1".parse().unwrap(), protocol: UDP, port: 53 }
}

/// The server's interface with `listeners`.
pub(crate) fn config(listeners: &[Listener]) -> OpenConfig {
    let mut config = OpenConfig::new("vs");
    config.listeners = listeners.to_vec();
    config
}

pub(crate) fn mac_of(space: &str, interface: &'static str) -> Mac {
    let space = space.to_owned();
    let find = move || {
        enter(&space);
        Device::find(interface).unwrap().expect("the interface").mac
    };
    std::thread::spawn(find).join().unwrap()
}

/// Flushes and receives until `enough` says so of what came, or patience ends; the packets.
pub(crate) fn collect(port: &mut XdpPort, mut enough: impl FnMut(&[Vec<u8>]) -> bool) -> Vec<Vec<u8>> {
    let until = Instant::now() + PATIENCE;
    let mut burst = Burst::new();
    let mut got = Vec::new();
    while !enough(&got) {
        assert!(Instant::now() < until, "what was expected did not come; {} other packets did", got.len());
        port.receive(&mut burst, 64);
        for frame in burst.drain(..) {
            got.push(frame.bytes().to_vec());
            port.give(frame);
        }
        port.flush();
        std::thread::sleep(Duration::from_micros(200));
    }
    got
}

/// Rebuilds as the port's thread does: again, when the kernel takes its time to free the queue.
pub(crate) fn rebuild(port: &mut XdpPort) -> std::io::Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        match port.rebuild() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < until => {}
            outcome => return outcome,
        }
    }
}

/// Waits until `is` holds.
pub(crate) fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn send(port: &mut XdpPort, packet: &[u8]) {
    let mut frame = port.take().expect("a free frame");
    assert!(frame.fill(packet), "{} bytes do not fit", packet.len());
    let mut burst = Burst::new();
    burst.push(frame);
    assert_eq!(port.transmit(&mut burst), 1);
    port.flush();
}

/// Swaps the packet's two hosts and clears its UDP checksum, which a kernel on this machine has left partial.
pub(crate) fn answer(packet: &mut [u8]) {
    for (at, len) in [(0, 6), (26, 4), (34, 2)] {
        let (one, two) = packet[at..at + 2 * len].split_at_mut(len);
        one.swap_with_slice(two);
    }
    packet[40..42].fill(0);
}

/// Answers until `stop`; how many.
pub(crate) fn echo(port: &mut XdpPort, mut stop: impl FnMut(usize) -> bool) -> usize {
    let mut burst = Burst::new();
    let mut answered = 0;
    while !stop(answered) {
        let room = port.transmit_room();
        let got = port.receive(&mut burst, room);
        burst.iter_mut().for_each(|frame| answer(frame.bytes_mut()));
        answered += port.transmit(&mut burst);
        if got == 0 && port.flush() == Outgoing::Nothing {
            std::thread::sleep(Duration::from_micros(100));
        } else {
            port.flush();
        }
    }
    while port.flush() != Outgoing::Nothing {
        std::thread::yield_now();
    }
    answered
}

/// An Ethernet frame, with a VLAN tag when asked for.
pub(crate) fn ethernet(to: Mac, vlan: Option<u16>, protocol: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = to.to_vec();
    frame.extend([2, 0, 0, 0, 0, 9]);
    if let Some(tag) = vlan {
        frame.extend(0x8100u16.to_be_bytes());
        frame.extend(tag.to_be_bytes());
    }
    frame.extend(protocol.to_be_bytes());
    frame.extend(payload);
    frame
}

/// An IPv4 packet from 198.18.0.9 to 198.18.0.1; `options` a multiple of four bytes.
pub(crate) fn ipv4(protocol: u8, options: &[u8], fragment: u16, payload: &[u8]) -> Vec<u8> {
    let header = 20 + options.len();
    let mut packet = vec![0x40 | (header / 4) as u8, 0];
    packet.extend(((header + payload.len()) as u16).to_be_bytes());
    packet.extend([0, 1]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0, 198, 18, 0, 9, 198, 18, 0, 1]);
    packet.extend(options);
    let sum: u32 = packet.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    packet[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    packet.extend(payload);
    packet
}

/// An IPv6 packet from 2001:db8:18::9.
pub(crate) fn ipv6(to: IpAddr, next: u8, payload: &[u8]) -> Vec<u8> {
    let IpAddr::V6(to) = to else { panic!("{to} is not IPv6") };
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([next, 255]);
    packet.extend("2001:db8:18::9".parse::<std::net::Ipv6Addr>().unwrap().octets());
    packet.extend(to.octets());
    packet.extend(payload);
    packet
}

/// A UDP datagram without a checksum.
pub(crate) fn udp(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let mut datagram =
        [from.to_be_bytes(), to.to_be_bytes(), (8 + payload.len() as u16).to_be_bytes(), [0, 0]].concat();
    datagram.extend(payload);
    datagram
}

/// One echo request to `to` and its reply, through the kernel (RFC 792, RFC 4443 4.1).
pub(crate) fn ping(to: &str) {
    use socket2::{Domain, Protocol, Socket, Type};
    let to: IpAddr = to.parse().unwrap();
    let (domain, protocol, request, reply) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, 8, 0),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, 128, 129),
    };
    let mut socket = Socket::new(domain, Type::RAW, Some(protocol)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(&std::net::SocketAddr::new(to, 0).into()).unwrap();
    // identifier 7, sequence 1; the kernel makes ICMPv6's checksum
    let sum = if to.is_ipv4() { !0x0808u16 } else { 0 }.to_be_bytes();
    socket.send(&[request, 0, sum[0], sum[1], 0, 7, 0, 1]).unwrap();
    loop {
        let mut buffer = [0; 128];
        let len = std::io::Read::read(&mut socket, &mut buffer).unwrap_or_else(|e| panic!("no echo from {to}: {e}"));
        let message = if to.is_ipv4() { &buffer[20..len] } else { &buffer[..len] };
        if message[0] == reply {
            return;
        }
    }
}

/// Makes the kernel hand what is sent from now on over as one packet of datagrams of `bytes` each (UDP_SEGMENT, udp(7)).
pub(crate) fn segment(socket: &std::net::UdpSocket, bytes: libc::c_int) {
    use std::os::fd::AsRawFd;
    let (value, len) = ((&raw const bytes).cast(), size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the pointer and the length describe a live int, which the kernel copies.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, value, len) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Has the kernel refuse this call to this thread, for good (seccomp(2)).
pub(crate) fn forbid(call: libc::c_long) {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO};
    let step = |code: u32, k: u32, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        // the number of the call, at the start of seccomp_data
        step(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, call as u32, 0, 1),
        step(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        step(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the pointer describes a live program of as many steps as it tells, which the kernel copies.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Who sends to whom: last bytes of the IPv4 addresses, hardware addresses.
#[derive(Clone, Copy)]
pub(crate) struct Peers {
    pub(crate) hosts: [u8; 2],
    pub(crate) macs: [Mac; 2],
}

/// One TCP super-segment, number 1, from port 80 to port 5000, as `port` is told to send it; whether it took it. A kernel that has
/// no such port answers each segment that it finds intact by a reset that acknowledges its end.
pub(crate) fn send_large(port: &mut XdpPort, peers: Peers, payload: &[&[u8]]) -> bool {
    let bytes = 20 + payload.iter().map(|piece| piece.len()).sum::<usize>();
    let [src, dst] = peers.hosts.map(|host| [198, 18, 0, host]);
    let [from, to] = peers.macs;
    let mut header =
        [&to[..], &from, &[8, 0], &[0x45, 0], &((20 + bytes) as u16).to_be_bytes(), &[0, 0, 0x40, 0, 64, 6, 0, 0]]
            .concat();
    header.extend(src);
    header.extend(dst);
    let words = |bytes: &[u8]| bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum::<u32>();
    let fold = |sum: u32| (sum % 0xffff) as u16;
    let ip_sum = !fold(words(&header[14..34]));
    header[24..26].copy_from_slice(&ip_sum.to_be_bytes());
    let pseudo = fold(words(&header[26..34]) + 6 + bytes as u32);
    // acknowledging 1: PSH and ACK
    header.extend([0, 80, 0x13, 0x88, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 4, 0]);
    header.extend(pseudo.to_be_bytes());
    header.extend([0, 0]);
    let how = port::Segmentation { segment_bytes: 1400, ip_at: 14, tcp_at: 34, v6: false };
    port.large().is_some_and(|large| large.send(&header, payload, &how))
}

/// Runs this test binary again as a child that runs only `test`, with `TEST_CHILD` set.
pub(crate) fn again(test: &str, through: &[&str]) -> Command {
    let exe = std::env::current_exe().unwrap();
    let mut words: Vec<String> = through.iter().map(ToString::to_string).collect();
    words.push(exe.display().to_string());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["--exact", test, "--nocapture", "--test-threads=1"]).env("TEST_CHILD", "1");
    command
}

pub(crate) fn is_child() -> bool {
    std::env::var_os("TEST_CHILD").is_some()
}
