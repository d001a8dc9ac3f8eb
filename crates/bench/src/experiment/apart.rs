//! How far apart two processors are: how long one takes to hand a cache line to the other and have it back.
//!
//! The host of a virtual machine moves its processors about. They may be two threads of one core for a while, or lie in two complexes with
//! caches of their own, and what passes from one to the other, such as each frame of a veth pair, then takes a multiple. What is compared has
//! to be measured with the processors where they usually are, which no server can bring about: looks are taken by threads that run
//! before all others.

use super::ANEW_MOST;
use crate::procs::Ahead;
use crate::stats::{self, Summary};
use anyhow::{Result, ensure};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often it is looked at.
const PERIOD: Duration = Duration::from_millis(200);
/// How long a look may take: one thread may come later than the other.
const PATIENCE: Duration = Duration::from_millis(2);
/// A look is the quickest of so many passages, each of so many times there and back: an interrupt disturbs one of them.
const PASSAGES: usize = 5;
const TURNS: u64 = 100;
/// What is usual is the median of the looks of the first so long.
const FIRST: Duration = Duration::from_secs(2);
/// If there is one: the host may have a processor elsewhere.
const FIRST_MOST: Duration = Duration::from_secs(20);
/// Processors are where they usually are while a look differs from it by less than this factor,
const FACTOR: f64 = 1.4;
/// and in a measurement nine of ten looks do.
const SHARE: f64 = 0.9;
/// A measurement waits until so many looks in a row are usual,
const IN_A_ROW: usize = 5;
/// but no longer than this.
const WAIT_MOST: Duration = Duration::from_secs(120);

/// Which of a virtual machine's states is measured.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Wanted {
    /// Measure while processors 0 and 1 hand a cache line over and back in about so many nanoseconds, which on a virtual machine changes;
    /// default: in what it takes at the start; 0: wherever they are
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    apart: Option<u32>,
}

impl Wanted {
    /// The one in which a cache line takes so many nanoseconds; None: it does not matter.
    pub(crate) fn of(ns: Option<u32>) -> Wanted {
        Wanted { apart: Some(ns.unwrap_or(0)) }
    }
}

/// What was seen: when, and nanoseconds there and back.
type Looks = Arc<Mutex<Vec<(Instant, f64)>>>;

/// Looks at two processors as long as it is there; the default does not.
#[derive(Debug, Default)]
pub(crate) struct Apart {
    looks: Looks,
    /// nanoseconds there and back; None where it does not matter
    usual_ns: Option<f64>,
    _threads: Vec<Ahead>,
    // of measurements
    anew: AtomicU64,
    unusual: AtomicU64,
}

/// The line that is handed over, with none of another's beside it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

impl Apart {
    /// Begins to look at the first two processors, and learns what is usual unless that is said. Does not look where there is but one, or
    /// where it is not to matter.
    ///
    /// # Errors
    /// A thread cannot be put on its processor, or before all others: no `chrt`, or not root.
    pub(crate) fn begin(wanted: Wanted) -> Result<Apart> {
        let several = std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1);
        if !several || wanted.apart == Some(0) {
            return Ok(Apart::default());
        }
        super::web::ensure_can_run(&["chrt"])?;
        let mut apart = Apart::of([0, 1])?;
        if let (Some(ns), Some(now_ns)) = (wanted.apart, apart.usual_ns) {
            eprintln!("processors 0 and 1 hand a cache line over and back in {now_ns:.0} ns");
            apart.usual_ns = Some(ns.into());
        }
        Ok(apart)
    }

    fn of(processors: [usize; 2]) -> Result<Apart> {
        let (looks, line) = (Looks::default(), Arc::new(Line::default()));
        // so that both have been put where they belong
        let first = Instant::now() + PERIOD;
        let look = |(at, processor): (usize, usize)| {
            let (looks, line) = (looks.clone(), line.clone());
            let part = move |stop: &AtomicBool| take_part(&line, at == 0, first, stop, &looks);
            Ahead::start(&format!("apart-{processor}"), processor, part)
        };
        let threads: Result<Vec<Ahead>> = processors.into_iter().enumerate().map(look).collect();
        let mut apart = Apart { _threads: threads?, looks, ..Apart::default() };
        let end = Instant::now() + FIRST_MOST;
        let mut seen = Vec::new();
        while seen.is_empty() && Instant::now() < end {
            std::thread::sleep(FIRST);
            seen = apart.seen(first);
        }
        apart.usual_ns = stats::median(&seen);
        ensure!(apart.usual_ns.is_some(), "processors {processors:?} did not meet once in {FIRST_MOST:?}");
        Ok(apart)
    }

    /// Measures while the processors are where they usually are, and once more where they were not, some times at most; once where that is
    /// not looked at.
    ///
    /// # Errors
    /// Of what is measured.
    pub(crate) fn steady<T>(&self, mut measure: impl FnMut() -> Result<T>) -> Result<T> {
        let Some(usual_ns) = self.usual_ns else { return measure() };
        let mut again = 0;
        loop {
            self.wait(usual_ns)?;
            let begun = Instant::now();
            let measured = measure()?;
            let seen = self.seen(begun);
            if share(&seen, usual_ns) >= SHARE {
                return Ok(measured);
            }
            eprintln!("the host moved a processor: {}", told_of(&seen));
            if again == ANEW_MOST {
                self.unusual.fetch_add(1, Ordering::Relaxed);
                return Ok(measured);
            }
            self.anew.fetch_add(1, Ordering::Relaxed);
            again += 1;
        }
    }

    /// Waits until both are where they usually are, for a while at most.
    fn wait(&self, usual_ns: f64) -> Result<()> {
        let end = Instant::now() + WAIT_MOST;
        while share(&self.last(IN_A_ROW), usual_ns) < 1.0 && Instant::now() < end {
            std::thread::sleep(PERIOD);
            lab::uninterrupted()?;
        }
        Ok(())
    }

    /// Looks since a moment, in nanoseconds.
    fn seen(&self, since: Instant) -> Vec<f64> {
        let looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        looks.iter().rev().take_while(|(at, _)| *at >= since).map(|(_, ns)| *ns).collect()
    }

    fn last(&self, count: usize) -> Vec<f64> {
        let looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        looks.iter().rev().take(count).map(|(_, ns)| *ns).collect()
    }

    /// What a report says of it and of what was measured since the last one, a sentence after others.
    pub(crate) fn told(&self) -> String {
        let Some(usual_ns) = self.usual_ns else { return String::new() };
        let [anew, unusual] = [&self.anew, &self.unusual].map(|count| count.swap(0, Ordering::Relaxed));
        let mut text = format!(
            " Processors 0 and 1 handed a cache line over and back in about {usual_ns:.0} ns; on a virtual machine that changes when the host moves one. Where in more \
             than a tenth of a measurement it was another time (by a factor of {FACTOR}) it was made anew, {ANEW_MOST} times at most: that was so {anew} times."
        );
        if unusual > 0 {
            text += &format!(" {unusual} measurements were never without that.");
        }
        text
    }
}

/// The share of looks that are as usual; none is not.
fn share(seen: &[f64], usual_ns: f64) -> f64 {
    let usual = seen.iter().filter(|ns| (usual_ns / FACTOR..usual_ns * FACTOR).contains(*ns)).count();
    usual as f64 / seen.len().max(1) as f64
}

fn told_of(seen: &[f64]) -> String {
    match Summary::of(seen) {
        Some(Summary { median, least, greatest, .. }) => {
            format!("{least:.0} to {greatest:.0} ns there and back, median {median:.0}")
        }
        None => "it could not be seen".into(),
    }
}

/// One of the two, from look to look.
fn take_part(line: &Line, leads: bool, first: Instant, stop: &AtomicBool, looks: &Looks) {
    for look in 1.. {
        let at = first + PERIOD * look;
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        if stop.load(Ordering::Acquire) {
            return;
        }
        // of each look its own, so that who comes late to one finds nothing of it in the next
        let base = u64::from(look) * (PASSAGES as u64 + 1) * TURNS * 2;
        let seen = if leads { lead(line, base, at + PATIENCE) } else { follow(line, base, at + PATIENCE) };
        if let Some(ns) = seen.filter(|_| leads) {
            looks.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), ns));
        }
    }
}

/// Hands the line over and has it back, again and again: nanoseconds of the quickest passage, there and back. None if it does not come.
fn lead(line: &Line, base: u64, end: Instant) -> Option<f64> {
    let mut quickest = f64::INFINITY;
    let mut at = base;
    // the first only finds the other one
    for passage in 0..=PASSAGES {
        let begun = Instant::now();
        for _ in 0..TURNS {
            line.0.store(at + 1, Ordering::Release);
            at += 2;
            await_value(line, at, end)?;
        }
        if passage > 0 {
            quickest = quickest.min(begun.elapsed().as_nanos() as f64 / TURNS as f64);
        }
    }
    Some(quickest)
}

/// Hands it back.
fn follow(line: &Line, base: u64, end: Instant) -> Option<f64> {
    for turn in 0..(PASSAGES as u64 + 1) * TURNS {
        await_value(line, base + 2 * turn + 1, end)?;
        line.0.store(base + 2 * turn + 2, Ordering::Release);
    }
    None
}

/// Waits for a value; None when `end` comes first.
fn await_value(line: &Line, value: u64, end: Instant) -> Option<()> {
    loop {
        // the clock takes longer to read than the line
        for _ in 0..1000 {
            if line.0.load(Ordering::Acquire) == value {
                return Some(());
            }
        }
        if Instant::now() >= end {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procs::tests::assert_threads;

    #[test]
    fn a_look_is_usual_by_a_factor() {
        assert_eq!(share(&[66.0, 70.0, 60.0, 92.0], 66.0), 1.0);
        assert_eq!(share(&[66.0, 33.0, 340.0, 93.0], 66.0), 0.25);
        assert_eq!(share(&[], 66.0), 0.0, "nothing seen is not usual");
        assert_eq!(told_of(&[340.0, 66.0, 70.0]), "66 to 340 ns there and back, median 70");
        assert_eq!(told_of(&[]), "it could not be seen");
    }

    #[test]
    fn the_line_goes_there_and_back_and_nobody_waits_for_ever() {
        let line = Line::default();
        let far = Instant::now() + Duration::from_secs(60);
        let ns = std::thread::scope(|scope| {
            scope.spawn(|| follow(&line, 5000, far));
            lead(&line, 5000, far)
        });
        assert!(ns.is_some_and(|ns| ns > 0.0 && ns < 1e9), "{ns:?}");
        assert_eq!(line.0.load(Ordering::Acquire), 5000 + 12 * TURNS);
        let soon = Instant::now() + Duration::from_millis(5);
        assert_eq!((lead(&line, 9000, soon), follow(&line, 12_000, soon)), (None, None));
    }

    /// Who has seen `usual_ns` for long, and what it is told next.
    fn seen_before(usual_ns: f64) -> Apart {
        let apart = Apart { usual_ns: Some(usual_ns), ..Apart::default() };
        see(&apart, usual_ns, IN_A_ROW);
        apart
    }

    fn see(apart: &Apart, ns: f64, looks: usize) {
        apart.looks.lock().unwrap().extend((0..looks).map(|_| (Instant::now(), ns)));
    }

    #[test]
    fn a_measurement_while_a_processor_was_elsewhere_is_made_anew() {
        let apart = seen_before(66.0);
        // looks elsewhere and as usual; the last of each let the next begin
        let looks = [(2, 10), (1, 5), (1, 10)];
        let mut measured = 0;
        let outcome = apart.steady(|| {
            let (elsewhere, usual) = looks[measured];
            measured += 1;
            see(&apart, 340.0, elsewhere);
            see(&apart, 70.0, usual);
            Ok(measured)
        });
        assert_eq!(outcome.unwrap(), 3, "one of eleven is less than a tenth");
        let told = apart.told();
        assert!(told.contains("back in about 66 ns;") && told.ends_with("so 2 times."), "{told}");
        assert!(apart.told().ends_with("so 0 times."), "of the next report");
    }

    #[test]
    fn what_stays_elsewhere_is_kept_and_told() {
        let apart = seen_before(66.0);
        let mut measured = 0;
        let outcome = apart.steady(|| {
            measured += 1;
            see(&apart, 340.0, 10);
            std::thread::sleep(Duration::from_millis(1));
            // so that the next need not wait
            see(&apart, 66.0, IN_A_ROW);
            Ok(measured)
        });
        assert_eq!(outcome.unwrap(), ANEW_MOST + 1);
        let told = apart.told();
        assert!(told.ends_with("so 4 times. 1 measurements were never without that."), "{told}");
    }

    #[test]
    fn it_is_seen_here_and_its_threads_end() {
        lab::require_programs(&["chrt"]);
        if std::thread::available_parallelism().unwrap().get() < 2 {
            return;
        }
        let apart = Apart::begin(Wanted::default()).unwrap();
        assert!(apart.usual_ns.is_some_and(|ns| ns > 0.0), "{apart:?}");
        assert_threads("apart-", 2);
        let before = apart.seen(Instant::now() - Duration::from_secs(60)).len();
        assert!(before > 0, "{apart:?}");
        drop(apart);
        assert_threads("apart-", 0);
        let said = Apart::begin(Wanted { apart: Some(77) }).unwrap();
        assert_eq!(said.usual_ns, Some(77.0));
        drop(said);
        let anywhere = Apart::begin(Wanted { apart: Some(0) }).unwrap();
        assert_threads("apart-", 0);
        assert_eq!((anywhere.told(), anywhere.steady(|| Ok(7)).unwrap()), (String::new(), 7));
        assert!(Apart::of([0, 1 << 20]).is_err(), "no such processor");
        assert_threads("apart-", 0);
    }
}
