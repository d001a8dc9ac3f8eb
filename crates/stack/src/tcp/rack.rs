//! RACK (RFC 8985 section 6): a segment is lost when one that was sent later has arrived, and the time for which the network may
//! reorder has passed.

use super::inflight::Record;
use base::Instant;

/// Segments delivered out of order that count as a sign of loss while nothing was ever reordered (RFC 5681).
const DUPLICATE_THRESHOLD: u32 = 3;
/// Recoveries for which a widened window stays (RFC 8985 section 6.2 step 4).
const PERSIST: u8 = 16;

/// RACK's variables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rack {
    /// when the segment went out that was sent last of all delivered ones (RACK.xmit_ts)
    sent_at: Instant,
    /// and where it ends (RACK.end_seq)
    end: u64,
    /// the highest end delivered (RACK.fack)
    forward: u64,
    /// behind this the next D-SACK widens the window again; zero for at once
    round: u64,
    /// RACK.rtt
    rtt_ns: u64,
    reordered: bool,
    /// in quarters of the least round trip (RACK.reo_wnd_mult)
    quarters: u8,
    persist: u8,
}

/// What the reordering window depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) min_rtt_ns: u64,
    pub(crate) smoothed_ns: u64,
    /// something is being recovered
    pub(crate) recovering: bool,
    /// bytes that the peer holds beyond a gap
    pub(crate) sacked_bytes: u32,
    pub(crate) mss: u32,
}

impl Default for Rack {
    fn default() -> Rack {
        Rack {
            sent_at: Instant::ZERO,
            end: 0,
            forward: 0,
            round: 0,
            rtt_ns: 0,
            reordered: false,
            quarters: 1,
            persist: PERSIST,
        }
    }
}

impl Rack {
    /// A piece was delivered. `ambiguous` says of one that was sent again that its first copy may be what was acknowledged
    /// (section 6.2 step 2).
    pub(crate) fn on_delivered(&mut self, now: Instant, piece: &Record, ambiguous: bool) {
        let end = piece.end();
        if end > self.forward {
            self.forward = end;
        } else if end < self.forward && piece.tries == 0 {
            self.reordered = true;
        }
        if piece.tries > 0 && ambiguous {
            return;
        }
        self.rtt_ns = (now - piece.sent_at).as_nanos() as u64;
        if (piece.sent_at, end) > (self.sent_at, self.end) {
            (self.sent_at, self.end) = (piece.sent_at, end);
        }
    }

    /// The peer told of bytes that came twice: some were sent again without need, so the window widens, once a round trip.
    pub(crate) fn on_duplicate(&mut self, una: u64, nxt: u64) {
        if una >= self.round {
            self.round = nxt;
            self.quarters = self.quarters.saturating_add(1);
            self.persist = PERSIST;
        }
    }

    /// A recovery is over.
    pub(crate) fn on_recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.quarters = 1;
        }
    }

    /// Step 4: how long a segment may be overtaken.
    fn window_ns(&self, path: &Path) -> u64 {
        let gone = path.recovering || path.sacked_bytes > (DUPLICATE_THRESHOLD - 1) * path.mss;
        if !self.reordered && gone {
            return 0;
        }
        (u64::from(self.quarters) * path.min_rtt_ns / 4).min(path.smoothed_ns)
    }

    /// Step 5 for one outstanding record: how long until it counts as lost, zero when it does now; None when nothing sent after
    /// it has arrived.
    pub(crate) fn patience_ns(&self, now: Instant, record: &Record, path: &Path) -> Option<u64> {
        if (record.sent_at, record.end()) >= (self.sent_at, self.end) {
            return None;
        }
        let due_ns = record.sent_at.as_nanos() + self.rtt_ns + self.window_ns(path);
        Some(due_ns.saturating_sub(now.as_nanos()))
    }
}
