//! What Landlock holds beside the reading and writing of files, which came to the kernel bit by bit.
//!
//! Left out is what seccomp holds on every kernel: requests to devices (ioctl, ABI 5), links and renaming between directories (ABI 2), which it
//! has no call for. No version knows of datagrams: what is not TCP can be sent to anybody by whoever has a socket.

use landlock::ABI;

/// A part of it.
#[derive(Debug)]
pub(super) struct Part {
    /// as metrics have it
    pub(super) label: &'static str,
    what: &'static str,
    since: ABI,
    linux: &'static str,
}

pub(super) const PARTS: [Part; 3] = [
    Part { label: "landlock truncation", what: "the truncation of files", since: ABI::V3, linux: "6.2" },
    Part { label: "landlock ports", what: "TCP connections and ports", since: ABI::V4, linux: "6.7" },
    Part { label: "landlock scopes", what: "signals and abstract sockets", since: ABI::V6, linux: "6.12" },
];

impl Part {
    /// Whether this version of Landlock has it.
    pub(super) fn is_held_by(&self, abi: i32) -> bool {
        abi >= self.since as i32
    }
}

/// In words, what this version of Landlock leaves open; None where that is nothing.
pub(super) fn missing(abi: i32) -> Option<String> {
    let missing = PARTS.iter().filter(|part| !part.is_held_by(abi));
    let said: Vec<String> = missing.map(|part| format!("{} (Linux {} does)", part.what, part.linux)).collect();
    (!said.is_empty()).then(|| said.join(", "))
}
