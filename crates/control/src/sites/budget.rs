//! Which files stand in memory, and which are read while they are sent.
//!
//! When everything fits, everything is held. Otherwise a part of the memory becomes the cache of chunks, and what is left of it is
//! given to the smallest files first: a request costs the same whatever its file's size, so held bytes serve most requests there.

use super::{Tree, size};
use crate::config::Web;
use crate::memory;
use ::web::chunks::CACHE_LEAST_BYTES;
use std::collections::HashSet;

/// What the header fields and lists of a file take, about, beside its bytes.
const FILE_BYTES: u64 = 768;

/// What is held.
#[derive(Debug)]
pub(super) struct Budget {
    /// places in the tree of files that are not
    over: HashSet<usize>,
    /// memory that nothing has yet
    pub(super) left_bytes: u64,
}

impl Budget {
    /// Divides the memory among the files of a tree.
    ///
    /// # Errors
    /// It is too little even for what has to be held.
    pub(super) fn of(web: &Web, tree: &Tree) -> Result<Budget, Vec<String>> {
        let (most, named) = memory_limit(web);
        let needed = tree.content_bytes();
        if needed <= most {
            return Ok(Budget { over: HashSet::new(), left_bytes: most - needed });
        }
        let place = &web.hosts[0].place;
        let cache = cache_bytes(web);
        if cache == 0 {
            let line = format!(
                "{place}: the content takes {}, more than {named}, and --cache 0 reads nothing while it is sent; serve less, or give \
                 more --memory, or some --cache",
                size(needed)
            );
            return Err(vec![line]);
        }
        let mut files: Vec<(u64, usize)> =
            tree.0.iter().enumerate().map(|(at, found)| (found.print.bytes, at)).collect();
        files.retain(|(_, at)| !tree.0[*at].directory);
        files.sort_unstable();
        let heads = files.len() as u64 * FILE_BYTES;
        let Some(mut left_bytes) = most.saturating_sub(cache).checked_sub(heads) else {
            let line = format!(
                "{place}: {} files need {} of memory without their contents, more than {named} and a cache of {} leave; give more \
                 --memory",
                files.len(),
                size(heads),
                size(cache)
            );
            return Err(vec![line]);
        };
        let mut over = HashSet::new();
        for (bytes, at) in files {
            match left_bytes.checked_sub(app::memory_bytes(bytes as usize)) {
                // one that is larger does not fit either
                Some(left) if over.is_empty() => left_bytes = left,
                _ => {
                    over.insert(at);
                }
            }
        }
        Ok(Budget { over, left_bytes })
    }

    /// Whether the file at this place of the tree is not held.
    pub(super) fn is_over(&self, at: usize) -> bool {
        self.over.contains(&at)
    }

    /// The places of those files.
    pub(super) fn over(&self) -> impl Iterator<Item = usize> {
        self.over.iter().copied()
    }
}

/// The memory for chunks of files that are not held; 0 when there is to be none.
pub(crate) fn cache_bytes(web: &Web) -> u64 {
    web.cache_bytes.unwrap_or_else(|| (memory_limit(web).0 / 4).max(CACHE_LEAST_BYTES))
}

/// The memory that content may take: as configured, or half of what the machine, or the process's control group, has.
fn memory_limit(web: &Web) -> (u64, String) {
    if let Some(bytes) = web.memory_bytes {
        return (bytes, format!("the {} of --memory", size(bytes)));
    }
    let (bytes, whose) = memory::there_is();
    (bytes / 2, format!("{}, half of the {whose}'s memory", size(bytes / 2)))
}
