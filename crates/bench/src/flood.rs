//! A port that sends a flood of SYNs beside what its owner sends: from addresses that are nobody's, at a rate, so that a server
//! is measured under it with one processor for the generator. Answers to the flood go to this interface's host, which drops them.
//!
//! Left out: IPv6, and floods of anything but SYNs.

use base::rng::Rng;
use base::{Burst, Frame, Seq};
use port::{Facts, Large, Mac, Outgoing, Port};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use wire::ethernet::{EtherType, HEADER_BYTES, Link};
use wire::tcp::{Flags, Header, PayloadSum};
use wire::{Protocol, Sum, ipv4};

/// The first of the flood's addresses, and how many there are: 10.0.0.0/8 less its ends.
const FIRST: u32 = 0x0a00_0001;
const ADDRESSES: u64 = 0x00ff_fffe;
/// What is due and was not sent after so long is not sent any more: the generator does not keep up.
const LATE: Duration = Duration::from_millis(20);

/// The flood.
#[derive(Debug)]
pub(crate) struct Flood {
    server: SocketAddrV4,
    hop: Mac,
    rate: f64,
    rng: Rng,
    begun: Option<Instant>,
    /// SYNs sent
    pub(crate) sent: u64,
    /// SYNs that were due and not sent
    pub(crate) missed: u64,
}

impl Flood {
    /// `rate` SYNs a second to `server`, whose hardware address, or its router's, is `hop`.
    pub(crate) fn new(server: SocketAddrV4, hop: Mac, rate: f64) -> Flood {
        Flood { server, hop, rate, rng: Rng::new(0x5359_4e21), begun: None, sent: 0, missed: 0 }
    }

    /// SYNs that are to go out now, `elapsed` after the first.
    fn due(&mut self, elapsed: Duration) -> u64 {
        let at = |elapsed: Duration| (elapsed.as_secs_f64() * self.rate) as u64;
        let (due, done) = (at(elapsed), self.sent + self.missed);
        self.missed += at(elapsed.saturating_sub(LATE)).saturating_sub(done);
        due.saturating_sub(self.sent + self.missed)
    }

    /// Makes `frame` the next SYN, with the options that a client of today sends.
    fn fill(&mut self, frame: &mut Frame, mac: Mac) {
        let random = self.rng.next_u64();
        let header = Header {
            src_port: 1024 + (random >> 48) as u16 % 64_000,
            dst_port: self.server.port(),
            seq: Seq::new(random as u32),
            flags: Flags::SYN,
            window: 64_240,
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            ..Header::default()
        };
        let src = Ipv4Addr::from_bits(FIRST + self.rng.below(ADDRESSES) as u32);
        let (dst, protocol, bytes) = (*self.server.ip(), Protocol::TCP, header.bytes());
        frame.set_len(HEADER_BYTES + ipv4::HEADER_BYTES + bytes);
        let out = frame.bytes_mut();
        Link { dst: self.hop, src: mac, tag: None, ether_type: EtherType::IPV4 }.write(out);
        let ip = out[HEADER_BYTES..].first_chunk_mut().expect("room for an IPv4 header");
        ipv4::Header { src, dst, protocol, ttl: 64, payload_bytes: bytes }.write(ip);
        let pseudo = Sum::pseudo_v4(src, dst, protocol, bytes as u16);
        header.write(&mut out[HEADER_BYTES + ipv4::HEADER_BYTES..], pseudo, PayloadSum::Known(Sum::ZERO));
        self.sent += 1;
    }
}

/// A port with a flood, or without.
#[derive(Debug)]
pub(crate) struct Flooding<P> {
    port: P,
    pub(crate) flood: Option<Flood>,
}

impl<P: Port> Flooding<P> {
    /// Wraps `port`; the flood begins with the first cycle.
    pub(crate) fn new(port: P, flood: Option<Flood>) -> Flooding<P> {
        Flooding { port, flood }
    }

    /// Sends what is due, as far as there are frames and room.
    fn pour(&mut self, flood: &mut Flood) {
        let begun = *flood.begun.get_or_insert_with(Instant::now);
        let mac = self.port.facts().mac;
        let mut burst = Burst::new();
        let room = self.port.transmit_room().min(burst.remaining_capacity()) as u64;
        for _ in 0..flood.due(begun.elapsed()).min(room) {
            let Some(mut frame) = self.port.take() else { break };
            flood.fill(&mut frame, mac);
            burst.push(frame);
        }
        self.port.transmit(&mut burst);
        for frame in burst.drain(..) {
            self.port.give(frame);
        }
    }
}

impl<P: Port> Port for Flooding<P> {
    fn facts(&self) -> &Facts {
        self.port.facts()
    }

    #[inline]
    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        self.port.receive(into, limit)
    }

    fn waiting(&mut self) -> usize {
        self.port.waiting()
    }

    #[inline]
    fn transmit_room(&mut self) -> usize {
        self.port.transmit_room()
    }

    #[inline]
    fn transmit(&mut self, from: &mut Burst) -> usize {
        self.port.transmit(from)
    }

    #[inline]
    fn flush(&mut self) -> Outgoing {
        if let Some(mut flood) = self.flood.take() {
            self.pour(&mut flood);
            self.flood = Some(flood);
        }
        self.port.flush()
    }

    #[inline]
    fn take(&mut self) -> Option<Frame> {
        self.port.take()
    }

    #[inline]
    fn give(&mut self, frame: Frame) {
        self.port.give(frame);
    }

    fn large(&mut self) -> Option<&mut dyn Large> {
        self.port.large()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.port.descriptor()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use port::pipe;
    use std::collections::HashSet;
    use wire::ipv4::Ipv4;
    use wire::tcp::{Tcp, Verdict};

    const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 18, 0, 1), 80);

    #[test]
    fn what_is_due_follows_the_clock_and_what_is_late_is_missed() {
        let mut flood = Flood::new(SERVER, [2; 6], 1000.0);
        assert_eq!(flood.due(Duration::ZERO), 0);
        assert_eq!((flood.due(Duration::from_millis(15)), flood.missed), (15, 0));
        flood.sent = 15;
        assert_eq!((flood.due(Duration::from_millis(15)), flood.missed), (0, 0));
        // 985 more are due, of which those of the last 20 ms go out
        assert_eq!((flood.due(Duration::from_secs(1)), flood.missed), (20, 965));
    }

    #[test]
    fn a_flood_is_of_sound_syns_from_many_addresses() {
        let (mut ours, mut theirs) = pipe::pair(&pipe::Config::default()).unwrap();
        let (port, mut far) = (ours.remove(0), theirs.remove(0));
        let mac = port.facts().mac;
        let mut port = Flooding::new(port, Some(Flood::new(SERVER, [9; 6], 1e9)));
        let mut seen = HashSet::new();
        for _ in 0..20 {
            port.flush();
            let mut burst = Burst::new();
            far.receive(&mut burst, 64);
            for frame in burst.drain(..) {
                let link = Link::parse(frame.bytes()).unwrap();
                assert_eq!((link.src, link.dst), (mac, [9; 6]));
                let ip = Ipv4::parse(&frame.bytes()[link.bytes()..]).unwrap();
                let tcp = Tcp::parse(ip.payload()).unwrap();
                let pseudo = Sum::pseudo_v4(ip.src(), ip.dst(), Protocol::TCP, ip.payload().len() as u16);
                assert_eq!(tcp.verdict(pseudo), Verdict::Good);
                assert_eq!((ip.dst(), tcp.dst_port(), tcp.flags()), (*SERVER.ip(), 80, Flags::SYN));
                assert_eq!((tcp.options().mss, tcp.options().window_scale), (Some(1460), Some(7)));
                assert!(ip.src().octets()[0] == 10 && tcp.options().sack_permitted);
                seen.insert(ip.src());
                far.give(frame);
            }
            far.flush();
        }
        let sent = port.flood.as_ref().unwrap().sent;
        assert!(sent > 500 && seen.len() > sent as usize * 9 / 10, "{sent} SYNs from {}", seen.len());
    }
}
