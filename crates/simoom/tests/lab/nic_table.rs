//! The NIC's table follows flow groups, and is put back whatever becomes of the server.

use crate::common::{Hogs, PATIENCE, Stats};
use crate::flows::download_while_groups_move;
use crate::web::{SERVERS, Web, contents, curl, kernel_count, lost};
use lab::capture::Capture;
use lab::{Lab, NicOptions, Options, Pins};
use rustix::process::Signal;

/// Two hosts, the server's with a NIC of two queues whose table is a pinned map.
pub(crate) fn a_nic() -> (Pins, Lab) {
    lab::require_programs(&["mount", "umount", "curl", "tshark"]);
    let options = Options { queues: 2, offloads: false, nic: Some(NicOptions::default()), ..Options::default() };
    let (pins, lab) = (Pins::new().unwrap(), Lab::with(&options).unwrap());
    lab.nic().unwrap().pin(&pins.table()).unwrap();
    (pins, lab)
}

/// A web server with a thread for each queue, told this key.
fn serve(lab: &Lab, pins: &Pins, key: &[u8]) -> Web {
    let key: Vec<String> = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let (key, table) = (key.join(":"), pins.table().display().to_string());
    let listen = ["--listen", "198.18.0.1:80", "--listen", "[2001:db8:18::1]:80"];
    let args = ["--interface", "vs", "--cpus", "0,1", "--balance", "steal", "--rss-key", &key, "--rss-table", &table];
    let web = Web::start(lab.server(), &[&args[..], &listen].concat());
    let log = web.server.process.log();
    assert!(
        log.contains("128 flow groups by the NIC's hash, each with the thread of its queue; its table follows"),
        "{log}"
    );
    web
}

pub(crate) fn key(lab: &Lab) -> Vec<u8> {
    lab.nic().unwrap().key().as_bytes().to_vec()
}

fn crossed(stats: &Stats) -> u64 {
    stats.sum("dataplane_crossed_frames_total", &[("direction", "out")])
}

/// Asks for all groups of one thread until they have gone: those whose entry is being written stay for that long.
fn move_all(web: &Web, from: &str, to: &str) {
    let gone = || {
        let asked = web.server.ctl(&["move-groups", from, to]);
        assert!(asked.status.success(), "{asked:?}");
        web.server.stats().sum("dataplane_flow_groups", &[("thread", from)]) == 0
    };
    assert!(lab::wait_until(gone, PATIENCE), "{}", web.server.process.log());
}

fn in_turn() -> Vec<u32> {
    (0..128).map(|entry| entry % 2).collect()
}

#[test]
fn the_table_follows_and_connections_lose_and_reorder_nothing() {
    let _no_hogs = Hogs::none();
    let (pins, lab) = a_nic();
    let web = serve(&lab, &pins, &key(&lab));
    let nic = lab.nic().unwrap();
    assert_eq!(nic.table().unwrap(), in_turn());
    lab.client().run(&["ethtool", "-K", "vc", "gro", "off"]).unwrap();
    let capture = Capture::start(&lab).unwrap();
    download_while_groups_move(&lab, &web);
    let findings = capture.finish_counting().unwrap();
    let stats = web.tcp();
    findings.check();
    let event = |what| stats.sum("tcp_events_total", &[("event", what)]);
    let late = stats.sum("dataplane_nic_late_frames_total", &[]);
    // Timers may fire (RFC 8985 section 7, RFC 6298): on a machine that has other work a queue's thread may not run for many
    // milliseconds, and what the NIC had put there before its table was written comes late. Losses there are none to repair.
    let timers = event("tail loss probe") + event("retransmission timeout");
    println!("{} sent again, timers fired {timers} times, {late} late frames", findings.sent_again.len());
    assert!(findings.sent_again.len() as u64 <= timers, "{:#?}\n{stats:?}", findings.sent_again);
    assert_eq!(event("recovery"), 0, "{stats:?}");
    assert_eq!(kernel_count(&lab, "netstat", "TcpExt: ", "TCPOFOQueue"), 0);
    let lost = lost(&lab);
    assert!(late > 0 || lost == 0, "{lost} sent again by the client");
    assert!(stats.sum("tcp_moved_total", &[("direction", "in")]) > 0);
    assert!(stats.sum("dataplane_nic_turned_entries_total", &[]) >= 128, "{stats:?}");
    assert_eq!(stats.sum("dataplane_panics_total", &[]) + stats.sum("dataplane_crossing_lost_total", &[]), 0);
    assert_eq!(stats.sum("dataplane_nic_failed_writes_total", &[]), 0);
    assert_eq!(stats.sum("dataplane_nic_untrue_frames_total", &[]), 0);
}

#[test]
fn nothing_crosses_once_the_table_has_followed() {
    let (pins, lab) = a_nic();
    let web = serve(&lab, &pins, &key(&lab));
    let nic = lab.nic().unwrap();
    for [from, to] in [["0", "1"], ["1", "0"]] {
        let queue: u32 = to.parse().unwrap();
        move_all(&web, from, to);
        let follows = || nic.table().unwrap() == vec![queue; 128];
        assert!(lab::wait_until(follows, PATIENCE), "{:?}\n{}", nic.table(), web.server.process.log());
        // what was under way when the last entry was written
        web.server.wait_until("frames that were under way", |stats| {
            let before = crossed(stats);
            crossed(&web.server.stats()) == before
        });
        let before = web.tcp();
        let received = |stats: &Stats| stats.sum("xdp_frames_received_total", &[("queue", to)]);
        for at in SERVERS {
            assert!(curl(&lab, &[&format!("http://{at}/5000000.bin")]) == contents(5_000_000));
        }
        let after = web.tcp();
        assert_eq!(crossed(&after), crossed(&before));
        assert!(received(&after) > received(&before) + 50, "queue {to} got what the table sends there");
        assert_eq!(after.sum("dataplane_nic_untrue_frames_total", &[]), 0);
        assert_eq!(after.sum("dataplane_nic_follows", &[]), 1);
    }
}

/// What the kernel says of a child of this process.
fn child_of(pid: u32) -> Option<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut all = processes.filter_map(|process| std::fs::read_to_string(process.path().join("status")).ok());
    all.find(|status| status.lines().any(|line| line == format!("PPid:\t{pid}")))
}

#[test]
fn a_table_that_is_to_be_kept_stays_and_nobody_keeps_it() {
    let (pins, lab) = a_nic();
    let hex: Vec<String> = key(&lab).iter().map(|byte| format!("{byte:02x}")).collect();
    let (hex, table) = (hex.join(":"), pins.table().display().to_string());
    for [balance, what] in [["off", table.as_str()], ["steal", "keep"]] {
        let options = ["--balance", balance, "--rss-key", &hex, "--rss-table", what];
        let args = [&["--interface", "vs", "--cpus", "0,1", "--listen", "198.18.0.1:80"], &options[..]].concat();
        let web = Web::start(lab.server(), &args);
        assert_eq!(child_of(web.server.process.id()), None);
        if balance == "steal" {
            move_all(&web, "0", "1");
        }
        assert!(curl(&lab, &["http://198.18.0.1/5000000.bin"]) == contents(5_000_000));
        assert_eq!(lab.nic().unwrap().table().unwrap(), in_turn(), "{options:?}");
    }
}

#[test]
fn the_table_is_put_back_when_the_server_ends_and_when_it_is_killed() {
    let (pins, lab) = a_nic();
    let nic = lab.nic().unwrap();
    nic.set_entry(7, 0).unwrap();
    let found = nic.table().unwrap();
    for end in [Signal::TERM, Signal::KILL] {
        let web = serve(&lab, &pins, &key(&lab));
        // what it has needs no capability
        let keeper = child_of(web.server.process.id()).expect("a keeper");
        assert!(keeper.lines().any(|line| line == "CapPrm:\t0000000000000000"), "{keeper}");
        move_all(&web, "0", "1");
        assert!(lab::wait_until(|| nic.table().unwrap() == vec![1; 128], PATIENCE));
        web.server.process.signal(end);
        let back = || nic.table().unwrap() == found;
        assert!(lab::wait_until(back, PATIENCE), "{end:?}: {:?}\n{}", nic.table(), web.server.process.log());
    }
}

#[test]
fn a_table_that_somebody_else_writes_is_left_to_him() {
    let (pins, lab) = a_nic();
    let mut web = serve(&lab, &pins, &key(&lab));
    let nic = lab.nic().unwrap();
    nic.set_entry(5, 0).unwrap();
    move_all(&web, "0", "1");
    web.server.wait_for("the NIC's table is not written any more");
    assert!(web.server.process.log().contains("somebody else has written it"), "{}", web.server.process.log());
    for at in SERVERS {
        assert!(curl(&lab, &[&format!("http://{at}/5000000.bin")]) == contents(5_000_000));
    }
    // groups go on moving, by software
    move_all(&web, "1", "0");
    let stats = web.tcp();
    assert_eq!(stats.sum("dataplane_nic_follows", &[]), 0);
    assert_eq!(stats.sum("dataplane_nic_failed_writes_total", &[]), 1);
    assert_eq!(web.server.process.log().matches("is not written any more").count(), 1);
    let left = nic.table().unwrap();
    web.server.process.stop();
    assert_eq!(nic.table().unwrap(), left);
}

#[test]
fn a_table_by_which_frames_do_not_come_is_given_up() {
    let (pins, lab) = a_nic();
    let mut wrong = key(&lab);
    wrong.iter_mut().for_each(|byte| *byte = byte.rotate_left(3));
    let web = serve(&lab, &pins, &wrong);
    let words = "frames come to other queues than its hash and its table say";
    let given_up = || {
        for at in SERVERS {
            assert!(curl(&lab, &[&format!("http://{at}/5000000.bin")]) == contents(5_000_000));
        }
        web.server.process.log().contains(words)
    };
    assert!(lab::wait_until(given_up, PATIENCE), "{:?}\n{}", web.tcp(), web.server.process.log());
    let stats = web.tcp();
    assert!(stats.sum("dataplane_nic_untrue_frames_total", &[]) > 64);
    assert_eq!((stats.sum("dataplane_nic_follows", &[]), stats.sum("dataplane_nic_writes_total", &[])), (0, 0));
    assert_eq!(lab.nic().unwrap().table().unwrap(), in_turn());
}
