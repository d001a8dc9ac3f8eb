//! The growth of CUBIC in congestion avoidance (RFC 9438 sections 4.2 to 4.5): a cubic function of the time since the
//! last reduction, and at least what Reno would reach.
//!
//! Time in which the window was not what limited the sender does not count (RFC 9438 section 5.8): afterwards the curve
//! is shifted so that it goes through the window as it is, never forward. Arithmetic is in 64-bit floats, a few
//! nanoseconds an acknowledgement; windows are whole bytes, with the fractions kept.

use base::Instant;

/// C, in segments a second cubed (RFC 9438 section 5.1)
const C: f64 = 0.4;
/// Multiplicative decrease (RFC 9438 section 4.6)
pub(crate) const BETA: f64 = 0.7;
/// Additive increase that makes Reno's share with that decrease (RFC 9438 section 4.3)
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Nanoseconds of a step of the epoch's clock, as a shift; the clock wraps after 78 hours.
const STEP_SHIFT: u32 = 16;

/// One congestion avoidance stage, from a reduction or the end of slow start on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch {
    /// t_epoch in steps of 2^16 ns
    start: u32,
    /// K in seconds
    k_s: f32,
    /// W_est
    pub(super) est_bytes: u32,
    est_fraction: f32,
    window_fraction: f32,
    /// the window did not limit lately, so `start` is to be shifted
    frozen: bool,
}

/// What an acknowledgement meets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    pub(crate) cwnd: u32,
    pub(crate) w_max: u32,
    pub(crate) cwnd_prior: u32,
    pub(crate) mss: u32,
}

fn steps(now: Instant) -> u32 {
    (now.as_nanos() >> STEP_SHIFT) as u32
}

fn seconds(steps: u32) -> f64 {
    f64::from(steps) * ((1u64 << STEP_SHIFT) as f64 / 1e9)
}

impl Epoch {
    /// Congestion avoidance begins at this window. Where it is not below W_max, as after slow start or a timeout, K is
    /// zero and W_max is the window (RFC 9438 sections 4.8 and 4.10): the caller sets it so.
    pub(crate) fn begin(now: Instant, windows: &Windows) -> Epoch {
        let below = f64::from(windows.w_max.saturating_sub(windows.cwnd)) / f64::from(windows.mss);
        Epoch {
            start: steps(now),
            k_s: (below / C).cbrt() as f32,
            est_bytes: windows.cwnd,
            est_fraction: 0.0,
            window_fraction: 0.0,
            frozen: false,
        }
    }

    /// The window does not limit the sender now.
    pub(crate) fn freeze(&mut self) {
        self.frozen = true;
    }

    /// W_cubic(t) in bytes (RFC 9438 section 4.2)
    fn curve(&self, t_s: f64, windows: &Windows) -> f64 {
        let from_k = t_s - f64::from(self.k_s);
        C * from_k * from_k * from_k * f64::from(windows.mss) + f64::from(windows.w_max)
    }

    /// The window after `acked` bytes.
    pub(crate) fn on_ack(&mut self, now: Instant, acked: u32, smoothed_ns: u64, windows: &Windows) -> u32 {
        if self.frozen {
            self.frozen = false;
            self.shift(now, windows);
        }
        let cwnd = f64::from(windows.cwnd);
        let share = f64::from(acked) / cwnd;
        // Reno's window (section 4.3): W_est + alpha * segments_acked / cwnd, alpha one beyond the window before the
        // reduction
        let alpha = if self.est_bytes >= windows.cwnd_prior { 1.0 } else { ALPHA };
        let grown = alpha * share * f64::from(windows.mss) + f64::from(self.est_fraction);
        self.est_bytes = self.est_bytes.saturating_add(grown as u32).min(super::MAX_WINDOW_BYTES);
        self.est_fraction = grown.fract() as f32;

        let t_s = seconds(steps(now).wrapping_sub(self.start));
        if self.curve(t_s, windows) < f64::from(self.est_bytes) {
            self.window_fraction = 0.0;
            return windows.cwnd.max(self.est_bytes);
        }
        // sections 4.4 and 4.5: towards the curve one round trip ahead, by half the window in a round trip at most
        let target = self.curve(t_s + smoothed_ns as f64 / 1e9, windows).clamp(cwnd, 1.5 * cwnd);
        let grown = (target - cwnd) * share + f64::from(self.window_fraction);
        self.window_fraction = grown.fract() as f32;
        windows.cwnd.saturating_add(grown as u32)
    }

    /// Shifts the curve so that it goes through the window as it is now, unless that would be forward in time.
    fn shift(&mut self, now: Instant, windows: &Windows) {
        let above = (f64::from(windows.cwnd) - f64::from(windows.w_max)) / f64::from(windows.mss);
        let t_s = (f64::from(self.k_s) + (above / C).cbrt()).max(0.0);
        let elapsed = steps(now).wrapping_sub(self.start);
        if t_s < seconds(elapsed) {
            self.start = steps(now).wrapping_sub((t_s / seconds(1)) as u32);
        }
    }
}
