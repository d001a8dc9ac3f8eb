//! Which kernel this is.

/// Whether this kernel is from before that version. One whose release names no version is taken for new.
pub fn kernel_before(major: u32, minor: u32) -> bool {
    version(&rustix::system::uname().release().to_string_lossy()) < (major, minor)
}

fn version(release: &str) -> (u32, u32) {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok());
    (parts.next().unwrap_or(u32::MAX), parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_has_a_version_or_is_new() {
        for (release, is) in [
            ("5.14.0-rc1", (5, 14)),
            ("6.1", (6, 1)),
            ("6.12.43+deb13-amd64", (6, 12)),
            ("7-rc1", (7, 0)),
            ("", (u32::MAX, 0)),
            ("next-20260101", (u32::MAX, 0)),
        ] {
            assert_eq!(version(release), is, "{release:?}");
        }
        assert!(!kernel_before(0, 0));
    }
}
