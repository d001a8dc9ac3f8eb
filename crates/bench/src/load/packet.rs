//! Question frames and answer frames as the generator sees them. Deliberately a second implementation of headers and checksums,
//! independent of crate wire, so that a mistake there cannot hide here. IPv4 without options and IPv6 without extension headers.

use crate::queries::{Expected, Query, VERSIONED_RECORDS, VERSIONS, folded, sum16};
use base::Frame;
use domain::base::Message;
use domain::base::iana::Rcode;
use domain::rdata::{A, Soa};
use port::Mac;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

const ETHERNET_BYTES: usize = 14;
const UDP_BYTES: usize = 8;
const DNS_BYTES: usize = 12;

/// Who talks to whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    /// our hardware address
    pub(crate) client_mac: Mac,
    /// the next hop's
    pub(crate) server_mac: Mac,
    /// our address, of the server's family
    pub(crate) client: IpAddr,
    /// the server
    pub(crate) server: SocketAddr,
}

/// A question frame without what differs from question to question.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    ends: Ends,
    /// Ethernet to DNS header
    header: Vec<u8>,
    /// bytes of Ethernet and IP
    udp_at: usize,
    /// sum of the IPv4 header with its length 0
    ip_sum: u32,
    /// sum of the pseudo-header and both headers with all that differs 0
    udp_sum: u32,
}

impl Template {
    /// # Panics
    /// When the two addresses are not of one family.
    pub(crate) fn new(ends: Ends, edns: bool) -> Template {
        let mut header = Vec::with_capacity(74);
        header.extend_from_slice(&ends.server_mac);
        header.extend_from_slice(&ends.client_mac);
        let addresses = match (ends.client, ends.server.ip()) {
            (IpAddr::V4(client), IpAddr::V4(server)) => {
                header.extend_from_slice(&[8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0]);
                [client.octets().as_slice(), server.octets().as_slice()].concat()
            }
            (IpAddr::V6(client), IpAddr::V6(server)) => {
                header.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 17, 64]);
                [client.octets().as_slice(), server.octets().as_slice()].concat()
            }
            (client, server) => panic!("{client} cannot ask {server}"),
        };
        header.extend_from_slice(&addresses);
        let udp_at = header.len();
        let ip_sum = sum16(&header[ETHERNET_BYTES..]);
        header.extend_from_slice(&[0, 0]);
        header.extend_from_slice(&ends.server.port().to_be_bytes());
        header.extend_from_slice(&[0; 4]);
        // one question, no recursion wanted
        header.extend_from_slice(&[0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(edns)]);
        let udp_sum = sum16(&addresses) + 17 + sum16(&header[udp_at..]);
        Template { ends, header, udp_at, ip_sum, udp_sum }
    }

    /// Bytes of a frame whose question has `question_bytes`.
    pub(crate) fn frame_bytes(&self, question_bytes: usize) -> usize {
        self.header.len() + question_bytes
    }

    /// Makes `frame` the question `query` with this id from this port.
    ///
    /// # Panics
    /// When it does not fit: the caller has compared [`Template::frame_bytes`] of the longest with the port's frames.
    #[inline]
    pub(crate) fn fill(&self, frame: &mut Frame, query: &Query<'_>, id: u16, port: u16) {
        let len = self.frame_bytes(query.wire.len());
        frame.set_len(len);
        let bytes = frame.bytes_mut();
        let (header, question) = bytes.split_at_mut(self.header.len());
        header.copy_from_slice(&self.header);
        question.copy_from_slice(query.wire);
        let udp_bytes = (len - self.udp_at) as u16;
        if self.ends.server.is_ipv4() {
            let total = (len - ETHERNET_BYTES) as u16;
            header[16..18].copy_from_slice(&total.to_be_bytes());
            header[24..26].copy_from_slice(&folded(self.ip_sum + u32::from(total)).to_be_bytes());
        } else {
            header[18..20].copy_from_slice(&udp_bytes.to_be_bytes());
        }
        let at = self.udp_at;
        header[at..at + 2].copy_from_slice(&port.to_be_bytes());
        header[at + 4..at + 6].copy_from_slice(&udp_bytes.to_be_bytes());
        header[at + 8..at + 10].copy_from_slice(&id.to_be_bytes());
        // the length counts twice: in the pseudo-header and in the header (RFC 768)
        let sum = self.udp_sum + query.sum + u32::from(port) + u32::from(id) + 2 * u32::from(udp_bytes);
        let checksum = match folded(sum) {
            0 => 0xffff, // zero would say that there is none
            checksum => checksum,
        };
        header[at + 6..at + 8].copy_from_slice(&checksum.to_be_bytes());
    }

    /// The UDP payload of a frame that is from our server to us, and our port, without looking at checksums.
    #[inline]
    pub(crate) fn answer<'a>(&self, frame: &'a [u8]) -> Option<(u16, &'a [u8])> {
        let at = self.udp_at;
        let header = frame.get(..at + UDP_BYTES + DNS_BYTES)?;
        let addressed = if self.ends.server.is_ipv4() {
            header[12..15] == [8, 0, 0x45] && header[23] == 17 && header[26..30] == self.header[30..34]
        } else {
            header[12..14] == [0x86, 0xdd] && header[20] == 17 && header[22..38] == self.header[38..54]
        };
        if !addressed || header[at..at + 2] != self.header[at + 2..at + 4] {
            return None;
        }
        let port = u16::from_be_bytes([header[at + 2], header[at + 3]]);
        let udp_bytes = usize::from(u16::from_be_bytes([header[at + 4], header[at + 5]]));
        Some((port, frame.get(at + UDP_BYTES..at + udp_bytes)?)).filter(|(_, payload)| payload.len() >= DNS_BYTES)
    }

    /// Everything that can be said against the answer to `query`.
    pub(crate) fn check(&self, frame: &[u8], query: &Query<'_>) -> Result<Checked, Fault> {
        let (_, payload) = self.answer(frame).ok_or(Fault::Headers)?;
        let checksum = self.check_headers(frame)?;
        let version = check_message(payload, query)?;
        Ok(Checked { checksum, version })
    }

    fn check_headers(&self, frame: &[u8]) -> Result<Checksum, Fault> {
        let at = self.udp_at;
        if frame[..6] != self.ends.client_mac {
            return Err(Fault::Headers);
        }
        let (ip_bytes, ours) = if self.ends.server.is_ipv4() {
            let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
            if folded(sum16(&frame[ETHERNET_BYTES..at])) != 0 {
                return Err(Fault::IpChecksum);
            }
            (total, frame[30..34] == self.header[26..30])
        } else {
            (40 + usize::from(u16::from_be_bytes([frame[18], frame[19]])), frame[38..54] == self.header[22..38])
        };
        let udp_bytes = usize::from(u16::from_be_bytes([frame[at + 4], frame[at + 5]]));
        if !ours || ip_bytes != at - ETHERNET_BYTES + udp_bytes || frame.len() < at + udp_bytes {
            return Err(Fault::Headers);
        }
        let addresses_at = if self.ends.server.is_ipv4() { 26 } else { 22 };
        let pseudo = sum16(&frame[addresses_at..at]) + 17 + udp_bytes as u32;
        let found = u16::from_be_bytes([frame[at + 6], frame[at + 7]]);
        if found == 0 && self.ends.server.is_ipv4() {
            Ok(Checksum::Absent)
        } else if found != 0 && folded(pseudo + sum16(&frame[at..at + udp_bytes])) == 0 {
            Ok(Checksum::Whole)
        } else if found == !folded(pseudo) {
            // a kernel sender on a virtual link leaves the sum of the pseudo-header for a NIC that is not there
            Ok(Checksum::Partial)
        } else {
            Err(Fault::UdpChecksum)
        }
    }
}

/// An answer's UDP checksum, where it is not wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    /// that of its octets
    Whole,
    /// left to an offload
    Partial,
    /// none, as IPv4 allows (RFC 768)
    Absent,
}

/// What a checked answer told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    /// its UDP checksum
    pub(crate) checksum: Checksum,
    /// the zone's version, for questions about a versioned zone
    pub(crate) version: Option<u8>,
}

/// What was wrong with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// addresses or lengths
    Headers,
    /// the IPv4 header's
    IpChecksum,
    /// wrong, or missing over IPv6 (RFC 8200 section 8.1)
    UdpChecksum,
    /// not a DNS message, or not an authoritative whole answer
    Message,
    /// another question than was asked, or in another case
    Question,
    /// other records than the zone has
    Answer,
    /// records of two versions of the zone
    MixedVersions,
    /// a version that had been replaced before
    StaleVersion,
}

fn check_message(payload: &[u8], query: &Query<'_>) -> Result<Option<u8>, Fault> {
    let question_bytes = question_bytes(query.wire);
    if payload.get(DNS_BYTES..DNS_BYTES + question_bytes) != Some(&query.wire[..question_bytes]) {
        return Err(Fault::Question);
    }
    let message = Message::from_octets(payload).map_err(|_| Fault::Message)?;
    let (header, counts) = (message.header(), message.header_counts());
    if !header.qr() || header.tc() || counts.qdcount() != 1 || message.answer().is_err() {
        return Err(Fault::Message);
    }
    // whatever the sections hold, they must be readable to the last record
    if message.iter().any(|record| record.is_err()) {
        return Err(Fault::Message);
    }
    if query.expected == Expected::Anything {
        return Ok(None);
    }
    let rcode = if matches!(query.expected, Expected::Absent { .. }) { Rcode::NXDOMAIN } else { Rcode::NOERROR };
    if !header.aa() || header.rcode() != rcode {
        return Err(Fault::Answer);
    }
    if let Expected::Absent { versioned } = query.expected {
        return check_absence(&message, versioned);
    }
    let answer = message.answer().map_err(|_| Fault::Message)?;
    let records: Result<Vec<_>, _> = answer.limit_to::<A>().collect();
    let records = records.map_err(|_| Fault::Answer)?;
    let mut addresses: Vec<[u8; 4]> = records.iter().map(|record| record.data().addr().octets()).collect();
    if addresses.len() != usize::from(counts.ancount()) {
        return Err(Fault::Answer);
    }
    addresses.sort_unstable();
    match query.expected {
        Expected::Address(address) if addresses == [address.octets()] => Ok(None),
        Expected::Versioned(last) => version_of(&addresses, last).map(Some),
        _ => Err(Fault::Answer),
    }
}

/// RFC 2308 section 2.1: the zone's SOA record, and nothing else.
fn check_absence(message: &Message<&[u8]>, versioned: bool) -> Result<Option<u8>, Fault> {
    let counts = message.header_counts();
    if (counts.ancount(), counts.nscount()) != (0, 1) {
        return Err(Fault::Answer);
    }
    let authority = message.authority().map_err(|_| Fault::Message)?;
    let soa = authority.limit_to::<Soa<_>>().next().and_then(Result::ok).ok_or(Fault::Answer)?;
    if !versioned {
        return Ok(None);
    }
    let version = soa.data().serial().into_int().checked_sub(1).and_then(|version| u8::try_from(version).ok());
    version.filter(|version| *version < VERSIONS).map(Some).ok_or(Fault::Answer)
}

fn version_of(addresses: &[[u8; 4]], last: u8) -> Result<u8, Fault> {
    let version = addresses.first().ok_or(Fault::Answer)?[1];
    if version >= VERSIONS || addresses.len() != usize::from(VERSIONED_RECORDS) {
        return Err(Fault::Answer);
    }
    if addresses.iter().any(|address| address[1] != version) {
        return Err(Fault::MixedVersions);
    }
    let whole = (0..VERSIONED_RECORDS).zip(addresses).all(|(record, address)| *address == [10, version, record, last]);
    if whole { Ok(version) } else { Err(Fault::Answer) }
}

/// Bytes of the question section in front of what may follow it.
fn question_bytes(wire: &[u8]) -> usize {
    let mut at = 0;
    while wire[at] != 0 {
        at += 1 + usize::from(wire[at]);
    }
    at + 5
}
