//! TCP segments as a light peer makes and reads them. Deliberately a second implementation of headers and checksums, independent of
//! crates stack and wire, so that a mistake there cannot hide here. IPv4 without options.

use crate::queries::sum16;
use base::Frame;
use port::Mac;
use std::net::{Ipv4Addr, SocketAddrV4};

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;

const ETHERNET_BYTES: usize = 14;
const TCP_AT: usize = ETHERNET_BYTES + 20;
const OPTIONS_AT: usize = TCP_AT + 20;
/// Ethernet, IPv4, TCP with timestamps
pub(super) const HEADER_BYTES: usize = OPTIONS_AT + 12;
const SYN_BYTES: usize = OPTIONS_AT + 20;
const TCP: u8 = 6;
/// Data bytes of a full segment at an MTU of 1500, timestamps counted.
pub(crate) const SEGMENT_BYTES: usize = 1448;
const MSS: u16 = 1460;
/// Windows are told in units of two to the power of this.
pub(crate) const WINDOW_SCALE: u8 = 8;

/// Makes segments of ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maker {
    header: [u8; HEADER_BYTES],
}

impl Maker {
    /// For segments from the first hardware address to the second one's server.
    pub(crate) fn new(macs: [Mac; 2], server: SocketAddrV4) -> Maker {
        let mut header = [0; HEADER_BYTES];
        header[..6].copy_from_slice(&macs[1]);
        header[6..12].copy_from_slice(&macs[0]);
        // version and length, DF, TTL, protocol
        header[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, TCP]);
        header[30..34].copy_from_slice(&server.ip().octets());
        header[36..38].copy_from_slice(&server.port().to_be_bytes());
        header[OPTIONS_AT..OPTIONS_AT + 4].copy_from_slice(&[1, 1, 8, 10]);
        Maker { header }
    }

    /// Makes `frame` one that asks for a connection.
    pub(crate) fn syn(&self, frame: &mut Frame, source: SocketAddrV4, iss: u32, clock_ms: u32) {
        frame.set_len(SYN_BYTES);
        let bytes = frame.bytes_mut();
        bytes[..OPTIONS_AT].copy_from_slice(&self.header[..OPTIONS_AT]);
        let [mss_high, mss_low] = MSS.to_be_bytes();
        bytes[OPTIONS_AT..OPTIONS_AT + 8].copy_from_slice(&[2, 4, mss_high, mss_low, 4, 2, 8, 10]);
        bytes[OPTIONS_AT + 8..OPTIONS_AT + 12].copy_from_slice(&clock_ms.to_be_bytes());
        bytes[OPTIONS_AT + 12..].copy_from_slice(&[0, 0, 0, 0, 1, 3, 3, WINDOW_SCALE]);
        finish(bytes, source, Fields { seq: iss, ack: 0, flags: SYN, window: u16::MAX }, &[]);
    }

    /// Makes `frame` a segment with our clock and the server's.
    pub(crate) fn segment(
        &self,
        frame: &mut Frame,
        source: SocketAddrV4,
        fields: Fields,
        [clock_ms, echo]: [u32; 2],
        payload: &[u8],
    ) {
        frame.set_len(HEADER_BYTES + payload.len());
        let bytes = frame.bytes_mut();
        bytes[..HEADER_BYTES].copy_from_slice(&self.header);
        bytes[OPTIONS_AT + 4..OPTIONS_AT + 8].copy_from_slice(&clock_ms.to_be_bytes());
        bytes[OPTIONS_AT + 8..HEADER_BYTES].copy_from_slice(&echo.to_be_bytes());
        bytes[HEADER_BYTES..].copy_from_slice(payload);
        finish(bytes, source, fields, payload);
    }
}

/// What every segment needs, checksums last.
fn finish(bytes: &mut [u8], source: SocketAddrV4, fields: Fields, payload: &[u8]) {
    let Fields { seq, ack, flags, window } = fields;
    let tcp_bytes = bytes.len() - TCP_AT;
    let header_bytes = tcp_bytes - payload.len();
    let ip_bytes = (bytes.len() - ETHERNET_BYTES) as u16;
    bytes[16..18].copy_from_slice(&ip_bytes.to_be_bytes());
    bytes[26..30].copy_from_slice(&source.ip().octets());
    let checksum = folded(sum16(&bytes[ETHERNET_BYTES..TCP_AT]));
    bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
    bytes[34..36].copy_from_slice(&source.port().to_be_bytes());
    bytes[38..42].copy_from_slice(&seq.to_be_bytes());
    bytes[42..46].copy_from_slice(&ack.to_be_bytes());
    bytes[46..48].copy_from_slice(&[(header_bytes as u8 / 4) << 4, flags]);
    bytes[48..50].copy_from_slice(&window.to_be_bytes());
    let sum = sum16(&bytes[26..TCP_AT + header_bytes]) + sum16(payload) + u32::from(TCP) + tcp_bytes as u32;
    bytes[50..52].copy_from_slice(&folded(sum).to_be_bytes());
}

/// What differs from one header of ours to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
}

/// A segment of the server's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'f> {
    pub(crate) client: Ipv4Addr,
    pub(crate) port: u16,
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// its TSval
    pub(crate) clock: Option<u32>,
    pub(crate) payload: &'f [u8],
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Reads a segment of the server's; None for anything else.
pub(crate) fn parse(frame: &[u8], server: SocketAddrV4) -> Option<Segment<'_>> {
    let header = frame.get(..OPTIONS_AT)?;
    let from_server = header[26..30] == server.ip().octets() && short(header, 34) == server.port();
    if header[12..15] != [8, 0, 0x45] || header[23] != TCP || !from_server {
        return None;
    }
    let payload_at = TCP_AT + usize::from(header[46] >> 4) * 4;
    let end = ETHERNET_BYTES + usize::from(short(header, 16));
    let options = frame.get(OPTIONS_AT..payload_at)?;
    Some(Segment {
        client: Ipv4Addr::from_bits(number(header, 30)),
        port: short(header, 36),
        flags: header[47],
        seq: number(header, 38),
        ack: number(header, 42),
        clock: clock(options),
        payload: frame.get(payload_at..end)?,
    })
}

/// TSval of a segment's options.
fn clock(options: &[u8]) -> Option<u32> {
    let mut at = 0;
    while at < options.len() {
        match options[at] {
            0 => return None,
            1 => at += 1,
            8 if options.len() >= at + 10 && options[at + 1] == 10 => return Some(number(options, at + 2)),
            _ => at += usize::from(*options.get(at + 1)?).max(2),
        }
    }
    None
}

/// Whether both checksums of a frame that was parsed are right.
pub(crate) fn checksums_are_good(frame: &[u8]) -> bool {
    let end = ETHERNET_BYTES + usize::from(short(frame, 16));
    let tcp_bytes = (end - TCP_AT) as u32;
    let segment = sum16(&frame[26..end]) + u32::from(TCP) + tcp_bytes;
    folded(sum16(&frame[ETHERNET_BYTES..TCP_AT])) == 0 && folded(segment) == 0
}

/// The ones' complement of the folded sum.
fn folded(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}
