use super::*;
use proptest::prelude::*;
use std::time::Duration;

#[derive(Clone, Debug)]
enum Step {
    Push(u16),
    Acknowledge(u16),
    Sack(u16, u16),
    Lose(u16),
    Resend,
    FindAgain,
    Fold,
    Tick,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u16..4000).prop_map(Step::Push),
        2 => any::<u16>().prop_map(Step::Acknowledge),
        3 => any::<(u16, u16)>().prop_map(|(a, b)| Step::Sack(a, b)),
        2 => any::<u16>().prop_map(Step::Lose),
        3 => Just(Step::Resend),
        1 => Just(Step::FindAgain),
        1 => Just(Step::Fold),
        2 => Just(Step::Tick),
    ]
}

/// The slow twin: one entry a byte.
#[derive(Default)]
struct Twin {
    una: u64,
    fates: Vec<(Fate, u8)>,
    /// when each went out last
    sent_at: Vec<Instant>,
}

impl Twin {
    fn nxt(&self) -> u64 {
        self.una + self.fates.len() as u64
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn is_a_table_of_bytes(steps in prop::collection::vec(step(), 1..80), size in 1usize..40) {
        const SEGMENT: u16 = 1000;
        let mut records = Records::new(size);
        let mut board = Board::default();
        let mut twin = Twin::default();
        let mut now = Instant::ZERO;
        for step in steps {
            let span = twin.fates.len();
            match step {
                Step::Push(bytes) => {
                    if records.push(&mut board, now, twin.nxt(), u32::from(bytes), SEGMENT) {
                        twin.fates.extend(std::iter::repeat_n((Fate::Outstanding, 0), usize::from(bytes)));
                        twin.sent_at.resize(twin.fates.len(), now);
                    } else {
                        prop_assert_eq!(records.used(), size);
                    }
                }
                Step::Acknowledge(n) => {
                    let bytes = usize::from(n) % (span + 1);
                    let mut told = 0;
                    records.acknowledge(&mut board, twin.una + bytes as u64, |piece| told += piece.bytes);
                    prop_assert_eq!(told as usize, bytes);
                    twin.fates.drain(..bytes);
                    twin.sent_at.drain(..bytes);
                    twin.una += bytes as u64;
                }
                Step::Sack(a, b) if span > 0 => {
                    let (a, b) = (usize::from(a) % span, usize::from(b) % (span + 1));
                    let (from, to) = (a.min(b), a.max(b));
                    let mut told = Vec::new();
                    let complete = records.sack(&mut board, twin.una + from as u64, twin.una + to as u64, |piece| {
                        told.push(*piece);
                    });
                    for piece in told {
                        for at in piece.start..piece.end() {
                            let at = (at - twin.una) as usize;
                            prop_assert!(at >= from && at < to && twin.fates[at].0 == piece.fate);
                            twin.fates[at].0 = Fate::Sacked;
                        }
                    }
                    if complete {
                        // what is left at either end of the block is less than a segment
                        for record in records.iter(&board).filter(|record| record.fate != Fate::Sacked) {
                            let first = record.start.max(twin.una + from as u64);
                            let held = record.end().min(twin.una + to as u64).saturating_sub(first);
                            prop_assert!(held < 2 * u64::from(SEGMENT), "{held} of {record:?}");
                            prop_assert!(held == 0 || held < u64::from(record.bytes), "a whole record");
                        }
                    }
                    prop_assert!(complete || size < 2 * 80, "records that would have been enough");
                }
                Step::Sack(..) => {}
                Step::Lose(n) => {
                    let mut judged = Vec::new();
                    let bytes = records.lose(&mut board, |record| {
                        let lost = (record.start / 1000 + u64::from(n)).is_multiple_of(3);
                        if lost {
                            judged.push(*record);
                        }
                        lost
                    });
                    prop_assert_eq!(bytes, judged.iter().map(|record| record.bytes).sum::<u32>());
                    for record in judged {
                        for at in record.start..record.end() {
                            twin.fates[(at - twin.una) as usize].0 = Fate::Lost;
                        }
                    }
                }
                Step::Resend => {
                    if let Some((start, bytes)) = records.first_lost(&board, SEGMENT) {
                        let at = (start - twin.una) as usize;
                        prop_assert_eq!(twin.fates.iter().position(|(fate, _)| *fate == Fate::Lost), Some(at));
                        if records.resend(&mut board, now, start, bytes, SEGMENT) {
                            for byte in &mut twin.fates[at..at + bytes as usize] {
                                *byte = (Fate::Outstanding, byte.1 + 1);
                            }
                            twin.sent_at[at..at + bytes as usize].fill(now);
                        } else {
                            prop_assert_eq!(records.used(), size);
                        }
                    } else {
                        prop_assert!(twin.fates.iter().all(|(fate, _)| *fate != Fate::Lost));
                    }
                }
                Step::FindAgain => {
                    records.find_again(&mut board);
                    for byte in &mut twin.fates {
                        if byte.0 == Fate::Lost {
                            byte.0 = Fate::Outstanding;
                        }
                    }
                }
                Step::Fold => {
                    let of = |fate| move |byte: &&(Fate, u8)| byte.0 != fate;
                    let tries = twin.fates.iter().filter(of(Fate::Sacked)).map(|byte| byte.1).max();
                    records.fold(&mut board);
                    prop_assert_eq!(records.used(), usize::from(span > 0));
                    let whole = records.iter(&board).next().map_or(0, |record| record.tries);
                    prop_assert!(whole >= tries.unwrap_or(0));
                    twin.fates.fill((Fate::Lost, whole));
                }
                Step::Tick => now += Duration::from_millis(1),
            }
            records.check(&board, twin.una, twin.nxt());
            for record in records.iter(&board) {
                for at in record.start..record.end() {
                    let at = (at - twin.una) as usize;
                    let ((fate, tries), sent_at) = (twin.fates[at], twin.sent_at[at]);
                    prop_assert_eq!(record.fate, fate);
                    prop_assert!(fate == Fate::Sacked || record.tries == tries);
                    prop_assert!(record.first_at() <= sent_at && sent_at <= record.sent_at, "{sent_at:?} of {record:?}");
                    prop_assert!(!record.is_exact() || fate == Fate::Sacked || sent_at == record.sent_at);
                }
            }
            prop_assert_eq!(records.iter(&board).count(), records.used());
        }
        records.clear(&mut board);
        prop_assert!(records.used() == 0 && board.is_empty());
    }
}

#[test]
fn a_run_of_full_segments_is_one_record_and_its_last_segment_is_known() {
    let mut records = Records::new(4);
    let mut board = Board::default();
    for n in 0..3 {
        assert!(records.push(&mut board, Instant::ZERO, n * 1000, 1000, 1000));
    }
    assert!(records.push(&mut board, Instant::ZERO, 3000, 10, 1000));
    assert_eq!((records.iter(&board).count(), board.pipe()), (1, 3010));
    assert_eq!(records.last_segment(&board), Some((3000, 10)));
    assert!(records.cut_at(&mut board, 3000));
    assert_eq!(records.iter(&board).count(), 2);
}

proptest! {
    /// Whatever a peer says it holds and acknowledges, a run of segments becomes no more than two records a segment.
    #[test]
    fn blocks_of_odd_bytes_make_no_records(
        segments in 2u64..40, tail in 0u64..1000, steps in prop::collection::vec((any::<u16>(), 1u64..3000, 0u8..16), 1..300)
    ) {
        const SEGMENT: u16 = 1000;
        let (mut records, mut board) = (Records::new(1000), Board::default());
        let end = segments * u64::from(SEGMENT) + tail;
        prop_assert!(records.push(&mut board, Instant::ZERO, 0, end as u32, SEGMENT));
        let mut una = 0;
        for (at, bytes, kind) in steps {
            let at = una + u64::from(at) % (end - una);
            if kind == 0 {
                una = at;
                records.acknowledge(&mut board, una, |_| ());
            } else {
                prop_assert!(records.sack(&mut board, at, (at + bytes).min(end), |_| ()));
            }
            records.check(&board, una, end);
            prop_assert!(records.used() as u64 <= 2 * segments, "{} records", records.used());
        }
    }

    #[test]
    fn whole_segments_of_a_block_are_noted(segments in 2u64..40, tail in 1u64..=1000, from in 0u64..40, count in 1u64..40) {
        const SEGMENT: u64 = 1000;
        let (mut records, mut board) = (Records::new(100), Board::default());
        let end = (segments - 1) * SEGMENT + tail;
        prop_assert!(records.push(&mut board, Instant::ZERO, 0, end as u32, SEGMENT as u16));
        let from = (from % segments) * SEGMENT;
        let to = (from + count * SEGMENT).min(end);
        prop_assert!(records.sack(&mut board, from, to, |_| ()));
        prop_assert_eq!(u64::from(board.sacked), to - from);
    }
}

#[test]
fn records_for_new_data_stay_whatever_peers_hold() {
    const SEGMENT: u16 = 1000;
    let mut records = Records::new(64);
    let mut boards = Vec::new();
    for _ in 0..8 {
        let mut board = Board::default();
        assert!(records.push(&mut board, Instant::ZERO, 0, 20 * u32::from(SEGMENT), SEGMENT));
        boards.push(board);
    }
    let mut complete = true;
    for board in &mut boards {
        for block in (1..20).step_by(2).map(|n| n * u64::from(SEGMENT)) {
            complete &= records.sack(board, block, block + u64::from(SEGMENT), |_| ());
        }
    }
    assert!(!complete && records.may_begin(&Board::default()), "{} of 64 records are used", records.used());
    for board in &boards {
        records.check(board, 0, 20 * u64::from(SEGMENT));
    }
}

#[test]
fn a_block_is_cut_out_only_where_it_holds_a_segment_and_joins_what_is_held_behind_it() {
    let mut records = Records::new(100);
    let mut board = Board::default();
    assert!(records.push(&mut board, Instant::ZERO, 0, 4623, 1000));
    assert!(records.sack(&mut board, 1001, 1002, |_| ()));
    assert_eq!((records.used(), board.sacked), (1, 0), "a byte is nothing");
    assert!(records.sack(&mut board, 2224, 3224, |_| ()));
    assert_eq!((records.used(), board.sacked), (3, 1000));
    assert!(records.sack(&mut board, 1000, 2500, |_| ()));
    assert_eq!((records.used(), board.sacked), (3, 2224), "one held run between two that are not");
}

/// Pushes so many segments, each a millisecond after the one before; when the last one went.
fn push_one_by_one(records: &mut Records, board: &mut Board, segments: u64, bytes: u64) -> Instant {
    let mut now = Instant::ZERO;
    for n in 0..segments {
        now += Duration::from_millis(1);
        assert!(records.may_push(board, now, 1000), "segment {n}");
        assert!(records.push(board, now, n * bytes, bytes as u32, 1000));
    }
    records.check(board, 0, segments * bytes);
    now
}

#[test]
fn new_data_join_the_last_record_of_a_list_that_has_its_share() {
    let mut records = Records::new(4096);
    let mut board = Board::default();
    let now = push_one_by_one(&mut records, &mut board, 1000, 5);
    assert_eq!(records.used(), OWN_MOST as usize);
    let last = *records.iter(&board).last().unwrap();
    assert_eq!((last.start, last.bytes), (511 * 5, 489 * 5));
    assert_eq!((last.sent_at, last.first_at()), (now, Instant::ZERO + Duration::from_millis(512)));
    assert!(!last.is_exact() && records.iter(&board).take(511).all(Record::is_exact));
    // what the first of them has waited for too long joins no more, and waits for its acknowledgement
    assert!(records.may_push(&board, now + Duration::from_millis(500), 1000));
    assert!(!records.may_push(&board, now + Duration::from_millis(600), 1000));
    assert!(!records.may_push(&board, now, 900), "segments of another path");
    records.acknowledge(&mut board, 5, |_| ());
    assert!(records.may_push(&board, now + Duration::from_millis(600), 1000));
}

#[test]
fn what_is_sent_again_joins_what_was_in_a_list_that_has_its_share() {
    let mut records = Records::new(4096);
    let mut board = Board::default();
    let mut now = push_one_by_one(&mut records, &mut board, 512, 3000);
    records.lose(&mut board, |_| true);
    for n in 0..3 * 512 {
        if n < 900 {
            now += Duration::from_millis(1);
        }
        let (start, bytes) = records.first_lost(&board, 1000).unwrap();
        assert_eq!((start, bytes), (n * 1000, 1000));
        assert!(records.resend(&mut board, now, start, bytes, 1000));
        assert!(records.used() <= OWN_MOST as usize + 1, "{} records", records.used());
    }
    records.check(&board, 0, 3 * 512 * 1000);
    assert_eq!(board.lost, 0);
}

#[test]
fn few_lists_leave_records_for_every_other() {
    let mut records = Records::new(4096);
    let mut lists = Vec::new();
    // a quarter as many as there are records, as connections have them
    for n in 0..1024 {
        let mut board = Board::default();
        assert!(records.may_begin(&board), "list {n} finds {} used", records.used());
        push_one_by_one(&mut records, &mut board, 200, 15);
        lists.push(board);
    }
    assert!(records.may_split());
    // and an eighth of them are repaired at once
    for board in lists.iter_mut().step_by(8) {
        records.lose(board, |_| true);
        let now = Instant::ZERO + Duration::from_secs(2);
        let (mut start, mut bytes) = records.first_lost(board, 1000).unwrap();
        if records.may_resend(board, now, bytes, 1000) == Resend::Fold {
            records.fold(board);
            (start, bytes) = records.first_lost(board, 1000).unwrap();
        }
        assert_eq!(records.may_resend(board, now, bytes, 1000), Resend::May);
        assert!(records.resend(board, now, start, bytes, 1000));
        records.check(board, 0, 3000);
    }
}

#[test]
fn a_block_that_was_noted_is_noted_again_when_it_was_forgotten() {
    let mut records = Records::new(100);
    let mut board = Board::default();
    assert!(records.push(&mut board, Instant::ZERO, 0, 10_000, 1000));
    let noted = |records: &mut Records, board: &mut Board| {
        let mut bytes = 0;
        assert!(records.sack(board, 2000, 4000, |piece| bytes += piece.bytes));
        bytes
    };
    assert_eq!([noted(&mut records, &mut board), noted(&mut records, &mut board)], [2000, 0]);
    records.forget_sacks(&mut board);
    assert_eq!([noted(&mut records, &mut board), noted(&mut records, &mut board)], [2000, 0]);
}
