//! The receiving half: data go to the service in order and from where they lie, acknowledgements are due at once or a little
//! later, and the window moves when the service gives bytes back.

use super::ack::move_window;
use super::calls::Calls;
use super::connection::{Connection, Flags};
use super::counters::{Event, Ignored};
use super::engine::Engine;
use super::output::timestamps;
use super::reassembly::Stored;
use super::segment::{Part, Segment, Verdict, judge};
use super::state::{Next, State};
use super::tick::Tick;
use app::{DeadReason, Service};
use base::{Instant, Seq};
use std::time::Duration;
use wire::tcp::{self, Header, SackBlock};

/// How long an acknowledgement may wait for company (RFC 9293 section 3.8.6.3 allows half a second; peers expect much less).
const DELAYED_ACK: Duration = Duration::from_millis(40);
/// Between two challenges of one connection (RFC 5961 section 7 asks for a limit).
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(500);

impl Engine {
    /// A segment for a connection that is synchronized, or in a simultaneous open.
    pub(super) fn handle<S: Service>(&mut self, now: Instant, index: u32, segment: &Segment<'_>, service: &mut S) {
        let c = &mut self.connections[index as usize];
        match judge(now, c, segment) {
            Verdict::Accept(part) => self.accept(now, index, segment, part, service),
            Verdict::Reset => self.kill(index, DeadReason::Reset),
            Verdict::Acknowledge(reason) => {
                self.counters.ignore(reason);
                note_duplicate(c, segment);
                c.flags.set(Flags::ACK_NOW);
                self.wake(index);
            }
            Verdict::Challenge(reason) => {
                self.counters.ignore(reason);
                self.challenge(now, index);
            }
            Verdict::Ignore(reason) => self.counters.ignore(reason),
        }
    }

    /// An ACK that makes the peer show what it knows, seldom (RFC 5961 section 7).
    pub(super) fn challenge(&mut self, now: Instant, index: u32) {
        let c = &mut self.connections[index as usize];
        if c.challenged_at.is_within(now, CHALLENGE_INTERVAL) {
            return;
        }
        c.challenged_at = Tick::ahead(now, CHALLENGE_INTERVAL);
        c.flags.set(Flags::ACK_NOW);
        self.counters.on(Event::Challenge);
        self.wake(index);
    }

    fn accept<S: Service>(&mut self, now: Instant, index: u32, segment: &Segment<'_>, part: Part, service: &mut S) {
        let c = &mut self.connections[index as usize];
        take_clocks(now, c, segment);
        take_marks(c, segment);
        c.flags.clear(Flags::SILENT);
        if c.state != State::SynReceived {
            c.heard_at = Tick::after(now);
        }
        if c.state == State::SynReceived {
            // our SYN is acknowledged: the window field counts from here on
            if segment.tcp.ack() != c.seq(1) {
                return self.challenge(now, index);
            }
            self.synchronize(now, index, segment);
            self.tell_connected(now, index, service);
            if self.connections[index as usize].state == State::Closed {
                return;
            }
        }
        self.take_acknowledgement(now, index, segment);
        if self.connections[index as usize].state == State::Closed {
            return;
        }
        let empty = segment.tcp.payload().is_empty() && !segment.has(tcp::Flags::FIN);
        if !empty {
            self.take_data(now, index, segment, part, service);
        }
        // who has a turn in the next poll has its timer seen to then
        if !self.connections[index as usize].flags.has(Flags::READY) {
            self.arm(now, index);
        }
    }

    /// The acknowledgement of a segment.
    fn take_acknowledgement(&mut self, now: Instant, index: u32, segment: &Segment<'_>) {
        let una = self.connections[index as usize].snd.una;
        match self.sender(now, index) {
            Some(mut sender) => {
                sender.on_ack(segment);
                let (has_work, news) = (sender.has_work(), sender.c.sent_bytes > 0);
                let finished = sender.c.flags.has(Flags::FIN_ACKNOWLEDGED) && sender.c.state.has_finished();
                let idle = sender.a.board.is_empty() && !sender.c.has_unsent();
                let active = sender.c.active;
                if has_work || news || sender.c.flags.has(Flags::READY) {
                    // its turn sets the timer
                    self.wake(index);
                } else {
                    sender.settle_alarm();
                }
                if idle {
                    self.actives.lend(active);
                }
                if finished {
                    self.on_finished(now, index);
                }
            }
            None => {
                let c = &mut self.connections[index as usize];
                if let Some(ack) = c.position(segment.tcp.ack()) {
                    move_window(c, segment, ack);
                }
            }
        }
        let c = &mut self.connections[index as usize];
        if c.flags.has(Flags::ABANDONED) && c.snd.una > una && c.state != State::Closed {
            // a long answer may take as long as it goes on
            c.idle_at = Tick::ahead(now, self.times.linger);
        }
        self.watch_window(now, index);
    }

    /// The peer knows of our FIN.
    fn on_finished(&mut self, now: Instant, index: u32) {
        let c = &mut self.connections[index as usize];
        match c.state.on_fin_acknowledged() {
            Next::State(state) => {
                if state != c.state && state == State::FinWait2 && c.flags.has(Flags::ABANDONED) {
                    c.idle_at = Tick::ahead(now, self.times.linger);
                }
                c.state = state;
                if self.draining {
                    self.wake(index);
                }
            }
            // its own FIN may have come right before, and wait to be acknowledged
            Next::TimeWait if c.flags.has(Flags::ACK_NOW) => self.acknowledge_last(now, index),
            Next::TimeWait => self.rest(now, index),
            Next::Closed => self.kill(index, DeadReason::Closed),
        }
    }

    /// Data and FIN of a segment, as far as they are inside the window.
    fn take_data<S: Service>(&mut self, now: Instant, index: u32, segment: &Segment<'_>, part: Part, service: &mut S) {
        let c = &mut self.connections[index as usize];
        if !c.state.may_receive() {
            return;
        }
        let payload = &segment.tcp.payload()[part.skip..part.skip + part.bytes];
        let seq = segment.tcp.seq() + part.skip as u32;
        if part.skip > 0 {
            c.twice = Some(SackBlock { left: segment.tcp.seq(), right: seq });
            c.flags.set(Flags::ACK_NOW);
        }
        if payload.is_empty() && !part.fin {
            // all of it beyond the window, which a probe asks about
            c.flags.set(Flags::ACK_NOW);
            return self.wake(index);
        }
        if seq != c.rcv.nxt {
            return self.keep(index, seq, payload, part.fin);
        }
        let gap = !c.beyond.is_empty();
        self.deliver(now, index, payload, service);
        self.deliver_kept(now, index, part.fin, service);
        let c = &mut self.connections[index as usize];
        if c.state == State::Closed {
            return;
        }
        // RFC 5681 section 4.2: at once when a gap is filled, and for every second full segment
        let unacknowledged = c.rcv.nxt.since(c.rcv.acked);
        if gap || part.fin || unacknowledged > u32::from(c.mss) || segment.has(tcp::Flags::CWR) {
            c.flags.set(Flags::ACK_NOW);
        }
        if c.flags.has(Flags::ACK_NOW) {
            self.wake(index);
        } else if !c.ack_at.is_set() {
            c.ack_at = Tick::ahead(now, DELAYED_ACK);
        }
    }

    /// Data beyond a gap.
    fn keep(&mut self, index: u32, seq: Seq, payload: &[u8], fin: bool) {
        let c = &mut self.connections[index as usize];
        if !payload.is_empty() {
            match self.blocks.insert(&mut c.beyond, seq, payload, fin) {
                Stored::Kept => {}
                Stored::Duplicate => {
                    c.twice = Some(SackBlock { left: seq, right: seq + payload.len() as u32 });
                }
                Stored::Full => self.counters.ignore(Ignored::NoBlock),
            }
        }
        // RFC 5681 section 4.2: at once
        c.flags.set(Flags::ACK_NOW);
        self.wake(index);
    }

    /// Bytes in order, to the service.
    fn deliver<S: Service>(&mut self, now: Instant, index: u32, bytes: &[u8], service: &mut S) {
        let c = &mut self.connections[index as usize];
        if bytes.is_empty() {
            return;
        }
        c.rcv.nxt += bytes.len() as u32;
        if c.rcv.edge.lt(c.rcv.nxt) {
            c.rcv.edge = c.rcv.nxt;
        }
        if c.flags.has(Flags::ABANDONED) {
            self.counters.ignore(Ignored::Abandoned);
            return;
        }
        c.rcv.delivered += bytes.len() as u32;
        let (handle, cookie) = (c.handle(index), c.cookie);
        self.counters.delivered_bytes.add(bytes.len() as u64);
        service.recv(now, &mut Calls { engine: self, now }, handle, cookie, bytes);
    }

    /// What was kept and is in order now; then the end of the peer's stream, if that is reached.
    fn deliver_kept<S: Service>(&mut self, now: Instant, index: u32, mut fin: bool, service: &mut S) {
        loop {
            let c = &mut self.connections[index as usize];
            if c.state == State::Closed {
                return;
            }
            if fin {
                return self.take_fin(now, index, service);
            }
            let Some(taken) = self.blocks.take(&mut c.beyond, c.rcv.nxt) else { return };
            self.deliver(now, index, taken.bytes(), service);
            fin = taken.fin;
            self.blocks.give_back(taken);
        }
    }

    /// The peer has finished (RFC 9293 section 3.10.7.4, eighth).
    fn take_fin<S: Service>(&mut self, now: Instant, index: u32, service: &mut S) {
        let c = &mut self.connections[index as usize];
        if c.flags.has(Flags::EOF) {
            return;
        }
        self.blocks.clear(&mut c.beyond);
        c.flags.set(Flags::EOF | Flags::ACK_NOW);
        c.rcv.nxt += 1;
        if c.rcv.edge.lt(c.rcv.nxt) {
            c.rcv.edge = c.rcv.nxt;
        }
        let (handle, cookie, told) = (c.handle(index), c.cookie, !c.flags.has(Flags::ABANDONED));
        match c.state.on_fin() {
            Next::State(state) => {
                c.state = state;
                if told {
                    service.eof(now, &mut Calls { engine: self, now }, handle, cookie);
                }
            }
            Next::TimeWait | Next::Closed => {
                if told {
                    service.eof(now, &mut Calls { engine: self, now }, handle, cookie);
                }
                self.acknowledge_last(now, index);
            }
        }
    }
}

impl Engine {
    /// The peer's FIN is the last of it all: the received frame carries the acknowledgement back, and TIME-WAIT begins.
    fn acknowledge_last(&mut self, now: Instant, index: u32) {
        let c = &self.connections[index as usize];
        if c.state == State::Closed {
            return;
        }
        self.answer = Some(Header {
            seq: c.seq(c.snd.nxt),
            ack: c.rcv.nxt,
            flags: tcp::Flags::ACK,
            window: (c.offered() >> c.rcv_scale).min(0xffff) as u16,
            timestamps: timestamps(c, now),
            ..Header::default()
        });
        self.rest(now, index);
    }

    /// A window that stays closed while something waits to be sent is watched, so that nobody can hold memory so for ever; so is one that
    /// is used up, since who takes one segment a timeout puts the end of the retransmissions off.
    pub(super) fn watch_window(&mut self, now: Instant, index: u32) {
        let c = &mut self.connections[index as usize];
        if !c.has_unsent() || c.snd.edge > c.snd.nxt {
            c.stalled_at = Tick::NONE;
        } else if !c.stalled_at.is_set() {
            c.stalled_at = Tick::ahead(now, self.times.zero_window);
        }
    }
}

/// TS.Recent (RFC 7323 section 4.3 (2)).
fn take_clocks(now: Instant, c: &mut Connection, segment: &Segment<'_>) {
    if !c.flags.has(Flags::TIMESTAMPS) {
        return;
    }
    if let Some(clock) = segment.timestamps()
        && segment.tcp.seq().leq(c.rcv.acked)
        && !c.is_stale(now, clock.value)
    {
        c.ts_recent = clock.value;
    }
}

/// Congestion marks on the way to us (RFC 3168 section 6.1.3).
fn take_marks(c: &mut Connection, segment: &Segment<'_>) {
    // Also where we do not mark ours: one of two SYNs or SYN-ACKs may have asked for it, and who marks believes that it was that one. Who
    // does not mark minds nothing that is said of marks.
    if segment.has(tcp::Flags::CWR) {
        c.flags.clear(Flags::ECHO);
    }
    if segment.congested {
        if !c.flags.has(Flags::ECHO) {
            c.flags.set(Flags::ACK_NOW);
        }
        c.flags.set(Flags::ECHO);
    }
}

/// A segment that came before in full is told (RFC 2883 section 4).
fn note_duplicate(c: &mut Connection, segment: &Segment<'_>) {
    let (left, bytes) = (segment.tcp.seq(), segment.tcp.payload().len() as u32);
    let right = left + bytes;
    if c.flags.has(Flags::SACK) && bytes > 0 && right.leq(c.rcv.nxt) {
        c.twice = Some(SackBlock { left, right });
    }
}
