//! The yardstick: every frame goes back with its addresses and ports swapped and nothing else read, so no server on the same
//! port can answer more than this sends back. Swapping addresses and ports changes no checksum.

use base::Burst;
use port::{Outgoing, Port};

/// Swaps the hardware addresses, the addresses and the ports of an untagged IPv4 (no options) or IPv6 UDP frame; false for
/// anything shorter, which stays as it is.
#[inline]
pub(crate) fn turn_round(frame: &mut [u8]) -> bool {
    let (addresses_at, address_bytes) = match frame.get(12) {
        Some(0x08) => (26, 4),
        Some(_) => (22, 16),
        None => return false,
    };
    let ports_at = addresses_at + 2 * address_bytes;
    if frame.len() < ports_at + 4 {
        return false;
    }
    swap_halves(&mut frame[..12]);
    swap_halves(&mut frame[addresses_at..ports_at]);
    swap_halves(&mut frame[ports_at..ports_at + 4]);
    true
}

fn swap_halves(bytes: &mut [u8]) {
    let (left, right) = bytes.split_at_mut(bytes.len() / 2);
    left.swap_with_slice(right);
}

/// One cycle: takes at most `limit` frames, as many as can go out again, turns them round and sends them. Returns how many
/// arrived, and what is still on its way out.
pub(crate) fn cycle<P: Port>(port: &mut P, burst: &mut Burst, limit: usize) -> (usize, Outgoing) {
    let room = port.transmit_room().min(limit);
    let received = port.receive(burst, room);
    if received > 0 {
        for frame in burst.iter_mut() {
            // what is too short to turn round goes back as it came: the yardstick counts frames
            turn_round(frame.bytes_mut());
        }
        port.transmit(burst);
        for frame in burst.drain(..) {
            port.give(frame);
        }
    }
    (received, port.flush())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_are_turned_round_and_back() {
        for (type_byte, len) in [(0x08, 60), (0x86, 80)] {
            let mut frame: Vec<u8> = (0..len).collect();
            frame[12] = type_byte;
            let before = frame.clone();
            assert!(turn_round(&mut frame));
            assert_eq!(frame[..6], before[6..12]);
            let ports = if type_byte == 0x08 { 34 } else { 54 };
            assert_eq!(frame[ports..ports + 2], before[ports + 2..ports + 4]);
            assert_eq!(frame[ports + 4..], before[ports + 4..]);
            assert!(turn_round(&mut frame));
            assert_eq!(frame, before);
        }
    }

    #[test]
    fn short_frames_stay_as_they_are() {
        for len in [0, 12, 13, 37] {
            let mut frame = vec![8; len];
            assert!(!turn_round(&mut frame), "{len}");
            assert_eq!(frame, vec![8; len]);
        }
    }
}
