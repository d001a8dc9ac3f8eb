//! Writing a header. The options stand in a fixed order, each on a boundary of four bytes:
//!
//! ```text
//! SYN    MSS | SACK-permitted timestamps | NOP window-scale     (20 bytes with all of them)
//! other  NOP NOP timestamps | NOP NOP SACK                      (12 bytes without SACK, RFC 7323 appendix A)
//! ```

use super::{ALIGNED_TIMESTAMPS, Flags, HEADER_BYTES, MAX_HEADER_BYTES, MAX_WINDOW_SCALE, SackBlock, Timestamps, kind};
use crate::Sum;
use base::Seq;

/// Where the checksum's share of the payload comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadSum {
    /// its sum is known, as if it began at an even offset; [`Sum::ZERO`] when there is none
    Known(Sum),
    /// A device sums header and payload: the field gets the folded pseudo-header sum. The pseudo-header's length is
    /// that of the segment as handed over, whatever it is cut into.
    Device,
}

/// What a header says. Default fields are zero, default options absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header<'a> {
    /// source port
    pub src_port: u16,
    /// destination port
    pub dst_port: u16,
    /// sequence number of the first byte, or of the SYN
    pub seq: Seq,
    /// the next sequence number expected; significant with ACK set
    pub ack: Seq,
    /// control bits; with SYN the options of a SYN are written, without it those of other segments
    pub flags: Flags,
    /// the window field, scaled down already
    pub window: u16,
    /// the urgent field
    pub urgent: u16,
    /// clocks
    pub timestamps: Option<Timestamps>,
    /// SACK blocks, the most recent first (RFC 2018 section 4); what does not fit, three beside timestamps and four
    /// without, is left out. Not written with SYN.
    pub sack: &'a [SackBlock],
    /// largest segment we take; SYN only
    pub mss: Option<u16>,
    /// shift of our windows, at most 14; SYN only
    pub window_scale: Option<u8>,
    /// we understand SACK; SYN only
    pub sack_permitted: bool,
}

impl Header<'_> {
    /// Bytes that [`Header::write`] takes, a multiple of four.
    #[inline]
    pub fn bytes(&self) -> usize {
        let timestamps = if self.timestamps.is_some() { 12 } else { 0 };
        if self.flags.contains(Flags::SYN) {
            let mss = if self.mss.is_some() { 4 } else { 0 };
            let scale = if self.window_scale.is_some() { 4 } else { 0 };
            let alone = if self.sack_permitted && timestamps == 0 { 4 } else { 0 };
            return HEADER_BYTES + mss + timestamps + alone + scale;
        }
        let sack = match self.sack_that_fits().len() {
            0 => 0,
            blocks => 4 + 8 * blocks,
        };
        HEADER_BYTES + timestamps + sack
    }

    /// Writes the header to the front of `out`; the payload stands, or will stand, behind it. `pseudo` is the sum of
    /// the pseudo-header of the whole segment. Returns the header's bytes.
    ///
    /// # Panics
    /// When `out` is shorter than [`Header::bytes`].
    #[inline]
    pub fn write(&self, out: &mut [u8], pseudo: Sum, payload: PayloadSum) -> usize {
        let bytes = self.bytes();
        let out = &mut out[..bytes];
        let (head, options) = out.split_first_chunk_mut::<HEADER_BYTES>().expect("a header has 20 bytes at least");
        head[..2].copy_from_slice(&self.src_port.to_be_bytes());
        head[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        head[4..8].copy_from_slice(&self.seq.to_be_bytes());
        head[8..12].copy_from_slice(&self.ack.to_be_bytes());
        let offset_and_flags = (bytes as u16 / 4) << 12 | self.flags.bits();
        head[12..14].copy_from_slice(&offset_and_flags.to_be_bytes());
        head[14..16].copy_from_slice(&self.window.to_be_bytes());
        head[16..18].fill(0);
        head[18..].copy_from_slice(&self.urgent.to_be_bytes());
        let sum = match (options.first_chunk_mut::<12>(), self.timestamps) {
            // the usual case: timestamps and nothing else
            (Some(only), Some(timestamps)) if bytes == HEADER_BYTES + 12 && !self.flags.contains(Flags::SYN) => {
                put_timestamps(only, ALIGNED_TIMESTAMPS, timestamps);
                let Timestamps { value, echo } = timestamps;
                pseudo.four(ALIGNED_TIMESTAMPS).four(value.to_be_bytes()).four(echo.to_be_bytes())
            }
            (None, _) if bytes == HEADER_BYTES => pseudo,
            _ => {
                self.write_options(options);
                pseudo.bytes(options)
            }
        };
        let checksum = match payload {
            PayloadSum::Known(payload) => {
                // of the numbers, see `Sum::four`
                let sum = sum.word(self.src_port).word(self.dst_port).word(offset_and_flags);
                let sum = sum.word(self.window).word(self.urgent).join(payload);
                sum.four(self.seq.to_be_bytes()).four(self.ack.to_be_bytes()).checksum()
            }
            PayloadSum::Device => pseudo.partial(),
        };
        out[16..18].copy_from_slice(&checksum);
        bytes
    }

    fn write_options(&self, mut out: &mut [u8]) {
        let syn = self.flags.contains(Flags::SYN);
        if let Some(mss) = self.mss.filter(|_| syn) {
            put4(&mut out, [kind::MSS, 4, (mss >> 8) as u8, mss as u8]);
        }
        let permitted = [kind::SACK_PERMITTED, 2];
        match self.timestamps {
            Some(timestamps) => {
                let front = match syn && self.sack_permitted {
                    true => [permitted[0], permitted[1], kind::TIMESTAMPS, 10],
                    false => ALIGNED_TIMESTAMPS,
                };
                let (option, rest) = out.split_first_chunk_mut::<12>().expect("room for timestamps");
                put_timestamps(option, front, timestamps);
                out = rest;
            }
            None if syn && self.sack_permitted => {
                put4(&mut out, [kind::NOP, kind::NOP, permitted[0], permitted[1]]);
            }
            None => {}
        }
        if let Some(scale) = self.window_scale.filter(|_| syn) {
            put4(&mut out, [kind::NOP, kind::WINDOW_SCALE, 3, scale.min(MAX_WINDOW_SCALE)]);
        }
        let sack = self.sack_that_fits();
        if !sack.is_empty() {
            put4(&mut out, [kind::NOP, kind::NOP, kind::SACK, (2 + 8 * sack.len()) as u8]);
            for block in sack {
                put4(&mut out, block.left.to_be_bytes());
                put4(&mut out, block.right.to_be_bytes());
            }
        }
        debug_assert!(out.is_empty(), "options and their room disagree");
    }

    /// The blocks that are written.
    #[inline]
    fn sack_that_fits(&self) -> &[SackBlock] {
        if self.flags.contains(Flags::SYN) {
            return &[];
        }
        let room_bytes = MAX_HEADER_BYTES - HEADER_BYTES - 4 - if self.timestamps.is_some() { 12 } else { 0 };
        &self.sack[..self.sack.len().min(room_bytes / 8)]
    }
}

/// Writes four bytes and steps over them.
fn put4(out: &mut &mut [u8], four: [u8; 4]) {
    let (room, rest) = std::mem::take(out).split_first_chunk_mut::<4>().expect("room for an option");
    *room = four;
    *out = rest;
}

#[inline]
fn put_timestamps(out: &mut [u8; 12], front: [u8; 4], timestamps: Timestamps) {
    out[..4].copy_from_slice(&front);
    out[4..8].copy_from_slice(&timestamps.value.to_be_bytes());
    out[8..].copy_from_slice(&timestamps.echo.to_be_bytes());
}
