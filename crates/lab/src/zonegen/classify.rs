//! What class of answer a question must get: RFC 1034 4.3.2 as plainly as it can be written, over the world's own records.

use super::{Data, Name, Question, World, Zone, below, child, parent, rtype, suffix};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// A class of answers. One answer may belong to several, such as a wildcard in a nested zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Data at the name itself.
    Exact,
    /// The name has other types.
    Nodata,
    /// The name exists only because something below it does.
    EntNodata,
    /// No such name.
    NxDomain,
    /// Data by a wildcard (RFC 4592).
    Wildcard,
    /// A wildcard matches but has other types.
    WildcardNodata,
    /// One CNAME and the data it leads to.
    Cname,
    /// Two or more links.
    CnameChain,
    /// A chain that comes back to itself.
    CnameLoop,
    /// A chain that ends outside every zone served.
    CnameOutside,
    /// A chain that leaves the zone for another of this server.
    CnameOtherZone,
    /// A chain whose last name has no such data, or does not exist (RFC 6604).
    CnameNegative,
    /// A chain that ends in a referral.
    CnameReferral,
    /// A CNAME synthesised from a DNAME (RFC 6672).
    Dname,
    /// A loop that has a DNAME in it.
    DnameLoop,
    /// The DNAME's target makes the name too long (RFC 6672 2.2).
    YxDomain,
    /// A referral without any address.
    Referral,
    /// A referral with addresses.
    ReferralGlue,
    /// DS at a cut, answered by the parent.
    DsParent,
    /// DS at the apex of a nested zone.
    DsNested,
    /// Answered by a zone that lies below another of this server.
    Nested,
    /// QTYPE ANY (RFC 8482).
    Any,
    /// No zone of this server.
    Refused,
    /// Class CH.
    Chaos,
    /// TC set over UDP.
    Truncated,
}

impl Class {
    /// Every class, in the order of reports.
    pub const ALL: [Self; 25] = [
        Self::Exact,
        Self::Nodata,
        Self::EntNodata,
        Self::NxDomain,
        Self::Wildcard,
        Self::WildcardNodata,
        Self::Cname,
        Self::CnameChain,
        Self::CnameLoop,
        Self::CnameOutside,
        Self::CnameOtherZone,
        Self::CnameNegative,
        Self::CnameReferral,
        Self::Dname,
        Self::DnameLoop,
        Self::YxDomain,
        Self::Referral,
        Self::ReferralGlue,
        Self::DsParent,
        Self::DsNested,
        Self::Nested,
        Self::Any,
        Self::Refused,
        Self::Chaos,
        Self::Truncated,
    ];
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}

/// What the walk met on its way to an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walk {
    /// The classes; [`Class::Truncated`] is seen only in an answer.
    pub(crate) classes: BTreeSet<Class>,
    /// CNAME records passed, synthesised ones included.
    pub(crate) links: usize,
    /// For a question that ends in a referral: the cut.
    pub(crate) cut: Option<Name>,
    /// The RRsets at the name that answers, for ANY.
    pub(crate) types: BTreeSet<u16>,
    /// The name that does not exist is, or lies above, the apex of a nested zone that its parent does not delegate.
    pub(crate) above_nested: bool,
}

/// What a zone holds for a name.
enum Found<'a> {
    Node(&'a BTreeMap<u16, Vec<Data>>),
    Wild(&'a BTreeMap<u16, Vec<Data>>),
    Cut(Name),
    Dname(Name, Name),
    Nothing,
}

impl Zone {
    fn find(&self, name: &Name, rtype: u16) -> Found<'_> {
        for labels in self.origin.label_count()..name.label_count() {
            // every name above the asked one, from the apex down
            let above = suffix(name, labels);
            let Some(types) = self.nodes.get(&above) else {
                // above exists up to here: the closest encloser is its parent
                return self.wild(&above);
            };
            if labels > self.origin.label_count() && types.contains_key(&rtype::NS) {
                return Found::Cut(above);
            }
            if let Some([Data::Name(target)]) = types.get(&rtype::DNAME).map(Vec::as_slice) {
                return Found::Dname(above, target.clone());
            }
        }
        match self.nodes.get(name) {
            Some(types) if *name != self.origin && types.contains_key(&rtype::NS) && rtype != rtype::DS => {
                Found::Cut(name.clone())
            }
            Some(types) => Found::Node(types),
            None => self.wild(name),
        }
    }

    /// The wildcard beside a name that does not exist and whose parent does.
    fn wild(&self, missing: &Name) -> Found<'_> {
        let encloser = parent(missing).expect("the root always exists");
        child(b"*", &encloser).and_then(|name| self.nodes.get(&name)).map_or(Found::Nothing, Found::Wild)
    }
}

impl World {
    /// The classes that the answer to a question belongs to.
    pub fn classify(&self, question: &Question) -> BTreeSet<Class> {
        self.walk(question).classes
    }

    /// The zone that answers for a name: the longest apex above it, for DS strictly above it if there is one.
    fn zone_for(&self, name: &Name, rtype: u16) -> Option<&Zone> {
        let longest = |strict: bool| {
            self.zones
                .iter()
                .filter(|zone| name.ends_with(&zone.origin) && !(strict && *name == zone.origin))
                .max_by_key(|zone| zone.origin.label_count())
        };
        if rtype == rtype::DS { longest(true).or_else(|| longest(false)) } else { longest(false) }
    }

    pub(crate) fn walk(&self, question: &Question) -> Walk {
        let mut walk = Walk::default();
        if question.class != 1 {
            walk.classes.insert(Class::Chaos);
            return walk;
        }
        let Some(zone) = self.zone_for(&question.name, question.rtype) else {
            walk.classes.insert(Class::Refused);
            return walk;
        };
        if question.rtype == rtype::ANY {
            walk.classes.insert(Class::Any);
        }
        if self.zones.iter().any(|other| below(&zone.origin, &other.origin)) {
            walk.classes.insert(Class::Nested);
        }
        if question.rtype == rtype::DS && self.zones.iter().any(|other| other.origin == question.name) {
            walk.classes.insert(Class::DsNested);
        }
        self.follow(zone, question, &mut walk);
        walk
    }

    fn follow(&self, zone: &Zone, question: &Question, walk: &mut Walk) {
        let mut name = question.name.clone();
        let mut seen = BTreeSet::new();
        loop {
            if !seen.insert(name.clone()) {
                let dname = walk.classes.contains(&Class::Dname);
                walk.classes.insert(if dname { Class::DnameLoop } else { Class::CnameLoop });
                return;
            }
            let next = match zone.find(&name, question.rtype) {
                Found::Cut(cut) => return self.refer(zone, cut, walk),
                Found::Dname(owner, target) => {
                    walk.classes.insert(Class::Dname);
                    let Some(next) = substitute(&name, &owner, &target) else {
                        walk.classes.insert(Class::YxDomain);
                        return;
                    };
                    if question.rtype == rtype::CNAME {
                        return;
                    }
                    next
                }
                Found::Nothing => {
                    walk.above_nested =
                        self.zones.iter().any(|other| other.origin.ends_with(&name) && other.origin != zone.origin);
                    return end(Class::NxDomain, walk);
                }
                Found::Node(types) | Found::Wild(types)
                    if types.contains_key(&rtype::CNAME) && ![rtype::CNAME, rtype::ANY].contains(&question.rtype) =>
                {
                    let [Data::Name(target)] = types[&rtype::CNAME].as_slice() else {
                        unreachable!("one CNAME an owner")
                    };
                    target.clone()
                }
                Found::Node(types) => {
                    walk.types = types.keys().copied().collect();
                    let there =
                        types.contains_key(&question.rtype) || (question.rtype == rtype::ANY && !types.is_empty());
                    if question.rtype == rtype::DS && types.contains_key(&rtype::NS) && name != zone.origin {
                        walk.classes.insert(Class::DsParent);
                    }
                    return end(
                        if there {
                            Class::Exact
                        } else if types.is_empty() {
                            Class::EntNodata
                        } else {
                            Class::Nodata
                        },
                        walk,
                    );
                }
                Found::Wild(types) => {
                    walk.types = types.keys().copied().collect();
                    let there =
                        types.contains_key(&question.rtype) || (question.rtype == rtype::ANY && !types.is_empty());
                    return end(if there { Class::Wildcard } else { Class::WildcardNodata }, walk);
                }
            };
            walk.links += 1;
            name = next;
            let other = self.zone_for(&name, rtype::A).is_some_and(|other| other.origin != zone.origin);
            if other {
                walk.classes.insert(Class::CnameOtherZone);
            }
            if !name.ends_with(&zone.origin) {
                if !other {
                    walk.classes.insert(Class::CnameOutside);
                }
                return;
            }
        }
    }

    fn refer(&self, zone: &Zone, cut: Name, walk: &mut Walk) {
        let servers = &zone.nodes[&cut][&rtype::NS];
        let glue = servers.iter().any(|server| match server {
            Data::Name(name) => match zone.nodes.get(name).or_else(|| {
                // a wildcard may give a server its addresses
                match zone.find(name, rtype::A) {
                    Found::Wild(types) => Some(types),
                    _ => None,
                }
            }) {
                Some(types) => types.contains_key(&rtype::A) || types.contains_key(&rtype::AAAA),
                None => false,
            },
            Data::Text(_) => false,
        });
        walk.classes.insert(if glue { Class::ReferralGlue } else { Class::Referral });
        if walk.links > 0 {
            walk.classes.insert(Class::CnameReferral);
        }
        walk.cut = Some(cut);
    }
}

/// Where the chain, or no chain, ends.
fn end(class: Class, walk: &mut Walk) {
    let positive = matches!(class, Class::Exact | Class::Wildcard);
    walk.classes.insert(match (walk.links, positive) {
        (0, _) => class,
        (_, false) => Class::CnameNegative,
        (1, true) => Class::Cname,
        (_, true) => Class::CnameChain,
    });
}

/// The name with `owner` at its end replaced; None if it becomes too long.
fn substitute(name: &Name, owner: &Name, target: &Name) -> Option<Name> {
    let keep = name.as_slice().len() - owner.as_slice().len();
    let mut wire = name.as_slice()[..keep].to_vec();
    wire.extend(target.as_slice());
    Name::from_octets(wire).ok()
}
