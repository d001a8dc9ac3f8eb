//! Arbitrary bytes as a zone file.

use zone::{Limits, MemorySource};

/// What is read must print to text that reads back as the same zone; what is refused must say why.
///
/// # Panics
/// When a promise is broken.
pub fn zone_file(data: &[u8]) {
    let limits = Limits { include_depth: 2, files: 4, generated: 1000, repeated_bytes: 1 << 20 };
    let load = |text: &[u8]| zone::load_within(&MemorySource::new().with("z", text), "z", None, limits);
    let first = match load(data) {
        Ok(zone) => zone,
        Err(errors) => {
            assert!(!errors.is_empty(), "refused without a reason");
            for error in errors {
                assert!(!error.to_string().contains('\n'), "an error of several lines: {error}");
            }
            return;
        }
    };
    let mut text = String::new();
    let rrsets = first.nodes().flat_map(|node| node.rrsets());
    // the SOA goes first: it is what names the zone
    text.push_str(&first.soa().to_string());
    for rrset in rrsets.filter(|rrset| rrset.rtype() != zone::Rtype::SOA) {
        text.push_str(&rrset.to_string());
    }
    let second =
        load(text.as_bytes()).unwrap_or_else(|errors| panic!("printed text is refused: {}\n{text}", errors[0]));
    assert_eq!(first.record_count(), second.record_count(), "{text}");
    for (a, b) in first.nodes().zip(second.nodes()) {
        assert!(a.name() == b.name(), "{} against {}", a.name(), b.name());
        for (a, b) in a.rrsets().zip(b.rrsets()) {
            assert_eq!((a.rtype(), a.ttl()), (b.rtype(), b.ttl()));
            assert!(a.rdatas().eq(b.rdatas()), "{a} against {b}");
        }
    }
}
