use super::*;
use std::collections::VecDeque;

const RUN: u32 = 0xabcd;
const BYTES: usize = 40;

/// A link on which the answers of each probe are what a function makes of it.
struct Fake<F> {
    answers: F,
    waiting: VecDeque<Vec<u8>>,
    sent: u64,
}

impl<F: FnMut(u64, Vec<u8>) -> Vec<Vec<u8>>> Link for Fake<F> {
    fn send(&mut self, number: u64) -> Result<bool, Error> {
        let mut out = vec![0; BYTES];
        probe::write(RUN, number, &mut out);
        self.waiting.extend((self.answers)(number, out));
        self.sent += 1;
        Ok(true)
    }

    fn receive(&mut self, _: Option<Duration>, show: &mut impl FnMut(&[u8])) {
        if let Some(answer) = self.waiting.pop_front() {
            show(&answer);
        }
    }

    fn unreachable(&self) -> u64 {
        0
    }
}

fn load(count: u64) -> Load {
    Load {
        run: RUN,
        bytes: BYTES,
        rate: None,
        in_flight: 1,
        timeout: Duration::from_millis(20),
        warm_up: Duration::ZERO,
        span: None,
        count: Some(count),
    }
}

fn driven(load: &Load, answers: impl FnMut(u64, Vec<u8>) -> Vec<Vec<u8>>) -> Tally {
    let mut link = Fake { answers, waiting: VecDeque::new(), sent: 0 };
    drive(&mut link, load, Idle::Spin, &AtomicBool::new(false)).unwrap()
}

#[test]
fn every_answer_is_counted_once() {
    let tally = driven(&load(500), |_, probe| vec![probe]);
    assert_eq!((tally.sent, tally.answered, tally.lost, tally.pending), (500, 500, 0, 0));
    assert_eq!((tally.damaged, tally.duplicates, tally.reordered, tally.late), (0, 0, 0, 0));
    assert!(tally.least_us() <= tally.average_us() && tally.average_us() <= tally.greatest_us());
}

#[test]
fn silence_is_loss() {
    let tally = driven(&load(3), |_, _| Vec::new());
    assert_eq!((tally.sent, tally.answered, tally.lost), (3, 0, 3));
    assert_eq!(tally.loss(), 1.0);
}

#[test]
fn one_in_four_is_lost() {
    let tally = driven(&load(20), |number, probe| if number % 4 == 3 { Vec::new() } else { vec![probe] });
    assert_eq!((tally.sent, tally.answered, tally.lost), (20, 15, 5));
}

#[test]
fn wrong_octets_are_no_answer() {
    let tally = driven(&load(4), |number, mut probe| {
        match number {
            0 => probe[BYTES - 1] ^= 1,
            1 => probe.truncate(BYTES - 1),
            2 => probe::write(RUN + 1, 2, &mut probe),
            _ => {}
        }
        vec![probe]
    });
    assert_eq!((tally.answered, tally.lost, tally.damaged, tally.foreign), (1, 3, 2, 1));
}

#[test]
fn a_probe_that_was_never_sent_is_damage() {
    let tally = driven(&load(2), |number, mut probe| {
        probe::write(RUN, number + 1000, &mut probe);
        vec![probe]
    });
    assert_eq!((tally.answered, tally.lost, tally.damaged), (0, 2, 2));
}

#[test]
fn duplicates_and_disorder_are_seen() {
    let tally = driven(&load(10), |_, probe| vec![probe.clone(), probe]);
    // the last one's copy comes when nobody waits any more
    assert_eq!((tally.answered, tally.duplicates, tally.reordered), (10, 9, 0));
    // two on their way at once, answered in the wrong order
    let mut held = None;
    let tally = driven(&Load { in_flight: 2, ..load(10) }, |_, probe| match held.take() {
        None => {
            held = Some(probe);
            Vec::new()
        }
        Some(first) => vec![probe, first],
    });
    assert_eq!((tally.answered, tally.reordered, tally.lost), (10, 5, 0));
}

#[test]
fn a_late_answer_stays_lost_and_is_told() {
    let mut held = None;
    let tally = driven(&load(2), |_, probe| match held.take() {
        None => {
            held = Some(probe);
            Vec::new()
        }
        Some(first) => vec![first, probe],
    });
    assert_eq!((tally.sent, tally.answered, tally.lost, tally.late), (2, 1, 1, 1));
}

#[test]
fn the_warm_up_is_not_counted() {
    let mut sent = 0;
    let tally = driven(&Load { warm_up: Duration::from_millis(5), ..load(5) }, |_, probe| {
        sent += 1;
        vec![probe]
    });
    assert_eq!((tally.sent, tally.answered, tally.pending), (5, 5, 0));
    assert!(sent > 5, "{sent}");
}

#[test]
fn a_rate_is_kept_whatever_comes_back() {
    let load = Load { rate: Some(20_000), span: Some(Duration::from_millis(50)), count: None, ..load(0) };
    let tally = driven(&load, |_, _| Vec::new());
    // what the machine was too late for is told
    assert!((950..=1001).contains(&(tally.sent + tally.unsent)), "{tally:?}");
    assert_eq!((tally.answered, tally.lost), (0, tally.sent));
}

#[test]
fn a_flag_ends_it_and_what_is_under_way_is_neither_lost_nor_answered() {
    let stop = AtomicBool::new(false);
    let mut link = Fake {
        answers: |number, probe| {
            stop.store(number == 4, Ordering::Relaxed);
            if number == 4 { Vec::new() } else { vec![probe] }
        },
        waiting: VecDeque::new(),
        sent: 0,
    };
    let tally = drive(&mut link, &load(1000), Idle::Spin, &stop).unwrap();
    assert_eq!((link.sent, tally.sent, tally.answered, tally.pending, tally.lost), (5, 5, 4, 1, 0));
}
