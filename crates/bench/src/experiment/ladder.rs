//! `simoom-bench experiment ladder`: round trips of small datagrams between `simoom echo` and `simoom ping`, from sleeping threads to
//! spinning ones, over kernel sockets and over AF_XDP: the steps of "How to achieve low latency with 10Gbps Ethernet".

use super::{Common, tell_written};
use crate::commands::seconds;
use crate::report::{Axis, Cell, Chart, Machine, Peers, Report, Series, Table};
use crate::stats::{self, Summary};
use anyhow::{Context as _, Result, ensure};
use lab::{Lab, Process};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Where the server answers; the client's end is 198.18.0.2.
const SERVER: &str = "198.18.0.1:7";
/// How long a server, or a client's warm-up, may take to come.
const START: Duration = Duration::from_secs(60);
/// The client's first probes do not count: in this time receive threads are put on their processors.
const WARM_UP: Duration = Duration::from_millis(1500);
/// How often that is done, evenly over it.
const PINS: u32 = 9;

/// Options of `simoom-bench experiment ladder`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each step is a server and a client that wait in the same way, one probe on its way at a time; steps in turn, round by round. The server
has processor 0, the client processor 1. Writes NAME.csv, NAME.svg and NAME.md. Needs root.")]
pub(crate) struct Options {
    /// Octets of a probe
    #[arg(long, value_name = "BYTES", default_value_t = 32, value_parser = clap::value_parser!(u16).range(16..=1400))]
    size: u16,
    /// How long each step is measured
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    seconds: f64,
    /// How often every step is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// What the result files are called
    #[arg(long, value_name = "NAME", default_value = "ladder")]
    name: String,
    /// common
    #[command(flatten)]
    common: Common,
}

/// What carries both ends of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Sockets,
    AfXdp,
}

/// A step of the ladder.
#[derive(Clone, Copy, Debug)]
struct Step {
    name: &'static str,
    engine: Engine,
    /// of both ends
    idle: &'static str,
    /// of both ends, 0 is off
    busy_poll_us: u32,
    /// the server on processor 0, the client on processor 1
    pinned: bool,
    /// each side's receive work on its own processor, as if the NIC interrupted there
    receives_there: bool,
}

const SLEEPING: &str = "sockets, sleeping";
const SPINNING: &str = "sockets, spinning";
const AF_XDP_SPINNING: &str = "AF_XDP, spinning";

const fn step(name: &'static str, engine: Engine, idle: &'static str) -> Step {
    Step { name, engine, idle, busy_poll_us: 0, pinned: true, receives_there: false }
}

const STEPS: [Step; 11] = [
    Step { pinned: false, ..step("sockets, sleeping, anywhere", Engine::Sockets, "block") },
    Step { pinned: false, ..step("sockets, spinning, anywhere", Engine::Sockets, "spin") },
    step(SLEEPING, Engine::Sockets, "block"),
    Step { busy_poll_us: 50, ..step("sockets, SO_BUSY_POLL=50", Engine::Sockets, "block") },
    step("sockets, adaptive", Engine::Sockets, "adaptive"),
    Step { receives_there: true, ..step("sockets, spinning where it receives", Engine::Sockets, "spin") },
    step(SPINNING, Engine::Sockets, "spin"),
    step("AF_XDP, sleeping", Engine::AfXdp, "block"),
    step("AF_XDP, adaptive", Engine::AfXdp, "adaptive"),
    Step { receives_there: true, ..step("AF_XDP, spinning where it receives", Engine::AfXdp, "spin") },
    step(AF_XDP_SPINNING, Engine::AfXdp, "spin"),
];

/// What `simoom ping --json` says, as far as it is told here.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Figures {
    sent: u64,
    lost: u64,
    wrong: u64,
    packets_per_s: f64,
    minimum_us: f64,
    average_us: f64,
    deviation_us: f64,
    p50_us: f64,
    p99_us: f64,
}

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    super::web::ensure_can_run(&["chrt", "ip", "ethtool"])?;
    lab::interrupt_by(crate::commands::stop_flag()?);
    let simoom = options.common.simoom()?;
    let folder = tempfile::Builder::new().prefix("simoom-bench-").tempdir().context("no temporary folder")?;
    let mut figures = vec![Vec::new(); STEPS.len()];
    for round in 1..=options.rounds {
        for (step, figures) in STEPS.iter().zip(&mut figures) {
            let found = measure(options, &simoom, folder.path(), step).with_context(|| step.name)?;
            eprintln!(
                "{round} {:<44} median {:>7.1} us  minimum {:>7.1}  average {:>7.1}  deviation {:>7.1}",
                step.name, found.p50_us, found.minimum_us, found.average_us, found.deviation_us
            );
            figures.push(found);
        }
    }
    let report = report(options, &figures);
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

/// One step in a laboratory of its own.
fn measure(options: &Options, simoom: &Path, folder: &Path, step: &Step) -> Result<Figures> {
    let others = receive_threads();
    // with segmentation offload veth hands a socket's packets over without its NAPI, which is what threads and busy polling need
    let lab = Lab::with(&lab::Options { offloads: false, ..lab::Options::default() })?;
    if !step.receives_there {
        for host in [lab.server(), lab.client()] {
            let threaded = format!("/sys/class/net/{}/threaded", host.interface());
            host.run(&["sh", "-c", &format!("echo 0 > {threaded}")])?;
        }
    }
    let busy_poll = step.busy_poll_us.to_string();
    let mut server = lab.server().command(simoom);
    server.args(["echo", "--listen", SERVER, "--idle", step.idle, "--busy-poll", &busy_poll]);
    server.arg("--control").arg(folder.join("control"));
    let mut client = lab.client().command(simoom);
    let span = options.seconds.ceil().to_string();
    let warm_up = WARM_UP.as_millis().to_string();
    client.args(["ping", SERVER, "--idle", step.idle, "--busy-poll", &busy_poll, "--json"]);
    client.args(["--size", &options.size.to_string(), "--seconds", &span, "--warm-up", &warm_up]);
    for (command, interface, cpu) in [(&mut server, "vs", "0"), (&mut client, "vc", "1")] {
        match step.engine {
            Engine::AfXdp => command.args(["--interface", interface]),
            Engine::Sockets => command.args(["--backend", "sockets"]),
        };
        if step.pinned {
            command.args(["--cpus", cpu]);
        }
    }
    let mut server = Process::spawn(server)?;
    server.wait_for("serving on ", START).context("the server does not come up")?;
    let mut client = Process::spawn(client)?;
    let mut raised = others;
    for _ in 0..PINS {
        std::thread::sleep(WARM_UP / (PINS + 1));
        if step.receives_there {
            // attaching a program makes them anew
            lab.pin();
            let threads = receive_threads();
            threads.difference(&raised).try_for_each(|thread| crate::procs::preempt(*thread))?;
            raised = threads;
        }
    }
    let status = client.wait(START + Duration::from_secs_f64(options.seconds))?;
    let log = client.log();
    ensure!(status.success(), "ping failed ({status}): {}", log.trim());
    ensure!(server.ended().is_none(), "the server ended: {}", server.log().trim());
    let line = log.lines().rfind(|line| line.starts_with('{')).with_context(|| format!("no figures in: {log}"))?;
    let figures: Figures = serde_json::from_str(line).context("ping's figures")?;
    ensure!(figures.wrong == 0, "{} answers had wrong octets", figures.wrong);
    Ok(figures)
}

/// The kernel threads that receive for the interfaces of laboratories.
fn receive_threads() -> BTreeSet<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return BTreeSet::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let receives = |pid: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.starts_with("napi/vs-") || name.starts_with("napi/vc-")
    };
    pids.filter(receives).collect()
}

fn report(options: &Options, figures: &[Vec<Figures>]) -> Report {
    let mut table = Table::new(&[
        "step",
        "minimum us",
        "average us",
        "deviation us",
        "median us",
        "least median",
        "greatest median",
        "99% us",
        "packets/s",
        "lost",
        "median to sleeping sockets",
        "median to spinning sockets",
    ]);
    let of = |name: &str| {
        let at = STEPS.iter().position(|step| step.name == name).expect("a step");
        medians(&figures[at])
    };
    let (sleeping, spinning) = (of(SLEEPING), of(SPINNING));
    for (step, rounds) in STEPS.iter().zip(figures) {
        let Some(p50) = Summary::of(&medians(rounds)) else { continue };
        let median = |field: fn(&Figures) -> f64| stats::median(&rounds.iter().map(field).collect::<Vec<_>>());
        let ratio = |to: &[f64]| stats::paired_ratio(&medians(rounds), to).map(|ratio| ratio.median);
        table.row(vec![
            Cell::text(step.name),
            Cell::number(median(|it| it.minimum_us), 1),
            Cell::number(median(|it| it.average_us), 1),
            Cell::number(median(|it| it.deviation_us), 1),
            Cell::Number(p50.median, 1),
            Cell::Number(p50.least, 1),
            Cell::Number(p50.greatest, 1),
            Cell::number(median(|it| it.p99_us), 1),
            Cell::number(median(|it| it.packets_per_s), 0),
            Cell::Count(rounds.iter().map(|it| it.lost).sum()),
            Cell::number(ratio(&sleeping), 2),
            Cell::number(ratio(&spinning), 2),
        ]);
    }
    let title = "Round trips, step by step".to_owned();
    let chart = Chart {
        title: title.clone(),
        x: Axis::linear("step, in the table's order"),
        y: Axis::linear("round trip, us"),
        series: vec![
            series("minimum", figures, |it| it.minimum_us),
            series("median", figures, |it| it.p50_us),
            series("average", figures, |it| it.average_us),
        ],
    };
    let machine = Machine::here(Peers::None);
    Report { name: options.name.clone(), title, method: method(options, figures), table, charts: vec![chart], machine }
}

fn medians(rounds: &[Figures]) -> Vec<f64> {
    rounds.iter().map(|it| it.p50_us).collect()
}

fn series(name: &str, figures: &[Vec<Figures>], field: fn(&Figures) -> f64) -> Series {
    let of = figures.iter().enumerate().filter_map(|(at, rounds)| {
        let Summary { median, least, greatest, .. } = Summary::of(&rounds.iter().map(field).collect::<Vec<_>>())?;
        Some((((at + 1) as f64, median), (least, greatest)))
    });
    Series::ranged(name, of)
}

fn method(options: &Options, figures: &[Vec<Figures>]) -> String {
    let probes: u64 = figures.iter().flatten().map(|it| it.sent).sum();
    format!(
        "`simoom ping` sends datagrams of {} octets to `simoom echo`, one on its way at a time; every octet of an answer is compared. Both \
         ends wait in the way that the step says. {} rounds in turn of {:.0} s a step, {probes} probes in all: medians of the rounds' \
         figures, and medians of the ratios within a round.\n\n\
         Server and client are two network namespaces, joined by a veth pair without offloads. The server has processor 0 and the client \
         processor 1, but for *anywhere*, where the scheduler may put both hosts on one processor, and does when they sleep: waking \
         somebody on one's own processor is cheap, and nothing that two machines could have. The softirq that receives runs on the \
         sender's processor, which is veth's way and is beside the receiver. *Where it receives* puts each side's receive work in a \
         NAPI thread on the very processor on which that side spins, at a real-time priority, so that it takes the processor as an \
         interrupt would.\n\n\
         What bounds each. There is no wire and no device here, so a round trip is the kernel's and ours. A kernel socket pays, each \
         way, a system call that sends, veth, the softirq with the kernel's IP and UDP, and a system call that receives. AF_XDP in copy \
         mode pays a system call that sends as well, veth, and the softirq with the steering program and a copy into our ring; it saves \
         the kernel's protocols and the call that receives, and adds our own stack. Who sleeps is woken from another processor, twice a \
         round: an interrupt between processors (on a virtual machine through the host), leaving the idle state, and a switch. That is \
         most of the sleeping steps' time, and it is the same interrupt between processors that wakes the thread where somebody \
         receives on his own processor. (The paper, 32 octets over 10 Gb/s: 60 us on average when sleeping, 50 with SO_BUSY_POLL, 39 \
         spinning, 36 pinned, and about 2 more on the processor that takes the interrupts.)",
        options.size,
        options.rounds,
        options.seconds.ceil()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parsed;

    fn figures(p50_us: f64) -> Figures {
        Figures {
            sent: 10,
            lost: 1,
            wrong: 0,
            packets_per_s: 1e6 / p50_us,
            minimum_us: p50_us - 1.0,
            average_us: p50_us + 1.0,
            deviation_us: 2.0,
            p50_us,
            p99_us: p50_us * 2.0,
        }
    }

    #[test]
    fn a_report_compares_each_step_with_sleeping_and_spinning_sockets() {
        let options = parsed::<Options>(["ladder"]).unwrap();
        let all: Vec<_> = STEPS
            .iter()
            .map(|step| match step.name {
                SLEEPING => vec![figures(50.0), figures(60.0), figures(80.0)],
                SPINNING => vec![figures(10.0), figures(10.0), figures(20.0)],
                _ => vec![figures(10.0), figures(12.0), figures(20.0)],
            })
            .collect();
        let report = report(&options, &all);
        let csv = report.table.csv();
        assert_eq!(csv.lines().count(), STEPS.len() + 1, "{csv}");
        let last = csv.lines().last().unwrap();
        assert_eq!(last, "\"AF_XDP, spinning\",11.0,13.0,2.0,12.0,10.0,20.0,24.0,83333,3,0.20,1.00");
        assert_eq!(report.charts[0].series.len(), 3);
        assert!(report.method.contains("330 probes"), "{}", report.method);
    }

    #[test]
    fn every_step_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = STEPS.iter().map(|step| step.name).collect();
        assert_eq!(names.len(), STEPS.len());
        for name in [SLEEPING, SPINNING, AF_XDP_SPINNING] {
            assert!(names.contains(name));
        }
    }
}
