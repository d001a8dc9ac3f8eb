//! AF_XDP on veth pairs: what crosses, what stays the kernel's, what is left behind.

#[allow(dead_code, reason = "the other tests use the rest")]
mod common;

use common::*;
use port::{Outgoing, Port};
use port_xdp::device::{Change, addresses};
use port_xdp::{Followed, Follower, Listener, Mode, device::Device, open};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn frames_cross(name: &str, mode: Mode) {
    let lab = Lab::new(name, 1);
    let mut opened = open(&port_xdp::OpenConfig { mode, ..config(&[dns()]) }).unwrap();
    assert_eq!(opened.got.mode, mode);
    let port = &mut opened.ports[0];
    assert!(port.facts().virtual_link && port.facts().frame_bytes == 1792);
    lab.is_served(port, 200);
    assert_eq!(port.outstanding(), 0);
    assert_eq!(opened.handle.counts().get("steering_taken_total", ""), Some(200));
    assert_eq!(port.stats().received.get(), 200);
    assert_eq!(port.stats().sent.get(), 200);
}

#[test]
fn frames_cross_both_ways_in_copy_mode() {
    frames_cross("copy", Mode::Copy);
}

#[test]
fn frames_cross_both_ways_in_generic_mode() {
    frames_cross("generic", Mode::Generic);
}

#[test]
fn auto_takes_copy_mode_on_veth_and_says_why_not_better() {
    let _lab = Lab::new("auto", 1);
    let opened = open(&config(&[dns()])).unwrap();
    assert_eq!(opened.got.mode, Mode::Copy);
    assert_eq!(opened.got.not.len(), 1, "{:?}", opened.got.not);
    let (mode, why) = &opened.got.not[0];
    assert_eq!(*mode, Mode::Zerocopy);
    assert!(why.contains("not supported"), "{why}");
    assert_eq!(opened.got.device.driver, "veth");
    assert!(opened.got.to_string().contains("not zero-copy"), "{}", opened.got);
}

#[test]
fn everything_else_of_a_shared_address_stays_the_kernels() {
    let lab = Lab::new("shared", 1);
    let listener = TcpListener::bind("198.18.0.1:53").unwrap();
    let same_port = UdpSocket::bind("198.18.0.1:53").unwrap();
    let other_port = UdpSocket::bind("198.18.0.1:5353").unwrap();
    let opened = open(&config(&[dns()])).unwrap();
    let mut ports = opened.ports;
    let client = lab.client(|| {
        ping("198.18.0.1");
        ping("2001:db8:18::1");
        let mut stream = TcpStream::connect("198.18.0.1:53").unwrap();
        stream.write_all(b"over TCP").unwrap();
        let socket = UdpSocket::bind("198.18.0.2:0").unwrap();
        socket.send_to(b"another port", "198.18.0.1:5353").unwrap();
        // larger than the MTU: the kernel here puts the fragments together
        socket.send_to(&[b'f'; 3000], "198.18.0.1:53").unwrap();
        socket.send_to(b"ours", "198.18.0.1:53").unwrap();
    });
    let (mut stream, _) = listener.accept().unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert_eq!(said, "over TCP");
    let mut buffer = [0; 4000];
    for socket in [&same_port, &other_port] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    assert_eq!(other_port.recv(&mut buffer).unwrap(), 12);
    assert_eq!(same_port.recv(&mut buffer).unwrap(), 3000);
    client.join().unwrap();
    let got = collect(&mut ports[0], |got| !got.is_empty());
    assert_eq!(got.len(), 1);
    assert!(got[0].ends_with(b"ours"));
    same_port.set_nonblocking(true).unwrap();
    assert!(same_port.recv(&mut buffer).is_err(), "the kernel saw what was taken");
    assert_eq!(opened.handle.counts().get("steering_passed_total", "fragment"), Some(3));
}

#[test]
fn two_queues_share_a_umem_under_load() {
    // that all of them hash to one queue happens once in 2^31 runs
    const SOCKETS: usize = 32;
    const ROUNDS: usize = 200;
    const WINDOW: usize = 4;
    let lab = Lab::new("queues", 2);
    let opened = open(&config(&[dns()])).unwrap();
    assert_eq!(opened.ports.len(), 2);
    let stats: Vec<_> = opened.ports.iter().map(|port| port.stats().clone()).collect();
    let done = Arc::new(AtomicBool::new(false));
    let threads = opened.ports.into_iter().map(|mut port| {
        let done = done.clone();
        std::thread::spawn(move || echo(&mut port, |_| done.load(Ordering::Relaxed)))
    });
    let threads: Vec<_> = threads.collect();
    let client = lab.client(|| {
        let sockets: Vec<_> = (0..SOCKETS).map(|_| UdpSocket::bind("198.18.0.2:0").unwrap()).collect();
        let mut answers = 0;
        for round in 0..ROUNDS {
            for (s, socket) in sockets.iter().enumerate() {
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                for n in 0..WINDOW {
                    socket.send_to(format!("{s} {round} {n}").as_bytes(), "198.18.0.1:53").unwrap();
                }
            }
            for (s, socket) in sockets.iter().enumerate() {
                for _ in 0..WINDOW {
                    let mut buffer = [0; 64];
                    let len = socket.recv(&mut buffer).expect("an answer");
                    assert!(buffer[..len].starts_with(format!("{s} {round} ").as_bytes()));
                    answers += 1;
                }
            }
        }
        answers
    });
    assert_eq!(client.join().unwrap(), SOCKETS * ROUNDS * WINDOW);
    done.store(true, Ordering::Relaxed);
    let answered: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(answered, SOCKETS * ROUNDS * WINDOW);
    for stats in stats {
        assert!(stats.received.get() > 0, "a queue had nothing to do");
        assert_eq!(stats.dropped_by_kernel(), (0, 0));
    }
}

#[test]
fn a_killed_process_leaves_no_program_and_no_socket() {
    if is_child() {
        let _opened = open(&config(&[dns()])).unwrap();
        println!("CHILD IS READY");
        std::thread::sleep(PATIENCE * 3);
        return;
    }
    let _lab = Lab::new("kill", 1);
    let mut child =
        again("a_killed_process_leaves_no_program_and_no_socket", &[]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut out = child.stdout.take().unwrap();
    while !said.contains("CHILD IS READY") {
        let mut byte = [0];
        assert_eq!(out.read(&mut byte).unwrap(), 1, "the child ended: {said}");
        said.push(char::from(byte[0]));
    }
    assert!(Device::find("vs").unwrap().unwrap().xdp_program.is_some());
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    eventually("the program stayed", || Device::find("vs").unwrap().unwrap().xdp_program.is_none());
    eventually("the queue stayed taken", || open(&config(&[dns()])).is_ok());
}

/// Waits for the program of an attempt before: a process that another test has just forked holds all descriptors, the
/// program's too, until it executes.
fn detached() {
    eventually("the program stayed", || Device::find("vs").unwrap().unwrap().xdp_program.is_none());
}

fn refusal(config: &port_xdp::OpenConfig) -> String {
    let said = open(config).expect_err("an error").to_string();
    assert!(!said.contains('\n'), "{said}");
    said
}

#[test]
fn what_is_wrong_is_said_in_one_line_with_the_mend() {
    let lab = Lab::new("errors", 2);
    let space = &lab.server;
    let mut wrong = config(&[]);
    wrong.interface = "nosuch0".into();
    assert_eq!(refusal(&wrong), "no interface nosuch0: there are lo, vs; give one of them to --interface");

    let zerocopy = port_xdp::OpenConfig { mode: Mode::Zerocopy, ..config(&[]) };
    let said = refusal(&zerocopy);
    assert!(said.contains("no AF_XDP in zero-copy mode") && said.contains("--mode auto"), "{said}");

    detached();
    let one_queue = port_xdp::OpenConfig { queues: Some(1), ..config(&[]) };
    let said = refusal(&one_queue);
    assert!(said.contains("`ethtool -L vs rx 1 tx 1`"), "{said}");

    detached();
    let first = open(&config(&[])).unwrap();
    let said = refusal(&config(&[]));
    let id = Device::find("vs").unwrap().unwrap().xdp_program.unwrap();
    assert!(said.contains(&format!("an XDP program (id {id})")) && said.contains("`ip link show dev vs`"), "{said}");
    // without its program the sockets still have the queues
    drop(first.handle);
    detached();
    let said = refusal(&config(&[]));
    assert!(said.contains("queue 0 of vs is taken") && said.contains("`ss --xdp -p`"), "{said}");
    drop(first.ports);
    eventually("the queue stayed taken", || open(&config(&[])).is_ok());

    detached();
    ip(&format!("-n {space} link set vs mtu 9000"));
    let said = refusal(&config(&[]));
    assert!(said.contains("9000, is too large") && said.contains("mtu 3822"), "{said}");
    // fits a chunk, but not the one page that veth's driver gives a packet of the peer's; generic mode carries it
    ip(&format!("-n {space} link set vs mtu 3700"));
    ip(&format!("-n {} link set vc mtu 3700", lab.client));
    let copy = port_xdp::OpenConfig { mode: Mode::Copy, ..config(&[]) };
    let said = refusal(&copy);
    assert!(said.contains("the MTU is too large for XDP in the driver") && said.contains("--mode generic"), "{said}");
    detached();
    assert_eq!(open(&config(&[])).unwrap().got.mode, Mode::Generic);
    ip(&format!("-n {space} link set vs mtu 1500"));
    ip(&format!("-n {} link set vc mtu 1500", lab.client));

    ip(&format!("-n {space} link set vs down"));
    assert_eq!(refusal(&config(&[])), "interface vs is down: put it up with `ip link set dev vs up`");
}

#[test]
fn an_interface_without_ethernet_headers_is_refused_in_any_mode() {
    let lab = Lab::new("tunnel", 1);
    for line in ["tuntap add dev tun0 mode tun", "addr add 198.18.0.1/32 dev tun0", "link set tun0 up"] {
        ip(&format!("-n {} {line}", lab.server));
    }
    for mode in [Mode::Auto, Mode::Copy, Mode::Generic] {
        let said = refusal(&port_xdp::OpenConfig { interface: "tun0".into(), mode, ..config(&[dns()]) });
        assert!(said.starts_with("interface tun0 ") && said.ends_with("use --backend sockets"), "{said}");
    }
    assert!(Device::find("vs").unwrap().unwrap().ethernet && Device::find("lo").unwrap().unwrap().ethernet);
}

#[test]
fn a_larger_mtu_gets_larger_chunks() {
    let lab = Lab::new("mtu", 1);
    for (space, interface) in [(&lab.server, "vs"), (&lab.client, "vc")] {
        ip(&format!("-n {space} link set {interface} mtu 3000"));
    }
    let mut opened = open(&config(&[dns()])).unwrap();
    assert_eq!(opened.got.chunk_bytes, 4096);
    let client = lab.client(|| {
        let socket = UdpSocket::bind("198.18.0.2:0").unwrap();
        socket.send_to(&[7; 2900], "198.18.0.1:53").unwrap();
    });
    client.join().unwrap();
    let got = collect(&mut opened.ports[0], |got| !got.is_empty());
    assert_eq!(got[0].len(), 14 + 20 + 8 + 2900);
}

fn refused_to_child(test: &'static str, through: &[&str], expect: &[&str]) {
    if is_child() {
        println!("CHILD SAID {}", open(&config(&[dns()])).map(|_| ()).unwrap_err());
        return;
    }
    let _lab = Lab::new(&test[..4], 1);
    let out = again(test, through).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    let line = said.lines().find_map(|line| line.split_once("CHILD SAID ").map(|(_, said)| said));
    let line = line.unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&out.stderr)));
    for word in expect {
        assert!(line.contains(word), "no {word:?} in: {line}");
    }
}

#[test]
fn raw_sockets_not_permitted_names_the_capability() {
    let through = ["setpriv", "--bounding-set=-net_raw"];
    refused_to_child("raw_sockets_not_permitted_names_the_capability", &through, &["it needs CAP_NET_RAW;"]);
}

#[test]
fn programs_not_permitted_names_the_capability() {
    let through = ["setpriv", "--bounding-set=-bpf,-sys_admin"];
    refused_to_child("programs_not_permitted_names_the_capability", &through, &["it needs CAP_BPF;"]);
}

#[test]
fn attaching_not_permitted_names_the_capability() {
    let through = ["setpriv", "--bounding-set=-net_admin,-sys_admin"];
    refused_to_child("attaching_not_permitted_names_the_capability", &through, &["it needs CAP_NET_ADMIN;"]);
}

#[test]
fn locked_memory_too_low_names_the_limit() {
    let through = ["prlimit", "--memlock=65536:65536", "setpriv", "--bounding-set=-ipc_lock,-sys_resource"];
    refused_to_child("locked_memory_too_low_names_the_limit", &through, &["RLIMIT_MEMLOCK is 65536", "LimitMEMLOCK"]);
}

#[test]
fn an_emptied_place_leaves_the_queue_to_the_kernel_until_its_thread_comes_round() {
    let lab = Lab::new("slot", 1);
    let mut opened = open(&config(&[dns()])).unwrap();
    let port = &mut opened.ports[0];
    lab.is_served(port, 20);
    let slot = port.slot().clone();
    slot.empty().unwrap();
    let kernel = UdpSocket::bind("198.18.0.1:53").unwrap();
    kernel.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    let client = lab.client(|| {
        let socket = UdpSocket::bind("198.18.0.2:0").unwrap();
        socket.send_to(b"to the kernel", "198.18.0.1:53").unwrap();
    });
    client.join().unwrap();
    let mut got = [0; 64];
    let bytes = kernel.recv(&mut got).unwrap();
    assert_eq!(&got[..bytes], b"to the kernel");
    assert_eq!(opened.handle.counts().get("steering_taken_total", ""), Some(20));
    // the thread comes round
    let port = &mut opened.ports[0];
    port.flush();
    lab.is_served(port, 20);
    assert_eq!(slot.queue(), 0);
}

/// The addresses that the program takes something at.
fn taken(handle: &mut port_xdp::Handle) -> Vec<String> {
    handle.steering().taken().map(|taken| taken.address.to_string()).collect()
}

#[test]
fn addresses_that_come_and_go_are_followed() {
    let lab = Lab::new("follow", 1);
    let any = Listener { address: "0.0.0.0".parse().unwrap(), protocol: UDP, port: 53 };
    let mut handle = open(&config(&[any])).unwrap().handle;
    assert_eq!(taken(&mut handle), ["198.18.0.1"]);
    let lo = Device::find("lo").unwrap().unwrap().index;
    let mut monitor = port_xdp::device::Monitor::open().unwrap();
    // an anycast address on lo counts too
    ip(&format!("-n {} addr add 192.0.2.53/32 dev lo", lab.server));
    // links that come up, and IPv6 addresses that are found to be nobody else's, are told while this goes on
    let is_told = |change: &Change| match change {
        Change::Added(it) | Change::Removed(it) => it.interface == lo && it.address.is_ipv4(),
        Change::Link(_) => false,
        Change::Missed => true,
    };
    let mut changes = Vec::new();
    eventually("the monitor heard nothing", || {
        changes.extend(monitor.changes().unwrap().into_iter().filter(is_told));
        !changes.is_empty()
    });
    let added = port_xdp::device::Address { interface: lo, address: "192.0.2.53".parse().unwrap(), prefix_bits: 32 };
    assert_eq!(changes, [Change::Added(added)]);
    assert!(addresses().unwrap().contains(&added));
    assert!(handle.follow().addresses);
    assert_eq!(taken(&mut handle), ["192.0.2.53", "198.18.0.1"]);
    assert!(!handle.follow().addresses);
    ip(&format!("-n {} addr del 192.0.2.53/32 dev lo", lab.server));
    eventually("the address was kept", || handle.follow().addresses);
    assert_eq!(taken(&mut handle), ["198.18.0.1"]);
    assert!(monitor.changes().unwrap().contains(&Change::Removed(added)));
}

#[test]
fn a_link_that_changed_is_told_though_what_was_done_behind_it_failed() {
    let lab = Lab::new("untold", 1);
    let mut handle = open(&config(&[dns()])).unwrap().handle;
    eventually("the link is not quiet", || handle.follow().link.is_none());
    ip(&format!("-n {} link set vs address 02:00:00:00:00:77", lab.server));
    // there is no such destination
    let nowhere = Listener { address: "192.0.2.53".parse().unwrap(), protocol: UDP, port: 0 };
    assert!(handle.listen(nowhere).is_err());
    let found = handle.follow();
    assert!(found.failed.is_some());
    let link = found.link;
    let there = |link| matches!(link, port_xdp::device::Link::There { mac, .. } if mac == [2, 0, 0, 0, 0, 0x77]);
    assert!(link.is_some_and(there), "{link:?}");
    handle.unlisten(&nowhere).unwrap();
    let found = handle.follow();
    assert!(found.link.is_none() && found.failed.is_none(), "{found:?}");
}

#[test]
fn a_thread_that_follows_tells_what_is_new_tries_again_what_failed_and_ends_when_it_is_dropped() {
    let lab = Lab::new("follower", 1);
    let listener = Listener { address: "0.0.0.0".parse().unwrap(), protocol: UDP, port: 53 };
    let own = "2001:db8:18::77".parse().unwrap();
    let opened = open(&port_xdp::OpenConfig { own: vec![own], ..config(&[listener]) }).unwrap();
    let sysctl = |name: &str, value: &str| sh("sh", &["-c", &format!("echo {value} > /proc/sys/net/{name}")]);
    let (tell, told) = std::sync::mpsc::channel();
    let every = rustix::time::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    let follower = Follower::start(opened.handle, Some(every), move |found| tell.send(found).unwrap()).unwrap();
    let hears = |what: &str, is: &dyn Fn(&Option<Followed>) -> bool| {
        while !is(&told.recv_timeout(PATIENCE).expect(what)) {}
    };
    hears("it is looked at once", &Option::is_some);
    hears("time passes", &Option::is_none);
    ip(&format!("-n {} addr add 192.0.2.53/32 dev lo", lab.server));
    hears("an address", &|found| found.as_ref().is_some_and(|found| found.addresses));
    sysctl("core/optmem_max", "1");
    sysctl("ipv6/conf/vs/disable_ipv6", "1");
    sysctl("ipv6/conf/vs/disable_ipv6", "0");
    hears("a failure", &|found| found.as_ref().is_some_and(|found| found.failed.is_some()));
    sysctl("core/optmem_max", "131072");
    // nothing is heard of that
    hears("it is tried again", &|found| found.as_ref().is_some_and(|found| found.failed.is_none()));
    drop(follower);
    assert!(told.iter().count() < 1000, "it goes on");
    detached();
}

#[test]
fn a_group_that_cannot_be_joined_keeps_nothing_else_from_being_followed() {
    let lab = Lab::new("optmem", 1);
    let own = "2001:db8:18::77".parse().unwrap();
    let listener = Listener { address: "0.0.0.0".parse().unwrap(), protocol: UDP, port: 53 };
    let mut handle = open(&port_xdp::OpenConfig { own: vec![own], ..config(&[listener]) }).unwrap().handle;
    let sysctl = |name: &str, value: &str| sh("sh", &["-c", &format!("echo {value} > /proc/sys/net/{name}")]);
    // the kernel has no memory for a membership, and the one that there was is gone with IPv6
    sysctl("core/optmem_max", "1");
    sysctl("ipv6/conf/vs/disable_ipv6", "1");
    eventually("IPv6 is still there", || {
        let found = handle.follow();
        assert!(found.failed.is_none(), "{found:?}");
        found.link.is_some()
    });
    sysctl("ipv6/conf/vs/disable_ipv6", "0");
    eventually("the group was joined", || handle.follow().failed.is_some());
    ip(&format!("-n {} addr add 192.0.2.53/32 dev lo", lab.server));
    ip(&format!("-n {} link set vs address 02:00:00:00:00:77", lab.server));
    let (mut addresses, mut mac) = (false, None);
    eventually("it is not followed", || {
        let found = handle.follow();
        assert!(found.failed.is_some());
        addresses |= found.addresses;
        mac = found.link.or(mac);
        let there = |link| matches!(link, port_xdp::device::Link::There { mac, .. } if mac == [2, 0, 0, 0, 0, 0x77]);
        addresses && mac.is_some_and(there)
    });
    assert_eq!(taken(&mut handle), ["192.0.2.53", "198.18.0.1"]);
    sysctl("core/optmem_max", "131072");
    assert!(handle.follow().failed.is_none());
}

#[test]
fn frames_that_cannot_be_sent_are_counted_and_come_home() {
    let _lab = Lab::new("short", 1);
    let mut opened = open(&config(&[dns()])).unwrap();
    let port = &mut opened.ports[0];
    let free = port.free_frames();
    for packet in [&[][..], &[1; 13]] {
        send(port, packet);
    }
    assert_eq!(port.stats().unsendable.get(), 2);
    assert_eq!((port.free_frames(), port.outstanding()), (free, 0));
}

#[test]
fn a_full_transmit_ring_takes_no_more_and_loses_nothing() {
    let lab = Lab::new("full", 1);
    let mac = mac_of(&lab.client, "vc");
    let mut opened = open(&port_xdp::OpenConfig { tx_slots: 64, rx_slots: 64, ..config(&[dns()]) }).unwrap();
    let port = &mut opened.ports[0];
    let free = port.free_frames();
    let packet = ethernet(mac, None, 0x88b5, &[0; 50]); // for local experiments (IEEE 802)
    let mut burst = base::Burst::new();
    let mut taken = 0;
    for _ in 0..3 {
        while !burst.is_full() {
            let mut frame = port.take().unwrap();
            assert!(frame.fill(&packet));
            burst.push(frame);
        }
        taken += port.transmit(&mut burst);
    }
    assert_eq!((taken, port.outstanding(), port.transmit_room()), (64, 64, 0));
    for frame in burst.drain(..) {
        port.give(frame);
    }
    eventually("the frames did not come back", || port.flush() == Outgoing::Nothing);
    assert_eq!((port.free_frames(), port.stats().sent.get()), (free, 64));
}

#[test]
fn busy_polling_says_what_became_of_it() {
    let _lab = Lab::new("busy", 1);
    let opened = open(&port_xdp::OpenConfig { busy_poll_us: Some(20), ..config(&[dns()]) }).unwrap();
    // veth does not tell the kernel which NAPI instance feeds a queue, at least not before the first packet
    assert_eq!(opened.got.busy_polling, port_xdp::BusyPolling::Unmapped);
    assert!(opened.got.warnings.iter().any(|w| w.contains("busy polling on vs")), "{:?}", opened.got.warnings);
}

#[test]
fn frames_that_find_the_receive_ring_full_are_counted() {
    let lab = Lab::new("ringfull", 1);
    let mut opened = open(&port_xdp::OpenConfig { tx_slots: 64, rx_slots: 64, ..config(&[dns()]) }).unwrap();
    lab.client(|| {
        let socket = UdpSocket::bind("198.18.0.2:0").unwrap();
        for n in 0..200 {
            socket.send_to(format!("{n}").as_bytes(), "198.18.0.1:53").unwrap();
        }
    })
    .join()
    .unwrap();
    eventually("not all arrived", || opened.handle.counts().get("steering_taken_total", "") == Some(200));
    let port = &mut opened.ports[0];
    eventually("the drops were not counted", || port.stats().dropped_by_kernel() == (0, 136));
    let waiting = port.waiting();
    assert!(waiting == 64 && port.facts().overran(waiting));
    assert_eq!(collect(port, |got| got.len() == 64).len(), 64);
    lab.is_served(port, 20);
}

#[test]
fn an_interface_that_is_down_costs_no_socket_however_long_it_lasts() {
    let lab = Lab::new("down", 1);
    let timeout = std::time::Duration::from_millis(20);
    let mut opened = open(&port_xdp::OpenConfig { completion_timeout: timeout, ..config(&[dns()]) }).unwrap();
    let port = &mut opened.ports[0];
    let free = port.free_frames();
    // nothing leaves it
    ip(&format!("-n {} link set vs down", lab.server));
    send(port, &ethernet([0xff; 6], None, 0x88b5, &[0; 50]));
    let begun = std::time::Instant::now();
    while begun.elapsed() < 15 * timeout {
        port.flush();
        std::thread::sleep(timeout / 50);
    }
    assert_eq!((port.outstanding(), port.stats().rebuilds.get(), port.stats().trouble()), (1, 0, None));
    // what waits for room, and its timers with it, goes on: by then it is dropped
    send(port, &ethernet([0xff; 6], None, 0x88b5, &[0; 50]));
    assert_eq!((port.outstanding(), port.free_frames(), port.stats().cut_off.get()), (1, free - 1, 1));
    ip(&format!("-n {} link set vs up", lab.server));
    eventually("the frame did not come back", || port.flush() == Outgoing::Nothing);
    assert_eq!(port.free_frames(), free);
    lab.is_served(port, 20);
}

#[test]
fn carrier_is_followed_and_without_it_no_socket_is_used_up() {
    let lab = Lab::new("carrier", 1);
    let timeout = std::time::Duration::from_millis(20);
    let mut opened = open(&port_xdp::OpenConfig { completion_timeout: timeout, ..config(&[dns()]) }).unwrap();
    let stats = opened.ports[0].stats().clone();
    let mut becomes = |carrier: u64| {
        eventually("it is not followed", || {
            assert!(opened.handle.follow().failed.is_none());
            stats.carrier.get() == carrier
        })
    };
    becomes(1);
    ip(&format!("-n {} link set vc down", lab.client));
    becomes(0);
    ip(&format!("-n {} link set vc up", lab.client));
    becomes(1);
    // here a frame comes back without carrier, too, but not from a device that is gone, which is no "down" to the kernel
    ip(&format!("-n {} link del vs", lab.server));
    becomes(0);
    let port = &mut opened.ports[0];
    send(port, &ethernet([0xff; 6], None, 0x88b5, &[0; 50]));
    let spares = stats.spares.get();
    let begun = std::time::Instant::now();
    while begun.elapsed() < 15 * timeout {
        port.flush();
        std::thread::sleep(timeout / 50);
    }
    assert_eq!((port.outstanding(), stats.spares.get(), stats.trouble()), (1, spares, None));
    // and who sends goes on
    send(port, &ethernet([0xff; 6], None, 0x88b5, &[0; 50]));
    assert_eq!(stats.cut_off.get(), 1);
}

#[test]
fn a_super_segment_arrives_as_segments_and_large_sends_come_and_go_with_the_device() {
    let lab = Lab::new("large", 1);
    let large_sends = port_xdp::LargeSends::Auto;
    let mut opened = open(&port_xdp::OpenConfig { mode: Mode::Copy, large_sends, ..config(&[]) }).unwrap();
    assert!(opened.got.to_string().ends_with("; TCP in super-segments that the device cuts"), "{}", opened.got);
    let peers = Peers { hosts: [1, 2], macs: [opened.got.device.mac, mac_of(&lab.client, "vc")] };
    let stats = opened.ports[0].stats().clone();
    let stream: Vec<u8> = (0..60_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let pieces = [&stream[..1], &stream[1..30_000], &stream[30_000..]];
    // what the client's stack gets, one packet or many: as many as the veth's peer wants
    let heard = lab.client(|| {
        use socket2::{Domain, Protocol, Socket, Type};
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    });
    let mut heard = heard.join().unwrap();
    let mut receive = |bytes: usize| {
        let mut got: Vec<u8> = Vec::new();
        let mut buffer = [0; 70_000];
        while got.len() < bytes {
            let n = heard.read(&mut buffer).expect("the rest of the stream");
            let seq = u32::from_be_bytes(buffer[24..28].try_into().unwrap());
            // our own reset that the kernel answers with is no data
            if n > 40 {
                assert_eq!(seq as usize, got.len() + 1);
                got.extend(&buffer[40..n]);
            }
        }
        got
    };
    assert!(send_large(&mut opened.ports[0], peers, &pieces));
    assert!(receive(stream.len()) == stream);
    assert_eq!((stats.large_sends.get(), stats.large_bytes.get(), stats.large_refused.get()), (1, 60_000, 0));
    let tso = |word: &'static str| sh("ethtool", &["-K", "vs", "tso", word]);
    tso("off");
    // the kernel refuses it, and the port has seen why
    assert!(!send_large(&mut opened.ports[0], peers, &pieces));
    assert!(opened.ports[0].large().is_none());
    assert_eq!(stats.large_refused.get(), 1);
    tso("on");
    let until = std::time::Instant::now() + PATIENCE;
    while !send_large(&mut opened.ports[0], peers, &pieces) {
        assert!(std::time::Instant::now() < until, "large sends do not come back");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(receive(stream.len()) == stream);
    assert_eq!((stats.large_sends.get(), stats.large_refused.get()), (2, 1));
    // a program at the peer, in its driver, wants single packets: the device's segmentation goes while it is there
    let peer = lab.raw_client();
    assert!(!send_large(&mut opened.ports[0], peers, &pieces));
    drop(peer);
    let until = std::time::Instant::now() + PATIENCE;
    while !send_large(&mut opened.ports[0], peers, &pieces) {
        assert!(std::time::Instant::now() < until, "large sends do not come back");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn without_a_wish_for_large_sends_there_are_none() {
    let _lab = Lab::new("small", 1);
    let mut opened = open(&config(&[])).unwrap();
    assert!(!opened.got.large_sends && opened.ports[0].large().is_none());
}

#[test]
fn what_is_to_be_received_leaves_frames_to_send() {
    const RESERVE: usize = base::BURST_FRAMES;
    let lab = Lab::new("reserve", 1);
    let small = port_xdp::OpenConfig { rx_slots: 256, tx_slots: 256, spare_frames: 64, ..config(&[dns()]) };
    let mut opened = open(&small).unwrap();
    let port = &mut opened.ports[0];
    // the fill ring is full whatever stays
    assert_eq!(port.free_frames() + 512, opened.got.frames as usize);
    lab.client(|| {
        let socket = UdpSocket::bind("198.18.0.2:0").unwrap();
        for n in 0..200u32 {
            socket.send_to(&n.to_be_bytes(), "198.18.0.1:53").unwrap();
        }
    })
    .join()
    .unwrap();
    eventually("not all arrived", || port.waiting() == 200);
    // now it lacks 200, and 100 are free
    let mut held: Vec<_> = std::iter::from_fn(|| if port.free_frames() > 100 { port.take() } else { None }).collect();
    for _ in 0..3 {
        port.flush();
        assert_eq!(port.free_frames(), RESERVE);
    }
    // what comes home goes there as before
    held.drain(..).for_each(|frame| port.give(frame));
    assert_eq!(collect(port, |got| got.len() == 200).len(), 200);
    eventually("the fill ring is not full", || {
        port.flush();
        port.free_frames() + 512 < opened.got.frames as usize + 64
    });
    lab.is_served(port, 20);
}

#[test]
fn an_interface_without_carrier_is_opened_and_served_when_it_comes() {
    let lab = Lab::new("early", 1);
    ip(&format!("-n {} link set vc down", lab.client));
    let wait = std::time::Duration::from_millis(50);
    let mut opened = open(&port_xdp::OpenConfig { carrier_wait: wait, ..config(&[dns()]) }).unwrap();
    assert_eq!(opened.got.mode, Mode::Copy);
    let warnings = &opened.got.warnings;
    assert!(warnings.iter().any(|said| said.starts_with("vs has no carrier")), "{warnings:?}");
    ip(&format!("-n {} link set vc up", lab.client));
    lab.is_served(&mut opened.ports[0], 20);
}

/// Kilobytes of memory that this process has in use.
fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_mode_that_was_tried_in_vain_keeps_no_memory() {
    const MODE: &str = "TEST_MODE";
    if is_child() {
        let mode = if std::env::var(MODE).unwrap() == "auto" { Mode::Auto } else { Mode::Copy };
        let opened = open(&port_xdp::OpenConfig { mode, ..config(&[dns()]) }).unwrap();
        assert_eq!((opened.got.mode, opened.got.not.len()), (Mode::Copy, usize::from(mode == Mode::Auto)));
        println!("CHILD HAS {} {}", resident_kb(), u64::from(opened.got.frames) * 2);
        return;
    }
    let _lab = Lab::new("resident", 1);
    let [(copy, arena), (auto, _)] = ["copy", "auto"].map(|mode| {
        let out = again("a_mode_that_was_tried_in_vain_keeps_no_memory", &[]).env(MODE, mode).output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        let line = said.lines().find_map(|line| line.split_once("CHILD HAS ").map(|(_, said)| said));
        let line = line.unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&out.stderr)));
        let (resident, arena) = line.split_once(' ').unwrap();
        detached();
        (resident.parse::<u64>().unwrap(), arena.parse::<u64>().unwrap())
    });
    assert!(arena > 16_384 && copy > arena, "{copy} kB with an arena of {arena}");
    assert!(auto < copy + arena / 2, "{auto} kB, and {copy} without the mode that failed; an arena has {arena}");
}

/// Where this kernel makes bonds; `attempt` has a test of the choice anywhere.
#[test]
fn a_bond_is_served_in_generic_mode() {
    let lab = Lab::new("bond", 1);
    let space = &lab.server;
    let bond = format!("-n {space} link add bond0 numrxqueues 1 numtxqueues 1 type bond mode active-backup miimon 20");
    if !std::process::Command::new("ip").args(bond.split(' ')).status().unwrap().success() {
        return eprintln!("this kernel has no bonds");
    }
    for line in [
        "addr flush dev vs",
        "link set vs down",
        "link set vs master bond0",
        "addr add 198.18.0.1/24 dev bond0",
        "link set bond0 up",
    ] {
        ip(&format!("-n {space} {line}"));
    }
    let on_bond = |mode| port_xdp::OpenConfig { interface: "bond0".into(), mode, ..config(&[dns()]) };
    let said = refusal(&on_bond(Mode::Copy));
    assert!(said.contains("below bond0") && said.contains("--mode generic"), "{said}");
    let mut opened = open(&on_bond(Mode::Auto)).unwrap();
    assert_eq!(opened.got.mode, Mode::Generic);
    assert_eq!(opened.got.not.iter().map(|(mode, _)| *mode).collect::<Vec<_>>(), [Mode::Zerocopy, Mode::Copy]);
    lab.is_served(&mut opened.ports[0], 20);
}
