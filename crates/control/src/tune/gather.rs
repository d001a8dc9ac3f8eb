//! Reading the facts: by rtnetlink and ethtool's ioctls in the network namespace of this thread, and from procfs and sysfs.

use super::facts::{Answer, Facts, Host, Irq, Sysfs};
use crate::error::{Error, reason};
use port_xdp::device::Device;
use port_xdp::nic::{Flows, Nic};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What `interface` and the host are set to, for threads on `cpus` or, if it is empty, on every processor that this one may use.
///
/// # Errors
/// When there is no such interface.
pub(crate) fn gather(interface: &str, cpus: &[usize]) -> Result<Facts, Error> {
    let device = Device::find(interface)
        .map_err(|error| Error::environment(format!("{interface}: {}", reason(&error))))?
        .ok_or_else(|| Error::input(format!("there is no interface {interface}; `ip link` shows them")))?;
    let nic = Nic::of(interface);
    let sysfs = sysfs(&device);
    let facts = Facts {
        interface: interface.to_owned(),
        up: device.up,
        carrier: device.carrier,
        loopback: device.loopback,
        mtu: device.mtu as u32,
        xdp_program: device.xdp_program,
        rx_queues: device.rx_queues,
        tx_queues: device.tx_queues,
        processors: if cpus.is_empty() { usable() } else { cpus.to_vec() },
        channels: told(nic.channels()),
        rss: told(nic.rss()),
        hash_fields: Flows::ALL.into_iter().map(|flows| (flows, told(nic.hash_fields(flows)))).collect(),
        flow_rules: told(nic.flow_rules()),
        rings: told(nic.rings()),
        coalescing: told(nic.coalescing()),
        pause: told(nic.pause()),
        features: nic.features().map_err(|error| reason(&error)),
        host: host(sysfs.is_some()),
        sysfs,
        driver: device.driver,
    };
    Ok(facts)
}

fn told<T>(answer: std::io::Result<Option<T>>) -> Answer<T> {
    answer.map_err(|error| reason(&error))
}

fn usable() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return vec![0] };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

fn line(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The entries of a folder that are called `prefix` and a number, by their numbers.
fn numbered(folder: &Path, prefix: &str) -> BTreeMap<u32, PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeMap::new() };
    let number = |entry: fs::DirEntry| {
        Some((entry.file_name().to_str()?.strip_prefix(prefix)?.parse::<u32>().ok()?, entry.path()))
    };
    entries.flatten().filter_map(number).collect()
}

/// None unless the mounted sysfs shows this very interface.
fn sysfs(device: &Device) -> Option<Sysfs> {
    let folder = Path::new("/sys/class/net").join(&device.name);
    let mac: Vec<String> = device.mac.iter().map(|byte| format!("{byte:02x}")).collect();
    let same =
        line(folder.join("ifindex"))? == device.index.to_string() && line(folder.join("address"))? == mac.join(":");
    if !same {
        return None;
    }
    let masks = |prefix, file: &str| {
        let queues = numbered(&folder.join("queues"), prefix);
        queues.values().filter_map(|queue| line(queue.join(file))).collect()
    };
    let node = line(folder.join("device/numa_node")).and_then(|node| node.parse().ok());
    Some(Sysfs {
        irqs: queue_irqs(&fs::read_to_string("/proc/interrupts").unwrap_or_default(), &names(device, &folder))
            .into_iter()
            .filter_map(|(number, name)| {
                let affinity = line(format!("/proc/irq/{number}/smp_affinity_list"))?;
                Some(Irq { number, name, affinity })
            })
            .collect(),
        numa_node: node,
        rps: masks("rx-", "rps_cpus"),
        xps: masks("tx-", "xps_cpus"),
    })
}

/// What a driver calls its interrupts after: the interface, its place on the bus, a virtio device's name.
fn names(device: &Device, folder: &Path) -> Vec<String> {
    let mut names = vec![device.name.clone()];
    if let Ok(place) = fs::canonicalize(folder.join("device")) {
        names.extend(place.file_name().and_then(|name| name.to_str()).map(str::to_owned));
    }
    names
}

/// The interrupts of receive queues in the text of /proc/interrupts, in the order of the queues: their names hold one of `names`, a word
/// for a queue that receives, and its number (`eth0-TxRx-3`, `i40e-eth0-TxRx-3`, `eth0-Tx-Rx-3`, `mlx5_comp3@pci:0000:3b:00.0`,
/// `virtio2-input.3`, `gve-ntfy-blk3@pci:...`).
fn queue_irqs(interrupts: &str, names: &[String]) -> Vec<(u32, String)> {
    let mut found = BTreeMap::new();
    for text in interrupts.lines() {
        let Some((number, rest)) = text.split_once(':') else { continue };
        let (Ok(number), Some(name)) = (number.trim().parse::<u32>(), rest.split_whitespace().last()) else { continue };
        if !names.iter().any(|of| holds(name, of)) {
            continue;
        }
        let own = name.split('@').next().unwrap_or(name).to_ascii_lowercase();
        let receives = ["txrx", "tx-rx", "-rx-", "comp", "input", "ntfy"].iter().any(|word| own.contains(word));
        let digits = own.len() - own.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        if let (true, Ok(queue)) = (receives, own[own.len() - digits..].parse::<u32>()) {
            found.insert(queue, (number, name.to_owned()));
        }
    }
    found.into_values().collect()
}

/// Whether `of` stands in `name` as a whole: eth1 is not in eth10.
fn holds(name: &str, of: &str) -> bool {
    name.match_indices(of).any(|(at, _)| {
        let after = name[at + of.len()..].chars().next();
        let before = name[..at].chars().next_back();
        !after.is_some_and(char::is_alphanumeric) && !before.is_some_and(char::is_alphanumeric)
    })
}

fn host(sees_devices: bool) -> Host {
    let cpus = Path::new("/sys/devices/system/cpu");
    let mut host = Host { irqbalance: sees_devices && runs("irqbalance"), ..Host::default() };
    for (node, folder) in numbered(Path::new("/sys/devices/system/node"), "node") {
        let list = line(folder.join("cpulist")).and_then(|list| list.parse::<crate::words::Cpus>().ok());
        host.nodes.insert(node, list.map_or(Vec::new(), |cpus| cpus.0));
    }
    for (cpu, folder) in numbered(cpus, "cpu") {
        if let Some(governor) = line(folder.join("cpufreq/scaling_governor")) {
            host.governors.insert(cpu as usize, governor);
        }
    }
    let states = numbered(&cpus.join("cpu0/cpuidle"), "state");
    let used = states.values().filter(|state| line(state.join("disable")).as_deref() != Some("1"));
    host.deepest_idle_us = used.filter_map(|state| line(state.join("latency"))?.parse().ok()).max();
    let ipc_lock = ("CAP_IPC_LOCK", 14);
    if !bpf::capability::missing(&[ipc_lock]).is_empty() {
        host.memlock_bytes = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    }
    host.huge_pages = line("/sys/kernel/mm/transparent_hugepage/enabled")
        .and_then(|text| Some(text.split_once('[')?.1.split_once(']')?.0.to_owned()));
    let number = |file: &str| line(format!("/proc/sys/net/netfilter/{file}"))?.parse().ok();
    host.conntrack = number("nf_conntrack_count").zip(number("nf_conntrack_max"));
    host
}

/// Whether a process of this name runs.
fn runs(name: &str) -> bool {
    let Ok(entries) = fs::read_dir("/proc") else { return false };
    entries.flatten().any(|entry| line(entry.path().join("comm")).as_deref() == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_are_found_by_the_names_that_drivers_give_them() {
        let text = "           CPU0       CPU1\n\
            24:          1          0  IO-APIC   5-edge      ACPI:Ged\n\
            38:          0      17414 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0\n\
            39:      12641          0 PCI-MSIX-0000:00:03.0   2-edge      virtio2-output.0\n\
            40:      12641          0 PCI-MSIX-0000:00:03.0   3-edge      virtio2-input.1\n\
            51: 0 0 PCI-MSI 1-edge i40e-ens1f0-TxRx-1\n\
            50: 0 0 PCI-MSI 0-edge i40e-ens1f0-TxRx-0\n\
            52: 0 0 PCI-MSI 0-edge i40e-ens1f01-TxRx-0\n\
            60: 0 0 PCI-MSI 0-edge mlx5_comp0@pci:0000:3b:00.0\n\
            61: 0 0 PCI-MSI 0-edge mlx5_async0@pci:0000:3b:00.0\n\
            70: 0 0 PCI-MSI 0-edge eth1-Tx-Rx-10\n\
            71: 0 0 PCI-MSI 0-edge eth1-Tx-Rx-9\n\
            72: 0 0 PCI-MSI 0-edge ena-mgmnt@pci:0000:00:05.0\n\
           NMI:          0          0   Non-maskable interrupts\n";
        let numbers =
            |of: &str| queue_irqs(text, &[of.to_owned()]).into_iter().map(|(number, _)| number).collect::<Vec<_>>();
        assert_eq!(numbers("virtio2"), [38, 40]);
        assert_eq!(numbers("ens1f0"), [50, 51]);
        assert_eq!(numbers("0000:3b:00.0"), [60]);
        assert_eq!(numbers("eth1"), [71, 70]);
        assert!(numbers("veth0").is_empty());
    }

    #[test]
    fn lo_and_this_host_can_be_read() {
        let facts = gather("lo", &[]).unwrap();
        assert!(facts.loopback && !facts.processors.is_empty());
        assert_eq!(facts.channels, Ok(None));
        assert_eq!(gather("lo", &[7]).unwrap().processors, [7]);
        assert!(gather("no-such-one", &[]).unwrap_err().to_string().contains("no interface no-such-one"));
    }
}
