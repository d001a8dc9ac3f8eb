//! What a run found.

use std::time::Duration;

/// How often it is looked how many answers there are.
pub(super) const WINDOW: Duration = Duration::from_millis(100);

/// What had been done by the end of a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Window {
    /// seconds since the start
    pub(super) at: f64,
    /// what each thread's clients had been answered
    pub(super) answered: Vec<u64>,
    pub(super) sliced: Sums,
}

/// What all threads together had done in the slices that were over; nothing where they serve all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    pub(super) answers: u64,
    pub(super) served_s: f64,
    pub(super) steps: u64,
    pub(super) counted_s: f64,
}

/// What a run found.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) windows: Vec<Window>,
    /// of the dataplanes of one thread that had their slices in between, one on each of the processors
    pub(super) ones: Vec<Vec<Window>>,
    /// of the threads' time for serving, the clients'
    pub(super) clients_share: f64,
    /// of the answered questions, those that went to another thread than the one that received them
    pub(super) crossed_share: f64,
    /// flow groups that changed their thread
    pub(super) moved: u64,
    pub(super) checked: u64,
}

/// What was done between two windows' ends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    /// answers in a second of serving, over all threads
    pub(super) answers: f64,
    /// steps in a second of counting, over all threads
    pub(super) steps: f64,
}

impl Rates {
    fn between(before: &Window, after: &Window) -> Rates {
        let rate = |count: u64, seconds: f64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let (threads, first, last) = (after.answered.len() as f64, before.sliced, after.sliced);
        if last.served_s == 0.0 {
            let answered = after.answered.iter().sum::<u64>() - before.answered.iter().sum::<u64>();
            return Rates { answers: rate(answered, after.at - before.at), steps: 0.0 };
        }
        Rates {
            answers: rate(last.answers - first.answers, (last.served_s - first.served_s) / threads),
            steps: rate(last.steps - first.steps, (last.counted_s - first.counted_s) / threads),
        }
    }

    /// From `from` on, in seconds.
    pub(super) fn since(windows: &[Window], from: f64) -> Rates {
        match (windows.iter().find(|window| window.at >= from), windows.last()) {
            (Some(begin), Some(end)) if end.at > begin.at => Rates::between(begin, end),
            _ => Rates::default(),
        }
    }

    /// The mean.
    pub(super) fn mean(all: &[Rates]) -> Rates {
        let mean = |of: fn(&Rates) -> f64| all.iter().map(of).sum::<f64>() / all.len().max(1) as f64;
        Rates { answers: mean(|rates| rates.answers), steps: mean(|rates| rates.steps) }
    }
}

impl Figures {
    /// Answers a second in each window, with its end.
    pub(super) fn rates(&self) -> impl Iterator<Item = (f64, f64)> {
        self.windows.windows(2).map(|two| (two[1].at, Rates::between(&two[0], &two[1]).answers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(at: f64, answered: [u64; 2], sliced: Sums) -> Window {
        Window { at, answered: answered.into(), sliced }
    }

    #[test]
    fn rates_are_for_a_second_in_which_all_threads_serve() {
        let none = Sums::default();
        let served = [window(0.0, [0, 0], none), window(1.0, [100, 0], none), window(3.0, [500, 300], none)];
        assert_eq!(Rates::since(&served, 0.0), Rates { answers: 800.0 / 3.0, steps: 0.0 });
        assert_eq!(Rates::since(&served, 0.5), Rates { answers: 350.0, steps: 0.0 });
        assert_eq!(Rates::since(&served, 3.0), Rates::default(), "no window lies behind it");
        // a quarter of the time each, and two threads
        let sums =
            |n: u64| Sums { answers: 100 * n, served_s: 0.5 * n as f64, steps: 60 * n, counted_s: 0.5 * n as f64 };
        let sliced = [1, 2, 3].map(|n| window(n as f64, [60 * n, 60 * n], sums(n)));
        assert_eq!(Rates::since(&sliced, 1.0), Rates { answers: 400.0, steps: 240.0 });
    }
}
