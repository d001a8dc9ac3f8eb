//! Loads on a web server from the client's host: our own generator over AF_XDP, wrk with the kernel's TCP, h2load where wrk has no
//! rate, and `simoom-bench bursts` for a reflector.

use super::{ADDRESS, REFLECTOR, START, Up};
use crate::experiment::bed::Busy;
use crate::experiment::until_answered;
use crate::procs::Ticks;
use crate::{bursts, http};
use anyhow::{Context as _, Result, ensure};
use lab::Process;
use serde::de::DeserializeOwned;
use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

/// Addresses that the kernel of the client's host does not have. Ports of one run out at 60,000 connections a second.
const OWN_ADDRESSES: &str = "198.18.0.3-198.18.0.34";
/// A load runs so many seconds before processor time is looked at, and at least so many after.
const MARGIN_S: f64 = 0.7;
/// By so many seconds a load is longer than what is watched of it.
pub(in crate::experiment) const LONGER_S: f64 = 2.0 * MARGIN_S;
/// Octets of answers are a throughput where so many of the answers are good: pages of errors have octets, too.
const GOOD_SHARE: f64 = 0.999;

/// Who makes the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::experiment) enum Generator {
    /// simoom-bench http: over AF_XDP, which takes TSO away from the server
    Own,
    /// wrk on the kernel's TCP (h2load where a rate is kept)
    Wrk,
}

impl Generator {
    /// The word of the command line.
    pub(in crate::experiment) fn word(self) -> &'static str {
        match self {
            Generator::Own => "own",
            Generator::Wrk => "wrk",
        }
    }

    /// The programs that it needs, with a rate or without.
    pub(in crate::experiment) fn programs(self, rates: bool) -> &'static [&'static str] {
        match (self, rates) {
            (Generator::Own, _) => &[],
            (Generator::Wrk, false) => &["wrk"],
            (Generator::Wrk, true) => &["wrk", "h2load"],
        }
    }
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub(in crate::experiment) struct Load<'a> {
    /// who makes it
    pub(in crate::experiment) generator: Generator,
    /// at a time; of a reflector requests
    pub(in crate::experiment) connections: u16,
    /// a connection for each request
    pub(in crate::experiment) close: bool,
    /// requests a second; None: as many as can be
    pub(in crate::experiment) rate: Option<f64>,
    /// how long
    pub(in crate::experiment) seconds: f64,
    /// the files asked for, in turn
    pub(in crate::experiment) files: &'a [String],
}

/// What a load came to.
#[derive(Clone, Copy, Debug)]
pub(in crate::experiment) struct Run {
    /// good answers a second
    pub(in crate::experiment) requests_per_s: f64,
    /// octets of answers a second, heads and all; None where more than one in a thousand of the answers was no good one
    pub(in crate::experiment) bytes_per_s: Option<f64>,
    /// answers that did not come or were wrong
    pub(in crate::experiment) failures: u64,
    /// of a reflector: all frames that came, as whole bursts a second
    pub(in crate::experiment) frames_per_s: Option<f64>,
    /// how often it was made anew, since nothing good had come back
    pub(in crate::experiment) anew: usize,
}

impl Run {
    /// Something good came back.
    fn is_answered(&self) -> bool {
        self.requests_per_s > 0.0 || self.frames_per_s.is_some_and(|rate| rate > 0.0)
    }
}

impl Up<'_> {
    /// Runs a load to its end, anew where nothing good came back, which is an error in the end, or where the host moved a processor. Takes
    /// processor time and whatever `watch` tells over its length; the load itself is a little longer.
    pub(in crate::experiment) fn run_watched<T>(
        &mut self,
        load: &Load<'_>,
        watch: impl Fn(u32, Duration) -> Result<T>,
    ) -> Result<(Run, Busy, T)> {
        let bed = self.bed;
        let run = || {
            let ((run, busy, watched), anew) =
                until_answered(|| self.run_watched_once(load, &watch), |(run, ..)| run.is_answered())?;
            Ok((Run { anew, ..run }, busy, watched))
        };
        bed.apart.steady(run)
    }

    fn run_watched_once<T>(
        &mut self,
        load: &Load<'_>,
        watch: impl Fn(u32, Duration) -> Result<T>,
    ) -> Result<(Run, Busy, T)> {
        let span = Duration::from_secs_f64(load.seconds);
        let longer = Load { seconds: load.seconds + LONGER_S, ..*load };
        let mut process = Process::spawn(self.command(&longer)?)?;
        if load.generator == Generator::Own && self.segments.is_none() {
            // it learns what it asks for first; its first line of progress comes after a second of the load
            process.wait_for(" requests/s ", START)?;
        } else {
            std::thread::sleep(Duration::from_secs_f64(MARGIN_S));
            lab::uninterrupted()?;
        }
        let pid = self.pid()?;
        let begin = (Ticks::now(Some(0))?, Ticks::now(None)?, Instant::now());
        let watched = watch(pid, span)?;
        let end = (Ticks::now(Some(0))?, Ticks::now(None)?);
        let busy = Busy {
            server_s: end.0.busy_s_since(begin.0),
            machine_s: end.1.busy_s_since(begin.1),
            span_s: begin.2.elapsed().as_secs_f64(),
        };
        Ok((self.finish(&longer, &mut process)?, busy, watched))
    }

    fn finish(&mut self, load: &Load<'_>, process: &mut Process) -> Result<Run> {
        let status = process.wait(Duration::from_secs(3600))?;
        self.pid()?;
        let log = process.log();
        let is_silent = match (self.segments, load.generator) {
            (Some(_), _) => json(&log).is_ok_and(|outcome: bursts::Outcome| outcome.frames == 0),
            (None, Generator::Own) => json(&log).is_ok_and(|outcome: http::Outcome| outcome.answered == 0),
            (None, Generator::Wrk) => false,
        };
        // ours fail where nothing comes back, which is judged by who asked
        let is_done = status.success() || is_silent;
        ensure!(is_done, "the load on {} failed ({status}): {}", self.name, log.trim());
        let run = match (self.segments, load.generator, load.rate) {
            (Some(_), ..) => of_bursts(&json(&log)?),
            (None, Generator::Own, _) => of_own(&json(&log)?),
            (None, Generator::Wrk, None) => of_wrk(&log).with_context(|| format!("what wrk printed: {log}"))?,
            (None, Generator::Wrk, Some(_)) => {
                of_h2load(&log).with_context(|| format!("what h2load printed: {log}"))?
            }
        };
        if run.failures > 0 {
            eprintln!(
                "{}: {} answers failed: {}",
                self.name,
                run.failures,
                log.trim().lines().next_back().unwrap_or_default()
            );
        }
        Ok(run)
    }

    fn command(&self, load: &Load<'_>) -> Result<Command> {
        let mut command = self.lab.client().command("taskset");
        command.args(["-c", "1"]);
        let (seconds, connections) = (load.seconds.to_string(), load.connections.to_string());
        if let Some(segments) = self.segments {
            command.arg(ours()?).args(["bursts", "--interface", "vc", "--server", REFLECTOR, "--json"]);
            command.args(["--segments", &segments.to_string(), "--outstanding", &connections, "--seconds", &seconds]);
            return Ok(command);
        }
        match (load.generator, load.rate) {
            (Generator::Own, rate) => {
                command.arg(ours()?).args(["http", "--interface", "vc", "--address", OWN_ADDRESSES, "--json"]);
                command.args(["--connections", &connections, "--seconds", &seconds]);
                if load.close {
                    command.args(["--requests-per-connection", "1"]);
                }
                if let Some(rate) = rate {
                    command.args(["--rate", &rate.to_string()]);
                }
                command.args(load.files.iter().map(|name| url(name)));
            }
            (Generator::Wrk, None) => {
                let keep = if load.close { "Connection: close" } else { "Connection: keep-alive" };
                let span = format!("{:.0}s", load.seconds.ceil());
                command.args(["wrk", "-t1", "-c", &connections, "-d", &span, "--timeout", "5s", "-H", keep]);
                if load.files.len() > 1 {
                    let script = self.bed.folder().join("run/files.lua");
                    std::fs::write(&script, files_in_turn(load.files)).context("cannot write wrk's script")?;
                    command.arg("-s").arg(script);
                }
                command.arg(url(load.files.first().context("no file to ask for")?));
            }
            (Generator::Wrk, Some(rate)) => {
                ensure!(!load.close, "h2load has no connection for each request");
                let each = (rate / f64::from(load.connections)).to_string();
                command.args(["h2load", "--h1", "-t1", "-c", &connections, "--rps", &each]);
                command.args(["-D", &format!("{:.0}", load.seconds.ceil())]);
                command.args(load.files.iter().map(|name| url(name)));
            }
        }
        Ok(command)
    }
}

fn ours() -> Result<std::path::PathBuf> {
    std::env::current_exe().context("where this program lies")
}

fn url(name: &str) -> String {
    format!("http://{}/{name}", ADDRESS.trim_end_matches(":80"))
}

/// A script that has wrk ask for one file after the other; the requests' texts are made once.
fn files_in_turn(files: &[String]) -> String {
    let mut text = String::from("local paths = {");
    for name in files {
        // writing to a String does not fail
        let _ = write!(text, "\"/{name}\",");
    }
    text + "}\nlocal texts = {}\nlocal at = 0\n\
        init = function(args) for i, path in ipairs(paths) do texts[i] = wrk.format(nil, path) end end\n\
        request = function() at = at % #texts + 1 return texts[at] end\n"
}

/// What the last line of JSON says.
pub(in crate::experiment) fn json<T: DeserializeOwned>(log: &str) -> Result<T> {
    let line = log.lines().rfind(|line| line.starts_with('{')).with_context(|| format!("no results in: {log}"))?;
    serde_json::from_str(line).context("the generator's results")
}

fn of_bursts(outcome: &bursts::Outcome) -> Run {
    let requests_per_s = outcome.answered_rate();
    Run {
        requests_per_s,
        bytes_per_s: Some(outcome.bytes as f64 * 1e9 / outcome.span_ns.max(1) as f64),
        failures: 0,
        frames_per_s: Some(outcome.frames_rate()),
        anew: 0,
    }
}

fn of_own(outcome: &http::Outcome) -> Run {
    let is_good = outcome.good_in_span as f64 >= GOOD_SHARE * outcome.answered_in_span as f64;
    Run {
        requests_per_s: outcome.good_rate(),
        bytes_per_s: is_good.then(|| outcome.bytes_in_span as f64 * 1e9 / outcome.span_ns.max(1) as f64),
        failures: outcome.bad(),
        frames_per_s: None,
        anew: 0,
    }
}

fn of_wrk(text: &str) -> Result<Run> {
    let value = |name: &str| text.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim);
    let requests_per_s: f64 = value("Requests/sec:").and_then(|rate| rate.parse().ok()).context("no rate")?;
    // Socket errors: connect 0, read 1, write 2, timeout 3
    let sockets: u64 = value("Socket errors:")
        .map_or(0, |line| line.split(',').filter_map(|part| part.split_whitespace().last()?.parse::<u64>().ok()).sum());
    let others = value("Non-2xx or 3xx responses:").map_or(Some(0), |count| count.parse::<u64>().ok());
    let others = others.context("no count of other answers")?;
    let failures = sockets + others;
    // they are in wrk's rate
    let requests = text.lines().find_map(|line| line.trim().split_once(" requests in ")?.0.parse::<f64>().ok());
    let good = if others > 0 { 1.0 - others as f64 / requests.context("no count of requests")? } else { 1.0 };
    let bytes_per_s = value("Transfer/sec:").and_then(binary_octets).context("no transfer rate")?;
    let bytes_per_s = (good >= GOOD_SHARE).then_some(bytes_per_s);
    Ok(Run { requests_per_s: requests_per_s * good, bytes_per_s, failures, frames_per_s: None, anew: 0 })
}

fn of_h2load(text: &str) -> Result<Run> {
    let value = |name: &str| text.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim);
    // finished in 3.00s, 1234.50 req/s, 1.20MB/s
    let parts: Vec<&str> = value("finished in").context("no summary")?.split(',').map(str::trim).collect();
    let rate: Option<f64> = parts.get(1).and_then(|part| part.strip_suffix("req/s")?.trim().parse().ok());
    let bytes = parts.get(2).and_then(|part| binary_octets(part.strip_suffix("/s")?));
    // requests: 10 total, 10 started, 10 done, 10 succeeded, 0 failed, 0 errored, 0 timeout
    let counts = value("requests:").context("no counts")?;
    let count = |name: &str| {
        counts.split(',').find_map(|part| part.trim().strip_suffix(name)?.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    // its rate is of requests that ended, whatever their status; those that succeeded have 2xx or 3xx
    let good = match count("done") {
        0 => 0.0,
        done => count("succeeded") as f64 / done as f64,
    };
    let bytes_per_s = bytes.context("no transfer rate")?;
    Ok(Run {
        requests_per_s: rate.context("no rate")? * good,
        bytes_per_s: (good >= GOOD_SHARE).then_some(bytes_per_s),
        failures: count("failed") + count("timeout"),
        frames_per_s: None,
        anew: 0,
    })
}

/// `1.20MB` as wrk and h2load mean it, by 1024.
fn binary_octets(text: &str) -> Option<f64> {
    let text = text.trim().strip_suffix('B')?;
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        b'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    Some(digits.trim().parse::<f64>().ok()? * 2f64.powi(shift))
}

/// Sleeps; the watch of those who want no more than processor time.
pub(in crate::experiment) fn sleep(_: u32, span: Duration) -> Result<()> {
    let end = Instant::now() + span;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        std::thread::sleep(left.min(Duration::from_millis(200)));
        lab::uninterrupted()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wrk_prints_is_read() {
        let text = "Running 3s test @ http://198.18.0.1/1k\n  1 threads and 64 connections\n  Thread Stats   Avg\n\
                    \u{20} 380000 requests in 3.00s, 459.50MB read\n  Socket errors: connect 0, read 1, write 2, timeout 3\n\
                    \u{20} Non-2xx or 3xx responses: 95000\nRequests/sec: 126666.00\nTransfer/sec:    153.17MB\n";
        let run = of_wrk(text).unwrap();
        // a quarter of what it counts are no files
        assert_eq!((run.requests_per_s, run.failures), (94_999.5, 95_006));
        assert_eq!(run.bytes_per_s, None);
        let run = of_wrk("Requests/sec: 5\nTransfer/sec: 153.17MB").unwrap();
        assert_eq!((run.failures, run.bytes_per_s), (0, Some(153.17 * f64::from(1 << 20))));
        assert!(of_wrk("unable to connect to 198.18.0.1:http Connection refused\n").is_err());
    }

    #[test]
    fn what_h2load_prints_is_read() {
        let text = "starting benchmark...\nfinished in 3.00s, 19999.33 req/s, 24.22MB/s\n\
                    requests: 59998 total, 59998 started, 59998 done, 59990 succeeded, 8 failed, 8 errored, 1 timeout\n";
        let run = of_h2load(text).unwrap();
        assert_eq!((run.requests_per_s, run.failures), (19_999.33 * (59_990.0 / 59_998.0), 9));
        assert_eq!(run.bytes_per_s, Some(24.22 * f64::from(1 << 20)));
        // a refusal is one that ended
        let refused = "finished in 1.00s, 10.00 req/s, 2.00MB/s\n\
                       requests: 10 total, 10 started, 10 done, 6 succeeded, 4 failed, 0 errored, 0 timeout\n";
        let run = of_h2load(refused).unwrap();
        assert_eq!((run.requests_per_s, run.failures, run.bytes_per_s), (6.0, 4, None));
        let none = refused.replace("10 done, 6", "0 done, 0");
        assert_eq!(of_h2load(&none).unwrap().requests_per_s, 0.0);
        assert!(of_h2load("no").is_err());
    }

    #[test]
    fn octets_of_refusals_are_no_throughput() {
        let mut outcome = http::Outcome::new(None);
        (outcome.span_ns, outcome.bytes_in_span) = (1_000_000_000, 4096);
        (outcome.answered_in_span, outcome.good_in_span) = (1000, 999);
        assert_eq!(of_own(&outcome).bytes_per_s, Some(4096.0));
        outcome.good_in_span = 998;
        assert_eq!((of_own(&outcome).bytes_per_s, of_own(&outcome).requests_per_s), (None, 998.0));
    }

    #[test]
    fn octets_by_1024() {
        for (text, octets) in [("700B", 700.0), ("1.5KB", 1536.0), ("2GB", 2147483648.0), ("1TB", 1099511627776.0)] {
            assert_eq!(binary_octets(text), Some(octets), "{text}");
        }
        assert_eq!(binary_octets("1.5"), None);
        assert_eq!(binary_octets("B"), None);
    }

    #[test]
    fn a_script_names_every_file() {
        let script = files_in_turn(&["a".into(), "b/c".into()]);
        assert!(script.starts_with("local paths = {\"/a\",\"/b/c\",}\n"), "{script}");
    }
}
