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
    others: HashMap<Vec<u8>, (bool, bool)>,
    udp_bytes: u16,
}

impl Front {
    fn of(tables: &Tables, udp_bytes: u16) -> Front {
        let mut front = Front { answers: HashMap::new(), others: HashMap::new(), udp_bytes };
        for name in tables.fixed() {
            for (which, answer) in name.answers(udp_bytes) {
                let rtype = match which {
                    For::Type(rtype) => Some(rtype),
                    For::Others { but_any, but_ds } => {
                        front.others.insert(name.wire().to_vec(), (but_any, but_ds));
                        None
                    }
                };
                assert!(front.answers.insert((name.wire().to_vec(), rtype), answer).is_none(), "{name:?} twice");
            }
        }
        front
    }

    fn find(&self, name: &[u8], rtype: Rtype) -> Option<&Answer> {
        let name = name.to_ascii_lowercase();
        if let Some(answer) = self.answers.get(&(name.clone(), Some(rtype))) {
            return answer.as_ref();
        }
        let (but_any, but_ds) = self.others.get(&name)?;
        let meant = !(rtype == Rtype::ANY && *but_any || rtype == Rtype::DS && *but_ds);
        self.answers.get(&(name, None))?.as_ref().filter(|_| meant)
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
        let origins = ["x.", "a.x.", "b.a.c.x."];
        let count = 1 + rng.below(3) as usize;
        let zones: Vec<Zone> = origins[..count].iter().map(|origin| draw(rng, origin)).collect();
        let tables = Arc::new(Tables::build(zones, 7).unwrap());
        let front = Front::of(&tables, 1232);
        let mut server = Server::new(Publisher::new(tables.clone()).reader(), Options::default());
        for _ in 0..150 {
            let labels = ["a", "b", "c", "*", "d", "e", "ns"];
            let mut text: String = (0..rng.below(6)).map(|_| format!("{}.", labels[rng.below(7) as usize])).collect();
            text += "x.";
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
            for answer in alone.iter().chain(held) {
                let message = front.message(answer, &asked, wire.len(), offered);
                prop_assert_eq!(message.as_ref(), Some(&expected), "{} {:?} {:?}", text, rtype, offered);
            }
            // what exists is held, unless it is said not to be
            let depends = tables.lookup(wire).is_some_and(|entry| entry.has(flag::DEPENDS | flag::PHANTOM));
            if tables.lookup(wire).is_some() && !depends && alone.is_some() && rtype != Rtype::ANY {
                prop_assert_eq!(held, alone.as_ref(), "{} {:?}", text, rtype);
            }
        }
    }
}

fn held(front: &Front, name: &str, rtype: Rtype) -> Option<Answer> {
    front.find(name.parse::<Name>().unwrap().as_wire(), rtype).cloned()
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
        assert_eq!(answer.cuts.len(), 1, "{name} {rtype}: it fits everybody");
    }
    for (name, rtype) in [("www.example", Rtype::ANY), ("to.example", Rtype::A), ("nope.example", Rtype::A)] {
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
    let cuts = |name, rtype| held(&front, name, rtype).unwrap().cuts.len();
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
            let message = front.message(answer, &asked, name.as_wire().len(), offered);
            assert_eq!(message, Some(served(&mut server, &asked)), "{name} {offered:?}");
            // with a cookie there is room for less
            let mut asked = asked;
            if offered.is_some() {
                *asked.last_mut().unwrap() = 12;
                asked.extend_from_slice(&[0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
                let expected = served(&mut server, &asked);
                let options = &expected[expected.len() - 28..];
                let message = front.message_with(answer, &asked, name.as_wire().len(), offered, options);
                assert_eq!(message.as_ref(), Some(&expected), "{name} {offered:?} with a cookie");
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
