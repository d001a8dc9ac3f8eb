//! The questions a load is made of, and the synthetic zones they are about.
//!
//! A synthetic zone of N names has an A record `198.18.(i/250 mod 250).(i mod 250 + 1)` at `host<i>`; a *versioned* one has
//! four, `10.<version>.<k>.(i mod 250 + 1)` for k in 0..4, so that an answer tells which version of the zone it came from and
//! an answer made of two versions shows.

use anyhow::{Context as _, Result, bail};
use base::rng::Rng;
use domain::base::iana::Rtype;
use domain::base::name::{Name, ToName as _};
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::str::FromStr as _;

/// A records of a name in a versioned zone.
pub(crate) const VERSIONED_RECORDS: u8 = 4;
/// Versions are told modulo this.
pub(crate) const VERSIONS: u8 = 250;
/// More questions than this are not kept: beyond it the generator's own cache misses would be measured.
const QUESTIONS_MOST: usize = 1 << 20;

/// Which records a synthetic zone has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// one A record a name
    Plain,
    /// four A records that tell the version
    Version(u8),
}

/// What the answer to a question must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// the question is known, the answer is not
    Anything,
    /// this address and nothing else
    Address(Ipv4Addr),
    /// the four addresses of one version, with this last byte
    Versioned(u8),
    /// that there is no such name, by the zone's SOA record
    Absent {
        /// the record's serial number tells the version
        versioned: bool,
    },
}

/// Questions in wire format, in the order they are asked.
#[derive(Debug, Default)]
pub(crate) struct Queries {
    /// question sections (with the additional section behind, where there is one), one after the other
    wire: Vec<u8>,
    /// where each begins, and where the last ends
    starts: Vec<u32>,
    /// sums of each one's 16-bit words, for the UDP checksum (RFC 1071)
    sums: Vec<u32>,
    expected: Vec<Expected>,
    /// an OPT record follows each question
    edns: bool,
}

/// One question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query<'a> {
    /// everything behind the header
    pub(crate) wire: &'a [u8],
    /// the sum of its 16-bit words
    pub(crate) sum: u32,
    /// what the answer must hold
    pub(crate) expected: Expected,
}

impl Queries {
    fn new(edns: bool) -> Queries {
        Queries { edns, starts: vec![0], ..Queries::default() }
    }

    fn push(&mut self, name: &[u8], rtype: u16, expected: Expected, edns_bytes: Option<u16>) {
        let from = self.wire.len();
        self.wire.extend_from_slice(name);
        self.wire.extend_from_slice(&rtype.to_be_bytes());
        self.wire.extend_from_slice(&[0, 1]);
        if let Some(bytes) = edns_bytes {
            // RFC 6891 section 6.1.2: root name, type 41, class = size, TTL 0, no options
            self.wire.extend_from_slice(&[0, 0, 41]);
            self.wire.extend_from_slice(&bytes.to_be_bytes());
            self.wire.extend_from_slice(&[0; 6]);
        }
        self.starts.push(u32::try_from(self.wire.len()).expect("questions of less than 4 GiB"));
        self.sums.push(sum16(&self.wire[from..]));
        self.expected.push(expected);
    }

    /// Uniformly random questions for A records of a synthetic zone.
    pub(crate) fn synthetic(zone: &Synthetic, edns_bytes: Option<u16>, seed: u64) -> Result<Queries> {
        Queries::with_absent(zone, 0, edns_bytes, seed)
    }

    /// The same, but so many in a hundred for random names that the zone does not have.
    pub(crate) fn with_absent(zone: &Synthetic, percent: u8, edns_bytes: Option<u16>, seed: u64) -> Result<Queries> {
        let origin =
            Name::<Vec<u8>>::from_str(&zone.origin).with_context(|| format!("'{}' is no name", zone.origin))?;
        let mut queries = Queries::new(edns_bytes.is_some());
        let mut rng = Rng::new(seed);
        // more draws than names, so that short lists have no order a processor could learn
        let count = usize::try_from(zone.names)?.clamp(1 << 16, QUESTIONS_MOST);
        let mut name = Vec::with_capacity(64);
        for _ in 0..count {
            let absent = rng.below(100) < percent.into();
            let host = rng.below(zone.names);
            let label = if absent { format!("x{:016x}", rng.next_u64()) } else { format!("host{host}") };
            let expected = if absent { zone.absent() } else { zone.expected(host) };
            name.clear();
            name.push(label.len() as u8);
            name.extend_from_slice(label.as_bytes());
            name.extend_from_slice(origin.as_slice());
            queries.push(&name, 1, expected, edns_bytes);
        }
        Ok(queries)
    }

    /// From a file of `NAME TYPE` lines, as dnsperf and kxdpgun read them; empty lines and those that begin with `#` or `;` are
    /// passed over.
    pub(crate) fn from_file(path: &Path, edns_bytes: Option<u16>) -> Result<Queries> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Queries::parse(&text, edns_bytes).with_context(|| path.display().to_string())
    }

    fn parse(text: &str, edns_bytes: Option<u16>) -> Result<Queries> {
        let mut queries = Queries::new(edns_bytes.is_some());
        for (number, line) in (1..).zip(text.lines()) {
            let mut words = line.split_whitespace();
            let Some(name) = words.next().filter(|word| !word.starts_with(['#', ';'])) else { continue };
            let rtype = words.next().unwrap_or("A");
            let name: Name<Vec<u8>> = name.parse().with_context(|| format!("line {number}: '{name}' is no name"))?;
            let rtype: Rtype = rtype.parse().with_context(|| format!("line {number}: '{rtype}' is no record type"))?;
            queries.push(name.to_name::<Vec<u8>>().as_slice(), rtype.to_int(), Expected::Anything, edns_bytes);
        }
        if queries.is_empty() {
            bail!("no question in it");
        }
        Ok(queries)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.sums.len()
    }

    fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// Whether an OPT record stands behind each question.
    pub(crate) fn edns(&self) -> bool {
        self.edns
    }

    /// Bytes of the longest.
    pub(crate) fn longest_bytes(&self) -> usize {
        self.starts.windows(2).map(|ends| (ends[1] - ends[0]) as usize).max().unwrap_or(0)
    }

    /// Question `at`, counted from 0.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> Query<'_> {
        let wire = &self.wire[self.starts[at] as usize..self.starts[at + 1] as usize];
        Query { wire, sum: self.sums[at], expected: self.expected[at] }
    }
}

/// A synthetic zone.
#[derive(Clone, Debug)]
pub(crate) struct Synthetic {
    /// its apex
    pub(crate) origin: String,
    /// names with an address record
    pub(crate) names: u64,
    /// their records
    pub(crate) content: Content,
}

impl Synthetic {
    fn expected(&self, host: u64) -> Expected {
        match self.content {
            Content::Plain => Expected::Address(address(host)),
            Content::Version(_) => Expected::Versioned(last_byte(host)),
        }
    }

    fn absent(&self) -> Expected {
        Expected::Absent { versioned: matches!(self.content, Content::Version(_)) }
    }

    /// Writes it as a zone file.
    pub(crate) fn write(&self, to: &mut impl Write) -> std::io::Result<()> {
        let serial = match self.content {
            Content::Plain => 1,
            Content::Version(version) => 1 + u32::from(version),
        };
        writeln!(to, "$ORIGIN {}.\n$TTL 3600", self.origin.trim_end_matches('.'))?;
        writeln!(
            to,
            "@ SOA ns1 hostmaster {serial} 7200 3600 1209600 300\n@ NS ns1\nns1 A 198.18.0.1\n@ A 198.18.0.10"
        )?;
        for host in 0..self.names {
            match self.content {
                Content::Plain => writeln!(to, "host{host} A {}", address(host))?,
                Content::Version(version) => {
                    for record in 0..VERSIONED_RECORDS {
                        writeln!(to, "host{host} A 10.{}.{record}.{}", version % VERSIONS, last_byte(host))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes it to a file.
    pub(crate) fn write_file(&self, path: &Path) -> Result<()> {
        let file = std::fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut file = std::io::BufWriter::new(file);
        self.write(&mut file).and_then(|()| file.flush()).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn last_byte(host: u64) -> u8 {
    (host % 250 + 1) as u8
}

fn address(host: u64) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, (host / 250 % 250) as u8, last_byte(host))
}

/// The sum of the 16-bit words of `bytes`, a last odd byte padded with zero (RFC 1071); not folded.
pub(crate) fn sum16(bytes: &[u8]) -> u32 {
    let words = bytes.chunks_exact(2);
    let last = words.remainder().first().map_or(0, |&byte| u32::from(byte) << 8);
    words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum::<u32>() + last
}

/// The ones' complement of the folded sum.
#[inline]
pub(crate) fn folded(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(names: u64, content: Content) -> Synthetic {
        Synthetic { origin: "example.com".into(), names, content }
    }

    #[test]
    fn synthetic_questions_ask_for_names_that_the_zone_has() {
        let zone = zone(300, Content::Plain);
        let mut text = Vec::new();
        zone.write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let queries = Queries::synthetic(&zone, None, 1).unwrap();
        assert_eq!(queries.len(), 1 << 16);
        let mut seen = std::collections::HashSet::new();
        for at in 0..queries.len() {
            let query = queries.get(at);
            let label = std::str::from_utf8(&query.wire[1..1 + usize::from(query.wire[0])]).unwrap();
            let Expected::Address(address) = query.expected else { panic!("an address is expected") };
            if seen.insert(label.to_owned()) {
                assert!(text.contains(&format!("\n{label} A {address}\n")), "{label} {address}");
                assert!(query.wire.ends_with(b"\x07example\x03com\x00\x00\x01\x00\x01"));
            }
        }
        assert_eq!(seen.len(), 300);
    }

    #[test]
    fn so_many_in_a_hundred_are_for_names_that_it_lacks() {
        let zone = zone(300, Content::Version(3));
        let queries = Queries::with_absent(&zone, 25, None, 1).unwrap();
        let absent = |at: &usize| queries.get(*at).expected == Expected::Absent { versioned: true };
        let lacking: Vec<usize> = (0..queries.len()).filter(absent).collect();
        let share = lacking.len() as f64 / queries.len() as f64;
        assert!((0.23..0.27).contains(&share), "{share}");
        assert!(lacking.iter().all(|at| queries.get(*at).wire.starts_with(b"\x11x")));
        let names: std::collections::HashSet<_> = lacking.iter().map(|at| queries.get(*at).wire).collect();
        assert_eq!(names.len(), lacking.len(), "each another name");
    }

    #[test]
    fn a_versioned_zone_tells_its_version_in_every_record() {
        let mut text = Vec::new();
        zone(2, Content::Version(7)).write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("hostmaster 8 "));
        assert_eq!(text.matches(" A 10.7.").count(), 8);
        assert_eq!(Queries::synthetic(&zone(2, Content::Version(0)), None, 1).unwrap().get(0).wire.len(), 6 + 13 + 4);
    }

    #[test]
    fn a_file_is_read_and_its_faults_are_told_by_line() {
        let queries = Queries::parse("# comment\nexample.com MX\n\nwww.example.com\n", Some(1232)).unwrap();
        assert_eq!((queries.len(), queries.longest_bytes()), (2, 17 + 4 + 11));
        let wire = queries.get(0).wire;
        assert_eq!(wire, b"\x07example\x03com\x00\x00\x0f\x00\x01\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00");
        for (text, expected) in [
            ("", "no question in it"),
            ("a A\nb NOTYPE\n", "line 2: 'NOTYPE' is no record type"),
            ("a..b A", "line 1: 'a..b' is no name"),
        ] {
            assert_eq!(Queries::parse(text, None).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn sums_pad_an_odd_byte() {
        assert_eq!(sum16(&[1, 2, 3]), 0x0102 + 0x0300);
        assert_eq!(sum16(&[]), 0);
    }
}
