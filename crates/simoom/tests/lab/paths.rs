//! What a router between the two hosts says is heard.

use crate::{
    common::ip,
    web::{Web, contents, curl},
};
use lab::{Lab, MIDDLE, Options};

/// Hosts with a router between them, whose link to the client carries packets of 1,400 bytes.
fn routed() -> Lab {
    let lab = Lab::with_middle(&Options::default()).unwrap();
    let (server, router, client) = (lab.server(), lab.middle().unwrap(), lab.client());
    let [to_client, to_server] = MIDDLE;
    // the middle is made without IPv6, and forwards nothing
    let conf = "/proc/sys/net";
    let both = format!("echo 0 > {conf}/ipv6/conf/all/disable_ipv6; echo 1 > {conf}/ipv6/conf/all/forwarding");
    router.run(&["sh", "-e", "-c", &format!("{both}; echo 1 > {conf}/ipv4/ip_forward")]).unwrap();
    for (address, interface) in [("198.18.0.254/24", to_server), ("198.18.9.254/24", to_client)] {
        ip(router, &format!("addr add {address} dev {interface}"));
    }
    for (address, interface) in [("2001:db8:18::fe/64", to_server), ("2001:db8:9::fe/64", to_client)] {
        ip(router, &format!("addr add {address} dev {interface} nodad"));
    }
    // one side alone: the client still says that it takes 1,460 bytes of a segment
    ip(router, &format!("link set {to_client} mtu 1400"));
    ip(client, "addr flush dev vc scope global");
    ip(client, "addr add 198.18.9.2/24 dev vc");
    ip(client, "addr add 2001:db8:9::2/64 dev vc nodad");
    for (host, via4, via6) in [(server, "198.18.0.254", "2001:db8:18::fe"), (client, "198.18.9.254", "2001:db8:9::fe")]
    {
        ip(host, &format!("route add default via {via4}"));
        ip(host, &format!("-6 route add default via {via6}"));
    }
    lab
}

#[test]
fn a_router_with_a_narrow_link_is_heard_whatever_address_the_listener_names() {
    let named = ["--listen", "198.18.0.1:80", "--listen", "[2001:db8:18::1]:80"];
    let any = ["--listen", "0.0.0.0:80", "--listen", "[::]:80"];
    for listen in [any, named] {
        let lab = routed();
        let web = Web::start(lab.server(), &[&["--interface", "vs"][..], &listen].concat());
        for (n, server) in ["198.18.0.1", "[2001:db8:18::1]"].iter().enumerate() {
            let body = curl(&lab, &[&format!("http://{server}/5000000.bin")]);
            assert!(body == contents(5_000_000), "{listen:?} {server}: {} bytes", body.len());
            let stats = web.tcp();
            let heard = stats.sum("frames_handled_total", &[("kind", ["icmp error", "icmpv6 error"][n])]);
            let lowered = stats.sum("tcp_events_total", &[("event", "path mtu lowered")]);
            assert!(heard > 0, "{listen:?} {server}: {stats:?}");
            assert_eq!(lowered, n as u64 + 1, "{listen:?} {server}: {stats:?}");
        }
    }
}
