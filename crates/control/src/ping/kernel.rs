//! Probes over a kernel socket.

use super::drive::Link;
use crate::error::{Error, reason};
use crate::words::Sleep;
use echo::probe;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::thread::CpuSet;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// A sleep in recv(2) looks so often whether it is to stop or a probe is lost; setting each sleep's end would cost a system call.
const RECEIVE_SLICE: Duration = Duration::from_millis(10);

/// A connected UDP socket.
#[derive(Debug)]
pub(super) struct Kernel {
    socket: Socket,
    epoll: Option<OwnedFd>,
    run: u32,
    out: Vec<u8>,
    into: Vec<u8>,
    unreachable: u64,
}

/// A UDP socket at `source_port` that is connected to `target`.
pub(super) fn connected(target: SocketAddr, source_port: u16) -> Result<Socket, Error> {
    let any: IpAddr = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = Socket::new(Domain::for_address(target), Type::DGRAM.cloexec(), Some(Protocol::UDP))
        .map_err(|error| Error::environment(format!("a UDP socket: {}", reason(&error))))?;
    socket.bind(&SockAddr::from(SocketAddr::new(any, source_port))).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Error::input(format!(
            "--source-port {source_port}: in use by another program; choose another (ss -lunp shows who has it)"
        )),
        io::ErrorKind::PermissionDenied => Error::input(format!(
            "--source-port {source_port}: not permitted; ports below 1024 need CAP_NET_BIND_SERVICE"
        )),
        _ => Error::environment(format!("--source-port {source_port}: {}", reason(&error))),
    })?;
    socket.connect(&SockAddr::from(target)).map_err(|error| {
        Error::environment(format!("{target}: {}; see `ip route get {}`", reason(&error), target.ip()))
    })?;
    Ok(socket)
}

/// The address and port that a connected socket sends from.
pub(super) fn local(socket: &Socket) -> Result<SocketAddr, Error> {
    let name = socket.local_addr().map_err(|error| Error::environment(format!("getsockname: {}", reason(&error))))?;
    name.as_socket().ok_or_else(|| Error::environment("getsockname: no IP address"))
}

impl Kernel {
    /// Opens the socket. `source_port` 0 lets the kernel choose.
    ///
    /// # Errors
    /// A port that is taken, no route, no right to busy-poll.
    pub(super) fn open(
        target: SocketAddr,
        source_port: u16,
        busy_poll_us: u32,
        sleep: Sleep,
        (run, bytes): (u32, usize),
    ) -> Result<Kernel, Error> {
        let socket = connected(target, source_port)?;
        let cannot = |what: &str, error: io::Error| Error::environment(format!("{what}: {}", reason(&error)));
        socket.set_read_timeout(Some(RECEIVE_SLICE)).map_err(|error| cannot("SO_RCVTIMEO", error))?;
        let epoll = match sleep {
            Sleep::Recv => None,
            Sleep::Epoll => Some(watch(&socket).map_err(|error| cannot("epoll", error))?),
        };
        if busy_poll_us > 0 {
            sockets::set_busy_poll(socket.as_fd(), busy_poll_us).map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    Error::environment("--busy-poll: not permitted; it needs CAP_NET_ADMIN (run as root)")
                }
                _ => cannot("--busy-poll", error),
            })?;
        }
        if let Some(epoll) = epoll.as_ref().filter(|_| busy_poll_us > 0) {
            sockets::set_epoll_busy_poll(epoll.as_fd(), busy_poll_us).map_err(|error| {
                let why = reason(&error);
                Error::environment(format!(
                    "--busy-poll with --sleep epoll: {why} (Linux 6.9 has it); use --sleep recv"
                ))
            })?;
        }
        // one octet more than is sent, so that a longer answer is seen to be longer
        let into = vec![0; bytes + 1];
        Ok(Kernel { socket, epoll, run, out: vec![0; bytes], into, unreachable: 0 })
    }

    /// Where it sends from.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn local(&self) -> Result<SocketAddr, Error> {
        local(&self.socket)
    }

    /// The processor on which the kernel received the last answer (SO_INCOMING_CPU), if one came.
    pub(super) fn incoming_cpu(&self) -> Option<usize> {
        // -1 before the first
        self.socket.cpu_affinity().ok().filter(|&cpu| cpu < CpuSet::MAX_CPU)
    }

    fn receive_one(&mut self, flags: RecvFlags, show: &mut impl FnMut(&[u8])) {
        match rustix::net::recv(&self.socket, &mut self.into[..], flags) {
            Ok((bytes, _)) => show(&self.into[..bytes]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.unreachable += 1,
        }
    }
}

/// An epoll instance with the socket in it.
fn watch(socket: &Socket) -> io::Result<OwnedFd> {
    let instance = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&instance, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    Ok(instance)
}

impl Link for Kernel {
    fn send(&mut self, number: u64) -> Result<bool, Error> {
        probe::write(self.run, number, &mut self.out);
        for _ in 0..2 {
            match rustix::net::send(&self.socket, &self.out, SendFlags::empty()) {
                Ok(_) => return Ok(true),
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => return Ok(false),
                // an error that an earlier probe met is told once, instead of sending
                Err(Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::PROTO | Errno::OPNOTSUPP) => {
                    self.unreachable += 1;
                }
                Err(Errno::MSGSIZE) => {
                    let bytes = self.out.len();
                    return Err(Error::input(format!(
                        "--size {bytes}: too long for a datagram on this path; give less"
                    )));
                }
                Err(errno) => return Err(Error::environment(format!("sending: {}", reason(&errno.into())))),
            }
        }
        // the path reports again and again: it went as far as it goes
        Ok(true)
    }

    fn receive(&mut self, wait: Option<Duration>, show: &mut impl FnMut(&[u8])) {
        match (wait, &self.epoll) {
            (Some(_), None) => self.receive_one(RecvFlags::empty(), show),
            (Some(most), Some(epoll)) => {
                let most = Timespec::try_from(most).ok();
                let mut events =
                    [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
                // whatever it says, the receive tells
                let _ = epoll::wait(epoll, &mut events, most.as_ref());
                self.receive_one(RecvFlags::DONTWAIT, show);
            }
            (None, _) => self.receive_one(RecvFlags::DONTWAIT, show),
        }
    }

    fn unreachable(&self) -> u64 {
        self.unreachable
    }
}
