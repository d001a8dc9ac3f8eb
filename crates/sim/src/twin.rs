//! A second stack of the first host, as another thread's, between which and the first flow groups go back and forth. Packets follow
//! the owner of their group.
//!
//! Groups move between two cycles, never inside one, and a move makes no moment at which something happens that would not happen
//! otherwise. So a world of one connection has the same frames at the same times whether or not its group moves.

use crate::World;
use crate::world;
use app::Service;
use base::rng::Rng;
use base::{Burst, Instant};
use port::Port;
use stack::{Arrived, Stack, TcpConfig};
use std::sync::Arc;
use std::time::Duration;
use wire::flow::{Flow, Groups};

/// The second stack.
pub struct Twin<S> {
    /// it
    pub stack: Stack,
    /// its service
    pub service: S,
    groups: Arc<Groups>,
    /// which groups it has
    owned: Vec<bool>,
    next: Option<Instant>,
    shuffle: Option<Shuffle>,
    /// groups that went from one to the other with somebody in them
    pub moved: u64,
}

/// Groups move at random.
struct Shuffle {
    rng: Rng,
    below: Duration,
    at: Instant,
}

impl<S: Service> Twin<S> {
    /// When it wants to be called.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Takes what is its own out of a burst.
    pub(crate) fn take(&mut self, rx: &mut Burst) -> Burst {
        let (mut ours, mut theirs) = (Burst::new(), Burst::new());
        for frame in rx.drain(..) {
            let group = Flow::of_frame(frame.bytes()).map(|flow| self.groups.of(&flow));
            let is_ours = group.is_some_and(|group| self.owned[usize::from(group)]);
            if is_ours { ours.push(frame) } else { theirs.push(frame) }
        }
        *rx = theirs;
        ours
    }

    /// One cycle; whether it sent a frame.
    pub(crate) fn cycle(&mut self, now: Instant, rx: &mut Burst, port: &mut impl Port) -> bool {
        let (mut tx, mut free) = (Burst::new(), Burst::new());
        self.service.cycle(now);
        self.stack.input(now, rx, &mut tx, &mut free, &mut self.service);
        for frame in free.drain(..) {
            port.give(frame);
        }
        self.next = self.stack.poll(now, port, &mut tx, &mut self.service);
        let sent = !tx.is_empty();
        port.transmit(&mut tx);
        assert!(tx.is_empty());
        sent
    }
}

impl<S: Service> World<S> {
    /// Gives the first host a second stack, told the same as the first, with this service and so many flow groups, all of them the
    /// first one's.
    ///
    /// # Panics
    /// When the first stack has had a packet, or for a number of groups that there cannot be.
    pub fn split(&mut self, service: S, tcp: TcpConfig, groups: usize) {
        let groups = Arc::new(Groups::keyed(groups, [11, 13]));
        let facts = port::Facts { virtual_link: false, ..self.hosts[0].port.facts().clone() };
        let mut stack = Stack::new(world::config(0, tcp), &facts);
        stack.set_groups(groups.clone());
        self.hosts[0].stack.set_groups(groups.clone());
        let owned = vec![false; groups.count()];
        self.twin = Some(Twin { stack, service, groups, owned, next: None, shuffle: None, moved: 0 });
    }

    /// Has groups move at random from now on, the next one after up to `below` each time.
    ///
    /// # Panics
    /// When there is no second stack.
    pub fn shuffle_groups(&mut self, seed: u64, below: Duration) {
        let shuffle = Shuffle { rng: Rng::new(seed), below, at: self.now };
        self.twin.as_mut().expect("a second stack").shuffle = Some(shuffle);
    }

    pub(crate) fn shuffle(&mut self) {
        let Some(Twin { shuffle: Some(shuffle), owned, .. }) = &mut self.twin else { return };
        if self.now < shuffle.at {
            return;
        }
        shuffle.at = self.now + world::random_duration(&mut shuffle.rng, shuffle.below);
        let group = shuffle.rng.below(owned.len() as u64) as u16;
        self.move_group(group);
    }

    /// Which group the packets belong to that a peer sends from `peer` to `local`.
    ///
    /// # Panics
    /// When there is no second stack, or the addresses are no pair.
    pub fn group_of(&self, peer: &str, local: &str) -> u16 {
        let (src, dst) = (peer.parse().unwrap(), local.parse().unwrap());
        let flow = Flow::new(wire::Protocol::TCP, src, dst).expect("a pair of addresses");
        self.twin.as_ref().expect("a second stack").groups.of(&flow)
    }

    /// Moves a group to the other stack.
    ///
    /// # Panics
    /// When there is no second stack, or no such group.
    pub fn move_group(&mut self, group: u16) -> Arrived {
        let (now, first) = (self.now, &mut self.hosts[0]);
        let twin = self.twin.as_mut().expect("a second stack");
        let owned = &mut twin.owned[usize::from(group)];
        *owned = !*owned;
        let arrived = if *owned {
            let departure = first.stack.depart(now, group, &mut first.service);
            twin.stack.arrive(now, departure, &mut twin.service)
        } else {
            let departure = twin.stack.depart(now, group, &mut twin.service);
            first.stack.arrive(now, departure, &mut first.service)
        };
        twin.moved += u64::from(arrived != Arrived::default());
        arrived
    }

    /// The stacks of the first host, and the second's.
    pub fn stacks(&self) -> impl Iterator<Item = &Stack> {
        self.twin.iter().map(|twin| &twin.stack).chain(self.hosts.iter().map(|host| &host.stack))
    }
}
