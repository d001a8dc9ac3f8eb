//! What the tests share: zones from text, questions, and answers read back slowly.

use std::sync::Arc;

use crate::reference::rcode;
use crate::serve::{From, Options, Server};
use crate::table::Tables;
use base::Instant;
use base::publish::Publisher;
use zone::{MemorySource, Name, NameRef, Rtype, Zone};

pub(crate) fn zone(origin: &str, text: &str) -> Zone {
    let source = MemorySource::new().with("zone", text);
    zone::load(&source, "zone", Some(origin.parse().unwrap())).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"))
}

pub(crate) fn server(zones: Vec<Zone>, options: Options) -> Server {
    let tables = Tables::build(zones, 7).unwrap();
    Server::new(Publisher::new(Arc::new(tables)).reader(), options)
}

pub(crate) fn question(name: NameRef<'_>, rtype: Rtype, udp_bytes: Option<u16>) -> Vec<u8> {
    let mut message = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    message.extend_from_slice(name.as_wire());
    message.extend_from_slice(&rtype.0.to_be_bytes());
    message.extend_from_slice(&[0, 1]);
    if let Some(size) = udp_bytes {
        message[11] = 1;
        message.extend_from_slice(&[0, 0, 41]);
        message.extend_from_slice(&size.to_be_bytes());
        message.extend_from_slice(&[0; 6]);
    }
    message
}

/// A record as it was meant: owner and embedded names in full and in lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Record {
    pub(crate) owner: Name,
    pub(crate) rtype: u16,
    pub(crate) class: u16,
    pub(crate) ttl: u32,
    pub(crate) rdata: Vec<u8>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) rcode: u8,
    pub(crate) authoritative: bool,
    pub(crate) truncated: bool,
    pub(crate) question: Vec<u8>,
    pub(crate) sections: [Vec<Record>; 3],
    pub(crate) bytes: usize,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The name at `at`, and where it ends in place.
fn name_at(message: &[u8], mut at: usize) -> (Vec<u8>, usize) {
    let (mut wire, mut end, mut jumps) = (Vec::new(), None, 0);
    loop {
        let len = usize::from(message[at]);
        if len >= 0xc0 {
            end.get_or_insert(at + 2);
            let to = usize::from(u16_at(message, at) & 0x3fff);
            assert!(to < at && to >= 12, "a pointer at {at} to {to}");
            at = to;
            jumps += 1;
            assert!(jumps < 128);
            continue;
        }
        assert!(len < 64, "label type {len:#x} at {at}");
        wire.extend_from_slice(&message[at..at + 1 + len]);
        at += 1 + len;
        if len == 0 {
            return (wire, end.unwrap_or(at));
        }
    }
}

fn record(message: &[u8], at: &mut usize) -> Record {
    let (owner, end) = name_at(message, *at);
    let (rtype, class) = (u16_at(message, end), u16_at(message, end + 2));
    let ttl = u32::from(u16_at(message, end + 4)) << 16 | u32::from(u16_at(message, end + 6));
    let len = usize::from(u16_at(message, end + 8));
    let begin = end + 10;
    *at = begin + len;
    let names_at: &[usize] = match Rtype(rtype) {
        Rtype::NS | Rtype::CNAME | Rtype::PTR | Rtype::DNAME => &[0],
        Rtype::SOA => &[0, 0],
        Rtype::MX => &[2],
        _ => &[],
    };
    let mut rdata = Vec::new();
    let mut here = begin;
    for skip in names_at {
        rdata.extend_from_slice(&message[here..here + skip]);
        let (name, next) = name_at(message, here + skip);
        rdata.extend(name.to_ascii_lowercase());
        here = next;
    }
    rdata.extend_from_slice(&message[here..begin + len]);
    let owner = Name::from_wire(&owner).unwrap().to_lower();
    Record { owner, rtype, class, ttl, rdata }
}

/// Reads an answer back; panics at anything malformed, so that every test that uses it checks the wire form.
pub(crate) fn read(message: &[u8]) -> Answer {
    assert!(message[2] & 0x80 != 0 && message[2] & 0x78 == 0 && message[3] & 0xf0 == 0, "{message:?}");
    assert_eq!(u16_at(message, 4), 1);
    let (name, end) = name_at(message, 12);
    assert_eq!(end, 12 + name.len());
    let mut at = end + 4;
    let mut sections: [Vec<Record>; 3] = Default::default();
    for (n, section) in sections.iter_mut().enumerate() {
        for _ in 0..u16_at(message, 6 + 2 * n) {
            section.push(record(message, &mut at));
        }
    }
    assert_eq!(at, message.len(), "octets left over");
    Answer {
        rcode: message[3] & 15,
        authoritative: message[2] & 4 != 0,
        truncated: message[2] & 2 != 0,
        question: name,
        sections,
        bytes: message.len(),
    }
}

/// Asks over a transport and reads the answer.
pub(crate) fn ask(server: &mut Server, message: &[u8], stream: bool) -> Answer {
    let mut buffer = vec![0xee; 65_535];
    buffer[..message.len()].copy_from_slice(message);
    let from = From { now: Instant::ZERO, peer: "192.0.2.1".parse().unwrap(), stream };
    let bytes = server.core.one(from, &mut buffer, message.len()).unwrap();
    read(&buffer[..bytes])
}

/// The answer in one line, for tables of expectations.
pub(crate) fn show(answer: &Answer) -> String {
    let rcode = match answer.rcode {
        0 => "NOERROR",
        rcode::FORMERR => "FORMERR",
        rcode::NXDOMAIN => "NXDOMAIN",
        rcode::NOTIMP => "NOTIMP",
        rcode::REFUSED => "REFUSED",
        rcode::YXDOMAIN => "YXDOMAIN",
        _ => "?",
    };
    let mut line = rcode.to_owned();
    for (set, flag) in [(answer.authoritative, " aa"), (answer.truncated, " tc")] {
        line += if set { flag } else { "" };
    }
    for section in &answer.sections {
        line += " |";
        for record in section {
            line += &format!(" {}/{}", record.owner, Rtype(record.rtype));
        }
    }
    line
}
