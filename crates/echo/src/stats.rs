//! What was echoed and what was not. One block a thread, written by it alone.

use base::Counter;
use base::counter::{Figure, Report};

/// Why a datagram is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// from a port below 1024, where servers are
    LowPort,
    /// from a port that this service listens on: perhaps another echo server
    OwnPort,
}

const DROPS: [(DropReason, &str); 2] = [(DropReason::LowPort, "low port"), (DropReason::OwnPort, "own port")];

/// One thread's counts.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Stats {
    drops: [Counter; DROPS.len()],
    pub(crate) answers: Counter,
    pub(crate) octets: Counter,
}

impl Stats {
    #[inline]
    pub(crate) fn dropped(&self, reason: DropReason) {
        self.drops[reason as usize].add(1);
    }

    /// Datagrams that were not answered for this reason.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize].get()
    }

    /// Datagrams that were answered.
    pub fn answers(&self) -> u64 {
        self.answers.get()
    }
}

impl Report for Stats {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let mut count = |name, help, labels: &[(&str, &str)], counter: &Counter| {
            show(Figure { name, help, gauge: false, labels, value: counter.get() });
        };
        count("echo_answers_total", "datagrams sent back", &[], &self.answers);
        count("echo_bytes_total", "octets of payload sent back", &[], &self.octets);
        for (reason, name) in DROPS {
            let counter = &self.drops[reason as usize];
            count("echo_drops_total", "datagrams not sent back", &[("reason", name)], counter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_stands_at_its_own_place() {
        let stats = Stats::default();
        for (n, (reason, _)) in DROPS.iter().enumerate() {
            assert_eq!(*reason as usize, n);
        }
        stats.dropped(DropReason::OwnPort);
        stats.answers.add(2);
        stats.octets.add(3);
        let mut seen = Vec::new();
        stats.report(&mut |figure| seen.push((figure.name.to_owned(), figure.labels.len(), figure.value)));
        let seen: Vec<_> = seen.iter().map(|(name, labels, value)| (name.as_str(), *labels, *value)).collect();
        let drops = "echo_drops_total";
        assert_eq!(seen, [("echo_answers_total", 0, 2), ("echo_bytes_total", 0, 3), (drops, 1, 0), (drops, 1, 1)]);
    }
}
