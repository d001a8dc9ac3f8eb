//! `simoom tune`: reads what an interface and its host are set to, says item by item what it means here and what to run, does it if asked,
//! and undoes it.
//!
//! How to undo is written to a file before anything is done, the latest step first, so an interruption loses nothing of it. The file
//! lies in /run by default: like the settings it does not survive a restart of the machine. What stops a service, needs a restart or is
//! a matter of taste is said and not done.

mod change;
mod facts;
mod gather;
mod judge;
mod judge_host;
mod rules;
#[cfg(test)]
mod tests;
mod undo;

pub use rules::{Flow, Service};

use crate::cli::TuneCommand;
use crate::error::Error;
use change::Change;
use judge::{Finding, State};
use rules::Wanted;
use serde::Serialize;
use std::collections::HashSet;
use std::fmt::Write as _;
use undo::Undo;

/// Rounds of reading and changing: a change of queues resets the table, the interrupts and more.
const ROUNDS: usize = 4;

/// Does what the command says; gives the text to print.
///
/// # Errors
/// No such interface, or a file that cannot be read or written. What a driver refuses is text.
pub(crate) fn run(command: &TuneCommand) -> Result<String, Error> {
    let interface = &command.interface;
    if let Some(file) = &command.undo {
        return undo::undo(interface, file);
    }
    let cpus = command.cpus.as_ref().map_or(&[][..], |cpus| &cpus.0);
    let wanted = Wanted {
        pin: &command.pin_flow,
        drop: &command.drop_flow,
        reserve: command.reserve_queue.map(|queue| (queue, &command.reserved_for[..])),
    };
    let findings = || findings(interface, cpus, &wanted);
    if !command.apply {
        return render(interface, &findings()?, command.json);
    }
    let file = command.undo_file.clone().unwrap_or_else(|| undo::place(interface));
    apply(interface, findings, Undo::open(interface, &file)?)
}

fn findings(interface: &str, cpus: &[usize], wanted: &Wanted<'_>) -> Result<Vec<Finding>, Error> {
    let facts = gather::gather(interface, cpus)?;
    let mut findings = judge::judge(&facts);
    let asked = rules::judge(&facts, wanted);
    if wanted.reserve.is_some() {
        // an empty queue is then what is wanted
        findings.retain(|finding| finding.item != "rss" || finding.changes.is_empty());
    }
    findings.extend(asked);
    Ok(findings)
}

fn render(interface: &str, findings: &[Finding], json: bool) -> Result<String, Error> {
    if json {
        #[derive(Serialize)]
        struct Report<'a> {
            interface: &'a str,
            findings: Vec<Said<'a>>,
        }
        #[derive(Serialize)]
        struct Said<'a> {
            item: &'a str,
            state: State,
            what: &'a str,
            commands: Vec<String>,
            undo: Vec<Option<String>>,
            by_hand: Option<&'a str>,
        }
        let findings = findings.iter().map(|finding| Said {
            item: finding.item,
            state: finding.state,
            what: &finding.what,
            commands: finding.changes.iter().map(|change| change.action.to_string()).collect(),
            undo: finding.changes.iter().map(|change| change.undo.as_ref().map(ToString::to_string)).collect(),
            by_hand: finding.by_hand.as_deref(),
        });
        let report = Report { interface, findings: findings.collect() };
        let text = serde_json::to_string_pretty(&report).map_err(|error| Error::environment(error.to_string()))?;
        return Ok(text + "\n");
    }
    let mut text = String::new();
    for finding in findings {
        let state = match finding.state {
            State::Good => "good",
            State::Note => "note",
            State::Warn => "WARN",
            State::CannotTell => "?",
        };
        let _ = writeln!(text, "{state:5} {:12} {}", finding.item, finding.what);
        for change in &finding.changes {
            let _ = writeln!(text, "{:18} run: {}", "", change.action);
        }
        if let Some(command) = &finding.by_hand {
            let _ = writeln!(text, "{:18} for you to decide: {command}", "");
        }
    }
    let changes = findings.iter().map(|finding| finding.changes.len()).sum::<usize>();
    if changes > 0 {
        let _ = writeln!(
            text,
            "`simoom tune {interface} --apply` runs what is said to be run ({changes}) and says how to undo it"
        );
    }
    Ok(text)
}

/// Changes what is found until nothing new is; each step is tried once.
fn apply(interface: &str, findings: impl Fn() -> Result<Vec<Finding>, Error>, mut undo: Undo) -> Result<String, Error> {
    let (mut text, mut tried, mut done) = (String::new(), HashSet::new(), 0);
    for _ in 0..ROUNDS {
        let changes: Vec<Change> = findings()?.into_iter().flat_map(|finding| finding.changes).collect();
        let fresh: Vec<Change> = changes.into_iter().filter(|change| tried.insert(change.action.to_string())).collect();
        if fresh.is_empty() {
            break;
        }
        for change in fresh {
            match carry_out(interface, &change, &mut undo)? {
                Ok(()) => {
                    done += 1;
                    let _ = writeln!(text, "done      {}", change.action);
                }
                Err(why) => {
                    let _ = writeln!(text, "not done  {}: {why}", change.action);
                }
            }
        }
    }
    if done == 0 {
        text.push_str("nothing was changed\n");
    }
    if undo.is_empty() {
        undo.remove();
    } else {
        let _ = writeln!(text, "to undo: simoom tune {interface} --undo {}", undo.file().display());
    }
    Ok(text)
}

/// One step; the inner error is the device's, for the text.
fn carry_out(interface: &str, change: &Change, undo: &mut Undo) -> Result<Result<(), String>, Error> {
    if let Some(back) = &change.undo {
        undo.push(back.clone())?;
        let outcome = change.action.carry_out();
        if outcome.is_err() {
            undo.pop()?;
        }
        return Ok(outcome.map(|_| ()));
    }
    match change.action.carry_out() {
        Err(why) => Ok(Err(why)),
        Ok(said) => {
            if let Some(back) = rules::added(interface, &said) {
                undo.push(back)?;
            }
            Ok(Ok(()))
        }
    }
}
