//! HTTP dates (RFC 9110 section 5.6.7): written as IMF-fixdate, read in all three formats.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use arrayvec::ArrayString;
use base::Instant;
use httpdate::HttpDate;

/// Octets of an IMF-fixdate.
pub(crate) const DATE_BYTES: usize = 29;
/// 9999-12-31T23:59:59Z: the last second that an IMF-fixdate can tell.
const LAST_UNIX_S: u64 = 253_402_300_799;

/// What the wall clock showed when the engine's clock stood at zero. Control sets it, again when the wall clock was stepped;
/// serving threads only add to it.
#[derive(Debug)]
pub struct WallClock(AtomicU64);

impl WallClock {
    /// With nanoseconds since 1970 at [`Instant::ZERO`].
    pub const fn new(unix_ns_at_zero: u64) -> WallClock {
        WallClock(AtomicU64::new(unix_ns_at_zero))
    }

    /// Replaces it.
    pub fn set(&self, unix_ns_at_zero: u64) {
        self.0.store(unix_ns_at_zero, Ordering::Relaxed);
    }

    /// Nanoseconds since 1970 at `now`.
    #[inline]
    pub fn unix_ns(&self, now: Instant) -> u64 {
        self.0.load(Ordering::Relaxed).saturating_add(now.as_nanos())
    }
}

/// The date as 29 octets of ASCII.
pub(crate) fn write(unix_s: u64) -> ArrayString<DATE_BYTES> {
    let mut text = ArrayString::new();
    let date = HttpDate::from(UNIX_EPOCH + Duration::from_secs(unix_s.min(LAST_UNIX_S)));
    // every date up to the last one takes 29 octets
    let _ = write!(text, "{date}");
    text
}

/// Seconds since 1970; None for what is no date, or one before 1970.
pub(crate) fn read(text: &[u8]) -> Option<u64> {
    let date = httpdate::parse_http_date(std::str::from_utf8(text).ok()?).ok()?;
    Some(date.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_examples_of_the_rfc() {
        assert_eq!(write(784_111_777).as_str(), "Sun, 06 Nov 1994 08:49:37 GMT");
        for text in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(read(text.as_bytes()), Some(784_111_777), "{text}");
        }
        for text in ["", "yesterday", "Sun, 06 Nov 1994 08:49:37", "Sun, 32 Nov 1994 08:49:37 GMT", "1994-11-06"] {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(unix_s in 0..=LAST_UNIX_S) {
            let text = write(unix_s);
            prop_assert_eq!(text.len(), DATE_BYTES);
            prop_assert_eq!(read(text.as_bytes()), Some(unix_s));
        }
    }

    #[test]
    fn a_date_beyond_the_last_is_the_last() {
        assert_eq!(write(u64::MAX).as_str(), "Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn the_wall_clock_follows_the_engines() {
        let wall = WallClock::new(5);
        assert_eq!(wall.unix_ns(Instant::from_nanos(7)), 12);
        wall.set(u64::MAX);
        assert_eq!(wall.unix_ns(Instant::from_nanos(7)), u64::MAX);
    }
}
