//! Bounds on what one stranger can take: connections and half-open ones by source, and acknowledgements that anybody
//! can provoke.
//!
//! A source is an IPv4 address or an IPv6 /56, which is what one subscriber has (RFC 6177), with one service. [`Sources`] counts exactly and not in
//! a sketch: there is an entry for each source that holds something, so entries are bounded by what is held at all,
//! which the stack bounds anyway, and no source is refused for what another does. Counts begin at once and end at once;
//! nothing decays.

use app::PerSource;
use base::Instant;
use base::sip::{Key, Tail};
use std::net::IpAddr;

/// Whom connections are counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source(u64);

impl Source {
    /// The source that an address belongs to, with one service. An IPv4 address stands where the prefix 0::/24 of IPv6 would, which
    /// nobody sends from (RFC 4291 section 2.5.2 ff.); the service stands above the 56 bits.
    #[inline]
    pub fn of(service: u8, addr: IpAddr) -> Source {
        let prefix = match addr.to_canonical() {
            IpAddr::V4(addr) => u64::from(addr.to_bits()),
            IpAddr::V6(addr) => (addr.to_bits() >> 72) as u64,
        };
        Source(u64::from(service) << 56 | prefix)
    }

    /// With which service.
    #[inline]
    fn service(self) -> u8 {
        (self.0 >> 56) as u8
    }
}

/// Why a source gets no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// it has as many half-open connections as one may
    HalfOpen,
    /// it has as many connections as one may
    Established,
    /// more sources hold something than the table was made for
    Table,
}

/// Bounds for each source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLimits {
    /// half-open connections
    pub half_open: u32,
    /// connections
    pub established: u32,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    source: Source,
    half_open: u32,
    established: u32,
}

impl Count {
    const EMPTY: Count = Count { source: Source(0), half_open: 0, established: 0 };

    fn is_empty(&self) -> bool {
        self.half_open == 0 && self.established == 0
    }
}

const _: () = assert!(size_of::<Count>() == 16);

/// Counts by source: open addressing with a keyed hash, removal without tombstones, as in [`super::table`].
#[derive(Debug)]
pub struct Sources {
    counts: Box<[Count]>,
    mask: usize,
    len: u32,
    capacity: u32,
    limits: SourceLimits,
    services: PerSource,
    key: Key,
}

impl Sources {
    /// Counts for at most `capacity` sources at a time: as many as connections and half-open connections together can
    /// never be too few. 32 to 64 bytes each.
    ///
    /// # Panics
    /// When `capacity` is above 2^30.
    pub fn new(capacity: u32, limits: SourceLimits, secret: Key) -> Sources {
        assert!(capacity <= 1 << 30, "counts for {capacity} sources");
        let slots = (capacity.max(4) as usize * 2).next_power_of_two();
        Sources {
            counts: base::huge::table(slots, |_| Count::EMPTY).into_boxed_slice(),
            mask: slots - 1,
            len: 0,
            capacity,
            limits,
            services: PerSource::default(),
            key: secret.derive(5),
        }
    }

    /// With bounds on connections by service, where those differ from [`SourceLimits::established`].
    pub fn by_service(self, services: PerSource) -> Sources {
        Sources { services, ..self }
    }

    /// Connections that a source may have.
    fn most(&self, source: Source) -> u32 {
        self.services.most(source.service()).map_or(self.limits.established, |most| most.try_into().unwrap_or(u32::MAX))
    }

    /// Sources that hold something.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Half-open and established connections of a source.
    pub fn held(&self, source: Source) -> (u32, u32) {
        let count = self.counts[self.place(source)];
        (count.half_open, count.established)
    }

    /// Takes new bounds; who holds more keeps it.
    pub fn set_limits(&mut self, limits: SourceLimits) {
        self.limits = limits;
    }

    /// Asks for the cache line of a source.
    #[inline]
    pub fn prefetch(&self, source: Source) {
        base::prefetch::read(&raw const self.counts[self.home(source)]);
    }

    /// A half-open connection begins.
    ///
    /// # Errors
    /// When the source may have no more.
    pub fn open_half(&mut self, source: Source) -> Result<(), Refused> {
        let (limits, most) = (self.limits, self.most(source));
        self.enter(source, |count| {
            if count.half_open >= limits.half_open {
                return Err(Refused::HalfOpen);
            }
            // a handshake that could not be finished is not begun
            if count.established >= most {
                return Err(Refused::Established);
            }
            count.half_open += 1;
            Ok(())
        })
    }

    /// A half-open connection is established.
    ///
    /// # Errors
    /// When the source may have no more; it is half-open still.
    ///
    /// # Panics
    /// When the source has no half-open connection: our own fault.
    pub fn establish(&mut self, source: Source) -> Result<(), Refused> {
        let most = self.most(source);
        let at = self.place(source);
        let count = &mut self.counts[at];
        assert!(count.half_open > 0, "no half-open connection to establish");
        if count.established >= most {
            return Err(Refused::Established);
        }
        count.half_open -= 1;
        count.established += 1;
        Ok(())
    }

    /// A connection begins that was never half-open here: from a cookie, or our own.
    ///
    /// # Errors
    /// When the source may have no more.
    pub fn open(&mut self, source: Source) -> Result<(), Refused> {
        let most = self.most(source);
        self.enter(source, |count| {
            if count.established >= most {
                return Err(Refused::Established);
            }
            count.established += 1;
            Ok(())
        })
    }

    /// A connection comes that was counted elsewhere: what exists is not refused for what its source has here.
    ///
    /// # Errors
    /// [`Refused::Table`].
    pub fn admit(&mut self, source: Source) -> Result<(), Refused> {
        self.enter(source, |count| {
            count.established += 1;
            Ok(())
        })
    }

    /// The same of a half-open one.
    ///
    /// # Errors
    /// [`Refused::Table`].
    pub fn admit_half(&mut self, source: Source) -> Result<(), Refused> {
        self.enter(source, |count| {
            count.half_open += 1;
            Ok(())
        })
    }

    /// A half-open connection is gone.
    ///
    /// # Panics
    /// When the source has none: our own fault.
    pub fn close_half(&mut self, source: Source) {
        let at = self.place(source);
        let count = &mut self.counts[at];
        count.half_open = count.half_open.checked_sub(1).expect("a half-open connection to close");
        self.tidy(at);
    }

    /// A connection is gone.
    ///
    /// # Panics
    /// When the source has none: our own fault.
    pub fn close(&mut self, source: Source) {
        let at = self.place(source);
        let count = &mut self.counts[at];
        count.established = count.established.checked_sub(1).expect("a connection to close");
        self.tidy(at);
    }

    fn enter(&mut self, source: Source, take: impl FnOnce(&mut Count) -> Result<(), Refused>) -> Result<(), Refused> {
        let at = self.place(source);
        let new = self.counts[at].is_empty();
        if new && self.len == self.capacity {
            return Err(Refused::Table);
        }
        let mut count = Count { source, ..self.counts[at] };
        take(&mut count)?;
        self.counts[at] = count;
        self.len += u32::from(new);
        Ok(())
    }

    #[inline]
    fn home(&self, source: Source) -> usize {
        self.key.hash13(&[source.0], Tail::new(1, 0, 0)) as usize & self.mask
    }

    /// Where the source is, or the empty place where it would be.
    fn place(&self, source: Source) -> usize {
        let mut at = self.home(source);
        while !self.counts[at].is_empty() && self.counts[at].source != source {
            at = (at + 1) & self.mask;
        }
        at
    }

    /// Closes the hole if the place became empty (Knuth, volume 3, 6.4, algorithm R).
    fn tidy(&mut self, mut hole: usize) {
        if !self.counts[hole].is_empty() {
            return;
        }
        self.len -= 1;
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let count = self.counts[at];
            if count.is_empty() {
                break;
            }
            let from_home = at.wrapping_sub(self.home(count.source)) & self.mask;
            if from_home >= at.wrapping_sub(hole) & self.mask {
                self.counts[hole] = count;
                self.counts[at] = Count::EMPTY;
                hole = at;
            }
        }
    }
}

/// A limit on acknowledgements that strangers provoke (RFC 5961 section 7, "ACK throttling").
///
/// A fixed number a second could be counted by one who is off the path, and tell whether a guess hit another's
/// connection (RFC 5961 section 10; CVE-2016-5696). So each second has a number of its own, drawn under a secret
/// between half and one and a half of the limit.
#[derive(Clone, Copy, Debug)]
pub struct ChallengeLimit {
    per_second: u32,
    second: u64,
    left: u32,
    key: Key,
}

impl ChallengeLimit {
    /// So many a second on average, none for zero.
    pub fn new(per_second: u32, secret: Key) -> ChallengeLimit {
        ChallengeLimit { per_second, second: u64::MAX, left: 0, key: secret.derive(6) }
    }

    /// Whether one more may be sent now; takes its share if so.
    pub fn allow(&mut self, now: Instant) -> bool {
        let second = now.as_nanos() / 1_000_000_000;
        if second != self.second {
            self.second = second;
            self.left = self.budget(second);
        }
        let allowed = self.left > 0;
        self.left -= u32::from(allowed);
        allowed
    }

    fn budget(&self, second: u64) -> u32 {
        let drawn = self.key.hash24(&[second], Tail::new(1, 0, 0));
        let spread = u64::from(self.per_second) + 1;
        // the top 32 bits of the hash, scaled to 0..=per_second
        self.per_second / 2 + (((drawn >> 32) * spread) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// The twin is a map of counts.
        #[test]
        fn counts_are_exact_whatever_the_order(steps in prop::collection::vec((0u8..7, 0u64..14), 1..400), secret: (u64, u64)) {
            let limits = SourceLimits { half_open: 3, established: 4 };
            let mut sources = Sources::new(6, limits, Key::new(secret.0, secret.1));
            let mut twin: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
            for (what, n) in steps {
                let source = Source(n << 40);
                let (half, full) = twin.get(&n).copied().unwrap_or_default();
                let no_room = !twin.contains_key(&n) && twin.len() == 6;
                let expected = match what {
                    0 if no_room => Err(Refused::Table),
                    0 if half >= 3 => Err(Refused::HalfOpen),
                    0 if full >= 4 => Err(Refused::Established),
                    0 => Ok((half + 1, full)),
                    1 if half == 0 => continue,
                    1 if full >= 4 => Err(Refused::Established),
                    1 => Ok((half - 1, full + 1)),
                    2 if no_room => Err(Refused::Table),
                    2 if full >= 4 => Err(Refused::Established),
                    2 => Ok((half, full + 1)),
                    3 if half == 0 => continue,
                    3 => Ok((half - 1, full)),
                    4 if full == 0 => continue,
                    4 => Ok((half, full - 1)),
                    _ if no_room => Err(Refused::Table),
                    5 => Ok((half + 1, full)),
                    _ => Ok((half, full + 1)),
                };
                let got = match what {
                    0 => sources.open_half(source),
                    1 => sources.establish(source),
                    2 => sources.open(source),
                    3 => { sources.close_half(source); Ok(()) }
                    4 => { sources.close(source); Ok(()) }
                    5 => sources.admit_half(source),
                    _ => sources.admit(source),
                };
                prop_assert_eq!(got, expected.map(|_| ()));
                match expected {
                    Ok((0, 0)) => { twin.remove(&n); }
                    Ok(counts) => { twin.insert(n, counts); }
                    Err(_) => {}
                }
                prop_assert_eq!(sources.len() as usize, twin.len());
                for n in 0..14 {
                    prop_assert_eq!(sources.held(Source(n << 40)), twin.get(&n).copied().unwrap_or_default());
                }
            }
        }
    }

    #[test]
    fn a_source_is_an_ipv4_address_or_a_56_bit_prefix_with_a_service() {
        let source = |addr: &str| Source::of(0, addr.parse().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8:0:ff:ffff::1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:100::1"));
        let with = |service| Source::of(service, [192, 0, 2, 1].into());
        assert!(with(1) != with(2) && with(255).service() == 255);
        assert_eq!(source("192.0.2.1"), source("::ffff:192.0.2.1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(Source::of(0, [0, 0, 0, 0].into()), Source(0)); // an ordinary source for the table
        let mut sources = Sources::new(1, SourceLimits { half_open: 1, established: 1 }, Key::new(1, 1));
        sources.open_half(Source(0)).unwrap();
        assert_eq!(sources.held(Source(0)), (1, 0));
        sources.close_half(Source(0));
        assert!(sources.is_empty());
    }

    #[test]
    fn challenges_are_limited_by_a_number_that_changes_every_second() {
        let mut limit = ChallengeLimit::new(100, Key::new(1, 2));
        let mut in_second = |second: u64| {
            let at = |n: u64| Instant::from_nanos(second * 1_000_000_000 + n * 1_000_000);
            (0..1000).filter(|n| limit.allow(at(*n))).count()
        };
        let counts: Vec<usize> = (0..400).map(&mut in_second).collect();
        assert!(counts.iter().all(|count| (50..=150).contains(count)), "{counts:?}");
        let mean = counts.iter().sum::<usize>() as f64 / 400.0;
        assert!((92.0..108.0).contains(&mean), "{mean}");
        let distinct: std::collections::BTreeSet<&usize> = counts.iter().collect();
        assert!(distinct.len() > 50, "{} numbers", distinct.len());
        let mut none = ChallengeLimit::new(0, Key::new(1, 2));
        assert!(!(0..100).any(|s| none.allow(Instant::from_nanos(s * 1_000_000_000))));
    }
}
