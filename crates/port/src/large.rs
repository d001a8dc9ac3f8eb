//! Large sends: up to 64 KiB of one TCP connection go down at once, as a segment that the device cuts (TSO).
//!
//! What a device does is written out here in software too ([`Cuts`]), for ports without one: each cut has the headers of the
//! whole, with its own lengths, sequence number, IPv4 identification and checksums; PSH and FIN stand on the last only, CWR
//! on the first (RFC 3168 section 6.1.2 wants it once).

use crate::Gather;
use base::Frame;
use std::net::{Ipv4Addr, Ipv6Addr};
use wire::{Protocol, Sum};

/// Pieces of payload that one send may have.
pub const MAX_PIECES: usize = 64;
/// Bytes of the longest super-segment that any device takes, link header included: the length fields of IP have 16 bits, and
/// kernels bound the whole frame by the same number.
pub const MOST_BYTES: usize = 65_535;

/// How a super-segment is to be cut, and where its headers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// payload bytes of each segment but the last, which may be shorter
    pub segment_bytes: u16,
    /// where the IP header begins
    pub ip_at: usize,
    /// where the TCP header begins
    pub tcp_at: usize,
    /// IPv6, else IPv4
    pub v6: bool,
}

/// The part of a port that sends super-segments.
pub trait Large {
    /// Bytes of the longest super-segment, link header included.
    fn most_bytes(&mut self) -> usize;

    /// Sends `header` (link, IP and TCP, with the lengths of the whole and, where TCP's checksum belongs, the folded sum of the
    /// pseudo-header) and behind it `payload`, at most [`MAX_PIECES`] pieces, which is read during the call only. False when it
    /// was not sent; the caller then sends it as frames.
    ///
    /// It goes at once: it overtakes frames that were handed over since the last [`flush`](crate::Port::flush).
    fn send(&mut self, header: &[u8], payload: &[&[u8]], how: &Segmentation) -> bool;
}

/// What a stack takes of its port beside bursts.
pub trait Supply {
    /// A free frame, empty, or None when all are in use.
    fn frame(&mut self) -> Option<Frame>;

    /// For large sends; None where the device does not segment.
    fn large(&mut self) -> Option<&mut dyn Large>;

    /// For frames whose payload lies elsewhere; None where the device does not gather.
    fn gather(&mut self) -> Option<&mut dyn Gather>;
}

impl<P: crate::Port> Supply for P {
    #[inline]
    fn frame(&mut self) -> Option<Frame> {
        self.take()
    }

    #[inline]
    fn large(&mut self) -> Option<&mut dyn Large> {
        crate::Port::large(self)
    }

    #[inline]
    fn gather(&mut self) -> Option<&mut dyn Gather> {
        crate::Port::gather(self)
    }
}

/// Bits of TCP's flags byte, the fourteenth of its header.
const FLAGS_AT: usize = 13;
const FIN_PSH: u8 = 0x01 | 0x08;
const CWR: u8 = 0x80;

/// A super-segment being cut in software, as [`Large::send`] is given it.
#[derive(Debug)]
pub struct Cuts<'a> {
    header: &'a [u8],
    payload: &'a [&'a [u8]],
    how: Segmentation,
    /// bytes of payload in all, those cut, and of `payload[0]` those
    bytes: usize,
    done: usize,
    skip: usize,
    index: u16,
    ended: bool,
}

impl<'a> Cuts<'a> {
    /// Nothing is cut yet.
    pub fn new(header: &'a [u8], payload: &'a [&'a [u8]], how: &Segmentation) -> Cuts<'a> {
        let bytes = payload.iter().map(|piece| piece.len()).sum();
        Cuts { header, payload, how: *how, bytes, done: 0, skip: 0, index: 0, ended: false }
    }

    /// Bytes of the frame that is next; None when all is cut.
    pub fn next_bytes(&self) -> Option<usize> {
        (!self.ended).then(|| self.header.len() + self.next_payload())
    }

    fn next_payload(&self) -> usize {
        (self.bytes - self.done).min(usize::from(self.how.segment_bytes))
    }

    /// Writes the next frame.
    ///
    /// # Panics
    /// When `frame` is not as long as [`Cuts::next_bytes`] said, or the header is no header.
    pub fn write(&mut self, frame: &mut [u8]) {
        let n = self.next_payload();
        let (head, mut room) = frame.split_at_mut(self.header.len());
        assert_eq!(room.len(), n, "bytes of the next frame");
        head.copy_from_slice(self.header);
        while !room.is_empty() {
            let piece = &self.payload[0][self.skip..];
            let some = piece.len().min(room.len());
            room[..some].copy_from_slice(&piece[..some]);
            room = &mut room[some..];
            self.skip += some;
            if self.skip == self.payload[0].len() {
                (self.payload, self.skip) = (&self.payload[1..], 0);
            }
        }
        let last = self.done + n == self.bytes;
        let cut = Cut { at: self.done, index: self.index, last, sum: CutSum::Complete };
        correct(frame, &self.how, &cut);
        self.done += n;
        self.index = self.index.wrapping_add(1);
        self.ended = last;
    }
}

/// One segment of a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// bytes of payload in front of it
    pub(crate) at: usize,
    /// cuts in front of it
    pub(crate) index: u16,
    pub(crate) last: bool,
    pub(crate) sum: CutSum,
}

/// What stands in a cut's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutSum {
    Complete,
    /// the folded pseudo-header sum alone, as kernels leave it for a device
    Partial,
}

/// Makes the whole's headers at the front of `frame` those of one cut, whose payload stands behind them.
pub(crate) fn correct(frame: &mut [u8], how: &Segmentation, cut: &Cut) {
    let Segmentation { ip_at, tcp_at, v6, .. } = *how;
    let tcp_bytes = frame.len() - tcp_at;
    let (ip, tcp) = frame[ip_at..].split_at_mut(tcp_at - ip_at);
    let pseudo = if v6 {
        ip[4..6].copy_from_slice(&(tcp_bytes as u16).to_be_bytes());
        let addr = |at: usize| Ipv6Addr::from(*ip[at..].first_chunk::<16>().expect("an IPv6 header"));
        Sum::pseudo_v6(addr(8), addr(24), Protocol::TCP, tcp_bytes as u32)
    } else {
        let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(cut.index);
        let total = (ip.len() + tcp_bytes) as u16;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[4..6].copy_from_slice(&id.to_be_bytes());
        ip[10..12].fill(0);
        let sum = Sum::of(ip).checksum();
        ip[10..12].copy_from_slice(&sum);
        let addr = |at: usize| Ipv4Addr::from(*ip[at..].first_chunk::<4>().expect("an IPv4 header"));
        Sum::pseudo_v4(addr(12), addr(16), Protocol::TCP, tcp_bytes as u16)
    };
    let seq = u32::from_be_bytes(*tcp[4..].first_chunk().expect("a TCP header")).wrapping_add(cut.at as u32);
    tcp[4..8].copy_from_slice(&seq.to_be_bytes());
    if !cut.last {
        tcp[FLAGS_AT] &= !FIN_PSH;
    }
    if cut.index > 0 {
        tcp[FLAGS_AT] &= !CWR;
    }
    let sum = match cut.sum {
        CutSum::Partial => pseudo.partial(),
        CutSum::Complete => {
            tcp[16..18].fill(0);
            pseudo.bytes(tcp).checksum()
        }
    };
    tcp[16..18].copy_from_slice(&sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Seq;
    use proptest::prelude::*;
    use wire::tcp::{Flags, Header, PayloadSum, Tcp, Timestamps, Verdict};
    use wire::{ipv4, ipv6};

    const LINK_BYTES: usize = 14;

    /// The headers of a super-segment.
    fn header(v6: bool, payload_bytes: usize, seq: u32, flags: Flags) -> (Vec<u8>, Segmentation) {
        let tcp = Header {
            src_port: 80,
            dst_port: 5000,
            seq: Seq::new(seq),
            ack: Seq::new(77),
            flags,
            window: 900,
            timestamps: Some(Timestamps { value: 1, echo: 2 }),
            ..Header::default()
        };
        let segment_bytes = tcp.bytes() + payload_bytes;
        let (link, protocol) = (vec![2; LINK_BYTES], Protocol::TCP);
        let (ip, pseudo) = if v6 {
            let (src, dst) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
            let mut ip = [0; ipv6::HEADER_BYTES];
            ipv6::Header { src, dst, next_header: protocol, hop_limit: 64, payload_bytes: segment_bytes }
                .write(&mut ip);
            (ip.to_vec(), Sum::pseudo_v6(src, dst, protocol, segment_bytes as u32))
        } else {
            let (src, dst) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
            let mut ip = [0; ipv4::HEADER_BYTES];
            ipv4::Header { src, dst, protocol, ttl: 64, payload_bytes: segment_bytes }.write(&mut ip);
            (ip.to_vec(), Sum::pseudo_v4(src, dst, protocol, segment_bytes as u16))
        };
        let mut segment = vec![0; tcp.bytes()];
        tcp.write(&mut segment, pseudo, PayloadSum::Device);
        let how = Segmentation { segment_bytes: 0, ip_at: LINK_BYTES, tcp_at: LINK_BYTES + ip.len(), v6 };
        ([link, ip, segment].concat(), how)
    }

    proptest! {
        #[test]
        fn the_cuts_are_valid_segments_of_the_same_stream(
            v6: bool, bytes in 0usize..20_000, mss in 1u16..3000, seq: u32, pieces in prop::collection::vec(0usize..9000, 0..9),
        ) {
            let stream: Vec<u8> = (0..bytes).map(|n| ((n * 7919) >> 3) as u8).collect();
            let mut rest = &stream[..];
            let mut payload = Vec::new();
            for n in pieces {
                let (piece, after) = rest.split_at(n.min(rest.len()));
                payload.push(piece);
                rest = after;
            }
            payload.push(rest);
            let all = Flags::ACK | Flags::PSH | Flags::FIN | Flags::CWR;
            let (header, how) = header(v6, bytes, seq, all);
            let mut cuts = Cuts::new(&header, &payload, &Segmentation { segment_bytes: mss, ..how });
            let (mut got, mut frames) = (Vec::<u8>::new(), 0u16);
            while let Some(frame_bytes) = cuts.next_bytes() {
                let mut frame = vec![0; frame_bytes];
                cuts.write(&mut frame);
                let packet = &frame[LINK_BYTES..];
                let (segment, pseudo) = if v6 {
                    let length = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
                    prop_assert_eq!(length + ipv6::HEADER_BYTES, packet.len());
                    let (src, dst) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
                    (&packet[ipv6::HEADER_BYTES..], Sum::pseudo_v6(src, dst, Protocol::TCP, length as u32))
                } else {
                    prop_assert!(Sum::of(&packet[..ipv4::HEADER_BYTES]).verifies());
                    prop_assert_eq!(usize::from(u16::from_be_bytes([packet[2], packet[3]])), packet.len());
                    prop_assert_eq!(u16::from_be_bytes([packet[4], packet[5]]), frames);
                    let (src, dst) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
                    let length = packet.len() - ipv4::HEADER_BYTES;
                    (&packet[ipv4::HEADER_BYTES..], Sum::pseudo_v4(src, dst, Protocol::TCP, length as u16))
                };
                let tcp = Tcp::parse(segment).unwrap();
                prop_assert_eq!(tcp.verdict(pseudo), Verdict::Good);
                prop_assert_eq!(tcp.seq(), Seq::new(seq.wrapping_add(got.len() as u32)));
                prop_assert_eq!(tcp.options().timestamps, Some(Timestamps { value: 1, echo: 2 }));
                prop_assert!(tcp.payload().len() == usize::from(mss) || got.len() + tcp.payload().len() == bytes);
                let first = got.is_empty() && frames == 0;
                got.extend(tcp.payload());
                let last = cuts.next_bytes().is_none();
                prop_assert_eq!(tcp.flags().contains(Flags::PSH | Flags::FIN), last);
                prop_assert_eq!(tcp.flags().intersects(Flags::PSH | Flags::FIN), last);
                prop_assert_eq!(tcp.flags().contains(Flags::CWR), first);
                frames += 1;
            }
            prop_assert_eq!(got, stream);
            prop_assert_eq!(usize::from(frames), bytes.div_ceil(usize::from(mss)).max(1));
        }
    }
}
