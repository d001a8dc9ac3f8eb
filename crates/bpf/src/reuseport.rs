//! Loading the reuseport selector, and telling it which flow group belongs to which thread.
//!
//! A program of the type SK_REUSEPORT with an array of sockets, rather than one of the type SOCKET_FILTER that returns an index: the
//! place of a socket in the array stays its own when others of the group are closed or do not listen for a while, the kernel's
//! keyed hash of the flow comes with the packet, a place without a socket falls back to the kernel's choice, and it needs
//! CAP_BPF alone. What the program cannot see is the hash that the NIC made; so where packets arrive is told by the processor
//! it runs on.
//! For groups that are to be entries of a NIC's table the program makes the NIC's hash once more, given its key.
//!
//! A selector serves one reuseport group. Loading needs the capability; attaching and changing entries does not (since Linux 5.19),
//! so a server may have dropped it by then.

use crate::capability::{CAP_BPF, missing_of};
use aya::maps::{Array, MapData, PerCpuArray, ReusePortSockArray};
use aya::programs::SkReuseport;
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};
use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/reuseport.bpf.o"));

/// `TAKEN_OVER` of the program.
const TAKEN_OVER: u32 = 1 << 31;

/// Why there is no selector.
#[derive(Debug, thiserror::Error)]
pub enum SelectorError {
    /// the capability is missing
    #[error("not permitted; it needs {0}")]
    NotPermitted(String),
    /// whatever else the kernel or the loader said
    #[error("{doing}: {why}")]
    Other {
        /// what was tried
        doing: &'static str,
        /// what was said
        why: String,
    },
}

/// Sizes, fixed while the program is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorConfig {
    /// flow groups, at least one
    pub groups: u32,
    /// the processor that each thread is pinned to, none twice; or nothing when they are not pinned
    pub processors: Vec<usize>,
    /// sockets of the reuseport group, one a thread
    pub threads: u32,
    /// the hash of a NIC by which packets fall into groups, a power of two of them; None: the kernel's, under a secret
    pub hash: Option<NicHash>,
}

/// How a NIC hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicHash {
    /// what each value (256) of each byte of the input (36) adds to the hash, as `wire::toeplitz::Table` has it
    pub shares: Vec<u32>,
    /// whether it takes in the ports of TCP over IPv4, of UDP over IPv4, of TCP over IPv6, of UDP over IPv6
    pub ports: [bool; 4],
}

impl NicHash {
    /// The bits of the program.
    fn ports(&self) -> u32 {
        self.ports.iter().enumerate().map(|(bit, counts)| u32::from(*counts) << bit).sum()
    }
}

/// The selector of one reuseport group.
pub struct Selector {
    program: Ebpf,
    owners: Array<MapData, u32>,
    sockets: ReusePortSockArray<MapData>,
    processors: Array<MapData, u32>,
    recent: PerCpuArray<MapData, u32>,
    arrivals: PerCpuArray<MapData, u64>,
    places: Array<MapData, u32>,
    settings: Array<MapData, [u32; 2]>,
    /// as they were set
    set: [u32; 2],
    /// groups that were taken over
    taken_over: HashSet<usize>,
}

/// `struct settings` of the program: which field is where.
const HERE: usize = 0;
const AWAY: usize = 1;

struct Raw<'a>(BorrowedFd<'a>);

impl AsRawFd for Raw<'_> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Selector {
    /// Loads the program. Every group belongs to thread 0 until [`Selector::set_owner`] says otherwise.
    ///
    /// # Errors
    /// See [`SelectorError`].
    pub fn load(config: &SelectorConfig) -> Result<Selector, SelectorError> {
        let groups = config.groups.max(1);
        let pinned = u32::from(!config.processors.is_empty());
        let processors = config.processors.iter().max().map_or(1, |most| most + 1) as u32;
        let nic = u32::from(config.hash.is_some());
        let ports = config.hash.as_ref().map_or(0, NicHash::ports);
        let mut loader = EbpfLoader::new();
        if let Some(hash) = &config.hash {
            loader.override_global("shares", &*hash.shares, true);
        }
        let mut program = loader
            .verifier_log_level(VerifierLogLevel::STATS)
            .override_global("groups", &groups, true)
            .override_global("pinned", &pinned, true)
            .override_global("nic", &nic, true)
            .override_global("ports", &ports, true)
            .map_max_entries("places", if config.hash.is_some() { groups } else { 1 })
            .map_max_entries("owners", groups)
            .map_max_entries("sockets", config.threads.max(1))
            .map_max_entries("recent", config.threads.max(1))
            .map_max_entries("processors", processors)
            .load(OBJECT)
            .map_err(|error| refused("loading", &error))?;
        choose(&mut program)?.load().map_err(|error| refused("loading", &error))?;
        let mut selector = Selector {
            owners: map(&mut program, "owners")?,
            sockets: map(&mut program, "sockets")?,
            processors: map(&mut program, "processors")?,
            recent: map(&mut program, "recent")?,
            arrivals: map(&mut program, "arrivals")?,
            places: map(&mut program, "places")?,
            settings: map(&mut program, ".data")?,
            set: [0; 2],
            taken_over: HashSet::new(),
            program,
        };
        for (thread, processor) in config.processors.iter().enumerate() {
            selector.set_processor(*processor, Some(thread))?;
        }
        Ok(selector)
    }

    /// Puts the program and the sockets in force. The sockets form one reuseport group and, if they are of TCP, listen.
    ///
    /// # Errors
    /// The kernel's.
    pub fn attach(&mut self, sockets: &[BorrowedFd<'_>]) -> Result<(), SelectorError> {
        for (thread, socket) in sockets.iter().enumerate() {
            let set = self.sockets.set(thread as u32, &Raw(*socket), 0);
            set.map_err(|error| refused("registering a socket", &error))?;
        }
        let Some(first) = sockets.first() else { return Ok(()) };
        choose(&mut self.program)?.attach(first.as_fd()).map_err(|error| refused("attaching", &error))
    }

    /// Gives a group to a thread. `taken_over`: wherever its packets arrive.
    ///
    /// # Errors
    /// The kernel's, or no such group.
    pub fn set_owner(&mut self, group: usize, thread: usize, taken_over: bool) -> Result<(), SelectorError> {
        let entry = thread as u32 | if taken_over { TAKEN_OVER } else { 0 };
        if taken_over {
            self.taken_over.insert(group);
            self.apply(AWAY, true)?;
        }
        self.owners.set(group as u32, entry, 0).map_err(|error| refused("giving a flow group", &error))?;
        if !taken_over && self.taken_over.remove(&group) && self.taken_over.is_empty() {
            self.apply(AWAY, false)?;
        }
        Ok(())
    }

    /// Whether groups that nobody has taken over go to the thread of the processor that the packet arrived on.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_here(&mut self, here: bool) -> Result<(), SelectorError> {
        self.apply(HERE, here)
    }

    fn apply(&mut self, setting: usize, on: bool) -> Result<(), SelectorError> {
        let mut settings = self.set;
        settings[setting] = on.into();
        if settings != self.set {
            self.settings.set(0, settings, 0).map_err(|error| refused("changing the settings", &error))?;
            self.set = settings;
        }
        Ok(())
    }

    /// Says whose packets those are that arrive on a processor; None: nobody's in particular.
    ///
    /// # Errors
    /// The kernel's, or a processor that the configuration did not name.
    pub fn set_processor(&mut self, processor: usize, thread: Option<usize>) -> Result<(), SelectorError> {
        let entry = thread.map_or(0, |thread| thread as u32 + 1);
        self.processors.set(processor as u32, entry, 0).map_err(|error| refused("naming a processor's thread", &error))
    }

    /// Groups that were sent to `thread` of late, at most one for each processor. Which is a sample by how much each brings.
    ///
    /// # Errors
    /// The kernel's.
    pub fn recent(&self, thread: usize) -> Result<Vec<usize>, SelectorError> {
        let found = self.recent.get(&(thread as u32), 0).map_err(|error| refused("reading recent groups", &error))?;
        Ok(found.iter().filter_map(|group| group.checked_sub(1)).map(|group| group as usize).collect())
    }

    /// The processor on which a group last arrived; None where nothing did, or groups are not a NIC's.
    ///
    /// # Errors
    /// The kernel's, or no such group.
    pub fn place(&self, group: usize) -> Result<Option<usize>, SelectorError> {
        let found = self.places.get(&(group as u32), 0).map_err(|error| refused("reading a group's place", &error))?;
        Ok(found.checked_sub(1).map(|processor| processor as usize))
    }

    /// Forgets where a group arrived.
    ///
    /// # Errors
    /// As for [`Selector::place`].
    pub fn forget_place(&mut self, group: usize) -> Result<(), SelectorError> {
        self.places.set(group as u32, 0, 0).map_err(|error| refused("forgetting a group's place", &error))
    }

    /// How much arrived on each processor; only counted when the threads are pinned.
    ///
    /// # Errors
    /// The kernel's.
    pub fn arrivals(&self) -> Result<Vec<u64>, SelectorError> {
        let found = self.arrivals.get(&0, 0).map_err(|error| refused("reading arrivals", &error))?;
        Ok(found.iter().copied().collect())
    }
}

impl std::fmt::Debug for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Selector")
    }
}

fn choose(program: &mut Ebpf) -> Result<&mut SkReuseport, SelectorError> {
    let found = program.program_mut("choose").expect("the object that build.rs compiled has the program");
    found.try_into().map_err(|error| refused("loading", &error))
}

fn map<M: TryFrom<aya::maps::Map, Error = aya::maps::MapError>>(
    program: &mut Ebpf,
    name: &'static str,
) -> Result<M, SelectorError> {
    let found = program.take_map(name).expect("the object that build.rs compiled has the map");
    found.try_into().map_err(|error| refused(name, &error))
}

fn refused(doing: &'static str, error: &(dyn std::error::Error + 'static)) -> SelectorError {
    use rustix::io::Errno;
    if crate::error::is(error, Errno::PERM) || crate::error::is(error, Errno::ACCESS) {
        return SelectorError::NotPermitted(missing_of(&[CAP_BPF]));
    }
    SelectorError::Other { doing, why: crate::error::chain(error) }
}

#[cfg(test)]
mod tests;
