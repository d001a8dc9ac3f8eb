use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const LIFETIME: Duration = Duration::from_secs(60);

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn closed(n: u32, v6: bool) -> Closed {
    let tuple = if v6 {
        let remote = std::net::Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(n));
        Tuple::V6(Tuple6 { local: "2001:db8::1".parse().unwrap(), remote, local_port: 80, remote_port: 4000 })
    } else {
        Tuple::V4(Tuple4 { local: [192, 0, 2, 1].into(), remote: n.into(), local_port: 80, remote_port: 4000 })
    };
    Closed { tuple, hash: Hash(n), snd_nxt: Seq::new(1000 + n), rcv_nxt: Seq::new(5000), ts_recent: Some(77) }
}

fn arrival(seq: u32, flags: Flags, payload_bytes: u32, value: Option<u32>) -> Arrival {
    let timestamps = value.map(|value| Timestamps { value, echo: 1 });
    Arrival { seq: Seq::new(seq), flags, payload_bytes, timestamps }
}

const FIN_ACK: u16 = 0x11;

fn fin_ack(value: Option<u32>) -> Arrival {
    arrival(4999, Flags::from_bits(FIN_ACK), 0, value)
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u32),
    Remove(u32),
    FinAgain(u32),
    Pass(u64),
    Expire(u32),
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0u32..30).prop_map(Step::Insert),
        2 => (0u32..30).prop_map(Step::Remove),
        2 => (0u32..30).prop_map(Step::FinAgain),
        3 => (0u64..30_000).prop_map(Step::Pass),
        2 => (1u32..60).prop_map(Step::Expire),
    ]
}

proptest! {
    /// The twin is a map to the slot and the time, with the capacity counted. The caller's table is played by the same
    /// map.
    #[test]
    fn entries_live_as_long_as_they_should(steps in prop::collection::vec(a_step(), 1..200), begin_ms in prop_oneof![Just(0u64), Just((1 << 29) - 70_000)]) {
        let mut waiting = TimeWait::new(7, 5, LIFETIME);
        let mut twin: BTreeMap<u32, (Slot, u64)> = BTreeMap::new();
        let mut now_ms = begin_ms;
        // even numbers are IPv4, odd ones IPv6
        for step in steps {
            let mut fates = Vec::new();
            match step {
                Step::Insert(n) if !twin.contains_key(&n) => {
                    let slot = waiting.insert(at(now_ms), &closed(n, n % 2 == 1), |fate| fates.push(fate));
                    apply(&mut twin, &fates, now_ms)?;
                    twin.insert(n, (slot, now_ms + 60_000));
                }
                Step::Insert(_) => {}
                Step::Remove(n) => {
                    if let Some((slot, _)) = twin.remove(&n) {
                        prop_assert!(waiting.remove(slot));
                        prop_assert!(!waiting.remove(slot));
                    }
                }
                Step::FinAgain(n) => {
                    if let Some((slot, until)) = twin.get_mut(&n) {
                        prop_assert_eq!(waiting.judge(at(now_ms), *slot, &fin_ack(Some(78))), Some(Answer::AcknowledgeFin));
                        *until = now_ms + 60_000;
                    }
                }
                Step::Pass(ms) => now_ms += ms,
                Step::Expire(most) => {
                    let more = waiting.expire(at(now_ms), most, |fate| fates.push(fate));
                    apply(&mut twin, &fates, now_ms)?;
                    if !more {
                        // what moved may stand behind younger ones, so it may stay a lifetime longer, never more
                        prop_assert!(twin.values().all(|(_, until)| until + 60_000 > now_ms), "{:?} at {}", twin, now_ms);
                    }
                }
            }
            prop_assert_eq!(waiting.len() as usize, twin.len());
            prop_assert!(waiting.v4.live <= 7 && waiting.v6.live <= 5);
            for (n, (slot, _)) in &twin {
                let expected = closed(*n, n % 2 == 1);
                let found = waiting.get(*slot).unwrap();
                prop_assert_eq!((found.tuple, found.hash, found.snd_nxt), (expected.tuple, expected.hash, expected.snd_nxt));
                prop_assert!(waiting.is(*slot, &expected.tuple) && !waiting.is(*slot, &closed(n + 2, n % 2 == 1).tuple));
            }
        }
    }
}

fn apply(twin: &mut BTreeMap<u32, (Slot, u64)>, fates: &[Fate], now_ms: u64) -> Result<(), TestCaseError> {
    for fate in fates {
        match *fate {
            Fate::Expired(Hash(n), slot) => {
                let (place, until) = twin.remove(&n).expect("an entry that expired");
                prop_assert_eq!(place, slot);
                prop_assert!(until <= now_ms, "{} expired early", n);
            }
            Fate::Recycled(Hash(n), slot) => {
                let (place, until) = twin.remove(&n).expect("an entry that was recycled");
                prop_assert_eq!(place, slot);
                prop_assert!(until > now_ms);
            }
            Fate::Moved(Hash(n), from, to) => {
                let (place, _) = twin.get_mut(&n).expect("an entry that moved");
                prop_assert_eq!(*place, from);
                *place = to;
            }
        }
    }
    Ok(())
}

#[test]
fn sizes_are_bounded_and_slots_leave_room_for_marks() {
    assert_eq!([size_of::<Entry<Tuple4>>(), size_of::<Entry<Tuple6>>()], [32, 56]);
    let mut waiting = TimeWait::new(4, 0, LIFETIME);
    assert_eq!((waiting.v4.capacity, waiting.v6.capacity), (4, 1));
    let slot = waiting.insert(at(0), &closed(1, true), |_| ());
    assert_eq!(slot, Slot(V6));
    assert_eq!(waiting.get(Slot(0)), None);
}

#[test]
fn the_oldest_goes_first_when_there_is_no_room() {
    let mut waiting = TimeWait::new(3, 3, LIFETIME);
    let mut gone = Vec::new();
    for n in 0..5 {
        waiting.insert(at(u64::from(n)), &closed(n, false), |fate| gone.push(fate));
    }
    assert_eq!(gone, [Fate::Recycled(Hash(0), Slot(0)), Fate::Recycled(Hash(1), Slot(1))]);
    assert_eq!(waiting.len(), 3);
    // one whose time is over is not counted as recycled
    gone.clear();
    waiting.insert(at(60_002), &closed(9, false), |fate| gone.push(fate));
    assert_eq!(gone, [Fate::Expired(Hash(2), Slot(2))]);
}

#[test]
fn a_restart_does_not_hold_up_those_behind() {
    let mut waiting = TimeWait::new(8, 1, LIFETIME);
    let first = waiting.insert(at(0), &closed(0, false), |_| ());
    waiting.insert(at(10), &closed(1, false), |_| ());
    assert_eq!(waiting.judge(at(50_000), first, &fin_ack(Some(90))), Some(Answer::AcknowledgeFin));
    let mut fates = Vec::new();
    assert!(!waiting.expire(at(60_010), 10, |fate| fates.push(fate)));
    assert_eq!(fates, [Fate::Moved(Hash(0), Slot(0), Slot(2)), Fate::Expired(Hash(1), Slot(1))]);
    assert!(!waiting.expire(at(109_999), 10, |_| panic!("early")));
    fates.clear();
    waiting.expire(at(110_000), 10, |fate| fates.push(fate));
    assert_eq!(fates, [Fate::Expired(Hash(0), Slot(2))]);
    assert!(waiting.is_empty());
}

#[test]
fn late_segments_get_the_answers_of_the_rfcs() {
    let syn = Flags::SYN;
    let ack = Flags::ACK;
    let fin = Flags::from_bits(FIN_ACK);
    let reuse = Answer::Reuse { beyond: Seq::new(1003) };
    // TS.Recent is 77 in the first column, absent in the second; RCV.NXT is 5000
    let cases = [
        ("RFC 1337 F1: a reset in the window", arrival(5000, Flags::RST, 0, None), [Answer::DropReset; 2]),
        ("a reset with ACK", arrival(5000, Flags::RST | ack, 0, Some(80)), [Answer::DropReset; 2]),
        ("RFC 6191: a newer timestamp", arrival(1, syn, 0, Some(78)), [reuse, reuse]),
        ("an older one, a higher number", arrival(9000, syn, 0, Some(76)), [Answer::Acknowledge, reuse]),
        ("the same one, a higher number", arrival(5001, syn, 0, Some(77)), [reuse, reuse]),
        ("the same one, the same number", arrival(5000, syn, 0, Some(77)), [Answer::Acknowledge, reuse]),
        ("none, a higher number", arrival(5001, syn, 0, None), [reuse, reuse]),
        ("none, a lower number", arrival(4000, syn, 0, None), [Answer::Acknowledge; 2]),
        ("RFC 5961: SYN-ACK", arrival(9000, syn | ack, 0, Some(99)), [Answer::Acknowledge; 2]),
        ("SYN with FIN", arrival(9000, syn | Flags::FIN, 0, Some(99)), [Answer::Acknowledge; 2]),
        ("ECN set-up SYN", arrival(9000, syn | Flags::ECE | Flags::CWR, 0, Some(99)), [reuse, reuse]),
        ("no ACK", arrival(5000, Flags::PSH, 3, Some(99)), [Answer::Drop; 2]),
        ("the FIN again", arrival(4999, fin, 0, Some(77)), [Answer::AcknowledgeFin; 2]),
        ("the last data and the FIN again", arrival(4899, fin, 100, Some(80)), [Answer::AcknowledgeFin; 2]),
        ("RFC 7323 R1: an old FIN", arrival(4999, fin, 0, Some(70)), [Answer::Acknowledge, Answer::AcknowledgeFin]),
        ("an old acknowledgement", arrival(4999, ack, 0, Some(70)), [Answer::Drop, Answer::Acknowledge]),
        ("RFC 7323 3.2: no timestamps", arrival(4999, fin, 0, None), [Answer::Drop, Answer::AcknowledgeFin]),
        ("the last acknowledgement again", arrival(5000, ack, 0, Some(80)), [Answer::Drop; 2]),
        ("old data", arrival(3000, ack, 500, Some(80)), [Answer::Acknowledge; 2]),
        ("data behind the FIN", arrival(5000, ack, 500, Some(80)), [Answer::Acknowledge; 2]),
        ("an acknowledgement from elsewhere", arrival(9000, ack, 0, Some(80)), [Answer::Acknowledge; 2]),
    ];
    for (what, arrival, answers) in cases {
        for (ts_recent, answer) in [Some(77), None].into_iter().zip(answers) {
            for v6 in [false, true] {
                let mut waiting = TimeWait::new(2, 2, LIFETIME);
                let slot = waiting.insert(at(0), &Closed { ts_recent, ..closed(3, v6) }, |_| ());
                assert_eq!(waiting.judge(at(1), slot, &arrival), Some(answer), "{what}, {ts_recent:?}");
            }
        }
    }
    assert_eq!(TimeWait::new(1, 1, LIFETIME).judge(at(0), Slot(0), &fin_ack(None)), None);
}

#[test]
fn bytes_from_before_the_fin_restart_the_time_and_others_do_not() {
    let ack = Flags::ACK;
    let fin = Flags::from_bits(FIN_ACK);
    for (arrival, restarts) in [
        (arrival(4899, ack, 100, Some(80)), true),
        (arrival(4898, ack, 100, Some(80)), true),
        (arrival(4899, fin, 50, Some(80)), true),
        (arrival(5000u32.wrapping_sub(LAST_FLIGHT_BYTES), ack, 100, Some(80)), true),
        // a stranger's guess
        (arrival(4999u32.wrapping_sub(LAST_FLIGHT_BYTES), ack, 100, Some(80)), false),
        (arrival(5000u32.wrapping_sub(1 << 30), ack, 1, Some(80)), false),
        (arrival(4999, ack, 0, Some(80)), false),
        (arrival(4900, ack, 101, Some(80)), false),
        (arrival(4899, ack, 100, Some(70)), false),
        (arrival(4899, Flags::PSH, 100, Some(80)), false),
        (arrival(4899, Flags::RST | ack, 100, Some(80)), false),
    ] {
        let mut waiting = TimeWait::new(2, 2, LIFETIME);
        let slot = waiting.insert(at(0), &closed(3, false), |_| ());
        waiting.judge(at(40_000), slot, &arrival);
        assert_eq!(waiting.is_over(at(60_000), slot), !restarts, "{arrival:?}");
        assert!(waiting.is_over(at(100_000), slot));
        // the clock is the FIN's
        assert_eq!(waiting.get(slot).and_then(|closed| closed.ts_recent), Some(77), "{arrival:?}");
    }
}

#[test]
fn a_fin_again_brings_its_timestamp_along() {
    let mut waiting = TimeWait::new(2, 2, LIFETIME);
    let slot = waiting.insert(at(0), &closed(3, false), |_| ());
    waiting.judge(at(5), slot, &fin_ack(Some(99)));
    assert_eq!(waiting.get(slot).and_then(|closed| closed.ts_recent), Some(99));
}
