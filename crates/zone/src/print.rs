//! Records in presentation form, such that reading them gives the same octets. Rdata whose octets have no
//! exact text, and types without a form, are written as RFC 3597 section 5 says.

use std::fmt::{self, Formatter};
use std::net::{Ipv4Addr, Ipv6Addr};

use data_encoding::{BASE32HEX_NOPAD, BASE64, HEXLOWER, HEXUPPER};

use crate::layout::{self, Field};
use crate::loc;
use crate::name::NameRef;
use crate::rtype::Rtype;
use crate::svcb;
use crate::time;
use crate::zone::Rrset;

/// Rdata that is displayed in presentation form.
#[derive(Clone, Copy, Debug)]
pub struct RdataText<'a> {
    rtype: Rtype,
    rdata: &'a [u8],
}

impl Rtype {
    /// The presentation form of rdata of this type, by way of `Display`.
    pub fn rdata_text(self, rdata: &[u8]) -> RdataText<'_> {
        RdataText { rtype: self, rdata }
    }
}

impl fmt::Display for RdataText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match layout::fields(self.rtype).filter(|fields| has_text(self.rtype, fields, self.rdata)) {
            Some(fields) => {
                let mut rest = self.rdata;
                for (at, &field) in fields.iter().enumerate() {
                    let (octets, after) = rest.split_at(layout::measure(field, rest).unwrap_or(rest.len()));
                    rest = after;
                    if at > 0 && !(octets.is_empty() && takes_nothing(field)) {
                        f.write_str(" ")?;
                    }
                    write_field(field, octets, f)?;
                }
                Ok(())
            }
            None if self.rdata.is_empty() => f.write_str("\\# 0"),
            None => write!(f, "\\# {} {}", self.rdata.len(), HEXLOWER.encode(self.rdata)),
        }
    }
}

/// Every record of the set on a line of its own: owner, TTL, class, type, rdata.
impl fmt::Display for Rrset<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (rdata, ttl) in self.rdatas().zip(self.ttls()) {
            let rtype = self.rtype();
            writeln!(f, "{} {ttl} {} {rtype} {}", self.name(), self.class(), rtype.rdata_text(rdata))?;
        }
        Ok(())
    }
}

/// Fields that are no word at all where they are empty.
fn takes_nothing(field: Field) -> bool {
    matches!(field, Field::OptionalStr | Field::OptionalBase64 | Field::Types | Field::NxtTypes | Field::SvcParams)
}

/// Whether the rdata is well formed, and what is written would be read as the very same octets.
fn has_text(rtype: Rtype, fields: &[Field], rdata: &[u8]) -> bool {
    if layout::check(rtype, rdata).is_err() {
        return false;
    }
    let mut rest = rdata;
    fields.iter().all(|&field| {
        let (octets, after) = rest.split_at(layout::measure(field, rest).unwrap_or(rest.len()));
        rest = after;
        match field {
            // type 0 is no type
            Field::Types => !octets.starts_with(&[0]) || octets.get(2).is_none_or(|bits| bits & 0x80 == 0),
            Field::NxtTypes => octets.first().is_none_or(|bits| bits & 0x80 == 0) && octets.last() != Some(&0),
            Field::Services => octets.len() == 1 || octets.last() != Some(&0),
            Field::Atm => octets[0] == 0 || octets[1..].iter().all(u8::is_ascii_digit),
            Field::Location => loc::has_text(octets),
            Field::A6 => octets[0] % 8 == 0 || octets[1] & !(0xff >> (octets[0] % 8)) == 0,
            _ => true,
        }
        // an empty APL is allowed, and has no words
    }) && !rdata.is_empty()
}

fn write_field(field: Field, octets: &[u8], f: &mut Formatter<'_>) -> fmt::Result {
    match field {
        Field::Name => write_name(octets, f),
        Field::U8 | Field::U16 | Field::U32 | Field::U64 | Field::Ttl => write!(f, "{}", big_endian(octets)),
        Field::Algorithm | Field::CertType | Field::Scheme => write!(f, "{}", big_endian(octets)),
        Field::Ipv4 => write_v4(octets, f),
        Field::Ipv6 => write_v6(octets, f),
        Field::OptionalStr if octets.is_empty() => Ok(()),
        Field::Str | Field::OptionalStr | Field::DigitStr | Field::FloatStr => write_quoted(&octets[1..], f),
        Field::Strs => write_strings(octets, f),
        Field::Tag => f.write_str(&String::from_utf8_lossy(&octets[1..])),
        Field::Text => write_quoted(octets, f),
        Field::Hex => f.write_str(&HEXUPPER.encode(octets)),
        Field::DashBase64 if octets.is_empty() => f.write_str("-"),
        Field::Base64 | Field::OptionalBase64 | Field::DashBase64 => f.write_str(&BASE64.encode(octets)),
        Field::Salt if octets.len() == 1 => f.write_str("-"),
        Field::Salt => f.write_str(&HEXUPPER.encode(&octets[1..])),
        Field::Hash => f.write_str(&BASE32HEX_NOPAD.encode(&octets[1..])),
        Field::Types => write_windows(octets, f),
        Field::NxtTypes => write_types(0, octets, &mut true, f),
        Field::Time => f.write_str(&time::format_timestamp(big_endian(octets) as u32)),
        Field::Type => write!(f, "{}", Rtype(big_endian(octets) as u16)),
        Field::Services => {
            write!(f, "{}", octets[0])?;
            bits(&octets[1..]).try_for_each(|port| write!(f, " {port}"))
        }
        Field::Nsap => write!(f, "0x{}", HEXLOWER.encode(octets)),
        Field::Atm if octets[0] == 1 => write!(f, "+{}", String::from_utf8_lossy(&octets[1..])),
        Field::Atm => f.write_str(&HEXLOWER.encode(&octets[1..])),
        Field::Location => loc::write(octets, f),
        Field::A6 => write_a6(octets, f),
        Field::Prefixes => write_prefixes(octets, f),
        Field::Gateway => {
            write!(f, "{} {} ", octets[0], octets[1])?;
            write_endpoint(octets[0], &octets[2..], f)
        }
        Field::Relay => {
            write!(f, "{} {} ", octets[0] >> 7, octets[0] & 0x7f)?;
            write_endpoint(octets[0] & 0x7f, &octets[1..], f)
        }
        Field::Hip => write_hip(octets, f),
        Field::Locator64 => {
            let groups: Vec<String> = octets.chunks(2).map(|group| format!("{:x}", big_endian(group))).collect();
            f.write_str(&groups.join(":"))
        }
        Field::Eui48 | Field::Eui64 => {
            let pairs: Vec<String> = octets.iter().map(|octet| format!("{octet:02x}")).collect();
            f.write_str(&pairs.join("-"))
        }
        Field::SvcParams => write_params(octets, f),
    }
}

fn big_endian(octets: &[u8]) -> u64 {
    octets.iter().fold(0, |value, &octet| value << 8 | u64::from(octet))
}

fn write_name(octets: &[u8], f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, "{}", NameRef::from_wire(octets).map_err(|_| fmt::Error)?)
}

fn write_v4(octets: &[u8], f: &mut Formatter<'_>) -> fmt::Result {
    let octets: [u8; 4] = octets.try_into().map_err(|_| fmt::Error)?;
    write!(f, "{}", Ipv4Addr::from(octets))
}

fn write_v6(octets: &[u8], f: &mut Formatter<'_>) -> fmt::Result {
    let octets: [u8; 16] = octets.try_into().map_err(|_| fmt::Error)?;
    write!(f, "{}", Ipv6Addr::from(octets))
}

fn write_quoted(octets: &[u8], f: &mut Formatter<'_>) -> fmt::Result {
    f.write_str("\"")?;
    for &octet in octets {
        match octet {
            b'"' | b'\\' => write!(f, "\\{}", char::from(octet))?,
            0x20..=0x7e => write!(f, "{}", char::from(octet))?,
            _ => write!(f, "\\{octet:03}")?,
        }
    }
    f.write_str("\"")
}

fn write_strings(octets: &[u8], f: &mut Formatter<'_>) -> fmt::Result {
    let mut rest = octets;
    while let Some((&len, after)) = rest.split_first() {
        let (string, after) = after.split_at(usize::from(len).min(after.len()));
        write_quoted(string, f)?;
        if !after.is_empty() {
            f.write_str(" ")?;
        }
        rest = after;
    }
    Ok(())
}

/// The numbers of the bits that are set, from the highest bit of the first octet.
fn bits(octets: &[u8]) -> impl Iterator<Item = usize> {
    (0..octets.len() * 8).filter(|bit| octets[bit / 8] & (0x80 >> (bit % 8)) != 0)
}

fn write_types(window: u8, octets: &[u8], first: &mut bool, f: &mut Formatter<'_>) -> fmt::Result {
    bits(octets).try_for_each(|bit| {
        let gap = if std::mem::take(first) { "" } else { " " };
        // a window has at most 32 octets, so a bit fits one octet
        write!(f, "{gap}{}", Rtype(u16::from_be_bytes([window, bit as u8])))
    })
}

fn write_windows(octets: &[u8], f: &mut Formatter<'_>) -> fmt::Result {
    let (mut rest, mut first) = (octets, true);
    while let [window, len, after @ ..] = rest {
        let (bitmap, after) = after.split_at(usize::from(*len).min(after.len()));
        write_types(*window, bitmap, &mut first, f)?;
        rest = after;
    }
    Ok(())
}

fn write_a6(octets: &[u8], f: &mut Formatter<'_>) -> fmt::Result {
    let prefix_bits = octets[0];
    let suffix_len = (128 - usize::from(prefix_bits)).div_ceil(8);
    write!(f, "{prefix_bits}")?;
    if suffix_len > 0 {
        let mut address = [0; 16];
        address[16 - suffix_len..].copy_from_slice(&octets[1..=suffix_len]);
        write!(f, " {}", Ipv6Addr::from(address))?;
    }
    if prefix_bits > 0 {
        f.write_str(" ")?;
        write_name(&octets[1 + suffix_len..], f)?;
    }
    Ok(())
}

fn write_prefixes(octets: &[u8], f: &mut Formatter<'_>) -> fmt::Result {
    let mut rest = octets;
    while let [_, family, bits, flags, after @ ..] = rest {
        let (given, after) = after.split_at(usize::from(flags & 0x7f).min(after.len()));
        let mut address = [0; 16];
        address[..given.len()].copy_from_slice(given);
        let negated = if flags & 0x80 != 0 { "!" } else { "" };
        write!(f, "{negated}{family}:")?;
        if *family == 1 {
            write_v4(&address[..4], f)?
        } else {
            write_v6(&address, f)?
        }
        write!(f, "/{bits}{}", if after.is_empty() { "" } else { " " })?;
        rest = after;
    }
    Ok(())
}

fn write_endpoint(kind: u8, octets: &[u8], f: &mut Formatter<'_>) -> fmt::Result {
    match kind {
        0 => f.write_str("."),
        1 => write_v4(octets, f),
        2 => write_v6(octets, f),
        _ => write_name(octets, f),
    }
}

fn write_hip(octets: &[u8], f: &mut Formatter<'_>) -> fmt::Result {
    let [hit_len, algorithm, key_high, key_low, after @ ..] = octets else { return Err(fmt::Error) };
    let (hit, after) = after.split_at(usize::from(*hit_len));
    let (key, mut servers) = after.split_at(usize::from(u16::from_be_bytes([*key_high, *key_low])));
    write!(f, "{algorithm} {} {}", HEXUPPER.encode(hit), BASE64.encode(key))?;
    while !servers.is_empty() {
        let (server, after) = NameRef::split_wire(servers).map_err(|_| fmt::Error)?;
        write!(f, " {server}")?;
        servers = after;
    }
    Ok(())
}

fn write_key(key: u16, f: &mut Formatter<'_>) -> fmt::Result {
    match svcb::KEYS.get(usize::from(key)) {
        Some(name) => f.write_str(name),
        None => write!(f, "key{key}"),
    }
}

fn write_params(octets: &[u8], f: &mut Formatter<'_>) -> fmt::Result {
    for (at, param) in svcb::params(octets).enumerate() {
        let (key, value) = param.map_err(|_| fmt::Error)?;
        if at > 0 {
            f.write_str(" ")?;
        }
        write_key(key, f)?;
        if !value.is_empty() {
            f.write_str("=")?;
            write_value(key, value, f)?;
        }
    }
    Ok(())
}

fn write_value(key: u16, value: &[u8], f: &mut Formatter<'_>) -> fmt::Result {
    let comma = |at: usize, f: &mut Formatter<'_>| f.write_str(if at > 0 { "," } else { "" });
    match key {
        0 => value.chunks(2).enumerate().try_for_each(|(at, key)| {
            comma(at, f)?;
            write_key(big_endian(key) as u16, f)
        }),
        1 => write_quoted(&alpn_list(value), f),
        3 => write!(f, "{}", big_endian(value)),
        4 => value.chunks(4).enumerate().try_for_each(|(at, address)| {
            comma(at, f)?;
            write_v4(address, f)
        }),
        5 => f.write_str(&BASE64.encode(value)),
        6 => value.chunks(16).enumerate().try_for_each(|(at, address)| {
            comma(at, f)?;
            write_v6(address, f)
        }),
        _ => write_quoted(value, f),
    }
}

/// Protocol names with commas between them, their own commas and backslashes escaped (RFC 9460 appendix A.1).
fn alpn_list(value: &[u8]) -> Vec<u8> {
    let mut list = Vec::with_capacity(value.len() * 2);
    let mut rest = value;
    while let Some((&len, after)) = rest.split_first() {
        let (id, after) = after.split_at(usize::from(len).min(after.len()));
        for &octet in id {
            if matches!(octet, b',' | b'\\') {
                list.push(b'\\');
            }
            list.push(octet);
        }
        if !after.is_empty() {
            list.push(b',');
        }
        rest = after;
    }
    list
}
