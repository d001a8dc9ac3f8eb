//! The choice under loads that are drawn, against what is asked for in truth.

use super::*;
use base::rng::Rng;
use dns::Tables;
use proptest::prelude::*;
use zone::MemorySource;

const ENTRIES: Size = Size { short: 3, long: 0 };
const AMPLE: Size = Size { short: 1 << 20, long: 1 << 20 };

/// So many names.
fn names(count: usize) -> Vec<NameId> {
    let hosts: String = (0..count).map(|n| format!("n{n} A 192.0.2.1\n")).collect();
    let source = MemorySource::new().with("zone", format!("$TTL 60\n@ SOA ns h 1 1 1 1 60\n@ NS ns.x.\n{hosts}"));
    let zone = zone::load(&source, "zone", Some("example.".parse().unwrap())).unwrap();
    let tables = Tables::build(vec![zone], 7).unwrap();
    let mut ids: Vec<NameId> = tables.fixed().map(|name| name.id()).collect();
    ids.truncate(count);
    assert_eq!(ids.len(), count);
    ids
}

/// A choice, and questions for it as the driver and the serving threads would count them.
struct Bed {
    choice: Choice,
    names: Vec<NameId>,
    rng: Rng,
}

impl Bed {
    /// The first names are in, as after a start.
    fn new(seats: u32, names: Vec<NameId>, room: Size, seed: u64) -> Bed {
        let mut choice = Choice::new(seats, room);
        for name in &names {
            if choice.used.short + ENTRIES.short <= room.short {
                choice.sit(*name, 0.0, ENTRIES);
            }
        }
        Bed { choice, names, rng: Rng::new(seed) }
    }

    /// A question for a name, counted where it is answered.
    fn ask(&mut self, name: NameId) {
        match self.choice.by_name.get(&name).copied() {
            Some(at) => self.choice.answered(at as usize, 1),
            None => self.choice.asked(name, 1),
        }
    }

    /// A round in which so many samples are taken of names by Zipf's law, the rank-th being `which(rank)`.
    fn round(&mut self, samples: usize, which: impl Fn(usize) -> usize) -> Change {
        self.choice.age();
        for _ in 0..samples {
            let uniform = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            let rank = ((self.names.len() + 1) as f64).powf(uniform) as usize - 1;
            self.ask(self.names[which(rank)]);
        }
        self.choice.bound();
        self.change()
    }

    fn change(&mut self) -> Change {
        let change = self.choice.change(|_| ENTRIES);
        self.check();
        change
    }

    /// What holds at all times.
    fn check(&self) {
        let Choice { seats, by_name, free, used, room, waiting, .. } = &self.choice;
        let taken: Vec<(u32, &Seat)> =
            seats.iter().enumerate().filter_map(|(at, seat)| Some((at as u32, seat.as_ref()?))).collect();
        assert_eq!((taken.len(), seats.len()), (by_name.len(), by_name.len() + free.len()));
        assert!(taken.iter().all(|(at, seat)| by_name[&seat.name] == *at && !waiting.contains_key(&seat.name)));
        let sum = |of: fn(&Size) -> usize| taken.iter().map(|(_, seat)| of(&seat.size)).sum::<usize>();
        assert_eq!((sum(|size| size.short), sum(|size| size.long)), (used.short, used.long));
        assert!(used.short <= room.short && used.long <= room.long);
    }

    /// Of the `count` hottest ranks those that are in.
    fn inside(&self, count: usize, which: impl Fn(usize) -> usize) -> usize {
        (0..count).filter(|rank| self.choice.has(self.names[which(*rank)])).count()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// Names come in by their heat, a load that stays changes nothing any more, and one that moves is followed.
    #[test]
    fn the_hottest_come_in_and_stay_while_they_are(seed in any::<u64>()) {
        let names = names(4000);
        let last = names.len() - 1;
        let mut bed = Bed::new(100, names, AMPLE, seed);
        // the hottest are those that chance has not put in
        for which in [|rank, last| last - rank, |rank, last| (rank + last / 2) % (last + 1)] {
            let which = |rank: usize| which(rank, last);
            (0..60).for_each(|_| drop(bed.round(5000, which)));
            prop_assert_eq!(bed.inside(30, which), 30);
            prop_assert!(bed.inside(100, which) >= 80, "{} of 100", bed.inside(100, which));
            // one whose rate is just so far from another's may still come
            let changed: usize = (0..60).map(|_| bed.round(5000, which).into.len()).sum();
            prop_assert!(changed <= 5, "{changed} changes in a minute");
        }
    }

    /// Who asks for everything there is, a few times each, moves nobody.
    #[test]
    fn a_walk_through_the_zone_changes_nothing(seed in any::<u64>()) {
        let mut bed = Bed::new(100, names(4000), AMPLE, seed);
        for n in 0..20 {
            bed.choice.age();
            // twice within the time that counts
            for name in bed.names.clone().into_iter().skip(n * 400 % 4000).take(400) {
                bed.ask(name);
            }
            bed.choice.bound();
            prop_assert_eq!(bed.change(), Change::default());
        }
    }

    /// Names of any size, and room that runs short of either kind of entries before the seats do.
    #[test]
    fn the_room_is_kept_and_used(seed in any::<u64>(), short in 20usize..200, long in 0usize..20) {
        let rng = &mut Rng::new(seed);
        let names = names(300);
        let sizes: Vec<Size> = names
            .iter()
            .map(|_| Size { short: 1 + rng.below(12) as usize, long: rng.below(4) as usize / 3 * (1 + rng.below(3) as usize) })
            .collect();
        let mut bed = Bed::new(50, Vec::new(), Size { short, long }, seed);
        let size = |name| sizes[names.iter().position(|n| *n == name).unwrap()];
        for _ in 0..30 {
            bed.choice.age();
            for (n, name) in names.iter().enumerate() {
                (0..rng.below(2 + 30 / (1 + n as u64 / 10))).for_each(|_| bed.ask(*name));
            }
            let change = bed.choice.change(size);
            bed.check();
            for (at, name) in change.into {
                // as when the program finds that it cannot have one
                if rng.chance(0.05) {
                    bed.choice.refused(at, name, rng.chance(0.5));
                }
            }
            bed.check();
        }
        let Choice { used, .. } = bed.choice;
        // 12 short entries or 3 long ones are the largest name's
        prop_assert!(used.short + 12 > short || used.long + 3 > long || bed.choice.len() == 50, "{used:?} of {short}, {long}");
    }
}

#[test]
fn a_name_in_must_be_left_behind_by_far() {
    let all = names(3);
    let mut bed = Bed::new(1, all[..1].to_vec(), AMPLE, 1);
    bed.choice.answered(0, 100);
    bed.choice.asked(all[1], 215);
    assert_eq!(bed.change(), Change::default());
    bed.choice.asked(all[1], 1);
    assert_eq!(bed.change(), Change { out: vec![(0, all[0])], into: vec![(0, all[1])] });
    // and keeps its heat when it goes
    bed.choice.asked(all[0], 347);
    assert_eq!(bed.change(), Change::default());
    bed.choice.asked(all[0], 1);
    assert_eq!(bed.change(), Change { out: vec![(0, all[1])], into: vec![(0, all[0])] });
}

#[test]
fn what_the_driver_cannot_have_is_not_tried_again() {
    let all = names(3);
    let mut bed = Bed::new(2, all[..1].to_vec(), Size { short: 6, long: 0 }, 1);
    bed.choice.asked(all[1], 1000);
    assert_eq!(bed.choice.change(|_| Size { short: 7, long: 0 }), Change::default());
    bed.choice.asked(all[1], 1000);
    assert_eq!(bed.change(), Change::default());
    bed.choice.asked(all[2], 1000);
    assert_eq!(bed.change(), Change { out: vec![], into: vec![(1, all[2])] });
    // for want of room it may be tried again, otherwise not
    bed.choice.refused(1, all[2], false);
    assert_eq!(bed.change(), Change { out: vec![], into: vec![(1, all[2])] });
    bed.choice.refused(1, all[2], true);
    bed.choice.asked(all[2], 1000);
    assert_eq!(bed.change(), Change::default());
}

#[test]
fn those_that_wait_are_bounded_and_the_hottest_of_them_stay() {
    let all = names(6000);
    let mut bed = Bed::new(1, Vec::new(), AMPLE, 1);
    for (n, name) in all.iter().enumerate() {
        bed.choice.asked(*name, 1 + u32::from(n % 100 == 0));
    }
    bed.choice.bound();
    assert_eq!(bed.choice.waiting.len(), LEAST_WAITING);
    assert!(all.iter().step_by(100).all(|name| bed.choice.waiting[name] == 2.0));
    // and are forgotten
    (0..20).for_each(|_| bed.choice.age());
    assert_eq!(bed.choice.waiting.len(), 0);
}
