use super::*;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// A zone of hand-written records; a name in RDATA where the walk follows one.
fn zone(origin: &str, records: &[(&str, u16, &str)]) -> Zone {
    let mut nodes: BTreeMap<Name, BTreeMap<u16, Vec<Data>>> = BTreeMap::new();
    for (owner, rtype, data) in records {
        let data = match *rtype {
            rtype::NS | rtype::CNAME | rtype::DNAME => Data::Name(name(data)),
            _ => Data::Text((*data).to_owned()),
        };
        nodes.entry(name(owner)).or_default().entry(*rtype).or_default().push(data);
    }
    for owner in nodes.keys().cloned().collect::<Vec<_>>() {
        let mut above = owner;
        while above != name(origin) {
            above = parent(&above).unwrap();
            nodes.entry(above.clone()).or_default();
        }
    }
    Zone { origin: name(origin), text: String::new(), nodes }
}

fn world() -> World {
    let top = zone(
        "x.",
        &[
            ("x.", rtype::SOA, ""),
            ("x.", rtype::NS, "ns.x."),
            ("ns.x.", rtype::A, "192.0.2.1"),
            ("a.ent.x.", rtype::A, "192.0.2.2"),
            ("*.w.x.", rtype::A, "192.0.2.3"),
            ("b.w.x.", rtype::TXT, "b"),
            ("cut.x.", rtype::NS, "ns.cut.x."),
            ("cut.x.", rtype::DS, "1 8 2 00"),
            ("ns.cut.x.", rtype::A, "192.0.2.4"),
            ("bare.x.", rtype::NS, "ns.elsewhere."),
            ("wns.x.", rtype::NS, "ns.w.x."),
            ("one.x.", rtype::CNAME, "ns.x."),
            ("two.x.", rtype::CNAME, "one.x."),
            ("no.x.", rtype::CNAME, "absent.x."),
            ("out.x.", rtype::CNAME, "elsewhere."),
            ("other.x.", rtype::CNAME, "n.x."),
            ("loop.x.", rtype::CNAME, "loop.x."),
            ("tocut.x.", rtype::CNAME, "www.cut.x."),
            ("d.x.", rtype::DNAME, "ent.x."),
            ("d1.x.", rtype::DNAME, "d2.x."),
            ("d2.x.", rtype::DNAME, "d1.x."),
        ],
    );
    let nested =
        zone("n.x.", &[("n.x.", rtype::SOA, ""), ("n.x.", rtype::NS, "ns.x."), ("n.x.", rtype::A, "192.0.2.9")]);
    World { seed: 0, zones: vec![top, nested], targets: BTreeMap::new() }
}

#[test]
fn the_walk_names_the_class_of_each_answer() {
    use Class::*;
    let world = world();
    let long = format!("{}.d1.x.", ["l".repeat(60).as_str(); 4].join("."));
    for (asked, rtype, classes) in [
        ("NS.x.", rtype::A, &[Exact][..]),
        ("ns.x.", rtype::AAAA, &[Nodata]),
        ("ent.x.", rtype::A, &[EntNodata]),
        ("b.ent.x.", rtype::A, &[NxDomain]),
        ("q.w.x.", rtype::A, &[Wildcard]),
        ("q.r.w.x.", rtype::A, &[Wildcard]),
        ("q.w.x.", rtype::TXT, &[WildcardNodata]),
        ("b.w.x.", rtype::A, &[Nodata]),
        ("q.b.w.x.", rtype::A, &[NxDomain]),
        ("q.*.w.x.", rtype::A, &[NxDomain]),
        ("cut.x.", rtype::A, &[ReferralGlue]),
        ("q.cut.x.", rtype::DS, &[ReferralGlue]),
        ("cut.x.", rtype::DS, &[DsParent, Exact]),
        ("bare.x.", rtype::ANY, &[Any, Referral]),
        ("bare.x.", rtype::DS, &[DsParent, Nodata]),
        ("wns.x.", rtype::A, &[ReferralGlue]),
        ("one.x.", rtype::A, &[Cname]),
        ("one.x.", rtype::CNAME, &[Exact]),
        ("one.x.", rtype::ANY, &[Any, Exact]),
        ("two.x.", rtype::A, &[CnameChain]),
        ("no.x.", rtype::A, &[CnameNegative]),
        ("out.x.", rtype::A, &[CnameOutside]),
        ("other.x.", rtype::A, &[CnameNegative, CnameOtherZone]),
        ("loop.x.", rtype::A, &[CnameLoop]),
        ("tocut.x.", rtype::A, &[CnameReferral, ReferralGlue]),
        ("a.d.x.", rtype::A, &[Cname, Dname]),
        ("d.x.", rtype::DNAME, &[Exact]),
        ("q.d1.x.", rtype::A, &[Dname, DnameLoop]),
        ("n.x.", rtype::A, &[Exact, Nested]),
        ("n.x.", rtype::DS, &[DsNested, NxDomain]),
        ("y.", rtype::A, &[Refused]),
    ] {
        let got = world.classify(&Question::new(name(asked), rtype));
        assert_eq!(got, classes.iter().copied().collect(), "{asked} {rtype}");
    }
    // d2 is as long as d1, so this chain loops; a longer target does not fit
    assert!(world.classify(&Question::new(name(&long), rtype::A)).contains(&DnameLoop));
    let longer = format!("{}.lolo.d.x.", ["l".repeat(60).as_str(); 4].join("."));
    assert!(world.classify(&Question::new(name(&longer), rtype::A)).contains(&YxDomain));
    let chaos = Question { class: 3, ..Question::new(name("x."), rtype::TXT) };
    assert_eq!(world.classify(&chaos), BTreeSet::from([Chaos]));
}

#[test]
fn a_seed_gives_the_same_world_and_questions_again() {
    let [one, two] = [(); 2].map(|()| World::draw(9));
    assert!(one.zones.iter().zip(&two.zones).all(|(a, b)| a.text == b.text));
    assert_eq!(one.questions(4, 500), two.questions(4, 500));
    assert_ne!(one.questions(4, 500), two.questions(5, 500));
    assert_ne!(one.zones[0].text, World::draw(8).zones[0].text);
}

#[test]
fn a_question_is_a_message_that_reads_back() {
    let world = World::draw(3);
    for question in world.questions(3, 2000) {
        let wire = question.wire(7);
        let message = domain::base::Message::from_octets(&wire[..]).unwrap();
        let read = message.sole_question().unwrap();
        assert_eq!(read.qtype().to_int(), question.rtype);
        assert_eq!(
            message.opt().map(|opt| (opt.udp_payload_size(), opt.dnssec_ok())),
            question.edns.map(|size| (size, question.dnssec_ok))
        );
        assert_eq!(message.header().rd(), question.recursion_desired);
    }
}

#[test]
fn names_are_written_as_zone_files_need_them() {
    let odd = child(b" a.b\"\\\x07;", &name("x.")).unwrap();
    assert_eq!(present(&odd), "\\032a\\.b\\\"\\092\\007\\;.x.");
    assert_eq!(present(&Name::root_vec()), ".");
    let long = (0..3).fold(name("x."), |above, _| child(&[b'l'; 63], &above).unwrap());
    assert!(child(&[b'l'; 63], &long).is_none());
}
