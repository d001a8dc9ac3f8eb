//! Buffers for what has come of a request and must wait. Most connections keep nothing, so that a few buffers serve many.

use crate::{Bound, Claim, Places};

const NO_PLACE: u32 = u32::MAX;

/// What one connection keeps in [`Buffers`]: nothing at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    place: u32,
    bytes: u32,
}

impl Kept {
    /// Nothing, and no buffer.
    pub const NONE: Kept = Kept { place: NO_PLACE, bytes: 0 };

    /// Octets that are kept.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Whether there is a buffer.
    #[inline]
    pub fn has_buffer(&self) -> bool {
        self.place != NO_PLACE
    }
}

impl Default for Kept {
    fn default() -> Kept {
        Kept::NONE
    }
}

/// What a connection keeps, on the way to another thread.
#[derive(Debug)]
pub struct KeptAway {
    bytes: Box<[u8]>,
    claim: Claim,
}

/// Buffers that are kept when nobody needs them.
const SPARE: usize = 64;
/// Places that are looked at for buffers to be dropped when one is given back.
const LOOKS: usize = 8;

/// A place: its octets, none before it is needed first and after they were dropped.
#[derive(Debug, Default)]
struct Buffer {
    octets: Box<[u8]>,
    taken: bool,
}

/// One thread's buffers, of one size, within a bound over all threads. Each is made when it is needed, and kept for the next who needs
/// one. Of those that are more than 64, and than four times those in use, some are dropped with each that is given back: the bound is of
/// memory, so what one thread needed once is not its for ever.
///
/// ```
/// use app::{Bound, Buffers, Kept};
///
/// let (mut buffers, mut kept) = (Buffers::new(Bound::new(1), 8), Kept::NONE);
/// assert!(buffers.take(&mut kept) && !buffers.take(&mut Kept::default()));
/// // what does not fit comes back
/// assert_eq!(buffers.append(&mut kept, b"get a\r\nge"), b"e");
/// buffers.consume(&mut kept, 7);
/// assert_eq!(buffers.octets(kept), b"g");
/// // a buffer that holds nothing is anybody's
/// buffers.consume(&mut kept, 1);
/// assert_eq!((kept, buffers.used()), (Kept::NONE, 0));
/// ```
#[derive(Debug)]
pub struct Buffers {
    each_bytes: usize,
    all: Vec<Buffer>,
    /// how many of them have octets
    made: usize,
    /// where the next one to be dropped is looked for
    look_at: usize,
    places: Places,
}

impl Buffers {
    /// Buffers of so many octets, none of them made.
    ///
    /// # Panics
    ///
    /// If a buffer would have 4 GiB or more.
    pub fn new(bound: Bound, each_bytes: usize) -> Buffers {
        assert!(u32::try_from(each_bytes).is_ok(), "a buffer of {each_bytes} octets");
        Buffers { each_bytes, all: bound.vec(), made: 0, look_at: 0, places: Places::new(bound) }
    }

    /// How many are in use.
    pub fn used(&self) -> usize {
        self.places.used()
    }

    /// Gives a buffer to whoever has none; false when all are in use.
    pub fn take(&mut self, kept: &mut Kept) -> bool {
        let place = self.places.take();
        self.give_out(kept, place)
    }

    fn give_out(&mut self, kept: &mut Kept, place: Option<u32>) -> bool {
        let Some(place) = place else { return false };
        if place as usize == self.all.len() {
            self.all.push(Buffer::default());
        }
        let buffer = &mut self.all[place as usize];
        if buffer.octets.len() != self.each_bytes {
            buffer.octets = vec![0; self.each_bytes].into();
            self.made += 1;
        }
        buffer.taken = true;
        *kept = Kept { place, bytes: 0 };
        true
    }

    /// Takes a buffer back, if there is one, and forgets what is in it.
    pub fn give(&mut self, kept: &mut Kept) {
        if kept.has_buffer() {
            self.places.give(kept.place);
            self.let_go(kept);
        }
    }

    /// The place is nobody's any more.
    fn let_go(&mut self, kept: &mut Kept) {
        self.all[kept.place as usize].taken = false;
        *kept = Kept::NONE;
        let most = SPARE.max(4 * self.used());
        if self.made > most {
            self.drop_some(most);
        }
    }

    /// Drops buffers that nobody has, as many as are soon found, until there are no more than `most`. Whose turn it is goes round: the
    /// places given back last are taken first, so always to drop those would be to make them again at once.
    #[cold]
    fn drop_some(&mut self, most: usize) {
        for _ in 0..LOOKS {
            self.look_at = (self.look_at + 1) % self.all.len();
            let buffer = &mut self.all[self.look_at];
            if !buffer.taken && !buffer.octets.is_empty() {
                buffer.octets = Box::default();
                self.made -= 1;
            }
            if self.made <= most {
                return;
            }
        }
    }

    /// What is kept.
    #[inline]
    pub fn octets(&self, kept: Kept) -> &[u8] {
        if kept.has_buffer() { &self.all[kept.place as usize].octets[..kept.bytes()] } else { &[] }
    }

    /// Adds octets behind those that are kept; what did not fit. All of them where there is no buffer.
    pub fn append<'b>(&mut self, kept: &mut Kept, bytes: &'b [u8]) -> &'b [u8] {
        if !kept.has_buffer() {
            return bytes;
        }
        let room = &mut self.all[kept.place as usize].octets[kept.bytes()..];
        let (fits, rest) = bytes.split_at(bytes.len().min(room.len()));
        room[..fits.len()].copy_from_slice(fits);
        kept.bytes += fits.len() as u32;
        rest
    }

    /// Drops so many of the first octets; where none are left, takes the buffer back.
    pub fn consume(&mut self, kept: &mut Kept, used: usize) {
        if used == kept.bytes() {
            return self.give(kept);
        }
        if used > 0 {
            self.all[kept.place as usize].octets.copy_within(used..kept.bytes(), 0);
            kept.bytes -= used as u32;
        }
    }

    /// Takes a buffer back, if there is one, with what is in it.
    pub fn take_out(&mut self, kept: &mut Kept) -> Option<KeptAway> {
        if !kept.has_buffer() {
            return None;
        }
        let bytes = self.octets(*kept).into();
        let claim = self.places.depart(kept.place);
        self.let_go(kept);
        Some(KeptAway { bytes, claim })
    }

    /// Gives a buffer with what came from another thread; false when there is none.
    pub fn put_in(&mut self, kept: &mut Kept, away: KeptAway) -> bool {
        let place = self.places.arrive(away.claim);
        self.give_out(kept, place) && self.append(kept, &away.bytes).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_goes_to_another_thread_and_back_within_one_bound() {
        let bound = Bound::new(2);
        let [mut here, mut there] = [(); 2].map(|()| Buffers::new(bound.clone(), 16));
        let [mut kept, mut other] = [Kept::NONE; 2];
        assert!(here.take_out(&mut kept).is_none());
        assert!(here.take(&mut kept) && here.take(&mut other));
        assert_eq!(here.append(&mut kept, b"a request's head"), b"");
        let away = here.take_out(&mut kept).unwrap();
        assert_eq!((kept, here.used()), (Kept::NONE, 1));
        // under way it counts, too
        assert!(!there.take(&mut kept));
        assert!(there.put_in(&mut kept, away));
        assert_eq!((there.octets(kept), there.used()), (&b"a request's head"[..], 1));
        assert!(!there.take(&mut Kept::default()));
        // lost on the way
        drop(there.take_out(&mut kept));
        assert!(there.take(&mut kept));
        assert_eq!(there.octets(kept), b"");
    }

    #[test]
    fn what_was_needed_once_is_not_kept_for_ever() {
        let mut buffers = Buffers::new(Bound::new(1000), 16);
        let mut all = [Kept::NONE; 1000];
        assert!(all.iter_mut().all(|kept| buffers.take(kept) && buffers.append(kept, b"in use").is_empty()));
        let (few, others) = all.split_at_mut(20);
        others.iter_mut().for_each(|kept| buffers.give(kept));
        // though nobody comes any more
        let made = buffers.all.iter().filter(|buffer| !buffer.octets.is_empty()).count();
        assert_eq!((made, buffers.made), (80, 80), "four times those in use");
        assert!(few.iter().all(|kept| buffers.octets(*kept) == b"in use"));
        // and where few come and go none is made anew
        for _ in 0..1000 {
            let mut kept = Kept::NONE;
            assert!(buffers.take(&mut kept));
            assert_eq!(buffers.made, 80);
            buffers.give(&mut kept);
        }
    }

    #[test]
    fn without_a_buffer_nothing_is_kept() {
        let mut buffers = Buffers::new(Bound::new(0), 16);
        let mut kept = Kept::default();
        assert!(!buffers.take(&mut kept));
        assert_eq!(buffers.append(&mut kept, b"all of it"), b"all of it");
        assert_eq!(buffers.octets(kept), b"");
        buffers.consume(&mut kept, 0);
        buffers.give(&mut kept);
        assert_eq!((kept.bytes(), buffers.used()), (0, 0));
    }

    #[test]
    fn more_than_a_buffer_of_this_thread_holds_does_not_arrive() {
        let mut wide = Buffers::new(Bound::new(1), 16);
        let mut narrow = Buffers::new(Bound::new(1), 4);
        let mut kept = Kept::NONE;
        assert!(wide.take(&mut kept));
        assert_eq!(wide.append(&mut kept, b"too long"), b"");
        let away = wide.take_out(&mut kept).unwrap();
        assert!(!narrow.put_in(&mut kept, away));
        narrow.give(&mut kept);
        assert_eq!(narrow.used(), 0);
    }
}
