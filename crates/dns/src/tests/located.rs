//! Where names stand in a zone, held against the way of RFC 1034 section 4.3.2: label by label from the apex down.

use super::{draw, draw_labels};
use crate::reference::{Located, locate};
use crate::testing::zone;
use base::rng::Rng;
use proptest::prelude::*;
use zone::{Name, NameRef, Rtype, Zone};

/// What kind of place it is, and whose records are there.
fn told(located: &Located<'_>) -> (&'static str, Option<Name>) {
    let (kind, node) = match located {
        Located::Exact(node) => ("exact", node.as_ref()),
        Located::Wildcard(node) => ("wildcard", node.as_ref()),
        Located::Cut(node) => ("cut", Some(node)),
        Located::Dname(node) => ("DNAME", Some(node)),
        Located::Missing => ("missing", None),
        Located::Outside => ("outside", None),
    };
    (kind, node.map(|node| node.name().to_name()))
}

/// The twin.
fn label_by_label<'z>(zone: &'z Zone, name: NameRef<'_>, rtype: Rtype) -> Located<'z> {
    if !name.is_subdomain_of(zone.origin()) {
        return Located::Outside;
    }
    let (apex, labels) = (zone.origin().label_count(), name.label_count());
    for depth in apex..=labels {
        let here = name.suffix(depth);
        if !zone.exists(here) {
            let wildcard: Name = format!("*.{}", name.suffix(depth - 1)).parse().unwrap();
            let exists = zone.exists(wildcard.view());
            return if exists { Located::Wildcard(zone.find(wildcard.view())) } else { Located::Missing };
        }
        let Some(node) = zone.find(here) else { continue };
        if depth > apex && node.has(Rtype::NS) && !(depth == labels && rtype == Rtype::DS) {
            return Located::Cut(node);
        }
        if depth < labels && node.has(Rtype::DNAME) {
            return Located::Dname(node);
        }
    }
    Located::Exact(zone.find(name))
}

#[track_caller]
fn check(zone: &Zone, name: &str) {
    let name: Name = name.parse().unwrap();
    for rtype in [Rtype::A, Rtype::DS] {
        let (found, twin) = (locate(zone, name.view(), rtype), label_by_label(zone, name.view(), rtype));
        assert_eq!(told(&found), told(&twin), "{name} {rtype}");
    }
}

#[test]
fn at_and_below_an_apex_with_a_dname() {
    let zone = zone("x.", "@ 60 SOA ns.y. h 1 1 1 1 60\n@ 60 NS ns.y.\n@ 60 DNAME y.\n");
    for name in ["x", "a.x", "b.a.x", "y", "."] {
        check(&zone, name);
    }
}

/// What sorts before a wildcard, after it, and beside empty non-terminals.
#[test]
fn between_neighbours_of_any_kind() {
    let text = "$TTL 60\n@ SOA ns.y. h 1 1 1 1 60\n@ NS ns.y.\n*.w TXT w\nb.a.w TXT b\nc.*.e TXT c\nd NS ns.y.\n\
        i.d A 192.0.2.1\ni.d NS ns.y.\nz.z.z TXT z\n";
    let zone = zone("x.", text);
    for first in ["", "!.", "*.", "a.", "b.", "z.", "i.", "0.!.", "q.z."] {
        for second in ["", "a.", "*.", "e.", "d.", "i.d.", "z.", "z.z.", "!."] {
            for third in ["w.", "e.", "d.", "z.", "y.", "!.", ""] {
                check(&zone, &format!("{first}{second}{third}x."));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn names_are_found_as_label_by_label(seed in any::<u64>()) {
        let rng = &mut Rng::new(seed);
        let zone = draw(rng, "a.x.");
        let labels = ["a", "b", "c", "*", "d", "e", "!"];
        for _ in 0..200 {
            let name = draw_labels(rng, &labels, 6);
            check(&zone, &format!("{name}{}", ["a.x.", "x."][usize::from(rng.chance(0.1))]));
        }
    }
}
