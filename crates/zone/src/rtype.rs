//! Record types and classes: numbers, mnemonics, and the `TYPEnnn` and `CLASSnnn` forms of RFC 3597 section 5.

use std::fmt;

/// A record type by its number in IANA's list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rtype(pub u16);

macro_rules! rtypes {
    ($($name:ident = $number:literal, $mnemonic:literal;)*) => {
        impl Rtype {
            $(
                #[doc = concat!($mnemonic, ", type ", $number, ".")]
                pub const $name: Rtype = Rtype($number);
            )*

            /// Every type that has a mnemonic, in the order of the numbers.
            pub(crate) const MNEMONICS: &[(Rtype, &'static str)] = &[$((Rtype($number), $mnemonic),)*];
        }
    };
}

rtypes! {
    A = 1, "A";
    NS = 2, "NS";
    MD = 3, "MD";
    MF = 4, "MF";
    CNAME = 5, "CNAME";
    SOA = 6, "SOA";
    MB = 7, "MB";
    MG = 8, "MG";
    MR = 9, "MR";
    NULL = 10, "NULL";
    WKS = 11, "WKS";
    PTR = 12, "PTR";
    HINFO = 13, "HINFO";
    MINFO = 14, "MINFO";
    MX = 15, "MX";
    TXT = 16, "TXT";
    RP = 17, "RP";
    AFSDB = 18, "AFSDB";
    X25 = 19, "X25";
    ISDN = 20, "ISDN";
    RT = 21, "RT";
    NSAP = 22, "NSAP";
    NSAP_PTR = 23, "NSAP-PTR";
    SIG = 24, "SIG";
    KEY = 25, "KEY";
    PX = 26, "PX";
    GPOS = 27, "GPOS";
    AAAA = 28, "AAAA";
    LOC = 29, "LOC";
    NXT = 30, "NXT";
    EID = 31, "EID";
    NIMLOC = 32, "NIMLOC";
    SRV = 33, "SRV";
    ATMA = 34, "ATMA";
    NAPTR = 35, "NAPTR";
    KX = 36, "KX";
    CERT = 37, "CERT";
    A6 = 38, "A6";
    DNAME = 39, "DNAME";
    SINK = 40, "SINK";
    OPT = 41, "OPT";
    APL = 42, "APL";
    DS = 43, "DS";
    SSHFP = 44, "SSHFP";
    IPSECKEY = 45, "IPSECKEY";
    RRSIG = 46, "RRSIG";
    NSEC = 47, "NSEC";
    DNSKEY = 48, "DNSKEY";
    DHCID = 49, "DHCID";
    NSEC3 = 50, "NSEC3";
    NSEC3PARAM = 51, "NSEC3PARAM";
    TLSA = 52, "TLSA";
    SMIMEA = 53, "SMIMEA";
    HIP = 55, "HIP";
    NINFO = 56, "NINFO";
    RKEY = 57, "RKEY";
    TALINK = 58, "TALINK";
    CDS = 59, "CDS";
    CDNSKEY = 60, "CDNSKEY";
    OPENPGPKEY = 61, "OPENPGPKEY";
    CSYNC = 62, "CSYNC";
    ZONEMD = 63, "ZONEMD";
    SVCB = 64, "SVCB";
    HTTPS = 65, "HTTPS";
    DSYNC = 66, "DSYNC";
    HHIT = 67, "HHIT";
    BRID = 68, "BRID";
    SPF = 99, "SPF";
    UINFO = 100, "UINFO";
    UID = 101, "UID";
    GID = 102, "GID";
    UNSPEC = 103, "UNSPEC";
    NID = 104, "NID";
    L32 = 105, "L32";
    L64 = 106, "L64";
    LP = 107, "LP";
    EUI48 = 108, "EUI48";
    EUI64 = 109, "EUI64";
    NXNAME = 128, "NXNAME";
    TKEY = 249, "TKEY";
    TSIG = 250, "TSIG";
    IXFR = 251, "IXFR";
    AXFR = 252, "AXFR";
    MAILB = 253, "MAILB";
    MAILA = 254, "MAILA";
    ANY = 255, "ANY";
    URI = 256, "URI";
    CAA = 257, "CAA";
    AVC = 258, "AVC";
    DOA = 259, "DOA";
    AMTRELAY = 260, "AMTRELAY";
    RESINFO = 261, "RESINFO";
    WALLET = 262, "WALLET";
    CLA = 263, "CLA";
    IPN = 264, "IPN";
    TA = 32768, "TA";
    DLV = 32769, "DLV";
}

impl Rtype {
    /// The type's mnemonic, where it has one.
    pub fn mnemonic(self) -> Option<&'static str> {
        let at = Self::MNEMONICS.binary_search_by_key(&self, |row| row.0).ok()?;
        Some(Self::MNEMONICS[at].1)
    }

    /// Reads a mnemonic or `TYPEnnn`, in any letter case.
    pub fn parse(text: &[u8]) -> Option<Rtype> {
        // the usual ones first: a zone of a million names asks a million times
        match text {
            b"A" => return Some(Self::A),
            b"AAAA" => return Some(Self::AAAA),
            b"NS" => return Some(Self::NS),
            _ => {}
        }
        let known = Self::MNEMONICS.iter().find(|row| row.1.as_bytes().eq_ignore_ascii_case(text));
        known.map(|row| row.0).or_else(|| numbered(text, "TYPE").map(Rtype))
    }

    /// Whether the type asks a question or carries transport data, so that no zone can hold it
    /// (RFC 6895 section 3.1: 128 to 255, OPT, and the type 0).
    pub fn is_meta(self) -> bool {
        matches!(self.0, 0 | 41 | 128..=255)
    }
}

/// `prefix` and a decimal number of at most 65535.
fn numbered(text: &[u8], prefix: &str) -> Option<u16> {
    let (head, digits) = text.split_at_checked(prefix.len())?;
    if !head.eq_ignore_ascii_case(prefix.as_bytes()) || digits.is_empty() || digits.len() > 5 {
        return None;
    }
    digits.iter().try_fold(0u16, |value, digit| {
        let digit = digit.is_ascii_digit().then(|| u16::from(digit - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

impl fmt::Display for Rtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mnemonic() {
            Some(mnemonic) => f.pad(mnemonic),
            None => write!(f, "TYPE{}", self.0),
        }
    }
}

impl fmt::Debug for Rtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A class by its number in IANA's list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(pub u16);

impl Class {
    /// The Internet.
    pub const IN: Class = Class(1);
    /// CSNET, obsolete.
    pub const CS: Class = Class(2);
    /// Chaosnet.
    pub const CH: Class = Class(3);
    /// Hesiod.
    pub const HS: Class = Class(4);

    /// Reads a mnemonic or `CLASSnnn`, in any letter case.
    pub fn parse(text: &[u8]) -> Option<Class> {
        match text {
            [b'I' | b'i', b'N' | b'n'] => Some(Self::IN),
            [b'C' | b'c', b'S' | b's'] => Some(Self::CS),
            [b'C' | b'c', b'H' | b'h'] => Some(Self::CH),
            [b'H' | b'h', b'S' | b's'] => Some(Self::HS),
            _ => numbered(text, "CLASS").map(Class),
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::IN => f.pad("IN"),
            Self::CS => f.pad("CS"),
            Self::CH => f.pad("CH"),
            Self::HS => f.pad("HS"),
            Class(number) => write!(f, "CLASS{number}"),
        }
    }
}

impl fmt::Debug for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
