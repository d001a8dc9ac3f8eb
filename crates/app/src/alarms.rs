//! A service's own timers, as engines keep them.

use crate::CallError;
use base::Instant;
use base::wheel::{Timer, Wheel};
use std::collections::HashMap;

/// Alarms that one thread's service may have set at one time.
pub const ALARMS: usize = 1024;

/// One thread's alarms, by cookie. Nothing is allocated after [`Alarms::new`].
#[derive(Debug)]
pub struct Alarms {
    wheel: Wheel<(u64, Instant)>,
    set: HashMap<u64, Timer>,
}

impl Default for Alarms {
    fn default() -> Self {
        Alarms::new()
    }
}

impl Alarms {
    /// None set, and room for [`ALARMS`].
    pub fn new() -> Alarms {
        // twice the room: places of removed entries are used again without the table growing
        Alarms { wheel: Wheel::new(ALARMS), set: HashMap::with_capacity(2 * ALARMS) }
    }

    /// Sets, replaces or takes back the alarm of a cookie.
    ///
    /// # Errors
    /// [`CallError::NoResources`] when there are [`ALARMS`] others.
    pub fn set(&mut self, cookie: u64, at: Option<Instant>) -> Result<(), CallError> {
        if let Some(timer) = self.set.remove(&cookie) {
            self.wheel.cancel(timer);
        }
        let Some(at) = at else { return Ok(()) };
        let timer = self.wheel.set(at, (cookie, at)).map_err(|_| CallError::NoResources)?;
        self.set.insert(cookie, timer);
        Ok(())
    }

    /// The cookie of one alarm that is due at `now`, which is then no longer set; None when none is. `now` does not go back.
    pub fn pop(&mut self, now: Instant) -> Option<u64> {
        self.pop_timed(now).map(|(cookie, _)| cookie)
    }

    /// The same, with the time that it was set to.
    pub fn pop_timed(&mut self, now: Instant) -> Option<(u64, Instant)> {
        if self.set.is_empty() {
            return None;
        }
        let (cookie, at) = self.wheel.pop(now)?;
        self.set.remove(&cookie);
        Some((cookie, at))
    }

    /// How many are set.
    pub fn len(&self) -> usize {
        self.set.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// When [`Alarms::pop`] is worth calling next: not after the earliest alarm, perhaps before; None when none is set.
    pub fn next(&self) -> Option<Instant> {
        if self.set.is_empty() { None } else { self.wheel.next() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    proptest! {
        /// Against a map from cookie to time: never early, at most two ticks of the wheel late, each once.
        #[test]
        fn alarms_go_off_as_a_map_of_them_says(
            steps in prop::collection::vec((0u64..8, prop::option::of(0u64..3_000_000), 0u64..400_000), 1..80),
        ) {
            let (mut alarms, mut twin, mut now) = (Alarms::new(), BTreeMap::new(), 0);
            for (cookie, ahead, pass) in steps {
                alarms.set(cookie, ahead.map(|ahead| at(now + ahead))).unwrap();
                match ahead {
                    Some(ahead) => twin.insert(cookie, now + ahead),
                    None => twin.remove(&cookie),
                };
                now += pass;
                while let Some((cookie, set_to)) = alarms.pop_timed(at(now)) {
                    let due = twin.remove(&cookie);
                    prop_assert!(due.is_some_and(|due| due <= now), "{cookie} at {now}, due {due:?}");
                    prop_assert_eq!(due.map(at), Some(set_to));
                }
                let late = Duration::from_nanos(2 << 14).as_micros() as u64;
                prop_assert!(twin.values().all(|due| *due + late > now), "{twin:?} at {now}");
                prop_assert_eq!(alarms.next().is_none(), twin.is_empty());
                prop_assert!(alarms.next().is_none_or(|next| next <= at(twin.values().min().unwrap() + late)));
            }
        }
    }

    #[test]
    fn there_is_room_for_so_many_and_no_more() {
        let mut alarms = Alarms::new();
        for cookie in 0..ALARMS as u64 {
            alarms.set(cookie, Some(at(5))).unwrap();
        }
        assert_eq!(alarms.set(ALARMS as u64, Some(at(1))), Err(CallError::NoResources));
        assert_eq!(alarms.set(3, Some(at(9))), Ok(()), "one that is set is replaced");
        assert_eq!(std::iter::from_fn(|| alarms.pop(at(100))).count(), ALARMS);
        assert_eq!(alarms.set(ALARMS as u64, Some(at(101))), Ok(()));
    }
}
