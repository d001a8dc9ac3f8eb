//! The figures of all threads: added up, and written for people, for programs and for Prometheus.
//!
//! Every block of counters is a [`Report`]; a figure's name and labels are its key, and figures with the same key are added.
//! Nothing here touches the packet path: the counters are read where they lie.

use base::counter::{Figure, Report};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

/// Everything that can be shown.
#[derive(Default)]
pub(crate) struct Registry(Mutex<Vec<Arc<dyn Report>>>);

/// Label names and values, in the reporter's order.
type Labels = Vec<(String, String)>;

/// A name with its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Metric {
    /// one line
    pub help: String,
    /// a level rather than a count
    pub gauge: bool,
    /// one value for each set of labels
    pub samples: BTreeMap<Labels, u64>,
}

/// Metrics by name, without the `simoom_` in front.
pub(crate) type Metrics = BTreeMap<String, Metric>;

impl Registry {
    /// Adds a block of counters.
    pub(crate) fn add(&self, source: Arc<dyn Report>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(source);
    }

    /// All figures as they are now, added up over the threads.
    pub(crate) fn collect(&self) -> Metrics {
        let sources = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut metrics = Metrics::new();
        for source in &sources {
            source.report(&mut |figure| add(&mut metrics, figure));
        }
        metrics
    }
}

/// A block of counters of one interface, whose figures say so.
pub(crate) struct OfInterface<R> {
    /// the interface's name
    pub interface: String,
    /// the counters, which do not know it
    pub counters: Arc<R>,
}

impl<R: Report> Report for OfInterface<R> {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        self.counters.report(&mut |figure| {
            let labels: Vec<_> =
                std::iter::once(("interface", self.interface.as_str())).chain(figure.labels.iter().copied()).collect();
            show(Figure { labels: &labels, ..figure });
        });
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Registry({} blocks)", self.0.lock().unwrap_or_else(PoisonError::into_inner).len())
    }
}

fn add(metrics: &mut Metrics, figure: Figure<'_>) {
    let metric = match metrics.get_mut(figure.name) {
        Some(metric) => metric,
        None => metrics.entry(figure.name.to_owned()).or_insert_with(|| Metric {
            help: figure.help.to_owned(),
            gauge: figure.gauge,
            samples: BTreeMap::new(),
        }),
    };
    let labels = figure.labels.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    let sum = metric.samples.entry(labels).or_default();
    *sum = sum.wrapping_add(figure.value);
}

/// Units of whole numbers, at the end of a name or before its `_total`; what Prometheus wants in their place, and how many decimal
/// places that has.
const UNITS: [(&str, &str, usize); 4] = [
    ("_nanoseconds", "_seconds", 9),
    ("_microseconds", "_seconds", 6),
    ("_milliseconds", "_seconds", 3),
    ("_permille", "_ratio", 3),
];

/// A metric's name as Prometheus has it, in base units, and the decimal places of its values.
fn exposed(name: &str) -> (String, usize) {
    let (stem, total) = name.strip_suffix("_total").map_or((name, ""), |stem| (stem, "_total"));
    for (unit, base, places) in UNITS {
        if let Some(stem) = stem.strip_suffix(unit) {
            return (format!("simoom_{stem}{base}{total}"), places);
        }
    }
    (format!("simoom_{name}"), 0)
}

/// A whole number with its last `places` digits behind the point, exactly.
fn decimal(value: u64, places: usize) -> String {
    let digits = format!("{value:0>least$}", least = places + 1);
    let (whole, part) = digits.split_at(digits.len() - places);
    match part.trim_end_matches('0') {
        "" => whole.to_owned(),
        part => format!("{whole}.{part}"),
    }
}

/// The text form of Prometheus, version 0.0.4.
pub(crate) fn prometheus(metrics: &Metrics) -> String {
    // in the order of the names that are shown
    let shown: BTreeMap<_, _> = metrics.iter().map(|(name, metric)| (exposed(name), metric)).collect();
    let mut text = String::new();
    for ((name, places), metric) in shown {
        let kind = if metric.gauge { "gauge" } else { "counter" };
        let help = ["nanoseconds", "microseconds", "milliseconds"];
        let help = help.iter().fold(metric.help.clone(), |help, unit| match places {
            0 => help,
            _ => help.replace(unit, "seconds"),
        });
        let help = if name.ends_with("_ratio") { help.replace("in thousandths of", "as a share of") } else { help };
        // writing to a String does not fail
        let _ = writeln!(text, "# HELP {name} {}", escape(&help, false));
        let _ = writeln!(text, "# TYPE {name} {kind}");
        for (labels, value) in &metric.samples {
            let _ = write!(text, "{name}");
            for (n, (label, value)) in labels.iter().enumerate() {
                let open = if n == 0 { '{' } else { ',' };
                let _ = write!(text, "{open}{label}=\"{}\"", escape(value, true));
            }
            let _ = writeln!(text, "{} {}", if labels.is_empty() { "" } else { "}" }, decimal(*value, places));
        }
    }
    text
}

/// Backslash and newline are escaped everywhere, quotes in label values only.
fn escape(text: &str, quotes: bool) -> String {
    let mut escaped = text.replace('\\', "\\\\").replace('\n', "\\n");
    if quotes {
        escaped = escaped.replace('"', "\\\"");
    }
    escaped
}

/// The form of `ctl stats --json`: one object a sample.
pub(crate) fn as_json(metrics: &Metrics) -> Value {
    let mut samples = Vec::new();
    for (name, metric) in metrics {
        for (labels, value) in &metric.samples {
            let labels: serde_json::Map<_, _> =
                labels.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect();
            let kind = if metric.gauge { "gauge" } else { "counter" };
            samples.push(json!({ "name": name, "type": kind, "labels": labels, "value": value }));
        }
    }
    Value::Array(samples)
}

/// A table for people, from the form of [`as_json`]. Counters at zero with labels are left out: they are reasons that never
/// happened.
pub(crate) fn table(samples: &[Value]) -> String {
    let mut rows: Vec<(String, String)> = Vec::new();
    for sample in samples {
        let value = sample["value"].as_u64().unwrap_or_default();
        let labels = sample["labels"].as_object();
        let labelled = labels.is_some_and(|labels| !labels.is_empty());
        if value == 0 && labelled && sample["type"] == "counter" {
            continue;
        }
        let mut key = sample["name"].as_str().unwrap_or_default().to_owned();
        for (name, value) in labels.into_iter().flatten() {
            let _ = write!(key, "  {name}={}", value.as_str().unwrap_or_default());
        }
        rows.push((key, value.to_string()));
    }
    let width = rows.iter().map(|(key, _)| key.chars().count()).max().unwrap_or_default();
    let digits = rows.iter().map(|(_, value)| value.len()).max().unwrap_or_default();
    rows.iter().fold(String::new(), |mut text, (key, value)| {
        let _ = writeln!(text, "{key:<width$}  {value:>digits$}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Block(u64);
    impl Report for Block {
        fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
            let figure = Figure { name: "drops_total", help: "what\nwas \\ lost", gauge: false, labels: &[], value: 0 };
            show(Figure { labels: &[("reason", "bad \"sum\"\n\\")], value: self.0, ..figure });
            show(Figure { labels: &[("reason", "never")], ..figure });
            show(Figure { name: "threads", help: "threads", gauge: true, labels: &[], value: 1 });
        }
    }

    fn metrics() -> Metrics {
        let registry = Registry::default();
        registry.add(Arc::new(Block(2)));
        registry.add(Arc::new(Block(40)));
        registry.collect()
    }

    #[test]
    fn figures_of_several_threads_add_up_in_prometheus_form() {
        assert_eq!(
            prometheus(&metrics()),
            "# HELP simoom_drops_total what\\nwas \\\\ lost\n\
             # TYPE simoom_drops_total counter\n\
             simoom_drops_total{reason=\"bad \\\"sum\\\"\\n\\\\\"} 42\n\
             simoom_drops_total{reason=\"never\"} 0\n\
             # HELP simoom_threads threads\n\
             # TYPE simoom_threads gauge\n\
             simoom_threads 2\n"
        );
    }

    #[test]
    fn prometheus_gets_base_units_without_rounding() {
        struct Times;
        impl Report for Times {
            fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
                for (name, gauge, value) in [
                    ("time_nanoseconds_total", false, u64::MAX),
                    ("time_microseconds", true, 250),
                    ("wait_milliseconds", true, 2000),
                    ("full_permille", true, 5),
                ] {
                    show(Figure { name, help: "nanoseconds, in thousandths of it", gauge, labels: &[], value });
                }
            }
        }
        let registry = Registry::default();
        registry.add(Arc::new(Times));
        let text = prometheus(&registry.collect());
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                "simoom_full_ratio 0.005",
                "simoom_time_seconds 0.00025",
                "simoom_time_seconds_total 18446744073.709551615",
                "simoom_wait_seconds 2"
            ]
        );
        assert!(text.contains("# HELP simoom_time_seconds seconds, in"), "{text}");
        assert!(text.contains("# HELP simoom_full_ratio seconds, as a share of it"), "{text}");
    }

    #[test]
    fn figures_of_interfaces_stay_apart() {
        let registry = Registry::default();
        for (interface, drops) in [("e0", 2), ("e1", 40)] {
            registry.add(Arc::new(OfInterface { interface: interface.to_owned(), counters: Arc::new(Block(drops)) }));
        }
        let text = prometheus(&registry.collect());
        for line in [
            "simoom_drops_total{interface=\"e0\",reason=\"never\"} 0",
            "simoom_drops_total{interface=\"e1\",reason=\"bad \\\"sum\\\"\\n\\\\\"} 40",
            "simoom_threads{interface=\"e1\"} 1",
        ] {
            assert!(text.lines().any(|said| said == line), "{line} in {text}");
        }
    }

    #[test]
    fn json_has_every_sample_and_the_table_what_happened() {
        let json = as_json(&metrics());
        assert_eq!(
            json[1],
            json!({"name": "drops_total", "type": "counter", "labels": {"reason": "never"}, "value": 0})
        );
        let table = table(json.as_array().unwrap());
        assert_eq!(table.lines().count(), 3, "{table}");
        assert!(table.lines().any(|line| line.starts_with("threads ") && line.ends_with(" 2")), "{table}");
        assert!(!table.contains("never"));
    }
}
