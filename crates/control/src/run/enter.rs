//! What a process becomes before it executes an application's program.

use super::keep::EnterCommand;
use crate::error::{Error, reason};
use crate::privileges::{self, Identity};
use crate::sandbox;
use bpf::kernel_before;
use guard::{GRANT_VARIABLE, Granted, jail};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal, getppid, getrlimit, getuid, setrlimit};
use rustix::thread::{CpuSet, UnshareFlags};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Who an application is when nobody says, where the server is started as root: `nobody`.
const NOBODY: &str = "65534";
/// Descriptors that an application may have.
const DESCRIPTORS: u64 = 1024;
/// How soon the kernel ends it when memory runs out: before everything that has not the same. Any process may say so of itself.
const ENDED_FIRST: &str = "1000";

/// Who an application is.
///
/// # Errors
/// No such user; `whose` says in the message of whom that was asked.
pub(super) fn identity(user: Option<&str>, whose: &str) -> Result<Option<Identity>, Error> {
    let user = user.or(rustix::process::geteuid().is_root().then_some(NOBODY));
    // a bare number has no entry in passwd, or may have none
    let group = user.filter(|user| *user == NOBODY);
    privileges::look_up_for(privileges::Asked::Application(whose), user, group)
}

/// Becomes the application and executes the program.
///
/// # Errors
/// What kept it from that.
pub(crate) fn enter(command: &EnterCommand) -> Result<String, Error> {
    let refused = |what: &str, error: &dyn std::fmt::Display| Error::environment(format!("enter-app: {what}: {error}"));
    let identity = identity(command.user.as_deref(), &command.name)?;
    identity.iter().try_for_each(Identity::can_be_become)?;
    be_ended_first().map_err(|error| refused("/proc/self/oom_score_adj", &error))?;
    limit(Resource::Core, 0).map_err(|error| refused("limits", &error))?;
    limit(Resource::Nofile, DESCRIPTORS).map_err(|error| refused("limits", &error))?;
    let granted = Granted::decode(&command.grant).map_err(|why| Error::input(format!("enter-app: {why}")))?;
    granted.withhold_others().map_err(|error| refused("descriptors", &error))?;
    let nice =
        command.nice.parse().map_err(|_| Error::input(format!("enter-app: --nice {} is no number", command.nice)))?;
    rustix::process::nice(nice).map_err(|error| refused("nice", &error))?;
    let cpus = command.cpus.as_ref().map_or(&[][..], |cpus| &cpus.0);
    stay_on(cpus).map_err(|error| refused("processors", &error))?;
    let lacks = isolate(identity.as_ref())?;
    limit(Resource::As, command.memory_bytes).map_err(|error| refused("limits", &error))?;
    if lacks.namespace.is_none() {
        limit(Resource::Nproc, command.threads).map_err(|error| refused("limits", &error))?;
    }
    // behind the change of user, which clears it; a keeper that ends takes the program along
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| refused("prctl", &error))?;
    // and one that has ended already never will
    if !is_kept(io::stdin()).map_err(|error| refused("its keeper", &error))? {
        return Err(Error::environment("enter-app: its keeper has ended"));
    }
    report(&lacks).map_err(|error| refused("its keeper", &error))?;
    sandbox::confine_application();
    // with one processor, or with all, there is nothing to choose
    jail::outer(cpus.len() > 1).map_err(|error| refused("the filter of system calls", &error))?;
    let mut program = Command::new(&command.program[0]);
    program.args(&command.program[1..]).env_clear().env(GRANT_VARIABLE, &command.grant);
    program.envs(
        ["PATH", "LANG", "RUST_BACKTRACE", "SIMOOM_LOG"]
            .iter()
            .filter_map(|name| Some((name, std::env::var_os(name)?))),
    );
    let error = program.exec();
    Err(Error::environment(format!("{}: {}; see the program after --", command.program[0], reason(&error))))
}

/// So much, or what there is where that is less already: to have more takes a privilege.
fn limit(resource: Resource, most: u64) -> rustix::io::Result<()> {
    let most = getrlimit(resource).maximum.map_or(most, |has| has.min(most));
    setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
}

fn be_ended_first() -> io::Result<()> {
    // the file is root's where capabilities have come with the program's file
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable);
    std::fs::write("/proc/self/oom_score_adj", ENDED_FIRST)
}

/// What could not be had for an application.
#[derive(Debug, Default)]
struct Lacks {
    user: Option<&'static str>,
    network: Option<&'static str>,
    /// where its threads are counted apart from all others of its user
    namespace: Option<&'static str>,
}

/// Becomes the user, without a privilege, in a network namespace without a device, and in a namespace of users, in which there is none.
/// Either kind may be refused to whom is not root, or be used up.
fn isolate(identity: Option<&Identity>) -> Result<Lacks, Error> {
    let network = UnshareFlags::NEWNET | UnshareFlags::NEWIPC;
    let (was_root, was) = (rustix::process::geteuid().is_root(), getuid().as_raw());
    let by_privilege = unshare(network);
    // before the namespace of users, in which there is no other one to become
    privileges::drop_all(identity)?;
    let namespace = unshare(UnshareFlags::NEWUSER);
    // who makes one has every privilege in it
    let in_there = by_privilege.or_else(|_| unshare(network));
    privileges::drop_all(None)?;
    if let (true, Err(error)) = (was_root, in_there) {
        return Err(Error::environment(format!("enter-app: network namespace: {error}")));
    }
    Ok(Lacks {
        user: identity.is_none_or(|identity| identity.ids().0 == was).then_some("user of its own"),
        // the filter of system calls alone keeps it from the network
        network: in_there.err().map(|_| "network namespace"),
        // processes of a user are counted in each namespace by itself since Linux 5.14; before, other applications of the same user, or the
        // server's own threads, would be counted, too
        namespace: (namespace.is_err() || kernel_before(5, 14)).then_some("bound for its threads"),
    })
}

#[allow(deprecated, reason = "what replaces it is for flags that are not used here, and is no function for this crate")]
fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(flags)
}

/// Whether the keeper is there still: who made both ends of the standard input is the parent of this process until it ends.
fn is_kept(input: impl AsFd) -> rustix::io::Result<bool> {
    Ok(getppid() == Some(socket_peercred(input)?.pid))
}

/// Tells the keeper, at the other end of the standard input, what could not be had, and puts nothing in its place.
fn report(lacks: &Lacks) -> io::Result<()> {
    let words: Vec<_> = [lacks.user, lacks.network, lacks.namespace].into_iter().flatten().collect();
    let keeper = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    // which may have waited for it in vain: the program is to run all the same
    let _ = File::from(keeper).write_all(format!("{}\n", words.join(", ")).as_bytes());
    Ok(nix::unistd::dup2_stdin(File::open("/dev/null")?)?)
}

/// Has this process, and what it becomes, run on these processors alone, if there are any.
fn stay_on(cpus: &[usize]) -> rustix::io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    if cpus.iter().any(|cpu| *cpu >= CpuSet::MAX_CPU) {
        return Err(rustix::io::Errno::INVAL);
    }
    cpus.iter().for_each(|cpu| set.set(*cpu));
    rustix::thread::sched_setaffinity(None, &set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_keeper_is_the_parent_that_made_the_standard_input() {
        // it was made by this process, whose parent is another
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert_eq!(is_kept(&theirs), Ok(false));
        drop(ours);
        assert_eq!(is_kept(&theirs), Ok(false));
        assert_eq!(is_kept(File::open("/dev/null").unwrap()), Err(rustix::io::Errno::NOTSOCK));
    }
}
