//! What an acknowledgement does to the sending half: what was delivered, the round-trip time, the peer's window, and what the
//! congestion window makes of it. Recovery itself is in `recovery`.

use super::active::{Active, Alarm, Phase};
use super::congestion::Ack;
use super::connection::{Connection, Flags, clock};
use super::counters::{Counters, Event};
use super::inflight::{Fate, Record, Records};
use super::segment::Segment;
use super::send::Queue;
use super::tick::Tick;
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
    /// what it had twice ends where the tail loss probe ended
    pub(super) probe_duplicate: bool,
    /// nothing is new, neither data nor window
    pub(super) quiet: bool,
    /// and something is outstanding (RFC 5681 section 2)
    pub(super) repeated: bool,
    /// congestion was marked on our way to the peer
    pub(super) marked: bool,
    /// the clock of ours that the peer echoes
    pub(super) echo: Option<u32>,
    /// the highest end known to be delivered before
    pub(super) forward: u64,
}

impl Sender<'_> {
    /// Processes the acknowledgement of a segment that was judged acceptable.
    pub(super) fn on_ack(&mut self, segment: &Segment<'_>) {
        let Some(ack) = self.c.position(segment.tcp.ack()).filter(|ack| *ack >= self.c.snd.una) else { return };
        let mut news = News { marked: self.is_marked(segment), forward: self.a.rack.forward(), ..News::default() };
        if self.c.flags.has(Flags::TIMESTAMPS) {
            news.echo = segment.timestamps().map(|clock| clock.echo);
        }
        let flight_before = self.a.board.pipe();
        let edge_before = self.c.snd.edge;
        let outstanding = !self.a.board.is_empty();
        self.apply_sack(segment, ack, &mut news);
        self.apply_ack(ack, &mut news);
        move_window(self.c, segment, ack);
        let same = news.advanced == 0 && self.c.snd.edge == edge_before;
        news.quiet = same && segment.tcp.payload().is_empty() && !segment.has(tcp::Flags::FIN);
        news.repeated = news.quiet && outstanding;
        self.take_sample(&news);
        self.recover(&news, flight_before);
        self.congest(&news);
        if news.advanced > 0 || news.delivered > 0 {
            self.c.backoff = 0;
        }
        self.a.progress |= news.advanced > 0;
        self.a.unset = true;
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
        let echo = self.echo(news);
        let rack = &mut self.a.rack;
        let (mss, mut carried) = (self.c.mss, self.c.flags.has(Flags::CARRIED));
        let mut repaired = false;
        self.records.acknowledge(&mut self.a.board, ack, |piece| {
            carried |= piece.segment_bytes >= mss && piece.bytes >= u32::from(mss) && piece.is_exact();
            repaired |= piece.tries > 0;
            if piece.fate != Fate::Sacked {
                note(news, piece, now, recovering, point);
                rack.on_delivered(now, piece, news.forward, echo.is_ambiguous(piece));
            }
        });
        self.c.flags.put(Flags::CARRIED, carried);
        if repaired && !self.c.flags.has(Flags::SACK) {
            // The repair closed a gap: nobody knows how long what lay behind it had been there. Only an acknowledgement of nothing that
            // was sent again tells (RFC 5682 section 2.1, step 3).
            (news.original, news.sample_ns) = (false, None);
        }
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
                let of_probe = self.a.probe.is_some_and(|probe| probe.resent && probe.end == right);
                news.probe_duplicate |= of_probe;
                self.on_duplicate(right - left, of_probe);
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
        let echo = self.echo(news);
        let rack = &mut self.a.rack;
        let complete = self.records.sack(&mut self.a.board, left, right, |piece| {
            note(news, piece, now, recovering, point);
            rack.on_delivered(now, piece, news.forward, echo.is_ambiguous(piece));
        });
        if !complete {
            self.counters.on(Event::no_record(self.records.lacks_for_blocks()));
        }
    }

    fn echo(&self, news: &News) -> Echo {
        Echo { now: self.now, offset: self.c.ts_offset, echo: news.echo, min_rtt_ns: self.c.rtt.min_ns().unwrap_or(0) }
    }

    /// The peer tells that it had bytes twice.
    fn on_duplicate(&mut self, bytes: u64, of_probe: bool) {
        self.counters.on(Event::DuplicateTold);
        if of_probe {
            // nothing was reordered: the acknowledgement came later than the probe's time
            return;
        }
        self.a.rack.on_duplicate(self.c.snd.una, self.c.snd.nxt);
        if let Some(undo) = &mut self.a.undo {
            let segments = bytes.div_ceil(u64::from(self.c.mss.max(1))) as u32;
            undo.resent = undo.resent.saturating_sub(segments);
        }
    }

    /// Karn's rule is kept by `note`; what was sent twice is told apart by its timestamp (RFC 6298 section 3, RFC 7323 section 4).
    fn take_sample(&mut self, news: &News) {
        let (bytes, each) = (self.a.board.bytes, 2 * u32::from(self.c.mss.max(1)));
        // most flights are of a few segments
        let samples = if bytes < 2 * each { 1 } else { bytes / each };
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
            // what was sent while the window held more back, however many acknowledgements come at once
            let una_before = self.c.snd.una - u64::from(news.advanced);
            let window_limited = una_before < self.a.limited_to || self.a.phase == Phase::Loss;
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

    /// Sets the retransmission timer, if acknowledgements wait for that.
    #[inline]
    pub(super) fn settle_alarm(&mut self) {
        if self.a.unset {
            self.arm_alarm(false);
        }
    }

    /// Sets the retransmission timer for what is now to be waited for; `anew` says that it starts anew, as it does when something was
    /// acknowledged.
    pub(super) fn arm_alarm(&mut self, anew: bool) {
        self.a.unset = false;
        let progress = std::mem::take(&mut self.a.progress) || anew;
        let head_resent = std::mem::take(&mut self.a.head_resent);
        let sent_new = std::mem::take(&mut self.a.sent_new);
        if self.a.board.is_empty() {
            if !self.c.has_unsent() {
                self.c.rtx_at = Tick::NONE;
            } else if progress || !self.c.rtx_at.is_set() || self.a.alarm != Alarm::Persist {
                self.a.alarm = Alarm::Persist;
                self.c.rtx_at = Tick::ahead(self.now, self.persist_wait());
            }
            return;
        }
        if self.a.alarm == Alarm::Persist {
            // it was probes of the window that were counted; nothing was lost
            self.c.backoff = 0;
        }
        let left_ns = self.timeout_left_ns(progress || head_resent);
        if let Some(patience_ns) = self.patience_ns().filter(|patience_ns| *patience_ns <= left_ns) {
            self.a.alarm = Alarm::Reorder;
            self.c.rtx_at = Tick::ahead_ns(self.now, patience_ns);
            return;
        }
        if let Some(wait_ns) = self.tail_probe_wait_ns() {
            // new data, too, put it off (RFC 8985 section 7.2)
            if progress || sent_new || self.a.alarm != Alarm::TailProbe || !self.c.rtx_at.is_set() {
                self.a.alarm = Alarm::TailProbe;
                self.c.rtx_at = Tick::ahead_ns(self.now, wait_ns.min(left_ns));
            }
            return;
        }
        if progress || head_resent || self.a.alarm != Alarm::Retransmit || !self.c.rtx_at.is_set() {
            self.a.alarm = Alarm::Retransmit;
            self.c.rtx_at = Tick::ahead_ns(self.now, left_ns);
        }
    }

    /// How long until the retransmission timeout. It counts from now when something new was acknowledged (RFC 6298 section
    /// 5.3), or when the first segment goes out again, which deserves a round trip as every segment does. Otherwise it has been
    /// running since the first segment went out, whatever the timer was set for meanwhile.
    fn timeout_left_ns(&self, anew: bool) -> u64 {
        let rto_ns = self.c.rtt.rto_ns();
        match self.records.iter(&self.a.board).next() {
            Some(head) if !anew => rto_ns.saturating_sub(self.now.nanos_since(head.sent_at)),
            _ => rto_ns,
        }
    }
}

/// What tells a copy from the original.
struct Echo {
    now: Instant,
    /// of our clock
    offset: u32,
    echo: Option<u32>,
    min_rtt_ns: u64,
}

impl Echo {
    /// RFC 8985 section 6.2 step 2: whether an acknowledgement of a record that was sent again may be of its first copy.
    fn is_ambiguous(&self, piece: &Record) -> bool {
        if piece.tries == 0 {
            return false;
        }
        if let Some(echo) = self.echo
            && echo.wrapping_sub(clock(piece.sent_at, self.offset)).cast_signed() < 0
        {
            return true;
        }
        self.now.nanos_since(piece.sent_at) < self.min_rtt_ns
    }
}

/// Notes one piece that was not known to be delivered.
fn note(news: &mut News, piece: &Record, now: Instant, recovering: bool, point: u64) {
    news.delivered += piece.bytes;
    if piece.tries > 0 {
        return;
    }
    // of what went out at several times nobody knows which was acknowledged
    if piece.is_exact() {
        let sample_ns = now.nanos_since(piece.sent_at);
        news.sample_ns = Some(news.sample_ns.map_or(sample_ns, |other| other.max(sample_ns)));
    }
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

#[cfg(test)]
mod tests {
    use super::super::inflight::Board;
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_copys_timestamp_is_known_to_the_millisecond() {
        let offset = 77;
        // 40 ms and a bit after it went out again, wherever in its millisecond that was
        for sent_us in 100_000..101_000 {
            let sent_at = Instant::ZERO + Duration::from_micros(sent_us);
            let (mut records, mut board) = (Records::new(2), Board::default());
            assert!(records.push(&mut board, Instant::ZERO, 0, 1000, 1000));
            records.lose(&mut board, |_| true);
            assert!(records.resend(&mut board, sent_at, 0, 1000, 1000));
            let piece = *records.iter(&board).next().unwrap();
            let now = sent_at + Duration::from_micros(40_300);
            let carried = clock(sent_at, offset);
            let of = |echo| Echo { now, offset, echo: Some(echo), min_rtt_ns: 40_000_000 };
            assert!(!of(carried).is_ambiguous(&piece), "the copy's own clock, sent at {sent_us} us");
            assert!(of(carried - 1).is_ambiguous(&piece), "the clock of before, sent at {sent_us} us");
        }
    }
}
