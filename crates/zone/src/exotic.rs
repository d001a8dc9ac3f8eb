//! Readers of the composite fields: bitmaps, address lists, gateways and the other forms that are a type's own.

use std::net::IpAddr;

use crate::name;
use crate::parse::{Cursor, Parsed, base64_word, counted, decimal, domain_name, hex_word, integer, ipv4, ipv6};
use crate::parse::{number, parse_str};
use crate::rtype::Rtype;

fn types(cursor: &mut Cursor<'_>, most: u16) -> Parsed<Vec<u16>> {
    let mut types = Vec::new();
    while let Some(token) = cursor.peek() {
        cursor.skip();
        let rtype = Rtype::parse(cursor.text(token)).filter(|rtype| (1..=most).contains(&rtype.0));
        types.push(rtype.ok_or_else(|| cursor.wrong(token, "is not a record type that can stand here"))?.0);
    }
    types.sort_unstable();
    types.dedup();
    Ok(types)
}

/// Windows of 256 types, each a number, a length and a bitmap without trailing zeros (RFC 4034 section 4.1.2).
pub(crate) fn type_bitmap(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let types = types(cursor, u16::MAX)?;
    for window in types.chunk_by(|a, b| a >> 8 == b >> 8) {
        let [number, last] = window[window.len() - 1].to_be_bytes();
        out.extend_from_slice(&[number, last / 8 + 1]);
        set_bits(window.iter().map(|rtype| rtype & 0xff), out);
    }
    Ok(())
}

/// One bitmap for the types below 128 (RFC 2535 section 5.2).
pub(crate) fn nxt_bitmap(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let types = types(cursor, 127)?;
    set_bits(types.into_iter(), out);
    Ok(())
}

/// Appends the shortest bitmap that has these bits, counted from the highest of the first octet.
fn set_bits(bits: impl Iterator<Item = u16>, out: &mut Vec<u8>) {
    let at = out.len();
    for bit in bits.map(usize::from) {
        if out.len() <= at + bit / 8 {
            out.resize(at + bit / 8 + 1, 0);
        }
        out[at + bit / 8] |= 0x80 >> (bit % 8);
    }
}

/// The protocols and ports that WKS may name in words (RFC 1010); all others by number.
const PROTOCOLS: &[(&str, u16)] =
    &[("icmp", 1), ("igmp", 2), ("ggp", 3), ("tcp", 6), ("egp", 8), ("pup", 12), ("udp", 17), ("hmp", 20), ("rdp", 27)];
const SERVICES: &[(&str, u16)] = &[
    ("echo", 7),
    ("discard", 9),
    ("systat", 11),
    ("users", 11),
    ("daytime", 13),
    ("netstat", 15),
    ("qotd", 17),
    ("quote", 17),
    ("chargen", 19),
    ("ftp-data", 20),
    ("ftp", 21),
    ("ssh", 22),
    ("telnet", 23),
    ("smtp", 25),
    ("time", 37),
    ("name", 42),
    ("nameserver", 42),
    ("whois", 43),
    ("domain", 53),
    ("bootps", 67),
    ("bootpc", 68),
    ("tftp", 69),
    ("gopher", 70),
    ("finger", 79),
    ("http", 80),
    ("kerberos", 88),
    ("supdup", 95),
    ("hostname", 101),
    ("hostnames", 101),
    ("pop2", 109),
    ("pop3", 110),
    ("sunrpc", 111),
    ("auth", 113),
    ("sftp", 115),
    ("nntp", 119),
    ("ntp", 123),
    ("imap", 143),
    ("imap2", 143),
    ("snmp", 161),
    ("bgp", 179),
    ("irc", 194),
    ("ldap", 389),
    ("https", 443),
];

fn named(table: &[(&str, u16)], text: &[u8]) -> Option<u16> {
    table.iter().find(|row| row.0.as_bytes().eq_ignore_ascii_case(text)).map(|row| row.1)
}

/// WKS (RFC 1035 section 3.4.2): a protocol and the ports that listen.
pub(crate) fn services(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let (text, token) = cursor.word("a protocol")?;
    let protocol = named(PROTOCOLS, text).map_or_else(|| number(text, token, 255), |known| Ok(u64::from(known)))?;
    out.push(protocol as u8);
    let mut ports = Vec::new();
    while let Some(token) = cursor.peek() {
        cursor.skip();
        let text = cursor.text(token);
        let port = named(SERVICES, text).or_else(|| decimal(text).and_then(|port| u16::try_from(port).ok()));
        ports.push(port.ok_or_else(|| cursor.wrong(token, "is not a port; write its number"))?);
    }
    set_bits(ports.into_iter(), out);
    Ok(())
}

/// `0x` and pairs of digits, dots anywhere (RFC 1706 section 5).
pub(crate) fn nsap(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let (text, token) = cursor.word("an NSAP address")?;
    let digits = text.strip_prefix(b"0x").or(text.strip_prefix(b"0X"));
    let digits = digits.ok_or_else(|| cursor.wrong(token, "is not an NSAP address; begin it with 0x"))?;
    let digits: Vec<u8> = digits.iter().copied().filter(|&octet| octet != b'.').collect();
    hex_word(&digits, token, out)
}

/// `+` and digits (E.164), or hexadecimal with dots (AESA).
pub(crate) fn atm_address(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let (text, token) = cursor.word("an ATM address")?;
    if let Some(digits) = text.strip_prefix(b"+") {
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return Err(cursor.wrong(token, "is not an E.164 address; write + and digits"));
        }
        out.push(1);
        out.extend_from_slice(digits);
        return Ok(());
    }
    out.push(0);
    let digits: Vec<u8> = text.iter().copied().filter(|&octet| octet != b'.').collect();
    hex_word(&digits, token, out)
}

/// RFC 2874 section 3.1: prefix length, the address's octets that the prefix does not cover, the prefix's name.
pub(crate) fn a6(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let (text, token) = cursor.word("a prefix length")?;
    let prefix_bits = number(text, token, 128)? as usize;
    out.push(prefix_bits as u8);
    if prefix_bits < 128 {
        let mut address = Vec::with_capacity(16);
        ipv6(cursor, &mut address)?;
        let first = prefix_bits / 8;
        address[first] &= 0xff >> (prefix_bits % 8);
        out.extend_from_slice(&address[first..]);
    }
    if prefix_bits > 0 { domain_name(cursor, out) } else { Ok(()) }
}

/// `[!]family:address/prefix` items (RFC 3123 section 5); an address loses its trailing zeros.
pub(crate) fn prefixes(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    while let Some(token) = cursor.peek() {
        cursor.skip();
        let text = cursor.text(token);
        let (text, negated) = match text.strip_prefix(b"!") {
            Some(rest) => (rest, 0x80),
            None => (text, 0),
        };
        let item = split_prefix(text);
        let (family, address, bits) =
            item.ok_or_else(|| cursor.wrong(token, "is not [!]1:IPV4/BITS or [!]2:IPV6/BITS (RFC 3123 5)"))?;
        let len = address.iter().rposition(|&octet| octet != 0).map_or(0, |at| at + 1);
        out.extend_from_slice(&[0, family, bits, negated | len as u8]);
        out.extend_from_slice(&address[..len]);
    }
    Ok(())
}

fn split_prefix(text: &[u8]) -> Option<(u8, Vec<u8>, u8)> {
    let text = std::str::from_utf8(text).ok()?;
    let (family, rest) = text.split_once(':')?;
    let (address, bits) = rest.rsplit_once('/')?;
    let bits = decimal(bits.as_bytes())?;
    match (family, address.parse().ok()?) {
        ("1", IpAddr::V4(address)) if bits <= 32 => Some((1, address.octets().into(), bits as u8)),
        ("2", IpAddr::V6(address)) if bits <= 128 => Some((2, address.octets().into(), bits as u8)),
        _ => None,
    }
}

/// Gateway type, algorithm, gateway (RFC 4025 section 3.1).
pub(crate) fn gateway(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let (text, token) = cursor.word("a gateway type")?;
    let kind = number(text, token, 3)? as u8;
    out.push(kind);
    integer(cursor, out, 1)?;
    endpoint(cursor, kind, out)
}

/// Discovery bit, relay type, relay (RFC 8777 section 4.3).
pub(crate) fn relay(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let (text, token) = cursor.word("the D bit")?;
    let discovery = number(text, token, 1)? as u8;
    let (text, token) = cursor.word("a relay type")?;
    let kind = number(text, token, 3)? as u8;
    out.push(discovery << 7 | kind);
    endpoint(cursor, kind, out)
}

fn endpoint(cursor: &mut Cursor<'_>, kind: u8, out: &mut Vec<u8>) -> Parsed<()> {
    match kind {
        0 => {
            let (text, token) = cursor.word("a dot for no gateway")?;
            if text == b"." { Ok(()) } else { Err(cursor.wrong(token, "stands for a gateway of type 0; write a dot")) }
        }
        1 => ipv4(cursor, out),
        2 => ipv6(cursor, out),
        _ => domain_name(cursor, out),
    }
}

/// Algorithm, HIT in hexadecimal, key in base64, rendezvous servers (RFC 8005 section 6).
pub(crate) fn hip(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let mut algorithm = Vec::new();
    integer(cursor, &mut algorithm, 1)?;
    let (text, token) = cursor.word("a HIT in hexadecimal")?;
    let at = out.len();
    counted(out, text, token, |out| hex_word(text, token, out))?;
    let (text, token) = cursor.word("a public key in base64")?;
    let mut key = Vec::new();
    base64_word(text, token, &mut key)?;
    let key_len = u16::try_from(key.len()).map_err(|_| cursor.wrong(token, "is longer than 65535 octets"))?;
    out.splice(at + 1..at + 1, [algorithm[0]].into_iter().chain(key_len.to_be_bytes()));
    out.extend_from_slice(&key);
    while let Some(token) = cursor.peek() {
        cursor.skip();
        name::parse_into(out, cursor.text(token), cursor.origin)
            .map_err(|why| cursor.wrong(token, &format!("is not a domain name: {why}")))?;
    }
    Ok(())
}

/// Four groups of up to four hexadecimal digits (RFC 6742 section 2.1.2).
pub(crate) fn locator(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let (text, token) = cursor.word("a 64-bit locator")?;
    let group = |text: &[u8]| (1..=4).contains(&text.len()).then(|| parse_hex(text)).flatten();
    let groups: Option<Vec<u16>> = text.split(|&octet| octet == b':').map(group).collect();
    let groups = groups.filter(|groups| groups.len() == 4);
    let groups = groups.ok_or_else(|| cursor.wrong(token, "is not four hexadecimal groups with colons"))?;
    out.extend(groups.into_iter().flat_map(u16::to_be_bytes));
    Ok(())
}

fn parse_hex(text: &[u8]) -> Option<u16> {
    // from_str_radix would take a sign
    let text = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|octet| octet.is_ascii_hexdigit()))?;
    u16::from_str_radix(text, 16).ok()
}

/// Pairs of hexadecimal digits with hyphens (RFC 7043 sections 3.2 and 4.2).
pub(crate) fn eui(cursor: &mut Cursor<'_>, out: &mut Vec<u8>, octets: usize) -> Parsed<()> {
    let (text, token) = cursor.word("an EUI address")?;
    let pair = |text: &[u8]| (text.len() == 2).then(|| parse_hex(text)).flatten();
    let pairs: Option<Vec<u16>> = text.split(|&octet| octet == b'-').map(pair).collect();
    let pairs = pairs.filter(|pairs| pairs.len() == octets);
    let pairs = pairs
        .ok_or_else(|| cursor.wrong(token, &format!("is not {octets} pairs of hexadecimal digits with hyphens")))?;
    out.extend(pairs.into_iter().map(|pair| pair as u8));
    Ok(())
}

/// An address of either family, as `alpn`'s neighbours in SVCB list them.
pub(crate) fn address_octets(text: &[u8], v6: bool) -> Option<Vec<u8>> {
    match parse_str(text)? {
        IpAddr::V4(address) if !v6 => Some(address.octets().into()),
        IpAddr::V6(address) if v6 => Some(address.octets().into()),
        _ => None,
    }
}
