//! Rdata from presentation form: a cursor over an entry's tokens, and one reader for each kind of field.
//! The composite fields stand in `exotic` and `svcb_text`.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::error::Wrong;
use crate::exotic;
use crate::layout::{self, Field};
use crate::name::{self, NameRef, unescape};
use crate::rtype::Rtype;
use crate::scan::{Entry, Token};
use crate::svcb_text;
use crate::time;

/// What can go wrong with a token: which one, and why.
pub(crate) type Parsed<T> = Result<T, Wrong>;

/// Walks the tokens of an entry.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'e> {
    pub(crate) entry: &'e Entry,
    next: usize,
    pub(crate) origin: Option<NameRef<'e>>,
}

impl<'e> Cursor<'e> {
    pub(crate) fn new(entry: &'e Entry, next: usize, origin: Option<NameRef<'e>>) -> Self {
        Cursor { entry, next, origin }
    }

    pub(crate) fn peek(&self) -> Option<Token> {
        self.entry.tokens().get(self.next).copied()
    }

    pub(crate) fn skip(&mut self) {
        self.next += 1;
    }

    /// The next token, which must be there; `wanted` says what it is to be.
    pub(crate) fn next(&mut self, wanted: &str) -> Parsed<Token> {
        match self.peek() {
            Some(token) => {
                self.next += 1;
                Ok(token)
            }
            None => {
                let last = self.entry.tokens().last();
                let (line, column) = last.map_or((0, 0), |token| (token.line, token.column));
                Err(Wrong { line, column, what: format!("the record ends too early; {wanted} is missing") })
            }
        }
    }

    pub(crate) fn text(&self, token: Token) -> &'e [u8] {
        self.entry.text(token)
    }

    /// The next token's text with the token.
    pub(crate) fn word(&mut self, wanted: &str) -> Parsed<(&'e [u8], Token)> {
        let token = self.next(wanted)?;
        Ok((self.text(token), token))
    }

    pub(crate) fn wrong(&self, token: Token, why: &str) -> Wrong {
        wrong(self.text(token), token, why)
    }
}

/// `"value" is not ...; ...`
fn wrong(text: &[u8], token: Token, why: &str) -> Wrong {
    const SHOWN: usize = 60;
    let mut shown = text[..text.len().min(SHOWN)].escape_ascii().to_string();
    if text.len() > SHOWN {
        shown.push_str("...");
    }
    Wrong { line: token.line, column: token.column, what: format!("\"{shown}\" {why}") }
}

/// Reads the rdata of a record from the cursor to the end of its entry, appending it to `out`, which is empty.
pub(crate) fn rdata(rtype: Rtype, cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let fields = layout::fields(rtype);
    // the one type whose text may be nothing at all (RFC 3123 section 5)
    if cursor.peek().is_none() && fields == Some(&[Field::Prefixes]) {
        return Ok(());
    }
    let first = cursor.next("rdata")?;
    cursor.next -= 1;
    if !first.quoted && cursor.text(first) == b"\\#" {
        cursor.skip();
        generic(cursor, out)?;
    } else if let Some(fields) = fields {
        for &field in fields {
            read_field(field, cursor, out)?;
        }
        if let Some(token) = cursor.peek() {
            return Err(cursor.wrong(token, &format!("is more than {rtype} takes; remove it")));
        }
    } else {
        let why = format!(r"is not rdata of {rtype}, which has no form of its own; write \# LENGTH HEX (RFC 3597 5)");
        return Err(cursor.wrong(first, &why));
    }
    let malformed = |why: &str| Wrong {
        line: first.line,
        column: first.column,
        what: format!("the rdata of {rtype} is malformed: {why}"),
    };
    layout::check(rtype, out).map_err(malformed)?;
    if out.len() > usize::from(u16::MAX) {
        return Err(malformed(&format!("it has {} octets; 65535 is the most", out.len())));
    }
    Ok(())
}

/// `\# LENGTH HEX...` (RFC 3597 section 5); the `\#` is read already.
fn generic(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let (text, length_token) = cursor.word("the length of the rdata")?;
    let length: u16 = number(text, length_token, u64::from(u16::MAX))? as u16;
    if cursor.peek().is_some() {
        hex_rest(cursor, out)?;
    }
    if out.len() != usize::from(length) {
        let why = format!("octets are announced, but {} follow", out.len());
        return Err(cursor.wrong(length_token, &why));
    }
    Ok(())
}

fn read_field(field: Field, cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    match field {
        Field::Name => domain_name(cursor, out),
        Field::U8 => integer(cursor, out, 1),
        Field::U16 => integer(cursor, out, 2),
        Field::U32 => integer(cursor, out, 4),
        Field::U64 => integer(cursor, out, 8),
        Field::Ttl => {
            seconds(cursor, out, time::ttl, "is not a time; write seconds up to 4294967295, or units as in 1h30m")
        }
        Field::Time => {
            seconds(cursor, out, time::timestamp, "is not a time; write YYYYMMDDHHmmSS or seconds since 1970")
        }
        Field::Ipv4 => ipv4(cursor, out),
        Field::Ipv6 => ipv6(cursor, out),
        Field::Str | Field::DigitStr | Field::FloatStr | Field::Tag => one_string(field, cursor, out),
        Field::Strs => {
            one_string(field, cursor, out)?;
            optional_strings(cursor, out)
        }
        Field::OptionalStr => {
            if cursor.peek().is_some() {
                one_string(field, cursor, out)
            } else {
                Ok(())
            }
        }
        Field::Text => text_rest(cursor, out),
        Field::Hex => hex_rest(cursor, out),
        Field::Base64 => base64_rest(cursor, out),
        Field::OptionalBase64 => {
            if cursor.peek().is_some() {
                base64_rest(cursor, out)
            } else {
                Ok(())
            }
        }
        Field::DashBase64 => match cursor.peek() {
            Some(token) if cursor.text(token) == b"-" => {
                cursor.skip();
                Ok(())
            }
            _ => base64_rest(cursor, out),
        },
        Field::Salt => salt(cursor, out),
        Field::Hash => hash(cursor, out),
        Field::Types => exotic::type_bitmap(cursor, out),
        Field::NxtTypes => exotic::nxt_bitmap(cursor, out),
        Field::Type => record_type(cursor, out),
        Field::Algorithm => mnemonic(cursor, out, 1, ALGORITHMS, "a DNSSEC algorithm's number or mnemonic"),
        Field::CertType => mnemonic(cursor, out, 2, CERT_TYPES, "a certificate type's number or mnemonic"),
        Field::Scheme => mnemonic(cursor, out, 1, &[("NOTIFY", 1)], "a scheme's number or mnemonic"),
        Field::Services => exotic::services(cursor, out),
        Field::Nsap => exotic::nsap(cursor, out),
        Field::Atm => exotic::atm_address(cursor, out),
        Field::Location => crate::loc::read(cursor, out),
        Field::A6 => exotic::a6(cursor, out),
        Field::Prefixes => exotic::prefixes(cursor, out),
        Field::Gateway => exotic::gateway(cursor, out),
        Field::Relay => exotic::relay(cursor, out),
        Field::Hip => exotic::hip(cursor, out),
        Field::Locator64 => exotic::locator(cursor, out),
        Field::Eui48 => exotic::eui(cursor, out, 6),
        Field::Eui64 => exotic::eui(cursor, out, 8),
        Field::SvcParams => svcb_text::params(cursor, out),
    }
}

fn seconds(cursor: &mut Cursor<'_>, out: &mut Vec<u8>, read: fn(&[u8]) -> Option<u32>, why: &str) -> Parsed<()> {
    let (text, token) = cursor.word("a time")?;
    out.extend_from_slice(&read(text).ok_or_else(|| wrong(text, token, why))?.to_be_bytes());
    Ok(())
}

fn record_type(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let (text, token) = cursor.word("a record type")?;
    let rtype = Rtype::parse(text).ok_or_else(|| wrong(text, token, "is not a record type"))?;
    out.extend_from_slice(&rtype.0.to_be_bytes());
    Ok(())
}

fn salt(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let (text, token) = cursor.word("a salt in hexadecimal, or -")?;
    let digits = if text == b"-" { b"" } else { text };
    counted(out, text, token, |out| hex_word(digits, token, out))
}

fn hash(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let (text, token) = cursor.word("a hash in base32hex")?;
    counted(out, text, token, |out| {
        let hash = data_encoding::BASE32HEX_NOPAD.decode(&text.to_ascii_uppercase());
        out.extend_from_slice(&hash.map_err(|_| wrong(text, token, "is not base32hex (RFC 4648 7)"))?);
        Ok(())
    })
}

/// DNSSEC algorithms by their mnemonics (IANA's registry).
pub(crate) const ALGORITHMS: &[(&str, u16)] = &[
    ("DELETE", 0),
    ("RSAMD5", 1),
    ("DH", 2),
    ("DSA", 3),
    ("ECC", 4),
    ("RSASHA1", 5),
    ("DSA-NSEC3-SHA1", 6),
    ("NSEC3DSA", 6),
    ("RSASHA1-NSEC3-SHA1", 7),
    ("NSEC3RSASHA1", 7),
    ("RSASHA256", 8),
    ("RSASHA512", 10),
    ("ECC-GOST", 12),
    ("ECCGOST", 12),
    ("ECDSAP256SHA256", 13),
    ("ECDSA256", 13),
    ("ECDSAP384SHA384", 14),
    ("ECDSA384", 14),
    ("ED25519", 15),
    ("ED448", 16),
    ("SM2SM3", 17),
    ("ECC-GOST12", 23),
    ("INDIRECT", 252),
    ("PRIVATEDNS", 253),
    ("PRIVATEOID", 254),
];

/// RFC 4398 section 2.1.
pub(crate) const CERT_TYPES: &[(&str, u16)] = &[
    ("PKIX", 1),
    ("SPKI", 2),
    ("PGP", 3),
    ("IPKIX", 4),
    ("ISPKI", 5),
    ("IPGP", 6),
    ("ACPKIX", 7),
    ("IACPKIX", 8),
    ("URI", 253),
    ("OID", 254),
];

fn mnemonic(
    cursor: &mut Cursor<'_>,
    out: &mut Vec<u8>,
    octets: usize,
    table: &[(&str, u16)],
    wanted: &str,
) -> Parsed<()> {
    let (text, token) = cursor.word(wanted)?;
    let known = table.iter().find(|row| row.0.as_bytes().eq_ignore_ascii_case(text));
    let most = if octets == 1 { u16::from(u8::MAX) } else { u16::MAX };
    let value = match known {
        Some(row) => row.1,
        None => decimal(text)
            .and_then(|value| u16::try_from(value).ok())
            .filter(|&value| value <= most)
            .ok_or_else(|| wrong(text, token, &format!("is not {wanted}")))?,
    };
    out.extend_from_slice(&value.to_be_bytes()[2 - octets..]);
    Ok(())
}

/// A decimal number without sign.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |value, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

pub(crate) fn number(text: &[u8], token: Token, most: u64) -> Parsed<u64> {
    decimal(text)
        .filter(|&value| value <= most)
        .ok_or_else(|| wrong(text, token, &format!("is not a number from 0 to {most}")))
}

pub(crate) fn integer(cursor: &mut Cursor<'_>, out: &mut Vec<u8>, octets: usize) -> Parsed<()> {
    let (text, token) = cursor.word("a number")?;
    let most = u64::MAX >> (64 - 8 * octets);
    let value = number(text, token, most)?;
    out.extend_from_slice(&value.to_be_bytes()[8 - octets..]);
    Ok(())
}

pub(crate) fn domain_name(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let (text, token) = cursor.word("a domain name")?;
    name::parse_into(out, text, cursor.origin)
        .map_err(|why| wrong(text, token, &format!("is not a domain name: {why}")))
}

pub(crate) fn ipv4(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let (text, token) = cursor.word("an IPv4 address")?;
    let address = parse_str::<Ipv4Addr>(text)
        .ok_or_else(|| wrong(text, token, "is not an IPv4 address; write four numbers from 0 to 255 with dots"))?;
    out.extend_from_slice(&address.octets());
    Ok(())
}

pub(crate) fn ipv6(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let (text, token) = cursor.word("an IPv6 address")?;
    let address =
        parse_str::<Ipv6Addr>(text).ok_or_else(|| wrong(text, token, "is not an IPv6 address (RFC 4291 2.2)"))?;
    out.extend_from_slice(&address.octets());
    Ok(())
}

pub(crate) fn parse_str<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Appends the octets that `text` stands for.
pub(crate) fn unescape_into(text: &[u8], token: Token, out: &mut Vec<u8>) -> Parsed<()> {
    let mut rest = text;
    while let Some((&octet, after)) = rest.split_first() {
        rest = after;
        if octet == b'\\' {
            let (value, after) = unescape(rest).ok_or_else(|| {
                wrong(text, token, r"has a bad escape; write \DDD with 000 to 255, or \ and the character")
            })?;
            out.push(value);
            rest = after;
        } else {
            out.push(octet);
        }
    }
    Ok(())
}

/// Appends a length octet and what `fill` appends.
pub(crate) fn counted(
    out: &mut Vec<u8>,
    text: &[u8],
    token: Token,
    fill: impl FnOnce(&mut Vec<u8>) -> Parsed<()>,
) -> Parsed<()> {
    let at = out.len();
    out.push(0);
    fill(out)?;
    let octets = out.len() - at - 1;
    out[at] = u8::try_from(octets)
        .map_err(|_| wrong(text, token, &format!("has {octets} octets; 255 is the most, so split it")))?;
    Ok(())
}

fn one_string(field: Field, cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let (text, token) = cursor.word("a string")?;
    let at = out.len();
    counted(out, text, token, |out| unescape_into(text, token, out))?;
    match layout::measure(field, &out[at..]) {
        Ok(_) => Ok(()),
        Err(why) => Err(wrong(text, token, &format!("cannot stand here: {why}"))),
    }
}

fn optional_strings(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    while cursor.peek().is_some() {
        one_string(Field::Str, cursor, out)?;
    }
    Ok(())
}

/// One string without a length octet.
fn text_rest(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let (text, token) = cursor.word("a string")?;
    unescape_into(text, token, out)
}

pub(crate) fn hex_word(text: &[u8], token: Token, out: &mut Vec<u8>) -> Parsed<()> {
    let octets = data_encoding::HEXLOWER_PERMISSIVE.decode(text);
    out.extend_from_slice(&octets.map_err(|_| wrong(text, token, "is not pairs of hexadecimal digits"))?);
    Ok(())
}

/// Every token that is left, joined.
fn joined(cursor: &mut Cursor<'_>, wanted: &str) -> Parsed<(Vec<u8>, Token)> {
    let (first, token) = cursor.word(wanted)?;
    let mut all = first.to_vec();
    while let Some(more) = cursor.peek() {
        all.extend_from_slice(cursor.text(more));
        cursor.skip();
    }
    Ok((all, token))
}

pub(crate) fn hex_rest(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let (all, token) = joined(cursor, "hexadecimal digits")?;
    hex_word(&all, token, out)
}

pub(crate) fn base64_rest(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let (all, token) = joined(cursor, "base64")?;
    base64_word(&all, token, out)
}

pub(crate) fn base64_word(text: &[u8], token: Token, out: &mut Vec<u8>) -> Parsed<()> {
    let octets = data_encoding::BASE64.decode(text);
    out.extend_from_slice(&octets.map_err(|_| wrong(text, token, "is not base64 (RFC 4648 4)"))?);
    Ok(())
}
