//! A zone with more names than the driver may have: those that are asked for most come to be answered by it, and nobody can tell.

use crate::common::{LISTEN, PATIENCE, Server, Stats};
use crate::driver::{ENDS, REACHED, asked, exchange, wait_for_the_wire};
use lab::{Lab, Options};
use rustix::process::Signal;
use std::fs;
use std::net::UdpSocket;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Names of the zone, and of them those that the driver may have.
const HOSTS: u16 = 300;
const SEATS: u64 = 8;
/// What is asked for most, first and then; each less than the seats, since nobody is to be the coldest by chance.
const FIRST: Range<u16> = 40..46;
const THEN: Range<u16> = 200..206;

/// The zone's `version`th text: the addresses tell.
fn written(version: u8) -> String {
    let host = |n: u16| format!("h{n} A 10.{version}.{}.{}\n", n >> 8, n & 255);
    let hosts: String = (0..HOSTS).map(host).collect();
    format!("$ORIGIN example.com.\n$TTL 60\n@ SOA ns h {version} 1 1 1 1\n@ NS ns\nns A 198.18.0.1\n{hosts}")
}

fn open(lab: &Lab, (any, at): (&str, &str)) -> UdpSocket {
    let socket = lab.client().inside(|| UdpSocket::bind(any).unwrap());
    socket.connect(at).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// The questions for the address of a host, without and with EDNS.
fn questions(host: u16) -> [Vec<u8>; 2] {
    [None, Some(1232)].map(|offered| asked(&format!("h{host}.example.com"), 1, offered, host))
}

/// What our own stack answers, by host and question, from version 0.
struct Expected(Vec<[Vec<u8>; 2]>);

impl Expected {
    fn of_the_stack(lab: &Lab) -> Expected {
        let server = Server::start_for(lab.server(), &written(0), &[&LISTEN[..], &["--tier", "xdp"]].concat());
        wait_for_the_wire(lab);
        let socket = open(lab, ENDS[0]);
        let answers = (0..HOSTS).map(|host| questions(host).map(|question| exchange(&socket, &question))).collect();
        assert_eq!(server.stats().on_sockets(), 0);
        Expected(answers)
    }

    /// Asks for a host in one of the two ways, and gives the version that it was answered from, octet for octet.
    fn ask(&self, socket: &UdpSocket, host: u16, way: usize) -> u8 {
        let answer = exchange(socket, &questions(host)[way]);
        let mut expected = self.0[usize::from(host)][way].clone();
        let [high, low] = host.to_be_bytes();
        let at = expected.windows(6).position(|octets| octets == [0, 4, 10, 0, high, low]).unwrap() + 3;
        let version = *answer.get(at).unwrap_or_else(|| panic!("h{host}: {answer:?}"));
        expected[at] = version;
        assert_eq!(answer, expected, "h{host}");
        version
    }

    /// Asks for each host over both families and in both ways; all must be of this version.
    fn ask_all(&self, sockets: &[UdpSocket], hosts: impl Iterator<Item = u16>, version: u8) {
        for host in hosts {
            for (n, socket) in sockets.iter().enumerate() {
                assert_eq!(self.ask(socket, host, n % 2), version, "h{host}");
                assert_eq!(self.ask(socket, host, 1 - n % 2), version, "h{host}");
            }
        }
    }
}

/// Asks for some hosts far more than for others, until the driver answers for all of them.
fn wait_until_hot(server: &Server, expected: &Expected, sockets: &[UdpSocket], hosts: Range<u16>, version: u8) {
    let mut others = (0..HOSTS).cycle();
    let hot = || {
        for _ in 0..50 {
            expected.ask_all(sockets, hosts.clone().chain(others.next()), version);
        }
        are_hot(server, expected, sockets, hosts.clone(), version)
    };
    assert!(lab::wait_until(hot, PATIENCE), "{:?}\n{}", server.stats(), server.process.log());
}

/// Whether the driver alone answers for these hosts.
fn are_hot(server: &Server, expected: &Expected, sockets: &[UdpSocket], hosts: Range<u16>, version: u8) -> bool {
    let asked = 2 * sockets.len() as u64 * hosts.len() as u64;
    let before = server.stats();
    expected.ask_all(sockets, hosts, version);
    let stats = server.stats();
    assert!(stats.sum("dns_driver_names", &[]) <= SEATS, "{stats:?}");
    let since = |metric| stats.sum(metric, &[]) - before.sum(metric, &[]);
    let driver = since("steering_answered_total");
    assert_eq!(driver + since("steering_taken_total"), asked, "{stats:?}");
    driver == asked
}

#[test]
fn the_driver_has_the_names_that_are_asked_for_most_and_follows() {
    let lab = Lab::with(&Options { queues: 2, ..REACHED }).unwrap();
    let expected = Expected::of_the_stack(&lab);
    let seats = SEATS.to_string();
    let args = [&LISTEN[..], &["--tier", "driver", "--driver-names", &seats, "--user", "nobody"]].concat();
    let server = Server::start_for(lab.server(), &written(0), &args);
    let folder = server.zone_file().parent().unwrap().to_owned();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    wait_for_the_wire(&lab);
    // some flows of either family, and so of either queue
    let sockets: Vec<UdpSocket> = (0..4).map(|n| open(&lab, ENDS[n % 2])).collect();
    let reload = |version: u8| {
        let next = server.zone_file().with_extension("next");
        fs::write(&next, written(version)).unwrap();
        fs::rename(&next, server.zone_file()).unwrap();
        let out = server.ctl(&["reload"]);
        assert!(out.status.success(), "{out:?}\n{}", server.process.log());
    };
    assert_eq!(server.stats().sum("dns_driver_names", &[]), SEATS);
    expected.ask_all(&sockets, 0..HOSTS, 0);
    wait_until_hot(&server, &expected, &sockets, FIRST, 0);
    let settled = server.stats();
    assert!(settled.sum("dns_driver_promoted_total", &[]) > 0, "{settled:?}");
    // that the driver answers makes no name cold, and a load that stays changes nothing
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        expected.ask_all(&sockets, FIRST, 0);
    }
    assert!(are_hot(&server, &expected, &sockets, FIRST, 0));
    let stats = server.stats();
    for metric in ["dns_driver_promoted_total", "dns_driver_demoted_total"] {
        assert_eq!(stats.sum(metric, &[]), settled.sum(metric, &[]), "{metric}: {stats:?}");
    }
    // nobody answers from the zone before, and the hot names are hot at once
    reload(1);
    assert!(are_hot(&server, &expected, &sockets, FIRST, 1));
    expected.ask_all(&sockets, 0..HOSTS, 1);
    let last = reload_while_others_are_hot(&lab, &expected, &sockets, &reload);
    wait_until_hot(&server, &expected, &sockets, THEN, last);
    assert!(server.stats().sum("dns_driver_demoted_total", &[]) > 0, "{:?}", server.stats());
    expected.ask_all(&sockets, 0..HOSTS, last);
}

/// Other names become hot while the zone is replaced again and again: each of many clients sees versions that never go back, and
/// after a reload has returned nobody sees the one before. Gives the last version.
fn reload_while_others_are_hot(lab: &Lab, expected: &Expected, sockets: &[UdpSocket], reload: &dyn Fn(u8)) -> u8 {
    const RELOADS: u8 = 20;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for end in ENDS {
            let (socket, stop) = (open(lab, end), &stop);
            scope.spawn(move || {
                let mut last = 1;
                for host in THEN.chain(THEN).chain(FIRST).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let version = expected.ask(&socket, host, usize::from(host) % 2);
                    assert!(version >= last, "{version} after {last}");
                    last = version;
                }
            });
        }
        for version in 2..2 + RELOADS {
            reload(version);
            expected.ask_all(sockets, FIRST.chain(THEN), version);
            // the driver's names change about once a second
            std::thread::sleep(Duration::from_millis(u64::from(version) * 97 % 500));
        }
        stop.store(true, Ordering::Relaxed);
    });
    1 + RELOADS
}

/// A driver that has little of what is asked for only costs time. It is tried again, and answers when it has what is asked for by then.
#[test]
fn the_driver_is_left_out_while_it_answers_little() {
    let lab = Lab::with(&REACHED).unwrap();
    let server = Server::start_for(
        lab.server(),
        &written(0),
        &[&LISTEN[..], &["--tier", "auto", "--driver-names", "1"]].concat(),
    );
    wait_for_the_wire(&lab);
    if !lab::tells_of_drivers() {
        return;
    }
    let socket = open(&lab, ENDS[0]);
    socket.set_nonblocking(true).unwrap();
    let (stop, one, sent) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    // The driver is judged by rounds in which enough is asked. However slowly this machine sends, it is in one round: none ends while the
    // server is held, and the driver goes on.
    let ask_in_one_round = || {
        server.process.signal(Signal::STOP);
        let before = sent.load(Ordering::Relaxed);
        let enough = lab::wait_until(|| sent.load(Ordering::Relaxed) > before + 20_000, PATIENCE);
        server.process.signal(Signal::CONT);
        assert!(enough, "{sent:?} questions sent");
    };
    let active = |stats: &Stats| stats.sum("dns_driver_active", &[]) == 1;
    std::thread::scope(|scope| {
        // for all names alike and then for one; nobody waits for what is lost
        scope.spawn(|| {
            let questions: Vec<Vec<u8>> = (0..HOSTS).map(|host| questions(host)[0].clone()).collect();
            let (mut all, mut answer) = (questions.iter().cycle(), [0; 512]);
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..100 {
                    let next = all.next().filter(|_| !one.load(Ordering::Relaxed));
                    let _ = socket.send(next.unwrap_or(&questions[250]));
                }
                sent.fetch_add(100, Ordering::Relaxed);
                while socket.recv(&mut answer).is_ok() {}
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let is_left_out = || {
                ask_in_one_round();
                !active(&server.stats())
            };
            assert!(lab::wait_until(is_left_out, PATIENCE), "{:?} {}", server.stats(), server.process.log());
            // those that ran when it was told may still have answered
            let is_silent = || {
                let [before, after] = [server.stats(), server.stats()];
                !active(&after) && before.by_the_driver() == after.by_the_driver()
            };
            assert!(lab::wait_until(is_silent, PATIENCE), "{}", server.process.log());
            one.store(true, Ordering::Relaxed);
            server.wait_until("tried again", active);
            let before = server.stats().by_the_driver();
            let answers = |stats: &Stats| stats.by_the_driver() > before + 20_000;
            server.wait_until("answers by the driver", answers);
            let is_worth_it = || {
                ask_in_one_round();
                server.process.log().contains("the driver answers again")
            };
            assert!(lab::wait_until(is_worth_it, PATIENCE), "{}", server.process.log());
        }));
        stop.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(active(&server.stats()), "{}", server.process.log());
    let log = server.process.log();
    for said in ["our stack answers all for now", "the driver answers again"] {
        assert_eq!(log.matches(said).count(), 1, "{log}");
    }
}
