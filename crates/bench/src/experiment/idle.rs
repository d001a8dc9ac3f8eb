//! `simoom-bench idle`: what a server costs when nobody asks, and how much later than usual it answers who asks then.

use super::bed::{Bed, SERVER, Served, is_good, question};
use super::subject::Subject;
use super::{Common, plain_zone, tell_written};
use crate::commands::seconds;
use crate::procs::{self, Ticks};
use crate::report::{Cell, Machine, Peers, Report, Table};
use crate::stats;
use anyhow::{Context as _, Result, ensure};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Questions of the busy measurement, one after the other.
const BUSY_QUESTIONS: usize = 2_000;

/// Options of `simoom-bench idle`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The server's processor time over --seconds without any question (its own, and processor 0's, which runs its receive work too);
then the time from question to answer for questions asked one after the other, and for one asked after --seconds of idleness,
--times times. Asked through a kernel socket of the other host, pinned to processor 1; the busy median includes the same kernel
path, so the difference is the server's. Needs root.")]
pub(crate) struct Options {
    /// Servers: simoom, simoom-sockets, knot-xdp, knot, nsd
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "simoom,knot-xdp")]
    servers: Vec<Subject>,
    /// How long the server is left alone
    #[arg(long, value_name = "S", default_value = "60", value_parser = seconds)]
    seconds: f64,
    /// How often
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    times: u16,
    /// common
    #[command(flatten)]
    common: Common,
}

struct Found {
    server_share: f64,
    processor_share: f64,
    busy_p50_us: f64,
    busy_p99_us: f64,
    first_us: Vec<f64>,
}

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    ensure!(!options.servers.iter().any(Subject::reflects), "a reflector answers no question");
    let ours = options.servers.iter().any(|subject| matches!(subject, Subject::Simoom(..)));
    let simoom = if ours { options.common.simoom()? } else { "simoom".into() };
    let bed = Bed::new(plain_zone(10_000), &simoom, super::Generator::Own)?;
    let mut table = Table::new(&[
        "server",
        "own processor time, %",
        "processor 0 busy, %",
        "busy p50, us",
        "busy p99, us",
        "first after idleness, us",
        "least",
        "greatest",
        "later than busy p50 by, us",
    ]);
    for subject in &options.servers {
        let mut served = bed.serve(subject)?;
        let found = measure(&mut served, options)?;
        served.server_pid()?;
        let first = stats::Summary::of(&found.first_us).context("no measurement")?;
        table.row(vec![
            Cell::text(subject.name()),
            Cell::Number(found.server_share * 100.0, 3),
            Cell::Number(found.processor_share * 100.0, 2),
            Cell::Number(found.busy_p50_us, 1),
            Cell::Number(found.busy_p99_us, 1),
            Cell::Number(first.median, 1),
            Cell::Number(first.least, 1),
            Cell::Number(first.greatest, 1),
            Cell::Number(first.median - found.busy_p50_us, 1),
        ]);
    }
    let report = Report {
        name: "idle".into(),
        title: "Idle servers".into(),
        method: format!(
            "Processor time over {} s without a question; latency of {BUSY_QUESTIONS} questions asked one after the other, and of \
             {} asked each after {} s of idleness (the generator's host idle as well, so its own waking up is in the figure).",
            options.seconds, options.times, options.seconds
        ),
        table,
        charts: Vec::new(),
        machine: Machine::here(Peers::Dns),
    };
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

fn measure(served: &mut Served<'_>, options: &Options) -> Result<Found> {
    let span = Duration::from_secs_f64(options.seconds);
    let pid = served.server_pid()?;
    let host = served.lab().client();
    host.inside(|| -> Result<Found> {
        procs::pin(1)?;
        let socket = UdpSocket::bind("0.0.0.0:0").context("cannot open a UDP socket")?;
        socket.connect(SERVER)?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        let mut busy_us = Vec::with_capacity(BUSY_QUESTIONS);
        for number in 0..BUSY_QUESTIONS {
            busy_us.push(ask(&socket, number)?);
        }
        let (own, processor, start) = (procs::group_s(pid)?, Ticks::now(Some(0))?, Instant::now());
        let mut first_us = Vec::new();
        let mut shares = None;
        for number in 0..options.times {
            std::thread::sleep(span);
            lab::uninterrupted()?;
            // the first silence, in which nothing at all was asked, tells the cost
            if shares.is_none() {
                let passed_s = start.elapsed().as_secs_f64();
                let busy_s = Ticks::now(Some(0))?.busy_s_since(processor);
                shares = Some(((procs::group_s(pid)? - own) / passed_s, busy_s / passed_s));
            }
            first_us.push(ask(&socket, usize::from(number))?);
        }
        busy_us.sort_by(f64::total_cmp);
        let (server_share, processor_share) = shares.context("nothing was measured")?;
        let (busy_p50_us, busy_p99_us) = (busy_us[BUSY_QUESTIONS / 2], busy_us[BUSY_QUESTIONS * 99 / 100]);
        Ok(Found { server_share, processor_share, busy_p50_us, busy_p99_us, first_us })
    })
}

/// Microseconds from question to answer.
fn ask(socket: &UdpSocket, number: usize) -> Result<f64> {
    let mut wire = question(&format!("host{}.example.com", number % 10_000), 1);
    wire[..2].copy_from_slice(&(number as u16).to_be_bytes());
    let mut answer = [0; 1500];
    let start = Instant::now();
    socket.send(&wire).context("cannot ask")?;
    loop {
        let len = socket.recv(&mut answer).context("a question was not answered within 2 s")?;
        let took_us = start.elapsed().as_secs_f64() * 1e6;
        if len >= 12 && answer[..2] == wire[..2] {
            // how fast it refuses is not asked
            ensure!(is_good(&answer[..len]), "a question was answered with RCODE {} or no record", answer[3] & 15);
            return Ok(took_us);
        }
    }
}
