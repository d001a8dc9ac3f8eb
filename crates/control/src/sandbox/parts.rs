//! What Landlock holds beside the reading and writing of files, which came to the kernel bit by bit.
//!
//! Left out is what seccomp holds on every kernel: requests to devices (ioctl, ABI 5), links and renaming between directories (ABI 2), which it
//! has no call for. No version knows of datagrams: what is not TCP can be sent to anybody by whoever has a socket.

use super::Outgoing;
use landlock::ABI;

/// A part of it.
#[derive(Debug)]
pub(super) struct Part {
    /// as metrics have it
    pub(super) label: &'static str,
    what: &'static str,
    since: ABI,
    linux: &'static str,
    /// what of it is left open for what is served, in words
    open: fn(&Outgoing) -> Option<&'static str>,
}

pub(super) const PARTS: [Part; 3] = [
    Part {
        label: "landlock truncation",
        what: "the truncation of files",
        since: ABI::V3,
        linux: "6.2",
        open: |_| None,
    },
    Part {
        label: "landlock ports",
        what: "TCP connections and ports",
        since: ABI::V4,
        linux: "6.7",
        open: |outgoing| outgoing.all.then_some("TCP connections to any port (--connect)"),
    },
    Part {
        label: "landlock scopes",
        what: "signals and abstract sockets",
        since: ABI::V6,
        linux: "6.12",
        open: |_| None,
    },
];

impl Part {
    /// Whether this version of Landlock has it.
    fn is_known_to(&self, abi: i32) -> bool {
        abi >= self.since as i32
    }

    /// Whether the whole of it is in force.
    pub(super) fn is_held_by(&self, abi: i32, outgoing: &Outgoing) -> bool {
        self.is_known_to(abi) && (self.open)(outgoing).is_none()
    }
}

/// In words, what this version of Landlock does not know; None where that is nothing.
pub(super) fn missing(abi: i32) -> Option<String> {
    let missing = PARTS.iter().filter(|part| !part.is_known_to(abi));
    list(missing.map(|part| format!("{} (Linux {} does)", part.what, part.linux)))
}

/// In words, what it could hold and is left open; None where that is nothing.
pub(super) fn left_open(abi: i32, outgoing: &Outgoing) -> Option<String> {
    let known = PARTS.iter().filter(|part| part.is_known_to(abi));
    list(known.filter_map(|part| (part.open)(outgoing)).map(str::to_owned))
}

fn list(said: impl Iterator<Item = String>) -> Option<String> {
    let said: Vec<_> = said.collect();
    (!said.is_empty()).then(|| said.join(", "))
}
