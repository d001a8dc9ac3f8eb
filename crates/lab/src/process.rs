//! Child processes that do not outlive the test: each in a process group of its own, its output in a file.

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

/// How long a process has between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(30);
/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(20);

static INTERRUPT: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on every wait for a process fails once `flag` is set (by a signal's handler), so that the program that waits ends in
/// order and takes its processes and namespaces along. The first flag counts.
pub fn interrupt_by(flag: Arc<AtomicBool>) {
    let _ = INTERRUPT.set(flag);
}

/// Fails once the flag of [`interrupt_by`] is set; for loops of the caller's own.
pub fn uninterrupted() -> Result<()> {
    match INTERRUPT.get() {
        Some(flag) if flag.load(Ordering::Relaxed) => bail!("interrupted"),
        _ => Ok(()),
    }
}

/// A running program with everything it started. Dropping it ends the whole process group: SIGTERM, then SIGKILL.
#[derive(Debug)]
pub struct Process {
    child: Child,
    group: Pid,
    name: String,
    // keeps the directory of `log` alive
    _dir: tempfile::TempDir,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with standard output and error going to a log of its own and nothing to read. A program whose main thread starts
    /// it takes it along even when it is killed.
    pub fn spawn(mut command: Command) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("simoom-lab-").tempdir()?;
        let log = dir.path().join("log");
        let out = File::create(&log)?;
        let name = format!("{command:?}");
        // the signal comes when the thread that started it ends, not the process: of any other thread's that may be long before
        if rustix::thread::gettid() == rustix::process::getpid() && crate::missing(&["setpriv"]).is_none() {
            command = ended_with_us(&command);
        }
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let group = Pid::from_raw(i32::try_from(child.id())?).context("a child has no process id")?;
        Ok(Self { child, group, name, _dir: dir, log })
    }

    /// The process's id, which is its group's as well.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What the program wrote so far, standard output and error together.
    pub fn log(&self) -> String {
        let mut text = Vec::new();
        if let Ok(mut file) = File::open(&self.log) {
            let _ = file.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The exit status if the program has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends one signal to the whole group.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.group, signal);
    }

    /// Waits until `probe` holds; fails with the log when the program ends first or `timeout` passes.
    pub fn wait_until(&mut self, mut probe: impl FnMut() -> bool, timeout: Duration) -> Result<()> {
        let end = Instant::now() + timeout;
        loop {
            if probe() {
                return Ok(());
            }
            uninterrupted()?;
            if let Some(status) = self.ended() {
                bail!("{} ended ({status}):\n{}", self.name, self.log());
            }
            if Instant::now() > end {
                bail!("{} is not ready after {timeout:?}:\n{}", self.name, self.log());
            }
            sleep(POLL);
        }
    }

    /// Waits until the log holds `words`; fails as [`Self::wait_until`] does.
    pub fn wait_for(&mut self, words: &str, timeout: Duration) -> Result<()> {
        let log = self.log.clone();
        let said = || std::fs::read(&log).is_ok_and(|log| String::from_utf8_lossy(&log).contains(words));
        self.wait_until(said, timeout).with_context(|| format!("waiting for {words:?}"))
    }

    /// Waits for the program to end by itself.
    pub fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(status) = self.ended() {
                return Ok(status);
            }
            uninterrupted()?;
            if Instant::now() > end {
                bail!("{} still runs after {timeout:?}:\n{}", self.name, self.log());
            }
            sleep(POLL);
        }
    }

    /// Ends the group and returns how the program ended: by itself after SIGTERM, or by SIGKILL.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        let end = Instant::now() + GRACE;
        let mut status = None;
        while Instant::now() < end {
            status = status.or_else(|| self.ended());
            if status.is_some() && test_kill_process_group(self.group).is_err() {
                break;
            }
            sleep(POLL);
        }
        self.signal(Signal::KILL);
        status.or_else(|| self.child.wait().ok()).unwrap_or_else(|| ExitStatus::from_raw(0))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The same command, which has SIGTERM when the thread that starts it ends (PR_SET_PDEATHSIG, prctl(2)): `setpriv` asks for that and
/// becomes the command.
fn ended_with_us(command: &Command) -> Command {
    let mut ended = Command::new("setpriv");
    ended.args(["--pdeathsig", "TERM", "--"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => ended.env(name, value),
            None => ended.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        ended.current_dir(folder);
    }
    ended
}

/// A wait with a timeout, taken up again when whoever waits was stopped meanwhile and goes on, which ends it (signal(7)).
pub fn patiently<T>(mut wait: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match wait() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Looks at `probe` until it holds; false if `timeout` passes first.
pub fn wait_until(mut probe: impl FnMut() -> bool, timeout: Duration) -> bool {
    let end = Instant::now() + timeout;
    loop {
        if probe() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        sleep(POLL);
    }
}

/// Runs a program to its end and returns what it wrote to standard output; an error holds both outputs.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let done = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {command:?}"))?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    if !done.status.success() {
        bail!("{command:?} failed ({}): {text}{}", done.status, String::from_utf8_lossy(&done.stderr));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_ends_the_whole_group() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo child $!; wait"]);
        let mut process = Process::spawn(command).unwrap();
        process.wait_until(|| true, Duration::from_secs(1)).unwrap();
        assert!(wait_until(|| process.log().contains("child "), Duration::from_secs(5)), "{}", process.log());
        let group = process.group;
        assert!(test_kill_process_group(group).is_ok());
        drop(process);
        assert!(wait_until(|| test_kill_process_group(group).is_err(), Duration::from_secs(5)));
    }

    #[test]
    fn a_command_stays_what_it_is_when_it_ends_with_its_starter() {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $0 $PPID $(pwd) $A${HOME-none}", "x y"])
            .env("A", "1")
            .env_remove("HOME")
            .current_dir("/");
        let mut process = Process::spawn(ended_with_us(&command)).unwrap();
        assert!(process.wait(Duration::from_secs(5)).unwrap().success(), "{}", process.log());
        // setpriv has become it: it is our own child
        assert_eq!(process.log(), format!("x y {} / 1none\n", std::process::id()));
        // and of a thread that ends, when it is there
        let start = || {
            let mut command = Command::new("sh");
            command.args(["-c", "echo started; exec sleep 1000"]);
            let mut process = Process::spawn(ended_with_us(&command)).unwrap();
            process.wait_for("started", Duration::from_secs(5)).unwrap();
            process
        };
        let mut process = std::thread::spawn(start).join().unwrap();
        let ended = process.wait(Duration::from_secs(5)).unwrap();
        assert_eq!(ended.signal(), Some(Signal::TERM.as_raw()));
    }

    #[test]
    fn an_early_end_shows_the_log() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo because >&2; exit 3"]);
        let mut process = Process::spawn(command).unwrap();
        let error = process.wait_until(|| false, Duration::from_secs(5)).unwrap_err().to_string();
        assert!(error.contains("because") && error.contains('3'), "{error}");
    }
}
