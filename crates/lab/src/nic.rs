//! A NIC with receive-side scaling for the server's host: what arrives there is spread over the queues of `vs` by a Toeplitz hash
//! and a table of 128 entries, which can be rewritten while packets flow.
//!
//! It is played at the client's end of the wire by an eBPF program (crate bpf, `nic.bpf.c`), through which everything goes that the
//! client's kernel sends. What bypasses the kernel's queueing does not: AF_XDP, and AF_PACKET with PACKET_QDISC_BYPASS. There the
//! sender's own queue is the receiver's, so a generator of that kind asks [`Nic::queue_of`].

use anyhow::{Result, ensure};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;
use wire::toeplitz;

pub use wire::Protocol;

/// How the NIC hashes.
#[derive(Clone, Debug)]
pub struct NicOptions {
    /// the key
    pub key: toeplitz::Key,
    /// whether UDP is hashed with its ports; if not, by addresses alone, as many NICs start
    pub udp_ports: bool,
}

impl Default for NicOptions {
    fn default() -> Self {
        Self { key: toeplitz::Key::MICROSOFT, udp_ports: true }
    }
}

/// The table and the counts. Needs no namespace: any thread may use it, and threads may share it.
#[derive(Debug)]
pub struct Nic {
    hash: toeplitz::Table,
    udp_ports: bool,
    queues: u32,
    program: bpf::nic::Nic,
}

/// A bpffs of one's own, where a table can be pinned. Dropped, it is gone.
#[derive(Debug)]
pub struct Pins(TempDir);

impl Pins {
    /// Mounts it.
    pub fn new() -> Result<Pins> {
        let dir = tempfile::Builder::new().prefix("simoom-bpffs-").tempdir()?;
        let status = Command::new("mount").args(["-t", "bpf", "none"]).arg(dir.path()).status()?;
        ensure!(status.success(), "mounting a bpffs at {}", dir.path().display());
        Ok(Pins(dir))
    }

    /// Where the table is to be pinned.
    pub fn table(&self) -> PathBuf {
        self.0.path().join("rss")
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        // lazily: a process that has just ended may hold it for a moment
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// Entries of the table.
pub const ENTRIES: u32 = bpf::nic::ENTRIES;

impl Nic {
    /// Puts the program on `interface` of the calling thread's namespace.
    pub(crate) fn attach(interface: &str, queues: u32, options: &NicOptions) -> Result<Nic> {
        let hash = toeplitz::Table::new(&options.key);
        let shares = hash.shares().as_flattened();
        let config = bpf::nic::Config { shares, queues, udp_ports: options.udp_ports };
        let program = bpf::nic::Nic::attach(interface, &config)?;
        Ok(Nic { hash, udp_ports: options.udp_ports, queues, program })
    }

    /// The key.
    pub fn key(&self) -> &toeplitz::Key {
        self.hash.key()
    }

    /// The queues that the table may name.
    pub fn queues(&self) -> u32 {
        self.queues
    }

    /// The hash of a packet from `src` to `dst`, as the NIC is specified. None when the addresses are not of one family. Fragments
    /// have the hash of a protocol without ports.
    pub fn hash_of(&self, src: SocketAddr, dst: SocketAddr, protocol: Protocol) -> Option<u32> {
        let ports = protocol == Protocol::TCP || protocol == Protocol::UDP && self.udp_ports;
        Some(self.hash.hash(&toeplitz::Input::of(src, dst, ports)?))
    }

    /// The entry of the table that such a packet's hash names.
    pub fn entry_of(&self, src: SocketAddr, dst: SocketAddr, protocol: Protocol) -> Option<u32> {
        Some(self.hash_of(src, dst, protocol)? % ENTRIES)
    }

    /// The queue that such a packet arrives in now.
    pub fn queue_of(&self, src: SocketAddr, dst: SocketAddr, protocol: Protocol) -> Result<Option<u32>> {
        let entry = self.entry_of(src, dst, protocol);
        Ok(entry.map(|entry| self.program.get(entry)).transpose()?)
    }

    /// Sends the flows of an entry to `queue`, from the next packet on.
    pub fn set_entry(&self, entry: u32, queue: u32) -> Result<()> {
        Ok(self.program.set(entry, queue)?)
    }

    /// Sends all flows to `queue`.
    pub fn set_all(&self, queue: u32) -> Result<()> {
        (0..ENTRIES).try_for_each(|entry| self.set_entry(entry, queue))
    }

    /// The queue of each entry.
    pub fn table(&self) -> Result<Vec<u32>> {
        Ok((0..ENTRIES).map(|entry| self.program.get(entry)).collect::<Result<_, _>>()?)
    }

    /// Pins the table at `path`, which is in a bpffs, for who takes it for a NIC's.
    pub fn pin(&self, path: &std::path::Path) -> Result<()> {
        Ok(self.program.pin(path)?)
    }

    /// What an entry's flows sent since the start, and the hash of the last packet as the program made it.
    pub fn seen(&self, entry: u32) -> Result<bpf::nic::Seen> {
        Ok(self.program.seen(entry)?)
    }

    /// Packets that are not IP; they arrive in queue 0.
    pub fn not_hashed(&self) -> Result<u64> {
        Ok(self.program.not_hashed()?)
    }
}
