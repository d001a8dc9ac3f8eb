//! Which names may have entries, for the program (filter.bpf.h).

use super::{Generation, Maps};
use crate::steering::{SteeringError, other};

/// Words of one value of the map.
pub(super) const WORDS: usize = 512;
/// Of a name; two of them are set.
const BITS_A_NAME: u32 = 16;

/// A value of the map.
pub(super) type Page = [u64; WORDS];

/// Values of the map for so many names.
pub(super) fn pages(names: u32) -> u32 {
    let names_a_page = 64 * WORDS as u32 / BITS_A_NAME;
    // the program takes the page from sixteen bits of the hash
    names.div_ceil(names_a_page).next_power_of_two().min(1 << 16)
}

/// A name's page, word and bits.
fn place(hash: u64, pages: usize) -> (usize, usize, u64) {
    let page = (hash >> 48) as usize & (pages - 1);
    (page, (hash >> 39) as usize % WORDS, 1 << (hash >> 33 & 63) | 1 << (hash >> 27 & 63))
}

fn filter(hashes: impl Iterator<Item = u64>, pages: usize) -> Vec<Page> {
    let mut filter = vec![[0; WORDS]; pages];
    for hash in hashes {
        let (page, word, bits) = place(hash, pages);
        filter[page][word] |= bits;
    }
    filter
}

impl Maps {
    /// Tells the program which names a generation has. What is only about to go in counts, since it must not be missed once it is.
    pub(super) fn tell_names(&mut self, generation: &Generation) -> Result<(), SteeringError> {
        let filter = filter(generation.names.keys().copied(), self.filtered.len());
        for (at, (page, told)) in filter.iter().zip(&mut self.filtered).enumerate() {
            if page != told {
                self.filters
                    .set(at as u32, page, 0)
                    .map_err(|e| other("telling the program which names it has", &e))?;
                *told = *page;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steering::answers::form::hash;

    #[test]
    fn most_names_that_are_not_there_are_told_from_those_that_are() {
        let name = |n: u32| hash(7, format!("\x08host{n:04}\x07example\0").as_bytes());
        let pages = pages(4096) as usize;
        assert_eq!(pages, 2);
        let filter = filter((0..4096).map(name), pages);
        let has = |hash| {
            let (page, word, bits) = place(hash, pages);
            filter[page][word] & bits == bits
        };
        assert!((0..4096).all(|n| has(name(n))));
        let taken = (4096..104_096).filter(|n| has(name(*n))).count();
        assert!(taken < 4_000, "{taken} of 100,000 are taken for such that are there");
    }

    #[test]
    fn there_are_two_octets_a_name() {
        for (names, expected) in [(1, 1), (2048, 1), (2049, 2), (65_536, 32), (1_000_000, 512), (u32::MAX, 1 << 16)] {
            assert_eq!(pages(names), expected, "{names}");
        }
    }
}
