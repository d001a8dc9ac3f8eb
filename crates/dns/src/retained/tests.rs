//! A server that retains is held against one that does not: the same octets, the same counts, whatever is asked of both.

use super::{MESSAGE_BYTES, Retained, SLOT_BYTES, WAYS};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use crate::serve::{Options, Server};
use crate::table::Tables;
use crate::testing::{question, zone};
use crate::{QuestionCompression, cookie, rrl};
use app::{Addresses, Datagram, Ecn, Listener, Service};
use base::Instant;
use base::counter::Report;
use base::publish::Publisher;
use base::rng::Rng;
use zone::{Name, Rtype};

const ZONE: &str = "\
$TTL 60
@ SOA ns h 1 2 3 4 5
@ NS ns
ns A 192.0.2.1
ns AAAA 2001:db8::1
www A 192.0.2.2
*.wild A 192.0.2.3
alias CNAME www
cut NS ns.cut
ns.cut A 192.0.2.4
dn DNAME wild
big TXT \"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\"
$GENERATE 1-40 big A 192.0.2.$
$GENERATE 1-40 big AAAA 2001:db8::$
$GENERATE 1-4 middle AAAA 2001:db8::$
";
const NAMES: [&str; 14] = [
    "example",
    "ns.example",
    "www.example",
    "wWw.Example",
    "a.wild.example",
    "b.wild.example",
    "alias.example",
    "x.cut.example",
    "y.dn.example",
    "big.example",
    "middle.example",
    "nope.example",
    "other",
    "a-rather-long-name-that-no-short-copy-holds.with-another-long-label-in-it.wild.example",
];

fn tables(address: &str) -> Arc<Tables> {
    let text = ZONE.replace("www A 192.0.2.2", &format!("www A {address}"));
    Arc::new(Tables::build(vec![zone("example.", &text)], 7).unwrap())
}

/// One of few questions, now and then mangled or with what makes it no plain one.
fn draw(rng: &mut Rng) -> Vec<u8> {
    if rng.below(2) == 0 {
        return www(rng.below(256) as u8); // so that the smallest table has its hits
    }
    let pick = |rng: &mut Rng, n: usize| rng.below(n as u64) as usize;
    let name: Name = NAMES[pick(rng, NAMES.len())].parse().unwrap();
    let rtype = [Rtype::A, Rtype::A, Rtype::AAAA, Rtype::TXT, Rtype::ANY, Rtype::NS, Rtype::AXFR][pick(rng, 7)];
    let size = [None, Some(0), Some(512), Some(1232), Some(4096)][pick(rng, 5)];
    let mut message = question(name.view(), rtype, size);
    (message[0], message[1]) = (rng.below(256) as u8, rng.below(256) as u8);
    if pick(rng, 8) == 0 {
        message[2] ^= 1; // RD
    }
    let opt_at = message.len() - 11;
    if size.is_some() {
        match pick(rng, 8) {
            0 => message[opt_at + 7] = 0x80, // DO
            1 => message[opt_at + 6] = 1,    // version
            2 => {
                message[opt_at + 10] = 12;
                message.extend_from_slice(b"\0\x0a\0\x08cookieme");
            }
            3 => {
                message[opt_at + 10] = 4;
                message.extend_from_slice(b"\0\x03\0\0");
            }
            _ => {}
        }
    }
    match pick(rng, 30) {
        0 => message.truncate(pick(rng, message.len())),
        1 => {
            let at = pick(rng, message.len());
            message[at] ^= 1 << pick(rng, 8);
        }
        2 => message.push(0),
        _ => {}
    }
    message
}

fn figures(server: &Server) -> Vec<(String, u64)> {
    let mut figures = Vec::new();
    server.stats().report(&mut |figure| {
        if !figure.name.starts_with("dns_retained") {
            figures.push((format!("{}{:?}", figure.name, figure.labels), figure.value));
        }
    });
    figures
}

/// Answers to a burst, each of which came from one of few networks into a slot of `capacity` octets.
fn serve(server: &mut Server, now: Instant, burst: &[(Vec<u8>, usize, u8)]) -> Vec<Option<Vec<u8>>> {
    let mut slots: Vec<Vec<u8>> = burst
        .iter()
        .map(|(message, capacity, _)| {
            let mut slot = vec![0xee; (*capacity).max(message.len())];
            slot[..message.len()].copy_from_slice(message);
            slot
        })
        .collect();
    let mut datagrams: Vec<_> = slots
        .iter_mut()
        .zip(burst)
        .map(|(slot, (message, _, peer))| {
            let peer = match peer % 2 {
                0 => format!("198.51.{peer}.7:1000").parse().unwrap(),
                _ => format!("[2001:db8:{peer}::7]:1000").parse().unwrap(),
            };
            let addresses = Addresses { local: "192.0.2.1:53".parse().unwrap(), peer };
            Datagram::new(slot, message.len(), Ecn::NotEct, addresses)
        })
        .collect();
    server.cycle(now);
    server.datagrams(now, Listener(0), &mut datagrams);
    let lengths: Vec<_> = datagrams.iter().map(|datagram| datagram.reply_bytes()).collect();
    slots.iter().zip(lengths).map(|(slot, bytes)| Some(slot[..bytes?].to_vec())).collect()
}

fn options(retained_bytes: usize, limited: bool, accept: bool, udp_bytes: u16) -> Options {
    let few = rrl::Config { slip: 2, ..rrl::Config::default() };
    Options {
        retained_bytes,
        udp_bytes,
        question_compression: if accept { QuestionCompression::Accept } else { QuestionCompression::Refuse },
        nsid: b"ns1".to_vec(),
        cookies: Some(cookie::Config::fixed(vec![[1; 16]], 1_700_000_000)),
        rrl: limited.then_some(rrl::Config {
            responses_per_second: 5,
            referrals_per_second: 4,
            nodata_per_second: 3,
            nxdomains_per_second: 2,
            errors_per_second: 1,
            ..few
        }),
        ..Options::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn retained_answers_are_those_made_anew(
        seed: u64,
        sets in 1usize..40,
        limited: bool,
        accept: bool,
        udp_bytes in prop::sample::select(vec![512u16, 1232, 4096]),
    ) {
        let publisher = Publisher::new(tables("192.0.2.2"));
        let retained_bytes = sets * WAYS * SLOT_BYTES;
        let mut plain = Server::new(publisher.reader(), options(0, limited, accept, udp_bytes));
        let mut retaining = Server::new(publisher.reader(), options(retained_bytes, limited, accept, udp_bytes));
        let mut rng = Rng::new(seed);
        for round in 0..60u64 {
            if round % 16 == 15 {
                publisher.publish(tables(&format!("203.0.113.{round}")));
            }
            let now = Instant::ZERO + Duration::from_millis(round * 90);
            let burst: Vec<_> = (0..=rng.below(90))
                .map(|_| (draw(&mut rng), [1472, 1472, 1452, 600, 100][rng.below(5) as usize], rng.below(4) as u8))
                .collect();
            prop_assert_eq!(serve(&mut plain, now, &burst), serve(&mut retaining, now, &burst), "round {}", round);
        }
        prop_assert_eq!(figures(&plain), figures(&retaining));
        prop_assert_eq!(plain.stats().retained.get(), 0);
        let retained = retaining.stats().retained.get();
        prop_assert!(retained > if limited { 0 } else { 100 }, "{} were retained", retained);
    }
}

fn www(id: u8) -> Vec<u8> {
    let name: Name = "www.example".parse().unwrap();
    let mut message = question(name.view(), Rtype::A, Some(1232));
    message[1] = id;
    message
}

#[test]
fn new_tables_end_what_was_retained() {
    let publisher = Publisher::new(tables("192.0.2.2"));
    let mut server = Server::new(publisher.reader(), Options { retained_bytes: 1 << 20, ..Options::default() });
    let mut ask = |id| serve(&mut server, Instant::ZERO, &[(www(id), 1472, 0)]).remove(0).unwrap();
    let first = ask(1);
    assert!(first.windows(4).any(|octets| octets == [192, 0, 2, 2]));
    let again = ask(2);
    assert_eq!((again[1], &again[2..]), (2, &first[2..]));
    publisher.publish(tables("203.0.113.9"));
    let after = ask(3);
    assert!(after.windows(4).any(|octets| octets == [203, 0, 113, 9]), "a stale answer");
    assert_eq!(server.stats().retained.get(), 1);
}

#[test]
fn a_flood_is_limited_though_its_answer_is_retained() {
    let publisher = Publisher::new(tables("192.0.2.2"));
    let mut server = Server::new(publisher.reader(), options(1 << 20, true, false, 1232));
    let burst: Vec<_> = (0..64).map(|id| (www(id), 1472, 0)).collect();
    let answers = serve(&mut server, Instant::ZERO, &burst);
    let truncated = answers.iter().flatten().filter(|answer| answer[2] & 2 != 0).count();
    let whole = answers.iter().flatten().count() - truncated;
    // five a second, and every second of the rest slips
    assert_eq!((whole, truncated), (5, 29));
    let stats = server.stats();
    assert_eq!((stats.rcodes(0), stats.drops(crate::DropReason::RateLimited)), (34, 30));
    assert_eq!(stats.retained.get(), 4);
}

#[test]
fn memory_is_what_was_given_and_is_shown() {
    for (bytes, sets) in [(0, None), (WAYS * SLOT_BYTES - 1, None), (WAYS * SLOT_BYTES, Some(1)), (1 << 20, Some(512))]
    {
        let retained = Retained::new(bytes);
        assert_eq!(retained.as_ref().map(|retained| retained.tags.len()), sets, "{bytes}");
        if let Some(retained) = retained {
            assert!(retained.bytes() <= bytes + bytes / 32);
        }
    }
    let publisher = Publisher::new(tables("192.0.2.2"));
    let server = Server::new(publisher.reader(), Options { retained_bytes: 1 << 20, ..Options::default() });
    let stats = server.stats();
    let shown = || {
        let mut shown = None;
        stats.report(&mut |figure| {
            if figure.name == "dns_retained_bytes" {
                shown = Some((figure.gauge, figure.value));
            }
        });
        shown
    };
    assert_eq!(shown(), Some((true, (1 << 20) + 512 * 16)));
    drop(server);
    assert_eq!(shown(), Some((true, 0)));
    // the longest message that is retained fills its slot
    assert_eq!(MESSAGE_BYTES + 40, SLOT_BYTES);
}
