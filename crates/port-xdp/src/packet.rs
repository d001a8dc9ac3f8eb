//! Super-segments through an AF_PACKET socket (packet(7)), for devices that segment TCP but have no zero-copy.
//!
//! The socket has PACKET_VNET_HDR, so that each send says how it is to be cut, and PACKET_QDISC_BYPASS, so that it goes straight
//! to the driver. That path cuts nothing in software: a device whose segmentation is off refuses (ENOBUFS), as it does when its
//! queue is full. Segmentation comes and goes with `ethtool -K`, and on a veth with the XDP program of its peer. So a refusal
//! has the device's features read: if they are gone the port has no large sends until they are back, which is looked at once a
//! second; if not, it was the queue, and after some of those in a row the port has a pause, too.
//!
//! Left out: the choice of a transmit queue (the kernel takes the one of the processor or of the flow's hash, as for its own
//! packets), and several super-segments in one call.

use crate::ethtool;
use crate::stats::Stats;
use port::{Large, MAX_PIECES, MOST_BYTES, Segmentation};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the port is without large sends before the device is looked at again.
const PAUSE: Duration = Duration::from_secs(1);
/// Refusals in a row, by a device that segments, before such a pause.
const REFUSALS: u32 = 8;
/// Bytes that may be in the device's queues, in the kernel's own count (with its overhead): some hundred super-segments.
const SEND_BUFFER_BYTES: i32 = 16 << 20;

/// `struct virtio_net_hdr` (virtio 1.2 section 5.1.6), in the machine's byte order.
const VNET_BYTES: usize = 10;
const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// Where the checksum stands in a TCP header.
const CHECKSUM_AT: u16 = 16;
/// Pieces in front of the payload: the virtio header, the packet's headers.
const FRONT: usize = 2;

/// The socket of one queue's thread.
#[derive(Debug)]
pub(crate) struct Packet {
    socket: OwnedFd,
    interface: String,
    most_bytes: usize,
    /// no large sends before
    paused_until: Option<Instant>,
    refusals: u32,
    stats: Arc<Stats>,
}

impl Packet {
    /// A socket on the interface, which receives nothing.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn open(interface: &str, index: u32, gso_max_bytes: Option<u32>, stats: Arc<Stats>) -> io::Result<Self> {
        let socket = ethtool::packet_socket()?;
        ethtool::send_segments(socket.as_fd(), index)?;
        // without the privilege the usual bound is a smaller number of super-segments under way
        let _ = ethtool::force_send_buffer(socket.as_fd(), SEND_BUFFER_BYTES);
        // the kernel refuses frames of that size and above
        let most = gso_max_bytes.map_or(MOST_BYTES, |bytes| (bytes as usize).saturating_sub(1).min(MOST_BYTES));
        let interface = interface.to_owned();
        // the device is looked at when something is to be sent
        let paused_until = Some(Instant::now());
        Ok(Packet { socket, interface, most_bytes: most, paused_until, refusals: 0, stats })
    }

    /// Whether sends are to be tried now.
    #[inline]
    pub(crate) fn is_ready(&mut self) -> bool {
        self.paused_until.is_none() || self.look_again()
    }

    #[cold]
    fn look_again(&mut self) -> bool {
        let now = Instant::now();
        if self.paused_until.is_some_and(|until| now < until) {
            return false;
        }
        let back = segments(&self.interface);
        self.paused_until = (!back).then(|| now + PAUSE);
        self.refusals = 0;
        back
    }

    #[cold]
    fn refused(&mut self) {
        self.stats.large_refused.add(1);
        self.refusals += 1;
        if self.refusals >= REFUSALS || !segments(&self.interface) {
            self.paused_until = Some(Instant::now() + PAUSE);
        }
    }
}

/// Whether the device cuts TCP.
fn segments(interface: &str) -> bool {
    ethtool::segments_tcp(interface).unwrap_or(false)
}

impl Large for Packet {
    fn most_bytes(&mut self) -> usize {
        self.most_bytes
    }

    fn send(&mut self, header: &[u8], payload: &[&[u8]], how: &Segmentation) -> bool {
        let bytes: usize = payload.iter().map(|piece| piece.len()).sum();
        let front = vnet_header(header.len(), bytes, how);
        let mut pieces = [IoSlice::new(&[]); FRONT + MAX_PIECES];
        let Some(room) = pieces.get_mut(..FRONT + payload.len()) else { return false };
        room[0] = IoSlice::new(&front);
        room[1] = IoSlice::new(header);
        for (to, from) in room[FRONT..].iter_mut().zip(payload) {
            *to = IoSlice::new(from);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(&self.socket, room, &mut SendAncillaryBuffer::default(), flags) {
            Ok(_) => {
                self.refusals = 0;
                self.stats.large_sends.add(1);
                self.stats.large_bytes.add(bytes as u64);
                true
            }
            Err(_) => {
                self.refused();
                false
            }
        }
    }
}

fn vnet_header(header_bytes: usize, payload_bytes: usize, how: &Segmentation) -> [u8; VNET_BYTES] {
    let several = payload_bytes > usize::from(how.segment_bytes);
    let kind = match several {
        false => GSO_NONE,
        true if how.v6 => GSO_TCPV6,
        true => GSO_TCPV4,
    };
    let size = if several { how.segment_bytes } else { 0 };
    let mut bytes = [0; VNET_BYTES];
    bytes[..2].copy_from_slice(&[NEEDS_CSUM, kind]);
    let words = [header_bytes as u16, size, how.tcp_at as u16, CHECKSUM_AT];
    for (to, word) in bytes[2..].as_chunks_mut::<2>().0.iter_mut().zip(words) {
        *to = word.to_ne_bytes();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_told_where_the_headers_are_and_how_long_a_segment_is() {
        let how = Segmentation { segment_bytes: 1448, ip_at: 14, tcp_at: 54, v6: true };
        let words = |bytes: [u8; VNET_BYTES]| [2, 4, 6, 8].map(|at| u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
        let several = vnet_header(86, 1449, &how);
        assert_eq!((several[0], several[1], words(several)), (1, 4, [86, 1448, 54, 16]));
        let one = vnet_header(66, 1448, &Segmentation { tcp_at: 34, v6: false, ..how });
        assert_eq!((one[0], one[1], words(one)), (1, 0, [66, 0, 34, 16]));
        let v4 = vnet_header(66, 2000, &Segmentation { tcp_at: 34, v6: false, ..how });
        assert_eq!(v4[1], 1);
    }
}
