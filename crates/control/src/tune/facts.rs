//! What an interface and its host are set to: values only, so that drivers that this machine has not can be judged in tests.

use port_xdp::nic::{Channels, Coalescing, Feature, Flows, HashFields, Pause, Rings, Rss};
use std::collections::BTreeMap;

/// The device's answer: None when it has no such setting, an error when it could not be asked.
pub(crate) type Answer<T> = Result<Option<T>, String>;

/// Everything that is judged.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Facts {
    /// the interface's name
    pub(crate) interface: String,
    pub(crate) driver: String,
    pub(crate) up: bool,
    pub(crate) carrier: bool,
    pub(crate) loopback: bool,
    pub(crate) mtu: u32,
    /// the id of an XDP program on it
    pub(crate) xdp_program: Option<u32>,
    pub(crate) rx_queues: u32,
    pub(crate) tx_queues: u32,
    /// the processors that simoom's threads would run on
    pub(crate) processors: Vec<usize>,
    pub(crate) channels: Answer<Channels>,
    pub(crate) rss: Answer<Rss>,
    pub(crate) hash_fields: BTreeMap<Flows, Answer<HashFields>>,
    pub(crate) flow_rules: Answer<u32>,
    pub(crate) rings: Answer<Rings>,
    pub(crate) coalescing: Answer<Coalescing>,
    pub(crate) pause: Answer<Pause>,
    pub(crate) features: Result<BTreeMap<String, Feature>, String>,
    /// what sysfs tells; None when the mounted sysfs is that of another network namespace
    pub(crate) sysfs: Option<Sysfs>,
    pub(crate) host: Host,
}

/// The device as sysfs shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sysfs {
    /// interrupts of receive queues, in the order of the queues
    pub(crate) irqs: Vec<Irq>,
    /// the device's NUMA node; None when it has none or the machine has only one
    pub(crate) numa_node: Option<u32>,
    /// the mask in each receive queue's rps_cpus
    pub(crate) rps: Vec<String>,
    /// the mask in each transmit queue's xps_cpus; empty where there are none
    pub(crate) xps: Vec<String>,
}

/// An interrupt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Irq {
    pub(crate) number: u32,
    pub(crate) name: String,
    /// smp_affinity_list
    pub(crate) affinity: String,
}

/// What does not belong to the device.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Host {
    /// the processors of each NUMA node
    pub(crate) nodes: BTreeMap<u32, Vec<usize>>,
    /// the daemon that moves interrupts runs
    pub(crate) irqbalance: bool,
    /// the frequency governor of each processor that has one
    pub(crate) governors: BTreeMap<usize, String>,
    /// the longest time that a processor takes to wake from an idle state that is in use, in microseconds
    pub(crate) deepest_idle_us: Option<u32>,
    /// the limit on locked memory in bytes; None when nothing limits us
    pub(crate) memlock_bytes: Option<u64>,
    /// the word in brackets of transparent_hugepage/enabled
    pub(crate) huge_pages: Option<String>,
    /// connections that the namespace tracks, and the most it can; None without connection tracking
    pub(crate) conntrack: Option<(u64, u64)>,
}
