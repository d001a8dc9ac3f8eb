//! The system calls that no safe crate covers: recvmmsg and sendmmsg with control data, and a few socket options.
//!
//! Soundness: a [`Batch`] owns its buffers, names, control areas and headers as heap memory that is never moved or resized
//! ([`Pinned`]), so the pointers that the headers carry stay valid as long as the batch. All access goes through that one
//! raw pointer: a `&mut` into a buffer lives no longer than the borrow of the batch, and the kernel writes only inside a call
//! that holds the batch by `&mut`. Names and control data are plain bytes and are read with checks; the lengths that the
//! kernel reports are bounded by what it was offered before they are used.

#![allow(unsafe_code)]

use app::Ecn;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// Heap memory at a fixed address, reached through one raw pointer.
struct Pinned<T>(NonNull<[T]>);

impl<T> Pinned<T> {
    fn new(count: usize, make: impl FnMut(usize) -> T) -> Self {
        let boxed: Box<[T]> = (0..count).map(make).collect();
        Pinned(NonNull::from(Box::leak(boxed)))
    }

    /// The address of element `index`.
    fn at(&self, index: usize) -> *mut T {
        assert!(index < self.0.len(), "element {index} of {}", self.0.len());
        self.0.cast::<T>().as_ptr().wrapping_add(index)
    }

    fn get(&self) -> &[T] {
        // SAFETY: the allocation is ours and initialised; `&self` keeps writers away (module doc).
        unsafe { self.0.as_ref() }
    }

    fn get_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` makes it the only access.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Box::leak` and is given back once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// A peer's address as the kernel writes it: a sockaddr_in or sockaddr_in6.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Name([u8; NAME_BYTES]);
const NAME_BYTES: usize = size_of::<libc::sockaddr_in6>();

/// Room for the control messages that are asked for: packet info (36 bytes at most) and the traffic class (20).
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);
const CONTROL_BYTES: usize = 96;
const CMSG_HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
const WORD_BYTES: usize = size_of::<usize>();

/// An address of ours that a datagram came to, or is to leave from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    ip: IpAddr,
    /// the interface's index for a link-local address, which is one only there (RFC 4007 section 6); 0 otherwise: the route decides
    interface: u32,
}

impl Source {
    pub(crate) fn new(ip: IpAddr, interface: u32) -> Source {
        let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        Source { ip, interface: if is_link_local { interface } else { 0 } }
    }

    /// The address of a local end.
    pub(crate) fn of(local: SocketAddr) -> Source {
        let scope = if let SocketAddr::V6(local) = local { local.scope_id() } else { 0 };
        Source::new(local.ip(), scope)
    }

    /// The local end at `port`.
    pub(crate) fn end(self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V4(ip) => (ip, port).into(),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, self.interface).into(),
        }
    }
}

/// What came with one datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) bytes: usize,
    /// it was longer than the buffer
    pub(crate) cut: bool,
    /// None for an address family that is neither IPv4 nor IPv6
    pub(crate) peer: Option<SocketAddr>,
    /// the address it was sent to, when packet info is on
    pub(crate) local: Option<Source>,
    pub(crate) ecn: Ecn,
}

/// Buffers and headers for one burst of datagrams, received and answered in place.
pub(crate) struct Batch {
    slot_bytes: usize,
    buffers: Pinned<u8>,
    names: Pinned<Name>,
    controls: Pinned<Control>,
    /// the receive headers' one io vector each, never changed
    _receive_vectors: Pinned<libc::iovec>,
    receive: Pinned<libc::mmsghdr>,
    send_vectors: Pinned<libc::iovec>,
    send: Pinned<libc::mmsghdr>,
    /// answers queued in `send`
    queued: usize,
    /// receive headers that the kernel has written to
    dirty: usize,
    with_control: bool,
}

fn header() -> libc::mmsghdr {
    // SAFETY: null pointers and zero lengths are a valid msghdr that describes nothing.
    unsafe { zeroed() }
}

impl Batch {
    /// A batch of `slots` datagrams of up to `slot_bytes`.
    pub(crate) fn new(slots: usize, slot_bytes: usize) -> Batch {
        let buffers = Pinned::new(slots * slot_bytes, |_| 0u8);
        let names = Pinned::new(slots, |_| Name([0; NAME_BYTES]));
        let controls = Pinned::new(slots, |_| Control([0; CONTROL_BYTES]));
        let receive_vectors =
            Pinned::new(slots, |n| libc::iovec { iov_base: buffers.at(n * slot_bytes).cast(), iov_len: slot_bytes });
        let receive = Pinned::new(slots, |n| {
            let mut header = header();
            header.msg_hdr.msg_name = names.at(n).cast();
            header.msg_hdr.msg_iov = receive_vectors.at(n);
            header.msg_hdr.msg_iovlen = 1;
            header
        });
        let send_vectors = Pinned::new(slots, |_| libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 });
        let send = Pinned::new(slots, |n| {
            let mut header = header();
            header.msg_hdr.msg_iov = send_vectors.at(n);
            header.msg_hdr.msg_iovlen = 1;
            header
        });
        Batch {
            slot_bytes,
            buffers,
            names,
            controls,
            _receive_vectors: receive_vectors,
            receive,
            send_vectors,
            send,
            queued: 0,
            dirty: slots,
            with_control: false,
        }
    }

    /// Datagrams a batch holds.
    pub(crate) fn slots(&self) -> usize {
        self.names.get().len()
    }

    fn prepare(&mut self, with_control: bool) {
        let dirty = if with_control == self.with_control { self.dirty } else { self.slots() };
        self.with_control = with_control;
        let controls = &self.controls;
        for (n, header) in self.receive.get_mut()[..dirty].iter_mut().enumerate() {
            let header = &mut header.msg_hdr;
            header.msg_namelen = NAME_BYTES as u32;
            header.msg_control = if with_control { controls.at(n).cast() } else { std::ptr::null_mut() };
            header.msg_controllen = if with_control { CONTROL_BYTES as _ } else { 0 };
            header.msg_flags = 0;
        }
        self.dirty = 0;
        self.queued = 0;
    }

    /// Receives up to `limit` datagrams into the first slots, without waiting. `with_control`: the socket was told to deliver
    /// control data.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>, limit: usize, with_control: bool) -> io::Result<usize> {
        let limit = limit.min(self.slots());
        self.prepare(with_control);
        let headers = self.receive.at(0);
        // SAFETY: the first `limit` headers describe memory of this batch, which is borrowed mutably for the call.
        let n = unsafe {
            libc::recvmmsg(socket.as_raw_fd(), headers, limit as u32, libc::MSG_DONTWAIT as _, std::ptr::null_mut())
        };
        // an error may have come after the kernel had written to a header
        self.dirty = usize::try_from(n).map_or(limit, |n| (n + 1).min(limit));
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// The first `count` slots: what came, and the buffer that holds it.
    pub(crate) fn received(&mut self, count: usize) -> impl Iterator<Item = (Received, &mut [u8])> {
        let Batch { slot_bytes, buffers, names, controls, receive, .. } = self;
        let slot_bytes = *slot_bytes;
        let meta = receive.get()[..count].iter().zip(names.get()).zip(controls.get());
        meta.zip(buffers.get_mut().chunks_exact_mut(slot_bytes)).map(move |(((header, name), control), buffer)| {
            let mut received = Received {
                bytes: (header.msg_len as usize).min(slot_bytes),
                cut: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
                peer: address(&name.0),
                local: None,
                ecn: Ecn::NotEct,
            };
            let used = header.msg_hdr.msg_controllen.min(CONTROL_BYTES);
            read_control(&control.0[..used], &mut received);
            (received, buffer)
        })
    }

    /// Begins a burst that answers nothing: what was received in the slots is not needed any more.
    pub(crate) fn begin(&mut self) {
        self.queued = 0;
    }

    /// Puts a datagram to `peer` into a slot, to be queued. Behind [`Batch::begin`].
    ///
    /// # Panics
    /// When it is longer than a slot, or there is no such slot.
    pub(crate) fn put(&mut self, slot: usize, peer: SocketAddr, bytes: &[u8]) {
        assert!(bytes.len() <= self.slot_bytes, "a datagram of {} bytes", bytes.len());
        let at = slot * self.slot_bytes;
        self.buffers.get_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        let name_bytes = write_address(&mut self.names.get_mut()[slot].0, peer);
        self.receive.get_mut()[slot].msg_hdr.msg_namelen = name_bytes;
        // the next receive has to offer the whole name again
        self.dirty = self.dirty.max(slot + 1);
    }

    /// Queues the first `bytes` of `slot` as an answer to its peer, from `source` if given.
    pub(crate) fn queue(&mut self, slot: usize, bytes: usize, source: Option<Source>) {
        debug_assert!(bytes <= self.slot_bytes, "an answer of {bytes} bytes");
        let control_bytes = source.map_or(0, |source| write_source(&mut self.controls.get_mut()[slot].0, source));
        let vector = &mut self.send_vectors.get_mut()[self.queued];
        vector.iov_base = self.buffers.at(slot * self.slot_bytes).cast();
        vector.iov_len = bytes.min(self.slot_bytes);
        let name_bytes = self.receive.get()[slot].msg_hdr.msg_namelen.min(NAME_BYTES as u32);
        let header = &mut self.send.get_mut()[self.queued].msg_hdr;
        header.msg_name = self.names.at(slot).cast();
        header.msg_namelen = name_bytes;
        header.msg_control = if control_bytes > 0 { self.controls.at(slot).cast() } else { std::ptr::null_mut() };
        header.msg_controllen = control_bytes as _;
        self.queued += 1;
    }

    /// Answers queued since the last receive.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Sends the queued answers from number `first` on, without waiting; how many the kernel took, at least one.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>, first: usize) -> io::Result<usize> {
        assert!(first < self.queued, "answer {first} of {}", self.queued);
        let (headers, count) = (self.send.at(first), (self.queued - first) as u32);
        // SAFETY: the headers from `first` to `queued` describe memory of this batch, which is borrowed for the call.
        let n = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers, count, libc::MSG_DONTWAIT as _) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

/// Writes a peer's address as [`address`] reads it; its bytes.
fn write_address(name: &mut [u8; NAME_BYTES], peer: SocketAddr) -> u32 {
    name.fill(0);
    name[2..4].copy_from_slice(&peer.port().to_be_bytes());
    match peer {
        SocketAddr::V4(peer) => {
            name[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            name[4..8].copy_from_slice(&peer.ip().octets());
            size_of::<libc::sockaddr_in>() as u32
        }
        SocketAddr::V6(peer) => {
            name[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            name[8..24].copy_from_slice(&peer.ip().octets());
            name[24..28].copy_from_slice(&peer.scope_id().to_ne_bytes());
            NAME_BYTES as u32
        }
    }
}

fn address(name: &[u8; NAME_BYTES]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes([name[2], name[3]]);
    match i32::from(u16::from_ne_bytes([name[0], name[1]])) {
        libc::AF_INET => {
            let ip: [u8; 4] = name[4..8].try_into().expect("4 bytes");
            Some(SocketAddr::new(Ipv4Addr::from(ip).into(), port))
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = name[8..24].try_into().expect("16 bytes");
            let scope: [u8; 4] = name[24..28].try_into().expect("4 bytes");
            Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, u32::from_ne_bytes(scope)).into())
        }
        _ => None,
    }
}

/// Walks the control messages (cmsg(3)): a header of length, level and type, then data, each aligned to a word.
fn read_control(mut control: &[u8], into: &mut Received) {
    while control.len() >= CMSG_HEADER_BYTES {
        let (head, _) = control.split_at(CMSG_HEADER_BYTES);
        let length = usize::from_ne_bytes(head[..WORD_BYTES].try_into().expect("a word"));
        let level = i32::from_ne_bytes(head[WORD_BYTES..WORD_BYTES + 4].try_into().expect("4 bytes"));
        let kind = i32::from_ne_bytes(head[WORD_BYTES + 4..WORD_BYTES + 8].try_into().expect("4 bytes"));
        if length < CMSG_HEADER_BYTES || length > control.len() {
            return;
        }
        let data = &control[CMSG_HEADER_BYTES..length];
        match (level, kind, data) {
            // struct in_pktinfo: interface, the local address, the header's destination
            (libc::IPPROTO_IP, libc::IP_PKTINFO, &[_, _, _, _, a, b, c, d, ..]) => {
                into.local = Some(Source::new(Ipv4Addr::new(a, b, c, d).into(), 0));
            }
            // struct in6_pktinfo: the address, interface
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, data) if data.len() >= 20 => {
                let ip: [u8; 16] = data[..16].try_into().expect("16 bytes");
                let interface: [u8; 4] = data[16..20].try_into().expect("4 bytes");
                into.local = Some(Source::new(Ipv6Addr::from(ip).into(), u32::from_ne_bytes(interface)));
            }
            // one byte for IPv4, an int for IPv6
            (libc::IPPROTO_IP, libc::IP_TOS, &[bits, ..]) => into.ecn = Ecn::from_bits(bits),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &[a, b, c, d, ..]) => {
                into.ecn = Ecn::from_bits(i32::from_ne_bytes([a, b, c, d]) as u8);
            }
            _ => {}
        }
        control = &control[length.next_multiple_of(WORD_BYTES).min(control.len())..];
    }
}

/// Writes the control message that makes `source` the answer's source; the bytes of control data.
fn write_source(control: &mut [u8; CONTROL_BYTES], source: Source) -> usize {
    let (level, kind, data_bytes) = match source.ip {
        IpAddr::V4(ip) => {
            let data = &mut control[CMSG_HEADER_BYTES..CMSG_HEADER_BYTES + 12];
            data.fill(0);
            data[4..8].copy_from_slice(&ip.octets());
            (libc::IPPROTO_IP, libc::IP_PKTINFO, 12)
        }
        IpAddr::V6(ip) => {
            let data = &mut control[CMSG_HEADER_BYTES..CMSG_HEADER_BYTES + 20];
            data.fill(0);
            data[..16].copy_from_slice(&ip.octets());
            data[16..].copy_from_slice(&source.interface.to_ne_bytes());
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, 20)
        }
    };
    let length = CMSG_HEADER_BYTES + data_bytes;
    control[..WORD_BYTES].copy_from_slice(&length.to_ne_bytes());
    control[WORD_BYTES..WORD_BYTES + 4].copy_from_slice(&level.to_ne_bytes());
    control[WORD_BYTES + 4..WORD_BYTES + 8].copy_from_slice(&kind.to_ne_bytes());
    length.next_multiple_of(WORD_BYTES)
}

/// Has receives on `socket` that find nothing poll the device's queue for `us` microseconds before they sleep (SO_BUSY_POLL of
/// socket(7)); one that may not sleep polls it once. It works where the kernel knows which NAPI instance feeds the socket.
///
/// # Errors
/// The kernel's: to raise the time above net.core.busy_read needs CAP_NET_ADMIN.
pub fn set_busy_poll(socket: BorrowedFd<'_>, us: u32) -> io::Result<()> {
    let us = i32::try_from(us).map_err(|_| io::ErrorKind::InvalidInput)?;
    set_option(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, us)?;
    // keeps the device's interrupts off between polls where napi_defer_hard_irqs is set; without the right to ask, no loss
    let _ = set_option(socket, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, 1);
    Ok(())
}

/// struct epoll_params of linux/eventpoll.h, which crate libc has with a field that cannot be set.
#[repr(C)]
struct EpollParams {
    busy_poll_usecs: u32,
    busy_poll_budget: u16,
    prefer_busy_poll: u8,
    pad: u8,
}

/// Packets that one look at the queue takes; more would need CAP_NET_ADMIN.
const EPOLL_BUDGET: u16 = 8;

/// As [`set_busy_poll`], for waits on `epoll`.
///
/// # Errors
/// The kernel's: before Linux 6.9 there is none.
pub fn set_epoll_busy_poll(epoll: BorrowedFd<'_>, us: u32) -> io::Result<()> {
    let params = EpollParams { busy_poll_usecs: us, busy_poll_budget: EPOLL_BUDGET, prefer_busy_poll: 0, pad: 0 };
    let at: *const EpollParams = &params;
    // SAFETY: the kernel reads the structure that `at` points at, which outlives the call and has the request's layout; on a
    // descriptor that is no epoll instance the request is refused.
    let rc = unsafe { libc::ioctl(epoll.as_raw_fd(), libc::EPIOCSPARAMS, at) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets an integer socket option.
pub(crate) fn set_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    let at: *const i32 = &value;
    // SAFETY: `at` points at `value`, which outlives the call and has the length given.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, at.cast(), size_of::<i32>() as u32) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The processor whose packets a socket of a reuseport group is preferred for (SO_INCOMING_CPU, socket(7)); -1: none.
pub(crate) fn set_incoming_cpu(socket: BorrowedFd<'_>, processor: i32) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_INCOMING_CPU, processor)
}

/// Reads an option that is a row of 32-bit words, such as struct tcp_info and SO_MEMINFO; as many as the kernel has and `N` hold.
fn words<const N: usize>(socket: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<[u32; N]> {
    let mut words = [0u32; N];
    let mut bytes = size_of::<[u32; N]>() as u32;
    let at: *mut u32 = words.as_mut_ptr();
    // SAFETY: `at` points at `words`, of which the kernel writes at most the `bytes` that it has.
    let rc = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, at.cast(), &raw mut bytes) };
    if rc == 0 { Ok(words) } else { Err(io::Error::last_os_error()) }
}

/// Connections that wait in a listener's accept queue: tcpi_unacked, which means that for listeners.
pub(crate) fn accept_queue(listener: BorrowedFd<'_>) -> io::Result<u32> {
    // eight bytes of state, four words of timeouts and sizes, then tcpi_unacked
    words::<8>(listener, libc::IPPROTO_TCP, libc::TCP_INFO).map(|info| info[6])
}

/// What waits in a socket's receive buffer and what it holds at most, in bytes of kernel memory: SK_MEMINFO_RMEM_ALLOC and
/// SK_MEMINFO_RCVBUF.
pub(crate) fn receive_queue(socket: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    words::<2>(socket, libc::SOL_SOCKET, libc::SO_MEMINFO).map(|info| (info[0], info[1]))
}

/// Datagrams that the kernel has not queued at a socket since it was made, wrapping: SK_MEMINFO_DROPS.
pub(crate) fn unqueued(socket: BorrowedFd<'_>) -> io::Result<u32> {
    words::<9>(socket, libc::SOL_SOCKET, libc::SO_MEMINFO).map(|info| info[8])
}

/// Has the epoll instance `poll` tell of `source` under `token`, edge-triggered, and wake no more than needed of all that
/// watch it. `mio` has no such interest.
pub(crate) fn watch_exclusively(poll: BorrowedFd<'_>, source: BorrowedFd<'_>, token: u64) -> io::Result<()> {
    use rustix::event::epoll::{EventData, EventFlags, add};
    let flags = EventFlags::IN | EventFlags::ET | EventFlags::EXCLUSIVE;
    Ok(add(poll, source, EventData::new_u64(token), flags)?)
}

/// The descriptor of an epoll instance.
pub(crate) fn descriptor(poll: &mio::Poll) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is `poll`'s, which is borrowed for as long.
    unsafe { BorrowedFd::borrow_raw(poll.as_raw_fd()) }
}

/// Has a classic BPF program choose between the sockets of the reuseport group that `socket` is of, by the index that it returns.
pub(crate) fn attach_classic(socket: BorrowedFd<'_>, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let program = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    let at: *const libc::sock_fprog = &program;
    // SAFETY: `at` points at `program`, whose filter has `length` instructions; the kernel copies both during the call.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            at.cast(),
            size_of::<libc::sock_fprog>() as u32,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_data_that_lies_about_its_length_is_ignored() {
        let blank = || Received { bytes: 0, cut: false, peer: None, local: None, ecn: Ecn::NotEct };
        let mut control = [0u8; CONTROL_BYTES];
        let source = Source::new("192.0.2.9".parse().unwrap(), 0);
        let used = write_source(&mut control, source);
        let mut got = blank();
        read_control(&control[..used], &mut got);
        assert_eq!(got.local, Some(source));
        for length in [0usize, 15, 97, usize::MAX] {
            control[..WORD_BYTES].copy_from_slice(&length.to_ne_bytes());
            let mut got = blank();
            read_control(&control[..used], &mut got);
            assert_eq!(got.local, None, "length {length}");
        }
    }

    #[test]
    fn an_address_survives_both_families() {
        for peer in ["192.0.2.1:53", "[2001:db8::1]:65535", "[fe80::1%7]:1"] {
            let peer = peer.parse().unwrap();
            let mut name = [0xff; NAME_BYTES];
            let bytes = write_address(&mut name, peer);
            assert_eq!((address(&name), bytes), (Some(peer), if peer.is_ipv4() { 16 } else { 28 }));
        }
    }

    #[test]
    fn a_source_survives_both_families() {
        for (local, kept) in [
            ("198.51.100.7:53", "198.51.100.7:53"),
            ("[2001:db8::7%3]:53", "[2001:db8::7]:53"),
            ("[fe80::7%3]:53", "[fe80::7%3]:53"),
        ] {
            let source = Source::of(local.parse().unwrap());
            assert_eq!(source.end(53), kept.parse().unwrap(), "an interface is a link-local address's alone");
            let mut control = [0xff; CONTROL_BYTES];
            let used = write_source(&mut control, source);
            let mut got = Received { bytes: 0, cut: false, peer: None, local: None, ecn: Ecn::NotEct };
            // in_pktinfo carries the source where the kernel reports the local address
            read_control(&control[..used], &mut got);
            assert_eq!(got.local, Some(source));
        }
    }
}
