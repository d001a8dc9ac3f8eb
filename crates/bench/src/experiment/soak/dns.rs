//! `simoom-bench soak`: a long load with a reload every second. Every question is accounted for, every checked answer is wholly
//! of one version of the zone and never of one long replaced, and memory stays where it is.

use super::{Control, Reloads, Renewed, metrics, reload_until_done, since};
use crate::commands::{rate, seconds};
use crate::experiment::bed::{Bed, Generator, Served, reported};
use crate::experiment::subject::Subject;
use crate::experiment::{Common, tell_written};
use crate::grid;
use crate::load::Outcome;
use crate::queries::{Content, Synthetic, VERSIONS};
use crate::report::{Cell, Machine, Peers, Report, Table};
use anyhow::{Context as _, Result, bail, ensure};
use lab::{Host, Process};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// The load runs at this share of the peak when no rate is given.
const SHARE_OF_PEAK: f64 = 0.7;
/// Seconds for which the last answers are waited for: what nobody has dropped comes, however late.
const STRAGGLERS_S: &str = "30";

/// Options of `simoom-bench soak`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The zone's records tell its version; a new version is put in place and reloaded every second. Questions sent must equal answers
plus what is counted as dropped: by the server (its sockets, stack and service), and by the two ends of the wire. The last
answers are waited for, 30 s at most. Exit status 1 when they differ, when a checked answer mixes versions or is of an old one, or when
resident memory from reload 100 on, by medians of a hundred reloads, leaves 2%.
Needs root.")]
pub(crate) struct Options {
    /// How long
    #[arg(long, value_name = "S", default_value = "3600", value_parser = seconds)]
    seconds: f64,
    /// Questions a second; default: 70% of the peak, measured first
    #[arg(long, value_name = "R", value_parser = rate)]
    rate: Option<f64>,
    /// Names in the zone
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    names: u64,
    /// So many questions in a hundred are for random names that the zone does not have
    #[arg(long, value_name = "P", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    absent: u8,
    /// Further options of `simoom dns`, as one word
    #[arg(long, value_name = "WORDS", default_value = "", allow_hyphen_values = true)]
    options: String,
    /// Seconds between reloads
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    every: f64,
    /// Check every so manieth answer
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    check_every: u64,
    /// common
    #[command(flatten)]
    common: Common,
}

/// Runs it.
pub(in crate::experiment) fn run(options: &Options) -> Result<()> {
    let simoom = options.common.simoom()?;
    let zone =
        |version| Synthetic { origin: "example.com".into(), names: options.names, content: Content::Version(version) };
    let bed = Bed::new(zone(0), &simoom, Generator::Own)?;
    let mut served = bed.serve(&Subject::simoom("simoom", &options.options))?;
    // the wire's ends count what they drop and not what it was, so nothing but questions and answers may be on it
    served.lab().silence()?;
    let rate = match options.rate {
        Some(rate) => rate,
        None => (served.capacity(&grid::rates(100e3, 1.2e6), 1.0)?.peak().number() * SHARE_OF_PEAK).floor(),
    };
    ensure!(rate >= 1.0, "the server answered nothing");
    eprintln!("{rate:.0} questions/s for {} s, a reload every {} s", options.seconds, options.every);
    let control = Control { simoom, path: bed.data().folder().join("control") };
    let (before, tiers) = (Drops::now(&served, &control)?, Tiers::now(&control)?);
    let load = served.own_load(&[
        "--rate",
        &rate.to_string(),
        "--seconds",
        &options.seconds.to_string(),
        "--stragglers",
        STRAGGLERS_S,
        "--check-every",
        &options.check_every.to_string(),
        "--absent",
        &options.absent.to_string(),
        "--progress",
    ])?;
    let mut load = Process::spawn(load)?;
    let mut zones = Zones { served: &mut served, file: bed.data().zone(), zone };
    let reloads = reload_until_done(&mut zones, &mut load, &control, Duration::from_secs_f64(options.every))?;
    let results = reported(&mut load)?;
    let outcome = results.runs.into_iter().next().context("the generator measured nothing")?;
    let drops = Drops::now(&served, &control)?.since(&before);
    let verdict = Verdict::of(&outcome, &drops, &reloads);
    let tiers = Tiers::now(&control)?.since(tiers);
    let report = report(options, rate, &outcome, &drops, &reloads, &verdict, tiers);
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    if !verdict.complaints.is_empty() {
        bail!("{}", verdict.complaints.join("; "));
    }
    Ok(())
}

/// The zone's versions, one after the other.
struct Zones<'a, 'b, F> {
    served: &'a mut Served<'b>,
    file: PathBuf,
    zone: F,
}

impl<F: Fn(u8) -> Synthetic> Renewed for Zones<'_, '_, F> {
    fn server_pid(&mut self) -> Result<u32> {
        self.served.server_pid()
    }

    fn put(&mut self, number: usize) -> Result<()> {
        let fresh = self.file.with_extension("next");
        (self.zone)((number % usize::from(VERSIONS)) as u8).write_file(&fresh)?;
        std::fs::rename(&fresh, &self.file).context("cannot replace the zone file")
    }
}

/// Questions by who had them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tiers {
    driver: u64,
    stack: u64,
}

impl Tiers {
    fn now(control: &Control) -> Result<Tiers> {
        let stats = control.stats()?;
        let sum = |wanted: &str| metrics(&stats, |name| name == wanted).iter().map(|(_, count)| count).sum();
        Ok(Tiers { driver: sum("steering_answered_total"), stack: sum("steering_taken_total") })
    }

    fn since(self, before: Tiers) -> Tiers {
        Tiers { driver: self.driver - before.driver, stack: self.stack - before.stack }
    }
}

/// Counts of frames and messages that got no answer, by who counted them.
#[derive(Clone, Debug, Default, PartialEq)]
struct Drops {
    /// by the server's own counters: metric with its labels
    server: Vec<(String, u64)>,
    /// by the wire's two ends and the server's kernel. A frame that the steering program or the AF_XDP socket refuses is counted here, by its interface,
    /// as well as by them, so their counters are shown and not added.
    wire: Vec<(String, u64)>,
    /// of those of the wire's ends, what both counted
    twice: u64,
}

/// Counters of the same frames as the interface's receive drops.
const IN_FRONT: [&str; 2] = ["xdp_frames_dropped_total", "steering_dropped_total"];

impl Drops {
    fn now(served: &Served<'_>, control: &Control) -> Result<Drops> {
        let stats = control.stats()?;
        let lab = served.lab();
        let wire = [link_drops(lab.server())?, link_drops(lab.client())?, socket_drops(lab.server())?].concat();
        Ok(Drops { server: server_drops(&stats), wire, twice: counted_twice(lab.server())? })
    }

    fn since(&self, before: &Drops) -> Drops {
        Drops {
            server: since(&self.server, &before.server),
            wire: since(&self.wire, &before.wire),
            twice: self.twice - before.twice,
        }
    }

    fn total(&self) -> u64 {
        let own = self.server.iter().filter(|(name, _)| !IN_FRONT.iter().any(|metric| name.starts_with(metric)));
        own.chain(&self.wire).map(|(_, count)| count).sum::<u64>() - self.twice
    }
}

/// Every metric about dropped frames or messages, with its labels.
fn server_drops(stats: &Value) -> Vec<(String, u64)> {
    metrics(stats, |name| name.contains("drop"))
}

fn link_drops(host: &Host) -> Result<Vec<(String, u64)>> {
    let interface = host.interface();
    let text = host.run(&["ip", "-s", "-j", "link", "show", "dev", interface])?;
    let link: Value = serde_json::from_str(&text).context("what ip -s -j link printed")?;
    let count = |side: &str| {
        let dropped = link[0]["stats64"][side]["dropped"].as_u64();
        dropped.map(|count| (format!("{interface} {side} dropped"), count)).context("ip link shows no drops")
    };
    Ok(vec![count("rx")?, count("tx")?])
}

/// Datagrams for which a kernel socket had no room: those of the thread that stands in while one of AF_XDP gets no processor, and what
/// else the kernel refused.
fn socket_drops(host: &Host) -> Result<Vec<(String, u64)>> {
    let (v4, v6) = (host.run(&["cat", "/proc/net/snmp"])?, host.run(&["cat", "/proc/net/snmp6"])?);
    let counts = [("kernel Udp InErrors", udp_errors(&v4)), ("kernel Udp6 InErrors", udp6_errors(&v6))];
    let named = counts.map(|(name, count)| Ok((name.to_owned(), count.with_context(|| format!("no {name}"))?)));
    named.into_iter().collect()
}

/// A line of names and below it one of numbers, for each protocol.
fn udp_errors(snmp: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let at = lines.next()?.split_whitespace().position(|name| name == "InErrors")?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

fn udp6_errors(snmp6: &str) -> Option<u64> {
    snmp6.lines().find_map(|line| line.strip_prefix("Udp6InErrors"))?.trim().parse().ok()
}

/// What veth counts at both ends: what a program redirected to this one and the other had no room for is dropped on its way out
/// here and on its way in there.
fn counted_twice(host: &Host) -> Result<u64> {
    let shown = host.run(&["ethtool", "-S", host.interface()])?;
    let errors = shown.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| {
        let name = name.trim();
        name.starts_with("tx_queue_") && name.ends_with("_xdp_xmit_errors")
    });
    errors.map(|(name, count)| count.trim().parse::<u64>().with_context(|| format!("ethtool -S: {name}"))).sum()
}

struct Verdict {
    unaccounted: i64,
    complaints: Vec<String>,
}

impl Verdict {
    fn of(outcome: &Outcome, drops: &Drops, reloads: &Reloads) -> Verdict {
        let unaccounted = outcome.lost as i64 - drops.total() as i64;
        let mut complaints = Vec::new();
        if unaccounted != 0 {
            complaints.push(format!("{} lost, {} counted as dropped", outcome.lost, drops.total()));
        }
        for (fault, count) in &outcome.faults {
            complaints.push(format!("{count} of {} checked answers: {fault:?}", outcome.checked));
        }
        if outcome.no_checksums > 0 {
            complaints.push(format!("{} of {} checked answers: no checksum", outcome.no_checksums, outcome.checked));
        }
        if reloads.done > 1 && outcome.versions == 0 {
            complaints.push("no answer came from a reloaded zone".into());
        }
        complaints.extend(reloads.complaint());
        Verdict { unaccounted, complaints }
    }
}

fn report(
    options: &Options,
    rate: f64,
    outcome: &Outcome,
    drops: &Drops,
    reloads: &Reloads,
    verdict: &Verdict,
    tiers: Tiers,
) -> Report {
    let mut table = Table::new(&["what", "figure"]);
    let mut count = |name: &str, count: u64| table.row(vec![Cell::text(name), Cell::Count(count)]);
    count("questions sent", outcome.sent);
    count("answers", outcome.answered);
    count("lost", outcome.lost);
    count("answered by the driver", tiers.driver);
    count("taken by AF_XDP", tiers.stack);
    count("answers to no outstanding question", outcome.unmatched);
    count("frames that were no answers of the server's", outcome.foreign);
    for (name, dropped) in drops.server.iter().chain(&drops.wire).filter(|(_, dropped)| *dropped > 0) {
        count(&format!("dropped: {name}"), *dropped);
    }
    if drops.twice > 0 {
        count("of those of vs and vc counted by both", drops.twice);
    }
    count("answers checked", outcome.checked);
    for (fault, found) in &outcome.faults {
        count(&format!("wrong: {fault:?}"), *found);
    }
    count("versions of the zone seen go by", outcome.versions);
    count("reloads", reloads.done as u64);
    table.row(vec![Cell::text("lost less counted drops"), Cell::Number(verdict.unaccounted as f64, 0)]);
    table.row(vec![Cell::text("slowest reload, s"), Cell::Number(reloads.slowest_s, 2)]);
    reloads.tell_memory(&mut table);
    Report {
        name: "soak".into(),
        title: "Soak".into(),
        method: format!(
            "{rate:.0} questions/s for {} s over a zone of {} names with four records each, a new version put in place and \
             reloaded every {} s; {}% of the questions for random names that it lacks; every {}th answer checked to the last byte. \
             Options of the server: {}.",
            options.seconds,
            options.names,
            options.every,
            options.absent,
            options.check_every,
            if options.options.is_empty() { "none" } else { &options.options }
        ),
        table,
        charts: Vec::new(),
        machine: Machine::here(Peers::None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_kernel_s_errors_are_found_by_name() {
        let snmp = "Tcp: InSegs InErrs\nTcp: 5 6\nUdp: InDatagrams NoPorts InErrors RcvbufErrors\nUdp: 10 2 7 7\nUdpLite: InErrors\nUdpLite: 9\n";
        assert_eq!(udp_errors(snmp), Some(7));
        assert_eq!(udp_errors("Udp: InDatagrams\nUdp: 1\n"), None);
        assert_eq!(udp6_errors("Ip6InReceives  \t8\nUdp6InErrors                    \t3\n"), Some(3));
    }

    #[test]
    fn drops_are_the_differences_and_sockets_are_not_added_twice() {
        let stats = |socket: u64, dns: u64| {
            json!({"metrics": [
                {"name": "dns_answers_total", "labels": {"rcode": "NOERROR"}, "value": 5},
                {"name": "dns_drops_total", "labels": {"reason": "short"}, "value": dns},
                {"name": IN_FRONT[0], "labels": {"queue": "0", "reason": "receive ring full"}, "value": socket},
            ]})
        };
        let drops = |socket, dns, wire| Drops {
            server: server_drops(&stats(socket, dns)),
            wire: vec![("vs rx dropped".into(), wire)],
            twice: wire / 3,
        };
        let since = drops(7, 5, 10).since(&drops(2, 1, 3));
        assert_eq!(since.server[0], ("dns_drops_total reason=short".into(), 4));
        assert_eq!(since.server[1].1, 5);
        assert_eq!(since.total(), 4 + 7 - 2);
    }
}
