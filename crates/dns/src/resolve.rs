//! From a question's name to the block that answers it.

use crate::question::Ask;
use crate::reference::rcode;
use crate::table::{Entry, Key, Tables, flag};
use zone::Rtype;

/// Which kind of answer it is; response rate limiting counts them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Data,
    Referral,
    NoData,
    NxDomain,
    Error,
}

/// What answers a question.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    /// a prepared block
    Block {
        unit: u32,
        /// octets by which the question's name is longer than the block's
        delta: u16,
        /// instead of the block's own
        rcode: Option<u8>,
        kind: Kind,
        /// the node that answers: many names under one wildcard have one; for NXDOMAIN the zone's block, the same whatever
        /// exists above the name
        source: u32,
        zone: u32,
    },
    /// composed from this zone; of one kind whatever comes of it, since it is judged before
    Compose { zone: u32, kind: Kind, source: u32 },
    /// no zone
    Refused,
}

impl Tables {
    /// Finds the answer for the name of `ask`, which stands at `at` of `bytes`.
    #[inline(always)]
    pub(crate) fn resolve(&self, key: &Key, bytes: &[u8], at: usize, ask: &Ask) -> Outcome {
        self.resolve_name(key, bytes, at, usize::from(ask.name_bytes), Rtype(ask.qtype))
    }

    /// The same for the name of `len` octets at `at`.
    #[inline(always)]
    pub(crate) fn resolve_name(&self, key: &Key, bytes: &[u8], at: usize, len: usize, rtype: Rtype) -> Outcome {
        match self.find(key, bytes, at, len) {
            Some(entry) if !entry.has(flag::PHANTOM) => self.exact(entry, rtype),
            Some(phantom) if phantom.link() == 0 => Outcome::Refused,
            Some(phantom) => self.under(self.entry(phantom.link()), len, rtype),
            None => self.absent(&bytes[at..at + len], rtype),
        }
    }

    /// The block of a name that exists, has nothing special about it, and owns the type: almost every answer.
    #[inline(always)]
    pub(crate) fn direct(&self, key: &Key, bytes: &[u8], at: usize, ask: &Ask) -> Option<(u32, u32)> {
        let entry = self.find(key, bytes, at, usize::from(ask.name_bytes))?;
        if entry.has(flag::PHANTOM | flag::CUT | flag::DEPENDS | flag::APEX) {
            return None;
        }
        Some((entry.block(Rtype(ask.qtype))?, entry.zone()))
    }

    #[inline(never)]
    fn absent(&self, wire: &[u8], rtype: Rtype) -> Outcome {
        let Some(mut encloser) = self.encloser(wire) else { return Outcome::Refused };
        if encloser.has(flag::PHANTOM) {
            if encloser.link() == 0 {
                return Outcome::Refused;
            }
            encloser = self.entry(encloser.link());
        }
        self.under(encloser, wire.len(), rtype)
    }

    #[inline(always)]
    pub(crate) fn exact(&self, entry: Entry<'_>, rtype: Rtype) -> Outcome {
        if entry.has(flag::CUT | flag::DEPENDS | flag::APEX) {
            if entry.has(flag::APEX) && rtype == Rtype::DS {
                // the parent's side answers, if we have it; otherwise that there is none here (RFC 4035 section 3.1.4.1)
                if let Some(parent) = self.zones[entry.zone() as usize].parent {
                    return Outcome::Compose { zone: parent, kind: Kind::Data, source: entry.unit };
                }
            }
            if entry.has(flag::CUT) && rtype != Rtype::DS {
                return self.referral(entry, 0);
            }
            if entry.has(flag::DEPENDS) {
                return Outcome::Compose { zone: entry.zone(), kind: Kind::Data, source: entry.unit };
            }
        }
        // a wildcard's blocks are made for the name above it
        self.at(entry, 0, if entry.is_wildcard() { 2 } else { 0 }, rtype, entry.name_bytes())
    }

    /// Names below `entry`, none of which exists.
    #[inline(never)]
    fn under(&self, entry: Entry<'_>, name_bytes: usize, rtype: Rtype) -> Outcome {
        let delta = (name_bytes - entry.name_bytes()) as u16;
        if entry.has(flag::CUT) {
            return self.referral(entry, delta);
        }
        if entry.has(flag::DNAME) {
            return Outcome::Compose { zone: entry.zone(), kind: Kind::Data, source: entry.unit };
        }
        if entry.link() == 0 {
            return self.negative(entry, name_bytes, Some(rcode::NXDOMAIN), Kind::NxDomain);
        }
        let wildcard = self.entry(entry.link());
        if wildcard.has(flag::DEPENDS) {
            return Outcome::Compose { zone: entry.zone(), kind: Kind::Data, source: wildcard.unit };
        }
        self.at(wildcard, delta, 0, rtype, name_bytes)
    }

    #[inline(always)]
    fn at(&self, entry: Entry<'_>, delta: u16, own_delta: u16, rtype: Rtype, name_bytes: usize) -> Outcome {
        if let Some(unit) = entry.block(rtype) {
            return self.block(unit, delta + own_delta, Kind::Data, entry);
        }
        if entry.has(flag::ALIAS) {
            return self.block(entry.fallback(), delta + own_delta, Kind::Data, entry);
        }
        self.negative(entry, name_bytes, None, Kind::NoData)
    }

    /// Of a cut, to a name that is so much longer.
    #[inline(always)]
    fn referral(&self, entry: Entry<'_>, delta: u16) -> Outcome {
        if entry.has(flag::DEPENDS) {
            return Outcome::Compose { zone: entry.zone(), kind: Kind::Referral, source: entry.unit };
        }
        self.block(entry.fallback(), delta, Kind::Referral, entry)
    }

    #[inline(always)]
    fn block(&self, unit: u32, delta: u16, kind: Kind, entry: Entry<'_>) -> Outcome {
        Outcome::Block { unit, delta, rcode: None, kind, source: entry.unit, zone: entry.zone() }
    }

    fn negative(&self, entry: Entry<'_>, name_bytes: usize, rcode: Option<u8>, kind: Kind) -> Outcome {
        let zone = &self.zones[entry.zone() as usize];
        let delta = (name_bytes - usize::from(zone.apex_bytes)) as u16;
        let source = if kind == Kind::NxDomain { zone.negative } else { entry.unit };
        Outcome::Block { unit: zone.negative, delta, rcode, kind, source, zone: entry.zone() }
    }
}
