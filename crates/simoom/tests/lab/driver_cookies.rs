//! Cookies in the driver tier: those of the stack, judged and counted as by the stack.

use crate::common::{LISTEN, PATIENCE, RawClient, Server, Stats, ZONE, client, simoom, udp_v4, udp_v6, zone};
use crate::driver::{ENDS, REACHED, asked, exchange, wait_for_the_wire};
use lab::frame::{self, ethertype, protocol};
use lab::{CLIENT_V4, CLIENT_V6, Lab, Options, SERVER_V4, SERVER_V6};
use siphasher::sip::SipHasher24;
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

const SECRET: u128 = 0xe5e973e5a6b2a43f48e7dc849e37bfcf;
const NEXT: u128 = 0x445536bcd2513298075a5d379663c962;
const CLIENT: [u8; 8] = *b"\x24\x64\xc4\xab\xcf\x10\xc9\x57";
/// What the driver has of the zone, of each kind of answer.
const HELD: [(&str, &[u16]); 6] = [
    ("example.com", &[2, 6, 16]),
    ("www.example.com", &[1, 28, 65_280]),
    ("alias.example.com", &[1]),
    ("cut.example.com", &[1, 43]),
    ("big.example.com", &[16]),
    ("medium.example.com", &[1]),
];

/// [`ZONE`] with sets that are cut for some of those who have a cookie: a large one, and one of [`long_name`].
fn text() -> String {
    format!("{ZONE}$GENERATE 1-40 medium A 10.0.0.$\n$GENERATE 1-13 {}. A 10.0.1.$\n", long_name())
}

/// Of 255 octets, so that most of an answer stands in its question.
fn long_name() -> String {
    format!("{}.{}.example.com", "l".repeat(61), [59; 3].map(|octets| "o".repeat(octets)).join("."))
}

/// Whether veth leaves room for the answer: 216 octets in front of the question, and sometimes more behind it.
fn fits(question: &[u8], answer: &[u8]) -> bool {
    answer.len() <= question.len() + 210
}

/// A file of secrets, which the user `nobody` may read.
struct SecretFile(TempDir);

impl SecretFile {
    fn new(secrets: &[u128]) -> SecretFile {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let file = SecretFile(dir);
        file.write(secrets);
        file
    }

    fn path(&self) -> String {
        self.0.path().join("secrets").display().to_string()
    }

    fn write(&self, secrets: &[u128]) {
        let text: String = secrets.iter().map(|secret| format!("{secret:032x}\n")).collect();
        let next = self.0.path().join("next");
        fs::write(&next, text).unwrap();
        fs::set_permissions(&next, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&next, Some(65_534), Some(65_534)).unwrap();
        fs::rename(&next, self.path()).unwrap();
    }
}

/// A server with this file of secrets.
fn start(lab: &Lab, file: &SecretFile, text: &str, more: &[&str]) -> Server {
    let server =
        Server::start_for(lab.server(), text, &[&LISTEN[..], &["--cookie-secret", &file.path()], more].concat());
    wait_for_the_wire(lab);
    server
}

fn now_s() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as u32
}

/// The server's part of a cookie (RFC 9018 section 4).
fn baked(secret: u128, unix_s: u32, from: IpAddr) -> [u8; 16] {
    let head = [&[1, 0, 0, 0][..], &unix_s.to_be_bytes()].concat();
    let address = match from {
        IpAddr::V4(from) => from.octets().to_vec(),
        IpAddr::V6(from) => from.octets().to_vec(),
    };
    let hash = SipHasher24::new_with_key(&secret.to_be_bytes()).hash(&[&CLIENT[..], &head, &address].concat());
    [head, hash.to_le_bytes().to_vec()].concat().try_into().unwrap()
}

/// What the client of [`CLIENT`] sends along who has such a cookie.
fn shown(server: &[u8]) -> Vec<u8> {
    [&CLIENT, server].concat()
}

/// A question that offers so much, with such an option COOKIE and more options behind it.
fn with(name: &str, rtype: u16, offered: u16, cookie: &[u8], more: &[u8]) -> Vec<u8> {
    let mut message = asked(name, rtype, Some(offered), rtype ^ 0x5a5a);
    message.truncate(message.len() - 2);
    message.extend((4 + cookie.len() as u16 + more.len() as u16).to_be_bytes());
    message.extend([0, 10]);
    message.extend((cookie.len() as u16).to_be_bytes());
    message.extend([cookie, more].concat());
    message
}

/// An answer's octets up to the time in its cookie, and the server's cookie. Its record has nothing else.
fn opened(answer: &[u8]) -> (Vec<u8>, [u8; 16]) {
    let (rest, server) = answer.split_last_chunk::<16>().unwrap();
    let (_, option) = rest.split_last_chunk::<12>().unwrap();
    assert_eq!(*option, *[&[0, 10, 0, 24], &CLIENT[..]].concat(), "{answer:02x?}");
    ([rest, &server[..4]].concat(), *server)
}

fn second_of(server: &[u8; 16]) -> u32 {
    u32::from_be_bytes([server[4], server[5], server[6], server[7]])
}

/// Panics unless a cookie is of this secret, for this client and of about now.
fn assert_baked(server: &[u8; 16], secret: u128, from: IpAddr) {
    let unix_s = second_of(server);
    assert_eq!(*server, baked(secret, unix_s, from), "for {from}");
    assert!(now_s().abs_diff(unix_s) <= 30, "{unix_s}");
}

/// A socket to one of the [`ENDS`], and the address that it has there.
fn open(lab: &Lab, (any, at): (&str, &str)) -> (UdpSocket, IpAddr) {
    let socket = lab.client().inside(|| UdpSocket::bind(any).unwrap());
    socket.connect(at).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let from = socket.local_addr().unwrap().ip();
    (socket, from)
}

fn since(stats: &Stats, before: &Stats, metric: &str) -> u64 {
    stats.sum(metric, &[]) - before.sum(metric, &[])
}

/// What each kind of server answers from the same zone and secrets: the same octets but for the time and hash of cookies, which
/// are right and which the next server takes.
#[test]
fn cookies_are_made_and_counted_as_by_the_stack() {
    let lab = Lab::with(&REACHED).unwrap();
    let file = SecretFile::new(&[SECRET]);
    let mut expected: Option<Vec<Vec<u8>>> = None;
    // of the server before, by end
    let mut made: [Vec<[u8; 16]>; 2] = Default::default();
    for (more, driver) in [
        (&["--tier", "xdp"][..], false),
        (&["--tier", "driver"], true),
        (&["--tier", "driver", "--mode", "copy"], true),
        (&["--tier", "driver", "--rrl-rate", "1000000"], true),
        (&["--tier", "sockets"], false),
    ] {
        let server = start(&lab, &file, &text(), more);
        let (before, mut got, mut valid) = (server.stats(), Vec::new(), 0);
        // with and without such cookies
        let mut fitting = [0; 2];
        for (end, made) in ENDS.into_iter().zip(&mut made) {
            let (socket, from) = open(&lab, end);
            let taken = if made.is_empty() { vec![baked(SECRET, now_s() - 1000, from)] } else { std::mem::take(made) };
            let mut taken = taken.iter().cycle();
            // about the sizes at which sets leave
            let sizes = (600..760).step_by(7).chain([0, 512, 1232, 4096]);
            let some = sizes.flat_map(|size| HELD.map(|(name, types)| (size, name.to_owned(), types)));
            let some: Vec<_> = some.chain((508..524).map(|size| (size, long_name(), &[1][..]))).collect();
            for (n, (size, name, types)) in some.iter().enumerate() {
                let rtype = types[n / HELD.len() % types.len()];
                let server = taken.next().unwrap();
                let mut forged = *server;
                forged[8 + n % 8] ^= 1;
                for (kind, cookie) in [CLIENT.to_vec(), shown(&forged), shown(server)].into_iter().enumerate() {
                    let question = with(name, rtype, *size, &cookie, &[]);
                    let answer = exchange(&socket, &question);
                    fitting[usize::from(kind == 2)] += u64::from(fits(&question, &answer));
                    let (answer, server) = opened(&answer);
                    assert_baked(&server, SECRET, from);
                    got.push(answer);
                    made.push(server);
                }
                valid += 1;
            }
        }
        let expected = expected.get_or_insert_with(|| got.clone());
        assert_eq!(got.len(), expected.len());
        for (n, (got, expected)) in got.iter().zip(&*expected).enumerate() {
            assert_eq!(got, expected, "answer {n} of {more:?}");
        }
        assert!(got.iter().filter(|answer| answer[2] & 2 != 0).count() > 100, "some are truncated");
        assert!(fitting.iter().sum::<u64>() > 900, "{fitting:?}");
        let stats = server.stats();
        let since = |metric| since(&stats, &before, metric);
        let asked = got.len() as u64;
        assert_eq!(since("dns_cookies_valid_total"), valid, "{more:?}: {stats:?}");
        assert_eq!(since("dns_answers_total"), asked, "{more:?}: {stats:?}");
        let by_driver = [since("steering_answered_total"), since("steering_cookies_valid_total")];
        let least = [fitting[0] + fitting[1], fitting[1]];
        let alike = by_driver.iter().zip(least).all(|(n, least)| if driver { *n >= least } else { *n == 0 });
        assert!(alike, "{by_driver:?} by the driver, of which {least:?} fit, {more:?}: {stats:?}");
    }
}

/// Cookies of other times, secrets and clients, and messages that are odd: each tier answers, judges and counts alike.
#[test]
fn what_is_no_good_cookie_is_the_same_to_each_tier() {
    let lab = Lab::with(&REACHED).unwrap();
    let file = SecretFile::new(&[SECRET]);
    let mut expected = None;
    for tier in ["xdp", "driver", "sockets"] {
        let driver = tier == "driver";
        let server = start(&lab, &file, ZONE, &["--tier", tier]);
        let mut seen = Vec::new();
        for end in ENDS {
            let (socket, from) = open(&lab, end);
            let other = if from.is_ipv4() { "198.18.0.77" } else { "2001:db8:18::77" };
            let at = |ago: i32| now_s().wrapping_sub_signed(ago);
            let good = baked(SECRET, at(0), from);
            let odd = |bytes: usize| [&CLIENT[..], &[7; 40]].concat()[..bytes].to_vec();
            // without a question (RFC 7873 section 5.4)
            let alone = |cookie: &[u8]| {
                let mut message = with("www.example.com", 1, 1232, cookie, &[]);
                message[5] = 0;
                message.drain(12..33);
                message
            };
            let questions = [
                // by the driver: fresh, old, early; of another client, secret and form
                ("good", with("www.example.com", 1, 1232, &shown(&good), &[])),
                ("old, but good", with("www.example.com", 1, 1232, &shown(&baked(SECRET, at(3500), from)), &[])),
                ("early, but good", with("www.example.com", 1, 1232, &shown(&baked(SECRET, at(-250), from)), &[])),
                ("too old", with("www.example.com", 1, 1232, &shown(&baked(SECRET, at(3700), from)), &[])),
                ("too early", with("www.example.com", 1, 1232, &shown(&baked(SECRET, at(-400), from)), &[])),
                (
                    "another's",
                    with("www.example.com", 1, 1232, &shown(&baked(SECRET, at(0), other.parse().unwrap())), &[]),
                ),
                ("of another secret", with("www.example.com", 1, 1232, &shown(&baked(NEXT, at(0), from)), &[])),
                ("of another form", with("www.example.com", 1, 1232, &shown(&[2; 16]), &[])),
                // by the stack
                ("16 octets", with("www.example.com", 1, 1232, &odd(16), &[])),
                ("40 octets", with("www.example.com", 1, 1232, &odd(40), &[])),
                ("NSID", with("www.example.com", 1, 1232, &shown(&good), &[0, 3, 0, 0])),
                ("twice", with("www.example.com", 1, 1232, &CLIENT, &[&[0, 10, 0, 8], &CLIENT[..]].concat())),
                ("DO", {
                    let mut message = with("www.example.com", 1, 1232, &shown(&good), &[]);
                    let at = message.len() - 32;
                    message[at] = 0x80;
                    message
                }),
                ("a name of nobody's", with("absent.elsewhere", 1, 1232, &CLIENT, &[])),
                ("alone", alone(&CLIENT)),
                ("alone, and good", alone(&shown(&good))),
                ("alone, of another secret", alone(&shown(&baked(NEXT, at(0), from)))),
                ("of a NOTIFY", {
                    let mut message = with("www.example.com", 1, 1232, &shown(&good), &[]);
                    message[2] = 4 << 3;
                    message
                }),
                // malformed
                ("alone, of 7 octets", alone(&odd(7))),
                ("7 octets", with("www.example.com", 1, 1232, &odd(7), &[])),
                ("9 octets", with("www.example.com", 1, 1232, &odd(9), &[])),
                ("15 octets", with("www.example.com", 1, 1232, &odd(15), &[])),
                ("41 octets", with("www.example.com", 1, 1232, &odd(41), &[])),
                ("none", with("www.example.com", 1, 1232, &[], &[])),
                ("an octet too many", {
                    let mut message = with("www.example.com", 1, 1232, &CLIENT, &[]);
                    message.push(0);
                    message
                }),
            ];
            for (n, (what, question)) in questions.into_iter().enumerate() {
                let before = server.stats();
                let answer = exchange(&socket, &question);
                let stats = server.stats();
                let shows = answer.windows(12).any(|octets| octets == [&[0, 10, 0, 24], &CLIENT[..]].concat());
                // an extended error stands behind the cookie (RFC 8914)
                let octets = if shows && what != "a name of nobody's" {
                    let (octets, server) = opened(&answer);
                    assert_baked(&server, SECRET, from);
                    octets
                } else if shows {
                    answer[..answer.len() - 18].to_vec()
                } else {
                    answer
                };
                let valid = since(&stats, &before, "dns_cookies_valid_total");
                assert_eq!(since(&stats, &before, "dns_answers_total"), 1, "{what} by {tier}");
                let by_driver = since(&stats, &before, "steering_answered_total");
                assert_eq!(by_driver, u64::from(driver && n < 8), "{what} by {tier}");
                seen.push((what, octets, valid));
            }
        }
        let valid = seen.iter().filter(|(.., valid)| *valid == 1).map(|(what, ..)| *what);
        let expect = ["good", "old, but good", "early, but good", "NSID", "DO", "alone, and good", "of a NOTIFY"];
        assert_eq!(valid.collect::<Vec<_>>(), [expect, expect].concat(), "{tier}");
        assert_eq!(*expected.get_or_insert_with(|| seen.clone()), seen, "{tier}");
    }
}

/// What real clients send is answered by the driver, and they find their cookie in it.
#[test]
fn usual_clients_keep_the_driver_s_cookie() {
    let lab = Lab::with(&REACHED).unwrap();
    let server = Server::start(lab.server(), &[&LISTEN[..], &["--tier", "driver"]].concat());
    wait_for_the_wire(&lab);
    let before = server.stats();
    for at in ["198.18.0.1", "2001:db8:18::1"] {
        let client_alone = client(&lab, &format!("dig +cookie=2464c4abcf10c957 @{at} www.example.com A"));
        let line =
            client_alone.lines().find(|line| line.contains("COOKIE: ")).unwrap_or_else(|| panic!("{client_alone}"));
        assert!(line.ends_with(" (good)") && client_alone.contains("198.18.0.80"), "{client_alone}");
        let cookie = line.split_whitespace().nth(2).unwrap();
        assert_eq!(cookie.len(), 48, "{line}");
        let both = client(&lab, &format!("dig +cookie={cookie} @{at} www.example.com A"));
        assert!(both.contains("(good)"), "{both}");
        assert!(client(&lab, &format!("kdig +cookie={cookie} @{at} www.example.com A")).contains("198.18.0.80"));
        assert!(client(&lab, &format!("kdig +cookie @{at} www.example.com A")).contains("198.18.0.80"));
    }
    let stats = server.stats();
    assert_eq!(since(&stats, &before, "steering_answered_total"), 8, "{stats:?}");
    assert_eq!(since(&stats, &before, "dns_cookies_valid_total"), 4, "{stats:?}");
    assert_eq!(stats.taken(), before.taken());
}

#[test]
fn a_tagged_question_s_cookie_comes_with_the_tag() {
    let lab = Lab::with(&REACHED).unwrap();
    let file = SecretFile::new(&[SECRET]);
    let server = start(&lab, &file, ZONE, &["--tier", "driver"]);
    let before = server.stats();
    let mut raw = RawClient::new(&lab);
    for (name, rtype) in [("www.example.com", 1), ("medium.example.com", 16), ("ns.example.com", 28)] {
        for from in [IpAddr::from(CLIENT_V4), CLIENT_V6.into()] {
            let good = shown(&baked(SECRET, now_s(), from));
            for cookie in [&CLIENT[..], &good] {
                let question = with(name, rtype, 1232, cookie, &[]);
                let id = u16::from_be_bytes([question[0], question[1]]);
                let (kind, packet) = match from {
                    IpAddr::V4(_) => {
                        let ip = frame::Ipv4::new(CLIENT_V4, SERVER_V4, protocol::UDP);
                        (ethertype::IPV4, ip.packet(&udp_v4(&question)))
                    }
                    IpAddr::V6(_) => {
                        let datagram = udp_v6(&question);
                        (ethertype::IPV6, frame::ipv6(CLIENT_V6, SERVER_V6, protocol::UDP, &[], &datagram))
                    }
                };
                raw.raw.send(&frame::ethernet_vlan(raw.them, raw.us, 0x6005, kind, &packet)).unwrap();
                let (got, at) = raw.answer(id);
                assert_eq!((&got[12..14], got[14] & 15, got[15]), (&[0x81, 0][..], 0, 5), "VLAN 5: {got:02x?}");
                let (_, server) = opened(&got[at..]);
                assert_baked(&server, SECRET, from);
            }
        }
    }
    let stats = server.stats();
    // the largest answers are the stack's where their frames have no room
    let driver = since(&stats, &before, "steering_answered_total");
    assert!((8..=12).contains(&driver), "{stats:?}");
    assert_eq!(since(&stats, &before, "dns_cookies_valid_total"), 6, "{stats:?}");
}

#[test]
fn without_cookies_both_tiers_ignore_them() {
    let lab = Lab::with(&REACHED).unwrap();
    let mut expected = None;
    for driver in [false, true] {
        let tier = if driver { "driver" } else { "xdp" };
        let args = [&LISTEN[..], &["--tier", tier, "--cookies", "off"]].concat();
        let server = Server::start_for(lab.server(), &text(), &args);
        wait_for_the_wire(&lab);
        let (before, mut got, mut fitting) = (server.stats(), Vec::new(), 0);
        for end in ENDS {
            let (socket, _) = open(&lab, end);
            for size in [0, 512, 680, 690, 710, 720, 1232] {
                for (name, rtype) in HELD.iter().flat_map(|(name, types)| types.iter().map(move |it| (*name, *it))) {
                    for cookie in [&CLIENT[..], &[3; 24]] {
                        let question = with(name, rtype, size, cookie, &[]);
                        got.push(exchange(&socket, &question));
                        fitting += u64::from(fits(&question, &got[got.len() - 1]));
                    }
                }
            }
        }
        let stats = server.stats();
        // no cookies by their lengths, and passed over all the same, by the stack
        let (socket, _) = open(&lab, ENDS[0]);
        let plain = exchange(&socket, &with("www.example.com", 1, 1232, &[3; 24], &[]));
        assert_eq!((plain[3] & 15, plain[7]), (0, 1));
        for bytes in [0, 7, 9, 15, 41] {
            let answer = exchange(&socket, &with("www.example.com", 1, 1232, &vec![3; bytes], &[]));
            assert_eq!(answer, plain, "{bytes} octets, {tier}");
        }
        let asked = got.len() as u64;
        let by_driver = since(&stats, &before, "steering_answered_total");
        assert!(if driver { by_driver >= fitting } else { by_driver == 0 }, "{by_driver}, {fitting} fit: {stats:?}");
        assert!(fitting > asked / 2, "{fitting} of {asked}");
        assert_eq!(since(&stats, &before, "dns_answers_total"), asked, "{stats:?}");
        assert_eq!(stats.sum("dns_cookies_valid_total", &[]), 0);
        assert!(*expected.get_or_insert_with(|| got.clone()) == got, "{tier} answers otherwise");
    }
}

/// Who shows his cookie is answered beyond the rate, by the driver alone.
#[test]
fn a_cookie_exempts_from_the_rate_in_the_driver() {
    const ASKED: u64 = 200;
    let lab = Lab::with(&REACHED).unwrap();
    let file = SecretFile::new(&[SECRET]);
    let server = start(&lab, &file, ZONE, &["--tier", "driver", "--rrl-rate", "2", "--rrl-slip", "0"]);
    for end in ENDS {
        let (socket, from) = open(&lab, end);
        let before = server.stats();
        let good = shown(&baked(SECRET, now_s(), from));
        for _ in 0..ASKED {
            let (_, server) = opened(&exchange(&socket, &with("www.example.com", 1, 1232, &good, &[])));
            assert_baked(&server, SECRET, from);
        }
        let stats = server.stats();
        assert_eq!(since(&stats, &before, "steering_answered_total"), ASKED, "{stats:?}");
        assert_eq!(since(&stats, &before, "dns_cookies_valid_total"), ASKED, "{stats:?}");
        assert_eq!(since(&stats, &before, "steering_rate_reached_total"), 0, "{stats:?}");
        // who has none yet, or a forged one, is limited
        let begun = Instant::now();
        for n in 0..ASKED {
            let cookie = if n % 2 == 0 { CLIENT.to_vec() } else { shown(&[1; 16]) };
            socket.send(&with("www.example.com", 1, 1232, &cookie, &[])).unwrap();
        }
        let all = |stats: &Stats| {
            let dropped = stats.sum("dns_drops_total", &[("reason", "rate limited")]);
            dropped - before.sum("dns_drops_total", &[("reason", "rate limited")])
                + since(stats, &before, "dns_answers_total")
                >= 2 * ASKED
        };
        server.wait_until("all questions", all);
        let seconds = begun.elapsed().as_secs() + 1;
        let answered = since(&server.stats(), &before, "dns_answers_total") - ASKED;
        assert!(answered <= 2 * (seconds + 1), "{answered} in {seconds} s");
        let next = server.stats();
        assert_eq!(since(&next, &before, "dns_cookies_valid_total"), ASKED, "{next:?}");
    }
}

/// Secrets are rolled over as RFC 9018 section 5 says: no client notices, and what the driver does not know is the stack's.
#[test]
fn secrets_roll_over_in_both_tiers() {
    let lab = Lab::with(&REACHED).unwrap();
    let file = SecretFile::new(&[SECRET]);
    let server = start(&lab, &file, ZONE, &["--tier", "driver", "--user", "nobody"]);
    // the secrets, which one makes cookies, and who takes the first's: the driver, the stack, nobody
    for (secrets, active, first) in [
        (&[SECRET][..], SECRET, (1, 1)),
        (&[SECRET, NEXT], SECRET, (1, 1)),
        (&[NEXT, SECRET], NEXT, (0, 1)),
        (&[NEXT], NEXT, (1, 0)),
    ] {
        file.write(secrets);
        let out = server.ctl(&["reload"]);
        assert!(out.status.success(), "{out:?}\n{}", server.process.log());
        for end in ENDS {
            let (socket, from) = open(&lab, end);
            let old = baked(SECRET, now_s() - 10, from);
            let fresh = baked(active, now_s() - 10, from);
            for (cookie, expected) in [(old, first), (fresh, (1, 1))] {
                let before = server.stats();
                let (_, made) = opened(&exchange(&socket, &with("www.example.com", 1, 1232, &shown(&cookie), &[])));
                assert_baked(&made, active, from);
                let stats = server.stats();
                let counted = ["steering_answered_total", "dns_cookies_valid_total"];
                let [driver, valid] = counted.map(|metric| since(&stats, &before, metric));
                assert_eq!((driver, valid), expected, "{cookie:02x?} while there are {secrets:02x?}: {stats:?}");
            }
        }
    }
}

/// When `ctl reload` has returned nobody makes a cookie of the secret before; meanwhile others ask all the time, and none gets
/// one of half a secret, or of an older one than he had.
#[test]
fn no_cookie_of_an_old_secret_comes_after_a_reload_has_returned() {
    const RELOADS: u128 = 40;
    const ASKED: u64 = 10;
    let lab = Lab::with(&Options { queues: 2, ..REACHED }).unwrap();
    let secret = |n: u128| SECRET.wrapping_mul(2 * n + 1);
    let file = SecretFile::new(&[secret(0)]);
    let server = start(&lab, &file, ZONE, &["--tier", "driver", "--user", "nobody"]);
    fs::set_permissions(server.zone_file().parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let question = with("www.example.com", 1, 1232, &CLIENT, &[]);
    // which secret a cookie is of, from that of `least` on
    let number = |answer: &[u8], from: IpAddr, least: u128| {
        let (_, server) = opened(answer);
        let made = (least..=RELOADS).find(|n| baked(secret(*n), second_of(&server), from) == server);
        made.unwrap_or_else(|| panic!("{server:02x?} is of no secret from {least} on"))
    };
    let (stop, before) = (AtomicBool::new(false), server.stats());
    let others: u64 = std::thread::scope(|scope| {
        let others = ENDS.map(|end| {
            let ((socket, from), stop, question, number) = (open(&lab, end), &stop, &question, &number);
            scope.spawn(move || {
                let (mut asked, mut last) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    last = number(&exchange(&socket, question), from, last);
                    asked += 1;
                }
                asked
            })
        });
        for n in 1..=RELOADS {
            file.write(&[secret(n)]);
            // with the zone now and then
            if n % 4 == 0 {
                let next = server.zone_file().with_extension("next");
                fs::write(&next, ZONE.replace("hostmaster 1 ", &format!("hostmaster {n} "))).unwrap();
                fs::rename(&next, server.zone_file()).unwrap();
            }
            let out = server.ctl(&["reload"]);
            assert!(out.status.success(), "{out:?}\n{}", server.process.log());
            for end in ENDS {
                // a flow of its own, and so of either queue
                let (socket, from) = open(&lab, end);
                for _ in 0..ASKED {
                    assert_eq!(number(&exchange(&socket, &question), from, n), n, "at {}", end.1);
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        others.into_iter().map(|other| other.join().unwrap()).sum()
    });
    let stats = server.stats();
    let after = 2 * ASKED * RELOADS as u64;
    let driver = since(&stats, &before, "steering_answered_total");
    assert_eq!(driver + since(&stats, &before, "steering_taken_total"), others + after, "{stats:?}");
    // all of those after a reload, at least
    assert!(driver >= after, "{driver} of {}: {stats:?}", others + after);
}

/// Both tiers read one clock, whose zero is the same: asked in turn they tell the same second, but for who read it just before
/// one ended.
#[test]
fn both_tiers_tell_the_same_second() {
    let lab = Lab::with(&REACHED).unwrap();
    for (through, said) in [(&[][..], "the machine's clock"), (&["unshare", "-T", "--monotonic", "100000"], "its own")]
    {
        let file = SecretFile::new(&[SECRET]);
        let (_dir, zone) = zone(ZONE);
        let mut command = match through.split_first() {
            None => simoom(lab.server()),
            Some((unshare, options)) => {
                let mut command = lab.server().command(unshare);
                command.args(options).arg(env!("CARGO_BIN_EXE_simoom"));
                command
            }
        };
        command.arg("dns").args(LISTEN).args(["--tier", "driver", "--cookie-secret", &file.path()]).arg(zone);
        let server = Server::spawn(command);
        let space = |process: &str| fs::read_link(format!("/proc/{process}/ns/time")).unwrap();
        let apart = space("self") != space(&server.process.id().to_string());
        assert_eq!(apart, !through.is_empty(), "a clock of its own");
        wait_for_the_wire(&lab);
        let (socket, from) = open(&lab, ENDS[0]);
        // NSID is the stack's
        let questions = [&[][..], &[0, 3, 0, 0]].map(|more| with("www.example.com", 1, 1232, &CLIENT, more));
        let tell = |question: &Vec<u8>| {
            let (_, made) = opened(&exchange(&socket, question));
            assert_baked(&made, SECRET, from);
            second_of(&made)
        };
        let (before, begun) = (server.stats(), Instant::now());
        let (mut asked, mut differ, mut first) = (0, 0, tell(&questions[0]));
        while begun.elapsed() < Duration::from_secs(4) {
            let (stack, last) = (tell(&questions[1]), tell(&questions[0]));
            // beside a second's end there is no telling
            if first == last {
                assert!(stack.abs_diff(first) <= 1, "{stack}, {first}");
                (asked, differ) = (asked + 1, differ + u32::from(stack != first));
            }
            first = last;
        }
        // one for each second's end, and as many for those that the machine's load makes later
        assert!(asked >= 20 && differ <= 10 + asked / 100, "{said}: {differ} of {asked} differ");
        let stats = server.stats();
        assert!(since(&stats, &before, "steering_answered_total") > u64::from(asked), "{stats:?}");
        assert!(since(&stats, &before, "steering_taken_total") >= u64::from(asked), "{stats:?}");
    }
}

/// The machine's clock as a program reads it that is started with this: other than the real one by what a file says.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
static int (*real)(clockid_t, struct timespec *);
static const volatile int64_t *ahead_s;
__attribute__((constructor)) static void begin(void) {
  real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int file = open(getenv("AHEAD_S"), O_RDONLY);
  ahead_s = mmap(0, sizeof *ahead_s, PROT_READ, MAP_SHARED, file, 0);
  if (!real || ahead_s == MAP_FAILED)
    abort();
  close(file);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = real(clock, now);
  if (!failed && clock == CLOCK_REALTIME)
    now->tv_sec += *ahead_s;
  return failed;
}
"#;

/// When the machine's clock is set, cookies of the driver and of the stack tell its time, and those of another server that had it right
/// are taken.
#[test]
fn cookies_follow_the_machine_s_clock() {
    const BEHIND_S: i64 = 600;
    let dir = tempfile::tempdir().unwrap();
    let [source, clock, ahead] = ["clock.c", "clock.so", "ahead"].map(|name| dir.path().join(name));
    fs::write(&source, CLOCK).unwrap();
    let mut gcc = std::process::Command::new("gcc");
    assert!(gcc.args(["-shared", "-fPIC", "-o"]).arg(&clock).arg(&source).arg("-ldl").status().unwrap().success());
    fs::write(&ahead, (-BEHIND_S).to_ne_bytes()).unwrap();
    let lab = Lab::with(&REACHED).unwrap();
    let file = SecretFile::new(&[SECRET]);
    let (_zone, zone) = zone(ZONE);
    let mut command = simoom(lab.server());
    command.env("LD_PRELOAD", &clock).env("AHEAD_S", &ahead);
    command.arg("dns").args(LISTEN).args(["--tier", "driver", "--cookie-secret", &file.path()]).arg(zone);
    let server = Server::spawn(command);
    wait_for_the_wire(&lab);
    let (socket, from) = open(&lab, ENDS[0]);
    // by the driver, and, with an option that it leaves, by the stack
    let both = |cookie: &[u8]| {
        let before = server.stats();
        let answers = [&[][..], &[0, 3, 0, 0]]
            .map(|more| exchange(&socket, &with("www.example.com", 1, 1232, cookie, more)))
            .map(|answer| opened(&answer).1);
        let stats = server.stats();
        let behind = answers.map(|server| {
            assert_eq!(server, baked(SECRET, second_of(&server), from));
            i64::from(now_s()) - i64::from(second_of(&server))
        });
        (behind, ["steering_answered_total", "dns_cookies_valid_total"].map(|name| since(&stats, &before, name)))
    };
    let near = |behind: i64, expected: i64| (behind - expected).abs() <= 30;
    let (behind, counted) = both(&shown(&baked(SECRET, now_s(), from)));
    assert!(behind.iter().all(|behind| near(*behind, BEHIND_S)) && counted == [1, 0], "{behind:?}, {counted:?}");
    // never shorter, since it is mapped
    let to = fs::OpenOptions::new().write(true).open(&ahead).unwrap();
    to.write_all_at(&0i64.to_ne_bytes(), 0).unwrap();
    let begun = Instant::now();
    // until it has the new time the driver leaves what has a cookie to the stack, which tells it already
    let follow = || {
        let (behind, [answered, _]) = both(&CLIENT);
        answered == 1 && behind.iter().all(|behind| near(*behind, 0))
    };
    while !follow() {
        assert!(begun.elapsed() < PATIENCE, "{}", server.process.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(both(&shown(&baked(SECRET, now_s(), from))).1, [1, 2]);
    assert!(server.process.log().contains("the machine's clock was set"), "{}", server.process.log());
}
