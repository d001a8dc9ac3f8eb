//! What is composed when it is asked for: as much of it as is sent, and where the prepared answers would repeat too much.

use super::{ask, draw, draw_labels, is_cut_of};
use crate::block::{self, Block, UNIT_BYTES};
use crate::compose::Composer;
use crate::reference::{self, TARGETS_LOOKED_UP, TARGETS_READ};
use crate::reply::Frame;
use crate::serve::{Options, Server};
use crate::table::Tables;
use crate::testing::{question, zone};
use base::publish::Publisher;
use base::rng::Rng;
use proptest::prelude::*;
use std::sync::Arc;
use zone::{Name, NameRef, Rtype, Zone};

/// The message of at most `limit` octets that is sent of an answer composed in so much room; and the octets composed.
fn sent(zone: &Zone, name: NameRef<'_>, rtype: Rtype, room: usize, limit: usize) -> (Vec<u8>, usize) {
    let (mut composer, mut arena) = (Composer::new(), Vec::new());
    reference::answer(zone, name, rtype, room, &mut composer);
    block::write(&mut arena, &composer);
    arena.resize(arena.len() + UNIT_BYTES, 0);
    let mut buffer = question(name, rtype, None);
    buffer.resize(65_535, 0);
    let block = Block::at(&arena, 0);
    let frame = Frame { name_bytes: name.as_wire().len(), limit, opt: None };
    let bytes = frame.block(&mut buffer, block, 0, block.rcode(), true).unwrap().bytes;
    buffer.truncate(bytes);
    (buffer, composer.body().len())
}

/// Panics unless in every room what is composed is what is sent of the whole, and no more than that.
fn check_every_room(zone: &Zone, name: NameRef<'_>, rtype: Rtype) {
    let begin = 12 + name.as_wire().len() + 4;
    let whole = sent(zone, name, rtype, usize::MAX, 65_535).0.len();
    let step = 1 + whole / 300;
    for limit in (begin..=whole + 2 * step).step_by(step) {
        let (expected, _) = sent(zone, name, rtype, usize::MAX, limit);
        let (got, composed) = sent(zone, name, rtype, limit - begin, limit);
        assert_eq!(got, expected, "{name} {rtype} in {limit}");
        assert_eq!(composed, got.len() - begin, "{name} {rtype} in {limit}");
    }
}

#[test]
fn as_much_is_composed_as_is_sent() {
    let mut text =
        "$TTL 60\n@ SOA ns h 1 1 1 1 1\n@ NS ns\nns A 192.0.2.1\nd DNAME t\nlong CNAME a1\na9 CNAME x.d\n".to_owned();
    for n in 0..40 {
        text += &format!("ns A 10.0.0.{n}\nx.t PTR p{n}.q\nx.t TXT \"{}\"\nx.t A 10.0.1.{n}\n", "t".repeat(n));
        text += &format!(
            "cut NS ns{n}.cut\nns{n}.cut AAAA ::{n}\nbeside NS ns{n}.cut\nx.t NS ns{n}.o\nns{n}.o A 10.0.2.{n}\n"
        );
    }
    for n in 1..9 {
        text += &format!("a{n} CNAME a{}\nloop{n} CNAME loop{}\n", n + 1, n % 8 + 1);
    }
    text += "x.t SVCB 1 . alpn=h3\nto CNAME y.cut\nby CNAME y.beside\ngone CNAME nobody.d\n";
    let zone = zone("example.", &text.replace("x.t NS", "y.t NS"));
    for name in ["x.d", "y.d", "long", "loop3", "to", "by", "gone", "nobody.d", "y.cut", "beside", "y.t", "@", "nobody"]
    {
        let name: Name = if name == "@" { "example".into() } else { format!("{name}.example") }.parse().unwrap();
        for rtype in [Rtype::A, Rtype::PTR, Rtype::TXT, Rtype::NS, Rtype::CNAME, Rtype::ANY, Rtype::SOA] {
            check_every_room(&zone, name.view(), rtype);
        }
    }
}

/// Addresses that may be left out do not make an answer truncated (RFC 9471 section 3.2), not even those that no message has room for.
#[test]
fn addresses_that_no_message_has_room_for_may_be_left_out() {
    let mut text = "$TTL 60\n@ SOA ns h 1 1 1 1 1\n@ NS ns\nin NS ns.in\nby NS ns\n".to_owned();
    for n in 0..4200 {
        text += &format!("ns A 10.0.{}.{}\nns.in A 10.1.{}.{}\n", n / 256, n % 256, n / 256, n % 256);
    }
    let tables = Arc::new(Tables::build(vec![zone("example.", &text)], 7).unwrap());
    let mut server = Server::new(Publisher::new(tables).reader(), Options::default());
    for (name, truncated) in [("example", false), ("x.by.example", false), ("x.in.example", true)] {
        let name: Name = name.parse().unwrap();
        let answer = ask(&mut server, &question(name.view(), Rtype::NS, None), true);
        assert_eq!((answer.truncated, answer.sections[2].len()), (truncated, 0), "{name}");
    }
}

/// A set may have millions of targets, and a question for it is a few octets: nothing is done for what the answer has no room for.
#[test]
fn targets_of_a_set_that_does_not_fit_are_not_read() {
    let text = "$TTL 60\n@ SOA ns h 1 1 1 1 1\n@ NS ns\n$GENERATE 1-20000 @ NS n$.elsewhere.\nwww CNAME @\n\
        $GENERATE 1-20000 cut NS n$.elsewhere.\nto CNAME x.cut\n";
    let mut server = Server::new(
        Publisher::new(Arc::new(Tables::build(vec![zone("example.", text)], 7).unwrap())).reader(),
        Options::default(),
    );
    for (name, rtype) in [("www.example", Rtype::NS), ("to.example", Rtype::A)] {
        let name: Name = name.parse().unwrap();
        for stream in [false, true] {
            TARGETS_READ.set(0);
            let answer = ask(&mut server, &question(name.view(), rtype, None), stream);
            let records = answer.sections.each_ref().map(Vec::len);
            assert_eq!((records, answer.truncated), ([1, 0, 0], true), "{name}");
            assert!(TARGETS_READ.get() <= 2, "{name} {}", TARGETS_READ.get());
        }
    }
}

/// What is looked up and not found takes no room, so that the room does not end it.
#[test]
fn targets_without_addresses_are_looked_up_up_to_a_bound() {
    let answer = |lines: &str| {
        let text = format!("$TTL 60\n@ SOA ns h 1 1 1 1 1\n@ NS ns\nwww CNAME @\n{lines}");
        let tables = Arc::new(Tables::build(vec![zone("example.", &text)], 7).unwrap());
        let mut server = Server::new(Publisher::new(tables).reader(), Options::default());
        let name: Name = "www.example".parse().unwrap();
        TARGETS_LOOKED_UP.set(0);
        let answer = ask(&mut server, &question(name.view(), Rtype::NS, None), true);
        (answer.sections[0].len() - 2, answer.sections[2].len(), answer.truncated, TARGETS_LOOKED_UP.get())
    };
    assert_eq!(answer("$GENERATE 1-2500 @ NS n$\n"), (2500, 0, false, 64));
    // names that exist, without addresses
    assert_eq!(answer("$GENERATE 1-2500 @ NS n$\n$GENERATE 1-2500 n$ TXT $\n"), (2500, 0, false, 64));
    // whatever is found is given, as far as there is room
    let found = "$GENERATE 1-400 @ NS n$\n$GENERATE 1-400 n$ A 192.0.2.1\n";
    assert_eq!(answer(found), (400, 400, false, 401));
}

/// A zone of few lines may not take memory without a bound.
#[test]
fn what_is_repeated_is_bounded_by_the_zone() {
    let types: String = (1000..30_000).map(|n| format!("big TYPE{n} \\# 1 00\n")).collect();
    let many =
        |line: &str, count: usize| -> String { (0..count).map(|n| line.replace('$', &n.to_string()) + "\n").collect() };
    let begin = "$TTL 60\n@ SOA ns h 1 1 1 1 1\n@ NS ns\nns A 192.0.2.1\nlast A 192.0.2.2\n";
    for (set, each, name) in [
        (many("ns A 10.0.0.$", 200), "d$ NS ns", "x.d7999.example"),
        (many("ns A 10.0.0.$", 200), "*.d$ NS ns", "x.d7999.example"),
        (many("big A 10.0.0.$", 200), "d$ CNAME big", "d7999.example"),
        (many("big TXT 0123456789012345678901234567890123456789-$", 200), "d$ CNAME big", "d7999.example"),
        (types, "d$ CNAME big", "d7999.example"),
    ] {
        let text = [begin, &set, &many(each, 8000)].concat();
        let zones = || vec![zone("example.", &text)];
        let tables = Tables::build(zones(), 7).unwrap();
        let without = Tables::build_without_repeats(zones(), 7);
        assert!(
            tables.arena.len() < 5 * without.arena.len() + (2 << 20),
            "{} for {}",
            tables.arena.len(),
            without.arena.len()
        );
        let mut answers = [tables, without].map(|tables| {
            let mut server = Server::new(Publisher::new(Arc::new(tables)).reader(), Options::default());
            let name: Name = name.parse().unwrap();
            [Rtype::A, Rtype::NS, Rtype::TXT, Rtype(1000)]
                .map(|rtype| ask(&mut server, &question(name.view(), rtype, None), true))
        });
        for answer in answers.iter_mut().flatten() {
            answer.bytes = 0;
        }
        assert_eq!(answers[0], answers[1], "{each}");
    }
}

/// What was composed in vain has a bound, and takes nothing from referrals, which are never in vain.
#[test]
fn what_aliases_cannot_keep_is_no_repetition() {
    let many =
        |line: &str, count: usize| -> String { (0..count).map(|n| line.replace('$', &n.to_string()) + "\n").collect() };
    let begin = "$TTL 60\n@ SOA ns h 1 1 1 1 1\n@ NS ns\nns A 192.0.2.1\ndz NS ns\n";
    let set = many("a TXT 0123456789012345678901234567890123456789-$", 200);
    // the bound is met in between; beyond it one alias in some is composed, as the zone grows
    for aliases in (250..350).step_by(10) {
        let text = [begin, &set, &many("d$ CNAME a", aliases)].concat();
        let tables = Tables::build(vec![zone("example.", &text)], 7).unwrap();
        let name: Name = "dz.example".parse().unwrap();
        let entry = tables.lookup(name.as_wire()).unwrap();
        assert!(!entry.has(crate::table::flag::DEPENDS), "{aliases}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn in_every_room_what_is_sent_is_composed(seed in any::<u64>()) {
        let rng = &mut Rng::new(seed);
        let zone = draw(rng, "x.");
        let labels = ["a", "b", "c", "*", "d", "e", "ns"];
        for _ in 0..20 {
            let name = draw_labels(rng, &labels, 4);
            let name: Name = format!("{name}x.").parse().unwrap();
            for rtype in [Rtype::A, Rtype::NS, Rtype::MX, Rtype::DS] {
                check_every_room(&zone, name.view(), rtype);
            }
        }
    }

    #[test]
    fn tables_that_repeat_nothing_answer_alike(seed in any::<u64>()) {
        let rng = &mut Rng::new(seed);
        let origins = ["x.", "a.x.", "b.a.c.x."];
        let (count, drawn) = (1 + rng.below(3) as usize, rng.next_u64());
        let zones = || -> Vec<Zone> {
            let rng = &mut Rng::new(drawn);
            origins[..count].iter().map(|origin| draw(rng, origin)).collect()
        };
        let mut servers = [Tables::build(zones(), 7).unwrap(), Tables::build_without_repeats(zones(), 7)]
            .map(|tables| Server::new(Publisher::new(Arc::new(tables)).reader(), Options::default()));
        for _ in 0..150 {
            let labels = ["a", "b", "c", "*", "d", "e", "ns"];
            let name: String = (0..rng.below(6)).map(|_| format!("{}.", labels[rng.below(7) as usize])).collect();
            let name: Name = format!("{name}x.").parse().unwrap();
            let types = [Rtype::A, Rtype::NS, Rtype::CNAME, Rtype::DS, Rtype::TXT, Rtype::SOA, Rtype::ANY, Rtype(0)];
            let rtype = types[rng.below(types.len() as u64) as usize];
            let [mut usual, mut without] =
                servers.each_mut().map(|server| ask(server, &question(name.view(), rtype, None), true));
            let cut = ask(&mut servers[1], &question(name.view(), rtype, None), false);
            prop_assert!(is_cut_of(&cut, &without), "{} {}", name, rtype);
            (usual.bytes, without.bytes) = (0, 0);
            prop_assert_eq!(usual, without, "{} {}", name, rtype);
        }
    }
}
