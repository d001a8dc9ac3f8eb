//! The process that keeps an application's process.

use super::output::Output;
use crate::error::{Error, how_ended, reason};
use crate::privileges;
use crate::words::Cpus;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How long a process may take to become the application; less than the server waits for the answer.
const BECOMES_WITHIN: Duration = Duration::from_secs(5);
/// How long the last words of one that has ended may take to be passed on; where nobody reads the log, they never are. Less than the server waits
/// for a keeper's end.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// The longest line that is listened to: whoever says more is no part of ours.
const LINE_BYTES: u64 = 4096;
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

/// The keeper: starts the program when it is told, says when it has ended, and ends it with whoever tells. What the program writes, threads
/// of their own pass on to the server's log: where that stands still, this one hears what it is told all the same.
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
    let output = Output::new(&command.name);
    let mut program = None::<Program>;
    let said = |line: &str| {
        let mut output = io::stdout().lock();
        writeln!(output, "{line}").and_then(|()| output.flush())
    };
    let mut input = BufReader::new(File::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?));
    loop {
        let heard = wait(&input, program.as_ref());
        if let Some(status) = program.as_mut().and_then(Program::has_ended) {
            program = None;
            if said(&format!("ended {}", how_ended(status))).is_err() {
                break;
            }
        }
        if !heard {
            continue;
        }
        let mut line = String::new();
        if input.by_ref().take(LINE_BYTES).read_line(&mut line).unwrap_or(0) == 0 {
            break;
        }
        let answer = match (line.trim(), &program) {
            ("start", None) => match start(command, &output) {
                Ok((started, lacks)) => {
                    let answer = format!("started {} {lacks}", started.child.id());
                    program = Some(started);
                    answer
                }
                Err(error) => format!("failed {}", reason(&error)),
            },
            ("kill", Some(program)) => {
                program.kill();
                continue;
            }
            ("kill", None) => continue,
            _ => "failed it runs already".to_owned(),
        };
        if said(&answer).is_err() {
            break;
        }
    }
    if let Some(mut program) = program {
        program.kill();
        let _ = program.child.wait();
        let within = Timespec::try_from(LAST_WORDS).ok();
        let _ = poll(&mut [PollFd::new(&program.passed_on, PollFlags::IN)], within.as_ref());
    }
    Ok(String::new())
}

/// A program that was started.
struct Program {
    child: Child,
    pidfd: OwnedFd,
    /// hangs up when all that it has written is passed on
    passed_on: PipeReader,
    /// how it has ended, and until when its last words are waited for
    ended: Option<(ExitStatus, Instant)>,
}

impl Program {
    /// What comes of it next, and until when it is waited for.
    fn next(&self) -> (BorrowedFd<'_>, Option<Instant>) {
        match self.ended {
            None => (self.pidfd.as_fd(), None),
            Some((_, until)) => (self.passed_on.as_fd(), Some(until)),
        }
    }

    /// How it has ended, once that is to be told: behind its last words, so that they stand before in the log.
    fn has_ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            let status = self.child.try_wait().ok().flatten();
            self.ended = status.map(|status| (status, Instant::now() + LAST_WORDS));
        }
        let (status, until) = self.ended?;
        let none = Timespec::default();
        let is_passed_on = poll(&mut [PollFd::new(&self.passed_on, PollFlags::IN)], Some(&none)).unwrap_or(0) > 0;
        (is_passed_on || Instant::now() >= until).then_some(status)
    }

    /// One that has just ended is told as such.
    fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// Waits for a word of the server's, or for what comes of the program; whether there is a word.
fn wait(input: &BufReader<File>, program: Option<&Program>) -> bool {
    // behind one that was read may stand another, of which the kernel knows no more
    if !input.buffer().is_empty() {
        return true;
    }
    let (next, until) = program.map(Program::next).unzip();
    let left = until.flatten().map(|until| until.saturating_duration_since(Instant::now()));
    let within = left.and_then(|left| Timespec::try_from(left).ok());
    let mut both = vec![PollFd::new(input.get_ref(), PollFlags::IN)];
    both.extend(next.map(|next| PollFd::from_borrowed_fd(next, PollFlags::IN)));
    // interrupted is nothing heard yet
    poll(&mut both, within.as_ref()).is_ok() && !both[0].revents().is_empty()
}

/// The program, and what could not be had for it.
fn start(command: &EnterCommand, output: &Output) -> io::Result<(Program, String)> {
    let (report, theirs) = UnixStream::pair()?;
    let (written, passed_on) = output.begin()?;
    let mut launcher = crate::child::ourselves();
    launcher.arg("enter-app").args(command.arguments());
    launcher.stdin(OwnedFd::from(theirs)).stdout(written.try_clone()?).stderr(written);
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
    // one that ends before has nothing to say, and one that takes longer goes on unheard
    let _ = report.set_read_timeout(Some(BECOMES_WITHIN));
    let _ = BufReader::new(report.take(LINE_BYTES)).read_line(&mut lacks);
    Ok((Program { child, pidfd, passed_on, ended: None }, lacks.trim().to_owned()))
}

fn give_up_all_but_kept() -> io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    let has = rustix::thread::capabilities(None)?;
    privileges::bound(has.effective, KEPT);
    let left = has.permitted & KEPT;
    Ok(rustix::thread::set_capabilities(None, CapabilitySets { effective: left, permitted: left, inheritable: left })?)
}
