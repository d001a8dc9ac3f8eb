//! What goes out over the rings to other threads.
//!
//! A thread that has ended takes nothing out of its rings: a frame that was put into one would be nobody's, and its arena stay mapped
//! for ever, so it goes home like one that found no room. Notes to it are dropped.

use super::{Crossing, Item, Note};
use crate::MOST_THREADS;
use arrayvec::ArrayVec;
use base::{Burst, Frame};
use std::mem::discriminant;

impl Crossing {
    /// Sends a frame to the owner of its group; when there is no way it is appended to `lost`.
    pub(super) fn forward(&mut self, to: u16, frame: Frame, lost: &mut Burst) {
        // behind notes that wait
        let waits = self.unsent.iter().any(|(other, _)| *other == to);
        let ring = self.out[usize::from(to)].as_mut().expect("a way to every other thread");
        let sent = if waits || ring.is_abandoned() { Err(Item::Frame(frame)) } else { ring.push(Item::Frame(frame)) };
        match sent {
            Ok(()) => {
                self.touched[usize::from(to)] = true;
                self.counters.frames_out.add(1);
            }
            Err(item) => {
                self.counters.lost.add(1);
                if let Item::Frame(frame) = item {
                    lost.push(frame);
                }
            }
        }
    }

    /// Sends a note, now or when there is room.
    pub(super) fn note(&mut self, to: u16, note: Note) {
        let note = Box::new(note);
        // behind those that wait
        let waits = self.unsent.iter().any(|(other, _)| *other == to);
        let sent = if waits { Err(note) } else { self.push_note(to, note) };
        sent.unwrap_or_else(|note| self.unsent.push_back((to, note)));
    }

    /// Sends a note, unless one of its kind waits for room on the way to the same thread: who does not come round is told once.
    pub(super) fn note_once(&mut self, to: u16, note: Note) {
        let kind = discriminant(&note);
        if !self.unsent.iter().any(|(other, waiting)| *other == to && discriminant(&**waiting) == kind) {
            self.note(to, note);
        }
    }

    /// Sends the notes that found rings full. One that is full still holds up no note to another thread.
    pub(super) fn send_notes(&mut self) {
        let mut full = ArrayVec::<u16, MOST_THREADS>::new();
        for _ in 0..self.unsent.len() {
            let Some((to, note)) = self.unsent.pop_front() else { return };
            let sent = if full.contains(&to) { Err(note) } else { self.push_note(to, note) };
            if let Err(note) = sent {
                if !full.contains(&to) {
                    full.push(to);
                }
                self.unsent.push_back((to, note));
            }
        }
    }

    fn push_note(&mut self, to: u16, note: Box<Note>) -> Result<(), Box<Note>> {
        let ring = self.out[usize::from(to)].as_mut().expect("a way to every other thread");
        if ring.is_abandoned() {
            // nobody is there whom it would concern
            return Ok(());
        }
        match ring.push(Item::Note(note)) {
            Ok(()) => self.touched[usize::from(to)] = true,
            Err(Item::Note(note)) => return Err(note),
            Err(Item::Frame(_)) => unreachable!("a note was sent"),
        }
        Ok(())
    }

    /// Something was left for a thread elsewhere.
    pub(crate) fn touch(&mut self, thread: usize) {
        self.touched[thread] = true;
    }

    /// Wakes those who were sent something and sleep. Called at a cycle's end, and when groups have left.
    pub(crate) fn ring_bells(&mut self) {
        for (touched, bell) in self.touched.iter_mut().zip(&self.bells) {
            if std::mem::take(touched) {
                bell.wake_if_asleep();
            }
        }
    }
}
