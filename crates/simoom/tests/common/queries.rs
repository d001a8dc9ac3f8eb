//! What the files in contrib/ ask Prometheus for: the alerts' and the dashboard's expressions, taken apart.

#![allow(dead_code, unreachable_pub, reason = "each test file is a crate of its own and uses a part")]

use crate::exposition::Family;
use serde_json::Value;
use std::collections::BTreeMap;

/// A metric of ours in an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    pub metric: String,
    /// label, how it is compared, and with what
    pub matchers: Vec<(String, String, String)>,
}

/// Labels whose values appear with the first of them, and which of those the queries may name.
const LATER: [(&str, &str); 1] = [("simoom_dns_answers_total", "rcode")];

/// A file in contrib/.
pub fn contrib(name: &str) -> String {
    let path = format!("{}/../../contrib/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The rules of the alerts: name, expression and the rule's whole text.
pub fn alerts() -> Vec<(String, String, String)> {
    // one rule after another: a list item `alert:` begins each
    let rules = contrib("prometheus-alerts.yml");
    let rules = rules.split("- alert:").skip(1).map(|rule| {
        let expression = (rule.lines().skip_while(|line| !line.trim_start().starts_with("expr:")))
            .enumerate()
            .take_while(|(n, line)| *n == 0 || line.starts_with("          "))
            .map(|(_, line)| line.trim().trim_start_matches("expr:").trim_start_matches(" |").to_owned() + " ")
            .collect();
        (rule.lines().next().unwrap().trim().to_owned(), expression, rule.to_owned())
    });
    rules.collect()
}

/// The dashboard.
pub fn dashboard() -> Value {
    serde_json::from_str(&contrib("grafana-dashboard.json")).unwrap()
}

/// The expressions of a panel.
pub fn of_panel(panel: &Value) -> Vec<String> {
    let targets = panel["targets"].as_array().map_or(&[][..], Vec::as_slice);
    let written = targets.iter().map(|target| target["expr"].as_str().expect("an expression"));
    written.map(|expression| expression.replace("$__rate_interval", "5m")).collect()
}

/// The metrics of ours in an expression.
pub fn selectors(expression: &str) -> Vec<Selector> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find("simoom_") {
        let end = rest[at..].find(|c| !is_name(c)).map_or(rest.len(), |end| at + end);
        let metric = rest[at..end].to_owned();
        rest = &rest[end..];
        let inner = rest.strip_prefix('{').and_then(|inner| inner.split_once('}')).map_or("", |(inner, _)| inner);
        // what stands outside of quotes are the names, with what compares them; inside are the values
        let parts: Vec<&str> = inner.split('"').collect();
        let matchers = parts.chunks_exact(2).map(|pair| {
            let label = pair[0].trim_matches([',', ' ']);
            let name = label.trim_end_matches(['=', '!', '~']);
            (name.to_owned(), label[name.len()..].to_owned(), pair[1].to_owned())
        });
        found.push(Selector { metric, matchers: matchers.collect() });
    }
    found
}

/// The labels of `by (...)` in an expression.
pub fn groupings(expression: &str) -> Vec<String> {
    let parts = expression.split("by (").skip(1).filter_map(|part| part.split(')').next());
    parts.flat_map(|part| part.split(',')).map(|label| label.trim().to_owned()).collect()
}

/// Whatever value of a label the queries name must be one that a server shows from its start, of the metrics that are on this page; a name
/// that is not there can never be met, and an alert on it never fire. How many values were compared.
pub fn check_values(families: &BTreeMap<String, Family>) -> usize {
    let of_panels = dashboard()["panels"].as_array().unwrap().iter().flat_map(of_panel).collect::<Vec<_>>();
    let expressions = alerts().into_iter().map(|(_, expression, _)| expression).chain(of_panels);
    let mut compared = 0;
    for selector in expressions.flat_map(|expression| selectors(&expression)) {
        let Some(family) = families.get(&selector.metric) else { continue };
        for (label, _, values) in &selector.matchers {
            // a variable of the dashboard's is no value
            if values.contains('$') || LATER.contains(&(&selector.metric, label)) {
                continue;
            }
            for value in values.split('|') {
                let is_there = family.samples.iter().any(|(labels, _)| labels.get(label).is_some_and(|it| it == value));
                assert!(is_there, "{} has no {label}={value:?}: {selector:?}", selector.metric);
                compared += 1;
            }
        }
    }
    compared
}
