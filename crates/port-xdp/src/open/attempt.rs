//! One mode: program and sockets, and why it may not be had.

use super::outcome::other;
use super::{LargeSends, Mode, OpenConfig, OpenError};
use crate::answering::{Answering, answers};
use crate::device::Device;
use crate::nic::Nic;
use crate::socket::{self, Binding, Memory, NO_ROOM, Refused, Sizes, Socket, Step, TAKEN};
use base::{Arena, Frame, Pool};
use bpf::capability::{CAP_NET_RAW, missing_of};
use bpf::{Attach, Config, Steering, SteeringError};
use rustix::process::Resource;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A mode to be tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) mode: Mode,
    pieces: Pieces,
}

/// Whether packets larger than a frame are to be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pieces {
    /// none come
    None,
    /// where the kernel can
    Preferred,
    /// the mode is no good without
    Required,
}

const ZEROCOPY: Attempt = Attempt { mode: Mode::Zerocopy, pieces: Pieces::None };
const COPY: Attempt = Attempt { mode: Mode::Copy, pieces: Pieces::None };
const GENERIC: Attempt = Attempt { mode: Mode::Generic, pieces: Pieces::Preferred };
const WHOLE_GENERIC: Attempt = Attempt { mode: Mode::Generic, pieces: Pieces::Required };

/// The modes in the order of what they give.
///
/// On veth that depends on who is at the other end. A program in the driver has each packet copied into a page of the kernel's, in
/// a NAPI instance of its own, and takes segmentation offload away from the peer; that is worth it for questions, and for a peer
/// that has a program in its driver as well. TCP with the kernel at the other end is cheaper in the receive path, on the sender's
/// processor and by whole super-packets, as the kernel's own sockets have it.
pub(super) fn attempts(config: &OpenConfig, device: &Device) -> &'static [Attempt] {
    // a peer with a program in its driver takes our TSO away
    let kernel_peer = device.driver == "veth" && device.segments_tcp;
    match config.mode {
        // of several queues the receive path of veth finds the first
        Mode::Auto if kernel_peer && device.rx_queues == 1 && config.large_sends != LargeSends::Never => {
            &[WHOLE_GENERIC, COPY, GENERIC]
        }
        Mode::Auto => &[ZEROCOPY, COPY, GENERIC],
        Mode::Zerocopy => &[ZEROCOPY],
        Mode::Copy => &[COPY],
        Mode::Generic => &[GENERIC],
    }
}

/// Why the sockets of this interface would get nothing from a program in its driver, if so.
///
/// A bond hands its program to the interfaces that are parts of it, and hv_netvsc to its VF. What the program takes there is theirs, and the
/// kernel gives it to no socket of the interface above: it is dropped (`xsk_rcv_check` in net/xdp/xsk.c). The receive path knows it as the
/// bond's.
fn runs_below(device: &Device, wished: Mode) -> Option<String> {
    let below = match device.driver.as_str() {
        "bonding" => true,
        // a VF may come later, and go: whoever names the mode has to know whether there will be one
        "hv_netvsc" => device.has_lower || wished == Mode::Auto,
        _ => false,
    };
    let (name, driver) = (&device.name, &device.driver);
    below.then(|| format!("{driver} hands its program to the interfaces below {name}, where it takes nothing for {name}: open one of those, or use --mode generic"))
}

/// Why a mode was not got.
pub(super) enum Failed {
    /// the next one may work
    Mode(String),
    /// no mode will
    For(OpenError),
}

impl From<OpenError> for Failed {
    fn from(error: OpenError) -> Failed {
        Failed::For(error)
    }
}

/// Bytes of a frame beside the packet: Ethernet header and one VLAN tag.
const LINK_BYTES: usize = 14 + 4;
const LARGEST_CHUNK_BYTES: u16 = 4096;

/// The smallest chunk that carries the interface's MTU.
fn chunk_bytes(device: &Device, mode: Mode) -> Result<u16, OpenError> {
    let carries = |chunk: u16| usize::from(chunk - base::arena::HEADROOM_BYTES) - LINK_BYTES;
    let fits = [2048, LARGEST_CHUNK_BYTES].into_iter().find(|chunk| device.mtu <= carries(*chunk));
    fits.ok_or_else(|| OpenError::Mtu {
        interface: device.name.clone(),
        mtu: device.mtu,
        mode,
        most: carries(LARGEST_CHUNK_BYTES),
    })
}

/// How long a program of our own may take to go, where whoever holds its link may have to wait for a processor; and how long the
/// kernel may take to free what a socket had.
const OWN_PROGRAM_GOES: Duration = Duration::from_secs(10);
const SOCKET_GOES: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(5);

/// Sockets, each with its share of the frames, not yet ports.
pub(super) struct Made {
    pub(super) arena: Arc<Arena>,
    pub(super) sockets: Vec<(Socket, Vec<Frame>)>,
    pub(super) guests: Vec<Vec<Frame>>,
    pub(super) pieces: bool,
    /// what an operator should know, each in one line
    pub(super) warnings: Vec<String>,
}

pub(super) fn make(config: &OpenConfig, device: &Device, attempt: Attempt) -> Result<(Steering, Made), Failed> {
    let mode = attempt.mode;
    if let Some(why) = runs_below(device, config.mode).filter(|_| mode != Mode::Generic) {
        return Err(Failed::Mode(why));
    }
    let chunk_bytes = chunk_bytes(device, mode)?;
    let attach = if mode == Mode::Generic { Attach::Generic } else { Attach::Native };
    let answers = answers(config, device, mode)?;
    let everything = config.everything;
    let maps = Config { queues: device.rx_queues, mac: device.mac, everything, answers, ..Config::default() };
    let mut warnings = Vec::new();
    let steering = match load(device.index, attach, &maps) {
        // a kernel whose verifier does not follow the program that answers
        Err(error @ SteeringError::Other { .. })
            if maps.answers.is_some() && config.answering == Answering::WhereTaken =>
        {
            warnings.push(format!(
                "{}: our stack answers all, since this kernel refuses the program that answers in the driver, or the memory for it: {error}",
                device.name
            ));
            load(device.index, attach, &Config { answers: None, ..maps })
        }
        loaded => loaded,
    };
    let steering = steering.map_err(|e| steering_failed(device, e))?;
    let mut device = device.clone();
    if device.carrier {
        // some drivers restart the link for a program; a link that was down before is waited for once, at the end
        device.wait_for_carrier(config.carrier_wait).map_err(other(&config.interface, "waiting for carrier"))?;
    }
    let slots = if mode == Mode::Zerocopy { slots(&device.name) } else { 0 };
    let (frames, guest_frames) = (config.frames(device.rx_queues, slots), config.guest_frames());
    let all = frames * device.rx_queues + guest_frames * config.guests;
    let (arena, mut all) = Arena::new(all, chunk_bytes).map_err(other(&device.name, "making room for frames"))?;
    let Bound { sockets, pieces } = match bind_all(config, &device, attempt, &arena) {
        Ok(bound) => bound,
        Err(failed) => {
            // the sockets have gone, and the memory with its last frame
            drop(Pool::new(arena, all));
            return Err(failed);
        }
    };
    let mut share = |frames: u32| all.split_off(all.len() - frames as usize);
    let sockets = sockets.into_iter().map(|socket| (socket, share(frames))).collect();
    let guests = (0..config.guests).map(|_| share(guest_frames)).collect();
    Ok((steering, Made { arena, sockets, guests, pieces, warnings }))
}

/// A socket for each queue, and whether they receive packets larger than a frame.
struct Bound {
    sockets: Vec<Socket>,
    pieces: bool,
}

/// Binds a socket to each queue. What was bound before one is refused is closed.
fn bind_all(config: &OpenConfig, device: &Device, attempt: Attempt, arena: &Arena) -> Result<Bound, Failed> {
    let mut pieces = attempt.pieces != Pieces::None;
    let mut sockets: Vec<Socket> = Vec::new();
    for queue in 0..device.rx_queues {
        let memory = match sockets.first() {
            None => Memory::Register(arena),
            Some(first) => Memory::Share(first.fd().as_fd()),
        };
        let zerocopy = attempt.mode == Mode::Zerocopy;
        let mut binding = Binding { ifindex: device.index, queue, zerocopy, pieces };
        let mut bound = bind(memory, config.sizes(), binding);
        if pieces && bound.as_ref().is_err_and(is_unknown) {
            if attempt.pieces == Pieces::Required {
                return Err(Failed::Mode("packets larger than a frame need Linux 6.6".into()));
            }
            (pieces, binding.pieces) = (false, false);
            bound = bind(memory, config.sizes(), binding);
        }
        sockets.push(bound.map_err(|e| refused(device, queue, arena, e))?);
    }
    if let [first, _, ..] = &mut sockets[..] {
        // the others keep its memory
        first.sender.counts_for = None;
    }
    Ok(Bound { sockets, pieces })
}

/// Slots of the device's own receive ring, which a driver that reads and writes our memory fills with our frames; 0 where it does not tell.
fn slots(interface: &str) -> u32 {
    Nic::of(interface).rings().ok().flatten().map_or(0, |rings| rings.rx.now)
}

/// A socket of a queue. The kernel frees what the socket before had a while after that was closed: its queue, as of a server that has just
/// ended, and its memory's part of the limit, as of the mode tried before.
fn bind(memory: Memory<'_>, sizes: Sizes, to: Binding) -> Result<Socket, Refused> {
    let until = Instant::now() + SOCKET_GOES;
    loop {
        let fd = socket::open().map_err(|why| Refused { step: Step::Open, why })?;
        match Socket::bind(fd, memory, sizes, to) {
            Err(refused) if may_pass(&refused, memory) && Instant::now() < until => std::thread::sleep(RETRY),
            outcome => return outcome,
        }
    }
}

fn may_pass(refused: &Refused, memory: Memory<'_>) -> bool {
    let registers = |arena| refused.is(NO_ROOM) && socket::may_lock(arena);
    refused.is(TAKEN) || matches!(memory, Memory::Register(arena) if registers(arena))
}

/// The kernel does not know what was asked of it.
fn is_unknown(refused: &Refused) -> bool {
    refused.step == Step::Bind && refused.why.raw_os_error() == Some(libc::EINVAL)
}

/// Attaches the steering program, to an interface that had none when opening began. One that is there now is most likely ours, of the
/// mode tried before: it goes with the last descriptor of its link, and a process that another thread has just forked holds
/// all descriptors until it executes its program.
fn load(index: u32, attach: Attach, maps: &Config) -> Result<Steering, SteeringError> {
    let until = Instant::now() + OWN_PROGRAM_GOES;
    loop {
        match Steering::load(index, attach, maps) {
            Err(SteeringError::OtherProgram { .. }) if Instant::now() < until => std::thread::sleep(RETRY),
            result => return result,
        }
    }
}

fn steering_failed(device: &Device, error: SteeringError) -> Failed {
    let interface = device.name.clone();
    match error {
        SteeringError::NotPermitted { doing, needs } => OpenError::NotPermitted { interface, doing, needs }.into(),
        SteeringError::OtherProgram { .. } => {
            let id = Device::find(&interface).ok().flatten().and_then(|device| device.xdp_program);
            OpenError::OtherProgram { interface, id }.into()
        }
        SteeringError::KernelTooOld { why } => OpenError::KernelTooOld(why).into(),
        SteeringError::Unsupported(_) | SteeringError::Mtu(_) => Failed::Mode(error.to_string()),
        error => OpenError::Entry(error).into(),
    }
}

fn refused(device: &Device, queue: u32, arena: &Arena, refused: Refused) -> Failed {
    let interface = device.name.clone();
    match (refused.step, refused.why.raw_os_error()) {
        (step, Some(libc::EPERM | libc::EACCES)) => {
            let doing = if step == Step::Open { "open an AF_XDP socket" } else { "bind an AF_XDP socket" };
            let needs = missing_of(&[CAP_NET_RAW]);
            OpenError::NotPermitted { interface, doing, needs }.into()
        }
        (Step::Open, Some(libc::EAFNOSUPPORT)) => OpenError::KernelTooOld("it has no AF_XDP".into()).into(),
        (Step::Register, Some(libc::ENOBUFS | libc::ENOMEM)) => {
            let limit = rustix::process::getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX);
            OpenError::Memlock { needed: arena.bytes(), limit }.into()
        }
        (Step::Bind, Some(libc::EBUSY)) => OpenError::QueueTaken { interface, queue }.into(),
        (Step::Bind, _) => Failed::Mode(format!("the driver refuses the socket ({})", refused.why)),
        _ => OpenError::Other { interface, doing: "making the rings", why: refused.why }.into(),
    }
}

#[cfg(test)]
mod tests;
