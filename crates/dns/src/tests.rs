//! The service held against expectations written by hand and against the reference.

mod bare;
mod composed;
mod located;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use crate::compose::Composer;
use crate::question::DropReason;
use crate::reference;
use crate::serve::{Options, Server};
use crate::table::Tables;
use crate::testing::{Answer, Record, ask, question, read, server, show, zone};
use crate::{QuestionCompression, cookie, rrl};
use app::{Addresses, Datagram, Ecn, Listener, Service};
use base::Instant;
use base::counter::{Figure, Report};
use base::publish::Publisher;
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
fn a_name_of_many_types_has_each_of_them_and_no_other() {
    let has = |rtype: u16| rtype.is_multiple_of(7);
    for most in [16 * 7, 17 * 7, 300 * 7] {
        let types = (1000..=1000 + most).filter(|rtype| has(*rtype));
        let sets: String = types.map(|rtype| format!("many TYPE{rtype} \\# 1 00\n")).collect();
        let text = format!("{ZONE}{sets}tomany CNAME many\n");
        let mut server = server(vec![zone("example.", &text)], Options::default());
        for rtype in 990..1010 + most {
            let is_there = has(rtype) && (1000..=1000 + most).contains(&rtype);
            let of_many = match is_there {
                true => format!("many.example./TYPE{rtype} | |"),
                false => "| example./SOA |".into(),
            };
            assert_eq!(line(&mut server, "many.example", Rtype(rtype)), format!("NOERROR aa | {of_many}"));
            let alias = format!("NOERROR aa | tomany.example./CNAME {of_many}");
            assert_eq!(line(&mut server, "tomany.example", Rtype(rtype)), alias);
        }
        assert_eq!(line(&mut server, "tomany.example", Rtype::CNAME), "NOERROR aa | tomany.example./CNAME | |");
        assert_eq!(line(&mut server, "tomany.example", Rtype::ANY), "NOERROR aa | tomany.example./CNAME | |");
        assert_eq!(line(&mut server, "many.example", Rtype::ANY), "NOERROR aa | many.example./TYPE1001 | |");
    }
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
fn a_zone_whose_parent_is_elsewhere_says_itself_that_it_has_no_ds() {
    let outer = "@ 60 SOA ns h 1 1 1 1 60\n@ 60 NS ns\nns 60 A 192.0.2.1\nin 60 NS ns.elsewhere.\nin 60 DS 1 8 1 00\n";
    let inner = "@ 60 SOA ns h 1 1 1 1 60\n@ 60 NS ns\nns 60 A 192.0.2.3\n";
    let zones = vec![zone("example.", outer), zone("a.in.example.", inner)];
    let mut server = server(zones, Options::default());
    for (name, rtype, expected) in [
        ("a.in.example", Rtype::DS, "NOERROR aa | | a.in.example./SOA |"),
        ("a.in.example", Rtype::NS, "NOERROR aa | a.in.example./NS | | ns.a.in.example./A"),
        ("in.example", Rtype::DS, "NOERROR aa | in.example./DS | |"),
        ("c.in.example", Rtype::DS, "NOERROR | | in.example./NS |"),
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

/// Up to `most` of these labels, each with its dot.
pub(crate) fn draw_labels(rng: &mut Rng, labels: &[&str], most: u64) -> String {
    (0..rng.below(most + 1)).map(|_| format!("{}.", labels[rng.below(labels.len() as u64) as usize])).collect()
}

/// A zone drawn from a seed: few labels, so that everything meets everything.
pub(crate) fn draw(rng: &mut Rng, origin: &str) -> Zone {
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

/// What the reference says, from the innermost zone or, for DS at an apex, the one around it, unless that has a cut between them.
fn expected(zones: &[&Zone], name: NameRef<'_>, rtype: Rtype) -> Option<Answer> {
    let mut around: Vec<_> = zones.iter().filter(|zone| name.is_subdomain_of(zone.origin())).collect();
    around.sort_by_key(|zone| std::cmp::Reverse(zone.origin().label_count()));
    let is_cut = |zone: &Zone| matches!(reference::locate(zone, name, rtype), reference::Located::Cut(_));
    let parent_side = rtype == Rtype::DS && around.len() > 1 && around[0].origin() == name && !is_cut(around[1]);
    let zone = around.get(usize::from(parent_side))?;
    let mut out = Composer::new();
    reference::answer(zone, name, rtype, usize::MAX, &mut out);
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

pub(crate) fn shuffled_case(rng: &mut Rng, name: &str) -> String {
    name.chars().map(|c| if rng.chance(0.5) { c.to_ascii_uppercase() } else { c }).collect()
}

#[test]
fn aliases_of_a_large_set_do_not_repeat_it() {
    let mut text = String::from("@ SOA ns1 hostmaster 1 7200 3600 1209600 300\n@ NS ns1\nns1 A 192.0.2.1\n");
    for n in 0..200 {
        text += &format!("big TXT \"{n} {}\"\nalias{n} CNAME big\n", "x".repeat(250));
    }
    let mut server = server(vec![zone("example.", &text)], Options::default());
    assert!(server.tables().bytes() < 5 * text.len(), "{} bytes for {}", server.tables().bytes(), text.len());
    let name: Name = "alias7.example".parse().unwrap();
    let whole = ask(&mut server, &question(name.view(), Rtype::TXT, None), true);
    assert_eq!(whole.sections[0].len(), 201);
    assert_eq!(line(&mut server, "alias7.example", Rtype::A), "NOERROR aa | alias7.example./CNAME | example./SOA |");
    let cut = ask(&mut server, &question(name.view(), Rtype::TXT, Some(1232)), false);
    assert!(cut.truncated && is_cut_of(&Answer { sections: [cut.sections[0].clone(), vec![], vec![]], ..cut }, &whole));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn prepared_answers_are_the_reference_s(seed in any::<u64>()) {
        let rng = &mut Rng::new(seed);
        let origins = ["x.", "a.x.", "b.a.c.x."];
        let count = 1 + rng.below(3) as usize;
        let zones: Vec<Zone> = origins[..count].iter().map(|origin| draw(rng, origin)).collect();
        let tables = Arc::new(Tables::build(zones, 7).unwrap());
        let mut server = Server::new(Publisher::new(tables.clone()).reader(), Options::default());
        // the same over the long way, which a rate limiter makes every question take
        let unlimited = rrl::Config {
            responses_per_second: 0,
            referrals_per_second: 0,
            nodata_per_second: 0,
            nxdomains_per_second: 0,
            errors_per_second: 0,
            table_bytes: 64,
            ..rrl::Config::default()
        };
        let long = Options { rrl: Some(unlimited), ..Options::default() };
        let mut long = Server::new(Publisher::new(tables.clone()).reader(), long);
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
                prop_assert_eq!(ask(&mut server, &message, false), ask(&mut long, &message, false));
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

/// One datagram through the service; the answer's octets.
fn datagram(server: &mut Server, now: Instant, peer: &str, message: &[u8]) -> Option<Vec<u8>> {
    let mut slot = vec![0xee; 1500];
    slot[..message.len()].copy_from_slice(message);
    let peer: IpAddr = peer.parse().unwrap();
    let addresses = Addresses { local: "192.0.2.53:53".parse().unwrap(), peer: (peer, 4000).into() };
    let mut burst = [Datagram::new(&mut slot, message.len(), Ecn::NotEct, addresses)];
    server.datagrams(now, Listener(0), &mut burst);
    let bytes = burst[0].reply_bytes()?;
    Some(slot[..bytes].to_vec())
}

fn with_options(name: &str, options: &[u8]) -> Vec<u8> {
    let name: Name = name.parse().unwrap();
    let mut message = question(name.view(), Rtype::A, Some(1232));
    let at = message.len() - 2;
    message[at..].copy_from_slice(&(options.len() as u16).to_be_bytes());
    message.extend_from_slice(options);
    message
}

fn find<'a>(haystack: &'a [u8], needle: &[u8]) -> Option<&'a [u8]> {
    haystack.windows(needle.len()).position(|window| window == needle).map(|at| &haystack[at..])
}

#[test]
fn edns_is_answered_with_edns() {
    let mut server = example(Options { nsid: b"node-1".to_vec(), ..Options::default() });
    let mut go = |message: &[u8]| datagram(&mut server, Instant::ZERO, "192.0.2.1", message).unwrap();
    let nsid = go(&with_options("www.example", b"\0\x03\0\0"));
    assert!(nsid.ends_with(b"\0\0\x29\x04\xd0\0\0\0\0\0\x0a\0\x03\0\x06node-1"), "{nsid:?}");
    assert!(find(&go(&with_options("www.example", b"")), b"node-1").is_none());
    let mut later = with_options("www.example", b"");
    let version_at = later.len() - 5;
    later[version_at] = 1;
    later[version_at + 1] = 0x80;
    let badvers = go(&later);
    assert_eq!((badvers[3] & 15, &badvers[6..12]), (0, &[0, 0, 0, 0, 0, 1][..]));
    // extended RCODE 1, version 0, DO copied
    assert!(badvers.ends_with(b"\0\0\x29\x04\xd0\x01\0\x80\0\0\0"), "{badvers:?}");
    let refused = go(&with_options("elsewhere", b""));
    assert!(refused.ends_with(b"\0\0\x29\x04\xd0\0\0\0\0\0\x06\0\x0f\0\x02\0\x14"), "{refused:?}");
    let malformed = go(&with_options("www.example", b"\0\x03\0"));
    assert_eq!(
        malformed,
        [&[0xab, 0xcd, 0x81, 1, 0, 1, 0, 0, 0, 0, 0, 1], &with_options("www.example", b"")[12..]].concat()
    );
}

#[test]
fn other_classes_and_the_server_s_own_names() {
    let set = Options { version: Some("desert".into()), id: None, ..Options::default() };
    let mut server = example(set);
    let mut go = |name: &str, rtype: Rtype, class: u16| {
        let name: Name = name.parse().unwrap();
        let mut message = question(name.view(), rtype, None);
        let at = message.len() - 2;
        message[at..].copy_from_slice(&class.to_be_bytes());
        let answer = datagram(&mut server, Instant::ZERO, "::1", &message).unwrap();
        (show(&read(&answer)), answer)
    };
    let (line, wire) = go("Version.Bind", Rtype::TXT, 3);
    assert_eq!(line, "NOERROR | version.bind./TXT | |");
    assert!(wire.ends_with(b"\xc0\x0c\0\x10\0\x03\0\0\0\0\0\x07\x06desert"), "{wire:?}");
    for (name, rtype, class) in [
        ("id.server", Rtype::TXT, 3),
        ("version.bind", Rtype::A, 3),
        ("www.example", Rtype::A, 3),
        ("version.bind", Rtype::TXT, 1),
        ("www.example", Rtype::A, 4),
        ("www.example", Rtype::A, 0),
        ("elsewhere", Rtype::A, 255),
    ] {
        assert_eq!(go(name, rtype, class).0, "REFUSED | | |", "{name} {rtype} {class}");
    }
    assert_eq!(go("www.example", Rtype::A, 255).0, "NOERROR | www.example./A | |");
}

#[test]
fn random_name_floods_are_limited_and_a_cookie_exempts() {
    let limits = rrl::Config { nxdomains_per_second: 5, ..rrl::Config::default() };
    let cookies = cookie::Config::fixed(vec![[9; 16]], 1_700_000_000);
    let mut server = example(Options { rrl: Some(limits), cookies: Some(cookies), ..Options::default() });
    let mut counts = [0; 3];
    for n in 0..100 {
        let message = with_options(&format!("random{n}.example"), b"");
        match datagram(&mut server, Instant::ZERO, "192.0.2.77", &message) {
            None => counts[0] += 1,
            Some(answer) if answer[2] & 2 != 0 => counts[1] += 1,
            Some(_) => counts[2] += 1,
        }
    }
    assert_eq!(counts, [48, 47, 5]);
    assert_eq!(server.stats().drops(DropReason::RateLimited), 48);
    // the client asks over, is given a cookie, and is believed with it
    let first = with_options("www.example", b"\0\x0a\0\x08clientco");
    let answer = datagram(&mut server, Instant::ZERO, "192.0.2.77", &first).unwrap();
    let option = &find(&answer, b"\0\x0a\0\x18clientco").expect("a server cookie")[..28];
    for n in 0..50 {
        let message = with_options(&format!("random{n}.example"), option);
        let answer = datagram(&mut server, Instant::ZERO, "192.0.2.77", &message).unwrap();
        assert_eq!((answer[2] & 2, answer[3]), (0, 3));
    }
    let elsewhere = (0..50).filter(|n| {
        let message = with_options(&format!("random{n}.example"), option);
        datagram(&mut server, Instant::ZERO, "203.0.113.1", &message).is_some_and(|answer| answer[2] & 2 == 0)
    });
    assert_eq!(elsewhere.count(), 5, "the cookie is another client's");
    let after = Instant::ZERO + Duration::from_secs(60);
    assert!(datagram(&mut server, after, "192.0.2.77", &with_options("random.example", b"")).is_some());
}

/// What a server without cookies does not know the option for, it passes over (RFC 6891 section 6.1.2).
#[test]
fn a_malformed_cookie_is_malformed_only_for_who_makes_cookies() {
    for cookies in [None, Some(cookie::Config::fixed(vec![[9; 16]], 1_700_000_000))] {
        let makes = cookies.is_some();
        let mut server = example(Options { cookies, nsid: b"ns1".to_vec(), ..Options::default() });
        let mut go = |options: &[u8]| {
            datagram(&mut server, Instant::ZERO, "192.0.2.1", &with_options("www.example", options)).unwrap()
        };
        let plain = go(b"");
        for bytes in 0..=48u8 {
            let option = [&[0, 10, 0, bytes][..], &vec![7; bytes.into()]].concat();
            let answer = go(&option);
            if bytes == 8 || (16..=40).contains(&bytes) {
                assert_eq!((answer[3] & 15, answer[7]), (0, 1), "{bytes} octets");
                assert_eq!(answer.len() > plain.len(), makes, "{bytes} octets");
            } else if makes {
                assert_eq!((answer[3], &answer[4..12]), (1, &[0, 1, 0, 0, 0, 0, 0, 1][..]), "{bytes} octets");
            } else {
                assert_eq!(answer, plain, "{bytes} octets");
                let with_nsid = go(&[&option, &[0, 3, 0, 0][..]].concat());
                assert!(find(&with_nsid, b"\0\x03\0\x03ns1").is_some(), "{with_nsid:?}");
            }
        }
    }
}

/// What stands where in the tables means nothing in others.
#[test]
fn no_name_of_new_tables_has_the_debts_of_another() {
    let tables = |host: &str| {
        let text = format!("$TTL 60\n@ SOA ns h 1 1 1 1 1\n@ NS ns\nns A 192.0.2.1\n{host} A 192.0.2.2\n");
        Arc::new(Tables::build(vec![zone("example.", &text)], 7).unwrap())
    };
    let publisher = Publisher::new(tables("one"));
    let limits = rrl::Config { responses_per_second: 5, slip: 0, ..rrl::Config::default() };
    let mut server = Server::new(publisher.reader(), Options { rrl: Some(limits), ..Options::default() });
    let answered = |server: &mut Server, name: &str| {
        let go = |_: &i32| datagram(server, Instant::ZERO, "192.0.2.77", &with_options(name, b"")).is_some();
        (0..100).filter(go).count()
    };
    assert_eq!(answered(&mut server, "one.example"), 5);
    publisher.publish(tables("two"));
    server.cycle(Instant::ZERO);
    assert_eq!(answered(&mut server, "two.example"), 5);
}

/// However many names there are above the random ones: the account is the zone's.
#[test]
fn a_flood_of_random_names_below_many_names_has_one_account() {
    let text = "$TTL 60\n@ SOA ns h 1 1 1 1 1\n@ NS ns\nns A 192.0.2.1\n$GENERATE 1-100 host$ A 192.0.2.2\n";
    let limits = rrl::Config { nxdomains_per_second: 5, ..rrl::Config::default() };
    let zones = vec![zone("example.", text), zone("other.", text)];
    let mut server = server(zones, Options { rrl: Some(limits), ..Options::default() });
    for origin in ["example", "other"] {
        let whole = (1..=100).filter(|n| {
            let message = with_options(&format!("x.host{n}.{origin}"), b"");
            datagram(&mut server, Instant::ZERO, "192.0.2.77", &message).is_some_and(|answer| answer[2] & 2 == 0)
        });
        assert_eq!(whole.count(), 5, "{origin}");
    }
}

#[test]
fn a_compressed_question_is_answered_written_out() {
    let mut message = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    // the name ends in a pointer to an octet of the header that is zero: the root
    message.extend_from_slice(b"\x03wWw\x07example\xc0\x0b\0\x01\0\x01");
    let mut refusing = example(Options::default());
    let refused = datagram(&mut refusing, Instant::ZERO, "192.0.2.1", &message).unwrap();
    assert_eq!((refused.len(), refused[3]), (12, 1));
    let accept = Options { question_compression: QuestionCompression::Accept, ..Options::default() };
    let mut accepting = example(accept);
    let answer = read(&datagram(&mut accepting, Instant::ZERO, "192.0.2.1", &message).unwrap());
    assert_eq!(show(&answer), "NOERROR aa | www.example./A | |");
    assert_eq!(answer.question, b"\x03wWw\x07example\0");
}

fn counted(server: &Server, metric: &str, label: &str) -> u64 {
    let mut sum = 0;
    server.stats().report(&mut |figure: Figure<'_>| {
        if figure.name == metric && figure.labels.iter().any(|(_, value)| *value == label) {
            sum += figure.value;
        }
    });
    sum
}

#[test]
fn a_reload_is_seen_at_the_next_cycle_and_zones_keep_their_counts() {
    let text = |address: &str| format!("@ 60 SOA ns h 1 1 1 1 1\n@ 60 NS ns\nns 60 A {address}\n");
    let zones = |address: &str, origins: &[&str]| -> Vec<Zone> {
        origins.iter().map(|origin| zone(origin, &text(address))).collect()
    };
    let publisher = Publisher::new(Arc::new(Tables::build(zones("192.0.2.1", &["a.", "b."]), 7).unwrap()));
    let replace = |address: &str, origins: &[&str]| {
        let next = publisher.current().rebuild(zones(address, origins), 8).unwrap();
        publisher.publish(Arc::new(next));
    };
    let mut server = Server::new(publisher.reader(), Options::default());
    let name: Name = "ns.b".parse().unwrap();
    let address = |server: &mut Server| {
        let answer = datagram(server, Instant::ZERO, "192.0.2.1", &question(name.view(), Rtype::A, None)).unwrap();
        read(&answer).sections[0].first().map(|record| record.rdata[3])
    };
    assert_eq!(address(&mut server), Some(1));
    replace("192.0.2.2", &["c.", "b."]);
    assert_eq!(address(&mut server), Some(1), "a burst never changes tables");
    server.cycle(Instant::ZERO);
    assert_eq!(address(&mut server), Some(2));
    assert_eq!(counted(&server, "dns_zone_answers_total", "b."), 3);
    replace("192.0.2.3", &["c."]);
    let sum = |server: &Server| {
        let both = ["dns_zone_answers_total", "dns_removed_zone_answers_total"];
        both.map(|metric| counted(server, metric, "NOERROR")).iter().sum::<u64>()
    };
    assert_eq!(sum(&server), 3);
    server.cycle(Instant::ZERO);
    assert_eq!(counted(&server, "dns_zone_answers_total", "b."), 0);
    assert_eq!(sum(&server), 3, "what a removed zone answered is not forgotten");
    assert_eq!(address(&mut server), None);
    assert_eq!(counted(&server, "dns_answers_total", "REFUSED"), 1);
    assert_eq!(counted(&server, "dns_questions_by_type_total", "A"), 4);
    // tables that know nothing of those before are counted all the same
    publisher.publish(Arc::new(Tables::build(zones("192.0.2.4", &["d.", "b."]), 7).unwrap()));
    server.cycle(Instant::ZERO);
    assert_eq!(address(&mut server), Some(4));
    assert_eq!(counted(&server, "dns_zone_answers_total", "b."), 1);
    assert_eq!(sum(&server), 4);
}

#[test]
fn what_fills_64_kib_goes_over_tcp_and_what_exceeds_it_is_truncated() {
    let set = |name: &str, count: usize| -> String {
        (0..count).map(|n| format!("{name} A 10.0.{}.{}\n", n / 256, n % 256)).collect()
    };
    let text = format!("$TTL 60\n@ SOA ns h 1 1 1 1 1\n@ NS ns\n{}{}", set("large", 4000), set("huge", 4100));
    let mut server = server(vec![zone("example.", &text)], Options::default());
    let mut go = |name: &str, stream: bool| {
        let name: Name = name.parse().unwrap();
        let answer = ask(&mut server, &question(name.view(), Rtype::A, None), stream);
        (answer.sections[0].len(), answer.truncated)
    };
    assert_eq!(go("large.example", true), (4000, false));
    assert_eq!(go("large.example", false), (0, true));
    assert_eq!(go("huge.example", true), (0, true));
}

#[test]
fn glue_that_must_be_there_truncates_and_other_addresses_do_not() {
    let mut text = "$TTL 60\n@ SOA ns h 1 1 1 1 1\n@ NS ns\n".to_owned();
    for n in 0..12 {
        text += &format!("inside NS a-rather-long-name-{n}.inside\na-rather-long-name-{n}.inside AAAA ::{n}\n");
        text += &format!("beside NS a-rather-long-name-{n}.inside\n");
    }
    let mut server = server(vec![zone("example.", &text)], Options::default());
    let mut go = |name: &str, size: Option<u16>| {
        let name: Name = name.parse().unwrap();
        let answer = ask(&mut server, &question(name.view(), Rtype::A, size), false);
        let glue = answer.sections[2].iter().filter(|record| record.rtype == 28).count();
        (answer.sections[1].len(), glue, answer.truncated)
    };
    assert_eq!(go("x.inside.example", Some(1232)), (12, 12, false));
    assert_eq!(go("x.beside.example", Some(1232)), (12, 12, false));
    let (ns, glue, truncated) = go("x.inside.example", None);
    assert!(ns == 12 && glue < 12 && truncated, "RFC 9471 section 3.1: {ns} {glue}");
    let (ns, glue, truncated) = go("x.beside.example", None);
    assert!(ns == 12 && glue < 12 && !truncated, "RFC 9471 section 3.2: {ns} {glue}");
}
