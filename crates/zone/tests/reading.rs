//! Zone files as people have them: directives, omitted fields, line ends; and what refuses a zone, with its place.

use std::io::{self, Read};

use zone::{Class, Error, Limits, MemorySource, Name, Rtype, Source, Zone, load, load_within};

const HEAD: &str = "$ORIGIN example.\n$TTL 300\n@ SOA ns1 h 1 2 3 4 5\n@ NS ns1\nns1 A 192.0.2.1\n";
/// The number of the line after `HEAD`.
const NEXT: u32 = 6;

fn read(text: impl Into<Vec<u8>>) -> Result<Zone, Vec<Error>> {
    load(&MemorySource::new().with("z", text), "z", None)
}

fn records(zone: &Zone) -> Vec<String> {
    let sets = zone.nodes().flat_map(|node| node.rrsets());
    sets.flat_map(|set| set.to_string().lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// The records that `text` adds to `HEAD`'s.
fn added(text: &str) -> Vec<String> {
    let zone = read(format!("{HEAD}{text}")).unwrap_or_else(|errors| panic!("{errors:#?}"));
    let known = records(&read(HEAD).unwrap());
    records(&zone).into_iter().filter(|record| !known.contains(record)).collect()
}

fn errors(text: &str) -> Vec<String> {
    match read(format!("{HEAD}{text}")) {
        Ok(zone) => panic!("{text:?} was read: {:#?}", records(&zone)),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

/// Asserts that `text` after `HEAD` gives one error, at this line (from 1) and column of `text`, which says `what`.
#[track_caller]
fn refused(text: &str, line: u32, column: u32, what: &str) {
    let errors = errors(text);
    let place = format!("z:{}:{column}: ", NEXT + line - 1);
    assert!(
        errors.len() == 1 && errors[0].starts_with(&place) && errors[0].contains(what),
        "{place}{what}: {errors:#?}"
    );
}

#[test]
fn owners_ttls_and_classes_may_be_left_out_in_either_order() {
    let text = "a A 192.0.2.2\n  AAAA ::1\nb IN 1h A 192.0.2.3\nc 1H30m IN A 192.0.2.4\n\td\n A 192.0.2.5\n";
    refused(&text[text.find("\td").unwrap()..], 1, 2, "is not a record type");
    let expected = [
        "a.example. 300 IN A 192.0.2.2",
        "a.example. 300 IN AAAA ::1",
        "b.example. 3600 IN A 192.0.2.3",
        "c.example. 5400 IN A 192.0.2.4",
    ];
    assert_eq!(added(&text[..text.find("\td").unwrap()]), expected);
    assert_eq!(
        added("a in a 192.0.2.2\nb TYPE1 192.0.2.3\nc CLASS1 TYPE99 \\# 2 0161"),
        ["a.example. 300 IN A 192.0.2.2", "b.example. 300 IN A 192.0.2.3", "c.example. 300 IN SPF \"a\"",]
    );
}

#[test]
fn line_ends_marks_comments_and_parentheses() {
    let text = "\u{feff}; a comment\r\n$ORIGIN example.\r\n$TTL 5m ; five\r\n@ SOA ns1 h (\r\n  1 ; serial\r\n 2h 3m\r\n 4w 5 )\r\n\r\n   ; nothing\r\n  NS ns1\r\nns1 (A\r\n192.0.2.1) ; end\r\nt TXT \"a;b\" (c\r\nd)";
    let zone = read(text).unwrap();
    assert_eq!(
        records(&zone),
        [
            "example. 300 IN NS ns1.example.",
            "example. 300 IN SOA ns1.example. h.example. 1 7200 180 2419200 5",
            "ns1.example. 300 IN A 192.0.2.1",
            "t.example. 300 IN TXT \"a;b\" \"c\" \"d\"",
        ]
    );
    assert_eq!((zone.origin().to_string(), zone.class()), ("example.".to_owned(), Class::IN));
    assert_eq!((zone.len(), zone.record_count()), (3, 4));
}

#[test]
fn the_origin_is_the_callers_the_first_directives_or_the_soas() {
    let given = MemorySource::new().with("z", "@ 5 SOA a b 1 2 3 4 5\n@ NS a.test.\n");
    let zone = load(&given, "z", Some("given.test".parse().unwrap())).unwrap();
    assert_eq!(zone.origin().to_string(), "given.test.");
    // BIND writes a zone below its parent's $ORIGIN
    let zone =
        read("$ORIGIN test.\nexample 5 SOA a b 1 2 3 4 5\n 5 NS a\n$ORIGIN example.test.\nx 5 A 192.0.2.1\n").unwrap();
    assert_eq!(zone.origin().to_string(), "example.test.");
    assert!(zone.find("X.Example.Test".parse::<Name>().unwrap().view()).is_some());
    let zone = read("root.test. 5 SOA a. b. 1 2 3 4 5\nroot.test. 5 NS a.\n").unwrap();
    assert_eq!(zone.origin().to_string(), "root.test.");
    let zone = read("$ORIGIN blank.test.\n 5 SOA a b 1 2 3 4 5\n 5 NS a\n").unwrap();
    assert_eq!(zone.origin().to_string(), "blank.test.");
    assert!(read(" 5 SOA a. b. 1 2 3 4 5\n").unwrap_err()[0].to_string().starts_with("z:1:2: the record has no owner"));
    let errors = read("@ 5 SOA a b 1 2 3 4 5\n").unwrap_err();
    assert!(errors[0].to_string().starts_with("z:1:1: \"@\" is not a domain name: relative"), "{errors:#?}");
    let errors = read("$ORIGIN only.test.\n$TTL 5\nx A 192.0.2.1\n").unwrap_err();
    assert!(errors.iter().all(|error| error.what.contains("only.test. has no")), "{errors:#?}");
}

#[test]
fn without_ttl_directive_the_ttl_before_counts_and_the_soas_minimum() {
    let zone = read("$ORIGIN example.\n@ SOA a b 1 2 3 4 55\n@ NS a.test.\nx 7 A 192.0.2.1\ny A 192.0.2.1\n").unwrap();
    let ttls: Vec<u32> = zone.nodes().map(|node| node.rrsets().next().unwrap().ttl()).collect();
    // as in BIND, the SOA's minimum takes the place of a $TTL
    assert_eq!(ttls, [55, 7, 55]);
    assert_eq!(zone.warnings().len(), 1);
    let zone =
        read("$ORIGIN example.\n@ 9 SOA a b 1 2 3 4 55\n@ NS a.test.\nx 7 A 192.0.2.1\ny A 192.0.2.1\n").unwrap();
    let ttls: Vec<u32> = zone.nodes().map(|node| node.rrsets().next().unwrap().ttl()).collect();
    assert_eq!(ttls, [9, 7, 7]);
    let errors = read("$ORIGIN example.\n@ NS a.test.\n@ 9 SOA a b 1 2 3 4 55\n").unwrap_err();
    assert_eq!(errors[0].to_string(), "z:2:1: the record has no TTL; write $TTL before it (RFC 2308 4)");
}

#[test]
fn a_set_has_one_ttl_and_no_record_twice() {
    let zone =
        read(format!("{HEAD}x 60 A 192.0.2.9\nX 50 A 192.0.2.8\nx 70 A 192.0.2.9\nx 60 MX 1 M\nx MX 1 m\n")).unwrap();
    let name: Name = "x.example".parse().unwrap();
    let set = zone.find(name.view()).unwrap().rrset(Rtype::A).unwrap();
    assert_eq!((set.ttl(), set.len()), (50, 2));
    assert_eq!(set.rdatas().collect::<Vec<_>>(), [[192, 0, 2, 8], [192, 0, 2, 9]]);
    assert_eq!(zone.find(name.view()).unwrap().rrset(Rtype::MX).unwrap().len(), 1);
    let warnings: Vec<String> = zone.warnings().iter().map(ToString::to_string).collect();
    assert!(warnings[0].contains("the lowest, 50"), "{warnings:#?}");
}

#[test]
fn include_keeps_origin_and_owner_to_itself() {
    let source = MemorySource::new()
        .with(
            "zones/z",
            format!("{HEAD}own A 192.0.2.2\n$INCLUDE sub/inner.zone deep ; comment\n AAAA ::1\n$INCLUDE \"plain\"\n"),
        )
        .with("zones/sub/inner.zone", "@ A 192.0.2.3\n$ORIGIN elsewhere.example.\nx A 192.0.2.4\n$INCLUDE /abs\n")
        .with("/abs", "y A 192.0.2.5")
        .with("zones/plain", "p A 192.0.2.6\n");
    let zone = load(&source, "zones/z", None).unwrap();
    let names: Vec<String> = zone.nodes().map(|node| node.name().to_string()).collect();
    let expected = [
        "example.",
        "deep.example.",
        "x.elsewhere.example.",
        "y.elsewhere.example.",
        "ns1.example.",
        "own.example.",
        "p.example.",
    ];
    assert_eq!(names, expected);
    let own = zone.find("own.example".parse::<Name>().unwrap().view()).unwrap();
    assert!(own.has(Rtype::AAAA));
    let inner = zone.find("deep.example".parse::<Name>().unwrap().view()).unwrap().rrset(Rtype::A).unwrap();
    assert_eq!(inner.place().to_string(), "zones/sub/inner.zone:1:1");
}

#[test]
fn include_is_bounded() {
    let source = MemorySource::new().with("z", "$INCLUDE a\n").with("a", "\n $INCLUDE z\n");
    let errors = load(&source, "z", None).unwrap_err();
    assert!(errors[0].to_string().starts_with("a:2:11: \"z\" is being read already"), "{errors:#?}");
    let errors = load(&MemorySource::new().with("z", "$INCLUDE nothing\n"), "z", None).unwrap_err();
    assert!(errors[0].to_string().starts_with("z:1:10: \"nothing\" cannot be read: "), "{errors:#?}");
    let errors = load(&MemorySource::new(), "z", None).unwrap_err();
    assert!(errors.len() == 1 && errors[0].to_string().starts_with("z: the file cannot be read: "), "{errors:#?}");
    let chain = (0..40)
        .fold(MemorySource::new(), |source, at| source.with(&format!("f{at}"), format!("$INCLUDE f{}\n", at + 1)));
    let errors = load(&chain, "f0", None).unwrap_err();
    assert!(errors[0].to_string().starts_with("f16:1:10: \"f17\" is included too deep"), "{errors:#?}");
    // each file includes the next one twice: without a bound on files this would be 2^14 readings
    let tree = (0..15).fold(MemorySource::new(), |source, at| {
        source.with(&format!("f{at}"), format!("$INCLUDE f{next}\n$INCLUDE f{next}\n", next = at + 1))
    });
    let limits = Limits { files: 100, ..Limits::default() };
    let errors = load_within(&tree, "f0", None, limits).unwrap_err();
    assert!(errors.iter().any(|error| error.what.contains("one file too many; 100")), "{errors:#?}");
}

/// A file's aliases, as symbolic links and `x/..` make them.
struct Aliased(MemorySource);

impl Source for Aliased {
    fn open(&self, path: &str) -> io::Result<Box<dyn Read + '_>> {
        self.0.open(&self.identity(path))
    }

    fn identity(&self, path: &str) -> String {
        path.rsplit('/').next().unwrap().to_owned()
    }
}

#[test]
fn few_lines_of_text_take_no_more_than_their_share_of_memory() {
    let limits = |repeated_bytes| Limits { repeated_bytes, ..Limits::default() };
    let head = "$ORIGIN example.\n$TTL 300\n@ SOA ns host 1 2 3 4 5\n@ NS ns\nns A 192.0.2.1\n";
    let read = |text: &str, repeated_bytes| {
        let block = "b A 192.0.2.2\n".repeat(1000);
        let source =
            MemorySource::new().with("z", head.to_owned() + text).with("block", block).with("i", "$INCLUDE d/block\n");
        load_within(&Aliased(source), "z", None, limits(repeated_bytes))
    };
    // the first reading of a file is the author's own text
    assert!(read("$INCLUDE block\n", 0).is_ok());
    let (again, text) = (14_000, "$INCLUDE block\n$INCLUDE x/../block\n");
    assert!(read(text, again).is_ok());
    let errors = read(text, again - 1).unwrap_err();
    let why =
        "z:7:10: \"x/../block\" is read again: with it there is more text than the 13999 octets that all $GENERATE";
    assert!(errors.iter().any(|error| error.to_string().starts_with(why)), "{errors:#?}");
    // also inside of others, each of which takes from the same
    let text = "$INCLUDE i\n$INCLUDE i\n$INCLUDE i\n";
    let again = 2 * (again + 17);
    assert!(read(text, again).is_ok());
    assert!(read(text, again - 1).unwrap_err().iter().any(|error| error.to_string().starts_with("i:1:10: ")));
    // what a line makes: "g" and its number, TXT, and 100 octets
    let text = format!("$GENERATE 10-19 g$ TXT {}\n", "t".repeat(100));
    assert!(read(&text, 1060).is_ok());
    let errors = read(&text, 1059).unwrap_err();
    assert!(errors[0].to_string().starts_with("z:6:11: \"10-19\" makes more text than the 1059 octets"), "{errors:#?}");
}

#[test]
fn generate_makes_records() {
    assert_eq!(
        added("$GENERATE 1-3/2 h$ A 192.0.2.$\n"),
        ["h1.example. 300 IN A 192.0.2.1", "h3.example. 300 IN A 192.0.2.3"]
    );
    let text = "$GENERATE 9-10 ${-8,3,x} 1h IN MX \"$0 m${0,2}\" ; comment\n$GENERATE 5-5 t TXT \\$ $ a\\ b\n";
    let expected = [
        "001.example. 3600 IN MX 90 m09.example.",
        "002.example. 3600 IN MX 100 m10.example.",
        "t.example. 300 IN TXT \"$\" \"5\" \"a b\"",
    ];
    assert_eq!(added(text), expected);
    assert_eq!(
        added("$ORIGIN ip6.example.\n$GENERATE 18-18 ${0,3,n} PTR h$.test.\n"),
        ["2.1.ip6.example. 300 IN PTR h18.test."]
    );
    refused("$GENERATE 3-1 h$ A 192.0.2.$\n", 1, 11, "is not a range");
    refused("$GENERATE 1-2147483647 h$ A 192.0.2.$\n", 1, 11, "makes more records");
    refused("$GENERATE 250-260 h$ A 192.0.2.$\n", 1, 24, "\"192.0.2.256\" is not an IPv4 address");
    refused("$GENERATE 1-2 h${0,1,z} A 192.0.2.$\n", 1, 15, "bad $");
    refused("$GENERATE 1-2\n", 1, 11, "an owner is missing");
}

#[test]
fn words_that_cannot_be_read_name_their_place() {
    refused("a A 192.0.2\n", 1, 5, "\"192.0.2\" is not an IPv4 address");
    refused("a A 192.0.2.1 192.0.2.2\n", 1, 15, "more than A takes");
    refused("a MX 10\n", 1, 6, "a domain name is missing");
    refused("a FOO x\n", 1, 3, "not a record type");
    refused("$FOO x\n", 1, 1, "not a directive");
    refused("$TTL 1 2\n", 1, 8, "more than the directive takes");
    refused("a MX 10 b..c\n", 1, 9, "an empty label");
    refused("a TXT \"a\\999\"\n", 1, 7, "bad escape");
    refused("a A \\# 4 c00002\n", 1, 8, "octets are announced, but 3 follow");
    refused("a A \\# 3 c00002\n", 1, 5, "malformed");
    refused("a TYPE4711 c00002\n", 1, 12, "\\# LENGTH HEX");
    refused("a AXFR \\# 0\n", 1, 1, "no type that a zone can hold");
    refused("a NSEC b TYPE0\n", 1, 10, "record type");
    refused("a TXT \"open\n", 1, 7, "quotation mark is not closed");
    refused("a TXT (open\nb A 192.0.2.1\n", 1, 7, "parenthesis is not closed");
}

#[test]
fn sizes_beyond_the_protocols_refuse_the_zone() {
    refused(&format!("{} A 192.0.2.1\n", "a".repeat(64)), 1, 1, "a label of 64 octets; 63 is the most");
    refused(&format!("{} A 192.0.2.1\n", "aa.".repeat(84) + "aa"), 1, 1, "more than 255 octets");
    refused("a 2147483648 A 192.0.2.1\n", 1, 3, "2147483647 is the most");
    refused("a 99999999999 A 192.0.2.1\n", 1, 3, "is not a TTL");
    refused("$TTL 2147483648\n", 1, 6, "2147483647 is the most");
    refused(&format!("a TXT {}\n", "a".repeat(256)), 1, 7, "has 256 octets; 255 is the most");
    refused(&format!("a TXT {}\n", format!("{} ", "a".repeat(255)).repeat(257)), 1, 7, "65792 octets; 65535");
    assert_eq!(added("a 2147483647 A 192.0.2.1\n"), ["a.example. 2147483647 IN A 192.0.2.1"]);
    assert_eq!(added(&format!("a TXT {}\n", format!("{} ", "a".repeat(255)).repeat(255))).len(), 1);
    let longest = format!("{}.{}.{}.{}", "a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(53));
    assert_eq!(added(&format!("{longest} A 192.0.2.1\n")).len(), 1);
}

#[test]
fn what_the_zone_must_be() {
    refused("@ SOA ns1 h 2 2 3 4 5\n", 1, 1, "has 2 SOA records");
    refused("a SOA ns1 h 2 2 3 4 5\n", 1, 1, "not at the zone's apex");
    refused("a CNAME b\na A 192.0.2.1\n", 2, 1, "CNAME and A beside it");
    refused("a TXT b\n  CNAME b\n", 1, 1, "CNAME and TXT beside it");
    refused("a CNAME b\na CNAME c\n", 2, 1, "2 CNAME records");
    refused("a DNAME b\na DNAME c\n", 2, 1, "2 DNAME records");
    refused("x.y.a A 192.0.2.1\na DNAME b\n", 1, 1, "below the DNAME of a.example.");
    // a cut's glue is not to blame for the DNAME beside the NS, which may stand at the apex
    refused("a NS ns.test.\na DNAME b\n", 2, 1, "a.example. has a DNAME and the NS of a delegation");
    refused("a NS ns.a\na DNAME b\nns.a A 192.0.2.1\n", 2, 1, "a.example. has a DNAME and the NS of a delegation");
    assert!(read("$ORIGIN example.\n$TTL 3\n@ SOA a.test. b 1 2 3 4 5\n@ NS a.test.\n@ DNAME b.test.\n").is_ok());
    refused("b.test. A 192.0.2.1\n", 1, 1, "outside the zone example.");
    refused("a CH A 192.0.2.1\n", 1, 1, "class CH in a zone of class IN");
    let of_class = |class: &str| format!("$ORIGIN x.\n@ 60 {class} SOA a. b. 1 2 3 4 5\n@ 60 {class} NS a.\n");
    for class in ["CH", "HS", "CLASS255"] {
        let errors = load(&MemorySource::new().with("z", of_class(class)), "z", None).unwrap_err();
        let what = format!("z:2:1: the zone x. is of class {class}, but only class IN is served");
        assert!(errors.len() == 1 && errors[0].to_string().starts_with(&what), "{errors:?}");
    }
    assert!(load(&MemorySource::new().with("z", of_class("CLASS1")), "z", None).is_ok());
    refused("  DNSKEY 257 3 13 AQID\n@ DNSKEY 257 3 13 AQID\n", 2, 1, "DNSSEC answers do not exist yet");
    // allowed beside a CNAME: RFC 4034 section 2.5, RFC 2535 section 2.3.5
    assert_eq!(
        added("a CNAME b\na NSEC b CNAME\na RRSIG CNAME 13 2 300 20300101000000 20200101000000 1 example. AQID\n")
            .len(),
        3
    );
    for (missing, zone) in
        [("NS", "$ORIGIN example.\n$TTL 3\n@ SOA a. b. 1 2 3 4 5\n"), ("SOA", "$ORIGIN example.\n$TTL 3\n@ NS a.\n")]
    {
        let errors = read(zone).unwrap_err();
        let expected = format!("z: the zone example. has no {missing} at its apex");
        assert!(errors.len() == 1 && errors[0].to_string().starts_with(&expected), "{errors:#?}");
    }
    assert_eq!(read("").unwrap_err().len(), 2);
}

#[test]
fn what_is_only_doubtful_is_a_warning() {
    let text = "@ MX 1 alias\nalias CNAME ns1\nsub NS ns.sub\nsub NS ns2.sub\nns2.sub AAAA ::1\n@ MX 2 gone\n@ MX 3 any.wild\n*.wild A 192.0.2.1\nd.sub.test.example. SRV 1 1 1 x.sub\ns SVCB 0 a. port=1\ns HTTPS 1 a. no-default-alpn\n";
    let zone = read(format!("{HEAD}{text}")).unwrap();
    let mut warnings: Vec<String> = zone.warnings().iter().map(|warning| warning.what.clone()).collect();
    warnings.sort();
    let expected = [
        "the HTTPS of s.example. has no-default-alpn without alpn (RFC 9460 7.1.1)",
        "the MX of example. points at alias.example., which is a CNAME (RFC 2181 10.3)",
        "the MX of example. points at gone.example., which has no address",
        "the NS of sub.example. points at ns.sub.example., which has no glue",
        "the SVCB of s.example. has priority 0, AliasMode, which takes no parameters (RFC 9460 2.4.2)",
    ];
    assert_eq!(warnings, expected);
}

#[test]
fn every_error_of_a_run_is_kept_up_to_a_bound() {
    let found =
        errors("a A x\nb A y\n\nc CNAME a\nc A 192.0.2.1\n.. A 192.0.2.1\n  A 192.0.2.2\n  A z\nd.test. A 192.0.2.1\n");
    let places: Vec<&str> = found.iter().filter_map(|error| error.split(": ").next()).collect();
    assert_eq!(places, ["z:6:5", "z:7:5", "z:11:1", "z:13:5", "z:14:1", "z:10:1"]);
    let flood = errors(&"a A x\n".repeat(150));
    assert_eq!((flood.len(), flood[100].as_str()), (101, "z: and 50 more errors"));
    assert_eq!(errors(&"a A x\n".repeat(100_000)).len(), 101);
}

struct Broken;

impl Source for Broken {
    fn open(&self, _: &str) -> io::Result<Box<dyn Read + '_>> {
        /// An interruption, an octet at a time, and at the end an error.
        struct Failing(usize);
        impl Read for Failing {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                self.0 += 1;
                if self.0 == 1 {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                into[0] = *HEAD.as_bytes().get(self.0 - 2).ok_or_else(|| io::Error::other("the disk is gone"))?;
                Ok(1)
            }
        }
        Ok(Box::new(Failing(0)))
    }
}

#[test]
fn a_file_that_cannot_be_read_to_its_end_refuses_the_zone() {
    let errors = load(&Broken, "z", None).unwrap_err();
    assert_eq!(
        errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["z: the file cannot be read to its end: the disk is gone"]
    );
}
