//! Answers put together from their fixed form, octet for octet those of the service.

use std::collections::HashMap;

use super::*;
use crate::serve::{From, Options, Server};
use crate::testing::{question, server, zone};
use crate::tests::{draw, shuffled_case};
use base::Instant;
use base::counter::{Figure, Report};
use base::publish::Publisher;
use base::rng::Rng;
use proptest::prelude::*;
use zone::{Name, Zone};

/// All answers by name and type, as one who answers in front of the service would hold them.
struct Front {
    answers: HashMap<(Vec<u8>, Option<Rtype>), Option<Answer>>,
    others: HashMap<Vec<u8>, (bool, bool, Below)>,
    /// all names are there
    whole: bool,
    udp_bytes: u16,
}

impl Front {
    fn of(tables: &Tables, udp_bytes: u16) -> Front {
        Front::some(tables, udp_bytes, true, |_| true)
    }

    /// With some of the names.
    fn some(tables: &Tables, udp_bytes: u16, whole: bool, mut with: impl FnMut(Fixed<'_>) -> bool) -> Front {
        let mut front = Front { answers: HashMap::new(), others: HashMap::new(), whole, udp_bytes };
        for name in tables.fixed().chain(tables.unfixed()).filter(|name| with(*name)) {
            for (which, answer) in name.answers(udp_bytes) {
                let rtype = match which {
                    For::Type(rtype) => Some(rtype),
                    For::Others { but_any, but_ds, below } => {
                        assert_eq!(below, name.below());
                        front.others.insert(name.wire().to_vec(), (but_any, but_ds, below));
                        None
                    }
                };
                assert!(front.answers.insert((name.wire().to_vec(), rtype), answer).is_none(), "{name:?} twice");
            }
        }
        front
    }

    fn find(&self, name: &[u8], rtype: Rtype) -> Option<Answer> {
        let name = name.to_ascii_lowercase();
        if let Some(answer) = self.answers.get(&(name.clone(), Some(rtype))) {
            return answer.clone();
        }
        let Some((but_any, but_ds, _)) = self.others.get(&name) else { return self.find_above(&name) };
        let meant = !(rtype == Rtype::ANY && *but_any || rtype == Rtype::DS && *but_ds);
        self.answers.get(&(name, None))?.clone().filter(|_| meant)
    }

    /// For a name that is not there: what the nearest name above it says that says something.
    fn find_above(&self, name: &[u8]) -> Option<Answer> {
        let mut at = 0;
        while name[at] > 0 {
            at += 1 + usize::from(name[at]);
            match self.others.get(&name[at..]) {
                None | Some((_, _, Below::AsAbove)) => {}
                Some((_, _, Below::Left)) => return None,
                Some((_, _, Below::Answered { whole: true, .. })) if !self.whole => return None,
                Some((_, _, Below::Answered { absent, .. })) => {
                    let mut answer = self.answers[&(name[at..].to_vec(), None)].clone()?;
                    answer.nxdomain |= absent;
                    for pointer in answer.moves.iter().map(|at| usize::from(*at)) {
                        let octets = &mut answer.body[pointer..pointer + 2];
                        let moved = u16::from_be_bytes([octets[0], octets[1]]) + at as u16;
                        assert!(octets[0] >= 0xc0 && moved >= 0xc000 + 12);
                        octets.copy_from_slice(&moved.to_be_bytes());
                    }
                    return Some(answer);
                }
            }
        }
        None
    }

    /// The message that answers `question`, for a name of so many octets and what its OPT record offers.
    fn message(&self, answer: &Answer, question: &[u8], name_bytes: usize, offered: Option<u16>) -> Option<Vec<u8>> {
        self.message_with(answer, question, name_bytes, offered, &[])
    }

    /// The same with options in its OPT record.
    fn message_with(
        &self,
        answer: &Answer,
        question: &[u8],
        name_bytes: usize,
        offered: Option<u16>,
        options: &[u8],
    ) -> Option<Vec<u8>> {
        let around = 12 + name_bytes + 4;
        let (limit, opt) = match offered {
            None => (512, 0),
            Some(size) => (size.clamp(512, self.udp_bytes), 11 + options.len()),
        };
        let cut = answer.cuts.iter().rfind(|cut| around + opt + usize::from(cut.bytes) <= usize::from(limit))?;
        let mut message = question[..around].to_vec();
        message[2] =
            0x80 | question[2] & 1 | if answer.authoritative { 4 } else { 0 } | if cut.truncated { 2 } else { 0 };
        message[3] = if answer.nxdomain { 3 } else { 0 };
        for (at, count) in [(6, cut.answer), (8, cut.authority), (10, cut.additional + u16::from(opt > 0))] {
            message[at..at + 2].copy_from_slice(&count.to_be_bytes());
        }
        message.extend_from_slice(&answer.body[..usize::from(cut.bytes)]);
        if opt > 0 {
            let [high, low] = self.udp_bytes.to_be_bytes();
            message.extend_from_slice(&[0, 0, 41, high, low, 0, 0, 0, 0, 0, options.len() as u8]);
            message.extend_from_slice(options);
        }
        Some(message)
    }
}

fn served(server: &mut Server, question: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0xee; 65_535];
    buffer[..question.len()].copy_from_slice(question);
    let from = From { now: Instant::ZERO, peer: "192.0.2.1".parse().unwrap(), stream: false };
    let bytes = server.core.one(from, &mut buffer, question.len()).unwrap();
    buffer.truncate(bytes);
    buffer
}

const SIZES: [Option<u16>; 8] =
    [None, Some(0), Some(512), Some(513), Some(700), Some(1231), Some(1232), Some(u16::MAX)];

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn the_form_gives_the_service_s_octets(seed in any::<u64>()) {
        let rng = &mut Rng::new(seed);
        let origins = ["x.", "a.x.", "b.a.c.x.", "."];
        let zones: Vec<Zone> = origins.iter().filter(|origin| **origin == "x." || rng.chance(0.4)).copied().collect::<Vec<_>>()
            .into_iter().map(|origin| draw(rng, origin)).collect();
        let tables = Arc::new(Tables::build(zones, 7).unwrap());
        let front = Front::of(&tables, 1232);
        let left_out = rng.below(4);
        let part = Front::some(&tables, 1232, false, |name| u64::from(name.id().0) % 4 != left_out);
        let mut server = Server::new(Publisher::new(tables.clone()).reader(), Options::default());
        for _ in 0..150 {
            let labels = ["a", "b", "c", "*", "d", "e", "ns"];
            let mut text: String = (0..rng.below(6)).map(|_| format!("{}.", labels[rng.below(7) as usize])).collect();
            if rng.chance(0.9) {
                text += "x.";
            }
            if rng.chance(0.3) {
                // up to the longest name
                let octets = rng.below(253 - text.len() as u64);
                text = (0..octets / 4).map(|_| "e-f.").collect::<String>() + &text;
            }
            let text = if text.is_empty() { ".".to_owned() } else { text };
            let name: Name = shuffled_case(rng, &text).parse().unwrap();
            let types = [Rtype::A, Rtype::NS, Rtype::CNAME, Rtype::DS, Rtype::MX, Rtype::TXT, Rtype::SOA, Rtype::ANY,
                Rtype::DNAME, Rtype::AAAA, Rtype(0)];
            let rtype = types[rng.below(types.len() as u64) as usize];
            let offered = SIZES[rng.below(SIZES.len() as u64) as usize];
            let mut asked = question(name.view(), rtype, offered);
            asked[2] = rng.below(2) as u8;
            let expected = served(&mut server, &asked);
            let wire = name.as_wire();
            let alone = tables.fixed_answer(name.view(), rtype, 1232);
            let held = front.find(wire, rtype);
            for answer in alone.iter().chain(&held).chain(&part.find(wire, rtype)) {
                let message = front.message(answer, &asked, wire.len(), offered);
                prop_assert_eq!(message.as_ref(), Some(&expected), "{} {:?} {:?}", text, rtype, offered);
            }
            // what exists is held, unless it is said not to be
            let depends = tables.lookup(wire).is_some_and(|entry| entry.has(flag::DEPENDS | flag::PHANTOM));
            if tables.lookup(wire).is_some() && !depends && alone.is_some() && rtype != Rtype::ANY {
                prop_assert!(held.is_some(), "{} {:?}", text, rtype);
            }
            // and what does not, with what is above it
            if tables.lookup(wire).is_none() && let Some(above) = tables.encloser(wire).filter(|above| above.link() == 0) {
                let (cut, apex) = (above.has(flag::CUT) && !above.has(flag::DEPENDS), above.has(flag::APEX) && !above.has(flag::DNAME | flag::PHANTOM));
                prop_assert!(held.is_some() || !cut && !apex, "{} {:?}", text, rtype);
                prop_assert!(part.find(wire, rtype).is_some() || !cut || above.has(flag::OUTER) || u64::from(above.unit) % 4 == left_out);
            }
        }
    }
}

fn held(front: &Front, name: &str, rtype: Rtype) -> Option<Answer> {
    front.find(name.parse::<Name>().unwrap().as_wire(), rtype)
}

#[test]
fn every_kind_has_a_fixed_form_and_what_has_none_is_left_out() {
    let text = "$TTL 60\n@ SOA ns h 1 1 1 1 60\n@ NS ns\nns A 192.0.2.1\nwww A 192.0.2.2\na.b TXT x\ncut NS ns.cut\n\
                ns.cut A 192.0.2.3\nalias CNAME www\ndn DNAME target\nto CNAME x.dn\n*.w A 192.0.2.4\n";
    let tables = Tables::build(vec![zone("example.", text)], 7).unwrap();
    let front = Front::of(&tables, 1232);
    for (name, rtype, nxdomain, authoritative, counts) in [
        ("www.example", Rtype::A, false, true, (1, 0, 0)),
        ("www.example", Rtype::AAAA, false, true, (0, 1, 0)),
        ("b.example", Rtype::A, false, true, (0, 1, 0)),
        ("example", Rtype::SOA, false, true, (1, 0, 0)),
        ("alias.example", Rtype::A, false, true, (2, 0, 0)),
        ("cut.example", Rtype::ANY, false, false, (0, 1, 1)),
        ("cut.example", Rtype::DS, false, true, (0, 1, 0)),
        ("*.w.example", Rtype::A, false, true, (1, 0, 0)),
    ] {
        let answer = held(&front, name, rtype).unwrap_or_else(|| panic!("{name} {rtype}"));
        let whole = answer.cuts.last().unwrap();
        assert_eq!((answer.nxdomain, answer.authoritative), (nxdomain, authoritative), "{name} {rtype}");
        assert_eq!((whole.answer, whole.authority, whole.additional), counts, "{name} {rtype}");
        assert_eq!(answer.cuts.len() - answer.cuts_below, 1, "{name} {rtype}: it fits everybody");
    }
    for (name, rtype) in [("www.example", Rtype::ANY), ("to.example", Rtype::A), ("x.dn.example", Rtype::A)] {
        assert_eq!(held(&front, name, rtype), None, "{name} {rtype}");
    }
    let ask = |name: &str, rtype| tables.fixed_answer(name.parse::<Name>().unwrap().view(), rtype, 1232);
    assert!(ask("nope.example", Rtype::A).unwrap().nxdomain);
    assert_eq!(ask("x.w.example", Rtype::A).unwrap().cuts[0].answer, 1);
    assert_eq!(ask("x.cut.example", Rtype::A).unwrap().cuts[0].authority, 1);
    for (name, rtype) in [("x.dn.example", Rtype::A), ("elsewhere", Rtype::A), ("www.example", Rtype::AXFR)] {
        assert_eq!(ask(name, rtype), None, "{name} {rtype}");
    }
}

#[test]
fn a_large_answer_has_a_cut_for_each_size() {
    let mut text = "$TTL 60\n@ SOA ns h 1 1 1 1 60\n@ NS ns\nns A 192.0.2.1\ncut NS a.cut\ncut NS b.cut\n".to_owned();
    for n in 0..30 {
        text +=
            &format!("a.cut A 192.0.2.{n}\nb.cut A 198.51.100.{n}\nbig TXT \"{n:0>100}\"\nmedium A 203.0.113.{n}\n");
        if n < 28 {
            text += &format!("edge A 192.0.2.{n}\n");
        }
    }
    let cookies = Some(crate::cookie::Config::fixed(vec![[7; 16]], 0));
    let mut server = server(vec![zone("example.", &text)], Options { cookies, ..Options::default() });
    let tables = Tables::build(vec![zone("example.", &text)], 7).unwrap();
    let front = Front::of(&tables, 1232);
    let cuts = |name, rtype| {
        let answer = held(&front, name, rtype).unwrap();
        answer.cuts.len() - answer.cuts_below
    };
    // too large for anybody; whole or nothing; without glue, with half of it, whole
    assert_eq!((cuts("big.example", Rtype::TXT), cuts("medium.example", Rtype::A)), (1, 2));
    // whoever has no cookie gets it whole
    assert_eq!(cuts("edge.example", Rtype::A), 2);
    assert_eq!(cuts("cut.example", Rtype::A), 3);
    for (name, rtype) in [("big", Rtype::TXT), ("medium", Rtype::A), ("edge", Rtype::A), ("cut", Rtype::A)] {
        let name: Name = format!("{name}.EXAMPLE").parse().unwrap();
        for offered in std::iter::once(None).chain((500..1300).map(Some)) {
            let asked = question(name.view(), rtype, offered);
            let answer = front.find(name.as_wire(), rtype).unwrap();
            let message = front.message(&answer, &asked, name.as_wire().len(), offered);
            assert_eq!(message, Some(served(&mut server, &asked)), "{name} {offered:?}");
            // with a cookie there is room for less
            let mut asked = asked;
            if offered.is_some() {
                *asked.last_mut().unwrap() = 12;
                asked.extend_from_slice(&[0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
                let expected = served(&mut server, &asked);
                let options = &expected[expected.len() - 28..];
                let message = front.message_with(&answer, &asked, name.as_wire().len(), offered, options);
                assert_eq!(message.as_ref(), Some(&expected), "{name} {offered:?} with a cookie");
            }
        }
    }
    // below the cut, and where nothing is, for names of every length: in other sizes something else is left out
    let end = |name: &str| name.parse::<Name>().unwrap().as_wire().to_vec();
    let mut truncated = HashMap::new();
    for above in [end("cut.example."), end("example.")] {
        for more in 2..=255 - above.len() {
            let mut labels = Vec::new();
            while labels.len() < more {
                let left = more - labels.len();
                let label = (if left <= 64 { left } else { 62.min(left - 2) }) - 1;
                labels.push(label as u8);
                labels.extend((0..label).map(|n| b'q' + (n % 7) as u8));
            }
            let name = Name::from_wire(&[labels, above.clone()].concat()).unwrap();
            for offered in [None, Some(512), Some(600), Some(700 + more as u16), Some(1232)] {
                let asked = question(name.view(), Rtype::DS, offered);
                let answer = front.find(name.as_wire(), Rtype::DS).unwrap();
                let message = front.message(&answer, &asked, name.as_wire().len(), offered).unwrap();
                assert_eq!(message, served(&mut server, &asked), "{name} {offered:?}");
                *truncated.entry((above.len(), message[2] & 2, message[11])).or_insert(0) += 1;
            }
        }
    }
    // without glue, with half of it, whole; and NXDOMAIN, which always fits
    assert!(truncated.len() >= 5, "{truncated:?}");
}

/// What each kind of name says of those below it, and what is answered for them.
#[test]
fn names_that_do_not_exist_are_answered_by_one_above() {
    let text = "$TTL 60\n@ SOA ns h 1 1 1 1 60\n@ NS ns\nns A 192.0.2.1\na.b TXT x\ncut NS ns.cut\nns.cut A 192.0.2.3\n\
                dn DNAME target\n*.w A 192.0.2.4\nx.w A 192.0.2.5\nto CNAME x.dn\nouter NS ns.elsewhere.\n*.to A 192.0.2.6\n";
    let inner = "$TTL 60\n@ SOA ns h 1 1 1 1 60\n@ NS ns.elsewhere.\n";
    let wild = "$TTL 60\n@ SOA ns h 1 1 1 1 60\n@ NS ns.elsewhere.\n* A 192.0.2.7\nwww A 192.0.2.8\n";
    let zones = [("example.", text), ("z.y.outer.example.", inner), ("i.h.example.", inner), ("wild.", wild)];
    let tables = Tables::build(zones.map(|(origin, text)| zone(origin, text)).into(), 7).unwrap();
    let (all, some) = (Front::of(&tables, 1232), Front::some(&tables, 1232, false, |_| true));
    for (name, whole, part) in [
        ("nope.example", Some((true, 1)), None),
        ("a.very.deep.nope.example", Some((true, 1)), None),
        ("x.ns.example", Some((true, 1)), None),
        ("x.b.example", Some((true, 1)), None),
        ("x.a.b.example", Some((true, 1)), None),
        ("ns.cut.example", Some((false, 1)), Some((false, 1))),
        ("x.ns.cut.example", Some((false, 1)), Some((false, 1))),
        ("x.dn.example", None, None),
        ("y.w.example", None, None),
        // a pass to the stack more than there must be
        ("y.x.w.example", None, None),
        ("to.example", None, None),
        ("x.to.example", None, None),
        // what is between a cut and a zone below it
        ("x.outer.example", Some((false, 1)), None),
        ("y.outer.example", Some((false, 1)), None),
        ("x.y.outer.example", Some((false, 1)), None),
        ("x.z.y.outer.example", Some((true, 1)), None),
        // between a zone and one inside it that it does not delegate
        ("h.example", Some((true, 1)), None),
        ("x.h.example", Some((true, 1)), None),
        ("x.i.h.example", Some((true, 1)), None),
        ("x.wild", None, None),
        ("x.www.wild", None, None),
        ("elsewhere", None, None),
        (".", None, None),
    ] {
        for rtype in [Rtype::A, Rtype::DS, Rtype::ANY] {
            for (front, expected) in [(&all, whole), (&some, part)] {
                let got =
                    held(front, name, rtype).map(|answer| (answer.nxdomain, answer.cuts.last().unwrap().authority));
                assert_eq!(got, expected, "{name} {rtype} {}", front.whole);
            }
        }
    }
}

#[test]
fn what_is_answered_elsewhere_is_counted_once_and_by_zone() {
    let text = "@ 60 SOA ns h 1 1 1 1 60\n@ 60 NS ns.elsewhere.\n";
    let tables = Tables::build(vec![zone("a.", text), zone("b.", text)], 7).unwrap();
    let elsewhere = Elsewhere::default();
    let slot = tables.counted.slot(1).unwrap() as usize;
    let mut now =
        Counted { families: [3, 4], truncated: 1, cookies_valid: 2, types: vec![0; 260], zones: vec![[0; 2]; 8] };
    (now.types[1], now.types[259], now.zones[slot]) = (5, 2, [6, 1]);
    elsewhere.count(&tables, now.clone());
    elsewhere.count(&tables, now.clone());
    // tables with fewer zones are counted in between
    elsewhere.count(&tables, Counted { zones: Vec::new(), ..now.clone() });
    now.zones[slot][1] += 2;
    elsewhere.count(&tables, now);
    let mut shown = Vec::new();
    elsewhere.stats().report(&mut |Figure { name, labels, value, .. }| {
        if value > 0 {
            shown.push(format!("{name}{labels:?} {value}"));
        }
    });
    assert_eq!(
        shown,
        [
            r#"dns_questions_total[("transport", "udp"), ("family", "4")] 3"#,
            r#"dns_questions_total[("transport", "udp"), ("family", "6")] 4"#,
            r#"dns_questions_by_type_total[("type", "A")] 5"#,
            r#"dns_questions_by_type_total[("type", "other")] 2"#,
            r#"dns_answers_total[("rcode", "NOERROR")] 6"#,
            r#"dns_answers_total[("rcode", "NXDOMAIN")] 3"#,
            "dns_truncated_total[] 1",
            "dns_cookies_valid_total[] 2",
            r#"dns_zone_answers_total[("zone", "b."), ("rcode", "NOERROR")] 6"#,
            r#"dns_zone_answers_total[("zone", "b."), ("rcode", "NXDOMAIN")] 3"#,
        ]
    );
}
