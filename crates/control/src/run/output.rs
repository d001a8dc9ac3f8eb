//! What an application writes to its standard output and error.
//!
//! It goes through a pipe to a thread of the keeper, which passes it on to the server's log: each line behind the application's name, so that
//! none is taken for the server's own, without control characters, and only so many of them. The thread reads on when there are more, but not
//! faster than costs it little: who writes without end waits for it, and for nobody else. Where the log takes nothing more, because who reads
//! it stands still, the thread waits, and the application when its pipe is full; the keeper does not.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A longer line is shown as several. Each of its bytes may be shown as six, and behind a name as long as a file's it is still no longer than
/// what a pipe takes in one piece (PIPE_BUF): of a part that stood in a line of its own nobody would know whose it is.
const LINE_BYTES: usize = 600;
/// Lines that are shown at once, and how many more each second: a program that ends with a trace is heard out.
const LINES: u32 = 256;
const LINES_A_SECOND: u32 = 16;
/// Read at once. A pipe holds as much.
const READ_BYTES: usize = 64 << 10;
/// How long nothing is read when lines are left out.
const PAUSE: Duration = Duration::from_millis(10);

/// What an application's processes write, one after the other.
#[derive(Debug)]
pub(super) struct Output(Arc<Mutex<Lines>>);

impl Output {
    pub(super) fn new(name: &str) -> Output {
        Output(Arc::new(Mutex::new(Lines::new(name, Instant::now()))))
    }

    /// A pipe for a process to write to, which a thread reads until it is closed, and one that hangs up when all of that is passed on.
    pub(super) fn begin(&self) -> io::Result<(PipeWriter, PipeReader)> {
        let (pipe, written) = io::pipe()?;
        let (passed_on, held) = io::pipe()?;
        let lines = self.0.clone();
        std::thread::Builder::new().name("output".into()).spawn(move || {
            // those of the process before come first
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            pass_on(pipe, &mut lines);
            drop(held);
        })?;
        Ok((written, passed_on))
    }
}

/// Passes on what is written, until nobody can write any more.
fn pass_on(mut pipe: PipeReader, lines: &mut Lines) {
    let mut bytes = vec![0; READ_BYTES];
    loop {
        // how many are left out is told when it has paused, too
        let within = (lines.left_out > 0).then_some(Timespec { tv_sec: 1, tv_nsec: 0 });
        let left_out = lines.left_out;
        // interrupted is nothing there yet
        if poll(&mut [PollFd::new(&pipe, PollFlags::IN)], within.as_ref()).unwrap_or(0) > 0 {
            match pipe.read(&mut bytes) {
                Ok(0) => break,
                Ok(read) => lines.take(Instant::now(), &bytes[..read], &mut say),
                Err(_) => {}
            }
        }
        if lines.left_out > left_out {
            std::thread::sleep(PAUSE);
        }
        lines.tell_left_out(Instant::now(), &mut say);
    }
    lines.end(Instant::now(), &mut say);
    while lines.left_out > 0 {
        std::thread::sleep(PAUSE);
        lines.tell_left_out(Instant::now(), &mut say);
    }
}

/// In one piece, as others write there, too.
fn say(line: &str) {
    // nobody is there to hear of it
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Lines, made of what comes.
#[derive(Debug)]
struct Lines {
    name: String,
    /// a line that has no end yet
    begun: Vec<u8>,
    /// how many may be shown now
    may_show: u32,
    /// since when that has not grown
    since: Instant,
    left_out: u64,
}

impl Lines {
    fn new(name: &str, now: Instant) -> Lines {
        Lines { name: name.to_owned(), begun: Vec::new(), may_show: LINES, since: now, left_out: 0 }
    }

    fn take(&mut self, now: Instant, bytes: &[u8], say: &mut impl FnMut(&str)) {
        self.earn(now);
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (part, ends) = part.strip_suffix(b"\n").map_or((part, false), |line| (line, true));
            let mut rest = part;
            while self.begun.len() + rest.len() > LINE_BYTES {
                let (first, others) = rest.split_at(LINE_BYTES - self.begun.len());
                self.begun.extend_from_slice(first);
                self.show(say);
                rest = others;
            }
            self.begun.extend_from_slice(rest);
            if ends {
                self.show(say);
            }
        }
    }

    fn end(&mut self, now: Instant, say: &mut impl FnMut(&str)) {
        if !self.begun.is_empty() {
            self.show(say);
        }
        self.tell_left_out(now, say);
    }

    /// Once lines are shown again.
    fn tell_left_out(&mut self, now: Instant, say: &mut impl FnMut(&str)) {
        self.earn(now);
        if self.left_out > 0 && self.may_show > 0 {
            say(&format!("application {}: {} lines more are left out", self.name, self.left_out));
            (self.left_out, self.may_show) = (0, self.may_show - 1);
        }
    }

    fn earn(&mut self, now: Instant) {
        let each = Duration::from_secs(1) / LINES_A_SECOND;
        let earned = now.saturating_duration_since(self.since).as_nanos() / each.as_nanos();
        let earned = u32::try_from(earned).unwrap_or(LINES).min(LINES);
        if earned > 0 {
            self.may_show = LINES.min(self.may_show + earned);
            self.since = now;
        }
    }

    fn show(&mut self, say: &mut impl FnMut(&str)) {
        if self.may_show == 0 {
            self.left_out += 1;
        } else {
            self.may_show -= 1;
            let mut line = format!("application {} writes: ", self.name);
            for char in String::from_utf8_lossy(&self.begun).chars() {
                match char {
                    '\t' => line.push(char),
                    // a terminal takes these for orders
                    _ if char.is_control() => line.extend(char.escape_default()),
                    _ => line.push(char),
                }
            }
            say(&line);
        }
        self.begun.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(lines: &mut Lines, now: Instant, bytes: &[u8]) -> Vec<String> {
        let mut said = Vec::new();
        lines.take(now, bytes, &mut |line| said.push(line.to_owned()));
        said
    }

    #[test]
    fn each_line_stands_behind_the_applications_name_and_orders_no_terminal() {
        let now = Instant::now();
        let mut lines = Lines::new("a", now);
        assert_eq!(taken(&mut lines, now, b"one\ntw"), ["application a writes: one"]);
        assert_eq!(
            taken(&mut lines, now, b"o\x1b[2J\r\n\n"),
            ["application a writes: two\\u{1b}[2J\\r", "application a writes: "]
        );
        assert_eq!(taken(&mut lines, now, b"\xff\tz\n"), ["application a writes: \u{fffd}\tz"]);
        assert_eq!(taken(&mut lines, now, b"the last"), [""; 0]);
        let mut said = Vec::new();
        lines.end(now, &mut |line| said.push(line.to_owned()));
        assert_eq!(said, ["application a writes: the last"]);
    }

    #[test]
    fn a_line_without_end_is_shown_in_parts() {
        let now = Instant::now();
        let mut lines = Lines::new("a", now);
        let said = taken(&mut lines, now, &[b'x'; 3 * LINE_BYTES + 5]);
        let whole = format!("application a writes: {}", "x".repeat(LINE_BYTES));
        assert_eq!(said, [whole.as_str(); 3]);
        assert_eq!(taken(&mut lines, now, b"\n"), ["application a writes: xxxxx"]);
        // also with the longest name, of what is shown longest
        let mut lines = Lines::new(&"n".repeat(255), now);
        let said = taken(&mut lines, now, &[0x1b; 3000]);
        assert!(said.len() > 1 && said.iter().all(|line| line.len() < 4096));
    }

    #[test]
    fn who_writes_without_end_is_heard_at_first_and_then_now_and_then() {
        let now = Instant::now();
        let mut lines = Lines::new("a", now);
        let many = "y\n".repeat(1000);
        assert_eq!(taken(&mut lines, now, many.as_bytes()).len(), LINES as usize);
        let mut said = Vec::new();
        lines.tell_left_out(now, &mut |line| said.push(line.to_owned()));
        assert_eq!(said, [""; 0]);
        let later = now + Duration::from_secs(1);
        lines.tell_left_out(later, &mut |line| said.push(line.to_owned()));
        assert_eq!(said, ["application a: 744 lines more are left out"]);
        assert_eq!(taken(&mut lines, later, many.as_bytes()).len(), LINES_A_SECOND as usize - 1);
        // however often it looks
        let looks = (1..=1000).map(|ms| taken(&mut lines, later + Duration::from_millis(ms), b"y\n").len());
        assert!(looks.sum::<usize>() <= LINES_A_SECOND as usize);
    }
}
