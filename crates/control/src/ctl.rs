//! The control socket: where it is, what is said on it. docs/control-protocol.md is the reference.

pub mod client;
pub(crate) mod connections;
pub mod server;

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The system's place.
const SYSTEM: &str = "/run/simoom/control";

/// Bytes of the longest request line.
pub const REQUEST_BYTES: usize = 64 << 10;

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// what runs
    Status {},
    /// the counters
    Stats {},
    /// frames, until one of the bounds is met or the client goes
    Capture {
        /// the filter expression; empty takes everything
        #[serde(default)]
        filter: String,
        /// most frames
        count: Option<u64>,
        /// most seconds
        #[serde(default = "default_seconds")]
        seconds: u32,
    },
    /// TCP connections of our own stack
    Connections {
        /// most of them
        #[serde(default = "default_connections")]
        most: u32,
    },
    /// flow groups from one thread to another
    MoveGroups {
        /// whose
        from: usize,
        /// who takes them
        to: usize,
        /// most of them
        #[serde(default = "default_groups")]
        count: u32,
    },
    /// how many threads serve
    Threads {
        /// so many
        count: usize,
    },
    /// read the zones again
    Reload {},
    /// end
    Stop {},
}

fn default_connections() -> u32 {
    1000
}

fn default_groups() -> u32 {
    u32::MAX
}

fn default_seconds() -> u32 {
    60
}

/// The user's own place, when there is one.
fn user_path() -> Option<PathBuf> {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty())?;
    Some(PathBuf::from(folder).join("simoom/control"))
}

/// Where a server puts its socket when it is not told: the system's place for root, the user's for others.
pub fn default_path() -> Option<PathBuf> {
    let writable = |path: &str| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    if writable("/run/simoom") || writable("/run") {
        return Some(SYSTEM.into());
    }
    user_path()
}

/// Where a client looks when it is not told: the system's place, then the user's.
pub fn candidates() -> Vec<PathBuf> {
    std::iter::once(PathBuf::from(SYSTEM)).chain(user_path()).collect()
}
