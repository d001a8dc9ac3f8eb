//! A light TCP peer, written by hand: it keeps 16 bytes a connection, writes whole segments from a template and follows the server's
//! stream by its numbers. The pipe loses and reorders nothing, so whatever is not the next segment in order, acknowledging all
//! that was sent, is an error, retransmissions included. Deliberately a second implementation of headers and checksums,
//! independent of crates stack and wire, so that a mistake there cannot hide here.
//!
//! Left out: everything that a lossless peer does not need (retransmission, congestion control, reassembly, timers). SACK and
//! timestamps are offered, and every segment carries timestamps, as those of common clients do.

use crate::queries::sum16;
use anyhow::{Result, anyhow, ensure};
use base::{Burst, Instant};
use port::pipe::Pipe;
use port::{Mac, Port as _};
use std::net::{Ipv4Addr, SocketAddrV4};

pub(crate) const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
const ACK: u8 = 16;

const ETHERNET_BYTES: usize = 14;
const TCP_AT: usize = ETHERNET_BYTES + 20;
const OPTIONS_AT: usize = TCP_AT + 20;
/// Ethernet, IPv4, TCP with timestamps
const HEADER_BYTES: usize = OPTIONS_AT + 12;
const SYN_BYTES: usize = OPTIONS_AT + 20;
const TCP: u8 = 6;
/// Data bytes of a full segment at an MTU of 1500, timestamps counted.
pub(crate) const SEGMENT_BYTES: usize = 1448;
const MSS: u16 = 1460;
const WINDOW_SCALE: u8 = 8;

/// Connections come from the addresses of 198.19.0.0/16, so many from each.
const PORTS: u64 = 8192;
const FIRST_PORT: u16 = 20_000;
const FIRST_ADDRESS: u32 = 0xc613_0000;
/// Connections after which addresses and ports begin again.
pub(super) const TUPLES: u64 = PORTS << 16;
/// One segment in so many has its checksums verified, besides those of handshakes.
const CHECK_EVERY: u64 = 64;

/// One connection as the peer sees it.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// the next number of ours
    snd_nxt: u32,
    /// the next number of the server's
    rcv_nxt: u32,
    /// the server's clock, to be echoed
    ts_recent: u32,
    /// a SYN was sent and is not answered yet
    asking: bool,
}

/// A segment that arrived in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival<'f> {
    /// the connection's place, from 0 on
    pub(crate) slot: usize,
    /// its control bits
    flags: u8,
    /// its data
    pub(crate) payload: &'f [u8],
}

impl Arrival<'_> {
    /// Whether the server has finished.
    pub(crate) fn is_fin(&self) -> bool {
        self.flags & FIN != 0
    }

    /// Whether it answers a SYN.
    pub(crate) fn is_syn(&self) -> bool {
        self.flags & SYN != 0
    }
}

/// The peer at its end of the pipe.
#[derive(Debug)]
pub(crate) struct Peer {
    port: Pipe,
    links: Box<[Link]>,
    /// the number of the connection in the first place; it says from which address and port
    first: u64,
    server: SocketAddrV4,
    header: [u8; HEADER_BYTES],
    clock_ms: u32,
    window: u16,
    out: Burst,
    sent: u64,
    received: u64,
}

impl Peer {
    /// A peer with so many places for connections, which the server may send `window_bytes` before it hears from them.
    pub(crate) fn new(port: Pipe, macs: [Mac; 2], server: SocketAddrV4, slots: usize, window_bytes: usize) -> Peer {
        let mut header = [0; HEADER_BYTES];
        header[..6].copy_from_slice(&macs[1]);
        header[6..12].copy_from_slice(&macs[0]);
        // version and length, DF, TTL, protocol
        header[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, TCP]);
        header[30..34].copy_from_slice(&server.ip().octets());
        header[36..38].copy_from_slice(&server.port().to_be_bytes());
        header[OPTIONS_AT..OPTIONS_AT + 4].copy_from_slice(&[1, 1, 8, 10]);
        Peer {
            port,
            links: vec![Link::default(); slots].into(),
            first: 0,
            server,
            header,
            clock_ms: 0,
            window: (window_bytes >> WINDOW_SCALE).clamp(1, usize::from(u16::MAX)) as u16,
            out: Burst::new(),
            sent: 0,
            received: 0,
        }
    }

    /// Places for connections.
    pub(crate) fn slots(&self) -> usize {
        self.links.len()
    }

    /// Segments sent and received.
    pub(crate) fn moved(&self) -> u64 {
        self.sent + self.received
    }

    /// Moves the peer's clock, which its timestamps show.
    pub(crate) fn set_time(&mut self, now: Instant) {
        self.clock_ms = (now.as_nanos() / 1_000_000) as u32 + 1;
    }

    /// From now on the places stand for other connections, which were not used before.
    pub(crate) fn renew(&mut self) {
        self.first = (self.first + self.links.len() as u64) % TUPLES;
    }

    pub(super) fn source(&self, slot: usize) -> SocketAddrV4 {
        let number = (self.first + slot as u64) % TUPLES;
        let address = Ipv4Addr::from_bits(FIRST_ADDRESS + (number / PORTS) as u32);
        SocketAddrV4::new(address, FIRST_PORT + (number % PORTS) as u16)
    }

    /// The place of the connection that has this address and port.
    pub(super) fn slot(&self, address: Ipv4Addr, port: u16) -> Option<usize> {
        let port = u64::from(port.checked_sub(FIRST_PORT)?);
        let address = u64::from(address.to_bits().checked_sub(FIRST_ADDRESS)?);
        let number = address * PORTS + port;
        let slot = ((number + TUPLES).checked_sub(self.first)? % TUPLES) as usize;
        (port < PORTS && number < TUPLES && slot < self.links.len()).then_some(slot)
    }

    /// Asks for a connection in this place.
    pub(crate) fn open(&mut self, slot: usize) -> Result<()> {
        let iss = (self.first as u32).wrapping_add(slot as u32).wrapping_mul(0x9e37_79b9);
        self.links[slot] = Link { snd_nxt: iss.wrapping_add(1), rcv_nxt: 0, ts_recent: 0, asking: true };
        let mut frame = self.port.take().ok_or_else(|| anyhow!("frames were lost"))?;
        frame.set_len(SYN_BYTES);
        let bytes = frame.bytes_mut();
        bytes[..OPTIONS_AT].copy_from_slice(&self.header[..OPTIONS_AT]);
        let [mss_high, mss_low] = MSS.to_be_bytes();
        bytes[OPTIONS_AT..OPTIONS_AT + 8].copy_from_slice(&[2, 4, mss_high, mss_low, 4, 2, 8, 10]);
        bytes[OPTIONS_AT + 8..OPTIONS_AT + 12].copy_from_slice(&self.clock_ms.to_be_bytes());
        bytes[OPTIONS_AT + 12..].copy_from_slice(&[0, 0, 0, 0, 1, 3, 3, WINDOW_SCALE]);
        self.finish(bytes, slot, Fields { seq: iss, ack: 0, flags: SYN, window: u16::MAX }, &[]);
        self.out.push(frame);
        self.push_if_full();
        Ok(())
    }

    /// Sends one segment that acknowledges all that came; `flags` adds to ACK.
    pub(crate) fn send(&mut self, slot: usize, flags: u8, payload: &[u8]) -> Result<()> {
        let mut frame = self.port.take().ok_or_else(|| anyhow!("frames were lost"))?;
        let link = &mut self.links[slot];
        let (seq, ack, echo) = (link.snd_nxt, link.rcv_nxt, link.ts_recent);
        link.snd_nxt = seq.wrapping_add(payload.len() as u32 + u32::from(flags & FIN));
        frame.set_len(HEADER_BYTES + payload.len());
        let bytes = frame.bytes_mut();
        bytes[..HEADER_BYTES].copy_from_slice(&self.header);
        bytes[OPTIONS_AT + 4..OPTIONS_AT + 8].copy_from_slice(&self.clock_ms.to_be_bytes());
        bytes[OPTIONS_AT + 8..HEADER_BYTES].copy_from_slice(&echo.to_be_bytes());
        bytes[HEADER_BYTES..].copy_from_slice(payload);
        self.finish(bytes, slot, Fields { seq, ack, flags: flags | ACK, window: self.window }, payload);
        self.out.push(frame);
        self.push_if_full();
        Ok(())
    }

    /// What every segment needs, checksums last.
    fn finish(&self, bytes: &mut [u8], slot: usize, fields: Fields, payload: &[u8]) {
        let Fields { seq, ack, flags, window } = fields;
        let (source, tcp_bytes) = (self.source(slot), bytes.len() - TCP_AT);
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

    fn push_if_full(&mut self) {
        self.sent += 1;
        if self.out.is_full() {
            self.port.transmit(&mut self.out);
        }
    }

    /// Hands what was sent to the server's end.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.port.transmit(&mut self.out);
        self.port.flush();
        ensure!(self.port.stats().dropped.get() == 0, "the pipe is too small for what the peer sends");
        Ok(())
    }

    /// Up to a burst of what has arrived, each frame to be shown to [`Peer::accept`] and given back; how many.
    pub(crate) fn receive(&mut self, burst: &mut Burst) -> usize {
        self.port.receive(burst, base::BURST_FRAMES)
    }

    /// Takes a frame home.
    pub(crate) fn give(&mut self, frame: base::Frame) {
        self.port.give(frame);
    }

    /// Reads a segment, which must be the next of its connection.
    pub(crate) fn accept<'f>(&mut self, frame: &'f [u8]) -> Result<Arrival<'f>> {
        self.received += 1;
        let segment = parse(frame, self.server).ok_or_else(|| anyhow!("something came that is no segment of ours"))?;
        let Some(slot) = self.slot(segment.client, segment.port) else {
            return Err(anyhow!("a segment came for {}:{}, which is nobody's", segment.client, segment.port));
        };
        let link = &mut self.links[slot];
        let Segment { flags, seq, ack, payload, .. } = segment;
        ensure!(flags & RST == 0, "connection {slot} was reset");
        let syn = flags & SYN != 0;
        ensure!(syn == link.asking, "connection {slot}: {} SYN-ACK", if syn { "another" } else { "data before the" });
        if syn {
            link.asking = false;
            link.rcv_nxt = seq;
        }
        ensure!(
            seq == link.rcv_nxt,
            "connection {slot}: a segment {} bytes off the next in order",
            seq.wrapping_sub(link.rcv_nxt).cast_signed()
        );
        ensure!(flags & ACK != 0 && ack == link.snd_nxt, "connection {slot}: not all that was sent is acknowledged");
        link.rcv_nxt = seq.wrapping_add(payload.len() as u32 + u32::from(syn) + u32::from(flags & FIN));
        let clock = segment.clock.ok_or_else(|| anyhow!("connection {slot}: a segment without timestamps"))?;
        ensure!(clock.wrapping_sub(link.ts_recent).cast_signed() >= 0 || syn, "connection {slot}: the clock went back");
        link.ts_recent = clock;
        if syn || self.received.is_multiple_of(CHECK_EVERY) {
            ensure!(checksums_are_good(frame), "connection {slot}: a wrong checksum");
        }
        Ok(Arrival { slot, flags, payload })
    }
}

/// What differs from one header of ours to the next.
struct Fields {
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
}

/// A segment of the server's.
struct Segment<'f> {
    client: Ipv4Addr,
    port: u16,
    flags: u8,
    seq: u32,
    ack: u32,
    clock: Option<u32>,
    payload: &'f [u8],
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn parse(frame: &[u8], server: SocketAddrV4) -> Option<Segment<'_>> {
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
fn checksums_are_good(frame: &[u8]) -> bool {
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

#[cfg(test)]
impl Peer {
    /// Has the places stand for the connections from this one on.
    pub(super) fn begin_at(&mut self, first: u64) {
        self.first = first;
    }
}
