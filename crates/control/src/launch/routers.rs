//! The way beyond the link for what applications begin over AF_XDP: the routers of the kernel's default routes, as they are at the start.

use crate::config::Settings;
use crate::words::{Own, Prefix};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Of a route: it is in use and leads over a router (linux/route.h, the same for IPv6).
const UP_BY_A_ROUTER: u32 = 1 | 2;

/// The routers that applications' connections may leave by, at most one of each family, and what is to be said of them; neither where no
/// application may begin anything.
pub(super) fn look_up(settings: &Settings) -> (Vec<IpAddr>, Vec<String>) {
    let Some(app) = settings.apps.iter().find(|app| !app.connect.is_empty()) else { return Default::default() };
    if settings.own.is_empty() {
        let line = format!(
            "connect of app `{}`: over AF_XDP connections leave from --own addresses, and there is none: nobody is reached",
            app.name
        );
        return (Vec::new(), vec![line]);
    }
    // own addresses are with one interface only
    let interface = settings.interfaces.first().map_or("", String::as_str);
    // where there is no such file, the kernel is without that family
    let read = |file: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
    let mut all = of_ipv4(&read("route"), interface);
    all.extend(of_ipv6(&read("ipv6_route"), interface));
    choose(&settings.own, interface, &all)
}

/// The first router of each family that is a neighbour of an own address, from those in the order of their metrics.
fn choose(own: &[Own], interface: &str, all: &[IpAddr]) -> (Vec<IpAddr>, Vec<String>) {
    let (mut routers, mut said) = (Vec::new(), Vec::new());
    for of_ipv4 in [true, false] {
        let own: Vec<_> = own.iter().filter(|own| own.0.address.is_ipv4() == of_ipv4).collect();
        let Some(first) = own.first() else { continue };
        let of_family = all.iter().filter(|router| router.is_ipv4() == of_ipv4);
        let router = of_family
            .copied()
            .find(|router| is_link_local(*router) || own.iter().any(|own| is_neighbour(own, *router)));
        let (name, from) = (if of_ipv4 { "IPv4" } else { "IPv6" }, first.0.address);
        said.push(match router {
            Some(router) => format!(
                "applications' connections over {name} leave from {from}, beyond its link by {router}, the kernel's default route at {interface}"
            ),
            None => format!(
                "applications' connections over {name} leave from {from} and reach its link alone: the kernel has no default route at {interface} by a router there"
            ),
        });
        routers.extend(router);
    }
    (routers, said)
}

fn is_neighbour(own: &Own, address: IpAddr) -> bool {
    Prefix { address, bits: own.0.bits }.network() == own.0.network()
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// The routers of default routes at an interface, from /proc/net/route: the best metric first.
fn of_ipv4(table: &str, interface: &str) -> Vec<IpAddr> {
    let router = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[at, to, router, flags, _, _, metric, mask, ..] = &fields[..] else { return None };
        let number = |text| u32::from_str_radix(text, 16).ok();
        let leads = number(flags)? & UP_BY_A_ROUTER == UP_BY_A_ROUTER;
        let is_default = at == interface && number(to)? == 0 && number(mask)? == 0 && leads;
        // as it lies in memory
        is_default.then_some((metric.parse::<u32>().ok()?, Ipv4Addr::from(number(router)?.to_ne_bytes())))
    };
    sorted(table.lines().filter_map(router))
}

/// The same from /proc/net/ipv6_route.
fn of_ipv6(table: &str, interface: &str) -> Vec<IpAddr> {
    let router = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[_, bits, _, from_bits, router, metric, _, _, flags, at] = &fields[..] else { return None };
        let number = |text| u32::from_str_radix(text, 16).ok();
        let leads = number(flags)? & UP_BY_A_ROUTER == UP_BY_A_ROUTER;
        let is_default = at == interface && number(bits)? == 0 && number(from_bits)? == 0 && leads;
        is_default.then_some((number(metric)?, Ipv6Addr::from(u128::from_str_radix(router, 16).ok()?)))
    };
    sorted(table.lines().filter_map(router))
}

fn sorted<A: Into<IpAddr> + Ord>(found: impl Iterator<Item = (u32, A)>) -> Vec<IpAddr> {
    let mut found: Vec<_> = found.collect();
    found.sort_unstable();
    found.into_iter().map(|(_, router)| router.into()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::*;

    /// As Linux 6.12 shows them.
    const ROUTES: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        eth0\t00000000\tFE0200C0\t0003\t0\t0\t200\t00000000\t0\t0\t0\n\
        eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
        eth1\t00000000\t010000C6\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
        eth0\t0000000A\t090200C0\t0003\t0\t0\t0\t000000FF\t0\t0\t0\n\
        eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
    const ROUTES_V6: &str = "20010db8000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n\
        00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00450003     eth0\n\
        00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n";

    #[test]
    #[cfg(target_endian = "little")]
    fn default_routes_at_the_interface_are_found_the_best_first() {
        let addresses = |all: &[&str]| all.iter().map(|it| it.parse().unwrap()).collect::<Vec<IpAddr>>();
        assert_eq!(of_ipv4(ROUTES, "eth0"), addresses(&["192.0.2.1", "192.0.2.254"]));
        assert_eq!(of_ipv6(ROUTES_V6, "eth0"), addresses(&["fe80::1"]));
        assert!(of_ipv4(ROUTES, "eth9").is_empty());
        assert!(of_ipv4("nonsense\n", "eth0").is_empty() && of_ipv6("a b c\n", "eth0").is_empty());
    }

    #[test]
    fn a_router_is_a_neighbour_of_an_own_address_or_it_is_said_that_there_is_none() {
        let own = |text: &str| vec![text.parse::<Own>().unwrap()];
        let routers = ["198.51.100.1", "192.0.2.1", "fe80::1"].map(|it| it.parse().unwrap());
        let (found, said) = choose(&own("192.0.2.7/24"), "eth0", &routers);
        assert_eq!((found, said.len()), (vec![routers[1]], 1));
        assert!(said[0].contains("leave from 192.0.2.7, beyond its link by 192.0.2.1"), "{said:?}");
        let (found, said) = choose(&own("203.0.113.7/24"), "eth0", &routers);
        assert!(found.is_empty() && said[0].contains("reach its link alone"), "{said:?}");
        let (found, said) = choose(&own("2001:db8::7/64"), "eth0", &routers);
        assert_eq!((found, said.len()), (vec![routers[2]], 1));
    }

    #[test]
    fn nothing_is_said_where_nobody_connects_and_that_nobody_can_without_an_own_address() {
        let of = |connect: &str| {
            let app = "[[app]]\nprogram = [\"/bin/echo\"]\nlisten = [\"192.0.2.1:7\"]\n";
            look_up(&settings(&format!("[dataplane]\ninterface = [\"eth0\"]\n{app}{connect}")))
        };
        assert_eq!(of(""), (vec![], vec![]));
        let (routers, said) = of("connect = [\"192.0.2.0/24:80\"]\n");
        assert!(routers.is_empty() && said.len() == 1 && said[0].contains("app `echo`"), "{said:?}");
    }
}
