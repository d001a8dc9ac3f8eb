//! What came of it: what was got, or why nothing was.

use super::Mode;
use crate::device::Device;
use crate::handle::Handle;
use crate::port::XdpPort;
use base::Pool;
use bpf::SteeringError;
use std::io;

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
    /// It carries packets without an Ethernet header.
    #[error(
        "interface {0} carries packets without an Ethernet header, as tunnels do, and nothing of them would be taken: use --backend sockets"
    )]
    NotEthernet(String),
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

pub(crate) fn other(interface: &str, doing: &'static str) -> impl Fn(io::Error) -> OpenError {
    move |why| OpenError::Other { interface: interface.to_owned(), doing, why }
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
