//! Initial sequence numbers (RFC 6528) and the offset of each connection's timestamp clock (RFC 7323 section 5.4): a
//! clock plus a keyed hash of the tuple, so that the numbers of one tuple grow and those of another tell nothing.
//!
//! Left out: a new key after a while. The hash is SipHash-2-4 with 128 secret bits; the key lives as long as the
//! process.

use super::tuple::Tuple;
use base::sip::Key;
use base::{Instant, Seq};

/// Nanoseconds of one step of the sequence clock (RFC 9293 section 3.4.1: about 4 us).
const STEP_NS: u64 = 4_000;

/// Makes initial numbers and clock offsets.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    isn: Key,
    clock: Key,
}

impl Numbers {
    /// Numbers under a secret.
    pub fn new(secret: Key) -> Numbers {
        Numbers { isn: secret.derive(1), clock: secret.derive(2) }
    }

    /// ISN = M + F(tuple, secret), M counting steps of 4 us (RFC 6528 section 3).
    #[inline]
    pub fn initial(&self, now: Instant, tuple: &Tuple) -> Seq {
        let clock = (now.as_nanos() / STEP_NS) as u32;
        Seq::new(tuple.hash24(self.isn, 0) as u32) + clock
    }

    /// What is added to the clock in milliseconds to make the timestamps of this tuple's connections: the same for each
    /// of them, so that timestamps grow from one incarnation to the next (RFC 6191 needs that).
    #[inline]
    pub fn clock_offset(&self, tuple: &Tuple) -> u32 {
        tuple.hash24(self.clock, 0) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tuple(port: u16) -> Tuple {
        Tuple::new("192.0.2.1:80".parse().unwrap(), ([192, 0, 2, 2], port).into()).unwrap()
    }

    proptest! {
        #[test]
        fn grows_by_one_every_four_microseconds(secret: (u64, u64), port: u16, at in 0u64..1 << 60, steps in 0u32..1 << 30) {
            let numbers = Numbers::new(Key::new(secret.0, secret.1));
            let at_step = |step: u64| numbers.initial(Instant::from_nanos((at / STEP_NS + step) * STEP_NS + at % STEP_NS), &tuple(port));
            prop_assert_eq!(at_step(u64::from(steps)).since(at_step(0)), steps);
        }
    }

    #[test]
    fn tuples_secrets_and_uses_are_unrelated() {
        let (a, b) = (Numbers::new(Key::new(1, 2)), Numbers::new(Key::new(1, 3)));
        let mut seen = std::collections::BTreeSet::new();
        for port in 1..2000 {
            seen.insert(a.initial(Instant::ZERO, &tuple(port)).get());
            seen.insert(b.initial(Instant::ZERO, &tuple(port)).get());
            seen.insert(a.clock_offset(&tuple(port)));
        }
        // 5,997 numbers of 32 bits: a coincidence or two may happen for some keys, not for these
        assert_eq!(seen.len(), 3 * 1999);
    }
}
