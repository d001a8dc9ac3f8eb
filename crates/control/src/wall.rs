//! What the serving threads know of the wall clock. Their own clocks are monotonic, so they count on when the machine's clock is
//! set and stand still while the machine is suspended; here the machine's clock is looked at now and then.

use base::Clock;
use dns::cookie::UnixTime;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use web::WallClock;

/// How often the serving threads' wall clock is set by the machine's.
pub(crate) const WALL_EVERY: Duration = Duration::from_secs(10);
/// What the machine's clock may be off before cookies and the dates of items follow it. Their time is in whole seconds, and what is measured
/// now may differ by one from what was measured before, though nobody set the clock.
const SECONDS_OFF: Duration = Duration::from_secs(2);
const SECOND_NS: u64 = 1_000_000_000;

/// The time since 1970 at a clock's zero, by the machine's clock as it is set now.
pub(crate) fn unix_at_zero(clock: &Clock) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(clock.now() - base::Instant::ZERO)
}

/// The wall clocks of the serving threads, whose own clock counts from its start.
pub(crate) struct Wall {
    zero: Clock,
    dates: Arc<WallClock>,
    cookies: Arc<UnixTime>,
    items: Arc<kv::Clock>,
}

impl Wall {
    /// By the machine's clock, of threads whose clock counts from now.
    pub(crate) fn start() -> Wall {
        Wall::since(Clock::start())
    }

    /// The same of threads whose clock counts from that one's zero.
    pub(crate) fn since(zero: Clock) -> Wall {
        let (dates, cookies) = (Arc::new(WallClock::new(0)), Arc::new(UnixTime::new(0)));
        let wall = Wall { zero, dates, cookies, items: Arc::default() };
        wall.set();
        wall
    }

    /// Of the web's dates.
    pub(crate) fn dates(&self) -> &Arc<WallClock> {
        &self.dates
    }

    /// Of DNS cookies.
    pub(crate) fn cookies(&self) -> &Arc<UnixTime> {
        &self.cookies
    }

    /// Of the dates that items of the key-value store have.
    pub(crate) fn items(&self) -> &Arc<kv::Clock> {
        &self.items
    }

    /// By the machine's clock, which may have been set; true when cookies tell another time from now on, so that who makes them in
    /// front of the serving threads is to do so, too.
    pub(crate) fn set(&self) -> bool {
        self.set_to(unix_at_zero(&self.zero))
    }

    fn set_to(&self, unix_at_zero: Duration) -> bool {
        let unix_ns = unix_at_zero.as_nanos() as u64;
        self.dates.set(unix_ns);
        let told = Duration::from_secs(self.cookies.at_zero_s());
        if unix_at_zero.abs_diff(told) < SECONDS_OFF {
            return false;
        }
        self.cookies.set(unix_ns / SECOND_NS);
        self.items.set(unix_ns / SECOND_NS);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Instant;

    #[test]
    fn dates_follow_at_once_and_whole_seconds_when_the_clock_was_set() {
        let wall = Wall::start();
        let of_dates = || wall.dates.unix_ns(Instant::ZERO);
        for (unix_ms, follows, cookies_s) in [
            (1_700_000_000_900, true, 1_700_000_000),
            // measured a little later, or slewed
            (1_700_000_001_100, false, 1_700_000_000),
            (1_699_999_998_100, false, 1_700_000_000),
            (1_700_000_001_999, false, 1_700_000_000),
            // set
            (1_700_000_002_000, true, 1_700_000_002),
            (1_700_000_602_500, true, 1_700_000_602),
            (1_600_000_000_000, true, 1_600_000_000),
        ] {
            assert_eq!(wall.set_to(Duration::from_millis(unix_ms)), follows, "{unix_ms}");
            assert_eq!((of_dates(), wall.cookies.at_zero_s()), (unix_ms * 1_000_000, cookies_s));
            assert_eq!(wall.items.unix_at_zero_s(), cookies_s);
        }
        assert!(wall.set(), "the machine's");
        assert!(SystemTime::now() > UNIX_EPOCH + Duration::from_secs(wall.cookies.at_zero_s()));
    }

    #[test]
    fn a_clocks_zero_is_told_by_the_machines_clock_whenever_that_was_set() {
        let started = Clock::start();
        // as though the machine's clock had been set meanwhile by as much as lies between the two zeros
        for clock in [started, Clock::at(started.zero_ns() / 2)] {
            let told = UNIX_EPOCH + unix_at_zero(&clock) + (clock.now() - Instant::ZERO);
            let now = SystemTime::now();
            let off = now.duration_since(told).unwrap_or_else(|ahead| ahead.duration());
            assert!(off < Duration::from_secs(1), "{off:?}");
        }
    }

    #[test]
    fn another_process_finds_the_same_time_by_the_zero_of_the_first() {
        let zero = Clock::start();
        let [ours, theirs] = [zero, Clock::at(zero.zero_ns())].map(|zero| Wall::since(zero).items.unix_at_zero_s());
        assert!(ours.abs_diff(theirs) <= SECONDS_OFF.as_secs(), "{ours} and {theirs}");
    }
}
