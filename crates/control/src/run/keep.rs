//! The process that keeps an application's process.

use super::output::Output;
use crate::error::{Error, how_ended, reason};
use crate::privileges;
use crate::words::Cpus;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How long a process may take to become the application; less than the server waits for the answer.
const BECOMES_WITHIN: Duration = Duration::from_secs(5);
/// What the keeper needs: to become the application's user and to end it, and a network namespace for it.
const KEPT: CapabilitySet = CapabilitySet::SETUID
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SYS_ADMIN);

/// `simoom keep-app` and `simoom enter-app`.
#[derive(Clone, Debug, clap::Args)]
pub struct EnterCommand {
    /// What the application is called
    #[arg(long, value_name = "NAME")]
    pub(super) name: String,
    /// The user that the program runs as
    #[arg(long, value_name = "NAME")]
    pub(super) user: Option<String>,
    /// How much nicer than the server it is
    #[arg(long, value_name = "N", default_value = "0")]
    pub(super) nice: String,
    /// The processors that it runs on, such as 0,2; without, all
    #[arg(long, value_name = "LIST")]
    pub(super) cpus: Option<Cpus>,
    /// Most bytes that it may map
    #[arg(long, value_name = "N")]
    pub(super) memory_bytes: u64,
    /// Most threads that it may have
    #[arg(long, value_name = "N")]
    pub(super) threads: u64,
    /// What it is granted
    #[arg(long, value_name = "GRANT")]
    pub(super) grant: String,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, last = true)]
    pub(super) program: Vec<String>,
}

impl EnterCommand {
    pub(super) fn arguments(&self) -> Vec<String> {
        let mut all = Vec::new();
        // in one piece: a value may begin like an option
        let mut add = |name: &str, value: &str| all.push(format!("{name}={value}"));
        add("--name", &self.name);
        if let Some(user) = &self.user {
            add("--user", user);
        }
        if let Some(cpus) = &self.cpus {
            add("--cpus", &cpus.0.iter().map(usize::to_string).collect::<Vec<_>>().join(","));
        }
        add("--nice", &self.nice);
        add("--memory-bytes", &self.memory_bytes.to_string());
        add("--threads", &self.threads.to_string());
        add("--grant", &self.grant);
        all.push("--".to_owned());
        all.extend_from_slice(&self.program);
        all
    }
}

/// The keeper: starts the program when it is told, says when it has ended, and ends it with whoever tells. What the program writes it
/// passes on to the server's log.
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
    let mut output = Output::open(&command.name).map_err(failed)?;
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
            let (waits, within) = output.waits(Instant::now());
            both.extend(waits.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
            if poll(&mut both, within.as_ref()).is_err() {
                continue;
            }
            !both[0].revents().is_empty()
        };
        output.pass_on(Instant::now());
        if let Some((running, _)) = &mut child
            && let Ok(Some(status)) = running.try_wait()
        {
            child = None;
            output.finish(Instant::now());
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
            ("start", None) => match start(command, &output) {
                Ok((started, lacks)) => {
                    let answer = format!("started {} {lacks}", started.0.id());
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
        output.finish(Instant::now());
    }
    Ok(String::new())
}

/// The process, and what could not be had for it.
fn start(command: &EnterCommand, output: &Output) -> io::Result<((Child, OwnedFd), String)> {
    let (report, theirs) = UnixStream::pair()?;
    let mut launcher = Command::new("/proc/self/exe");
    launcher.arg("enter-app").args(command.arguments());
    launcher.stdin(OwnedFd::from(theirs)).stdout(output.end()?).stderr(output.end()?);
    let mut child = launcher.spawn()?;
    // the child has its copies
    drop(launcher);
    let pidfd = match pidfd_open(rustix::process::Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(error) => {
            // without a descriptor nobody would hear of its end
            child.kill()?;
            child.wait()?;
            return Err(error.into());
        }
    };
    let mut lacks = String::new();
    // one that ends before, or hangs, has nothing to say
    let _ = report.set_read_timeout(Some(BECOMES_WITHIN));
    let _ = BufReader::new(report).read_line(&mut lacks);
    Ok(((child, pidfd), lacks.trim().to_owned()))
}

fn give_up_all_but_kept() -> io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    let has = rustix::thread::capabilities(None)?;
    let left = has.permitted & KEPT;
    Ok(rustix::thread::set_capabilities(None, CapabilitySets { effective: left, permitted: left, inheritable: left })?)
}
