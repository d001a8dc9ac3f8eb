//! The machine that a figure was measured on.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Named facts in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    /// name and value
    pub(crate) facts: Vec<(String, String)>,
}

/// What figures are compared with, or made by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peers {
    /// nothing else
    None,
    /// other DNS servers
    Dns,
    /// another web server, and loads
    Web,
    /// another key-value store
    Memcached,
}

/// A program, and the command that tells its version.
type Program = (&'static str, &'static [&'static str]);

impl Peers {
    fn programs(self) -> &'static [Program] {
        match self {
            Peers::None => &[],
            Peers::Dns => &[("NSD", &["nsd", "-v"]), ("Knot DNS", &["knotd", "-V"])],
            Peers::Memcached => &[("memcached", &["memcached", "-V"])],
            Peers::Web => &[("nginx", &["nginx", "-v"]), ("wrk", &["wrk", "-v"]), ("h2load", &["h2load", "--version"])],
        }
    }
}

impl Machine {
    /// This machine, now, with the versions of the peers, and the command that this process was started by.
    pub(crate) fn here(peers: Peers) -> Machine {
        let mut machine = Machine::default();
        let mut fact = |name: &str, value: Option<String>| {
            machine.facts.push((name.into(), value.unwrap_or_else(|| "unknown".into())));
        };
        fact("date", Some(date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))));
        fact("commit", Some(commits(OWN, SERVER.get().map(String::as_str))));
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        fact("processor", processor(&cpuinfo, &caches()));
        // not what this process may run on: experiments pin it
        fact("processors online", crate::procs::online().ok().map(|count| count.to_string()));
        let guest =
            cpuinfo.lines().any(|line| line.starts_with("flags") && line.split(' ').any(|flag| flag == "hypervisor"));
        fact("virtual machine", Some(if guest { "yes" } else { "no" }.into()));
        fact("memory", memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default()));
        fact("kernel", fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|text| text.trim().to_owned()));
        fact("load average at the end", load_average());
        for (name, command) in peers.programs() {
            fact(name, version(command));
        }
        fact("command", command_line(std::env::args()));
        machine
    }

    /// A small table.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::from("| machine | |\n|---|---|\n");
        for (name, value) in &self.facts {
            text += &format!("| {name} | {} |\n", value.replace('|', "\\|"));
        }
        text
    }
}

/// A command line that says the same again, its program without the folder.
fn command_line(words: impl Iterator<Item = String>) -> Option<String> {
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.,:/=+@%".contains(&byte));
    let quoted = |word: String| {
        if plain(&word) && !word.is_empty() { word } else { format!("'{}'", word.replace('\'', "'\\''")) }
    };
    let mut words = words.map(quoted);
    let program = words.next()?;
    let program = program.rsplit('/').next().unwrap_or(&program).to_owned();
    Some(words.fold(program, |line, word| line + " " + &word))
}

/// Model, its numbers where the name is of many, and the caches that /proc/cpuinfo knows nothing of or only one of.
fn processor(cpuinfo: &str, caches: &[Cache]) -> Option<String> {
    let value = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|name| name.trim() == key))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    let mut text = value("model name")?;
    if let (Some(family), Some(model)) = (value("cpu family"), value("model")) {
        text += &format!(" (family {family}, model {model})");
    }
    for Cache { level, size } in caches {
        text += &format!(", L{level} {size}");
    }
    Some(text)
}

/// A cache of the first processor, for data.
struct Cache {
    level: String,
    /// as the kernel writes it, such as "512K"
    size: String,
}

/// Those below the first level; none where the kernel does not tell.
fn caches() -> Vec<Cache> {
    let of = |index: usize| {
        let read = |file: &str| {
            let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{file}");
            fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
        };
        Some((read("type")?, Cache { level: read("level")?, size: read("size")? }))
    };
    let below = |(kind, cache): (String, Cache)| (kind != "Instruction" && cache.level != "1").then_some(cache);
    (0..).map_while(of).filter_map(below).collect()
}

fn memory(meminfo: &str) -> Option<String> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(format!("{:.1} GiB", kib as f64 / f64::from(1 << 20)))
}

fn load_average() -> Option<String> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    Some(text.split(' ').take(3).collect::<Vec<_>>().join(" "))
}

/// What this program was built from: its own stack and services are what some experiments measure, and every load is made by them.
const OWN: &str = env!("SIMOOM_COMMIT");

static SERVER: OnceLock<String> = OnceLock::new();

/// Notes what the server under test was built from, as it says itself before it is measured: the file may be another one afterwards. The
/// first server counts.
pub(crate) fn note_server(program: &Path) {
    SERVER.get_or_init(|| {
        let done = Command::new(program).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
        let said = done.map_or_else(|_| String::new(), |done| String::from_utf8_lossy(&done.stdout).into_owned());
        told_commit(&said).unwrap_or("unknown").to_owned()
    });
}

/// The commit in what `simoom --version` says.
fn told_commit(said: &str) -> Option<&str> {
    said.trim().split_once("(commit ")?.1.strip_suffix(')')
}

/// One commit, or where they differ the server's and this program's.
fn commits(own: &str, server: Option<&str>) -> String {
    match server {
        Some(server) if server != own => format!("{server}; simoom-bench: {own}"),
        _ => own.to_owned(),
    }
}

/// The first line with a digit of what `command` prints on either stream.
fn version(command: &[&str]) -> Option<String> {
    let done = Command::new(command[0]).args(&command[1..]).stdin(Stdio::null()).output().ok()?;
    let text = [done.stdout, done.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().find(|line| line.contains(|c: char| c.is_ascii_digit())).map(|line| line.trim().to_owned())
}

/// Seconds since 1970 as `2026-11-20 21:10 UTC` (Gregorian calendar; days counted from 1 March 0000, so that the leap day is a
/// year's last).
fn date(unix_s: u64) -> String {
    let days = unix_s / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", unix_s / 3600 % 24, unix_s / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_around_leap_days() {
        for (unix_s, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_795_209_002, "2026-11-20 21:10 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(unix_s), expected);
        }
    }

    #[test]
    fn facts_are_read_from_the_kernels_files() {
        let cpuinfo = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: A CPU\n\nprocessor\t: 1\n";
        let caches = [("2", "512K"), ("3", "32768K")]
            .map(|(level, size)| Cache { level: level.to_owned(), size: size.to_owned() });
        assert_eq!(processor(cpuinfo, &caches).unwrap(), "A CPU (family 25, model 1), L2 512K, L3 32768K");
        assert_eq!(processor("model name : B\n", &[]).unwrap(), "B");
        assert_eq!(processor("", &caches), None);
        assert_eq!(memory("MemTotal:       2097152 kB\nMemFree: 1 kB\n").unwrap(), "2.0 GiB");
        assert_eq!(memory("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn commits_are_those_of_the_programs() {
        assert_eq!(told_commit("simoom 0.1.0 (commit 0123456789ab+)\n"), Some("0123456789ab+"));
        assert_eq!((told_commit("simoom 0.1.0\n"), told_commit("")), (None, None));
        assert_eq!((commits("ab", None), commits("ab", Some("ab"))), ("ab".into(), "ab".into()));
        assert_eq!(commits("ab", Some("cd+")), "cd+; simoom-bench: ab");
        let commit = |machine: Machine| machine.facts.into_iter().find(|(name, _)| name == "commit").unwrap().1;
        assert!(commit(Machine::here(Peers::None)).contains(OWN));
    }

    #[test]
    fn a_command_line_can_be_given_to_a_shell_again() {
        let words = ["/a/simoom-bench", "--server", "x={simoom} it's", ""].map(String::from);
        let line = command_line(words.into_iter()).unwrap();
        assert_eq!(line, r"simoom-bench --server 'x={simoom} it'\''s' ''");
        assert_eq!(command_line(std::iter::empty()), None);
    }

    #[test]
    fn this_machine_has_a_kernel() {
        let machine = Machine::here(Peers::None);
        let kernel = machine.facts.iter().find(|(name, _)| name == "kernel").unwrap();
        assert!(kernel.1.contains('.'), "{kernel:?}");
        assert!(machine.markdown().contains("| kernel |"));
    }

    #[test]
    fn a_pinned_program_tells_of_all_processors() {
        let online =
            |machine: Machine| machine.facts.into_iter().find(|(name, _)| name == "processors online").unwrap();
        let free = online(Machine::here(Peers::None));
        let pinned = std::thread::spawn(|| crate::procs::pin(0).map(|()| Machine::here(Peers::None))).join().unwrap();
        assert_eq!(online(pinned.unwrap()), free);
    }
}
