//! The classes of answers in which a peer may differ, by name in `exceptions.toml`, by code here.
//!
//! Each function takes back one class's difference from the peer's answer, after checking that the difference is
//! just what the class describes, and says whether it did. What then still differs is unexplained.

use super::{Answer, Part, Party, Rr, Transport};
use crate::zonegen::{Class, Name, Question, Walk, below, rtype};
use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use std::collections::BTreeSet;

/// A pair of answers to judge.
pub(crate) struct Case<'a> {
    pub(crate) question: &'a Question,
    pub(crate) walk: &'a Walk,
    pub(crate) transport: Transport,
    pub(crate) parties: [Party; 2],
    /// The same parties' answers over TCP, where nothing is cut.
    pub(crate) whole: [Option<&'a Answer>; 2],
    /// The exceptions that were needed.
    pub(crate) used: Vec<&'static str>,
}

/// An entry of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    peer: String,
    rfc: String,
    why: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    exception: Vec<Entry>,
}

/// The loaded file.
#[derive(Debug)]
pub(crate) struct Exceptions {
    active: Vec<(String, &'static str, Mend)>,
}

const NXDOMAIN: u16 = 3;
const YXDOMAIN: u16 = 6;
const EXTENDED_ERROR: u16 = 15;
/// The most exceptions that the file may hold.
const MOST: usize = 10;
/// The largest datagram that the servers send, whatever the client takes.
const LARGEST: u16 = 1232;
/// CNAMEs after which Knot stops.
const KNOT_CHAIN: usize = 5;

/// One pair seen from one exception: the peer's answer and the other's.
struct View<'a, 'b> {
    case: &'a Case<'b>,
    ours: &'a Answer,
    theirs: &'a mut Answer,
    whole_ours: &'a Answer,
    whole_theirs: &'a Answer,
}

type Mend = fn(&mut View<'_, '_>) -> bool;

const MENDS: [(&str, Mend); 10] = [
    ("extended-error", extended_error),
    ("additional-addresses", additional_addresses),
    ("short-chain", short_chain),
    ("crosses-zones", crosses_zones),
    ("yxdomain", yxdomain),
    ("nested-names", nested_names),
    ("negative-without-soa", negative_without_soa),
    ("any-choice", any_choice),
    ("glue-truncation", glue_truncation),
    ("partial-data", partial_data),
];

impl Exceptions {
    pub(crate) fn load() -> Result<Self> {
        Self::parse(include_str!("../../exceptions.toml"))
    }

    fn parse(text: &str) -> Result<Self> {
        let file: File = toml::from_str(text).context("exceptions.toml")?;
        ensure!(file.exception.len() <= MOST, "more than {MOST} exceptions");
        let mut active = Vec::new();
        for entry in file.exception {
            ensure!(entry.rfc.starts_with("RFC ") && !entry.why.is_empty(), "{}: no RFC or no reason", entry.name);
            ensure!(
                ["nsd", "knot", "both"].contains(&entry.peer.as_str()),
                "{}: unknown peer {}",
                entry.name,
                entry.peer
            );
            let (name, mend) = MENDS
                .into_iter()
                .find(|(name, _)| *name == entry.name)
                .with_context(|| format!("no code for {}", entry.name))?;
            active.push((entry.peer, name, mend));
        }
        Ok(Self { active })
    }

    /// The parts in which the answers differ after every exception was taken back.
    pub(crate) fn remaining(&self, case: &mut Case<'_>, first: &Answer, second: &Answer) -> Vec<Part> {
        let mut pair = [first.clone(), second.clone()];
        for (peer, name, mend) in &self.active {
            for index in [1, 0] {
                let Party::Peer(kind) = case.parties[index] else { continue };
                if peer != "both" && peer != kind.name() {
                    continue;
                }
                let mut theirs = pair[index].clone();
                let mut view = View {
                    case,
                    ours: &pair[1 - index],
                    theirs: &mut theirs,
                    whole_ours: case.whole[1 - index].unwrap_or(&pair[1 - index]),
                    whole_theirs: case.whole[index].unwrap_or(&pair[index]),
                };
                if mend(&mut view) && theirs != pair[index] {
                    pair[index] = theirs;
                    case.used.push(name);
                }
            }
        }
        pair[0].differences(&pair[1])
    }
}

impl View<'_, '_> {
    /// Takes over from ours all that depends on how far a chain is followed.
    fn give_way(&mut self) -> bool {
        // RFC 2181 5: no record twice
        if self.ours.sections[0].windows(2).any(|pair| pair[0] == pair[1]) {
            return false;
        }
        self.theirs.rcode = self.ours.rcode;
        self.theirs.sections = self.ours.sections.clone();
        self.theirs.set_truncated(self.ours.truncated());
        true
    }
}

fn contains(all: &[Rr], some: &[Rr]) -> bool {
    some.iter().all(|rr| all.binary_search(rr).is_ok())
}

/// The records of whole RRsets: no RRset of `all` stands half in `some`.
fn whole_sets(all: &[Rr], some: &[Rr]) -> bool {
    let kept: BTreeSet<(&Name, u16)> = some.iter().map(|rr| (&rr.owner, rr.rtype)).collect();
    contains(all, some) && all.iter().filter(|rr| kept.contains(&(&rr.owner, rr.rtype))).count() == some.len()
}

fn extended_error(view: &mut View<'_, '_>) -> bool {
    let ours = view.ours.edns.as_ref().is_some_and(|edns| edns.options.iter().any(|(code, _)| *code == EXTENDED_ERROR));
    match &mut view.theirs.edns {
        Some(edns) if !ours => {
            edns.options.retain(|(code, _)| *code != EXTENDED_ERROR);
            true
        }
        _ => false,
    }
}

fn additional_addresses(view: &mut View<'_, '_>) -> bool {
    let any = view.case.question.rtype == rtype::ANY;
    let pointing = |rr: &&Rr| {
        [rtype::MX, rtype::SRV, rtype::SVCB, rtype::HTTPS].contains(&rr.rtype)
            || (any && [rtype::NS, rtype::PTR].contains(&rr.rtype))
    };
    let [answer, authority, additional] = &view.theirs.sections;
    let names_target = |extra: &Rr| {
        [rtype::A, rtype::AAAA, rtype::SVCB, rtype::HTTPS].contains(&extra.rtype)
            && answer.iter().filter(pointing).any(|rr| {
                let wire = extra.owner.as_slice();
                // in an answer by a wildcard Knot may leave a target's own wildcard unexpanded
                let wire = wire.strip_prefix(b"\x01*").unwrap_or(wire);
                // an SVCB target "." stands for the owner (RFC 9460 2.5.2)
                extra.owner == rr.owner || rr.rdata.windows(wire.len()).any(|part| part.eq_ignore_ascii_case(wire))
            })
    };
    if !authority.is_empty()
        || additional.is_empty()
        || !additional.iter().all(names_target)
        || !view.ours.sections[2].is_empty()
    {
        return false;
    }
    view.theirs.sections[2].clear();
    true
}

fn short_chain(view: &mut View<'_, '_>) -> bool {
    let links = view.whole_theirs.sections[0].iter().filter(|rr| rr.rtype == rtype::CNAME).count();
    let mut answer = view.theirs.sections[0].clone();
    answer.dedup();
    links == KNOT_CHAIN
        && view.theirs.rcode == 0
        && view.theirs.sections[1].is_empty()
        && contains(&view.whole_ours.sections[0], &answer)
        && view.give_way()
}

fn crosses_zones(view: &mut View<'_, '_>) -> bool {
    view.case.walk.classes.contains(&Class::CnameOtherZone)
        && contains(&view.whole_theirs.sections[0], &view.ours.sections[0])
        && view.give_way()
}

fn yxdomain(view: &mut View<'_, '_>) -> bool {
    let soa_only = view.theirs.sections[1].iter().all(|rr| rr.rtype == rtype::SOA);
    if !view.case.walk.classes.contains(&Class::YxDomain)
        || (view.theirs.rcode, view.ours.rcode) != (NXDOMAIN, YXDOMAIN)
        || !soa_only
    {
        return false;
    }
    view.theirs.rcode = YXDOMAIN;
    view.theirs.sections[1].clear();
    true
}

fn nested_names(view: &mut View<'_, '_>) -> bool {
    let negative = view.theirs.sections[0] == view.ours.sections[0] && view.theirs.sections[1] == view.ours.sections[1];
    if !view.case.walk.above_nested || !negative || (view.theirs.rcode, view.ours.rcode) != (0, NXDOMAIN) {
        return false;
    }
    view.theirs.rcode = NXDOMAIN;
    true
}

fn negative_without_soa(view: &mut View<'_, '_>) -> bool {
    let whole = &view.whole_theirs.sections[1];
    let negative = !whole.is_empty() && whole.iter().all(|rr| rr.rtype == rtype::SOA);
    let dropped = negative && view.theirs.sections[1].is_empty() && !view.theirs.truncated();
    // it fits in ours, or ours says that it does not
    if view.case.transport != Transport::Udp || !dropped || (view.ours.sections[1] != *whole && !view.ours.truncated())
    {
        return false;
    }
    view.theirs.sections[1] = view.ours.sections[1].clone();
    view.theirs.set_truncated(view.ours.truncated());
    true
}

fn any_choice(view: &mut View<'_, '_>) -> bool {
    if view.case.question.rtype != rtype::ANY || !view.theirs.sections[1].is_empty() {
        return false;
    }
    // beside the links that both followed, each has one RRset, of the same name, that the name really has
    let apart = |one: &Answer, other: &Answer| -> Vec<Rr> {
        one.sections[0].iter().filter(|rr| other.sections[0].binary_search(rr).is_err()).cloned().collect()
    };
    let (ours, theirs) = (apart(view.ours, view.theirs), apart(view.theirs, view.ours));
    let one = |set: &[Rr]| {
        set.windows(2).all(|pair| pair[0].owner == pair[1].owner && pair[0].rtype == pair[1].rtype)
            && set.iter().all(|rr| view.case.walk.types.contains(&rr.rtype))
    };
    let owners_agree = match (ours.first(), theirs.first()) {
        (Some(ours), Some(theirs)) => ours.owner == theirs.owner,
        (None, None) => true,
        _ => view.ours.truncated() || view.theirs.truncated(),
    };
    if !one(&ours) || !one(&theirs) || !owners_agree {
        return false;
    }
    view.theirs.sections[0] = view.ours.sections[0].clone();
    view.theirs.sections[2] = view.ours.sections[2].clone();
    view.theirs.set_truncated(view.ours.truncated());
    true
}

/// True if ours sets TC exactly when in-domain glue is missing (RFC 9471 3.1).
fn truncates_rightly(view: &View<'_, '_>, cut: &Name) -> bool {
    let missing = view.whole_ours.sections[2]
        .iter()
        .filter(|rr| rr.owner == *cut || below(&rr.owner, cut))
        .any(|rr| view.ours.sections[2].binary_search(rr).is_err());
    missing == view.ours.truncated()
}

fn glue_truncation(view: &mut View<'_, '_>) -> bool {
    let Some(cut) = &view.case.walk.cut else { return false };
    if view.case.transport != Transport::Udp
        || view.theirs.truncated() == view.ours.truncated()
        || view.theirs.sections[1] != view.ours.sections[1]
    {
        return false;
    }
    if !truncates_rightly(view, cut) {
        return false;
    }
    view.theirs.set_truncated(view.ours.truncated());
    true
}

fn partial_data(view: &mut View<'_, '_>) -> bool {
    if view.case.transport != Transport::Udp {
        return false;
    }
    let mut applied = false;
    if view.ours.truncated() != view.theirs.truncated() {
        // names compressed less well: what fits one server's datagram does not fit the other's
        let limit = usize::from(view.case.question.edns.unwrap_or(0).clamp(512, LARGEST));
        let longer = if view.ours.truncated() { view.whole_ours } else { view.whole_theirs };
        let delegated = view.ours.sections[1] == view.whole_ours.sections[1];
        let wrong = view.case.walk.cut.as_ref().is_some_and(|cut| delegated && !truncates_rightly(view, cut));
        if longer.length <= limit || wrong {
            return false;
        }
        applied = true;
    }
    let truncated = view.ours.truncated() || view.theirs.truncated();
    if truncated && view.theirs.rcode == 0 && view.ours.rcode == view.whole_theirs.rcode {
        // Knot's RCODE is that of as much of the chain as fits
        view.theirs.rcode = view.ours.rcode;
        applied = true;
    }
    // additional data may always be incomplete; the other sections only under TC
    for section in (if truncated { 0 } else { 2 })..3 {
        let [ours, theirs] = [&view.ours.sections[section], &view.theirs.sections[section]];
        let [all_ours, all_theirs] = [&view.whole_ours.sections[section], &view.whole_theirs.sections[section]];
        let partial = ours.len() < all_ours.len() || theirs.len() < all_theirs.len();
        if ours != theirs && partial && whole_sets(all_ours, ours) && whole_sets(all_theirs, theirs) {
            view.theirs.sections[section] = ours.clone();
            applied = true;
        }
    }
    if applied {
        view.theirs.set_truncated(view.ours.truncated());
    }
    applied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_and_the_code_name_the_same_classes() {
        let exceptions = Exceptions::load().unwrap();
        let named: BTreeSet<&str> = exceptions.active.iter().map(|(_, name, _)| *name).collect();
        assert_eq!(named, MENDS.iter().map(|(name, _)| *name).collect());
    }

    #[test]
    fn a_class_without_code_or_rfc_is_refused() {
        let entry = |name: &str, rfc: &str| {
            format!("[[exception]]\nname = \"{name}\"\npeer = \"nsd\"\nrfc = \"{rfc}\"\nwhy = \"x\"\n")
        };
        assert!(Exceptions::parse(&entry("yxdomain", "RFC 6672 2.2")).is_ok());
        assert!(Exceptions::parse(&entry("no-such", "RFC 1 1")).unwrap_err().to_string().contains("no-such"));
        assert!(Exceptions::parse(&entry("yxdomain", "")).is_err());
        assert!(Exceptions::parse(&entry("yxdomain", "RFC 6672 2.2").repeat(11)).is_err());
    }
}
