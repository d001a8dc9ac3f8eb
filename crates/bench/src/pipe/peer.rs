//! A light TCP peer, written by hand: it keeps 16 bytes a connection, writes whole segments from a template and follows the server's
//! stream by its numbers. The pipe loses and reorders nothing, so whatever is not the next segment in order, acknowledging all
//! that was sent, is an error, retransmissions included. Deliberately a second implementation of headers and checksums,
//! independent of crates stack and wire, so that a mistake there cannot hide here.
//!
//! Left out: everything that a lossless peer does not need (retransmission, congestion control, reassembly, timers). SACK and
//! timestamps are offered, and every segment carries timestamps, as those of common clients do.

use super::segment::{ACK, FIN, Fields, Maker, RST, SYN, Segment, WINDOW_SCALE, checksums_are_good, parse};
use anyhow::{Result, anyhow, ensure};
use base::{Burst, Instant};
use port::pipe::Pipe;
use port::{Mac, Port as _};
use std::net::{Ipv4Addr, SocketAddrV4};

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
    maker: Maker,
    clock_ms: u32,
    window: u16,
    out: Burst,
    sent: u64,
    received: u64,
}

impl Peer {
    /// A peer with so many places for connections, which the server may send `window_bytes` before it hears from them.
    pub(crate) fn new(port: Pipe, macs: [Mac; 2], server: SocketAddrV4, slots: usize, window_bytes: usize) -> Peer {
        Peer {
            port,
            links: vec![Link::default(); slots].into(),
            first: 0,
            server,
            maker: Maker::new(macs, server),
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
        self.maker.syn(&mut frame, self.source(slot), iss, self.clock_ms);
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
        let fields = Fields { seq, ack, flags: flags | ACK, window: self.window };
        self.maker.segment(&mut frame, self.source(slot), fields, [self.clock_ms, echo], payload);
        self.out.push(frame);
        self.push_if_full();
        Ok(())
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

#[cfg(test)]
impl Peer {
    /// Has the places stand for the connections from this one on.
    pub(super) fn begin_at(&mut self, first: u64) {
        self.first = first;
    }
}
