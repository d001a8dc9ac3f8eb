//! What a server says of itself at one moment, and what changed since the moment before.

use crate::ctl::Request;
use crate::ctl::client::Connection;
use crate::error::Error;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A server that says nothing for so long is not there.
const PATIENCE: Duration = Duration::from_secs(5);
/// Clock ticks of /proc a second (USER_HZ, which is 100 on every architecture that Rust runs on).
const TICKS_S: f64 = 100.0;

/// A figure's name, as the control socket has it, and its labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    gauge: bool,
    value: u64,
}

/// A thread of the server as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) name: String,
    processor: u32,
    ticks: u64,
}

/// One moment.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    at: Duration,
    /// what `ctl status` says
    pub(super) status: Value,
    samples: BTreeMap<Key, Sample>,
    /// by number; none where the server's /proc cannot be seen
    tasks: BTreeMap<u32, Task>,
}

impl Reading {
    /// From the answers to `status` and `stats`, received so long after an arbitrary zero.
    pub(super) fn new(at: Duration, status: Value, stats: &Value) -> Reading {
        let samples = stats["metrics"].as_array().into_iter().flatten().filter_map(|sample| {
            let labels = sample["labels"].as_object().into_iter().flatten();
            let labels = labels.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()));
            let key = Key { name: sample["name"].as_str()?.to_owned(), labels: labels.collect() };
            Some((key, Sample { gauge: sample["type"] == "gauge", value: sample["value"].as_u64()? }))
        });
        Reading { at, status, samples: samples.collect(), tasks: BTreeMap::new() }
    }

    pub(super) fn with_tasks(mut self, tasks: BTreeMap<u32, Task>) -> Reading {
        self.tasks = tasks;
        self
    }

    /// Tells this server from one that was started later.
    fn life(&self) -> (Option<u64>, Option<u64>) {
        let start = Key { name: "start_time_seconds".into(), labels: BTreeMap::new() };
        (self.status["pid"].as_u64(), self.samples.get(&start).map(|sample| sample.value))
    }
}

/// The threads of a process. None can be seen across the bounds of a container.
fn tasks(pid: u64) -> BTreeMap<u32, Task> {
    let folder = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads = folder.into_iter().flatten().flatten().filter_map(|thread| {
        let number = thread.file_name().to_str()?.parse().ok()?;
        Some((number, task(&std::fs::read_to_string(thread.path().join("stat")).ok()?)?))
    });
    threads.collect()
}

/// A line of /proc/PID/task/TID/stat (proc_pid_stat(5)): the name stands in parentheses and may hold any.
fn task(stat: &str) -> Option<Task> {
    let (begin, end) = (stat.find('(')?, stat.rfind(')')?);
    // from field 3 on
    let fields: Vec<&str> = stat.get(end + 1..)?.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let name = stat.get(begin + 1..end)?.to_owned();
    Some(Task { name, processor: number(39)? as u32, ticks: number(14)? + number(15)? })
}

/// Where readings come from.
#[derive(Debug)]
pub(super) struct Source {
    control: Option<PathBuf>,
    connection: Option<Connection>,
    begun: Instant,
}

impl Source {
    pub(super) fn new(control: Option<PathBuf>) -> Source {
        Source { control, connection: None, begun: Instant::now() }
    }

    /// Asks the server; after a failure the next call connects anew.
    ///
    /// # Errors
    /// No server answers.
    pub(super) fn read(&mut self) -> Result<Reading, Error> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(self.control.as_deref())?.patient(PATIENCE)?,
        };
        let status = connection.ask(&Request::Status {})?;
        let stats = connection.ask(&Request::Stats {})?;
        let at = self.begun.elapsed();
        self.connection = Some(connection);
        let tasks = status["pid"].as_u64().map(tasks).unwrap_or_default();
        Ok(Reading::new(at, status, &stats).with_tasks(tasks))
    }
}

/// A figure now, and how fast it rises.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) gauge: bool,
    pub(super) value: u64,
    /// None of gauges, and where nothing was known before
    pub(super) per_s: Option<f64>,
}

/// A thread of the server, and how much of a processor it had; None where nothing was known before.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ran {
    pub(super) name: String,
    pub(super) processor: u32,
    pub(super) share: Option<f64>,
}

/// What is shown: figures and their rates.
#[derive(Clone, Debug, Default)]
pub(super) struct Change {
    pub(super) status: Value,
    pub(super) figures: BTreeMap<Key, Figure>,
    pub(super) tasks: Vec<Ran>,
    /// another server answers than before
    pub(super) restarted: bool,
    /// seconds that the rates are of; None without any
    pub(super) span_s: Option<f64>,
}

impl Change {
    pub(super) fn between(before: Option<&Reading>, now: &Reading) -> Change {
        let restarted = before.is_some_and(|before| before.life() != now.life());
        let before = before.filter(|_| !restarted);
        let span_s = before.map(|before| now.at.saturating_sub(before.at).as_secs_f64()).filter(|span| *span > 0.0);
        let per_s = |was: Option<u64>, is: u64| {
            // what fell began anew: a zone that came back, say
            let rise = is.checked_sub(was?)?;
            span_s.map(|span| rise as f64 / span)
        };
        let figures = now.samples.iter().map(|(key, sample)| {
            let was = before.and_then(|before| before.samples.get(key));
            // who is new since began at zero
            let was = was.map(|was| was.value).or(before.map(|_| 0));
            let per_s = if sample.gauge { None } else { per_s(was, sample.value) };
            (key.clone(), Figure { gauge: sample.gauge, value: sample.value, per_s })
        });
        let tasks = now.tasks.iter().map(|(number, task)| {
            let was = before.and_then(|before| before.tasks.get(number)).map(|was| was.ticks);
            let share = per_s(was, task.ticks).map(|ticks| ticks / TICKS_S);
            Ran { name: task.name.clone(), processor: task.processor, share }
        });
        Change { status: now.status.clone(), figures: figures.collect(), tasks: tasks.collect(), restarted, span_s }
    }

    /// The figures of a name.
    pub(super) fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a Key, &'a Figure)> {
        let first = Key { name: name.to_owned(), labels: BTreeMap::new() };
        self.figures.range(first..).take_while(move |(key, _)| key.name == name)
    }

    /// What the values with these labels rise by, together; None when there is none, or nothing was known before.
    pub(super) fn rate(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        sum(self.of(name).filter(|(key, _)| key.has(labels)).map(|(_, figure)| figure.per_s))
    }

    /// What the values with these labels are, together; None when there is none.
    pub(super) fn level(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        sum(self.of(name).filter(|(key, _)| key.has(labels)).map(|(_, figure)| Some(figure.value as f64)))
    }
}

impl Key {
    fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.labels.get(*name).is_some_and(|has| has == value))
    }
}

/// The sum of what is known; None when nothing is.
pub(super) fn sum(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    values.flatten().fold(None, |sum, value| Some(sum.unwrap_or_default() + value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reading(at_s: u64, start: u64, frames: u64) -> Reading {
        let sample =
            |name, kind, value: u64| json!({"name": name, "type": kind, "labels": {"thread": "0"}, "value": value});
        let start = json!({"name": "start_time_seconds", "type": "gauge", "labels": {}, "value": start});
        let stats =
            json!({"metrics": [sample("frames_total", "counter", frames), sample("waiting", "gauge", 7), start]});
        Reading::new(Duration::from_secs(at_s), json!({"pid": 9}), &stats)
    }

    #[test]
    fn rates_are_differences_by_time() {
        let change = Change::between(Some(&reading(10, 1, 500)), &reading(14, 1, 900));
        assert_eq!((change.rate("frames_total", &[]), change.level("frames_total", &[])), (Some(100.0), Some(900.0)));
        assert_eq!((change.rate("waiting", &[]), change.level("waiting", &[("thread", "0")])), (None, Some(7.0)));
        assert_eq!((change.level("waiting", &[("thread", "1")]), change.rate("none", &[])), (None, None));
        assert!(!change.restarted && change.span_s == Some(4.0));
    }

    #[test]
    fn the_first_reading_and_a_new_server_have_no_rates() {
        let first = Change::between(None, &reading(10, 1, 500));
        assert_eq!((first.rate("frames_total", &[]), first.restarted, first.span_s), (None, false, None));
        // the counters of the new one are already higher
        let second = Change::between(Some(&reading(10, 1, 500)), &reading(11, 5, 600));
        assert_eq!((second.rate("frames_total", &[]), second.restarted), (None, true));
        // a counter that fell, of the same server
        let third = Change::between(Some(&reading(10, 1, 500)), &reading(11, 1, 400));
        assert_eq!((third.rate("frames_total", &[]), third.restarted), (None, false));
        // two readings of one moment
        assert_eq!(Change::between(Some(&reading(10, 1, 5)), &reading(10, 1, 9)).rate("frames_total", &[]), None);
    }

    #[test]
    fn a_figure_that_was_not_there_before_began_at_zero() {
        let mut before = reading(10, 1, 500);
        before.samples.retain(|key, _| key.name != "frames_total");
        assert_eq!(Change::between(Some(&before), &reading(12, 1, 500)).rate("frames_total", &[]), Some(250.0));
    }

    #[test]
    fn threads_have_names_of_any_kind() {
        let fields = (3..=52).map(|field| if field == 3 { "S".into() } else { field.to_string() });
        let fields: Vec<String> = fields.collect();
        let found = task(&format!("77 (a) (b 1) {}", fields.join(" "))).unwrap();
        assert_eq!(found, Task { name: "a) (b 1".into(), processor: 39, ticks: 14 + 15 });
        for wrong in ["", "77", "77 (a)", "77 )a( S", "77 (a) S 1 2"] {
            assert_eq!(task(wrong), None, "{wrong}");
        }
        assert!(tasks(std::process::id().into()).values().any(|task| !task.name.is_empty()));
    }

    #[test]
    fn what_threads_used_is_a_share_of_a_processor() {
        let with = |reading: Reading, ticks| {
            let task = Task { name: "dataplane-0".into(), processor: 3, ticks };
            reading.with_tasks(BTreeMap::from([(5, task)]))
        };
        let change = Change::between(Some(&with(reading(10, 1, 0), 100)), &with(reading(12, 1, 0), 250));
        assert_eq!(change.tasks, [Ran { name: "dataplane-0".into(), processor: 3, share: Some(0.75) }]);
    }

    #[test]
    fn answers_of_another_shape_are_read_as_far_as_they_go() {
        let stats =
            json!({"metrics": [{"name": 1}, {"value": 2}, {"name": "a", "value": -1}, {"name": "b", "value": 3}, 4]});
        let reading = Reading::new(Duration::ZERO, Value::Null, &stats);
        assert_eq!(reading.samples.keys().map(|key| key.name.as_str()).collect::<Vec<_>>(), ["b"]);
    }
}
