//! Congestion control: CUBIC (RFC 9438) and NewReno (RFC 5681, RFC 6582), with a common slow start, undo, idle and ECN.
//!
//! Windows are in bytes; the MSS comes with each call, since path MTU discovery may change it. Growth counts
//! acknowledged bytes (RFC 3465), so splitting acknowledgements gains a peer nothing, and happens only while the window
//! is what limits the sender, so that the window stays a statement about the path. During fast recovery [`super::prr`]
//! rules the window ([`Congestion::set_window`]); it begins and ends here.
//!
//! Left out: pacing rates ([`super::pace`]), which bytes are lost (the caller's scoreboard), L4S and accurate ECN.

mod cubic;
mod hystart;
#[cfg(test)]
mod path_tests;
#[cfg(test)]
mod tests;

use super::{prr::Prr, rtt::Rtt};
use base::{Instant, Seq};
use cubic::{Epoch, Windows};
use hystart::HyStart;

/// No window is larger: what a scaled window field can tell (RFC 7323 section 2.3).
pub const MAX_WINDOW_BYTES: u32 = 65_535 << 14;

/// Growth for one acknowledgement in slow start without pacing, in segments. RFC 3465 has 2, RFC 9406 has 8; peers
/// whose devices or kernels merge what they receive acknowledge 64 KiB at once, and the burst that follows leaves as
/// one piece too.
const SLOW_START_LIMIT_SEGMENTS: u32 = 44;

/// Which algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// RFC 9438
    #[default]
    Cubic,
    /// RFC 5681 with RFC 6582
    NewReno,
}

/// What an acknowledgement outside of recovery says.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// when it came
    pub now: Instant,
    /// bytes that it acknowledges for the first time, cumulatively or selectively
    pub acked_bytes: u32,
    /// SND.UNA after it
    pub una: Seq,
    /// SND.NXT
    pub nxt: Seq,
    /// the round-trip time that it measured
    pub rtt_ns: Option<u64>,
    /// SRTT
    pub smoothed_ns: u64,
    /// since the acknowledgement before, more was there to send than the window allowed
    pub window_limited: bool,
    /// the connection is paced
    pub paced: bool,
    /// bytes of the largest segment, options taken off
    pub mss_bytes: u32,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// the first slow start: no loss was seen, ssthresh is infinite
    First(HyStart),
    /// slow start towards a threshold that is known
    Again,
    Cubic(Epoch),
    /// bytes acknowledged towards the next segment (RFC 3465 section 2.1)
    Reno {
        acked: u32,
    },
}

/// What was before a reduction, as long as it may turn out to have been wrong.
#[derive(Clone, Copy, Debug)]
struct Undo {
    cwnd: u32,
    ssthresh: u32,
    w_max: u32,
    cwnd_prior: u32,
    phase: Phase,
}

/// Congestion control of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Congestion {
    cwnd: u32,
    /// [`u32::MAX`] until something is known
    ssthresh: u32,
    /// W_max of CUBIC
    w_max: u32,
    /// cwnd_prior of CUBIC: the window before the last reduction
    cwnd_prior: u32,
    phase: Phase,
    undo: Option<Undo>,
    /// until this is acknowledged, ECN brings no further reduction, if `reduced`
    reduced_until: Seq,
    reduced: bool,
    /// between the first reduction and the end of recovery
    recovering: bool,
    algorithm: Algorithm,
}

const _: () = {
    assert!(size_of::<Congestion>() <= 104);
    assert!(size_of::<Congestion>() + size_of::<Rtt>() + size_of::<Prr>() <= 160);
};

/// The initial window (RFC 6928 section 2): ten segments, 14,600 bytes at most where segments are small enough for that
/// to be two.
pub fn initial_window(mss_bytes: u32) -> u32 {
    (10 * mss_bytes).min((2 * mss_bytes).max(14_600))
}

impl Congestion {
    /// A connection that begins.
    pub fn new(algorithm: Algorithm, mss_bytes: u32) -> Congestion {
        Congestion {
            cwnd: initial_window(mss_bytes),
            ssthresh: u32::MAX,
            w_max: 0,
            cwnd_prior: 0,
            phase: Phase::First(HyStart::new()),
            undo: None,
            reduced_until: Seq::new(0),
            reduced: false,
            recovering: false,
            algorithm,
        }
    }

    /// cwnd: bytes that may be in flight.
    #[inline]
    pub fn window(&self) -> u32 {
        self.cwnd
    }

    /// ssthresh, [`u32::MAX`] until something is known.
    #[inline]
    pub fn threshold(&self) -> u32 {
        self.ssthresh
    }

    /// Whether the window grows exponentially.
    #[inline]
    pub fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Which algorithm it is.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Sets the window during fast recovery, to what [`super::prr::Prr::on_ack`] says.
    #[inline]
    pub fn set_window(&mut self, window_bytes: u32) {
        self.cwnd = window_bytes.min(MAX_WINDOW_BYTES);
    }

    /// Before anything is sent: the handshake needed more than one retransmission, so one segment begins (RFC 5681 section 3.1, and
    /// RFC 6928 section 2, which lets a single one pass).
    pub fn on_lost_handshake(&mut self, mss_bytes: u32) {
        self.cwnd = mss_bytes;
    }

    /// Takes an acknowledgement of new data outside of fast recovery.
    pub fn on_ack(&mut self, ack: &Ack) {
        let mut acked = ack.acked_bytes;
        if self.reduced && ack.una.geq(self.reduced_until) {
            // All that was in flight is acknowledged: what a timeout lost too. It can still be undone, until the next
            // reduction. Forgotten in time, before sequence numbers wrap.
            (self.reduced, self.recovering) = (false, false);
        }
        // rounds go on whether the window limits or not
        let divisor = match &mut self.phase {
            Phase::First(hystart) => hystart.on_ack(ack.una, ack.nxt, ack.rtt_ns),
            _ => Some(1),
        };
        if divisor.is_none() {
            // RFC 9406 section 4.2: conservative slow start found the delay to stay
            self.ssthresh = self.cwnd;
        }
        if !ack.window_limited {
            if let Phase::Cubic(epoch) = &mut self.phase {
                epoch.freeze();
            }
            return;
        }
        if self.in_slow_start() {
            let limit = if ack.paced { u32::MAX } else { SLOW_START_LIMIT_SEGMENTS.saturating_mul(ack.mss_bytes) };
            let growth = acked.min(limit) / divisor.unwrap_or(1);
            let room = self.ssthresh - self.cwnd;
            if growth < room {
                self.cwnd = self.cwnd.saturating_add(growth).min(MAX_WINDOW_BYTES);
                return;
            }
            // what leads beyond the threshold counts in congestion avoidance
            self.cwnd = self.ssthresh;
            acked = growth - room;
        }
        self.avoid(ack, acked);
    }

    fn avoid(&mut self, ack: &Ack, acked: u32) {
        if matches!(self.phase, Phase::First(_) | Phase::Again) {
            self.begin_avoidance(ack.now, ack.mss_bytes);
        }
        let windows = self.windows(ack.mss_bytes);
        match &mut self.phase {
            Phase::Cubic(epoch) => {
                let cwnd = epoch.on_ack(ack.now, acked, ack.smoothed_ns, &windows);
                self.cwnd = cwnd.min(MAX_WINDOW_BYTES);
            }
            // RFC 5681 section 3.1 and RFC 3465 section 2.1: a segment for each window acknowledged
            Phase::Reno { acked: so_far } => {
                *so_far = so_far.saturating_add(acked);
                while *so_far >= self.cwnd {
                    *so_far -= self.cwnd;
                    self.cwnd = (self.cwnd + ack.mss_bytes).min(MAX_WINDOW_BYTES);
                }
            }
            Phase::First(_) | Phase::Again => {}
        }
    }

    fn windows(&self, mss: u32) -> Windows {
        Windows { cwnd: self.cwnd, w_max: self.w_max, cwnd_prior: self.cwnd_prior, mss }
    }

    fn begin_avoidance(&mut self, now: Instant, mss_bytes: u32) {
        self.phase = match self.algorithm {
            Algorithm::NewReno => Phase::Reno { acked: 0 },
            Algorithm::Cubic => {
                // RFC 9438 sections 4.8 and 4.10: from slow start the curve begins at its plateau
                self.w_max = self.w_max.max(self.cwnd);
                Phase::Cubic(Epoch::begin(now, &self.windows(mss_bytes)))
            }
        };
    }

    /// Loss was found and fast recovery begins: returns the new threshold, at which recovery is to end. `flight_bytes`
    /// is SND.NXT - SND.UNA, `nxt` SND.NXT. The window is the caller's (PRR) until [`Congestion::on_recovered`].
    pub fn on_loss(&mut self, flight_bytes: u32, nxt: Seq, mss_bytes: u32) -> u32 {
        self.remember();
        self.reduce(self.loss_factor(), flight_bytes, mss_bytes);
        (self.reduced, self.reduced_until) = (true, nxt);
        self.ssthresh
    }

    /// Fast recovery is over: the window is the threshold (RFC 9937 section 6.2). It can still be undone, since a
    /// D-SACK comes later, until the next reduction.
    pub fn on_recovered(&mut self, now: Instant, mss_bytes: u32) {
        self.recovering = false;
        self.cwnd = self.ssthresh.min(MAX_WINDOW_BYTES);
        self.begin_avoidance(now, mss_bytes);
    }

    /// The retransmission timer expired (RFC 5681 section 3.1, RFC 9438 section 4.8): one segment, slow start. `answered`:
    /// the threshold stays, because the segment was timed out before (RFC 5681 section 3.1), or because the recovery that
    /// was under way has reduced it for the same window of data.
    pub fn on_timeout(&mut self, flight_bytes: u32, nxt: Seq, answered: bool, mss_bytes: u32) {
        self.remember();
        if !answered {
            self.reduce(self.loss_factor(), flight_bytes, mss_bytes);
        }
        // the next stage begins at its plateau
        self.w_max = 0;
        self.cwnd = mss_bytes;
        self.phase = Phase::Again;
        (self.reduced, self.reduced_until) = (true, nxt);
    }

    /// The peer echoes congestion (RFC 3168 section 6.1.2): reduces the window at most once a window of data, by the
    /// factor of RFC 8511. Whether it did, so that CWR is to be sent.
    pub fn on_ecn_echo(&mut self, now: Instant, flight_bytes: u32, una: Seq, nxt: Seq, mss_bytes: u32) -> bool {
        if self.reduced && una.lt(self.reduced_until) {
            return false;
        }
        // RFC 8511 section 3: 0.8 for Reno, 0.85 for CUBIC
        let factor = match self.algorithm {
            Algorithm::Cubic => 0.85,
            Algorithm::NewReno => 0.8,
        };
        // what came before cannot be told apart from this any more
        self.undo = None;
        self.reduce(factor, flight_bytes, mss_bytes);
        self.cwnd = self.ssthresh;
        self.begin_avoidance(now, mss_bytes);
        (self.reduced, self.reduced_until) = (true, nxt);
        true
    }

    /// The last reduction was for nothing: what was thought lost had only been late (RFC 5682, RFC 3708, RFC 9438
    /// section 4.9). Everything is as it was before it; whether there was anything to undo.
    pub fn on_spurious(&mut self) -> bool {
        let Some(undo) = self.undo.take() else { return false };
        self.cwnd = self.cwnd.max(undo.cwnd);
        self.ssthresh = undo.ssthresh;
        (self.w_max, self.cwnd_prior, self.phase) = (undo.w_max, undo.cwnd_prior, undo.phase);
        // the time that recovery took does not count
        if let Phase::Cubic(epoch) = &mut self.phase {
            epoch.freeze();
        }
        (self.reduced, self.recovering) = (false, false);
        true
    }

    /// Data are about to be sent after `idle_ns` without any (RFC 5681 section 4.1): after more than a timeout the
    /// window is the initial one at most. The threshold remembers three quarters of the old one (RFC 2861 section 2),
    /// so that slow start leads back.
    pub fn on_idle(&mut self, idle_ns: u64, rto_ns: u64, mss_bytes: u32) {
        if let Phase::Cubic(epoch) = &mut self.phase {
            epoch.freeze();
        }
        let restart = initial_window(mss_bytes);
        if idle_ns <= rto_ns || self.cwnd <= restart {
            return;
        }
        if self.ssthresh == u32::MAX {
            // nothing is known still: rounds are measured anew
            self.phase = Phase::First(HyStart::new());
        } else {
            self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
            self.phase = Phase::Again;
        }
        self.undo = None;
        self.cwnd = restart;
    }

    /// The factor of a loss.
    fn loss_factor(&self) -> f64 {
        match self.algorithm {
            Algorithm::Cubic => cubic::BETA,
            Algorithm::NewReno => 0.5,
        }
    }

    /// Keeps what is before the first reduction of a recovery.
    fn remember(&mut self) {
        if !self.recovering {
            self.recovering = true;
            let Congestion { cwnd, ssthresh, w_max, cwnd_prior, phase, .. } = *self;
            self.undo = Some(Undo { cwnd, ssthresh, w_max, cwnd_prior, phase });
        }
    }

    /// Sets the threshold, and CUBIC's plateau. NewReno goes by the flight (RFC 5681 equation 4); CUBIC by the window,
    /// as RFC 9438 section 4.6 allows who does not let it grow beyond what is used.
    fn reduce(&mut self, factor: f64, flight_bytes: u32, mss_bytes: u32) {
        let base = match self.algorithm {
            Algorithm::Cubic => self.cwnd,
            Algorithm::NewReno => flight_bytes.min(self.cwnd),
        };
        self.ssthresh = ((f64::from(base) * factor) as u32).max(2 * mss_bytes);
        if self.algorithm == Algorithm::Cubic {
            // RFC 9438 section 4.7, fast convergence: a window below the last plateau makes room for others
            let cwnd = f64::from(self.cwnd);
            self.w_max = if self.cwnd < self.w_max { (cwnd * (1.0 + cubic::BETA) / 2.0) as u32 } else { self.cwnd };
            self.cwnd_prior = self.cwnd;
        }
    }
}
