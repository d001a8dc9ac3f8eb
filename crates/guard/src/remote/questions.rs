//! Datagrams that the application was told of and may answer, once: who asked, where, and how much the answer may be.

use crate::layout::{Handle, QUESTIONS};
use app::{Addresses, Listener};

#[derive(Clone, Copy, Debug)]
struct Question {
    generation: u32,
    listener: Listener,
    addresses: Addresses,
    most_bytes: u32,
}

/// The last questions. A place is used again after [`QUESTIONS`] others, so none has to be given back.
#[derive(Debug)]
pub(super) struct Questions {
    places: Vec<Option<Question>>,
    next: u32,
}

impl Questions {
    pub(super) fn new() -> Questions {
        Questions { places: Vec::new(), next: 0 }
    }

    /// What the next question is called.
    pub(super) fn next(&self) -> Handle {
        Handle { index: self.next % QUESTIONS, generation: self.next / QUESTIONS }
    }

    /// Notes the question of that name.
    pub(super) fn note(&mut self, listener: Listener, addresses: Addresses, most_bytes: u32) {
        if self.places.is_empty() {
            // when the first one comes: most applications have connections alone
            self.places = vec![None; QUESTIONS as usize];
        }
        let Handle { index, generation } = self.next();
        self.places[index as usize] = Some(Question { generation, listener, addresses, most_bytes });
        self.next = self.next.wrapping_add(1);
    }

    /// Whose question an answer of so many bytes is for; nobody's twice, and nobody's that asked too long ago.
    pub(super) fn take(&mut self, handle: Handle, bytes: u32) -> Option<(Listener, Addresses)> {
        let place = self.places.get_mut(handle.index as usize)?;
        let question = place.filter(|it| it.generation == handle.generation && bytes <= it.most_bytes)?;
        *place = None;
        Some((question.listener, question.addresses))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_question_is_answered_once_and_in_time() {
        let mut questions = Questions::new();
        let at = "192.0.2.1:7".parse().unwrap();
        let addresses = Addresses { local: at, peer: at };
        assert!(questions.take(questions.next(), 0).is_none());
        let handles: Vec<Handle> = (0..QUESTIONS + 2)
            .map(|n| {
                let handle = questions.next();
                questions.note(Listener(n as u16), addresses, 100);
                handle
            })
            .collect();
        assert!(questions.take(handles[0], 5).is_none() && questions.take(handles[1], 5).is_none());
        assert!(questions.take(handles[2], 101).is_none());
        assert_eq!(questions.take(handles[2], 100), Some((Listener(2), addresses)));
        assert!(questions.take(handles[2], 100).is_none());
        assert_eq!(
            questions.take(handles[QUESTIONS as usize + 1], 0),
            Some((Listener(QUESTIONS as u16 + 1), addresses))
        );
        assert!(questions.take(Handle { index: QUESTIONS, generation: 0 }, 0).is_none());
    }
}
