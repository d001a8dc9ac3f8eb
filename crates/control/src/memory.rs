//! Memory that there is.

use std::path::Path;

/// What the machine, or the process's control group, has, and which of them that is.
pub(crate) fn there_is() -> (u64, &'static str) {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total =
        meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
    let total = total.map_or(u64::MAX, |kib: u64| kib << 10);
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    match group_limit(&groups, Path::new("/sys/fs/cgroup")) {
        Some(group) if group < total => (group, "control group"),
        _ => (total, "machine"),
    }
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
