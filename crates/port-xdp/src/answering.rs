//! When the program in the driver answers by itself: where what it sends arrives.
//!
//! A NIC's driver that runs programs sends back what they want sent. veth hands such frames to its peer's NAPI instance, and drops
//! them when there is none, which is how a peer is made: it comes with a program in the peer's driver or with receive offload, and
//! goes with them. The kernel tells this end (Linux 6.3), so here answers come from the driver while the peer has one.

use crate::device::Device;
use crate::open::{Mode, OpenConfig, OpenError, other};
use bpf::netdev::{Features, Monitor};
use bpf::steering::{Answers, AnswersConfig, Hold};
use std::io;
use std::os::fd::BorrowedFd;

/// When the program in the driver answers by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Answering {
    /// In every mode. On veth only while the peer takes what is sent, where the kernel tells.
    #[default]
    Always,
    /// With the program in the driver, where the kernel says that what it sends arrives. On veth not with a limited rate, of which
    /// the program has a share whether it answers or not.
    WhereTaken,
}

/// What the program in the driver answers, if it does.
pub(crate) fn answers(config: &OpenConfig, device: &Device, mode: Mode) -> Result<Option<AnswersConfig>, OpenError> {
    let Some(answers) = &config.answers else { return Ok(None) };
    let (veth, native) = (device.driver == "veth", mode != Mode::Generic);
    if config.answering == Answering::WhereTaken {
        let features =
            Features::of(device.index).map_err(other(&device.name, "asking what its driver does with XDP"))?;
        if !native || veth && answers.rate.is_some() || !features.is_some_and(Features::sends_back) {
            return Ok(None);
        }
    }
    Ok(Some(AnswersConfig {
        mtu: packet_bytes(device.mtu),
        partial_checksums: device.is_virtual_link() && native,
        redirect_to: (veth && native).then_some(device.index),
        ..answers.clone()
    }))
}

/// An interface's MTU as the program is told it.
pub(crate) fn packet_bytes(mtu: usize) -> u16 {
    mtu.min(usize::from(u16::MAX)) as u16
}

/// The other end of a veth pair, as far as it takes answers.
#[derive(Debug)]
pub(crate) struct Peer {
    interface: u32,
    answers: Answers,
    monitor: Monitor,
    /// as the program was told; None before that
    takes: Option<bool>,
    /// it is to be asked
    due: bool,
}

impl Peer {
    /// None where nothing depends on it, or the kernel does not tell.
    pub(crate) fn watch(interface: u32, answers: Option<Answers>) -> io::Result<Option<Peer>> {
        let Some(answers) = answers.filter(Peer::is_asked_for) else { return Ok(None) };
        let with = |monitor| Peer { interface, answers, monitor, takes: None, due: true };
        Ok(Monitor::open()?.map(with))
    }

    /// Whether it depends on a peer that what the program answers arrives.
    pub(crate) fn is_asked_for(answers: &Answers) -> bool {
        answers.config().redirect_to.is_some()
    }

    /// Readable when [`Peer::look`] is due.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.monitor.descriptor()
    }

    /// Has the program answer while the peer takes answers. Whether it does, when that is new.
    pub(crate) fn look(&mut self) -> io::Result<Option<bool>> {
        let heard = self.monitor.has_changed();
        // what was heard is not told again, whatever fails from here on
        self.due |= !matches!(heard, Ok(false));
        heard?;
        if !self.due {
            return Ok(None);
        }
        let takes = match Features::of(self.interface) {
            Ok(features) => features.is_some_and(Features::sends),
            // the interface is gone
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => false,
            Err(error) => return Err(error),
        };
        if self.takes != Some(takes) {
            self.answers.hold(Hold::Untaken, !takes).map_err(|error| io::Error::other(error.to_string()))?;
        }
        self.due = false;
        Ok((self.takes.replace(takes) != Some(takes)).then_some(takes))
    }
}
