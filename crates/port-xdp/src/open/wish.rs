//! What is wished for.

use crate::answering::Answering;
use crate::socket::Sizes;
use bpf::steering::{AnswersConfig, Prefix};
use std::net::IpAddr;
use std::time::Duration;

/// How AF_XDP is to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// the best that works: zero-copy, then copy, then generic; but see `attempts` for TCP on veth
    #[default]
    Auto,
    /// the device reads and writes our memory
    Zerocopy,
    /// the program runs in the driver, the kernel copies
    Copy,
    /// the program runs in the kernel's receive path, the kernel copies
    Generic,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Mode::Auto => "auto",
            Mode::Zerocopy => "zero-copy",
            Mode::Copy => "copy",
            Mode::Generic => "generic",
        })
    }
}

/// Whether TCP super-segments are handed to the device, which cuts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LargeSends {
    /// whenever the device segments, but not in zero-copy mode
    Auto,
    /// whenever the device segments, in any mode
    Always,
    /// never
    #[default]
    Never,
}

/// A destination that a service listens on; a wildcard address means every local address of its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Listener {
    /// the address, `0.0.0.0` or `::`
    pub address: IpAddr,
    /// [`bpf::steering::UDP`] or [`bpf::steering::TCP`]
    pub protocol: u8,
    /// the port
    pub port: u16,
}

/// What is wanted.
#[derive(Clone, Debug)]
pub struct OpenConfig {
    /// the interface's name
    pub interface: String,
    /// queues to serve; None for all of them. Any other number than the interface has is refused.
    pub queues: Option<u32>,
    /// the mode
    pub mode: Mode,
    /// what to take
    pub listeners: Vec<Listener>,
    /// addresses that are wholly ours
    pub own: Vec<IpAddr>,
    /// take every frame, whoever it is for, and hear those for other hardware addresses too: for who passes frames on. What
    /// else is to be taken then means nothing.
    pub everything: bool,
    /// what the program in the driver answers by itself, once [`Handle::answers`] are filled in; its `mtu`,
    /// `partial_checksums` and `redirect_to` are the interface's, whatever stands there
    pub answers: Option<AnswersConfig>,
    /// and when
    pub answering: Answering,
    /// senders to hear, all when empty
    pub allow: Vec<Prefix>,
    /// senders not to hear
    pub deny: Vec<Prefix>,
    /// slots of a queue's receive ring; a power of two. The fill ring has twice as many.
    pub rx_slots: u32,
    /// slots of a queue's transmit and completion rings; a power of two
    pub tx_slots: u32,
    /// frames of a queue beyond those that its rings can hold
    pub spare_frames: u32,
    /// threads without a queue ([`port::guest`]), for each of which there are frames
    pub guests: u32,
    /// poll the device from our thread for up to so many microseconds
    pub busy_poll_us: Option<u32>,
    /// super-segments
    pub large_sends: LargeSends,
    /// after this long without any of the transmitted frames coming back the socket is made anew
    pub completion_timeout: Duration,
    /// how long to wait for the carrier after the program and the sockets are in place
    pub carrier_wait: Duration,
}

/// Frames of a queue that may be with a guest: on their way to it, in its hands, and on their way back.
const GUEST_AWAY_FRAMES: u32 = 2048 + 2 * base::BURST_FRAMES as u32 + port::guest::RING_FRAMES as u32;

/// Slots of a device's receive ring that there are frames for at most: more than today's NICs have, and 32 MiB a queue. A port keeps frames
/// to send whatever the device takes, so a larger one costs it arrivals at worst.
const MOST_DEVICE_SLOTS: u32 = 16_384;

impl OpenConfig {
    /// The defaults for `interface`: every queue, the best mode, nothing taken.
    pub fn new(interface: &str) -> OpenConfig {
        OpenConfig {
            interface: interface.to_owned(),
            queues: None,
            mode: Mode::Auto,
            listeners: Vec::new(),
            own: Vec::new(),
            everything: false,
            answers: None,
            answering: Answering::Always,
            allow: Vec::new(),
            deny: Vec::new(),
            rx_slots: 2048,
            tx_slots: 2048,
            spare_frames: 2048,
            guests: 0,
            busy_poll_us: None,
            large_sends: LargeSends::default(),
            completion_timeout: Duration::from_secs(5),
            carrier_wait: Duration::from_secs(10),
        }
    }

    pub(super) fn sizes(&self) -> Sizes {
        // drivers stall when the fill ring is only as large as the receive ring
        let (rx, tx) = (self.rx_slots.next_power_of_two(), self.tx_slots.next_power_of_two());
        Sizes { rx, tx, fill: 2 * rx, completion: tx }
    }

    /// Frames of a queue: what waits in the fill ring, what has arrived, what is being sent, what the thread holds, what is with
    /// those of the guests that send through it, and what the device has in a receive ring of its own of so many slots, which it
    /// fills from the fill ring (with zero-copy; else 0).
    pub(super) fn frames(&self, queues: u32, device_slots: u32) -> u32 {
        let sizes = self.sizes();
        let away = self.guests.div_ceil(queues.max(1)) * GUEST_AWAY_FRAMES;
        let spare = self.spare_frames.max(base::BURST_FRAMES as u32);
        sizes.fill + sizes.rx + sizes.tx + spare + away + device_slots.min(MOST_DEVICE_SLOTS)
    }

    /// Frames of a guest: what is on its way to its host, what is being sent, and what its thread holds.
    pub(super) fn guest_frames(&self) -> u32 {
        port::guest::RING_FRAMES as u32 + self.sizes().tx + self.spare_frames.max(base::BURST_FRAMES as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_frames_for_all_who_may_hold_some() {
        let config = OpenConfig::new("if0");
        let without = 4096 + 2048 + 2048 + 2048;
        assert_eq!(config.frames(1, 0), without);
        // a NIC's own ring, and one that cannot be meant
        assert_eq!(config.frames(1, 8192), without + 8192);
        assert_eq!(config.frames(1, u32::MAX), without + 16_384);
        let small = OpenConfig { rx_slots: 64, tx_slots: 64, spare_frames: 0, ..config.clone() };
        assert_eq!((small.frames(1, 0), small.frames(1, 512)), (320, 832));
        let guests = OpenConfig { guests: 3, ..config };
        assert_eq!(guests.frames(2, 512), without + 512 + 2 * GUEST_AWAY_FRAMES);
    }
}
