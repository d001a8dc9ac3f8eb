//! The receive-side scaling of a NIC, played at the sending end of a veth pair (`nic.bpf.c`): for the laboratory.

use crate::error::chain;
use aya::maps::{Array, Map, MapData};
use aya::programs::tc::{NlOptions, TcAttachOptions, qdisc_add_clsact};
use aya::programs::{SchedClassifier, TcAttachType};
use aya::{EbpfLoader, VerifierLogLevel};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/nic.bpf.o"));

/// Entries of the table, as most NICs have them.
pub const ENTRIES: u32 = 128;

/// What the program hashes and how.
#[derive(Clone, Debug)]
pub struct Config<'a> {
    /// what each value (256) of each byte of the input (36) adds to the hash, as `wire::toeplitz::Table` has it
    pub shares: &'a [u32],
    /// queues of the receiver that the table may name
    pub queues: u32,
    /// whether UDP is hashed with its ports; if not, by addresses alone, as many NICs start
    pub udp_ports: bool,
}

/// The NIC is not in place, or its table not as wanted.
#[derive(Debug, thiserror::Error)]
#[error("the laboratory's NIC: {doing}: {why}")]
pub struct NicError {
    /// what was tried
    pub doing: &'static str,
    /// what the kernel or the loader said
    pub why: String,
}

/// Packets of one entry of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// since the start
    pub packets: u64,
    /// of the last
    pub hash: u32,
}

/// The program's table and counts. The program itself stays on the interface as long as that lives.
pub struct Nic {
    queues: u32,
    table: Mutex<Array<MapData, u32>>,
    /// the same once more, to be pinned
    data: MapData,
    entries: Array<MapData, [u64; 2]>,
}

impl Nic {
    /// Puts the program on the egress of `interface`, which is looked up in the network namespace of the calling thread. The
    /// table is that which drivers begin with: entry `i` names queue `i` modulo the number of queues.
    ///
    /// # Errors
    /// What the kernel refuses. A second program on the same interface is refused, too.
    pub fn attach(interface: &str, config: &Config<'_>) -> Result<Nic, NicError> {
        let mut object = EbpfLoader::new()
            .verifier_log_level(VerifierLogLevel::STATS)
            .override_global("shares", config.shares, true)
            .override_global("queues", &config.queues, true)
            .override_global("udp_ports", &u32::from(config.udp_ports), true)
            .load(OBJECT)
            .map_err(|e| error("loading", &e))?;
        let mut take = |name| object.take_map(name).expect("the object that build.rs compiled has the map");
        let (table, entries) = (take("table"), take("entries"));
        let nic = Nic {
            queues: config.queues,
            data: again(&table)?,
            table: Mutex::new(table.try_into().map_err(|e| error("table", &e))?),
            entries: entries.try_into().map_err(|e| error("entries", &e))?,
        };
        for entry in 0..ENTRIES {
            nic.set(entry, entry % config.queues.max(1))?;
        }
        let program = object.program_mut("spread").expect("the object that build.rs compiled has the program");
        let program: &mut SchedClassifier = program.try_into().map_err(|e| error("loading", &e))?;
        program.load().map_err(|e| error("loading", &e))?;
        qdisc_add_clsact(interface).map_err(|e| error("adding clsact", &e))?;
        // by netlink, not as a TCX link: only a classifier may answer "stolen"
        let options = TcAttachOptions::Netlink(NlOptions::default());
        let id = program
            .attach_with_options(interface, TcAttachType::Egress, options)
            .map_err(|e| error("attaching", &e))?;
        let link = program.take_link(id).map_err(|e| error("attaching", &e))?;
        // Dropped, it would be taken off the interface of that index in the namespace of whichever thread drops it, which
        // may be another interface altogether. It goes with its own interface.
        std::mem::forget(link);
        Ok(nic)
    }

    /// Writes an entry of the table: its flows go to `queue` from the next packet on.
    ///
    /// # Errors
    /// When there is no such entry or queue.
    pub fn set(&self, entry: u32, queue: u32) -> Result<(), NicError> {
        if queue >= self.queues {
            let why = format!("there is no queue {queue}, only {}", self.queues);
            return Err(NicError { doing: "writing the table", why });
        }
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.set(entry, queue, 0).map_err(|e| error("writing the table", &e))
    }

    /// The queue that an entry names.
    ///
    /// # Errors
    /// When there is no such entry.
    pub fn get(&self, entry: u32) -> Result<u32, NicError> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.get(&entry, 0).map_err(|e| error("reading the table", &e))
    }

    /// Pins the table, where [`crate::rss::Table::open`] finds it.
    ///
    /// # Errors
    /// The kernel's; `path` must be in a bpffs.
    pub fn pin(&self, path: &std::path::Path) -> Result<(), NicError> {
        self.data.pin(path).map_err(|e| error("pinning the table", &e))
    }

    /// The packets of an entry.
    ///
    /// # Errors
    /// When there is no such entry.
    pub fn seen(&self, entry: u32) -> Result<Seen, NicError> {
        if entry >= ENTRIES {
            return Err(NicError { doing: "reading the counts", why: format!("there is no entry {entry}") });
        }
        self.count(entry)
    }

    /// Packets that are not IP and go to queue 0.
    ///
    /// # Errors
    /// The kernel's.
    pub fn not_hashed(&self) -> Result<u64, NicError> {
        self.count(ENTRIES).map(|seen| seen.packets)
    }

    fn count(&self, index: u32) -> Result<Seen, NicError> {
        let [packets, hash] = self.entries.get(&index, 0).map_err(|e| error("reading the counts", &e))?;
        Ok(Seen { packets, hash: hash as u32 })
    }
}

impl std::fmt::Debug for Nic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nic({} queues)", self.queues)
    }
}

/// Another handle of an array.
fn again(map: &Map) -> Result<MapData, NicError> {
    let Map::Array(data) = map else { return Err(NicError { doing: "table", why: "no array".into() }) };
    let fd = data.fd().as_fd().try_clone_to_owned().map_err(|e| error("table", &e))?;
    MapData::from_fd(fd).map_err(|e| error("table", &e))
}

fn error(doing: &'static str, error: &dyn std::error::Error) -> NicError {
    NicError { doing, why: chain(error) }
}
