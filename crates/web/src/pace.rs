//! How fast who holds memory of the chunk cache has to give it back while others wait for it.
//!
//! A chunk is held until its last byte is acknowledged. The send time bounds how long a client may take nothing, and so nothing
//! here: one that takes a byte in each of it would keep all that it has, and those who wait for memory would be sent away instead
//! of it. So while somebody waits, whoever holds chunks has to take a chunk's worth in half of the send time, or an eighth of what
//! he holds where that is more. Those who wait have the whole time, and outlast him.
//!
//! Nobody is slow while there is memory for all.

use std::time::Duration;

use base::Instant;

use crate::chunks::CHUNK_BYTES;

/// What part of what one holds he has to take in the time.
const PART: u64 = 8;
/// How many times in the time one who is late already is looked at, as others may come to wait.
const LOOKS: u32 = 8;

/// How far a client has come with what it holds: small, as every connection has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// since when it has not taken what it has to, in milliseconds, which come round after 49 days; 0 when it was not looked at yet
    since_ms: u32,
    taken_bytes: u32,
    /// of what is on its way, something is from chunks
    holds: bool,
}

impl Pace {
    /// Of a client that holds nothing.
    pub(crate) const NONE: Pace = Pace { since_ms: 0, taken_bytes: 0, holds: false };

    /// Something of a chunk was queued.
    pub(crate) fn hold(&mut self) {
        self.holds = true;
    }

    /// The client has taken so many bytes, and `left_bytes` are on their way still.
    #[inline]
    pub(crate) fn on_taken(&mut self, now: Instant, bytes: u64, left_bytes: u64) {
        if !self.holds {
            return;
        }
        if left_bytes == 0 {
            *self = Pace::NONE;
            return;
        }
        let taken = u64::from(self.taken_bytes) + bytes;
        if taken >= ((left_bytes + taken) / PART).max(CHUNK_BYTES) {
            (self.since_ms, self.taken_bytes) = (ms(now), 0);
        } else {
            self.taken_bytes = u32::try_from(taken).unwrap_or(u32::MAX);
        }
    }

    /// When it is to be looked at next; the time that it has begins where it has begun to hold something.
    #[inline]
    pub(crate) fn look(&mut self, now: Instant, send: Duration) -> Instant {
        if !self.holds {
            return Instant::MAX;
        }
        if self.since_ms == 0 {
            self.since_ms = ms(now);
        }
        match self.left(now, send) {
            Duration::ZERO => now + send / 2 / LOOKS,
            left => now + left,
        }
    }

    /// Whether it has had the time and has not taken what it had to.
    pub(crate) fn is_slow(&self, now: Instant, send: Duration) -> bool {
        self.holds && self.since_ms != 0 && self.left(now, send).is_zero()
    }

    fn left(&self, now: Instant, send: Duration) -> Duration {
        let had = Duration::from_millis(ms(now).wrapping_sub(self.since_ms).into());
        (send / 2).saturating_sub(had)
    }
}

/// Never 0.
fn ms(now: Instant) -> u32 {
    ((now.as_nanos() / 1_000_000) as u32).max(1)
}
