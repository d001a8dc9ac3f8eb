//! Measurements of whole servers in the laboratory: in turn, subject by subject, round by round, so that a comparison pairs
//! what was measured under the same conditions.

mod accept;
pub(crate) mod apart;
mod balance;
mod batch;
mod bed;
mod compare;
mod compare_web;
mod connections;
mod downloads;
mod echo;
mod elastic;
mod figures;
mod idle;
mod ladder;
mod loss;
mod memcached;
mod messages;
mod mutilate;
mod netpipe;
mod rtt;
mod soak;
mod stress;
mod subject;
mod taken;
mod udp_readers;
mod web;

pub(crate) use compare::Options as CompareOptions;
pub(crate) use compare_web::Options as CompareWebOptions;
pub(crate) use idle::Options as IdleOptions;
pub(crate) use soak::dns::Options as SoakOptions;
pub(crate) use soak::web::Options as SoakWebOptions;

use crate::commands::{rate, seconds};
use crate::grid;
use crate::memcache::Mix;
use crate::queries::{Content, Synthetic};
use anyhow::{Context as _, Result, bail, ensure};
use bed::Generator;
use std::path::{Path, PathBuf};

/// Runs `simoom-bench compare`.
pub(crate) fn compare(options: &CompareOptions) -> Result<()> {
    compare::run(options)
}

/// Runs `simoom-bench compare-web`.
pub(crate) fn compare_web(options: &CompareWebOptions) -> Result<()> {
    compare_web::run(options)
}

/// Options of `simoom-bench experiment`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExperimentOptions {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Debug, clap::Subcommand)]
enum Experiment {
    /// DNS throughput by zone size
    Fig8a(figures::Options),
    /// DNS throughput by batch size, on one queue
    Fig8b(figures::Options),
    /// Web throughput and processor use by file size, against nginx, offloads on and off
    Fig4(web::fig4::SizeOptions),
    /// Web throughput and processor use for files as sites have them, against nginx
    Fig5(web::fig4::TraceOptions),
    /// Ways to send a file: throughput, processor use, system calls, memory
    Fig6(web::fig6::Options),
    /// TCP goodput over a lossy, slow path
    Loss(loss::Options),
    /// Web goodput under a flood of spoofed SYNs
    Flood(stress::Options),
    /// Web goodput when twice as much is asked as can be done
    Overload(stress::Options),
    /// What one connection gets by round-trip time, against nginx
    Rtt(rtt::Options),
    /// How connections get to the threads on kernel sockets: one listener, a listener each, affinity
    Accept(accept::Options),
    /// A compiler on one of two processors: latency and its time, without a balancer, with stealing, with migration
    Balance(balance::Options),
    /// Several threads that read datagrams: one socket, a socket each, affinity, our own stack, a pipe
    UdpReaders(udp_readers::Options),
    /// Load up and down on the in-memory NIC: threads that are added and removed, and how long answers take
    Elastic(elastic::Options),
    /// Key-value store, short keys and values: throughput with a bound on latency, against memcached
    MemcachedUsr(memcached::Options),
    /// Key-value store, keys and values of many lengths: the same
    MemcachedEtc(memcached::Options),
    /// Key-value load of ours beside mutilate's, on one memcached
    Mutilate(mutilate::Options),
    /// Round trips of small datagrams, from sleeping to spinning, on kernel sockets and AF_XDP
    Ladder(ladder::Options),
    /// Frames of a cycle: throughput of an echo and of GETs, and latency below it
    Batch(batch::Options),
    /// Round trips by the number of established connections, and the memory of each
    Connections(connections::Options),
    /// RPC echo: messages and connections by round trips of a connection, goodput by length, against a loop over epoll
    Echo(echo::Options),
    /// One connection: time of a message one way, and goodput, by its length, on our stack and the kernel's
    Netpipe(netpipe::Options),
}

/// Runs `simoom-bench experiment`.
pub(crate) fn experiment(options: &ExperimentOptions) -> Result<()> {
    match &options.experiment {
        Experiment::Fig8a(options) => figures::run(figures::Figure::Fig8a, options),
        Experiment::Fig8b(options) => figures::run(figures::Figure::Fig8b, options),
        Experiment::Fig4(options) => web::fig4::by_size(options),
        Experiment::Fig5(options) => web::fig4::of_a_trace(options),
        Experiment::Fig6(options) => web::fig6::run(options),
        Experiment::Loss(options) => loss::run(options),
        Experiment::Flood(options) => stress::run(stress::Kind::Flood, options),
        Experiment::Overload(options) => stress::run(stress::Kind::Overload, options),
        Experiment::Rtt(options) => rtt::run(options),
        Experiment::Accept(options) => accept::run(options),
        Experiment::Balance(options) => balance::run(options),
        Experiment::UdpReaders(options) => udp_readers::run(options),
        Experiment::Elastic(options) => elastic::run(options),
        Experiment::MemcachedUsr(options) => memcached::run(Mix::Usr, options),
        Experiment::MemcachedEtc(options) => memcached::run(Mix::Etc, options),
        Experiment::Mutilate(options) => mutilate::run(options),
        Experiment::Ladder(options) => ladder::run(options),
        Experiment::Batch(options) => batch::run(options),
        Experiment::Connections(options) => connections::run(options),
        Experiment::Echo(options) => echo::run(options),
        Experiment::Netpipe(options) => netpipe::run(options),
    }
}

/// Runs `simoom-bench idle`.
pub(crate) fn idle(options: &IdleOptions) -> Result<()> {
    idle::run(options)
}

/// Runs `simoom-bench soak`.
pub(crate) fn soak(options: &SoakOptions) -> Result<()> {
    soak::dns::run(options)
}

/// Runs `simoom-bench soak-web`.
pub(crate) fn soak_web(options: &SoakWebOptions) -> Result<()> {
    soak::web::run(options)
}

/// What every measurement of a server needs.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Common {
    /// The server under test; default: simoom beside this program
    #[arg(long, value_name = "FILE")]
    simoom: Option<PathBuf>,
    /// Where results are written
    #[arg(long, value_name = "DIR", default_value = "docs/results")]
    out: PathBuf,
}

impl Common {
    /// Where the server lies; its commit is in the report.
    fn simoom(&self) -> Result<PathBuf> {
        let path = match &self.simoom {
            Some(path) => path.clone(),
            None => std::env::current_exe().context("where this program lies")?.with_file_name("simoom"),
        };
        // as it will be seen from another working directory
        let path = path
            .canonicalize()
            .with_context(|| format!("no server at {}; build it, or name it with --simoom", path.display()))?;
        crate::report::note_server(&path);
        Ok(path)
    }
}

/// The grid of rates of a throughput measurement.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Grid {
    /// How often every server is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// How long each rate is sent
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    seconds: f64,
    /// The lowest rate
    #[arg(long, value_name = "R", default_value = "100k", value_parser = rate)]
    from: f64,
    /// The highest rate
    #[arg(long, value_name = "R", default_value = "1.2M", value_parser = rate)]
    to: f64,
    /// Who makes the load
    #[arg(long, value_name = "WORD", default_value = "own")]
    generator: Generator,
}

impl Grid {
    fn rates(&self) -> Result<Vec<f64>> {
        let rates = grid::rates(self.from, self.to);
        ensure!(!rates.is_empty(), "--from is above --to");
        Ok(rates)
    }
}

fn plain_zone(names: u64) -> Synthetic {
    Synthetic { origin: "example.com".into(), names, content: Content::Plain }
}

/// How often at most a load is made anew of which nothing came back, or that fell behind its rate: its generator, or a receive thread, had
/// no processor, which says nothing of the server.
const ANEW_MOST: usize = 4;

/// Measures until `is_answered` of the outcome; that, and how often it was anew. That nothing ever comes back is an error.
fn until_answered<T>(mut measure: impl FnMut() -> Result<T>, is_answered: impl Fn(&T) -> bool) -> Result<(T, usize)> {
    for anew in 0..=ANEW_MOST {
        let outcome = measure()?;
        if is_answered(&outcome) {
            return Ok((outcome, anew));
        }
        eprintln!("of a load nothing came back");
    }
    bail!("nothing came back of {} loads", ANEW_MOST + 1)
}

/// What a report says of loads that were made anew.
fn told_anew(anew: usize) -> String {
    told_anew_where("nothing came back in time, a load was made", anew)
}

/// The same of what was done anew for another reason.
fn told_anew_where(why: &str, anew: usize) -> String {
    match anew {
        0 => String::new(),
        _ => format!(" Where {why} anew, {ANEW_MOST} times at most: that was so {anew} times."),
    }
}

fn tell_written(paths: &[PathBuf]) {
    for path in paths {
        eprintln!("wrote {}", show(path));
    }
}

fn show(path: &Path) -> String {
    path.display().to_string()
}
