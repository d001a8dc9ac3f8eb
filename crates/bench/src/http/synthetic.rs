//! Answers with pages of the synthetic site, judged: every octet, the length, the ETag, and that no version comes back.

use super::outcome::Failure;
use super::response::Answer;
use crate::pages::{Checker, Fault, Page};
use web::Encoding;

/// Representations whose ETags are remembered, of a page.
const REMEMBERED: usize = 8;

/// What is known of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    page: Page,
    /// those seen last, in a ring: version, coding and the hash of the ETag
    seen: [Option<(u64, Encoding, u64)>; REMEMBERED],
    next: usize,
}

impl Expected {
    pub(super) fn new(page: Page) -> Expected {
        Expected { page, seen: [None; REMEMBERED], next: 0 }
    }

    /// For an answer whose head is read; None when its coding is nothing that we know.
    pub(super) fn checker(&self, answer: &Answer) -> Option<Checker> {
        answer.coding.map(|coding| Checker::new(self.page, coding))
    }

    /// Judges an answer that is whole: its version if it is a live page's. `floor` is the newest version that had been seen when
    /// it was asked for.
    pub(super) fn judge(
        &mut self,
        answer: &Answer,
        checker: Option<Checker>,
        floor: u64,
    ) -> Result<Option<u64>, Failure> {
        // none was begun for a body without octets
        let checker = checker.or_else(|| self.checker(answer)).ok_or(Failure::WrongBody)?;
        let version = checker.finish().map_err(|fault| match fault {
            Fault::Length => Failure::WrongLength,
            Fault::Mixed => Failure::MixedVersions,
            Fault::Content => Failure::WrongBody,
        })?;
        let is = (version, answer.coding.unwrap_or_default(), answer.tag_hash);
        let agree = |seen: &(u64, Encoding, u64)| ((seen.0, seen.1) == (is.0, is.1)) == (seen.2 == is.2);
        if is.2 == 0 || !self.seen.iter().flatten().all(agree) {
            return Err(Failure::WrongTag);
        }
        if !self.seen.contains(&Some(is)) {
            self.seen[self.next] = Some(is);
            self.next = (self.next + 1) % REMEMBERED;
        }
        match self.page.is_live() {
            true if version < floor => Err(Failure::OldVersion),
            live => Ok(live.then_some(version)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Page = Page::live(1, 50, 9);

    fn judged(expected: &mut Expected, version: u64, tag_hash: u64, floor: u64) -> Result<Option<u64>, Failure> {
        let coding = Encoding::Identity;
        let body = PAGE.text(coding, version).whole();
        let answer = Answer { status: 200, body_bytes: body.len() as u64, last: false, tag_hash, coding: Some(coding) };
        let mut checker = expected.checker(&answer).unwrap();
        checker.take(&body);
        expected.judge(&answer, Some(checker), floor)
    }

    #[test]
    fn versions_keep_their_tags_and_do_not_come_back() {
        let mut expected = Expected::new(PAGE);
        assert_eq!(judged(&mut expected, 4, 44, 0), Ok(Some(4)));
        assert_eq!(judged(&mut expected, 4, 44, 4), Ok(Some(4)));
        assert_eq!(judged(&mut expected, 5, 55, 4), Ok(Some(5)));
        assert_eq!(judged(&mut expected, 5, 44, 4), Err(Failure::WrongTag));
        assert_eq!(judged(&mut expected, 6, 55, 4), Err(Failure::WrongTag));
        assert_eq!(judged(&mut expected, 6, 0, 4), Err(Failure::WrongTag));
        assert_eq!(judged(&mut expected, 4, 44, 5), Err(Failure::OldVersion));
        // far more than are remembered
        for version in 7..100 {
            assert_eq!(judged(&mut expected, version, version * 11, version - 1), Ok(Some(version)));
        }
    }

    #[test]
    fn an_empty_page_and_an_unknown_coding() {
        let mut expected = Expected::new(Page::kept(1, 0));
        let answer = Answer { status: 200, body_bytes: 0, last: false, tag_hash: 7, coding: Some(Encoding::Identity) };
        assert_eq!(expected.judge(&answer, None, 9), Ok(None));
        let strange = Answer { coding: None, ..answer };
        assert_eq!(expected.judge(&strange, None, 9), Err(Failure::WrongBody));
    }
}
