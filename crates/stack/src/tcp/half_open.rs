//! Handshakes that peers began: what is remembered between SYN and ACK (RFC 9293 SYN-RECEIVED, RFC 4987), a quarter of a
//! connection block.

use super::cookie::Offer;
use super::hop::Hop;
use super::tuple::Tuple;
use app::Listener;
use base::wheel::Timer;
use base::{Instant, Seq};

/// One handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HalfOpen {
    pub(crate) tuple: Tuple,
    pub(crate) hop: Hop,
    /// our initial number
    pub(crate) iss: Seq,
    /// the peer's
    pub(crate) irs: Seq,
    pub(crate) offer: Offer,
    /// the peer's clock, if timestamps were agreed on
    pub(crate) ts_recent: Option<u32>,
    pub(crate) listener: Listener,
    /// of the listener
    pub(crate) window_bytes: u32,
    /// when the SYN-ACK went out first
    pub(crate) began_at: Instant,
    /// how often it was sent again
    pub(crate) tries: u8,
    /// the SYN came again and was answered again
    pub(crate) repeated: bool,
    pub(crate) timer: Option<Timer>,
}

const _: () = assert!(size_of::<HalfOpen>() <= 120);

/// All of them.
#[derive(Debug)]
pub(crate) struct HalfOpens {
    entries: Vec<Option<HalfOpen>>,
    free: Vec<u32>,
}

impl HalfOpens {
    pub(crate) fn new(entries: usize) -> HalfOpens {
        HalfOpens { entries: base::huge::table(entries, |_| None), free: (0..entries as u32).rev().collect() }
    }

    /// Handshakes under way.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    #[inline]
    pub(crate) fn is(&self, index: u32, tuple: &Tuple) -> bool {
        self.get(index).is_some_and(|entry| entry.tuple == *tuple)
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&HalfOpen> {
        self.entries.get(index as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut HalfOpen> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    /// Where the next entry would stand; None when the table is full.
    pub(crate) fn next(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Takes an entry in, at the place that [`HalfOpens::next`] told.
    pub(crate) fn insert(&mut self, entry: HalfOpen) {
        if let Some(index) = self.free.pop() {
            self.entries[index as usize] = Some(entry);
        }
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<HalfOpen> {
        let entry = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(entry)
    }
}
