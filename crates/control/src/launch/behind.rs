//! The NIC behind kernel sockets, whose table follows flow groups there, too.
//!
//! Whose table that is the listeners say: the interface that has their addresses, if there is one. Those of all addresses say nothing, and
//! then `--interface` does. Where there is none, or it does not tell how it spreads flows, or nobody may write its table, groups are the
//! kernel's, and move by the selector alone. So they are where datagrams are served and the NIC leaves their ports out, as many do at
//! first: all of a resolver's, or of a balancer's in front, would be of one group and on one thread.

use super::sharing::{self, Spreading};
use crate::config::Settings;
use crate::error::Error;
use crate::nic_table::Keeper;
use crate::words::{Balance, RssTable, Spread};
use bpf::capability::{CAP_NET_ADMIN, missing};
use port_xdp::device::{Address, Device, addresses, names};
use port_xdp::nic::Nic;
use sockets::{Endpoint, NicSpread, Transport};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Queues that a pinned map may name: its program knows which there are.
const MAP_QUEUES: usize = 1 << 16;

/// How a NIC spreads flows, and who writes its table.
pub(super) struct Behind {
    pub(super) spread: NicSpread,
    pub(super) keeper: Keeper,
}

/// The NIC behind sockets at these endpoints; None where there is nothing to follow. Needs privileges.
///
/// # Errors
/// The table that was asked for by name is not to be had.
pub(super) fn behind(settings: &Settings, endpoints: &[Endpoint], threads: usize) -> Result<Option<Behind>, Error> {
    if !is_wanted(settings, endpoints, threads) {
        return Ok(None);
    }
    let (name, queues) = match &settings.rss_table {
        RssTable::Keep => return Ok(None),
        RssTable::Map(file) => (file.clone(), MAP_QUEUES),
        RssTable::Follow => {
            if !missing(&[CAP_NET_ADMIN]).is_empty() {
                return Ok(None);
            }
            let listening: Vec<_> = endpoints.iter().map(|endpoint| endpoint.address.ip()).collect();
            let Some(device) = interface(settings, &listening).and_then(|name| Device::find(&name).ok().flatten())
            else {
                return Ok(None);
            };
            (device.name, device.rx_queues as usize)
        }
    };
    let Some(keeper) = Keeper::start(settings, &name, queues)? else { return Ok(None) };
    let spreading = match &settings.rss_key {
        Some(key) => Ok(sharing::supposed(key.0, Some(&keeper), queues)),
        None => sharing::read(&Nic::of(&name)),
    };
    let entries = keeper.found().len();
    let checked = spreading.and_then(|spreading| sharing::check(spreading, entries, queues));
    match checked.and_then(|spreading| with_ports(spreading, endpoints)) {
        Ok(Spreading { key, ports, table }) => {
            tracing::info!(
                "{name}: {entries} flow groups by the NIC's hash, each with the thread where it arrives; its table is to follow them"
            );
            let table = table.iter().map(|queue| *queue as u16).collect();
            Ok(Some(Behind { spread: NicSpread { key, ports, table }, keeper }))
        }
        Err(why) => {
            tracing::info!("{name}: the NIC's table stays as it is: {why}");
            Ok(None)
        }
    }
}

/// Whether the NIC tells the datagrams of one source apart, where there are any.
fn with_ports(spreading: Spreading, endpoints: &[Endpoint]) -> Result<Spreading, String> {
    for (family, is_v6, hashed) in [("udp4", false, spreading.ports.udp4), ("udp6", true, spreading.ports.udp6)] {
        let some = |at: &Endpoint| at.transport == Transport::Udp && at.address.is_ipv6() == is_v6;
        if !hashed && endpoints.iter().any(some) {
            return Err(format!(
                "it leaves out the ports of {family}; `ethtool -N IF rx-flow-hash {family} sdfn` takes them in"
            ));
        }
    }
    Ok(spreading)
}

/// Whether groups move at all, and every thread has a processor of its own where packets could arrive.
fn is_wanted(settings: &Settings, endpoints: &[Endpoint], threads: usize) -> bool {
    let spread = |at: &Endpoint| if at.transport == Transport::Tcp { settings.accept } else { settings.receive };
    threads > 1
        && settings.cpus.as_ref().is_some_and(|cpus| cpus.len() == threads)
        && settings.balance.is_none_or(|balance| balance == Balance::On)
        && endpoints.iter().any(|at| spread(at) == Spread::Affinity)
}

/// Whose table it is.
fn interface(settings: &Settings, listening: &[IpAddr]) -> Option<String> {
    if let [one] = &*settings.interfaces {
        return Some(one.clone());
    }
    let index = one_of(&addresses().ok()?, listening)?;
    let device = |name: String| Device::find(&name).ok().flatten();
    names()
        .ok()?
        .into_iter()
        .filter_map(device)
        .find(|device| device.index == index && !device.loopback)
        .map(|it| it.name)
}

/// The one interface that has all of these addresses.
fn one_of(all: &BTreeSet<Address>, listening: &[IpAddr]) -> Option<u32> {
    let with = |at: &IpAddr| all.iter().find(|of| of.address == *at).map(|of| of.interface);
    let first = with(listening.first()?)?;
    listening.iter().all(|at| with(at) == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::flow::Ports;
    use wire::toeplitz::Key;

    #[test]
    fn datagrams_need_their_ports() {
        let endpoint = |address: &str, transport| Endpoint {
            listener: app::Listener(0),
            address: address.parse().unwrap(),
            transport,
            window_bytes: None,
            backlog: None,
        };
        let by = |ports, endpoints: &[Endpoint]| {
            let spreading = Spreading { key: Key::MICROSOFT, ports, table: vec![0, 1] };
            with_ports(spreading, endpoints).map(|_| ())
        };
        let (tcp, udp) = (endpoint("192.0.2.1:53", Transport::Tcp), endpoint("192.0.2.1:53", Transport::Udp));
        let six = endpoint("[2001:db8::1]:53", Transport::Udp);
        let none = Ports { udp4: false, udp6: false, ..Ports::ALL };
        assert_eq!([by(none, &[tcp]), by(Ports::ALL, &[tcp, udp, six])], [Ok(()), Ok(())]);
        assert!(by(none, &[tcp, udp]).is_err_and(|why| why.contains("rx-flow-hash udp4 sdfn")));
        assert!(by(Ports { udp6: false, ..Ports::ALL }, &[udp, six]).is_err_and(|why| why.contains("udp6")));
        assert_eq!(by(Ports { udp6: false, ..Ports::ALL }, &[udp]), Ok(()));
    }

    #[test]
    fn the_interface_is_that_of_all_addresses() {
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let has = |interface, address| Address { interface, address: at(address), prefix_bits: 24 };
        let all =
            BTreeSet::from([has(1, "127.0.0.1"), has(2, "192.0.2.1"), has(2, "2001:db8::1"), has(3, "192.0.2.3")]);
        let one = |listening: &[&str]| one_of(&all, &listening.iter().map(|text| at(text)).collect::<Vec<_>>());
        assert_eq!(one(&["192.0.2.1"]), Some(2));
        assert_eq!(one(&["192.0.2.1", "2001:db8::1", "192.0.2.1"]), Some(2));
        assert_eq!(one(&["192.0.2.1", "192.0.2.3"]), None, "of two");
        assert_eq!([one(&["0.0.0.0"]), one(&["192.0.2.1", "::"]), one(&["192.0.2.9"]), one(&[])], [None; 4]);
    }
}
