//! The memory that a dataplane's thread and an application's thread share, version 4. This page is the protocol's document;
//! `libsimoom/include/simoom.h` is its face for C.
//!
//! There are two anonymous files (memfd) for each thread. The application maps the first one for reading and nothing else: the
//! dataplane has mapped it for writing and then sealed it (F_SEAL_FUTURE_WRITE, SHRINK, GROW, SEAL), so nobody gets another writable
//! mapping, not even by way of /proc. It may write the second one, which is sealed against change of size alone, so that no access of
//! the dataplane's ever falls behind its end.
//!
//! ```text
//!  receive file (application: read only)              transmit file (both write)
//!  0      +----------------------------------+        0      +----------------------------------+
//!         | header: magic, version, numbers  |               | CALL_HEAD      written by app    |
//!   64    | EVENT_HEAD     written by dp     |         64    | EVENT_TAIL     written by app    |
//!  128    | CALL_TAIL      written by dp     |        128    | APP_ASLEEP     written by app    |
//!  192    | NOW            written by dp     |        192    | WAKE           futex, both       |
//!  256    | DP_ASLEEP      written by dp     |        256    | TURN           futex, both       |
//!  320    | PERMITS        written once      |        320    | ATTACHED       written by app    |
//!         |                                  |       1024    | STATUS         written by app    |
//!  4096   +----------------------------------+        4096   +----------------------------------+
//!         | EVENT_SLOTS events of 32 bytes   |               | CALL_SLOTS calls of 32 bytes     |
//!  36864  +----------------------------------+        36864  +----------------------------------+
//!         | RECEIVE_BYTES of payload         |               | TRANSMIT_BYTES of payload        |
//!         +----------------------------------+               +----------------------------------+
//!  ```
//!
//! Each index counts up without end and wraps at 2^32; the slot is the index modulo the number of slots, a power of two. Slots
//! `tail..head` are the consumer's, the others the producer's. A producer writes slot and payload, then its head with release; a
//! consumer reads the head with acquire, uses slot and payload, then writes its tail with release. Payload lies in one piece and is
//! the consumer's as long as its slot is. So the dataplane may write payload anew when EVENT_TAIL has passed it, and the
//! application when CALL_TAIL has.
//!
//! Who sleeps says so first: it writes the number of this sleep (never 0) to its ASLEEP word, then, behind a full fence, looks for
//! work once more. Who leaves work looks, behind a full fence, whether the other sleeps with a number that it has not rung for
//! yet: the dataplane then adds one to WAKE and wakes who waits there (futex); the application writes to the eventfd that it was
//! given. On one processor the dataplane waits at TURN, for a bounded time, until the application has taken what there is and has gone
//! to sleep again.
//!
//! A connection is named by index, generation and owner ([`Handle`]): the index is below the number of connections in the header, the
//! generation changes each time an index is used again, the owner is the application's thread. Events carry the handle that calls must
//! name. Places that connections come in on are the dataplane's to choose; places from [`header::CONNECTIONS_AT`] on are the application's,
//! for connections that it asks for: CONNECT names one of them that is free, with a generation of the application's choice, and CONNECTED
//! or DEAD frees it. Whom it may ask is in [`header::PERMITS_AT`]; anything else is refused by CONNECTED with a reason. A TIMER and an ALARM
//! say which time they were set to, so that one which crosses a later call is known by it.
//!
//! What the application owes: at most [`CREDIT_BYTES`] of a connection unsent, [`BUDGET_BYTES`] of all of them, [`SEND_BYTES`] a
//! call; no more given back than was delivered; at most [`ASKING`] connections asked for and not told of, [`ALARMS`](app::ALARMS) alarms. A SENT
//! event gives credit back. A knock is answered by ACCEPT or REJECT
//! once it was told, and before any other call for it.

/// The first eight bytes of the receive file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"simoomRX");
/// Changes whenever anything on this page does.
pub const VERSION: u32 = 4;

/// Where the header's numbers stand in the receive file.
pub mod header {
    /// u64: [`super::MAGIC`]
    pub const MAGIC_AT: usize = 0;
    /// u32: [`super::VERSION`]
    pub const VERSION_AT: usize = 8;
    /// u32: the owner that calls must name
    pub const OWNER_AT: usize = 12;
    /// u32: places of connections that come in; their indices are below it
    pub const CONNECTIONS_AT: usize = 16;
    /// u32: how long the application should look for events before it sleeps, in ns; 0 where both share a processor
    pub const SPIN_NS_AT: usize = 20;
    /// u32: the processor that the application's thread should run on; [`NO_CPU`] where that does not matter
    pub const CPU_AT: usize = 24;
    /// see [`CPU_AT`]
    pub const NO_CPU: u32 = u32::MAX;
    /// u32: places of connections that the application asks for; their indices are behind the others'
    pub const ASKED_AT: usize = 28;
    /// u32: its first listener
    pub const LISTENERS_FROM_AT: usize = 32;
    /// u32: how many listeners it has
    pub const LISTENERS_AT: usize = 36;
    /// u64: the zero of [`NOW_AT`] by the machine's monotonic clock, in ns; 0 before the dataplane's thread has told the time once
    pub const ZERO_AT: usize = 40;
    /// u32: the dataplane's: where events end
    pub const EVENT_HEAD_AT: usize = 64;
    /// u32: the dataplane's: which calls it has taken
    pub const CALL_TAIL_AT: usize = 128;
    /// u64: the time in ns that events are told at; while the dataplane's thread sleeps it stands still, and [`ZERO_AT`] says what it would be
    pub const NOW_AT: usize = 192;
    /// u32: the number of the sleep that the dataplane is in, 0 while it is awake
    pub const DP_ASLEEP_AT: usize = 256;
    /// u64: how many permits there are, at most [`super::PERMITS`]; three words each follow, see `permits`
    pub const PERMITS_AT: usize = 320;
}

/// Where the words stand that the application writes, in the transmit file.
pub mod control {
    /// u32: where calls end
    pub const CALL_HEAD_AT: usize = 0;
    /// u32: which events it has taken
    pub const EVENT_TAIL_AT: usize = 64;
    /// u32: the number of the sleep that it is in, 0 while it is awake
    pub const APP_ASLEEP_AT: usize = 128;
    /// u32: where it sleeps
    pub const WAKE_AT: usize = 192;
    /// u32: where the dataplane waits for its turn, on one processor
    pub const TURN_AT: usize = 256;
    /// u32: 1 once the application is there
    pub const ATTACHED_AT: usize = 320;
    /// u64 each: [`super::STATUS_NUMBERS`] numbers that the application counts for itself, in an order of its own
    pub const STATUS_AT: usize = 1024;
}

/// Where the slots of either file begin.
pub const SLOTS_AT: usize = 4096;
/// Bytes of a slot.
pub const SLOT_BYTES: usize = 32;
/// Events that may be under way.
pub const EVENT_SLOTS: u32 = 1024;
/// Calls that may be under way.
pub const CALL_SLOTS: u32 = 1024;
/// Where the payload of either file begins.
pub const PAYLOAD_AT: usize = SLOTS_AT + EVENT_SLOTS as usize * SLOT_BYTES;
/// Payload under way to the application.
pub const RECEIVE_BYTES: usize = 256 << 10;
/// Payload under way from it.
pub const TRANSMIT_BYTES: usize = 256 << 10;
/// Bytes of each of the files.
pub const FILE_BYTES: usize = PAYLOAD_AT + RECEIVE_BYTES;

/// Most bytes of one call, and of one event.
pub const SEND_BYTES: usize = 32 << 10;
/// Most bytes of a connection that were sent by calls and not reported by events.
pub const CREDIT_BYTES: u64 = 128 << 10;
/// Most of those of all connections of a thread.
pub const BUDGET_BYTES: u64 = 32 << 20;
/// The receive window that a server gives an application's connections: bytes of one that were delivered and not given back.
pub const WINDOW_BYTES: usize = 64 << 10;
/// Bytes of the addresses in front of a knock's or a datagram's payload: each end's address as IPv6 (IPv4 mapped, RFC 4291 section
/// 2.5.5.2), then each end's port, the low byte first; the local one before the peer's.
pub const ADDRESSES_BYTES: usize = 36;
/// Numbers that an application may show.
pub const STATUS_NUMBERS: usize = 384;
/// Most permits of an application.
pub const PERMITS: usize = 128;
/// Connections that may be asked for and not told of.
pub const ASKING: u32 = 1024;
/// Datagrams left unanswered that the application's side remembers: a later one takes the place of the oldest.
pub const DATAGRAMS: u32 = 1024;
/// Datagrams of which the server remembers who asked. It takes more while one waits among the events, while the application leaves
/// some unanswered, and while the answer waits among the calls.
pub const QUESTIONS: u32 = 4096;
/// The time that clears a timer.
pub const NEVER: u64 = u64::MAX;

const _: () = {
    assert!(EVENT_SLOTS.is_power_of_two() && CALL_SLOTS.is_power_of_two());
    // a power of two, so that names go on when their count wraps
    assert!(QUESTIONS > EVENT_SLOTS + DATAGRAMS + CALL_SLOTS && QUESTIONS.is_power_of_two());
    assert!(RECEIVE_BYTES.is_power_of_two() && TRANSMIT_BYTES.is_power_of_two());
    assert!(CALL_SLOTS == EVENT_SLOTS && TRANSMIT_BYTES == RECEIVE_BYTES, "both files have one shape");
    assert!(PAYLOAD_AT == 36_864 && FILE_BYTES.is_multiple_of(4096));
    assert!(SEND_BYTES * 4 <= RECEIVE_BYTES && SEND_BYTES as u64 <= CREDIT_BYTES);
    // a line for each writer and reader
    assert!(header::EVENT_HEAD_AT.is_multiple_of(64) && header::CALL_TAIL_AT.is_multiple_of(64));
    assert!(control::TURN_AT - control::WAKE_AT >= 64 && control::EVENT_TAIL_AT.is_multiple_of(64));
    assert!(header::NOW_AT.is_multiple_of(8) && header::DP_ASLEEP_AT < SLOTS_AT && control::ATTACHED_AT < SLOTS_AT);
    // the time changes with each cycle, and who publishes looks whether the other sleeps
    assert!(header::DP_ASLEEP_AT.is_multiple_of(64) && header::PERMITS_AT - header::DP_ASLEEP_AT >= 64);
    assert!(control::ATTACHED_AT < control::STATUS_AT && control::STATUS_AT + STATUS_NUMBERS * 8 == SLOTS_AT);
    assert!(header::PERMITS_AT + 8 + PERMITS * 24 <= SLOTS_AT);
    assert!(
        size_of::<[u64; 4]>() == SLOT_BYTES && ASKING <= EVENT_SLOTS && SEND_BYTES + ADDRESSES_BYTES < TRANSMIT_BYTES
    );
};

/// A connection, as both sides name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    /// place in the table of the owner's connections
    pub index: u32,
    /// how often the place was used before
    pub generation: u32,
}

/// What happened; the number stands in the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventKind {
    /// a connection is there; payload: addresses
    Knock = 1,
    /// bytes have arrived; payload: the bytes
    Recv = 2,
    /// the peer has finished
    Eof = 3,
    /// `bytes` more were taken by the peer; with none it could take nothing until now, since no engine has had anything for it
    Sent = 4,
    /// the connection is gone; `detail` is the reason; its handle is void
    Dead = 5,
    /// its timer's time has come; `bytes` is that time
    Timer = 6,
    /// a datagram; payload: addresses, then the question; `bytes` is the longest answer; the handle names it in a REPLY
    Datagram = 7,
    /// what was asked for: `detail` is 0 when it is there, else the reason, and its handle is void
    Connected = 8,
    /// an alarm's time has come; the handle is its cookie, the index the lower half, `bytes` the time
    Alarm = 9,
}

/// A slot of the event ring: kind u8, detail u8, listener u16, index u32, generation u32, length u32, offset u32, zero u32, bytes u64;
/// the low byte first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// what happened
    pub kind: EventKind,
    /// the reason of a death; the ECN bits of a datagram
    pub detail: u8,
    /// of a knock and of a datagram
    pub listener: u16,
    /// whose event it is
    pub handle: Handle,
    /// bytes of payload
    pub length: u32,
    /// where the payload begins, from [`PAYLOAD_AT`]
    pub offset: u32,
    /// a count of bytes
    pub bytes: u64,
}

impl Event {
    /// One without payload.
    pub fn plain(kind: EventKind, handle: Handle) -> Event {
        Event { kind, detail: 0, listener: 0, handle, length: 0, offset: 0, bytes: 0 }
    }

    /// As the slot's four words.
    #[inline]
    pub fn encode(&self) -> [u64; 4] {
        [
            self.kind as u64
                | u64::from(self.detail) << 8
                | u64::from(self.listener) << 16
                | u64::from(self.handle.index) << 32,
            u64::from(self.handle.generation) | u64::from(self.length) << 32,
            u64::from(self.offset),
            self.bytes,
        ]
    }

    /// From the slot's four words; None for a kind that this version does not have.
    #[inline]
    pub fn decode(words: [u64; 4]) -> Option<Event> {
        let kind = match words[0] as u8 {
            1 => EventKind::Knock,
            2 => EventKind::Recv,
            3 => EventKind::Eof,
            4 => EventKind::Sent,
            5 => EventKind::Dead,
            6 => EventKind::Timer,
            7 => EventKind::Datagram,
            8 => EventKind::Connected,
            9 => EventKind::Alarm,
            _ => return None,
        };
        Some(Event {
            kind,
            detail: (words[0] >> 8) as u8,
            listener: (words[0] >> 16) as u16,
            handle: Handle { index: (words[0] >> 32) as u32, generation: words[1] as u32 },
            length: (words[1] >> 32) as u32,
            offset: words[2] as u32,
            bytes: words[3],
        })
    }
}

/// What is asked for; the number stands in the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CallKind {
    /// takes a connection that knocked
    Accept = 1,
    /// refuses one that knocked
    Reject = 2,
    /// sends the payload
    Send = 3,
    /// nothing but to give bytes back
    Done = 4,
    /// ends the writing side behind what was sent
    Shutdown = 5,
    /// ends the connection behind what was sent; what comes from then on is not told, and what was told before may still be given back
    Close = 6,
    /// resets the connection
    Abort = 7,
    /// sets the timer to `at`, or clears it
    Timer = 8,
    /// answers a datagram with the payload
    Reply = 9,
    /// asks for a connection; payload: addresses, where `[::]:0` is a local end of the dataplane's choice
    Connect = 10,
    /// sends a datagram that answers none, from the listener that `index` names; payload: addresses, then the datagram
    SendTo = 11,
    /// sets the alarm whose cookie is the handle, the index the lower half, to `at`, or clears it
    Alarm = 12,
}

/// A slot of the call ring as it was written, nothing of it judged: kind u8, zero u8, owner u16, index u32, generation u32, length u32,
/// offset u32, done u32, at u64; the low byte first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// see [`CallKind`]
    pub kind: u8,
    /// must be 0
    pub zero: u8,
    /// the application's thread
    pub owner: u16,
    /// which connection, or which datagram
    pub handle: Handle,
    /// bytes of payload
    pub length: u32,
    /// where the payload begins, from [`PAYLOAD_AT`]
    pub offset: u32,
    /// bytes delivered that are given back along with the call
    pub done: u32,
    /// a timer's time in ns
    pub at: u64,
}

impl Call {
    /// One without payload.
    pub fn plain(kind: CallKind, owner: u16, handle: Handle) -> Call {
        Call { kind: kind as u8, zero: 0, owner, handle, length: 0, offset: 0, done: 0, at: 0 }
    }

    /// As the slot's four words.
    #[inline]
    pub fn encode(&self) -> [u64; 4] {
        [
            u64::from(self.kind)
                | u64::from(self.zero) << 8
                | u64::from(self.owner) << 16
                | u64::from(self.handle.index) << 32,
            u64::from(self.handle.generation) | u64::from(self.length) << 32,
            u64::from(self.offset) | u64::from(self.done) << 32,
            self.at,
        ]
    }

    /// From the slot's four words, which are anything.
    #[inline]
    pub fn decode(words: [u64; 4]) -> Call {
        Call {
            kind: words[0] as u8,
            zero: (words[0] >> 8) as u8,
            owner: (words[0] >> 16) as u16,
            handle: Handle { index: (words[0] >> 32) as u32, generation: words[1] as u32 },
            length: (words[1] >> 32) as u32,
            offset: words[2] as u32,
            done: (words[2] >> 32) as u32,
            at: words[3],
        }
    }

    /// Which call it is, if there is such a one.
    #[inline]
    pub fn kind(&self) -> Option<CallKind> {
        Some(match self.kind {
            1 => CallKind::Accept,
            2 => CallKind::Reject,
            3 => CallKind::Send,
            4 => CallKind::Done,
            5 => CallKind::Shutdown,
            6 => CallKind::Close,
            7 => CallKind::Abort,
            8 => CallKind::Timer,
            9 => CallKind::Reply,
            10 => CallKind::Connect,
            11 => CallKind::SendTo,
            12 => CallKind::Alarm,
            _ => return None,
        })
    }
}

impl Handle {
    /// An alarm's cookie.
    #[inline]
    pub fn of_cookie(cookie: u64) -> Handle {
        Handle { index: cookie as u32, generation: (cookie >> 32) as u32 }
    }

    /// The same, back.
    #[inline]
    pub fn cookie(self) -> u64 {
        u64::from(self.index) | u64::from(self.generation) << 32
    }
}

/// Both ends' addresses as they stand in front of payload. The scope of an IPv6 address (RFC 4007 section 6) is left out: which link a
/// link-local one is on, the application does not know.
pub fn encode_addresses(addresses: &app::Addresses) -> [u8; ADDRESSES_BYTES] {
    let mut bytes = [0; ADDRESSES_BYTES];
    for (n, end) in [addresses.local, addresses.peer].into_iter().enumerate() {
        let octets = match end.ip() {
            std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            std::net::IpAddr::V6(ip) => ip.octets(),
        };
        bytes[n * 16..][..16].copy_from_slice(&octets);
        bytes[32 + n * 2..][..2].copy_from_slice(&end.port().to_le_bytes());
    }
    bytes
}

/// The same, back.
pub fn decode_addresses(bytes: &[u8; ADDRESSES_BYTES]) -> app::Addresses {
    let end = |n: usize| {
        let octets: [u8; 16] = std::array::from_fn(|at| bytes[n * 16 + at]);
        let port = u16::from_le_bytes([bytes[32 + n * 2], bytes[33 + n * 2]]);
        std::net::SocketAddr::new(std::net::Ipv6Addr::from(octets).to_canonical(), port)
    };
    app::Addresses { local: end(0), peer: end(1) }
}

/// A reason of death as an event's `detail`.
pub fn reason_number(reason: app::DeadReason) -> u8 {
    match reason {
        app::DeadReason::Closed => 0,
        app::DeadReason::Reset => 1,
        app::DeadReason::Aborted => 2,
        app::DeadReason::TimedOut => 3,
        app::DeadReason::NoResources => 4,
        app::DeadReason::Refused => 5,
        app::DeadReason::Unreachable => 6,
        app::DeadReason::Denied(error) => match error {
            app::CallError::NoResources => 4,
            app::CallError::Unreachable => 6,
            app::CallError::Forbidden => 7,
            app::CallError::NoSuchAddress => 8,
            app::CallError::InUse => 9,
            app::CallError::Elsewhere => 10,
            _ => 11,
        },
    }
}

/// What became of a connection that was asked for, as `detail`: 0 when it is there.
pub fn outcome_number(outcome: Result<(), app::DeadReason>) -> u8 {
    match outcome {
        Ok(()) => 0,
        // nothing that was asked for ends this way, and 0 is taken
        Err(app::DeadReason::Closed) => reason_number(app::DeadReason::Reset),
        Err(reason) => reason_number(reason),
    }
}

/// The same, back; what this version does not have is a reset.
pub fn reason(number: u8) -> app::DeadReason {
    match number {
        0 => app::DeadReason::Closed,
        2 => app::DeadReason::Aborted,
        3 => app::DeadReason::TimedOut,
        4 => app::DeadReason::NoResources,
        5 => app::DeadReason::Refused,
        6 => app::DeadReason::Unreachable,
        7 => app::DeadReason::Denied(app::CallError::Forbidden),
        8 => app::DeadReason::Denied(app::CallError::NoSuchAddress),
        9 => app::DeadReason::Denied(app::CallError::InUse),
        10 => app::DeadReason::Denied(app::CallError::Elsewhere),
        11 => app::DeadReason::Denied(app::CallError::Unsupported),
        _ => app::DeadReason::Reset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use app::{CallError, DeadReason};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn calls_are_what_was_written_whatever_that_is(words in any::<[u64; 4]>()) {
            prop_assert_eq!(Call::decode(words).encode(), words);
        }

        #[test]
        fn events_come_back(
            kind in 1u8..=9, detail in any::<u8>(), listener in any::<u16>(), index in any::<u32>(), generation in any::<u32>(),
            length in any::<u32>(), offset in any::<u32>(), bytes in any::<u64>()
        ) {
            let event = Event::decode([u64::from(kind), 0, 0, 0]).unwrap();
            prop_assert_eq!(event.kind as u8, kind);
            let event = Event { detail, listener, handle: Handle { index, generation }, length, offset, bytes, ..event };
            prop_assert_eq!(Event::decode(event.encode()), Some(event));
        }

        #[test]
        fn addresses_come_back(local in any::<(u32, u16)>(), peer in any::<([u8; 16], u16)>()) {
            let local = (std::net::Ipv4Addr::from(local.0), local.1).into();
            let peer = std::net::SocketAddr::new(std::net::Ipv6Addr::from(peer.0).to_canonical(), peer.1);
            let addresses = app::Addresses { local, peer };
            prop_assert_eq!(decode_addresses(&encode_addresses(&addresses)), addresses);
        }
    }

    #[test]
    fn kinds_and_reasons_have_their_numbers() {
        for number in 0..=u8::MAX {
            let call = Call { kind: number, ..Call::plain(CallKind::Done, 0, Handle { index: 0, generation: 0 }) };
            assert_eq!(call.kind().map(|kind| kind as u8), (1..=12).contains(&number).then_some(number));
        }
        let all =
            [DeadReason::Closed, DeadReason::Reset, DeadReason::Aborted, DeadReason::TimedOut, DeadReason::NoResources];
        let all = all.into_iter().chain([DeadReason::Refused, DeadReason::Unreachable]);
        let denied = [CallError::Forbidden, CallError::NoSuchAddress, CallError::InUse, CallError::Elsewhere];
        let denied = denied.into_iter().chain([CallError::Unsupported]).map(DeadReason::Denied);
        assert!(all.into_iter().chain(denied).all(|it| reason(reason_number(it)) == it));
        assert_eq!(reason(reason_number(DeadReason::Denied(CallError::NoResources))), DeadReason::NoResources);
        assert_eq!(reason(outcome_number(Err(DeadReason::Closed))), DeadReason::Reset);
        for cookie in [0, 1, u64::MAX, 1 << 32, 0x1234_5678_9abc_def0] {
            assert_eq!(Handle::of_cookie(cookie).cookie(), cookie);
        }
    }
}
