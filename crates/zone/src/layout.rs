//! What each type's rdata is made of: one row a type, one entry a field. The scanner, the check of `\#`
//! data and the printer all walk these rows, so they cannot disagree about a type.
//!
//! Types without a row (NULL, UNSPEC and whatever is not known here) hold octets without a form and are
//! written as RFC 3597 section 5 says.

use crate::name::{MAX_NAME_BYTES, NameRef};
use crate::rtype::Rtype;

/// One field of rdata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    /// A domain name, uncompressed.
    Name,
    U8,
    U16,
    U32,
    U64,
    /// 32 bits of seconds, with TTL units in presentation form.
    Ttl,
    Ipv4,
    Ipv6,
    /// One `<character-string>` (RFC 1035 section 3.3): a length octet and up to 255 octets.
    Str,
    /// One or more of them.
    Strs,
    /// None or one.
    OptionalStr,
    /// Decimal digits in a character-string (X25, RFC 1183 section 3.1), at least four.
    DigitStr,
    /// A decimal number in a character-string (GPOS, RFC 1712 section 3).
    FloatStr,
    /// A CAA tag: a character-string of letters and digits (RFC 8659 section 4.1).
    Tag,
    /// The rest, written as one string (CAA's value, URI's target).
    Text,
    /// The rest in hexadecimal; at least one octet.
    Hex,
    /// The rest in base64; at least one octet.
    Base64,
    /// The rest in base64, perhaps nothing.
    OptionalBase64,
    /// The rest in base64, `-` for nothing (DOA).
    DashBase64,
    /// A length octet and octets in hexadecimal, `-` for none (NSEC3's salt, RFC 5155 section 3.3).
    Salt,
    /// A length octet and octets in base32hex (NSEC3's next hashed owner).
    Hash,
    /// Type bitmap windows (RFC 4034 section 4.1.2).
    Types,
    /// The bitmap of NXT (RFC 2535 section 5.2).
    NxtTypes,
    /// `YYYYMMDDHHmmSS` or seconds since 1970 (RFC 4034 section 3.2).
    Time,
    /// A type as a 16-bit number.
    Type,
    /// A DNSSEC algorithm, an octet.
    Algorithm,
    /// A CERT type, 16 bits (RFC 4398 section 2.1).
    CertType,
    /// A DSYNC scheme, an octet (RFC 9859 section 2.1).
    Scheme,
    /// A protocol octet and a bitmap of ports (WKS, RFC 1035 section 3.4.2).
    Services,
    /// `0x` and hexadecimal with dots (NSAP, RFC 1706 section 5).
    Nsap,
    /// A format octet and an address (ATMA).
    Atm,
    /// The 16 octets of LOC (RFC 1876 section 2).
    Location,
    /// Prefix length, suffix and prefix name (A6, RFC 2874 section 3.1).
    A6,
    /// Address prefixes (APL, RFC 3123 section 4).
    Prefixes,
    /// Gateway type, algorithm and gateway (IPSECKEY, RFC 4025 section 2.1).
    Gateway,
    /// D bit, relay type and relay (AMTRELAY, RFC 8777 section 4).
    Relay,
    /// Algorithm, HIT, public key and rendezvous servers (HIP, RFC 8005 section 5).
    Hip,
    /// Four 16-bit groups in hexadecimal with colons (NID and L64, RFC 6742 section 2).
    Locator64,
    Eui48,
    Eui64,
    /// Service parameters (RFC 9460 section 2.2).
    SvcParams,
}

/// The fields of a type's rdata in order; none where the form is not known.
pub(crate) fn fields(rtype: Rtype) -> Option<&'static [Field]> {
    use Field::*;
    Some(match rtype {
        Rtype::A => &[Ipv4],
        Rtype::NS | Rtype::MD | Rtype::MF | Rtype::CNAME | Rtype::MB | Rtype::MG | Rtype::MR => &[Name],
        Rtype::PTR | Rtype::NSAP_PTR | Rtype::DNAME => &[Name],
        Rtype::SOA => &[Name, Name, U32, Ttl, Ttl, Ttl, Ttl],
        Rtype::WKS => &[Ipv4, Services],
        Rtype::HINFO => &[Str, Str],
        Rtype::MINFO | Rtype::RP | Rtype::TALINK => &[Name, Name],
        Rtype::MX | Rtype::AFSDB | Rtype::RT | Rtype::KX | Rtype::LP => &[U16, Name],
        Rtype::TXT | Rtype::SPF | Rtype::NINFO | Rtype::AVC | Rtype::RESINFO | Rtype::WALLET | Rtype::CLA => &[Strs],
        Rtype::UINFO => &[Str],
        Rtype::X25 => &[DigitStr],
        Rtype::ISDN => &[Str, OptionalStr],
        Rtype::NSAP => &[Nsap],
        Rtype::SIG | Rtype::RRSIG => &[Type, Algorithm, U8, Ttl, Time, Time, U16, Name, Base64],
        Rtype::KEY | Rtype::DNSKEY | Rtype::CDNSKEY | Rtype::RKEY => &[U16, U8, Algorithm, OptionalBase64],
        Rtype::PX => &[U16, Name, Name],
        Rtype::GPOS => &[FloatStr, FloatStr, FloatStr],
        Rtype::AAAA => &[Ipv6],
        Rtype::LOC => &[Location],
        Rtype::NXT => &[Name, NxtTypes],
        Rtype::EID | Rtype::NIMLOC => &[Hex],
        Rtype::SRV => &[U16, U16, U16, Name],
        Rtype::ATMA => &[Atm],
        Rtype::NAPTR => &[U16, U16, Str, Str, Str, Name],
        Rtype::CERT => &[CertType, U16, Algorithm, Base64],
        Rtype::A6 => &[A6],
        Rtype::SINK => &[U8, U8, U8, OptionalBase64],
        Rtype::APL => &[Prefixes],
        Rtype::DS | Rtype::CDS | Rtype::DLV | Rtype::TA => &[U16, Algorithm, U8, Hex],
        Rtype::SSHFP => &[U8, U8, Hex],
        Rtype::IPSECKEY => &[U8, Gateway, OptionalBase64],
        Rtype::NSEC => &[Name, Types],
        Rtype::DHCID | Rtype::OPENPGPKEY | Rtype::HHIT | Rtype::BRID => &[Base64],
        Rtype::NSEC3 => &[U8, U8, U16, Salt, Hash, Types],
        Rtype::NSEC3PARAM => &[U8, U8, U16, Salt],
        Rtype::TLSA | Rtype::SMIMEA => &[U8, U8, U8, Hex],
        Rtype::HIP => &[Hip],
        Rtype::CSYNC => &[U32, U16, Types],
        Rtype::ZONEMD => &[U32, U8, U8, Hex],
        Rtype::SVCB | Rtype::HTTPS => &[U16, Name, SvcParams],
        Rtype::DSYNC => &[Type, Scheme, U16, Name],
        Rtype::UID | Rtype::GID => &[U32],
        Rtype::NID | Rtype::L64 => &[U16, Locator64],
        Rtype::L32 => &[U16, Ipv4],
        Rtype::EUI48 => &[Eui48],
        Rtype::EUI64 => &[Eui64],
        Rtype::URI => &[U16, U16, Text],
        Rtype::CAA => &[U8, Tag, Text],
        Rtype::DOA => &[U32, U32, U8, Str, DashBase64],
        Rtype::AMTRELAY => &[U8, Relay],
        Rtype::IPN => &[U64],
        _ => return None,
    })
}

/// Whether the rdata is of the type's form; the error says what is wrong with it.
pub(crate) fn check(rtype: Rtype, rdata: &[u8]) -> Result<(), &'static str> {
    let Some(fields) = fields(rtype) else { return Ok(()) };
    let mut rest = rdata;
    for &field in fields {
        let len = measure(field, rest)?;
        rest = rest.get(len..).ok_or("it ends too early")?;
    }
    if !rest.is_empty() {
        return Err("octets are left over");
    }
    Ok(())
}

/// How many octets the field takes at the front of `rest`.
pub(crate) fn measure(field: Field, rest: &[u8]) -> Result<usize, &'static str> {
    let exactly = |len: usize| if rest.len() < len { Err("it ends too early") } else { Ok(len) };
    match field {
        Field::Name => name_len(rest),
        Field::U8 | Field::Algorithm | Field::Scheme => exactly(1),
        Field::U16 | Field::Type | Field::CertType => exactly(2),
        Field::U32 | Field::Ttl | Field::Ipv4 | Field::Time => exactly(4),
        Field::U64 | Field::Locator64 | Field::Eui64 => exactly(8),
        Field::Eui48 => exactly(6),
        Field::Ipv6 => exactly(16),
        Field::Str | Field::Salt => counted(rest),
        Field::Hash => match counted(rest)? {
            1 => Err("the hash is empty"),
            len => Ok(len),
        },
        Field::OptionalStr => {
            if rest.is_empty() {
                Ok(0)
            } else {
                counted(rest)
            }
        }
        Field::Strs => strings(rest),
        Field::DigitStr => match counted(rest)? {
            len if len > 4 && rest[1..len].iter().all(u8::is_ascii_digit) => Ok(len),
            _ => Err("it is not four or more decimal digits"),
        },
        Field::FloatStr => match counted(rest)? {
            len if is_decimal(&rest[1..len]) => Ok(len),
            _ => Err("it is not a decimal number"),
        },
        Field::Tag => match counted(rest)? {
            len if len > 1 && rest[1..len].iter().all(u8::is_ascii_alphanumeric) => Ok(len),
            _ => Err("the tag is not of letters and digits"),
        },
        Field::Hex | Field::Base64 | Field::Nsap if rest.is_empty() => Err("it ends too early"),
        Field::Hex | Field::Base64 | Field::Nsap => Ok(rest.len()),
        Field::Text | Field::OptionalBase64 | Field::DashBase64 => Ok(rest.len()),
        Field::Types => bitmap_windows(rest),
        Field::NxtTypes => match rest.len() {
            0..=16 => Ok(rest.len()),
            _ => Err("the bitmap is longer than 16 octets"),
        },
        Field::Services => match rest.len() {
            0 => Err("it ends too early"),
            1..=8193 => Ok(rest.len()),
            _ => Err("the port bitmap is longer than 8192 octets"),
        },
        Field::Atm => match rest {
            [0 | 1, _, ..] => Ok(rest.len()),
            _ => Err("the format is not 0 or 1, or the address is empty"),
        },
        Field::Location => location(rest),
        Field::A6 => a6(rest),
        Field::Prefixes => prefixes(rest),
        Field::Gateway => match *rest {
            [kind, _algorithm, ref gateway @ ..] => Ok(2 + gateway_len(kind, gateway)?),
            _ => Err("it ends too early"),
        },
        Field::Relay => match *rest {
            [kind, ref relay @ ..] => Ok(1 + gateway_len(kind & 0x7f, relay)?),
            _ => Err("it ends too early"),
        },
        Field::Hip => hip(rest),
        Field::SvcParams => crate::svcb::check_params(rest),
    }
}

fn name_len(rest: &[u8]) -> Result<usize, &'static str> {
    match NameRef::split_wire(rest) {
        Ok((name, _)) => Ok(name.as_wire().len()),
        Err(_) => Err("a domain name in it is malformed, compressed or too long"),
    }
}

/// A length octet and that many octets; gives both together.
fn counted(rest: &[u8]) -> Result<usize, &'static str> {
    match rest.first() {
        Some(&len) if rest.len() > usize::from(len) => Ok(1 + usize::from(len)),
        _ => Err("a string in it ends too early"),
    }
}

fn strings(rest: &[u8]) -> Result<usize, &'static str> {
    let mut at = 0;
    loop {
        at += counted(&rest[at..])?;
        if at == rest.len() {
            return Ok(at);
        }
    }
}

/// An optional sign, digits, and perhaps a point and digits.
pub(crate) fn is_decimal(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    let points = digits.iter().filter(|&&octet| octet == b'.').count();
    points <= 1 && digits.len() > points && digits.iter().all(|octet| octet.is_ascii_digit() || *octet == b'.')
}

fn bitmap_windows(rest: &[u8]) -> Result<usize, &'static str> {
    let (mut at, mut above) = (0, None);
    while at < rest.len() {
        let [window, len, ref bits @ ..] = rest[at..] else { return Err("a type bitmap ends too early") };
        let len = usize::from(len);
        if !(1..=32).contains(&len) || bits.len() < len || above.is_some_and(|last| window <= last) {
            return Err("a type bitmap is malformed");
        }
        if bits[len - 1] == 0 {
            return Err("a type bitmap ends in a zero octet (RFC 4034 4.1.2)");
        }
        above = Some(window);
        at += 2 + len;
    }
    Ok(at)
}

fn location(rest: &[u8]) -> Result<usize, &'static str> {
    let Some(fixed) = rest.get(..16) else { return Err("it ends too early") };
    if fixed[0] != 0 {
        return Err("the version of LOC is not 0");
    }
    if fixed[1..4].iter().any(|octet| octet >> 4 > 9 || octet & 15 > 9) {
        return Err("a size or precision of LOC is not two decimal digits");
    }
    Ok(16)
}

fn a6(rest: &[u8]) -> Result<usize, &'static str> {
    let prefix_bits = usize::from(*rest.first().ok_or("it ends too early")?);
    if prefix_bits > 128 {
        return Err("the prefix length of A6 is above 128");
    }
    let fixed = 1 + (128 - prefix_bits).div_ceil(8);
    let after = rest.get(fixed..).ok_or("it ends too early")?;
    Ok(fixed + if prefix_bits == 0 { 0 } else { name_len(after)? })
}

fn prefixes(rest: &[u8]) -> Result<usize, &'static str> {
    let mut at = 0;
    while at < rest.len() {
        let [family_high, family_low, prefix_bits, flags, ref address @ ..] = rest[at..] else {
            return Err("an APL item ends too early");
        };
        let len = usize::from(flags & 0x7f);
        let (bits, octets) = match u16::from_be_bytes([family_high, family_low]) {
            1 => (32, 4),
            2 => (128, 16),
            _ => return Err("the address family of an APL item is not 1 or 2"),
        };
        if prefix_bits > bits || len > octets || address.len() < len {
            return Err("an APL item's prefix or address is too long");
        }
        if len > 0 && address[len - 1] == 0 {
            return Err("an APL address ends in a zero octet (RFC 3123 4)");
        }
        at += 4 + len;
    }
    Ok(at)
}

fn gateway_len(kind: u8, rest: &[u8]) -> Result<usize, &'static str> {
    match kind {
        0 => Ok(0),
        1 if rest.len() >= 4 => Ok(4),
        2 if rest.len() >= 16 => Ok(16),
        1 | 2 => Err("the gateway's address ends too early"),
        3 => name_len(rest),
        _ => Err("the gateway's type is not 0 to 3"),
    }
}

fn hip(rest: &[u8]) -> Result<usize, &'static str> {
    let [hit_len, _algorithm, key_high, key_low, ref after @ ..] = *rest else { return Err("it ends too early") };
    let key_len = usize::from(u16::from_be_bytes([key_high, key_low]));
    if hit_len == 0 || key_len == 0 {
        return Err("the HIT or the key is empty");
    }
    let mut servers = after.get(usize::from(hit_len) + key_len..).ok_or("it ends too early")?;
    while !servers.is_empty() {
        servers = &servers[name_len(servers)?..];
    }
    Ok(rest.len())
}

impl Rtype {
    /// The domain names in rdata of this type that is well formed, each with the offset where it begins.
    /// Names that only the type's own software looks at (HIP, IPSECKEY, AMTRELAY, A6) are not among them.
    pub fn embedded_names(self, rdata: &[u8]) -> EmbeddedNames<'_> {
        EmbeddedNames { fields: fields(self).unwrap_or(&[]), rdata, at: 0 }
    }

    /// Whether the names in its rdata may be compressed: those of RFC 1035 alone (RFC 3597 section 4).
    pub fn may_compress(self) -> bool {
        matches!(
            self,
            Self::NS | Self::MD | Self::MF | Self::CNAME | Self::SOA | Self::MB | Self::MG | Self::MR | Self::PTR
        ) || matches!(self, Self::MINFO | Self::MX)
    }

    /// Whether the names in its rdata compare without regard to letter case (RFC 4034 section 6.2, RFC 6840
    /// section 5.1).
    pub(crate) fn folds_case(self) -> bool {
        self.may_compress()
            || matches!(self, Self::RP | Self::AFSDB | Self::RT | Self::SIG | Self::PX | Self::NXT | Self::NAPTR)
            || matches!(self, Self::KX | Self::SRV | Self::DNAME | Self::RRSIG)
    }
}

/// The names in a record's rdata; the iterator of [`Rtype::embedded_names`].
#[derive(Clone, Debug)]
pub struct EmbeddedNames<'a> {
    fields: &'static [Field],
    rdata: &'a [u8],
    at: usize,
}

impl<'a> Iterator for EmbeddedNames<'a> {
    type Item = (usize, NameRef<'a>);

    fn next(&mut self) -> Option<(usize, NameRef<'a>)> {
        while let Some((&field, fields)) = self.fields.split_first() {
            // behind the last name nothing is of interest, so bitmaps and parameters are not walked
            if !self.fields.contains(&Field::Name) {
                return None;
            }
            let rest = self.rdata.get(self.at..)?;
            let begin = self.at;
            self.fields = fields;
            self.at += measure(field, rest).ok()?;
            if field == Field::Name {
                let name = NameRef::split_wire(rest).ok()?.0;
                debug_assert!(name.as_wire().len() <= MAX_NAME_BYTES);
                return Some((begin, name));
            }
        }
        None
    }
}
