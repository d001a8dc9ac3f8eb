//! Properties of the whole crate: zones against a slow twin, rdata there and back, and input from strangers.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use crate::name::tests::any_name;
use crate::store::TYPES_READ;
use crate::svcb::PARAMS_READ;
use crate::zone::SEARCHES;
use crate::{Builder, Class, Limits, MemorySource, Name, NameRef, Rtype, layout, load, load_within};

/// A name's labels from the right in lower case: what sorts as canonical order does.
type Key = Vec<Vec<u8>>;
type Records = BTreeSet<(Rtype, Vec<u8>)>;

fn key(name: NameRef<'_>) -> Key {
    let mut key: Key = name.labels().map(<[u8]>::to_ascii_lowercase).collect();
    key.reverse();
    key
}

fn soa(builder: &mut Builder, origin: &Name) {
    let rdata = [&[0, 0][..], &[0; 20]].concat();
    builder.add(origin.view(), Class::IN, 60, Rtype::SOA, &rdata);
    builder.add(origin.view(), Class::IN, 60, Rtype::NS, b"\x01n\0");
}

fn below(name: &Name, origin: &Name) -> Option<Name> {
    let labels = &name.as_wire()[..name.as_wire().len() - 1];
    Name::from_wire(&[labels, origin.as_wire()].concat()).ok()
}

#[test]
fn a_name_with_an_address_takes_at_most_64_octets() {
    let lines: String = (0..10_000).map(|host| format!("host{host} A 192.0.2.{}\n", host % 256)).collect();
    let text = format!("$ORIGIN example.com.\n$TTL 1\n@ SOA a. b. 1 2 3 4 5\n@ NS a.\n{lines}");
    let zone = load(&MemorySource::new().with("z", text), "z", None).unwrap();
    assert_eq!(zone.len(), 10_001);
    assert!(zone.bytes() <= 64 * zone.len(), "{}", zone.bytes());
}

/// A question, and a record that refers to it, cost no more where a name has very many records of another type.
#[test]
fn what_a_name_has_is_looked_up_without_a_walk() {
    const LONG: usize = 20_000;
    let text = format!(
        "$ORIGIN example.com.\n$TTL 1\n@ SOA a. b. 1 2 3 4 5\n@ NS a.\n\
         $GENERATE 1-{LONG} big TXT $\nbig A 192.0.2.1\nbig AAAA ::1\nbig SRV 1 2 3 a.\n$GENERATE 1-2000 m$ MX 1 big\n"
    );
    TYPES_READ.set(0);
    let zone = load(&MemorySource::new().with("z", text), "z", None).unwrap();
    // each of the 2,000 asks for some types of the 20,000
    assert!(TYPES_READ.get() < 5_000_000, "{}", TYPES_READ.get());
    let big = zone.find("big.example.com".parse::<Name>().unwrap().view()).unwrap();
    TYPES_READ.set(0);
    let lengths = [Rtype::A, Rtype::TXT, Rtype::AAAA, Rtype::SRV, Rtype::MX, Rtype(65_280)]
        .map(|rtype| big.rrset(rtype).map_or(0, |set| set.len()));
    assert_eq!((lengths, big.rrsets().count()), ([1, LONG, 1, 1, 0, 0], 4));
    assert!(TYPES_READ.get() < 500, "{}", TYPES_READ.get());
}

/// Nor where their targets have many labels, each of which exists; and when there are warnings enough, nothing is looked up for more.
#[test]
fn targets_are_checked_by_a_few_searches_each() {
    const DEEP: usize = 110;
    let deep = ["a"; DEEP].join(".");
    let levels = |top: &str| -> String {
        (1..=DEEP).map(|labels| format!("{}.{top} TXT t\n", ["a"; DEEP][..labels].join("."))).collect()
    };
    let read = |text: &str| {
        let begin = "$ORIGIN example.\n$TTL 1\n@ SOA a. b. 1 2 3 4 5\n@ NS a.\n".to_owned();
        SEARCHES.set(0);
        let zone = load(&MemorySource::new().with("z", begin + text), "z", None).unwrap();
        (zone.warnings().to_vec(), SEARCHES.get())
    };
    // all may exist at whom `cut` is delegated to
    let elsewhere = format!("cut NS a.\n{}$GENERATE 1-3000 h$ MX 1 $.{deep}.cut\n", levels("cut"));
    let (warnings, searches) = read(&elsewhere);
    assert!(warnings.is_empty() && searches < 10_000, "{warnings:?} {searches}");
    let by_wildcard = format!("{}*.{deep}.w A 192.0.2.1\n$GENERATE 1-3000 h$ MX 1 $.{deep}.w\n", levels("w"));
    let (warnings, searches) = read(&by_wildcard);
    assert!(warnings.is_empty() && searches < 13_000, "{warnings:?} {searches}");
    let missing = format!("{}$GENERATE 1-30000 h$ MX 1 $.{deep}.w\n", levels("w"));
    let (warnings, searches) = read(&missing);
    assert!(warnings.len() == 101 && searches < 1_000, "{searches}");
    assert_eq!(warnings[100].what, "and at least 100 more warnings");
}

/// A wildcard above answers for what does not exist, and for nothing else.
#[test]
fn a_target_may_have_the_addresses_of_its_closest_encloser_s_wildcard() {
    let text = "$ORIGIN example.\n$TTL 1\n@ SOA a. b. 1 2 3 4 5\n@ NS a.\n* A 192.0.2.1\nhost TXT t\nb.ent TXT t\n\
        @ MX 1 gone\n@ MX 1 x.y.gone\n@ MX 1 host\n@ MX 1 ent\n@ MX 1 x.host\ncut NS ns.cut\n@ MX 1 x.cut\n";
    let zone = load(&MemorySource::new().with("z", text), "z", None).unwrap();
    let mut whats: Vec<&str> = zone.warnings().iter().map(|warning| warning.what.as_str()).collect();
    whats.sort_unstable();
    assert_eq!(
        whats,
        [
            "the MX of example. points at ent.example., which has no address",
            "the MX of example. points at host.example., which has no address",
            "the MX of example. points at x.host.example., which has no address",
            "the NS of cut.example. points at ns.cut.example., which has no glue",
        ]
    );
}

/// One record may have 16,000 parameters, and a few lines thousands of such records.
#[test]
fn parameters_of_a_service_are_read_a_few_times_each() {
    const KEYS: u16 = 12_000;
    let keys = || (10..KEYS).map(|key| format!("key{key}"));
    let mandatory = keys().step_by(4).collect::<Vec<_>>().join(",");
    // in no order, and the last of them twice
    let params = keys().rev().collect::<Vec<_>>().join(" ");
    let text = |more: &str| {
        format!(
            "$ORIGIN example.\n$TTL 1\n@ SOA a. b. 1 2 3 4 5\n@ NS a.\n\
             x SVCB 1 . {params} (\n mandatory={mandatory} {more})\n"
        )
    };
    PARAMS_READ.set(0);
    let read = |more: &str| load(&MemorySource::new().with("z", text(more)), "z", None);
    assert_eq!(read("").unwrap().warnings(), []);
    assert!(PARAMS_READ.get() < 10 * u64::from(KEYS), "{}", PARAMS_READ.get());
    // the first that is wrong is told of, where it stands
    for more in ["key10", "mandatory=key11", "key10 key11=\\999"] {
        let errors = read(more).unwrap_err();
        let error = errors[0].to_string();
        assert!(errors.len() == 1 && error.starts_with("z:6:") && error.contains("repeats a key"), "{more} {error}");
    }
}

#[test]
fn a_builder_checks_as_a_file_is_checked() {
    let origin: Name = "example".parse().unwrap();
    let mut builder = Builder::new(Some(origin.clone()));
    soa(&mut builder, &origin);
    builder.add(origin.view(), Class::IN, 60, Rtype::A, &[1, 2, 3]);
    builder.add(origin.view(), Class::IN, 1 << 31, Rtype::A, &[1, 2, 3, 4]);
    builder.add(origin.view(), Class::CH, 60, Rtype::TXT, b"\x01a");
    builder.add(origin.view(), Class::IN, 60, Rtype::ANY, b"");
    builder.add(origin.view(), Class::IN, 60, Rtype::NULL, &vec![0; 65536]);
    builder.add(NameRef::ROOT, Class::IN, 60, Rtype::A, &[1, 2, 3, 4]);
    let errors: Vec<String> = builder.finish().unwrap_err().iter().map(ToString::to_string).collect();
    let expected =
        ["of A is malformed", "TTL 2147483648", "class CH", "ANY is no type", "65536 octets", "outside the zone"];
    assert_eq!(errors.len(), expected.len(), "{errors:#?}");
    for (error, expected) in errors.iter().zip(expected) {
        assert!(error.starts_with("<memory>:3: ") && error.contains(expected), "{error}");
    }
}

#[test]
fn signatures_are_found_beside_what_they_cover() {
    let text = "$ORIGIN example.\n$TTL 9\n@ SOA a. b. 1 2 3 4 5\n@ NS a.\nx 7 A 192.0.2.1\nx 8 TXT t\n\
        x 7 RRSIG A 13 2 7 20300101000000 20200101000000 1 example. AQID\n\
        x 8 RRSIG TXT 13 2 8 20300101000000 20200101000000 1 example. AQID\n";
    let zone = load(&MemorySource::new().with("z", text), "z", None).unwrap();
    let name: Name = "x.example".parse().unwrap();
    let node = zone.find(name.view()).unwrap();
    for (rtype, covered) in [(Rtype::A, [0, 1]), (Rtype::TXT, [0, 16])] {
        let sigs: Vec<&[u8]> = node.rrset(rtype).unwrap().sigs().collect();
        assert!(sigs.len() == 1 && sigs[0].starts_with(&covered), "{rtype} {sigs:?}");
    }
    // each signature has the TTL of what it covers, and that is no difference within a set
    assert_eq!(zone.warnings(), []);
    assert_eq!(node.rrset(Rtype::RRSIG).unwrap().ttls().collect::<Vec<_>>(), [7, 8]);
}

proptest! {
    #[test]
    fn a_zone_is_its_sorted_records(
        origin in any_name(),
        records in vec((any_name(), 0..4u8, any::<bool>()), 0..60),
        shared in vec(any::<u8>(), 0..20),
    ) {
        let mut builder = Builder::new(Some(origin.clone()));
        soa(&mut builder, &origin);
        let mut twin: BTreeMap<Key, Records> = BTreeMap::new();
        let mut lookups = Vec::new();
        for (name, last, alike) in records {
            // many names alike in their first octets, so that the sort keys tie
            let Some(stem) = (if alike && !shared.is_empty() {
                let label = [&[shared.len() as u8], shared.as_slice(), &[0]].concat();
                below(&name, &Name::from_wire(&label).unwrap())
            } else {
                Some(name)
            }) else { continue };
            let Some(owner) = below(&stem, &origin) else { continue };
            builder.add(owner.view(), Class::IN, 60, Rtype::A, &[192, 0, 2, last]);
                        twin.entry(key(owner.view())).or_default().insert((Rtype::A, vec![192, 0, 2, last]));
            lookups.push(owner);
        }
                let at_apex = twin.entry(key(origin.view())).or_default();
        at_apex.insert((Rtype::NS, b"\x01n\0".to_vec()));
        at_apex.insert((Rtype::SOA, vec![0; 22]));
        let zone = builder.finish().unwrap();
        let found: Vec<(Key, Records)> = zone.nodes().map(|node| {
                        let records = node.rrsets().flat_map(|set| set.rdatas().map(move |rdata| (set.rtype(), rdata.to_vec())));
            (key(node.name()), records.collect())
        }).collect();
        prop_assert_eq!(zone.record_count(), twin.values().map(BTreeSet::len).sum::<usize>());
        prop_assert_eq!(found, twin.into_iter().collect::<Vec<_>>());
        for name in lookups {
            prop_assert_eq!(zone.find(name.to_lower().view()).unwrap().name(), name.view());
            let mut ancestor = name.view();
            while let Some(parent) = ancestor.parent().filter(|parent| parent.is_subdomain_of(origin.view())) {
                prop_assert!(zone.exists(parent));
                ancestor = parent;
            }
            for beside in [&b"\x01!\0"[..], b"\x01z\x01\0\0"] {
                let Some(other) = below(&Name::from_wire(beside).unwrap(), &name) else { continue };
                let mut expected = other.view();
                while !zone.exists(expected) {
                    expected = expected.parent().unwrap();
                }
                prop_assert_eq!(zone.encloser(other.view()), expected);
            }
        }
    }

    #[test]
    fn rdata_that_passes_the_check_is_printed_and_read_back(
        rtype in prop_oneof![4 => prop::sample::select(Rtype::MNEMONICS.iter().map(|row| row.0).collect::<Vec<_>>()), 1 => any::<u16>().prop_map(Rtype)],
        rdata in prop_oneof![
            vec(any::<u8>(), 0..40),
            vec(prop_oneof![0..4u8, Just(0x12), any::<u8>()], 0..40),
        ],
    ) {
        if rtype.is_meta() || matches!(rtype, Rtype::SOA | Rtype::CNAME | Rtype::DNAME) || layout::check(rtype, &rdata).is_err() {
            return Ok(());
        }
        let text = rtype.rdata_text(&rdata).to_string();
        let zone = load(
            &MemorySource::new().with("z", format!("$TTL 1\n@ SOA a. b. 1 2 3 4 5\n@ NS a.\nx {rtype} {text}\n")),
            "z",
            Some("example".parse().unwrap()),
        );
        let zone = zone.map_err(|errors| TestCaseError::fail(format!("{rtype} {text}: {errors:?}")))?;
        let name: Name = "x.example".parse().unwrap();
        let set = zone.find(name.view()).unwrap().rrset(rtype).unwrap();
        prop_assert_eq!(set.rdatas().next().unwrap(), rdata.as_slice(), "{}", text);
        for (at, name) in rtype.embedded_names(&rdata) {
            prop_assert_eq!(&rdata[at..at + name.as_wire().len()], name.as_wire());
        }
    }

    #[test]
    fn a_printed_zone_is_the_zone(owners in vec(any_name(), 0..20), texts in vec(vec(any::<u8>(), 0..30), 1..5)) {
        let origin: Name = "Example.test".parse().unwrap();
        let mut builder = Builder::new(Some(origin.clone()));
        soa(&mut builder, &origin);
        for (at, owner) in owners.iter().enumerate() {
            let text = &texts[at % texts.len()];
            let rdata = [&[text.len() as u8], text.as_slice()].concat();
            if let Some(owner) = below(owner, &origin) {
                builder.add(owner.view(), Class::IN, at as u32 % 3, Rtype::TXT, &rdata);
            }
        }
        let zone = builder.finish().unwrap();
        let text: String = zone.nodes().flat_map(|node| node.rrsets().map(|set| set.to_string())).collect();
        let again = load(&MemorySource::new().with("z", text), "z", None).unwrap();
        prop_assert_eq!(again, zone);
    }

    #[test]
    fn arbitrary_octets_never_panic(input in vec(any::<u8>(), 0..400)) {
        read_as_stranger(input);
    }

    /// Words that mean something, in an order that need not.
    #[test]
    fn arbitrary_words_never_panic(words in vec(prop::sample::select(WORDS.to_vec()), 0..80)) {
        read_as_stranger(words.join(" ").into_bytes());
        read_as_stranger([b"$ORIGIN a.\n$TTL 1\n@ SOA a a 1 2 3 4 5\n@ NS a\n", words.join(" ").as_bytes()].concat());
    }
}

const WORDS: &[&str] = &[
    "\n",
    "\n",
    "\n",
    "\na",
    "\n@",
    "$ORIGIN",
    "$TTL",
    "$INCLUDE",
    "$GENERATE",
    "z",
    "1-3",
    "0-9/4",
    "a$",
    "${1,2,x}",
    "(",
    ")",
    "\"",
    ";",
    "\"a b\"",
    "\\#",
    "\\000",
    "\\",
    "A",
    "AAAA",
    "MX",
    "TXT",
    "SOA",
    "NS",
    "CNAME",
    "DNAME",
    "LOC",
    "APL",
    "SVCB",
    "HTTPS",
    "NSEC",
    "NSEC3",
    "RRSIG",
    "HIP",
    "IPSECKEY",
    "AMTRELAY",
    "WKS",
    "A6",
    "NSAP",
    "CAA",
    "NAPTR",
    "DNSKEY",
    "TYPE300",
    "IN",
    "CH",
    "1",
    "2",
    "0",
    "3600",
    "1h30m",
    "192.0.2.1",
    "::1",
    "a.",
    "b.a.",
    ".",
    "-",
    "c0000201",
    "AQID",
    "alpn=h2",
    "mandatory=alpn",
    "port=53",
    "key9=",
    "ech=\"AQ==\"",
    "1:10.0.0.0/8",
    "!2:ff::/8",
    "N",
    "E",
    "10m",
    "20300101000000",
    "0x47.00",
    "00-01-02-03-04-05",
    "65535",
    "65536",
    "99999999999",
];

fn read_as_stranger(input: Vec<u8>) {
    let limits = Limits { include_depth: 3, files: 10, generated: 1000, repeated_bytes: 100_000 };
    let source = MemorySource::new().with("z", input.clone()).with("a", input);
    for origin in [None, Some("a".parse().unwrap())] {
        match load_within(&source, "z", origin, limits) {
            Ok(zone) => assert_eq!(zone.soa().len(), 1),
            Err(errors) => assert!(!errors.is_empty() && errors.len() <= 101),
        }
    }
}
