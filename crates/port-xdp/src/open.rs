//! Opening an interface: everything that can be wrong is found here and said in one line with the mend.
//!
//! The order matters. The program is attached while it takes nothing, the sockets are bound and supplied with frames,
//! and only then are addresses taken: no packet finds an empty queue. Modes are tried from the best down, and what made
//! a better one fail is kept for the report.

use crate::answering::{Answering, answers};
use crate::device::{self, Device};
use crate::handle::Handle;
use crate::packet::Packet;
use crate::port::{Recipe, XdpPort};
use crate::slot::Slot;
use crate::socket::{self, Binding, Memory, Refused, Sizes, Socket, Step};
use base::{Arena, Frame, Pool};
use bpf::capability::{CAP_NET_RAW, missing_of};
use bpf::steering::{AnswersConfig, Prefix};
use bpf::{Attach, Config, Steering, SteeringError};
use port::Facts;
use rustix::process::{Resource, Rlimit};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How AF_XDP is to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// the best that works: zero-copy, then copy, then generic; but see `attempts` for TCP on veth
    #[default]
    Auto,
    /// the device reads and writes our memory
    Zerocopy,
    /// the program runs in the driver, the kernel copies
    Copy,
    /// the program runs in the kernel's receive path, the kernel copies
    Generic,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Mode::Auto => "auto",
            Mode::Zerocopy => "zero-copy",
            Mode::Copy => "copy",
            Mode::Generic => "generic",
        })
    }
}

/// Whether TCP super-segments are handed to the device, which cuts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LargeSends {
    /// whenever the device segments, but not in zero-copy mode
    Auto,
    /// whenever the device segments, in any mode
    Always,
    /// never
    #[default]
    Never,
}

/// A destination that a service listens on; a wildcard address means every local address of its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Listener {
    /// the address, `0.0.0.0` or `::`
    pub address: IpAddr,
    /// [`bpf::steering::UDP`] or [`bpf::steering::TCP`]
    pub protocol: u8,
    /// the port
    pub port: u16,
}

/// What is wanted.
#[derive(Clone, Debug)]
pub struct OpenConfig {
    /// the interface's name
    pub interface: String,
    /// queues to serve; None for all of them. Any other number than the interface has is refused.
    pub queues: Option<u32>,
    /// the mode
    pub mode: Mode,
    /// what to take
    pub listeners: Vec<Listener>,
    /// addresses that are wholly ours
    pub own: Vec<IpAddr>,
    /// take every frame, whoever it is for, and hear those for other hardware addresses too: for who passes frames on. What
    /// else is to be taken then means nothing.
    pub everything: bool,
    /// what the program in the driver answers by itself, once [`Handle::answers`] are filled in; its `mtu`,
    /// `partial_checksums` and `redirect_to` are the interface's, whatever stands there
    pub answers: Option<AnswersConfig>,
    /// and when
    pub answering: Answering,
    /// senders to hear, all when empty
    pub allow: Vec<Prefix>,
    /// senders not to hear
    pub deny: Vec<Prefix>,
    /// slots of a queue's receive ring; a power of two. The fill ring has twice as many.
    pub rx_slots: u32,
    /// slots of a queue's transmit and completion rings; a power of two
    pub tx_slots: u32,
    /// frames of a queue beyond those that its rings can hold
    pub spare_frames: u32,
    /// threads without a queue ([`port::guest`]), for each of which there are frames
    pub guests: u32,
    /// poll the device from our thread for up to so many microseconds
    pub busy_poll_us: Option<u32>,
    /// super-segments
    pub large_sends: LargeSends,
    /// after this long without any of the transmitted frames coming back the socket is made anew
    pub completion_timeout: Duration,
    /// how long to wait for the carrier after the program and the sockets are in place
    pub carrier_wait: Duration,
}

/// Frames of a queue that may be with a guest: on their way to it, in its hands, and on their way back.
const GUEST_AWAY_FRAMES: u32 = 2048 + 2 * base::BURST_FRAMES as u32 + port::guest::RING_FRAMES as u32;

impl OpenConfig {
    /// The defaults for `interface`: every queue, the best mode, nothing taken.
    pub fn new(interface: &str) -> OpenConfig {
        OpenConfig {
            interface: interface.to_owned(),
            queues: None,
            mode: Mode::Auto,
            listeners: Vec::new(),
            own: Vec::new(),
            everything: false,
            answers: None,
            answering: Answering::Always,
            allow: Vec::new(),
            deny: Vec::new(),
            rx_slots: 2048,
            tx_slots: 2048,
            spare_frames: 2048,
            guests: 0,
            busy_poll_us: None,
            large_sends: LargeSends::default(),
            completion_timeout: Duration::from_secs(5),
            carrier_wait: Duration::from_secs(10),
        }
    }

    fn sizes(&self) -> Sizes {
        // drivers stall when the fill ring is only as large as the receive ring
        let (rx, tx) = (self.rx_slots.next_power_of_two(), self.tx_slots.next_power_of_two());
        Sizes { rx, tx, fill: 2 * rx, completion: tx }
    }

    /// Frames of a queue: what waits in the fill ring, what has arrived, what is being sent, what the thread holds, and what is with
    /// those of the guests that send through it.
    fn frames(&self, queues: u32) -> u32 {
        let sizes = self.sizes();
        let away = self.guests.div_ceil(queues.max(1)) * GUEST_AWAY_FRAMES;
        sizes.fill + sizes.rx + sizes.tx + self.spare_frames.max(base::BURST_FRAMES as u32) + away
    }

    /// Frames of a guest: what is on its way to its host, what is being sent, and what its thread holds.
    fn guest_frames(&self) -> u32 {
        port::guest::RING_FRAMES as u32 + self.sizes().tx + self.spare_frames.max(base::BURST_FRAMES as u32)
    }
}

/// Why an interface was not opened. Each is one line that names the mend.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such interface.
    #[error("no interface {name}: there are {there}; give one of them to --interface")]
    NoInterface {
        /// the name asked for
        name: String,
        /// those there are
        there: String,
    },
    /// It is down.
    #[error("interface {0} is down: put it up with `ip link set dev {0} up`")]
    Down(String),
    /// A capability is missing.
    #[error(
        "not permitted to {doing} on {interface}: it needs {needs}; run as root, or grant it with AmbientCapabilities={needs} in the systemd unit"
    )]
    NotPermitted {
        /// the interface
        interface: String,
        /// what was tried
        doing: &'static str,
        /// the capabilities that are missing
        needs: String,
    },
    /// Another program is attached.
    #[error("interface {interface} already has an XDP program{id}: see it with `ip link show dev {interface}`, and stop its owner or remove it with `ip link set dev {interface} xdp off`", id = .id.map(|id| format!(" (id {id})")).unwrap_or_default())]
    OtherProgram {
        /// the interface
        interface: String,
        /// the program's id
        id: Option<u32>,
    },
    /// Another socket has the queue.
    #[error(
        "queue {queue} of {interface} is taken by another AF_XDP socket: find its owner with `ss --xdp -p` and stop it"
    )]
    QueueTaken {
        /// the interface
        interface: String,
        /// the queue
        queue: u32,
    },
    /// The memory cannot be locked.
    #[error(
        "the limit on locked memory is too low: {needed} bytes are needed for frames and RLIMIT_MEMLOCK is {limit}; raise it (LimitMEMLOCK=infinity in the systemd unit, `ulimit -l unlimited`) or grant CAP_IPC_LOCK"
    )]
    Memlock {
        /// bytes of frames
        needed: usize,
        /// the limit, in bytes
        limit: u64,
    },
    /// Packets of the interface's MTU do not fit.
    #[error(
        "the MTU of {interface}, {mtu}, is too large for {mode} mode, which carries {most}: lower it with `ip link set dev {interface} mtu {most}`"
    )]
    Mtu {
        /// the interface
        interface: String,
        /// its MTU
        mtu: usize,
        /// the mode
        mode: Mode,
        /// the largest that works
        most: usize,
    },
    /// A queue would be without a socket.
    #[error(
        "{interface} has {rx} receive and {tx} transmit queues, and {wanted} would be served: traffic of the others would be lost; run `{mend}`"
    )]
    Queues {
        /// the interface
        interface: String,
        /// receive queues in use
        rx: u32,
        /// transmit queues in use
        tx: u32,
        /// queues asked for
        wanted: u32,
        /// the ethtool line
        mend: String,
    },
    /// None of the modes asked for works.
    #[error("{interface} has no AF_XDP in {mode} mode ({why}): try --mode auto, or --backend sockets")]
    Mode {
        /// the interface
        interface: String,
        /// the mode asked for
        mode: Mode,
        /// what the kernel said
        why: String,
    },
    /// The kernel is too old.
    #[error("this kernel is too old ({0}): Linux 6.1 or newer is needed, or --backend sockets")]
    KernelTooOld(String),
    /// Something about the entries: a prefix, a listener.
    #[error(transparent)]
    Entry(SteeringError),
    /// Anything else.
    #[error("{interface}: {doing}: {why}")]
    Other {
        /// the interface
        interface: String,
        /// what was tried
        doing: &'static str,
        /// the kernel's answer
        why: io::Error,
    },
}

/// What became of a wish for busy polling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusyPolling {
    /// not asked for
    Off,
    /// the sockets poll the device
    On,
    /// accepted, but the kernel does not know which NAPI instance feeds the sockets: some drivers never say, older kernels
    /// only with the first packet
    Unmapped,
    /// the kernel refused
    Refused(String),
}

/// What was got.
#[derive(Clone, Debug)]
pub struct Got {
    /// the mode: never [`Mode::Auto`]
    pub mode: Mode,
    /// the better modes, and why they were not to be had
    pub not: Vec<(Mode, String)>,
    /// the interface
    pub device: Device,
    /// bytes of a chunk
    pub chunk_bytes: u16,
    /// frames of all queues
    pub frames: u32,
    /// whether one call transmits more than 32 frames (Linux 6.17)
    pub tx_budget: bool,
    /// about busy polling
    pub busy_polling: BusyPolling,
    /// whether TCP super-segments are handed to the device while it segments
    pub large_sends: bool,
    /// what an operator should know, each in one line
    pub warnings: Vec<String>,
}

impl std::fmt::Display for Got {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in {} mode, {} queues", self.device.name, self.mode, self.device.rx_queues)?;
        for (mode, why) in &self.not {
            write!(f, "; not {mode}: {why}")?;
        }
        f.write_str(match (self.large_sends, self.device.segments_tcp) {
            (true, true) => "; TCP in super-segments that the device cuts",
            (true, false) => {
                "; TCP in super-segments when the device cuts them, which it does not now (see ethtool -k)"
            }
            (false, _) => "",
        })
    }
}

/// An opened interface.
#[derive(Debug)]
pub struct Opened {
    /// a port for each queue, in their order
    pub ports: Vec<XdpPort>,
    /// the free frames of each guest, for [`port::guest::house`]
    pub pools: Vec<Pool>,
    /// says what is ours; taking it down detaches the program
    pub handle: Handle,
    /// what it became
    pub got: Got,
}

/// Opens an interface.
///
/// # Errors
/// See [`OpenError`]. Nothing then stays behind.
pub fn open(config: &OpenConfig) -> Result<Opened, OpenError> {
    let device = ready(config)?;
    let _ = raise_memlock();
    let mut not = Vec::new();
    for attempt in attempts(config, &device) {
        match make(config, &device, *attempt) {
            Ok((steering, made)) => return finish(config, device, attempt.mode, not, steering, made),
            Err(Failed::Mode(why)) => not.push((attempt.mode, why)),
            Err(Failed::For(error)) => return Err(error),
        }
    }
    let why = not.iter().map(|(mode, why)| format!("{mode}: {why}")).collect::<Vec<_>>().join("; ");
    Err(OpenError::Mode { interface: device.name, mode: config.mode, why })
}

/// A mode to be tried.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    mode: Mode,
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
fn attempts(config: &OpenConfig, device: &Device) -> &'static [Attempt] {
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

/// Why a mode was not got.
enum Failed {
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

pub(crate) fn other(interface: &str, doing: &'static str) -> impl Fn(io::Error) -> OpenError {
    move |why| OpenError::Other { interface: interface.to_owned(), doing, why }
}

/// The interface, if it can serve.
fn ready(config: &OpenConfig) -> Result<Device, OpenError> {
    let name = &config.interface;
    let found = Device::find(name).map_err(other(name, "asking for the interface"))?;
    let Some(device) = found else {
        let there = device::names().map_err(other(name, "asking for the interfaces"))?.join(", ");
        return Err(OpenError::NoInterface { name: name.clone(), there });
    };
    if !device.up {
        return Err(OpenError::Down(name.clone()));
    }
    if let Some(id) = device.xdp_program {
        return Err(OpenError::OtherProgram { interface: name.clone(), id: Some(id) });
    }
    let wanted = config.queues.unwrap_or(device.rx_queues);
    if wanted != device.rx_queues || device.tx_queues < wanted {
        let wanted = wanted.max(1);
        let how = if device.combined { format!("combined {wanted}") } else { format!("rx {wanted} tx {wanted}") };
        let mend = format!("ethtool -L {name} {how}");
        let (interface, rx, tx) = (name.clone(), device.rx_queues, device.tx_queues);
        return Err(OpenError::Queues { interface, rx, tx, wanted, mend });
    }
    Ok(device)
}

/// Raises the limit on locked memory as far as may be.
fn raise_memlock() -> io::Result<()> {
    let unlimited = Rlimit { current: None, maximum: None };
    if rustix::process::setrlimit(Resource::Memlock, unlimited).is_ok() {
        return Ok(());
    }
    let has = rustix::process::getrlimit(Resource::Memlock);
    Ok(rustix::process::setrlimit(Resource::Memlock, Rlimit { current: has.maximum, maximum: has.maximum })?)
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

/// Whether checksums may be left to a device that does not exist. Receive offload leaves the sums of what it merged to one,
/// too, and comes before a program in the receive path.
fn is_virtual(device: &Device, mode: Mode) -> bool {
    device.is_virtual_link() || mode == Mode::Generic
}

/// How long a program of our own may take to go, and how long the kernel may take to free a queue.
const OWN_PROGRAM_GOES: Duration = Duration::from_secs(1);
const QUEUE_GOES: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(5);

/// Sockets, each with its share of the frames, not yet ports.
struct Made {
    arena: Arc<Arena>,
    sockets: Vec<(Socket, Vec<Frame>)>,
    guests: Vec<Vec<Frame>>,
    pieces: bool,
    /// what an operator should know, each in one line
    warnings: Vec<String>,
}

fn make(config: &OpenConfig, device: &Device, attempt: Attempt) -> Result<(Steering, Made), Failed> {
    let mode = attempt.mode;
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
    if device.running {
        // some drivers restart the link for a program; a link that was down before is waited for once, at the end
        device.wait_for_carrier(config.carrier_wait).map_err(other(&config.interface, "waiting for carrier"))?;
    }
    let (frames, guest_frames) = (config.frames(device.rx_queues), config.guest_frames());
    let all = frames * device.rx_queues + guest_frames * config.guests;
    let (arena, mut all) = Arena::new(all, chunk_bytes).map_err(other(&device.name, "making room for frames"))?;
    let mut pieces = attempt.pieces != Pieces::None;
    let mut sockets: Vec<(Socket, Vec<Frame>)> = Vec::new();
    for queue in 0..device.rx_queues {
        let memory = match sockets.first() {
            None => Memory::Register(&arena),
            Some((first, _)) => Memory::Share(first.fd().as_fd()),
        };
        let mut binding = Binding { ifindex: device.index, queue, zerocopy: mode == Mode::Zerocopy, pieces };
        let mut bound = bind(memory, config.sizes(), binding);
        if pieces && bound.as_ref().is_err_and(is_unknown) {
            if attempt.pieces == Pieces::Required {
                return Err(Failed::Mode("packets larger than a frame need Linux 6.6".into()));
            }
            (pieces, binding.pieces) = (false, false);
            bound = bind(memory, config.sizes(), binding);
        }
        let socket = bound.map_err(|e| refused(&device, queue, &arena, e))?;
        let share = all.split_off(all.len() - frames as usize);
        sockets.push((socket, share));
    }
    let guests = (0..config.guests).map(|_| all.split_off(all.len() - guest_frames as usize)).collect();
    Ok((steering, Made { arena, sockets, guests, pieces, warnings }))
}

/// A socket of a queue, which the kernel frees a while after the socket before was closed, as that of a server that has just ended.
fn bind(memory: Memory<'_>, sizes: Sizes, to: Binding) -> Result<Socket, Refused> {
    let until = Instant::now() + QUEUE_GOES;
    loop {
        let fd = socket::open().map_err(|why| Refused { step: Step::Open, why })?;
        match Socket::bind(fd, memory, sizes, to) {
            Err(refused) if is_taken(&refused) && Instant::now() < until => std::thread::sleep(RETRY),
            outcome => return outcome,
        }
    }
}

fn is_taken(refused: &Refused) -> bool {
    refused.step == Step::Bind && refused.why.raw_os_error() == Some(libc::EBUSY)
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

fn finish(
    config: &OpenConfig,
    mut device: Device,
    mode: Mode,
    not: Vec<(Mode, String)>,
    steering: Steering,
    made: Made,
) -> Result<Opened, OpenError> {
    let chunk_bytes = made.arena.chunk_bytes();
    let facts = Facts {
        mac: device.mac,
        mtu: device.mtu,
        frame_bytes: usize::from(chunk_bytes - base::arena::HEADROOM_BYTES),
        virtual_link: is_virtual(&device, mode),
    };
    let pieces = made.pieces;
    let mut busy_polling = BusyPolling::Off;
    let tx_budget = made.sockets.iter().all(|(socket, _)| socket.tx_budget);
    let large_sends = match config.large_sends {
        LargeSends::Auto => mode != Mode::Zerocopy,
        LargeSends::Always => true,
        LargeSends::Never => false,
    };
    let mut ports = Vec::new();
    let (sockets, shares): (Vec<Socket>, Vec<Vec<Frame>>) = made.sockets.into_iter().unzip();
    // threads may hand frames to each other
    let all = shares.into_iter().chain(made.guests);
    let mut pools = Pool::join(all.map(|frames| Pool::new(made.arena.clone(), frames)).collect());
    let guests = pools.split_off(sockets.len());
    for (queue, (socket, pool)) in sockets.into_iter().zip(pools).enumerate() {
        let mut busy_poll = config.busy_poll_us.map(|us| (us, base::BURST_FRAMES as u32));
        if let Some((us, budget)) = busy_poll {
            busy_polling = match socket.prefer_busy_poll(us, budget) {
                Ok(()) if socket.sender.napi() == 0 => BusyPolling::Unmapped,
                Ok(()) => BusyPolling::On,
                Err(e) => {
                    busy_poll = None;
                    BusyPolling::Refused(e.to_string())
                }
            };
        }
        let queue = queue as u32;
        steering.sockets().set(queue, socket.fd()).map_err(OpenError::Entry)?;
        let binding = Binding { ifindex: device.index, queue, zerocopy: mode == Mode::Zerocopy, pieces };
        let completion_timeout = config.completion_timeout;
        let slot = Arc::new(Slot::new(steering.sockets(), queue));
        let (sizes, device_takes) = (config.sizes(), device.takes_frames());
        let recipe = Recipe { binding, sizes, busy_poll, device_takes, completion_timeout, slot };
        let mut port = XdpPort::new(&device.name, facts.clone(), pool, socket, recipe);
        if large_sends {
            let packet = Packet::open(&device.name, device.index, device.gso_max_bytes, port.stats().clone());
            port.set_packet(packet.map_err(other(&device.name, "opening an AF_PACKET socket"))?);
        }
        ports.push(port);
    }
    let running =
        device.wait_for_carrier(config.carrier_wait).map_err(other(&config.interface, "waiting for carrier"))?;
    let mut warnings = made.warnings;
    warnings.extend(of_device(&device, running, &busy_polling));
    if mode == Mode::Generic && !pieces {
        let name = &device.name;
        warnings.push(format!("{name}: packets that receive offload has merged are dropped, since that needs Linux 6.6: run `ethtool -K {name} gro off`"));
    }
    let handle = Handle::new(config, &device, steering)?;
    if handle.may_answer_in_vain() {
        let name = &device.name;
        warnings.push(format!("{name}: this kernel does not tell whether the other end of this veth takes what a driver sends, as Linux 6.3 does: answers are lost unless it has receive offload or a program; run `ethtool -K PEER gro on` there, or say --tier xdp"));
    }
    let frames = made.arena.chunks();
    let got = Got { mode, not, device, chunk_bytes, frames, tx_budget, busy_polling, large_sends, warnings };
    Ok(Opened { ports, pools: guests, handle, got })
}

/// What an operator should know of the interface.
fn of_device(device: &Device, running: bool, busy_polling: &BusyPolling) -> Vec<String> {
    let name = &device.name;
    let mut warnings = Vec::new();
    if !running {
        warnings.push(format!("{name} has no carrier: nothing arrives until its link is up"));
    }
    // veth claims to strip tags too, but only hands over apart what the sender's kernel had apart
    if device.strips_vlan && device.driver != "veth" {
        warnings.push(format!("{name} takes VLAN tags off, so tagged queries look untagged: run `ethtool -K {name} rxvlan off` if there are any"));
    }
    match busy_polling {
        BusyPolling::Unmapped => warnings.push(format!(
            "busy polling on {name} has no effect until its driver ({}) says which NAPI instance feeds a queue; veth, i40e and ixgbe never do",
            device.driver
        )),
        BusyPolling::Refused(why) => warnings.push(format!("busy polling on {name} is refused ({why})")),
        BusyPolling::Off | BusyPolling::On => {}
    }
    warnings
}
