//! `simoom tune` on a veth pair: what it says, and that undoing leaves the host as it was.

use crate::common::{Server, simoom};
use lab::{Host, Lab, Options};
use std::path::Path;

/// Everything that tuning could change of the host's interface, and the namespace's settings.
fn snapshot(host: &Host) -> String {
    let all = "ethtool -k vs; ethtool -l vs; ethtool -g vs; ethtool -c vs; ethtool -a vs; ip -o link show vs | grep -o 'mtu [0-9]*'; \
               grep -H . /sys/class/net/vs/queues/*/*ps_cpus; cat /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor; \
               sysctl -a 2>/dev/null | grep '^net[.]' | grep -v 'conntrack_count\\|fib_notify\\|neigh.*gc\\|inode\\|dentry'; true";
    // what is unsupported says so on the standard error, which is no matter here
    host.run(&["sh", "-c", &format!("({all}) 2>/dev/null")]).unwrap()
}

fn tune(host: &Host, args: &[&str]) -> (bool, String) {
    let output = simoom(host).arg("tune").args(args).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (output.status.success(), text)
}

/// A pair of two queues of which one is in use, with everything on that stands in the way.
fn untuned() -> Lab {
    lab::require_programs(&["ip", "ethtool"]);
    let lab = Lab::with(&Options { queues: 2, mtu: 9000, ..Options::default() }).unwrap();
    let server = lab.server();
    server.run(&["ethtool", "-L", "vs", "rx", "1", "tx", "1"]).unwrap();
    server.run(&["ethtool", "-K", "vs", "rx-udp-gro-forwarding", "on"]).unwrap();
    server.run(&["ethtool", "-K", "vs", "rx-gro-list", "on"]).unwrap();
    server.run(&["sh", "-c", "echo 1 > /sys/class/net/vs/queues/rx-0/rps_cpus"]).unwrap();
    lab
}

fn undo_file(dir: &Path) -> String {
    dir.join("undo").to_str().unwrap().to_owned()
}

#[test]
fn what_is_applied_is_undone() {
    let lab = untuned();
    let server = lab.server();
    let dir = tempfile::tempdir().unwrap();
    let file = undo_file(dir.path());
    let before = snapshot(server);
    assert!(before.contains("mtu 9000") && before.contains("rx-udp-gro-forwarding: on"), "{before}");

    // saying changes nothing
    let (ok, text) = tune(server, &["vs", "--cpus", "0,1"]);
    assert!(ok, "{text}");
    for command in [
        "run: ip link set dev vs mtu 1500",
        "run: ethtool -L vs rx 2 tx 2",
        "run: ethtool -K vs rx-udp-gro-forwarding off",
        "run: ethtool -K vs rx-gro-list off",
        "run: echo 0 > /sys/class/net/vs/queues/rx-0/rps_cpus",
        // with one queue
        "nothing to spread",
    ] {
        assert!(text.contains(command), "{command}: {text}");
    }
    assert_eq!(snapshot(server), before);

    let (ok, text) = tune(server, &["vs", "--cpus", "0,1", "--apply", "--undo-file", &file]);
    assert!(ok && text.contains("done      ethtool -L vs rx 2 tx 2") && !text.contains("not done"), "{text}");
    assert!(text.contains(&format!("to undo: simoom tune vs --undo {file}")), "{text}");
    let after = snapshot(server);
    assert!(after.contains("mtu 1500") && after.contains("rx-gro-list: off"), "{after}");
    let (ok, again) = tune(server, &["vs", "--cpus", "0,1"]);
    assert!(ok && !again.contains("run:"), "nothing is left to do: {again}");
    // a second time changes nothing and keeps the way back
    let (ok, again) = tune(server, &["vs", "--cpus", "0,1", "--apply", "--undo-file", &file]);
    assert!(ok && again.contains("nothing was changed") && again.contains("to undo"), "{again}");

    let (ok, text) = tune(server, &["vs", "--undo", &file]);
    assert!(ok && text.contains("everything is as it was"), "{text}");
    assert_eq!(snapshot(server), before);
    assert!(!Path::new(&file).exists());
    let (ok, text) = tune(server, &["vs", "--undo", &file]);
    assert!(!ok && text.contains("No such file"), "{text}");
}

#[test]
fn what_the_driver_refuses_is_said() {
    let lab = untuned();
    let server = lab.server();
    let before = snapshot(server);
    // veth has neither a flow classifier nor a table
    let words = [
        "--pin-flow",
        "udp,dport=53,queue=0",
        "--drop-flow",
        "udp,sport=11211",
        "--reserve-queue",
        "0",
        "--for",
        "tcp:22",
    ];
    let (ok, text) = tune(server, &[&["vs"], &words[..]].concat());
    assert!(ok && text.matches("cannot be: the veth driver has no flow classifier").count() == 3, "{text}");
    let (ok, text) = tune(server, &["no-such-one"]);
    assert!(!ok && text.contains("there is no interface no-such-one"), "{text}");
    let (ok, text) = tune(server, &["vs", "--apply", "--undo-file", "/no/such/folder/undo"]);
    assert!(!ok && text.contains("--undo-file"), "{text}");
    assert_eq!(snapshot(server), before, "without a way back nothing is done");
}

#[test]
fn a_server_says_when_its_interface_gets_other_queues() {
    lab::require_programs(&["ip", "ethtool"]);
    let lab = Lab::with(&Options { queues: 2, ..Options::default() }).unwrap();
    let set = |queues| lab.server().run(&["ethtool", "-L", "vs", "rx", queues, "tx", queues]).unwrap();
    lab.client().run(&["ethtool", "-L", "vc", "rx", "2", "tx", "1"]).unwrap();
    set("1");
    let mut command = simoom(lab.server());
    command.args(["echo", "--interface", "vs", "--listen", "198.18.0.1:7"]);
    let mut server = Server::spawn(command);
    set("2");
    server.wait_for("vs: it has 2 receive queue(s) now, and had 1 at the start");
    set("1");
    server.wait_for("vs: it has 1 receive queue(s) again");
}

#[test]
fn lo_is_told_as_json() {
    lab::require_programs(&["ip"]);
    let lab = Lab::new().unwrap();
    let (ok, text) = tune(lab.server(), &["lo", "--json"]);
    assert!(ok, "{text}");
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["interface"], "lo");
    assert_eq!(json["findings"][0]["state"], "note");
    for finding in json["findings"].as_array().unwrap() {
        assert!(["good", "note", "warn", "cannot-tell"].contains(&finding["state"].as_str().unwrap()), "{finding}");
    }
}
