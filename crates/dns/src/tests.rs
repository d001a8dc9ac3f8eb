//! The service held against expectations written by hand and against the reference.

use proptest::prelude::*;

use crate::compose::Composer;
use crate::reference;
use crate::serve::{Options, Server};
use crate::table::Tables;
use crate::testing::{Answer, Record, ask, question, read, server, show, zone};
use base::rng::Rng;
use zone::{Name, NameRef, Rtype, Zone};

const ZONE: &str = "\
$TTL 3600
@ SOA ns1 hostmaster 1 7200 3600 1209600 300
@ NS ns1
@ NS ns.elsewhere.
ns1 A 192.0.2.1
ns1 AAAA 2001:db8::1
@ A 192.0.2.2
@ MX 10 mail
mail A 192.0.2.3
www A 192.0.2.4
a.b.ent TXT \"deep\"
*.wild A 192.0.2.5
*.wild MX 10 mail.wild
alias CNAME www
alias2 CNAME alias
out CNAME www.elsewhere.
gone CNAME nowhere
nodata CNAME ns1
tocut CNAME x.cut
loop1 CNAME loop2
loop2 CNAME loop1
*.wloop CNAME y.wloop
*.walias CNAME www
cut NS ns.cut
cut NS ns.cut2
cut NS ns1
cut DS 1 8 2 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
ns.cut A 192.0.2.6
cut2 NS ns.cut2
ns.cut2 A 192.0.2.7
dn DNAME target
a.target A 192.0.2.8
";

fn example(options: Options) -> Server {
    server(vec![zone("example.", ZONE)], options)
}

fn line(server: &mut Server, name: &str, rtype: Rtype) -> String {
    let name: Name = name.parse().unwrap();
    show(&ask(server, &question(name.view(), rtype, None), false))
}

#[test]
fn answers_as_the_rfcs_say() {
    let mut server = example(Options::default());
    let soa = "| example./SOA |";
    for (name, rtype, expected) in [
        ("wWw.Example", Rtype::A, "NOERROR aa | www.example./A | |".to_owned()),
        ("www.example", Rtype::TXT, format!("NOERROR aa | {soa}")),
        ("b.ent.example", Rtype::A, format!("NOERROR aa | {soa}")),
        ("ent.example", Rtype::ANY, format!("NOERROR aa | {soa}")),
        ("nope.example", Rtype::A, format!("NXDOMAIN aa | {soa}")),
        ("x.www.example", Rtype::A, format!("NXDOMAIN aa | {soa}")),
        ("a.b.c.d.e.f.example", Rtype::A, format!("NXDOMAIN aa | {soa}")),
        ("example", Rtype::NS, "NOERROR aa | example./NS example./NS | | ns1.example./A ns1.example./AAAA".to_owned()),
        ("example", Rtype::ANY, "NOERROR aa | example./A | |".to_owned()),
        ("example", Rtype::MX, "NOERROR aa | example./MX | |".to_owned()),
        ("q.wild.example", Rtype::A, "NOERROR aa | q.wild.example./A | |".to_owned()),
        ("q.r.wild.example", Rtype::MX, "NOERROR aa | q.r.wild.example./MX | |".to_owned()),
        ("q.wild.example", Rtype::TXT, format!("NOERROR aa | {soa}")),
        ("*.wild.example", Rtype::A, "NOERROR aa | *.wild.example./A | |".to_owned()),
        ("wild.example", Rtype::A, format!("NOERROR aa | {soa}")),
        (
            "alias2.example",
            Rtype::A,
            "NOERROR aa | alias2.example./CNAME alias.example./CNAME www.example./A | |".into(),
        ),
        ("alias.example", Rtype::CNAME, "NOERROR aa | alias.example./CNAME | |".to_owned()),
        ("alias.example", Rtype::ANY, "NOERROR aa | alias.example./CNAME | |".to_owned()),
        ("out.example", Rtype::A, "NOERROR aa | out.example./CNAME | |".to_owned()),
        ("gone.example", Rtype::A, format!("NXDOMAIN aa | gone.example./CNAME {soa}")),
        ("nodata.example", Rtype::MX, format!("NOERROR aa | nodata.example./CNAME {soa}")),
        ("loop1.example", Rtype::A, "NOERROR aa | loop1.example./CNAME loop2.example./CNAME | |".to_owned()),
        ("z.wloop.example", Rtype::A, "NOERROR aa | z.wloop.example./CNAME y.wloop.example./CNAME | |".to_owned()),
        ("y.wloop.example", Rtype::A, "NOERROR aa | y.wloop.example./CNAME | |".to_owned()),
        ("z.walias.example", Rtype::A, "NOERROR aa | z.walias.example./CNAME www.example./A | |".to_owned()),
        ("cut.example", Rtype::DS, "NOERROR aa | cut.example./DS | |".to_owned()),
        ("cut2.example", Rtype::DS, format!("NOERROR aa | {soa}")),
        ("dn.example", Rtype::DNAME, "NOERROR aa | dn.example./DNAME | |".to_owned()),
        ("a.dn.example", Rtype::A, "NOERROR aa | dn.example./DNAME a.dn.example./CNAME a.target.example./A | |".into()),
        ("a.dn.example", Rtype::CNAME, "NOERROR aa | dn.example./DNAME a.dn.example./CNAME | |".to_owned()),
        ("b.dn.example", Rtype::A, format!("NXDOMAIN aa | dn.example./DNAME b.dn.example./CNAME {soa}")),
        ("elsewhere", Rtype::A, "REFUSED | | |".to_owned()),
        (".", Rtype::NS, "REFUSED | | |".to_owned()),
        ("example", Rtype::DS, format!("NOERROR aa | {soa}")),
        ("www.example", Rtype::AXFR, "NOTIMP | | |".to_owned()),
        ("www.example", Rtype::IXFR, "REFUSED | | |".to_owned()),
    ] {
        assert_eq!(line(&mut server, name, rtype), expected, "{name} {rtype}");
    }
    let ns = "cut.example./NS cut.example./NS cut.example./NS";
    let glue = "ns.cut.example./A ns.cut2.example./A ns1.example./A ns1.example./AAAA";
    for (name, rtype) in [("cut.example", Rtype::NS), ("a.b.cut.example", Rtype::DS), ("ns.cut.example", Rtype::A)] {
        assert_eq!(line(&mut server, name, rtype), format!("NOERROR | | {ns} | {glue}"), "{name}");
    }
    let alias = line(&mut server, "tocut.example", Rtype::A);
    assert_eq!(alias, format!("NOERROR aa | tocut.example./CNAME | {ns} | {glue}"));
}

#[test]
fn negative_answers_have_the_lower_ttl_and_the_question_s_case() {
    let mut server = example(Options::default());
    let name: Name = "NoPe.eXample".parse().unwrap();
    let answer = ask(&mut server, &question(name.view(), Rtype::A, None), false);
    assert_eq!(answer.sections[1][0].ttl, 300);
    assert_eq!(answer.question, name.as_wire());
}

#[test]
fn nested_zones_answer_for_their_own_names() {
    let outer = "@ 60 SOA ns h 1 1 1 1 60\n@ 60 NS ns\nns 60 A 192.0.2.1\nin 60 NS ns.in\nin 60 DS 1 8 1 00\nns.in 60 A 192.0.2.2\n\
                 *.far 60 TXT x\nnodel 60 TXT y\n";
    let inner = "@ 60 SOA ns h 1 1 1 1 60\n@ 60 NS ns\nns 60 A 192.0.2.3\nup 60 CNAME ns.example.\n";
    let zones = vec![
        zone("in.example.", inner),
        zone("example.", outer),
        zone("a.b.far.example.", inner),
        zone("under.cut.in.example.", inner),
    ];
    let mut server = server(zones, Options::default());
    for (name, rtype, expected) in [
        ("in.example", Rtype::NS, "NOERROR aa | in.example./NS | | ns.in.example./A"),
        ("in.example", Rtype::DS, "NOERROR aa | in.example./DS | |"),
        ("a.b.far.example", Rtype::DS, "NOERROR aa | | example./SOA |"),
        ("a.b.far.example", Rtype::TXT, "NOERROR aa | | a.b.far.example./SOA |"),
        ("b.far.example", Rtype::TXT, "NOERROR aa | b.far.example./TXT | |"),
        ("z.b.far.example", Rtype::TXT, "NOERROR aa | z.b.far.example./TXT | |"),
        ("z.a.b.far.example", Rtype::TXT, "NXDOMAIN aa | | a.b.far.example./SOA |"),
        ("up.in.example", Rtype::A, "NOERROR aa | up.in.example./CNAME | |"),
        ("cut.in.example", Rtype::A, "NXDOMAIN aa | | in.example./SOA |"),
        ("x.cut.in.example", Rtype::A, "NXDOMAIN aa | | in.example./SOA |"),
        ("ns.under.cut.in.example", Rtype::A, "NOERROR aa | ns.under.cut.in.example./A | |"),
    ] {
        assert_eq!(line(&mut server, name, rtype), expected, "{name} {rtype}");
    }
}

#[test]
fn two_zones_of_one_name_are_refused() {
    let text = "@ 60 SOA ns h 1 1 1 1 60\n@ 60 NS ns.elsewhere.\n";
    let errors = Tables::build(vec![zone("a.", text), zone("b.", text), zone("A.", text)], 1).unwrap_err();
    assert_eq!(
        errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["zone A. is given twice; remove one of them"]
    );
}

#[test]
fn a_root_zone_has_everything_below_it() {
    let mut server = server(
        vec![zone(".", "@ 60 SOA ns h 1 1 1 1 60\n@ 60 NS ns\nns 60 A 192.0.2.1\ncom 60 NS ns\n")],
        Options::default(),
    );
    assert_eq!(line(&mut server, ".", Rtype::NS), "NOERROR aa | ./NS | | ns./A");
    assert_eq!(line(&mut server, "a.b.org", Rtype::A), "NXDOMAIN aa | | ./SOA |");
    assert_eq!(line(&mut server, "a.b.com", Rtype::A), "NOERROR | | com./NS | ns./A");
}

/// A zone drawn from a seed: few labels, so that everything meets everything.
fn draw(rng: &mut Rng, origin: &str) -> Zone {
    let labels = ["a", "b", "c", "*", "d"];
    let pick = |rng: &mut Rng| labels[rng.below(5) as usize];
    let name = |rng: &mut Rng| {
        let depth = 1 + rng.below(4);
        (0..depth).map(|_| pick(rng)).collect::<Vec<_>>().join(".")
    };
    let mut text = "$TTL 60\n@ SOA ns.a h 1 1 1 1 30\n@ NS ns.a\n@ NS b\n".to_owned();
    let mut taken: Vec<(String, bool)> = Vec::new();
    for _ in 0..rng.below(40) {
        let owner = name(rng);
        let below = |outer: &str| owner.ends_with(&format!(".{outer}"));
        let above = |inner: &str| inner.ends_with(&format!(".{owner}"));
        let kind = rng.below(12);
        let dname = kind == 4;
        let clash =
            |(other, theirs): &(String, bool)| *other == owner || (*theirs && below(other)) || (dname && above(other));
        if taken.iter().any(clash) {
            continue;
        }
        let target = match rng.below(6) {
            0 => "elsewhere.".to_owned(),
            _ => name(rng),
        };
        let more = name(rng);
        text += &match kind {
            0..=2 => format!("{owner} CNAME {target}\n"),
            4 => format!("{owner} DNAME {target}\n"),
            5 | 6 => format!("{owner} NS {target}\n{owner} NS {more}\n"),
            7 => format!("{owner} NS ns.{owner}\n{owner} DS 1 8 1 00\n"),
            8 => format!("{owner} MX 1 {target}\n{owner} TXT x\n{owner} AAAA ::1\n"),
            _ => format!("{owner} A 192.0.2.1\n{owner} A 192.0.2.2\n{owner} 50 TXT y\n"),
        };
        taken.push((owner, dname));
    }
    zone(origin, &text)
}

/// What the reference says, from the innermost zone or, for DS at an apex, the one around it.
fn expected(zones: &[&Zone], name: NameRef<'_>, rtype: Rtype) -> Option<Answer> {
    let mut around: Vec<_> = zones.iter().filter(|zone| name.is_subdomain_of(zone.origin())).collect();
    around.sort_by_key(|zone| std::cmp::Reverse(zone.origin().label_count()));
    let parent_side = rtype == Rtype::DS && around.len() > 1 && around[0].origin() == name;
    let zone = around.get(usize::from(parent_side))?;
    let mut out = Composer::new();
    reference::answer(zone, name, rtype, &mut out);
    let mut message = question(name, rtype, None);
    message[2] = 0x80 | if out.authoritative { 4 } else { 0 };
    message[3] = out.rcode;
    for set in &out.sets {
        let at = 6 + 2 * set.section as usize;
        let count = u16::from_be_bytes([message[at], message[at + 1]]) + set.records;
        message[at..at + 2].copy_from_slice(&count.to_be_bytes());
    }
    message.extend_from_slice(out.body());
    Some(read(&message))
}

fn shuffled_case(rng: &mut Rng, name: &str) -> String {
    name.chars().map(|c| if rng.chance(0.5) { c.to_ascii_uppercase() } else { c }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn prepared_answers_are_the_reference_s(seed in any::<u64>()) {
        let rng = &mut Rng::new(seed);
        let origins = ["x.", "a.x.", "b.a.c.x."];
        let count = 1 + rng.below(3) as usize;
        let zones: Vec<Zone> = origins[..count].iter().map(|origin| draw(rng, origin)).collect();
        let mut server = server(zones, Options::default());
        for _ in 0..150 {
            let depth = rng.below(6);
            let labels = ["a", "b", "c", "*", "d", "e", "ns"];
            let mut text: String = (0..depth).map(|_| format!("{}.", labels[rng.below(7) as usize])).collect();
            text += "x.";
            let name: Name = shuffled_case(rng, &text).parse().unwrap();
            let types = [Rtype::A, Rtype::NS, Rtype::CNAME, Rtype::DS, Rtype::MX, Rtype::TXT, Rtype::SOA, Rtype::ANY,
                Rtype::DNAME, Rtype::AAAA, Rtype(0)];
            let rtype = types[rng.below(types.len() as u64) as usize];
            let expected = {
                let tables = server.tables();
                let zones: Vec<&Zone> = tables.zones.iter().map(|entry| &entry.zone).collect();
                expected(&zones, name.view(), rtype)
            };
            let whole = ask(&mut server, &question(name.view(), rtype, None), true);
            if let Some(expected) = expected {
                let same = Answer { bytes: whole.bytes, ..expected };
                prop_assert_eq!(&whole, &same, "{} {}", name, rtype);
            } else {
                prop_assert_eq!(show(&whole), "REFUSED | | |");
            }
            for size in [None, Some(512), Some(4096)] {
                let message = question(name.view(), rtype, size);
                let mut cut = ask(&mut server, &message, false);
                let limit = if size == Some(4096) { 1232 } else { 512 };
                prop_assert!(cut.bytes <= limit);
                if size.is_some() {
                    let opt = cut.sections[2].pop().unwrap();
                    prop_assert_eq!((opt.rtype, opt.class), (41, 1232));
                }
                prop_assert!(is_cut_of(&cut, &whole), "{:?} {:?}", cut, whole);
            }
        }
    }
}

/// Whole record sets from the front, and TC when anything but additional ones is missing.
fn is_cut_of(cut: &Answer, whole: &Answer) -> bool {
    let all = |answer: &Answer| answer.sections.concat();
    let (kept, everything): (Vec<Record>, Vec<Record>) = (all(cut), all(whole));
    let prefix = everything.starts_with(&kept);
    let whole_set = everything
        .get(kept.len())
        .is_none_or(|next| kept.last().is_none_or(|last| (&last.owner, last.rtype) != (&next.owner, next.rtype)));
    let missing_needed =
        cut.sections[0].len() < whole.sections[0].len() || cut.sections[1].len() < whole.sections[1].len();
    prefix && whole_set && (!missing_needed || cut.truncated)
}

#[test]
fn every_name_knows_its_place_in_canonical_order() {
    let server = example(Options::default());
    let tables = server.tables();
    for zone in tables.zones() {
        let zone = tables.zone(&zone.to_name()).unwrap();
        for order in 0..zone.len() {
            let name = zone.node(order).name();
            let below_cut = name.to_string().starts_with("ns.cut");
            assert_eq!(tables.place(name).map(|(_, place)| place), (!below_cut).then_some(order), "{name}");
        }
    }
    let (zone, order) = tables.place("ent.example".parse::<Name>().unwrap().view()).unwrap();
    assert_eq!(zone.node(order).name(), "a.b.ent.example".parse::<Name>().unwrap().view());
    assert!(tables.place(NameRef::ROOT).is_none());
}
