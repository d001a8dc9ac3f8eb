//! Probes through AF_XDP: frames of our own from an address of the kernel's, whose answers the steering program takes.
//!
//! A kernel socket holds the port meanwhile, so that nobody else gets it. It also sends the first probe: so the kernel finds the
//! next hop, by whatever route and neighbour, and the answer's frame tells its hardware address.
//!
//! Left out: fragments, options and extension headers; an answer that has them goes to the kernel's socket and counts as lost.

use super::drive::Link;
use super::kernel::{connected, local};
use crate::error::Error;
use crate::words::Mode;
use base::{BURST_FRAMES, Burst, Frame};
use bpf::steering::UDP;
use echo::probe;
use port::{Outgoing, Port};
use port_xdp::{Handle, Listener, OpenConfig, XdpPort};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use wire::ethernet::{EtherType, Link as LinkHeader};
use wire::udp::Verdict;
use wire::{Protocol, Sum, ethernet, ipv4, ipv6, udp};

/// How long the server may take to answer the first probe, and how often it is asked.
const FIRST: Duration = Duration::from_secs(3);
const FIRST_AGAIN: Duration = Duration::from_millis(200);
/// The first probe is none of the run's, whose number is never this.
pub(super) const FIRST_RUN: u32 = 0;
const HOPS: u8 = 64;

/// An interface's queues, and the ends of the probes' way.
#[derive(Debug)]
pub(super) struct Xdp {
    ports: Vec<XdpPort>,
    /// detaches the program when it goes
    _handle: Handle,
    /// keeps the port from others
    _held: socket2::Socket,
    ends: Ends,
    run: u32,
    bytes: usize,
    burst: Burst,
    outgoing: Outgoing,
    /// what became of AF_XDP here
    pub(super) what: String,
}

/// Who talks to whom.
#[derive(Clone, Copy, Debug)]
struct Ends {
    local: SocketAddr,
    target: SocketAddr,
    /// the frame header of what we send
    link: LinkHeader,
    /// a sender on the same machine leaves checksums to a device that is not there
    partial: bool,
}

/// How AF_XDP is used.
#[derive(Clone, Debug)]
pub(super) struct Setup<'a> {
    pub(super) interface: &'a str,
    pub(super) mode: Mode,
    pub(super) busy_poll_us: u32,
}

impl Xdp {
    /// Opens the interface, takes the answers to `source_port` (0 lets the kernel choose), and finds the next hop.
    ///
    /// # Errors
    /// AF_XDP cannot be had there, the size does not fit, or the server does not answer.
    pub(super) fn open(
        target: SocketAddr,
        source_port: u16,
        setup: &Setup<'_>,
        (run, bytes): (u32, usize),
        stop: &AtomicBool,
    ) -> Result<Xdp, Error> {
        let held = connected(target, source_port)?;
        let local = local(&held)?;
        let opened = port_xdp::open(&OpenConfig {
            mode: match setup.mode {
                Mode::Auto => port_xdp::Mode::Auto,
                Mode::Zerocopy => port_xdp::Mode::Zerocopy,
                Mode::Copy => port_xdp::Mode::Copy,
                Mode::Generic => port_xdp::Mode::Generic,
            },
            listeners: vec![Listener { address: local.ip(), protocol: UDP, port: local.port() }],
            busy_poll_us: Some(setup.busy_poll_us).filter(|&us| us > 0),
            ..OpenConfig::new(setup.interface)
        })
        .map_err(|error| Error::environment(format!("AF_XDP: {error}")))?;
        for warning in &opened.got.warnings {
            eprintln!("simoom: {warning}");
        }
        let facts = opened.ports[0].facts().clone();
        let ether_type = if target.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let link = LinkHeader { dst: [0; 6], src: facts.mac, tag: None, ether_type };
        let ends = Ends { local, target, link, partial: facts.virtual_link };
        let most = facts.mtu.min(facts.frame_bytes - ethernet::TAGGED_HEADER_BYTES) - ends.header_bytes();
        if bytes > most {
            return Err(Error::input(format!(
                "--size {bytes}: a frame of {} holds {most} octets; give less, or leave out --interface",
                setup.interface
            )));
        }
        let mut xdp = Xdp {
            ports: opened.ports,
            _handle: opened.handle,
            _held: held,
            ends,
            run,
            bytes,
            burst: Burst::new(),
            outgoing: Outgoing::Nothing,
            what: opened.got.to_string(),
        };
        xdp.find_next_hop(setup.interface, stop)?;
        Ok(xdp)
    }

    /// Where it sends from.
    pub(super) fn local(&self) -> SocketAddr {
        self.ends.local
    }

    /// Has the kernel ask the server, and learns from the answer where frames to it go.
    fn find_next_hop(&mut self, interface: &str, stop: &AtomicBool) -> Result<(), Error> {
        let mut first = [0; probe::LEAST_BYTES];
        probe::write(FIRST_RUN, 0, &mut first);
        let end = Instant::now() + FIRST;
        while Instant::now() < end && !stop.load(Ordering::Relaxed) {
            // a refusal of the one before; the next one goes
            let _ = rustix::net::send(&self._held, &first, rustix::net::SendFlags::empty());
            let again = Instant::now() + FIRST_AGAIN;
            while Instant::now() < again {
                self.sleep(again.saturating_duration_since(Instant::now()));
                let ends = self.ends;
                let mut found = None;
                self.take(&mut |frame| found = found.or(ends.answer(frame).and(LinkHeader::parse(frame))));
                if let Some(LinkHeader { src, tag, .. }) = found {
                    self.ends.link = LinkHeader { dst: src, tag, ..self.ends.link };
                    return Ok(());
                }
            }
        }
        let target = self.ends.target;
        Err(Error::environment(format!(
            "{target}: no answer came in by {interface} in {} s, so the next hop is not known; is the server up, and is that the way (`ip route get {}`)?",
            FIRST.as_secs(),
            target.ip()
        )))
    }

    /// Shows the frames that have come; returns how many.
    fn take(&mut self, show: &mut impl FnMut(&[u8])) -> usize {
        let mut taken = 0;
        for port in &mut self.ports {
            port.receive(&mut self.burst, BURST_FRAMES);
            for frame in self.burst.drain(..) {
                show(frame.bytes());
                port.give(frame);
                taken += 1;
            }
        }
        if taken > 0 || self.outgoing != Outgoing::Nothing {
            self.flush();
        }
        taken
    }

    fn flush(&mut self) {
        self.outgoing = self.ports.iter_mut().map(Port::flush).max().unwrap_or(Outgoing::Nothing);
    }

    fn sleep(&mut self, most: Duration) {
        let most = match self.outgoing {
            Outgoing::Nothing | Outgoing::Underway => most,
            Outgoing::Waiting | Outgoing::Full => most.min(Duration::from_micros(100)),
        };
        let descriptors = self.ports.iter().filter_map(Port::descriptor);
        let mut descriptors: arrayvec::ArrayVec<_, 64> =
            descriptors.take(64).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let most = Timespec::try_from(most).ok();
        // whatever it says, the next look at the rings tells
        let _ = poll(&mut descriptors, most.as_ref());
    }
}

impl Ends {
    /// Bytes of the IP and UDP headers.
    fn header_bytes(&self) -> usize {
        udp::HEADER_BYTES + if self.target.is_ipv4() { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES }
    }

    /// Makes `frame` a datagram to the server with room for `bytes` of payload, and has it written.
    fn write(&self, frame: &mut Frame, bytes: usize, payload: impl FnOnce(&mut [u8])) {
        let (link_bytes, udp_bytes) = (self.link.bytes(), udp::HEADER_BYTES + bytes);
        frame.set_len(link_bytes + self.header_bytes() + bytes);
        let (head, packet) = frame.bytes_mut().split_at_mut(link_bytes);
        self.link.write(head);
        let pseudo = match (self.local.ip(), self.target.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let head = packet.first_chunk_mut().expect("room for an IPv4 header");
                ipv4::Header { src, dst, protocol: Protocol::UDP, ttl: HOPS, payload_bytes: udp_bytes }.write(head);
                Sum::pseudo_v4(src, dst, Protocol::UDP, udp_bytes as u16)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let head = packet.first_chunk_mut().expect("room for an IPv6 header");
                let next_header = Protocol::UDP;
                ipv6::Header { src, dst, next_header, hop_limit: HOPS, payload_bytes: udp_bytes }.write(head);
                Sum::pseudo_v6(src, dst, Protocol::UDP, udp_bytes as u32)
            }
            (local, target) => unreachable!("a socket at {local} connected to {target}"),
        };
        let datagram = &mut packet[self.header_bytes() - udp::HEADER_BYTES..];
        payload(&mut datagram[udp::HEADER_BYTES..]);
        udp::write(datagram, self.local.port(), self.target.port(), pseudo);
    }

    /// The payload of a sound datagram from the server to us.
    fn answer<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        let link = LinkHeader::parse(frame)?;
        let packet = frame.get(link.bytes()..)?;
        let (from, to, payload) = match link.ether_type {
            EtherType::IPV4 => {
                let ip =
                    ipv4::Ipv4::parse(packet).ok().filter(|ip| ip.protocol() == Protocol::UDP && !ip.is_fragment())?;
                (IpAddr::from(ip.src()), IpAddr::from(ip.dst()), ip.payload())
            }
            EtherType::IPV6 => {
                let ip = ipv6::Ipv6::parse(packet).ok().filter(|ip| ip.next_header() == Protocol::UDP)?;
                (ip.src().into(), ip.dst().into(), ip.payload())
            }
            _ => return None,
        };
        let datagram = udp::Udp::parse(payload).ok()?;
        let bytes = datagram.bytes();
        let pseudo = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Sum::pseudo_v4(from, to, Protocol::UDP, bytes as u16),
            (IpAddr::V6(from), IpAddr::V6(to)) => Sum::pseudo_v6(from, to, Protocol::UDP, bytes as u32),
            _ => return None,
        };
        let sound = match datagram.verdict(pseudo) {
            Verdict::Good => true,
            Verdict::Absent => from.is_ipv4(),
            Verdict::Partial => self.partial,
            Verdict::Bad => false,
        };
        let ends = (SocketAddr::new(from, datagram.src_port()), SocketAddr::new(to, datagram.dst_port()));
        (sound && ends == (self.target, self.local)).then_some(datagram.payload())
    }
}

impl Link for Xdp {
    fn send(&mut self, number: u64) -> Result<bool, Error> {
        let Xdp { run, bytes, ends, .. } = *self;
        let port = &mut self.ports[0];
        let frame = if port.transmit_room() > 0 { port.take() } else { None };
        let Some(mut frame) = frame else {
            self.flush();
            return Ok(false);
        };
        ends.write(&mut frame, bytes, |payload| probe::write(run, number, payload));
        self.burst.push(frame);
        port.transmit(&mut self.burst);
        let sent = self.burst.is_empty();
        for frame in self.burst.drain(..) {
            port.give(frame);
        }
        self.flush();
        Ok(sent)
    }

    fn receive(&mut self, wait: Option<Duration>, show: &mut impl FnMut(&[u8])) {
        let ends = self.ends;
        let mut show = |frame: &[u8]| {
            // the first probe's copies are no news
            if let Some(answer) = ends.answer(frame).filter(|answer| !is_first(answer)) {
                show(answer);
            }
        };
        if self.take(&mut show) == 0
            && let Some(most) = wait
        {
            self.sleep(most);
            self.take(&mut show);
        }
    }

    fn unreachable(&self) -> u64 {
        // ICMP errors are the kernel's, which did not send the probes
        0
    }
}

fn is_first(answer: &[u8]) -> bool {
    answer.starts_with(&FIRST_RUN.to_be_bytes()) && probe::read(FIRST_RUN, answer).is_ok()
}

/// In words, why AF_XDP was not used.
pub(super) fn why_not(error: &Error) -> String {
    error.lines().iter().map(|line| line.trim_start_matches("AF_XDP: ")).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::arena::Arena;

    fn ends(local: &str, target: &str, tag: Option<u16>) -> Ends {
        let (local, target): (SocketAddr, SocketAddr) = (local.parse().unwrap(), target.parse().unwrap());
        let ether_type = if target.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let link = LinkHeader { dst: [2; 6], src: [4; 6], tag, ether_type };
        Ends { local, target, link, partial: false }
    }

    #[test]
    fn a_datagram_is_read_by_its_other_end_and_by_nobody_else() {
        let (_arena, mut frames) = Arena::new(1, 2048).unwrap();
        let frame = &mut frames[0];
        for (a, b) in [("192.0.2.1:40000", "192.0.2.2:7"), ("[2001:db8::1]:40000", "[2001:db8::2]:7")] {
            for (tag, bytes) in [(None, 0), (None, 33), (Some(7), 16)] {
                let (here, there) = (ends(a, b, tag), ends(b, a, tag));
                here.write(frame, bytes, |payload| payload.fill(0x5a));
                assert_eq!(there.answer(frame.bytes()), Some(&vec![0x5a; bytes][..]), "{a} {tag:?} {bytes}");
                assert_eq!(here.answer(frame.bytes()), None, "our own, seen again");
                let other = ends(&b.replace(":7", ":8"), a, tag);
                assert_eq!(other.answer(frame.bytes()), None, "another port");
                let last = frame.len() - 1;
                frame.bytes_mut()[last] ^= 1;
                assert_eq!(there.answer(frame.bytes()), None, "a checksum that does not verify");
                assert_eq!(there.answer(&frame.bytes()[..last]), None, "cut");
            }
        }
    }

    #[test]
    fn a_checksum_left_to_a_device_counts_on_a_virtual_link_only() {
        let (_arena, mut frames) = Arena::new(1, 2048).unwrap();
        let (here, there) =
            (ends("192.0.2.1:40000", "192.0.2.2:7", None), ends("192.0.2.2:7", "192.0.2.1:40000", None));
        here.write(&mut frames[0], 20, |payload| payload.fill(1));
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (here.local.ip(), here.target.ip()) else { panic!("IPv4") };
        let partial = Sum::pseudo_v4(src, dst, Protocol::UDP, 28).partial();
        frames[0].bytes_mut()[40..42].copy_from_slice(&partial);
        assert_eq!(there.answer(frames[0].bytes()), None);
        assert!(Ends { partial: true, ..there }.answer(frames[0].bytes()).is_some());
    }
}
