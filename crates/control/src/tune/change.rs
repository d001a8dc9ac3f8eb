//! What is changed, and how it is undone. Settings of the device are changed by running ethtool: what is printed is then what is
//! done, and the places of rules in a driver's flow classifier, and which of two kernel interfaces a driver understands, are
//! ethtool's knowledge. Only a table of receive-side scaling that no option of ethtool describes is written back by an ioctl.

use crate::error::reason;
use port_xdp::nic::Nic;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::process::Command;

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Action {
    /// a program and its arguments
    Run(Vec<String>),
    /// a file of procfs or sysfs and what is written to it
    Write { path: String, value: String },
    /// the whole indirection table
    Table { interface: String, queues: Vec<u32> },
}

/// A step and the one that takes it back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Change {
    pub(crate) action: Action,
    /// None: it is known only when it was done
    pub(crate) undo: Option<Action>,
}

impl Action {
    /// `ethtool` with these words, parted by spaces.
    pub(crate) fn ethtool(words: impl AsRef<str>) -> Action {
        let words = words.as_ref().split(' ').map(str::to_owned);
        Action::Run(std::iter::once("ethtool".to_owned()).chain(words).collect())
    }

    pub(crate) fn write(path: impl Into<String>, value: impl Into<String>) -> Action {
        Action::Write { path: path.into(), value: value.into() }
    }

    /// Whether it is of the kind that tuning does. A file of such steps is carried out with privileges, so nothing else is taken from it.
    pub(crate) fn is_ours(&self) -> bool {
        match self {
            Action::Run(words) => words.first().is_some_and(|program| matches!(program.as_str(), "ethtool" | "ip")),
            Action::Write { path, .. } => {
                let places = ["/proc/irq/", "/sys/class/net/", "/sys/devices/system/cpu/"];
                places.iter().any(|place| path.starts_with(place)) && !path.contains("..")
            }
            Action::Table { .. } => true,
        }
    }

    /// Does it; gives what the program printed.
    ///
    /// # Errors
    /// One line: what refused.
    pub(crate) fn carry_out(&self) -> Result<String, String> {
        match self {
            Action::Run(words) => run(words),
            Action::Write { path, value } => std::fs::write(path, value)
                .map(|()| String::new())
                .map_err(|error| format!("{path}: {}", reason(&error))),
            Action::Table { interface, queues } => match Nic::of(interface).set_rss_table(queues) {
                Ok(Some(())) => Ok(String::new()),
                Ok(None) => Err(format!("{interface} has no indirection table")),
                Err(error) => Err(format!("the indirection table of {interface}: {}", reason(&error))),
            },
        }
    }
}

fn run(words: &[String]) -> Result<String, String> {
    let Some((program, rest)) = words.split_first() else { return Err("no program".into()) };
    // where a daemon's PATH may not lead
    let place = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(|dir| Path::new(dir).join(program));
    let found = place.iter().find(|path| path.is_file());
    let Some(found) = found else {
        return Err(format!("{program} is not installed: apt-get install {}", package(program)));
    };
    let output = Command::new(found).args(rest).output().map_err(|error| format!("{program}: {}", reason(&error)))?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() {
        return Ok(said);
    }
    let why = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = why.lines().chain(said.lines()).map(str::trim).filter(|line| !line.is_empty()).collect();
    Err(lines.join("; "))
}

fn package(program: &str) -> &str {
    if program == "ip" { "iproute2" } else { program }
}

/// As it is typed into a shell.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Run(words) => f.write_str(&words.join(" ")),
            Action::Write { path, value } => write!(f, "echo {value} > {path}"),
            Action::Table { interface, queues } => {
                write!(f, "(the indirection table of {interface} as it was: {} entries)", queues.len())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_tuning_does_is_ours() {
        let write = |path: &str| Action::write(path, "1");
        assert!(Action::ethtool("-K vs gro on").is_ours());
        assert!(Action::Run(vec!["ip".into(), "link".into()]).is_ours());
        assert!(write("/proc/irq/7/smp_affinity_list").is_ours());
        assert!(write("/sys/class/net/vs/queues/rx-0/rps_cpus").is_ours());
        for not in [
            Action::Run(vec!["sh".into(), "-c".into(), "true".into()]),
            Action::Run(vec!["/tmp/ethtool".into()]),
            Action::Run(vec![]),
            write("/etc/passwd"),
            write("/sys/class/net/../../../etc/passwd"),
        ] {
            assert!(!not.is_ours(), "{not}");
        }
    }

    #[test]
    fn a_step_reads_as_it_is_typed_and_survives_a_file() {
        for (action, text) in [
            (Action::ethtool("-L vs rx 2 tx 2"), "ethtool -L vs rx 2 tx 2"),
            (Action::write("/proc/irq/7/smp_affinity_list", "1"), "echo 1 > /proc/irq/7/smp_affinity_list"),
            (
                Action::Table { interface: "e0".into(), queues: vec![0, 1] },
                "(the indirection table of e0 as it was: 2 entries)",
            ),
        ] {
            assert_eq!(action.to_string(), text);
            let file = serde_json::to_string(&action).unwrap();
            assert_eq!(serde_json::from_str::<Action>(&file).unwrap(), action, "{file}");
        }
    }

    #[test]
    fn what_refused_is_one_line() {
        let error = Action::ethtool("-L lo rx 9").carry_out().unwrap_err();
        assert!(!error.is_empty() && !error.contains('\n'), "{error}");
        let error = Action::write("/sys/class/net/no-such-one/x", "1").carry_out().unwrap_err();
        assert!(error.contains("no-such-one") && !error.contains("os error"), "{error}");
        let error = Action::Table { interface: "lo".into(), queues: vec![0] }.carry_out().unwrap_err();
        assert_eq!(error, "lo has no indirection table");
        assert!(run(&["no-such-program".into()]).unwrap_err().contains("not installed"));
    }
}
