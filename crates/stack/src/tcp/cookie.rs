//! SYN cookies (RFC 4987 section 3.6): under a flood a SYN is answered and forgotten; what must be remembered travels
//! in the initial sequence number of the SYN-ACK and comes back with the acknowledgement.
//!
//! ```text
//! sequence number   31 ............ 8  7 .......... 0
//!                   authentication     offer, masked by more bits of the same hash
//! offer             7..5 MSS, 4..2 window scale, 1 SACK permitted, 0 lowest bit of the period
//! timestamp value   31 ............ 6  5 ......... 0
//!                   clock in ms        3..0 window scale (15: none), 4 SACK permitted, 5 ECN
//! ```
//!
//! So a peer without timestamps keeps its MSS and window scale, rounded down to one of eight, and SACK; one with
//! timestamps keeps the exact scale and ECN too. The hash, SipHash-2-4, covers the tuple, the peer's initial number,
//! the period and the offer: to guess one costs 2^24 acknowledgements. A cookie is good for this period of 64 s and the
//! next.
//!
//! Left out: retransmission of a cookie's SYN-ACK (there is nothing that could be sent again: RFC 4987 section 3.6
//! names this price), and options behind those above.

use super::tuple::Tuple;
use base::sip::Key;
use base::{Instant, Seq};

/// Nanoseconds of a period.
const PERIOD_NS: u64 = 64_000_000_000;
/// Segment sizes that a cookie can name: no path, tiny; the defaults of IPv4 and of tunnels; Ethernet with and without
/// options; jumbo frames.
const MSS_TABLE: [u16; 8] = [216, 536, 1200, 1360, 1400, 1440, 1460, 8960];
/// Window scales that a cookie can name; the first entry means no scaling.
const SCALE_TABLE: [Option<u8>; 8] = [None, Some(0), Some(2), Some(4), Some(6), Some(7), Some(8), Some(10)];
/// Bits of a timestamp value that carry options.
const STAMP_MASK: u32 = 0x3f;
const STAMP_NO_SCALE: u32 = 0xf;
const STAMP_SACK: u32 = 1 << 4;
const STAMP_ECN: u32 = 1 << 5;

/// What the peer's SYN offered and we took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// the largest segment that the peer takes; the caller puts the default for an absent option
    pub mss: u16,
    /// shift of the peer's windows
    pub window_scale: Option<u8>,
    /// the peer understands SACK
    pub sack_permitted: bool,
    /// ECN was agreed on; kept only with timestamps
    pub ecn: bool,
}

/// Makes and judges cookies.
#[derive(Clone, Copy, Debug)]
pub struct Cookies {
    key: Key,
    /// when the last cookie was made
    made_at: Option<Instant>,
}

impl Cookies {
    /// Cookies under a secret.
    pub fn new(secret: Key) -> Cookies {
        Cookies { key: secret.derive(3), made_at: None }
    }

    /// The initial number for the SYN-ACK; `client_isn` is the SYN's. `None` when the peer's segments are below 216
    /// bytes, which no cookie can say.
    pub fn make(&mut self, now: Instant, tuple: &Tuple, client_isn: Seq, offer: &Offer) -> Option<Seq> {
        let mss = MSS_TABLE.iter().rposition(|mss| *mss <= offer.mss)?;
        let scale = scale_index(offer.window_scale);
        let period = now.as_nanos() / PERIOD_NS;
        let bits = (mss << 5 | scale << 2 | usize::from(offer.sack_permitted) << 1) as u8 | (period & 1) as u8;
        self.made_at = Some(now);
        let masked = bits ^ self.mask(tuple, client_isn, period);
        Some(Seq::new(self.authentication(tuple, client_isn, period, bits) << 8 | u32::from(masked)))
    }

    /// Whether a cookie that is still good was made at all: only then is an acknowledgement without a connection worth
    /// a hash.
    #[inline]
    pub fn expected(&self, now: Instant) -> bool {
        self.made_at.is_some_and(|made_at| now.saturating_since(made_at).as_nanos() < 2 * u128::from(PERIOD_NS))
    }

    /// When the last one was made.
    pub fn made_at(&self) -> Option<Instant> {
        self.made_at
    }

    /// Others made some under the same secret, the last one then: they may come back here.
    pub fn expect(&mut self, made_at: Option<Instant>) {
        self.made_at = self.made_at.max(made_at);
    }

    /// The offer that `cookie` carries, `None` when it is not ours or too old. `client_isn` is the acknowledging
    /// segment's number minus one, `cookie` what it acknowledges minus one. ECN is not in it: see [`read_stamp`].
    pub fn check(&self, now: Instant, tuple: &Tuple, client_isn: Seq, cookie: Seq) -> Option<Offer> {
        let (told, masked) = (cookie.get() >> 8, cookie.get() as u8);
        let period = now.as_nanos() / PERIOD_NS;
        // the mask does not depend on the offer, so it can be taken off before the offer is believed
        [Some(period), period.checked_sub(1)].into_iter().flatten().find_map(|period| {
            let bits = masked ^ self.mask(tuple, client_isn, period);
            let good = (period & 1) as u8 == bits & 1 && self.authentication(tuple, client_isn, period, bits) == told;
            let bits = usize::from(bits);
            good.then_some(Offer {
                mss: MSS_TABLE[bits >> 5],
                window_scale: SCALE_TABLE[bits >> 2 & 7],
                sack_permitted: bits & 2 != 0,
                ecn: false,
            })
        })
    }

    /// Eight bits that hide the offer.
    #[inline]
    fn mask(&self, tuple: &Tuple, client_isn: Seq, period: u64) -> u8 {
        // a number of its own in the place of the offer's eight bits
        tuple.hash24(self.key, bound(client_isn, period, 0x100)) as u8
    }

    /// Twenty-four bits that only we can make.
    #[inline]
    fn authentication(&self, tuple: &Tuple, client_isn: Seq, period: u64, bits: u8) -> u32 {
        (tuple.hash24(self.key, bound(client_isn, period, u64::from(bits))) >> 40) as u32
    }
}

/// What a cookie is bound to besides the tuple, as one word; periods repeat after 17 years.
fn bound(client_isn: Seq, period: u64, low: u64) -> u64 {
    u64::from(client_isn.get()) << 32 | (period & 0x7f_ffff) << 9 | low
}

/// The place of the largest scale that a cookie can name and the peer's is not below: a smaller shift makes its windows
/// look smaller than they are, never larger.
fn scale_index(scale: Option<u8>) -> usize {
    SCALE_TABLE.iter().rposition(|entry| *entry <= scale).unwrap_or(0)
}

/// The timestamp value for a cookie's SYN-ACK, before the connection's own offset is added: the clock, at most 64 ms
/// behind, with the options in its lowest bits. Never ahead of the clock, so that later values do not go back.
pub fn stamp(clock_ms: u32, offer: &Offer) -> u32 {
    let scale = offer.window_scale.map_or(STAMP_NO_SCALE, |scale| u32::from(scale.min(14)));
    let bits = scale | if offer.sack_permitted { STAMP_SACK } else { 0 } | if offer.ecn { STAMP_ECN } else { 0 };
    let stamp = clock_ms & !STAMP_MASK | bits;
    if stamp.wrapping_sub(clock_ms).cast_signed() > 0 { stamp.wrapping_sub(STAMP_MASK + 1) } else { stamp }
}

/// Completes an offer from the echoed timestamp, the connection's own offset taken off. The echo is not authenticated,
/// so it only refines: a scale that rounds to the cookie's own, ECN, and nothing where it contradicts the cookie.
pub fn read_stamp(offer: Offer, echoed: u32) -> Offer {
    let scale = Some((echoed & 0xf) as u8).filter(|scale| u32::from(*scale) != STAMP_NO_SCALE);
    let sack_permitted = echoed & STAMP_SACK != 0;
    if SCALE_TABLE[scale_index(scale)] != offer.window_scale || sack_permitted != offer.sack_permitted {
        return offer;
    }
    Offer { window_scale: scale, ecn: echoed & STAMP_ECN != 0, ..offer }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tuple(port: u16) -> Tuple {
        Tuple::new("192.0.2.1:80".parse().unwrap(), ([192, 0, 2, 2], port).into()).unwrap()
    }

    fn an_offer() -> impl Strategy<Value = Offer> {
        (216u16.., prop::option::of(0u8..=14), any::<(bool, bool)>())
            .prop_map(|(mss, window_scale, (sack_permitted, ecn))| Offer { mss, window_scale, sack_permitted, ecn })
    }

    proptest! {
        #[test]
        fn what_was_offered_comes_back_rounded_down_and_only_in_time(
            offer in an_offer(), secrets: [(u64, u64); 2], port: u16, isn: u32, made_ns in 0u64..1 << 62, age_s in 0u64..300, other in 1u32..
        ) {
            let all = secrets.map(|(one, two)| Cookies::new(Key::new(one, two)));
            let mut cookies = all[0];
            let made = Instant::from_nanos(made_ns);
            prop_assert!(!cookies.expected(made));
            let cookie = cookies.make(made, &tuple(port), Seq::new(isn), &offer).unwrap();
            let now = Instant::from_nanos(made_ns + age_s * 1_000_000_000);
            let periods = now.as_nanos() / PERIOD_NS - made_ns / PERIOD_NS;
            // one in 2^24 that is not good is taken by chance, and so under one secret, but not under two
            let taken = |mut cookies: Cookies, now, tuple_of: u16, isn_of| {
                let cookie = cookies.make(made, &tuple(port), Seq::new(isn), &offer).unwrap();
                cookies.check(now, &tuple(tuple_of), isn_of, cookie)
            };
            let by_all = |now, port, isn| all.iter().all(|cookies| taken(*cookies, now, port, isn).is_some());
            prop_assert_eq!(by_all(now, port, Seq::new(isn)), periods <= 1);
            let got = cookies.check(now, &tuple(port), Seq::new(isn), cookie);
            if periods <= 1 {
                let got = got.unwrap();
                prop_assert!(cookies.expected(now));
                prop_assert!(got.mss <= offer.mss && (offer.mss < 536 || got.mss >= 536) && MSS_TABLE.contains(&got.mss));
                prop_assert!(got.window_scale <= offer.window_scale);
                prop_assert_eq!(got.window_scale.is_some(), offer.window_scale.is_some());
                prop_assert_eq!((got.sack_permitted, got.ecn), (offer.sack_permitted, false));
                // with timestamps the rest is exact
                let clock_ms = (made_ns / 1_000_000) as u32;
                let full = read_stamp(got, stamp(clock_ms, &offer));
                prop_assert_eq!(full, Offer { mss: got.mss, ..offer });
            }
            // another connection's, another handshake's
            prop_assert!(!by_all(made, port ^ 1, Seq::new(isn)));
            prop_assert!(!by_all(made, port, Seq::new(isn) + other));
        }

        #[test]
        fn a_stamp_is_never_ahead_and_at_most_64_ms_behind(offer in an_offer(), clock_ms: u32) {
            let behind = clock_ms.wrapping_sub(stamp(clock_ms, &offer));
            prop_assert!(behind <= 64, "{} behind", behind);
        }

        #[test]
        fn a_forged_echo_cannot_contradict_the_cookie(offer in an_offer(), echoed: u32) {
            let carried = Offer { window_scale: SCALE_TABLE[scale_index(offer.window_scale)], ecn: false, ..offer };
            let read = read_stamp(carried, echoed);
            prop_assert!(read.window_scale >= carried.window_scale && read.window_scale.is_some() == carried.window_scale.is_some());
            prop_assert_eq!((read.mss, read.sack_permitted), (carried.mss, carried.sack_permitted));
        }
    }

    #[test]
    fn guesses_fail() {
        // 300,000 guesses succeed once in 55 runs by chance; this key and these guesses are fixed
        let mut cookies = Cookies::new(Key::new(5, 6));
        let offer = Offer { mss: 1460, window_scale: Some(7), sack_permitted: true, ecn: false };
        let at = Instant::from_nanos(1 << 40);
        let real = cookies.make(at, &tuple(4000), Seq::new(9), &offer).unwrap();
        let mut rng = base::rng::Rng::new(1);
        let hits = (0..300_000)
            .map(|_| Seq::new(rng.next_u64() as u32))
            .filter(|guess| *guess != real && cookies.check(at, &tuple(4000), Seq::new(9), *guess).is_some());
        assert_eq!(hits.count(), 0);
        assert!(cookies.check(at, &tuple(4000), Seq::new(9), real).is_some());
    }

    #[test]
    fn tables_round_down() {
        let mut cookies = Cookies::new(Key::new(5, 6));
        let mut carried = |mss, window_scale| {
            let offer = Offer { mss, window_scale, sack_permitted: false, ecn: true };
            let cookie = cookies.make(Instant::ZERO, &tuple(1), Seq::new(0), &offer)?;
            let got = cookies.check(Instant::ZERO, &tuple(1), Seq::new(0), cookie)?;
            Some((got.mss, got.window_scale))
        };
        assert_eq!(carried(215, None), None);
        assert_eq!(carried(216, None), Some((216, None)));
        assert_eq!(carried(1459, Some(0)), Some((1440, Some(0))));
        assert_eq!(carried(1460, Some(1)), Some((1460, Some(0))));
        assert_eq!(carried(65535, Some(14)), Some((8960, Some(10))));
        assert_eq!(carried(1220, Some(9)), Some((1200, Some(8))));
    }
}
