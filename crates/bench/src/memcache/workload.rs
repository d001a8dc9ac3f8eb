//! What is stored and how it is asked for: the loads that Atikoglu and others saw at Facebook (Workload Analysis of a Large-Scale Key-Value
//! Store, SIGMETRICS 2012), with the distributions that mutilate made of them (Leverich and Kozyrakis, EuroSys 2014).
//!
//! A record's key and value follow from its number, so that every answer can be compared; mutilate draws a new value's length with every
//! SET. Lengths are looked up in tables of quantiles: the generator draws no logarithm a request.

use anyhow::{Result, ensure};
use arrayvec::ArrayVec;
use base::rng::Rng;
use std::str::FromStr;

/// The longest key (memcached's protocol.txt).
pub(crate) const KEY_MOST_BYTES: usize = 250;
/// Values are not longer: less than one in ten thousand would be.
pub(crate) const VALUE_MOST_BYTES: usize = 16 << 10;
/// Quantiles of each distribution.
const QUANTILES: usize = 4096;
/// What values are cut from.
const PATTERN_BYTES: usize = 64 << 10;

/// Which load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mix {
    /// keys of 16 or 21 octets, values of 2, 99.8% GET
    Usr,
    /// keys of some 20 to 70 octets, values from 1 octet to kilobytes, 75% GET as in the IX paper (OSDI 2014)
    Etc,
}

impl Mix {
    /// The word of the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Mix::Usr => "usr",
            Mix::Etc => "etc",
        }
    }

    /// The share of GETs.
    pub(crate) fn gets(self) -> f64 {
        match self {
            Mix::Usr => 0.998,
            Mix::Etc => 0.75,
        }
    }
}

/// A share on the command line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share(pub(crate) f64);

impl FromStr for Share {
    type Err = String;
    fn from_str(text: &str) -> Result<Share, String> {
        let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
        share.map(Share).ok_or_else(|| "a share from 0 to 1".into())
    }
}

/// The generalized extreme value distribution's quantile.
fn gev(location: f64, scale: f64, shape: f64, quantile: f64) -> f64 {
    location + scale * ((-quantile.ln()).powf(-shape) - 1.0) / shape
}

/// The generalized Pareto distribution's quantile.
fn pareto(location: f64, scale: f64, shape: f64, quantile: f64) -> f64 {
    location + scale * ((1.0 - quantile).powf(-shape) - 1.0) / shape
}

/// Shares of values of 0 to 14 octets; all others follow the Pareto distribution.
const SHORT_VALUES: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837, 0.00837, 0.08989,
    0.00092, 0.00326, 0.01980,
];

fn etc_key_bytes(quantile: f64) -> usize {
    gev(30.7984, 8.20449, 0.078688, quantile).round().max(1.0) as usize
}

fn etc_value_bytes(quantile: f64) -> usize {
    let mut below = 0.0;
    for (bytes, share) in SHORT_VALUES.iter().enumerate() {
        below += share;
        if quantile < below {
            return bytes;
        }
    }
    pareto(15.0, 214.476, 0.348238, (quantile - below) / (1.0 - below)).round() as usize
}

/// A value distribution as numbers at evenly spaced quantiles.
fn table(length: impl Fn(f64) -> usize) -> Box<[u16]> {
    (0..QUANTILES).map(|n| length((n as f64 + 0.5) / QUANTILES as f64) as u16).collect()
}

/// All records.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    count: u32,
    digits: usize,
    gets: f64,
    keys: Box<[u16]>,
    values: Box<[u16]>,
    pattern: Box<[u8]>,
}

/// Bits of a record, mixed.
#[inline]
fn mixed(record: u32, salt: u64) -> u64 {
    Rng::new(u64::from(record) << 8 | salt).next_u64()
}

impl Records {
    /// So many records of a load, `gets` of whose requests are GETs.
    pub(crate) fn new(mix: Mix, count: u32, gets: Option<Share>) -> Result<Records> {
        ensure!(count > 0, "there must be a record");
        let digits = (count - 1).checked_ilog10().map_or(1, |most| most as usize + 1);
        let key = |length: usize| length.clamp(digits, KEY_MOST_BYTES);
        let (keys, values) = match mix {
            // a half each
            Mix::Usr => (table(|quantile| key(if quantile < 0.5 { 16 } else { 21 })), table(|_| 2)),
            Mix::Etc => (
                table(|quantile| key(etc_key_bytes(quantile))),
                table(|quantile| etc_value_bytes(quantile).min(VALUE_MOST_BYTES)),
            ),
        };
        let mut rng = Rng::new(2012);
        // printable, as values that people look at
        let pattern = (0..PATTERN_BYTES + VALUE_MOST_BYTES).map(|_| b'a' + rng.below(26) as u8).collect();
        Ok(Records { count, digits, gets: gets.map_or(mix.gets(), |share| share.0), keys, values, pattern })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// A record, all of them alike, and whether it is to be asked for rather than stored.
    #[inline]
    pub(crate) fn draw(&self, rng: &mut Rng) -> (u32, bool) {
        (rng.below(self.count.into()) as u32, rng.chance(self.gets))
    }

    /// A record's key: its number with zeros in front.
    #[inline]
    pub(crate) fn write_key<const N: usize>(&self, record: u32, out: &mut ArrayVec<u8, N>) {
        let bytes = usize::from(self.keys[mixed(record, 1) as usize % QUANTILES]);
        let mut digits = [b'0'; 10];
        let mut left = record;
        for digit in digits.iter_mut().rev() {
            *digit += (left % 10) as u8;
            left /= 10;
        }
        (self.digits..bytes).for_each(|_| out.push(b'0'));
        out.extend(digits[digits.len() - self.digits..].iter().copied());
    }

    /// A record's value.
    #[inline]
    pub(crate) fn value(&self, record: u32) -> &[u8] {
        let mixed = mixed(record, 2);
        let (at, bytes) = ((mixed >> 32) as usize % PATTERN_BYTES, self.values[mixed as usize % QUANTILES]);
        &self.pattern[at..at + usize::from(bytes)]
    }
}

#[cfg(test)]
impl Records {
    /// The same keys with other values of the same lengths.
    pub(crate) fn other(&self) -> Records {
        Records { pattern: self.pattern.iter().map(|octet| octet ^ 1).collect(), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(records: &Records, record: u32) -> Vec<u8> {
        let mut key = ArrayVec::<u8, KEY_MOST_BYTES>::new();
        records.write_key(record, &mut key);
        key.to_vec()
    }

    #[test]
    fn keys_are_all_different_and_as_long_as_the_load_has_them() {
        let records = Records::new(Mix::Usr, 10_000, None).unwrap();
        let keys: std::collections::HashSet<Vec<u8>> = (0..10_000).map(|n| key(&records, n)).collect();
        assert_eq!(keys.len(), 10_000);
        let short = keys.iter().filter(|key| key.len() == 16).count();
        assert!(keys.iter().all(|key| matches!(key.len(), 16 | 21)) && (4700..5300).contains(&short), "{short}");
        assert!((0..100).all(|n| records.value(n).len() == 2));
        // one record, and more than short keys can tell apart
        assert_eq!(key(&Records::new(Mix::Usr, 1, None).unwrap(), 0).len() % 5, 1);
        let many = Records::new(Mix::Etc, 1_000_000, None).unwrap();
        assert!((0..5000).all(|n| key(&many, n).ends_with(format!("{n:06}").as_bytes())));
    }

    #[test]
    fn etc_has_the_published_lengths() {
        // the mean of a GEV distribution is location + scale (Gamma(1 - shape) - 1) / shape: 36.1 octets
        let mean = |table: &[u16]| table.iter().map(|bytes| f64::from(*bytes)).sum::<f64>() / table.len() as f64;
        let records = Records::new(Mix::Etc, 100, None).unwrap();
        assert!((35.5..36.8).contains(&mean(&records.keys)), "{}", mean(&records.keys));
        let (least, most) = (records.keys[0], records.keys[QUANTILES - 1]);
        assert!(least >= 10 && most > 80 && most < 250, "{least} to {most}");
        // short ones are 44% and 2 octets 18% of all; the rest has the mean 15 + 214.476 / (1 - 0.348238) = 344 octets
        let share = |is: &dyn Fn(u16) -> bool| {
            records.values.iter().filter(|bytes| is(**bytes)).count() as f64 / QUANTILES as f64
        };
        let short: f64 = SHORT_VALUES.iter().sum();
        assert!((share(&|bytes| bytes < 15) - short).abs() < 0.002);
        assert!((share(&|bytes| bytes == 2) - 0.1782).abs() < 0.002);
        let long: Vec<u16> = records.values.iter().copied().filter(|bytes| *bytes >= 15).collect();
        assert!((320.0..350.0).contains(&mean(&long)), "{}", mean(&long));
    }

    #[test]
    fn requests_have_their_shares() {
        let mut rng = Rng::new(1);
        let records = Records::new(Mix::Etc, 1000, Some(Share(0.25))).unwrap();
        let gets = (0..10_000).filter(|_| records.draw(&mut rng).1).count();
        assert!((2300..2700).contains(&gets), "{gets}");
        assert!("1.5".parse::<Share>().is_err() && "x".parse::<Share>().is_err());
        assert_eq!("0.5".parse(), Ok(Share(0.5)));
    }
}
