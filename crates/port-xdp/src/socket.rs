//! AF_XDP sockets: made, given memory and rings, bound.
//!
//! What this layer leaves out: shared UMEM between devices, unaligned chunks, transmit metadata, multi-buffer frames. A
//! socket is closed when its descriptor and its four rings are gone; only then does the kernel free its queue.

#![allow(unsafe_code)]

use crate::ring::{Address, AllOffsets, Descriptor, Drains, Fills, Ring};
use base::Arena;
use rustix::process::{Resource, Uid};
use rustix::thread::CapabilitySet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// SOL_XDP's option for descriptors a sendto() in copy mode (Linux 6.17); 32 without it.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
const SO_PREFER_BUSY_POLL: libc::c_int = 69;
const SO_BUSY_POLL_BUDGET: libc::c_int = 70;

/// Slots of the four rings, each a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) rx: u32,
    pub(crate) tx: u32,
    pub(crate) fill: u32,
    pub(crate) completion: u32,
}

/// Where a socket's memory comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory<'a> {
    /// registered with this socket
    Register(&'a Arena),
    /// registered with that bound socket of the same interface
    Share(BorrowedFd<'a>),
}

/// How a socket is bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding {
    pub(crate) ifindex: u32,
    pub(crate) queue: u32,
    pub(crate) zerocopy: bool,
    /// packets larger than a chunk come in several (XDP_USE_SG, Linux 6.6); without it the kernel drops them
    pub(crate) pieces: bool,
}

/// What was asked of the kernel when it refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Open,
    Register,
    Rings,
    Bind,
    Place,
}

/// What the kernel refuses for a moment after a socket was closed, since it frees what that had apart from the call: its memory's part of
/// the limit, and the queue.
pub(crate) const NO_ROOM: (Step, i32) = (Step::Register, libc::ENOBUFS);
pub(crate) const TAKEN: (Step, i32) = (Step::Bind, libc::EBUSY);

/// The kernel's answer, and to what.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) step: Step,
    pub(crate) why: io::Error,
}

impl Refused {
    /// Whether this step was refused with this error.
    pub(crate) fn is(&self, (step, error): (Step, i32)) -> bool {
        self.step == step && self.why.raw_os_error() == Some(error)
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let doing = match self.step {
            Step::Open => "none is left of those opened in advance, and opening another",
            Step::Register => "registering memory",
            Step::Rings => "making rings",
            Step::Bind => "binding it",
            Step::Place => "giving it to the steering program",
        };
        write!(f, "{doing}: {}", self.why)
    }
}

pub(crate) fn at(step: Step) -> impl Fn(io::Error) -> Refused {
    move |why| Refused { step, why }
}

/// A bound socket with its rings.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) receiver: Receiver,
    pub(crate) sender: Sender,
    /// what was asked for and took effect
    pub(crate) tx_budget: bool,
}

/// The half that receives.
#[derive(Debug)]
pub(crate) struct Receiver {
    // the rings go first: they keep the queue as the descriptor does
    pub(crate) ring: Ring<Descriptor, Drains>,
    pub(crate) fill: Ring<Address, Fills>,
    fd: Arc<OwnedFd>,
}

/// The half that sends.
#[derive(Debug)]
pub(crate) struct Sender {
    // as above
    pub(crate) ring: Ring<Descriptor, Fills>,
    pub(crate) completion: Ring<Address, Drains>,
    fd: Arc<OwnedFd>,
    zerocopy: bool,
    /// at whose limit on locked memory there is room when it is closed; None where its memory does not count, or is not its alone
    pub(crate) counts_for: Option<Uid>,
}

/// Bytes of frames that the kernel may have under way from a socket in copy mode, as it counts them: a full frame counts for some
/// 2,300, so that the preset of most systems (net.core.wmem_default, 212,992) stops the ring at 92. How many may be under way is
/// for the rings and the device to say.
const UNDER_WAY_BYTES: libc::c_int = 8 << 20;

/// A descriptor that is not yet bound, which needs CAP_NET_RAW; binding it later does not.
pub(crate) fn open() -> io::Result<OwnedFd> {
    // SAFETY: no pointer is passed.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor to us alone.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // without CAP_NET_ADMIN the preset stands, and full frames go in smaller bursts
    let _ = set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &UNDER_WAY_BYTES);
    Ok(fd)
}

/// A socket that is to be bound. None other may be had once privileges have gone, so whatever the kernel refuses, it goes on from there
/// when it is asked again.
#[derive(Debug)]
pub(crate) struct Unbound {
    fd: OwnedFd,
    sizes: Sizes,
    /// its memory is registered
    has_memory: bool,
    /// and counts at this user's limit
    counts_for: Option<Uid>,
    /// rings that were made in the kernel
    made: usize,
}

/// One with memory and rings. A refused bind leaves it as it was.
#[derive(Debug)]
pub(crate) struct Ready {
    // as in a receiver
    rx: Ring<Descriptor, Drains>,
    tx: Ring<Descriptor, Fills>,
    fill: Ring<Address, Fills>,
    completion: Ring<Address, Drains>,
    of: Unbound,
}

impl Unbound {
    /// Opens one, as [`open`] does.
    pub(crate) fn open(sizes: Sizes) -> io::Result<Unbound> {
        Ok(Unbound::new(open()?, sizes))
    }

    pub(crate) fn new(fd: OwnedFd, sizes: Sizes) -> Unbound {
        Unbound { fd, sizes, has_memory: false, counts_for: None, made: 0 }
    }

    /// Gives it memory, if it is to have its own, and rings; or itself back, with what was refused.
    pub(crate) fn prepare(mut self, memory: Memory<'_>) -> Result<Ready, (Unbound, Refused)> {
        match self.rings(memory) {
            Ok((rx, tx, fill, completion)) => Ok(Ready { rx, tx, fill, completion, of: self }),
            Err(refused) => Err((self, refused)),
        }
    }

    fn rings(&mut self, memory: Memory<'_>) -> Result<Rings, Refused> {
        let (fd, sizes) = (self.fd.as_fd(), self.sizes);
        if let Memory::Register(arena) = memory
            && !self.has_memory
        {
            self.counts_for = register(fd, arena)?;
            self.has_memory = true;
        }
        let rings = [
            (libc::XDP_UMEM_FILL_RING, sizes.fill),
            (libc::XDP_UMEM_COMPLETION_RING, sizes.completion),
            (libc::XDP_RX_RING, sizes.rx),
            (libc::XDP_TX_RING, sizes.tx),
        ];
        // the kernel makes each once
        for (option, size) in rings.into_iter().skip(self.made) {
            set(fd, libc::SOL_XDP, option, &size).map_err(at(Step::Rings))?;
            self.made += 1;
        }
        let offsets: AllOffsets = get(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS).map_err(at(Step::Rings))?;
        let pages = [
            libc::XDP_PGOFF_RX_RING as u64,
            libc::XDP_PGOFF_TX_RING as u64,
            libc::XDP_UMEM_PGOFF_FILL_RING,
            libc::XDP_UMEM_PGOFF_COMPLETION_RING,
        ];
        let rx = Ring::consuming(fd, pages[0], offsets.rx, sizes.rx).map_err(at(Step::Rings))?;
        let tx = Ring::producing(fd, pages[1], offsets.tx, sizes.tx).map_err(at(Step::Rings))?;
        let fill = Ring::producing(fd, pages[2], offsets.fill, sizes.fill).map_err(at(Step::Rings))?;
        let completion = Ring::consuming(fd, pages[3], offsets.completion, sizes.completion);
        Ok((rx, tx, fill, completion.map_err(at(Step::Rings))?))
    }
}

type Rings = (Ring<Descriptor, Drains>, Ring<Descriptor, Fills>, Ring<Address, Fills>, Ring<Address, Drains>);

impl Ready {
    /// Asks the kernel for the queue.
    pub(crate) fn bind(&self, memory: Memory<'_>, to: Binding) -> Result<(), Refused> {
        bind(self.of.fd.as_fd(), memory, to).map_err(at(Step::Bind))
    }

    /// The socket, after [`Ready::bind`] was granted.
    pub(crate) fn bound(self, to: Binding) -> Socket {
        let Ready { rx, tx, fill, completion, of: Unbound { fd, sizes, counts_for, .. } } = self;
        // it was granted as it was asked for
        let got: io::Result<u32> = get(fd.as_fd(), libc::SOL_XDP, libc::XDP_OPTIONS);
        let zerocopy = got.map_or(to.zerocopy, |got| got & libc::XDP_OPTIONS_ZEROCOPY != 0);
        let tx_budget = set(fd.as_fd(), libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &sizes.tx).is_ok();
        let fd = Arc::new(fd);
        let receiver = Receiver { ring: rx, fill, fd: fd.clone() };
        Socket { receiver, sender: Sender { ring: tx, completion, fd, zerocopy, counts_for }, tx_budget }
    }
}

impl Socket {
    /// Gives `fd` memory and rings and binds it. The fill ring is empty and must be filled before packets are expected.
    pub(crate) fn bind(fd: OwnedFd, memory: Memory<'_>, sizes: Sizes, to: Binding) -> Result<Socket, Refused> {
        let ready = Unbound::new(fd, sizes).prepare(memory).map_err(|(_, refused)| refused)?;
        ready.bind(memory, to)?;
        let mut socket = ready.bound(to);
        // some drivers accept the bind and refuse the first call
        if to.zerocopy
            && let Err(why) = socket.sender.send()
            && !accepts(&why)
        {
            return Err(Refused { step: Step::Bind, why });
        }
        Ok(socket)
    }

    pub(crate) fn fd(&self) -> &Arc<OwnedFd> {
        &self.sender.fd
    }

    /// Asks for preferred busy polling; an error when the kernel refuses it.
    pub(crate) fn prefer_busy_poll(&self, us: u32, budget: u32) -> io::Result<()> {
        let fd = self.fd().as_fd();
        set(fd, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &1u32)?;
        set(fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &us)?;
        set(fd, libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, &budget)
    }
}

impl Receiver {
    pub(crate) fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Makes the kernel look at the fill ring, and poll the device when busy polling.
    pub(crate) fn wake(&mut self) -> io::Result<()> {
        let (flags, none) = (libc::MSG_DONTWAIT, std::ptr::null_mut());
        // SAFETY: null buffer with length zero, and no address wanted: the kernel writes nothing.
        let got =
            unsafe { libc::recvfrom(self.fd.as_raw_fd(), std::ptr::null_mut(), 0, flags, none, std::ptr::null_mut()) };
        if got < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Sender {
    /// Frames in the transmit ring that the kernel has not taken.
    pub(crate) fn unsent(&mut self) -> u32 {
        self.ring.size() - self.ring.room(u32::MAX)
    }

    /// Whether the kernel uses our memory without a copy.
    pub(crate) fn is_zerocopy(&self) -> bool {
        self.zerocopy
    }

    pub(crate) fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Makes the kernel transmit what is in the transmit ring.
    #[inline]
    pub(crate) fn send(&mut self) -> io::Result<()> {
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: null buffer and address with zero lengths: the kernel reads neither.
        let sent = unsafe { libc::sendto(self.fd.as_raw_fd(), std::ptr::null(), 0, flags, std::ptr::null(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The NAPI instance that feeds the socket, 0 while the kernel knows none (a driver that does not map them, or, on older
    /// kernels, no packet yet).
    pub(crate) fn napi(&self) -> u32 {
        get(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID).unwrap_or(0)
    }
}

/// Errors of a send or bind that pass by themselves.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR))
}

/// Whether a driver that answers the first call of a socket with this serves it: later, or once it has carrier (ice, ixgbe and others say then that
/// the network is down).
fn accepts(error: &io::Error) -> bool {
    is_transient(error) || is_down(error)
}

/// The interface was taken down, which no other socket would change.
pub(crate) fn is_down(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENETDOWN)
}

/// `struct xdp_umem_reg`, as kernels up to 6.7 have it; newer ones accept the shorter form.
#[repr(C)]
struct UmemReg {
    address: u64,
    bytes: u64,
    chunk_bytes: u32,
    headroom: u32,
    flags: u32,
}

/// Registers the arena's memory with the socket; refused, it can be asked again. The kernel adds such memory up by real user, each
/// registration for itself, and compares the sum with RLIMIT_MEMLOCK, but where the thread has CAP_IPC_LOCK as it asks: whom it counts for.
fn register(fd: BorrowedFd<'_>, arena: &Arena) -> Result<Option<Uid>, Refused> {
    // whoever may not even ask has shut itself in, and laid down its capabilities before
    let has = rustix::thread::capabilities(None);
    let exempt = has.is_ok_and(|has| has.effective.contains(CapabilitySet::IPC_LOCK));
    let region = UmemReg {
        address: arena.as_ptr() as u64,
        bytes: arena.bytes() as u64,
        chunk_bytes: u32::from(arena.chunk_bytes()),
        headroom: 0,
        flags: 0,
    };
    set(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &region).map_err(at(Step::Register))?;
    Ok((!exempt).then(rustix::process::getuid))
}

/// Whether the limit on locked memory has room for this arena, if for no other beside it.
pub(crate) fn may_lock(arena: &Arena) -> bool {
    rustix::process::getrlimit(Resource::Memlock).current.is_none_or(|limit| limit >= arena.bytes() as u64)
}

fn bind(fd: BorrowedFd<'_>, memory: Memory<'_>, to: Binding) -> io::Result<()> {
    let (flags, umem) = match memory {
        // the socket that shares takes wakeup, mode and pieces from the first
        Memory::Share(owner) => (libc::XDP_SHARED_UMEM, owner.as_raw_fd() as u32),
        Memory::Register(_) => {
            let mode = if to.zerocopy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
            let pieces = if to.pieces { libc::XDP_USE_SG } else { 0 };
            (mode | pieces | libc::XDP_USE_NEED_WAKEUP, 0)
        }
    };
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: to.ifindex,
        sxdp_queue_id: to.queue,
        sxdp_shared_umem_fd: umem,
    };
    let bytes = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe a live sockaddr_xdp, which the kernel copies.
    let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), bytes) };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set<T>(fd: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe a live T, which the kernel copies.
    let set = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), bytes) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Types of which every bit pattern is a value.
trait Plain: Copy {}
impl Plain for u32 {}
impl Plain for AllOffsets {}
impl Plain for Statistics {}

fn get<T: Plain>(fd: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to the live, writable `value`, and the length back.
    let got = unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, value.as_mut_ptr().cast(), &raw mut bytes) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was zeroed, and zeros and whatever the kernel wrote are both a T (`Plain`).
    Ok(unsafe { value.assume_init() })
}

/// `struct xdp_statistics`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Statistics {
    pub(crate) rx_dropped: u64,
    pub(crate) rx_invalid: u64,
    pub(crate) tx_invalid: u64,
    pub(crate) rx_ring_full: u64,
    pub(crate) fill_empty: u64,
    pub(crate) tx_empty: u64,
}

/// What the kernel counted at the socket `fd` since it was made.
pub(crate) fn statistics(fd: BorrowedFd<'_>) -> io::Result<Statistics> {
    get(fd, libc::SOL_XDP, libc::XDP_STATISTICS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_without_carrier_or_room_has_not_refused_the_socket() {
        let accepted = [libc::ENETDOWN, libc::EAGAIN, libc::EBUSY, libc::ENOBUFS, libc::EINTR];
        for (errors, accepted) in [(&accepted[..], true), (&[libc::EINVAL, libc::ENXIO, libc::EOPNOTSUPP], false)] {
            for error in errors {
                assert_eq!(accepts(&io::Error::from_raw_os_error(*error)), accepted, "{error}");
            }
        }
        assert!(!accepts(&io::ErrorKind::Other.into()));
    }
}
