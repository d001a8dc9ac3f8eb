//! What the server takes from itself once everything is open (`--sandbox`): the file system but for what it serves and writes
//! (Landlock), and every system call that it has no use for (seccomp).
//!
//! Both belong to threads and are inherited, so they are set on the first thread before any other starts, when the capabilities have
//! gone (`privileges`). Neither can be taken back.
//!
//! A call that is not allowed fails with EPERM; the process is not killed. Whoever has taken a thread over gains nothing from
//! the difference, since no call that would help him is let through either way. A server that meets a call nobody thought of, in
//! another version of the C library or in the path of a rare error, goes on serving and has one failed call to log. The price is that
//! attempts are not counted: the kernel does not tell of an EPERM.
//!
//! Landlock names directories by what they are, not by their names, so what is allowed is decided at the start: [`paths`] says how
//! the files of a later reload are thought of. A reload that needs another is refused like any other that cannot be read, with a line that
//! says why ([`explain`]).
//!
//! What Landlock holds depends on the kernel's version of it ([`parts`]): `--sandbox auto` does with what there is and says what is missing,
//! `--sandbox on` does not start without all of it.

mod calls;
mod parts;
mod paths;

use crate::config::Settings;
use crate::error::{Error, reason};
use crate::words::Sandbox;
use base::counter::{Figure, Report};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, NetPort, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use paths::Allowed;
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What this process may read or write, once that is decided.
static BOUNDS: OnceLock<Vec<Bound>> = OnceLock::new();

/// What may be read or written with all beneath it.
#[derive(Debug)]
struct Bound {
    path: PathBuf,
    /// device and inode, when it was allowed
    was: Option<(u64, u64)>,
}

/// What is in force, for as long as the process lives.
#[derive(Debug)]
pub(crate) struct Confined {
    /// in words, for the log and `ctl status`
    said: String,
    /// the version of Landlock
    landlock: Option<i32>,
    outgoing: Outgoing,
    seccomp: bool,
    /// directories of /proc are what was allowed only while somebody has them open
    _held: Vec<PathFd>,
}

impl Confined {
    /// In words.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }
}

impl Report for Confined {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let is_held = |part: &parts::Part| self.landlock.is_some_and(|abi| part.is_held_by(abi, &self.outgoing));
        let parts = parts::PARTS.iter().map(|part| (part.label, is_held(part)));
        let whole = [("landlock", self.landlock.is_some()), ("seccomp", self.seccomp)];
        for (by, on) in whole.into_iter().chain(parts) {
            let help = "1 where the server has confined itself, by the kernel's means";
            let labels = [("by", by)];
            show(Figure { name: "sandboxed", help, gauge: true, labels: &labels, value: u64::from(on) });
        }
    }
}

/// Confines this thread and all that it starts. `files` are those that were read beside the ones that the settings name.
///
/// # Errors
/// `--sandbox on`, and a kernel that lacks the means, or a part of them.
pub(crate) fn confine<'a>(
    settings: &'a Settings,
    files: impl Iterator<Item = &'a str>,
    control: Option<&Path>,
) -> Result<Confined, Error> {
    let outgoing = Outgoing::of(settings);
    if settings.sandbox == Sandbox::Off {
        return Ok(Confined { said: "off".into(), landlock: None, outgoing, seccomp: false, _held: Vec::new() });
    }
    let allowed = Allowed::of(settings, files, control);
    let bounds = allowed.bounds().into_iter().map(|path| Bound { was: identity(&path), path }).collect();
    let (landlock, held) = match restrict(&allowed, &outgoing) {
        Ok((abi, held)) => {
            // nobody decides twice
            let _ = BOUNDS.set(bounds);
            (Ok(abi), held)
        }
        Err(why) => (Err(why), Vec::new()),
    };
    let seccomp = calls::filter();
    let said = judge(settings.sandbox, landlock.as_ref().copied(), &outgoing, seccomp.as_ref().map(|&()| ()))?;
    Ok(Confined { said, landlock: landlock.ok(), outgoing, seccomp: seccomp.is_ok(), _held: held })
}

/// What is in force, in words.
///
/// # Errors
/// Something is missing that is insisted on. What is left open for what is served is not missing.
fn judge(
    wanted: Sandbox,
    landlock: Result<i32, &String>,
    outgoing: &Outgoing,
    seccomp: Result<(), &String>,
) -> Result<String, Error> {
    if wanted == Sandbox::On {
        let partly =
            landlock.ok().and_then(parts::missing).map(|missing| format!("this kernel's does not hold {missing}"));
        for (what, why) in [("landlock", landlock.err().or(partly.as_ref())), ("seccomp", seccomp.err())] {
            if let Some(why) = why {
                let line = format!("--sandbox on: {what}: {why}; give --sandbox auto to do with what the kernel has");
                return Err(Error::environment(line));
            }
        }
    }
    let held = |abi: i32| {
        let missing = parts::missing(abi).map_or(String::new(), |missing| format!(", which does not hold {missing}"));
        let open = parts::left_open(abi, outgoing).map_or(String::new(), |open| format!(", but for {open}"));
        format!("landlock (ABI {abi}{missing}{open})")
    };
    Ok(match (landlock.map(held), seccomp) {
        (Ok(landlock), Ok(())) => format!("{landlock}, seccomp"),
        (Ok(landlock), Err(why)) => format!("{landlock}; no seccomp: {why}"),
        (Err(why), Ok(())) => format!("seccomp; no landlock: {why}"),
        (Err(first), Err(second)) => format!("none: landlock: {first}; seccomp: {second}"),
    })
}

/// Rights to the file system are those that Landlock knew when this was written; later ones would be denied untested.
const FILES: ABI = ABI::V5;
const PORTS: ABI = ABI::V4;

/// Ports that connections may go out to: those that applications are permitted (`--connect`). Landlock knows ports and no addresses;
/// those are judged where the call is (`guard`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Outgoing {
    all: bool,
    ports: BTreeSet<u16>,
}

impl Outgoing {
    fn of(settings: &Settings) -> Outgoing {
        let mut outgoing = Outgoing::default();
        for peers in settings.apps.iter().flat_map(|app| &app.connect) {
            match peers.port {
                Some(port) => drop(outgoing.ports.insert(port)),
                None => outgoing.all = true,
            }
        }
        outgoing
    }

    fn is_none(&self) -> bool {
        !self.all && self.ports.is_empty()
    }
}

/// Puts this thread under Landlock. Gives the version of it that is in force, and what has to stay open.
fn restrict(allowed: &Allowed, outgoing: &Outgoing) -> Result<(i32, Vec<PathFd>), String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    // no port is opened any more, and no connection goes out but an application's
    let ports = AccessNet::from_all(PORTS);
    let ports = if outgoing.all { ports & !BitFlags::from(AccessNet::ConnectTcp) } else { ports };
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(FILES))
        .and_then(|rules| rules.handle_access(ports))
        .and_then(|rules| rules.scope(Scope::Signal | Scope::AbstractUnixSocket))
        .and_then(Ruleset::create)
        .map_err(|error| failed(&error))?;
    let mut held = Vec::new();
    for (path, rights) in allowed.rights() {
        // what is not there, or not for us, needs no rule
        let Ok(fd) = PathFd::new(path) else { continue };
        let rights = if path.is_dir() { rights } else { rights & AccessFs::from_file(FILES) };
        rules = rules.add_rule(PathBeneath::new(&fd, rights)).map_err(|error| failed(&error))?;
        if path.starts_with("/proc") {
            held.push(fd);
        }
    }
    if !outgoing.is_none() {
        // from an address of its choice, and a port of the kernel's
        rules = rules.add_rule(NetPort::new(0, AccessNet::BindTcp)).map_err(|error| failed(&error))?;
    }
    if !outgoing.all {
        for port in &outgoing.ports {
            rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp)).map_err(|error| failed(&error))?;
        }
    }
    let status = rules.restrict_self().map_err(|error| failed(&error))?;
    match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, LandlockStatus::NotEnabled) => Err("not among the kernel's lsm=".into()),
        (RulesetStatus::NotEnforced, _) => Err("the kernel has none (Linux 5.13 has)".into()),
        (_, LandlockStatus::Available { effective_abi, .. }) => Ok((effective_abi as i32, held)),
        // the kernel's own word is missing: the least
        _ => Ok((ABI::V1 as i32, held)),
    }
}

/// Puts this thread, which is about to become an application, into a Landlock domain of its own. It writes no file; and from within a
/// domain nothing outside of it can be traced or looked into by way of /proc, as processes of one user otherwise can. Where the kernel has
/// no Landlock the filter of system calls and the processes that close themselves are what there is.
pub(crate) fn confine_application() {
    let files = AccessFs::from_all(FILES) & !(reading() | AccessFs::Execute);
    let rules = Ruleset::default()
        .handle_access(files)
        .and_then(|rules| rules.handle_access(AccessNet::from_all(PORTS)))
        .and_then(|rules| rules.scope(Scope::Signal | Scope::AbstractUnixSocket))
        .and_then(Ruleset::create)
        .and_then(RulesetCreated::restrict_self);
    if let Err(error) = rules {
        tracing::debug!("enter-app: no landlock: {error}");
    }
}

/// To read files and directories.
fn reading() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
}

/// To write to files, and to make them.
fn writing() -> BitFlags<AccessFs> {
    AccessFs::WriteFile | AccessFs::MakeReg
}

/// Why `path` cannot be opened: the system's word, and the sandbox's part in it.
pub(crate) fn explain(path: &Path, error: &io::Error) -> String {
    let said = reason(error);
    match outside(path, error) {
        true => {
            format!("{said}: it lies outside of what the server allowed itself to read when it started, see --sandbox")
        }
        false => said,
    }
}

/// The same as an error.
pub(crate) fn explained(path: &str, error: io::Error) -> io::Error {
    match outside(Path::new(path), &error) {
        true => io::Error::new(error.kind(), explain(Path::new(path), &error)),
        false => error,
    }
}

fn outside(path: &Path, error: &io::Error) -> bool {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return false;
    }
    BOUNDS.get().is_some_and(|bounds| !is_within(bounds, path).unwrap_or(true))
}

/// Whether what stands at `path`, or could be made there, was allowed; None where there is no way to it.
fn is_within(bounds: &[Bound], path: &Path) -> Option<bool> {
    // the names of files are no secret to Landlock
    let made = || Some(std::path::absolute(path).ok()?.parent()?.canonicalize().ok()?.join(path.file_name()?));
    let real = path.canonicalize().ok().or_else(made)?;
    // what was put in the place of an allowed directory or file is another
    Some(bounds.iter().any(|bound| real.starts_with(&bound.path) && identity(&bound.path) == bound.was))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|of| (of.dev(), of.ino()))
}

#[cfg(test)]
mod tests;
