use std::hash::{BuildHasher, RandomState};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

#[test]
fn canonical_order_is_that_of_rfc_4034_section_6_1() {
    let ordered = [
        "example",
        "a.example",
        "yljkjljk.a.example",
        "Z.a.example",
        "zABC.a.EXAMPLE",
        "z.example",
        "\\001.z.example",
        "*.z.example",
        "\\200.z.example",
    ];
    for pair in ordered.windows(2) {
        assert_eq!(name(pair[0]).canonical_cmp(name(pair[1]).view()), Ordering::Less, "{pair:?}");
    }
}

#[test]
fn text_means_its_octets() {
    let origin = name("example");
    for (text, wire) in [
        ("a.b.", &b"\x01a\x01b\0"[..]),
        ("a", b"\x01a\x07example\0"),
        ("@", b"\x07example\0"),
        (".", b"\0"),
        (r"\@.", b"\x01@\0"),
        (r"a\.b\032\\.", b"\x05a.b \\\0"),
        ("*.A.", b"\x01*\x01A\0"),
    ] {
        assert_eq!(Name::parse(text.as_bytes(), Some(origin.view())).unwrap().as_wire(), wire, "{text}");
    }
    for (text, why) in [
        ("", NameError::Empty),
        ("..", NameError::EmptyLabel),
        (".a", NameError::EmptyLabel),
        ("a..b", NameError::EmptyLabel),
        (r"a\25", NameError::BadEscape),
        (r"a\256", NameError::BadEscape),
        ("a\\", NameError::BadEscape),
    ] {
        assert_eq!(Name::parse(text.as_bytes(), Some(origin.view())).unwrap_err(), why, "{text}");
    }
    assert_eq!(Name::parse(b"a", None).unwrap_err(), NameError::Relative);
    assert_eq!(Name::parse(b"@", None).unwrap_err(), NameError::Relative);
    assert_eq!(Name::parse("a".repeat(64).as_bytes(), None).unwrap_err(), NameError::LabelTooLong(64));
}

#[test]
fn wire_octets_are_checked() {
    for wire in [&b""[..], b"\x01a", b"\x01", b"\x40a\0", b"\xc0\0", b"\0\0"] {
        assert_eq!(Name::from_wire(wire).unwrap_err(), NameError::Malformed, "{wire:?}");
    }
    let full = |last: u8| {
        [[vec![63], vec![b'x'; 63]].concat().repeat(3), vec![last], vec![b'x'; usize::from(last)], vec![0]].concat()
    };
    assert_eq!(Name::from_wire(&full(61)).unwrap().as_wire().len(), MAX_NAME_BYTES);
    assert_eq!(Name::from_wire(&full(62)).unwrap_err(), NameError::NameTooLong);
}

#[test]
fn families() {
    let child = name("www.Example.COM");
    assert!(child.is_subdomain_of(name("example.com").view()) && child.is_subdomain_of(NameRef::ROOT));
    assert!(child.is_subdomain_of(name("WWW.example.com").view()));
    assert!(!child.is_subdomain_of(name("ample.com").view()) && !name("com").is_subdomain_of(child.view()));
    // the label boundary counts, not the octets
    assert!(!name("x\\003com").is_subdomain_of(name("com").view()));
    assert_eq!(child.parent(), Some(name("example.com").view()));
    assert_eq!((NameRef::ROOT.parent(), child.label_count()), (None, 3));
    assert_eq!((child.view().suffix(2), child.view().suffix(9)), (name("example.com").view(), child.view()));
    assert_eq!(
        (child.to_string(), child.to_lower().to_string()),
        ("www.Example.COM.".into(), "www.example.com.".into())
    );
    assert!(name("*.a").is_wildcard() && !name("**.a").is_wildcard() && !name("a.*").is_wildcard());
}

/// Labels that like to collide: few letters of both cases, the octets that escape, and the ends of the range.
fn label() -> impl Strategy<Value = Vec<u8>> {
    let octet = prop_oneof![4 => prop::sample::select(b"aAbBzZ[@`{\x00\x01\x02.\\\"-_*".to_vec()), 1 => any::<u8>()];
    vec(octet, 1..6)
}

pub(crate) fn any_name() -> impl Strategy<Value = Name> {
    let wire = |labels: Vec<Vec<u8>>| {
        let mut wire: Vec<u8> =
            labels.iter().flat_map(|label| [&[label.len() as u8], label.as_slice()].concat()).collect();
        wire.push(0);
        Name::from_wire(&wire).unwrap()
    };
    vec(prop_oneof![9 => label(), 1 => vec(any::<u8>(), 1..40)], 0..6).prop_map(wire)
}

/// RFC 4034 section 6.1 said slowly.
fn slow_key(name: &Name) -> Vec<Vec<u8>> {
    let mut labels: Vec<Vec<u8>> = name.labels().map(<[u8]>::to_ascii_lowercase).collect();
    labels.reverse();
    labels
}

proptest! {
    #[test]
    fn display_is_read_back(name in any_name()) {
        let text = name.to_string();
        let again = Name::parse(text.as_bytes(), None).unwrap();
        prop_assert_eq!(again.as_wire(), name.as_wire());
        prop_assert!(text.bytes().all(|octet| octet.is_ascii_graphic()));
    }

    #[test]
    fn order_equality_and_hash_agree_with_a_slow_twin(a in any_name(), b in any_name()) {
        let expected = slow_key(&a).cmp(&slow_key(&b));
        prop_assert_eq!(a.canonical_cmp(b.view()), expected);
        prop_assert_eq!(a == b, expected == Ordering::Equal);
        let state = RandomState::new();
        prop_assert_eq!(state.hash_one(&a), state.hash_one(a.to_lower()));
        prop_assert_eq!(a.is_subdomain_of(b.view()), slow_key(&a).starts_with(&slow_key(&b)));
    }

    #[test]
    fn arbitrary_text_and_octets_never_panic(text in vec(any::<u8>(), 0..300)) {
        if let Ok(name) = Name::parse(&text, Some(NameRef::ROOT)) {
            prop_assert!(Name::from_wire(name.as_wire()).is_ok());
        }
        if let Ok((name, rest)) = NameRef::split_wire(&text) {
            prop_assert_eq!(name.as_wire().len() + rest.len(), text.len());
        }
    }
}
