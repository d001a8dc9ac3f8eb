//! Rules of the device's flow classifier: flows pinned to a queue or dropped in the device, and a queue kept for what must get
//! through whatever floods the others.

use super::change::{Action, Change};
use super::facts::Facts;
use super::judge::{Finding, State};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Flows, as the classifier matches them. What is not named matches anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    tcp: bool,
    src: Option<IpAddr>,
    dst: Option<IpAddr>,
    sport: Option<u16>,
    dport: Option<u16>,
    queue: Option<u32>,
}

const FLOW: &str = "PROTO[,src=ADDR][,dst=ADDR][,sport=PORT][,dport=PORT]";

impl FromStr for Flow {
    type Err = String;
    fn from_str(text: &str) -> Result<Flow, String> {
        let wrong = || format!("`{text}` is not {FLOW}; write it as udp,src=198.51.100.7,dport=53");
        let mut words = text.split(',');
        let tcp = protocol(words.next().unwrap_or_default()).ok_or_else(wrong)?;
        let mut flow = Flow { tcp, src: None, dst: None, sport: None, dport: None, queue: None };
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(wrong)?;
            let address = || value.parse::<IpAddr>().map(Some).map_err(|_| wrong());
            let port = || value.parse::<u16>().map(Some).map_err(|_| wrong());
            match name {
                "src" => flow.src = address()?,
                "dst" => flow.dst = address()?,
                "sport" => flow.sport = port()?,
                "dport" => flow.dport = port()?,
                "queue" => flow.queue = Some(value.parse().map_err(|_| wrong())?),
                _ => return Err(wrong()),
            }
        }
        if let (Some(src), Some(dst)) = (flow.src, flow.dst)
            && src.is_ipv4() != dst.is_ipv4()
        {
            return Err(format!("`{text}`: one address is IPv4, the other IPv6"));
        }
        Ok(flow)
    }
}

fn protocol(word: &str) -> Option<bool> {
    match word {
        "tcp" => Some(true),
        "udp" => Some(false),
        _ => None,
    }
}

/// A port of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    tcp: bool,
    port: u16,
}

impl FromStr for Service {
    type Err = String;
    fn from_str(text: &str) -> Result<Service, String> {
        let parts = text.split_once(':').and_then(|(word, port)| Some((protocol(word)?, port.parse().ok()?)));
        let wrong = || format!("`{text}` is not PROTO:PORT; write it as tcp:22");
        parts.map(|(tcp, port)| Service { tcp, port }).ok_or_else(wrong)
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", if self.tcp { "tcp" } else { "udp" }, self.port)
    }
}

impl Flow {
    /// ethtool's words for it, a rule for each family that it can be of; `to` is a queue, or -1 to drop.
    fn rules(&self, interface: &str, to: i64) -> Vec<String> {
        let families = match self.src.or(self.dst) {
            Some(IpAddr::V4(_)) => &["4"][..],
            Some(IpAddr::V6(_)) => &["6"],
            None => &["4", "6"],
        };
        let protocol = if self.tcp { "tcp" } else { "udp" };
        let rule = |family: &&str| {
            let mut words = format!("-N {interface} flow-type {protocol}{family}");
            let mut add = |name: &str, value: Option<String>| {
                if let Some(value) = value {
                    words.push_str(&format!(" {name} {value}"));
                }
            };
            add("src-ip", self.src.map(|address| address.to_string()));
            add("dst-ip", self.dst.map(|address| address.to_string()));
            add("src-port", self.sport.map(|port| port.to_string()));
            add("dst-port", self.dport.map(|port| port.to_string()));
            words + &format!(" action {to}")
        };
        families.iter().map(rule).collect()
    }
}

/// What the command line asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted<'a> {
    pub(crate) pin: &'a [Flow],
    pub(crate) drop: &'a [Flow],
    pub(crate) reserve: Option<(u32, &'a [Service])>,
}

/// The findings about it: what is to be run, or why it cannot be.
pub(crate) fn judge(facts: &Facts, wanted: &Wanted<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for flow in wanted.pin {
        findings.push(match flow.queue {
            None => Finding::new("pin flow", State::CannotTell, "say to which queue: --pin-flow udp,dport=53,queue=1"),
            Some(queue) => rules(facts, "pin flow", Some(queue), std::slice::from_ref(flow), i64::from(queue)),
        });
    }
    for flow in wanted.drop {
        findings.push(rules(facts, "drop flow", None, std::slice::from_ref(flow), -1));
    }
    if let Some((queue, services)) = wanted.reserve {
        findings.extend(reserve(facts, queue, services));
    }
    findings
}

/// Why the device can have no rules, if it cannot.
fn refused(facts: &Facts) -> Option<String> {
    match (&facts.flow_rules, &facts.features) {
        (Err(why), _) => Some(format!("the driver does not tell its flow rules: {why}")),
        (Ok(None), _) => Some(format!("the {} driver has no flow classifier", facts.driver)),
        (_, Ok(features)) if features.get("rx-ntuple-filter").is_some_and(|ntuple| !ntuple.on && ntuple.fixed) => {
            Some(format!("the {} driver has its flow classifier off for good", facts.driver))
        }
        _ => None,
    }
}

fn rules(facts: &Facts, item: &'static str, queue: Option<u32>, flows: &[Flow], to: i64) -> Finding {
    if let Some(why) = refused(facts) {
        return Finding::new(item, State::Note, format!("cannot be: {why}"));
    }
    if let Some(queue) = queue.filter(|queue| *queue >= facts.rx_queues) {
        let what = format!("cannot be: there is no queue {queue}, only {}", facts.rx_queues);
        return Finding::new(item, State::Note, what);
    }
    let what = match queue {
        Some(queue) => format!("goes to queue {queue} past the indirection table"),
        None => "is dropped in the device and costs no processor time".to_owned(),
    };
    let mut finding = Finding::new(item, State::Note, what);
    let interface = &facts.interface;
    let off = facts.features.as_ref().ok().and_then(|features| features.get("rx-ntuple-filter")).is_some_and(|f| !f.on);
    if off {
        finding = finding.ethtool(format!("-K {interface} ntuple on"), format!("-K {interface} ntuple off"));
    }
    for rule in flows.iter().flat_map(|flow| flow.rules(interface, to)) {
        // the number by which it is deleted comes when it is added
        finding.changes.push(Change { action: Action::ethtool(rule), undo: None });
    }
    finding
}

/// A queue that only these services' packets come to: the table leaves it out, rules lead there. The peer's port as well as ours, since
/// of a BGP session either side may have connected.
fn reserve(facts: &Facts, queue: u32, services: &[Service]) -> Vec<Finding> {
    let item = "reserved queue";
    let none = Flow { tcp: true, src: None, dst: None, sport: None, dport: None, queue: None };
    let flows: Vec<Flow> = services
        .iter()
        .flat_map(|service| {
            let of = Flow { tcp: service.tcp, ..none.clone() };
            [Flow { dport: Some(service.port), ..of.clone() }, Flow { sport: Some(service.port), ..of }]
        })
        .collect();
    let mut leading = rules(facts, item, Some(queue), &flows, i64::from(queue));
    if leading.changes.is_empty() {
        return vec![leading];
    }
    let names: Vec<String> = services.iter().map(ToString::to_string).collect();
    leading.what = format!("{} go to queue {queue}", names.join(", "));
    let Ok(Some(rss)) = &facts.rss else {
        let what = format!("cannot be: without an indirection table nothing keeps other packets out of queue {queue}");
        return vec![Finding::new(item, State::Note, what)];
    };
    if facts.rx_queues < 2 {
        return vec![Finding::new(item, State::Note, "cannot be: there is only one queue")];
    }
    let weights: Vec<&str> = (0..facts.rx_queues).map(|at| if at == queue { "0" } else { "1" }).collect();
    let what = format!("no other packets come to queue {queue}");
    let table = Action::ethtool(format!("-X {} weight {}", facts.interface, weights.join(" ")));
    let undo = Action::Table { interface: facts.interface.clone(), queues: rss.table.clone() };
    // rules first: SSH must not lose its way between the two
    vec![leading, Finding::new(item, State::Note, what).change(table, undo)]
}

/// The number in "Added rule with ID 7", and with it how the rule is taken back.
pub(crate) fn added(interface: &str, said: &str) -> Option<Action> {
    let id: u32 = said.rsplit_once("ID ")?.1.trim().parse().ok()?;
    Some(Action::ethtool(format!("-N {interface} delete {id}")))
}
