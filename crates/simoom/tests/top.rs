//! `simoom top` against a running server: one plain frame, and on a terminal.
//!
//! The terminal is `script`'s (util-linux), which every Debian has.

mod common;

use common::{Place, Server, ask, run, text, until};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::num::NonZero;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

/// A shell on a terminal of 100 by 30.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    seen: Arc<Mutex<Seen>>,
}

/// What a terminal got, and what stood on its screen by the way: what is written is only what differs from the screen before.
struct Seen {
    bytes: Vec<u8>,
    screen: vt100::Parser,
    screens: Vec<String>,
}

const ROWS: NonZero<u16> = NonZero::new(30).unwrap();
const COLUMNS: NonZero<u16> = NonZero::new(100).unwrap();
/// So many bytes at a time are looked at: a frame that stands for a moment only shall be seen too.
const LOOK_BYTES: usize = 16;

impl Seen {
    fn new() -> Seen {
        Seen { bytes: Vec::new(), screen: vt100::Parser::new(ROWS, COLUMNS, 0), screens: Vec::new() }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        for part in bytes.chunks(LOOK_BYTES) {
            self.screen.process(part);
            let now = self.screen.screen().contents();
            if self.screens.last() != Some(&now) {
                self.screens.push(now);
            }
        }
    }
}

impl Terminal {
    /// Runs `simoom top` with these arguments behind `before`, and then shows how the terminal is set.
    fn start(before: &str, control: &str, arguments: &str) -> Terminal {
        let program = env!("CARGO_BIN_EXE_simoom");
        let line = format!(
            "stty rows 30 cols 100; tty; {before} {program} top --control {control} {arguments}; echo status=$?; stty -a"
        );
        let mut command = Command::new("script");
        command.args(["-q", "-e", "-c", &line, "/dev/null"]).env("TERM", "xterm").env("SHELL", "/bin/sh");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let seen = Arc::new(Mutex::new(Seen::new()));
        let (mut output, shared) = (child.stdout.take().unwrap(), seen.clone());
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(bytes @ 1..) = output.read(&mut part) {
                shared.lock().unwrap().take(&part[..bytes]);
            }
        });
        Terminal { keys: child.stdin.take().unwrap(), child, seen }
    }

    fn text(&self) -> String {
        text(&self.seen.lock().unwrap().bytes)
    }

    /// Until it has stood on the screen.
    fn wait_for(&self, part: &str) {
        let mut looked_at = 0;
        let stood = || {
            let seen = self.seen.lock().unwrap();
            let stood = seen.screens[looked_at..].iter().any(|screen| screen.contains(part));
            looked_at = seen.screens.len();
            stood
        };
        until(stood, || {
            let last = self.seen.lock().unwrap().screens.last().cloned().unwrap_or_default();
            format!("no {part:?}; last stood there:\n{last}\nof {:?}", self.text())
        });
    }

    fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
        self.keys.flush().unwrap();
    }

    /// Its end: the alternate screen was left, and the terminal is set as before.
    fn ended(mut self, status: i32) {
        self.wait_for(&format!("status={status}\n"));
        until(|| self.child.try_wait().unwrap().is_some(), || "the terminal stays".into());
        // what was written last may still be on its way
        self.wait_for("icanon");
        let said = self.text();
        let (screen, after) = said.split_once(&format!("status={status}\r\n")).unwrap();
        let (entered, left) = (screen.matches("\x1b[?1049h").count(), screen.matches("\x1b[?1049l").count());
        assert!(entered == 1 && left >= 1, "{entered} {left}: {said:?}");
        assert!(screen.rfind("\x1b[?1049l") > screen.rfind("\x1b[?1049h"), "{said:?}");
        assert!(screen.contains("\x1b[?25h"), "the cursor is hidden: {said:?}");
        for mode in ["icanon", "echo", "isig", "icrnl"] {
            assert!(after.split_whitespace().any(|word| word.trim_end_matches(';') == mode), "{mode}: {after}");
        }
    }
}

#[test]
fn one_frame_is_printed_without_a_terminal() {
    let place = Place::new();
    let server = Server::start(&place, &["--cpus", "0"]);
    let control = server.control.to_str().unwrap();
    for _ in 0..3 {
        ask(server.address, "www.example.com");
    }
    for more in [&["--once"][..], &[]] {
        let output = run(&[&["top", "--control", control, "--interval", "0.2"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let frame = text(&output.stdout);
        let pid = format!("  pid {}  ", server.pid());
        assert!(frame.starts_with("simoom ") && frame.contains(&pid), "{frame}");
        assert!(frame.lines().next().unwrap().contains("sockets, 1 thread"), "{frame}");
        assert!(!frame.contains('\x1b'), "{frame:?}");
        // the thread, whose processor the kernel tells
        let thread = frame.lines().find(|line| line.starts_with("sockets-0 ")).unwrap_or_else(|| panic!("{frame}"));
        assert_eq!(thread.split_whitespace().nth(1), Some("0"), "{frame}");
        let dns = frame.lines().find(|line| line.starts_with("dns ")).unwrap_or_else(|| panic!("{frame}"));
        assert_eq!(dns.split_whitespace().last(), Some("3"), "{frame}");
    }
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    let output = run(&["top", "--control", "/nonexistent/control"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "simoom: no server answers: /nonexistent/control: No such file or directory; is it running? see --control\n"
    );
    let output = run(&["top", "--interval", "0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("`0` is not a number of seconds from 0.1 to 3600"), "{output:?}");
}

#[test]
fn a_terminal_is_used_and_given_back() {
    let place = Place::new();
    let server = Server::start(&place, &[]);
    let control = server.control.to_str().unwrap();
    // a key, Ctrl-C, and a signal
    let mut terminal = Terminal::start("", control, "--interval 0.1");
    terminal.wait_for("Threads");
    terminal.wait_for("q quit");
    terminal.press(b"\tzsr");
    terminal.press(b"p");
    terminal.wait_for("PAUSED");
    terminal.press(b"q");
    terminal.ended(0);
    let mut terminal = Terminal::start("", control, "");
    terminal.wait_for("q quit");
    terminal.press(b"\x03");
    terminal.ended(0);
    let terminal = Terminal::start("sh -c 'echo pid=$$; exec \"$0\" \"$@\"'", control, "");
    // it hears signals before it draws
    terminal.wait_for("q quit");
    let said = terminal.text();
    let pid = said.split_once("pid=").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    terminal.ended(0);
}

#[test]
fn it_goes_on_at_any_size_and_over_a_restart_of_the_server() {
    let place = Place::new();
    let mut server = Server::start(&place, &[]);
    let control = server.control.to_str().unwrap().to_owned();
    let mut terminal = Terminal::start("", &control, "--interval 0.1");
    terminal.wait_for("q quit");
    let said = terminal.text();
    let tty = said.split_whitespace().find(|word| word.starts_with("/dev/pts/")).unwrap();
    for (rows, columns) in [(1, 1), (2, 3), (5, 20), (3, 300), (60, 12), (30, 100)] {
        let [rows, columns] = [rows, columns].map(|n: u32| n.to_string());
        let set = Command::new("stty").args(["-F", tty, "rows", &rows, "cols", &columns]).status().unwrap();
        assert!(set.success());
        // a few frames at that size
        std::thread::sleep(std::time::Duration::from_millis(150));
    }
    server.signal(Signal::TERM);
    server.end();
    terminal.wait_for("no server answers");
    let again = Server::start(&place, &[]);
    assert_eq!(again.control.to_str().unwrap(), control);
    terminal.wait_for("STARTED ANEW");
    terminal.press(b"q");
    terminal.ended(0);
}
