//! Against the kernel, on loopback, where a packet arrives on the processor that sends it. Needs root.

use super::*;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use socket2::{Domain, SockAddr, Socket, Type};
use std::net::{SocketAddr, TcpStream, UdpSocket};

const GROUPS: usize = 64;

/// A reuseport group of as many sockets as threads.
fn group(kind: Type, threads: usize) -> (Vec<Socket>, SocketAddr) {
    group_at("127.0.0.1:0", kind, threads)
}

fn group_at(address: &str, kind: Type, threads: usize) -> (Vec<Socket>, SocketAddr) {
    let mut address: SocketAddr = address.parse().unwrap();
    let mut sockets = Vec::new();
    for _ in 0..threads {
        let socket = Socket::new(Domain::for_address(address), kind.nonblocking(), None).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&SockAddr::from(address)).unwrap();
        address = socket.local_addr().unwrap().as_socket().unwrap();
        sockets.push(socket);
    }
    if kind == Type::STREAM {
        sockets.iter().for_each(|socket| socket.listen(128).unwrap());
    }
    (sockets, address)
}

fn selector(sockets: &[Socket], processors: Vec<usize>) -> Selector {
    with_hash(sockets, processors, None)
}

fn with_hash(sockets: &[Socket], processors: Vec<usize>, hash: Option<NicHash>) -> Selector {
    let config = SelectorConfig { groups: GROUPS as u32, processors, threads: sockets.len() as u32, hash };
    let mut selector = Selector::load(&config).expect("a selector; the tests of this crate need root");
    let sockets: Vec<_> = sockets.iter().map(|socket| socket.as_fd()).collect();
    selector.attach(&sockets).unwrap();
    selector
}

/// How many connections each listener gets of `n`.
fn connections(listeners: &[Socket], to: SocketAddr, n: usize) -> Vec<usize> {
    let _streams: Vec<_> = (0..n).map(|_| TcpStream::connect(to).unwrap()).collect();
    listeners.iter().map(|listener| std::iter::from_fn(|| listener.accept().ok()).count()).collect()
}

fn datagrams(sockets: &[Socket], to: SocketAddr, n: usize) -> Vec<usize> {
    for _ in 0..n {
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"x", to).unwrap();
    }
    let mut buffer = [std::mem::MaybeUninit::uninit(); 8];
    sockets.iter().map(|socket| std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count()).collect()
}

#[test]
fn groups_go_where_the_table_says_and_move_with_it() {
    for (kind, arrive) in [(Type::STREAM, connections as fn(&[Socket], _, _) -> _), (Type::DGRAM, datagrams)] {
        let (sockets, address) = group(kind, 3);
        let mut selector = selector(&sockets, Vec::new());
        assert_eq!(arrive(&sockets, address, 20), [20, 0, 0], "all are thread 0's at first");
        for group in 0..GROUPS {
            selector.set_owner(group, 2, false).unwrap();
        }
        assert_eq!(arrive(&sockets, address, 20), [0, 0, 20]);
        for group in 0..GROUPS {
            selector.set_owner(group, group % 2, true).unwrap();
        }
        let found = arrive(&sockets, address, 200);
        assert!(found[0] > 50 && found[1] > 50 && found[2] == 0, "{found:?}");
        // what was seen last is a group of that thread
        for (thread, parity) in [(0, 0), (1, 1)] {
            let recent = selector.recent(thread).unwrap();
            assert!(!recent.is_empty() && recent.iter().all(|group| group % 2 == parity), "{recent:?}");
        }
    }
}

#[test]
fn a_place_without_a_socket_leaves_the_choice_to_the_kernel() {
    let (mut sockets, address) = group(Type::STREAM, 2);
    let mut selector = selector(&sockets, Vec::new());
    (0..GROUPS).for_each(|group| selector.set_owner(group, 1, false).unwrap());
    assert_eq!(connections(&sockets, address, 10), [0, 10]);
    sockets.pop();
    assert_eq!(connections(&sockets, address, 10), [10]);
    // out of all bounds it is no different
    (0..GROUPS).for_each(|group| selector.set_owner(group, 99, false).unwrap());
    assert_eq!(connections(&sockets, address, 10), [10]);
    assert!(selector.set_owner(GROUPS, 0, false).is_err());
}

#[test]
fn here_is_the_thread_of_the_processor_unless_a_group_was_taken_over() {
    let mine = sched_getaffinity(None).unwrap();
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| mine.is_set(*cpu)).take(2).collect();
    let (sockets, address) = group(Type::STREAM, processors.len());
    let mut selector = selector(&sockets, processors.clone());
    selector.set_here(true).unwrap();
    let from = |processor: usize| {
        let mut one = CpuSet::new();
        one.set(processor);
        sched_setaffinity(None, &one).unwrap();
        connections(&sockets, address, 10)
    };
    for (thread, processor) in processors.iter().enumerate() {
        let before = selector.arrivals().unwrap()[*processor];
        let found = from(*processor);
        assert_eq!(found[thread], 10, "{found:?}");
        assert!(selector.arrivals().unwrap()[*processor] >= before + 10);
    }
    // a processor without a thread of its own goes by the table, as does a group that was taken over
    let last = processors.len() - 1;
    selector.set_processor(processors[last], None).unwrap();
    assert_eq!(from(processors[last])[0], 10);
    selector.set_processor(processors[last], Some(last)).unwrap();
    (0..GROUPS).for_each(|group| selector.set_owner(group, 0, true).unwrap());
    assert_eq!(from(processors[last])[0], 10);
    // given back they follow again, the last of them as the first
    (1..GROUPS).for_each(|group| selector.set_owner(group, 0, false).unwrap());
    let found = from(processors[last]);
    assert!(found[last] >= 5 || last == 0, "one group of {GROUPS} is still elsewhere: {found:?}");
    selector.set_owner(0, 0, false).unwrap();
    assert_eq!(from(processors[last])[last], 10);
    selector.set_here(false).unwrap();
    (0..GROUPS).for_each(|group| selector.set_owner(group, last, false).unwrap());
    assert_eq!(from(processors[0])[last], 10);
    sched_setaffinity(None, &mine).unwrap();
}

/// A table as of no key: the program adds up what it is given.
fn shares() -> Vec<u32> {
    (0..36 * 256u32).map(|n| n.wrapping_mul(0x9e37_79b9).rotate_left(n % 31)).collect()
}

/// The group of a packet from `src` to `dst`.
fn group_of(shares: &[u32], src: SocketAddr, dst: SocketAddr, ports: bool) -> usize {
    let octets = |at: SocketAddr| match at.ip() {
        std::net::IpAddr::V4(ip) => ip.octets().to_vec(),
        std::net::IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut input = [octets(src), octets(dst)].concat();
    if ports {
        input.extend([src.port().to_be_bytes(), dst.port().to_be_bytes()].concat());
    }
    let hash = input.iter().enumerate().fold(0, |hash, (at, byte)| hash ^ shares[at * 256 + usize::from(*byte)]);
    hash as usize % GROUPS
}

#[test]
fn groups_of_a_nic_are_entries_of_its_table_and_it_is_seen_where_they_arrive() {
    let mine = sched_getaffinity(None).unwrap();
    let processor = (0..CpuSet::MAX_CPU).find(|cpu| mine.is_set(*cpu)).unwrap();
    let mut one = CpuSet::new();
    one.set(processor);
    sched_setaffinity(None, &one).unwrap();
    for counted in [[true; 4], [false; 4], [true, false, false, true]] {
        let hash = NicHash { shares: shares(), ports: counted };
        for (at, kind, ports) in [
            ("127.0.0.1:0", Type::STREAM, counted[0]),
            ("127.0.0.1:0", Type::DGRAM, counted[1]),
            ("[::1]:0", Type::STREAM, counted[2]),
            ("[::1]:0", Type::DGRAM, counted[3]),
        ] {
            let (sockets, to) = group_at(at, kind, 2);
            let mut selector = with_hash(&sockets, vec![processor, processor + 1], Some(hash.clone()));
            (0..GROUPS).for_each(|group| selector.set_owner(group, group % 2, false).unwrap());
            for _ in 0..20 {
                let from = if kind == Type::STREAM {
                    let stream = TcpStream::connect(to).unwrap();
                    stream.local_addr().unwrap()
                } else {
                    let socket = UdpSocket::bind((to.ip(), 0)).unwrap();
                    socket.send_to(b"x", to).unwrap();
                    socket.local_addr().unwrap()
                };
                let group = group_of(&hash.shares, from, to, ports);
                let mut buffer = [std::mem::MaybeUninit::uninit(); 8];
                let mut arrived = |socket: &Socket| match kind {
                    Type::STREAM => socket.accept().is_ok(),
                    _ => socket.recv(&mut buffer).is_ok(),
                };
                let found = [arrived(&sockets[0]), arrived(&sockets[1])];
                assert_eq!(found.map(usize::from), [1 - group % 2, group % 2], "{at} {kind:?} {counted:?}");
                assert_eq!(selector.place(group).unwrap(), Some(processor));
                selector.forget_place(group).unwrap();
                assert_eq!(selector.place(group).unwrap(), None);
            }
            assert!(selector.place(GROUPS).is_err());
        }
    }
    sched_setaffinity(None, &mine).unwrap();
}
