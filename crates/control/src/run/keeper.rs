//! The server's end of a keeper.

use super::keep::EnterCommand;
use crate::error::reason;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How long a keeper may take to do what it is told.
const PATIENCE: Duration = Duration::from_secs(10);

/// The server's end. Dropping it ends the application.
#[derive(Debug)]
pub(super) struct Keeper {
    child: Child,
    /// None once it is dropped
    socket: Option<BufReader<UnixStream>>,
    line: String,
    program: Program,
}

/// A program that was started.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Started {
    /// its process
    pub(super) pid: u32,
    /// what could not be had for it, in words
    pub(super) lacks: String,
}

impl Started {
    fn parse(line: &str) -> Option<Started> {
        let (pid, lacks) = line.strip_prefix("started ")?.split_once(' ').unwrap_or((&line["started ".len()..], ""));
        Some(Started { pid: pid.parse().ok()?, lacks: lacks.to_owned() })
    }
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
    /// Starts a keeper of what this command says, which passes these descriptors on.
    pub(super) fn spawn<'a>(
        entered: &EnterCommand,
        descriptors: impl Iterator<Item = BorrowedFd<'a>>,
    ) -> Result<Keeper, String> {
        let failed = |error: io::Error| reason(&error);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let (input, output) = (OwnedFd::from(theirs.try_clone().map_err(failed)?), OwnedFd::from(theirs));
        let mut command = crate::child::ourselves();
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

    /// One whose part is played by whoever has the other end of its socket.
    #[cfg(test)]
    pub(super) fn played() -> (Keeper, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let child = std::process::Command::new("true").spawn().unwrap();
        (Keeper { child, socket: Some(BufReader::new(ours)), line: String::new(), program: Program::Ended }, theirs)
    }

    fn tell(&mut self, line: &str) -> Result<(), String> {
        let socket = self.socket.as_mut().ok_or("its keeper has ended")?;
        writeln!(socket.get_mut(), "{line}").map_err(|error| format!("its keeper: {}", reason(&error)))
    }

    /// Starts the program, or says why it could not be started now. It may be later.
    pub(super) fn start(&mut self) -> Result<Result<Started, String>, String> {
        // one that answered too late is heard at the next attempt
        if self.program == Program::Ended {
            self.tell("start")?;
            self.program = Program::Asked;
        }
        let Some(line) = self.line_within(PATIENCE)? else { return Ok(Err("its keeper does not answer".into())) };
        let started = Started::parse(&line);
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
                let left = Timespec::try_from(left).ok();
                let mut one = [PollFd::from_borrowed_fd(socket.get_ref().as_fd(), PollFlags::IN)];
                // interrupted is nothing heard yet
                if poll(&mut one, left.as_ref()).unwrap_or(0) == 0 {
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
        crate::child::wait(&mut self.child, PATIENCE);
    }
}
