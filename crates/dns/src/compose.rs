//! Writing the body of an answer: record sets in wire form, names compressed (RFC 1035 section 4.1.4), where each set ends,
//! and, for a body that serves questions of any length below one name, which octets must move with the question.
//!
//! A composer is made once and used again; after [`Composer::new`] composing for a given question allocates nothing.

use zone::{Class, NameRef, Rrset, Rtype};

/// Where the question's name begins in a message.
pub(crate) const NAME_AT: usize = 12;
/// The longest body: what header, the longest question and our OPT record leave of 65535 octets.
const BODY_MAX_BYTES: usize = 65_535 - 12 - 259 - 512;
/// Pointers have 14 bits, and a relocated one moves by less than 256.
const TARGET_MAX: usize = 0x3fff - 256;
const TARGETS_MAX: usize = 1024;
/// A record without its rdata, with a pointer for its owner.
const HEAD_BYTES: usize = 12;
const SETS_MAX: usize = 8192;
/// Beyond the longest body, for the record with which it turns out too long: one of names, since others are weighed before.
const MESSAGE_BYTES: usize = 65_536 + 2048;

/// A section of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Section {
    Answer,
    Authority,
    Additional,
}

/// The end of a record set in the body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetEnd {
    pub(crate) end: u16,
    pub(crate) records: u16,
    pub(crate) section: Section,
}

/// Whose records they are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner<'a> {
    /// the question's name, whatever it will be
    Question,
    /// this name
    Name(NameRef<'a>),
}

#[derive(Clone, Copy)]
struct Head {
    owner_at: u16,
    rtype: Rtype,
}

/// See the module's text.
pub(crate) struct Composer {
    message: Vec<u8>,
    body_at: usize,
    targets: Vec<(u32, u16)>,
    heads: Vec<Head>,
    pub(crate) sets: Vec<SetEnd>,
    /// offsets in the body of pointers that move with the question's length
    pub(crate) moves: Vec<u16>,
    below: bool,
    pub(crate) rcode: u8,
    pub(crate) authoritative: bool,
    /// octets of the body without which the answer is truncated; more than it has where a set that is needed did not fit
    pub(crate) needed: usize,
    /// the most octets of the body
    limit: usize,
    /// a set did not fit, and nothing that follows is written
    pub(crate) overflowed: bool,
    /// the answer depends on which name below is asked, so it cannot be prepared
    pub(crate) depends: bool,
}

impl Composer {
    pub(crate) fn new() -> Composer {
        Composer {
            message: Vec::with_capacity(MESSAGE_BYTES),
            body_at: 0,
            targets: Vec::with_capacity(TARGETS_MAX),
            heads: Vec::with_capacity(SETS_MAX),
            sets: Vec::with_capacity(SETS_MAX),
            moves: Vec::new(),
            below: false,
            rcode: 0,
            authoritative: false,
            needed: 0,
            limit: BODY_MAX_BYTES,
            overflowed: false,
            depends: false,
        }
    }

    /// Begins an answer to questions for `name`, or, with `below`, for any name that ends in it.
    pub(crate) fn start(&mut self, name: NameRef<'_>, below: bool) {
        self.message.clear();
        self.message.resize(NAME_AT, 0);
        self.message.extend_from_slice(name.as_wire());
        self.message.extend_from_slice(&[0; 4]);
        self.body_at = self.message.len();
        self.targets.clear();
        self.heads.clear();
        self.sets.clear();
        self.moves.clear();
        self.below = below;
        self.rcode = 0;
        self.authoritative = true;
        self.needed = 0;
        self.limit = BODY_MAX_BYTES;
        self.overflowed = false;
        self.depends = false;
        let starts = Starts::of(name.as_wire());
        for n in 0..starts.count {
            self.targets.push((starts.hashes[n], (NAME_AT + usize::from(starts.at[n])) as u16));
        }
    }

    pub(crate) fn body(&self) -> &[u8] {
        &self.message[self.body_at..]
    }

    fn body_bytes(&self) -> usize {
        self.message.len() - self.body_at
    }

    /// Has the body end before the first set that goes beyond so many octets: sets leave whole and from the end, so what is written
    /// is what would be sent of the whole, and what would not is not written.
    pub(crate) fn limit_to(&mut self, bytes: usize) {
        self.limit = self.limit.min(bytes);
    }

    /// Everything so far must fit, or the answer is truncated.
    pub(crate) fn need_all(&mut self) {
        self.needed = self.body_bytes() + usize::from(self.overflowed);
    }

    /// Whether there is something that may be left out.
    pub(crate) fn has_optional(&self) -> bool {
        self.body_bytes() > self.needed
    }

    /// Whether the answer holds a set of this owner and type.
    pub(crate) fn has(&self, owner: NameRef<'_>, rtype: Rtype) -> bool {
        self.heads.iter().any(|head| head.rtype == rtype && self.is_at(usize::from(head.owner_at), owner.as_wire()))
    }

    /// Adds a set of the zone with the owner's name given.
    pub(crate) fn set(&mut self, section: Section, owner: Owner<'_>, set: &Rrset<'_>, class: Class, ttl: u32) {
        self.records(section, owner, set.rtype(), class, ttl, set.rdatas());
    }

    /// Adds records of one owner and type; a set that does not fit is left out and noted, with all that would follow.
    pub(crate) fn records<'r>(
        &mut self,
        section: Section,
        owner: Owner<'_>,
        rtype: Rtype,
        class: Class,
        ttl: u32,
        rdatas: impl Iterator<Item = &'r [u8]>,
    ) {
        if self.overflowed || self.sets.len() == SETS_MAX {
            self.overflowed = true;
            return;
        }
        let (begin, moves, targets, heads) =
            (self.message.len(), self.moves.len(), self.targets.len(), self.heads.len());
        let mut records = 0;
        let mut owner_at = None;
        for rdata in rdatas {
            // before it is copied, where it will not be shorter
            self.overflowed = !rtype.may_compress() && self.body_bytes() + HEAD_BYTES + rdata.len() > self.limit;
            if self.overflowed {
                break;
            }
            match (owner_at, owner) {
                (Some(at), _) => _ = self.pointer(at),
                // a prepared answer does not know the name: pointer without a move
                (None, Owner::Question) if self.below => {
                    self.message.extend_from_slice(&(0xc000 | NAME_AT as u16).to_be_bytes());
                }
                (None, Owner::Question) => owner_at = Some(self.pointer(NAME_AT as u16)),
                (None, Owner::Name(name)) => owner_at = self.name(name.as_wire(), true),
            }
            if records == 0 {
                self.heads.push(Head { owner_at: owner_at.unwrap_or(0), rtype });
            }
            self.message.extend_from_slice(&rtype.0.to_be_bytes());
            self.message.extend_from_slice(&class.0.to_be_bytes());
            self.message.extend_from_slice(&ttl.to_be_bytes());
            self.rdata(rtype, rdata);
            records += 1;
            self.overflowed = self.body_bytes() > self.limit;
            if self.overflowed {
                break;
            }
        }
        if self.overflowed {
            self.message.truncate(begin);
            self.moves.truncate(moves);
            self.targets.truncate(targets);
            self.heads.truncate(heads);
            return;
        }
        self.sets.push(SetEnd { end: self.body_bytes() as u16, records, section });
    }

    fn rdata(&mut self, rtype: Rtype, rdata: &[u8]) {
        let len_at = self.message.len();
        self.message.extend_from_slice(&[0; 2]);
        if rtype.may_compress() {
            let mut done = 0;
            for (at, name) in rtype.embedded_names(rdata) {
                self.message.extend_from_slice(&rdata[done..at]);
                self.name(name.as_wire(), true);
                done = at + name.as_wire().len();
            }
            self.message.extend_from_slice(&rdata[done..]);
        } else {
            self.message.extend_from_slice(rdata);
        }
        let len = (self.message.len() - len_at - 2) as u16;
        self.message[len_at..len_at + 2].copy_from_slice(&len.to_be_bytes());
    }

    fn pointer(&mut self, at: u16) -> u16 {
        if self.below {
            self.moves.push((self.message.len() - self.body_at) as u16);
        }
        self.message.extend_from_slice(&(0xc000 | at).to_be_bytes());
        at
    }

    /// Writes a name, its longest known suffix as a pointer; gives where it can be pointed at.
    fn name(&mut self, wire: &[u8], compress: bool) -> Option<u16> {
        let starts = Starts::of(wire);
        let here = self.message.len();
        for n in 0..starts.count {
            let begin = usize::from(starts.at[n]);
            if let Some(at) = self.known(starts.hashes[n], &wire[begin..]).filter(|_| compress) {
                self.message.extend_from_slice(&wire[..begin]);
                self.pointer(at);
                self.remember(&starts, n, here);
                return if n == 0 {
                    Some(at)
                } else {
                    u16::try_from(here).ok().filter(|at| usize::from(*at) < TARGET_MAX)
                };
            }
        }
        self.message.extend_from_slice(wire);
        self.remember(&starts, starts.count, here);
        u16::try_from(here).ok().filter(|at| usize::from(*at) < TARGET_MAX && starts.count > 0)
    }

    fn remember(&mut self, starts: &Starts, labels: usize, here: usize) {
        for n in 0..labels {
            let at = here + usize::from(starts.at[n]);
            if at < TARGET_MAX && self.targets.len() < TARGETS_MAX {
                self.targets.push((starts.hashes[n], at as u16));
            }
        }
    }

    fn known(&self, hash: u32, wire: &[u8]) -> Option<u16> {
        let same = self.targets.iter().find(|(known, at)| *known == hash && self.is_at(usize::from(*at), wire));
        same.map(|(_, at)| *at)
    }

    /// Whether the name written at `at`, pointers followed, is this one.
    fn is_at(&self, mut at: usize, wire: &[u8]) -> bool {
        if at < NAME_AT {
            return false;
        }
        let mut done = 0;
        loop {
            let len = usize::from(self.message[at]);
            if len >= 0xc0 {
                // written by us, so it points back
                at = (len & 0x3f) << 8 | usize::from(self.message[at + 1]);
                continue;
            }
            let label = at..at + 1 + len;
            if wire.get(done..done + 1 + len).is_none_or(|other| !other.eq_ignore_ascii_case(&self.message[label])) {
                return false;
            }
            done += 1 + len;
            at += 1 + len;
            if len == 0 {
                return true;
            }
        }
    }
}

/// Where the labels of a name begin, and a hash of each suffix.
struct Starts {
    at: [u8; 128],
    hashes: [u32; 128],
    count: usize,
}

impl Starts {
    fn of(wire: &[u8]) -> Starts {
        let mut starts = Starts { at: [0; 128], hashes: [0; 128], count: 0 };
        let mut at = 0;
        while wire[at] != 0 {
            starts.at[starts.count] = at as u8;
            starts.count += 1;
            at += 1 + usize::from(wire[at]);
        }
        let mut hash = 0u32;
        for n in (0..starts.count).rev() {
            let begin = usize::from(starts.at[n]);
            for octet in &wire[begin..begin + 1 + usize::from(wire[begin])] {
                hash = (hash ^ u32::from(octet.to_ascii_lowercase())).wrapping_mul(0x0100_0193);
            }
            hash = hash.rotate_left(7);
            starts.hashes[n] = hash;
        }
        starts
    }
}
