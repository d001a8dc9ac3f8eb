//! The way of a burst: link, network and transport, service, turning round. Each stage runs over the whole burst; frames
//! stay where they are, and a note for each says how far it came. Nothing is copied but headers; with
//! [`Stack::input_copied`], also what a service is to answer, once, into a frame of the caller's.
//!
//! IPv4 options are passed over, except source routing, which is refused (RFC 7126 section 4.3); no answer carries any.
//! IPv6 extension headers are walked (RFC 8200 section 4). Fragments are dropped and counted: on a shared address the
//! kernel gets them, and nothing that is served at an own address needs them. The TTL is not judged (RFC 1122 section
//! 3.2.1.7). Answers go to the hardware address that the question came from, with TTL or hop limit 64, traffic class zero
//! (so no ECN: RFC 3168 applies to transports that negotiated it) and, over IPv4, as atomic datagrams (RFC 6864
//! section 4.1).

use crate::locals::{Key, Local, Route};
use crate::turn::{pair4, pair6, turn4, turn6};
use crate::{DropReason, Handled, Stack, tcp};
use app::{Addresses, Datagram, Ecn, Listener, Service};
use arrayvec::ArrayVec;
use base::{BURST_FRAMES, Burst, Frame, Instant};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use wire::ethernet::{self, EtherType, Link};
use wire::ipv4::{self, Ipv4};
use wire::ipv6::{self, Ipv6};
use wire::udp::{self, Udp, Verdict};
use wire::{Protocol, Sum, icmpv4, icmpv6};

/// How far a frame came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// it goes home
    Free,
    /// it goes out
    Send,
    /// its link header is sound and it holds this
    Holds(EtherType),
    /// it holds a datagram for a listener
    Udp4(Listener),
    /// the same over IPv6
    Udp6(Listener),
    /// it holds a sound segment over IPv4
    Tcp4,
    /// the same over IPv6
    Tcp6,
}

/// A frame's note.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note {
    pub(crate) fate: Fate,
    /// where the network header is
    pub(crate) ip_at: u8,
    /// traffic class
    pub(crate) class: u8,
    /// the frame went to a group
    group: bool,
    /// where the datagram's payload is, or the segment
    pub(crate) payload_at: u16,
    pub(crate) payload_bytes: u16,
    /// the service's answer
    reply_bytes: Option<u16>,
}

const _: () = assert!(size_of::<Note>() <= 16 && size_of::<Datagram<'_>>() <= 104);

/// Where a transport's bytes are in a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// of the network header
    pub(crate) ip_at: usize,
    /// of the transport header
    pub(crate) at: usize,
    /// bytes of header and payload
    pub(crate) bytes: usize,
}

/// What the network and transport stage found.
pub(crate) enum Found {
    Udp {
        listener: Listener,
        class: u8,
        payload_at: usize,
        payload_bytes: usize,
    },
    Tcp {
        class: u8,
        at: usize,
        bytes: usize,
    },
    Icmp4(Place, Option<Local>),
    Icmp6(Place),
    Drop(DropReason),
    /// dropped, and the sender is to be told by an ICMP error: type and code, pointer
    Refuse(DropReason, [u8; 2], u32),
}

impl Stack {
    /// Takes a burst in. Every frame of `rx` ends in `tx`, to be transmitted, or in `free`; both come empty.
    ///
    /// # Panics
    /// When `tx` or `free` has no room for all of `rx`.
    pub fn input<S: Service>(
        &mut self,
        now: Instant,
        rx: &mut Burst,
        tx: &mut Burst,
        free: &mut Burst,
        service: &mut S,
    ) {
        self.burst(now, rx, tx, free, None, service);
    }

    /// Takes a burst in, as [`Stack::input`] does, but has each datagram answered in one of the frames of `spare`: what came is
    /// copied there, answered there, and its received frame takes the other's place in `spare`. So `spare` keeps its length,
    /// and everything in it goes home afterwards. When it has run short, datagrams are dropped ([`DropReason::NoFrame`]). What
    /// the stack itself answers (ARP, ICMP, neighbour discovery) is answered in place.
    ///
    /// # Panics
    /// When `tx` or `free` has no room for all of `rx`.
    pub fn input_copied<S: Service>(
        &mut self,
        now: Instant,
        rx: &mut Burst,
        tx: &mut Burst,
        free: &mut Burst,
        spare: &mut Burst,
        service: &mut S,
    ) {
        self.burst(now, rx, tx, free, Some(spare), service);
    }

    #[inline(always)]
    fn burst<S: Service>(
        &mut self,
        now: Instant,
        rx: &mut Burst,
        tx: &mut Burst,
        free: &mut Burst,
        spare: Option<&mut Burst>,
        service: &mut S,
    ) {
        for frame in rx.iter() {
            base::prefetch::read(frame.bytes().as_ptr());
        }
        self.follow();
        self.counters.received.add(rx.len() as u64);
        let mut notes: ArrayVec<Note, BURST_FRAMES> = rx.iter().map(|frame| self.link(frame)).collect();
        let mut order: ArrayVec<u32, BURST_FRAMES> = ArrayVec::new();
        let (mut sorted, mut segments) = (true, false);
        for (index, (frame, note)) in rx.iter_mut().zip(&mut notes).enumerate() {
            let Fate::Holds(ether_type) = note.fate else { continue };
            note.fate = self.network(now, ether_type, frame, note);
            if let Fate::Udp4(listener) | Fate::Udp6(listener) = note.fate {
                let entry = u32::from(listener.0) << 8 | index as u32;
                sorted &= order.last().is_none_or(|last| *last < entry);
                order.push(entry);
            }
            segments |= matches!(note.fate, Fate::Tcp4 | Fate::Tcp6);
        }
        if !sorted {
            order.sort_unstable();
        }
        if let Some(spare) = spare {
            self.copy(rx, &mut notes, &mut order, spare);
        }
        if !order.is_empty() {
            self.serve(now, rx, &mut notes, &order, service);
            self.answer(now, rx, &mut notes);
        }
        if segments {
            self.take_segments(now, rx, &mut notes, service);
        }
        for (frame, note) in rx.drain(..).zip(&notes) {
            if note.fate == Fate::Send { tx.push(frame) } else { free.push(frame) }
        }
    }

    /// Exchanges the frame of each datagram for one of `spare` with the same bytes. What cannot be had leaves the order.
    #[inline(never)]
    fn copy(&self, frames: &mut Burst, notes: &mut [Note], order: &mut ArrayVec<u32, BURST_FRAMES>, spare: &mut Burst) {
        let mut spare = spare.iter_mut();
        order.retain(|entry| {
            let place = (*entry & 0xff) as usize;
            let (frame, note) = (&mut frames[place], &mut notes[place]);
            // padding of the link stays behind
            let bytes = usize::from(note.payload_at + note.payload_bytes);
            let reason = match spare.next() {
                None => DropReason::NoFrame,
                Some(ours) => {
                    if ours.fill(&frame.bytes()[..bytes]) {
                        std::mem::swap(frame, ours);
                        return true;
                    }
                    // its room is shorter than the received frame's was
                    DropReason::NoRoom
                }
            };
            note.fate = sent(self.drop_frame(reason));
            false
        });
    }

    #[inline(never)]
    pub(crate) fn drop_frame(&self, reason: DropReason) -> bool {
        self.counters.add_drop(reason);
        false
    }

    #[inline(always)]
    fn link(&self, frame: &Frame) -> Note {
        let mut note = Note {
            fate: Fate::Free,
            ip_at: 0,
            class: 0,
            group: false,
            payload_at: 0,
            payload_bytes: 0,
            reply_bytes: None,
        };
        let reason = match Link::parse(frame.bytes()) {
            None => DropReason::Runt,
            Some(link) => {
                note.group = ethernet::is_group(link.dst);
                note.ip_at = link.bytes() as u8;
                if !note.group && link.dst != self.facts.mac {
                    DropReason::NotOurMac
                } else if ethernet::is_group(link.src) || link.src == self.facts.mac {
                    DropReason::BadSourceMac
                } else {
                    note.fate = Fate::Holds(link.ether_type);
                    return note;
                }
            }
        };
        self.drop_frame(reason);
        note
    }

    #[inline(always)]
    fn network(&mut self, now: Instant, ether_type: EtherType, frame: &mut Frame, note: &mut Note) -> Fate {
        let ip_at = usize::from(note.ip_at);
        let v6 = ether_type == EtherType::IPV6;
        let found = match ether_type {
            EtherType::IPV4 => self.network4(frame.bytes(), ip_at, note.group),
            EtherType::IPV6 => self.network6(frame.bytes(), ip_at, note.group),
            EtherType::ARP => return sent(self.handle_arp(now, frame, ip_at)),
            _ => Found::Drop(DropReason::EtherType),
        };
        match found {
            Found::Udp { listener, class, payload_at, payload_bytes } => {
                if payload_at + payload_bytes > ip_at + self.mtu(ip_at) {
                    return sent(self.drop_frame(DropReason::NoRoom));
                }
                note.class = class;
                note.payload_at = payload_at as u16;
                note.payload_bytes = payload_bytes as u16;
                if v6 { Fate::Udp6(listener) } else { Fate::Udp4(listener) }
            }
            Found::Tcp { class, at, bytes } => {
                note.class = class;
                note.payload_at = at as u16;
                note.payload_bytes = bytes as u16;
                if v6 { Fate::Tcp6 } else { Fate::Tcp4 }
            }
            Found::Icmp4(place, local) => sent(self.handle_icmp4(now, frame, place, local)),
            Found::Icmp6(place) => sent(self.handle_icmp6(now, frame, place)),
            Found::Drop(reason) => sent(self.drop_frame(reason)),
            Found::Refuse(reason, kind_and_code, pointer) => {
                self.drop_frame(reason);
                sent(!note.group && self.complain(now, frame, ip_at, v6, kind_and_code, pointer))
            }
        }
    }

    /// Bytes of the largest packet above a link header of `link_bytes`.
    #[inline]
    pub(crate) fn mtu(&self, link_bytes: usize) -> usize {
        self.mtu.min(self.facts.frame_bytes - link_bytes)
    }

    /// Judges a source address: not a group, not loopback, not unspecified, not us.
    #[inline]
    pub(crate) fn judge_source(&self, src: Key) -> Result<(), DropReason> {
        match self.locals.find(src) {
            None => Ok(()),
            Some(Local::Broadcast) => Err(DropReason::MartianSource),
            Some(_) => Err(DropReason::OwnSource),
        }
    }

    #[inline(always)]
    fn network4(&mut self, frame: &[u8], ip_at: usize, group: bool) -> Found {
        match self.try_network4(frame, ip_at, group) {
            Ok(found) => found,
            Err(reason) => Found::Drop(reason),
        }
    }

    #[inline(always)]
    fn try_network4(&mut self, frame: &[u8], ip_at: usize, group: bool) -> Result<Found, DropReason> {
        let ip = Ipv4::parse(&frame[ip_at..])?;
        let (src, dst) = (ip.src(), ip.dst());
        // RFC 1122 section 3.2.1.3, RFC 6890: this network, loopback, groups, reserved and limited broadcast
        if matches!(src.octets()[0], 0 | 127 | 224..) {
            return Err(DropReason::MartianSource);
        }
        match dst.octets()[0] {
            0 | 127 => return Err(DropReason::MartianDestination),
            224.. => return Err(DropReason::Multicast),
            _ if group => return Err(DropReason::GroupMac),
            _ if src == dst => return Err(DropReason::OwnSource),
            _ => {}
        }
        self.judge_source(Key::v4(src))?;
        if ip.is_fragment() {
            return Err(DropReason::Fragment);
        }
        if ip.header_bytes() != ipv4::HEADER_BYTES && ip.source_routed()? {
            return Err(DropReason::Ipv4SourceRoute);
        }
        let at = ip_at + ip.header_bytes();
        match ip.protocol() {
            Protocol::UDP => {
                let udp = Udp::parse(ip.payload())?;
                let pseudo = Sum::pseudo_v4(src, dst, Protocol::UDP, udp.bytes() as u16);
                self.judge_udp(&udp, pseudo, false)?;
                self.find_listener(&udp, Key::v4(dst), false, ip.traffic_class(), at)
            }
            Protocol::TCP if self.tcp.is_some() => {
                let bytes = ip.payload().len();
                let pseudo = Sum::pseudo_v4(src, dst, Protocol::TCP, bytes as u16);
                self.judge_segment(ip.payload(), pseudo, Key::v4(dst), false)?;
                Ok(Found::Tcp { class: ip.traffic_class(), at, bytes })
            }
            protocol => {
                let local = self.locals.find(Key::v4(dst));
                match local {
                    _ if protocol == Protocol::ICMP && self.locals.may_send_from(local) => {
                        let bytes = ip.payload().len();
                        let place = Place { ip_at, at, bytes };
                        Ok(Found::Icmp4(place, local))
                    }
                    None | Some(Local::Broadcast) => Err(not_ours(local)),
                    Some(Local::NotReady(_)) => Err(DropReason::NotReady),
                    Some(Local::Own(_)) if protocol != Protocol::TCP => {
                        Ok(Found::Refuse(DropReason::Protocol, icmpv4::PROTOCOL_UNREACHABLE, 0))
                    }
                    Some(_) => Err(DropReason::Protocol),
                }
            }
        }
    }

    #[inline(always)]
    fn network6(&mut self, frame: &[u8], ip_at: usize, group: bool) -> Found {
        match self.try_network6(frame, ip_at, group) {
            Ok(found) => found,
            Err(reason) => Found::Drop(reason),
        }
    }

    #[inline(always)]
    fn try_network6(&mut self, frame: &[u8], ip_at: usize, group: bool) -> Result<Found, DropReason> {
        let ip = Ipv6::parse(&frame[ip_at..])?;
        let (src, dst) = (ip.src(), ip.dst());
        if src.is_multicast() || src.is_loopback() || src.to_ipv4_mapped().is_some() {
            return Err(DropReason::MartianSource);
        }
        if dst.is_loopback() || dst.is_unspecified() || dst.to_ipv4_mapped().is_some() {
            return Err(DropReason::MartianDestination);
        }
        let multicast = dst.is_multicast();
        if group && !multicast {
            return Err(DropReason::GroupMac);
        }
        if src == dst {
            return Err(DropReason::OwnSource);
        }
        let (mut protocol, mut at) = (ip.next_header(), ip_at + ipv6::HEADER_BYTES);
        if ipv6::is_extension(protocol) {
            match ipv6::walk(protocol, ip.payload()) {
                Ok(upper) => {
                    protocol = upper.protocol;
                    at += upper.at;
                }
                Err(stopped) => {
                    self.judge_source(Key::v6(src))?;
                    return Ok(self.stopped(stopped, dst, src));
                }
            }
        }
        let bytes = ip_at + ipv6::HEADER_BYTES + ip.payload().len() - at;
        if protocol == Protocol::ICMPV6 {
            // neighbour discovery has sources of its own: unspecified, and, from a rival, one of our addresses
            return Ok(Found::Icmp6(Place { ip_at, at, bytes }));
        }
        self.judge_source(Key::v6(src))?;
        if multicast {
            return Err(DropReason::Multicast);
        }
        if src.is_unspecified() {
            return Err(DropReason::MartianSource);
        }
        if protocol == Protocol::UDP {
            let udp = Udp::parse(&frame[at..at + bytes])?;
            let pseudo = Sum::pseudo_v6(src, dst, Protocol::UDP, udp.bytes() as u32);
            self.judge_udp(&udp, pseudo, true)?;
            return self.find_listener(&udp, Key::v6(dst), true, ip.traffic_class(), at);
        }
        if protocol == Protocol::TCP && self.tcp.is_some() {
            let pseudo = Sum::pseudo_v6(src, dst, Protocol::TCP, bytes as u32);
            self.judge_segment(&frame[at..at + bytes], pseudo, Key::v6(dst), true)?;
            return Ok(Found::Tcp { class: ip.traffic_class(), at, bytes });
        }
        let local = self.locals.find(Key::v6(dst));
        match local {
            Some(Local::NotReady(_)) => Err(DropReason::NotReady),
            Some(Local::Own(_)) if protocol != Protocol::TCP => {
                let pointer = self.next_header_at(&ip);
                Ok(Found::Refuse(DropReason::Protocol, icmpv6::PROBLEM_NEXT_HEADER, pointer))
            }
            Some(Local::Own(_) | Local::Shared) => Err(DropReason::Protocol),
            _ => Err(not_ours(local)),
        }
    }

    /// Where the field is that names what follows the extension headers, counted from the fixed header.
    #[cold]
    fn next_header_at(&self, ip: &Ipv6<'_>) -> u32 {
        let (mut named_at, mut protocol, mut at) = (6, ip.next_header(), 0);
        while ipv6::is_extension(protocol) && at + 1 < ip.payload().len() {
            let bytes = if protocol == Protocol::FRAGMENT { 8 } else { (usize::from(ip.payload()[at + 1]) + 1) * 8 };
            (named_at, protocol) = ((ipv6::HEADER_BYTES + at) as u32, Protocol(ip.payload()[at]));
            at += bytes;
        }
        named_at
    }

    /// What an extension header that cannot be passed means; only an own, usable address complains.
    #[cold]
    fn stopped(&self, stopped: ipv6::Stopped, dst: Ipv6Addr, src: Ipv6Addr) -> Found {
        use ipv6::Stopped;
        let complains = matches!(self.locals.find(Key::v6(dst)), Some(Local::Own(_))) && !src.is_unspecified();
        let refuse = |reason, code, pointer| match complains {
            true => Found::Refuse(reason, code, pointer),
            false => Found::Drop(reason),
        };
        match stopped {
            Stopped::Malformed => Found::Drop(DropReason::Ipv6Extension),
            Stopped::TooMany => Found::Drop(DropReason::Ipv6TooManyExtensions),
            Stopped::Fragment => Found::Drop(DropReason::Fragment),
            Stopped::NoNextHeader => Found::Drop(DropReason::Ipv6NoNextHeader),
            Stopped::OptionDropped => Found::Drop(DropReason::Ipv6Option),
            // a complaint about a packet to a group would be an amplifier, so 10 is treated as 11 (RFC 4443 section 2.4 (e)
            // allows it, and does not ask for it)
            Stopped::OptionRefused { pointer, .. } => refuse(DropReason::Ipv6Option, icmpv6::PROBLEM_OPTION, pointer),
            Stopped::Routing { pointer } => refuse(DropReason::Ipv6Routing, icmpv6::PROBLEM_FIELD, pointer),
            Stopped::UnknownHeader { pointer } => {
                refuse(DropReason::Ipv6Extension, icmpv6::PROBLEM_NEXT_HEADER, pointer)
            }
        }
    }

    #[inline(always)]
    fn judge_udp(&self, udp: &Udp<'_>, pseudo: Sum, v6: bool) -> Result<(), DropReason> {
        if udp.src_port() == 0 {
            return Err(DropReason::UdpSourcePort); // nobody to answer (RFC 768)
        }
        match udp.verdict(pseudo) {
            Verdict::Good => {}
            Verdict::Absent if v6 => return Err(DropReason::UdpNoChecksum),
            Verdict::Absent => self.counters.absent_checksums.add(1),
            Verdict::Partial if self.facts.virtual_link => self.counters.partial_checksums.add(1),
            Verdict::Partial | Verdict::Bad => return Err(DropReason::UdpChecksum),
        }
        Ok(())
    }

    #[inline(always)]
    fn find_listener(&mut self, udp: &Udp<'_>, dst: Key, v6: bool, class: u8, at: usize) -> Result<Found, DropReason> {
        let listener = match self.locals.route(dst, v6, udp.dst_port()) {
            Route::To(listener) => listener,
            Route::NotOurs => return Err(DropReason::NotOurs),
            Route::NotReady => return Err(DropReason::NotReady),
            Route::Broadcast => return Err(DropReason::Multicast),
            Route::NoListener if !matches!(self.locals.find(dst), Some(Local::Own(_))) => {
                return Err(DropReason::NoListener); // the kernel has the address too, and answers for its other ports
            }
            Route::NoListener => {
                let code = if v6 { icmpv6::PORT_UNREACHABLE } else { icmpv4::PORT_UNREACHABLE };
                return Ok(Found::Refuse(DropReason::NoListener, code, 0));
            }
        };
        Ok(Found::Udp {
            listener,
            class,
            payload_at: at + udp::HEADER_BYTES,
            payload_bytes: udp.bytes() - udp::HEADER_BYTES,
        })
    }

    /// Hands each listener its datagrams as one burst. `order` holds listener and place
    /// in the burst, sorted.
    fn serve<S: Service>(
        &mut self,
        now: Instant,
        frames: &mut Burst,
        notes: &mut [Note],
        order: &[u32],
        service: &mut S,
    ) {
        let mut rest: ArrayVec<Option<&mut Frame>, BURST_FRAMES> = frames.iter_mut().map(Some).collect();
        for run in order.chunk_by(|a, b| a >> 8 == b >> 8) {
            let mut slots: ArrayVec<Datagram<'_>, BURST_FRAMES> = ArrayVec::new();
            for entry in run {
                let place = (entry & 0xff) as usize;
                let frame = rest[place].take().expect("a place stands once in the order");
                slots.push(self.slot(frame, &notes[place]));
            }
            service.datagrams(now, Listener((run[0] >> 8) as u16), &mut slots);
            for (entry, slot) in run.iter().zip(&slots) {
                notes[(entry & 0xff) as usize].reply_bytes = slot.reply_bytes().map(|bytes| bytes as u16);
            }
        }
    }

    /// Turns round what the service answered.
    fn answer(&mut self, now: Instant, frames: &mut Burst, notes: &mut [Note]) {
        let mut counts = [0u64; 4];
        for (frame, note) in frames.iter_mut().zip(notes) {
            let v6 = match note.fate {
                Fate::Udp4(_) => false,
                Fate::Udp6(_) => true,
                _ => continue,
            };
            counts[usize::from(v6) * 2 + usize::from(note.reply_bytes.is_none())] += 1;
            note.fate = sent(note.reply_bytes.is_some());
            if note.reply_bytes.is_none() {
                self.note_path(now, frame, note, v6);
            }
            if let Some(bytes) = note.reply_bytes {
                if v6 { answer6(frame, note, usize::from(bytes)) } else { answer4(frame, note, usize::from(bytes)) }
            }
        }
        let kinds = [Handled::Udp4Answered, Handled::Udp4Unanswered, Handled::Udp6Answered, Handled::Udp6Unanswered];
        for (kind, n) in kinds.into_iter().zip(counts) {
            self.counters.add_handled(kind, n);
        }
    }

    /// Where a later answer to this datagram would go.
    fn note_path(&mut self, now: Instant, frame: &Frame, note: &Note, v6: bool) {
        let (bytes, ip_at) = (frame.bytes(), usize::from(note.ip_at));
        let Some(link) = Link::parse(bytes) else { return };
        let peer = if v6 { pair6(bytes, ip_at).0.into() } else { pair4(bytes, ip_at).0.into() };
        if let Some(outward) = self.outward() {
            outward.note_path(now, peer, tcp::Hop::new(link.src, link.tag));
        }
    }

    /// The slot of one datagram: the frame's rest after the UDP header, as far as an answer may reach.
    #[inline(always)]
    fn slot<'f>(&self, frame: &'f mut Frame, note: &Note) -> Datagram<'f> {
        let (ip_at, payload_at) = (usize::from(note.ip_at), usize::from(note.payload_at));
        let v6 = matches!(note.fate, Fate::Udp6(_));
        let (head, rest) = frame.room_mut().split_at_mut(payload_at);
        let ports = head.last_chunk::<8>().expect("a UDP header was parsed");
        let peer_port = u16::from_be_bytes([ports[0], ports[1]]);
        let port = u16::from_be_bytes([ports[2], ports[3]]);
        let addresses = if v6 {
            let (src, dst) = pair6(head, ip_at);
            Addresses { local: socket6(dst, port), peer: socket6(src, peer_port) }
        } else {
            let (src, dst) = pair4(head, ip_at);
            Addresses {
                local: SocketAddr::V4(SocketAddrV4::new(dst, port)),
                peer: SocketAddr::V4(SocketAddrV4::new(src, peer_port)),
            }
        };
        let headers = udp::HEADER_BYTES + if v6 { ipv6::HEADER_BYTES } else { ipv4::HEADER_BYTES };
        let room = rest.len().min(self.mtu(ip_at) - headers);
        Datagram::new(&mut rest[..room], usize::from(note.payload_bytes), Ecn::from_bits(note.class), addresses)
    }
}

#[inline]
pub(crate) fn sent(sent: bool) -> Fate {
    if sent { Fate::Send } else { Fate::Free }
}

pub(crate) fn not_ours(local: Option<Local>) -> DropReason {
    if local == Some(Local::Broadcast) { DropReason::Multicast } else { DropReason::NotOurs }
}

#[inline]
fn socket6(addr: Ipv6Addr, port: u16) -> SocketAddr {
    SocketAddr::V6(SocketAddrV6::new(addr, port, 0, 0))
}

#[inline(always)]
fn answer4(frame: &mut Frame, note: &Note, bytes: usize) {
    let (ip_at, at) = (usize::from(note.ip_at), usize::from(note.payload_at) - udp::HEADER_BYTES);
    let bytes = udp::HEADER_BYTES + bytes;
    let room = frame.room_mut();
    let (src, dst) = pair4(room, ip_at);
    turn_udp(&mut room[at..at + bytes], Sum::pseudo_v4(dst, src, Protocol::UDP, bytes as u16));
    turn4(frame, ip_at, at, bytes, Protocol::UDP);
}

#[inline(always)]
fn answer6(frame: &mut Frame, note: &Note, bytes: usize) {
    let (ip_at, at) = (usize::from(note.ip_at), usize::from(note.payload_at) - udp::HEADER_BYTES);
    let bytes = udp::HEADER_BYTES + bytes;
    let room = frame.room_mut();
    let (src, dst) = pair6(room, ip_at);
    turn_udp(&mut room[at..at + bytes], Sum::pseudo_v6(dst, src, Protocol::UDP, bytes as u32));
    turn6(frame, ip_at, at, bytes, Protocol::UDP);
}

#[inline(always)]
fn turn_udp(datagram: &mut [u8], pseudo: Sum) {
    let ports = datagram.first_chunk::<4>().expect("a UDP header was parsed");
    let (src, dst) = (u16::from_be_bytes([ports[0], ports[1]]), u16::from_be_bytes([ports[2], ports[3]]));
    udp::write(datagram, dst, src, pseudo);
}

impl From<ipv4::Malformed> for DropReason {
    fn from(malformed: ipv4::Malformed) -> DropReason {
        match malformed {
            ipv4::Malformed::Short => DropReason::Ipv4Short,
            ipv4::Malformed::Version => DropReason::Ipv4Version,
            ipv4::Malformed::HeaderLength => DropReason::Ipv4HeaderLength,
            ipv4::Malformed::TotalLength => DropReason::Ipv4TotalLength,
            ipv4::Malformed::Checksum => DropReason::Ipv4Checksum,
            ipv4::Malformed::Options => DropReason::Ipv4Options,
        }
    }
}

impl From<ipv6::Malformed> for DropReason {
    fn from(malformed: ipv6::Malformed) -> DropReason {
        match malformed {
            ipv6::Malformed::Short => DropReason::Ipv6Short,
            ipv6::Malformed::Version => DropReason::Ipv6Version,
            ipv6::Malformed::PayloadLength => DropReason::Ipv6PayloadLength,
        }
    }
}

impl From<udp::Malformed> for DropReason {
    fn from(malformed: udp::Malformed) -> DropReason {
        match malformed {
            udp::Malformed::Short => DropReason::UdpShort,
            udp::Malformed::Length => DropReason::UdpLength,
        }
    }
}
