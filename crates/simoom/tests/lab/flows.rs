//! Several threads on one interface: flows stay with the thread of their queue, groups move with their connections, and threads
//! that are busy are relieved of some.

use crate::common::{Hogs, PATIENCE, Server};
use crate::web::{Web, contents, curl};
use lab::capture::Capture;
use lab::nic::Protocol;
use lab::{CLIENT_V4, CLIENT_V6, Lab, Nic, NicOptions, Options, SERVER_V4, SERVER_V6};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const INTERFACE: [&str; 6] = ["--interface", "vs", "--listen", "198.18.0.1:80", "--cpus", "0,1"];
const SERVERS: [&str; 2] = ["198.18.0.1", "[2001:db8:18::1]"];

/// Two hosts, the server's with a NIC of two queues, and a web server with a thread for each that knows its key.
fn two_threads(more: &[&str]) -> (Lab, Web) {
    let nic = NicOptions::default();
    let key: Vec<String> = nic.key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let lab = Lab::with(&Options { queues: 2, offloads: false, nic: Some(nic), ..Options::default() }).unwrap();
    let key = key.join(":");
    let args = [&INTERFACE[..], &["--listen", "[2001:db8:18::1]:80", "--rss-key", &key], more].concat();
    let web = Web::start(lab.server(), &args);
    assert!(web.server.process.log().contains("4096 flow groups by the NIC's hash"), "{}", web.server.process.log());
    (lab, web)
}

fn by_thread(server: &Server, name: &str, labels: &[(&str, &str)]) -> [u64; 2] {
    let stats = server.stats();
    ["0", "1"].map(|thread| stats.sum(name, &[&[("thread", thread)], labels].concat()))
}

#[test]
fn nothing_crosses_while_groups_stay_where_their_packets_arrive() {
    let (lab, web) = two_threads(&["--balance", "steal"]);
    for at in SERVERS {
        for _ in 0..40 {
            assert_eq!(curl(&lab, &[&format!("http://{at}/65536.bin")]), contents(65_536));
        }
    }
    let stats = web.tcp();
    for queue in ["0", "1"] {
        let frames = stats.sum("xdp_frames_received_total", &[("queue", queue)]);
        assert!(frames > 200, "queue {queue}: {frames}");
    }
    assert_eq!(by_thread(&web.server, "dataplane_flow_groups", &[]), [2048, 2048]);
    assert_eq!(by_thread(&web.server, "dataplane_crossed_frames_total", &[("direction", "out")]), [0, 0]);
}

/// Three downloads at once while all groups go from the one thread to the other and back; how often.
pub(crate) fn download_while_groups_move(lab: &Lab, web: &Web) -> usize {
    let done = AtomicBool::new(false);
    let mut moves = 0;
    std::thread::scope(|scope| {
        let downloads: Vec<_> = (0..3)
            .map(|n| {
                scope.spawn(move || {
                    let url = format!("http://{}/5000000.bin", SERVERS[n % 2]);
                    curl(lab, &[&url, &url, &url])
                })
            })
            .collect();
        let mover = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for direction in [["0", "1"], ["1", "0"]] {
                    let asked = web.server.ctl(&["move-groups", direction[0], direction[1]]);
                    assert!(asked.status.success(), "{asked:?}");
                    moves += 1;
                }
            }
        });
        let bodies: Vec<_> = downloads.into_iter().map(|download| download.join()).collect();
        // the mover ends whatever became of them
        done.store(true, Ordering::Relaxed);
        mover.join().unwrap();
        let log = web.server.process.log();
        assert_eq!(web.server.stats().sum("dataplane_panics_total", &[]), 0, "{log}");
        for body in bodies {
            assert!(body.unwrap() == contents(5_000_000).repeat(3));
        }
    });
    moves
}

#[test]
fn connections_go_from_thread_to_thread_and_lose_and_reorder_nothing() {
    let _no_hogs = Hogs::none();
    let (lab, web) = two_threads(&["--balance", "steal"]);
    lab.client().run(&["ethtool", "-K", "vc", "gro", "off"]).unwrap();
    let capture = Capture::start(&lab).unwrap();
    let moves = download_while_groups_move(&lab, &web);
    let findings = capture.finish_counting().unwrap();
    findings.check();
    let stats = web.tcp();
    let event = |what| stats.sum("tcp_events_total", &[("event", what)]);
    // nothing is lost, so nothing is repaired; but where a receive thread does not get its processor for long, timers fire (RFC 8985 section 7)
    let timers = event("tail loss probe") + event("retransmission timeout");
    assert!(findings.sent_again.len() as u64 <= timers, "{:#?}\n{stats:?}", findings.sent_again);
    assert_eq!(event("recovery"), 0, "{stats:?}");
    assert!(moves >= 4 && stats.sum("tcp_moved_total", &[("direction", "in")]) > 0, "{moves} moves: {stats:?}");
    assert_eq!(stats.sum("tcp_moves_refused_total", &[]), 0);
    assert_eq!(by_thread(&web.server, "dataplane_crossing_lost_total", &[]), [0, 0]);
    assert_eq!(by_thread(&web.server, "dataplane_flow_groups", &[]).iter().sum::<u64>(), 4096);
}

/// Ports of the client from which connections to one of [`SERVERS`] are not of the thread that has this queue, as the table stands at the
/// start.
fn ports_of_the_other(nic: &Nic, at: usize, queue: u32) -> impl Iterator<Item = String> {
    let ends: [(IpAddr, IpAddr); 2] = [(CLIENT_V4.into(), SERVER_V4.into()), (CLIENT_V6.into(), SERVER_V6.into())];
    let (from, to) = ends[at];
    // below those that the client's kernel chooses itself; others for each, since one that lingers is taken in both families
    let first = 10_000 * (at as u16 + 1);
    let entry = move |port| nic.entry_of((from, port).into(), SocketAddr::new(to, 80), Protocol::TCP).unwrap();
    (first..first + 10_000).filter(move |port| entry(*port) % 2 != queue).map(|port: u16| port.to_string())
}

#[test]
fn a_nic_that_sends_flows_elsewhere_costs_a_crossing_and_nothing_else() {
    let (lab, web) = two_threads(&["--balance", "steal"]);
    let nic = lab.nic().unwrap();
    let crossed =
        || by_thread(&web.server, "dataplane_crossed_frames_total", &[("direction", "out")]).iter().sum::<u64>();
    // each connection has a port of its own: those before may linger
    let mut ports = [0, 1].map(|queue| ports_of_the_other(nic, queue as usize, queue));
    for round in 0..6 {
        // all to one queue, in the middle of the next download
        let before = crossed();
        let url = format!("http://{}/5000000.bin", SERVERS[round % 2]);
        let [first, second] = [(); 2].map(|()| ports[round % 2].next().expect("a port"));
        let body = std::thread::scope(|scope| {
            let download = scope.spawn(|| curl(&lab, &["--local-port", &first, &url, &url]));
            nic.set_all(round as u32 % 2).unwrap();
            download.join().unwrap()
        });
        assert!(body == contents(5_000_000).repeat(2));
        // and from the first packet on, where that one was over before
        assert!(curl(&lab, &["--local-port", &second, &url]) == contents(5_000_000));
        assert!(crossed() > before, "round {round}: {before}");
    }
    assert_eq!(by_thread(&web.server, "dataplane_crossing_lost_total", &[]), [0, 0]);
}

#[test]
fn a_device_that_tells_nothing_and_changes_queues_resets_no_connection() {
    let nic = Some(NicOptions::default());
    let lab = Lab::with(&Options { queues: 2, offloads: false, nic, ..Options::default() }).unwrap();
    // the server is not told the key
    let web = Web::start(lab.server(), &[&INTERFACE[..], &["--listen", "[2001:db8:18::1]:80"]].concat());
    let log = web.server.process.log();
    assert!(log.contains("4096 flow groups of TCP by our own hash, handed over between threads"), "{log}");
    let nic = lab.nic().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let downloads: Vec<_> = (0..4)
            .map(|n| {
                let lab = &lab;
                let url = format!("http://{}/5000000.bin", SERVERS[n % 2]);
                scope.spawn(move || curl(lab, &[&url, &url, &url]))
            })
            .collect();
        let changer = scope.spawn(|| {
            for queue in [0, 1].into_iter().cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
                nic.set_all(queue).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let bodies: Vec<_> = downloads.into_iter().map(|download| download.join()).collect();
        done.store(true, Ordering::Relaxed);
        changer.join().unwrap();
        for body in bodies {
            assert!(body.unwrap() == contents(5_000_000).repeat(3));
        }
    });
    let stats = web.tcp();
    for queue in ["0", "1"] {
        let frames = stats.sum("xdp_frames_received_total", &[("queue", queue)]);
        assert!(frames > 20, "queue {queue}: {frames}");
    }
    assert_eq!(by_thread(&web.server, "dataplane_crossing_lost_total", &[]), [0, 0]);
}

#[test]
fn a_thread_without_its_processor_is_relieved_of_groups_and_of_what_arrives() {
    // without a NIC that deals packets out, each connection comes to any of the queues, whoever has its group
    let lab = Lab::with(&Options { queues: 2, ..Options::default() }).unwrap();
    let args = [&INTERFACE[..], &["--listen", "[2001:db8:18::1]:80", "--balance", "on"]].concat();
    let web = Web::start(lab.server(), &args);
    let hogs = Hogs::on(0, 4, -10);
    let helped = || {
        std::thread::scope(|scope| {
            for n in 0..4 {
                let url = format!("http://{}/5000000.bin", SERVERS[n % 2]);
                let lab = &lab;
                scope.spawn(move || assert_eq!(curl(lab, &[url.as_str(); 4]).len(), 20_000_000));
            }
        });
        // whoever else works on this machine may hold the other thread up, too
        let stats = web.server.stats();
        let helped = |to| stats.sum("dataplane_helped_frames_total", &[("to", to)]);
        let moved = stats.sum("dataplane_moved_groups_total", &[("direction", "out")]);
        moved > 0 && helped("itself") > 100 && helped("owner") > 0
    };
    assert!(lab::wait_until(helped, PATIENCE), "{:?} {}", web.server.stats(), web.server.process.log());
    assert_eq!(by_thread(&web.server, "dataplane_crossing_lost_total", &[]), [0, 0]);
    drop(hogs);
}

#[test]
fn what_cannot_be_moved_is_said() {
    let (_lab, web) = two_threads(&["--balance", "steal"]);
    for (args, words) in [
        (&["move-groups", "0", "7"], "thread 7 is no other one"),
        (&["move-groups", "1", "1"], "thread 1 is no other one"),
        (&["move-groups", "7", "1"], "thread 7 shares no flow groups"),
    ] {
        let refused = web.server.ctl(args);
        assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains(words), "{refused:?}");
    }
}
