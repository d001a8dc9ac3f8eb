//! The laboratory's NIC: what the program hashes is what crate wire computes, the table decides the queue of every packet, also in
//! the middle of a connection, and everything else about the wire is as before.

use lab::{CLIENT_V4, CLIENT_V6, Lab, Nic, NicOptions, Options, SERVER_V4, SERVER_V6, nic::ENTRIES};
use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};
use wire::{Protocol, toeplitz::Key};

const PATIENCE: Duration = Duration::from_secs(60);
const PORT: u16 = 7001;

fn make(nic: NicOptions) -> Lab {
    lab::require_programs(&["ip", "ethtool", "ping", "curl"]);
    Lab::with(&Options { queues: 2, nic: Some(nic), ..Options::default() }).unwrap()
}

fn servers() -> [IpAddr; 2] {
    [SERVER_V4.into(), SERVER_V6.into()]
}

/// Packets that arrived in each queue of `vs`.
fn arrived(lab: &Lab) -> [u64; 2] {
    let text = lab.server().run(&["ethtool", "-S", "vs"]).unwrap();
    let of = |queue| {
        let name = format!("rx_queue_{queue}_xdp_packets:");
        let line = text.lines().find_map(|line| line.trim().strip_prefix(&name)).unwrap_or_else(|| panic!("{text}"));
        line.trim().parse().unwrap()
    };
    [of(0), of(1)]
}

fn since(before: [u64; 2], after: [u64; 2]) -> [u64; 2] {
    [after[0] - before[0], after[1] - before[1]]
}

/// That the program has hashed the packet of this flow as `nic` says it should.
fn check_hash(nic: &Nic, src: SocketAddr, dst: SocketAddr, protocol: Protocol) {
    let expected = nic.hash_of(src, dst, protocol).unwrap();
    let seen = nic.seen(nic.entry_of(src, dst, protocol).unwrap()).unwrap();
    assert!(seen.packets > 0, "{src} {dst} {protocol:?}: nothing in the entry of {expected:#x}");
    assert_eq!(seen.hash, expected, "{src} {dst} {protocol:?}");
}

#[test]
fn the_program_hashes_as_the_specification_says() {
    let other_key: Vec<u8> = (0..52u32).map(|n| (n * 151 + 7) as u8).collect();
    for key in [Key::MICROSOFT, Key::new(&other_key).unwrap()] {
        let lab = make(NicOptions { key, ..NicOptions::default() });
        let nic = lab.nic().unwrap();
        assert_eq!(*nic.key(), key);
        for server in servers() {
            let to = SocketAddr::new(server, PORT);
            let from: IpAddr = if server.is_ipv4() { CLIENT_V4.into() } else { CLIENT_V6.into() };
            let receiver = lab.server().inside(|| UdpSocket::bind(to).unwrap());
            receiver.set_read_timeout(Some(PATIENCE)).unwrap();
            let listener = lab.server().inside(|| TcpListener::bind(to).unwrap());
            // sockets get their ports from the kernel, so flows differ; each stays open, so no port comes twice
            let mut open = Vec::new();
            lab.client().inside(|| {
                for flow in 0..100 {
                    let socket = UdpSocket::bind((from, 0)).unwrap();
                    let local = socket.local_addr().unwrap();
                    if flow % 2 == 0 {
                        socket.connect(to).unwrap();
                        socket.send(b"of a connected socket").unwrap();
                    } else {
                        socket.send_to(b"of one that is not", to).unwrap();
                    }
                    assert_eq!(receiver.recv_from(&mut [0; 64]).unwrap().1, local);
                    check_hash(nic, local, to, Protocol::UDP);
                    open.push(socket);
                }
                for _ in 0..20 {
                    let stream = TcpStream::connect(to).unwrap();
                    check_hash(nic, stream.local_addr().unwrap(), to, Protocol::TCP);
                    drop(listener.accept().unwrap());
                }
            });
        }
    }
}

#[test]
fn udp_may_be_hashed_by_addresses_alone_as_fragments_are() {
    let lab = make(NicOptions { udp_ports: false, ..NicOptions::default() });
    let nic = lab.nic().unwrap();
    for server in servers() {
        let to = SocketAddr::new(server, PORT);
        let receiver = lab.server().inside(|| UdpSocket::bind(to).unwrap());
        receiver.set_read_timeout(Some(PATIENCE)).unwrap();
        let (mut sources, mut entries) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let socket = lab.client().inside(|| UdpSocket::bind(if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }));
            let socket = socket.unwrap();
            socket.send_to(b"small", to).unwrap();
            let from = receiver.recv_from(&mut [0; 9]).unwrap().1;
            check_hash(nic, from, to, Protocol::UDP);
            sources.push(from);
            entries.push(nic.entry_of(from, to, Protocol::UDP).unwrap());
        }
        sources.dedup();
        entries.dedup();
        assert!(sources.len() > 1 && entries.len() == 1, "{sources:?} {entries:?}");
    }

    // the same for fragments where ports count otherwise
    let lab = make(NicOptions::default());
    let nic = lab.nic().unwrap();
    for server in servers() {
        let to = SocketAddr::new(server, PORT);
        let receiver = lab.server().inside(|| UdpSocket::bind(to).unwrap());
        receiver.set_read_timeout(Some(PATIENCE)).unwrap();
        let socket = lab.client().inside(|| UdpSocket::bind(if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }));
        socket.unwrap().send_to(&[7; 4000], to).unwrap();
        let mut got = [0; 5000];
        let (len, from) = receiver.recv_from(&mut got).unwrap();
        assert_eq!(len, 4000);
        // a protocol without ports: of addresses alone
        check_hash(nic, from, to, Protocol::ICMP);
    }
}

#[test]
fn the_table_decides_the_queue_and_starts_as_drivers_fill_it() {
    let lab = make(NicOptions::default());
    lab.silence().unwrap();
    let nic = lab.nic().unwrap();
    let table = nic.table().unwrap();
    assert_eq!(table.len(), ENTRIES as usize);
    assert!((0..).zip(&table).all(|(entry, queue)| entry % 2 == *queue), "{table:?}");
    nic.set_entry(5, 2).unwrap_err();
    nic.set_entry(ENTRIES, 0).unwrap_err();
    nic.seen(ENTRIES).unwrap_err();
    // what the server's side says of itself
    let channels = lab.server().run(&["ethtool", "-l", "vs"]).unwrap();
    let rx = channels.lines().filter_map(|line| line.strip_prefix("RX:")).next_back().map(str::trim);
    assert_eq!(rx, Some("2"), "{channels}");

    let to = SocketAddr::new(SERVER_V4.into(), PORT);
    let receiver = lab.server().inside(|| UdpSocket::bind(to).unwrap());
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    // a connected socket remembers a transmit queue from its first packet on
    let socket = lab.client().inside(|| UdpSocket::bind((CLIENT_V4, 0)).unwrap());
    socket.connect(to).unwrap();
    let entry = nic.entry_of(socket.local_addr().unwrap(), to, Protocol::UDP).unwrap();
    for round in 0..20 {
        let queue = round % 2;
        nic.set_entry(entry, queue).unwrap();
        assert_eq!(nic.queue_of(socket.local_addr().unwrap(), to, Protocol::UDP).unwrap(), Some(queue));
        let before = arrived(&lab);
        for _ in 0..10 {
            socket.send(b"there").unwrap();
            receiver.recv(&mut [0; 9]).unwrap();
        }
        let mut expected = [0, 0];
        expected[queue as usize] = 10;
        assert_eq!(since(before, arrived(&lab)), expected, "round {round}");
    }
}

/// Sends bytes that follow from their place, as fast as they are taken, until told to stop; gives their number.
fn pour(mut stream: TcpStream, stop: &AtomicBool) -> u64 {
    let bytes: Vec<u8> = (0..251 * 64).map(|n| (n % 251) as u8).collect();
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(&bytes).unwrap();
        sent += bytes.len() as u64;
    }
    sent
}

/// Reads to the end and checks every byte.
fn swallow(mut stream: TcpStream, got: &AtomicU64) {
    let (mut buffer, mut at) = (vec![0; 1 << 16], 0);
    loop {
        let len = stream.read(&mut buffer).unwrap();
        if len == 0 {
            return;
        }
        for byte in &buffer[..len] {
            assert_eq!(*byte, (at % 251) as u8, "at {at}");
            at += 1;
        }
        got.store(at, Ordering::Relaxed);
    }
}

#[test]
fn a_connection_moves_in_mid_flow_when_its_entry_is_rewritten() {
    let lab = make(NicOptions::default());
    lab.silence().unwrap();
    let nic = lab.nic().unwrap();
    let to = SocketAddr::new(SERVER_V4.into(), PORT);
    let listener = lab.server().inside(|| TcpListener::bind(to).unwrap());
    let sender = lab.client().inside(|| TcpStream::connect(to).unwrap());
    let from = sender.local_addr().unwrap();
    let (receiver, _) = listener.accept().unwrap();
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    sender.set_write_timeout(Some(PATIENCE)).unwrap();
    let entry = nic.entry_of(from, to, Protocol::TCP).unwrap();
    let (stop, got) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let sent = scope.spawn(|| pour(sender, &stop));
        scope.spawn(|| swallow(receiver, &got));
        // never idle: always more to send than the window takes, so the kernel would not choose again by itself
        for round in 0..6 {
            let queue = round % 2;
            nic.set_entry(entry, queue).unwrap();
            // what was in the ring and the queueing discipline
            let flowed = |bytes| {
                let begin = got.load(Ordering::Relaxed);
                lab::wait_until(|| got.load(Ordering::Relaxed) >= begin + bytes, PATIENCE)
            };
            let old = 1 - queue as usize;
            let mut before = arrived(&lab);
            let has_left = || {
                assert!(flowed(8 << 20), "round {round}: nothing flows");
                let now = arrived(&lab);
                std::mem::replace(&mut before, now)[old] == now[old]
            };
            assert!(lab::wait_until(has_left, PATIENCE), "round {round}: it flows on in the other queue");
            assert!(flowed(8 << 20), "round {round}: nothing flows");
            let moved = since(before, arrived(&lab));
            assert!(moved[queue as usize] > 100 && moved[old] == 0, "round {round}: {moved:?}");
        }
        stop.store(true, Ordering::Relaxed);
        let sent = sent.join().unwrap();
        assert!(lab::wait_until(|| got.load(Ordering::Relaxed) == sent, PATIENCE));
    });
}

#[test]
fn sockets_say_on_which_processor_their_packets_arrive() {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let lab = make(NicOptions::default());
    let nic = lab.nic().unwrap();
    for server in servers() {
        let to = SocketAddr::new(server, PORT);
        let listener = lab.server().inside(|| TcpListener::bind(to).unwrap());
        for round in 0..10 {
            let queue = round % 2;
            nic.set_all(queue).unwrap();
            let mut sender = lab.client().inside(|| TcpStream::connect(to).unwrap());
            let (mut receiver, _) = listener.accept().unwrap();
            sender.write_all(b"something").unwrap();
            receiver.read_exact(&mut [0; 9]).unwrap();
            let processor = rustix::net::sockopt::socket_incoming_cpu(&receiver).unwrap();
            let expected = if processors < 2 { 0 } else { queue % processors };
            assert_eq!(processor, expected, "{to}, round {round}");
        }
    }
}

#[test]
fn what_a_host_does_works_over_it() {
    let lab = make(NicOptions::default());
    let nic = lab.nic().unwrap();
    for queue in [0, 1] {
        nic.set_all(queue).unwrap();
        // ARP, NDP and ICMP
        lab.client().run(&["ip", "neigh", "flush", "dev", "vc"]).unwrap();
        let pings: [(SocketAddr, SocketAddr, Protocol); 2] = [
            ((CLIENT_V4, 0).into(), (SERVER_V4, 0).into(), Protocol::ICMP),
            ((CLIENT_V6, 0).into(), (SERVER_V6, 0).into(), Protocol::ICMPV6),
        ];
        for (from, to, protocol) in pings {
            let (expected, entry) =
                (nic.hash_of(from, to, protocol).unwrap(), nic.entry_of(from, to, protocol).unwrap());
            // once more where something of another flow, from an address that the kernel has made up, came to the same entry last
            let is_hashed = || {
                lab.client().run(&["ping", "-c", "2", "-i", "0.2", "-W", "5", &to.ip().to_string()]).unwrap();
                nic.seen(entry).unwrap().hash == expected
            };
            assert!((0..5).any(|_| is_hashed()), "{from} {to} {protocol:?}: not hashed as {expected:#x}");
        }
    }
    assert!(nic.not_hashed().unwrap() > 0, "no ARP");

    let listener = lab.server().inside(|| TcpListener::bind((SERVER_V4, 80)).unwrap());
    let body = "x".repeat(300_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        });
        let got = lab.client().run(&["curl", "-s", "-m", "20", "http://198.18.0.1/"]).unwrap();
        assert_eq!(got, body);
    });
}

#[test]
fn hosts_apart_have_none() {
    lab::require_programs(&["ip", "ethtool"]);
    let options = Options { nic: Some(NicOptions::default()), ..Options::default() };
    assert!(Lab::with_middle(&options).unwrap_err().to_string().contains("path"));
    assert!(Lab::new().unwrap().nic().is_none());
}
