//! The NIC's table follows flow groups under kernel sockets, too.

use crate::common::{Hogs, PATIENCE};
use crate::exposition::{check_exposed, parse};
use crate::nic_table::{a_nic, key};
use crate::web::{SERVERS, Web, connect, contents, curl};
use lab::{Lab, Pins};
use std::io::{Read, Write};
use std::net::TcpStream;

const SAID: &str =
    "128 flow groups by the NIC's hash, each with the thread where it arrives; its table is to follow them";

/// A web server on kernel sockets with a thread on each of two processors, where the queue of its number arrives; told this key.
fn serve(lab: &Lab, pins: &Pins, key: &[u8]) -> Web {
    let key: Vec<String> = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let (key, table) = (key.join(":"), pins.table().display().to_string());
    let listen = ["--listen", "198.18.0.1:80", "--listen", "[2001:db8:18::1]:80"];
    let args = ["--backend", "sockets", "--cpus", "0,1", "--rss-key", &key, "--rss-table", &table];
    let metrics = ["--metrics", "127.0.0.1:9153"];
    let web = Web::start(lab.server(), &[&args[..], &metrics, &listen].concat());
    assert!(web.server.process.log().contains(SAID), "{}", web.server.process.log());
    lab.place(|_, queue| queue);
    web
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// One after the other asks for a page and gets it.
fn ask(streams: &mut [TcpStream]) {
    for stream in streams {
        stream.write_all(b"GET /1.bin HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let (mut answer, mut buffer) = (Vec::new(), [0; 2048]);
        while !answer.windows(5).any(|window| window[..4] == *b"\r\n\r\n" && window[4] == contents(1)[0]) {
            let read = stream.read(&mut buffer).unwrap();
            assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&buffer[..read]);
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
}

/// New connections, one over either family.
fn come(lab: &Lab, count: usize) -> Vec<TcpStream> {
    (0..count).map(|n| connect(lab, &format!("{}:80", SERVERS[n % 2])).unwrap()).collect()
}

/// Until arrivals at both processors have been counted, and groups follow them.
fn until_they_follow(lab: &Lab, web: &Web) {
    let follows = || {
        ask(&mut come(lab, 50));
        web.server.stats().sum("sockets_thread_follows", &[("thread", "0")]) == 1
    };
    assert!(lab::wait_until(follows, PATIENCE), "{:?}", web.server.stats());
}

#[test]
fn packets_go_with_their_groups_from_a_processor_that_has_other_work() {
    if processors() < 2 {
        return; // there is nowhere to go
    }
    let (pins, lab) = a_nic();
    let nic = lab.nic().unwrap();
    // entries that nobody would guess, and one queue that has more
    let found: Vec<u32> = (0..128).map(|entry| u32::from(entry % 8 < 5)).collect();
    found.iter().enumerate().for_each(|(entry, queue)| nic.set_entry(entry as u32, *queue).unwrap());
    let mut web = serve(&lab, &pins, &key(&lab));
    until_they_follow(&lab, &web);
    let groups = |web: &Web, thread| web.server.stats().sum("sockets_thread_groups", &[("thread", thread)]);
    // what is learned of where they arrive
    let learned = || {
        ask(&mut come(&lab, 50));
        groups(&web, "0") + groups(&web, "1") == 128
            && (nic.table().unwrap() != found || [groups(&web, "0"), groups(&web, "1")] == [48, 80])
    };
    assert!(lab::wait_until(learned, PATIENCE), "{:?}", web.server.stats());
    let busy = Hogs::on(1, 6, -5);
    let mut streams = come(&lab, 64);
    let on_one = || nic.table().unwrap().iter().filter(|queue| **queue == 1).count();
    let relieved = || {
        // several at a time: each waits for its answer, and where all processors are busy for its own turn as well
        std::thread::scope(|scope| {
            streams.chunks_mut(16).for_each(|some| {
                scope.spawn(|| ask(some));
            });
        });
        ask(&mut come(&lab, 4));
        on_one() <= 40
    };
    assert!(lab::wait_until(relieved, PATIENCE), "{} of 128\n{:?}", on_one(), web.server.stats());
    drop(busy);
    ask(&mut streams);
    for at in SERVERS {
        assert!(curl(&lab, &[&format!("http://{at}/5000000.bin")]) == contents(5_000_000));
    }
    let page = lab.server().run(&["curl", "-sS", "http://127.0.0.1:9153/metrics"]).unwrap();
    check_exposed(&parse(&page).unwrap(), |section| section.contains("on kernel sockets where it follows"));
    let stats = web.server.stats();
    assert!(stats.sum("sockets_nic_turned_entries_total", &[]) >= 40, "{stats:?}");
    assert!(stats.sum("sockets_thread_connections_taken_total", &[]) > 0, "{stats:?}");
    let failed = ["sockets_nic_failed_writes_total", "sockets_thread_connections_lost_total", "sockets_panics_total"];
    assert_eq!(failed.map(|name| stats.sum(name, &[])), [0; 3]);
    assert_eq!(stats.sum("sockets_nic_follows", &[]), 1);
    assert!(!web.server.process.log().contains("not written any more"), "{}", web.server.process.log());
    web.server.process.stop();
    assert!(lab::wait_until(|| nic.table().unwrap() == found, PATIENCE), "{:?}", nic.table());
}

#[test]
fn a_table_by_which_packets_do_not_arrive_is_given_up_and_left() {
    if processors() < 2 {
        return; // they arrive on one
    }
    let (pins, lab) = a_nic();
    let mut wrong = key(&lab);
    wrong.iter_mut().for_each(|byte| *byte = byte.rotate_left(3));
    let web = serve(&lab, &pins, &wrong);
    until_they_follow(&lab, &web);
    let given_up = || {
        ask(&mut come(&lab, 50));
        web.server.process.log().contains("frames come to other queues than its hash and its table say")
    };
    assert!(lab::wait_until(given_up, PATIENCE), "{:?}\n{}", web.server.stats(), web.server.process.log());
    ask(&mut come(&lab, 50));
    assert_eq!(web.server.stats().sum("sockets_nic_follows", &[]), 0);
    let in_turn: Vec<u32> = (0..128).map(|entry| entry % 2).collect();
    assert!(lab::wait_until(|| lab.nic().unwrap().table().unwrap() == in_turn, PATIENCE));
}
