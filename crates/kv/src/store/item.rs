//! An item in its cell.
//!
//! ```text
//!  0        4        8        16       20       24       28       32       40   41    42    43    44       48
//! | newer  | older  | cas    | expiry | read   | bytes  | flags  | hash   |key | state|queue|heat | chunk  | key, value
//! ```
//!
//! `newer` and `older` are the neighbours in the item's queue, `expiry` and `read` are seconds ([`crate::clock`]), `bytes` is the
//! value's length, `key` the key's, `heat` how often it was asked for, up to 3, `chunk` the first chunk of a large value, which stands
//! in no cell. All numbers are little endian.

pub(crate) const HEADER_BYTES: usize = 48;

/// It is in the index and in a queue.
pub(crate) const LINKED: u8 = 1;
/// It was asked for.
pub(crate) const FETCHED: u8 = 2;
/// Somebody said that it is out of date.
pub(crate) const STALE: u8 = 4;
/// Somebody was told to make it anew.
pub(crate) const WON: u8 = 8;
/// Its key came in base64.
pub(crate) const BINARY: u8 = 16;
/// Its value stands in chunks.
pub(crate) const LARGE: u8 = 32;
/// It is used, linked or not.
pub(crate) const USED: u8 = 64;
/// It stands among those that have proved themselves.
pub(crate) const MAIN: u8 = 128;

/// Reading an item's cell.
#[derive(Clone, Copy)]
pub(crate) struct View<'a>(pub(crate) &'a [u8]);

macro_rules! number {
    ($name:ident, $set:ident, $kind:ty, $at:expr, $doc:literal) => {
        impl View<'_> {
            #[doc = $doc]
            #[inline]
            pub(crate) fn $name(self) -> $kind {
                const BYTES: usize = size_of::<$kind>();
                <$kind>::from_le_bytes(*self.0[$at..].first_chunk::<BYTES>().expect("cells hold headers"))
            }
        }
        #[inline]
        pub(crate) fn $set(cell: &mut [u8], value: $kind) {
            cell[$at..$at + size_of::<$kind>()].copy_from_slice(&value.to_le_bytes());
        }
    };
}

number!(newer, set_newer, u32, 0, "The next in its queue, towards the head.");
number!(older, set_older, u32, 4, "The next in its queue, towards the tail.");
number!(cas, set_cas, u64, 8, "Changes with every store.");
number!(expiry, set_expiry, u32, 16, "The second at which it dies; 0 is never.");
number!(read, set_read, u32, 20, "The second in which it was stored or asked for last.");
number!(bytes, set_bytes, u32, 24, "Bytes of the value.");
number!(flags, set_flags, u32, 28, "The client's.");
number!(hash, set_hash, u64, 32, "Of the key.");
number!(key_bytes, set_key_bytes, u8, 40, "Bytes of the key.");
number!(state, set_state, u8, 41, "See above.");
number!(queue, set_queue, u8, 42, "Whose turn to be evicted it shares.");
number!(heat, set_heat, u8, 43, "How often it was asked for, up to 3.");
number!(chunk, set_chunk, u32, 44, "The first chunk of a large value.");

impl<'a> View<'a> {
    /// Whether all of these are set.
    #[inline]
    pub(crate) fn is(self, state: u8) -> bool {
        self.state() & state == state
    }

    /// The key.
    #[inline]
    pub(crate) fn key(self) -> &'a [u8] {
        &self.0[HEADER_BYTES..HEADER_BYTES + usize::from(self.key_bytes())]
    }

    /// The value, unless it is large.
    #[inline]
    pub(crate) fn value(self) -> &'a [u8] {
        let at = HEADER_BYTES + usize::from(self.key_bytes());
        &self.0[at..at + self.bytes() as usize]
    }
}

/// Sets or clears bits of the state.
#[inline]
pub(crate) fn mark(cell: &mut [u8], state: u8, on: bool) {
    let old = View(cell).state();
    set_state(cell, if on { old | state } else { old & !state });
}

/// The value, to be written.
pub(crate) fn value_mut(cell: &mut [u8]) -> &mut [u8] {
    let (at, bytes) = (HEADER_BYTES + usize::from(View(cell).key_bytes()), View(cell).bytes() as usize);
    &mut cell[at..at + bytes]
}
