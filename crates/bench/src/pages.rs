//! A synthetic site whose every octet follows from a path, a content coding and a version, so that any answer can be compared to
//! the last byte by whoever knows its path.
//!
//! A *kept* page, `/kept/NUMBER-BYTES.bin`, has one version for ever. A *live* one, `/live/NUMBER-BYTES-SPREAD.html`, has another
//! content and length with every version, and begins with the version's number: a body made of two versions shows, and so does one
//! that its ETag says to be another. The variant of a page in a coding is shorter and has other octets; nothing is really compressed,
//! since the server that is tested hands variants out as they lie.

use base::rng::Rng;
use std::fmt;
use web::Encoding;

/// Octets of the version at the start of a live page, little endian.
pub(crate) const VERSION_BYTES: u64 = 8;
/// A body of another version than it began with is looked for among so many before and after.
const NEIGHBOURS: u64 = 8;

/// A page by what its path says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    number: u32,
    /// of a live page at least
    bytes: u64,
    /// a live page's versions are so much longer at most; None: it is kept
    spread: Option<u64>,
}

impl Page {
    /// A page that never changes.
    pub(crate) const fn kept(number: u32, bytes: u64) -> Page {
        Page { number, bytes, spread: None }
    }

    /// A page that changes with every version.
    pub(crate) const fn live(number: u32, bytes: u64, spread: u64) -> Page {
        assert!(bytes >= VERSION_BYTES, "no room for the version");
        Page { number, bytes, spread: Some(spread) }
    }

    /// The page that this path names, if it is one.
    pub(crate) fn of_path(path: &str) -> Option<Page> {
        let (kept, name) = match path.strip_prefix("/kept/") {
            Some(name) => (true, name.strip_suffix(".bin")?),
            None => (false, path.strip_prefix("/live/")?.strip_suffix(".html")?),
        };
        let mut parts = name.split('-').map(str::parse);
        let (number, bytes) = (parts.next()?.ok()?, parts.next()?.ok()?);
        let spread = parts.next().transpose().ok()?;
        let page = Page { number: u32::try_from(number).ok()?, bytes, spread };
        // one way only to write it
        (kept == spread.is_none() && (kept || bytes >= VERSION_BYTES) && page.to_string() == path).then_some(page)
    }

    /// Whether it changes with every version.
    pub(crate) const fn is_live(self) -> bool {
        self.spread.is_some()
    }

    /// The content of a version in a coding.
    pub(crate) fn text(self, coding: Encoding, version: u64) -> Text {
        let version = self.spread.map(|_| version);
        let mut rng = Rng::new(u64::from(self.number) << 8 | coding as u64);
        let mut rng = Rng::new(rng.next_u64() ^ version.unwrap_or(0));
        let key = rng.next_u64();
        // a variant that is no shorter than its page is of no use, and servers need not serve it
        let share = |bytes: u64| if coding == Encoding::Identity { bytes } else { bytes * (8 - coding as u64) / 16 };
        match self.spread {
            None => Text { key, bytes: share(self.bytes), version },
            Some(spread) => {
                let least = share(self.bytes).max(VERSION_BYTES);
                Text { key, bytes: least + rng.below(share(spread) + 1), version }
            }
        }
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.spread {
            None => write!(f, "/kept/{}-{}.bin", self.number, self.bytes),
            Some(spread) => write!(f, "/live/{}-{}-{spread}.html", self.number, self.bytes),
        }
    }
}

/// One content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Text {
    key: u64,
    /// its length
    pub(crate) bytes: u64,
    version: Option<u64>,
}

impl Text {
    /// Its octets from `at` on, eight at a time.
    fn word(&self, index: u64) -> [u8; 8] {
        match self.version {
            Some(version) if index == 0 => version.to_le_bytes(),
            _ => Rng::new(self.key ^ index.wrapping_mul(0xD6E8_FEB8_6659_FD93)).next_u64().to_le_bytes(),
        }
    }

    /// All of it.
    pub(crate) fn whole(&self) -> Vec<u8> {
        let mut whole: Vec<u8> = (0..self.bytes.div_ceil(8)).flat_map(|index| self.word(index)).collect();
        whole.truncate(self.bytes as usize);
        whole
    }

    /// Whether `part` stands at octet `at`.
    pub(crate) fn has(&self, at: u64, part: &[u8]) -> bool {
        if at.checked_add(part.len() as u64).is_none_or(|end| end > self.bytes) {
            return false;
        }
        let ahead = (at.next_multiple_of(8) - at).min(part.len() as u64) as usize;
        let (first, rest) = part.split_at(ahead);
        let within = (at % 8) as usize;
        if !first.is_empty() && self.word(at / 8)[within..within + ahead] != *first {
            return false;
        }
        let begin = at.div_ceil(8);
        rest.chunks(8).zip(begin..).all(|(eight, index)| self.word(index)[..eight.len()] == *eight)
    }
}

/// What is wrong with a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// another length than its version has
    Length,
    /// octets of two versions
    Mixed,
    /// octets of no version
    Content,
}

/// Compares a body as it comes, in parts of any size, and allocates nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checker {
    page: Page,
    coding: Encoding,
    /// what it must be, once its version is known
    text: Option<Text>,
    first: [u8; VERSION_BYTES as usize],
    at: u64,
    fault: Option<Fault>,
}

impl Checker {
    /// Of a body that begins.
    pub(crate) fn new(page: Page, coding: Encoding) -> Checker {
        let text = (!page.is_live()).then(|| page.text(coding, 0));
        Checker { page, coding, text, first: [0; VERSION_BYTES as usize], at: 0, fault: None }
    }

    /// What comes next of it.
    pub(crate) fn take(&mut self, part: &[u8]) {
        let mut part = part;
        if self.text.is_none() {
            let at = self.at as usize;
            let count = part.len().min(self.first.len() - at);
            self.first[at..at + count].copy_from_slice(&part[..count]);
            self.at += count as u64;
            part = &part[count..];
            if self.at < VERSION_BYTES {
                return;
            }
            self.text = Some(self.page.text(self.coding, u64::from_le_bytes(self.first)));
        }
        let Some(text) = self.text else { return };
        if self.fault.is_none() && !text.has(self.at, part) {
            self.fault = Some(if self.is_of_a_neighbour(part) { Fault::Mixed } else { Fault::Content });
        }
        self.at += part.len() as u64;
    }

    /// Whether the end of `part` is what another version has there.
    fn is_of_a_neighbour(&self, part: &[u8]) -> bool {
        let Some(Text { version: Some(version), .. }) = self.text else { return false };
        let tail = &part[part.len().saturating_sub(16)..];
        let at = self.at + (part.len() - tail.len()) as u64;
        let others = version.saturating_sub(NEIGHBOURS)..=version.saturating_add(NEIGHBOURS);
        others
            .filter(|other| *other != version)
            .any(|other| tail.len() >= 8 && self.page.text(self.coding, other).has(at, tail))
    }

    /// At the body's end: its version (0 of a kept page), or what is wrong.
    pub(crate) fn finish(&self) -> Result<u64, Fault> {
        match (self.fault, self.text) {
            (Some(fault), _) => Err(fault),
            (None, Some(text)) if text.bytes == self.at => Ok(text.version.unwrap_or(0)),
            (None, _) => Err(Fault::Length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIVE: Page = Page::live(3, 100, 60);

    fn check(page: Page, coding: Encoding, body: &[u8], piece: usize) -> Result<u64, Fault> {
        let mut checker = Checker::new(page, coding);
        body.chunks(piece).for_each(|part| checker.take(part));
        checker.finish()
    }

    #[test]
    fn paths_name_pages_in_one_way() {
        for page in [Page::kept(0, 0), Page::kept(7, 1 << 20), LIVE] {
            assert_eq!(Page::of_path(&page.to_string()), Some(page));
        }
        for other in [
            "/",
            "/kept/1.bin",
            "/kept/01-5.bin",
            "/kept/1-5-6.bin",
            "/live/1-7-0.html",
            "/live/1-9.html",
            "/kept/a-1.bin",
        ] {
            assert_eq!(Page::of_path(other), None, "{other}");
        }
    }

    #[test]
    fn contents_differ_by_page_coding_and_version() {
        let mut seen = std::collections::BTreeSet::new();
        for page in [Page::kept(1, 64), Page::kept(2, 64), LIVE] {
            for coding in Encoding::ALL {
                for version in 0..4 {
                    seen.insert(page.text(coding, version).whole());
                }
            }
        }
        assert_eq!(seen.len(), 4 + 4 + 16, "a kept page has one version a coding");
        let lengths = |coding| -> std::collections::BTreeSet<u64> {
            (0..20).map(|version| LIVE.text(coding, version).bytes).collect()
        };
        let (plain, coded) = (lengths(Encoding::Identity), lengths(Encoding::Gzip));
        assert!(plain.len() > 5 && plain.iter().all(|bytes| (100..=160).contains(bytes)), "{plain:?}");
        assert!(coded.len() > 5 && coded.last() < plain.first(), "{coded:?}");
    }

    #[test]
    fn bodies_of_two_versions_show() {
        let of = |version| LIVE.text(Encoding::Identity, version).whole();
        let (old, new) = (of(8), of(9));
        let mixed = [&old[..40], &new[40..]].concat();
        assert_eq!(check(LIVE, Encoding::Identity, &mixed, 1000), Err(Fault::Mixed));
        assert_eq!(check(LIVE, Encoding::Identity, &mixed, 40), Err(Fault::Mixed));
        assert_eq!(check(LIVE, Encoding::Gzip, &old, 1000), Err(Fault::Content));
        assert_eq!(check(LIVE, Encoding::Identity, &old[..old.len() - 1], 1000), Err(Fault::Length));
        assert_eq!(check(LIVE, Encoding::Identity, &[&old[..], b"x"].concat(), 1000), Err(Fault::Content));
        assert_eq!(check(LIVE, Encoding::Identity, b"", 1), Err(Fault::Length));
        assert_eq!(check(Page::kept(1, 0), Encoding::Identity, b"", 1), Ok(0));
    }

    proptest! {
        #[test]
        fn whole_bodies_are_right_and_one_wrong_octet_is_found(
            bytes in 8u64..400, spread in 0u64..50, version in any::<u64>(), piece in 1usize..90, wrong in any::<prop::sample::Index>(),
        ) {
            for page in [Page::kept(5, bytes), Page::live(5, bytes, spread)] {
                let mut body = page.text(Encoding::Brotli, version).whole();
                let expected = if page.is_live() { version } else { 0 };
                prop_assert_eq!(check(page, Encoding::Brotli, &body, piece), Ok(expected));
                let at = wrong.index(body.len());
                body[at] ^= 1;
                // a page of nothing but its version is another version's then
                prop_assert_ne!(check(page, Encoding::Brotli, &body, piece), Ok(expected));
            }
        }

        #[test]
        fn any_part_is_where_it_stands(at in 0usize..200, len in 0usize..200) {
            let text = Page::kept(9, 300).text(Encoding::Identity, 0);
            let whole = text.whole();
            let part = &whole[at..(at + len).min(300)];
            prop_assert!(text.has(at as u64, part));
            prop_assert!(!text.has(at as u64 + 301, part));
            prop_assert!(part.is_empty() || !text.has(at as u64 + 1, part));
        }
    }
}
