//! From zones to tables: every name once, in canonical order, with its answers composed by the reference.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::block::{self, UNIT_BYTES};
use crate::compose::Composer;
use crate::key;
use crate::ledger::Ledger;
use crate::reference::{self, Located};
use crate::reply::ARENA_SLACK_BYTES;
use crate::table::{HEADER_BYTES, Tables, ZoneEntry, flag};
use zone::{Name, NameRef, Node, Rtype, Zone};

/// What the prepared answers of one alias may take. They repeat its target's sets, one name's large set for each alias of it;
/// beyond this the alias is answered from the zone itself when it is asked for.
const ALIAS_BYTES: usize = 4096;

/// What the prepared answers of a zone may repeat of other names' sets: aliases of their targets', referrals of the addresses outside of
/// their cuts. Beyond it such names are answered from the zone itself when they are asked for, and tables are never larger than
/// the zone by more than a factor, whatever its author wrote.
#[derive(Clone, Copy)]
struct Repeats {
    /// octets that every zone may repeat
    least: usize,
    /// and as many times what it has without them
    times: usize,
}

const REPEATS: Repeats = Repeats { least: 1 << 20, times: 4 };

/// Why zones cannot be served together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// two zones have this name
    Twice(Name),
    /// the answers need more than 32 GiB
    TooLarge(Name),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Twice(name) => write!(f, "zone {name} is given twice; remove one of them"),
            Self::TooLarge(name) => {
                write!(f, "the answers of zone {name} do not fit 32 GiB of tables; serve it elsewhere")
            }
        }
    }
}

impl std::error::Error for BuildError {}

impl Tables {
    /// Prepares the answers of all `zones`, which may lie inside each other. `seed` keys the hash; take it from the
    /// machine's entropy.
    ///
    /// # Errors
    /// Every zone that cannot be served beside the others.
    pub fn build(zones: Vec<Zone>, seed: u64) -> Result<Tables, Vec<BuildError>> {
        Tables::counted_in(&Arc::default(), zones, seed, REPEATS)
    }

    /// As [`Tables::build`], with nothing repeated.
    #[cfg(test)]
    pub(crate) fn build_without_repeats(zones: Vec<Zone>, seed: u64) -> Tables {
        Tables::counted_in(&Arc::default(), zones, seed, Repeats { least: 0, times: 0 }).unwrap()
    }

    /// As [`Tables::build`], for tables that will replace `self`: zones that are in both keep their counts, and servers take
    /// the new tables without allocating, since the room for their counters is made here.
    ///
    /// # Errors
    /// Every zone that cannot be served beside the others.
    pub fn rebuild(&self, zones: Vec<Zone>, seed: u64) -> Result<Tables, Vec<BuildError>> {
        Tables::counted_in(self.counted.ledger(), zones, seed, REPEATS)
    }

    fn counted_in(
        ledger: &Arc<Ledger>,
        zones: Vec<Zone>,
        seed: u64,
        repeats: Repeats,
    ) -> Result<Tables, Vec<BuildError>> {
        let mut by_name = HashMap::with_capacity(zones.len());
        let mut errors = Vec::new();
        for (index, zone) in zones.iter().enumerate() {
            if by_name.insert(zone.origin().to_lower(), index as u32).is_some() {
                errors.push(BuildError::Twice(zone.origin().to_name()));
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let around: Vec<Option<u32>> = zones.iter().map(|zone| zone_around(zone.origin(), &by_name)).collect();
        let inner = inner_apexes(&zones, &around);
        let mut build = Build::new(seed, zones.iter().map(Zone::len).sum(), repeats);
        let mut entries = Vec::with_capacity(zones.len());
        for (index, zone) in zones.iter().enumerate() {
            let negative = build.zone(zone, index as u32, &inner[index]).map_err(|error| vec![error])?;
            entries.push((negative, zone.origin().as_wire().len() as u8));
        }
        let parents: Vec<Option<u32>> = zones
            .iter()
            .zip(around)
            .map(|(zone, outer)| outer.filter(|n| is_parent(&zones[*n as usize], zone)))
            .collect();
        let entries = zones.into_iter().zip(entries).zip(parents);
        let entries =
            entries.map(|((zone, (negative, apex_bytes)), parent)| ZoneEntry { zone, parent, negative, apex_bytes });
        Ok(build.finish(entries.collect(), ledger))
    }
}

/// The nearest zone that a name is inside of.
fn zone_around(origin: NameRef<'_>, by_name: &HashMap<Name, u32>) -> Option<u32> {
    let mut above = origin.parent();
    while let Some(name) = above {
        if let Some(index) = by_name.get(&name.to_name()) {
            return Some(*index);
        }
        above = name.parent();
    }
    None
}

/// Whether the zone around another is its parent, which speaks of its DS. Where it has a cut between them, the parent is a zone that
/// is not here.
fn is_parent(outer: &Zone, zone: &Zone) -> bool {
    !matches!(reference::locate(outer, zone.origin(), Rtype::DS), Located::Cut(_))
}

/// For each zone the apexes of those directly inside it, in canonical order.
fn inner_apexes<'z>(zones: &'z [Zone], around: &[Option<u32>]) -> Vec<Vec<NameRef<'z>>> {
    let mut inner = vec![Vec::new(); zones.len()];
    for (zone, outer) in zones.iter().zip(around) {
        if let Some(outer) = outer {
            inner[*outer as usize].push(zone.origin());
        }
    }
    for apexes in &mut inner {
        apexes.sort_unstable_by(|a: &NameRef<'_>, b| a.canonical_cmp(*b));
    }
    inner
}

struct Build {
    arena: Vec<u8>,
    names: Vec<(u64, u32)>,
    seed: u64,
    composer: Composer,
    /// the node being written: (type, block) pairs
    directory: Vec<(Rtype, u32)>,
    repeats: Repeats,
    /// of the zone being written: where it begins in the arena, octets in there that repeat others, and such that were composed in vain
    begin: usize,
    repeated: usize,
    in_vain: usize,
}

/// A node above the one being written.
struct Above<'z> {
    name: NameRef<'z>,
    unit: u32,
}

impl Build {
    fn new(seed: u64, names: usize, repeats: Repeats) -> Build {
        Build {
            // unit 0 is nobody's
            arena: vec![0; UNIT_BYTES],
            names: Vec::with_capacity(names + names / 64 + 16),
            seed,
            composer: Composer::new(),
            directory: Vec::new(),
            repeats,
            begin: 0,
            repeated: 0,
            in_vain: 0,
        }
    }

    fn units(&self) -> u64 {
        (self.arena.len() / UNIT_BYTES) as u64
    }

    fn unit(&self) -> u32 {
        self.units() as u32
    }

    fn block(&mut self) -> u32 {
        let unit = self.unit();
        block::write(&mut self.arena, &self.composer);
        unit
    }

    /// Whether the zone has repeated what it may; or, for an alias, as much was composed that aliases could not keep, which takes no
    /// memory but time.
    fn has_repeated_enough(&self, alias: bool) -> bool {
        let own = self.arena.len() - self.begin - self.repeated;
        let most = self.repeats.least + self.repeats.times * own;
        self.repeated >= most || alias && self.in_vain >= most
    }

    /// Puts all names of a zone in; gives the block of its negative answers.
    fn zone(&mut self, zone: &Zone, index: u32, inner: &[NameRef<'_>]) -> Result<u32, BuildError> {
        (self.begin, self.repeated, self.in_vain) = (self.arena.len(), 0, 0);
        self.composer.start(zone.origin(), true);
        reference::start_of_authority(zone, &mut self.composer);
        self.composer.need_all();
        let negative = self.block();
        let mut above: Vec<Above<'_>> = Vec::new();
        let mut hidden_below: Option<NameRef<'_>> = None;
        let mut next_inner = inner.iter().peekable();
        for order in 0..zone.len() {
            if self.units() > u64::from(u32::MAX) {
                return Err(BuildError::TooLarge(zone.origin().to_name()));
            }
            let node = zone.node(order);
            let name = node.name();
            if hidden_below.is_some_and(|cut| name.is_subdomain_of(cut)) {
                continue;
            }
            while next_inner
                .peek()
                .is_some_and(|apex| !name.is_subdomain_of(**apex) && apex.canonical_cmp(name).is_lt())
            {
                next_inner.next();
            }
            if let Some(apex) = next_inner.peek().filter(|apex| name.is_subdomain_of(***apex)) {
                // this name is the inner zone's; what it makes exist above that zone is still ours
                hidden_below = Some(**apex);
                if let Some(parent) = apex.parent() {
                    self.above(zone, index, order as u32, parent, &mut above);
                }
                continue;
            }
            if let Some(parent) = name.parent().filter(|_| order > 0) {
                self.above(zone, index, order as u32, parent, &mut above);
            }
            let leaf = order + 1 == zone.len() || !zone.node(order + 1).name().is_subdomain_of(name);
            let unit = self.node(zone, index, order as u32, &node, leaf);
            if name.is_wildcard()
                && let Some(parent) = above.last()
            {
                self.link(parent.unit, unit);
            }
            above.push(Above { name, unit });
            let cut = order > 0 && node.has(Rtype::NS);
            hidden_below = if cut { Some(name) } else { None };
        }
        if self.units() > u64::from(u32::MAX) {
            return Err(BuildError::TooLarge(zone.origin().to_name()));
        }
        Ok(negative)
    }

    /// Makes `above` end with `name`, adding the empty non-terminals on the way.
    fn above<'z>(&mut self, zone: &'z Zone, index: u32, order: u32, name: NameRef<'z>, above: &mut Vec<Above<'z>>) {
        while above.last().is_some_and(|last| !name.is_subdomain_of(last.name)) {
            above.pop();
        }
        let have = above.last().map_or(zone.origin().label_count(), |last| last.name.label_count());
        for depth in have + 1..=name.label_count() {
            let here = name.suffix(depth);
            let unit = self.open(here, flag::LINKED, index, order);
            self.directory.clear();
            self.close(unit, 0);
            if here.is_wildcard()
                && let Some(parent) = above.last()
            {
                self.link(parent.unit, unit);
            }
            above.push(Above { name: here, unit });
        }
    }

    /// Writes a node's head up to the directory and enters it.
    fn open(&mut self, name: NameRef<'_>, flags: u8, zone: u32, order: u32) -> u32 {
        let unit = self.unit();
        let wire = name.as_wire();
        self.arena.extend_from_slice(&[wire.len() as u8, flags, 0, 0]);
        self.arena.extend_from_slice(&zone.to_le_bytes());
        self.arena.extend_from_slice(&order.to_le_bytes());
        let begin = self.arena.len();
        self.arena.extend_from_slice(wire);
        self.arena[begin..].make_ascii_lowercase();
        self.arena.resize(self.arena.len().next_multiple_of(UNIT_BYTES), 0);
        if flags & flag::LINKED != 0 {
            self.arena.extend_from_slice(&[0; 8]);
        }
        self.names.push((key::hash(self.seed, wire, 0, wire.len()), unit));
        unit
    }

    /// Room for the directory, filled in by [`Build::close`].
    fn reserve(&mut self, types: usize) {
        self.arena.resize(self.arena.len() + 8 * types, 0);
    }

    fn after_name(&self, unit: u32) -> usize {
        let at = unit as usize * UNIT_BYTES;
        at + (HEADER_BYTES + usize::from(self.arena[at])).next_multiple_of(UNIT_BYTES)
    }

    fn close(&mut self, unit: u32, fallback: u32) {
        let at = unit as usize * UNIT_BYTES;
        self.arena[at + 2..at + 4].copy_from_slice(&(self.directory.len() as u16).to_le_bytes());
        let mut directory_at = self.after_name(unit);
        if self.arena[at + 1] & flag::LINKED != 0 {
            self.arena[directory_at + 4..directory_at + 8].copy_from_slice(&fallback.to_le_bytes());
            directory_at += 8;
        }
        for (n, (rtype, block)) in self.directory.iter().enumerate() {
            let row = directory_at + 8 * n;
            self.arena[row..row + 2].copy_from_slice(&rtype.0.to_le_bytes());
            self.arena[row + 4..row + 8].copy_from_slice(&block.to_le_bytes());
        }
    }

    /// A zone is below this node.
    fn mark_outer(&mut self, unit: u32) {
        let flags = &mut self.arena[unit as usize * UNIT_BYTES + 1];
        if *flags & flag::CUT != 0 {
            *flags |= flag::OUTER;
        }
    }

    fn link(&mut self, unit: u32, to: u32) {
        let at = self.after_name(unit);
        self.arena[at..at + 4].copy_from_slice(&to.to_le_bytes());
    }

    fn node(&mut self, zone: &Zone, index: u32, order: u32, node: &Node<'_>, leaf: bool) -> u32 {
        let alias = node.has(Rtype::CNAME);
        let cut = order > 0 && node.has(Rtype::NS);
        let apex = order == 0;
        let mut flags = 0;
        for (set, bit) in [(alias, flag::ALIAS), (cut, flag::CUT), (apex, flag::APEX)] {
            flags |= if set { bit } else { 0 };
        }
        if node.has(Rtype::DNAME) && !cut {
            flags |= flag::DNAME;
        }
        if !leaf || alias || cut || apex {
            flags |= flag::LINKED;
        }
        let repeats = alias || cut && reference::repeats_addresses(zone, node);
        let types = if repeats && self.has_repeated_enough(alias) { None } else { types_answered(zone, node, cut) };
        let unit = self.open(node.name(), flags, index, order);
        self.directory.clear();
        let end = self.arena.len();
        let fallback = types.and_then(|types| self.answers(zone, node, &types, alias, cut));
        if fallback.is_none() {
            self.in_vain += self.arena.len() - end;
            self.arena.truncate(end);
            self.directory.clear();
            self.arena[unit as usize * UNIT_BYTES + 1] |= flag::DEPENDS;
        }
        self.close(unit, fallback.unwrap_or(0));
        unit
    }

    /// Writes the directory's room and the blocks of a node; gives the block for all other types, 0 where that is the zone's. None where
    /// they cannot be prepared, or are too large.
    fn answers(&mut self, zone: &Zone, node: &Node<'_>, types: &[Rtype], alias: bool, cut: bool) -> Option<u32> {
        let begin = self.arena.len();
        let left = |end| if alias { ALIAS_BYTES.saturating_sub(end - begin) } else { usize::MAX };
        self.reserve(types.len());
        let (mut fallback, mut repeated) = (0, 0);
        let others = alias.then(|| absent_from(types));
        for rtype in types.iter().copied().chain(others) {
            let at = self.arena.len();
            self.compose(zone, node, rtype, left(at));
            if alias && self.composer.overflowed {
                self.in_vain += ALIAS_BYTES;
                return None;
            }
            if self.composer.depends {
                return None;
            }
            let block = self.block();
            if others == Some(rtype) {
                fallback = block;
            } else {
                self.directory.push((rtype, block));
            }
            repeated += match rtype {
                Rtype::CNAME => 0,
                _ if alias => self.arena.len() - at,
                _ => self.repeated_since(at),
            };
        }
        if cut {
            let at = self.arena.len();
            self.composer.start(node.name(), true);
            self.composer.authoritative = false;
            reference::referral(zone, node, &mut self.composer);
            fallback = self.block();
            repeated += self.repeated_since(at);
        }
        self.repeated += repeated;
        Some(fallback)
    }

    /// Octets of the block that was written at `at` for addresses that may be left out.
    fn repeated_since(&self, at: usize) -> usize {
        if self.composer.has_optional() { self.arena.len() - at - self.composer.needed } else { 0 }
    }

    /// Composes the answer of a node to questions for one type, in so many octets.
    fn compose(&mut self, zone: &Zone, node: &Node<'_>, rtype: Rtype, room: usize) {
        match node.name().parent().filter(|_| node.name().is_wildcard()) {
            Some(parent) => {
                self.composer.start(parent, true);
                self.composer.limit_to(room);
                let found = Located::Wildcard(Some(node.clone()));
                reference::respond(zone, found, None, rtype, &mut self.composer);
            }
            None => {
                self.composer.start(node.name(), false);
                self.composer.limit_to(room);
                let found = Located::Exact(Some(node.clone()));
                reference::respond(zone, found, Some(node.name()), rtype, &mut self.composer);
            }
        }
    }

    /// Enters what is missing above each apex, so that every suffix of a name in the table is in the table.
    fn finish(mut self, zones: Vec<ZoneEntry>, ledger: &Arc<Ledger>) -> Tables {
        let more = zones.iter().map(|entry| entry.zone.origin().label_count()).sum();
        let mut apexes: Vec<Name> = zones.iter().map(|entry| entry.zone.origin().to_name()).collect();
        // outer zones first
        apexes.sort_by_key(|apex| apex.as_wire().len());
        let names = std::mem::take(&mut self.names);
        let counted = ledger.lease(zones.iter().map(|entry| entry.zone.origin()));
        let mut tables = Tables::with(&names, more, zones, self.seed, counted);
        drop(names);
        for apex in &apexes {
            let mut encloser = 0;
            for depth in 0..apex.label_count() {
                let name = apex.view().suffix(depth);
                std::mem::swap(&mut tables.arena, &mut self.arena);
                let found = tables.lookup(name.as_wire()).map(|entry| (entry.unit, entry.has(flag::PHANTOM)));
                std::mem::swap(&mut tables.arena, &mut self.arena);
                match found {
                    Some((_, true)) => {}
                    Some((unit, false)) => {
                        encloser = unit;
                        self.mark_outer(unit);
                    }
                    None => {
                        let unit = self.open(name, flag::PHANTOM | flag::LINKED, 0, 0);
                        self.link(unit, encloser);
                        for (hash, unit) in self.names.drain(..) {
                            tables.put(hash, unit);
                        }
                    }
                }
            }
        }
        self.arena.resize(self.arena.len() + ARENA_SLACK_BYTES, 0);
        self.arena.shrink_to_fit();
        tables.arena = self.arena;
        tables
    }
}

/// The types that need a block of their own at a node, its lowest own type first; none where its answers cannot be prepared.
fn types_answered(zone: &Zone, node: &Node<'_>, cut: bool) -> Option<Vec<Rtype>> {
    let mut types: Vec<Rtype> = node.rrsets().map(|set| set.rtype()).collect();
    if cut && !node.name().is_wildcard() {
        types.retain(|rtype| *rtype == Rtype::DS);
        return Some(types);
    }
    if !types.contains(&Rtype::CNAME) {
        return Some(types);
    }
    let mut links = 0;
    let mut here = node.clone();
    loop {
        let target = here.rrset(Rtype::CNAME).and_then(|set| set.rdatas().next());
        let Some(target) = target.and_then(|rdata| NameRef::from_wire(rdata).ok()) else { break };
        match reference::locate(zone, target, Rtype::A) {
            Located::Exact(Some(next)) | Located::Wildcard(Some(next)) => here = next,
            // the parent's side of a cut answers DS
            Located::Cut(_) => {
                types.push(Rtype::DS);
                break;
            }
            Located::Dname(_) => return None,
            _ => break,
        }
        links += 1;
        if links > 20 {
            break;
        }
        if !here.has(Rtype::CNAME) {
            types.extend(here.rrsets().map(|set| set.rtype()));
            break;
        }
        // beside a CNAME only DNSSEC types stand
        types.extend(here.rrsets().map(|set| set.rtype()).filter(|rtype| *rtype != Rtype::CNAME));
    }
    let own = types[0];
    types.sort_unstable();
    types.dedup();
    let at = types.iter().position(|rtype| *rtype == own).unwrap_or(0);
    types[..=at].rotate_right(1);
    Some(types)
}

/// A type that is not among these.
fn absent_from(types: &[Rtype]) -> Rtype {
    (65_280..65_535).map(Rtype).find(|rtype| !types.contains(rtype)).unwrap_or(Rtype(65_535))
}
