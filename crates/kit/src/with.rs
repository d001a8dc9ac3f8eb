//! What a talk can do, and the books that are kept for it.

use crate::LINE_BYTES;
use crate::hub::{Event, Line, Talk};
use app::{CallError, Connection, DeadReason, Streams};
use base::Instant;
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;

/// The alarm that the hub has for itself.
pub(crate) const OWN_ALARM: u64 = u64::MAX;

/// How a line is to end when everything was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    No,
    Finish,
    /// it was finished
    Finished,
    Close,
    Closed,
}

/// One line's books.
#[derive(Debug)]
struct Wire {
    /// None until it is there, and when it is gone
    connection: Option<Connection>,
    /// the handle by which one that is asked for is given up
    asked: Option<Connection>,
    peer: SocketAddr,
    /// what has come, consumed up to `input_at`
    input: Vec<u8>,
    input_at: usize,
    eof: bool,
    /// what is to be sent, from `output_at` on
    output: Vec<u8>,
    output_at: usize,
    /// bytes sent in all, and taken by the peer
    sent: u64,
    taken: u64,
    /// marks with what had been sent when they were set
    marks: VecDeque<(u64, u64)>,
    end: End,
    /// it stands among those to be handed over
    unflushed: bool,
    /// a send found too little room
    starved: bool,
    /// both sides have finished, which is told when what has come was consumed
    over: bool,
    /// the line's timer, which the engine has as well as long as it has the connection
    timer: Option<Instant>,
}

impl Wire {
    fn new(peer: SocketAddr) -> Wire {
        Wire {
            connection: None,
            asked: None,
            peer,
            input: Vec::new(),
            input_at: 0,
            eof: false,
            output: Vec::new(),
            output_at: 0,
            sent: 0,
            taken: 0,
            marks: VecDeque::new(),
            end: End::No,
            unflushed: false,
            starved: false,
            over: false,
            timer: None,
        }
    }

    /// What has come and was not consumed.
    fn unread(&self) -> &[u8] {
        &self.input[self.input_at..]
    }

    fn gathered(&self) -> usize {
        self.output.len() - self.output_at
    }

    fn room(&self) -> usize {
        if self.end == End::No { LINE_BYTES - self.gathered() } else { 0 }
    }
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    wire: Option<Wire>,
    /// None while it is told something
    talk: Option<T>,
}

/// All lines.
#[derive(Debug)]
pub(crate) struct Places<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    /// lines with something to hand over, each once
    unflushed: VecDeque<Line>,
    events: VecDeque<(Line, Event)>,
    /// timers of lines that are over, which no engine has any more
    late: BTreeSet<(Instant, Line)>,
    /// when the hub's own alarm rings for the first of them
    alarm: Option<Instant>,
}

impl<T> Places<T> {
    pub(crate) fn new() -> Places<T> {
        Places {
            places: Vec::new(),
            free: Vec::new(),
            unflushed: VecDeque::new(),
            events: VecDeque::new(),
            late: BTreeSet::new(),
            alarm: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, talk: T, peer: SocketAddr) -> Line {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, wire: None, talk: None });
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        (place.wire, place.talk) = (Some(Wire::new(peer)), Some(talk));
        Line { index, generation: place.generation }
    }

    /// The line that has a place now.
    pub(crate) fn line(&self, index: u32) -> Option<Line> {
        let place = self.places.get(index as usize)?;
        place.wire.as_ref().map(|_| Line { index, generation: place.generation })
    }

    fn place(&mut self, line: Line) -> Option<&mut Place<T>> {
        self.places.get_mut(line.index as usize).filter(|place| place.generation == line.generation)
    }

    fn wire(&mut self, line: Line) -> Option<&mut Wire> {
        self.place(line)?.wire.as_mut()
    }

    fn peek(&self, line: Line) -> Option<&Wire> {
        let place = self.places.get(line.index as usize).filter(|place| place.generation == line.generation)?;
        place.wire.as_ref()
    }

    pub(crate) fn lend(&mut self, line: Line) -> Option<T> {
        self.place(line)?.talk.take()
    }

    /// A talk comes back, unless its line has gone meanwhile.
    pub(crate) fn give_back(&mut self, line: Line, talk: T) {
        if let Some(place) = self.place(line) {
            place.talk = Some(talk);
        }
    }

    /// Frees a place; its talk.
    pub(crate) fn remove(&mut self, line: Line) -> Option<T> {
        self.note_timer(line, None);
        let place = self.place(line)?;
        place.wire.take()?;
        place.generation = place.generation.wrapping_add(1);
        let talk = place.talk.take();
        self.free.push(line.index);
        talk
    }

    pub(crate) fn connect(&mut self, line: Line, connection: Connection) {
        let Some(wire) = self.wire(line) else { return };
        (wire.connection, wire.asked) = (Some(connection), None);
        // what was sent before it was there
        self.touch(line);
    }

    pub(crate) fn arrive(&mut self, line: Line, bytes: &[u8]) {
        if let Some(wire) = self.wire(line) {
            if wire.input_at > 0 {
                wire.input.drain(..wire.input_at);
                wire.input_at = 0;
            }
            wire.input.extend_from_slice(bytes);
        }
    }

    pub(crate) fn on_eof(&mut self, line: Line) {
        if let Some(wire) = self.wire(line) {
            wire.eof = true;
        }
    }

    pub(crate) fn on_sent(&mut self, line: Line, bytes: usize) {
        let Some(wire) = self.wire(line) else { return };
        wire.taken += bytes as u64;
        let passed = wire.marks.partition_point(|(at, _)| *at <= wire.taken);
        let passed: Vec<u64> = wire.marks.drain(..passed).map(|(_, mark)| mark).collect();
        self.events.extend(passed.into_iter().map(|mark| (line, Event::Sent(mark))));
        // the engine has room again
        self.touch(line);
    }

    pub(crate) fn on_dead(&mut self, line: Line, reason: DeadReason) {
        let Some(wire) = self.wire(line) else { return };
        wire.connection = None;
        // whoever ended it does not want the rest, and without the peer's end there is no telling when that was all
        let ours = matches!(wire.end, End::Close | End::Closed);
        let wants_the_rest = reason == DeadReason::Closed && wire.eof && !ours;
        if wants_the_rest && !wire.unread().is_empty() {
            wire.over = true;
            let timer = wire.timer;
            self.late.extend(timer.map(|at| (at, line)));
        } else {
            self.events.push_back((line, Event::Dead(reason)));
        }
    }

    /// Nobody waits any more for what has come on a line that is over.
    fn give_up(&mut self, line: Line) {
        if self.wire(line).is_some_and(|wire| std::mem::take(&mut wire.over)) {
            self.events.push_back((line, Event::Dead(DeadReason::Closed)));
        }
    }

    /// Notes what a line's timer is.
    pub(crate) fn note_timer(&mut self, line: Line, at: Option<Instant>) {
        let Some(wire) = self.wire(line) else { return };
        let (over, before) = (wire.over, std::mem::replace(&mut wire.timer, at));
        if let Some(before) = before {
            self.late.remove(&(before, line));
        }
        if over {
            self.late.extend(at.map(|at| (at, line)));
        }
    }

    /// The hub's alarm has rung: how many timers it may have been for.
    pub(crate) fn ring(&mut self) -> usize {
        self.alarm = None;
        self.late.len()
    }

    /// A line that is over and whose timer is due, which is then no longer set.
    pub(crate) fn next_late(&mut self, now: Instant) -> Option<Line> {
        let &(at, line) = self.late.first()?;
        if at > now {
            return None;
        }
        self.note_timer(line, None);
        Some(line)
    }

    /// Has the hub's alarm ring for the first timer.
    pub(crate) fn set_alarm(&mut self, calls: &mut dyn Streams) {
        let first = self.late.first().map(|(at, _)| *at);
        // refused where the talks have all alarms: each of them begins a cycle, which asks again
        if first != self.alarm && calls.alarm_set(OWN_ALARM, first).is_ok() {
            self.alarm = first;
        }
    }

    pub(crate) fn next_event(&mut self) -> Option<(Line, Event)> {
        self.events.pop_front()
    }

    /// Has a line looked at when the cycle ends.
    fn touch(&mut self, line: Line) {
        let Some(wire) = self.wire(line) else { return };
        if !wire.unflushed {
            wire.unflushed = true;
            self.unflushed.push_back(line);
        }
    }

    pub(crate) fn next_unflushed(&mut self) -> Option<Line> {
        let line = self.unflushed.pop_front()?;
        if let Some(wire) = self.wire(line) {
            wire.unflushed = false;
        }
        Some(line)
    }

    /// Gives the engine what a line has gathered, in one call, and then its end.
    pub(crate) fn hand_over(&mut self, line: Line, calls: &mut dyn Streams) {
        let Some(wire) = self.wire(line) else { return };
        let Some(connection) = wire.connection else { return };
        if wire.gathered() > 0 {
            // one that was closed meanwhile says so when it is dead
            let taken = calls.send(connection, &wire.output[wire.output_at..]).unwrap_or(0);
            wire.output_at += taken;
            if wire.output_at == wire.output.len() {
                wire.output.clear();
                wire.output_at = 0;
            } else if wire.output_at >= LINE_BYTES / 2 {
                wire.output.drain(..wire.output_at);
                wire.output_at = 0;
            }
        }
        if wire.starved && wire.room() >= LINE_BYTES / 2 {
            wire.starved = false;
            self.events.push_back((line, Event::Room));
            return;
        }
        if wire.gathered() > 0 {
            return;
        }
        // refused only when the connection is gone, which is told
        match wire.end {
            End::Finish => {
                wire.end = End::Finished;
                let _ = calls.shutdown(connection);
            }
            End::Close => {
                wire.end = End::Closed;
                let _ = calls.close(connection);
            }
            End::No | End::Finished | End::Closed => {}
        }
    }
}

/// What a talk can do during an event, about its own line and others.
pub struct With<'a, T: Talk> {
    /// the cycle's time
    pub now: Instant,
    pub(crate) calls: &'a mut dyn Streams,
    pub(crate) places: &'a mut Places<T>,
    /// what all talks of the thread share
    pub shared: &'a mut T::Shared,
}

impl<T: Talk> std::fmt::Debug for With<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "With({} lines at {:?})", self.places.len(), self.now)
    }
}

impl<T: Talk> With<'_, T> {
    /// Asks for a connection; `talk` is told [`Event::Connected`] or [`Event::Failed`]. What is sent meanwhile goes when it is there.
    ///
    /// # Errors
    /// As [`Streams::connect`] has them.
    pub fn dial(&mut self, remote: SocketAddr, talk: T) -> Result<Line, CallError> {
        let line = self.places.insert(talk, remote);
        match self.calls.connect(remote, None, line.index.into()) {
            Ok(asked) => {
                if let Some(wire) = self.places.wire(line) {
                    wire.asked = Some(asked);
                }
                Ok(line)
            }
            Err(error) => {
                self.places.remove(line);
                Err(error)
            }
        }
    }

    /// Whether there is such a line.
    pub fn lives(&self, line: Line) -> bool {
        self.places.peek(line).is_some()
    }

    /// The other end.
    pub fn peer(&self, line: Line) -> Option<SocketAddr> {
        self.places.peek(line).map(|wire| wire.peer)
    }

    /// What has come and was not consumed; nothing of a line that is gone.
    pub fn bytes(&self, line: Line) -> &[u8] {
        self.places.peek(line).map_or(&[], Wire::unread)
    }

    /// The first `bytes` of [`With::bytes`] are dealt with; the peer may send as many more.
    pub fn consume(&mut self, line: Line, bytes: usize) {
        let Some(wire) = self.places.wire(line) else { return };
        let bytes = bytes.min(wire.unread().len());
        wire.input_at += bytes;
        if wire.unread().is_empty() {
            wire.input.clear();
            wire.input_at = 0;
        }
        if let Some(connection) = wire.connection {
            // refused for one that was closed, whose window does not matter any more
            let _ = self.calls.recv_done(connection, bytes);
        }
        if self.is_drained(line) {
            self.places.give_up(line);
        }
    }

    /// Whether the peer has finished, and everything that it sent was consumed.
    pub fn is_drained(&self, line: Line) -> bool {
        self.places.peek(line).is_none_or(|wire| wire.eof && wire.unread().is_empty())
    }

    /// How many bytes [`With::send`] would take.
    pub fn room(&self, line: Line) -> usize {
        self.places.peek(line).map_or(0, Wire::room)
    }

    /// Gathers bytes to be sent when the cycle ends; how many were taken, all or fewer. If fewer, [`Event::Room`] comes.
    pub fn send(&mut self, line: Line, bytes: &[u8]) -> usize {
        let Some(wire) = self.places.wire(line) else { return 0 };
        let taken = bytes.len().min(wire.room());
        wire.output.extend_from_slice(&bytes[..taken]);
        wire.sent += taken as u64;
        wire.starved |= taken < bytes.len();
        self.places.touch(line);
        taken
    }

    /// Sends what has come on one line on another, as much as that takes; how much that was. What is left keeps the sender's window
    /// closed.
    pub fn forward(&mut self, from: Line, to: Line) -> usize {
        let Some(wire) = self.places.wire(from) else { return 0 };
        let (input, at) = (std::mem::take(&mut wire.input), wire.input_at);
        let taken = self.send(to, &input[at..]);
        if let Some(wire) = self.places.wire(from) {
            wire.input = input;
        }
        self.consume(from, taken);
        taken
    }

    /// Has [`Event::Sent`] told with this mark when the peer has taken what was sent so far; at once if it has.
    pub fn mark(&mut self, line: Line, mark: u64) {
        let Some(wire) = self.places.wire(line) else { return };
        if wire.sent == wire.taken {
            self.places.events.push_back((line, Event::Sent(mark)));
        } else {
            wire.marks.push_back((wire.sent, mark));
        }
    }

    /// Sets the line's one timer; None clears it.
    ///
    /// # Errors
    /// The line is gone, or not there yet.
    pub fn timer(&mut self, line: Line, at: Option<Instant>) -> Result<(), CallError> {
        match self.places.peek(line).map(|wire| (wire.connection, wire.over)) {
            Some((Some(connection), _)) => self.calls.timer_set(connection, at)?,
            // it goes on until what has come was consumed
            Some((None, true)) => {}
            Some((None, false)) | None => return Err(CallError::NoConnection),
        }
        self.places.note_timer(line, at);
        Ok(())
    }

    /// Has [`Talk::alarm`] told at a time; setting it again replaces the time, None takes it back.
    ///
    /// # Errors
    /// As [`Streams::alarm_set`] has them, and [`CallError::NoResources`] for `u64::MAX`, which is the hub's own.
    pub fn alarm(&mut self, cookie: u64, at: Option<Instant>) -> Result<(), CallError> {
        if cookie == OWN_ALARM {
            return Err(CallError::NoResources);
        }
        self.calls.alarm_set(cookie, at)
    }

    /// Finishes writing after what was gathered; reading goes on.
    pub fn finish(&mut self, line: Line) {
        self.end(line, End::Finish);
    }

    /// Ends the line after what was gathered was sent.
    pub fn close(&mut self, line: Line) {
        self.end(line, End::Close);
    }

    fn end(&mut self, line: Line, end: End) {
        let Some(wire) = self.places.wire(line) else { return };
        let goes_on = match wire.end {
            End::No => true,
            End::Finish | End::Finished => end == End::Close,
            End::Close | End::Closed => false,
        };
        if goes_on {
            wire.end = end;
            self.places.touch(line);
        }
        if end == End::Close {
            self.places.give_up(line);
        }
    }

    /// Ends the line at once, with a reset, or gives up one that was dialled.
    pub fn abort(&mut self, line: Line) {
        let Some(wire) = self.places.wire(line) else { return };
        if let Some(connection) = wire.connection.or(wire.asked) {
            // refused only when it is gone, which is told
            let _ = self.calls.abort(connection);
        }
        self.places.give_up(line);
    }
}
