//! AF_XDP on veth pairs: what crosses, what stays the kernel's, what is left behind.

mod common;

use common::*;
use port::{Outgoing, Port};
use port_xdp::device::{Change, addresses};
use port_xdp::{Listener, Mode, XdpPort, device::Device, open};
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn ask(n: usize) -> usize {
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

fn frames_cross(name: &str, mode: Mode) {
    let lab = Lab::new(name, 1);
    let mut opened = open(&port_xdp::OpenConfig { mode, ..config(&[dns()]) }).unwrap();
    assert_eq!(opened.got.mode, mode);
    let port = &mut opened.ports[0];
    assert!(port.facts().virtual_link && port.facts().frame_bytes == 1792);
    let client = lab.client(|| ask(200));
    assert_eq!(echo(port, |answered| answered == 200), 200);
    assert_eq!(client.join().unwrap(), 200);
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
    const SOCKETS: usize = 16;
    const ROUNDS: usize = 200;
    const WINDOW: usize = 8;
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

/// Runs this test binary again as a child that runs only `test`, with `TEST_CHILD` set.
fn again(test: &str, through: &[&str]) -> Command {
    let exe = std::env::current_exe().unwrap();
    let mut words: Vec<String> = through.iter().map(ToString::to_string).collect();
    words.push(exe.display().to_string());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["--exact", test, "--nocapture", "--test-threads=1"]).env("TEST_CHILD", "1");
    command
}

fn is_child() -> bool {
    std::env::var_os("TEST_CHILD").is_some()
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

    let one_queue = port_xdp::OpenConfig { queues: Some(1), ..config(&[]) };
    assert!(refusal(&one_queue).contains("`ethtool -L vs rx 1 tx 1`"), "{}", refusal(&one_queue));

    let first = open(&config(&[])).unwrap();
    let said = refusal(&config(&[]));
    let id = Device::find("vs").unwrap().unwrap().xdp_program.unwrap();
    assert!(said.contains(&format!("an XDP program (id {id})")) && said.contains("`ip link show dev vs`"), "{said}");
    // without its program the sockets still have the queues
    drop(first.handle);
    // a process that another test has just forked holds all descriptors, the program's too, until it executes
    eventually("the program stayed", || Device::find("vs").unwrap().unwrap().xdp_program.is_none());
    let said = refusal(&config(&[]));
    assert!(said.contains("queue 0 of vs is taken") && said.contains("`ss --xdp -p`"), "{said}");
    drop(first.ports);
    eventually("the queue stayed taken", || open(&config(&[])).is_ok());

    ip(&format!("-n {space} link set vs mtu 9000"));
    let said = refusal(&config(&[]));
    assert!(said.contains("9000, is too large") && said.contains("mtu 3822"), "{said}");
    // fits a chunk, but not the one page that veth's driver gives a packet of the peer's; generic mode carries it
    ip(&format!("-n {space} link set vs mtu 3700"));
    ip(&format!("-n {} link set vc mtu 3700", lab.client));
    let copy = port_xdp::OpenConfig { mode: Mode::Copy, ..config(&[]) };
    let said = refusal(&copy);
    assert!(said.contains("the MTU is too large for XDP in the driver") && said.contains("--mode generic"), "{said}");
    assert_eq!(open(&config(&[])).unwrap().got.mode, Mode::Generic);
    ip(&format!("-n {space} link set vs mtu 1500"));
    ip(&format!("-n {} link set vc mtu 1500", lab.client));

    ip(&format!("-n {space} link set vs down"));
    assert_eq!(refusal(&config(&[])), "interface vs is down: put it up with `ip link set dev vs up`");
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
fn a_rebuilt_socket_works_and_loses_no_frame() {
    let lab = Lab::new("rebuild", 1);
    let mut opened = open(&config(&[dns()])).unwrap();
    let port = &mut opened.ports[0];
    let free = port.free_frames();
    for round in 0..3 {
        let client = lab.client(|| ask(50));
        echo(port, |answered| answered == 50);
        assert_eq!(client.join().unwrap(), 50, "round {round}");
        port.rebuild().unwrap();
        assert_eq!(port.free_frames(), free);
    }
    // one that arrived and was not yet received is lost with the socket, its frame is not
    let client = lab.client(|| {
        let socket = UdpSocket::bind("198.18.0.2:0").unwrap();
        socket.send_to(b"lost", "198.18.0.1:53").unwrap();
    });
    client.join().unwrap();
    eventually("nothing was taken", || opened.handle.counts().get("steering_taken_total", "") == Some(151));
    port.rebuild().unwrap();
    assert_eq!(port.free_frames(), free);
    assert_eq!(port.stats().rebuilds.get(), 4);
    let client = lab.client(|| ask(50));
    echo(port, |answered| answered == 50);
    assert_eq!(client.join().unwrap(), 50);
}

#[test]
fn a_socket_is_rebuilt_again_and_again_without_privileges() {
    let lab = Lab::new("unprivileged", 1);
    let mut opened = open(&config(&[dns()])).unwrap();
    let port = &mut opened.ports[0];
    let free = port.free_frames();
    // this thread's only; the limit on locked memory is another matter
    let kept = rustix::thread::capabilities(None).unwrap();
    let effective = kept.effective & rustix::thread::CapabilitySet::IPC_LOCK;
    rustix::thread::set_capabilities(None, rustix::thread::CapabilitySets { effective, ..kept }).unwrap();
    let outcomes: Vec<_> = (0..4).map(|_| port.rebuild().map_err(|e| e.to_string())).collect();
    rustix::thread::set_capabilities(None, kept).unwrap();
    assert_eq!(outcomes, [const { Ok::<(), String>(()) }; 4]);
    assert_eq!(port.free_frames(), free);
    let client = lab.client(|| ask(20));
    echo(port, |answered| answered == 20);
    assert_eq!(client.join().unwrap(), 20);
}

#[test]
fn addresses_that_come_and_go_are_followed() {
    let lab = Lab::new("follow", 1);
    let any = Listener { address: "0.0.0.0".parse().unwrap(), protocol: UDP, port: 53 };
    let mut handle = open(&config(&[any])).unwrap().handle;
    let taken = |handle: &mut port_xdp::Handle| {
        handle.steering().taken().map(|taken| taken.address.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(taken(&mut handle), ["198.18.0.1"]);
    let mut monitor = port_xdp::device::Monitor::open().unwrap();
    // an anycast address on lo counts too
    ip(&format!("-n {} addr add 192.0.2.53/32 dev lo", lab.server));
    let mut changes = Vec::new();
    eventually("the monitor heard nothing", || {
        changes.extend(monitor.changes().unwrap());
        !changes.is_empty()
    });
    let lo = Device::find("lo").unwrap().unwrap().index;
    let added = port_xdp::device::Address { interface: lo, address: "192.0.2.53".parse().unwrap(), prefix_bits: 32 };
    assert_eq!(changes, [Change::Added(added)]);
    assert!(addresses().unwrap().contains(&added));
    assert!(handle.follow().unwrap().addresses);
    assert_eq!(taken(&mut handle), ["192.0.2.53", "198.18.0.1"]);
    assert!(!handle.follow().unwrap().addresses);
    ip(&format!("-n {} addr del 192.0.2.53/32 dev lo", lab.server));
    eventually("the address was kept", || handle.follow().unwrap().addresses);
    assert_eq!(taken(&mut handle), ["198.18.0.1"]);
    assert!(monitor.changes().unwrap().contains(&Change::Removed(added)));
}

#[test]
fn one_vlan_tag_is_understood_and_two_are_not() {
    let lab = Lab::new("vlan", 1);
    let mac = mac_of(&lab.server, "vs");
    let mut opened = open(&config(&[dns()])).unwrap();
    let mut client = lab.raw_client();
    let query = ipv4(17, &[], 0, &udp(4000, 53, b"tagged"));
    let tagged = ethernet(mac, Some(7), 0x0800, &query);
    let twice = ethernet(mac, Some(7), 0x8100, &[&[0, 8, 8, 0], &query[..]].concat());
    send(&mut client.ports[0], &twice);
    send(&mut client.ports[0], &tagged);
    let got = collect(&mut opened.ports[0], |got| !got.is_empty());
    assert_eq!(got, [tagged]);
}

/// What the server's port gets of `frames`, which end with one that it certainly gets.
fn taken_of(name: &str, listeners: &[Listener], own: &[IpAddr], frames: impl Fn(port::Mac) -> Vec<(bool, Vec<u8>)>) {
    let lab = Lab::new(name, 1);
    let mac = mac_of(&lab.server, "vs");
    let mut opened = open(&port_xdp::OpenConfig { own: own.to_vec(), ..config(listeners) }).unwrap();
    let mut client = lab.raw_client();
    let frames = frames(mac);
    assert!(frames.last().unwrap().0);
    for (_, frame) in &frames {
        send(&mut client.ports[0], frame);
    }
    let expect: Vec<_> = frames.iter().filter(|(ours, _)| *ours).map(|(_, frame)| frame.clone()).collect();
    // the client's kernel may speak too
    let is_ours = |frame: &Vec<u8>| frame[6..12] == [2, 0, 0, 0, 0, 9];
    let last = expect.last().unwrap().clone();
    let got = collect(&mut opened.ports[0], |got| got.contains(&last));
    let got: Vec<_> = got.into_iter().filter(is_ours).collect();
    assert_eq!(got.len(), expect.len(), "{:?}", got.iter().map(Vec::len).collect::<Vec<_>>());
    assert_eq!(got, expect);
}

/// A macvlan or VRRP interface has an address of the machine's at a hardware address of its own; only the kernel can answer.
#[test]
fn frames_for_other_hardware_addresses_are_the_kernels() {
    taken_of("mac", &[dns()], &[], |mac| {
        let query = |text: &[u8]| ipv4(17, &[], 0, &udp(4000, 53, text));
        let mut near = mac;
        near[5] ^= 1;
        vec![
            (false, ethernet([0, 0, 0x5e, 0, 1, 7], None, 0x0800, &query(b"vrrp"))),
            (false, ethernet(near, None, 0x0800, &query(b"near"))),
            (true, ethernet([0xff; 6], None, 0x0800, &query(b"broadcast"))),
            (true, ethernet(mac, None, 0x0800, &query(b"ours"))),
        ]
    });
}

#[test]
fn only_whole_plain_datagrams_and_errors_about_them_are_taken() {
    let v6: IpAddr = "2001:db8:18::1".parse().unwrap();
    let listeners = [dns(), Listener { address: v6, protocol: UDP, port: 53 }];
    taken_of("plain", &listeners, &[], |mac| {
        let four = |packet: Vec<u8>| ethernet(mac, None, 0x0800, &packet);
        let six = |packet: Vec<u8>| ethernet(mac, None, 0x86dd, &packet);
        let query = udp(4000, 53, b"q");
        // what a router quotes is a packet that the server sent
        let quote = |port: u16| {
            let mut sent = ipv4(17, &[], 0, &udp(port, 4000, b"a"));
            sent[12..20].copy_from_slice(&[198, 18, 0, 1, 198, 18, 0, 9]);
            [&[3u8, 4, 0, 0, 0, 0, 5, 0][..], &sent].concat()
        };
        let quote6 = |port: u16| {
            let mut sent = ipv6("2001:db8:18::9".parse().unwrap(), 17, &udp(port, 4000, b"a"));
            let IpAddr::V6(v6) = v6 else { panic!() };
            sent[8..24].copy_from_slice(&v6.octets());
            [&[2u8, 0, 0, 0, 0, 0, 5, 0][..], &sent].concat()
        };
        let fragment_header = [&[17u8, 0, 0, 1, 0, 0, 0, 1][..], &query].concat();
        let hop_by_hop = [&[17u8, 0, 1, 4, 0, 0, 0, 0][..], &query].concat();
        vec![
            (true, four(ipv4(17, &[], 0, &query))),
            (true, four(ipv4(17, &[], 0x4000, &query))), // DF
            // options that would read as port 53
            (false, four(ipv4(17, &[1, 1, 0, 53], 0, &query))),
            (false, four(ipv4(17, &[], 0x2000, &query))),
            (false, four(ipv4(17, &[], 0x0001, &query))),
            (false, four(ipv4(17, &[], 0, &udp(4000, 54, b"q")))),
            (false, four(ipv4(6, &[], 0, &query))),
            (true, four(ipv4(1, &[], 0, &quote(53)))),
            (false, four(ipv4(1, &[], 0, &quote(54)))),
            (false, four(ipv4(1, &[], 0, &[8, 0, 0, 0, 0, 1, 0, 1]))),
            (true, six(ipv6(v6, 17, &query))),
            (false, six(ipv6(v6, 44, &fragment_header))),
            (false, six(ipv6(v6, 0, &hop_by_hop))),
            (false, six(ipv6(v6, 17, &udp(4000, 54, b"q")))),
            (true, six(ipv6(v6, 58, &quote6(53)))),
            (false, six(ipv6(v6, 58, &quote6(54)))),
            (false, mac.into_iter().chain([2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0]).collect()),
            (true, four(ipv4(17, &[], 0, &udp(4000, 53, b"last")))),
        ]
    });
}

#[test]
fn fragments_of_tcp_to_a_taken_port_are_dropped_and_counted() {
    let lab = Lab::new("tcpfrag", 1);
    let mac = mac_of(&lab.server, "vs");
    let v6: IpAddr = "2001:db8:18::1".parse().unwrap();
    let tcp = Listener { protocol: 6, ..dns() };
    let mut opened = open(&config(&[tcp, Listener { address: v6, ..tcp }])).unwrap();
    let mut client = lab.raw_client();
    let segment = udp(4000, 53, b"twelve bytes and some");
    send(&mut client.ports[0], &ethernet(mac, None, 0x0800, &ipv4(6, &[], 0x2000, &segment)));
    let first = [&[6u8, 0, 0, 1, 0, 0, 0, 1][..], &segment].concat();
    send(&mut client.ports[0], &ethernet(mac, None, 0x86dd, &ipv6(v6, 44, &first)));
    send(&mut client.ports[0], &ethernet(mac, None, 0x0800, &ipv4(6, &[], 0, &segment)));
    let got = collect(&mut opened.ports[0], |got| !got.is_empty());
    assert_eq!(got.len(), 1);
    assert_eq!(got[0][20], 0, "the whole one");
    assert_eq!(opened.handle.counts().get("steering_dropped_total", "tcp fragment"), Some(2));
}

#[test]
fn own_addresses_are_wholly_ours_and_the_kernels_stay_its_own() {
    // shares its solicited-node group with 2001:db8:18::1, the kernel's
    let own: [IpAddr; 2] = ["198.18.0.77".parse().unwrap(), "2001:db8:18:1::1".parse().unwrap()];
    taken_of("own", &[dns()], &own, |mac| {
        let arp = |operation: u8, sender: [u8; 4], target: [u8; 4]| {
            let head = [0, 1, 8, 0, 6, 4, 0, operation, 2, 0, 0, 0, 0, 9];
            ethernet([0xff; 6], None, 0x0806, &[&head[..], &sender, &[0; 6], &target].concat())
        };
        let solicit = |to: &str, target: &str| {
            let target: std::net::Ipv6Addr = target.parse().unwrap();
            let message = [&[135u8, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat();
            let group = [0x33, 0x33, 0xff, 0, 0, 1];
            ethernet(group, None, 0x86dd, &ipv6(to.parse().unwrap(), 58, &message))
        };
        let to_own = |protocol: u8, options: &[u8], fragment: u16| {
            let mut packet = ipv4(protocol, options, fragment, &udp(4000, 9, b"any"));
            packet[19] = 77;
            ethernet(mac, None, 0x0800, &packet)
        };
        vec![
            (true, arp(1, [198, 18, 0, 9], [198, 18, 0, 77])),
            (true, arp(1, [198, 18, 0, 77], [198, 18, 0, 77])), // another host claims it
            (false, arp(1, [198, 18, 0, 9], [198, 18, 0, 1])),
            (true, solicit("ff02::1:ff00:1", "2001:db8:18:1::1")),
            (false, solicit("ff02::1:ff00:1", "2001:db8:18::1")),
            (true, solicit("2001:db8:18:1::1", "2001:db8:18:1::1")),
            (true, to_own(17, &[], 0)),
            (true, to_own(6, &[], 0)),
            (true, to_own(1, &[], 0)),
            (true, to_own(17, &[1, 1, 1, 0], 0)),
            (true, to_own(17, &[], 0x2000)),
            (true, to_own(17, &[], 0x00b9)),
            (true, ethernet(mac, None, 0x0800, &ipv4(17, &[], 0, &udp(4000, 53, b"shared")))),
        ]
    });
}

#[test]
fn the_longest_prefix_decides_and_only_about_what_is_ours() {
    let lab = Lab::new("lists", 1);
    let mac = mac_of(&lab.server, "vs");
    let prefix = |address: &str, bits| bpf::steering::Prefix { address: address.parse().unwrap(), bits };
    let mut config = config(&[dns()]);
    config.allow = vec![prefix("198.18.0.0", 24), prefix("2001:db8::", 32)];
    config.deny = vec![prefix("198.18.0.8", 30), prefix("0.0.0.0", 0)];
    let mut opened = open(&config).unwrap();
    let mut client = lab.raw_client();
    let from = |last: [u8; 4], text: &[u8]| {
        let mut packet = ipv4(17, &[], 0, &udp(4000, 53, text));
        packet[12..16].copy_from_slice(&last);
        ethernet(mac, None, 0x0800, &packet)
    };
    let denied = from([198, 18, 0, 9], b"denied by /30");
    let allowed = from([198, 18, 0, 20], b"allowed by /24");
    send(&mut client.ports[0], &denied);
    send(&mut client.ports[0], &from([203, 0, 113, 1], b"denied by /0"));
    send(&mut client.ports[0], &allowed);
    let got = collect(&mut opened.ports[0], |got| !got.is_empty());
    assert_eq!(got, [allowed]);
    let dropped = |opened: &port_xdp::Opened, why| opened.handle.counts().get("steering_dropped_total", why).unwrap();
    assert_eq!(dropped(&opened, "denied"), 2);
    // without the /0 what matches nothing is not allowed; without any list everything is
    opened.handle.steering().remove_prefix(prefix("0.0.0.0", 0)).unwrap();
    send(&mut client.ports[0], &from([203, 0, 113, 1], b"not allowed"));
    eventually("it was heard", || dropped(&opened, "not allowed") == 1);
    for (address, bits) in [("198.18.0.0", 24), ("2001:db8::", 32), ("198.18.0.8", 30)] {
        opened.handle.steering().remove_prefix(prefix(address, bits)).unwrap();
    }
    send(&mut client.ports[0], &denied);
    assert_eq!(collect(&mut opened.ports[0], |got| !got.is_empty()), [denied]);
    // the client's kernel was denied nothing that is not ours
    lab.client(|| ping("198.18.0.1")).join().unwrap();
    let twice = opened.handle.steering().add_prefix(prefix("198.18.0.0", 24), bpf::steering::Rule::Deny);
    assert!(twice.is_ok());
    let both = opened.handle.steering().add_prefix(prefix("198.18.0.7", 24), bpf::steering::Rule::Allow);
    assert!(both.unwrap_err().to_string().contains("198.18.0.0/24 is both allowed and denied"));
}

#[test]
fn one_listener_then_several_then_one_again() {
    let lab = Lab::new("several", 1);
    let mac = mac_of(&lab.server, "vs");
    let mut opened = open(&config(&[dns()])).unwrap();
    let mut client = lab.raw_client();
    let to = |port: u16| ethernet(mac, None, 0x0800, &ipv4(17, &[], 0, &udp(4000, port, b"q")));
    let second = Listener { port: 5353, ..dns() };
    type Step<'a> = (&'a dyn Fn(&mut port_xdp::Handle), &'a [u16]);
    let steps: [Step<'_>; 5] = [
        (&|_| (), &[53]),
        (&|handle| handle.listen(second).unwrap(), &[53, 5353]),
        (&|handle| handle.unlisten(&dns()).unwrap(), &[5353]),
        (&|handle| handle.unlisten(&second).unwrap(), &[]),
        (&|handle| handle.listen(dns()).unwrap(), &[53]),
    ];
    for (change, expect) in steps {
        change(&mut opened.handle);
        let passed =
            |opened: &port_xdp::Opened| opened.handle.counts().get("steering_passed_total", "not ours").unwrap();
        let before = passed(&opened);
        send(&mut client.ports[0], &to(53));
        send(&mut client.ports[0], &to(5353));
        let got = collect(&mut opened.ports[0], |got| got.len() == expect.len());
        let expect: Vec<_> = expect.iter().map(|port| to(*port)).collect();
        assert_eq!(got, expect);
        eventually("one was lost", || passed(&opened) - before >= 2 - expect.len() as u64);
    }
}

#[test]
fn a_replaced_program_keeps_the_entries_and_the_link() {
    let lab = Lab::new("replace", 1);
    let mut opened = open(&config(&[dns()])).unwrap();
    let before = Device::find("vs").unwrap().unwrap().xdp_program;
    let sizes = bpf::Config { taken: 10, ..bpf::Config::default() };
    let socket = opened.ports[0].descriptor().unwrap();
    opened.handle.steering().replace(&sizes, &[(0, socket)]).unwrap();
    let after = Device::find("vs").unwrap().unwrap().xdp_program;
    assert!(after.is_some() && after != before);
    let client = lab.client(|| ask(20));
    echo(&mut opened.ports[0], |answered| answered == 20);
    assert_eq!(client.join().unwrap(), 20);
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
fn super_packets_in_generic_mode_are_dropped_and_counted() {
    let lab = Lab::new("super", 1);
    let mut opened = open(&port_xdp::OpenConfig { mode: Mode::Generic, ..config(&[dns()]) }).unwrap();
    // ten datagrams in one packet, as the kernel hands them from veth to veth
    lab.client(|| {
        let socket = UdpSocket::bind("198.18.0.2:0").unwrap();
        segment(&socket, 1000);
        socket.send_to(&[b'x'; 10_000], "198.18.0.1:53").unwrap();
        segment(&socket, 0);
        socket.send_to(b"small", "198.18.0.1:53").unwrap();
    })
    .join()
    .unwrap();
    let got = collect(&mut opened.ports[0], |got| !got.is_empty());
    assert!(got.len() == 1 && got[0].ends_with(b"small"), "{}", got.len());
    let stats = opened.ports[0].stats();
    assert_eq!(stats.dropped_by_kernel(), (1, 0));
    let mut shown = Vec::new();
    base::counter::Report::report(&**stats, &mut |figure| {
        shown.push((
            figure.name.to_owned(),
            figure.labels.iter().map(|(_, v)| (*v).to_owned()).collect::<Vec<_>>(),
            figure.value,
        ));
    });
    let labels = ["vs", "0", "no frame or too large"].map(str::to_owned).to_vec();
    assert!(shown.contains(&("xdp_frames_dropped_total".into(), labels, 1)), "{shown:?}");
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
    assert_eq!(collect(port, |got| got.len() == 64).len(), 64);
    let client = lab.client(|| ask(20));
    echo(port, |answered| answered == 20);
    assert_eq!(client.join().unwrap(), 20);
}

#[test]
fn a_port_whose_frames_do_not_come_back_is_made_anew_when_that_is_possible() {
    let lab = Lab::new("stuck", 1);
    let timeout = std::time::Duration::from_millis(100);
    let mut opened = open(&port_xdp::OpenConfig { completion_timeout: timeout, ..config(&[dns()]) }).unwrap();
    let port = &mut opened.ports[0];
    let free = port.free_frames();
    // nothing leaves an interface that is down
    ip(&format!("-n {} link set vs down", lab.server));
    send(port, &ethernet([0xff; 6], None, 0x88b5, &[0; 50]));
    assert_eq!(port.outstanding(), 1);
    eventually("the port stayed as it was", || {
        port.flush();
        port.stats().rebuilds.get() > 0
    });
    assert_eq!(port.outstanding(), 0);
    ip(&format!("-n {} link set vs up", lab.server));
    eventually("the port has no socket", || {
        port.flush();
        port.descriptor().is_some()
    });
    assert_eq!(port.free_frames(), free);
    let client = lab.client(|| ask(20));
    echo(port, |answered| answered == 20);
    assert_eq!(client.join().unwrap(), 20);
}

/// One TCP super-segment to port 80 of the client, as `port` is told to send it, and whether it took it. The client has no such
/// port: it answers each segment that its kernel finds intact by a reset that acknowledges its end.
fn send_large(port: &mut XdpPort, macs: [port::Mac; 2], payload: &[&[u8]]) -> bool {
    let bytes = 20 + payload.iter().map(|piece| piece.len()).sum::<usize>();
    let (src, dst) = (std::net::Ipv4Addr::new(198, 18, 0, 1), std::net::Ipv4Addr::new(198, 18, 0, 2));
    let [from, to] = macs;
    let mut header =
        [&to[..], &from, &[8, 0], &[0x45, 0], &((20 + bytes) as u16).to_be_bytes(), &[0, 0, 0x40, 0, 64, 6, 0, 0]]
            .concat();
    header.extend(src.octets());
    header.extend(dst.octets());
    let words = |bytes: &[u8]| bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum::<u32>();
    let fold = |sum: u32| (sum % 0xffff) as u16;
    let ip_sum = !fold(words(&header[14..34]));
    header[24..26].copy_from_slice(&ip_sum.to_be_bytes());
    let pseudo = fold(words(&header[26..34]) + 6 + bytes as u32);
    // from port 80 to a port that nobody has, number 1, acknowledging 1: PSH and ACK
    header.extend([0, 80, 0x13, 0x88, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 4, 0]);
    header.extend(pseudo.to_be_bytes());
    header.extend([0, 0]);
    let how = port::Segmentation { segment_bytes: 1400, ip_at: 14, tcp_at: 34, v6: false };
    port.large().is_some_and(|large| large.send(&header, payload, &how))
}

#[test]
fn a_super_segment_arrives_as_segments_and_large_sends_come_and_go_with_the_device() {
    let lab = Lab::new("large", 1);
    let large_sends = port_xdp::LargeSends::Auto;
    let mut opened = open(&port_xdp::OpenConfig { mode: Mode::Copy, large_sends, ..config(&[]) }).unwrap();
    assert!(opened.got.to_string().ends_with("; TCP in super-segments that the device cuts"), "{}", opened.got);
    let macs = [opened.got.device.mac, mac_of(&lab.client, "vc")];
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
    assert!(send_large(&mut opened.ports[0], macs, &pieces));
    assert!(receive(stream.len()) == stream);
    assert_eq!((stats.large_sends.get(), stats.large_bytes.get(), stats.large_refused.get()), (1, 60_000, 0));
    let tso = |word: &'static str| sh("ethtool", &["-K", "vs", "tso", word]);
    tso("off");
    // the kernel refuses it, and the port has seen why
    assert!(!send_large(&mut opened.ports[0], macs, &pieces));
    assert!(opened.ports[0].large().is_none());
    assert_eq!(stats.large_refused.get(), 1);
    tso("on");
    let until = std::time::Instant::now() + PATIENCE;
    while !send_large(&mut opened.ports[0], macs, &pieces) {
        assert!(std::time::Instant::now() < until, "large sends do not come back");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(receive(stream.len()) == stream);
    assert_eq!((stats.large_sends.get(), stats.large_refused.get()), (2, 1));
    // a program at the peer, in its driver, wants single packets: the device's segmentation goes while it is there
    let peer = lab.raw_client();
    assert!(!send_large(&mut opened.ports[0], macs, &pieces));
    drop(peer);
    let until = std::time::Instant::now() + PATIENCE;
    while !send_large(&mut opened.ports[0], macs, &pieces) {
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
