//! Building segments: what goes out next for a connection, and the frame that carries it.
//!
//! Order: resets, handshakes, what is sent again, new data, probes, acknowledgements alone. Every segment carries the newest
//! acknowledgement and window; the FIN goes with the last data.

use super::ack::Sender;
use super::active::{Active, Spurious};
use super::congestion::initial_window;
use super::connection::{Connection, Flags};
use super::counters::Event;
use super::engine::{Engine, Outlet};
use super::hop::{Hop, ip_bytes, pseudo};
use super::inflight::Resend;
use super::pace::Rate;
use super::starved::Need;
use super::state::State;
use super::tick::Tick;
use super::tuple::Tuple;
use crate::turn::HOPS;
use arrayvec::ArrayVec;
use base::{Frame, Instant};
use wire::ethernet::{EtherType, HEADER_BYTES, Link, Mac, TAGGED_HEADER_BYTES};
use wire::tcp::{self, Header, MAX_SACK_BLOCKS, PayloadSum, SackBlock, Timestamps};
use wire::{Protocol, Sum, checksum, ipv4, ipv6};

/// Segments that a connection sends before others have their turn.
const TURN_SEGMENTS: usize = 32;
/// Bits of the traffic class of a packet that routers may mark: ECT(0) (RFC 3168 section 5).
const ECT: u8 = 2;

/// What goes out next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// bytes from this position on, which were sent before
    Again { start: u64, bytes: u32 },
    /// so many new bytes, the FIN counted
    New { bytes: u32 },
    /// so many new bytes in a segment that the path may not carry
    Wider { bytes: u32 },
    /// nothing that was not sent, but something that evokes an acknowledgement
    Probe,
    /// an acknowledgement alone
    Ack,
    /// a SYN, ours or the answer of a simultaneous open
    Syn,
    /// a reset
    Reset,
}

impl Plan {
    /// Whether data go out for the first time.
    fn is_new(self) -> bool {
        matches!(self, Plan::New { .. } | Plan::Wider { .. })
    }
}

/// How a connection's turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// it has nothing to send now
    Done,
    /// it has more, but others are waiting
    More,
    /// no frame, or no room for one
    Blocked,
}

impl Sender<'_> {
    /// What of its data goes out next; `room` is what a segment holds now.
    fn plan_data(&mut self, room: u32) -> Option<Plan> {
        if self.a.probe_now {
            return self.plan_probe(room);
        }
        let allowance = self.a.congestion.window();
        if self.a.board.lost > 0 && self.may_repair() {
            let (start, bytes) = self.records.first_lost(&self.a.board, room as u16)?;
            let fits = self.a.board.pipe() + bytes <= allowance || self.a.force;
            return if fits { self.plan_again(room, start, bytes) } else { None };
        }
        let pipe = self.a.board.pipe();
        self.plan_new(room, pipe, allowance)
    }

    /// The first lost bytes again, as far as there is a record for that, or one can be had.
    fn plan_again(&mut self, room: u32, start: u64, bytes: u32) -> Option<Plan> {
        match self.records.may_resend(&self.a.board, self.now, bytes, self.c.mss) {
            Resend::May => Some(Plan::Again { start, bytes }),
            Resend::Fold => {
                self.fold();
                let (start, bytes) = self.records.first_lost(&self.a.board, room as u16)?;
                Some(Plan::Again { start, bytes })
            }
            Resend::Wait => {
                self.counters.on(Event::RecordsShort);
                None
            }
        }
    }

    /// Whether what is lost goes out before new data: where these are to tell whether it is lost at all, only if there are none that
    /// could go (RFC 5682 section 3.1, step 2b).
    fn may_repair(&self) -> bool {
        self.a.spurious == Spurious::No || self.a.force || !self.may_push()
    }

    /// Whether there is a record for new data, or one that they can be part of.
    fn may_push(&self) -> bool {
        self.records.may_push(&self.a.board, self.now, self.c.mss)
    }

    fn plan_new(&mut self, room: u32, pipe: u32, allowance: u32) -> Option<Plan> {
        if !self.c.has_unsent() {
            return None;
        }
        match self.wider_bytes(room, allowance) {
            Some(bytes) if self.has_room(bytes, pipe, allowance) => return Some(Plan::Wider { bytes }),
            // acknowledgements make room, or time does, which smaller segments would fill again
            Some(_) if pipe > 0 => {
                self.c.flags.put(Flags::PACED, self.paced_bytes() == 0);
                self.a.limited_to = self.c.snd.nxt;
                return None;
            }
            _ => {}
        }
        let c = &mut *self.c;
        let window = c.snd.edge.saturating_sub(c.snd.nxt).min(u64::from(u32::MAX)) as u32;
        let queued = c.last() - c.snd.nxt;
        let data = (c.snd.end - c.snd.nxt.min(c.snd.end)).min(u64::from(room)) as u32;
        let bytes = (u64::from(data) + u64::from(c.flags.has(Flags::FIN))).min(queued).min(u64::from(data) + 1) as u32;
        // the FIN goes with the last data only
        let bytes = if u64::from(bytes) == queued { bytes } else { data };
        let bytes = bytes.min(window);
        if bytes == 0 {
            return None;
        }
        // until it has lasted so long that the window will not become larger
        if !self.window_lets(bytes, room) && !self.a.force {
            return None;
        }
        if pipe > 0 && pipe + bytes > allowance {
            self.a.limited_to = self.c.snd.nxt;
            return None;
        }
        // a FIN behind a full segment is no reason to wait: no quantum may ever be larger than the segment
        let held = self.paced_bytes() < u64::from(bytes.min(room));
        self.c.flags.put(Flags::PACED, held);
        if held {
            // the window would allow more, so it is in use
            self.a.limited_to = self.c.snd.nxt;
            return None;
        }
        if !self.may_push() {
            self.counters.on(Event::no_record(self.records.lacks_for_data()));
            return None;
        }
        Some(Plan::New { bytes })
    }

    /// Whether so many new bytes may go by the peer's window, where a segment has `room`: no small segments for a small window, unless it is
    /// half of the largest ever offered (RFC 9293 section 3.8.6.2.1).
    fn window_lets(&self, bytes: u32, room: u32) -> bool {
        let whole = bytes >= room || u64::from(bytes) == self.c.last() - self.c.snd.nxt;
        whole || bytes >= self.c.max_window / 2
    }

    /// Whether there is more to be sent, and the peer's window lets it go.
    pub(super) fn window_lets_more(&self) -> bool {
        let (window, mss) = (self.c.snd.edge.saturating_sub(self.c.snd.nxt), self.c.mss);
        let bytes = (self.c.last() - self.c.snd.nxt).min(window).min(mss.into()) as u32;
        bytes > 0 && self.c.has_unsent() && self.window_lets(bytes, mss.into())
    }

    /// Bytes of new data that need not wait for their time: as many as the rate lets go, and, until something was lost, as many as
    /// anyone may have in flight at once (RFC 6928), so that short answers are not stretched over a round trip. Behind losses
    /// even small windows are spread: what leaves later than a repair is what tells when that is lost, too.
    pub(super) fn paced_bytes(&self) -> u64 {
        let Some(rate) = self.rate() else { return u64::MAX };
        let initial = match self.a.congestion.threshold() {
            u32::MAX => initial_window(u32::from(self.c.mss)).saturating_sub(self.a.board.pipe()),
            _ => 0,
        };
        // the last segment of a quantum may go beyond it
        match self.a.pace.allowance(self.now, rate) {
            0 => u64::from(initial),
            quantum => u64::from(initial.max(quantum).max(u32::from(self.c.mss))),
        }
    }

    /// How fast new data may go; None where nothing is held back.
    pub(super) fn rate(&self) -> Option<Rate> {
        let window = self.a.congestion.window();
        let slow_start = self.a.congestion.in_slow_start();
        let smoothed = self.c.rtt.smoothed_ns()?;
        Rate::of(window, smoothed, self.c.rtt.min_ns()?, slow_start, u32::from(self.c.mss))
    }

    /// RFC 8985 section 7.3: new data if there is any and the window allows, else the last segment again.
    fn plan_probe(&mut self, room: u32) -> Option<Plan> {
        let window = self.c.snd.edge.saturating_sub(self.c.snd.nxt);
        let queued = self.c.last() - self.c.snd.nxt;
        if queued > 0 && window > 0 && self.may_push() {
            let data = (self.c.snd.end - self.c.snd.nxt.min(self.c.snd.end)).min(u64::from(room)).min(window);
            if data > 0 {
                return Some(Plan::New { bytes: data as u32 });
            }
        }
        let last = self.records.last_segment(&self.a.board);
        let Some((start, bytes)) = last.filter(|(start, _)| *start >= self.c.snd.una) else {
            self.a.probe_now = false;
            self.a.probe = None;
            return None;
        };
        // a segment may have shrunk since: its tail is what counts
        let start = start + u64::from(bytes.saturating_sub(room));
        let bytes = bytes.min(room);
        if !self.records.cut_at(&mut self.a.board, start) {
            // it counts as sent: the retransmission timer runs
            self.a.probe_now = false;
            self.counters.on(Event::RecordsShort);
            return None;
        }
        Some(Plan::Again { start, bytes })
    }

    /// Notes that the plan goes out. Whoever planned saw that there is a record, should one be needed.
    pub(super) fn commit(&mut self, plan: Plan) {
        match plan {
            Plan::Again { start, bytes } => {
                let mss = self.c.mss;
                let noted = self.records.resend(&mut self.a.board, self.now, start, bytes, mss);
                debug_assert!(noted, "a record for what is sent again");
                if std::mem::take(&mut self.a.probe_now) {
                    self.counters.on(Event::TailLossProbe);
                    self.a.probe = Some(super::active::Probe { end: self.c.snd.nxt, resent: true });
                }
                self.a.head_resent |= start == self.c.snd.una;
                self.on_resent(bytes);
            }
            Plan::New { bytes } => self.commit_new(bytes, self.c.mss),
            Plan::Wider { bytes } => {
                self.commit_new(bytes, bytes as u16);
                self.on_tried();
            }
            Plan::Probe | Plan::Ack | Plan::Syn | Plan::Reset => {}
        }
    }

    /// Notes that so many new bytes go out, in a segment, or the last of several, that may hold `segment_bytes`.
    fn commit_new(&mut self, bytes: u32, segment_bytes: u16) {
        self.restart_after_idle();
        let noted = self.records.push(&mut self.a.board, self.now, self.c.snd.nxt, bytes, segment_bytes);
        debug_assert!(noted, "a record for new data");
        self.c.snd.nxt += u64::from(bytes);
        if std::mem::take(&mut self.a.probe_now) {
            self.counters.on(Event::TailLossProbe);
            self.a.probe = Some(super::active::Probe { end: self.c.snd.nxt, resent: false });
        }
        self.a.sent_new = true;
        if let Some(rate) = self.rate() {
            self.a.pace.on_sent(self.now, u64::from(bytes), rate);
        }
        self.on_sent(bytes);
    }

    /// RFC 5681 section 4.1: after a pause longer than the timeout the window begins anew.
    pub(super) fn restart_after_idle(&mut self) {
        if self.a.board.is_empty() {
            let idle_ns = self.now.nanos_since(self.a.sent_at);
            self.a.congestion.on_idle(idle_ns, self.c.rtt.rto_ns(), u32::from(self.c.mss));
        }
    }
}

impl Engine {
    /// Whether a connection has anything that may go out, as far as that is seen without making a plan.
    fn has_to_send(&self, index: u32) -> bool {
        let c = &self.connections[index as usize];
        let again = |a: &Active| a.board.lost > 0 || a.probe_now;
        c.flags.has(Flags::NOW) || c.has_unsent() || self.actives.peek(c.active).is_some_and(again)
    }

    /// Whether several segments of its new data may leave together: there is more than one, and no SACK blocks make them shorter than the
    /// records say.
    fn may_go_together(&self, index: u32) -> bool {
        let c = &self.connections[index as usize];
        c.snd.end.saturating_sub(c.snd.nxt) > u64::from(c.mss) && self.sack_bytes(c) == 0
    }

    /// What goes out next for a connection, if anything does.
    fn plan(&mut self, now: Instant, index: u32) -> Option<Plan> {
        let c = &self.connections[index as usize];
        let flags = c.flags;
        if flags.has(Flags::RESET_NOW) {
            return Some(Plan::Reset);
        }
        match c.state {
            State::Closed => return None,
            State::SynSent | State::SynReceived if flags.has(Flags::SYN_NOW) => return Some(Plan::Syn),
            State::SynReceived if flags.has(Flags::ACK_NOW) => return Some(Plan::Ack),
            State::SynSent | State::SynReceived => return None,
            _ => {}
        }
        let room = u32::from(c.mss).saturating_sub(self.sack_bytes(c));
        let data = match self.sender(now, index) {
            Some(mut sender) => sender.plan_data(room.max(1)),
            None => None,
        };
        let alone = || match flags {
            flags if flags.has(Flags::PROBE_NOW) => Some(Plan::Probe),
            flags if flags.has(Flags::ACK_NOW) => Some(Plan::Ack),
            _ => None,
        };
        data.or_else(alone)
    }

    /// Bytes that SACK blocks will take in the next segment.
    fn sack_bytes(&self, c: &Connection) -> u32 {
        if !c.flags.has(Flags::SACK) || c.beyond.is_empty() && c.twice.is_none() {
            return 0;
        }
        4 + 8 * self.sack_blocks(c).len() as u32
    }

    /// The blocks to be told: what came twice first (RFC 2883 section 4), then what is kept beyond gaps.
    fn sack_blocks(&self, c: &Connection) -> ArrayVec<SackBlock, MAX_SACK_BLOCKS> {
        let most = if c.flags.has(Flags::TIMESTAMPS) { 3 } else { MAX_SACK_BLOCKS };
        let Some(twice) = c.twice else { return self.blocks.runs(&c.beyond, most) };
        let mut blocks = ArrayVec::new();
        blocks.push(twice);
        blocks.extend(self.blocks.runs(&c.beyond, most - 1));
        blocks
    }

    /// Sends what a connection has to send, as far as its turn goes.
    pub(super) fn transmit(&mut self, now: Instant, index: u32, out: &mut Outlet<'_>) -> Turn {
        let mut turn = Turn::More;
        let mut sent = 0;
        while sent < TURN_SEGMENTS {
            if !self.has_to_send(index) {
                turn = Turn::Done;
                break;
            }
            let Some(plan) = self.plan(now, index) else {
                if !self.records.may_split() {
                    self.wait_for_record(index);
                }
                turn = Turn::Done;
                break;
            };
            if matches!(plan, Plan::New { .. }) && self.may_go_together(index) {
                let mut segments = self.send_large(now, index, out);
                if segments == 0 {
                    segments = self.send_run(now, index, TURN_SEGMENTS - sent, out);
                }
                sent += segments;
                if segments > 0 {
                    continue;
                }
            }
            let Some(frame) = out.frame() else {
                turn = Turn::Blocked;
                break;
            };
            self.send(now, index, plan, frame, out);
            sent += 1;
        }
        if let Some(mut sender) = self.sender(now, index)
            && sender.c.state != State::Closed
        {
            sender.arm_alarm(false);
        }
        turn
    }

    /// When there are records again it has another turn, if it was for want of one that it has sent nothing.
    #[cold]
    fn wait_for_record(&mut self, index: u32) {
        let c = &self.connections[index as usize];
        if c.has_unsent() || self.actives.peek(c.active).is_some_and(|a| a.board.lost > 0) {
            self.stand(index, Need::Record);
        }
    }

    /// Builds and sends one segment.
    fn send(&mut self, now: Instant, index: u32, plan: Plan, frame: Frame, out: &mut Outlet<'_>) {
        let before = self.connections[index as usize].snd.nxt;
        if let Some(mut sender) = self.sender(now, index) {
            sender.commit(plan);
        }
        let (start, bytes) = match plan {
            Plan::Again { start, bytes } => (start, bytes),
            Plan::New { bytes } | Plan::Wider { bytes } => (before, bytes),
            // an old number evokes an acknowledgement (RFC 9293 section 3.8.4)
            Plan::Probe => (self.connections[index as usize].snd.una.saturating_sub(1), 0),
            Plan::Syn => (0, 1),
            Plan::Ack | Plan::Reset => (self.connections[index as usize].last_acceptable(), 0),
        };
        if plan == Plan::Syn {
            self.build_syn(now, index, frame, out);
        } else {
            self.build(now, index, plan, start, bytes, frame, out);
        }
        self.counters.sent.add(1);
    }

    #[expect(clippy::too_many_arguments, reason = "one segment's facts")]
    fn build(
        &mut self,
        now: Instant,
        index: u32,
        plan: Plan,
        start: u64,
        bytes: u32,
        mut frame: Frame,
        out: &mut Outlet<'_>,
    ) {
        let sack = {
            let c = &self.connections[index as usize];
            let tells = c.flags.has(Flags::SACK) && !(c.beyond.is_empty() && c.twice.is_none()) && plan != Plan::Reset;
            if tells { self.sack_blocks(c) } else { ArrayVec::new() }
        };
        let c = &mut self.connections[index as usize];
        let data_end = (start + u64::from(bytes)).min(c.snd.end).max(start);
        let data_bytes = (data_end - start) as usize;
        let fin = bytes > 0 && c.flags.has(Flags::FIN) && start + u64::from(bytes) > c.snd.end;
        let mut flags = flags_of(c, plan, fin);
        if data_bytes > 0 && data_end == c.snd.end {
            flags |= tcp::Flags::PSH;
        }
        let header = Header {
            src_port: c.tuple.local_port(),
            dst_port: c.tuple.remote_port(),
            seq: c.seq(start),
            ack: c.rcv.nxt,
            flags,
            window: advertise(c),
            timestamps: timestamps(c, now),
            sack: &sack,
            ..Header::default()
        };
        let marked = c.flags.has(Flags::ECN) && plan.is_new() && data_bytes > 0;
        let payload = lay_out(&mut frame, out.mac, &c.hop, &c.tuple, header.bytes() + data_bytes, marked);
        let (head, payload) = payload.split_at_mut(header.bytes());
        let sum = match self.actives.get(c.active) {
            Some(a) if data_bytes > 0 => {
                a.framed_in = self.polls;
                self.queue.write(&mut a.list, start, payload)
            }
            _ => Sum::ZERO,
        };
        header.write(head, pseudo(&c.tuple, head.len() + data_bytes), PayloadSum::Known(sum));
        out.tx.push(frame);
        on_acknowledged(c);
        match plan {
            Plan::Reset => {
                c.flags.clear(Flags::RESET_NOW);
                self.counters.on(Event::ResetSent);
            }
            Plan::Probe => c.flags.clear(Flags::PROBE_NOW),
            _ => {}
        }
    }

    /// A SYN, or the answer to one that crossed ours (RFC 9293 section 3.5).
    fn build_syn(&mut self, now: Instant, index: u32, mut frame: Frame, out: &mut Outlet<'_>) {
        let mss = self.own_mss(&self.connections[index as usize].tuple);
        let c = &mut self.connections[index as usize];
        let answer = c.state == State::SynReceived;
        let mut flags = if answer { tcp::Flags::SYN | tcp::Flags::ACK } else { tcp::Flags::SYN };
        if c.flags.has(Flags::ECN) && !answer {
            flags |= tcp::Flags::ECE | tcp::Flags::CWR; // RFC 3168 section 6.1.1
        }
        let header = Header {
            src_port: c.tuple.local_port(),
            dst_port: c.tuple.remote_port(),
            seq: c.iss,
            ack: if answer { c.rcv.nxt } else { base::Seq::new(0) },
            flags,
            window: c.window_bytes.min(0xffff) as u16,
            timestamps: timestamps(c, now),
            mss: Some(mss),
            window_scale: (!answer || c.flags.has(Flags::SCALED)).then_some(c.rcv_scale),
            sack_permitted: c.flags.has(Flags::SACK),
            ..Header::default()
        };
        let head = lay_out(&mut frame, out.mac, &c.hop, &c.tuple, header.bytes(), false);
        let bytes = head.len();
        header.write(head, pseudo(&c.tuple, bytes), PayloadSum::Known(Sum::ZERO));
        out.tx.push(frame);
        c.snd.nxt = 1;
        c.flags.clear(Flags::SYN_NOW | Flags::ACK_NOW);
    }
}

/// The header's bits.
fn flags_of(c: &mut Connection, plan: Plan, fin: bool) -> tcp::Flags {
    let mut flags = tcp::Flags::ACK;
    if plan == Plan::Reset {
        return flags | tcp::Flags::RST;
    }
    if fin {
        flags |= tcp::Flags::FIN;
    }
    // RFC 3168 section 6.1.3: every ACK until the peer says that it has slowed down
    if c.flags.has(Flags::ECHO) {
        flags |= tcp::Flags::ECE;
    }
    if c.flags.has(Flags::REDUCED) && plan.is_new() {
        c.flags.clear(Flags::REDUCED);
        if c.flags.has(Flags::ECN) {
            flags |= tcp::Flags::CWR;
        }
    }
    flags
}

/// Our clock and the peer's, once both are used, and in a SYN of ours.
pub(super) fn timestamps(c: &Connection, now: Instant) -> Option<Timestamps> {
    c.flags.has(Flags::TIMESTAMPS).then(|| Timestamps { value: c.clock(now), echo: c.ts_recent })
}

/// An acknowledgement has gone out.
pub(super) fn on_acknowledged(c: &mut Connection) {
    c.rcv.acked = c.rcv.nxt;
    c.ack_at = Tick::NONE;
    c.twice = None;
    c.flags.clear(Flags::ACK_NOW);
}

/// Bytes by which the window must be able to move for that to be told.
fn step(c: &Connection) -> u32 {
    (c.window_bytes / 2).min(u32::from(c.mss)).max(1)
}

/// Whether the window has opened by so much since it was told that the peer should hear of it now: two segments, or half of it.
pub(super) fn worthwhile(c: &Connection) -> bool {
    let free = c.window_bytes.saturating_sub(c.rcv.delivered);
    let gain = free.saturating_sub(c.offered());
    gain >= (2 * u32::from(c.mss)).min(c.window_bytes / 2).max(1) || c.offered() < step(c) && gain >= step(c)
}

/// The window field, and the edge that it tells: it never moves back (RFC 9293 section 3.8.6), and moves on by a worthwhile step
/// only (section 3.8.6.2.2). A field that is rounded to its scale moves it on by less than a unit, as long as there is room for that,
/// and tells less then; what was told before is still taken (RFC 7323 section 2.4).
pub(super) fn advertise(c: &mut Connection) -> u16 {
    let offered = c.offered();
    let free = c.window_bytes.saturating_sub(c.rcv.delivered);
    let scale = c.rcv_scale;
    let least = offered.div_ceil(1 << scale);
    let least = if least << scale <= free { least } else { offered >> scale };
    let field = if free >= offered + step(c) { (free >> scale).max(least) } else { least }.min(0xffff);
    let told = c.rcv.nxt + (field << scale);
    if c.rcv.edge.lt(told) {
        c.rcv.edge = told;
    }
    field as u16
}

/// Lays link and network header out; what is left is the segment.
pub(super) fn lay_out<'f>(
    frame: &'f mut Frame,
    src: Mac,
    hop: &Hop,
    tuple: &Tuple,
    segment_bytes: usize,
    marked: bool,
) -> &'f mut [u8] {
    let link_bytes = if hop.tag().is_some() { TAGGED_HEADER_BYTES } else { HEADER_BYTES };
    frame.set_len(link_bytes + ip_bytes(tuple) + segment_bytes);
    heads(frame.bytes_mut(), src, hop, tuple, segment_bytes, marked)
}

/// Writes link and network header of a segment of so many bytes; what is behind them.
pub(super) fn heads<'b>(
    bytes: &'b mut [u8],
    src: Mac,
    hop: &Hop,
    tuple: &Tuple,
    segment_bytes: usize,
    marked: bool,
) -> &'b mut [u8] {
    let ether_type = if matches!(tuple, Tuple::V4(_)) { EtherType::IPV4 } else { EtherType::IPV6 };
    let link = Link { dst: hop.mac, src, tag: hop.tag(), ether_type };
    link.write(bytes);
    let (ip, segment) = bytes[link.bytes()..].split_at_mut(ip_bytes(tuple));
    match tuple {
        Tuple::V4(tuple) => {
            let head = ip.first_chunk_mut().expect("room for an IPv4 header");
            let (src, dst, protocol) = (tuple.local, tuple.remote, Protocol::TCP);
            ipv4::Header { src, dst, protocol, ttl: HOPS, payload_bytes: segment_bytes }.write(head);
            if marked {
                let updated = checksum::update([head[10], head[11]], [head[0], 0], [head[0], ECT]);
                head[1] = ECT;
                head[10..12].copy_from_slice(&updated);
            }
        }
        Tuple::V6(tuple) => {
            let head = ip.first_chunk_mut().expect("room for an IPv6 header");
            let (src, dst, next_header) = (tuple.local, tuple.remote, Protocol::TCP);
            ipv6::Header { src, dst, next_header, hop_limit: HOPS, payload_bytes: segment_bytes }.write(head);
            if marked {
                head[1] |= ECT << 4;
            }
        }
    }
    segment
}
