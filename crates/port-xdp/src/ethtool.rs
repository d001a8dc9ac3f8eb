//! The ethtool ioctls and AF_PACKET options that `device`, `nic` and `packet` need.
//!
//! Soundness: each call hands the kernel a pointer to a live value of the layout that linux/ethtool.h or linux/if_packet.h gives for
//! that command; the kernel writes at most that value. Where an answer's length varies, it is what the counts at its beginning
//! say, which `nic` sets to what it has room for.

#![allow(unsafe_code)]

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GTSO: u32 = 0x1e;
const ETHTOOL_GRXRINGS: u32 = 0x2d;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
/// linux/if_packet.h; crate libc lacks it.
const PACKET_VNET_HDR: libc::c_int = 15;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

/// `struct ethtool_channels`, without its command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channels {
    pub(crate) rx: u32,
    pub(crate) tx: u32,
    pub(crate) combined: u32,
}

impl Channels {
    /// Queues that receive.
    pub(crate) fn receiving(self) -> u32 {
        self.combined + self.rx
    }
}

/// Queues in use.
pub(crate) fn channels(interface: &str) -> io::Result<Channels> {
    // cmd, max rx, tx, other, combined, then the counts in the same order
    let mut words = [0u32; 9];
    words[0] = ETHTOOL_GCHANNELS;
    ask(interface, &mut words)?;
    Ok(Channels { rx: words[5], tx: words[6], combined: words[8] })
}

/// Receive queues in use, by the older command.
pub(crate) fn receive_queues(interface: &str) -> io::Result<u32> {
    // struct ethtool_rxnfc is 192 bytes; data is its second u64
    let mut words = [0u64; 24];
    words[0] = u64::from(ETHTOOL_GRXRINGS.to_le());
    ask(interface, &mut words)?;
    u32::try_from(words[1]).map_err(io::Error::other)
}

/// The driver's name.
pub(crate) fn driver(interface: &str) -> io::Result<String> {
    // struct ethtool_drvinfo is 196 bytes: the command, then driver[32]
    let mut words = [0u32; 49];
    words[0] = ETHTOOL_GDRVINFO;
    ask(interface, &mut words)?;
    let bytes: Vec<u8> = words[1..9].iter().flat_map(|word| word.to_ne_bytes()).take_while(|b| *b != 0).collect();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether the device takes the VLAN tag off received frames.
pub(crate) fn strips_vlan(interface: &str) -> io::Result<bool> {
    let mut words = [ETHTOOL_GFLAGS, 0];
    ask(interface, &mut words)?;
    Ok(words[1] & ETH_FLAG_RXVLAN != 0)
}

/// Whether the device cuts TCP segments, at least those over one of IPv4 and IPv6.
pub(crate) fn segments_tcp(interface: &str) -> io::Result<bool> {
    let mut words = [ETHTOOL_GTSO, 0];
    ask(interface, &mut words)?;
    Ok(words[1] != 0)
}

/// Integers only, so whatever the kernel writes is a value.
pub(crate) trait Words {}
impl<const N: usize> Words for [u32; N] {}
impl<const N: usize> Words for [u64; N] {}
impl Words for [u32] {}

pub(crate) fn ask<T: Words + ?Sized>(interface: &str, value: &mut T) -> io::Result<()> {
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut name = [0; libc::IFNAMSIZ];
    if interface.len() >= name.len() {
        return Err(io::ErrorKind::NotFound.into());
    }
    for (to, from) in name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    let data = libc::__c_anonymous_ifr_ifru { ifru_data: std::ptr::from_mut(value).cast() };
    let mut request = libc::ifreq { ifr_name: name, ifr_ifru: data };
    // SAFETY: the request is a live ifreq whose data points at a live, writable value of the command's size (module doc).
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if asked < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// An AF_PACKET socket that receives nothing.
pub(crate) fn packet_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointer is passed.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What an interface hears beside frames for its own address.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hears {
    /// a group
    Group([u8; 6]),
    /// all there is (promiscuous mode)
    Everything,
}

/// Makes the interface hear more, until the socket is closed (packet(7)).
pub(crate) fn hear(socket: RawFd, interface: u32, what: Hears) -> io::Result<()> {
    let mut address = [0; 8];
    let mr_type = match what {
        Hears::Group(group) => {
            address[..6].copy_from_slice(&group);
            libc::PACKET_MR_MULTICAST
        }
        Hears::Everything => libc::PACKET_MR_PROMISC,
    };
    let request = libc::packet_mreq {
        mr_ifindex: interface as libc::c_int,
        mr_type: mr_type as u16,
        mr_alen: 6,
        mr_address: address,
    };
    set(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Makes the socket send to the interface, straight to its driver, with a virtio header in front of each packet.
pub(crate) fn send_segments(socket: BorrowedFd<'_>, interface: u32) -> io::Result<()> {
    let on: libc::c_int = 1;
    for option in [PACKET_VNET_HDR, libc::PACKET_QDISC_BYPASS] {
        set(socket.as_raw_fd(), libc::SOL_PACKET, option, &on)?;
    }
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        // no protocol: nothing is received
        sll_protocol: 0,
        sll_ifindex: interface as libc::c_int,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe a live sockaddr_ll, which the kernel copies.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets the bound on bytes under way beyond the administrator's (CAP_NET_ADMIN).
pub(crate) fn force_send_buffer(socket: BorrowedFd<'_>, bytes: libc::c_int) -> io::Result<()> {
    set(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
}

fn set<T>(socket: RawFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe a live T, which the kernel copies.
    let set = unsafe { libc::setsockopt(socket, level, option, std::ptr::from_ref(value).cast(), bytes) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
