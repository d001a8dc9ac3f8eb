//! The answer as the RFCs say it, from the zone itself: RFC 1034 section 4.3.2 with RFC 2308, 4592, 6604, 6672, 8482 and
//! 9471. Slow and obvious. Prepared answers are made by it at load, the few that cannot be prepared while serving, and the
//! tests hold the tables against it.

use crate::compose::{Composer, Owner, Section};
use zone::name::MAX_NAME_BYTES;
use zone::{NameRef, Node, Rtype, Zone};

/// RCODEs (RFC 6895 section 2.3).
pub(crate) mod rcode {
    pub(crate) const FORMERR: u8 = 1;
    pub(crate) const NXDOMAIN: u8 = 3;
    pub(crate) const NOTIMP: u8 = 4;
    pub(crate) const REFUSED: u8 = 5;
    pub(crate) const YXDOMAIN: u8 = 6;
}

#[cfg(test)]
thread_local! {
    /// how many targets of NS were read for their addresses, and how many of them looked up outside of a cut
    pub(crate) static TARGETS_READ: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    pub(crate) static TARGETS_LOOKED_UP: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The most targets of NS outside of a cut that are looked up in vain for an answer. What is found takes room and ends by that; what is
/// not would go on through thousands, over TCP. They may be left out (RFC 2181 section 9), and nobody has so many for use: a set of them
/// that a datagram has room for is hardly larger.
const IN_VAIN_MAX: usize = 64;

/// The most links of an alias chain that an answer follows. RFC 1034 section 7.1 lets a server bound them.
const LINKS_MAX: usize = 16;

/// Where a name stands in a zone (RFC 1034 section 4.3.2 steps 2 and 3).
#[derive(Clone, Debug)]
pub(crate) enum Located<'z> {
    /// it exists; without a node it is an empty non-terminal
    Exact(Option<Node<'z>>),
    /// it does not exist, but a wildcard answers for it (RFC 4592 section 3.3.1); without a node an empty one
    Wildcard(Option<Node<'z>>),
    /// at or below a cut
    Cut(Node<'z>),
    /// below a DNAME
    Dname(Node<'z>),
    /// nothing
    Missing,
    /// not in this zone
    Outside,
}

/// Finds a name, by a few searches however many labels it has, since a chain may have a long name at each link. A question for DS at
/// a cut is the parent's (RFC 4035 section 3.1.4.1).
pub(crate) fn locate<'z>(zone: &'z Zone, name: NameRef<'_>, rtype: Rtype) -> Located<'z> {
    if !name.is_subdomain_of(zone.origin()) {
        return Located::Outside;
    }
    if let Some(edge) = zone.edge(name) {
        let (own, cut) = (edge.name() == name, edge.has(Rtype::NS) && edge.name() != zone.origin());
        if cut && !(own && rtype == Rtype::DS) {
            return Located::Cut(edge);
        }
        // the owner of a DNAME is not below it
        if !cut && !own {
            return Located::Dname(edge);
        }
    }
    let encloser = zone.encloser(name);
    if encloser == name { Located::Exact(zone.find(name)) } else { wildcard(zone, encloser) }
}

fn wildcard<'z>(zone: &'z Zone, encloser: NameRef<'_>) -> Located<'z> {
    let mut wire = [0; MAX_NAME_BYTES + 2];
    let len = 2 + encloser.as_wire().len();
    wire[..2].copy_from_slice(b"\x01*");
    wire[2..len].copy_from_slice(encloser.as_wire());
    // where `*.` does not fit before it, no name fits either
    let Ok(name) = NameRef::from_wire(&wire[..len]) else { return Located::Missing };
    match zone.find(name) {
        Some(node) => Located::Wildcard(Some(node)),
        None if zone.exists(name) => Located::Wildcard(None),
        None => Located::Missing,
    }
}

/// A name on the way through a chain.
pub(crate) struct NameBuffer {
    wire: [u8; MAX_NAME_BYTES],
    len: usize,
}

impl NameBuffer {
    pub(crate) fn of(name: NameRef<'_>) -> NameBuffer {
        let mut buffer = NameBuffer { wire: [0; MAX_NAME_BYTES], len: name.as_wire().len() };
        buffer.wire[..buffer.len].copy_from_slice(name.as_wire());
        buffer
    }

    fn view(&self) -> NameRef<'_> {
        NameRef::from_wire(&self.wire[..self.len]).unwrap_or(NameRef::ROOT)
    }

    /// The name with its suffix `owner` replaced by `target` (RFC 6672 section 2.2); none where the result is too long.
    fn substitute(&self, owner: NameRef<'_>, target: NameRef<'_>) -> Option<NameBuffer> {
        let kept = self.len - owner.as_wire().len();
        let len = kept + target.as_wire().len();
        if len > MAX_NAME_BYTES {
            return None;
        }
        let mut buffer = NameBuffer { wire: [0; MAX_NAME_BYTES], len };
        buffer.wire[..kept].copy_from_slice(&self.wire[..kept]);
        buffer.wire[kept..len].copy_from_slice(target.as_wire());
        Some(buffer)
    }
}

/// Composes what is sent of the answer for a question located in `zone` where `room` octets follow the question.
pub(crate) fn answer(zone: &Zone, name: NameRef<'_>, rtype: Rtype, room: usize, out: &mut Composer) {
    out.start(name, false);
    out.limit_to(room);
    respond(zone, locate(zone, name, rtype), Some(name), rtype, out);
}

/// Composes the answer of a name that stands at `found`. Without `name` it is that of any name for which this wildcard
/// answers.
pub(crate) fn respond<'z>(
    zone: &'z Zone,
    mut found: Located<'z>,
    name: Option<NameRef<'_>>,
    rtype: Rtype,
    out: &mut Composer,
) {
    let source = match &found {
        Located::Wildcard(Some(node)) if name.is_none() => Some(node.name()),
        _ => None,
    };
    let mut current = name.map(NameBuffer::of);
    let mut links = 0;
    loop {
        let owner = match &current {
            Some(current) if links > 0 => Owner::Name(current.view()),
            _ => Owner::Question,
        };
        let next = match &found {
            Located::Outside => break,
            Located::Missing => {
                out.rcode = rcode::NXDOMAIN;
                start_of_authority(zone, out);
                break;
            }
            Located::Cut(node) => {
                // AA is that of the first name (RFC 6604 section 2)
                out.authoritative = links > 0;
                referral(zone, node, out);
                return;
            }
            Located::Exact(None) | Located::Wildcard(None) => {
                start_of_authority(zone, out);
                break;
            }
            Located::Exact(Some(node)) | Located::Wildcard(Some(node)) => {
                match data(zone, node, owner, current.as_ref(), rtype, out) {
                    Some(target) => NameBuffer::of(target),
                    None => return,
                }
            }
            Located::Dname(node) => match redirect(zone, node, owner, current.as_ref(), rtype, out) {
                Some(target) => target,
                None => break,
            },
        };
        links += 1;
        if links > LINKS_MAX {
            break;
        }
        found = locate(zone, next.view(), rtype);
        if let (Some(source), Located::Wildcard(Some(node)) | Located::Exact(Some(node))) = (source, &found) {
            // whether this is a loop depends on the name asked, which may be the wildcard's own
            out.depends |= node.name() == source;
        }
        current = Some(next);
    }
    out.need_all();
}

/// The data of a name, or the target of its CNAME to go on with.
fn data<'z>(
    zone: &Zone,
    node: &Node<'z>,
    owner: Owner<'_>,
    current: Option<&NameBuffer>,
    rtype: Rtype,
    out: &mut Composer,
) -> Option<NameRef<'z>> {
    // one set of a name is an answer to ANY (RFC 8482 section 4.1)
    let set = if rtype == Rtype::ANY { node.rrsets().next() } else { node.rrset(rtype) };
    if let Some(set) = set {
        out.set(Section::Answer, owner, &set, zone.class(), set.ttl());
        out.need_all();
        if set.rtype() == Rtype::NS {
            addresses(zone, &set, None, out);
        }
        return None;
    }
    let Some(cname) = node.rrset(Rtype::CNAME) else {
        start_of_authority(zone, out);
        out.need_all();
        return None;
    };
    let looped = current.is_some_and(|current| out.has(current.view(), Rtype::CNAME));
    let target = cname.rdatas().next().and_then(|rdata| NameRef::from_wire(rdata).ok());
    if !looped {
        out.set(Section::Answer, owner, &cname, zone.class(), cname.ttl());
    }
    out.need_all();
    target.filter(|_| !looped)
}

/// The DNAME and the CNAME made from it (RFC 6672 section 3.1), and the name to go on with.
fn redirect(
    zone: &Zone,
    node: &Node<'_>,
    owner: Owner<'_>,
    current: Option<&NameBuffer>,
    rtype: Rtype,
    out: &mut Composer,
) -> Option<NameBuffer> {
    let dname = node.rrset(Rtype::DNAME)?;
    let target = NameRef::from_wire(dname.rdatas().next()?).ok()?;
    let current = current?;
    if !out.has(node.name(), Rtype::DNAME) {
        out.set(Section::Answer, Owner::Name(node.name()), &dname, zone.class(), dname.ttl());
    }
    let Some(next) = current.substitute(node.name(), target) else {
        out.rcode = rcode::YXDOMAIN;
        return None;
    };
    if out.has(current.view(), Rtype::CNAME) {
        return None;
    }
    let rdata = std::iter::once(next.view().as_wire());
    out.records(Section::Answer, owner, Rtype::CNAME, zone.class(), dname.ttl(), rdata);
    (rtype != Rtype::CNAME).then_some(next)
}

/// The SOA of a negative answer, at the lower of its TTL and MINIMUM (RFC 2308 section 3).
pub(crate) fn start_of_authority(zone: &Zone, out: &mut Composer) {
    let soa = zone.soa();
    let minimum = soa.rdatas().next().and_then(|rdata| rdata.last_chunk::<4>()).map_or(0, |m| u32::from_be_bytes(*m));
    out.set(Section::Authority, Owner::Name(zone.origin()), &soa, zone.class(), soa.ttl().min(minimum));
}

/// The NS of a cut and the addresses that the zone has for them; glue inside the cut must be there (RFC 9471 section 3).
pub(crate) fn referral(zone: &Zone, cut: &Node<'_>, out: &mut Composer) {
    let Some(ns) = cut.rrset(Rtype::NS) else { return };
    out.set(Section::Authority, Owner::Name(cut.name()), &ns, zone.class(), ns.ttl());
    out.need_all();
    addresses(zone, &ns, Some(cut.name()), out);
}

/// Adds the addresses of a set's targets, those inside `cut` first and as needed ones.
fn addresses(zone: &Zone, ns: &zone::Rrset<'_>, cut: Option<NameRef<'_>>, out: &mut Composer) {
    let inside = |target: NameRef<'_>| cut.is_some_and(|cut| target.is_subdomain_of(cut));
    if cut.is_some() {
        for target in targets(ns) {
            // nothing more is written, and a set that did not fit may have millions
            if out.overflowed {
                break;
            }
            // below a cut nothing but the name itself has its addresses
            if inside(target)
                && let Some(node) = zone.find(target)
            {
                addresses_of(zone, target, &node, out);
            }
        }
        // what did not fit was needed, too
        out.need_all();
    }
    let mut in_vain = 0;
    for target in targets(ns) {
        if out.overflowed || in_vain == IN_VAIN_MAX {
            break;
        }
        if inside(target) || !target.is_subdomain_of(zone.origin()) {
            continue;
        }
        let node = at_or_by_wildcard(zone, target);
        if !node.is_some_and(|node| addresses_of(zone, target, &node, out)) {
            in_vain += 1;
        }
    }
}

fn targets<'z>(ns: &zone::Rrset<'z>) -> impl Iterator<Item = NameRef<'z>> + use<'z> {
    ns.rdatas().filter_map(|rdata| {
        #[cfg(test)]
        TARGETS_READ.set(TARGETS_READ.get() + 1);
        NameRef::from_wire(rdata).ok()
    })
}

/// Whether a set of NS may bring addresses along that are stored with other names than its own and those below.
pub(crate) fn repeats_addresses(zone: &Zone, node: &Node<'_>) -> bool {
    let targets = node.rrset(Rtype::NS).into_iter().flat_map(|ns| ns.rdatas());
    let mut targets = targets.filter_map(|rdata| NameRef::from_wire(rdata).ok());
    targets.any(|target| target.is_subdomain_of(zone.origin()) && !target.is_subdomain_of(node.name()))
}

/// The node whose addresses are a target's: its own, below a cut too, or a wildcard's.
fn at_or_by_wildcard<'z>(zone: &'z Zone, target: NameRef<'_>) -> Option<Node<'z>> {
    #[cfg(test)]
    TARGETS_LOOKED_UP.set(TARGETS_LOOKED_UP.get() + 1);
    zone.find(target).or_else(|| match locate(zone, target, Rtype::A) {
        Located::Wildcard(node) => node,
        _ => None,
    })
}

/// Adds what addresses there are; gives whether there are some.
fn addresses_of(zone: &Zone, target: NameRef<'_>, node: &Node<'_>, out: &mut Composer) -> bool {
    let mut some = false;
    for rtype in [Rtype::A, Rtype::AAAA] {
        if let Some(set) = node.rrset(rtype) {
            out.set(Section::Additional, Owner::Name(target), &set, zone.class(), set.ttl());
            some = true;
        }
    }
    some
}
