//! What the settings mean for simoom, and what to run. Pure: facts in, findings out.

use super::change::{Action, Change};
use super::facts::{Answer, Facts};
use port_xdp::nic::{Bounded, HashFunction, Rss};
use serde::Serialize;

/// How a setting is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// as it should be
    Good,
    /// worth knowing; it costs something, or the device cannot do better
    Note,
    /// it breaks or slows what simoom does
    Warn,
    /// it could not be read
    CannotTell,
}

/// One item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) item: &'static str,
    pub(crate) state: State,
    /// what is so, and what it means
    pub(crate) what: String,
    /// what `--apply` does about it
    pub(crate) changes: Vec<Change>,
    /// what only the administrator can decide
    pub(crate) by_hand: Option<String>,
}

impl Finding {
    pub(crate) fn new(item: &'static str, state: State, what: impl Into<String>) -> Finding {
        Finding { item, state, what: what.into(), changes: Vec::new(), by_hand: None }
    }

    /// With a step and how to take it back, as words for ethtool.
    pub(crate) fn ethtool(self, action: impl AsRef<str>, undo: impl AsRef<str>) -> Finding {
        self.change(Action::ethtool(action), Action::ethtool(undo))
    }

    /// The same for what makes a device's queues anew. Under a program it is not done: a server that is running serves the queues that
    /// there were when it started, and what new ones bring is the kernel's.
    fn ethtool_of_queues(self, facts: &Facts, action: impl AsRef<str>, undo: impl AsRef<str>) -> Finding {
        if facts.xdp_program.is_none() {
            return self.ethtool(action, undo);
        }
        let command = format!("with no server running: ethtool {}", action.as_ref());
        self.by_hand(command)
    }

    pub(crate) fn change(mut self, action: Action, undo: Action) -> Finding {
        self.changes.push(Change { action, undo: Some(undo) });
        self
    }

    pub(crate) fn by_hand(mut self, command: impl Into<String>) -> Finding {
        self.by_hand = Some(command.into());
        self
    }
}

/// A frame of simoom's carries so many bytes above the link layer: 3840 less an Ethernet header with one VLAN tag.
const MTU_MOST: u32 = 3840 - 18;
/// Slots that hold what comes while a thread is not on its processor for a millisecond at a million packets a second.
const RING_SLOTS: u32 = 1024;
/// Longer than this a frame on an idle machine should not wait for its interrupt.
const COALESCING_US: u32 = 16;

/// Judges them all.
pub(crate) fn judge(facts: &Facts) -> Vec<Finding> {
    if facts.loopback {
        let what = "the loopback interface has no driver and no queues: services there run on kernel sockets";
        let mut findings = vec![Finding::new("link", State::Note, what)];
        findings.extend(super::judge_host::judge(facts));
        return findings;
    }
    let mut findings = vec![link(facts), queues(facts), rss(facts)];
    findings.extend(hash_fields(facts));
    findings.push(flow_rules(facts));
    findings.push(coalescing(facts));
    findings.push(pause(facts));
    findings.push(rings(facts));
    findings.extend(offloads(facts));
    findings.extend(super::judge_host::judge(facts));
    findings
}

/// The device's answer, or the finding that there is none.
fn answer<'a, T>(item: &'static str, answer: &'a Answer<T>, cannot: &str) -> Result<&'a T, Box<Finding>> {
    match answer {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(Box::new(Finding::new(item, State::Note, cannot))),
        Err(why) => Err(Box::new(Finding::new(item, State::CannotTell, why.clone()))),
    }
}

fn link(facts: &Facts) -> Finding {
    let Facts { interface, mtu, .. } = facts;
    if !facts.up {
        let finding = Finding::new("link", State::Warn, "the interface is down");
        return finding.by_hand(format!("ip link set dev {interface} up"));
    }
    if let Some(id) = facts.xdp_program {
        let what = format!("XDP program {id} is on it: unless it is simoom's own, simoom does not start beside it");
        return Finding::new("link", State::Note, what).by_hand(format!("ip link show dev {interface}"));
    }
    if *mtu > MTU_MOST {
        let what =
            format!("packets of {mtu} bytes do not fit a frame ({MTU_MOST}): larger ones are dropped and counted");
        let words =
            |mtu: u32| ["ip", "link", "set", "dev", interface, "mtu", &mtu.to_string()].map(str::to_owned).to_vec();
        return Finding::new("link", State::Warn, what).change(Action::Run(words(1500)), Action::Run(words(*mtu)));
    }
    if !facts.carrier {
        return Finding::new("link", State::Warn, "the interface is up, but has no carrier");
    }
    Finding::new("link", State::Good, format!("up, {} driver, MTU {mtu}", named(&facts.driver)))
}

fn named(driver: &str) -> &str {
    if driver.is_empty() { "an unnamed" } else { driver }
}

fn queues(facts: &Facts) -> Finding {
    let (now, threads) = (facts.rx_queues, facts.processors.len() as u32);
    let channels = match answer("queues", &facts.channels, "") {
        Ok(channels) => channels,
        Err(mut finding) => {
            if finding.state == State::Note {
                finding.what = format!("{}, and the driver does not let it be changed", spread(now, threads));
                if now == threads || now == 1 {
                    finding.state = State::Good;
                }
            }
            return *finding;
        }
    };
    let pairs = channels.combined.max > 0;
    let most = match (pairs, facts.driver.as_str()) {
        // each receive queue needs a second transmit queue for what XDP sends
        (true, "ena") => channels.combined.max / 2,
        (true, _) => channels.combined.max,
        (false, _) => channels.rx.max.min(channels.tx.max),
    };
    let wanted = threads.min(most).max(1);
    if now == wanted {
        return Finding::new("queues", State::Good, spread(now, threads));
    }
    let what = if now < wanted {
        format!("{}; the device has up to {most}", spread(now, threads))
    } else if now > threads {
        format!("{}: each queue wants a thread of its own", spread(now, threads))
    } else {
        format!("{}: with an XDP program the device has only {most}", spread(now, threads))
    };
    let set = |channels: [u32; 3]| {
        let [rx, tx, combined] = channels;
        match pairs {
            true => format!("-L {} combined {combined}", facts.interface),
            false => format!("-L {} rx {rx} tx {tx}", facts.interface),
        }
    };
    let undo = set([channels.rx.now, channels.tx.now, channels.combined.now]);
    Finding::new("queues", State::Note, what).ethtool_of_queues(facts, set([wanted; 3]), undo)
}

fn spread(queues: u32, threads: u32) -> String {
    let some = |n: u32, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    format!("{} for {}", some(queues, "receive queue"), some(threads, "processor"))
}

fn rss(facts: &Facts) -> Finding {
    let cannot = "the driver has no indirection table to read or write: flows are moved between threads by software";
    let table = match answer("rss", &facts.rss, cannot) {
        Ok(rss) => rss,
        Err(mut finding) => {
            if facts.rx_queues <= 1 && finding.state == State::Note {
                finding.state = State::Good;
                finding.what = "one receive queue: nothing to spread".into();
            }
            return *finding;
        }
    };
    let unused: Vec<String> =
        (0..facts.rx_queues).filter(|queue| !table.table.contains(queue)).map(|queue| queue.to_string()).collect();
    if !unused.is_empty() {
        let what = format!(
            "the table leads to no packets in queue {} (reserved, or left from fewer queues)",
            unused.join(", ")
        );
        let undo = Action::Table { interface: facts.interface.clone(), queues: table.table.clone() };
        let equal = Action::ethtool(format!("-X {} equal {}", facts.interface, facts.rx_queues));
        return Finding::new("rss", State::Warn, what).change(equal, undo);
    }
    match unforeseen(table) {
        Some(why) => {
            let what = format!(
                "{} entries; {why}, so where a flow lands cannot be foretold: flows are moved by software",
                table.table.len()
            );
            Finding::new("rss", State::Note, what)
        }
        None => {
            let what = format!(
                "{} entries, Toeplitz with a key of {} bytes: flows are moved by the table",
                table.table.len(),
                table.key.len()
            );
            Finding::new("rss", State::Good, what)
        }
    }
}

fn unforeseen(rss: &Rss) -> Option<&'static str> {
    match rss.function {
        _ if rss.key.is_empty() => Some("the driver does not tell its key"),
        HashFunction::Toeplitz if rss.symmetric => Some("the input of the hash is made symmetric"),
        HashFunction::Toeplitz => None,
        HashFunction::Xor | HashFunction::Crc32 => Some("the hash is not Toeplitz"),
        HashFunction::Unknown => Some("the driver does not tell its hash function"),
    }
}

fn hash_fields(facts: &Facts) -> Vec<Finding> {
    if facts.rx_queues <= 1 {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (flows, told) in &facts.hash_fields {
        let name = flows.name();
        let Ok(Some(fields)) = told else {
            if let Err(why) = told {
                findings.push(Finding::new("hash fields", State::CannotTell, format!("{name}: {why}")));
            }
            continue;
        };
        if fields.others {
            let what = format!(
                "{name}: more or less than addresses and ports is hashed, so where a flow lands cannot be foretold"
            );
            findings.push(
                Finding::new("hash fields", State::Note, what)
                    .by_hand(format!("ethtool -n {} rx-flow-hash {name}", facts.interface)),
            );
        } else if !fields.ports {
            let what = format!(
                "{name}: ports are not hashed, so all flows between two addresses, such as a resolver's queries, meet in one queue"
            );
            let set = |fields| format!("-N {} rx-flow-hash {name} {fields}", facts.interface);
            let before = if fields.addresses { "sd" } else { "r" };
            let finding = Finding::new("hash fields", State::Note, what);
            findings.push(if fields.addresses {
                finding.ethtool(set("sdfn"), set(before))
            } else {
                finding.by_hand(format!("ethtool {}", set("sdfn")))
            });
        } else {
            findings.push(Finding::new("hash fields", State::Good, format!("{name}: addresses and ports")));
        }
    }
    if facts.hash_fields.values().all(|told| *told == Ok(None)) {
        findings.push(Finding::new("hash fields", State::Note, "the driver does not tell what of a packet it hashes"));
    }
    findings
}

fn flow_rules(facts: &Facts) -> Finding {
    let item = "flow rules";
    let ntuple = facts.features.as_ref().ok().and_then(|features| features.get("rx-ntuple-filter"));
    let cannot = "the driver has no flow classifier: --pin-flow, --reserve-queue and --drop-flow need one";
    match (answer(item, &facts.flow_rules, cannot), ntuple) {
        (Err(finding), _) => *finding,
        (Ok(_), Some(ntuple)) if !ntuple.on => {
            let what = "off: --pin-flow, --reserve-queue and --drop-flow need them";
            let finding = Finding::new(item, State::Note, what);
            if ntuple.fixed { finding } else { finding.by_hand(format!("ethtool -K {} ntuple on", facts.interface)) }
        }
        (Ok(0), _) => Finding::new(item, State::Good, "none, and the driver takes some"),
        (Ok(count), _) => {
            let what = format!("{count} in place: what they match passes the table by");
            Finding::new(item, State::Note, what).by_hand(format!("ethtool -n {}", facts.interface))
        }
    }
}

fn coalescing(facts: &Facts) -> Finding {
    let item = "coalescing";
    let now = match answer(item, &facts.coalescing, "the driver has no interrupt coalescing to set") {
        Ok(now) => now,
        Err(mut finding) => {
            if finding.state == State::Note {
                finding.state = State::Good;
            }
            return *finding;
        }
    };
    if !now.adaptive_rx && now.rx_us <= COALESCING_US {
        return Finding::new(item, State::Good, format!("a frame waits at most {} us for its interrupt", now.rx_us));
    }
    let interface = &facts.interface;
    // only what differs: not every driver knows every word
    let (mut set, mut undo) = (format!("-C {interface}"), format!("-C {interface}"));
    if now.adaptive_rx {
        set.push_str(" adaptive-rx off");
        undo.push_str(" adaptive-rx on");
    }
    if now.rx_us > COALESCING_US {
        set.push_str(&format!(" rx-usecs {COALESCING_US}"));
        undo.push_str(&format!(" rx-usecs {}", now.rx_us));
    }
    let what = match now.adaptive_rx {
        true => format!("adaptive (now {} us): a lone question waits as long as the driver's guess", now.rx_us),
        false => format!(
            "a lone question waits up to {} us for its interrupt; under load interrupts are off anyway",
            now.rx_us
        ),
    };
    Finding::new(item, State::Note, what).ethtool(set, undo)
}

fn pause(facts: &Facts) -> Finding {
    let item = "flow control";
    let now = match answer(item, &facts.pause, "the driver has no PAUSE frames to set") {
        Ok(now) => now,
        Err(mut finding) => {
            if finding.state == State::Note {
                finding.state = State::Good;
            }
            return *finding;
        }
    };
    let what = match (now.rx, now.tx) {
        (false, false) => {
            return Finding::new(item, State::Good, "off: what comes too fast is dropped here, where it is counted");
        }
        (_, true) => {
            "on: when a ring is full the switch is told to stop, and what else goes to this machine waits, too"
        }
        (true, false) => "on: the switch may stop all that this machine sends",
    };
    let word = |on: bool| if on { "on" } else { "off" };
    let interface = &facts.interface;
    Finding::new(item, State::Note, what).ethtool(
        format!("-A {interface} rx off tx off"),
        format!("-A {interface} rx {} tx {}", word(now.rx), word(now.tx)),
    )
}

fn rings(facts: &Facts) -> Finding {
    let rings = match answer("rings", &facts.rings, "the driver's rings have a fixed size") {
        Ok(rings) => rings,
        Err(mut finding) => {
            if finding.state == State::Note {
                finding.state = State::Good;
            }
            return *finding;
        }
    };
    let wanted = |ring: Bounded| ring.now.max(RING_SLOTS.min(ring.max));
    let (rx, tx) = (wanted(rings.rx), wanted(rings.tx));
    if (rx, tx) == (rings.rx.now, rings.tx.now) {
        let what = format!("{} slots to receive, {} to send", rings.rx.now, rings.tx.now);
        return Finding::new("rings", State::Good, what);
    }
    let what = format!(
        "{} slots to receive, {} to send: short for what comes while a thread is not on its processor",
        rings.rx.now, rings.tx.now
    );
    let interface = &facts.interface;
    let set = |rx: u32, tx: u32| format!("-G {interface} rx {rx} tx {tx}");
    let undo = set(rings.rx.now, rings.tx.now);
    Finding::new("rings", State::Note, what).ethtool_of_queues(facts, set(rx, tx), undo)
}

/// Features that stand in AF_XDP's way: the kernel's name, ethtool's word, what it means.
const IN_THE_WAY: [(&str, &str, State, &str); 5] = [
    ("rx-lro", "lro", State::Warn, "frames are merged in the device before XDP sees them: drivers refuse a program"),
    (
        "rx-gro-hw",
        "rx-gro-hw",
        State::Warn,
        "frames are merged in the device before XDP sees them: drivers refuse a program, or fall to --mode generic",
    ),
    ("rx-gro-list", "rx-gro-list", State::Warn, "frames are chained before generic XDP sees them"),
    (
        "rx-udp-gro-forwarding",
        "rx-udp-gro-forwarding",
        State::Warn,
        "datagrams are merged before generic XDP and sockets that do not ask for it see them",
    ),
    (
        "rx-vlan-hw-parse",
        "rxvlan",
        State::Note,
        "the device takes VLAN tags off before XDP sees the frame: tagged traffic is taken for untagged",
    ),
];

fn offloads(facts: &Facts) -> Vec<Finding> {
    let features = match &facts.features {
        Ok(features) => features,
        Err(why) => return vec![Finding::new("offloads", State::CannotTell, why.clone())],
    };
    let is_on = |name: &str| features.get(name).is_some_and(|feature| feature.on);
    let interface = &facts.interface;
    let mut findings = Vec::new();
    for (name, word, state, meaning) in IN_THE_WAY {
        let Some(feature) = features.get(name).filter(|feature| feature.on) else { continue };
        let finding = Finding::new("offloads", state, format!("{word} is on: {meaning}"));
        findings.push(if feature.fixed {
            Finding { what: format!("{} (the driver does not let it be changed)", finding.what), ..finding }
        } else {
            finding.ethtool(format!("-K {interface} {word} off"), format!("-K {interface} {word} on"))
        });
    }
    if facts.driver == "veth" && !is_on("rx-gro") {
        let what = "gro is off: veth then has no NAPI and drops what XDP at the other end sends or redirects";
        let finding = Finding::new("offloads", State::Warn, what);
        findings.push(finding.ethtool(format!("-K {interface} gro on"), format!("-K {interface} gro off")));
    }
    if !is_on("tx-tcp-segmentation") {
        let what = "tso is off: large web answers go segment by segment (--transmit copy)";
        let finding = Finding::new("offloads", State::Note, what);
        let can = features.get("tx-tcp-segmentation").is_some_and(|feature| !feature.fixed);
        findings.push(if can { finding.by_hand(format!("ethtool -K {interface} tso on")) } else { finding });
    }
    if findings.is_empty() {
        findings.push(Finding::new(
            "offloads",
            State::Good,
            "nothing in the way of AF_XDP, and the device segments TCP",
        ));
    }
    findings
}
