//! Turning a frame round: what came becomes what goes, in the same bytes. The frame is its owner's throughout; callers have
//! parsed the headers before.

use base::Frame;
use std::net::{Ipv4Addr, Ipv6Addr};
use wire::{Protocol, ipv4, ipv6};

/// TTL and hop limit of everything that may leave the link (RFC 1700; what every end host uses).
pub(crate) const HOPS: u8 = 64;

/// Source and destination of the IPv4 header at `ip_at`, which was parsed before.
#[inline]
pub(crate) fn pair4(frame: &[u8], ip_at: usize) -> (Ipv4Addr, Ipv4Addr) {
    let [a, b, c, d, e, f, g, h] = *frame[ip_at + 12..].first_chunk().expect("an IPv4 header was parsed");
    (Ipv4Addr::new(a, b, c, d), Ipv4Addr::new(e, f, g, h))
}

/// Source and destination of the IPv6 header at `ip_at`, which was parsed before.
#[inline]
pub(crate) fn pair6(frame: &[u8], ip_at: usize) -> (Ipv6Addr, Ipv6Addr) {
    let addresses = frame[ip_at + 8..].first_chunk::<32>().expect("an IPv6 header was parsed");
    let (src, dst) = addresses.split_at(16);
    let addr = |octets: &[u8]| Ipv6Addr::from(*octets.first_chunk().expect("half of 32 bytes"));
    (addr(src), addr(dst))
}

/// Turns the link header round and moves it forward by `shift` bytes, over what the answer leaves out.
#[inline]
pub(crate) fn turn_link(room: &mut [u8], link_bytes: usize, shift: usize) {
    let (dst, rest) = room.split_at_mut(6);
    dst.swap_with_slice(&mut rest[..6]);
    if shift != 0 {
        room.copy_within(..link_bytes, shift);
    }
}

/// Moves the packet's start by `shift` bytes and makes it `bytes` long.
#[inline]
pub(crate) fn set_packet(frame: &mut Frame, shift: usize, bytes: usize) {
    if shift == 0 {
        frame.set_len(bytes);
    } else {
        frame.set_window(frame.headroom() + shift, bytes);
    }
}

/// Makes the frame an answer whose transport bytes are the `bytes` at `at`, over IPv4. The header goes directly in front of
/// them, so options of the question are left out.
#[inline(always)]
pub(crate) fn turn4(frame: &mut Frame, ip_at: usize, at: usize, bytes: usize, protocol: Protocol) {
    let new_ip_at = at - ipv4::HEADER_BYTES;
    let room = frame.room_mut();
    let (src, dst) = pair4(room, ip_at);
    turn_link(room, ip_at, new_ip_at - ip_at);
    let head = room[new_ip_at..].first_chunk_mut().expect("room for an IPv4 header");
    ipv4::Header { src: dst, dst: src, protocol, ttl: HOPS, payload_bytes: bytes }.write(head);
    set_packet(frame, new_ip_at - ip_at, at - (new_ip_at - ip_at) + bytes);
}

/// The same over IPv6, without the question's extension headers.
#[inline(always)]
pub(crate) fn turn6(frame: &mut Frame, ip_at: usize, at: usize, bytes: usize, next_header: Protocol) {
    let new_ip_at = at - ipv6::HEADER_BYTES;
    let room = frame.room_mut();
    let (src, dst) = pair6(room, ip_at);
    turn_link(room, ip_at, new_ip_at - ip_at);
    let head = room[new_ip_at..].first_chunk_mut().expect("room for an IPv6 header");
    ipv6::Header { src: dst, dst: src, next_header, hop_limit: HOPS, payload_bytes: bytes }.write(head);
    set_packet(frame, new_ip_at - ip_at, at - (new_ip_at - ip_at) + bytes);
}
