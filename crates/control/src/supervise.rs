//! A supervisor: a process that starts the server as another one, and again when that has crashed.
//!
//! The supervisor is who was started: it has the privileges, serves nothing and reads nothing but its settings and what the server's process says. That one is
//! the same program with the same arguments. It opens everything, leaves the supervisor duplicates of its kernel sockets, drops its
//! privileges and serves. When it ends without being asked to, the next one gets those sockets: the ports stay bound, and what
//! arrives meanwhile waits in the kernel. What AF_XDP takes goes with the process that took it, and is the kernel's until the next one serves.
//!
//! The line between them is a socket that the server has as its standard input: one message at a time, a letter and perhaps
//! descriptors. When it ends, so does whoever is left: a server without its supervisor stops as by a signal.

use crate::error::{Error, how_ended, reason};
use crate::notify;
use crate::serve::Event;
use crate::signals::Stops;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Set for a server that has a supervisor: how often it was started anew.
const VARIABLE: &str = "SIMOOM_SUPERVISED";
/// Descriptors of one message; the kernel takes 253.
const DESCRIPTORS: usize = 64;
/// How long until the next start, at first and at most: it doubles with each that does not serve for [`STEADY`].
const PAUSE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];
const STEADY: Duration = Duration::from_secs(30);

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Word {
    /// here are sockets
    Sockets = b's',
    /// those were all
    All = b'a',
    /// it takes what an earlier one has left: all that it reads is read, and sound
    Takes = b'w',
    /// it serves
    Serving = b'r',
    /// it is about to end, since it was asked to
    Ending = b'e',
    /// it shall stop, as by SIGINT
    Interrupt = b'i',
    /// it shall stop, as by SIGTERM
    Terminate = b't',
}

impl Word {
    fn of(letter: u8) -> Option<Word> {
        use Word::{All, Ending, Interrupt, Serving, Sockets, Takes, Terminate};
        [Sockets, All, Takes, Serving, Ending, Interrupt, Terminate].into_iter().find(|word| *word as u8 == letter)
    }
}

fn say(line: BorrowedFd<'_>, word: Word, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let letter = [word as u8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    rustix::io::retry_on_intr(|| sendmsg(line, &[IoSlice::new(&letter)], &mut ancillary, SendFlags::NOSIGNAL))?;
    Ok(())
}

fn say_sockets(line: BorrowedFd<'_>, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
    sockets.chunks(DESCRIPTORS).try_for_each(|part| say(line, Word::Sockets, part))
}

/// Gives these away: whoever has heard of all of them is the only one that has them, and may close some to bind to their ports anew.
fn hand_over(line: BorrowedFd<'_>, sockets: Vec<OwnedFd>) -> io::Result<()> {
    say_sockets(line, &sockets.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
    drop(sockets);
    say(line, Word::All, &[])
}

/// The next message; None when nobody is there to send one.
fn hear(line: BorrowedFd<'_>) -> io::Result<Option<(Word, Vec<OwnedFd>)>> {
    let mut letter = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut parts = [IoSliceMut::new(&mut letter)];
        match recvmsg(line, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            descriptors.extend(more);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let word = Word::of(letter[0]).ok_or_else(|| io::Error::other("a message that is none of ours"))?;
    Ok(Some((word, descriptors)))
}

fn failed(error: &io::Error) -> Error {
    Error::environment(format!("--supervise: {}", reason(error)))
}

/// The server's end of the line.
#[derive(Debug)]
pub(crate) struct Line {
    socket: OwnedFd,
    restarts: u64,
}

impl Line {
    /// The line to the supervisor; None where there is none.
    ///
    /// # Errors
    /// The kernel's, out of descriptors.
    pub(crate) fn find() -> Result<Option<Line>, Error> {
        let Some(restarts) = std::env::var(VARIABLE).ok().and_then(|restarts| restarts.parse().ok()) else {
            return Ok(None);
        };
        let socket = fcntl_dupfd_cloexec(io::stdin(), 3).map_err(|error| failed(&error.into()))?;
        Ok(Some(Line { socket, restarts }))
    }

    /// The sockets that an earlier server has left, which the supervisor has no more then: a server that ends before leaves them to the next.
    ///
    /// # Errors
    /// The supervisor cannot be heard.
    pub(crate) fn take(&self) -> Result<Vec<OwnedFd>, Error> {
        let line = self.socket.as_fd();
        let mut sockets = Vec::new();
        // one that has ended is not heard either
        let _ = say(line, Word::Takes, &[]);
        loop {
            match hear(line).map_err(|error| failed(&error))? {
                Some((Word::Sockets, more)) => sockets.extend(more),
                Some(_) => return Ok(sockets),
                None => return Err(Error::environment("the supervisor has ended; start simoom again")),
            }
        }
    }

    /// How often the server was started anew.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Leaves the supervisor duplicates of these.
    pub(crate) fn leave<'a>(&self, sockets: impl Iterator<Item = BorrowedFd<'a>>) -> Result<(), Error> {
        let line = self.socket.as_fd();
        let said = say_sockets(line, &sockets.collect::<Vec<_>>()).and_then(|()| say(line, Word::All, &[]));
        said.map_err(|error| failed(&error))
    }

    /// It serves.
    pub(crate) fn is_serving(&self) {
        // one that is gone is noticed by who watches
        let _ = say(self.socket.as_fd(), Word::Serving, &[]);
    }

    /// It ends, since it was asked to: connections shall not wait for another.
    pub(crate) fn is_ending(&self) {
        let _ = say(self.socket.as_fd(), Word::Ending, &[]);
    }

    /// Stops the server when the supervisor says so, and when it ends.
    ///
    /// A service manager that stops us signals every process of ours, and the supervisor passes on what it gets: as another signal that
    /// would be the second, which ends a server at once. So it is a word, and the supervisor's words are counted for themselves.
    ///
    /// # Errors
    /// The kernel's, when the thread cannot be started.
    pub(crate) fn watch(&self, events: Sender<Event>) -> io::Result<()> {
        let socket = self.socket.try_clone()?;
        std::thread::Builder::new().name("supervised".into()).spawn(move || {
            let mut stops = Stops::default();
            while let Ok(Some((word, _))) = hear(socket.as_fd()) {
                let signal = match word {
                    Word::Interrupt => SIGINT,
                    Word::Terminate => SIGTERM,
                    _ => continue,
                };
                // nobody listens only when it is ending already
                let _ = events.send(stops.next(signal));
            }
            // nobody listens only when it is ending already
            let _ = events.send(Event::Stop("the supervisor's end"));
        })?;
        Ok(())
    }
}

/// What the supervisor waits for.
#[derive(Debug)]
enum Happening {
    Signal(Signal),
    Said(Word, Vec<OwnedFd>),
    Ended(io::Result<ExitStatus>),
}

/// Starts the server, and again when it has crashed, until one ends as it was asked to.
///
/// # Errors
/// As the first server ends that does not come to serve; what keeps one from being started.
pub(crate) fn run() -> Result<(), Error> {
    let (happens, happenings) = mpsc::channel();
    pass_signals(happens.clone()).map_err(|error| failed(&error))?;
    let mut supervisor = Supervisor { happens, happenings, stopping: false, held: Vec::new() };
    let (mut restarts, mut pause) = (0, PAUSE[0]);
    loop {
        let begun = Instant::now();
        match supervisor.serve(restarts) {
            Ok(End { pid, status, served }) => {
                if supervisor.stopping && !served && ended_by_signal(status) {
                    // it was too early to take the signal as one that has come to serve does
                    tracing::info!("stopped");
                    return Ok(());
                }
                if supervisor.stopping || status.success() || (restarts == 0 && !served) {
                    return finish(pid, status, restarts == 0 && !served);
                }
                if served && begun.elapsed() >= STEADY {
                    pause = PAUSE[0];
                }
                let (how, pause) = (how_ended(status), pause.as_secs_f64());
                tracing::warn!("server process {pid} has ended: {how}; another is started in {pause:.1} s");
            }
            // a machine that has no memory or no process left has some again later
            Err(error) if restarts > 0 => {
                let (why, pause) = (reason(&error), pause.as_secs_f64());
                tracing::error!("a server process cannot be started: {why}; it is tried again in {pause:.1} s");
            }
            Err(error) => return Err(failed(&error)),
        }
        if supervisor.rest(pause) {
            tracing::info!("stopped");
            return Ok(());
        }
        pause = (2 * pause).min(PAUSE[1]);
        restarts += 1;
    }
}

struct Supervisor {
    happens: Sender<Happening>,
    happenings: Receiver<Happening>,
    /// it was told to end
    stopping: bool,
    /// sockets for the next server
    held: Vec<OwnedFd>,
}

/// How a server ended.
struct End {
    pid: u32,
    status: ExitStatus,
    /// it had come to serve
    served: bool,
}

impl Supervisor {
    /// Has a server serve to its end.
    fn serve(&mut self, restarts: u64) -> io::Result<End> {
        let (ours, child) = start(restarts)?;
        let pid = child.id();
        let (pidfd, line) = listen(ours, child, self.happens.clone())?;
        let (mut served, mut coming, mut reload) = (false, Vec::new(), false);
        loop {
            let happening = match served {
                // from here on it pings by itself
                true => self.happenings.recv().map_err(io::Error::other)?,
                false => match self.next_within(Duration::MAX)? {
                    Some(happening) => happening,
                    None => continue,
                },
            };
            match happening {
                // it may have read what has changed, and it may not
                Happening::Signal(Signal::HUP) if !served => reload = true,
                Happening::Signal(Signal::HUP) => drop(pidfd_send_signal(&pidfd, Signal::HUP)),
                Happening::Signal(signal) => {
                    self.stopping = true;
                    let word = if signal == Signal::INT { Word::Interrupt } else { Word::Terminate };
                    // before it serves nobody there hears a word
                    let _ = match served {
                        true => say(line.as_fd(), word, &[]),
                        false => pidfd_send_signal(&pidfd, signal).map_err(io::Error::from),
                    };
                }
                Happening::Said(Word::Takes, _) => {
                    // no longer ours, until it leaves us those that it has: other settings may want other sockets at the same ports
                    // one that has ended already says so
                    let _ = hand_over(line.as_fd(), std::mem::take(&mut self.held));
                }
                Happening::Said(Word::Sockets, more) => coming.extend(more),
                Happening::Said(Word::All, _) => self.held = std::mem::take(&mut coming),
                Happening::Said(Word::Serving, _) => {
                    served = true;
                    if std::mem::take(&mut reload) {
                        let _ = pidfd_send_signal(&pidfd, Signal::HUP);
                    }
                }
                // whatever becomes of it on its way out
                Happening::Said(Word::Ending, _) => {
                    self.stopping = true;
                    self.held.clear();
                }
                // those are ours
                Happening::Said(Word::Interrupt | Word::Terminate, _) => {}
                Happening::Ended(status) => return Ok(End { pid, status: status?, served }),
            }
        }
    }

    /// What happens next, if it does so within this time. A service manager that waits for a sign of life gets it meanwhile, for there is no
    /// server that would give one.
    fn next_within(&self, most: Duration) -> io::Result<Option<Happening>> {
        let most = match notify::watchdog_interval() {
            Some(interval) => {
                notify::watchdog();
                most.min(interval)
            }
            None => most.min(PAUSE[1]),
        };
        match self.happenings.recv_timeout(most) {
            Ok(happening) => Ok(Some(happening)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Waits so long; true when it is told to end meanwhile.
    fn rest(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.next_within(left) {
                // the next server reads everything anew
                Ok(Some(Happening::Signal(Signal::HUP) | Happening::Said(..) | Happening::Ended(_))) => {}
                Ok(Some(Happening::Signal(_))) | Err(_) => return true,
                Ok(None) if Instant::now() >= until => return false,
                Ok(None) => {}
            }
        }
    }
}

/// Starts a server: our end of its line, and its process.
fn start(restarts: u64) -> io::Result<(OwnedFd, Child)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut command = crate::child::ourselves();
    command.args(std::env::args_os().skip(1));
    // a group of its own: what a terminal sends to ours it gets from us, once
    command.env(VARIABLE, restarts.to_string()).stdin(Stdio::from(theirs)).process_group(0);
    // the manager's variable names us, and it is the server's process that knows whether it lives
    command.env_remove("WATCHDOG_PID");
    Ok((ours, command.spawn()?))
}

/// Tells what a server says, and its end; what it is signalled by, and the line to it. One that cannot be listened to is ended.
fn listen(line: OwnedFd, child: Child, happens: Sender<Happening>) -> io::Result<(OwnedFd, OwnedFd)> {
    let child = Arc::new(Mutex::new(child));
    let listen = || {
        let pidfd = pidfd_open(Pid::from_child(&lock(&child)), PidfdFlags::empty())?;
        let (ours, child) = (line.try_clone()?, child.clone());
        std::thread::Builder::new().name("server".into()).spawn(move || {
            // the supervisor's end is the process's
            while let Ok(Some((word, descriptors))) = hear(ours.as_fd()) {
                let _ = happens.send(Happening::Said(word, descriptors));
            }
            let _ = happens.send(Happening::Ended(lock(&child).wait()));
        })?;
        Ok(pidfd)
    };
    match listen() {
        Ok(pidfd) => Ok((pidfd, line)),
        Err(error) => {
            let mut child = lock(&child);
            // one that has ended already is waited for all the same
            let _ = child.kill().and_then(|()| child.wait());
            Err(error)
        }
    }
}

fn lock(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pass_signals(happens: Sender<Happening>) -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            let signal = match signal {
                SIGHUP => Signal::HUP,
                SIGINT => Signal::INT,
                _ => Signal::TERM,
            };
            let _ = happens.send(Happening::Signal(signal));
        }
    })?;
    Ok(())
}

/// By one of those that are passed on to it.
fn ended_by_signal(status: ExitStatus) -> bool {
    status.signal().is_some_and(|signal| [SIGINT, SIGTERM].contains(&signal))
}

/// Ends as a server has; `at_start`: it never served, and has said why.
fn finish(pid: u32, status: ExitStatus, at_start: bool) -> Result<(), Error> {
    match status.code() {
        Some(0) => Ok(()),
        Some(2) => Err(Error::Input(Vec::new())),
        Some(1) => Err(Error::Environment(Vec::new())),
        _ if at_start => {
            Err(Error::environment(format!("server process {pid} has ended at its start: {}", how_ended(status))))
        }
        // as the shell reports a process that a signal ended
        code => std::process::exit(code.or(status.signal().map(|signal| 128 + signal)).unwrap_or(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use std::net::TcpListener;

    #[test]
    fn sockets_that_were_handed_over_hold_no_port_once_they_are_closed() {
        // on one processor whoever hears a word runs before who said it goes on, some of the time
        let mine = sched_getaffinity(None).unwrap();
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|processor| mine.is_set(*processor)).unwrap());
        sched_setaffinity(None, &one).unwrap();
        for _ in 0..1000 {
            let (ours, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let gives = std::thread::spawn(move || hand_over(ours.as_fd(), vec![listener.into()]).unwrap());
            let (word, sockets) = hear(theirs.as_fd()).unwrap().unwrap();
            assert_eq!((word, sockets.len()), (Word::Sockets, 1));
            assert_eq!(hear(theirs.as_fd()).unwrap().unwrap().0, Word::All);
            drop(sockets);
            TcpListener::bind(address).expect("nobody else has it");
            gives.join().unwrap();
        }
        sched_setaffinity(None, &mine).unwrap();
    }
}
