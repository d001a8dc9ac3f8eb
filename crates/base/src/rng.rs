//! Small deterministic random numbers for simulation, fault injection and load, never for secrets: SplitMix64
//! (Steele, Lea, Flood 2014). The seed decides everything, so a failing run replays.

/// A SplitMix64 generator.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose whole sequence follows from `seed`.
    pub const fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// The next 64 random bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`, without division (Lemire 2019, the biased form: off by at most `bound`/2^64).
    ///
    /// # Panics
    /// When `bound` is 0: there is no such number.
    pub const fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a random number below 0 was asked for");
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
    }

    /// Puts the items into a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }

    /// True with probability `p` (0.0 never, 1.0 always).
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// A number from 0.0 to below 1.0, of the 53 bits that such a number has.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_published_sequence() {
        // the reference implementation's first outputs for seed 1234567
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn a_shuffle_keeps_every_item_and_leads_to_any_order() {
        let mut rng = Rng::new(5);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let mut items = [0, 1, 2];
            rng.shuffle(&mut items);
            seen.insert(items);
            items.sort_unstable();
            assert_eq!(items, [0, 1, 2]);
        }
        assert_eq!(seen.len(), 6);
        rng.shuffle::<u32>(&mut []);
    }

    #[test]
    fn bounds_hold_at_both_ends() {
        let mut rng = Rng::new(3);
        let mut seen = [false; 3];
        for _ in 0..100 {
            seen[rng.below(3) as usize] = true;
            assert!(rng.chance(1.0));
            assert!(!rng.chance(0.0));
        }
        assert_eq!(seen, [true; 3]);
    }
}
