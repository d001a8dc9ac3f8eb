//! A zone as it is held: a store of octets, the records' references in canonical order, and where each
//! name's records begin among them. Eight octets a name beside the store, four more a delegation, nothing per
//! record on the heap.

use std::cmp::Ordering;
use std::iter::FusedIterator;
use std::ops::Range;

use crate::error::{Error, Place};
use crate::name::{Name, NameRef};
use crate::rtype::{Class, Rtype};
use crate::store::{RecordAt, Store};

#[cfg(test)]
thread_local! {
    /// how many times a name was searched for
    pub(crate) static SEARCHES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// A checked zone; see the module's text. Only names that own records have nodes: an empty non-terminal
/// is implied by the names below it.
#[derive(Debug)]
pub struct Zone {
    pub(crate) origin: Name,
    pub(crate) class: Class,
    pub(crate) store: Store,
    /// Sorted by owner (canonical order), type, and canonical rdata (RFC 4034 section 6.3); no duplicates.
    pub(crate) records: Vec<RecordAt>,
    /// The first record of each node, in canonical order of the names.
    pub(crate) nodes: Vec<u32>,
    /// Which nodes delegate or own a DNAME, in canonical order, without those below others of them.
    pub(crate) edges: Vec<u32>,
    pub(crate) files: Vec<String>,
    pub(crate) warnings: Vec<Error>,
}

impl Zone {
    /// The apex.
    pub fn origin(&self) -> NameRef<'_> {
        self.origin.view()
    }

    /// The class of every record.
    pub fn class(&self) -> Class {
        self.class
    }

    /// The apex's SOA record set, of exactly one record.
    pub fn soa(&self) -> Rrset<'_> {
        // the checks refuse a zone without one, and the apex sorts before every other name of its zone
        self.node(0).rrset(Rtype::SOA).expect("a checked zone has an SOA at its first node")
    }

    /// All nodes in canonical order of their names, the apex first.
    pub fn nodes(&self) -> Nodes<'_> {
        Nodes { zone: self, range: 0..self.nodes.len() }
    }

    /// How many names own records.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never true for a checked zone: it has an apex.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// How many records there are.
    pub fn record_count(&self) -> usize {
        self.records.len()
    }

    /// The octets of memory that the zone holds.
    pub fn bytes(&self) -> usize {
        self.store.held_bytes()
            + self.records.capacity() * size_of::<RecordAt>()
            + (self.nodes.capacity() + self.edges.capacity()) * size_of::<u32>()
    }

    /// What is doubtful but was accepted.
    pub fn warnings(&self) -> &[Error] {
        &self.warnings
    }

    /// The node at `index` in canonical order.
    ///
    /// # Panics
    /// If `index` is not below [`Zone::len`].
    pub fn node(&self, index: usize) -> Node<'_> {
        let end = self.nodes.get(index + 1).map_or(self.records.len(), |&next| next as usize);
        Node { zone: self, records: self.nodes[index] as usize..end }
    }

    fn place(&self, record: RecordAt) -> Place {
        let at = self.store.at(record);
        let file = self.files.get(usize::from(at.file)).cloned().unwrap_or_default();
        Place { file, line: at.line, column: u32::from(at.column) }
    }

    /// The index of the node of this name, or, as an error, of the first node after it in canonical order.
    pub fn search(&self, name: NameRef<'_>) -> Result<usize, usize> {
        #[cfg(test)]
        SEARCHES.set(SEARCHES.get() + 1);
        self.nodes.binary_search_by(|&first| self.store.owner(self.records[first as usize]).canonical_cmp(name))
    }

    /// The node of this name, in any letter case.
    pub fn find(&self, name: NameRef<'_>) -> Option<Node<'_>> {
        self.search(name).ok().map(|index| self.node(index))
    }

    /// Whether the name exists: it or a name below it owns records (RFC 4592 section 2.2.2).
    pub fn exists(&self, name: NameRef<'_>) -> bool {
        match self.search(name) {
            Ok(_) => true,
            // canonical order puts a name's descendants right behind it
            Err(next) => next < self.len() && self.node(next).name().is_subdomain_of(name),
        }
    }

    /// The closest encloser of a name in the zone (RFC 4592 section 3.3.1): its longest ending that exists, which is the name itself
    /// where it does. One search, however many labels it has.
    pub fn encloser<'n>(&self, name: NameRef<'n>) -> NameRef<'n> {
        let Err(next) = self.search(name) else { return name };
        // whatever exists below an ancestor stands in one run, and the name's place is in it or at its end: of all names the one before
        // and the one behind share the most labels with it
        let beside = [next.checked_sub(1), (next < self.len()).then_some(next)];
        let shared = beside.into_iter().flatten().map(|index| self.node(index).name().shared_labels(name));
        name.suffix(shared.max().unwrap_or(0))
    }

    /// Where the zone's own data end on the way from the apex down to a name: the first delegation or owner of a DNAME, the name itself
    /// among them.
    pub fn edge(&self, name: NameRef<'_>) -> Option<Node<'_>> {
        #[cfg(test)]
        SEARCHES.set(SEARCHES.get() + 1);
        let node = |edge: u32| self.node(edge as usize);
        let behind = self.edges.partition_point(|&edge| node(edge).name().canonical_cmp(name).is_le());
        // none is below another, so between one above the name and the name there are no others
        let edge = node(self.edges[behind.checked_sub(1)?]);
        name.is_subdomain_of(edge.name()).then_some(edge)
    }

    /// Finds the edges, once the nodes are there.
    pub(crate) fn mark_edges(&mut self) {
        let mut edges: Vec<u32> = Vec::new();
        for (index, node) in self.nodes().enumerate() {
            let below = edges.last().is_some_and(|&edge| node.name().is_subdomain_of(self.node(edge as usize).name()));
            if !below && (index > 0 && node.has(Rtype::NS) || node.has(Rtype::DNAME)) {
                edges.push(index as u32);
            }
        }
        edges.shrink_to_fit();
        self.edges = edges;
    }
}

/// The nodes of a zone, in canonical order.
#[derive(Clone, Debug)]
pub struct Nodes<'z> {
    zone: &'z Zone,
    range: Range<usize>,
}

impl<'z> Iterator for Nodes<'z> {
    type Item = Node<'z>;

    fn next(&mut self) -> Option<Node<'z>> {
        self.range.next().map(|index| self.zone.node(index))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.range.size_hint()
    }
}

impl DoubleEndedIterator for Nodes<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.range.next_back().map(|index| self.zone.node(index))
    }
}

impl ExactSizeIterator for Nodes<'_> {}
impl FusedIterator for Nodes<'_> {}

/// A name and all its records.
#[derive(Clone, Debug)]
pub struct Node<'z> {
    zone: &'z Zone,
    records: Range<usize>,
}

impl<'z> Node<'z> {
    /// The owner.
    pub fn name(&self) -> NameRef<'z> {
        self.zone.store.owner(self.zone.records[self.records.start])
    }

    /// The record sets by ascending type. RRSIG is a set like the others; see [`Rrset::sigs`].
    pub fn rrsets(&self) -> Rrsets<'z> {
        Rrsets { zone: self.zone, records: self.records.clone() }
    }

    /// The set of one type. A search, since a name may have millions of records, of which a question is for another type.
    pub fn rrset(&self, rtype: Rtype) -> Option<Rrset<'z>> {
        let records = &self.zone.records[self.records.clone()];
        let start = self.records.start + records.partition_point(|&record| self.zone.store.rtype(record) < rtype);
        let set = Rrsets { zone: self.zone, records: start..self.records.end }.next()?;
        (set.rtype() == rtype).then_some(set)
    }

    /// Whether there is a record of this type.
    pub fn has(&self, rtype: Rtype) -> bool {
        self.rrset(rtype).is_some()
    }
}

/// The record sets of a node, by ascending type.
#[derive(Clone, Debug)]
pub struct Rrsets<'z> {
    zone: &'z Zone,
    records: Range<usize>,
}

impl<'z> Iterator for Rrsets<'z> {
    type Item = Rrset<'z>;

    fn next(&mut self) -> Option<Rrset<'z>> {
        let records = &self.zone.records[self.records.clone()];
        let rtype = self.zone.store.rtype(*records.first()?);
        let ends = |at: usize| records.get(at).is_none_or(|&record| self.zone.store.rtype(record) != rtype);
        // most sets are short, and some very long: in steps that double, and then within the last of them
        let mut step = 1;
        while !ends(step) {
            step *= 2;
        }
        let (least, most) = (step / 2 + 1, step.min(records.len()));
        let behind = &records[least..most.max(least)];
        let count = least + behind.partition_point(|&record| self.zone.store.rtype(record) == rtype);
        let start = self.records.start;
        self.records.start += count;
        Some(Rrset { zone: self.zone, records: start..start + count })
    }
}

impl FusedIterator for Rrsets<'_> {}

/// The records of one name and type. The TTL is that of all of them, except in an RRSIG set, whose records
/// have the TTL of the set that they cover (RFC 4034 section 3).
#[derive(Clone, Debug)]
pub struct Rrset<'z> {
    zone: &'z Zone,
    records: Range<usize>,
}

impl<'z> Rrset<'z> {
    fn first(&self) -> RecordAt {
        self.zone.records[self.records.start]
    }

    /// The owner.
    pub fn name(&self) -> NameRef<'z> {
        self.zone.store.owner(self.first())
    }

    /// The type.
    pub fn rtype(&self) -> Rtype {
        self.zone.store.rtype(self.first())
    }

    /// The TTL in seconds.
    pub fn ttl(&self) -> u32 {
        self.zone.store.ttl(self.first())
    }

    /// The TTL of each record, in the order of [`Rrset::rdatas`].
    pub(crate) fn ttls(&self) -> impl Iterator<Item = u32> + use<'z> {
        let zone = self.zone;
        zone.records[self.records.clone()].iter().map(|&record| zone.store.ttl(record))
    }

    /// The class.
    pub fn class(&self) -> Class {
        self.zone.class
    }

    /// How many records there are; at least one.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Never true: a set has a record.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The rdata of each record in uncompressed wire form, in canonical order, without duplicates.
    pub fn rdatas(&self) -> Rdatas<'z> {
        Rdatas { zone: self.zone, records: self.records.clone() }
    }

    /// Each record as a set of its own.
    pub(crate) fn singly(&self) -> impl Iterator<Item = Rrset<'z>> + use<'z> {
        let zone = self.zone;
        self.records.clone().map(move |index| Rrset { zone, records: index..index + 1 })
    }

    /// The rdata of the RRSIG records that cover this set.
    pub fn sigs(&self) -> impl Iterator<Item = &'z [u8]> + use<'z> {
        let covered = self.rtype().0.to_be_bytes();
        let node = self.zone.find(self.name());
        let sigs = node.and_then(|node| node.rrset(Rtype::RRSIG)).map(|set| set.rdatas());
        sigs.into_iter().flatten().filter(move |rdata| rdata.starts_with(&covered))
    }

    /// Where the set's first record stood; "first" in canonical order.
    pub fn place(&self) -> Place {
        self.zone.place(self.first())
    }

    /// Where the one of its records stood that came last in the files.
    pub(crate) fn last_place(&self) -> Place {
        let last = self.zone.records[self.records.clone()].iter().max();
        self.zone.place(last.copied().unwrap_or(self.first()))
    }
}

/// The rdata of a record set; the iterator of [`Rrset::rdatas`].
#[derive(Clone, Debug)]
pub struct Rdatas<'z> {
    zone: &'z Zone,
    records: Range<usize>,
}

impl<'z> Iterator for Rdatas<'z> {
    type Item = &'z [u8];

    fn next(&mut self) -> Option<&'z [u8]> {
        self.records.next().map(|index| self.zone.store.rdata(self.zone.records[index]))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.records.size_hint()
    }
}

impl ExactSizeIterator for Rdatas<'_> {}
impl FusedIterator for Rdatas<'_> {}

/// Zones compare by content: origin, class, and every name, TTL and rdata; not by where they were written.
impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        let record =
            |zone: &Zone, at: &RecordAt| (zone.store.ttl(*at), zone.store.rtype(*at), zone.store.rdata(*at).to_vec());
        self.origin == other.origin
            && self.class == other.class
            && self.records.len() == other.records.len()
            && self.records.iter().zip(&other.records).all(|(a, b)| {
                self.store.owner(*a).canonical_cmp(other.store.owner(*b)) == Ordering::Equal
                    && record(self, a) == record(other, b)
            })
    }
}
