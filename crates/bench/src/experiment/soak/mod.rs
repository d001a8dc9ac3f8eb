//! Soaks: a long load on a server whose content is replaced and reloaded every second (`dns`, `web`). What a server counts must
//! be what its clients saw, and its memory must stay where it is.

pub(super) mod dns;
mod site;
mod visits;
pub(super) mod web;

use super::show;
use crate::procs;
use crate::report::{Cell, Table};
use crate::stats;
use anyhow::{Context as _, Result, bail};
use lab::Process;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Reloads before memory has settled; and so many are looked at together, since who still reads a replaced version holds its
/// memory for a moment.
const SETTLING_RELOADS: usize = 100;
/// How far the median of a hundred reloads may be from that of the first hundred after settling.
const RESIDENT_SHARE: f64 = 0.02;

/// The server's control socket, asked with its own command.
#[derive(Clone, Debug)]
struct Control {
    simoom: PathBuf,
    path: PathBuf,
}

impl Control {
    fn ask(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.simoom);
        command.args(["ctl", "--control"]).arg(&self.path).args(words);
        let done = command.output().with_context(|| format!("cannot run {}", show(&self.simoom)))?;
        if !done.status.success() {
            bail!("simoom ctl {}: {}", words.join(" "), String::from_utf8_lossy(&done.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }

    fn stats(&self) -> Result<Value> {
        serde_json::from_str(&self.ask(&["stats", "--json"])?).context("what simoom ctl stats --json printed")
    }
}

/// The metrics whose names `wanted` takes: each with its labels, and its count.
fn metrics(stats: &Value, wanted: impl Fn(&str) -> bool) -> Vec<(String, u64)> {
    let samples = stats["metrics"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = samples.iter().filter(|sample| sample["name"].as_str().is_some_and(&wanted)).map(|sample| {
        let labels = sample["labels"].as_object().into_iter().flatten();
        let labels: Vec<_> = labels.map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or("?"))).collect();
        let name = format!("{} {}", sample["name"].as_str().unwrap_or("?"), labels.join(" "));
        (name.trim_end().to_owned(), sample["value"].as_u64().unwrap_or(0))
    });
    named.collect()
}

/// What was counted since `before`.
fn since(now: &[(String, u64)], before: &[(String, u64)]) -> Vec<(String, u64)> {
    let then = |name: &str| before.iter().find(|(other, _)| other == name).map_or(0, |(_, count)| *count);
    now.iter().map(|(name, count)| (name.clone(), count.saturating_sub(then(name)))).collect()
}

/// What the reloads showed.
#[derive(Debug, Default)]
struct Reloads {
    done: usize,
    slowest_s: f64,
    /// bytes after each
    resident: Vec<u64>,
}

/// What is reloaded.
trait Renewed {
    /// The server's process, while it runs.
    fn server_pid(&mut self) -> Result<u32>;

    /// Puts version `number` in place, counted from 1; the server is told next.
    fn put(&mut self, number: usize) -> Result<()>;

    /// The server has it.
    fn on_reloaded(&mut self, _number: usize) {}
}

/// Reloads a new version every so often, until `load` ends.
fn reload_until_done(
    what: &mut impl Renewed,
    load: &mut Process,
    control: &Control,
    every: Duration,
) -> Result<Reloads> {
    let mut reloads = Reloads::default();
    let mut next = Instant::now() + every;
    while load.ended().is_none() {
        lab::uninterrupted()?;
        if let Some(wait) = next.checked_duration_since(Instant::now()) {
            std::thread::sleep(wait.min(Duration::from_millis(100)));
            continue;
        }
        next += every;
        what.put(reloads.done + 1)?;
        let begun = Instant::now();
        control.ask(&["reload"])?;
        reloads.slowest_s = reloads.slowest_s.max(begun.elapsed().as_secs_f64());
        reloads.done += 1;
        what.on_reloaded(reloads.done);
        reloads.resident.push(procs::resident_bytes(what.server_pid()?)?);
    }
    Ok(reloads)
}

impl Reloads {
    /// Greatest distance of resident memory from what it was when it had settled, by medians of a hundred reloads, as a share;
    /// None when there were not two such hundreds.
    fn drift(&self) -> Option<f64> {
        let mut medians = self.medians().into_iter().skip(1);
        let settled = medians.next()?;
        medians.map(|median| (median / settled - 1.0).abs()).reduce(f64::max)
    }

    /// Medians of resident memory over a hundred reloads each, in bytes.
    fn medians(&self) -> Vec<f64> {
        let hundreds = self.resident.chunks_exact(SETTLING_RELOADS).filter_map(|hundred| {
            let bytes: Vec<f64> = hundred.iter().map(|&bytes| bytes as f64).collect();
            stats::median(&bytes)
        });
        hundreds.collect()
    }

    /// The rows on memory.
    fn tell_memory(&self, table: &mut Table) {
        let resident = self.resident.last().map(|&bytes| bytes as f64 / f64::from(1 << 20));
        table.row(vec![Cell::text("resident memory at the end, MiB"), Cell::number(resident, 1)]);
        let drift = self.drift().map(|drift| drift * 100.0);
        table.row(vec![
            Cell::text("resident memory from reload 100 on, greatest drift of medians of 100 reloads, %"),
            Cell::number(drift, 2),
        ]);
        let medians: Vec<_> = self.medians().iter().map(|bytes| format!("{:.1}", bytes / f64::from(1 << 20))).collect();
        table.row(vec![Cell::text("those medians, MiB"), Cell::text(medians.join(" "))]);
    }

    /// What is wrong with memory.
    fn complaint(&self) -> Option<String> {
        let drift = self.drift().filter(|drift| *drift > RESIDENT_SHARE)?;
        Some(format!("resident memory moved by {:.1}%", drift * 100.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn metrics_have_their_labels_and_are_told_by_difference() {
        let stats = |count: u64| {
            json!({"metrics": [
                {"name": "web_answers_total", "labels": {"class": "2xx"}, "value": count},
                {"name": "web_bytes_total", "labels": {}, "value": 2 * count},
                {"name": "other", "labels": {}, "value": 1},
            ]})
        };
        let web = |count| metrics(&stats(count), |name| name.starts_with("web_"));
        let expected = [("web_answers_total class=2xx".to_owned(), 4), ("web_bytes_total".to_owned(), 8)];
        assert_eq!(since(&web(9), &web(5)), expected);
    }

    #[test]
    fn memory_is_judged_from_the_hundredth_reload_on() {
        let mut reloads = Reloads { resident: vec![50; 2 * SETTLING_RELOADS], ..Reloads::default() };
        assert_eq!((reloads.drift(), reloads.complaint()), (None, None));
        // one that is held for a moment is no drift
        reloads.resident.extend([50; SETTLING_RELOADS - 1]);
        reloads.resident.push(90);
        assert_eq!((reloads.drift(), reloads.complaint()), (Some(0.0), None));
        reloads.resident.extend([52; SETTLING_RELOADS]);
        assert!((reloads.drift().unwrap() - 0.04).abs() < 1e-9);
        assert!(reloads.complaint().unwrap().contains("4.0%"));
    }
}
