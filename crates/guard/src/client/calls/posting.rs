//! Calls on their way: slots of the ring, payload in its lane, and what waits in front of both.

use super::{Calls, Conn};
use crate::client::shared::Shared;
use crate::layout::{ADDRESSES_BYTES, CALL_SLOTS, Call, TRANSMIT_BYTES};
use crate::{PAYLOAD_AHEAD, SLOTS_AHEAD};

/// A call that found no room, with the addresses that are its payload if it has one.
pub(super) type Late = (Call, Option<[u8; ADDRESSES_BYTES]>);

impl Calls {
    /// Looks at how far the dataplane is.
    pub(super) fn look(&mut self) {
        let tail = self.shared.call_tail();
        if tail != self.tail {
            self.tail = tail;
            self.lane.free_to(self.ends[(tail.wrapping_sub(1) % CALL_SLOTS) as usize]);
        }
    }

    fn has_slot(&mut self) -> bool {
        if self.head.wrapping_sub(self.tail) == CALL_SLOTS {
            self.look();
        }
        self.head.wrapping_sub(self.tail) < CALL_SLOTS
    }

    /// Whether a call may be written now: there is a slot, and nothing waits for one.
    fn may_write(&mut self) -> bool {
        self.overflow.is_empty() && self.has_slot()
    }

    fn write(&mut self, call: Call) {
        self.shared.set_call(self.head, &call);
        self.ends[(self.head % CALL_SLOTS) as usize] = self.lane.end();
        self.last = Some((self.head, call));
        self.head = self.head.wrapping_add(1);
        // the same for what comes some calls later
        self.shared.claim_slot(self.head.wrapping_add(SLOTS_AHEAD));
        let length = call.length as usize;
        self.shared.claim_payload((call.offset as usize + length + PAYLOAD_AHEAD) % TRANSMIT_BYTES, length);
    }

    /// Room in the lane.
    fn place(&mut self, bytes: usize) -> Option<u32> {
        self.lane.place(bytes).or_else(|| {
            self.look();
            self.lane.place(bytes)
        })
    }

    /// Whether a call whose payload is so many bytes would find room.
    pub(in crate::client) fn has_room(&mut self, bytes: usize) -> bool {
        self.write_late();
        let has_place = self.lane.has_place(bytes) || {
            self.look();
            self.lane.has_place(bytes)
        };
        has_place && self.may_write()
    }

    /// Writes a call with these bytes for payload, for which there is a slot; false without room.
    fn put(&mut self, call: Call, parts: &[&[u8]]) -> bool {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let Some(offset) = self.place(length) else { return false };
        let mut at = offset as usize;
        for part in parts {
            self.shared.set_payload(at, part);
            at += part.len();
        }
        self.write(Call { offset, length: length as u32, ..call });
        true
    }

    /// Writes a call without payload, or keeps it behind others that wait for room.
    pub(in crate::client) fn post(&mut self, call: Call) {
        if self.may_write() {
            self.write(call);
        } else {
            self.overflow.push_back((call, None));
        }
    }

    /// The same for a call whose payload is addresses: what other connections send may fill the lane at any time, which is no reason to
    /// refuse a new one.
    pub(in crate::client) fn post_addresses(&mut self, call: Call, addresses: [u8; ADDRESSES_BYTES]) {
        if !self.post_bytes(call, &[&addresses]) {
            self.overflow.push_back((call, Some(addresses)));
        }
    }

    /// Writes a call with these bytes for payload; false without room.
    pub(in crate::client) fn post_bytes(&mut self, call: Call, parts: &[&[u8]]) -> bool {
        self.may_write() && self.put(call, parts)
    }

    /// Writes a call with payload of so many bytes, which `fill` puts in from where it is told; false without room.
    pub(super) fn post_payload(
        &mut self,
        call: Call,
        bytes: usize,
        fill: impl FnOnce(&Shared, &mut Conn, usize),
    ) -> bool {
        if !self.may_write() {
            return false;
        }
        let Some(offset) = self.place(bytes) else { return false };
        if let Some(conn) = self.conns.get_mut(call.handle.index as usize) {
            fill(&self.shared, conn, offset as usize);
        }
        self.write(Call { offset, length: bytes as u32, ..call });
        true
    }

    /// Writes what waits for room, as far as there is some, in its order.
    fn write_late(&mut self) {
        while let Some(&(call, addresses)) = self.overflow.front() {
            if !self.has_slot() {
                return;
            }
            match addresses {
                Some(addresses) if !self.put(call, &[&addresses]) => return,
                Some(_) => {}
                None => self.write(call),
            }
            self.overflow.pop_front();
        }
    }

    /// Lets the dataplane see what was written, and how many events were taken, if that has changed; whether calls were new.
    pub(in crate::client) fn publish(&mut self, events_taken: Option<u32>) -> bool {
        self.write_late();
        let is_news = self.rung_to != self.head;
        if is_news {
            self.shared.show(self.head);
        }
        // behind the calls: who sees that the events were taken sees what they came to; before the look at whether the other one sleeps,
        // which waits until all of it can be seen
        events_taken.into_iter().for_each(|taken| self.shared.set_event_tail(taken));
        if is_news {
            self.rung_to = self.head;
            self.shared.ring_if_asleep(&mut self.rung);
        }
        self.last = None;
        is_news
    }

    /// Lets the dataplane see what was written so far, and how many events were taken, without looking whether it sleeps:
    /// [`Calls::publish`] follows. Who needs long for each event is seen to take them.
    pub(in crate::client) fn show(&mut self, events_taken: u32) {
        self.last = None;
        self.shared.show(self.head);
        self.shared.set_event_tail(events_taken);
    }
}
