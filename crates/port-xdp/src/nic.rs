//! What a NIC is set to: receive-side scaling, queues, rings, interrupt coalescing, flow control, features. By the ethtool ioctls,
//! in the network namespace of the calling thread.
//!
//! `Ok(None)` says that the device has no such setting (EOPNOTSUPP). Only the table and the key of receive-side scaling can be set:
//! flows move by them while packets flow. The rest is an administrator's to set, with ethtool.
//!
//! Left out: RSS contexts beside the device's own, and the rules of its flow classifier, of which only the number is told.

use crate::ethtool;
use std::collections::BTreeMap;
use std::io;

const ETHTOOL_GCOALESCE: u32 = 0x0e;
const ETHTOOL_GRINGPARAM: u32 = 0x10;
const ETHTOOL_GPAUSEPARAM: u32 = 0x12;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GRXFH: u32 = 0x29;
const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GRXFHINDIR: u32 = 0x38;
const ETHTOOL_SRXFHINDIR: u32 = 0x39;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_GRSSH: u32 = 0x46;
const ETHTOOL_SRSSH: u32 = 0x47;
const ETH_SS_FEATURES: u32 = 4;
const ETH_GSTRING_BYTES: usize = 32;
const ETH_RXFH_INDIR_NO_CHANGE: u32 = u32::MAX;
/// Words of `struct ethtool_rxfh` before the table, and the places of its counts and of hash function and transformation.
const RXFH_WORDS: usize = 6;
const RXFH_INDIR_SIZE: usize = 2;
const RXFH_KEY_SIZE: usize = 3;
const RXFH_FUNCTION: usize = 4;
/// Words of `struct ethtool_rxnfc`; its `data` is at 2 and 3.
const RXNFC_WORDS: usize = 48;
const RXNFC_RULES: usize = 46;
/// More entries, key bytes or features than any device has: what says so is not believed.
const SANE: usize = 1 << 16;

/// A device's settings, as the kernel tells them.
pub struct Nic(Box<dyn Ask>);

/// Where the commands go. An implementation writes no more than `words`; those of unknown length are as long as the counts in them.
trait Ask {
    /// Hands over a structure of linux/ethtool.h, whose first word is the command; the answer is written over it.
    fn ask(&self, words: &mut [u32]) -> io::Result<()>;
}

struct Interface(String);

impl Ask for Interface {
    fn ask(&self, words: &mut [u32]) -> io::Result<()> {
        ethtool::ask(&self.0, words)
    }
}

/// By what the input becomes a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashFunction {
    /// as crate wire has it
    Toeplitz,
    /// XOR of the input
    Xor,
    /// CRC-32
    Crc32,
    /// the device does not say, or it is one that is newer than this program
    Unknown,
}

/// Receive-side scaling: which queue a hash leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    /// the queue of each entry; the entry of a packet is its hash modulo their number
    pub table: Vec<u32>,
    /// the key; empty where the device does not tell it
    pub key: Vec<u8>,
    /// the hash function
    pub function: HashFunction,
    /// the input is made symmetric before it is hashed, so that both directions of a flow have one hash (`input_xfrm`)
    pub symmetric: bool,
}

/// Packets that are hashed alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flows {
    /// TCP over IPv4
    Tcp4,
    /// UDP over IPv4
    Udp4,
    /// TCP over IPv6
    Tcp6,
    /// UDP over IPv6
    Udp6,
}

impl Flows {
    /// All of them.
    pub const ALL: [Flows; 4] = [Flows::Tcp4, Flows::Udp4, Flows::Tcp6, Flows::Udp6];

    /// ethtool's word for it.
    pub fn name(self) -> &'static str {
        match self {
            Flows::Tcp4 => "tcp4",
            Flows::Udp4 => "udp4",
            Flows::Tcp6 => "tcp6",
            Flows::Udp6 => "udp6",
        }
    }

    /// As linux/ethtool.h numbers it (TCP_V4_FLOW and so on).
    fn number(self) -> u32 {
        match self {
            Flows::Tcp4 => 1,
            Flows::Udp4 => 2,
            Flows::Tcp6 => 5,
            Flows::Udp6 => 6,
        }
    }
}

/// What of a packet is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashFields {
    /// source and destination address
    pub addresses: bool,
    /// source and destination port
    pub ports: bool,
    /// something else or less than that, so the hash cannot be foretold: VLAN, Ethernet destination, protocol, one address or port only
    pub others: bool,
}

/// A number that is in use, and the most the device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounded {
    /// in use
    pub now: u32,
    /// at most
    pub max: u32,
}

/// Queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    /// that only receive
    pub rx: Bounded,
    /// that only transmit
    pub tx: Bounded,
    /// that do both
    pub combined: Bounded,
}

/// Slots of the rings of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rings {
    /// for frames to be received
    pub rx: Bounded,
    /// for frames to be sent
    pub tx: Bounded,
}

/// How long the device collects before it interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coalescing {
    /// microseconds after a frame came
    pub rx_us: u32,
    /// or so many frames
    pub rx_frames: u32,
    /// microseconds after a frame went
    pub tx_us: u32,
    /// or so many frames
    pub tx_frames: u32,
    /// the driver chooses for receiving as load changes
    pub adaptive_rx: bool,
    /// and for sending
    pub adaptive_tx: bool,
}

/// Flow control by PAUSE frames (IEEE 802.3 annex 31B).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// it is agreed with the other end
    pub autonegotiated: bool,
    /// we stop when told to
    pub rx: bool,
    /// we tell the other end to stop when our rings are full
    pub tx: bool,
}

/// A feature that ethtool -k shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// it is on
    pub on: bool,
    /// it cannot be changed
    pub fixed: bool,
}

impl Nic {
    /// The device of this name. Nothing is asked yet.
    pub fn of(interface: &str) -> Nic {
        Nic(Box::new(Interface(interface.to_owned())))
    }

    /// Receive-side scaling. A device that has a table, but does not tell its key, gives an empty one.
    ///
    /// # Errors
    /// The kernel's.
    pub fn rss(&self) -> io::Result<Option<Rss>> {
        let mut sizes = [0; RXFH_WORDS];
        sizes[0] = ETHTOOL_GRSSH;
        if optional(self.0.ask(&mut sizes))?.is_none() {
            return Ok(self.table_alone()?.filter(|rss| !rss.table.is_empty()));
        }
        let (entries, key_bytes) = (sane(sizes[RXFH_INDIR_SIZE])?, sane(sizes[RXFH_KEY_SIZE])?);
        if entries == 0 {
            return Ok(None);
        }
        let mut words = vec![0; RXFH_WORDS + entries + key_bytes.div_ceil(4)];
        words[0] = ETHTOOL_GRSSH;
        words[RXFH_INDIR_SIZE] = entries as u32;
        words[RXFH_KEY_SIZE] = key_bytes as u32;
        self.0.ask(&mut words)?;
        let [function, transformation, ..] = words[RXFH_FUNCTION].to_ne_bytes();
        let (table, key) = words[RXFH_WORDS..].split_at(entries);
        let key: Vec<u8> = key.iter().flat_map(|word| word.to_ne_bytes()).take(key_bytes).collect();
        let function = match function {
            1 => HashFunction::Toeplitz,
            2 => HashFunction::Xor,
            4 => HashFunction::Crc32,
            _ => HashFunction::Unknown,
        };
        Ok(Some(Rss { table: table.to_vec(), key, function, symmetric: transformation != 0 }))
    }

    /// By the older command, for drivers that know no key.
    fn table_alone(&self) -> io::Result<Option<Rss>> {
        let mut size = [ETHTOOL_GRXFHINDIR, 0];
        if optional(self.0.ask(&mut size))?.is_none() {
            return Ok(None);
        }
        let entries = sane(size[1])?;
        let mut words = vec![0; 2 + entries];
        words[..2].copy_from_slice(&[ETHTOOL_GRXFHINDIR, entries as u32]);
        self.0.ask(&mut words)?;
        let table = words.split_off(2);
        Ok(Some(Rss { table, key: Vec::new(), function: HashFunction::Unknown, symmetric: false }))
    }

    /// Writes the table, which has as many entries as [`Nic::rss`] tells.
    ///
    /// # Errors
    /// The kernel's: InvalidInput for another number of entries or a queue that is not there.
    pub fn set_rss_table(&self, table: &[u32]) -> io::Result<Option<()>> {
        let mut words = vec![ETHTOOL_SRXFHINDIR, table.len() as u32];
        // a size of 0 means "as the driver began"
        if table.is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        words.extend_from_slice(table);
        optional(self.0.ask(&mut words))
    }

    /// Writes the key, which is as long as [`Nic::rss`] tells; the table stays.
    ///
    /// # Errors
    /// The kernel's: InvalidInput for another length.
    pub fn set_rss_key(&self, key: &[u8]) -> io::Result<Option<()>> {
        // what is not to change goes back as it came: older kernels want a zero where newer have the transformation
        let mut words = vec![0; RXFH_WORDS];
        words[0] = ETHTOOL_GRSSH;
        if optional(self.0.ask(&mut words))?.is_none() {
            return Ok(None);
        }
        words[0] = ETHTOOL_SRSSH;
        words[RXFH_INDIR_SIZE] = ETH_RXFH_INDIR_NO_CHANGE;
        words[RXFH_KEY_SIZE] = key.len() as u32;
        words.extend(key.chunks(4).map(|part| {
            let mut bytes = [0; 4];
            bytes[..part.len()].copy_from_slice(part);
            u32::from_ne_bytes(bytes)
        }));
        optional(self.0.ask(&mut words))
    }

    /// What of such packets is hashed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn hash_fields(&self, flows: Flows) -> io::Result<Option<HashFields>> {
        let mut words = [0; RXNFC_WORDS];
        words[..2].copy_from_slice(&[ETHTOOL_GRXFH, flows.number()]);
        if optional(self.0.ask(&mut words))?.is_none() {
            return Ok(None);
        }
        let bits = two_words(words[2], words[3]);
        // RXH_IP_SRC and RXH_IP_DST, RXH_L4_B_0_1 and RXH_L4_B_2_3
        let (both_addresses, both_ports) = (0b11 << 4, 0b11 << 6);
        let whole = |both: u64| bits & both == both;
        let (addresses, ports) = (whole(both_addresses), whole(both_ports));
        let known = if addresses { both_addresses } else { 0 } | if ports { both_ports } else { 0 };
        Ok(Some(HashFields { addresses, ports, others: bits & !known != 0 }))
    }

    /// Rules of the flow classifier (`ethtool -n`).
    ///
    /// # Errors
    /// The kernel's.
    pub fn flow_rules(&self) -> io::Result<Option<u32>> {
        let mut words = [0; RXNFC_WORDS];
        words[0] = ETHTOOL_GRXCLSRLCNT;
        Ok(optional(self.0.ask(&mut words))?.map(|()| words[RXNFC_RULES]))
    }

    /// Queues.
    ///
    /// # Errors
    /// The kernel's.
    pub fn channels(&self) -> io::Result<Option<Channels>> {
        // most rx, tx, other, combined, then the counts in the same order
        Ok(self.fixed::<9>(ETHTOOL_GCHANNELS)?.map(|words| {
            let of = |at: usize| Bounded { now: words[at + 4], max: words[at] };
            Channels { rx: of(1), tx: of(2), combined: of(4) }
        }))
    }

    /// Rings.
    ///
    /// # Errors
    /// The kernel's.
    pub fn rings(&self) -> io::Result<Option<Rings>> {
        // most rx, mini, jumbo, tx, then the counts in the same order
        Ok(self.fixed::<9>(ETHTOOL_GRINGPARAM)?.map(|words| {
            let of = |at: usize| Bounded { now: words[at + 4], max: words[at] };
            Rings { rx: of(1), tx: of(4) }
        }))
    }

    /// Interrupt coalescing.
    ///
    /// # Errors
    /// The kernel's.
    pub fn coalescing(&self) -> io::Result<Option<Coalescing>> {
        Ok(self.fixed::<23>(ETHTOOL_GCOALESCE)?.map(|words| Coalescing {
            rx_us: words[1],
            rx_frames: words[2],
            tx_us: words[5],
            tx_frames: words[6],
            adaptive_rx: words[10] != 0,
            adaptive_tx: words[11] != 0,
        }))
    }

    /// Flow control.
    ///
    /// # Errors
    /// The kernel's.
    pub fn pause(&self) -> io::Result<Option<Pause>> {
        Ok(self.fixed::<4>(ETHTOOL_GPAUSEPARAM)?.map(|words| Pause {
            autonegotiated: words[1] != 0,
            rx: words[2] != 0,
            tx: words[3] != 0,
        }))
    }

    /// Every feature by its name in the kernel, as `ethtool -k` shows those it has no shorter word for.
    ///
    /// # Errors
    /// The kernel's.
    pub fn features(&self) -> io::Result<BTreeMap<String, Feature>> {
        // command, reserved, a mask of sets as one u64, and for each set of the mask the number of its strings
        let mut info = [ETHTOOL_GSSET_INFO, 0, 0, 0, 0];
        let mask = (1u64 << ETH_SS_FEATURES).to_ne_bytes();
        info[2..4].copy_from_slice(&[word(&mask[..4]), word(&mask[4..])]);
        self.0.ask(&mut info)?;
        let count = sane(info[4])?;
        let mut strings = vec![0; 3 + count * ETH_GSTRING_BYTES / 4];
        strings[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count as u32]);
        self.0.ask(&mut strings)?;
        // a block holds 32 features: available, requested, active, never changed
        let blocks = count.div_ceil(32);
        let mut words = vec![0; 2 + blocks * 4];
        words[..2].copy_from_slice(&[ETHTOOL_GFEATURES, blocks as u32]);
        self.0.ask(&mut words)?;
        let names: Vec<u8> = strings[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut features = BTreeMap::new();
        for (at, name) in names.chunks_exact(ETH_GSTRING_BYTES).enumerate() {
            let name: Vec<u8> = name.iter().copied().take_while(|byte| *byte != 0).collect();
            let block = &words[2 + at / 32 * 4..];
            let bit = |word: usize| block[word] >> (at % 32) & 1 != 0;
            if !name.is_empty() {
                let feature = Feature { on: bit(2), fixed: !bit(0) || bit(3) };
                features.insert(String::from_utf8_lossy(&name).into_owned(), feature);
            }
        }
        Ok(features)
    }

    /// An answer of known length.
    fn fixed<const N: usize>(&self, command: u32) -> io::Result<Option<[u32; N]>> {
        let mut words = [0; N];
        words[0] = command;
        Ok(optional(self.0.ask(&mut words))?.map(|()| words))
    }
}

impl std::fmt::Debug for Nic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Nic")
    }
}

/// "The device cannot" is an answer.
fn optional(answer: io::Result<()>) -> io::Result<Option<()>> {
    match answer {
        Ok(()) => Ok(Some(())),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A count from the kernel that memory is allocated by.
fn sane(count: u32) -> io::Result<usize> {
    let count = count as usize;
    if count > SANE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("the driver tells of {count} entries")));
    }
    Ok(count)
}

fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().copied().map_or(0, u32::from_ne_bytes)
}

/// A u64 that lies in two words.
fn two_words(first: u32, second: u32) -> u64 {
    let (first, second) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes(std::array::from_fn(|at| if at < 4 { first[at] } else { second[at - 4] }))
}

#[cfg(test)]
mod tests;
