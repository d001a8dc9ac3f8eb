//! Finding losses and repairing them: RACK and tail loss probes (RFC 8985), recovery with proportional rate reduction (RFC 6675,
//! RFC 9937), the retransmission timeout (RFC 6298, RFC 5681), and taking back what was done without need (RFC 5682, RFC 3522,
//! RFC 3708). Limited transmit (RFC 3042) follows from counting what the peer holds as gone from the network.
//!
//! Where the peer has no SACK, three acknowledgements without news lose the first segment, and each partial acknowledgement
//! the next (RFC 6582).

use super::ack::{News, Sender};
use super::active::{Alarm, Phase, Probe, Spurious, Undo};
use super::connection::Flags;
use super::counters::Event;
use super::inflight::{Fate, Record};
use super::prr::Prr;
use super::rack::Path;
use super::tick::Tick;
use std::time::Duration;

/// Beyond the least of two segments in flight: a peer may delay its acknowledgement (RFC 8985 section 7.2).
const TAIL_PROBE_SLACK_NS: u64 = 8_000_000;
/// With a single segment in flight a delayed acknowledgement is likely.
const DELAYED_ACK_MOST_NS: u64 = 200_000_000;
/// Acknowledgements without news that lose a segment (RFC 5681 section 3.2).
const DUPLICATE_THRESHOLD: u8 = 3;
/// The longest time between two probes of a closed window.
const PERSIST_MOST: Duration = Duration::from_secs(60);
/// The least timeout of RFC 6298 section 2.4; without an overrun that is [`super::rtt::MIN_VARIANCE_NS`] beyond the round trip.
const OVERRUN_RTO_NS: u64 = 1_000_000_000;

/// What an expired timer led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expired {
    /// something may be sent
    Send,
    /// a probe of the peer's window is to be sent
    ProbeWindow,
    /// the connection has tried often enough
    GiveUp,
}

impl Sender<'_> {
    /// What an acknowledgement means for losses.
    pub(super) fn recover(&mut self, news: &News, flight_before: u32) {
        self.judge_probe(news);
        self.judge_wider();
        if self.is_undone(news) {
            self.undo();
        }
        let mut again = false;
        if self.a.phase != Phase::Open && self.c.snd.una >= self.a.point {
            // RFC 5681 section 4.3: losses in two windows in a row, of which one reduction does not answer for both
            again = self.a.lost_beyond && !self.a.board.is_empty();
            self.finish_recovery();
        }
        if self.a.phase == Phase::Loss {
            self.test_spurious(news);
        }
        let mut lost = 0;
        if self.c.flags.has(Flags::SACK) {
            lost += self.find_losses();
        } else {
            lost += self.count_duplicates(news);
        }
        if (lost > 0 || again) && self.a.phase == Phase::Open {
            self.begin_recovery(flight_before);
        }
        // RFC 9937: good progress without further loss may grow the pipe as slow start does
        self.regulate(news.delivered, news.advanced > 0 && lost == 0);
    }

    /// During recovery the window is what PRR makes of what was delivered.
    fn regulate(&mut self, delivered: u32, safe: bool) {
        if self.a.phase == Phase::Recovery
            && let Some(prr) = &mut self.a.prr
            && let Some(window) = prr.on_ack(delivered, self.a.board.pipe(), safe, u32::from(self.c.mss))
        {
            self.a.congestion.set_window(window);
        }
    }

    fn path(&self) -> Path {
        Path {
            min_rtt_ns: self.c.rtt.min_ns().unwrap_or(0),
            smoothed_ns: self.c.rtt.smoothed_ns().unwrap_or(0),
            recovering: self.a.phase != Phase::Open,
            sacked_bytes: self.a.board.sacked,
            mss: u32::from(self.c.mss),
        }
    }

    /// Marks what RACK takes for lost; how many bytes, but those of a segment that the path may not carry, which tells nothing of
    /// congestion (RFC 4821 section 7.6.2).
    fn find_losses(&mut self) -> u32 {
        let (now, path, rack) = (self.now, self.path(), self.a.rack);
        if self.overtaken().next().is_none() {
            return 0;
        }
        let (tried, mut wide) = (self.a.wider.and_then(|wider| wider.tried), 0);
        let (point, mut beyond) = (self.a.point, false);
        let lost = self.records.lose(&mut self.a.board, |record| {
            let lost = rack.patience_ns(now, record, &path) == Some(0);
            if lost && Some(record.end()) == tried {
                wide = record.bytes;
            } else {
                beyond |= lost && record.end() > point;
            }
            lost
        });
        self.a.lost_beyond |= beyond && self.a.phase == Phase::Recovery;
        if wide > 0 {
            self.on_wider_lost();
        }
        lost - wide
    }

    /// The records that RACK may take for lost, and none behind the last of them: in most cases the first record says that there are
    /// none.
    fn overtaken(&self) -> impl Iterator<Item = &Record> {
        let mut behind = self.records.iter(&self.a.board).skip_while(|record| !self.a.rack.ends_at(record));
        debug_assert!(!behind.any(|record| self.a.rack.is_overtaken(record)), "a record behind the end was overtaken");
        let records = self.records.iter(&self.a.board).take_while(|record| !self.a.rack.ends_at(record));
        records.filter(|record| record.fate == Fate::Outstanding)
    }

    /// How long RACK waits for segments that were overtaken; None when there are none.
    pub(super) fn patience_ns(&self) -> Option<u64> {
        if !self.c.flags.has(Flags::SACK) {
            return None;
        }
        let path = self.path();
        self.overtaken().filter_map(|record| self.a.rack.patience_ns(self.now, record, &path)).max().map(|ns| ns.max(1))
    }

    /// Makes all that is in flight one record, which is lost: what it says of each segment is more than there are records for.
    #[cold]
    pub(super) fn fold(&mut self) {
        self.records.fold(&mut self.a.board);
        self.counters.on(Event::RecordsShort);
        if self.a.wider.is_some_and(|wider| wider.tried.is_some()) {
            self.on_wider_lost();
        }
    }

    /// Without SACK: RFC 5681 section 3.2 and RFC 6582.
    fn count_duplicates(&mut self, news: &News) -> u32 {
        let recovering = self.a.phase == Phase::Recovery;
        if recovering && news.advanced > 0 {
            // RFC 6582 section 3.2 has it go out at once: nothing but its acknowledgement may be left to come
            let lost = self.lose_first();
            self.a.force |= lost > 0;
            return lost;
        }
        if !news.repeated || self.a.phase == Phase::Loss {
            return 0;
        }
        self.a.duplicates = self.a.duplicates.saturating_add(1);
        if self.a.duplicates == DUPLICATE_THRESHOLD && !recovering { self.lose_first() } else { 0 }
    }

    /// The first segment is lost, and only it.
    fn lose_first(&mut self) -> u32 {
        let una = self.c.snd.una;
        let cut = una + u64::from(self.c.mss);
        self.records.cut_at(&mut self.a.board, cut);
        self.records.lose(&mut self.a.board, |record| record.start == una)
    }

    fn begin_recovery(&mut self, flight_before: u32) {
        self.a.phase = Phase::Recovery;
        self.a.point = self.c.snd.nxt;
        self.a.lost_beyond = false;
        self.a.undo = Some(Undo { resent: 0, clock: None });
        self.a.force = true;
        let (flight, nxt) = (self.a.board.bytes, self.c.seq(self.c.snd.nxt));
        let target = self.a.congestion.on_loss(flight, nxt, u32::from(self.c.mss));
        self.a.prr = Some(Prr::begin(target, flight_before));
        self.c.flags.set(Flags::REDUCED);
        self.counters.on(Event::Recovery);
    }

    fn finish_recovery(&mut self) {
        if self.a.phase == Phase::Recovery {
            self.a.congestion.on_recovered(self.now, u32::from(self.c.mss));
        }
        self.a.undo = None;
        self.a.prr = None;
        self.a.lost_beyond = false;
        self.a.phase = Phase::Open;
        self.a.spurious = Spurious::No;
        self.a.rack.on_recovered();
    }

    /// Whether the recovery under way was without need: every segment sent again was a duplicate (D-SACK), or
    /// the acknowledgement that moves the left edge was made before the first of them went out (RFC 3522).
    fn is_undone(&self, news: &News) -> bool {
        let Some(undo) = &self.a.undo else { return false };
        let Some(clock) = undo.clock else { return false };
        if news.duplicate && undo.resent == 0 {
            return true;
        }
        let older = news.echo.is_some_and(|echo| echo.wrapping_sub(clock).cast_signed() < 0);
        self.a.phase != Phase::Open && news.advanced > 0 && older
    }

    /// Takes back what the recovery did to the window.
    fn undo(&mut self) {
        self.a.congestion.on_spurious();
        self.a.undo = None;
        self.a.prr = None;
        self.a.lost_beyond = false;
        self.a.spurious = Spurious::No;
        if self.a.phase != Phase::Open {
            self.records.find_again(&mut self.a.board);
            self.a.phase = Phase::Open;
        }
        self.c.rtt.on_progress();
        self.counters.on(Event::Undone);
    }

    /// After a timeout: was it spurious? RFC 5682 section 3.1.
    fn test_spurious(&mut self, news: &News) {
        match self.a.spurious {
            Spurious::No => {}
            // data were delivered that were not sent again: they were only late
            Spurious::Asked | Spurious::Tested if news.original => self.undo(),
            // only new data test it; where the peer's window lets none go, repairs go on (step 2b)
            Spurious::Asked if news.advanced > 0 && self.window_lets_more() => {
                self.a.spurious = Spurious::Tested;
            }
            Spurious::Asked if news.advanced > 0 || news.delivered > 0 || news.repeated => {
                self.a.spurious = Spurious::No;
            }
            Spurious::Tested if news.advanced > 0 || news.delivered > 0 || news.repeated => {
                self.a.spurious = Spurious::No;
            }
            Spurious::Asked | Spurious::Tested => {}
        }
    }

    /// The end of a tail loss probe (RFC 8985 section 7.4).
    fn judge_probe(&mut self, news: &News) {
        let Some(probe) = self.a.probe else { return };
        if self.c.snd.una < probe.end {
            return;
        }
        if !probe.resent || news.probe_duplicate {
            self.a.probe = None;
            return;
        }
        if self.c.snd.una == probe.end {
            // either copy may be what is acknowledged; the other one would be told as a duplicate, or at least acknowledged
            if news.quiet {
                self.a.probe = None;
            }
            return;
        }
        self.a.probe = None;
        // the probe repaired a loss that nothing else told of: the window answers for it
        if self.a.phase == Phase::Open {
            let (nxt, mss) = (self.c.seq(self.c.snd.nxt), u32::from(self.c.mss));
            self.a.congestion.on_loss(self.a.board.bytes, nxt, mss);
            self.a.congestion.on_recovered(self.now, mss);
            self.c.flags.set(Flags::REDUCED);
        }
    }

    /// How long until a tail loss probe; None when none is to be sent (RFC 8985 section 7.2).
    pub(super) fn tail_probe_wait_ns(&self) -> Option<u64> {
        let usable = self.a.phase == Phase::Open && self.a.board.sacked == 0 && self.a.probe.is_none();
        if !usable || !self.c.flags.has(Flags::SACK) || self.c.backoff > 0 {
            return None;
        }
        let smoothed_ns = self.c.rtt.smoothed_ns()?;
        let single = self.a.board.bytes <= u32::from(self.c.mss);
        Some(2 * smoothed_ns + if single { DELAYED_ACK_MOST_NS } else { TAIL_PROBE_SLACK_NS })
    }

    /// Between two probes of a closed window: the timeout, doubled each time (RFC 9293 section 3.8.6.1).
    pub(super) fn persist_wait(&self) -> Duration {
        let rto = Duration::from_nanos(self.c.rtt.rto_ns());
        rto.saturating_mul(1 << self.c.backoff.min(10)).min(PERSIST_MOST)
    }

    /// The timer has expired while our own receive queue ran over, so that what is missing was most likely acknowledged and the
    /// acknowledgement lost here: what is sent again brings more frames to where there are too many. The first time nothing is
    /// done before the least timeout of RFC 6298 section 2.4 is over; whether that puts it off.
    pub(super) fn put_off_alarm(&mut self) -> bool {
        if !matches!(self.a.alarm, Alarm::TailProbe | Alarm::Retransmit) || self.c.backoff > 0 {
            return false;
        }
        let Some(head) = self.records.iter(&self.a.board).next() else { return false };
        let left_ns = OVERRUN_RTO_NS.saturating_sub(self.now.nanos_since(head.sent_at));
        if left_ns == 0 {
            return false;
        }
        self.a.alarm = Alarm::Retransmit;
        self.c.rtx_at = Tick::ahead_ns(self.now, left_ns);
        true
    }

    /// The timer has expired.
    pub(super) fn on_alarm(&mut self, tries_most: u8) -> Expired {
        self.c.rtx_at = Tick::NONE;
        match self.a.alarm {
            Alarm::Persist => {
                self.c.backoff = self.c.backoff.saturating_add(1);
                self.arm_alarm(false);
                if self.c.snd.edge > self.c.snd.nxt {
                    // a window that stays small is used (RFC 9293 section 3.8.6.2.1, the override timeout)
                    self.a.force = true;
                    return Expired::Send;
                }
                self.counters.on(Event::WindowProbe);
                Expired::ProbeWindow
            }
            Alarm::Reorder => {
                let flight = self.a.board.pipe();
                if self.find_losses() > 0 && self.a.phase == Phase::Open {
                    self.begin_recovery(flight);
                    self.regulate(0, false);
                }
                self.arm_alarm(false);
                Expired::Send
            }
            Alarm::TailProbe => {
                self.a.probe = Some(Probe { end: self.c.snd.nxt, resent: false });
                self.a.probe_now = true;
                // from here on the retransmission timer runs (RFC 8985 section 7.3)
                self.arm_alarm(true);
                Expired::Send
            }
            Alarm::Retransmit => self.on_timeout(tries_most),
        }
    }

    /// RFC 6298 section 5, RFC 5681 section 3.1, RFC 8985 section 6.3.
    fn on_timeout(&mut self, tries_most: u8) -> Expired {
        if self.c.backoff >= tries_most {
            return Expired::GiveUp;
        }
        self.counters.on(Event::RetransmissionTimeout);
        let fresh = self.a.phase != Phase::Loss || self.c.backoff == 0;
        self.c.backoff += 1;
        self.c.rtt.on_timeout();
        self.suspect_path();
        let una = self.c.snd.una;
        let head_held = self.records.iter(&self.a.board).next().is_some_and(|head| head.fate == Fate::Sacked);
        if head_held {
            // what the peer said it holds it has thrown away (RFC 2018 section 8)
            self.records.forget_sacks(&mut self.a.board);
        }
        if fresh {
            let first_try = self.records.iter(&self.a.board).next().is_some_and(|head| head.tries == 0);
            self.a.spurious = if first_try && self.a.phase == Phase::Open { Spurious::Asked } else { Spurious::No };
            self.a.undo = Some(Undo { resent: 0, clock: None });
        } else {
            self.a.spurious = Spurious::No;
        }
        let (nxt, mss) = (self.c.seq(self.c.snd.nxt), u32::from(self.c.mss));
        // One reduction answers for a window's losses: what recovery was under way to repair is not counted again.
        let answered = !fresh || self.a.phase == Phase::Recovery;
        self.a.congestion.on_timeout(self.a.board.bytes, nxt, answered, mss);
        self.a.phase = Phase::Loss;
        self.a.point = self.c.snd.nxt;
        self.a.prr = None;
        self.a.lost_beyond = false;
        self.a.probe = None;
        self.a.probe_now = false;
        self.a.force = true;
        if self.a.wider.is_some_and(|wider| wider.tried.is_some()) {
            self.on_wider_lost();
        }
        let patience = Duration::from_nanos(self.c.rtt.smoothed_ns().unwrap_or(0));
        let now = self.now;
        self.records.lose(&mut self.a.board, |record| record.start == una || record.sent_at + patience <= now);
        self.arm_alarm(true);
        Expired::Send
    }

    /// A segment of these bytes was sent again.
    pub(super) fn on_resent(&mut self, bytes: u32) {
        self.counters.on(Event::Retransmitted);
        let clock = self.c.clock(self.now);
        if let Some(undo) = &mut self.a.undo {
            undo.resent += 1;
            undo.clock.get_or_insert(clock);
        }
        self.on_sent(bytes);
    }

    /// A segment of these bytes was sent.
    pub(super) fn on_sent(&mut self, bytes: u32) {
        self.a.force = false;
        self.a.sent_at = self.now;
        if let Some(prr) = &mut self.a.prr {
            prr.on_sent(bytes);
        }
    }
}
