//! Loading the steering program, and telling it what is ours.
//!
//! Every entry exists twice: in the kernel's maps, and here, so that the settings the program reads on its shortest path
//! (the one taken key, the number of own addresses) can be derived from them. One thread, control's, changes entries;
//! the sockets' slots ([`Sockets`]) and the counters ([`Counts`]) are shared with whoever needs them.

mod answers;
mod counts;

pub use answers::{
    ANSWERS_A_SAMPLE, Answer, Answered, Answers, AnswersConfig, Baking, Below, Cut, Fill, Given, Hold, Name, Put,
    Shares, Size, Which,
};
pub use counts::Counts;

use crate::capability::{CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, Capability, missing, missing_of};
use crate::error::{chain, errno, is};
use crate::kernel::kernel_before;
use aya::maps::{Array, HashMap, LpmTrie, MapData, XskMap, lpm_trie::Key};
use aya::programs::links::FdLink;
use aya::programs::xdp::XdpLink;
use aya::programs::{ProgramError, Xdp, XdpMode};
use aya::{Ebpf, EbpfError, EbpfLoader, VerifierLogLevel};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steering.bpf.o"));

/// Bytes of `struct settings`: the sole key (20), three counts, the hardware address, whose the sole key is (2), and whose listener
/// queries are (4).
const SETTINGS_BYTES: usize = 44;
const ALLOW: u32 = 1;
const DENY: u32 = 2;
const ANY_SERVICE: u8 = 1;
const DNS_SERVICE: u8 = 2;

/// IPPROTO_TCP
pub const TCP: u8 = 6;
/// IPPROTO_UDP
pub const UDP: u8 = 17;

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// in the driver, before the kernel makes an skb
    Native,
    /// in the kernel's receive path, for drivers without XDP
    Generic,
}

/// Sizes of the program's maps, fixed while it is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// receive queues of the interface
    pub queues: u32,
    /// most taken (address, protocol, port)
    pub taken: u32,
    /// most own addresses
    pub own: u32,
    /// most allow and deny prefixes
    pub prefixes: u32,
    /// the interface's hardware address: frames for other ones are the kernel's; all zero: frames for any are taken
    pub mac: [u8; 6],
    /// every frame is taken, whatever it is: for who passes frames on; no entry then means anything
    pub everything: bool,
    /// what the program answers by itself; None: nothing, and the program that cannot is loaded
    pub answers: Option<AnswersConfig>,
}

impl Config {
    /// The program in the object.
    fn program(&self) -> &'static str {
        match (self.everything, &self.answers) {
            (true, _) => "take_everything",
            (false, Some(_)) => "answer_and_steer",
            (false, None) => "steer",
        }
    }

    /// Whose the traffic to `taken` is, for the program.
    fn service(&self, taken: &Taken) -> u8 {
        let answers = self.answers.as_ref().filter(|_| taken.protocol == UDP);
        match answers.is_some_and(|answers| answers.is_answered(taken.address, taken.port)) {
            true => DNS_SERVICE,
            false => ANY_SERVICE,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config { queues: 1, taken: 4096, own: 256, prefixes: 65_536, mac: [0; 6], everything: false, answers: None }
    }
}

/// A destination whose traffic is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Taken {
    /// a local address, never a wildcard
    pub address: IpAddr,
    /// [`UDP`] or [`TCP`]
    pub protocol: u8,
    /// never 0
    pub port: u16,
}

impl Taken {
    /// As `struct key` has it.
    fn bytes(&self) -> [u8; 20] {
        let mut key = [0; 20];
        key[..16].copy_from_slice(&address_bytes(self.address));
        key[16..18].copy_from_slice(&self.port.to_be_bytes());
        key[18] = self.protocol;
        key
    }
}

/// The `bits` first bits of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    /// the address; bits behind the prefix do not count
    pub address: IpAddr,
    /// 0..=32 for IPv4, 0..=128 for IPv6
    pub bits: u8,
}

impl Prefix {
    fn key(&self) -> Result<Key<[u8; 17]>, SteeringError> {
        let mut data = [0; 17];
        let most = match self.address {
            IpAddr::V4(address) => {
                data[0] = 4;
                data[1..5].copy_from_slice(&address.octets());
                32
            }
            IpAddr::V6(address) => {
                data[0] = 6;
                data[1..].copy_from_slice(&address.octets());
                128
            }
        };
        if self.bits > most {
            return Err(SteeringError::Prefix { prefix: *self, most });
        }
        Ok(Key::new(8 + u32::from(self.bits), data))
    }

    /// The prefix with the bits behind it cleared, so that equal prefixes compare equal.
    fn canonical(&self) -> Prefix {
        let address = match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits.min(32))).unwrap_or(0);
                IpAddr::V4((u32::from(address) & mask).into())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits.min(128))).unwrap_or(0);
                IpAddr::V6((u128::from(address) & mask).into())
            }
        };
        Prefix { address, bits: self.bits }
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// What becomes of senders in a prefix; of several that match the longest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// heard; once there is one such rule, who matches none is dropped
    Allow,
    /// dropped
    Deny,
}

/// Why the program is not in place, or an entry not in its maps.
#[derive(Debug, thiserror::Error)]
pub enum SteeringError {
    /// A capability is missing.
    #[error(
        "not permitted to {doing}: it needs {needs}; run as root or grant it, for example AmbientCapabilities={needs} in the systemd unit"
    )]
    NotPermitted {
        /// what was tried
        doing: &'static str,
        /// the capabilities that are missing, with spaces between
        needs: String,
    },
    /// The interface has a program already.
    #[error(
        "interface {ifindex} already has an XDP program: see it with `ip link show`, and remove it or stop its owner"
    )]
    OtherProgram {
        /// the interface's index
        ifindex: u32,
    },
    /// The kernel has no bpf links for XDP.
    #[error("this kernel is too old ({why}): Linux 6.1 or newer is needed")]
    KernelTooOld {
        /// what it lacks
        why: String,
    },
    /// The driver has no XDP in the mode asked for.
    #[error("the driver refuses an XDP program in this mode ({0})")]
    Unsupported(io::Error),
    /// The driver cannot carry packets of the interface's MTU in this mode.
    #[error(
        "the MTU is too large for XDP in the driver ({0}): lower it with `ip link set dev IF mtu 1500`, or use --mode generic"
    )]
    Mtu(io::Error),
    /// A prefix has more bits than its address.
    #[error("{prefix} is not a prefix: at most /{most}")]
    Prefix {
        /// the prefix
        prefix: Prefix,
        /// bits of such an address
        most: u8,
    },
    /// A prefix stands in both lists.
    #[error("{0} is both allowed and denied: keep one of the two")]
    BothWays(Prefix),
    /// A wildcard address or port 0, which no packet carries.
    #[error("{0:?} names no destination")]
    NoDestination(Taken),
    /// Anything else that the kernel said.
    #[error("the steering program is not in place: {doing}: {why}")]
    Other {
        /// what was tried
        doing: &'static str,
        /// what the kernel or the loader said
        why: String,
    },
}

/// The steering program on one interface. Dropping it takes it off.
pub struct Steering {
    ifindex: u32,
    /// holds the program; what was loaded stays loaded while this lives
    program: Ebpf,
    link: Option<FdLink>,
    taken_map: HashMap<MapData, [u8; 20], u8>,
    own_map: HashMap<MapData, [u8; 16], u8>,
    prefix_map: LpmTrie<MapData, [u8; 17], u32>,
    settings_map: Array<MapData, [u8; SETTINGS_BYTES]>,
    sockets: Sockets,
    counts: Arc<Counts>,
    answers: Option<Answers>,
    config: Config,
    taken: BTreeSet<Taken>,
    own: BTreeSet<IpAddr>,
    prefixes: BTreeMap<Prefix, Rule>,
    /// listener queries are taken
    queries: bool,
}

impl Steering {
    /// Loads the program and attaches it to interface `ifindex`. It takes nothing yet.
    ///
    /// # Errors
    /// See [`SteeringError`].
    pub fn load(ifindex: u32, attach: Attach, config: &Config) -> Result<Steering, SteeringError> {
        let mut steering = Steering::prepare(ifindex, config)?;
        let mode = match attach {
            Attach::Native => XdpMode::Driver,
            Attach::Generic => XdpMode::Skb,
        };
        let xdp = xdp(&mut steering.program, config)?;
        let id = xdp.attach_to_if_index(ifindex, mode).map_err(|e| attach_error(ifindex, e))?;
        let link = xdp.take_link(id).map_err(|e| other("taking the link", &e))?;
        // only a link of the bpf kind goes with the process
        let link = FdLink::try_from(link)
            .map_err(|_| SteeringError::KernelTooOld { why: "it has no bpf links for XDP".into() })?;
        steering.link = Some(link);
        Ok(steering)
    }

    /// Loads program and maps without attaching.
    fn prepare(ifindex: u32, config: &Config) -> Result<Steering, SteeringError> {
        let (short, long) = config.answers.as_ref().map_or((1, 1), AnswersConfig::entries);
        let mut program = EbpfLoader::new()
            .verifier_log_level(VerifierLogLevel::STATS)
            .map_max_entries("short_answers", short)
            .map_max_entries("long_answers", long)
            .map_max_entries("limits", config.answers.as_ref().map_or(1, |answers| answers.accounts(config.queues)))
            .map_max_entries("heats", config.answers.as_ref().map_or(1, AnswersConfig::heat_pages))
            .map_max_entries("filters", config.answers.as_ref().map_or(1, AnswersConfig::filter_pages))
            .map_max_entries("zone_answers", config.answers.as_ref().map_or(2, |answers| 2 * answers.zones.max(1)))
            .map_max_entries("sockets", config.queues.max(1))
            .map_max_entries("taken", config.taken.max(1))
            .map_max_entries("own", config.own.max(1))
            .map_max_entries("prefixes", config.prefixes.max(1))
            .load(OBJECT)
            .map_err(|e| load_error(&e))?;
        xdp(&mut program, config)?.load().map_err(|e| load_error(&e.into()))?;
        let sockets = Sockets(Arc::new(Mutex::new(map(&mut program, "sockets")?)));
        let counts = Arc::new(Counts(map(&mut program, "counters")?));
        let answers = config.answers.as_ref().map(|it| Answers::new(&mut program, it, config.queues, counts.clone()));
        Ok(Steering {
            ifindex,
            link: None,
            taken_map: map(&mut program, "taken")?,
            own_map: map(&mut program, "own")?,
            prefix_map: map(&mut program, "prefixes")?,
            settings_map: map(&mut program, ".data")?,
            program,
            sockets,
            counts,
            answers: answers.transpose()?,
            config: config.clone(),
            taken: BTreeSet::new(),
            own: BTreeSet::new(),
            prefixes: BTreeMap::new(),
            queries: false,
        })
    }

    /// Puts a freshly loaded program with maps of other sizes in this one's place, with all entries and the given sockets by
    /// queue. No packet sees the interface without a program. It answers nothing until that is filled in again.
    ///
    /// # Errors
    /// See [`SteeringError`]; the program in place then stays.
    pub fn replace(&mut self, config: &Config, sockets: &[(u32, BorrowedFd<'_>)]) -> Result<(), SteeringError> {
        let mut fresh = Steering::prepare(self.ifindex, config)?;
        for (queue, socket) in sockets {
            fresh.sockets.set(*queue, *socket)?;
        }
        self.own.iter().try_for_each(|address| fresh.add_own(*address))?;
        self.prefixes.iter().try_for_each(|(prefix, rule)| fresh.add_prefix(*prefix, *rule))?;
        self.taken.iter().try_for_each(|taken| fresh.take(*taken))?;
        fresh.take_queries(self.queries)?;
        let Some(link) = self.link.take() else {
            return Err(SteeringError::Other { doing: "replacing", why: "no program is attached".into() });
        };
        let link = XdpLink::try_from(link).map_err(|e| other("reusing the link", &e))?;
        let xdp = xdp(&mut fresh.program, config)?;
        let id = xdp.attach_to_link(link).map_err(|e| attach_error(self.ifindex, e))?;
        let link = xdp.take_link(id).map_err(|e| other("taking the link", &e))?;
        fresh.link = FdLink::try_from(link).ok();
        *self = fresh;
        Ok(())
    }

    /// The slots of the AF_XDP sockets, to be shared with the threads that own them.
    pub fn sockets(&self) -> Sockets {
        self.sockets.clone()
    }

    /// What the program answers by itself, to be filled in; None when it was loaded without.
    pub fn answers(&self) -> Option<Answers> {
        self.answers.clone()
    }

    /// What the program has counted, over all processors.
    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Takes the traffic to `taken` from now on.
    ///
    /// # Errors
    /// When it names no destination, or the map is full.
    pub fn take(&mut self, taken: Taken) -> Result<(), SteeringError> {
        if taken.address.is_unspecified() || taken.port == 0 || !matches!(taken.protocol, TCP | UDP) {
            return Err(SteeringError::NoDestination(taken));
        }
        let service = self.config.service(&taken);
        self.taken_map.insert(taken.bytes(), service, 0).map_err(|e| other("taking an address and port", &e))?;
        self.taken.insert(taken);
        self.settle()
    }

    /// Leaves the traffic to `taken` to the kernel again. What was not taken stays so.
    ///
    /// # Errors
    /// The kernel's.
    pub fn release(&mut self, taken: &Taken) -> Result<(), SteeringError> {
        if self.taken.remove(taken) {
            // before the map, so that the program never compares with a key that is gone
            self.settle()?;
            self.taken_map.remove(&taken.bytes()).map_err(|e| other("releasing an address and port", &e))?;
        }
        Ok(())
    }

    /// What is taken now.
    pub fn taken(&self) -> impl Iterator<Item = &Taken> {
        self.taken.iter()
    }

    /// Takes frames for this hardware address from now on, after the interface got another one.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_mac(&mut self, mac: [u8; 6]) -> Result<(), SteeringError> {
        if self.config.mac == mac {
            return Ok(());
        }
        self.config.mac = mac;
        self.settle()
    }

    /// Takes everything for `address`, and ARP and NDP about it.
    ///
    /// # Errors
    /// When the map is full.
    pub fn add_own(&mut self, address: IpAddr) -> Result<(), SteeringError> {
        self.own_map.insert(address_bytes(address), 1, 0).map_err(|e| other("adding an own address", &e))?;
        self.own.insert(address);
        self.settle()
    }

    /// Undoes [`Steering::add_own`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_own(&mut self, address: IpAddr) -> Result<(), SteeringError> {
        if self.own.remove(&address) {
            self.settle()?;
            self.own_map.remove(&address_bytes(address)).map_err(|e| other("removing an own address", &e))?;
        }
        Ok(())
    }

    /// Addresses that are wholly ours.
    pub fn own(&self) -> impl Iterator<Item = &IpAddr> {
        self.own.iter()
    }

    /// Takes listener queries (RFC 3810 section 5.1) while there are own addresses, or leaves them to the kernel.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take_queries(&mut self, take: bool) -> Result<(), SteeringError> {
        let before = std::mem::replace(&mut self.queries, take);
        if before == take {
            return Ok(());
        }
        // what could not be written is tried again
        self.settle().inspect_err(|_| self.queries = before)
    }

    /// Adds a rule about senders.
    ///
    /// # Errors
    /// When it is no prefix, the opposite rule stands for the same prefix, or the map is full.
    pub fn add_prefix(&mut self, prefix: Prefix, rule: Rule) -> Result<(), SteeringError> {
        let key = prefix.key()?;
        let prefix = prefix.canonical();
        if self.prefixes.get(&prefix).is_some_and(|before| *before != rule) {
            return Err(SteeringError::BothWays(prefix));
        }
        let value = if rule == Rule::Allow { ALLOW } else { DENY };
        self.prefix_map.insert(&key, value, 0).map_err(|e| other("adding a prefix", &e))?;
        self.prefixes.insert(prefix, rule);
        self.settle()
    }

    /// Removes the rule about `prefix`, if there is one.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_prefix(&mut self, prefix: Prefix) -> Result<(), SteeringError> {
        let key = prefix.key()?;
        if self.prefixes.remove(&prefix.canonical()).is_some() {
            self.settle()?;
            self.prefix_map.remove(&key).map_err(|e| other("removing a prefix", &e))?;
        }
        Ok(())
    }

    /// Tells the program what it reads without a lookup. The sole key is taken back before another one is set, and its
    /// port and protocol, which put it in force, go in last: a packet meanwhile sees the map, never half a key.
    fn settle(&mut self) -> Result<(), SteeringError> {
        let mut settings = [0; SETTINGS_BYTES];
        let own = self.own.len() as u32;
        let has = |rule| self.prefixes.values().any(|r| *r == rule);
        let lists = if has(Rule::Allow) { ALLOW } else { 0 } | if has(Rule::Deny) { DENY } else { 0 };
        let tcp = self.taken.iter().filter(|taken| taken.protocol == TCP).count() as u32;
        settings[20..24].copy_from_slice(&own.to_ne_bytes());
        settings[24..28].copy_from_slice(&lists.to_ne_bytes());
        settings[28..32].copy_from_slice(&tcp.to_ne_bytes());
        settings[32..38].copy_from_slice(&self.config.mac);
        let sole = self.taken.first().copied().filter(|_| self.taken.len() == 1);
        let service = sole.map_or(0, |sole| self.config.service(&sole));
        settings[38..40].copy_from_slice(&u16::from(service).to_ne_bytes());
        settings[40..].copy_from_slice(&u32::from(self.queries).to_ne_bytes());
        self.write(settings)?;
        if let Some(sole) = sole {
            let key = sole.bytes();
            settings[..16].copy_from_slice(&key[..16]);
            self.write(settings)?;
            settings[16..20].copy_from_slice(&key[16..]);
            self.write(settings)?;
        }
        Ok(())
    }

    fn write(&mut self, settings: [u8; SETTINGS_BYTES]) -> Result<(), SteeringError> {
        self.settings_map.set(0, settings, 0).map_err(|e| other("changing the settings", &e))
    }
}

/// The AF_XDP socket of each receive queue, as the program sees them. A socket leaves its slot when it is closed.
#[derive(Clone)]
pub struct Sockets(Arc<Mutex<XskMap<MapData>>>);

impl Sockets {
    /// Sends what is ours on `queue` to `socket`.
    ///
    /// # Errors
    /// When there is no such queue or the descriptor is no bound AF_XDP socket.
    pub fn set(&self, queue: u32, socket: impl AsFd) -> Result<(), SteeringError> {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.set(queue, socket.as_fd().as_raw_fd(), 0).map_err(|e| other("registering a socket", &e))
    }
}

impl Sockets {
    /// Leaves what is ours on `queue` to the kernel, until another socket is set.
    ///
    /// # Errors
    /// The kernel's.
    pub fn clear(&self, queue: u32) -> Result<(), SteeringError> {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.unset(queue).map_err(|e| other("taking a socket out", &e))
    }
}

impl std::fmt::Debug for Steering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Steering { ifindex, taken, own, prefixes, .. } = self;
        write!(f, "Steering(interface {ifindex}, taken {taken:?}, own {own:?}, prefixes {prefixes:?})")
    }
}

impl std::fmt::Debug for Sockets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sockets")
    }
}

fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn xdp<'a>(program: &'a mut Ebpf, config: &Config) -> Result<&'a mut Xdp, SteeringError> {
    let found = program.program_mut(config.program()).expect("the object that build.rs compiled has the program");
    found.try_into().map_err(|e: ProgramError| other("loading", &e))
}

fn map<M: TryFrom<aya::maps::Map, Error = aya::maps::MapError>>(
    program: &mut Ebpf,
    name: &'static str,
) -> Result<M, SteeringError> {
    let found = program.take_map(name).expect("the object that build.rs compiled has the map");
    found.try_into().map_err(|e| other(name, &e))
}

fn other(doing: &'static str, error: &dyn std::error::Error) -> SteeringError {
    SteeringError::Other { doing, why: chain(error) }
}

fn load_error(error: &EbpfError) -> SteeringError {
    use rustix::io::Errno;
    if is(error, Errno::PERM) || is(error, Errno::ACCESS) && !missing(&[CAP_BPF, CAP_NET_ADMIN]).is_empty() {
        return not_permitted("load the steering program", &[CAP_BPF, CAP_NET_ADMIN]);
    }
    // the kernel lets nobody else add to a packet's address what it cannot bound against speculation
    if is(error, Errno::ACCESS) && !missing(&[CAP_PERFMON]).is_empty() {
        return not_permitted("load the program that answers in the driver", &[CAP_PERFMON]);
    }
    if is(error, Errno::INVAL) && kernel_before(5, 9) {
        return SteeringError::KernelTooOld { why: chain(error) };
    }
    other("loading", error)
}

fn attach_error(ifindex: u32, error: ProgramError) -> SteeringError {
    use rustix::io::Errno;
    let code = errno(&error);
    let io = |code| io::Error::from_raw_os_error(code);
    match code.map(Errno::from_raw_os_error) {
        Some(Errno::PERM) => not_permitted("attach the steering program", &[CAP_NET_ADMIN, CAP_BPF]),
        Some(Errno::BUSY | Errno::EXIST) => SteeringError::OtherProgram { ifindex },
        Some(Errno::RANGE) => SteeringError::Mtu(io(Errno::RANGE.raw_os_error())),
        Some(e @ (Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS)) => SteeringError::Unsupported(io(e.raw_os_error())),
        _ => other("attaching", &error),
    }
}

fn not_permitted(doing: &'static str, wanted: &[Capability]) -> SteeringError {
    SteeringError::NotPermitted { doing, needs: missing_of(wanted) }
}

#[cfg(test)]
mod tests;
