use super::*;
use proptest::prelude::*;
use std::time::Duration;

const EVERY: Duration = Duration::from_millis(100);

fn threads(n: usize, groups: usize) -> Vec<Balance> {
    let board = Board::new(n);
    (0..n).map(|me| Balance::new(me, groups, Policy::default(), board.clone())).collect()
}

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

/// One interval with this backlog and these frames of each group.
fn interval(balance: &mut Balance, number: u64, waiting: usize, frames: &[(u16, u32)]) -> Advice {
    for (group, count) in frames {
        (0..*count).for_each(|_| balance.took(*group));
    }
    let start = at(number * 100);
    for ms in 1..99 {
        assert_eq!(balance.look(start + Duration::from_millis(ms), waiting), None);
    }
    balance.look(start + EVERY, waiting).expect("the end of an interval")
}

#[test]
fn a_free_thread_asks_a_busy_one_for_half_of_the_difference() {
    let mut threads = threads(2, 8);
    threads.iter_mut().for_each(|balance| assert_eq!(balance.look(at(0), 0), Some(Advice::Nothing)));
    let [busy, free] = &mut threads[..] else { unreachable!() };
    assert_eq!(interval(busy, 0, 64, &[(0, 600), (1, 300), (2, 100)]), Advice::CallForHelp);
    assert_eq!(
        interval(free, 0, 3, &[(5, 200)]),
        Advice::Ask(Relief { from: 0, frames: 200, of: 500, held_up: false })
    );
    // what fits: the weights were halved when the interval ended
    assert_eq!(busy.choose([200, 500], 0, |_| true, |_| false), [1, 2]);
    assert_eq!(busy.choose([400, 500], 0, |_| true, |_| false), [0, 2]);
    assert_eq!(busy.choose([10, 500], 0, |_| true, |_| false), [2]);
    assert_eq!(busy.choose([200, 500], 0, |group| group == 0, |_| false), [0]);
    assert!(busy.choose([200, 500], 0, |group| group > 2, |_| false).is_empty());
    assert_eq!(busy.choose([200, 500], 0, |_| true, |group| group == 2), [2, 1]);
}

#[test]
fn two_busy_threads_and_two_free_ones_leave_each_other_alone() {
    for waiting in [0, 64] {
        let mut threads = threads(2, 8);
        threads.iter_mut().for_each(|balance| assert_eq!(balance.look(at(0), waiting), Some(Advice::Nothing)));
        for number in 0..5 {
            for balance in &mut threads {
                let expected = if waiting == 0 { Advice::Nothing } else { Advice::CallForHelp };
                assert_eq!(interval(balance, number, waiting, &[(1, 100)]), expected);
            }
        }
    }
}

#[test]
fn one_that_went_to_sleep_while_it_was_busy_is_left_alone() {
    let mut threads = threads(2, 8);
    threads.iter_mut().for_each(|balance| assert_eq!(balance.look(at(0), 0), Some(Advice::Nothing)));
    assert_eq!(interval(&mut threads[0], 0, 64, &[(0, 160)]), Advice::CallForHelp);
    assert!(matches!(interval(&mut threads[1], 0, 0, &[]), Advice::Ask(_)));
    assert_eq!(threads[1].look(at(600), 0), Some(Advice::Nothing));
}

#[test]
fn who_is_to_have_a_share_asks_for_nothing_until_others_have_shown_what_is_left() {
    let mut threads = threads(2, 8);
    threads.iter_mut().for_each(|balance| assert_eq!(balance.look(at(0), 0), Some(Advice::Nothing)));
    threads[1].shares(at(50));
    for number in 0..4 {
        assert_eq!(interval(&mut threads[0], number, 64, &[(0, 160)]), Advice::CallForHelp);
        let asks = matches!(interval(&mut threads[1], number, 0, &[]), Advice::Ask(_));
        assert_eq!(asks, number == 3, "at {} ms", 100 * (number + 1));
    }
    // what holds it for longer is not cut short
    threads[1].held_until = Some(at(2_000));
    threads[1].shares(at(500));
    assert_eq!(threads[1].held_until, Some(at(2_000)));
}

#[test]
fn one_that_waits_for_its_processor_is_busy_without_a_backlog() {
    let mut threads = threads(2, 8);
    threads.iter_mut().for_each(|balance| assert_eq!(balance.look(at(0), 0), Some(Advice::Nothing)));
    let [late, free] = &mut threads[..] else { unreachable!() };
    assert!(late.wants_delay(at(0)));
    late.on_delay(at(0), Waits { ns: 5_000_000, times: 1 }, 0);
    assert!(!late.wants_delay(at(99)) && late.wants_delay(at(100)));
    // 12.5 ms of 100
    late.on_delay(at(100), Waits { ns: 17_500_000, times: 200 }, 0);
    assert_eq!(interval(late, 0, 1, &[(0, 160)]), Advice::CallForHelp);
    assert_eq!(interval(free, 0, 1, &[(1, 160)]), Advice::Ask(Relief { from: 0, frames: 40, of: 80, held_up: true }));
    late.on_delay(at(200), Waits { ns: 21_000_000, times: 400 }, 0);
    assert!(late.is_held_up());
    late.on_delay(at(300), Waits { ns: 24_000_000, times: 600 }, 0);
    assert_eq!(interval(late, 1, 1, &[(0, 160)]), Advice::Nothing);
}

#[test]
fn one_that_waits_long_each_time_is_held_up_though_it_is_seldom_to_run() {
    let mut threads = threads(1, 8);
    let [late] = &mut threads[..] else { unreachable!() };
    let mut told = Waits::default();
    for (ms, ns, times, expected) in [
        (0, 0, 1, false),
        (100, 1_900_000, 1, false),
        (200, 2_000_000, 4, true),
        // fewer, once that is so
        (300, 600_000, 1, true),
        (9_000, 500_000, 1, true),
        (9_100, 900_000, 4, true),
        (9_200, 700_000, 4, false),
        (9_300, 1_900_000, 3, false),
        (9_400, 10_000_000, 100, false),
    ] {
        told = Waits { ns: told.ns + ns, times: told.times + times };
        late.on_delay(at(ms), told, 0);
        assert_eq!(late.is_held_up(), expected, "at {ms} ms");
    }
}

#[test]
fn a_slow_thread_is_relieved_though_it_takes_less_than_others() {
    let mut threads = threads(3, 8);
    threads.iter_mut().for_each(|balance| assert_eq!(balance.look(at(0), 0), Some(Advice::Nothing)));
    for slow in [0, 2] {
        assert_eq!(interval(&mut threads[slow], 0, 64, &[(0, 160)]), Advice::CallForHelp);
    }
    let free = &mut threads[1];
    // in turn
    assert_eq!(interval(free, 0, 0, &[(3, 1000)]), Advice::Ask(Relief { from: 2, frames: 5, of: 80, held_up: false }));
    assert_eq!(interval(free, 1, 0, &[(3, 1000)]), Advice::Ask(Relief { from: 0, frames: 5, of: 80, held_up: false }));
    let policy = Policy { migrate: false, ..Policy::default() };
    let mut off = Balance::new(1, 8, policy, free.board.clone());
    assert_eq!(off.look(at(0), 0), Some(Advice::Nothing));
    assert_eq!(interval(&mut off, 0, 0, &[]), Advice::Nothing);
}

/// What a free thread asks a busy one for, after an interval in which both served 100 frames and were busy for so many milliseconds
/// of 100, with so many that wait at the busy one, which may be held up.
fn asked([here, there]: [u64; 2], waiting: usize, held_up: bool) -> u32 {
    let mut threads = threads(2, 128);
    threads.iter_mut().for_each(|balance| assert_eq!(balance.look(at(0), 0), Some(Advice::Nothing)));
    let [free, busy] = &mut threads[..] else { unreachable!() };
    let waits = |ns| Waits { ns, times: 100 };
    free.on_delay(at(0), waits(0), 0);
    busy.on_delay(at(0), waits(0), 0);
    free.on_delay(at(100), waits(0), here * 1_000_000);
    busy.on_delay(at(100), waits(if held_up { 23_000_000 } else { 0 }), there * 1_000_000);
    assert_eq!(interval(busy, 0, waiting, &[(0, 100)]), Advice::CallForHelp);
    match interval(free, 0, 1, &[(1, 100)]) {
        Advice::Ask(relief) => relief.frames,
        _ => 0,
    }
}

#[test]
fn two_threads_are_levelled_by_the_time_that_they_need() {
    // frames in an interval as the weights have them: 50 each; what is asked for is half of what would level them, and at most all
    assert_eq!(asked([10, 100], 64, false), 50);
    assert_eq!(asked([60, 100], 64, false), 34);
    assert_eq!(asked([95, 100], 64, false), 19);
    // held up, without a backlog: what takes 95 ms there takes 75 ms here
    assert_eq!(asked([75, 95], 1, true), 5);
    // too little to be worth it, and nothing from one that needs less
    assert_eq!(asked([93, 95], 1, true), 0);
    assert_eq!(asked([98, 95], 1, true), 0);
    // a frame takes twice as long there: it is worth it however little time there is here
    assert_eq!(asked([45, 90], 1, true), 25);
}

/// Two threads after an interval in which each served 100 frames, was busy for so many milliseconds of 100 and waited for so many of
/// those, in so many times.
fn after([first, second]: [(u64, u64, u64); 2]) -> Vec<Balance> {
    let mut threads = threads(2, 128);
    for (balance, (busy_ms, waited_ms, times)) in threads.iter_mut().zip([first, second]) {
        assert_eq!(balance.look(at(0), 0), Some(Advice::Nothing));
        balance.on_delay(at(0), Waits::default(), 0);
        balance.on_delay(at(100), Waits { ns: waited_ms * 1_000_000, times }, busy_ms * 1_000_000);
    }
    threads
}

#[test]
fn who_waits_longer_each_time_gives_all_that_another_has_time_for_and_takes_nothing_back() {
    // one waits 4 us each time, as for a wake-up, and the other 40
    let mut threads = after([(40, 20, 5000), (50, 30, 750)]);
    let [first, second] = &mut threads[..] else { unreachable!() };
    assert!(!first.is_held_up() && second.is_held_up());
    let loads: Vec<(u16, u32)> = (0..50).map(|group| (group, 2)).collect();
    assert_eq!(interval(second, 0, 1, &loads), Advice::CallForHelp);
    // it runs for 20 ms, a frame for 0.2 ms: until 50 ms there is time for more than the other has
    let Advice::Ask(relief) = interval(first, 0, 1, &[(100, 100)]) else { panic!("nothing") };
    assert_eq!((relief.frames, relief.of), (50, 50));
    second.departed(0);
    // the first has a backlog by now, and the second no time to wait: it takes nothing for a second
    for number in 1..12 {
        let ms = number * 100;
        first.on_delay(at(100 + ms), Waits { ns: 20_000_000, times: 5000 }, 40_000_000 + ms * 900_000);
        assert!(matches!(interval(first, number, 64, &[(100, 1000)]), Advice::CallForHelp));
        second.on_delay(
            at(100 + ms),
            Waits { ns: 30_000_000 + number, times: 750 + ms * 100 },
            50_000_000 + ms * 100_000,
        );
        let asks = matches!(interval(second, number, 1, &[(1, 2)]), Advice::Ask(_));
        assert_eq!(asks, number > 10, "interval {number}");
    }
}

#[test]
fn who_has_no_time_left_relieves_nobody_however_much_shorter_its_own_waits_are() {
    // both processors have other work: there in pieces of 93 us, here in many of 20
    for (first, expected) in [((95, 62, 3100), 0), ((80, 50, 2500), 24)] {
        let mut threads = after([first, (90, 25, 270)]);
        let [first, second] = &mut threads[..] else { unreachable!() };
        assert!(first.is_held_up() && second.is_held_up());
        assert_eq!(interval(second, 0, 1, &[(0, 100)]), Advice::CallForHelp);
        let frames = match interval(first, 0, 1, &[(1, 100)]) {
            // a frame takes 0.8 ms of the 20 that are left
            Advice::Ask(relief) => relief.frames,
            _ => 0,
        };
        assert_eq!(frames, expected);
    }
}

#[test]
fn who_waits_longer_does_not_relieve_one_that_merely_waits_often() {
    let mut threads = after([(90, 60, 750), (20, 15, 200)]);
    let [first, second] = &mut threads[..] else { unreachable!() };
    assert!(first.is_held_up() && second.is_held_up(), "80 us each time, and 75");
    assert_eq!(interval(first, 0, 1, &[(0, 100)]), Advice::CallForHelp);
    assert!(matches!(interval(second, 0, 1, &[(1, 100)]), Advice::Ask(_)), "as long as each other");
    let mut threads = after([(90, 60, 3000), (20, 15, 200)]);
    let [first, second] = &mut threads[..] else { unreachable!() };
    assert_eq!(interval(first, 0, 1, &[(0, 100)]), Advice::CallForHelp);
    assert_eq!(interval(second, 0, 1, &[(1, 100)]), Advice::CallForHelp, "20 us each time, and 75");
    // of a few waits nothing is told
    for (waited_ms, asks) in [(4, false), (1, true)] {
        let mut threads = after([(90, 60, 3000), (20, waited_ms, waited_ms * 20)]);
        let [first, second] = &mut threads[..] else { unreachable!() };
        assert_eq!(interval(first, 0, 1, &[(0, 100)]), Advice::CallForHelp);
        let asked = matches!(interval(second, 0, 1, &[(1, 100)]), Advice::Ask(_));
        assert_eq!(asked, asks, "{waited_ms} ms, 50 us each time");
    }
}

#[test]
fn one_that_is_held_up_takes_over_what_it_has_time_for() {
    let mut threads = threads(2, 128);
    threads.iter_mut().for_each(|balance| assert_eq!(balance.look(at(0), 0), Some(Advice::Nothing)));
    let [late, busy] = &mut threads[..] else { unreachable!() };
    let waits = |ns| Waits { ns, times: 100 };
    [&mut *late, busy].into_iter().for_each(|balance| balance.on_delay(at(0), waits(0), 0));
    busy.on_delay(at(100), waits(0), 100_000_000);
    late.on_delay(at(100), waits(23_000_000), 60_000_000);
    assert_eq!(interval(busy, 0, 64, &[(0, 100)]), Advice::CallForHelp);
    let asked = interval(late, 0, 1, &[(1, 40)]);
    assert!(matches!(asked, Advice::Ask(Relief { from: 1, held_up: false, .. })), "{asked:?}");
    // and calls for help when there is nothing to take
    busy.on_delay(at(200), waits(0), 130_000_000);
    late.on_delay(at(200), waits(46_000_000), 150_000_000);
    assert_eq!(interval(busy, 1, 64, &[(0, 100)]), Advice::CallForHelp);
    assert_eq!(interval(late, 1, 1, &[(1, 60)]), Advice::CallForHelp);
}

#[test]
fn one_with_a_backlog_asks_while_its_frames_take_little_of_its_time() {
    for (busy_ms, expected) in [(10, true), (60, true), (80, false), (100, false)] {
        let mut threads = threads(2, 128);
        threads.iter_mut().for_each(|balance| assert_eq!(balance.look(at(0), 0), Some(Advice::Nothing)));
        let [bursts, behind] = &mut threads[..] else { unreachable!() };
        for (balance, ms) in [(&mut *bursts, busy_ms), (behind, 100)] {
            balance.on_delay(at(0), Waits::default(), 0);
            balance.on_delay(at(100), Waits::default(), ms * 1_000_000);
        }
        assert_eq!(interval(behind, 0, 640, &[(0, 1000), (1, 1000)]), Advice::CallForHelp);
        let asks = matches!(interval(bursts, 0, 64, &[(2, 2000)]), Advice::Ask(Relief { from: 1, .. }));
        assert_eq!(asks, expected, "busy for {busy_ms} ms of 100");
    }
}

#[test]
fn one_with_a_backlog_asks_for_nothing_while_it_is_not_known_what_a_frame_costs() {
    let mut threads = threads(2, 128);
    threads.iter_mut().for_each(|balance| assert_eq!(balance.look(at(0), 0), Some(Advice::Nothing)));
    let [bursts, behind] = &mut threads[..] else { unreachable!() };
    assert_eq!(interval(behind, 0, 640, &[(0, 1000)]), Advice::CallForHelp);
    assert_eq!(interval(bursts, 0, 64, &[(2, 200)]), Advice::CallForHelp);
}

#[test]
fn a_group_that_moves_is_counted_where_it_is() {
    let mut threads = threads(2, 8);
    threads.iter_mut().for_each(|balance| assert_eq!(balance.look(at(0), 0), Some(Advice::Nothing)));
    let [busy, free] = &mut threads[..] else { unreachable!() };
    let frames: Vec<(u16, u32)> = (0..8).map(|group| (group, 100)).collect();
    assert_eq!(interval(busy, 0, 64, &frames), Advice::CallForHelp);
    assert_eq!(interval(free, 0, 0, &[]), Advice::Ask(Relief { from: 0, frames: 200, of: 400, held_up: false }));
    // half an interval later each group has brought as much again as it weighed: it is still half of them that go
    frames.iter().for_each(|(group, count)| (0..count / 2).for_each(|_| busy.took(*group)));
    let chosen = busy.choose([200, 400], 0, |_| true, |_| false);
    assert_eq!(chosen, [0, 1, 2, 3]);
    for group in chosen {
        let weight = busy.departed(group);
        assert_eq!(weight, 100);
        free.arrived(group, weight);
    }
    assert_eq!((busy.frames(), free.frames()), (400, 400));
    // so nothing is asked for but the least part, though one is still busy
    assert_eq!(interval(busy, 1, 64, &frames[4..]), Advice::CallForHelp);
    let asked = interval(free, 1, 0, &frames[..4]);
    assert!(matches!(asked, Advice::Ask(Relief { from: 0, frames, of, .. }) if frames == of / LEAST_PART), "{asked:?}");
}

proptest! {
    #[test]
    fn what_is_chosen_is_ours_and_no_more_than_asked_for(
        weights in prop::collection::vec(0u32..50, 16), frames in 1u32..400, from in 0u16..16, ours in any::<u16>(),
    ) {
        let mut balance = Balance::new(0, 16, Policy::default(), Board::new(1));
        balance.weights = weights.clone().into();
        let is_ours = |group: u16| ours >> group & 1 == 1;
        let of = weights.iter().sum();
        let chosen = balance.choose([frames, of], from, is_ours, |group| group % 3 == 0);
        let sum: u32 = chosen.iter().map(|group| weights[usize::from(*group)]).sum();
        prop_assert!(chosen.iter().all(|group| is_ours(*group) && weights[usize::from(*group)] > 0));
        prop_assert!(sum <= frames || chosen.len() == 1);
        let some = (0..16u16).any(|group| is_ours(group) && weights[usize::from(group)] > 0);
        prop_assert_eq!(chosen.is_empty(), !some);
    }
}
