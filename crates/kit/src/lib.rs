//! Conveniences over the application API, for services that would otherwise keep the same books again and again.
//!
//! [`Hub`] is a [`Service`](app::Service) that keeps a value of yours, a [`Talk`], for every connection, and tells it what happens. What a
//! talk does it does by [`With`], about its own line or another: it *dials*; it looks at what has come and *consumes* as much as it has
//! dealt with, and what it leaves keeps the peer's window closed; it *sends*, which is gathered over the cycle and handed to the engine
//! as one call a connection; it sets *marks*, and is told when what was sent before one was taken by the peer; it sets *timers*. This is
//! what libix gives to IX's applications (ixev), without callbacks that outlive what they point at: a line is a number, and one
//! that is gone is said to be gone.
//!
//! [`Background`] is a few threads of the application's own, which are not elastic and may block: jobs go there, and what they made of
//! them comes back in [`woken`](app::Service::woken).
//!
//! Left out: datagrams, which need no books; connections that move between threads (a hub's stay where they are).

#![forbid(unsafe_code)]

mod background;
mod hub;
mod with;

pub use background::{Background, Panicked};
pub use hub::{Event, Hub, Line, Talk};
pub use with::With;

/// Bytes that a line gathers at most before the engine has taken some.
pub const LINE_BYTES: usize = 256 << 10;
