//! ARP for IPv4 over Ethernet (RFC 826).

use crate::{Mac, array, be16};
use std::net::Ipv4Addr;

/// Bytes of a packet.
pub const BYTES: usize = 28;

/// What a packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// who has the target address?
    Request,
    /// the sender has the sender address
    Reply,
}

/// A packet; the values of fields that have only one are checked and left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// request or reply
    pub operation: Operation,
    /// the sender's hardware address
    pub sender_mac: Mac,
    /// the sender's address; unspecified in a probe (RFC 5227 section 1.1)
    pub sender: Ipv4Addr,
    /// the target's hardware address; of no meaning in a request
    pub target_mac: Mac,
    /// the target's address
    pub target: Ipv4Addr,
}

const FIXED: [u8; 6] = [0, 1, 8, 0, 6, 4];

impl Arp {
    /// The packet at the front of `bytes` (padding may follow), or None when it is not one.
    pub fn parse(bytes: &[u8]) -> Option<Arp> {
        let packet = bytes.first_chunk::<BYTES>()?;
        if packet[..6] != FIXED {
            return None;
        }
        let operation = match be16(packet, 6) {
            1 => Operation::Request,
            2 => Operation::Reply,
            _ => return None,
        };
        Some(Arp {
            operation,
            sender_mac: array(packet, 8),
            sender: Ipv4Addr::from(array(packet, 14)),
            target_mac: array(packet, 18),
            target: Ipv4Addr::from(array(packet, 24)),
        })
    }

    /// Writes the packet.
    pub fn write(&self, out: &mut [u8; BYTES]) {
        out[..6].copy_from_slice(&FIXED);
        out[6..8].copy_from_slice(&[0, if self.operation == Operation::Request { 1 } else { 2 }]);
        out[8..14].copy_from_slice(&self.sender_mac);
        out[14..18].copy_from_slice(&self.sender.octets());
        out[18..24].copy_from_slice(&self.target_mac);
        out[24..28].copy_from_slice(&self.target.octets());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_parses_is_written_back_the_same(mut bytes: [u8; 32], shaped: bool) {
            if shaped {
                bytes[..6].copy_from_slice(&FIXED);
                bytes[6] = 0;
                bytes[7] &= 3;
            }
            if let Some(arp) = Arp::parse(&bytes) {
                let mut out = [0; BYTES];
                arp.write(&mut out);
                prop_assert_eq!(&out[..], &bytes[..BYTES]);
            }
        }
    }

    #[test]
    fn other_hardware_protocols_and_operations_are_refused() {
        let arp = Arp {
            operation: Operation::Reply,
            sender_mac: [2; 6],
            sender: Ipv4Addr::new(192, 0, 2, 1),
            target_mac: [4; 6],
            target: Ipv4Addr::new(192, 0, 2, 9),
        };
        let mut good = [0; BYTES];
        arp.write(&mut good);
        assert_eq!(Arp::parse(&good), Some(arp));
        assert_eq!(Arp::parse(&good[..27]), None);
        for at in 0..8 {
            let mut bad = good;
            bad[at] ^= 0x40;
            assert_eq!(Arp::parse(&bad), None, "byte {at}");
        }
    }
}
