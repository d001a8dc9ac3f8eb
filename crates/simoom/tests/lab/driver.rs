//! The driver tier: the same octets from each tier, each question where it belongs, and nothing left behind.

use crate::common::{
    LISTEN, PATIENCE, Server, Stats, ZONE, client, complaints, dig_until, nothing_attached, question_for, refused,
    simoom, ticks, zone,
};
use crate::exposition::{check_documented, check_exposed, parse};
use lab::peers::{serves, write_zones};
use lab::zonegen::{Question, World};
use lab::{Lab, Options};
use rustix::process::Signal;
use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// A client that what the driver sends reaches.
pub(crate) const REACHED: Options = Options {
    queues: 1,
    wires: 1,
    mtu: 1500,
    offloads: true,
    steer: false,
    nic: None,
    client_program: true,
    server_tso: true,
};
pub(crate) const ENDS: [(&str, &str); 2] = [("0.0.0.0:0", "198.18.0.1:53"), ("[::]:0", "[2001:db8:18::1]:53")];
/// Names of the zone, most of which exist, with what is asked of each: the driver has the answers.
const HELD: [(&str, &[u16]); 10] = [
    ("example.com", &[1, 2, 6, 15, 16, 43]),
    ("www.example.com", &[1, 28, 16, 65_280, 0]),
    ("alias.example.com", &[1, 5, 28, 16]),
    ("wild.example.com", &[1, 16]),
    ("cut.example.com", &[1, 2, 43, 255]),
    ("ns.example.com", &[1, 28, 257]),
    ("*.wild.example.com", &[16]),
    ("absent.example.com", &[1, 43, 255]),
    ("x.www.example.com", &[28]),
    ("host.cut.example.com", &[1, 43]),
];
/// What others than the driver answer: names that come from a wildcard, ANY of one that exists, another zone's.
const NOT_HELD: [(&str, u16); 3] = [("x.wild.example.com", 16), ("www.example.com", 255), ("example.org", 1)];

/// A question whose OPT record offers so much, in letters of either case.
pub(crate) fn asked(name: &str, rtype: u16, offered: Option<u16>, id: u16) -> Vec<u8> {
    let letters: String =
        name.chars().enumerate().map(|(n, c)| if n % 3 == 0 { c.to_ascii_uppercase() } else { c }).collect();
    let mut message = question_for(&letters, rtype, id);
    assert_eq!(message[11], 0, "a question without EDNS");
    if let Some(size) = offered {
        message[11] = 1;
        message.extend([0, 0, 41]);
        message.extend(size.to_be_bytes());
        message.extend([0; 6]);
    }
    message
}

/// What is not plain: DO, an option, another opcode, an octet too many.
fn elaborate(id: u16) -> Vec<Vec<u8>> {
    let plain = asked("www.example.com", 1, Some(1232), id);
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut message = plain.clone();
        change(&mut message);
        message
    };
    vec![
        changed(&|m| {
            let at = m.len() - 4;
            m[at] = 0x80;
        }),
        changed(&|m| {
            let at = m.len() - 1;
            m[at] = 4;
            m.extend([0, 3, 0, 0]);
        }),
        changed(&|m| m[2] |= 0x28),
        changed(&|m| m.push(0)),
    ]
}

pub(crate) fn exchange(socket: &UdpSocket, question: &[u8]) -> Vec<u8> {
    socket.send(question).unwrap();
    let mut answer = [0; 4096];
    let bytes = lab::patiently(|| socket.recv(&mut answer)).unwrap_or_else(|error| panic!("{question:?}: {error}"));
    answer[..bytes].to_vec()
}

/// A socket at this address. The one before it there is closed, but a process that another test starts meanwhile has it until it runs
/// its program.
fn bound(at: &str) -> UdpSocket {
    let mut bound = None;
    let mut is_free = || {
        let outcome = bound.insert(UdpSocket::bind(at));
        !outcome.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
    };
    lab::wait_until(&mut is_free, PATIENCE);
    bound.expect("an attempt").unwrap_or_else(|error| panic!("{at}: {error}"))
}

/// The answers to what the driver has, or to what it has not.
fn answers(lab: &Lab, held: bool) -> Vec<Vec<u8>> {
    let (mut answers, mut id) = (Vec::new(), 0);
    for (any, at) in ENDS {
        // Always the same: one whole checksum in 65,535 could be one left to a device, and the driver leaves that to our stack where
        // it may not judge. From a port drawn at random the count would be one less now and then.
        let any = any.replace(":0", ":10053");
        let socket = lab.client().inside(|| bound(&any));
        socket.connect(at).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut ask = |message: &dyn Fn(u16) -> Vec<u8>| {
            id += 1;
            answers.push(exchange(&socket, &message(id)));
        };
        for offered in [None, Some(0), Some(512), Some(1232), Some(4096)] {
            if held {
                for (name, rtype) in
                    HELD.iter().flat_map(|(name, types)| types.iter().map(move |rtype| (*name, *rtype)))
                {
                    ask(&|id| asked(name, rtype, offered, id));
                }
                // no datagram holds it, and the driver says so
                ask(&|id| asked("big.example.com", 16, offered, id));
            } else {
                for (name, rtype) in NOT_HELD {
                    ask(&|id| asked(name, rtype, offered, id));
                }
            }
        }
        for n in 0..if held { 0 } else { elaborate(0).len() } {
            ask(&|id| elaborate(id)[n].clone());
        }
    }
    answers
}

pub(crate) fn wait_for_the_wire(lab: &Lab) {
    for at in ["198.18.0.1", "2001:db8:18::1"] {
        dig_until(lab, &format!("@{at} +nocookie ns.example.com A"), "198.18.0.1");
    }
}

#[test]
fn every_tier_gives_the_same_octets_and_answers_what_it_should() {
    for offloads in [true, false] {
        let lab = Lab::with(&Options { offloads, ..REACHED }).unwrap();
        let mut expected: Option<Vec<Vec<u8>>> = None;
        for (more, driver) in [
            (&["--tier", "xdp"][..], false),
            (&["--tier", "sockets"], false),
            (&["--tier", "auto"], lab::tells_of_drivers()),
            // which does not answer from the kernel's receive path, nor with a part of a rate that may be the stack's alone
            (&["--tier", "auto", "--mode", "generic"], false),
            (&["--tier", "auto", "--rrl-rate", "1000000"], false),
            (&["--tier", "driver"], true),
            (&["--tier", "driver", "--mode", "copy"], true),
            // what a sender's kernel left to a device is not answered from the kernel's receive path
            (&["--tier", "driver", "--mode", "generic"], !offloads),
            (&["--tier", "driver", "--rrl-rate", "1000000"], true),
        ] {
            let server = Server::start(lab.server(), &[&LISTEN[..], more].concat());
            wait_for_the_wire(&lab);
            let begun = server.stats();
            let mut got = answers(&lab, true);
            let (held, between) = (got.len() as u64, server.stats());
            got.extend(answers(&lab, false));
            let stats = server.stats();
            let expected = expected.get_or_insert_with(|| got.clone());
            for (n, (got, expected)) in got.iter().zip(&*expected).enumerate() {
                assert_eq!(got, expected, "answer {n} of {more:?}");
            }
            let since = |metric: &str, before: &Stats| stats.sum(metric, &[]) - before.sum(metric, &[]);
            let (asked, answered) = (got.len() as u64, since("steering_answered_total", &begun));
            let sockets = if more.contains(&"sockets") { asked } else { 0 };
            // veth leaves little room behind a question, but enough in front of it
            assert_eq!(answered, if driver { held } else { 0 }, "by the driver, {more:?}: {stats:?}");
            assert_eq!(since("steering_answered_total", &between), 0, "{more:?}: {stats:?}");
            assert_eq!(since("steering_taken_total", &begun), asked - answered - sockets, "{more:?}: {stats:?}");
            assert_eq!(since("sockets_datagrams_received_total", &begun), sockets, "{more:?}: {stats:?}");
            // what is no question is not counted as one
            let not_read = 2 * 2;
            assert_eq!(since("dns_questions_total", &begun), asked - not_read, "{more:?}: {stats:?}");
            assert_eq!(since("dns_answers_total", &begun), asked, "{more:?}: {stats:?}");
        }
    }
}

/// Zones drawn at random, asked with letters of either case, with and without EDNS and DO: the same octets from each tier.
#[test]
fn random_zones_are_answered_alike_by_all_tiers() {
    const QUESTIONS: usize = 3000;
    let lab = Lab::with(&REACHED).unwrap();
    for seed in [301, 302, 303] {
        let world = World::draw(seed);
        let questions = world.questions(seed, QUESTIONS);
        let mut expected: Vec<Vec<u8>> = Vec::new();
        for tier in ["xdp", "sockets", "driver"] {
            let dir = tempfile::tempdir().unwrap();
            let files = write_zones(dir.path(), &world.zones).unwrap();
            let mut command = simoom(lab.server());
            command.arg("dns").args(LISTEN).args(["--tier", tier]);
            command.args(files.iter().map(|zone| format!("{}={}", zone.origin, zone.path.display())));
            let server = Server::spawn(command);
            let at = ENDS[0].1.parse().unwrap();
            let ready = || lab.client().inside(|| world.zones.iter().all(|zone| serves(at, zone)));
            assert!(lab::wait_until(ready, PATIENCE), "{tier}");
            let before = server.stats();
            let mut answers = Vec::new();
            for (any, at) in ENDS {
                let socket = lab.client().inside(|| UdpSocket::bind(any).unwrap());
                socket.connect(at).unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                let ask = |(n, question): (usize, &Question)| exchange(&socket, &question.wire(n as u16));
                answers.extend(questions.iter().enumerate().map(ask));
            }
            if expected.is_empty() {
                expected.clone_from(&answers);
            }
            for (n, (got, expected)) in answers.iter().zip(&expected).enumerate() {
                assert_eq!(got, expected, "{tier} of seed {seed}: {}", questions[n % QUESTIONS]);
            }
            let stats = server.stats();
            let since = |metric: &str| stats.sum(metric, &[]) - before.sum(metric, &[]);
            let (asked, driver) = (answers.len() as u64, since("steering_answered_total"));
            let sockets = if tier == "sockets" { asked } else { 0 };
            assert_eq!(since("dns_answers_total"), asked, "{tier} of seed {seed}: {stats:?}");
            assert_eq!(since("steering_taken_total"), asked - driver - sockets, "{tier} of seed {seed}: {stats:?}");
            assert_eq!(since("sockets_datagrams_received_total"), sockets, "{tier} of seed {seed}: {stats:?}");
            // what is composed or has DO is a good part of such questions
            assert_eq!(driver > asked / 4, tier == "driver", "{driver} of {asked} by the driver, seed {seed}");
        }
    }
}

/// veth drops what a driver sends while the other end has no NAPI instance: then our stack answers, and nothing is lost.
#[test]
fn the_driver_answers_while_the_other_end_takes_it() {
    for tier in ["auto", "driver"] {
        let lab = Lab::with(&Options { client_program: false, ..REACHED }).unwrap();
        let offload = |how: &str| {
            lab.client().run(&["ethtool", "-K", "vc", "gro", how]).unwrap();
        };
        offload("off");
        let server = Server::start(lab.server(), &[&LISTEN[..], &["--tier", tier]].concat());
        if !lab::tells_of_drivers() {
            // nobody knows: then it answers where it was asked to
            assert!(tier == "auto" || server.stats().sum("dns_driver_active", &[]) == 1, "{}", server.process.log());
            let warned = server.process.log().contains("does not tell whether the other end");
            assert_eq!(warned, tier == "driver", "{}", server.process.log());
            continue;
        }
        wait_for_the_wire(&lab);
        assert_eq!(server.stats().sum("dns_driver_active", &[("interface", "vs")]), 0, "{}", server.process.log());
        let socket = lab.client().inside(|| UdpSocket::bind(ENDS[0].0).unwrap());
        socket.connect(ENDS[0].1).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        for (how, driver) in [("off", false), ("on", true), ("off", false), ("on", true)] {
            offload(how);
            let active = u64::from(driver);
            server.wait_until(how, |stats| stats.sum("dns_driver_active", &[]) == active);
            let before = server.stats().sum("steering_answered_total", &[]);
            for id in 0..100 {
                exchange(&socket, &asked("www.example.com", 1, None, id));
            }
            let answered = server.stats().sum("steering_answered_total", &[]) - before;
            assert_eq!(answered, if driver { 100 } else { 0 }, "{tier}, gro {how}");
        }
    }
}

#[test]
fn usual_clients_are_answered_by_the_driver() {
    let lab = Lab::with(&REACHED).unwrap();
    let server = Server::start(lab.server(), &[&LISTEN[..], &["--tier", "driver"]].concat());
    wait_for_the_wire(&lab);
    let before = server.stats().sum("steering_answered_total", &[]);
    for at in ["198.18.0.1", "2001:db8:18::1"] {
        for plain in ["dig", "dig +nocookie", "dig +noedns", "kdig", "kdig +edns"] {
            assert_eq!(
                client(&lab, &format!("{plain} @{at} +short www.example.com A")).trim(),
                "198.18.0.80",
                "{plain}"
            );
        }
        // other options are the stack's, and so is what comes over TCP
        for other in ["dig +tcp", "dig +nsid", "dig +nocookie +nsid"] {
            assert_eq!(
                client(&lab, &format!("{other} @{at} +short www.example.com A")).trim(),
                "198.18.0.80",
                "{other}"
            );
        }
    }
    let stats = server.stats();
    assert_eq!(stats.by_the_driver() - before, 10, "{stats:?}");
    assert!(stats.sum("dns_driver_answers", &[("size", "short")]) > 10, "{stats:?}");
    assert_eq!(stats.sum("dns_cookies_valid_total", &[]), 0);
}

#[test]
fn what_is_exposed_with_the_driver_is_documented() {
    lab::require_programs(&["curl"]);
    let lab = Lab::with(&REACHED).unwrap();
    let more = ["--tier", "driver", "--metrics", "127.0.0.1:9153"];
    let _server = Server::start(lab.server(), &[&LISTEN[..], &more].concat());
    let page = lab.server().run(&["curl", "-sS", "http://127.0.0.1:9153/metrics"]).unwrap();
    let families = parse(&page).unwrap_or_else(|error| panic!("{error}\n{page}"));
    check_documented(&families);
    check_exposed(&families, |section| section.contains("driver"));
}

#[test]
fn a_server_that_is_killed_takes_its_answers_along() {
    let lab = Lab::with(&REACHED).unwrap();
    let mut server = Server::start(lab.server(), &[&LISTEN[..], &["--tier", "driver"]].concat());
    wait_for_the_wire(&lab);
    server.process.signal(Signal::KILL);
    server.process.wait(PATIENCE).unwrap();
    nothing_attached(&lab);
    assert_eq!(crate::common::dig(&lab, "@198.18.0.1 +nocookie ns.example.com A"), "");
}

#[test]
fn lists_hold_in_the_driver() {
    let lab = Lab::with(&REACHED).unwrap();
    let more = ["--tier", "driver", "--deny", "198.18.0.0/24"];
    let server = Server::start(lab.server(), &[&LISTEN[..], &more].concat());
    dig_until(&lab, "@2001:db8:18::1 +nocookie ns.example.com A", "198.18.0.1");
    assert_eq!(crate::common::dig(&lab, "@198.18.0.1 +nocookie ns.example.com A"), "");
    let stats = server.stats();
    assert_eq!(stats.sum("steering_answered_total", &[("family", "4")]), 0);
    assert!(stats.sum("steering_dropped_total", &[("reason", "denied")]) >= 1, "{stats:?}");
}

/// A zone whose address of www tells how often it was written.
fn written(number: u16) -> String {
    let [high, low] = number.to_be_bytes();
    format!(
        "$ORIGIN example.com.\n$TTL 60\n@ SOA ns h {number} 1 1 1 1\n@ NS ns\nns A 198.18.0.1\nwww A 10.0.{high}.{low}\n"
    )
}

/// When `ctl reload` has returned, nobody answers from the zone before; meanwhile others ask all the time. The server has no
/// privileges left by then.
#[test]
fn no_old_answer_comes_after_a_reload_has_returned() {
    const RELOADS: u16 = 60;
    const ASKED: u64 = 10;
    let lab = Lab::with(&Options { queues: 2, ..REACHED }).unwrap();
    let args = [&LISTEN[..], &["--tier", "driver", "--user", "nobody"]].concat();
    let server = Server::start_for(lab.server(), &written(0), &args);
    let folder = server.zone_file().parent().unwrap().to_owned();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    wait_for_the_wire(&lab);
    let open = |(any, at): (&str, &str)| {
        let socket = lab.client().inside(|| UdpSocket::bind(any).unwrap());
        socket.connect(at).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    };
    let stop = AtomicBool::new(false);
    let before = server.stats();
    let others: u64 = std::thread::scope(|scope| {
        let others = ENDS.map(|end| {
            let (socket, stop) = (open(end), &stop);
            scope.spawn(move || {
                let (mut asked, mut last) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    let version = written_version(&exchange(&socket, &asked_plainly(asked)));
                    assert!(version >= last, "{version} after {last}");
                    (asked, last) = (asked + 1, version);
                }
                asked
            })
        });
        for number in 1..=RELOADS {
            let next = server.zone_file().with_extension("next");
            fs::write(&next, written(number)).unwrap();
            fs::rename(&next, server.zone_file()).unwrap();
            let out = server.ctl(&["reload"]);
            assert!(out.status.success(), "{out:?}\n{}", server.process.log());
            for end in ENDS {
                // each socket is a flow of its own, and so of either queue
                let socket = open(end);
                for id in 0..ASKED {
                    let version = written_version(&exchange(&socket, &asked_plainly(id)));
                    assert_eq!(version, number, "after reload {number}, question {id} at {}", end.1);
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        others.into_iter().map(|other| other.join().unwrap()).sum()
    });
    let stats = server.stats();
    let since = |metric: &str| stats.sum(metric, &[]) - before.sum(metric, &[]);
    let (asked, driver) = (others + 2 * ASKED * u64::from(RELOADS), since("steering_answered_total"));
    assert_eq!(driver + since("steering_taken_total"), asked, "{stats:?}");
    // all of those after a reload, at least
    assert!(driver >= 2 * ASKED * u64::from(RELOADS), "{driver} of {asked}: {stats:?}");
    assert_eq!(since("dns_questions_total"), asked, "{stats:?}");
    assert_eq!(since("dns_zone_answers_total"), asked, "{stats:?}");
}

fn asked_plainly(id: u64) -> Vec<u8> {
    asked("www.example.com", 1, [None, Some(1232)][id as usize % 2], id as u16)
}

/// Which [`written`] an answer is of.
fn written_version(answer: &[u8]) -> u16 {
    let at = answer.windows(6).position(|octets| octets[..4] == [0, 4, 10, 0]).unwrap_or_else(|| panic!("{answer:?}"));
    u16::from_be_bytes([answer[at + 4], answer[at + 5]])
}

/// A processor's time is that of whoever sends; the server's threads sleep while the driver answers.
#[test]
fn the_server_sleeps_while_the_driver_answers() {
    const ASKED: u16 = 20_000;
    let lab = Lab::with(&REACHED).unwrap();
    let server = Server::start(lab.server(), &[&LISTEN[..], &["--tier", "driver"]].concat());
    wait_for_the_wire(&lab);
    let socket = lab.client().inside(|| UdpSocket::bind(ENDS[0].0).unwrap());
    socket.connect(ENDS[0].1).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let before = server.stats();
    // the adaptive policy spins a while after the last question of the stack's
    std::thread::sleep(std::time::Duration::from_secs(1));
    let (begun, used) = (std::time::Instant::now(), ticks(server.process.id()));
    for id in 0..ASKED {
        exchange(&socket, &asked("www.example.com", 1, None, id));
    }
    let (used, span) = (ticks(server.process.id()) - used, begun.elapsed());
    let stats = server.stats();
    assert_eq!(stats.by_the_driver() - before.sum("steering_answered_total", &[]), u64::from(ASKED));
    assert_eq!(stats.taken(), before.taken());
    // what it has to look after it looks after in any case; a tick is a hundredth of a second (USER_HZ), and a question that wakes the stack costs
    // ten microseconds and more: twenty ticks for all of these
    let begun = ticks(server.process.id());
    std::thread::sleep(span);
    let idle = ticks(server.process.id()) - begun;
    assert!(used <= idle + 5, "{used} ticks in {span:?}, {idle} without a question");
}

/// Both tiers together send what the rate allows, however many queues and processors there are, and every other one beyond it
/// truncated.
#[test]
fn rates_hold_over_the_driver_and_the_stack() {
    const RATE: u64 = 40;
    const ASKED: u64 = 2000;
    for queues in [1, 2] {
        let lab = Lab::with(&Options { queues, ..REACHED }).unwrap();
        let rate = RATE.to_string();
        let more = ["--tier", "driver", "--rrl-rate", &rate, "--rrl-slip", "2"];
        let server = Server::start(lab.server(), &[&LISTEN[..], &more].concat());
        wait_for_the_wire(&lab);
        let before = server.stats();
        let sockets: Vec<UdpSocket> = (0..8)
            .map(|_| {
                let socket = lab.client().inside(|| UdpSocket::bind(ENDS[0].0).unwrap());
                socket.connect(ENDS[0].1).unwrap();
                socket.set_nonblocking(true).unwrap();
                socket
            })
            .collect();
        let since = |stats: &Stats, metric: &str| stats.sum(metric, &[]) - before.sum(metric, &[]);
        let (mut whole, mut truncated, mut answer) = (0, 0, [0; 512]);
        let mut take = || {
            for socket in &sockets {
                while socket.recv(&mut answer).is_ok() {
                    *if answer[2] & 2 == 0 { &mut whole } else { &mut truncated } += 1;
                }
            }
            whole + truncated
        };
        let begun = std::time::Instant::now();
        for id in 0..ASKED {
            sockets[id as usize % 8].send(&asked("www.example.com", 1, None, id as u16)).unwrap();
            if id % 100 == 99 {
                // so that no queue on the way overflows
                server.wait_until("all questions", |stats| since(stats, "dns_questions_total") > id);
                take();
            }
        }
        let seconds = begun.elapsed().as_secs() + 1;
        // a question is counted before what becomes of it, and an answer before it leaves
        let dropped = |stats: &Stats| stats.sum("dns_drops_total", &[("reason", "rate limited")]);
        let all_came = || {
            let (taken, stats) = (take(), server.stats());
            let sent = since(&stats, "dns_answers_total");
            taken == sent && sent + dropped(&stats) == ASKED
        };
        assert!(lab::wait_until(all_came, PATIENCE), "{:?}", server.stats());
        let stats = server.stats();
        let (driver, slipped) = (since(&stats, "steering_answered_total"), since(&stats, "dns_slipped_total"));
        let dropped = dropped(&stats);
        let said = format!("{queues} queues, {seconds} s, {whole} whole of them {driver} by the driver: {stats:?}");
        // a second's worth at once, and what the time allows
        assert!(whole <= RATE * (seconds + 1), "{said}");
        assert!(driver >= RATE / 2 / u64::from(queues) && driver <= RATE / 2 * (seconds + 1), "{said}");
        assert_eq!((whole + slipped + dropped, truncated), (ASKED, slipped), "{said}");
        assert_eq!(since(&stats, "steering_rate_reached_total"), ASKED - driver, "{said}");
        assert!(slipped > ASKED / 4, "{said}");
    }
}

#[test]
fn what_the_driver_lacks_is_refused_in_a_line() {
    let lab = Lab::with(&REACHED).unwrap();
    let (_dir, zone) = zone(ZONE);
    for (args, words) in [
        (&["--interface", "vs", "--tier", "driver", "--own", "198.18.0.9/24"][..], &["--tier driver", "--own"][..]),
        (&["--tier", "driver"], &["--tier driver", "--interface"]),
        (&["--interface", "vs", "--tier", "sockets", "--own", "198.18.0.9/24"], &["--tier sockets", "--own"]),
        (&["--interface", "vs", "--tier", "sockets", "--deny", "198.18.0.9/32"], &["--tier sockets", "--deny"]),
        (&["--tier", "xdp"], &["--tier xdp", "--interface"]),
        (&["--interface", "vs", "--tier", "kernel"], &["`kernel` is none of driver, xdp, sockets, auto"]),
    ] {
        let (status, log) = refused(lab.server(), &[args, &["--listen", "198.18.0.1:53", &zone]].concat());
        let lines = complaints(&log);
        let found = lines.len() == 1 && words.iter().all(|word| lines[0].contains(word));
        assert!(found && status == Some(2), "{args:?}: {status:?}\n{log}");
    }
    // where there is no AF_XDP, sockets instead are not what was asked for
    let fallback = ["--interface", "lo", "--backend", "auto", "--mode", "zerocopy", "--listen", "198.18.0.1:53", &zone];
    for tier in ["driver", "xdp"] {
        let (status, log) = refused(lab.server(), &[&["--tier", tier][..], &fallback].concat());
        let lines = complaints(&log);
        assert!(lines.len() == 1 && lines[0].ends_with("give --tier auto"), "{log}");
        assert_eq!(status, Some(1), "{log}");
    }
    nothing_attached(&lab);
}
