//! Packets that are larger than a frame, received in pieces.
//!
//! What a kernel hands to a program in its receive path need not have been on a wire: a sender on the same machine leaves
//! segmentation to a device that is none (veth), and receive offload (GRO) has merged what the wire brought. Such a super-packet of
//! TCP comes in several frames, the headers in the first. They are made into as many ordinary frames in place: the rest of each
//! super-packet gets the headers of the first in front, with its own lengths and sequence number.

use crate::large::{Cut, CutSum, Segmentation, correct};
use base::Frame;
use wire::ethernet::{EtherType, Link};
use wire::ipv4::Ipv4;
use wire::ipv6::Ipv6;
use wire::tcp::{Flags, Tcp};
use wire::{Protocol, Sum};

/// Bytes of the longest headers: link with a tag, IPv4 and TCP with all their options.
const MOST_HEADER_BYTES: usize = 18 + 60 + 60;

/// Makes a frame of each piece of one super-packet: `pieces[0]` begins with its headers, the others go on with its payload. They
/// carry the folded pseudo-header sum as checksum, since what they were has been verified. False, and nothing changed, when the
/// whole is not one TCP segment, when its checksum is neither right nor left to a device, or when a piece has no room for headers.
pub fn separate(pieces: &mut [Frame]) -> bool {
    let Some((header, header_bytes, how)) = judged(pieces) else { return false };
    let header = &header[..header_bytes];
    if pieces.iter().skip(1).any(|piece| piece.headroom() < header_bytes) {
        return false;
    }
    let last = pieces.len() - 1;
    let mut at = 0;
    for (index, piece) in pieces.iter_mut().enumerate() {
        if index > 0 {
            piece.set_window(piece.headroom() - header_bytes, header_bytes + piece.len());
            piece.bytes_mut()[..header_bytes].copy_from_slice(header);
        }
        let cut = Cut { at, index: index as u16, last: index == last, sum: CutSum::Partial };
        correct(piece.bytes_mut(), &how, &cut);
        at += piece.len() - header_bytes;
    }
    true
}

/// The headers of the whole and where they are, when the pieces are a TCP segment that arrived intact.
fn judged(pieces: &[Frame]) -> Option<([u8; MOST_HEADER_BYTES], usize, Segmentation)> {
    let (first, rest) = pieces.split_first()?;
    let bytes = first.bytes();
    let link = Link::parse(bytes)?;
    let ip_at = link.bytes();
    let packet = &bytes[ip_at..];
    let packet_bytes = packet.len() + rest.iter().map(Frame::len).sum::<usize>();
    let (v6, tcp_at, pseudo) = match link.ether_type {
        EtherType::IPV4 => {
            let ip = Ipv4::parse_quoted(packet).ok()?;
            let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
            let tcp_bytes = (total == packet_bytes).then(|| total - ip.header_bytes())?;
            let intact = Sum::of(&packet[..ip.header_bytes()]).verifies();
            let whole = intact && ip.protocol() == Protocol::TCP && !ip.is_fragment();
            let pseudo = Sum::pseudo_v4(ip.src(), ip.dst(), Protocol::TCP, tcp_bytes as u16);
            whole.then_some((false, ip_at + ip.header_bytes(), pseudo))?
        }
        EtherType::IPV6 => {
            let ip = Ipv6::parse_quoted(packet).ok()?;
            let length = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
            let whole = ip.next_header() == Protocol::TCP && length + wire::ipv6::HEADER_BYTES == packet_bytes;
            let pseudo = Sum::pseudo_v6(ip.src(), ip.dst(), Protocol::TCP, length as u32);
            whole.then_some((true, ip_at + wire::ipv6::HEADER_BYTES, pseudo))?
        }
        _ => return None,
    };
    let segment = bytes.get(tcp_at..)?;
    let tcp = Tcp::parse(segment).ok()?;
    // neither can be cut: a SYN counts in sequence space itself, and after a reset nothing goes on
    if tcp.flags().intersects(Flags::SYN | Flags::RST) {
        return None;
    }
    let header_bytes = tcp_at + tcp.header_bytes();
    if segment[16..18] != pseudo.partial() {
        let mut at = segment.len();
        let mut sum = pseudo.bytes(segment);
        for piece in rest {
            sum = sum.part(at, piece.bytes());
            at += piece.len();
        }
        if !sum.verifies() {
            return None;
        }
    }
    let mut header = [0; MOST_HEADER_BYTES];
    header.get_mut(..header_bytes)?.copy_from_slice(&bytes[..header_bytes]);
    Some((header, header_bytes, Segmentation { segment_bytes: 0, ip_at, tcp_at, v6 }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Arena;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use wire::tcp::{Header, PayloadSum, Verdict};
    use wire::{ipv4, ipv6};

    const V4: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
    const V6: [Ipv6Addr; 2] =
        [Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)];

    #[derive(Clone, Copy, Debug)]
    struct Shape {
        v6: bool,
        tagged: bool,
        partial: bool,
        flags: Flags,
        seq: u32,
    }

    fn pseudo(v6: bool, bytes: usize) -> Sum {
        match v6 {
            true => Sum::pseudo_v6(V6[0], V6[1], Protocol::TCP, bytes as u32),
            false => Sum::pseudo_v4(V4[0], V4[1], Protocol::TCP, bytes as u16),
        }
    }

    /// A super-packet, and where its TCP header begins.
    fn packet(shape: Shape, payload: &[u8]) -> (Vec<u8>, usize) {
        let Shape { v6, tagged, partial, flags, seq } = shape;
        let tcp =
            Header { src_port: 80, dst_port: 5000, seq: base::Seq::new(seq), flags, window: 900, ..Header::default() };
        let bytes = tcp.bytes() + payload.len();
        let ether_type = if v6 { EtherType::IPV6 } else { EtherType::IPV4 };
        let link = Link { dst: [2; 6], src: [4; 6], tag: tagged.then_some(7), ether_type };
        let mut whole = vec![0; link.bytes()];
        link.write(&mut whole);
        if v6 {
            let mut ip = [0; ipv6::HEADER_BYTES];
            ipv6::Header { src: V6[0], dst: V6[1], next_header: Protocol::TCP, hop_limit: 64, payload_bytes: bytes }
                .write(&mut ip);
            whole.extend(ip);
        } else {
            let mut ip = [0; ipv4::HEADER_BYTES];
            ipv4::Header { src: V4[0], dst: V4[1], protocol: Protocol::TCP, ttl: 64, payload_bytes: bytes }
                .write(&mut ip);
            whole.extend(ip);
        }
        let tcp_at = whole.len();
        let mut header = vec![0; tcp.bytes()];
        tcp.write(&mut header, pseudo(v6, bytes), PayloadSum::Device);
        whole.extend(header);
        whole.extend(payload);
        if !partial {
            whole[tcp_at + 16..tcp_at + 18].fill(0);
            let sum = pseudo(v6, bytes).bytes(&whole[tcp_at..]).checksum();
            whole[tcp_at + 16..tcp_at + 18].copy_from_slice(&sum);
        }
        (whole, tcp_at)
    }

    /// The packet in frames of `sizes` bytes, round and round.
    fn frames(packet: &[u8], first: usize, sizes: usize) -> (std::sync::Arc<Arena>, Vec<Frame>) {
        let parts =
            std::iter::once(&packet[..first.min(packet.len())]).chain(packet[first.min(packet.len())..].chunks(sizes));
        let parts: Vec<_> = parts.collect();
        let (arena, mut free) = Arena::new(parts.len() as u32, 2048).unwrap();
        let frames = parts.into_iter().map(|part| {
            let mut frame = free.pop().expect("a frame for each part");
            assert!(frame.fill(part));
            frame
        });
        let frames = frames.collect();
        (arena, frames)
    }

    fn shapes() -> impl Strategy<Value = Shape> {
        let flags =
            prop_oneof![Just(Flags::ACK), Just(Flags::ACK | Flags::PSH), Just(Flags::ACK | Flags::FIN | Flags::CWR)];
        (any::<bool>(), any::<bool>(), any::<bool>(), flags, any::<u32>())
            .prop_map(|(v6, tagged, partial, flags, seq)| Shape { v6, tagged, partial, flags, seq })
    }

    proptest! {
        #[test]
        fn the_pieces_are_the_stream_of_the_whole(
            shape in shapes(), bytes in 1usize..40_000, first in 100usize..1792, sizes in 700usize..1792,
        ) {
            let payload: Vec<u8> = (0..bytes).map(|n| ((n * 7919) >> 3) as u8).collect();
            let (whole, tcp_at) = packet(shape, &payload);
            let (_arena, mut pieces) = frames(&whole, first, sizes);
            prop_assert!(separate(&mut pieces));
            let mut got: Vec<u8> = Vec::new();
            for (index, piece) in pieces.iter().enumerate() {
                let segment = match shape.v6 {
                    true => Ipv6::parse(&piece.bytes()[tcp_at - ipv6::HEADER_BYTES..]).unwrap().payload(),
                    false => Ipv4::parse(&piece.bytes()[tcp_at - ipv4::HEADER_BYTES..]).unwrap().payload(),
                };
                prop_assert_eq!(tcp_at + segment.len(), piece.len());
                let tcp = Tcp::parse(segment).unwrap();
                // one sum in 65,535 left to a device is the right one
                let verdict = tcp.verdict(pseudo(shape.v6, segment.len()));
                prop_assert!(matches!(verdict, Verdict::Partial | Verdict::Good), "{verdict:?}");
                prop_assert_eq!(tcp.seq(), base::Seq::new(shape.seq.wrapping_add(got.len() as u32)));
                let ending = Flags::PSH | Flags::FIN;
                let expected = index == pieces.len() - 1 && shape.flags.intersects(ending);
                prop_assert_eq!(tcp.flags().intersects(ending), expected);
                prop_assert_eq!(tcp.flags().contains(Flags::CWR), index == 0 && shape.flags.contains(Flags::CWR));
                got.extend(tcp.payload());
            }
            prop_assert_eq!(got, payload);
        }

        #[test]
        fn what_is_injured_is_refused_and_left_as_it_was(
            shape in shapes(), bytes in 2000usize..9000, at in any::<prop::sample::Index>(), bit in 0u8..8,
        ) {
            // a partial checksum covers the addresses and the length alone
            let shape = Shape { partial: false, ..shape };
            let payload = vec![0x5a; bytes];
            let (mut whole, tcp_at) = packet(shape, &payload);
            let at = tcp_at + at.index(whole.len() - tcp_at);
            whole[at] ^= 1 << bit;
            // one sum in 65,535 looks like one that was left to a device
            let left = pseudo(shape.v6, whole.len() - tcp_at).partial();
            prop_assume!(whole[tcp_at + 16..tcp_at + 18] != left);
            let (_arena, mut pieces) = frames(&whole, 1792, 1792);
            let before: Vec<_> = pieces.iter().map(|piece| piece.bytes().to_vec()).collect();
            prop_assert!(!separate(&mut pieces));
            let after: Vec<_> = pieces.iter().map(|piece| piece.bytes().to_vec()).collect();
            prop_assert_eq!(before, after);
        }
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        let good = Shape { v6: false, tagged: false, partial: true, flags: Flags::ACK, seq: 1 };
        let refused = |change: &dyn Fn(&mut Vec<u8>), shape: Shape| {
            let (mut whole, _) = packet(shape, &[1; 5000]);
            change(&mut whole);
            let (_arena, mut pieces) = frames(&whole, 1792, 1792);
            !separate(&mut pieces)
        };
        assert!(!refused(&|_| {}, good));
        assert!(
            refused(&|_| {}, Shape { flags: Flags::SYN, ..good })
                && refused(&|_| {}, Shape { flags: Flags::RST, ..good })
        );
        // cut short, too long, UDP, a fragment (both with a header checksum that fits), ARP
        assert!(refused(&|whole| whole.truncate(4000), good));
        assert!(refused(&|whole| whole.push(0), good));
        let resum = |whole: &mut Vec<u8>| {
            whole[24..26].fill(0);
            let sum = Sum::of(&whole[14..34]).checksum();
            whole[24..26].copy_from_slice(&sum);
        };
        let other_protocol = |whole: &mut Vec<u8>| {
            whole[23] = 17;
            resum(whole);
        };
        let fragment = |whole: &mut Vec<u8>| {
            whole[20] |= 0x20;
            resum(whole);
        };
        assert!(refused(&other_protocol, good) && refused(&fragment, good));
        assert!(refused(&|whole| whole[24] ^= 1, good));
        assert!(refused(&|whole| whole[13] = 6, good));
        // the headers end in the second frame
        let (whole, _) = packet(good, &[1; 5000]);
        let (_arena, mut pieces) = frames(&whole, 40, 1792);
        assert!(!separate(&mut pieces) && !separate(&mut []));
    }
}
