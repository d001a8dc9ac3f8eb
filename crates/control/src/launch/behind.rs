//! The NIC behind kernel sockets, whose table follows flow groups there, too.
//!
//! Whose table that is the listeners say: the interface that has their addresses, if there is one. Those of all addresses say nothing, and
//! then `--interface` does. Where there is none, or it does not tell how it spreads flows, or nobody may write its table, groups are the
//! kernel's, and move by the selector alone.

use super::sharing::{self, Spreading};
use crate::config::Settings;
use crate::error::Error;
use crate::nic_table::Keeper;
use crate::words::{Balance, RssTable, Spread};
use bpf::capability::{CAP_NET_ADMIN, missing};
use port_xdp::device::{Address, Device, addresses, names};
use port_xdp::nic::Nic;
use sockets::NicSpread;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Queues that a pinned map may name: its program knows which there are.
const MAP_QUEUES: usize = 1 << 16;

/// How a NIC spreads flows, and who writes its table.
pub(super) struct Behind {
    pub(super) spread: NicSpread,
    pub(super) keeper: Keeper,
}

/// The NIC behind sockets at these addresses; None where there is nothing to follow. Needs privileges.
///
/// # Errors
/// The table that was asked for by name is not to be had.
pub(super) fn behind(settings: &Settings, listening: &[IpAddr], threads: usize) -> Result<Option<Behind>, Error> {
    if !is_wanted(settings, threads) {
        return Ok(None);
    }
    let (name, queues) = match &settings.rss_table {
        RssTable::Keep => return Ok(None),
        RssTable::Map(file) => (file.clone(), MAP_QUEUES),
        RssTable::Follow => {
            if !missing(&[CAP_NET_ADMIN]).is_empty() {
                return Ok(None);
            }
            let Some(device) = interface(settings, listening).and_then(|name| Device::find(&name).ok().flatten())
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
    match spreading.and_then(|spreading| sharing::check(spreading, entries, queues)) {
        Ok(Spreading { key, ports, table }) => {
            tracing::info!(
                "{name}: {entries} flow groups by the NIC's hash, each with the thread where it arrives; its table follows them"
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

/// Whether groups move at all, and every thread has a processor of its own where packets could arrive.
fn is_wanted(settings: &Settings, threads: usize) -> bool {
    threads > 1
        && settings.cpus.as_ref().is_some_and(|cpus| cpus.len() == threads)
        && settings.balance.is_none_or(|balance| balance == Balance::On)
        && (settings.accept == Spread::Affinity || settings.receive == Spread::Affinity)
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
