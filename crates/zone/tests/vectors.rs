//! Examples and failure cases that RFCs print.

use zone::{MemorySource, Name, Rtype, load};

fn read(record: &str) -> Result<Vec<u8>, String> {
    let text = format!("$TTL 300\n@ SOA ns1 h 1 2 3 4 5\n@ NS ns1\nns1 A 192.0.2.1\nx {record}\n");
    let zone = load(&MemorySource::new().with("z", text), "z", Some("example".parse().unwrap()));
    let zone = zone.map_err(|errors| errors[0].to_string())?;
    let name: Name = "x.example".parse().unwrap();
    let rtype = Rtype::parse(record.split(' ').next().unwrap().as_bytes()).unwrap();
    Ok(zone.find(name.view()).unwrap().rrset(rtype).unwrap().rdatas().next().unwrap().to_vec())
}

fn name(text: &str) -> Vec<u8> {
    text.parse::<Name>().unwrap().as_wire().to_vec()
}

#[test]
fn rfc_9460_appendix_d() {
    let foo = name("foo.example.com");
    let org = name("foo.example.org");
    let with = |priority: u8, target: &[u8], params: &[u8]| [&[0, priority], target, params].concat();
    let v6 = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let alpn = b"\x00\x01\x00\x0c\x08f\\oo,bar\x02h2";
    let cases: &[(&str, Vec<u8>)] = &[
        ("HTTPS 0 foo.example.com.", with(0, &foo, b"")),
        ("SVCB 1 .", with(1, &[0], b"")),
        ("SVCB 16 foo.example.com. port=53", with(16, &foo, b"\x00\x03\x00\x02\x00\x35")),
        ("SVCB 1 foo.example.com. key667=hello", with(1, &foo, b"\x02\x9b\x00\x05hello")),
        (r#"SVCB 1 foo.example.com. key667="hello\210qoo""#, with(1, &foo, b"\x02\x9b\x00\x09hello\xd2qoo")),
        (
            r#"SVCB 1 foo.example.com. ipv6hint="2001:db8::1,2001:db8::53:1""#,
            with(1, &foo, &[b"\x00\x06\x00\x20", &v6("2001:db8::1")[..], &v6("2001:db8::53:1")].concat()),
        ),
        (
            "SVCB 16 foo.example.org. alpn=h2,h3-19 mandatory=ipv4hint,alpn ipv4hint=192.0.2.1",
            with(
                16,
                &org,
                b"\x00\x00\x00\x04\x00\x01\x00\x04\x00\x01\x00\x09\x02h2\x05h3-19\x00\x04\x00\x04\xc0\x00\x02\x01",
            ),
        ),
        (r#"SVCB 16 foo.example.org. alpn="f\\\\oo\\,bar,h2""#, with(16, &org, alpn)),
        (r"SVCB 16 foo.example.org. alpn=f\\\092oo\092,bar,h2", with(16, &org, alpn)),
    ];
    for (text, octets) in cases {
        assert_eq!(read(text).as_ref(), Ok(octets), "{text}");
    }
}

#[test]
fn rfc_9460_appendix_d_failure_cases() {
    for text in [
        "SVCB 1 foo.example.com. key123=abc key123=def",
        "SVCB 1 foo.example.com. mandatory",
        "SVCB 1 foo.example.com. alpn",
        "SVCB 1 foo.example.com. port",
        "SVCB 1 foo.example.com. ipv4hint",
        "SVCB 1 foo.example.com. ipv6hint",
        "SVCB 1 foo.example.com. no-default-alpn=abc",
        "SVCB 1 foo.example.com. mandatory=key123",
        "SVCB 1 foo.example.com. mandatory=mandatory",
        "SVCB 1 foo.example.com. mandatory=key123,key123 key123=abc",
        // and what the text of section 2.1 forbids
        "SVCB 1 foo.example.com. key0667=x",
        "SVCB 1 foo.example.com. port=65536",
        "SVCB 1 foo.example.com. alpn=h2,,h3",
        "SVCB 1 foo.example.com. key65535=x",
        "SVCB 1 foo.example.com. nosuchkey=x",
        "SVCB 1 foo.example.com. ipv4hint=::1",
        r"HTTPS \# 11 0001 00 0003 0001 35 0001 00",
    ] {
        assert!(read(text).is_err(), "{text}");
    }
}

#[test]
fn rfc_3123_address_prefixes() {
    // section 5's form, section 4's octets: trailing zeros go, the negation is the top bit of the length
    let octets = [&[0, 1, 21, 3, 192, 168, 32][..], &[0, 1, 28, 0x83, 192, 168, 38]].concat();
    assert_eq!(read("APL 1:192.168.32.0/21 !1:192.168.38.0/28"), Ok(octets));
    assert_eq!(read("APL"), Ok(vec![]));
    assert_eq!(read("APL 2:FF00:0:0:0:0:0:0:0/8"), Ok(vec![0, 2, 8, 1, 0xff]));
    for text in ["APL 1:10.0.0.0/33", "APL 2:10.0.0.0/8", "APL 3:10.0.0.0/8", "APL 1:10.0.0.0", r"APL \# 5 0001080100"]
    {
        assert!(read(text).is_err(), "{text}");
    }
}

#[test]
fn rfc_1876_places() {
    // section 3's defaults and appendix A's numbers: 2^31 is the equator, a centimetre the altitude's unit
    let octets = read("LOC 42 21 54 N 71 06 18 W -24m 30m").unwrap();
    assert_eq!(octets, [0, 0x33, 0x16, 0x13, 0x89, 0x17, 0x2d, 0xd0, 0x70, 0xbe, 0x15, 0xf0, 0, 0x98, 0x8d, 0x20]);
    let octets = read("LOC 0 N 0 E 0").unwrap();
    assert_eq!(octets, [0, 0x12, 0x16, 0x13, 0x80, 0, 0, 0, 0x80, 0, 0, 0, 0, 0x98, 0x96, 0x80]);
    for text in [
        "LOC 91 N 0 E 0",
        "LOC 90 0 0.001 N 0 E 0",
        "LOC 1 60 N 0 E 0",
        "LOC 18446744073709551615 N 0 E 0",
        "LOC 1 N 0 N 0",
        "LOC 1 2 3 4 N 0 E 0",
        "LOC 1 N 0 E",
        "LOC 0 N 0 E -100000.01m",
        "LOC 0 N 0 E 0 90000001m0",
        "LOC 0 N 0 E 0 1 2 3 4",
    ] {
        assert!(read(text).is_err(), "{text}");
    }
}

#[test]
fn rfc_6742_7043_8777_8005_forms() {
    assert_eq!(read("NID 10 0014:4fff:ff20:ee64"), Ok(vec![0, 10, 0, 0x14, 0x4f, 0xff, 0xff, 0x20, 0xee, 0x64]));
    assert_eq!(read("EUI48 00-00-5e-00-53-2a"), Ok(vec![0, 0, 0x5e, 0, 0x53, 0x2a]));
    assert_eq!(read("AMTRELAY 10 1 1 203.0.113.15"), Ok(vec![10, 0x81, 203, 0, 113, 15]));
    assert_eq!(read("HIP 2 2001 AQID a."), Ok(vec![2, 2, 0, 3, 0x20, 1, 1, 2, 3, 1, b'a', 0]));
    for text in ["NID 10 0014:4fff:ff20", "NID 10 +014:0:0:0", "EUI48 00-00-5e-00-53", "AMTRELAY 1 2 1 1.2.3.4"] {
        assert!(read(text).is_err(), "{text}");
    }
}
