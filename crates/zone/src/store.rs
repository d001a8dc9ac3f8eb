//! The memory of a zone: one run of octets that holds names and records, addressed by 32-bit units of four.
//!
//! ```text
//! name    length (1)  wire form ...                                                    padded to 4
//! record  owner (4)  ttl (4)  line (4)  type (2)  rdlen (2)  file (2)  column (2)  rdata ...   padded to 4
//! ```
//!
//! Both are written once, in the order of the file; a record knows where it stood, so that later checks can
//! name the place. Units of four octets let 32-bit references reach 16 GiB.

use crate::name::NameRef;
use crate::rtype::Rtype;

#[cfg(test)]
thread_local! {
    /// how many times a record's type was read
    pub(crate) static TYPES_READ: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

const UNIT_BYTES: usize = 4;
const HEADER_BYTES: usize = 20;

/// Where a name begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NameAt(u32);

/// Where a record begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecordAt(u32);

/// Where a record stood in the files: an index into the zone's list of files, line and column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) file: u16,
    pub(crate) line: u32,
    pub(crate) column: u16,
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    bytes: Vec<u8>,
}

impl Store {
    /// The next unit's number; none once the 32 bits are spent.
    fn next_unit(&self) -> Option<u32> {
        u32::try_from(self.bytes.len() / UNIT_BYTES).ok()
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(UNIT_BYTES), 0);
    }

    pub(crate) fn push_name(&mut self, name: NameRef<'_>) -> Option<NameAt> {
        let at = self.next_unit()?;
        let wire = name.as_wire();
        self.bytes.push(wire.len() as u8);
        self.bytes.extend_from_slice(wire);
        self.pad();
        Some(NameAt(at))
    }

    pub(crate) fn push_record(
        &mut self,
        owner: NameAt,
        ttl: u32,
        rtype: Rtype,
        rdata: &[u8],
        at: At,
    ) -> Option<RecordAt> {
        let unit = self.next_unit()?;
        let rdlen = u16::try_from(rdata.len()).ok()?;
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&owner.0.to_ne_bytes());
        header[4..8].copy_from_slice(&ttl.to_ne_bytes());
        header[8..12].copy_from_slice(&at.line.to_ne_bytes());
        header[12..14].copy_from_slice(&rtype.0.to_ne_bytes());
        header[14..16].copy_from_slice(&rdlen.to_ne_bytes());
        header[16..18].copy_from_slice(&at.file.to_ne_bytes());
        header[18..20].copy_from_slice(&at.column.to_ne_bytes());
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(rdata);
        self.pad();
        Some(RecordAt(unit))
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_ne_bytes([self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]])
    }

    fn u16_at(&self, at: usize) -> u16 {
        u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    pub(crate) fn name(&self, at: NameAt) -> NameRef<'_> {
        let at = at.0 as usize * UNIT_BYTES;
        let len = usize::from(self.bytes[at]);
        NameRef::trusted(&self.bytes[at + 1..at + 1 + len])
    }

    pub(crate) fn owner_at(&self, record: RecordAt) -> NameAt {
        NameAt(self.u32_at(record.0 as usize * UNIT_BYTES))
    }

    pub(crate) fn owner(&self, record: RecordAt) -> NameRef<'_> {
        self.name(self.owner_at(record))
    }

    pub(crate) fn ttl(&self, record: RecordAt) -> u32 {
        self.u32_at(record.0 as usize * UNIT_BYTES + 4)
    }

    pub(crate) fn set_ttl(&mut self, record: RecordAt, ttl: u32) {
        let at = record.0 as usize * UNIT_BYTES + 4;
        self.bytes[at..at + 4].copy_from_slice(&ttl.to_ne_bytes());
    }

    pub(crate) fn rtype(&self, record: RecordAt) -> Rtype {
        #[cfg(test)]
        TYPES_READ.set(TYPES_READ.get() + 1);
        Rtype(self.u16_at(record.0 as usize * UNIT_BYTES + 12))
    }

    pub(crate) fn rdata(&self, record: RecordAt) -> &[u8] {
        let at = record.0 as usize * UNIT_BYTES;
        let len = usize::from(self.u16_at(at + 14));
        &self.bytes[at + HEADER_BYTES..at + HEADER_BYTES + len]
    }

    pub(crate) fn at(&self, record: RecordAt) -> At {
        let at = record.0 as usize * UNIT_BYTES;
        At { file: self.u16_at(at + 16), line: self.u32_at(at + 8), column: self.u16_at(at + 18) }
    }

    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}
