use app::{Bound, Service};
use base::publish::Publisher;
use base::ring;
use proptest::prelude::*;
use std::sync::Arc;

use super::*;
use crate::proxy::Prefix;
use crate::serve::Options;
use crate::testing::{self, Talk, options};

const GET: &str = "GET /a.txt HTTP/1.1\r\nHost: h\r\n\r\n";
const BIG: &str = "GET /big.bin HTTP/1.1\r\nHost: h\r\n\r\n";
const PARTS: &str = "GET /big.bin HTTP/1.1\r\nHost: h\r\nRange: bytes=0-9,20-29,70000-,40-49,60-69,80-89\r\n\r\n";
const CONTENT: &str = "GET /sub/ HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n3\r\nabc\r\n0\r\nT: u\r\n\r\n";
const WRONG: &str = "GET / HTTP/1.1\r\n\r\n";

#[derive(Clone, Debug)]
enum Step {
    Receive(usize),
    Drain,
    Pass(u64),
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1usize..200).prop_map(Step::Receive),
        2 => Just(Step::Drain),
        1 => (1u64..9).prop_map(Step::Pass),
    ]
}

/// Boundaries are numbers that each server draws by itself.
fn without_boundaries(text: &str) -> String {
    let mut text = text.to_owned();
    while let Some((_, behind)) = text.split_once("boundary=") {
        let boundary = behind.split("\r\n").next().unwrap_or_default().to_owned();
        text = text.replacen("boundary=", "by ", 1).replace(&boundary, "-");
    }
    text
}

/// A server all of whose places are free.
fn is_empty(server: &Server) -> bool {
    let pools = [server.places.used(), server.buffers.used(), server.core.pendings.used()];
    (server.core.stats.open.get(), pools) == (0, [0; 3])
}

proptest! {
    /// A connection that goes to the other server before every event says, and waits for, what one that stays does.
    #[test]
    fn nobody_can_tell_that_a_connection_moves(
        requests in prop::collection::vec(prop::sample::select(vec![GET, BIG, PARTS, CONTENT, WRONG]), 1..6),
        steps in prop::collection::vec(a_step(), 1..60),
        quotas in prop::sample::select(vec![(usize::MAX, usize::MAX), (600, 3), (usize::MAX, 1), (700, 2)]),
        finish: bool,
    ) {
        let text = requests.concat();
        let play = |moves: bool| {
            let mut talk = Talk::new(options());
            talk.spare = moves.then(|| testing::server(options()));
            (talk.engine.quota_bytes, talk.engine.quota_ranges) = quotas;
            let (mut rest, mut now_s, mut seen) = (text.as_bytes(), 0, Vec::new());
            for step in &steps {
                match step {
                    Step::Receive(bytes) => {
                        let (piece, behind) = rest.split_at(rest.len().min(*bytes));
                        rest = behind;
                        if !piece.is_empty() && !talk.engine.closed && !talk.engine.aborted {
                            talk.receive(piece);
                        }
                    }
                    Step::Drain => talk.drain(),
                    Step::Pass(more) => {
                        now_s += more;
                        talk.pass(now_s);
                    }
                }
                let engine = &talk.engine;
                seen.push((engine.out.len(), engine.delivered, engine.timer, engine.closed, engine.aborted, engine.shut));
            }
            if finish && !talk.engine.aborted && !talk.engine.closed {
                talk.eof();
            }
            talk.drain();
            talk.dead();
            let empty = is_empty(&talk.server) && talk.spare.as_ref().is_none_or(is_empty);
            let requests: u64 = [Some(&talk.server), talk.spare.as_ref()].into_iter().flatten()
                .map(|server| server.core.stats.answers(2)).sum();
            (seen, without_boundaries(&talk.text()), requests, empty)
        };
        let still = play(false);
        prop_assert!(still.3);
        prop_assert_eq!(still, play(true));
    }
}

#[test]
fn what_finds_no_room_is_refused_and_leaves_nothing_behind() {
    let cases: [(&str, Options, DropReason); 3] = [
        (GET, Options { connections: Bound::new(0), ..options() }, DropReason::Full),
        (&GET[..20], Options { buffers: Bound::new(0), ..options() }, DropReason::Full),
        (PARTS, Options { pendings: Bound::new(0), ..options() }, DropReason::NoPending),
    ];
    for (text, other, reason) in cases {
        let mut talk = Talk::new(options());
        (talk.engine.quota_bytes, talk.engine.quota_ranges) = (600, 3);
        talk.receive(text.as_bytes());
        talk.spare = Some(testing::server(other));
        assert!(!talk.go_over(), "{text}");
        let (stats, from) = (talk.server.stats(), talk.spare.as_ref().unwrap());
        assert_eq!((stats.drops(reason), stats.open.get()), (1, 0), "{text}");
        assert_eq!(talk.server.places.used(), 0);
        assert!(is_empty(from));
    }
    // what is no luggage of a server's
    let mut talk = Talk::new(options());
    assert_eq!(talk.server.arrive(Instant::ZERO, &mut talk.engine, testing::CONNECTION, Box::new(7)), None);
    let nothing = talk.server.depart(Instant::ZERO, testing::CONNECTION, 3);
    assert_eq!(talk.server.arrive(Instant::ZERO, &mut talk.engine, testing::CONNECTION, nothing), None);
}

/// With every place of every kind in use there is room for who moves: what it had goes along.
#[test]
fn who_moves_has_its_places_when_all_are_taken() {
    let options = options();
    // all of them, and all that they may keep, over both threads
    let mut talks: Vec<_> = [&GET[..20], &GET[..20], PARTS, PARTS]
        .into_iter()
        .map(|text| {
            let mut talk = Talk::new(options.clone());
            (talk.engine.quota_bytes, talk.engine.quota_ranges) = (600, 3);
            talk.receive(text.as_bytes());
            talk
        })
        .collect();
    for n in 0..4 {
        let used = |talks: &[Talk]| -> usize { talks.iter().map(|talk| talk.server.places.used()).sum() };
        assert_eq!(used(&talks), 4);
        talks[n].spare = Some(testing::server(options.clone()));
        assert!(talks[n].go_over());
        assert_eq!(used(&talks), 4);
        let spare = talks[n].spare.take().unwrap();
        assert!(is_empty(&spare));
        // and a fifth one finds none
        let refused = Talk::new(options.clone());
        assert_eq!((refused.server.stats().drops(DropReason::Full), refused.engine.cookie), (1, None));
    }
    for talk in &mut talks {
        if talk.engine.out.is_empty() {
            talk.receive(&GET.as_bytes()[20..]);
        }
        talk.drain();
        talk.dead();
        assert!(is_empty(&talk.server) && talk.text().starts_with("HTTP/1.1 20"));
    }
    assert!(Talk::new(options).engine.cookie.is_some());
}

#[test]
fn the_proxys_word_and_the_count_of_requests_go_along() {
    let proxies = vec![Prefix { address: "192.0.2.7".parse().unwrap(), bits: 32 }];
    let more = || Options { proxies: proxies.clone(), requests: 2, ..options() };
    let site = Publisher::new(Arc::new(testing::site()));
    let (rings, mut logs): (Vec<_>, Vec<_>) = (0..2).map(|_| ring::ring(8)).unzip();
    let mut servers = rings.into_iter().map(|log| Server::new(site.reader(), more(), Some(log)));
    let mut talk = Talk::over(servers.next().unwrap(), "192.0.2.7:4711");
    talk.spare = servers.next();
    // version 2, PROXY, TCP over IPv4, twelve octets: 203.0.113.9:1000 to 192.0.2.1:80
    let mut head = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    head.extend([0x21, 0x11, 0, 12, 203, 0, 113, 9, 192, 0, 2, 1, 3, 232, 0, 80]);
    for piece in head.chunks(5) {
        talk.receive(piece);
    }
    talk.receive(&GET.as_bytes()[..10]);
    talk.receive(&GET.as_bytes()[10..]);
    talk.drain();
    talk.receive(GET.as_bytes());
    talk.drain();
    assert!(talk.engine.closed && !talk.engine.aborted, "the second request was the last");
    let records: Vec<_> = logs.iter_mut().flat_map(|log| std::iter::from_fn(|| log.pop())).collect();
    assert_eq!(records.len(), 2);
    assert!(records.iter().all(|record| record.client == "203.0.113.9:1000".parse().unwrap()));
}
