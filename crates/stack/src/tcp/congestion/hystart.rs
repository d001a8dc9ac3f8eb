//! HyStart++ (RFC 9406): the first slow start ends when round trips become longer, before packets are lost; a phase of
//! slower growth in between shows whether the delay was there to stay.

use base::Seq;

/// Samples of a round that must be there before it is judged (N_RTT_SAMPLE, RFC 9406 section 4.3)
const SAMPLES: u8 = 8;
/// MIN_RTT_THRESH
const MIN_THRESHOLD_US: u32 = 4_000;
/// MAX_RTT_THRESH
const MAX_THRESHOLD_US: u32 = 16_000;
/// MIN_RTT_DIVISOR
const THRESHOLD_DIVISOR: u32 = 8;
/// CSS_GROWTH_DIVISOR
const CSS_GROWTH_DIVISOR: u32 = 4;
/// CSS_ROUNDS
const CSS_ROUNDS: u8 = 5;
/// no sample yet
const INFINITE_US: u32 = u32::MAX;

/// The rounds of one slow start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HyStart {
    /// windowEnd: the round ends when it is acknowledged
    round_end: Seq,
    last_min_us: u32,
    current_min_us: u32,
    /// cssBaselineMinRtt; infinite outside of conservative slow start
    baseline_us: u32,
    samples: u8,
    css_rounds: u8,
    begun: bool,
}

impl HyStart {
    pub(crate) const fn new() -> HyStart {
        HyStart {
            round_end: Seq::new(0),
            last_min_us: INFINITE_US,
            current_min_us: INFINITE_US,
            baseline_us: INFINITE_US,
            samples: 0,
            css_rounds: 0,
            begun: false,
        }
    }

    /// Takes an acknowledgement up to `una` while `nxt` is the next to be sent. Returns the divisor of the growth,
    /// `None` when slow start is over (RFC 9406 section 4.2).
    pub(crate) fn on_ack(&mut self, una: Seq, nxt: Seq, rtt_ns: Option<u64>) -> Option<u32> {
        if self.css_rounds >= CSS_ROUNDS {
            return None;
        }
        if !self.begun {
            (self.begun, self.round_end) = (true, nxt);
        }
        if let Some(rtt_ns) = rtt_ns {
            let rtt_us = u32::try_from(rtt_ns / 1000).unwrap_or(INFINITE_US - 1).min(INFINITE_US - 1);
            self.current_min_us = self.current_min_us.min(rtt_us);
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= SAMPLES {
            if self.in_css() {
                if self.current_min_us < self.baseline_us {
                    // the delay went away: slow start goes on
                    self.baseline_us = INFINITE_US;
                }
            } else if self.last_min_us != INFINITE_US {
                let threshold = (self.last_min_us / THRESHOLD_DIVISOR).clamp(MIN_THRESHOLD_US, MAX_THRESHOLD_US);
                if self.current_min_us >= self.last_min_us.saturating_add(threshold) {
                    (self.baseline_us, self.css_rounds) = (self.current_min_us, 0);
                }
            }
        }
        if una.geq(self.round_end) {
            self.round_end = nxt;
            (self.last_min_us, self.current_min_us, self.samples) = (self.current_min_us, INFINITE_US, 0);
            if self.in_css() {
                // the round in which it began counts too
                self.css_rounds += 1;
                if self.css_rounds >= CSS_ROUNDS {
                    return None;
                }
            }
        }
        Some(if self.in_css() { CSS_GROWTH_DIVISOR } else { 1 })
    }

    /// Whether growth is slower for now.
    pub(crate) fn in_css(&self) -> bool {
        self.baseline_us != INFINITE_US
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of ten segments each, all acknowledged after `rtt_us` of that round; the divisors at each round's end.
    fn rounds(rtts_us: &[u64]) -> Vec<Option<u32>> {
        let mut hystart = HyStart::new();
        let mut una = Seq::new(u32::MAX - 5000);
        let mut ends = Vec::new();
        for rtt_us in rtts_us {
            let mut divisor = None;
            let round = una;
            for n in 1..=10 {
                una = round + n * 1000;
                divisor = hystart.on_ack(una, round + 10_000 + n * 1000, Some(rtt_us * 1000));
            }
            ends.push(divisor);
            // the data of the next round are all in flight when its first acknowledgement comes
        }
        ends
    }

    #[test]
    fn steady_round_trips_never_end_it() {
        assert!(rounds(&[50_000; 40]).iter().all(|divisor| *divisor == Some(1)));
        // below the least threshold of 4 ms
        assert!(rounds(&[1_000, 4_900, 8_800, 12_700]).iter().all(|divisor| *divisor == Some(1)));
    }

    #[test]
    fn a_delay_that_stays_ends_it_after_five_rounds() {
        // an eighth of 50 ms is 6.25 ms
        let ends = rounds(&[50_000, 56_200, 63_300, 63_300, 63_300, 63_300, 63_300, 63_300]);
        assert_eq!(ends[..2], [Some(1), Some(1)]);
        let slower = ends.iter().filter(|divisor| **divisor == Some(CSS_GROWTH_DIVISOR)).count();
        // the third round, in whose middle it is seen, and four more
        assert_eq!(slower, 5);
        assert_eq!(ends.iter().position(|divisor| divisor.is_none()), Some(7));
    }

    #[test]
    fn a_delay_that_goes_away_resumes_it() {
        let ends = rounds(&[50_000, 60_000, 60_000, 50_000, 50_000]);
        assert_eq!(ends, [Some(1), Some(4), Some(4), Some(1), Some(1)]);
    }

    #[test]
    fn too_few_samples_are_no_judgement() {
        let mut hystart = HyStart::new();
        let mut una = Seq::new(0);
        for round in 0..20u64 {
            for _ in 0..7 {
                una += 100;
                assert_eq!(hystart.on_ack(una, una + 700, Some(1_000_000 * (10 + 20 * round))), Some(1));
            }
        }
        // and a round without any sample does not make the next one look long
        assert_eq!(hystart.on_ack(una + 2000, una + 3000, None), Some(1));
    }
}
