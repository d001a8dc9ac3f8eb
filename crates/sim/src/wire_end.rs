//! smoltcp's end of a wire.

use smoltcp::phy::{self, Device, DeviceCapabilities, Medium};
use smoltcp::time::Instant as Time;
use std::collections::VecDeque;

/// The device.
#[derive(Debug)]
pub struct Wire {
    /// frames that it sent
    pub sent: Vec<Vec<u8>>,
    /// frames that it is to get
    pub arrived: VecDeque<Vec<u8>>,
    /// the longest packet that it sends
    pub mtu: usize,
}

impl Default for Wire {
    fn default() -> Wire {
        Wire { sent: Vec::new(), arrived: VecDeque::new(), mtu: 1500 }
    }
}

/// A frame that came.
#[derive(Debug)]
pub struct Rx(Vec<u8>);
/// Room for a frame.
#[derive(Debug)]
pub struct Tx<'a>(&'a mut Vec<Vec<u8>>);

impl phy::RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl phy::TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push(frame);
        result
    }
}

impl Device for Wire {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _now: Time) -> Option<(Rx, Tx<'_>)> {
        let frame = self.arrived.pop_front()?;
        Some((Rx(frame), Tx(&mut self.sent)))
    }

    fn transmit(&mut self, _now: Time) -> Option<Tx<'_>> {
        Some(Tx(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu + 14;
        capabilities
    }
}
