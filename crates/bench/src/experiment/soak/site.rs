//! The site of the web's soak: files of many sizes, of which some change with every version and some have compressed variants
//! beside them. Which version may be served when is kept here as well.

use crate::pages::Page;
use anyhow::{Context as _, Result};
use base::rng::Rng;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use web::Encoding;

/// Sizes at which something in a server changes: nothing at all, a segment, the initial window, a body that stands with its
/// head, what the device is handed at once.
const EDGES: [u64; 19] =
    [0, 1, 2, 7, 8, 536, 1023, 1024, 1447, 1448, 1449, 14_480, 16_383, 16_384, 16_385, 65_535, 65_536, 65_537, 1 << 20];
/// Larger than the memory that the server is given: they are read while they are sent.
const LARGE: [u64; 3] = [4 << 20, 5 << 20, 6 << 20];
/// The live pages that downloads take long enough of to see versions go by.
const LONG_LIVE: [u64; 2] = [512 << 10, 300_000];
/// One page in so many is live, and has variants.
const LIVE_EACH: usize = 6;
const CODED_EACH: usize = 4;
/// Only pages of these sizes have variants.
const CODED_BYTES: RangeInclusive<u64> = 32..=256 << 10;
/// What a file takes in the server beside its octets, at most.
const FILE_BYTES: u64 = 6 << 10;

/// One page and its variants.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) page: Page,
    /// never shorter
    pub(super) bytes: u64,
    /// beside the page itself
    pub(super) codings: Vec<Encoding>,
}

/// All pages.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) entries: Vec<Entry>,
}

impl Site {
    /// So many pages beyond those of given sizes, the same in every run.
    pub(super) fn new(pages: usize) -> Site {
        let mut rng = Rng::new(11);
        let mut entries: Vec<Entry> = Vec::new();
        let mut add = |bytes: u64, live: bool| {
            let number = entries.len() as u32;
            let page = match live {
                true => Page::live(number, bytes, bytes / 8 + 5),
                false => Page::kept(number, bytes),
            };
            let coded = CODED_BYTES.contains(&bytes) && entries.len().is_multiple_of(CODED_EACH);
            // every set of them has its turn
            let set = 1 + entries.len() / CODED_EACH % 7;
            let has = |coding: &Encoding| coded && *coding != Encoding::Identity && set >> (*coding as u8 - 1) & 1 == 1;
            entries.push(Entry { page, bytes, codings: Encoding::ALL.into_iter().filter(has).collect() });
        };
        EDGES.iter().chain(&LARGE).for_each(|bytes| add(*bytes, false));
        LONG_LIVE.iter().for_each(|bytes| add(*bytes, true));
        for number in 0..pages {
            // as many of each power of two from 16 octets to 128 KiB
            let power = 1 << (4 + rng.below(13));
            add(power + rng.below(power), number % LIVE_EACH == 0);
        }
        Site { entries }
    }

    /// Writes a version into `folder`, the kept pages with version 0 alone. Each file appears whole.
    pub(super) fn write(&self, folder: &Path, version: u64) -> Result<()> {
        for name in ["kept", "live"] {
            fs::create_dir_all(folder.join(name)).context("no folder for the site")?;
        }
        for entry in self.entries.iter().filter(|entry| version == 0 || entry.page.is_live()) {
            for coding in [Encoding::Identity].iter().chain(&entry.codings) {
                let path = folder.join(format!("{}{}", &entry.page.to_string()[1..], coding.suffix()));
                // dotfiles are not served
                let fresh = folder.join(".next");
                fs::write(&fresh, entry.page.text(*coding, version).whole())
                    .and_then(|()| fs::rename(&fresh, &path))
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Files, variants counted.
    pub(super) fn files(&self) -> usize {
        self.entries.iter().map(|entry| 1 + entry.codings.len()).sum()
    }

    /// Memory that holds all but the largest, beside the cache through which those are read.
    pub(super) fn memory_bytes(&self) -> u64 {
        let of = |entry: &Entry| (entry.bytes + entry.bytes / 8 + FILE_BYTES) * (1 + entry.codings.len() as u64);
        self.entries.iter().filter(|entry| entry.bytes < LARGE[0]).map(of).sum()
    }

    /// What a load asks for: small pages more often.
    pub(super) fn urls(&self, host: &str) -> Vec<String> {
        let url = |entry: &Entry| {
            let weight = match entry.bytes {
                0..=65_536 => 32,
                65_537..=1_048_576 => 4,
                _ => 1,
            };
            format!("{weight}@http://{host}{}", entry.page)
        };
        self.entries.iter().map(url).collect()
    }
}

/// Which versions may be served now.
#[derive(Debug, Default)]
pub(super) struct Versions {
    /// the server was told of it
    pub(super) begun: AtomicU64,
    /// and said that it has it
    pub(super) done: AtomicU64,
}

impl Versions {
    /// The oldest that an answer may have to what is asked from now on.
    pub(super) fn oldest(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    /// The newest that an answer may have that has come by now.
    pub(super) fn newest(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_has_all_sorts_of_files_and_each_version_its_own() {
        let site = Site::new(40);
        let live = || site.entries.iter().filter(|entry| entry.page.is_live());
        assert!(live().count() >= 8 && live().any(|entry| !entry.codings.is_empty()));
        let codings: std::collections::BTreeSet<_> = site.entries.iter().map(|entry| entry.codings.clone()).collect();
        assert!(codings.len() >= 7, "{codings:?}");
        let folder = tempfile::tempdir().unwrap();
        let mut before = Vec::new();
        for version in 0..2 {
            site.write(folder.path(), version).unwrap();
            for entry in &site.entries {
                let body = fs::read(folder.path().join(&entry.page.to_string()[1..])).unwrap();
                assert_eq!(body, entry.page.text(Encoding::Identity, version).whole(), "{}", entry.page);
            }
            let page = live().next().unwrap().page;
            before.push(fs::read(folder.path().join(&page.to_string()[1..])).unwrap());
        }
        assert_ne!(before[0], before[1]);
        let count = |name| fs::read_dir(folder.path().join(name)).unwrap().count();
        assert_eq!(count("kept") + count("live"), site.files());
        assert_eq!(site.urls("a").len(), site.entries.len());
        assert!(site.urls("a")[1].starts_with("32@http://a/kept/1-1.bin"));
    }
}
