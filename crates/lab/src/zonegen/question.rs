//! Questions about a world.

use super::{Name, Reason, World, child, parent, present, rtype};
use fastrand::Rng;
use std::fmt;

/// What a question asks and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The name, in the letter case that is sent.
    pub name: Name,
    /// QTYPE.
    pub rtype: u16,
    /// QCLASS.
    pub class: u16,
    /// The UDP size that an OPT record announces; no OPT record without it.
    pub edns: Option<u16>,
    /// The DO bit; only with EDNS.
    pub dnssec_ok: bool,
    /// The RD bit.
    pub recursion_desired: bool,
}

const CLASS_IN: u16 = 1;
const CLASS_CH: u16 = 3;
const OPT: u16 = 41;

impl Reason {
    /// How often to ask for this reason: more often where only some of the questions reach the class meant.
    fn weight(self) -> usize {
        match self {
            Self::WildParent | Self::Big => 6,
            Self::CnameChain => 5,
            Self::Cname | Self::BigCut => 3,
            Self::BareCut | Self::Cut | Self::Ent | Self::Plain | Self::Nested => 2,
            _ => 1,
        }
    }
}

/// Types that questions draw from; two of them no name has (DNSKEY and HINFO).
const TYPES: [u16; 20] = [
    rtype::A,
    rtype::A,
    rtype::AAAA,
    rtype::NS,
    rtype::CNAME,
    rtype::SOA,
    rtype::PTR,
    rtype::MX,
    rtype::TXT,
    rtype::SRV,
    rtype::NAPTR,
    rtype::DNAME,
    rtype::DS,
    rtype::HTTPS,
    rtype::SVCB,
    rtype::CAA,
    rtype::PRIVATE,
    rtype::ANY,
    48,
    13,
];

impl Question {
    /// A plain question of class IN without EDNS.
    pub fn new(name: Name, rtype: u16) -> Self {
        Self { name, rtype, class: CLASS_IN, edns: None, dnssec_ok: false, recursion_desired: false }
    }

    /// The message, without the length that TCP puts before it.
    pub fn wire(&self, id: u16) -> Vec<u8> {
        let mut wire = Vec::with_capacity(64);
        let flags = u16::from(self.recursion_desired) << 8;
        for word in [id, flags, 1, 0, 0, u16::from(self.edns.is_some())] {
            wire.extend(word.to_be_bytes());
        }
        wire.extend(self.name.as_slice());
        wire.extend(self.rtype.to_be_bytes());
        wire.extend(self.class.to_be_bytes());
        if let Some(size) = self.edns {
            wire.push(0);
            wire.extend(OPT.to_be_bytes());
            wire.extend(size.to_be_bytes());
            wire.extend([0, 0, if self.dnssec_ok { 0x80 } else { 0 }, 0, 0, 0]);
        }
        wire
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = if self.class == CLASS_IN { "IN".into() } else { format!("CLASS{}", self.class) };
        write!(f, "{} {class} {}", present(&self.name), domain::base::iana::Rtype::from_int(self.rtype))?;
        match self.edns {
            None => write!(f, " (no EDNS")?,
            Some(size) => write!(f, " (EDNS {size}{}", if self.dnssec_ok { " DO" } else { "" })?,
        }
        write!(f, "{})", if self.recursion_desired { ", RD" } else { "" })
    }
}

impl World {
    /// Draws questions about this world. The same seed gives the same questions.
    pub fn questions(&self, seed: u64, count: usize) -> Vec<Question> {
        let mut rng = Rng::with_seed(seed);
        let targets: Vec<(Reason, Vec<&Name>)> = self
            .targets
            .iter()
            .flat_map(|(reason, names)| vec![(*reason, names.iter().collect()); reason.weight()])
            .collect();
        (0..count)
            .map(|_| {
                let (reason, names) = &targets[rng.usize(..targets.len())];
                let name = names[rng.usize(..names.len())];
                let name = self.derive(&mut rng, *reason, name);
                let rtype = self.pick_type(&mut rng, *reason, &name);
                Question {
                    name: mix_case(&mut rng, &name),
                    rtype,
                    class: if rng.u8(..50) == 0 { CLASS_CH } else { CLASS_IN },
                    edns: [None, Some(512), Some(1232), Some(1232)][rng.usize(..4)],
                    dnssec_ok: rng.u8(..8) == 0,
                    recursion_desired: rng.u8(..4) == 0,
                }
            })
            .map(|question| Question { dnssec_ok: question.dnssec_ok && question.edns.is_some(), ..question })
            .collect()
    }

    /// The name itself or one near it.
    fn derive(&self, rng: &mut Rng, reason: Reason, name: &Name) -> Name {
        let label: &[u8] = match rng.u8(..8) {
            0 => b"mail",
            1 => b"a",
            2 => b"ns1",
            3 => b"beside",
            4 => b"absent",
            5 => b"sp ace\\.",
            _ => b"www",
        };
        let here = || name.clone();
        let under = |label: &[u8]| child(label, name).unwrap_or_else(here);
        match reason {
            Reason::DnameLong if rng.u8(..3) > 0 => {
                let long = under(&[b'q'; 60]);
                child(&[b'r'; 30], &long).unwrap_or(long)
            }
            Reason::WildParent if rng.u8(..6) > 0 => match rng.u8(..6) {
                0 => under(b"*"),
                1 => child(label, &under(b"*")).unwrap_or_else(here),
                2 => child(b"x", &under(label)).unwrap_or_else(here),
                _ => under(label),
            },
            Reason::Dname | Reason::DnameLoop | Reason::DnameOut | Reason::Cut if rng.u8(..4) > 0 => under(label),
            Reason::Ent | Reason::Big | Reason::BigCut | Reason::CnameLoop | Reason::CnameChain | Reason::Plain
                if rng.u8(..4) > 0 =>
            {
                here()
            }
            _ => match rng.u8(..12) {
                0 | 1 => under(label),
                2 => child(b"x", &under(label)).unwrap_or_else(here),
                3 => parent(name).unwrap_or_else(here),
                4 => parent(name).and_then(|above| child(label, &above)).unwrap_or_else(here),
                _ => here(),
            },
        }
    }

    fn pick_type(&self, rng: &mut Rng, reason: Reason, name: &Name) -> u16 {
        if matches!(reason, Reason::Cut | Reason::Nested) && rng.u8(..3) == 0 {
            return rtype::DS;
        }
        if matches!(reason, Reason::Cname | Reason::CnameChain) && rng.bool() {
            return if rng.bool() { rtype::A } else { rtype::AAAA };
        }
        // half the time a type that is there, the wildcard's if that is what answers
        if rng.bool() {
            let wild = parent(name).and_then(|above| child(b"*", &above));
            let found = self.zones.iter().find_map(|zone| {
                zone.nodes.get(name).or_else(|| zone.nodes.get(wild.as_ref()?)).filter(|types| !types.is_empty())
            });
            if let Some(types) = found {
                let rtype = *types.keys().nth(rng.usize(..types.len())).expect("not empty");
                if rtype != rtype::CNAME || rng.u8(..4) == 0 {
                    return rtype;
                }
            }
        }
        TYPES[rng.usize(..TYPES.len())]
    }
}

fn mix_case(rng: &mut Rng, name: &Name) -> Name {
    if rng.u8(..3) == 0 {
        return name.clone();
    }
    let mut wire = name.as_slice().to_vec();
    let mut at = 0;
    while wire[at] > 0 {
        let length = usize::from(wire[at]);
        for octet in &mut wire[at + 1..=at + length] {
            if rng.bool() {
                *octet = octet.to_ascii_uppercase();
            }
        }
        at += length + 1;
    }
    Name::from_octets(wire).expect("letter case does not change a name's form")
}
