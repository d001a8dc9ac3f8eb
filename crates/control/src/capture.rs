//! `ctl capture`: the frames that pass through AF_XDP, to a client of the control socket.
//!
//! The serving threads copy each frame into a bounded ring and never wait; this thread, the client's, drains the rings a
//! hundred times a second. So a capture may miss frames (it says how many), and never slows an answer by more than the copy.
//! One capture runs at a time. It ends with a bound, or when the client closes its end or says anything.

use crate::ctl::server::failed;
use crate::launch::Running;
use base::ring::Consumer;
use dataplane::tap::{Copy, Direction};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use wire::filter::Filter;

/// Copies that wait for this thread, for each queue: 10 ms at 400,000 frames a second.
const RING_FRAMES: usize = 4096;
const PAUSE: Duration = Duration::from_millis(10);

/// What a client wants.
pub(crate) struct Wanted {
    pub(crate) filter: String,
    pub(crate) frames: u64,
    pub(crate) time: Duration,
}

/// Sends what passes until a bound of `wanted` is met or the client ends it.
///
/// # Errors
/// The client's connection.
pub(crate) fn run(running: &Running, wanted: &Wanted, mut client: UnixStream) -> io::Result<()> {
    let filter: Filter = match wanted.filter.parse() {
        Ok(filter) => filter,
        Err(error) => return say(&mut client, &failed(&format!("filter: {error}"))),
    };
    let Some(mut taps) = Taps::open(running) else {
        let why = match running.tap_clock() {
            None => "this server has no AF_XDP, so the kernel sees every frame: capture with tcpdump",
            Some(_) => "another capture is running; end it first",
        };
        return say(&mut client, &failed(why));
    };
    let missed_before = running.tap_missed();
    say(&mut client, &json!({ "ok": true }))?;
    let deadline = Instant::now() + wanted.time;
    let mut sent = 0;
    let mut copies = Vec::new();
    let mut lines = String::new();
    while sent < wanted.frames && Instant::now() < deadline && !ended(&client) {
        taps.drain(&mut copies);
        copies.retain(|copy| filter.matches(&copy.bytes));
        // the queues' frames in one order, as far as they came in one look
        copies.sort_by_key(|copy| copy.at);
        copies.truncate(usize::try_from(wanted.frames - sent).unwrap_or(usize::MAX));
        sent += copies.len() as u64;
        lines.clear();
        for copy in copies.drain(..) {
            line(&mut lines, &copy, taps.origin_unix_ns);
        }
        client.write_all(lines.as_bytes())?;
    }
    let missed = missed(running, missed_before);
    drop(taps);
    say(&mut client, &json!({ "ok": true, "captured": sent, "missed": missed }))
}

/// Frames that were missed since there were so many; with the engines, where the server ends meanwhile, what they have counted goes.
fn missed(running: &Running, before: u64) -> u64 {
    running.tap_missed().saturating_sub(before)
}

fn say(client: &mut UnixStream, answer: &serde_json::Value) -> io::Result<()> {
    client.write_all(format!("{answer}\n").as_bytes())
}

/// Sleeps a little; whether the client closed its end or said something meanwhile.
fn ended(client: &UnixStream) -> bool {
    let mut ready = [PollFd::new(client, PollFlags::IN)];
    let pause = Timespec { tv_sec: 0, tv_nsec: PAUSE.as_nanos() as i64 };
    poll(&mut ready, Some(&pause)).is_ok_and(|ready| ready > 0)
}

fn line(lines: &mut String, copy: &Copy, origin_unix_ns: u64) {
    let direction = match copy.direction {
        Direction::In => "in",
        Direction::Out => "out",
    };
    let (at, length) = (origin_unix_ns + copy.at.as_nanos(), copy.bytes.len());
    // writing to a String does not fail
    let _ = write!(lines, r#"{{"unix_ns":{at},"direction":"{direction}","length":{length},"bytes":""#);
    for byte in &copy.bytes {
        let _ = write!(lines, "{byte:02x}");
    }
    lines.push_str("\"}\n");
}

/// The taps of all queues, taken off when this is dropped.
struct Taps<'r> {
    running: &'r Running,
    readers: Vec<Consumer<Copy>>,
    origin_unix_ns: u64,
}

impl Taps<'_> {
    fn open(running: &Running) -> Option<Taps<'_>> {
        let origin_unix_ns = running.tap_clock()?;
        let readers = running.tap(RING_FRAMES)?;
        Some(Taps { running, readers, origin_unix_ns })
    }

    fn drain(&mut self, copies: &mut Vec<Copy>) {
        for reader in &mut self.readers {
            // bounded, so that one look ends also under load
            copies.extend(std::iter::from_fn(|| reader.pop()).take(RING_FRAMES));
        }
    }
}

impl Drop for Taps<'_> {
    fn drop(&mut self) {
        self.running.untap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_at_the_servers_end_has_missed_nothing_more() {
        assert_eq!(missed(&Running::ended(), 5), 0);
    }
}
