//! Hardware addresses of neighbours that we want to send to, asked for by ARP (RFC 826) or neighbour solicitation (RFC 4861
//! section 7.2).
//!
//! Only who was asked for is remembered, so nobody fills the table from outside. An entry older than [`FRESH`] is used as it is, and
//! asked for again meanwhile; one that does not answer is forgotten.

use base::Instant;
use std::net::IpAddr;
use std::time::Duration;
use wire::ethernet::Mac;

/// Entries at most.
const MOST: usize = 256;
/// Questions before a neighbour is given up (RFC 4861 MAX_MULTICAST_SOLICIT), and the time between them (RETRANS_TIMER).
const TRIES: u8 = 3;
const RETRANSMIT: Duration = Duration::from_secs(1);
/// So long an answer is believed without asking again (RFC 4861 REACHABLE_TIME).
const FRESH: Duration = Duration::from_secs(30);

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
}

/// The table, sorted by address.
#[derive(Debug)]
pub(crate) struct Neighbours {
    entries: Vec<Neighbour>,
}

impl Neighbours {
    pub(crate) fn new() -> Neighbours {
        Neighbours { entries: Vec::with_capacity(MOST) }
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

    /// The same, and asks from our address `from` where that is called for.
    pub(crate) fn want(&mut self, now: Instant, addr: IpAddr, from: IpAddr) -> Look {
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
        let at = if self.entries.len() < MOST {
            at
        } else {
            // who was used the longest ago, and is not waited for, makes room
            let idle = self.entries.iter().enumerate().filter(|(_, entry)| entry.question.is_none());
            let Some((oldest, _)) = idle.min_by_key(|(_, entry)| entry.used_at) else { return Look::Unknown };
            self.entries.remove(oldest);
            at - usize::from(oldest < at)
        };
        self.entries.insert(at, Neighbour { addr, mac: None, heard_at: now, used_at: now, question });
        Look::Asked
    }

    /// A neighbour has said which hardware address it has; whether that was wanted.
    pub(crate) fn hear(&mut self, now: Instant, addr: IpAddr, mac: Mac) -> bool {
        let Ok(at) = self.find(addr) else { return false };
        let entry = &mut self.entries[at];
        (entry.mac, entry.heard_at, entry.question) = (Some(mac), now, None);
        true
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
        assert_eq!(table.want(at(0), addr(7), addr(1)), Look::Asked);
        assert_eq!(asked(&mut table, at(0)), (vec![addr(7)], false));
        assert_eq!(asked(&mut table, at(999)), (vec![], false));
        assert_eq!(asked(&mut table, at(1000)), (vec![addr(7)], false));
        assert!(!table.hear(at(1001), addr(8), MAC), "nobody wanted to know");
        assert!(table.hear(at(1001), addr(7), MAC));
        assert_eq!((table.want(at(2000), addr(7), addr(1)), table.due_at()), (Look::Known(MAC), None));
        assert_eq!(table.want(at(31_001), addr(7), addr(1)), Look::Known(MAC), "used while it is asked for again");
        assert_eq!(asked(&mut table, at(31_001)).0, [addr(7)]);
    }

    #[test]
    fn who_does_not_answer_is_given_up() {
        let mut table = Neighbours::new();
        table.want(at(0), addr(7), addr(1));
        for n in 0..3 {
            assert_eq!(asked(&mut table, at(n * 1000)), (vec![addr(7)], false));
            assert_eq!(table.look(addr(7)), Look::Asked);
        }
        assert_eq!(asked(&mut table, at(3000)), (vec![], true));
        assert_eq!((table.look(addr(7)), table.asks()), (Look::Unknown, false));
    }

    #[test]
    fn who_was_not_used_for_longest_makes_room_and_nobody_who_is_waited_for() {
        let mut table = Neighbours::new();
        let many = |n: usize| IpAddr::from([10, 0, (n / 256) as u8, n as u8]);
        for n in 0..MOST {
            assert_eq!(table.want(at(n as u64), many(n), addr(1)), Look::Asked);
        }
        assert_eq!(table.want(at(1000), addr(7), addr(1)), Look::Unknown);
        for n in [9, 5, 200] {
            assert!(table.hear(at(1001), many(n), MAC));
        }
        table.want(at(1002), many(5), addr(1));
        assert_eq!(table.want(at(1003), addr(7), addr(1)), Look::Asked);
        assert_eq!([5, 9, 200].map(|n| table.look(many(n))), [Look::Known(MAC), Look::Unknown, Look::Known(MAC)]);
        assert!(table.entries.is_sorted_by_key(|entry| entry.addr));
    }
}
