//! The process that keeps an application's process, and what that one becomes.

use crate::error::{Error, how_ended, reason};
use crate::words::Cpus;
use crate::{privileges, sandbox};
use guard::{GRANT_VARIABLE, Granted, jail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use rustix::process::{PidfdFlags, Resource, Rlimit, Signal, pidfd_open, pidfd_send_signal, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, CpuSet, UnshareFlags};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How long a keeper may take to do what it is told.
const PATIENCE: Duration = Duration::from_secs(10);
/// Who an application is when nobody says, where the server is started as root: `nobody`.
const NOBODY: &str = "65534";
/// Descriptors that an application may have.
const DESCRIPTORS: u64 = 1024;
/// What the keeper needs: to become the application's user and to end it, and a network namespace for it.
const KEPT: CapabilitySet = CapabilitySet::SETUID
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SYS_ADMIN);

/// `simoom keep-app` and `simoom enter-app`.
#[derive(Clone, Debug, clap::Args)]
pub struct EnterCommand {
    /// The user that the program runs as
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// How much nicer than the server it is
    #[arg(long, value_name = "N", default_value = "0")]
    nice: String,
    /// The processors that it runs on, such as 0,2; without, all
    #[arg(long, value_name = "LIST")]
    cpus: Option<Cpus>,
    /// What it is granted
    #[arg(long, value_name = "GRANT")]
    grant: String,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, last = true)]
    program: Vec<String>,
}

impl EnterCommand {
    fn arguments(&self) -> Vec<String> {
        let list = |cpus: &Cpus| cpus.0.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let cpus = self.cpus.as_ref().map(list);
        let user = self.user.iter().flat_map(|user| ["--user", user]);
        let cpus = cpus.iter().flat_map(|cpus| ["--cpus", cpus]);
        let rest = ["--nice", &self.nice, "--grant", &self.grant, "--"];
        let program = self.program.iter().map(String::as_str);
        user.chain(cpus).chain(rest).chain(program).map(str::to_owned).collect()
    }
}

/// The keeper: starts the program when it is told, says when it has ended, and ends it with whoever tells.
///
/// # Errors
/// What kept it from keeping.
pub(crate) fn keep(command: &EnterCommand) -> Result<String, Error> {
    let failed = |error: io::Error| Error::environment(format!("keep-app: {}", reason(&error)));
    // whoever ends the server by a signal to all its processes wants its last words first
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).map_err(failed)?;
    }
    give_up_all_but_kept().map_err(failed)?;
    privileges::close_to_others();
    let mut child = None::<(Child, OwnedFd)>;
    let said = |line: &str| {
        let mut output = io::stdout().lock();
        writeln!(output, "{line}").and_then(|()| output.flush())
    };
    let mut input = io::stdin().lock();
    loop {
        let heard = {
            let mut both = vec![PollFd::new(&input, PollFlags::IN)];
            both.extend(child.iter().map(|(_, pidfd)| PollFd::new(pidfd, PollFlags::IN)));
            if poll(&mut both, None).is_err() {
                continue;
            }
            !both[0].revents().is_empty()
        };
        if let Some((running, _)) = &mut child
            && let Ok(Some(status)) = running.try_wait()
        {
            child = None;
            if said(&format!("ended {}", how_ended(status))).is_err() {
                break;
            }
        }
        if !heard {
            continue;
        }
        let mut line = String::new();
        if input.read_line(&mut line).unwrap_or(0) == 0 {
            break;
        }
        let answer = match (line.trim(), &mut child) {
            ("start", None) => match start(command) {
                Ok(started) => {
                    let answer = format!("started {}", started.0.id());
                    child = Some(started);
                    answer
                }
                Err(error) => format!("failed {}", reason(&error)),
            },
            ("kill", Some((_, pidfd))) => {
                // one that has just ended is told as such
                let _ = pidfd_send_signal(pidfd, Signal::KILL);
                continue;
            }
            ("kill", None) => continue,
            _ => "failed it runs already".to_owned(),
        };
        if said(&answer).is_err() {
            break;
        }
    }
    if let Some((mut running, pidfd)) = child {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        let _ = running.wait();
    }
    Ok(String::new())
}

fn start(command: &EnterCommand) -> io::Result<(Child, OwnedFd)> {
    let stderr = rustix::io::fcntl_dupfd_cloexec(io::stderr(), 3)?;
    let mut launcher = Command::new("/proc/self/exe");
    launcher.arg("enter-app").args(command.arguments()).stdin(Stdio::null()).stdout(Stdio::from(stderr));
    let mut child = launcher.spawn()?;
    match pidfd_open(rustix::process::Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(pidfd) => Ok((child, pidfd)),
        Err(error) => {
            // without a descriptor nobody would hear of its end
            child.kill()?;
            child.wait()?;
            Err(error.into())
        }
    }
}

fn give_up_all_but_kept() -> io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    let has = rustix::thread::capabilities(None)?;
    let left = has.permitted & KEPT;
    Ok(rustix::thread::set_capabilities(None, CapabilitySets { effective: left, permitted: left, inheritable: left })?)
}

/// Becomes the application and executes the program.
///
/// # Errors
/// What kept it from that.
pub(crate) fn enter(command: &EnterCommand) -> Result<String, Error> {
    let is_root = rustix::process::geteuid().is_root();
    let user = command.user.as_deref().or(is_root.then_some(NOBODY));
    let identity = privileges::look_up(user, group_of(user))?;
    let refused = |what: &str, error: &dyn std::fmt::Display| Error::environment(format!("enter-app: {what}: {error}"));
    isolate(is_root).map_err(|error| refused("network namespace", &error))?;
    for (resource, most) in [(Resource::Core, 0), (Resource::Nofile, DESCRIPTORS)] {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(resource, limit).map_err(|error| refused("limits", &error))?;
    }
    let granted = Granted::decode(&command.grant).map_err(|why| Error::input(format!("enter-app: {why}")))?;
    granted.withhold_others().map_err(|error| refused("descriptors", &error))?;
    let nice =
        command.nice.parse().map_err(|_| Error::input(format!("enter-app: --nice {} is no number", command.nice)))?;
    rustix::process::nice(nice).map_err(|error| refused("nice", &error))?;
    let cpus = command.cpus.as_ref().map_or(&[][..], |cpus| &cpus.0);
    stay_on(cpus).map_err(|error| refused("processors", &error))?;
    privileges::drop_all(identity.as_ref())?;
    // behind the change of user, which clears it; a keeper that ends takes the program along
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| refused("prctl", &error))?;
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

/// A bare number has no entry in passwd, or may have none.
fn group_of(user: Option<&str>) -> Option<&str> {
    user.filter(|user| *user == NOBODY)
}

/// A network namespace without a device; one without privileges gets it by a namespace of users, where it may.
#[allow(deprecated, reason = "what replaces it is for flags that are not used here, and is no function for this crate")]
fn isolate(is_root: bool) -> rustix::io::Result<()> {
    let network = UnshareFlags::NEWNET | UnshareFlags::NEWIPC;
    if is_root {
        return rustix::thread::unshare(network);
    }
    // where that is not allowed the filter alone keeps it from the network
    let _ = rustix::thread::unshare(network | UnshareFlags::NEWUSER);
    Ok(())
}

/// The server's end. Dropping it ends the application.
#[derive(Debug)]
pub(super) struct Keeper {
    child: Child,
    /// None once it is dropped
    socket: Option<BufReader<UnixStream>>,
    line: String,
    program: Program,
}

/// What has become of the program, as far as the keeper has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Ended,
    /// the keeper was told to start it and has not answered
    Asked,
    Runs,
}

/// Every error of these is that the keeper is not there any more: nobody else can start the program.
impl Keeper {
    /// Starts a keeper that passes these descriptors on.
    pub(super) fn spawn<'a>(
        user: Option<&str>,
        nice: i32,
        cpus: Option<Cpus>,
        granted: &Granted,
        program: &[String],
        descriptors: impl Iterator<Item = BorrowedFd<'a>>,
    ) -> Result<Keeper, String> {
        let failed = |error: io::Error| reason(&error);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let (input, output) = (OwnedFd::from(theirs.try_clone().map_err(failed)?), OwnedFd::from(theirs));
        let entered = EnterCommand {
            user: user.map(str::to_owned),
            nice: nice.to_string(),
            cpus,
            grant: granted.encode(),
            program: program.to_vec(),
        };
        let mut command = Command::new("/proc/self/exe");
        // a group of its own: what a terminal or a supervisor sends to ours is not meant for it
        command
            .arg("keep-app")
            .args(entered.arguments())
            .stdin(Stdio::from(input))
            .stdout(Stdio::from(output))
            .process_group(0);
        let descriptors: Vec<_> = descriptors.collect();
        let inherit = |flags: FdFlags| {
            descriptors.iter().try_for_each(|descriptor| rustix::io::fcntl_setfd(descriptor.as_fd(), flags))
        };
        // no other thread starts a process now
        inherit(FdFlags::empty()).map_err(|error| error.to_string())?;
        let child = command.spawn().map_err(|error| format!("its keeper cannot be started: {}", reason(&error)));
        inherit(FdFlags::CLOEXEC).map_err(|error| error.to_string())?;
        // the child has its copies
        drop(command);
        Ok(Keeper { child: child?, socket: Some(BufReader::new(ours)), line: String::new(), program: Program::Ended })
    }

    fn tell(&mut self, line: &str) -> Result<(), String> {
        let socket = self.socket.as_mut().ok_or("its keeper has ended")?;
        writeln!(socket.get_mut(), "{line}").map_err(|error| format!("its keeper: {}", reason(&error)))
    }

    /// Starts the program: the number of its process, or why it could not be started now. It may be later.
    pub(super) fn start(&mut self) -> Result<Result<u32, String>, String> {
        // one that answered too late is heard at the next attempt
        if self.program == Program::Ended {
            self.tell("start")?;
            self.program = Program::Asked;
        }
        let Some(line) = self.line_within(PATIENCE)? else { return Ok(Err("its keeper does not answer".into())) };
        let started = line.strip_prefix("started ").and_then(|pid| pid.parse().ok());
        self.program = if started.is_some() { Program::Runs } else { Program::Ended };
        Ok(started.ok_or_else(|| format!("it cannot be started: {}", line.strip_prefix("failed ").unwrap_or(&line))))
    }

    /// Kills the program and waits a while for its end.
    pub(super) fn end(&mut self) -> Result<(), String> {
        self.tell("kill")?;
        self.hear(PATIENCE).map(drop)
    }

    /// How the program has ended, if it has within this time.
    pub(super) fn hear(&mut self, patience: Duration) -> Result<Option<String>, String> {
        let line = self.line_within(patience)?;
        Ok(line.map(|line| {
            self.program = Program::Ended;
            line.strip_prefix("ended ").unwrap_or(&line).to_owned()
        }))
    }

    /// Whether the program is not known to have ended.
    pub(super) fn runs(&mut self) -> Result<bool, String> {
        if self.program == Program::Runs {
            self.hear(Duration::ZERO)?;
        }
        Ok(self.program == Program::Runs)
    }

    fn line_within(&mut self, patience: Duration) -> Result<Option<String>, String> {
        let until = Instant::now() + patience;
        let Keeper { socket, line, .. } = self;
        let socket = socket.as_mut().ok_or("its keeper has ended")?;
        loop {
            if socket.buffer().is_empty() {
                let left = until.saturating_duration_since(Instant::now());
                let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                let mut one = [PollFd::from_borrowed_fd(socket.get_ref().as_fd(), PollFlags::IN)];
                // interrupted is nothing heard yet
                if poll(&mut one, Some(&left)).unwrap_or(0) == 0 {
                    return Ok(None);
                }
            }
            match socket.read_line(line) {
                Ok(0) => return Err("its keeper has ended".into()),
                Ok(_) if line.ends_with('\n') => return Ok(Some(std::mem::take(line).trim_end().to_owned())),
                Ok(_) => {}
                Err(error) => return Err(format!("its keeper: {}", reason(&error))),
            }
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // it ends with the socket, and the program with it
        self.socket = None;
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
