//! Linux capabilities: which of those that XDP needs are missing (capabilities(7)).

/// A capability's name and its bit.
pub type Capability = (&'static str, u32);
/// May load programs.
pub const CAP_BPF: Capability = ("CAP_BPF", 39);
/// May attach them.
pub const CAP_NET_ADMIN: Capability = ("CAP_NET_ADMIN", 12);
/// May open AF_XDP and AF_PACKET sockets.
pub const CAP_NET_RAW: Capability = ("CAP_NET_RAW", 13);

/// May load programs that reach a packet at places that they work out.
pub const CAP_PERFMON: Capability = ("CAP_PERFMON", 38);

/// Those of `wanted` that this thread does not have in effect.
pub fn missing(wanted: &[Capability]) -> Vec<&'static str> {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let has = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    let has = has.unwrap_or(0);
    wanted.iter().filter(|(_, bit)| has & (1 << bit) == 0).map(|(name, _)| *name).collect()
}

/// Those of `wanted` that are missing, with spaces between; all of them when none seems to be (the capabilities are those
/// of another user namespace).
pub fn missing_of(wanted: &[Capability]) -> String {
    let mut needs = missing(wanted);
    if needs.is_empty() {
        needs = wanted.iter().map(|(name, _)| *name).collect();
    }
    needs.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let nobodys = ("CAP_THAT_NOBODY_HAS", 63);
        assert_eq!(missing(&[nobodys]), [nobodys.0]);
        assert_eq!(missing_of(&[nobodys]), nobodys.0);
        assert_eq!(missing(&[]), [""; 0]);
    }
}
