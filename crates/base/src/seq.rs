//! TCP sequence numbers (RFC 9293 section 3.4): 32 bits, arithmetic modulo 2^32, compared by signed distance.
//!
//! A [`Seq`] is a place in a stream, a `u32` beside it is a number of bytes. The two add up to a place; two places do
//! not add, and have no total order, so `<` does not exist: [`Seq::lt`] and its kin hold for places less than 2^31
//! bytes apart, which the largest window (RFC 7323 section 2.3) keeps.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A place in a stream, counted from an initial number that nobody can guess.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Seq(u32);

impl Seq {
    /// The place with this number.
    #[inline]
    pub const fn new(number: u32) -> Seq {
        Seq(number)
    }

    /// Its number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The place whose number stands in a header.
    #[inline]
    pub const fn from_be_bytes(bytes: [u8; 4]) -> Seq {
        Seq(u32::from_be_bytes(bytes))
    }

    /// The number as it stands in a header.
    #[inline]
    pub const fn to_be_bytes(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }

    /// Bytes from `earlier` up to here, modulo 2^32: meaningful when `earlier` is not later.
    #[inline]
    pub const fn since(self, earlier: Seq) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Bytes from `other` up to here, negative when `other` is later.
    #[inline]
    pub const fn offset_from(self, other: Seq) -> i32 {
        self.since(other).cast_signed()
    }

    /// Before `other`.
    #[inline]
    pub const fn lt(self, other: Seq) -> bool {
        self.offset_from(other) < 0
    }

    /// Before `other` or there.
    #[inline]
    pub const fn leq(self, other: Seq) -> bool {
        self.offset_from(other) <= 0
    }

    /// After `other`.
    #[inline]
    pub const fn gt(self, other: Seq) -> bool {
        self.offset_from(other) > 0
    }

    /// After `other` or there.
    #[inline]
    pub const fn geq(self, other: Seq) -> bool {
        self.offset_from(other) >= 0
    }

    /// One of the `window_bytes` places from `left` on; none is in a window of zero.
    #[inline]
    pub const fn in_window(self, left: Seq, window_bytes: u32) -> bool {
        self.since(left) < window_bytes
    }

    /// From `left` to `right`, both ends among them, as RFC 9293 writes `left =< self =< right`; `right` is not before
    /// `left`.
    #[inline]
    pub const fn in_closed(self, left: Seq, right: Seq) -> bool {
        self.since(left) <= right.since(left)
    }

    /// The later of the two.
    #[inline]
    #[must_use]
    pub const fn max(self, other: Seq) -> Seq {
        if self.lt(other) { other } else { self }
    }

    /// The earlier of the two.
    #[inline]
    #[must_use]
    pub const fn min(self, other: Seq) -> Seq {
        if self.lt(other) { self } else { other }
    }
}

impl Add<u32> for Seq {
    type Output = Seq;
    #[inline]
    fn add(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for Seq {
    #[inline]
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for Seq {
    type Output = Seq;
    #[inline]
    fn sub(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_sub(bytes))
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seq {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The twin counts in 64 bits, where nothing wraps.
        #[test]
        fn order_and_distance_are_those_of_the_unwrapped_stream(
            base in any::<u32>(), a in 0u64..1 << 40, apart in 0u64..1 << 31, left_gap in 0u64..1 << 30, window in 0u64..1 << 30
        ) {
            let place = |at: u64| Seq::new((u64::from(base) + at) as u32);
            let b = a + apart;
            prop_assert_eq!(place(b).since(place(a)), apart as u32);
            prop_assert_eq!(i64::from(place(a).offset_from(place(b))), -(apart as i64));
            prop_assert_eq!(place(a) + apart as u32, place(b));
            prop_assert_eq!(place(b) - apart as u32, place(a));
            let orders = [place(a).lt(place(b)), place(a).leq(place(b)), place(a).gt(place(b)), place(a).geq(place(b))];
            prop_assert_eq!(orders, [a < b, a <= b, a > b, a >= b]);
            prop_assert_eq!((place(a).max(place(b)), place(a).min(place(b))), (place(b), place(a)));
            prop_assert_eq!((place(b).max(place(a)), place(b).min(place(a))), (place(b), place(a)));
            // a window that begins before, at or after the place
            let left = a + left_gap;
            prop_assert_eq!(place(b).in_window(place(left), window as u32), left <= b && b < left + window);
            prop_assert_eq!(place(b).in_closed(place(left), place(left + window)), left <= b && b <= left + window);
        }
    }

    #[test]
    fn the_ends_of_the_number_space() {
        let (last, first) = (Seq::new(u32::MAX), Seq::new(0));
        assert!(last.lt(first) && first.gt(last) && last.leq(last) && first.geq(first));
        assert_eq!(last + 1, first);
        assert!(first.in_window(last, 2) && !first.in_window(last, 1) && !first.in_window(first, 0));
        assert!(first.in_closed(first, first) && first.in_closed(last, first) && !last.in_closed(first, first));
        assert_eq!(Seq::from_be_bytes(last.to_be_bytes()), last);
    }
}
