//! What the host's settings mean: interrupts, processors, memory, connection tracking. Pure, as `judge`.

use super::change::Action;
use super::facts::{Facts, Sysfs};
use super::judge::{Finding, State};

/// What AF_XDP locks for a thread is of this order: 8192 frames of 4096 bytes.
const MEMLOCK_BYTES: u64 = 32 << 20;
/// Waking from a deeper idle state takes longer than a packet's whole way through the machine.
const IDLE_US: u32 = 20;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !facts.loopback {
        match &facts.sysfs {
            Some(sysfs) => {
                findings.push(interrupts(facts, sysfs));
                findings.extend(numa(facts, sysfs));
                findings.push(rps(facts, sysfs));
                findings.extend(xps(facts, sysfs));
            }
            None => {
                let what = "the mounted sysfs shows another network namespace (`ip netns exec` mounts the right one)";
                findings.push(Finding::new("interrupts", State::CannotTell, what));
            }
        }
        findings.extend(irqbalance(facts));
    }
    findings.extend(processors(facts));
    findings.push(memory(facts));
    findings.push(huge_pages(facts));
    findings.push(conntrack(facts));
    findings
}

/// Each queue's interrupt on its thread's processor: the kernel's part of the work and ours then share a cache.
fn interrupts(facts: &Facts, sysfs: &Sysfs) -> Finding {
    if sysfs.irqs.is_empty() {
        return Finding::new(
            "interrupts",
            State::Note,
            "the device has no interrupts for its queues (a virtual one, or named as no driver known here)",
        );
    }
    let mut finding =
        Finding::new("interrupts", State::Good, "each queue's interrupt is on the processor of its thread");
    let mut astray = Vec::new();
    for (queue, irq) in sysfs.irqs.iter().enumerate().take(facts.rx_queues as usize) {
        let Some(processor) = facts.processors.get(queue % facts.processors.len().max(1)) else { continue };
        if irq.affinity != processor.to_string() {
            astray.push(format!("queue {queue} on {} instead of {processor}", irq.affinity));
            let path = format!("/proc/irq/{}/smp_affinity_list", irq.number);
            finding = finding.change(Action::write(&path, processor.to_string()), Action::write(&path, &irq.affinity));
        }
    }
    if !astray.is_empty() {
        finding.state = State::Note;
        finding.what =
            format!("{}: its packets change processors between the kernel and the thread", astray.join(", "));
    }
    finding
}

fn numa(facts: &Facts, sysfs: &Sysfs) -> Option<Finding> {
    let node = sysfs.numa_node?;
    let near = facts.host.nodes.get(&node)?;
    let far: Vec<String> = facts.processors.iter().filter(|cpu| !near.contains(cpu)).map(ToString::to_string).collect();
    if far.is_empty() {
        return Some(Finding::new(
            "numa",
            State::Good,
            format!("the threads' processors and the device are on node {node}"),
        ));
    }
    let near = near.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let what = format!(
        "the device is on node {node}, processors {} are not: every packet would cross between nodes",
        far.join(",")
    );
    Some(Finding::new("numa", State::Warn, what).by_hand(format!("simoom ... --cpus {near} (or fewer of them)")))
}

/// Whether a mask such as `00000000,00000003` names any processor.
fn is_set(mask: &str) -> bool {
    mask.chars().any(|digit| !matches!(digit, '0' | ','))
}

fn rps(facts: &Facts, sysfs: &Sysfs) -> Finding {
    let mut finding = Finding::new("rps", State::Good, "off: the kernel handles packets where they arrive");
    for (queue, mask) in sysfs.rps.iter().enumerate().filter(|(_, mask)| is_set(mask)) {
        finding.state = State::Note;
        finding.what =
            "on: the kernel hands packets to other processors, so kernel sockets do not learn where they arrived"
                .into();
        let path = format!("/sys/class/net/{}/queues/rx-{queue}/rps_cpus", facts.interface);
        finding = finding.change(Action::write(&path, "0"), Action::write(&path, mask));
    }
    finding
}

fn xps(facts: &Facts, sysfs: &Sysfs) -> Option<Finding> {
    if facts.tx_queues <= 1 || sysfs.xps.is_empty() {
        return None;
    }
    if sysfs.xps.iter().any(|mask| is_set(mask)) {
        return Some(Finding::new("xps", State::Good, "on: kernel sockets send by the queues of their processors"));
    }
    let what = "off: kernel sockets send by queues of other processors, too; AF_XDP sends by its own queue";
    let mut finding = Finding::new("xps", State::Note, what);
    for (queue, mask) in sysfs.xps.iter().enumerate() {
        let Some(processor) = facts.processors.get(queue).filter(|processor| **processor < 32) else { break };
        let path = format!("/sys/class/net/{}/queues/tx-{queue}/xps_cpus", facts.interface);
        finding = finding.change(Action::write(&path, format!("{:x}", 1u32 << processor)), Action::write(&path, mask));
    }
    Some(finding)
}

fn irqbalance(facts: &Facts) -> Option<Finding> {
    let has_irqs = facts.sysfs.as_ref().is_some_and(|sysfs| !sysfs.irqs.is_empty());
    (facts.host.irqbalance && has_irqs).then(|| {
        let what = "irqbalance runs: it moves interrupts away from where they are put";
        Finding::new("irqbalance", State::Note, what)
            .by_hand("systemctl disable --now irqbalance, or ban these interrupts in its settings")
    })
}

fn processors(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let ours = |cpu: &usize| facts.processors.contains(cpu);
    let governors: Vec<(&usize, &String)> = facts.host.governors.iter().filter(|(cpu, _)| ours(cpu)).collect();
    let slow: Vec<&(&usize, &String)> = governors.iter().filter(|(_, governor)| *governor != "performance").collect();
    if let Some((_, governor)) = slow.first() {
        let what = format!("{governor}: a processor that wakes for a packet is slow at first");
        let mut finding = Finding::new("governor", State::Note, what);
        for (cpu, governor) in &slow {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
            finding = finding.change(Action::write(&path, "performance"), Action::write(&path, governor.as_str()));
        }
        findings.push(finding);
    } else if !governors.is_empty() {
        findings.push(Finding::new("governor", State::Good, "performance"));
    }
    match facts.host.deepest_idle_us {
        Some(us) if us > IDLE_US => {
            let what = format!(
                "waking from the deepest idle state takes {us} us, which an idle server's answers wait; --idle spin never sleeps"
            );
            findings.push(
                Finding::new("idle states", State::Note, what).by_hand(format!("cpupower idle-set -D {IDLE_US}")),
            );
        }
        Some(us) => findings.push(Finding::new("idle states", State::Good, format!("a processor wakes in {us} us"))),
        None => {}
    }
    findings
}

fn memory(facts: &Facts) -> Finding {
    let need = MEMLOCK_BYTES * facts.processors.len().max(1) as u64;
    match facts.host.memlock_bytes {
        None => Finding::new("memlock", State::Good, "nothing limits locked memory for this user"),
        Some(limit) if limit >= need => {
            Finding::new("memlock", State::Good, format!("{} MiB may be locked", limit >> 20))
        }
        Some(limit) => {
            let what =
                format!("{} KiB may be locked; AF_XDP locks up to {} MiB for its frames", limit >> 10, need >> 20);
            Finding::new("memlock", State::Warn, what)
                .by_hand("LimitMEMLOCK=infinity in the systemd unit, or `ulimit -l unlimited`")
        }
    }
}

fn huge_pages(facts: &Facts) -> Finding {
    match facts.host.huge_pages.as_deref() {
        Some("never") => {
            let what = "transparent huge pages are off: large tables of connections, names and content cost walks of the page tables";
            Finding::new("huge pages", State::Note, what)
                .by_hand("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
        }
        Some(word) => Finding::new("huge pages", State::Good, format!("{word}: large tables are on huge pages")),
        None => Finding::new(
            "huge pages",
            State::CannotTell,
            "the kernel does not say whether it has transparent huge pages",
        ),
    }
}

fn conntrack(facts: &Facts) -> Finding {
    match facts.host.conntrack {
        None | Some((0, _)) => Finding::new("conntrack", State::Good, "the kernel tracks no connections here"),
        Some((count, most)) => {
            let state = if count > most / 5 * 4 { State::Warn } else { State::Note };
            let what = format!(
                "{count} of {most} connections are tracked: what AF_XDP takes is not, what kernel sockets serve is, and a full table drops it"
            );
            let rule = "nft add rule ip raw prerouting udp dport 53 notrack, and the same for output and the other ports served";
            Finding::new("conntrack", state, what).by_hand(rule)
        }
    }
}
