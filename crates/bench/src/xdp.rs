//! An interface's queues through AF_XDP, for one thread.

use anyhow::Result;
use base::{Burst, Frame};
use bpf::steering::UDP;
use port::{Facts, Outgoing, Port};
use port_xdp::{Handle, Listener, OpenConfig, XdpPort};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use wire::flow::{Flow, Groups};

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
    flows: Option<Groups>,
    /// detaches the program when it goes
    _handle: Handle,
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

/// Opens `interface` and takes everything to `addresses`, which the kernel must not have. Each flow goes out through a queue of its own.
pub(crate) fn open_own(interface: &str, mode: Mode, addresses: &[IpAddr]) -> Result<Opened> {
    let mut opened = open_with(interface, mode, |config| {
        config.own = addresses.to_vec();
        config.rx_slots = DEEP_RX_SLOTS;
    })?;
    let queues = opened.port.ports.len();
    opened.port.flows = (queues > 1).then(|| Groups::keyed(queues, FLOWS));
    Ok(opened)
}

fn open_with(interface: &str, mode: Mode, take: impl FnOnce(&mut OpenConfig)) -> Result<Opened> {
    let mut config = OpenConfig::new(interface);
    config.mode = mode.into();
    take(&mut config);
    let opened = port_xdp::open(&config)?;
    let what = opened.got.to_string();
    let port = Queues { ports: opened.ports, receive_next: 0, transmit_next: 0, flows: None, _handle: opened.handle };
    Ok(Opened { port, what })
}

/// Sends each frame through its flow's queue, and what is of no flow through the first; how many were taken, from the front.
fn by_flow(ports: &mut [impl Port], flows: &Groups, from: &mut Burst) -> usize {
    let queue = |frame: &Frame| Flow::of_frame(frame.bytes()).map_or(0, |flow| usize::from(flows.of(&flow)));
    let mut sent = 0;
    let mut run = Burst::new();
    while let Some(at) = from.first().map(queue) {
        let count = from.iter().take_while(|frame| queue(frame) == at).count();
        run.extend(from.drain(..count));
        sent += ports[at].transmit(&mut run);
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
            return by_flow(&mut self.ports, flows, from);
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
        let flows = Groups::keyed(2, FLOWS);
        let (mut ports, mut ends) = pipe::pair(&pipe::Config { queues: 2, ..pipe::Config::default() }).unwrap();
        let mut from = frames(&mut ports[0], (1000..1032).chain(1000..1032));
        assert_eq!(by_flow(&mut ports, &flows, &mut from), 64);
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
        let flows = Groups::keyed(2, FLOWS);
        let (mut ports, _ends) = pipe::pair(&pipe::Config { queues: 2, ..pipe::Config::default() }).unwrap();
        let mut from = frames(&mut ports[0], 1000..1032);
        let mut ports: Vec<Narrow> = ports.into_iter().map(|pipe| Narrow(pipe, 8)).collect();
        let sent = by_flow(&mut ports, &flows, &mut from);
        assert!((8..=16).contains(&sent), "{sent}");
        let left: Vec<u16> =
            from.iter().map(|frame| u16::from_be_bytes([frame.bytes()[34], frame.bytes()[35]])).collect();
        assert_eq!(left, (1000 + sent as u16..1032).collect::<Vec<_>>());
        from.drain(..).for_each(|frame| ports[0].give(frame));
    }
}
