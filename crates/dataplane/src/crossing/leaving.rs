//! Groups that have left, and whose old frames may still come.
//!
//! Who gave a group away asks all others, and forwards until each has answered behind its last old frame. One that does not answer, since
//! a service keeps it or it may not run, is waited for a while and no longer: what it had sent is taken and forwarded first, and what it
//! sends later goes by the new owner's name in the table. A frame that it has in hand just then may be overtaken; clients of a group that
//! waited for its sake would hear nothing at all.
//!
//! Who gave the group away may be held up itself: a busy thread is whom groups leave. As long as it comes round, which it counts where all
//! see it ([`Rounds`]), the new owner waits, however long it takes to go through what others had sent. When it does not come round for
//! a while the new owner settles the group by itself, once it has taken what that one had forwarded; the group may go on to
//! others then, and what is forwarded later finds its way by the table, late as it is. So moves have numbers: what is said of one is said of no other.

use super::{Coming, Crossing, Note};
use base::{CacheAligned, Instant};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long an answer is waited for.
pub(super) const PATIENCE: Duration = Duration::from_millis(50);
/// For how long who gave a group away may not come round: for longer than it sleeps while it waits itself.
pub(super) const LONGER: Duration = Duration::from_millis(100);

/// How often each thread has come round while groups were leaving it.
#[derive(Debug)]
pub(super) struct Rounds(Box<[CacheAligned<AtomicU32>]>);

impl Rounds {
    pub(super) fn new(threads: usize) -> Arc<Rounds> {
        Arc::new(Rounds((0..threads).map(|_| CacheAligned::default()).collect()))
    }

    fn of(&self, thread: u16) -> &AtomicU32 {
        &self.0[usize::from(thread)].0
    }
}

/// A group that has left and may still get old frames here.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) group: u16,
    to: u16,
    /// which of our moves it is: a late answer to one does not count for the next of the same group
    number: u32,
    /// threads that have not answered
    silent: Vec<u16>,
    /// when it left
    at: Instant,
    /// when they are not waited for any more; None until a later cycle, when the bells of those that slept were rung
    until: Option<Instant>,
}

impl Crossing {
    /// Asks all others whether frames of a group that went to another thread at `at` are still to come from them.
    pub(super) fn ask_behind(&mut self, at: Instant, group: u16, to: u16, number: u32) {
        let silent: Vec<u16> = (0..self.owners.threads() as u16).filter(|thread| *thread != self.me).collect();
        silent.iter().for_each(|other| self.note(*other, Note::Asked { group, number }));
        self.leaving.push(Leaving { group, to, number, silent, at, until: None });
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
        let rounds = self.rounds.of(self.me);
        // written by this thread alone
        rounds.store(rounds.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        for leaving in self.leaving.iter_mut().filter(|leaving| now > leaving.at) {
            leaving.until.get_or_insert(now + PATIENCE);
        }
        let (mut at, before) = (0, self.leaving.len());
        while at < self.leaving.len() {
            let Leaving { silent, until, .. } = &self.leaving[at];
            let sent = |thread: &u16| self.into[usize::from(*thread)].as_mut().is_some_and(|ring| ring.waiting(1) > 0);
            if until.is_none_or(|until| now < until) || silent.iter().any(sent) {
                at += 1;
            } else {
                self.counters.hurried.add(1);
                self.let_settle(at);
            }
        }
        if self.leaving.len() < before {
            self.ask_no_more();
        }
    }

    /// What nobody waits for is not asked any more, lest that pile up before a thread that does not come round.
    fn ask_no_more(&mut self) {
        let leaving = &self.leaving;
        let is_asked = |number: u32| leaving.iter().any(|leaving| leaving.number == number);
        self.unsent.retain(|(_, note)| !matches!(**note, Note::Asked { number, .. } if !is_asked(number)));
    }

    fn let_settle(&mut self, at: usize) {
        let Leaving { group, to, number, .. } = self.leaving.swap_remove(at);
        self.note(to, Note::Settled { group, number });
    }

    /// When one is not waited for any more.
    pub(super) fn leaving_until(&self) -> Option<Instant> {
        self.leaving.iter().map(|leaving| leaving.until.unwrap_or(Instant::ZERO)).min()
    }

    /// Groups whose old owner does not come round settle, too.
    #[inline]
    pub(super) fn look_at_coming(&mut self, now: Instant) {
        if !self.coming.is_empty() {
            self.look_at_givers(now);
        }
    }

    #[cold]
    fn look_at_givers(&mut self, now: Instant) {
        let mut at = 0;
        while at < self.coming.len() {
            let coming = &mut self.coming[at];
            let Some(from) = coming.giver() else {
                at += 1;
                continue;
            };
            let rounds = self.rounds.of(from).load(Ordering::Relaxed);
            let has_sent = self.into[usize::from(from)].as_mut().is_some_and(|ring| ring.waiting(1) > 0);
            let (_, until) = match coming.heard.filter(|(seen, _)| *seen == rounds && !has_sent) {
                Some(heard) => heard,
                None => *coming.heard.insert((rounds, now + LONGER)),
            };
            if now < until {
                at += 1;
                continue;
            }
            let (group, number) = (coming.group, coming.number);
            self.counters.hurried.add(1);
            self.settle(from, group, number);
            self.take_past_aside(from, group);
        }
    }

    /// When the old owner of one is not waited for any more.
    pub(super) fn coming_until(&self) -> Option<Instant> {
        let forwarded = self.coming.iter().filter(|coming| coming.giver().is_some());
        forwarded.map(|coming| coming.heard.map_or(Instant::ZERO, |(_, until)| until)).min()
    }
}

impl Coming {
    /// Who is still to say that nothing older will come.
    fn giver(&self) -> Option<u16> {
        self.from.filter(|_| self.turns.is_none())
    }
}
