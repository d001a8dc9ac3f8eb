//! What a measuring client sends: a datagram that says which one it is, and whose every octet is known.
//!
//! ```text
//!  0        4        8                16
//!  | run    | mark   | number         | octets that follow from run, number and place ...
//! ```
//!
//! All in network order. The mark follows from run, number and length, so a datagram that was cut, stretched or changed is told
//! from a whole one of another run, such as a late answer to a client that had the same port before. This finds faults, not forgers:
//! who can read a probe can make one.

use base::rng::Rng;

/// Bytes of the smallest probe.
pub const LEAST_BYTES: usize = 16;

/// What an answer is when it is none of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// a whole probe of another run
    Foreign,
    /// no probe as anybody sent it: octets differ, or some are missing
    Damaged,
}

/// The octets behind the header, and the mark with them.
fn stream(run: u32, number: u64, bytes: usize) -> (u32, Rng) {
    let mut rng = Rng::new(number ^ u64::from(run).rotate_left(32) ^ (bytes as u64).rotate_left(48));
    ((rng.next_u64() >> 32) as u32, rng)
}

/// Makes all of `out` the probe `number` of `run`.
///
/// # Panics
/// When `out` is shorter than [`LEAST_BYTES`].
#[inline]
pub fn write(run: u32, number: u64, out: &mut [u8]) {
    let (mark, mut rng) = stream(run, number, out.len());
    let (head, rest) = out.split_at_mut(LEAST_BYTES);
    head[..4].copy_from_slice(&run.to_be_bytes());
    head[4..8].copy_from_slice(&mark.to_be_bytes());
    head[8..].copy_from_slice(&number.to_be_bytes());
    for piece in rest.chunks_mut(8) {
        piece.copy_from_slice(&rng.next_u64().to_be_bytes()[..piece.len()]);
    }
}

/// Which probe of `run` these octets are.
///
/// # Errors
/// They are none.
#[inline]
pub fn read(run: u32, bytes: &[u8]) -> Result<u64, Fault> {
    let (head, rest) = bytes.split_first_chunk::<LEAST_BYTES>().ok_or(Fault::Damaged)?;
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (of_run, number) = (word(0), u64::from(word(8)) << 32 | u64::from(word(12)));
    let (mark, mut rng) = stream(of_run, number, bytes.len());
    let whole = mark == word(4)
        && rest.chunks(8).all(|piece| {
            let expected = rng.next_u64().to_be_bytes();
            piece == &expected[..piece.len()]
        });
    match whole {
        false => Err(Fault::Damaged),
        true if of_run != run => Err(Fault::Foreign),
        true => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_probe_is_read_and_no_changed_one_is(
            run: u32, number: u64, bytes in LEAST_BYTES..200, at: prop::sample::Index, bit in 0u8..8,
        ) {
            let mut probe = vec![0; bytes];
            write(run, number, &mut probe);
            prop_assert_eq!(read(run, &probe), Ok(number));
            prop_assert_eq!(read(run ^ 1, &probe), Err(Fault::Foreign));
            probe[at.index(bytes)] ^= 1 << bit;
            prop_assert_eq!(read(run, &probe), Err(Fault::Damaged));
        }

        #[test]
        fn a_cut_or_stretched_probe_is_damaged(run: u32, number: u64, bytes in LEAST_BYTES..200, cut in 1usize..16) {
            let mut probe = vec![0; bytes];
            write(run, number, &mut probe);
            prop_assert_eq!(read(run, &probe[..bytes - cut]), Err(Fault::Damaged));
            probe.extend(std::iter::repeat_n(0, cut));
            prop_assert_eq!(read(run, &probe), Err(Fault::Damaged));
        }
    }

    #[test]
    fn neighbours_share_no_octets_by_rule() {
        let probe = |number| {
            let mut out = [0; 64];
            write(7, number, &mut out);
            out
        };
        let (one, two) = (probe(1), probe(2));
        let same = one[LEAST_BYTES..].iter().zip(&two[LEAST_BYTES..]).filter(|(a, b)| a == b).count();
        assert!(same < 8, "{same} of 48");
    }
}
