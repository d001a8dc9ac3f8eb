//! A connection goes to another thread, or comes from one.
//!
//! Only one on which nothing is queued moves: ranges stand in the thread's own versions, and what is queued has its end near. What the
//! peer has sent meanwhile lies in the kernel, which tells the new thread of it when it registers the socket.
//!
//! Left out: holding the new thread exactly to its most connections. Whoever gives looks at that, and others may be faster; the sum over all
//! threads stays what it was.

use super::{Conn, Fin, Phase, Slot, Table, WATCHED, keep, reset_on_close};
use app::{Addresses, Connection, Luggage, Service};
use base::Instant;
use mio::net::TcpStream;
use mio::{Registry, Token};

/// A connection on its way. Whoever drops one has it reset.
pub(crate) struct Parcel {
    conn: Option<Box<Moved>>,
}

struct Moved {
    stream: TcpStream,
    luggage: Luggage,
    addresses: Addresses,
    service: u8,
    window_bytes: usize,
    delivered: usize,
    used: bool,
    hup: bool,
    deadline: Option<Instant>,
    /// when it left: for nobody may it be earlier
    at: Instant,
}

impl std::fmt::Debug for Parcel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Parcel({:?})", self.conn.as_ref().map(|moved| moved.addresses))
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        if let Some(moved) = &self.conn {
            reset_on_close(&moved.stream);
        }
    }
}

impl Conn {
    /// Whether it may go to another thread.
    fn is_at_rest(&self) -> bool {
        self.phase == Phase::Open && self.queue.is_empty() && self.fin == Fin::No && !self.eof && !self.starved
    }
}

impl Table {
    /// How many places there are, taken or not.
    pub(crate) fn places(&self) -> usize {
        self.slots.len()
    }

    /// Takes out the connection at a place, if there is one that may go and `goes`.
    pub(crate) fn depart<S: Service>(
        &mut self,
        index: usize,
        goes: impl Fn(&Addresses) -> bool,
        registry: &Registry,
        service: &mut S,
    ) -> Option<Parcel> {
        let slot = self.slots.get_mut(index)?;
        let mut conn = slot.conn.take_if(|conn| conn.is_at_rest() && goes(&conn.addresses))?;
        let handle = Connection { index: index as u32, generation: slot.generation };
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(handle.index);
        self.forget_source(conn.source());
        keep(&mut self.spare, std::mem::take(&mut conn.queue));
        self.counters.connections.set(self.len() as u64);
        let luggage = service.depart(self.now, handle, conn.cookie);
        // refused only when it is not registered, and then nothing of it is told here either
        let _ = registry.deregister(&mut conn.stream);
        let Conn { stream, addresses, service: counted_as, window_bytes, delivered, used, hup, deadline, .. } = conn;
        let at = self.now;
        let service = counted_as;
        let moved = Moved { stream, luggage, addresses, service, window_bytes, delivered, used, hup, deadline, at };
        Some(Parcel { conn: Some(Box::new(moved)) })
    }

    /// Puts in a connection; whether there was room. `token`: of its place, [`Table::next_index`].
    pub(crate) fn arrive<S: Service>(
        &mut self,
        mut parcel: Parcel,
        (registry, token): (&Registry, Token),
        service: &mut S,
    ) -> bool {
        let Some(moved) = parcel.conn.take() else { return false };
        let Moved {
            mut stream,
            luggage,
            addresses,
            service: counted_as,
            window_bytes,
            delivered,
            used,
            hup,
            deadline,
            at,
        } = *moved;
        if registry.register(&mut stream, token, WATCHED).is_err() {
            reset_on_close(&stream);
            return false;
        }
        let conn = Conn {
            service: counted_as,
            used,
            hup,
            delivered,
            phase: Phase::Open,
            ..Conn::new(stream, addresses, window_bytes)
        };
        let handle = self.insert(conn);
        // what has happened to it is not in the future of what happens next
        self.now = self.now.max(at);
        match service.arrive(self.now, self, handle, luggage) {
            Some(cookie) => {
                if let Ok(conn) = self.conn(handle) {
                    conn.cookie = cookie;
                }
                if let Some(at) = deadline {
                    // the service has set no timer but the one that it had
                    self.schedule(handle, at);
                }
                self.make_ready(handle.index);
                self.close_if_drained(handle);
                true
            }
            None => {
                self.remove_silently(handle);
                false
            }
        }
    }

    /// Resets a connection that the service does not know.
    fn remove_silently(&mut self, handle: Connection) {
        let Some(Slot { generation, conn: slot @ Some(_) }) = self.slots.get_mut(handle.index as usize) else { return };
        if *generation != handle.generation {
            return;
        }
        let Some(mut conn) = slot.take() else { return };
        *generation = generation.wrapping_add(1);
        self.free.push(handle.index);
        reset_on_close(&conn.stream);
        self.forget_source(conn.source());
        self.queued_bytes -= conn.queue.owned_bytes();
        conn.queue.clear(&mut self.versions);
        keep(&mut self.spare, conn.queue);
        self.counters.ended.add(1);
        self.counters.connections.set(self.len() as u64);
    }
}

#[cfg(test)]
mod tests;
