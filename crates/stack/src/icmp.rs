//! ICMP and ICMPv6: echo answered in place, errors made in place and limited, errors received judged by what they quote.

use crate::input::Place;
use crate::locals::{Key, Local, Route};
use crate::tcp::Fault;
use crate::tcp::tuple::Tuple;
use crate::turn::{HOPS, pair4, pair6, set_packet, turn_link, turn4, turn6};
use crate::{DropReason, Handled, Stack};
use base::{Frame, Instant};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use wire::icmp::Malformed;
use wire::ipv4::{self, Ipv4};
use wire::ipv6::{self, Ipv6};
use wire::tcp::Quoted;
use wire::{Protocol, icmpv4, icmpv6};

/// Bytes of the largest ICMP error (RFC 1812 section 4.3.2.3).
const ERROR_BYTES_MAX: usize = 576;
/// Bytes of the largest ICMPv6 error: the least MTU (RFC 4443 section 2.4 (c)).
const ERROR6_BYTES_MAX: usize = 1280;

impl From<Malformed> for DropReason {
    fn from(why: Malformed) -> DropReason {
        match why {
            Malformed::Short => DropReason::IcmpShort,
            Malformed::Checksum => DropReason::IcmpChecksum,
        }
    }
}

impl Stack {
    /// An ICMP message to a local address; whether the frame is to be sent.
    #[inline(never)]
    pub(crate) fn handle_icmp4(&mut self, now: Instant, frame: &mut Frame, place: Place, local: Option<Local>) -> bool {
        let message = &frame.bytes()[place.at..place.at + place.bytes];
        let icmp = match icmpv4::Icmp::parse(message) {
            Ok(icmp) => icmp,
            Err(why) => return self.drop_frame(why.into()),
        };
        match icmp.kind() {
            icmpv4::Kind::EchoRequest if matches!(local, Some(Local::Own(_))) => {
                if !self.echoes.allow(now) {
                    return self.drop_frame(DropReason::EchoLimit);
                }
                icmpv4::answer_echo(&mut frame.bytes_mut()[place.at..place.at + place.bytes]);
                turn4(frame, place.ip_at, place.at, place.bytes, Protocol::ICMP);
                self.counters.add_handled(Handled::Echo4, 1);
                true
            }
            icmpv4::Kind::Error => {
                let fault = Fault::of(icmp.mtu(), icmp.is_final());
                let ours = Ipv4::parse_quoted(icmp.quoted()).is_ok_and(|ip| {
                    !ip.is_later_fragment()
                        && match ip.protocol() {
                            Protocol::UDP => self.is_our_flow(Key::v4(ip.src()), false, ip.payload()),
                            Protocol::TCP => {
                                self.handle_quoted(now, (ip.src().into(), ip.dst().into()), ip.payload(), fault)
                            }
                            _ => false,
                        }
                });
                self.count_error(ours, Handled::IcmpError4)
            }
            _ if local.is_none() => self.drop_frame(DropReason::NotOurs),
            _ => self.drop_frame(DropReason::IcmpKind),
        }
    }

    /// An ICMPv6 message; whether the frame is to be sent.
    #[inline(never)]
    pub(crate) fn handle_icmp6(&mut self, now: Instant, frame: &mut Frame, place: Place) -> bool {
        let (src, dst) = pair6(frame.bytes(), place.ip_at);
        let message = &frame.bytes()[place.at..place.at + place.bytes];
        let icmp = match icmpv6::Icmp::parse(message, src, dst) {
            Ok(icmp) => icmp,
            Err(why) => return self.drop_frame(why.into()),
        };
        let hop_limit = frame.bytes()[place.ip_at + 7];
        if icmp.kind() != icmpv6::Kind::Advertisement
            && let Err(reason) = self.judge_source(Key::v6(src))
        {
            return self.drop_frame(reason);
        }
        match icmp.kind() {
            icmpv6::Kind::Solicitation | icmpv6::Kind::Advertisement => {
                let solicits = icmp.kind() == icmpv6::Kind::Solicitation;
                // RFC 4861 section 7.1: hop limit 255 says that no router forwarded it
                match icmp.neighbour().filter(|_| hop_limit == 255) {
                    Some(neighbour) if solicits => self.handle_solicitation(now, frame, place.ip_at, neighbour),
                    Some(neighbour) => self.handle_advertisement(now, frame, place.ip_at, neighbour),
                    None => self.drop_frame(DropReason::Neighbour),
                }
            }
            icmpv6::Kind::ListenerQuery => {
                // RFC 3810 section 6.2
                match icmp.query().filter(|_| hop_limit == 1 && src.is_unicast_link_local()) {
                    Some(query) => self.handle_query(now, query),
                    None => self.drop_frame(DropReason::ListenerQuery),
                }
            }
            _ if src.is_unspecified() => self.drop_frame(DropReason::MartianSource),
            _ if dst.is_multicast() => self.drop_frame(DropReason::Multicast),
            kind => {
                let (quoted, fault) = (icmp.quoted(), Fault::of(icmp.mtu(), icmp.is_final()));
                let local = self.locals.find(Key::v6(dst));
                match local {
                    Some(Local::Own(_)) if kind == icmpv6::Kind::EchoRequest => self.answer_echo6(now, frame, place),
                    _ if kind == icmpv6::Kind::Error && self.locals.may_send_from(local) => {
                        let ours = self.quotes_our_flow(now, quoted, fault);
                        self.count_error(ours, Handled::IcmpError6)
                    }
                    Some(Local::Own(_) | Local::Shared) => self.drop_frame(DropReason::IcmpKind),
                    Some(Local::NotReady(_)) => self.drop_frame(DropReason::NotReady),
                    _ => self.drop_frame(DropReason::NotOurs),
                }
            }
        }
    }

    fn answer_echo6(&mut self, now: Instant, frame: &mut Frame, place: Place) -> bool {
        if !self.echoes.allow(now) {
            return self.drop_frame(DropReason::EchoLimit);
        }
        icmpv6::answer_echo(&mut frame.bytes_mut()[place.at..place.at + place.bytes]);
        turn6(frame, place.ip_at, place.at, place.bytes, Protocol::ICMPV6);
        self.counters.add_handled(Handled::Echo6, 1);
        true
    }

    fn quotes_our_flow(&mut self, now: Instant, quoted: &[u8], fault: Fault) -> bool {
        // what we send over IPv6 has no mapped addresses, which would be taken for those of a flow over IPv4, and no extension headers
        let is_mapped = |ip: &Ipv6<'_>| [ip.src(), ip.dst()].iter().any(|addr| addr.to_ipv4_mapped().is_some());
        Ipv6::parse_quoted(quoted).is_ok_and(|ip| match ip.next_header() {
            _ if is_mapped(&ip) => false,
            Protocol::UDP => self.is_our_flow(Key::v6(ip.src()), true, ip.payload()),
            Protocol::TCP => self.handle_quoted(now, (ip.src().into(), ip.dst().into()), ip.payload(), fault),
            _ => false,
        })
    }

    /// An error about a segment, told to the connection that it names; whether there is one, and the segment may be its.
    fn handle_quoted(&mut self, now: Instant, ends: (IpAddr, IpAddr), transport: &[u8], fault: Fault) -> bool {
        let (Some(tcp), Some(quoted)) = (&mut self.tcp, Quoted::parse(transport)) else { return false };
        let local = SocketAddr::new(ends.0, quoted.src_port);
        let remote = SocketAddr::new(ends.1, quoted.dst_port);
        self.due_at = self.due_at.min(now);
        Tuple::new(local, remote).is_some_and(|tuple| tcp.handle_error(now, &tuple, quoted.seq, fault))
    }

    /// Whether a datagram with this source address, of whose transport at least the ports are quoted, may be one of ours.
    fn is_our_flow(&mut self, src: Key, v6: bool, transport: &[u8]) -> bool {
        let Some([a, b, ..]) = transport.first_chunk::<8>() else { return false };
        matches!(self.locals.route(src, v6, u16::from_be_bytes([*a, *b])), Route::To(_))
    }

    fn count_error(&self, ours: bool, kind: Handled) -> bool {
        if ours {
            self.counters.add_handled(kind, 1)
        } else {
            self.counters.add_drop(DropReason::IcmpForeign)
        }
        false
    }

    /// Makes the frame, already counted as dropped, an ICMP error about itself, if the limit has room; whether it is to be
    /// sent. The caller saw that source and destination are unicast and the destination an own address.
    #[inline(never)]
    pub(crate) fn complain(
        &mut self,
        now: Instant,
        frame: &mut Frame,
        ip_at: usize,
        v6: bool,
        kind_and_code: [u8; 2],
        pointer: u32,
    ) -> bool {
        if v6 && is_error6(&frame.bytes()[ip_at..]) {
            return false; // RFC 4443 section 2.4 (e.1)
        }
        if !self.errors.allow(now) {
            self.counters.icmp_errors_withheld.add(1);
            return false;
        }
        let (headers, most) = match v6 {
            false => (ipv4::HEADER_BYTES + icmpv4::HEADER_BYTES, ERROR_BYTES_MAX),
            true => (ipv6::HEADER_BYTES + icmpv6::HEADER_BYTES, ERROR6_BYTES_MAX),
        };
        let packet = &frame.bytes()[ip_at..];
        let packet_bytes = match v6 {
            false => usize::from(u16::from_be_bytes([packet[2], packet[3]])),
            true => ipv6::HEADER_BYTES + usize::from(u16::from_be_bytes([packet[4], packet[5]])),
        };
        let most = most.min(self.mtu(ip_at)).min(frame.room() - ip_at);
        let bytes = (headers + packet_bytes).min(most);
        let room = frame.room_mut();
        room.copy_within(ip_at..ip_at + bytes - headers, ip_at + headers);
        turn_link(room, ip_at, 0);
        let packet = &mut room[ip_at..ip_at + bytes];
        if v6 {
            let (src, dst) = pair6(packet, headers);
            let (head, message) = packet.split_first_chunk_mut().expect("room for an IPv6 header");
            let payload_bytes = message.len();
            let next_header = Protocol::ICMPV6;
            ipv6::Header { src: dst, dst: src, next_header, hop_limit: HOPS, payload_bytes }.write(head);
            icmpv6::write_error(message, kind_and_code, pointer, dst, src);
        } else {
            let (src, dst) = pair4(packet, headers);
            let (head, message) = packet.split_first_chunk_mut().expect("room for an IPv4 header");
            let payload_bytes = message.len();
            let protocol = Protocol::ICMP;
            ipv4::Header { src: dst, dst: src, protocol, ttl: HOPS, payload_bytes }.write(head);
            icmpv4::write_error(message, kind_and_code);
        }
        set_packet(frame, 0, ip_at + bytes);
        self.counters.icmp_errors_sent.add(1);
        true
    }
}

/// Whether the packet is an ICMPv6 error or a redirect behind whatever extension headers.
fn is_error6(packet: &[u8]) -> bool {
    let Ok(ip) = Ipv6::parse(packet) else { return true };
    let (mut protocol, mut rest) = (ip.next_header(), ip.payload());
    while matches!(
        protocol,
        Protocol::HOP_BY_HOP | Protocol::DESTINATION_OPTIONS | Protocol::ROUTING | Protocol::FRAGMENT
    ) {
        let Some([next, length, ..]) = rest.first_chunk::<8>() else { return true };
        let bytes = if protocol == Protocol::FRAGMENT { 8 } else { (usize::from(*length) + 1) * 8 };
        protocol = Protocol(*next);
        let Some(after) = rest.get(bytes..) else { return true };
        rest = after;
    }
    const REDIRECT: u8 = 137;
    protocol == Protocol::ICMPV6 && rest.first().is_none_or(|kind| *kind < 128 || *kind == REDIRECT)
}

/// The group that every IPv6 node is in.
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// The group that routers hear listener reports in (RFC 3810 section 5.2.14).
pub(crate) const REPORT_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
