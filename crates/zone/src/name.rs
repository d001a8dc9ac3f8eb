//! Domain names in uncompressed wire form (RFC 1035 section 3.1): a run of labels, each a length octet and
//! its octets, closed by the root's empty label; at most 255 octets, labels of at most 63. Letter case is
//! kept, and ignored by every comparison (RFC 4343).
//!
//! [`NameRef`] borrows the octets from wherever they lie (a zone's store, a message), [`Name`] owns them.
//! Both hold checked names only, so nothing below ever meets a malformed label.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

/// The longest name in octets, the root's label included (RFC 1035 section 2.3.4).
pub const MAX_NAME_BYTES: usize = 255;
/// The longest label in octets, without its length octet (RFC 1035 section 2.3.4).
pub const MAX_LABEL_BYTES: usize = 63;
/// The most labels a name can have, the root's not counted.
pub const MAX_LABELS: usize = 127;

/// Why octets or text are not a domain name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    /// A label of more than 63 octets; its length.
    LabelTooLong(usize),
    /// More than 255 octets.
    NameTooLong,
    /// Two dots in a row, or a dot in front.
    EmptyLabel,
    /// The text ends inside an escape, or `\DDD` is not 000 to 255.
    BadEscape,
    /// Relative text where there is no origin to complete it.
    Relative,
    /// No text at all.
    Empty,
    /// Wire octets end inside the name, or a length octet is above 63 (compressed or reserved).
    Malformed,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LabelTooLong(n) => write!(f, "a label of {n} octets; 63 is the most (RFC 1035 2.3.4)"),
            Self::NameTooLong => f.write_str("more than 255 octets (RFC 1035 2.3.4)"),
            Self::EmptyLabel => f.write_str("an empty label (two dots in a row, or one in front)"),
            Self::BadEscape => f.write_str(r"a bad escape; write \DDD with 000 to 255, or \ and the character"),
            Self::Relative => f.write_str("relative, and no origin is known; end it with a dot or set $ORIGIN first"),
            Self::Empty => f.write_str("empty"),
            Self::Malformed => f.write_str("not an uncompressed name in wire form"),
        }
    }
}

impl std::error::Error for NameError {}

/// A borrowed domain name; see the module's text.
#[derive(Clone, Copy)]
pub struct NameRef<'a> {
    wire: &'a [u8],
}

impl<'a> NameRef<'a> {
    /// The root.
    pub const ROOT: NameRef<'static> = NameRef { wire: &[0] };

    /// The name that `wire` is, whole: nothing may follow it.
    pub fn from_wire(wire: &'a [u8]) -> Result<Self, NameError> {
        let (name, rest) = Self::split_wire(wire)?;
        if rest.is_empty() { Ok(name) } else { Err(NameError::Malformed) }
    }

    /// The name that `wire` begins with, and what follows it.
    pub fn split_wire(wire: &'a [u8]) -> Result<(Self, &'a [u8]), NameError> {
        let mut at = 0;
        loop {
            match wire.get(at) {
                None => return Err(NameError::Malformed),
                Some(0) => break,
                Some(&n) if usize::from(n) > MAX_LABEL_BYTES => return Err(NameError::Malformed),
                Some(&n) => at += 1 + usize::from(n),
            }
            if at >= MAX_NAME_BYTES {
                return Err(NameError::NameTooLong);
            }
        }
        let (name, rest) = wire.split_at(at + 1);
        Ok((NameRef { wire: name }, rest))
    }

    /// For octets that were a name when they were stored.
    pub(crate) fn trusted(wire: &'a [u8]) -> Self {
        debug_assert!(Self::from_wire(wire).is_ok());
        NameRef { wire }
    }

    /// The octets, the root's zero included.
    pub fn as_wire(self) -> &'a [u8] {
        self.wire
    }

    /// Whether this is the root.
    pub fn is_root(self) -> bool {
        self.wire.len() == 1
    }

    /// The labels from left to right, the root's not among them.
    pub fn labels(self) -> Labels<'a> {
        Labels { rest: self.wire }
    }

    /// How many labels there are, the root's not counted.
    pub fn label_count(self) -> usize {
        self.labels().count()
    }

    /// The name without its first label; none for the root.
    pub fn parent(self) -> Option<NameRef<'a>> {
        match self.wire[0] {
            0 => None,
            n => Some(NameRef { wire: &self.wire[1 + usize::from(n)..] }),
        }
    }

    /// Whether the first label is `*` alone (RFC 4592 section 2.1.1).
    pub fn is_wildcard(self) -> bool {
        self.wire.starts_with(b"\x01*")
    }

    /// Whether this is `other` or below it.
    pub fn is_subdomain_of(self, other: NameRef<'_>) -> bool {
        let Some(skip) = self.wire.len().checked_sub(other.wire.len()) else { return false };
        let mut at = 0;
        while at < skip {
            at += 1 + usize::from(self.wire[at]);
        }
        at == skip && self.wire[skip..].eq_ignore_ascii_case(other.wire)
    }

    /// The last `labels` labels of the name, or all of it where it has fewer.
    pub fn suffix(self, labels: usize) -> NameRef<'a> {
        let mut name = self;
        for _ in labels..self.label_count() {
            name = name.parent().unwrap_or(NameRef::ROOT);
        }
        name
    }

    /// How many labels two names share from the right, the root's not counted.
    pub(crate) fn shared_labels(self, other: NameRef<'_>) -> usize {
        let (my_count, their_count) = (self.label_count(), other.label_count());
        let mine = self.labels().skip(my_count.saturating_sub(their_count));
        let theirs = other.labels().skip(their_count.saturating_sub(my_count));
        // on the way from the left the run of equal pairs that lasts to the end counts
        mine.zip(theirs).fold(0, |shared, (a, b)| if a.eq_ignore_ascii_case(b) { shared + 1 } else { 0 })
    }

    /// Canonical order (RFC 4034 section 6.1): by labels from the right, as lower-case octet strings.
    pub fn canonical_cmp(self, other: NameRef<'_>) -> Ordering {
        let (my_count, their_count) = (self.label_count(), other.label_count());
        // from the right the names pair label by label; the pair that differs furthest right decides, so walking
        // from the left the last one found does
        let mine = self.labels().skip(my_count.saturating_sub(their_count));
        let theirs = other.labels().skip(their_count.saturating_sub(my_count));
        let mut decided = Ordering::Equal;
        for (a, b) in mine.zip(theirs) {
            if !a.eq_ignore_ascii_case(b) {
                decided = cmp_ignore_case(a, b);
            }
        }
        decided.then(my_count.cmp(&their_count))
    }

    /// Where each label's length octet stands, and how many there are.
    pub(crate) fn label_starts(self) -> ([u8; MAX_LABELS], usize) {
        let (mut starts, mut count, mut at) = ([0u8; MAX_LABELS], 0, 0usize);
        while self.wire[at] != 0 {
            // a name has at most 255 octets, so a start fits an octet
            starts[count] = at as u8;
            count += 1;
            at += 1 + usize::from(self.wire[at]);
        }
        (starts, count)
    }

    /// An owned copy.
    pub fn to_name(self) -> Name {
        Name { wire: self.wire.into() }
    }

    /// An owned copy in lower case (RFC 4034 section 6.2).
    pub fn to_lower(self) -> Name {
        // length octets are at most 63 and so never a letter
        Name { wire: self.wire.to_ascii_lowercase().into() }
    }
}

pub(crate) fn label_at(wire: &[u8], at: u8) -> &[u8] {
    let at = usize::from(at);
    &wire[at + 1..at + 1 + usize::from(wire[at])]
}

fn cmp_ignore_case(a: &[u8], b: &[u8]) -> Ordering {
    a.iter().map(u8::to_ascii_lowercase).cmp(b.iter().map(u8::to_ascii_lowercase))
}

impl PartialEq for NameRef<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.wire.eq_ignore_ascii_case(other.wire)
    }
}

impl Eq for NameRef<'_> {}

impl Hash for NameRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for octet in self.wire {
            state.write_u8(octet.to_ascii_lowercase());
        }
    }
}

impl PartialOrd for NameRef<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NameRef<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.canonical_cmp(*other)
    }
}

/// Presentation form, absolute, with whatever would not be read back as itself escaped.
impl fmt::Display for NameRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            return f.write_str(".");
        }
        for label in self.labels() {
            for &octet in label {
                match octet {
                    b'.' | b'\\' | b'"' | b'(' | b')' | b';' | b'@' | b'$' => write!(f, "\\{}", char::from(octet))?,
                    0x21..=0x7e => write!(f, "{}", char::from(octet))?,
                    _ => write!(f, "\\{octet:03}")?,
                }
            }
            f.write_str(".")?;
        }
        Ok(())
    }
}

impl fmt::Debug for NameRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The labels of a name from left to right; the iterator of [`NameRef::labels`].
#[derive(Clone, Debug)]
pub struct Labels<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Labels<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (&len, after) = self.rest.split_first()?;
        if len == 0 {
            return None;
        }
        let (label, rest) = after.split_at(usize::from(len));
        self.rest = rest;
        Some(label)
    }
}

/// An owned domain name; see the module's text.
#[derive(Clone)]
pub struct Name {
    wire: Box<[u8]>,
}

impl Name {
    /// The root.
    pub fn root() -> Name {
        NameRef::ROOT.to_name()
    }

    /// The name that `wire` is, whole.
    pub fn from_wire(wire: &[u8]) -> Result<Name, NameError> {
        NameRef::from_wire(wire).map(NameRef::to_name)
    }

    /// Reads presentation form (RFC 1035 section 5.1): `\DDD` and `\X` escapes, `@` for the origin; text
    /// that does not end in a dot is completed by `origin`.
    pub fn parse(text: &[u8], origin: Option<NameRef<'_>>) -> Result<Name, NameError> {
        let mut wire = Vec::with_capacity(text.len() + 2);
        parse_into(&mut wire, text, origin)?;
        Ok(Name { wire: wire.into() })
    }

    /// The name, borrowed.
    pub fn view(&self) -> NameRef<'_> {
        NameRef { wire: &self.wire }
    }

    /// The octets, the root's zero included.
    pub fn as_wire(&self) -> &[u8] {
        &self.wire
    }

    /// See [`NameRef::is_root`].
    pub fn is_root(&self) -> bool {
        self.view().is_root()
    }

    /// See [`NameRef::labels`].
    pub fn labels(&self) -> Labels<'_> {
        self.view().labels()
    }

    /// See [`NameRef::label_count`].
    pub fn label_count(&self) -> usize {
        self.view().label_count()
    }

    /// See [`NameRef::parent`].
    pub fn parent(&self) -> Option<NameRef<'_>> {
        self.view().parent()
    }

    /// See [`NameRef::is_wildcard`].
    pub fn is_wildcard(&self) -> bool {
        self.view().is_wildcard()
    }

    /// See [`NameRef::is_subdomain_of`].
    pub fn is_subdomain_of(&self, other: NameRef<'_>) -> bool {
        self.view().is_subdomain_of(other)
    }

    /// See [`NameRef::canonical_cmp`].
    pub fn canonical_cmp(&self, other: NameRef<'_>) -> Ordering {
        self.view().canonical_cmp(other)
    }

    /// See [`NameRef::to_lower`].
    pub fn to_lower(&self) -> Name {
        self.view().to_lower()
    }
}

/// Appends the wire form of `text` to `out`; on an error `out` is as it was.
pub(crate) fn parse_into(out: &mut Vec<u8>, text: &[u8], origin: Option<NameRef<'_>>) -> Result<(), NameError> {
    let base = out.len();
    let outcome = parse_appending(out, base, text, origin);
    if outcome.is_err() {
        out.truncate(base);
    }
    outcome
}

fn parse_appending(out: &mut Vec<u8>, base: usize, text: &[u8], origin: Option<NameRef<'_>>) -> Result<(), NameError> {
    match text {
        b"" => return Err(NameError::Empty),
        b"." => {
            out.push(0);
            return Ok(());
        }
        b"@" => {
            out.extend_from_slice(origin.ok_or(NameError::Relative)?.as_wire());
            return Ok(());
        }
        _ => {}
    }
    let mut rest = text;
    let mut label_at = out.len();
    out.push(0);
    let mut too_long = None;
    while let Some((&octet, after)) = rest.split_first() {
        rest = after;
        if octet == b'.' {
            close_label(out, label_at, &mut too_long)?;
            label_at = out.len();
            out.push(0);
            continue;
        }
        if octet == b'\\' {
            let (value, after) = unescape(rest).ok_or(NameError::BadEscape)?;
            out.push(value);
            rest = after;
        } else {
            out.push(octet);
        }
    }
    let relative = out.len() - label_at > 1;
    if relative {
        close_label(out, label_at, &mut too_long)?;
        if too_long.is_none() {
            out.extend_from_slice(origin.ok_or(NameError::Relative)?.as_wire());
        }
    }
    match too_long {
        Some(octets) => Err(NameError::LabelTooLong(octets)),
        None if out.len() - base > MAX_NAME_BYTES => Err(NameError::NameTooLong),
        None => Ok(()),
    }
}

fn close_label(out: &mut [u8], label_at: usize, too_long: &mut Option<usize>) -> Result<(), NameError> {
    match out.len() - label_at - 1 {
        0 => Err(NameError::EmptyLabel),
        octets if octets > MAX_LABEL_BYTES => {
            too_long.get_or_insert(octets);
            Ok(())
        }
        octets => {
            out[label_at] = octets as u8;
            Ok(())
        }
    }
}

/// Reads what follows a backslash: three digits, or any one octet. Gives its value and what comes after.
pub(crate) fn unescape(text: &[u8]) -> Option<(u8, &[u8])> {
    let (&first, rest) = text.split_first()?;
    if !first.is_ascii_digit() {
        return Some((first, rest));
    }
    let digits = text.get(..3)?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = digits.iter().fold(0u16, |value, digit| value * 10 + u16::from(digit - b'0'));
    Some((u8::try_from(value).ok()?, &text[3..]))
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.view() == other.view()
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.view().hash(state);
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        self.canonical_cmp(other.view())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text without a final dot is taken as absolute.
impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Name, NameError> {
        Name::parse(text.as_bytes(), Some(NameRef::ROOT))
    }
}

impl<'a> From<&'a Name> for NameRef<'a> {
    fn from(name: &'a Name) -> Self {
        name.view()
    }
}

#[cfg(test)]
pub(crate) mod tests;
