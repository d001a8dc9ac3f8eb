//! Changing the generation that the program answers from.
//!
//! A program that runs meanwhile must never take a type for one that the name lacks, nor send of an entry what belongs to
//! another: it looks for the type's entry first and then for that of all others, and the kernel uses an entry again as soon as
//! it was removed (Linux 6.1), while somebody may still read it. So there are four steps, and between one and the next
//! everybody is waited for who runs: the entries for all others of the names that go, the rest of them, the types of those that
//! come, and their entries for all others.
//!
//! What an entry says of names below it comes and goes with it. While names are missing only cuts say something, and nothing that
//! exists is below those: so a question for such a name gets the referral or is left to the socket, whichever entries it meets.

use super::{Answer, Answers, Entry, Generation, HEATS_A_PAGE, Maps, OTHERS, Put, Which, form::hash, is_others};
use crate::steering::SteeringError;

/// A name that is to go in.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    /// its counter among the heats: below the names that may be in, and no other's
    pub seat: u32,
    /// in lower case and wire form
    pub name: &'a [u8],
    /// all of its answers
    pub answers: &'a [(Which, Answer<'a>)],
}

/// The generation in force, whose names may change while it is answered from.
#[derive(Debug)]
pub struct Given {
    answers: Answers,
    number: u32,
}

impl Given {
    pub(super) fn new(answers: Answers, number: u32) -> Given {
        Given { answers, number }
    }

    /// Takes the names `out` out, in lower case and wire form, and then puts those of `into` in, each whole or not at all, and
    /// says what became of them. None, and nothing happens, when this generation is not in force any more.
    ///
    /// # Errors
    /// The kernel's. Some of `out` may be in then, and of `into` what could not be taken out again; with answers that are right.
    pub fn change(&self, out: &[&[u8]], into: &[Name<'_>]) -> Result<Option<Vec<Put>>, SteeringError> {
        let mut maps = self.answers.lock();
        let Some(mut generation) = maps.current.take_if(|current| current.number == self.number) else {
            return Ok(None);
        };
        let seed = maps.config.seed;
        let out: Vec<u64> = out.iter().map(|name| hash(seed, name)).collect();
        let changed = maps
            .admit_absence(&mut generation)
            .and_then(|()| maps.take_out(&mut generation, &out))
            .and_then(|()| maps.put_in(&mut generation, into));
        maps.current = Some(generation);
        changed.map(Some)
    }

    /// How often the program has answered for each seat's name, whoever has had the seat: one of [`super::ANSWERS_A_SAMPLE`]
    /// answers on average, from any number on, and wrapping. None when the kernel refuses to say.
    pub fn heats(&self) -> Option<Vec<u32>> {
        let maps = self.answers.lock();
        let names = maps.config.names as usize;
        let mut heats = Vec::with_capacity(names.next_multiple_of(HEATS_A_PAGE));
        for page in 0..maps.config.heat_pages() {
            heats.extend(maps.heats.get(&page, 0).ok()?);
        }
        heats.truncate(names);
        Some(heats)
    }
}

impl Maps {
    /// From now on a name that is not in may exist all the same.
    fn admit_absence(&mut self, generation: &mut Generation) -> Result<(), SteeringError> {
        if !std::mem::take(&mut generation.whole) {
            return Ok(());
        }
        self.tell_absence(generation)?;
        self.wait()
    }

    /// Takes names out of what is answered from.
    fn take_out(&mut self, generation: &mut Generation, out: &[u64]) -> Result<(), SteeringError> {
        if out.is_empty() {
            return Ok(());
        }
        self.remove_some(generation, out, |entry| entry.rtype == OTHERS)?;
        self.wait()?;
        self.remove_some(generation, out, |_| true)?;
        for hash in out {
            if let Some(held) = generation.names.remove(hash) {
                generation.size.short -= held.size.short;
                generation.size.long -= held.size.long;
            }
        }
        self.tell_names(generation)?;
        self.wait()
    }

    fn remove_some(
        &mut self,
        generation: &Generation,
        of: &[u64],
        which: impl Fn(&Entry) -> bool,
    ) -> Result<(), SteeringError> {
        for hash in of {
            let entries = generation.names.get(hash).into_iter().flat_map(|held| &held.entries);
            entries.filter(|entry| which(entry)).try_for_each(|e| self.remove_entry(generation.number, *hash, *e))?;
        }
        Ok(())
    }

    /// Puts names into what is answered from.
    fn put_in(&mut self, generation: &mut Generation, into: &[Name<'_>]) -> Result<Vec<Put>, SteeringError> {
        let admitted: Vec<(Put, u64)> =
            into.iter().map(|name| self.admit(generation, name.name, name.answers)).collect();
        let going: Vec<(&Name<'_>, u64)> = into
            .iter()
            .zip(&admitted)
            .filter(|(_, (put, _))| *put == Put::Done)
            .map(|(name, (_, hash))| (name, *hash))
            .collect();
        if let Err(error) = self.put_admitted(generation, &going) {
            let hashes: Vec<u64> = going.iter().map(|(_, hash)| *hash).collect();
            self.take_out(generation, &hashes)?;
            return Err(error);
        }
        Ok(admitted.into_iter().map(|(put, _)| put).collect())
    }

    fn put_admitted(&mut self, generation: &mut Generation, names: &[(&Name<'_>, u64)]) -> Result<(), SteeringError> {
        if names.is_empty() {
            return Ok(());
        }
        self.tell_names(generation)?;
        for (name, hash) in names {
            let types = name.answers.iter().filter(|answer| !is_others(answer));
            types.into_iter().try_for_each(|answer| self.insert(generation, *hash, name, answer))?;
        }
        let told = generation.told.join(generation.always);
        if told != generation.told {
            generation.told = told;
            self.tell_absence(generation)?;
        }
        self.wait()?;
        for (name, hash) in names {
            let others = name.answers.iter().filter(is_others);
            others.into_iter().try_for_each(|answer| self.insert(generation, *hash, name, answer))?;
        }
        Ok(())
    }
}
