//! From records in any order to a [`Zone`]: sorting, duplicates, TTLs, and the checks.

use std::cmp::Ordering;

use crate::checks;
use crate::error::{Error, Place, Problems};
use crate::layout;
use crate::name::{Name, NameRef, label_at};
use crate::rtype::{Class, Rtype};
use crate::store::{At, NameAt, RecordAt, Store};
use crate::zone::Zone;

/// The greatest TTL (RFC 2181 section 8).
pub(crate) const MAX_TTL: u32 = 0x7fff_ffff;

/// Collects the records of one zone; [`Builder::finish`] checks them and makes it.
#[derive(Debug)]
pub struct Builder {
    origin: Option<Name>,
    class: Option<Class>,
    store: Store,
    records: Vec<RecordAt>,
    last_owner: Option<NameAt>,
    files: Vec<String>,
    pub(crate) problems: Problems,
}

impl Builder {
    /// A builder for the zone at `origin`; without one, the first SOA's owner is the apex.
    pub fn new(origin: Option<Name>) -> Builder {
        Builder {
            origin,
            class: None,
            store: Store::default(),
            records: Vec::new(),
            last_owner: None,
            files: vec!["<memory>".to_owned()],
            problems: Problems::default(),
        }
    }

    /// Adds a record; whatever is wrong with it is kept for [`Builder::finish`]. `rdata` is in uncompressed
    /// wire form. In errors its place is `<memory>` and, as the line, how many records stand before it plus one.
    pub fn add(&mut self, owner: NameRef<'_>, class: Class, ttl: u32, rtype: Rtype, rdata: &[u8]) {
        let at =
            At { file: 0, line: u32::try_from(self.records.len()).unwrap_or(u32::MAX).saturating_add(1), column: 0 };
        if let Err(wrong) = layout::check(rtype, rdata) {
            self.error(at, format!("the rdata of {rtype} is malformed: {wrong}"));
        } else if ttl > MAX_TTL {
            self.error(at, format!("TTL {ttl} is too large; 2147483647 is the most (RFC 2181 8)"));
        } else {
            self.add_checked(owner, class, ttl, rtype, rdata, at);
        }
    }

    /// Adds a record whose TTL and rdata are known to be sound.
    pub(crate) fn add_checked(
        &mut self,
        owner: NameRef<'_>,
        class: Class,
        ttl: u32,
        rtype: Rtype,
        rdata: &[u8],
        at: At,
    ) {
        if rtype.is_meta() {
            return self
                .error(at, format!("{rtype} is no type that a zone can hold; remove the record (RFC 6895 3.1)"));
        }
        if rdata.len() > usize::from(u16::MAX) {
            return self.error(at, format!("rdata of {} octets; 65535 is the most", rdata.len()));
        }
        let expected = *self.class.get_or_insert(class);
        if expected != class {
            let what = format!("class {class} in a zone of class {expected}; a zone has one class (RFC 1035 5.2)");
            return self.error(at, what);
        }
        // the owner of most records is that of the one before, in the same letters
        let same = self.last_owner.filter(|&last| self.store.name(last).as_wire() == owner.as_wire());
        let pushed = same.or_else(|| self.store.push_name(owner)).and_then(|owner| {
            self.last_owner = Some(owner);
            self.store.push_record(owner, ttl, rtype, rdata, at)
        });
        match pushed {
            Some(record) => self.records.push(record),
            None => self.error(at, "the zone is larger than 16 GiB, the most that can be held".to_owned()),
        }
    }

    pub(crate) fn file(&mut self, path: &str) -> Option<u16> {
        let index = match self.files.iter().position(|file| file == path) {
            Some(index) => index,
            None => {
                self.files.push(path.to_owned());
                self.files.len() - 1
            }
        };
        u16::try_from(index).ok()
    }

    pub(crate) fn place(&self, at: At) -> Place {
        let file = self.files.get(usize::from(at.file)).cloned().unwrap_or_default();
        Place { file, line: at.line, column: u32::from(at.column) }
    }

    pub(crate) fn error(&mut self, at: At, what: String) {
        let place = self.place(at);
        self.problems.error(place, what);
    }

    pub(crate) fn warn(&mut self, at: At, what: String) {
        let place = self.place(at);
        self.problems.warn(place, what);
    }

    pub(crate) fn record_error(&mut self, record: RecordAt, what: String) {
        self.error(self.store.at(record), what);
    }

    /// A builder whose first file is `path`.
    pub(crate) fn for_file(path: &str, origin: Option<Name>) -> Builder {
        let mut builder = Builder::new(origin);
        builder.files.push(path.to_owned());
        builder
    }

    /// Names the zone where neither the caller nor an SOA does.
    pub(crate) fn set_fallback_origin(&mut self, origin: NameRef<'_>) {
        self.settle_origin();
        self.origin.get_or_insert_with(|| origin.to_name());
    }

    pub(crate) fn is_flooded(&self) -> bool {
        self.problems.is_flooded()
    }

    pub(crate) fn into_errors(self) -> Vec<Error> {
        self.problems.into_outcome().err().unwrap_or_default()
    }

    /// Checks what was added and makes the zone, or gives every error.
    pub fn finish(mut self) -> Result<Zone, Vec<Error>> {
        self.settle_origin();
        self.drop_out_of_zone();
        self.sort();
        self.drop_duplicates();
        self.settle_ttls();
        let nodes = self.node_starts();
        self.records.shrink_to_fit();
        self.store.shrink();
        let mut zone = Zone {
            origin: self.origin.take().unwrap_or_else(Name::root),
            class: self.class.unwrap_or(Class::IN),
            store: self.store,
            records: self.records,
            nodes,
            edges: Vec::new(),
            files: self.files,
            warnings: Vec::new(),
        };
        zone.mark_edges();
        checks::run(&zone, &mut self.problems);
        self.problems.into_outcome().map(|warnings| Zone { warnings, ..zone })
    }

    fn settle_origin(&mut self) {
        if self.origin.is_none() {
            let soa = self.records.iter().find(|&&record| self.store.rtype(record) == Rtype::SOA);
            self.origin = soa.map(|&record| self.store.owner(record).to_name());
        }
    }

    fn drop_out_of_zone(&mut self) {
        let Some(origin) = self.origin.clone() else { return };
        let mut records = std::mem::take(&mut self.records);
        records.retain(|&record| {
            let owner = self.store.owner(record);
            if owner.is_subdomain_of(origin.view()) {
                return true;
            }
            let what = format!("{owner} is outside the zone {origin}; mend the name, $ORIGIN, or a missing final dot");
            self.record_error(record, what);
            false
        });
        self.records = records;
    }

    /// Sorts by owner, type and rdata.
    fn sort(&mut self) {
        let apex_labels = self.origin.as_ref().map_or(0, Name::label_count);
        let mut items: Vec<Sortable> =
            self.records.iter().map(|&record| Sortable { high: 0, low: 0, record }).collect();
        sort_names(&self.store, &mut items, apex_labels, 0);
        for (slot, item) in self.records.iter_mut().zip(&items) {
            *slot = item.record;
        }
    }

    /// Equal records count once (RFC 2181 section 5); of several the first in the file stays.
    fn drop_duplicates(&mut self) {
        let store = &self.store;
        self.records.dedup_by(|later, kept| {
            store.rtype(*later) == store.rtype(*kept)
                && store.owner(*later) == store.owner(*kept)
                && cmp_rdata(store.rtype(*kept), store.rdata(*later), store.rdata(*kept)) == Ordering::Equal
        });
    }

    /// One TTL a set (RFC 2181 section 5.2): the lowest, with a warning.
    fn settle_ttls(&mut self) {
        let mut start = 0;
        while start < self.records.len() {
            let first = self.records[start];
            let (ttl, rtype) = (self.store.ttl(first), self.store.rtype(first));
            let (mut end, mut lowest, mut odd) = (start + 1, ttl, None);
            while end < self.records.len() && same_set(&self.store, first, self.records[end]) {
                let other = self.store.ttl(self.records[end]);
                if other != ttl {
                    odd.get_or_insert(self.records[end]);
                }
                lowest = lowest.min(other);
                end += 1;
            }
            if let Some(odd) = odd {
                let owner = self.store.owner(first);
                let what = format!(
                    "the TTLs of {owner} {rtype} differ (RFC 2181 5.2); the lowest, {lowest}, is taken for all"
                );
                self.warn(self.store.at(odd), what);
                for index in start..end {
                    self.store.set_ttl(self.records[index], lowest);
                }
            }
            start = end;
        }
    }

    fn node_starts(&self) -> Vec<u32> {
        let mut nodes = Vec::with_capacity(self.records.len());
        let mut last = None;
        for (index, &record) in self.records.iter().enumerate() {
            let owner = self.store.owner_at(record);
            if last.is_some_and(|last| last == owner || self.store.name(last) == self.store.name(owner)) {
                continue;
            }
            last = Some(owner);
            // the store's 32-bit units bound the number of records
            nodes.push(index as u32);
        }
        nodes.shrink_to_fit();
        nodes
    }
}

/// The same owner and type, and for RRSIG the same type covered.
fn same_set(store: &Store, a: RecordAt, b: RecordAt) -> bool {
    let rtype = store.rtype(a);
    rtype == store.rtype(b)
        && (store.owner_at(a) == store.owner_at(b) || store.owner(a) == store.owner(b))
        && (rtype != Rtype::RRSIG || store.rdata(a).get(..2) == store.rdata(b).get(..2))
}

fn cmp_records(store: &Store, a: RecordAt, b: RecordAt) -> Ordering {
    let rtype = store.rtype(a);
    rtype.cmp(&store.rtype(b)).then_with(|| cmp_rdata(rtype, store.rdata(a), store.rdata(b))).then_with(|| a.cmp(&b))
}

/// Canonical order of rdata (RFC 4034 section 6.3).
fn cmp_rdata(rtype: Rtype, a: &[u8], b: &[u8]) -> Ordering {
    if !rtype.folds_case() || a == b {
        return a.cmp(b);
    }
    let fold = |rdata: &[u8]| {
        let mut folded = rdata.to_vec();
        for (at, name) in rtype.embedded_names(rdata) {
            folded[at..at + name.as_wire().len()].make_ascii_lowercase();
        }
        folded
    };
    fold(a).cmp(&fold(b))
}

const KEY_BYTES: usize = 12;

/// A record's reference and twelve octets of its owner's sort key, so that sorting compares numbers that lie side
/// by side and looks at each name once for every twelve octets that it shares with another.
///
/// The key is the labels below the apex from the right, in lower case, each closed by 0. Octets 0 and 1 inside a
/// label become 1,1 and 1,2, so that keys compare as the names do (RFC 4034 section 6.1).
struct Sortable {
    high: u64,
    low: u32,
    record: RecordAt,
}

impl Sortable {
    /// Takes the twelve octets from `offset` on into view, with zeros behind the key's end.
    fn look_at(&mut self, store: &Store, apex_labels: usize, offset: usize) {
        let owner = store.owner(self.record);
        let (starts, count) = owner.label_starts();
        let labels = starts[..count.saturating_sub(apex_labels)].iter().rev();
        let escaped = |octet: &u8| {
            let lower = octet.to_ascii_lowercase();
            let pair = [1, lower + u8::from(lower <= 1)];
            pair.into_iter().skip(usize::from(lower > 1))
        };
        let octets = labels.flat_map(|&start| label_at(owner.as_wire(), start).iter().flat_map(escaped).chain([0]));
        let mut key = [0u8; KEY_BYTES];
        for (slot, octet) in key.iter_mut().zip(octets.skip(offset)) {
            *slot = octet;
        }
        let [a, b, c, d, e, f, g, h, i, j, k, l] = key;
        self.high = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        self.low = u32::from_be_bytes([i, j, k, l]);
    }

    fn key(&self) -> (u64, u32) {
        (self.high, self.low)
    }

    /// Whether the key has ended: no label is empty, so no two zeros stand inside it.
    fn is_at_end(&self) -> bool {
        self.low & 0xffff == 0
    }
}

/// Sorts records whose owners' keys agree up to `offset`.
fn sort_names(store: &Store, items: &mut [Sortable], apex_labels: usize, offset: usize) {
    for item in items.iter_mut() {
        item.look_at(store, apex_labels, offset);
    }
    items.sort_unstable_by_key(Sortable::key);
    for alike in items.chunk_by_mut(|a, b| a.key() == b.key()).filter(|alike| alike.len() > 1) {
        let owner = store.owner_at(alike[0].record);
        if alike[0].is_at_end() || alike.iter().all(|item| store.owner_at(item.record) == owner) {
            alike.sort_unstable_by(|a, b| cmp_records(store, a.record, b.record));
        } else {
            // a key has at most 510 octets, so this ends after 43 rounds
            sort_names(store, alike, apex_labels, offset + KEY_BYTES);
        }
    }
}
