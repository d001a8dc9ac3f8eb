//! The configuration file, read again by a reload: the zones and the hosts that it names by now are taken. What else it says otherwise than
//! at the start belongs to what is open and to threads that run; a restart takes that, and whoever asked for the reload is told.

use crate::config::{self, HostSpec, Settings, ZoneSpec};
use crate::error::reason;
use crate::sandbox;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Keys that a reload takes.
const TAKEN: [&str; 4] = ["dns.zone", "web.root", "web.host", "web.server"];

/// The file, and what it said at the start.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    path: PathBuf,
    start: Table,
}

/// What it says now.
#[derive(Debug)]
pub(super) struct Said {
    /// None where it has no DNS any more
    pub(super) zones: Option<Vec<ZoneSpec>>,
    /// likewise; the hosts, and the Server field
    pub(super) web: Option<(Vec<HostSpec>, Option<String>)>,
    /// keys that a restart takes
    pub(super) others: Vec<String>,
}

impl ConfigFile {
    /// The file of these settings; None for those of a command line, and for what is no file, which brings its bytes once.
    pub(crate) fn of(settings: &Settings) -> Option<ConfigFile> {
        let path = PathBuf::from(settings.file.as_ref()?);
        let start = text_of(&path).ok().and_then(|text| toml::from_str(&text).ok())?;
        Some(ConfigFile { path, start })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads it again.
    ///
    /// # Errors
    /// It cannot be read, or what it says cannot be understood: everything wrong with it, a line each. What a start looks at beyond the text, of
    /// this machine and of services together, is not looked at: most of that is in keys that a reload does not take.
    pub(super) fn read(&self) -> Result<Said, Vec<String>> {
        let name = self.path.display().to_string();
        let text = text_of(&self.path).map_err(|why| vec![format!("{name}: cannot be read: {why}; check the file")])?;
        let settings = config::from_text(&name, &text).map_err(|error| error.lines().to_vec())?;
        // it was read as one just now
        let now = toml::from_str(&text).unwrap_or_default();
        Ok(Said {
            zones: settings.dns.map(|dns| dns.zones),
            web: settings.web.map(|web| (web.hosts, web.server)),
            others: changed(&self.start, &now),
        })
    }
}

/// A FIFO would hold up the reload.
fn text_of(path: &Path) -> Result<String, String> {
    match path.metadata() {
        Ok(is) if !is.is_file() => return Err("it is no regular file".into()),
        Ok(_) => {}
        Err(error) => return Err(reason(&error)),
    }
    std::fs::read_to_string(path).map_err(|error| sandbox::explain(path, &error))
}

/// The keys that are other than at the start, but for those that a reload takes.
fn changed(start: &Table, now: &Table) -> Vec<String> {
    let mut keys = Vec::new();
    for section in both(start, now) {
        match (start.get(section), now.get(section)) {
            (Some(Value::Table(start)), Some(Value::Table(now))) => {
                let other = both(start, now).into_iter().filter(|key| start.get(*key) != now.get(*key));
                keys.extend(other.map(|key| format!("{section}.{key}")).filter(|key| !TAKEN.contains(&&key[..])));
            }
            (start, now) if start == now => {}
            _ => keys.push(section.to_owned()),
        }
    }
    keys
}

fn both<'a>(start: &'a Table, now: &'a Table) -> BTreeSet<&'a str> {
    start.keys().chain(now.keys()).map(String::as_str).collect()
}

/// `; dns.nsid and web.keep-alive have changed: a restart takes them`.
pub(super) fn told(others: &[String]) -> String {
    match others {
        [] => String::new(),
        [one] => format!("; {one} has changed: a restart takes it"),
        [most @ .., last] => format!("; {} and {last} have changed: a restart takes them", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_restart_takes_is_told_by_its_keys() {
        let start = "[dns]\nnsid = \"a\"\n[[dns.zone]]\nfile = \"z\"\n[web]\nroot = \"w\"\nkeep-alive = 5\n[kv]\n";
        for (now, said) in [
            (start, ""),
            // what a reload takes, comments, and the order of things
            (
                "# new\n[web]\nkeep-alive = 5\nserver = \"x\"\n[[web.host]]\nroot = \"v\"\n[kv]\n[dns]\nnsid = \"a\"\n",
                "",
            ),
            (
                "[dns]\nnsid = \"b\"\n[web]\nroot = \"w\"\nkeep-alive = 5\n[kv]\n",
                "; dns.nsid has changed: a restart takes it",
            ),
            (
                "[dns]\n[web]\nroot = \"w\"\nkeep-alive = 6\nwatch = true\n[echo]\n",
                "; dns.nsid, echo, kv, web.keep-alive and web.watch have changed: a restart takes them",
            ),
        ] {
            let [start, now] = [start, now].map(|text| toml::from_str(text).unwrap());
            assert_eq!(told(&changed(&start, &now)), said);
        }
    }

    #[test]
    fn what_is_no_file_is_not_read_again() {
        let settings = |file: &str| Settings { file: Some(file.into()), ..config::from_text("s", "[echo]\n").unwrap() };
        assert!(ConfigFile::of(&settings("/dev/null")).is_none());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.toml");
        std::fs::write(&path, "[echo]\n").unwrap();
        let file = ConfigFile::of(&settings(path.to_str().unwrap())).unwrap();
        std::fs::remove_file(&path).unwrap();
        let gone = format!("{}: cannot be read: No such file or directory; check the file", path.display());
        assert_eq!(file.read().unwrap_err(), [gone]);
        std::fs::write(&path, "[echo\n").unwrap();
        assert!(file.read().unwrap_err()[0].starts_with(&format!("{}:1:6: ", path.display())));
    }
}
