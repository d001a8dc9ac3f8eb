//! What the application begins itself: connections that it asks for, datagrams that answer none or answer late, alarms.
//!
//! Places for connections that are asked for are this side's to choose, so the handle is there at once; what became of it is told by
//! an event. Whom the operator permits stands in the shared memory, so the answer to that is there at once, too; the dataplane
//! judges by a list of its own.

use super::calls::{Calls, Conn, Phase};
use crate::layout::{self, ASKING, Call, CallKind, DATAGRAMS, Handle, NEVER, SEND_BYTES, encode_addresses};
use crate::permits::Grant;
use app::{ALARMS, Addresses, CallError, Connection, DeadReason, Listener, judge_ends};
use base::Instant;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

/// Who asked, and where.
type Asker = (Listener, Addresses);

/// What is known of it here.
pub(super) struct Outward {
    grant: Grant,
    /// places for connections that are asked for
    free: Vec<u32>,
    /// those that were not told of
    asking: u32,
    generation: u32,
    /// alarms with the times that they are set to
    alarms: HashMap<u64, Instant>,
    /// questions that the service left unanswered, with the longest answer
    questions: HashMap<Asker, VecDeque<(Handle, usize)>>,
    /// the same in their order
    asked: VecDeque<(Asker, Handle)>,
}

impl Outward {
    pub(super) fn new(grant: Grant) -> Outward {
        let places = grant.connections..grant.connections + grant.asked();
        Outward {
            free: places.rev().collect(),
            grant,
            asking: 0,
            generation: 0,
            alarms: HashMap::new(),
            questions: HashMap::new(),
            asked: VecDeque::new(),
        }
    }

    /// Keeps a question that may be answered later; the oldest is forgotten for it when there are too many.
    pub(super) fn note(&mut self, asker: Asker, handle: Handle, most_bytes: usize) {
        if self.asked.len() == DATAGRAMS as usize
            && let Some((asker, handle)) = self.asked.pop_front()
        {
            self.forget(&asker, handle);
        }
        self.asked.push_back((asker, handle));
        self.questions.entry(asker).or_default().push_back((handle, most_bytes));
    }

    /// The oldest question of an asker that an answer of so many bytes may be for.
    ///
    /// # Errors
    /// [`CallError::Forbidden`]: there is none of its. [`CallError::TooLong`]: it is longer than an answer to any of them may be.
    fn question(&self, asker: &Asker, bytes: usize) -> Result<Handle, CallError> {
        let handles = self.questions.get(asker).ok_or(CallError::Forbidden)?;
        let fits = handles.iter().find(|(_, most_bytes)| bytes <= *most_bytes);
        fits.map(|(handle, _)| *handle).ok_or(CallError::TooLong)
    }

    /// A question was answered.
    fn forget(&mut self, asker: &Asker, handle: Handle) {
        let Some(handles) = self.questions.get_mut(asker) else { return };
        if let Some(at) = handles.iter().position(|(known, _)| *known == handle) {
            handles.remove(at);
        }
        if handles.is_empty() {
            self.questions.remove(asker);
        }
    }
}

impl Calls {
    pub(super) fn ask(
        &mut self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        cookie: u64,
    ) -> Result<Connection, CallError> {
        judge_ends(local, remote)?;
        if !self.outward.grant.allows(remote) {
            return Err(CallError::Forbidden);
        }
        if self.outward.asking >= ASKING {
            return Err(CallError::NoResources);
        }
        let index = self.outward.free.pop().ok_or(CallError::NoResources)?;
        self.outward.generation = self.outward.generation.wrapping_add(1);
        let generation = self.outward.generation;
        let connection = Connection { index, generation };
        let chosen = SocketAddr::from(([0u16; 8], 0));
        let ends = encode_addresses(&Addresses { local: local.unwrap_or(chosen), peer: remote });
        let call = self.call(CallKind::Connect, connection);
        self.post_addresses(call, ends);
        self.outward.asking += 1;
        self.set_conn(index, Conn::asked(generation, cookie));
        Ok(connection)
    }

    /// What became of a connection that was asked for, with its cookie; None for one that was given up and is there all the same,
    /// whose end will be told.
    pub(super) fn connected(
        &mut self,
        connection: Connection,
        detail: u8,
    ) -> Option<(u64, Result<Connection, DeadReason>)> {
        let conn = self.known(connection)?;
        let (phase, cookie) = (conn.phase, conn.cookie);
        match (phase, detail) {
            (Phase::Asking, 0) => {
                conn.phase = Phase::Open;
                self.outward.asking -= 1;
                return Some((cookie, Ok(connection)));
            }
            (Phase::GivenUp, 0) => return None,
            (Phase::Asking | Phase::GivenUp, _) => {}
            _ => return None,
        }
        let reason = if phase == Phase::GivenUp { DeadReason::Aborted } else { layout::reason(detail) };
        self.outward.asking -= 1;
        self.forget(connection);
        Some((cookie, Err(reason)))
    }

    /// The death of a connection that was given up when it was there already: what it is told as.
    pub(super) fn dead_given_up(&mut self, connection: Connection) -> Option<u64> {
        let conn = self.known(connection).filter(|conn| conn.phase == Phase::GivenUp)?;
        let cookie = conn.cookie;
        self.outward.asking -= 1;
        self.forget(connection);
        Some(cookie)
    }

    /// A place that was freed may be asked for again.
    pub(super) fn free_place(&mut self, index: u32) {
        if index >= self.outward.grant.connections {
            self.outward.free.push(index);
        }
    }

    pub(super) fn send_datagram(&mut self, listener: Listener, ends: Addresses, bytes: &[u8]) -> Result<(), CallError> {
        judge_ends(Some(ends.local), ends.peer)?;
        if !self.outward.grant.listeners.contains(&listener.0) {
            return Err(CallError::NoSuchAddress);
        }
        if bytes.len() > SEND_BYTES {
            return Err(CallError::TooLong);
        }
        let asker = (listener, ends);
        let sent = match self.outward.question(&asker, bytes.len()) {
            Ok(question) => {
                let sent = self.reply(question, bytes);
                if sent {
                    // one that found no room may be tried again
                    self.outward.forget(&asker, question);
                }
                sent
            }
            Err(_) if self.outward.grant.allows(ends.peer) => {
                let handle = Handle { index: listener.0.into(), generation: 0 };
                let call = Call::plain(CallKind::SendTo, self.owner(), handle);
                self.post_bytes(call, &[&encode_addresses(&ends), bytes])
            }
            Err(error) => return Err(error),
        };
        if sent { Ok(()) } else { Err(CallError::NoResources) }
    }

    pub(super) fn set_alarm(&mut self, cookie: u64, at: Option<Instant>) -> Result<(), CallError> {
        let alarms = &mut self.outward.alarms;
        match at {
            None if alarms.remove(&cookie).is_none() => return Ok(()),
            None => {}
            Some(_) if alarms.len() == ALARMS && !alarms.contains_key(&cookie) => return Err(CallError::NoResources),
            Some(at) => drop(alarms.insert(cookie, at)),
        }
        let call = Call::plain(CallKind::Alarm, self.owner(), Handle::of_cookie(cookie));
        self.post(Call { at: at.map_or(NEVER, Instant::as_nanos), ..call });
        Ok(())
    }

    /// An alarm has gone off; whether it is one that is set, to this time.
    pub(super) fn alarmed(&mut self, cookie: u64, at_ns: u64) -> bool {
        let due = self.outward.alarms.get(&cookie).is_some_and(|at| at.as_nanos() == at_ns);
        if due {
            self.outward.alarms.remove(&cookie);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_answered_once_each_and_the_oldest_are_forgotten() {
        let mut outward = Outward::new(Grant::new(4, 0..1));
        let peer = |port: u16| -> Asker {
            let at = |port| SocketAddr::from(([192, 0, 2, 1], port));
            (Listener(0), Addresses { local: at(7), peer: at(port) })
        };
        let handle = |index| Handle { index, generation: 0 };
        outward.note(peer(1), handle(0), 100);
        outward.note(peer(1), handle(1), 300);
        assert_eq!(outward.question(&peer(2), 1), Err(CallError::Forbidden));
        assert_eq!(outward.question(&peer(1), 301), Err(CallError::TooLong));
        // until it is answered
        for _ in 0..2 {
            assert_eq!(outward.question(&peer(1), 200), Ok(handle(1)));
        }
        outward.forget(&peer(1), handle(1));
        assert_eq!(outward.question(&peer(1), 200), Err(CallError::TooLong));
        assert_eq!(outward.question(&peer(1), 100), Ok(handle(0)));
        outward.forget(&peer(1), handle(0));
        assert_eq!(outward.question(&peer(1), 0), Err(CallError::Forbidden));
        for n in 0..DATAGRAMS + 10 {
            outward.note(peer(100 + n as u16), handle(n), 100);
        }
        assert_eq!(outward.question(&peer(109), 1), Err(CallError::Forbidden));
        assert_eq!(outward.question(&peer(110), 1), Ok(handle(10)));
        assert!(outward.asked.len() <= DATAGRAMS as usize && outward.questions.len() <= DATAGRAMS as usize);
    }
}
