//! smoltcp's end of a wire.

use smoltcp::phy::{self, Device, DeviceCapabilities, Medium};
use smoltcp::time::Instant as Time;
use std::collections::VecDeque;

/// The device: frames it sent, frames it is to get.
#[derive(Default)]
pub(crate) struct Wire {
    pub(crate) sent: Vec<Vec<u8>>,
    pub(crate) arrived: VecDeque<Vec<u8>>,
}

pub(crate) struct Rx(Vec<u8>);
pub(crate) struct Tx<'a>(&'a mut Vec<Vec<u8>>);

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
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}
