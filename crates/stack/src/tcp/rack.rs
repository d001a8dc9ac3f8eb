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
    /// The highest end delivered so far (RACK.fack).
    pub(crate) fn forward(&self) -> u64 {
        self.forward
    }

    /// A piece was delivered. `ambiguous` says of one that was sent again that its first copy may be what was acknowledged
    /// (section 6.2 step 2). `forward` is what [`Rack::forward`] was before this acknowledgement: whatever one acknowledgement
    /// tells of came in an order that nobody knows, and data below its SACK blocks are no sign of reordering (step 3).
    pub(crate) fn on_delivered(&mut self, now: Instant, piece: &Record, forward: u64, ambiguous: bool) {
        let end = piece.end();
        self.forward = self.forward.max(end);
        if end < forward && piece.tries == 0 {
            self.reordered = true;
        }
        if piece.tries > 0 && ambiguous {
            return;
        }
        // of what went out at several times it may be the first
        let sent_at = piece.first_at();
        self.rtt_ns = now.nanos_since(sent_at);
        if (sent_at, end) > (self.sent_at, self.end) {
            (self.sent_at, self.end) = (sent_at, end);
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

    /// Whether something sent after the record has arrived.
    pub(crate) fn is_overtaken(&self, record: &Record) -> bool {
        (record.sent_at, record.end()) < (self.sent_at, self.end)
    }

    /// Whether a record is reached, going by position, from which on none is overtaken: first copies leave in order, and others
    /// later than their first.
    pub(crate) fn ends_at(&self, record: &Record) -> bool {
        record.tries == 0 && !self.is_overtaken(record)
    }

    /// Step 5 for one outstanding record: how long until it counts as lost, zero when it does now; None when nothing sent after
    /// it has arrived.
    pub(crate) fn patience_ns(&self, now: Instant, record: &Record, path: &Path) -> Option<u64> {
        if !self.is_overtaken(record) {
            return None;
        }
        let due_ns = record.sent_at.as_nanos() + self.rtt_ns + self.window_ns(path);
        Some(due_ns.saturating_sub(now.as_nanos()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::inflight::{Board, Records};
    use super::*;
    use std::time::Duration;

    const MSS: u32 = 1000;

    fn path(sacked_segments: u32) -> Path {
        Path {
            min_rtt_ns: 40_000_000,
            smoothed_ns: 40_000_000,
            recovering: false,
            sacked_bytes: sacked_segments * MSS,
            mss: MSS,
        }
    }

    /// Segments sent one millisecond after the other, the n-th from position 1000 n on.
    fn sent(segments: u64) -> Vec<Record> {
        let (mut records, mut board) = (Records::new(100), Board::default());
        for n in 0..segments {
            let at = Instant::ZERO + Duration::from_millis(n);
            assert!(records.push(&mut board, at, n * 1000, MSS, MSS as u16));
        }
        records.iter(&board).copied().collect()
    }

    /// One acknowledgement 40 ms later that tells of these, in this order.
    fn acknowledge(rack: &mut Rack, pieces: &[Record]) {
        let forward = rack.forward();
        for piece in pieces {
            rack.on_delivered(piece.sent_at + Duration::from_millis(40), piece, forward, false);
        }
    }

    #[test]
    fn what_one_acknowledgement_tells_of_has_no_order() {
        let sent = sent(6);
        let mut rack = Rack::default();
        acknowledge(&mut rack, &sent[..1]);
        // the second, of which the acknowledgement was delayed, is told with the SACK block behind the third, which was lost
        acknowledge(&mut rack, &[sent[3], sent[1]]);
        acknowledge(&mut rack, &sent[4..5]);
        acknowledge(&mut rack, &sent[5..]);
        let now = sent[5].sent_at + Duration::from_millis(40);
        assert_eq!(
            rack.patience_ns(now, &sent[2], &path(3)),
            Some(0),
            "lost as soon as three segments have overtaken it"
        );
    }

    #[test]
    fn what_a_later_acknowledgement_tells_of_was_overtaken() {
        let sent = sent(6);
        let mut rack = Rack::default();
        acknowledge(&mut rack, &sent[..2]);
        acknowledge(&mut rack, &sent[3..4]);
        acknowledge(&mut rack, &sent[2..3]);
        acknowledge(&mut rack, &sent[5..]);
        let now = sent[5].sent_at + Duration::from_millis(40);
        // a quarter of the least round trip, of which a millisecond has passed since it went out before the last one
        assert_eq!(rack.patience_ns(now, &sent[4], &path(3)), Some(9_000_000));
    }
}
