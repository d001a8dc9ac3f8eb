//! Groups that have left, and whose old frames may still come.
//!
//! Who gave a group away asks all others, and forwards until each has answered behind its last old frame. One that does not answer, since
//! a service keeps it or it may not run, is waited for a while and no longer: what it had sent is taken and forwarded first, and what it
//! sends later goes by the new owner's name in the table. A frame that it has in hand just then may be overtaken; clients of a group that
//! waited for its sake would hear nothing at all.
//!
//! It is the one that gave the group away who waits. Where a service keeps that one, nobody says that the group has settled, and what waits
//! for it at the new owner does so until it comes round.

use super::{Crossing, Note};
use base::Instant;
use std::time::Duration;

/// How long an answer is waited for.
pub(super) const PATIENCE: Duration = Duration::from_millis(50);

/// A group that has left and may still get old frames here.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) group: u16,
    to: u16,
    /// which of our moves it is: a late answer to one does not count for the next of the same group
    number: u32,
    /// threads that have not answered
    silent: Vec<u16>,
    /// when they are not waited for any more
    until: Instant,
}

impl Crossing {
    /// Asks all others whether frames of a group that went to another thread at `at` are still to come from them.
    pub(super) fn ask_behind(&mut self, at: Instant, group: u16, to: u16) {
        let silent: Vec<u16> = (0..self.owners.threads() as u16).filter(|thread| *thread != self.me).collect();
        self.moves = self.moves.wrapping_add(1);
        let number = self.moves;
        silent.iter().for_each(|other| self.note(*other, Note::Asked { group, number }));
        self.leaving.push(Leaving { group, to, number, silent, until: at + PATIENCE });
    }

    pub(super) fn take_answer(&mut self, from: u16, group: u16, number: u32) {
        let is = |leaving: &Leaving| leaving.group == group && leaving.number == number;
        let Some(at) = self.leaving.iter().position(is) else { return };
        let silent = &mut self.leaving[at].silent;
        silent.retain(|thread| *thread != from);
        if silent.is_empty() {
            self.let_settle(at);
        }
    }

    /// Those that were not answered for long settle, too.
    #[inline]
    pub(super) fn look_at_leaving(&mut self, now: Instant) {
        if !self.leaving.is_empty() {
            self.hurry(now);
        }
    }

    #[cold]
    fn hurry(&mut self, now: Instant) {
        let mut at = 0;
        while at < self.leaving.len() {
            let Leaving { silent, until, .. } = &self.leaving[at];
            let sent = |thread: &u16| self.into[usize::from(*thread)].as_mut().is_some_and(|ring| ring.waiting(1) > 0);
            if now < *until || silent.iter().any(sent) {
                at += 1;
            } else {
                self.counters.hurried.add(1);
                self.let_settle(at);
            }
        }
    }

    fn let_settle(&mut self, at: usize) {
        let Leaving { group, to, .. } = self.leaving.swap_remove(at);
        self.note(to, Note::Settled { group });
    }

    /// When one is not waited for any more.
    pub(super) fn leaving_until(&self) -> Option<Instant> {
        self.leaving.iter().map(|leaving| leaving.until).min()
    }
}
