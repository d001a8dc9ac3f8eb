//! Answers with a fixed form: what follows the question does not depend on the question's letters, so that whoever knows a
//! name and a type can put the answer together by copying. It is for who answers in front of the service, in the driver.
//!
//! Of a fixed form is what is answered from a prepared block: data, NODATA, referrals and NXDOMAIN, of every name that has
//! them. Left out: what is composed when it is asked for (below a DNAME, aliases of large sets, referrals that repeat too much, DS above
//! an inner zone), since it may repeat the question's letters; what no zone answers (REFUSED has an option in its OPT record); and everything that
//! is no plain question (see [`crate::question`]).
//!
//! A name that does not exist is answered by the nearest name above it that says something of those below ([`Below`]): a cut,
//! with its referral, and an apex, with NXDOMAIN, which is its NODATA but for the RCODE. Who has children that are redirected or come
//! from a wildcard says that they have no fixed form.
//!
//! How much of an answer is sent depends on what the client takes. Since sets leave from the end, each size sends the first
//! octets of one body: an [`Answer`] has one [`Cut`] for each of them that a client may get.

use std::sync::{Arc, Mutex, PoisonError};

use crate::block::{Block, Counts};
use crate::compose::NAME_AT;
use crate::cookie;
use crate::reference::rcode;
use crate::resolve::Outcome;
use crate::stats::{Stats, Transport};
use crate::table::{Entry, Key, Tables, flag};
use zone::name::MAX_NAME_BYTES;
use zone::{NameRef, Rtype};

/// Octets of an OPT record with a cookie: of what an answer of a fixed form may have behind it, the most.
const OPT_BYTES: usize = 11 + cookie::OPTION_BYTES;
/// What every client takes (RFC 1035 section 2.3.4).
const PLAIN_BYTES: usize = 512;

/// An answer, as it follows the question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// NXDOMAIN, or else NOERROR
    pub nxdomain: bool,
    /// whether AA is set
    pub authoritative: bool,
    /// a number of the zone, for [`Elsewhere`], that lasts as long as tables have the zone
    pub zone: u32,
    /// the records of all sections, without the OPT record
    pub body: Vec<u8>,
    /// what of the body may be sent, from the least on; never empty
    pub cuts: Vec<Cut>,
    /// the first so many cuts are only for names below
    pub cuts_below: usize,
    /// for names below: where pointers stand in the body, in order, each of two octets; they grow by what the question's name is
    /// longer than this one
    pub moves: Vec<u16>,
}

/// What a client gets that takes no larger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// octets of the body
    pub bytes: u16,
    /// records of the answer section
    pub answer: u16,
    /// records of the authority section
    pub authority: u16,
    /// records of the additional section, without the OPT record
    pub additional: u16,
    /// whether TC is set
    pub truncated: bool,
}

/// Which questions for a name an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// those for one type
    Type(Rtype),
    /// those for every type that is not listed, but for transfers and those said here
    Others {
        /// questions for ANY are not among them
        but_any: bool,
        /// questions for DS are not among them
        but_ds: bool,
        /// what is said of names below
        below: Below,
    },
}

/// What a name says of those below it that do not exist, unless one that is nearer to them says something, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// nothing
    AsAbove,
    /// that their answers have no fixed form
    Left,
    /// that its answer to all other types is theirs to every type but transfers
    Answered {
        /// with NXDOMAIN
        absent: bool,
        /// names may exist below, so only who has all of them can say so; otherwise none do
        whole: bool,
    },
}

/// The number of a name that exists. It means the name in the tables that it is of, and nothing in others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub(crate) u32);

/// A name that exists, with those of its answers that have a fixed form.
#[derive(Clone, Copy)]
pub struct Fixed<'t> {
    tables: &'t Tables,
    entry: Entry<'t>,
}

impl std::fmt::Debug for Fixed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fixed({:?})", self.wire())
    }
}

impl<'t> Fixed<'t> {
    /// The name's number.
    pub fn id(&self) -> NameId {
        NameId(self.entry.unit)
    }

    /// The name, in lower case and wire form.
    pub fn wire(&self) -> &'t [u8] {
        self.entry.wire()
    }

    /// The answers to clients that take at most `udp_bytes` octets. One that is None cannot be given in this way; then its type
    /// must not be taken for one of the others. There is always one for all others.
    pub fn answers(&self, udp_bytes: u16) -> Vec<(For, Option<Answer>)> {
        let Fixed { tables, entry } = *self;
        let below = self.below();
        if entry.has(flag::DEPENDS) {
            return vec![(For::Others { but_any: false, but_ds: false, below }, None)];
        }
        let longest = entry.name_bytes();
        let answer = |rtype| tables.fixed_of(tables.exact(entry, rtype), entry.name_bytes(), longest, udp_bytes);
        let mut types: Vec<Rtype> = entry.rtypes().collect();
        let but_any = !entry.has(flag::CUT) && !types.is_empty();
        // the zone around this one answers
        let but_ds = entry.has(flag::APEX) && tables.zones[entry.zone() as usize].parent.is_some();
        let absent = (65_280..=65_534).map(Rtype).find(|rtype| !types.contains(rtype));
        if entry.has(flag::CUT) && !types.contains(&Rtype::DS) {
            types.push(Rtype::DS);
        }
        let longest = if matches!(below, Below::Answered { .. }) { MAX_NAME_BYTES } else { longest };
        let others = absent
            .and_then(|rtype| tables.fixed_of(tables.exact(entry, rtype), entry.name_bytes(), longest, udp_bytes));
        let others = (For::Others { but_any, but_ds, below }, others);
        types.iter().map(|rtype| (For::Type(*rtype), answer(*rtype))).chain(std::iter::once(others)).collect()
    }

    /// What it says of names below.
    pub fn below(&self) -> Below {
        let Fixed { entry, .. } = *self;
        if entry.has(flag::CUT) && !entry.has(flag::DEPENDS) {
            return Below::Answered { absent: false, whole: entry.has(flag::OUTER) };
        }
        if entry.has(flag::CUT | flag::DNAME) || entry.link() != 0 {
            return Below::Left;
        }
        if entry.has(flag::APEX) { Below::Answered { absent: true, whole: true } } else { Below::AsAbove }
    }
}

impl Tables {
    /// The names that exist and are answered in a fixed form, in no order.
    pub fn fixed(&self) -> impl Iterator<Item = Fixed<'_>> {
        let entries = self.entries().filter(|entry| !entry.has(flag::PHANTOM | flag::DEPENDS));
        entries.map(|entry| Fixed { tables: self, entry })
    }

    /// The name of a number that these tables gave.
    pub fn fixed_of_id(&self, id: NameId) -> Fixed<'_> {
        Fixed { tables: self, entry: self.entry(id.0) }
    }

    /// The name, in any letter case, if it is among [`Tables::fixed`].
    pub fn fixed_of_name(&self, name: NameRef<'_>) -> Option<Fixed<'_>> {
        let entry = self.lookup(name.as_wire()).filter(|entry| !entry.has(flag::PHANTOM | flag::DEPENDS))?;
        Some(Fixed { tables: self, entry })
    }

    /// The names that exist and have no answer of a fixed form, in no order.
    pub fn unfixed(&self) -> impl Iterator<Item = Fixed<'_>> {
        let entries = self.entries().filter(|entry| !entry.has(flag::PHANTOM) && entry.has(flag::DEPENDS));
        entries.map(|entry| Fixed { tables: self, entry })
    }

    /// The answer of a fixed form to one question, for a name that need not exist. `udp_bytes` as for [`Fixed::answers`].
    pub fn fixed_answer(&self, name: NameRef<'_>, rtype: Rtype, udp_bytes: u16) -> Option<Answer> {
        let wire = name.as_wire();
        if matches!(rtype, Rtype::AXFR | Rtype::IXFR) {
            return None;
        }
        let key = Key::new(self.seed, wire, 0, wire.len());
        self.fixed_of(self.resolve_name(&key, wire, 0, wire.len(), rtype), wire.len(), wire.len(), udp_bytes)
    }

    /// [`Answer::zone`] is below this.
    pub fn zone_numbers(&self) -> u32 {
        self.counted.bound()
    }

    /// For a name of `name_bytes`; where names up to `longest` octets are answered alike, for all of them.
    fn fixed_of(&self, outcome: Outcome, name_bytes: usize, longest: usize, udp_bytes: u16) -> Option<Answer> {
        let Outcome::Block { unit, delta, rcode, zone, .. } = outcome else { return None };
        let block = Block::at(&self.arena, unit);
        let nxdomain = match rcode.unwrap_or(block.rcode()) {
            0 => false,
            rcode::NXDOMAIN => true,
            _ => return None,
        };
        let (around, around_longest) = (NAME_AT + name_bytes + 4, NAME_AT + longest + 4);
        let (cuts, cuts_below) = cuts(block, around, around_longest, usize::from(udp_bytes).max(PLAIN_BYTES));
        let bytes = cuts.last()?.bytes;
        let mut body = block.body_onwards()[..usize::from(bytes)].to_vec();
        block.relocate(&mut body, delta);
        let moves = block.moves().take_while(|at| *at < bytes && longest > name_bytes).collect();
        let zone = self.counted.slot(zone)?;
        Some(Answer { nxdomain, authoritative: block.is_authoritative(), zone, body, cuts, cuts_below, moves })
    }
}

/// What of a block may be sent with `around` to `around_longest` octets around it in a message of at most `most`; and how many of
/// those nobody gets who has the least around it. What also fits with less is left out.
fn cuts(block: Block<'_>, around: usize, around_longest: usize, most: usize) -> (Vec<Cut>, usize) {
    let (whole, needed) = (block.body_bytes(), block.needed_bytes());
    let parts = std::iter::once((0, Counts::default())).chain(block.parts().take_while(|(end, _)| *end < whole));
    let all = parts.chain([(whole, block.counts())]).take_while(|(end, _)| around + end <= most);
    let all: Vec<_> = all.collect();
    // nobody takes less than this
    let least = |around| all.iter().rposition(|(end, _)| around + end + OPT_BYTES <= PLAIN_BYTES).unwrap_or(0);
    let (own, least) = (least(around), least(around_longest));
    let cut = |(end, counts): &(usize, Counts)| Cut {
        bytes: *end as u16,
        answer: counts.answer,
        authority: counts.authority,
        additional: counts.additional,
        truncated: *end < needed,
    };
    (all[least..].iter().map(cut).collect(), own - least)
}

/// What was answered in front of the service from the tables' answers, as totals since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// answers over IPv4 and IPv6
    pub families: [u64; 2],
    /// those of them with TC
    pub truncated: u64,
    /// those of them to a question with a valid server cookie
    pub cookies_valid: u64,
    /// by type; the last place is for all the others
    pub types: Vec<u64>,
    /// by [`Answer::zone`]: NOERROR, NXDOMAIN
    pub zones: Vec<[u64; 2]>,
}

/// Counts what was answered in front of the service among what the service answered.
#[derive(Debug, Default)]
pub struct Elsewhere {
    stats: Arc<Stats>,
    before: Mutex<Counted>,
}

impl Elsewhere {
    /// The counts, which are shown with those of the serving threads.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Takes what was counted since the last time. `tables` are those that were answered from: before they go this is called
    /// once more, when no answer of theirs leaves any longer.
    pub fn count(&self, tables: &Tables, mut now: Counted) {
        // a panic in between leaves counts out and nothing broken
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        let since = |now: u64, before: Option<&u64>| now.wrapping_sub(before.copied().unwrap_or(0));
        for ((transport, now), before) in
            [Transport::Udp4, Transport::Udp6].iter().zip(now.families).zip(before.families)
        {
            self.stats.transports[*transport as usize].add(now.wrapping_sub(before));
        }
        self.stats.truncated.add(now.truncated.wrapping_sub(before.truncated));
        self.stats.cookies_valid.add(now.cookies_valid.wrapping_sub(before.cookies_valid));
        for (n, count) in now.types.iter().enumerate() {
            self.stats.asked_often(n as u16, since(*count, before.types.get(n)));
        }
        let row = self.stats.zones(tables.counted.ledger());
        for (slot, counts) in now.zones.iter().enumerate() {
            for ((n, rcode), count) in [0, rcode::NXDOMAIN].into_iter().enumerate().zip(counts) {
                let more = since(*count, before.zones.get(slot).map(|counts| &counts[n]));
                if more > 0 {
                    row.answered_often(slot as u32, rcode, more);
                    self.stats.answered_often(rcode.into(), more);
                }
            }
        }
        // zones that these tables do not have may have counts of earlier ones
        now.zones.extend_from_slice(before.zones.get(now.zones.len()..).unwrap_or_default());
        *before = now;
    }
}

#[cfg(test)]
mod tests;
