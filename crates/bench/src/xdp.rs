//! An interface's queues through AF_XDP, for one thread.

use anyhow::{Context as _, Result, ensure};
use base::{Burst, Frame};
use bpf::rss::Table;
use bpf::steering::UDP;
use port::{Facts, Outgoing, Port};
use port_xdp::{Handle, Listener, OpenConfig, XdpPort};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::Path;
use wire::flow::{Flow, Groups, Ports};
use wire::toeplitz::Key;

/// How AF_XDP is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    /// the best that works
    Auto,
    /// the device reads and writes our memory
    Zerocopy,
    /// the program runs in the driver, the kernel copies
    Copy,
    /// the program runs in the kernel's receive path
    Generic,
}

impl From<Mode> for port_xdp::Mode {
    fn from(mode: Mode) -> port_xdp::Mode {
        match mode {
            Mode::Auto => port_xdp::Mode::Auto,
            Mode::Zerocopy => port_xdp::Mode::Zerocopy,
            Mode::Copy => port_xdp::Mode::Copy,
            Mode::Generic => port_xdp::Mode::Generic,
        }
    }
}

/// All queues of an interface as one port: frames are received from each in turn. They are sent through them in turn, or each flow
/// through a queue of its own, as a NIC at the other end of a veth pair would deal flows out. All frames are of one UMEM, so a frame
/// may go home to any queue; it goes where the fewest are.
#[derive(Debug)]
pub(crate) struct Queues {
    ports: Vec<XdpPort>,
    receive_next: usize,
    transmit_next: usize,
    /// flows to queues, where they are kept apart
    flows: Option<Dealt>,
    /// the queues of what is being sent
    queues: Vec<usize>,
    /// detaches the program when it goes
    _handle: Handle,
}

/// Which queue a flow goes through.
#[derive(Debug)]
struct Dealt {
    groups: Groups,
    /// the queue of each group, read for each frame as a NIC does; None: it has the group's number
    table: Option<Table>,
}

impl Dealt {
    /// What is of no flow goes through the first, and so does what the table sends where nothing is.
    fn queue(&self, frame: &Frame, queues: usize) -> usize {
        let Some(flow) = Flow::of_frame(frame.bytes()) else { return 0 };
        let group = self.groups.of(&flow);
        let queue = match &self.table {
            Some(table) => table.get(group.into()).map_or(0, |queue| queue as usize),
            None => group.into(),
        };
        if queue < queues { queue } else { 0 }
    }
}

/// Slots of the receive ring where much more comes back than goes out: many connections' windows, or bursts, may arrive at once while
/// our thread is not on its processor.
const DEEP_RX_SLOTS: u32 = 8192;

/// Always the same, so that runs can be compared.
const FLOWS: [u64; 2] = [0x6a09_e667_f3bc_c908, 0xbb67_ae85_84ca_a73b];

/// An opened interface.
#[derive(Debug)]
pub(crate) struct Opened {
    /// its queues
    pub(crate) port: Queues,
    /// which mode it became, and why not a better one
    pub(crate) what: String,
}

/// Opens `interface` and takes UDP to the addresses and ports of `taken`.
pub(crate) fn open(interface: &str, mode: Mode, taken: impl Iterator<Item = SocketAddr>) -> Result<Opened> {
    open_with(interface, mode, |config| {
        config.listeners = taken.map(|at| Listener { address: at.ip(), protocol: UDP, port: at.port() }).collect();
    })
}

/// As [`open`], where each frame sent brings many back.
pub(crate) fn open_deep(interface: &str, mode: Mode, taken: SocketAddr) -> Result<Opened> {
    open_with(interface, mode, |config| {
        config.listeners = vec![Listener { address: taken.ip(), protocol: UDP, port: taken.port() }];
        config.rx_slots = DEEP_RX_SLOTS;
    })
}

/// Opens `interface` and takes everything to `addresses`, which the kernel must not have. Each flow goes out through a queue of its own:
/// that which `table`, a pinned array, names for its Toeplitz hash under Microsoft's key, if there is one.
pub(crate) fn open_own(interface: &str, mode: Mode, addresses: &[IpAddr], table: Option<&Path>) -> Result<Opened> {
    let table = table.map(|path| Table::open(path).with_context(|| path.display().to_string())).transpose()?;
    let entries = table.as_ref().map(Table::read).transpose()?.map(|entries| entries.len());
    ensure!(entries.is_none_or(usize::is_power_of_two), "the table has {} entries", entries.unwrap_or(0));
    let mut opened = open_with(interface, mode, |config| {
        config.own = addresses.to_vec();
        config.rx_slots = DEEP_RX_SLOTS;
    })?;
    let queues = opened.port.ports.len();
    let groups = || match entries {
        Some(entries) => Groups::toeplitz(entries, &Key::MICROSOFT, Ports::ALL),
        None => Groups::keyed(queues, FLOWS),
    };
    opened.port.flows = (queues > 1).then(|| Dealt { groups: groups(), table });
    Ok(opened)
}

fn open_with(interface: &str, mode: Mode, take: impl FnOnce(&mut OpenConfig)) -> Result<Opened> {
    let mut config = OpenConfig::new(interface);
    config.mode = mode.into();
    take(&mut config);
    let opened = port_xdp::open(&config)?;
    let what = opened.got.to_string();
    let port = Queues {
        ports: opened.ports,
        receive_next: 0,
        transmit_next: 0,
        flows: None,
        queues: Vec::new(),
        _handle: opened.handle,
    };
    Ok(Opened { port, what })
}

/// Sends each frame through its queue of `queues`; how many were taken, from the front.
fn each_by_its_own(ports: &mut [impl Port], queues: &[usize], from: &mut Burst) -> usize {
    let (mut sent, mut at) = (0, 0);
    let mut run = Burst::new();
    while let Some(&queue) = queues.get(at) {
        let count = queues[at..].iter().take_while(|of| **of == queue).count();
        run.extend(from.drain(..count));
        sent += ports[queue].transmit(&mut run);
        at += count;
        if !run.is_empty() {
            // full: these stand in front again
            run.extend(from.drain(..));
            std::mem::swap(from, &mut run);
            break;
        }
    }
    sent
}

impl Port for Queues {
    fn facts(&self) -> &Facts {
        self.ports[0].facts()
    }

    #[inline]
    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        let mut received = 0;
        for _ in 0..self.ports.len() {
            received += self.ports[self.receive_next].receive(into, limit - received);
            if received == limit {
                break;
            }
            self.receive_next = (self.receive_next + 1) % self.ports.len();
        }
        received
    }

    #[inline]
    fn transmit_room(&mut self) -> usize {
        match &self.flows {
            // they may all be of one flow
            Some(_) => self.ports.iter_mut().map(Port::transmit_room).min().unwrap_or(0),
            None => self.ports[self.transmit_next].transmit_room(),
        }
    }

    #[inline]
    fn transmit(&mut self, from: &mut Burst) -> usize {
        if let Some(flows) = &self.flows {
            self.queues.clear();
            self.queues.extend(from.iter().map(|frame| flows.queue(frame, self.ports.len())));
            return each_by_its_own(&mut self.ports, &self.queues, from);
        }
        let sent = self.ports[self.transmit_next].transmit(from);
        self.transmit_next = (self.transmit_next + 1) % self.ports.len();
        sent
    }

    #[inline]
    fn flush(&mut self) -> Outgoing {
        self.ports.iter_mut().map(Port::flush).max().expect("a queue at least")
    }

    #[inline]
    fn take(&mut self) -> Option<Frame> {
        self.ports[self.transmit_next].take().or_else(|| self.ports.iter_mut().find_map(Port::take))
    }

    #[inline]
    fn give(&mut self, frame: Frame) {
        let poorest = (0..self.ports.len()).min_by_key(|&at| self.ports[at].free_frames()).expect("a queue at least");
        self.ports[poorest].give(frame);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // one descriptor can stand for one queue only; with several the owner sleeps for bounded times
        if self.ports.len() == 1 { self.ports[0].descriptor() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use port::pipe::{self, Pipe};

    /// A pipe that takes so many frames and then is full.
    struct Narrow(Pipe, usize);

    impl Port for Narrow {
        fn facts(&self) -> &Facts {
            self.0.facts()
        }

        fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
            self.0.receive(into, limit)
        }

        fn transmit_room(&mut self) -> usize {
            self.1
        }

        fn transmit(&mut self, from: &mut Burst) -> usize {
            let mut taken: Burst = from.drain(..from.len().min(self.1)).collect();
            self.1 -= taken.len();
            self.0.transmit(&mut taken)
        }

        fn flush(&mut self) -> Outgoing {
            self.0.flush()
        }

        fn take(&mut self) -> Option<Frame> {
            self.0.take()
        }

        fn give(&mut self, frame: Frame) {
            self.0.give(frame);
        }
    }

    fn frames(port: &mut Pipe, ports: impl Iterator<Item = u16>) -> Burst {
        ports
            .map(|from| {
                let mut frame = port.take().expect("a free frame");
                // Ethernet, IPv4 and the ports of TCP: what a flow is read from
                let mut bytes = [0; 54];
                bytes[12] = 8;
                bytes[14] = 0x45;
                bytes[16..18].copy_from_slice(&40u16.to_be_bytes());
                bytes[23] = 6;
                bytes[26..34].copy_from_slice(&[198, 18, 0, 9, 198, 18, 0, 1]);
                bytes[34..36].copy_from_slice(&from.to_be_bytes());
                assert!(frame.fill(&bytes));
                frame
            })
            .collect()
    }

    #[test]
    fn a_flow_keeps_to_its_queue() {
        let flows = Dealt { groups: Groups::keyed(2, FLOWS), table: None };
        let (mut ports, mut ends) = pipe::pair(&pipe::Config { queues: 2, ..pipe::Config::default() }).unwrap();
        let mut from = frames(&mut ports[0], (1000..1032).chain(1000..1032));
        let queues: Vec<_> = from.iter().map(|frame| flows.queue(frame, 2)).collect();
        assert_eq!(each_by_its_own(&mut ports, &queues, &mut from), 64);
        let mut seen = [Vec::new(), Vec::new()];
        for port in &mut ports {
            port.flush();
        }
        for (end, seen) in ends.iter_mut().zip(&mut seen) {
            let mut into = Burst::new();
            end.receive(&mut into, 64);
            seen.extend(into.iter().map(|frame| u16::from_be_bytes([frame.bytes()[34], frame.bytes()[35]])));
            into.drain(..).for_each(|frame| end.give(frame));
        }
        assert_eq!(seen[0].len() + seen[1].len(), 64);
        assert!(seen.iter().all(|seen| seen.len() >= 16), "{seen:?}");
        assert!(seen[0].iter().all(|port| !seen[1].contains(port)));
    }

    #[test]
    fn what_a_full_queue_has_no_room_for_stays_in_its_order() {
        let flows = Dealt { groups: Groups::keyed(2, FLOWS), table: None };
        let (mut ports, _ends) = pipe::pair(&pipe::Config { queues: 2, ..pipe::Config::default() }).unwrap();
        let mut from = frames(&mut ports[0], 1000..1032);
        let mut ports: Vec<Narrow> = ports.into_iter().map(|pipe| Narrow(pipe, 8)).collect();
        let queues: Vec<_> = from.iter().map(|frame| flows.queue(frame, 2)).collect();
        let sent = each_by_its_own(&mut ports, &queues, &mut from);
        assert!((8..=16).contains(&sent), "{sent}");
        let left: Vec<u16> =
            from.iter().map(|frame| u16::from_be_bytes([frame.bytes()[34], frame.bytes()[35]])).collect();
        assert_eq!(left, (1000 + sent as u16..1032).collect::<Vec<_>>());
        from.drain(..).for_each(|frame| ports[0].give(frame));
    }
}
