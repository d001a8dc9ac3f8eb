//! Who the process is after start: no capability, no way to gain one, and another user where one is named.
//!
//! Capabilities belong to threads. They are dropped on the first thread before any other is started, so each thread
//! inherits the loss; [`drop_all`] then reads /proc to make sure that no thread escaped.

use crate::error::Error;
use nix::unistd::{Gid, Group, Uid, User};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::ffi::CString;

/// A user to become.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    uid: Uid,
    gid: Gid,
    /// for the supplementary groups; a bare number has none
    name: Option<CString>,
    /// what asks for it, for messages
    asked: String,
}

impl Identity {
    /// Refuses one that this process may not become.
    ///
    /// # Errors
    /// It lacks the capabilities.
    pub(crate) fn can_be_become(&self) -> Result<(), Error> {
        let able = effective().is_ok_and(|have| have.contains(CapabilitySet::SETUID | CapabilitySet::SETGID));
        if able || (self.uid == Uid::current() && self.gid == Gid::current()) {
            return Ok(());
        }
        let asked = &self.asked;
        Err(Error::input(format!("{asked}: needs CAP_SETUID and CAP_SETGID; start as root or leave it out")))
    }

    /// The numbers, for ownership of files.
    pub(crate) fn ids(&self) -> (u32, u32) {
        (self.uid.as_raw(), self.gid.as_raw())
    }
}

/// Who asked for a user, for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked<'a> {
    /// `--user` and `--group`
    Options,
    /// the user of this application: there is no group to be named
    Application(&'a str),
}

impl Asked<'_> {
    fn user(self) -> String {
        match self {
            Asked::Options => "--user".into(),
            Asked::Application(name) => format!("application {name}: user"),
        }
    }
}

/// Looks up the user and the group, each a name or a number.
///
/// # Errors
/// No such user or group.
pub(crate) fn look_up(user: Option<&str>, group: Option<&str>) -> Result<Option<Identity>, Error> {
    look_up_for(Asked::Options, user, group)
}

/// The same for whoever asked.
///
/// # Errors
/// As [`look_up`].
pub(crate) fn look_up_for(
    asked: Asked<'_>,
    user: Option<&str>,
    group: Option<&str>,
) -> Result<Option<Identity>, Error> {
    if user.is_none() && group.is_none() {
        return Ok(None);
    }
    let option = match (asked, user) {
        (Asked::Options, None) => "--group".to_owned(),
        (Asked::Options, Some(_)) => asked.user(),
        (Asked::Application(_), user) => format!("{} {}", asked.user(), user.unwrap_or_default()),
    };
    let mut identity = Identity { uid: Uid::current(), gid: Gid::current(), name: None, asked: option };
    if let Some(name) = user {
        let option = asked.user();
        let found = match name.parse() {
            Ok(number) => User::from_uid(Uid::from_raw(number)),
            Err(_) => User::from_name(name),
        };
        match (found, name.parse()) {
            (Ok(Some(found)), _) => {
                identity.uid = found.uid;
                identity.gid = found.gid;
                identity.name = CString::new(found.name).ok();
            }
            // without an entry there is no group to become, and to stay in root's is not what a user is named for
            (_, Ok(_)) if group.is_none() => {
                let mend = match asked {
                    Asked::Options => "give --group, too",
                    Asked::Application(_) => "give one that has",
                };
                return Err(Error::input(format!("{option} {name}: it has no entry in passwd; {mend}")));
            }
            (_, Ok(number)) => identity.uid = Uid::from_raw(number),
            _ => return Err(Error::input(format!("{option} {name}: no such user; see `getent passwd`"))),
        }
    }
    if let Some(name) = group {
        identity.gid = match (Group::from_name(name), name.parse()) {
            (_, Ok(number)) => Gid::from_raw(number),
            (Ok(Some(found)), _) => found.gid,
            _ => return Err(Error::input(format!("--group {name}: no such group; see `getent group`"))),
        };
    }
    Ok(Some(identity))
}

fn effective() -> rustix::io::Result<CapabilitySet> {
    Ok(rustix::thread::capabilities(None)?.effective)
}

/// Leaves in the bounding set no more than is kept, as far as this process, which has the capabilities `have`, may choose.
pub(crate) fn bound(have: CapabilitySet, kept: CapabilitySet) {
    if have.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(kept).iter() {
            // the kernel says EINVAL for one that it does not know yet
            let _ = rustix::thread::remove_capability_from_bounding_set(capability);
        }
    }
}

/// Becomes `identity` and drops every capability, for good.
///
/// # Errors
/// The kernel refused, or a thread still has capabilities.
pub(crate) fn drop_all(identity: Option<&Identity>) -> Result<(), Error> {
    let refused = |what: &str, error: &dyn std::fmt::Display| {
        Error::environment(format!("privileges: {what}: {error}; start without --user, or as root"))
    };
    rustix::thread::set_no_new_privs(true).map_err(|error| refused("no_new_privs", &error))?;
    rustix::thread::clear_ambient_capability_set().map_err(|error| refused("ambient set", &error))?;
    let have = effective().map_err(|error| refused("capget", &error))?;
    bound(have, CapabilitySet::empty());
    if let Some(Identity { uid, gid, name, .. }) = identity {
        if have.contains(CapabilitySet::SETGID) {
            match name {
                Some(name) => nix::unistd::initgroups(name, *gid),
                None => nix::unistd::setgroups(&[*gid]),
            }
            .map_err(|error| refused("supplementary groups", &error))?;
        }
        nix::unistd::setgid(*gid).map_err(|error| refused("setgid", &error))?;
        nix::unistd::setuid(*uid).map_err(|error| refused("setuid", &error))?;
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).map_err(|error| refused("capset", &error))?;
    match privileged_thread() {
        None => Ok(()),
        Some(thread) => Err(Error::environment(format!(
            "privileges: thread {thread} still has capabilities; this is a bug in simoom: please report it"
        ))),
    }
}

/// Lets nobody but root look into this process by way of /proc: applications may run as the same user.
pub(crate) fn close_to_others() {
    // refused only for what is no such behaviour
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

/// A thread of this process that has a capability in its permitted set.
fn privileged_thread() -> Option<String> {
    for task in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
        // a thread that has just ended has no status, and no capability
        let Ok(status) = std::fs::read_to_string(task.path().join("status")) else { continue };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
        if u64::from_str_radix(field("CapPrm:"), 16) != Ok(0) {
            return Some(field("Name:").to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_refused() {
        let error = look_up(Some("no-such-user-here"), None).unwrap_err();
        assert_eq!(error.to_string(), "--user no-such-user-here: no such user; see `getent passwd`");
        let error = look_up(None, Some("no-such-group-here")).unwrap_err();
        assert_eq!(error.to_string(), "--group no-such-group-here: no such group; see `getent group`");
        // nobody gave an option for an application's
        let error = look_up_for(Asked::Application("a"), Some("no-such-user-here"), None).unwrap_err();
        assert_eq!(error.to_string(), "application a: user no-such-user-here: no such user; see `getent passwd`");
        assert!(look_up(None, None).unwrap().is_none());
        // a user without an entry would keep the group that started the server
        let error = look_up(Some("3999999999"), None).unwrap_err();
        assert_eq!(error.to_string(), "--user 3999999999: it has no entry in passwd; give --group, too");
    }

    #[test]
    fn the_user_that_one_is_can_always_be_named() {
        let me = Uid::current().as_raw();
        let identity = look_up(Some(&me.to_string()), Some(&Gid::current().as_raw().to_string())).unwrap().unwrap();
        assert_eq!(identity.ids(), (me, Gid::current().as_raw()));
    }
}
