//! The Toeplitz hash by which NICs spread flows over their queues (receive-side scaling).

use std::net::SocketAddr;

/// Bytes of the key: enough for two IPv6 addresses and two ports.
pub const KEY_BYTES: usize = 40;

/// The key that Microsoft published with the test vectors, and that many drivers start with.
pub const DEFAULT_KEY: [u8; KEY_BYTES] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];

/// The hash of `input`.
///
/// # Panics
/// When `input` is longer than the key allows: 36 bytes.
pub fn hash(key: &[u8; KEY_BYTES], input: &[u8]) -> u32 {
    assert!(input.len() <= KEY_BYTES - 4, "{} bytes of input for a key of {KEY_BYTES}", input.len());
    let mut hash = 0;
    for (at, byte) in input.iter().enumerate() {
        // the 40 bits of the key that this byte's eight windows of 32 lie in
        let window = key[at..].iter().take(5).fold(0u64, |window, byte| window << 8 | u64::from(*byte));
        let window = if at + 5 > KEY_BYTES { window << 8 } else { window };
        for bit in 0..8 {
            let set = u32::from(byte >> (7 - bit) & 1);
            hash ^= (window >> (8 - bit)) as u32 & set.wrapping_neg();
        }
    }
    hash
}

/// The hash of a flow's addresses and ports, as seen in a packet from `src` to `dst`; of addresses alone if `ports` is false.
/// None when one is IPv4 and the other IPv6.
pub fn hash_flow(key: &[u8; KEY_BYTES], src: SocketAddr, dst: SocketAddr, ports: bool) -> Option<u32> {
    let mut input = [0; 36];
    let at = match (src, dst) {
        (SocketAddr::V4(src), SocketAddr::V4(dst)) => {
            input[..4].copy_from_slice(&src.ip().octets());
            input[4..8].copy_from_slice(&dst.ip().octets());
            8
        }
        (SocketAddr::V6(src), SocketAddr::V6(dst)) => {
            input[..16].copy_from_slice(&src.ip().octets());
            input[16..32].copy_from_slice(&dst.ip().octets());
            32
        }
        _ => return None,
    };
    input[at..at + 2].copy_from_slice(&src.port().to_be_bytes());
    input[at + 2..at + 4].copy_from_slice(&dst.port().to_be_bytes());
    Some(hash(key, &input[..at + if ports { 4 } else { 0 }]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_published_vectors() {
        // "Verifying the RSS Hash Calculation": source, destination, hash of addresses, hash with ports
        for (src, dst, addresses, with_ports) in [
            ("66.9.149.187:2794", "161.142.100.80:1766", 0x323e_8fc2, 0x51cc_c178),
            ("199.92.111.2:14230", "65.69.140.83:4739", 0xd718_262a, 0xc626_b0ea),
            ("24.19.198.95:12898", "12.22.207.184:38024", 0xd2d0_a5de, 0x5c2b_394a),
            ("38.27.205.30:48228", "209.142.163.6:2217", 0x8298_9176, 0xafc7_327f),
            ("153.39.163.191:44251", "202.188.127.2:1303", 0x5d18_09c5, 0x10e8_28a2),
            ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x2cc1_8cd5, 0x4020_7d3d),
            ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0x0f0c_461c, 0xdde5_1bbf),
            (
                "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
                "[fe80::200:f8ff:fe21:67cf]:38024",
                0x4b61_e985,
                0x02d1_feef,
            ),
        ] {
            let (src, dst): (SocketAddr, SocketAddr) = (src.parse().unwrap(), dst.parse().unwrap());
            assert_eq!(hash_flow(&DEFAULT_KEY, src, dst, false), Some(addresses), "{src} {dst}");
            assert_eq!(hash_flow(&DEFAULT_KEY, src, dst, true), Some(with_ports), "{src} {dst}");
        }
    }

    #[test]
    fn families_do_not_mix() {
        let (a, b) = ("192.0.2.1:1".parse().unwrap(), "[::1]:1".parse().unwrap());
        assert_eq!(hash_flow(&DEFAULT_KEY, a, b, true), None);
    }
}
