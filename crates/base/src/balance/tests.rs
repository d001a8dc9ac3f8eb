use super::*;
use proptest::prelude::*;

/// What is to be taken over at `now`, if an interval ends then.
fn migrate(balancer: &mut Balancer, now: Instant) -> Option<Relief> {
    if balancer.interval_is_over(now) { balancer.poll_migration(now) } else { None }
}

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn waiting(waiting: u32) -> Look {
    Look { waiting, ..Look::default() }
}

/// A balancer of thread 0 that has just looked at the others and found `backlogs`.
fn looked(policy: Policy, backlogs: &[u32]) -> Balancer {
    let mut balancer = Balancer::new(0, backlogs.len() + 1, policy);
    for (n, backlog) in backlogs.iter().enumerate() {
        balancer.on_look(n + 1, at(0), waiting(*backlog));
    }
    balancer
}

#[test]
fn busy_above_the_high_mark_until_the_average_is_under_the_low_one() {
    let policy = Policy { limit: 100, ..Policy::default() };
    let mut load = Load::default();
    assert!(!load.sample(&policy, at(0), 75));
    assert!(load.sample(&policy, at(1), 76));
    // an empty queue alone ends nothing: the average has to fall
    assert!(load.sample(&policy, at(2), 0));
    assert!(load.average() > 10);
    let freed = (3..1000).find(|ms| !load.sample(&policy, at(*ms), 0)).unwrap();
    // 75 falls to 10 in about twice the window
    assert!((60..200).contains(&freed), "{freed} ms");
    assert!(load.average() <= 10);
    // and a queue between the marks is neither
    assert!(!load.sample(&policy, at(2000), 50));
}

#[test]
fn the_average_does_not_depend_on_how_often_one_looks() {
    let policy = Policy::default();
    let fall = |step: u64| {
        let mut load = Load::default();
        load.sample(&policy, at(0), 1000);
        for ms in (step..=100).step_by(step as usize) {
            load.sample(&policy, at(ms), 0);
        }
        load.average()
    };
    // e^-2 of 1000 for looks without end; one step of 50 ms halves
    assert!((135..=150).contains(&fall(1)), "{}", fall(1));
    assert!((135..=260).contains(&fall(50)), "{}", fall(50));
    // and the extremes do not overflow
    let mut load = Load::default();
    load.sample(&policy, at(0), u32::MAX);
    load.sample(&policy, Instant::MAX, u32::MAX);
    assert_eq!(load.average(), u32::MAX);
}

#[test]
fn only_free_threads_steal_and_only_from_busy_ones() {
    let policy = Policy { limit: 10, ..Policy::default() };
    assert_eq!(looked(policy.clone(), &[7, 0]).victim(true), None);
    let mut thief = looked(policy.clone(), &[0, 8]);
    assert_eq!(thief.victim(true), Some(2));
    thief.on_look(0, at(0), waiting(8));
    assert_eq!(thief.victim(true), None, "busy itself");
    let off = looked(Policy { steal: false, ..policy }, &[0, 8]);
    assert_eq!((off.victim(true), off.nap(true)), (None, None));
}

#[test]
fn a_thread_with_work_steals_one_for_five_of_its_own() {
    let mut thief = looked(Policy { limit: 10, ..Policy::default() }, &[1000]);
    let mut stolen = 0;
    for local in 0..100 {
        assert_eq!(thief.victim(false).is_some(), local > 0 && local % 5 == 0, "after {local}");
        if let Some(victim) = thief.victim(false) {
            thief.on_stolen(victim, 1);
            stolen += 1;
        }
        thief.on_local(1);
    }
    assert_eq!(stolen, 19);
    // who has nothing of its own may always
    assert_eq!(thief.victim(true), Some(1));
}

#[test]
fn victims_take_turns_and_one_that_was_found_empty_is_left_alone() {
    let mut thief = looked(Policy { limit: 10, ..Policy::default() }, &[9, 9, 0, 9]);
    let mut seen = Vec::new();
    for _ in 0..6 {
        let victim = thief.victim(true).unwrap();
        thief.on_stolen(victim, 1);
        seen.push(victim);
    }
    assert_eq!(seen, [1, 2, 4, 1, 2, 4]);
    thief.on_stolen(1, 0);
    thief.on_stolen(2, 0);
    assert_eq!(thief.victim(true), Some(4));
    thief.on_stolen(4, 7);
    assert_eq!(thief.victim(true), None);
}

#[test]
fn what_a_thread_lets_lie_may_be_taken_and_what_it_gets_round_to_may_not() {
    let mut thief = Balancer::new(0, 2, Policy::default());
    let look = |cycles| Look { waiting: 1, cycles, ..Look::default() };
    thief.on_look(1, at(0), look(5));
    assert_eq!((thief.victim(true), thief.nap(false)), (None, Some(Duration::from_millis(1))));
    thief.on_look(1, at(1), look(6));
    assert_eq!(thief.victim(true), None, "it came round");
    thief.on_look(1, at(2), look(6));
    assert_eq!(thief.victim(true), Some(1), "it did not");
    thief.on_look(1, at(3), look(7));
    assert_eq!(thief.victim(true), None, "it goes on");
    // asleep, it is about to be woken by its own work
    thief.on_look(1, at(9), Look { asleep: true, ..look(7) });
    assert_eq!((thief.victim(true), thief.nap(false)), (None, None));
    assert_eq!(thief.nap(true), Some(Duration::from_millis(20)));
    // what came after a long time with nothing was not there all that time
    thief.on_look(1, at(20), Look { waiting: 0, ..look(7) });
    thief.on_look(1, at(900), look(7));
    assert_eq!(thief.victim(true), None);
}

#[test]
fn a_thread_that_is_down_is_busy_at_once() {
    let mut thief = Balancer::new(1, 2, Policy::default());
    thief.on_look(0, at(0), Look { waiting: 1, down: true, ..Look::default() });
    assert_eq!(thief.victim(true), Some(0));
    thief.on_look(0, at(0), Look { waiting: 0, down: true, ..Look::default() });
    assert_eq!(thief.victim(true), None);
}

#[test]
fn a_group_moves_from_whom_most_was_stolen_and_not_more_often_than_said() {
    let mut thief = looked(Policy { limit: 10, ..Policy::default() }, &[500, 500, 500]);
    let one_from = |from| Some(Relief { from, part: 0 });
    assert_eq!(migrate(&mut thief, at(0)), None);
    thief.on_stolen(1, 3);
    thief.on_stolen(2, 4);
    thief.on_stolen(3, 2);
    assert_eq!(migrate(&mut thief, at(99)), None);
    assert_eq!(migrate(&mut thief, at(100)), one_from(2));
    assert_eq!(migrate(&mut thief, at(200)), None, "nothing was stolen since");
    thief.on_stolen(1, 1);
    thief.on_look(0, at(250), waiting(9));
    assert_eq!(migrate(&mut thief, at(300)), None, "busy itself");
    let mut off = looked(Policy { migrate: false, ..Policy::default() }, &[500]);
    migrate(&mut off, at(0));
    off.on_stolen(1, 3);
    assert_eq!(migrate(&mut off, at(100)), None);
}

/// Thread 0 of as many as there are shares, and one interval after another in which each ran and waited for so many of 100 ms.
struct Intervals {
    balancer: Balancer,
    ms: u64,
    counts: Vec<Scheduled>,
}

impl Intervals {
    fn new(threads: usize) -> Intervals {
        let mut balancer = Balancer::new(0, threads, Policy { limit: 10, ..Policy::default() });
        assert!(!balancer.interval_is_over(at(0)));
        (0..threads).for_each(|thread| balancer.on_scheduled(thread, at(0), Scheduled::default()));
        Intervals { balancer, ms: 0, counts: vec![Scheduled::default(); threads] }
    }

    /// With loops that come round.
    fn next(&mut self, shares: &[(u64, u64)]) -> Option<Relief> {
        for thread in 0..shares.len() {
            self.balancer.on_look(thread, at(self.ms + 50), Look { cycles: self.ms, ..Look::default() });
        }
        self.end(shares)
    }

    fn end(&mut self, shares: &[(u64, u64)]) -> Option<Relief> {
        self.ms += 100;
        let now = at(self.ms);
        assert!(self.balancer.interval_is_over(now));
        for (thread, (ran, waited)) in shares.iter().enumerate() {
            self.counts[thread].ran_ns += ran * 1_000_000;
            self.counts[thread].waited_ns += waited * 1_000_000;
            self.balancer.on_scheduled(thread, now, self.counts[thread]);
        }
        self.balancer.poll_migration(now)
    }
}

#[test]
fn who_waits_for_its_processor_is_relieved_of_what_another_has_room_for() {
    let mut all = Intervals::new(2);
    assert_eq!(all.next(&[(20, 0), (20, 60)]), None, "once may be chance");
    assert_eq!(all.next(&[(20, 0), (20, 60)]), Some(Relief { from: 1, part: WHOLE }), "20 ms more are no trouble");
    assert!(all.balancer.is_busy(1) && !all.balancer.is_busy(0));
    // up to half of 100 ms: so there is room for 20 of the 40 ms that the others run
    let mut half = Intervals::new(2);
    half.next(&[(30, 0), (40, 60)]);
    let relief = half.next(&[(30, 0), (40, 60)]).unwrap();
    assert!((505..=518).contains(&relief.part), "{relief:?}");
    // and who runs next to nothing gives all
    let mut starved = Intervals::new(2);
    starved.next(&[(30, 0), (0, 99)]);
    assert_eq!(starved.next(&[(30, 0), (0, 99)]), Some(Relief { from: 1, part: WHOLE }));
}

#[test]
fn beyond_that_it_is_relieved_until_both_have_as_much_to_do() {
    let part = |ours, theirs| {
        let mut all = Intervals::new(2);
        all.next(&[ours, theirs]);
        all.next(&[ours, theirs]).map_or(0, |relief| relief.part)
    };
    // of 90 ms with something to do there and 40 here: 50 between them, each that leaves costs 90 there and 60 here
    assert!((338..=344).contains(&part((20, 20), (30, 60))), "{}", part((20, 20), (30, 60)));
    // 40 ms between them, 100 there and 40 here
    assert!((288..=295).contains(&part((60, 0), (40, 60))), "{}", part((60, 0), (40, 60)));
    // less where each takes five times as long
    assert!((215..=225).contains(&part((5, 20), (50, 50))), "{}", part((5, 20), (50, 50)));
    // and nothing of one that has time left and is held up no more than we would be
    assert_eq!(part((5, 15), (20, 30)), 0);
}

impl Intervals {
    /// The same, each having been let run so many times.
    fn let_run(&mut self, shares: &[(u64, u64)], times: &[u64]) -> Option<Relief> {
        self.counts.iter_mut().zip(times).for_each(|(counts, times)| counts.times += times);
        self.next(shares)
    }
}

#[test]
fn who_waits_longer_each_time_gives_what_another_has_time_for_until_it_waits_no_more() {
    // both wait as long as they run, but one 4 us each time, as for a wake-up, and the other 40
    let (shares, times) = ([(15, 15), (25, 30)], [3750, 750]);
    let mut all = Intervals::new(2);
    let parts = [(); 5].map(|()| all.let_run(&shares, &times).map_or(0, |relief| relief.part));
    // as long as that may be chance, what levels the two: 85 ms between them, each that leaves costs 55 there and 50 here; then for 35 ms
    // until half of the interval, where 25 are run there
    assert_eq!(parts, [0, 244, 244, 244, WHOLE]);
    // what is left waits less than would have begun it
    assert!(all.let_run(&[(30, 18), (5, 6)], &[3750, 150]).is_some());
    assert!(all.let_run(&[(35, 18), (2, 2)], &[3750, 50]).is_none());
    // nor does it stay late for the short waits that it has beside no other work
    let mut over = Intervals::new(2);
    over.let_run(&shares, &times);
    assert!(over.let_run(&shares, &times).is_some() && over.balancer.is_late(1));
    assert_eq!(over.let_run(&[(0, 0), (15, 15)], &[0, 3750]), None);
    assert!(!over.balancer.is_late(1));
    // and who waits longer itself does not relieve it, but for waits that are few
    let relieves = |waited| {
        let mut other = Intervals::new(2);
        (0..3).filter_map(|_| other.let_run(&[(10, waited), (30, 45)], &[8, 2250])).count()
    };
    assert_eq!([relieves(4), relieves(2)], [0, 2]);
    // as often and as long as we wait ourselves, it is left what it has
    let mut same = Intervals::new(2);
    assert!((0..5).all(|_| same.let_run(&shares, &[375, 750]).is_none()));
}

#[test]
fn who_is_held_back_for_an_eighth_of_its_time_is_relieved_and_not_stolen_from() {
    // as seen of half a light load beside one compiler: 45 us each time
    let times = [400, 400];
    let mut all = Intervals::new(2);
    assert_eq!(all.let_run(&[(10, 1), (13, 18)], &times), None, "once may be chance");
    assert_eq!(all.let_run(&[(10, 1), (13, 18)], &times), Some(Relief { from: 1, part: WHOLE }));
    assert!(!all.balancer.is_busy(1) && !all.balancer.is_late(1));
    // until it waits no more
    assert_eq!(all.let_run(&[(20, 1), (3, 5)], &[400, 100]), Some(Relief { from: 1, part: WHOLE }));
    assert_eq!(all.let_run(&[(22, 1), (1, 1)], &times), None);
    let mut less = Intervals::new(2);
    less.let_run(&[(10, 1), (13, 11)], &times);
    assert_eq!(less.let_run(&[(10, 1), (13, 11)], &times), None);
}

#[test]
fn who_has_no_time_left_relieves_nobody_however_much_shorter_its_own_waits_are() {
    // both processors have other work all the time: there in pieces of 90 us, here in many of 20
    let (shares, times) = ([(33, 62), (60, 25)], [3100, 270]);
    let mut all = Intervals::new(2);
    assert!((0..20).all(|_| all.let_run(&shares, &times).is_none()));
    assert!(all.balancer.is_late(0) && all.balancer.is_late(1));
    // with 40 ms left, of which each of the 60 that run there would take two
    let (shares, times) = ([(30, 30), (60, 25)], [1500, 270]);
    let mut all = Intervals::new(2);
    let relief = (0..5).filter_map(|_| all.let_run(&shares, &times)).last().unwrap();
    assert!((335..=345).contains(&relief.part), "{relief:?}");
}

#[test]
fn what_ends_at_one_thread_first_moves_nothing_at_once_nor_all_of_the_other_ones() {
    let both = [(40, 45), (40, 45)];
    let mut all = Intervals::new(2);
    assert!((0..9).all(|_| all.let_run(&both, &[450, 450]).is_none()));
    // they wait as long each time for the same kind of other work, which ours will do again with more to do
    let one = [(0, 0), (40, 45)];
    assert_eq!(all.let_run(&one, &[0, 450]), None, "once may be chance");
    for _ in 0..9 {
        let relief = all.let_run(&one, &[0, 450]).unwrap();
        assert!((505..=600).contains(&relief.part), "half, and more the longer ago that was: {relief:?}");
    }
    // and begins there first
    let mut all = Intervals::new(2);
    assert_eq!(all.let_run(&one, &[0, 450]), None);
    let again = [(38, 42), (40, 45)];
    assert!((0..9).all(|_| all.let_run(&again, &[420, 450]).is_none()));
}

#[test]
fn waits_that_differ_by_chance_are_no_reason_to_move_all() {
    let mut all = Intervals::new(2);
    // both have as much to do, and one or the other waits in fewer pieces
    for _ in 0..5 {
        assert!((0..4).all(|_| all.let_run(&[(40, 40), (40, 40)], &[400, 150]).is_none()));
        assert!((0..4).all(|_| all.let_run(&[(40, 40), (40, 40)], &[150, 400]).is_none()));
    }
}

#[test]
fn what_was_taken_over_before_a_rest_is_over() {
    let mut balancer = Balancer::new(0, 2, Policy::default());
    assert!(!balancer.has_rested(at(9000)), "nothing was before");
    assert!(!balancer.interval_is_over(at(9000)));
    assert!(!balancer.has_rested(at(10_099)));
    assert!(balancer.has_rested(at(10_100)));
    balancer.poll_migration(at(10_100));
    assert!(!balancer.has_rested(at(10_200)), "an interval");
}

#[test]
fn who_is_held_up_as_long_itself_leaves_to_others_what_they_get_round_to() {
    // each waits for 60 ms of 100, in so many times
    let victim = |ours: (u64, u64), looks: [Look; 2], times: [u64; 2], apart: u64| {
        let mut all = Intervals::new(2);
        for _ in 0..2 {
            all.let_run(&[ours, (30, 60)], &times);
        }
        looks.into_iter().enumerate().for_each(|(n, look)| all.balancer.on_look(1, at(300 + apart * n as u64), look));
        (all.balancer.victim(true), all.balancer.nap(false).map(|nap| nap.as_millis()))
    };
    let (round, still) = ([5, 6].map(|cycles| Look { cycles, ..waiting(2) }), [Look { cycles: 5, ..waiting(2) }; 2]);
    assert_eq!(victim((30, 0), round, [100, 600], 2), (Some(1), Some(1)), "not held up");
    assert_eq!(victim((30, 60), round, [600, 600], 2).0, None, "100 us each time, here and there");
    assert_eq!(victim((30, 50), round, [2500, 600], 2).0, Some(1), "20 us each time, and there 100");
    assert_eq!(victim((30, 60), round, [3000, 600], 2).0, None, "no time left for more");
    // whatever the scheduler says
    assert_eq!(victim((30, 60), still, [600, 600], 9), (None, Some(10)), "it waits as we do");
    assert_eq!(victim((30, 60), still, [600, 600], 10).0, Some(1), "lets it lie");
    let backlog = round.map(|look| Look { waiting: 8, ..look });
    assert_eq!(victim((30, 50), backlog, [600, 600], 2).0, Some(1), "a backlog, and time left for it");
    assert_eq!(victim((30, 60), backlog, [600, 600], 2).0, None, "a backlog, and no time left for it");
    let down = round.map(|look| Look { down: true, ..look });
    assert_eq!(victim((30, 60), down, [600, 600], 2).0, Some(1), "nobody else is there for it");
}

#[test]
fn who_had_no_time_left_takes_from_a_backlog_after_a_rest() {
    for rest in [100, 5000] {
        let mut all = Intervals::new(2);
        for _ in 0..2 {
            all.let_run(&[(30, 60), (30, 60)], &[600, 600]);
        }
        all.balancer.on_look(1, at(200), waiting(8));
        assert_eq!(all.balancer.victim(true), None, "no time left");
        for thread in 0..2 {
            all.balancer.on_scheduled(thread, at(200 + rest), all.counts[thread]);
        }
        assert_eq!(all.balancer.victim(true), Some(1), "after {rest} ms");
    }
}

#[test]
fn short_waits_are_no_other_work_however_many() {
    let mut all = Intervals::new(2);
    assert!((0..5).all(|_| all.let_run(&[(10, 0), (20, 60)], &[100, 6000]).is_none()));
    assert!(!all.balancer.is_late(1));
    assert_eq!(all.let_run(&[(10, 0), (20, 60)], &[100, 600]), None, "once may be chance");
    assert!(all.let_run(&[(10, 0), (20, 60)], &[100, 600]).is_some());
}

#[test]
fn how_long_a_thread_was_held_up_is_not_forgotten_at_once() {
    let mut all = Intervals::new(2);
    all.next(&[(5, 20), (20, 0)]);
    all.next(&[(0, 0), (20, 40)]);
    // three times as long there as at a free processor, but here it lately was five times
    assert_eq!(all.next(&[(0, 0), (20, 40)]), None);
    let found = (0..400).find(|_| all.next(&[(0, 0), (20, 40)]).is_some()).unwrap();
    assert!((30..300).contains(&found), "after {found} intervals");
}

#[test]
fn threads_that_have_as_much_to_do_leave_each_other_alone() {
    for shares in [[(60, 40), (55, 45)], [(50, 0), (40, 20)], [(90, 5), (40, 24)], [(80, 20), (20, 70)]] {
        let mut all = Intervals::new(2);
        assert!((0..20).all(|_| all.next(&shares).is_none()), "{shares:?}");
    }
    // and what is there now and then is nothing
    let mut all = Intervals::new(2);
    for _ in 0..20 {
        assert_eq!(all.next(&[(20, 0), (20, 60)]), None);
        assert_eq!(all.next(&[(20, 0), (20, 10)]), None);
    }
}

#[test]
fn who_was_relieved_takes_nothing_over_for_a_while() {
    let mut all = Intervals::new(3);
    all.next(&[(20, 0), (20, 60), (10, 50)]);
    all.balancer.on_relieved(at(100));
    for _ in 2..11 {
        assert_eq!(all.next(&[(20, 0), (20, 60), (10, 50)]), None);
    }
    let relief = all.next(&[(20, 0), (20, 60), (10, 50)]).unwrap();
    assert_eq!(relief.from, 1, "who waits longest");
}

#[test]
fn what_was_taken_over_may_go_back_once_nobody_is_held_up_longer_than_who_has_it() {
    let mut all = Intervals::new(2);
    let may = |all: &Intervals| all.balancer.may_give_back(at(all.ms));
    assert!((0..2).filter_map(|_| all.next(&[(20, 0), (20, 60)])).count() == 1 && !may(&all));
    // the other one's processor has other work still, as far as was seen of it
    let mut back = None;
    for interval in 1..400 {
        assert_eq!(all.next(&[(40, 0), (0, 0)]), None);
        if may(&all) {
            back = Some(interval);
            break;
        }
    }
    assert!((60..300).contains(&back.unwrap()), "{back:?}");
    // both have as much other work, and that for a second
    let mut alike = Intervals::new(2);
    assert!((0..2).filter_map(|_| alike.next(&[(20, 0), (20, 60)])).count() == 1);
    let back = (1..40).find(|_| {
        alike.next(&[(40, 50), (40, 55)]);
        may(&alike)
    });
    assert_eq!(back, Some(HELD));
    // nor while it is helped itself
    alike.balancer.on_relieved(at(alike.ms));
    assert!(!may(&alike));
}

#[test]
fn who_does_not_come_round_for_an_interval_has_more_than_it_can_do() {
    let mut all = Intervals::new(2);
    let mut next = |look: Look, shares| {
        all.balancer.on_look(1, at(all.ms + 50), look);
        all.balancer.on_stolen(1, 1);
        all.end(&[(0, 0), shares]).map(|relief| relief.part)
    };
    let look = |cycles| Look { waiting: 1, cycles, ..Look::default() };
    assert_eq!(next(look(5), (0, 0)), Some(0), "not for an interval yet");
    assert_eq!(next(look(5), (0, 0)), Some(WHOLE / 2), "whether something is left is all the same");
    assert_eq!(next(look(6), (0, 0)), Some(0), "it came round");
    let asleep = Look { asleep: true, ..look(6) };
    assert_eq!((next(asleep, (0, 0)), next(asleep, (0, 0))), (Some(0), Some(0)));
    assert_eq!((next(look(6), (0, 0)), next(look(6), (0, 100))), (Some(0), Some(WHOLE)), "it was not let");
}

#[test]
fn counts_from_long_ago_and_odd_ones_say_nothing() {
    let mut all = Intervals::new(2);
    all.next(&[(20, 0), (20, 60)]);
    // nobody looked for a second
    all.ms += 1000;
    assert_eq!(all.next(&[(0, 0), (100, 900)]), None);
    assert_eq!(all.next(&[(20, 0), (20, 60)]), None);
    assert!(all.next(&[(20, 0), (20, 60)]).is_some());
    // the counts of a thread that was started again begin anew
    all.counts[1] = Scheduled::default();
    assert_eq!(all.next(&[(20, 0), (0, 0)]), None);
}

#[test]
fn groups_are_dealt_out_in_turn_and_move_only_from_their_owner() {
    let mut owners = Owners::new(8, 3);
    assert_eq!(owners.iter().collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0, 1]);
    assert_eq!(owners.give(3, 0, 2), Some(Move { group: 3, from: 0, to: 2 }));
    assert_eq!(owners.give(3, 0, 1), None, "somebody was faster");
    assert_eq!(owners.give(8, 0, 1), None, "no such group");
    assert_eq!((owners.of(3), owners.count(0), owners.count(2)), (2, 2, 3));
}

#[test]
fn who_leaves_gets_back_what_nobody_moved_on() {
    let mut owners = Owners::new(9, 3);
    let left = owners.leave(0, &[0, 1, 2]);
    assert_eq!(left.len(), 3);
    assert_eq!((owners.count(0), owners.count(1), owners.count(2)), (0, 5, 4));
    owners.give(3, 2, 1).unwrap();
    assert_eq!(owners.come_back(&left).len(), 2);
    assert_eq!((owners.count(0), owners.of(3)), (2, 1));
    assert_eq!(Owners::new(4, 1).leave(0, &[0]), [], "nobody is left");
}

#[derive(Clone, Debug)]
enum Event {
    Look(usize, Look),
    Local(u32),
    Steal(bool),
    Scheduled(usize, u64, u64),
    Migrate,
}

fn event() -> impl Strategy<Value = Event> {
    let look = (0..20u32, 0..4u64, any::<bool>(), proptest::bool::weighted(0.1));
    let look = look.prop_map(|(waiting, cycles, asleep, down)| Look { waiting, cycles, asleep, down });
    prop_oneof![
        4 => (0..4usize, look).prop_map(|(thread, look)| Event::Look(thread, look)),
        2 => (0..8u32).prop_map(Event::Local),
        3 => any::<bool>().prop_map(Event::Steal),
        1 => (0..4usize, 0..200u64, 0..200u64).prop_map(|(thread, ran, waited)| Event::Scheduled(thread, ran, waited)),
        1 => Just(Event::Migrate),
    ]
}

proptest! {
    /// Whatever is seen: nobody steals from itself, from who is not busy or has nothing, or while busy; with work of its own not
    /// more than one in six; and groups come at most every 100 ms, from who was stolen from.
    #[test]
    fn the_rules_hold_whatever_happens(events in proptest::collection::vec((event(), 0..40u64), 1..300)) {
        let mut balancer = Balancer::new(2, 4, Policy { limit: 10, ..Policy::default() });
        let (mut ms, mut local, mut stolen_beside_work) = (0u64, 0u64, 0u64);
        let (mut stolen, mut counts) = ([0u64; 4], [Scheduled::default(); 4]);
        let mut migrated: Option<u64> = None;
        for (event, pause) in events {
            ms += pause;
            match event {
                Event::Look(thread, look) => balancer.on_look(thread, at(ms), look),
                Event::Local(n) => {
                    balancer.on_local(n);
                    local += u64::from(n);
                }
                Event::Steal(idle) => if let Some(victim) = balancer.victim(idle) {
                    prop_assert!(victim != 2 && balancer.is_busy(victim));
                    prop_assert!(!balancer.views[2].is_behind());
                    prop_assert!(balancer.views[victim].look.waiting > 0);
                    balancer.on_stolen(victim, 1);
                    stolen[victim] += 1;
                    stolen_beside_work += u64::from(!idle);
                    prop_assert!(stolen_beside_work * 5 <= local);
                },
                Event::Scheduled(thread, ran, waited) => {
                    counts[thread].ran_ns += ran * 1_000_000;
                    counts[thread].waited_ns += waited * 1_000_000;
                    balancer.on_scheduled(thread, at(ms), counts[thread]);
                }
                Event::Migrate => {
                    let due = balancer.migrate_at.is_some_and(|due| at(ms) >= due);
                    let held_back: Vec<usize> = (0..4).filter(|n| balancer.views[*n].shares.is_held_back()).collect();
                    if let Some(Relief { from, part }) = migrate(&mut balancer, at(ms)) {
                        let most = stolen[from] > 0 && stolen[from] == *stolen.iter().max().unwrap();
                        prop_assert!(from != 2 && (most || held_back.contains(&from) && part > 0) && part <= WHOLE);
                        prop_assert!(migrated.is_none_or(|before| ms - before >= 100));
                        migrated = Some(ms);
                    }
                    if due {
                        stolen = [0; 4];
                    }
                }
            }
        }
    }

    /// However groups move, each has one owner that exists, and who left owns none.
    #[test]
    fn every_group_has_an_owner(
        groups in 1..200usize,
        threads in 2..9usize,
        gifts in proptest::collection::vec((0..200usize, 0..9usize, 0..9usize), 0..50),
        gone in 0..9usize,
    ) {
        let mut owners = Owners::new(groups, threads);
        for (group, from, to) in gifts {
            let (group, from, to) = (group % groups, from % threads, to % threads);
            let had = owners.of(group);
            let moved = owners.give(group, from, to);
            prop_assert_eq!(moved.is_some(), had == from);
            prop_assert_eq!(owners.of(group), if had == from { to } else { had });
        }
        let gone = gone % threads;
        let before = owners.clone();
        let heirs: Vec<_> = (0..threads).collect();
        let left = owners.leave(gone, &heirs);
        prop_assert_eq!((left.len(), owners.count(gone)), (before.count(gone), 0));
        // evenly: nobody gets two more than another
        let gained: Vec<_> =
            (0..threads).filter(|n| *n != gone).map(|n| owners.count(n) - before.count(n)).collect();
        prop_assert!(gained.iter().max().unwrap() - gained.iter().min().unwrap() <= 1);
        prop_assert_eq!(owners.come_back(&left).len(), left.len());
        prop_assert_eq!(owners, before);
    }
}
