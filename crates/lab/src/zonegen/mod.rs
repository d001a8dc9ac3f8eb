//! Zones drawn at random from a seed, and questions about them.
//!
//! A [`World`] is a set of zones for one server: a parent with a delegated child, a grandchild, nested zones that the
//! parent does not delegate, and an unrelated zone. Together they hold what makes answers differ between servers: cuts with
//! and without glue, wildcards, empty non-terminals, CNAME and DNAME webs, RRsets too large for a datagram.
//! The world keeps its records beside the text, so that [`World::classify`] can say, with a slow and obvious walk
//! of its own, which class of answer a question must get.
//!
//! Left out: DNSSEC records (DS aside), since no zone here is signed, and what NSD or Knot refuse to load.

mod build;
mod classify;
mod question;
#[cfg(test)]
mod tests;

pub use classify::Class;
pub(crate) use classify::Walk;
pub use question::Question;

use std::collections::{BTreeMap, BTreeSet};

/// An absolute domain name; comparison ignores letter case.
pub type Name = domain::base::Name<Vec<u8>>;

/// Record types, by number, that the walk and the questions name.
pub(crate) mod rtype {
    pub(crate) const A: u16 = 1;
    pub(crate) const NS: u16 = 2;
    pub(crate) const CNAME: u16 = 5;
    pub(crate) const SOA: u16 = 6;
    pub(crate) const PTR: u16 = 12;
    pub(crate) const MX: u16 = 15;
    pub(crate) const TXT: u16 = 16;
    pub(crate) const AAAA: u16 = 28;
    pub(crate) const SRV: u16 = 33;
    pub(crate) const NAPTR: u16 = 35;
    pub(crate) const DNAME: u16 = 39;
    pub(crate) const DS: u16 = 43;
    pub(crate) const SVCB: u16 = 64;
    pub(crate) const HTTPS: u16 = 65;
    pub(crate) const ANY: u16 = 255;
    pub(crate) const CAA: u16 = 257;
    pub(crate) const PRIVATE: u16 = 65534;
}

/// A zone as a server loads it.
#[derive(Clone, Debug)]
pub struct Zone {
    /// The apex.
    pub origin: Name,
    /// The zone file.
    pub text: String,
    /// What each owner has, by type; a name in the map with no types is an empty non-terminal.
    nodes: BTreeMap<Name, BTreeMap<u16, Vec<Data>>>,
}

/// RDATA: a name where the walk must follow it, text otherwise.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Data {
    Name(Name),
    Text(String),
}

/// A set of zones for one server, with what is needed to ask about them.
#[derive(Clone, Debug)]
pub struct World {
    /// The seed it was drawn from.
    pub seed: u64,
    /// The zones.
    pub zones: Vec<Zone>,
    /// Names worth asking for, by the reason they are.
    targets: BTreeMap<Reason, BTreeSet<Name>>,
}

/// Why a name is worth asking for. The questions draw the reason first, so that rare shapes are reached as often as common ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    Apex,
    Plain,
    Ent,
    Big,
    Cut,
    BigCut,
    BareCut,
    WildParent,
    Cname,
    CnameChain,
    CnameLoop,
    CnameOut,
    CnameZone,
    CnameMissing,
    CnameCut,
    Dname,
    DnameLoop,
    DnameOut,
    DnameLong,
    Nested,
    Unserved,
}

/// `label.parent`; None when the name would be too long.
pub(crate) fn child(label: &[u8], parent: &Name) -> Option<Name> {
    let mut builder = domain::base::NameBuilder::new_vec();
    builder.append_label(label).ok()?;
    builder.append_origin(parent).ok()
}

/// The name without its first label; None for the root.
pub(crate) fn parent(name: &Name) -> Option<Name> {
    name.parent().map(|parent| Name::from_octets(parent.as_slice().to_vec()).expect("a parent is a name"))
}

/// True if `name` is strictly below `top`.
pub(crate) fn below(name: &Name, top: &Name) -> bool {
    name.label_count() > top.label_count() && name.ends_with(top)
}

/// The suffix of `name` with that many labels, the root's included.
pub(crate) fn suffix(name: &Name, labels: usize) -> Name {
    let skip = name.label_count() - labels;
    let octets: usize = name.iter().take(skip).map(|label| label.len() + 1).sum();
    Name::from_octets(name.as_slice()[octets..].to_vec()).expect("a suffix is a name")
}

/// Presentation form as RFC 1035 5.1 has it, with a final dot. `domain` does not escape what only zone files give a meaning.
pub(crate) fn present(name: &Name) -> String {
    let mut text = String::new();
    for label in name.iter().filter(|label| !label.is_root()) {
        for &octet in label.as_slice() {
            match octet {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'*' => text.push(char::from(octet)),
                // NSD 4.6 takes the dot after an escaped backslash for an escaped dot
                0x21..0x7f if octet != b'\\' => text.extend(['\\', char::from(octet)]),
                _ => text += &format!("\\{octet:03}"),
            }
        }
        text.push('.');
    }
    if text.is_empty() { ".".into() } else { text }
}
