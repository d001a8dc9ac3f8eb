//! Lists of pages, each of which stands in one of them at most. One comes in, at either end, and goes out from wherever it is, without a walk.

use super::index::NONE;

/// The neighbours of a page in its list.
#[derive(Clone, Copy)]
struct Link {
    /// towards the first
    before: u32,
    /// towards the last
    behind: u32,
}

#[derive(Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
    len: usize,
}

/// See the module.
pub(super) struct Lists {
    links: Vec<Link>,
    ends: Vec<Ends>,
}

impl Lists {
    /// So many empty lists for so many pages.
    pub(super) fn new(lists: usize, pages: usize) -> Lists {
        Lists {
            links: vec![Link { before: NONE, behind: NONE }; pages],
            ends: vec![Ends { first: NONE, last: NONE, len: 0 }; lists],
        }
    }

    /// Pages of a list.
    pub(super) fn len(&self, list: usize) -> usize {
        self.ends[list].len
    }

    /// The last page of a list.
    #[inline]
    pub(super) fn last(&self, list: usize) -> Option<u32> {
        Some(self.ends[list].last).filter(|page| *page != NONE)
    }

    /// Puts a page that stands in no list behind all others.
    pub(super) fn push_last(&mut self, list: usize, page: u32) {
        let ends = &mut self.ends[list];
        let before = std::mem::replace(&mut ends.last, page);
        ends.len += 1;
        self.links[page as usize] = Link { before, behind: NONE };
        match self.links.get_mut(before as usize) {
            Some(link) => link.behind = page,
            None => ends.first = page,
        }
    }

    /// Puts a page that stands in no list before all others.
    pub(super) fn push_first(&mut self, list: usize, page: u32) {
        let ends = &mut self.ends[list];
        let behind = std::mem::replace(&mut ends.first, page);
        ends.len += 1;
        self.links[page as usize] = Link { before: NONE, behind };
        match self.links.get_mut(behind as usize) {
            Some(link) => link.before = page,
            None => ends.last = page,
        }
    }

    /// Takes a page out of the list that it stands in.
    pub(super) fn remove(&mut self, list: usize, page: u32) {
        let Link { before, behind } = self.links[page as usize];
        let ends = &mut self.ends[list];
        ends.len -= 1;
        match self.links.get_mut(before as usize) {
            Some(link) => link.behind = behind,
            None => ends.first = behind,
        }
        match self.links.get_mut(behind as usize) {
            Some(link) => link.before = before,
            None => ends.last = before,
        }
    }

    /// The pages of a list, from the first to the last.
    #[cfg(test)]
    pub(super) fn pages(&self, list: usize) -> impl Iterator<Item = u32> {
        let known = |page: u32| Some(page).filter(|page| *page != NONE);
        std::iter::successors(known(self.ends[list].first), move |page| known(self.links[*page as usize].behind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn they_are_queues_from_which_what_is_within_goes_too(steps in prop::collection::vec((0usize..3, 0u32..8, any::<bool>()), 0..200)) {
            let mut lists = Lists::new(3, 8);
            let mut twins: [VecDeque<u32>; 3] = Default::default();
            for (list, page, last) in steps {
                match twins.iter().position(|twin| twin.contains(&page)) {
                    Some(own) => {
                        lists.remove(own, page);
                        twins[own].retain(|other| *other != page);
                    }
                    None if last => {
                        lists.push_last(list, page);
                        twins[list].push_back(page);
                    }
                    None => {
                        lists.push_first(list, page);
                        twins[list].push_front(page);
                    }
                }
                for (list, twin) in twins.iter().enumerate() {
                    prop_assert_eq!(&lists.pages(list).collect::<VecDeque<_>>(), twin);
                    prop_assert_eq!((lists.last(list), lists.len(list)), (twin.back().copied(), twin.len()));
                }
            }
        }
    }
}
