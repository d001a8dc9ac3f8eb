//! Telling: events become slots, and what finds no room waits by connection, in the order in which the connections came to wait.

use super::Remote;
use super::table::{Knock, Waiting};
use crate::layout::{Event, EventKind, Handle, SEND_BYTES};

/// Connections in the line that have their turn in a cycle, whether anything waits of them still or not.
const WAITING_TURNS: usize = 256;

impl Remote {
    /// Tells an event of a connection, or keeps it: `keep` notes it with what waits already.
    pub(super) fn tell(&mut self, index: u32, event: Event, keep: impl FnOnce(&mut Waiting)) {
        let Some(slot) = self.table.at(index) else { return };
        if slot.waiting.is_none() && self.events.put(&self.channel, &self.stats, event, &[]) {
            return;
        }
        self.waiting.push(index);
        keep(slot.waiting.get_or_insert_default());
    }

    /// Tells that a connection has come, or keeps it: what it brings waits behind it, and its peer's window closes.
    pub(super) fn tell_knock(&mut self, index: u32, knock: Knock) {
        let handle = self.table.handle(index);
        let Some(slot) = self.table.at(index) else { return };
        if !self.events.put(&self.channel, &self.stats, knock.event(handle), &[&knock.addresses]) {
            self.waiting.push(index);
            slot.waiting.get_or_insert_default().knock = Some(knock);
        }
    }

    /// Tells that the peer has taken so many bytes.
    pub(super) fn tell_sent(&mut self, handle: Handle, bytes: u64) {
        let event = Event { bytes, ..Event::plain(EventKind::Sent, handle) };
        self.tell(handle.index, event, |waiting| *waiting.sent.get_or_insert(0) += bytes);
    }

    /// Tells bytes, or keeps them; false when that would be too much.
    pub(super) fn tell_bytes(&mut self, index: u32, mut bytes: &[u8]) -> bool {
        let handle = self.table.handle(index);
        let Some(slot) = self.table.at(index) else { return true };
        while slot.waiting.is_none() && !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(SEND_BYTES));
            if !self.events.put(&self.channel, &self.stats, Event::plain(EventKind::Recv, handle), &[now]) {
                break;
            }
            slot.told += now.len() as u64;
            bytes = rest;
        }
        if bytes.is_empty() {
            return true;
        }
        if self.held_bytes + bytes.len() as u64 > self.options.held_bytes {
            return false;
        }
        self.held_bytes += bytes.len() as u64;
        self.waiting.push(index);
        slot.waiting.get_or_insert_default().bytes.extend(bytes);
        true
    }

    /// Tells what had to wait, as far as there is room, of a bounded number of connections.
    pub(super) fn tell_waiting(&mut self) {
        self.cut_short = false;
        for _ in 0..WAITING_TURNS {
            let Some(index) = self.waiting.front() else { return };
            if !self.tell_of(index) {
                return;
            }
            self.waiting.pop();
        }
        self.cut_short = !self.waiting.is_empty();
    }

    /// Tells what waits of the connection at a place, if anything does; false when there was no room for all of it.
    fn tell_of(&mut self, index: u32) -> bool {
        let Remote { table, events, channel, stats, held_bytes, .. } = self;
        let handle = table.handle(index);
        let Some(slot) = table.at(index) else { return true };
        let Some(waiting) = slot.waiting.as_mut() else { return true };
        let mut put = |event: Event, payload: &[u8]| events.put(channel, stats, event, &[payload]);
        let plain = |kind| Event::plain(kind, handle);
        if let Some(knock) = &waiting.knock {
            if !put(knock.event(handle), &knock.addresses) {
                return false;
            }
            waiting.knock = None;
        }
        if let Some(detail) = waiting.connected {
            if !put(Event { detail, ..plain(EventKind::Connected) }, &[]) {
                return false;
            }
            waiting.connected = None;
            if detail != 0 {
                self.forget(index);
                return true;
            }
        }
        while !waiting.bytes.is_empty() {
            let part = waiting.bytes.as_slices().0;
            let part = &part[..part.len().min(SEND_BYTES)];
            if !put(plain(EventKind::Recv), part) {
                return false;
            }
            let bytes = part.len();
            waiting.bytes.drain(..bytes);
            slot.told += bytes as u64;
            *held_bytes -= bytes as u64;
        }
        if let Some(bytes) = waiting.sent
            && !put(Event { bytes, ..plain(EventKind::Sent) }, &[])
        {
            return false;
        }
        waiting.sent = None;
        if waiting.eof && !put(plain(EventKind::Eof), &[]) {
            return false;
        }
        waiting.eof = false;
        if let Some(bytes) = waiting.timer
            && !put(Event { bytes, ..plain(EventKind::Timer) }, &[])
        {
            return false;
        }
        waiting.timer = None;
        if let Some(detail) = waiting.dead {
            if !put(Event { detail, ..plain(EventKind::Dead) }, &[]) {
                return false;
            }
            self.forget(index);
        } else {
            slot.waiting = None;
        }
        true
    }
}

impl Knock {
    fn event(&self, handle: Handle) -> Event {
        Event { listener: self.listener.0, ..Event::plain(EventKind::Knock, handle) }
    }
}
