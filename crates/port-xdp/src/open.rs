//! Opening an interface: everything that can be wrong is found here and said in one line with the mend.
//!
//! The order matters. The program is attached while it takes nothing, the sockets are bound and supplied with frames,
//! and only then are addresses taken: no packet finds an empty queue. Modes are tried from the best down, and what made
//! a better one fail is kept for the report.

mod attempt;
mod outcome;
mod wish;

pub(crate) use outcome::other;
pub use outcome::{BusyPolling, Got, OpenError, Opened};
pub use wish::{LargeSends, Listener, Mode, OpenConfig};

use crate::device::{self, Device};
use crate::handle::Handle;
use crate::packet::Packet;
use crate::port::{Recipe, XdpPort};
use crate::slot::Slot;
use crate::socket::{Binding, Socket};
use attempt::{Failed, Made, attempts, make};
use base::{Frame, Pool};
use bpf::Steering;
use port::Facts;
use rustix::process::{Resource, Rlimit};
use std::io;
use std::sync::Arc;

/// Opens an interface.
///
/// # Errors
/// See [`OpenError`]. Nothing then stays behind.
pub fn open(config: &OpenConfig) -> Result<Opened, OpenError> {
    let device = ready(config)?;
    let _ = raise_memlock();
    let mut not = Vec::new();
    for attempt in attempts(config, &device) {
        match make(config, &device, *attempt) {
            Ok((steering, made)) => return finish(config, device, attempt.mode, not, steering, made),
            Err(Failed::Mode(why)) => not.push((attempt.mode, why)),
            Err(Failed::For(error)) => return Err(error),
        }
    }
    let why = not.iter().map(|(mode, why)| format!("{mode}: {why}")).collect::<Vec<_>>().join("; ");
    Err(OpenError::Mode { interface: device.name, mode: config.mode, why })
}

/// The interface, if it can serve.
fn ready(config: &OpenConfig) -> Result<Device, OpenError> {
    let name = &config.interface;
    let found = Device::find(name).map_err(other(name, "asking for the interface"))?;
    let Some(device) = found else {
        let there = device::names().map_err(other(name, "asking for the interfaces"))?.join(", ");
        return Err(OpenError::NoInterface { name: name.clone(), there });
    };
    if !device.ethernet {
        return Err(OpenError::NotEthernet(name.clone()));
    }
    if !device.up {
        return Err(OpenError::Down(name.clone()));
    }
    if let Some(id) = device.xdp_program {
        return Err(OpenError::OtherProgram { interface: name.clone(), id: Some(id) });
    }
    let wanted = config.queues.unwrap_or(device.rx_queues);
    if wanted != device.rx_queues || device.tx_queues < wanted {
        let wanted = wanted.max(1);
        let how = if device.combined { format!("combined {wanted}") } else { format!("rx {wanted} tx {wanted}") };
        let mend = format!("ethtool -L {name} {how}");
        let (interface, rx, tx) = (name.clone(), device.rx_queues, device.tx_queues);
        return Err(OpenError::Queues { interface, rx, tx, wanted, mend });
    }
    Ok(device)
}

/// Raises the limit on locked memory as far as may be.
fn raise_memlock() -> io::Result<()> {
    let unlimited = Rlimit { current: None, maximum: None };
    if rustix::process::setrlimit(Resource::Memlock, unlimited).is_ok() {
        return Ok(());
    }
    let has = rustix::process::getrlimit(Resource::Memlock);
    Ok(rustix::process::setrlimit(Resource::Memlock, Rlimit { current: has.maximum, maximum: has.maximum })?)
}

/// Whether checksums may be left to a device that does not exist. Receive offload leaves the sums of what it merged to one,
/// too, and comes before a program in the receive path.
fn is_virtual(device: &Device, mode: Mode) -> bool {
    device.is_virtual_link() || mode == Mode::Generic
}

fn finish(
    config: &OpenConfig,
    mut device: Device,
    mode: Mode,
    not: Vec<(Mode, String)>,
    steering: Steering,
    made: Made,
) -> Result<Opened, OpenError> {
    let chunk_bytes = made.arena.chunk_bytes();
    let facts = Facts {
        mac: device.mac,
        mtu: device.mtu,
        frame_bytes: usize::from(chunk_bytes - base::arena::HEADROOM_BYTES),
        virtual_link: is_virtual(&device, mode),
        receive_slots: config.sizes().rx as usize,
    };
    let pieces = made.pieces;
    let mut busy_polling = BusyPolling::Off;
    let tx_budget = made.sockets.iter().all(|(socket, _)| socket.tx_budget);
    let large_sends = match config.large_sends {
        LargeSends::Auto => mode != Mode::Zerocopy,
        LargeSends::Always => true,
        LargeSends::Never => false,
    };
    let mut ports = Vec::new();
    let (sockets, shares): (Vec<Socket>, Vec<Vec<Frame>>) = made.sockets.into_iter().unzip();
    // threads may hand frames to each other
    let all = shares.into_iter().chain(made.guests);
    let mut pools = Pool::join(all.map(|frames| Pool::new(made.arena.clone(), frames)).collect());
    let guests = pools.split_off(sockets.len());
    for (queue, (socket, pool)) in sockets.into_iter().zip(pools).enumerate() {
        let mut busy_poll = config.busy_poll_us.map(|us| (us, base::BURST_FRAMES as u32));
        if let Some((us, budget)) = busy_poll {
            busy_polling = match socket.prefer_busy_poll(us, budget) {
                Ok(()) if socket.sender.napi() == 0 => BusyPolling::Unmapped,
                Ok(()) => BusyPolling::On,
                Err(e) => {
                    busy_poll = None;
                    BusyPolling::Refused(e.to_string())
                }
            };
        }
        let queue = queue as u32;
        steering.sockets().set(queue, socket.fd()).map_err(OpenError::Entry)?;
        let binding = Binding { ifindex: device.index, queue, zerocopy: mode == Mode::Zerocopy, pieces };
        let completion_timeout = config.completion_timeout;
        let slot = Arc::new(Slot::new(steering.sockets(), queue));
        let (sizes, device_takes) = (config.sizes(), device.takes_frames());
        let recipe = Recipe { binding, sizes, busy_poll, device_takes, completion_timeout, slot };
        let mut port = XdpPort::new(&device.name, facts.clone(), pool, socket, recipe);
        if large_sends {
            let packet = Packet::open(&device.name, device.index, device.gso_max_bytes, port.stats().clone());
            port.set_packet(packet.map_err(other(&device.name, "opening an AF_PACKET socket"))?);
        }
        ports.push(port);
    }
    let carrier =
        device.wait_for_carrier(config.carrier_wait).map_err(other(&config.interface, "waiting for carrier"))?;
    let mut warnings = made.warnings;
    warnings.extend(of_device(&device, carrier, &busy_polling));
    warnings.extend(of_veth(config, &device, mode));
    if mode == Mode::Generic && !pieces {
        let name = &device.name;
        warnings.push(format!("{name}: packets that receive offload has merged are dropped, since that needs Linux 6.6: run `ethtool -K {name} gro off`"));
    }
    let stats = ports.iter().map(|port| port.stats().clone()).collect();
    let handle = Handle::new(config, &device, steering, stats)?;
    if handle.may_answer_in_vain() {
        let name = &device.name;
        warnings.push(format!("{name}: this kernel does not tell whether the other end of this veth takes what a driver sends, as Linux 6.3 does: answers are lost unless it has receive offload or a program; run `ethtool -K PEER gro on` there, or say --tier xdp"));
    }
    let frames = made.arena.chunks();
    let got = Got { mode, not, device, chunk_bytes, frames, tx_budget, busy_polling, large_sends, warnings };
    Ok(Opened { ports, pools: guests, handle, got })
}

/// What an operator should know of the interface.
fn of_device(device: &Device, carrier: bool, busy_polling: &BusyPolling) -> Vec<String> {
    let name = &device.name;
    let mut warnings = Vec::new();
    if !carrier {
        warnings.push(format!("{name} has no carrier: nothing arrives until its link is up"));
    }
    // veth claims to strip tags too, but only hands over apart what the sender's kernel had apart
    if device.strips_vlan && device.driver != "veth" {
        warnings.push(format!("{name} takes VLAN tags off, so tagged queries look untagged: run `ethtool -K {name} rxvlan off` if there are any"));
    }
    match busy_polling {
        BusyPolling::Unmapped => warnings.push(format!(
            "busy polling on {name} has no effect until its driver ({}) says which NAPI instance feeds a queue; veth, i40e and ixgbe never do",
            device.driver
        )),
        BusyPolling::Refused(why) => warnings.push(format!("busy polling on {name} is refused ({why})")),
        BusyPolling::Off | BusyPolling::On => {}
    }
    warnings
}

/// What an operator should know of a veth: what the sender's kernel leaves to a device, this one leaves undone.
fn of_veth(config: &OpenConfig, device: &Device, mode: Mode) -> Vec<String> {
    let name = &device.name;
    let mut warnings = Vec::new();
    if device.driver != "veth" {
        return warnings;
    }
    if device.has_vlans {
        warnings.push(format!("{name}: queries with a VLAN tag look untagged, and their answers would be lost, unless the other end of this veth puts tags into frames: run `ethtool -K PEER txvlan off` there"));
    }
    // a program in the driver has the sender's kernel cut them
    let datagrams = !config.own.is_empty() || config.listeners.iter().any(|at| at.protocol == bpf::steering::UDP);
    if mode == Mode::Generic && datagrams {
        warnings.push(format!("{name}: datagrams that are sent in one call (UDP_SEGMENT) at the other end of this veth come as one, and all but the first are lost: run `ethtool -K PEER tx-udp-segmentation off` there if that is done"));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_veth_is_said_what_its_other_end_leaves_undone() {
        let lo = Device::find("lo").unwrap().unwrap();
        let (veth, other) = (Device { driver: "veth".into(), ..lo.clone() }, Device { driver: "ice".into(), ..lo });
        let with = |listeners: &[u8]| {
            let mut config = OpenConfig::new("lo");
            let address = std::net::Ipv4Addr::UNSPECIFIED.into();
            config.listeners = listeners.iter().map(|&protocol| Listener { address, protocol, port: 53 }).collect();
            config
        };
        let (tcp, both) = (with(&[6]), with(&[6, 17]));
        let own = OpenConfig { own: vec![std::net::Ipv6Addr::LOCALHOST.into()], ..tcp.clone() };
        for (config, mode, cut) in [
            (&tcp, Mode::Generic, false),
            (&both, Mode::Generic, true),
            (&own, Mode::Generic, true),
            (&both, Mode::Copy, false),
        ] {
            for has_vlans in [false, true] {
                let said = of_veth(config, &Device { has_vlans, ..veth.clone() }, mode);
                let names = |what: &str| said.iter().any(|line| line.contains(what));
                assert_eq!(names("`ethtool -K PEER txvlan off`"), has_vlans, "{said:?}");
                assert_eq!(names("`ethtool -K PEER tx-udp-segmentation off`"), cut, "{said:?}");
                assert_eq!(of_veth(config, &Device { has_vlans, ..other.clone() }, mode), [""; 0]);
            }
        }
    }
}
