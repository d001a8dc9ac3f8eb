use super::*;
use proptest::prelude::*;

const MSS: u32 = 1000;
const MS: u64 = 1_000_000;

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * MS)
}

fn ack(now: Instant, acked_bytes: u32) -> Ack {
    Ack {
        now,
        acked_bytes,
        una: Seq::new(0),
        nxt: Seq::new(1),
        rtt_ns: None,
        smoothed_ns: 100 * MS,
        window_limited: true,
        paced: true,
        mss_bytes: MSS,
    }
}

/// A connection in congestion avoidance whose window was `window` before the loss it has just recovered from.
fn after_loss(algorithm: Algorithm, window: u32, now: Instant) -> Congestion {
    let mut congestion = Congestion::new(algorithm, MSS);
    congestion.cwnd = window;
    congestion.on_loss(window, Seq::new(0), MSS);
    congestion.on_recovered(now, MSS);
    congestion
}

/// Acknowledges one round trip's worth, a segment at a time, evenly.
fn round(congestion: &mut Congestion, begin: Instant, rtt_ns: u64) -> Instant {
    let acks = congestion.window() / MSS;
    for n in 1..=acks {
        let now = Instant::from_nanos(begin.as_nanos() + u64::from(n) * rtt_ns / u64::from(acks));
        congestion.on_ack(&Ack { smoothed_ns: rtt_ns, ..ack(now, MSS) });
    }
    Instant::from_nanos(begin.as_nanos() + rtt_ns)
}

/// RFC 9438 word for word: windows in segments, time in seconds, real numbers.
struct Twin {
    cwnd: f64,
    ssthresh: f64,
    w_max: f64,
    cwnd_prior: f64,
    w_est: f64,
    k: f64,
    t_epoch: f64,
}

impl Twin {
    /// Whether fast convergence (section 4.7) takes the window to be below the last plateau is one bit of the two windows'
    /// order: where they are closer than what is allowed between the twins, either answer is right, and ours is taken.
    fn reduce(&mut self, beta: f64, ours: &Congestion) {
        let below = if close(self.cwnd, self.w_max) { ours.cwnd < ours.w_max } else { self.cwnd < self.w_max };
        self.cwnd_prior = self.cwnd;
        self.w_max = if below { self.cwnd * (1.0 + 0.7) / 2.0 } else { self.cwnd };
        self.ssthresh = f64::max(self.cwnd * beta, 2.0);
    }

    fn begin(&mut self, now: f64) {
        self.t_epoch = now;
        self.w_max = self.w_max.max(self.cwnd);
        self.k = ((self.w_max - self.cwnd) / 0.4).cbrt();
        self.w_est = self.cwnd;
    }

    /// Whether the curve or W_est decides (sections 4.3 to 4.5) is such a bit, too, and each of the two may differ between the
    /// twins; and whether W_est has reached the window before the reduction. Where they are closer than twice what is allowed, what
    /// `ours` became by this acknowledgement tells.
    fn on_ack(&mut self, now: f64, rtt: f64, mut segments: f64, ours: &Congestion) {
        if self.cwnd < self.ssthresh {
            let growth = f64::min(segments, self.ssthresh - self.cwnd);
            self.cwnd += growth;
            segments -= growth;
            if self.cwnd < self.ssthresh {
                return;
            }
            self.begin(now);
        }
        let w_cubic = |t: f64| 0.4 * (t - self.k).powi(3) + self.w_max;
        let t = now - self.t_epoch;
        let below = |a: f64, b: f64, ours: bool| if (a - b).abs() <= 2.0 * allowed(b) { ours } else { a < b };
        let nearer = |to: u32, a: f64, b: f64| (in_segments(to) - a).abs() < (in_segments(to) - b).abs();
        let [one, less] = [1.0, 3.0 * (1.0 - 0.7) / (1.0 + 0.7)].map(|alpha| self.w_est + alpha * segments / self.cwnd);
        // one may be at the end of slow start a byte before the other
        let est_bytes = if let Phase::Cubic(epoch) = &ours.phase { epoch.est_bytes } else { ours.cwnd };
        let is_less = below(self.w_est, self.cwnd_prior, nearer(est_bytes, less, one));
        self.w_est = if is_less { less } else { one };
        let reno = self.cwnd.max(self.w_est);
        let target = w_cubic(t + rtt).clamp(self.cwnd, 1.5 * self.cwnd);
        let cubic = self.cwnd + (target - self.cwnd) / self.cwnd * segments;
        let is_reno = below(w_cubic(t), self.w_est, nearer(ours.cwnd, reno, cubic));
        self.cwnd = if is_reno { reno } else { cubic };
    }
}

/// Ours keeps time in steps of 65 us, windows in whole bytes, K in 24 bits.
fn close(ours: f64, exact: f64) -> bool {
    (ours - exact).abs() <= allowed(exact)
}

fn allowed(exact: f64) -> f64 {
    0.1 + exact * 2e-2
}

fn in_segments(bytes: u32) -> f64 {
    f64::from(bytes) / f64::from(MSS)
}

#[derive(Clone, Debug)]
enum Step {
    /// that many acknowledgements of that many bytes, each so long after the one before
    Acks(u32, u32, u64),
    Loss,
    Ecn,
    Timeout,
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (1u32..200, 1u32..4 * MSS, 0u64..30).prop_map(|(n, bytes, ms)| Step::Acks(n, bytes, ms)),
        2 => Just(Step::Loss),
        1 => Just(Step::Ecn),
        1 => Just(Step::Timeout),
    ]
}

/// Takes both through the steps and compares their windows and thresholds after each.
fn beside_its_twin(steps: &[Step], rtt_ms: u64) -> Result<(), TestCaseError> {
    let mut congestion = Congestion::new(Algorithm::Cubic, MSS);
    congestion.cwnd = 100 * MSS;
    congestion.ssthresh = 50 * MSS;
    congestion.phase = Phase::Again;
    let mut twin = Twin { cwnd: 100.0, ssthresh: 50.0, w_max: 0.0, cwnd_prior: 0.0, w_est: 0.0, k: 0.0, t_epoch: 0.0 };
    let (mut now_ms, mut begun) = (1u64, false);
    for step in steps {
        let (now, now_s) = (at(now_ms), now_ms as f64 / 1e3);
        match *step {
            Step::Acks(n, bytes, gap_ms) => {
                for _ in 0..n {
                    now_ms += gap_ms;
                    if !begun {
                        twin.begin(now_ms as f64 / 1e3);
                        begun = true;
                    }
                    // the twin has no bound on an acknowledgement; nor is more acknowledged than was in flight
                    let bytes = bytes.min(congestion.window());
                    congestion.on_ack(&Ack { smoothed_ns: rtt_ms * MS, ..ack(at(now_ms), bytes) });
                    twin.on_ack(now_ms as f64 / 1e3, rtt_ms as f64 / 1e3, in_segments(bytes), &congestion);
                }
            }
            Step::Loss => {
                twin.reduce(0.7, &congestion);
                congestion.on_loss(congestion.window(), Seq::new(1), MSS);
                congestion.on_recovered(now, MSS);
                twin.cwnd = twin.ssthresh;
                twin.begin(now_s);
                begun = true;
            }
            Step::Ecn => {
                twin.reduce(0.85, &congestion);
                congestion.on_ecn_echo(now, congestion.window(), Seq::new(1), Seq::new(1), MSS);
                twin.cwnd = twin.ssthresh;
                twin.begin(now_s);
                begun = true;
            }
            Step::Timeout => {
                twin.reduce(0.7, &congestion);
                congestion.on_timeout(congestion.window(), Seq::new(1), false, MSS);
                (twin.cwnd, twin.w_max) = (1.0, 0.0);
                begun = true;
            }
        }
        let (ours, exact) = (in_segments(congestion.window()), twin.cwnd);
        prop_assert!(close(ours, exact), "{} against {}\n{:?}", ours, exact, congestion);
        let (ours, exact) = (in_segments(congestion.threshold()), twin.ssthresh);
        prop_assert!(close(ours, exact), "threshold {} against {}", ours, exact);
    }
    Ok(())
}

/// The loss comes with the window half a byte below the plateau, where whole bytes have reached it.
#[test]
fn cubic_and_its_twin_at_the_plateau() {
    use Step::{Acks, Ecn, Loss, Timeout};
    let steps = [Timeout, Acks(27, 2594, 0), Ecn, Acks(191, 2441, 13), Acks(192, 2659, 2), Loss, Acks(46, 490, 8)];
    beside_its_twin(&steps, 73).unwrap();
}

/// After the loss the curve and W_est cross, and a round trip ahead they are far apart.
#[test]
fn cubic_and_its_twin_where_reno_crosses() {
    use Step::{Acks, Loss};
    beside_its_twin(&[Acks(116, 2206, 5), Acks(53, 3539, 19), Loss, Acks(9, 3029, 1)], 150).unwrap();
}

proptest! {
    #[test]
    fn cubic_is_that_of_the_rfc_in_real_numbers(steps in prop::collection::vec(a_step(), 1..60), rtt_ms in 5u64..200) {
        beside_its_twin(&steps, rtt_ms)?;
    }

    /// Whatever happens in whatever order, windows stay in their bounds and nothing panics.
    #[test]
    fn windows_stay_in_bounds(
        newreno: bool, steps in prop::collection::vec((0u8..9, any::<u32>(), 0u64..5000, any::<bool>()), 1..200)
    ) {
        let algorithm = if newreno { Algorithm::NewReno } else { Algorithm::Cubic };
        let mut congestion = Congestion::new(algorithm, MSS);
        let mut now_ms = 0;
        let mut una = Seq::new(0);
        for (what, bytes, gap_ms, flag) in steps {
            now_ms += gap_ms;
            let now = at(now_ms);
            match what {
                0..=2 => {
                    let acked = bytes % congestion.window() + 1;
                    una += acked;
                    let nxt = una + congestion.window();
                    let rtt_ns = flag.then_some(gap_ms * MS);
                    congestion.on_ack(&Ack { una, nxt, rtt_ns, window_limited: bytes % 7 != 0, paced: flag, ..ack(now, acked) });
                }
                3 => {
                    let threshold = congestion.on_loss(bytes, una + 5000, MSS);
                    prop_assert_eq!(threshold, congestion.threshold());
                    congestion.set_window(bytes % 1_000_000);
                    if flag {
                        congestion.on_recovered(now, MSS);
                    } else {
                        congestion.on_spurious();
                    }
                }
                4 => congestion.on_timeout(bytes, una + 5000, flag, MSS),
                5 | 6 => congestion.on_idle(gap_ms * MS, 200 * MS, MSS),
                7 => {
                    congestion.on_ecn_echo(now, bytes, una, una + 3000, MSS);
                }
                _ => {
                    congestion.on_spurious();
                }
            }
            prop_assert!(congestion.window() <= MAX_WINDOW_BYTES);
            prop_assert!(congestion.window() > 0 || what == 3);
            prop_assert!(congestion.threshold() >= 2 * MSS);
            if congestion.window() == 0 {
                congestion.set_window(MSS);
            }
        }
    }
}

#[test]
fn sizes() {
    println!("{} {} {}", size_of::<Congestion>(), size_of::<Rtt>(), size_of::<Prr>());
    assert!(size_of::<Congestion>() + size_of::<Rtt>() + size_of::<Prr>() <= 160);
}

#[test]
fn initial_windows_are_those_of_rfc_6928() {
    assert_eq!([536, 1460, 8960].map(initial_window), [5360, 14_600, 17_920]);
}

#[test]
fn the_first_slow_start_doubles_each_round_trip() {
    let mut congestion = Congestion::new(Algorithm::Cubic, MSS);
    let mut now = at(0);
    let mut seen = Vec::new();
    for _ in 0..5 {
        now = round(&mut congestion, now, 50 * MS);
        seen.push(congestion.window() / MSS);
    }
    assert_eq!(seen, [20, 40, 80, 160, 320]);
}

#[test]
fn an_acknowledgement_of_much_grows_the_window_by_a_super_segment_at_most_unless_paced() {
    for (paced, grown) in [(false, 44 * MSS), (true, 900 * MSS)] {
        let mut congestion = Congestion::new(Algorithm::Cubic, MSS);
        congestion.on_ack(&Ack { paced, ..ack(at(0), 900 * MSS) });
        assert_eq!(congestion.window(), 10 * MSS + grown);
    }
}

#[test]
fn acknowledging_in_splinters_gains_nothing() {
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
        let mut whole = after_loss(algorithm, 100 * MSS, at(0));
        let mut split = whole;
        let mut slow_whole = Congestion::new(algorithm, MSS);
        let mut slow_split = slow_whole;
        for n in 1..=200 {
            whole.on_ack(&ack(at(n), MSS));
            slow_whole.on_ack(&ack(at(n), MSS));
            for _ in 0..MSS {
                split.on_ack(&ack(at(n), 1));
                slow_split.on_ack(&ack(at(n), 1));
            }
        }
        assert!(split.window().abs_diff(whole.window()) < 2 * MSS, "{} {}", split.window(), whole.window());
        assert_eq!(slow_split.window(), slow_whole.window());
    }
}

#[test]
fn the_cubic_curve_returns_to_the_old_window_after_k_seconds() {
    let mut congestion = after_loss(Algorithm::Cubic, 1000 * MSS, at(0));
    assert_eq!(congestion.window(), 700 * MSS);
    // K = cbrt(300 / 0.4) = 9.086 s
    let mut now = at(0);
    while now < at(9_086 - 100) {
        now = round(&mut congestion, now, 100 * MS);
    }
    let window = congestion.window() / MSS;
    assert!((998..=1001).contains(&window), "{window}");
    // then beyond it, slowly at first
    while now < at(9_086 + 2_000) {
        now = round(&mut congestion, now, 100 * MS);
    }
    let window = congestion.window() / MSS;
    assert!((1002..=1006).contains(&window), "{window}");
}

#[test]
fn on_short_paths_cubic_is_as_fast_as_reno_with_its_factor() {
    // RFC 9438 section 4.3: half a segment and a bit in a round trip, a whole one beyond the old window
    let mut congestion = after_loss(Algorithm::Cubic, 20 * MSS, at(0));
    let mut now = at(0);
    for _ in 0..20 {
        now = round(&mut congestion, now, MS);
    }
    let grown = f64::from(congestion.window() - 14 * MSS) / f64::from(MSS);
    assert!((9.0..15.0).contains(&grown), "{grown}");
}

#[test]
fn newreno_adds_a_segment_a_round_trip_and_halves_the_flight() {
    let mut congestion = after_loss(Algorithm::NewReno, 40 * MSS, at(0));
    assert_eq!(congestion.window(), 20 * MSS);
    let mut now = at(0);
    for n in 1..=10 {
        now = round(&mut congestion, now, 10 * MS);
        assert_eq!(congestion.window(), (20 + n) * MSS);
    }
    assert_eq!(congestion.on_loss(10 * MSS, Seq::new(0), MSS), 5 * MSS);
    assert_eq!(congestion.on_loss(3 * MSS, Seq::new(0), MSS), 2 * MSS);
}

#[test]
fn fast_convergence_gives_way_when_the_plateau_sinks() {
    let mut congestion = after_loss(Algorithm::Cubic, 100 * MSS, at(0));
    assert_eq!(congestion.w_max, 100 * MSS);
    congestion.on_loss(70 * MSS, Seq::new(0), MSS);
    // 70 segments, below the plateau of 100: 70 * 1.7 / 2
    assert_eq!(congestion.w_max, 59_500);
    assert_eq!(congestion.threshold(), 49 * MSS);
}

#[test]
fn an_unused_window_does_not_grow_and_its_time_does_not_count() {
    let mut busy = after_loss(Algorithm::Cubic, 1000 * MSS, at(0));
    let mut paused = busy;
    let mut now = at(0);
    for _ in 0..20 {
        now = round(&mut busy, now, 100 * MS);
        paused = busy;
    }
    // a minute in which the application has little to send
    let before = paused.window();
    for n in 0..600 {
        paused.on_ack(&Ack { window_limited: false, ..ack(now + std::time::Duration::from_millis(100 * n), MSS) });
    }
    assert_eq!(paused.window(), before);
    let later = now + std::time::Duration::from_secs(60);
    // then both go on as if there had been none
    let (mut a, mut b) = (now, later);
    for _ in 0..30 {
        a = round(&mut busy, a, 100 * MS);
        b = round(&mut paused, b, 100 * MS);
    }
    let (busy, paused) = (busy.window(), paused.window());
    assert!(paused <= busy + 2 * MSS, "{paused} against {busy}");
    assert!(paused >= busy - busy / 50, "{paused} against {busy}");
    // slow start too
    let mut first = Congestion::new(Algorithm::Cubic, MSS);
    first.on_ack(&Ack { window_limited: false, ..ack(at(0), MSS) });
    assert_eq!(first.window(), 10 * MSS);
}

#[test]
fn what_was_spurious_is_undone() {
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
        let mut congestion = after_loss(algorithm, 500 * MSS, at(0));
        let mut now = at(0);
        for _ in 0..10 {
            now = round(&mut congestion, now, 50 * MS);
        }
        let before = congestion;
        let told = |c: &Congestion| (c.cwnd, c.ssthresh, c.w_max, c.cwnd_prior);
        // a loss that a timeout followed: all of it
        congestion.on_loss(congestion.window(), Seq::new(5), MSS);
        congestion.set_window(100 * MSS);
        congestion.on_timeout(90 * MSS, Seq::new(5), false, MSS);
        congestion.on_timeout(90 * MSS, Seq::new(5), true, MSS);
        assert_eq!(congestion.window(), MSS);
        assert!(congestion.on_spurious());
        assert_eq!(told(&congestion), told(&before));
        assert!(!congestion.on_spurious());
        // and the way goes on from there
        let later = now + std::time::Duration::from_secs(5);
        round(&mut congestion, later, 50 * MS);
        let growth = congestion.window() - before.cwnd;
        assert!(growth < 25 * MSS, "{growth}");
        // a D-SACK may come after the end of recovery, and undoes the last one only
        let before = congestion;
        congestion.on_loss(congestion.window(), Seq::new(9), MSS);
        congestion.on_recovered(later, MSS);
        let between = congestion;
        congestion.on_loss(congestion.window(), Seq::new(9), MSS);
        congestion.on_recovered(later, MSS);
        let mut other = congestion;
        assert!(congestion.on_spurious());
        assert_eq!(told(&congestion), told(&between));
        assert_ne!(told(&congestion), told(&before));
        // what a timeout lost came: the next loss is another story
        let mut third = congestion;
        third.on_timeout(10 * MSS, Seq::new(20), false, MSS);
        third.on_ack(&Ack { una: Seq::new(20), nxt: Seq::new(30), ..ack(later, MSS) });
        let between = third;
        third.on_loss(third.window(), Seq::new(40), MSS);
        assert!(third.on_spurious());
        assert_eq!(told(&third), told(&between));
        // an echo of congestion is no mistake, and what was before it is gone
        other.on_ecn_echo(later, other.window(), Seq::new(9), Seq::new(10), MSS);
        assert!(!other.on_spurious());
    }
}

#[test]
fn a_first_slow_start_is_resumed_after_a_spurious_timeout() {
    let mut congestion = Congestion::new(Algorithm::Cubic, MSS);
    congestion.on_timeout(10 * MSS, Seq::new(5), false, MSS);
    assert_eq!((congestion.window(), congestion.threshold()), (MSS, 7 * MSS));
    assert!(congestion.on_spurious());
    assert_eq!((congestion.window(), congestion.threshold()), (10 * MSS, u32::MAX));
    assert!(congestion.in_slow_start());
}

#[test]
fn after_a_timeout_slow_start_leads_to_the_threshold_which_repeats_leave_alone() {
    let mut congestion = after_loss(Algorithm::NewReno, 80 * MSS, at(0));
    congestion.on_timeout(40 * MSS, Seq::new(5), false, MSS);
    assert_eq!(congestion.threshold(), 20 * MSS);
    congestion.on_timeout(MSS, Seq::new(5), true, MSS);
    assert_eq!((congestion.window(), congestion.threshold()), (MSS, 20 * MSS));
    let mut now = at(0);
    let mut seen = Vec::new();
    for _ in 0..6 {
        now = round(&mut congestion, now, 10 * MS);
        seen.push(congestion.window() / MSS);
    }
    assert_eq!(seen, [2, 4, 8, 16, 20, 21]);
}

#[test]
fn a_fast_recovery_within_slow_start_ends_at_the_threshold() {
    let mut congestion = after_loss(Algorithm::Cubic, 100 * MSS, at(0));
    congestion.on_timeout(70 * MSS, Seq::new(5), false, MSS);
    let mut now = at(0);
    for _ in 0..4 {
        now = round(&mut congestion, now, 10 * MS);
    }
    assert_eq!(congestion.window(), 16 * MSS);
    let threshold = congestion.on_loss(16 * MSS, Seq::new(9), MSS);
    congestion.set_window(3 * MSS);
    congestion.on_recovered(now, MSS);
    assert_eq!((congestion.window(), threshold), (11_200, 11_200));
    assert!(!congestion.in_slow_start());
}

#[test]
fn ecn_reduces_once_a_window() {
    for (algorithm, factor) in [(Algorithm::Cubic, 85), (Algorithm::NewReno, 80)] {
        let mut congestion = Congestion::new(algorithm, MSS);
        congestion.cwnd = 100 * MSS;
        let s = Seq::new;
        assert!(congestion.on_ecn_echo(at(0), 100 * MSS, s(1000), s(101_000), MSS));
        assert_eq!(congestion.window(), factor * MSS);
        assert!(!congestion.on_ecn_echo(at(1), 100 * MSS, s(100_999), s(180_000), MSS));
        assert_eq!(congestion.window(), factor * MSS);
        assert!(congestion.on_ecn_echo(at(2), 85 * MSS, s(101_000), s(180_000), MSS));
        let after = congestion.window();
        assert!(after < factor * MSS);
        // nor once more for a window in which loss was answered
        congestion.on_loss(after, s(200_000), MSS);
        congestion.on_recovered(at(3), MSS);
        assert!(!congestion.on_ecn_echo(at(3), after, s(199_000), s(210_000), MSS));
        // an old mark does not come back when numbers wrap
        congestion.on_ack(&Ack { una: s(200_000), nxt: s(300_000), ..ack(at(4), MSS) });
        assert!(congestion.on_ecn_echo(at(5), after, s(200_001) + (1 << 31), s(210_000) + (1 << 31), MSS));
    }
}

#[test]
fn after_a_long_idle_time_the_window_is_the_initial_one_and_the_way_back_is_short() {
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
        let mut congestion = after_loss(algorithm, 400 * MSS, at(0));
        let before = congestion.window();
        congestion.on_idle(200 * MS, 200 * MS, MSS);
        assert_eq!(congestion.window(), before);
        congestion.on_idle(201 * MS, 200 * MS, MSS);
        assert_eq!(congestion.window(), 10 * MSS);
        assert!(congestion.in_slow_start());
        assert!(congestion.threshold() >= before / 4 * 3);
        let mut now = at(1000);
        for _ in 0..5 {
            now = round(&mut congestion, now, 10 * MS);
        }
        assert!(congestion.window() >= before / 4 * 3, "{}", congestion.window());
    }
    // one that knew no threshold still knows none
    let mut fresh = Congestion::new(Algorithm::Cubic, MSS);
    fresh.on_ack(&ack(at(0), 10 * MSS));
    fresh.on_idle(300 * MS, 200 * MS, MSS);
    assert_eq!((fresh.window(), fresh.threshold()), (10 * MSS, u32::MAX));
}

#[test]
fn growing_delay_ends_the_first_slow_start() {
    let mut congestion = Congestion::new(Algorithm::Cubic, MSS);
    let (mut una, mut now_ms) = (Seq::new(0), 0);
    for round in 0..12u64 {
        let rtt_ms = if round < 3 { 50 } else { 80 };
        let window = congestion.window();
        let (begin, segments) = (una, window / MSS);
        for n in 1..=segments {
            una = begin + n * MSS;
            let nxt = begin + window + n * MSS;
            let rtt_ns = Some(rtt_ms * MS);
            congestion.on_ack(&Ack { una, nxt, rtt_ns, smoothed_ns: rtt_ms * MS, ..ack(at(now_ms), MSS) });
        }
        now_ms += rtt_ms;
    }
    assert!(!congestion.in_slow_start());
    assert!(congestion.threshold() < 4000 * MSS, "{}", congestion.threshold());
    assert!(congestion.threshold() > 80 * MSS, "{}", congestion.threshold());
}

#[test]
fn a_lost_handshake_begins_with_one_segment() {
    let mut congestion = Congestion::new(Algorithm::Cubic, MSS);
    congestion.on_lost_handshake(MSS);
    assert_eq!(congestion.window(), MSS);
    assert!(congestion.in_slow_start());
}
