//! Loss in bursts: the model of Gilbert (1960) and Elliott (1963), a chain of two states that takes one step a frame.

use base::rng::Rng;

/// A path that is good or bad. Frames are lost in the bad state only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BurstLoss {
    /// the probability, before each frame, that a good path turns bad
    pub enter: f64,
    /// the probability, before each frame, that a bad path turns good
    pub leave: f64,
    /// the probability that a frame is lost in the bad state
    pub drop: f64,
}

impl BurstLoss {
    /// The path that loses the share `rate` of all frames in the long run, in bursts of `mean_frames` frames on average; None
    /// where there is none: a rate outside 0.0 to 1.0, bursts shorter than one frame, or a rate so high that the frames
    /// between such bursts would be fewer than one.
    pub fn new(rate: f64, mean_frames: f64) -> Option<BurstLoss> {
        if !(0.0..1.0).contains(&rate) || !(1.0..1e9).contains(&mean_frames) {
            return None;
        }
        // a burst's length is geometric with mean 1/leave; the share of bad steps is enter/(enter + leave)
        let leave = 1.0 / mean_frames;
        let enter = leave * rate / (1.0 - rate);
        (enter <= 1.0).then_some(BurstLoss { enter, leave, drop: 1.0 })
    }

    /// Takes a step from `bad`, and says whether the frame is lost.
    pub(super) fn judge(&self, bad: &mut bool, rng: &mut Rng) -> bool {
        *bad = if *bad { !rng.chance(self.leave) } else { rng.chance(self.enter) };
        *bad && rng.chance(self.drop)
    }
}

#[cfg(test)]
mod tests {
    use super::BurstLoss;
    use base::rng::Rng;
    use proptest::prelude::*;

    /// Frames lost and bursts among `frames`.
    fn run(loss: BurstLoss, seed: u64, frames: u32) -> (u32, u32) {
        let (mut rng, mut bad, mut before) = (Rng::new(seed), false, false);
        let (mut lost, mut bursts) = (0, 0);
        for _ in 0..frames {
            let now = loss.judge(&mut bad, &mut rng);
            lost += u32::from(now);
            bursts += u32::from(now && !before);
            before = now;
        }
        (lost, bursts)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn rate_and_mean_length_come_out_in_the_long_run(seed: u64, rate in 0.005f64..0.4, mean in 1.0f64..25.0) {
            let Some(loss) = BurstLoss::new(rate, mean) else { return Ok(()) };
            let frames = 300_000;
            let (lost, bursts) = run(loss, seed, frames);
            // each burst, and each gap, is an independent geometric number: relative errors shrink with the root of their count
            let error = 1.0 / f64::from(bursts).sqrt();
            let (has_rate, has_mean) = (f64::from(lost) / f64::from(frames), f64::from(lost) / f64::from(bursts));
            prop_assert!((has_mean / mean - 1.0).abs() < 7.0 * error, "mean {has_mean}, {bursts} bursts");
            prop_assert!((has_rate / rate - 1.0).abs() < 10.0 * error, "rate {has_rate}, {bursts} bursts");
            prop_assert_eq!(run(loss, seed, frames), (lost, bursts));
        }
    }

    #[test]
    fn what_no_chain_can_do_is_refused() {
        for (rate, mean) in [(-0.1, 2.0), (1.0, 2.0), (f64::NAN, 2.0), (0.1, 0.9), (0.1, f64::INFINITY), (0.6, 1.0)] {
            assert_eq!(BurstLoss::new(rate, mean), None, "{rate} {mean}");
        }
        // losing half of the frames one by one is a path that is bad at every other frame
        assert_eq!(BurstLoss::new(0.5, 1.0), Some(BurstLoss { enter: 1.0, leave: 1.0, drop: 1.0 }));
        assert_eq!(run(BurstLoss::new(0.0, 4.0).unwrap(), 1, 10_000), (0, 0));
    }
}
