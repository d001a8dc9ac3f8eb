//! A connection's turn: it learns what became of it, reads at most once, writes at most once, and finishes when that is due.

use super::{Fin, Phase, Table, keep};
use app::{Connection, DeadReason, Service, Streams};
use mio::net::TcpStream;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use std::io::{self, IoSlice, Read};
use std::net::Shutdown;
use std::time::Duration;

/// So long at most a connection whose last byte the kernel has taken waits for the peer's end.
const LINGER_DONE: Duration = Duration::from_secs(5);

impl Table {
    pub(super) fn turn_of<S: Service>(&mut self, handle: Connection, service: &mut S, scratch: &mut [u8]) {
        if !self.learn(handle, service) || self.end_if_broken(handle) {
            return;
        }
        self.read(handle, service, scratch);
        self.write(handle, service);
        self.close_if_drained(handle);
        let Ok(conn) = self.conn(handle) else { return };
        if conn.fin_is_due() {
            if conn.eof {
                self.end(handle, DeadReason::Closed, false);
            } else if conn.fin != Fin::Sent && conn.stream.shutdown(Shutdown::Write).is_err() {
                // it broke, and the kernel's word of that has not come yet
                let reason = conn.stream.take_error().ok().flatten().map_or(DeadReason::Reset, |error| fate(&error));
                self.end(handle, reason, false);
            } else if conn.phase == Phase::Closing {
                (conn.phase, conn.fin) = (Phase::Lingering, Fin::Sent);
                self.schedule(handle, self.now + self.limits.linger.min(LINGER_DONE));
            } else {
                conn.fin = Fin::Sent;
            }
        }
    }

    /// Ends a connection that broke where no read comes to it: behind a closed window, or behind the peer's end. Whether it did.
    fn end_if_broken(&mut self, handle: Connection) -> bool {
        let Ok(conn) = self.conn(handle) else { return true };
        // what the peer sent before is told first, as far as the window goes
        if !conn.broken || conn.reads() {
            return false;
        }
        conn.broken = false;
        // without an error the event was meant for who had the place before
        let Some(error) = conn.stream.take_error().ok().flatten() else { return false };
        self.end(handle, fate(&error), false);
        true
    }

    fn read<S: Service>(&mut self, handle: Connection, service: &mut S, scratch: &mut [u8]) {
        let now = self.now;
        let Ok(conn) = self.conn(handle) else { return };
        if !conn.reads() {
            return;
        }
        let open = conn.phase == Phase::Open;
        let room = if open { conn.window_bytes - conn.delivered } else { scratch.len() };
        let room = room.min(scratch.len());
        let cookie = conn.cookie;
        match conn.stream.read(&mut scratch[..room]) {
            Ok(0) if open => {
                conn.eof = true;
                service.eof(now, self, handle, cookie);
                if self.conn(handle).is_ok_and(|conn| conn.phase == Phase::Open && conn.fin == Fin::Sent) {
                    self.end(handle, DeadReason::Closed, false);
                }
            }
            // what is queued still goes out
            Ok(0) if conn.phase == Phase::Closing => conn.eof = true,
            Ok(0) => self.end(handle, DeadReason::Closed, false),
            Ok(n) => {
                // a short read has emptied the socket, unless the end or something urgent was announced
                conn.readable = n == room || conn.hup || conn.urgent;
                if open {
                    conn.delivered += n;
                    conn.used = true;
                    self.counters.stream_received.add(n as u64);
                    service.recv(now, self, handle, cookie, &scratch[..n]);
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => (conn.readable, conn.urgent) = (false, false),
                io::ErrorKind::Interrupted => {}
                _ => self.end(handle, fate(&error), false),
            },
        }
    }

    fn write<S: Service>(&mut self, handle: Connection, service: &mut S) {
        let now = self.now;
        let Table { slots, versions, spare, counters, queued_bytes, .. } = self;
        let Some(conn) = slots.get_mut(handle.index as usize).and_then(|slot| slot.conn.as_mut()) else { return };
        if conn.queue.is_empty() || !conn.writable {
            return;
        }
        let (sent, offered) = {
            let slices = conn.queue.slices(versions);
            let offered: usize = slices.iter().map(|slice| slice.len()).sum();
            (send(&conn.stream, &slices, (offered as u64) < conn.queue.bytes()), offered)
        };
        match sent {
            Ok(n) => {
                counters.stream_writes.add(1);
                counters.stream_sent.add(n as u64);
                // a short write has filled the socket; the kernel tells when there is room again
                conn.writable = n == offered;
                let owned = conn.queue.owned_bytes();
                conn.queue.advance(n, versions);
                *queued_bytes -= owned - conn.queue.owned_bytes();
                if conn.queue.is_empty() {
                    keep(spare, std::mem::take(&mut conn.queue));
                }
                let (phase, cookie) = (conn.phase, conn.cookie);
                if phase == Phase::Open && n > 0 {
                    let room = self.room(handle);
                    service.sent(now, self, handle, cookie, n, room);
                } else if n > 0 {
                    // who takes what is queued, however slowly, is not cut off
                    self.schedule(handle, now + self.limits.linger);
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => conn.writable = false,
                io::ErrorKind::Interrupted => {}
                _ => self.end(handle, fate(&error), false),
            },
        }
    }
}

/// One vectored write. `more`: something is queued behind these slices, so the last segment need not go yet.
fn send(stream: &TcpStream, slices: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
    let flags = if more { SendFlags::NOSIGNAL | SendFlags::MORE } else { SendFlags::NOSIGNAL };
    Ok(rustix::net::sendmsg(stream, slices, &mut SendAncillaryBuffer::default(), flags)?)
}

/// What an error makes of a connection that there was.
fn fate(error: &io::Error) -> DeadReason {
    if error.kind() == io::ErrorKind::TimedOut { DeadReason::TimedOut } else { DeadReason::Reset }
}
