//! Names that do not exist, from the driver: what our own stack answers, octet for octet, and only where all names are there.

use crate::common::{LISTEN, PATIENCE, Server, Stats, simoom};
use crate::driver::{ENDS, REACHED, asked, exchange, wait_for_the_wire};
use lab::{Lab, Options};
use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant};

/// Numbers by chance, the same ones from a seed each time (Marsaglia's xorshift).
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }
}

const HEAD: &str = "$TTL 60\n@ SOA ns h 1 1 1 1 60\n@ NS ns\nns A 198.18.0.1\n";

/// A name that all of its zone's names are below or beside, and what the driver does about what is missing below it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Answered,
    Left,
    /// answered where there is room in the frame
    Large,
}
use Missing::{Answered, Large, Left};

const TOPS: [(&str, Missing); 21] = [
    ("example.com", Answered),
    ("www.example.com", Answered),
    ("alias.example.com", Answered),
    // an empty non-terminal
    ("b.example.com", Answered),
    ("a.b.example.com", Answered),
    ("cut.example.com", Answered),
    // glue
    ("ns.cut.example.com", Answered),
    ("large.example.com", Large),
    ("w.example.com", Left),
    ("x.w.example.com", Left),
    ("dn.example.com", Left),
    // its answers are made when it is asked for
    ("to.example.com", Answered),
    ("outer.example.com", Answered),
    ("y.outer.example.com", Answered),
    ("z.y.outer.example.com", Answered),
    ("h.example.com", Answered),
    ("i.h.example.com", Answered),
    ("wild.test", Left),
    ("www.wild.test", Left),
    ("com", Left),
    ("elsewhere", Left),
];

fn zones() -> Vec<(&'static str, String)> {
    let mut text = format!(
        "{HEAD}www A 198.18.0.80\nalias CNAME www\na.b TXT x\ncut NS ns.cut\nns.cut A 198.18.0.53\n*.w A 198.18.0.81\n\
         x.w A 198.18.0.82\ndn DNAME www\nto CNAME x.dn\nouter NS ns.elsewhere.\nlarge NS a.large\nlarge NS b.large\n"
    );
    (0..12).for_each(|n| text += &format!("a.large A 198.18.1.{n}\nb.large A 198.18.2.{n}\n"));
    let wild = format!("{HEAD}* A 198.18.0.90\nwww A 198.18.0.91\n");
    vec![
        ("example.com", text),
        ("z.y.outer.example.com", HEAD.to_owned()),
        ("i.h.example.com", HEAD.to_owned()),
        ("wild.test", wild),
    ]
}

/// A server of these zones, `more` said beside.
fn serve(lab: &Lab, dir: &Path, zones: &[(&str, String)], more: &[&str]) -> Server {
    let mut command = simoom(lab.server());
    command.arg("dns").args(LISTEN).args(more);
    for (n, (origin, text)) in zones.iter().enumerate() {
        let file = dir.join(format!("{n}.zone"));
        fs::write(&file, text).unwrap();
        command.arg(format!("{origin}={}", file.display()));
    }
    let server = Server::spawn(command);
    wait_for_the_wire_of(lab);
    server
}

fn wait_for_the_wire_of(lab: &Lab) {
    for at in ["198.18.0.1", "2001:db8:18::1"] {
        crate::common::dig_until(lab, &format!("@{at} +nocookie ns.example.com A"), "198.18.0.1");
    }
}

fn open(lab: &Lab, (any, at): (&str, &str)) -> UdpSocket {
    let socket = lab.client().inside(|| UdpSocket::bind(any).unwrap());
    socket.connect(at).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn wire(name: &str) -> Vec<u8> {
    let labels = name.split('.').filter(|label| !label.is_empty());
    labels.flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat()).chain([0]).collect()
}

/// A name of `bytes` octets that ends in `top` and does not exist, in letters of either case: short labels or long ones.
fn missing(rng: &mut Rng, top: &[u8], bytes: usize) -> Vec<u8> {
    let most = [1, 5, 63][rng.below(3) as usize];
    let mut labels = Vec::new();
    while labels.len() + top.len() < bytes {
        let left = bytes - top.len() - labels.len();
        let mut label = (1 + rng.below(most) as usize).min(left - 1);
        // no label may leave a single octet, which no label fills
        if left - 1 - label == 1 {
            label = if label == 63 { 62 } else { label + 1 };
        }
        labels.push(label as u8);
        // q begins every label, and none that exists
        labels.push(if rng.below(2) == 0 { b'q' } else { b'Q' });
        labels.extend((1..label).map(|_| b"abcXYZ019-_*\0\x80\xff."[rng.below(16) as usize]));
    }
    let top = top.iter().map(|octet| if rng.below(2) == 0 { octet.to_ascii_uppercase() } else { *octet });
    labels.into_iter().chain(top).collect()
}

fn question(name: &[u8], rtype: u16, offered: Option<u16>, id: u16) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    let mut message = vec![high, low, 1, 0, 0, 1, 0, 0, 0, 0, 0, offered.is_some().into()];
    message.extend(name);
    message.extend(rtype.to_be_bytes());
    message.extend([0, 1]);
    if let Some(size) = offered {
        message.extend([0, 0, 41]);
        message.extend(size.to_be_bytes());
        message.extend([0; 6]);
    }
    message
}

/// Questions for missing names below each of `tops`, of all lengths, and whether the driver answers them.
fn questions(seed: u64, tops: &[(&str, Missing)]) -> Vec<(Vec<u8>, Missing)> {
    let rng = &mut Rng::new(seed);
    let mut all = Vec::new();
    for (top, what) in tops {
        let top = wire(top);
        for n in 0..60 {
            // the longest and the shortest there are, and between them
            let bytes = [255, 254, top.len() + 2, top.len() + 3 + rng.below(253 - top.len() as u64) as usize][n % 4];
            let name = missing(rng, &top, bytes);
            let rtype = [1, 2, 5, 6, 28, 43, 255, 65_280, 65_535][rng.below(9) as usize];
            let offered = [None, Some(0), Some(512), Some(600 + rng.below(200) as u16), Some(1232), Some(4096)];
            let offered = offered[rng.below(6) as usize];
            all.push((question(&name, rtype, offered, all.len() as u16), *what));
        }
    }
    all
}

fn since(stats: &Stats, before: &Stats, metric: &str) -> u64 {
    stats.sum(metric, &[]) - before.sum(metric, &[])
}

/// Answers that said of a name that it does not exist.
fn absent(stats: &Stats) -> u64 {
    stats.sum("dns_answers_total", &[("rcode", "NXDOMAIN")])
}

#[test]
fn every_missing_name_is_answered_as_by_the_stack() {
    let lab = Lab::with(&REACHED).unwrap();
    let with_root: Vec<_> =
        std::iter::once((".", format!("{HEAD}org NS ns.org\nns.org A 198.18.0.2\n"))).chain(zones()).collect();
    let root_tops: Vec<_> = TOPS
        .into_iter()
        .map(|(top, what)| (top, if ["com", "elsewhere"].contains(&top) { Answered } else { what }))
        .chain([("", Answered), ("org", Answered), ("ns.org", Answered), ("test", Answered)])
        .collect();
    for (seed, zones, tops) in [(1, zones(), TOPS.to_vec()), (2, with_root, root_tops)] {
        let questions = questions(seed, &tops);
        let mut expected: Vec<Vec<u8>> = Vec::new();
        for tier in ["xdp", "driver"] {
            let dir = tempfile::tempdir().unwrap();
            let server = serve(&lab, dir.path(), &zones, &["--tier", tier]);
            let before = server.stats();
            let mut answers = Vec::new();
            for end in ENDS {
                let socket = open(&lab, end);
                answers.extend(questions.iter().map(|(question, _)| exchange(&socket, question)));
            }
            let stats = server.stats();
            if tier == "xdp" {
                expected = answers;
                assert_eq!(since(&stats, &before, "steering_answered_total"), 0);
                continue;
            }
            for (n, (got, expected)) in answers.iter().zip(&expected).enumerate() {
                assert_eq!(got, expected, "seed {seed}: {:?}", questions[n % questions.len()].0);
            }
            let count = |what| 2 * questions.iter().filter(|(_, of)| *of == what).count() as u64;
            let driver = since(&stats, &before, "steering_answered_total");
            let bounds = count(Answered)..=count(Answered) + count(Large);
            assert!(bounds.contains(&driver), "{driver} not in {bounds:?}: {stats:?}");
            assert_eq!(since(&stats, &before, "steering_taken_total"), answers.len() as u64 - driver);
            let truncated = answers.iter().filter(|answer| answer[2] & 2 != 0).count();
            assert!(truncated > 10, "{truncated}");
            // as the stack counts
            let seen = answers.iter().filter(|answer| answer[3] & 15 == 3).count() as u64;
            assert_eq!(absent(&stats) - absent(&before), seen, "{stats:?}");
            assert_eq!(since(&stats, &before, "dns_answers_total"), answers.len() as u64);
        }
    }
}

fn hosts(version: u8, hosts: &[&str]) -> String {
    let hosts: String = hosts.iter().map(|host| format!("{host} A 10.0.0.{version}\n")).collect();
    format!("$ORIGIN example.com.\n{HEAD}cut NS ns.elsewhere.\ncold NS ns.elsewhere.\n{hosts}")
}

fn reload(server: &Server, text: &str) {
    let next = server.zone_file().with_extension("next");
    fs::write(&next, text).unwrap();
    fs::rename(&next, server.zone_file()).unwrap();
    let out = server.ctl(&["reload"]);
    assert!(out.status.success(), "{out:?}\n{}", server.process.log());
}

/// A name that comes with a reload exists from then on, one that goes does not.
#[test]
fn a_reload_makes_names_exist_and_not() {
    let lab = Lab::with(&Options { queues: 2, ..REACHED }).unwrap();
    let server = Server::start_for(lab.server(), &hosts(0, &["one"]), &[&LISTEN[..], &["--tier", "driver"]].concat());
    wait_for_the_wire(&lab);
    let sockets: Vec<UdpSocket> = (0..4).map(|n| open(&lab, ENDS[n % 2])).collect();
    for version in 1..=10 {
        let (here, gone) = if version % 2 == 0 { ("one", "two") } else { ("two", "one") };
        reload(&server, &hosts(version, &[here]));
        let before = server.stats();
        for (n, socket) in sockets.iter().enumerate() {
            let ask = |name: &str| exchange(socket, &asked(name, 1, [None, Some(1232)][n / 2], n as u16));
            let answer = ask(&format!("{here}.example.com"));
            assert!(answer[3] == 0 && answer.windows(4).any(|octets| octets == [10, 0, 0, version]), "{answer:?}");
            for name in [format!("{gone}.example.com"), format!("x.{here}.example.com"), "never.example.com".into()] {
                assert_eq!(ask(&name)[3], 3, "{name} after reload {version}");
            }
        }
        let stats = server.stats();
        assert_eq!(since(&stats, &before, "steering_answered_total"), 4 * sockets.len() as u64, "{stats:?}");
    }
}

/// With more names than the driver may have none is taken for missing; a cut that is asked for comes to be answered there with all
/// that is below it.
#[test]
fn with_more_names_than_it_may_have_the_driver_says_of_none_that_it_is_missing() {
    let lab = Lab::with(&REACHED).unwrap();
    let names: Vec<String> = (0..200).map(|n| format!("h{n}")).collect();
    let text = hosts(1, &names.iter().map(String::as_str).collect::<Vec<_>>());
    let args = [&LISTEN[..], &["--tier", "driver", "--driver-names", "6"]].concat();
    let server = Server::start_for(lab.server(), &text, &args);
    wait_for_the_wire(&lab);
    let socket = open(&lab, ENDS[0]);
    let rng = &mut Rng::new(3);
    let mut ask = |top: &str| {
        let bytes = 30 + rng.below(40) as usize;
        exchange(&socket, &question(&missing(rng, &wire(top), bytes), 1, Some(1232), 7))
    };
    let mut ask_often = |top: &str, rcode: u8| {
        let before = server.stats();
        for _ in 0..200 {
            let answer = ask(top);
            assert_eq!((answer[3], answer[2] & 2), (rcode, 0), "{answer:?}");
        }
        since(&server.stats(), &before, "steering_answered_total")
    };
    let begun = Instant::now();
    while ask_often("cut.example.com", 0) < 200 {
        assert!(begun.elapsed() < PATIENCE, "{:?}\n{}", server.stats(), server.process.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    for top in ["example.com", "h7.example.com", "ns.example.com"] {
        assert_eq!(ask_often(top, 3), 0, "{top}");
    }
    for n in 0..200 {
        let answer = exchange(&socket, &asked(&format!("h{n}.example.com"), 1, None, n));
        assert_eq!((answer[3], answer[7]), (0, 1), "{answer:?}");
    }
}

/// A flood for random names has one account in the driver and one in the stack, which together send what the rate allows.
#[test]
fn rates_hold_for_names_that_do_not_exist() {
    const RATE: u64 = 40;
    const ASKED: u64 = 1000;
    let lab = Lab::with(&REACHED).unwrap();
    let rate = RATE.to_string();
    let more = ["--tier", "driver", "--rrl-rate", &rate, "--rrl-slip", "2"];
    let server = Server::start(lab.server(), &[&LISTEN[..], &more].concat());
    wait_for_the_wire(&lab);
    let before = server.stats();
    let socket = open(&lab, ENDS[0]);
    socket.set_nonblocking(true).unwrap();
    let begun = Instant::now();
    let rng = &mut Rng::new(4);
    let (mut whole, mut truncated, mut answer) = (0, 0, [0; 1232]);
    let mut take = || {
        while socket.recv(&mut answer).is_ok() {
            *if answer[2] & 2 == 0 { &mut whole } else { &mut truncated } += 1;
        }
        whole + truncated
    };
    for id in 0..ASKED {
        // what lies in the socket takes a page each, and there are few
        take();
        let bytes = 30 + rng.below(60) as usize;
        socket.send(&question(&missing(rng, &wire("example.com"), bytes), 1, None, id as u16)).unwrap();
        if id % 100 == 99 {
            server.wait_until("all questions", |stats| since(stats, &before, "dns_questions_total") > id);
        }
    }
    let seconds = begun.elapsed().as_secs() + 1;
    let sent = || since(&server.stats(), &before, "dns_answers_total");
    assert!(lab::wait_until(|| take() == sent(), PATIENCE), "{:?}", server.stats());
    let stats = server.stats();
    let driver = since(&stats, &before, "steering_answered_total");
    let said = format!("{seconds} s, {whole} whole, {truncated} truncated, {driver} by the driver: {stats:?}");
    assert!(whole <= RATE * (seconds + 1), "{said}");
    assert!(driver >= RATE / 2 && driver <= RATE / 2 * (seconds + 1), "{said}");
    assert!(truncated > ASKED / 4, "{said}");
    assert_eq!(absent(&stats) - absent(&before), whole, "{said}");
}
