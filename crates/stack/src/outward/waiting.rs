//! Datagrams that were given to us and have not left. Those whose way is known wait for a frame, the others, in a line of their own, for
//! their neighbour: nobody waits behind a neighbour that does not answer but who sends to it.
//!
//! No listener, and so no application, has more places of a line than are free in it: one alone has half of them, two a third each, and
//! there is a place for whoever comes next. For one neighbour a listener has a few (RFC 4861 section 7.2.2): a later one takes the place
//! of the first.

use crate::tcp::Hop;
use app::{Addresses, Listener};
use std::collections::VecDeque;
use std::net::IpAddr;

/// Datagrams that wait for a frame at most.
pub(super) const KNOWN: usize = 128;
/// Datagrams that wait for neighbours at most.
pub(super) const ASKED: usize = 64;
/// Of one listener for one neighbour at most.
const FOR_A_NEIGHBOUR: usize = 3;

/// A datagram.
#[derive(Debug)]
pub(super) struct Datagram<W> {
    listener: Listener,
    pub(super) ends: Addresses,
    pub(super) way: W,
    pub(super) bytes: Vec<u8>,
}

/// A line of datagrams, and how many of each listener stand in it.
#[derive(Debug)]
struct Line<W> {
    datagrams: VecDeque<Datagram<W>>,
    places: usize,
    /// by the listener's number
    parts: Vec<u16>,
}

impl<W> Line<W> {
    fn new(places: usize) -> Line<W> {
        Line { datagrams: VecDeque::with_capacity(places), places, parts: Vec::new() }
    }

    fn free(&self) -> usize {
        self.places - self.datagrams.len()
    }

    fn has_room_for(&self, listener: Listener) -> bool {
        usize::from(self.parts[usize::from(listener.0)]) < self.free()
    }

    fn push(&mut self, datagram: Datagram<W>) {
        self.parts[usize::from(datagram.listener.0)] += 1;
        self.datagrams.push_back(datagram);
    }

    fn pop(&mut self) -> Option<Datagram<W>> {
        let datagram = self.datagrams.pop_front()?;
        self.parts[usize::from(datagram.listener.0)] -= 1;
        Some(datagram)
    }
}

/// The room is full, or the listener's part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// What has become of the neighbour that a datagram waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Found(Hop),
    Waits,
    Lost,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Waiting {
    known: Line<Hop>,
    asked: Line<IpAddr>,
    /// buffers of datagrams that have gone
    spare: Vec<Vec<u8>>,
}

impl Waiting {
    pub(super) fn new() -> Waiting {
        Waiting { known: Line::new(KNOWN), asked: Line::new(ASKED), spare: Vec::with_capacity(KNOWN + ASKED) }
    }

    /// There are listeners of numbers below `listeners`. Those that there were before count on while something of theirs waits.
    pub(super) fn set_listeners(&mut self, listeners: usize) {
        let most = listeners.max(self.known.parts.len());
        self.known.parts.resize(most, 0);
        self.asked.parts.resize(most, 0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.datagrams.is_empty() && self.asked.datagrams.is_empty()
    }

    fn datagram<W>(&mut self, listener: Listener, ends: Addresses, way: W, bytes: &[u8]) -> Datagram<W> {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        Datagram { listener, ends, way, bytes: copy }
    }

    /// One whose way is known.
    pub(super) fn push(&mut self, listener: Listener, ends: Addresses, hop: Hop, bytes: &[u8]) -> Result<(), Full> {
        if !self.known.has_room_for(listener) {
            return Err(Full);
        }
        let datagram = self.datagram(listener, ends, hop, bytes);
        self.known.push(datagram);
        Ok(())
    }

    /// Where those stand in line that a listener has waiting for the neighbour `via`.
    fn alike(&self, listener: Listener, via: IpAddr) -> impl Iterator<Item = usize> {
        let is_alike = move |datagram: &Datagram<IpAddr>| datagram.listener == listener && datagram.way == via;
        self.asked.datagrams.iter().enumerate().filter(move |(_, one)| is_alike(one)).map(|(n, _)| n)
    }

    /// Whether one more of a listener can wait for the neighbour `via`.
    pub(super) fn can_wait(&self, listener: Listener, via: IpAddr) -> bool {
        self.asked.has_room_for(listener) || self.alike(listener, via).count() >= FOR_A_NEIGHBOUR
    }

    /// One that waits for the neighbour `via`; how many others are lost by that.
    pub(super) fn push_asked(
        &mut self,
        listener: Listener,
        ends: Addresses,
        via: IpAddr,
        bytes: &[u8],
    ) -> Result<u64, Full> {
        let mut alike = self.alike(listener, via);
        let first = alike.next();
        let lost = first.filter(|_| alike.count() + 1 >= FOR_A_NEIGHBOUR);
        if let Some(one) = lost.and_then(|n| self.asked.datagrams.remove(n)) {
            self.asked.parts[usize::from(listener.0)] -= 1;
            self.spare.push(one.bytes);
        } else if !self.asked.has_room_for(listener) {
            return Err(Full);
        }
        let datagram = self.datagram(listener, ends, via, bytes);
        self.asked.push(datagram);
        Ok(lost.is_some().into())
    }

    /// Looks at those that wait for neighbours, whose fate `look` tells; how many are lost. What was found, and finds its listener's part of
    /// the line for frames full, goes on waiting: there is a place for others in that line, too.
    pub(super) fn settle(&mut self, look: &mut dyn FnMut(IpAddr) -> Fate) -> u64 {
        let mut lost = 0;
        for _ in 0..self.asked.datagrams.len() {
            let Some(one) = self.asked.pop() else { break };
            match look(one.way) {
                Fate::Found(hop) if self.known.has_room_for(one.listener) => {
                    let Datagram { listener, ends, bytes, .. } = one;
                    self.known.push(Datagram { listener, ends, way: hop, bytes });
                }
                Fate::Found(_) | Fate::Waits => self.asked.push(one),
                Fate::Lost => {
                    lost += 1;
                    self.spare.push(one.bytes);
                }
            }
        }
        lost
    }

    /// The next one to be sent.
    pub(super) fn next(&self) -> Option<&Datagram<Hop>> {
        self.known.datagrams.front()
    }

    /// It was.
    pub(super) fn sent(&mut self) {
        if let Some(one) = self.known.pop() {
            self.spare.push(one.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: Addresses = Addresses {
        local: std::net::SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), 7),
        peer: std::net::SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2)), 9),
    };

    fn room() -> Waiting {
        let mut waiting = Waiting::new();
        waiting.set_listeners(3);
        waiting
    }

    fn via(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    #[test]
    fn whoever_fills_its_part_leaves_places_for_others() {
        let mut waiting = room();
        let mut push = |listener| waiting.push(Listener(listener), ENDS, Hop::default(), b"x");
        let taken = [0, 1, 2].map(|listener| (0..1000).take_while(|_| push(listener).is_ok()).count());
        assert_eq!(taken, [KNOWN / 2, KNOWN / 4, KNOWN / 8]);
        let mut push = |n| waiting.push_asked(Listener(u16::from(n % 2)), ENDS, via(n), b"x");
        assert_eq!((0..=255).filter(|n| n % 2 == 0).take_while(|n| push(*n).is_ok()).count(), ASKED / 2);
        assert_eq!((0..=255).filter(|n| n % 2 == 1).take_while(|n| push(*n).is_ok()).count(), ASKED / 4);
        // and has them again when they have gone
        while waiting.next().is_some() {
            waiting.sent();
        }
        assert_eq!(waiting.settle(&mut |_| Fate::Lost), (ASKED * 3 / 4) as u64);
        assert!(waiting.is_empty() && waiting.known.parts.iter().chain(&waiting.asked.parts).all(|part| *part == 0));
    }

    #[test]
    fn a_few_wait_for_a_neighbour_and_the_first_goes_for_the_last() {
        let mut waiting = room();
        let lost = [b"a", b"b", b"c", b"d", b"e"].map(|bytes| waiting.push_asked(Listener(0), ENDS, via(7), bytes));
        assert_eq!(lost, [Ok(0), Ok(0), Ok(0), Ok(1), Ok(1)]);
        // another's are not taken for that, nor for another neighbour
        assert_eq!(waiting.push_asked(Listener(1), ENDS, via(7), b"f"), Ok(0));
        assert_eq!(waiting.push_asked(Listener(0), ENDS, via(8), b"g"), Ok(0));
        let hop = Hop::new([2; 6], None);
        let mut look = |to| if to == via(7) { Fate::Found(hop) } else { Fate::Waits };
        assert_eq!(waiting.settle(&mut look), 0);
        let mut sent = Vec::new();
        while let Some(one) = waiting.next() {
            assert_eq!(one.way, hop);
            sent.extend_from_slice(&one.bytes);
            waiting.sent();
        }
        assert_eq!(sent, b"cdef");
        assert_eq!(waiting.settle(&mut |_| Fate::Lost), 1);
    }
}
