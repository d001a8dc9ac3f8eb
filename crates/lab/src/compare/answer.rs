//! A DNS answer in a form in which two servers' answers can be compared: sections as sorted multisets, owners and names in
//! RDATA in lower case and uncompressed, the OPT record apart.

use crate::zonegen::{Name, present};
use anyhow::{Context as _, Result, ensure};
use domain::{
    base::{
        Message, ParsedName, Record, ToName as _,
        iana::{Class, Rtype},
        opt::{Opt, UnknownOptData},
        rdata::ComposeRecordData as _,
    },
    rdata::AllRecordData,
};
use std::fmt;

/// The parts of an answer that are compared one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// One server did not answer, or what came cannot be parsed.
    Message,
    /// RCODE, with the bits that EDNS adds.
    Rcode,
    /// QR, opcode, AA, TC, RD, RA, Z, AD, CD.
    Flags,
    /// The question with its letter case.
    Question,
    /// The answer section.
    Answer,
    /// The authority section.
    Authority,
    /// The additional section without OPT.
    Additional,
    /// The OPT record.
    Edns,
}

/// A record with its names in lower case.
#[derive(Clone, Debug)]
pub struct Rr {
    /// The owner in lower case.
    pub owner: Name,
    /// TYPE.
    pub rtype: u16,
    /// CLASS.
    pub class: u16,
    /// TTL in seconds.
    pub ttl: u32,
    /// RDATA, uncompressed, its names in lower case.
    pub rdata: Vec<u8>,
    /// RDATA as a zone file has it.
    shown: String,
}

impl Rr {
    fn key(&self) -> (&Name, u16, u16, u32, &[u8]) {
        (&self.owner, self.rtype, self.class, self.ttl, &self.rdata)
    }
}

// by all but `shown`, which keeps the letter case of names
impl PartialEq for Rr {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Rr {}

impl PartialOrd for Rr {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rr {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// The OPT record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edns {
    /// The UDP size.
    pub size: u16,
    /// The version.
    pub version: u8,
    /// The DO bit.
    pub dnssec_ok: bool,
    /// Options by code.
    pub options: Vec<(u16, Vec<u8>)>,
}

/// A parsed answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The second 16 bits of the header without the RCODE.
    pub flags: u16,
    /// RCODE, with the bits that EDNS adds.
    pub rcode: u16,
    /// The questions: name as sent, type, class.
    pub questions: Vec<(Vec<u8>, u16, u16)>,
    /// Answer, authority, additional; each sorted.
    pub sections: [Vec<Rr>; 3],
    /// The OPT record.
    pub edns: Option<Edns>,
    /// Octets of the message.
    pub length: usize,
}

type Rdata<'a> = AllRecordData<&'a [u8], ParsedName<&'a [u8]>>;

const AA: u16 = 0x0400;
const TC: u16 = 0x0200;

impl Answer {
    /// Parses a message.
    pub fn parse(octets: &[u8]) -> Result<Self> {
        let message = Message::from_octets(octets).context("shorter than a header")?;
        let flags = u16::from_be_bytes([octets[2], octets[3]]);
        let mut questions = Vec::new();
        let mut section = message.question();
        for question in section.by_ref() {
            let question = question.context("question section")?;
            let name: Name = question.qname().to_name();
            questions.push((name.as_slice().to_vec(), question.qtype().to_int(), question.qclass().to_int()));
        }
        let mut answer = Self {
            flags: flags & !15,
            rcode: flags & 15,
            questions,
            sections: Default::default(),
            edns: None,
            length: octets.len(),
        };
        let mut records = section.answer().context("question section")?;
        for number in 0..3 {
            for record in records.by_ref() {
                let record = record.with_context(|| format!("section {number}"))?;
                answer.take(number, record)?;
            }
            if number < 2 {
                records = records.next_section().context("sections")?.context("a section is missing")?;
            } else {
                ensure!(records.pos() == octets.len(), "{} octets after the last record", octets.len() - records.pos());
            }
        }
        for section in &mut answer.sections {
            section.sort();
        }
        Ok(answer)
    }

    fn take(&mut self, section: usize, record: domain::base::ParsedRecord<'_, &[u8]>) -> Result<()> {
        if record.rtype() == Rtype::OPT {
            ensure!(section == 2, "OPT in section {section}");
            ensure!(self.edns.is_none(), "two OPT records");
            let record: Record<ParsedName<&[u8]>, Opt<&[u8]>> = record.into_record()?.context("an OPT record")?;
            let ttl = record.ttl().as_secs();
            self.rcode |= (ttl >> 24 << 4) as u16;
            let mut options = Vec::new();
            for option in record.data().iter::<UnknownOptData<_>>() {
                let option = option.context("options")?;
                options.push((option.code().to_int(), option.as_slice().to_vec()));
            }
            options.sort();
            self.edns = Some(Edns {
                size: record.class().to_int(),
                version: (ttl >> 16) as u8,
                dnssec_ok: ttl & 0x8000 != 0,
                options,
            });
            return Ok(());
        }
        let record: Record<_, Rdata<'_>> = record.into_any_record().context("RDATA")?;
        let mut owner: Name = record.owner().to_name();
        owner.make_canonical();
        let mut rdata = Vec::new();
        record.data().compose_canonical_rdata(&mut rdata).context("RDATA")?;
        if matches!(record.rtype(), Rtype::SVCB | Rtype::HTTPS) {
            // RFC 4034 6.2 does not list the types that came later; the name after the priority is compared as a name all the same
            lower_name(&mut rdata[2..]);
        }
        self.sections[section].push(Rr {
            owner,
            rtype: record.rtype().to_int(),
            class: record.class().to_int(),
            ttl: record.ttl().as_secs(),
            rdata,
            shown: record.data().to_string(),
        });
        Ok(())
    }

    /// True if the AA bit is set.
    pub fn authoritative(&self) -> bool {
        self.flags & AA != 0
    }

    /// True if the TC bit is set.
    pub fn truncated(&self) -> bool {
        self.flags & TC != 0
    }

    pub(crate) fn set_truncated(&mut self, truncated: bool) {
        self.flags = if truncated { self.flags | TC } else { self.flags & !TC };
    }

    /// The parts in which two answers differ.
    pub fn differences(&self, other: &Self) -> Vec<Part> {
        let parts = [
            (Part::Rcode, self.rcode == other.rcode),
            (Part::Flags, self.flags == other.flags),
            (Part::Question, self.questions == other.questions),
            (Part::Answer, self.sections[0] == other.sections[0]),
            (Part::Authority, self.sections[1] == other.sections[1]),
            (Part::Additional, self.sections[2] == other.sections[2]),
            (Part::Edns, self.edns == other.edns),
        ];
        parts.into_iter().filter(|(_, same)| !same).map(|(part, _)| part).collect()
    }
}

/// Turns an uncompressed name at the start of `octets` to lower case.
fn lower_name(octets: &mut [u8]) {
    let mut at = 0;
    while octets[at] > 0 {
        let end = at + 1 + usize::from(octets[at]);
        octets[at + 1..end].make_ascii_lowercase();
        at = end;
    }
}

impl fmt::Display for Rr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String = self.shown.chars().take(160).collect();
        write!(
            f,
            "{} {} {} {} {shown}",
            present(&self.owner),
            self.ttl,
            Class::from_int(self.class),
            Rtype::from_int(self.rtype)
        )
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = [
            (0x8000, "qr"),
            (AA, "aa"),
            (TC, "tc"),
            (0x100, "rd"),
            (0x80, "ra"),
            (0x40, "z"),
            (0x20, "ad"),
            (0x10, "cd"),
        ];
        let flags: Vec<&str> = bits.iter().filter(|(bit, _)| self.flags & bit != 0).map(|(_, name)| *name).collect();
        writeln!(
            f,
            ";; rcode {} opcode {} flags {} ({} octets)",
            self.rcode,
            self.flags >> 11 & 15,
            flags.join(" "),
            self.length
        )?;
        for (name, rtype, class) in &self.questions {
            let name = Name::from_octets(name.clone()).map(|name| present(&name)).unwrap_or_default();
            writeln!(f, ";; question {name} {} {}", Class::from_int(*class), Rtype::from_int(*rtype))?;
        }
        for (name, section) in ["answer", "authority", "additional"].iter().zip(&self.sections) {
            for (number, rr) in section.iter().enumerate() {
                if number == 12 {
                    writeln!(f, "{name:<10} ... {} records", section.len())?;
                    break;
                }
                writeln!(f, "{name:<10} {rr}")?;
            }
        }
        match &self.edns {
            Some(edns) => writeln!(
                f,
                "opt        version {} size {}{} options {:?}",
                edns.version,
                edns.size,
                if edns.dnssec_ok { " do" } else { "" },
                edns.options
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `www.x` with a CNAME and a HTTPS record whose names are compressed and in mixed case, and an OPT record.
    fn sample() -> Vec<u8> {
        let mut wire = vec![0, 7, 0x84, 0, 0, 1, 0, 2, 0, 0, 0, 1];
        wire.extend(b"\x03wWw\x01X\0\0\x41\0\x01");
        wire.extend(b"\xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x04\x01B\xc0\x10");
        wire.extend(b"\x01b\xc0\x10\0\x41\0\x01\0\0\0\x3c\0\x07\0\x01\x01C\x01x\0");
        wire.extend(b"\0\0\x29\x04\xd0\x01\0\x80\0\0\x04\0\x03\0\0");
        wire
    }

    #[test]
    fn names_are_lowered_and_the_question_is_not() {
        let answer = Answer::parse(&sample()).unwrap();
        assert_eq!(answer.questions, [(b"\x03wWw\x01X\0".to_vec(), 65, 1)]);
        let rdata: Vec<&[u8]> = answer.sections[0].iter().map(|rr| &rr.rdata[..]).collect();
        assert_eq!(rdata, [&b"\0\x01\x01c\x01x\0"[..], b"\x01b\x01x\0"]);
        let edns = answer.edns.clone().unwrap();
        assert_eq!((edns.size, edns.version, edns.dnssec_ok, edns.options), (1232, 0, true, vec![(3, vec![])]));
        // BADVERS: the upper bits of the RCODE stand in the OPT record
        assert_eq!((answer.rcode, answer.flags), (16, 0x8400));
        assert!(answer.differences(&answer).is_empty());
    }

    #[test]
    fn octets_after_the_message_are_an_error() {
        let mut wire = sample();
        wire.push(0);
        assert!(format!("{:#}", Answer::parse(&wire).unwrap_err()).contains("1 octets after"));
        assert!(Answer::parse(&wire[..40]).is_err());
    }

    proptest! {
        #[test]
        fn damaged_answers_never_panic(at in 0_usize..90, with: u8, keep in 0_usize..100) {
            let mut wire = sample();
            let end = wire.len();
            wire[at % end] = with;
            wire.truncate(keep);
            if let Ok(answer) = Answer::parse(&wire) {
                prop_assert!(!answer.to_string().is_empty());
            }
        }
    }
}
