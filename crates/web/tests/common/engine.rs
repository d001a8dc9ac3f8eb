//! An engine of one connection: what the service sends is copied into `out`, within bounds that a test sets.

use app::{CallError, Connection, Range, Streams};
use base::Instant;

/// The handle of the one connection.
pub(crate) const CONNECTION: Connection = Connection { index: 3, generation: 5 };

/// One connection's engine.
#[derive(Debug)]
pub(crate) struct Engine {
    /// everything that was sent
    pub(crate) out: Vec<u8>,
    /// the cookie it was accepted with
    pub(crate) cookie: Option<u64>,
    /// owned bytes that are taken, altogether
    pub(crate) quota_bytes: usize,
    /// ranges that are taken until the next `sent`
    pub(crate) quota_ranges: usize,
    /// the connection was closed by the service
    pub(crate) closed: bool,
    /// the service has finished writing
    pub(crate) shut: bool,
    /// it was aborted
    pub(crate) aborted: bool,
    /// it was refused
    pub(crate) rejected: bool,
    /// octets delivered and not given back
    pub(crate) delivered: usize,
    /// the timer
    pub(crate) timer: Option<Instant>,
    /// octets taken since the last `sent`
    pub(crate) unsent: usize,
    owned: usize,
    ranges: usize,
}

impl Engine {
    /// An engine that takes everything at once; `out_bytes` is how much it can record without allocating.
    pub(crate) fn new(out_bytes: usize) -> Engine {
        Engine {
            out: Vec::with_capacity(out_bytes),
            cookie: None,
            quota_bytes: usize::MAX,
            quota_ranges: usize::MAX,
            closed: false,
            shut: false,
            aborted: false,
            rejected: false,
            delivered: 0,
            timer: None,
            unsent: 0,
            owned: 0,
            ranges: 0,
        }
    }

    /// Everything queued has gone out; how many octets that were.
    pub(crate) fn drain(&mut self) -> usize {
        (self.owned, self.ranges) = (0, 0);
        std::mem::take(&mut self.unsent)
    }

    fn check(&self, connection: Connection) -> Result<(), CallError> {
        if connection == CONNECTION && !self.aborted { Ok(()) } else { Err(CallError::NoConnection) }
    }
}

impl Streams for Engine {
    fn accept(&mut self, connection: Connection, cookie: u64) -> Result<(), CallError> {
        self.check(connection)?;
        self.cookie = Some(cookie);
        Ok(())
    }

    fn reject(&mut self, connection: Connection) -> Result<(), CallError> {
        self.check(connection)?;
        self.rejected = true;
        Ok(())
    }

    fn sendv(&mut self, connection: Connection, ranges: &[Range<'_>]) -> Result<u64, CallError> {
        self.check(connection)?;
        if self.closed || self.shut {
            return Err(CallError::WrongState);
        }
        assert!(ranges.len() <= app::SENDV_RANGES, "{} ranges in one call", ranges.len());
        let mut taken = 0;
        for range in ranges {
            assert!(range.is_valid() && range.bytes() > 0, "{range:?}");
            if self.ranges >= self.quota_ranges {
                break;
            }
            self.ranges += 1;
            let (bytes, whole) = match range {
                Range::Object { content, object, start, bytes } => {
                    (&content.bytes(*object)[*start as usize..(start + bytes) as usize], true)
                }
                Range::Owned(bytes) => {
                    let fits = bytes.len().min(self.quota_bytes.saturating_sub(self.owned));
                    self.owned += fits;
                    (&bytes[..fits], fits == bytes.len())
                }
            };
            self.out.extend_from_slice(bytes);
            self.unsent += bytes.len();
            taken += bytes.len() as u64;
            if !whole {
                break;
            }
        }
        Ok(taken)
    }

    fn room(&self, connection: Connection) -> usize {
        if self.check(connection).is_ok() { self.quota_bytes.saturating_sub(self.owned) } else { 0 }
    }

    fn recv_done(&mut self, connection: Connection, bytes: usize) -> Result<(), CallError> {
        self.check(connection)?;
        self.delivered = self.delivered.checked_sub(bytes).ok_or(CallError::TooMuch)?;
        Ok(())
    }

    fn shutdown(&mut self, connection: Connection) -> Result<(), CallError> {
        self.check(connection)?;
        self.shut = true;
        Ok(())
    }

    fn close(&mut self, connection: Connection) -> Result<(), CallError> {
        self.check(connection)?;
        self.closed = true;
        Ok(())
    }

    fn abort(&mut self, connection: Connection) -> Result<(), CallError> {
        self.check(connection)?;
        self.aborted = true;
        Ok(())
    }

    fn timer_set(&mut self, connection: Connection, at: Option<Instant>) -> Result<(), CallError> {
        self.check(connection)?;
        self.timer = at;
        Ok(())
    }
}
