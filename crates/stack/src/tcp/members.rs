//! Who belongs to which flow group: connections, half-open entries and TIME-WAIT in a list for each group, so that a group that
//! goes to another thread is found without a look at everybody else.
//!
//! The lists are doubly linked through an array beside the tables, eight bytes a place, which is there only where there are
//! several threads.

use super::engine::Named;
use super::time_wait::Slot;
use super::tuple::Tuple;
use std::sync::Arc;
use wire::Protocol;
use wire::flow::{Flow, Groups};

const NONE: u32 = u32::MAX;
/// In the place of a predecessor: there is none, and the rest is the group.
const FIRST: u32 = 1 << 31;
/// In slots of TIME-WAIT.
const V6: u32 = 1 << 24;

#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    /// [`NONE`] while it stands in no list
    previous: u32,
}

const FREE: Link = Link { next: NONE, previous: NONE };

/// Which flow groups are this thread's. Groups come and go, so it is asked each time.
pub trait Ours: std::fmt::Debug + Send + Sync {
    /// Whether this one is.
    fn owns(&self, group: u16) -> bool;

    /// Whether there is any.
    fn owns_some(&self) -> bool;
}

/// The lists.
#[derive(Debug)]
pub(crate) struct Members {
    groups: Arc<Groups>,
    /// which of them are this thread's, if that was told
    ours: Option<Arc<dyn Ours>>,
    /// who came last, by group
    heads: Vec<u32>,
    links: Vec<Link>,
    /// where the places of half-open entries begin
    half_opens: u32,
    /// and those of TIME-WAIT over IPv4
    waits4: u32,
    /// and over IPv6
    waits6: u32,
}

impl Members {
    /// For so many connections, half-open entries, and entries of TIME-WAIT of each family.
    pub(crate) fn new(groups: Arc<Groups>, connections: u32, half_opens: u32, time_wait: u32) -> Members {
        let (waits4, all) = (connections + half_opens, connections + half_opens + 2 * time_wait);
        assert!(all < FIRST, "{all} places");
        Members {
            heads: vec![NONE; groups.count()],
            links: base::huge::table(all as usize, |_| FREE),
            groups,
            ours: None,
            half_opens: connections,
            waits4,
            waits6: waits4 + time_wait,
        }
    }

    /// How flows fall into groups.
    pub(crate) fn groups(&self) -> &Arc<Groups> {
        &self.groups
    }

    fn place(&self, named: Named) -> u32 {
        match named {
            Named::Connection(index) => index,
            Named::HalfOpen(index) => self.half_opens + index,
            Named::TimeWait(Slot(slot)) if slot & V6 == 0 => self.waits4 + slot,
            Named::TimeWait(Slot(slot)) => self.waits6 + (slot & !V6),
        }
    }

    fn named(&self, place: u32) -> Named {
        match place {
            place if place >= self.waits6 => Named::TimeWait(Slot((place - self.waits6) | V6)),
            place if place >= self.waits4 => Named::TimeWait(Slot(place - self.waits4)),
            place if place >= self.half_opens => Named::HalfOpen(place - self.half_opens),
            place => Named::Connection(place),
        }
    }

    /// The group of a connection.
    pub(crate) fn group(&self, tuple: &Tuple) -> u16 {
        // both ends are of one family
        Flow::new(Protocol::TCP, tuple.remote(), tuple.local()).map_or(0, |flow| self.groups.of(&flow))
    }

    /// Tells which groups are this thread's.
    pub(crate) fn set_ours(&mut self, ours: Arc<dyn Ours>) {
        self.ours = Some(ours);
    }

    pub(crate) fn ours(&self) -> Option<&Arc<dyn Ours>> {
        self.ours.as_ref()
    }

    /// Whether the packets of such a connection come to this thread.
    pub(crate) fn is_ours(&self, tuple: &Tuple) -> bool {
        self.ours.as_ref().is_none_or(|ours| ours.owns(self.group(tuple)))
    }

    /// Somebody comes.
    pub(crate) fn enter(&mut self, named: Named, tuple: &Tuple) {
        let (place, group) = (self.place(named), self.group(tuple));
        debug_assert_eq!(self.links[place as usize].previous, NONE, "{named:?} stands in a list");
        let next = std::mem::replace(&mut self.heads[usize::from(group)], place);
        self.links[place as usize] = Link { next, previous: FIRST | u32::from(group) };
        if next != NONE {
            self.links[next as usize].previous = place;
        }
    }

    /// Somebody goes.
    pub(crate) fn leave(&mut self, named: Named) {
        let place = self.place(named);
        let Link { next, previous } = std::mem::replace(&mut self.links[place as usize], FREE);
        if previous == NONE {
            return;
        }
        self.follow(previous, next);
        if next != NONE {
            self.links[next as usize].previous = previous;
        }
    }

    /// Somebody stands elsewhere now.
    pub(crate) fn relocate(&mut self, from: Named, to: Named) {
        let (from, to) = (self.place(from), self.place(to));
        let link = std::mem::replace(&mut self.links[from as usize], FREE);
        if link.previous == NONE {
            return;
        }
        self.links[to as usize] = link;
        self.follow(link.previous, to);
        if link.next != NONE {
            self.links[link.next as usize].previous = to;
        }
    }

    /// Makes `next` what follows the place, or the beginning, that `previous` tells.
    fn follow(&mut self, previous: u32, next: u32) {
        if previous & FIRST != 0 {
            self.heads[(previous & !FIRST) as usize] = next;
        } else {
            self.links[previous as usize].next = next;
        }
    }

    /// Those of a group, who came last first; nobody where there is no such group.
    pub(crate) fn of(&self, group: u16) -> impl Iterator<Item = Named> {
        let mut at = self.heads.get(usize::from(group)).copied().unwrap_or(NONE);
        std::iter::from_fn(move || {
            let link = self.links.get(at as usize)?;
            let named = self.named(at);
            at = link.next;
            Some(named)
        })
    }

    /// How many there are in all lists, which must be sound.
    pub(crate) fn check(&self, mut group_of: impl FnMut(Named) -> u16) -> usize {
        let mut all = 0;
        for (group, head) in self.heads.iter().enumerate() {
            let (mut at, mut before) = (*head, FIRST | group as u32);
            while at != NONE {
                let link = self.links[at as usize];
                assert_eq!(link.previous, before, "a list of group {group}");
                assert_eq!(usize::from(group_of(self.named(at))), group, "{:?} in a list", self.named(at));
                (before, at) = (at, link.next);
                all += 1;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const PLACES: u32 = 7;

    fn any_named() -> impl Strategy<Value = Named> {
        (0u32..4, 0..PLACES).prop_map(|(kind, n)| match kind {
            0 => Named::Connection(n),
            1 => Named::HalfOpen(n),
            2 => Named::TimeWait(Slot(n)),
            _ => Named::TimeWait(Slot(n | V6)),
        })
    }

    fn tuple(port: u16) -> Tuple {
        Tuple::new("192.0.2.1:80".parse().unwrap(), ([192, 0, 2, 2], port).into()).unwrap()
    }

    #[derive(Clone, Debug)]
    enum Step {
        Enter(Named, u16),
        Leave(Named),
        Relocate(Named, Named),
    }

    fn a_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (any_named(), any::<u16>()).prop_map(|(named, port)| Step::Enter(named, port)),
            2 => any_named().prop_map(Step::Leave),
            1 => (any_named(), any_named()).prop_map(|(from, to)| Step::Relocate(from, to)),
        ]
    }

    proptest! {
        /// The twin is a map from who it is to when it came and its tuple.
        #[test]
        fn lists_have_who_came_and_did_not_go(steps in prop::collection::vec(a_step(), 1..200), secret: [u64; 2]) {
            let mut members = Members::new(Arc::new(Groups::keyed(4, secret)), PLACES, PLACES, PLACES);
            let mut twin: BTreeMap<u32, (usize, u16)> = BTreeMap::new();
            for (round, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Enter(named, port) if !twin.contains_key(&named.value()) => {
                        members.enter(named, &tuple(port));
                        twin.insert(named.value(), (round, port));
                    }
                    Step::Leave(named) => {
                        members.leave(named);
                        twin.remove(&named.value());
                    }
                    Step::Relocate(from, to) if !twin.contains_key(&to.value()) => {
                        members.relocate(from, to);
                        if let Some(entry) = twin.remove(&from.value()) {
                            twin.insert(to.value(), entry);
                        }
                    }
                    _ => {}
                }
                let group = |named: Named| members.group(&tuple(twin[&named.value()].1));
                prop_assert_eq!(members.check(group), twin.len());
                for group in 0..4 {
                    let mut expected: Vec<_> =
                        twin.iter().filter(|(_, (_, port))| members.group(&tuple(*port)) == group).collect();
                    expected.sort_unstable_by_key(|(_, (came, _))| std::cmp::Reverse(*came));
                    let found: Vec<u32> = members.of(group).map(Named::value).collect();
                    prop_assert_eq!(found, expected.iter().map(|(value, _)| **value).collect::<Vec<_>>());
                }
                prop_assert_eq!(members.of(4).count(), 0);
            }
        }
    }
}
