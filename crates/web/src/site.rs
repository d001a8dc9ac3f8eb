//! A site: what is served, complete and immutable. Made at load by [`SiteBuilder`], published whole, shared by all threads.
//!
//! Every representation has its header fields prepared in one object of the site's [`Content`]; what changes from answer to
//! answer (status, Date, Connection, ranges) is written before them. A small body stands in the same object behind the
//! fields, so that most answers are two ranges; a larger one is an object of its own, shared by successive versions.

mod build;
mod page;

pub use build::{BuildError, Compressible, File, FileError, Identity, SiteBuilder};
pub(crate) use page::push_encoded;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use app::{Content, ObjectId};

use crate::chunks::Origin;
use crate::negotiate::{Encoding, Weights};
use crate::status;
use crate::table::Table;

/// The scope of host names in the table; hosts' paths have their host's number.
const HOST_NAMES: u16 = u16::MAX;
/// The origin of a body that is an object, or a part of one.
pub(crate) const NO_ORIGIN: u32 = u32::MAX;
/// The object of a body that is none.
const NO_OBJECT: ObjectId = ObjectId(u32::MAX);
/// Longest host name that is looked up (RFC 1035 section 2.3.4).
const HOST_MAX_BYTES: usize = 255;
/// Labels of a name that wildcards are looked for at.
const WILDCARD_LABELS: usize = 16;

/// Places in a head object: a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u16,
    pub(crate) end: u16,
}

impl Span {
    fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[usize::from(self.start)..usize::from(self.end)]
    }
}

/// One representation, ready to be sent.
///
/// The head object is `Content-Length`, then `Content-Type` (and `Content-Encoding`), then all other fields and the empty
/// line; an answer begins inside it at the first part that it needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Representation {
    pub(crate) head: ObjectId,
    /// behind Content-Length
    pub(crate) length_end: u16,
    /// behind Content-Type and Content-Encoding
    pub(crate) type_end: u16,
    /// behind the empty line
    pub(crate) head_end: u16,
    pub(crate) encoding: Encoding,
    /// the entity tag, quotes included; empty when there is none
    etag: Span,
    /// the date of Last-Modified; empty when there is none
    modified: Span,
    pub(crate) modified_unix_s: u64,
    /// the same object as `head` when the body stands behind the fields
    pub(crate) body: ObjectId,
    pub(crate) body_at: u64,
    pub(crate) body_bytes: u64,
    /// the file that the body is read from while it is sent, instead of an object
    pub(crate) origin: u32,
}

/// What stands at a path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry {
    /// variants of one resource, smallest first, the one without coding last
    Page { first: u32, variants: u8 },
    /// elsewhere; the location is a part of the site's text. By a rule for this very path, or as a directory without its slash
    Redirect { by_rule: bool, status: u16, at: u32, bytes: u32 },
    /// a directory that has nothing to show
    Forbidden,
}

/// A redirect of everything below a prefix.
#[derive(Debug)]
pub(crate) struct PrefixRedirect {
    pub(crate) from: Box<[u8]>,
    pub(crate) to: Box<[u8]>,
    /// what followed the prefix is added
    pub(crate) with_rest: bool,
    pub(crate) status: u16,
}

#[derive(Debug)]
pub(crate) struct HostPages {
    /// in the order of [`status::PAGES`]
    errors: Box<[Representation]>,
    pub(crate) prefixes: Box<[PrefixRedirect]>,
}

/// A complete site, all its hosts.
pub struct Site {
    content: Arc<Content>,
    table: Table,
    entries: Box<[Entry]>,
    representations: Box<[Representation]>,
    /// files that are not held
    origins: Box<[Arc<Origin>]>,
    /// what the next version may share: the representation and its tag
    identities: BTreeMap<(Identity, Encoding), (u32, u64)>,
    hosts: Box<[HostPages]>,
    has_names: bool,
    text: Box<[u8]>,
    notes: Box<[String]>,
}

/// The statuses that have an error page, for messages.
pub(crate) fn error_statuses() -> String {
    let codes: Vec<String> = status::PAGES.iter().map(|(code, _)| code.to_string()).collect();
    codes.join(", ")
}

/// Whether an error page can be set for a status.
pub(crate) fn has_error_page(status: u16) -> bool {
    status::page(status).is_some()
}

impl Site {
    /// The objects that answers are made of. Whoever replaces the site retires and expires them
    /// ([`Content::retire`], [`Content::expire`]).
    pub fn content(&self) -> &Arc<Content> {
        &self.content
    }

    /// Files that are read while they are sent, and their bytes.
    pub fn read_when_sent(&self) -> (usize, u64) {
        (self.origins.len(), self.origins.iter().map(|origin| origin.bytes()).sum())
    }

    /// Reads an octet of the first of those files, so that each source that cannot be read says so now; it ends early when many
    /// cannot.
    pub fn probe(&self) {
        const FILES: usize = 1000;
        const FAILURES: usize = 20;
        let failures = self.origins.iter().take(FILES).filter(|origin| origin.bytes() > 0 && !origin.probe());
        let _ = failures.take(FAILURES).count();
    }

    pub(crate) fn origin(&self, number: u32) -> Option<&Arc<Origin>> {
        self.origins.get(number as usize)
    }

    /// Paths that are answered with content, index and listing pages included.
    pub fn pages(&self) -> usize {
        self.entries.iter().filter(|entry| matches!(entry, Entry::Page { .. })).count()
    }

    /// Bytes of memory, objects shared with other versions counted in full.
    pub fn memory_bytes(&self) -> u64 {
        let fixed = size_of_val(&*self.entries) + size_of_val(&*self.representations) + self.text.len();
        self.content.memory_bytes() + self.table.memory_bytes() + fixed as u64
    }

    /// What an operator should know about it: variants that are not used and why, error pages without a file.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The host that a name means; 0, the first, when no host has it.
    #[inline]
    pub(crate) fn host(&self, name: &[u8]) -> u16 {
        if !self.has_names || name.is_empty() { 0 } else { self.host_of(name) }
    }

    fn host_of(&self, name: &[u8]) -> u16 {
        let mut lower = [0; HOST_MAX_BYTES];
        // a longer name is none that is configured
        let Some(lower) = lower.get_mut(..name.len()) else { return 0 };
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        let name = &*lower;
        if let Some(host) = self.table.get(HOST_NAMES, name) {
            return host as u16;
        }
        // "*" and the part from a dot on; the longest part first
        let mut wildcard = [b'*'; 256];
        for dot in memchr::memchr_iter(b'.', name).take(WILDCARD_LABELS) {
            let rest = &name[dot..];
            wildcard[1..=rest.len()].copy_from_slice(rest);
            if let Some(host) = self.table.get(HOST_NAMES, &wildcard[..=rest.len()]) {
                return host as u16;
            }
        }
        0
    }

    #[inline]
    pub(crate) fn entry(&self, host: u16, path: &[u8]) -> Option<Entry> {
        self.table.get(host, path).map(|at| self.entries[at as usize])
    }

    /// The variant that a client weighs highest, the smallest of equals; without coding when it accepts none.
    #[inline]
    pub(crate) fn variant(&self, first: u32, variants: u8, weights: impl FnOnce() -> Weights) -> &Representation {
        let all = &self.representations[first as usize..first as usize + usize::from(variants)];
        let last = all.len() - 1;
        if last == 0 {
            return &all[0];
        }
        let weights = weights();
        let mut best = (0, last);
        for (at, variant) in all.iter().enumerate() {
            let weight = weights.get(variant.encoding);
            if weight > best.0 {
                best = (weight, at);
            }
        }
        &all[best.1]
    }

    pub(crate) fn of_host(&self, host: u16) -> &HostPages {
        &self.hosts[usize::from(host).min(self.hosts.len() - 1)]
    }

    /// The page for a status; None for a status that has no content.
    pub(crate) fn error_page(&self, host: u16, status: u16) -> Option<&Representation> {
        status::page(status).map(|at| &self.of_host(host).errors[at])
    }

    pub(crate) fn text(&self, at: u32, bytes: u32) -> &[u8] {
        &self.text[at as usize..at as usize + bytes as usize]
    }

    pub(crate) fn etag(&self, of: &Representation) -> &[u8] {
        of.etag.of(self.content.bytes(of.head))
    }

    pub(crate) fn modified(&self, of: &Representation) -> &[u8] {
        of.modified.of(self.content.bytes(of.head))
    }

    /// The value of Content-Type.
    pub(crate) fn media_type(&self, of: &Representation) -> &[u8] {
        let line = &self.content.bytes(of.head)[usize::from(of.length_end)..usize::from(of.type_end)];
        let line = &line[..memchr::memchr(b'\r', line).unwrap_or(line.len())];
        line.strip_prefix(b"Content-Type: ").unwrap_or(line)
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Site({} pages, {} hosts)", self.pages(), self.hosts.len())
    }
}

#[cfg(test)]
mod tests;
