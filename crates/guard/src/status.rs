//! What a service in a process of its own counts by itself, shown by the server as if it ran inside.
//!
//! The application's half writes numbers into its area now and then, the server reads them. What each number is called the server knows
//! from counters of its own of the same kind, which nothing counts with: no name comes from the application, and a number is shown and
//! nothing else. One that lies shows wrong numbers of itself. Counts begin anew with the application's process.

use crate::channel::Channel;
use crate::client::Shared;
use crate::layout::STATUS_NUMBERS;
use base::counter::{Figure, Report};
use std::sync::Arc;

/// A figure without its value.
struct Known {
    name: String,
    help: String,
    gauge: bool,
    labels: Vec<(String, String)>,
}

impl Known {
    fn is(&self, figure: &Figure<'_>) -> bool {
        let same = |(known, shown): (&(String, String), &(&str, &str))| known.0 == shown.0 && known.1 == shown.1;
        self.name == figure.name
            && self.labels.len() == figure.labels.len()
            && self.labels.iter().zip(figure.labels).all(same)
    }
}

/// Figures in the order of their first appearance, with values that are added up where one appears again.
fn numbered(reports: &[Arc<dyn Report>]) -> (Vec<Known>, Vec<u64>) {
    let (mut known, mut values) = (Vec::<Known>::new(), Vec::<u64>::new());
    for report in reports {
        report.report(&mut |figure| match known.iter().position(|known| known.is(&figure)) {
            Some(n) => values[n] = values[n].wrapping_add(figure.value),
            None => {
                let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
                known.push(Known {
                    name: figure.name.to_owned(),
                    help: figure.help.to_owned(),
                    gauge: figure.gauge,
                    labels: figure.labels.iter().map(own).collect(),
                });
                values.push(figure.value);
            }
        });
    }
    assert!(known.len() <= STATUS_NUMBERS, "{} figures, and there is room for {STATUS_NUMBERS}", known.len());
    (known, values)
}

/// The application's: shows what its counters say.
pub(crate) fn show(shared: &Shared, reports: &[Arc<dyn Report>]) {
    for (n, value) in numbered(reports).1.into_iter().enumerate() {
        shared.set_number(n, value);
    }
}

/// The server's: the figures of one thread of an application.
pub struct Status {
    channel: Arc<Channel>,
    known: Vec<Known>,
}

impl Status {
    /// What the application shows on this channel, which are figures of these kinds, in this order; their values do not matter.
    ///
    /// # Panics
    /// When there are more than [`STATUS_NUMBERS`].
    pub fn new(channel: Arc<Channel>, kinds: &[Arc<dyn Report>]) -> Status {
        Status { channel, known: numbered(kinds).0 }
    }
}

impl Report for Status {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        for (n, Known { name, help, gauge, labels }) in self.known.iter().enumerate() {
            let labels: Vec<(&str, &str)> =
                labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            show(Figure { name, help, gauge: *gauge, labels: &labels, value: self.channel.shown(n) });
        }
    }
}

impl std::fmt::Debug for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Status({} figures, {:?})", self.known.len(), self.channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pair;
    use crate::{Options, State};
    use base::Counter;

    /// Counters of one kind, of which a part is there twice.
    #[derive(Default)]
    struct Block([Counter; 4]);

    impl Report for Block {
        fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
            let mut figure = |name, gauge, labels: &[(&str, &str)], n: usize| {
                show(Figure { name, help: "a figure", gauge, labels, value: self.0[n].get() });
            };
            figure("a_total", false, &[], 0);
            figure("b_total", false, &[("reason", "x")], 1);
            figure("b_total", false, &[("reason", "y")], 2);
            figure("level", true, &[], 3);
            figure("a_total", false, &[], 1);
        }
    }

    fn seen(status: &Status) -> Vec<(String, bool, String, u64)> {
        let mut seen = Vec::new();
        status.report(&mut |figure| {
            let label = figure.labels.first().map_or("", |label| label.1);
            seen.push((figure.name.to_owned(), figure.gauge, label.to_owned(), figure.value));
        });
        seen
    }

    #[test]
    fn what_the_application_shows_has_the_servers_names() {
        let mut pair = pair(10, Options::default());
        let status = Status::new(pair.channel.clone(), &[Arc::new(Block::default())]);
        let block = Arc::new(Block::default());
        block.0.iter().zip([5, 7, 0, u64::MAX]).for_each(|(counter, value)| counter.set(value));
        let shared = pair.attached.shared().unwrap();
        shared.attach();
        show(&shared, &[block]);
        let expect = |values: [u64; 4]| {
            let names = [("a_total", false, ""), ("b_total", false, "x"), ("b_total", false, "y"), ("level", true, "")];
            let all = names.into_iter().zip(values);
            all.map(|((name, gauge, label), value)| (name.to_owned(), gauge, label.to_owned(), value))
                .collect::<Vec<_>>()
        };
        assert_eq!(seen(&status), expect([12, 7, 0, u64::MAX]));
        // the next one begins at zero
        pair.channel.lose();
        crate::testing::Engine::new(0).cycle(&mut pair.remote);
        assert_eq!(pair.channel.state(), State::Down);
        assert_eq!(seen(&status), expect([0; 4]));
    }
}
