use super::*;
use crate::queries::{Content, Synthetic};
use crate::reflect;
use port::pipe::{self, Pipe};
use proptest::prelude::*;
use std::net::{IpAddr, SocketAddr};

const CLIENT_MAC: port::Mac = [2, 0, 0, 0, 0, 1];
const SERVER_MAC: port::Mac = [2, 0, 0, 0, 0, 2];

fn ends(v6: bool) -> Ends {
    let (client, server) = if v6 { ("2001:db8::2", "[2001:db8::1]:53") } else { ("198.18.0.2", "198.18.0.1:53") };
    Ends {
        client_mac: CLIENT_MAC,
        server_mac: SERVER_MAC,
        client: client.parse::<IpAddr>().unwrap(),
        server: server.parse::<SocketAddr>().unwrap(),
    }
}

fn zone(content: Content) -> Synthetic {
    Synthetic { origin: "example.com".into(), names: 100, content }
}

fn plan(rate: Option<f64>, ms: u64) -> Plan {
    let (span, stragglers) = (Duration::from_millis(ms), Duration::from_millis(500));
    Plan { rate, span, stragglers, check_every: 1, wait: Wait::Yield, burst_frames: 64, progress: false }
}

fn pair() -> (Pipe, Pipe) {
    let (mut clients, mut servers) = pipe::pair(&pipe::Config::default()).unwrap();
    (clients.remove(0), servers.remove(0))
}

/// A server made of nothing but a function from question frame to answer frame; None: no answer.
fn serve(port: &mut Pipe, mut answer: impl FnMut(&[u8]) -> Option<Vec<u8>>) {
    let mut burst = Burst::new();
    port.receive(&mut burst, 64);
    let mut replies = Burst::new();
    for mut frame in burst.drain(..) {
        match answer(frame.bytes()) {
            Some(bytes) => {
                assert!(frame.fill(&bytes));
                replies.push(frame);
            }
            None => port.give(frame),
        }
    }
    port.transmit(&mut replies);
    port.flush();
}

/// The answer with these addresses to an IPv4 question frame, its checksums made from nothing but the RFCs.
fn answer_with(question: &[u8], addresses: &[[u8; 4]]) -> Vec<u8> {
    let mut frame = question.to_vec();
    assert!(reflect::turn_round(&mut frame));
    frame[44] = 0x84; // QR, AA
    frame[49] = addresses.len() as u8;
    for address in addresses {
        frame.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 14, 16, 0, 4]);
        frame.extend_from_slice(address);
    }
    finish(&mut frame);
    frame
}

fn finish(frame: &mut [u8]) {
    let total = frame.len() - 14;
    frame[16..18].copy_from_slice(&(total as u16).to_be_bytes());
    frame[24..26].fill(0);
    let sum = internet_checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[38..40].copy_from_slice(&((total - 20) as u16).to_be_bytes());
    frame[40..42].fill(0);
    let pseudo = [&frame[26..34], &[0, 17], &((total - 20) as u16).to_be_bytes(), &frame[34..]].concat();
    let sum = internet_checksum(&pseudo);
    frame[40..42].copy_from_slice(&sum.to_be_bytes());
}

/// RFC 1071 word by word.
fn internet_checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) * 256 + u64::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

fn expected_address(question: &[u8]) -> [u8; 4] {
    let label = std::str::from_utf8(&question[55..55 + usize::from(question[54])]).unwrap();
    let host: u32 = label.strip_prefix("host").unwrap().parse().unwrap();
    [198, 18, (host / 250) as u8, (host % 250 + 1) as u8]
}

fn run(content: Content, rate: Option<f64>, answer: impl FnMut(&[u8]) -> Option<Vec<u8>>) -> Outcome {
    run_with(&Queries::synthetic(&zone(content), None, 7).unwrap(), rate, answer)
}

fn run_with(queries: &Queries, rate: Option<f64>, mut answer: impl FnMut(&[u8]) -> Option<Vec<u8>>) -> Outcome {
    let (client, mut server) = pair();
    let mut load = Load::new(client, ends(false), SourcePorts { first: 20_000, count: 4 }, queries).unwrap();
    // a machine that is busy with others may not run this thread for a whole span, and then nothing is sent
    for _ in 0..100 {
        let outcome = load.run(&plan(rate, 30), &AtomicBool::new(false), || serve(&mut server, &mut answer));
        if outcome.sent > 0 {
            return outcome;
        }
    }
    panic!("nothing was sent in 100 spans");
}

#[test]
fn right_answers_are_counted_timed_and_found_right() {
    let outcome =
        run(Content::Plain, Some(100_000.0), |question| Some(answer_with(question, &[expected_address(question)])));
    assert!(outcome.sent > 0, "{outcome}");
    assert_eq!((outcome.answered, outcome.checked, outcome.lost), (outcome.sent, outcome.sent, 0), "{outcome}");
    assert!(outcome.faults.is_empty(), "{outcome}");
    assert!(outcome.sent + outcome.unsent <= 3_001, "open loop: {outcome}");
    assert!(outcome.latency.p50_us > 0.0 && outcome.latency.p50_us <= outcome.latency.greatest_us);
}

/// The answer that a name does not exist, of a zone with this serial number.
fn absent_with(question: &[u8], rcode: u8, serial: u8) -> Vec<u8> {
    let mut frame = answer_with(question, &[]);
    frame[45] |= rcode;
    frame[51] = 1;
    // the root's SOA record: names of one octet, serial, and four times
    frame.extend_from_slice(&[0, 0, 6, 0, 1, 0, 0, 0, 60, 0, 22, 0, 0, 0, 0, 0, serial]);
    frame.extend_from_slice(&[0; 16]);
    finish(&mut frame);
    frame
}

#[test]
fn names_that_are_absent_are_checked_by_their_zone() {
    let absent = |content| Queries::with_absent(&zone(content), 100, None, 7).unwrap();
    let asked = |content, rcode, serial| {
        run_with(&absent(content), Some(20_000.0), |question| Some(absent_with(question, rcode, serial)))
    };
    let outcome = asked(Content::Plain, 3, 77);
    assert_eq!((outcome.answered, outcome.checked), (outcome.sent, outcome.sent), "{outcome}");
    assert!(outcome.faults.is_empty(), "{outcome}");
    assert_eq!((outcome.good_share(Good::OrAbsent), outcome.good_share(Good::NoError)), (1.0, 0.0));
    assert_eq!(asked(Content::Plain, 0, 77).faults.keys().collect::<Vec<_>>(), [&Fault::Answer], "NODATA");
    // the first tells version 4, the next an older one
    let (mut serials, queries) = ([5, 7, 6, 2].into_iter().cycle(), absent(Content::Version(0)));
    let outcome =
        run_with(&queries, Some(20_000.0), |question| Some(absent_with(question, 3, serials.next().unwrap())));
    assert_eq!(outcome.faults.keys().collect::<Vec<_>>(), [&Fault::StaleVersion], "{outcome}");
    assert!(asked(Content::Version(0), 3, 0).faults.contains_key(&Fault::Answer), "no version");
}

#[test]
fn each_kind_of_wrong_answer_is_told_apart() {
    let flip = |at: usize| {
        move |question: &[u8]| {
            let mut frame = answer_with(question, &[expected_address(question)]);
            frame[at] ^= 0x20;
            Some(frame)
        }
    };
    type Answer = Box<dyn FnMut(&[u8]) -> Option<Vec<u8>>>;
    let cases: [(Fault, Answer); 7] = [
        (Fault::IpChecksum, Box::new(flip(22))),
        (Fault::UdpChecksum, Box::new(flip(70))),
        (Fault::Headers, Box::new(flip(0))),
        (Fault::Answer, Box::new(|question| Some(answer_with(question, &[[192, 0, 2, 1]])))),
        (Fault::Answer, Box::new(|question| Some(answer_with(question, &[expected_address(question), [1, 1, 1, 1]])))),
        (
            Fault::Question,
            Box::new(|question| {
                let mut frame = answer_with(question, &[expected_address(question)]);
                frame[55] ^= 0x20; // the first letter's case
                finish(&mut frame);
                Some(frame)
            }),
        ),
        (
            Fault::Message,
            Box::new(|question| {
                let mut frame = answer_with(question, &[expected_address(question)]);
                frame[44] |= 2; // TC
                finish(&mut frame);
                Some(frame)
            }),
        ),
    ];
    for (fault, answer) in cases {
        let outcome = run(Content::Plain, Some(20_000.0), answer);
        assert!(outcome.answered > 0, "{fault:?}: {outcome}");
        assert_eq!(outcome.faults.get(&fault), Some(&outcome.answered), "{fault:?}: {outcome}");
    }
}

#[test]
fn a_partial_checksum_is_accepted_and_counted() {
    let outcome = run(Content::Plain, Some(20_000.0), |question| {
        let mut frame = answer_with(question, &[expected_address(question)]);
        let udp_bytes = (frame.len() - 34) as u16;
        let pseudo = [&frame[26..34], &[0, 17], &udp_bytes.to_be_bytes()].concat();
        let sum = !internet_checksum(&pseudo);
        frame[40..42].copy_from_slice(&sum.to_be_bytes());
        Some(frame)
    });
    assert!(outcome.faults.is_empty() && outcome.checked > 0, "{outcome}");
    assert_eq!(outcome.partial_checksums, outcome.checked);
}

#[test]
fn an_absent_checksum_is_accepted_over_ipv4_and_counted() {
    let outcome = run(Content::Plain, Some(20_000.0), |question| {
        let mut frame = answer_with(question, &[expected_address(question)]);
        frame[40..42].fill(0);
        Some(frame)
    });
    assert!(outcome.faults.is_empty() && outcome.checked > 0, "{outcome}");
    assert_eq!(outcome.no_checksums, outcome.checked);
}

#[test]
fn losses_and_answers_that_come_twice_are_counted() {
    let mut turn = 0;
    let outcome = run(Content::Plain, Some(20_000.0), |question| {
        turn += 1;
        (turn % 4 != 0).then(|| answer_with(question, &[expected_address(question)]))
    });
    assert_eq!((outcome.lost, outcome.answered), (outcome.sent / 4, outcome.sent - outcome.sent / 4), "{outcome}");
    // one question's answer instead of every other's: after the first time it matches nothing
    let mut kept = None;
    let outcome = run(Content::Plain, Some(20_000.0), |question| {
        Some(kept.get_or_insert_with(|| answer_with(question, &[expected_address(question)])).clone())
    });
    assert_eq!((outcome.answered, outcome.unmatched), (1, outcome.sent - 1), "{outcome}");
}

#[test]
fn answers_that_come_when_all_is_sent_are_answers_and_no_rate() {
    let (client, mut server) = pair();
    let queries = Queries::synthetic(&zone(Content::Plain), None, 7).unwrap();
    let mut load = Load::new(client, ends(false), SourcePorts { first: 20_000, count: 4 }, &queries).unwrap();
    let (stop, mut held) = (AtomicBool::new(false), Vec::new());
    // held back until the load ends, which it does when there are some
    let work = || {
        let ended = stop.load(Ordering::Relaxed);
        serve(&mut server, |question| {
            held.push(answer_with(question, &[expected_address(question)]));
            None
        });
        stop.store(held.len() >= 20 || ended, Ordering::Relaxed);
        let mut replies = Burst::new();
        for answer in held.drain(..if ended { held.len().min(BURST_FRAMES) } else { 0 }) {
            let mut frame = server.take().unwrap();
            assert!(frame.fill(&answer));
            replies.push(frame);
        }
        server.transmit(&mut replies);
        server.flush();
    };
    let outcome = load.run(&plan(Some(20_000.0), 60_000), &stop, work);
    assert!(outcome.sent >= 20 && outcome.answered == outcome.sent, "{outcome}");
    for good in [Good::NoError, Good::Any] {
        assert_eq!((outcome.good_share(good), outcome.good_rate(good)), (1.0, 0.0), "{outcome}");
    }
}

#[test]
fn versions_go_forward_whole_or_are_faults() {
    let records = |version: [u8; 4], question: &[u8]| {
        let last = expected_address(question)[3];
        let address = |record: u8| [10, version[usize::from(record)], record, last];
        Some(answer_with(question, &[address(2), address(0), address(3), address(1)]))
    };
    let mut count = 0u32;
    let forward = run(Content::Version(0), Some(50_000.0), |question| {
        count += 1;
        records([((245 + count / 100) % u32::from(VERSIONS)) as u8; 4], question)
    });
    assert!(forward.faults.is_empty() && count > 100, "{forward}");
    assert_eq!(forward.versions, u64::from(count / 100));
    let mixed = run(Content::Version(0), Some(20_000.0), |question| records([5, 5, 6, 5], question));
    assert_eq!(mixed.faults.get(&Fault::MixedVersions), Some(&mixed.answered), "{mixed}");
    let mut count = 0u32;
    let stale = run(Content::Version(0), Some(20_000.0), |question| {
        count += 1;
        records([if count.is_multiple_of(2) { 9 } else { 7 }; 4], question)
    });
    assert!(stale.faults[&Fault::StaleVersion] >= stale.answered / 2 - 1, "{stale}");
}

#[test]
fn a_reflector_sends_back_every_question() {
    let (client, mut server) = pair();
    let queries = Queries::synthetic(&zone(Content::Plain), Some(1232), 7).unwrap();
    let mut load = Load::new(client, ends(true), SourcePorts { first: 20_000, count: 4 }, &queries).unwrap();
    let mut burst = Burst::new();
    let work = || {
        reflect::cycle(&mut server, &mut burst, 64);
    };
    let mut plan = plan(None, 20);
    plan.check_every = 0;
    let outcome = load.run(&plan, &AtomicBool::new(false), work);
    assert!(outcome.answered > 0, "{outcome}");
    // a pipe whose reader is slow drops, and says so
    let dropped = load.port().stats().dropped.get() + server.stats().dropped.get();
    assert_eq!(outcome.sent, outcome.answered + dropped, "{outcome}");
}

#[test]
fn numbers_cover_every_slot_once() {
    let (client, _server) = pair();
    let queries = Queries::synthetic(&zone(Content::Plain), None, 7).unwrap();
    let load = Load::new(client, ends(false), SourcePorts { first: 1000, count: 3 }, &queries).unwrap();
    let mut seen = vec![false; 3 << 16];
    for sequence in 0..3 << 16 {
        let (port, id) = load.number(sequence);
        assert!(!std::mem::replace(&mut seen[slot_of(port, id)], true), "{sequence}");
    }
    let (client, _server) = pair();
    assert!(Load::new(client, ends(false), SourcePorts { first: 65_535, count: 2 }, &queries).is_err());
}

#[test]
fn a_late_schedule_is_given_up_not_made_up() {
    let mut pace = Pace { rate: Some(1e6), start_ns: 0, given_up: 0 };
    assert_eq!(pace.due(1_000_000, 0), 1_000);
    assert_eq!(pace.due(1_000_000, 1_000), 0);
    assert_eq!(pace.next_ns(1_000_000, 1_000), 1_001_000);
    assert_eq!(pace.due(1_000_000_000, 1_000), LAG_MOST_FRAMES);
    assert_eq!(pace.given_up, 1_000_000 - 1_000 - LAG_MOST_FRAMES);
    assert_eq!(pace.due(1_000_000_000, 1_000 + LAG_MOST_FRAMES), 0);
}

proptest! {
    #[test]
    fn questions_have_right_checksums(id: u16, port: u16, query in 0usize..1000, v6: bool, edns: bool) {
        let queries = Queries::synthetic(&zone(Content::Plain), edns.then_some(1232), 3).unwrap();
        let template = Template::new(ends(v6), edns);
        let (mut client, _server) = pair();
        let mut frame = client.take().unwrap();
        template.fill(&mut frame, &queries.get(query), id, port);
        let bytes = frame.bytes();
        let udp_at = if v6 { 54 } else { 34 };
        let addresses = if v6 { 22..54 } else { 26..34 };
        if !v6 {
            prop_assert_eq!(internet_checksum(&bytes[14..34]), 0);
            prop_assert_eq!(usize::from(u16::from_be_bytes([bytes[16], bytes[17]])), bytes.len() - 14);
        }
        let udp_bytes = (bytes.len() - udp_at) as u16;
        prop_assert_eq!(&bytes[udp_at + 4..udp_at + 6], &udp_bytes.to_be_bytes());
        prop_assert!(bytes[udp_at + 6..udp_at + 8] != [0, 0]);
        let pseudo = [&bytes[addresses], &[0, 17], &udp_bytes.to_be_bytes(), &bytes[udp_at..]].concat();
        prop_assert_eq!(internet_checksum(&pseudo), 0);
        let message = domain::base::Message::from_octets(&bytes[udp_at + 8..]).unwrap();
        prop_assert_eq!(message.header().id(), id);
        prop_assert!(message.iter().all(|record| record.is_ok()) && message.opt().is_some() == edns);
        client.give(frame);
    }
}
