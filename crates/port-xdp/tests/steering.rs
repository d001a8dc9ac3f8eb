//! Which frames are ours, and which stay the kernel's.

#[allow(dead_code, reason = "the other tests use the rest")]
mod common;

use common::*;
use port::Port;
use port_xdp::{Listener, device::Device, open};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};

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

#[test]
fn a_frame_with_a_providers_tag_is_the_kernels() {
    let lab = Lab::new("provider", 1);
    let mac = mac_of(&lab.server, "vs");
    let v6: IpAddr = "2001:db8:18::1".parse().unwrap();
    let mut opened = open(&config(&[dns(), Listener { address: v6, protocol: UDP, port: 53 }])).unwrap();
    let mut client = lab.raw_client();
    let count = |opened: &port_xdp::Opened, metric, reason| opened.handle.counts().get(metric, reason).unwrap();
    let query = udp(4000, 53, b"tagged");
    for (protocol, packet) in [(0x0800u16, ipv4(17, &[], 0, &query)), (0x86dd, ipv6(v6, 17, &query))] {
        let passed = count(&opened, "steering_passed_total", "not ip");
        // IEEE 802.1ad: the type of the tag is 0x88a8
        let inside = [&[0, 100][..], &protocol.to_be_bytes(), &packet].concat();
        send(&mut client.ports[0], &ethernet(mac, None, 0x88a8, &inside));
        let plain = ethernet(mac, None, protocol, &packet);
        send(&mut client.ports[0], &plain);
        let is_ours = |frame: &Vec<u8>| frame[6..12] == [2, 0, 0, 0, 0, 9];
        let got = collect(&mut opened.ports[0], |got| got.contains(&plain));
        assert_eq!(got.into_iter().filter(is_ours).collect::<Vec<_>>(), [plain]);
        // the client's kernel may speak too
        assert!(count(&opened, "steering_passed_total", "not ip") > passed);
    }
    assert_eq!(count(&opened, "steering_taken_total", ""), 2);
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

/// A segment without data, of which the kernel looks at the ports and flags alone where it knows no connection.
fn segment(flags: u8) -> Vec<u8> {
    let mut segment = udp(4000, 80, &[0; 12]);
    segment[12..14].copy_from_slice(&[0x50, flags]);
    segment
}

#[test]
fn where_a_queue_has_no_socket_the_kernel_has_what_begins_a_connection_and_what_is_of_its_own() {
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    let lab = Lab::new("emptied", 1);
    let mac = mac_of(&lab.server, "vs");
    let addresses: [IpAddr; 2] = ["198.18.0.1".parse().unwrap(), "2001:db8:18::1".parse().unwrap()];
    let opened = open(&config(&addresses.map(|address| Listener { address, protocol: 6, port: 80 }))).unwrap();
    opened.ports[0].slot().empty().unwrap();
    let count = |metric, reason| opened.handle.counts().get(metric, reason).unwrap();
    for address in addresses {
        let kernel = std::net::TcpListener::bind((address, 80)).unwrap();
        let client = lab.client(move || {
            let mut stream = TcpStream::connect((address, 80)).unwrap();
            stream.write_all(b"to the kernel").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut back = String::new();
            stream.read_to_string(&mut back).unwrap();
            back
        });
        let (mut stream, _) = kernel.accept().unwrap();
        let mut got = String::new();
        stream.read_to_string(&mut got).unwrap();
        stream.write_all(got.as_bytes()).unwrap();
        drop(stream);
        assert_eq!(client.join().unwrap(), "to the kernel");
    }
    assert_eq!(count("steering_dropped_total", "no socket"), 0);
    // of connections that it does not know, with a listener and without
    let mut client = lab.raw_client();
    let _kernel = std::net::TcpListener::bind((addresses[0], 80)).unwrap();
    let passed = || count("steering_passed_total", "no socket");
    // the last segments of the connections above
    eventually("they have ended", || {
        let before = passed();
        std::thread::sleep(std::time::Duration::from_millis(300));
        passed() == before
    });
    let passed = passed();
    for flags in [ACK, ACK | SYN, 0] {
        send(&mut client.ports[0], &ethernet(mac, None, 0x0800, &ipv4(6, &[], 0, &segment(flags))));
        send(&mut client.ports[0], &ethernet(mac, None, 0x86dd, &ipv6(addresses[1], 6, &segment(flags))));
    }
    let dropped = || count("steering_dropped_total", "no socket");
    eventually("they are dropped", || dropped() == 6);
    assert_eq!(count("steering_passed_total", "no socket"), passed);
    send(&mut client.ports[0], &ethernet(mac, None, 0x0800, &ipv4(6, &[], 0, &segment(SYN))));
    eventually("the kernel has it", || count("steering_passed_total", "no socket") == passed + 1);
    assert_eq!((dropped(), count("steering_taken_total", "")), (6, 0));
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

/// An answer of the kernel's or of ours is what keeps a switch from forgetting who listens to a group.
#[test]
fn own_addresses_groups_are_reported_by_the_kernel_and_where_it_has_no_ipv6_the_queries_are_ours() {
    let lab = Lab::new("groups", 1);
    // two of one group
    let own: [IpAddr; 3] = ["198.18.0.77", "2001:db8:18::77", "2001:db8:18:1::77"].map(|own| own.parse().unwrap());
    let mut opened = open(&port_xdp::OpenConfig { own: own.to_vec(), ..config(&[dns()]) }).unwrap();
    let mut client = lab.raw_client();
    let mac = mac_of(&lab.server, "vs");
    // one that is certainly taken, behind
    let last = |mark: u8| {
        let mut packet = ipv4(17, &[], 0, &udp(4000, 9, &[mark]));
        packet[19] = 77;
        ethernet(mac, None, 0x0800, &packet)
    };
    let is_ours = |frame: &Vec<u8>| frame[6..12] == [2, 0, 0, 0, 0, 9];
    for (step, kernel) in [true, false, true].into_iter().enumerate() {
        let turn = format!("echo {} > /proc/sys/net/ipv6/conf/vs/disable_ipv6", u8::from(!kernel));
        sh("sh", &["-c", &turn]);
        let mut follows = || {
            assert!(opened.handle.follow().failed.is_none());
            groups("vs").contains("ff02::1:ff00:77") == kernel
        };
        // the kernel tells of IPv6 by addresses, the first of which it looks for another holder of
        eventually("it is not noticed", &mut follows);
        let mark = step as u8;
        let (asked, another, last) = (listener_message(130, mark), listener_message(132, mark), last(mark));
        for frame in [&another, &asked, &last] {
            send(&mut client.ports[0], frame);
        }
        let got = collect(&mut opened.ports[0], |got| got.contains(&last));
        let got: Vec<_> = got.into_iter().filter(is_ours).collect();
        assert_eq!(got, if kernel { vec![last] } else { vec![asked, last] }, "step {step}");
    }
    // it goes and is back before anybody has looked: the kernel joins anew what it had
    for disabled in [1, 0] {
        sh("sh", &["-c", &format!("echo {disabled} > /proc/sys/net/ipv6/conf/vs/disable_ipv6")]);
    }
    eventually("they are not joined anew", || {
        assert!(opened.handle.follow().failed.is_none());
        groups("vs").contains("ff02::1:ff00:77")
    });
    drop(opened);
    eventually("they are left", || !groups("vs").contains("ff02::1:ff00:77"));
}

/// The groups of IPv6 that this thread's kernel is in.
fn groups(interface: &str) -> String {
    let shown = std::process::Command::new("ip").args(["-6", "maddr", "show", "dev", interface]).output().unwrap();
    String::from_utf8(shown.stdout).unwrap()
}

#[test]
fn without_own_addresses_of_ipv6_queries_stay_the_kernels() {
    let lab = Lab::new("queries", 1);
    sh("sh", &["-c", "echo 1 > /proc/sys/net/ipv6/conf/vs/disable_ipv6"]);
    let own = vec!["198.18.0.77".parse().unwrap()];
    let mut opened = open(&port_xdp::OpenConfig { own, ..config(&[dns()]) }).unwrap();
    let mut client = lab.raw_client();
    let ours = ethernet(mac_of(&lab.server, "vs"), None, 0x0800, &ipv4(17, &[], 0, &udp(4000, 53, b"ours")));
    for frame in [&listener_message(130, 0), &ours] {
        send(&mut client.ports[0], frame);
    }
    let got = collect(&mut opened.ports[0], |got| got.contains(&ours));
    assert!(got.iter().all(|frame| frame[..6] != [0x33, 0x33, 0, 0, 0, 1]), "{got:x?}");
}

/// Of multicast listener discovery, to all nodes: a query is of type 130.
fn listener_message(kind: u8, mark: u8) -> Vec<u8> {
    let message = [&[58, 0, 5, 2, 0, 0, 1, 0, kind, 0, 0, 0, 0, mark][..], &[0; 22]].concat();
    ethernet([0x33, 0x33, 0, 0, 0, 1], None, 0x86dd, &ipv6("ff02::1".parse().unwrap(), 0, &message))
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
    lab.is_served(&mut opened.ports[0], 20);
}
