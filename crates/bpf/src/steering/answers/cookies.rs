//! DNS cookies made by the program (RFC 9018), and the secret that it makes them with.
//!
//! The secret is in a map of its own, which changes only while no program makes cookies: [`Answers::leave_cookies`] has
//! questions with a cookie go on to the sockets, and waits until no program runs that has not seen it. So nobody hashes with
//! half of a secret, nor makes a cookie of one that was taken away.

use super::{Answers, Maps};
use crate::steering::{SteeringError, other};

/// Octets of `struct baking`.
pub(super) const BAKING_BYTES: usize = 40;

/// `COOKIES_LEFT`, `COOKIES_IGNORED` and `COOKIES_MADE`: what becomes of questions with a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cookies {
    Left,
    Ignored,
    Made,
}

/// What cookies are made with.
#[derive(Clone, PartialEq, Eq)]
pub struct Baking {
    /// the key of SipHash
    pub secret: [u8; 16],
    /// cookies of other secrets are taken, too; the program does not know them, and leaves to the sockets what it does not take
    pub others: bool,
    /// nanoseconds of CLOCK_MONOTONIC, as this process reads it
    pub zero_ns: u64,
    /// what cookies give as the time at that point, in seconds since 1970
    pub unix_time_at_zero_s: u64,
}

/// The secret is not shown.
impl std::fmt::Debug for Baking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Baking(others: {}, {} s at {} ns)", self.others, self.unix_time_at_zero_s, self.zero_ns)
    }
}

impl Baking {
    fn bytes(&self, clock_ahead_ns: i64) -> [u8; BAKING_BYTES] {
        let mut bytes = [0; BAKING_BYTES];
        bytes[..16].copy_from_slice(&self.secret);
        bytes[16..24].copy_from_slice(&self.zero_ns.wrapping_add_signed(-clock_ahead_ns).to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.unix_time_at_zero_s.to_ne_bytes());
        bytes[32..].copy_from_slice(&u64::from(self.others).to_ne_bytes());
        bytes
    }
}

/// How far this process's CLOCK_MONOTONIC is ahead of the kernel's own, which programs read (time_namespaces(7)).
pub(super) fn clock_ahead_ns() -> i64 {
    // without the file there are no time namespaces
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    clock_ahead_of(&offsets).unwrap_or(0)
}

/// Of lines of a clock's name, seconds and nanoseconds.
fn clock_ahead_of(offsets: &str) -> Option<i64> {
    let of_monotonic = |line: &str| {
        let mut words = line.split_whitespace();
        words.next().filter(|name| *name == "monotonic")?;
        let mut next = || words.next()?.parse::<i64>().ok();
        next()?.checked_mul(1_000_000_000)?.checked_add(next()?)
    };
    offsets.lines().find_map(of_monotonic)
}

impl Answers {
    /// Has the program leave questions with a cookie to the sockets. When this has returned no cookie of before leaves any
    /// longer, and the secret is not in the map. Where cookies are ignored they go on to be.
    ///
    /// # Errors
    /// The kernel's.
    pub fn leave_cookies(&self) -> Result<(), SteeringError> {
        self.lock().leave_cookies()
    }

    /// Has the program answer questions with a cookie, and make fresh ones. What it did before ends first, as by
    /// [`Answers::leave_cookies`]. Where cookies are ignored they go on to be.
    ///
    /// # Errors
    /// The kernel's; questions with a cookie are left to the sockets then.
    pub fn make_cookies(&self, baking: &Baking) -> Result<(), SteeringError> {
        let mut maps = self.lock();
        maps.leave_cookies()?;
        if !maps.config.cookies {
            return Ok(());
        }
        let bytes = baking.bytes(maps.clock_ahead_ns);
        maps.set_secret(bytes)?;
        // whoever begins from now on sees all of it
        maps.wait()?;
        maps.tell_of_cookies(Cookies::Made)
    }
}

impl Maps {
    fn leave_cookies(&mut self) -> Result<(), SteeringError> {
        if !self.config.cookies {
            return Ok(());
        }
        self.tell_of_cookies(Cookies::Left)?;
        self.wait()?;
        self.set_secret([0; BAKING_BYTES])
    }

    fn tell_of_cookies(&mut self, cookies: Cookies) -> Result<(), SteeringError> {
        self.told.cookies = cookies;
        self.tell()
    }

    fn set_secret(&mut self, bytes: [u8; BAKING_BYTES]) -> Result<(), SteeringError> {
        self.secret.set(0, bytes, 0).map_err(|e| other("changing the secret of cookies", &e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_namespace_s_clock_is_set_right() {
        let offsets = "monotonic      -86400 500000000\nboottime       7         0\n";
        assert_eq!(clock_ahead_of(offsets), Some(-86_399_500_000_000));
        assert_eq!(clock_ahead_of("boottime 7 0\nmonotonic 0 0\n"), Some(0));
        for none in ["", "monotonic\n", "monotonic 1\n", "monotonic a 0\n", "monotonic 9223372036854775807 0\n"] {
            assert_eq!(clock_ahead_of(none), None, "{none:?}");
        }
        let baking = Baking { secret: [7; 16], others: true, zero_ns: 5, unix_time_at_zero_s: 9 };
        for (ahead, zero_ns) in [(3, 2u64), (-3, 8)] {
            assert_eq!(baking.bytes(ahead)[16..24], zero_ns.to_ne_bytes());
        }
    }

    #[test]
    fn the_secret_is_not_shown() {
        let baking = Baking { secret: [251; 16], others: false, zero_ns: 5, unix_time_at_zero_s: 9 };
        assert_eq!(format!("{baking:?}"), "Baking(others: false, 9 s at 5 ns)");
    }
}
