//! The access log: a thread that takes records from the serving threads' rings and writes them as lines.
//!
//! Serving threads never wait for it: a full ring costs records, which they count. What cannot be written (a full disk) is
//! counted here, and said once until it works again; of a line that was written in part the rest is kept until then. The thread wakes at intervals, short ones while records come, so serving
//! threads have nobody to wake.

mod open;

use crate::config::{self, HostSpec};
use crate::error::{Error, reason};
use crate::privileges::Identity;
use crate::sandbox;
use crate::words::LogFormat;
use base::Counter;
use base::counter::{Figure, Report};
use base::ring::{Consumer, Producer, ring};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use web::log::Record;

/// Records that wait, a thread.
const RECORDS: usize = 8192;
/// How long the thread sleeps after it found something, and the longest when it finds nothing.
const BUSY: Duration = Duration::from_millis(5);
const IDLE: Duration = Duration::from_millis(50);
/// How long the end waits for who reads the last records: a pipe's reader may have stopped reading.
const LAST_RECORDS: Duration = Duration::from_secs(5);
/// Bytes that one write takes about.
const WRITE_BYTES: usize = 64 << 10;

/// What became of lines.
#[derive(Debug, Default)]
struct Counters {
    lines: Counter,
    failed: Counter,
}

impl Report for Counters {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let mut one = |name, help, counter: &Counter| {
            show(Figure { name, help, gauge: false, labels: &[], value: counter.get() });
        };
        one("access_log_lines_total", "lines of the access log that were written", &self.lines);
        one("access_log_failed_total", "lines of the access log that could not be written", &self.failed);
    }
}

/// The serving threads' side, and the thread's handle.
#[derive(Debug)]
pub(crate) struct AccessLog {
    rings: Mutex<Vec<Consumer<Record>>>,
    /// what is written to from now on
    next: Mutex<Option<File>>,
    stop: AtomicBool,
    counters: Arc<Counters>,
    /// of a file: a pipe and a device stay what they are, and nobody moves them away
    path: Option<PathBuf>,
    format: LogFormat,
    /// held for a moment only: who waits for it must not wait for who reads the log
    hosts: Mutex<Arc<Names>>,
}

/// What the virtual hosts are called, by their numbers, which a reload may give to others.
#[derive(Debug)]
struct Names {
    now: Vec<String>,
    /// until `since_unix_ns`; of still older records, which wait while nobody reads the log, it is a guess
    before: Vec<String>,
    since_unix_ns: u64,
}

impl Names {
    /// The name of a host when an answer was made.
    fn of(&self, host: u16, unix_ns: u64) -> &str {
        let then = if unix_ns < self.since_unix_ns { &self.before } else { &self.now };
        then.get(usize::from(host)).map_or("", String::as_str)
    }
}

/// An open log that nobody writes to yet.
#[derive(Debug)]
pub(crate) struct Opened {
    log: Arc<AccessLog>,
    file: Option<File>,
}

/// Opens the log's file; `identity` is who will write to it. A host is called by the first of its names.
///
/// # Errors
/// A file that cannot be written, with the mend.
pub(crate) fn open(
    settings: &config::AccessLog,
    hosts: &[HostSpec],
    identity: Option<&Identity>,
) -> Result<Opened, Error> {
    let wrong = |path: &Path, error: &io::Error| {
        let folder = std::path::absolute(path).ok().and_then(|path| path.parent().map(Path::to_owned));
        let missing = folder.filter(|folder| error.kind() == io::ErrorKind::NotFound && !folder.exists());
        let (shown, why) = (path.display(), reason(error));
        Error::input(match missing {
            // who is to write there has to own it, or the log cannot be opened anew
            Some(folder) => {
                let owner = identity.map_or(String::new(), |identity| format!(" -o {}", identity.ids().0));
                let folder = folder.display();
                format!("access log {shown}: its folder is not there; make it with `install -d{owner} {folder}`")
            }
            None => format!("access log {shown}: cannot be written: {why}; give another"),
        })
    };
    let file = match &settings.path {
        None => None,
        Some(path) => {
            let (file, created) = open::open(path, identity).map_err(|error| wrong(path, &error))?;
            if let (true, Some(identity)) = (created, identity) {
                let (uid, gid) = identity.ids();
                std::os::unix::fs::fchown(&file, Some(uid), Some(gid)).map_err(|error| wrong(path, &error))?;
            }
            Some(file)
        }
    };
    let is_file = file.as_ref().is_some_and(|file| file.metadata().is_ok_and(|is| is.is_file()));
    let log = AccessLog {
        rings: Mutex::default(),
        next: Mutex::default(),
        stop: AtomicBool::new(false),
        counters: Arc::default(),
        path: settings.path.clone().filter(|_| is_file),
        format: settings.format,
        hosts: Mutex::new(Arc::new(Names { now: called(hosts), before: Vec::new(), since_unix_ns: 0 })),
    };
    Ok(Opened { log: Arc::new(log), file })
}

/// What hosts are called.
fn called(hosts: &[HostSpec]) -> Vec<String> {
    hosts.iter().map(|host| host.entry.names.first().cloned().unwrap_or_default()).collect()
}

impl Opened {
    /// The serving threads' side.
    pub(crate) fn log(&self) -> Arc<AccessLog> {
        self.log.clone()
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The kernel's, when the thread cannot be started.
    pub(crate) fn start(self) -> io::Result<Writing> {
        let Opened { log, file } = self;
        let lines = Vec::with_capacity(2 * WRITE_BYTES);
        let mut writer = Writer { log: log.clone(), file, lines, torn: None, failing: false };
        let join = std::thread::Builder::new().name("access-log".into()).spawn(move || writer.run())?;
        Ok(Writing { log, join: Some(join) })
    }
}

impl AccessLog {
    /// A new ring's end for a serving thread.
    pub(crate) fn records(&self) -> Producer<Record> {
        let (producer, consumer) = ring(RECORDS);
        self.rings.lock().unwrap_or_else(PoisonError::into_inner).push(consumer);
        producer
    }

    /// Other hosts are served from now on: to be told as soon as they are, since records of before may wait.
    pub(crate) fn set_hosts(&self, hosts: &[HostSpec]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let since_unix_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let mut names = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        *names = Arc::new(Names { now: called(hosts), before: names.now.clone(), since_unix_ns });
    }

    /// The counters.
    pub(crate) fn counters(&self) -> Arc<dyn Report> {
        self.counters.clone()
    }

    /// Opens the file anew, for whoever has moved the old one away, and has the thread go on with it.
    ///
    /// # Errors
    /// A line that says why that cannot be. The old file is written on.
    pub(crate) fn reopen(&self) -> Result<(), String> {
        let Some(path) = &self.path else { return Ok(()) };
        // held meanwhile: once the file is there, nothing is written to the old one; what is opened is not waited for
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let file = open::open_anew(path).map_err(|error| {
            let (path, why) = (path.display(), sandbox::explain(path, &error));
            format!(
                "access log {path}: cannot be opened anew: {why}; the old file is written on: make the file and its folder the user's that simoom runs as"
            )
        })?;
        *next = Some(file);
        Ok(())
    }
}

/// The running thread. Dropping it writes what waits, and ends it.
#[derive(Debug)]
pub(crate) struct Writing {
    log: Arc<AccessLog>,
    join: Option<JoinHandle<()>>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.log.stop.store(true, Ordering::Release);
        if let Some(join) = self.join.take() {
            join.thread().unpark();
            let until = Instant::now() + LAST_RECORDS;
            while !join.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            if !join.is_finished() {
                // the process takes the thread along
                tracing::warn!(
                    "the last records of the access log are lost: nobody has read it for {} s",
                    LAST_RECORDS.as_secs()
                );
                return;
            }
            // a panic there was shown by the panic hook
            let _ = join.join();
        }
    }
}

/// The thread's own.
struct Writer {
    log: Arc<AccessLog>,
    /// None is stderr
    file: Option<File>,
    lines: Vec<u8>,
    /// how long the file was when it had taken a part of the line that `lines` begin with the rest of
    torn: Option<u64>,
    failing: bool,
}

impl Writer {
    fn run(&mut self) {
        let mut pause = IDLE;
        loop {
            // read before the last look, so what was put in before the end is found
            let last = self.log.stop.load(Ordering::Acquire);
            drop(take_next(&self.log, &mut self.file));
            let found = self.drain();
            if last {
                self.log.counters.failed.add(self.torn.is_some().into());
                return;
            }
            pause = if found { BUSY } else { (pause * 2).min(IDLE) };
            std::thread::park_timeout(pause);
        }
    }

    /// Writes what waits in all rings; whether there was anything.
    fn drain(&mut self) -> bool {
        let log = self.log.clone();
        // neither is held while a line is written, which lasts for as long as a pipe's reader wants: a service that is started again needs
        // a ring, and a reload names hosts
        let mut rings = std::mem::take(&mut *log.rings.lock().unwrap_or_else(PoisonError::into_inner));
        let hosts = log.hosts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut found = false;
        for ring in rings.iter_mut() {
            // no more than was there to begin with: a busy thread must not keep the others waiting
            for _ in 0..ring.waiting(RECORDS) {
                let Some(record) = ring.pop() else { break };
                match log.format {
                    LogFormat::Combined => record.write_combined(&mut self.lines),
                    LogFormat::Json => {
                        record.write_json(hosts.of(record.host, record.unix_ns), &mut self.lines);
                    }
                }
                found = true;
                if self.lines.len() >= WRITE_BYTES {
                    self.flush();
                }
            }
        }
        // those of services that ended in a panic, whose successors have rings of their own
        rings.retain_mut(|ring| !ring.is_finished());
        log.rings.lock().unwrap_or_else(PoisonError::into_inner).append(&mut rings);
        if !self.lines.is_empty() {
            self.flush();
        }
        found
    }

    fn flush(&mut self) {
        // held meanwhile: who opens the file anew waits for what is being written to the old one
        let next = take_next(&self.log, &mut self.file);
        if self.torn.is_some_and(|at| !goes_on(self.file.as_ref(), at)) {
            self.torn = None;
            self.lines.drain(..first_line(&self.lines));
            self.log.counters.failed.add(1);
        }
        let (bytes, outcome) = match &mut self.file {
            Some(file) => write(file, &self.lines),
            None => write(&mut io::stderr().lock(), &self.lines),
        };
        drop(next);
        self.forget(bytes);
        match outcome {
            Ok(()) => {
                if std::mem::take(&mut self.failing) {
                    tracing::info!("access log: writing works again");
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::error!("access log: cannot be written: {}; lines are lost and counted", reason(&error));
                }
            }
        }
    }

    /// Counts the lines, of which so many bytes were written, and keeps the rest of one that was written in part.
    fn forget(&mut self, written: usize) {
        let (taken, left) = self.lines.split_at(written);
        let count = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        let is_torn = taken.last().map_or(self.torn.is_some(), |last| *last != b'\n');
        let counters = &self.log.counters;
        counters.lines.add(count(taken));
        counters.failed.add(count(left) - u64::from(is_torn));
        let kept = if is_torn { first_line(left) } else { 0 };
        self.lines.truncate(written + kept);
        self.lines.drain(..written);
        self.torn = is_torn.then(|| self.file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |is| is.len()));
    }
}

/// Bytes of the first line, with its end.
fn first_line(lines: &[u8]) -> usize {
    lines.iter().position(|byte| *byte == b'\n').map_or(lines.len(), |end| end + 1)
}

/// Writes all of it, or as much as can be; how many bytes.
fn write(to: &mut impl Write, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match to.write(&bytes[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}

/// Whether what is written next stands behind the part of a line with which the file, if it is one, was so long: it may be another by now, or
/// have been emptied to make room. On stderr something else has been said since.
fn goes_on(file: Option<&File>, bytes: u64) -> bool {
    let is = file.and_then(|file| file.metadata().ok());
    is.is_some_and(|is| !is.is_file() || is.len() == bytes)
}

/// Goes on with the file that was opened anew, if there is one; no other is while what this gives is held.
fn take_next<'a>(log: &'a AccessLog, file: &mut Option<File>) -> MutexGuard<'a, Option<File>> {
    let mut next = log.next.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(next) = next.take() {
        *file = Some(next);
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privileges;
    use std::io::Read;

    /// Records come from real requests, made by the service itself in the tests of the command; here only the file's ways.
    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let settings = |path: PathBuf| config::AccessLog { path: Some(path), format: LogFormat::Json };
        let (none, user) = (folder.path().join("none"), privileges::look_up(Some("65534"), Some("65534")).unwrap());
        for (user, owner) in [(None, ""), (user.as_ref(), " -o 65534")] {
            let error = open(&settings(none.join("log")), &[], user).unwrap_err().to_string();
            let mend = format!(": its folder is not there; make it with `install -d{owner} {}`", none.display());
            assert!(error.starts_with("access log ") && error.ends_with(&mend), "{error}");
        }
        let error = open(&settings(folder.path().to_owned()), &[], None).unwrap_err().to_string();
        assert!(error.contains("Is a directory"), "{error}");
    }

    #[test]
    fn a_ring_goes_with_the_service_that_filled_it() {
        let settings = config::AccessLog { path: None, format: LogFormat::Combined };
        let opened = open(&settings, &[], None).unwrap();
        let log = opened.log();
        let (gone, stays) = (log.records(), log.records());
        let mut writer = Writer { log: log.clone(), file: None, lines: Vec::new(), torn: None, failing: false };
        drop(gone);
        assert!(!writer.drain());
        assert_eq!(log.rings.lock().unwrap().len(), 1);
        drop(stays);
    }

    #[test]
    fn a_record_names_the_host_that_had_its_number_then() {
        let settings = config::AccessLog { path: None, format: LogFormat::Json };
        let hosts = |names: &[&str]| -> Vec<HostSpec> {
            let host = |name: &&str| format!("[[web.host]]\nnames = [\"{name}\"]\nroot = \"/\"\n");
            let text: String = names.iter().map(host).collect();
            config::from_text("s", &text).unwrap().web.unwrap().hosts
        };
        let log = open(&settings, &hosts(&["a.example", "b.example"]), None).unwrap().log();
        let names = || log.hosts.lock().unwrap().clone();
        assert_eq!((names().of(0, 0), names().of(1, u64::MAX), names().of(2, 0)), ("a.example", "b.example", ""));
        log.set_hosts(&hosts(&["b.example"]));
        let since = names().since_unix_ns;
        assert_eq!((names().of(0, since - 1), names().of(1, since - 1)), ("a.example", "b.example"));
        assert_eq!((names().of(0, since), names().of(1, since)), ("b.example", ""));
    }

    #[test]
    fn who_opens_the_file_anew_waits_for_a_write_to_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let settings = config::AccessLog { path: Some(folder.path().join("log")), format: LogFormat::Combined };
        let log = open(&settings, &[], None).unwrap().log();
        // instead of the old file what takes no more than a part
        let (mut reader, old) = io::pipe().unwrap();
        let file = Some(File::from(std::os::fd::OwnedFd::from(old)));
        let mut lines = vec![b'x'; 1 << 20];
        lines[(1 << 20) - 1] = b'\n';
        let mut writer = Writer { log: log.clone(), file, lines, torn: None, failing: false };
        let writing = std::thread::spawn(move || writer.flush());
        let mut read = vec![0];
        reader.read_exact(&mut read).unwrap();
        assert!(log.next.try_lock().is_err(), "the file can be opened anew while the old one is written to");
        reader.read_to_end(&mut read).unwrap();
        writing.join().unwrap();
        assert_eq!((read.len(), log.counters.lines.get()), (1 << 20, 1));
        log.reopen().unwrap();
    }

    #[test]
    fn a_line_that_was_written_in_part_is_written_to_its_end() {
        let settings = config::AccessLog { path: None, format: LogFormat::Combined };
        let log = open(&settings, &[], None).unwrap().log();
        let (mut reader, pipe) = io::pipe().unwrap();
        // what is full takes no more, as a disk
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        rustix::io::ioctl_fionbio(&pipe, true).unwrap();
        let file = Some(File::from(std::os::fd::OwnedFd::from(pipe)));
        let mut writer = Writer { log: log.clone(), file, lines: Vec::new(), torn: None, failing: false };
        let (mut read, mut made) = (Vec::new(), 0u64);
        for round in 0..20 {
            // lines of all lengths, more than there is room for
            for _ in 0..3000 {
                let padding = "x".repeat(made as usize % 97);
                writeln!(writer.lines, "{made} {padding} {made}").unwrap();
                made += 1;
            }
            writer.flush();
            assert!(writer.failing);
            // now room for some lines, now for all, and the rest of a line may be all there is
            let mut some = vec![0; if round % 3 == 0 { 4096 } else { 1 << 20 }];
            let n = reader.read(&mut some).unwrap();
            read.extend(&some[..n]);
            if round % 2 == 0 && !writer.lines.is_empty() {
                writer.flush();
                assert!(!writer.failing);
            }
        }
        if !writer.lines.is_empty() {
            writer.flush();
        }
        drop(writer);
        reader.read_to_end(&mut read).unwrap();
        let text = String::from_utf8(read).unwrap();
        let mut after = 0;
        for line in text.lines() {
            let parts: Vec<&str> = line.split(' ').collect();
            let [number, padding, again] = parts[..] else { panic!("{line}") };
            let number: u64 = number.parse().unwrap();
            assert_eq!((number >= after, padding.len() as u64, again), (true, number % 97, parts[0]), "{line}");
            after = number + 1;
        }
        let (lines, failed) = (log.counters.lines.get(), log.counters.failed.get());
        assert_eq!((text.lines().count() as u64, lines + failed), (lines, made));
        assert!(failed > 0 && text.ends_with('\n'));
    }

    #[test]
    fn the_rest_of_a_line_goes_to_no_file_without_its_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let settings = config::AccessLog { path: Some(path.clone()), format: LogFormat::Combined };
        let write_rest = |meanwhile: &dyn Fn(&AccessLog)| {
            std::fs::write(&path, "whole\nin pa").unwrap();
            let Opened { log, file } = open(&settings, &[], None).unwrap();
            let (lines, torn) = (b"rt\nnext\n".to_vec(), Some(11));
            let mut writer = Writer { log: log.clone(), file, lines, torn, failing: true };
            meanwhile(&log);
            writer.flush();
            assert!(writer.lines.is_empty() && writer.torn.is_none() && !writer.failing);
            let (lines, failed) = (log.counters.lines.get(), log.counters.failed.get());
            (std::fs::read_to_string(&path).unwrap(), lines, failed)
        };
        assert_eq!(write_rest(&|_| {}), ("whole\nin part\nnext\n".to_owned(), 2, 0));
        // emptied to make room, or moved away
        let emptied = write_rest(&|_| std::fs::write(&path, "").unwrap());
        assert_eq!(emptied, ("next\n".to_owned(), 1, 1));
        let anew = write_rest(&|log| {
            std::fs::rename(&path, path.with_extension("1")).unwrap();
            log.reopen().unwrap();
        });
        assert_eq!(anew, ("next\n".to_owned(), 1, 1));
    }

    #[test]
    fn the_file_is_private_and_appended_to_and_opened_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, "before\n").unwrap();
        let settings = config::AccessLog { path: Some(path.clone()), format: LogFormat::Combined };
        let opened = open(&settings, &[], None).unwrap();
        let log = opened.log();
        let writing = opened.start().unwrap();
        std::fs::rename(&path, folder.path().join("log.1")).unwrap();
        log.reopen().unwrap();
        assert!(path.exists());
        // one that cannot be made is said, and nothing lost
        std::fs::rename(folder.path(), folder.path().with_extension("moved")).unwrap();
        let said = log.reopen().unwrap_err();
        std::fs::rename(folder.path().with_extension("moved"), folder.path()).unwrap();
        assert!(
            said.contains("cannot be opened anew: No such file or directory; the old file is written on"),
            "{said}"
        );
        drop(writing);
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777 & !0o640, 0);
        assert_eq!(std::fs::read(folder.path().join("log.1")).unwrap(), b"before\n");
    }
}
