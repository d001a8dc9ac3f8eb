//! Symbolic links on the way to a file.

use std::io;
use std::path::{Path, PathBuf};

/// How many a way may have, as the kernel has it.
pub(crate) const MOST: usize = 40;

/// One link on the way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// where it stands
    pub(crate) at: PathBuf,
    /// the whole way, gone by what the link says
    pub(crate) leads: PathBuf,
}

/// The first link on the way to an absolute path, the path itself included; None where there is none.
///
/// # Errors
/// It cannot be read.
pub(crate) fn first(path: &Path) -> io::Result<Option<Link>> {
    let mut above: Vec<&Path> = path.ancestors().collect();
    above.reverse();
    let Some(at) = above.into_iter().find(|at| at.is_symlink()) else { return Ok(None) };
    // what is absolute takes the place of all that is before it
    let target = at.parent().unwrap_or(Path::new("/")).join(std::fs::read_link(at)?);
    let rest = path.strip_prefix(at).map_err(io::Error::other)?;
    let leads = if rest.as_os_str().is_empty() { target } else { target.join(rest) };
    Ok(Some(Link { at: at.to_owned(), leads }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_first_of_several_is_found_and_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(at.join("releases/1/htdocs")).unwrap();
        symlink("latest", at.join("current")).unwrap();
        symlink(at.join("releases/1"), at.join("latest")).unwrap();
        let next = |path: &Path| first(path).unwrap();
        let link = |name: &str, leads: &str| Some(Link { at: at.join(name), leads: at.join(leads) });
        assert_eq!(next(&at.join("current/htdocs/a")), link("current", "latest/htdocs/a"));
        assert_eq!(next(&at.join("latest/htdocs/a")), link("latest", "releases/1/htdocs/a"));
        assert_eq!(next(&at.join("latest")), link("latest", "releases/1"));
        assert_eq!(next(&at.join("releases/1/htdocs/none")), None);
    }
}
