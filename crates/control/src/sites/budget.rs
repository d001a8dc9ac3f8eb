//! Which files stand in memory, and which are read while they are sent.
//!
//! When everything fits, everything is held. Otherwise a part of the memory becomes the cache of chunks, and what is left of it is
//! given to the smallest files first: a request costs the same whatever its file's size, so held bytes serve most requests there.

use super::{Tree, size};
use crate::config::Web;
use ::web::chunks::CACHE_LEAST_BYTES;
use std::collections::HashSet;
use std::path::Path;

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
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total =
        meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
    let total = total.map_or(u64::MAX, |kib: u64| kib << 10);
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let (bytes, whose) = match group_limit(&groups, Path::new("/sys/fs/cgroup")) {
        Some(group) if group < total => (group / 2, "control group"),
        _ => (total / 2, "machine"),
    };
    (bytes, format!("{}, half of the {whose}'s memory", size(bytes)))
}

/// The least `memory.max` of a process's group and of those above it: each of them bounds it. `groups` is what `/proc/PID/cgroup` says, and
/// `hierarchy` where version 2 is mounted; version 1 has other names.
fn group_limit(groups: &str, hierarchy: &Path) -> Option<u64> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    // a group outside of our namespace of groups: all that is to be seen of it is what stands at the root
    let group = if group.split('/').any(|part| part == "..") { "" } else { group };
    let group = hierarchy.join(group);
    // "max" is no number
    let limit = |at: &Path| std::fs::read_to_string(at.join("memory.max")).ok()?.trim().parse().ok();
    group.ancestors().take_while(|at| at.starts_with(hierarchy)).filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_bound_on_the_way_to_a_group_counts() {
        let folder = tempfile::tempdir().unwrap();
        let unit = folder.path().join("system.slice/simoom.service");
        std::fs::create_dir_all(&unit).unwrap();
        let bound = |group: &str, text: &str| {
            std::fs::write(folder.path().join(group).join("memory.max"), text).unwrap();
        };
        let limit = |groups: &str| group_limit(groups, folder.path());
        let ours = "1:name=systemd:/elsewhere\n0::/system.slice/simoom.service\n";
        // the root of all groups has no such file
        assert_eq!(limit(ours), None);
        bound("system.slice", "max\n");
        assert_eq!(limit(ours), None);
        bound("system.slice/simoom.service", "1073741824\n");
        assert_eq!(limit(ours), Some(1 << 30));
        bound("system.slice", "536870912\n");
        assert_eq!(limit(ours), Some(512 << 20));
        assert_eq!(limit("0::/system.slice/other.service\n"), Some(512 << 20));
        assert_eq!(limit("0::/\n"), None);
        // in a container its own group stands at the root
        bound("", "268435456\n");
        for groups in ["0::/\n", "0::/../simoom.service\n", "0::/system.slice/../../other\n", ours] {
            assert_eq!(limit(groups), Some(256 << 20), "{groups}");
        }
        // version 1 alone, and no control groups at all
        assert_eq!((limit("4:memory:/system.slice\n"), limit("")), (None, None));
    }
}
