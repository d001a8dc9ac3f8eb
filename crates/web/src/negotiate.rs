//! Which of a resource's variants a client gets: Accept-Encoding with its weights (RFC 9110 section 12.5.3).

use crate::head::members;

/// A content coding that a variant can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Encoding {
    /// none
    #[default]
    Identity,
    /// RFC 1952
    Gzip,
    /// RFC 8878
    Zstd,
    /// RFC 7932
    Brotli,
}

impl Encoding {
    /// Every coding.
    pub const ALL: [Encoding; 4] = [Encoding::Identity, Encoding::Gzip, Encoding::Zstd, Encoding::Brotli];

    /// The token in Content-Encoding.
    pub const fn token(self) -> &'static str {
        match self {
            Encoding::Identity => "identity",
            Encoding::Gzip => "gzip",
            Encoding::Zstd => "zstd",
            Encoding::Brotli => "br",
        }
    }

    /// What a file's name ends in beside the one that it compresses, dot included; empty for none.
    pub const fn suffix(self) -> &'static str {
        match self {
            Encoding::Identity => "",
            Encoding::Gzip => ".gz",
            Encoding::Zstd => ".zst",
            Encoding::Brotli => ".br",
        }
    }

    fn of(token: &[u8]) -> Option<Encoding> {
        let named = Encoding::ALL.into_iter().find(|coding| token.eq_ignore_ascii_case(coding.token().as_bytes()));
        // RFC 9110 section 8.4.1.3: x-gzip is gzip
        named.or_else(|| token.eq_ignore_ascii_case(b"x-gzip").then_some(Encoding::Gzip))
    }
}

/// A client's weights in thousandths, by coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weights([u16; 4]);

impl Weights {
    /// Without the field: no coding, as clients of old cannot undo one.
    pub(crate) const NONE: Weights = Weights([1, 0, 0, 0]);

    /// From the lines of the field. The first mention of a coding counts; what has a malformed weight is not accepted.
    pub(crate) fn of<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Weights {
        let mut named = [None; 4];
        let mut other = None;
        for member in lines.flat_map(members) {
            let (token, parameter) = match memchr::memchr(b';', member) {
                Some(at) => (member[..at].trim_ascii_end(), Some(member[at + 1..].trim_ascii())),
                None => (member, None),
            };
            let weight = parameter.map_or(1000, |parameter| weight(parameter).unwrap_or(0));
            if token == b"*" {
                other.get_or_insert(weight);
            } else if let Some(coding) = Encoding::of(token) {
                named[coding as usize].get_or_insert(weight);
            }
        }
        // identity is acceptable unless it is excluded, and then last of all
        let absent = |coding: Encoding| match (coding, other) {
            (Encoding::Identity, None) => 1,
            (_, other) => other.unwrap_or(0),
        };
        Weights(Encoding::ALL.map(|coding| named[coding as usize].unwrap_or_else(|| absent(coding))))
    }

    /// The weight of a coding; 0 is not acceptable.
    pub(crate) fn get(&self, coding: Encoding) -> u16 {
        self.0[coding as usize]
    }
}

/// `q=0.8` in thousandths (section 12.4.2).
fn weight(parameter: &[u8]) -> Option<u16> {
    let [b'q' | b'Q', b'=', number @ ..] = parameter else { return None };
    let (whole, fraction) = match number {
        [whole @ (b'0' | b'1')] => (*whole, &[][..]),
        [whole @ (b'0' | b'1'), b'.', fraction @ ..] if fraction.len() <= 3 => (*whole, fraction),
        _ => return None,
    };
    let mut thousandths = u16::from(whole - b'0') * 1000;
    let mut unit = 100;
    for digit in fraction {
        thousandths += u16::from(char::from(*digit).to_digit(10)? as u8) * unit;
        unit /= 10;
    }
    (thousandths <= 1000).then_some(thousandths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_the_rfc_and_of_clients() {
        // identity, gzip, zstd, br
        for (field, weights) in [
            // RFC 9110 section 12.5.3
            ("compress, gzip", [1, 1000, 0, 0]),
            ("", [1, 0, 0, 0]),
            ("*", [1000, 1000, 1000, 1000]),
            ("compress;q=0.5, gzip;q=1.0", [1, 1000, 0, 0]),
            ("gzip;q=1.0, identity; q=0.5, *;q=0", [500, 1000, 0, 0]),
            // browsers, curl, and what proxies write
            ("gzip, deflate, br, zstd", [1, 1000, 1000, 1000]),
            ("deflate, gzip, br, zstd", [1, 1000, 1000, 1000]),
            ("identity", [1000, 0, 0, 0]),
            ("BR;Q=0.123 , x-gzip;q=0.05", [1, 50, 0, 123]),
            ("gzip;q=0", [1, 0, 0, 0]),
            ("identity;q=0, br", [0, 0, 0, 1000]),
            ("*;q=0", [0, 0, 0, 0]),
            ("br;q=0, *;q=0.3", [300, 300, 300, 0]),
            // no weights
            ("gzip;q=2", [1, 0, 0, 0]),
            ("gzip;q=1.001", [1, 0, 0, 0]),
            ("gzip;q=0.1234", [1, 0, 0, 0]),
            ("gzip;q=", [1, 0, 0, 0]),
            ("gzip;level=9", [1, 0, 0, 0]),
            ("gzip;q=0.x", [1, 0, 0, 0]),
            ("gzip;q=0.4, gzip;q=0.9", [1, 400, 0, 0]),
        ] {
            assert_eq!(Weights::of([field.as_bytes()].into_iter()).0, weights, "{field}");
        }
    }

    #[test]
    fn several_lines_are_one_list() {
        let lines = [&b"br;q=0.5"[..], b"gzip"];
        assert_eq!(Weights::of(lines.into_iter()), Weights([1, 1000, 0, 500]));
    }
}
