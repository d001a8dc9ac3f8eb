//! `simoom top`: a running server's threads, services, connections and drops on a terminal, with rates.
//!
//! It asks what `ctl status` and `ctl stats` ask, over the same socket, so it sees no more than they do and costs the server as
//! little; what the kernel says of the server's threads comes from /proc. Rates are differences between two readings. Where
//! standard output is no terminal, or with `--once`, one frame is printed after one interval.
//!
//! The terminal is as it was before when the program ends: by a key, a signal, an error or a panic.

mod reading;
#[cfg(test)]
mod recorded;
mod screen;
mod table;
mod view;

use crate::error::{Error, reason};
use ratatui::crossterm::event::{self, Event};
use reading::{Change, Reading, Source};
use screen::{FASTEST, SLOWEST, Screen, Wish};
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

/// Characters of a line where no terminal has a width.
const PLAIN_WIDTH: usize = 160;
/// How long a key or a signal may wait.
const LOOK: Duration = Duration::from_millis(50);

/// `simoom top`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The server's control socket; default: /run/simoom/control, else $XDG_RUNTIME_DIR/simoom/control
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Seconds between readings, such as 0.5
    #[arg(long, value_name = "SECONDS", default_value = "1")]
    pub interval: Interval,
    /// Print one frame, of one interval, and end; so it is without a terminal
    #[arg(long)]
    pub once: bool,
}

/// Time between readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval(pub Duration);

impl FromStr for Interval {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        match parsed.filter(|interval| (FASTEST..=SLOWEST).contains(interval)) {
            Some(interval) => Ok(Interval(interval)),
            None => Err(format!("`{text}` is not a number of seconds from 0.1 to 3600")),
        }
    }
}

/// Shows a server until the user ends it, or once; gives what is to be printed.
///
/// # Errors
/// No server answers, or the terminal cannot be used.
pub fn run(options: &Options) -> Result<String, Error> {
    let mut source = Source::new(options.control.clone());
    // a server that is not there is an error, one that goes later is shown
    let first = source.read()?;
    let interval = options.interval.0;
    if options.once || !io::stdout().is_terminal() {
        std::thread::sleep(interval);
        let change = Change::between(Some(&first), &source.read()?);
        return Ok(screen::plain(&change, PLAIN_WIDTH));
    }
    watch(source, first, interval).map(|()| String::new())
}

fn unusable(error: &io::Error) -> Error {
    Error::environment(format!("the terminal cannot be used: {}; try --once", reason(error)))
}

/// The terminal as this program has it; as it was before when this is dropped.
struct Borrowed(ratatui::DefaultTerminal);

impl Borrowed {
    fn take() -> Result<Borrowed, Error> {
        // it also sees to it that a panic is told on a terminal as it was
        ratatui::try_init().map(Borrowed).map_err(|error| {
            ratatui::restore();
            unusable(&error)
        })
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn watch(source: Source, first: Reading, interval: Duration) -> Result<(), Error> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, ended.clone()).map_err(|error| unusable(&error))?;
    }
    let readings = Readings::start(source).map_err(|error| unusable(&error))?;
    let mut screen = Screen::new(interval);
    screen.show(Change::between(None, &first));
    let mut terminal = Borrowed::take()?;
    let mut before = first;
    let mut asked = Instant::now();
    let mut changed = true;
    while !ended.load(Ordering::Relaxed) {
        if !screen.paused && asked.elapsed() >= screen.interval && readings.ask() {
            asked = Instant::now();
        }
        match readings.answer() {
            Some(Ok(reading)) => {
                screen.show(Change::between(Some(&before), &reading));
                before = reading;
                changed = true;
            }
            Some(Err(error)) => {
                screen.fail(error.lines().join(" "));
                changed = true;
            }
            None => {}
        }
        if std::mem::take(&mut changed) {
            terminal.0.draw(|frame| screen.draw(frame)).map_err(|error| unusable(&error))?;
        }
        match event::poll(LOOK).and_then(|there| there.then(event::read).transpose()) {
            Ok(Some(Event::Key(key))) if screen.key(key) == Wish::Quit => return Ok(()),
            Ok(Some(Event::Key(_) | Event::Resize(..))) => changed = true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unusable(&error)),
        }
    }
    Ok(())
}

/// A thread that waits for the server, so that keys do not.
struct Readings {
    wanted: SyncSender<()>,
    taken: Receiver<Result<Reading, Error>>,
}

impl Readings {
    fn start(mut source: Source) -> io::Result<Readings> {
        let (wanted, asked) = sync_channel(1);
        let (give, taken) = sync_channel(1);
        std::thread::Builder::new().name("readings".into()).spawn(move || {
            while asked.recv().is_ok() {
                if give.send(source.read()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Readings { wanted, taken })
    }

    /// Wants a reading; false while one is wanted already.
    fn ask(&self) -> bool {
        self.wanted.try_send(()).is_ok()
    }

    fn answer(&self) -> Option<Result<Reading, Error>> {
        match self.taken.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            // it panicked, and said so
            Err(TryRecvError::Disconnected) => Some(Err(Error::environment("nobody asks the server any more"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_bounded() {
        for (text, ms) in [("1", 1000), ("0.1", 100), ("2.5", 2500), ("3600", 3_600_000)] {
            assert_eq!(text.parse(), Ok(Interval(Duration::from_millis(ms))), "{text}");
        }
        for wrong in ["", "0", "0.09", "-1", "3601", "1s", "inf", "nan", "1e99"] {
            let error = wrong.parse::<Interval>().unwrap_err();
            assert_eq!(error, format!("`{wrong}` is not a number of seconds from 0.1 to 3600"));
        }
    }

    #[test]
    fn without_a_server_it_says_where_it_looked() {
        let options = Options {
            control: Some("/nonexistent/control".into()),
            interval: Interval(Duration::from_secs(1)),
            once: true,
        };
        let error = run(&options).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no server answers: /nonexistent/control: No such file or directory; is it running? see --control"
        );
    }
}
