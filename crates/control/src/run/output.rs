//! What an application writes to its standard output and error.
//!
//! It goes through a pipe to the keeper, which passes it on to the server's log: each line behind the application's name, so that none is
//! taken for the server's own, without control characters, and only so many of them. The keeper reads on when there are more, but not faster
//! than costs it little: who writes without end waits for it, and for nobody else.

use rustix::event::Timespec;
use rustix::fs::{OFlags, fcntl_setfl};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::time::{Duration, Instant};

/// A longer line is shown as several.
const LINE_BYTES: usize = 1024;
/// Lines that are shown at once, and how many more each second: a program that ends with a trace is heard out.
const LINES: u32 = 256;
const LINES_A_SECOND: u32 = 16;
/// Read at once. A pipe holds as much.
const READ_BYTES: usize = 64 << 10;
/// How long nothing is read when lines are left out.
const PAUSE: Duration = Duration::from_millis(10);

/// An application's pipe.
#[derive(Debug)]
pub(super) struct Output {
    reader: PipeReader,
    /// the other end, for processes that are started
    writer: PipeWriter,
    lines: Lines,
    /// nothing is read before
    pause_until: Option<Instant>,
}

impl Output {
    pub(super) fn open(name: &str) -> io::Result<Output> {
        let (reader, writer) = io::pipe()?;
        fcntl_setfl(&reader, OFlags::NONBLOCK)?;
        Ok(Output { reader, writer, lines: Lines::new(name, Instant::now()), pause_until: None })
    }

    /// For a process to write to.
    pub(super) fn end(&self) -> io::Result<PipeWriter> {
        self.writer.try_clone()
    }

    /// What is waited for, and how long at most.
    pub(super) fn waits(&self, now: Instant) -> (Option<&PipeReader>, Option<Timespec>) {
        let left = self.pause_until.map(|until| until.saturating_duration_since(now));
        let pauses = left.is_some_and(|left| !left.is_zero());
        let within = left.or((self.lines.left_out > 0).then(|| Duration::from_secs(1)));
        // no more than a second
        let within = within.map(|it| Timespec { tv_sec: it.as_secs() as i64, tv_nsec: it.subsec_nanos().into() });
        ((!pauses).then_some(&self.reader), within)
    }

    /// Passes on what is there, if there is something.
    pub(super) fn pass_on(&mut self, now: Instant) {
        if self.pause_until.is_some_and(|until| now < until) {
            return;
        }
        let leaves_out = self.lines.left_out;
        let more = self.read(now);
        let much = more && self.lines.left_out > leaves_out;
        self.pause_until = much.then_some(now + PAUSE);
        self.lines.tell_left_out(now, &mut say);
    }

    /// Passes the rest on that a process has left which has ended.
    pub(super) fn finish(&mut self, now: Instant) {
        // what was in the pipe, whose size nobody has changed
        let _ = (0..4).take_while(|_| self.read(now)).count();
        self.lines.end(now, &mut say);
        self.pause_until = None;
    }

    /// Whether there was something.
    fn read(&mut self, now: Instant) -> bool {
        let mut bytes = vec![0; READ_BYTES];
        match self.reader.read(&mut bytes) {
            Ok(read @ 1..) => {
                self.lines.take(now, &bytes[..read], &mut say);
                true
            }
            // the pipe has an end of our own, so there is always more to come
            _ => false,
        }
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
