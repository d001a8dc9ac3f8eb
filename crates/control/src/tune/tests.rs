//! The judgement of devices that this machine has not, after what their drivers answer.

use super::facts::{Facts, Host, Irq, Sysfs};
use super::judge::{Finding, State, judge};
use super::rules::{self, Wanted};
use super::*;
use port_xdp::nic::{Bounded, Channels, Coalescing, Feature, Flows, HashFields, HashFunction, Pause, Rings, Rss};
use std::collections::BTreeMap;

fn bounded(now: u32, max: u32) -> Bounded {
    Bounded { now, max }
}

fn features(on: &[&str], fixed: &[&str]) -> BTreeMap<String, Feature> {
    let known = [
        "rx-lro",
        "rx-gro",
        "rx-gro-hw",
        "rx-gro-list",
        "rx-udp-gro-forwarding",
        "rx-vlan-hw-parse",
        "rx-ntuple-filter",
        "tx-tcp-segmentation",
    ];
    let feature = |name: &&str| Feature { on: on.contains(name), fixed: fixed.contains(name) };
    known.iter().map(|name| ((*name).to_owned(), feature(name))).collect()
}

fn spread(entries: u32, queues: u32) -> Vec<u32> {
    (0..entries).map(|entry| entry % queues).collect()
}

fn hashed(ports_of_udp: bool) -> BTreeMap<Flows, facts::Answer<HashFields>> {
    let fields = |flows| {
        let udp = matches!(flows, Flows::Udp4 | Flows::Udp6);
        HashFields { addresses: true, ports: !udp || ports_of_udp, others: false }
    };
    Flows::ALL.into_iter().map(|flows| (flows, Ok(Some(fields(flows))))).collect()
}

/// A host as it should be, with four processors and a device that is told nothing about.
fn plain(driver: &str) -> Facts {
    Facts {
        interface: "e0".into(),
        driver: driver.into(),
        up: true,
        carrier: true,
        loopback: false,
        mtu: 1500,
        xdp_program: None,
        rx_queues: 4,
        tx_queues: 4,
        processors: vec![0, 1, 2, 3],
        channels: Ok(None),
        rss: Ok(None),
        hash_fields: Flows::ALL.into_iter().map(|flows| (flows, Ok(None))).collect(),
        flow_rules: Ok(None),
        rings: Ok(None),
        coalescing: Ok(None),
        pause: Ok(None),
        features: Ok(features(&["rx-gro", "tx-tcp-segmentation"], &[])),
        sysfs: Some(Sysfs::default()),
        host: Host { huge_pages: Some("madvise".into()), ..Host::default() },
    }
}

fn ice() -> Facts {
    Facts {
        channels: Ok(Some(Channels { rx: bounded(0, 64), tx: bounded(0, 64), combined: bounded(64, 64) })),
        rx_queues: 64,
        tx_queues: 64,
        rss: Ok(Some(Rss {
            table: spread(2048, 64),
            key: vec![1; 52],
            function: HashFunction::Toeplitz,
            symmetric: false,
        })),
        hash_fields: hashed(false),
        flow_rules: Ok(Some(0)),
        rings: Ok(Some(Rings { rx: bounded(2048, 8160), tx: bounded(256, 8160) })),
        coalescing: Ok(Some(Coalescing {
            rx_us: 50,
            tx_us: 50,
            adaptive_rx: true,
            adaptive_tx: true,
            ..Coalescing::default()
        })),
        pause: Ok(Some(Pause { autonegotiated: false, rx: false, tx: false })),
        features: Ok(features(&["rx-gro", "tx-tcp-segmentation", "rx-ntuple-filter", "rx-vlan-hw-parse"], &[])),
        sysfs: Some(Sysfs {
            irqs: (0..4)
                .map(|n| Irq { number: 100 + n, name: format!("ice-e0-TxRx-{n}"), affinity: "0-3".into() })
                .collect(),
            numa_node: Some(1),
            rps: vec!["0".into(); 4],
            xps: vec!["0,1".into(); 4],
        }),
        ..plain("ice")
    }
}

fn i40e() -> Facts {
    Facts {
        channels: Ok(Some(Channels { combined: bounded(4, 8), ..Channels::default() })),
        rss: Ok(Some(Rss {
            table: spread(512, 4),
            key: vec![1; 52],
            function: HashFunction::Toeplitz,
            symmetric: false,
        })),
        hash_fields: hashed(true),
        flow_rules: Ok(Some(3)),
        rings: Ok(Some(Rings { rx: bounded(512, 4096), tx: bounded(512, 4096) })),
        coalescing: Ok(Some(Coalescing { rx_us: 50, ..Coalescing::default() })),
        pause: Ok(Some(Pause { autonegotiated: true, rx: true, tx: true })),
        features: Ok(features(&["rx-gro", "tx-tcp-segmentation", "rx-ntuple-filter"], &[])),
        ..plain("i40e")
    }
}

fn mlx5() -> Facts {
    Facts {
        channels: Ok(Some(Channels { combined: bounded(4, 24), ..Channels::default() })),
        rss: Ok(Some(Rss {
            table: spread(256, 4),
            key: vec![1; 40],
            function: HashFunction::Toeplitz,
            symmetric: true,
        })),
        hash_fields: hashed(true),
        flow_rules: Ok(Some(0)),
        rings: Ok(Some(Rings { rx: bounded(1024, 8192), tx: bounded(1024, 8192) })),
        coalescing: Ok(Some(Coalescing { rx_us: 8, ..Coalescing::default() })),
        pause: Ok(Some(Pause { autonegotiated: false, rx: true, tx: false })),
        features: Ok(features(&["rx-gro", "rx-lro", "tx-tcp-segmentation"], &[])),
        ..plain("mlx5_core")
    }
}

fn virtio_net() -> Facts {
    Facts {
        channels: Ok(Some(Channels { combined: bounded(2, 4), ..Channels::default() })),
        rx_queues: 2,
        tx_queues: 2,
        rings: Ok(Some(Rings { rx: bounded(256, 256), tx: bounded(256, 256) })),
        coalescing: Ok(Some(Coalescing::default())),
        features: Ok(features(
            &["rx-gro", "rx-gro-hw", "tx-tcp-segmentation"],
            &["rx-gro-hw", "rx-ntuple-filter", "rx-lro"],
        )),
        ..plain("virtio_net")
    }
}

fn ena() -> Facts {
    Facts {
        channels: Ok(Some(Channels { combined: bounded(4, 4), ..Channels::default() })),
        rss: Ok(Some(Rss { table: spread(128, 4), key: vec![], function: HashFunction::Unknown, symmetric: false })),
        hash_fields: Flows::ALL.into_iter().map(|flows| (flows, Err("Invalid argument".to_owned()))).collect(),
        rings: Ok(Some(Rings { rx: bounded(1024, 16_384), tx: bounded(1024, 1024) })),
        coalescing: Ok(Some(Coalescing { rx_us: 0, tx_us: 64, ..Coalescing::default() })),
        mtu: 9001,
        features: Ok(features(&["rx-gro"], &["tx-tcp-segmentation"])),
        ..plain("ena")
    }
}

fn of<'a>(findings: &'a [Finding], item: &str) -> Vec<&'a Finding> {
    let found: Vec<_> = findings.iter().filter(|finding| finding.item == item).collect();
    assert!(!found.is_empty(), "nothing about {item}: {findings:?}");
    found
}

/// State, then each command and what undoes it.
fn said(findings: &[Finding], item: &str) -> (State, Vec<(String, String)>) {
    let found = of(findings, item);
    let pair =
        |change: &Change| (change.action.to_string(), change.undo.as_ref().map_or("-".into(), ToString::to_string));
    (found[0].state, found.iter().flat_map(|finding| finding.changes.iter().map(pair)).collect())
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[test]
fn ice_as_it_comes() {
    let findings = judge(&ice());
    assert_eq!(said(&findings, "link").0, State::Good);
    assert_eq!(
        said(&findings, "queues"),
        (State::Note, pairs(&[("ethtool -L e0 combined 4", "ethtool -L e0 combined 64")]))
    );
    assert_eq!(said(&findings, "rss"), (State::Good, vec![]));
    let udp = [
        ("ethtool -N e0 rx-flow-hash udp4 sdfn", "ethtool -N e0 rx-flow-hash udp4 sd"),
        ("ethtool -N e0 rx-flow-hash udp6 sdfn", "ethtool -N e0 rx-flow-hash udp6 sd"),
    ];
    assert_eq!(said(&findings, "hash fields"), (State::Good, pairs(&udp)));
    assert_eq!(said(&findings, "flow rules"), (State::Good, vec![]));
    assert_eq!(
        said(&findings, "coalescing"),
        (
            State::Note,
            pairs(&[("ethtool -C e0 adaptive-rx off rx-usecs 16", "ethtool -C e0 adaptive-rx on rx-usecs 50")])
        )
    );
    assert_eq!(said(&findings, "flow control"), (State::Good, vec![]));
    assert_eq!(
        said(&findings, "rings"),
        (State::Note, pairs(&[("ethtool -G e0 rx 2048 tx 1024", "ethtool -G e0 rx 2048 tx 256")]))
    );
    assert_eq!(
        said(&findings, "offloads"),
        (State::Note, pairs(&[("ethtool -K e0 rxvlan off", "ethtool -K e0 rxvlan on")]))
    );
    let (state, irqs) = said(&findings, "interrupts");
    assert_eq!((state, irqs.len()), (State::Note, 4));
    assert_eq!(
        irqs[2],
        ("echo 2 > /proc/irq/102/smp_affinity_list".into(), "echo 0-3 > /proc/irq/102/smp_affinity_list".into())
    );
    assert_eq!(said(&findings, "xps").0, State::Good);
}

#[test]
fn i40e_as_it_comes() {
    let findings = judge(&i40e());
    assert_eq!(said(&findings, "queues"), (State::Good, vec![]));
    assert_eq!(said(&findings, "rss").0, State::Good);
    assert!(of(&findings, "hash fields").iter().all(|finding| finding.state == State::Good));
    assert_eq!(of(&findings, "flow rules")[0].by_hand.as_deref(), Some("ethtool -n e0"));
    assert_eq!(
        said(&findings, "coalescing"),
        (State::Note, pairs(&[("ethtool -C e0 rx-usecs 16", "ethtool -C e0 rx-usecs 50")]))
    );
    assert_eq!(
        said(&findings, "flow control"),
        (State::Note, pairs(&[("ethtool -A e0 rx off tx off", "ethtool -A e0 rx on tx on")]))
    );
    assert_eq!(
        said(&findings, "rings"),
        (State::Note, pairs(&[("ethtool -G e0 rx 1024 tx 1024", "ethtool -G e0 rx 512 tx 512")]))
    );
    assert_eq!(said(&findings, "offloads").0, State::Good);
}

#[test]
fn mlx5_with_lro_and_a_symmetric_hash() {
    let findings = judge(&mlx5());
    assert_eq!(said(&findings, "rss").0, State::Note);
    assert!(of(&findings, "rss")[0].what.contains("symmetric"));
    assert_eq!(said(&findings, "offloads"), (State::Warn, pairs(&[("ethtool -K e0 lro off", "ethtool -K e0 lro on")])));
    assert_eq!(
        said(&findings, "flow control").1,
        pairs(&[("ethtool -A e0 rx off tx off", "ethtool -A e0 rx on tx off")])
    );
    // off, but it can be turned on
    assert_eq!(of(&findings, "flow rules")[0].by_hand.as_deref(), Some("ethtool -K e0 ntuple on"));
}

#[test]
fn virtio_net_says_what_it_cannot() {
    let findings = judge(&virtio_net());
    assert_eq!(
        said(&findings, "queues"),
        (State::Note, pairs(&[("ethtool -L e0 combined 4", "ethtool -L e0 combined 2")]))
    );
    assert_eq!(said(&findings, "rss"), (State::Note, vec![]));
    assert!(of(&findings, "rss")[0].what.contains("by software"));
    assert_eq!(said(&findings, "flow rules"), (State::Note, vec![]));
    assert_eq!(said(&findings, "coalescing").0, State::Good);
    assert_eq!(said(&findings, "rings").0, State::Good, "the most the device has");
    let offloads = of(&findings, "offloads");
    assert_eq!((offloads[0].state, offloads[0].changes.len()), (State::Warn, 0));
    assert!(offloads[0].what.contains("does not let it be changed"), "{}", offloads[0].what);
    assert_eq!(said(&findings, "interrupts").0, State::Note);
}

#[test]
fn ena_keeps_queues_for_xdp_and_does_not_tell_its_key() {
    let findings = judge(&ena());
    assert_eq!(
        said(&findings, "queues"),
        (State::Note, pairs(&[("ethtool -L e0 combined 2", "ethtool -L e0 combined 4")]))
    );
    assert!(of(&findings, "rss")[0].what.contains("does not tell its key"));
    assert_eq!(said(&findings, "hash fields").0, State::CannotTell);
    assert_eq!(
        said(&findings, "link"),
        (State::Warn, pairs(&[("ip link set dev e0 mtu 1500", "ip link set dev e0 mtu 9001")]))
    );
    assert!(of(&findings, "offloads")[0].by_hand.is_none(), "tso cannot be turned on");
}

#[test]
fn queues_that_a_server_has_stay_as_they_are() {
    // with none the first of the two is changed, and so are small rings
    let idle = || Facts { processors: (0..8).collect(), ..i40e() };
    let free = judge(&idle());
    let under = judge(&Facts { xdp_program: Some(7), ..idle() });
    for item in ["queues", "rings"] {
        let (free, under) = (of(&free, item)[0].clone(), of(&under, item)[0].clone());
        let changes = free.changes.iter().map(|change| change.action.to_string()).collect::<Vec<_>>().join(", ");
        assert!(!changes.is_empty(), "{item}: {}", free.what);
        assert!(under.changes.is_empty(), "{item}");
        assert_eq!(under.by_hand, Some(format!("with no server running: {changes}")));
        assert_eq!(under.what, free.what);
    }
}

#[test]
fn the_link_comes_first() {
    let down = judge(&Facts { up: false, ..i40e() });
    assert_eq!(of(&down, "link")[0].by_hand.as_deref(), Some("ip link set dev e0 up"));
    assert_eq!(said(&judge(&Facts { carrier: false, ..i40e() }), "link").0, State::Warn);
    assert_eq!(said(&judge(&Facts { xdp_program: Some(7), ..i40e() }), "link").0, State::Note);
    let lo = judge(&Facts { loopback: true, ..plain("") });
    assert!(lo[0].what.contains("kernel sockets"));
    assert!(lo.iter().all(|finding| finding.changes.is_empty()));
}

#[test]
fn a_table_with_holes_goes_back_as_it_was() {
    let table = vec![0, 0, 1, 1];
    let holes = Rss { table: table.clone(), ..i40e().rss.unwrap().unwrap() };
    let findings = judge(&Facts { rss: Ok(Some(holes)), ..i40e() });
    let rss = of(&findings, "rss")[0];
    assert_eq!(rss.state, State::Warn);
    assert!(rss.what.contains("queue 2, 3"), "{}", rss.what);
    assert_eq!(rss.changes[0].action.to_string(), "ethtool -X e0 equal 4");
    assert_eq!(rss.changes[0].undo, Some(change::Action::Table { interface: "e0".into(), queues: table }));
}

#[test]
fn what_could_not_be_read_is_no_fault() {
    let why = || "Operation not permitted".to_owned();
    let facts = Facts {
        channels: Err(why()),
        rss: Err(why()),
        rings: Err(why()),
        coalescing: Err(why()),
        pause: Err(why()),
        flow_rules: Err(why()),
        features: Err(why()),
        sysfs: None,
        host: Host::default(),
        ..i40e()
    };
    let findings = judge(&facts);
    for item in
        ["queues", "rss", "rings", "coalescing", "flow control", "flow rules", "offloads", "interrupts", "huge pages"]
    {
        assert_eq!(said(&findings, item), (State::CannotTell, vec![]), "{item}");
    }
}

#[test]
fn the_hosts_settings_are_judged() {
    let host = Host {
        nodes: [(0, vec![0, 1]), (1, vec![2, 3])].into(),
        irqbalance: true,
        governors: [(0, "performance".to_owned()), (3, "powersave".to_owned()), (9, "powersave".to_owned())].into(),
        deepest_idle_us: Some(133),
        memlock_bytes: Some(8 << 20),
        huge_pages: Some("never".into()),
        conntrack: Some((250_000, 262_144)),
    };
    let sysfs = Sysfs {
        rps: vec!["0".into(), "00000000,0000000f".into()],
        xps: vec!["0".into(), "0".into()],
        ..ice().sysfs.unwrap()
    };
    let findings = judge(&Facts { host: host.clone(), sysfs: Some(sysfs), processors: vec![0, 3], ..ice() });
    assert_eq!(said(&findings, "numa").0, State::Warn);
    assert!(of(&findings, "numa")[0].by_hand.as_ref().unwrap().contains("--cpus 2,3"));
    let rps = "/sys/class/net/e0/queues/rx-1/rps_cpus";
    assert_eq!(
        said(&findings, "rps"),
        (State::Note, vec![(format!("echo 0 > {rps}"), format!("echo 00000000,0000000f > {rps}"))])
    );
    let xps = said(&findings, "xps").1;
    assert_eq!(xps[1].0, "echo 8 > /sys/class/net/e0/queues/tx-1/xps_cpus");
    let governor = "/sys/devices/system/cpu/cpu3/cpufreq/scaling_governor";
    assert_eq!(
        said(&findings, "governor"),
        (State::Note, vec![(format!("echo performance > {governor}"), format!("echo powersave > {governor}"))])
    );
    for item in ["irqbalance", "idle states", "memlock", "huge pages", "conntrack"] {
        let finding = of(&findings, item)[0];
        assert!(matches!(finding.state, State::Note | State::Warn) && finding.by_hand.is_some(), "{finding:?}");
    }
    assert_eq!(said(&findings, "conntrack").0, State::Warn);

    let near = judge(&Facts { host: Host { conntrack: Some((0, 9)), ..host }, processors: vec![2, 3], ..ice() });
    assert_eq!(said(&near, "numa").0, State::Good);
    assert_eq!(said(&near, "conntrack").0, State::Good);
}

fn asked(facts: &Facts, pin: &[&str], drop: &[&str], reserve: Option<(u32, &[&str])>) -> Vec<Finding> {
    let flows = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<Flow>>();
    let services: Vec<Service> =
        reserve.iter().flat_map(|(_, texts)| *texts).map(|text| text.parse().unwrap()).collect();
    let (pin, drop) = (flows(pin), flows(drop));
    let wanted = Wanted { pin: &pin, drop: &drop, reserve: reserve.map(|(queue, _)| (queue, &services[..])) };
    rules::judge(facts, &wanted)
}

#[test]
fn flows_are_pinned_and_dropped_by_rules() {
    let facts = ice();
    let findings =
        asked(&facts, &["udp,dst=192.0.2.1,dport=53,queue=3"], &["tcp,src=2001:db8::7", "udp,sport=11211"], None);
    assert_eq!(
        said(&findings, "pin flow").1,
        pairs(&[("ethtool -N e0 flow-type udp4 dst-ip 192.0.2.1 dst-port 53 action 3", "-")])
    );
    let dropped = [
        ("ethtool -N e0 flow-type tcp6 src-ip 2001:db8::7 action -1", "-"),
        ("ethtool -N e0 flow-type udp4 src-port 11211 action -1", "-"),
        ("ethtool -N e0 flow-type udp6 src-port 11211 action -1", "-"),
    ];
    assert_eq!(said(&findings, "drop flow").1, pairs(&dropped));
    let undo = rules::added("e0", "Added rule with ID 2045").unwrap();
    assert_eq!(undo.to_string(), "ethtool -N e0 delete 2045");
    assert_eq!(rules::added("e0", "something else"), None);
    // the classifier is off, but can be turned on
    let on = asked(&mlx5(), &["udp,dport=53,queue=1"], &[], None);
    assert_eq!(said(&on, "pin flow").1[0], ("ethtool -K e0 ntuple on".into(), "ethtool -K e0 ntuple off".into()));
}

#[test]
fn a_queue_is_reserved_by_rules_and_the_table() {
    let findings = asked(&i40e(), &[], &[], Some((3, &["tcp:22"])));
    let (_, commands) = said(&findings, "reserved queue");
    let commands: Vec<&str> = commands.iter().map(|(command, _)| &command[..]).collect();
    assert_eq!(
        commands,
        [
            "ethtool -N e0 flow-type tcp4 dst-port 22 action 3",
            "ethtool -N e0 flow-type tcp6 dst-port 22 action 3",
            "ethtool -N e0 flow-type tcp4 src-port 22 action 3",
            "ethtool -N e0 flow-type tcp6 src-port 22 action 3",
            "ethtool -X e0 weight 1 1 1 0",
        ]
    );
    let back = of(&findings, "reserved queue").last().unwrap().changes[0].undo.clone();
    assert_eq!(back, Some(change::Action::Table { interface: "e0".into(), queues: spread(512, 4) }));
}

#[test]
fn what_the_driver_cannot_do_is_said() {
    for (facts, why) in [
        (virtio_net(), "no flow classifier"),
        (Facts { flow_rules: Ok(Some(0)), ..virtio_net() }, "off for good"),
        (Facts { flow_rules: Err("Bad thing".into()), ..virtio_net() }, "Bad thing"),
        (Facts { rx_queues: 1, ..ice() }, "there is no queue 1"),
    ] {
        let findings = asked(&facts, &["udp,queue=1"], &[], Some((1, &["tcp:22", "udp:53"])));
        for finding in &findings {
            assert!(finding.changes.is_empty() && finding.what.contains("cannot be"), "{finding:?}");
        }
        assert!(findings[0].what.contains(why), "{findings:?}");
    }
    let without_table = asked(&Facts { rss: Ok(None), ..ice() }, &[], &[], Some((1, &["tcp:22"])));
    assert!(without_table[0].what.contains("without an indirection table") && without_table[0].changes.is_empty());
    assert_eq!(asked(&ice(), &["udp,dport=53"], &[], None)[0].state, State::CannotTell);
}

#[test]
fn flows_and_services_are_read_strictly() {
    for wrong in ["", "icmp", "udp,", "udp,src", "udp,src=300.1.1.1", "udp,dport=70000", "udp,what=1", "udp,queue=x"] {
        assert!(wrong.parse::<Flow>().unwrap_err().contains("is not PROTO"), "{wrong}");
    }
    assert!("udp,src=::1,dst=1.2.3.4".parse::<Flow>().unwrap_err().contains("the other IPv6"));
    for wrong in ["22", "tcp", "tcp:", "icmp:1", "tcp:70000"] {
        assert!(wrong.parse::<Service>().unwrap_err().contains("tcp:22"), "{wrong}");
    }
}

#[test]
fn both_forms_of_the_report_hold_the_same() {
    let findings = judge(&ice());
    let text = render("e0", &findings, false).unwrap();
    assert!(text.contains("run: ethtool -L e0 combined 4") && text.contains("simoom tune e0 --apply"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&render("e0", &findings, true).unwrap()).unwrap();
    assert_eq!(json["interface"], "e0");
    assert_eq!(json["findings"].as_array().unwrap().len(), findings.len());
    let queues = &json["findings"][1];
    assert_eq!(queues["item"], "queues");
    assert_eq!(queues["state"], "note");
    assert_eq!(queues["commands"][0], "ethtool -L e0 combined 4");
    assert_eq!(queues["undo"][0], "ethtool -L e0 combined 64");
    // nothing to run, nothing to apply
    let quiet = render("lo", &judge(&Facts { loopback: true, ..plain("") }), false).unwrap();
    assert!(!quiet.contains("--apply"), "{quiet}");
}
