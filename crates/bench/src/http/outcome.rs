//! What a load came to.

use super::response::Malformed;
use crate::load::{Latency, histogram};
use app::DeadReason;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// What kept a request from being answered rightly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Failure {
    /// the server refused the connection
    Refused,
    /// nobody answered in time that a connection was asked for
    ConnectTimeout,
    /// the connection was reset while an answer was due
    Reset,
    /// the answer did not come, or not to its end, in time
    Timeout,
    /// the server ended the connection before it answered
    Closed,
    /// the server ended the connection within an answer
    Cut,
    /// no port of ours was free
    NoPort,
    /// our own stack had no room
    NoResources,
    /// no answer by HTTP's rules
    Malformed(Malformed),
    /// a body of another length than expected
    WrongLength,
    /// a body of other content than expected
    WrongBody,
    /// a body made of two versions
    MixedVersions,
    /// a version that was replaced before it was asked for
    OldVersion,
    /// an ETag that stood for another version before, or a version that had another one
    WrongTag,
}

impl Failure {
    /// Of a connection that ended for this reason; `connecting`: before it stood.
    pub(super) fn of(reason: DeadReason, connecting: bool) -> Failure {
        match (reason, connecting) {
            (DeadReason::Reset | DeadReason::Refused | DeadReason::Unreachable, true) => Failure::Refused,
            (DeadReason::TimedOut, true) => Failure::ConnectTimeout,
            (DeadReason::Closed | DeadReason::Aborted, true) => Failure::Closed,
            (DeadReason::Reset | DeadReason::Refused | DeadReason::Unreachable, false) => Failure::Reset,
            (DeadReason::TimedOut, false) => Failure::Timeout,
            (DeadReason::Closed | DeadReason::Aborted, false) => Failure::Cut,
            (DeadReason::NoResources | DeadReason::Denied(_), _) => Failure::NoResources,
        }
    }

    /// Whether an answer came, but a wrong one.
    pub(crate) fn is_wrong_body(self) -> bool {
        matches!(
            self,
            Failure::WrongLength
                | Failure::WrongBody
                | Failure::MixedVersions
                | Failure::OldVersion
                | Failure::WrongTag
        )
    }

    /// Whether something came that is no right answer.
    fn is_wrong_answer(self) -> bool {
        self.is_wrong_body() || matches!(self, Failure::Malformed(_))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused => f.write_str("connections refused"),
            Failure::ConnectTimeout => f.write_str("connections not answered in time"),
            Failure::Reset => f.write_str("connections reset with an answer due"),
            Failure::Timeout => f.write_str("answers not in time"),
            Failure::Closed => f.write_str("connections ended before an answer"),
            Failure::Cut => f.write_str("connections ended within an answer"),
            Failure::NoPort => f.write_str("no port free"),
            Failure::NoResources => f.write_str("no room in our own stack"),
            Failure::Malformed(why) => write!(f, "malformed answers ({why:?})"),
            Failure::WrongLength => f.write_str("bodies of a wrong length"),
            Failure::WrongBody => f.write_str("bodies with wrong content"),
            Failure::MixedVersions => f.write_str("bodies made of two versions"),
            Failure::OldVersion => f.write_str("bodies of versions replaced before"),
            Failure::WrongTag => f.write_str("bodies with another version's ETag"),
        }
    }
}

/// How often what went wrong; written out as pairs, since JSON's keys are text.
pub(crate) type Failures = Vec<(Failure, u64)>;

/// What a load came to. Answers with any status are answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// requests a second that were wanted; None: as many as connections allow
    pub(crate) rate: Option<f64>,
    /// how long was asked
    pub(crate) span_ns: u64,
    /// requests sent
    pub(crate) sent: u64,
    /// requests that were due and not sent: every connection was busy
    pub(crate) missed: u64,
    /// answers
    pub(crate) answered: u64,
    /// of which so many came within the span
    pub(crate) answered_in_span: u64,
    /// and of those so many with a status of 2xx and the length and content that were expected, as far as they were compared
    pub(crate) good_in_span: u64,
    /// of all answers so many were such, and whole no later than the time-out after they were due
    #[serde(default)]
    pub(crate) good_in_time: u64,
    /// and so many were such, and later
    #[serde(default)]
    pub(crate) good_late: u64,
    /// connections that stood, those that were there at the start among them
    pub(crate) connections: u64,
    /// bytes received, heads and all
    pub(crate) bytes: u64,
    /// the same within the span
    pub(crate) bytes_in_span: u64,
    /// octets of bodies
    pub(crate) body_bytes: u64,
    /// answers whose content was compared
    pub(crate) checked: u64,
    /// versions of a synthetic site that were the newest in their turn
    #[serde(default)]
    pub(crate) versions: u64,
    /// answers with a status other than 2xx
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// what went wrong
    pub(crate) failures: Failures,
    /// requests without an answer when the load ended, shortly after its span
    pub(crate) unfinished: u64,
    /// SYNs of a flood beside the load, and those that were due and not sent
    #[serde(default)]
    pub(crate) flood: Option<(u64, u64)>,
    /// of all answers
    pub(crate) latency: Latency,
    #[serde(skip, default = "histogram")]
    histogram: Histogram<u64>,
}

impl Outcome {
    pub(crate) fn new(rate: Option<f64>) -> Outcome {
        Outcome {
            rate,
            span_ns: 0,
            sent: 0,
            missed: 0,
            answered: 0,
            answered_in_span: 0,
            good_in_span: 0,
            good_in_time: 0,
            good_late: 0,
            connections: 0,
            bytes: 0,
            bytes_in_span: 0,
            body_bytes: 0,
            checked: 0,
            versions: 0,
            statuses: BTreeMap::new(),
            failures: Vec::new(),
            unfinished: 0,
            flood: None,
            latency: Latency::default(),
            histogram: histogram(),
        }
    }

    #[inline]
    pub(super) fn record_latency(&mut self, ns: u64) {
        self.histogram.saturating_record(ns.max(100));
    }

    /// An answer was good, within the span or behind it, and in time or not.
    #[inline]
    pub(super) fn count_good(&mut self, in_span: bool, in_time: bool) {
        self.good_in_span += u64::from(in_span);
        self.good_in_time += u64::from(in_time);
        self.good_late += u64::from(!in_time);
    }

    #[cold]
    pub(super) fn fail(&mut self, failure: Failure) {
        match self.failures.iter_mut().find(|(known, _)| *known == failure) {
            Some((_, count)) => *count += 1,
            None => self.failures.push((failure, 1)),
        }
    }

    /// Takes over the wrong answers of the warm-up: what is wrong is told, whenever it came.
    pub(super) fn inherit(&mut self, before: Outcome) {
        for (failure, count) in before.failures.into_iter().filter(|(failure, _)| failure.is_wrong_answer()) {
            match self.failures.iter_mut().find(|(known, _)| *known == failure) {
                Some((_, known)) => *known += count,
                None => self.failures.push((failure, count)),
            }
        }
    }

    pub(super) fn finish(&mut self) {
        self.failures.sort_unstable();
        self.latency = Latency::of(&self.histogram);
    }

    /// How often a kind of failure was seen.
    pub(crate) fn failed(&self, is_it: impl Fn(Failure) -> bool) -> u64 {
        self.failures.iter().filter(|(failure, _)| is_it(*failure)).map(|(_, count)| count).sum()
    }

    /// Good answers a second: what a server that refuses, or answers wrongly, does not gain by.
    pub(crate) fn good_rate(&self) -> f64 {
        self.good_in_span as f64 * 1e9 / self.span_ns.max(1) as f64
    }

    /// Answers with another status than 2xx.
    pub(crate) fn refusals(&self) -> u64 {
        self.statuses.values().sum()
    }

    /// Requests without a good answer, of those that were sent or should have had a connection.
    pub(crate) fn bad(&self) -> u64 {
        self.failed(|_| true) + self.refusals() + self.unfinished
    }

    /// The share of what was due that was not sent, since every connection was busy.
    pub(crate) fn missed_share(&self) -> f64 {
        self.missed as f64 / (self.sent + self.missed).max(1) as f64
    }

    /// All that was asked for, each request counted once: what was not sent is not in it.
    fn asked(&self) -> u64 {
        self.answered + self.failed(|failure| !failure.is_wrong_body()) + self.unfinished
    }

    /// The share of good answers among all that was asked for, however late they came.
    pub(crate) fn good_share(&self) -> f64 {
        let good = self.answered.saturating_sub(self.refusals() + self.failed(Failure::is_wrong_body));
        good as f64 / self.asked().max(1) as f64
    }

    /// The share of what was asked for that had a good answer no later than the time-out after it was due.
    pub(crate) fn in_time_share(&self) -> f64 {
        self.good_in_time as f64 / self.asked().max(1) as f64
    }

    /// The share of what was asked for that had a good answer, and later than that.
    pub(crate) fn late_share(&self) -> f64 {
        self.good_late as f64 / self.asked().max(1) as f64
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.span_ns.max(1) as f64 / 1e9;
        writeln!(f, "sent         {:>10}  over {} connections", self.sent, self.connections)?;
        if self.missed > 0 {
            writeln!(f, "not sent     {:>10}  due while every connection was busy", self.missed)?;
        }
        write!(f, "answered     {:>10}  {} in {seconds:.2} s", self.answered, self.answered_in_span)?;
        if self.good_in_span < self.answered_in_span {
            write!(f, ", {} of them good", self.good_in_span)?;
        }
        writeln!(f)?;
        writeln!(f, "bytes        {:>10}  {} of bodies", self.bytes, self.body_bytes)?;
        let wrong = self.failed(Failure::is_wrong_body);
        writeln!(f, "checked      {:>10}  by content, all by length; {wrong} wrong", self.checked)?;
        if self.good_late > 0 {
            writeln!(f, "late         {:>10}  good, and later than the time-out after they were due", self.good_late)?;
        }
        for (status, count) in &self.statuses {
            writeln!(f, "status {status}   {count:>10}")?;
        }
        for (failure, count) in &self.failures {
            writeln!(f, "error        {count:>10}  {failure}")?;
        }
        if self.unfinished > 0 {
            writeln!(f, "unfinished   {:>10}  when the load ended", self.unfinished)?;
        }
        if let Some((sent, missed)) = self.flood {
            writeln!(f, "flood        {sent:>10}  SYNs; {missed} more were due and not sent")?;
        }
        let Latency { p50_us, p90_us, p99_us, p999_us, greatest_us } = self.latency;
        writeln!(
            f,
            "latency      p50 {p50_us:.1}  p90 {p90_us:.1}  p99 {p99_us:.1}  p99.9 {p999_us:.1}  max {greatest_us:.1} us"
        )?;
        writeln!(f, "Requests/sec: {:.2}", self.good_rate())?;
        write!(f, "Transfer/sec: {:.2} MB", self.bytes_in_span as f64 / seconds / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_and_wrong_bodies_are_answers_and_not_good_ones() {
        let mut outcome = Outcome::new(None);
        (outcome.span_ns, outcome.answered, outcome.answered_in_span, outcome.good_in_span) =
            (500_000_000, 100, 90, 60);
        outcome.statuses.insert(503, 30);
        (0..5).for_each(|_| outcome.fail(Failure::WrongBody));
        (0..15).for_each(|_| outcome.fail(Failure::Timeout));
        outcome.unfinished = 10;
        assert_eq!(outcome.good_rate(), 120.0);
        let text = outcome.to_string();
        assert!(
            text.contains("90 in 0.50 s, 60 of them good\n") && text.contains("\nRequests/sec: 120.00\n"),
            "{text}"
        );
        assert_eq!(outcome.bad(), 30 + 5 + 15 + 10);
        // 65 of 100 that were answered, 15 that failed and 10 that were waited for
        assert_eq!(outcome.good_share(), 65.0 / 125.0);
    }

    #[test]
    fn what_is_good_and_late_is_told_apart() {
        let mut outcome = Outcome::new(None);
        assert_eq!((outcome.in_time_share(), outcome.late_share()), (0.0, 0.0));
        // of ten that were asked for one was refused, one failed and one is still waited for
        outcome.answered = 8;
        outcome.statuses.insert(503, 1);
        outcome.fail(Failure::Timeout);
        outcome.unfinished = 1;
        for (in_span, in_time) in
            [(true, true), (true, true), (true, false), (true, false), (false, true), (false, false), (false, false)]
        {
            outcome.count_good(in_span, in_time);
        }
        assert_eq!((outcome.good_in_span, outcome.good_in_time, outcome.good_late), (4, 3, 4));
        assert_eq!((outcome.good_share(), outcome.in_time_share(), outcome.late_share()), (0.7, 0.3, 0.4));
        assert!(outcome.to_string().contains("\nlate                  4  good, and later"), "{outcome}");
    }

    #[test]
    fn what_was_wrong_in_the_warm_up_is_told_with_the_load() {
        let (mut before, mut outcome) = (Outcome::new(None), Outcome::new(None));
        for failure in [Failure::WrongBody, Failure::WrongBody, Failure::Malformed(Malformed::Extra), Failure::Timeout]
        {
            before.fail(failure);
        }
        outcome.fail(Failure::WrongBody);
        outcome.inherit(before);
        assert_eq!((outcome.failed(Failure::is_wrong_body), outcome.failed(|_| true)), (3, 4));
    }
}
