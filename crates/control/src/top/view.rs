//! Tables from figures: threads, services, connections, times, drops, and all figures as they are.
//!
//! Figures are known by their names in Prometheus's style. A figure of a thread that has no column here gets one of its own, and so does
//! a drop whose name says that it is one; so new counters appear by themselves.

use super::reading::{Change, Figure, Key, sum};
use super::table::{Cell, Table, bytes, count, nanoseconds, percent};
use std::collections::{BTreeMap, BTreeSet};

/// All tables, in the order in which they are shown.
pub(super) fn tables(change: &Change) -> Vec<Table> {
    let tables =
        [threads(change), services(change), connections(change), times(change), drops(change), figures(change)];
    tables.into_iter().filter(|table| !table.rows.is_empty()).collect()
}

/// Names of the engines, before the first underscore of their figures and before the number of their threads.
const ENGINES: [&str; 2] = ["dataplane", "sockets"];

/// A column of the table of threads: its heading, and the figures (without the engine's name) whose sum it is.
struct Known {
    heading: &'static str,
    /// name, and a label that the figure must have
    of: &'static [(&'static str, Option<(&'static str, &'static str)>)],
    show: fn(f64) -> String,
}

const KNOWN: [Known; 9] = [
    Known {
        heading: "in/s",
        of: &[("frames_total", Some(("direction", "in"))), ("thread_received_total", None)],
        show: count,
    },
    Known { heading: "accepts/s", of: &[("thread_accepted_total", None)], show: count },
    Known { heading: "busy", of: &[("busy", None), ("thread_busy", None)], show: yes },
    Known { heading: "backlog", of: &[("backlog_frames", None)], show: count },
    Known { heading: "groups", of: &[("flow_groups", None), ("thread_groups", None)], show: count },
    Known {
        heading: "groups in/s",
        of: &[("moved_groups_total", Some(("direction", "in"))), ("thread_groups_taken_total", None)],
        show: count,
    },
    Known { heading: "groups out/s", of: &[("moved_groups_total", Some(("direction", "out")))], show: count },
    Known { heading: "helped/s", of: &[("helped_frames_total", None)], show: count },
    Known { heading: "crossed/s", of: &[("crossed_frames_total", Some(("direction", "in")))], show: count },
];

fn yes(value: f64) -> String {
    if value > 0.0 { "yes".into() } else { "no".into() }
}

impl Known {
    fn takes(&self, name: &str, key: &Key) -> bool {
        self.of.iter().any(|(of, label)| {
            *of == name && label.is_none_or(|(label, value)| key.labels.get(label).is_some_and(|has| has == value))
        })
    }
}

/// A figure as one number: how fast it rises, or what it is.
fn number(figure: &Figure) -> Option<f64> {
    if figure.gauge { Some(figure.value as f64) } else { figure.per_s }
}

/// A thread's place among its engine's, which is a number.
fn thread_of(key: &Key) -> Option<(&str, &str, u64)> {
    let (engine, name) = key.name.split_once('_')?;
    let engine = ENGINES.into_iter().find(|known| *known == engine)?;
    Some((engine, name, key.labels.get("thread")?.parse().ok()?))
}

fn threads(change: &Change) -> Table {
    let mut places: BTreeSet<(&str, u64)> = BTreeSet::new();
    // by heading, then by thread
    let mut others: BTreeMap<String, BTreeMap<(&str, u64), Cell>> = BTreeMap::new();
    let mut known: BTreeMap<(&str, u64), [Option<f64>; KNOWN.len()]> = BTreeMap::new();
    for (key, figure) in &change.figures {
        let Some((engine, name, thread)) = thread_of(key) else { continue };
        let place = (engine, thread);
        places.insert(place);
        match KNOWN.iter().position(|known| known.takes(name, key)) {
            Some(column) => {
                let cell = &mut known.entry(place).or_default()[column];
                *cell = sum([*cell, number(figure)].into_iter());
            }
            None => {
                others.entry(heading(name, key)).or_default().insert(place, Cell::of(number(figure), unit(name)));
            }
        }
    }
    let mut tasks = BTreeMap::new();
    for task in &change.tasks {
        let named = task.name.rsplit_once('-').and_then(|(engine, number)| Some((engine, number.parse().ok()?)));
        if let Some(place) = named.filter(|(engine, _)| ENGINES.contains(engine)) {
            places.insert(place);
            tasks.insert(place, task);
        }
    }
    let mut columns: Vec<String> = ["thread", "cpu", "run"].map(String::from).into();
    columns.extend(KNOWN.iter().map(|known| known.heading.to_owned()));
    let always = columns.len();
    columns.extend(others.keys().cloned());
    let row = |place: (&str, u64)| {
        let task = tasks.get(&place);
        let mut row = vec![Cell::text(format!("{}-{}", place.0, place.1))];
        row.push(Cell::of(task.map(|task| f64::from(task.processor)), count));
        row.push(Cell::of(task.and_then(|task| task.share), percent));
        let of_thread = known.get(&place).copied().unwrap_or_default();
        row.extend(KNOWN.iter().zip(of_thread).map(|(known, value)| Cell::of(value, known.show)));
        row.extend(others.values().map(|column| column.get(&place).cloned().unwrap_or(Cell::Nothing)));
        row
    };
    let mut rows: Vec<Vec<Cell>> = places.iter().map(|place| row(*place)).collect();
    rows.extend(ENGINES.iter().filter_map(|engine| whole(change, engine, &places, &columns)));
    rows.extend(rest(change, columns.len()));
    Table { title: "Threads", columns, rows }.without_empty_columns(always)
}

/// What is counted of all threads of an engine together.
fn whole(change: &Change, engine: &str, places: &BTreeSet<(&str, u64)>, columns: &[String]) -> Option<Vec<Cell>> {
    change.level(&format!("{engine}_cycles_total"), &[])?;
    let threads = places.iter().filter(|(of, _)| *of == engine).count().max(1);
    let received = match engine {
        "dataplane" => change.rate("dataplane_frames_total", &[("direction", "in")]),
        _ => change.rate("sockets_datagrams_received_total", &[]),
    };
    let bursts = match engine {
        "dataplane" => change.rate("dataplane_bursts_total", &[]),
        _ => change.rate("sockets_datagram_calls_total", &[("call", "receive")]),
    };
    let batch = received.zip(bursts).filter(|(_, bursts)| *bursts > 0.0).map(|(received, bursts)| received / bursts);
    let state = |state| {
        let ns = change.rate(&format!("{engine}_time_nanoseconds_total"), &[("state", state)]);
        ns.map(|ns| format!(", {} {state}", percent(ns / 1e9 / threads as f64)))
    };
    let shown = batch.map(|batch| format!(", {} a batch", count(batch)));
    let details = [state("busy"), state("asleep"), shown].into_iter().flatten().collect::<String>();
    let mut row = vec![Cell::Nothing; columns.len()];
    row[0] = Cell::text(format!("{engine}, all{details}"));
    if let Some(column) = columns.iter().position(|column| column == "in/s") {
        row[column] = Cell::of(received, count);
    }
    Some(row)
}

/// The threads that carry no packets.
fn rest(change: &Change, columns: usize) -> Option<Vec<Cell>> {
    let serves = |name: &str| name.rsplit_once('-').is_some_and(|(engine, _)| ENGINES.contains(&engine));
    let others: Vec<_> = change.tasks.iter().filter(|task| !serves(&task.name)).collect();
    let busiest = others.iter().filter(|task| task.share.is_some_and(|share| share > 0.0));
    let busiest = busiest.max_by(|one, two| one.share.unwrap_or(0.0).total_cmp(&two.share.unwrap_or(0.0)));
    let named = busiest.map(|task| format!(", most by {}", task.name)).unwrap_or_default();
    let mut row = vec![Cell::Nothing; columns];
    row[0] = Cell::text(format!("{} others{named}", others.len()));
    row[2] = Cell::of(sum(others.iter().map(|task| task.share)), percent);
    Some(row).filter(|_| !others.is_empty())
}

/// `thread_delay_nanoseconds{state="idle"}` as `delay idle`.
fn heading(name: &str, key: &Key) -> String {
    let name = name.strip_prefix("thread_").unwrap_or(name);
    let (name, rate) = match name.strip_suffix("_total") {
        // a share
        Some(name) if name.ends_with("_nanoseconds") => (name, ""),
        Some(name) => (name, "/s"),
        None => (name, ""),
    };
    let name = UNITS.iter().find_map(|(unit, _)| name.strip_suffix(unit)).unwrap_or(name);
    let labels = key.labels.iter().filter(|(label, _)| *label != "thread").map(|(_, value)| format!(" {value}"));
    format!("{}{}{rate}", name.replace('_', " "), labels.collect::<String>())
}

/// How a figure of a unit is written.
type Show = fn(f64) -> String;

/// Units at the end of a name, and how they are shown.
const UNITS: [(&str, Show); 6] = [
    ("_nanoseconds", nanoseconds),
    ("_microseconds", |us| nanoseconds(us * 1e3)),
    ("_milliseconds", |ms| nanoseconds(ms * 1e6)),
    ("_bytes", bytes),
    ("_permille", |value| percent(value / 1e3)),
    ("_percent", |value| percent(value / 1e2)),
];

/// How a figure of this name is shown; of a counter, what it rises by in a second.
fn unit(name: &str) -> fn(f64) -> String {
    let Some(counted) = name.strip_suffix("_total") else {
        return UNITS.iter().find(|(unit, _)| name.ends_with(unit)).map_or(count, |(_, show)| *show);
    };
    match counted {
        // nanoseconds in a second are a share of it
        counted if counted.ends_with("_nanoseconds") => |value| percent(value / 1e9),
        counted if counted.ends_with("_bytes") => bytes,
        _ => count,
    }
}

/// A service: its figures' first word, and the names of what it counts, in the order of the columns.
struct Service {
    name: &'static str,
    asked: &'static [&'static str],
    answered: &'static [&'static str],
    bytes: &'static [&'static str],
}

const SERVICES: [Service; 4] = [
    Service { name: "dns", asked: &["dns_questions_total"], answered: &["dns_answers_total"], bytes: &[] },
    Service {
        name: "web",
        asked: &["web_requests_total"],
        answered: &["web_answers_total"],
        bytes: &["web_bytes_total"],
    },
    Service {
        name: "kv",
        asked: &[
            "kv_get_hits_total",
            "kv_get_misses_total",
            "kv_stores_total",
            "kv_touch_hits_total",
            "kv_touch_misses_total",
            "kv_delete_hits_total",
            "kv_delete_misses_total",
            "kv_incr_hits_total",
            "kv_incr_misses_total",
            "kv_decr_hits_total",
            "kv_decr_misses_total",
            "kv_debug_total",
        ],
        answered: &["kv_get_hits_total"],
        bytes: &["kv_sent_bytes_total"],
    },
    Service {
        name: "echo",
        asked: &["echo_answers_total"],
        answered: &["echo_answers_total"],
        bytes: &["echo_bytes_total"],
    },
];

/// Answers that say that something was wrong, of the server or of who asked.
fn is_error(key: &Key) -> bool {
    let label = |name: &str| key.labels.get(name).map(String::as_str);
    match key.name.as_str() {
        "dns_answers_total" => !matches!(label("rcode"), Some("NOERROR" | "NXDOMAIN")),
        "web_answers_total" => matches!(label("class"), Some("4xx" | "5xx")),
        "kv_too_large_total" | "kv_no_memory_total" => true,
        _ => false,
    }
}

fn services(change: &Change) -> Table {
    let headings = ["service", "requests/s", "answers/s", "errors/s", "drops/s", "sent/s", "requests"];
    let mut rows = Vec::new();
    let mut known = BTreeSet::new();
    for Service { name, asked, answered, bytes: sent } in &SERVICES {
        known.insert(*name);
        let rate = |names: &[&str]| sum(names.iter().map(|name| change.rate(name, &[])));
        let Some(total) = sum(asked.iter().map(|name| change.level(name, &[]))) else { continue };
        let prefix = format!("{name}_");
        let errors = change.figures.iter().filter(|(key, _)| key.name.starts_with(&prefix) && is_error(key));
        rows.push(vec![
            Cell::text(*name),
            Cell::of(rate(asked), count),
            Cell::of(rate(answered), count),
            Cell::of(sum(errors.map(|(_, figure)| figure.per_s)), count),
            Cell::of(change.rate(&format!("{name}_drops_total"), &[]), count),
            Cell::of(rate(sent), bytes),
            Cell::of(Some(total), count),
        ]);
    }
    // those that this was written without
    let names: BTreeSet<&str> =
        change.figures.keys().filter_map(|key| key.name.strip_suffix("_requests_total")).collect();
    for name in names.difference(&known) {
        let of = |what: &str| format!("{name}_{what}_total");
        rows.push(vec![
            Cell::text(*name),
            Cell::of(change.rate(&of("requests"), &[]), count),
            Cell::of(change.rate(&of("answers"), &[]), count),
            Cell::of(change.rate(&of("errors"), &[]), count),
            Cell::of(change.rate(&of("drops"), &[]), count),
            Cell::of(change.rate(&of("bytes"), &[]), bytes),
            Cell::of(change.level(&of("requests"), &[]), count),
        ]);
    }
    Table { title: "Services", columns: headings.map(String::from).into(), rows }
}

fn connections(change: &Change) -> Table {
    let headings = ["connections", "open", "new/s", "ended/s", "refused/s", "half-open", "time-wait", "accepted"];
    let level = |name: &str| Cell::of(change.level(name, &[]), count);
    let event = |event: &str| change.rate("tcp_events_total", &[("event", event)]);
    let mut rows = Vec::new();
    if change.level("tcp_connections", &[]).is_some() {
        let ends = ["closed", "reset by peer", "aborted", "timed out", "lost by a panic"];
        let refusals = ["rejected", "no resources"];
        rows.push(vec![
            Cell::text("own stack"),
            level("tcp_connections"),
            Cell::of(event("accepted"), count),
            Cell::of(sum(ends.into_iter().map(event)), count),
            Cell::of(sum(refusals.into_iter().map(event)), count),
            level("tcp_half_open"),
            level("tcp_time_wait"),
            Cell::of(change.level("tcp_events_total", &[("event", "accepted")]), count),
        ]);
    }
    let rate = |name: &str| Cell::of(change.rate(name, &[]), count);
    let mut row = |name: &str, open: &str, accepted: &str, ended: &str, refused: &str| {
        if change.level(accepted, &[]).is_some() {
            let nothing = Cell::Nothing;
            rows.push(vec![
                Cell::text(name),
                level(open),
                rate(accepted),
                rate(ended),
                rate(refused),
                nothing.clone(),
                nothing,
                level(accepted),
            ]);
        }
    };
    row(
        "kernel sockets",
        "sockets_connections",
        "sockets_connections_accepted_total",
        "sockets_connections_ended_total",
        "sockets_connections_refused_total",
    );
    for service in ["dns", "web", "kv"] {
        let of = |what: &str| format!("{service}_connections{what}");
        row(service, &of(""), &of("_total"), &of("_ended_total"), &of("_refused_total"));
    }
    Table { title: "Connections", columns: headings.map(String::from).into(), rows }
}

/// Times that are not a thread's.
fn times(change: &Change) -> Table {
    let is_time = |name: &str| UNITS[..3].iter().any(|(unit, _)| name.ends_with(unit));
    let figures = change
        .figures
        .iter()
        .filter(|(key, figure)| figure.gauge && is_time(&key.name) && !key.labels.contains_key("thread"));
    let rows = figures.map(|(key, figure)| {
        vec![Cell::text(&key.name), Cell::text(labels(key)), Cell::of(Some(figure.value as f64), unit(&key.name))]
    });
    let columns = ["time", "of", "is"].map(String::from).into();
    Table { title: "Times", columns, rows: rows.collect() }
}

fn labels(key: &Key) -> String {
    key.labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// Words of a counter's name that say that something was lost, refused or wrong.
const BAD: [&str; 14] = [
    "conflicts",
    "drops",
    "dropped",
    "empty",
    "errors",
    "failed",
    "ignored",
    "late",
    "lost",
    "missed",
    "panics",
    "refusals",
    "refused",
    "stalls",
];

fn is_drop(key: &Key, figure: &Figure) -> bool {
    // a cycle without work is none
    let is_bad = |word: &str| BAD.contains(&word) && !(word == "empty" && key.name.contains("cycles"));
    !figure.gauge && (key.name.split('_').any(is_bad) || key.labels.get("outcome").is_some_and(|is| is == "failed"))
}

fn drops(change: &Change) -> Table {
    let mut rows: Vec<_> = change
        .figures
        .iter()
        .filter(|(key, figure)| figure.value > 0 && is_drop(key, figure))
        .map(|(key, figure)| {
            let name = key.name.strip_suffix("_total").unwrap_or(&key.name);
            let rate = Cell::of(figure.per_s, count);
            (figure, vec![Cell::text(name), Cell::text(labels(key)), rate, Cell::of(Some(figure.value as f64), count)])
        })
        .collect();
    // what is being lost now comes first
    rows.sort_by(|(one, _), (two, _)| {
        let rate = |figure: &Figure| figure.per_s.unwrap_or(0.0);
        rate(two).total_cmp(&rate(one)).then(two.value.cmp(&one.value))
    });
    let columns = ["drops", "of", "per second", "in all"].map(String::from).into();
    Table { title: "Drops", columns, rows: rows.into_iter().map(|(_, row)| row).collect() }
}

/// Everything, as it is named.
fn figures(change: &Change) -> Table {
    let rows = change.figures.iter().map(|(key, figure)| {
        let value = Cell::of(Some(figure.value as f64), if figure.gauge { unit(&key.name) } else { count });
        vec![Cell::text(&key.name), Cell::text(labels(key)), Cell::of(figure.per_s, unit(&key.name)), value]
    });
    let columns = ["figure", "of", "per second", "value"].map(String::from).into();
    Table { title: "All figures", columns, rows: rows.collect() }
}

#[cfg(test)]
mod tests;
