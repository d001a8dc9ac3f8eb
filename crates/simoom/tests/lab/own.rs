//! Addresses that the kernel does not have: wholly ours, on the wire as any host's.

use crate::common::{PATIENCE, Server, Stats, client, complaints, dig, dig_until, ip, nothing_attached, refused, zone};
use lab::{Lab, MIDDLE, Options};
use std::time::Duration;

const OWN: [&str; 10] = [
    "--interface",
    "vs",
    "--own",
    "198.18.0.53/24",
    "--own",
    "2001:db8:18::53/64",
    "--listen",
    "198.18.0.53:53",
    "--listen",
    "[2001:db8:18::53]:53",
];

#[test]
fn an_own_address_resolves_echoes_and_answers() {
    let lab = Lab::new().unwrap();
    let server = Server::start(lab.server(), &OWN);
    let ready = |at: &str| {
        server.wait_until(at, |stats| stats.sum("own_address_state", &[("address", at)]) == 1);
    };
    let all = ["198.18.0.53", "2001:db8:18::53"];
    for at in all {
        ready(at);
        dig_until(&lab, &format!("@{at} www.example.com AAAA"), "2001:db8:18::80");
    }
    // from here on each is asked once: what comes is counted
    let before = server.stats();
    for at in all {
        assert_eq!(dig(&lab, &format!("+time=30 @{at} www.example.com AAAA")), "2001:db8:18::80");
        assert!(client(&lab, &format!("ping -c 3 -i 0.2 -W 5 -s 1000 {at}")).contains(" 3 received"), "{at}");
        // the kernel's resolution found the interface
        let neighbour = client(&lab, &format!("ip neigh show {at}"));
        let mac = lab.server().mac().unwrap().map(|octet| format!("{octet:02x}")).join(":");
        assert!(neighbour.contains(&mac), "{neighbour}");
        // over our own TCP, since the kernel does not have the address; what does not fit a datagram is fetched so
        assert_eq!(dig(&lab, &format!("+time=30 @{at} +tcp www.example.com A")), "198.18.0.80");
        let big = client(&lab, &format!("kdig +retry=0 +time=30 @{at} +short big.example.com TXT"));
        assert_eq!(big.lines().filter(|line| line.starts_with("\"answer-")).count(), 99, "{big}");
    }
    // the address of the kernel beside it stays the kernel's
    assert!(client(&lab, "ping -c 2 -i 0.2 -W 5 198.18.0.1").contains(" 2 received"));
    let stats = server.stats();
    for family in ["4", "6"] {
        let since = |transport| stats.questions(transport, family) - before.questions(transport, family);
        assert_eq!((since("udp"), since("tcp")), (2, 2), "{stats:?}");
    }
    let accepted = |stats: &Stats| stats.sum("tcp_events_total", &[("event", "accepted")]);
    assert_eq!((accepted(&before), accepted(&stats)), (0, 4), "{stats:?}");
    assert_eq!(stats.sum("own_address_conflicts_total", &[]), 0, "{stats:?}");
}

#[test]
fn an_address_that_the_kernel_has_cannot_be_own() {
    let lab = Lab::new().unwrap();
    let (_dir, zone) = zone(crate::common::ZONE);
    for (own, at, listen) in [
        ("198.18.0.1/24", "198.18.0.1", "198.18.0.1:53"),
        ("2001:db8:18::1/64", "2001:db8:18::1", "[2001:db8:18::1]:53"),
    ] {
        let (status, log) = refused(lab.server(), &["--interface", "vs", "--own", own, "--listen", listen, &zone]);
        let lines = complaints(&log);
        assert!(lines.len() == 1 && lines[0].contains(at) && lines[0].contains("--own"), "{log}");
        assert_eq!(status, Some(2), "{log}");
        nothing_attached(&lab);
    }
}

#[test]
fn another_holder_is_noticed_and_said() {
    let lab = Lab::new().unwrap();
    ip(lab.client(), "addr add 198.18.0.53/24 dev vc");
    ip(lab.client(), "addr add 2001:db8:18::53/64 dev vc nodad");
    let mut server = Server::start(lab.server(), &OWN);
    for at in ["198.18.0.53", "2001:db8:18::53"] {
        server.wait_until("no conflict", |stats| stats.sum("own_address_state", &[("address", at)]) == 2);
        server.wait_for(&format!("own address {at}: another station"));
    }
}

/// A switch that delivers multicast to those alone who have lately said that they listen, and asks who does.
fn join_by_a_snooping_switch(lab: &Lab) {
    let middle = lab.middle().unwrap();
    // in hundredths of a second; the kernel asks no more often than once a second
    let asks = "mcast_snooping 1 mcast_querier 1 mcast_query_interval 100 mcast_startup_query_interval 100";
    let forgets = "mcast_query_response_interval 50 mcast_membership_interval 250";
    ip(middle, &format!("link add join type bridge {asks} {forgets}"));
    // an address to ask from
    middle.run(&["sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/join/disable_ipv6"]).unwrap();
    for interface in MIDDLE {
        ip(middle, &format!("link set {interface} master join"));
    }
    ip(middle, "link set join up");
    ip(middle, "addr add fe80::1/64 dev join nodad");
}

/// Whether the server's kernel answers the switch, or, where it has no IPv6, our stack, the question may come by either queue.
#[test]
fn a_switch_that_asks_who_listens_does_not_forget_an_own_address() {
    const GROUP: &str = "grp ff02::1:ff00:53 ";
    for kernel in [true, false] {
        let lab = Lab::with_middle(&Options { queues: 2, ..Options::default() }).unwrap();
        if !kernel {
            lab.server().run(&["sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/vs/disable_ipv6"]).unwrap();
        }
        join_by_a_snooping_switch(&lab);
        let mut server = Server::start(lab.server(), &OWN);
        server.wait_for("own address 2001:db8:18::53: nobody else has it");
        let listens = || lab.middle().unwrap().run(&["bridge", "mdb", "show"]).unwrap().contains(GROUP);
        assert!(lab::wait_until(listens, PATIENCE), "kernel {kernel}: {}", server.process.log());
        // what was reported before is forgotten by then
        std::thread::sleep(Duration::from_secs(6));
        assert!(lab::wait_until(listens, PATIENCE), "kernel {kernel}: {}", server.process.log());
        ip(lab.client(), "neigh flush dev vc");
        dig_until(&lab, "@2001:db8:18::53 www.example.com A", "198.18.0.80");
    }
}

#[test]
fn a_narrower_link_is_followed() {
    let lab = Lab::new().unwrap();
    let mut server = Server::start(lab.server(), &OWN);
    for at in ["198.18.0.53", "2001:db8:18::53"] {
        dig_until(&lab, &format!("@{at} www.example.com A"), "198.18.0.80");
    }
    ip(lab.server(), "link set vs mtu 1300");
    server.wait_for("vs: its MTU is 1300 now");
    for at in ["198.18.0.53", "2001:db8:18::53"] {
        let big = client(&lab, &format!("kdig +retry=0 +time=30 @{at} +tcp +short big.example.com TXT"));
        assert_eq!(big.lines().filter(|line| line.starts_with("\"answer-")).count(), 99, "{big}");
    }
}

#[test]
fn a_new_hardware_address_is_followed() {
    const NEW: &str = "02:00:00:00:0a:0b";
    let lab = Lab::new().unwrap();
    let mut server = Server::start(lab.server(), &[&OWN[..], &["--listen", "198.18.0.1:53"]].concat());
    let all = ["198.18.0.53", "2001:db8:18::53", "198.18.0.1"];
    for at in all {
        dig_until(&lab, &format!("@{at} www.example.com A"), "198.18.0.80");
    }
    ip(lab.server(), &format!("link set vs address {NEW}"));
    server.wait_for(&format!("vs: its hardware address is {NEW} now"));
    // the kernel says nothing of its own addresses; ours are announced
    ip(lab.client(), "neigh flush to 198.18.0.1 dev vc");
    for at in all {
        let before = server.stats().taken();
        dig_until(&lab, &format!("@{at} www.example.com A"), "198.18.0.80");
        assert!(server.stats().taken() > before, "{at}: {:?}", server.stats());
        let neighbour = client(&lab, &format!("ip neigh show {at}"));
        assert!(neighbour.contains(NEW), "{neighbour}");
    }
    assert_eq!(server.stats().on_sockets(), 0);
    assert_eq!(server.stats().sum("own_address_conflicts_total", &[]), 0, "{}", server.process.log());
}
