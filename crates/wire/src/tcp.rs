//! TCP (RFC 9293 section 3.1): a view of a segment, its options read once, and a builder with a fixed layout.
//!
//! The view is strict about what would make bytes ambiguous (a header that does not fit) and lenient about options, as
//! RFC 9293 MUST-6 and MUST-7 ask: unknown kinds are stepped over, an illegal length ends the reading and is told in
//! [`Options::malformed`], and a known kind with a wrong length counts as absent. Options that belong to a SYN are not
//! seen in other segments.
//!
//! Left out: the user timeout (RFC 5482), fast open (RFC 7413), MD5 and authentication (RFC 2385, RFC 5925), multipath
//! (RFC 8684). A peer that offers them goes on without when they are not answered.

mod build;
#[cfg(test)]
mod tests;

pub use build::{Header, PayloadSum};

use crate::{Sum, array, be16};
use base::Seq;
use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// Bytes of a header without options.
pub const HEADER_BYTES: usize = 20;
/// Bytes of a header with as many options as the data offset can tell.
pub const MAX_HEADER_BYTES: usize = 60;
/// The largest shift of a window (RFC 7323 section 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;
/// SACK blocks that fit without any other option.
pub const MAX_SACK_BLOCKS: usize = 4;

/// Kinds of options (RFC 9293 section 3.2, RFC 7323, RFC 2018).
mod kind {
    pub(super) const END: u8 = 0;
    pub(super) const NOP: u8 = 1;
    pub(super) const MSS: u8 = 2;
    pub(super) const WINDOW_SCALE: u8 = 3;
    pub(super) const SACK_PERMITTED: u8 = 4;
    pub(super) const SACK: u8 = 5;
    pub(super) const TIMESTAMPS: u8 = 8;
}

/// NOP NOP timestamps, as nearly every segment begins its options (RFC 7323 appendix A).
const ALIGNED_TIMESTAMPS: [u8; 4] = [kind::NOP, kind::NOP, kind::TIMESTAMPS, 10];

/// Control bits of a header, the nine lowest of bytes 12 and 13.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(u16);

impl Flags {
    /// no bit
    pub const NONE: Flags = Flags(0);
    /// no more data from the sender
    pub const FIN: Flags = Flags(0x01);
    /// synchronize sequence numbers
    pub const SYN: Flags = Flags(0x02);
    /// reset the connection
    pub const RST: Flags = Flags(0x04);
    /// push
    pub const PSH: Flags = Flags(0x08);
    /// the acknowledgement field is significant
    pub const ACK: Flags = Flags(0x10);
    /// the urgent field is significant
    pub const URG: Flags = Flags(0x20);
    /// ECN echo (RFC 3168 section 6.1)
    pub const ECE: Flags = Flags(0x40);
    /// congestion window reduced (RFC 3168 section 6.1)
    pub const CWR: Flags = Flags(0x80);
    /// accurate ECN (RFC 9768), once the nonce sum
    pub const AE: Flags = Flags(0x100);

    /// Whether every bit of `all` is set.
    #[inline]
    pub const fn contains(self, all: Flags) -> bool {
        self.0 & all.0 == all.0
    }

    /// Whether some bit of `any` is set.
    #[inline]
    pub const fn intersects(self, any: Flags) -> bool {
        self.0 & any.0 != 0
    }

    /// Only the bits that `mask` has too.
    #[inline]
    #[must_use]
    pub const fn only(self, mask: Flags) -> Flags {
        Flags(self.0 & mask.0)
    }

    /// The bits as a number, FIN the lowest and AE the highest of nine.
    #[inline]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The nine lowest bits of a number.
    #[inline]
    pub const fn from_bits(bits: u16) -> Flags {
        Flags(bits & 0x1ff)
    }

    /// The sequence numbers that the bits themselves take up: one for SYN, one for FIN (RFC 9293 section 3.4).
    #[inline]
    pub const fn sequence_bytes(self) -> u32 {
        (self.0 & 1) as u32 + (self.0 >> 1 & 1) as u32
    }
}

impl BitOr for Flags {
    type Output = Flags;
    #[inline]
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    #[inline]
    fn bitor_assign(&mut self, other: Flags) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 9] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR", "AE"];
        let mut set = (0..NAMES.len()).filter(|bit| self.0 >> bit & 1 == 1).map(|bit| NAMES[bit]);
        f.write_str(set.next().unwrap_or("-"))?;
        set.try_for_each(|name| write!(f, "|{name}"))
    }
}

/// What the checksum of a segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// it verifies
    Good,
    /// it is the folded pseudo-header sum: the sender left the rest to a device
    Partial,
    /// neither
    Bad,
}

/// Why bytes are not a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// they end inside the fixed header
    Short,
    /// the data offset is below 5 or points beyond the end
    DataOffset,
}

/// The timestamps option (RFC 7323 section 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval, the sender's clock
    pub value: u32,
    /// TSecr, the clock of the other side as it came; significant with ACK set
    pub echo: u32,
}

/// A run of bytes that arrived beyond a gap, or twice (RFC 2018 section 3, RFC 2883).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlock {
    /// its first byte
    pub left: Seq,
    /// the byte after its last
    pub right: Seq,
}

/// The options of one segment. Whether what they say makes sense (an empty SACK block, an MSS of zero) is the stack's
/// to judge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options<'a> {
    /// clocks
    pub timestamps: Option<Timestamps>,
    sack: &'a [[u8; 8]],
    /// Largest segment that the sender takes; SYN only (RFC 9293 section 3.7.1)
    pub mss: Option<u16>,
    /// Shift of the sender's windows, at most 14; SYN only (RFC 7323 section 2.2)
    pub window_scale: Option<u8>,
    /// The sender understands SACK; SYN only (RFC 2018 section 2)
    pub sack_permitted: bool,
    /// An option had an illegal length; what stands behind it was not read (RFC 9293 MUST-7)
    pub malformed: bool,
}

impl<'a> Options<'a> {
    /// The SACK blocks in the order sent, at most four.
    #[inline]
    pub fn sack_blocks(&self) -> impl ExactSizeIterator<Item = SackBlock> + Clone + 'a {
        self.sack.iter().map(|block| {
            let [left, right] = [array(block, 0), array(block, 4)].map(Seq::from_be_bytes);
            SackBlock { left, right }
        })
    }

    #[inline]
    fn parse(bytes: &'a [u8], syn: bool) -> Options<'a> {
        // almost every segment has none, or the aligned timestamps alone (RFC 7323 appendix A)
        if bytes.is_empty() {
            return Options::default();
        }
        if let Some((head, rest)) = bytes.split_first_chunk::<12>()
            && rest.is_empty()
            && head.starts_with(&ALIGNED_TIMESTAMPS)
        {
            let timestamps = Some(read_timestamps(&head[2..]));
            return Options { timestamps, ..Options::default() };
        }
        Options::parse_any(bytes, syn)
    }

    /// The first mention of a kind counts.
    fn parse_any(mut bytes: &'a [u8], syn: bool) -> Options<'a> {
        let mut options = Options::default();
        while let [first, rest @ ..] = bytes {
            match *first {
                kind::END => break,
                kind::NOP => bytes = rest,
                kind => {
                    // RFC 9293 MUST-7: a length that is not there, does not cover itself or leaves the header
                    let len = rest.first().map_or(0, |len| usize::from(*len));
                    let Some((option, after)) = bytes.split_at_checked(len).filter(|_| len >= 2) else {
                        options.malformed = true;
                        break;
                    };
                    options.take(kind, option, syn);
                    bytes = after;
                }
            }
        }
        options
    }

    fn take(&mut self, kind: u8, option: &'a [u8], syn: bool) {
        match (kind, option.len()) {
            (kind::MSS, 4) if syn => {
                self.mss.get_or_insert(be16(option, 2));
            }
            (kind::WINDOW_SCALE, 3) if syn => {
                // RFC 7323 section 2.3: more than 14 means 14
                self.window_scale.get_or_insert(option[2].min(MAX_WINDOW_SCALE));
            }
            (kind::SACK_PERMITTED, 2) if syn => self.sack_permitted = true,
            (kind::TIMESTAMPS, 10) => {
                self.timestamps.get_or_insert(read_timestamps(option));
            }
            (kind::SACK, 10..) if self.sack.is_empty() => {
                let (blocks, rest) = option[2..].as_chunks::<8>();
                if rest.is_empty() {
                    self.sack = blocks;
                }
            }
            _ => {}
        }
    }
}

/// The option with its kind and length at the front.
#[inline]
fn read_timestamps(option: &[u8]) -> Timestamps {
    let [value, echo] = [array(option, 2), array(option, 6)].map(u32::from_be_bytes);
    Timestamps { value, echo }
}

/// A segment whose header fits.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a> {
    all: &'a [u8],
    head: &'a [u8; HEADER_BYTES],
    /// between [`HEADER_BYTES`] and the lesser of [`MAX_HEADER_BYTES`] and the bytes there are
    header_bytes: usize,
}

impl<'a> Tcp<'a> {
    /// The segment that `bytes` are: the payload of an IP packet, all of it and nothing of the link's padding.
    ///
    /// # Errors
    /// What is wrong with its form.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Tcp<'a>, Malformed> {
        let head = bytes.first_chunk::<HEADER_BYTES>().ok_or(Malformed::Short)?;
        let header_bytes = usize::from(head[12] >> 4) * 4;
        if header_bytes < HEADER_BYTES || header_bytes > bytes.len() {
            return Err(Malformed::DataOffset);
        }
        Ok(Tcp { all: bytes, head, header_bytes })
    }

    /// Source port.
    #[inline]
    pub fn src_port(&self) -> u16 {
        be16(self.head, 0)
    }

    /// Destination port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        be16(self.head, 2)
    }

    /// Sequence number of the first byte, or of the SYN.
    #[inline]
    pub fn seq(&self) -> Seq {
        Seq::from_be_bytes(array(self.head, 4))
    }

    /// The next sequence number that the sender expects; significant with ACK set.
    #[inline]
    pub fn ack(&self) -> Seq {
        Seq::from_be_bytes(array(self.head, 8))
    }

    /// Control bits.
    #[inline]
    pub fn flags(&self) -> Flags {
        Flags::from_bits(be16(self.head, 12))
    }

    /// The window field as it stands, not scaled (RFC 7323 section 2.2: never scaled in a SYN).
    #[inline]
    pub fn window(&self) -> u16 {
        be16(self.head, 14)
    }

    /// The urgent field; significant with URG set.
    #[inline]
    pub fn urgent(&self) -> u16 {
        be16(self.head, 18)
    }

    /// Bytes of the header, options among them.
    #[inline]
    pub fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// Bytes of header and payload.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.all.len()
    }

    /// What follows the header.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.all[self.header_bytes..]
    }

    /// The sequence numbers that the segment takes up: SEG.LEN of RFC 9293 section 3.4, SYN and FIN counted.
    #[inline]
    pub fn sequence_bytes(&self) -> u32 {
        (self.all.len() - self.header_bytes) as u32 + self.flags().sequence_bytes()
    }

    /// Reads the options.
    #[inline]
    pub fn options(&self) -> Options<'a> {
        Options::parse(&self.all[HEADER_BYTES..self.header_bytes], self.flags().contains(Flags::SYN))
    }

    /// Judges the checksum; `pseudo` is the sum of the pseudo-header.
    #[inline]
    pub fn verdict(&self, pseudo: Sum) -> Verdict {
        if pseudo.bytes(self.all).verifies() {
            Verdict::Good
        } else if array::<2>(self.head, 16) == pseudo.partial() {
            Verdict::Partial
        } else {
            Verdict::Bad
        }
    }
}

/// What an ICMP error quotes of a segment, which may be no more than this (RFC 792); enough to find the connection and
/// to see that the number was in flight (RFC 5927 section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// source port: the quoting packet's receiver sent it
    pub src_port: u16,
    /// destination port
    pub dst_port: u16,
    /// sequence number
    pub seq: Seq,
}

impl Quoted {
    /// The front of the quoted segment, `None` when there are fewer than eight bytes.
    pub fn parse(bytes: &[u8]) -> Option<Quoted> {
        let head = bytes.first_chunk::<8>()?;
        Some(Quoted { src_port: be16(head, 0), dst_port: be16(head, 2), seq: Seq::from_be_bytes(array(head, 4)) })
    }
}
