//! What a zone must be before it is served. The rules of the protocol stand in [`run`]'s functions; what is
//! only this server's policy stands in [`policy`].

use crate::error::{Place, Problems};
use crate::name::NameRef;
use crate::rtype::{Class, Rtype};
use crate::svcb;
use crate::zone::{Node, Rrset, Zone};

/// Checks the whole zone.
pub(crate) fn run(zone: &Zone, problems: &mut Problems) {
    apex(zone, problems);
    let mut above_dname: Option<Node<'_>> = None;
    for node in zone.nodes() {
        // canonical order: whatever is below a name follows it directly
        let under = above_dname.as_ref().filter(|dname| node.name().is_subdomain_of(dname.name()));
        match under {
            Some(dname) => under_dname(&node, dname, problems),
            None => above_dname = (node.has(Rtype::DNAME) && !is_cut(zone, &node)).then(|| node.clone()),
        }
        aliases(&node, problems);
        dname_at_cut(zone, &node, problems);
        targets(zone, &node, problems);
        services(&node, problems);
    }
    policy(zone, problems);
}

/// RFC 1035 section 5.2: one SOA, at the apex; RFC 1034 section 4.2.1: NS there.
fn apex(zone: &Zone, problems: &mut Problems) {
    let origin = zone.origin();
    let apex = zone.find(origin);
    let whole_file =
        || Place { file: zone.files.get(1).or(zone.files.first()).cloned().unwrap_or_default(), line: 0, column: 0 };
    match apex.as_ref().and_then(|node| node.rrset(Rtype::SOA)) {
        None => {
            problems.error(whole_file(), format!("the zone {origin} has no SOA at its apex; add one (RFC 1035 5.2)"))
        }
        Some(soa) if soa.len() > 1 => {
            let what = format!("the zone {origin} has {} SOA records; keep one (RFC 1035 5.2)", soa.len());
            problems.error(soa.last_place(), what);
        }
        Some(_) => {}
    }
    if !apex.is_some_and(|node| node.has(Rtype::NS)) {
        problems.error(whole_file(), format!("the zone {origin} has no NS at its apex; add one (RFC 1034 4.2.1)"));
    }
    for node in zone.nodes().filter(|node| node.name() != origin) {
        if let Some(soa) = node.rrset(Rtype::SOA) {
            let what =
                format!("the SOA of {} is not at the zone's apex {origin}; remove it (RFC 1035 5.2)", node.name());
            problems.error(soa.place(), what);
        }
    }
}

/// RFC 1034 section 3.6.2 and RFC 2181 section 10.1: an alias stands alone, but for the DNSSEC types that
/// RFC 4034 section 2.5 and RFC 2535 allow beside it. RFC 6672 section 2.4: one DNAME, and no CNAME with it.
fn aliases(node: &Node<'_>, problems: &mut Problems) {
    for rtype in [Rtype::CNAME, Rtype::DNAME] {
        if let Some(set) = node.rrset(rtype).filter(|set| set.len() > 1) {
            let what =
                format!("{} has {} {rtype} records; keep one (RFC 2181 10.1, RFC 6672 2.4)", node.name(), set.len());
            problems.error(set.last_place(), what);
        }
    }
    if !node.has(Rtype::CNAME) {
        return;
    }
    let beside = |set: &Rrset<'_>| {
        !matches!(set.rtype(), Rtype::CNAME | Rtype::RRSIG | Rtype::NSEC | Rtype::SIG | Rtype::NXT | Rtype::KEY)
    };
    if let Some(other) = node.rrsets().find(beside) {
        let what =
            format!("{} has a CNAME and {} beside it; keep one of them (RFC 2181 10.1)", node.name(), other.rtype());
        problems.error(other.place(), what);
    }
}

/// Whether the node is another zone's, delegated here.
fn is_cut(zone: &Zone, node: &Node<'_>) -> bool {
    node.has(Rtype::NS) && node.name() != zone.origin()
}

/// RFC 6672 section 2.3: beside the NS of a delegation there is no DNAME; what is below is the other zone's.
fn dname_at_cut(zone: &Zone, node: &Node<'_>, problems: &mut Problems) {
    if let Some(set) = node.rrset(Rtype::DNAME).filter(|_| is_cut(zone, node)) {
        let what = format!(
            "{} has a DNAME and the NS of a delegation; remove one, or move the DNAME to the zone that it delegates to (RFC 6672 2.3)",
            node.name()
        );
        problems.error(set.place(), what);
    }
}

/// RFC 6672 section 2.4: nothing exists below a DNAME.
fn under_dname(node: &Node<'_>, dname: &Node<'_>, problems: &mut Problems) {
    if let Some(set) = node.rrsets().next() {
        let what = format!("{} is below the DNAME of {}; remove one of them (RFC 6672 2.4)", node.name(), dname.name());
        problems.error(set.place(), what);
    }
}

fn services(node: &Node<'_>, problems: &mut Problems) {
    for set in node.rrsets().filter(|set| matches!(set.rtype(), Rtype::SVCB | Rtype::HTTPS)) {
        for record in set.singly() {
            let doubt = record.rdatas().find_map(|rdata| svcb::doubt(set.rtype(), rdata));
            if let Some(doubt) = doubt {
                problems.warn(record.place(), format!("the {} of {} {doubt}", set.rtype(), node.name()));
            }
        }
    }
}

/// What NS, MX and SRV point at should have addresses and be no alias (RFC 2181 section 10.3, RFC 2782); a name
/// server at or below its own delegation needs glue (RFC 9471 section 3). Doubtful, but no reason to refuse.
fn targets(zone: &Zone, node: &Node<'_>, problems: &mut Problems) {
    let pointing = |set: &Rrset<'_>| matches!(set.rtype(), Rtype::NS | Rtype::MX | Rtype::SRV);
    for set in node.rrsets().filter(pointing).flat_map(|set| set.singly()) {
        if problems.has_warned_enough() {
            return;
        }
        let embedded = set.rdatas().flat_map(|rdata| set.rtype().embedded_names(rdata));
        for (_, target) in embedded.filter(|(_, target)| !target.is_root() && target.is_subdomain_of(zone.origin())) {
            let (owner, rtype) = (node.name(), set.rtype());
            let found = zone.find(target);
            if found.as_ref().is_some_and(|found| found.has(Rtype::CNAME)) {
                let what = format!("the {rtype} of {owner} points at {target}, which is a CNAME (RFC 2181 10.3)");
                problems.warn(set.place(), what);
            } else if !found.is_some_and(|found| found.has(Rtype::A) || found.has(Rtype::AAAA))
                && !may_exist_elsewhere(zone, target, owner)
            {
                let glue = rtype == Rtype::NS && owner != zone.origin() && target.is_subdomain_of(owner);
                let missing = if glue { "glue" } else { "address" };
                problems
                    .warn(set.place(), format!("the {rtype} of {owner} points at {target}, which has no {missing}"));
            }
        }
    }
}

/// Whether a name without addresses of its own may have some that are not seen there: by a DNAME, below a delegation
/// other than that of `owner`, or by a wildcard. A bounded number of searches, however many labels it has.
fn may_exist_elsewhere(zone: &Zone, name: NameRef<'_>, owner: NameRef<'_>) -> bool {
    if let Some(edge) = zone.edge(name).filter(|edge| edge.name() != name) {
        return edge.has(Rtype::DNAME) || edge.name() != owner;
    }
    let encloser = zone.encloser(name);
    let wildcard = [b"\x01*", encloser.as_wire()].concat();
    encloser != name && NameRef::from_wire(&wildcard).is_ok_and(|wildcard| zone.find(wildcard).is_some())
}

/// What this server refuses although the protocol does not: a zone of another class than the Internet's, since the tables tell zones
/// apart by name alone; and a signed zone, until DNSSEC answers exist. Served without its signatures it would fail at every validating
/// resolver.
fn policy(zone: &Zone, problems: &mut Problems) {
    let apex = || zone.find(zone.origin()).and_then(|node| node.rrset(Rtype::SOA));
    let first = || zone.nodes().find_map(|node| node.rrsets().next());
    if zone.class() != Class::IN
        && let Some(set) = apex().or_else(first)
    {
        let what = format!(
            "the zone {} is of class {}, but only class IN is served; make its records of class IN, or leave it out",
            zone.origin(),
            zone.class()
        );
        problems.error(set.place(), what);
    }
    if let Some(keys) = zone.find(zone.origin()).and_then(|node| node.rrset(Rtype::DNSKEY)) {
        let what = format!(
            "the zone {} has a DNSKEY at its apex, but DNSSEC answers do not exist yet; serve it unsigned (no DNSKEY, no DS at its parent)",
            zone.origin()
        );
        problems.error(keys.place(), what);
    }
}
