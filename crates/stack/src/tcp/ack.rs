//! What an acknowledgement does to the sending half: what was delivered, the round-trip time, the peer's window, and what the
//! congestion window makes of it. Recovery itself is in `recovery`.

use super::active::{Active, Alarm, Phase};
use super::congestion::Ack;
use super::connection::{Connection, Flags};
use super::counters::{Counters, Event};
use super::inflight::{Fate, Record, Records};
use super::segment::Segment;
use super::send::Queue;
use base::{Instant, Seq};
use wire::tcp;

/// A connection's sending half with all that it works on.
pub(super) struct Sender<'a> {
    pub(super) now: Instant,
    pub(super) c: &'a mut Connection,
    pub(super) a: &'a mut Active,
    pub(super) records: &'a mut Records,
    pub(super) queue: &'a mut Queue,
    pub(super) counters: &'a Counters,
}

/// What an acknowledgement said.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct News {
    /// bytes acknowledged for the first time that were not held beyond a gap before, and those now held
    pub(super) delivered: u32,
    /// bytes by which the left edge moved
    pub(super) advanced: u32,
    /// the round-trip time of a segment that was sent once
    pub(super) sample_ns: Option<u64>,
    /// something was delivered that was sent once, before the recovery began
    pub(super) original: bool,
    /// the peer had some bytes twice (RFC 2883)
    pub(super) duplicate: bool,
    /// nothing is new though something is outstanding (RFC 5681 section 2)
    pub(super) repeated: bool,
    /// congestion was marked on our way to the peer
    pub(super) marked: bool,
    /// the clock of ours that the peer echoes
    pub(super) echo: Option<u32>,
}

impl Sender<'_> {
    /// Processes the acknowledgement of a segment that was judged acceptable.
    pub(super) fn on_ack(&mut self, segment: &Segment<'_>) {
        let Some(ack) = self.c.position(segment.tcp.ack()).filter(|ack| *ack >= self.c.snd.una) else { return };
        let mut news = News { marked: self.is_marked(segment), ..News::default() };
        if self.c.flags.has(Flags::TIMESTAMPS) {
            news.echo = segment.timestamps().map(|clock| clock.echo);
        }
        let flight_before = self.a.board.pipe();
        let edge_before = self.c.snd.edge;
        let outstanding = !self.a.board.is_empty();
        self.apply_sack(segment, ack, &mut news);
        self.apply_ack(ack, &mut news);
        move_window(self.c, segment, ack);
        let quiet = news.advanced == 0 && segment.tcp.payload().is_empty() && self.c.snd.edge == edge_before;
        news.repeated = outstanding && quiet && !segment.has(tcp::Flags::FIN);
        self.take_sample(&news);
        self.recover(&news, flight_before);
        self.congest(&news);
        if news.advanced > 0 || news.delivered > 0 {
            self.c.backoff = 0;
        }
        self.arm_alarm(news.advanced > 0);
    }

    /// Whether something may be there to be sent.
    pub(super) fn has_work(&self) -> bool {
        self.a.board.lost > 0 || self.c.has_unsent() || self.a.probe_now
    }

    fn is_marked(&self, segment: &Segment<'_>) -> bool {
        self.c.flags.has(Flags::ECN) && segment.has(tcp::Flags::ECE)
    }

    /// The left edge moves.
    fn apply_ack(&mut self, ack: u64, news: &mut News) {
        if ack <= self.c.snd.una {
            return;
        }
        let (now, point, recovering) = (self.now, self.a.point, self.a.phase != Phase::Open);
        let echo = Echo { clock: self.c.clock(now), echo: news.echo, now };
        let rack = &mut self.a.rack;
        let min_rtt_ns = self.c.rtt.min_ns().unwrap_or(0);
        let (mss, mut carried) = (self.c.mss, self.c.flags.has(Flags::CARRIED));
        self.records.acknowledge(&mut self.a.board, ack, |piece| {
            carried |= piece.segment_bytes >= mss && piece.bytes >= u32::from(mss);
            if piece.fate != Fate::Sacked {
                note(news, piece, now, recovering, point);
                rack.on_delivered(now, piece, echo.is_ambiguous(piece, min_rtt_ns));
            }
        });
        self.c.flags.put(Flags::CARRIED, carried);
        news.advanced = (ack - self.c.snd.una) as u32;
        let data = ack.min(self.c.snd.end).saturating_sub(self.c.snd.una.max(1));
        self.c.snd.una = ack;
        self.c.sent_bytes = self.c.sent_bytes.saturating_add(data as u32);
        self.counters.acknowledged_bytes.add(data);
        self.queue.release(&mut self.a.list, ack.min(self.c.snd.end));
        if self.c.flags.has(Flags::FIN) && ack > self.c.snd.end {
            self.c.flags.set(Flags::FIN_ACKNOWLEDGED);
        }
        self.c.rtt.on_progress();
        self.a.duplicates = 0;
    }

    /// Notes what the peer holds beyond gaps (RFC 2018), and what it had twice (RFC 2883).
    fn apply_sack(&mut self, segment: &Segment<'_>, ack: u64, news: &mut News) {
        if !self.c.flags.has(Flags::SACK) {
            return;
        }
        let mut blocks = segment.options.sack_blocks();
        let second = segment.options.sack_blocks().nth(1);
        for (n, block) in (&mut blocks).enumerate() {
            let (Some(left), Some(right)) = (self.c.position(block.left), self.c.position(block.right)) else {
                continue;
            };
            let within = |outer: Seq, inner: Seq| inner.offset_from(outer) >= 0;
            let inside_second = second
                .is_some_and(|second| n == 0 && within(second.left, block.left) && within(block.right, second.right));
            if n == 0 && left < right && (right <= ack || inside_second) {
                news.duplicate = true;
                self.on_duplicate(right - left);
                continue;
            }
            if left < ack || left >= right || right > self.c.snd.nxt {
                continue;
            }
            self.note_held(left, right, news);
        }
    }

    fn note_held(&mut self, left: u64, right: u64, news: &mut News) {
        let (now, point, recovering) = (self.now, self.a.point, self.a.phase != Phase::Open);
        let echo = Echo { clock: self.c.clock(now), echo: news.echo, now };
        let rack = &mut self.a.rack;
        let min_rtt_ns = self.c.rtt.min_ns().unwrap_or(0);
        let complete = self.records.sack(&mut self.a.board, left, right, |piece| {
            note(news, piece, now, recovering, point);
            rack.on_delivered(now, piece, echo.is_ambiguous(piece, min_rtt_ns));
        });
        if !complete {
            self.counters.on(Event::RecordsShort);
        }
    }

    /// The peer tells that it had bytes twice.
    fn on_duplicate(&mut self, bytes: u64) {
        self.counters.on(Event::DuplicateTold);
        self.a.rack.on_duplicate(self.c.snd.una, self.c.snd.nxt);
        if let Some(undo) = &mut self.a.undo {
            let segments = bytes.div_ceil(u64::from(self.c.mss.max(1))) as u32;
            undo.resent = undo.resent.saturating_sub(segments);
        }
    }

    /// Karn's rule is kept by `note`; what was sent twice is told apart by its timestamp (RFC 6298 section 3, RFC 7323 section 4).
    fn take_sample(&mut self, news: &News) {
        let samples = (self.a.board.bytes / (2 * u32::from(self.c.mss.max(1)))).max(1);
        if let Some(sample_ns) = news.sample_ns {
            self.c.rtt.on_sample(self.now, sample_ns, samples);
        } else if news.advanced > 0
            && let Some(echo) = news.echo
        {
            let sample_ms = self.c.clock(self.now).wrapping_sub(echo);
            if sample_ms < 60_000 {
                self.c.rtt.on_sample(self.now, u64::from(sample_ms.max(1)) * 1_000_000, samples);
            }
        }
    }

    /// What the congestion window makes of it.
    fn congest(&mut self, news: &News) {
        if self.a.phase == Phase::Recovery {
            return;
        }
        let (una, nxt) = (self.c.seq(self.c.snd.una), self.c.seq(self.c.snd.nxt));
        let mss_bytes = u32::from(self.c.mss);
        if news.marked && self.a.congestion.on_ecn_echo(self.now, self.a.board.bytes, una, nxt, mss_bytes) {
            self.c.flags.set(Flags::REDUCED);
            self.counters.on(Event::EcnReduced);
            return;
        }
        if news.delivered > 0 {
            let window_limited = std::mem::take(&mut self.a.limited) || self.a.phase == Phase::Loss;
            self.a.congestion.on_ack(&Ack {
                now: self.now,
                acked_bytes: news.delivered,
                una,
                nxt,
                rtt_ns: news.sample_ns,
                smoothed_ns: self.c.rtt.smoothed_ns().unwrap_or(0),
                window_limited,
                paced: self.rate().is_some(),
                mss_bytes,
            });
        }
    }

    /// Sets the retransmission timer for what is now to be waited for; `progress` says that it starts anew.
    pub(super) fn arm_alarm(&mut self, progress: bool) {
        use super::tick::Tick;
        use std::time::Duration;
        let rto = Duration::from_nanos(self.c.rtt.rto_ns());
        if self.a.board.is_empty() {
            if !self.c.has_unsent() {
                self.c.rtx_at = Tick::NONE;
            } else if progress || !self.c.rtx_at.is_set() || self.a.alarm != Alarm::Persist {
                self.a.alarm = Alarm::Persist;
                self.c.rtx_at = Tick::ahead(self.now, self.persist_wait());
            }
            return;
        }
        if let Some(patience) = self.patience() {
            self.a.alarm = Alarm::Reorder;
            self.c.rtx_at = Tick::ahead(self.now, patience.min(rto));
            return;
        }
        if let Some(wait) = self.tail_probe_wait() {
            if progress || self.a.alarm != Alarm::TailProbe || !self.c.rtx_at.is_set() {
                self.a.alarm = Alarm::TailProbe;
                self.c.rtx_at = Tick::ahead(self.now, wait.min(rto));
            }
            return;
        }
        if progress || self.a.alarm != Alarm::Retransmit || !self.c.rtx_at.is_set() {
            self.a.alarm = Alarm::Retransmit;
            self.c.rtx_at = Tick::ahead(self.now, rto);
        }
    }
}

/// What tells a copy from the original.
struct Echo {
    clock: u32,
    echo: Option<u32>,
    now: Instant,
}

impl Echo {
    /// RFC 8985 section 6.2 step 2: whether an acknowledgement of a record that was sent again may be of its first copy.
    fn is_ambiguous(&self, piece: &Record, min_rtt_ns: u64) -> bool {
        if piece.tries == 0 {
            return false;
        }
        let age = self.now - piece.sent_at;
        if let Some(echo) = self.echo {
            let sent_clock = self.clock.wrapping_sub(age.as_millis() as u32);
            if echo.wrapping_sub(sent_clock).cast_signed() < 0 {
                return true;
            }
        }
        (age.as_nanos() as u64) < min_rtt_ns
    }
}

/// Notes one piece that was not known to be delivered.
fn note(news: &mut News, piece: &Record, now: Instant, recovering: bool, point: u64) {
    news.delivered += piece.bytes;
    if piece.tries > 0 {
        return;
    }
    let sample_ns = (now - piece.sent_at).as_nanos() as u64;
    news.sample_ns = Some(news.sample_ns.map_or(sample_ns, |other| other.max(sample_ns)));
    if recovering && piece.end() <= point {
        news.original = true;
    }
}

/// The peer's window (RFC 9293 section 3.10.7.4, RFC 7323 section 2.3): an older segment does not move it.
pub(super) fn move_window(c: &mut Connection, segment: &Segment<'_>, ack: u64) {
    let window = u32::from(segment.tcp.window()) << c.snd_scale;
    let edge = ack + u64::from(window);
    let seq = segment.tcp.seq();
    let newer = seq.gt(c.wl1) || seq == c.wl1 && ack >= c.snd.una;
    if newer {
        c.wl1 = seq;
        c.snd.edge = edge;
        c.max_window = c.max_window.max(window);
    }
}
