//! Response rate limiting: what goes to one network is bounded by kind and source of the answer, so that a forged source
//! address gains nothing from us.
//!
//! An account is a network (/24 or /56), a kind of answer, and what answered: the name for data and NODATA (all names under
//! one wildcard share the wildcard's), the cut for referrals, the zone for NXDOMAIN, so that a flood of random names meets one
//! account however many names there are to ask below. What is composed when it is asked for is judged before it is made: as
//! data of the name, wildcard or redirection (DNAME) that it comes from, whatever it turns out to be. Errors have one account a
//! network. Each account is one time: when it would be even again if nothing more came (the generic cell rate algorithm). The
//! table has a fixed size and belongs to one thread; four accounts share a cache line, and a newcomer takes the place of the
//! one that is even, or was, the longest.
//!
//! What answered is known by its place in the tables, so accounts begin anew with new ones: at a reload a flood
//! gets one more second's worth.
//!
//! Every thread judges alone, with the rates divided by the number of threads: the source ports of a flood are spread over
//! all queues. Where there are more threads than a rate, a thread's share is less than one answer a second: it sends one, and the next only
//! when that is paid for, so that all together keep to the rate.

use crate::resolve::Kind;
use base::Instant;
use std::net::IpAddr;

/// Rates and sizes. A rate of 0 is no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// answers with data a second, network and source
    pub responses_per_second: u32,
    /// referrals a second, network and cut
    pub referrals_per_second: u32,
    /// NODATA a second, network and name
    pub nodata_per_second: u32,
    /// NXDOMAIN a second, network and zone
    pub nxdomains_per_second: u32,
    /// errors a second and network
    pub errors_per_second: u32,
    /// how many seconds of overload an account remembers
    pub window_s: u32,
    /// every slip-th limited answer goes out truncated, so that a real client can come over TCP; 0 never, 1 always
    pub slip: u32,
    /// octets of memory for each thread, rounded up to a power of two of cache lines
    pub table_bytes: usize,
    /// networks that are never limited: address and prefix length
    pub allow: Vec<(IpAddr, u8)>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            responses_per_second: 200,
            referrals_per_second: 200,
            nodata_per_second: 200,
            nxdomains_per_second: 200,
            errors_per_second: 200,
            window_s: 15,
            slip: 2,
            table_bytes: 4 << 20,
            allow: Vec::new(),
        }
    }
}

/// What becomes of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Send,
    Slip,
    Drop,
}

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// 0 for none
    print: u32,
    limited: u32,
    /// when the account is even, in nanoseconds
    even_ns: u64,
}

const WAYS: usize = 4;
const SECOND_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line([Account; WAYS]);

const _: () = assert!(size_of::<Line>() == 64);

/// One thread's accounts.
pub(crate) struct Limiter {
    lines: Vec<Line>,
    /// nanoseconds an answer costs, by kind; 0 is free
    costs_ns: [u64; 5],
    window_ns: u64,
    slip: u32,
    allow: Vec<(IpAddr, u8)>,
    seed: u64,
}

impl Limiter {
    pub(crate) fn new(config: &Config, threads: usize, seed: u64) -> Limiter {
        let threads = threads.max(1) as u64;
        let cost = |rate: u32| if rate == 0 { 0 } else { SECOND_NS * threads / u64::from(rate) };
        let lines = (config.table_bytes / size_of::<Line>()).next_power_of_two();
        Limiter {
            lines: vec![Line::default(); lines],
            costs_ns: [
                cost(config.responses_per_second),
                cost(config.referrals_per_second),
                cost(config.nodata_per_second),
                cost(config.nxdomains_per_second),
                cost(config.errors_per_second),
            ],
            window_ns: u64::from(config.window_s.max(1)) * SECOND_NS,
            slip: config.slip,
            allow: config.allow.clone(),
            seed,
        }
    }

    /// For new tables, in which names and zones have other numbers: everybody's accounts begin anew, so that no name has the debts of
    /// another. What is in the table is nobody's from now on, and gives way to newcomers.
    pub(crate) fn renew(&mut self) {
        // odd, so that no seed comes again
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    }

    fn hash(&self, peer: IpAddr, kind: Kind, source: u32) -> u64 {
        let network = match peer {
            IpAddr::V4(address) => u64::from(address.to_bits() >> 8),
            // the family's bit keeps the two apart
            IpAddr::V6(address) => (address.to_bits() >> 72) as u64 | 1 << 63,
        };
        let what = u64::from(source) << 8 | kind as u64;
        let mixed = u128::from(network ^ self.seed) * u128::from(what.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let folded = (mixed >> 64) as u64 ^ mixed as u64;
        let again = u128::from(folded ^ self.seed.rotate_left(32)) * 0xa076_1d64_78bd_642f;
        (again >> 64) as u64 ^ again as u64
    }

    /// Charges the account and says what becomes of the answer.
    pub(crate) fn judge(&mut self, now: Instant, peer: IpAddr, kind: Kind, source: u32) -> Judgement {
        let cost_ns = self.costs_ns[kind as usize];
        if cost_ns == 0 {
            return Judgement::Send;
        }
        let hash = self.hash(peer, kind, if kind == Kind::Error { 0 } else { source });
        let at = (hash >> 32) as usize & (self.lines.len() - 1);
        let print = (hash as u32).max(1);
        let line = &mut self.lines[at].0;
        let way = line.iter().position(|account| account.print == print).unwrap_or_else(|| {
            let longest_even = (0..WAYS).min_by_key(|way| line[*way].even_ns).unwrap_or(0);
            line[longest_even] = Account { print, ..Account::default() };
            longest_even
        });
        let account = &mut line[way];
        let now_ns = now.as_nanos();
        // a second's worth may come at once, or one answer where that is less than one; more than the window's worth is forgotten
        let at_once_ns = SECOND_NS.max(cost_ns);
        account.even_ns = (account.even_ns.max(now_ns) + cost_ns).min(now_ns + at_once_ns + self.window_ns);
        if account.even_ns <= now_ns + at_once_ns {
            account.limited = 0;
            return Judgement::Send;
        }
        if self.allow.iter().any(|network| holds(*network, peer)) {
            return Judgement::Send;
        }
        account.limited = account.limited.wrapping_add(1);
        if self.slip > 0 && account.limited.is_multiple_of(self.slip) { Judgement::Slip } else { Judgement::Drop }
    }
}

fn holds((network, prefix_bits): (IpAddr, u8), peer: IpAddr) -> bool {
    match (network, peer) {
        (IpAddr::V4(network), IpAddr::V4(peer)) => {
            let differ = network.to_bits() ^ peer.to_bits();
            differ.checked_shr(32 - u32::from(prefix_bits.min(32))).unwrap_or(0) == 0
        }
        (IpAddr::V6(network), IpAddr::V6(peer)) => {
            let differ = network.to_bits() ^ peer.to_bits();
            differ.checked_shr(128 - u32::from(prefix_bits.min(128))).unwrap_or(0) == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn config(rate: u32) -> Config {
        Config { responses_per_second: rate, table_bytes: 1 << 12, ..Config::default() }
    }

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn peer(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn sent(limiter: &mut Limiter, now: Instant, peer: IpAddr, kind: Kind, source: u32, n: usize) -> usize {
        (0..n).filter(|_| limiter.judge(now, peer, kind, source) == Judgement::Send).count()
    }

    #[test]
    fn a_second_s_worth_goes_out_and_no_more() {
        let mut limiter = Limiter::new(&config(10), 1, 1);
        assert_eq!(sent(&mut limiter, at(0), peer("192.0.2.1"), Kind::Data, 1, 100), 10);
        // another source, another network: other accounts; the same /24: the same
        assert_eq!(sent(&mut limiter, at(0), peer("192.0.2.1"), Kind::Data, 2, 100), 10);
        assert_eq!(sent(&mut limiter, at(0), peer("192.0.3.1"), Kind::Data, 1, 100), 10);
        assert_eq!(sent(&mut limiter, at(0), peer("192.0.2.255"), Kind::Data, 1, 100), 0);
    }

    #[test]
    fn a_steady_rate_within_the_limit_is_never_touched() {
        let mut limiter = Limiter::new(&config(10), 1, 1);
        for n in 0..1000 {
            assert_eq!(limiter.judge(at(n * 100), peer("2001:db8::1"), Kind::Data, 1), Judgement::Send, "{n}");
        }
    }

    #[test]
    fn a_flood_is_limited_until_it_stops_for_the_window() {
        let mut limiter = Limiter::new(&Config { window_s: 5, ..config(10) }, 1, 1);
        let flood = peer("2001:db8::1");
        assert_eq!(sent(&mut limiter, at(0), flood, Kind::Data, 1, 1000), 10);
        assert_eq!(sent(&mut limiter, at(2000), flood, Kind::Data, 1, 1), 0);
        assert_eq!(sent(&mut limiter, at(8000), peer("2001:db8:0:ff::2"), Kind::Data, 1, 1), 1);
    }

    #[test]
    fn every_second_limited_answer_slips() {
        let mut limiter = Limiter::new(&config(1), 1, 1);
        let judged: Vec<_> = (0..5).map(|_| limiter.judge(at(0), peer("192.0.2.1"), Kind::Data, 1)).collect();
        use Judgement::{Drop, Send, Slip};
        assert_eq!(judged, [Send, Drop, Slip, Drop, Slip]);
        let mut never = Limiter::new(&Config { slip: 0, ..config(1) }, 1, 1);
        assert!((0..9).all(|_| never.judge(at(0), peer("192.0.2.1"), Kind::Data, 1) != Slip));
    }

    #[test]
    fn errors_share_an_account_whatever_was_asked() {
        let mut limiter = Limiter::new(&Config { errors_per_second: 3, ..config(0) }, 1, 1);
        let judge = |source| limiter.judge(at(0), peer("192.0.2.1"), Kind::Error, source);
        assert_eq!((0..50).map(judge).filter(|judged| *judged == Judgement::Send).count(), 3);
        assert_eq!(sent(&mut limiter, at(0), peer("192.0.2.1"), Kind::Data, 1, 50), 50);
    }

    #[test]
    fn allowed_networks_and_divided_rates() {
        let allow = [(peer("192.0.2.0"), 24), (peer("2001:db8::"), 32), (peer("0.0.0.0"), 0)];
        let mut limiter = Limiter::new(&Config { allow: allow[..2].to_vec(), ..config(8) }, 4, 1);
        assert_eq!(sent(&mut limiter, at(0), peer("192.0.2.77"), Kind::Data, 1, 50), 50);
        assert_eq!(sent(&mut limiter, at(0), peer("2001:db8:ffff::"), Kind::Data, 1, 50), 50);
        assert_eq!(sent(&mut limiter, at(0), peer("192.0.3.77"), Kind::Data, 1, 50), 2);
        assert_eq!(sent(&mut limiter, at(0), peer("2001:db9::"), Kind::Data, 1, 50), 2);
        assert!(holds(allow[2], peer("203.0.113.9")) && !holds(allow[2], peer("::")));
    }

    #[test]
    fn more_threads_than_the_rate_keep_to_it() {
        let mut threads: Vec<_> = (0..32).map(|_| Limiter::new(&config(5), 32, 1)).collect();
        let mut all = |ms| -> usize {
            threads.iter_mut().map(|limiter| sent(limiter, at(ms), peer("192.0.2.1"), Kind::Data, 1, 1)).sum()
        };
        // one each at once; of what comes later as many as 5 a second are, 32 in 6.4 s
        assert_eq!(all(0), 32);
        assert_eq!(all(6400), 32);
        let steady: usize = (0..640).map(|n| all(12_800 + n * 1000)).sum();
        assert!(steady <= 640 * 5 + 32, "{steady} in 640 s");
        // who asks a thread no more often than its share is never touched
        let mut limiter = Limiter::new(&config(5), 32, 1);
        for n in 0..100 {
            assert_eq!(limiter.judge(at(n * 6400), peer("192.0.2.1"), Kind::Data, 1), Judgement::Send, "{n}");
        }
    }

    #[test]
    fn a_full_table_goes_on_judging() {
        let mut limiter = Limiter::new(&Config { table_bytes: 1, ..config(1) }, 1, 1);
        assert_eq!(limiter.lines.len(), 1);
        for source in 0..100 {
            assert_eq!(limiter.judge(at(0), peer("192.0.2.1"), Kind::Data, source), Judgement::Send);
        }
    }
}
