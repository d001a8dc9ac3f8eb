//! Hardware addresses of neighbours that we want to send to, asked for by ARP (RFC 826) or neighbour solicitation (RFC 4861
//! section 7.2).
//!
//! Only who was asked for is remembered, so nobody fills the table from outside. An entry older than [`FRESH`] is used as it is, and
//! asked for again meanwhile; one that does not answer is forgotten.
//!
//! Those that are known have places of their own, so none is forgotten for one that may not even be there. Of the places of those that are
//! asked for nobody, neither a listener's datagrams nor connections, has more than are free: beyond that the first one that he
//! asked for is given up for the last, when it would be asked for again. So nobody is asked for more than once a second, however many there
//! are (RFC 1122 section 2.3.2.1), and a place asks no more often either. Connections are of many applications: of theirs some are given up
//! at once, [`HURRIED`] a second, so that who has asked for many in vain keeps no other from asking.

use crate::agreement::Heard;
use crate::bucket::Bucket;
use app::Listener;
use base::Instant;
use std::net::IpAddr;
use std::time::Duration;
use wire::ethernet::Mac;

/// Neighbours that are known at most.
const KNOWN: usize = 256;
/// Neighbours that are not known yet and are asked for at most.
const ASKED: usize = 256;
/// Questions before a neighbour is given up (RFC 4861 MAX_MULTICAST_SOLICIT), and the time between them (RETRANS_TIMER).
const TRIES: u8 = 3;
const RETRANSMIT: Duration = Duration::from_secs(1);
/// Of the neighbours that connections ask for so many a second are given up before their time, and so many at once.
const HURRIED: u32 = 256;
const HURRIED_BURST: u32 = 128;
/// So long an answer is believed without asking again (RFC 4861 REACHABLE_TIME).
pub(super) const FRESH: Duration = Duration::from_secs(30);

/// Where a neighbour's hardware address comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// it is this
    Known(Mac),
    /// it is being asked for
    Asked,
    /// it was never asked for, or did not answer, or there is no room to ask
    Unknown,
}

/// A question under way.
#[derive(Clone, Copy, Debug)]
struct Question {
    /// our address that asks
    from: IpAddr,
    tries: u8,
    next_at: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Neighbour {
    addr: IpAddr,
    mac: Option<Mac>,
    heard_at: Instant,
    used_at: Instant,
    question: Option<Question>,
    /// for whose datagrams it was asked for first, None for connections
    by: Option<Listener>,
}

/// The table, sorted by address.
#[derive(Debug)]
pub(crate) struct Neighbours {
    entries: Vec<Neighbour>,
    hurried: Bucket,
}

impl Neighbours {
    pub(crate) fn new() -> Neighbours {
        Neighbours { entries: Vec::with_capacity(KNOWN + ASKED), hurried: Bucket::new(HURRIED, HURRIED_BURST) }
    }

    fn find(&self, addr: IpAddr) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&addr, |entry| entry.addr)
    }

    /// What is known of a neighbour.
    pub(crate) fn look(&self, addr: IpAddr) -> Look {
        match self.find(addr).map(|at| self.entries[at].mac) {
            Ok(Some(mac)) => Look::Known(mac),
            Ok(None) => Look::Asked,
            Err(_) => Look::Unknown,
        }
    }

    /// The same, and asks from our address `from` where that is called for, on behalf of `by`.
    pub(crate) fn want(&mut self, now: Instant, addr: IpAddr, from: IpAddr, by: Option<Listener>) -> Look {
        let question = Some(Question { from, tries: 0, next_at: now });
        let at = match self.find(addr) {
            Ok(at) => {
                let entry = &mut self.entries[at];
                entry.used_at = now;
                if entry.question.is_none() && now - entry.heard_at >= FRESH {
                    entry.question = question;
                }
                return entry.mac.map_or(Look::Asked, Look::Known);
            }
            Err(at) => at,
        };
        let is_asked = |entry: &Neighbour| entry.mac.is_none();
        let is_his = |entry: &Neighbour| is_asked(entry) && entry.by == by;
        let at = if self.count(is_his) < ASKED - self.count(is_asked) {
            at
        } else {
            let is_due = |entry: &Neighbour| entry.question.is_some_and(|question| question.next_at <= now);
            let mut first = self.first(|entry| is_his(entry) && is_due(entry), |entry| entry.heard_at);
            if first.is_none() && by.is_none() && self.hurried.allow(now) {
                first = self.first(is_his, |entry| entry.heard_at);
            }
            let Some(first) = first else { return Look::Unknown };
            self.entries.remove(first);
            at - usize::from(first < at)
        };
        self.entries.insert(at, Neighbour { addr, mac: None, heard_at: now, used_at: now, question, by });
        Look::Asked
    }

    /// The same for a connection whose peer is silent since `heard_at`: what the neighbour told before is asked for again whatever its age,
    /// since it may have gone just then; but once a second at most, however many connections there are.
    pub(crate) fn doubt(&mut self, now: Instant, addr: IpAddr, from: IpAddr, heard_at: Instant) -> Look {
        let look = self.want(now, addr, from, None);
        if let Ok(at) = self.find(addr) {
            let entry = &mut self.entries[at];
            if entry.question.is_none() && entry.heard_at <= heard_at && now - entry.heard_at >= RETRANSMIT {
                entry.question = Some(Question { from, tries: 0, next_at: now });
            }
        }
        look
    }

    fn count(&self, is: impl Fn(&Neighbour) -> bool) -> usize {
        self.entries.iter().filter(|entry| is(entry)).count()
    }

    /// Where the first of some stands, by a time.
    fn first(&self, is: impl Fn(&Neighbour) -> bool, at: impl Fn(&Neighbour) -> Instant) -> Option<usize> {
        let found = self.entries.iter().enumerate().filter(|(_, entry)| is(entry));
        found.min_by_key(|(_, entry)| at(entry)).map(|(place, _)| place)
    }

    /// Takes in what those have told who are being asked for; `heard` looks it up.
    pub(crate) fn listen(&mut self, heard: &dyn Fn(IpAddr) -> Option<Heard>) {
        let mut at = 0;
        while let Some(entry) = self.entries.get(at) {
            let addr = entry.addr;
            if let Some(heard) = entry.question.and_then(|_| heard(addr)) {
                self.hear(addr, heard);
            }
            // another may have made room for it
            at = self.find(addr).map_or_else(|at| at, |at| at + 1);
        }
    }

    /// A neighbour has said which hardware address it has, which is of use where it is being asked for, and nothing newer is known.
    fn hear(&mut self, addr: IpAddr, heard: Heard) {
        let Ok(mut at) = self.find(addr) else { return };
        let entry = &self.entries[at];
        let is_known = entry.mac.is_some();
        // RFC 4861 section 7.2.5: another one than is known changes nothing unless it is to
        let is_another = is_known && entry.mac != Some(heard.mac);
        if entry.question.is_none() || is_known && heard.at <= entry.heard_at || is_another && !heard.overrides {
            return;
        }
        let has_told = |entry: &Neighbour| entry.mac.is_some();
        // who was used the longest ago makes room for a new one
        if !is_known
            && self.count(has_told) == KNOWN
            && let Some(oldest) = self.first(has_told, |entry| entry.used_at)
        {
            self.entries.remove(oldest);
            at -= usize::from(oldest < at);
        }
        let entry = &mut self.entries[at];
        (entry.mac, entry.heard_at, entry.question) = (Some(heard.mac), heard.at, None);
    }

    /// Whether this one is being asked for, be it again.
    pub(crate) fn asks_for(&self, addr: IpAddr) -> bool {
        self.find(addr).is_ok_and(|at| self.entries[at].question.is_some())
    }

    /// Whether somebody is being asked for.
    pub(crate) fn asks(&self) -> bool {
        self.entries.iter().any(|entry| entry.question.is_some())
    }

    /// When a question is due.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.entries.iter().filter_map(|entry| Some(entry.question?.next_at)).min()
    }

    /// Asks what is due to be asked by `ask` (whom, and from which address), which is false when it cannot now; whether somebody was
    /// given up.
    pub(crate) fn poll(&mut self, now: Instant, ask: &mut dyn FnMut(IpAddr, IpAddr) -> bool) -> bool {
        let before = self.entries.len();
        self.entries.retain_mut(|entry| {
            let Some(question) = entry.question.as_mut().filter(|question| question.next_at <= now) else {
                return true;
            };
            if question.tries == TRIES {
                return false;
            }
            if ask(entry.addr, question.from) {
                (question.tries, question.next_at) = (question.tries + 1, now + RETRANSMIT);
            }
            true
        });
        self.entries.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn addr(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    const MAC: Mac = [2, 0, 0, 0, 0, 9];
    const LISTENER: Option<Listener> = Some(Listener(3));

    fn heard(ms: u64, mac: Mac) -> Heard {
        Heard { mac, at: at(ms), overrides: true }
    }

    /// Who is asked for.
    fn asked(neighbours: &mut Neighbours, now: Instant) -> (Vec<IpAddr>, bool) {
        let mut asked = Vec::new();
        let gone = neighbours.poll(now, &mut |addr, from| {
            assert_eq!(from, self::addr(1));
            asked.push(addr);
            true
        });
        (asked, gone)
    }

    #[test]
    fn a_neighbour_is_asked_for_until_it_answers_and_again_when_that_is_long_ago() {
        let mut table = Neighbours::new();
        assert_eq!(table.want(at(0), addr(7), addr(1), None), Look::Asked);
        assert_eq!(asked(&mut table, at(0)), (vec![addr(7)], false));
        assert_eq!(asked(&mut table, at(999)), (vec![], false));
        assert_eq!(asked(&mut table, at(1000)), (vec![addr(7)], false));
        table.hear(addr(8), heard(1001, MAC));
        assert_eq!(table.look(addr(8)), Look::Unknown, "nobody wanted to know");
        table.hear(addr(7), heard(1001, MAC));
        table.hear(addr(7), heard(1002, [9; 6]));
        assert_eq!((table.want(at(2000), addr(7), addr(1), None), table.due_at()), (Look::Known(MAC), None));
        let again = table.want(at(31_001), addr(7), addr(1), LISTENER);
        assert_eq!(again, Look::Known(MAC), "used while it is asked for again");
        assert_eq!(asked(&mut table, at(31_001)).0, [addr(7)]);
        // what is told meanwhile of the last time is no answer to that
        table.hear(addr(7), heard(1001, [8; 6]));
        assert_eq!((table.look(addr(7)), table.asks_for(addr(7))), (Look::Known(MAC), true));
        table.hear(addr(7), heard(31_002, [8; 6]));
        assert_eq!((table.look(addr(7)), table.asks_for(addr(7))), (Look::Known([8; 6]), false));
    }

    #[test]
    fn a_neighbour_in_doubt_is_asked_unless_it_was_heard_since_or_a_moment_ago() {
        let mut table = Neighbours::new();
        let known = Look::Known(MAC);
        assert_eq!(table.doubt(at(0), addr(7), addr(1), at(0)), Look::Asked);
        assert_eq!(asked(&mut table, at(0)).0, [addr(7)]);
        table.hear(addr(7), heard(1, MAC));
        for (now, silent_since, asks) in [(900, 800, false), (2000, 0, false), (2000, 1, true), (2000, 1500, true)] {
            assert_eq!(table.doubt(at(now), addr(7), addr(1), at(silent_since)), known);
            assert_eq!(table.asks_for(addr(7)), asks, "{now} {silent_since}");
            if asks {
                assert_eq!(asked(&mut table, at(now)).0, [addr(7)]);
                table.hear(addr(7), heard(now + 1, MAC));
                assert_eq!(table.doubt(at(now + 999), addr(7), addr(1), at(now + 500)), known);
                assert!(!table.asks_for(addr(7)), "one question a second");
                table.entries[0].heard_at = at(1);
            }
        }
    }

    #[test]
    fn an_answer_that_does_not_override_changes_nothing_that_is_known() {
        let gently = |ms, mac| Heard { overrides: false, ..heard(ms, mac) };
        let mut table = Neighbours::new();
        table.want(at(0), addr(7), addr(1), None);
        table.hear(addr(7), gently(1, MAC));
        assert_eq!(table.look(addr(7)), Look::Known(MAC), "nothing was known");
        table.want(at(31_000), addr(7), addr(1), None);
        table.hear(addr(7), gently(31_001, [8; 6]));
        assert_eq!((table.look(addr(7)), table.asks_for(addr(7))), (Look::Known(MAC), true));
        table.hear(addr(7), gently(31_002, MAC));
        assert_eq!((table.look(addr(7)), table.asks_for(addr(7))), (Look::Known(MAC), false));
    }

    #[test]
    fn who_does_not_answer_is_given_up() {
        let mut table = Neighbours::new();
        table.want(at(0), addr(7), addr(1), None);
        for n in 0..3 {
            assert_eq!(asked(&mut table, at(n * 1000)), (vec![addr(7)], false));
            assert_eq!(table.look(addr(7)), Look::Asked);
        }
        assert_eq!(asked(&mut table, at(3000)), (vec![], true));
        assert_eq!((table.look(addr(7)), table.asks()), (Look::Unknown, false));
    }

    fn many(n: usize) -> IpAddr {
        IpAddr::from([10, 0, (n / 256) as u8, n as u8])
    }

    /// The table after this many were asked for, and after they have answered if they do.
    fn table_of(neighbours: usize, by: Option<Listener>, answer: bool) -> Neighbours {
        let mut table = Neighbours::new();
        for n in 0..neighbours {
            assert_eq!(table.want(at(n as u64), many(n), addr(1), by), Look::Asked);
            if answer {
                table.hear(many(n), heard(n as u64, MAC));
            }
        }
        table
    }

    #[test]
    fn who_was_not_used_for_longest_makes_room_for_who_has_answered() {
        let mut table = table_of(KNOWN, None, true);
        table.want(at(1000), many(0), addr(1), None);
        assert_eq!(table.want(at(1001), addr(7), addr(1), None), Look::Asked);
        table.hear(addr(7), heard(1002, MAC));
        let found = [many(0), many(1), many(2), addr(7)].map(|addr| table.look(addr));
        assert_eq!(found, [Look::Known(MAC), Look::Unknown, Look::Known(MAC), Look::Known(MAC)]);
        assert_eq!(table.entries.len(), KNOWN);
        assert!(table.entries.is_sorted_by_key(|entry| entry.addr));
    }

    #[test]
    fn nobody_who_is_known_is_forgotten_for_who_is_asked_for() {
        let mut table = table_of(KNOWN, None, true);
        for n in KNOWN..KNOWN + 2 * ASKED {
            assert_eq!(table.want(at(n as u64), many(n), addr(1), LISTENER), Look::Asked);
        }
        assert!((0..KNOWN).all(|n| table.look(many(n)) == Look::Known(MAC)));
        assert_eq!(table.entries.len(), KNOWN + ASKED / 2);
        assert!(table.entries.is_sorted_by_key(|entry| entry.addr));
    }

    #[test]
    fn whoever_asks_for_many_loses_the_first_of_its_own() {
        let mut table = table_of(ASKED, LISTENER, false);
        let is_asked = |table: &Neighbours, n: usize| table.look(many(n)) == Look::Asked;
        assert!(!is_asked(&table, ASKED / 2 - 1) && is_asked(&table, ASKED / 2));
        for n in 1000..1000 + ASKED {
            assert_eq!(table.want(at(n as u64), many(n), addr(1), None), Look::Asked);
        }
        assert!((ASKED / 2..ASKED).all(|n| is_asked(&table, n)), "another's are not taken");
        assert_eq!((1000..1000 + ASKED).filter(|n| is_asked(&table, *n)).count(), ASKED / 4);
        assert!(is_asked(&table, 1000 + ASKED - 1));
        assert!(table.entries.is_sorted_by_key(|entry| entry.addr));
    }

    #[test]
    fn nobody_is_asked_for_more_than_once_a_second_however_many_there_are() {
        let mut table = Neighbours::new();
        let mut last: std::collections::BTreeMap<IpAddr, u64> = std::collections::BTreeMap::new();
        let mut refused = 0;
        for ms in (0..5000).step_by(10) {
            for n in 0..2 * ASKED {
                refused += usize::from(table.want(at(ms), many(n), addr(1), LISTENER) == Look::Unknown);
            }
            for addr in asked(&mut table, at(ms)).0 {
                let before = last.insert(addr, ms);
                assert!(before.is_none_or(|before| ms - before >= 1000), "{addr} at {before:?} and {ms}");
            }
        }
        assert!(refused > 0 && last.len() >= ASKED / 2, "{refused} refused, {} asked for", last.len());
    }

    #[test]
    fn connections_give_way_to_connections_before_their_time_but_not_without_end() {
        let mut table = table_of(ASKED / 2, None, false);
        asked(&mut table, at(1000));
        assert_eq!(table.want(at(1001), addr(7), addr(1), None), Look::Asked, "at once");
        let mut new = std::collections::BTreeSet::new();
        for ms in 1002..3002 {
            for n in 0..10 {
                table.want(at(ms), many(ms as usize * 10 + n), addr(1), None);
            }
            new.extend(asked(&mut table, at(ms)).0);
        }
        // in two seconds; besides, each place was given away in its time, twice at most
        let most = (2 * HURRIED + HURRIED_BURST) as usize + ASKED;
        assert!((HURRIED as usize..=most).contains(&new.len()), "{} of {most}", new.len());
    }

    #[test]
    fn all_that_were_heard_are_taken_in_also_where_others_make_room() {
        let mut table = table_of(KNOWN, None, true);
        let new = |n: usize| IpAddr::from([10, 9, 0, n as u8]);
        for n in 0..ASKED / 2 {
            assert_eq!(table.want(at(1000), new(n), addr(1), None), Look::Asked);
        }
        table.listen(&|addr| (addr >= new(0)).then_some(heard(1001, MAC)));
        assert!((0..ASKED / 2).all(|n| table.look(new(n)) == Look::Known(MAC)));
        assert_eq!((table.entries.len(), table.asks()), (KNOWN, false));
    }
}
