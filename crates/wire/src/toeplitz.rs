//! The Toeplitz hash by which NICs spread flows over their queues (receive-side scaling).
//!
//! The input is what a packet says in network byte order: source address, destination address and, where the NIC looks at
//! ports, source port and destination port. For every bit of it that is set, the 32 bits of the key that begin at that bit's
//! place are XORed into the hash ("RSS hashing types" in Microsoft's documentation of NDIS). So the hash is linear, and what
//! a byte at a place adds to it can be looked up: [`Table`] is that, for paths that hash every packet, [`hash`] the plain form.
//!
//! Left out: the inputs that NICs may be told to hash beside these (VLAN, SPI, flow label), and inputs that are made
//! symmetric before they are hashed (`input_xfrm` of ETHTOOL_GRSSH).

use std::net::SocketAddr;

/// Bytes of the shortest key: enough for two IPv6 addresses and two ports.
pub const KEY_BYTES_MIN: usize = 40;

/// Bytes of the longest key that is met (i40e, ice).
pub const KEY_BYTES_MAX: usize = 52;

/// Bytes of the longest input: two IPv6 addresses and two ports.
pub const INPUT_BYTES_MAX: usize = 36;

/// The secret of a NIC's hash: 40 to 52 bytes.
///
/// An input of n bytes meets the first n + 4 bytes of the key, so what stands beyond the fortieth has no say here; it is kept
/// so that the key can be compared with, and given back to, the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key {
    bytes: [u8; KEY_BYTES_MAX],
    len: u8,
}

/// A key that is too short or too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLength(
    /// its bytes
    pub usize,
);

impl std::fmt::Display for KeyLength {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an RSS key has {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes, not {}", self.0)
    }
}

impl std::error::Error for KeyLength {}

impl Key {
    /// The key that Microsoft published with the test vectors, and that many drivers start with.
    pub const MICROSOFT: Key = {
        let published = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
            0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
            0xbe, 0xac, 0x01, 0xfa,
        ];
        let mut bytes = [0; KEY_BYTES_MAX];
        let mut at = 0;
        while at < published.len() {
            bytes[at] = published[at];
            at += 1;
        }
        Key { bytes, len: published.len() as u8 }
    };

    /// A key of these bytes.
    ///
    /// # Errors
    /// When it is shorter than [`KEY_BYTES_MIN`] or longer than [`KEY_BYTES_MAX`].
    pub fn new(key: &[u8]) -> Result<Key, KeyLength> {
        if !(KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&key.len()) {
            return Err(KeyLength(key.len()));
        }
        let mut bytes = [0; KEY_BYTES_MAX];
        bytes[..key.len()].copy_from_slice(key);
        Ok(Key { bytes, len: key.len() as u8 })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The 40 bits that begin with byte `at`, in which the windows of that byte's eight bits lie.
    fn window(&self, at: usize) -> u64 {
        self.bytes[at..at + 5].iter().fold(0, |window, byte| window << 8 | u64::from(*byte))
    }
}

/// Keys are secrets: who knows one can aim flows at one queue. Logs show its length.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({} bytes)", self.len)
    }
}

/// What `byte` adds to a hash where its window of the key is `window`.
fn share(window: u64, byte: u8) -> u32 {
    let mut hash = 0;
    for bit in 0..8 {
        let set = u32::from(byte >> (7 - bit) & 1);
        hash ^= (window >> (8 - bit)) as u32 & set.wrapping_neg();
    }
    hash
}

/// The hash of `input`, bit by bit.
///
/// # Panics
/// When `input` is longer than [`INPUT_BYTES_MAX`].
pub fn hash(key: &Key, input: &[u8]) -> u32 {
    assert!(input.len() <= INPUT_BYTES_MAX, "{} bytes of input, at most {INPUT_BYTES_MAX}", input.len());
    input.iter().enumerate().fold(0, |hash, (at, byte)| hash ^ share(key.window(at), *byte))
}

/// What NICs hash of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    bytes: [u8; INPUT_BYTES_MAX],
    len: u8,
}

impl Input {
    /// Of a packet from `src` to `dst`, with its ports or, as for fragments and protocols without them, of addresses alone.
    /// None when one is IPv4 and the other IPv6.
    pub fn of(src: SocketAddr, dst: SocketAddr, ports: bool) -> Option<Input> {
        let mut bytes = [0; INPUT_BYTES_MAX];
        let addresses = match (src, dst) {
            (SocketAddr::V4(src), SocketAddr::V4(dst)) => {
                bytes[..4].copy_from_slice(&src.ip().octets());
                bytes[4..8].copy_from_slice(&dst.ip().octets());
                8
            }
            (SocketAddr::V6(src), SocketAddr::V6(dst)) => {
                bytes[..16].copy_from_slice(&src.ip().octets());
                bytes[16..32].copy_from_slice(&dst.ip().octets());
                32
            }
            _ => return None,
        };
        if !ports {
            return Some(Input { bytes, len: addresses as u8 });
        }
        bytes[addresses..addresses + 2].copy_from_slice(&src.port().to_be_bytes());
        bytes[addresses + 2..addresses + 4].copy_from_slice(&dst.port().to_be_bytes());
        Some(Input { bytes, len: addresses as u8 + 4 })
    }

    /// The bytes in the order in which they are hashed.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The hash of one key as a table: what each value of each input byte adds. 36 KiB, of which IPv4 touches a third.
#[derive(Clone)]
pub struct Table {
    key: Key,
    shares: Box<[[u32; 256]; INPUT_BYTES_MAX]>,
}

impl Table {
    /// The table of `key`, made once; allocates.
    pub fn new(key: &Key) -> Table {
        let shares: Vec<[u32; 256]> = (0..INPUT_BYTES_MAX)
            .map(|at| {
                let window = key.window(at);
                std::array::from_fn(|byte| share(window, byte as u8))
            })
            .collect();
        let shares = shares.into_boxed_slice().try_into().expect("as many rows as were made");
        Table { key: *key, shares }
    }

    /// The key that it was made of.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// What each value of each byte of the input adds to the hash.
    pub fn shares(&self) -> &[[u32; 256]; INPUT_BYTES_MAX] {
        &self.shares
    }

    /// The hash of a packet over IPv4 from `src` to `dst`, with its ports (source, destination) if they count.
    #[inline]
    pub fn ipv4(&self, src: [u8; 4], dst: [u8; 4], ports: Option<(u16, u16)>) -> u32 {
        self.part(0, src) ^ self.part(4, dst) ^ self.ports(8, ports)
    }

    /// The hash of a packet over IPv6 from `src` to `dst`, with its ports (source, destination) if they count.
    #[inline]
    pub fn ipv6(&self, src: [u8; 16], dst: [u8; 16], ports: Option<(u16, u16)>) -> u32 {
        self.part(0, src) ^ self.part(16, dst) ^ self.ports(32, ports)
    }

    /// The hash of a packet's [`Input`].
    pub fn hash(&self, input: &Input) -> u32 {
        let bytes = input.as_bytes().iter();
        bytes.zip(&*self.shares).fold(0, |hash, (byte, shares)| hash ^ shares[usize::from(*byte)])
    }

    /// What `bytes` add when they stand at `at`.
    #[inline(always)]
    fn part<const N: usize>(&self, at: usize, bytes: [u8; N]) -> u32 {
        let mut hash = 0;
        for (n, byte) in bytes.into_iter().enumerate() {
            hash ^= self.shares[at + n][usize::from(byte)];
        }
        hash
    }

    #[inline(always)]
    fn ports(&self, at: usize, ports: Option<(u16, u16)>) -> u32 {
        match ports {
            None => 0,
            Some((src, dst)) => self.part(at, src.to_be_bytes()) ^ self.part(at + 2, dst.to_be_bytes()),
        }
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table({:?})", self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// "Verifying the RSS Hash Calculation": source, destination, hash of addresses, hash with ports.
    const PUBLISHED: [(&str, &str, u32, u32); 8] = [
        ("66.9.149.187:2794", "161.142.100.80:1766", 0x323e_8fc2, 0x51cc_c178),
        ("199.92.111.2:14230", "65.69.140.83:4739", 0xd718_262a, 0xc626_b0ea),
        ("24.19.198.95:12898", "12.22.207.184:38024", 0xd2d0_a5de, 0x5c2b_394a),
        ("38.27.205.30:48228", "209.142.163.6:2217", 0x8298_9176, 0xafc7_327f),
        ("153.39.163.191:44251", "202.188.127.2:1303", 0x5d18_09c5, 0x10e8_28a2),
        ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x2cc1_8cd5, 0x4020_7d3d),
        ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0x0f0c_461c, 0xdde5_1bbf),
        ("[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251", "[fe80::200:f8ff:fe21:67cf]:38024", 0x4b61_e985, 0x02d1_feef),
    ];

    #[test]
    fn gives_the_published_vectors_in_both_forms() {
        let table = Table::new(&Key::MICROSOFT);
        for (src, dst, addresses, with_ports) in PUBLISHED {
            let (src, dst): (SocketAddr, SocketAddr) = (src.parse().unwrap(), dst.parse().unwrap());
            for (ports, expected) in [(false, addresses), (true, with_ports)] {
                let input = Input::of(src, dst, ports).unwrap();
                assert_eq!(hash(&Key::MICROSOFT, input.as_bytes()), expected, "{src} {dst} {ports}");
                assert_eq!(table.hash(&input), expected, "{src} {dst} {ports}");
                let ports = ports.then(|| (src.port(), dst.port()));
                let by_parts = match (src, dst) {
                    (SocketAddr::V4(s), SocketAddr::V4(d)) => table.ipv4(s.ip().octets(), d.ip().octets(), ports),
                    (SocketAddr::V6(s), SocketAddr::V6(d)) => table.ipv6(s.ip().octets(), d.ip().octets(), ports),
                    _ => unreachable!("the vectors do not mix families"),
                };
                assert_eq!(by_parts, expected, "{src} {dst} {ports:?}");
            }
        }
    }

    #[test]
    fn families_do_not_mix() {
        let (a, b) = ("192.0.2.1:1".parse().unwrap(), "[::1]:1".parse().unwrap());
        assert_eq!(Input::of(a, b, true), None);
        assert_eq!(Input::of(b, a, false), None);
    }

    #[test]
    fn keys_have_40_to_52_bytes_and_do_not_show_in_logs() {
        for len in [0, 39, 53] {
            assert_eq!(Key::new(&vec![1; len]), Err(KeyLength(len)));
        }
        assert_eq!(KeyLength(39).to_string(), "an RSS key has 40 to 52 bytes, not 39");
        for len in [40, 52] {
            let bytes: Vec<u8> = (7..).take(len).collect();
            let key = Key::new(&bytes).unwrap();
            assert_eq!(key.as_bytes(), bytes);
            assert_eq!(format!("{key:?} {:?}", Table::new(&key)), format!("Key({len} bytes) Table(Key({len} bytes))"));
        }
        assert_eq!(Key::new(Key::MICROSOFT.as_bytes()), Ok(Key::MICROSOFT));
    }

    #[test]
    #[should_panic(expected = "37 bytes of input, at most 36")]
    fn longer_inputs_are_a_bug_of_the_caller() {
        hash(&Key::MICROSOFT, &[0; 37]);
    }

    /// The definition, with the key as one string of bits.
    fn by_definition(key: &[u8], input: &[u8]) -> u32 {
        let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
        let window = |at| (at..at + 32).fold(0, |window, at| window << 1 | u32::from(bit(key, at)));
        (0..input.len() * 8).filter(|at| bit(input, *at) == 1).fold(0, |hash, at| hash ^ window(at))
    }

    fn any_key() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), KEY_BYTES_MIN..=KEY_BYTES_MAX)
    }

    fn any_ends() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
        fn ends<A: Into<std::net::IpAddr>>((src, from, dst, to): (A, u16, A, u16)) -> (SocketAddr, SocketAddr) {
            (SocketAddr::new(src.into(), from), SocketAddr::new(dst.into(), to))
        }
        let v4 = any::<([u8; 4], u16, [u8; 4], u16)>().prop_map(ends);
        let v6 = any::<([u8; 16], u16, [u8; 16], u16)>().prop_map(ends);
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn both_forms_are_the_definition(key in any_key(), (src, dst) in any_ends(), ports in any::<bool>()) {
            let input = Input::of(src, dst, ports).unwrap();
            let expected = by_definition(&key, input.as_bytes());
            let key = Key::new(&key).unwrap();
            prop_assert_eq!(hash(&key, input.as_bytes()), expected);
            prop_assert_eq!(Table::new(&key).hash(&input), expected);
        }

        #[test]
        fn it_is_linear_over_xor(key in any_key(), a in any::<[u8; 32]>(), b in any::<[u8; 32]>()) {
            let key = Key::new(&key).unwrap();
            let both: [u8; 32] = std::array::from_fn(|at| a[at] ^ b[at]);
            prop_assert_eq!(hash(&key, &both), hash(&key, &a) ^ hash(&key, &b));
            prop_assert_eq!(hash(&key, &[0; 36]), 0);
        }

        #[test]
        fn only_the_key_under_the_input_counts(key in any_key(), tail in any::<[u8; 12]>(), input in any::<[u8; 36]>()) {
            let mut longest = key[..KEY_BYTES_MIN].to_vec();
            longest.extend_from_slice(&tail);
            prop_assert_eq!(
                hash(&Key::new(&key).unwrap(), &input),
                hash(&Key::new(&longest).unwrap(), &input)
            );
        }
    }
}
