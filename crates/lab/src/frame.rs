//! Builders for the frames that a client sends raw: Ethernet with tags, ARP, NDP, IPv4 with options, IPv6 with extension
//! headers, fragments, ICMP, UDP, TCP. Small, obvious, and able to write what a correct stack never would.
//!
//! Left out: parsing beyond what a test needs to look at an answer, which is a TCP segment over IPv4.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Protocol numbers (IANA).
pub mod protocol {
    /// ICMP over IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6 destination options header.
    pub const DESTINATION_OPTIONS: u8 = 60;
}

/// Ethernet types.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// IEEE 802.1Q tag.
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
}

/// The sum of RFC 1071 over `octets`, not folded.
fn sum(octets: &[u8]) -> u32 {
    let (pairs, last) = octets.as_chunks::<2>();
    let whole: u32 = pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    whole + last.first().map_or(0, |octet| u32::from(*octet) << 8)
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The checksum of an upper-layer message with its pseudo-header (RFC 768, RFC 8200 8.1).
pub fn checksum(from: IpAddr, to: IpAddr, protocol: u8, message: &[u8]) -> u16 {
    let length = u32::try_from(message.len()).expect("a message of less than 4 GiB");
    fold(sum(&octets(from)) + sum(&octets(to)) + u32::from(protocol) + length + sum(message))
}

/// An Ethernet frame.
pub fn ethernet(to: [u8; 6], from: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from, &ethertype.to_be_bytes(), payload].concat()
}

/// An Ethernet frame with one IEEE 802.1Q tag; `tci` holds priority and VLAN.
pub fn ethernet_vlan(to: [u8; 6], from: [u8; 6], tci: u16, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let inner = [&tci.to_be_bytes()[..], &ethertype.to_be_bytes(), payload].concat();
    ethernet(to, from, ethertype::VLAN, &inner)
}

/// A UDP datagram with its checksum (zero becomes 0xffff, RFC 768).
pub fn udp(from: (IpAddr, u16), to: (IpAddr, u16), payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).expect("a datagram of less than 64 KiB");
    let mut datagram =
        [&from.1.to_be_bytes()[..], &to.1.to_be_bytes(), &length.to_be_bytes(), &[0, 0], payload].concat();
    let sum = match checksum(from.0, to.0, protocol::UDP, &datagram) {
        0 => 0xffff,
        sum => sum,
    };
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    datagram
}

/// Bits of a TCP header (RFC 9293 section 3.1).
pub mod bits {
    /// FIN.
    pub const FIN: u8 = 1;
    /// SYN.
    pub const SYN: u8 = 2;
    /// RST.
    pub const RST: u8 = 4;
    /// PSH.
    pub const PSH: u8 = 8;
    /// ACK.
    pub const ACK: u8 = 16;
}

/// A TCP segment over IPv4: what a test writes, and what it reads of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Source.
    pub from: (Ipv4Addr, u16),
    /// Destination.
    pub to: (Ipv4Addr, u16),
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// See [`bits`].
    pub bits: u8,
    /// The window field as it stands.
    pub window: u16,
    /// Options; a multiple of four octets, 40 at most.
    pub options: Vec<u8>,
    /// Data.
    pub payload: Vec<u8>,
}

impl Tcp {
    /// A segment without options or data.
    pub fn new(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), bits: u8) -> Self {
        Self { from, to, seq: 0, ack: 0, bits, window: 65_535, options: Vec::new(), payload: Vec::new() }
    }

    /// The IPv4 packet.
    pub fn packet(&self) -> Vec<u8> {
        assert!(self.options.len().is_multiple_of(4) && self.options.len() <= 40, "options fill words");
        let mut segment = [self.from.1.to_be_bytes(), self.to.1.to_be_bytes()].concat();
        segment.extend([self.seq.to_be_bytes(), self.ack.to_be_bytes()].concat());
        segment.extend([((20 + self.options.len()) << 2) as u8, self.bits]);
        segment.extend(self.window.to_be_bytes());
        segment.extend([0; 4]);
        segment.extend(&self.options);
        segment.extend(&self.payload);
        let sum = checksum(self.from.0.into(), self.to.0.into(), protocol::TCP, &segment);
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        Ipv4::new(self.from.0, self.to.0, protocol::TCP).packet(&segment)
    }

    /// What an Ethernet frame holds, if that is such a segment; checksums are not looked at.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let packet = frame.get(14..)?;
        let total = usize::from(u16::from_be_bytes(packet.get(2..4)?.try_into().ok()?));
        let packet = packet.get(..total)?;
        if frame[12..14] != ethertype::IPV4.to_be_bytes() || packet[0] >> 4 != 4 || packet[9] != protocol::TCP {
            return None;
        }
        let address = |at: usize| Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?));
        let segment = packet.get(usize::from(packet[0] & 15) * 4..)?;
        let short = |at: usize| Some(u16::from_be_bytes(*segment.get(at..)?.first_chunk()?));
        let long = |at: usize| Some(u32::from_be_bytes(*segment.get(at..)?.first_chunk()?));
        let header = usize::from(*segment.get(12)? >> 4) * 4;
        Some(Self {
            from: (address(12)?, short(0)?),
            to: (address(16)?, short(2)?),
            seq: long(4)?,
            ack: long(8)?,
            bits: *segment.get(13)?,
            window: short(14)?,
            options: segment.get(20..header)?.to_vec(),
            payload: segment.get(header..)?.to_vec(),
        })
    }

    /// An option's data, by its kind.
    pub fn option(&self, kind: u8) -> Option<&[u8]> {
        let mut rest = &self.options[..];
        loop {
            rest = match *rest {
                [] | [0, ..] => return None,
                [1, ..] => &rest[1..],
                [found, length, ..] => {
                    let (option, after) = rest.split_at_checked(usize::from(length))?;
                    if found == kind {
                        return option.get(2..);
                    }
                    after
                }
                [_] => return None,
            };
        }
    }
}

/// Fields of an IPv4 header that tests change.
#[derive(Clone, Debug)]
pub struct Ipv4 {
    /// Source.
    pub from: Ipv4Addr,
    /// Destination.
    pub to: Ipv4Addr,
    /// The upper protocol.
    pub protocol: u8,
    /// Options; a multiple of four octets, 40 at most.
    pub options: Vec<u8>,
    /// Identification.
    pub id: u16,
    /// Fragment offset in octets, a multiple of eight.
    pub offset: u16,
    /// The MF bit.
    pub more: bool,
    /// Time to live.
    pub ttl: u8,
}

impl Ipv4 {
    /// A plain header.
    pub fn new(from: Ipv4Addr, to: Ipv4Addr, protocol: u8) -> Self {
        Self { from, to, protocol, options: Vec::new(), id: 1, offset: 0, more: false, ttl: 64 }
    }

    /// The packet.
    pub fn packet(&self, payload: &[u8]) -> Vec<u8> {
        assert!(self.options.len().is_multiple_of(4) && self.options.len() <= 40, "options fill words");
        let header = 20 + self.options.len();
        let total = u16::try_from(header + payload.len()).expect("a packet of less than 64 KiB");
        let fragment = (self.offset / 8) | (u16::from(self.more) << 13);
        let mut packet = vec![0x40 | (header / 4) as u8, 0];
        packet.extend(total.to_be_bytes());
        packet.extend(self.id.to_be_bytes());
        packet.extend(fragment.to_be_bytes());
        packet.extend([self.ttl, self.protocol, 0, 0]);
        packet.extend(self.from.octets());
        packet.extend(self.to.octets());
        packet.extend(&self.options);
        let checksum = fold(sum(&packet));
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        packet.extend(payload);
        packet
    }

    /// The packets of a payload cut every `size` octets, a multiple of eight.
    pub fn fragments(&self, payload: &[u8], size: usize) -> Vec<Vec<u8>> {
        assert!(size > 0 && size.is_multiple_of(8), "fragments end at multiples of eight");
        let count = payload.chunks(size).len();
        payload
            .chunks(size)
            .enumerate()
            .map(|(number, part)| {
                let offset = u16::try_from(number * size).expect("a packet of less than 64 KiB");
                Self { offset, more: number + 1 < count, ..self.clone() }.packet(part)
            })
            .collect()
    }
}

/// An IPv6 packet; `extensions` are the headers before the upper one, each with its own Next Header already
/// set (see [`destination_options`]), the first of type `next`.
pub fn ipv6(from: Ipv6Addr, to: Ipv6Addr, next: u8, extensions: &[u8], payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(extensions.len() + payload.len()).expect("a packet of less than 64 KiB");
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(length.to_be_bytes());
    // 255 as NDP requires (RFC 4861 7.1)
    packet.extend([next, 255]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(extensions);
    packet.extend(payload);
    packet
}

/// A destination options header of eight octets that holds only padding (RFC 8200 4.6).
pub fn destination_options(next: u8) -> [u8; 8] {
    [next, 0, 1, 4, 0, 0, 0, 0]
}

/// The packets of a payload cut every `size` octets (RFC 8200 4.5).
pub fn ipv6_fragments(from: Ipv6Addr, to: Ipv6Addr, next: u8, id: u32, payload: &[u8], size: usize) -> Vec<Vec<u8>> {
    assert!(size > 0 && size.is_multiple_of(8), "fragments end at multiples of eight");
    let count = payload.chunks(size).len();
    payload
        .chunks(size)
        .enumerate()
        .map(|(number, part)| {
            let offset = u16::try_from(number * size).expect("a packet of less than 64 KiB");
            let mut header = vec![next, 0];
            header.extend((offset | u16::from(number + 1 < count)).to_be_bytes());
            header.extend(id.to_be_bytes());
            ipv6(from, to, protocol::FRAGMENT, &header, part)
        })
        .collect()
}

/// An ICMP echo request.
pub fn echo(id: u16, sequence: u16, data: &[u8]) -> Vec<u8> {
    let mut message = [&[8, 0, 0, 0][..], &id.to_be_bytes(), &sequence.to_be_bytes(), data].concat();
    let checksum = fold(sum(&message));
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message
}

/// An ICMPv6 message; its checksum covers the addresses.
pub fn icmpv6(from: Ipv6Addr, to: Ipv6Addr, kind: u8, code: u8, body: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, code, 0, 0][..], body].concat();
    let checksum = checksum(from.into(), to.into(), protocol::ICMPV6, &message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message
}

/// An ICMPv6 echo request.
pub fn echo_v6(from: Ipv6Addr, to: Ipv6Addr, id: u16, sequence: u16, data: &[u8]) -> Vec<u8> {
    icmpv6(from, to, 128, 0, &[&id.to_be_bytes()[..], &sequence.to_be_bytes(), data].concat())
}

/// An ARP request; a sender of 0.0.0.0 makes it a probe (RFC 5227 1.1).
pub fn arp_request(mac: [u8; 6], sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    [&[0, 1, 8, 0, 6, 4, 0, 1][..], &mac, &sender.octets(), &[0; 6], &target.octets()].concat()
}

/// The solicited-node multicast group of an address and its hardware address (RFC 4291 2.7.1, RFC 2464 7).
pub fn solicited_node(target: Ipv6Addr) -> (Ipv6Addr, [u8; 6]) {
    let [.., a, b, c] = target.octets();
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
    (group, [0x33, 0x33, 0xff, a, b, c])
}

/// A neighbour solicitation as an IPv6 packet to the target's solicited-node group (RFC 4861 4.3). From the unspecified
/// address it is a probe for duplicates, without the source's hardware address (RFC 4862 5.4.2).
pub fn neighbour_solicitation(mac: [u8; 6], from: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let (to, _) = solicited_node(target);
    let mut body = vec![0; 4];
    body.extend(target.octets());
    if !from.is_unspecified() {
        body.extend([1, 1]);
        body.extend(mac);
    }
    ipv6(from, to, protocol::ICMPV6, &[], &icmpv6(from, to, 135, 0, &body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use smoltcp::wire::{ArpPacket, ArpRepr, Icmpv4Packet, Icmpv6Packet, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket};

    proptest! {
        #[test]
        fn another_stack_accepts_our_checksums(payload: Vec<u8>, a: u32, b: u32, c: u128, d: u128) {
            let (a, b) = (Ipv4Addr::from(a), Ipv4Addr::from(b));
            let datagram = udp((a.into(), 1), (b.into(), 53), &payload);
            let packet = Ipv4::new(a, b, protocol::UDP).packet(&datagram);
            let packet = Ipv4Packet::new_checked(&packet[..]).unwrap();
            prop_assert!(packet.verify_checksum());
            prop_assert!(UdpPacket::new_checked(packet.payload()).unwrap().verify_checksum(&a.into(), &b.into()));
            let (c, d) = (Ipv6Addr::from(c), Ipv6Addr::from(d));
            let packet = ipv6(c, d, protocol::ICMPV6, &[], &echo_v6(c, d, 1, 2, &payload));
            let packet = Ipv6Packet::new_checked(&packet[..]).unwrap();
            prop_assert!(Icmpv6Packet::new_checked(packet.payload()).unwrap().verify_checksum(&c, &d));
            prop_assert!(Icmpv4Packet::new_checked(&echo(1, 2, &payload)[..]).unwrap().verify_checksum());
        }

        #[test]
        fn fragments_hold_the_whole(payload in prop::collection::vec(any::<u8>(), 1..3000), words in 1_usize..200) {
            let (a, b) = (Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST);
            let mut got = vec![0; payload.len()];
            let fragments = Ipv4::new(a, b, protocol::UDP).fragments(&payload, words * 8);
            for (number, fragment) in fragments.iter().enumerate() {
                let packet = Ipv4Packet::new_checked(&fragment[..]).unwrap();
                prop_assert!(packet.verify_checksum());
                prop_assert_eq!(packet.more_frags(), number + 1 < fragments.len());
                let at = usize::from(packet.frag_offset());
                got[at..at + packet.payload().len()].copy_from_slice(packet.payload());
            }
            prop_assert_eq!(got, payload);
        }
    }

    proptest! {
        #[test]
        fn segments_as_another_stack_reads_them_and_back(
            ports: (u16, u16), seq: u32, ack: u32, window: u16, sack: bool, payload in prop::collection::vec(any::<u8>(), 0..100)
        ) {
            let (a, b) = (crate::CLIENT_V4, crate::SERVER_V4);
            let options = if sack { vec![2, 4, 5, 180, 1, 3, 3, 7, 1, 1, 4, 2] } else { Vec::new() };
            let (from, to) = ((a, ports.0), (b, ports.1));
            let ours = Tcp { from, to, seq, ack, bits: bits::SYN | bits::ACK, window, options, payload };
            let packet = ours.packet();
            let ip = Ipv4Packet::new_checked(&packet[..]).unwrap();
            prop_assert!(ip.verify_checksum());
            let theirs = TcpPacket::new_checked(ip.payload()).unwrap();
            prop_assert!(theirs.verify_checksum(&a.into(), &b.into()) && theirs.syn() && !theirs.rst());
            prop_assert_eq!((theirs.src_port(), theirs.payload()), (ports.0, &ours.payload[..]));
            // a short frame is padded on a real wire
            let frame = [ethernet([1; 6], [2; 6], ethertype::IPV4, &packet), vec![0; 6]].concat();
            prop_assert_eq!(Tcp::parse(&frame), Some(ours.clone()));
            let shift = sack.then_some(&[7u8][..]);
            prop_assert_eq!((ours.option(3), ours.option(4).is_some(), ours.option(8)), (shift, sack, None));
        }
    }

    #[test]
    fn arp_as_another_stack_reads_it() {
        let packet = arp_request([2; 6], Ipv4Addr::new(198, 18, 0, 2), Ipv4Addr::new(198, 18, 0, 1));
        let repr = ArpRepr::parse(&ArpPacket::new_checked(&packet[..]).unwrap()).unwrap();
        let ArpRepr::EthernetIpv4 { source_protocol_addr, target_protocol_addr, .. } = repr else { panic!("{repr:?}") };
        assert_eq!((source_protocol_addr, target_protocol_addr), (crate::CLIENT_V4, crate::SERVER_V4));
    }

    #[test]
    fn solicited_node_of_rfc_4291() {
        let (group, mac) = solicited_node("4037::01:800:200e:8c6c".parse().unwrap());
        assert_eq!(group, "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().unwrap());
        assert_eq!(mac, [0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]);
    }
}
