//! The table of a NIC whose receive-side scaling is a program's: a pinned array of 32-bit queues, by hash modulo their number.
//!
//! Programs that spread packets over queues before the server's AF_XDP sees them (in a SmartNIC, on a host's side of a virtual link, in
//! the laboratory) keep their table in such a map, and pin it where an administrator may find it.

use crate::error::chain;
use aya::maps::{Array, Map, MapData};
use std::path::Path;

/// The map is not there, or not as wanted.
#[derive(Debug, thiserror::Error)]
#[error("{doing}: {why}")]
pub struct RssError {
    /// what was tried
    pub doing: &'static str,
    /// what the kernel or the loader said
    pub why: String,
}

/// The map.
pub struct Table(Array<MapData, u32>);

impl Table {
    /// The array that is pinned at `path`.
    ///
    /// # Errors
    /// When there is none, or it is not one of 32-bit values.
    pub fn open(path: &Path) -> Result<Table, RssError> {
        let failed = |why| RssError { doing: "opening the pinned map", why };
        let map = MapData::from_pin(path).map_err(|e| failed(chain(&e)))?;
        let map = Map::from_map_data(map).map_err(|e| failed(chain(&e)))?;
        map.try_into().map(Table).map_err(|e| failed(chain(&e as &aya::maps::MapError)))
    }

    /// The queue of each entry.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read(&self) -> Result<Vec<u32>, RssError> {
        (0..self.0.len()).map(|entry| self.get(entry)).collect()
    }

    /// The queue of one entry.
    ///
    /// # Errors
    /// The kernel's, or no such entry.
    pub fn get(&self, entry: u32) -> Result<u32, RssError> {
        self.0.get(&entry, 0).map_err(|e| RssError { doing: "reading the map", why: chain(&e) })
    }

    /// Writes an entry.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set(&mut self, entry: u32, queue: u32) -> Result<(), RssError> {
        self.0.set(entry, queue, 0).map_err(|e| RssError { doing: "writing the map", why: chain(&e) })
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table({} entries)", self.0.len())
    }
}
