//! The file that says how to undo.

use super::change::Action;
use crate::error::{Error, reason};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Steps that take back what was done.
#[derive(Debug)]
pub(crate) struct Undo {
    file: PathBuf,
    steps: Steps,
}

/// The file's content.
#[derive(Debug, Serialize, Deserialize)]
struct Steps {
    interface: String,
    /// the latest is last and is taken first
    steps: Vec<Action>,
}

/// Where it lies if nothing else is said.
pub(crate) fn place(interface: &str) -> PathBuf {
    // names of interfaces hold no slash
    Path::new("/run").join(format!("simoom-tune-{interface}.undo"))
}

impl Undo {
    /// Goes on with the file of an earlier run, so that undoing leads back to before the first.
    pub(crate) fn open(interface: &str, file: &Path) -> Result<Undo, Error> {
        let steps = match fs::symlink_metadata(file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Steps { interface: interface.to_owned(), steps: Vec::new() }
            }
            _ => read(interface, file)?,
        };
        let undo = Undo { file: file.to_owned(), steps };
        undo.write()?;
        Ok(undo)
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.steps.steps.is_empty()
    }

    /// Notes a step before what it takes back is done.
    pub(crate) fn push(&mut self, step: Action) -> Result<(), Error> {
        self.steps.steps.push(step);
        self.write()
    }

    /// Forgets the latest.
    pub(crate) fn pop(&mut self) -> Result<(), Error> {
        self.steps.steps.pop();
        self.write()
    }

    /// There is nothing to undo any more.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_file(&self.file);
    }

    /// Writes it whole beside the old one, then in its place.
    fn write(&self) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(&self.steps).map_err(|error| Error::environment(error.to_string()))?;
        let mut name = self.file.as_os_str().to_owned();
        name.push(".new");
        let fresh = PathBuf::from(name);
        let _ = fs::remove_file(&fresh);
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&fresh)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&fresh, &self.file));
        written.map_err(|error| {
            let file = self.file.display();
            Error::environment(format!(
                "how to undo cannot be written to {file}: {}; name another file by --undo-file",
                reason(&error)
            ))
        })
    }
}

/// Reads a file of steps, which are about to be carried out with our privileges: nobody else may have written it.
fn read(interface: &str, file: &Path) -> Result<Steps, Error> {
    let place = file.display();
    let refused = |why: &str| Error::input(format!("{place}: {why}"));
    let about = fs::symlink_metadata(file).map_err(|error| refused(&reason(&error)))?;
    let ours = rustix::process::geteuid().as_raw();
    if !about.is_file() || about.uid() != ours || about.mode() & 0o022 != 0 {
        return Err(refused("it is not a file of this user's that nobody else can write"));
    }
    let text = fs::read_to_string(file).map_err(|error| refused(&reason(&error)))?;
    let steps: Steps =
        serde_json::from_str(&text).map_err(|error| refused(&format!("it does not say how to undo: {error}")))?;
    if steps.interface != interface {
        return Err(refused(&format!("it is about {}, not about {interface}", steps.interface)));
    }
    if let Some(strange) = steps.steps.iter().find(|step| !step.is_ours()) {
        return Err(refused(&format!("`{strange}` is nothing that tuning does")));
    }
    Ok(steps)
}

/// Takes everything back that the file says, the latest first. What is refused stays in the file.
pub(crate) fn undo(interface: &str, file: &Path) -> Result<String, Error> {
    let mut steps = read(interface, file)?.steps;
    let (mut text, mut left) = (String::new(), Vec::new());
    while let Some(step) = steps.pop() {
        match step.carry_out() {
            Ok(_) => {
                let _ = writeln!(text, "undone      {step}");
            }
            Err(why) => {
                let _ = writeln!(text, "not undone  {step}: {why}");
                left.insert(0, step);
            }
        }
    }
    let undo = Undo { file: file.to_owned(), steps: Steps { interface: interface.to_owned(), steps: left } };
    if undo.is_empty() {
        undo.remove();
        let _ = writeln!(text, "{} is removed: everything is as it was", file.display());
        return Ok(text);
    }
    undo.write()?;
    let _ = writeln!(text, "{} holds what is left to undo", file.display());
    Err(Error::environment(text.trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str, mode: u32) -> String {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("undo");
        let mut opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file).unwrap();
        opened.write_all(text.as_bytes()).unwrap();
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        undo("lo", &file).unwrap_err().to_string()
    }

    #[test]
    fn a_file_of_others_is_not_carried_out() {
        let harmless = r#"{"interface":"lo","steps":[]}"#;
        assert!(refusal(harmless, 0o622).contains("nobody else can write"));
        assert!(refusal(r#"{"interface":"e1","steps":[]}"#, 0o600).contains("about e1"));
        assert!(
            refusal(r#"{"interface":"lo","steps":[{"run":["sh","-c","true"]}]}"#, 0o600)
                .contains("nothing that tuning does")
        );
        assert!(refusal("hello", 0o600).contains("does not say how to undo"));
        assert!(undo("lo", Path::new("/no/such/file")).unwrap_err().to_string().contains("No such file"));
    }

    #[test]
    fn a_later_run_goes_on_with_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("undo");
        let step = |n: u32| Action::ethtool(format!("-L no-such-one rx {n}"));
        let mut first = Undo::open("lo", &file).unwrap();
        assert!(first.is_empty());
        first.push(step(1)).unwrap();
        first.push(step(2)).unwrap();
        first.pop().unwrap();
        let mut second = Undo::open("lo", &file).unwrap();
        second.push(step(3)).unwrap();
        // neither can be carried out: both stay, in their order
        let text = undo("lo", &file).unwrap_err().to_string();
        assert!(text.find("rx 3").unwrap() < text.find("rx 1").unwrap(), "{text}");
        assert!(text.contains("left to undo"), "{text}");
        assert_eq!(read("lo", &file).unwrap().steps, [step(1), step(3)]);
        second.remove();
        assert!(!file.exists());
    }
}
