//! Byte ranges (RFC 9110 section 14): read, bounded, merged.
//!
//! Ranges that overlap or touch are sent as one, so no answer is longer than the representation and its part headers; with
//! too many ranges the field is ignored, as section 14.2 allows against attacks (section 17.15).

use arrayvec::ArrayVec;

use crate::head::{decimal, members};

/// Parts that an answer has at most; for more the whole representation is sent.
pub(crate) const PARTS_MAX: usize = 16;
/// Ranges that are read at most; a field with more is ignored.
const SPECS_MAX: usize = 64;

/// From the first octet to behind the last one; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Part {
    pub(crate) fn bytes(self) -> u64 {
        self.end - self.start
    }
}

/// What a Range field asks for: one or more parts, in the order asked for; none when the representation has nothing of it
/// (416).
pub(crate) type Parts = ArrayVec<Part, PARTS_MAX>;

/// Reads a Range field against a representation of `total` octets; None when it is ignored and the whole goes out.
pub(crate) fn read(value: &[u8], total: u64) -> Option<Parts> {
    // unit names are case-insensitive (section 14.1)
    let (unit, set) = value.split_at_checked(6)?;
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return None;
    }
    let mut parts: ArrayVec<Part, SPECS_MAX> = ArrayVec::new();
    let mut specs = 0;
    for member in members(set) {
        specs += 1;
        match spec(member, total) {
            // one that breaks the grammar spoils the field (section 14.2: may be ignored)
            _ if specs > SPECS_MAX => return None,
            None => return None,
            Some(None) => {}
            Some(Some(part)) => merge(&mut parts, part),
        }
    }
    if specs == 0 {
        return None;
    }
    (parts.len() <= PARTS_MAX).then(|| parts.into_iter().collect())
}

/// One range-spec (section 14.1.2): None when malformed, Some(None) when not satisfiable.
fn spec(text: &[u8], total: u64) -> Option<Option<Part>> {
    let dash = memchr::memchr(b'-', text)?;
    let (first, last) = (&text[..dash], &text[dash + 1..]);
    if first.is_empty() {
        let bytes = number(last)?;
        let part = Part { start: total.saturating_sub(bytes), end: total };
        return Some((part.bytes() > 0).then_some(part));
    }
    let start = number(first)?;
    let end = if last.is_empty() { total } else { number(last)?.saturating_add(1) };
    if !last.is_empty() && end <= start {
        return None;
    }
    Some((start < total).then_some(Part { start, end: end.min(total) }))
}

/// A position; one that is too long for a number is behind every end.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(decimal(digits).unwrap_or(u64::MAX >> 1))
}

/// Adds a part; those that overlap or touch it become one, at the first one's place.
fn merge(parts: &mut ArrayVec<Part, SPECS_MAX>, part: Part) {
    let mut part = part;
    let mut place = parts.len();
    // one that grew may reach another
    while let Some(at) = parts.iter().position(|other| other.start <= part.end && part.start <= other.end) {
        let other = parts.remove(at);
        part = Part { start: part.start.min(other.start), end: part.end.max(other.end) };
        place = place.min(at);
    }
    parts.insert(place.min(parts.len()), part);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(value: &str, total: u64) -> Option<Vec<(u64, u64)>> {
        read(value.as_bytes(), total).map(|parts| parts.iter().map(|part| (part.start, part.end - 1)).collect())
    }

    /// RFC 9110 section 14.1.2: a representation of 10000 octets.
    #[test]
    fn the_examples_of_the_rfc() {
        for (value, expected) in [
            ("bytes=0-499", vec![(0, 499)]),
            ("bytes=500-999", vec![(500, 999)]),
            ("bytes=-500", vec![(9500, 9999)]),
            ("bytes=9500-", vec![(9500, 9999)]),
            ("bytes=0-0,-1", vec![(0, 0), (9999, 9999)]),
            ("bytes= 0-0, -1", vec![(0, 0), (9999, 9999)]),
            ("bytes=0-999, 4500-5499, -1000", vec![(0, 999), (4500, 5499), (9000, 9999)]),
            // these two touch or overlap, and become one
            ("bytes=500-600,601-999", vec![(500, 999)]),
            ("bytes=500-700,601-999", vec![(500, 999)]),
        ] {
            assert_eq!(parts(value, 10_000), Some(expected), "{value}");
        }
    }

    #[test]
    fn edges() {
        for (value, total, expected) in [
            ("bytes=0-", 1, Some(vec![(0, 0)])),
            ("bytes=0-99", 10, Some(vec![(0, 9)])),
            ("bytes=-99", 10, Some(vec![(0, 9)])),
            ("bytes=10-", 10, Some(vec![])),
            ("bytes=10-20,0-1", 10, Some(vec![(0, 1)])),
            ("bytes=-0", 10, Some(vec![])),
            ("bytes=0-", 0, Some(vec![])),
            ("bytes=-5", 0, Some(vec![])),
            ("BYTES=1-2", 10, Some(vec![(1, 2)])),
            ("bytes=8-9,0-1", 10, Some(vec![(8, 9), (0, 1)])),
            ("bytes=8-9,0-1,2-7", 10, Some(vec![(0, 9)])),
            ("bytes=0-99999999999999999999999", 10, Some(vec![(0, 9)])),
            ("bytes=99999999999999999999999-", 10, Some(vec![])),
            ("bytes=5-4", 10, None),
            ("bytes=", 10, None),
            ("bytes=,", 10, None),
            ("bytes=a-b", 10, None),
            ("bytes=1", 10, None),
            ("bytes=-", 10, None),
            ("bytes=1-2-3", 10, None),
            ("bytes=+1-2", 10, None),
            ("bytes=0-1,x", 10, None),
            ("bytes 0-1", 10, None),
            ("rows=0-1", 10, None),
            ("byte", 10, None),
        ] {
            assert_eq!(parts(value, total), expected, "{value} of {total}");
        }
    }

    #[test]
    fn many_small_ranges_are_ignored() {
        let many =
            |n: u64| format!("bytes={}", (0..n).map(|n| format!("{}-{}", 2 * n, 2 * n)).collect::<Vec<_>>().join(","));
        assert_eq!(parts(&many(PARTS_MAX as u64), 1000).map(|parts| parts.len()), Some(PARTS_MAX));
        assert_eq!(parts(&many(PARTS_MAX as u64 + 1), 1000), None);
        assert_eq!(parts(&many(1000), 10_000), None);
        // many that are one range are one range
        let same = format!("bytes={}", ["0-5"; SPECS_MAX].join(","));
        assert_eq!(parts(&same, 10), Some(vec![(0, 5)]));
        assert_eq!(parts(&format!("{same},0-5"), 10), None);
    }

    proptest! {
        /// Against a set of octets: the parts have exactly what was asked for, and never anything twice.
        #[test]
        fn parts_are_the_octets_asked_for(
            total in 1u64..60, specs in prop::collection::vec((0u64..70, prop::option::of(0u64..70)), 1..12)
        ) {
            let text: Vec<String> = specs.iter().map(|(first, more)| match more {
                Some(more) => format!("{first}-{}", first + more),
                None => format!("-{first}"),
            }).collect();
            let mut asked = vec![false; total as usize];
            for (first, more) in &specs {
                let range = match more {
                    Some(more) => *first..first + more + 1,
                    None => total.saturating_sub(*first)..total,
                };
                range.filter(|at| *at < total).for_each(|at| asked[at as usize] = true);
            }
            let parts = parts(&format!("bytes={}", text.join(",")), total).expect("well formed");
            let mut given = vec![false; total as usize];
            for (first, last) in parts {
                for at in first..=last {
                    prop_assert!(!given[at as usize], "{at} twice");
                    given[at as usize] = true;
                }
            }
            prop_assert_eq!(given, asked);
        }
    }
}
