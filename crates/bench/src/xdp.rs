//! An interface's queues through AF_XDP, for one thread.

use anyhow::Result;
use base::{Burst, Frame};
use bpf::steering::UDP;
use port::{Facts, Outgoing, Port};
use port_xdp::{Handle, Listener, OpenConfig, XdpPort};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

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

/// All queues of an interface as one port: frames are received from each in turn and sent through them in turn. All frames are
/// of one UMEM, so a frame may go home to any queue; it goes where the fewest are.
#[derive(Debug)]
pub(crate) struct Queues {
    ports: Vec<XdpPort>,
    receive_next: usize,
    transmit_next: usize,
    /// detaches the program when it goes
    _handle: Handle,
}

/// Slots of the receive ring where much more comes back than goes out: many connections' windows, or bursts, may arrive at once while
/// our thread is not on its processor.
const DEEP_RX_SLOTS: u32 = 8192;

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

/// Opens `interface` and takes everything to `addresses`, which the kernel must not have.
pub(crate) fn open_own(interface: &str, mode: Mode, addresses: &[IpAddr]) -> Result<Opened> {
    open_with(interface, mode, |config| {
        config.own = addresses.to_vec();
        config.rx_slots = DEEP_RX_SLOTS;
    })
}

fn open_with(interface: &str, mode: Mode, take: impl FnOnce(&mut OpenConfig)) -> Result<Opened> {
    let mut config = OpenConfig::new(interface);
    config.mode = mode.into();
    take(&mut config);
    let opened = port_xdp::open(&config)?;
    let what = opened.got.to_string();
    let port = Queues { ports: opened.ports, receive_next: 0, transmit_next: 0, _handle: opened.handle };
    Ok(Opened { port, what })
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
        self.ports[self.transmit_next].transmit_room()
    }

    #[inline]
    fn transmit(&mut self, from: &mut Burst) -> usize {
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
