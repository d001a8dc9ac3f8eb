//! The yardsticks. [`cycle`]: every frame goes back with its addresses and ports swapped and nothing else read, so no server on the
//! same port can answer more than this sends back; swapping addresses and ports changes no checksum. [`Bursts`]: each frame is
//! answered by as many full frames as a file would need, without any protocol, so no server that sends frame by frame over the same
//! port can answer more requests for a file of that size.

use crate::queries::{folded, sum16};
use base::Burst;
use port::{Facts, Outgoing, Port};
use std::collections::VecDeque;

/// What the frames of an answer take from their request: link, network and transport headers of either family, and the first eight
/// octets behind them, by which a generator knows its request.
pub(crate) const ECHOED_BYTES: usize = 14 + 40 + 8 + 8;

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

/// An answer of several frames that is under way.
#[derive(Clone, Copy, Debug)]
struct Answer {
    head: [u8; ECHOED_BYTES],
    /// frames that are still to go out
    left: u32,
}

impl Answer {
    /// To this UDP request; None for what is too short to be one. Payloads are whatever the frames held before, so there is no UDP
    /// checksum.
    fn to(request: &mut [u8], frame_bytes: usize, segments: u32) -> Option<Answer> {
        let mut head = [0; ECHOED_BYTES];
        if !turn_round(request) {
            return None;
        }
        let echoed = request.len().min(ECHOED_BYTES);
        head[..echoed].copy_from_slice(&request[..echoed]);
        let udp_at = if head[12] == 0x08 {
            head[16..18].copy_from_slice(&(frame_bytes as u16 - 14).to_be_bytes());
            head[24..26].fill(0);
            let checksum = folded(sum16(&head[14..34]));
            head[24..26].copy_from_slice(&checksum.to_be_bytes());
            34
        } else {
            head[18..20].copy_from_slice(&(frame_bytes as u16 - 54).to_be_bytes());
            54
        };
        head[udp_at + 4..udp_at + 6].copy_from_slice(&((frame_bytes - udp_at) as u16).to_be_bytes());
        head[udp_at + 6..udp_at + 8].fill(0);
        Some(Answer { head, left: segments })
    }
}

/// The yardstick for files.
#[derive(Debug)]
pub(crate) struct Bursts {
    segments: u32,
    frame_bytes: usize,
    /// answers under way, the oldest first; at most a burst's
    answers: VecDeque<Answer>,
}

impl Bursts {
    /// `segments` full frames a request, over a port with these facts.
    pub(crate) fn new(segments: u32, facts: &Facts) -> Bursts {
        let frame_bytes = facts.frame_bytes.min(facts.mtu + 14);
        Bursts { segments, frame_bytes, answers: VecDeque::with_capacity(base::BURST_FRAMES) }
    }

    /// One cycle: takes at most `limit` requests once the answers to those before have gone out, and sends at most `limit` frames.
    /// Returns how many requests arrived, and what is still on its way out: at least [`Outgoing::Waiting`] while an answer has frames left.
    pub(crate) fn cycle<P: Port>(&mut self, port: &mut P, burst: &mut Burst, limit: usize) -> (usize, Outgoing) {
        let mut received = 0;
        if self.answers.is_empty() {
            received = port.receive(burst, limit);
            for mut frame in burst.drain(..) {
                self.answers.extend(Answer::to(frame.bytes_mut(), self.frame_bytes, self.segments));
                port.give(frame);
            }
        }
        let room = port.transmit_room().min(limit);
        while burst.len() < room {
            let Some(answer) = self.answers.front_mut() else { break };
            let Some(mut frame) = port.take() else { break };
            frame.set_len(self.frame_bytes);
            frame.bytes_mut()[..ECHOED_BYTES].copy_from_slice(&answer.head);
            burst.push(frame);
            answer.left -= 1;
            if answer.left == 0 {
                self.answers.pop_front();
            }
        }
        port.transmit(burst);
        for frame in burst.drain(..) {
            // room was asked for, so this is rare; the generator counts it as lost
            port.give(frame);
        }
        let outgoing = port.flush();
        (received, if self.answers.is_empty() { outgoing } else { outgoing.max(Outgoing::Waiting) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use port::pipe;

    #[test]
    fn a_request_is_answered_by_as_many_full_frames_as_asked_with_headers_that_hold() {
        for (v6, segments) in [(false, 1), (false, 150), (true, 3)] {
            let (mut clients, mut servers) = pipe::pair(&pipe::Config::default()).unwrap();
            let (client, server) = (&mut clients[0], &mut servers[0]);
            let mut request: Vec<u8> = (0..132).collect();
            request[12..15].copy_from_slice(if v6 { &[0x86, 0xdd, 0x60] } else { &[8, 0, 0x45] });
            let (mut bursts, mut burst) = (Bursts::new(segments, server.facts()), Burst::new());
            let mut frame = client.take().unwrap();
            assert!(frame.fill(&request));
            burst.push(frame);
            client.transmit(&mut burst);
            client.flush();
            let mut answers = 0;
            for cycle in 0..10 {
                let (received, outgoing) = bursts.cycle(server, &mut burst, 64);
                assert_eq!(received, usize::from(cycle == 0));
                assert_eq!(outgoing >= Outgoing::Waiting, answers + 64 < segments, "cycle {cycle}");
                client.receive(&mut burst, 64);
                answers += burst.len() as u32;
                for frame in burst.drain(..) {
                    let bytes = frame.bytes();
                    assert_eq!((bytes.len(), &bytes[..6], &bytes[6..12]), (1514, &request[6..12], &request[..6]));
                    let at = if v6 { 54 } else { 34 };
                    assert_eq!(bytes[at..at + 2], request[at + 2..at + 4]);
                    assert_eq!(bytes[at + 8..at + 16], request[at + 8..at + 16], "the number");
                    assert_eq!(usize::from(u16::from_be_bytes([bytes[at + 4], bytes[at + 5]])), 1514 - at);
                    if !v6 {
                        assert_eq!((bytes[16..18] == 1500u16.to_be_bytes(), folded(sum16(&bytes[14..34]))), (true, 0));
                    }
                    client.give(frame);
                }
                client.flush();
                if answers == segments {
                    break;
                }
            }
            assert_eq!(answers, segments);
        }
    }

    #[test]
    fn what_is_too_short_for_a_request_is_not_answered() {
        assert!(Answer::to(&mut [8; 37], 1514, 1).is_none());
        assert!(Answer::to(&mut [8; 38], 1514, 1).is_some());
    }

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
