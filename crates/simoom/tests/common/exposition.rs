//! The text form of Prometheus, version 0.0.4, read strictly: what a scraper might let pass is an error here.

#![allow(dead_code, unreachable_pub, reason = "each test file is a crate of its own and uses a part")]

use std::collections::{BTreeMap, BTreeSet};

/// A metric with all its samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Family {
    pub help: String,
    /// `counter` or `gauge`
    pub kind: String,
    pub samples: Vec<(BTreeMap<String, String>, f64)>,
}

impl Family {
    /// The names of all labels.
    pub fn labels(&self) -> BTreeSet<String> {
        self.samples.iter().flat_map(|(labels, _)| labels.keys().cloned()).collect()
    }
}

fn is_name(name: &str, colon: bool) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colon && c == ':');
    name.chars().all(fits) && name.chars().next().is_some_and(|first| !first.is_ascii_digit())
}

/// Reads a page.
///
/// # Errors
/// The first line that is wrong, and why.
pub fn parse(page: &str) -> Result<BTreeMap<String, Family>, String> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current: Option<String> = None;
    if !page.ends_with('\n') {
        return Err("the last line does not end".into());
    }
    for line in page.lines() {
        let wrong = |why: &str| format!("{why}: {line}");
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or_else(|| wrong("no help"))?;
            if !is_name(name, true) || help.trim().is_empty() {
                return Err(wrong("no name or no help"));
            }
            let help = unescape(help, false).ok_or_else(|| wrong("an unknown escape"))?;
            if families.insert(name.to_owned(), Family { help, ..Family::default() }).is_some() {
                return Err(wrong("a second HELP"));
            }
            current = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or_else(|| wrong("no type"))?;
            let family = families.get_mut(name).filter(|_| current.as_deref() == Some(name));
            let family = family.ok_or_else(|| wrong("a TYPE that does not follow its HELP"))?;
            if !family.kind.is_empty() || !["counter", "gauge"].contains(&kind) {
                return Err(wrong("a second TYPE or an unknown one"));
            }
            family.kind = kind.to_owned();
        } else {
            let (name, labels, value) = sample(line).ok_or_else(|| wrong("not a sample"))?;
            let family = families.get_mut(&name).filter(|_| current.as_ref() == Some(&name));
            let family = family.ok_or_else(|| wrong("a sample away from its metric"))?;
            if family.kind.is_empty() {
                return Err(wrong("a sample before its TYPE"));
            }
            if family.samples.iter().any(|(have, _)| *have == labels) {
                return Err(wrong("the same labels again"));
            }
            if !value.is_finite() || value < 0.0 {
                return Err(wrong("not a count or a level"));
            }
            family.samples.push((labels, value));
        }
    }
    for (name, family) in &families {
        conventions(name, family).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(families)
}

/// What the best practices of Prometheus ask of names.
fn conventions(name: &str, family: &Family) -> Result<(), String> {
    if family.samples.is_empty() {
        return Err("no sample".into());
    }
    if (family.kind == "counter") != name.ends_with("_total") {
        return Err("counters end in _total, and nothing else does".into());
    }
    const NOT_BASE: [&str; 11] = [
        "nanoseconds",
        "microseconds",
        "milliseconds",
        "minutes",
        "hours",
        "days",
        "kilobytes",
        "megabytes",
        "bits",
        "percent",
        "permille",
    ];
    match name.split('_').find(|word| NOT_BASE.contains(word)) {
        Some(word) => Err(format!("{word} is no base unit")),
        None => Ok(()),
    }
}

fn sample(line: &str) -> Option<(String, BTreeMap<String, String>, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, quoted) = rest.split_once("=\"")?;
            let end = closing(quoted)?;
            let value = unescape(&quoted[..end], true)?;
            if !is_name(label, false) || label.starts_with("__") || labels.insert(label.to_owned(), value).is_some() {
                return None;
            }
            rest = &quoted[end + 1..];
            match rest.strip_prefix(',') {
                Some(next) => rest = next,
                None => break,
            }
        }
        rest = rest.strip_prefix('}')?;
    }
    let value = rest.strip_prefix(' ')?;
    let plain = value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    Some((name.to_owned(), labels, value.parse().ok().filter(|_| plain && is_name(name, true))?))
}

/// Where an escaped text ends.
fn closing(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(at)
    })
}

fn unescape(text: &str, quotes: bool) -> Option<String> {
    let mut plain = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        plain.push(match c {
            '\\' => match rest.next()? {
                '\\' => '\\',
                'n' => '\n',
                '"' if quotes => '"',
                _ => return None,
            },
            c => c,
        });
    }
    Some(plain)
}

/// A row of docs/metrics.md.
#[derive(Clone, Debug, PartialEq)]
pub struct Documented {
    /// its section's heading
    pub section: String,
    pub kind: String,
    pub labels: BTreeSet<String>,
    pub help: String,
}

/// The tables of docs/metrics.md, by metric.
pub fn documented() -> BTreeMap<String, Documented> {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md")).unwrap();
    let mut section = String::new();
    let mut rows = BTreeMap::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading.to_owned();
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, help] = cells[..] else { continue };
        let Some(name) = name.strip_prefix("`simoom_").and_then(|name| name.strip_suffix('`')) else { continue };
        let labels = labels.split('`').skip(1).step_by(2).map(String::from).collect();
        let row = Documented { section: section.clone(), kind: kind.into(), labels, help: help.into() };
        assert!(rows.insert(format!("simoom_{name}"), row).is_none(), "{name} is documented twice");
    }
    assert!(rows.len() > 100, "docs/metrics.md has lost its tables");
    rows
}

/// Everything that is exposed must be documented as it is. The row that would do is told.
pub fn check_documented(families: &BTreeMap<String, Family>) {
    let documented = documented();
    let missing: Vec<String> = families
        .iter()
        .filter(|(name, family)| {
            !documented.get(*name).is_some_and(|row| {
                row.kind == family.kind && row.help == family.help && family.labels().is_subset(&row.labels)
            })
        })
        .map(|(name, family)| {
            let labels: Vec<String> = family.labels().iter().map(|label| format!("`{label}`")).collect();
            format!("| `{name}` | {} | {} | {} |", family.kind, labels.join(", "), family.help)
        })
        .collect();
    assert!(missing.is_empty(), "docs/metrics.md has not, or not so:\n{}", missing.join("\n"));
}

/// Everything that is documented in the sections that `is_meant` must be exposed, with its labels.
pub fn check_exposed(families: &BTreeMap<String, Family>, is_meant: impl Fn(&str) -> bool) {
    let rows = documented();
    let missing: Vec<String> = rows
        .iter()
        .filter(|(_, row)| is_meant(&row.section))
        .filter(|(name, row)| families.get(*name).is_none_or(|family| family.labels() != row.labels))
        .map(|(name, row)| format!("{name} of {} with labels {:?}", row.section, row.labels))
        .collect();
    assert!(missing.is_empty(), "documented and not exposed: {missing:#?}");
}
